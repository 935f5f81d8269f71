"""`wayfare roam`: a subscriber that moves through a list of brokers, and counts what it gets."""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from wayfare.cli import identity, notation, running
from wayfare.cli.sub import tell_lost
from wayfare.core.filters import Filter
from wayfare.errors import UsageError
from wayfare.net.client import Client, connect
from wayfare.net.subscription import Notification, Subscription

SEEN_MAX = 100_000  # notifications that it knows again; older ones would count as out of order

EXAMPLES = """examples:
  wayfare roam "exists(kmh)" --through 127.0.0.1:7410,127.0.0.1:7411 --every 5
  wayfare roam "free > 0" --through a.example,b.example,c.example --every 60 --rounds 10 --quiet
  wayfare roam "free > 0" --through a.example,b.example --every 1 --json

At the end it says how many came, twice, out of order, and were lost. The exit code is 1 if one was
lost, came twice or out of order.
"""


class Tally:
    """What came, counted as its application sees it."""

    def __init__(self) -> None:
        self.received = self.duplicates = self.out_of_order = self.lost = self.unsure = 0
        self.moves = 0
        self._last: dict[str, int] = {}  # of every publisher
        self._seen: dict[tuple[str, int], None] = {}

    def take(self, one: Notification) -> None:
        key = one.publisher, one.number
        self.received += 1
        if key in self._seen:
            self.duplicates += 1
        elif one.number < self._last.get(one.publisher, 0):
            self.out_of_order += 1
        self._last[one.publisher] = max(one.number, self._last.get(one.publisher, 0))
        self._seen[key] = None
        if len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]

    def lose(self, count: int, reason: str) -> None:
        self.lost += count
        self.unsure += count == 0
        tell_lost(count, reason)

    def facts(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name[0] != "_"}

    def __str__(self) -> str:
        unsure = f" (and {self.unsure} times something may be)" if self.unsure else ""
        return (
            f"{self.moves} moves: {self.received} received, {self.duplicates} twice,"
            f" {self.out_of_order} out of order, {self.lost} lost{unsure}"
        )

    def code(self) -> int:
        return 1 if self.duplicates or self.out_of_order or self.lost or self.unsure else 0


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "roam",
        help="subscribe, and move from broker to broker",
        description="Subscribe, move through a list of brokers, and count what comes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("filter", metavar="FILTER")
    one.add_argument(
        "--through", required=True, metavar="A,B,C", help="addresses of brokers, with commas"
    )
    one.add_argument(
        "--every",
        type=running.seconds,
        default=5.0,
        metavar="SECONDS",
        help="that it stays at each (default 5)",
    )
    one.add_argument("--rounds", type=running.count, default=1, metavar="N", help="default 1")
    one.add_argument("--quiet", action="store_true", help="only the summary")
    one.add_argument("--json", action="store_true", help="one JSON object a line")
    identity.add_options(one)
    identity.add_events(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    a = arguments
    wanted = Filter.parse(a.filter)
    through = [one.strip() for one in a.through.split(",") if one.strip()]
    if not through:
        raise UsageError("--through needs the address of a broker")
    running.start_log("error")
    tally = Tally()
    return running.run(_roam(a, wanted, through, tally), tally.code)


async def _roam(a: argparse.Namespace, wanted: Filter, through: list[str], tally: Tally) -> int:
    async with (
        connect(through[0], on_lost=tally.lose, **identity.options(a)) as client,
        AsyncExitStack() as stack,
    ):
        some = client.subscribe(wanted)
        stack.push_async_exit(some)
        await running.until_ready(some)
        if not a.json:
            running.tell(f"subscribed to {wanted} at {client.broker}")
        reading = asyncio.create_task(_read(a, some, tally))
        moving = asyncio.create_task(_move(a, client, through * a.rounds, tally))
        try:
            await asyncio.wait((reading, moving), return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, moving):
                if task.done():
                    task.result()  # raises what went wrong
        finally:
            for task in (reading, moving):
                task.cancel()
            await asyncio.gather(reading, moving, return_exceptions=True)
            print(json.dumps({"summary": tally.facts()}) if a.json else tally, flush=True)
    return tally.code()


async def _read(a: argparse.Namespace, some: Subscription, tally: Tally) -> None:
    show = notation.as_json if a.json else notation.as_text
    async for one in some:
        tally.take(one)
        if not a.quiet:
            print(show(one), flush=True)


async def _move(a: argparse.Namespace, client: Client, stays: list[str], tally: Tally) -> None:
    for address in stays[1:]:
        await asyncio.sleep(a.every)
        await client.move(address)
        tally.moves += 1
        if a.json:
            print(json.dumps({"moved_to": client.broker}), flush=True)
        elif not a.quiet:
            running.tell(f"moved to {client.broker}")
    await asyncio.sleep(a.every)
