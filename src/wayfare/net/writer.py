"""A publisher whose publications are repeated when somebody else failed: nobody gets one twice.

Its numbers are given, not counted by the process: a later process of the same name publishes the
same under the same numbers again, and brokers drop what they have accepted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from wayfare.core import client as core
from wayfare.core import messages as m
from wayfare.core.effects import Effect
from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId, ClientId, LinkId
from wayfare.net.local_broker import LocalBroker, clock
from wayfare.net.options import Options, Settings

RANGE = 10**9  # publications of one writer


class Numbered(core.Client):
    """A core that goes on with the session of an earlier writer of its name, if there is one where it comes."""

    begins = True  # no broker has said how far it was

    def attach(self, broker: BrokerId | None, link: LinkId, time_ns: int = 0) -> list[Effect]:
        if self.begins and broker is not None:
            self.previous = ((broker, 0),)
        return super().attach(broker, link, time_ns)


class Writer(LocalBroker):
    """Publishes under the numbers `base` + 1, `base` + 2 ...; `accepted` says how far it was before."""

    _core: Numbered

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
        mine = Numbered(
            ClientId(client_id), settings.outbox, outbox_bytes_max=settings.outbox_bytes
        )
        mine.epoch = clock()  # it does not begin anew: it goes on where an earlier writer was
        mine.published = base + RANGE  # until its broker says how far it was
        mine.advertise(offered)
        super().__init__(addresses, mine, settings, leaves=leaves)
        self._base = base
        self.accepted = -1

    def _heard(self, message: m.AnyMessage) -> None:
        if isinstance(message, m.Welcome) and self._core.begins:
            self._core.begins = False
            self.accepted = self._core.published = max(message.published, self._base)
        super()._heard(message)
