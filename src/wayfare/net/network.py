"""Brokers as their configuration says, and a whole tree of them in one process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from wayfare.core.messages import BrokerId
from wayfare.core.places import Places, of_movement
from wayfare.core.virtual import Ahead, Learning
from wayfare.errors import UsageError
from wayfare.net import configured, maps
from wayfare.net.accounts import Accounts
from wayfare.net.addresses import Address
from wayfare.net.admin import AdminSocket
from wayfare.net.admin_http import AdminApi
from wayfare.net.announced_brokers import announce
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans
from wayfare.net.broker import BrokerHost
from wayfare.net.http import Endpoint
from wayfare.net.logs import tell
from wayfare.net.security import Tls, names_of, shown_by
from wayfare.net.store import Store

STOP_S = 10.0  # that stopping may take
LINKED_S = 10.0  # that brokers of one process may take to find each other


logger = logging.getLogger("wayfare.broker")


def host(
    name: str,
    neighbours: Mapping[str, Address | None],
    settings: configured.Settings,
    peers: Mapping[str, Address] | None = None,
) -> BrokerHost:
    """A broker with these settings, not started yet."""
    kept = settings.durability
    store = None if kept.mode == "memory" else Store(Path(kept.directory), kept.mode, name)
    ahead = ahead_of(settings.ahead, lambda: [name, *running.peers.addresses])
    running = BrokerHost(
        name,
        neighbours,
        routing=settings.routing,
        relocation=settings.relocation,
        limits=settings.limits,
        heartbeat_s=settings.heartbeat_s,
        store=store,
        tls=settings.security.tls,
        secret=secret_of(settings.security.secret_file),
        accounts=Accounts(accounts) if (accounts := settings.security.accounts) else None,
        net_limits=settings.net_limits,
        ahead=ahead,
        peers=peers,
        audit=Audit(name, "broker", settings.security.audit),
        bans=Bans(settings.security.bans),
    )
    return running


def ahead_of(said: configured.Ahead, everybody: Callable[[], Iterable[str]]) -> Ahead:
    """Where clients go; UsageError or ModelError if a file cannot be used."""
    places, movement = Places(), None
    if said.places:
        places = maps.read(Path(said.places))
    elif said.movement:
        movement = maps.read_movement(Path(said.movement))
        places = of_movement(movement, said.coverage)
    nlb: dict[str, Callable[[BrokerId], Sequence[BrokerId]]] = {
        "next": places.next_brokers,
        "learnt": places.next_brokers,  # at first
        "none": lambda _: (),
        "all": lambda here: [BrokerId(one) for one in everybody() if one != here],
    }
    learning = None
    if said.nlb == "learnt" or (said.nlb == "next" and movement is not None):
        learning = Learning(said.coverage, movement, learns=said.nlb == "learnt")
    return Ahead(places, nlb[said.nlb], said.steps, said.dwell_ns, said.hop_ns, learning)


def secret_of(file: str) -> str | None:
    """The first line of this file; UsageError if it cannot be read."""
    if not file:
        return None
    try:
        return Path(file).read_text("utf-8").split("\n")[0].strip()
    except OSError as error:
        raise UsageError(f"cannot read the secret in {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} has no secret: it is not text in UTF-8") from None


async def listen(broker: BrokerHost, address: Address) -> Address:
    """Start a broker there; UsageError if it cannot listen."""
    try:
        return await broker.start(address)
    except OSError as error:
        raise UsageError(f"{broker.name} cannot listen at {address}: {_why_not(error)}") from None


def _why_not(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}; give a name or an address of this machine"
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"{reason}; choose another address, or stop what listens there"


async def start(network: configured.Network) -> dict[str, BrokerHost]:
    """All brokers of a network, listening and linked; none, if one of them cannot."""
    running: dict[str, BrokerHost] = {}
    tls = network.settings.security.tls
    if tls is not None:
        check_names(tls, network.brokers)
    try:
        for name, parent in _outwards(network):
            near: dict[str, Address | None] = dict.fromkeys(_near(network, name))
            if parent:  # it listens already: so it is called, and the others will call
                near[parent] = running[parent].address
            running[name] = host(name, near, settings_of(name, network))
            here = Address(network.host, network.brokers[name], tls=tls is not None)
            await listen(running[name], here)
        for one in running.values():
            one.peers.meet({name: other.address for name, other in running.items()})
        await _linked(running.values())
    except BaseException:
        await stop(running.values())
        raise
    return {name: running[name] for name in network.brokers}


def check_names(tls: Tls, brokers: Iterable[str]) -> None:
    """A certificate that all of them show has to have the names of all."""
    names = names_of(shown_by(tls))
    for name in brokers:
        if name not in names:
            raise UsageError(
                f"{tls.cert} is of {', '.join(names)}, and not of {name}: all brokers of a network show"
                " this certificate, so let it have the names of all"
            )


async def stop(brokers: Iterable[BrokerHost]) -> None:
    """All at once, so that none wonders where another one is. Peers that do not go are left behind."""
    try:
        async with asyncio.timeout(STOP_S):
            await asyncio.gather(*(one.stop() for one in brokers))
    except TimeoutError:
        tell(
            logger,
            logging.WARNING,
            "stopped_late",
            "some connections did not close within %(seconds)g s: they are left behind",
            seconds=STOP_S,
        )


class Telling:
    """While this is entered, the process tells about its brokers over HTTP, if it is to."""

    def __init__(self, brokers: Iterable[BrokerHost], where: configured.Status) -> None:
        self._where, self._endpoint = where, Endpoint(brokers)

    async def __aenter__(self) -> str:
        """The address where it does, or nothing."""
        if self._where.port is None:
            return ""
        host = f"[{self._where.host}]" if ":" in self._where.host else self._where.host
        try:
            _, port = await self._endpoint.start(self._where.host, self._where.port)
        except OSError as error:
            raise UsageError(
                f"cannot tell the status at {host}:{self._where.port}: {_why_not(error)}"
            ) from None
        return f"http://{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        await self._endpoint.stop()


def announced(
    brokers: Iterable[BrokerHost], settings: configured.Announce
) -> AbstractAsyncContextManager[object]:
    """While this is entered, clients on the LAN find these brokers, if that was asked for."""
    stack = AsyncExitStack()
    return stack if not settings.network else _announced(stack, brokers, settings)


@asynccontextmanager
async def _announced(
    stack: AsyncExitStack, brokers: Iterable[BrokerHost], settings: configured.Announce
) -> AsyncIterator[object]:
    async with stack:
        for one in brokers:
            assert one.address is not None  # it listens
            address = replace(one.address, host=settings.host or one.address.host)
            await stack.enter_async_context(announce(one.name, settings.network, address))
            says = "%(broker)s announces itself at %(address)s in the network %(network)s"
            facts = {"broker": one.name, "address": address, "network": settings.network}
            tell(logger, logging.INFO, "announced", says, **facts)
        yield stack


class Administered:
    """While this is entered, operators may list and end sessions of these brokers, if there is a socket."""

    def __init__(self, brokers: Iterable[BrokerHost], settings: configured.Settings) -> None:
        path, self._where = settings.admin, settings.admin_api
        self._brokers, self._tls = list(brokers), settings.security.tls
        self._socket = AdminSocket(self._brokers, path) if path else None
        self._api: AdminApi | None = None
        # Beside a store nobody asked for it: then a broker starts without, and says so.
        beside = Path(settings.durability.directory) / configured.ADMIN_FILE
        self._required = Path(path) != beside

    async def __aenter__(self) -> str:
        """The address of the admin API, or nothing."""
        if self._socket is not None:
            await self._open(self._socket)
        try:
            return "" if self._where.listen is None else await self._listen(self._where.listen)
        except BaseException:
            await self.__aexit__()
            raise

    async def _open(self, socket: AdminSocket) -> None:
        try:
            await socket.start()
        except UsageError as error:
            if self._required:
                raise
            says = "operators cannot reach this process: %(reason)s"
            tell(logger, logging.WARNING, "no_admin", says, reason=error)

    async def _listen(self, where: Address) -> str:
        self._api = AdminApi(self._brokers, self._where.tokens, self._tls)
        try:
            address = await self._api.start(where)
        except OSError as error:
            raise UsageError(
                f"admin.listen: cannot listen at {where.host}:{where.port}: {_why_not(error)}"
            ) from None
        self._brokers[0].reloads.append(self._api.reload)
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"{'https' if address.tls else 'http'}://{host}:{address.port}"

    async def __aexit__(self, *_: object) -> None:
        if self._api is not None:
            await self._api.stop()
        if self._socket is not None:
            await self._socket.stop()


async def _linked(brokers: Iterable[BrokerHost]) -> None:
    links = [link for one in brokers for link in one.links.values()]
    try:
        async with asyncio.timeout(LINKED_S):
            while not all(link.connection for link in links):
                await asyncio.sleep(0.01)
    except TimeoutError:
        missing = next(link.name for link in links if link.connection is None)
        raise UsageError(
            f"nobody could reach {missing} within {LINKED_S:g} s: brokers call each other at the"
            " host where they listen, so it has to be one that this machine can reach"
        ) from None


def settings_of(name: str, network: configured.Network) -> configured.Settings:
    """Those of all; but each keeps its memory in a directory of its own."""
    kept = network.settings.durability
    own = replace(kept, directory=str(Path(kept.directory) / name))
    return replace(network.settings, durability=own)


def _near(network: configured.Network, name: str) -> list[str]:
    return [b if a == name else a for a, b in network.links if name in (a, b)]


def _outwards(network: configured.Network) -> list[tuple[str, str]]:
    """Every broker behind the one that it calls; the first calls nobody."""
    order = [(next(iter(network.brokers)), "")]
    for name, parent in order:
        order += [(other, name) for other in _near(network, name) if other != parent]
    return order
