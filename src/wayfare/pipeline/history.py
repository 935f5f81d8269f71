"""History: a subscription in the past."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

from wayfare.core.filters import Filter
from wayfare.core.messages import ClientId, Notification, Number
from wayfare.pipeline import archive, columns
from wayfare.pipeline.spark import explained

ORDER = ["time_ns", "publisher", "number", "run"]


def past(
    spark: SparkSession,
    path: str,
    wanted: Filter,
    since_ns: int | None = None,
    until_ns: int | None = None,
    limit: int | None = None,
) -> DataFrame:
    """What was published at `since` or later, before `until`, and is wanted; the earliest first."""
    kept = archive.read(spark, path)
    then = kept._replace(frame=archive.within(kept.frame, since_ns, until_ns))
    found = columns.matching(then, wanted).orderBy(ORDER)
    return found if limit is None else found.limit(limit)


def told(found: DataFrame, path: str) -> Iterator[tuple[int, Notification]]:
    """The notifications of this archive one by one, each with its time."""
    with explained(f"the archive {path} cannot be read"):
        for row in found.toLocalIterator():
            attributes = archive.decoded(row.attributes)
            publisher, number = ClientId(row.publisher), Number(row.number)
            yield row.time_ns, Notification(publisher, number, attributes, bytes(row.payload))


def write(found: DataFrame, target: str) -> int:
    """As one file of Parquet, in a folder as Spark makes it; how many they are."""
    with explained(f"{target} cannot be written"):
        found.coalesce(1).write.parquet(target)
        return found.sparkSession.read.parquet(target).count()
