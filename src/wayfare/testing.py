"""For tests of applications: brokers on loopback, and a fixture for pytest that starts them.

    def test_parking(wayfare_tree):
        tree = wayfare_tree("porto-lisbon", "faro-lisbon")
        with wayfare.sync.connect(tree["porto"]) as car:
            ...

pytest finds the fixture by itself where Wayfare is installed. The brokers run in a thread of their own, so
that the test may be synchronous or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Self

import pytest

from wayfare.core.messages import BrokerId
from wayfare.errors import UsageError
from wayfare.net.addresses import Address
from wayfare.net.background import Background
from wayfare.net.broker import BrokerHost
from wayfare.sim.topology import check_tree

START_S = 10.0  # that brokers have to find each other
POLL_S = 0.002

HERE = Address("127.0.0.1", 0)


class Tree(Mapping[str, str]):
    """Brokers that are linked as `porto-lisbon` says. A mapping of their names to their addresses.

    Use it with `with` or `async with`. Options are those of every broker: routing, relocation,
    limits, heartbeat_s, ahead.
    """

    def __init__(self, *links: str, **options: Any) -> None:
        pairs = [link.split("-") for link in links or ("broker",)]
        if any(len(pair) > 2 or not all(pair) for pair in pairs):
            raise UsageError(f"links are written porto-lisbon, not {', '.join(links)}")
        names = list(dict.fromkeys(name for pair in pairs for name in pair))
        self._edges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
        if (wrong := check_tree(names, self._edges)) is not None:
            raise UsageError(wrong)
        self._names, self._options = names, options
        self._hosts: dict[str, BrokerHost] = {}
        self._addresses: dict[str, Address] = {}
        self._background: Background | None = None

    def __getitem__(self, name: str) -> str:
        return str(self._addresses[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def __enter__(self) -> Self:
        self._background = Background("brokers")
        try:
            self._background.call(self._start_all)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        background, self._background = self._background, None
        if background is not None:
            background.call(self._stop_all)
            background.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    def stop(self, name: str) -> None:
        """Stop a broker, as if its machine had failed: what it knew is gone."""
        self._check(name)
        self._call(self._hosts[name].stop)

    def start(self, name: str) -> None:
        """Start a broker that was stopped, at its old address, with nothing in its memory."""
        self._check(name)
        if not self._hosts[name].stopping:
            raise UsageError(f"{name} runs: stop it first")
        self._call(lambda: self._start(name, self._addresses[name]))
        self._call(self._linked)

    def _check(self, name: str) -> None:
        if self._background is None:
            raise UsageError("the brokers are not there: use the tree with `with`")
        if name not in self._names:
            raise UsageError(f"there is no broker {name!r}: there are {', '.join(self._names)}")

    def _call(self, work: Callable[[], Any]) -> None:
        assert self._background is not None
        self._background.call(work)

    async def _start_all(self) -> None:
        for name in self._names:
            await self._start(name, HERE)
        await self._linked()

    async def _stop_all(self) -> None:
        for host in self._hosts.values():
            await host.stop()

    async def _start(self, name: str, at: Address) -> None:
        """Who comes later calls who is there."""
        near: dict[str, Address | None] = {}
        for one, other in (*self._edges, *((b, a) for a, b in self._edges)):
            if one == name:
                later = self._names.index(name) > self._names.index(other)
                near[other] = self._addresses[other] if later else None
        self._hosts[name] = host = BrokerHost(name, near, peers=self._addresses, **self._options)
        self._addresses[name] = await host.start(at)
        for running in self._hosts.values():
            running.peers.meet(self._addresses)

    async def _linked(self) -> None:
        """Wait until all brokers know each other."""
        async with asyncio.timeout(START_S):
            while not all(
                host.core.paths.towards(BrokerId(other)) is not None
                for name, host in self._hosts.items()
                for other in self._names
                if other != name
            ):
                await asyncio.sleep(POLL_S)


@pytest.fixture
def wayfare_tree() -> Iterator[Callable[..., Tree]]:
    """Starts brokers on loopback: `wayfare_tree("porto-lisbon", "faro-lisbon")`, names to addresses."""
    with ExitStack() as stack:

        def start(*links: str, **options: Any) -> Tree:
            return stack.enter_context(Tree(*links, **options))

        yield start
