"""Many clients that roam among live brokers: whether all of them get everything, and how soon.

Seven brokers, a process for each, and a publisher at every one of them. Clients of the library, all in
this process, each with a subscription to one of many topics, which ten of them share. They are counted
when they are all there and quiet (memory), then they move at random times to random brokers while
the publishers publish, and in the end every client must have got every publication on its topic, once, and
those of each publisher in order.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack
from random import Random
from statistics import quantiles
from time import perf_counter
from typing import Any

from wayfare.bench import processes
from wayfare.bench.processes import Process
from wayfare.net import client as net
from wayfare.net.heartbeat import HEARTBEAT_S

TREE = (("b1", "b2"), ("b1", "b3"), ("b2", "b4"), ("b2", "b5"), ("b3", "b6"), ("b3", "b7"))
ON_ONE_TOPIC = 10  # clients
AT_ONCE = 50  # clients that connect
STAY_S = 20.0  # that a client stays at a broker, on average; in a quick run less
PATIENCE_S = 30.0  # without any delivery, in the end
PAYLOAD = b"\xa5" * 100


class Roamer:
    """A client that moves, and what it got: publishers and their numbers, as they came."""

    def __init__(self, name: str, topic: int) -> None:
        self.name = name
        self.topic = topic
        self.got: list[tuple[str, int]] = []
        self.heard: set[str] = set()  # publishers whose first words it has
        self.client: net.Client | None = None
        self.lost = 0  # of which it was told

    async def begin(self, url: str) -> None:
        self.client = await net.connect(url, client_id=self.name, on_lost=self.on_lost)

    def on_lost(self, count: int, reason: str) -> None:
        self.lost += max(1, count)

    async def listen(self) -> None:
        assert self.client is not None
        async for one in self.client.subscribe(f"topic = {self.topic}"):
            if one["kind"] == "first":
                self.heard.add(one.publisher)
            else:
                self.got.append((one.publisher, one.number))

    async def roam(self, urls: list[str], stay_s: float, random: Random, took: list[float]) -> None:
        assert self.client is not None
        while True:
            await asyncio.sleep(random.expovariate(1 / stay_s))
            here = self.client.broker
            url = random.choice([one for i, one in enumerate(urls) if f"b{i + 1}" != here])
            start = perf_counter()
            await self.client.move(url)
            took.append(perf_counter() - start)


def run(seed: int = 1, quick: bool = False) -> Iterator[dict[str, Any]]:
    clients, seconds, deliveries = (40, 3.0, 400) if quick else (1_000, 60.0, 2_000)
    stay_s = 1.0 if quick else STAY_S
    _allow_files(clients)
    with processes.brokers(TREE, heartbeat_s=HEARTBEAT_S) as brokers:
        per_second = deliveries / ON_ONE_TOPIC
        yield asyncio.run(_roaming(brokers, clients, seconds, per_second, stay_s, Random(seed)))


def _allow_files(clients: int) -> None:
    """A socket for each client, and some for those that move."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * clients + 200
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _roaming(
    brokers: dict[str, Process],
    clients: int,
    seconds: float,
    per_second: float,
    stay_s: float,
    random: Random,
) -> dict[str, Any]:
    urls = [one.url for one in brokers.values()]
    topics = clients // ON_ONE_TOPIC
    async with AsyncExitStack() as stack:
        publishers = [
            await stack.enter_async_context(net.connect(url, client_id=f"publisher {i}"))
            for i, url in enumerate(urls)
        ]
        for one in publishers:
            await one.advertise("topic >= 0")
        await asyncio.sleep(1)
        before = sum(one.memory() for one in brokers.values())
        roamers = [Roamer(f"roamer {i}", i % topics) for i in range(clients)]
        for i in range(0, clients, AT_ONCE):
            them = roamers[i : i + AT_ONCE]
            await asyncio.gather(*(one.begin(random.choice(urls)) for one in them))
        async with asyncio.TaskGroup() as group:
            listening = [group.create_task(one.listen()) for one in roamers]
            await asyncio.sleep(2)
            memory = sum(one.memory() for one in brokers.values()) - before
            await _all_hear_all(publishers, roamers, topics)
            took: list[float] = []
            moving = [group.create_task(one.roam(urls, stay_s, random, took)) for one in roamers]
            published = await _publish(publishers, topics, seconds, per_second, random)
            for task in moving:
                task.cancel()
            await _all_is_there(published, roamers)
            for task in listening:
                task.cancel()
        for roamer in roamers:
            assert roamer.client is not None
            stack.push_async_callback(roamer.client.close)
    return figures(brokers, roamers, published, took, seconds, memory)


async def _all_hear_all(publishers: list[net.Client], roamers: list[Roamer], topics: int) -> None:
    """Publish until all subscriptions are everywhere."""
    async with asyncio.timeout(PATIENCE_S * 4):
        while any(len(one.heard) < len(publishers) for one in roamers):
            for publisher in publishers:
                for topic in range(topics):
                    await publisher.publish({"topic": topic, "kind": "first"})
            await asyncio.sleep(1)


async def _publish(
    publishers: list[net.Client], topics: int, seconds: float, per_second: float, random: Random
) -> dict[int, list[tuple[str, int]]]:
    """What was published, by topic."""
    published: dict[int, list[tuple[str, int]]] = {topic: [] for topic in range(topics)}
    start, done = perf_counter(), 0
    while (passed := perf_counter() - start) < seconds:
        for _ in range(int(passed * per_second) - done):
            publisher, topic = random.choice(publishers), random.randrange(topics)
            number = await publisher.publish({"topic": topic, "kind": "news"}, PAYLOAD)
            published[topic].append((publisher.name, number))
            done += 1
        await asyncio.sleep(0.005)
    return published


async def _all_is_there(published: dict[int, list[tuple[str, int]]], roamers: list[Roamer]) -> None:
    """Wait until everybody has as much as there is, or nothing comes any more."""
    expected = sum(len(published[one.topic]) for one in roamers)
    got, since = -1, perf_counter()
    while perf_counter() < since + PATIENCE_S:
        now = sum(len(one.got) for one in roamers)
        if now >= expected:
            await asyncio.sleep(1)  # what comes twice may come later
            return
        if now > got:
            got, since = now, perf_counter()
        await asyncio.sleep(0.1)


def figures(
    brokers: dict[str, Process],
    roamers: list[Roamer],
    published: dict[int, list[tuple[str, int]]],
    took: list[float],
    seconds: float,
    memory: int,
) -> dict[str, Any]:
    lost = duplicates = disorder = 0
    for one in roamers:
        had = set(one.got)
        lost += len(set(published[one.topic]) - had)
        duplicates += len(one.got) - len(had)
        last: dict[str, int] = {}
        for publisher, number in one.got:
            disorder += number < last.get(publisher, 0)
            last[publisher] = max(number, last.get(publisher, 0))
    percentiles = quantiles(took, n=100)
    return {
        "bench": "roam",
        "brokers": len(brokers),
        "clients": len(roamers),
        "seconds": seconds,
        "publications": sum(map(len, published.values())),
        "deliveries": sum(len(one.got) for one in roamers),
        "moves": len(took),
        "lost": lost,
        "duplicates": duplicates,
        "out_of_order": disorder,
        "told_lost": sum(one.lost for one in roamers),
        "handover_p50_ms": round(1e3 * percentiles[49], 1),
        "handover_p99_ms": round(1e3 * percentiles[98], 1),
        "kb_per_session": round(memory / 1e3 / len(roamers), 1),
    }
