"""Notifications as rows, and back: what the data source reads and writes.

    time_ns, publisher, number ...     what a notification is: see `BASE`
    every other column                 an attribute of that name, where it is of the column's type

So `schema("service string, free long, time_ns long")` asks for two attributes and a time. A value that
a column cannot hold is null there; `attributes` has them all, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from wayfare.core.predicates import Value
from wayfare.errors import PipelineError
from wayfare.pipeline.archive import NOTIFICATIONS

BASE = StructType(
    [
        *NOTIFICATIONS,
        StructField("broker", StringType()),  # where it was delivered; null if it is archived
        StructField("delivery", LongType()),
    ]
)
_BASE = {one.name: one for one in BASE}


class Fact(NamedTuple):
    """A notification, and how it came here."""

    run: str
    time_ns: int
    publisher: str
    number: int
    attributes: Mapping[str, Value]
    payload: bytes
    broker: str | None = None
    delivery: int | None = None


def _text(value: Value) -> Value | None:
    return value if type(value) is str else None


def _truth(value: Value) -> Value | None:
    return value if type(value) is bool else None


def _whole(value: Value) -> Value | None:
    return int(value) if type(value) in (int, float) and int(value) == value else None


def _number(value: Value) -> Value | None:
    """No number that a double would only come near to: it would equal what it is not."""
    return float(value) if type(value) in (int, float) and int(float(value)) == int(value) else None


KINDS: dict[type[DataType], Callable[[Value], Value | None]] = {
    StringType: _text,
    BooleanType: _truth,
    LongType: _whole,
    DoubleType: _number,
}


def check_schema(schema: StructType) -> None:
    """PipelineError unless rows can have these columns."""
    for field in schema:
        base = _BASE.get(field.name)
        if base is not None and field.dataType != base.dataType:
            raise PipelineError(
                f"the column {field.name} is {base.dataType.simpleString()},"
                f" not {field.dataType.simpleString()}"
            )
        if base is None and type(field.dataType) not in KINDS:
            raise PipelineError(
                f"the column {field.name} is {field.dataType.simpleString()}: an attribute is a string,"
                " bigint, double or boolean"
            )


def attribute_columns(schema: StructType) -> dict[str, DataType]:
    return {one.name: one.dataType for one in schema if one.name not in _BASE}


def batch_of(facts: Iterable[Fact], schema: StructType) -> pa.RecordBatch:
    """These rows, with the columns of the schema."""
    facts = list(facts)
    columns = [[_cell(fact, field) for fact in facts] for field in schema]
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [pa.array(cells, one.type) for cells, one in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _cell(fact: Fact, field: StructField) -> Any:
    if field.name == "attributes":
        return msgspec.json.encode(fact.attributes).decode()
    if field.name in _BASE:
        return getattr(fact, field.name)
    value = fact.attributes.get(field.name)
    return None if value is None else KINDS[type(field.dataType)](value)


WRITTEN = (StringType, BooleanType, NumericType)


class Publication(NamedTuple):
    attributes: dict[str, Value]
    payload: bytes


def check_written(schema: StructType) -> None:
    """PipelineError unless rows with these columns can be published."""
    for field in schema:
        kind = field.dataType
        if field.name == "attributes":
            good = isinstance(kind, StringType) or (
                isinstance(kind, MapType) and isinstance(kind.keyType, StringType)
            )
        else:
            good = field.name in _BASE or isinstance(kind, WRITTEN)
        if not good:
            raise PipelineError(
                f"the column {field.name} is {kind.simpleString()} and cannot be published: attributes are"
                " strings, numbers and booleans; `attributes` is JSON or a map"
            )


def publication(row: Mapping[str, Any]) -> Publication:
    """What a row says: `attributes`, and over them every column that is an attribute and not null."""
    given = row.get("attributes") or {}
    attributes = msgspec.json.decode(given) if isinstance(given, str) else dict(given)
    for name, value in row.items():
        if name not in _BASE and value is not None:
            attributes[name] = value
    return Publication(attributes, bytes(row.get("payload") or b""))
