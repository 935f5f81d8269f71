"""What a client with a store writes down, and with which notifications its application is not done.

A delivery is done when every subscription that got it says so; only then is it acknowledged. What comes for a
subscription of the last process waits here until somebody subscribes to the same again.
"""

from __future__ import annotations

from collections.abc import Sequence

from wayfare.core.client import Client, Memory
from wayfare.core.filters import Filter
from wayfare.core.messages import ClientId, Publish
from wayfare.core.templates import Template
from wayfare.net.client_store import ClientStore
from wayfare.net.subscription import Notification

ATTEMPTS_MAX = 1_000  # notifications of which is known that the application had them


class Keeping:
    """The memory of one client, between what happened and its file."""

    def __init__(self, core: Client, store: ClientStore) -> None:
        self._core = core
        self._store = store
        self._published: list[Publish] = []  # not written down yet
        self._saved: Memory | None = None
        self._saved_filters = False
        self._progressed: dict[ClientId, None] = {}  # publishers of which more is done
        # publisher, number, request for a current value -> subscriptions that are not done with it
        self._busy: dict[tuple[str, int, int], int] = {}
        # nobody has subscribed again yet
        self._unclaimed: dict[Filter | Template, list[Notification]] = {}
        # what the application had and is not done with -> how often it had it
        self._attempts: dict[tuple[str, int], int] = {
            (who, number): count for who, number, count in store.attempts()
        }
        self._saved_attempts = True
        if (left := store.load()) is not None:
            core.remember(*left)

    def publish(self) -> None:
        """Something was published."""
        self._published.append(self._core.outbox[-1])

    def change(self) -> None:
        """What the client wants, or offers, is another thing now."""
        self._saved_filters = False

    def hand_out(
        self, notification: Notification, takers: int, unclaimed: Sequence[Filter | Template]
    ) -> None:
        """So many subscriptions get it, and will say when they are done; the others are not there yet."""
        publisher, number = ClientId(notification.publisher), notification.number
        if self._core.has_in_hand(publisher, number, notification.request):
            self._busy[publisher, number, notification.request] = takers + len(unclaimed)
        for wanted in unclaimed:
            self._unclaimed.setdefault(wanted, []).append(notification)

    def claim(self, wanted: Filter | Template) -> list[Notification]:
        """What has come for a subscription that is there now."""
        return self._unclaimed.pop(wanted, [])

    def redelivered(self, notification: Notification) -> int:
        """How often an application of this or the last process had it."""
        return self._attempts.get((notification.publisher, notification.number), 0)

    def taken(self, notification: Notification) -> None:
        """The application has it in hand."""
        key = notification.publisher, notification.number
        if (*key, notification.request) in self._busy:
            self._attempts[key] = notification.redelivered + 1
            if len(self._attempts) > ATTEMPTS_MAX:
                del self._attempts[next(iter(self._attempts))]
            self._saved_attempts = False

    def done(self, notification: Notification) -> bool:
        """A subscription is done with it; True if all are."""
        key = notification.publisher, notification.number
        busy = (*key, notification.request)
        if busy not in self._busy:
            return False
        self._busy[busy] -= 1
        if self._busy[busy]:
            return False
        del self._busy[busy]
        self._saved_attempts &= self._attempts.pop(key, None) is None
        self._progressed[ClientId(notification.publisher)] = None
        return True

    def keep(self, acknowledged: int) -> None:
        """Write down what changed; StoreError if that cannot be done."""
        mine, memory = self._core, self._core.memory()
        same = memory == self._saved and self._saved_filters and self._saved_attempts
        if same and not (self._published or self._progressed):
            return
        held = None if self._saved_filters else mine.held()
        progress = {who: mine.progress(who) for who in self._progressed}
        attempts = None if self._saved_attempts else self._attempts
        self._store.keep(memory, held, self._published, acknowledged, progress, attempts)
        self._saved, self._saved_filters, self._saved_attempts = memory, True, True
        self._published, self._progressed = [], {}

    def close(self) -> None:
        self._store.close()
