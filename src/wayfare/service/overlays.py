"""Overlays of three nodes of a real system on loopback, to try the service with.

    async with overlay("mqtt", Path("/tmp/try")) as nodes:
        a, b, c = nodes.addresses

What is published at a reaches who subscribed at c as soon as it is entered, and no process is left
when it is over, whatever ended it. `wayfare.service.servers` says how each system is set up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

from wayfare.errors import UsageError
from wayfare.service.nodes import HERE, NAMES, Node
from wayfare.service.servers import SERVERS, Server

START_S = 180.0  # that three servers may take, on a machine that has other things to do


def missing(system: str) -> str | None:
    """One sentence that names the Debian package to install, if it is not there."""
    return _known(system).missing()


def packages() -> list[str]:
    """The Debian packages that are missing, of all systems."""
    return [one.package for one in SERVERS.values() if one.missing()]


def sentences() -> list[str]:
    """One for each system that cannot be started."""
    return [sentence for one in SERVERS.values() if (sentence := one.missing())]


def _known(system: str) -> Server:
    if system not in SERVERS:
        raise UsageError(f"there is no system {system!r}: there are {', '.join(SERVERS)}")
    return SERVERS[system]


class Overlay:
    """Nodes a, b and c, which run."""

    def __init__(self, system: str, nodes: list[Node]) -> None:
        self.system = system
        self._all = nodes
        self.nodes = {node.name: node for node in nodes if node.name in NAMES}

    @property
    def addresses(self) -> list[str]:
        """Of a, b and c: mqtt://127.0.0.1:20001 and so on."""
        return [f"{self.system}://{HERE}:{node.port}" for node in self.nodes.values()]

    def kill(self, name: str) -> None:
        """End a node as kill -9 does."""
        self._node(name).kill()

    async def start(self, name: str) -> None:
        """Start a node that was killed, with what it kept on disk, and wait until it is linked again."""
        node = self._node(name)
        for one in self._all:
            one.mark()
        node.start()
        await self._until_linked([node])

    def _node(self, name: str) -> Node:
        if name not in self.nodes:
            raise UsageError(f"there is no node {name!r}: there are {', '.join(self.nodes)}")
        return self.nodes[name]

    async def start_all(self) -> None:
        """Those first that the others need when they start."""
        for node in sorted(self._all, key=lambda node: not node.first):
            node.start()
            if node.first:
                await self._wait(node.until(node.listens))
        await self._until_linked(self._all)

    async def _until_linked(self, nodes: list[Node]) -> None:
        await self._wait(*(node.until(node.listens) for node in nodes))
        await self._wait(*(node.until(node.linked) for node in nodes))

    async def _wait(self, *facts: Coroutine[None, None, None]) -> None:
        try:
            async with asyncio.timeout(START_S):
                await asyncio.gather(*facts)
        except TimeoutError:
            words = "; ".join(f"{node.name} said: {node.last_words()}" for node in self._all)
            raise UsageError(
                f"the nodes of {self.system} did not find each other within {START_S:g} s; {words}"
            ) from None

    def kill_all(self) -> None:
        """Nobody can cancel this: it does not wait for anything but the end of what was killed."""
        for node in self._all:
            node.kill()


@asynccontextmanager
async def overlay(system: str, directory: Path) -> AsyncIterator[Overlay]:
    """Three nodes of this system, linked. They keep their files in the directory, which stay."""
    if (sentence := missing(system)) is not None:
        raise UsageError(sentence)
    running = Overlay(system, SERVERS[system].nodes(directory))
    try:
        await running.start_all()
        yield running
    finally:
        running.kill_all()
