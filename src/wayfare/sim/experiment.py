"""An experiment in the city: what is given, and what comes out."""

from __future__ import annotations

import msgspec

from wayfare.core.broker import PUBLISHER_RELOCATIONS
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.sim.links import MS_NS, SECOND_NS

HOUR_NS = 3600 * SECOND_NS
ALGORITHMS = ("handoff", *PUBLISHER_RELOCATIONS)
TREES = {85: (4, 4), 341: (5, 4), 1365: (6, 4)}  # brokers -> height, degree
MANY = 1365  # brokers; a larger tree takes minutes to build
ATTACHING_NS = 10 * SECOND_NS  # in which everybody attaches, at the beginning of the warm-up
STARTS = {
    "spread": "anywhere in their cells",
    "together": "all cross the first border when the warm-up ends",
    "cold": "all attach when the warm-up ends, and what they publish then is measured, too",
}


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
