"""Literals in long texts: the answers of `in`, with few scans."""

from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.core import long_texts
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
