"""What commands that run an experiment share: times, event logs, and figures for people."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

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
    console = Console()
    with console.capture() as drawn:  # to `print`: on a broken pipe rich would exit by itself
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().rstrip().splitlines()))


def or_dash(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)
