"""Shelves: the ways from a value to the conjunctions that want it (see `matching`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import asin, cos, degrees, floor, frexp, inf, ldexp, pi, radians, sin
from typing import Any

from wayfare.core import patterns
from wayfare.core import predicates as ps
from wayfare.core.compiling import compiled, number_span, text_span
from wayfare.core.conditions import Conjunction
from wayfare.core.predicates import Attributes, Predicate, Test
from wayfare.core.selectivity import Statistics

GROUP_MAX = 16  # conjunctions of a group that are tested one by one
ROWS_MAX = 24  # ranges of a lane that are compared one by one
GRAM = 3  # characters of the longest pieces of texts that are looked up
GRID_CELLS_MAX = 16  # cells of one circle

# What is left of a conjunction: its test (None: nothing is left), its key, the predicates that it
# may be filed under, and those that have to be tested but found their shelf already.
Candidate = tuple[Test | None, Any, Conjunction, Conjunction]


def candidate_of(key: Any, free: Conjunction, bound: Conjunction) -> Candidate:
    return compiled(free + bound) if free or bound else None, key, free, bound


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
            if self.statistics.share(p) == inf:
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


class _Shelf:
    """Groups by what can be computed from a value."""

    __slots__ = ()

    def add(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Any) -> None:
        raise NotImplementedError

    def remove(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
        raise NotImplementedError

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        raise NotImplementedError


Places = list[tuple[Groups, Any, bool]]  # where to file: dict, key, and whether exactly


def _put(
    places: Places,
    p: Predicate,
    key: Any,
    rest: Conjunction,
    bound: Conjunction,
    statistics: Statistics,
) -> None:
    exact: Candidate | None = None
    vague: Candidate | None = None
    for groups, at, exactly in places:
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
            group.add(exact, statistics)
        else:
            vague = vague or candidate_of(key, rest, (*bound, p))
            group.add(vague, statistics)


def _take(places: Places, p: Predicate, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
    """Remove what `_put` put there; False, at the first place already, if it did not."""
    for groups, at, exactly in places:
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
        self.shelves: Any = ()

    def __bool__(self) -> bool:
        return bool(self.equal or self.shelves)

    def add(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Any) -> None:
        if type(p) is ps.OneOf:
            _put([(self.equal, value, True) for value in p.values], p, key, rest, bound, stats)
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
            places: Places = [(self.equal, value, True) for value in p.values]
            return _take(places, p, key, rest, bound)
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


def _affix(p: ps.Between) -> str:
    """What all texts of the range begin with."""
    low: Any = p.low or ""
    high: Any = p.high or ""
    end = 0
    while end < len(low) and end < len(high) and low[end] == high[end]:
        end += 1
    return str(low[:end])


class _Prefixes(_Shelf):
    """By the literal beginning of a pattern: for each length a dict."""

    __slots__ = ("lengths",)

    def __init__(self) -> None:
        self.lengths: dict[int, Groups] = {}

    def __bool__(self) -> bool:
        return bool(self.lengths)

    @staticmethod
    def text(p: ps.Like | ps.Between) -> tuple[str, bool]:
        """The text to file under, and whether it is all that the predicate says."""
        if type(p) is ps.Between:
            return _affix(p), False
        assert type(p) is ps.Like
        return patterns.literal_prefix(p.pattern), patterns.shape(p.pattern)[0] == "prefix"

    def add(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Any) -> None:
        text, exact = self.text(p)
        groups = self.lengths.setdefault(len(text), {})
        _put([(groups, text, exact)], p, key, rest, bound, stats)

    def remove(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
        text, exact = self.text(p)
        groups = self.lengths.get(len(text))
        if groups is None or not _take([(groups, text, exact)], p, key, rest, bound):
            return False
        if not groups:
            del self.lengths[len(text)]
        return True

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        size = len(value)
        for length, groups in self.lengths.items():
            if length <= size:
                found = groups.get(value[:length])
                if found is not None:
                    visit(found, attributes, out)


class _Suffixes(_Prefixes):
    """By the literal end of a pattern."""

    __slots__ = ()

    @staticmethod
    def text(p: ps.Like | ps.Between) -> tuple[str, bool]:
        assert type(p) is ps.Like
        return patterns.literal_suffix(p.pattern), patterns.shape(p.pattern)[0] == "suffix"

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        size = len(value)
        for length, groups in self.lengths.items():
            if length <= size:
                found = groups.get(value[size - length :])
                if found is not None:
                    visit(found, attributes, out)


class _Grams(_Prefixes):
    """By a piece of the longest literal part of a pattern."""

    __slots__ = ()

    @staticmethod
    def text(p: ps.Like | ps.Between) -> tuple[str, bool]:
        assert type(p) is ps.Like
        longest = max(patterns.literals(p.pattern), key=len)
        return longest[-GRAM:], False

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        size = len(value)
        for length, groups in self.lengths.items():
            # A piece may occur twice; what is filed under it must be found once.
            pieces = dict.fromkeys([value[i : i + length] for i in range(size - length + 1)])
            for piece in pieces:
                found = groups.get(piece)
                if found is not None:
                    visit(found, attributes, out)


class _Sorted:
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


class _TextRanges(_Shelf):
    """Ranges of texts that have no beginning in common: by one bound."""

    __slots__ = ("above", "below")

    def __init__(self) -> None:
        self.above, self.below = _Sorted(), _Sorted()

    def __bool__(self) -> bool:
        return bool(self.above or self.below)

    def add(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Any) -> None:
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


class _Ranges(_Shelf):
    """Ranges of numbers: rows while they are few; then cells and sorted bounds."""

    __slots__ = ("above", "below", "levels", "one_sided", "rows")

    def __init__(self) -> None:
        self.one_sided = 0  # ranges among the sorted bounds
        self.rows: Any = []  # (least, greatest, candidate)
        self.levels: dict[Any, Groups] = {}  # by the size of the cells
        self.above: _Sorted | None = None
        self.below: _Sorted | None = None

    def __bool__(self) -> bool:
        return bool(self.rows or self.levels or self.above or self.below)

    def add(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Any) -> None:
        if self.above is not None:
            self._spread(p, key, rest, bound, stats)
            return
        self.rows.append((*number_span(p), candidate_of(key, rest, bound), p))
        if len(self.rows) > ROWS_MAX:
            rows, self.rows = self.rows, ()
            self.above, self.below = _Sorted(), _Sorted()
            for _, _, (_, key_, rest_, bound_), p_ in rows:
                self._spread(p_, key_, rest_, bound_, stats)

    def _spread(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction, stats: Any) -> None:
        assert self.above is not None
        assert self.below is not None
        low, high = number_span(p)
        if high == inf:
            self.above.add(low, candidate_of(key, rest, bound))
            self.one_sided += 1
        elif low == -inf:
            self.below.add(high, candidate_of(key, rest, bound))
            self.one_sided += 1
        else:
            _put(self._places(low, high, create=True), p, key, rest, bound, stats)

    def _places(self, low: Any, high: Any, *, create: bool) -> Places:
        size = _cell_size(high - low)
        cells = self.levels.setdefault(size, {}) if create else self.levels.get(size)
        if cells is None:
            return []
        first = int(low // size)
        last = max(first, int(high // size))  # no number may be left between open ends
        return [(cells, at, first < at < last) for at in range(first, last + 1)]

    def remove(self, p: Any, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
        for i, row in enumerate(self.rows):
            if row[2][1] == key:
                del self.rows[i]
                return True
        if self.above is None or self.below is None:
            return False
        low, high = number_span(p)
        if high == inf or low == -inf:
            filed = self.above if high == inf else self.below
            found = filed.remove(low if high == inf else high, key)
            self.one_sided -= found
            return found
        places = self._places(low, high, create=False)
        if not places or not _take(places, p, key, rest, bound):
            return False
        if not places[0][0]:
            del self.levels[_cell_size(high - low)]
        return True

    def visit(self, value: Any, attributes: Attributes, out: list[Any]) -> None:
        if self.above is None:
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
        if self.one_sided and value == value:  # NaN has no place among sorted bounds
            self.above.visit_upto(value, attributes, out)
            self.below.visit_from(value, attributes, out, bisect_left)  # type: ignore[union-attr]


def _cell_size(width: int | float) -> int | float:
    """The power of 4 of which 2 to 8 fit into the width."""
    exponent = (frexp(min(width, 1e308))[1] - 2) // 2 * 2
    return 1 << exponent if exponent >= 0 else ldexp(1.0, max(exponent, -1022))


class _Grid:
    """Circles on the earth, by cells in degrees of a size that follows the radius."""

    __slots__ = ("levels",)

    def __init__(self) -> None:
        self.levels: dict[float, Groups] = {}

    def __bool__(self) -> bool:
        return bool(self.levels)

    def add(
        self, p: ps.Near, key: Any, rest: Conjunction, bound: Conjunction, stats: Statistics
    ) -> None:
        size, cells = _circle_cells(p)
        groups = self.levels.setdefault(size, {})
        _put([(groups, cell, False) for cell in cells], p, key, rest, bound, stats)

    def remove(self, p: ps.Near, key: Any, rest: Conjunction, bound: Conjunction) -> bool:
        size, cells = _circle_cells(p)
        groups = self.levels.get(size)
        if groups is None:
            return False
        if not _take([(groups, cell, False) for cell in cells], p, key, rest, bound):
            return False
        if not groups:
            del self.levels[size]
        return True

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


def _circle_cells(p: ps.Near) -> tuple[float, list[tuple[int, int]]]:
    """The size of the cells, and those that the circle may touch."""
    # Both this and the test round; a millimetre and a part in 10**9 more is more than they do.
    angle = (p.metres + 0.001) / ps.EARTH_RADIUS_M * (1 + 1e-9)
    height = degrees(angle)
    south, north = p.lat - height, p.lat + height
    if south <= -90 or north >= 90 or angle >= pi / 2:
        spans = [(-180.0, 180.0)]
    else:
        width = degrees(asin(min(1.0, sin(angle) / cos(radians(p.lat))))) + 1e-9
        west, east = p.lon - width, p.lon + width
        spans = [(max(west, -180.0), min(east, 180.0))]
        if west <= -180:
            spans.append((west + 360 - 1e-9, 180.0))
        if east >= 180:
            spans.append((-180.0, east - 360 + 1e-9))
    # Near a pole a small circle takes in many degrees.
    across = sum(east - west for west, east in spans) / GRID_CELLS_MAX
    size = 4.0 ** floor(frexp(max(height, across, 1e-6))[1] / 2)
    while True:
        rows = range(floor(max(south, -90.0) / size), floor(min(north, 90.0) / size) + 1)
        columns = dict.fromkeys(
            column
            for west, east in spans
            for column in range(floor(west / size), floor(east / size) + 1)
        )
        if len(rows) * len(columns) <= GRID_CELLS_MAX:
            return size, [(row, column) for row in rows for column in columns]
        size *= 4
