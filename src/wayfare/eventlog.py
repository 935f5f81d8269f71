"""The one schema of what happened, live and simulated: one row per fact, append-only.

    published      client, number, epoch, attributes; expires_ns, area
    delivered      client, publisher, number, delivery, epoch, attributes; reason "past", "current", "late"
    lost           client, count, reason            (a Gap reached the application)
    settled        client, count, entries           (how many a Gap of unknown size was, by publisher)
    subscribed, unsubscribed, advertised, unadvertised     client, filter
    confirmed      client, filter, since_ns         (a subscription of then is in effect in the whole tree)
    followed, unfollowed                            client, follows
    became         client, location, attributes     (where it is, and what it is like); area (its position)
    attached, detached, left, replaced              client, broker, epoch
    chosen         client, broker, reason           (live: it moves there, because it is nearer)
    sent           sender, receiver, message, inner, size, count  (a message was put on a link)

and, of experiments, what they count beside that:

    placed         broker, path                     (where it is in the tree)
    updated        sender, receiver, entries        (a broker has handled an Update)
    tables         broker, entries                  (how large they are now)
    measured       since_ns                         (from then until now)

Everything that is computed about a run comes from these rows. Columns are append-only too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from wayfare.core.filters import Filter
from wayfare.core.messages import Area
from wayfare.core.predicates import Value
from wayfare.core.templates import Template
from wayfare.errors import UsageError

BATCH_ROWS = 50_000


class Event(msgspec.Struct, gc=False, omit_defaults=True):
    """One fact. Fields that do not apply stay at their defaults (null in files)."""

    time_ns: int
    kind: str
    client: str | None = None
    broker: str | None = None
    publisher: str | None = None
    number: int | None = None  # of a publication
    delivery: int | None = None  # delivery number
    epoch: int | None = None
    filter: Filter | None = None
    attributes: dict[str, Value] | None = None
    sender: str | None = None
    receiver: str | None = None
    message: str | None = None  # kind of message
    size: int | None = None  # bytes
    count: int | None = None
    reason: str | None = None
    inner: str | None = None  # kind of message in a tunnel
    entries: dict[str, int] | None = None  # of an update or of tables, by kind
    path: list[str] | None = None  # brokers from the root on
    since_ns: int | None = None
    location: str | None = None
    follows: Template | None = None
    expires_ns: int | None = None  # after which a publication is of no use
    area: Area | None = None  # where a publication is of use; of a position, a circle of 0 m


SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("client", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("publisher", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("delivery", pa.int64()),
        pa.field("epoch", pa.int64()),
        pa.field("filter", pa.string()),
        pa.field("attributes", pa.string()),
        pa.field("sender", pa.string()),
        pa.field("receiver", pa.string()),
        pa.field("message", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("inner", pa.string()),
        pa.field("entries", pa.string()),
        pa.field("path", pa.string()),
        pa.field("since_ns", pa.int64()),
        pa.field("location", pa.string()),
        pa.field("follows", pa.string()),
        pa.field("expires_ns", pa.int64()),
        pa.field("area", pa.string()),
    ]
)


NEEDED = frozenset({"run", "time_ns", "kind"})  # every row has these
# Notifications that are events, as a filter, if they were published with the attributes of `fields`.
IS_EVENT = " and ".join(f"exists({name})" for name in sorted(NEEDED))


def row(event: Event, run: str) -> dict[str, Any]:
    """An event as it is written: filters as text, what has parts as JSON."""
    out: dict[str, Any] = {"run": run}
    for name in event.__struct_fields__:
        out[name] = getattr(event, name)
    for name in ("filter", "follows"):
        if out[name] is not None:
            out[name] = str(out[name])
    for name in ("attributes", "entries", "path"):
        if out[name] is not None:
            out[name] = json.dumps(out[name], sort_keys=True)
    if event.area is not None:
        out["area"] = _area_text(event.area)
    return out


def _area_text(area: Area) -> str:
    if area.circle is None:
        return json.dumps({"locations": area.locations})
    lat, lon, metres = area.circle
    return json.dumps({"lat": lat, "lon": lon, "metres": metres})


def fields(event: Event, run: str) -> dict[str, Any]:
    """An event without what does not apply: a line of JSON, or attributes that can be published."""
    return {name: value for name, value in row(event, run).items() if value is not None}


class Writer(Protocol):
    """Where events go; a context manager, so that a file is complete or not there."""

    def write(self, events: Iterable[Event]) -> None: ...
    def __enter__(self) -> Writer: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _FileWriter:
    """Writes beside the target and moves it into place when all went well."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._run = run

    def _close(self) -> None:
        raise AssertionError("a writer is one of the classes below")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._close()
            if kind is None:
                self._part.replace(self._path)
        finally:
            self._part.unlink(missing_ok=True)


class ParquetWriter(_FileWriter):
    """Parquet, in batches."""

    def __init__(self, path: Path, run: str = "") -> None:
        super().__init__(path, run)
        self._file = pq.ParquetWriter(self._part, SCHEMA, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> ParquetWriter:
        return self

    def write(self, events: Iterable[Event]) -> None:
        for event in events:
            self._rows.append(row(event, self._run))
            if len(self._rows) >= BATCH_ROWS:
                self._flush()

    def _flush(self) -> None:
        self._file.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=SCHEMA))
        self._rows.clear()

    def _close(self) -> None:
        if self._rows:
            self._flush()
        self._file.close()


class JsonLinesWriter(_FileWriter):
    """One JSON object per line; what does not apply is left out."""

    def __init__(self, path: Path, run: str = "") -> None:
        super().__init__(path, run)
        self._file = self._part.open("w", encoding="utf-8")

    def __enter__(self) -> JsonLinesWriter:
        return self

    def write(self, events: Iterable[Event]) -> None:
        for event in events:
            self._file.write(json.dumps(fields(event, self._run)) + "\n")

    def _close(self) -> None:
        self._file.close()


def writer(path: Path, run: str = "") -> ParquetWriter | JsonLinesWriter:
    """The writer that the file's name asks for."""
    if path.suffix not in WRITERS:
        raise UsageError(f"{path}: the name of an event log ends in {' or '.join(WRITERS)}")
    try:
        return WRITERS[path.suffix](path, run)
    except OSError as error:
        raise UsageError(f"cannot write the event log {path}: {error.strerror or error}") from None


WRITERS: dict[str, type[ParquetWriter] | type[JsonLinesWriter]] = {
    ".parquet": ParquetWriter,
    ".jsonl": JsonLinesWriter,
}
