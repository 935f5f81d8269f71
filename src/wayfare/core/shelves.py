"""Shelves: the ways from a value to the conjunctions that want it (see `matching`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from math import inf
from typing import Any, Protocol

from wayfare.core import patterns
from wayfare.core import predicates as ps
from wayfare.core.candidates import Candidate, Sorted, candidate_of
from wayfare.core.cells import circle_cells, range_cells
from wayfare.core.compiling import number_span, text_span
from wayfare.core.conditions import Conjunction
from wayfare.core.long_texts import LONG, LONG_TEXTS
from wayfare.core.predicates import Attributes, Predicate
from wayfare.core.selectivity import Statistics, shelved

GROUP_MAX = 16  # conjunctions of a group that are tested one by one
ROWS_MAX = 24  # ranges of a lane that are compared one by one
GRAM = 3  # characters of the longest pieces of texts that are looked up

# Short lists are tuples: half the memory, and one place less to go to for what is seldom looked at.


def _with(items: Any, item: Any) -> Any:
    if type(items) is tuple:
        if len(items) < GROUP_MAX:
            return (*items, item)
        items = list(items)
    items.append(item)
    return items


def _without(items: Any, at: int) -> Any:
    if type(items) is tuple:
        return items[:at] + items[at + 1 :]
    del items[at]
    return items


class Group:
    """Conjunctions of which the same predicates are known to be satisfied."""

    __slots__ = ("lanes", "sure", "tests")

    def __init__(self) -> None:
        self.sure: Any = ()  # keys of which nothing is left
        self.tests: Any = ()  # candidates that are not in the lanes
        self.lanes: Lanes | None = None

    def add(self, candidate: Candidate, statistics: Statistics) -> None:
        if candidate[0] is None:
            self.sure = _with(self.sure, candidate[1])
        elif self.lanes is None or not self.lanes.add(candidate):
            self.tests = _with(self.tests, candidate)
            if self.lanes is None and len(self.tests) > GROUP_MAX:
                self.lanes = lanes = Lanes(statistics)
                self.tests = tuple([each for each in self.tests if not lanes.add(each)])

    def remove(self, key: Any, free: Conjunction, bound: Conjunction) -> bool:
        if not free and not bound:
            if key not in self.sure:
                return False
            self.sure = _without(self.sure, self.sure.index(key))
            return True
        for i, candidate in enumerate(self.tests):
            if candidate[1] == key:
                self.tests = _without(self.tests, i)
                return True
        return self.lanes is not None and self.lanes.remove(key, free, bound)

    def __bool__(self) -> bool:
        return bool(self.sure or self.tests or self.lanes)


# Where nothing is left to test, the keys alone stand for the group: the most usual case, and so
# one object less to fetch from memory.
Groups = dict[Any, Group | tuple[Any, ...]]


def visit(group: Group | tuple[Any, ...], attributes: Attributes, out: list[Any]) -> None:
    """Append the keys of all conjunctions of the group that match."""
    if isinstance(group, tuple):
        out += group
        return
    out += group.sure
    if group.tests or group.lanes is not None:
        visit_rest(group, attributes, out)


def visit_rest(group: Group, attributes: Attributes, out: list[Any]) -> None:
    """As `visit`, without what is sure: the hottest loop of all."""
    for test, key, _, _ in group.tests:
        if test(attributes):
            out.append(key)
    lanes = group.lanes
    if lanes is None:
        return
    get = attributes.get
    if lanes.texts:
        for name, lane in lanes.texts.items():
            value = get(name)
            if type(value) is str:
                found = lane.equal.get(value)
                if type(found) is tuple:
                    out += found
                elif found is not None:
                    visit(found, attributes, out)
                for shelf in lane.shelves:
                    shelf.visit(value, attributes, out)
    if lanes.numbers:
        for name, lane in lanes.numbers.items():
            value = get(name)
            if type(value) is int or type(value) is float:
                found = lane.equal.get(value)
                if found is not None:
                    visit(found, attributes, out)
                for shelf in lane.shelves:
                    shelf.visit(value, attributes, out)
    if lanes.truths:
        for name, lane in lanes.truths.items():
            value = get(name)
            if type(value) is bool:
                found = lane.equal.get(value)
                if found is not None:
                    visit(found, attributes, out)
    if lanes.grid is not None:
        lanes.grid.visit(attributes, out)


class Lanes:
    """Shelves by attribute and kind."""

    __slots__ = ("count", "grid", "numbers", "statistics", "texts", "truths")

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self.texts: dict[str, _Lane] = {}
        self.numbers: dict[str, _Lane] = {}
        self.truths: dict[str, _Lane] = {}
        self.count = 0  # lanes
        self.grid: _Grid | None = None

    def __bool__(self) -> bool:
        return bool(self.texts or self.numbers or self.truths or self.grid)

    def _kind(self, p: Predicate) -> dict[str, _Lane]:
        kind = ps.kind_of(p)
        return self.texts if kind == "text" else self.numbers if kind == "number" else self.truths

    def add(self, candidate: Candidate) -> bool:
        """File the candidate under its best predicate; False if no shelf takes it."""
        _, key, free, bound = candidate  # its test is made anew, of what is left
        best, least = None, inf
        for p in free:
            share = self.statistics.share(p)
            if share < least:
                best, least = p, share
        if best is None:
            return False
        rest = tuple([p for p in free if p is not best])
        if type(best) is ps.Near:
            if self.grid is None:
                self.grid = _Grid()
            self.grid.add(best, key, rest, bound, self.statistics)
            return True
        lanes = self._kind(best)
        lane = lanes.get(best.name)
        if lane is None:
            lane = lanes[best.name] = _Lane()
            self.count += 1
        lane.add(best, key, rest, bound, self.statistics)
        return True

    def remove(self, key: Any, free: Conjunction, bound: Conjunction) -> bool:
        for p in free:
            if not shelved(p):
                continue
            rest = tuple([q for q in free if q is not p])
            if type(p) is ps.Near:
                if self.grid is not None and self.grid.remove(p, key, rest, bound):
                    if not self.grid:
                        self.grid = None
                    return True
                continue
            lanes = self._kind(p)
            lane = lanes.get(p.name)
            if lane is not None and lane.remove(p, key, rest, bound):
                if not lane:
                    del lanes[p.name]
                    self.count -= 1
                return True
        return False


class _Shelf(Protocol):
    """Groups, or single candidates, by what can be computed from a value."""

    def add(
        self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Statistics
    ) -> None: ...

    def remove(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction) -> bool: ...

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None: ...


Places = list[tuple[Any, bool]]  # where to file, and whether that is all that the predicate says


def _put(
    groups: Groups,
    places: Places,
    p: Predicate,
    key: Any,
    rest: Conjunction,
    bound: Conjunction,
    stats: Statistics,
) -> None:
    exact: Candidate | None = None
    vague: Candidate | None = None
    for at, exactly in places:
        group = groups.get(at, ())
        if isinstance(group, tuple):
            if exactly and not rest and not bound and len(group) < GROUP_MAX:
                groups[at] = (*group, key)
                continue
            keys, group = group, Group()
            group.sure = keys
            groups[at] = group
        if exactly:
            exact = exact or candidate_of(key, rest, bound)
            group.add(exact, stats)
        else:
            vague = vague or candidate_of(key, rest, (*bound, p))
            group.add(vague, stats)


def _take(
    groups: Groups, places: Places, p: Predicate, key: Any, rest: Conjunction, bound: Conjunction
) -> bool:
    """Remove what `_put` put there; False, at the first place already, if it did not."""
    for at, exactly in places:
        group = groups.get(at, ())
        if isinstance(group, tuple):
            if key not in group or rest or bound or not exactly:
                return False
            where = group.index(key)
            group = groups[at] = group[:where] + group[where + 1 :]
        elif not group.remove(key, rest, bound if exactly else (*bound, p)):
            return False
        if not group:
            del groups[at]
    return True


class _Lane:
    """What is filed under one attribute and one kind."""

    __slots__ = ("equal", "shelves")

    def __init__(self) -> None:
        self.equal: Groups = {}
        self.shelves: tuple[_Shelf, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.equal or self.shelves)

    def add(
        self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Statistics
    ) -> None:
        if type(p) is ps.OneOf:
            _put(self.equal, [(each, True) for each in p.values], p, key, rest, bound, stats)
            return
        kind = _shelf_type(p)
        for shelf in self.shelves:
            if type(shelf) is kind:
                break
        else:
            shelf = kind()
            self.shelves = (*self.shelves, shelf)
        shelf.add(p, key, rest, bound, stats)

    def remove(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
        if type(p) is ps.OneOf:
            return _take(self.equal, [(each, True) for each in p.values], p, key, rest, bound)
        kind = _shelf_type(p)
        for shelf in self.shelves:
            if type(shelf) is kind and shelf.remove(p, key, rest, bound):
                if not shelf:
                    self.shelves = tuple([each for each in self.shelves if each is not shelf])
                return True
        return False


def _shelf_type(p: ps.Between | ps.Like) -> type[_Shelf]:
    if type(p) is ps.Between:
        if p.kind == "number":
            return _Ranges
        return _Prefixes if _affix(p) else _TextRanges
    assert type(p) is ps.Like
    begin, end = len(patterns.literal_prefix(p.pattern)), len(patterns.literal_suffix(p.pattern))
    longest = max(len(part) for part in patterns.literals(p.pattern))
    if max(begin, end) >= min(longest, GRAM):
        return _Prefixes if begin >= end else _Suffixes
    return _Grams


def _shape(p: ps.Like) -> str:
    return patterns.shape(p.pattern)[0]


def _affix(p: ps.Between) -> str:
    """What all texts of the range begin with."""
    low: Any = p.low or ""
    high: Any = p.high or ""
    end = 0
    while end < len(low) and end < len(high) and low[end] == high[end]:
        end += 1
    return str(low[:end])


class _Levels(ABC):
    """Groups by what is computed from a value in several ways, such as for each length of texts."""

    __slots__ = ("levels",)

    def __init__(self) -> None:
        self.levels: dict[Any, Groups] = {}

    def __bool__(self) -> bool:
        return bool(self.levels)

    @staticmethod
    @abstractmethod
    def places(p: Any) -> tuple[Any, Places]:
        """The level, and where to file there."""

    def add(
        self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Statistics
    ) -> None:
        level, places = self.places(p)
        groups = self.levels.setdefault(level, {})
        _put(groups, places, p, key, rest, bound, stats)

    def remove(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
        level, places = self.places(p)
        groups = self.levels.get(level)
        if groups is None or not _take(groups, places, p, key, rest, bound):
            return False
        if not groups:
            del self.levels[level]
        return True


class _Prefixes(_Levels):
    """By the literal beginning of a pattern: for each length a dict."""

    __slots__ = ()

    @staticmethod
    def places(p: ps.Like | ps.Between) -> tuple[int, Places]:
        if type(p) is ps.Between:
            text, exactly = _affix(p), False
        else:
            assert type(p) is ps.Like
            text, exactly = patterns.literal_prefix(p.pattern), _shape(p) == "prefix"
        return len(text), [(text, exactly)]

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        size = len(value)
        for length, groups in self.levels.items():
            if length <= size:
                found = groups.get(value[:length])
                if found is not None:
                    visit(found, attributes, out)


class _Suffixes(_Levels):
    """By the literal end of a pattern."""

    __slots__ = ()

    @staticmethod
    def places(p: ps.Like) -> tuple[int, Places]:
        text = patterns.literal_suffix(p.pattern)
        return len(text), [(text, _shape(p) == "suffix")]

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        size = len(value)
        for length, groups in self.levels.items():
            if length <= size:
                found = groups.get(value[size - length :])
                if found is not None:
                    visit(found, attributes, out)


class _Grams(_Levels):
    """By a piece of the longest literal part of a pattern."""

    __slots__ = ()

    @staticmethod
    def places(p: ps.Like) -> tuple[int, Places]:
        piece = max(patterns.literals(p.pattern), key=len)[-GRAM:]
        return len(piece), [(piece, False)]

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        size = len(value)
        if size >= LONG:
            self._visit_long(value, attributes, out)
            return
        for length, groups in self.levels.items():
            # A piece may occur twice; what is filed under it must be found once.
            pieces = dict.fromkeys([value[i : i + length] for i in range(size - length + 1)])
            for piece in pieces:
                found = groups.get(piece)
                if found is not None:
                    visit(found, attributes, out)

    def _visit_long(self, value: str, attributes: Attributes, out: list[Any]) -> None:
        """The same by what is filed: other groups may look for pieces of the same text."""
        for length, groups in self.levels.items():
            pieces = LONG_TEXTS.of(value).pieces(length)
            for piece, found in groups.items():
                if piece in pieces:
                    visit(found, attributes, out)


class _TextRanges:
    """Ranges of texts that have no beginning in common: by one bound."""

    __slots__ = ("above", "below")

    def __init__(self) -> None:
        self.above, self.below = Sorted(), Sorted()

    def __bool__(self) -> bool:
        return bool(self.above or self.below)

    def add(
        self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Statistics
    ) -> None:
        low, high = text_span(p)
        if p.low is None:
            self.below.add(high, candidate_of(key, rest, bound))
        else:
            bound = bound if high is None else (*bound, p)
            self.above.add(low, candidate_of(key, rest, bound))

    def remove(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
        low, high = text_span(p)
        return self.below.remove(high, key) if p.low is None else self.above.remove(low, key)

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        self.above.visit_upto(value, attributes, out)
        self.below.visit_from(value, attributes, out, bisect_right)


class _Ranges(_Levels):
    """Ranges of numbers: rows while they are few; then cells and sorted bounds."""

    __slots__ = ("above", "below", "rows")

    def __init__(self) -> None:
        super().__init__()  # two-sided ranges by cells: for each size a dict
        self.rows: Any = []  # (least, greatest, candidate, predicate); None: too many for that
        self.above: Sorted | None = None  # ranges without an upper bound
        self.below: Sorted | None = None

    def __bool__(self) -> bool:
        return bool(self.rows or self.levels or self.above or self.below)

    @staticmethod
    def places(p: ps.Between) -> tuple[Any, Places]:
        return range_cells(*number_span(p))

    def add(
        self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Statistics
    ) -> None:
        if self.rows is not None:
            self.rows.append((*number_span(p), candidate_of(key, rest, bound), p))
            if len(self.rows) > ROWS_MAX:
                rows, self.rows = self.rows, None
                for _, _, (_, key_, rest_, bound_), p_ in rows:
                    self.add(p_, key_, rest_, bound_, stats)
        elif p.high is None:
            self.above = self.above or Sorted()
            self.above.add(number_span(p)[0], candidate_of(key, rest, bound))
        elif p.low is None:
            self.below = self.below or Sorted()
            self.below.add(number_span(p)[1], candidate_of(key, rest, bound))
        else:
            super().add(p, key, rest, bound, stats)

    def remove(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
        if self.rows is not None:
            for i, row in enumerate(self.rows):
                if row[2][1] == key:
                    del self.rows[i]
                    return True
            return False
        if p.high is None:
            return self.above is not None and self.above.remove(number_span(p)[0], key)
        if p.low is None:
            return self.below is not None and self.below.remove(number_span(p)[1], key)
        return super().remove(p, key, rest, bound)

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        if self.rows is not None:
            for low, high, candidate, _ in self.rows:
                if low <= value <= high:
                    test, key, _, _ = candidate
                    if test is None or test(attributes):
                        out.append(key)
            return
        try:
            for size, cells in self.levels.items():
                found = cells.get(value // size)
                if found is not None:
                    visit(found, attributes, out)
        except OverflowError:  # an int beyond all floats is beyond all cells
            pass
        # NaN, which is not equal to itself, has no place among sorted bounds.
        if self.above is not None and value == value:
            self.above.visit_upto(value, attributes, out)
        if self.below is not None and value == value:
            self.below.visit_from(value, attributes, out, bisect_left)


class _Grid(_Levels):
    """Circles on the earth, by cells in degrees."""

    __slots__ = ()

    @staticmethod
    def places(p: ps.Near) -> tuple[float, Places]:
        size, cells = circle_cells(p)
        return size, [(cell, False) for cell in cells]

    def visit(self, attributes: Attributes, out: list[Any]) -> None:
        lat: Any = attributes.get("lat")
        lon: Any = attributes.get("lon")
        if not ((type(lat) is float or type(lat) is int) and -90 <= lat <= 90):
            return
        if not ((type(lon) is float or type(lon) is int) and -180 <= lon <= 180):
            return
        for size, groups in self.levels.items():
            found = groups.get((lat // size, lon // size))
            if found is not None:
                visit(found, attributes, out)
