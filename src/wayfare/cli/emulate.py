"""`wayfare emulate`: a wireless link, live, between clients and a broker on this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from wayfare.channel import MS_NS, PROFILES, SETTINGS, Direction, find
from wayfare.cli import running
from wayfare.cli.experiments import or_dash, print_pairs
from wayfare.errors import UsageError
from wayfare.net.emulator import Emulator, Facts, Way

Say = Callable[[dict[str, object], str], None]  # the same, for programs and for people

EXAMPLES = """examples:
  wayfare emulate --profile list                                  all profiles, and where they are from
  wayfare emulate --profile gprs --listen 7500 --to 127.0.0.1:7410
  wayfare sub 127.0.0.1:7500 "free > 0"                           ... a client at the end of it
  wayfare emulate --listen 7500 --to 127.0.0.1:7410 --listen 7501 --to 127.0.0.1:7411
                                                                  one radio link to two brokers
  wayfare emulate --listen 7500 --to 127.0.0.1:7410 --set error=0.01 --set down.latency=500ms

While it runs, a line on stdin does something to the link; SIGUSR1 does the first two in turn:
  cut                 no reception: connections are stuck, as in a tunnel
  restore             they go on; what did not arrive is sent again
  cut reset           ... or they are broken, at both ends
  move 127.0.0.1:7411 new connections go there from now on

It runs until Ctrl-C or SIGTERM, and then says what crossed the link.
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "emulate",
        help="be a slow wireless link between clients and a broker",
        description="Relay TCP connections as a wireless link would: all of them share one mobile's radio"
        " link. The simulator has the same model: `client_link profile gprs` in a scenario.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "--profile",
        default="gprs",
        metavar="NAME",
        help=f"{', '.join(PROFILES)}, or `list` to see them (default gprs)",
    )
    one.add_argument(
        "--listen",
        type=running.place,
        action="append",
        default=[],
        metavar="[HOST:]PORT",
        help="where clients connect to; as often as --to, 0 for any port (default 0)",
    )
    one.add_argument(
        "--to",
        type=running.place,
        action="append",
        default=[],
        metavar="[HOST:]PORT",
        help="where their connections go",
    )
    one.add_argument("--seed", type=int, default=0, help="for channels and errors (default 0)")
    one.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="[up.|down.]NAME=VALUE",
        help=f"change the profile: {', '.join(SETTINGS)}",
    )
    one.add_argument("--json", action="store_true", help="print JSON objects, one a line")
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    a = arguments
    if a.profile == "list":
        return _list(a.json)
    profile = find(a.profile, a.set)
    if not a.to:
        raise UsageError("there is nothing to connect to: give --to HOST:PORT")
    listen = a.listen or [("127.0.0.1", 0)] * len(a.to)
    if len(listen) != len(a.to):
        raise UsageError(
            f"--listen was given {len(listen)} times and --to {len(a.to)} times: give them in pairs"
        )
    emulator = Emulator(profile, a.to[0], a.seed, listen[0], running.tell)
    return running.serve(_serve(emulator, listen, a), lambda: 0)


async def _serve(emulator: Emulator, listen: list[tuple[str, int]], a: argparse.Namespace) -> int:
    def say(facts: dict[str, object], sentence: str) -> None:
        say_line(json.dumps(facts) if a.json else sentence)

    async with running.printing() as say_line, emulator:
        ports = [emulator.port]
        for (host, port), to in list(zip(listen, a.to, strict=True))[1:]:
            ports.append(await emulator.listen(to, host, port))
        with suppress(NotImplementedError):  # where there are no signals
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, _turn, emulator, say)
        for (host, _), port, to in zip(listen, ports, a.to, strict=True):
            where = {"profile": a.profile, "host": host, "port": port, "to": f"{to[0]}:{to[1]}"}
            say(where, f"{a.profile}: {host}:{port} to {to[0]}:{to[1]}")
        try:
            if _has_stdin():
                async for line in running.lines():
                    _heed(emulator, line.decode(errors="replace").strip(), say)
            await asyncio.Event().wait()  # nobody says anything any more
        finally:
            _show(emulator.facts(), a.json)
    return 0


def _has_stdin() -> bool:
    """Whether it is ours: a shell stops a process in its background that reads from the terminal."""
    if sys.stdin is None:
        return False
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # not the terminal that we were started from
        return True


def _turn(emulator: Emulator, say: Say) -> None:
    _heed(emulator, "restore" if emulator.up.is_cut else "cut", say)


def _heed(emulator: Emulator, line: str, say: Say) -> None:
    word, _, rest = line.partition(" ")
    try:
        if (word, rest) in (("cut", ""), ("cut", "reset")):
            emulator.cut(reset=bool(rest))
        elif (word, rest) == ("restore", ""):
            emulator.restore()
        elif word == "move":
            emulator.move(running.place(rest))
        elif line:
            raise argparse.ArgumentTypeError(
                f"{line[:60]!r} does nothing: say cut, cut reset, restore or move HOST:PORT"
            )
        else:
            return
    except argparse.ArgumentTypeError as error:
        running.tell(str(error))
        return
    say({"did": line}, line)


def _show(facts: Facts, as_json: bool) -> None:
    if as_json:
        print(json.dumps(msgspec.to_builtins(facts)), flush=True)
        return
    print_pairs(
        [
            ("connections", f"{facts.connections}, {facts.refused} of them refused"),
            ("up", _way(facts.up)),
            ("down", _way(facts.down)),
        ]
    )


def _way(way: Way) -> str:
    delay = or_dash(way.mean_delay_ms, ".1f")
    return (
        f"{way.bytes} bytes in {way.packets} packets, {way.again} sent again; {delay} ms on average"
    )


def _list(as_json: bool) -> int:
    if as_json:
        print(json.dumps(msgspec.to_builtins(PROFILES)))
        return 0
    print("| profile | up | down | ms each way | errors | source |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, one in PROFILES.items():
        print(
            f"| {name} | {_rate(one.up)} | {_rate(one.down)} | {one.up.latency_ns / MS_NS:g} |"
            f" {_errors(one.up)} | {one.source} |"
        )
    return 0


def _rate(way: Direction) -> str:
    channels = f"{way.least}-{way.most} x " if way.most > 1 else ""
    return f"{channels}{way.bps:,} bit/s"


def _errors(way: Direction) -> str:
    least, most = way.again_least_ns / MS_NS, way.again_most_ns / MS_NS
    return f"{way.error:g}, {least:g}-{most:g} ms" if way.error else "none"
