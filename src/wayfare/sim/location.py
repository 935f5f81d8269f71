"""Clients that go from broker to broker and follow their location: what they find where they arrive.

    build        a tree of brokers whose leaves are places; publishers anywhere, which speak of all places
    warm up      clients attach, and walk
    measure      they go on walking (`ways`); brokers listen ahead where nlb says
    settle       everything that is under way arrives

Who arrives at a place wants what was said of it in the last minute: the share of that which it gets is
what listening ahead is for. Its price is what replicators post to each other, what brokers say to each
other, and what is kept. All of that, and what may not happen, is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from wayfare.core.history import Limits
from wayfare.core.messages import BrokerId, ClientId, State, Terms
from wayfare.core.reduction import STRATEGIES
from wayfare.core.virtual import Ahead, Learning
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.quiet import ghosts
from wayfare.sim.traffic import Log, Traffic, tables
from wayfare.sim.ways import Way, Ways, random_ways, read
from wayfare.sim.world import World

NLB = {
    "none": "nobody listens ahead",
    "mined": "the likeliest next ones, as far as they cover the moves that were learnt",
    "learnt": "those that brokers have found likely by themselves since the start",
    "neighbours": "all that are next by the movement graph",
    "all": "every place",
}
Next = Callable[[BrokerId], Sequence[BrokerId]]
Listens = Callable[[ClientId, int, BrokerId, BrokerId], bool]  # as World.listens_for
FOLLOWED = "location in myloc"
SAMPLE_NS = 5 * SECOND_NS  # between two looks at what is kept
SOON_NS = SECOND_NS  # what comes so soon is there on arrival; and what is under way settles in it
DAY = 24 * 60  # minutes
SIDES = range(2, 31)


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    nlb: str = "mined"
    coverage: float = 0.9  # of the moves, by those that are mined or learnt
    routing: str = "covering"
    seed: int = 0
    ways: str | None = None  # a file of ways, in place of random ones
    side: int = 6  # of a square of places
    walkers: int = 10
    dwell_ns: int = 60 * SECOND_NS  # that a walker stays, on average
    habit: float = 0.8  # share of moves to the usual next place; of the rest, to the second ...
    jump: float = 0.05  # share of moves to anywhere
    away_ns: int = SECOND_NS  # between two brokers
    minutes: float = 5.0  # that are measured
    publishers: int = 8
    rate: float = 0.2  # publications of each place, per second
    horizon_ns: int = 60 * SECOND_NS  # of the past that who arrives wants
    remembered: int = 1_000  # notifications that each broker remembers of what it routed; 0: none
    degree: int = 4  # of the tree
    link_latency_ns: int = 10 * MS_NS  # between brokers

    def __post_init__(self) -> None:
        if self.nlb not in NLB:
            raise UsageError(f"unknown nlb {self.nlb!r}: choose one of {', '.join(NLB)}")
        if self.routing not in STRATEGIES:
            raise UsageError(f"unknown routing {self.routing!r}: one of {', '.join(STRATEGIES)}")
        if not 0 < self.coverage <= 1:
            raise UsageError("coverage is a share above 0, up to 1")
        for name in ("habit", "jump"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is a share from 0 to 1")
        for name in ("walkers", "publishers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is at least 1")
        if self.side not in SIDES:
            raise UsageError(f"side is from 2 to {SIDES[-1]}: who walks needs somewhere to go")
        if self.remembered < 0:
            raise UsageError("remembered is a number of notifications, and not negative")
        if self.degree < 2:
            raise UsageError("degree is at least 2")
        if self.dwell_ns < SECOND_NS or self.horizon_ns < SECOND_NS:
            raise UsageError("dwell and horizon are at least 1,000 ms")
        if self.away_ns < 0 or self.link_latency_ns < 0:
            raise UsageError("away and link-latency are times, and not negative")
        if not 0 < self.minutes <= DAY:
            raise UsageError("minutes is above 0, and a day at most")
        if not 0.001 <= self.rate <= 1_000:
            raise UsageError("rate is a number of publications per second, from 0.001 to 1,000")

    def warm_up_ns(self) -> int:
        """Everybody has attached by then, and was listened for as long as matters."""
        return self.dwell_ns + self.horizon_ns

    def until_ns(self) -> int:
        return self.warm_up_ns() + int(self.minutes * 60 * SECOND_NS)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, of the time that was measured."""

    nlb: str
    routing: str
    seed: int
    places: int
    brokers: int
    walkers: int
    moves: int
    foreseen: float | None  # share of the moves that went where somebody was to listen ahead
    wanted: int  # of the last minute before an arrival, and not known yet
    available: int  # ... that came on arrival
    share: float | None
    unforeseen: int  # of the wanted ones: where nobody was to listen ahead
    fetched: int  # ... that came on arrival
    fetched_share: float | None
    published: int
    expected: int  # live: of a place while somebody is there
    delivered: int  # all that came
    past: int  # ... of these, as of the past
    lost: int  # expected live, and did not come
    duplicates: int
    strays: int  # deliveries of another place than where the client is
    order_violations: int  # of what is live
    gaps: int
    posted: int  # messages between replicators
    posted_per_move: float | None
    control: int  # messages on links that are no notifications
    control_per_move: float | None
    notifications: int  # on links
    notifications_per_move: float | None
    messages_per_move: float | None  # all three
    messages_per_minute: float  # ... of one client
    virtual_mean: float  # virtual clients of one client
    kept_mean: float  # notifications in the store of a place's broker, on average
    kept_peak: int  # ... and at most
    ids_mean: float  # ids in all buffers of a place's broker
    ids_peak: int
    subs_mean: float  # entries from neighbours in the tables of a broker, at the end
    subs_max: int
    ghosts: int  # what is left of walkers that have left


