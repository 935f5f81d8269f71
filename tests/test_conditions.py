"""Conditions built in Python: the same filters as the text, the same limits."""

from __future__ import annotations

import pytest

from wayfare.core.conditions import (
    CONJUNCTIONS_MAX,
    DEPTH_MAX,
    TERMS_MAX,
    All,
    Condition,
    Constant,
    Not,
    Some,
    attr,
    near,
)
from wayfare.core.filters import Filter
from wayfare.errors import FilterError

x, y = attr("x"), attr("y")

SAME = [
    (x == 5, "x = 5"),
    (x != 5, "x <> 5"),
    (x < 5, "x < 5"),
    (x <= 5, "x <= 5"),
    (x > 5, "x > 5"),
    (x >= 5, "x >= 5"),
    (5 < x, "x > 5"),  # noqa: SIM300  Python turns it round as the language does
    (x == True, "x = true"),  # noqa: E712  a value like any other
    (x == "it's", "x = 'it''s'"),
    (x.between(1, 5), "x between 1 and 5"),
    (~x.between(1, 5), "x not between 1 and 5"),
    (x.one_of(1, 2), "x in (1, 2)"),
    (~x.one_of("a", "b"), "x not in ('a', 'b')"),
    (x.like("a%_"), "x like 'a%_'"),
    (~x.like("a!%", "!"), "x not like 'a!%' escape '!'"),
    (x.prefix("a%"), "x prefix 'a%'"),
    (x.suffix("a"), "x suffix 'a'"),
    (~x.contains("a"), "x not contains 'a'"),
    (x.exists(), "exists x"),
    (x.is_null(), "x is null"),
    (~x.is_null(), "x is not null"),
    (near(52.5, 13, 500), "near(52.5, 13, 500)"),
    (~near(52.5, 13, 500), "not near(52.5, 13, 500)"),
    (attr("a b") > 1, '"a b" > 1'),
    (Constant(True), "true"),
    (~Constant(True), "false"),
    ((x > 1) & (y < 2), "x > 1 and y < 2"),
    ((x > 1) | (y < 2), "x > 1 or y < 2"),
    (~((x > 1) | (y < 2)), "not (x > 1 or y < 2)"),
    (~(x > 1) | (y < 2), "not x > 1 or y < 2"),
    ((x > 1) | (y < 2) & (x == 0), "x > 1 or y < 2 and x = 0"),
    (((x > 1) | (y < 2)) & (x == 0), "(x > 1 or y < 2) and x = 0"),
]


@pytest.mark.parametrize(("condition", "text"), SAME, ids=[text for _, text in SAME])
def test_builders_and_text_make_equal_filters(condition, text):
    assert Filter.where(condition) == Filter.parse(text)


def test_the_example_of_the_module():
    condition = (attr("service") == "parking") & (attr("free") > 0) & ~attr("road").prefix("B")
    assert str(Filter.where(condition)) == (
        "free > 0 and road not prefix 'B' and service = 'parking'"
    )


@pytest.mark.parametrize("condition", [x == 5, ~(x == 5), (x == 5) & (y == 5), Constant(False)])
def test_and_or_not_of_python_are_refused(condition):
    """`a and b` would silently be `b`."""
    with pytest.raises(TypeError, match="combine conditions with &"):
        bool(condition)
    with pytest.raises(TypeError):
        _ = condition and condition


def test_a_bare_attribute_is_no_condition_either():
    for misuse in (lambda: not x, lambda: x or (y == 5), lambda: x and (y == 5)):
        with pytest.raises(TypeError, match=r"combine conditions with & .* use \.exists\(\)"):
            misuse()


def test_a_chained_comparison_is_refused():
    with pytest.raises(TypeError, match="combine conditions with &"):
        1 < x < 5  # noqa: B015


def test_an_attribute_has_no_hash_because_equal_is_a_condition():
    with pytest.raises(TypeError):
        hash(x)


@pytest.mark.parametrize("other", [5, None, True, "x = 5", x])
def test_only_conditions_can_be_combined(other):
    with pytest.raises(FilterError, match="a condition was expected"):
        (x == 5) & other
    with pytest.raises(FilterError, match="a condition was expected"):
        (x == 5) | other


WRONG = {
    "nan": lambda: x == float("nan"),
    "infinity": lambda: x > float("inf"),
    "too large": lambda: x == 2**63,
    "too long": lambda: x == "a" * 1025,
    "no value": lambda: x == None,  # noqa: E711
    "empty list": lambda: x.one_of(),
    "mixed list": lambda: x.one_of(1, "a"),
    "too many": lambda: x.one_of(*range(257)),
    "order of truths": lambda: x < True,
    "range of truths": lambda: x.between(False, True),
    "mixed range": lambda: x.between(1, "a"),
    "pattern": lambda: x.like(5),
    "escape": lambda: x.like("a", "bc"),
    "prefix": lambda: x.prefix(5),
    "latitude": lambda: near(91, 0, 1),
    "near text": lambda: near("a", 0, 1),
    "no name": lambda: attr("") == 1,
    "long name": lambda: attr("a" * 129).exists(),
    "name that is no text": lambda: attr(5).is_null(),
}


@pytest.mark.parametrize("build", WRONG.values(), ids=WRONG)
def test_what_no_filter_may_contain_is_refused_at_once(build):
    with pytest.raises(FilterError):
        build()


def chain(count: int) -> list[Condition]:
    return [attr(f"x{i}") == 1 for i in range(count)]


def test_predicates_are_limited():
    assert All(chain(TERMS_MAX)).terms == TERMS_MAX
    with pytest.raises(FilterError, match=f"at most {TERMS_MAX} predicates"):
        All(chain(TERMS_MAX + 1))
    with pytest.raises(FilterError, match=f"at most {TERMS_MAX} predicates"):
        Some([All(chain(TERMS_MAX)), x == 1])


def test_nesting_is_limited():
    condition = x == 1
    for _ in range(DEPTH_MAX - 1):
        condition = ~condition
    assert Filter.where(condition) == Filter.parse("x <> 1")
    with pytest.raises(FilterError, match=f"at most {DEPTH_MAX} deep"):
        Not(condition)


def test_chains_of_one_operator_are_flat():
    """So a long `a & b & c ...` is not deep."""
    condition = x == 1
    for part in chain(DEPTH_MAX * 2):
        condition = condition & part
    assert condition.depth == 2


def test_conjunctions_are_limited_when_multiplied_out():
    assert len(Filter.where(Some(chain(CONJUNCTIONS_MAX))).conjunctions) == CONJUNCTIONS_MAX
    with pytest.raises(FilterError, match=f"at most {CONJUNCTIONS_MAX} conjunctions"):
        Filter.where(Some(chain(CONJUNCTIONS_MAX + 1)))
    pairs = [(attr(f"a{i}") == 1) | (attr(f"b{i}") == 1) for i in range(6)]
    with pytest.raises(FilterError, match="split it into several subscriptions"):
        Filter.where(All(pairs))
    with pytest.raises(FilterError, match="split it into several subscriptions"):
        Filter.where(~Some([~pair for pair in pairs]))


def test_not_is_pushed_down_before_contradictions_are_dropped():
    """`x > 5 and x < 3` matches nothing, but its negation needs x to be a number."""
    nothing = (x > 5) & (x < 3)
    assert str(Filter.where(nothing)) == "false"
    negated = Filter.where(~nothing)
    assert [negated.matches(a) for a in ({"x": 4}, {"x": 9}, {"x": "a"}, {})] == [
        True,
        True,
        False,
        False,
    ]
