"""Where a mobility proxy is, host:port or tls://host:port, and to whom it may connect itself."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from wayfare.errors import UsageError
from wayfare.net.addresses import host_and_port
from wayfare.net.security import is_private

TLS = "tls://"  # how addresses begin of proxies that speak it
PORT = 7500
FORM = f"host:port, or {TLS}host:port"
Place = tuple[str, int]
# Where to connect to for an address that somebody named; UsageError if that is not permitted.
Permit = Callable[[str], Awaitable[Place]]


def where(address: str) -> Place:
    """Read `host:port`, or `host`, with or without TLS."""
    try:
        host, port = host_and_port(with_port(address.removeprefix(TLS), PORT), FORM, PORT)
        if not host or not port:
            raise ValueError(f"write {FORM}")
    except ValueError as error:
        raise UsageError(f"{address!r:.80} is no address of a mobility proxy: {error}") from None
    return host, port


def with_port(address: str, port: int) -> str:
    """This port, if the address says none."""
    is_host = address and (":" not in address.removeprefix(TLS) or address.endswith("]"))
    return f"{address}:{port}" if is_host else address


def is_safe(address: str) -> bool:
    """Whether TLS is spoken there."""
    return address.startswith(TLS)


async def anywhere(address: str) -> Place:
    return where(address)


def is_among(peers: Sequence[str]) -> Callable[[str], bool]:
    """Whether the operator has named this proxy."""
    named = {(*where(peer), is_safe(peer)) for peer in peers}

    def is_named(address: str) -> bool:
        try:
            return (*where(address), is_safe(address)) in named
        except UsageError:
            return False

    return is_named


def only(
    peers: Sequence[str], asker_of: Callable[[str], str] = lambda _: "", *, proves: bool = False
) -> Permit:
    """Permit these addresses; if there are none, what no client can use to reach more than it reaches itself.

    Clients say which proxy they come from, and none of them is to make a proxy connect to whom it likes: a key that was
    made up says nothing. So this machine is for clients that are here themselves (`asker_of` is the address of who asks),
    and private networks are for proxies where each `proves` to know a secret.
    """
    named = {(*where(peer), is_safe(peer)) for peer in peers}

    async def permit(address: str) -> Place:
        host, port = where(address)
        if (host, port, is_safe(address)) in named:
            return host, port
        if named:
            raise UsageError(f"{address} is not among the proxies that this one may ask (--peers)")
        ip = await _ip(host, port)
        if ip.is_loopback and not _is_loopback(asker_of(address)):
            raise UsageError(
                f"{address} is on this machine, and the client is not: name the proxy in --peers"
            )
        if not is_private(ip):
            raise UsageError(f"{address} is not in a private network: name it in --peers")
        if not (ip.is_loopback or proves):
            raise UsageError(
                f"{address} is not known to be a proxy: name it in --peers, or give all proxies a secret"
            )
        return str(ip), port

    return permit


def _is_loopback(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # it is gone already
        return False
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


async def _ip(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Names are looked up in threads, for which others may wait: addresses are not."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ip = ipaddress.ip_address(found[0][4][0])
    return getattr(ip, "ipv4_mapped", None) or ip
