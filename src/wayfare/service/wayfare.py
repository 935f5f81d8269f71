"""Wayfare itself, as a system like any other: without its own ways to move.

A subscription is a filter, and a publication is a notification with an attribute `topic`; its
properties are the other attributes. A client is another one at each access point, so that nothing
moves: what is suspended waits at the broker where that was said, and is resumed there, by the process
that suspended it: brokers ask a client that comes back how far it got.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from wayfare.core import client as core
from wayfare.core.conditions import attr
from wayfare.core.filters import Filter
from wayfare.core.messages import ClientId, Publish
from wayfare.core.templates import Template, parse, where
from wayfare.errors import (
    Closed,
    FilterError,
    InvalidNotification,
    Refused,
    UsageError,
    WayfareError,
)
from wayfare.net.local_broker import LocalBroker, begun
from wayfare.net.options import Settings
from wayfare.net.rounds import Rounds
from wayfare.net.subscription import Notification
from wayfare.service import line
from wayfare.service.addresses import ANYBODY, Place, Scheme, place
from wayfare.service.headers import TYPES_PROPERTY, headers, read
from wayfare.service.inbox import Inbox
from wayfare.service.line import CLOSING_S, Line
from wayfare.service.system import Access, Deliver, Lost, Publication, Traits

SCHEMES = {"wayfare": Scheme(7410, safe="wayfares"), "wayfares": Scheme(7410, tls=True)}
TOPIC = "topic"
LEFT_MAX = 10_000  # clients that were suspended, or cut off, and may come back


class Left(NamedTuple):
    """What a client has to know when it comes back."""

    memory: core.Memory
    held: core.Held
    outbox: list[Publish]
    whole: bool = True  # no broker has told of a loss


# Who is away, and how far it got; the longest first.
LEFT: dict[ClientId, Left] = {}


class Wayfare:
    scheme = "wayfare"
    trust = ANYBODY
    traits = Traits(suspends=True, advertises=True)

    def check(self, subscription: str) -> None:
        parsed(subscription)

    def topic(self, *words: str) -> str:
        return "/".join(words)

    def subscription(self, topic: str) -> str:
        return str(where(attr(TOPIC) == topic))

    async def open(
        self,
        address: str,
        name: str,
        deliver: Deliver,
        lost: Lost,
        *,
        resume: bool = False,
        lasting: bool = False,
    ) -> Access:
        access = WayfareAccess(place(address, SCHEMES, self.trust), name, deliver, lost)
        await access.connect(resume)
        return access


def parsed(subscription: str) -> Filter:
    try:
        wanted = parse(subscription)
    except FilterError as error:
        raise UsageError(f"{subscription!r:.80} is no filter of Wayfare: {error}") from None
    if isinstance(wanted, Template):
        raise UsageError(f"{subscription!r:.80} follows its client, which only Wayfare can do")
    return wanted


class Settled(LocalBroker):
    """A client that stays where it is, and is done with a notification when that was given on."""

    def __init__(
        self,
        place: Place,
        name: str,
        give: Callable[[Notification], Coroutine[Any, Any, None]],
        lost: Lost,
        missed: Callable[[int, str], None],
    ) -> None:
        settings = Settings(
            account=place.user,
            password=place.password,
            timeout=line.ANSWER_S,
            ca=place.trust.ca,
            cert=place.trust.cert,
            on_lost=missed,
        )
        mine = core.Client(ClientId(f"{name}@{place.host}:{place.port}"), confirms=True)
        super().__init__(str(place), begun(mine), settings, leaves=False)
        self._inbox, self._on_gone = Inbox(give, failed=lost), lost

    def go_on(self, left: Left) -> None:
        """Where the last one of that name was."""
        self._core.remember(left.memory, left.held, left.outbox, {})
        self._count_confirmed()

    def trouble(self) -> str:
        """Why there is no connection."""
        return self._conversation.trouble.removeprefix(f"{self.addresses[0]}: ") or "no answer"

    def want(self, wanted: Filter) -> None:
        self.check()
        if not self._core.asks_for(wanted):
            self._profile.want(wanted, None)

    def unwant(self, wanted: Filter) -> None:
        self._profile.drop(wanted)

    def done_with(self, notification: Notification) -> None:
        there = self._conversation
        there.perform(self._core.confirm_to(notification.delivery, time.monotonic_ns()))
        there.flush_soon()
        there.take_held()

    async def go(self, *, leave: bool) -> Left:
        """Close, for good or to go on with what is left."""
        self._leaves = leave
        self._inbox.stop()
        await self.close(CLOSING_S)
        return Left(self._core.memory(), self._core.held(), list(self._core.outbox))

    async def _go_round(self, rounds: Rounds) -> None:
        """Once; when the connection is gone, it is for good."""
        welcomed = await rounds.visit(self.addresses[0])
        why = self.trouble()
        self._life.stop(self._life.error or (lambda: Closed(why)))
        if welcomed:
            self._on_gone(why)

    def _may_take(self) -> bool:
        return not self._inbox.full

    def _hand_out(self, notification: Notification, _: object) -> None:
        self._inbox.put(notification)


class WayfareAccess(Line):
    def __init__(self, place: Place, name: str, deliver: Deliver, lost: Lost) -> None:
        super().__init__(place, lost)
        self._deliver = deliver
        self._client = Settled(place, name, self._give, self.end, self._missed)
        self._name = ClientId(self._client.name)
        self._whole = True  # no broker has told of a loss
        self.resumed = False  # whether the session goes on, and nothing of it was lost
        self._leaving: asyncio.Task[None] | None = None

    # ---- coming and going -------------------------------------------------------------

    async def connect(self, resume: bool) -> None:
        left = LEFT.pop(self._name, None)
        if left is not None and resume:
            self._client.go_on(left)
        try:
            await self._client.open()
            await self._client.advertise("true")
            await self._client.flush(line.ANSWER_S)  # what was lost meanwhile is told before
            self.resumed = resume and left is not None and left.whole and self._whole
            self._whole = True
            self.welcome()
        except BaseException as error:
            self.leave("given up")
            await self._client.go(leave=False)
            if left is not None and resume:
                LEFT[self._name] = left
            if isinstance(error, WayfareError | TimeoutError):
                raise self.place.unanswered(self._client.trouble()) from None
            raise

    async def close(self, *, suspend: bool = False) -> None:
        if self._leaving is not None:
            await self._leaving
        elif self.leave("it was closed"):
            await self._leave(suspend)

    async def _leave(self, suspend: bool) -> None:
        left = await self._client.go(leave=not suspend)
        if suspend:
            LEFT[self._name] = left._replace(whole=self._whole)
            while len(LEFT) > LEFT_MAX:
                del LEFT[next(iter(LEFT))]

    def cut(self) -> None:
        self._leaving = asyncio.create_task(self._leave(suspend=True))

    def _missed(self, _: int, reason: str) -> None:
        """Whoever has this access already gets to know by another one, which is not `resumed`."""
        self._whole = False
        if self._given:
            self.end(f"something was lost: {reason}")

    # ---- what the service calls, and is called with -----------------------------------

    async def _give(self, notification: Notification) -> None:
        pairs = dict(notification.attributes)
        topic = pairs.pop(TOPIC, "")
        properties, mark = read(pairs.items())
        await self._deliver(Publication(str(topic), notification.payload, properties, mark))
        if self.gone is None:
            self._client.done_with(notification)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self.alive()
        try:
            yield
        except FilterError as error:
            raise UsageError(f"too many subscriptions: {error}") from None
        except TimeoutError:
            self.end(f"no answer within {line.ANSWER_S:g} s")
            self.alive()
        except (Closed, Refused) as error:
            self.end(str(error))
            self.alive()

    async def subscribe(self, subscriptions: Sequence[str]) -> None:
        wanted = [parsed(text) for text in subscriptions]
        with self._asking():
            for one in wanted:
                self._client.want(one)
            await self._client.flush(line.ANSWER_S)

    async def unsubscribe(self, subscriptions: Sequence[str]) -> None:
        wanted = [parsed(text) for text in subscriptions]
        with self._asking():
            for one in wanted:
                self._client.unwant(one)
            await self._client.flush(line.ANSWER_S)

    async def publish(self, publication: Publication) -> None:
        if TOPIC in publication.properties:
            raise UsageError(f"a property cannot be called {TOPIC!r}: Wayfare has the topic there")
        attributes = {
            TOPIC: publication.topic,
            **dict(headers(publication)),
            **publication.properties,
        }
        attributes.pop(TYPES_PROPERTY, None)
        with self._asking():
            try:
                await self._client.publish(attributes, publication.payload, confirm=True)
            except InvalidNotification as error:
                raise UsageError(f"Wayfare cannot publish this: {error}") from None
