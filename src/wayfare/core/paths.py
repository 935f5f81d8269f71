"""The next hop towards every broker of the tree, and the errands that go there.

Every broker announces itself once over the tree. An errand is a message to one broker, wherever it
is; it travels behind what the tables of this moment have to say (`Update`), on the same links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wayfare.core.messages import ANNOUNCE_MAX, Announce, BrokerId, Errand
from wayfare.errors import ProtocolError

BROKERS_MAX = 100_000  # of the tree


class Paths:
    """What one broker knows of the others."""

    __slots__ = ("_hops", "down", "mail", "name", "neighbours")

    def __init__(self, name: BrokerId, neighbours: Sequence[BrokerId]) -> None:
        self.name = name
        self.neighbours = tuple(neighbours)
        self._hops: dict[BrokerId, BrokerId] = {}
        self.down: set[BrokerId] = set()  # neighbours that cannot be reached, for membership only
        self.mail: dict[BrokerId, list[Errand]] = {}  # errands that have not left yet

    def known_beyond(self, neighbour: BrokerId) -> list[Announce]:
        """What to tell a neighbour whose link is new."""
        return _announce(
            [self.name, *(name for name, hop in self._hops.items() if hop != neighbour)]
        )

    def learn(
        self, neighbour: BrokerId, names: Iterable[BrokerId]
    ) -> list[tuple[BrokerId, Announce]]:
        """These brokers are in that direction; whom to tell."""
        new = [name for name in names if self._hops.get(name) != neighbour and name != self.name]
        if len(self._hops) + len(new) > BROKERS_MAX:
            raise ProtocolError(f"a tree has at most {BROKERS_MAX} brokers")
        for name in new:
            self._hops[name] = neighbour
        others = [other for other in self.neighbours if other != neighbour]
        return [(other, one) for other in others for one in _announce(new)]

    def known(self) -> dict[BrokerId, BrokerId]:
        """The next hop to every broker that is known."""
        return dict(self._hops)

    def remember(self, hops: dict[BrokerId, BrokerId]) -> None:
        """As it was known before."""
        self._hops.update(hops)

    def towards(self, broker: BrokerId) -> BrokerId | None:
        """The next hop; None if nobody knows where that broker is."""
        return self._hops.get(broker)

    def reaches(self, broker: BrokerId) -> bool:
        """Whether the next hop to this broker is known, and can be reached."""
        hop = self._hops.get(broker)
        return hop is not None and hop not in self.down

    def send(self, errand: Errand) -> bool:
        """Put an errand on its way to its broker."""
        return self.send_to(errand.broker, errand)

    def send_to(self, broker: BrokerId, errand: Errand) -> bool:
        """Put an errand on its way; False if nobody knows where that broker is."""
        hop = self._hops.get(broker)
        if hop is None:
            return False
        self.send_by(hop, errand)
        return True

    def send_by(self, neighbour: BrokerId, errand: Errand) -> None:
        self.mail.setdefault(neighbour, []).append(errand)

    def take_mail(self) -> dict[BrokerId, list[Errand]]:
        """The errands that have not left yet, by neighbour."""
        mail = self.mail
        if mail:
            self.mail = {}
        return mail


def _announce(names: list[BrokerId]) -> list[Announce]:
    return [
        Announce(tuple(names[start : start + ANNOUNCE_MAX]))
        for start in range(0, len(names), ANNOUNCE_MAX)
    ]
