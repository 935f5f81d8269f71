"""The client proxy: one client, as its mobility proxy knows it.

here    registered, and heard of within the lease; on standby it is subscribed for all the same,
        and keeps what the client may not have heard yet
out     moving out: the client waits until the client proxy's subscriptions are active
away    the client proxy keeps everything
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wayfare.service import messages as m
from wayfare.service.buffer import Buffer, Kept, Limits
from wayfare.service.messages import Terms
from wayfare.service.pinging import UNANSWERED, Ping, Waiting
from wayfare.service.system import Language

CUT_OFF = "the client was cut off before the proxy stood in for it"
WENT = f"the client {UNANSWERED} before it went"
BATCHES_MAX = 4  # on their way to who downloads them, not said to have come


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What is saved of a client beside its buffer."""

    client: str
    key: str
    stay: int
    subscriptions: tuple[str, ...]
    terms: Terms
    last: int
    lost: int
    hole: str = ""
    stood_in: bool = False


class ClientProxy:
    """One client, as its proxy knows it."""

    def __init__(
        self, client: str, key: str, terms: Terms, limits: Limits, language: Language
    ) -> None:
        self.client = client
        self.key = key
        self.terms = terms
        self.stay = 0
        self.subscriptions: dict[str, None] = {}
        self.removed: dict[str, None] = {}  # ... that the system may have all the same
        self.buffer = Buffer(limits, terms.copies)
        self.state = "here"
        self.since = 0  # heard of, or away
        self.silent = True  # away for want of a word: the next one brings it back
        self.access = "none"  # "opening", "open", "ready" (subscribed), "broken"
        self.reopen_at = 0
        self.ready_at = 0
        self.asked_for: set[str] = set()  # subscriptions that the access point has not confirmed
        self.stood_in = False  # so that the system, if it can, has something to resume
        self.hole = ""  # why publications may be missing, nobody knows how many
        # With the last download, which may not have come, and in which stay.
        self.told_hole, self.told_lost, self.told_stay = "", 0, -1
        self.told: list[tuple[str, m.Message]] = []  # to whom to say what when it is ready
        self.changed: tuple[str, m.Changed] | None = None  # ... and when it has subscribed
        self.queued: int | None = None  # its earliest entry among the deadlines of the proxy
        self.asked = Ping(language, client, "in")  # by its library, when it moves in
        self.asking = Ping(language, client, "out")
        self.pings = 0
        self.pinged = False  # the client has answered since the proxy stands in for it
        self.before_ping = 0  # the last number that was kept when it was asked before it went
        self.waiting: Waiting | None = None  # until the subscriptions are active, at move-out

    @property
    def deadline(self) -> int | None:
        times = []
        if self.access == "broken":
            times.append(self.reopen_at)
        if self.state == "here":
            times.append(self.since + self.terms.lease_ns)
        elif self.state == "away":
            times.append(self.since + self.terms.away_ns)
        if self.waiting is not None and self.waiting.deadline is not None:
            times.append(self.waiting.deadline)
        return min(times, default=None)

    @property
    def wanted(self) -> tuple[str, ...]:
        """All that it subscribes to, for the client and for itself; the pings last."""
        return (*self.subscriptions, self.asking.responses, self.asked.requests)

    def answer(self, download: m.Download, at: str, now: int) -> Sending:
        """What it has kept, and what is missing."""
        self.told_hole, self.told_lost = self.hole, self.buffer.tell_lost(download.heard)
        self.told_stay = self.stay
        reason, lost = self.hole, None if self.hole else self.told_lost
        if self.access == "none" or (self.state == "out" and not self.terms.standby):
            reason, lost = CUT_OFF, None
        elif not reason and lost:
            reason = "the proxy keeps no more for one client"
        pieces = m.batches([one.publication for one in self._wanted(download.heard, now)])
        batches = [
            m.Batch(self.client, download.download, number, piece)
            for number, piece in enumerate(pieces, 1)
        ]
        end = m.Downloaded(
            self.client,
            download.download,
            at,
            self.stay,
            self.buffer.last,
            lost,
            reason,
            subscriptions=tuple(self.subscriptions),
        )
        return Sending(batches, end)

    def _wanted(self, heard: dict[str, int], now: int) -> list[Kept]:
        kept = self.buffer.since(heard)
        if self.terms.age_ns is not None:
            kept = [one for one in kept if one.arrived >= now - self.terms.age_ns]
        return kept if self.terms.last is None else kept[max(0, len(kept) - self.terms.last) :]


class Sending:
    """One download on its way."""

    def __init__(self, batches: list[m.Batch], end: m.Downloaded) -> None:
        self.batches = batches
        self.end = end
        self.sent = 0

    def next(self, got: int) -> Iterable[m.Batch | m.Downloaded]:
        while self.sent < len(self.batches) and self.sent - got < BATCHES_MAX:
            self.sent += 1
            yield self.batches[self.sent - 1]
        if self.sent == len(self.batches):
            self.sent += 1
            yield self.end
