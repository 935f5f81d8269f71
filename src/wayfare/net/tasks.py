"""Tasks in the background of a client: they end with it, and none fails unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """The tasks of one owner, until they are done."""

    def __init__(self, on_error: Callable[[BaseException], None] = lambda _: None) -> None:
        """`on_error` gets what a task raises; by default, `Life` has reported it to the application."""
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself holds only weak references
        self._on_error = on_error

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def join(self) -> None:
        """Wait until those that run now are done."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)
