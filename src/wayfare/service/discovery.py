"""Which mobility proxies there are on a LAN: they say so themselves, by zeroconf (mDNS)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from wayfare.errors import UsageError
from wayfare.service.proxy_addresses import TLS, is_safe, where

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncZeroconf

TYPE = "_wayfare-proxy._tcp.local."
RESOLVE_MS = 3_000  # for the address of a proxy that was announced
NAME_MAX = 63  # bytes of the name that something is announced under
FOUND_MAX = 100  # proxies: more are not looked at

log = logging.getLogger(__name__)


def _zeroconf(interfaces: Sequence[str]) -> AsyncZeroconf:
    try:
        from zeroconf.asyncio import AsyncZeroconf
    except ModuleNotFoundError as error:
        raise UsageError(
            f"zeroconf needs the package {error.name}: pip install 'wayfare[service]'"
        ) from None
    try:
        return AsyncZeroconf(interfaces=list(interfaces)) if interfaces else AsyncZeroconf()
    except OSError as error:
        raise UsageError(
            f"zeroconf does not work here ({error.strerror}): name the proxies in a list"
        ) from None


@asynccontextmanager
async def advertised(
    address: str, access: str, interfaces: Sequence[str] = ()
) -> AsyncIterator[None]:
    """Say on the LAN that a proxy is at this address, beside this access point."""
    host, port = where(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"cannot announce {address} ({error.strerror}): say by --address where others reach it"
        ) from None
    zeroconf = _zeroconf(interfaces)
    from zeroconf import NonUniqueNameException
    from zeroconf.asyncio import AsyncServiceInfo

    try:
        name = address.removeprefix(TLS).replace(".", "-").replace(":", "-")[-NAME_MAX:]
        info = AsyncServiceInfo(
            TYPE,
            f"{name}.{TYPE}",
            parsed_addresses=[str(found[0][4][0])],
            port=port,
            properties={"access": access, "tls": "yes" if is_safe(address) else "no"},
            server=f"{name}.local.",
        )
        try:
            await (await zeroconf.async_register_service(info))
        except NonUniqueNameException:
            raise UsageError(
                f"another proxy announces {address} on this LAN: give each an address of its own, by --address"
            ) from None
        yield
    finally:
        await zeroconf.async_close()  # which takes it back


class Neighbourhood:
    """The proxies that are announced on the LAN, now; if they are to be `safe`, those with TLS."""

    def __init__(self, interfaces: Sequence[str] = (), *, safe: bool = False) -> None:
        self._interfaces = interfaces
        self._safe = safe
        self._names: dict[str, str] = {}  # address by the name that it is announced under
        self._resolving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Neighbourhood:
        self._zeroconf = _zeroconf(self._interfaces)
        from zeroconf.asyncio import AsyncServiceBrowser

        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, TYPE, handlers=[self._on_change]
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._browser.async_cancel()
        for task in self._resolving:
            task.cancel()
        await self._zeroconf.async_close()

    @property
    def addresses(self) -> list[str]:
        return sorted(one for one in self._names.values() if is_safe(one) or not self._safe)

    def _on_change(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        del service_type
        if state_change.name == "Removed":
            self._names.pop(name, None)
            return
        task = asyncio.ensure_future(self._resolve(zeroconf, name))
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    async def _resolve(self, zeroconf: Any, name: str) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        info = AsyncServiceInfo(TYPE, name)
        if await info.async_request(zeroconf, RESOLVE_MS) and len(self._names) < FOUND_MAX:
            hosts = info.parsed_scoped_addresses()
            if hosts and info.port:
                host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
                tls = TLS if info.decoded_properties.get("tls") == "yes" else ""
                self._names[name] = f"{tls}{host}:{info.port}"
                log.info("a mobility proxy is at %s", self._names[name])
