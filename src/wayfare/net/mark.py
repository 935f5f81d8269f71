"""The high-water mark of a database: what was committed last, in a small file beside it.

SQLite recovers a write-ahead log up to the first frame whose checksum is wrong, and says nothing about
the rest; and nothing in an old copy of a database tells that it is old. The mark does. It is written
behind each commit, so a crash in between leaves it behind the database and never ahead: a mark that
is ahead means that records are missing.

    slot 0   |  magic, store, sequence, digest, checksum  |   even sequence numbers
    slot 1   |  magic, store, sequence, digest, checksum  |   odd ones

Slots alternate: a write that is torn by a crash leaves the other slot intact. The file is synced where
commits are, at most once in SYNC_S: power loss may leave the mark older than the database by that much.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from struct import Struct

import msgspec

from wayfare.net.private import create_private

SUFFIX = "-mark"
SYNC_S = 0.1
SLOT_BYTES = 512
MAGIC = b"WFMARK\x00\x01"
CHECKSUM_BYTES = 16
NO_DIGEST = bytes(8)

_fields = Struct(">8s16sQ8s")  # magic, store, sequence, digest


class Position(msgspec.Struct, frozen=True):
    """How far a database is: the sequence number and the digest of its last commit."""

    sequence: int
    digest: bytes = NO_DIGEST


class Mark:
    """The mark of one database."""

    def __init__(self, database: Path, *, synced: bool) -> None:
        self.path = database.with_name(database.name + SUFFIX)
        self._synced = synced
        self._sync_at = 0.0
        self._dirty = False
        self._file = create_private(self.path)

    def read(self, store: bytes | None) -> Position | None:
        """The latest position of the store with this identity, or of any; None if no slot has one."""
        slots = [_decoded(os.pread(self._file, SLOT_BYTES, at), store) for at in (0, SLOT_BYTES)]
        return max(filter(None, slots), key=lambda one: one.sequence, default=None)

    def write(self, store: bytes, position: Position) -> None:
        """Remember this commit, which is safe already."""
        slot = _encoded(store, position)
        os.pwrite(self._file, slot, position.sequence % 2 * SLOT_BYTES)
        if self._synced:
            self._dirty = True
            now = time.monotonic()
            if now >= self._sync_at:
                self._sync_at = now + SYNC_S
                self.sync()

    def sync(self) -> None:
        """Make the latest position safe from power loss."""
        if self._dirty:
            self._dirty = False
            os.fdatasync(self._file)

    def begin(self, store: bytes, position: Position) -> None:
        """Belong to this store from now on, whatever was marked before."""
        os.pwrite(self._file, bytes(2 * SLOT_BYTES), 0)
        self.write(store, position)
        os.fsync(self._file)

    def close(self) -> None:
        with suppress(OSError):
            self.sync()
        os.close(self._file)


def _encoded(store: bytes, position: Position) -> bytes:
    fields = _fields.pack(MAGIC, store, position.sequence, position.digest)
    return fields + blake2b(fields, digest_size=CHECKSUM_BYTES).digest()


def _decoded(slot: bytes, store: bytes | None) -> Position | None:
    fields, checksum = slot[: _fields.size], slot[_fields.size : _fields.size + CHECKSUM_BYTES]
    if blake2b(fields, digest_size=CHECKSUM_BYTES).digest() != checksum:
        return None
    magic, owner, sequence, digest = _fields.unpack(fields)
    return Position(sequence, digest) if magic == MAGIC and store in (None, owner) else None
