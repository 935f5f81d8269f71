"""A deterministic universe for the protocol: virtual time, links, faults, movement, and an oracle.

>>> world = World(seed=1)
>>> world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
>>> ticker = world.add_client("ticker", "faro")
>>> offered = ticker.advertise("price > 0")
>>> anna = world.add_client("anna", "porto")
>>> wanted = anna.subscribe("price > 40")
>>> world.settle()
>>> ticker.publish({"price": 41})
>>> world.settle()
>>> [one.notification.attributes for one in anna.received]
[{'price': 41}]
>>> check(world).violations
()
"""

from wayfare.sim.faults import Crash, Cut, Disconnect, Faults, Late, Rollback, Slow, Stall
from wayfare.sim.links import LinkSpec
from wayfare.sim.oracle import check
from wayfare.sim.verdict import Verdict, Violation
from wayfare.sim.world import World

__all__ = [
    "Crash",
    "Cut",
    "Disconnect",
    "Faults",
    "Late",
    "LinkSpec",
    "Rollback",
    "Slow",
    "Stall",
    "Verdict",
    "Violation",
    "World",
    "check",
]
