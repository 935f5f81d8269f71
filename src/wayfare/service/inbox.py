"""What came from a system and was not given on yet.

Adapters put in what their library calls them with; a task gives it on, in order: one by one, and where
that takes its time (until a disk has it), many before the first of them is done. The inbox never refuses: an adapter waits for `room` before it reads on, so that the system itself notices
that somebody is slow; or drops what comes while the inbox is `full`, where that is allowed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from wayfare.errors import Closed

QUEUE_MAX = 1_000
AHEAD_MAX = 100  # that are given on together
SLOW_S = 0.001  # and after which time it is worth that

Item = TypeVar("Item")
log = logging.getLogger(__name__)


class Inbox(Generic[Item]):
    def __init__(
        self,
        handle: Callable[[Item], Coroutine[Any, Any, None]],
        *,
        failed: Callable[[str], None],
    ) -> None:
        self._handle, self._failed = handle, failed
        self._items: deque[Item] = deque()
        self._wake = asyncio.Event()
        self._ended = False
        self._room = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def full(self) -> bool:
        return len(self._items) >= QUEUE_MAX

    async def room(self) -> None:
        """Wait until it is not full; once it was, until it is half empty."""
        if self.full:
            self._room.clear()
            await self._room.wait()

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._wake.set()

    def finish(self) -> None:
        """Nothing more comes: give on what is here, and end."""
        self._ended = True
        self._wake.set()

    def drop(self) -> None:
        """Forget what is here, and end when what is being given on is."""
        self._items.clear()
        self._room.set()
        self.finish()

    def stop(self) -> None:
        """Forget what is here, and end, in the midst of giving on, if need be."""
        self.drop()
        if self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        ahead = 1
        while not self._ended or self._items:
            self._wake.clear()
            while self._items:
                began = loop.time()
                try:
                    await self._give_on(min(ahead, len(self._items)))
                except Closed as error:
                    self._failed(str(error))
                    return
                except Exception as error:
                    log.exception("what came from a publish/subscribe system could not be given on")
                    self._failed(f"it could not be given on: {error!r}")
                    return
                ahead = AHEAD_MAX if loop.time() - began > SLOW_S else 1
            if not self._ended:
                await self._wake.wait()

    async def _give_on(self, count: int) -> None:
        items = [self._items.popleft() for _ in range(count)]
        if len(self._items) <= QUEUE_MAX // 2:
            self._room.set()
        if count == 1:
            await self._handle(items[0])
            return
        try:
            async with asyncio.TaskGroup() as together:  # they begin in this order
                for item in items:
                    together.create_task(self._handle(item))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
