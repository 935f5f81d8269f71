"""How soon a client that moved gets the first notification that it missed, against a round trip.

    anna, at porto or faro          porto - lisbon - evora - faro          a process for each

Anna's connection breaks, and something is published for her. Then she attaches at the other end: the
time from her `Attach` until the notification is there, which her old broker kept. The yardstick is a
round trip on the same path, at the same time: a client at porto publishes, one at faro answers as soon
as it has that, and the first has the answer. With a delay on every link it shows that a move takes one
round trip; without, it shows what brokers add.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from statistics import quantiles
from typing import Any

from wayfare.bench import processes
from wayfare.bench.processes import HERE, Process
from wayfare.core.client import Client
from wayfare.core.codec import FrameDecoder, encode
from wayfare.core.effects import Close, Effect, LinkDown, Notify, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    BrokerId,
    ClientId,
    Hello,
    LinkId,
    Notification,
)

LINE = ("porto", "lisbon", "evora", "faro")
SUBSCRIPTIONS = (1, 10, 100)
DELAYS_MS = (0, 10)  # of a link, in each direction
MOVES = {0: 300, 10: 100}
PATIENCE_S = 20.0
SETTLE_S = 0.01  # beside what links take: until what was published is where it is kept


class Peer:
    """A client on a blocking socket: it returns only when what it waits for is there."""

    def __init__(self, name: str) -> None:
        self.core = Client(ClientId(name))
        self.got: list[Notification] = []
        self._socket: socket.socket | None = None
        self._decoder = FrameDecoder()

    def attach(self, broker: str, port: int) -> int:
        """Connect, and say Attach. Returns when that was."""
        self._socket = socket.create_connection((HERE, port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self._socket.sendall(encode(Hello(PROTOCOL_VERSION, self.core.name)))
        while Hello not in map(type, self._receive()):
            pass
        link = LinkId(f"{broker} {self.core.epoch + 1}")
        now = time.perf_counter_ns()
        self.perform(self.core.attach(BrokerId(broker), link))
        return now

    def close(self) -> None:
        """The connection breaks."""
        if self._socket is not None:
            self._socket.close()
            if self.core.link is not None:
                self.core.step(LinkDown(self.core.link), time.monotonic_ns())

    def leave(self) -> None:
        """For good: nothing is kept for it any more."""
        self.perform(self.core.detach(leave=True))

    def await_welcome(self) -> None:
        while not self.core.welcomed:
            self.read()

    def await_notification(self) -> Notification:
        while not self.got:
            self.read()
        return self.got.pop(0)

    def publish(self, topic: str) -> None:
        """Publish, and wait until the broker has it."""
        self.perform(self.core.publish({"topic": topic}))
        while self.core.outbox:
            self.read()

    def read(self) -> None:
        for message in self._receive():
            if self.core.link is not None:
                received = Received(self.core.link, message)
                self.perform(self.core.step(received, time.monotonic_ns()))

    def perform(self, effects: list[Effect]) -> None:
        assert self._socket is not None
        said = [encode(one.message) for one in effects if isinstance(one, Send)]
        if said:
            self._socket.sendall(b"".join(said))
        self.got += [one.notification for one in effects if isinstance(one, Notify)]
        for effect in effects:
            if isinstance(effect, Close) and effect.fault:
                raise ConnectionError(effect.reason)

    def _receive(self) -> list[AnyMessage]:
        assert self._socket is not None
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the broker closed the connection of the bench")
        return self._decoder.feed(data)


def run(
    quick: bool = False, subscriptions: tuple[int, ...] = SUBSCRIPTIONS, **_unused: Any
) -> Iterator[dict[str, Any]]:
    for delay_ms in DELAYS_MS:
        with processes.brokers(tuple(pairwise(LINE)), delay_s=delay_ms / 1e3) as brokers:
            for count in subscriptions:
                moves = 5 if quick else MOVES[delay_ms]
                yield _moving(brokers, count, delay_ms, moves)


def _moving(
    brokers: dict[str, Process], subscriptions: int, delay_ms: int, moves: int
) -> dict[str, Any]:
    settle_s = SETTLE_S + len(LINE) * delay_ms / 1e3
    with ExitStack() as stack:

        def peer(name: str, broker: str, wanted: int = 0, offered: str = "") -> Peer:
            one = stack.enter_context(closing(Peer(f"{name} of {subscriptions}")))
            one.attach(broker, brokers[broker].port)
            one.await_welcome()
            for i in range(wanted):
                one.perform(one.core.subscribe(Filter.parse(f"topic = '{name} {i}'")))
            if offered:
                one.perform(one.core.advertise(Filter.parse(f"topic like '{offered} %'")))
            return one

        here = peer("here", LINE[0], 1, "there")
        there = peer("there", LINE[-1], 1, "here")
        tom = peer("tom", LINE[1], 0, "anna")
        anna = peer("anna", LINE[0], subscriptions)
        time.sleep(1 + 4 * settle_s)  # all links are there, and all subscriptions everywhere
        took, trips = [], []
        for i in range(moves):
            anna.close()
            tom.publish("anna 0")
            time.sleep(settle_s)
            at = LINE[-1] if i % 2 == 0 else LINE[0]
            attached = anna.attach(at, brokers[at].port)
            anna.await_notification()
            took.append(time.perf_counter_ns() - attached)
            trips.append(_round_trip(here, there))
            assert not anna.got, "each notification comes once"
        for one in (here, there, tom, anna):
            one.leave()
    moved, trip = quantiles(took, n=100), quantiles(trips, n=100)
    return {
        "bench": "move",
        "hops": len(LINE) - 1,
        "delay_ms": delay_ms,
        "subscriptions": subscriptions,
        "moves": moves,
        "p50_ms": round(moved[49] / 1e6, 2),
        "p99_ms": round(moved[98] / 1e6, 2),
        "round_trip_p50_ms": round(trip[49] / 1e6, 2),
        "round_trip_p99_ms": round(trip[98] / 1e6, 2),
        "round_trips": round(moved[49] / trip[49], 2),
    }


def _round_trip(here: Peer, there: Peer) -> int:
    start = time.perf_counter_ns()
    here.perform(here.core.publish({"topic": "there 0"}))
    there.await_notification()
    there.perform(there.core.publish({"topic": "here 0"}))
    here.await_notification()
    return time.perf_counter_ns() - start
