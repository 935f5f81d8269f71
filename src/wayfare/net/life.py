"""Whether a client goes on, and what keeps it from that; who waits for something to happen waits here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wayfare.errors import Closed, UsageError


class Life:
    """That of one client: it is opened, and closed, or it has to stop before."""

    def __init__(self, name: str) -> None:
        self.opened = self.closed = False
        self.error: Callable[[], Exception] | None = None  # why it cannot go on
        self.changed = asyncio.Event()  # something that somebody may wait for
        self.wakers: list[Callable[[], None]] = []  # of those who wait elsewhere
        self._name = name

    def check(self) -> None:
        """Raise what keeps this client from going on."""
        if self.error is not None:
            raise self.error()
        if self.closed:
            raise Closed(f"{self._name} was closed")
        if not self.opened:
            raise UsageError(
                f"{self._name} is not connected yet: await it, or use it with `async with`"
            )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it; raise what keeps this client from going on, if that comes first."""
        while not condition():
            self.check()
            self.changed.clear()
            await self.changed.wait()

    def stop(self, error: Callable[[], Exception]) -> None:
        """It cannot go on: whoever waits, or asks for anything, is told."""
        self.error = error
        self.wake()

    def close(self) -> None:
        self.closed = True
        self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        self.changed.set()
        for wake in self.wakers:
            wake()
