"""`wayfare sessions`: the sessions of clients at running brokers, and how to end them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from wayfare.cli.groups import Group
from wayfare.errors import UsageError
from wayfare.net import config
from wayfare.net.admin import Request, ask
from wayfare.net.admin_client import AdminClient, Missing
from wayfare.net.logs import printable
from wayfare.net.sessions import ELSEWHERE, STATES, Kicked, SessionDetails, SessionFacts

T = TypeVar("T")

EXAMPLES = """examples:
  wayfare sessions list --config site.toml              all sessions of this broker
  wayfare sessions list "car-*" --state away --socket store/admin.sock --json
  wayfare sessions show car-17 --config site.toml       what waits for it, since when, until when
  wayfare sessions remove car-17 --config site.toml     its session ends, with what waits for it
  wayfare sessions kick car-17 --config site.toml       disconnect it; its application gets the reason
  wayfare sessions kick car-17 --again --config site.toml         ... and it may come back by itself
  wayfare sessions list --url https://porto.example:9420 --token-file token --ca ca.pem
  wayfare sessions kick car-17 --url https://porto.example:9420 --token-file token --ca ca.pem

The command speaks to a running broker over its admin socket: admin.sock beside its store, or where admin.socket
in its file says. Only the user that runs the broker may use it, and root. With --url it speaks to the admin API
of a broker anywhere (admin.listen), and needs a token. The exit code is 1 if the client is not there; then the
command says where it went, if that is known.
"""


def add_parser(commands: Any) -> None:
    group = Group(
        commands,
        "sessions",
        help="list the sessions of running brokers, or end one",
        description="List the sessions of clients at running brokers, show one, or end it.",
        examples=EXAMPLES,
    )

    def part(name: str, help: str, run: Any) -> argparse.ArgumentParser:
        one = group.add(name, help, run)
        one.add_argument(
            "--config", metavar="FILE", help="the configuration of the broker, or of a network"
        )
        one.add_argument("--socket", metavar="PATH", help="its admin socket, instead")
        one.add_argument("--url", metavar="URL", help="its admin API, instead: https://host:port")
        one.add_argument("--token-file", metavar="FILE", help="its first line has the token")
        one.add_argument(
            "--ca", default="", metavar="FILE", help="the CA that signed the broker's certificate"
        )
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
    listing.add_argument("--state", default="", choices=STATES, help="only those")
    showing = part("show", "show everything about the session of a client", show)
    showing.add_argument("client", metavar="CLIENT")
    removing = part("remove", "end the session of a client, and drop what waits for it", remove)
    removing.add_argument("client", metavar="CLIENT")
    removing.add_argument("--reason", default="", help="what the client is told")
    kicking = part("kick", "disconnect a client", kick)
    kicking.add_argument("client", metavar="CLIENT")
    kicking.add_argument(
        "--forget",
        action="store_true",
        help="end its session, too: what waits for it is dropped, and it is told of a gap later",
    )
    kicking.add_argument("--again", action="store_true", help="it may attach again by itself")
    kicking.add_argument("--reason", default="", help="what the client is told")


def _client(arguments: argparse.Namespace) -> AdminClient | None:
    """Speaks to the admin API, if that is where to ask."""
    a = arguments
    if not a.url:
        if a.token_file or a.ca:
            raise UsageError("--token-file and --ca are for the admin API: give --url, too")
        return None
    if a.config or a.socket:
        raise UsageError("which is it? Give --url, or --config, or --socket")
    return AdminClient(a.url, a.token_file, a.ca)


def _socket(arguments: argparse.Namespace) -> str:
    a = arguments
    if a.socket:
        return str(a.socket)
    if not a.config:
        raise UsageError("which broker? Give --config FILE, --socket PATH or --url URL")
    path = config.read(a.config).settings.admin
    if not path:
        raise UsageError(
            f"{a.config} has no admin socket: give it admin.socket, or a durability.directory"
        )
    return path


def list_all(arguments: argparse.Namespace) -> int:
    a = arguments
    there = _client(a)
    if there is not None:
        query = {"client": a.pattern, "state": a.state, "broker": a.broker}
        try:
            found = _list(there.sessions(query), as_json=a.json)
        except Missing as missing:
            raise UsageError(str(missing)) from None
    else:
        request = Request("sessions", broker=a.broker, client=a.pattern, state=a.state)
        lines = asyncio.run(_gathered(ask(_socket(a), request)))
        found = _list(_decoded(lines, SessionFacts), as_json=a.json)
    if not found:  # on stderr: stdout stays a list for programs to read
        like = f" of clients like {arguments.pattern}" if arguments.pattern else ""
        print(f"no sessions{like}", file=sys.stderr)
    return 0


async def _gathered(lines: AsyncIterator[bytes]) -> list[bytes]:
    return [line async for line in lines]


def _decoded(lines: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    return (msgspec.json.decode(line, type=kind) for line in lines)


def _list(sessions: Iterable[SessionFacts], *, as_json: bool) -> int:
    """Print them. Returns how many."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("broker", "client", "account", "state", "address"):
        table.add_column(name)
    for name in ("away", "expires in", "backlog", "bytes", "subscriptions", "advertisements"):
        table.add_column(name, justify="right")
    count = 0
    for one in sessions:
        count += 1
        if as_json:
            print(msgspec.json.encode(one).decode())
            continue
        words = (one.broker, printable(one.client), printable(one.account), one.state, one.address)
        away = f"{one.away_s:.0f} s" if one.state == "away" else ""
        expires = "" if one.expires_s is None else f"{one.expires_s:.0f} s"
        numbers = (one.backlog, one.backlog_bytes, one.subscriptions, one.advertisements)
        table.add_row(*words, away, expires, *map(str, numbers))
    if count and not as_json:
        console = Console(width=None if Console().is_terminal else 160)
        with console.capture() as drawn:  # to `print`: on a broken pipe rich would exit by itself
            console.print(table)
        print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
    return count


