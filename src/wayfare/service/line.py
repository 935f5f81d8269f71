"""What the accesses of all adapters have in common: they wait for answers, and they end once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

from wayfare.errors import Closed
from wayfare.service.addresses import Place
from wayfare.service.system import Lost

ANSWER_S = 10.0  # seconds that an access point may take for an answer, since it was heard last
ANSWER_MAX_S = 120.0  # ... and whatever else it says
CLOSING_S = 2.0  # ... to a goodbye

Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


class Line:
    """A connection to an access point. Adapters say in `cut` what is left to be closed."""

    def __init__(self, place: Place, lost: Lost) -> None:
        self.place = place
        self.gone: str | None = None  # why there is no connection
        self._lost = lost
        self._given = False  # whether somebody has this access, to be told when it is lost
        self._waiting: dict[asyncio.Future[Any], float] = {}  # for an answer, since when
        self._answered_at = 0.0  # the last time, by the clock of the event loop
        self._watchdog: asyncio.TimerHandle | None = None

    def cut(self) -> None:
        """Close what is open, at once."""
        raise NotImplementedError

    def welcome(self) -> None:
        """It is open, and about to be given to whoever asked for it."""
        if self.gone is not None:
            raise self.place.unanswered(self.gone)
        self._given = True

    def alive(self) -> None:
        if self.gone is not None:
            raise Closed(f"the connection to {self.place} is gone: {self.gone}")

    def leave(self, reason: str) -> bool:
        """It is over; whoever waits for an answer gets none. False if it was over already."""
        if self.gone is not None:
            return False
        self.gone = reason
        if self._watchdog is not None:
            self._watchdog.cancel()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(Closed(f"the connection to {self.place} is gone: {reason}"))
        return True

    def end(self, reason: str) -> None:
        """It is over, but not because of `close`."""
        if self.leave(reason):
            self.cut()
            if self._given:
                self._lost(reason)

    def confused(self, error: Exception) -> None:
        """What came cannot be read: better to begin anew than to go on without hearing."""
        log.exception("%s said something that cannot be read", self.place)
        self.end(f"it said something that cannot be read: {error!r}")

    async def answer(self, future: asyncio.Future[Answer]) -> Answer:
        """Wait for an answer of the access point. If none comes at all, there is no use in going on.

        By a slow link many answers may take long, one after the other.
        """
        if not future.done():
            self.alive()
        loop = asyncio.get_running_loop()
        self._waiting[future] = loop.time()
        if self._watchdog is None:
            self._watchdog = loop.call_later(ANSWER_S, self._check_on)
        try:
            answer = await future
            self._answered_at = loop.time()
            return answer
        finally:
            self._waiting.pop(future, None)

    def _check_on(self) -> None:
        self._watchdog = None
        if self.gone is not None or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        since = next(iter(self._waiting.values()))
        end = min(max(since, self._answered_at) + ANSWER_S, since + ANSWER_MAX_S)
        if end > loop.time():
            self._watchdog = loop.call_at(end, self._check_on)
        else:
            self.end(f"no answer within {round(loop.time() - since, 1):g} s")
