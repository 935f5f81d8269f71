"""One roaming run on a real system: the experiment of the paper, with and without the service.

A publisher stays at the first access point. A client subscribes at the second one, leaves, and appears at the
third one after a while. Publications are numbered, so that all that matters can be counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from wayfare.eventlog import Event
from wayfare.net.emulator import Emulator
from wayfare.net.recording import CLOCK_NS
from wayfare.service.adapters import adapter
from wayfare.service.client import Client, connect
from wayfare.service.effects import Gap
from wayfare.service.proxy_server import Server
from wayfare.service.system import Access, Id, Publication, System
from wayfare.service.wire import where

WARM_S = 10.0  # for the first subscriptions to be known everywhere
SETTLED_S = 2.0  # without a message that was waited for, it does not come any more


class Plan(msgspec.Struct, frozen=True):
    """What is tried."""

    sync: str = "ping"  # at move-in and move-out
    service: bool = True  # else the client subscribes again where it appears, and that is all
    graceful: bool = True  # it moves out before it leaves; else it is cut off, and nobody notices
    link: str = ""  # of the client: a profile of `wayfare emulate`; else it is on the wire
    subscriptions: int = 1  # each to a topic of its own; publications go round
    rate: float = 10.0  # publications a second
    before_s: float = 1.0
    away_s: float = 1.0
    after_s: float = 1.0
    payload: int = 100  # bytes of a publication
    duplicates: bool = False  # are kept, as in the paper
    standby: bool = True


class Outcome(msgspec.Struct):
    """What came of it."""

    published: int = 0
    delivered: int = 0
    lost: int = 0
    duplicates: int = 0
    disordered: int = 0  # came after one that was published later
    gaps: int = 0  # the client was told that something is missing
    moving_out_s: float = 0.0
    moving_in_s: float = 0.0  # until all that was kept was there
    reattached_s: float | None = None  # from appearing until the first message
    missing: list[int] = []  # which ones were lost, of the numbers from 0
    events: list[Event] = []

    def figures(self) -> dict[str, float | None]:
        return {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name not in ("missing", "events")
        }


async def roam(addresses: Sequence[str], plan: Plan) -> Outcome:
    """Move once, from the second to the third of these access points of one system."""
    run = _Run(addresses, plan)
    async with AsyncExitStack() as stack:
        publisher = await run.enter(stack)
        move = run.with_service if plan.service else run.without_service
        moved = asyncio.Event()
        publishing = asyncio.create_task(run.publish(publisher, moved))
        try:
            async with asyncio.timeout(120 + plan.before_s + plan.away_s + plan.after_s):
                await move(stack)
            moved.set()
            await publishing
            await run.settle()
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])
    return run.outcome()


class _Run:
    def __init__(self, addresses: Sequence[str], plan: Plan) -> None:
        self.addresses, self.plan = addresses, plan
        self.system: System = adapter(addresses[0])
        self.word = f"roam{random.randrange(10**9)}"
        self.topics = [self.system.topic(self.word, f"t{n}") for n in range(plan.subscriptions)]
        self.subscriptions = [self.system.subscription(topic) for topic in self.topics]
        self.sent: list[int] = []  # when, in nanoseconds
        self.got: list[tuple[int, int]] = []  # number, and when
        self.result = Outcome(missing=[], events=[])
        self.appeared_ns = 0
        self.ready = asyncio.Event()
        self.warmed: set[str] = set()  # topics
        self.warm = asyncio.Event()

    async def enter(self, stack: AsyncExitStack) -> Access:
        async def ignored(publication: Publication) -> None:
            pass

        access = await self.system.open(self.addresses[0], f"{self.word}p", ignored, lambda _: None)
        stack.push_async_callback(access.close)
        return access

    # ---- the publisher -----------------------------------------------------------------

    async def publish(self, access: Access, moved: asyncio.Event) -> None:
        """At a steady rate, from when the client is there until a while after it has moved."""
        await self.ready.wait()
        await self.warm_up(access)
        self.warm.set()
        end, next_at = None, time.monotonic()
        while end is None or next_at < end:
            await asyncio.sleep(next_at - time.monotonic())
            number = len(self.sent)
            topic = self.topics[number % len(self.topics)]
            payload = b"%d " % number
            payload += b"x" * (self.plan.payload - len(payload))
            self.note("published", number=number, attributes={"topic": topic})
            self.sent.append(time.monotonic_ns())
            mark = Id(self.word, number + 1) if self.system.traits.carries_ids else None
            await access.publish(Publication(topic, payload, {}, mark))
            next_at += 1 / self.plan.rate
            if moved.is_set() and end is None:
                end = next_at + self.plan.after_s

    async def warm_up(self, access: Access) -> None:
        """What the client has subscribed to may not be known here yet: that is no part of moving."""
        until = time.monotonic() + WARM_S
        while (cold := set(self.topics) - self.warmed) and time.monotonic() < until:
            for topic in sorted(cold):
                await access.publish(Publication(topic, b"warm"))
            await asyncio.sleep(0.1)

    # ---- the client --------------------------------------------------------------------

    async def with_service(self, stack: AsyncExitStack) -> None:
        plan = self.plan
        old, new = [await self._place(stack, address) for address in self.addresses[1:]]
        client = await stack.enter_async_context(
            connect(
                self.word,
                await old.near(old.proxy),
                sync=plan.sync,
                duplicates=plan.duplicates,
                standby=plan.standby,
            )
        )
        listening = asyncio.create_task(self.listen(client))
        stack.push_async_callback(_ended, listening)
        for subscription in self.subscriptions:
            await client.subscribe(subscription)
        await self._leave(old, client.move_out)
        await client.move_in(await new.near(new.proxy))
        self._there(new)

    async def without_service(self, stack: AsyncExitStack) -> None:
        old, new = [await self._place(stack, address) for address in self.addresses[1:]]
        access = await self._open(stack, old.access)
        await access.subscribe(self.subscriptions)
        await self._leave(old, access.close)
        access = await self._open(stack, new.access)
        await access.subscribe(self.subscriptions)
        self._there(new)

    async def _leave(self, old: _Place, move_out: Callable[[], Awaitable[None]]) -> None:
        """Be there for a while, go, and appear elsewhere."""
        plan = self.plan
        self.note("attached", broker=old.address)
        self.ready.set()
        await self.warm.wait()
        await asyncio.sleep(plan.before_s)
        self.note("detached", broker=old.address)
        begin = time.monotonic()
        if plan.graceful:
            await move_out()
        self.result.moving_out_s = time.monotonic() - begin
        old.cut()
        await asyncio.sleep(plan.away_s)
        self.appeared_ns = time.monotonic_ns()

    def _there(self, new: _Place) -> None:
        self.note("attached", broker=new.address)
        self.result.moving_in_s = (time.monotonic_ns() - self.appeared_ns) / 1e9

    async def _open(self, stack: AsyncExitStack, address: str) -> Access:
        async def deliver(publication: Publication) -> None:
            self.take(publication)

        name = f"{self.word}c"
        access = await self.system.open(address, name, deliver, lambda _: None)
        stack.push_async_callback(access.close)
        return access

    async def _place(self, stack: AsyncExitStack, address: str) -> _Place:
        made = _Place(address)
        if self.plan.link or not self.plan.graceful:
            profile = self.plan.link or "lan"
            made.link = await stack.enter_async_context(Emulator(profile, where(made.place)))
        made.access = f"{made.scheme}://{await made.near(made.place)}"
        if self.plan.service:
            made.proxy = await stack.enter_async_context(proxy(address, made.access))
        return made

    async def listen(self, client: Client) -> None:
        async for message in client:
            if isinstance(message, Gap):
                self.result.gaps += 1
            else:
                self.take(message)

    def take(self, publication: Publication) -> None:
        if publication.payload == b"warm":
            self.warmed.add(publication.topic)
            return
        number = int(publication.payload.split(b" ", 1)[0])
        now = time.monotonic_ns()
        self.got.append((number, now))
        self.note("delivered", publisher=f"{self.word}p", number=number, delivery=len(self.got))
        if self.appeared_ns and self.result.reattached_s is None:
            self.result.reattached_s = (now - self.appeared_ns) / 1e9

    # ---- what came of it ---------------------------------------------------------------

    def note(self, kind: str, **values: Any) -> None:
        client = f"{self.word}p" if kind == "published" else f"{self.word}c"
        event = Event(time.monotonic_ns() + CLOCK_NS, kind, client, **values)
        self.result.events.append(event)

    async def settle(self) -> None:
        """Wait for what is missing, as long as something comes."""
        missing, since = -1, time.monotonic()
        while True:
            now_missing = len(self.sent) - len({number for number, _ in self.got})
            if now_missing != missing:
                missing, since = now_missing, time.monotonic()
            if time.monotonic() - since > (SETTLED_S if missing else 0.2):
                return
            await asyncio.sleep(0.02)

    def outcome(self) -> Outcome:
        numbers = [number for number, _ in self.got]
        result, highest = self.result, -1
        result.published, result.delivered = len(self.sent), len(numbers)
        result.missing = sorted({*range(len(self.sent))}.difference(numbers))
        result.lost = len(result.missing)
        result.duplicates = len(numbers) - len(set(numbers))
        seen: set[int] = set()
        for number in numbers:
            result.disordered += number < highest and number not in seen
            highest = max(highest, number)
            seen.add(number)
        return result


class _Place:
    """An access point, its proxy, and how the client reaches them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.scheme, _, self.place = address.partition("://")
        self.access = self.proxy = ""
        self.link: Emulator | None = None

    async def near(self, place: str) -> str:
        """Where the client connects to instead."""
        if self.link is None:
            return place
        return f"127.0.0.1:{await self.link.listen(where(place))}"

    def cut(self) -> None:
        if self.link is not None:
            self.link.cut()


@asynccontextmanager
async def proxy(access: str, told: str = "") -> AsyncIterator[str]:
    """A mobility proxy beside this access point, on a port of its own: where it is."""
    server = Server(access, told=told)
    try:
        yield await server.start()
    finally:
        await server.stop()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
