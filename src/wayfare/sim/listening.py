"""Which brokers were asked to listen ahead for a client, and since when each of them has heard it.

What replicators post to each other may be lost. A broker that has not heard that it is to listen keeps nothing for
the client, until that is said again: so nothing can be required of it.
"""

from __future__ import annotations

from math import inf

from wayfare.core.messages import BrokerId, ClientId, Forget, Peers, Shadow


class Listening:
    """Of all clients in a world."""

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        # By client and epoch: the brokers that were asked all the time.
        self._asked: dict[tuple[ClientId, int], dict[BrokerId, None]] = {}
        # By client and broker: what has arrived last, as epoch and version, and when.
        self._heard: dict[tuple[ClientId, BrokerId], tuple[int, int, int]] = {}
        # By client, epoch and broker: from when until when it may have known nothing of that, or too little.
        self._deaf: dict[tuple[ClientId, int, BrokerId], list[tuple[int, float]]] = {}

    def on_posted(self, broker: BrokerId, message: Peers) -> None:
        """This was sent to a broker."""
        if isinstance(message, Shadow):
            everybody = dict.fromkeys(message.others)
            others = self._asked.setdefault((message.client, message.epoch), everybody)
            for one in [one for one in others if one not in message.others]:
                del others[one]
        elif isinstance(message, Forget) and not message.broker:
            self._asked.get((message.client, message.epoch - 1), {}).pop(broker, None)

    def on_lost(self, broker: BrokerId, message: Peers, now: int) -> None:
        """That was lost on its way."""
        if not isinstance(message, Shadow):
            return
        spans = self._deaf.setdefault((message.client, message.epoch, broker), [])
        if spans and spans[-1][1] == inf:
            return
        epoch, version, at = self._heard.get((message.client, broker), (0, 0, 0))
        knows = (epoch, version) == (message.epoch, message.version)
        spans.append((at + self._lease_ns if knows else now, inf))

    def on_arrived(self, broker: BrokerId, message: Peers, now: int) -> None:
        if not isinstance(message, Shadow):
            return
        self._heard[message.client, broker] = message.epoch, message.version, now
        spans = self._deaf.get((message.client, message.epoch, broker), [])
        if spans and spans[-1][1] == inf:
            since, _ = spans.pop()
            if since < now:
                spans.append((since, now))

    def was_asked(self, client: ClientId, epoch: int, broker: BrokerId) -> bool:
        """Whether a broker was to listen all the time of an attachment elsewhere."""
        return broker in self._asked.get((client, epoch), {})

    def has_heard(
        self, client: ClientId, epoch: int, broker: BrokerId, at_ns: int, way_ns: int
    ) -> bool:
        """Whether a broker that was to listen did when something that was published then came there.

        Messages between any two brokers take so long at most, those that say what it subscribes to as well.
        """
        spans = self._deaf.get((client, epoch, broker), [])
        return not any(since - way_ns <= at_ns <= until + way_ns for since, until in spans)
