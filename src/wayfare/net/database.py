"""A file that is there for one process at a time, and is refused rather than guessed at.

SQLite in WAL mode. What is damaged, was written by a newer release, belongs to somebody else or is in use
is refused in a sentence, before anything is written.

Commits are numbered, and a mark beside the file remembers the last one (`mark.py`). A file that is behind its
mark is opened, and `rollback` says what is wrong with it: its owner reports what may be missing.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from shutil import disk_usage
from typing import Any

from wayfare.errors import StoreError, UsageError
from wayfare.net.mark import NO_DIGEST, Mark, Position
from wayfare.net.private import create_private, create_private_directory

SCHEMA = 1
LEAST_BYTES = 64 * 1024  # without them nothing can be written
LOCK_WAIT_S = 5.0  # for another process to let go of the file: it may be about to end
SYNCHRONOUS = {"os": "NORMAL", "disk": "FULL"}
COUNTED = "INSERT OR REPLACE INTO meta VALUES ('sequence', ?)"

Statement = tuple[str, Sequence[Any]]


class Database:
    """Tables of one owner."""

    def __init__(self, path: Path, durability: str, name: str, tables: Iterable[str]) -> None:
        """Open it, or make it; StoreError, and nothing is touched, if it cannot be used."""
        if durability not in SYNCHRONOUS:
            names = ", ".join(SYNCHRONOUS)
            raise UsageError(f"unknown durability {durability!r} of a file: choose one of {names}")
        self.path = path
        self.rollback = ""  # what is wrong, if the file is older than what was committed
        self.sequence = (
            0  # of the last commit, in this file or in its mark: the next one is above both
        )
        self._closed = False
        if path.is_dir():
            raise StoreError(f"{path} is a directory: name a file in it, like {path / 'store.db'}")
        try:
            create_private_directory(path.parent)
            if not path.exists():
                os.close(create_private(path))  # its WAL gets the same mode
            fresh = is_blank(path)
            if not fresh:
                check_file(path, name)
            # The synchronous client opens it in the caller's thread, and uses it in its own from then on.
            self._db = sqlite3.connect(
                path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
            if fresh:
                self._make(name, tables)
            self._db.execute("BEGIN IMMEDIATE")  # takes the lock, or finds it taken
            self._db.execute("COMMIT")
            self._mark = Mark(path, synced=durability == "disk")
            self._compare()
        except (sqlite3.Error, OSError) as error:
            raise self._trouble(error) from None

    def _compare(self) -> None:
        """See whether the mark knows of commits that are not in the file."""
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        last, mark = self.last(meta), self._mark
        self._id = bytes.fromhex(meta.get("mark", ""))
        marked = mark.read(self._id or None)
        self.sequence = max(last.sequence, marked.sequence if marked is not None else 0)
        if marked is not None and last.sequence < marked.sequence:
            self.rollback = f"its last {marked.sequence - last.sequence} commits are missing"
        elif self._id and marked is None:
            self.rollback = f"{mark.path.name} is missing or damaged, so commits may be missing"
        elif marked is not None and self.digest_of(marked.sequence) not in (
            NO_DIGEST,
            marked.digest,
        ):
            self.rollback = f"commit {marked.sequence} is another one than its mark knows"
        if not self._id:  # it is new, or was written by a release without marks
            self._id = secrets.token_bytes(16)
            if not self.rollback:
                mark.begin(self._id, last)
            self._db.execute("INSERT INTO meta VALUES ('mark', ?)", (self._id.hex(),))

    def last(self, meta: dict[str, str]) -> Position:
        """The last commit in the file."""
        return Position(int(meta.get("sequence", "0")))

    def digest_of(self, sequence: int) -> bytes:
        """The digest of a commit, where the file still has it."""
        return NO_DIGEST

    def count(self, statements: Iterable[Statement]) -> Iterable[Statement]:
        """These statements, and what makes the number of this commit part of it."""
        yield from statements
        yield COUNTED, (str(self.sequence + 1),)

    def settle(self) -> None:
        """Sync the mark, if it is behind."""
        if not self._closed:
            self._mark.sync()

    def _make(self, name: str, tables: Iterable[str]) -> None:
        self._commit(
            [
                ("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)", ()),
                *((f"CREATE TABLE {table}", ()) for table in tables),
                ("INSERT INTO meta VALUES ('schema', ?), ('name', ?)", (str(SCHEMA), name)),
            ]
        )

    def read(self, question: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._db.execute(question)
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def write(self, statements: Iterable[Statement], digest: bytes = NO_DIGEST) -> None:
        """All of it, or nothing; StoreError if it is not safe now."""
        self._commit(self.count(statements))
        self.sequence += 1
        position = Position(self.sequence, digest)
        try:
            self._mark.write(self._id, position)
        except OSError as error:
            raise self._trouble(error) from None

    def _commit(self, statements: Iterable[Statement]) -> None:
        try:
            self._db.execute("BEGIN")
            for statement, values in statements:
                self._db.execute(statement, values)
            self._db.execute("COMMIT")
        except BaseException as error:  # also of what the statements are made of
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._trouble(error) from None
            raise

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._mark.close()
            self._db.close()

    def damaged(self, where: str) -> StoreError:
        return _damaged(self.path, where)

    def _trouble(self, error: Exception) -> StoreError:
        return _trouble(self.path, error)


def is_blank(path: Path) -> bool:
    """Whether nothing was ever written: whoever began with it was killed at once."""
    with closing(_look(path)) as db:
        return db.execute("SELECT name FROM sqlite_master").fetchone() is None


def check_file(path: Path, name: str) -> None:
    """Raise StoreError unless this file is whole, of this release and of this owner."""
    try:
        with closing(_look(path)) as db:
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise _damaged(path, found)
            if not db.execute("SELECT name FROM sqlite_master WHERE name = 'meta'").fetchone():
                raise StoreError(f"{path} is a database of somebody else: choose another file")
            meta = dict(db.execute("SELECT key, value FROM meta"))
    except sqlite3.Error as error:
        raise _trouble(path, error) from None
    if int(meta["schema"]) > SCHEMA:
        raise StoreError(
            f"{path} was written by a newer release (schema {meta['schema']}, this one knows"
            f" {SCHEMA}): run that release again"
        )
    if meta["name"] != name:
        raise StoreError(f"{path} is the memory of {meta['name']}, and this is {name}")


def _look(path: Path) -> sqlite3.Connection:
    """Nothing can be written."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, timeout=LOCK_WAIT_S, uri=True)


class InUse(StoreError):
    """Another process has the file."""


def _damaged(path: Path, where: str) -> StoreError:
    return StoreError(f"{path} is damaged ({where}): restore it from a copy")


def _trouble(path: Path, error: Exception) -> StoreError:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, sqlite3.DatabaseError) and "locked" in text:
        return InUse(f"{path} is in use by another process: stop that one first")
    if isinstance(error, sqlite3.DatabaseError) and ("full" in text or _is_full(path)):
        return StoreError(
            f"no room left for {path}: make some, and start again; nothing that was"
            " acknowledged is lost"
        )
    if type(error) is sqlite3.DatabaseError:
        return _damaged(path, text)
    return StoreError(f"cannot use {path}: {text}")


def _is_full(path: Path) -> bool:
    """SQLite does not always say so."""
    try:
        return disk_usage(path.parent).free < LEAST_BYTES
    except OSError:
        return False


def digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).digest()
