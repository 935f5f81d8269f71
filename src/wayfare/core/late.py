"""What an old broker kept that did not answer in time: when it is back, it comes late, or is counted.

    client                  new broker                           old broker
      |                         |---- Request ------------------------> x   cannot be reached
      |<-- Settled(0, gap) -----|   the client notes from now on what it gets
      |<-- Gap, Deliver ... ----|   a loss of unknown number, then what is new
      |                         |<--- Reply(what is kept) -------------|   is back
      |<-- Late ..., Settled ---|   what the client has not had, or only the numbers of that

Only the client knows what it has had: it may have been at several brokers since, each of which knows a part. So brokers pass
on everything, and the client takes what it has not had, once, or counts it.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from wayfare.core.messages import (
    UNSETTLED_MAX,
    ClientId,
    Current,
    Late,
    Notification,
    Settled,
)

# What a client wants of what comes late.
UNTOLD = 0  # it is of an earlier release, and knows nothing of that
COUNTED = 1  # to be told how many were lost
WANTED = 2  # to get it

# In a backlog, in place of the request of a current value:
LATE = 2**62  # it comes late
REPORT = LATE + 1  # its payload is a `Settled`, and it is no notification

TALLY_MAX = 10_000  # ranges of publications that a client notes
UNSURE = "what its old broker kept may have come before: too much came since, or to another process"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Settled)


def message(number: int, notification: Notification, ask: int) -> Current | Late | Settled:
    """What a client is sent of a backlog that is no ordinary delivery."""
    if ask == REPORT:
        return msgspec.structs.replace(settled_of(notification), number=number)
    return Late(number, notification) if ask == LATE else Current(number, notification, ask)


def report(client: ClientId, settled: Settled) -> Notification:
    """A `Settled` in a backlog: kept, moved and saved like a notification."""
    return Notification(client, settled.gap, {"gap": settled.gap}, _encoder.encode(settled))


def settled_of(notification: Notification) -> Settled:
    """The `Settled` in a backlog; msgspec.MsgspecError if it is none."""
    return _decoder.decode(notification.payload)


def open_gap(unsettled: dict[int, None], gaps: Iterable[int]) -> None:
    """A client does not know how many it missed at these attachments; the oldest are forgotten."""
    unsettled |= dict.fromkeys(gaps)
    while len(unsettled) > UNSETTLED_MAX:
        del unsettled[next(iter(unsettled))]


class Tally:
    """What a client has had since it was first told of a loss that may be settled later."""

    __slots__ = (
        "_floor",
        "_knows_all",
        "_ranges",
        "_size",
        "counted",
        "exact",
        "gaps",
        "knows_floor",
        "missed",
    )

    def __init__(
        self, floor: Mapping[ClientId, int], *, knows_floor: bool, knows_all: bool = True
    ) -> None:
        self._floor = floor  # publishers -> what came before
        self.knows_floor = knows_floor  # whether all of that came before, or nobody knows
        self._knows_all = knows_all  # otherwise others than these may have come, too
        # What came since, as ranges in ascending order.
        self._ranges: dict[ClientId, list[tuple[int, int]]] = {}
        self._size = 0  # of all ranges
        self.gaps: dict[int, None] = {}  # that are not settled
        # Since the last one was settled:
        self.missed: dict[ClientId, int] = {}  # publishers -> how many are lost
        self.exact = True  # it is known of all of these whether they have come
        self.counted = True  # ... and of all others, by brokers

    def had(self, publisher: ClientId, number: int) -> bool | None:
        """Whether this publication has come; None: nobody knows any more."""
        ranges = self._ranges.get(publisher, [])
        place = bisect(ranges, (number, inf))
        if place and ranges[place - 1][1] >= number:
            return True
        if number <= self._floor.get(publisher, 0):
            return True if self.knows_floor else None
        if not (self.knows_floor or self._knows_all):
            return None
        is_full = self._size >= TALLY_MAX and place == len(ranges)
        return None if is_full or self._size >= 2 * TALLY_MAX else False

    def add(self, publisher: ClientId, number: int) -> None:
        """This publication has come; mostly it is behind all others of its publisher."""
        ranges = self._ranges.setdefault(publisher, [])
        place = bisect(ranges, (number, inf))
        if place and ranges[place - 1][1] + 1 >= number:
            ranges[place - 1] = ranges[place - 1][0], max(number, ranges[place - 1][1])
        elif self._size < (TALLY_MAX if place == len(ranges) else 2 * TALLY_MAX):
            insort(ranges, (number, number))
            self._size += 1

    def miss(self, publisher: ClientId, number: int) -> None:
        """This publication is lost, unless it has come."""
        had = self.had(publisher, number)
        if had is None:
            self.exact = False
        elif not had:
            self.add(publisher, number)  # it is not counted again
            self.missed[publisher] = self.missed.get(publisher, 0) + 1

    def settle(self, gap: int) -> tuple[dict[ClientId, int], bool, bool]:
        """How many are lost, of which publishers; whether that is exact, and has been counted."""
        self.gaps.pop(gap, None)
        settled = self.missed, self.exact, self.counted
        self.missed, self.exact, self.counted = {}, True, True
        return settled
