"""The experiment of the mobility service paper: one client moves once, whatever is below it.

    b0 -- b1 -- b2      the publisher is at b0, the client at b1, and then at b2

    subscribe     s subscriptions, all of which match everything; until the access points are done
    publish       p a second, from 5 s before the move until 5 s after the flow is up again
      move-out    gracefully, or cut off
      away
      move-in     at the other access point
    settle        everything that is under way arrives

Support is none (the client subscribes again where it is), basic, ping or delay as in the paper, ids
(standby, ping and ids: what the service does by default), or own: Wayfare's brokers with handoff.

The delay at reattach is the time from calling move-in until the last of what was published while the
client was away, and comes at all, is with the application; without support nothing of it comes, and it
is the time until the first publication. Lost or twice at reattach is what was published since move-in.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from wayfare.channel import PROFILES, Profile, floor
from wayfare.core.filters import Filter
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.moves import judge_move
from wayfare.sim import topology
from wayfare.sim.deliveries import judge
from wayfare.sim.links import MS_NS, SECOND_NS, Agenda
from wayfare.sim.systems import SYSTEMS
from wayfare.sim.traffic import Log

OWN = "wayfare"
SUPPORT = ("none", "basic", "ping", "delay", "ids", "own")
NETWORKS = ("lan", "gprs")
HOME, OLD, NEW = "b0", "b1", "b2"
EDGES = topology.line(3)
MOBILE, PUBLISHER, TOPIC = "mobile", "ticker", "news"
PAYLOAD = bytes(64)  # of every publication
LEAD_NS = TAIL_NS = 5 * SECOND_NS  # of publications around the move
LOOK_NS = 100 * MS_NS  # between two looks whether all is done
QUIET_NS = 15 * SECOND_NS  # nothing came for so long: nothing will
LONGEST_NS = 1000 * SECOND_NS  # of any phase
MANY = 1000  # subscriptions; more take long


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    system: str = "siena"
    support: str = "ids"
    s: int = 10  # subscriptions
    p: float = 2.0  # publications per second
    away_ns: int = 10 * SECOND_NS
    network: str = "lan"  # between the client and everybody else
    delay_ns: int = 200 * MS_NS  # of support delay
    latency_ns: int | None = None  # one way by radio, in place of the profile's
    abrupt: bool = False  # cut off, without a move-out
    seed: int = 0

    def __post_init__(self) -> None:
        if self.system not in (*SYSTEMS, OWN):
            names = ", ".join((*SYSTEMS, OWN))
            raise UsageError(f"unknown system {self.system!r}: choose one of {names}")
        if self.support not in SUPPORT:
            raise UsageError(f"unknown support {self.support!r}: one of {', '.join(SUPPORT)}")
        if (self.system == OWN) != (self.support == "own"):
            raise UsageError(f"{OWN} has support own, and no other system has it")
        if self.network not in PROFILES:
            raise UsageError(
                f"unknown network {self.network!r}: choose one of {', '.join(PROFILES)}"
            )
        if not 1 <= self.s <= MANY:
            raise UsageError(f"s is a number of subscriptions, from 1 to {MANY}")
        if not 0.01 <= self.p <= 1000:
            raise UsageError("p is a number of publications per second, from 0.01 to 1000")
        for name in ("away_ns", "delay_ns", "latency_ns"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name.removesuffix('_ns')} is a time, and not negative")

    def profile(self) -> Profile:
        found = PROFILES[self.network]
        if self.latency_ns is None:
            return found
        ways = (
            msgspec.structs.replace(way, latency_ns=self.latency_ns)
            for way in (found.up, found.down)
        )
        up, down = ways
        return msgspec.structs.replace(found, up=up, down=down)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out; `out`, `away` and `in` as `wayfare.moves` has them."""

    system: str
    support: str
    network: str
    s: int
    p: float
    seed: int
    published: int
    expected: int
    delivered: int
    lost: int
    duplicates: int
    order_violations: int
    gaps: int
    moves: int
    subscribe_ms: float  # until the access point has all subscriptions of the client, at first
    move_out_ms: float | None  # until the client may go; None: it was cut off
    move_in_ms: float | None  # until it says that the client is attached; None: never
    first_ms: float | None  # from move-in to the first publication
    delay_ms: float | None  # ... to the last one that was missed, and comes
    floor_ms: float  # of that: one round trip, and the bytes that were missed
    missed: int  # published while the client was away
    lost_out: int
    lost_away: int
    lost_in: int
    duplicates_away: int
    duplicates_in: int
    service_messages: int  # between library and proxies
    control: (
        int  # subscriptions between access points, or what brokers say about them and the client
    )
    radio_bytes: int  # by radio, both ways, without the headers of packets
    seconds: float  # of virtual time


