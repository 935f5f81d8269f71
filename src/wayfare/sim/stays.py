"""What clients that follow their location got wherever they stayed, and had to get.

The judge knows where every client was when, and which brokers were to listen ahead for it:

    wanted     what is delivered matches where the client is at that moment
    once       ... and was not delivered before
    fifo       while it stays, every publisher's in order, and the past before the present
    complete   what is published for where it stays, while it stays there, is delivered
    past       ... and what was published before, while a virtual client listened for it there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId, State
from wayfare.core.places import Places
from wayfare.core.templates import Around, Mine, Template
from wayfare.core.virtual import area_of, spread, union
from wayfare.eventlog import Event
from wayfare.sim.histories import histories, matches
from wayfare.sim.links import SECOND_NS
from wayfare.sim.reach import reach
from wayfare.sim.verdict import Violation
from wayfare.sim.world import World

Areas = Mapping[str, tuple[str, ...]]


class Stay(msgspec.Struct):
    """While a client is attached to one broker, is somewhere, and follows the same."""

    broker: str
    attached: int  # since when it is at this broker
    start: int
    end: int
    state: State
    follows: tuple[Template, ...]
    ordinary: tuple[Filter, ...]
    attachment: int  # which one
    got: list[tuple[Event, bool]]  # and whether it was of the past


class Judge:
    """What clients that follow something got, and had to get."""

    def __init__(
        self, world: World, places: Places, areas: Mapping[str, Areas], *, complete: bool
    ) -> None:
        """`areas`: what locations mean, for each of these clients; `complete`: whether all has to come."""
        self.world, self.places, self.areas, self.complete = world, places, areas, complete
        self.reach = reach(world)
        self.required = 0
        self.published = {
            (event.client, event.number): event
            for event in world.events
            if event.kind == "published"
        }
        self.stays: dict[str, list[Stay]] = {name: [] for name in areas}
        self.ordinary: list[Event] = []  # what the other oracle judges
        self._publishers = histories(one for one in world.events if one.client not in areas)
        self._wrong: list[Violation] = []
        self._read()

    def _read(self) -> None:
        """Sort what happened into stays."""
        now = self.world.now
        state: dict[str, State] = {}
        follows: dict[str, list[Template]] = {}
        ordinary: dict[str, list[Filter]] = {}
        where: dict[str, tuple[str, int, int]] = {}  # broker, since when, which attachment

        def turn(client: str, time: int) -> None:
            stays = self.stays[client]
            if stays and stays[-1].end == now:
                stays[-1].end = time
            if client in where:
                broker, since, count = where[client]
                stays.append(
                    Stay(
                        broker,
                        since,
                        time,
                        now,
                        state[client],
                        tuple(follows.get(client, [])),
                        tuple(ordinary.get(client, [])),
                        count,
                        [],
                    )
                )

        for event in self.world.events:
            client, time = event.client, event.time_ns
            if client not in self.stays:
                self.ordinary.append(event)
                continue
            assert client is not None
            if event.kind == "became":
                place = self.places.places[event.location or ""]
                values = event.attributes or {}
                areas = dict(self.areas[client])
                state[client] = State(event.location or "", place.position, values, areas)
                turn(client, time)
            elif event.kind == "followed":
                assert event.follows is not None
                follows.setdefault(client, []).append(event.follows)
                turn(client, time)
            elif event.kind == "delivered":
                if any(matches(one, event.attributes or {}) for one in ordinary.get(client, [])):
                    self.ordinary.append(event)
                else:
                    self._take(client, event)
            else:
                self.ordinary.append(event)
                if event.kind == "subscribed":
                    assert event.filter is not None
                    ordinary.setdefault(client, []).append(event.filter)
                elif event.kind == "attached":
                    where[client] = event.broker or "", time, event.epoch or 0
                    turn(client, time)
                elif event.kind == "detached":
                    where.pop(client, None)
                    turn(client, time)

    def _take(self, client: str, event: Event) -> None:
        stays = self.stays[client]
        if not stays or stays[-1].end != self.world.now:
            self._wrong.append(Violation("wanted", f"{client} got {_name(event)} while away"))
            return
        stays[-1].got.append((event, event.reason == "past"))

    def violations(self) -> Iterator[Violation]:
        yield from self._wrong
        for client, stays in self.stays.items():
            seen: set[tuple[str | None, int | None]] = set()
            for stay in stays:
                yield from self._check_stay(client, stay, seen)
            if self.complete:
                yield from self._check_complete(client, stays, seen)

    def _check_stay(
        self, client: str, stay: Stay, seen: set[tuple[str | None, int | None]]
    ) -> Iterator[Violation]:
        last: dict[tuple[str | None, bool], int] = {}  # of the past, and of the present
        for event, past in stay.got:
            what = f"{client} got {_name(event)}"
            key = event.publisher, event.number
            published = self.published.get(key)
            assert event.attributes is not None and event.number is not None
            if published is None or published.attributes != event.attributes:
                yield Violation("wanted", f"{what}, which nobody has published")
                continue
            if not any(matches(exact, event.attributes) for exact in meanings(stay)):
                yield Violation("wanted", f"{what}, which is not for {stay.state.location}")
            if key in seen:
                yield Violation("once", f"{what} twice")
            seen.add(key)
            if event.time_ns < stay.start + 2 * self.reach.client_ns:
                continue  # it was sent before the broker knew where the client is
            number = last.get((event.publisher, past), 0)
            if event.number < number:
                yield Violation("fifo", f"{what} after {number} at {stay.state.location}")
            if past and (event.publisher, False) in last:
                yield Violation("fifo", f"{what}, which is of the past, after what is not")
            last[event.publisher, past] = event.number
            if past and published.time_ns > stay.start + 2 * self.reach.client_ns:
                yield Violation(
                    "past", f"{what} as of the past, but it was published while it stayed"
                )
            # What was kept elsewhere looks younger by the time that it took to come here.
            if not past and self._arrived(published) + 2 * self._direct_ns() < stay.attached:
                yield Violation("past", f"{what} as if it were live, but it is of the past")

    def _arrived(self, published: Event) -> float:
        """When a publication was at every client at the latest.

        A publisher without a connection keeps what it publishes until it is attached again.
        """
        publisher = self._publishers[published.client or ""]
        accepted = publisher.contact(published.time_ns, self.reach.client_ns)
        return accepted + self.reach.tree_ns + self.reach.client_ns

    def _way_ns(self) -> int:
        """From a publisher to a client, at the most."""
        return 2 * self.reach.client_ns + self.reach.tree_ns

    def _advertised_ns(self) -> int:
        """Since when what publishers offered at first counts."""
        return 0 if self.reach.at_once else 3 * self.reach.tree_ns

    def _direct_ns(self) -> int:
        return self.world.direct_link.latency_ns + self.world.direct_link.jitter_ns

    def _receiving_ns(self) -> int:
        waits = len(self.published) // self.reach.window + 1
        limits = self.world.limits
        return limits.recall_ns + waits * (2 * self.reach.client_ns + 2 * SECOND_NS)

    def _check_complete(
        self, client: str, stays: list[Stay], seen: set[tuple[str | None, int | None]]
    ) -> Iterator[Violation]:
        for key, event in self.published.items():
            why = self._required(stays, event)
            if why is None:
                continue
            self.required += 1
            if key not in seen:
                rule, stay = why
                yield Violation(
                    rule,
                    f"{client} did not get {key[0]} {key[1]} of {event.attributes} at"
                    f" {stay.state.location} ({stay.broker}), where it was from {stay.start} to"
                    f" {stay.end}; published at {event.time_ns}",
                )

    def _required(self, stays: list[Stay], event: Event) -> tuple[str, Stay] | None:
        attributes = event.attributes or {}
        for at, stay in enumerate(stays):
            if any(matches(one, attributes) for one in stay.ordinary):
                return None  # the other oracle's
            if event.time_ns + self._way_ns() + self._receiving_ns() > stay.end:
                continue
            if not any(matches(exact, attributes) for exact in meanings(stay)):
                continue
            settled = max(stay.start, self._advertised_ns())
            if event.time_ns > settled + self.reach.client_ns + self.reach.tree_ns:
                return "complete", stay
            if self._was_expected(stays[:at], stay, event):
                return "past", stay
        return None

    def _was_expected(self, before: list[Stay], stay: Stay, event: Event) -> bool:
        """Whether a virtual client was to listen for this where the client is now."""
        limits = self.world.limits
        if stay.end - stay.start < self._receiving_ns() or stay.start != stay.attached:
            return False
        earlier = [one for one in before if one.attachment != stay.attachment]
        if not earlier or len(self.published) > limits.buffer_count:
            return False
        last = [one for one in earlier if one.attachment == earlier[-1].attachment]
        here, there = BrokerId(stay.broker), BrokerId(last[0].broker)
        if here == there or here not in self.world.ahead.nlb(there):
            return False
        same = {(one.follows, tuple(one.state.values.items())) for one in [*last, stay]}
        if len(same) > 1:
            return False
        set_up = last[0].attached + 2 * self.reach.client_ns
        set_up += self._direct_ns() + self.reach.tree_ns
        set_up = max(set_up, self._advertised_ns() + self.reach.tree_ns)
        if not set_up < event.time_ns < stay.attached - self._way_ns():
            return False
        if stay.start + self._receiving_ns() - event.time_ns > limits.buffer_age_ns:
            return False
        if last[-1].end - last[0].start < 2 * self.reach.client_ns:
            return False
        locations = self.places.locations(here)
        around = self.places.around(locations)
        mine = Mine(spread(locations, stay.state.areas), around, stay.state.values)
        ranged = (union(template.widened(mine)) for template in stay.follows)
        return any(matches(one, event.attributes or {}) for one in ranged)


def meanings(stay: Stay) -> list[Filter]:
    position = stay.state.position
    around = None if position is None else Around(*position)
    mine = Mine(area_of(stay.state), around, stay.state.values)
    return [template.resolve(mine) for template in stay.follows]


def _name(event: Event) -> str:
    return f"{event.publisher} {event.number} of {event.attributes}"
