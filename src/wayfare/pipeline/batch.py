"""The data source as a batch: the past that a broker remembers.

What Spark's filters say about attributes becomes part of Wayfare's filter, so that the rest does not
even come here. Spark looks at every row once more: what is asked for may be more than it wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from operator import and_
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import DataType, StructType

from wayfare.core.conditions import CONJUNCTIONS_MAX, Condition, attr
from wayfare.core.filters import Filter
from wayfare.core.history import FORGOTTEN_PAST
from wayfare.core.predicates import NAME_MAX, Value
from wayfare.errors import FilterError, PipelineError
from wayfare.net.background import Background
from wayfare.net.reader import Position, Reader
from wayfare.pipeline.rows import Fact, attribute_columns, batch_of
from wayfare.pipeline.settings import Settings
from wayfare.pipeline.stream import Batch, fact

ALL_S = 10.0**8  # seconds: all that a broker remembers


class PastReader(DataSourceReader):
    """What came by at brokers, and they remember."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings, self._schema = settings, schema
        self._wanted = settings.wanted

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802
        self._wanted = narrowed(self._wanted, filters, attribute_columns(self._schema))
        return filters

    def partitions(self) -> list[InputPartition]:
        background = Background(self._settings.client_id or "spark")
        try:
            return [
                Batch(batch_of(background.call(partial(self._past, address)), self._schema))
                for address in self._settings.addresses
            ]
        finally:
            background.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Batch):
            yield partition.rows

    async def _past(self, address: str) -> list[Fact]:
        settings = self._settings
        since = ALL_S if settings.since is None else settings.since
        name = f"{settings.client_id or 'spark'}-{uuid4().hex[:12]}"
        reader = Reader(
            address,
            name,
            self._wanted,
            Position(),
            since=since,
            leaves=True,
            **settings.connection,
        )
        async with reader:
            async with asyncio.timeout(settings.timeout):
                await _settled(reader)
            self._check_gaps(reader)
            return [
                fact(number, one.time_ns, one.notification, reader.where)
                for number, one in reader.held.items()
            ]

    def _check_gaps(self, reader: Reader) -> None:
        """Who asks for all that a broker remembers is content with that, but not with less."""
        settings = self._settings
        lost = [
            one.reason
            for one in reader.gaps.values()
            if settings.since is not None or one.reason != FORGOTTEN_PAST
        ]
        if lost and settings.fail_on_data_loss:
            wanted = (
                "all it remembers" if settings.since is None else f"the last {settings.since:g} s"
            )
            raise PipelineError(
                f"{reader.where} cannot tell {wanted}: {lost[0]}. To take what it has, set the option"
                " failOnDataLoss to false; for more, ask in parts (filter), or raise that limit"
            )


async def _settled(reader: Reader) -> None:
    """After a gap, the rest comes when the broker knows that the gap was heard of."""
    latest = -1
    while reader.latest > latest:
        latest = reader.latest
        await reader.settle()


def narrowed(wanted: Filter, filters: Iterable[ds.Filter], columns: dict[str, DataType]) -> Filter:
    """This filter, and what of those can be said in Wayfare's language too."""
    conditions = [
        one for one in (_condition(given, columns) for given in filters) if one is not None
    ]
    if not conditions:
        return wanted
    pushed = Filter.where(reduce(and_, conditions))
    both = [(*a, *b) for a in wanted.conjunctions for b in pushed.conjunctions]
    return Filter.of(both) if len(both) <= CONJUNCTIONS_MAX else wanted


def _condition(given: ds.Filter, columns: dict[str, DataType]) -> Condition | None:
    """A condition that is true of every row of which the filter is; None if there is none."""
    build = _SAID.get(type(given))
    if isinstance(given, ds.Not):
        build = _DENIED.get(type(given.child))
        given = given.child
    if build is None:
        return None
    name, *inside = given.attribute  # type: ignore[attr-defined]  # all that are in the tables have one
    if inside or name not in columns or len(name) > NAME_MAX:
        return None
    try:
        return build(attr(name), getattr(given, "value", None))
    except FilterError:  # a date, a decimal, or a number beyond 64 bits
        return None


def _one_of(name: attr, values: tuple[Value, ...]) -> Condition:
    return name.one_of(*(one for one in values if one is not None))


_Build = Callable[[attr, Any], Condition]
_SAID: dict[type[ds.Filter], _Build] = {
    ds.EqualTo: lambda name, value: name == value,
    ds.GreaterThan: lambda name, value: name > value,
    ds.GreaterThanOrEqual: lambda name, value: name >= value,
    ds.LessThan: lambda name, value: name < value,
    ds.LessThanOrEqual: lambda name, value: name <= value,
    ds.In: _one_of,
    ds.StringStartsWith: lambda name, value: name.prefix(value),
    ds.StringEndsWith: lambda name, value: name.suffix(value),
    ds.StringContains: lambda name, value: name.contains(value),
    ds.IsNotNull: lambda name, _: name.exists(),
}
# That a value is not known to Spark may only mean that it is of another kind: IsNull says nothing.
_DENIED: dict[type[ds.Filter], _Build] = {ds.EqualTo: lambda name, value: name != value}
