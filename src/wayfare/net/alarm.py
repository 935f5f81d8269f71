"""An alarm: the one timer of a host, which wakes it when its core is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Goes off at the earliest of all deadlines that it was set to, and then not again until it is set anew.

    A deadline that is put off afterwards wakes its host too early, which costs nothing: it sets the alarm again.
    """

    __slots__ = ("_due", "_timer", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._due = 0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: int | None, now: int) -> None:
        """Both on the clock of the host; None: nothing is due."""
        timer = self._timer
        if due is None or (timer is not None and self._due <= due):
            return
        if timer is not None:
            timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(max(0, due - now) / 1e9, self._ring)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._wake()
