"""AMQP 0-9-1, as RabbitMQ speaks it.

Everything is published to the topic exchange that every server has. A client has one queue, and
its subscriptions are bindings of that queue, so a publication comes once even if many of them
match. What is not acknowledged, which is done when `deliver` has returned, stays in the queue. The
queue of a client that was suspended, or cut off, is kept for `SESSION_S`, as long as the server
runs: publications are not written to its disk.

The queue itself survives a restart of the server, with nothing in it. So that this is noticed, a
mark is bound to it: an exchange that goes when the queue does, and when the server is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import aio_pika
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractExchange,
    AbstractIncomingMessage,
    AbstractQueue,
)
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, ChannelNotFoundEntity
from pamqp import decode
from pamqp.common import FieldTable

from wayfare.errors import CannotConnect, UsageError
from wayfare.service import line
from wayfare.service.addresses import ANYBODY, Place, Scheme, place
from wayfare.service.headers import headers, read
from wayfare.service.inbox import Inbox
from wayfare.service.line import CLOSING_S, Line
from wayfare.service.system import Access, Deliver, Lost, Publication, Traits, unfit

SCHEMES = {"amqp": Scheme(5672, safe="amqps"), "amqps": Scheme(5671, tls=True)}
EXCHANGE = "amq.topic"
SESSION_S = 86_400  # that a server keeps the queue of a client that is not connected
BEAT_S = 10
RECEIVED_MAX = 500  # publications that the server sends ahead of our acknowledgements
TEXT_MAX = 255  # bytes of a topic, a subscription or a queue's name
NAME_MAX = 128  # bytes of a property's name
INTEGER_MAX = 2**63 - 1
FRAME_BYTES = 20  # of a frame with headers, beside them
TOO_LARGE = re.compile(r"larger than (?:configured )?max size '?(\d+)")  # as servers say it

# What goes wrong is told in a sentence, where it matters.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)
logging.getLogger("aio_pika").setLevel(logging.CRITICAL)

FAILURES = (AMQPError, ChannelInvalidStateError, OSError)


# The library ends the connection when it cannot read something. Anybody could publish that, and it
# would be given again to every client that it is for, for ever. What it cannot read is left out.


def short_text(value: bytes) -> tuple[int, str]:
    size = value[0] + 1
    return size, value[1:size].decode("utf-8", "surrogateescape")


def table_or_nothing(value: bytes) -> tuple[int, FieldTable]:
    try:
        return decode.field_table(value)
    except Exception:
        return 4 + int.from_bytes(value[:4], "big"), {}


def time_or_nothing(value: bytes) -> tuple[int, datetime | None]:
    try:
        return decode.timestamp(value)
    except Exception:
        return 8, None


decode.METHODS |= {
    "shortstr": short_text,
    "table": table_or_nothing,
    "timestamp": time_or_nothing,
}


class Amqp:
    scheme = "amqp"
    trust = ANYBODY
    traits = Traits(suspends=True)

    def check(self, subscription: str) -> None:
        reason = unfit(subscription, TEXT_MAX)
        words = subscription.split(".")
        if any(len(word) > 1 and ("#" in word or "*" in word) for word in words):
            reason = "# and * stand alone between dots"
        if reason:
            raise UsageError(f"{subscription!r:.80} is no AMQP subscription: {reason}")

    def topic(self, *words: str) -> str:
        return ".".join(words)

    def subscription(self, topic: str) -> str:
        return topic

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
        access = AmqpAccess(place(address, SCHEMES, self.trust), name, deliver, lost)
        await access.connect(resume)
        return access


class AmqpAccess(Line):
    _connection: AbstractConnection
    _channel: AbstractChannel
    _exchange: AbstractExchange
    _queue: AbstractQueue
    _consumer: str

    def __init__(self, place: Place, name: str, deliver: Deliver, lost: Lost) -> None:
        super().__init__(place, lost)
        self._queue_name = f"wayfare.{name}"
        self._mark = f"mark.{self._queue_name}"
        if reason := unfit(self._mark, TEXT_MAX):
            raise UsageError(f"{name!r:.80} cannot be the name of a client here: {reason}")
        self._deliver = deliver
        self.resumed = False  # whether the server had kept the queue, and what was in it
        self._unacknowledged = 0
        self._frame_max = 0  # bytes
        self._inbox: Inbox[tuple[Publication, AbstractIncomingMessage]] | None = None
        self._ending: asyncio.Task[None] | None = None

    # ---- coming and going -------------------------------------------------------------

    async def connect(self, resume: bool) -> None:
        try:
            self._connection = await aio_pika.connect(
                host=self.place.host,
                port=self.place.port,
                login=self.place.user or "guest",
                password=self.place.password or "guest",
                ssl=self.place.tls,
                ssl_context=self.place.security(),
                heartbeat=BEAT_S,
                timeout=line.ANSWER_S,
            )
        except TimeoutError:
            raise self.place.unanswered(f"no answer within {line.ANSWER_S:g} s") from None
        except FAILURES as error:
            raise self.place.unanswered(error) from None
        try:
            async with asyncio.timeout(line.ANSWER_S):
                await self._begin(resume)
            self.welcome()
        except FAILURES as error:  # TimeoutError is an OSError
            await self._hang_up("given up")
            raise CannotConnect(
                f"cannot connect to {self.place}: {error or 'no answer'}; "
                "is there another client of that name?"
            ) from None
        except BaseException:
            await self._hang_up("given up")
            raise

    async def _begin(self, resume: bool) -> None:
        self._channel = await self._connection.channel()
        if resume:
            self.resumed = await self._is_marked()
        else:
            await self._channel.queue_delete(self._queue_name)
        await self._channel.set_qos(prefetch_count=RECEIVED_MAX)
        self._exchange = await self._channel.get_exchange(EXCHANGE, ensure=False)
        self._queue = await self._channel.declare_queue(
            self._queue_name, durable=True, arguments={"x-expires": SESSION_S * 1000}
        )
        self._connection.close_callbacks.add(self._on_closed)
        self._channel.close_callbacks.add(self._on_closed)
        below = await self._channel.get_underlay_channel()
        self._frame_max = below.connection.connection_tune.frame_max
        below.on_consumer_cancel_callbacks.add(self._on_cancelled)
        await below.exchange_declare(self._mark, auto_delete=True, internal=True, nowait=True)
        await below.queue_bind(self._queue_name, self._mark, nowait=True)
        self._inbox = Inbox(self._give, failed=self.end)
        self._consumer = await self._queue.consume(self._on_message, exclusive=True)

    async def _is_marked(self) -> bool:
        try:
            await self._channel.get_exchange(self._mark)
        except ChannelNotFoundEntity:
            self._channel = await self._connection.channel()  # the server closed the other one
            return False
        return True

    async def close(self, *, suspend: bool = False) -> None:
        if self._ending is not None:
            await self._ending
        if self.leave("it was closed"):
            with suppress(*FAILURES):
                async with asyncio.timeout(CLOSING_S):
                    await self._queue.cancel(self._consumer)
                    if not suspend:
                        await self._channel.queue_delete(self._queue_name)
            await self._hang_up("it was closed")

    async def _hang_up(self, reason: str) -> None:
        self.leave(reason)
        if self._inbox is not None:
            self._inbox.stop()
        # On a line that was cut, the library waits for three beats, whoever cancels that.
        closing = asyncio.create_task(self._connection.close())
        closing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([closing], timeout=CLOSING_S)

    def cut(self) -> None:
        self._ending = asyncio.create_task(self._hang_up("it is gone"))

    def _on_closed(self, _: object, error: BaseException | None) -> None:
        self.end(str(error or "") or "the server closed the connection")

    def _on_cancelled(self, _: object) -> None:
        self.end("the queue was deleted, or another client of that name came")

    # ---- what comes -------------------------------------------------------------------

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        try:
            await self._take(message)
        except FAILURES:
            pass  # it is told by who noticed first, and comes again
        except Exception as error:
            self.confused(error)

    async def _take(self, message: AbstractIncomingMessage) -> None:
        if self._inbox is None or self.gone is not None:
            return
        topic = message.routing_key or ""
        if topic and unfit(topic, TEXT_MAX):
            await message.ack()
            return
        self._unacknowledged += 1
        if self._unacknowledged > RECEIVED_MAX:
            self.end("the server sends more than was asked for")
            return
        properties, mark = read(
            (name, value)
            for name, value in message.headers.items()
            if isinstance(value, str | int | float | bool)
        )
        publication = Publication(topic, message.body, properties, mark)
        self._inbox.put((publication, message))

    async def _give(self, item: tuple[Publication, AbstractIncomingMessage]) -> None:
        publication, message = item
        await self._deliver(publication)
        if self.gone is None:
            self._unacknowledged -= 1
            with suppress(*FAILURES):  # then it comes again
                await message.ack()

    # ---- what the service calls -------------------------------------------------------

    async def _asked(self, asking: Coroutine[Any, Any, object]) -> None:
        """Wait for the answer to this, as long as the library says that there may be one."""
        try:
            async with asyncio.timeout(line.ANSWER_S):
                await asking
        except FAILURES as error:  # TimeoutError is an OSError
            self.end(str(error) or f"no answer within {line.ANSWER_S:g} s")
            self.alive()

    async def subscribe(self, subscriptions: Sequence[str]) -> None:
        self.alive()
        if subscriptions:
            await self._asked(self._bind(subscriptions))

    async def _bind(self, subscriptions: Sequence[str]) -> None:
        """The server answers in order: only the last one is waited for, once and not for each."""
        below = await self._channel.get_underlay_channel()
        *others, last = subscriptions
        for text in others:
            await below.queue_bind(self._queue_name, EXCHANGE, text, nowait=True)
        await below.queue_bind(self._queue_name, EXCHANGE, last)

    async def unsubscribe(self, subscriptions: Sequence[str]) -> None:
        self.alive()
        for text in subscriptions:
            await self._asked(self._queue.unbind(EXCHANGE, text))

    async def publish(self, publication: Publication) -> None:
        topic = publication.topic
        reason = unfit(topic, TEXT_MAX)
        if reason or "#" in topic or "*" in topic:
            reason = reason or "# and * are for subscriptions"
            raise UsageError(f"{topic!r:.80} is no AMQP topic: {reason}")
        message = aio_pika.Message(publication.payload, headers=table(publication))
        self.alive()
        told = len(message.properties.marshal()) + FRAME_BYTES
        if 0 < self._frame_max < told:
            raise UsageError(
                f"{self.place} takes {self._frame_max} bytes of properties, not {told}"
            )
        await self._asked(self._publish(message, topic))

    async def _publish(self, message: aio_pika.Message, topic: str) -> None:
        try:
            await self._exchange.publish(message, topic, mandatory=False)
        except AMQPError as error:
            # The channel is closed. Others that were under way are not to blame: they are asked for again.
            limit, size = TOO_LARGE.search(str(error)), len(message.body)
            if limit is not None and size > int(limit[1]):
                raise UsageError(f"{self.place} takes {limit[1]} bytes, not {size}") from None
            raise


def table(publication: Publication) -> dict[str, Any]:
    """Properties and id as headers of AMQP, which have types; but the library's floats are short."""
    for name in publication.properties:
        if len(name.encode("utf-8", "replace")) > NAME_MAX:
            raise UsageError(f"a property cannot be called {name!r:.60}: at most {NAME_MAX} bytes")
    natives = {
        name: value
        for name, value in publication.properties.items()
        if isinstance(value, int) and abs(value) <= INTEGER_MAX
    }
    return {**dict(headers(publication)), **natives}
