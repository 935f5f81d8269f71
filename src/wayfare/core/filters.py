"""Filters: boolean functions of a notification's attributes, and their algebra.

A filter is a disjunction of conjunctions of predicates. Routing works on single conjunctions:
`parts()` gives them. A filter has one normal form, so filters that say the same in the same words are
equal; its content is its identity, in tables and on the wire.

    matches(attributes)   is this notification wanted
    covers(other)         it matches all that the other one matches     sound, an order
    overlaps(other)       some notification may match both              never a wrong no
    merge(other)          one filter in place of two                    perfect, or within a bound
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec

from wayfare.core import algebra, syntax
from wayfare.core import predicates as ps
from wayfare.core.compiling import compiled
from wayfare.core.conditions import CONJUNCTIONS_MAX, TERMS_MAX, Condition, Conjunction
from wayfare.core.markers import Clause, Marked, markers, refusal
from wayfare.core.predicates import Attributes, Predicate, Test
from wayfare.errors import FilterError


class Filter(msgspec.Struct, frozen=True, array_like=True, dict=True, cache_hash=True):
    """Invariant: in normal form, as `Filter.of` makes it. No conjunction: nothing matches."""

    conjunctions: tuple[Conjunction, ...]

    @staticmethod
    def parse(text: str) -> Filter:
        """The filter that a text describes; templates.py parses those with `myloc` or `my.<name>`."""
        return syntax.made(text, Filter.where)

    @staticmethod
    def where(condition: Condition) -> Filter:
        """The filter that a condition built in Python describes."""
        clauses = sized(condition.alternatives(negated=False))
        for marker in markers(clauses):
            raise FilterError(refusal(marker))
        return Filter.of(map(known, clauses))

    @staticmethod
    def of(conjunctions: Iterable[Iterable[Predicate]]) -> Filter:
        """The normal form of these conjunctions of well-formed predicates."""
        found = {tight for given in conjunctions if (tight := normal(given)) is not None}
        simple = sorted(found, key=repr)
        maximal = [
            one
            for i, one in enumerate(simple)
            if not any(
                _covers(other, one) and (j < i or not _covers(one, other))
                for j, other in enumerate(simple)
                if j != i
            )
        ]
        return Filter(tuple(maximal))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return syntax.text(self.conjunctions)

    def parts(self) -> tuple[Filter, ...]:
        """The conjunctions, each as a filter of its own."""
        return (self,) if len(self.conjunctions) == 1 else self._parts

    @cached_property
    def _parts(self) -> tuple[Filter, ...]:
        return tuple(Filter((conjunction,)) for conjunction in self.conjunctions)

    def matches(self, attributes: Attributes) -> bool:
        """Whether a notification with these attributes, of which all can be published, is wanted."""
        for test in self._tests:  # noqa: SIM110  a generator takes twice as long
            if test(attributes):
                return True
        return False

    @cached_property
    def _tests(self) -> tuple[Test, ...]:
        return tuple(compiled(conjunction) for conjunction in self.conjunctions)

    @cached_property
    def weight(self) -> tuple[int, int, int]:
        """What comparing it costs: the number of predicates, of values in eights, of characters."""
        terms = eights = characters = 0
        for conjunction in self.conjunctions:
            for p in conjunction:
                terms += 1
                if type(p) is ps.Like:
                    characters += len(p.pattern)
                elif type(p) is ps.OneOf or type(p) is ps.NoneOf:
                    eights += len(p.values) // 8
                    if p.kind == "text":
                        characters += sum(map(len, p.values))  # type: ignore[arg-type]
        return terms, eights, characters

    @cached_property
    def by_name(self) -> tuple[dict[str, list[Predicate]], ...]:
        """The predicates of each conjunction, by the attributes that they look at."""
        return tuple(_by_name(conjunction) for conjunction in self.conjunctions)

    def covers(self, other: Filter) -> bool:
        """True only if this filter matches everything that the other one matches."""
        for narrow in other.by_name:
            for wide in self.by_name:
                if _includes(wide, narrow):
                    break
            else:
                return False
        return True

    def overlaps(self, other: Filter) -> bool:
        """False only if no notification matches both."""
        for mine in self.by_name:
            for theirs in other.by_name:
                if not _apart(mine, theirs):
                    return True
        return False

    def merge(self, other: Filter, imperfection: float = 0.0) -> Filter | None:
        """One filter, of no more conjunctions than the larger part, that covers both; or None.

        Perfect, it matches nothing else. With `imperfection`, a merged range may bridge a hole of at
        most this share of its width.
        """
        if not 0.0 <= imperfection <= 1.0:
            raise FilterError("imperfection is a share, from 0 to 1")
        if self.covers(other):
            return self
        if other.covers(self):
            return other
        left = [*self.conjunctions, *other.conjunctions]
        aim = max(len(self.conjunctions), len(other.conjunctions))
        while len(left) > aim:
            found = _mergeable_pair(left, imperfection)
            if found is None:
                return None
            i, j, united = found
            left = [one for k, one in enumerate(left) if k not in (i, j)] + [united]
        return None if oversize(left) else Filter.of(left)


EVERYTHING = Filter(((),))
NOTHING = Filter(())

S = TypeVar("S", bound=Sequence[Clause])
Groups = Mapping[str, list[Predicate]]


def checked(given: Filter) -> Filter:
    """The filter, if it is one that `Filter.of` could have made; else FilterError."""
    if len(given.conjunctions) > CONJUNCTIONS_MAX:
        raise FilterError(f"a filter has at most {CONJUNCTIONS_MAX} conjunctions")
    if sum(map(len, given.conjunctions)) > TERMS_MAX:
        raise FilterError(f"a filter has at most {TERMS_MAX} predicates")
    for conjunction in given.conjunctions:
        for p in conjunction:
            ps.check(p)
    sized(given.conjunctions)
    if Filter.of(given.conjunctions) != given:
        raise FilterError("not a filter in normal form")
    return given


PATTERNS_MAX = 2 * ps.TEXT_MAX  # comparing patterns takes the product of their lengths

# Size: every filter can be printed as a text that can be parsed, and normalising stays cheap.
# Normalising never lengthens a filter, so these are asked before it.


def oversize(conjunctions: Sequence[Clause]) -> str | None:
    """What is too much, if anything."""
    two_sided = [
        p
        for given in conjunctions
        for p in given
        if type(p) is ps.Between and p.low is not None and p.high is not None
    ]  # they may print as two
    patterns = sum(len(p.pattern) for given in conjunctions for p in given if type(p) is ps.Like)
    for size, most, unit in (
        (patterns, PATTERNS_MAX, "characters of patterns"),
        (sum(map(len, conjunctions)) + len(two_sided), TERMS_MAX, "predicates"),
        (len(syntax.text(tuple(conjunctions))), syntax.FILTER_TEXT_MAX, "characters"),
    ):
        if size > most:
            return f"multiplied out, this filter has {size} {unit}, and at most {most} are allowed"
    return None


def sized(conjunctions: S) -> S:
    """The conjunctions, if they are not too much; else FilterError."""
    if reason := oversize(conjunctions):
        raise FilterError(f"{reason}: split it into several subscriptions")
    return conjunctions


def known(clause: Clause) -> Conjunction:
    """Without what mentions a marker."""
    return tuple(p for p in clause if type(p) is not Marked)


def normal(given: Iterable[Predicate]) -> Conjunction | None:
    """The normal form of a conjunction; None if it contradicts itself."""
    groups: dict[str, list[Predicate]] = {}
    circles: list[Predicate] = []
    for p in given:
        if type(p) is ps.Near:
            circles.append(p)
        else:
            groups.setdefault(p.name, []).append(p)
    if any(algebra.disjoint(p, q) for i, p in enumerate(circles) for q in circles[:i]):
        return None
    out: list[Predicate] = algebra.needed(sorted(circles, key=repr))
    for name in sorted(groups):
        group = groups[name]
        tight: list[Predicate] | None = group
        if len(group) > 1 or not algebra.is_simplest(group[0]):
            tight = algebra.conjoin(sorted(dict.fromkeys(group), key=repr))
        if tight is None:
            return None
        if circles and name in ("lat", "lon"):
            if any(algebra.disjoint(p, circle) for p in tight for circle in circles):
                return None
            tight = [p for p in tight if type(p) is not ps.Exists]
        out.extend(tight)
    return tuple(sorted(out, key=order))


def order(p: Predicate | Marked) -> tuple[str, str]:
    """Of the predicates in a conjunction."""
    return p.name, repr(p)


def _by_name(conjunction: Conjunction) -> dict[str, list[Predicate]]:
    groups: dict[str, list[Predicate]] = {}
    for p in conjunction:
        for name in ps.names(p):
            groups.setdefault(name, []).append(p)
    return groups


# Routing asks these two more often than anything else: plain loops take half the time of `any`.


def _includes(wide: Groups, narrow: Groups) -> bool:
    for name, needed in wide.items():
        given = narrow.get(name)
        if given is None:
            return False
        for p in needed:
            for q in given:
                if algebra.implies(q, p):
                    break
            else:
                if type(p) is not ps.NoneOf or not algebra.exclude(given, p):
                    return False
    return True


def _apart(a: Groups, b: Groups) -> bool:
    if len(b) < len(a):
        a, b = b, a
    for name, mine in a.items():
        for q in b.get(name, ()):
            for p in mine:
                if algebra.disjoint(p, q):
                    return True
    return False


def _covers(wide: Conjunction, narrow: Conjunction) -> bool:
    return _includes(_by_name(wide), _by_name(narrow))


def _mergeable_pair(
    given: list[Conjunction], imperfection: float
) -> tuple[int, int, Conjunction] | None:
    for i in range(len(given)):
        for j in range(i):
            united = _united(given[i], given[j], imperfection)
            if united is not None:
                return i, j, united
    return None


def _united(a: Conjunction, b: Conjunction, imperfection: float) -> Conjunction | None:
    """One conjunction for two that differ in a single predicate, if that can be united."""
    if _covers(a, b):
        return a
    if _covers(b, a):
        return b
    only_a = [p for p in a if p not in b]
    only_b = [p for p in b if p not in a]
    if len(only_a) != 1 or len(only_b) != 1 or ps.names(only_a[0]) != ps.names(only_b[0]):
        return None
    p = algebra.unite(only_a[0], only_b[0], imperfection)
    return None if p is None else normal([*(q for q in a if q in b), p])
