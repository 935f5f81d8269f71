"""What every broker's tables have to be, by definition: computed from scratch, from the whole tree.

`told_ads` and `told_subs` say what each broker has to have told each neighbour, following the entries hop
by hop; `differences` which tables of a broker are otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from wayfare.core.filters import Filter
from wayfare.core.messages import Entry
from wayfare.core.reduction import Strategy, reduced
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


def add_place(places: Places, filter: Filter, place: int) -> None:
    counts = places.setdefault(filter, {})
    counts[place] = counts.get(place, 0) + 1


def _same(where: str, there: Mapping[Entry, object], wanted: list[Entry]) -> Iterator[str]:
    if there.keys() != {*wanted}:
        yield f"{where} is {_brief(there)}, should be {_brief(wanted)}"


def _brief(entries: Mapping[Entry, object] | list[Entry]) -> str:
    return "{" + ", ".join(sorted(map(str, entries))) + "}"
