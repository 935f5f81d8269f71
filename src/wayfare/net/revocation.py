"""Certificate revocation lists: which certificates do not count any more, although their CA signed them.

OpenSSL checks every new connection against the list, with its signature and its time: see `security`. Here is what
OpenSSL does not do: to find out which of the peers that are connected show a certificate that a new list
revokes, and when a list expires. A list is DER, of which this reads no more than it needs:

    CertificateList  = [ [ version, algorithm, issuer, this update, next update, [ [ serial, ... ] ... ], ... ] ... ]
    Certificate      = [ [ [0] version, serial, algorithm, issuer, ... ] ... ]
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from wayfare.errors import UsageError
from wayfare.net.audit import Audit
from wayfare.net.connection import Connection
from wayfare.net.logs import tell

FILES_S = 1.0  # between two looks at the file
INTEGER, SEQUENCE, UTC_TIME, TIME, VERSION = 0x02, 0x30, 0x17, 0x18, 0xA0  # tags of DER
TIMES = {UTC_TIME: "%y%m%d%H%M%SZ", TIME: "%Y%m%d%H%M%SZ"}
PEM = re.compile(rb"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.S)

logger = logging.getLogger("wayfare.broker")


class Crl(msgspec.Struct, frozen=True):
    """The list of one CA."""

    issuer: bytes  # its name, in DER
    serials: frozenset[bytes]
    expires: float | None  # time of day; None: it does not say


def read(path: str) -> list[Crl]:
    """The lists in a file of PEM; UsageError if there is none, or one cannot be read."""
    try:
        blocks = PEM.findall(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if not blocks:
        raise UsageError(f"{path} has no certificate revocation list in PEM (X509 CRL)")
    try:
        return [_crl(base64.b64decode(one)) for one in blocks]
    except (ValueError, IndexError, binascii.Error):
        raise UsageError(f"{path} has a certificate revocation list that cannot be read") from None


def is_revoked(certificate: bytes, crls: Iterable[Crl]) -> bool:
    """Whether a certificate, in DER, is in one of these lists."""
    fields = _children(_children(certificate, SEQUENCE)[0][2], None)
    if fields[0][0] == VERSION:
        del fields[0]
    serial, issuer = fields[0][2], fields[2][1]
    return any(issuer == one.issuer and serial in one.serials for one in crls)


# Of each element: its tag, all of it, and its contents.
Element = tuple[int, bytes, bytes]


def _crl(data: bytes) -> Crl:
    fields = _children(_children(data, SEQUENCE)[0][2], None)
    if fields[0][0] == INTEGER:  # its version
        del fields[0]
    issuer, rest = fields[1][1], fields[3:]
    expires = None
    if rest and rest[0][0] in TIMES:
        tag, _, text = rest.pop(0)
        expires = datetime.strptime(text.decode(), TIMES[tag]).replace(tzinfo=UTC).timestamp()
    revoked = _elements(rest[0][2]) if rest and rest[0][0] == SEQUENCE else []
    serials = frozenset(_elements(one[2])[0][2] for one in revoked)
    return Crl(issuer, serials, expires)


def _children(data: bytes, tag: int | None) -> list[Element]:
    """What is in an element of this kind; with None, `data` are the contents already."""
    if tag is None:
        return _elements(data)
    outer = _elements(data)[0]
    if outer[0] != tag:
        raise ValueError("another element was expected")
    return _elements(outer[2])


def _elements(data: bytes) -> list[Element]:
    out: list[Element] = []
    at = 0
    while at < len(data):
        tag, size, begin = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[begin : begin + count], "big")
            begin += count
        end = begin + size
        if end > len(data):
            raise ValueError("an element is cut off")
        out.append((tag, data[at:end], data[begin:end]))
        at = end
    return out


# While a broker runs


class Certified(Protocol):
    """Who goes by the file: its contexts of TLS."""

    def reload_tls(self) -> str:
        """Go by the files as they are now. Returns what is wrong with them."""


class Revocation:
    """Holds the connected peers of one broker to the list in a file as it is now."""

    def __init__(
        self,
        broker: str,
        path: str,
        certified: Certified,
        peers: Callable[[], Iterable[Connection]],
        audit: Audit,
    ) -> None:
        self._broker, self._path = broker, path
        self._certified, self._peers, self._audit = certified, peers, audit
        self._applied = self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = Path(self._path).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    async def watch(self) -> None:
        """Go by a new list within seconds; one that is being written is left alone until it is done."""
        while True:
            await asyncio.sleep(FILES_S)
            now = self._stamp()
            if now == self._seen and now != self._applied and now is not None:
                self._applied = now
                self._reload()
            self._seen = now

    def _reload(self) -> None:
        trouble = self._certified.reload_tls()
        if trouble:
            says = "%(broker)s goes on with the files that it has: %(reason)s"
            self._tell("not_reloaded", says, reason=trouble)
        self._audit.record("reloaded", what="tls.crl", ok=not trouble, reason=trouble)
        if not trouble:
            self.enforce()

    def enforce(self) -> None:
        """Disconnect peers that show a certificate that is revoked now."""
        try:
            crls = read(self._path)
        except UsageError as error:
            says = "%(broker)s cannot use the certificate revocation list: %(reason)s"
            self._tell("not_reloaded", says, reason=error)
            return
        for connection in list(self._peers()):
            certificate = connection.certificate()
            if certificate and is_revoked(certificate, crls):
                connection.refuse("the certificate that it showed was revoked", why="revoked")

    def _tell(self, event: str, sentence: str, **facts: object) -> None:
        tell(logger, logging.WARNING, event, sentence, broker=self._broker, **facts)
