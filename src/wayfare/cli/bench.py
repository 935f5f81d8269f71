"""`wayfare bench`: how fast it is on this machine, in CPU time, beside a yardstick in the same run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import groupby
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from rich.console import Console

from wayfare.errors import UsageError

EXAMPLES = """examples:
  wayfare bench matching            notifications against 1k, 10k and 100k filters
  wayfare bench cover               covering tables against a scan
  wayfare bench hostile --json      how long one frame can hold the loop: a search for the worst
  wayfare bench sim --json          simulated messages beside a bare heap loop, and a whole city
  wayfare bench backlog             memory of notifications that wait for many clients
  wayfare bench memory --json       what hostile clients make a live broker keep, without and with a limit
  wayfare bench ahead               memory of virtual clients that listen ahead
  wayfare bench timers --json       what a timer costs among 1k, 10k and 100k sessions
  wayfare bench broker              a live broker beside mosquitto, if that is installed
  wayfare bench move                from attaching elsewhere to the first notification
  wayfare bench roam                1,000 clients among seven brokers for a minute
  wayfare bench sweep               simulations on Spark beside a pool of processes
  wayfare bench analyse             1 and 10 million deliveries on Spark beside DuckDB
  wayfare bench history             few notifications of an archive of many, on Spark
  wayfare bench jobs                what each job on Spark takes, at three sizes
"""

BENCHES = (
    "matching",
    "cover",
    "hostile",
    "sim",
    "backlog",
    "memory",
    "ahead",
    "timers",
    "broker",
    "move",
    "roam",
    "sweep",
    "analyse",
    "history",
    "jobs",
)
# A module is imported when it is asked for: some need Spark, and most do not.
MODULES = {"cover": "covering"}  # others are named as they are called
SEARCH = ("message", "routing", "seconds")  # options of bench hostile
GAPS = ("  ", " ")  # between two columns, the first that fits
QUICK: dict[str, dict[str, Any]] = {
    "matching": {"filters": (1000,)},
    "cover": {"filters": (1000,)},
    "move": {"subscriptions": (1, 10)},
    "history": {"sizes": (20_000,)},
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
    search = one.add_argument_group("bench hostile")
    search.add_argument("--message", help="search for attacks with this message only")
    search.add_argument("--routing", help="search for attacks on this routing strategy only")
    search.add_argument(
        "--seconds", type=float, help="CPU seconds of the search for each pair (default 20)"
    )
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    less = QUICK.get(arguments.what, {}) if arguments.quick else {}
    search = {name: value for name in SEARCH if (value := getattr(arguments, name)) is not None}
    if search and arguments.what != "hostile":
        raise UsageError(f"--{next(iter(search))} is for bench hostile")
    results = bench(arguments.what)(seed=arguments.seed, quick=arguments.quick, **less, **search)
    if arguments.json:
        for result in results:
            print(json.dumps(result), flush=True)
        return 0
    with Console(stderr=True).status(f"measuring {arguments.what} ..."):
        rows = list(results)
    print(draw(rows, get_terminal_size().columns))
    return 0


def bench(what: str) -> Callable[..., Iterator[dict[str, Any]]]:
    try:
        module = import_module(f"wayfare.bench.{MODULES.get(what, what)}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"bench {what} needs {error.name}, which is not installed: pip install 'wayfare[spark]'"
        ) from None
    run: Callable[..., Iterator[dict[str, Any]]] = module.run
    return run


def draw(rows: list[dict[str, Any]], width: int) -> str:
    """A table for each kind of row."""
    return "\n\n".join(_table(list(alike), width) for _, alike in groupby(rows, list))


def _table(rows: list[dict[str, Any]], width: int) -> str:
    """Rows with the same columns. If they are too wide each stands upright: no figure is cut."""
    names = [name.replace("_", " ") for name in rows[0]]
    cells = [["-" if value is None else str(value) for value in row.values()] for row in rows]
    columns = [_column(name, [row[i] for row in cells]) for i, name in enumerate(names)]
    for gap in GAPS:
        if _width(columns, gap) <= width:
            return _side_by_side(columns, gap)
    parts = []
    while cells:
        fit = len(cells)
        while fit > 1 and _width([names, *cells[:fit]], GAPS[0]) > width:
            fit -= 1
        parts.append(_side_by_side([names, *cells[:fit]], GAPS[0]))
        cells = cells[fit:]
    return "\n\n".join(parts)


def _column(name: str, cells: list[str]) -> list[str]:
    """Its name stands above it, in as many lines as it takes."""
    width = max(map(len, (*name.split(), *cells)))
    return [*wrap(name, width), "-" * width, *cells]


def _width(columns: list[list[str]], gap: str) -> int:
    return sum(max(map(len, column)) for column in columns) + len(gap) * (len(columns) - 1)


def _side_by_side(columns: list[list[str]], gap: str) -> str:
    """Level at the bottom; the first to the left, the others, mostly numbers, to the right."""
    high = max(map(len, columns))
    padded = []
    for i, column in enumerate(columns):
        wide = max(map(len, column))
        whole = [""] * (high - len(column)) + column
        padded.append([cell.rjust(wide) if i else cell.ljust(wide) for cell in whole])
    return "\n".join(gap.join(line).rstrip() for line in zip(*padded, strict=True))
