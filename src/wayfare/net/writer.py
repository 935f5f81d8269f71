"""A publisher whose publications are repeated when somebody else failed: nobody gets one twice.

Its numbers are given, not counted by the process: a later process of the same name publishes the
same under the same numbers again, and brokers drop what they have accepted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId
from wayfare.net.client import Client
from wayfare.net.options import Options
from wayfare.net.wire import Wire

RANGE = 10**9  # publications of one writer


class Writer(Client):
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
        super().__init__(addresses, client_id, **options)
        self._leaves = leaves
        self._base = base
        self._core.published = base + RANGE  # until its broker says how far it was
        self._core.advertise(offered)
        self.accepted = -1
        self.is_new = False  # nobody can know yet that it is there

    def _take(self, wire: Wire, message: m.AnyMessage, now: int) -> None:
        if isinstance(message, m.Hello) and self.accepted < 0:
            # If an earlier writer of its name has a session there, go on with it.
            self._core.previous = ((BrokerId(message.name), 0),)
        super()._take(wire, message, now)
        if isinstance(message, m.Welcome) and self.accepted < 0:
            self.is_new = message.published == 0
            self.accepted = self._confirmed = max(message.published, self._base)
            self._core.published = self.accepted
