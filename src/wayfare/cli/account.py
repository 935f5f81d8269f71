"""`wayfare account`: the accounts of clients, in a file."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from wayfare.cli.groups import Group
from wayfare.core.filters import Filter
from wayfare.errors import UsageError
from wayfare.net import accounts
from wayfare.net.accounts import KEPT
from wayfare.net.kinds import DURATION, DURATIONS_NS, SIZES, Kind, written
from wayfare.net.quotas import QUOTAS

EXAMPLES = """examples:
  wayfare account add accounts.toml car-17          asks for the password, twice
  wayfare account add accounts.toml fleet --client "car-*" --subscribe "service = 'parking'"
  wayfare account add accounts.toml car-17 --password-stdin < password.txt
  wayfare account add accounts.toml sensors --deny-publish "level > 5" --publications-per-second 100
  wayfare account add accounts.toml guests --client "guest-*" --sessions 1000 --memory 64MiB
  wayfare account list accounts.toml
  wayfare account show accounts.toml car-17
  wayfare account rotate accounts.toml car-17 --for 7d     a new password; the old one counts for a week
  wayfare account rotate accounts.toml car-17 --finish     from now on, only the new one counts
  wayfare account remove accounts.toml car-17

Passwords are kept as argon2 hashes. To add an account that is there gives it a new password at once: its clients
are disconnected; `rotate` gives them time. Brokers notice within seconds when the file has changed, and hold
attached clients to it. What accounts are for: docs/security.md.
"""


def add_parser(commands: Any) -> None:
    group = Group(
        commands,
        "account",
        help="who may use brokers: add, remove, rotate, show or list accounts",
        description="Add, remove, show or list the accounts of clients in a file, and rotate passwords.",
        examples=EXAMPLES,
    )

    def part(name: str, help: str, run: Any) -> argparse.ArgumentParser:
        one = group.add(name, help, run)
        one.add_argument("file", type=Path, metavar="FILE", help="accounts, in TOML")
        return one

    one = part("add", "add an account, or give it a new password", add)
    one.add_argument("name", metavar="NAME")
    _add_password(one)
    one.add_argument(
        "--client",
        action="append",
        metavar="PATTERN",
        help="names that its clients may have beside its own; * and ? stand for others",
    )
    for verb in accounts.LISTS:
        one.add_argument(
            f"--{verb}", action="append", metavar="FILTER", help=f"it may only {verb} this"
        )
        one.add_argument(
            f"--deny-{verb}",
            action="append",
            metavar="FILTER",
            help=f"it may not {verb} this, whatever else it may",
        )
    one.add_argument(
        "--deny-client",
        action="append",
        metavar="PATTERN",
        help="names that --client does not mean",
    )
    for key, about in QUOTAS.items():
        one.add_argument(
            f"--{key.replace('_', '-')}",
            type=partial(_size, KEPT[key]) if key in KEPT else _quota,
            metavar="SIZE" if key in KEPT else "N",
            help=f"quota: {about}; 0: none",
        )
    part("remove", "remove an account", remove).add_argument("name", metavar="NAME")
    rotating = part("rotate", "give an account a new password beside the one it has", rotate)
    rotating.add_argument("name", metavar="NAME")
    _add_password(rotating)
    rotating.add_argument(
        "--for",
        dest="lasting",
        type=_lasting,
        metavar="DURATION",
        help="how long the previous password counts, like 12h or 7d (default: until --finish)",
    )
    rotating.add_argument(
        "--finish", action="store_true", help="end the rotation: the previous password is dropped"
    )
    showing = part("show", "show one account, and what it may do", show)
    showing.add_argument("name", metavar="NAME")
    showing.add_argument("--json", action="store_true", help="as a JSON object")
    listing = part("list", "list all accounts, and what they may do", list_all)
    listing.add_argument("--json", action="store_true", help="one JSON object a line")


def _add_password(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--password-stdin", action="store_true", help="the first line of stdin is the password"
    )


def _quota(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a quota: give a whole number, 0 is none")
    return int(text)


def _size(kind: Kind, text: str) -> str | int:
    """As it is written to the file: a share means that of the machine where the broker runs."""
    value = int(text) if text.isdecimal() else text
    try:
        kind.read(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: {error}") from None
    return value


def _lasting(text: str) -> float:
    """A duration, in seconds."""
    try:
        value: int = DURATION.read(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: {error}") from None
    return value / DURATIONS_NS["s"]


def add(arguments: argparse.Namespace) -> int:
    a = arguments
    given = {"clients": a.client, "deny_clients": a.deny_client}
    given |= {key: getattr(a, key) for key in (*accounts.LISTS, *accounts.DENY_LISTS)}
    quota = {key: getattr(a, key) for key in QUOTAS}
    new = accounts.add(a.file, a.name, _password(a.name, a.password_stdin), given, quota)
    print(f"added {a.name}" if new else f"{a.name} has a new password")
    return 0


def rotate(arguments: argparse.Namespace) -> int:
    a = arguments
    if a.finish:
        accounts.finish_rotation(a.file, a.name)
        print(f"{a.name} has one password again")
        return 0
    expires = accounts.rotate(a.file, a.name, _password(a.name, a.password_stdin), a.lasting)
    until = f"until {expires:%Y-%m-%d %H:%M:%S} UTC" if expires else "until --finish"
    print(f"{a.name} has a new password; the previous one counts {until}")
    return 0


def _password(name: str, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask for a password: give --password-stdin")
    first = getpass.getpass(f"Password for {name}: ")
    again = getpass.getpass("Once more: ")
    if first != again:
        raise UsageError("these were two different passwords: try again")
    return first


def remove(arguments: argparse.Namespace) -> int:
    accounts.remove(arguments.file, arguments.name)
    print(f"removed {arguments.name}")
    return 0


def list_all(arguments: argparse.Namespace) -> int:
    for account in accounts.read(arguments.file).values():
        _print(account, as_json=arguments.json)
    return 0


def show(arguments: argparse.Namespace) -> int:
    account = accounts.read(arguments.file).get(arguments.name)
    if account is None:
        raise UsageError(f"there is no account {arguments.name} in {arguments.file}")
    _print(account, as_json=arguments.json)
    return 0


def _print(account: accounts.Account, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_facts(account)))
        return
    print(account.name)
    if account.clients:
        print(f"  clients    {', '.join(account.clients)}")
    for verb in accounts.LISTS:
        texts = _texts(getattr(account, verb))
        print(f"  {verb:10} {'everything' if texts is None else '; '.join(texts) or 'nothing'}")
    for key in accounts.DENY_LISTS:
        if denied := _texts(getattr(account, key)):
            print(f"  {key:15} {'; '.join(denied)}")
    if account.deny_clients:
        print(f"  deny_clients    {', '.join(account.deny_clients)}")
    for key, value in _quotas(account).items():
        shown = written(value, SIZES) if key in KEPT and value else value
        print(f"  {key} {shown or 'unlimited'}")
    if account.previous_password:
        print(f"  previous password counts {_until(account)}")


def _facts(account: accounts.Account) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": account.name, "clients": account.clients}
    facts |= {verb: _texts(getattr(account, verb)) for verb in accounts.LISTS}
    denied = {key: _texts(getattr(account, key)) for key in accounts.DENY_LISTS}
    others: dict[str, Any] = {**denied, "deny_clients": account.deny_clients, **_quotas(account)}
    if account.previous_password:
        others["previous_password_counts"] = _until(account)
    return facts | {key: value for key, value in others.items() if value or value == 0}


def _texts(filters: tuple[Filter, ...] | None) -> list[str] | None:
    return None if filters is None else [*map(str, filters)]


def _quotas(account: accounts.Account) -> dict[str, int]:
    found = msgspec.structs.asdict(account.quota)
    return {key: value for key, value in found.items() if value is not None}


def _until(account: accounts.Account) -> str:
    if not account.previous_expires:
        return "until `wayfare account rotate --finish`"
    return f"until {datetime.fromtimestamp(account.previous_expires, UTC):%Y-%m-%dT%H:%M:%SZ}"
