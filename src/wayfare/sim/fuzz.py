"""Random runs: any tree, any clients, anything they may do, at any time; the oracle judges.

A run follows from its seed and the routing strategy, so a failure is a seed.
"""

from __future__ import annotations

from random import Random

import msgspec

from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.predicates import Value
from wayfare.sim import topology
from wayfare.sim.faults import Faults
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, LinkSpec
from wayfare.sim.movement import Stay, play, random_walk
from wayfare.sim.oracle import Verdict, Violation, check
from wayfare.sim.world import World

TOPICS = ("gas", "oil", "wind")
NAMES = ("a", "ab", "abc", "b", "ba")
HIGHEST = 12  # numbers are drawn from 0 to this


class Run(msgspec.Struct, frozen=True):
    """A random run and what came of it."""

    seed: int
    routing: str
    faults: bool
    brokers: int
    clients: int
    messages: int
    verdict: Verdict

    def command(self) -> str:
        """What runs it again."""
        faults = " --faults" if self.faults else ""
        return (
            f"wayfare sim fuzz --seeds 1 --first-seed {self.seed} --routing {self.routing}{faults}"
        )


def random_predicate(random: Random) -> str:
    n, m = sorted((random.randint(0, HIGHEST), random.randint(0, HIGHEST)))
    return random.choice(
        [
            f"topic = '{random.choice(TOPICS)}'",
            f"topic in ('{random.choice(TOPICS)}', '{random.choice(TOPICS)}')",
            f"topic <> '{random.choice(TOPICS)}'",
            f"price > {n}",
            f"price <= {m}",
            f"price between {n} and {m}",
            f"price = {n}",
            f"name prefix '{random.choice(NAMES)}'",
            f"name like '%{random.choice(NAMES)}_'",
            "exists name",
            "name is null",
            f"near({random.randint(-2, 2)}, {random.randint(-2, 2)}, {random.choice([50, 200])}000)",
        ]
    )


def random_filter(random: Random) -> Filter:
    """Few words, so that filters often equal, cover, overlap and merge."""

    def conjunction() -> str:
        return " and ".join(random_predicate(random) for _ in range(random.choice([1, 1, 2, 3])))

    return Filter.parse(" or ".join(conjunction() for _ in range(random.choice([1, 1, 1, 2]))))


def random_attributes(random: Random) -> dict[str, Value]:
    attributes: dict[str, Value] = {}
    if random.random() < 0.9:
        attributes["topic"] = random.choice(TOPICS)
    if random.random() < 0.9:
        attributes["price"] = random.randint(0, HIGHEST) + random.choice([0, 0, 0.5])
    if random.random() < 0.5:
        attributes["name"] = random.choice(NAMES)
    if random.random() < 0.3:
        attributes["lat"], attributes["lon"] = random.uniform(-2, 2), random.uniform(-2, 2)
    return attributes


class Fuzz:
    """One random run in the making."""

    def __init__(self, seed: int, routing: str, with_faults: bool) -> None:
        self.random = random = Random(f"{seed} {routing}")
        self.world = World(seed, routing, limits=self._limits())
        size = random.choice([1, 2, 3, random.randint(4, 12), random.randint(4, 30)])
        if random.random() < 0.03:
            size = random.randint(31, 100)
        self.world.add_brokers(topology.random_tree(random, size))
        self._shape_links()
        self.until_ns = random.choice([1, 3, 10]) * size * 60 * MS_NS
        brokers = list(self.world.brokers)
        self.clients = [
            self.world.add_client(f"c{i}", random.choice(brokers), attach=False)
            for i in range(random.randint(2, 10))
        ]
        for client in self.clients:
            play(self.world, client.name, self._stays(client))
        if with_faults:
            names = [client.name for client in self.clients]
            edges = self.world.edges
            self.world.plan(Faults.random(random, brokers, edges, names, self.until_ns))

    def _limits(self) -> Limits:
        if self.random.random() < 0.2:
            window = self.random.choice([64, 256])
            return Limits(backlog_count=self.random.randint(1, 5), window=window)
        return Limits()

    def _shape_links(self) -> None:
        for a, b in self.world.edges:
            spec = LinkSpec(
                latency_ns=self.random.randint(1, 30) * MS_NS,
                jitter_ns=self.random.choice([0, 0, 10 * MS_NS]),
                bandwidth_bps=self.random.choice([None, None, 1_000_000]),
            )
            for pipe in self.world.link(a, b):
                pipe.shape(spec)

    def _stays(self, client: ClientHost) -> list[Stay]:
        """Some clients never go away; those that do come back to where they were."""
        if self.random.random() < 0.5:
            return [Stay(client.home, 0)]
        long = self.until_ns // 3 + 2
        return random_walk(self.random, [client.home], self.until_ns, (1, long), (0, long // 2))

    def run(self) -> Verdict:
        random, agenda = self.random, self.world.agenda
        for time in [random.randrange(self.until_ns) for _ in range(random.choice([20, 60, 150]))]:
            agenda.at(time, self._act)
        self.world.run_until(self.until_ns)
        for client in self.clients:
            if client.connection is None and not client.left:
                client.attach()
        self.world.settle()
        if any(client.left for client in self.clients):
            # A goodbye may have been lost; then the session ends when it has been away for too long.
            self.world.run_until(self.world.now + 2 * self.world.limits.away_ns)
        for client in self.clients:
            if client.connection is None and not client.left:
                self.world.broken.append(f"{client.name} could not stay attached")
        return check(self.world)

    def _act(self, _: None) -> None:
        """One client does something that it may do."""
        random = self.random
        client = random.choice(self.clients)
        subscriptions, advertisements = client.core.subscriptions, client.core.advertisements
        draw = random.random()
        if draw < 0.12 or not subscriptions:
            client.subscribe(random_filter(random))
        elif draw < 0.20:
            client.unsubscribe(random.choice(list(subscriptions)))
        elif draw < 0.30 or not advertisements:
            client.advertise(random_filter(random))
        elif draw < 0.35:
            client.unadvertise(random.choice(list(advertisements)))
        elif draw < 0.36 and client.connection is not None:
            client.detach(leave=True)
        else:
            for attributes in [random_attributes(random) for _ in range(random.choice([1, 1, 3]))]:
                if any(filter.matches(attributes) for filter in advertisements):
                    client.publish(attributes)


def fuzz(seed: int, routing: str, faults: bool = False) -> Run:
    """The random run of this seed."""
    one = Fuzz(seed, routing, faults)
    try:
        verdict = one.run()
    except Exception as error:  # a failure is a seed, whatever failed
        crash = Violation("crash", f"{type(error).__name__}: {error}")
        verdict = Verdict((crash,), 0, 0, 0, 0)
    world = one.world
    return Run(
        seed, routing, faults, len(world.brokers), len(world.clients), world.messages(), verdict
    )
