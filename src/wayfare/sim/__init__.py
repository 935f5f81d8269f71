"""A deterministic universe for the protocol: virtual time, links, faults, movement, and an oracle.

world = World(seed=1)
world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
anna = world.add_client("anna", "porto")
anna.subscribe("price > 40")
world.settle()
"""

from wayfare.sim.faults import Crash, Cut, Disconnect, Faults, Slow
from wayfare.sim.links import LinkSpec
from wayfare.sim.oracle import Verdict, Violation, check
from wayfare.sim.world import World

__all__ = [
    "Crash",
    "Cut",
    "Disconnect",
    "Faults",
    "LinkSpec",
    "Slow",
    "Verdict",
    "Violation",
    "World",
    "check",
]