class Experiment:
    """What is the same with every support: when what happens, and what is made of it."""

    def __init__(self, parameters: Parameters, agenda: Agenda) -> None:
        self.parameters, self.agenda = parameters, agenda
        self.random = Random(parameters.seed)
        self.events: list[Event] = []
        self.published = self.deliveries = 0
        self.publishing = False
        self.last_ns = 0  # when something was delivered
        self.out_ns = self.in_ns = 0  # when move-out and move-in were called
        self.gone_ns: int | None = None  # when the client went
        self.up_ns: int | None = None  # when it was attached again

    # What differs

    def subscribe(self) -> None:
        raise NotImplementedError

    def subscribe_ns(self) -> int | None:
        """How long it took; None: it is not done."""
        raise NotImplementedError

    def publish(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    def come(self) -> None:
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Whether access points work at subscriptions."""
        raise NotImplementedError

    def missed_bytes(self, missed: int) -> int:
        raise NotImplementedError

    def costs(self) -> dict[str, int]:
        raise NotImplementedError

    # What is the same

    def run(self, log: Log | None) -> Figures:
        agenda = self.agenda
        self.note("subscribed", client=MOBILE, filter=Filter.parse(f"topic = '{TOPIC}'"))
        self.note("attached", client=MOBILE, broker=OLD, epoch=1)
        self.subscribe()
        self.wait(lambda: self.subscribe_ns() is not None and self._flows())
        subscribed = self.subscribe_ns()
        assert subscribed is not None
        self.publishing = True
        every_ns = int(SECOND_NS / self.parameters.p)
        agenda.at(agenda.now + self.random.randrange(every_ns), self._publish, every_ns)
        agenda.run_until(agenda.now + LEAD_NS)
        self.out_ns = agenda.now
        self.note("detached", client=MOBILE, broker=OLD, epoch=1)
        self.leave()
        self.wait(lambda: self.gone_ns is not None)
        gone = self.gone_ns or 0
        agenda.run_until(gone + self.parameters.away_ns)
        self.in_ns = agenda.now
        self.note("attached", client=MOBILE, broker=NEW, epoch=2)
        self.up_ns = None
        self.come()
        self.wait(self._flows)
        agenda.run_until(agenda.now + TAIL_NS)
        self.publishing = False
        agenda.run_until(agenda.now + QUIET_NS)
        self.wait(lambda: agenda.now - self.last_ns >= QUIET_NS)
        figures = self._figures(subscribed)
        if log is not None:
            log(self.events)
        return figures

    def _flows(self) -> bool:
        return self.up_ns is not None and not self.is_busy()

    def wait(self, until: Callable[[], bool]) -> None:
        end = self.agenda.now + LONGEST_NS
        while not until() and self.agenda.now < end:
            self.agenda.run_until(self.agenda.now + LOOK_NS)

    def _publish(self, every_ns: int) -> None:
        if self.publishing:
            self.published += 1
            facts = {"client": PUBLISHER, "number": self.published, "epoch": 1}
            self.note("published", **facts, attributes={"topic": TOPIC})
            self.publish()
            self.agenda.at(self.agenda.now + every_ns, self._publish, every_ns)

    def delivered(self, number: int) -> None:
        self.deliveries += 1
        self.last_ns = self.agenda.now
        self.note(
            "delivered",
            client=MOBILE,
            publisher=PUBLISHER,
            number=number,
            delivery=self.deliveries,
            epoch=1,
            attributes={"topic": TOPIC},
        )

    def note(self, kind: str, **facts: Any) -> None:
        self.events.append(Event(self.agenda.now, kind, **facts))

    def went(self) -> None:
        self.gone_ns = self.agenda.now

    def is_up(self) -> None:
        self.up_ns = self.agenda.now

    def _figures(self, subscribe_ns: int) -> Figures:
        given, events = self.parameters, self.events
        found = judge(events, [MOBILE])
        sent = {one.number or 0: one.time_ns for one in events if one.kind == "published"}
        got = [(one.number or 0, one.time_ns) for one in events if one.kind == "delivered"]
        out, gone = self.out_ns, self.gone_ns or self.out_ns
        moved = judge_move(sent, got, out, gone, self.in_ns)
        return Figures(
            system=given.system,
            support=given.support,
            network=given.network,
            s=given.s,
            p=given.p,
            seed=given.seed,
            published=found.published,
            expected=found.expected,
            delivered=found.delivered,
            lost=found.lost,
            duplicates=found.duplicates,
            order_violations=found.order_violations,
            gaps=found.gaps,
            moves=len(found.moves),
            subscribe_ms=_ms(subscribe_ns),
            move_out_ms=None if given.abrupt else _ms(gone - out),
            move_in_ms=None if self.up_ns is None else _ms(self.up_ns - self.in_ns),
            first_ms=None if moved.first_ns is None else _ms(moved.first_ns),
            delay_ms=None if moved.delay_ns is None else _ms(moved.delay_ns),
            floor_ms=_ms(floor(given.profile(), self.missed_bytes(moved.missed))),
            missed=moved.missed,
            lost_out=moved.lost_out,
            lost_away=moved.lost_away,
            lost_in=moved.lost_in,
            duplicates_away=moved.duplicates_away,
            duplicates_in=moved.duplicates_in,
            **self.costs(),
            seconds=round(self.agenda.now / SECOND_NS, 3),
        )


def _ms(time_ns: int) -> float:
    return round(time_ns / MS_NS, 3)
