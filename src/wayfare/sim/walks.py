"""Random runs of clients that follow their location, and what they have to get.

A client walks over a random map, from location to location and from broker to broker, mostly by the
movement graph, sometimes to anywhere. Publishers say something of a location now and then. The judge
knows where every client was when, and which brokers were to listen ahead for it:

    wanted     what is delivered matches where the client is at that moment
    once       ... and was not delivered before
    fifo       while it stays, every publisher's in order, and the past before the present
    complete   what is published for where it stays, while it stays there, is delivered
    past       ... and what was published before, while a virtual client listened for it there
    ghosts     when everybody has left, no virtual client, no subscription, no id in a store is left
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

import msgspec

from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import BrokerId, State
from wayfare.core.places import EVERYWHERE, Place, Places
from wayfare.core.predicates import Value
from wayfare.core.templates import Around, Mine, Template
from wayfare.core.virtual import Ahead, area_of, spread, union
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.faults import Faults
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, LinkSpec
from wayfare.sim.oracle import (
    Verdict,
    Violation,
    check_deliveries,
    check_quiet,
    matches,
    reach,
)
from wayfare.sim.world import World

SECOND_NS = 1000 * MS_NS
TEMPLATES = (
    "location in myloc",
    "location in myloc and level >= my.need",
    "location in myloc and topic = 'parking'",
    "location in myloc and topic = 'fuel' or topic = 'flood' and location in myloc",
    "near(myloc, 1500)",
)
ORDINARY = ("topic = 'fuel' and level > 6", "level = 3", "topic = 'parking'")
STEPS = 20  # of one walker
TOPICS = ("parking", "fuel", "flood")
Areas = Mapping[str, tuple[str, ...]]


class Walks:
    """One random run in the making."""

    def __init__(
        self,
        seed: int,
        routing: str = "covering",
        relocation: str = "handoff",
        *,
        faults: bool = False,
    ) -> None:
        self.random = random = Random(f"walks {seed}")
        self.faults = faults
        names = topology.random_tree(random, random.choice([1, 2, 3, random.randint(4, 14)]))
        self.brokers = sorted({end for edge in names for end in edge}) or ["b0"]
        self.places = self._map()
        self.until_ns = random.choice([2, 10, 30]) * SECOND_NS
        self.world = World(
            seed,
            routing,
            limits=self._limits(),
            relocation=relocation,
            ahead=self._ahead(),
            direct_link=LinkSpec(
                latency_ns=random.choice([1, 10, 60]) * MS_NS,
                jitter_ns=random.choice([0, 0, 40]) * MS_NS,
                loss=random.choice([0.0, 0.1, 0.5]) if faults else 0.0,
            ),
        )
        self.world.add_brokers(names)
        self._shape_links()
        self.areas: dict[str, Areas] = {}
        self.publishers = [self._publisher(i) for i in range(random.randint(1, 3))]
        self.walkers = [self._walker(i) for i in range(random.randint(1, 4))]
        for _ in range(random.choice([20, 60, 120])):
            self.world.agenda.at(random.randrange(self.until_ns), self._publish, None)
        if faults:
            edges, clients = self.world.edges, [one.name for one in self.walkers]
            plan = Faults.random(random, self.brokers, edges, clients, self.until_ns)
            self.world.plan(plan)

    # Making it up

    def _map(self) -> Places:
        random = self.random
        names = [
            (f"{broker}.{i}", broker)
            for broker in self.brokers
            for i in range(random.choice([1, 1, 2, 3]))
        ]
        near: dict[str, set[str]] = {name: set() for name, _ in names}
        for at, (name, _) in enumerate(names):  # connected, and some more
            for other in [names[random.randrange(at)][0]] if at else []:
                near[name].add(other)
                near[other].add(name)
        for _ in range(random.randint(0, len(names))):
            a, b = random.choice(names)[0], random.choice(names)[0]
            if a != b:
                near[a].add(b)
        return Places(
            {
                name: Place(
                    tuple(sorted(near[name])),
                    broker,
                    (random.uniform(0, 0.05), random.uniform(0, 0.05)),
                )
                for name, broker in names
            }
        )

    def _limits(self) -> Limits:
        random = self.random
        return Limits(
            answer_ns=3600 * SECOND_NS if not self.faults else random.choice([1, 3600]) * SECOND_NS,
            lease_ns=random.choice([1, 10, 60]) * SECOND_NS,
            buffer_count=random.choice([3, 1_000]),
            buffer_age_ns=random.choice([1, 3600]) * SECOND_NS,
            window=random.choice([2, 16, 256]),
        )

    def _ahead(self) -> Ahead:
        random, everybody = self.random, [BrokerId(one) for one in self.brokers]
        chosen = {
            one: random.sample(everybody, random.randint(0, len(everybody))) for one in everybody
        }
        nlb = random.choice(
            [
                self.places.next_brokers,
                self.places.next_brokers,
                lambda _broker: (),
                lambda _broker: everybody,
                chosen.__getitem__,
            ]
        )
        steps = random.choice([0, EVERYWHERE, None, None])
        dwell_ns = random.choice([20, 200, 2000]) * MS_NS
        return Ahead(self.places, nlb, steps, dwell_ns, random.choice([5, 20]) * MS_NS)

    def _shape_links(self) -> None:
        for a, b in self.world.edges:
            spec = LinkSpec(latency_ns=self.random.randint(1, 30) * MS_NS)
            for pipe in self.world.link(a, b):
                pipe.shape(spec)

    def _publisher(self, i: int) -> ClientHost:
        client = self.world.add_client(f"p{i}", self.random.choice(self.brokers))
        client.advertise("exists location")
        return client

    def _walker(self, i: int) -> ClientHost:
        random, name = self.random, f"w{i}"
        self.areas[name] = self._areas()
        at = random.choice(list(self.places.places))
        walker = self.world.add_client(name, self.places.places[at].broker or "", attach=False)
        walker.be(self._state(name, at, {"need": random.randint(0, 9)}))
        for text in random.sample(TEMPLATES, random.choice([1, 1, 2])):
            walker.follow(text)
        if random.random() < 0.4:
            walker.subscribe(random.choice(ORDINARY))
        walker.attach()
        self._walk(walker, at)
        return walker

    def _areas(self) -> Areas:
        random, names = self.random, list(self.places.places)
        if random.random() < 0.6:
            return {}
        return {
            name: tuple(dict.fromkeys([name, *random.sample(names, min(2, len(names)))]))
            for name in names
        }

    def _state(self, client: str, location: str, values: dict[str, Value]) -> State:
        place = self.places.places[location]
        return State(location, place.position, values, dict(self.areas[client]))

    def _walk(self, walker: ClientHost, at: str) -> None:
        """Where it goes when; with its location known before it attaches, or a while after."""
        random, world = self.random, self.world
        now = 0
        dwell = random.choice([20, 200, 2000]) * MS_NS
        values: dict[str, Value] = dict(walker.core.following.state.values)
        for _ in range(STEPS):
            now += random.randint(dwell // 10, 2 * dwell)
            if now > self.until_ns:
                break
            steps = self.places.places[at].next
            there = random.choice(steps) if steps and random.random() < 0.9 else at
            if random.random() < 0.1:
                there = random.choice(list(self.places.places))
            if random.random() < 0.1:
                values = {"need": random.randint(0, 9)}
            state = self._state(walker.name, there, values)
            broker = self.places.places[there].broker
            if broker == self.places.places[at].broker:
                world.agenda.at(now, walker.be, state)
            else:
                away = random.choice([0, 50, 1500]) * MS_NS
                world.agenda.at(now, self._go, walker)
                late = random.choice([0, 0, 30]) * MS_NS
                if not late:
                    world.agenda.at(now + away, walker.be, state)
                world.agenda.at(now + away, walker.attach, broker)
                now += away
                if late:
                    world.agenda.at(now + late, walker.be, state)
                    now += late
            at = there

    def _go(self, walker: ClientHost) -> None:
        if self.random.random() < 0.5:
            walker.detach()
        else:
            walker.disconnect(late=self.random.random() < 0.5)

    def _publish(self, _: None) -> None:
        random = self.random
        name = random.choice(list(self.places.places))
        attributes: dict[str, Value] = {
            "location": name,
            "topic": random.choice(TOPICS),
            "level": random.randint(0, 9),
        }
        position = self.places.places[name].position
        if position is not None and random.random() < 0.5:
            attributes["lat"], attributes["lon"] = position
        random.choice(self.publishers).publish(attributes)

    # Running

    def run(self) -> Verdict:
        world = self.world
        world.run_until(self.until_ns + 3 * SECOND_NS)
        for walker in self.walkers:
            if walker.connection is None:
                walker.attach()
        world.settle()
        judge = Judge(self)
        verdict = check_deliveries(judge.ordinary, reach(world))
        found = [*verdict.violations, *judge.violations(), *check_quiet(world)]
        found += ghosts(world)
        return msgspec.structs.replace(
            verdict,
            violations=tuple(found),
            delivered=sum(event.kind == "delivered" for event in world.events),
            required=verdict.required + judge.required,
        )


def ghosts(world: World) -> Iterator[Violation]:
    """Everybody leaves; then nothing may be left."""
    for client in world.clients.values():
        if client.connection is None:
            client.attach()
    world.settle()
    for client in world.clients.values():
        client.detach(leave=True)
    world.run_until(world.now + 3 * world.limits.lease_ns + 60 * SECOND_NS)
    for name, host in world.brokers.items():
        replicator = host.core.replicator
        for what, left in (
            ("virtual clients", list(replicator.virtual)),
            ("ids in its store", list(replicator.ear.store.kept)),
            ("subscriptions", replicator.ear.subscriptions()),
        ):
            if left:
                yield Violation("ghosts", f"{name} has {what}: {left!r:.200}")


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

    def __init__(self, walks: Walks) -> None:
        self.walks = walks
        self.world = walks.world
        self.reach = reach(self.world)
        self.required = 0
        self.published = {
            (event.client, event.number): event
            for event in self.world.events
            if event.kind == "published"
        }
        self.stays: dict[str, list[Stay]] = {one.name: [] for one in walks.walkers}
        self.ordinary: list[Event] = []  # what the other oracle judges
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
                place = self.walks.places.places[event.location or ""]
                values = event.attributes or {}
                areas = dict(self.walks.areas[client])
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
            if not self.walks.faults:
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
            if (
                not past
                and published.time_ns + self._way_ns() + 2 * self._direct_ns() < stay.attached
            ):
                yield Violation("past", f"{what} as if it were live, but it is of the past")

    def _way_ns(self) -> int:
        """From a publisher to a client, at the most."""
        return 2 * self.reach.client_ns + self.reach.tree_ns

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
            settled = max(stay.start, 3 * self.reach.tree_ns)  # first, what is advertised is known
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
        set_up = max(set_up, 4 * self.reach.tree_ns)
        if not set_up < event.time_ns < stay.attached - self._way_ns():
            return False
        if stay.start + self._receiving_ns() - event.time_ns > limits.buffer_age_ns:
            return False
        if last[-1].end - last[0].start < 2 * self.reach.client_ns:
            return False
        locations = self.walks.places.locations(here)
        around = self.walks.places.around(locations)
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
