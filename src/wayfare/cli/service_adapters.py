"""`wayfare service adapters`: which systems the mobility service is for."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from wayfare.cli import service_options
from wayfare.service.catalogue import Entry, catalogue

EXAMPLES = """examples:
  wayfare service adapters           a table, in Markdown
  wayfare service adapters --json    the same as one JSON object
"""


def add_parser(parts: Any) -> None:
    one = service_options.part(
        parts,
        "adapters",
        "the systems that it is for, and what their adapters give and take",
        "List the adapters: addresses, what systems give, lines of code, and packages.",
        EXAMPLES,
        run,
    )
    one.add_argument("--json", action="store_true", help="print one JSON object")


def run(a: argparse.Namespace) -> int:
    found = catalogue()
    if a.json:
        print(json.dumps(msgspec.to_builtins(found)))
        return 0
    print("| adapter | addresses | gives | lines of code | Python package | Debian package |")
    print("| --- | --- | --- | ---: | --- | --- |")
    for one in found.adapters:
        schemes = ", ".join(f"`{scheme}://`" for scheme in one.schemes)
        print(
            f"| {one.name} | {schemes} | {_given(one)} | {one.lines} | {one.library} | {one.server} |"
        )
    print(f"| core | | | {found.core_lines} | | |")
    print(f"| hosts | | | {found.host_lines} | | |")
    print(f"| shared by adapters | | | {found.shared_lines} | | |")
    published = ", ".join(f"{name} {lines}" for name, lines in found.published.items())
    print(f"\nPublished (table 5): {published}.")
    return 0


def _given(one: Entry) -> str:
    traits = msgspec.structs.asdict(one.traits)
    words = [name.replace("_", " ") for name, has in traits.items() if has]
    if one.with_ids and not one.traits.carries_ids:
        words.append("carries ids by " + ", ".join(f"`{scheme}://`" for scheme in one.with_ids))
    return ", ".join(words)
