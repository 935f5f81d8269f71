"""The city of the publisher mobility paper: publishers drive along a row of brokers.

    warm up     everybody attaches at a random leaf, publishers begin to drive; nothing is measured
    measure     publishers cross from cell to cell, and publish some probes after each arrival
    settle      nobody moves or publishes any more, what is under way arrives

The leaves of a balanced tree stand in a row, one cell each. A publisher starts anywhere in its cell,
takes one cell after the other at its speed, and at each border goes back with probability `turn`: by
default, left or right at random. At the ends of the row there is one way only. So it crosses a border
every `cell_km / speed`, and the time that it is disconnected then is part of that.

What a move costs is every entry of an `Update` on every link between brokers, as the paper counts
messages. When the tree of a publisher is complete is read from the brokers' tables (`trees.py`).
"""

from __future__ import annotations

from random import Random

import msgspec

from wayfare.core.effects import Received
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import BrokerId, ClientId, Convene, PastReply, PastRequest, Update
from wayfare.core.predicates import Value
from wayfare.core.prediction import Movement
from wayfare.core.publishers import Forecast
from wayfare.errors import UsageError
from wayfare.sim import topology
from wayfare.sim.deliveries import percentile
from wayfare.sim.experiment import ATTACHING_NS, Figures, Parameters, State
from wayfare.sim.hosts import BrokerHost, ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.traffic import Log
from wayfare.sim.trees import Edge, Stay, Trees
from wayfare.sim.world import World

SAMPLE_NS = 10 * SECOND_NS  # between two looks at the tables
KINDS = ("advertisements", "unadvertisements", "subscriptions", "unsubscriptions", "errands")


def run(
    parameters: Parameters, log: Log | None = None, movement: Movement | None = None
) -> Figures:
    """Play one experiment; `log` gets all that happened, a bit at a time.

    Without a model of movement, the network knows where its publishers go.
    """
    return City(parameters, log, movement).run()


# The run


class Publication:
    """What a publisher offers, or several with the same publication."""

    def __init__(self, topic: str, brokers: dict[str, BrokerHost], above: dict[str, str]) -> None:
        self.attributes: dict[str, Value] = {"topic": topic}
        self.filter = Filter.parse(f"topic = '{topic}'")
        self.subscribers = 0
        self.offered_by: list[Publisher] = []
        self.trees = Trees(self.attributes, brokers, above)


class Probe(msgspec.Struct, frozen=True, gc=False):
    """A publication that is measured."""

    index: int
    time_ns: int


class Publisher:
    """A publisher, where it is in the row, and what it sent."""

    def __init__(self, host: ClientHost, offer: Publication, walk: Random, at: int) -> None:
        self.host = host
        self.offer = offer
        self.walk = walk
        self.at = at  # which leaf; between two of them, the next one
        self.visits: list[tuple[BrokerId, int]] = []  # the last two: where, and since when
        self.low = self.high = at  # how far it goes
        self.step = walk.choice((-1, 1))  # to the left, or to the right
        self.stay: Stay | None = None  # None: it is away, or was never there
        self.sent: list[Probe | None] = []  # by number; None: not measured
        # Of its last move: how far, and what it has cost so far; no hops: it is not measured.
        self.hops = self.control = 0


class City:
    """One experiment in its world."""

    def __init__(
        self, parameters: Parameters, log: Log | None = None, movement: Movement | None = None
    ) -> None:
        self.parameters = p = parameters
        self.log = log
        self.movement = movement
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
        if log is not None:
            self.world.log_tree()
        self.above = {child: parent for parent, child in self.world.edges}
        self.row = topology.leaves(self.world.edges)
        self.place = {leaf: i for i, leaf in enumerate(self.row)}
        if movement is not None and self.place.keys().isdisjoint(movement.brokers()):
            raise UsageError(
                "the model knows no broker of this city: mine one from a log of `wayfare sim city`"
            )
        shared = round(p.locality * p.publishers)
        same = self._publication("same")
        self.offers = [
            same if i < shared else self._publication(f"t{i}") for i in range(p.publishers)
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

    def _publication(self, topic: str) -> Publication:
        return Publication(topic, self.world.brokers, self.above)

    def _add_subscriber(self, i: int) -> None:
        publication = self.random.choice(self.offers)
        leaf = self.random.choice(self.row)
        publication.subscribers += 1
        publication.trees.borders[leaf] = None
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

    def _next_broker(self, client: ClientId, broker: BrokerId) -> BrokerId | None:
        one = self.publishers.get(client)
        if one is None:
            return None
        if self.movement is None:
            return BrokerId(self.row[one.at])
        before = one.visits[0][0] if len(one.visits) > 1 else None
        previous = self.movement.previous(before, self.world.now - one.visits[-1][1])
        there = self.movement.next_broker(broker, previous, client)
        return there if there in self.place else None  # it may have been learnt in another city

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
        if self.log is not None:  # what happened just when the warm-up ended is not measured
            world.log("measured", since_ns=p.warm_up_ns + 1)
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
        one.visits = [*one.visits[-1:], (BrokerId(leaf), world.now)]
        if not one.sent:  # proxies are told when a client advertises that is attached
            one.host.advertise(one.offer.filter)
        measured = self.measuring and one.hops > 0
        self.moves += measured
        measured = measured or (p.start == "cold" and not one.sent)
        one.stay = one.offer.trees.begin(leaf, world.now, measured=measured)
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
        one.hops = (
            len(topology.path(self.world.edges, old, self.row[one.at])) if self.measuring else 0
        )
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

    def _end_stay(self, one: Publisher) -> None:
        stay, one.stay = one.stay, None
        if stay is None:
            return
        one.offer.trees.end(stay)
        if not stay.measured:
            return
        time = stay.rebuild_ns()
        if time is None:
            self.unfinished += 1
        else:
            self.rebuild_ns.append(time)

    # Counting

    def _on_update(self, update: Update, edge: Edge) -> None:
        """A broker has handled an update of its neighbour."""
        parts = (update.add_ads, update.remove_ads, update.add_subs, update.remove_subs)
        if self.log is not None:
            counts = zip(KINDS, map(len, (*parts, update.errands)), strict=True)
            entries = {kind: count for kind, count in counts if count}
            self.world.log("updated", sender=edge[1], receiver=edge[0], entries=entries)
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
                if not isinstance(errand, Convene | PastRequest | PastReply):  # of no publisher
                    self.publishers[errand.client].control += 1
        for part in (update.add_subs, update.remove_subs):
            for entry in part:
                for offer in self._offers(entry.filter):
                    offer.trees.look_again(edge, self.world.now)

    def _offers(self, filter: Filter) -> list[Publication]:
        """Which ones an entry may be about: merging words several of them as one."""
        offer = self.by_filter.get(filter)
        return [*self.by_filter.values()] if offer is None else [offer]

    def _read_deliveries(self) -> None:
        """What the log says, which is then passed on and forgotten: it would grow too long."""
        if self.log is not None:
            self.log(self.world.events)
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
            if self.log is not None:
                entries = {"advertisements": ads, "subscriptions": subs}
                self.world.log("tables", broker=name, entries=entries)

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
