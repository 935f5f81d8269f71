"""A broker in a process of its own, to be killed: see test_kill.py.

broker_process.py NAME PORT DIRECTORY DURABILITY [NEIGHBOUR=PORT or NEIGHBOUR or ~PEER=PORT ...]

With peers, it listens ahead at all of them. ANSWER_S in the environment is its `answer` limit, LIMITS are others in JSON.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from wayfare.core.history import Limits
from wayfare.core.places import of_edges
from wayfare.core.virtual import Ahead
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.store import Store


async def main(name, port, directory, durability, *neighbours):
    near, peers = {}, {}
    for one in neighbours:
        other, _, there = one.partition("=")
        known = peers if other.startswith("~") else near
        known[other.lstrip("~")] = Address("127.0.0.1", int(there)) if there else None
    places = of_edges((name, one) for one in peers)
    store = None if durability == "memory" else Store(Path(directory), durability, name)
    limits = Limits(
        answer_ns=int(os.environ.get("ANSWER_S", "60")) * 10**9,
        **json.loads(os.environ.get("LIMITS", "{}")),
    )
    host = BrokerHost(
        name,
        near,
        store=store,
        heartbeat_s=0.5,
        limits=limits,
        ahead=Ahead(places, places.next_brokers),
        peers=peers,
    )
    await host.start(Address("127.0.0.1", int(port)))
    print("ready", flush=True)
    await host.failed.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
