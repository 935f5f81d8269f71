"""Matching: which of many filters does a notification satisfy.

Every conjunction is filed once, under its most selective predicate, and looked at only
when that predicate is satisfied. A group of conjunctions that share a satisfied predicate and has
become large is filed in the same way again, by what is left of them:

    lanes of the root                      group                     lanes of the group
      "stock", text  = "IBM"  ---------->    sure   nothing left       "price", number ...
                     prefix, suffix, n-gram  tests  a few, one by one
      "price", number  = 40                  lanes  too many for that
                       rows | cells, sorted
      near: grid

So a shelf is a way from a value to the groups, or single candidates, that want it:

    equal      a dict                                  rows    few ranges, compared one by one
    affixes    a dict by length and text               cells   two-sided ranges: 3 to 9 cells each,
    grams      a dict of pieces of 3, 2, 1 characters          of a size that follows the width
    grid       as cells, in degrees                    sorted  one-sided ranges, by their bound

What no shelf takes (`<>`, negations, `exists`, `is null`) is tested one by one. All lists and dicts
are in the order in which filters came, so the order of results depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from wayfare.core.candidates import candidate_of
from wayfare.core.conditions import Conjunction
from wayfare.core.filters import Filter
from wayfare.core.long_texts import LONG_TEXTS
from wayfare.core.predicates import Attributes
from wayfare.core.selectivity import Statistics
from wayfare.core.shelves import Group, Lanes, visit

Key = TypeVar("Key", bound=Hashable)
Patterns = Mapping[str, Mapping[str, int]]  # that are looked for in texts, by attribute


class FilterIndex(Generic[Key]):
    """Filters by key. The same history of calls gives the same order of results."""

    __slots__ = (
        "_by_type",
        "_filters",
        "_lanes",
        "_several",
        "_statistics",
        "_top",
        "_topics",
        "patterns",
    )

    def __init__(self) -> None:
        self._filters: dict[Key, Filter | tuple[_Part, ...]] = {}
        self._several = 0  # filters of more than one conjunction
        # Where every filter has a text for the same attribute, as topics have: that attribute, and
        # the groups by text. () if that is not so, None if nobody has looked since the last change.
        # The one attribute by which all filters are found, and what finds them; () if it is not so.
        self._topics: tuple[str, Callable[[str], Any]] | tuple[()] | None = None
        self._statistics = Statistics()
        self.patterns: Patterns = self._statistics.patterns
        self._top = Group()
        self._top.lanes = self._lanes = lanes = Lanes(self._statistics)
        self._by_type: dict[type, dict[str, Any]] = {
            str: lanes.texts,
            int: lanes.numbers,
            float: lanes.numbers,
            bool: lanes.truths,
        }

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: object) -> bool:
        return key in self._filters

    def add(self, key: Key, given: Filter) -> None:
        """File the filter under this key; KeyError if the key is taken."""
        if key in self._filters:
            raise KeyError(key)
        self._topics = None
        for conjunction in given.conjunctions:  # all of them, before the first one is filed
            for p in conjunction:
                self._statistics.observe(p)
        if len(given.conjunctions) == 1:
            self._filters[key] = given
            self._file(key, given.conjunctions[0])
            return
        parts = tuple(_Part(key, conjunction) for conjunction in given.conjunctions)
        self._filters[key] = parts
        self._several += 1
        for part in parts:
            self._file(part, part.conjunction)

    def _file(self, key: Any, conjunction: Conjunction) -> None:
        if not self._lanes.add((None, key, conjunction, ())):
            self._top.add(candidate_of(key, conjunction, ()), self._statistics)

    def remove(self, key: Key) -> None:
        """Forget this key and its filter; KeyError if it is not there."""
        filed = self._filters.pop(key)
        self._topics = None
        if type(filed) is Filter:
            self._take(key, filed.conjunctions[0])
            return
        self._several -= 1
        for part in filed:  # type: ignore[union-attr]
            self._take(part, part.conjunction)

    def _take(self, key: Any, conjunction: Conjunction) -> None:
        found = self._top.remove(key, conjunction, ())
        assert found, "a key that is filed is found"
        for p in conjunction:
            self._statistics.forget(p)

    def match(self, attributes: Attributes) -> list[Key]:
        """The keys of the filters that match, each once: those of which `Filter.matches` is true."""
        return list(self.find(attributes))

    def find(self, attributes: Attributes) -> Sequence[Key]:
        """As `match`, for those who only look: it may be what the index itself holds."""
        topics = self._topics
        if topics is None:
            topics = self._topics = self._find_topics()
        if topics:
            name, get = topics
            topic = attributes.get(name)
            found = get(topic) if type(topic) is str else None
            if type(found) is tuple:
                return found
            if found is None:
                return ()
            out: list[Key] = []
            visit(found, attributes, out)
            return out
        return self._match(attributes)

    def _find_topics(self) -> tuple[str, Callable[[str], Any]] | tuple[()]:
        top, lanes = self._top, self._lanes
        alone = lanes.count == len(lanes.texts) == 1 and lanes.grid is None
        if not alone or top.sure or top.tests or self._several:
            return ()
        ((name, lane),) = lanes.texts.items()
        return () if lane.shelves else (name, lane.equal.get)

    def _match(self, attributes: Attributes) -> list[Key]:
        out: list[Any] = []
        lanes = self._lanes
        if lanes.count < len(attributes):
            visit(self._top, attributes, out)
        else:
            self._match_few(attributes, out)
        if LONG_TEXTS.known:
            LONG_TEXTS.forget()
        if self._several and out:
            once = [each.key if type(each) is _Part else each for each in out]
            return list(dict.fromkeys(once)) if len(once) > 1 else once
        return out

    def _match_few(self, attributes: Attributes, out: list[Any]) -> None:
        """As `visit` of the top, by the attributes that are there in place of the lanes."""
        top, lanes = self._top, self._lanes
        out += top.sure
        for test, key, _, _ in top.tests:
            if test(attributes):
                out.append(key)
        by_type = self._by_type
        for name, value in attributes.items():
            named = by_type.get(type(value))
            if named is None:
                continue
            lane = named.get(name)
            if lane is not None:
                found = lane.equal.get(value)
                if found is not None:
                    visit(found, attributes, out)
                for shelf in lane.shelves:
                    shelf.visit(value, attributes, out)
        if lanes.grid is not None:
            lanes.grid.visit(attributes, out)


class _Part:
    """One conjunction of several: what is filed in place of the key, so that it can be found again."""

    __slots__ = ("conjunction", "key")

    def __init__(self, key: Any, conjunction: Conjunction) -> None:
        self.key, self.conjunction = key, conjunction
