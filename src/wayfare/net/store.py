"""What a broker keeps on disk: a snapshot of what it was, and a journal of what happened since.

A core does the same again when the same happens. So what happens is written down, in the order in which it
happened, one row for each turn of the loop, before anything of that turn leaves the process. After a
crash the snapshot is loaded and the journal played again. What was sent to neighbours is written down
as well: they may have it already, and have to get the very same again.

    os      survives the end of the process          (not synced: a loss of power may take the last turns)
    disk    survives a loss of power                 (synced in every turn)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from wayfare.core.grants import Grants
from wayfare.errors import StoreError

SCHEMA = 1
FILE = "broker.db"
SYNCHRONOUS = {"os": "NORMAL", "disk": "FULL"}
SNAPSHOT_BYTES = 16 * 1024 * 1024  # of the journal; then a snapshot takes its place


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that happened, on a link."""

    now: int
    link: str


class In(Record, frozen=True, tag=1):
    """A message came."""

    frame: bytes


class Up(Record, frozen=True, tag=2):
    """A link to a neighbour begins from nothing; `known` is the life of the other end."""

    known: int


class Down(Record, frozen=True, tag=3):
    """A client's connection is gone."""


class Ticked(Record, frozen=True, tag=4):
    """Time has passed."""


class Out(Record, frozen=True, tag=5):
    """A message was sent to a neighbour."""

    frame: bytes


class Grant(Record, frozen=True, tag=6):
    """The client on a connection may do so much."""

    grants: Grants


AnyRecord = In | Up | Down | Ticked | Out | Grant


class SavedLink(msgspec.Struct, frozen=True, array_like=True):
    """One end of a link between brokers."""

    known: int
    taken: int
    sent: int
    kept: list[bytes]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A broker and its links, at one moment."""

    now: int
    life: int
    core: bytes
    links: dict[str, SavedLink]


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(list[AnyRecord])
_snapshots = msgspec.msgpack.Decoder(Snapshot)


class Store:
    """The file of one broker. One process at a time has it."""

    def __init__(self, directory: Path, durability: str, name: str) -> None:
        """Open it, or make it; StoreError, and nothing is touched, if it cannot be used."""
        self.path = directory / FILE
        self._turn: list[AnyRecord] = []
        self._bytes = 0  # of the journal
        self._closed = False
        try:
            directory.mkdir(parents=True, exist_ok=True)
            fresh = not self.path.exists()
            if not fresh:
                self._check(name)
            self._db = sqlite3.connect(self.path, isolation_level=None)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
            if fresh:
                self._make(name)
            self._db.execute("BEGIN IMMEDIATE")  # takes the lock, or finds it taken
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise self._trouble(error) from None

    def _check(self, name: str) -> None:
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as db:
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StoreError(f"{self.path} is damaged ({found}): restore it from a copy")
            meta = dict(db.execute("SELECT key, value FROM meta"))
        if int(meta["schema"]) > SCHEMA:
            raise StoreError(
                f"{self.path} was written by a newer release (schema {meta['schema']}, this one knows"
                f" {SCHEMA}): run that release again"
            )
        if meta["name"] != name:
            raise StoreError(f"{self.path} is the memory of {meta['name']}, and this is {name}")

    def _make(self, name: str) -> None:
        self._db.execute("BEGIN")
        self._db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        for table in ("snapshot", "journal"):
            self._db.execute(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)"
            )
        self._db.executemany(
            "INSERT INTO meta VALUES (?, ?)", [("schema", str(SCHEMA)), ("name", name)]
        )
        self._db.execute("COMMIT")

    # Reading

    def snapshot(self) -> Snapshot | None:
        for body in self._bodies("snapshot"):
            return _snapshots.decode(body)
        return None

    def records(self) -> Iterator[AnyRecord]:
        """What happened since the snapshot, in order."""
        for body in self._bodies("journal"):
            self._bytes += len(body)
            yield from _records.decode(body)

    def _bodies(self, table: str) -> Iterator[bytes]:
        try:
            for number, body, digest in self._db.execute(
                f"SELECT id, body, digest FROM {table} ORDER BY id"
            ):
                if digest != _digest(body):
                    raise StoreError(
                        f"{self.path} is damaged ({table} {number}): restore it from a copy"
                    )
                yield body
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    # Writing

    def append(self, record: AnyRecord) -> None:
        """Write this down with the turn."""
        self._turn.append(record)

    def commit(self) -> None:
        """Make the turn safe; StoreError if it is not."""
        if not self._turn:
            return
        body = _encoder.encode(self._turn)
        self._turn = []
        self._bytes += len(body)
        self._write("INSERT INTO journal (body, digest) VALUES (?, ?)", (body, _digest(body)))

    def is_long(self) -> bool:
        """Whether it is time for a snapshot."""
        return self._bytes > SNAPSHOT_BYTES

    def replace(self, snapshot: Snapshot) -> None:
        """Let a snapshot take the place of everything before it."""
        self.commit()
        body = _encoder.encode(snapshot)
        try:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM snapshot")
            self._db.execute("DELETE FROM journal")
            self._db.execute(
                "INSERT INTO snapshot (body, digest) VALUES (?, ?)", (body, _digest(body))
            )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise self._trouble(error) from None
        self._bytes = 0

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._db.close()

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def _trouble(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.DatabaseError) and "locked" in str(error):
            return StoreError(f"{self.path} is in use by another process: stop that one first")
        if isinstance(error, sqlite3.DatabaseError) and "full" in str(error):
            return StoreError(
                f"no room left for {self.path}: make some, and start again; nothing that was"
                " acknowledged is lost"
            )
        damaged = type(error) is sqlite3.DatabaseError
        return StoreError(
            f"{self.path} is damaged ({error}): restore it from a copy"
            if damaged
            else f"cannot use {self.path}: {error}"
        )


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).digest()
