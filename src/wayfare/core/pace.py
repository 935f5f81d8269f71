"""How long clients stay as they are, and a subscription takes to a neighbour: measured by a broker itself.

    stayed(for_ns)               a client of this broker has gone on to another location
    kept(for_ns)                 a value of its state that is declared to change has changed
    on_round_trip(neighbour)     the host has measured a link

Subscriptions are told further away by how far a client may go meanwhile. So of the stays a short one counts,
which nine of ten exceed, and of the links the slowest. Before enough was measured, usual values hold.
"""

from __future__ import annotations

from math import log2

import msgspec

from wayfare.core.messages import BrokerId

DWELL_NS = 60 * 10**9  # before enough stays were seen
HOP_NS = 20 * 10**6  # before a link was measured
STAYS_MIN = 10  # that have to be seen
STAYS_MAX = 1_000  # that are counted, before they are halved: the later ones count more
SHORTER = 0.1  # share of the stays that may be shorter
FINENESS = 4  # intervals of the histogram for each power of two


class Saved(msgspec.Struct, array_like=True, frozen=True):
    stays: dict[int, int]
    hops: dict[BrokerId, int]
    values: dict[int, int] = {}


class Stays:
    """How long clients stayed as they were."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}  # by interval

    def count(self, for_ns: int) -> None:
        interval = int(FINENESS * log2(max(1, for_ns)))
        self.counts[interval] = self.counts.get(interval, 0) + 1
        if sum(self.counts.values()) > STAYS_MAX:
            self.counts = {one: count // 2 for one, count in self.counts.items() if count > 1}

    def usual_ns(self) -> int:
        """Nine of ten stays are longer, or a little shorter."""
        total = sum(self.counts.values())
        if total < STAYS_MIN:
            return DWELL_NS
        left = SHORTER * total
        for interval in sorted(self.counts):
            left -= self.counts[interval]
            if left < 0:
                return int(2 ** (interval / FINENESS))
        raise AssertionError("some stay is the longest")


class Pace:
    """What one broker has measured."""

    def __init__(self) -> None:
        self._stays = Stays()  # at a location
        self._values = Stays()  # with the same values, of those that are declared to change
        self._hops: dict[BrokerId, int] = {}

    def stayed(self, for_ns: int) -> None:
        self._stays.count(for_ns)

    def kept(self, for_ns: int) -> None:
        self._values.count(for_ns)

    def on_round_trip(self, neighbour: BrokerId, round_trip_ns: int) -> None:
        self._hops[neighbour] = max(1, round_trip_ns // 2)

    @property
    def dwell_ns(self) -> int:
        return self._stays.usual_ns()

    @property
    def kept_ns(self) -> int:
        return self._values.usual_ns()

    @property
    def hop_ns(self) -> int:
        return max(self._hops.values(), default=HOP_NS)

    def save(self) -> Saved:
        return Saved(dict(self._stays.counts), dict(self._hops), dict(self._values.counts))

    def load(self, saved: Saved) -> None:
        self._stays.counts, self._hops = dict(saved.stays), dict(saved.hops)
        self._values.counts = dict(saved.values)
