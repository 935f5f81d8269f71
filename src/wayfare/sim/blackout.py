"""Clients that change their location in the range of one broker, or their state: how long they hear nothing.

    b0 - b1 - ... - bh     walkers at b0, whose range has all locations; a publisher at the last one
    publish                of every location, at a steady rate
      walk                 each walker from location to location, and nothing is kept for it
    settle                 everything that is under way arrives

A walker has to get what would reach it while it is there if everything came. What it does not get is
missed: the news of its new location has not reached the brokers yet from which the notifications come.
From the change until the last one that is missed it is in the dark. Walkers say where they are over their own
link, so its way there and back is the least.

Who follows `my.need` has a number in place of a location, which changes by one at a time, as is declared; `my.mode` is
one of as many texts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from random import Random

import msgspec

from wayfare.core.changes import Changes
from wayfare.core.messages import State
from wayfare.core.places import EVERYWHERE, Place, Places
from wayfare.core.predicates import VALUES_MAX, Attributes, Value
from wayfare.core.reduction import STRATEGIES
from wayfare.core.virtual import Ahead
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.quiet import ghosts
from wayfare.sim.traffic import Log, Traffic, tables
from wayfare.sim.ways import grid
from wayfare.sim.world import CLIENT_LINK, World

STEPS: dict[str, int | None] = {
    "0": 0,
    "1": 1,
    "2": 2,
    "dwell": None,
    "measured": None,  # by dwell, too, which no broker is told
    "everywhere": EVERYWHERE,
}
FOLLOWED = {
    "myloc": "location in myloc",
    "my.need": "need = my.need",
    "my.mode": "mode = my.mode",
}
HOPS = range(1, 51)
SIDES = range(2, 51)
PUBLISHER = "p"


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    steps: str = "dwell"  # STEPS: how far ahead brokers further away are told
    follow: str = "myloc"  # FOLLOWED: what changes
    routing: str = "covering"
    seed: int = 0
    hops: int = 4  # from the broker of the walkers to that of the publisher
    side: int = 5  # of a square of locations; or as many values in a row as that has
    walkers: int = 1
    changes: int = 100  # of each
    dwell_ns: int = 200 * MS_NS  # that a walker stays at least; up to half of it longer
    rate: float = 20.0  # publications of each location, per second
    link_latency_ns: int = 10 * MS_NS  # between brokers

    def __post_init__(self) -> None:
        if self.steps not in STEPS:
            raise UsageError(f"unknown steps {self.steps!r}: choose one of {', '.join(STEPS)}")
        if self.follow not in FOLLOWED:
            raise UsageError(f"unknown {self.follow!r} to follow: one of {', '.join(FOLLOWED)}")
        if self.routing not in STRATEGIES:
            raise UsageError(f"unknown routing {self.routing!r}: one of {', '.join(STRATEGIES)}")
        if self.hops not in HOPS:
            raise UsageError(f"hops is from 1 to {HOPS[-1]}")
        if self.side not in SIDES:
            raise UsageError(f"side is from 2 to {SIDES[-1]}: who walks needs somewhere to go")
        if self.follow == "my.mode" and self.side**2 > VALUES_MAX:
            raise UsageError(
                f"side is at most {int(VALUES_MAX**0.5)} for my.mode: a list is bounded"
            )
        for name in ("walkers", "changes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is at least 1")
        if self.dwell_ns < MS_NS:
            raise UsageError("dwell is at least 1 ms")
        if self.link_latency_ns < 0:
            raise UsageError("link-latency is a time, and not negative")
        if not 0.001 <= self.rate <= 1_000:
            raise UsageError("rate is a number of publications per second, from 0.001 to 1,000")

    @property
    def attribute(self) -> str:
        """What publications are about."""
        return "location" if self.follow == "myloc" else self.follow.removeprefix("my.")

    def near(self) -> dict[Value, tuple[Value, ...]]:
        """What a walker may be like, and what it may be like next."""
        if self.follow == "myloc":
            return {here: tuple(there) for here, there in grid(self.side).items()}
        numbers = range(self.side**2)
        if self.follow == "my.need":
            return along(numbers)
        return along([f"m{one}" for one in numbers])

    def declared(self) -> Changes:
        """How values change."""
        if self.follow == "myloc":
            return {}
        return {self.attribute: 1 if self.follow == "my.need" else tuple(self.near())}

    def state(self, like: Value) -> State:
        return State(str(like)) if self.follow == "myloc" else State(values={self.attribute: like})

    def way_ns(self) -> int:
        """From the publisher to a walker."""
        return 2 * CLIENT_LINK.latency_ns + self.hops * self.link_latency_ns


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    steps: str
    follow: str
    routing: str
    seed: int
    hops: int
    locations: int
    walkers: int
    changes: int
    published: int
    expected: int  # what would reach walkers at their locations, if everything came
    delivered: int
    missed: int
    missed_share: float
    blackout_ms: (
        float  # after a change, on average: as long as what is missed takes to be published
    )
    blackout_max_ms: float  # ... until the last one that is missed, at most
    duplicates: int
    strays: int  # deliveries of what was not expected
    order_violations: int
    gaps: int
    control: int  # messages between brokers that are no notifications
    control_per_change: float
    notifications: int  # between brokers
    notifications_per_delivered: float | None
    subs_mean: float  # entries from neighbours in the tables of a broker, at the end
    subs_max: int
    ghosts: int  # what is left of walkers that have left


def run(parameters: Parameters, log: Log | None = None) -> Figures:
    """Play one experiment; `log` gets all that happened."""
    return Blackout(parameters, log).run()


class Blackout:
    """One experiment in its world."""

    def __init__(self, parameters: Parameters, log: Log | None = None) -> None:
        self.parameters = p = parameters
        self.log = log
        self.random = Random(f"blackout {p.seed}")
        self.near = p.near()
        # Without a broker: what is kept for its range would hide what this is about.
        places = Places({name: Place(next) for name, next in grid(p.side).items()})
        ahead = Ahead(places, steps=STEPS[p.steps])
        if p.steps == "dwell":
            ahead = Ahead(places, steps=None, dwell_ns=p.dwell_ns, hop_ns=p.link_latency_ns)
        link = LinkSpec(latency_ns=p.link_latency_ns)
        self.world = World(p.seed, p.routing, broker_link=link, ahead=ahead)
        self.world.add_brokers(topology.line(p.hops + 1))
        self.world.measure_links()
        if log is not None:
            self.world.log_tree()
        self.publisher = self.world.add_client(PUBLISHER, topology.name(p.hops))
        self.publisher.advertise(f"exists {p.attribute}")
        self.walkers = [self._add_walker(i) for i in range(p.walkers)]
        self.world.settle()
        self.traffic = Traffic(self.world, logged=log is not None)

    def _add_walker(self, i: int) -> ClientHost:
        p = self.parameters
        walker = self.world.add_client(
            f"w{i}", topology.name(0), attach=False, changes=p.declared()
        )
        walker.follow(FOLLOWED[p.follow])
        walker.be(p.state(self.random.choice(list(self.near))))
        walker.attach()
        return walker

    def run(self) -> Figures:
        world, start = self.world, self.world.now
        end = max(self._walk(walker, start) for walker in self.walkers)
        every_ns = int(SECOND_NS / self.parameters.rate)
        for like in self.near:
            first = start + self.random.randrange(every_ns)
            for at in range(first, end, every_ns):
                world.agenda.at(at, self.publisher.publish, {self.parameters.attribute: like})
        world.run_until(end)
        world.settle()
        self.traffic.end()
        names = [one.name for one in self.walkers]
        found = judge(world.events, names, self.parameters.way_ns(), self.parameters.attribute)
        figures = self._figures(found)
        if self.log is not None:
            self.log(world.events)
        return msgspec.structs.replace(figures, ghosts=len(list(ghosts(world))))

    def _walk(self, walker: ClientHost, at: int) -> int:
        """When it goes where, whatever comes; until when it stays."""
        here = like(walker.core.following.state.location, walker.core.following.state.values)
        dwell_ns = self.parameters.dwell_ns
        at += self.random.randrange(dwell_ns)
        for _ in range(self.parameters.changes):
            here = self.random.choice(self.near[here])
            self.world.agenda.at(at, walker.be, self.parameters.state(here))
            at += self.random.randint(dwell_ns, dwell_ns + dwell_ns // 2)
        return at

    def _figures(self, found: Found) -> Figures:
        p, traffic = self.parameters, self.traffic
        subs = [tables(host)[1] for host in self.world.brokers.values()]
        changes = p.walkers * p.changes
        return Figures(
            steps=p.steps,
            follow=p.follow,
            routing=p.routing,
            seed=p.seed,
            hops=p.hops,
            locations=len(self.near),
            walkers=p.walkers,
            changes=changes,
            published=found.published,
            expected=found.expected,
            delivered=found.delivered,
            missed=found.missed,
            missed_share=round(found.missed / max(1, found.expected), 5),
            blackout_ms=round(found.missed * 1000 / p.rate / changes, 3),
            blackout_max_ms=round(found.longest_ns / MS_NS, 3),
            duplicates=found.duplicates,
            strays=found.strays,
            order_violations=found.order_violations,
            gaps=found.gaps,
            control=traffic.control,
            control_per_change=round(traffic.control / changes, 3),
            notifications=traffic.notifications,
            notifications_per_delivered=round(traffic.notifications / found.delivered, 3)
            if found.delivered
            else None,
            subs_mean=round(sum(subs) / len(subs), 3),
            subs_max=max(subs),
            ghosts=0,
        )


def along(values: Sequence[Value]) -> dict[Value, tuple[Value, ...]]:
    """Values in a row, and those beside each."""
    return {
        one: (*values[max(0, i - 1) : i], *values[i + 1 : i + 2]) for i, one in enumerate(values)
    }


def like(location: str | None, values: Attributes | None) -> Value:
    """Where a walker is, or else its only value."""
    return location or next(iter((values or {}).values()))


# The event log


class Found(msgspec.Struct):
    """What the event log says of the walkers."""

    published: int = 0
    expected: int = 0
    delivered: int = 0
    missed: int = 0
    longest_ns: int = 0
    duplicates: int = 0
    strays: int = 0
    order_violations: int = 0
    gaps: int = 0


class Walker:
    """Where it was from when on, and what it got."""

    def __init__(self) -> None:
        self.since: list[int] = []
        self.likes: list[Value] = []
        self.got: list[int] = []  # numbers, as they came


def judge(events: list[Event], names: list[str], way_ns: int, attribute: str = "location") -> Found:
    """Compare what walkers got with what would have reached them where they were."""
    out = Found()
    walkers = {name: Walker() for name in names}
    published: dict[int, Event] = {}
    for event in events:
        if event.kind == "published":
            assert event.number is not None
            published[event.number] = event
        elif (walker := walkers.get(event.client or "")) is None:
            continue
        elif event.kind == "became":
            walker.since.append(event.time_ns)
            walker.likes.append(like(event.location, event.attributes))
        elif event.kind == "delivered":
            assert event.number is not None
            walker.got.append(event.number)
        elif event.kind == "lost":
            out.gaps += 1
    out.published = len(published)
    for walker in walkers.values():
        _judge_walker(out, walker, published, way_ns, attribute)
    return out


def _judge_walker(
    out: Found, walker: Walker, published: dict[int, Event], way_ns: int, attribute: str
) -> None:
    got = set(walker.got)
    out.delivered += len(got)
    out.duplicates += len(walker.got) - len(got)
    highest = 0
    for number in dict.fromkeys(walker.got):
        out.order_violations += number < highest
        highest = max(highest, number)
    expected = set()
    for number, event in published.items():
        arrival = event.time_ns + way_ns
        stay = bisect_right(walker.since, arrival) - 1
        assert event.attributes is not None
        if walker.likes[stay] != event.attributes[attribute]:
            continue
        expected.add(number)
        if number not in got:
            out.missed += 1
            out.longest_ns = max(out.longest_ns, arrival - walker.since[stay])
    out.expected += len(expected)
    out.strays += len(got - expected)
