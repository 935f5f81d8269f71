"""What all commands that run on Spark have in common."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from importlib import import_module
from math import inf
from pathlib import Path

from wayfare.errors import PipelineError


def add_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--master",
        metavar="URL",
        help="where Spark runs: local[2], spark://host:7077, yarn ... (default: local[*], which is"
        " this machine, or what spark-submit says)",
    )


def need_spark(part: str = "spark") -> None:
    """Spark is an extra of the package: whoever lacks it is told so before anything is done."""
    try:
        import_module(f"wayfare.pipeline.{part}")
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"this command is of the data pipeline, and {error.name} is not installed: pip install"
            " 'wayfare[spark]'"
        ) from None


def size(paths: Iterable[str]) -> float:
    """Bytes of these files and folders; infinite if one of them is elsewhere."""
    total = 0.0
    for path in map(Path, paths):
        if not path.exists():
            return inf
        files = path.rglob("*") if path.is_dir() else [path]
        total += sum(file.stat().st_size for file in files if file.is_file())
    return total


def add_columns(command: argparse.ArgumentParser) -> None:
    """Of a handover log."""
    command.add_argument(
        "--columns",
        type=_columns,
        default={},
        metavar="NAME=COLUMN,...",
        help="what client, time, from and to are called in the log",
    )


def _columns(text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in text.split(",")]
    if not all(name and column for name, _, column in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} names no columns: give them like client=cab,time=at,from=old,to=new"
        )
    return {name.strip(): column.strip() for name, _, column in parts}
