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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from wayfare.core import algebra
from wayfare.core import predicates as ps
from wayfare.core.covering import CoverIndex
from wayfare.core.filters import Filter, oversize
from wayfare.core.messages import Entry

LIST_CHARACTERS_MAX = 4096  # of all values that are merged into one list, with 16 more for each


class OutTable:
    """Candidates for one neighbour, all of which are sent: simple and identity routing."""

    __slots__ = ("_before", "entries")

    def __init__(self) -> None:
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
            now = self.entries.get(entry, False)
            if now != before:
                (added if now else removed).append(entry)
        self._before.clear()
        return added, removed

    def sent(self) -> list[Entry]:
        """What the neighbour has to know."""
        return [entry for entry, sent in self.entries.items() if sent]

    def start_over(self) -> None:
        """The neighbour knows nothing: all of it is a difference."""
        self._before = dict.fromkeys(self.entries, False)

    def _set(self, entry: Entry, sent: bool) -> None:
        self._before.setdefault(entry, self.entries.get(entry, False))
        self.entries[entry] = sent

    def _forget(self, entry: Entry) -> None:
        self._before.setdefault(entry, self.entries[entry])
        del self.entries[entry]


def _above(a: Entry, b: Entry) -> bool:
    """Whether `a` stands for `b`. Of two that cover each other, the one that reads first does."""
    return _covers(a, b) and (not _covers(b, a) or _text(a) < _text(b))


def _covers(a: Entry, b: Entry) -> bool:
    """Whether that is so at every hop."""
    if not a.filter.covers(b.filter):
        return False
    return not (a.ahead or b.ahead) or _covers(a.shifted(), b.shifted())


def _text(entry: Entry) -> tuple[str, ...]:
    return tuple(map(str, (entry.filter, *entry.ahead)))


class CoveringTable(OutTable):
    """Sent are the roots: the entries that no other candidate stands for.

    Every other candidate hangs below one root that covers it, to be looked at again when that goes.
    """

    __slots__ = ("_below", "_filters", "_root_of", "_roots")

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[Filter, list[Entry]] = {}  # by their filters here
        self._filters = CoverIndex()  # of the roots
        self._below: dict[Entry, dict[Entry, None]] = {}  # root -> those that hang there
        self._root_of: dict[Entry, Entry] = {}

    def add(self, entry: Entry) -> None:
        self._place(entry)

    def remove(self, entry: Entry) -> None:
        root = self._root_of.pop(entry, None)
        self._forget(entry)
        if root is not None:
            del self._below[root][entry]
            return
        for orphan in self._uproot(entry):
            del self._root_of[orphan]
            self._place(orphan)

    def _place(self, entry: Entry) -> None:
        for filter in self._filters.coverers(entry.filter):
            for root in self._roots[filter]:
                if _above(root, entry):
                    self._hang(entry, root)
                    return
        below = [
            root
            for filter in self._filters.covered(entry.filter)
            for root in self._roots[filter]
            if _above(entry, root)
        ]
        self._root(entry)
        for root in below:
            for child in (*self._uproot(root), root):
                self._hang(child, entry)

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

    __slots__ = ("_counts", "_families", "_imperfection", "_merged", "_results")

    def __init__(self, imperfection: float = 0.0) -> None:
        super().__init__()
        self._imperfection = imperfection
        # Members, and how often each came here: a merge may equal another one, or a candidate.
        self._families: dict[Family, dict[Filter, int]] = {}
        self._results: dict[Family, dict[Filter, None]] = {}  # what each family is merged to
        self._counts: dict[Filter, int] = {}  # what came out of all merging, and how often
        self._merged = CoveringTable()

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

    def start_over(self) -> None:
        self._merged.start_over()

    def _add(self, filter: Filter, behind: str) -> None:
        """Merge on, from the first variable attribute behind this one."""
        name = _variable(filter, behind)
        if name is None:
            if count_up(self._counts, filter):
                self._merged.add(Entry(filter))
            return
        family = _family(filter, name)
        if count_up(self._families.setdefault(family, {}), filter):
            self._merge(family, name)

    def _remove(self, filter: Filter, behind: str) -> None:
        name = _variable(filter, behind)
        if name is None:
            if count_down(self._counts, filter):
                self._merged.remove(Entry(filter))
            return
        family = _family(filter, name)
        if count_down(self._families[family], filter):
            self._merge(family, name)

    def _merge(self, family: Family, name: str) -> None:
        """See what a family that changed is merged to now, and pass on the difference."""
        before = self._results.pop(family, {})
        after = dict.fromkeys(_merged(self._families[family], name, self._imperfection))
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


def count_up(counts: dict[Filter, int], filter: Filter) -> bool:
    """True for the first."""
    counts[filter] = counts.get(filter, 0) + 1
    return counts[filter] == 1


def count_down(counts: dict[Filter, int], filter: Filter) -> bool:
    """True for the last."""
    counts[filter] -= 1
    if counts[filter]:
        return False
    del counts[filter]
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


def _merged(members: Collection[Filter], name: str, imperfection: float) -> list[Filter]:
    """The fewest filters that match what the members of one family match."""
    if len(members) < 2:
        return list(members)
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
    variants: list[ps.Predicate] = [*joined, *_lists(points, joined)]
    merged = [(*rest, p) for p in variants]
    if any(oversize([one]) for one in merged):
        return list(members)  # a neighbour would refuse it
    return [Filter.of([one]) for one in merged]


def _lists(points: list[ps.OneOf], ranges: list[ps.Between]) -> list[ps.OneOf]:
    """All values that lie in none of the ranges, in as few lists as may be."""
    values = {value for p in points for value in p.values}
    loose = sorted(value for value in values if not any(ps.admits(p, value) for p in ranges))
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
    table: Callable[[], OutTable] = OutTable


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
