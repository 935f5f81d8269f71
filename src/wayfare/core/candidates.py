"""Candidates: conjunctions that are filed, and sorted lists of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from wayfare.core.compiling import compiled
from wayfare.core.conditions import Conjunction
from wayfare.core.predicates import Attributes, Test

# What is left of a conjunction: its test (None: nothing is left), its key, the predicates that it
# may be filed under, and those that have to be tested but found their shelf already.
Candidate = tuple[Test | None, Any, Conjunction, Conjunction]


def candidate_of(key: Any, free: Conjunction, bound: Conjunction) -> Candidate:
    return compiled(free + bound) if free or bound else None, key, free, bound


class Sorted:
    """Candidates by one bound."""

    __slots__ = ("bounds", "candidates", "keys", "sure")

    def __init__(self) -> None:
        self.bounds: list[Any] = []
        self.candidates: list[Candidate] = []
        self.sure: list[Any] = []  # the bounds of the keys of which nothing is left
        self.keys: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self.bounds or self.sure)

    def add(self, bound: Any, candidate: Candidate) -> None:
        if candidate[0] is None:
            at = bisect_right(self.sure, bound)
            self.sure.insert(at, bound)
            self.keys.insert(at, candidate[1])
        else:
            at = bisect_right(self.bounds, bound)
            self.bounds.insert(at, bound)
            self.candidates.insert(at, candidate)

    def remove(self, bound: Any, key: Any) -> bool:
        for at in range(bisect_left(self.sure, bound), bisect_right(self.sure, bound)):
            if self.keys[at] == key:
                del self.sure[at], self.keys[at]
                return True
        for at in range(bisect_left(self.bounds, bound), bisect_right(self.bounds, bound)):
            if self.candidates[at][1] == key:
                del self.bounds[at], self.candidates[at]
                return True
        return False

    def visit_upto(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        """What has a bound of at most this value."""
        if self.sure:
            out += self.keys[: bisect_right(self.sure, value)]
        if self.bounds:
            for test, key, _, _ in self.candidates[: bisect_right(self.bounds, value)]:
                if test(attributes):  # type: ignore[misc]
                    out.append(key)

    def visit_from(self, value: Any, attributes: Attributes, out: list[Any], cut: Any) -> None:
        """What has a bound of at least this value, or above it, as the cut says."""
        if self.sure:
            out += self.keys[cut(self.sure, value) :]
        if self.bounds:
            for test, key, _, _ in self.candidates[cut(self.bounds, value) :]:
                if test(attributes):  # type: ignore[misc]
                    out.append(key)
