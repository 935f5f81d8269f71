"""The city of the publisher mobility paper: publishers drive along a row of brokers.

    warm up     everybody attaches at a random leaf, publishers begin to drive; nothing is measured
    measure     publishers cross from cell to cell, and publish some probes after each arrival
    settle      nobody moves or publishes any more, what is under way arrives

The leaves of a balanced tree stand in a row, one cell each. A publisher starts anywhere in its cell,
takes one cell after the other at its speed, and at each border goes back with probability `turn`: by
default, left or right at random. At the ends of the row there is one way only. So it crosses a border
every `cell_km / speed`, and the time that it is disconnected then is part of that.

What a move costs is every entry of an `Update` on every link between brokers, as the paper counts
messages. When the tree of a publisher is complete is read from the brokers' tables: from its new
broker on, every table on the way to every broker with a subscriber shows that way. It may look complete
and fall apart again, while the old tree is still being torn down; the last time counts.
"""

from __future__ import annotations

from random import Random

import msgspec

from wayfare.core.broker import PUBLISHER_RELOCATIONS
from wayfare.core.effects import Received
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import BrokerId, ClientId, Update
from wayfare.core.predicates import Value
from wayfare.core.publishers import Forecast
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.sim import topology
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, LinkSpec
from wayfare.sim.roaming import path, percentile
from wayfare.sim.world import World

