"""Covering and overlap among many filters: what routing asks of its tables.

Every question is answered in two steps: an index gives candidates, the algebra decides.

    coverers(G)     a filter that covers G matches every notification that G matches, so one
                    such witness, made from G's own predicates, is matched against the members
    covered(G)      what G covers says at least as much about each of G's attributes; the predicate
                    that the fewest members can imply gives the candidates
    overlapping(G)  members with `x = a` cannot overlap with a filter that says `x = b`
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from math import degrees, inf
from typing import Any, Generic, TypeVar

from wayfare.core import patterns
from wayfare.core import predicates as ps
from wayfare.core.compiling import number_span, text_span
from wayfare.core.conditions import Conjunction
from wayfare.core.filters import Filter
from wayfare.core.matching import FilterIndex
from wayfare.core.predicates import Predicate, Value

Key = TypeVar("Key", bound=Hashable)


class CoverIndex:
    """A set of filters. Lists of members come in the order in which they were added."""

    __slots__ = ("_implied", "_members", "_next", "_wanted")

    def __init__(self) -> None:
        self._members: dict[Filter, int] = {}  # with their places in the order
        self._next = 0
        self._wanted: FilterIndex[Filter] = FilterIndex()
        self._implied = _Implied()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, given: object) -> bool:
        return given in self._members

    def add(self, given: Filter) -> None:
        """Make the filter a member; KeyError if it is one."""
        if given in self._members:
            raise KeyError(given)
        self._members[given] = self._next
        self._next += 1
        self._wanted.add(given, given)
        self._implied.add(given)

    def remove(self, given: Filter) -> None:
        """Forget the member; KeyError if it is none."""
        del self._members[given]
        self._wanted.remove(given)
        self._implied.remove(given)

    def coverers(self, given: Filter) -> list[Filter]:
        """The members that cover this filter, itself included if it is one."""
        there = witness(given)
        if there is None:
            return [member for member in self._members if member.covers(given)]
        found = [member for member in self._wanted.match(there) if member.covers(given)]
        return self._in_order(found)

    def covered(self, given: Filter) -> list[Filter]:
        """The members that this filter covers, itself included if it is one."""
        candidates: Iterable[Filter] | None = None
        if len(given.conjunctions) == 1:
            candidates = self._implied.candidates(given.conjunctions[0])
        if candidates is None:
            return [member for member in self._members if given.covers(member)]
        return self._in_order([member for member in candidates if given.covers(member)])

    def _in_order(self, found: list[Filter]) -> list[Filter]:
        if len(found) > 1:
            found.sort(key=self._members.__getitem__)
        return found


# Witnesses

WITNESSES = 4096  # that are remembered: a filter comes to a table for every neighbour

# What predicates seldom ask for, so that it tells their members apart.
_FILLERS = ("", "\x01", "\x01\x02", "\U0010fffe")


@lru_cache(WITNESSES)
def witness(given: Filter) -> dict[str, Value] | None:
    """Attributes that the filter matches; None if there are none or they are hard to find."""
    if not given.conjunctions:
        return None
    conjunction = given.conjunctions[0]
    groups: dict[str, list[Predicate]] = {}
    there: dict[str, Value] = {}
    for p in conjunction:
        if type(p) is ps.Near:
            there.update(_point(p))
        else:
            groups.setdefault(p.name, []).append(p)
    for name, group in groups.items():
        if name in there or type(group[0]) is ps.Missing:
            continue  # the point may do, the match below will tell
        for value in _tries(group):
            if all(type(p) is ps.Exists or _admits(p, value) for p in group):
                there[name] = value
                break
        else:
            return None
    return there if given.matches(there) else None


def _admits(p: Any, value: Value) -> bool:
    return ps.KINDS[type(value)] == ps.kind_of(p) and ps.admits(p, value)


def _point(p: ps.Near) -> dict[str, Value]:
    if not p.negated:
        return {"lat": p.lat, "lon": p.lon}
    return {"lat": -p.lat, "lon": p.lon - 180 if p.lon > 0 else p.lon + 180}


def _tries(group: list[Predicate]) -> Iterator[Value]:
    """Values that may satisfy all of the group, which is about one attribute."""
    for p in group:
        if type(p) is ps.OneOf:
            yield from p.values
        elif type(p) is ps.Between:
            yield from _inside(p)
        elif type(p) is ps.Like and not p.negated:
            for filler in _FILLERS:
                literal = {patterns.ONE: filler[:1] or "\x01", patterns.MANY: filler}
                yield "".join(literal.get(token, token) for token in patterns.tokens(p.pattern))
        elif type(p) is ps.NoneOf and p.kind == "number":
            yield from (0.123456789, -98765.4321)
    yield from _FILLERS[::-1]


def _inside(p: ps.Between) -> Iterator[Value]:
    if p.kind == "text":
        low, _ = text_span(p)
        yield from (low, low + "\x01", low + "\x01\x02")
        return
    least, most = number_span(p)
    if least != -inf:
        yield least
    if most != inf:
        yield most
    if least != -inf and most != inf:
        yield least / 2 + most / 2


# Candidates for being covered


class _Implied:
    """Members by what their predicates can imply."""

    __slots__ = ("_lows", "_named", "_several", "_valued")

    def __init__(self) -> None:
        self._named: dict[str, dict[Filter, None]] = {}
        self._valued: dict[tuple[str, ps.Kind, Value], dict[Filter, None]] = {}
        self._lows: dict[tuple[str, str], _Lows] = {}
        self._several: dict[Filter, None] = {}  # members of no or several conjunctions

    def add(self, given: Filter) -> None:
        if len(given.conjunctions) != 1:
            self._several[given] = None
            return
        for p in given.conjunctions[0]:
            for name in ps.names(p):
                self._named.setdefault(name, {})[given] = None
            if type(p) is ps.OneOf:
                self._valued.setdefault((p.name, p.kind, p.values[0]), {})[given] = None
            for space, low in _low(p):
                lows = self._lows.get(space)
                if lows is None:
                    lows = self._lows[space] = _Lows()
                lows.add(low, given)

    def remove(self, given: Filter) -> None:
        if len(given.conjunctions) != 1:
            del self._several[given]
            return
        for p in given.conjunctions[0]:
            for name in ps.names(p):
                _discard(self._named, name, given)
            if type(p) is ps.OneOf:
                _discard(self._valued, (p.name, p.kind, p.values[0]), given)
            for space, low in _low(p):
                self._lows[space].remove(low, given)
                if not self._lows[space].lows:
                    del self._lows[space]

    def candidates(self, conjunction: Conjunction) -> Iterable[Filter] | None:
        """Members among which all are that a filter of this conjunction covers; None: any."""
        best: list[dict[Filter, None]] = []
        least, span = -1, None
        for p in conjunction:
            if type(p) is ps.OneOf:
                found = [
                    filters
                    for value in p.values
                    if (filters := self._valued.get((p.name, p.kind, value)))
                ]
                count, where = sum(map(len, found)), None
            else:
                where = self._where(p)
                found = [] if where else [self._named.get(p.name, {})]
                count = where[2] - where[1] if where else len(found[0])
            if least < 0 or count < least:
                best, least, span = found, count, where
        if least < 0:
            return None
        several = list(self._several)
        if span is not None:
            return [*dict.fromkeys(span[0][span[1] : span[2]]), *several]
        return [*(member for members in best for member in members), *several]

    def _where(self, p: Predicate) -> tuple[list[Filter], int, int] | None:
        """The members whose lows lie where those must that imply the predicate: list, from, to."""
        bounds = _bounds(p)
        if bounds is None:
            return None
        space, low, high = bounds
        lows = self._lows.get(space)
        return ([], 0, 0) if lows is None else (lows.members, *lows.span(low, high))


def _discard(table: dict[Any, dict[Filter, None]], at: Any, given: Filter) -> None:
    # Two predicates of one filter may be in one place.
    members = table.get(at)
    if members is not None:
        members.pop(given, None)
        if not members:
            del table[at]


def _low(p: Predicate) -> Iterator[tuple[tuple[str, str], Any]]:
    """Where the values that satisfy the predicate begin, by attribute and kind."""
    if type(p) is ps.OneOf and p.kind != "truth":
        yield (p.name, p.kind), p.values[0]
    elif type(p) is ps.Between:
        absent: Any = "" if p.kind == "text" else -inf
        yield (p.name, p.kind), absent if p.low is None else p.low
    elif type(p) is ps.Like and not p.negated:
        yield (p.name, "text"), patterns.literal_prefix(p.pattern)
    elif type(p) is ps.Near and not p.negated:
        yield ("lat", "near"), p.lat


def _bounds(p: Predicate) -> tuple[tuple[str, str], Any, Any] | None:
    """Between which bounds the lows are of all that implies the predicate; None if anywhere."""
    if type(p) is ps.Between:
        if p.kind == "number":
            least: Any = -inf if p.low is None else p.low
            most: Any = inf if p.high is None else p.high
            return (p.name, p.kind), least, most
        return (p.name, p.kind), p.low or "", p.high
    if type(p) is ps.Like and not p.negated:
        start = patterns.literal_prefix(p.pattern)
        # Texts that begin so are below this one, unless they go on with the last character of all.
        return ((p.name, "text"), start, _beyond(start)) if start else None
    if type(p) is ps.Near and not p.negated:
        height = degrees(p.metres / ps.EARTH_RADIUS_M) + 1e-6
        return ("lat", "near"), p.lat - height, p.lat + height
    return None


def _beyond(start: str) -> str | None:
    """A text above all that begin so; None if there is none."""
    start = start.rstrip("\U0010ffff")
    return start[:-1] + chr(ord(start[-1]) + 1) if start else None


class _Lows:
    """Members sorted by a value."""

    __slots__ = ("lows", "members")

    def __init__(self) -> None:
        self.lows: list[Any] = []
        self.members: list[Filter] = []

    def add(self, low: Any, given: Filter) -> None:
        at = bisect_right(self.lows, low)
        self.lows.insert(at, low)
        self.members.insert(at, given)

    def remove(self, low: Any, given: Filter) -> None:
        at = self.members.index(given, bisect_left(self.lows, low))
        del self.lows[at], self.members[at]

    def span(self, low: Any, high: Any) -> tuple[int, int]:
        end = len(self.lows) if high is None else bisect_right(self.lows, high)
        return bisect_left(self.lows, low), end


# Overlap

Place = tuple[ps.Kind, Value]


class OverlapIndex(Generic[Key]):
    """Filters by key. Lists of keys come in the order in which they were added."""

    __slots__ = ("_filters", "_loose", "_next", "_places", "_valued")

    def __init__(self) -> None:
        self._filters: dict[Key, tuple[int, Filter]] = {}  # with their places in the order
        self._next = 0
        # By one `=` or `in` of each conjunction: attribute, value, keys.
        self._valued: dict[str, dict[Place, dict[Key, None]]] = {}
        self._places: dict[Key, list[ps.OneOf]] = {}
        self._loose: dict[Key, None] = {}  # with a conjunction that has no such predicate

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: object) -> bool:
        return key in self._filters

    def add(self, key: Key, given: Filter) -> None:
        """File the filter under this key; KeyError if the key is taken."""
        if key in self._filters:
            raise KeyError(key)
        self._filters[key] = self._next, given
        self._next += 1
        chosen = [self._choice(conjunction) for conjunction in given.conjunctions]
        places = [p for p in chosen if p is not None]
        if len(places) < len(chosen):
            self._loose[key] = None
            return
        self._places[key] = places
        for p in places:
            values = self._valued.setdefault(p.name, {})
            for value in p.values:
                values.setdefault((p.kind, value), {})[key] = None

    def _choice(self, conjunction: Conjunction) -> ps.OneOf | None:
        """The predicate on the attribute of which most values are known."""
        best, most = None, -1
        for p in conjunction:
            if type(p) is ps.OneOf:
                known = len(self._valued.get(p.name, ()))
                if known > most:
                    best, most = p, known
        return best

    def remove(self, key: Key) -> None:
        """Forget this key and its filter; KeyError if it is not there."""
        del self._filters[key]
        if key in self._loose:
            del self._loose[key]
            return
        for p in self._places.pop(key):
            values = self._valued.get(p.name, {})
            for value in p.values:
                keys = values.get((p.kind, value), {})
                keys.pop(key, None)
                if not keys:
                    values.pop((p.kind, value), None)
            if not values:
                self._valued.pop(p.name, None)

    def overlapping(self, given: Filter) -> list[Key]:
        """The keys of the filters that may match something that this one matches."""
        filters = self._filters
        found = [key for key in dict.fromkeys(self._candidates(given)) if self._meets(key, given)]
        if len(found) > 1:
            found.sort(key=lambda key: filters[key][0])
        return found

    def any(self, given: Filter) -> bool:
        """Whether there is such a key."""
        return any(self._meets(key, given) for key in self._candidates(given))

    def meeting(self, given: Filter) -> Iterator[Key]:
        """Such keys one by one, in any order; some may come twice."""
        return (key for key in self._candidates(given) if self._meets(key, given))

    def _meets(self, key: Key, given: Filter) -> bool:
        return self._filters[key][1].overlaps(given)

    def _candidates(self, given: Filter) -> Iterator[Key]:
        """Keys among which all are that overlap; some may come twice."""
        yield from self._loose
        for conjunction in given.conjunctions:
            wanted = {p.name: p for p in conjunction if type(p) is ps.OneOf}
            for name, values in self._valued.items():
                p = wanted.get(name)
                if p is None:
                    for keys in values.values():
                        yield from keys
                else:
                    for value in p.values:
                        yield from values.get((p.kind, value), ())
