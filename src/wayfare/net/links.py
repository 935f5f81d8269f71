"""A link to a neighbour that outlives its connections: nothing lost, nothing twice, in order.

Messages are numbered by counting, from the beginning of the link on. What the neighbour has not
confirmed is kept. When a connection comes, both ends say how far they are (`Join`), and what is
missing is sent again, as fast as the other end reads. If either has lost its memory (another `life`), or has given up
what it kept, because that was too much, the link begins from nothing.

For a neighbour that was never there, everything is kept from the first message on: its link begins when this broker is made,
and until the neighbour comes it is one that is down. Each end sees to that for itself. If it had to give up, the link
begins from nothing at that end, and the other end goes on with what it kept.

It also does so when the counts show that the store of either end was rolled back. For each direction, with what
the sender has sent and knows to be confirmed, and what the receiver has taken:

    taken < confirmed                     the receiver went back: what it lacks is kept nowhere
    taken > sent                          the sender went back
    taken > sent when the process started, and it has not been linked since
                                          the sender went back, and has sent other messages since
"""

from __future__ import annotations

import time
from collections import deque

from wayfare.core.codec import encode
from wayfare.core.messages import BrokerId, Join, Took
from wayfare.errors import ProtocolError
from wayfare.net.connection import Connection, Traffic
from wayfare.net.limits import DEFAULT_NET_LIMITS, NetLimits
from wayfare.net.store import SavedLink

TOOK_EVERY = 64  # messages; what is less is confirmed with the next heartbeat
TOOK_BYTES = 1024 * 1024  # likewise
BURST_BYTES = 1024 * 1024  # that are sent in one turn of the loop, of what waits
LIVES = 2**62
HOPELESS = 4  # times too much is kept: what was read at once, and who could not be stopped


