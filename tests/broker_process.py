"""A broker in a process of its own, to be killed: see test_kill.py.

broker_process.py NAME PORT DIRECTORY DURABILITY [NEIGHBOUR=PORT or NEIGHBOUR ...]
"""

import asyncio
import sys
from pathlib import Path

from wayfare.core.history import Limits
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.store import Store


async def main(name, port, directory, durability, *neighbours):
    near = {}
    for one in neighbours:
        other, _, there = one.partition("=")
        near[other] = Address("127.0.0.1", int(there)) if there else None
    store = None if durability == "memory" else Store(Path(directory), durability, name)
    limits = Limits(answer_ns=60 * 10**9)
    host = BrokerHost(name, near, store=store, heartbeat_s=0.5, limits=limits)
    await host.start(Address("127.0.0.1", int(port)))
    print("ready", flush=True)
    await host.failed.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
