"""`wayfare doctor`: what is wrong with a configuration, or with brokers that run, and what to do."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from wayfare.cli import running
from wayfare.errors import UsageError
from wayfare.net.checks import FAIL, LEVELS, Finding
from wayfare.net.doctor import TIMEOUT_S, Doctor

EXAMPLES = """examples:
  wayfare doctor --config site.toml             the file, its neighbours, its disk, and the broker
  wayfare doctor --config a.toml --config b.toml    ... and whether these two fit together
  wayfare doctor 127.0.0.1:7410 wayfares://b.example --ca ca.pem    who is there
  wayfare doctor http://127.0.0.1:9410          what a process tells of its brokers

One line for each finding: ok, warn or fail. The exit code is 1 if anything fails.
"""
COLOURS = dict(zip(LEVELS, ("green", "yellow", "red"), strict=True))


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "doctor",
        help="what is wrong with a configuration or a network",
        description="Check configurations and running brokers, and say what to do.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "places",
        nargs="*",
        metavar="ADDRESS",
        help="of a broker, http://host:port where a status is told, or a configuration",
    )
    one.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="a configuration, and what it says of others; may be given several times",
    )
    one.add_argument("--ca", default="", metavar="FILE", help="who signs for wayfares:// addresses")
    one.add_argument(
        "--timeout",
        type=running.seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"for each address (default {TIMEOUT_S:g})",
    )
    one.add_argument("--json", action="store_true", help="one JSON object a line, a finding each")
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.config and not arguments.places:
        raise UsageError("nothing to examine: give --config FILE, or addresses of brokers")
    doctor = Doctor(ca=arguments.ca, timeout_s=arguments.timeout)
    findings = asyncio.run(doctor.examine(arguments.config, arguments.places))
    for one in findings:
        print(json.dumps(msgspec.to_builtins(one)) if arguments.json else _line(one))
    return 1 if any(one.level == FAIL for one in findings) else 0


def _line(one: Finding) -> str:
    console = Console()
    with console.capture() as drawn:  # to `print`: on a broken pipe rich would exit by itself
        console.print(
            Text(f"{one.level:<4}", COLOURS[one.level]) + Text(f"  {one.about}: {one.says}"),
            soft_wrap=True,
        )
    return drawn.get().rstrip("\n")
