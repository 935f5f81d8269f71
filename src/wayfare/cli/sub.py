"""`wayfare sub`: subscribe from a shell."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from wayfare.cli import identity, notation, running
from wayfare.core.filters import Filter
from wayfare.core.predicates import Value
from wayfare.core.templates import Template
from wayfare.errors import UsageError
from wayfare.net.being import Location
from wayfare.net.client import connect
from wayfare.net.wanted import wanted_as

POINT = re.compile(r"(-?\d+(?:\.\d+)?),(-?\d+(?:\.\d+)?)")

EXAMPLES = """examples:
  wayfare sub 127.0.0.1:7410 "service = 'parking' and free > 0"
  wayfare sub 127.0.0.1:7410 "exists(kmh)" -C 10 --json     ten of them, as JSON, then stop
  wayfare sub 127.0.0.1:7410 "kmh > 120" -C 1 -W 30         exit code 1 if none comes in 30 s
  wayfare sub a.example,b.example "free > 0"                b, when a is gone
  wayfare sub a.example,b.example "free > 0" --late         ... and what a kept, when it is back
  wayfare sub discover:// "free > 0"                        at the nearest broker of this LAN
  wayfare sub 127.0.0.1:7410 "free > 0" --since 3600        and what was published in the last hour
  wayfare sub 127.0.0.1:7410 "free > 0" --group workers     each goes to one member of the group
  wayfare sub 127.0.0.1:7410 "free > 0" --slow-publishers 0     lose notifications rather than delay publishers
  wayfare sub 127.0.0.1 "location in myloc" --at R12        what follows a client that is there
  wayfare sub 127.0.0.1 "near(myloc, 500) and free >= my.need" --at 52.5163,13.3777 --state need=2

The language of filters: docs/filter-language.md. Without -C and -W it runs until Ctrl-C. When stderr says
"subscribed", what is published anywhere from then on is printed; if brokers that are concerned do not answer, a
warning comes first. The current values of publications that were retained come first, with "(retained)".
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "sub",
        help="subscribe, and print what comes",
        description="Print notifications that match a filter, one a line, as they come.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    identity.add_address(one)
    one.add_argument("filter", metavar="FILTER")
    one.add_argument(
        "-C", "--count", type=running.count, metavar="N", help="stop after N notifications"
    )
    one.add_argument(
        "-W",
        "--wait",
        type=running.seconds,
        metavar="SECONDS",
        help="stop after this time; with less than -C, the exit code is 1",
    )
    one.add_argument("--at", type=_location, metavar="WHERE", help="myloc: a name, or LAT,LON")
    one.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="my.NAME; may be repeated",
    )
    one.add_argument(
        "--no-retained", action="store_true", help="without the current values, which come first"
    )
    one.add_argument(
        "--slow-publishers",
        type=running.seconds,
        metavar="SECONDS",
        help="how long publishers may be slowed if this client reads too slowly; then it loses the oldest"
        " notifications (default, and at most: as the broker allows)",
    )
    one.add_argument(
        "--late",
        action="store_true",
        help="also what a broker kept that could not be reached, when it is back",
    )
    one.add_argument(
        "--since",
        type=running.seconds,
        metavar="SECONDS",
        default=0.0,
        help="also what was published in the last so many seconds, as far as brokers remember it",
    )
    one.add_argument("--group", metavar="NAME", help="share notifications in this queue group")
    one.add_argument("--json", action="store_true", help="one JSON object a line")
    identity.add_options(one)
    identity.add_events(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    wanted = wanted_as(arguments.filter)
    state = notation.attributes_of(" ".join(arguments.state))
    _check(wanted, arguments.at, state)
    running.start_log("error")
    work = _Subscribing(arguments, wanted, state)
    return running.run(work.run(), work.code)


def _location(text: str) -> Location:
    point = POINT.fullmatch(text)
    return (float(point[1]), float(point[2])) if point else text


def _check(wanted: Filter | Template, at: Location | None, state: Mapping[str, Value]) -> None:
    """That all is said which the filter mentions, and nothing else."""
    names = wanted.names if isinstance(wanted, Template) else frozenset()
    if isinstance(wanted, Template) and wanted.follows_location:
        if at is None:
            raise UsageError("the filter mentions myloc: say where this client is, like --at R12")
    elif at is not None:
        raise UsageError("the filter does not mention myloc: leave --at")
    for name in sorted(names - state.keys()):
        raise UsageError(f"the filter mentions my.{name}: give it a value, like --state {name}=3")
    for name in sorted(state.keys() - names):
        raise UsageError(f"the filter does not mention my.{name}: leave --state {name}")


class _Subscribing:
    """How far it is, also for whoever stops it."""

    def __init__(
        self, arguments: argparse.Namespace, wanted: Filter | Template, state: Mapping[str, Value]
    ) -> None:
        self.arguments, self.wanted, self.state = arguments, wanted, state
        self.came = 0

    def code(self) -> int:
        return 1 if self.came < (self.arguments.count or 0) else 0

    async def run(self) -> int:
        a = self.arguments
        show = notation.as_json if a.json else notation.as_text
        async with (
            connect(
                identity.addresses(a),
                probe=a.probe,
                on_lost=tell_lost,
                on_settled=tell_settled,
                late=a.late,
                **identity.options(a),
            ) as client,
            AsyncExitStack() as stack,
        ):
            some = client.subscribe(
                self.wanted,
                retained=False if a.no_retained else None,
                group=a.group,
                since=a.since,
                slow_publishers=a.slow_publishers,
            )
            stack.push_async_exit(some)
            ends = None if a.wait is None else asyncio.get_running_loop().time() + a.wait
            try:
                async with asyncio.timeout_at(ends):
                    client.location = a.at
                    client.state.update(self.state)
                    await running.until_ready(some)
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


def tell_settled(count: int, _: Mapping[str, int]) -> None:
    many = "1 notification was lost" if count == 1 else f"{count or 'no'} notifications were lost"
    running.tell(f"of those that may have been lost, it is known now: {many}")
