"""Where an access point is: scheme://[user:password@]host:port, and who does not answer there."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

import msgspec

from wayfare.errors import CannotConnect, UsageError
from wayfare.net.addresses import check_place
from wayfare.net.security import client_context, distrust
from wayfare.service.system import Trust

ANYBODY = Trust()
CONTEXTS_MAX = 16  # that are kept: whom a machine trusts takes a while to read


class Scheme(msgspec.Struct, frozen=True):
    port: int  # where the system listens unless told otherwise
    tls: bool = False
    safe: str = ""  # the same with TLS


class Place(msgspec.Struct, frozen=True):
    """An access point of somebody else's system."""

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = None
    tls: bool = False
    safe: str = ""
    trust: Trust = ANYBODY

    def __str__(self) -> str:
        """Without user and password: this goes into messages and logs."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def security(self) -> ssl.SSLContext | None:
        """What to check a certificate with."""
        return context_of(self.trust) if self.tls else None

    def unanswered(self, error: object) -> CannotConnect:
        if (reason := distrusted(error)) is not None:
            return CannotConnect(f"cannot connect to {self}: {reason}")
        reason = str(error) or type(error).__name__
        safe = f" If it wants TLS, write {self.safe}://" if self.safe else ""
        if self.tls:
            safe = " Does it speak TLS there, or want to see a certificate (`cert`)?"
        return CannotConnect(
            f"cannot connect to {self}: {reason}; is the server running, and is this its address?{safe}"
        )


@lru_cache(CONTEXTS_MAX)
def context_of(trust: Trust) -> ssl.SSLContext:
    """Made of the files as they are when it is asked for first; UsageError says what is wrong with them."""
    return client_context(trust.ca, trust.cert)


def distrusted(error: object) -> str | None:
    """Why there is no TLS, if that is what an error is about; libraries wrap it in errors of their own."""
    seen: list[object] = []  # they may go round in circles
    while isinstance(error, BaseException) and error not in seen:
        seen.append(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            return distrust(error)
        if isinstance(error, ssl.SSLError):
            return f"no TLS is spoken there ({error.reason or error}): is it another port?"
        error = error.__cause__ or error.__context__
    return None


def scheme_of(address: str) -> str:
    return address.partition("://")[0] if "://" in address else ""


def quoted(login: str) -> str:
    """`user:password` as it stands in an address."""
    try:
        return ":".join(quote(part, safe="") for part in login.split(":", 1))
    except UnicodeEncodeError:
        raise UsageError("a login is user:password, in characters of UTF-8") from None


def place(address: str, schemes: Mapping[str, Scheme], trust: Trust = ANYBODY) -> Place:
    """Read an address with one of these schemes."""
    form = f"{next(iter(schemes))}://host:port"
    # What stands before an "@" may be a password: the address itself is not told.
    told = f"{scheme_of(address)}://{address.rpartition('@')[2].partition('://')[2]}"
    told = told if "@" in address else address
    try:
        parts = urlsplit(address)
        if parts.scheme in schemes:
            check_place(parts.netloc.rpartition("@")[2], schemes[parts.scheme].port)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{told!r} is no address: {error}; write {form}") from None
    if parts.scheme not in schemes:
        raise UsageError(f"{told!r} is no address: it begins with {' or '.join(schemes)}://")
    if not parts.hostname or port == 0 or parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(f"{told!r} is no address: write {form}")
    scheme = schemes[parts.scheme]
    return Place(
        parts.scheme,
        parts.hostname,
        scheme.port if port is None else port,
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
        scheme.tls,
        scheme.safe,
        trust,
    )
