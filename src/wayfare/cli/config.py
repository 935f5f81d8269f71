"""`wayfare config`: what is wrong with a configuration, and what may be in one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from wayfare.errors import ConfigError
from wayfare.net import checks, config, config_keys, configured

EXAMPLES = """examples:
  wayfare config check site.toml            the configuration of a broker, or a network
  wayfare config check city.toml --json     {"file": ..., "mistakes": [...]}
  wayfare config keys                       every key, its default, and what it says
"""


def add_parser(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parts = commands.add_parser(
        "config",
        help="check a configuration, or list its keys",
        description="Check the configuration of a broker or network, or list all keys.",
        epilog=EXAMPLES,
        formatter_class=raw,
    ).add_subparsers(dest="what", metavar="COMMAND", required=True)
    one = parts.add_parser(
        "check",
        help="what is wrong with a file",
        description="Tell all mistakes of a file, with their lines (exit code 2), or that it is fine."
        " Warnings are for what a broker runs with although it makes little sense.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    one.add_argument("file", type=Path, metavar="FILE")
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.set_defaults(run=check)
    keys = parts.add_parser(
        "keys",
        help="every key",
        description="Every key, its default, and what it says; docs/configuration.md has the same.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    keys.add_argument("--json", action="store_true", help="one JSON object a line")
    keys.set_defaults(run=list_keys)


def check(arguments: argparse.Namespace) -> int:
    mistakes: tuple[Any, ...] = ()
    warnings: list[Any] = []
    try:
        found = config.read(arguments.file)
        mistakes = (*checks.mistakes(arguments.file, found.settings),)
        warnings = checks.warnings(arguments.file, found.settings)
    except ConfigError as error:
        mistakes = error.mistakes
    if arguments.json:
        facts = {"mistakes": msgspec.to_builtins(mistakes)}
        facts |= {"warnings": msgspec.to_builtins(warnings)} if warnings else {}
        print(json.dumps({"file": str(arguments.file), **facts}))
        return 2 if mistakes else 0
    for one in warnings:
        print(f"warning: {one}", file=sys.stderr)
    if mistakes:
        print("\n".join(map(str, mistakes)))
    elif isinstance(found, configured.Broker):
        print(f"{arguments.file} is fine: the broker {found.name} at {found.listen}")
    else:
        print(f"{arguments.file} is fine: a network of {len(found.brokers)} brokers")
    return 2 if mistakes else 0


def list_keys(arguments: argparse.Namespace) -> int:
    for row in config_keys.rows():
        if arguments.json:
            print(json.dumps(row))
        else:
            print(f"{row['key']:<22} {row['default']:<18} {row['about']}")
    return 0
