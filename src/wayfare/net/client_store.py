"""What a client keeps on disk, so that the next process of its name goes on where this one was.

Written down before it is said: what was published and is not acknowledged, the attachments, what
was subscribed to and advertised, and how far the application is with each publisher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from wayfare.core.client import Held, Memory
from wayfare.core.messages import ClientId, Publish
from wayfare.net.database import Database, Statement, digest

TABLES = (
    "state (key TEXT PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
    "outbox (number INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "progress (publisher TEXT PRIMARY KEY, done INTEGER NOT NULL, beyond BLOB NOT NULL)",
)

Progress = tuple[int, list[int]]  # everything up to this publication, and these beyond it

Attempt = tuple[str, int, int]  # publisher, number, how often the application had it

_encoder = msgspec.msgpack.Encoder()


class ClientStore(Database):
    """The file of one client."""

    def __init__(self, path: Path, durability: str, name: str) -> None:
        super().__init__(path, durability, name, TABLES)

    def load(self) -> tuple[Memory, Held, list[Publish], dict[ClientId, Progress]] | None:
        """What the last process of this client left; None if there was none."""
        state = self._state()
        if "memory" not in state:
            return None
        outbox = self.read("SELECT body FROM outbox ORDER BY number")
        progress = self.read("SELECT publisher, done, beyond FROM progress")
        return (
            msgspec.msgpack.decode(state["memory"], type=Memory),
            msgspec.msgpack.decode(state.get("held", _encoder.encode(Held())), type=Held),
            [msgspec.msgpack.decode(body, type=Publish) for (body,) in outbox],
            {
                ClientId(who): (done, msgspec.msgpack.decode(beyond, type=list[int]))
                for who, done, beyond in progress
            },
        )

    def attempts(self) -> list[Attempt]:
        """What the application of the last process had, and was not done with."""
        body = self._state().get("attempts")
        return [] if body is None else msgspec.msgpack.decode(body, type=list[Attempt])

    def _state(self) -> dict[str, bytes]:
        state = {}
        for key, body, check in self.read("SELECT key, body, digest FROM state"):
            if check != digest(body):
                raise self.damaged(key)
            state[key] = body
        return state

    def keep(
        self,
        memory: Memory,
        held: Held | None,
        published: Iterable[Publish],
        acknowledged: int,
        progress: Mapping[ClientId, Progress],
        attempts: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Write down what changed, all of it or nothing. `held`, `attempts`: None if as before."""
        statements: list[Statement] = [_state("memory", _encoder.encode(memory))]
        if attempts is not None:
            rows = [(who, number, count) for (who, number), count in attempts.items()]
            statements.append(_state("attempts", _encoder.encode(rows)))
        if held is not None:
            statements.append(_state("held", _encoder.encode(held)))
        for one in published:
            values = (one.number, _encoder.encode(one))
            statements.append(("INSERT OR REPLACE INTO outbox VALUES (?, ?)", values))
        statements.append(("DELETE FROM outbox WHERE number <= ?", (acknowledged,)))
        for who, (done, beyond) in progress.items():
            row = (who, done, _encoder.encode(beyond))
            statements.append(("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", row))
        self.write(statements)


def _state(key: str, body: bytes) -> Statement:
    return "INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (key, body, digest(body))
