"""Strangers: who has connected, and has not said what it is. They are few, say little, and have little time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from wayfare.net.connection import PING, Connection
from wayfare.net.limits import NetLimits

STRANGER_WORDS = (
    4  # Hello, Challenge, Proof and Join; Hello, Login and Attach; Hello and three Pings
)


class Strangers:
    """At one broker: those who came, and those whom it has called."""

    def __init__(self, broker: str, limits: NetLimits) -> None:
        self._broker, self._limits = broker, limits
        self._since: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._since)

    def add(self, connection: Connection) -> None:
        self._since[connection] = asyncio.get_running_loop().time()

    def discard(self, connection: Connection) -> None:
        """It is known now, or gone."""
        self._since.pop(connection, None)

    def make_room(self) -> None:
        """One more has come: if they are too many, the oldest goes."""
        if len(self._since) > self._limits.strangers:
            oldest = next(one for one in self._since if not one.called)
            del self._since[oldest]
            oldest.refuse(
                f"{self._broker} has too many strangers: say sooner what you are", again=True
            )

    def may_speak(self, connection: Connection) -> bool:
        """It has said something more; False if that is too much, and it is refused."""
        connection.words += 1
        if connection.words > STRANGER_WORDS:
            connection.refuse("too many words before Attach or Join")
            return False
        return True

    def reassure(self) -> None:
        """Whoever waits for the check of its password knows that the broker is alive."""
        for connection in self._since:
            if connection.held:
                connection.send(PING)

    def extend_greetings(self, seconds: float) -> None:
        """This process did not run for so long, and could not read what they said."""
        now = asyncio.get_running_loop().time()
        self._since = {one: min(since + seconds, now) for one, since in self._since.items()}

    def refuse_late(self) -> None:
        late = asyncio.get_running_loop().time() - self._limits.greeting_s
        for connection, since in list(self._since.items()):
            if since < late and not connection.held:
                connection.refuse("it did not say what it is", why="late")
