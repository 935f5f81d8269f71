"""Random runs of clients that follow their location, and what they have to get.

A client walks over a random map, from location to location and from broker to broker, mostly by the
movement graph, sometimes to anywhere. Publishers say something of a location now and then. `stays` judges
what they got there; when everybody has left, nothing may be left of them.
"""

from __future__ import annotations

from random import Random

import msgspec

from wayfare.core.history import Limits
from wayfare.core.messages import BrokerId, State
from wayfare.core.places import EVERYWHERE, Place, Places
from wayfare.core.predicates import Value
from wayfare.core.virtual import Ahead
from wayfare.sim import topology
from wayfare.sim.faults import Faults, Stall
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.movement import Stay, failed_attempts, play
from wayfare.sim.oracle import check_deliveries
from wayfare.sim.ownership import Watch
from wayfare.sim.quiet import check_quiet, ghosts
from wayfare.sim.reach import reach
from wayfare.sim.stays import Areas, Judge
from wayfare.sim.verdict import Verdict
from wayfare.sim.world import World

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


FEW_UNITS = (1, 20, 100, 500)


def slice_units(seed: int) -> int:
    """What one event may do on tables: now and then so little that most is put off, or not done."""
    random = Random(f"slices {seed}")  # of its own, so that the rest is as without it
    return random.choice(FEW_UNITS) if random.random() < 0.2 else Limits().slice_units


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
        self.seed = seed
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
        self.confirms = Random(f"confirms {seed}")  # of its own, so that the rest is as without it
        self.publishers = [self._publisher(i) for i in range(random.randint(1, 3))]
        self.walkers = [self._walker(i) for i in range(random.randint(1, 4))]
        for _ in range(random.choice([20, 60, 120])):
            self.world.agenda.at(random.randrange(self.until_ns), self._publish, None)
        if faults:
            edges, clients = self.world.edges, [one.name for one in self.walkers]
            plan = Faults.random(random, self.brokers, edges, clients, self.until_ns)
            self.world.plan(plan)
            self.world.plan(self._stalls(Random(f"stalls {seed}")))
        # Of their own, so that the rest is as without them.
        self.watch = Watch(self.world, Random(f"watch {seed}"))
        self.attempts = Random(f"attempts {seed}")
        for i in range(self.confirms.choice([0, 1, 3])):
            self.world.agenda.at(self.confirms.randrange(self.until_ns), self._begin_to_publish, i)
        if self.attempts.random() < 0.5:
            for _ in range(self.attempts.choice([1, 4])):
                at_ns = self.attempts.randrange(self.until_ns)
                self.world.agenda.at(at_ns, self._attempt_in_vain)

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
            slice_units=slice_units(self.seed),
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
            if self.confirms.random() < 0.5:
                walker.confirm()
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
        attributes = self._notice(self.random)
        self.random.choice(self.publishers).publish(attributes)

    def _begin_to_publish(self, i: int) -> None:
        """A publisher comes, and publishes before anybody has heard of its advertisement."""
        random = self.confirms
        client = self.world.add_client(f"q{i}", random.choice(self.brokers))
        client.advertise("exists location")
        for _ in range(random.choice([1, 3])):
            client.publish(self._notice(random))
        if random.random() < 0.3 and not self.faults:  # a goodbye may be lost
            client.detach(leave=True)

    def _notice(self, random: Random) -> dict[str, Value]:
        name = random.choice(list(self.places.places))
        attributes: dict[str, Value] = {
            "location": name,
            "topic": random.choice(TOPICS),
            "level": random.randint(0, 9),
        }
        position = self.places.places[name].position
        if position is not None and random.random() < 0.5:
            attributes["lat"], attributes["lon"] = position
        return attributes

    def _stalls(self, random: Random) -> Faults:
        """Now and then one broker is stopped for a while."""
        if random.random() < 0.7:
            return Faults()
        at_ns, for_ns = random.randrange(self.until_ns), random.choice([1, 10]) * 100 * MS_NS
        return Faults(stalls=(Stall(random.choice(self.brokers), at_ns, for_ns),))

    def _attempt_in_vain(self, _: None) -> None:
        """A walker attaches several times before any broker has greeted it, and then where it is."""
        random = self.attempts
        walker = random.choice(self.walkers)
        here = self.places.places[walker.core.following.state.location].broker or ""
        others = random.sample(self.brokers, k=min(2, len(self.brokers)))
        stays = failed_attempts(random, [here, *others], self.world.now)
        play(self.world, walker.name, [*stays[:-1], Stay(here, stays[-1].from_ns)])

    # Running

    def run(self) -> Verdict:
        world = self.world
        world.run_until(self.until_ns + 3 * SECOND_NS)
        for walker in self.walkers:
            if walker.connection is None:
                walker.attach()
        world.settle()
        judge = Judge(world, self.places, self.areas, complete=not self.faults)
        verdict = check_deliveries(judge.ordinary, reach(world))
        found = [*verdict.violations, *judge.violations(), *check_quiet(world)]
        found += [*ghosts(world), *self.watch.found]
        return msgspec.structs.replace(
            verdict,
            violations=tuple(found),
            delivered=sum(event.kind == "delivered" for event in world.events),
            required=verdict.required + judge.required,
        )
