"""The limit of the disk: what a broker's journal and snapshot may take together.

    up to 7/8 of the limit    nobody notices anything
    beyond that               a snapshot takes the place of the journal; if that is not enough, who publishes to the
                              largest consumer is slowed for a moment
    beyond the limit          the largest consumer loses: a session its oldest notifications, and its client gets a
                              `Gap`; a neighbour what waits for it, as beyond `limits.memory`

A disk that is full although the limit is not reached stops the broker: nothing of that turn is acknowledged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from wayfare.core.broker import SPARE, Broker
from wayfare.core.effects import Exceeded
from wayfare.core.memory import NEAR
from wayfare.core.messages import BrokerId
from wayfare.net.links import Link
from wayfare.net.memory import WARN_EVERY_S, largest_link
from wayfare.net.store import Store

DISK = "disk"  # as a `Gap` names the limit


class DiskGuard:
    """Keeps the store of one broker below `limits.disk`."""

    def __init__(
        self,
        limit: int,
        core: Broker,
        links: Mapping[BrokerId, Link],
        put_away: Callable[[Store], None],
        slow: Callable[[], None],
        shed: Callable[[Exceeded], None],
        give_up: Callable[[Link], None],
        tell: Callable[..., None],
    ) -> None:
        self.limit = limit
        self._core, self._links = core, links
        self._put_away, self._slow, self._tell = put_away, slow, tell
        self._shed, self._give_up = shed, give_up
        self._warned_s = -WARN_EVERY_S

    def mind(self, store: Store) -> None:
        """Something was written."""
        if not self.limit or store.disk_bytes <= self.limit * NEAR:
            return
        self._slow()
        if store.journal_bytes < self.limit // SPARE:
            return  # there is nothing to be gained by another snapshot
        self._put_away(store)
        if store.disk_bytes > self.limit:
            self._warn(store)
            self._relieve(store.disk_bytes - self.limit + self.limit // SPARE)
            self._put_away(store)

    def _relieve(self, beyond: int) -> None:
        """Let the largest consumers lose this number of bytes: neighbours, or sessions."""
        while beyond > 0:
            link = largest_link(self._links)
            if link is None or link.bytes <= self._core.largest_bytes():
                self._shed(Exceeded(DISK, beyond))
                return
            beyond -= link.bytes
            self._give_up(link)

    def _warn(self, store: Store) -> None:
        if time.monotonic() - self._warned_s > WARN_EVERY_S:
            self._warned_s = time.monotonic()
            self._tell(
                logging.WARNING,
                "disk_short",
                "the store of %(broker)s takes %(bytes)s bytes, and limits.disk is %(limit)s: the largest"
                " consumers lose, and are told so",
                bytes=store.disk_bytes,
                limit=self.limit,
            )
