"""When the tree of a publisher is complete, as the brokers' tables show it.

From the broker of the publisher on, every table on the way to every broker with a subscriber has to
show that way. While an old tree is still being torn down, it may look complete from the new broker
and fall apart again; so the last time counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from wayfare.core.messages import BrokerId
from wayfare.core.predicates import Value
from wayfare.sim.hosts import BrokerHost

Edge = tuple[str, str]  # a broker, and the neighbour that its table has to show


class Stay:
    """A publisher at a broker, and what its tree still lacks."""

    __slots__ = ("complete_at", "measured", "missing", "needed", "since")

    def __init__(self, since: int, needed: frozenset[Edge], *, measured: bool) -> None:
        self.since = since
        self.needed = needed
        self.missing: set[Edge] = set()  # for membership only
        self.complete_at = since  # the last time that `missing` became empty
        self.measured = measured

    def rebuild_ns(self) -> int | None:
        """How long it took until the tree was complete; None: it is not."""
        return None if self.missing else self.complete_at - self.since


class Trees:
    """The trees of one publication: from wherever it is published to all who want it."""

    def __init__(
        self,
        attributes: dict[str, Value],
        brokers: Mapping[str, BrokerHost],
        above: Mapping[str, str],
    ) -> None:
        self.attributes = attributes
        self.brokers = brokers
        self.above = above  # the parent of each broker; publications and subscribers are at leaves
        self.borders: dict[str, None] = {}  # where the subscribers are
        self.edges: dict[str, frozenset[Edge]] = {}  # by the broker of the publisher
        self.stays: dict[Stay, None] = {}  # that are not over

    def begin(self, leaf: str, now: int, *, measured: bool) -> Stay:
        """A publisher comes to this leaf."""
        stay = Stay(now, self._needed(leaf), measured=measured)
        stay.missing = {edge for edge in stay.needed if not self._shows(edge)}
        self.stays[stay] = None
        return stay

    def end(self, stay: Stay) -> None:
        """It goes: what its tree has or lacks now is the last word."""
        del self.stays[stay]

    def look_again(self, edge: Edge, now: int) -> None:
        """A table has changed that may be part of a tree."""
        concerned = [stay for stay in self.stays if edge in stay.needed]
        if not concerned:
            return
        shown = self._shows(edge)
        for stay in concerned:
            if not shown:
                stay.missing.add(edge)
            elif edge in stay.missing:
                stay.missing.discard(edge)
                if not stay.missing:
                    stay.complete_at = now

    def _needed(self, leaf: str) -> frozenset[Edge]:
        """Which tables have to show where, for what is published at this leaf."""
        if leaf not in self.edges:
            edges: set[Edge] = set()
            for border in self.borders:
                here, there = leaf, border
                ways_up, ways_down = [], []
                while here != there:  # all leaves are at the same depth
                    ways_up.append((here, self.above[here]))
                    ways_down.append((self.above[there], there))
                    here, there = self.above[here], self.above[there]
                edges.update(ways_up, ways_down)
            self.edges[leaf] = frozenset(edges)
        return self.edges[leaf]

    def _shows(self, edge: Edge) -> bool:
        broker, neighbour = edge
        core = self.brokers[broker].core
        place = core.neighbours.index(BrokerId(neighbour))
        found = core.routing.destinations.find(self.attributes)
        return any(place in audience.counts for audience in found)
