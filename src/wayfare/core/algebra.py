"""The algebra of predicates on one attribute, as sets of values.

    implies(q, p)    q's set lies within p's        sound, reflexive, transitive
    disjoint(p, q)   no value is in both            sound: never true when there is one
    unite(p, q)      one predicate for both sets    exact, or None
    conjoin(ps)      the fewest that say the same   None if they contradict

`implies` need not find every inclusion, but it has to be transitive: routing takes it for an order.
docs/filter-language.md says why each rule keeps that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from fractions import Fraction
from typing import Any

from wayfare.core import patterns
from wayfare.core.predicates import (
    VALUES_MAX,
    Between,
    Exists,
    Like,
    Missing,
    Near,
    NoneOf,
    OneOf,
    Predicate,
    Value,
    Valued,
    admits,
    between,
    distance_m,
    kind_of,
    sorted_values,
)
from wayfare.errors import FilterError

# Distances carry rounding errors of some centimetres near the antipode; circles closer than
# this to touching count as touching in `disjoint` and as not included in `implies`.
DISTANCE_SLACK_M = 1.0


# Inclusion


def _common_prefix(a: str, b: str) -> str:
    end = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return min(a, b, key=len) if end is None else a[:end]


def hull(p: Between) -> str:
    """The narrowest prefix pattern that holds all texts of a range."""
    if isinstance(p.low, str) and isinstance(p.high, str):
        return patterns.literal(_common_prefix(p.low, p.high)) + "%"
    return patterns.ANY


def _block_within(start: str, p: Between) -> bool:
    """Whether all texts that begin with `start` lie in the range."""
    low: Any = p.low
    high: Any = p.high
    return (low is None or low < start or (low == start and not p.low_open)) and (
        high is None or (high > start and not high.startswith(start))
    )


def _block_outside(start: str, p: Between) -> bool:
    """Whether no text that begins with `start` lies in the range."""
    low: Any = p.low
    high: Any = p.high
    return (high is not None and (high < start or (high == start and p.high_open))) or (
        low is not None and low > start and not low.startswith(start)
    )


def _low_within(q: Between, p: Between) -> bool:
    a: Any = q.low
    b: Any = p.low
    if b is None:
        return True
    return a is not None and (a > b or (a == b and (q.low_open or not p.low_open)))


def _high_within(q: Between, p: Between) -> bool:
    a: Any = q.high
    b: Any = p.high
    if b is None:
        return True
    return a is not None and (a < b or (a == b and (q.high_open or not p.high_open)))


def _one_of_one_of(q: OneOf, p: OneOf) -> bool:
    if q.kind != p.kind:
        return False
    if len(q.values) == 1:
        return q.values[0] in p.values
    return set(q.values).issubset(p.values)


def _all_admitted(q: OneOf, p: Valued) -> bool:
    if q.kind != kind_of(p):
        return False
    for value in q.values:  # noqa: SIM110  a loop takes half the time of `all`
        if not admits(p, value):
            return False
    return True


def _none_admitted(q: Valued, p: NoneOf) -> bool:
    return kind_of(q) == p.kind and not _admitted(q, p.values)


def _admitted(q: Valued, values: Iterable[Value]) -> Iterable[Value]:
    """Those of the values that satisfy `q`; lists are long, so they are looked up as sets."""
    if type(q) is NoneOf:
        excluded = {*q.values}
        return [value for value in values if value not in excluded]
    return [value for value in values if admits(q, value)]


def exclude(given: Iterable[Predicate], p: NoneOf) -> bool:
    """Whether what satisfies all of these satisfies `p`: each of its values fails one of them."""
    left: Iterable[Value] = p.values
    for q in given:
        if isinstance(q, Valued) and kind_of(q) == p.kind:
            left = _admitted(q, left)
    return not left


def _between_like(q: Between, p: Like) -> bool:
    if q.kind != "text":
        return False
    if p.negated:
        return _block_outside(patterns.literal_prefix(p.pattern), q)
    return patterns.includes(p.pattern, hull(q))


def _like_like(q: Like, p: Like) -> bool:
    if q.negated:
        if p.negated:
            return patterns.includes(q.pattern, p.pattern)
        return p.pattern == patterns.ANY
    if p.negated:
        return patterns.disjoint(q.pattern, p.pattern)
    return patterns.includes(p.pattern, q.pattern)


def _circle_within(q: Near, p: Near) -> bool:
    """Whether the circle of `q` lies within that of `p`, whatever is asked about them."""
    spare = p.metres - q.metres
    if spare < DISTANCE_SLACK_M:
        return spare == 0 and (q.lat, q.lon) == (p.lat, p.lon)
    return distance_m(q.lat, q.lon, p.lat, p.lon) + DISTANCE_SLACK_M <= spare


def _circles_apart(p: Near, q: Near) -> bool:
    distance = distance_m(p.lat, p.lon, q.lat, q.lon)
    return distance > p.metres + q.metres + DISTANCE_SLACK_M


def _near_near(q: Near, p: Near) -> bool:
    if q.negated:
        return p.negated and _circle_within(p, q)
    return _circles_apart(q, p) if p.negated else _circle_within(q, p)


_Rule = Callable[[Any, Any], bool]

_IMPLIES: dict[tuple[type, type], _Rule] = {
    (OneOf, OneOf): _one_of_one_of,
    (OneOf, NoneOf): _all_admitted,
    (OneOf, Between): _all_admitted,
    (OneOf, Like): _all_admitted,
    (NoneOf, NoneOf): _none_admitted,
    (Between, NoneOf): _none_admitted,
    (Like, NoneOf): _none_admitted,
    (NoneOf, Like): lambda q, p: q.kind == "text" and p.pattern == patterns.ANY,
    (Between, Between): lambda q, p: q.kind == p.kind and _low_within(q, p) and _high_within(q, p),
    (Between, Like): _between_like,
    (Like, Between): lambda q, p: (
        p.kind == "text" and not q.negated and _block_within(patterns.literal_prefix(q.pattern), p)
    ),
    (Like, Like): _like_like,
    (Near, Near): _near_near,
    **{(type_, Exists): lambda q, p: True for type_ in (OneOf, NoneOf, Between, Like, Near)},  # noqa: ARG005
}


def implies(q: Predicate, p: Predicate) -> bool:
    """Whether whatever satisfies `q` satisfies `p`; both look at the same attribute."""
    rule = _IMPLIES.get((type(q), type(p)))
    return q == p if rule is None else rule(q, p)


# Disjointness


def _points_apart(p: OneOf, q: OneOf) -> bool:
    if p.kind != q.kind:
        return True
    if len(p.values) == 1:
        return p.values[0] not in q.values
    return set(p.values).isdisjoint(q.values)


def _no_value_admitted(p: OneOf, q: Valued) -> bool:
    return p.kind != kind_of(q) or not any(admits(q, value) for value in p.values)


def _kinds_apart(p: Valued, q: Valued) -> bool:
    return kind_of(p) != kind_of(q)


def _no_number(p: Near, q: Valued) -> bool:  # noqa: ARG001
    """`near` needs two numbers: a text or truth at `lat` or `lon` contradicts it."""
    return kind_of(q) != "number"


def _ranges_apart(p: Between, q: Between) -> bool:
    return p.kind != q.kind or _below(p, q) or _below(q, p)


def _below(p: Between, q: Between) -> bool:
    high: Any = p.high
    low: Any = q.low
    if high is None or low is None:
        return False
    return bool(high < low or (high == low and (p.high_open or q.low_open)))


def _between_like_apart(p: Between, q: Like) -> bool:
    if p.kind != "text":
        return True
    if q.negated:
        return patterns.includes(q.pattern, hull(p))
    return _block_outside(patterns.literal_prefix(q.pattern), p)


def _likes_apart(p: Like, q: Like) -> bool:
    if p.negated:
        return not q.negated and patterns.includes(p.pattern, q.pattern)
    if q.negated:
        return patterns.includes(q.pattern, p.pattern)
    return patterns.disjoint(p.pattern, q.pattern)


def _nears_apart(p: Near, q: Near) -> bool:
    if p.negated:
        return not q.negated and _circle_within(q, p)
    return _circle_within(p, q) if q.negated else _circles_apart(p, q)


# In one order of the two types; those that are not here share values.
_DISJOINT: dict[tuple[type, type], _Rule] = {
    (OneOf, OneOf): _points_apart,
    (OneOf, NoneOf): _no_value_admitted,
    (OneOf, Between): _no_value_admitted,
    (OneOf, Like): _no_value_admitted,
    (NoneOf, NoneOf): _kinds_apart,
    (NoneOf, Between): _kinds_apart,
    (NoneOf, Like): _kinds_apart,
    (Between, Between): _ranges_apart,
    (Between, Like): _between_like_apart,
    (Like, Like): _likes_apart,
    (Near, Near): _nears_apart,
    **{(Near, type_): _no_number for type_ in (OneOf, NoneOf, Between, Like)},
    **{
        (Missing, type_): lambda p, q: True  # noqa: ARG005
        for type_ in (OneOf, NoneOf, Between, Like, Near, Exists)
    },
}


def disjoint(p: Predicate, q: Predicate) -> bool:
    """True only if nothing satisfies both; both look at the same attribute."""
    rule = _DISJOINT.get((type(p), type(q)))
    if rule is not None:
        return rule(p, q)
    rule = _DISJOINT.get((type(q), type(p)))
    return rule is not None and rule(q, p)


# Union


def _join_ranges(p: Between, q: Between, gap: float) -> Predicate | None:
    """The range from the lower low to the higher high, if at most this share of it is new."""
    first, second = (p, q) if _low_within(q, p) else (q, p)
    low, low_open = first.low, first.low_open
    wide = first if _high_within(second, first) else second
    high, high_open = wide.high, wide.high_open
    if low is None and high is None:
        return None  # every value of the kind: there is no such predicate
    a: Any = first.high
    b: Any = second.low
    touching = (
        a is None or b is None or a > b or (a == b and not (first.high_open and second.low_open))
    )
    if not touching:
        if gap == 0 or p.kind != "number" or low is None or high is None:
            return None
        if _width(a, b) > Fraction(str(gap)) * _width(low, high):
            return None
    return between(p.name, low, high, low_open=low_open, high_open=high_open)


def _width(low: Any, high: Any) -> Fraction:
    """Exactly: the difference of two floats may overflow, that of large ints would be rounded."""
    return Fraction(high) - Fraction(low)


def _join_point(p: OneOf, q: Between) -> Predicate | None:
    """A range that takes in the single values at its open ends."""
    rest = [value for value in p.values if not admits(q, value)]
    low_open, high_open = q.low_open, q.high_open
    for value in rest:
        if q.low_open and value == q.low:
            low_open = False
        elif q.high_open and value == q.high:
            high_open = False
        else:
            return None
    return between(q.name, q.low, q.high, low_open=low_open, high_open=high_open)


def _without(p: NoneOf, values: Iterable[Value]) -> Predicate | None:
    gone = tuple(values)
    left = tuple(value for value in p.values if value not in gone)
    return NoneOf(p.name, p.kind, left) if left else None


def unite(p: Predicate, q: Predicate, gap: float = 0.0) -> Predicate | None:
    """One predicate that what satisfies `p` or `q` satisfies, and nothing else; or None.

    With `gap`, a range may also bridge a hole of at most this share of its width.
    """
    if implies(p, q):
        return q
    if implies(q, p):
        return p
    if kind_of(p) is None or kind_of(p) != kind_of(q):
        return None
    if type(p) is Between and type(q) is Between:
        return _join_ranges(p, q, gap)
    if type(p) is OneOf and type(q) is OneOf:
        values = sorted_values([*p.values, *q.values])
        return OneOf(p.name, p.kind, values) if len(values) <= VALUES_MAX else None
    if type(p) is NoneOf and type(q) is NoneOf:
        return _without(p, [value for value in p.values if value not in q.values])
    if type(q) is OneOf:
        p, q = q, p
    if type(p) is OneOf and type(q) is Between:
        return _join_point(p, q)
    if type(p) is OneOf and type(q) is NoneOf:
        return _without(q, p.values)
    return None


# Intersection of what one conjunction says about one attribute


def _tighter(p: Between, q: Between) -> Predicate | None:
    low = p if _low_within(p, q) else q
    high = p if _high_within(p, q) else q
    return between(p.name, low.low, high.high, low_open=low.low_open, high_open=high.high_open)


def _intersection(ranges: list[Between]) -> Predicate | None:
    """Of ranges no two of which are apart: so a single value, once reached, is in all of them."""
    tight: Predicate | None = ranges[0]
    for p in ranges[1:]:
        if type(tight) is Between:
            tight = _tighter(tight, p)
    return tight


def _without_ends(p: Between, excluded: Collection[Value]) -> Predicate | None:
    """The range, open at the ends that are excluded: `>= 3 and <> 3` is `> 3`."""
    least = "" if p.low is None and p.kind == "text" else p.low
    return between(
        p.name,
        least,
        p.high,
        low_open=p.low_open or least in excluded,
        high_open=p.high_open or p.high in excluded,
    )


def is_simplest(p: Predicate) -> bool:
    """Whether `conjoin` has nothing to do for this predicate alone."""
    kind = type(p)
    if kind is OneOf or kind is NoneOf:
        return len(p.values) == 1  # type: ignore[union-attr]
    return kind is not Between


def conjoin(given: list[Predicate]) -> list[Predicate] | None:
    """The fewest predicates that say the same of one attribute; None if they contradict."""
    if any(disjoint(p, q) for i, p in enumerate(given) for q in given[:i]):
        return None
    ranges = [p for p in given if type(p) is Between]
    apart = [p for p in given if type(p) is NoneOf]
    others: list[Predicate] = [p for p in given if type(p) is not Between and type(p) is not NoneOf]
    excluded = {value for p in apart for value in p.values}
    if ranges:
        tight = _intersection(ranges)
        if type(tight) is Between:
            tight = _without_ends(tight, excluded)
        if tight is None or any(disjoint(tight, p) for p in others):
            return None
        others.append(tight)
    valued = [p for p in others if isinstance(p, Valued)]
    for p in others:
        if type(p) is OneOf:
            left = [v for v in p.values if v not in excluded and all(admits(q, v) for q in valued)]
            return [OneOf(p.name, p.kind, tuple(left))] if left else None
    still = [v for v in excluded if all(admits(q, v) for q in valued)]
    if len(still) > VALUES_MAX:
        raise FilterError(f"a filter excludes at most {VALUES_MAX} values of one attribute")
    if still:
        others.append(NoneOf(apart[0].name, apart[0].kind, sorted_values(still)))
    return needed(others)


def needed(given: list[Predicate]) -> list[Predicate]:
    """Without what the others imply."""
    return [
        p
        for i, p in enumerate(given)
        if not any(
            implies(q, p) and (j < i or not implies(p, q)) for j, q in enumerate(given) if j != i
        )
    ]
