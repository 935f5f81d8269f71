"""What it takes to find few notifications of an archive of many.

The filter wants one in 12,500, by a text, by which archives are sorted, and by two values in any order. It is
asked as it is; without push-down to Parquet, so that every row is read; and without columns, so that
every notification is decoded and matched in Python, as it is done for many filters at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from wayfare.core.filters import Filter
from wayfare.pipeline import archive, columns
from wayfare.pipeline.archive import DAY_NS
from wayfare.pipeline.spark import start

WANTED = Filter.parse("service = 'parking' and free > 95 and road = 'A7'")
SIZES = (100_000, 1_000_000, 5_000_000)
TIMES = 3
SERVICES = ("bus", "charging", "parking", "sights", "weather")
DAYS = 10
FIRST_DAY = 20_541  # since 1970: 2026-03-29
PUSH_DOWN = "spark.sql.parquet.filterPushdown"


def run(
    seed: int = 1, quick: bool = False, sizes: tuple[int, ...] = SIZES
) -> Iterator[dict[str, Any]]:
    spark = start()
    times = 2 if quick else TIMES
    for size in sizes[:1] if quick else sizes:
        with tempfile.TemporaryDirectory(prefix="wayfare-history-") as path:
            began = perf_counter()
            archive.add(spark, path, notifications(spark, size, seed))
            added = perf_counter() - began
            kept = archive.read(spark, path)
            found = columns.matching(kept, WANTED)
            pushed = taken(found, times)
            spark.conf.set(PUSH_DOWN, "false")
            whole = taken(found, times)
            spark.conf.unset(PUSH_DOWN)
            again = columns.match_many(kept.frame, {"wanted": WANTED})
            python = taken(again, times)
            assert pushed.found == whole.found == python.found, "three ways, one answer"
            yield {
                "notifications": size,
                "found": pushed.found,
                "archive_mb": round(_bytes(path) / 1e6, 1),
                "add_s": round(added, 1),
                "pushed_ms": round(pushed.ms),
                "pushed_rows": pushed.read,
                "unpushed_ms": round(whole.ms),
                "unpushed_rows": whole.read,
                "python_ms": round(python.ms),
            }


def _bytes(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).rglob("*.parquet"))


def notifications(spark: SparkSession, count: int, seed: int) -> DataFrame:
    """Of a city, over some days, one after the other."""

    def below(most: int, salt: int) -> Column:
        return F.pmod(F.xxhash64("id", F.lit(seed), F.lit(salt)), F.lit(most))

    service = F.element_at(
        F.array(*map(F.lit, SERVICES)), (below(len(SERVICES), 0) + 1).cast("int")
    )
    attributes = F.struct(
        service.alias("service"),
        F.concat(F.lit("A"), below(100, 1)).alias("road"),
        below(100, 2).alias("free"),
        (52 + below(10**6, 3) / 10**6).alias("lat"),
        (13 + below(10**6, 4) / 10**6).alias("lon"),
    )
    return spark.range(count).select(
        F.lit("city").alias("run"),
        (F.lit(FIRST_DAY * DAY_NS) + F.col("id") * (DAYS * DAY_NS // count)).alias("time_ns"),
        F.concat(F.lit("car"), below(1000, 5)).alias("publisher"),
        F.col("id").alias("number"),
        F.to_json(attributes).alias("attributes"),
        F.lit(b"").alias("payload"),
    )


class Taken(NamedTuple):
    """The least milliseconds of some attempts, the rows read from files, and the rows found."""

    ms: float
    read: int
    found: int


def taken(frame: DataFrame, times: int) -> Taken:
    """What it takes to compute it, planning included, so many times: Java gets better at it."""
    spent = []
    for _ in range(times):
        began = perf_counter()
        anew = frame.select("*")
        found = len(anew.collect())
        spent.append((perf_counter() - began) * 1e3)
    return Taken(min(spent), rows_read(scan_of(anew)), found)


def scan_of(frame: DataFrame) -> Any:
    """Java's plan for reading the one archive that the frame comes from, as it was last done."""
    return frame._jdf.queryExecution().executedPlan().collectLeaves().head()


def rows_read(scan: Any) -> int:
    return int(scan.metrics().apply("numOutputRows").value())
