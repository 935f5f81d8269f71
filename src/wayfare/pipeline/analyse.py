"""What an event log says of its runs: what was lost, came twice or late, and what it took.

    facts        all rows but deliveries: few, read once and kept
    published    with the time, the place behind its publisher's arrival, and who wants it
    deliveries   each with its publication, in one pass: first or again, in order, wanted, how late
    moves        from broker to broker, and how long until something came

Everything here is expressions of Spark; Python sees different attributes and filters only (`wanted`).
Small tables are sent to all workers, so that deliveries are shuffled once. `TABLES` says what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from wayfare.pipeline.deliveries import (
    DELAYS,
    OUTCOMES,
    delay_quantiles,
    delays,
    expectations,
    judged,
    probes,
)
from wayfare.pipeline.spark import explained
from wayfare.pipeline.traces import quantiles, traces
from wayfare.pipeline.wanted import EVER, wanted

BROADCAST_ROWS = 500_000  # of a table that every worker gets, as a whole
# Sizes are known before the plan is made, and few stages take long: no need to plan again after each.
SETTINGS = {"spark_sql_adaptive_enabled": "false"}
PROBES_MAX = 100  # publications behind an arrival that are told apart
# What brokers say, by sort: traffic.py counts in the same way.
SAID = {
    "control": "counted = 'messages' and message not in ('Notification', 'Uncertain', 'Deliver', 'Ack',"
    " 'Shadow', 'Forget', 'Recall', 'Recalled')",
    "notifications": "counted = 'messages' and message in ('Notification', 'Uncertain', 'Deliver')",
    "tunnelled": "counted = 'messages' and message = 'Deliver'",
    "acknowledgements": "counted = 'messages' and message = 'Ack'",
    "posted": "counted = 'messages' and message in ('Shadow', 'Forget', 'Recall', 'Recalled')",
    "entries": "counted = 'entries'",
}
COUNTS = (
    *("published", "gaps", "told_lost", "updates", "expected", "moves", "moves_without_live"),
    *OUTCOMES,
    *SAID,
)
AFTER = {"first": "first_ms", "live": "live_ms"}  # a move
MOVE = ("old", "new", "left_ns", "came_ns", "first_ns", "live_ns")
ENTRIES = "from_json(entries, 'map<string, bigint>')"
SIZES = ("mean(ads) ads_mean", "max(ads) ads_max", "mean(subs) subs_mean", "max(subs) subs_max")

TABLES = {
    "runs": """
        run string, published bigint, expected bigint, delivered bigint, lost bigint,
        duplicates bigint, extra bigint, past bigint, order_violations bigint, gaps bigint, told_lost bigint,
        delay_p50_ms double, delay_p90_ms double, delay_p99_ms double, delay_max_ms double,
        moves bigint, hops bigint, first_p50_ms double, first_p99_ms double,
        live_p50_ms double, live_p99_ms double, moves_without_live bigint,
        control bigint, notifications bigint, tunnelled bigint, acknowledgements bigint,
        posted bigint, entries bigint, updates bigint,
        ads_mean double, ads_max bigint, subs_mean double, subs_max bigint""",
    "control": "run string, counted string, message string, count bigint",
    "probes": "run string, index bigint, expected bigint, delivered bigint, ratio double",
    "delays": "run string, delay_us bigint, count bigint",
    "moves": """
        run string, client string, old string, new string, left_ns bigint, came_ns bigint,
        hops bigint, first_ms double, live_ms double""",
    "tables": """
        run string, depth bigint, brokers bigint, ads_mean double, ads_max bigint,
        subs_mean double, subs_max bigint""",
    "traces": """
        run string, client string, publisher string, number bigint, departed_ns bigint,
        arrived_ns bigint""",
    "quantiles": "run string, share double, delay_ms double",
}


@dataclass(frozen=True)
class Analysis:
    """The tables of `TABLES`, and what is kept in memory until `release`."""

    tables: dict[str, DataFrame]
    kept: list[DataFrame]

    def release(self) -> None:
        for one in self.kept:
            one.unpersist()

    def __enter__(self) -> Analysis:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def analyse(
    events: DataFrame,
    tell: Callable[[str], object] = lambda _: None,
    broadcast_rows: int = BROADCAST_ROWS,
) -> Analysis:
    """All tables of the runs of a log; `tell` hears what it is about to do."""

    def small(frame: DataFrame) -> DataFrame:
        return F.broadcast(frame) if frame.count() <= broadcast_rows else frame

    facts = with_window(events.where("kind != 'delivered'")).persist()
    kept = [
        facts,
        published(facts).persist(),
        wanted(facts).persist(),
        attachments(facts).persist(),
    ]
    doing = ("reading publications", "matching subscriptions", "following clients")
    named = []
    for what, one in zip(doing, kept[1:], strict=True):
        tell(what)
        named.append(small(one))
    publications, wants, stays = named
    tell("judging deliveries")
    deliveries = events.where("kind = 'delivered'")
    due = expectations(publications, wants).persist()
    outcome = judged(deliveries, publications, wants).persist()
    moved = with_hops(moves(stays, deliveries, publications), facts).persist()
    said = control(facts).persist()
    found = {
        "runs": runs(facts, due, outcome, moved, said),
        "control": said,
        "probes": probes(due, outcome),
        "delays": delays(outcome),
        "moves": moved,
        "tables": tables(facts),
        "traces": traces(deliveries, publications, wants, moved),
    }
    found["quantiles"] = quantiles(found["delays"])
    kept += [due, outcome, moved, said]
    return Analysis({name: shaped(found[name], name) for name in TABLES}, kept)


def write(analysis: Analysis, folder: Path) -> None:
    """Every table as a folder of Parquet files; what was there before is replaced."""
    for name, frame in analysis.tables.items():
        with explained(f"{folder / name} cannot be written"):
            frame.coalesce(1).write.mode("overwrite").parquet(str(folder / name))


def shaped(frame: DataFrame, name: str) -> DataFrame:
    """The columns of one of `TABLES`, in their order."""
    wanted = (column.split() for column in TABLES[name].split(","))
    return frame.select([F.col(column).cast(kind) for column, kind in wanted])


# Facts


def with_window(facts: DataFrame) -> DataFrame:
    """Beside each row, whether it is in the time that is measured, and from when to when that is."""
    said = facts.where("kind = 'measured'").groupBy("run")
    windows = said.agg(F.min("since_ns").alias("begin_ns"), F.max("time_ns").alias("end_ns"))
    return facts.join(F.broadcast(windows), "run", "left").withColumn(
        "measured", F.expr("coalesce(time_ns between begin_ns and end_ns, true)")
    )


def published(facts: DataFrame) -> DataFrame:
    """Every publication: run, publisher, number, at_ns, attributes, index, measured.

    Those that expire, or are of use in an area only, have no attributes: nobody is expected to get them, and nobody has
    to miss them.
    """
    stay = Window.partitionBy("run", "client", "epoch")
    index = F.col("number") - F.min("number").over(stay)
    return facts.where("kind = 'published'").select(
        "run",
        F.col("client").alias("publisher"),
        "number",
        F.col("time_ns").alias("at_ns"),
        F.expr("if(expires_ns is null and area is null, attributes, null)").alias("attributes"),
        F.when(index < PROBES_MAX, index).alias("index"),
        "measured",
    )


# Moves


def attachments(facts: DataFrame) -> DataFrame:
    """Every attachment, where the client was before, and which of its moves was the last."""
    rows = facts.where("kind in ('attached', 'detached')")
    in_order = Window.partitionBy("run", "client").orderBy("time_ns", "epoch", "kind")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    return (
        rows.withColumn(
            "old", F.last(F.expr("if(kind = 'attached', broker, null)"), True).over(before)
        )
        .withColumn("before", F.lag(F.struct("kind", "time_ns")).over(in_order))
        .where("kind = 'attached'")
        .withColumn("moved", F.expr("old is not null and old != broker"))
        .select(
            "run",
            "client",
            "epoch",
            "moved",
            F.col("old"),
            F.col("broker").alias("new"),
            F.expr("if(before.kind = 'detached', before.time_ns, time_ns)").alias("left_ns"),
            F.col("time_ns").alias("came_ns"),
            F.lead("time_ns", 1, EVER).over(in_order).alias("until_ns"),
            F.count_if("moved").over(so_far).alias("move"),
            F.last(F.expr("if(moved, time_ns, null)"), True).over(so_far).alias("moved_ns"),
            "begin_ns",
            "end_ns",
        )
    )


def moves(stays: DataFrame, deliveries: DataFrame, publications: DataFrame) -> DataFrame:
    """Every move that was measured, and how long it took until something came."""
    known = publications.select("run", "publisher", "number", "at_ns")
    since = stays.where("move > 0").select(
        "run", "client", "epoch", "move", "moved_ns", "came_ns", "until_ns"
    )
    came = deliveries.select("run", "client", "publisher", "number", "time_ns", "epoch")
    after = (
        came.join(since, ["run", "client", "epoch"])
        .where("time_ns between came_ns and until_ns")
        .join(known, ["run", "publisher", "number"], "left")
        .groupBy("run", "client", "move")
        .agg(
            F.min("time_ns").alias("first_ns"),
            F.min(F.expr("if(at_ns > moved_ns, time_ns, null)")).alias("live_ns"),
        )
    )
    measured = stays.where("moved and coalesce(left_ns >= begin_ns and came_ns <= end_ns, true)")
    once = measured.select("run", "client", "move", "old", "new", "left_ns", "came_ns")
    both = once.unionByName(after, allowMissingColumns=True).groupBy("run", "client", "move")
    return (
        both.agg(*(F.max(name).alias(name) for name in MOVE))
        .where("came_ns is not null")
        .withColumn("first_ms", F.expr("(first_ns - came_ns) / 1e6"))
        .withColumn("live_ms", F.expr("(live_ns - came_ns) / 1e6"))
    )


def with_hops(moved: DataFrame, facts: DataFrame) -> DataFrame:
    """Links between the old broker and the new one; null, if the log does not say where they are."""
    place = F.broadcast(places(facts).select("run", "broker", "path"))
    for end in ("old", "new"):
        there = place.withColumnsRenamed({"broker": end, "path": f"{end}_path"})
        moved = moved.join(there, ["run", end], "left")
    return moved.withColumn(
        "hops",
        F.size(F.array_except("old_path", "new_path"))
        + F.size(F.array_except("new_path", "old_path")),
    )


# Brokers


def places(facts: DataFrame) -> DataFrame:
    """Where brokers are: run, broker, path, depth."""
    path = F.from_json("path", "array<string>")
    said = facts.where("kind = 'placed'").select("run", "broker", path.alias("path"))
    return said.withColumn("depth", F.size("path") - 1)


def control(facts: DataFrame) -> DataFrame:
    """What brokers told each other, by kind: messages as they were sent, entries as they were handled."""
    clients = facts.where("client is not null").select("run", F.col("client").alias("name"))
    clients = F.broadcast(clients.distinct())
    sent = facts.where("kind = 'sent' and measured")
    for end in ("sender", "receiver"):
        sent = sent.join(clients.withColumnRenamed("name", end), ["run", end], "anti")
    messages = sent.select(
        "run",
        F.lit("messages").alias("counted"),
        F.coalesce("inner", "message").alias("message"),
        F.coalesce("count", F.lit(1)).alias("count"),
    )
    entries = facts.where("kind = 'updated' and measured").select(
        "run",
        F.lit("entries").alias("counted"),
        F.explode(F.expr(ENTRIES)).alias("message", "count"),
    )
    return (
        messages.unionByName(entries)
        .groupBy("run", "counted", "message")
        .agg(F.sum("count").alias("count"))
    )


def tables(facts: DataFrame) -> DataFrame:
    """How large the tables of brokers were, by how far they are from the root."""
    place = F.broadcast(places(facts).select("run", "broker", "depth"))
    return (
        sizes(facts)
        .join(place, ["run", "broker"], "left")
        .groupBy("run", "depth")
        .agg(F.count_distinct("broker").alias("brokers"), *map(F.expr, SIZES))
    )


def sizes(facts: DataFrame) -> DataFrame:
    entries = facts.where("kind = 'tables' and measured").withColumn("entries", F.expr(ENTRIES))
    return entries.select(
        "run",
        "broker",
        F.expr("coalesce(entries['advertisements'], 0)").alias("ads"),
        F.expr("coalesce(entries['subscriptions'], 0)").alias("subs"),
    )


# Runs


def runs(
    facts: DataFrame, due: DataFrame, outcome: DataFrame, moved: DataFrame, said: DataFrame
) -> DataFrame:
    """One row for each run; what its log does not tell is null, what did not happen is 0.

    All parts are put below each other and added up at once, which is one shuffle and no join.
    """
    parts = [
        facts.selectExpr(
            "run",
            "int(kind = 'published' and measured) published",
            "int(kind = 'lost' and measured) gaps",
            "if(kind in ('lost', 'settled') and measured, count, 0) told_lost",
            "int(kind = 'updated' and measured) updates",
        ),
        due.select("run", "expected"),
        outcome.where("by = 'index'").select("run", *OUTCOMES),
        delay_quantiles(delays(outcome)),
        moved.selectExpr(
            "run", "1 moves", "hops", "int(live_ms is null) moves_without_live", *AFTER.values()
        ),
        said.selectExpr("run", *(f"if({what}, count, 0) {name}" for name, what in SAID.items())),
        sizes(facts).select("run", "ads", "subs"),
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part, allowMissingColumns=True)
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTS]
    quantiles = [F.max(name).alias(name) for name in DELAYS]
    after = [
        f"percentile_disc({percent / 100}) within group (order by {column}) {name}_p{percent}_ms"
        for name, column in AFTER.items()
        for percent in (50, 99)
    ]
    summed = whole.groupBy("run").agg(
        *sums, F.sum("hops").alias("hops"), *quantiles, *map(F.expr, (*after, *SIZES))
    )
    return summed.withColumn("lost", F.col("expected") - F.col("delivered"))
