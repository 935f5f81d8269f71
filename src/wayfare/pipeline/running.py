"""Runs while they happen: the analysis of a stream of events, batch by batch.

    rows      what is open: publications of the last `late_s` seconds and what came of them, and all
              subscriptions that hold. They are judged again with each batch.
    counted   what is settled: how often, by delay. It is added up, and its rows are forgotten.

What has come so far is judged as the whole log would be. So the figures at the end are those of
`analyse`, but for deliveries that come later than `late_s` after their publication: that was lost by
then, and they are `extra`. Times are those of the log; each run has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from wayfare.pipeline.analyse import published
from wayfare.pipeline.batches import Batches
from wayfare.pipeline.deliveries import (
    ARRIVAL,
    OUTCOMES,
    arrivals,
    delay_quantiles,
    expected,
    outcomes,
)
from wayfare.pipeline.events import EVENTS
from wayfare.pipeline.spark import explained
from wayfare.pipeline.wanted import wanted

LATE_S = 600.0
PLAIN = {  # counted as it comes
    "published": "int(kind = 'published')",
    "gaps": "int(kind = 'lost')",
    "told_lost": "if(kind in ('lost', 'settled'), count, 0)",
    "attachments": "int(kind = 'attached')",
}
SUMS = (*PLAIN, "expected", *OUTCOMES)
COUNTED = "run string, open boolean, delay_us bigint, last_ns bigint, " + ", ".join(
    f"{name} bigint" for name in SUMS
)
RUNNING = """
    run string, published bigint, expected bigint, delivered bigint, lost bigint, awaited bigint,
    duplicates bigint, extra bigint, past bigint, order_violations bigint, gaps bigint, told_lost bigint,
    delay_p50_ms double, delay_p90_ms double, delay_p99_ms double, delay_max_ms double,
    attachments bigint, last_ns bigint"""
KINDS = "kind in ('published', 'delivered', 'subscribed', 'unsubscribed', 'attached', 'left')"
OPEN = "run time_ns kind client publisher number delivery epoch filter attributes reason expires_ns area"
ROWS = StructType([EVENTS[name] for name in OPEN.split()])
KEYS = ("run", "open", "delay_us")


def analyse_stream(
    log: DataFrame,
    folder: str | Path,
    late_s: float = LATE_S,
    tell: Callable[[DataFrame], object] | None = None,
) -> DataStreamWriter:
    """Judge a stream of events in a folder, each once; `tell` hears `RUNNING` after each batch."""
    batches = _batches(folder)

    def take(batch: DataFrame, number: int) -> None:
        known = batches.before(batch.sparkSession, number)
        if batch.isEmpty():  # a source may go on without any row
            batches.write(number, known)
            return
        settled = known["counted"].where("not open")
        new = batch.persist()
        rows = known["rows"].unionByName(new.where(KINDS).select(ROWS.names)).persist()
        horizon = settled_until(settled, new, int(late_s * 1e9)).persist()
        facts = rows.where("kind != 'delivered'").withColumn("measured", F.lit(True))
        publications, wants = published(facts).persist(), wanted(facts).persist()
        due = with_open(expected(publications, wants), horizon)
        came = arrivals(rows.where("kind = 'delivered'"), publications, wants)
        came = with_open(came, horizon).persist()
        counted = added_up(settled, plain(new), due, came).coalesce(1)
        batches.write(number, {"counted": counted, "rows": still_open(facts, came, horizon)})
        for one in (new, rows, horizon, publications, wants, came):
            one.unpersist()
        if tell is not None:
            tell(running(batch.sparkSession, folder))

    return batches.writer(log).foreachBatch(take)


def running(spark: SparkSession, folder: str | Path) -> DataFrame:
    """`RUNNING` of every run in the stream of a folder, after the last batch that was done."""
    with explained(f"{folder} cannot be read as what was counted of a stream"):
        counted = _batches(folder).latest(spark)["counted"]
    sums = [F.sum(name).alias(name) for name in SUMS]
    missing = F.expr("expected - delivered")
    runs = counted.groupBy("run").agg(
        *sums,
        F.max("last_ns").alias("last_ns"),
        F.sum(F.when(~F.col("open"), missing).otherwise(0)).alias("lost"),
        F.sum(F.when(F.col("open"), missing).otherwise(0)).alias("awaited"),
    )
    delays = counted.where("delay_us is not null").selectExpr(
        "run", "delay_us", "delivered + extra count"
    )
    summed = delays.groupBy("run", "delay_us").agg(F.sum("count").alias("count"))
    whole = runs.join(delay_quantiles(summed), "run", "left")
    return whole.select(*(column.split()[0] for column in RUNNING.split(",")))


def _batches(folder: str | Path) -> Batches:
    return Batches(folder, {"counted": COUNTED, "rows": ROWS})


# Transforms


def settled_until(settled: DataFrame, batch: DataFrame, late_ns: int) -> DataFrame:
    """What was published then or before is settled: run, until_ns."""
    times = settled.select("run", "last_ns").unionByName(batch.selectExpr("run", "time_ns last_ns"))
    newest = times.groupBy("run").agg(F.max("last_ns").alias("last_ns"))
    return newest.selectExpr("run", f"last_ns - {late_ns} until_ns")


def with_open(rows: DataFrame, horizon: DataFrame) -> DataFrame:
    """Whether it is open: by its publication, if the log has that, else by its own time."""
    time = "coalesce(at_ns, time_ns)" if "time_ns" in rows.columns else "at_ns"
    known = rows.join(F.broadcast(horizon), "run")
    return known.withColumn("open", F.expr(f"{time} > until_ns")).drop("until_ns")


def plain(batch: DataFrame) -> DataFrame:
    counts = (f"{what} {name}" for name, what in PLAIN.items())
    return batch.selectExpr("run", "false open", "time_ns last_ns", *counts)


def added_up(settled: DataFrame, new: DataFrame, due: DataFrame, came: DataFrame) -> DataFrame:
    """`COUNTED`: what is settled, by now, and what is open."""
    whole = settled
    for part in (
        new,
        due.groupBy("run", "open").agg(F.count("*").alias("expected")),
        came.groupBy(*KEYS).agg(*outcomes()),
    ):
        whole = whole.unionByName(part, allowMissingColumns=True)
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in SUMS]
    summed = whole.groupBy(*KEYS).agg(F.max("last_ns").alias("last_ns"), *sums)
    return summed.select(*(column.split()[0] for column in COUNTED.split(",")))


def still_open(facts: DataFrame, came: DataFrame, horizon: DataFrame) -> DataFrame:
    """The rows that have to be known when the next batch comes."""
    known = facts.join(F.broadcast(horizon), "run")
    published = known.where("kind = 'published' and time_ns > until_ns")
    delivered = came.where("open").selectExpr("'delivered' kind", *ARRIVAL)
    whole = published.select(ROWS.names).unionByName(delivered, allowMissingColumns=True)
    for part in (subscriptions(known), presence(known)):
        whole = whole.unionByName(part.select(ROWS.names))
    return whole


def subscriptions(known: DataFrame) -> DataFrame:
    """Those that hold, or were withdrawn not long ago."""
    asked = known.where("kind in ('subscribed', 'unsubscribed')")
    one = Window.partitionBy("run", "client", "filter")
    holding = F.sum(F.expr("if(kind = 'subscribed', 1, -1)")).over(one) != 0
    recent = F.max("time_ns").over(one) > F.col("until_ns")
    return asked.withColumn("kept", holding | recent).where("kept")


def presence(known: DataFrame) -> DataFrame:
    """Of coming and leaving, what was after the last arrival that is settled, and that one."""
    moments = known.where("kind in ('attached', 'left')")
    arrival = F.expr("if(kind = 'attached' and time_ns <= until_ns, time_ns, null)")
    begin = F.max(arrival).over(Window.partitionBy("run", "client"))
    return moments.withColumn("begin", begin).where("begin is null or time_ns >= begin")
