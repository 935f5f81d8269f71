"""Calls to neighbours: who has the address of one calls it, and again whenever the link is down.

    free -> called -> joined -> free, when the connection is gone

Both ends of a link may have the address of the other, and call at once: then the call of the first by name stands.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from wayfare.core.codec import encode
from wayfare.core.messages import BrokerId
from wayfare.net.addresses import Address
from wayfare.net.connection import Connection
from wayfare.net.door import Door
from wayfare.net.links import Link
from wayfare.net.logs import tell

RETRY_S = (0.1, 5.0)  # between two calls, growing

logger = logging.getLogger("wayfare.broker")


class Call:
    """How it stands with one neighbour."""

    __slots__ = ("connection", "free", "wait")

    def __init__(self) -> None:
        self.connection: Connection | None = None  # that we made, and which is not joined yet
        self.free = asyncio.Event()  # not connected, nor about to be
        self.free.set()
        self.wait = RETRY_S[0]  # after the next call; until it has joined


class Calls:
    """Those of one broker; `connection` makes one that is not connected yet."""

    def __init__(
        self,
        broker: str,
        links: Mapping[BrokerId, Link],
        door: Door,
        connection: Callable[[], Connection],
    ) -> None:
        self._broker, self._links, self._door = broker, links, door
        self._connection = connection
        self._calls = {name: Call() for name in links}

    async def keep_up(self, name: BrokerId, address: Address) -> None:
        """Keep the link connected, as long as there is this broker."""
        loop = asyncio.get_running_loop()
        link, call = self._links[name], self._calls[name]
        tls = self._door.outwards() if address.tls else None
        while True:
            await call.free.wait()
            try:
                _, connection = await loop.create_connection(
                    self._connection, address.host, address.port, ssl=tls
                )
            except (OSError, UnicodeError) as error:  # that is of names which no host has
                tell(
                    logger,
                    logging.DEBUG,
                    "unreachable",
                    "%(broker)s cannot reach %(peer)s at %(address)s: %(reason)s",
                    broker=self._broker,
                    peer=name,
                    address=address,
                    reason=error,
                )
            else:
                if link.connection is not None:
                    connection.close("it has called meanwhile")
                elif not connection.closing:  # whoever is being killed takes calls, and ends them
                    call.connection = connection
                    call.free.clear()
                    if not self._door.challenge(connection, name):
                        connection.send(encode(link.join()))
            wait = call.wait
            call.wait = min(2 * wait, RETRY_S[1])
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    def made(self, name: BrokerId) -> Connection | None:
        """What this neighbour was called by, if it has not joined yet."""
        return self._calls[name].connection

    def give_way(self, name: BrokerId) -> bool:
        """This neighbour has called: whether that call stands. If so, one of ours does not."""
        call = self._calls[name]
        ours = call.connection
        if ours is not None and self._broker < name:
            return False
        if ours is not None:
            call.connection = None
            ours.close("both called, and one is enough")
        return True

    def on_joined(self, name: BrokerId) -> None:
        call = self._calls[name]
        call.connection = None
        call.free.clear()
        call.wait = RETRY_S[0]

    def on_lost(self, name: BrokerId) -> None:
        """The link is down."""
        self._calls[name].free.set()

    def on_closed(self, connection: Connection) -> None:
        for call in self._calls.values():
            if call.connection is connection:
                call.connection = None
                call.free.set()
