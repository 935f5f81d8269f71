"""The analysis of a log on Spark against the same in DuckDB: CPU seconds, in one run.

The log is made up: publishers with a topic each, subscribers to one topic that attach elsewhere now and
then, a delivery for each pair, of which some are missing, come twice, or come late. DuckDB is told in
SQL what Spark is told in `pipeline/analyse.py`; both have to come to the same counts. Each runs twice,
and the second time counts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from wayfare.bench.timing import family_cpu_s
from wayfare.pipeline import events, spark
from wayfare.pipeline.analyse import SETTINGS, analyse

DELIVERIES = (1_000_000, 10_000_000)
PUBLISHERS, TOPICS, SUBSCRIBERS = 100, 10, 1000
FAN_OUT = SUBSCRIBERS // TOPICS
STAYS = 10  # of each subscriber
EVERY_NS = 1_000_000  # between two publications, of whomever


def run(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    session = spark.start(**SETTINGS)
    before: float | None = None
    for rows in (DELIVERIES[0] // 10,) if quick else DELIVERIES:
        with tempfile.TemporaryDirectory(prefix="wayfare-analyse-") as folder:
            path = Path(folder) / "log"
            synthetic(session, rows, seed).write.parquet(str(path))
            there, duckdb_s = second(partial(in_duckdb, path))
            here, spark_s = second(partial(on_spark, session, path))
        yield {
            "deliveries": rows,
            "spark_cpu_s": round(spark_s, 1),
            "duckdb_cpu_s": None if there is None else round(duckdb_s, 1),
            "ratio": None if there is None else round(spark_s / duckdb_s, 2),
            "growth": None if before is None else round(spark_s / before, 2),
            "same": None if there is None else all(here[name] == there[name] for name in there),
            "lost": here["lost"],
            "note": "duckdb is not installed: pip install duckdb" if there is None else "",
        }
        before = spark_s


def second(work: Callable[[], Any]) -> tuple[Any, float]:
    """What comes out, and CPU seconds of the second time, with all processes below this one."""
    work()
    before = family_cpu_s()
    out = work()
    return out, family_cpu_s() - before


# The log


def synthetic(session: SparkSession, deliveries: int, seed: int) -> DataFrame:
    """So many deliveries, more or less, with all that belongs to them."""
    publications = deliveries // FAN_OUT
    stay_ns = max(1, publications * EVERY_NS // STAYS)
    published = session.range(publications).selectExpr(
        "'published' kind",
        f"id * {EVERY_NS} time_ns",
        f"concat('p', id % {PUBLISHERS}) client",
        f"id div {PUBLISHERS} + 1 number",
        "1L epoch",
        f"""concat('{{"topic": "t', id % {TOPICS}, '", "value": ', id % 7, '}}') attributes""",
    )
    subscribed = session.range(SUBSCRIBERS).selectExpr(
        "'subscribed' kind",
        "0L time_ns",
        "concat('s', id) client",
        f"concat('topic = \\'t', id % {TOPICS}, '\\'') filter",
    )
    attached = session.range(SUBSCRIBERS * STAYS).selectExpr(
        "'attached' kind",
        f"id div {SUBSCRIBERS} * {stay_ns} time_ns",
        f"concat('s', id % {SUBSCRIBERS}) client",
        f"concat('b', pmod(xxhash64(id, {seed}), 7)) broker",
        f"id div {SUBSCRIBERS} + 1 epoch",
    )
    # A thousandth is lost, comes twice, or is overtaken by the next one of its publisher.
    chance = f"pmod(xxhash64(id, {seed}), 1000000) chance"
    delivered = (
        session.range(deliveries)
        .selectExpr("id", f"id div {FAN_OUT} publication", chance)
        .where("chance >= 1000")
        .selectExpr(
            "*",
            "explode(if(chance < 2000, array(0, 1), array(0))) again",
            "if(chance between 2000 and 2999, 150000000, 0) late_ns",
        )
        .selectExpr(
            "'delivered' kind",
            f"publication * {EVERY_NS} + 1000000 + chance * 40 + late_ns + again * 200000000 time_ns",
            f"concat('s', publication % {TOPICS} + {TOPICS} * (id % {FAN_OUT})) client",
            f"concat('p', publication % {PUBLISHERS}) publisher",
            f"publication div {PUBLISHERS} + 1 number",
            "publication delivery",
            f"least({STAYS}, publication * {EVERY_NS} div {stay_ns} + 1) epoch",
        )
    )
    whole = published
    for part in (subscribed, attached, delivered):
        whole = whole.unionByName(part, allowMissingColumns=True)
    return events.complete(whole.withColumn("run", F.lit("made up")), "this log")


# The analysis


def on_spark(session: SparkSession, path: Path) -> dict[str, Any]:
    with analyse(events.read(session, path)) as analysis:
        (row,) = analysis.tables["runs"].collect()
        return row.asDict()


def in_duckdb(path: Path) -> dict[str, Any] | None:
    """The same counts; None, if DuckDB is not installed."""
    try:
        import duckdb
    except ModuleNotFoundError:
        return None
    with duckdb.connect() as database:
        database.execute(f"SET threads = {os.cpu_count()}")
        database.execute(f"CREATE VIEW log AS SELECT * FROM read_parquet('{path}/*.parquet')")
        found = database.execute(SQL)
        names = [column[0] for column in found.description or []]
        (row,) = found.fetchall()
        return dict(zip(names, row, strict=True))


# Filters are of one form here, so SQL can match them; all else is what pipeline/analyse.py does.
SQL = """
WITH published AS MATERIALIZED (
  SELECT run, client AS publisher, number, time_ns AS at_ns, attributes
  FROM log WHERE kind = 'published'),
