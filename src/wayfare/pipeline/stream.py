"""The data source as a stream: offsets are deliveries of sessions, which brokers keep until Spark commits.

    initialOffset     nothing is known yet: the session is opened by whoever reads first
    latestOffset      how far deliveries have come, at each broker
    partitions        the deliveries of a range, in the task itself: workers need no way to brokers
    commit            Spark will not ask for these again: the broker may forget them

After kill -9, the next process asks for the sessions of the last offsets, and gets the same deliveries
under the same numbers: a range is the same rows again, but for `time_ns`, which is when they came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from wayfare.errors import Closed, NotConfirmed, PipelineError
from wayfare.net.background import Background
from wayfare.net.reader import Position, Reader
from wayfare.net.subscription import Notification
from wayfare.pipeline.rows import Fact, batch_of
from wayfare.pipeline.settings import Settings

logger = logging.getLogger("wayfare.client")

POLL_S = 0.1  # that is waited for something new, before Spark is told that there is nothing

P = ParamSpec("P")
T = TypeVar("T")

Offsets = dict[str, Any]  # address -> Position, as JSON


class Batch(InputPartition):
    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of its own, beside the driver. Its copies in tasks are never opened."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings, self._schema = settings, schema
        self._background: Background | None = None
        self._readers: dict[str, Reader] = {}
        self._ends = False  # with what is there when it begins
        self._targets: dict[str, int] = {}

    def initialOffset(self) -> Offsets:  # noqa: N802
        return {one: Position()._asdict() for one in self._settings.addresses}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._settings.max_rows)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        begun = {one: _position(start, one) for one in self._settings.addresses}
        self._open(begun)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._call(self._latest, begun, most)

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        begun = {one: _position(start, one) for one in end}
        ended = {one: _position(end, one) for one in end}
        for address in end:
            if address not in self._settings.addresses and begun[address] != ended[address]:
                raise PipelineError(
                    f"the checkpoint has a batch with deliveries of {address} that is not finished: name"
                    " that broker until it is"
                )
        # Who was killed in its first batch has a session in the end only.
        self._open(
            {
                one: ended[one]._replace(delivery=begun[one].delivery)
                for one in end
                if one in self._settings.addresses
            }
        )
        out: list[InputPartition] = []
        for address in self._settings.addresses:
            if address in end and begun[address].delivery < ended[address].delivery:
                facts = self._call(self._range, address, begun[address], ended[address])
                if facts:
                    out.append(Batch(batch_of(facts, self._schema)))
        return out

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Batch)
        yield partition.rows

    def commit(self, end: Offsets) -> None:
        done = {one: _position(end, one) for one in end if one in self._settings.addresses}
        self._open({one: done[one] for one in done if done[one].session})
        self._call(self._commit, done)

    def stop(self) -> None:
        if self._background is not None:
            for reader in self._readers.values():
                self._background.call(reader.close)
            self._background.stop()

    # Behind these, in the thread of the readers

    def _call(self, work: Callable[P, Coroutine[Any, Any, T]], *a: P.args, **k: P.kwargs) -> T:
        if self._background is None:
            self._background = Background(self._settings.client_id)
        return self._background.call(lambda: work(*a, **k))

    def _open(self, positions: Mapping[str, Position]) -> None:
        for address, position in positions.items():
            if address not in self._readers:
                self._readers[address] = self._call(self._opened, address, position)

    async def _opened(self, address: str, position: Position) -> Reader:
        settings = self._settings
        reader = Reader(
            address,
            settings.client_id,
            settings.wanted,
            position,
            since=settings.since or 0.0,
            **settings.connection,
        )
        try:
            await reader.open()
            async with asyncio.timeout(settings.timeout):
                await reader.settle()
            if not position.session:  # it begins, with what comes from now on
                await _be_ready(reader)
        except BaseException:
            with suppress(Closed):
                await reader.close(0)
            raise
        return reader

    async def _latest(self, begun: Mapping[str, Position], most: int | None) -> Offsets:
        readers = self._readers
        if self._ends and not self._targets:
            self._targets = {one: reader.latest for one, reader in readers.items()}
        elif not self._ends:
            await self._news(begun)
        share = None if most is None else max(1, most // len(begun))
        out = {}
        for address, start in begun.items():
            reader = readers[address]
            reader.check()
            last = min(reader.latest, self._targets.get(address, reader.latest))
            new = [number for number in reader.held if start.delivery < number <= last]
            end = new[share - 1] if share is not None and len(new) > share else last
            if end <= start.delivery:
                out[address] = start._asdict()
                continue
            self._check_gaps(reader, start.delivery, end)
            out[address] = reader.position()._replace(delivery=end)._asdict()
        return out

    async def _news(self, begun: Mapping[str, Position]) -> None:
        waiting = [
            asyncio.create_task(self._readers[address].reach(start.delivery + 1))
            for address, start in begun.items()
        ]
        await asyncio.wait(waiting, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _range(self, address: str, start: Position, end: Position) -> list[Fact]:
        reader = self._readers[address]
        self._check_gaps(reader, start.delivery, end.delivery)
        if reader.gaps and reader.latest < end.delivery:
            # What was delivered is gone, and numbers go on from the start: let them go on from the end.
            found = _facts(reader, start.delivery, end)
            await reader.close(0)
            later = Position(end.broker, reader.session, end.delivery)
            self._readers[address] = await self._opened(address, later)
            return found
        try:
            async with asyncio.timeout(self._settings.timeout):
                await reader.reach(end.delivery)
        except TimeoutError:
            raise PipelineError(
                f"{end.broker} does not deliver what it delivered before the restart, up to"
                f" {end.delivery}: only {reader.latest} came within {self._settings.timeout:g} s"
            ) from None
        self._check_gaps(reader, start.delivery, end.delivery)
        return _facts(reader, start.delivery, end)

    async def _commit(self, done: Mapping[str, Position]) -> None:
        for address, position in done.items():
            if address in self._readers:
                self._readers[address].commit(position.delivery)

    def _check_gaps(self, reader: Reader, start: int, end: int) -> None:
        lost = [one for number, one in sorted(reader.gaps.items()) if start < number <= end]
        if lost and self._settings.fail_on_data_loss:
            known = all(one.count for one in lost)
            count = sum(one.count for one in lost) if known else "an unknown number of"
            raise PipelineError(
                f"{count} notifications for {reader.name} were lost at {reader.where}: {lost[0].reason}."
                " To go on without them, set the option failOnDataLoss to false"
            )


async def _be_ready(reader: Reader) -> None:
    try:
        await reader.ready()
    except NotConfirmed as error:
        logger.warning("%s", error)


def _position(offsets: Offsets, address: str) -> Position:
    return Position(**offsets[address]) if address in offsets else Position()


def _facts(reader: Reader, start: int, end: Position) -> list[Fact]:
    return [
        fact(number, one.time_ns, one.notification, end.broker)
        for number, one in sorted(reader.held.items())
        if start < number <= end.delivery
    ]


def fact(number: int, time_ns: int, notification: Notification, broker: str) -> Fact:
    """A delivery at this broker, as a row. The run of a live notification is its publisher."""
    return Fact(
        notification.publisher,
        time_ns,
        notification.publisher,
        notification.number,
        notification.attributes,
        notification.payload,
        broker,
        number,
    )
