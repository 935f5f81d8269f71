"""Rounds over the addresses of a client: one after the other, until a broker welcomes it.

When that connection is gone, the next address is tried. After a whole round without a welcome there is a pause,
longer and longer.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from contextlib import suppress
from typing import Protocol

from wayfare.errors import UsageError
from wayfare.net.addresses import Address
from wayfare.net.connection import Connection
from wayfare.net.security import client_context, load_crl
from wayfare.net.stalls import running_timeout
from wayfare.net.wire import Wire, explained, gone

ATTEMPT_S = 1.0  # that a broker has at least to answer, when there are many
RETRY_S = (0.05, 5.0)  # between two rounds over all addresses, growing


class Visitor(Protocol):
    """Who goes round: a client."""

    def has_failed(self) -> bool:
        """Whether there is no use in going on."""

    def begin_visit(self, address: Address, spare: Wire | None) -> Wire:
        """The connection that is used from now on: one that is there already, or one that is to be made."""

    def end_visit(self, wire: Wire, why: str) -> None:
        """No broker has welcomed it there."""


class Rounds:
    """Those of one client; `timeout` is what all its addresses have together."""

    def __init__(
        self,
        visitor: Visitor,
        addresses: list[Address],
        timeout: float,
        tls: ssl.SSLContext | None,
        crl: str,
    ) -> None:
        self.addresses = addresses
        self._visitor, self._timeout = visitor, timeout
        self._tls, self._crl = tls, crl
        self._spare: Wire | None = None  # a connection to where the next visit goes

    def begin_with(self, there: Address, spare: Wire | None = None) -> None:
        """Try this one first, from the next `go` on; the spare connection to it has been greeted."""
        self.addresses = [there, *(one for one in self.addresses if one != there)]
        self._spare = spare

    async def go(self) -> None:
        """From the first address on, as long as there is any use in it."""
        wait, failed = RETRY_S[0], 0
        address = self.addresses[0]
        while not self._visitor.has_failed():
            began = time.monotonic()
            welcomed = await self.visit(address)
            address = self._behind(address)
            if welcomed and time.monotonic() - began > RETRY_S[0]:
                wait, failed = RETRY_S[0], 0
                continue
            failed += 1
            if failed % len(self.addresses) == 0:
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, RETRY_S[1])

    def _behind(self, address: Address) -> Address:
        """The next one of the addresses, which may have changed meanwhile."""
        place = self.addresses.index(address) + 1 if address in self.addresses else 0
        return self.addresses[place % len(self.addresses)]

    async def visit(self, address: Address) -> bool:
        """Connect, and stay until the connection is gone. Whether a broker welcomed us there."""
        spare, self._spare = self._spare, None
        if spare is not None and (spare.gone or spare.address != address):
            spare = None
        wire = self._visitor.begin_visit(address, spare)
        attempt_s = min(self._timeout, max(ATTEMPT_S, self._timeout / len(self.addresses)))
        try:
            async with running_timeout(attempt_s):
                if spare is None:
                    await self.connect(address, wire)
                while not (wire.welcomed or wire.gone):
                    wire.changed.clear()
                    await wire.changed.wait()
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            why = explained(error)
            self._visitor.end_visit(wire, f"{address}: {why}" if why else wire.silence())
            return False
        await gone(wire)
        return wire.welcomed

    async def connect(self, address: Address, connection: Connection) -> None:
        """OSError or UnicodeError if that is not possible."""
        tls = self._tls_for(address)
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            address.host,
            address.port,
            ssl=tls,
            server_hostname=(address.name or None) if tls else None,
        )

    def _tls_for(self, address: Address) -> ssl.SSLContext | None:
        if not address.tls:
            return None
        if self._tls is None:
            self._tls = client_context()
        with suppress(UsageError):  # the lists that were read before still count
            load_crl(self._tls, self._crl)
        return self._tls
