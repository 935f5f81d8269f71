"""What happened how often, for hosts to read: counts decide nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MILLISECOND_NS = 1_000_000


class Histogram:
    """How many values there were up to each bound, and above the last. Values are nanoseconds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0

    def add(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def __len__(self) -> int:
        """How many values there were."""
        return sum(self.counts)
