"""A link to a neighbour that outlives its connections: nothing lost, nothing twice, in order.

Messages are numbered by counting, from the beginning of the link on. What the neighbour has not
confirmed is kept. When a connection comes, both ends say how far they are (`Join`), and what is
missing is sent again, as fast as the other end reads. If either has lost its memory (another `life`), the link begins from nothing.
"""

from __future__ import annotations

from collections import deque

from wayfare.core.codec import encode
from wayfare.core.messages import BrokerId, Join, Took
from wayfare.errors import ProtocolError
from wayfare.net.connection import Connection, Traffic
from wayfare.net.store import SavedLink

TOOK_EVERY = 64  # messages; what is less is confirmed with the next heartbeat
BURST_BYTES = 1024 * 1024  # that are sent in one turn of the loop, of what waits


class Link:
    """One end of it."""

    __slots__ = (
        "_confirmed",
        "_kept",
        "_sent",
        "_waiting",
        "connection",
        "known",
        "life",
        "name",
        "taken",
        "traffic",
    )

    def __init__(self, name: BrokerId, life: int) -> None:
        self.name = name
        self.life = life  # of this end
        self.known = 0  # the life of the other end
        self.taken = 0  # messages of that life
        self.connection: Connection | None = None
        self.traffic = Traffic()  # of all its connections
        self._sent = 0  # messages, since the beginning of the link
        self._kept: deque[bytes] = deque()  # the last of them, which may be needed again
        self._waiting: deque[bytes] = deque()  # the last of these, not sent on this connection yet
        self._confirmed = 0  # of what was taken, how much the other end knows of

    def saved(self) -> SavedLink:
        return SavedLink(self.known, self.taken, self._sent, list(self._kept))

    def load(self, saved: SavedLink) -> None:
        self.known, self.taken, self._sent = saved.known, saved.taken, saved.sent
        self._kept = deque(saved.kept)

    def begin(self, known: int) -> None:
        """From nothing, with this life of the other end."""
        self._kept.clear()
        self._sent = self.taken = 0
        self.known = known

    def __len__(self) -> int:
        """How many messages wait to be confirmed."""
        return len(self._kept)

    def send(self, frame: bytes) -> None:
        if not self.known:
            return  # it has never been there, and is told everything when it comes
        self._sent += 1
        self._kept.append(frame)
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

    def confirm(self, *, all: bool = False) -> None:
        """Let the other end forget what was taken, if that is worth a message."""
        waiting = self.taken - self._confirmed
        if self.connection is not None and (waiting >= TOOK_EVERY or (all and waiting)):
            self._confirmed = self.taken
            self.connection.send(encode(Took(self.taken)))

    def forget(self, taken: int) -> None:
        """The other end has taken so many."""
        if taken > self._sent:
            raise ProtocolError(f"took {taken} messages, but only {self._sent} were sent")
        while self._sent - len(self._kept) < taken:
            self._kept.popleft()

    def join(self) -> Join:
        return Join(self.life, self.known, self.taken)

    def connect(self, connection: Connection, join: Join) -> bool:
        """Go on over this connection; False if the link begins from nothing."""
        goes_on = join.known == self.life and join.life == self.known
        if goes_on:
            self.forget(join.taken)
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
        return True
