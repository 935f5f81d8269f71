"""Archives: notifications of the past in Parquet, with columns that filters can be pushed down to.

    ARCHIVE/
      names/            which attributes there are, and where their values are; only ever added to
      notifications/    Parquet, by day (UTC) of publication
        day=2026-03-29/

A notification is a row of `NOTIFICATIONS`, whose `attributes` are the whole truth, as JSON. What
filters compare is there once more, in a column for each attribute and sort of value:

    text_service       texts
    number_free        numbers that a double can express
    whole_serial       whole numbers that it cannot, beyond 2**53
    truth_open         true and false

An attribute has either all its values in columns, in every file of the archive, or none: then only the
JSON has it. A file without a column is older than the first value for it, which is null there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from wayfare.core.areas import is_outside
from wayfare.core.messages import Area, State, check_attributes
from wayfare.core.predicates import Value
from wayfare.errors import InvalidNotification, PipelineError
from wayfare.pipeline.spark import explained

NOTIFICATIONS = StructType(
    [
        StructField("run", StringType()),  # of an event log; live, it is the publisher
        StructField("time_ns", LongType()),
        StructField("publisher", StringType()),
        StructField("number", LongType()),
        StructField("attributes", StringType()),  # JSON
        StructField("payload", BinaryType()),
    ]
)
# For how long, and where, a notification is of use. Archives of earlier releases have neither: null there means always, and everywhere.
USE = StructType([StructField("expires_ns", LongType()), StructField("area", StringType())])
STORED = StructType([*NOTIFICATIONS, *USE])
IDENTITY = ["run", "time_ns", "publisher", "number"]
DAY = StructField("day", DateType())
EPOCH = date(1970, 1, 1)
DAY_NS = 86_400 * 10**9
HOUR_NS = 3_600 * 10**9


class Sort(NamedTuple):
    """A sort of value, and what its columns are."""

    spark: DataType
    arrow: Any


SORTS = {
    "text": Sort(StringType(), pa.string()),
    "number": Sort(DoubleType(), pa.float64()),
    "whole": Sort(LongType(), pa.int64()),
    "truth": Sort(BooleanType(), pa.bool_()),
}
COLUMNS_MAX = 200  # attributes with columns; the others, which came later, are in the JSON only
# What a filter does not want is skipped by row groups, and by pages of them: smaller ones are skipped
# more often, larger ones are read faster.
ROW_GROUP_BYTES = 8 * 2**20
PAGE_ROWS = 2_000

Names = Mapping[str, frozenset[str]]  # the sorts of value that an attribute has columns for
Batches = Iterator[pa.RecordBatch]

FACTS = StructType([StructField("name", StringType()), StructField("sort", StringType())])
JSON_ONLY = "json"  # the sort of an attribute without columns


class Archive(NamedTuple):
    """An archive as it is now: `NOTIFICATIONS`, `day`, and the columns of attributes."""

    names: Names
    frame: DataFrame


def column_name(sort: str, name: str) -> str:
    """Letter case counts in names of attributes, but not in those of columns."""
    return f"{sort}_" + "".join(
        one if "a" <= one <= "z" or "0" <= one <= "9" else f"_{ord(one):x}_" for one in name
    )


def sort_of(value: Value) -> str:
    """In which sort of column a value is."""
    if type(value) is str:
        return "text"
    if type(value) is bool:
        return "truth"
    return "number" if type(value) is float or int(float(value)) == value else "whole"


def decoded(attributes: str) -> dict[str, Value]:
    """The attributes of a notification, of which all can be published."""
    try:
        out = _DECODER.decode(attributes)
        check_attributes(out)
    except (msgspec.MsgspecError, InvalidNotification) as error:
        raise PipelineError(f"{attributes[:80]!r} is no notification: {error}") from None
    return out


_DECODER = msgspec.json.Decoder(dict[str, str | int | float | bool])


# ---- reading --------------------------------------------------------------------------------


def read(spark: SparkSession, path: str) -> Archive:
    """The archive that is there."""
    found = _open(spark, path)
    if found is None:
        raise PipelineError(
            f"there is no archive at {path}: make one of event logs by wayfare history {path}"
            " --add LOG..."
        )
    return found


def _open(spark: SparkSession, path: str) -> Archive | None:
    """The archive, if there is one: what was begun and never got a notification is none."""
    with explained(f"the archive {path} cannot be read"):
        try:
            facts = spark.read.schema(FACTS).option("mode", "FAILFAST").json(f"{path}/names")
            names = _names(facts)
            schema = StructType([*STORED, *_fields(names), DAY])
            return Archive(names, spark.read.schema(schema).parquet(f"{path}/notifications"))
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise


def _names(facts: DataFrame) -> Names:
    out: defaultdict[str, set[str]] = defaultdict(set)
    for name, sort in facts.collect():
        out[name].update({sort} & SORTS.keys())
    return {name: frozenset(sorts) for name, sorts in out.items()}


def _fields(names: Names) -> list[StructField]:
    return [
        StructField(column_name(sort, name), SORTS[sort].spark) for name, sort in _columns(names)
    ]


def _columns(names: Names) -> list[tuple[str, str]]:
    return [(name, sort) for name in sorted(names) for sort in SORTS if sort in names[name]]


def within(frame: DataFrame, since_ns: int | None, until_ns: int | None) -> DataFrame:
    """What was published at `since` or later, and before `until`; other days are not even opened."""
    if since_ns is not None:
        frame = frame.where((F.col("day") >= day_of(since_ns)) & (F.col("time_ns") >= since_ns))
    if until_ns is not None:
        frame = frame.where((F.col("day") <= day_of(until_ns)) & (F.col("time_ns") < until_ns))
    return frame


def unexpired(frame: DataFrame, now_ns: int) -> DataFrame:
    """What has not expired at this time."""
    left_ns = F.col("expires_ns") - (F.lit(now_ns) - F.col("time_ns"))
    return frame.where(F.col("expires_ns").isNull() | (left_ns > 0))


def of_use_at(frame: DataFrame, place: State) -> DataFrame:
    """What is of use for a client that is there."""

    def is_inside(area: str | None) -> bool:  # Spark calls it for every row
        return area is None or not is_outside(_area(area), place)

    return frame.where(F.udf(is_inside, BooleanType(), useArrow=False)("area"))


def _area(text: str) -> Area:
    """An area as event logs have it."""
    said = msgspec.json.decode(text)
    if "locations" in said:
        return Area(tuple(said["locations"]))
    return Area((), (said["lat"], said["lon"], said["metres"]))


def day_of(time_ns: int) -> date:
    """The day in UTC."""
    return EPOCH + timedelta(days=time_ns // DAY_NS)


# ---- adding ---------------------------------------------------------------------------------


def published(events: DataFrame) -> DataFrame:
    """The notifications of event logs, which have no payloads."""
    return events.where(F.col("kind") == "published").select(
        "run",
        "time_ns",
        F.col("client").alias("publisher"),
        "number",
        "attributes",
        F.lit(b"").alias("payload"),
        *USE.names,
    )


def add(
    spark: SparkSession, path: str, notifications: DataFrame, by: Sequence[str] | None = None
) -> int:
    """Add what is not there yet, and count it; the rows of a day are sorted `by` these attributes.

    By default that is the text that most of them have and that repeats most, which is what filters
    ask for first. Names are written before notifications: if those fail, the next attempt
    finds columns that are still empty, and goes on.
    """
    with explained(f"notifications cannot be added to {path}"):
        kept = _open(spark, path)
        use = [
            F.col(one.name) if one.name in notifications.columns else _nothing(one) for one in USE
        ]
        new = notifications.select(*NOTIFICATIONS.names, *use).dropDuplicates(IDENTITY)
        if kept is not None:
            new = _unknown(new, kept.frame)
        new.cache()
        try:
            count = new.count()
            if count:
                _file(spark, path, new, kept.names if kept else {}, by)
            elif notifications.isEmpty():
                raise PipelineError("there are no notifications to add: nothing was published")
        finally:
            new.unpersist()
        return count


def _nothing(field: StructField) -> Column:
    return F.lit(None).cast(field.dataType).alias(field.name)


def _unknown(new: DataFrame, old: DataFrame) -> DataFrame:
    """Without what the archive has already, which is looked for in the same days only."""
    first, last = new.agg(F.min("time_ns"), F.max("time_ns")).first() or (None, None)
    days = within(old, first, None if last is None else last + 1)
    return new.join(days.select(IDENTITY), IDENTITY, "left_anti")


def _file(
    spark: SparkSession, path: str, new: DataFrame, known: Names, by: Sequence[str] | None
) -> None:
    seen = _survey(new)
    names = _with_new(known, seen)
    lead = _repeating(seen) if by is None else by
    for name in lead:
        if not names.get(name):
            raise PipelineError(f"there is no column of an attribute {name} to sort by")
    _write_names(spark, path, names, known)
    _write(path, new, names, lead)


class Seen(NamedTuple):
    """How often an attribute has values of one sort, and how many texts there are in a batch."""

    name: str
    sort: str
    rows: int
    texts: int


def _survey(notifications: DataFrame) -> list[Seen]:
    schema = "name string, sort string, rows long, texts long"
    by_batch = notifications.select("attributes").mapInArrow(_surveyed, schema)
    totals = by_batch.groupBy("name", "sort").agg(F.sum("rows"), F.max("texts"))
    return sorted(
        (Seen(*row) for row in totals.collect()), key=lambda one: (-one.rows, one.name, one.sort)
    )


def _surveyed(batches: Batches) -> Batches:
    for batch in batches:
        rows: Counter[tuple[str, str]] = Counter()
        texts: defaultdict[str, set[str]] = defaultdict(set)
        for attributes in batch.column("attributes").to_pylist():
            for name, value in decoded(attributes).items():
                rows[name, sort_of(value)] += 1
                if type(value) is str:
                    texts[name].add(value)
        yield pa.RecordBatch.from_pylist(
            [
                {"name": name, "sort": sort, "rows": count, "texts": len(texts[name])}
                for (name, sort), count in rows.items()
            ],
            pa.schema(
                {"name": pa.string(), "sort": pa.string(), "rows": pa.int64(), "texts": pa.int64()}
            ),
        )


def _with_new(known: Names, seen: Sequence[Seen]) -> Names:
    """The names of an archive to which these come; frequent ones get columns first."""
    out = {name: set(sorts) for name, sorts in known.items()}
    new = [name for name in dict.fromkeys(one.name for one in seen) if name not in known]
    filed = {name for name, sorts in known.items() if sorts}
    filed.update(new[: COLUMNS_MAX - len(filed)])
    for name, sort, *_ in seen:
        out.setdefault(name, set()).update({sort} if name in filed else ())
    return {name: frozenset(sorts) for name, sorts in out.items()}


def _repeating(seen: Sequence[Seen]) -> list[str]:
    """The text with the fewest values, of those that are about as frequent as any attribute."""
    most = max((one.rows for one in seen), default=0)
    found = [one for one in seen if one.texts > 1 and one.sort == "text" and 2 * one.rows >= most]
    return [min(found, key=lambda one: one.texts).name] if found else []


def _write_names(spark: SparkSession, path: str, names: Names, known: Names) -> None:
    facts = [
        (name, sort)
        for name in sorted(names)
        for sort in sorted(names[name] or {JSON_ONLY})
        if name not in known or (names[name] and sort not in known[name])
    ]
    if facts or not known:
        frame = spark.createDataFrame(facts, FACTS)
        frame.coalesce(1).write.mode("append").json(f"{path}/names")


def _write(path: str, new: DataFrame, names: Names, lead: Sequence[str]) -> None:
    schema = StructType([*STORED, *_fields(names)])
    order = [column_name(sort, name) for name, sort in _columns(names) if name in lead]
    day = F.date_add(F.lit(EPOCH), F.call_function("div", "time_ns", F.lit(DAY_NS)).cast("int"))
    (
        new.mapInArrow(_filing(names), schema)
        .withColumn(DAY.name, day)
        .repartition(DAY.name, F.call_function("div", "time_ns", F.lit(HOUR_NS)))
        .sortWithinPartitions(DAY.name, *order, "time_ns")
        .write.partitionBy(DAY.name)
        .option("parquet.block.size", ROW_GROUP_BYTES)
        .option("parquet.page.row.count.limit", PAGE_ROWS)
        .mode("append")
        .parquet(f"{path}/notifications")
    )


def _filing(names: Names) -> Callable[[Batches], Batches]:
    """A function that puts the values of attributes into their columns."""
    columns = _columns(names)
    schema = pa.schema([(column_name(sort, name), SORTS[sort].arrow) for name, sort in columns])
    place = {column: at for at, column in enumerate(columns)}

    def file(batches: Batches) -> Batches:
        for batch in batches:
            cells: list[list[Any]] = [[None] * len(batch) for _ in columns]
            for row, attributes in enumerate(batch.column("attributes").to_pylist()):
                for name, value in decoded(attributes).items():
                    sort = sort_of(value)
                    at = place.get((name, sort))
                    if at is not None:
                        # No -0.0: it equals 0.0, but Parquet's dictionaries know them apart.
                        cells[at][row] = float(value) + 0.0 if sort == "number" else value
            arrays = [pa.array(cell, one.type) for cell, one in zip(cells, schema, strict=True)]
            fields = [*batch.schema, *schema]
            yield pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=pa.schema(fields))

    return file
