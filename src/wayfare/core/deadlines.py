"""The deadlines of a broker: one heap of timers, so that a timer costs the same however many there are.

    arm(kind, key, at)    look at this key at that time, or earlier if it is armed for earlier
    disarm(kind, key)     its object is gone
    take_due(now)         the kinds and keys to look at now
    next                  the time of the earliest timer; None: nothing is armed

A timer is a lower bound, not a verdict: its handler looks at the object, acts if the object is due, and
otherwise arms the timer again for later. So an object whose deadline moves back costs nothing at that
moment, and no caller has to disarm a timer to be correct; `disarm` only frees memory early.

Timers that are due together are taken by kind and then by time, in the order in which they were armed:
the same events give the same order in every process.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush

# The kinds of timers, in the order in which one tick takes them.
(
    PROFILE,  # a profile that was asked for by its digest
    SEARCH,  # a junction search
    ANSWER,  # a session that waits for its old broker
    AWAY,  # a session whose client is away
    VIRTUAL,  # a virtual client: its lease, its renewal, its recall
    BUFFER,  # what a buffer of virtual clients keeps
    BACKLOG,  # the oldest notification of a backlog
    TOMBSTONE,
    UPDATE,  # a table update that was postponed
) = range(9)

SLACK = 64  # entries of disarmed timers that the heap may always hold

Timer = tuple[int, Hashable]  # kind and key
Entry = tuple[int, int, int, Hashable]  # when, in which order it was armed, kind, key


class Deadlines:
    """Invariant: `next` is the time of the earliest armed timer; None if none is armed."""

    __slots__ = ("_armed", "_count", "_heap", "next")

    def __init__(self) -> None:
        self.next: int | None = None
        self._heap: list[Entry] = []  # every armed timer, and entries that are out of date
        self._armed: dict[Timer, Entry] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, kind: int, key: Hashable, at: int) -> None:
        """Look at this then; what is armed for an earlier time stays so."""
        timer = kind, key
        armed = self._armed.get(timer)
        if armed is not None and armed[0] <= at:
            return
        self._count += 1
        entry = self._armed[timer] = (at, self._count, kind, key)
        heappush(self._heap, entry)
        if self.next is None or at < self.next:
            self.next = at
        if armed is not None:
            self._compact()

    def disarm(self, kind: int, key: Hashable) -> None:
        if self._armed.pop((kind, key), None) is not None:
            self._compact()
            self._find_next()

    def take_due(self, now: int) -> list[Timer]:
        """The timers whose time has come; they are armed no more."""
        heap, armed, due = self._heap, self._armed, list[Entry]()
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            timer = entry[2:]
            if armed.get(timer) is entry:
                del armed[timer]
                due.append(entry)
        self._find_next()
        due.sort(key=_by_kind)
        return [entry[2:] for entry in due]

    def _find_next(self) -> None:
        """Drop what is out of date from the front of the heap."""
        heap, armed = self._heap, self._armed
        while heap and armed.get(heap[0][2:]) is not heap[0]:
            heappop(heap)
        self.next = heap[0][0] if heap else None

    def _compact(self) -> None:
        """Rebuild the heap when most of it is out of date: each entry pays for one other."""
        if len(self._heap) > 2 * len(self._armed) + SLACK:
            self._heap = list(self._armed.values())
            heapify(self._heap)


def _by_kind(entry: Entry) -> tuple[int, int, int]:
    return entry[2], entry[0], entry[1]
