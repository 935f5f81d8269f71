"""Which subscriptions a client of ActiveMQ has, as it was noted in a queue at its broker.

The newest note counts. Notes survive a restart of the broker, in which what waited is lost: a note's
number says which process of the broker took it.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import NamedTuple

import msgspec

# How ActiveMQ calls a message: the machine, a port and the time when the broker began, then more.
PROCESS = re.compile(r"ID:[^:]+-\d+-\d+-\d+(?=:)")


class Note(msgspec.Struct, frozen=True):
    """Which subscriptions a client has. Later ones have a higher number."""

    number: int
    subscriptions: list[str] | None = None


NOT_OURS = Note(-1)


class Noted(NamedTuple):
    """A note that came from the broker."""

    note: Note
    acknowledgement: str
    process: str | None  # of the broker that took it


class Notes:
    """Those of one client that came, and were not acknowledged yet."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._noted: list[Noted] = []
        self._own = Note(0)  # the last one that was written
        self._came: asyncio.Future[None] | None = None  # when that has come

    def take(self, acknowledgement: str, number: str, body: bytes) -> None:
        try:
            note = msgspec.json.decode(body, type=Note)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            note = NOT_OURS  # it goes with the next of ours that comes
        process = PROCESS.match(number)
        self._noted.append(Noted(note, acknowledgement, process and process[0]))
        if note == self._own and self._came is not None and not self._came.done():
            self._came.set_result(None)

    def write(self, subscriptions: list[str] | None) -> tuple[bytes, asyncio.Future[None]]:
        """Give a note to be sent, and when it has come back: then all before it have come, too."""
        self._own = Note(time.time_ns(), subscriptions)
        self._came = asyncio.get_running_loop().create_future()
        return msgspec.json.encode(self._own), self._came

    def left(self) -> tuple[list[str], bool | None]:
        """What was subscribed to before the last note, and whether the broker has kept what came for
        that; None: nobody knows."""
        process = self._noted[-1].process
        found = max(
            (one for one in self._noted if one.note.subscriptions is not None),
            key=lambda one: one.note.number,
            default=Noted(NOT_OURS, "", None),
        )
        kept = None if process is None else process == found.process
        return found.note.subscriptions or [], kept

    def older(self) -> list[str]:
        """Forget all but the last one: what they are acknowledged by."""
        *old, newest = self._noted
        self._noted = [newest]
        return [one.acknowledgement for one in old]

    def all(self) -> list[str]:
        return [one.acknowledgement for one in self._noted]
