"""What expires when: one pull-style deadline for many named ones."""

from __future__ import annotations

from heapq import heappop, heappush


class Deadlines:
    """At most one deadline per key; cancelling is cheap, the heap forgets lazily."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        # Invariant: for every key in _at, (its time, key) is in the heap.
        self._heap: list[tuple[int, str]] = []

    def set(self, key: str, at: int) -> None:
        if self._at.get(key) != at:
            self._at[key] = at
            heappush(self._heap, (at, key))

    def cancel(self, key: str) -> None:
        self._at.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self._at

    def next(self) -> int | None:
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> list[str]:
        """The keys whose time has come, which are forgotten by this."""
        keys = []
        while (at := self.next()) is not None and at <= now:
            key = heappop(self._heap)[1]
            del self._at[key]
            keys.append(key)
        return keys
