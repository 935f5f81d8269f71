"""Where notifications go that have come: to the subscriptions of a client, which may be full.

Who is full makes all wait: what is not taken is not acknowledged, so the broker sends no more. With a store, what
comes for a subscription of the last process waits until somebody subscribes to the same again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from wayfare.core.client import Client
from wayfare.core.filters import Filter
from wayfare.core.messages import ClientId
from wayfare.core.templates import Template
from wayfare.net.confirmations import Confirmations
from wayfare.net.conversation import Conversation
from wayfare.net.keeping import Keeping
from wayfare.net.life import Life
from wayfare.net.profile import Profile
from wayfare.net.subscription import Notification, Subscription


class Intake:
    """The subscriptions of one client, by what they want."""

    def __init__(
        self,
        core: Client,
        life: Life,
        profile: Profile,
        conversation: Conversation,
        keeping: Keeping | None,
        confirmations: Confirmations,
    ) -> None:
        self.full: set[Subscription] = set()  # that have no room, so that all wait
        self.check = life.check
        self._core = core
        self._life = life
        self._profile = profile
        self._conversation = conversation
        self._keeping = keeping
        self._confirmations = confirmations
        self._subscriptions: dict[Filter | Template, list[Subscription]] = {}
        self._asking: dict[int, Subscription] = {}  # by their requests for current values
        life.wakers.append(self._wake)

    def hand_out(self, notification: Notification, matching: Sequence[Filter | Template]) -> None:
        there = self._subscriptions
        takers = [one for wanted in matching for one in there.get(wanted, ())]
        if notification.request in self._asking:
            takers = [one for one in takers if one is self._asking[notification.request]]
        if self._keeping is not None:
            notification.redelivered = self._keeping.redelivered(notification)
            unclaimed = [wanted for wanted in matching if wanted not in there]
            self._keeping.hand_out(notification, len(takers), unclaimed)
            self._conversation.flush_soon()
        for one in takers:
            one.put(notification)

    def skip(self, notification: Notification) -> None:
        """It is for nobody here."""
        publisher, number = ClientId(notification.publisher), notification.number
        ask = notification.request
        if self._keeping is not None and self._core.has_in_hand(publisher, number, ask):
            done = self._core.confirm(publisher, number, time.monotonic_ns(), ask)
            self._conversation.perform(done)
            self._conversation.flush_soon()

    def stay_behind(self, wanted: Filter | Template) -> None:
        """The client is somewhere else now, and what was local there ends."""
        for one in self._subscriptions.pop(wanted, []):
            one.end()
            self.has_room(one)

    # What subscriptions ask for

    def begin(self, subscription: Subscription) -> None:
        self.check()
        wanted, since_ns, kept = subscription.filter, subscription.since_ns, self._keeping
        if kept is None or since_ns or not self._profile.has(wanted, subscription.terms):
            ask = self._profile.want(wanted, subscription.terms, since_ns, subscription.retained)
            if ask:
                self._asking[ask] = subscription
        self._subscriptions.setdefault(wanted, []).append(subscription)
        if kept is not None:
            for notification in kept.claim(wanted):
                subscription.put(notification)

    async def confirmed(self, wanted: Filter | Template, timeout: float | None) -> None:
        await self._confirmations.subscribed(wanted, timeout)

    def end(self, subscription: Subscription) -> None:
        there = self._subscriptions.get(subscription.filter, [])
        if subscription in there:
            there.remove(subscription)
            if not there:
                del self._subscriptions[subscription.filter]
            if not self._life.closed and not self._profile.lasting:
                self._profile.unwant(subscription.filter)
                if not there:
                    self._asking = {
                        ask: one
                        for ask, one in self._asking.items()
                        if one.filter != subscription.filter
                    }
        self.has_room(subscription)

    def withdraw(self, wanted: Filter | Template) -> None:
        """Forget a subscription that was kept."""
        if self._keeping is not None:
            self._profile.drop(wanted)
            for notification in self._keeping.claim(wanted):
                self.done(notification)

    def settle(self) -> None:
        """The client is closed by its application: what that has in hand is done."""
        for subscriptions in self._subscriptions.values():
            for one in subscriptions:
                one.settle()

    def taken(self, notification: Notification) -> None:
        """The application has got it."""
        if self._keeping is not None and not self._life.closed:
            self._keeping.taken(notification)
            self._conversation.flush_soon()

    def done(self, notification: Notification) -> None:
        """A subscription is done with it."""
        kept = self._keeping
        if kept is not None and kept.done(notification) and not self._life.closed:
            publisher, number = ClientId(notification.publisher), notification.number
            now, ask = time.monotonic_ns(), notification.request
            self._conversation.perform(self._core.confirm(publisher, number, now, ask))
            self._conversation.flush_soon()

    def has_no_room(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions.get(subscription.filter, ()):
            self.full.add(subscription)

    def has_room(self, subscription: Subscription) -> None:
        if subscription in self.full:
            self.full.discard(subscription)
            self._conversation.take_held()

    def _wake(self) -> None:
        for subscriptions in self._subscriptions.values():
            for one in subscriptions:
                one.wake()
