"""Which mobility proxies there are on a LAN: they say so themselves, by zeroconf (mDNS)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from wayfare.net.announcements import Announcement, Announcements, announced
from wayfare.service.proxy_addresses import TLS, is_safe, where

TYPE = "_wayfare-proxy._tcp.local."
INSTEAD = "name the proxies in a list"

log = logging.getLogger(__name__)


def advertised(
    address: str, access: str, interfaces: Sequence[str] = ()
) -> AbstractAsyncContextManager[None]:
    """Say on the LAN that a proxy is at this address, beside this access point."""
    host, port = where(address)
    return announced(
        TYPE,
        address.removeprefix(TLS),
        host,
        port,
        {"access": access, "tls": "yes" if is_safe(address) else "no"},
        interfaces,
        unreachable="say by --address where others reach it",
        instead=INSTEAD,
        taken=f"another proxy announces {address} on this LAN: give each an address of its own, by --address",
    )


class Neighbourhood(Announcements[str]):
    """The proxies that are announced on the LAN, now; if they are to be `safe`, those with TLS."""

    def __init__(self, interfaces: Sequence[str] = (), *, safe: bool = False) -> None:
        super().__init__(TYPE, _address, interfaces, instead=INSTEAD)
        self._safe = safe

    @property
    def addresses(self) -> list[str]:
        return sorted(one for one in self.found.values() if is_safe(one) or not self._safe)


def _address(one: Announcement) -> str:
    host = f"[{one.host}]" if ":" in one.host else one.host
    address = f"{TLS if one.properties.get('tls') == 'yes' else ''}{host}:{one.port}"
    log.info("a mobility proxy is at %s", address)
    return address
