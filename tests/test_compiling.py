"""Compiled conjunctions say what `predicates.satisfied` says."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import attributes, conjunctions, filters, predicates, telling_attributes
from wayfare.core import predicates as ps
from wayfare.core.compiling import compiled, number_span, text_span
from wayfare.core.filters import Filter

ODD = [True, False, 1, 1.0, 0, -0.0, nan, inf, -inf, 10**400, "", "1", None, b"a", (), []]


@given(conjunctions(), attributes())
@settings(max_examples=500)
def test_a_conjunction_is_all_of_its_predicates(given, there):
    assert compiled(tuple(given))(there) is all(ps.satisfied(p, there) for p in given)


@given(st.data())
@settings(max_examples=500)
def test_a_conjunction_is_exact_at_the_borders(data):
    wanted = data.draw(filters())
    there = data.draw(telling_attributes(wanted))
    expected = any(all(ps.satisfied(p, there) for p in one) for one in wanted.conjunctions)
    assert wanted.matches(there) is expected


@given(predicates(), st.sampled_from(ODD), st.sampled_from(ODD))
@settings(max_examples=500)
def test_odd_values_never_crash_and_never_count_as_another_kind(p, odd, other):
    there = dict.fromkeys(ps.names(p), odd) | ({"lon": other} if type(p) is ps.Near else {})
    assert compiled((p,))(there) is ps.satisfied(p, there)


def test_nothing_to_satisfy_is_always_satisfied():
    assert compiled(())({}) is True


@pytest.mark.parametrize(
    ("p", "value", "expected"),
    [
        (ps.one_of("x", [1]), True, False),
        (ps.one_of("x", [1]), 1.0, True),
        (ps.one_of("x", [True]), 1, False),
        (ps.one_of("x", [1, 2]), True, False),
        (ps.one_of("x", [False, True]), 1, False),
        (ps.none_of("x", [5]), True, False),
        (ps.none_of("x", [5]), nan, True),
        (ps.between("x", 0, 2), True, False),
        (ps.between("x", low=2**62), 2.0**62, True),
        (ps.between("x", low=2**62, low_open=True), 2**62 + 1, True),
        (ps.between("x", low=2.0**62, low_open=True), 2**62, False),
        (ps.between("x", high=1, high_open=True), 1 - 2**-53, True),
        (ps.between("x", low="a", low_open=True), "a\0", True),
        (ps.between("x", high="a"), "a\0", False),
        (ps.like("x", "_%a\n%b"), "xxa\n\nb", True),
        (ps.like("x", "a%a"), "a", False),
        (ps.like("x", "%ab%b"), "aab", False),
        (ps.like("x", "___"), "a.b", True),
    ],
)
def test_the_corners(p, value, expected):
    assert ps.satisfied(p, {"x": value}) is expected
    assert compiled((p,))({"x": value}) is expected


def test_a_pattern_takes_linear_time():
    wanted = ps.like("x", "%".join(["", *["a_"] * 60, "b"]))
    assert compiled((wanted,))({"x": "a" * 4000}) is False


@given(st.sampled_from([0, 5, -3, 0.5, 2**53 - 1, 2**53, 2**62, 2.0**60, -(2**63)]), st.booleans())
def test_spans_of_numbers_have_no_open_ends(bound, above):
    p = (
        ps.between("x", bound, low_open=True)
        if above
        else ps.between("x", high=bound, high_open=True)
    )
    low, high = number_span(p)
    end = low if above else high
    assert ps.admits(p, end)
    assert not ps.admits(p, bound)
    assert end == pytest.approx(bound)


def test_spans_of_texts():
    assert text_span(ps.between("x", "a", "b")) == ("a", "b\0")
    assert text_span(ps.between("x", "a", "b", low_open=True, high_open=True)) == ("a\0", "b")
    assert text_span(ps.between("x", high="b", high_open=True)) == ("", "b")
    assert text_span(ps.between("x", "a")) == ("a", None)


def test_equal_operators_share_their_code():
    one = compiled((ps.one_of("x", ["a"]), ps.prefix("y", "b")))
    other = compiled((ps.one_of("v", ["c"]), ps.prefix("w", "d")))
    assert one.__code__ is other.__code__
    assert Filter.of([[ps.Exists("x")]]).matches({"x": None})
