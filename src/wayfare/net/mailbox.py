"""The subscription of a client to an address of its own: what comes there is for the library, not for the application."""

from __future__ import annotations

from collections.abc import Callable

from wayfare.core.filters import Filter
from wayfare.net.intake import Intake
from wayfare.net.options import QUEUE_MAX
from wayfare.net.subscription import Notification, Subscription


class Mailbox(Subscription):
    """What comes is taken at once, so it is never full."""

    def __init__(
        self, intake: Intake, address: Filter, take: Callable[[Notification], None]
    ) -> None:
        super().__init__(intake, address, None, 0, QUEUE_MAX, "wait")
        self._take = take
        self._used = True

    def put(self, notification: Notification) -> None:
        self._take(notification)
        self._client.done(notification)
