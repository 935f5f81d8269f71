"""Requests of a client, and its replies to those of others: what `core.requests` decides, on sockets."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from wayfare.core import messages as m
from wayfare.core import requests as core
from wayfare.core.predicates import Value
from wayfare.core.requests import Answered, Ask, Listen, Requests
from wayfare.core.reserved import check_unreserved, without_reserved
from wayfare.core.values import Payload, Publishable, plain_attributes, plain_payload
from wayfare.errors import (
    Closed,
    InvalidNotification,
    NoReply,
    NoResponders,
    NotAdvertised,
    NotConfirmed,
    UsageError,
)
from wayfare.net.alarm import Alarm
from wayfare.net.confirmations import Confirmations
from wayfare.net.intake import Intake
from wayfare.net.life import Life
from wayfare.net.mailbox import Mailbox
from wayfare.net.options import check_options
from wayfare.net.profile import Profile
from wayfare.net.stream import Stream
from wayfare.net.subscription import Notification
from wayfare.net.tasks import Tasks

if TYPE_CHECKING:
    from wayfare.core.client import Client

LISTEN_S = core.LISTEN_NS / 1e9

Publish = Callable[[Mapping[str, Value], bytes], Coroutine[Any, Any, int]]


class Requesting:
    """The requests of one client, and its replies to those of others."""

    def __init__(
        self,
        client: Client,
        life: Life,
        profile: Profile,
        intake: Intake,
        confirmations: Confirmations,
        publish: Publish,
    ) -> None:
        self.machine = Requests(uuid4().hex)
        self._client, self._life, self._profile = client, life, profile
        self._intake, self._confirmations = intake, confirmations
        self._publish = publish
        self._waiting: dict[int, Replies] = {}
        self._alarm = Alarm(self._expire)
        self._tasks = Tasks()
        self._missing = ""  # why the reply address is not confirmed

    # The requester

    def begin(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload,
        timeout: float,
        replies: Replies,
        *,
        many: bool,
    ) -> int:
        self._life.check()
        plain, content = plain_attributes(attributes), plain_payload(payload)
        check_unreserved(plain)
        self._client.check_publication(plain, content)
        now = time.monotonic_ns()
        request, actions = self.machine.begin(plain, content, int(timeout * 1e9), now, many=many)
        self._waiting[request] = replies
        self._perform(actions)
        return request

    def forget(self, request: int) -> None:
        """Nobody waits for more replies."""
        self.machine.forget(request)
        self._waiting.pop(request, None)

    def on_reply(self, notification: Notification) -> None:
        came = m.Notification(
            m.ClientId(notification.publisher),
            notification.number,
            notification.attributes,
            notification.payload,
            notification.published_ns,
        )
        self._perform(self.machine.on_reply(came, time.monotonic_ns()))

    def on_unheard(self, publication: int) -> None:
        self._perform(self.machine.on_no_responders(publication))

    def stop(self) -> None:
        self._alarm.clear()
        self._tasks.cancel()

    def _expire(self) -> None:
        self._perform(self.machine.expire(time.monotonic_ns()))

    def _perform(self, actions: list[core.Action]) -> None:
        for action in actions:
            if isinstance(action, Answered):
                replies = self._waiting.get(action.request)
                if replies is not None:
                    replies.take(action)
                if action.reply is None:
                    self._waiting.pop(action.request, None)
            elif isinstance(action, Ask):
                self._tasks.run(self._ask(action))
            elif isinstance(action, Listen):
                self._tasks.run(self._listen())
        self._alarm.set(self.machine.next_deadline(), time.monotonic_ns())

    async def _listen(self) -> None:
        inbox = Mailbox(self._intake, self.machine.filter, self.on_reply)
        self._intake.begin(inbox)
        confirmed = True
        try:
            await self._confirmations.subscribed(inbox.filter, LISTEN_S)
        except NotConfirmed as error:
            confirmed, self._missing = False, str(error)
        self._perform(self.machine.on_listening(confirmed=confirmed))

    async def _ask(self, ask: Ask) -> None:
        try:
            number = await self._publish(ask.attributes, ask.payload)
        except (NotAdvertised, InvalidNotification) as error:  # it was withdrawn meanwhile
            self.machine.forget(ask.request)
            self._perform([Answered(ask.request, None, str(error))])
        else:
            self.machine.on_published(ask.request, number)

    def failure(self, what: str, reason: str, timeout: float) -> NoReply | NoResponders:
        if reason == core.NO_RESPONDERS:
            return NoResponders(what)
        if reason == core.NOT_SENT:
            reason = "it was not sent, because the client is not connected"
        elif not self.machine.confirmed and self._missing:
            reason = f"{reason}; {self._missing}"
        return NoReply(what, timeout, reason)

    # The responder

    def mark(self, notification: Notification) -> None:
        """It is a request: the application may reply to it, and does not see what is only for that."""
        address = core.reply_to(notification.attributes)
        notification.attributes = without_reserved(notification.attributes)
        if address is not None:
            notification.set_reply(lambda content, payload: self._reply(address, content, payload))

    async def _reply(
        self, address: dict[str, Value], attributes: Mapping[str, Publishable], payload: Payload
    ) -> None:
        content = core.packed(plain_attributes(attributes), plain_payload(payload))
        if core.REPLIES not in self._client.advertisements:
            self._profile.advertise(core.REPLIES)
        await self._publish(address, content)


class Replies(Stream[Notification]):
    """Replies to one request, as they come. Made by `Client.requests`.

    Iterating ends after the time-out, or after as many replies as were asked for.
    """

    def __init__(
        self,
        requests: Requesting,
        life: Life,
        attributes: Mapping[str, Publishable],
        payload: Payload,
        timeout: float,
        most: int | None = None,
    ) -> None:
        super().__init__()
        check_options(timeout=timeout)
        if timeout is None:
            raise UsageError("a request needs a timeout: nobody may ever answer")
        self._requests, self._life = requests, life
        self._asked = attributes, payload
        self._timeout, self._most = timeout, most
        self._came: deque[Notification] = deque()
        self._request = 0
        self._count = 0  # of replies that were given to the application
        self._reason = ""  # why no other reply will come

    async def get(self, timeout: float | None = None) -> Notification:
        """The next reply; Closed if no other will come, NoResponders if nobody subscribes to it."""
        check_options(timeout=timeout)
        self._begin_once()
        async with asyncio.timeout(timeout):
            await self._life.until(lambda: bool(self._came or self._is_over()))
        if self._came:
            self._count += 1
            one = self._came.popleft()
            if self._count == self._most:
                await self.close()
            return one
        if self._reason == core.NO_RESPONDERS:
            raise self.failure()
        raise Closed("there are no more replies")

    def failure(self) -> NoReply | NoResponders:
        named = ", ".join(f"{name}={value!r}" for name, value in self._asked[0].items())
        return self._requests.failure(f"request({named:.100})", self._reason, self._timeout)

    async def close(self) -> None:
        """Wait for no more replies."""
        self._open = False
        self._requests.forget(self._request)

    def take(self, answered: Answered) -> None:
        if answered.reply is not None:
            self._came.append(Notification(answered.reply))
        else:
            self._reason = answered.reason
        self._life.changed.set()

    def give_back(self, reply: Notification) -> None:
        """The caller that took it is gone."""
        self._count -= 1
        self._came.appendleft(reply)

    async def _take_effect(self, timeout: float | None) -> None:
        """The request is on its way: what else there is to wait for, `get` does."""

    def _start(self) -> None:
        self._request = self._requests.begin(
            *self._asked, self._timeout, self, many=self._most != 1
        )

    def _begin_once(self) -> None:
        if not self._begun:
            self._begin()

    def _is_over(self) -> bool:
        return bool(self._reason) or not self._open
