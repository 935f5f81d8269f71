"""Counts of runs while they happen: the part of the analysis that a stream of events can have."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

LATE = "1 hour"  # that a delivery is remembered, to know its copies
COUNTS = ("published", "delivered", "arrived", "gaps", "told_lost", "attachments")
RUNNING = """
    run string, published bigint, delivered bigint, duplicates bigint, gaps bigint,
    told_lost bigint, attachments bigint, last_ns bigint"""


def analyse_stream(events: DataFrame, late: str = LATE) -> DataFrame:
    """`RUNNING` of every run so far, in the output modes update and complete.

    A copy is known as one if it comes within `late` of the first, in the time of the log. What comes
    behind something that is newer by more than that is counted as a copy, too.
    """
    # A day later than it was: simulations begin at 0, where Spark takes everything for late.
    when = F.expr("timestamp_micros(time_ns div 1000) + interval 1 day")
    seen = events.withColumn("at", when).withWatermark("at", late)
    first = seen.where("kind = 'delivered'").dropDuplicatesWithinWatermark(
        ["run", "client", "publisher", "number"]
    )
    counted = seen.selectExpr(
        "run",
        "int(kind = 'published') published",
        "0 delivered",
        "int(kind = 'delivered') arrived",
        "int(kind = 'lost') gaps",
        "if(kind = 'lost', count, 0) told_lost",
        "int(kind = 'attached') attachments",
        "time_ns",
    ).unionByName(first.selectExpr("run", "1 delivered"), allowMissingColumns=True)
    sums = (F.sum(name).alias(name) for name in COUNTS)
    return (
        counted.groupBy("run")
        .agg(*sums, F.max("time_ns").alias("last_ns"))
        .withColumn("duplicates", F.expr("arrived - delivered"))
        .select(*(column.split()[0] for column in RUNNING.split(",")))
    )
