"""A client on a socket: what applications use.

    async with wayfare.connect("wayfare://127.0.0.1:7410", client_id="car-17") as car:
        await car.advertise("service = 'speed'")
        async with car.subscribe("service = 'parking' and free > 0") as parking:
            await car.publish({"service": "speed", "kmh": 92})
            async for n in parking:
                print(n["location"], n["free"])

It goes to the next address when a connection breaks, and the application does not notice: what it
publishes waits, what it subscribed to comes when it is attached again, wherever that is.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from wayfare.core import client as core
from wayfare.core import messages as m
from wayfare.core.codec import encode
from wayfare.core.conditions import Condition
from wayfare.core.effects import (
    Close,
    Effect,
    Ended,
    Event,
    LinkDown,
    Lost,
    Notify,
    Received,
    Send,
    Tick,
)
from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId, ClientId, LinkId, Terms
from wayfare.core.predicates import Value
from wayfare.errors import CannotConnect, Closed, OutboxFull, Refused, UsageError
from wayfare.net.addresses import Address
from wayfare.net.connection import Connection, Turn

CONNECT_S = 10.0  # until `connect` gives up
CLOSE_S = 5.0  # that closing waits for what was published to be acknowledged
RETRY_S = (0.05, 5.0)  # between two rounds over all addresses, growing
HEARTBEAT_S = 2.0
SILENT_BEATS = 3
QUEUE_MAX = 1_000  # notifications that wait for the application, of one subscription
POLICIES = ("wait", "drop_oldest", "drop_newest")

logger = logging.getLogger("wayfare.client")

Wanted = str | Filter | Condition


class Notification(Mapping[str, Value]):
    """What was published: its attributes as a mapping, and who published it."""

    __slots__ = ("attributes", "number", "payload", "publisher")

    def __init__(self, notification: m.Notification) -> None:
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


class Subscription(AsyncIterator[Notification]):
    """Notifications that match a filter, one after the other."""

    def __init__(
        self, client: Client, wanted: Filter, terms: Terms | None, queue: int, policy: str
    ) -> None:
        self.filter = wanted
        self.terms = terms
        self.dropped = 0  # that did not fit the queue
        self._client = client
        self._queue: deque[Notification] = deque()
        self._max = queue
        self._policy = policy
        self._ready = asyncio.Event()
        self._open = False

    def __await__(self) -> Generator[Any, None, Subscription]:
        yield from ()
        self._begin()
        return self

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notification:
        try:
            return await self.get()
        except Closed:
            raise StopAsyncIteration from None

    async def get(self, timeout: float | None = None) -> Notification:
        """The next one; TimeoutError if none comes in time, Closed if none will."""
        self._begin()
        while not self._queue:
            self._client.check()
            if not self._open:
                raise Closed(f"the subscription to {self.filter} is closed")
            self._ready.clear()
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        one = self._queue.popleft()
        self._client.mind_queues()
        return one

    async def close(self) -> None:
        """Unsubscribe; what waits can still be read."""
        if self._open:
            self._end()
            self._client.unsubscribe(self)

    def is_full(self) -> bool:
        return self._policy == "wait" and len(self._queue) >= self._max

    def put(self, notification: Notification) -> None:
        if len(self._queue) >= self._max and self._policy != "wait":
            self.dropped += 1
            if self._policy == "drop_newest":
                return
            self._queue.popleft()
        self._queue.append(notification)
        self._ready.set()

    def wake(self) -> None:
        """Something is to be known: whoever waits looks again."""
        self._ready.set()

    def _begin(self) -> None:
        if not self._open and not self._queue:
            self._client.begin(self)
            self._open = True

    def _end(self) -> None:
        self._open = False
        self._ready.set()


class Client:
    """A client that may be anywhere. Made by `connect`."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        client_id: str | None = None,
        *,
        queue: int = QUEUE_MAX,
        policy: str = "wait",
        on_lost: Callable[[int, str], None] | None = None,
        timeout: float = CONNECT_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        given = [addresses] if isinstance(addresses, str) else list(addresses)
        if not given:
            raise UsageError("connect needs the address of at least one broker")
        if policy not in POLICIES:
            raise UsageError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
        if queue < 1:
            raise UsageError("a queue has room for at least 1 notification")
        self.name = client_id or f"client-{uuid4().hex[:12]}"
        self.addresses = [Address.parse(one) for one in given]
        self.broker = ""  # the name of the broker where it is; "": nowhere
        self.lost = 0  # notifications of which it was told that they are lost
        self._core = core.Client(ClientId(self.name))
        # A later process of this name is never behind an earlier one.
        self._core.epoch = time.time_ns() // 1_000_000
        self._queue, self._policy = queue, policy
        self._on_lost = on_lost
        self._timeout, self._heartbeat_s = timeout, heartbeat_s
        self._next = 0  # which address is tried next
        self._connection: Connection | None = None
        self._subscriptions: dict[Filter, list[Subscription]] = {}
        self._error: Exception | None = None  # why it cannot go on
        self._closed = False
        self._changed = asyncio.Event()  # something that somebody may wait for
        self._lost_connection = asyncio.Event()
        self._paused = False
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turn = Turn(self._flush)
        self._trouble = ""  # of the last attempt to connect

    # Life

    async def __aenter__(self) -> Self:
        return await self.open()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.open().__await__()

    async def open(self) -> Self:
        """Connect, and wait until a broker has welcomed this client."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_connected()), loop.create_task(self._beat())]
        try:
            async with asyncio.timeout(self._timeout):
                await self._until(lambda: self.broker != "")
        except TimeoutError:
            await self._end()
            where = ", ".join(map(str, self.addresses))
            raise CannotConnect(
                f"cannot reach a broker at {where} within {self._timeout:g} s:"
                f" {self._trouble or 'no answer'}"
            ) from None
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, timeout: float = CLOSE_S) -> None:
        """Say goodbye, when all that was published is acknowledged, or after this time."""
        if self._closed:
            return
        with suppress(TimeoutError, Refused):
            await self.flush(timeout)
        self._perform(self._core.detach(leave=True))
        await self._end()

    async def _end(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.close()
        self._wake_all()

    def check(self) -> None:
        """Raise what keeps this client from going on."""
        if self._error is not None:
            raise self._error
        if self._closed:
            raise Closed(f"{self.name} was closed")

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.check()
            self._changed.clear()
            await self._changed.wait()
        self.check()

    def _wake_all(self) -> None:
        self._changed.set()
        for subscriptions in self._subscriptions.values():
            for one in subscriptions:
                one.wake()

    # What applications call

    def subscribe(
        self,
        wanted: Wanted,
        *,
        last: int | None = None,
        younger: float | None = None,
        key: str | None = None,
        local: bool = False,
        queue: int | None = None,
        policy: str | None = None,
    ) -> Subscription:
        """Notifications that match. Begins with `async with`, `await`, or the first `get`.

        last, younger, key   of what is missed while away: the last so many, those younger than so
                             many seconds, or the newest for each value of an attribute
        local                it stays behind when the client goes to another broker
        queue, policy        how many may wait for the application, and what happens with more:
                             wait (nothing more is read), drop_oldest or drop_newest
        """
        if policy is not None and policy not in POLICIES:
            raise UsageError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
        terms = None
        if last is not None or younger is not None or key is not None or local:
            younger_ns = None if younger is None else int(younger * 1e9)
            terms = Terms(last, younger_ns, key, local)
        return Subscription(
            self, _filter(wanted), terms, queue or self._queue, policy or self._policy
        )

    async def advertise(self, offered: Wanted) -> None:
        """Announce what will be published; nothing else may be."""
        self.check()
        self._perform(self._core.advertise(_filter(offered)))

    async def unadvertise(self, offered: Wanted) -> None:
        self.check()
        self._perform(self._core.unadvertise(_filter(offered)))

    async def publish(
        self, attributes: Mapping[str, Value], payload: bytes = b"", *, confirm: bool = False
    ) -> int:
        """Publish once, now or as soon as there is a broker. Returns the number of the publication.

        Waits while too many are not acknowledged; with `confirm`, until this one is.
        """
        while True:
            self.check()
            try:
                self._perform(self._core.publish(attributes, payload))
                break
            except OutboxFull:
                await self._until(lambda: not self._is_full())
        number = self._core.published
        if confirm:
            outbox = self._core.outbox
            await self._until(lambda: not outbox or outbox[0].number > number)
        return number

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was published is acknowledged."""
        async with asyncio.timeout(timeout):
            await self._until(lambda: not self._core.outbox)

    async def move(self, address: str) -> None:
        """Go to the broker at this address, and wait until it has welcomed this client."""
        there = Address.parse(address)
        self.check()
        self.addresses = [there, *(one for one in self.addresses if one != there)]
        self._next = 0
        epoch = self._core.epoch
        if self._connection is not None:
            self._connection.close("moves")
        async with asyncio.timeout(self._timeout):
            await self._until(lambda: self.broker != "" and self._core.epoch > epoch)

    # What subscriptions ask for

    def begin(self, subscription: Subscription) -> None:
        self.check()
        self._perform(self._core.subscribe(subscription.filter, subscription.terms))
        self._subscriptions.setdefault(subscription.filter, []).append(subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        there = self._subscriptions.get(subscription.filter, [])
        if subscription in there:
            there.remove(subscription)
            if not there:
                del self._subscriptions[subscription.filter]
            if not self._closed:
                self._perform(self._core.unsubscribe(subscription.filter))
        self.mind_queues()

    def mind_queues(self) -> None:
        """Read only while there is room for what comes."""
        full = any(one.is_full() for them in self._subscriptions.values() for one in them)
        if full != self._paused and self._connection is not None:
            self._paused = full
            (self._connection.pause if full else self._connection.resume)()

    # Connecting

    async def _keep_connected(self) -> None:
        wait, failed = RETRY_S[0], 0
        while self._error is None:
            address = self.addresses[self._next % len(self.addresses)]
            self._next += 1
            try:
                if await self._stay(address):
                    wait, failed = RETRY_S[0], 0
                    continue
            except (OSError, TimeoutError) as error:
                self._trouble = f"{address}: {error or 'no answer'}"
            failed += 1
            if failed % len(self.addresses) == 0:
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, RETRY_S[1])
        self._wake_all()

    async def _stay(self, address: Address) -> bool:
        """Connect, and stay until the connection is lost. Whether a broker welcomed us there."""
        self._lost_connection.clear()
        epoch = self._core.epoch
        async with asyncio.timeout(self._timeout):
            await self._connect(address)
        await self._lost_connection.wait()
        return self._core.epoch > epoch and self._core.previous[:1] == self._core.previous

    async def _connect(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_connection(
            lambda: Connection(self, self.name), address.host, address.port
        )
        self._paused = False
        self.mind_queues()

    async def _beat(self) -> None:
        silent = 0
        while True:
            await asyncio.sleep(self._heartbeat_s)
            connection = self._connection
            if connection is None or self._paused or connection.beat():
                silent = 0
                continue
            silent += 1
            if silent >= SILENT_BEATS:
                connection.abort(f"silent for {silent * self._heartbeat_s:g} s")

    # What connections report

    def on_messages(self, connection: Connection, messages: list[m.AnyMessage]) -> None:
        now = time.monotonic_ns()
        for message in messages:
            if connection is not self._connection and self._connection is not None:
                return
            kind = type(message)
            if isinstance(message, m.Hello):
                self._connection = connection
                connection.link = f"{message.name}#{self._core.epoch + 1}"
                self._perform(self._core.attach(BrokerId(message.name), LinkId(connection.link)))
            elif isinstance(message, m.Refused):
                self._on_refused(connection, message)
            elif kind is not m.Ping:
                self._step(Received(LinkId(connection.link), message), now)
                if kind is m.Welcome:
                    self.broker = connection.peer
                if kind in (m.Welcome, m.Published):
                    self._changed.set()
        self.mind_queues()

    def _on_refused(self, connection: Connection, message: m.Refused) -> None:
        self._trouble = message.reason
        if not message.again:
            self._error = Refused(f"{connection.peer} closed the connection: {message.reason}")
        connection.close(message.reason)

    def on_closed(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            self.broker = ""
            if connection.link:
                self._step(LinkDown(LinkId(connection.link)), time.monotonic_ns())
            self._lost_connection.set()
            self._changed.set()

    def on_output(self, connection: Connection) -> None:
        self._turn.ask()

    # The core

    def _step(self, event: Event, now: int) -> None:
        self._perform(self._core.step(event, now))

    def _perform(self, effects: list[Effect]) -> None:
        connection = self._connection
        for effect in effects:
            if type(effect) is Notify:
                notification = Notification(effect.notification)
                for wanted in effect.subscriptions:
                    for one in self._subscriptions.get(wanted, ()):
                        one.put(notification)
            elif type(effect) is Send:
                if connection is not None and effect.link == connection.link:
                    connection.send(encode(effect.message))
            elif type(effect) is Lost:
                self._tell_lost(effect)
            elif type(effect) is Ended:
                for one in self._subscriptions.pop(effect.subscription, []):
                    one._end()
            elif type(effect) is Close and connection is not None:
                if effect.fault:
                    connection.refuse(effect.reason)
                else:
                    connection.close(effect.reason)
        due = self._core.next_deadline()
        if due is not None and self._timer is None:
            delay = max(0, due - time.monotonic_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._step(Tick(), time.monotonic_ns())

    def _tell_lost(self, effect: Lost) -> None:
        self.lost += effect.count
        if self._on_lost is not None:
            self._on_lost(effect.count, effect.reason)
        else:
            count = effect.count or "an unknown number of"
            logger.warning("%s lost %s notifications: %s", self.name, count, effect.reason)

    def _is_full(self) -> bool:
        return len(self._core.outbox) >= core.OUTBOX_MAX

    def _flush(self) -> None:
        if self._connection is not None:
            self._connection.flush()


def connect(addresses: str | Sequence[str], client_id: str | None = None, **options: Any) -> Client:
    """A client of the broker at one of these addresses. Use it with `async with`, or await it."""
    return Client(addresses, client_id, **options)


def _filter(given: Wanted) -> Filter:
    if isinstance(given, Filter):
        return given
    return Filter.parse(given) if isinstance(given, str) else Filter.where(given)
