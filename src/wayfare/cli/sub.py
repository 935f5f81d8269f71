"""`wayfare sub`: subscribe from a shell."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from wayfare.cli import identity, notation, running
from wayfare.core.filters import Filter
from wayfare.net.client import connect

EXAMPLES = """examples:
  wayfare sub 127.0.0.1:7410 "service = 'parking' and free > 0"
  wayfare sub 127.0.0.1:7410 "exists(kmh)" -C 10 --json     ten of them, as JSON, then stop
  wayfare sub 127.0.0.1:7410 "kmh > 120" -C 1 -W 30         exit code 1 if none comes in 30 s
  wayfare sub a.example,b.example "free > 0"                b, when a is gone

The language of filters: docs/filter-language.md. Without -C and -W it runs until Ctrl-C.
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "sub",
        help="subscribe, and print what comes",
        description="Print notifications that match a filter, one a line, as they come.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("address", metavar="ADDRESS", help="of a broker: host:port")
    one.add_argument("filter", metavar="FILTER")
    one.add_argument("-C", "--count", type=running.count, metavar="N", help="stop after so many")
    one.add_argument(
        "-W",
        "--wait",
        type=running.seconds,
        metavar="SECONDS",
        help="stop after this time; with less than -C, the exit code is 1",
    )
    one.add_argument("--json", action="store_true", help="one JSON object a line")
    identity.add_options(one)
    identity.add_events(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    wanted = Filter.parse(arguments.filter)
    running.start_log("error")
    work = _Subscribing(arguments, wanted)
    return running.run(work.run(), work.code)


class _Subscribing:
    """How far it is, also for whoever stops it."""

    def __init__(self, arguments: argparse.Namespace, wanted: Filter) -> None:
        self.arguments, self.wanted = arguments, wanted
        self.came = 0

    def code(self) -> int:
        return 1 if self.came < (self.arguments.count or 0) else 0

    async def run(self) -> int:
        a = self.arguments
        show = notation.as_json if a.json else notation.as_text
        async with (
            connect(
                a.address.split(","),
                on_lost=tell_lost,
                **identity.options(a),
            ) as client,
            client.subscribe(self.wanted) as some,
        ):
            ends = None if a.wait is None else asyncio.get_running_loop().time() + a.wait
            try:
                async with asyncio.timeout_at(ends):
                    await client.flush()
                    running.tell(f"subscribed to {self.wanted} at {client.broker}")
                    async for one in some:
                        print(show(one), flush=True)
                        self.came += 1
                        if self.came == a.count:
                            break
            except TimeoutError:
                pass
        return self.code()


def tell_lost(count: int, reason: str) -> None:
    many = f"{count} notifications were lost" if count != 1 else "1 notification was lost"
    running.tell(f"{many if count else 'notifications may have been lost'}: {reason}")
