"""MQTT 5: mosquitto and others.

Publications go both ways with quality of service 1, and are acknowledged when `deliver` has
returned. A session that was suspended, or cut off, is kept by the server for `SESSION_S`. The
library is driven by the event loop itself, on a connection that we make: it would need a thread for that.

mosquitto 2.0 never writes a session to its disk that began with a "clean start". So sessions that
are to outlive a restart of it begin without: if there is one left of before, it is ended first.

The server sends at most `RECEIVED_MAX` publications ahead of acknowledgements, and all of them have
a place in the inbox. Those that others published with quality of service 0 can be more: they are
dropped when the inbox is full, for the server would drop them, too, if it was not read.

Retained publications come with a subscription that is new at its server. Client proxies get none: whoever they
stand in for gets them.

What a server holds back for a slow client is its own choice: mosquitto keeps 1,000 publications
(max_queued_messages) beyond those that are not acknowledged, and drops the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Any

from paho.mqtt import properties as library
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.exception import MalformedPacket, MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from wayfare.errors import Closed, Refused, UsageError
from wayfare.service import line
from wayfare.service.addresses import ANYBODY, Place, Scheme, place
from wayfare.service.headers import headers, read
from wayfare.service.inbox import Inbox
from wayfare.service.line import CLOSING_S, Line
from wayfare.service.system import Access, Deliver, Lost, Publication, Traits, unfit

SCHEMES = {"mqtt": Scheme(1883, safe="mqtts"), "mqtts": Scheme(8883, tls=True)}
SESSION_S = 86_400  # that a server keeps the session of a client that is not connected
KEEP_ALIVE_S = 30
RECEIVED_MAX = 500  # publications that the server sends ahead of our acknowledgements
SENT_MAX = 100  # ... and we ahead of the server's
LEVELS_MAX = 200  # of a topic or subscription, at mosquitto
TEXT_MAX = 65_535  # bytes of a topic, a subscription or a property
READ_MAX = 100  # packets that are read before others have their turn
PACKET_MAX = 268_435_455  # bytes behind the length of a packet

log = logging.getLogger(__name__)
# What MQTT 5 advises against (1.5.4), and mosquitto takes for a malformed packet.
NO_CHARACTER = re.compile(
    r"[\0-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr((plane << 16) + code) for plane in range(17) for code in (0xFFFE, 0xFFFF))
    + "]"
)


# The library ends the connection when it cannot read something. Anybody could publish that, and it
# would be given again to every client that it is for, for ever. What it cannot read is left out.

UNREADABLE = (MQTTException, LookupError, ValueError, struct.error)


def any_text(buffer: bytes, most: int) -> tuple[str, int]:
    """Also with U+FEFF, which is allowed, and the library does not know."""
    size = int.from_bytes(buffer[:2], "big") + 2
    if size > most:
        raise MalformedPacket("a text is longer than what it stands in")
    return bytes(buffer[2:size]).decode("utf-8", "replace"), size


library.readUTF = any_text


class Mqtt:
    scheme = "mqtt"
    trust = ANYBODY
    traits = Traits(suspends=True)

    def check(self, subscription: str) -> None:
        reason = complaint(subscription)
        levels = subscription.split("/")
        if any(len(level) > 1 and ("#" in level or "+" in level) for level in levels):
            reason = "# and + stand alone between slashes"
        elif "#" in levels[:-1]:
            reason = "# stands at the end"
        if reason:
            raise UsageError(f"{subscription!r:.80} is no MQTT subscription: {reason}")

    def topic(self, *words: str) -> str:
        return "/".join(words)

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
        access = MqttAccess(place(address, SCHEMES, self.trust), name, deliver, lost)
        access.retained = not lasting
        await access.connect(resume, clean=not (resume or lasting))
        if access.resumed and not resume:
            await access.close()  # which ends it
            return await self.open(address, name, deliver, lost, lasting=lasting)
        return access


def complaint(text: str) -> str | None:
    """Say why this can be neither topic nor subscription: a server may hang up on who says it all the same."""
    if text.count("/") >= LEVELS_MAX:
        return f"it has more than {LEVELS_MAX} levels"
    if NO_CHARACTER.search(text):
        return "it has a control character, or a code that is none"
    return unfit(text, TEXT_MAX)


def packed(kind: int, **values: object) -> Properties:
    made = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


def length_of(size: int) -> int:
    """How many bytes say that so many follow."""
    return 1 + (size > 127) + (size > 16_383) + (size > 2_097_151)


class MqttClient(Client):
    """The library's client, on a connection that is there already."""

    connection: socket.socket

    def _create_socket(self) -> socket.socket:
        return self.connection

    def _handle_publish(self) -> MQTTErrorCode:
        try:
            return super()._handle_publish()
        except UNREADABLE:
            # Its properties, most likely.
            command, packet = self._in_packet["command"], self._in_packet["packet"]
            start = 2 + int.from_bytes(packet[:2], "big") + (2 if command & 0x06 else 0)
            size, used = VariableByteIntegers.decode(packet[start:])  # type: ignore[no-untyped-call]
            self._in_packet["packet"] = packet[:start] + b"\0" + packet[start + used + size :]
            return super()._handle_publish()


