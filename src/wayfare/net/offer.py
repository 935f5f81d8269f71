"""What a client advertises, and whether anybody wants it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable

from wayfare.core.filters import Filter
from wayfare.errors import Closed
from wayfare.net.confirmations import Confirmations
from wayfare.net.life import Life
from wayfare.net.options import check_options
from wayfare.net.profile import Profile
from wayfare.net.stream import Stream


class Offer(Stream[bool]):
    """An advertisement, and whether anybody wants what it offers. Made by `Client.offer`.

    Iterating gives the answer, and each other one when it comes.
    """

    def __init__(
        self, life: Life, profile: Profile, confirmations: Confirmations, offered: Filter
    ) -> None:
        super().__init__()
        self.filter = offered
        self._life = life
        self._profile = profile
        self._confirmations = confirmations
        self._told: bool | None = None  # the last answer that `get` gave
        self._used = False  # begun, or closed

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warnings.warn(
                f"the offer of {self.filter} was never used: await it, iterate over it, or use it with"
                " `async with`",
                RuntimeWarning,
                source=self,
                stacklevel=2,
            )

    @property
    def wanted(self) -> bool | None:
        """Whether anybody wants it, as far as is known; None: no broker has said anything yet."""
        return self._profile.is_wanted(self.filter) if self._open else None

    async def get(self, timeout: float | None = None) -> bool:
        """The answer, as soon as there is one that this has not given before; or TimeoutError."""
        await self._wait(lambda: self.wanted not in (None, self._told), timeout)
        self._told = self.wanted
        return bool(self._told)

    async def until_wanted(self, timeout: float | None = None) -> None:
        """Wait until somebody wants it; TimeoutError if that takes longer."""
        await self._wait(lambda: self.wanted is True, timeout)

    async def _take_effect(self, timeout: float | None) -> None:
        await self._confirmations.advertised(self.filter, timeout)

    async def close(self) -> None:
        """Withdraw the advertisement. A client with a store keeps it."""
        self._used = True
        if self._open:
            self._open = False
            if self._life.closed:
                return
            self._profile.unwatch(self.filter)
            if not self._profile.lasting:
                self._profile.unadvertise(self.filter)

    def give_back(self, wanted: bool) -> None:
        """It was told to somebody who is not there any more."""
        self._told = None

    def _start(self) -> None:
        self._used = True
        self._life.check()
        self._profile.advertise(self.filter)
        self._profile.watch(self.filter)

    async def _wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        self._used = True
        check_options(timeout=timeout)
        if not self._begun:
            self._begin()
        async with asyncio.timeout(timeout):
            await self._life.until(lambda: self._is_over() or condition())
        if self._is_over():
            raise Closed(f"the offer of {self.filter} is closed")

    def _is_over(self) -> bool:
        return not (self._open and self._profile.is_watched(self.filter))
