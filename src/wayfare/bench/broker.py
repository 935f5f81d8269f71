"""What a delivery costs a live broker, beside mosquitto if that is installed.

A broker in a process of its own, one publisher and 1 or 50 subscribers on raw sockets in this one:

    saturated    200 publications are under way all the time: CPU time of the broker's process,
                 user and system, for each delivery
    paced        1,000 publications a second: the time from sending one until a subscriber has it

Both get the same load: a payload of 100 bytes, one topic. Frames are made in advance, and all
deliveries are of one size, so that it is enough to count bytes. A subscriber of Wayfare acknowledges
every 32 deliveries, as the client library does, and every publication is acknowledged to its
publisher; with mosquitto it is QoS 0, so there nobody acknowledges anything. Rounds alternate, so that
both see the same machine.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from select import select
from statistics import median, quantiles
from time import perf_counter, perf_counter_ns
from typing import Any, Protocol

from wayfare.bench import processes
from wayfare.bench.processes import HERE, Process
from wayfare.core.client import ACK_EVERY
from wayfare.core.codec import FrameDecoder, encode
from wayfare.core.filters import Filter
from wayfare.core.messages import (
    PROTOCOL_VERSION,
    Ack,
    AnyMessage,
    Attach,
    ClientId,
    Deliver,
    Detach,
    Hello,
    Notification,
    Publish,
    Welcome,
)

SUBSCRIBERS = (1, 50)
PAYLOAD = b"\xa5" * 100
TOPIC = "speed"
IN_FLIGHT = 200  # publications that not everybody has; less than the window of a subscriber
PER_SECOND = 1_000
PATIENCE_S = 20.0
START = 100_000  # of the numbers: from here on all are of one length, as long as a bench lasts
ROUNDS = 5
ALONE = "mosquitto is not installed; with it, this bench compares the two"

_buffer = bytearray(1 << 18)


class Speaker(Protocol):
    """How to talk to one kind of broker."""

    delivery: int  # bytes of one

    def open(self, port: int, name: str, *, subscribe: bool) -> socket.socket: ...
    def close(self, connection: socket.socket) -> None: ...
    def publications(self, first: int, count: int) -> list[bytes]: ...
    def acknowledgement(self, before: int, now: int) -> bytes:
        """What a subscriber sends that had so many deliveries, and now has so many."""


class Wayfare:
    def __init__(self) -> None:
        notification = Notification(
            ClientId(f"publisher {START}"), START, {"topic": TOPIC}, PAYLOAD
        )
        self.delivery = len(encode(Deliver(START, notification)))

    def open(self, port: int, name: str, *, subscribe: bool) -> socket.socket:
        topic = (Filter.parse(f"topic = '{TOPIC}'"),)
        wanted, offered = (topic, ()) if subscribe else ((), topic)
        attach = Attach(ClientId(name), 1, START - 1, wanted, offered)
        connection = _connected(port)
        connection.sendall(encode(Hello(PROTOCOL_VERSION, name)) + encode(attach))
        decoder = FrameDecoder()
        heard: list[AnyMessage] = []
        while not heard or type(heard[-1]) is not Welcome:
            heard += decoder.feed(_received(connection))
        return connection

    def close(self, connection: socket.socket) -> None:
        connection.sendall(encode(Detach(leave=True)))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv_into(_buffer):
            pass
        connection.close()

    def publications(self, first: int, count: int) -> list[bytes]:
        return [encode(Publish(START + first + i, {"topic": TOPIC}, PAYLOAD)) for i in range(count)]

    def acknowledgement(self, before: int, now: int) -> bytes:
        first = before - before % ACK_EVERY + ACK_EVERY
        return b"".join(encode(Ack(START - 1 + n)) for n in range(first, now + 1, ACK_EVERY))


class Mqtt:
    """MQTT 3.1.1, as much of it as this takes."""

    def __init__(self) -> None:
        body = _text(TOPIC) + PAYLOAD
        self._publish = _packet(0x30, body)
        self.delivery = len(self._publish)

    def open(self, port: int, name: str, *, subscribe: bool) -> socket.socket:
        connection = _connected(port)
        connection.sendall(_packet(0x10, _text("MQTT") + b"\x04\x02\x00\x00" + _text(name)))
        _exactly(connection, 4)  # CONNACK
        if subscribe:
            connection.sendall(_packet(0x82, b"\x00\x01" + _text(TOPIC) + b"\x00"))
            _exactly(connection, 5)  # SUBACK
        return connection

    def close(self, connection: socket.socket) -> None:
        connection.close()

    def publications(self, first: int, count: int) -> list[bytes]:
        return [self._publish] * count

    def acknowledgement(self, before: int, now: int) -> bytes:
        return b""


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection((HERE, port), PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _packet(kind: int, body: bytes) -> bytes:
    assert len(body) < 128  # so that its length is one byte
    return bytes((kind, len(body))) + body


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the broker closed the connection of the load generator")
    return data


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data))
    return data


class Load:
    """One publisher, its subscribers, and how far they are."""

    def __init__(self, speaker: Speaker, port: int, subscribers: int, turn: int) -> None:
        self._speaker = speaker
        self._sockets: dict[socket.socket, int] = {}
        for i in range(subscribers):
            self._sockets[speaker.open(port, f"subscriber {turn} {i}", subscribe=True)] = i
        self._publisher = speaker.open(port, f"publisher {turn}", subscribe=False)
        self._all = [*self._sockets, self._publisher]
        self._bytes = [0] * subscribers
        self._sent = 0

    def close(self) -> None:
        for connection in self._all:
            self._speaker.close(connection)

    def saturate(self, count: int) -> None:
        """Publish so many, as fast as they come out."""
        frames = self._speaker.publications(self._sent, count)
        began, end = self._sent, self._sent + count
        while (slowest := min(self._bytes) // self._speaker.delivery) < end:
            upto = min(end, slowest + IN_FLIGHT)
            if upto > self._sent:
                self._publisher.sendall(b"".join(frames[self._sent - began : upto - began]))
                self._sent = upto
            self._read(PATIENCE_S)

    def pace(self, count: int) -> list[int]:
        """Publish so many, at a rate. The nanoseconds that every delivery took."""
        frames = self._speaker.publications(self._sent, count)
        sent_at: list[int] = []
        took: list[int] = []
        began = self._sent
        had = [began] * len(self._bytes)
        start = perf_counter()
        while len(took) < count * len(had):
            if len(sent_at) < count and perf_counter() >= start + len(sent_at) / PER_SECOND:
                sent_at.append(perf_counter_ns())
                self._publisher.sendall(frames[len(sent_at) - 1])
            due = start + len(sent_at) / PER_SECOND - perf_counter()
            for i in self._read(PATIENCE_S if len(sent_at) == count else max(0.0, due)):
                now, has = perf_counter_ns(), self._bytes[i] // self._speaker.delivery
                took += [now - at for at in sent_at[had[i] - began : has - began]]
                had[i] = has
        self._sent += count
        return took

    def _read(self, patience: float) -> Iterator[int]:
        """Read what is there; which subscribers have got something."""
        ready, _, _ = select(self._all, (), (), patience)
        if not ready and patience == PATIENCE_S:
            raise TimeoutError(f"the broker delivered nothing for {patience:g} s")
        got = []
        for connection in ready:
            length = connection.recv_into(_buffer)
            if not length:
                raise ConnectionError("the broker closed the connection of the load generator")
            i = self._sockets.get(connection)
            if i is None:
                continue  # acknowledgements to the publisher
            before = self._bytes[i] // self._speaker.delivery
            self._bytes[i] += length
            now = self._bytes[i] // self._speaker.delivery
            answer = self._speaker.acknowledgement(before, now)
            if answer:
                connection.sendall(answer)
            got.append(i)
        return iter(got)


class Figures:
    """What one broker took in one case, round by round."""

    def __init__(self) -> None:
        self.us: list[float] = []  # CPU time of a delivery, saturated
        self.per_second: list[float] = []  # deliveries, saturated
        self.paced_us: list[float] = []
        self.latencies: list[int] = []

    def add(self, broker: Process, load: Load, subscribers: int, quick: bool) -> None:
        deliveries = 2_000 if quick else 100_000
        messages = max(500, deliveries // subscribers)
        load.saturate(messages // 10)  # warm
        cpu, clock = broker.cpu_ns(), perf_counter_ns()
        load.saturate(messages)
        self.us.append((broker.cpu_ns() - cpu) / 1e3 / (messages * subscribers))
        self.per_second.append(messages * subscribers * 1e9 / (perf_counter_ns() - clock))
        messages = 200 if quick else 2 * PER_SECOND
        cpu = broker.cpu_ns()
        self.latencies += load.pace(messages)
        self.paced_us.append((broker.cpu_ns() - cpu) / 1e3 / (messages * subscribers))

    def row(self, prefix: str) -> dict[str, Any]:
        percentiles = quantiles(self.latencies, n=100)
        return {
            f"{prefix}us_per_delivery": round(median(self.us), 2),
            f"{prefix}paced_us": round(median(self.paced_us), 2),
            f"{prefix}per_second": round(median(self.per_second)),
            f"{prefix}p50_us": round(percentiles[49] / 1e3),
            f"{prefix}p99_us": round(percentiles[98] / 1e3),
        }


def run(quick: bool = False, **_unused: Any) -> Iterator[dict[str, Any]]:
    program = processes.which_mosquitto()
    with ExitStack() as stack:
        running: dict[str, tuple[Speaker, Process]] = {
            "": (Wayfare(), stack.enter_context(processes.brokers())["lisbon"])
        }
        if program is not None:
            running["mosquitto_"] = (Mqtt(), stack.enter_context(processes.mosquitto(program)))
        turns = count(START)  # each client has a name of its own, all of one length
        for subscribers in SUBSCRIBERS:
            figures = {prefix: Figures() for prefix in running}
            for _ in range(2 if quick else ROUNDS):
                turn = next(turns)
                for prefix, (speaker, process) in running.items():
                    with closing(Load(speaker, process.port, subscribers, turn)) as load:
                        figures[prefix].add(process, load, subscribers, quick)
            row: dict[str, Any] = {"bench": "broker", "subscribers": subscribers}
            for prefix, one in figures.items():
                row |= one.row(prefix)
            if program is not None:
                ours, theirs = (median(one.us) for one in figures.values())
                row["share_of_mosquitto"] = round(ours / theirs, 3)
            yield row
    if program is None:
        yield {"bench": "broker", "note": ALONE}
