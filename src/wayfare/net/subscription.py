"""Notifications as applications get them: one after the other, from a queue that has an end."""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import copy
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Protocol

from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.late import LATE
from wayfare.core.messages import Terms
from wayfare.core.predicates import Value
from wayfare.core.templates import Template
from wayfare.core.values import Payload, Publishable
from wayfare.errors import Closed, UsageError
from wayfare.net import holders
from wayfare.net.holders import Holder
from wayfare.net.options import check_options
from wayfare.net.stream import Stream

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Reply = Callable[[Mapping[str, Publishable], Payload], Awaitable[None]]


class Source(Protocol):
    """Where a subscription gets its notifications from: a client."""

    def check(self) -> None:
        """Raise what keeps it from going on."""

    async def confirmed(self, wanted: Filter | Template, timeout: float | None) -> None:
        """Wait until a subscription is in effect in the whole tree; NotConfirmed if that takes too long."""

    def begin(self, subscription: Subscription) -> None: ...
    def end(self, subscription: Subscription) -> None: ...
    def withdraw(self, wanted: Filter | Template) -> None: ...
    def taken(self, notification: Notification) -> None: ...
    def done(self, notification: Notification) -> None: ...
    def has_room(self, subscription: Subscription) -> None: ...
    def has_no_room(self, subscription: Subscription) -> None: ...


