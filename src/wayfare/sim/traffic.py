"""What brokers say to each other: counted by sort, and written to the event log of an experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import get_args

from wayfare.core.messages import Ack, AnyMessage, Deliver, Notification, Peers, Uncertain
from wayfare.eventlog import Event
from wayfare.sim.hosts import BrokerHost
from wayfare.sim.world import World, innermost

Log = Callable[[Iterable[Event]], object]  # takes what happened, in one batch or several

POSTED = frozenset(get_args(Peers))  # between replicators, which need no link
CARRIED = (Notification, Uncertain, Deliver)
# What is said so often that the log has its number only, one row for each pair of brokers.
NUMBERED = frozenset((*CARRIED, Ack, *POSTED))


class Traffic:
    """All messages between brokers from now on."""

    def __init__(
        self,
        world: World,
        *,
        logged: bool,
        on_control: Callable[[str, str], object] = lambda _sender, _receiver: None,
    ) -> None:
        self.world = world
        self.since = world.now
        self.control = 0  # messages on links that are no notifications
        self.notifications = 0
        self.tunnelled = 0  # of these, deliveries on their way to a client elsewhere
        self.acknowledgements = 0  # ... and what comes back for them
        self.posted = 0  # between replicators
        self._logged, self._on_control = logged, on_control
        self._often: Counter[tuple[str, str, str, str | None]] = Counter()
        world.watchers.append(self._watch)

    def _watch(self, sender: str, receiver: str, message: AnyMessage) -> None:
        inner = innermost(message)
        kind = type(inner)
        if kind not in POSTED and (sender, receiver) not in self.world.pipes:
            return
        if self._logged:
            self._log(sender, receiver, message, inner)
        if kind in POSTED:
            self.posted += 1
        elif kind in CARRIED:
            self.notifications += 1
            self.tunnelled += kind is Deliver
        elif kind is Ack:  # in a tunnel: for a delivery, not for a move
            self.acknowledgements += 1
        else:
            self.control += 1
            self._on_control(sender, receiver)

    def _log(self, sender: str, receiver: str, message: AnyMessage, inner: AnyMessage) -> None:
        outside = type(message).__name__
        inside = None if inner is message else type(inner).__name__
        if type(inner) in NUMBERED:
            self._often[sender, receiver, outside, inside] += 1
        else:
            self.world.log("sent", sender=sender, receiver=receiver, message=outside, inner=inside)

    def end(self) -> None:
        """Log what is known at the end: sums, tables, and since when it was measured."""
        world = self.world
        world.watchers.remove(self._watch)
        for (sender, receiver, outside, inside), count in self._often.items():
            world.log(
                "sent",
                sender=sender,
                receiver=receiver,
                message=outside,
                inner=inside,
                count=count,
            )
        for name, host in world.brokers.items():
            ads, subs = tables(host)
            world.log("tables", broker=name, entries={"advertisements": ads, "subscriptions": subs})
        world.log("measured", since_ns=self.since)


def tables(host: BrokerHost) -> tuple[int, int]:
    """Entries from neighbours: advertisements, subscriptions."""
    routing = host.core.routing
    return sum(map(len, routing.in_ads.values())), sum(map(len, routing.in_subs.values()))
