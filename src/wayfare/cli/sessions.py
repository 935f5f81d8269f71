"""`wayfare sessions`: the sessions of clients at running brokers, and how to end them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from wayfare.cli.groups import Group
from wayfare.errors import UsageError
from wayfare.net import config
from wayfare.net.admin import Kicked, Request, SessionFacts, ask
from wayfare.net.logs import printable

EXAMPLES = """examples:
  wayfare sessions list --config site.toml              all sessions of this broker
  wayfare sessions list "car-*" --socket store/admin.sock --json
  wayfare sessions kick car-17 --config site.toml       disconnect it; its application gets the reason
  wayfare sessions kick car-17 --again --config site.toml         ... and it may come back by itself
  wayfare sessions kick car-17 --forget --config site.toml        ... and its session ends, with its backlog

The command speaks to a running broker over its admin socket: admin.sock beside its store, or where admin.socket
in its file says. Only the user that runs the broker may use it, and root. The exit code is 1 if the client is
not there; then the command says where it went, if that is known.
"""


def add_parser(commands: Any) -> None:
    group = Group(
        commands,
        "sessions",
        help="list the sessions of running brokers, or end one",
        description="List the sessions of clients at running brokers, or disconnect a client.",
        examples=EXAMPLES,
    )

    def part(name: str, help: str, run: Any) -> argparse.ArgumentParser:
        one = group.add(name, help, run)
        one.add_argument(
            "--config", metavar="FILE", help="the configuration of the broker, or of a network"
        )
        one.add_argument("--socket", metavar="PATH", help="its admin socket, instead")
        one.add_argument("--broker", default="", metavar="NAME", help="one broker of a network")
        one.add_argument("--json", action="store_true", help="one JSON object a line")
        return one

    listing = part("list", "list sessions, of clients that are attached or away", list_all)
    listing.add_argument(
        "pattern",
        nargs="?",
        default="",
        metavar="PATTERN",
        help="of names; * and ? stand for others",
    )
    kicking = part("kick", "disconnect a client", kick)
    kicking.add_argument("client", metavar="CLIENT")
    kicking.add_argument(
        "--forget",
        action="store_true",
        help="end its session, too: what waits for it is dropped, and it is told of a gap later",
    )
    kicking.add_argument("--again", action="store_true", help="it may attach again by itself")
    kicking.add_argument("--reason", default="", help="what the client is told")


def _socket(arguments: argparse.Namespace) -> str:
    a = arguments
    if a.socket:
        return str(a.socket)
    if not a.config:
        raise UsageError("which broker? Give --config FILE, or --socket PATH")
    path = config.read(a.config).settings.admin
    if not path:
        raise UsageError(
            f"{a.config} has no admin socket: give it admin.socket, or a durability.directory"
        )
    return path


def list_all(arguments: argparse.Namespace) -> int:
    request = Request("sessions", broker=arguments.broker, client=arguments.pattern)
    found = asyncio.run(_list(ask(_socket(arguments), request), as_json=arguments.json))
    if not found:  # on stderr: stdout stays a list for programs to read
        like = f" of clients like {arguments.pattern}" if arguments.pattern else ""
        print(f"no sessions{like}", file=sys.stderr)
    return 0


async def _list(lines: AsyncIterator[bytes], *, as_json: bool) -> int:
    """Print them. Returns how many."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("broker", "client", "account", "state", "address"):
        table.add_column(name)
    for name in ("away", "backlog", "bytes", "subscriptions", "advertisements"):
        table.add_column(name, justify="right")
    count = 0
    async for line in lines:
        count += 1
        if as_json:
            print(line.decode().rstrip("\n"))
            continue
        one = msgspec.json.decode(line, type=SessionFacts)
        words = (one.broker, printable(one.client), printable(one.account), one.state, one.address)
        away = f"{one.away_s:.0f} s" if one.state == "away" else ""
        numbers = (one.backlog, one.backlog_bytes, one.subscriptions, one.advertisements)
        table.add_row(*words, away, *map(str, numbers))
    if count and not as_json:
        console = Console(width=None if Console().is_terminal else 160)
        with console.capture() as drawn:  # to `print`: on a broken pipe rich would exit by itself
            console.print(table)
        print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
    return count


def kick(arguments: argparse.Namespace) -> int:
    a = arguments
    request = Request(
        "kick", broker=a.broker, client=a.client, forget=a.forget, again=a.again, reason=a.reason
    )
    return asyncio.run(_kick(ask(_socket(a), request), as_json=a.json))


async def _kick(lines: AsyncIterator[bytes], *, as_json: bool) -> int:
    found = False
    results = [msgspec.json.decode(line, type=Kicked) async for line in lines]
    for one in results:
        done = bool(one.disconnected or one.forgotten)
        found |= done
        if as_json:
            print(msgspec.json.encode(one).decode())
        elif done or not _is_elsewhere(one, results):
            print(_told(one))
    return 0 if found else 1


def _is_elsewhere(one: Kicked, results: list[Kicked]) -> bool:
    """Whether another broker of the process has more to say about the client."""
    return not (one.away or one.moved_to) and any(
        other.disconnected or other.forgotten or other.away or other.moved_to
        for other in results
        if other is not one
    )


def _told(one: Kicked) -> str:
    client = printable(one.client)
    if one.forgotten:
        was = "disconnected" if one.disconnected else "away"
        return f"{client} was {was} at {one.broker}, and its session has ended"
    if one.disconnected:
        return f"{client} was disconnected at {one.broker}; its session stays"
    if one.away:
        return f"{client} is away from {one.broker}: --forget ends its session"
    if one.moved_to:
        return f"{client} is not at {one.broker}: it moved to {one.moved_to}"
    return f"{client} is not at {one.broker}"
