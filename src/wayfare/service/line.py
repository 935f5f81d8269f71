"""What the accesses of all adapters have in common: they wait for answers, and they end once."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from wayfare.errors import Closed
from wayfare.service.addresses import Place
from wayfare.service.system import Lost

ANSWER_S = 10.0  # seconds that an access point may take for an answer
CLOSING_S = 2.0  # ... to a goodbye

Answer = TypeVar("Answer")


class Line:
    """A connection to an access point. Adapters say in `cut` what is left to be closed."""

    def __init__(self, place: Place, lost: Lost) -> None:
        self.place = place
        self.gone: str | None = None  # why there is no connection
        self._lost = lost
        self._given = False  # whether somebody has this access, to be told when it is lost
        self._waiting: set[asyncio.Future[Any]] = set()

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

    async def answer(self, future: asyncio.Future[Answer]) -> Answer:
        """Wait for an answer of the access point. Without, there is no use in going on."""
        if not future.done():
            self.alive()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await future
        except TimeoutError:
            self.end(f"no answer within {ANSWER_S:g} s")
            raise Closed(f"the connection to {self.place} is gone: {self.gone}") from None
        finally:
            self._waiting.discard(future)