class Notification(Mapping[str, Value]):
    """What was published: its attributes as a mapping, and who published it."""

    __slots__ = (
        "_reply",
        "_subscription",
        "attributes",
        "delivery",
        "expires_at",
        "number",
        "past",
        "payload",
        "published_ns",
        "publisher",
        "received_ns",
        "redelivered",
        "request",
    )

    def __init__(
        self,
        notification: m.Notification | Notification,
        delivery: int = 0,
        *,
        past: bool = False,
        request: int = 0,
    ) -> None:
        self.delivery = delivery  # this client's own count
        self.past = past  # it came by where the client is now before it was there
        # Of a current value: the subscription that asked for it; or it comes late; 0: neither.
        self.request = request
        self.publisher: str = notification.publisher
        self.number: int = notification.number  # the publisher's own count
        self.attributes: dict[str, Value] = notification.attributes
        self.payload: bytes = notification.payload
        self.published_ns: int = notification.published_ns  # by the publisher's clock; 0: unknown
        # When it is of no use any more, by `time.monotonic()`; None: never.
        self.expires_at: float | None = None
        if isinstance(notification, Notification):
            self.expires_at = notification.expires_at
        elif notification.expires_ns:
            self.expires_at = time.monotonic() + notification.expires_ns / 1e9
        self.received_ns = 0  # by ours; 0: it is not known to agree with the publisher's
        self.redelivered = 0  # how often the application had it before, and was not done with it
        self._subscription: Subscription | None = None  # that waits for `ack`
        self._reply: Reply | None = None  # it is a request

    @property
    def retained(self) -> bool:
        """Whether it was published before the subscription, and was the current value of its key then."""
        return 0 < self.request < LATE

    @property
    def late(self) -> bool:
        """Whether an old broker kept it that could not be reached: it may be older than what came before.

        Only with `connect(..., late=True)`.
        """
        return self.request == LATE

    @property
    def published_at(self) -> datetime | None:
        """When it was published, by the publisher's clock; None if the publisher did not say so."""
        if not self.published_ns:
            return None
        return EPOCH + timedelta(microseconds=self.published_ns // 1_000)

    @property
    def delay(self) -> float | None:
        """Seconds from its publication until it was received, at least 0.

        None unless the client has the option `clock_error`, by which it may be wrong.
        """
        if not (self.published_ns and self.received_ns):
            return None
        return max(0.0, (self.received_ns - self.published_ns) / 1e9)

    @property
    def expired(self) -> bool:
        """Whether it is of no use any more, as its publisher said: see `publish(expires=...)`."""
        return self.expires_at is not None and time.monotonic() >= self.expires_at

    async def ack(self) -> None:
        """The application is done with it; once is enough. Only for `subscribe(..., ack=True)`."""
        self._waiting().acknowledge(self)

    async def nack(self) -> None:
        """The application is not done with it: it is the next one of its subscription again."""
        self._waiting().reject(self)

    @property
    def is_request(self) -> bool:
        """Whether its publisher waits for a reply: see `Client.request`."""
        return self._reply is not None

    async def reply(
        self, attributes: Mapping[str, Publishable] | None = None, payload: Payload = b""
    ) -> None:
        """Answer this request. It may be called several times; the requester may have moved meanwhile."""
        if self._reply is None:
            raise UsageError(
                "its publisher does not wait for a reply: only what was sent by request() is answered"
            )
        await self._reply(attributes or {}, payload)

    def set_reply(self, reply: Reply) -> None:
        """It is a request, which is answered by this."""
        self._reply = reply

    def _waiting(self) -> Subscription:
        if self._subscription is None:
            raise UsageError(
                "only what comes by subscribe(..., ack=True) is acknowledged: else it is done when the"
                " next notification is asked for"
            )
        return self._subscription

    def for_subscription(self, subscription: Subscription | None, redelivered: int) -> Notification:
        """Its own copy."""
        one = copy(self)
        one._subscription, one.redelivered = subscription, redelivered
        return one

    def __getitem__(self, name: str) -> Value:
        return self.attributes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def __repr__(self) -> str:
        return f"Notification({self.publisher} {self.number}: {self.attributes})"


class Subscription(Stream[Notification]):
    """Notifications that match a filter, one after the other. Made by `Client.subscribe`."""

    def __init__(
        self,
        client: Source,
        wanted: Filter | Template,
        terms: Terms | None,
        since_ns: int,
        queue: int,
        policy: str,
        *,
        ack: bool = False,
        retained: bool = True,
    ) -> None:
        super().__init__()
        self.filter = wanted
        self.terms = terms
        self.since_ns = since_ns
        self.retained = retained  # the current values that match come first
        self.dropped = 0  # that did not fit the queue
        self._client = client
        self._queue: deque[Notification] = deque()
        self._max = queue
        self._policy = policy
        self._ready = asyncio.Event()
        self._in_hand: Notification | None = None  # the last one, with which somebody is busy
        self._holder: Holder = None  # ... namely this task
        self._acks = ack  # notifications are acknowledged one by one: nothing is in hand
        self._unacknowledged: dict[int, Notification] = {}  # by identity
        self._used = False  # begun, or closed

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warnings.warn(
                f"the subscription to {self.filter} was never used: await it, iterate over it, or use"
                " it with `async with`",
                RuntimeWarning,
                source=self,
                stacklevel=2,
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(failed=kind is not None)

    async def get(self, timeout: float | None = None) -> Notification:
        """The next one; TimeoutError if none comes in time, Closed if none will.

        Who asks for the next one is done with the one before it, unless each is acknowledged.
        """
        self._put_down()
        if not self._begun:
            self._begin()
        one = self._next()
        if one is None:
            check_options(timeout=timeout)
            async with asyncio.timeout(timeout):
                while (one := self._next()) is None:
                    self._check()
                    self._ready.clear()
                    await self._ready.wait()
        # What is taken is not awaited any more: a caller that is cancelled has taken nothing.
        self._client.taken(one)
        if self._acks:
            self._unacknowledged[id(one)] = one
        else:
            self._in_hand, self._holder = one, holders.current()
        self._make_room()
        return one

    def _next(self) -> Notification | None:
        """The next one, if there is one now."""
        return self._queue.popleft() if self._queue else None

    def _put_back(self, notification: Notification) -> None:
        """It is the next one again."""
        self._queue.appendleft(notification)
        self._ready.set()

    async def _take_effect(self, timeout: float | None) -> None:
        await self._client.confirmed(self.filter, timeout)

    async def close(self) -> None:
        """Unsubscribe; what waits can still be read. A client with a store stays subscribed.

        What is in hand is done, unless another task has it, or an exception is being handled.
        """
        self.finish(failed=sys.exc_info()[0] is not None)

    def finish(self, *, failed: bool) -> None:
        """Close; if the application has failed, it is not done with what it has in hand."""
        self._used = True
        if failed:
            self._in_hand = None
        self.settle()
        if self._open:
            self.end()
            self._client.end(self)

    async def unsubscribe(self) -> None:
        """Close, and withdraw the subscription also if the client has a store."""
        await self.close()
        self._client.withdraw(self.filter)

    def settle(self) -> None:
        """What is in hand is done, unless another task may still be busy with it."""
        if self._in_hand is not None and holders.is_finished(self._holder):
            self._put_down()

    def acknowledge(self, notification: Notification) -> None:
        self._client.check()
        if self._unacknowledged.pop(id(notification), None) is not None:
            self._client.done(notification)
            self._make_room()

    def reject(self, notification: Notification) -> None:
        if self._unacknowledged.pop(id(notification), None) is not None:
            self._put_back(notification.for_subscription(self, notification.redelivered + 1))

    def _make_room(self) -> None:
        if self._load() <= self._max // 2:
            self._client.has_room(self)

    def _load(self) -> int:
        return len(self._queue) + len(self._unacknowledged)

    def _put_down(self) -> None:
        done, self._in_hand = self._in_hand, None
        if done is not None:
            self._client.done(done)

    def put(self, notification: Notification) -> None:
        queue = self._queue
        if self._acks:
            notification = notification.for_subscription(self, notification.redelivered)
        if self._load() >= self._max and self._policy != "wait":
            self.dropped += 1
            if self._policy == "drop_newest" or not queue:
                self._client.done(notification)
                return
            self._client.done(queue.popleft())
        queue.append(notification)
        self._ready.set()
        if self._load() >= self._max and self._policy == "wait":
            self._client.has_no_room(self)

    def give_back(self, notification: Notification) -> None:
        """It was taken for somebody who is not there any more: it is the next one again."""
        self._in_hand = None
        self._unacknowledged.pop(id(notification), None)
        self._put_back(notification)

    def discard(self) -> None:
        """What waits is not for this application any more."""
        self._queue.clear()
        self._unacknowledged.clear()

    def wake(self) -> None:
        """Something is to be known: whoever waits looks again."""
        self._ready.set()

    def end(self) -> None:
        self._open = False
        self._ready.set()

    def _start(self) -> None:
        self._used = True
        self._client.begin(self)

    def _check(self) -> None:
        if self._open:
            self._client.check()
        else:
            raise Closed(f"the subscription to {self.filter} is closed")
