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
    WORK,  # on tables, that was put off
    PROFILE,  # a profile that was asked for by its digest
    SEARCH,  # a junction search
    ANSWER,  # a session that waits for its old broker
    AWAY,  # a session whose client is away
    VIRTUAL,  # a virtual client: its lease, its renewal, its recall
    BUFFER,  # what a buffer of virtual clients keeps
    BACKLOG,  # the oldest notification of a backlog
    TOMBSTONE,
    UPDATE,  # a table update that was postponed
    CONFIRM,  # what a client wants to have confirmed
    RETAINED,  # a key of current values: it was cleared, or its value expires
    SLOWED,  # a publisher that is slowed: its leases
    GROUP,  # a queue group: members that are silent, or none at all
    WILL,  # of a client that is away
) = range(15)

SLACK = 64  # entries of disarmed timers that the heap may always hold
ORDER_BITS = 40  # of an entry, below its time: in which order it was armed

Timer = tuple[int, Hashable]  # kind and key
Entry = int  # time and order in one number: heaps of numbers are half as slow as heaps of tuples


class Deadlines:
    """Invariant: `next` is the time of the earliest armed timer; None if none is armed."""

    __slots__ = ("_armed", "_count", "_heap", "_timers", "next")

    def __init__(self) -> None:
        self.next: int | None = None
        self._heap: list[Entry] = []  # of every armed timer, and some that are out of date
        self._timers: dict[Entry, Timer] = {}  # that are armed
        self._armed: dict[Timer, Entry] = {}  # the same, the other way round
        self._count = 0

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, kind: int, key: Hashable, at: int) -> None:
        """Look at this then; what is armed for an earlier time stays so."""
        timer = kind, key
        armed = self._armed.get(timer)
        if armed is not None:
            if armed >> ORDER_BITS <= at:
                return
            del self._timers[armed]
        self._count += 1
        entry = self._armed[timer] = at << ORDER_BITS | self._count
        self._timers[entry] = timer
        heappush(self._heap, entry)
        if self.next is None or at < self.next:
            self.next = at
        if armed is not None:
            self._compact()

    def disarm(self, kind: int, key: Hashable) -> None:
        entry = self._armed.pop((kind, key), None)
        if entry is not None:
            del self._timers[entry]
            self._compact()
            self._find_next()

    def take_due(self, now: int) -> list[Timer]:
        """The timers whose time has come; they are armed no more."""
        heap, end, due = self._heap, (now + 1) << ORDER_BITS, list[tuple[int, Entry, Timer]]()
        while heap and heap[0] < end:
            entry = heappop(heap)
            timer = self._timers.pop(entry, None)
            if timer is not None:
                del self._armed[timer]
                due.append((timer[0], entry, timer))
        self._find_next()
        due.sort()
        return [timer for _, _, timer in due]

    def _find_next(self) -> None:
        """Drop what is out of date from the front of the heap."""
        heap, timers = self._heap, self._timers
        while heap and heap[0] not in timers:
            heappop(heap)
        self.next = heap[0] >> ORDER_BITS if heap else None

    def _compact(self) -> None:
        """Rebuild the heap when most of it is out of date: each entry pays for one other."""
        if len(self._heap) > 2 * len(self._armed) + SLACK:
            self._heap = list(self._timers)
            heapify(self._heap)
