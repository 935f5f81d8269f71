"""Where a broker listens: wayfare://host:port, or wayfares:// with TLS."""

from __future__ import annotations

from collections.abc import Sequence, Set
from urllib.parse import urlsplit

import msgspec

from wayfare.errors import UsageError

PORT = 7410
SCHEMES = {"wayfare": False, "wayfares": True}


def check_place(place: str, port: int | str = PORT) -> None:
    """ValueError, with the rest of a sentence, if `host` or `host:port` is nothing that a resolver takes."""
    if place.count(":") > 1 and not place.startswith("["):
        raise ValueError(
            f"it has too many colons; an IPv6 address is in brackets, like [::1]:{port}"
        )
    host = place if place.startswith("[") else place.partition(":")[0]
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("names of hosts have 1 to 63 characters between dots") from None


def host_and_port(place: str, form: str, port: int | str = "PORT") -> tuple[str, int]:
    """Read `host:port`, or `:port`. ValueError, with the rest of a sentence, if it is not of this form."""
    if "/" not in place:  # which is of some other kind, and its colons are no mistake
        check_place(place, port)
    host, _, digits = place.rpartition(":")
    if "/" in place or not digits.isdecimal() or len(digits) > 5 or int(digits) > 65_535:
        raise ValueError(f"write {form}")
    return host.removeprefix("[").removesuffix("]"), int(digits)


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int = PORT
    tls: bool = False
    name: str = ""  # that its certificate has to have; "": the host

    def __str__(self) -> str:
        scheme = "wayfares" if self.tls else "wayfare"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Address:
        """An address as people write it: `wayfare://host:port`, `host:port` or `host`."""
        if not isinstance(text, str):
            raise UsageError(f"an address is a text like wayfare://host:port, not {text!r:.60}")
        given = text if "://" in text else f"wayfare://{text}"
        try:
            parts = urlsplit(given)
            check_place(parts.netloc.rpartition("@")[2])
            port = PORT if parts.port is None else parts.port
        except ValueError as error:
            raise UsageError(f"{text!r} is no address: {error}") from None
        if parts.scheme not in SCHEMES:
            raise UsageError(f"{text!r} is no address: it begins with wayfare:// or wayfares://")
        if not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
            raise UsageError(f"{text!r} is no address: write wayfare://host:port")
        return Address(parts.hostname, port, SCHEMES[parts.scheme])


def parse_all(given: str | Sequence[str]) -> list[Address]:
    """One address, or several."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence | Set) or not texts:
        raise UsageError(f"connect needs the address of a broker, or several, not {given!r:.60}")
    return [Address.parse(one) for one in texts]
