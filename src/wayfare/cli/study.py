"""`wayfare study`: a named experiment of the literature, on Spark, from simulations to a report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from wayfare.cli import jobs, study_live
from wayfare.errors import UsageError
from wayfare.studies import STUDIES

EXAMPLES = """examples:
  wayfare study                                   list the studies
  wayfare study relocation --quick --out reloc    a first look, in a minute or two
  wayfare study publishers --out publishers       all of it; the same command goes on after Ctrl-C
  wayfare study location --out DIR --trace taxis.parquet --columns time=at,from=old,to=new
  wayfare study service --live --quick --out DIR --systems mqtt,wayfare    on real servers, in minutes
  wayfare study publishers --out DIR --master spark://host:7077    on a cluster that shares DIR
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "study",
        help="a named study on Spark: simulations, analysis, report",
        description="Run the simulations of a study on Spark, analyse their event logs, check what was"
        " published and what is promised, and write a report. What is in the folder already is not"
        " run again.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("name", nargs="?", help=f"one of {', '.join(STUDIES)}")
    one.add_argument("--quick", action="store_true", help="fewer and smaller runs")
    one.add_argument("--out", type=Path, metavar="DIR", help="the folder of its results")
    one.add_argument(
        "--trace",
        metavar="LOG",
        help="of location: a handover log (see wayfare mine) to follow, too",
    )
    jobs.add_columns(one)
    study_live.add_options(one)
    one.add_argument("--json", action="store_true", help="print one JSON object")
    jobs.add_options(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        return _list(arguments.json)
    if arguments.live:
        return _tell(study_live.run(arguments, _bar), arguments.json)
    if arguments.systems is not None:
        raise UsageError("--systems are those of a live study: add --live")
    if arguments.name not in STUDIES:
        raise UsageError(f"unknown study {arguments.name!r}: choose one of {', '.join(STUDIES)}")
    if arguments.out is None:
        raise UsageError(f"where to? wayfare study {arguments.name} --out DIR")
    replayed = [one.name for one in STUDIES[arguments.name].experiments if one.replayed]
    if arguments.trace is not None and not replayed:
        raise UsageError(f"{arguments.name} follows nobody: leave --trace")
    if arguments.columns and arguments.trace is None:
        raise UsageError("--columns are those of a log: name it with --trace")
    jobs.need_spark()
    from wayfare.pipeline import analyse, spark, study

    chosen = study.find(arguments.name)
    console = Console(stderr=True)
    with console.status("starting Spark ..."):
        short = spark.SHORT if arguments.quick else {}
        session = spark.start(arguments.master, **analyse.SETTINGS, **short)
    trace = None if arguments.trace is None else study.Trace(arguments.trace, arguments.columns)
    with _bar(console) as progress:
        outcome = study.run(
            session, chosen, arguments.out, quick=arguments.quick, trace=trace, progress=progress
        )
    if replayed and trace is None:
        print(
            f"wayfare: {' and '.join(replayed)} not run, only random walks: --trace LOG names clients to"
            " follow",
            file=sys.stderr,
        )
    return _tell(outcome, arguments.json)


def _tell(outcome: Any, as_json: bool) -> int:
    if as_json:
        print(json.dumps(msgspec.to_builtins(outcome)))
    else:
        _show(outcome)
    return 1 if outcome.failed or outcome.broken() else 0


class Rate(ProgressColumn):
    """Runs a second, of those that were not there before."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "", style="progress.data.speed")


@contextmanager
def _bar(console: Console) -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("simulating", total=None)

        def show(doing: str, done: int, of: int) -> None:
            bar.update(task, description=doing, completed=done if of else None, total=of or None)

        yield show


def _list(as_json: bool) -> int:
    if as_json:
        print(json.dumps({name: one.about for name, one in STUDIES.items()}))
        return 0
    for name, one in STUDIES.items():
        print(f"{name:<12}{one.about}")
        for quick in (True, False):
            points = {p.run_name() for of_one in one.points(quick).values() for _, p in of_one}
            print(f"{'':<12}{len(points)} simulations{' with --quick' if quick else ''}")
    print("\nwayfare study NAME --quick --out DIR runs one.")
    return 0


def _show(outcome: Any) -> None:
    here = None
    for one in outcome.checks:
        if one["experiment"] != here:
            here = one["experiment"]
            print(here)
        mark = "holds " if one["holds"] else ("BROKEN" if one["source"] == "ours" else "differs")
        print(f"  {mark:<8}{one['source']:<10}{one['says']}: {one['measured']}")
        if one["note"] and not one["holds"]:
            print(f"{'':<20}({one['note']})")
    held = sum(one["holds"] for one in outcome.checks)
    print(f"\n{outcome.runs} runs, {held} of {len(outcome.checks)} checks hold")
    for command in outcome.failed:
        print(f"failed: {command}", file=sys.stderr)
    for path in outcome.written:
        print(path)
