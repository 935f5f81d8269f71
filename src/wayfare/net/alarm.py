"""An alarm: the one timer of a host, which wakes it when its core is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

NEVER = 2**63 - 1


class Alarm:
    """Goes off at the earliest of all deadlines that it was set to, and then not again until it is set anew.

    A deadline that is put off afterwards wakes its host too early, which costs nothing: it sets the alarm again.
    """

    __slots__ = ("_timer", "_wake", "due")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.due = NEVER  # what it is set to: a host with many steps looks here before it sets it
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: int | None, now: int) -> None:
        """Both on the clock of the host; None: nothing is due."""
        if due is not None and due < self.due:
            self.clear()
            self.due = due
            delay = max(0, due - now) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.due = None, NEVER

    def _ring(self) -> None:
        self._timer, self.due = None, NEVER
        self._wake()