def run(parameters: Parameters, log: Log | None = None) -> Figures:
    """Play one experiment; `log` gets all that happened."""
    return Location(parameters, log).run()


def ways_of(p: Parameters) -> Ways:
    if p.ways is not None:
        return read(p.ways)
    return random_ways(
        p.seed,
        side=p.side,
        walkers=p.walkers,
        until_ns=p.until_ns(),
        dwell_ns=p.dwell_ns,
        habit=p.habit,
        jump=p.jump,
    )


def next_ones(p: Parameters, ways: Ways) -> Next:
    """nlb, as a function."""
    everywhere = [BrokerId(name) for name in ways.names()]
    return {
        "none": lambda _broker: (),
        "learnt": lambda _broker: (),  # at first
        "mined": lambda broker: ways.movement.successors(broker, p.coverage),
        "neighbours": ways.places.next_brokers,
        "all": lambda _broker: everywhere,
    }[p.nlb]


class Location:
    """One experiment in its world."""

    def __init__(self, parameters: Parameters, log: Log | None = None) -> None:
        self.parameters = p = parameters
        self.log = log
        self.random = Random(f"location {p.seed}")
        self.ways = ways_of(p)
        self.places = self.ways.names()
        learning = Learning(p.coverage) if p.nlb == "learnt" else None
        self.world = World(
            p.seed,
            p.routing,
            limits=Limits(past_count=p.remembered),
            broker_link=LinkSpec(latency_ns=p.link_latency_ns),
            ahead=Ahead(self.ways.places, next_ones(p, self.ways), learning=learning),
        )
        self.world.add_brokers(topology.above(self.places, p.degree))
        if log is not None:
            self.world.log_tree()
        self.publishers = [self._add_publisher(i) for i in range(p.publishers)]
        self.world.settle()
        self.walkers = [self._add_walker(*one) for one in self._walkers()]
        self.samples: list[tuple[int, int, int]] = []  # of a broker: virtual clients, kept, ids

    def _walkers(self) -> list[tuple[str, Way]]:
        return list(self.ways.ways.items())[: self.parameters.walkers]

    def _add_publisher(self, i: int) -> ClientHost:
        client = self.world.add_client(f"p{i}", self.random.choice(self.places))
        client.advertise("exists location")
        return client

    def _add_walker(self, name: str, way: Way) -> ClientHost:
        p, agenda = self.parameters, self.world.agenda
        walker = self.world.add_client(name, way[0][1], attach=False)
        # What came in the last moment before the horizon is still there when its client is.
        walker.follow(FOLLOWED, Terms(younger_ns=p.horizon_ns + SOON_NS))
        for at, (time, place) in enumerate(way):
            if time >= p.until_ns():
                break
            if at:
                agenda.at(max(time - p.away_ns, (way[at - 1][0] + time) // 2), self._go, walker)
            agenda.at(time, self._come, (walker, place))
        return walker

    def _go(self, walker: ClientHost) -> None:
        walker.detach()

    def _come(self, there: tuple[ClientHost, str]) -> None:
        walker, place = there
        walker.be(State(place))
        walker.attach(place)

    def run(self) -> Figures:
        p, world = self.parameters, self.world
        every_ns = int(SECOND_NS / p.rate)
        for place in self.places:
            for at in range(world.now + self.random.randrange(every_ns), p.until_ns(), every_ns):
                world.agenda.at(at, self._publish, place)
        world.run_until(p.warm_up_ns())
        self.traffic = Traffic(world, logged=self.log is not None)
        while world.now < p.until_ns():
            world.run_until(min(p.until_ns(), world.now + SAMPLE_NS))
            self._sample()
        world.settle()
        self.traffic.end()
        figures = self._figures()
        if self.log is not None:
            self.log(world.events)
        return msgspec.structs.replace(figures, ghosts=len(list(ghosts(world))))

    def _publish(self, place: str) -> None:
        self.random.choice(self.publishers).publish({"location": place})

    def _sample(self) -> None:
        for place in self.places:
            replicator = self.world.brokers[place].core.replicator
            ear = replicator.ear
            ids = sum(map(len, ear.buffers()))
            self.samples.append((len(replicator.virtual), len(ear.store.kept), ids))

    def _figures(self) -> Figures:
        p, traffic = self.parameters, self.traffic
        judge = Judge(p.horizon_ns, traffic.since, self.world.listens_for)
        names = [one.name for one in self.walkers]
        found = judge.judge(self.world.events, names)
        virtual, kept, ids = zip(*self.samples, strict=True)
        subs = [tables(host)[1] for host in self.world.brokers.values()]
        messages = traffic.posted + traffic.control + traffic.notifications
        return Figures(
            nlb=p.nlb,
            routing=p.routing,
            seed=p.seed,
            places=len(self.places),
            brokers=len(self.world.brokers),
            walkers=len(names),
            moves=found.moves,
            foreseen=_ratio(found.foreseen, found.moves, 5),
            wanted=found.wanted,
            available=found.available,
            share=_ratio(found.available, found.wanted, 5),
            unforeseen=found.unforeseen,
            fetched=found.fetched,
            fetched_share=_ratio(found.fetched, found.unforeseen, 5),
            published=found.published,
            expected=found.expected,
            delivered=found.delivered,
            past=found.past,
            lost=found.lost,
            duplicates=found.duplicates,
            strays=found.strays,
            order_violations=found.order_violations,
            gaps=found.gaps,
            posted=traffic.posted,
            posted_per_move=_ratio(traffic.posted, found.moves),
            control=traffic.control,
            control_per_move=_ratio(traffic.control, found.moves),
            notifications=traffic.notifications,
            notifications_per_move=_ratio(traffic.notifications, found.moves),
            messages_per_move=_ratio(messages, found.moves),
            messages_per_minute=round(messages / p.minutes / len(names), 3),
            virtual_mean=round(sum(virtual) * len(self.places) / len(virtual) / len(names), 3),
            kept_mean=round(sum(kept) / len(kept), 3),
            kept_peak=max(kept),
            ids_mean=round(sum(ids) / len(ids), 3),
            ids_peak=max(ids),
            subs_mean=round(sum(subs) / len(subs), 3),
            subs_max=max(subs),
            ghosts=0,
        )


def _ratio(part: int, whole: int, digits: int = 3) -> float | None:
    return round(part / whole, digits) if whole else None


# The event log


class Found(msgspec.Struct):
    """What the event log says of the walkers, in the time that is measured."""

    moves: int = 0
    foreseen: int = 0
    wanted: int = 0
    available: int = 0
    unforeseen: int = 0
    fetched: int = 0
    published: int = 0
    expected: int = 0
    delivered: int = 0
    past: int = 0
    lost: int = 0
    duplicates: int = 0
    order_violations: int = 0
    strays: int = 0
    gaps: int = 0


Key = tuple[str, int]  # publisher, number


class Stay(msgspec.Struct):
    place: str
    since: int
    until: int


class Walker:
    """Where one is, was, and what it got."""

    def __init__(self) -> None:
        self.location = ""
        self.broker: str | None = None
        self.epoch = 0  # of its last attachment
        self.left = 0  # when it went from there
        self.stays: list[Stay] = []
        self.got: set[Key] = set()  # for membership only
        self.last: dict[str, int] = {}  # publisher -> the highest number that it got
        self.wanted: set[Key] = set()  # for membership only; since its last move
        self.until = 0  # what is wanted has to come by then
        self.foreseen = False  # whether somebody was to listen where it is


class Judge:
    """Compares what walkers got with what they wanted."""

    def __init__(self, horizon_ns: int, since_ns: int, listens: Listens) -> None:
        self.horizon_ns, self.since_ns, self.listens = horizon_ns, since_ns, listens
        self.found = Found()
        self.published: dict[Key, int] = {}  # when
        self.of_place: dict[str, list[tuple[int, Key]]] = {}

    def judge(self, events: list[Event], names: list[str]) -> Found:
        walkers = {name: Walker() for name in names}
        for event in events:
            if event.kind == "published":
                self._on_published(event)
                continue
            walker = walkers.get(event.client or "")
            if walker is None:
                continue
            if event.kind == "became":
                walker.location = event.location or ""
            elif event.kind == "attached":
                self._on_attached(walker, event)
            elif event.kind == "detached":
                walker.stays[-1].until = walker.left = event.time_ns
            elif event.kind == "delivered":
                self._on_delivered(walker, event)
            elif event.kind == "lost":
                self.found.gaps += event.time_ns >= self.since_ns
        for walker in walkers.values():
            self._count_live(walker, events[-1].time_ns)
        return self.found

    def _on_published(self, event: Event) -> None:
        assert event.client is not None and event.number is not None and event.attributes
        key = event.client, event.number
        self.published[key] = event.time_ns
        place = str(event.attributes["location"])
        self.of_place.setdefault(place, []).append((event.time_ns, key))
        self.found.published += event.time_ns >= self.since_ns

    def _on_attached(self, walker: Walker, event: Event) -> None:
        assert event.broker is not None
        now, there = event.time_ns, event.broker
        moved = walker.broker is not None and walker.left >= self.since_ns
        walker.wanted.clear()
        if moved:
            assert walker.broker is not None
            said = self.of_place.get(there, [])
            recent = said[bisect_left(said, now - self.horizon_ns, key=lambda one: one[0]) :]
            walker.wanted.update(key for _, key in recent if key not in walker.got)
            walker.until = now + SOON_NS
            self.found.moves += 1
            client, before = ClientId(event.client or ""), BrokerId(walker.broker)
            walker.foreseen = self.listens(client, walker.epoch, before, BrokerId(there))
            self.found.foreseen += walker.foreseen
            self.found.wanted += len(walker.wanted)
            self.found.unforeseen += 0 if walker.foreseen else len(walker.wanted)
        walker.broker, walker.epoch = there, event.epoch or 0
        walker.stays.append(Stay(there, now, now))

    def _on_delivered(self, walker: Walker, event: Event) -> None:
        assert event.publisher is not None and event.number is not None and event.attributes
        key, found, past = (event.publisher, event.number), self.found, event.reason == "past"
        measured = self.published[key] >= self.since_ns
        if key in walker.got:
            found.duplicates += measured
        else:
            found.delivered += measured
            found.past += measured and past
            late = event.number < walker.last.get(event.publisher, 0)
            found.order_violations += measured and late and not past
        found.strays += event.attributes["location"] != walker.location
        in_time = key in walker.wanted and event.time_ns <= walker.until
        found.available += in_time
        found.fetched += in_time and not walker.foreseen
        walker.wanted.discard(key)
        walker.got.add(key)
        walker.last[event.publisher] = max(event.number, walker.last.get(event.publisher, 0))

    def _count_live(self, walker: Walker, end: int) -> None:
        """What was said of a place while it was there, and not just when it came or went."""
        if walker.stays and walker.stays[-1].until == walker.stays[-1].since:
            walker.stays[-1].until = end
        for stay in walker.stays:
            for time, key in self.of_place.get(stay.place, []):
                if max(stay.since + SOON_NS, self.since_ns) <= time <= stay.until - SOON_NS:
                    self.found.expected += 1
                    self.found.lost += key not in walker.got
