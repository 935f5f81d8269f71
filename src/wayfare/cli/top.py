"""`wayfare top`: what brokers do, live."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wayfare.cli import running
from wayfare.core.memory import NEAR
from wayfare.errors import CannotConnect, UsageError
from wayfare.net import config
from wayfare.net.http import PORT, fetch
from wayfare.net.status import Ahead, BrokerStatus, LinkStatus

EXAMPLES = f"""examples:
  wayfare top                               the brokers that tell their status at 127.0.0.1:{PORT}
  wayfare top 9410 10.0.0.2:9410            those of several processes
  wayfare top city.toml                     where this configuration says
  wayfare top --once                        once, over a second
  wayfare top --json --every 10             one JSON object a line, every ten seconds

Brokers tell their status if they are started with --status PORT, or have a status.port in their file.
"""
WIDTH = 80  # where there is no terminal


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "top",
        help="what brokers do, live",
        description="Watch brokers: sessions, backlog, links, and rates per second. Ctrl-C ends it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "places",
        nargs="*",
        metavar="PLACE",
        help="where a status is told, [host:]port, or a configuration that says it",
    )
    one.add_argument(
        "--every",
        type=running.seconds,
        default=1.0,
        metavar="SECONDS",
        help="between two looks (default 1)",
    )
    one.add_argument("--once", action="store_true", help="look twice, tell once, and stop")
    one.add_argument("--json", action="store_true", help="one JSON object a line, a look each")
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    places = [_place(one) for one in arguments.places or [str(PORT)]]
    watching = _Watching(places, max(0.1, arguments.every))
    once = arguments.once or not (arguments.json or sys.stdout.isatty())
    if once or arguments.json:
        return running.serve(_print(watching, once, arguments.json), lambda: 0)
    return running.serve(_show(watching), lambda: 0)


def _place(text: str) -> tuple[str, int]:
    if text.endswith(".toml") or Path(text).is_file():
        where = config.read(text).settings.status
        if not where.port:
            raise UsageError(
                f"{text} does not say where its status is told: give status.port a port"
            )
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return everywhere.get(where.host, where.host), where.port
    if text.startswith(("wayfare://", "wayfares://")):
        raise UsageError(
            f"{text} is where a broker listens for clients: give the port where it tells its status,"
            " which is that of --status, or status.port in its file"
        )
    try:
        return running.place(text.removeprefix("http://").removesuffix("/status").rstrip("/"))
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{error}, or a configuration") from None


# Looking


class Rates(msgspec.Struct, frozen=True):
    """Per second, between two looks."""

    routed: float
    delivered: float
    moves: float
    gaps: float
    bytes_in: float
    bytes_out: float


class Look(msgspec.Struct, frozen=True):
    """At one broker; rates are None at the first look, and behind a restart."""

    status: BrokerStatus
    rates: Rates | None


class _Watching:
    """The status of all places, and what it was before."""

    def __init__(self, places: Sequence[tuple[str, int]], every_s: float) -> None:
        self.every_s = every_s
        self.troubles: list[str] = []  # at the last look
        self._places = places
        self._before: dict[tuple[int, str], BrokerStatus] = {}

    async def look(self) -> list[Look]:
        self.troubles = []
        answers = await asyncio.gather(
            *(fetch(*one) for one in self._places), return_exceptions=True
        )
        found, now = [], dict[tuple[int, str], BrokerStatus]()
        for place, answer in enumerate(answers):
            if isinstance(answer, CannotConnect):
                self.troubles.append(str(answer))
                continue
            if isinstance(answer, BaseException):
                raise answer
            for one in answer.brokers:
                now[place, one.name] = one
                found.append(Look(one, rates_of(self._before.get((place, one.name)), one)))
        self._before = now
        return found


def rates_of(before: BrokerStatus | None, now: BrokerStatus) -> Rates | None:
    seconds = now.uptime_s - before.uptime_s if before is not None else 0
    if before is None or seconds <= 0:
        return None
    (in_0, out_0), (in_1, out_1) = _bytes(before), _bytes(now)
    rates = (
        now.routed - before.routed,
        now.deliveries - before.deliveries,
        now.moves - before.moves,
        now.gaps - before.gaps,
        in_1 - in_0,
        out_1 - out_0,
    )
    return Rates(*(round(one / seconds, 1) for one in rates))


def _bytes(one: BrokerStatus) -> tuple[int, int]:
    all_of_it = [*one.traffic.values(), *(link.traffic for link in one.links)]
    return sum(t.bytes_in for t in all_of_it), sum(t.bytes_out for t in all_of_it)


# Telling


async def _print(watching: _Watching, once: bool, as_json: bool) -> int:
    await watching.look()
    while True:
        await asyncio.sleep(watching.every_s)
        looks = await watching.look()
        if as_json:
            facts = {"troubles": watching.troubles, "brokers": msgspec.to_builtins(looks)}
            print(json.dumps(facts), flush=True)
        else:
            console = Console(width=None if sys.stdout.isatty() else WIDTH)
            with (
                console.capture() as drawn
            ):  # to `print`: on a broken pipe rich would exit by itself
                console.print(draw(looks, watching.troubles))
            print("\n".join(line.rstrip() for line in drawn.get().splitlines()), flush=True)
        if once:
            return 1 if watching.troubles else 0


async def _show(watching: _Watching) -> int:
    with Live(Text("looking ..."), screen=True, auto_refresh=False) as live:
        while True:
            live.update(draw(await watching.look(), watching.troubles), refresh=True)
            await asyncio.sleep(watching.every_s)


def draw(looks: Sequence[Look], troubles: Iterable[str]) -> Group:
    parts: list[Table | Text] = []
    if looks:
        parts.append(_brokers(looks))
    if len(looks) == 1 and looks[0].status.links:
        parts += [Text(), _links(looks[0].status.links)]
    else:
        parts += [
            Text(
                f"{one.status.name} has no link to {link.name}: {link.kept} messages wait", "yellow"
            )
            for one in looks
            for link in one.status.links
            if not link.up
        ]
    parts += [
        Text(f"{one.status.name} stopped: {one.status.failure}", "red")
        for one in looks
        if one.status.failure
    ]
    for look in looks:
        parts += _ahead(look.status.name, look.status.ahead)
    parts += [Text(one, "red") for one in troubles]
    if looks:
        parts += [Text(), _limits(looks)]
    parts += [
        Text(
            f"the account {one.account} keeps {binary(one.bytes)} of {binary(one.limit)} at {at}",
            "yellow",
        )
        for at, one in (
            (look.status.name, one) for look in looks for one in look.status.account_memory
        )
        if one.bytes > one.limit * NEAR
    ]
    return Group(*parts)


def _brokers(looks: Sequence[Look]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0))
    table.add_column("broker", overflow="ellipsis", max_width=14, no_wrap=True)
    for name in (
        "up",
        "here",
        "away",
        "wait",
        "backlog",
        "in/s",
        "out/s",
        "moves/s",
        "gaps",
        "links",
    ):
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    for one in looks:
        status, rates = one.status, one.rates
        up = sum(link.up for link in status.links)
        table.add_row(
            status.name,
            duration(status.uptime_s),
            short(status.sessions.attached),
            short(status.sessions.away),
            short(status.sessions.waiting),
            short(status.backlog_notifications),
            *(
                [short(rates.routed), short(rates.delivered), short(rates.moves)]
                if rates
                else "---"
            ),
            short(status.gaps),
            Text(f"{up}/{len(status.links)}", "" if up == len(status.links) else "yellow"),
        )
    return table


def _limits(looks: Sequence[Look]) -> Table:
    """What brokers keep, in bytes, and how much they may."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0))
    table.add_column("broker", overflow="ellipsis", max_width=14, no_wrap=True)
    for name in ("memory", "limit", "used", "disk", "limit", "used", "shed", "slowed", "values"):
        table.add_column(name, justify="right", no_wrap=True, min_width=6)
    for one in looks:
        status = one.status
        table.add_row(
            status.name,
            *_share(sum(status.memory.values()), status.memory_limit),
            *_share(status.disk_bytes, status.disk_limit),
            short(status.shed),
            short(status.slowed),
            short(status.retained),
        )
    return table


