"""One client at its border broker: attached or away."""

from __future__ import annotations

from wayfare.core.filters import Filter
from wayfare.core.history import Backlog
from wayfare.core.messages import ClientId, LinkId


class Session:
    """What a border broker knows of a client.

    A session counts in the tables whether its client is attached or away.
    """

    __slots__ = (
        "advertisements",
        "away_since",
        "backlog",
        "client",
        "epoch",
        "link",
        "place",
        "published",
        "subscriptions",
    )

    def __init__(self, client: ClientId, epoch: int, place: int, delivered: int) -> None:
        self.client = client
        self.epoch = epoch  # of the latest attachment; only goes up
        self.place = place  # where notifications for it go: see routing.Destinations
        self.link: LinkId | None = None  # None: away
        self.away_since = 0
        self.subscriptions: dict[Filter, None] = {}
        self.advertisements: dict[Filter, None] = {}
        self.published = 0  # the last publication accepted from it
        self.backlog = Backlog(delivered)