SECOND_NS = 1000 * MS_NS
HOUR_NS = 3600 * SECOND_NS
ALGORITHMS = ("handoff", *PUBLISHER_RELOCATIONS)
TREES = {85: (4, 4), 341: (5, 4), 1365: (6, 4)}  # brokers -> height, degree
MANY = 1365  # brokers; a larger tree takes minutes to build
ATTACHING_NS = 10 * SECOND_NS  # in which everybody attaches, at the beginning of the warm-up
SAMPLE_NS = 10 * SECOND_NS  # between two looks at the tables
STARTS = {
    "spread": "anywhere in their cells",
    "together": "all cross the first border when the warm-up ends",
    "cold": "all attach when the warm-up ends, and what they publish then is measured, too",
}
KINDS = ("advertisements", "unadvertisements", "subscriptions", "unsubscriptions", "errands")


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment, as published unless told otherwise."""

    algorithm: str = "handoff"
    routing: str = "covering"
    seed: int = 0
    height: int = 4
    degree: int = 4
    publishers: int = 50
    subscribers: int = 500
    speed_kmh: float = 50.0
    cell_km: float = 0.5
    turn: float = 0.5  # share of borders where a publisher goes back to where it came from
    away_ns: int = 3 * SECOND_NS  # between two cells
    probes: int = 20  # after each arrival
    probe_first_ns: int = 200 * MS_NS
    probe_every_ns: int = 200 * MS_NS
    minutes: float = 10.0  # that are measured
    warm_up_ns: int = 60 * SECOND_NS
    start: str = "spread"  # STARTS: how publishers begin
    jitter_ns: int = 0  # of each stay: up to so much shorter or longer
    locality: float = 0.0  # share of publishers with the same publication
    delay_ns: int = 10 * SECOND_NS
    proxies: int = 5  # that are closest to the first broker, and that broker is one of them
    overshoot: int | None = None  # brokers beyond its proxies that a publisher goes; None: any
    broker_bps: int = 256_000
    broker_latency_ns: int = 10 * MS_NS
    client_bps: int = 128_000
    client_latency_ns: int = 2 * MS_NS
    message_bytes: int = 512  # that a message takes on a link, if it is not longer

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UsageError(
                f"unknown algorithm {self.algorithm!r}: choose one of {', '.join(ALGORITHMS)}"
            )
        if self.routing not in STRATEGIES or STRATEGIES[self.routing].floods:
            names = [name for name, one in STRATEGIES.items() if not one.floods]
            raise UsageError(f"routing is one of {', '.join(names)}: without tables, no trees")
        if self.start not in STARTS:
            raise UsageError(f"unknown start {self.start!r}: choose one of {', '.join(STARTS)}")
        for name in ("publishers", "subscribers", "degree", "probes", "proxies"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is at least 1")
        if self.height < 2 or self.degree < 2:
            raise UsageError("height and degree are at least 2: who drives needs somewhere to go")
        if sum(self.degree**level for level in range(min(self.height, MANY + 1))) > MANY:
            raise UsageError(
                f"a tree of height {self.height} and degree {self.degree} has more than {MANY}"
                " brokers: take a smaller one"
            )
        for name in self.__struct_fields__:
            if name.endswith("_ns") and getattr(self, name) < 0:
                raise UsageError(f"{name.removesuffix('_ns')} is a time, and not negative")
        if self.delay_ns < 1:
            raise UsageError("delay is above 0: without one, delayed is standard")
        if self.warm_up_ns < ATTACHING_NS:
            raise UsageError(f"warm_up is at least {ATTACHING_NS // SECOND_NS} s: all attach in it")
        if not 0 < self.minutes <= 24 * 60:
            raise UsageError("minutes is above 0, and a day at most")
        for name in ("locality", "turn"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is a share from 0 to 1")
        if self.overshoot is not None and self.overshoot < 0:
            raise UsageError("overshoot is a number of brokers, and not negative")
        if self.overshoot == 0 and self.proxies == 1:
            raise UsageError("with one proxy and no overshoot nobody could move: raise one of them")
        if not 0 <= self.message_bytes <= 100_000:
            raise UsageError("message_bytes is a number of bytes, up to 100,000")
        if not (0 < self.speed_kmh <= 1e6 and 0 < self.cell_km <= 1e6):
            raise UsageError("speed and cell are above 0")
        shortest_ns = self.period_ns() - self.away_ns - self.jitter_ns
        if shortest_ns < self.probing_ns():
            raise UsageError(
                f"at {self.speed_kmh:g} km/h a publisher may stay {shortest_ns / 1e9:.1f} s only in a"
                f" cell, but its probes take {self.probing_ns() / 1e9:.1f} s: drive slower, send fewer"
            )

    def period_ns(self) -> int:
        """From one crossing of a border to the next."""
        return int(self.cell_km / self.speed_kmh * HOUR_NS)

    def probing_ns(self) -> int:
        """From its attachment until its last probe."""
        return self.probe_first_ns + (self.probes - 1) * self.probe_every_ns


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Entries in the tables of the brokers at one depth, from neighbours and from sessions."""

    depth: int  # 0: the root
    brokers: int
    ads_mean: float
    ads_max: int
    subs_mean: float
    subs_max: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, of the time that was measured."""

    algorithm: str
    routing: str
    seed: int
    brokers: int
    publishers: int
    subscribers: int
    speed_kmh: float
    moves: int  # arrivals
    control: dict[str, int]  # entries and errands, by kind, on every link between brokers
    control_total: int
    control_per_move: float | None
    control_by_hops: dict[int, float] | None  # a move, by its path; None: publications are shared
    link_messages: int  # that they travelled in
    link_messages_per_move: float | None
    probes: int
    expected: int  # deliveries
    delivered: int  # ... that happened
    lost: int
    duplicates: int
    delivery_ratio: float | None
    probe_ratio: list[float | None]  # by index
    rebuilds: int  # stays that were looked at
    rebuild_unfinished: int  # the publisher was off again before
    rebuild_p50_ms: float | None
    rebuild_p99_ms: float | None
    rebuild_max_ms: float | None
    delivery_p50_ms: float | None
    delivery_p90_ms: float | None
    delivery_p99_ms: float | None
    delivery_max_ms: float | None
    state: list[State]
    link_load_max: float  # of the link between brokers that has most to carry; 1: all the time
    link_worst_ms: float  # that a message took for one hop between brokers


def run(parameters: Parameters) -> Figures:
    """Play one experiment."""
    return City(parameters).run()


# The run

Edge = tuple[str, str]  # a broker, and the neighbour that its table has to show


class Publication:
    """What a publisher offers, or several with the same publication."""

    def __init__(self, topic: str) -> None:
        self.attributes: dict[str, Value] = {"topic": topic}
        self.filter = Filter.parse(f"topic = '{topic}'")
        self.subscribers = 0
        self.borders: dict[str, None] = {}  # where they are
        self.offered_by: list[Publisher] = []
        self.trees: dict[str, frozenset[Edge]] = {}  # by the broker of the publisher


class Probe(msgspec.Struct, frozen=True, gc=False):
    """A publication that is measured."""

    index: int
    time_ns: int


class Stay:
    """A publisher at a broker, and what its tree still lacks."""

    __slots__ = ("complete_at", "measured", "missing", "needed", "since")

    def __init__(self, since: int, needed: frozenset[Edge], *, measured: bool) -> None:
        self.since = since
        self.needed = needed
        self.missing: set[Edge] = set()  # for membership only
        self.complete_at = since  # the last time that `missing` became empty
        self.measured = measured


class Publisher:
    """A publisher, where it is in the row, and what it sent."""

    def __init__(self, host: ClientHost, offer: Publication, walk: Random, at: int) -> None:
        self.host = host
        self.offer = offer
        self.walk = walk
        self.at = at  # which leaf; between two of them, the next one
        self.low = self.high = at  # how far it goes
        self.step = walk.choice((-1, 1))  # to the left, or to the right
        self.stay: Stay | None = None  # None: it is away, or was never there
        self.sent: list[Probe | None] = []  # by number; None: not measured
        # Of its last move: how far, and what it has cost so far; no hops: it is not measured.
        self.hops = self.control = 0


class City:
    """One experiment in its world."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = p = parameters
        # Not the world's: so all algorithms see the same ways.
        self.random = Random(p.seed)
        self.world = World(
            p.seed,
            p.routing,
            Limits(delay_ns=p.delay_ns),
            _link(p.broker_latency_ns, p.broker_bps, p.message_bytes),
            _link(p.client_latency_ns, p.client_bps, p.message_bytes),
            relocation=p.algorithm,
            forecast=Forecast(self._next_broker, self._proxies),
        )
        self.world.add_brokers(topology.balanced(p.height, p.degree))
        self.above = {child: parent for parent, child in self.world.edges}
        self.row = topology.leaves(self.world.edges)
        self.place = {leaf: i for i, leaf in enumerate(self.row)}
        same = Publication("same")
        shared = round(p.locality * p.publishers)
        self.offers = [
            same if i < shared else Publication(f"t{i}") for i in range(p.publishers)
        ]  # of each publisher
        self.by_filter = {one.filter: one for one in self.offers}
        self.publishers: dict[str, Publisher] = {}
        for i in range(p.subscribers):
            self._add_subscriber(i)
        for i in range(p.publishers):
            self._add_publisher(i)
        for sender, receiver in self.world.pipes:
            self._watch(sender, receiver)

        self.moving = True
        self.measuring = False
        self.unique = shared == 0 and p.routing != "merging"  # so an entry tells whose it is
        self.control = dict.fromkeys(KINDS, 0)
        self.link_messages = 0
        self.moves = 0
        self.by_hops: dict[int, list[int]] = {}  # path -> moves, and their control
        self.expected = [0] * p.probes  # by index
        self.got = [0] * p.probes
        self.duplicates = 0
        self.seen: dict[tuple[str, str], int] = {}  # subscriber, publisher -> numbers, as bits
        self.delivery_ns: list[int] = []
        self.rebuild_ns: list[int] = []
        self.unfinished = 0
        self.tables: dict[str, list[tuple[int, int]]] = {name: [] for name in self.world.brokers}

    # Building

    def _add_subscriber(self, i: int) -> None:
        publication = self.random.choice(self.offers)
        leaf = self.random.choice(self.row)
        publication.subscribers += 1
        publication.borders[leaf] = None
        client = self.world.add_client(f"s{i}", leaf, attach=False)
        client.subscribe(publication.filter)
        self.world.agenda.at(self.random.randrange(ATTACHING_NS), lambda _: client.attach())

    def _add_publisher(self, i: int) -> None:
        p, last = self.parameters, len(self.row) - 1
        at = self.random.randrange(len(self.row))
        client = self.world.add_client(f"p{i}", self.row[at], attach=False)
        walk = Random(self.random.getrandbits(64))
        one = self.publishers[client.name] = Publisher(client, self.offers[i], walk, at)
        one.low, one.high = 0, last
        self.offers[i].offered_by.append(one)
        if p.overshoot is not None:
            near = [self.place[leaf] for leaf in self._proxies(BrokerId(self.row[at]))]
            one.low = max(0, near[0] - p.overshoot)
            one.high = min(last, near[-1] + p.overshoot)
        first = self.random.randrange(ATTACHING_NS)
        # It starts anywhere in its cell, but not before its first probes are out.
        leaves = first + p.probing_ns() + self.random.randrange(p.period_ns())
        begin = p.warm_up_ns + 1 + walk.randrange(p.jitter_ns + 1)
        if p.start == "together":
            leaves = begin
        elif p.start == "cold":
            first, leaves = begin, begin + p.period_ns() - p.away_ns
        self.world.agenda.at(first, self._come, one)
        self.world.agenda.at(leaves, self._go, one)

    def _watch(self, sender: str, receiver: str) -> None:
        """Look at every update that a broker has handled."""
        receive = self.world.brokers[receiver].receive

        def received(event: Received) -> None:
            receive(event)
            if type(event.message) is Update:
                self._on_update(event.message, (receiver, sender))

        self.world.pipes[sender, receiver].receive = received

    # What the network knows of its clients' ways

    def _next_broker(self, client: ClientId, _: BrokerId) -> BrokerId | None:
        publisher = self.publishers.get(client)
        return None if publisher is None else BrokerId(self.row[publisher.at])

    def _proxies(self, home: BrokerId) -> list[BrokerId]:
        """So many leaves around this one, itself among them."""
        count = min(self.parameters.proxies, len(self.row))
        first = min(max(0, self.place[home] - count // 2), len(self.row) - count)
        return [BrokerId(leaf) for leaf in self.row[first : first + count]]

    # Driving

    def run(self) -> Figures:
        p, world = self.parameters, self.world
        world.run_until(p.warm_up_ns)
        for pipe in world.pipes.values():
            pipe.worst_ns = 0
        carried = {ends: pipe.bytes for ends, pipe in world.pipes.items()}
        self.measuring = True
        end = p.warm_up_ns + int(p.minutes * 60 * SECOND_NS)
        while world.now < end:
            world.run_until(min(end, world.now + SAMPLE_NS))
            self._read_deliveries()
            self._look_at_tables()
        bits = max(pipe.bytes - carried[ends] for ends, pipe in world.pipes.items()) * 8
        load = bits / (p.broker_bps * p.minutes * 60)
        worst_ns = max(pipe.worst_ns for pipe in world.pipes.values())
        self.measuring = self.moving = False
        world.settle()
        self._read_deliveries()
        for one in self.publishers.values():
            self._end_stay(one)
        return self._figures(load, worst_ns)

    def _come(self, one: Publisher) -> None:
        if not self.moving:
            return
        p, world, leaf = self.parameters, self.world, self.row[one.at]
        one.host.attach(leaf)
        if not one.sent:  # proxies are told when a client advertises that is attached
            one.host.advertise(one.offer.filter)
        measured = self.measuring and one.hops > 0
        self.moves += measured
        measured = measured or (p.start == "cold" and not one.sent)
        stay = one.stay = Stay(world.now, self._tree(one.offer, leaf), measured=measured)
        stay.missing = {edge for edge in stay.needed if not self._shows(edge, one.offer)}
        for index in range(p.probes):
            at = world.now + p.probe_first_ns + index * p.probe_every_ns
            world.agenda.at(at, self._probe, (one, index))

    def _go(self, one: Publisher) -> None:
        if not self.moving:
            return
        self._end_stay(one)
        if one.hops:
            of_path = self.by_hops.setdefault(one.hops, [0, 0])
            of_path[0] += 1
            of_path[1] += one.control
        old = self.row[one.at]
        if one.walk.random() < self.parameters.turn:
            one.step = -one.step
        if not one.low <= one.at + one.step <= one.high:
            one.step = -one.step
        one.at += one.step
        one.control = 0
        one.hops = len(path(self.world.edges, old, self.row[one.at])) if self.measuring else 0
        one.host.detach()
        agenda, now = self.world.agenda, self.world.now
        agenda.at(now + self.parameters.away_ns, self._come, one)
        longer = one.walk.randint(-self.parameters.jitter_ns, self.parameters.jitter_ns)
        agenda.at(now + self.parameters.period_ns() + longer, self._go, one)

    def _probe(self, probe: tuple[Publisher, int]) -> None:
        one, index = probe
        if not self.moving:
            return
        assert one.stay is not None
        one.host.publish(one.offer.attributes)
        if self.measuring:
            self.expected[index] += one.offer.subscribers
        one.sent.append(Probe(index, self.world.now) if self.measuring else None)

    # Trees

    def _tree(self, offer: Publication, leaf: str) -> frozenset[Edge]:
        """Which tables have to show where, for what is published at this leaf."""
        if leaf not in offer.trees:
            edges: set[Edge] = set()
            for border in offer.borders:
                here, there = leaf, border
                ways_up, ways_down = [], []
                while here != there:  # all leaves are at the same depth
                    ways_up.append((here, self.above[here]))
                    ways_down.append((self.above[there], there))
                    here, there = self.above[here], self.above[there]
                edges.update(ways_up, ways_down)
            offer.trees[leaf] = frozenset(edges)
        return offer.trees[leaf]

    def _shows(self, edge: Edge, offer: Publication) -> bool:
        broker, neighbour = edge
        core = self.world.brokers[broker].core
        place = core.neighbours.index(BrokerId(neighbour))
        found = core.routing.destinations.find(offer.attributes)
        return any(place in audience.counts for audience in found)

    def _end_stay(self, one: Publisher) -> None:
        stay, one.stay = one.stay, None
        if stay is None or not stay.measured:
            return
        if stay.missing:
            self.unfinished += 1
        else:
            self.rebuild_ns.append(stay.complete_at - stay.since)

    # Counting

    def _on_update(self, update: Update, edge: Edge) -> None:
        """A broker has handled an update of its neighbour."""
        parts = (update.add_ads, update.remove_ads, update.add_subs, update.remove_subs)
        if self.measuring:
            self.link_messages += 1
            for kind, part in zip(KINDS, (*parts, update.errands), strict=True):
                if part:
                    self.control[kind] += len(part)
        if self.unique:
            for part in parts:
                for entry in part:
                    self.by_filter[entry.filter].offered_by[0].control += 1
            for errand in update.errands:
                self.publishers[errand.client].control += 1
        for part in (update.add_subs, update.remove_subs):
            for entry in part:
                for offer in self._offers(entry.filter):
                    self._look_again(offer, edge)

    def _offers(self, filter: Filter) -> list[Publication]:
        """Which ones an entry may be about: merging words several of them as one."""
        offer = self.by_filter.get(filter)
        return [*self.by_filter.values()] if offer is None else [offer]

    def _look_again(self, offer: Publication, edge: Edge) -> None:
        shown: bool | None = None
        for one in offer.offered_by:
            stay = one.stay
            if stay is None or edge not in stay.needed:
                continue
            if shown is None:
                shown = self._shows(edge, offer)
            if not shown:
                stay.missing.add(edge)
            elif edge in stay.missing:
                stay.missing.discard(edge)
                if not stay.missing:
                    stay.complete_at = self.world.now

    def _read_deliveries(self) -> None:
        """What the log says, which is then forgotten: it would grow too long."""
        for event in self.world.events:
            if event.kind != "delivered":
                continue
            assert event.client is not None and event.publisher is not None
            assert event.number is not None
            probe = self.publishers[event.publisher].sent[event.number - 1]
            if probe is None:
                continue
            key, bit = (event.client, event.publisher), 1 << event.number
            seen = self.seen.get(key, 0)
            if seen & bit:
                self.duplicates += 1
                continue
            self.seen[key] = seen | bit
            self.got[probe.index] += 1
            self.delivery_ns.append(event.time_ns - probe.time_ns)
        self.world.events.clear()
        for client in self.world.clients.values():
            client.received.clear()

    def _look_at_tables(self) -> None:
        for name, host in self.world.brokers.items():
            routing, border = host.core.routing, host.core.border
            ads = sum(map(len, routing.in_ads.values()))
            subs = sum(map(len, routing.in_subs.values()))
            for session in border.all():
                ads += len(session.advertisements)
                subs += len(session.subscriptions)
            self.tables[name].append((ads, subs))

    def _figures(self, load: float, worst_ns: int) -> Figures:
        p = self.parameters
        total = sum(self.control.values())
        expected, delivered = sum(self.expected), sum(self.got)
        ratios = [_ratio(got, all) for got, all in zip(self.got, self.expected, strict=True)]
        by_hops = {hops: round(cost / n, 3) for hops, (n, cost) in sorted(self.by_hops.items())}
        self.rebuild_ns.sort()
        self.delivery_ns.sort()
        return Figures(
            algorithm=p.algorithm,
            routing=p.routing,
            seed=p.seed,
            brokers=len(self.world.brokers),
            publishers=p.publishers,
            subscribers=p.subscribers,
            speed_kmh=p.speed_kmh,
            moves=self.moves,
            control=self.control,
            control_total=total,
            control_per_move=_ratio(total, self.moves, 3),
            control_by_hops=by_hops if self.unique else None,
            link_messages=self.link_messages,
            link_messages_per_move=_ratio(self.link_messages, self.moves, 3),
            probes=sum(one is not None for who in self.publishers.values() for one in who.sent),
            expected=expected,
            delivered=delivered,
            lost=expected - delivered,
            duplicates=self.duplicates,
            delivery_ratio=_ratio(delivered, expected),
            probe_ratio=ratios,
            rebuilds=len(self.rebuild_ns) + self.unfinished,
            rebuild_unfinished=self.unfinished,
            rebuild_p50_ms=_ms(self.rebuild_ns, 50),
            rebuild_p99_ms=_ms(self.rebuild_ns, 99),
            rebuild_max_ms=_ms(self.rebuild_ns, 100),
            delivery_p50_ms=_ms(self.delivery_ns, 50),
            delivery_p90_ms=_ms(self.delivery_ns, 90),
            delivery_p99_ms=_ms(self.delivery_ns, 99),
            delivery_max_ms=_ms(self.delivery_ns, 100),
            state=[self._state(depth) for depth in range(p.height)],
            link_load_max=round(load, 4),
            link_worst_ms=round(worst_ns / MS_NS, 3),
        )

    def _state(self, depth: int) -> State:
        names = [name for name in self.world.brokers if self._depth(name) == depth]
        seen = [tables for name in names for tables in self.tables[name]]
        ads, subs = [ads for ads, _ in seen], [subs for _, subs in seen]
        return State(
            depth=depth,
            brokers=len(names),
            ads_mean=round(sum(ads) / len(ads), 2),
            ads_max=max(ads),
            subs_mean=round(sum(subs) / len(subs), 2),
            subs_max=max(subs),
        )

    def _depth(self, broker: str) -> int:
        depth = 0
        while broker in self.above:
            broker, depth = self.above[broker], depth + 1
        return depth


def _link(latency_ns: int, bandwidth_bps: int, least_bytes: int) -> LinkSpec:
    return LinkSpec(latency_ns=latency_ns, bandwidth_bps=bandwidth_bps, least_bytes=least_bytes)


def _ratio(part: int, whole: int, digits: int = 5) -> float | None:
    return round(part / whole, digits) if whole else None


def _ms(times: list[int], percent: int) -> float | None:
    time = percentile(times, percent)
    return None if time is None else round(time / MS_NS, 3)
