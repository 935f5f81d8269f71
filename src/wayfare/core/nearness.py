"""Which broker is near, by round-trip times, and when it is worth moving to a nearer one.

    a round: some brokers are measured -> `measured` -> `nearer`

A client must not move for every sample: a move costs something, and between two brokers that are equally near it would
go back and forth. So times are smoothed, and another broker is *clearly nearer* only if it takes at most `SHARE` of
the time, and at least `MARGIN_NS` less. It has to be so in `IN_A_ROW` measurements of that broker, and the client has
to have been where it is for `STAY` rounds. For a broker that did not welcome the client, each failure doubles the
number of measurements.

Everything is counted in rounds: how long these take is up to the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Generic, TypeVar

import msgspec

NEWEST = 0.5  # weight of the newest measurement
SHARE = 0.7
MARGIN_NS = 5_000_000
IN_A_ROW = 3
STAY = 6
DOUBLED_MAX = 5  # failures of a broker that double what it has to prove

K = TypeVar("K")


class _Broker(msgspec.Struct):
    rtt_ns: float = inf  # smoothed; infinite: unknown
    measured: int = 0  # in which round
    ahead: int = 0  # measurements in a row in which it was clearly nearer than the current one
    failures: int = 0  # to welcome the client, since it last did


class Nearness(Generic[K]):
    """The brokers that one client may be at."""

    def __init__(self) -> None:
        self._brokers: dict[K, _Broker] = {}
        self._round = 0
        self._current: K | None = None
        self._since = 0  # the round in which the client was first seen there

    def rtt_ns(self, broker: K) -> float:
        """How far away it is; infinite if that is not known."""
        return self._brokers[broker].rtt_ns if broker in self._brokers else inf

    def known(self, brokers: Iterable[K]) -> None:
        """There are these, and no others."""
        self._brokers = {one: self._brokers.get(one, _Broker()) for one in brokers}

    def due(self, current: K | None, most: int) -> list[K]:
        """Which to measure next: the current one, and those others whose measurement is the oldest."""
        brokers = self._brokers
        others = sorted(brokers.keys() - {current}, key=lambda one: brokers[one].measured)
        here = [one for one in brokers if one == current]
        return here + others[: most - len(here)]

    def measured(self, current: K | None, rtts: Mapping[K, int | None]) -> None:
        """A round is over: how long each took to answer; None: it cannot be reached."""
        self._round += 1
        if current != self._current:
            self._current, self._since = current, self._round
            for one in self._brokers.values():
                one.ahead = 0
        for broker, rtt_ns in rtts.items():
            if broker in self._brokers:
                self._add(self._brokers[broker], inf if rtt_ns is None else rtt_ns)
        here = inf if current is None else self.rtt_ns(current)
        for broker in rtts.keys() & self._brokers.keys():
            one = self._brokers[broker]
            clearly = here < inf and one.rtt_ns <= min(SHARE * here, here - MARGIN_NS)
            one.ahead = one.ahead + 1 if clearly else 0

    def _add(self, one: _Broker, rtt_ns: float) -> None:
        one.measured = self._round
        known = one.rtt_ns < inf and rtt_ns < inf
        one.rtt_ns = one.rtt_ns + NEWEST * (rtt_ns - one.rtt_ns) if known else rtt_ns

    def nearer(self) -> K | None:
        """The nearest of those that are worth moving to, now."""
        if self._round - self._since < STAY:
            return None
        worth = [name for name, one in self._brokers.items() if one.ahead >= _needed(one)]
        return min(worth, key=self.rtt_ns, default=None)

    def failed(self, broker: K) -> None:
        """It did not welcome the client."""
        if (one := self._brokers.get(broker)) is not None:
            one.failures += 1
            one.ahead = 0

    def welcomed(self, broker: K) -> None:
        if (one := self._brokers.get(broker)) is not None:
            one.failures = 0

    def ordered(self) -> list[K]:
        """All, the nearest first; behind them those whose distance is not known, and then those that failed."""
        brokers = self._brokers
        return sorted(brokers, key=lambda name: (brokers[name].failures, brokers[name].rtt_ns))


def _needed(one: _Broker) -> int:
    """Measurements in a row in which a broker has to be clearly nearer."""
    return IN_A_ROW << min(one.failures, DOUBLED_MAX)
