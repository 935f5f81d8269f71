r"""Redis publish/subscribe: channels, and patterns.

A subscription with `*`, `?` or `[...]` is a pattern; a backslash makes them ordinary characters.
Publications of Redis are bytes and nothing else. With `envelope`, those of this service carry
properties and an id in front of the payload; other clients see them there.

Two connections: one listens, one publishes. If the access point is a replica, publications go to
its primary, for a replica keeps them to itself. A server may close the one that publishes if it is idle
(timeout): it is opened again when it is needed. Nothing is read while the inbox is full; a server
cuts off who does not read for long (client-output-buffer-limit).
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from redis.asyncio.connection import Connection
from redis.exceptions import RedisError, ResponseError

from wayfare.errors import Refused, UsageError
from wayfare.service import line
from wayfare.service.addresses import ANYBODY, Place, Scheme, place
from wayfare.service.inbox import Inbox
from wayfare.service.line import Line
from wayfare.service.system import Access, Deliver, Id, Lost, Property, Publication, Traits, unfit

SCHEMES = {
    "redis": Scheme(6379, safe="rediss"),
    "rediss": Scheme(6379, tls=True),
    "redis+envelope": Scheme(6379, safe="rediss+envelope"),
    "rediss+envelope": Scheme(6379, tls=True),
}
MAGIC = b"\x00wayfare\x01"
# Nobody else asks a server that says nothing whether it is there. Without, who listens to one whose
# power was cut would wait for hours.
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
PRIMARIES_MAX = 8  # replicas of replicas, up to the primary
BULK_MAX = 512 * 1024 * 1024  # bytes of anything that a server takes unless it says otherwise
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

SPECIAL = re.compile(r"([*?\[\]\\])")
ESCAPED = re.compile(r"\\(.)", re.DOTALL)
PATTERN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[*?]|[^\\\[*?]", re.DOTALL)


class Envelope(msgspec.Struct, array_like=True):
    id: str | None
    properties: dict[str, Property]
    payload: bytes


READER = msgspec.msgpack.Decoder(Envelope)
WRITER = msgspec.msgpack.Encoder()


class Redis:
    scheme = "redis"
    trust = ANYBODY

    def __init__(self, *, envelope: bool = False) -> None:
        self.envelope = envelope
        self.traits = Traits(carries_ids=envelope, mesh=True)  # a cluster is one

    def check(self, subscription: str) -> None:
        reason = unfit(subscription, BULK_MAX)
        if sum(map(len, PATTERN.findall(subscription))) != len(subscription):
            reason = "a [ has no ], or a \\ has nothing behind it; a \\ before it makes it ordinary"
        if reason:
            raise UsageError(f"{subscription!r:.80} is no Redis subscription: {reason}")

    def topic(self, *words: str) -> str:
        return ":".join(words)

    def subscription(self, topic: str) -> str:
        return SPECIAL.sub(r"\\\1", topic)

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
        access = RedisAccess(place(address, SCHEMES, self.trust), deliver, lost, self.envelope)
        await access.connect()
        return access


def enveloped() -> Redis:
    return Redis(envelope=True)


def is_pattern(subscription: str) -> bool:
    return any(part[0] in "*?[" for part in PATTERN.findall(subscription))


def channel(subscription: str) -> str:
    return ESCAPED.sub(r"\1", subscription)


class RedisConnection(Connection):
    """The library's connection, with our idea of whom to trust."""

    place: Place

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self.place.security()}


def connection(place: Place, host: str, port: int) -> Any:
    made = RedisConnection(
        host=host,
        port=port,
        username=place.user,
        password=place.password,
        protocol=2,
        socket_keepalive=True,
        socket_keepalive_options={
            getattr(socket, name): value
            for name, value in KEEP_ALIVE.items()
            if hasattr(socket, name)
        },
        socket_timeout=line.ANSWER_S,
        socket_connect_timeout=line.ANSWER_S,
    )
    made.place = place
    return made


