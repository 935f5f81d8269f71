"""`wayfare ban`: addresses, networks and names that brokers and proxies refuse for a time."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from wayfare.cli.groups import Group
from wayfare.net import bans
from wayfare.net.kinds import DURATION, DURATIONS_NS

EXAMPLES = """examples:
  wayfare ban add bans.jsonl 192.0.2.7 --for 1h --reason "guesses passwords"
  wayfare ban add bans.jsonl 2001:db8::/48              a whole network, for a day
  wayfare ban add bans.jsonl car-17 --for ever          the client or account of this name, until it is removed
  wayfare ban list bans.jsonl
  wayfare ban remove bans.jsonl car-17

Brokers with this file in their configuration (bans = "bans.jsonl"), and proxies with --bans, read it when it has
changed: banned peers are refused before their password is looked at, and those that are connected are
disconnected within seconds. A name that looks like an address is written name:192.0.2.7.
"""


def add_parser(commands: Any) -> None:
    group = Group(
        commands,
        "ban",
        help="refuse an address, a network or a name for a time",
        description="Add, remove or list bans in a file.",
        examples=EXAMPLES,
    )

    def part(name: str, help: str, run: Any) -> argparse.ArgumentParser:
        one = group.add(name, help, run)
        one.add_argument("file", type=Path, metavar="FILE", help="bans, in JSON lines")
        return one

    one = part("add", "ban an address, a network or a name", add)
    one.add_argument("target", metavar="TARGET", help="192.0.2.7, 192.0.2.0/24, or a name")
    one.add_argument(
        "--for",
        dest="seconds",
        type=duration,
        default=86_400.0,
        metavar="DURATION",
        help="30m, 12h or ever (default: 24h)",
    )
    one.add_argument("--reason", default="", metavar="TEXT", help="for operators, not for the peer")
    lifted = part("remove", "lift a ban", remove)
    lifted.add_argument("target", metavar="TARGET", help="as it was banned")
    listing = part("list", "list the bans that are in force", list_all)
    listing.add_argument("--json", action="store_true", help="one JSON object per line")


def duration(text: str) -> float | None:
    """Seconds; None: for ever."""
    if text == "ever":
        return None
    try:
        nanoseconds: int = DURATION.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: {error}") from None
    return nanoseconds / DURATIONS_NS["s"]


def add(arguments: argparse.Namespace) -> int:
    a = arguments
    ban = bans.add(a.file, a.target, a.seconds, a.reason, time.time())
    print(f"{ban.target} is banned {f'until {ban.ends}' if ban.until else 'until it is removed'}")
    return 0


def remove(arguments: argparse.Namespace) -> int:
    ban = bans.remove(arguments.file, arguments.target, time.time())
    print(f"{ban.target} is no longer banned")
    return 0


def list_all(arguments: argparse.Namespace) -> int:
    path, now = arguments.file, time.time()
    in_force = [ban for ban in bans.read(path) if not ban.is_over(now)]
    for ban in in_force:
        if arguments.json:
            print(
                json.dumps({"target": ban.target, "until": ban.ends or None, "reason": ban.reason})
            )
        else:
            print(f"{ban.target:30} {ban.ends or 'for ever':22} {ban.reason}".rstrip())
    if not in_force:
        _note_none(path)
    return 0


def _note_none(path: Path) -> None:
    """Explain on stderr why the list is empty: stdout stays a list for programs to read."""
    missing = not os.path.lexists(path)
    why = f"{path} does not exist: `wayfare ban add` creates it" if missing else f"none in {path}"
    print(f"no bans are in force ({why})", file=sys.stderr)
