"""Predicates and conjunctions as functions of a notification's attributes, made to be called often.

A conjunction becomes a chain of functions, one for each predicate, cheap ones first; each calls the
next one only if it is satisfied itself, so what does not match mostly costs one call:

    (v := attributes.get("stock")) == "IBM" and type(v) is str and then(attributes)

All predicates of one operator share one code; names and values are bound as defaults (one tuple:
closure cells are no faster and take three times the memory). What the operators mean is what
`predicates.satisfied` says: mind that True == 1 in Python, and that NaN is a number to which every
comparison says no.
"""

from __future__ import annotations

from collections.abc import Callable
from math import asin, cos, inf, nextafter, radians, sin, sqrt
from typing import Any

from wayfare.core import patterns
from wayfare.core import predicates as ps
from wayfare.core.conditions import Conjunction
from wayfare.core.long_texts import LONG, LONG_TEXTS
from wayfare.core.predicates import Attributes, Predicate, Test

LINEAR_MAX = 4  # values of an `in` that are looked for one by one, without a set

Then = Test | None


def compiled(conjunction: Conjunction) -> Test:
    """A function that tells whether attributes satisfy all of these predicates."""
    then: Then = None
    for p in sorted(conjunction, key=_cost, reverse=True):
        then = _OPERATORS[type(p)](p, then)
    return then or _always


def _always(_: Attributes) -> bool:
    return True


def _cost(p: Predicate) -> int:
    if type(p) is ps.Like and patterns.shape(p.pattern)[0] == "like":
        return len(_OPERATORS)
    return _RANK[type(p)]


# Ranges without open ends


def number_span(p: ps.Between) -> tuple[int | float, int | float]:
    """The least and the greatest number of a range: both within it, whatever its ends."""
    low: Any = -inf if p.low is None else p.low
    high: Any = inf if p.high is None else p.high
    return _next(low, 1) if p.low_open else low, _next(high, -1) if p.high_open else high


def _next(bound: int | float, step: int) -> int | float:
    # From 2**53 on all floats are whole, so that the next number of all is the next int.
    if abs(bound) >= 2**53:
        return int(bound) + step
    return nextafter(float(bound), step * inf)


def text_span(p: ps.Between) -> tuple[str, str | None]:
    """The least text of a range, and the least one beyond it if there is one."""
    low: Any = p.low or ""
    high: Any = p.high
    # The next text of all is the one with a zero character more.
    return low + "\0" if p.low_open else low, (high if high is None or p.high_open else high + "\0")


# Operators: each makes the test of one predicate, and of those that come then.


def _one_of(p: ps.OneOf, then: Then) -> Test:
    if p.kind == "truth":
        return _truth(p, then)
    if len(p.values) > 1:
        return _member(p, then)

    def text(a: Attributes, n: str = p.name, x: Any = p.values[0], then: Then = then) -> bool:
        return (v := a.get(n)) == x and type(v) is str and (then is None or then(a))

    def number(a: Attributes, n: str = p.name, x: Any = p.values[0], then: Then = then) -> bool:
        return (
            (v := a.get(n)) == x
            and (type(v) is int or type(v) is float)
            and (then is None or then(a))
        )

    return text if p.kind == "text" else number


def _truth(p: ps.OneOf, then: Then) -> Test:
    def either(a: Attributes, n: str = p.name, then: Then = then) -> bool:
        return type(a.get(n)) is bool and (then is None or then(a))

    def one(a: Attributes, n: str = p.name, x: Any = p.values[0], then: Then = then) -> bool:
        return a.get(n) is x and (then is None or then(a))

    return either if len(p.values) > 1 else one


def _several(p: ps.OneOf | ps.NoneOf) -> Any:
    return p.values if len(p.values) <= LINEAR_MAX else frozenset(p.values)


def _member(p: ps.OneOf, then: Then) -> Test:
    values = _several(p)

    def text(a: Attributes, n: str = p.name, x: Any = values, then: Then = then) -> bool:
        return type(v := a.get(n)) is str and v in x and (then is None or then(a))

    def number(a: Attributes, n: str = p.name, x: Any = values, then: Then = then) -> bool:
        return (
            (type(v := a.get(n)) is int or type(v) is float)
            and v in x
            and (then is None or then(a))
        )

    return text if p.kind == "text" else number


def _none_of(p: ps.NoneOf, then: Then) -> Test:
    values = _several(p)

    def text(a: Attributes, n: str = p.name, x: Any = values, then: Then = then) -> bool:
        return type(v := a.get(n)) is str and v not in x and (then is None or then(a))

    def number(a: Attributes, n: str = p.name, x: Any = values, then: Then = then) -> bool:
        return (
            (type(v := a.get(n)) is int or type(v) is float)
            and v not in x
            and (then is None or then(a))
        )

    return text if p.kind == "text" else number


