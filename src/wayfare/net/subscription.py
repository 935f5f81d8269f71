"""Notifications as applications get them: one after the other, from a queue that has an end."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Protocol

from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.messages import Terms
from wayfare.core.predicates import Value
from wayfare.core.templates import Template
from wayfare.errors import Closed
from wayfare.net.options import check_options
from wayfare.net.stream import Stream


class Source(Protocol):
    """Where a subscription gets its notifications from: a client."""

    def check(self) -> None:
        """Raise what keeps it from going on."""

    async def confirmed(self, wanted: Filter | Template, timeout: float | None) -> None:
        """Wait until a subscription is in effect in the whole tree; NotConfirmed if that takes too long."""

    def begin(self, subscription: Subscription) -> None: ...
    def end(self, subscription: Subscription) -> None: ...
    def withdraw(self, wanted: Filter | Template) -> None: ...
    def done(self, notification: Notification) -> None: ...
    def has_room(self, subscription: Subscription) -> None: ...
    def has_no_room(self, subscription: Subscription) -> None: ...


class Notification(Mapping[str, Value]):
    """What was published: its attributes as a mapping, and who published it."""

    __slots__ = ("attributes", "delivery", "number", "past", "payload", "publisher")

    def __init__(
        self, notification: m.Notification, delivery: int = 0, *, past: bool = False
    ) -> None:
        self.delivery = delivery  # this client's own count
        self.past = past  # it came by where the client is now before it was there
        self.publisher: str = notification.publisher
        self.number = notification.number  # the publisher's own count
        self.attributes = notification.attributes
        self.payload = notification.payload

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
    ) -> None:
        super().__init__()
        self.filter = wanted
        self.terms = terms
        self.since_ns = since_ns
        self.dropped = 0  # that did not fit the queue
        self._client = client
        self._queue: deque[Notification] = deque()
        self._max = queue
        self._policy = policy
        self._ready = asyncio.Event()
        self._in_hand: Notification | None = None  # the last one, with which somebody is busy
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
        if kind is not None:
            self._in_hand = None  # nobody is done with it
        await self.close()

    async def get(self, timeout: float | None = None) -> Notification:
        """The next one; TimeoutError if none comes in time, Closed if none will.

        Who asks for the next one is done with the one before it.
        """
        self._put_down()
        if not self._begun:
            self._begin()
        if not self._queue:
            check_options(timeout=timeout)
            async with asyncio.timeout(timeout):
                while not self._queue:
                    self._check()
                    self._ready.clear()
                    await self._ready.wait()
        # From here on nothing waits: who is cancelled has taken nothing.
        one = self._in_hand = self._queue.popleft()
        if len(self._queue) <= self._max // 2:
            self._client.has_room(self)
        return one

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until what is published anywhere from now on is delivered.

        NotConfirmed names the neighbours of the broker that have not confirmed it in time; the
        time is the option `confirm` of the client unless it is given here.
        """
        check_options(timeout=timeout)
        if not self._begun:
            self._begin()
        await self._client.confirmed(self.filter, timeout)

    async def close(self) -> None:
        """Unsubscribe; what waits can still be read. A client with a store stays subscribed."""
        self._used = True
        self._put_down()
        if self._open:
            self.end()
            self._client.end(self)

    async def unsubscribe(self) -> None:
        """Close, and withdraw the subscription also if the client has a store."""
        await self.close()
        self._client.withdraw(self.filter)

    def _put_down(self) -> None:
        done, self._in_hand = self._in_hand, None
        if done is not None:
            self._client.done(done)

    def put(self, notification: Notification) -> None:
        queue = self._queue
        if len(queue) >= self._max and self._policy != "wait":
            self.dropped += 1
            if self._policy == "drop_newest":
                self._client.done(notification)
                return
            self._client.done(queue.popleft())
        queue.append(notification)
        self._ready.set()
        if len(queue) >= self._max and self._policy == "wait":
            self._client.has_no_room(self)

    def give_back(self, notification: Notification) -> None:
        """It was taken for somebody who is not there any more: it is the next one again."""
        self._in_hand = None
        self._queue.appendleft(notification)
        self._ready.set()

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
