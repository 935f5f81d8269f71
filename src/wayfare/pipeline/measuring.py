"""What benchmarks of archives need: notifications to fill one with, and what it took to find some."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from wayfare.pipeline.archive import DAY_NS

SERVICES = ("bus", "charging", "parking", "sights", "weather")
DAYS = 10
FIRST_DAY = 20_541  # since 1970: 2026-03-29


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
