"""Event logs as frames, whatever they were written as."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from wayfare.errors import PipelineError
from wayfare.eventlog import SCHEMA, Event, writer
from wayfare.pipeline import events

FACTS = [
    Event(1, "published", "ticker", number=1, attributes={"price": 41}),
    Event(2, "delivered", "anna", publisher="ticker", number=1, delivery=1),
    Event(3, "lost", "anna", count=2, reason="the buffer was full"),
]


def write(path: Path, run: str = "one") -> Path:
    with writer(path, run) as log:
        log.write(FACTS)
    return path


def test_parquet_and_json_lines_give_the_same_frame(spark: SparkSession, tmp_path: Path) -> None:
    parquet = events.read(spark, write(tmp_path / "a.parquet"))
    assert [row.kind for row in parquet.orderBy("time_ns").collect()] == [
        "published",
        "delivered",
        "lost",
    ]
    assert parquet.columns == SCHEMA.names
    assertDataFrameEqual(events.read(spark, write(tmp_path / "a.jsonl")), parquet)


def test_folders_and_several_logs_are_one_frame(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    write(tmp_path / "logs/a.parquet", "a")
    write(tmp_path / "logs/b.parquet", "b")
    whole = events.read(spark, tmp_path / "logs", write(tmp_path / "c.jsonl", "c"))
    assert {(row.run, row["count"]) for row in whole.groupBy("run").count().collect()} == {
        ("a", 3),
        ("b", 3),
        ("c", 3),
    }


def test_columns_that_a_log_came_without_are_null(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame(
        [("one", 1, "left")], "run string, time_ns int, kind string"
    ).write.parquet(str(tmp_path / "old"))
    (row,) = events.read(spark, tmp_path / "old").collect()
    assert (row.run, row.time_ns, row.kind, row.reason) == ("one", 1, "left", None)


def test_what_is_no_event_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.parquet(str(tmp_path / "other"))
    (tmp_path / "bad.jsonl").write_text('{"run": "one", "time_ns": 1\n')
    for path, complaint in {
        "none": "cannot be read as an event log: there is nothing at that path",
        "other": "is no event log: it has no column run and no time_ns and no kind",
        "bad.jsonl": "bad: a line there is no JSON object of the columns that are wanted",
    }.items():
        with pytest.raises(PipelineError, match=complaint), events.explained("bad"):
            events.read(spark, tmp_path / path).collect()
