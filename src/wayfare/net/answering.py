"""Connections of one request each: every one is served by a task, and few of them at a time."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine


class Answering:
    """The connections of one server; `serve` reads a request and answers it."""

    def __init__(
        self,
        serve: Callable[[StreamReader, StreamWriter], Coroutine[object, object, None]],
        most: int,
    ) -> None:
        """More than `most` at a time are closed unread."""
        self._serve, self._most = serve, most
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._tasks) >= self._most:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, server: asyncio.Server) -> None:
        """Close the server, and every connection that is being served."""
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()
