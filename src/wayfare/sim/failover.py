"""Whether nobody waits longer for a broker that cannot be reached than it wants to.

Judges runs in which nothing goes wrong but that brokers are down: `slack_ns` is what requests and replies take.
"""

from __future__ import annotations

from itertools import pairwise

from wayfare.core.messages import ClientId
from wayfare.eventlog import Event
from wayfare.sim.verdict import Violation
from wayfare.sim.world import World


class Waits:
    """Looks at the session of every client that fails over, when it has to be open."""

    def __init__(self, world: World, slack_ns: int) -> None:
        self.found: list[Violation] = []
        self._world, self._slack_ns = world, slack_ns
        self._attached: dict[str, list[Event]] = {}  # by client
        if world.relocation != "junction":  # which asks no broker, but searches the tree
            world.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.kind != "attached" or event.client is None:
            return
        attached = self._attached.setdefault(event.client, [])
        attached.append(event)
        core = self._world.clients[event.client].core
        if core.failover_ns:
            due = event.time_ns + core.failover_ns + self._slack_ns
            self._world.agenda.at(due + self._queued_ns(attached), self._look, event)

    def _queued_ns(self, attached: list[Event]) -> int:
        """What the requests of a client in a hurry take that wait for each other, each for a reply."""
        since = attached[-1].time_ns - self._slack_ns
        recent = [one.broker for one in attached if one.time_ns > since]
        moves = sum(there != here for there, here in pairwise(recent))
        return max(0, moves - 1) * self._slack_ns // 2

    def _look(self, event: Event) -> None:
        assert event.client and event.broker and event.epoch is not None
        if event.broker in self._world.stopped:
            return
        client = ClientId(event.client)
        borders = {name: host.core.border for name, host in self._world.brokers.items()}
        session = borders[event.broker].get(client, event.epoch)
        waits = session is not None and session.wait is not None and session.link is not None
        # The session, or one before it, may wait until the client's filters are in effect again, or for the past.
        sessions = (one for border in borders.values() for one in border.of(client))
        excused = (
            one.wait and (one.wait.returning or one.wait.asks_for_past()) for one in sessions
        )
        if waits and not any(excused):
            what = f"{event.client} still waits at {event.broker} for a broker that is down"
            self.found.append(Violation("failover", what))
