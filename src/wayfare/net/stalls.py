"""Stalls: the process did not run for a while, because it was stopped, suspended, or kept busy.

Whoever judges others by a time-out has to know: nothing was read meanwhile, so nobody was silent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

WATCH_S = 0.5  # how often the loop has to come by
STALL_S = 1.0  # without coming by: that is no ordinary delay

# CLOCK_MONOTONIC of Linux stands still while the machine is suspended, and CLOCK_BOOTTIME goes on.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime_ns() -> int:
    """A clock that never goes back, and counts the time while the machine is suspended."""
    return time.clock_gettime_ns(_CLOCK)


class Stalls:
    """Notices that the loop has not come by for too long."""

    __slots__ = ("_clock", "_seen")

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        """`clock` is the one that deadlines go by; without it, `uptime_ns`.

        A clock that stands still while the machine is suspended notices no such stall, and needs to notice none.
        """
        self._clock = clock
        self._seen = self._now()

    def _now(self) -> int:
        return uptime_ns() if self._clock is None else self._clock()

    def come_by(self) -> int:
        """How long the process has not run, in nanoseconds; 0 if it came by in time."""
        now = self._now()
        gap, self._seen = now - self._seen, now
        return gap if gap > STALL_S * 1e9 else 0


async def watch(look: Callable[[], None]) -> None:
    """Look for stalls often enough to notice each of them, until this is cancelled."""
    while True:
        await asyncio.sleep(WATCH_S)
        look()


@asynccontextmanager
async def running_timeout(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, extended by the time for which the process did not run.

    No timer is armed for the deadline itself: it would expire before anything notices that the process has
    stalled. Each look extends the deadline first, and lets the timeout expire only if it has still passed.
    """
    loop, stalls = asyncio.get_running_loop(), Stalls(time.monotonic_ns)
    timer: asyncio.Handle
    deadline = loop.time() + seconds
    async with asyncio.timeout(None) as limit:

        def on_timer() -> None:
            nonlocal deadline, timer
            deadline += stalls.come_by() / 1e9
            now = loop.time()
            if now >= deadline:
                limit.reschedule(now)  # it expires, and nothing looks at it again
            else:
                timer = loop.call_at(min(now + WATCH_S, deadline), on_timer)

        timer = loop.call_soon(on_timer)
        try:
            yield
        finally:
            timer.cancel()
