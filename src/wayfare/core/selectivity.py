"""Selectivity: how many notifications a predicate lets through, guessed from other predicates.

What filters ask for is the best guess at what is published. Only the order of the guesses matters:
a conjunction is filed under the predicate with the least one.
"""

from __future__ import annotations

from math import inf
from typing import Any

from wayfare.core import predicates as ps
from wayfare.core.patterns import literals, shape
from wayfare.core.predicates import Predicate

SEARCHED = ("contains", "like")  # shapes of patterns that may begin anywhere


class Statistics:
    """How often predicates are satisfied, guessed from the predicates that are there."""

    __slots__ = ("patterns", "seen")

    def __init__(self) -> None:
        self.seen: dict[str, _Seen] = {}  # of the attributes that predicates are about
        # Patterns that have to be looked for in a text, and how often each is here, by attribute.
        self.patterns: dict[str, dict[str, int]] = {}

    def observe(self, p: Predicate) -> None:
        seen = self.seen.get(p.name)
        if seen is None:
            seen = self.seen[p.name] = _Seen()
        seen.observe(p)
        if type(p) is ps.Like and shape(p.pattern)[0] in SEARCHED:
            patterns = self.patterns.setdefault(p.name, {})
            patterns[p.pattern] = patterns.get(p.pattern, 0) + 1

    def forget(self, p: Predicate) -> None:
        """The predicate, which was observed, has gone."""
        seen = self.seen[p.name]
        if seen.predicates == 1:
            del self.seen[p.name]
        else:
            seen.forget(p)
        if type(p) is ps.Like and shape(p.pattern)[0] in SEARCHED:
            patterns = self.patterns[p.name]
            patterns[p.pattern] -= 1
            if not patterns[p.pattern]:
                del patterns[p.pattern]
            if not patterns:
                del self.patterns[p.name]

    def share(self, p: Predicate) -> float:
        """The part of all notifications that may satisfy it; infinite if no shelf takes it."""
        if type(p) is ps.OneOf:
            return self.seen[p.name].share_of_values(p.values)
        if type(p) is ps.Between:
            return self.seen[p.name].share_of_range(p) if p.kind == "number" else 0.3
        if type(p) is ps.Like and not p.negated:
            return _share_of_pattern(p.pattern)
        if type(p) is ps.Near and not p.negated:
            return max(0.0001, min(1.0, (p.metres / 1e6) ** 2))
        return inf


def shelved(p: Predicate) -> bool:
    """Whether a shelf takes the predicate: its share is not infinite."""
    if type(p) is ps.Like:
        return not p.negated and _share_of_pattern(p.pattern) < inf
    return type(p) is ps.OneOf or type(p) is ps.Between or (type(p) is ps.Near and not p.negated)


def _share_of_pattern(pattern: str) -> float:
    length = max(len(part) for part in literals(pattern))
    return 0.5**length if length else inf


class _Seen:
    """What the predicates on one attribute are."""

    __slots__ = ("counts", "greatest", "least", "predicates", "total")

    VALUES_MAX = 256  # values that are counted; others are rare

    def __init__(self) -> None:
        self.predicates = 0
        self.counts: dict[Any, int] = {}
        self.total = 0  # predicates with values
        # Of all bounds since the first predicate came: ranges that went may have been the widest.
        self.least: Any = inf
        self.greatest: Any = -inf

    def observe(self, p: Predicate) -> None:
        self.predicates += 1
        if type(p) is ps.OneOf:
            self.total += 1
            counts = self.counts
            for value in p.values:
                if value in counts or len(counts) < self.VALUES_MAX:
                    counts[value] = counts.get(value, 0) + 1
        elif type(p) is ps.Between and p.kind == "number":
            for bound in (p.low, p.high):
                if bound is not None:
                    self.least = min(self.least, bound)
                    self.greatest = max(self.greatest, bound)

    def forget(self, p: Predicate) -> None:
        self.predicates -= 1
        if type(p) is ps.OneOf:
            self.total -= 1
            counts = self.counts
            for value in p.values:
                count = counts.get(value, 0)
                if count > 1:
                    counts[value] = count - 1
                elif count:
                    del counts[value]  # makes room for another value

    def share_of_values(self, values: tuple[Any, ...]) -> float:
        count = sum([self.counts.get(value, 0) for value in values])
        return (count + 0.5) / (self.total + 8)

    def share_of_range(self, p: ps.Between) -> float:
        spread = self.greatest - self.least
        if not 0 < spread < inf:  # one value, or more than a float can say
            return 0.3
        if p.low is None or p.high is None:
            low: Any = self.least if p.low is None else p.low
            high: Any = self.greatest if p.high is None else p.high
            # What is published may go far beyond the bounds that were asked for.
            return 0.25 + 0.5 * float((high - low) / spread)
        width: Any = p.high - p.low  # type: ignore[operator]
        return 0.01 + 0.9 * float(width / spread)
