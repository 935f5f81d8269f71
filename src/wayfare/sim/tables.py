"""What every broker's tables have to be, by definition: computed from scratch, from the whole tree.

`told_ads` and `told_subs` say what each broker has to have told each neighbour, following the entries hop
by hop; `differences` which tables of a broker are otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from wayfare.core import predicates as ps
from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId, Entry
from wayfare.core.reduction import Strategy, reduced, stands_for
from wayfare.core.routing import Routing
from wayfare.sim import topology

Places = dict[Filter, dict[int, int]]  # who wants what, and how often each said so


def farther(entry: Entry) -> Entry:
    """What an entry is one hop farther from its client."""
    first, *others = entry.ahead or (entry.filter,)
    return Entry(first, entry.client, tuple(others))


class Tables:
    """Of all brokers of a tree, when all is quiet."""

    def __init__(
        self,
        strategy: Strategy,
        edges: topology.Edges,
        ads: Mapping[str, Sequence[Entry]],
        subs: Mapping[str, Sequence[Entry]],
    ) -> None:
        """`ads` and `subs` are what the sessions of each broker want its neighbours to know."""
        self.strategy = strategy
        self.near = topology.neighbours(edges)
        self.ads = ads
        self.subs = subs
        self._told_ads: dict[tuple[str, str], list[Entry]] = {}
        self._told_subs: dict[tuple[str, str], list[Entry]] = {}

    def ads_for(self, broker: str, neighbour: str) -> list[Entry]:
        """Every advertisement that the broker might tell this neighbour."""
        others = [n for n in self.near.get(broker, []) if n != neighbour]
        heard = [entry for other in others for entry in self.told_ads(other, broker)]
        return list(dict.fromkeys([*self.ads[broker], *heard]))

    def told_ads(self, broker: str, neighbour: str) -> list[Entry]:
        key = broker, neighbour
        if key not in self._told_ads:
            self._told_ads[key] = reduced(self.strategy, self.ads_for(broker, neighbour))
        return self._told_ads[key]

    def subs_for(self, broker: str, neighbour: str) -> list[Entry]:
        """Every subscription that the broker might tell this neighbour."""
        others = [n for n in self.near.get(broker, []) if n != neighbour]
        heard = [farther(entry) for other in others for entry in self.told_subs(other, broker)]
        offered = self.told_ads(neighbour, broker)
        return [
            entry
            for entry in dict.fromkeys([*self.subs[broker], *heard])
            if any(ad.filter.overlaps((entry.filter, *entry.ahead)[-1]) for ad in offered)
        ]

    def told_subs(self, broker: str, neighbour: str) -> list[Entry]:
        key = broker, neighbour
        if key not in self._told_subs:
            self._told_subs[key] = reduced(self.strategy, self.subs_for(broker, neighbour))
        return self._told_subs[key]


def differences(name: str, routing: Routing, tables: Tables, here: Places) -> Iterator[str]:
    """What is wrong in the tables of this broker, whose sessions want what is `here`."""
    places: Places = {filter: dict(counts) for filter, counts in here.items()}
    for place, other in enumerate(routing.in_subs):
        heard_ads, heard_subs = tables.told_ads(other, name), tables.told_subs(other, name)
        yield from _same(f"{name} in_ads {other}", routing.in_ads[other], heard_ads)
        yield from _same(f"{name} in_subs {other}", routing.in_subs[other], heard_subs)
        for entry in heard_subs:
            add_place(places, entry.filter, place)
        if tables.strategy.floods:
            continue
        out_ads, out_subs = routing.out_ads[other], routing.out_subs[other]
        yield from _same(f"{name} out_ads {other}", out_ads.entries, tables.ads_for(name, other))
        yield from _same(f"{name} out_subs {other}", out_subs.entries, tables.subs_for(name, other))
    there = routing.destinations.counts()
    if there != places:
        yield f"{name} destinations is {there}, should be {places}"


def faults(name: str, routings: Mapping[str, Routing], tables: Tables) -> Iterator[str]:
    """What is wrong in the tables of this broker, if it and others save work.

    Then they may send more than `tables` says. But what a broker was told is what was sent, what it may
    send follows from that, and what it sends stands for all of it.
    """
    routing = routings[name]
    for other in routing.in_subs:
        there = routings[other]
        told = f"{name} was told by {other}"
        yield from _same(told, routing.in_ads[other], there.out_ads[BrokerId(name)].sent())
        yield from _same(told, routing.in_subs[other], there.out_subs[BrokerId(name)].sent())
        if tables.strategy.floods:
            continue
        others = [one for one in routing.in_subs if one != other]
        ads = {*tables.ads[name], *(ad for one in others for ad in routing.in_ads[one])}
        subs = {
            *tables.subs[name],
            *(farther(sub) for one in others for sub in routing.in_subs[one]),
        }
        met = {
            sub
            for sub in subs
            if any(ad.filter.overlaps(sub.widest()) for ad in routing.in_ads[other])
        }
        out_ads, out_subs = routing.out_ads[other], routing.out_subs[other]
        yield from _same(f"{name} out_ads {other}", out_ads.entries, list(ads))
        if not met <= out_subs.entries.keys() <= subs:
            yield f"{name} out_subs {other} is {_brief(out_subs.entries)}, should be {_brief([*met])}"
        for table in (out_ads, out_subs):
            for entry in table.entries:
                if not all(
                    any(stands_for(one, part) for one in table.sent()) for part in _single(entry)
                ):
                    yield f"{name} sends {other} nothing that stands for {entry}"


def _single(entry: Entry) -> list[Entry]:
    """An entry for each choice of single values: merging may take those of a list apart."""
    if entry.ahead:
        return [entry]
    (conjunction,) = entry.filter.conjunctions
    choices = [
        [ps.OneOf(p.name, p.kind, (value,)) for value in p.values] if type(p) is ps.OneOf else [p]
        for p in conjunction
    ]
    return [Entry(Filter.of([one]), entry.client) for one in product(*choices)]


def add_place(places: Places, filter: Filter, place: int) -> None:
    counts = places.setdefault(filter, {})
    counts[place] = counts.get(place, 0) + 1


def _same(where: str, there: Mapping[Entry, object], wanted: list[Entry]) -> Iterator[str]:
    if there.keys() != {*wanted}:
        yield f"{where} is {_brief(there)}, should be {_brief(wanted)}"


def _brief(entries: Mapping[Entry, object] | list[Entry]) -> str:
    return "{" + ", ".join(sorted(map(str, entries))) + "}"
