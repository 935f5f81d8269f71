"""The program that every client process runs: it publishes, subscribes, and writes a journal.

python -m chaos.client '{"name": "tom", "addresses": [...], "journal": "tom.jsonl", ...}'

Its parent tells it what to do, one JSON object a line on stdin; at the end of stdin it ends.

    {"do": "move", "address": "..."}      go to that broker
    {"do": "leave", "for_s": 2}           detach, and attach again after a while
    {"do": "dawdle", "for_s": 2}          read nothing for a while
    {"do": "pace", "every_s": 0.05}       publish a batch that often; null: not at all
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import wayfare
from chaos import journal
from chaos.journal import Journal
from wayfare.eventlog import Event

# Bytes of payloads, and how often: from nothing to more than one chunk of a relay, so that cuts go through frames.
SIZES = {0: 40, 10: 30, 1_000: 20, 5_000: 8, 40_000: 2}
CONNECT_S = 8.0


class Task(msgspec.Struct):
    """What a client process is to do."""

    name: str
    addresses: list[str]
    journal: str
    store: str | None = None
    durability: str = "os"
    publishes: bool = False
    wants: str = ""  # a filter
    heartbeat_s: float = 1.0
    queue: int = 100
    batch: int = 10  # publications of which the last is confirmed
    seed: int = 0


def payload(index: int, size: int) -> bytes:
    """Bytes that differ from their neighbours: what is missing, or comes twice, shows."""
    return bytes((index + at) % 251 for at in range(251)) * (size // 251) + bytes(size % 251)


class Stream:
    """What the application is handed, in order, with each gap where the client library reported it.

    The library reports gaps while earlier notifications still wait in the queue of the subscription.
    """

    def __init__(self, out: Journal) -> None:
        self._out = out
        self._coming: deque[Event] = deque()

    def on_event(self, event: Event) -> None:
        if event.kind in ("delivered", "lost"):
            self._coming.append(event)
            self._write_gaps()
        elif event.kind == "attached":
            self._out.write("attached", broker=event.broker)

    def hand_out(self, one: wayfare.Notification) -> None:
        coming = self._coming.popleft()
        assert (coming.publisher, coming.number) == (one.publisher, one.number), (coming, one)
        self._out.write("got", **{"from": one["source"]}, i=one["i"], delivery=one.delivery)
        if one.payload != payload(one["i"], one["size"]):
            self._out.write("bad", why=f"{one!r} has another payload")
        self._write_gaps()

    def _write_gaps(self) -> None:
        while self._coming and self._coming[0].kind == "lost":
            gap = self._coming.popleft()
            self._out.write("lost", count=gap.count, why=gap.reason)


class Program:
    """One process of one client."""

    def __init__(self, task: Task) -> None:
        self._task = task
        path = Path(task.journal)
        self._index = max(
            (one["i"] for one in journal.read(path) if one["did"] == "tried"), default=0
        )
        self._out = Journal(path)
        self._stream = Stream(self._out)
        self._chance = Random(f"{task.seed} {task.name} {self._index}")
        self._reads = asyncio.Event()
        self._reads.set()
        self._every_s: float | None = None
        self._paced = asyncio.Event()

    async def run(self) -> None:
        self._out.write("began")
        print("ready", flush=True)  # its parent need not wait until a broker is there
        client = await self._connect()
        async with asyncio.TaskGroup() as group:
            if self._task.wants:
                group.create_task(self._read(client))
            if self._task.publishes:
                await client.advertise(wayfare.attr("source") == self._task.name)
                group.create_task(self._publish(client))
            async for order in _orders():
                group.create_task(self._obey(client, order))

    async def _connect(self) -> wayfare.Client:
        task = self._task
        while True:
            with suppress(wayfare.CannotConnect):
                return await wayfare.connect(
                    task.addresses,
                    client_id=task.name,
                    events=self._stream.on_event,
                    on_lost=lambda *_: None,
                    timeout=CONNECT_S,
                    heartbeat_s=task.heartbeat_s,
                    store=task.store,
                    durability=task.durability,
                    failover=None,  # `limits.answer` of the plan says how long it waits
                )

    async def _read(self, client: wayfare.Client) -> None:
        async for one in client.subscribe(self._task.wants, queue=self._task.queue):
            self._stream.hand_out(one)
            await asyncio.sleep(0)  # what was done is written down
            await self._reads.wait()

    async def _publish(self, client: wayfare.Client) -> None:
        while True:
            await self._paced.wait()
            count = self._chance.randint(1, self._task.batch)
            for left in reversed(range(count)):
                await self._publish_one(client, confirm=not left)
            await asyncio.sleep(self._chance.uniform(0, 2) * (self._every_s or 0))

    async def _publish_one(self, client: wayfare.Client, *, confirm: bool) -> None:
        self._index += 1
        (size,) = self._chance.choices([*SIZES], [*SIZES.values()])
        self._out.write("tried", i=self._index)
        attributes = {"i": self._index, "source": self._task.name, "size": size}
        await client.publish(attributes, payload(self._index, size), confirm=confirm)
        self._out.write("put", i=self._index)
        if confirm:
            self._out.write("confirmed", i=self._index)

    async def _obey(self, client: wayfare.Client, order: dict[str, Any]) -> None:
        if order["do"] == "move":
            with suppress(wayfare.CannotConnect):  # it goes on trying
                await client.move(order["address"])
        elif order["do"] == "leave":
            await client.detach()
            await asyncio.sleep(order["for_s"])
            with suppress(wayfare.CannotConnect):
                await client.attach()
        elif order["do"] == "dawdle":
            self._reads.clear()
            await asyncio.sleep(order["for_s"])
            self._reads.set()
        elif order["do"] == "pace":
            self._every_s = order["every_s"]
            (self._paced.clear if self._every_s is None else self._paced.set)()


async def _orders() -> AsyncIterator[dict[str, Any]]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield json.loads(line)
    sys.exit(0)  # the parent is gone, or wants no more


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(Program(msgspec.json.decode(sys.argv[1], type=Task)).run())
