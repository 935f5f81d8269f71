"""Whether new subscriptions got the current values of retained publications, and had to get them.

A publication replaces an earlier one of the same key if that had reached every broker before.
Two that were on their way at the same time may count in either order; the judge allows both.

    wanted     what is delivered as a current value was retained, and matches the subscription that asked
    once       no subscription gets the same twice, be it as a current value or as it is published
    stale      no value comes behind its successor
    current    a subscription gets a value of each key that matches: the current value, or a later one
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

import msgspec
from msgspec.structs import replace

from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.filters import Filter
from wayfare.eventlog import Event
from wayfare.sim.histories import History, matches
from wayfare.sim.reach import Reach
from wayfare.sim.relevance import check_inside
from wayfare.sim.verdict import Violation

Id = tuple[str, int]  # publisher and number


class Retained(msgspec.Struct, frozen=True):
    """A publication that was retained."""

    id: Id
    key: tuple[tuple[str, str], ...]
    event: Event
    arrived: float  # when it had reached every broker, at the latest
    clear: bool

    def replaces(self, other: Retained) -> bool:
        """For certain."""
        return other.arrived <= self.event.time_ns


class Ask(msgspec.Struct):
    """A subscription that asked for current values."""

    filter: Filter
    number: int
    start: int
    process: int
    limited: bool
    end: float = inf
    got: dict[Id, Event] = {}  # everything that came to it
    current: dict[Id, Event] = {}  # ... of that, as a current value


class Judge:
    """What the subscriptions of a run got of current values."""

    def __init__(self, events: list[Event], clients: Mapping[str, History], reach: Reach) -> None:
        self._events, self._clients, self._reach = events, clients, reach
        self.required = 0
        self._published = sum(len(one.published) for one in clients.values())
        self.retained: dict[Id, Retained] = {}
        for event in events:
            if event.kind == "published" and event.path:
                one = self._retained(event)
                first = self.retained.get(one.id)  # a store that was rolled back forgets a will
                self.retained[one.id] = replace(one, event=first.event) if first else one
        self.asks: dict[str, list[Ask]] = {}
        self._lost: dict[str, list[Event]] = {}  # reports of losses
        self._wrong: list[Violation] = []
        if self.retained:
            self._read()

    def _retained(self, event: Event) -> Retained:
        assert event.client and event.number and event.path and event.attributes
        publisher = self._clients[event.client]
        leaves = next((time for time in publisher.left if time >= event.time_ns), inf)
        held_ns = 2 * self._reach.tree_ns * publisher.moves
        accepted = publisher.accepted(
            event.time_ns, self._reach.client_ns, held_ns, leaves, expires=self._reach.expires
        )
        if any(event.time_ns <= time < accepted for time in publisher.replaced):
            accepted = inf
        values = event.attributes
        key = tuple((name, repr(values[name])) for name in sorted(event.path))
        arrived = accepted + self._reach.tree_ns
        return Retained((event.client, event.number), key, event, arrived, event.reason == "clear")

    def _read(self) -> None:
        held: dict[tuple[str, Filter], int] = {}
        for event in self._events:
            name = event.client or ""
            asks = self.asks.setdefault(name, [])
            if event.kind == "subscribed" and event.count and event.filter is not None:
                process = self._clients[name].process(event.time_ns)
                limited = event.reason is not None
                asks.append(Ask(event.filter, event.count, event.time_ns, process, limited))
                held[name, event.filter] = held.get((name, event.filter), 0) + 1
            elif event.kind == "unsubscribed" and event.filter is not None:
                held[name, event.filter] = held.get((name, event.filter), 0) - 1
                if event.reason is not None or held[name, event.filter] <= 0:
                    held.pop((name, event.filter))
                    _end(asks, event.time_ns, event.filter)
            elif event.kind == "replaced":
                held = {key: count for key, count in held.items() if key[0] != name}
                _end(asks, event.time_ns)
            elif event.kind == "left":  # what nobody heard before, a later attachment says again
                for ask in asks:
                    ask.limited = True
            elif event.kind == "lost":
                self._lost.setdefault(name, []).append(event)
            elif event.kind == "delivered":
                self._wrong += self._deliver(name, event)

    def _deliver(self, name: str, event: Event) -> Iterator[Violation]:
        assert event.publisher and event.number and event.attributes is not None
        id = event.publisher, event.number
        what = f"{name} got {event.publisher} {event.number}"
        process = self._clients[name].process(event.time_ns)
        there = [one for one in self.asks[name] if one.process == process]
        if event.reason == "current":
            asked = [one for one in there if one.number == event.count]
            yield from self._check_wanted(what, event, asked)
        else:
            asked = [
                one
                for one in there
                if one.start <= event.time_ns <= one.end and matches(one.filter, event.attributes)
            ]
        for ask in asked:
            again = id in ask.got and (event.reason == "current" or id in ask.current)
            if again and not self._is_excused(name, ask, event.time_ns):
                yield Violation("once", f"{what} twice by {ask.filter}, as a current value")
            if event.reason == "current":
                yield from self._check_stale(what, id, ask)
                ask.current[id] = event
            ask.got[id] = event

    def _is_excused(self, name: str, ask: Ask, until: float) -> bool:
        """Whether the client was told since it asked that nobody knows what it got."""
        lost = self._lost.get(name, [])
        return any(ask.start <= one.time_ns <= until and not one.count for one in lost)

    def _check_wanted(self, what: str, event: Event, asked: list[Ask]) -> Iterator[Violation]:
        assert event.publisher and event.number and event.attributes is not None
        published = self.retained.get((event.publisher, event.number))
        if published is None or published.clear or published.event.time_ns > event.time_ns:
            yield Violation("wanted", f"{what} as a current value, which nobody has retained")
        elif published.event.attributes != event.attributes:
            yield Violation("wanted", f"{what} with other attributes")
        elif published.event.expires_ns is not None:
            yield from check_fresh(published.event, event, self._clients, self._reach)
        if published is not None and published.event.area is not None:
            yield from check_inside(published.event, event, self._clients[event.client or ""])
        if not any(
            one.start <= event.time_ns <= one.end and matches(one.filter, event.attributes)
            for one in asked
        ):
            yield Violation("wanted", f"{what} as a current value, for which nobody has asked")

    def _check_stale(self, what: str, id: Id, ask: Ask) -> Iterator[Violation]:
        if self._reach.outage_ns:
            return  # a broker that forgot the version of a value gave its successor a lower one
        one = self.retained.get(id)
        for other_id in ask.got:
            other = self.retained.get(other_id)
            if one and other and one.key == other.key and other.replaces(one):
                yield Violation(
                    "stale", f"{what} after {other_id[0]} {other_id[1]}, which is newer"
                )

    def violations(self) -> Iterator[Violation]:
        yield from self._wrong
        if not self.retained or self._reach.outage_ns:
            return  # a broker that went back to an old store has forgotten what it accepted
        keys: dict[tuple[tuple[str, str], ...], list[Retained]] = {}
        for one in self.retained.values():
            keys.setdefault(one.key, []).append(one)
        for name, asks in self.asks.items():
            for ask in asks:
                if self._must_be_answered(name, ask):
                    for key, some in keys.items():
                        yield from self._check_current(name, ask, key, some)

    def _must_be_answered(self, name: str, ask: Ask) -> bool:
        client, reach = self._clients[name], self._reach
        heard = client.contact(ask.start, reach.client_ns, ask.end)
        waits = 1 + (self._published + len(self.retained)) // reach.window
        needs_ns = 3 * reach.client_ns + waits * (2 * reach.client_ns + ACK_DELAY_NS)
        needs_ns += 2 * reach.tree_ns * client.moves
        answered = client.contact(heard, needs_ns, ask.end) if heard < inf else inf
        told = any(one.time_ns >= ask.start for one in self._lost.get(name, []))
        return answered < inf and not ask.limited and not told

    def _check_current(
        self, name: str, ask: Ask, key: tuple[tuple[str, str], ...], some: list[Retained]
    ) -> Iterator[Violation]:
        settled = [one for one in some if one.arrived <= ask.start]
        candidates = [one for one in some if not any(two.replaces(one) for two in settled)]
        if not settled or not all(
            not one.clear
            and one.event.expires_ns is None
            and one.event.area is None
            and matches(ask.filter, one.event.attributes or {})
            for one in candidates
        ):
            return
        self.required += 1
        if not any(one.id in ask.got for one in candidates):
            ids = ", ".join(f"{who} {number}" for who, number in (one.id for one in candidates))
            yield Violation(
                "current", f"{name} did not get {ids}, current for {dict(key)}, by {ask.filter}"
            )

    def possible(self, name: str) -> int:
        """How many current values may have been on their way to a client."""
        asks = self.asks.get(name, [])
        return sum(
            matches(ask.filter, one.event.attributes or {})
            for ask in asks
            for one in self.retained.values()
        )


def check_fresh(
    published: Event, delivered: Event, clients: Mapping[str, History], reach: Reach
) -> Iterator[Violation]:
    """What has expired is not delivered. Only the time that brokers keep something counts."""
    assert published.client and delivered.client and published.expires_ns is not None
    # It crosses the tree to a broker that keeps it, from there to another one, and again with each hand-off.
    crossings = 2 + clients[delivered.client].moves
    under_way_ns = crossings * reach.tree_ns + 3 * reach.client_ns
    if delivered.time_ns > published.time_ns + published.expires_ns + under_way_ns:
        what = f"{delivered.client} got {published.client} {published.number}, which had expired"
        yield Violation("fresh", what)


def _end(asks: list[Ask], time: int, filter: Filter | None = None) -> None:
    for ask in asks:
        if filter in (None, ask.filter):
            ask.end = min(ask.end, time)
