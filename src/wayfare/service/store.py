"""What a mobility proxy keeps on disk: its clients, and what it keeps for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from wayfare.net.database import Database, Statement, digest
from wayfare.service import effects as e
from wayfare.service.admission import Owner
from wayfare.service.buffer import Kept
from wayfare.service.client_proxy import Record
from wayfare.service.system import Publication

TABLES = (
    "clients (client TEXT PRIMARY KEY, last INTEGER NOT NULL, body BLOB NOT NULL,"
    " digest BLOB NOT NULL)",
    "kept (client TEXT NOT NULL, number INTEGER NOT NULL, arrived INTEGER NOT NULL,"
    " body BLOB NOT NULL, PRIMARY KEY (client, number)) WITHOUT ROWID",
)

OWNERS = "owners (client TEXT PRIMARY KEY, digest BLOB NOT NULL, until INTEGER NOT NULL)"

T = TypeVar("T")
Stored = e.Keep | e.Trim | e.Save | e.Erase | Owner
_encode = msgspec.msgpack.Encoder().encode


class Store(Database):
    """The file of one proxy. What is noted is safe after `commit`, in one go."""

    def __init__(self, path: Path, durability: str, name: str) -> None:
        super().__init__(path, durability, name, TABLES)
        self.write([(f"CREATE TABLE IF NOT EXISTS {OWNERS}", ())])  # older files have none
        self._noted: list[Stored] = []

    def load(self) -> Iterator[tuple[Record, list[Kept]]]:
        """The clients that the last process knew."""
        kept: dict[str, list[Kept]] = {}
        question = "SELECT client, number, arrived, body FROM kept ORDER BY client, number"
        for client, number, arrived, body in self.read(question):
            publication = self._decoded(body, Publication, client)
            kept.setdefault(client, []).append(Kept(number, arrived, publication))
        for client, last, body, check in self.read("SELECT * FROM clients ORDER BY client"):
            if check != digest(body):
                raise self.damaged(client)
            record = self._decoded(body, Record, client)
            last = max(last, record.last)
            yield msgspec.structs.replace(record, last=last), kept.get(client, [])

    def owners(self) -> Iterator[Owner]:
        """The names that are protected, those that were last used first."""
        for row in self.read("SELECT client, digest, until FROM owners ORDER BY until, client"):
            yield Owner(*row)

    def forget_owners(self, now: int) -> None:
        self.write([("DELETE FROM owners WHERE until <= ?", (now,))])

    def _decoded(self, body: bytes, kind: type[T], client: str) -> T:
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise self.damaged(client) from None

    def note(self, effect: Stored) -> None:
        self._noted.append(effect)

    def commit(self, record: Callable[[str], Record | None]) -> None:
        """Write down what was noted; `record` says what is known of a client now."""
        noted, self._noted = self._noted, []
        self.write(statement for effect in noted for statement in _statements(effect, record))


def _statements(effect: Stored, record: Callable[[str], Record | None]) -> Iterator[Statement]:
    match effect:
        case e.Keep(client, number, arrived, publication):
            body = _encode(publication)
            yield "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (client, number, arrived, body)
            yield "UPDATE clients SET last = ? WHERE client = ?", (number, client)
        case e.Trim(client, numbers):
            for number in numbers:
                yield "DELETE FROM kept WHERE client = ? AND number = ?", (client, number)
        case e.Save(client):
            known = record(client)
            if known is not None:
                row = (client, known.last, body := _encode(known), digest(body))
                yield "INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?)", row
        case Owner(client, key, until):
            yield "INSERT OR REPLACE INTO owners VALUES (?, ?, ?)", (client, key, until)
        case e.Erase(client):
            yield "DELETE FROM kept WHERE client = ?", (client,)
            yield "DELETE FROM clients WHERE client = ?", (client,)
