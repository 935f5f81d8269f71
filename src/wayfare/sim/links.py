"""Links: latency, bandwidth with a queue, FIFO, loss with retransmission, up and down.

A link between brokers is reliable, as the live host makes it: what is lost is sent again, what was
on its way when the link went down is sent again when it is up. A client's connection is not: when it
breaks, what was on its way is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappush
from itertools import count
from random import Random
from typing import Any

import msgspec

from wayfare.core.codec import encode
from wayfare.core.effects import Received
from wayfare.core.messages import AnyMessage, LinkId

MS_NS = 1_000_000


class LinkSpec(msgspec.Struct, frozen=True):
    """How a link behaves, each way."""

    latency_ns: int = 10 * MS_NS
    jitter_ns: int = 0  # up to this much more, drawn for each message
    bandwidth_bps: int | None = None  # None: no limit, nothing queues
    loss: float = 0.0  # share of transmissions that are lost
    retransmit_ns: int = 40 * MS_NS  # until a lost one is sent again


class Agenda:
    """What happens when: (time, counter, action, argument). The counter makes ties deterministic."""

    __slots__ = ("counter", "heap", "now")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self.counter = count()
        self.now = 0

    def at(self, time: int, action: Callable[[Any], None], argument: Any = None) -> None:
        heappush(self.heap, (max(time, self.now), next(self.counter), action, argument))


class Pipe:
    """One direction of a link."""

    __slots__ = (
        "_agenda",
        "_down",
        "_flying",
        "_free_at",
        "_generation",
        "_last_arrival",
        "_latency_ns",
        "_plain",
        "_random",
        "_receive",
        "bytes",
        "link",
        "messages",
        "queue_peak",
        "spec",
        "worst_ns",
    )

    def __init__(
        self,
        agenda: Agenda,
        random: Random,
        spec: LinkSpec,
        link: LinkId,
        receive: Callable[[Received], None],
    ) -> None:
        self._agenda = agenda
        self._random = random
        self.link = link  # what the receiving end calls it
        self._receive = receive
        # On their way, in order: the event at the other end, and when it was sent.
        self._flying: deque[tuple[Received, int]] = deque()
        self._generation = 0  # goes up when what is scheduled will not arrive
        self._free_at = 0  # when the last byte put on the line has left
        self._last_arrival = 0
        self._down = False
        self.messages = 0
        self.bytes = 0
        self.queue_peak = 0
        self.worst_ns = 0  # the longest that a message took
        self.shape(spec)

    def shape(self, spec: LinkSpec) -> None:
        """Behave like this from now on."""
        self.spec = spec
        self._latency_ns = spec.latency_ns
        self._plain = spec.bandwidth_bps is None and not spec.loss and not spec.jitter_ns

    def send(self, message: AnyMessage) -> None:
        self.messages += 1
        agenda = self._agenda
        now = agenda.now
        self._flying.append((Received(self.link, message), now))
        if self._down:
            return
        arrival = now + self._latency_ns if self._plain else self._arrival(message, now)
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        heappush(agenda.heap, (arrival, next(agenda.counter), self._arrive, self._generation))

    def _arrival(self, message: AnyMessage, now: int) -> int:
        spec, random = self.spec, self._random
        left = now
        if spec.bandwidth_bps is not None:
            size = len(encode(message))
            self.bytes += size
            self.queue_peak = max(self.queue_peak, len(self._flying))
            left = max(now, self._free_at) + size * 8 * 1_000_000_000 // spec.bandwidth_bps
            self._free_at = left
        if spec.jitter_ns:
            left += random.randrange(spec.jitter_ns + 1)
        while spec.loss and random.random() < spec.loss:
            left += spec.retransmit_ns
        return left + spec.latency_ns

    def _arrive(self, generation: int) -> None:
        if generation != self._generation:
            return
        event, sent = self._flying.popleft()
        took = self._agenda.now - sent
        if took > self.worst_ns:
            self.worst_ns = took
        self._receive(event)

    def __len__(self) -> int:
        """How many messages are on their way."""
        return len(self._flying)

    def cut(self) -> None:
        """Go down; what is on its way stays with the sender."""
        self._down = True
        self._generation += 1

    def heal(self) -> None:
        """Come up again, and send what did not arrive, in order."""
        if not self._down:
            return
        self._down = False
        again, self._flying = self._flying, deque()
        self._last_arrival = self._free_at = 0
        for event, sent in again:
            self.messages -= 1  # counted when it was first sent
            self.send(event.message)
            self._flying[-1] = (event, sent)

    def drop(self) -> None:
        """Go down for good; what is on its way is gone."""
        self._down = True
        self._generation += 1
        self._flying.clear()
