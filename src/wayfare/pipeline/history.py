"""History: a subscription in the past."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

from wayfare.core.filters import Filter
from wayfare.core.messages import ClientId, Notification, Number, State
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
    *,
    expired: bool = False,
    place: State | None = None,
) -> DataFrame:
    """What was published at `since` or later, before `until`, and is wanted; the earliest first.

    Not what has expired by `until`, or by now, unless `expired` says so. With a `place`, only what is of use there.
    """
    kept = archive.read(spark, path)
    then = archive.within(kept.frame, since_ns, until_ns)
    if not expired:
        then = archive.unexpired(then, time.time_ns() if until_ns is None else until_ns)
    if place is not None:
        then = archive.of_use_at(then, place)
    found = columns.matching(kept._replace(frame=then), wanted).orderBy(ORDER)
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
