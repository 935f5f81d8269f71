"""The event log of a live client, in the schema that simulations have, too: see `wayfare.eventlog`.

Times are nanoseconds since 1970 that never go back: the clock of the day when the process started,
and what has passed since. So rows of several processes of one machine can be put in order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from wayfare.core.effects import Notify
from wayfare.core.filters import Filter
from wayfare.core.messages import Area, Retain, State
from wayfare.core.predicates import Value
from wayfare.core.templates import Template
from wayfare.eventlog import Event, JsonLinesWriter, ParquetWriter, writer
from wayfare.net.telling import Teller
from wayfare.net.unrecorded import Unrecorded

if TYPE_CHECKING:
    from wayfare.net.local_broker import LocalBroker

CLOCK_NS = time.time_ns() - time.monotonic_ns()
WRITE_EVERY = 1_000  # events; a file gets them in one go

logger = logging.getLogger("wayfare.client")


class Recorder(Unrecorded):
    """Writes down what happens to one client, or tells it: a function, or the network."""

    def __init__(
        self,
        client: str,
        events: Callable[[Event], object] | str | PathLike[str],
        log: Callable[[str], LocalBroker],
    ) -> None:
        """`log` makes a client of a broker, to publish events by."""
        self._client = client
        self._events, self._log = events, log
        self._waiting: list[Event] = []
        self._file: ParquetWriter | JsonLinesWriter | None = None
        self._teller: Teller | None = None
        self._tell: Callable[[Event], object] | None = None  # it is open

    async def open(self) -> None:
        events = self._events
        if callable(events):
            self._tell = events
        elif isinstance(events, str) and "://" in events:
            self._teller = Teller(self._log(events), self._client)
            await self._teller.open()
            self._tell = self._teller
        else:
            self._file = writer(Path(events), run=self._client)
            self._tell = self._keep

    def time_ns(self) -> int:
        return time.monotonic_ns() + CLOCK_NS

    def fact(
        self,
        kind: str,
        *,
        broker: str | None = None,
        epoch: int | None = None,
        number: int | None = None,
        filter: Filter | None = None,
        attributes: dict[str, Value] | None = None,
        count: int | None = None,
        reason: str | None = None,
        location: str | None = None,
        follows: Template | None = None,
        publisher: str | None = None,
        delivery: int | None = None,
        path: list[str] | None = None,
        entries: dict[str, int] | None = None,
        since_ns: int | None = None,
        expires_ns: int | None = None,
        area: Area | None = None,
    ) -> None:
        self._put(
            Event(
                self.time_ns(),
                kind,
                self._client,
                broker,
                publisher,
                number,
                delivery,
                epoch,
                filter=filter,
                attributes=attributes,
                count=count,
                reason=reason,
                location=location,
                follows=follows,
                path=path,
                entries=entries,
                since_ns=since_ns,
                expires_ns=expires_ns,
                area=area,
            )
        )

    def asked(self, kind: str, wanted: Filter | Template, reason: str | None, ask: int = 0) -> None:
        if isinstance(wanted, Template):
            self.fact(kind, follows=wanted, reason=reason)
        else:
            self.fact(kind, filter=wanted, reason=reason, count=ask or None)

    def became(self, state: State) -> None:
        at = None if state.position is None else Area((), (*state.position, 0.0))
        self.fact("became", location=state.location, attributes=dict(state.values), area=at)

    def published(
        self,
        number: int,
        epoch: int,
        attributes: Mapping[str, Value],
        retain: Retain | None = None,
        expires_ns: int = 0,
        area: Area | None = None,
    ) -> None:
        self.fact(
            "published",
            number=number,
            epoch=epoch,
            attributes=dict(attributes),
            reason="clear" if retain is not None and retain.clear else None,
            path=None if retain is None else list(retain.names),
            expires_ns=expires_ns or None,
            area=area,
        )

    def delivered(self, effect: Notify, delivery: int, epoch: int) -> None:
        notification = effect.notification
        event = Event(  # by position, which takes half the time
            time.monotonic_ns() + CLOCK_NS,
            "delivered",
            self._client,
            None,
            notification.publisher,
            notification.number,
            delivery,
            epoch,
            None,
            notification.attributes,
        )
        if effect.past:
            event.reason = "past"
        elif effect.late:
            event.reason = "late"
        elif effect.ask:
            event.reason, event.count = "current", effect.ask
        self._put(event)

    async def close(self) -> None:
        if self._teller is not None:
            await self._teller.close()
        if self._file is not None:
            self._write(self._waiting)
            self._file.__exit__(None, None, None)
            self._file = None

    def _put(self, event: Event) -> None:
        if self._tell is None:
            return
        try:
            self._tell(event)
        except Exception:  # the log must not cost the application what it is about
            logger.exception("the event log of %s failed", self._client)

    def _keep(self, event: Event) -> None:
        if self._file is not None:
            self._waiting.append(event)
            if len(self._waiting) >= WRITE_EVERY:
                waiting, self._waiting = self._waiting, []
                self._write(waiting)

    def _write(self, events: Iterable[Event]) -> None:
        if self._file is not None:
            self._file.write(events)
