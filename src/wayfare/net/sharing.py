"""Queue groups of a client: what `core.membership` decides, on sockets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from wayfare.core import messages as m
from wayfare.core.client import Client
from wayfare.core.effects import Effect, Lost
from wayfare.core.filters import Filter
from wayfare.core.membership import (
    Action,
    Enrol,
    Joined,
    Lacking,
    Listen,
    Membership,
    NoRoom,
    Ready,
    Tell,
)
from wayfare.core.predicates import Value
from wayfare.core.reserved import REPLY_TO
from wayfare.core.templates import Template
from wayfare.errors import NotConfirmed
from wayfare.net.alarm import Alarm
from wayfare.net.confirmations import Confirmations
from wayfare.net.intake import Intake
from wayfare.net.life import Life
from wayfare.net.mailbox import Mailbox
from wayfare.net.profile import Profile
from wayfare.net.subscription import Notification, Subscription
from wayfare.net.tasks import Tasks

UNTIL_JOINED = "what is published before that may be missed"
RETRY_S = 5.0  # until the brokers are asked again whether the address of a member is in effect

logger = logging.getLogger("wayfare.client")

Publish = Callable[[Mapping[str, Value], bytes], Coroutine[Any, Any, int]]


class Sharing:
    """The memberships of one client."""

    def __init__(
        self,
        client: Client,
        life: Life,
        profile: Profile,
        intake: Intake,
        confirmations: Confirmations,
        patience: float,
        publish: Publish,
        perform: Callable[[list[Effect]], None],
        mark: Callable[[Notification], None],
        tell_lost: Callable[[Lost], None],
    ) -> None:
        """`mark` is for requests; `patience` is how long `subscribe` waits until a group is in effect."""
        self.life, self.profile, self.intake = life, profile, intake
        self.confirmations, self.patience = confirmations, patience
        self.client, self.mark = client, mark
        self._publish, self._perform, self._tell_lost = publish, perform, tell_lost
        self._members: dict[Member, Subscription] = {}
        self._outgoing: deque[Tell | Filter] = deque()  # in this order
        self._tasks = Tasks()
        self._draining = False
        self._alarm = Alarm(self._tick)
        self._flushing = False
        life.wakers.append(self._wake)

    def subscription(
        self,
        group: str,
        wanted: Filter,
        queue: int,
        *,
        prefetch: int,
        away_ns: int,
        slow_ns: int | None,
        ack: bool,
    ) -> Subscription:
        machine = Membership(group, wanted, uuid4().hex, prefetch, away_ns, slow_ns)
        return SharedSubscription(Member(self, machine), wanted, queue, ack=ack)

    # What happens to the client

    def on_connected(self) -> None:
        for one in list(self._members):
            self.perform(one, one.machine.on_connected(time.monotonic_ns()))

    def on_lost(self) -> None:
        for one in list(self._members):
            self.perform(one, one.machine.on_lost(time.monotonic_ns()))

    async def leave(self, timeout: float, *, failed: bool) -> None:
        """Leave all groups, so that others get what is not done at once."""
        for subscription in list(self._members.values()):
            subscription.finish(failed=failed)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._outgoing and self.client.link is not None:
                    await self._tasks.join()

    def stop(self) -> None:
        self._alarm.clear()
        self._tasks.cancel()

    # What members ask for

    def begin(self, member: Member, subscription: Subscription) -> None:
        self._members[member] = subscription
        self.perform(member, member.machine.begin())

    def end(self, member: Member) -> None:
        if self._members.pop(member, None) is None:
            return
        if self.life.closed:
            return
        self.perform(member, member.machine.leave(time.monotonic_ns()))
        if member.mailbox is not None:
            self.intake.end(member.mailbox)
            self._send(member.machine.offered)

    def _send(self, outgoing: Tell | Filter) -> None:
        """Publish this, or withdraw an advertisement behind what was published."""
        self._outgoing.append(outgoing)
        if not self._draining:
            self._draining = True
            self._tasks.run(self._drain())

    def flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        for one in list(self._members):
            self.perform(one, one.machine.flush(time.monotonic_ns()))

    def perform(self, member: Member, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Listen):
                self._tasks.run(self._listen(member, action))
            elif isinstance(action, Enrol):
                self._perform(self.client.enlist(action.message))
            elif isinstance(action, Tell):
                self._send(action)
            elif isinstance(action, Ready):
                self._wake_reader(member)
            elif isinstance(action, NoRoom):
                member.shortage = action.reason
                self.life.changed.set()
            elif isinstance(action, Joined):
                self.life.changed.set()
            elif isinstance(action, Lacking):
                self._tell_lost(Lost(action.count, action.reason))
        due = member.machine.next_deadline()
        if due is not None:
            self._alarm.set(due, time.monotonic_ns())

    async def _drain(self) -> None:
        try:
            while self._outgoing:
                first = self._outgoing[0]
                if isinstance(first, Filter):
                    self.profile.unadvertise(first)
                else:
                    await self._publish(first.attributes, first.payload)
                self._outgoing.popleft()
        finally:
            self._draining = False

    async def _listen(self, member: Member, listen: Listen) -> None:
        """Enlist only when all brokers have confirmed it: then they know each other, and agree on the coordinator."""
        member.mailbox = Mailbox(self.intake, listen.wanted, member.on_notified)
        self.intake.begin(member.mailbox)
        self.profile.advertise(listen.offered)
        while member in self._members:
            try:
                await self.confirmations.subscribed(listen.wanted, self.patience or RETRY_S)
                await self.confirmations.advertised(listen.offered, self.patience or RETRY_S)
                break
            except NotConfirmed as error:
                member.missing = error.missing
        self.perform(member, member.machine.on_listening(time.monotonic_ns()))

    def _wake_reader(self, member: Member) -> None:
        subscription = self._members.get(member)
        if subscription is not None:
            subscription.wake()

    def take(self, member: Member) -> Notification | None:
        """What the application gets next, if it may have it now."""
        if member not in self._members:
            return None
        if self.client.link is None:
            member.machine.on_disconnected()
        work, actions = member.machine.take(time.monotonic_ns())
        self.perform(member, actions)
        if work is None:
            return None
        notification = Notification(work.notification)
        notification.redelivered = work.redelivered
        if REPLY_TO in notification.attributes:
            self.mark(notification)
        member.works[notification.publisher, notification.number] = work.number
        return notification

    def _tick(self) -> None:
        now = time.monotonic_ns()
        for one in list(self._members):
            if self.client.link is None:
                one.machine.on_disconnected()
            self.perform(one, one.machine.tick(now))

    def _wake(self) -> None:
        for subscription in self._members.values():
            subscription.wake()


class SharedSubscription(Subscription):
    """The subscription of a member. What is assigned waits in the membership, where it may become void, and not here."""

    def __init__(self, member: Member, wanted: Filter, queue: int, *, ack: bool) -> None:
        super().__init__(member, wanted, None, 0, queue, "wait", ack=ack)
        self._member = member

    def _next(self) -> Notification | None:
        one = self._member.take()
        if one is None or not self._acks:
            return one
        return one.for_subscription(self, one.redelivered)

    def _put_back(self, notification: Notification) -> None:
        self._member.put_back(notification)
        self.wake()


class Member:
    """Where the subscription of a member gets its notifications from."""

    def __init__(self, sharing: Sharing, machine: Membership) -> None:
        self.machine = machine
        self.mailbox: Mailbox | None = None
        self.missing: tuple[str, ...] = ()  # brokers that have not confirmed its address
        self.shortage = ""  # why there is no room for its group
        self.works: dict[tuple[str, int], tuple[int, int]] = {}  # what the application has
        self.check = sharing.life.check
        self._sharing = sharing

    def on_notified(self, notification: Notification) -> None:
        came = m.Notification(
            m.ClientId(notification.publisher),
            notification.number,
            notification.attributes,
            notification.payload,
        )
        self._sharing.perform(self, self.machine.on_notified(came, time.monotonic_ns()))

    async def confirmed(self, wanted: Filter | Template, timeout: float | None) -> None:
        timeout = self._sharing.patience if timeout is None else timeout
        if not timeout:
            return
        what = f"the queue group {self.machine.name} of {wanted}"
        try:
            async with asyncio.timeout(timeout):
                await self._sharing.life.until(lambda: self.machine.joined or self.shortage != "")
        except TimeoutError:
            raise NotConfirmed(what, timeout, self.missing, UNTIL_JOINED) from None
        if not self.machine.joined:
            raise NotConfirmed(what, timeout, (), UNTIL_JOINED, self.shortage)

    def begin(self, subscription: Subscription) -> None:
        self.check()
        self._sharing.begin(self, subscription)

    def end(self, subscription: Subscription) -> None:
        subscription.discard()
        self._sharing.end(self)

    def withdraw(self, wanted: Filter | Template) -> None:
        """It is withdrawn when it ends."""

    def take(self) -> Notification | None:
        return self._sharing.take(self)

    def put_back(self, notification: Notification) -> None:
        number = self.works.pop((notification.publisher, notification.number), None)
        if number is not None:
            self.machine.put_back(number, notification.redelivered)

    def taken(self, notification: Notification) -> None:
        """It is not done yet."""

    def done(self, notification: Notification) -> None:
        number = self.works.pop((notification.publisher, notification.number), None)
        if number is not None and self.machine.done(number) and not self._sharing.life.closed:
            self._sharing.flush_soon()

    def has_room(self, subscription: Subscription) -> None:
        """The coordinator assigns no more than a member may have."""

    def has_no_room(self, subscription: Subscription) -> None:
        """Likewise."""
