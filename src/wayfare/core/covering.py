"""Covering and overlap among many filters: what routing asks of its tables.

Every question is answered in two steps: an index gives candidates, the algebra decides.

    coverers(G)     a filter that covers G matches every notification that G matches, so one
                    such witness, made from G's own predicates, is matched against the members;
                    members that only negate are found by the values or patterns that G excludes
    covered(G)      what G covers says at least as much about each of G's attributes; the predicate
                    that the fewest members can imply gives the candidates
    overlapping(G)  members with `x = a` cannot overlap with a filter that says `x = b`

Filters can be made for which every index gives many candidates. A `Meter` limits what is spent on
them: routing may always treat a filter as not covered, and two filters as overlapping.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from math import degrees, inf
from typing import Any, Generic, TypeVar

from wayfare.core import algebra, patterns
from wayfare.core import predicates as ps
from wayfare.core.compiling import number_span, text_span
from wayfare.core.conditions import Conjunction
from wayfare.core.filters import Filter
from wayfare.core.matching import FilterIndex
from wayfare.core.predicates import Predicate, Value
from wayfare.core.selectivity import shelved

Key = TypeVar("Key", bound=Hashable)


class Meter:
    """Work on tables that is left to one event, in units of about a microsecond.

    It counts comparisons, not time: the same events spend the same units.
    """

    __slots__ = ("exact", "left", "limit")

    def __init__(self, limit: float = inf) -> None:
        self.limit = limit
        self.left = limit
        self.exact = True  # nothing was left undone yet because it would have taken too long

    def reset(self) -> None:
        self.left = self.limit


UNLIMITED = Meter()
OVERLAP_UNITS = 500  # spent on finding one filter that overlaps
CANDIDATES_PER_UNIT = 8  # that are listed, not compared
TESTED_CHARACTERS = 256  # of a witness, in which a unit suffices for testing a candidate


def price(a: Filter, b: Filter) -> int:
    """What comparing two filters costs at most, in units.

    Each predicate may be compared with each of the other filter, and each value of a list, too; two
    lists are compared as sets.
    """
    terms, eights, characters = a.weight
    other_terms, other_eights, other_characters = b.weight
    lists = eights * other_terms + other_eights * terms
    return 3 + terms * other_terms // 3 + 2 * lists + characters * other_characters // 256


def _looking_up(given: Filter) -> int:
    """What one question to an index about a filter costs, in units, apart from its candidates."""
    terms, eights, characters = given.weight
    return 10 * (1 + terms + eights) + characters // 8


def _filing(given: Filter) -> int:
    """What adding a filter to an index costs, in units, and removing it again."""
    terms, eights, characters = given.weight
    return 20 * (1 + terms + eights) + characters // 4


class CoverIndex:
    """A set of filters. Lists of members come in the order in which they were added.

    The meter is charged for what the index itself does, but not for comparing the candidates.
    """

    __slots__ = ("_implied", "_members", "_meter", "_negating", "_next", "_wanted")

    def __init__(self, meter: Meter = UNLIMITED) -> None:
        self._meter = meter
        self._members: dict[Filter, int] = {}  # with their places in the order
        self._next = 0
        self._wanted: FilterIndex[Filter] = FilterIndex()
        self._negating = _Negating()  # the members that `_wanted` would have to test one by one
        self._implied = _Implied(meter)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, given: object) -> bool:
        return given in self._members

    def add(self, given: Filter) -> None:
        """Make the filter a member; KeyError if it is one."""
        if given in self._members:
            raise KeyError(given)
        self._meter.left -= _filing(given)
        self._members[given] = self._next
        self._next += 1
        if _only_negates(given):
            self._negating.add(given)
        else:
            self._wanted.add(given, given)
        self._implied.add(given)

    def remove(self, given: Filter) -> None:
        """Forget the member; KeyError if it is none."""
        del self._members[given]
        self._meter.left -= _filing(given)
        if _only_negates(given):
            self._negating.remove(given)
        else:
            self._wanted.remove(given)
        self._implied.remove(given)

    def coverers(self, given: Filter) -> list[Filter]:
        """The members that cover this filter, itself included if it is one."""
        found = [member for member in self.may_cover(given) if member.covers(given)]
        return self._in_order(found)

    def covered(self, given: Filter) -> list[Filter]:
        """The members that this filter covers, itself included if it is one."""
        found = [member for member in self.may_be_covered(given) if given.covers(member)]
        return self._in_order(found)

    def may_cover(self, given: Filter) -> Iterable[Filter]:
        """Members, each once, among which are all that cover this filter."""
        self._meter.left -= _looking_up(given)
        there = witness(given)
        if there is None:
            return self._members
        asked = _Asked(there)
        wanted, negating = self._wanted.match(asked), self._negating.may_cover(given)
        self._meter.left -= (len(wanted) + len(negating)) // CANDIDATES_PER_UNIT
        self._meter.left -= asked.count * (1 + given.weight[2] // TESTED_CHARACTERS)
        return chain(wanted, negating)

    def may_be_covered(self, given: Filter) -> Iterable[Filter]:
        """Members, each once, among which are all that this filter covers."""
        self._meter.left -= _looking_up(given)
        candidates: Collection[Filter] | None = None
        if len(given.conjunctions) == 1:
            candidates = self._implied.candidates(given.conjunctions[0])
        if candidates is None:
            candidates = self._members
        self._meter.left -= len(candidates) // CANDIDATES_PER_UNIT
        return candidates

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


class _Asked(dict[str, Value]):
    """A witness that counts how often tests look at it, also those that it does not satisfy."""

    __slots__ = ("count",)

    def __init__(self, there: dict[str, Value]) -> None:
        super().__init__(there)
        self.count = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.count += 1
        return super().get(name, default)


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

    __slots__ = (
        "_detailed",
        "_excluded",
        "_grams",
        "_lows",
        "_meter",
        "_named",
        "_others",
        "_refused",
        "_several",
        "_unfiled",
        "_valued",
    )

    def __init__(self, meter: Meter = UNLIMITED) -> None:
        self._meter = meter
        self._named: dict[str, dict[Filter, None]] = {}
        self._valued: dict[tuple[str, ps.Kind, Value], dict[Filter, None]] = {}
        # The attributes for which the next four are kept: they are needed for few.
        self._detailed: set[str] = set()
        self._unfiled: dict[
            str, list[Filter]
        ] = {}  # members that they still lack, the next one last
        # By pieces of what all texts that satisfy the predicate contain.
        self._grams: dict[tuple[str, str], dict[Filter, None]] = {}
        self._excluded: dict[tuple[str, ps.Kind, Value], dict[Filter, None]] = {}
        self._refused: dict[tuple[str, str], dict[Filter, None]] = {}  # by a piece of a pattern
        # With other predicates than `<>`; with True, than those and negated patterns.
        self._others: dict[tuple[str, bool], dict[Filter, None]] = {}
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
            if self._detailed:
                self._add_detail(p, given)
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
            if self._detailed:
                for table, at in self._details(p):
                    _discard(table, at, given)
            for space, low in _low(p):
                self._lows[space].remove(low, given)
                if not self._lows[space].lows:
                    del self._lows[space]

    def _add_detail(self, p: Predicate, given: Filter) -> None:
        for table, at in self._details(p):
            table.setdefault(at, {})[given] = None

    def _details(self, p: Predicate) -> Iterator[tuple[dict[Any, dict[Filter, None]], Any]]:
        """Where a predicate is filed beside its name, its values and its bounds."""
        detailed = self._detailed
        if type(p) is ps.NoneOf and p.name in detailed:
            for value in p.values:
                yield self._excluded, (p.name, p.kind, value)
            return
        if type(p) is ps.Like and p.negated:
            if p.name in detailed:
                yield self._others, (p.name, False)
                yield self._refused, (p.name, _piece(p.pattern))
            return
        for name in ps.names(p):
            if name in detailed:
                yield self._others, (name, True)
        if p.name in detailed:
            for gram in _grams(_contained(p)):
                yield self._grams, (p.name, gram)

    def _has_detail(self, name: str) -> bool:
        """Whether there are details of this attribute; soon, if they are worth it."""
        members = self._named.get(name, {})
        if name not in self._detailed:
            if len(members) < DETAILED_FROM:
                return False
            self._detailed.add(name)
            self._unfiled[name] = [*members][::-1]
        left = self._unfiled.get(name)
        while left and self._meter.left > 0:
            given = left.pop()
            if given in members:
                self._meter.left -= _filing(given)
                for p in given.by_name[0][name]:
                    self._add_detail(p, given)
        if not left:
            self._unfiled.pop(name, None)
        return not left

    def candidates(self, conjunction: Conjunction) -> Collection[Filter] | None:
        """Members among which all are that a filter of this conjunction covers; None: any."""
        best: Iterable[Iterable[Filter]] = ()
        least = -1
        for p in conjunction:
            count, found = self._implying(p)
            if least < 0 or count < least:
                best, least = found, count
        if least < 0:
            return None
        return dict.fromkeys(chain(*best, self._several))

    def _implying(self, p: Predicate) -> tuple[int, list[Iterable[Filter]]]:
        """How many members may imply the predicate, and which."""
        if type(p) is ps.OneOf:
            places = [(p.name, p.kind, value) for value in p.values]
            valued = [filters for at in places if (filters := self._valued.get(at))]
            return sum(map(len, valued)), [*valued]
        named = self._named.get(p.name, {})
        if type(p) is ps.NoneOf and self._has_detail(p.name):
            # Who excludes the first value by `<>`, or by any other predicate.
            excluded = self._excluded.get((p.name, p.kind, p.values[0]), {})
            others = [self._others.get((p.name, positive), {}) for positive in (False, True)]
            return len(excluded) + sum(map(len, others)), [excluded, *others]
        if type(p) is ps.Like and p.negated and self._has_detail(p.name):
            pieces = ["", *_grams(patterns.literals(p.pattern))]
            refused = [one for at in pieces if (one := self._refused.get((p.name, at)))]
            refused.append(self._others.get((p.name, True), {}))
            return sum(map(len, refused)), [*refused]
        options: list[tuple[int, list[Iterable[Filter]]]] = [(len(named), [named])]
        bounds = _bounds(p)
        if bounds is not None:
            space, low, high = bounds
            lows = self._lows.get(space)
            start, end = (0, 0) if lows is None else lows.span(low, high)
            span = () if lows is None else lows.members[start:end]
            options.append((end - start, [span]))
        if type(p) is ps.Like and not p.negated and self._has_detail(p.name):
            for gram in _grams([_longest(p.pattern)]):
                containing = self._grams.get((p.name, gram), {})
                options.append((len(containing), [containing]))
        return min(options, key=lambda option: option[0])


DETAILED_FROM = 32  # members that look at one attribute; fewer are compared one by one
GRAM = 3  # characters of the pieces of texts that are looked up, if there are so many


def _longest(pattern: str) -> str:
    return max(patterns.literals(pattern), key=len)


def _piece(pattern: str) -> str:
    """One of the `_grams` of the pattern."""
    longest = _longest(pattern)
    return longest[:GRAM] if len(longest) >= GRAM else longest[:1]


def _contained(p: Predicate) -> list[str]:
    """Texts in which every literal part is of the patterns that the predicate implies."""
    if type(p) is ps.OneOf and p.kind == "text":
        return [str(p.values[0])]
    if type(p) is ps.Between and p.kind == "text":
        return [patterns.literal_prefix(algebra.hull(p))]
    if type(p) is ps.Like and not p.negated:
        return patterns.literals(p.pattern)
    return []


def _grams(texts: list[str]) -> Iterable[str]:
    """The pieces of these texts, and their characters for what is shorter than a piece."""
    found: dict[str, None] = {}
    for text in texts:
        found.update(dict.fromkeys(text))
        found.update(dict.fromkeys([text[i : i + GRAM] for i in range(len(text) - GRAM + 1)]))
    return found


def _only_negates(given: Filter) -> bool:
    """Whether no shelf takes a predicate of it: an index of matching tests it for every witness."""
    if len(given.conjunctions) != 1:
        return False
    for p in given.conjunctions[0]:  # a loop takes half the time of `any`
        if shelved(p):
            return False
    return bool(given.conjunctions[0])


class _Negating:
    """Members of one conjunction that only excludes, or asks what is there.

    Each is filed under one predicate: `<>` by its first value, a negated pattern by the pieces of
    its texts, and others by their attribute.
    """

    __slots__ = ("_excluding", "_grams", "_named")

    def __init__(self) -> None:
        self._named: dict[str, dict[Filter, None]] = {}
        # By attribute and value, or piece; with None, or "", all of that attribute.
        self._excluding: dict[tuple[str, Any], dict[Filter, None]] = {}
        self._grams: dict[tuple[str, str], dict[Filter, None]] = {}

    def add(self, given: Filter) -> None:
        table, places = self._filed(given)
        for at in places:
            table.setdefault(at, {})[given] = None

    def remove(self, given: Filter) -> None:
        table, places = self._filed(given)
        for at in places:
            _discard(table, at, given)

    def _filed(self, given: Filter) -> tuple[dict[Any, dict[Filter, None]], list[Any]]:
        p = min(given.conjunctions[0], key=_rank)
        if type(p) is ps.NoneOf:
            return self._excluding, [(p.name, None), (p.name, (p.kind, p.values[0]))]
        if type(p) is ps.Like and p.negated:
            pieces = _grams(patterns.literals(p.pattern))
            return self._grams, [(p.name, ""), *((p.name, piece) for piece in pieces)]
        return self._named, [p.name]

    def may_cover(self, given: Filter) -> Collection[Filter]:
        """Members, each once, among which are all that cover this filter of some conjunctions."""
        found: dict[Filter, None] = {}
        if self._named or self._excluding or self._grams:
            for p in given.conjunctions[0]:
                for table, at in self._implied_by(p):
                    found.update(table.get(at, {}))
        return found

    def _implied_by(self, p: Predicate) -> Iterator[tuple[dict[Any, dict[Filter, None]], Any]]:
        """Where the members are that the predicate may imply, alone or with others."""
        for name in ps.names(p):
            yield self._named, name
            if type(p) is ps.NoneOf:
                for value in p.values:
                    yield self._excluding, (name, (p.kind, value))
            elif type(p) is ps.Like and p.negated:
                # Alone it implies narrower ones; together with `<>`, it may exclude some values.
                yield self._excluding, (name, None)
                yield self._grams, (name, self._rarest(p))
            else:
                yield self._excluding, (name, None)
                yield self._grams, (name, "")

    def _rarest(self, p: ps.Like) -> str:
        """The piece of the pattern that the fewest members have; "" if it has none."""
        pieces = _grams([_longest(p.pattern)])
        grams = self._grams
        return min(pieces, key=lambda piece: len(grams.get((p.name, piece), ())), default="")


def _rank(p: Predicate) -> int:
    """Which predicate of a conjunction its filter is filed under: the one that says most."""
    if type(p) is ps.NoneOf:
        return 0
    return 1 if type(p) is ps.Like and p.negated else 2


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
        start = patterns.literal_prefix(p.pattern)
        if start:  # else it implies no range, and no pattern with a beginning
            yield (p.name, "text"), start
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
    """Members sorted by a value; of those with the same value, the first to come first."""

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
        return [key for key in self.candidates(given) if self._meets(key, given)]

    def candidates(self, given: Filter) -> list[Key]:
        """Keys, each once, among which are all that overlap."""
        filters = self._filters
        found = list(dict.fromkeys(self._candidates(given)))
        if len(found) > 1:
            found.sort(key=lambda key: filters[key][0])
        return found

    def any(self, given: Filter, meter: Meter = UNLIMITED) -> bool:
        """Whether there is such a key; if it takes too long to find out, there is."""
        return any(True for _ in self.meeting(given, meter))

    def meeting(self, given: Filter, meter: Meter = UNLIMITED) -> Iterator[Key]:
        """Such keys one by one, in any order; some may come twice.

        What it takes too long to compare with is taken to overlap.
        """
        spare: float = OVERLAP_UNITS if meter.limit < inf else inf
        for key in self._candidates(given):
            units = price(self._filters[key][1], given)
            spare -= units
            if spare < 0 or meter.left < units:
                meter.exact = False
                yield key
                continue
            meter.left -= units
            if self._meets(key, given):
                yield key

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
