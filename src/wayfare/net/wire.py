"""The connection of a client to its broker."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from wayfare.net.addresses import Address
from wayfare.net.connection import PING, Connection, Owner
from wayfare.net.limits import NetLimits
from wayfare.net.security import distrust

LINGER_S = 1.0  # that a connection which is left has to get rid of what was sent
UNWRITTEN_MAX = 1024 * 1024  # bytes that the broker has not read; then `publish` waits


class WireOwner(Owner, Protocol):
    """Who has the connection: a client."""

    wires: set[Wire]  # that are not closed yet

    def keep(self) -> bool:
        """Make safe what happened; False if that failed, and nothing may be said."""

    def on_writable(self) -> None: ...


class Wire(Connection):
    """A connection to a broker. Who publishes faster than it reads waits, and is not cut off."""

    owner: WireOwner

    def __init__(self, owner: WireOwner, name: str, address: Address) -> None:
        super().__init__(owner, name, NetLimits(write_bytes=UNWRITTEN_MAX))
        self.address = address
        self.welcomed = False
        self.gone = False
        self.blocked = False
        self.unwritten = 0  # bytes, of this turn of the loop
        self.silent = 0  # beats without a word
        self.asked = self.answered = 0  # pings: what was said before one that is answered was heard
        self.changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.owner.wires.add(self)

    def send(self, frame: bytes) -> None:
        self.unwritten += len(frame)
        self.asked += frame is PING
        super().send(frame)

    def ask(self) -> int:
        """Whether it has heard all this: it has, as soon as so many are answered."""
        self.send(PING)
        return self.asked

    def flush(self) -> None:
        if not self.owner.keep():
            return
        super().flush()
        self.unwritten = 0
        self.owner.on_writable()

    def trouble(self, why: str) -> str:
        return (
            f"{self.address}: {why}" if self.peer else f"{self.address}: no broker is there: {why}"
        )

    def silence(self) -> str:
        hint = (
            "" if self.address.tls or self.peer else "; if it wants TLS, call it with wayfares://"
        )
        return self.trouble(f"it says nothing{hint}")

    def is_full(self) -> bool:
        return self.blocked or self.unwritten > UNWRITTEN_MAX

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        self.owner.on_writable()


def explained(error: Exception) -> str:
    """Why there is no connection, and what to do where that is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return distrust(error)
    if isinstance(error, ssl.SSLError):
        return f"no TLS is spoken there ({error.reason}): is it wayfare:// rather than wayfares://?"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    return str(error)


async def gone(wire: Wire) -> None:
    while not wire.gone:
        wire.changed.clear()
        await wire.changed.wait()


def cut_off(wire: Wire) -> None:
    if not wire.gone:
        wire.abort(f"it did not read what was sent within {LINGER_S:g} s")
