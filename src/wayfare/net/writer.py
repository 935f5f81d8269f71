"""A publisher whose publications are repeated when somebody else failed: nobody gets one twice.

Its numbers are given, not counted by the process: a later process of the same name publishes the
same under the same numbers again, and brokers drop what they have accepted before. What that is, it asks when it begins:

    writer           its broker                 other brokers
      |-- Attach ------->|-- Announce ---------------->|   the sessions of earlier writers end
      |<-- Welcome ------|<-- Reply(published) --------|   ... and this is how far they were
      |<-- Published ----|                             |
      |-- Probe -------->|---------------------------->|
      |<-- Echo ---------|<--------------------- Echo--|   all have replied
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Self, Unpack

from wayfare.core import client as core
from wayfare.core.filters import Filter
from wayfare.core.messages import ClientId
from wayfare.errors import NotConfirmed
from wayfare.net.local_broker import LocalBroker, clock
from wayfare.net.options import Options, Settings

RANGE = 10**9  # publications of one writer

logger = logging.getLogger("wayfare.client")


class Writer(LocalBroker):
    """Publishes under the numbers `base` + 1, `base` + 2 ...; `accepted` says how far it was before."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        client_id: str,
        offered: Filter,
        base: int = 0,
        *,
        leaves: bool = True,
        **options: Unpack[Options],
    ) -> None:
        """Unless it `leaves`, its session waits for the next writer of its name."""
        settings = Settings(**options)
        mine = core.Client(
            ClientId(client_id), settings.outbox, outbox_bytes_max=settings.outbox_bytes
        )
        mine.resume(clock(), secrets.randbits(62) + 1, base)
        mine.advertise(offered)
        super().__init__(addresses, mine, settings, leaves=leaves)
        self._offered = offered
        self.accepted = -1

    async def open(self) -> Self:
        """Connect, and wait until all brokers have said how far earlier writers of this name were.

        That takes no longer than a client waits for a broker that cannot be reached. What such a broker accepted
        is published again, and dropped by the subscribers that have it.
        """
        await super().open()
        if self.accepted < 0:
            try:
                await self._learn()
            except BaseException:
                await self.close(0)
                raise
        return self

    async def _learn(self) -> None:
        """Learn which of its publications earlier writers have made."""
        failover, confirm = self._settings.failover, self._settings.confirm
        patience = confirm if failover is None else min(failover, confirm)
        try:
            await self._confirmations.advertised(self._offered, patience)
        except NotConfirmed as error:
            logger.warning(
                "%s may publish again what an earlier writer of its name has published, and whoever has that drops"
                " it: %s",
                self.name,
                error,
            )
        self._core.go_on()
        self._count_confirmed()
        self.accepted = self._core.published
