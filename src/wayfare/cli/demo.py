"""`wayfare demo`: three brokers on this machine, and a subscriber that roams between them.

Twice at the same time: without support for clients that move, and with it. What is published is the
same, and so are the ways of the clients. With `--out`, the event logs of both go through the pipeline
on Spark, which comes to its own figures and writes a report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wayfare.cli import demo_location, jobs, story
from wayfare.errors import UsageError
from wayfare.eventlog import Event, ParquetWriter
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.client import Client, connect
from wayfare.net.subscription import Subscription

BROKERS = ("lisbon", "porto", "faro")  # the others call the first
SIDES = {"no support": "naive", "Wayfare": "handoff"}  # and their relocation strategies
FILTER = "service = 'tram' and delay > 0"
PER_SECOND = 25
LAST_S = 1.0  # for what is under way at the end
SECONDS = 16.0
SHORTEST_S = 2.0
# Who is where, as shares of the time: anna has been at porto since before, tom at faro.
WAYS: tuple[tuple[float, str, str], ...] = (
    (0.10, "anna", ""),
    (0.18, "anna", "faro"),
    (0.30, "anna", "lisbon"),
    (0.42, "anna", ""),
    (0.52, "anna", "porto"),
    (0.60, "tom", "lisbon"),
    (0.70, "anna", ""),
    (0.76, "anna", "faro"),
    (0.84, "tom", "porto"),
    (0.90, "anna", "porto"),
)
WIDTH = 46  # of the line that shows what has come

EXAMPLES = """examples:
  wayfare demo                  live, in a terminal
  wayfare demo --out DIR        ... and its event log through Spark, into a report
  wayfare demo --json           the figures only, for programs
  wayfare demo --simulated      another one: seven brokers in virtual time, at once
  wayfare demo location         a car along five brokers, and the notices of each street when it comes
