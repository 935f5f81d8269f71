"""The events of a client as notifications: whoever subscribes to them learns what happens, as it happens.

A client of its own publishes them, with the attributes that `wayfare.eventlog.fields` gives them. They
wait while brokers have no time for them, and never hold up the client that they are about.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from wayfare.errors import InvalidNotification, WayfareError
from wayfare.eventlog import IS_EVENT, NEEDED, Event, fields

if TYPE_CHECKING:
    from wayfare.net.local_broker import LocalBroker

WAITING_MAX = 10_000  # events; of more, the newest are left out
CLOSE_S = 5.0  # that the last of them may take

logger = logging.getLogger("wayfare.client")


class Teller:
    """Publishes what it is called with, one after the other."""

    def __init__(self, log: LocalBroker, run: str) -> None:
        self._log, self._run = log, run
        self._waiting: asyncio.Queue[Event] = asyncio.Queue(WAITING_MAX)
        self._task: asyncio.Task[None] | None = None
        self._left_out = False

    async def open(self) -> None:
        await self._log.open()
        await self._log.advertise(IS_EVENT)
        self._task = asyncio.get_running_loop().create_task(self._publish())

    def __call__(self, event: Event) -> None:
        if self._task is None or self._task.done():
            return
        if event.attributes is not None and event.attributes.keys() >= NEEDED:
            return  # it is about an event itself: to tell that would never end
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            if not self._left_out:
                logger.warning("too many events of %s wait: some are left out", self._run)
            self._left_out = True

    async def close(self) -> None:
        if self._task is not None:
            told = asyncio.create_task(self._waiting.join())
            await asyncio.wait(
                {told, self._task}, timeout=CLOSE_S, return_when=asyncio.FIRST_COMPLETED
            )
            told.cancel()
            self._task.cancel()
        await self._log.close()

    async def _publish(self) -> None:
        try:
            while True:
                told = fields(await self._waiting.get(), self._run)
                with suppress(InvalidNotification):  # it is too large with all that is around it
                    await self._log.publish(told)
                self._waiting.task_done()
        except WayfareError as error:
            logger.warning("the events of %s are not told any more: %s", self._run, error)