class Link:
    """One end of it."""

    __slots__ = (
        "_confirmed",
        "_confirmed_bytes",
        "_kept",
        "_limits",
        "_sent",
        "_since",
        "_start",
        "_waiting",
        "_whole",
        "bytes",
        "connection",
        "full",
        "known",
        "life",
        "name",
        "round_trip_s",
        "taken",
        "told_s",
        "traffic",
    )

    def __init__(self, name: BrokerId, life: int, limits: NetLimits = DEFAULT_NET_LIMITS) -> None:
        self.name = name
        self.life = life  # of this end
        self.known = 0  # the life of the other end
        self.taken = 0  # messages of that life
        self.connection: Connection | None = None
        self.round_trip_s: float | None = None  # of a message and its answer, smoothed
        self.told_s: float | None = None  # that which the core knows
        self.traffic = Traffic()  # of all its connections
        self.bytes = 0  # of what is kept
        self.full = False  # too much is kept; until it is half of that
        self._limits = limits
        self._since = time.monotonic()  # the other end is away, if it is
        self._sent = 0  # messages, since the beginning of the link
        self._kept: deque[bytes] = deque()  # the last of them, which may be needed again
        self._waiting: deque[bytes] = deque()  # the last of these, not sent on this connection yet
        # What was sent before this process started; -1: the other end was linked to it since.
        self._start = -1
        self._whole = False  # what is kept is all that was sent, since this broker was made
        self._confirmed = 0  # of what was taken, how much the other end knows of
        self._confirmed_bytes = 0

    def saved(self) -> SavedLink:
        kept = list(self._kept)
        start, life = self._start, self.life
        return SavedLink(self.known, self.taken, self._sent, kept, start, life, self._whole)

    def load(self, saved: SavedLink) -> None:
        self.known, self.taken, self._sent = saved.known, saved.taken, saved.sent
        self._start, self.life = saved.start, saved.life or self.life
        self._whole = saved.whole
        self._kept = deque(saved.kept)
        self.bytes = sum(map(len, saved.kept))
        self.full = self._exceeds()

    def expect(self) -> None:
        """Keep everything for the other end, which was never there."""
        self._whole = True

    @property
    def keeps(self) -> bool:
        """Whether what is sent is kept until the other end has it."""
        return self._whole or self.known > 0

    def begin(self, known: int) -> None:
        """From nothing, with this life of the other end."""
        self._whole = False
        self._kept.clear()
        self._waiting.clear()
        self._sent = self.taken = self.bytes = 0
        self._start = -1
        self.full = False
        self.known = known

    def start(self) -> None:
        """The process started: the other end cannot have taken more than was sent before."""
        if self._start < 0:
            self._start = self._sent

    def resume(self, known: int) -> None:
        """The other end is linked to this process; `known` is its life, or 0 if that is known already."""
        self._start = -1
        self.known = known or self.known

    def give_up(self, now: int) -> None:
        """Keep nothing for it any more, until it comes, and the link begins from nothing.

        With another life: no copy of a store has the two lives of the next generation with other counts.
        """
        self.life = (self.life + now) % LIVES + 1
        self.begin(0)

    def is_hopeless(self) -> bool:
        """Whether the other end does not come for what is kept, or far too much is."""
        away_s = 0.0 if self.connection is not None else time.monotonic() - self._since
        return self.full and (away_s > self._limits.link_away_s or self._exceeds(HOPELESS))

    def extend_absence(self, seconds: float) -> None:
        """This process did not run for so long: the other end could not come back meanwhile."""
        self._since = min(self._since + seconds, time.monotonic())

    def _exceeds(self, times: float = 1) -> bool:
        limits = self._limits
        return len(self._kept) > times * limits.link_count or self.bytes > times * limits.link_bytes

    def __len__(self) -> int:
        """How many messages wait to be confirmed."""
        return len(self._kept)

    def send(self, frame: bytes) -> None:
        if not self.keeps:
            return  # it was given up, and is told everything when it comes
        self._sent += 1
        self._kept.append(frame)
        self.bytes += len(frame)
        self.full = self.full or self._exceeds()
        connection = self.connection
        if connection is None:
            return
        if self._waiting or connection.blocked:
            self._waiting.append(frame)
        else:
            connection.send(frame)

    def push(self) -> bool:
        """Send some of what waits, if the other end reads; True if there is more to send now."""
        connection, waiting, size = self.connection, self._waiting, 0
        if connection is None or connection.blocked:
            return False
        while waiting and size < BURST_BYTES:
            size += len(waiting[0])
            connection.send(waiting.popleft())
        return bool(waiting)

    def take(self) -> None:
        """A message has come, and is safe."""
        self.taken += 1
        self._whole = False

    def confirm(self, *, all: bool = False) -> None:
        """Let the other end forget what was taken, if that is worth a message."""
        waiting = self.taken - self._confirmed
        size = self.traffic.bytes_in - self._confirmed_bytes
        worth = waiting >= TOOK_EVERY or (waiting and (all or size >= TOOK_BYTES))
        if self.connection is not None and worth:
            self._confirmed, self._confirmed_bytes = self.taken, self.traffic.bytes_in
            self.connection.send(encode(Took(self.taken)))

    def forget(self, taken: int) -> None:
        """The other end has taken so many."""
        if taken > self._sent:
            raise ProtocolError(f"took {taken} messages, but only {self._sent} were sent")
        while self._sent - len(self._kept) < taken:
            self.bytes -= len(self._kept.popleft())
            self._whole = False
        self.full = self.full and self._exceeds(0.5)

    def join(self) -> Join:
        return Join(self.life, self.known, self.taken, self._sent - len(self._kept))

    def goes_on(self, join: Join) -> bool:
        """Whether both ends mean the same generation of the link."""
        return join.known == self.life and join.life == self.known

    def is_first(self, join: Join) -> bool:
        """Whether this end sends all that it ever sent, because nobody has taken any of it.

        The other end may have been there, but not so long that it heard of this one.
        """
        unheard = join.life == self.known and not join.known
        return self._whole and (not self.known or unheard)

    def is_over(self, join: Join) -> bool:
        """Whether this generation of the link is over: the other end knows another one."""
        return self.known > 0 and not (self.goes_on(join) or self.is_first(join))

    def is_behind(self, join: Join) -> bool:
        """Whether the other end knows more of this end than this end does: its store was rolled back."""
        if join.known == self.life and not self.known:  # to before the link began
            return join.taken > 0 or join.confirmed > 0
        sent = self._sent if self._start < 0 else min(self._start, self._sent)
        return self.goes_on(join) and (join.taken > sent or join.confirmed > self.taken)

    def is_ahead(self, join: Join) -> bool:
        """Whether the other end lacks what it had confirmed: its store was rolled back."""
        return self.goes_on(join) and join.taken < self._sent - len(self._kept)

    def connect(self, connection: Connection, join: Join) -> bool:
        """Go on over this connection; False if the link begins from nothing."""
        goes_on = self.goes_on(join)
        if goes_on:
            self.forget(join.taken)
            self.resume(0)
        elif self.is_first(join):
            goes_on = True
            self.resume(join.life)
        else:
            self.begin(join.life)
        self._confirmed = self.taken
        self.connection = connection
        connection.count_in(self.traffic)
        connection.patient = True
        self._waiting = deque(self._kept)
        self.push()
        return goes_on

    def disconnect(self, connection: Connection) -> bool:
        """That connection is gone; True if the link was on it."""
        if self.connection is not connection:
            return False
        self.connection = None
        self._since = time.monotonic()
        return True
