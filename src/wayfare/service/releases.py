"""What old proxies are to be told: that they may forget the client, who has all that they kept."""

from __future__ import annotations

from wayfare.service import messages as m
from wayfare.service.messages import SECOND_NS

FIRST_NS = 3 * SECOND_NS  # until one is told again, which doubles each time
SLOWEST_NS = 3600 * SECOND_NS


class Releases:
    """Said again, less and less often, until each of them has let go."""

    def __init__(self) -> None:
        self.due_at: int | None = None
        self._open: dict[str, m.Release] = {}  # by the proxy
        self._every_ns = FIRST_NS

    def begin(self, releases: dict[str, m.Release]) -> None:
        self._open, self.due_at, self._every_ns = releases, None, FIRST_NS

    def say(self, now: int) -> list[m.Release]:
        self.due_at = now + self._every_ns if self._open else None
        self._every_ns = min(2 * self._every_ns, SLOWEST_NS)
        return list(self._open.values())

    def done(self, released: m.Released) -> bool:
        """Whether this proxy was still to be told."""
        told = self._open.get(released.at)
        if told is None or told.stay > released.stay:
            return False
        del self._open[released.at]
        if not self._open:
            self.due_at = None
        return True
