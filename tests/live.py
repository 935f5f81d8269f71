"""Brokers and clients on loopback, for tests."""

import asyncio
import logging
from contextlib import asynccontextmanager

from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost

HERE = Address("127.0.0.1", 0)


class Tree:
    """Brokers of one process, linked as `a-b` says: a calls b."""

    def __init__(self, *pairs, at=HERE, each=lambda _: {}, **options):
        """Options are for all brokers; `each` gives those of one."""
        self.pairs = [tuple(pair.split("-")) for pair in pairs]
        self.at, self.each, self.options = at, each, options
        self.brokers = {}
        self.names = list(dict.fromkeys(name for pair in self.pairs for name in pair[::-1]))

    def url(self, name):
        return str(self.brokers[name].address)

    async def start(self, name, at=None):
        near = {}
        for a, b in self.pairs:
            if name == a:
                near[b] = self.brokers[b].address if b in self.brokers else None
            elif name == b:
                near[a] = None
        broker = self.brokers[name] = BrokerHost(name, near, **self.options, **self.each(name))
        await broker.start(at or self.at)
        for one in self.brokers.values():
            one.peers.meet({name: other.address for name, other in self.brokers.items()})
        return broker

    async def restart(self, name):
        """Stop a broker and start another one at its address, which knows nothing."""
        at = self.brokers[name].address
        await self.brokers[name].stop()
        return await self.start(name, at)

    async def linked(self):
        """Wait until all links are there, and all brokers know each other."""
        others = len(self.brokers) - 1

        def ready():
            return all(
                len(one.core.paths._hops) == others
                and all(link.connection for link in one.links.values())
                for one in self.brokers.values()
            )

        await until(ready)


async def until(condition, seconds=10.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def tree(*pairs, **options):
    """A tree that is there; called brokers are started first, so write each pair `child-parent`."""
    logging.getLogger("wayfare").setLevel(logging.ERROR)
    out = Tree(*pairs, **options)
    try:
        for name in out.names:
            await out.start(name)
        await out.linked()
        yield out
    finally:
        for broker in out.brokers.values():
            await broker.stop()


async def settled(tree):
    """Wait until every broker has the tables that it will have: nothing is under way any more."""
    before = None
    while True:
        now = [
            (sorted(map(str, table)), len(link))
            for one in tree.brokers.values()
            for name, link in one.links.items()
            for table in (one.core.routing.in_subs[name], one.core.routing.in_ads[name])
        ]
        if now == before:
            return
        before = now
        await asyncio.sleep(0.05)
