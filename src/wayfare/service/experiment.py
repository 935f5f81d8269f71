"""One roaming run on a real system: the experiment of the paper, with and without the service.

A publisher stays at the first access point. A client subscribes at the second one, leaves, and appears at the
third one after a while. Publications are numbered, so that all that matters can be counted. They begin when
the subscriptions are known everywhere: what a system does meanwhile is not the matter of moving.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from wayfare.channel import find, floor
from wayfare.core.filters import Filter
from wayfare.eventlog import Event
from wayfare.moves import judge_move
from wayfare.net import client as wayfare
from wayfare.net.emulator import Emulator
from wayfare.net.recording import CLOCK_NS
from wayfare.net.subscription import Subscription
from wayfare.service.adapters import adapter
from wayfare.service.client import Client, connect
from wayfare.service.effects import Gap
from wayfare.service.overlapping import NUMBER, overlapping
from wayfare.service.proxy_addresses import where
from wayfare.service.proxy_server import Server
from wayfare.service.system import Access, Id, Property, Publication, System

ANYTHING = Filter.parse("true")
WARM = -1  # the number of publications that only try whether they arrive
WARMING_S = 0.1  # until the next one is tried, at first
SETTLED_S = 2.0  # without a message that was waited for, it does not come any more
SETTLED_BY_RADIO_S = 15.0  # ... behind all that is on a slow link, as in the simulation


class Plan(msgspec.Struct, frozen=True):
    """What is tried."""

    sync: str = "ping"  # at move-in and move-out
    service: bool = True  # else the client subscribes again where it appears, and that is all
    own: bool = False  # it is a client of Wayfare's own network, which needs no service
    graceful: bool = True  # it moves out before it leaves; else it is cut off, and nobody notices
    link: str = ""  # of the client: a profile of `wayfare emulate`; else it is on the wire
    subscriptions: int = 1  # each to a topic of its own; publications go round
    overlap: bool = False  # ... but all of them match every publication
    rate: float = 10.0  # publications a second
    before_s: float = 1.0
    away_s: float = 1.0
    after_s: float = 1.0
    payload: int = 100  # bytes of a publication
    duplicates: bool = False  # are kept, as in the paper
    standby: bool = True
    seed: int = 0  # of the link


class Outcome(msgspec.Struct):
    """What came of it."""

    published: int = 0
    delivered: int = 0
    lost: int = 0
    duplicates: int = 0
    disordered: int = 0  # came after one that was published later
    missed: int = 0  # published while the client was away
    lost_out: int = 0  # published while it moved out, and lost
    lost_away: int = 0  # ... while it was away, and lost
    lost_in: int = 0  # published since it appeared, and lost
    duplicates_in: int = 0  # ... and copies of those
    gaps: int = 0  # the client was told that something is missing
    moving_out_s: float = 0.0
    moving_in_s: float = 0.0  # until all that was kept was there
    reattached_s: float | None = None  # from appearing until the first message
    delay_s: float | None = (
        None  # ... until the last of those that it missed, and that come; else the first
    )
    floor_s: float | None = (
        None  # of that, by such a link: a round trip, and the bytes that it missed
    )
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
        await run.enter(stack)
        move = run.with_service if plan.service else run.without_service
        if plan.own:
            move = run.by_itself
        moved = asyncio.Event()
        publishing = asyncio.create_task(run.publish(moved))
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
        if plan.overlap:
            topic, self.subscriptions = overlapping(self.system, self.word, plan.subscriptions)
            self.topics = [topic]
        else:
            self.topics = [self.system.topic(self.word, f"t{n}") for n in range(plan.subscriptions)]
            self.subscriptions = [self.system.subscription(topic) for topic in self.topics]
        self.numbered = plan.overlap or plan.own  # publications have their number as a property
        self.sent: list[int] = []  # when, in nanoseconds
        self.got: list[tuple[int, int]] = []  # number, and when
        self.result = Outcome(missing=[], events=[])
        self.out_ns = self.left_ns = self.appeared_ns = 0
        self.heard: set[str] = set()  # topics that are known to reach the client
        self.ready = asyncio.Event()
        self.publisher: Access | _Publisher

    async def enter(self, stack: AsyncExitStack) -> None:
        if self.plan.own:
            self.publisher = _Publisher(wayfare.connect(self.addresses[0], f"{self.word}p"))
            await stack.enter_async_context(self.publisher.client)
            await self.publisher.client.advertise("true")
            return

        async def ignored(publication: Publication) -> None:
            pass

        self.publisher = await self.system.open(
            self.addresses[0], f"{self.word}p", ignored, lambda _: None
        )
        stack.push_async_callback(self.publisher.close)

    # ---- the publisher -----------------------------------------------------------------

    async def publish(self, moved: asyncio.Event) -> None:
        """At a steady rate, from when the client is there until a while after it has moved."""
        await self.ready.wait()
        end, next_at = None, time.monotonic()
        while end is None or next_at < end:
            await asyncio.sleep(next_at - time.monotonic())
            number = len(self.sent)
            topic = self.topics[number % len(self.topics)]
            self.note("published", number=number, attributes={"topic": topic})
            self.sent.append(time.monotonic_ns())
            mark = Id(self.word, number + 1)
            await self.publisher.publish(self.publication(topic, number, mark))
            next_at += 1 / self.plan.rate
            if moved.is_set() and end is None:
                end = next_at + self.plan.after_s

    def publication(self, topic: str, number: int, mark: Id) -> Publication:
        payload = b"%d " % number
        if number != WARM:
            payload += b"x" * (self.plan.payload - len(payload))
        properties: dict[str, Property] = {NUMBER: number} if self.numbered else {}
        carried = mark if self.system.traits.carries_ids else None
        return Publication(topic, payload, properties, carried)

    async def warm_up(self, is_stood_in_for: Callable[[], bool] = lambda: True) -> None:
        """Until all subscriptions are known where the publisher is, and to who stands in."""
        numbers = itertools.count(1)
        # On a slow link they must not pile up.
        pause_s = WARMING_S * (1 + len(self.topics) / 2 if self.plan.link else 1)
        while not (self.heard.issuperset(self.topics) and is_stood_in_for()):
            for topic in [one for one in self.topics if one not in self.heard]:
                mark = Id(f"{self.word}w", next(numbers))
                await self.publisher.publish(self.publication(topic, WARM, mark))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, max(pause_s, 20 * WARMING_S))

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
        await client.subscribe(*self.subscriptions)
        await self.warm_up(lambda: not plan.standby or old.stands_in(self.word, plan.subscriptions))
        await self._leave(old, new, client.move_out)
        await client.move_in(await new.near(new.proxy))
        self._there()

    async def without_service(self, stack: AsyncExitStack) -> None:
        old, new = [await self._place(stack, address) for address in self.addresses[1:]]
        access = await self._open(stack, old.access)
        await access.subscribe(self.subscriptions)
        await self.warm_up()
        await self._leave(old, new, access.close)
        access = await self._open(stack, new.access)
        await access.subscribe(self.subscriptions)
        self._there()

    async def by_itself(self, stack: AsyncExitStack) -> None:
        """Wayfare's own network: its brokers hand the client over."""
        old, new = [await self._place(stack, address) for address in self.addresses[1:]]
        client = wayfare.connect(old.access, f"{self.word}c", events=self.hear, on_lost=self.lose)
        await stack.enter_async_context(client)
        for subscription in self.subscriptions:
            some = await client.subscribe(subscription)
            stack.push_async_callback(_ended, asyncio.create_task(_drain(some)))
        await client.flush()
        await self.warm_up()
        await self._leave(old, new, client.detach)
        await client.move(new.access)
        self._there()

    async def _leave(
        self, old: _Place, new: _Place, move_out: Callable[[], Awaitable[None]]
    ) -> None:
        """Be there for a while, go, and appear elsewhere."""
        plan = self.plan
        self.note("attached", broker=old.address)
        self.note("subscribed", filter=ANYTHING)  # in this run there is nothing else
        self.ready.set()
        await asyncio.sleep(plan.before_s)
        self.note("detached", broker=old.address)
        self.out_ns = time.monotonic_ns()
        if plan.graceful:
            await move_out()
        old.cut()
        self.left_ns = time.monotonic_ns()
        self.result.moving_out_s = (self.left_ns - self.out_ns) / 1e9
        await asyncio.sleep(plan.away_s)
        self.appeared_ns = time.monotonic_ns()
        self.note("attached", broker=new.address)

    def _there(self) -> None:
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
        plan = self.plan
        if plan.link or not plan.graceful:
            link = Emulator(plan.link or "lan", where(made.place), plan.seed)
            made.link = await stack.enter_async_context(link)
        made.access = f"{made.scheme}://{await made.near(made.place)}"
        if plan.service and not plan.own:
            made.server = Server(address, told=made.access)
            stack.push_async_callback(made.server.stop)
            made.proxy = await made.server.start()
        return made

    async def listen(self, client: Client) -> None:
        async for message in client:
            if isinstance(message, Gap):
                self.lose(message.lost or 0, message.reason)
            else:
                self.take(message)

    def lose(self, count: int, reason: str) -> None:
        self.result.gaps += 1
        self.note("lost", count=count, reason=reason)

    def hear(self, event: Event) -> None:
        """What a client of Wayfare's own network tells."""
        if event.kind == "delivered" and event.attributes is not None:
            self.count(str(event.attributes["topic"]), int(event.attributes[NUMBER]))

    def take(self, publication: Publication) -> None:
        self.count(publication.topic, int(publication.payload.split(b" ", 1)[0]))

    def count(self, topic: str, number: int) -> None:
        self.heard.add(topic)
        if number == WARM:
            return
        self.got.append((number, time.monotonic_ns()))
        self.note("delivered", publisher=f"{self.word}p", number=number, delivery=len(self.got))

    # ---- what came of it ---------------------------------------------------------------

    def note(self, kind: str, **values: Any) -> None:
        client = f"{self.word}p" if kind == "published" else f"{self.word}c"
        event = Event(time.monotonic_ns() + CLOCK_NS, kind, client, **values)
        self.result.events.append(event)

    async def settle(self) -> None:
        """Wait for what is missing, as long as something comes."""
        missing, since = -1, time.monotonic()
        quiet_s = SETTLED_BY_RADIO_S if self.plan.link else SETTLED_S
        while True:
            now_missing = len(self.sent) - len({number for number, _ in self.got})
            if now_missing != missing:
                missing, since = now_missing, time.monotonic()
            if time.monotonic() - since > (quiet_s if missing else 0.2):
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
        self._judge_move()
        return result

    def _judge_move(self) -> None:
        result = self.result
        moved = judge_move(
            dict(enumerate(self.sent)), self.got, self.out_ns, self.left_ns, self.appeared_ns
        )
        for name in ("missed", "lost_out", "lost_away", "lost_in", "duplicates_in"):
            setattr(result, name, getattr(moved, name))
        result.reattached_s = None if moved.first_ns is None else moved.first_ns / 1e9
        result.delay_s = None if moved.delay_ns is None else moved.delay_ns / 1e9
        if self.plan.link:
            size = moved.missed * (self.plan.payload + len(self.topics[0]))
            result.floor_s = floor(find(self.plan.link), size) / 1e9


class _Place:
    """An access point, its proxy, and how the client reaches them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.scheme, _, self.place = address.partition("://")
        self.access = self.proxy = ""
        self.link: Emulator | None = None
        self.server: Server | None = None

    def stands_in(self, client: str, subscriptions: int) -> bool:
        """Whether the proxy has subscribed to all of that client's."""
        found = self.server and self.server.proxy.clients.get(client)
        if not found:
            return False
        return found.access == "ready" and len(found.subscriptions) == subscriptions

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


class _Publisher:
    """A client of Wayfare's own network."""

    def __init__(self, client: wayfare.Client) -> None:
        self.client = client

    async def publish(self, publication: Publication) -> None:
        attributes = {"topic": publication.topic, **publication.properties}
        await self.client.publish(attributes, publication.payload, confirm=True)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _drain(some: Subscription) -> None:
    async for _ in some:
        pass
