"""Where to keep the past of a place, and which part of it: what clients find on arrival, and what it costs.

    build        a tree of brokers whose leaves are places; publishers at leaves, each of which speaks of some places
    warm up      publishers publish, and clients walk from place to place
    measure      they go on; each wants something of what was published about the place where it arrives
    settle       everything that is under way arrives

    border       brokers listen ahead where the client may go: virtual clients keep what its terms say
    publisher    the brokers of the publishers remember; the client asks for the past when it arrives (`since`)
    junction     inner brokers remember instead, as far as something passes them because somebody wants it
    collector    ... and a client at the root subscribes to everything, so that all of it passes them
    none         nothing is kept: the client subscribes when it arrives

What a client wants is computed from the publications alone (`application_profiles`), and compared with the event log.
It wants what counts when it arrives and still does when the past could have come: what is replaced meanwhile need not
be delivered, and may be.
"""

from __future__ import annotations

from bisect import bisect_right
from math import ceil
from random import Random

import msgspec
from msgspec.structs import replace

from wayfare.core.history import Limits
from wayfare.core.memory import BODY_BYTES, ENTRY_BYTES
from wayfare.core.messages import AnyMessage, PastReply, PastRequest, Recalled, State, Update
from wayfare.core.predicates import Value
from wayfare.core.reduction import STRATEGIES
from wayfare.core.virtual import Ahead
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.application_profiles import APPLICATIONS, POLICIES, Said
from wayfare.sim.hosts import BrokerHost, ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.quiet import ghosts
from wayfare.sim.traffic import Log, Traffic, tables
from wayfare.sim.ways import Way, random_ways
from wayfare.sim.world import CLIENT_LINK, World, innermost

