"""What one client may subscribe to, publish and advertise: lists of filters.

A client may ask for less than a granted filter, never for more. Whoever knows which client is on a
connection says what it may do (`Granted`), in front of everything that the client says; the broker
asks here before it does what a message wants. An attachment by digest is asked about when its filters
are known.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wayfare.core import messages as m
from wayfare.core.filters import Filter

Granted = tuple[Filter, ...] | None  # None: everything

TOLD_MAX = 200  # characters of one filter in a refusal, and of all that are granted


class Grants(msgspec.Struct, frozen=True):
    """What a client may do."""

    client: str  # for texts
    subscribe: Granted = None
    publish: Granted = None
    advertise: Granted = None

    def refusal(self, message: m.AnyMessage) -> str | None:
        """Why the client may not say this; None if it may."""
        if isinstance(message, m.Publish):
            if self.publish is None or any(one.matches(message.attributes) for one in self.publish):
                return None
            # Its values are not told: this goes into logs.
            named = ", ".join(message.attributes) or "no attributes"
            return self._told("publish", self.publish, f"a notification with {named}")
        if isinstance(message, m.Subscribe):
            return self._exceeded("subscribe to", self.subscribe, (message.filter,))
        if isinstance(message, m.Advertise):
            return self._exceeded("advertise", self.advertise, (message.filter,))
        if isinstance(message, m.Attach):
            return self._exceeded(
                "subscribe to", self.subscribe, message.subscriptions
            ) or self._exceeded("advertise", self.advertise, message.advertisements)
        return None

    def _exceeded(self, verb: str, granted: Granted, asked: Iterable[Filter]) -> str | None:
        if granted is None:
            return None
        for one in asked:
            if not all(any(g.covers(part) for g in granted) for part in one.parts()):
                return self._told(verb, granted, str(one))
        return None

    def _told(self, verb: str, granted: tuple[Filter, ...], what: str) -> str:
        allowed = _short("; ".join(map(str, granted))) or "nothing"
        return f"{self.client} may not {verb} {_short(what)}: its account allows {verb} {allowed}"


def _short(text: str) -> str:
    return text if len(text) <= TOLD_MAX else text[: TOLD_MAX - 3] + "..."
