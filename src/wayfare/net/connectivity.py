"""Whether a client is connected: every change is kept for iterators, and reported to callbacks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from wayfare.errors import Closed
from wayfare.net.life import Life
from wayfare.net.options import check_options

CHANGES_MAX = 100  # that wait for an iterator; it misses older ones

logger = logging.getLogger("wayfare.client")


class Change(msgspec.Struct, frozen=True):
    """The client was connected to a broker, or disconnected from it."""

    connected: bool
    broker: str = ""  # its name; "" if the client was not connected before
    reason: str = ""  # why it is not connected


class Connectivity:
    """The connection state of one client, and its latest changes."""

    def __init__(
        self,
        name: str,
        life: Life,
        on_connect: Callable[[str], object] | None = None,
        on_disconnect: Callable[[str, str], object] | None = None,
    ) -> None:
        self.now = Change(connected=False, reason="not connected yet")
        self.count = 0  # of all changes
        self._name = name
        self._life = life
        self._on_connect, self._on_disconnect = on_connect, on_disconnect
        self._latest: deque[Change] = deque(maxlen=CHANGES_MAX)

    def connected(self, broker: str) -> None:
        self._add(Change(True, broker))
        self._call("on_connect", self._on_connect, broker)

    def disconnected(self, broker: str, reason: str) -> None:
        self._add(Change(False, broker, reason))
        self._call("on_disconnect", self._on_disconnect, broker, reason)

    def after(self, count: int) -> Change:
        """The first change after this many, or the oldest that is kept."""
        return self._latest[max(0, count - self.count + len(self._latest))]

    async def until_after(self, count: int) -> None:
        """Wait for one more change; raise what keeps the client from going on."""
        await self._life.until(lambda: self.count > count)

    def _add(self, change: Change) -> None:
        self.now = change
        self.count += 1
        self._latest.append(change)
        self._life.changed.set()

    def _call(self, name: str, callback: Callable[..., object] | None, *arguments: Any) -> None:
        if callback is None:
            return
        try:
            callback(*arguments)
        except Exception:  # the application's mistake, which must not cost it its connection
            logger.exception("%s of %s failed", name, self._name)


class Changes(AsyncIterator[Change]):
    """The connection state of a client, and then each change of it. Made by `Client.changes`."""

    def __init__(self, source: Connectivity) -> None:
        self._source = source
        self._first: Change | None = source.now  # None: it was read
        self._seen = source.count
        self._before: tuple[Change | None, int] = self._first, self._seen

    async def __anext__(self) -> Change:
        try:
            return await self.get()
        except Closed:
            raise StopAsyncIteration from None

    async def get(self, timeout: float | None = None) -> Change:
        """The state when this was made, and then the next change; or TimeoutError.

        Closed if none will come. Who reads too slowly misses the oldest changes.
        """
        check_options(timeout=timeout)
        source = self._source
        if self._first is not None:
            self._before = first, _ = self._first, self._seen
            self._first = None
            return first
        async with asyncio.timeout(timeout):
            await source.until_after(self._seen)
        change = source.after(self._seen)
        self._before = None, self._seen
        self._seen = max(self._seen + 1, source.count - CHANGES_MAX + 1)
        return change

    def give_back(self, change: Change) -> None:
        """It was taken for a caller that is not there any more: it is the next one again."""
        self._first, self._seen = self._before
