"""The synchronous twin of the client: the same methods, for programs without an event loop.

    with wayfare.sync.connect("wayfare://127.0.0.1:7410", client_id="car-17") as car:
        car.advertise("service = 'speed'")
        with car.subscribe("service = 'parking' and free > 0") as parking:
            car.publish({"service": "speed", "kmh": 92})
            for n in parking:
                print(n["location"], n["free"])

Each client has an event loop in a thread of its own. Its methods may be called by any thread, and Ctrl-C
interrupts whatever waits. What was interrupted in `get` is not lost: it is the next one again.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from wayfare.core.filters import Filter
from wayfare.core.membership import AWAY_NS, PREFETCH
from wayfare.core.messages import Area, Terms
from wayfare.core.predicates import Value
from wayfare.core.templates import Template
from wayfare.core.values import Payload, Publishable
from wayfare.errors import Closed
from wayfare.net import client as live
from wayfare.net.addresses import Address
from wayfare.net.background import Background
from wayfare.net.being import Location
from wayfare.net.connectivity import Change
from wayfare.net.connectivity import Changes as LiveChanges
from wayfare.net.local_broker import CLOSE_S
from wayfare.net.offer import Offer as LiveOffer
from wayfare.net.options import Options
from wayfare.net.requests import Replies as LiveReplies
from wayfare.net.stream import Stream
from wayfare.net.subscription import Notification as LiveNotification
from wayfare.net.subscription import Subscription as LiveSubscription
from wayfare.net.wanted import Wanted

__all__ = [
    "Change",
    "Changes",
    "Client",
    "Notification",
    "Offer",
    "Replies",
    "Subscription",
    "connect",
]

T = TypeVar("T")


class _Stream(Iterator[T], ABC, Generic[T]):
    """The twin of one, which is in the thread of its client."""

    def __init__(self, background: Background, live: Stream[Any]) -> None:
        self._background = background
        self._live = live

    def __enter__(self) -> Self:
        self._background.call(self._live.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(Closed):  # with its client
            self._background.call(lambda: self._live.__aexit__(kind, error, trace))

    def __next__(self) -> T:
        try:
            return self.get()
        except Closed:
            raise StopIteration from None

    @abstractmethod
    def get(self, timeout: float | None = None) -> T: ...

    def ready(self, timeout: float | None = None) -> None:
        """Wait until it is in effect in the whole tree; NotConfirmed if that takes too long."""
        self._background.call(lambda: self._live.ready(timeout))


class Notification(LiveNotification):
    """What was published: its attributes as a mapping, and who published it."""

    __slots__ = ("_background", "_live")

    def __init__(self, live: LiveNotification, background: Background) -> None:
        super().__init__(live, live.delivery, past=live.past, request=live.request)
        self.redelivered, self.received_ns = live.redelivered, live.received_ns
        self._live, self._background = live, background

    def ack(self) -> None:  # type: ignore[override]
        """The application is done with it; once is enough. Only for `subscribe(..., ack=True)`."""
        self._background.call(self._live.ack)

    def nack(self) -> None:  # type: ignore[override]
        """The application is not done with it: it is the next one of its subscription again."""
        self._background.call(self._live.nack)

    def reply(  # type: ignore[override]
        self, attributes: Mapping[str, Publishable] | None = None, payload: Payload = b""
    ) -> None:
        """Answer this request; only for what was sent by `request`."""
        self._background.call(lambda: self._live.reply(attributes, payload))

    @property
    def is_request(self) -> bool:
        """Whether its publisher waits for a reply."""
        return self._live.is_request


class Subscription(_Stream[Notification]):
    """Notifications that match a filter, one after the other. Made by `Client.subscribe`."""

    _live: LiveSubscription

    @property
    def filter(self) -> Filter | Template:
        return self._live.filter

    @property
    def terms(self) -> Terms | None:
        return self._live.terms

    @property
    def dropped(self) -> int:
        return self._live.dropped

    def get(self, timeout: float | None = None) -> Notification:
        """The next one; TimeoutError if none comes in time, Closed if none will.

        Who asks for the next one is done with the one before it, unless each is acknowledged.
        """
        one = self._background.call(lambda: self._live.get(timeout), self._live.give_back)
        return Notification(one, self._background)

    def close(self) -> None:
        """Unsubscribe; what waits can still be read. A client with a store stays subscribed."""
        failed = sys.exc_info()[0] is not None

        async def finish() -> None:
            self._live.finish(failed=failed)

        with suppress(Closed):  # with its client
            self._background.call(finish)

    def unsubscribe(self) -> None:
        """Close, and withdraw the subscription also if the client has a store."""
        self._background.call(self._live.unsubscribe)


class Replies(_Stream[Notification]):
    """Replies to one request, as they come. Made by `Client.requests`."""

    _live: LiveReplies

    def get(self, timeout: float | None = None) -> Notification:
        """The next reply; Closed if no other will come, NoResponders if nobody subscribes to it."""
        one = self._background.call(lambda: self._live.get(timeout), self._live.give_back)
        return Notification(one, self._background)

    def close(self) -> None:
        """Wait for no more replies."""
        with suppress(Closed):  # with its client
            self._background.call(self._live.close)


class Offer(_Stream[bool]):
    """An advertisement, and whether anybody wants what it offers. Made by `Client.offer`.

    Iterating gives the answer, and each other one when it comes.
    """

    _live: LiveOffer

    @property
    def filter(self) -> Filter:
        return self._live.filter

    @property
    def wanted(self) -> bool | None:
        """Whether anybody wants it, as far as is known; None: no broker has said anything yet."""
        return self._live.wanted

    def get(self, timeout: float | None = None) -> bool:
        """The answer, as soon as there is one that this has not given before; or TimeoutError."""
        return self._background.call(lambda: self._live.get(timeout), self._live.give_back)

    def until_wanted(self, timeout: float | None = None) -> None:
        """Wait until somebody wants it; TimeoutError if that takes longer."""
        self._background.call(lambda: self._live.until_wanted(timeout))

    def close(self) -> None:
        """Withdraw the advertisement. A client with a store keeps it."""
        with suppress(Closed):  # with its client
            self._background.call(self._live.close)


class Changes(Iterator[Change]):
    """The connection state of a client, and then each change of it. Made by `Client.changes`."""

    def __init__(self, background: Background, live: LiveChanges) -> None:
        self._background, self._live = background, live

    def __next__(self) -> Change:
        try:
            return self.get()
        except Closed:
            raise StopIteration from None

    def get(self, timeout: float | None = None) -> Change:
        """The state when this was made, and then the next change; or TimeoutError."""
        return self._background.call(lambda: self._live.get(timeout), self._live.give_back)


class _Values(MutableMapping[str, Value]):
    """The state of a client, which changes in its thread."""

    def __init__(self, background: Background, values: MutableMapping[str, Value]) -> None:
        self._background, self._live = background, values

    def __getitem__(self, name: str) -> Value:
        return self._live[name]

    def __setitem__(self, name: str, value: Value) -> None:
        async def change() -> None:
            self._live[name] = value

        self._background.call(change)

    def __delitem__(self, name: str) -> None:
        async def change() -> None:
            del self._live[name]

        self._background.call(change)

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)

    def __repr__(self) -> str:
        return repr(self._live)


class Client:
    """A client that may be anywhere. Made by `connect`."""

    def __init__(self, client: live.Client) -> None:
        self._live = client
        self._background = Background(client.name)
        self._closing = threading.Lock()
        try:
            self._background.call(client.open)
        except BaseException:
            self._background.stop()
            raise

    @property
    def name(self) -> str:
        return self._live.name

    @property
    def addresses(self) -> list[Address]:
        return list(self._live.addresses)

    @property
    def broker(self) -> str:
        """The name of the broker where it is; "": nowhere."""
        return self._live.broker

    @property
    def connected(self) -> bool:
        """Whether a broker has welcomed it, and the connection is not known to be broken."""
        return self._live.connected

    def changes(self) -> Changes:
        """Iterate over the connection state: as it is now, and then every change."""
        return Changes(self._background, self._live.changes())

    @property
    def lost(self) -> int:
        """Notifications of which it was told that they are lost."""
        return self._live.lost

    @property
    def location(self) -> Location | None:
        """Where the client is: what `myloc` stands for in what it subscribes to. Set it at any time."""
        return self._live.location

    @location.setter
    def location(self, there: Location | None) -> None:
        async def go() -> None:
            self._live.location = there

        self._background.call(go)

    @property
    def state(self) -> MutableMapping[str, Value]:
        """What `my.<name>` stands for. Change it at any time: `client.state["battery"] = 0.2`."""
        return _Values(self._background, self._live.state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, timeout: float = CLOSE_S) -> int:
        """Leave for good, when all that was published is acknowledged, or after this time.

        Returns how many publications nobody has acknowledged: they may be lost.
        """
        failed = sys.exc_info()[0] is not None
        with self._closing:
            try:
                return self._background.call(lambda: self._live._close(timeout, failed=failed))
            except Closed:
                return 0
            finally:
                self._background.stop()

    def subscribe(
        self,
        wanted: Wanted,
        *,
        last: int | None = None,
        younger: float | None = None,
        key: str | Sequence[str] | None = None,
        nullify: Wanted | None = None,
        same: str | Sequence[str] = (),
        local: bool = False,
        since: float = 0.0,
        slow_publishers: float | None = None,
        queue: int | None = None,
        policy: str | None = None,
        ack: bool = False,
        retained: bool | None = None,
        group: str | None = None,
        prefetch: int = PREFETCH,
        away: float = AWAY_NS / 1e9,
    ) -> Subscription:
        """Notifications that match. Begins with `with`, or the first `get`; see the other twin."""
        subscription = self._live.subscribe(
            wanted,
            last=last,
            younger=younger,
            key=key,
            nullify=nullify,
            same=same,
            local=local,
            since=since,
            slow_publishers=slow_publishers,
            queue=queue,
            policy=policy,
            ack=ack,
            retained=retained,
            group=group,
            prefetch=prefetch,
            away=away,
        )
        return Subscription(self._background, subscription)

    def advertise(self, offered: Wanted) -> None:
        """Announce what will be published; nothing else may be."""
        self._background.call(lambda: self._live.advertise(offered))

    def unadvertise(self, offered: Wanted) -> None:
        """Withdraw it, as often as it was announced."""
        self._background.call(lambda: self._live.unadvertise(offered))

    def offer(self, offered: Wanted) -> Offer:
        """Advertise, and be told whether anybody wants it; see the other twin."""
        return Offer(self._background, self._live.offer(offered))

    def publish(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        confirm: bool = False,
        retain: str | Sequence[str] = (),
        expires: float | None = None,
        area: Area | str | Sequence[str] | Sequence[float] | None = None,
    ) -> int:
        """Publish once, now or as soon as there is a broker. Returns the number of the publication."""
        return self._background.call(
            lambda: self._live.publish(
                attributes, payload, confirm=confirm, retain=retain, expires=expires, area=area
            )
        )

    def clear(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        retain: str | Sequence[str] = (),
        confirm: bool = False,
    ) -> int:
        """Publish, and leave the key without a value: later subscribers get none."""
        return self._background.call(
            lambda: self._live.clear(attributes, payload, retain=retain, confirm=confirm)
        )

    def request(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        timeout: float = 5.0,
    ) -> Notification:
        """Publish a request, and wait for the first reply; see the other twin."""
        one = self._background.call(
            lambda: self._live.request(attributes, payload, timeout=timeout)
        )
        return Notification(one, self._background)

    def requests(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        timeout: float = 5.0,
        most: int | None = None,
    ) -> Replies:
        """As `request`, for several replies."""
        replies = self._live.requests(attributes, payload, timeout=timeout, most=most)
        return Replies(self._background, replies)

    @property
    def replies_dropped(self) -> int:
        """Replies that came when nobody waited for them any more."""
        return self._live.replies_dropped

    def flush(self, timeout: float | None = None) -> None:
        """Wait until a broker has everything: what was published, subscribed to and advertised."""
        self._background.call(lambda: self._live.flush(timeout))

    def move(self, address: str) -> None:
        """Go to the broker at this address, and wait until it has welcomed this client."""
        self._background.call(lambda: self._live.move(address))

    def detach(self) -> None:
        """Go away for a while: the broker keeps the session, and what comes meanwhile."""
        self._background.call(self._live.detach)

    def attach(self) -> None:
        """Come back, where it was if that is possible, and wait until a broker has welcomed it."""
        self._background.call(self._live.attach)


def connect(
    addresses: str | Sequence[str], client_id: str | None = None, **options: Unpack[Options]
) -> Client:
    """A client that is connected to the broker at one of these addresses; options as for the twin.

    Close it, or use it with `with`.
    """
    return Client(live.Client(addresses, client_id, **options))
