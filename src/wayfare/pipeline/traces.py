"""What figures need beside the tables of `analyse`, of any log, small: one client, and few quantiles.

traces      run, client, publisher, number, departed_ns, arrived_ns (null: lost)
quantiles   run, share, delay_ms: so large a share of its deliveries took at most so long
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from wayfare.pipeline.wanted import WANTED

TRACE_MAX = 2000  # publications of a trace
LEAD_NS = 2 * 10**9  # of a trace before the first move
STEPS = 200  # quantiles of a run


def traces(
    deliveries: DataFrame, publications: DataFrame, wants: DataFrame, moves: DataFrame
) -> DataFrame:
    """All that the client of a run that moves most wanted from its first move on, and when it came."""
    due = _due(publications, wants, chosen(wants, moves)).alias("due")
    came = deliveries.alias("came").join(
        F.broadcast(due),
        F.expr(
            "came.run = due.run and came.client = due.client"
            " and came.publisher = due.publisher and came.number = due.number"
        ),
    )
    keys = ("run", "client", "publisher", "number")
    first = came.groupBy(*(F.col(f"due.{key}") for key in keys)).agg(
        F.min("came.time_ns").alias("arrived_ns")
    )
    return due.join(first, [*keys], "left").select(*keys, "departed_ns", "arrived_ns")


def chosen(wants: DataFrame, moves: DataFrame) -> DataFrame:
    """The client of each run whose trace is shown, and when that begins: run, client, begin_ns."""
    moved = moves.groupBy("run", "client").agg(
        F.count("*").alias("moves"), (F.min("left_ns") - LEAD_NS).alias("begin_ns")
    )
    in_order = Window.partitionBy("run").orderBy(F.desc_nulls_last("moves"), "client")
    return (
        wants.select("run", "client")
        .distinct()
        .join(moved, ["run", "client"], "left")
        .withColumn("place", F.row_number().over(in_order))
        .where("place = 1")
        .selectExpr("run", "client", "coalesce(begin_ns, 0) begin_ns")
    )


def _due(publications: DataFrame, wants: DataFrame, whose: DataFrame) -> DataFrame:
    held = wants.join(F.broadcast(whose), ["run", "client"])
    in_order = Window.partitionBy("run").orderBy("departed_ns", "publisher", "number")
    return (
        publications.alias("one")
        .join(
            F.broadcast(held).alias("held"),
            F.expr(f"{WANTED} and one.at_ns >= held.begin_ns and one.measured"),
        )
        .selectExpr("one.run", "held.client", "publisher", "number", "at_ns departed_ns")
        .withColumn("place", F.row_number().over(in_order))
        .where(f"place <= {TRACE_MAX}")
        .drop("place")
    )


def quantiles(delays: DataFrame) -> DataFrame:
    """The smallest delay that 1, 2 ... of `STEPS` parts of the deliveries are not above."""
    every = Window.partitionBy("run")
    counted = (
        delays.withColumn("so_far", F.sum("count").over(every.orderBy("delay_us")))
        .withColumn("all", F.sum("count").over(every))
        .withColumn("from", F.expr(f"(so_far - count) * {STEPS} div all + 1"))
        .withColumn("to", F.expr(f"so_far * {STEPS} div all"))
    )
    steps = counted.where("from <= to").select(
        "run", F.explode(F.sequence("from", "to")).alias("step"), "delay_us"
    )
    return steps.selectExpr("run", f"step / {STEPS} share", "delay_us / 1000 delay_ms")