PLACEMENTS = {
    "none": "nothing is kept",
    "border": "virtual clients at the next brokers",
    "publisher": "brokers with publishers",
    "junction": "inner brokers, of what passes",
    "collector": "inner brokers, with a client at the root that subscribes to everything",
}
SIDES = range(2, 13)
SAMPLE_NS = 5 * SECOND_NS  # between two looks at what is kept
SOON_NS = 3 * SECOND_NS  # a client waits for the past for two seconds at most
WARM_UP_NS = 360 * SECOND_NS  # longer than warnings are valid
BUSY = (0.25, 1.0, 2.5)  # a place has so many times the usual rate
DAY = 24 * 60  # minutes


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    application: str = "parking"  # APPLICATIONS
    policy: str = "fitting"  # POLICIES
    placement: str = "border"  # PLACEMENTS
    routing: str = "covering"
    seed: int = 0
    side: int = 4  # of a square of places
    walkers: int = 6
    dwell_ns: int = 60 * SECOND_NS  # that a walker stays, on average
    habit: float = 0.8  # share of moves to the usual next place; of the rest, to the second ...
    jump: float = 0.05  # share of moves to anywhere
    away_ns: int = SECOND_NS  # between two brokers
    minutes: float = 10.0  # that are measured
    spread: int = 1  # places of which a publisher speaks
    past_count: int = 2000  # notifications that a broker remembers which is to do so
    degree: int = 4  # of the tree
    link_latency_ns: int = 10 * MS_NS  # between brokers

    def __post_init__(self) -> None:
        for name, known in (
            ("application", APPLICATIONS),
            ("policy", POLICIES),
            ("placement", PLACEMENTS),
            ("routing", STRATEGIES),
        ):
            if getattr(self, name) not in known:
                raise UsageError(
                    f"unknown {name} {getattr(self, name)!r}: choose one of {', '.join(known)}"
                )
        if self.side not in SIDES:
            raise UsageError(f"side is from 2 to {SIDES[-1]}")
        for name in ("habit", "jump"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is a share from 0 to 1")
        for name in ("walkers", "spread", "past_count"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is at least 1")
        if self.degree < 2:
            raise UsageError("degree is at least 2")
        if self.dwell_ns < 10 * SECOND_NS:
            raise UsageError("dwell is at least 10,000 ms")
        if not 0 <= self.away_ns <= self.dwell_ns or self.link_latency_ns < 0:
            raise UsageError("away and link-latency are times, and away is at most dwell")
        if not 0 < self.minutes <= DAY:
            raise UsageError("minutes is above 0, and a day at most")

    def until_ns(self) -> int:
        return WARM_UP_NS + int(self.minutes * 60 * SECOND_NS)

    def under_way_ns(self) -> int:
        """The past may take so long to come: requests go to the publishers' brokers and back, perhaps twice."""
        there_ns = 2 * self.height() * self.link_latency_ns
        return 2 * 2 * there_ns + 4 * CLIENT_LINK.latency_ns

    def height(self) -> int:
        """Hops from a place to the root."""
        width, levels = self.side**2, 0
        while width > 1:
            width, levels = ceil(width / self.degree), levels + 1
        return levels

    @property
    def asks(self) -> bool:
        """Whether clients ask for the past when they arrive."""
        return self.placement in ("publisher", "junction", "collector")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, of the time that was measured."""

    application: str
    policy: str
    placement: str
    routing: str
    seed: int
    places: int
    brokers: int
    walkers: int
    moves: int
    published: int
    wanted: int  # on arrival, by what the application says, and not known yet
    available: int  # ... that came soon
    share: float | None
    unwanted: int  # published before an arrival, delivered after it, and not wanted
    unwanted_share: float | None  # of all that was published before and delivered after
    delay_ms: float | None  # from an arrival until the last of what is wanted is there, on average
    delay_max_ms: float | None
    reported: (
        float | None
    )  # share of the arrivals whose client got a gap: the past may be incomplete
    silent: int  # arrivals where something was missing, and no gap reported it
    kept_mean: float  # notifications that all brokers keep
    kept_peak: int
    bytes_mean: float  # ... and what they occupy, as brokers estimate it
    bytes_peak: int
    expected: int  # live: of a place while somebody is there
    lost: int  # ... and did not come
    delivered: int
    duplicates: int
    strays: int  # deliveries of another place than where the client is
    order_violations: int
    gaps: int
    posted: int  # messages between replicators
    control: int  # messages on links that are no notifications
    requests: int  # ... of these, requests for the past, and replies
    replayed: int  # notifications of the past that crossed a link, or went between replicators
    notifications: int  # on links, live
    control_per_move: float | None  # with what replicators post
    requests_per_move: float | None
    replayed_per_move: float | None
    notifications_per_move: float | None
    messages_per_move: float | None  # control messages, posted messages and notifications
    subs_max: int  # entries from neighbours in the tables of a broker, at the end
    ghosts: int  # what is left of walkers that have left


def run(parameters: Parameters, log: Log | None = None) -> Figures:
    """Play one experiment; `log` gets all that happened."""
    return Placement(parameters, log).run()


class Placement:
    """One experiment in its world."""

    def __init__(self, parameters: Parameters, log: Log | None = None) -> None:
        self.parameters = p = parameters
        self.log = log
        self.application = APPLICATIONS[p.application]
        self.terms = self.application.terms(p.policy)
        self.random = Random(f"placement {p.seed}")
        self.ways = random_ways(
            p.seed,
            side=p.side,
            walkers=p.walkers,
            until_ns=p.until_ns(),
            dwell_ns=p.dwell_ns,
            habit=p.habit,
            jump=p.jump,
        )
        self.places = self.ways.names()
        places = self.ways.places
        ahead = Ahead(places, places.next_brokers if p.placement == "border" else lambda _: ())
        self.world = World(
            p.seed, p.routing, broker_link=LinkSpec(latency_ns=p.link_latency_ns), ahead=ahead
        )
        edges = topology.above(self.places, p.degree)
        homes = [self.random.choice(self.places) for _ in range(ceil(len(self.places) / p.spread))]
        self.world.add_brokers(edges, own=self._limits(homes, edges))
        if log is not None:
            self.world.log_tree()
        self.publishers = [self._add_publisher(i, home) for i, home in enumerate(homes)]
        if p.placement == "collector":
            self.world.add_client("collector", edges[0][0]).subscribe(
                "exists location", current=False
            )
        self.world.settle()
        self.here: dict[str, str] = {}  # of each walker: the filter that it subscribes to
        self.walkers = [self._add_walker(*one) for one in self.ways.ways.items()]
        self.samples: list[tuple[int, int]] = []  # notifications that are kept, and bytes
        self.requests = self.replayed = 0

    def _limits(self, homes: list[str], edges: topology.Edges) -> dict[str, Limits]:
        """Which brokers remember."""
        remember = {
            "publisher": list(dict.fromkeys(homes)),
            "junction": list(dict.fromkeys(one for one, _ in edges)),
        }
        remember["collector"] = remember["junction"]
        limits = Limits(past_count=self.parameters.past_count)
        return dict.fromkeys(remember.get(self.parameters.placement, []), limits)

    def _add_publisher(self, i: int, home: str) -> ClientHost:
        client = self.world.add_client(f"p{i}", home)
        spread = self.parameters.spread
        for place in self.places[i * spread : (i + 1) * spread]:
            client.advertise(_about(place))
        return client

    def _add_walker(self, name: str, way: Way) -> ClientHost:
        p, agenda = self.parameters, self.world.agenda
        walker = self.world.add_client(name, way[0][1], attach=False)
        if p.placement == "border":
            walker.follow("location in myloc", self.terms)
        for at, (time, place) in enumerate(way):
            if time >= p.until_ns():
                break
            if at:
                agenda.at(max(time - p.away_ns, (way[at - 1][0] + time) // 2), self._go, walker)
            agenda.at(time, self._come, (walker, place))
        return walker

    def _go(self, walker: ClientHost) -> None:
        if walker.name in self.here:
            walker.unsubscribe(self.here.pop(walker.name))
        walker.detach()

    def _come(self, there: tuple[ClientHost, str]) -> None:
        p, (walker, place) = self.parameters, there
        walker.be(State(place))
        if p.placement != "border":
            here = self.here[walker.name] = _about(place)
            since_ns = self.application.since_ns(p.policy) if p.asks else 0
            walker.subscribe(here, self.terms, since_ns, current=False)
        walker.attach(place)

    def run(self) -> Figures:
        p, world = self.parameters, self.world
        for i, place in enumerate(self.places):
            self._plan(self.publishers[i // p.spread], place)
        world.run_until(WARM_UP_NS)
        self.traffic = Traffic(world, logged=self.log is not None)
        world.watchers.append(self._watch)
        while world.now < p.until_ns():
            world.run_until(min(p.until_ns(), world.now + SAMPLE_NS))
            self.samples.append(self._kept())
        world.settle()
        world.watchers.remove(self._watch)
        self.traffic.end()
        figures = self._figures()
        if self.log is not None:
            self.log(world.events)
        return replace(figures, ghosts=len(list(ghosts(world))))

    def _plan(self, publisher: ClientHost, place: str) -> None:
        """When what is published about a place."""
        random = Random(f"placement {self.parameters.seed} {place}")
        rate = self.application.rate * random.choice(BUSY)
        known: dict[Value, Value] = {}
        payload = bytes(self.application.payload)
        at = int(random.expovariate(rate) * SECOND_NS)
        while at < self.parameters.until_ns():
            attributes = {"location": place, **self.application.next(random, known)}
            self.world.agenda.at(
                max(at, self.world.now), lambda it: publisher.publish(it, payload), attributes
            )
            at += max(1, int(random.expovariate(rate) * SECOND_NS))

    def _watch(self, _sender: str, _receiver: str, message: AnyMessage) -> None:
        inner = innermost(message)
        for one in inner.errands if isinstance(inner, Update) else (inner,):
            self.requests += isinstance(one, PastRequest | PastReply)
            if isinstance(one, PastReply | Recalled):
                self.replayed += len(one.kept)

    def _kept(self) -> tuple[int, int]:
        kept = [_kept_at(host) for host in self.world.brokers.values()]
        return sum(count for count, _ in kept), sum(size for _, size in kept)

    def _figures(self) -> Figures:
        p, traffic = self.parameters, self.traffic
        names = [one.name for one in self.walkers]
        found = Judge(p, traffic.since).judge(self.world.events, names)
        kept, sizes = zip(*self.samples, strict=True)
        control = traffic.control + traffic.posted
        delays = [one / MS_NS for one in found.delays_ns]
        return Figures(
            application=p.application,
            policy=p.policy,
            placement=p.placement,
            routing=p.routing,
            seed=p.seed,
            places=len(self.places),
            brokers=len(self.world.brokers),
            walkers=len(names),
            moves=found.moves,
            published=found.published,
            wanted=found.wanted,
            available=found.available,
            share=_ratio(found.available, found.wanted, 5),
            unwanted=found.unwanted,
            unwanted_share=_ratio(found.unwanted, found.unwanted + found.available, 5),
            delay_ms=round(sum(delays) / len(delays), 3) if delays else None,
            delay_max_ms=round(max(delays), 3) if delays else None,
            reported=_ratio(found.reported, found.moves, 5),
            silent=found.silent,
            kept_mean=round(sum(kept) / len(kept), 3),
            kept_peak=max(kept),
            bytes_mean=round(sum(sizes) / len(sizes), 1),
            bytes_peak=max(sizes),
            expected=found.expected,
            lost=found.lost,
            delivered=found.delivered,
            duplicates=found.duplicates,
            strays=found.strays,
            order_violations=found.order_violations,
            gaps=found.gaps,
            posted=traffic.posted,
            control=traffic.control,
            requests=self.requests,
            replayed=self.replayed,
            notifications=traffic.notifications,
            control_per_move=_ratio(control, found.moves),
            requests_per_move=_ratio(self.requests, found.moves),
            replayed_per_move=_ratio(self.replayed, found.moves),
            notifications_per_move=_ratio(traffic.notifications, found.moves),
            messages_per_move=_ratio(control + traffic.notifications, found.moves),
            subs_max=max(tables(host)[1] for host in self.world.brokers.values()),
            ghosts=0,
        )


def _about(place: str) -> str:
    return f"location = '{place}'"


def _kept_at(host: BrokerHost) -> tuple[int, int]:
    """What a broker keeps for clients that may come, are away, or wait: how many notifications, and bytes."""
    border, store = host.core.border, host.core.replicator.ear.store
    past = border.past
    size = past.bytes + len(past.kept) * (BODY_BYTES + ENTRY_BYTES)
    return len(store.kept) + len(past.kept), size + border.memory.notification_bytes()


def _ratio(part: int, whole: int, digits: int = 3) -> float | None:
    return round(part / whole, digits) if whole else None


# The event log


class Found(msgspec.Struct):
    """What the event log says of the walkers, in the time that is measured."""

    moves: int = 0
    published: int = 0
    wanted: int = 0
    available: int = 0
    unwanted: int = 0
    reported: int = 0
    silent: int = 0
    expected: int = 0
    lost: int = 0
    delivered: int = 0
    duplicates: int = 0
    strays: int = 0
    order_violations: int = 0
    gaps: int = 0
    delays_ns: list[int] = []


Key = tuple[str, int]  # publisher, number


class Stay:
    """A client at a place."""

    def __init__(
        self, place: str, since: int, missing: set[Key], replaced: set[Key], *, judged: bool
    ) -> None:
        self.place, self.since, self.until = place, since, since
        self.missing = missing  # what is wanted and has not come; for membership only
        self.replaced = replaced  # what counted, and hardly any longer; likewise
        self.judged = judged
        self.last_ns = 0  # when the last of what is wanted came, after it arrived
        self.available = 0
        self.gap = False


class Walker:
    def __init__(self) -> None:
        self.stays: list[Stay] = []
        self.got: set[Key] = set()  # for membership only
        self.last: dict[str, int] = {}  # publisher -> the highest number that it got


class Judge:
    """Compares what walkers got with what their application wanted."""

    def __init__(self, parameters: Parameters, since_ns: int) -> None:
        self.counts = APPLICATIONS[parameters.application].counts
        self.under_way_ns = parameters.under_way_ns()
        self.since_ns = since_ns
        self.found = Found()
        self.said: dict[str, list[Said]] = {}  # of each place
        self.published: dict[Key, int] = {}  # when

    def judge(self, events: list[Event], names: list[str]) -> Found:
        walkers = {name: Walker() for name in names}
        for event in events:
            if event.kind == "published":
                self._on_published(event)
        for event in events:
            walker = walkers.get(event.client or "")
            if walker is None:
                continue
            if event.kind == "attached":
                self._on_attached(walker, event)
            elif event.kind == "detached":
                walker.stays[-1].until = event.time_ns
            elif event.kind == "delivered":
                self._on_delivered(walker, event)
            elif event.kind == "lost":
                self.found.gaps += event.time_ns >= self.since_ns
                walker.stays[-1].gap = True
        for walker in walkers.values():
            if walker.stays and walker.stays[-1].until == walker.stays[-1].since:
                walker.stays[-1].until = events[-1].time_ns
            for stay in walker.stays:
                self._count(walker, stay)
        return self.found

    def _on_published(self, event: Event) -> None:
        assert event.client is not None and event.number is not None and event.attributes
        key = event.client, event.number
        self.published[key] = event.time_ns
        place = str(event.attributes["location"])
        self.said.setdefault(place, []).append(Said(event.time_ns, key, event.attributes))
        self.found.published += event.time_ns >= self.since_ns

    def _on_attached(self, walker: Walker, event: Event) -> None:
        assert event.broker is not None
        now, place = event.time_ns, event.broker
        judged = bool(walker.stays) and walker.stays[-1].until >= self.since_ns
        counted, later = self._counted(place, now), self._counted(place, now + self.under_way_ns)
        wanted = (counted & later) - walker.got
        walker.stays.append(Stay(place, now, set(wanted), counted - later, judged=judged))
        if judged:
            self.found.moves += 1
            self.found.wanted += len(wanted)

    def _counted(self, place: str, now: int) -> set[Key]:
        """What counts then, of all that was published about a place."""
        said = self.said.get(place, [])
        until = bisect_right(said, now, key=lambda one: one.time)
        return {one.key for one in self.counts(said[:until], now)}

    def _on_delivered(self, walker: Walker, event: Event) -> None:
        assert event.publisher is not None and event.number is not None and event.attributes
        key, found, stay = (event.publisher, event.number), self.found, walker.stays[-1]
        time = self.published[key]
        measured = time >= self.since_ns
        if key in walker.got:
            found.duplicates += measured
        else:
            found.delivered += measured
            late = event.number < walker.last.get(event.publisher, 0)
            found.order_violations += measured and late and event.reason != "past"
        found.strays += event.attributes["location"] != stay.place
        if key in stay.missing and event.time_ns <= stay.since + SOON_NS:
            stay.missing.discard(key)
            stay.available += 1
            stay.last_ns = event.time_ns - stay.since
        elif time < stay.since and stay.judged and key not in walker.got | stay.replaced:
            found.unwanted += 1
        walker.got.add(key)
        walker.last[event.publisher] = max(event.number, walker.last.get(event.publisher, 0))

    def _count(self, walker: Walker, stay: Stay) -> None:
        found = self.found
        if stay.judged:
            found.available += stay.available
            found.reported += stay.gap
            found.silent += bool(stay.missing) and not stay.gap
            if stay.available:
                found.delays_ns.append(stay.last_ns)
        # What was said of a place while it was there, and not just when it came or went.
        for one in self.said.get(stay.place, []):
            if max(stay.since + SOON_NS, self.since_ns) <= one.time <= stay.until - SECOND_NS:
                found.expected += 1
                found.lost += one.key not in walker.got
