"""Heartbeats: every peer sends something in each, and a peer that is silent for three of them is dead.

Clients take turns: each has a due time of its own, one heartbeat after the last, and the timer looks only at those
that are due, at most `TURN` of them before others run. So no timer walks through all connections, and the longest
step does not depend on their number. The few brokers that a configuration names are checked together.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from wayfare.net.connection import Connection

HEARTBEAT_S = 2.0
SILENT_BEATS = 3  # then a peer is dead
TURN = 100  # connections that are checked before others run
GRAIN = 50  # wake-ups in one heartbeat: connections that are due nearly together share one


class Heartbeats:
    """Sends heartbeats to the peers of one broker, and disconnects those that are silent."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._silent: dict[Connection, int] = {}  # for how many beats; 0 is left out
        # Due times, the earliest first, because every heartbeat is equally long. A plain dict would get
        # slow: whoever asks for its first key walks over all that were removed before.
        self._due: OrderedDict[Connection, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: Connection) -> None:
        """Check this connection once in every heartbeat from now on, until it is closed."""
        loop = asyncio.get_running_loop()
        self._due[connection] = loop.time() + self._heartbeat_s
        if self._timer is None:
            self._timer = loop.call_later(self._heartbeat_s, self._take_turn)

    def _take_turn(self) -> None:
        loop, due = asyncio.get_running_loop(), self._due
        now = loop.time()
        for _ in range(min(TURN, len(due))):
            connection = next(iter(due), None)  # a check may have closed all others
            if connection is None or due[connection] > now:
                break
            if connection.closing:
                del due[connection]
                continue
            due[connection] = now + self._heartbeat_s
            due.move_to_end(connection)
            self.check(connection)
        self._timer = None
        if due:
            wait = next(iter(due.values())) - now
            wait = max(wait, self._heartbeat_s / GRAIN) if wait > 0 else 0
            self._timer = loop.call_later(wait, self._take_turn)

    def check(self, connection: Connection) -> None:
        """Send a heartbeat unless something else was sent; disconnect the peer if it is dead."""
        if connection.beat():
            self._silent.pop(connection, None)
            return
        silent = self._silent[connection] = self._silent.get(connection, 0) + 1
        if silent >= SILENT_BEATS:
            connection.abort(f"silent for {silent * self._heartbeat_s:g} s")

    def on_closed(self, connection: Connection) -> None:
        self._due.pop(connection, None)  # with all that it has in memory
        self._silent.pop(connection, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due.clear()
