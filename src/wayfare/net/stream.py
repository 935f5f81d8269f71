"""What an application begins, gets one thing after the other from, and closes: a subscription, an offer."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from wayfare.errors import Closed, NotConfirmed
from wayfare.net.options import check_options

T = TypeVar("T")

logger = logging.getLogger("wayfare.client")


class Stream(AsyncIterator[T], ABC, Generic[T]):
    """It begins when it is awaited, entered, or first asked for something."""

    def __init__(self) -> None:
        self._begun = False  # once; what was closed begins again only when it is asked to
        self._open = False

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        self._begin()
        await self._confirmed()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def __anext__(self) -> T:
        try:
            return await self.get()
        except Closed:
            raise StopAsyncIteration from None

    @abstractmethod
    async def get(self, timeout: float | None = None) -> T:
        """The next one; TimeoutError if none comes in time, Closed if none will."""

    @abstractmethod
    async def close(self) -> None:
        """Nothing comes any more."""

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until it is in effect in the whole tree.

        For a subscription: what is published anywhere from then on is delivered. For an offer: all brokers
        know the advertisement, and which parts of it they want. NotConfirmed names the neighbours of the broker
        that have not confirmed it in time; the time is the option `confirm` of the client unless it is given here.
        """
        check_options(timeout=timeout)
        if not self._begun:
            self._begin()
        await self._take_effect(timeout)

    @abstractmethod
    async def _take_effect(self, timeout: float | None) -> None:
        """Wait for the confirmation of the tree; NotConfirmed if it does not come in time."""

    async def _confirmed(self) -> None:
        """As `ready`, but log a warning in place of an error."""
        try:
            await self.ready()
        except NotConfirmed as error:
            logger.warning("%s", error)

    @abstractmethod
    def _start(self) -> None:
        """Say that it begins."""

    def _begin(self) -> None:
        if not self._open:
            self._start()
            self._begun = self._open = True
