"""What announces itself on the LAN by zeroconf (mDNS): brokers, and mobility proxies.

An announcement is a service type, an address, and a few properties as text. Anybody on the LAN may announce anything,
so whoever looks for announcements has to judge each of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from wayfare.errors import UsageError

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncZeroconf

RESOLVE_MS = 3_000  # for the address behind a name that was announced
NAME_MAX = 63  # bytes of the name that something is announced under
FOUND_MAX = 100  # announcements of one type: more are not looked at

T = TypeVar("T")


class Announcement(msgspec.Struct, frozen=True):
    """What was announced: nobody has checked that it is true."""

    host: str  # an IP address
    port: int
    properties: Mapping[str, str | None]


def zeroconf(interfaces: Sequence[str], instead: str) -> AsyncZeroconf:
    """Speak mDNS on these interfaces, or on all; UsageError, with what to do `instead`, if that is not possible."""
    try:
        from zeroconf.asyncio import AsyncZeroconf
    except ModuleNotFoundError as error:
        raise UsageError(
            f"zeroconf needs the package {error.name}: pip install 'wayfare[discovery]'"
        ) from None
    try:
        return AsyncZeroconf(interfaces=list(interfaces)) if interfaces else AsyncZeroconf()
    except OSError as error:
        raise UsageError(f"zeroconf does not work here ({error.strerror}): {instead}") from None


@asynccontextmanager
async def announced(
    kind: str,
    name: str,
    host: str,
    port: int,
    properties: Mapping[str, str],
    interfaces: Sequence[str] = (),
    *,
    unreachable: str,
    instead: str,
    taken: str,
) -> AsyncIterator[None]:
    """Announce a service of this type, as long as this is entered. The rest is for error messages:

    unreachable   what to do if the host cannot be resolved
    instead       what to do if zeroconf does not work
    taken         another service is announced under this name
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"cannot announce {host}:{port} ({error.strerror}): {unreachable}"
        ) from None
    speaking = zeroconf(interfaces, instead)
    from zeroconf import NonUniqueNameException
    from zeroconf.asyncio import AsyncServiceInfo

    try:
        plain = (
            name.replace(".", "-").replace(":", "-").encode()[-NAME_MAX:].decode("utf-8", "ignore")
        )
        info = AsyncServiceInfo(
            kind,
            f"{plain}.{kind}",
            parsed_addresses=[str(found[0][4][0])],
            port=port,
            properties=dict(properties),
            server=f"{plain}.local.",
        )
        try:
            await (await speaking.async_register_service(info))
        except NonUniqueNameException:
            raise UsageError(taken) from None
        yield
    finally:
        await speaking.async_close()  # which withdraws it


class Announcements(Generic[T]):
    """The services of one type that are announced on the LAN now, as far as `read` makes sense of them."""

    def __init__(
        self,
        kind: str,
        read: Callable[[Announcement], T | None],
        interfaces: Sequence[str] = (),
        *,
        instead: str,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called when another one was found, or one has been withdrawn."""
        self.found: dict[str, T] = {}  # by the name that it is announced under
        self._kind, self._read = kind, read
        self._interfaces, self._instead = interfaces, instead
        self._changed = changed
        self._resolving: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Announcements[T]:
        self._zeroconf = zeroconf(self._interfaces, self._instead)
        from zeroconf.asyncio import AsyncServiceBrowser

        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, self._kind, handlers=[self._on_change]
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._browser.async_cancel()
        for task in list(self._resolving.values()):
            task.cancel()
        await self._zeroconf.async_close()

    def _on_change(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        del service_type
        if state_change.name == "Removed":
            if self.found.pop(name, None) is not None:
                self._changed()
            return
        known = self.found.keys() | self._resolving.keys()
        if name in self._resolving or (name not in known and len(known) >= FOUND_MAX):
            return
        task = asyncio.ensure_future(self._resolve(zeroconf, name))
        self._resolving[name] = task
        task.add_done_callback(lambda _: self._resolving.pop(name, None))

    async def _resolve(self, zeroconf: Any, name: str) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        info = AsyncServiceInfo(self._kind, name)
        if not await info.async_request(zeroconf, RESOLVE_MS):
            return
        hosts = info.parsed_scoped_addresses()
        if not hosts or not info.port:
            return
        one = self._read(Announcement(hosts[0], info.port, info.decoded_properties))
        if one is not None:
            self.found[name] = one
            self._changed()
