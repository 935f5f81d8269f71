"""Literals in long texts: the answers of `in`, with few scans."""

from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.core import long_texts, patterns
from wayfare.core.filters import Filter
from wayfare.core.long_texts import LONG, LONG_TEXTS, SCANS, LongText, LongTexts
from wayfare.core.matching import FilterIndex

ab = st.text("ab", max_size=40)


@given(st.text("ab", max_size=120), st.lists(ab, max_size=60), st.booleans())
@settings(max_examples=300)
def test_a_long_text_contains_what_it_contains(text, literals, exact):
    with mock.patch.object(long_texts, "SCANS", 3):
        known = LongText(text, exact=exact)
        literals += [text[i : i + len(each)] for i, each in enumerate(literals)]
        for literal in literals:
            assert known.contains(literal) == (literal in text)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("length", [7, 30])
def test_a_text_is_scanned_a_few_times_for_however_many_literals(exact, length):
    random = Random(1)
    text = "".join(random.choices("abcdefgh", k=8 * LONG))
    known = LongText(text, exact=exact)
    for _ in range(2_000):
        literal = "".join(random.choices("abcdefghijkl", k=length))
        assert known.contains(literal) == (literal in text)
    assert sum(known.scans.values()) < (2 * SCANS if exact else 2_000 // 4)


@pytest.mark.parametrize(
    "pattern", ["not x contains '{}'", "not x like '%{}_%'", "x like '%{}%{}%'"]
)
def test_patterns_are_not_looked_for_one_by_one_in_a_long_text(pattern):
    """Two thousand negated patterns once took 50 ms for a text of 20,000 characters."""
    random = Random(1)
    words = ["".join(random.choices("abcdefgh", k=7)) for _ in range(1_000)]
    filters = [Filter.parse(pattern.format(word, word)) for word in words]
    texts = ["".join(random.choices("abcdefgh", k=10 * LONG)), "z".join(words * 2)]
    for text in texts:
        LONG_TEXTS.forget()
        alone = [one for one in filters if one.matches({"x": text})]
        assert sum(LONG_TEXTS.known[text].scans.values()) <= SCANS
        index = FilterIndex()
        for one in filters:
            index.add(one, one)
        assert set(index.match({"x": text})) == set(alone)
        assert not LONG_TEXTS.known
        wanted = [one for one, word in zip(filters, words, strict=True) if word not in text]
        if "not" in pattern:
            assert set(wanted) <= set(alone)


def test_texts_that_are_too_long_together_are_forgotten():
    texts = LongTexts()
    with (
        mock.patch.object(long_texts, "CHARACTERS_MAX", 100),
        mock.patch.object(long_texts, "EXACT_MAX", 50),
    ):
        for text, known in (("a" * 40, 1), ("b" * 40, 2), ("c" * 40, 1), ("d" * 200, 1)):
            assert not texts.contains(text, "x")
            assert texts.contains(text, text[:5])
            assert len(texts.known) == known


characters = st.sampled_from("ab\u00e4\u20ac\U0001f697%_")
pattern_texts = st.text("ab\u20ac%%__", min_size=1, max_size=30)


@given(st.text(characters, max_size=120), st.lists(pattern_texts, min_size=1, max_size=20))
@settings(max_examples=300)
def test_a_long_text_matches_what_it_matches(text, given):
    """However its pieces are looked for: by scans first, and then by their places."""
    LONG_TEXTS.forget()
    with mock.patch.object(patterns, "SCANS", 5), mock.patch.object(patterns, "PLACES", 2):
        for one in map(patterns.canonical, given):
            assert patterns.fits_long(one, text) == (patterns.expression(one)(text) is not None)
    LONG_TEXTS.forget()


@pytest.mark.parametrize("letters", ["ab", "abcdefgh"])
@pytest.mark.parametrize("length", [3, 8, 14, 40])
def test_pieces_that_are_frequent_take_few_operations_each(letters, length):
    """Two thousand patterns once took 580 ms for a text of 100,000 characters: each was a scan by an expression."""
    random = Random(1)

    def word():
        return "".join(random.choices(letters, k=length))

    text = "".join(random.choices(letters, k=100_000))
    given = [f"%{word()}_{word()}_{word()}%" for _ in range(500)]
    LONG_TEXTS.forget()
    with mock.patch.object(patterns, "expression", None):  # nothing is compiled
        found = [one for one in given if patterns.fits_long(one, text)]
    known = LONG_TEXTS.of(text)
    assert known.places.operations <= 30 * len(given)
    assert found == [one for one in given if patterns.expression(one)(text) is not None]
    LONG_TEXTS.forget()


def test_what_is_kept_of_places_is_bounded():
    text = "".join(Random(1).choices("abcdefgh", k=LONG))
    places = LongText(text, exact=True).places
    for i in range(LONG - 20):
        assert places.find([(0, text[i : i + 20])], 20, 0) == text.find(text[i : i + 20])
    kept = len(places._known) * LONG // 8
    assert kept <= long_texts.PLACES_PER_CHARACTER * LONG + LONG
