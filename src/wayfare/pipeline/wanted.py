"""Who wants what, and when: subscriptions as spans of time, matched with what was published.

    subscribed, unsubscribed, left, attached  ->  spans     (run, client, filter) from when to when
    distinct attributes x distinct filters    ->  matches   by the index that brokers have, too
    both                                      ->  wanted    (run, attributes, client) from when to when

Matching looks at every pair of different attributes and different filters once, however often they were
published or asked for, and in however many runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from wayfare.core.filters import Filter
from wayfare.core.matching import FilterIndex
from wayfare.errors import PipelineError, WayfareError

# Joins publications (one) beside spans in which somebody wanted them (held).
WANTED = (
    "one.run = held.run and one.attributes = held.attributes"
    " and one.at_ns >= held.since_ns and one.at_ns < held.until_ns"
)
EVER = 2**63 - 1  # ns; a subscription that nobody withdrew


def wanted(facts: DataFrame) -> DataFrame:
    """From when to when a client wanted publications with these attributes; spans are disjoint.

    Subscriptions with terms are left out: who has one does not want all that it missed.
    """
    published = facts.where("kind = 'published'").select("attributes").distinct()
    held = subscriptions(facts).join(matches(published, _filters(facts)), "filter")
    return merged(held.select("run", "attributes", "client", "since_ns", "until_ns"))


def subscriptions(facts: DataFrame) -> DataFrame:
    """From when to when a client held a filter and had not left: run, client, filter, since, until."""
    asked = facts.where("kind in ('subscribed', 'unsubscribed')")
    terms = F.max(F.expr("kind = 'subscribed' and reason is not null"))
    keys = ["run", "client", "filter"]
    whole = asked.withColumn("limited", terms.over(Window.partitionBy(*keys)))
    held = spans(whole.where("not limited"), keys, F.expr("if(kind = 'subscribed', 1, -1)"))
    if facts.where("kind = 'left'").isEmpty():
        return held
    return held.join(presence(facts), ["run", "client"], "left").select(
        *keys,
        F.greatest("since_ns", F.coalesce("came_ns", F.lit(0))).alias("since_ns"),
        F.least("until_ns", F.coalesce("went_ns", F.lit(EVER))).alias("until_ns"),
    )


def presence(facts: DataFrame) -> DataFrame:
    """Of clients that left: from when to when they had not. Whoever comes back has its filters again."""
    left = facts.where("kind = 'left'").select("run", "client").distinct()
    moments = facts.where("kind in ('attached', 'left')").join(left, ["run", "client"], "semi")
    before = F.lag("kind").over(Window.partitionBy("run", "client").orderBy("time_ns", "epoch"))
    turns = (
        moments.withColumn("before", before)
        .where("before is null or kind != before")
        .withColumn("time_ns", F.expr("if(before is null, 0, time_ns)"))
    )
    return spans(turns, ["run", "client"], F.expr("if(kind = 'attached', 1, -1)")).select(
        "run", "client", F.col("since_ns").alias("came_ns"), F.col("until_ns").alias("went_ns")
    )


def spans(rows: DataFrame, keys: list[str], change: Column) -> DataFrame:
    """From when to when the sum of `change` was above 0: keys, since_ns, until_ns."""
    in_order = Window.partitionBy(*keys).orderBy("time_ns", F.desc("change"))
    level = F.sum("change").over(in_order.rowsBetween(Window.unboundedPreceding, 0))
    turns = (
        rows.select(*keys, "time_ns", change.alias("change"))
        .withColumn("level", level)
        .where("(change = 1 and level = 1) or (change = -1 and level = 0)")
    )
    until = F.lead("time_ns", 1, EVER).over(in_order)
    return (
        turns.withColumn("until_ns", until)
        .where("change = 1")
        .select(*keys, F.col("time_ns").alias("since_ns"), "until_ns")
    )


def merged(held: DataFrame) -> DataFrame:
    """Spans of one client that overlap, because several of its filters match, are one."""
    in_order = Window.partitionBy("run", "attributes", "client").orderBy("since_ns", "until_ns")
    before = F.max("until_ns").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce((F.col("since_ns") > before).cast("int"), F.lit(1))
    return (
        held.withColumn("begins", begins)
        .withColumn("island", F.sum("begins").over(in_order))
        .groupBy("run", "attributes", "client", "island")
        .agg(F.min("since_ns").alias("since_ns"), F.max("until_ns").alias("until_ns"))
        .drop("island")
    )


def _filters(facts: DataFrame) -> list[str]:
    asked = facts.where("kind = 'subscribed'").select("filter").distinct()
    return sorted(row["filter"] for row in asked.collect() if row["filter"] is not None)


def matches(attributes: DataFrame, filters: list[str]) -> DataFrame:
    """Which of the filters match which attributes, both as text: attributes, filter."""
    _index(filters)  # here, so that a filter which is none is one sentence, and not a failed task

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        index = _index(filters)
        for batch in batches:
            found = [
                (text, key)
                for text in batch.column(0).to_pylist()
                if text is not None
                for key in index.match(json.loads(text))
            ]
            yield pa.RecordBatch.from_pydict(
                {
                    "attributes": pa.array([text for text, _ in found], pa.string()),
                    "filter": pa.array([key for _, key in found], pa.string()),
                }
            )

    return attributes.mapInArrow(match, "attributes string, filter string")


def _index(filters: list[str]) -> FilterIndex[str]:
    index: FilterIndex[str] = FilterIndex()
    for text in filters:
        try:
            index.add(text, Filter.parse(text))
        except WayfareError as error:
            raise PipelineError(f"the log has a filter that is none: {error}") from None
    return index