"""


class Side:
    """One network, with its publisher and its subscriber."""

    def __init__(self, name: str, relocation: str) -> None:
        self.name = name
        self.relocation = relocation
        self.places = {"anna": "porto", "tom": "faro"}  # "": away
        self.published = 0
        self.got: list[int] = []
        self.events: list[Event] = []
        self.brokers: dict[str, BrokerHost] = {}
        self.clients: dict[str, Client] = {}

    async def start(self, stack: AsyncExitStack) -> None:
        for name in BROKERS:
            first = self.brokers.get(BROKERS[0])
            near = {BROKERS[0]: first.address} if first else dict.fromkeys(BROKERS[1:])
            broker = BrokerHost(name, near, relocation=self.relocation)
            await broker.start(Address("127.0.0.1", 0))
            stack.push_async_callback(broker.stop)
            self.brokers[name] = broker
        for name, place in self.places.items():
            self.clients[name] = await stack.enter_async_context(
                connect(
                    self._address(place),
                    client_id=name,
                    on_lost=_silent,
                    events=self.events.append,
                )
            )
        await self.clients["tom"].advertise("service = 'tram'")
        trams = await self.clients["anna"].subscribe(FILTER)
        reading = asyncio.create_task(self._read(trams))
        stack.callback(reading.cancel)

    async def _read(self, trams: Subscription) -> None:
        async for tram in trams:
            number = tram["number"]
            assert isinstance(number, int)
            self.got.append(number)

    async def publish(self) -> None:
        self.published += 1
        await self.clients["tom"].publish(
            {"service": "tram", "line": 28, "delay": 3, "number": self.published}
        )

    async def go(self, who: str, place: str) -> None:
        self.places[who] = place
        if place:
            await self.clients[who].move(self._address(place))
        else:
            await self.clients[who].detach()

    def _address(self, place: str) -> str:
        return str(self.brokers[place].address)

    def figures(self) -> dict[str, int]:
        seen: set[int] = set()
        out_of_order = last = 0
        for number in self.got:
            out_of_order += number < last and number not in seen
            seen.add(number)
            last = max(last, number)
        return {
            "published": self.published,
            "delivered": len(seen),
            "lost": self.published - len(seen),
            "duplicates": len(self.got) - len(seen),
            "out_of_order": out_of_order,
        }


def _silent(_count: int, _reason: str) -> None:
    """The figures at the end say it all."""


class Demo:
    """Both networks, and the story that is played in them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.sides = [Side(name, relocation) for name, relocation in SIDES.items()]
        self.said = "three brokers start, twice"
        self._started = time.monotonic()

    async def play(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever there is something else to be seen."""
        async with AsyncExitStack() as stack:
            for side in self.sides:
                await side.start(stack)
            self._say("anna listens at porto, tom publishes at faro", changed)
            publishing = asyncio.create_task(self._publish(changed))
            stack.callback(publishing.cancel)
            began = time.monotonic()
            for share, who, place in WAYS:
                await asyncio.sleep(max(0, began + share * self.seconds - time.monotonic()))
                words = f"goes to {place}" if place else f"leaves {self.sides[0].places[who]}"
                self._say(f"{who} {words}", changed)
                await asyncio.gather(*(side.go(who, place) for side in self.sides))
            await asyncio.sleep(max(0, began + self.seconds - time.monotonic()))
            publishing.cancel()
            self._say("the last ones arrive", changed)
            await asyncio.sleep(LAST_S)

    def _say(self, words: str, changed: Callable[[], None]) -> None:
        self.said = f"{time.monotonic() - self._started:5.1f} s  {words}"
        changed()

    async def _publish(self, changed: Callable[[], None]) -> None:
        while True:
            for side in self.sides:
                await side.publish()
            changed()
            await asyncio.sleep(1 / PER_SECOND)


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "demo",
        help="the whole system, once",
        description="Three brokers on this machine, a publisher, and a subscriber that roams between"
        " them; without support for clients that move, and with it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "story",
        nargs="?",
        choices=["location"],
        help="another one: subscriptions that follow a car",
    )
    one.add_argument(
        "--seconds",
        type=float,
        help=f"how long it takes: {SECONDS:g}, and for location {demo_location.SECONDS:g}",
    )
    one.add_argument("--simulated", action="store_true", help="a network in virtual time instead")
    one.add_argument(
        "--out", type=Path, metavar="DIR", help="analyse the event logs on Spark, and report there"
    )
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.simulated and not arguments.story:
        return story.run(as_json=arguments.json)
    usual = demo_location.SECONDS if arguments.story else SECONDS
    seconds = usual if arguments.seconds is None else arguments.seconds
    if not SHORTEST_S <= seconds <= 3600:
        raise UsageError(f"a demo takes {SHORTEST_S:g} seconds at least, and an hour at most")
    if arguments.story and (arguments.simulated or arguments.out is not None):
        raise UsageError(
            "demo location is live and prints its figures: leave --simulated and --out"
        )
    if arguments.out is not None:
        jobs.need_spark("report")
    logger = logging.getLogger("wayfare")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # connections that end are part of the story
    try:
        if arguments.story:
            return demo_location.run(seconds, as_json=arguments.json)
        demo = Demo(seconds)
        _play(demo, as_json=arguments.json)
    finally:
        logger.setLevel(level)
    figures: dict[str, dict[str, Any]] = {side.name: side.figures() for side in demo.sides}
    if not arguments.json:
        print(_result(figures))
    if arguments.out is not None:
        figures |= _report(demo, arguments.out, as_json=arguments.json)
    if arguments.json:
        print(json.dumps(figures))
    kept = figures["Wayfare"]
    return 1 if kept["lost"] or kept["duplicates"] or kept["out_of_order"] else 0


def _play(demo: Demo, *, as_json: bool) -> None:
    console = Console(highlight=False)
    if as_json or not console.is_terminal:
        said: list[str] = []

        def tell() -> None:
            if not as_json and said[-1:] != [demo.said]:
                said.append(demo.said)
                print(demo.said, flush=True)

        asyncio.run(demo.play(tell))
        return
    with Live(_view(demo), console=console, refresh_per_second=10, transient=True) as live:
        asyncio.run(demo.play(lambda: live.update(_view(demo))))


def _view(demo: Demo) -> Table:
    """What is to be seen now: where everybody is, and what has come."""
    out = Table.grid(padding=(0, 1))
    out.add_row(Text(f"\n{demo.said}", style="bold"))
    for side in demo.sides:
        out.add_row("")
        out.add_row(Text(side.name, style="cyan"))
        out.add_row(_places(side))
        out.add_row(_line(side))
    return out


def _places(side: Side) -> Text:
    text = Text("  ")
    for place in ("porto", "lisbon", "faro"):
        here = [who for who, there in side.places.items() if there == place]
        text.append(f"{'' if place == 'porto' else ' --- '}[{place}")
        for who in here:
            text.append(f" {who}", style="green" if who == "anna" else "yellow")
        text.append("]")
    away = [who for who, there in side.places.items() if not there]
    return text.append(f"   {away[0]} is away" if away else "", style="dim")


def _line(side: Side) -> Text:
    """The last ones that were published: which of them anna has."""
    got = {*side.got}
    first = max(1, side.published - WIDTH + 1)
    marks = "".join("#" if n in got else "." for n in range(first, side.published + 1))
    text = Text("  ")
    for mark in marks:
        text.append(mark, style="green" if mark == "#" else "red")
    return text.append(f"  {len(got)} of {side.published}")


def _result(figures: dict[str, dict[str, int]]) -> str:
    """A table in plain text."""
    names = [*figures]
    lines = [" " * 14 + "".join(f"{name:>14}" for name in names)]
    for what in ("published", "delivered", "lost", "duplicates", "out_of_order"):
        row = "".join(f"{figures[name][what]:>14}" for name in names)
        lines.append(f"{what.replace('_', ' '):<14}{row}")
    return "\n" + "\n".join(lines) + "\n"


# The pipeline


def _report(demo: Demo, out: Path, *, as_json: bool) -> dict[str, dict[str, Any]]:
    """What Spark makes of the event logs, and where."""
    from wayfare.pipeline import analyse, events, report, spark

    logs = out / "log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for side in demo.sides:
            name = f"{side.name.replace(' ', '-').lower()}.parquet"
            with ParquetWriter(logs / name, run=side.name) as log:
                log.write(sorted(side.events, key=lambda event: event.time_ns))
    except OSError as error:
        raise UsageError(f"{out} cannot take the event logs: {error.strerror}") from None
    with Console(stderr=True).status("the event logs go through Spark ...") as status:
        session = spark.start(**spark.TINY)
        with spark.explained("the event logs of the demo cannot be analysed"):
            told = events.read(session, logs)
            with analyse.analyse(told, lambda doing: status.update(f"{doing} ...")) as analysis:
                analyse.write(analysis, out)
                rows = {row.run: row.asDict() for row in analysis.tables["runs"].collect()}
        status.update("drawing ...")
        page = report.write(out)[0]
    written = {"report": str(page), "picture": str(out / "figures/traces.png"), "log": str(logs)}
    if not as_json:
        print("What Spark makes of the event logs:")
        print(_analysed(rows))
        for what, path in written.items():
            print(f"{what:<10}{path}")
    return {"analysed": rows, "written": written}


def _analysed(rows: dict[str, dict[str, Any]]) -> str:
    names = {
        "expected": "expected",
        "lost": "lost",
        "duplicates": "duplicates",
        "order_violations": "out of order",
        "delay_p50_ms": "delay p50, ms",
        "delay_p99_ms": "delay p99, ms",
    }
    lines = [" " * 14 + "".join(f"{name:>14}" for name in SIDES)]
    for column, words in names.items():
        cells = [rows[name][column] for name in SIDES]
        shown = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells)
        lines.append(f"{words:<14}" + "".join(f"{one:>14}" for one in shown))
    return "\n" + "\n".join(lines) + "\n"
