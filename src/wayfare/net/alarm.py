"""The clock of a host: it wakes a core when the core's next deadline is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """One time at which to call `wake`; it is set anew after each step."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._due: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: int | None, now: int) -> None:
        """Both in nanoseconds of the same clock; None: never."""
        if due == self._due:
            return
        self.clear()
        if due is not None:
            self._due = due
            delay = max(0, due - now) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due = None

    def _ring(self) -> None:
        self._timer = self._due = None
        self._wake()
