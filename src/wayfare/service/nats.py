"""NATS, without JetStream.

Properties and the id of a publication are headers. The library neither reconnects nor queues for
us: what comes is taken in the order in which it comes, over all subscriptions, and nothing is
read while the inbox is full. A server cuts off who does not read for long (write_deadline, 10 s).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from wayfare.errors import Refused, UsageError
from wayfare.service import line
from wayfare.service.addresses import ANYBODY, Place, Scheme, context_of, place
from wayfare.service.headers import headers, read
from wayfare.service.inbox import Inbox
from wayfare.service.line import CLOSING_S, Line
from wayfare.service.system import Access, Deliver, Lost, Publication, Traits, unfit

SCHEMES = {"nats": Scheme(4222), "nats+tls": Scheme(4222, tls=True)}
TEXT_MAX = 4_000  # bytes of a subject: a server cuts off who sends a line of more than 4,096
PING_S = 20  # without three answers in a row the server is gone
PINGS = 3

log = logging.getLogger(__name__)


class Nats:
    scheme = "nats"
    trust = ANYBODY
    traits = Traits(mesh=True)  # a cluster is one

    def check(self, subscription: str) -> None:
        words = subscription.split(".")
        reason = complaint(subscription)
        if reason is None and ">" in words[:-1]:
            reason = "> stands at the end"
        if reason is None and any(len(word) > 1 and {"*", ">"} & {*word} for word in words):
            reason = "* and > stand alone between dots"
        if reason:
            raise UsageError(f"{subscription!r:.80} is no NATS subscription: {reason}")

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
        access = NatsAccess(place(address, SCHEMES, self.trust), name, deliver, lost)
        await access.connect()
        return access


def complaint(text: str) -> str | None:
    """Say why this can be neither subject nor subscription."""
    if text and not all(text.split(".")):
        return "there is nothing before, after or between its dots"
    if any(character.isspace() or character < " " for character in text):
        return "it has spaces or control characters"
    return unfit(text, TEXT_MAX)


class NatsClient(Client):
    """The library's client, but for what it does with messages.

    It has a queue and a task for each subscription, which mixes up the order of messages of
    different ones, and drops what does not fit.
    """

    access: NatsAccess

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        try:
            await self.access.received(subject, data, headers)
        except Exception as error:  # for which the library would only stop reading
            self.access.confused(error)

    async def _read_loop(self) -> None:
        """It stops for errors of any kind, without a word for some of them."""
        await super()._read_loop()
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            await self.access.closed()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """A server that wants no TLS gets none of the library, which would say the password to it."""
        if self.access.place.tls and initial_connection and not info.get("tls_required"):
            raise errors.Error("no TLS is spoken there")
        await super()._process_info(info, initial_connection)


class NatsAccess(Line):
    def __init__(self, place: Place, name: str, deliver: Deliver, lost: Lost) -> None:
        super().__init__(place, lost)
        self._name = name
        self._client = NatsClient()
        self._client.access = self
        self._inbox: Inbox[Publication] = Inbox(deliver, failed=self.end)
        self._subscriptions: dict[str, Subscription] = {}
        self._error: Exception | None = None  # the last one that the library told
        self._closing: asyncio.Task[None] | None = None

    # ---- coming and going -------------------------------------------------------------

    async def connect(self) -> None:
        scheme = "tls" if self.place.tls else "nats"
        try:
            async with asyncio.timeout(line.ANSWER_S):
                await self._client.connect(
                    f"{scheme}://{self.place.netloc}",
                    name=self._name,
                    user=self.place.user,
                    password=self.place.password,
                    tls=context_of(self.place.trust),  # which a server may want by itself
                    error_cb=self._on_error,
                    closed_cb=self.closed,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # fewer mean that it tries for ever
                    reconnect_time_wait=0,
                    ping_interval=PING_S,
                    max_outstanding_pings=PINGS,
                )
        except TimeoutError:
            await self._give_up()
            raise self.place.unanswered(f"no answer within {line.ANSWER_S:g} s") from None
        except (OSError, errors.Error) as error:
            await self._give_up()
            raise self.place.unanswered(self._error or error) from None
        except asyncio.CancelledError:
            await self._give_up()
            raise
        if self._client.is_connected and self.place.tls:
            # Else asyncio complains at the end of each connection: the library has not told it.
            transport: Any = self._client._transport
            transport._io_writer.transport.get_protocol()._over_ssl = True
        self.welcome()

    async def _give_up(self) -> None:
        self.leave("given up")
        self._inbox.stop()
        # Behind a certificate that is not trusted, the library would wait for ever for its end.
        transport: Any = self._client._transport
        self._client._transport = None
        if transport is not None:
            transport.close()
        await self._hang_up()

    async def close(self, *, suspend: bool = False) -> None:
        self._inbox.stop()
        if self.gone is None:
            # The server has everything that was published when it has answered.
            with contextlib.suppress(errors.Error, TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    await self._client.flush()
            self.leave("it was closed")
            await self._hang_up()

    async def _hang_up(self) -> None:
        """The library waits until all is sent: on a line that was cut, for ever."""
        transport: Any = self._client._transport
        closing = asyncio.create_task(self._client.close())
        closing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([closing], timeout=CLOSING_S)
        if not closing.done() and transport is not None:
            transport._io_writer.transport.abort()
            await asyncio.wait([closing], timeout=CLOSING_S)
        closing.cancel()

    def cut(self) -> None:
        self._inbox.finish()
        self._closing = asyncio.create_task(self._hang_up())

    # ---- what the library calls -------------------------------------------------------

    async def _on_error(self, error: Exception) -> None:
        self._error = error
        if "permissions violation for publish" in str(error).lower():
            log.warning("%s refuses a publication: %s", self.place, error)

    async def closed(self) -> None:
        why = self._client.last_error or self._error or "it cannot be read"
        self.end(f"the server closed the connection: {why}")

    async def received(self, subject: bytes, payload: bytes, lines: bytes | None) -> None:
        try:
            topic = subject.decode()
        except UnicodeDecodeError:
            return
        properties, mark = read(pairs(lines)) if lines else ({}, None)
        self._inbox.put(Publication(topic, payload, properties, mark))
        await self._inbox.room()

    # ---- what the service calls -------------------------------------------------------

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        self.alive()
        try:
            yield
        except errors.BadSubjectError:
            raise UsageError("NATS takes no such subject") from None
        except errors.Error as error:
            self.end(f"the server closed the connection: {error}")
            self.alive()

    async def subscribe(self, subscriptions: Sequence[str]) -> None:
        new = [text for text in dict.fromkeys(subscriptions) if text not in self._subscriptions]
        with self._asking():
            for text in new:
                self._subscriptions[text] = await self._client.subscribe(text)
            if subscriptions:
                await self._flush()
        # The server's complaints come before its answer to the flush.
        if "permissions violation for subscription" in str(self._error).lower():
            refusal, self._error = self._error, None
            await self.unsubscribe(new)  # it is not said which of them
            raise Refused(f"{self.place} refuses: {refusal}")

    async def unsubscribe(self, subscriptions: Sequence[str]) -> None:
        with self._asking():
            for text in subscriptions:
                if (subscription := self._subscriptions.pop(text, None)) is not None:
                    await subscription.unsubscribe()
            if subscriptions:
                await self._flush()

    async def publish(self, publication: Publication) -> None:
        """Publish. The server does not say when it has it; nothing is lost by `close`."""
        topic, payload = publication.topic, publication.payload
        if reason := complaint(topic):
            raise UsageError(f"{topic!r:.80} is no NATS subject: {reason}")
        told = dict(headers(publication))
        size = len(payload) + size_of(told)
        with self._asking():
            if size > (limit := self._client.max_payload):
                raise UsageError(f"{self.place} takes {limit} bytes, with headers, not {size}")
            try:
                await self._client.publish(topic, payload, headers=told or None)
            except errors.BadHeaderError as error:
                raise UsageError(f"NATS cannot carry a property of this name: {error}") from None

    async def _flush(self) -> None:
        """Wait until the server has what was sent."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(done: asyncio.Task[None]) -> None:
            if answer.done() or done.cancelled():
                return
            if (error := done.exception()) is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        flush = asyncio.create_task(self._client.flush(3600))  # `answer` has its own patience
        flush.add_done_callback(settle)
        try:
            await self.answer(answer)
        finally:
            flush.cancel()
        self.alive()


def size_of(told: Mapping[str, str]) -> int:
    """Bytes of these headers, which count as those of the payload do."""
    lines = sum(len(f"{name}: {value}\r\n".encode()) for name, value in told.items())
    return len("NATS/1.0\r\n\r\n") + lines if told else 0


def pairs(lines: bytes) -> Iterator[tuple[str, str]]:
    """Read headers. The first line is the version; what is no header is left out."""
    for each in lines.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = each.partition(":")
        if colon:
            yield name.strip(), value.strip()
