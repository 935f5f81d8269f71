"""`wayfare account`: the accounts of clients, in a file."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from pathlib import Path
from typing import Any

from wayfare.errors import UsageError
from wayfare.net import accounts

EXAMPLES = """examples:
  wayfare account add accounts.toml car-17          asks for the password, twice
  wayfare account add accounts.toml fleet --client "car-*" --subscribe "service = 'parking'"
  wayfare account add accounts.toml car-17 --password-stdin < password.txt
  wayfare account list accounts.toml
  wayfare account remove accounts.toml car-17

Passwords are kept as argon2 hashes. To add an account that is there gives it a new password. Brokers
read the file again when it has changed. What accounts are for: docs/security.md.
"""


def add_parser(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parts = commands.add_parser(
        "account",
        help="who may use brokers: add, remove or list accounts",
        description="Add, remove or list the accounts of clients in a file.",
        epilog=EXAMPLES,
        formatter_class=raw,
    ).add_subparsers(dest="what", metavar="COMMAND", required=True)

    def part(name: str, help: str, run: Any) -> argparse.ArgumentParser:
        one: argparse.ArgumentParser = parts.add_parser(
            name, help=help, description=f"{help[0].upper()}{help[1:]}.", epilog=EXAMPLES,
            formatter_class=raw,
        )  # fmt: skip
        one.add_argument("file", type=Path, metavar="FILE", help="accounts, in TOML")
        one.set_defaults(run=run)
        return one

    one = part("add", "add an account, or give it a new password", add)
    one.add_argument("name", metavar="NAME")
    one.add_argument(
        "--password-stdin", action="store_true", help="the first line of stdin is the password"
    )
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
    part("remove", "remove an account", remove).add_argument("name", metavar="NAME")
    listing = part("list", "list all accounts, and what they may do", list_all)
    listing.add_argument("--json", action="store_true", help="one JSON object a line")


def add(arguments: argparse.Namespace) -> int:
    a = arguments
    given = {"clients": a.client} | {verb: getattr(a, verb) for verb in accounts.LISTS}
    new = accounts.add(a.file, a.name, _password(a.name, a.password_stdin), given)
    print(f"added {a.name}" if new else f"{a.name} has a new password")
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
        granted = {
            verb: None if (filters := getattr(account, verb)) is None else [*map(str, filters)]
            for verb in accounts.LISTS
        }
        if arguments.json:
            print(json.dumps({"name": account.name, "clients": account.clients, **granted}))
            continue
        print(account.name)
        if account.clients:
            print(f"  clients    {', '.join(account.clients)}")
        for verb, texts in granted.items():
            print(f"  {verb:10} {'everything' if texts is None else '; '.join(texts) or 'nothing'}")
    return 0
