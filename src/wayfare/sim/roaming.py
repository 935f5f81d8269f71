"""Clients that roam: what a relocation strategy costs, and what it loses.

    build, settle       a balanced tree, publishers and movers at its leaves
    publish             every publisher at its own pace, until the last move is over
      move              each mover from leaf to leaf, together or one at a time
    settle              everything that is under way arrives

What was expected, lost, or came twice is read from the event log: a mover's subscription stands from
before the first publication until after the last, so it has to get every one that matches, wherever
it is. Messages between brokers are counted as they are put on links. Before the first move all is
settled, and nobody but the movers does anything that brokers would tell each other; so whatever they
say, other than notifications, is the price of moving.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from wayfare.core.broker import RELOCATIONS
from wayfare.errors import UsageError
from wayfare.sim import topology
from wayfare.sim.deliveries import judge, percentile
from wayfare.sim.hosts import NOTICE_NS, ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.traffic import Log, Traffic, tables
from wayfare.sim.world import CLIENT_LINK, World

TREES = {7: (3, 2), 85: (4, 4), 341: (5, 4)}  # brokers -> height, degree
MANY = 1365  # brokers; a larger tree takes minutes to build
TOPICS = 4  # of publications; a mover wants one of them, from some value on
VALUES = 100  # of publications: 0 to 99
WANTED_FROM = (0, 25, 50)  # so that movers' filters are equal, cover each other, or are apart
SAMPLE_NS = 10 * MS_NS  # between two looks at the buffers

# What a comparison has unless told otherwise: enough to see, few enough to wait for.
COMPARED_MOVERS = {7: 10, 85: 10, 341: 6}  # by brokers
COMPARED = {"moves": 5, "dwell_ns": 500 * MS_NS, "away_ns": 250 * MS_NS}


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment. Times are means: of dwell half of it to one and a half, of away 0 to twice."""

    relocation: str = "handoff"
    routing: str = "covering"
    seed: int = 0
    height: int = 4
    degree: int = 4
    publishers: int = 12
    movers: int = 20
    moves: int = 10  # of each mover
    dwell_ns: int = 1000 * MS_NS  # attached, between two moves
    away_ns: int = 500 * MS_NS  # between two attachments
    rate: float = 20.0  # publications of each publisher, per second
    link_latency_ns: int = 10 * MS_NS  # between brokers
    silent: float = 0.5  # share of departures that are not announced
    one_at_a_time: bool = False  # every move settles before the next one begins

    def __post_init__(self) -> None:
        for name in ("publishers", "movers", "moves", "degree"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is at least 1")
        if self.height < 2:
            raise UsageError("height is at least 2: who moves needs somewhere to go")
        if sum(self.degree**level for level in range(min(self.height, MANY + 1))) > MANY:
            raise UsageError(
                f"a tree of height {self.height} and degree {self.degree} has more than {MANY}"
                " brokers: take a smaller one"
            )
        for name in ("dwell_ns", "away_ns", "link_latency_ns"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name.removesuffix('_ns')} is a time, and not negative")
        if not 0.001 <= self.rate <= 1_000_000:
            raise UsageError("rate is a number of publications per second, from 0.001 to 1,000,000")
        if not 0 <= self.silent <= 1:
            raise UsageError("silent is a share from 0 to 1")

    def for_brokers(self, brokers: int) -> Parameters:
        """The same on the balanced tree of so many brokers."""
        if brokers not in TREES:
            sizes = ", ".join(map(str, TREES))
            raise UsageError(f"brokers is one of {sizes}; any other tree has a height and a degree")
        height, degree = TREES[brokers]
        return replace(self, height=height, degree=degree)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. Latencies are counted from the attachment after a move."""

    relocation: str
    routing: str
    seed: int
    brokers: int
    published: int
    expected: int  # deliveries to movers
    delivered: int  # ... that happened, duplicates too
    lost: int  # expected, but never delivered
    duplicates: int
    order_violations: int
    gaps: int  # times that a mover was told of a loss
    moves: int
    hops: int  # of all paths between an old broker and the new one
    control: int  # messages between brokers that are no notifications
    control_per_move: float
    control_per_hop: float
    control_off_path: int | None  # None: moves overlap, so nobody knows which one it was for
    notifications: int  # between brokers
    tunnelled: int  # of these, deliveries on their way to a client elsewhere
    acknowledgements: int  # ... and what comes back for them
    live_p50_ms: float | None  # until the first one published after the attachment
    live_p99_ms: float | None
    live_p50_links: float | None  # ... in latencies of a link
    live_p99_links: float | None
    first_p50_ms: float | None  # until the first one at all
    first_p99_ms: float | None
    first_p50_links: float | None
    first_p99_links: float | None
    moves_without_live: int  # the mover was off again before a live one came
    subs_max: int  # entries from neighbours in the tables of one broker, at the end
    subs_mean: float
    ads_max: int
    ads_mean: float
    buffer_peak: int  # notifications kept for movers by all brokers at one moment


def run(parameters: Parameters, log: Log | None = None) -> Figures:
    """Play one experiment; `log` gets all that happened."""
    return Roaming(parameters, log).run()


def comparison(
    brokers: Iterable[int] = TREES, relocations: Iterable[str] = RELOCATIONS, **given: Any
) -> Iterator[Parameters]:
    """The experiments of the table: every strategy on every tree, moves one at a time."""
    relocations = list(relocations)
    for size in brokers:
        few = COMPARED | {"movers": COMPARED_MOVERS[size]}
        for relocation in relocations:
            one = Parameters(**few | given, relocation=relocation, one_at_a_time=True)
            yield one.for_brokers(size)


# The run


class Move(msgspec.Struct):
    """One move, and what brokers said to each other for it."""

    mover: str
    path: topology.Edges  # between the old broker and the new one
    control: int = 0
    off_path: int = 0


class Roaming:
    """One experiment in its world."""

    def __init__(self, parameters: Parameters, log: Log | None = None) -> None:
        self.parameters = parameters
        self.log = log
        # Not the world's: so all strategies see the same publications and the same moves.
        self.random = Random(parameters.seed)
        self._values = Random(parameters.seed)  # of publications
        self.world = World(
            parameters.seed,
            parameters.routing,
            broker_link=LinkSpec(latency_ns=parameters.link_latency_ns),
            relocation=parameters.relocation,
        )
        self.world.add_brokers(topology.balanced(parameters.height, parameters.degree))
        if log is not None:
            self.world.log_tree()
        self.leaves = topology.leaves(self.world.edges)
        self.publishers = [self._add_publisher(i) for i in range(parameters.publishers)]
        self.movers = [self._add_mover(i) for i in range(parameters.movers)]
        self.world.settle()
        self.publishing = False
        self.buffer_peak = 0
        self.moves: list[Move] = []  # those that were alone
        self._last_control = 0  # when a message was last counted as control
        self.traffic = Traffic(self.world, logged=log is not None, on_control=self._on_control)

    def _topic(self, i: int) -> str:
        return f"t{i % min(TOPICS, self.parameters.publishers)}"

    def _add_publisher(self, i: int) -> ClientHost:
        client = self.world.add_client(f"p{i}", self.random.choice(self.leaves))
        client.advertise(f"topic = '{self._topic(i)}' and value >= 0")
        return client

    def _add_mover(self, i: int) -> ClientHost:
        client = self.world.add_client(f"m{i}", self.random.choice(self.leaves))
        low = self.random.choice(WANTED_FROM)
        client.subscribe(f"topic = '{self._topic(i)}' and value >= {low}")
        return client

    def run(self) -> Figures:
        self.publishing = True
        every_ns = int(SECOND_NS / self.parameters.rate)
        for i in range(len(self.publishers)):
            self.world.agenda.at(self.world.now + self.random.randrange(every_ns), self._publish, i)
        self._sample(None)
        if self.parameters.one_at_a_time:
            self._move_one_at_a_time()
        else:
            self._move_together()
        self.publishing = False
        self.world.settle()
        figures = self._figures()
        if self.log is not None:
            self.traffic.end()
            self.log(self.world.events)
        return figures

    # Publishers

    def _publish(self, i: int) -> None:
        if self.publishing:
            value = self._values.randrange(VALUES)
            self.publishers[i].publish({"topic": self._topic(i), "value": value})
            every_ns = int(SECOND_NS / self.parameters.rate)
            self.world.agenda.at(self.world.now + every_ns, self._publish, i)

    # Movers

    def _move_together(self) -> None:
        """Every mover at its own pace, which is the same whatever the strategy does."""
        agenda, start = self.world.agenda, self.world.now
        last = start
        for mover in self.movers:
            broker = mover.home
            at = start + self.random.randrange(self.parameters.dwell_ns + 1)
            for _ in range(self.parameters.moves):
                agenda.at(at, self._go_silently if self._is_silent() else self._go, mover)
                at += self._away_ns()
                broker = self._elsewhere(broker)
                agenda.at(at, self._come, (mover, broker))
                at += self._dwell_ns()
            last = max(last, at)
        self.world.run_until(last)

    def _move_one_at_a_time(self) -> None:
        world = self.world
        self.world.run_until(world.now + self._dwell_ns())
        for _ in range(self.parameters.moves):
            for mover in self.movers:
                broker = self._elsewhere(mover.home)
                self.moves.append(Move(mover.name, topology.path(world.edges, mover.home, broker)))
                (self._go_silently if self._is_silent() else self._go)(mover)
                world.run_until(world.now + self._away_ns())
                self._come((mover, broker))
                self._last_control = world.now
                world.run_until(world.now + self._dwell_ns())
                self._wait_until_settled()

    def _wait_until_settled(self) -> None:
        """Until no broker has said anything for longer than anybody needs for an answer."""
        hop_ns = self.parameters.link_latency_ns + CLIENT_LINK.latency_ns
        quiet_ns = 2 * (hop_ns + NOTICE_NS)
        while self._last_control + quiet_ns > self.world.now:
            self.world.run_until(self._last_control + quiet_ns)

    def _go(self, mover: ClientHost) -> None:
        mover.detach()

    def _go_silently(self, mover: ClientHost) -> None:
        mover.disconnect()

    def _come(self, there: tuple[ClientHost, str]) -> None:
        mover, broker = there
        mover.attach(broker)

    def _elsewhere(self, broker: str) -> str:
        return self.random.choice([leaf for leaf in self.leaves if leaf != broker])

    def _is_silent(self) -> bool:
        return self.random.random() < self.parameters.silent

    def _dwell_ns(self) -> int:
        mean = self.parameters.dwell_ns
        return self.random.randint(mean // 2, mean + mean // 2)

    def _away_ns(self) -> int:
        return self.random.randint(0, 2 * self.parameters.away_ns)

    # Counting

    def _on_control(self, sender: str, receiver: str) -> None:
        self._last_control = self.world.now
        if self.moves:
            move = self.moves[-1]
            move.control += 1
            on_path = (sender, receiver) in move.path or (receiver, sender) in move.path
            move.off_path += not on_path

    def _sample(self, _: None) -> None:
        kept = 0
        for host in self.world.brokers.values():
            for session in host.core.border.all():
                kept += len(session.backlog)
                if session.wait is not None:
                    old = session.wait.old.values()
                    kept += len(session.wait.held) + sum(len(one.kept) for one in old)
        self.buffer_peak = max(self.buffer_peak, kept)
        if self.publishing:
            self.world.agenda.at(self.world.now + SAMPLE_NS, self._sample)

    def _figures(self) -> Figures:
        parameters, world = self.parameters, self.world
        found = judge(world.events, [mover.name for mover in self.movers])
        hops = sum(len(topology.path(world.edges, old, new)) for old, new in found.moves)
        ads, subs = zip(*map(tables, world.brokers.values()), strict=True)
        alone = parameters.one_at_a_time
        return Figures(
            relocation=parameters.relocation,
            routing=parameters.routing,
            seed=parameters.seed,
            brokers=len(world.brokers),
            published=found.published,
            expected=found.expected,
            delivered=found.delivered,
            lost=found.lost,
            duplicates=found.duplicates,
            order_violations=found.order_violations,
            gaps=found.gaps,
            moves=len(found.moves),
            hops=hops,
            control=self.traffic.control,
            control_per_move=round(self.traffic.control / len(found.moves), 3),
            control_per_hop=round(self.traffic.control / hops, 3),
            control_off_path=sum(move.off_path for move in self.moves) if alone else None,
            notifications=self.traffic.notifications,
            tunnelled=self.traffic.tunnelled,
            acknowledgements=self.traffic.acknowledgements,
            **_latencies("live", found.live_ns, parameters.link_latency_ns),
            **_latencies("first", found.first_ns, parameters.link_latency_ns),
            moves_without_live=len(found.moves) - len(found.live_ns),
            subs_max=max(subs),
            subs_mean=round(sum(subs) / len(subs), 3),
            ads_max=max(ads),
            ads_mean=round(sum(ads) / len(ads), 3),
            buffer_peak=self.buffer_peak,
        )


def _latencies(name: str, times: list[int], link_ns: int) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for percent in (50, 99):
        time = percentile(times, percent)
        in_links = time is not None and link_ns > 0
        out[f"{name}_p{percent}_ms"] = None if time is None else round(time / MS_NS, 3)
        out[f"{name}_p{percent}_links"] = round((time or 0) / link_ns, 3) if in_links else None
    return out