class RedisAccess(Line):
    def __init__(self, place: Place, deliver: Deliver, lost: Lost, envelope: bool) -> None:
        super().__init__(place, lost)
        self._envelope = envelope
        self._listening: Any = connection(place, place.host, place.port)
        self._publishing: Any = None
        self._opening = asyncio.Lock()
        self._primary = (place.host, place.port)
        self._bulk_max = BULK_MAX
        self._inbox: Inbox[Publication] = Inbox(deliver, failed=self.end)
        # What was asked of the server, and how many answers are still to come, in order.
        self._asked: deque[tuple[asyncio.Future[None], int]] = deque()
        self._published: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    # ---- coming and going -------------------------------------------------------------

    async def connect(self) -> None:
        try:
            await self._listening.connect()
            await self._find_primary()
            self._listening.socket_timeout = None  # from here on the server speaks when it likes
            await self._open_publishing()
        except (OSError, RedisError) as error:
            await self.close()
            raise self.place.unanswered(error) from None
        except BaseException:
            await self.close()
            raise
        self._watch(self._listening, self._heard, self._refused)
        self.welcome()

    def _watch(
        self, source: Any, heard: Callable[[Any], None], refused: Callable[[Exception], None]
    ) -> None:
        task = asyncio.create_task(self._read(source, heard, refused))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _find_primary(self) -> None:
        """Find the server that publications reach everybody from, and how large they may be."""
        asked = self._listening
        for _ in range(PRIMARIES_MAX):
            try:
                await asked.send_command("ROLE")
                await asked.send_command("CONFIG", "GET", "proto-max-bulk-len")
                role, limit = [await _answer(asked) for _ in range(2)]
            finally:
                if asked is not self._listening:
                    await asked.disconnect()
            self._bulk_max = int(limit[1]) if limit else BULK_MAX
            if not role or role[0] != b"slave":
                break
            self._primary = role[1].decode(), int(role[2])
            asked = connection(self.place, *self._primary)
            await asked.connect()

    async def _open_publishing(self) -> None:
        made = connection(self.place, *self._primary)
        try:
            await made.connect()
        except BaseException:
            await made.disconnect(nowait=True)
            raise
        made.socket_timeout = None
        self._publishing = made
        self._watch(made, self._taken, self._not_taken)

    async def close(self, *, suspend: bool = False) -> None:
        self.leave("it was closed")
        self._inbox.stop()
        await self._disconnect()

    def cut(self) -> None:
        self._inbox.finish()
        self._tasks.append(asyncio.create_task(self._disconnect()))

    async def _disconnect(self) -> None:
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for each in (self._listening, self._publishing):
            if each is not None:
                if each.is_connected:
                    each._writer.transport.abort()  # whatever is left to be sent, nobody waits for it
                await each.disconnect(nowait=True)

    # ---- what the server says ---------------------------------------------------------

    async def _read(
        self, source: Any, heard: Callable[[Any], None], refused: Callable[[Exception], None]
    ) -> None:
        try:
            while True:
                try:
                    heard(await source.read_response())
                except ResponseError as error:
                    refused(error)
                if source is self._listening:  # the answers to publications are read in any case
                    await self._inbox.room()
        except (OSError, RedisError) as error:
            if source is self._publishing and not self._published:
                self._publishing = None
                await source.disconnect(nowait=True)
            else:
                self.end(f"the server closed the connection: {error}")
        except Exception as error:
            self.confused(error)

    def _heard(self, answer: Any) -> None:
        match answer:
            case [b"message", bytes(topic), bytes(payload)]:
                self._received(topic, payload)
            case [b"pmessage", _, bytes(topic), bytes(payload)]:
                self._received(topic, payload)
            case [b"subscribe" | b"psubscribe" | b"unsubscribe" | b"punsubscribe", *_]:
                self._confirmed()

    def _received(self, topic: bytes, payload: bytes) -> None:
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            return
        if self._envelope and payload.startswith(MAGIC):
            try:
                opened = READER.decode(memoryview(payload)[len(MAGIC) :])
            except UNREADABLE:
                pass  # somebody else's payload that begins like ours
            else:
                mark = Id.parse(opened.id)
                self._inbox.put(Publication(name, opened.payload, opened.properties, mark))
                return
        self._inbox.put(Publication(name, payload))

    def _confirmed(self) -> None:
        if self._asked:
            answer, count = self._asked.popleft()
            if count > 1:
                self._asked.appendleft((answer, count - 1))
            elif not answer.done():
                answer.set_result(None)

    def _refused(self, error: Exception) -> None:
        if self._asked:
            self._settle(self._asked.popleft()[0], error)

    def _taken(self, _: Any) -> None:
        if self._published:
            self._settle(self._published.popleft(), None)

    def _not_taken(self, error: Exception) -> None:
        if self._published:
            self._settle(self._published.popleft(), error)

    def _settle(self, answer: asyncio.Future[None], error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(Refused(f"{self.place} refuses: {error}"))

    # ---- what the service calls -------------------------------------------------------

    async def subscribe(self, subscriptions: Sequence[str]) -> None:
        await self._ask("SUBSCRIBE", "PSUBSCRIBE", subscriptions)

    async def unsubscribe(self, subscriptions: Sequence[str]) -> None:
        await self._ask("UNSUBSCRIBE", "PUNSUBSCRIBE", subscriptions)

    async def publish(self, publication: Publication) -> None:
        payload = self._packed(publication)
        if len(payload) > self._bulk_max:
            raise UsageError(f"{self.place} takes {self._bulk_max} bytes, not {len(payload)}")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.alive()
        async with self._opening:  # who comes first is first
            if self._publishing is None:
                await self._reopen()
        self._published.append(answer)
        await self._send(self._publishing, "PUBLISH", publication.topic, payload)
        await self.answer(answer)

    async def _reopen(self) -> None:
        try:
            await self._open_publishing()
        except (OSError, RedisError) as error:
            self.end(f"the server closed the connection: {error}")
        if self.gone is not None:
            await self._disconnect()
        self.alive()

    async def _ask(self, exact: str, wild: str, subscriptions: Sequence[str]) -> None:
        channels = [channel(text) for text in subscriptions if not is_pattern(text)]
        patterns = [text for text in subscriptions if is_pattern(text)]
        answers: list[asyncio.Future[None]] = []
        self.alive()
        for command, texts in ((exact, channels), (wild, patterns)):
            if texts:
                answers.append(asyncio.get_running_loop().create_future())
                self._asked.append((answers[-1], len(texts)))
                await self._send(self._listening, command, *texts)
        for answer in answers:
            await self.answer(answer)

    async def _send(self, sink: Any, *words: str | bytes) -> None:
        try:
            await sink.send_command(*words)
        except (OSError, RedisError) as error:
            self.end(f"the server closed the connection: {error}")
            self.alive()

    def _packed(self, publication: Publication) -> bytes:
        if reason := unfit(publication.topic, BULK_MAX):
            raise UsageError(f"{publication.topic!r:.80} is no channel of Redis: {reason}")
        if not self._envelope:
            if publication.properties:
                raise UsageError(
                    "publications of Redis have no properties: leave them out, or wrap them "
                    "with the payload (redis+envelope://)"
                )
            return publication.payload
        mark = None if publication.id is None else str(publication.id)
        try:
            return MAGIC + WRITER.encode(
                Envelope(mark, publication.properties, publication.payload)
            )
        except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as error:
            raise UsageError(f"these properties cannot be published: {error}") from None


async def _answer(asked: Any) -> Any:
    """None, if we may not ask."""
    try:
        return await asked.read_response()
    except ResponseError:
        return None
