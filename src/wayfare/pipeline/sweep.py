"""Sweeps: points -> simulations in Spark's tasks -> event logs and a summary of each run.

    OUT/runs/RUN.parquet                one row: RUNS of `results`
    OUT/events/run=RUN/events.parquet   its event log, if it was asked for

Whoever runs a point writes both files, the event log first, each beside its name and then moved there.
So a sweep that was stopped, by whatever, goes on where it was: what has a summary is not run again,
unless it failed. OUT is a folder that all workers share.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from wayfare.errors import PipelineError
from wayfare.eventlog import ParquetWriter
from wayfare.pipeline.results import RUNS
from wayfare.pipeline.spark import explained
from wayfare.studies.points import Point

Progress = Callable[[int, int], object]  # how many are done, of how many

DONE = pa.schema([pa.field("run", pa.string()), pa.field("error", pa.string())])
TASKS_PER_CORE = 16  # many more tasks than cores, so that none is left with the long ones
LOOK_S = 0.5  # between two looks at what is done


def run_points(
    spark: SparkSession,
    points: Iterable[Point],
    out: Path,
    *,
    events: bool = True,
    progress: Progress | None = None,
) -> list[str]:
    """Run what has not been run yet; the runs that failed."""
    wanted = {point.run_name(): point for point in points}
    make(out)
    done = finished(out)
    todo = {run: point for run, point in wanted.items() if run not in done}
    for run in todo:
        (out / "runs" / f"{run}.parquet").unlink(missing_ok=True)  # it failed: another try
    with _watching(out, set(wanted), progress):
        failed = _run(spark, list(todo.values()), out, events=events) if todo else []
    return sorted(failed)


def finished(out: Path) -> set[str]:
    """Runs with a summary that is no error."""
    done = set()
    for file in (out / "runs").glob("*.parquet"):
        error = pq.read_table(file, columns=["error"]).column("error")
        if error.null_count:
            done.add(file.stem)
    return done


def make(out: Path) -> None:
    """The folders of a sweep."""
    for part in ("runs", "events"):
        try:
            (out / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(f"{out} cannot take results: {error.strerror}") from None


def _run(spark: SparkSession, points: list[Point], out: Path, *, events: bool) -> list[str]:
    Random(0).shuffle(points)  # the long ones stand together, and would be in one task
    cores = spark.sparkContext.defaultParallelism
    tasks = min(len(points), cores * TASKS_PER_CORE)
    rows = [(msgspec.json.encode(point).decode(),) for point in points]
    runner = Runner(str(out.absolute()), events=events)
    frame = spark.createDataFrame(rows, "point string").repartition(tasks)
    with explained("the sweep stopped"):
        told = frame.mapInArrow(runner, "run string, error string").collect()
    return [row.run for row in told if row.error is not None]


class Runner:
    """What a task does with its points."""

    def __init__(self, out: str, *, events: bool) -> None:
        self.out, self.events = out, events

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column(0).to_pylist():
                point = msgspec.json.decode(text, type=Point)
                error = run_point(point, Path(self.out), events=self.events)
                yield pa.RecordBatch.from_pylist(
                    [{"run": point.run_name(), "error": error}], schema=DONE
                )


def run_point(point: Point, out: Path, *, events: bool) -> str | None:
    """One simulation, with its files; a failure is a row with its error, too."""
    name = point.run_name()
    figures = error = None
    begin = process_time()
    try:
        figures = _simulate(point, out / "events" / f"run={name}", events=events)
    except OSError:
        raise  # no row can be written either
    except Exception as failure:  # whatever it is, it must not end the sweep
        error = f"{type(failure).__name__}: {failure}"
    row = {
        "run": name,
        "kind": point.kind,
        "parameters": point.text(),
        "command": point.command(),
        "cpu_s": process_time() - begin,
        "figures": figures,
        "error": error,
    }
    write_row(out / "runs" / f"{name}.parquet", row)
    return error


def _simulate(point: Point, folder: Path, *, events: bool) -> str:
    if not events:
        return msgspec.json.encode(point.run()).decode()
    folder.mkdir(exist_ok=True)
    with ParquetWriter(folder / "events.parquet", run=point.run_name()) as log:
        return msgspec.json.encode(point.run(log.write)).decode()


def write_row(path: Path, row: dict[str, Any]) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    pq.write_table(pa.Table.from_pylist([row], schema=RUNS), part)
    part.replace(path)


@contextmanager
def _watching(out: Path, runs: set[str], progress: Progress | None) -> Iterator[None]:
    """Tell now and then how far it is: a run is done when it has its summary."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def look() -> None:
        while True:
            last = over.wait(LOOK_S)
            names = {name.removesuffix(".parquet") for name in os.listdir(out / "runs")}
            progress(len(names & runs), len(runs))
            if last:
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
