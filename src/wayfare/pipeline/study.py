"""A study from beginning to end: sweep, analyse, checks; the report is made from what is left behind.

OUT/study.json       which study, whether quick, and the command
OUT/points.parquet   POINTS: which run is which point of which experiment
OUT/runs, events     see `sweep`
OUT/analysis         see `analyse`
OUT/checks.parquet   CHECKS: what was published or promised, and whether it holds
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from wayfare.errors import PipelineError
from wayfare.pipeline import sweep
from wayfare.studies import STUDIES
from wayfare.studies.study import Row, Rows, Study

Progress = Callable[
    [str, int, int], object
]  # what is being done, how much, of how much; 0: unknown

POINTS = pa.schema(
    [
        pa.field("experiment", pa.string(), nullable=False),
        pa.field("varied", pa.string(), nullable=False),  # the parameter
        pa.field("x", pa.string(), nullable=False),  # its value, as JSON
        pa.field("series", pa.string(), nullable=False),  # the strategy
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("run", pa.string(), nullable=False),
    ]
)
CHECKS = pa.schema(
    [
        pa.field("experiment", pa.string(), nullable=False),
        pa.field("says", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),  # published, ours
        pa.field("holds", pa.bool_(), nullable=False),
        pa.field("measured", pa.string(), nullable=False),
        pa.field("note", pa.string(), nullable=False),
    ]
)


class About(msgspec.Struct, frozen=True):
    """What OUT is of."""

    study: str
    quick: bool
    command: str


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
    progress: Progress = lambda _doing, _done, _of: None,
) -> Outcome:
    """All of it. Whatever is in `out` already is used."""
    failed = simulate(
        spark,
        study,
        out,
        quick=quick,
        progress=lambda done, of: progress("simulating", done, of),
    )
    progress("checking", 0, 0)
    checks = check(spark, study, out)
    runs = {row.run: row.command for row in sweep.read_runs(spark, out).collect()}
    return Outcome(study.name, quick, len(runs), [runs[one] for one in failed], checks, [])


def simulate(
    spark: SparkSession,
    study: Study,
    out: Path,
    *,
    quick: bool = False,
    progress: sweep.Progress | None = None,
) -> list[str]:
    """All its runs that are not there yet; the runs that failed."""
    points = study.points(quick)
    _claim(
        out, About(study.name, quick, f"wayfare study {study.name}{' --quick' if quick else ''}")
    )
    _write(
        out / "points.parquet",
        POINTS,
        [
            {
                "experiment": one.name,
                "varied": one.varied,
                "x": json.dumps(x),
                "series": point.given[study.by],
                "seed": point.given["seed"],
                "run": point.run_name(),
            }
            for one in study.experiments
            for x, point in points[one.name]
        ],
    )
    every = [point for of_one in points.values() for _, point in of_one]
    return sweep.run_points(spark, every, out, progress=progress)


def check(spark: SparkSession, study: Study, out: Path) -> list[dict[str, Any]]:
    """Every check of every experiment, on the runs that did not fail."""
    results = read_rows(spark, out)
    checks = []
    for one in study.experiments:
        rows = Rows(results.get(one.name, []), study.by, one.varied)
        for each in one.checks:
            try:
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
    _write(out / "checks.parquet", CHECKS, checks)
    return checks


def read_rows(spark: SparkSession, out: Path) -> dict[str, list[Row]]:
    """By experiment: parameters and figures of its runs, and what is varied under its own name."""
    runs = {row.run: row for row in sweep.read_runs(spark, out).collect()}
    rows: dict[str, list[Row]] = {}
    for point in pq.read_table(out / "points.parquet").to_pylist():
        run = runs.get(point["run"])
        if run is None or run.figures is None:
            continue
        facts = json.loads(run.parameters) | json.loads(run.figures)
        facts |= {point["varied"]: json.loads(point["x"]), "run": run.run, "command": run.command}
        rows.setdefault(point["experiment"], []).append(facts)
    return rows


def read_about(out: Path) -> About:
    try:
        return msgspec.json.decode((out / "study.json").read_bytes(), type=About)
    except FileNotFoundError:
        raise PipelineError(
            f"{out} is no study: `wayfare study NAME --out {out}` makes one"
        ) from None
    except msgspec.MsgspecError as error:
        raise PipelineError(f"{out / 'study.json'} is damaged: {error}") from None


def _claim(out: Path, about: About) -> None:
    """A folder is of one study: results of two would be mixed in its tables."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / "study.json").exists():
            there = read_about(out)
            if (there.study, there.quick) != (about.study, about.quick):
                raise PipelineError(
                    f"{out} has the results of `{there.command}` already: give another --out"
                )
        (out / "study.json").write_bytes(msgspec.json.encode(about))
    except OSError as error:
        raise PipelineError(f"{out} cannot take results: {error.strerror}") from None


def _write(path: Path, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), part)
    part.replace(path)
