"""The data source over an archive: one task for each file, and of it only what may match.

Days are chosen by what Spark's filters say about `time_ns`. Within a file, row groups are skipped by
time and by the attributes that the filter compares with `=` or `in`; what is left of it is matched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import and_, or_
from time import time_ns as now_ns
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
from pyarrow import fs
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from wayfare.core import predicates as ps
from wayfare.core.filters import Filter
from wayfare.core.predicates import INT_MAX, INT_MIN
from wayfare.errors import PipelineError
from wayfare.pipeline.archive import NOTIFICATIONS, SORTS, column_name, day_of, decoded, sort_of
from wayfare.pipeline.batch import narrowed
from wayfare.pipeline.rows import Fact, attribute_columns, batch_of
from wayfare.pipeline.settings import Settings

DAYS = pads.partitioning(pa.schema([("day", pa.date32())]), flavor="hive")
ARROW = pa.schema(
    [
        ("run", pa.string()),
        ("time_ns", pa.int64()),
        ("publisher", pa.string()),
        ("number", pa.int64()),
        ("attributes", pa.string()),
        ("payload", pa.binary()),
        ("expires_ns", pa.int64()),
        ("area", pa.string()),
    ]
)


class File(InputPartition):
    def __init__(self, name: str) -> None:
        self.name = name


class ArchiveReader(DataSourceReader):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        assert settings.path is not None
        self._path, self._schema = settings.path, schema
        self._wanted, self._expired = settings.wanted, settings.expired
        self._since, self._until = INT_MIN, INT_MAX  # both included

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802
        self._wanted = narrowed(self._wanted, filters, attribute_columns(self._schema))
        for one in filters:
            if getattr(one, "attribute", None) == ("time_ns",):
                since, until = _SPANS.get(type(one), _everything)(getattr(one, "value", None))
                self._since, self._until = max(self._since, since), min(self._until, until)
        return filters

    def partitions(self) -> list[InputPartition]:
        filesystem, path = _place(self._path)
        try:
            whole = pads.dataset(
                f"{path}/notifications", filesystem=filesystem, format="parquet", partitioning=DAYS
            )
        except (OSError, pa.ArrowInvalid) as error:
            raise PipelineError(f"there is no archive at {self._path}: {error}") from None
        files = [one.path for one in whole.get_fragments(filter=self._days())]
        return [File(one) for one in files]

    def _days(self) -> pads.Expression:
        days = pads.field("day")
        wanted = pads.scalar(True)
        if self._since > INT_MIN:
            wanted = wanted & (days >= pa.scalar(day_of(self._since), pa.date32()))
        if self._until < INT_MAX:
            wanted = wanted & (days <= pa.scalar(day_of(self._until), pa.date32()))
        return wanted

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, File):
            return  # Spark's own, when there is no file
        filesystem, path = _place(self._path)
        names = _names(filesystem, path)
        columns = [
            pa.field(column_name(sort, name), SORTS[sort].arrow)
            for name, sorts in sorted(names.items())
            for sort in sorted(sorts)
        ]
        file = pads.dataset(
            partition.name,
            schema=pa.schema([*ARROW, *columns]),
            filesystem=filesystem,
            format="parquet",
        )
        time = pads.field("time_ns")
        maybe = (time >= self._since) & (time <= self._until) & expression(self._wanted, names)
        if not self._expired:
            expires = pads.field("expires_ns")
            maybe &= expires.is_null() | (expires > pads.scalar(now_ns()) - time)
        for batch in file.to_batches(columns=NOTIFICATIONS.names, filter=maybe):
            yield batch_of(self._matching(batch), self._schema)

    def _matching(self, batch: pa.RecordBatch) -> Iterator[Fact]:
        for row in batch.to_pylist():
            attributes = decoded(row["attributes"])
            if self._wanted.matches(attributes):
                yield Fact(**{**row, "attributes": attributes})


def _place(path: str) -> tuple[fs.FileSystem, str]:
    filesystem, place = fs.FileSystem.from_uri(path) if "://" in path else (None, path)
    return filesystem or fs.LocalFileSystem(), place.rstrip("/")


def _names(filesystem: fs.FileSystem, path: str) -> dict[str, set[str]]:
    """Which attributes there are, and the sorts that have columns."""
    out: dict[str, set[str]] = {}
    for info in filesystem.get_file_info(fs.FileSelector(f"{path}/names")):
        if info.is_file and not info.base_name.startswith(("_", ".")):
            with filesystem.open_input_stream(info.path) as file:
                for line in file.read().splitlines():
                    fact = json.loads(line)
                    out.setdefault(fact["name"], set()).update({fact["sort"]} & SORTS.keys())
    return out


def expression(wanted: Filter, names: dict[str, set[str]]) -> pads.Expression:
    """True of every row that the filter matches, and of some others."""
    ways = [
        reduce(and_, [_said(p, names) for p in conjunction], pads.scalar(True))
        for conjunction in wanted.conjunctions
    ]
    return reduce(or_, ways, pads.scalar(False))


def _said(p: ps.Predicate, names: dict[str, set[str]]) -> pads.Expression:
    if not isinstance(p, ps.OneOf) or not names.get(p.name):
        return pads.scalar(True)
    return reduce(
        or_,
        [
            pads.field(column_name(sort, p.name))
            == pa.scalar(_typed(value, sort), SORTS[sort].arrow)
            for value in p.values
            if (sort := sort_of(value)) in names[p.name]
        ],
        pads.scalar(False),
    )


def _typed(value: ps.Value, sort: str) -> ps.Value:
    return float(value) if sort == "number" else value


def _everything(_: Any) -> tuple[int, int]:
    return INT_MIN, INT_MAX


_SPANS: dict[type[ds.Filter], Callable[[Any], tuple[int, int]]] = {
    ds.EqualTo: lambda time: (time, time),
    ds.GreaterThan: lambda time: (time + 1, INT_MAX),
    ds.GreaterThanOrEqual: lambda time: (time, INT_MAX),
    ds.LessThan: lambda time: (INT_MIN, time - 1),
    ds.LessThanOrEqual: lambda time: (INT_MIN, time),
}
