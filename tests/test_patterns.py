"""The patterns of `like`, against a reference that follows the definition letter by letter."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wayfare.core import patterns


def is_canonical(pattern: str) -> bool:
    return patterns.canonical(pattern, escape="\\") == pattern


def reference(pattern: str, text: str, escape: str | None = None) -> bool:
    """Whether the text matches: all the places in the pattern where a reader could be, by letter."""
    wanted: list[tuple[str, str]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            wanted.append(("literal", next(characters, escape)))
        else:
            word = {"%": "many", "_": "one"}.get(character, "literal")
            wanted.append((word, character))

    def skipped(places: set[int]) -> set[int]:
        reached = set(places)
        for at in range(len(wanted)):
            if at in reached and wanted[at][0] == "many":
                reached.add(at + 1)
        return reached

    places = skipped({0})
    for letter in text:
        after = set()
        for at in places & set(range(len(wanted))):
            word, character = wanted[at]
            if word == "many":
                after.add(at)
            elif word == "one" or character == letter:
                after.add(at + 1)
        places = skipped(after)
    return len(wanted) in places


def words(alphabet: str, longest: int) -> list[str]:
    return ["".join(word) for n in range(longest + 1) for word in product(alphabet, repeat=n)]


PATTERNS = sorted({patterns.canonical(pattern) for pattern in words("a%_", 4)})
PATTERNS_AB = sorted({patterns.canonical(pattern) for pattern in words("ab%_", 3)})
TEXTS = words("ab", 5)
MATCHED = {p: frozenset(t for t in TEXTS if reference(p, t)) for p in {*PATTERNS, *PATTERNS_AB}}

some_patterns = st.text("ab%_\\", max_size=8)
some_texts = st.text("ab%_\\", max_size=8)
escapes = st.sampled_from([None, "\\", "b", "%", "_"])


# Spelling


@settings(max_examples=2000)
@given(some_patterns, escapes, some_texts)
@example("%_%", None, "")
@example("a\\", "\\", "a\\")
@example("%%", "%", "%")
def test_the_canonical_spelling_means_the_same(pattern, escape, text):
    canonical = patterns.canonical(pattern, escape)
    expected = reference(pattern, text, escape)
    assert reference(canonical, text, "\\") == expected
    assert patterns.matcher(canonical)(text) == expected


@settings(max_examples=2000)
@given(some_patterns, escapes)
def test_the_canonical_spelling_stays(pattern, escape):
    canonical = patterns.canonical(pattern, escape)
    assert is_canonical(canonical)


@pytest.mark.parametrize(
    ("pattern", "canonical"),
    [
        ("%%", "%"),
        ("%_", "_%"),
        ("%_%_%", "__%"),
        ("a%_b", "a_%b"),
        ("a%%b%", "a%b%"),
        ("a\\", "a\\\\"),
    ],
)
def test_the_single_characters_come_before_the_many(pattern, canonical):
    assert patterns.canonical(pattern) == canonical


@pytest.mark.parametrize("pattern", ["%%", "%_", "a\\b", "\\", "_%_"])
def test_other_spellings_are_not_canonical(pattern):
    assert not is_canonical(pattern)


def test_two_canonical_patterns_never_match_the_same_texts():
    """So that equal filters look equal. (Texts of up to five letters tell these patterns apart.)"""
    assert len({MATCHED[p] for p in PATTERNS_AB}) == len(PATTERNS_AB)


def test_matching_is_what_the_reference_says():
    for pattern in MATCHED:
        matches = patterns.matcher(pattern)
        assert {text for text in TEXTS if matches(text)} == MATCHED[pattern], pattern


@given(some_texts, some_texts)
def test_a_literal_matches_itself_alone(text, other):
    pattern = patterns.literal(text)
    assert is_canonical(pattern)
    assert patterns.shape(pattern) == ("=", text)
    assert patterns.matcher(pattern)(other) == (other == text)


@settings(max_examples=1000)
@given(some_patterns, some_texts)
def test_the_shape_says_all(pattern, text):
    canonical = patterns.canonical(pattern, "\\")
    word, rest = patterns.shape(canonical)
    rebuilt = {
        "=": patterns.literal(rest),
        "prefix": patterns.literal(rest) + "%",
        "suffix": "%" + patterns.literal(rest),
        "contains": "%" + patterns.literal(rest) + "%",
        "like": rest,
    }
    assert rebuilt[word] == canonical
    assert patterns.matcher(canonical)(text) == reference(canonical, text, "\\")


@pytest.mark.parametrize(
    ("pattern", "shape"),
    [
        ("", ("=", "")),
        ("%", ("like", "%")),
        ("a%", ("prefix", "a")),
        ("%a", ("suffix", "a")),
        ("%a%", ("contains", "a")),
        ("\\%%", ("prefix", "%")),
        ("a%b", ("like", "a%b")),
        ("_%", ("like", "_%")),
    ],
)
def test_shapes(pattern, shape):
    assert patterns.shape(pattern) == shape


# Inclusion


def test_inclusion_is_sound():
    for wide, narrow in product(PATTERNS_AB, repeat=2):
        if patterns.includes(wide, narrow):
            assert MATCHED[narrow] <= MATCHED[wide], (wide, narrow)


def test_inclusion_is_an_order():
    wider = {p: {w for w in PATTERNS if patterns.includes(w, p)} for p in PATTERNS}
    for narrow, above in wider.items():
        assert narrow in above
        for middle in above:
            assert wider[middle] <= above, (narrow, middle)
            assert middle == narrow or narrow not in wider[middle], (narrow, middle)


def test_inclusion_of_a_text_is_matching():
    for wide in PATTERNS_AB:
        for text in TEXTS:
            assert patterns.includes(wide, patterns.literal(text)) == (text in MATCHED[wide])


@settings(max_examples=1000)
@given(some_patterns, some_patterns, some_texts)
def test_inclusion_of_patterns_with_escapes_is_sound(wide, narrow, text):
    wide, narrow = patterns.canonical(wide, "\\"), patterns.canonical(narrow, "\\")
    if patterns.includes(wide, narrow) and reference(narrow, text, "\\"):
        assert reference(wide, text, "\\")


@pytest.mark.parametrize(
    ("wide", "narrow"), [("%", ""), ("a%", "ab%"), ("%a%", "%ba"), ("_%", "a%"), ("%b", "a%_b")]
)
def test_inclusions_that_are_found(wide, narrow):
    assert patterns.includes(wide, narrow)
    assert not patterns.includes(narrow, wide)


# Disjointness


def test_disjoint_patterns_share_no_text():
    for p, q in product(PATTERNS_AB, repeat=2):
        assert patterns.disjoint(p, q) == patterns.disjoint(q, p)
        if patterns.disjoint(p, q):
            assert not MATCHED[p] & MATCHED[q], (p, q)


@pytest.mark.parametrize(
    ("p", "q"), [("a%", "b%"), ("%a", "%b"), ("aa%", "ab%"), ("a%b", "%ba"), ("\\%%", "a%")]
)
def test_contradictions_that_are_found(p, q):
    assert patterns.disjoint(p, q)


def test_fixed_beginnings_and_ends():
    assert patterns.literal_prefix("a\\%_b") == "a%"
    assert patterns.literal_suffix("a_\\%b") == "%b"
    for pattern, matched in MATCHED.items():
        assert all(text.startswith(patterns.literal_prefix(pattern)) for text in matched)
        assert all(text.endswith(patterns.literal_suffix(pattern)) for text in matched)


# Bounds


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("%a" * 200, "a" * 1000, True),
        ("%a" * 200 + "b", "a" * 1000, False),
        ("%a" * 200 + "%b%a", "a" * 1000, False),
        ("%" + "a" * 200 + "_b%", "a" * 1000, False),
        ("%_a" * 200 + "b%", "a" * 1000, False),
    ],
)
def test_hostile_patterns_take_bounded_time(pattern, text, expected):
    canonical = patterns.canonical(pattern)
    began = time.perf_counter()
    assert patterns.matcher(canonical)(text) == expected
    patterns.includes(canonical, patterns.canonical(text + "%"))
    patterns.includes(canonical, canonical + "a")
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("places", [1, 32])
def test_long_texts_match_as_short_ones_do(places, monkeypatch):
    monkeypatch.setattr(patterns, "PLACES", places)
    for pattern in PATTERNS_AB:
        for text in words("ab", 6):
            assert patterns.fits_long(pattern, text) == reference(pattern, text), (pattern, text)


def test_patterns_are_not_compiled_for_one_long_text():
    """Compiling two thousand patterns once took 140 ms where their parts were in the text, but not in order."""
    parts = [f"{i:04}x" for i in range(500)]
    text = "".join(parts)
    patterns.expression.cache_clear()
    for part in parts[1:]:
        assert not patterns.fits_long(f"%{part}_{parts[0]}%", text)
        assert patterns.fits_long(f"%{part[:2]}_{part[3:]}%", text)
    assert patterns.expression.cache_info().misses == 0
