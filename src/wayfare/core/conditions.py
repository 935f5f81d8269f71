"""Conditions: `and`, `or` and `not` over predicates, as users write them, before normalisation.

    (attr("service") == "parking") & (attr("free") > 0) & ~attr("road").prefix("B")

A condition is true, false or unknown: a predicate on a missing attribute, or on a value of another
kind, is unknown, `not unknown` is unknown, and a filter matches only what makes its condition true. So
`not x = 5` is `x <> 5`: it needs x to be there. (`is null` and `exists` are never unknown.) In
this logic De Morgan's rules and distribution hold, so `not` can be pushed down to the
predicates and the rest multiplied out without changing what matches. It has to happen in that order:
`x > 5 and x < 3` matches nothing, but its negation does not match everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import overload

import msgspec

from wayfare.core import predicates as ps
from wayfare.core.markers import Clause, Given, Marked, Marker, My, Myloc, predicate
from wayfare.core.predicates import Predicate
from wayfare.errors import FilterError

CONJUNCTIONS_MAX = 32  # of one filter, when `or` and `not` are multiplied out
TERMS_MAX = 256  # predicates in one condition
DEPTH_MAX = 32  # nesting of parentheses and `not`

Conjunction = tuple[Predicate, ...]

_NO_TRUTH = "combine conditions with & | ~, not with and, or, not"


class Condition:
    """What can be combined with `&`, `|` and `~`, and made into a filter."""

    __slots__ = ("depth", "terms")
    depth: int
    terms: int

    def __and__(self, other: Condition) -> Condition:
        return All([self, other])

    def __or__(self, other: Condition) -> Condition:
        return Some([self, other])

    def __invert__(self) -> Condition:
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError(_NO_TRUTH)

    def alternatives(self, negated: bool) -> list[Clause]:
        """The conjunctions, one of which is true exactly when this condition (or its negation) is."""
        raise AssertionError("a condition is one of the classes below")


class Term(Condition):
    """One predicate. `holds` and `fails` are the alternatives of it and of its negation."""

    __slots__ = ("fails", "holds")

    def __init__(
        self, holds: Iterable[Predicate | Marked | None], fails: Iterable[Predicate | Marked | None]
    ) -> None:
        self.holds: list[Clause] = [(p,) for p in holds if p is not None]
        self.fails: list[Clause] = [(p,) for p in fails if p is not None]
        self.depth, self.terms = 1, 1

    def alternatives(self, negated: bool) -> list[Clause]:
        return list(self.fails if negated else self.holds)


class Constant(Condition):
    """`true` or `false`."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value
        self.depth, self.terms = 1, 1

    def alternatives(self, negated: bool) -> list[Clause]:
        return [()] if self.value != negated else []


class _Several(Condition):
    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Condition]) -> None:
        self.parts: list[Condition] = []
        for part in parts:
            if not isinstance(part, Condition):
                raise FilterError(f"a condition was expected, not {part!r}")
            self.parts.extend(part.parts if type(part) is type(self) else [part])
        if not self.parts:
            raise FilterError("a condition was expected, not nothing")
        self.depth = 1 + max(part.depth for part in self.parts)
        self.terms = sum(part.terms for part in self.parts)
        _check_limits(self)


class All(_Several):
    """Every part is true."""

    __slots__ = ()

    def alternatives(self, negated: bool) -> list[Clause]:
        parts = [part.alternatives(negated) for part in self.parts]
        return _sum(parts) if negated else _product(parts)


class Some(_Several):
    """At least one part is true."""

    __slots__ = ()

    def alternatives(self, negated: bool) -> list[Clause]:
        parts = [part.alternatives(negated) for part in self.parts]
        return _product(parts) if negated else _sum(parts)


class Not(Condition):
    """The part is false."""

    __slots__ = ("part",)

    def __init__(self, part: Condition) -> None:
        if not isinstance(part, Condition):
            raise FilterError(f"a condition was expected, not {part!r}")
        self.part = part
        self.depth, self.terms = 1 + part.depth, part.terms
        _check_limits(self)

    def alternatives(self, negated: bool) -> list[Clause]:
        return self.part.alternatives(not negated)