async def reach(place: Place) -> socket.socket:
    """Connect to the server, with TLS if that is to be."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            async with asyncio.timeout(
                line.ANSWER_S
            ):  # each: one of them may be of a network that is gone
                await loop.sock_connect(made, address)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if (security := place.security()) is not None:
                    made = security.wrap_socket(
                        made, server_hostname=place.host, do_handshake_on_connect=False
                    )
                    await shake_hands(made)
            return made
        except BaseException as error:
            made.close()
            if not isinstance(error, OSError) or address == found[-1][4]:
                raise
    raise OSError("it has no address")


async def shake_hands(made: ssl.SSLSocket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    while True:
        try:
            made.do_handshake()
            return
        except ssl.SSLWantReadError:
            watch, leave = loop.add_reader, loop.remove_reader
        except ssl.SSLWantWriteError:
            watch, leave = loop.add_writer, loop.remove_writer
        watch(made, ready.set)
        try:
            await ready.wait()
        finally:
            leave(made)
        ready.clear()


class MqttAccess(Line):
    def __init__(self, place: Place, name: str, deliver: Deliver, lost: Lost) -> None:
        super().__init__(place, lost)
        self._name, self._deliver = name, deliver
        self._loop = asyncio.get_running_loop()
        self._client = MqttClient(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self._connected: asyncio.Future[Properties | None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[Sequence[ReasonCode]]] = {}
        self._sending = asyncio.Semaphore(SENT_MAX)
        self._packet_max = 0
        self.retained = True  # whether what was retained is wanted
        self.resumed = False  # whether the server had kept the session
        self._resume = False  # else it is to be forgotten
        self._dropped = 0
        self._moved = False  # whether the last read gave a packet
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._inbox: Inbox[tuple[Publication, int]] | None = None

    # ---- coming and going -------------------------------------------------------------

    async def connect(self, resume: bool, *, clean: bool) -> None:
        self._resume = resume
        client = self._client
        client.max_inflight_messages_set(SENT_MAX)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = client.on_unsubscribe = self._on_answer
        if self.place.user is not None:
            client.username_pw_set(self.place.user, self.place.password)
        asked = packed(
            PacketTypes.CONNECT, SessionExpiryInterval=SESSION_S, ReceiveMaximum=RECEIVED_MAX
        )
        try:
            client.connection = await reach(self.place)
        except TimeoutError:
            raise self.place.unanswered(f"no answer within {line.ANSWER_S:g} s") from None
        except OSError as error:
            raise self.place.unanswered(error) from None
        client.connect(
            self.place.host, self.place.port, KEEP_ALIVE_S, clean_start=clean, properties=asked
        )
        if client.socket() is None:  # it did not take our certificate, and we have noticed already
            self.leave("given up")
            raise self.place.unanswered("the server closed the connection")
        self._watch()
        try:
            granted = await self.answer(self._connected)
        except Closed:
            raise self.place.unanswered(self.gone) from None
        except asyncio.CancelledError:
            self.end("given up")
            raise
        self.welcome()
        self._packet_max = getattr(granted, "MaximumPacketSize", 0)
        ahead = min(SENT_MAX, getattr(granted, "ReceiveMaximum", SENT_MAX))
        self._sending = asyncio.Semaphore(ahead)

    def _watch(self) -> None:
        """From here on the event loop reads and writes."""
        found = self._client.socket()
        assert isinstance(found, socket.socket)
        self._socket = found
        self._inbox = Inbox(self._give, failed=self.end)
        self._client.on_socket_register_write = self._on_writing
        self._client.on_socket_close = lambda *_: self._unwatch()
        self._loop.add_reader(found, self._read)
        self._timer = self._loop.call_later(1.0, self._tick)
        self._write()

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket = None

    async def close(self, *, suspend: bool = False) -> None:
        if self._inbox is not None:
            self._inbox.stop()
        if not self.leave("it was closed"):
            return
        left = packed(PacketTypes.DISCONNECT, SessionExpiryInterval=SESSION_S if suspend else 0)
        # The library closes its socket at once. If there is something that was not read, the
        # goodbye may be lost by that; with a copy of the socket we can wait for the server. With TLS,
        # it is one of the socket below, which gives what nobody reads.
        copy = None if self._socket is None else socket.socket(fileno=os.dup(self._socket.fileno()))
        if copy is not None:
            copy.setblocking(False)
        self._client.disconnect(properties=left)
        self._write()
        if copy is not None:
            await self._drain(copy)
        self.cut()

    async def _drain(self, copy: socket.socket) -> None:
        """Wait until the server has closed its side."""
        try:
            async with asyncio.timeout(CLOSING_S):
                while self._client.want_write() and self._socket is not None:
                    await asyncio.sleep(0.01)
                while await self._loop.sock_recv(copy, 65_536):
                    pass
        except (OSError, TimeoutError):
            pass
        finally:
            copy.close()

    def cut(self) -> None:
        self._unwatch()
        if self._inbox is not None:
            self._inbox.drop()  # what is not acknowledged comes again
        left = self._client.socket()
        if left is not None:
            left.close()

    # ---- reading and writing ----------------------------------------------------------

    def _read(self) -> None:
        for _ in range(READ_MAX):
            self._moved = False
            try:
                self._client.loop_read()
            except Exception as error:
                self.confused(error)
            if not self._moved or self._socket is None:
                return
        self._loop.call_soon(self._read)  # with TLS, what is left may have been received already

    def _write(self) -> None:
        if self._socket is None:
            return
        self._client.loop_write()
        if self._socket is None:
            return
        if self._client.want_write():
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(1.0, self._tick)
        self._client.loop_misc()

    # ---- what the library calls -------------------------------------------------------

    def _on_writing(self, client: Client, data: Any, writable: object) -> None:
        self._loop.call_soon(self._write)  # later, together with what else is to be written

    def _on_connect(
        self, client: Client, data: Any, flags: Any, code: ReasonCode, granted: Properties | None
    ) -> None:
        self._moved = True
        if self._connected.done():
            return
        if code.is_failure:
            self._loop.call_soon(self.end, f"it says {code}")
        else:
            self.resumed = flags.session_present
            self._connected.set_result(granted)

    def _on_disconnect(
        self, client: Client, data: Any, flags: Any, code: ReasonCode, _: Properties | None
    ) -> None:
        said = (
            f"the server says {code}"
            if flags.is_disconnect_packet_from_server
            else f"it broke: {code}"
        )
        # Not from within the library, which is still busy with its socket, maybe in a thread.
        self._loop.call_soon_threadsafe(self.end, said)

    def _on_answer(
        self,
        client: Client,
        data: Any,
        number: int,
        codes: Sequence[ReasonCode],
        _: Properties | None,
    ) -> None:
        self._moved = True
        answer = self._answers.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(codes)

    def _on_publish(
        self, client: Client, data: Any, number: int, code: ReasonCode, _: Properties | None
    ) -> None:
        self._on_answer(client, data, number, [code], _)

    def _on_message(self, client: Client, data: Any, message: MQTTMessage) -> None:
        self._moved = True
        if self._inbox is None or self.gone is not None or (self.resumed and not self._resume):
            return
        number = message.mid if message.qos else 0
        try:
            topic = message.topic
        except UnicodeDecodeError:
            client.ack(number, message.qos)
            return
        if self._inbox.full and not number:
            self._dropped += 1
            if self._dropped == 1:
                log.warning(
                    "%s is slow: publications without acknowledgement are dropped", self._name
                )
            return
        properties, mark = read(getattr(message.properties, "UserProperty", ()))
        self._inbox.put((Publication(topic, bytes(message.payload), properties, mark), number))

    async def _give(self, item: tuple[Publication, int]) -> None:
        publication, number = item
        await self._deliver(publication)
        if number and self.gone is None:
            self._client.ack(number, 1)

    # ---- what the service calls -------------------------------------------------------

    async def subscribe(self, subscriptions: Sequence[str]) -> None:
        self.alive()
        if subscriptions:
            self._check_size(3 + sum(3 + len(text.encode()) for text in subscriptions))
            asked = SubscribeOptions(
                qos=1,
                retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
                if self.retained
                else SubscribeOptions.RETAIN_DO_NOT_SEND,
            )
            _, number = self._client.subscribe([(text, asked) for text in subscriptions])
            await self._settled(number, subscriptions)

    async def unsubscribe(self, subscriptions: Sequence[str]) -> None:
        self.alive()
        if subscriptions:
            _, number = self._client.unsubscribe(list(subscriptions))
            await self._settled(number, subscriptions)

    async def publish(self, publication: Publication) -> None:
        reason = complaint(publication.topic)
        if reason or "#" in publication.topic or "+" in publication.topic:
            reason = reason or "# and + are for subscriptions"
            raise UsageError(f"{publication.topic!r:.80} is no MQTT topic: {reason}")
        pairs = headers(publication)
        for name, value in pairs:
            if len(name.encode()) > TEXT_MAX or len(value.encode()) > TEXT_MAX:
                raise UsageError(f"the property {name:.60} has more than {TEXT_MAX} bytes")
        properties = packed(PacketTypes.PUBLISH, UserProperty=pairs) if pairs else None
        told = sum(5 + len(name.encode()) + len(value.encode()) for name, value in pairs)
        topic = len(publication.topic.encode())
        self._check_size(2 + topic + 2 + length_of(told) + told + len(publication.payload))
        async with self._sending:
            self.alive()
            sent = self._client.publish(
                publication.topic, publication.payload, qos=1, properties=properties
            )
            await self._settled(sent.mid, [publication.topic])

    def _check_size(self, size: int) -> None:
        """A server cuts off who sends a packet of more than it takes; with so much behind its length."""
        whole = 1 + length_of(size) + size
        if size > PACKET_MAX or 0 < self._packet_max < whole:
            limit = self._packet_max or PACKET_MAX
            raise UsageError(f"{self.place} takes packets of {limit} bytes, and this has {whole}")

    async def _settled(self, number: int | None, texts: Sequence[str]) -> None:
        """Wait for the server's answer to packet `number`, which is about these texts."""
        key = number or 0  # none, if the library has just lost its socket: we are told soon
        answer = self._answers[key] = self._loop.create_future()
        try:
            codes = await self.answer(answer)
        finally:
            self._answers.pop(key, None)
        for text, code in zip(texts, codes, strict=False):
            if code.is_failure:
                raise Refused(f"{self.place} refuses {text!r:.80}: {code}")
