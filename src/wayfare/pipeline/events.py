"""Event logs as frames: Parquet or JSON lines, of simulations and of the live network alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from wayfare.errors import PipelineError
from wayfare.eventlog import NEEDED, SCHEMA
from wayfare.pipeline.spark import explained

TYPES: dict[Any, DataType] = {pa.string(): StringType(), pa.int64(): LongType()}
EVENTS = StructType([StructField(one.name, TYPES[one.type], one.nullable) for one in SCHEMA])
LIVE = "live"  # the run of logs that live clients wrote


def read(spark: SparkSession, *paths: str | Path) -> DataFrame:
    """Logs, or folders of them, as one frame with the columns of `EVENTS`."""
    if not paths:
        raise PipelineError("no event log was named: give a file or a folder")
    frames = [_read_one(spark, str(path)) for path in paths]
    whole = frames[0]
    for one in frames[1:]:
        whole = whole.unionByName(one)
    return whole


def _read_one(spark: SparkSession, path: str) -> DataFrame:
    with explained(f"{path} cannot be read as an event log"):
        if _is_json(path):
            frame = spark.read.schema(EVENTS).option("mode", "FAILFAST").json(path)
        else:
            frame = spark.read.option("mergeSchema", "true").parquet(path)
        return complete(frame, path)


def _is_json(path: str) -> bool:
    """By its name; a folder is what its files are."""
    if path.endswith((".jsonl", ".json", ".jsonl.gz")):
        return True
    here = Path(path)
    return here.is_dir() and any(here.rglob("*.jsonl")) and not any(here.rglob("*.parquet"))


def one_run(log: DataFrame, name: str | None = None) -> DataFrame:
    """All of a log as one run: if a name is given, or if every row is of the client it is named after.

    Live clients write such logs, each its own; together they tell what happened.
    """
    if name is None:
        others = log.where("client is null or client != run")
        if not others.isEmpty():
            return log
    return log.withColumn("run", F.lit(name or LIVE))


def of_clients(log: DataFrame, name: str | None = None) -> DataFrame:
    """A stream as `one_run` would have it: what clients tell under their own names is one run."""
    if name is not None:
        return log.withColumn("run", F.lit(name))
    return log.withColumn("run", F.when(F.expr("client = run"), LIVE).otherwise(F.col("run")))


def complete(frame: DataFrame, path: str) -> DataFrame:
    """The columns of an event log in their order; those that it came without are null."""
    missing = [name for name in SCHEMA.names if name in NEEDED - {*frame.columns}]
    if missing:
        raise PipelineError(
            f"{path} is no event log: it has no column {' and no '.join(missing)}"
            f" (docs/event-log.md has them all; it has {', '.join(frame.columns) or 'none'})"
        )
    return frame.select(
        [
            F.col(field.name).cast(field.dataType)
            if field.name in frame.columns
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in EVENTS
        ]
    )


def of_notifications(rows: DataFrame) -> DataFrame:
    """The events that clients have published, by `eventlog.fields`, of what the data source has read."""
    event = F.from_json("attributes", EVENTS)
    whole = " and ".join(f"event.{name} is not null" for name in NEEDED)
    return rows.select(event.alias("event")).where(whole).select("event.*")