def show(arguments: argparse.Namespace) -> int:
    a = arguments
    there = _client(a)
    if there is not None:
        try:
            known = there.session(a.client, a.broker)
        except Missing as missing:
            print(missing, file=sys.stderr)
            return 1
    else:
        request = Request("session", broker=a.broker, client=a.client)
        lines = asyncio.run(_gathered(ask(_socket(a), request)))
        known = list(_decoded(lines, SessionDetails))
    here = [one for one in known if one.state != ELSEWHERE]
    for number, one in enumerate(here or known):
        if a.json:
            print(msgspec.json.encode(one).decode())
        elif one.state == ELSEWHERE:
            print(f"{printable(one.client)} is not at {one.broker}: it moved to {one.moved_to}")
        else:
            print("\n".join(["" for _ in range(bool(number))] + list(_described(one))))
    if not known:
        print(f"{printable(a.client)} has no session here", file=sys.stderr)
    return 0 if here else 1


def _described(one: SessionDetails) -> Iterator[str]:
    waits = f"{one.backlog} notifications, {one.backlog_bytes} bytes"
    if one.backlog:
        waits += f", the oldest for {one.oldest_s:.0f} s"
    ends = f"after {one.expiry_s:.0f} s away"
    if one.expires_s is not None:
        ends = f"{one.expires}, in {one.expires_s:.0f} s"
    account = [("account", printable(one.account))] if one.account else []
    address = f" from {one.address}" if one.address else ""
    for name, value in (
        ("client", printable(one.client)),
        *account,
        ("broker", one.broker),
        ("state", f"{one.state}{address}, since {one.since} ({one.since_s:.0f} s)"),
        ("expires", ends),
        ("waiting", waits),
        ("epoch", str(one.epoch)),
    ):
        yield f"{name:<14} {value}"
    for name, count, some in (
        ("subscribes to", one.subscriptions, one.wants),
        ("advertises", one.advertisements, one.offers),
    ):
        for text in some:
            yield f"{name:<14} {printable(text)}"
        if count > len(some):
            yield f"{name:<14} ... and {count - len(some)} more"


def remove(arguments: argparse.Namespace) -> int:
    a = arguments
    there = _client(a)
    if there is None:
        request = Request("kick", broker=a.broker, client=a.client, forget=True, reason=a.reason)
        return _ended(_kicked(a, request), as_json=a.json)
    try:
        return _ended(there.remove(a.client, a.broker, a.reason), as_json=a.json)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1


def kick(arguments: argparse.Namespace) -> int:
    a = arguments
    flags = {"forget": a.forget, "again": a.again}
    there = _client(a)
    if there is None:
        request = Request("kick", broker=a.broker, client=a.client, reason=a.reason, **flags)
        return _ended(_kicked(a, request), as_json=a.json)
    try:
        return _ended(there.kick(a.client, a.broker, a.reason, **flags), as_json=a.json)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1


def _kicked(arguments: argparse.Namespace, request: Request) -> list[Kicked]:
    lines = asyncio.run(_gathered(ask(_socket(arguments), request)))
    return list(_decoded(lines, Kicked))


def _ended(results: list[Kicked], *, as_json: bool) -> int:
    """Print what came of it at each broker. Returns the exit code."""
    found = False
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
