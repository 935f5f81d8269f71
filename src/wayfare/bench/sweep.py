"""A sweep on Spark against a pool of processes: the same points, the same files, in one run.

Rounds take turns, so that others on the machine bother both alike. Time is wall time, because waiting
for work is what a scheduler is about; the median of the rounds counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from pyspark.sql import SparkSession

from wayfare.pipeline import spark, sweep
from wayfare.studies.points import Point

POINTS = 400
ROUNDS = 3
# About 40 ms each.
SMALL = {
    "height": 3,
    "degree": 3,
    "publishers": 4,
    "movers": 4,
    "moves": 3,
    "dwell_ns": 500_000_000,
}


def run(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    points = [
        Point("roaming", SMALL | {"seed": seed + i})
        for i in range(POINTS // 20 if quick else POINTS)
    ]
    session = spark.start()
    cores = session.sparkContext.defaultParallelism
    pool_s, spark_s = [], []
    with get_context("spawn").Pool(cores) as pool:
        for one in (_in_pool, _on_spark):  # who imports what, imports it now
            one(pool, session, points[: 2 * cores])
        for _ in range(1 if quick else ROUNDS):
            pool_s.append(_in_pool(pool, session, points))
            spark_s.append(_on_spark(pool, session, points))
    yield {
        "points": len(points),
        "cores": cores,
        "pool_s": round(median(pool_s), 2),
        "spark_s": round(median(spark_s), 2),
        "ratio": round(median(spark_s) / median(pool_s), 3),
    }


def _in_pool(pool: Any, _session: SparkSession, points: list[Point]) -> float:
    with _folder() as out:
        begin = perf_counter()
        for _ in pool.imap_unordered(partial(sweep.run_point, out=out, events=True), points):
            pass
        return perf_counter() - begin


def _on_spark(_pool: Any, session: SparkSession, points: list[Point]) -> float:
    with _folder() as out:
        begin = perf_counter()
        sweep.run_points(session, points, out)
        return perf_counter() - begin


@contextmanager
def _folder() -> Iterator[Path]:
    """Made before the clock runs, and gone after."""
    with tempfile.TemporaryDirectory(prefix="wayfare-sweep-") as name:
        out = Path(name)
        sweep.make(out)
        yield out
