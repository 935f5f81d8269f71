"""Heartbeats: everybody says something in each, and who says nothing for three of them is dead."""

from __future__ import annotations

from collections.abc import Iterable

from wayfare.net.connection import Connection

HEARTBEAT_S = 2.0
SILENT_BEATS = 3  # then a peer is dead


class Silence:
    """Of the peers of one broker: for how many beats each has said nothing."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._beats: dict[Connection, int] = {}

    def beat(self, connections: Iterable[Connection]) -> None:
        """Say to all that we are here, and cut off who is not."""
        for connection in connections:
            if connection.beat():
                self._beats.pop(connection, None)
                continue
            silent = self._beats[connection] = self._beats.get(connection, 0) + 1
            if silent >= SILENT_BEATS:
                connection.abort(f"silent for {silent * self._heartbeat_s:g} s")

    def on_closed(self, connection: Connection) -> None:
        self._beats.pop(connection, None)
