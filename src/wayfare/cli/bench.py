"""`wayfare bench`: how fast it is on this machine, in CPU time, beside a yardstick in the same run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from wayfare.bench import backlog, covering, matching, sim

EXAMPLES = """examples:
  wayfare bench matching            notifications against 1k, 10k and 100k filters
  wayfare bench cover               covering tables against a scan
  wayfare bench sim --json          simulated messages beside a bare heap loop
  wayfare bench backlog             memory of notifications that wait for many clients
"""

BENCHES: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "matching": matching.run,
    "cover": covering.run,
    "sim": sim.run,
    "backlog": backlog.run,
}
QUICK: dict[str, dict[str, Any]] = {
    "matching": {"filters": (1000,)},
    "cover": {"filters": (1000,)},
    "sim": {},
    "backlog": {},
}


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "bench",
        help="measure this machine",
        description="Measure in CPU time. Compare ratios within one run, not figures between runs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("what", choices=BENCHES)
    one.add_argument("--json", action="store_true", help="one JSON object per line, as measured")
    one.add_argument("--quick", action="store_true", help="less of it, for a first look")
    one.add_argument("--seed", type=int, default=1, help="of the workload (default 1)")
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    less = QUICK[arguments.what] if arguments.quick else {}
    results = BENCHES[arguments.what](seed=arguments.seed, quick=arguments.quick, **less)
    if arguments.json:
        for result in results:
            print(json.dumps(result), flush=True)
        return 0
    with Console(stderr=True).status(f"measuring {arguments.what} ..."):
        rows = list(results)
    table = Table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row.values()))
    console = Console()
    with console.capture() as drawn:  # to `print`: on a broken pipe rich would exit by itself
        console.print(table)
    print(drawn.get(), end="")
    return 0