def _share(used: int, limit: int) -> tuple[str, str, Text]:
    style = "yellow" if limit and used > limit * NEAR else ""
    share = Text(f"{used / limit:.0%}", style) if limit else Text("-")
    return binary(used), binary(limit) if limit else "none", share


def _ahead(name: str, ahead: Ahead) -> list[Text]:
    """What is known of clients that follow their location, where there are any."""
    out = []
    if ahead.here or ahead.elsewhere:
        listens = f"{name} listens for {short(ahead.here)} clients here, {short(ahead.elsewhere)}"
        out.append(Text(f"{listens} elsewhere: {short(ahead.kept)} notifications kept"))
    for peer, why in ahead.trouble.items():
        out.append(Text(f"{name} cannot tell {peer} what to listen to: {why}", "yellow"))
    return out


def _links(links: Sequence[LinkStatus]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0))
    table.add_column("neighbour", overflow="ellipsis", max_width=20, no_wrap=True)
    for name in ("link", "kept", "subs", "ads", "messages in", "out", "bytes in", "out"):
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    for link in links:
        told = link.traffic
        table.add_row(
            link.name,
            Text("up") if link.up else Text("down", "yellow"),
            *map(short, (link.kept, link.subscriptions, link.advertisements)),
            *map(short, (told.messages_in, told.messages_out, told.bytes_in, told.bytes_out)),
        )
    return table


def short(value: float) -> str:
    """A number in at most five characters: 999, 1.2k, 34M."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5:
            whole = value >= 9.95 or value == int(value)
            return f"{value:.0f}{unit}" if whole else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.0f}P"


def binary(value: float) -> str:
    """Bytes, in the units of configurations and in at most six characters: 999, 1.2Ki, 256Mi."""
    for unit in ("", "Ki", "Mi", "Gi"):
        if value < 1023.5:
            whole = value >= 9.95 or value == int(value)
            return f"{value:.0f}{unit}" if whole else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.0f}Ti"


def duration(seconds: float) -> str:
    """Likewise: 59s, 12m, 3h, 14d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
