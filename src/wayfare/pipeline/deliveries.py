"""What came of what was published: who expected it, what came, what came again or late, and how late.

publications   run, publisher, number, at_ns, attributes, index, measured
wants          run, attributes, client, since_ns, until_ns
deliveries     rows `delivered` of an event log
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from wayfare.pipeline.wanted import WANTED

OUTCOMES = {
    "delivered": "first and asked",
    "extra": "first and not asked",
    "past": "first and past",
    "duplicates": "not first",
    "order_violations": "late",
}
ARRIVAL = ("run", "client", "publisher", "number", "time_ns", "delivery", "reason")
ORDERED = "coalesce(reason not in ('past', 'late'), true)"
PERCENTS = (50, 90, 99)
DELAYS = (*(f"delay_p{percent}_ms" for percent in PERCENTS), "delay_max_ms")


def expectations(publications: DataFrame, wants: DataFrame) -> DataFrame:
    """How many deliveries there should be: run, index, expected."""
    due = expected(publications.where("measured"), wants)
    return due.groupBy("run", "index").agg(F.count("*").alias("expected"))


def expected(publications: DataFrame, wants: DataFrame) -> DataFrame:
    """Publications, once for each client that wants them: run, index, at_ns."""
    due = publications.alias("one").join(wants.alias("held"), F.expr(WANTED))
    return due.select("one.run", "one.index", "one.at_ns")


def arrivals(deliveries: DataFrame, publications: DataFrame, wants: DataFrame) -> DataFrame:
    """Beside each delivery: when it was published, whether it was asked for, came first, came late.

    From the last number of a publisher to the first: a row is the first arrival of its number if the
    row before has another one, and out of order if anything that is newer had come before. What is of the
    past, kept where its client came to, has an order of its own, and what an old broker sent late has none.
    """
    came = deliveries.select(*ARRIVAL)
    known = came.join(publications, ["run", "publisher", "number"], "left").alias("one")
    held = wants.withColumnRenamed("client", "who").alias("held")
    whole = known.join(held, F.expr(WANTED + " and one.client = held.who"), "left").select(
        *(f"one.{name}" for name in (*came.columns, "index", "at_ns", "measured")),
        F.expr("who is not null").alias("asked"),
    )
    # Who gets it from whom, as a number that comes first: numbers are faster to sort than names.
    pair = F.xxhash64("run", "client", "publisher")
    backwards = Window.partitionBy("pair", "run", "client", "publisher").orderBy(
        F.desc("number"), "time_ns", "delivery"
    )
    arrival = F.struct("time_ns", "delivery")
    newer = F.min(arrival).over(backwards.rowsBetween(Window.unboundedPreceding, -1))
    first = F.coalesce(F.lag("number").over(backwards) != F.col("number"), F.lit(True))
    return (
        whole.withColumn("pair", pair)
        .withColumn("first", first)
        .withColumn("past", F.expr("coalesce(reason = 'past', false)"))
        .withColumn(
            "late", F.expr(f"first and {ORDERED}") & F.coalesce(newer < arrival, F.lit(False))
        )
        .withColumn("delay_us", F.expr("bigint(if(first, round((time_ns - at_ns) / 1000), null))"))
        .drop("pair")
    )


def judged(deliveries: DataFrame, publications: DataFrame, wants: DataFrame) -> DataFrame:
    """What came of it, in one pass: how many of each kind, by index, and once more by delay_us."""
    return (
        arrivals(deliveries, publications, wants)
        .where("coalesce(measured, true)")
        .selectExpr(
            *("run", "first", "asked", "past", "late"),
            "stack(2, 'index', index, 'delay_us', delay_us) (by, value)",
        )
        .groupBy("run", "by", "value")
        .agg(*outcomes())
    )


def outcomes() -> list[Column]:
    """Of arrivals, how many there are of each kind."""
    return [F.count_if(F.expr(what)).alias(name) for name, what in OUTCOMES.items()]


def probes(due: DataFrame, outcome: DataFrame) -> DataFrame:
    """How many of the first, the second ... publication behind an arrival reach those who want them."""
    came = outcome.where("by = 'index'").selectExpr("run", "value index", "delivered")
    return (
        due.join(came, ["run", "index"], "left")
        .where("index is not null")
        .withColumn("delivered", F.coalesce("delivered", F.lit(0)))
        .withColumn("ratio", F.col("delivered") / F.col("expected"))
    )


def delays(outcome: DataFrame) -> DataFrame:
    """How many deliveries took so many microseconds."""
    known = outcome.where("by = 'delay_us' and value is not null")
    return known.selectExpr("run", "value delay_us", "delivered + extra count")


def delay_quantiles(delays: DataFrame) -> DataFrame:
    """The smallest delay that so many percent are not above: run, delay_p50_ms ... delay_max_ms."""
    up_to = Window.partitionBy("run").orderBy("delay_us")
    counted = delays.withColumn("so_far", F.sum("count").over(up_to)).withColumn(
        "all", F.sum("count").over(Window.partitionBy("run"))
    )
    wanted = [
        f"min(if(so_far * 100 >= {percent} * all, delay_us, null)) / 1000" for percent in PERCENTS
    ]
    shown = zip([*wanted, "max(delay_us) / 1000"], DELAYS, strict=True)
    return counted.groupBy("run").agg(*(F.expr(how).alias(name) for how, name in shown))
