"""What of many entries a neighbour has to know: the routing strategies.

An `OutTable` holds the candidates for one neighbour, each with the `sent` flag of the publisher
mobility paper, and says how what should be sent changed since it was last asked. What is sent is a
pure function of the candidates, whatever the order in which they came:

    simple      every client's filter by itself
    identity    equal filters once
    covering    the maximal filters
    merging     the maximal ones of the perfect merges; what becomes wider on its way is not merged
    flooding    nothing: notifications go everywhere

One entry covers another if it does so at the next hop and at every hop beyond (`Entry.ahead`).

`reduced` is that function, written down without any cleverness; the tables compute it piecemeal.

A table spends no more work than a `Meter` allows in one event, and than its candidates have earned in
all. What is left undone goes on in later events (`is_behind`, `catch_up`), or is not done: then more is
sent than `reduced` says, and the meter is not `exact`. A table always sends filters that match at least
what its candidates match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from math import inf
from typing import Any, TypeVar

import msgspec

from wayfare.core import algebra
from wayfare.core import predicates as ps
from wayfare.core.covering import UNLIMITED, CoverIndex, Meter, price
from wayfare.core.filters import Filter, oversize
from wayfare.core.messages import Entry

LIST_CHARACTERS_MAX = 4096  # of all values that are merged into one list, with 16 more for each
EARNED_UNITS = 500  # that a candidate adds to what its table may spend on covering
EARNED_UNITS_MAX = 200_000  # that a table may have earned and not spent
PLACE_UNITS = 1_000  # spent on one candidate at a time
PLACED_UNITS = 5  # that it takes to place one, beside the work of the index
OVERDRAWN = 0.25  # of the meter's limit, for the last candidates of an event
OVERSPENT = 3  # times the meter's limit: then no index is asked any more in this event
FAMILY_MAX = 512  # predicates, and lists of eight values, that are merged with each other
MERGED_UNITS = 5  # that it takes to merge one of them


class OutTable:
    """Candidates for one neighbour, all of which are sent: simple and identity routing."""

    __slots__ = ("_before", "_meter", "entries")

    def __init__(self, meter: Meter = UNLIMITED) -> None:
        self._meter = meter
        self.entries: dict[Entry, bool] = {}  # candidate -> is it to be sent
        self._before: dict[Entry, bool] = {}  # what was, where it may have changed

    def __contains__(self, entry: Entry) -> bool:
        return entry in self.entries

    def add(self, entry: Entry) -> None:
        self._set(entry, True)

    def remove(self, entry: Entry) -> None:
        self._forget(entry)

    def difference(self) -> tuple[list[Entry], list[Entry]]:
        """What to add at the neighbour and what to remove, since the last time."""
        added: list[Entry] = []
        removed: list[Entry] = []
        for entry, before in self._before.items():
            now = self._is_sent(entry)
            if now != before:
                (added if now else removed).append(entry)
        self._before.clear()
        return added, removed

    def sent(self) -> list[Entry]:
        """What the neighbour has to know."""
        return [entry for entry, sent in self.entries.items() if sent]

    def known(self) -> list[Entry]:
        """What the neighbour knows: what is sent, without the difference since the last time."""
        before = self._before
        still = [entry for entry in self.sent() if before.get(entry, True)]
        return [*still, *(one for one, sent in before.items() if sent and not self._is_sent(one))]

    def start_over(self) -> None:
        """The neighbour knows nothing: all of it is a difference."""
        self.believe(())

    def believe(self, known: Iterable[Entry]) -> None:
        """The neighbour knows exactly these entries, whatever was sent: the rest is a difference."""
        self._before = dict.fromkeys(self.sent(), False)
        self._before.update(dict.fromkeys(known, True))

    @property
    def is_behind(self) -> bool:
        """Whether more is sent than needed, and work that was put off may change that."""
        return False

    def catch_up(self) -> None:
        """Go on with what was put off, as far as the meter allows."""

    def _is_sent(self, entry: Entry) -> bool:
        return self.entries.get(entry, False)

    def _set(self, entry: Entry, sent: bool) -> None:
        self._before.setdefault(entry, self._is_sent(entry))
        self.entries[entry] = sent

    def _forget(self, entry: Entry) -> None:
        self._before.setdefault(entry, self._is_sent(entry))
        del self.entries[entry]


def _above(a: Entry, b: Entry) -> bool:
    """Whether `a` stands for `b`. Of two that cover each other, the one that reads first does."""
    return stands_for(a, b) and (not stands_for(b, a) or _text(a) < _text(b))


def stands_for(a: Entry, b: Entry) -> bool:
    """Whether `a` covers `b` at every hop."""
    if not a.filter.covers(b.filter):
        return False
    return not (a.ahead or b.ahead) or stands_for(a.shifted(), b.shifted())


def _text(entry: Entry) -> tuple[str, ...]:
    return tuple(map(str, (entry.filter, *entry.ahead)))


class CoveringTable(OutTable):
    """Sent are the roots: the entries that no other candidate stands for.

    Every other candidate hangs below one root that covers it, to be looked at again when that goes.
    A root that goes is sent until all that hung there has found another place.
    """

    __slots__ = ("_below", "_earned", "_fading", "_filters", "_root_of", "_roots", "_surveys")

    def __init__(self, meter: Meter = UNLIMITED) -> None:
        super().__init__(meter)
        self._earned: float = 2 * meter.limit
        self._roots: dict[Filter, list[Entry]] = {}  # by their filters here
        self._filters = CoverIndex(meter)  # of the roots
        self._below: dict[Entry, dict[Entry, None]] = {}  # root -> those that hang there
        self._root_of: dict[Entry, Entry] = {}
        self._fading: dict[Entry, list[Entry]] = {}  # a root that goes -> who is left there
        self._surveys: dict[Entry, list[Filter]] = {}  # root -> what it was not compared with yet

    def add(self, entry: Entry) -> None:
        self._earned = min(self._earned + EARNED_UNITS, max(self._earned, EARNED_UNITS_MAX))
        self._place(entry)

    def remove(self, entry: Entry) -> None:
        root = self._root_of.pop(entry, None)
        if root is not None:
            self._below.get(root, {}).pop(entry, None)
            self._forget(entry)
            return
        children = self._uproot(entry)
        if children:
            self._fading[entry] = [*children][::-1] + self._fading.get(entry, [])
        self._forget(entry)
        self._fade()

    def sent(self) -> list[Entry]:
        return [*super().sent(), *(one for one in self._fading if not self.entries.get(one))]

    @property
    def is_behind(self) -> bool:
        return bool(self._fading or self._surveys)

    def catch_up(self) -> None:
        self._fade()
        for root in list(self._surveys):
            if self._meter.left <= 0:
                return
            self._survey(root, self._meter.left)

    def _is_sent(self, entry: Entry) -> bool:
        return self.entries.get(entry, False) or entry in self._fading

    def _place(self, entry: Entry) -> None:
        self._meter.left -= PLACED_UNITS
        above = self._find_above(entry)
        if above is not None:
            self._hang(entry, above)
            return
        self._surveys[entry] = [*self._filters.may_be_covered(entry.filter)][::-1]
        self._root(entry)
        self._survey(entry, PLACE_UNITS)

    def _find_above(self, entry: Entry) -> Entry | None:
        """A root that stands for the entry, if one is found soon enough."""
        if self._meter.left < -OVERSPENT * self._meter.limit:
            self._meter.exact = False
            return None
        spare: float = PLACE_UNITS if self._meter.limit < inf else inf
        for filter in self._filters.may_cover(entry.filter):
            roots = self._roots[filter]
            units = price(filter, entry.filter) * len(roots)
            if units > spare or not self._spend(units):
                self._meter.exact = False
                return None
            spare -= units
            for root in roots:
                if _above(root, entry):
                    return root
        return None

    def _survey(self, entry: Entry, units: float) -> None:
        """Hang below a root what it stands for, as far as so many units go."""
        candidates = self._surveys[entry]
        end = self._meter.left - units
        while candidates:
            roots = self._roots.get(candidates[-1], ())
            if roots and not self._fits(entry, roots, end):
                return
            candidates.pop()
            for root in list(roots):
                if root != entry and _above(entry, root):
                    for child in (*self._uproot(root), root):
                        self._hang(child, entry)
        del self._surveys[entry]

    def _fits(self, entry: Entry, roots: Collection[Entry], end: float) -> bool:
        """Whether there is work left for comparing the entry with these; else, now or for ever."""
        units = sum(price(entry.filter, one.filter) + len(self._below[one]) for one in roots)
        if self._meter.left - units < end and self._meter.left < self._meter.limit:
            return False  # later
        if self._spend(units):
            return True
        self._meter.exact = False
        del self._surveys[entry]
        return False

    def _spend(self, units: float) -> bool:
        if self._meter.limit == inf:
            return True
        if units > self._earned or units > self._meter.left + OVERDRAWN * self._meter.limit:
            return False
        self._earned -= units
        self._meter.left -= units
        return True

    def _fade(self) -> None:
        """Place what hung below roots that went, as far as the meter allows."""
        fading = self._fading
        while fading and self._meter.left > 0:
            root = next(iter(fading))
            children = fading[root]
            while children and self._meter.left > 0:
                child = children.pop()
                if self._root_of.get(child) != root:
                    continue  # it went, too, or found another place
                del self._root_of[child]
                self._below.get(root, {}).pop(child, None)
                self._place(child)
            if not children:
                self._before.setdefault(root, True)
                del fading[root]

    def _root(self, entry: Entry) -> None:
        roots = self._roots.get(entry.filter)
        if roots is None:
            self._roots[entry.filter] = [entry]
            self._filters.add(entry.filter)
        else:
            roots.append(entry)
        self._below[entry] = {}
        self._set(entry, True)

    def _uproot(self, root: Entry) -> dict[Entry, None]:
        """No root any more; returns what hung there."""
        roots = self._roots[root.filter]
        if len(roots) > 1:
            roots.remove(root)
        else:
            del self._roots[root.filter]
            self._filters.remove(root.filter)
        self._surveys.pop(root, None)
        return self._below.pop(root)

    def _hang(self, entry: Entry, root: Entry) -> None:
        self._below[root][entry] = None
        self._root_of[entry] = root
        self._set(entry, False)


class MergingTable(OutTable):
    """Candidates that differ in one predicate only are merged; what comes out is covered.

    Those that become wider on their way are only covered.

    Merging goes from attribute to attribute, in the order of their names: what the families of the
    first one are merged to is sorted into families of the next one, and so on. So it is a
    function of the candidates, and a change touches one family for each attribute.
    """

    __slots__ = (
        "_counts",
        "_dirty",
        "_families",
        "_imperfection",
        "_loose",
        "_merged",
        "_results",
    )

    def __init__(self, imperfection: float = 0.0, meter: Meter = UNLIMITED) -> None:
        super().__init__(meter)
        self._imperfection = imperfection
        # Members, and how often each came here: a merge may equal another one, or a candidate.
        self._families: dict[Family, dict[Filter, int]] = {}
        self._results: dict[Family, dict[Filter, None]] = {}  # what each family is merged to
        self._dirty: dict[Family, None] = {}  # that lost members, and were not merged since
        # What was not merged, because there was too much of it: from which attribute on, how often.
        self._loose: dict[tuple[Filter, str], int] = {}
        self._counts: dict[Filter, int] = {}  # what came out of all merging, and how often
        self._merged = CoveringTable(meter)

    def add(self, entry: Entry) -> None:
        self.entries[entry] = self._merged.entries.get(entry, False)
        if entry.ahead:
            self._merged.add(entry)
        else:
            self._add(entry.filter, "")

    def remove(self, entry: Entry) -> None:
        del self.entries[entry]
        if entry.ahead:
            self._merged.remove(entry)
        else:
            self._remove(entry.filter, "")

    def difference(self) -> tuple[list[Entry], list[Entry]]:
        added, removed = self._merged.difference()
        for entries, sent in ((removed, False), (added, True)):
            for entry in entries:
                if entry in self.entries:
                    self.entries[entry] = sent
        return added, removed

    def sent(self) -> list[Entry]:
        return self._merged.sent()

    def known(self) -> list[Entry]:
        return self._merged.known()

    def believe(self, known: Iterable[Entry]) -> None:
        self._merged.believe(known)

    @property
    def is_behind(self) -> bool:
        return bool(self._dirty) or self._merged.is_behind

    def catch_up(self) -> None:
        while self._dirty and self._meter.left > 0:
            family = next(iter(self._dirty))
            self._merge(family)
        self._merged.catch_up()

    def _add(self, filter: Filter, behind: str) -> None:
        """Merge on, from the first variable attribute behind this one."""
        name = _variable(filter, behind)
        if name is None:
            self._put(filter)
            return
        family = _family(filter, name)
        members = self._families.get(family, {})
        if filter not in members and self._is_too_much(members):
            self._meter.exact = False
            count_up(self._loose, (filter, behind))
            self._put(filter)
        elif count_up(self._families.setdefault(family, {}), filter):
            self._merge(family)

    def _is_too_much(self, members: Collection[Filter]) -> bool:
        """Whether one more is not merged with these."""
        meter = self._meter
        if meter.limit == inf:
            return False
        return meter.left <= 0 or sum(sum(one.weight[:2]) for one in members) >= FAMILY_MAX

    def _remove(self, filter: Filter, behind: str) -> None:
        name = _variable(filter, behind)
        if name is None:
            self._drop(filter)
            return
        if (filter, behind) in self._loose:
            count_down(self._loose, (filter, behind))
            self._drop(filter)
            return
        family = _family(filter, name)
        if count_down(self._families[family], filter):
            if self._meter.left > 0:
                self._merge(family)
            else:
                self._dirty[family] = None

    def _put(self, filter: Filter) -> None:
        if count_up(self._counts, filter):
            self._merged.add(Entry(filter))

    def _drop(self, filter: Filter) -> None:
        if count_down(self._counts, filter):
            self._merged.remove(Entry(filter))

    def _merge(self, family: Family) -> None:
        """See what a family that changed is merged to now, and pass on the difference."""
        self._dirty.pop(family, None)
        before = self._results.pop(family, {})
        members = self._families[family]
        self._meter.left -= MERGED_UNITS * len(members)
        name = str(family[0])
        after = dict.fromkeys(_merged(members, name, self._imperfection, before))
        if after:
            self._results[family] = after
        else:
            del self._families[family]
        for new in after:
            if new not in before:
                self._add(new, name)
        for old in before:
            if old not in after:
                self._remove(old, name)


Counted = TypeVar("Counted", bound=Hashable)


def count_up(counts: dict[Counted, int], one: Counted) -> bool:
    """True for the first."""
    counts[one] = counts.get(one, 0) + 1
    return counts[one] == 1


def count_down(counts: dict[Counted, int], one: Counted) -> bool:
    """True for the last."""
    counts[one] -= 1
    if counts[one]:
        return False
    del counts[one]
    return True


# What all members of a family have: the name and kind of what differs, then the other predicates.
Family = tuple[ps.Predicate | str, ...]


def _variable(filter: Filter, behind: str) -> str | None:
    """The first attribute behind this one whose list or range may differ within a family."""
    (conjunction,) = filter.conjunctions
    names = (p.name for p in conjunction if type(p) in (ps.OneOf, ps.Between))
    return next((name for name in names if name > behind), None)


def _split(filter: Filter, name: str) -> tuple[ps.OneOf | ps.Between, tuple[ps.Predicate, ...]]:
    """The list or range of this attribute, of which there is one, and the rest."""
    (conjunction,) = filter.conjunctions
    variable, *_ = [p for p in conjunction if p.name == name and type(p) in (ps.OneOf, ps.Between)]
    assert isinstance(variable, ps.OneOf | ps.Between)
    return variable, tuple(p for p in conjunction if p is not variable)


def _family(filter: Filter, name: str) -> Family:
    variable, rest = _split(filter, name)
    return name, variable.kind, *rest


def _merged(
    members: Collection[Filter], name: str, imperfection: float, known: Iterable[Filter] = ()
) -> list[Filter]:
    """The fewest filters that match what the members of one family match.

    Those that are `known`, or members, need not be made again.
    """
    if len(members) < 2:
        return list(members)
    made = {_split(one, name)[0]: one for one in (*known, *members)}
    ranges: list[ps.Between] = []
    points: list[ps.OneOf] = []
    rest: tuple[ps.Predicate, ...] = ()
    for member in members:
        variable, rest = _split(member, name)
        if type(variable) is ps.Between:
            ranges.append(variable)
        else:
            points.append(variable)
    joined = _joined(ranges, imperfection)
    variants: list[ps.OneOf | ps.Between] = [*joined, *_lists(points, joined)]
    if any(oversize([(*rest, p)]) for p in variants if p not in made):
        return list(members)  # a neighbour would refuse it
    return [made.get(p) or Filter.of([(*rest, p)]) for p in variants]


def _lists(points: list[ps.OneOf], ranges: list[ps.Between]) -> list[ps.OneOf]:
    """All values that lie in none of the ranges, in as few lists as may be."""
    loose = _outside(sorted({value for p in points for value in p.values}), ranges)
    lists: list[list[ps.Value]] = []
    room = 0
    for value in loose:
        size = len(str(value)) + LIST_CHARACTERS_MAX // ps.VALUES_MAX
        if room < size:
            lists.append([])
            room = LIST_CHARACTERS_MAX + size
        lists[-1].append(value)
        room -= size
    return [ps.one_of(points[0].name, values) for values in lists]


def _outside(values: list[ps.Value], ranges: list[ps.Between]) -> list[ps.Value]:
    """The values that lie in none of the ranges; both are in order, and the ranges are apart."""
    out: list[ps.Value] = []
    at = 0
    for value in values:
        high: Any = value
        while at < len(ranges) and (end := ranges[at].high) is not None:
            if high < end or (high == end and not ranges[at].high_open):
                break
            at += 1
        if at == len(ranges) or not ps.admits(ranges[at], value):
            out.append(value)
    return out


def _joined(ranges: list[ps.Between], imperfection: float) -> list[ps.Between]:
    """The ranges from the lowest on, each united with the next as long as they touch."""

    def from_below(p: ps.Between) -> tuple[bool, Any, bool, str]:
        return p.low is not None, p.low, p.low_open, repr(p)

    out: list[ps.Between] = []
    for p in sorted(ranges, key=from_below):
        united = algebra.unite(out[-1], p, imperfection) if out else None
        if type(united) is ps.Between:
            out[-1] = united
        else:
            out.append(p)
    return out


class Strategy(msgspec.Struct, frozen=True):
    """A routing strategy: whose entries, and which table thins them out."""

    name: str
    per_client: bool = False  # entries are (client, filter) pairs, not filters
    floods: bool = False  # no tables at all: every notification goes everywhere
    table: Callable[..., OutTable] = OutTable


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("flooding", floods=True),
        Strategy("simple", per_client=True),
        Strategy("identity"),
        Strategy("covering", table=CoveringTable),
        Strategy("merging", table=MergingTable),
    )
}


def reduced(strategy: Strategy, entries: Iterable[Entry]) -> list[Entry]:
    """What a strategy sends of these entries: the definition."""
    distinct = list(dict.fromkeys(entries))
    if strategy.floods:
        return []
    if strategy.table is OutTable:
        return distinct
    if strategy.table is MergingTable:
        merged = _all_merged([entry.filter for entry in distinct if not entry.ahead])
        distinct = [*map(Entry, merged), *(entry for entry in distinct if entry.ahead)]
    return [one for one in distinct if not any(_above(other, one) for other in distinct)]


def _all_merged(filters: list[Filter]) -> list[Filter]:
    done: dict[Filter, None] = {}
    left: dict[str, dict[Filter, None]] = {}  # by the attribute that is merged next

    def pass_on(filter: Filter, behind: str) -> None:
        name = _variable(filter, behind)
        (done if name is None else left.setdefault(name, {}))[filter] = None

    for filter in filters:
        pass_on(filter, "")
    while left:
        name = min(left)
        families: dict[Family, list[Filter]] = {}
        for filter in left.pop(name):
            families.setdefault(_family(filter, name), []).append(filter)
        for members in families.values():
            for merged in _merged(members, name, imperfection=0.0):
                pass_on(merged, name)
    return list(done)
