"""What commands that run an experiment share: times, event logs, and figures for people."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from wayfare import eventlog
from wayfare.errors import UsageError
from wayfare.sim.links import MS_NS


def milliseconds(text: str) -> int:
    """Nanoseconds."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give milliseconds, like 500")
    return int(value * MS_NS)


@contextmanager
def log_to(
    path: Path | None, run: str
) -> Iterator[Callable[[Iterable[eventlog.Event]], None] | None]:
    """What writes events there; None: no log is asked for."""
    if path is None:
        yield None
        return
    if path.suffix not in eventlog.WRITERS:
        raise UsageError(f"--log {path}: the name has to end in {' or '.join(eventlog.WRITERS)}")
    if not path.parent.is_dir():
        raise UsageError(f"--log {path}: there is no folder {path.parent}")
    try:
        with eventlog.writer(path, run) as file:
            yield file.write
    except OSError as error:
        raise UsageError(f"--log {path}: cannot be written: {error.strerror}") from None


def print_pairs(rows: list[tuple[str, str]]) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    for what, figure in rows:
        table.add_row(what, figure)
    drawn = io.StringIO()  # to `print`: on a broken pipe rich would exit by itself
    Console(file=drawn).print(table)
    print("\n".join(line.rstrip() for line in drawn.getvalue().rstrip().splitlines()))


def or_dash(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


# Commands whose options are the parameters of an experiment


def parser(commands: Any, name: str, about: str, examples: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(
        f"sim-{name}",
        prog=f"wayfare sim {name}",
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.add_argument("--log", type=Path, metavar="FILE", help="write the event log there")
    return one


def option(
    one: argparse.ArgumentParser, name: str, about: str, default: object, **how: Any
) -> None:
    one.add_argument(name, help=f"{about} (default {default})", **how)


def time(one: argparse.ArgumentParser, name: str, about: str, default_ns: int | None) -> None:
    how = {"dest": f"{name.strip('-').replace('-', '_')}_ns", "type": milliseconds, "metavar": "MS"}
    default = "none" if default_ns is None else default_ns // MS_NS
    option(one, name, f"{about}, in ms", default, **how)


def given(a: argparse.Namespace, *others: str) -> dict[str, Any]:
    """Options are named as parameters are, but for these others."""
    ours = ("run", "command", "json", "log", *others)
    return {
        name: value for name, value in vars(a).items() if value is not None and name not in ours
    }


def tell(as_json: bool, figures: Any, title: str, rows: list[tuple[str, str]]) -> int:
    """For programs, or the same for people."""
    if as_json:
        print(json.dumps(msgspec.to_builtins(figures)))
    else:
        print(title)
        print_pairs(rows)
    return 0
