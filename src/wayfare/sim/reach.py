"""The one thing that a judge knows of the network: how long a message took at the most."""

from __future__ import annotations

import msgspec

from wayfare.core.broker import DEFAULT_LIMITS, PUBLISHER_RELOCATIONS
from wayfare.core.effects import EXPIRED
from wayfare.core.home import Home
from wayfare.sim import topology
from wayfare.sim.world import World


class Reach(msgspec.Struct, frozen=True):
    """How long messages took at the most."""

    tree_ns: int  # from any broker to any other
    client_ns: int  # between a client and its broker
    window: int = DEFAULT_LIMITS.window  # deliveries that may be on their way to a client
    # That a broker was down whose links began from nothing: nothing arrives that tells how long it took.
    outage_ns: int = 0
    # Whether publications count from the first one on, and not only when the advertisement has settled.
    at_once: bool = True
    confirm_ns: int = DEFAULT_LIMITS.confirm_ns  # that a broker waits for confirmations
    past_ns: int = 0  # that a session held back what came, because its client asked for the past
    expires: bool = False  # whether a session may end before its client could be welcomed

    @property
    def confirms_in_time(self) -> bool:
        """Whether every confirmation came before a broker waited no longer, also behind an earlier one."""
        return self.at_once and not self.outage_ns and 4 * self.tree_ns <= self.confirm_ns


def reach(world: World) -> Reach:
    wait = {name: host.worst_ns for name, host in world.brokers.items()}
    near = topology.neighbours(world.edges)

    def farthest(start: str) -> tuple[int, str]:
        best = (wait[start], start)
        todo = [(start, "", wait[start])]
        while todo:
            here, came_from, so_far = todo.pop()
            best = max(best, (so_far, here))
            for there in near.get(here, []):
                if there != came_from:
                    pipes = world.link(here, there)
                    todo.append(
                        (there, here, so_far + wait[there] + max(p.worst_ns for p in pipes))
                    )
        return best

    start = next(iter(world.brokers))
    tree_ns, _ = farthest(farthest(start)[1])
    client_ns = max(
        [world.closed_worst_ns, *(one.worst_ns() for one in world.connections.values())]
    )
    client_ns += max(wait.values())
    client_ns += world.unread_ns + max(host.held_ns for host in world.brokers.values())
    if world.relocation == Home.name:  # what a client says or gets goes by its home
        client_ns += tree_ns
    if world.digests:  # a new broker may ask an old one, and then the client
        client_ns = 3 * client_ns + 2 * tree_ns
    elif any(one.process for one in world.clients.values()):
        # A client that begins anew may be told to attach again, to exceed another process.
        client_ns = 3 * client_ns
    at_once = world.relocation not in PUBLISHER_RELOCATIONS
    limits = world.limits
    expires = any(one.core.expires_ns for one in world.clients.values())
    expires |= any(one.why != EXPIRED for _, one in world.ended)
    outage_ns, confirm_ns = world.outage_ns, limits.confirm_ns
    # Publishers' brokers are asked, and then others; each request may make all that wait wait longer.
    asked = max(world.recalls.values(), default=0)
    past_ns = asked * min(limits.recall_ns, 4 * tree_ns)
    return Reach(
        tree_ns, client_ns, limits.window, outage_ns, at_once, confirm_ns, past_ns, expires
    )
