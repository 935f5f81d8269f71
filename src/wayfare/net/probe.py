"""How far away a broker is: the shortest of a few round trips, on a connection that is closed after them.

A broker answers a few `Ping`s of a connection that has yet to say what it is. So a probe tells the broker neither
whose it is, nor a password.
"""

from __future__ import annotations

import asyncio
import time

from wayfare.core import messages as m
from wayfare.net.addresses import Address
from wayfare.net.connection import PING, Connection
from wayfare.net.limits import NetLimits
from wayfare.net.rounds import Rounds

NAME = "probe"
PINGS = 3  # that a broker answers
LIMITS = NetLimits(frame_bytes=4096)  # nothing longer is an answer


async def round_trip_ns(rounds: Rounds, address: Address, most_s: float) -> int | None:
    """None if no broker is there. A broker that does not answer in time is as far away as that."""
    probe = _Probe()
    connection = Connection(probe, NAME, LIMITS)
    try:
        async with asyncio.timeout(most_s):
            await rounds.connect(address, connection)
            await probe.over.wait()
    except TimeoutError:
        connection.close("it took too long")
        connection.abort("it took too long")
        return probe.best_ns or int(most_s * 1e9)
    except (OSError, UnicodeError):
        return None
    finally:
        connection.close("measured")
    return probe.best_ns


class _Probe:
    """The owner of the connection of one probe."""

    def __init__(self) -> None:
        self.best_ns: int | None = None
        self.over = asyncio.Event()
        self._sent = self._sent_ns = 0

    def on_connected(self, connection: Connection) -> None: ...

    def on_messages(self, connection: Connection, messages: list[m.AnyMessage]) -> None:
        for message in messages:
            if isinstance(message, m.Ping) and message.answer and self._sent:
                took_ns = time.monotonic_ns() - self._sent_ns
                self.best_ns = took_ns if self.best_ns is None else min(took_ns, self.best_ns)
            elif not isinstance(message, m.Hello):
                self.over.set()
                return
            if self._sent == PINGS:
                self.over.set()
                return
            self._sent += 1
            self._sent_ns = time.monotonic_ns()
            connection.send(PING)

    def on_closing(self, connection: Connection) -> None:
        connection.finish()

    def on_closed(self, connection: Connection) -> None:
        self.over.set()

    def on_output(self, connection: Connection) -> None:
        asyncio.get_running_loop().call_soon(connection.flush)
