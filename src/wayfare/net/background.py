"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from wayfare.errors import Closed, UsageError
from wayfare.net import holders

T = TypeVar("T")


class Background:
    """Runs coroutines for threads that wait for them. The thread is a daemon: it keeps nobody up."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"wayfare {name}", daemon=True)
        self._thread.start()

    def call(
        self, work: Callable[[], Coroutine[Any, Any, T]], undo: Callable[[T], None] | None = None
    ) -> T:
        """Run it there, and wait. Who is interrupted, by Ctrl-C, has not got the result: `undo`."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                f"{self._name} cannot wait for itself: on_lost, on_connect, on_disconnect and"
                " events are called by its own thread, so let another one do this"
            )
        future: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(work()))
            tasks[0].add_done_callback(finish)

        def finish(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                future.set_exception(Closed(f"{self._name} was closed"))
            elif (error := task.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        def forget() -> None:
            # Nothing else was begun here meanwhile, so what was taken goes back to where it was.
            for task in tasks:
                if not task.done():
                    task.cancel()
                elif undo is not None and not task.cancelled() and task.exception() is None:
                    undo(task.result())

        try:
            self._post(start)
            return future.result()
        except BaseException as error:
            if not (future.done() and future.exception() is error):  # it is not its own
                with suppress(Closed):
                    self._post(forget)
            raise

    def _post(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._stopped:
                raise Closed(f"{self._name} was closed")
            context = copy_context()
            context.run(holders.caller.set, threading.current_thread())
            self._loop.call_soon_threadsafe(action, context=context)

    def stop(self) -> None:
        """End the thread, and whoever still waits for it gets Closed."""
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if not stopped:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
