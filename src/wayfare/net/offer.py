"""What a client advertises, and whether anybody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Protocol, Self

from wayfare.core.filters import Filter
from wayfare.errors import Closed
from wayfare.net.options import check_options

Until = Callable[[Callable[[], bool]], Awaitable[None]]  # waits for a condition


class Publisher(Protocol):
    """Who offers something: a client."""

    def begin_offer(self, offered: Filter) -> None: ...
    def end_offer(self, offered: Filter) -> None: ...
    def is_watching(self, offered: Filter) -> bool: ...
    def is_wanted(self, offered: Filter) -> bool | None: ...


class Offer(AsyncIterator[bool]):
    """An advertisement, and whether anybody wants what it offers. Made by `Client.offer`.

    Iterating gives the answer, and each other one when it comes.
    """

    def __init__(self, client: Publisher, offered: Filter, until: Until) -> None:
        self.filter = offered
        self._client = client
        self._until = until
        self._begun = False  # once; what was closed begins again only when it is asked to
        self._open = False
        self._told: bool | None = None  # the last answer that `get` gave

    @property
    def wanted(self) -> bool | None:
        """Whether anybody wants it, as far as is known; None: no broker has said anything yet."""
        return self._client.is_wanted(self.filter) if self._open else None

    def __await__(self) -> Generator[Any, None, Offer]:
        yield from ()
        self._begin()
        return self

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def __anext__(self) -> bool:
        try:
            return await self.get()
        except Closed:
            raise StopAsyncIteration from None

    async def get(self, timeout: float | None = None) -> bool:
        """The answer, as soon as there is one that this has not given before; or TimeoutError."""
        await self._wait(lambda: self.wanted not in (None, self._told), timeout)
        self._told = self.wanted
        return bool(self._told)

    async def until_wanted(self, timeout: float | None = None) -> None:
        """Wait until somebody wants it; TimeoutError if that takes longer."""
        await self._wait(lambda: self.wanted is True, timeout)

    async def close(self) -> None:
        """Withdraw the advertisement. A client with a store keeps it."""
        if self._open:
            self._open = False
            self._client.end_offer(self.filter)

    def give_back(self, wanted: bool) -> None:
        """It was told to somebody who is not there any more."""
        self._told = None

    def _begin(self) -> None:
        if not self._open:
            self._client.begin_offer(self.filter)
            self._begun = self._open = True

    async def _wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        check_options(timeout=timeout)
        if not self._begun:
            self._begin()
        async with asyncio.timeout(timeout):
            await self._until(lambda: self._is_over() or condition())
        if self._is_over():
            raise Closed(f"the offer of {self.filter} is closed")

    def _is_over(self) -> bool:
        return not (self._open and self._client.is_watching(self.filter))
