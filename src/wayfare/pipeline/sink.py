"""The data source as a sink: each row of a frame is published.

A task is a publisher, and its rows have numbers that are the same when it is repeated:

    batch       spark-<this write>-<partition>       1, 2, 3 ...
    stream      <client_id>-<query>-<partition>      the batch's own range of numbers

So brokers drop what an attempt that failed has published, and what a batch published whose end nobody
wrote down before kill -9. That needs the same rows in the same order again, which a shuffle does not
give: the option `sort` puts them in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from uuid import uuid4

import msgspec
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wayfare.core.filters import Filter
from wayfare.errors import PipelineError
from wayfare.net.writer import RANGE, Writer
from wayfare.pipeline.rows import Publication, check_written, publication
from wayfare.pipeline.settings import Settings

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


class BatchWriter(DataSourceWriter):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._offered = _offered(settings, schema)
        self._name = f"{settings.client_id or 'spark'}-{uuid4().hex[:12]}"

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        name = f"{self._name}-{_context().partitionId()}"
        rows = _publications(iterator, self._settings)
        asyncio.run(_publish(self._settings, self._offered, name, rows, base=0, leaves=True))
        return WriterCommitMessage()


class StreamWriter(DataSourceStreamWriter):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._offered = _offered(settings, schema)

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None and batch is not None, "a task of a stream knows its batch"
        name = f"{self._settings.client_id or 'spark'}-{query[:13]}-{context.partitionId()}"
        rows = _publications(iterator, self._settings)
        base = int(batch) * RANGE
        asyncio.run(_publish(self._settings, self._offered, name, rows, base, leaves=False))
        return WriterCommitMessage()


def _offered(settings: Settings, schema: StructType) -> Filter:
    check_written(schema)
    if settings.path is not None:
        raise PipelineError(
            "archives are not written by the data source: wayfare.pipeline.archive.add does that"
        )
    if settings.advertise is None:
        raise PipelineError(
            "say what is going to be published: the option advertise, a filter that matches it all"
        )
    return settings.advertise


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return context


def _publications(rows: Iterator[Row], settings: Settings) -> Iterator[Publication]:
    found = (publication(row.asDict()) for row in rows)
    if not settings.sort:
        return found
    return iter(sorted(found, key=_content))


def _content(one: Publication) -> tuple[bytes, bytes]:
    return msgspec.json.encode(one.attributes, order="sorted"), one.payload


async def _publish(
    settings: Settings,
    offered: Filter,
    name: str,
    rows: Iterator[Publication],
    base: int,
    leaves: bool,
) -> None:
    """Publish what no attempt has published before, and wait until a broker has it."""
    first = next(rows, None)
    if first is None:
        return
    writer = Writer(settings.addresses, name, offered, base, leaves=leaves, **settings.connection)
    async with writer:
        done = writer.accepted - base
        if not done:
            await writer.publish(*first)
        for one in islice(rows, max(0, done - 1), None):
            await writer.publish(*one)
        await writer.flush()
