"""Who is not read for a while: clients that say too much, and all who would add to what waits for a neighbour.

a neighbour is slow    nobody else is read: clients, and neighbours that are not behind themselves
a neighbour is away    publishers are not read; who only subscribes, or moves, goes on
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from wayfare.core.messages import AnyMessage, BrokerId, Publish
from wayfare.net.connection import Connection
from wayfare.net.limits import Rate
from wayfare.net.links import Link
from wayfare.net.logs import tell

NOBODY, PUBLISHERS, EVERYBODY = range(3)

logger = logging.getLogger("wayfare.broker")


class Pauses:
    """Of one broker: its links, and the connections of its clients."""

    def __init__(
        self,
        broker: str,
        links: Mapping[BrokerId, Link],
        clients: Mapping[str, Connection],
        messages_per_second: int,
    ) -> None:
        self._broker = broker
        self._links, self._clients = links, clients
        self._most = messages_per_second
        self._speeds: dict[Connection, Rate] = {}
        self._publishers: set[Connection] = set()  # clients that have published
        self._paused = NOBODY  # of the clients, while a neighbour is behind

    def __bool__(self) -> bool:
        return self._paused != NOBODY

    def on_attached(self, connection: Connection) -> None:
        if self._paused == EVERYBODY:
            connection.pause()

    def on_messages(self, connection: Connection, messages: list[AnyMessage]) -> None:
        """A client has said this: if that is too much, it is not read for a while."""
        if connection not in self._publishers and any(type(one) is Publish for one in messages):
            self._publishers.add(connection)
            if self._paused:
                connection.pause()
        loop = asyncio.get_running_loop()
        speed = self._speeds.get(connection)
        if speed is None:
            speed = self._speeds[connection] = Rate(self._most, self._most, loop.time())
        wait = speed.take(len(messages), loop.time())
        if wait:
            connection.pause("too fast")
            loop.call_later(wait, connection.resume, "too fast")

    def on_closed(self, connection: Connection) -> None:
        self._speeds.pop(connection, None)
        self._publishers.discard(connection)

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
