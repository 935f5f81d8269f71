"""What client processes write down, one JSON object a line, and what the judge makes of it.

    {"did": "began"}                             a process has begun
    {"did": "attached", "broker": "elm"}         it is at that broker
    {"did": "got", "from": "tom", "i": 7}        the application was handed tom's 7th publication
    {"did": "lost", "count": 0, "why": "..."}    it was told of a gap, behind what it was handed before
    {"did": "tried", "i": 8}                     it is about to publish its 8th
    {"did": "put", "i": 8}                       the client library has it (with a store: on disk)
    {"did": "confirmed", "i": 8}                 a broker has it, and everything that was put before
    {"did": "bad", "why": "..."}                 a payload was not what was published

Lines are written before anything else happens, so they are there when the process is killed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chaos.judge import Began, Entry, Gap, Got, Published


class Journal:
    """The file of one client, written by one process after the other."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, did: str, **facts: object) -> None:
        line = json.dumps({"did": did, **facts, "at": round(time.time(), 3)})
        os.write(self._file, f"{line}\n".encode())


def read(path: Path) -> list[dict[str, Any]]:
    return [*Reader(path).news()]


class Reader:
    """Reads what has been added to a journal since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0  # bytes

    def news(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                yield json.loads(line)


def stream(lines: Sequence[dict[str, Any]]) -> list[Entry]:
    """What the application was told, in order."""
    out: list[Entry] = []
    for line in lines:
        if line["did"] == "got":
            out.append(Got(line["from"], line["i"]))
        elif line["did"] == "lost":
            out.append(Gap(line["count"], line["why"]))
        elif line["did"] == "began":
            out.append(Began())
    return out


def published(lines: Sequence[dict[str, Any]], first: int) -> Published:
    """What was published. The client library's numbers only grow, so a confirmation is one for all before."""
    tried, put, confirmed = 0, [], []
    for line in lines:
        if line["did"] == "tried":
            tried = line["i"]
        elif line["did"] == "put":
            put.append(line["i"])
        elif line["did"] == "confirmed":
            confirmed += put
            put = []
    return Published(tried, tuple(confirmed), first)
