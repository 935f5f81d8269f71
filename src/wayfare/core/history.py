"""The backlog of one client: numbered deliveries, kept until acknowledged, within limits.

    1 ... acked | acked+1 ... sent | sent+1 ... last
                  unacknowledged     waiting

Whatever is dropped to keep a limit is the oldest. Numbers are never used again, so a hole
shows: the client gets a `Gap` in place of what is gone, and counts exactly what it misses.
"""

from __future__ import annotations

from collections import deque

import msgspec

from wayfare.core.messages import Deliver, Gap, Notification
from wayfare.errors import ProtocolError, UsageError

SECOND_NS = 1_000_000_000
ATTRIBUTE_BYTES = 24  # a name and a number, roughly


class Limits(msgspec.Struct, frozen=True):
    """How much a border broker keeps for one client, and for how long.

    Beyond a limit of the backlog, the oldest go, with a `Gap`.
    """

    backlog_count: int = 10_000
    backlog_bytes: int = 16 * 1024 * 1024
    backlog_age_ns: int = 24 * 3600 * SECOND_NS
    away_ns: int = 7 * 24 * 3600 * SECOND_NS  # then the session of a client that is away ends
    filters: int = 10_000  # subscriptions, or advertisements, of one client
    window: int = 256  # deliveries on the way to a client without an acknowledgement

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise UsageError(f"the limit {name} is {getattr(self, name)}; it is at least 1")


def size_of(notification: Notification) -> int:
    """Roughly what a notification occupies: payload, texts, and something for every attribute."""
    attributes = notification.attributes
    size = len(notification.payload) + ATTRIBUTE_BYTES * len(attributes)
    for value in attributes.values():
        if type(value) is str:
            size += len(value)
    return size


class Backlog:
    """Invariant: acked <= sent <= last, and lost_to <= last."""

    __slots__ = ("acked", "bytes", "last", "lost_to", "lost_why", "sent", "unacked", "waiting")

    def __init__(self, start: int = 0) -> None:
        self.acked = self.sent = self.last = start
        self.lost_to = start  # the highest number that was dropped
        self.lost_why = ""
        self.bytes = 0
        # (number, notification, size, when it was put here), in order of number.
        self.unacked: deque[tuple[int, Notification, int, int]] = deque()
        self.waiting: deque[tuple[int, Notification, int, int]] = deque()

    def __len__(self) -> int:
        return len(self.unacked) + len(self.waiting)

    def __bool__(self) -> bool:
        return bool(self.unacked or self.waiting)

    def put(self, notification: Notification, size: int, now: int, limits: Limits) -> None:
        self.last += 1
        self.waiting.append((self.last, notification, size, now))
        self.bytes += size
        self._keep_to(limits)

    def pass_on(self, notification: Notification, size: int, now: int, limits: Limits) -> Deliver:
        """As `put` and `take`, where nothing waits and the window is open: the usual case."""
        number = self.last = self.sent = self.last + 1
        self.unacked.append((number, notification, size, now))
        self.bytes += size
        if len(self.unacked) > limits.backlog_count or self.bytes > limits.backlog_bytes:
            self._keep_to(limits)
        return Deliver(number, notification)

    def _keep_to(self, limits: Limits) -> None:
        while len(self) > limits.backlog_count:
            self._drop("backlog_count")
        while self.bytes > limits.backlog_bytes:
            self._drop("backlog_bytes")

    def expire(self, now: int, limits: Limits) -> None:
        while self and self.oldest() + limits.backlog_age_ns <= now:
            self._drop("backlog_age")

    def oldest(self) -> int:
        """When the oldest notification was put here; there must be one."""
        return (self.unacked or self.waiting)[0][3]

    def _drop(self, why: str) -> None:
        number, _, size, _ = (self.unacked or self.waiting).popleft()
        self.bytes -= size
        self.lost_to, self.lost_why = number, why

    def take(self, window: int) -> list[Deliver | Gap]:
        """What may be sent now: first what says that something is gone, then what is there."""
        out: list[Deliver | Gap] = []
        last = self.acked + window  # by number: what a limit dropped is still on its way
        if self.sent < self.lost_to and self.sent < last:
            out.append(Gap(self.lost_to, self.lost_why))
            self.sent = self.lost_to
        waiting, unacked = self.waiting, self.unacked
        while waiting and self.sent < last:
            item = waiting.popleft()
            unacked.append(item)
            self.sent = item[0]
            out.append(Deliver(item[0], item[1]))
        return out

    def acknowledge(self, number: int) -> None:
        if number > self.sent:
            raise ProtocolError(f"acknowledged {number}, but only {self.sent} were sent")
        unacked = self.unacked
        while unacked and unacked[0][0] <= number:
            self.bytes -= unacked.popleft()[2]
        if number > self.acked:
            self.acked = number

    def resume(self, delivered: int) -> bool:
        """Start on a new connection behind this delivery; False if it was not made from here."""
        if not self.acked <= delivered <= self.sent:
            return False
        self.acknowledge(delivered)
        self.waiting.extendleft(reversed(self.unacked))
        self.unacked.clear()
        self.sent = delivered
        return True