def _between(p: ps.Between, then: Then) -> Test:
    if p.kind == "text":
        return _text_between(p, then)
    least, most = number_span(p)

    def within(
        a: Attributes, n: str = p.name, low: Any = least, high: Any = most, then: Then = then
    ) -> bool:
        return (
            (type(v := a.get(n)) is int or type(v) is float)
            and low <= v <= high
            and (then is None or then(a))
        )

    return within


def _text_between(p: ps.Between, then: Then) -> Test:
    least, beyond = text_span(p)

    def within(
        a: Attributes, n: str = p.name, low: str = least, high: Any = beyond, then: Then = then
    ) -> bool:
        return (
            type(v := a.get(n)) is str
            and low <= v
            and (high is None or v < high)
            and (then is None or then(a))
        )

    return within


def _like(p: ps.Like, then: Then) -> Test:
    word, literal = patterns.shape(p.pattern)
    wanted = not p.negated

    def prefix(
        a: Attributes, n: str = p.name, x: str = literal, yes: bool = wanted, then: Then = then
    ) -> bool:
        return type(v := a.get(n)) is str and v.startswith(x) is yes and (then is None or then(a))

    def suffix(
        a: Attributes, n: str = p.name, x: str = literal, yes: bool = wanted, then: Then = then
    ) -> bool:
        return type(v := a.get(n)) is str and v.endswith(x) is yes and (then is None or then(a))

    def contains(
        a: Attributes, n: str = p.name, x: str = literal, yes: bool = wanted, then: Then = then
    ) -> bool:
        return (
            type(v := a.get(n)) is str
            and (x in v if len(v) < LONG else LONG_TEXTS.contains(v, x)) is yes
            and (then is None or then(a))
        )

    if word == "like":
        return _pattern(p, then)
    return {"prefix": prefix, "suffix": suffix, "contains": contains}[word]


def _pattern(p: ps.Like, then: Then) -> Test:
    wanted = not p.negated
    parts = tuple(patterns.literals(p.pattern))

    def like(
        a: Attributes,
        n: str = p.name,
        x: str = p.pattern,
        parts: tuple[str, ...] = parts,
        yes: bool = wanted,
        then: Then = then,
    ) -> bool:
        if type(v := a.get(n)) is not str:
            return False
        if len(v) >= LONG:
            return patterns.fits_long(x, v) is yes and (then is None or then(a))
        for part in parts:  # most texts lack one, and need no expression to say so
            if part not in v:
                return not yes and (then is None or then(a))
        fits = patterns.expression(x)(v) is not None
        return fits is yes and (then is None or then(a))

    return like


def _exists(p: ps.Exists, then: Then) -> Test:
    def exists(a: Attributes, n: str = p.name, then: Then = then) -> bool:
        return n in a and (then is None or then(a))

    return exists


def _missing(p: ps.Missing, then: Then) -> Test:
    def missing(a: Attributes, n: str = p.name, then: Then = then) -> bool:
        return n not in a and (then is None or then(a))

    return missing


_DIAMETER_M = 2 * ps.EARTH_RADIUS_M


def _near(p: ps.Near, then: Then) -> Test:
    def near(
        a: Attributes,
        p: ps.Near = p,
        cosine: float = cos(radians(p.lat)),
        yes: bool = not p.negated,
        then: Then = then,
    ) -> bool:
        lat: Any = a.get("lat")
        lon: Any = a.get("lon")
        if not ((type(lat) is float or type(lat) is int) and -90 <= lat <= 90):
            return False
        if not ((type(lon) is float or type(lon) is int) and -180 <= lon <= 180):
            return False
        # As `distance_m`, step by step: the last bit decides at the edge.
        north = sin(radians(lat - p.lat) / 2) ** 2
        east = sin(radians(lon - p.lon) / 2) ** 2
        h = north + cosine * cos(radians(lat)) * east
        inside = _DIAMETER_M * asin(min(1.0, sqrt(h))) <= p.metres
        return inside is yes and (then is None or then(a))

    return near


_OPERATORS: dict[type, Callable[[Any, Then], Test]] = {  # the cheap ones first
    ps.OneOf: _one_of,
    ps.Exists: _exists,
    ps.Missing: _missing,
    ps.Between: _between,
    ps.Like: _like,
    ps.NoneOf: _none_of,
    ps.Near: _near,
}
_RANK = {operator: rank for rank, operator in enumerate(_OPERATORS)}
