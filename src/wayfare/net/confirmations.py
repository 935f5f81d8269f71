"""Whether what a client subscribed to, or advertised, is in effect in the whole tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wayfare.core.client import Client
from wayfare.core.effects import Confirmed, Effect
from wayfare.core.filters import Filter
from wayfare.core.templates import Template
from wayfare.errors import NotConfirmed
from wayfare.net.life import Life
from wayfare.net.unrecorded import Unrecorded

UNTIL_SUBSCRIBED = "what is published there before that may be missed"
UNTIL_ADVERTISED = "what is published meanwhile is delivered all the same"
REPORT_BEFORE = 0.8  # of the time that an application waits, its broker reports what is missing


class Confirmations:
    """The requests of one client, and what came of them."""

    def __init__(
        self,
        core: Client,
        life: Life,
        recorder: Unrecorded,
        perform: Callable[[list[Effect]], None],
        is_away: Callable[[], bool],
        patience: float,
    ) -> None:
        """Without a time-out of its own, a request waits for `patience` seconds; 0: it does not wait."""
        self._patience = patience
        self._core = core
        self._life = life
        self._recorder = recorder
        self._perform = perform
        self._is_away = is_away
        self._missing: tuple[str, ...] = ()  # that the broker reported last
        # For the event log: the filter of each request, and the time of the request.
        self._subscribed: dict[int, tuple[Filter, int]] = {}

    def on_confirmed(self, effect: Confirmed) -> None:
        self._missing = effect.missing
        if not effect.missing:
            for number in [one for one in self._subscribed if one <= effect.subs]:
                filter, asked_ns = self._subscribed.pop(number)
                self._recorder.fact("confirmed", filter=filter, since_ns=asked_ns)
        self._life.changed.set()

    async def advertised(self, offered: Filter, timeout: float | None = None) -> None:
        """Wait until the advertisement is known everywhere, and the subscriptions to it are known here."""
        timeout = self._patience if timeout is None else timeout
        number = self._ask(timeout, ads=True)
        await self._wait(
            timeout,
            lambda: self._core.confirmed.ads >= number,
            f"the advertisement of {offered}",
            UNTIL_ADVERTISED,
        )

    async def subscribed(self, wanted: Filter | Template, timeout: float | None = None) -> None:
        """Wait until the subscription is in effect wherever something that matches may be published."""
        timeout = self._patience if timeout is None else timeout
        asked_ns = self._recorder.time_ns()
        number = self._ask(timeout, subs=True)
        if isinstance(wanted, Filter):
            self._subscribed[number] = wanted, asked_ns
        await self._wait(
            timeout,
            lambda: self._core.confirmed.subs >= number,
            f"the subscription to {wanted}",
            UNTIL_SUBSCRIBED,
        )

    async def everything(self, timeout: float | None = None) -> None:
        """Wait until all that the client has subscribed to and advertised by now is in effect."""
        timeout = self._patience if timeout is None else timeout
        number = self._ask(timeout, ads=True, subs=True)
        await self._wait(
            timeout,
            lambda: min(self._core.confirmed.ads, self._core.confirmed.subs) >= number,
            f"what {self._core.name} has subscribed to and advertised",
            UNTIL_SUBSCRIBED,
        )

    def _ask(self, timeout: float, *, ads: bool = False, subs: bool = False) -> int:
        report_ns = int(timeout * REPORT_BEFORE * 1e9)
        self._perform(self._core.probe(ads=ads, subs=subs, report_ns=report_ns))
        return self._core.probes

    async def _wait(
        self, timeout: float, is_done: Callable[[], bool], what: str, until: str
    ) -> None:
        if not timeout:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._life.until(lambda: is_done() or self._is_away())
        except TimeoutError:
            raise NotConfirmed(what, timeout, self._missing, until) from None
