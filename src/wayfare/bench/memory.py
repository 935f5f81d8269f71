"""What hostile clients can make a live broker keep in memory, and what `limits.memory` makes of it.

Each case runs against a broker process of its own, once without a limit and once with one:

    names      clients that subscribe, go away, and are published to
    readers    clients that are attached, and never read
    returning  clients that come back at once to a backlog that they have in common, and read
    fanout     clients that are attached and do not read, and a publication of 4 MB to all of them
    filters    clients with thousands of subscriptions each
    frames     clients that begin a long message, and never end it

Reported is how much the resident memory of the broker grew at its peak, beside the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from msgspec.structs import replace

from wayfare.bench.processes import HERE, Process, brokers
from wayfare.core import messages as m
from wayfare.core.codec import FrameDecoder, encode
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import BrokerId, ClientId

MIB = 1024 * 1024
LIMIT = 128 * MIB
PAYLOAD = 16 * 1024
PATIENCE_S = 10.0  # that a publisher waits for confirmations before it goes on
OFFERED = Filter.parse("exists x")


class Hostile:
    """A connection that says what it is told to, and reads only when asked."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name = ClientId(name)
        self.reader, self.writer = reader, writer
        self._decoder = FrameDecoder()
        self._published = self._confirmed = self._delivered = 0

    @staticmethod
    async def attach(process: Process, name: str, *, epoch: int = 1, **profile: Any) -> Hostile:
        one = Hostile(name, *await asyncio.open_connection(HERE, process.port))
        one.writer.write(encode(m.Hello(m.PROTOCOL_VERSION, name)))
        one.writer.write(encode(m.Attach(one.name, epoch, 0, **profile)))
        welcomed = False
        while not welcomed:
            said = await one.hear()
            welcomed = any(isinstance(message, m.Welcome) for message in said)
            one._take(said)
        return one

    async def hear(self) -> list[m.AnyMessage]:
        data = await self.reader.read(65536)
        if not data:
            raise ConnectionError(f"the broker closed the connection of {self.name}")
        return list(self._decoder.feed(data))

    async def publish(self, x: int, count: int) -> None:
        """Publish, and wait for the confirmations."""
        payload = bytes(PAYLOAD)
        for _ in range(count):
            self._published += 1
            self.writer.write(encode(m.Publish(self._published, {"x": x}, payload)))
        await self.writer.drain()
        late = time.monotonic() + PATIENCE_S
        while self._confirmed < self._published and time.monotonic() < late:
            try:
                said = await asyncio.wait_for(self.hear(), PATIENCE_S)
            except TimeoutError:
                return
            numbers = [one.number for one in said if isinstance(one, m.Published)]
            self._confirmed = max([self._confirmed, *numbers])

    async def read(self, count: int) -> None:
        """Read and acknowledge so many deliveries, as a good client does."""
        while self._delivered < count:
            self._take(await self.hear())

    def _take(self, said: list[m.AnyMessage]) -> None:
        numbers = [one.number for one in said if isinstance(one, m.Deliver | m.Gap)]
        if numbers:
            self._delivered = numbers[-1]
            self.writer.write(encode(m.Ack(self._delivered)))

    def stop_reading(self) -> None:
        transport = self.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    def leave(self) -> None:
        self.writer.close()