topics AS (
  SELECT DISTINCT attributes, json_extract_string(attributes, '$.topic') AS topic FROM published),
wants AS MATERIALIZED (
  SELECT run, topics.attributes, client, time_ns AS since_ns
  FROM log JOIN topics ON log.filter = concat('topic = ''', topic, '''') WHERE kind = 'subscribed'),
expected AS (
  SELECT count(*) AS expected FROM published JOIN wants USING (run, attributes)
  WHERE at_ns >= since_ns),
judged AS (
  SELECT time_ns, at_ns, wants.client IS NOT NULL AS asked,
    coalesce(lag(d.number) OVER backwards <> d.number, true) AS first,
    min(time_ns) OVER (
      PARTITION BY d.run, d.client, d.publisher ORDER BY d.number DESC, time_ns, delivery
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS newer_ns
  FROM (SELECT run, client, publisher, number, time_ns, delivery FROM log
        WHERE kind = 'delivered') d
  LEFT JOIN published p USING (run, publisher, number)
  LEFT JOIN wants ON wants.run = d.run AND wants.attributes = p.attributes
    AND wants.client = d.client AND at_ns >= since_ns
  WINDOW backwards AS (
    PARTITION BY d.run, d.client, d.publisher ORDER BY d.number DESC, time_ns, delivery)),
outcome AS (
  SELECT count(*) FILTER (first AND asked) AS delivered, count(*) FILTER (NOT first) AS duplicates,
    count(*) FILTER (first AND newer_ns < time_ns) AS order_violations,
    quantile_disc(round((time_ns - at_ns) / 1000), 0.5) FILTER (first) / 1000 AS delay_p50_ms,
    quantile_disc(round((time_ns - at_ns) / 1000), 0.99) FILTER (first) / 1000 AS delay_p99_ms
  FROM judged),
stays AS (
  SELECT *, coalesce(broker <> lag(broker) OVER in_order, false) AS moved,
    lead(time_ns, 1, 9223372036854775807) OVER in_order AS until_ns
  FROM log WHERE kind = 'attached'
  WINDOW in_order AS (PARTITION BY run, client ORDER BY time_ns, epoch)),
moves AS MATERIALIZED (
  SELECT run, client, epoch, time_ns AS came_ns, until_ns, moved,
    count(*) FILTER (moved) OVER so_far AS move,
    max(time_ns) FILTER (moved) OVER so_far AS moved_ns
  FROM stays WINDOW so_far AS (PARTITION BY run, client ORDER BY time_ns, epoch)),
after AS (
  SELECT d.run, d.client, move, min(time_ns) AS first_ns,
    min(time_ns) FILTER (at_ns > moved_ns) AS live_ns
  FROM (SELECT run, client, publisher, number, time_ns, epoch FROM log
        WHERE kind = 'delivered') d
  JOIN moves USING (run, client, epoch)
  LEFT JOIN published USING (run, publisher, number)
  WHERE move > 0 AND time_ns BETWEEN came_ns AND until_ns GROUP BY ALL),
waits AS (
  SELECT count(*) AS moves, count(*) FILTER (live_ns IS NULL) AS moves_without_live,
    quantile_disc((first_ns - came_ns) / 1e6, 0.5) AS first_p50_ms,
    quantile_disc((live_ns - came_ns) / 1e6, 0.5) AS live_p50_ms
  FROM moves LEFT JOIN after USING (run, client, move) WHERE moved)
SELECT (SELECT count(*) FROM published) AS published, expected, delivered,
  expected - delivered AS lost, duplicates, order_violations, moves, moves_without_live,
  delay_p50_ms, delay_p99_ms, first_p50_ms, live_p50_ms
FROM expected, outcome, waits
"""
