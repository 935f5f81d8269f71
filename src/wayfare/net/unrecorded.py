"""The event log of a client whose events nobody asked for: it takes everything, and does nothing."""

from __future__ import annotations

from collections.abc import Mapping

from wayfare.core.effects import Notify
from wayfare.core.filters import Filter
from wayfare.core.messages import Area, Retain, State
from wayfare.core.predicates import Value
from wayfare.core.templates import Template


class Unrecorded:
    """What a client tells of itself; `wayfare.net.recording`, which takes its time to load, writes it down."""

    async def open(self) -> None:
        """From now on; what happened before is not told."""

    async def close(self) -> None:
        """All is told."""

    def time_ns(self) -> int:
        """The time that an event has which is recorded now."""
        return 0

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
    ) -> None: ...

    def asked(self, kind: str, wanted: Filter | Template, reason: str | None, ask: int = 0) -> None:
        """Subscribed or unsubscribed, followed or unfollowed."""

    def became(self, state: State) -> None: ...

    def published(
        self,
        number: int,
        epoch: int,
        attributes: Mapping[str, Value],
        retain: Retain | None = None,
        expires_ns: int = 0,
        area: Area | None = None,
    ) -> None: ...

    def delivered(self, effect: Notify, delivery: int, epoch: int) -> None: ...
