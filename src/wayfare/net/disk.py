"""The limit of the disk: what a broker's journal and snapshot may take together.

    up to 7/8 of the limit    nobody notices anything
    beyond that               a snapshot takes the place of the journal; if that is not enough, who publishes to the
                              largest consumer is slowed for a moment
    beyond the limit          the largest consumer loses its oldest notifications, and is told so by a `Gap`

A disk that is full although the limit is not reached stops the broker: nothing of that turn is acknowledged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wayfare.core.broker import SPARE
from wayfare.core.effects import Exceeded
from wayfare.core.memory import NEAR
from wayfare.net.memory import WARN_EVERY_S
from wayfare.net.store import Store

DISK = "disk"  # as a `Gap` names the limit


class DiskGuard:
    """Keeps the store of one broker below `limits.disk`."""

    def __init__(
        self,
        limit: int,
        put_away: Callable[[Store], None],
        slow: Callable[[], None],
        shed: Callable[[Exceeded], None],
        tell: Callable[..., None],
    ) -> None:
        self.limit = limit
        self._put_away, self._slow, self._shed, self._tell = put_away, slow, shed, tell
        self._warned_s = -WARN_EVERY_S

    def mind(self, store: Store) -> None:
        """Something was written."""
        if not self.limit or store.disk_bytes <= self.limit * NEAR:
            return
        self._slow()
        if store.journal_bytes < self.limit // SPARE:
            return  # there is nothing to be gained by another snapshot
        self._put_away(store)
        beyond = store.disk_bytes - self.limit + self.limit // SPARE
        if store.disk_bytes > self.limit:
            self._warn(store)
            self._shed(Exceeded(DISK, beyond))
            self._put_away(store)

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
