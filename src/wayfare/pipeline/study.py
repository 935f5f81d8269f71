"""A study from beginning to end: sweep, analyse, checks, report; `results` says what is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from wayfare.errors import PipelineError
from wayfare.pipeline import events, replay, report, results, sweep
from wayfare.pipeline.analyse import analyse, write
from wayfare.pipeline.spark import explained
from wayfare.studies import STUDIES
from wayfare.studies.study import Rows, Study

Progress = Callable[
    [str, int, int], object
]  # what is being done, how much, of how much; 0: unknown

LAST = "quantiles"  # the table that is written last
# Nobody says beforehand what is expected of what follows a client: all of it is extra.
FOLLOWED = {
    name: name
    for name in [
        "published",
        "duplicates",
        "order_violations",
        "gaps",
        "control",
        "notifications",
        "subs_max",
    ]
} | {"extra": "delivered"}
# Counts that both have, by the kind of simulation: how the analysis calls them, and the simulator.
COUNTS = {
    "roaming": {
        name: name
        for name in [
            "published",
            "expected",
            "lost",
            "duplicates",
            "order_violations",
            "gaps",
            "moves",
            "hops",
            "control",
            "notifications",
            "tunnelled",
            "acknowledgements",
            "moves_without_live",
            "subs_max",
            "ads_max",
        ]
    },
    "city": {name: name for name in ["expected", "delivered", "lost", "duplicates", "moves"]}
    | {"published": "probes", "entries": "control_total", "updates": "link_messages"},
    "location": FOLLOWED | {name: name for name in ["moves", "posted", "past"]},
    "blackout": FOLLOWED,
    "placement": {
        name: name
        for name in [
            "published",
            "duplicates",
            "order_violations",
            "gaps",
            "control",
            "notifications",
            "subs_max",
            "moves",
            "posted",
        ]
    },
    "service": {
        name: name
        for name in [
            "published",
            "expected",
            "lost",
            "duplicates",
            "order_violations",
            "gaps",
            "moves",
        ]
    },
    "live": {
        name: name for name in ["published", "lost", "duplicates", "order_violations", "gaps"]
    },
}


class Trace(msgspec.Struct, frozen=True):
    """A handover log whose clients are to be followed."""

    log: str
    columns: dict[str, str] = {}

    def words(self) -> str:
        named = ",".join(f"{name}={column}" for name, column in self.columns.items())
        return f" --trace {self.log}" + (f" --columns {named}" if named else "")


class Outcome(msgspec.Struct, frozen=True):
    study: str
    quick: bool
    runs: int
    failed: list[str]  # with the command that shows it
    checks: list[dict[str, Any]]
    written: list[str]  # files for people

    def broken(self) -> list[dict[str, Any]]:
        """Promises of ours that do not hold; a published shape that differs is a finding."""
        return [one for one in self.checks if one["source"] == "ours" and not one["holds"]]


def find(name: str) -> Study:
    if name not in STUDIES:
        raise PipelineError(f"unknown study {name!r}: choose one of {', '.join(STUDIES)}")
    return STUDIES[name]


def run(
    spark: SparkSession,
    study: Study,
    out: Path,
    *,
    quick: bool = False,
    trace: Trace | None = None,
    progress: Progress = lambda _doing, _done, _of: None,
) -> Outcome:
    """All of it. Whatever is in `out` already is used."""
    failed = simulate(
        spark,
        study,
        out,
        quick=quick,
        trace=trace,
        progress=lambda done, of: progress("simulating", done, of),
    )
    runs = results.read_runs(out)
    commands = [runs[one]["command"] for one in failed]
    if not sweep.finished(out):
        error = runs[failed[0]]["error"]
        raise PipelineError(f"every run failed, `{commands[0]}` with {error}")
    analyse_events(spark, out, lambda doing: progress(doing, 0, 0))
    progress("checking", 0, 0)
    checks = check(study, out)
    progress("drawing", 0, 0)
    written = [str(path) for path in report.write(out, study)]
    return Outcome(study.name, quick, len(runs), commands, checks, written)


def simulate(
    spark: SparkSession,
    study: Study,
    out: Path,
    *,
    quick: bool = False,
    trace: Trace | None = None,
    progress: sweep.Progress | None = None,
) -> list[str]:
    """All its runs that are not there yet; the runs that failed."""
    command = f"wayfare study {study.name}{' --quick' if quick else ''}"
    claim(out, results.About(study.name, quick, command + (trace.words() if trace else "")))
    ways = None
    if trace is not None and any(one.replayed for one in study.experiments):
        ways = str(replay.write(spark, trace.log, trace.columns, out))
    points = study.points(quick, ways)
    results.write_table(
        out / "points.parquet",
        results.POINTS,
        [
            {
                "experiment": one.name,
                "varied": one.varied,
                "x": json.dumps(x),
                "series": point.given[study.by_of(one)],
                "seed": point.given["seed"],
                "run": point.run_name(),
            }
            for one in study.experiments
            for x, point in points[one.name]
        ],
    )
    every = [point for of_one in points.values() for _, point in of_one]
    return sweep.run_points(spark, every, out, progress=progress)


def analyse_events(spark: SparkSession, out: Path, tell: Callable[[str], object]) -> None:
    """The tables of OUT/analysis, of the logs of all runs; unless no run is newer than they are."""
    last = results.analysis(out) / LAST / "_SUCCESS"
    newest = max((file.stat().st_mtime_ns for file in (out / "runs").iterdir()), default=0)
    if last.exists() and last.stat().st_mtime_ns >= newest:
        return
    log = events.read(spark, out / "events")
    with explained(f"the event logs in {out} cannot be analysed"), analyse(log, tell) as analysis:
        tell("writing the analysis")
        write(analysis, results.analysis(out))


def check(study: Study, out: Path) -> list[dict[str, Any]]:
    """Every check of every experiment, on the runs that did not fail."""
    rows_of = results.read_rows(out)
    checks = [agreement(out)]
    for one in study.experiments:
        rows = Rows(rows_of.get(one.name, []), study.by_of(one), one.varied)
        if one.replayed and not rows.rows:
            continue  # there is no log to follow
        for each in one.checks:
            try:
                if not rows.rows:
                    raise LookupError("no run of it is there")
                holds, measured = msgspec.structs.astuple(each.verdict(rows))
            except LookupError as error:
                holds, measured = False, f"cannot be judged: {error}"
            checks.append(
                {
                    "experiment": one.name,
                    "says": each.says,
                    "source": each.source,
                    "holds": holds,
                    "measured": measured,
                    "note": each.note,
                }
            )
    results.write_table(out / "checks.parquet", results.CHECKS, checks)
    return checks


def agreement(out: Path) -> dict[str, Any]:
    """Whether what the pipeline counts in the event log is what the simulator counts."""
    analysed = {row["run"]: row for row in results.read_analysed(out, "runs")}
    wrong, counted, runs = [], 0, 0
    for run, row in results.read_runs(out).items():
        if row["figures"] is None:
            continue
        figures, ours = json.loads(row["figures"]), analysed.get(run, {})
        runs += 1
        for name, theirs in COUNTS[row["kind"]].items():
            counted += 1
            if ours.get(name) != figures[theirs]:
                wrong.append(f"{run} has {theirs} {figures[theirs]}, analysed {ours.get(name)}")
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return {
        "experiment": report.EVERYWHERE,
        "says": "analysed counts equal each run's own summary",
        "source": "ours",
        "holds": not wrong,
        "measured": wrong[0] + more if wrong else f"{counted} equal counts in {runs} runs",
        "note": "",
    }


def claim(out: Path, about: results.About) -> None:
    """A folder is of one study: results of two would be mixed in its tables."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / "study.json").exists():
            there = results.read_about(out)
            if (there.study, there.quick) != (about.study, about.quick):
                raise PipelineError(
                    f"{out} has the results of `{there.command}` already: give another --out"
                )
        (out / "study.json").write_bytes(msgspec.json.encode(about))
    except OSError as error:
        raise PipelineError(f"{out} cannot take results: {error.strerror}") from None