def _check_limits(condition: Condition) -> None:
    if condition.depth > DEPTH_MAX:
        raise FilterError(f"a filter nests at most {DEPTH_MAX} deep")
    if condition.terms > TERMS_MAX:
        raise FilterError(f"a filter has at most {TERMS_MAX} predicates")


def _checked_size(size: int) -> None:
    if size > CONJUNCTIONS_MAX:
        raise FilterError(
            f"with `or` and `not` multiplied out, a filter has at most {CONJUNCTIONS_MAX} conjunctions:"
            " split it into several subscriptions"
        )


def _sum(parts: list[list[Clause]]) -> list[Clause]:
    _checked_size(sum(len(part) for part in parts))
    return [conjunction for part in parts for conjunction in part]


def _product(parts: list[list[Clause]]) -> list[Clause]:
    if not all(parts):
        return []
    size = 1
    for part in parts:
        size *= len(part)
        _checked_size(size)
    return [tuple(p for part in choice for p in part) for choice in product(*parts)]


# Builders


class attr(msgspec.Struct, frozen=True, eq=False):  # noqa: N801  reads as a word in `attr("x") > 5`
    """The attribute of that name, to be compared: `attr("price") > 40`."""

    name: str

    def __eq__(self, value: Given) -> Condition:  # type: ignore[override]
        return self.one_of(value)

    def __ne__(self, value: Given) -> Condition:  # type: ignore[override]
        return ~self.one_of(value)

    def __lt__(self, value: Given) -> Condition:
        return ~(self >= value)

    def __le__(self, value: Given) -> Condition:
        return ~(self > value)

    def __gt__(self, value: Given) -> Condition:
        return self._either(">", "<=", value)

    def __ge__(self, value: Given) -> Condition:
        return self._either(">=", "<", value)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError(f"{_NO_TRUTH}; for an attribute that is there, use .exists()")

    def between(self, low: Given, high: Given) -> Condition:
        if isinstance(low, Marker) or isinstance(high, Marker):
            return (self >= low) & (self <= high)
        within = ps.between(self.name, low, high)
        if within is None:  # the two bounds contradict each other, and errors can show both
            return (self >= low) & (self <= high)
        return Term(
            [within],
            [
                ps.between(self.name, high=low, high_open=True),
                ps.between(self.name, high, low_open=True),
            ],
        )

    def one_of(self, *values: Given) -> Condition:
        if any(value is None for value in values):
            raise FilterError(
                f"None is no value: for an attribute that is not there, use attr({self.name!r:.60}).is_null()"
            )
        return self._either("in", "not in", *values)

    def like(self, pattern: str | My, escape: str | None = None) -> Condition:
        return self._either("like", "not like", pattern, *([] if escape is None else [escape]))

    def prefix(self, text: str | My) -> Condition:
        return self._either("prefix", "not prefix", text)

    def suffix(self, text: str | My) -> Condition:
        return self._either("suffix", "not suffix", text)

    def contains(self, text: str | My) -> Condition:
        return self._either("contains", "not contains", text)

    def exists(self) -> Condition:
        name = ps.checked_name(self.name)
        return Term([ps.Exists(name)], [ps.Missing(name)])

    def is_null(self) -> Condition:
        return ~self.exists()

    def _either(self, operator: str, opposite: str, *values: Given) -> Condition:
        return Term(
            [predicate(operator, self.name, *values)], [predicate(opposite, self.name, *values)]
        )


@overload
def near(lat: float | My, lon: float | My, metres: float | My) -> Condition: ...
@overload
def near(lat: Myloc, lon: float | My, /) -> Condition: ...
def near(
    lat: float | My | Myloc, lon: float | My | None = None, metres: float | My | None = None
) -> Condition:
    """The point of the attributes `lat` and `lon` is at most so many metres from here.

    `near(myloc, metres)` is drawn around the point where the client is.
    """
    given = [number for number in (lat, lon, metres) if number is not None]
    if len(given) != (2 if type(lat) is Myloc else 3):
        raise FilterError("near takes latitude, longitude and metres, or myloc and metres")
    return Term([predicate("near", "lat", *given)], [predicate("not near", "lat", *given)])
