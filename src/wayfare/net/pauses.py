"""Flow control: the connections that are not read for a while, and the clients whose publications wait.

a client says too much    it is not read for a while
a neighbour is slow       nobody else is read: clients, and neighbours that are not behind themselves
a neighbour is away       publishers are not read; clients that only subscribe, or move, go on
the core pauses a client  its publications wait here, and what comes behind them; acknowledgements go on, and so do
                          members of queue groups that say that they are there. If too many wait, or memory is short,
                          it is not read: no client of ours sends more than its outbox holds
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping

from wayfare.core.client import OUTBOX_MAX
from wayfare.core.effects import passes_pauses
from wayfare.core.history import size_of
from wayfare.core.memory import BODY_BYTES
from wayfare.core.messages import AnyMessage, BrokerId, Publish
from wayfare.net.connection import Connection
from wayfare.net.limits import Rate
from wayfare.net.links import Link
from wayfare.net.logs import tell

NOBODY, PUBLISHERS, EVERYBODY = range(3)
HELD_BYTES_MAX = (
    16 * 1024 * 1024
)  # of publications that wait in one connection; then it is not read
SLICE_BYTES = (
    64 * 1024
)  # of messages that waited and are taken in one turn of the loop; the last one on top
SLOWED = "slowed"

logger = logging.getLogger("wayfare.broker")


class Held:
    """What waits in the connection of a client that the core has paused."""

    __slots__ = ("bytes", "due", "messages", "paused")

    def __init__(self) -> None:
        self.messages: deque[AnyMessage] = deque()
        self.bytes = 0
        self.paused = True
        self.due = False  # it was resumed: some of it is taken, even if it is paused again

    def some(self) -> list[AnyMessage]:
        """The first ones, as many as are taken at once."""
        end, some = self.bytes - SLICE_BYTES, list[AnyMessage]()
        while self.messages and self.bytes > end:
            some.append(self.messages.popleft())
            self.bytes -= _bytes(some[-1])
        return some

    def is_full(self, *, short: bool) -> bool:
        """Whether no more may wait here, while memory is short or not."""
        most = SLICE_BYTES if short else HELD_BYTES_MAX
        return len(self.messages) >= OUTBOX_MAX or self.bytes >= most


class Pauses:
    """Of one broker: its links, and the connections of its clients."""

    def __init__(
        self,
        broker: str,
        links: Mapping[BrokerId, Link],
        clients: Mapping[str, Connection],
        messages_per_second: int,
        take: Callable[[Connection, list[AnyMessage]], None],
    ) -> None:
        """Messages that waited are given to `take`."""
        self._broker = broker
        self._links, self._clients = links, clients
        self._most = messages_per_second
        self._speeds: dict[Connection, Rate] = {}
        self._publishers: set[Connection] = set()  # clients that have published
        self._paused = NOBODY  # of the clients, while a neighbour is behind
        self._take = take
        self.held: dict[Connection, Held] = {}  # of clients that the core has paused
        self.slowed = 0  # times that it has paused one
        self.short = False  # a limit in sum is near: hardly anything may wait here

    def __bool__(self) -> bool:
        return self._paused != NOBODY

    def on_attached(self, connection: Connection) -> None:
        if self._paused == EVERYBODY:
            connection.pause()

    def on_messages(self, connection: Connection, messages: list[AnyMessage]) -> None:
        """A client has said this: if that is too much, it is not read for a while."""
        if connection not in self._publishers and Publish in map(type, messages):
            self._publishers.add(connection)
            if self._paused:
                connection.pause()
        loop = asyncio.get_running_loop()
        now, speed = loop.time(), self._speeds.get(connection)
        if speed is None:
            speed = self._speeds[connection] = Rate(self._most, self._most, now)
        wait = speed.take(len(messages), now)
        if wait:
            connection.pause("too fast")
            loop.call_later(wait, connection.resume, "too fast")

    def on_closed(self, connection: Connection) -> list[AnyMessage]:
        """Returns what waited: it had arrived before the connection was closed."""
        self._speeds.pop(connection, None)
        self._publishers.discard(connection)
        held = self.held.pop(connection, None)
        return [] if held is None else list(held.messages)

    def slow(self, connection: Connection) -> None:
        """Take no publications from this client."""
        self.slowed += 1
        held = self.held.get(connection)
        if held is None:
            self.held[connection] = Held()
        else:
            held.paused = True

    def hold(self, connection: Connection, messages: list[AnyMessage]) -> list[AnyMessage]:
        """A client has said this: returns what need not wait."""
        held = self.held.get(connection)
        if held is None:
            return messages
        now: list[AnyMessage] = []
        for message in messages:
            if (held.messages or type(message) is Publish) and not passes_pauses(message):
                held.messages.append(message)
                held.bytes += _bytes(message)
            else:
                now.append(message)
        self._count(connection, held)
        return now

    def go_on(self, connection: Connection) -> None:
        """Take publications from this client again, first those that waited."""
        held = self.held.get(connection)
        if held is not None:
            held.paused, held.due = False, True
            asyncio.get_running_loop().call_soon(self._drain, connection, held)

    def _drain(self, connection: Connection, held: Held) -> None:
        if self.held.get(connection) is not held or (held.paused and not held.due):
            return
        held.due = False
        self._take(connection, held.some())
        if self.held.get(connection) is not held:
            return
        self._count(connection, held)
        if not held.messages and not held.paused:
            del self.held[connection]
        elif not held.paused:
            asyncio.get_running_loop().call_soon(self._drain, connection, held)

    def _count(self, connection: Connection, held: Held) -> None:
        connection.note_held(held.bytes)
        full = held.is_full(short=self.short)
        (connection.pause if full else connection.resume)(SLOWED)

    def mind(self) -> None:
        """See who is behind now, and who has to wait for that."""
        behind = [link for link in self._links.values() if link.full]
        slow = any(link.connection for link in behind)
        if slow or self._paused:
            self._mind_neighbours(slow)
        paused = (EVERYBODY if slow else PUBLISHERS) if behind else NOBODY
        if paused == self._paused:
            return
        for connection in self._clients.values():
            stop = paused == EVERYBODY or (paused and connection in self._publishers)
            (connection.pause if stop else connection.resume)()
        if behind and not self._paused:
            names = ", ".join(link.name for link in behind)
            who = "clients" if slow else "publishers"
            self._tell("congested", f"%(broker)s has too much to tell {names}, and pauses {who}")
        elif not behind:
            self._tell("relieved", "%(broker)s listens to all clients again")
        self._paused = paused

    def _mind_neighbours(self, slow: bool) -> None:
        """One that is behind itself is read: it says how far it is. So nobody waits in a circle."""
        for link in self._links.values():
            if link.connection is not None:
                (link.connection.pause if slow and not link.full else link.connection.resume)()

    def _tell(self, event: str, sentence: str) -> None:
        tell(logger, logging.WARNING, event, sentence, broker=self._broker)


def _bytes(message: AnyMessage) -> int:
    return BODY_BYTES + (size_of(message) if type(message) is Publish else 0)