async def _names(process: Process, some: int) -> None:
    for name in range(some):
        wanted = (Filter.parse(f"x = {name}"),)
        (await Hostile.attach(process, f"away{name}", subscriptions=wanted)).leave()
    tom = await Hostile.attach(process, "tom", advertisements=(OFFERED,))
    for name in range(some):
        await tom.publish(name, 16 * MIB // PAYLOAD)
    tom.leave()


async def _readers(process: Process, some: int) -> None:
    readers = [
        await Hostile.attach(process, f"deaf{name}", subscriptions=(OFFERED,), window=10_000)
        for name in range(some)
    ]
    tom = await Hostile.attach(process, "tom", advertisements=(OFFERED,))
    await tom.publish(1, 30 * MIB // PAYLOAD)
    for one in [tom, *readers]:
        one.leave()


async def _returning(process: Process, some: int) -> None:
    names = [f"back{name}" for name in range(some)]
    for name in names:
        (await Hostile.attach(process, name, subscriptions=(OFFERED,))).leave()
    tom = await Hostile.attach(process, "tom", advertisements=(OFFERED,))
    count = 15 * MIB // PAYLOAD
    await tom.publish(1, count)
    before = ((BrokerId("lisbon"), 1),)

    def again(name: str) -> Coroutine[Any, Any, Hostile]:
        wanted = (OFFERED,)
        return Hostile.attach(
            process, name, epoch=2, subscriptions=wanted, previous=before, welcomed=True
        )

    back = await asyncio.gather(*map(again, names))
    await asyncio.gather(*(one.read(count) for one in back))
    for one in [tom, *back]:
        one.leave()


async def _fanout(process: Process, some: int) -> None:
    deaf = [
        await Hostile.attach(process, f"deaf{name}", subscriptions=(OFFERED,))
        for name in range(some)
    ]
    for one in deaf:
        one.stop_reading()
    tom = await Hostile.attach(process, "tom", advertisements=(OFFERED,))
    for number in (1, 2):
        tom.writer.write(encode(m.Publish(number, {"x": 1}, bytes(4_000_000))))
        await tom.writer.drain()
        await asyncio.sleep(1)
    for one in [tom, *deaf]:
        one.leave()


async def _filters(process: Process, some: int) -> None:
    count = 2_000
    for name in range(some):
        wanted = tuple(Filter.parse(f"x = {name * count + i} and y > {i}") for i in range(count))
        try:
            (await Hostile.attach(process, f"picky{name}", subscriptions=wanted)).leave()
        except ConnectionError:
            return  # it has no room left


async def _frames(process: Process, some: int) -> None:
    halves = []
    for name in range(some):
        one = await Hostile.attach(process, f"slow{name}")
        halves.append(one)
        one.writer.write((8 * MIB - 4).to_bytes(4, "big") + bytes(7 * MIB))
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(one.writer.drain(), PATIENCE_S)
    await asyncio.sleep(0.5)
    for one in halves:
        one.leave()


QUICK = 5  # times as few clients, and as low a limit, for a first look
Case = Callable[[Process, int], Coroutine[Any, Any, None]]
CASES: dict[str, tuple[Case, int]] = {
    "names": (_names, 60),
    "readers": (_readers, 40),
    "returning": (_returning, 60),
    "fanout": (_fanout, 100),
    "filters": (_filters, 40),
    "frames": (_frames, 60),
}


def grown(case: Case, some: int, limit: int) -> tuple[int, float]:
    """By how much the broker grew at its peak, and how long that took."""
    limits = replace(Limits(), memory_bytes=limit)
    with brokers(limits=limits) as running:
        (process,) = running.values()
        before, began = process.memory(), time.perf_counter()
        asyncio.run(case(process, some))
        return process.peak() - before, time.perf_counter() - began


def run(seed: int = 1, quick: bool = False, limit: int = LIMIT) -> Iterator[dict[str, Any]]:
    """Bytes of resident memory at the peak, without and with a limit; nothing here is random."""
    del seed
    limit = limit // QUICK if quick else limit
    for name, (case, some) in CASES.items():
        row: dict[str, Any] = {"bench": "memory", "case": name, "limit_mib": limit // MIB}
        for column, most in (("unlimited", 0), ("limited", limit)):
            peak, took = grown(case, some // QUICK if quick else some, most)
            row[f"{column}_mib"] = round(peak / MIB, 1)
            row[f"{column}_s"] = round(took, 1)
        row["share_of_limit"] = round(row["limited_mib"] * MIB / limit, 2)
        yield row
