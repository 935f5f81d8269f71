"""What a broker keeps on disk: a snapshot of what it was, and a journal of what happened since.

A core does the same again when the same happens. So what happens is written down, in the order in which it
happened, one row for each turn of the loop, before anything of that turn leaves the process. After a
crash the snapshot is loaded and the journal played again. What was sent to neighbours is written down
as well: they may have it already, and have to get the very same again.

    os      survives the end of the process          (not synced: a loss of power may take the last turns)
    disk    survives a loss of power                 (synced in every turn)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from wayfare.core.counts import MILLISECOND_NS, Histogram
from wayfare.core.grants import Grants
from wayfare.net.database import Database, Statement, digest
from wayfare.net.mark import NO_DIGEST, Position

FILE = "broker.db"
LAST = "SELECT id, digest FROM {} ORDER BY id DESC LIMIT 1"
SNAPSHOT_BYTES = 16 * 1024 * 1024  # of the journal; then a snapshot takes its place
OVERDUE = 2  # times that is a journal that grows because no snapshot can be made
COMMITS_NS = [
    MILLISECOND_NS // 1_000 * us
    for us in (25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000)
]


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


class GaveUp(Record, frozen=True, tag=7):
    """What waited for a neighbour is forgotten; when it comes, its link begins from nothing."""


class Heard(Record, frozen=True, tag=8):
    """The replicator at another broker, whose name stands for a link, has said something."""

    frame: bytes


class Started(Record, frozen=True, tag=9):
    """The process started: what its neighbours take from now on is new to them."""


class Resumed(Record, frozen=True, tag=10):
    """A neighbour is back, and its link goes on as before; or it came for the first time, in this life of its own."""

    known: int = 0


class Awaits(Record, frozen=True, tag=13):
    """What is sent to a neighbour that was never there is kept from now on."""


class Linked(Record, frozen=True, tag=12):
    """A neighbour can be reached now, or cannot."""

    up: bool


class WentBack(Record, frozen=True, tag=11):
    """The store turned out to be older than what was promised."""


class Confine(Record, frozen=True, tag=20):
    """The rules for a client, whose name stands for a link, have changed."""

    grants: Grants


class Forget(Record, frozen=True, tag=21):
    """An operator ended the sessions of a client, whose name stands for a link."""

    reason: str


class Stall(Record, frozen=True, tag=25):
    """The process did not run for a while."""

    for_ns: int


class Shed(Record, frozen=True, tag=27):
    """A limit in sum was exceeded; the largest consumers, of an account if one is named, lost so many bytes."""

    limit: str
    bytes: int
    account: str = ""


class Timed(Record, frozen=True, tag=28):
    """A message to a neighbour, and its answer, take so long."""

    round_trip_ns: int


OfBroker = Started | Resumed | WentBack | Stall | Shed
AnyRecord = (
    Linked
    | In
    | Up
    | Awaits
    | Down
    | Ticked
    | Out
    | Grant
    | GaveUp
    | Heard
    | Confine
    | Forget
    | Timed
    | OfBroker
)


class SavedLink(msgspec.Struct, frozen=True, array_like=True):
    """One end of a link between brokers."""

    known: int
    taken: int
    sent: int
    kept: list[bytes]
    start: int = -1  # what was sent before this process started; -1: the neighbour was there since
    life: int = 0  # of this end; 0: that of the broker
    whole: bool = False  # from the first message on


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A broker and its links, at one moment."""

    now: int
    life: int
    core: bytes
    links: dict[str, SavedLink]


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(list[AnyRecord])
_snapshots = msgspec.msgpack.Decoder(Snapshot)


class Store(Database):
    """The file of one broker."""

    def __init__(self, directory: Path, durability: str, name: str) -> None:
        row = "(id INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)"
        super().__init__(directory / FILE, durability, name, [f"snapshot {row}", f"journal {row}"])
        self.durability = durability
        self.commits = Histogram(COMMITS_NS)
        self.snapshots = 0
        self._turn: list[AnyRecord] = []
        self._bytes = 0  # of the journal
        self.snapshot_bytes = 0  # of the snapshot before it

    def snapshot(self) -> Snapshot | None:
        for _, body in self._bodies("snapshot"):
            self.snapshot_bytes = len(body)
            return _snapshots.decode(body)
        return None

    def records(self) -> Iterator[AnyRecord]:
        """What happened since the snapshot, in order; up to a turn that is missing, if there is one."""
        last = 0
        for number, body in self._bodies("journal"):
            records = _records.decode(body)
            if last and number != last + 1 and not isinstance(records[0], Started):
                self.rollback = f"turns {last + 1} to {number - 1} are missing"
                break
            self._bytes += len(body)
            last = number
            yield from records
        if self.rollback:
            self._commit([("DELETE FROM journal WHERE id > ?", (last,))])

    def _bodies(self, table: str) -> Iterator[tuple[int, bytes]]:
        for number, body, check in self.read(f"SELECT id, body, digest FROM {table} ORDER BY id"):
            if check != digest(body):
                raise self.damaged(f"{table} {number}")
            yield number, body

    def last(self, meta: dict[str, str]) -> Position:
        """Rows have the sequence number of their commit: that costs nothing."""
        rows = [*self.read(LAST.format("journal")), *self.read(LAST.format("snapshot"))]
        return Position(*max(rows, default=(0, NO_DIGEST)))

    def digest_of(self, sequence: int) -> bytes:
        for table in ("journal", "snapshot"):
            for (found,) in self.read(f"SELECT digest FROM {table} WHERE id = {sequence:d}"):
                return bytes(found)
        return NO_DIGEST

    def count(self, statements: Iterable[Statement]) -> Iterable[Statement]:
        return statements  # see `last`

    def append(self, record: AnyRecord) -> None:
        """Write this down with the turn."""
        self._turn.append(record)

    def commit(self) -> None:
        """Make the turn safe."""
        if not self._turn:
            return
        body = _encoder.encode(self._turn)
        self._turn = []
        self._bytes += len(body)
        began = time.perf_counter_ns()
        row = self._row("journal", body)
        self.write([row], row[1][-1])
        self.commits.add(time.perf_counter_ns() - began)

    @property
    def journal_bytes(self) -> int:
        """How long it is, since the snapshot."""
        return self._bytes

    @property
    def disk_bytes(self) -> int:
        """Of the snapshot and the journal together."""
        return self.snapshot_bytes + self._bytes

    @property
    def is_overdue(self) -> bool:
        """Whether a snapshot should have taken its place long ago."""
        return self._bytes > OVERDUE * SNAPSHOT_BYTES

    def is_long(self) -> bool:
        """Whether it is time for a snapshot."""
        return self._bytes > SNAPSHOT_BYTES

    def replace(self, snapshot: Snapshot) -> None:
        """Let a snapshot take the place of everything before it, the present turn included.

        One commit: after a crash there is either all of it or nothing.
        """
        self._turn = []
        body = _encoder.encode(snapshot)
        clear: list[Statement] = [("DELETE FROM snapshot", ()), ("DELETE FROM journal", ())]
        row = self._row("snapshot", body)
        self.write([*clear, row], row[1][-1])
        self._bytes = 0
        self.snapshot_bytes = len(body)
        self.snapshots += 1

    def _row(self, table: str, body: bytes) -> Statement:
        values = (self.sequence + 1, body, digest(body))
        return f"INSERT INTO {table} (id, body, digest) VALUES (?, ?, ?)", values
