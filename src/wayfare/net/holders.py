"""Which task, or which thread of the synchronous client, has a notification in hand, and whether it is done with it."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import ContextVar

Holder = asyncio.Task[object] | threading.Thread | None

# The thread that a task works for.
caller: ContextVar[threading.Thread | None] = ContextVar("caller", default=None)

logger = logging.getLogger("wayfare.client")


def current() -> Holder:
    return caller.get() or asyncio.current_task()


def is_finished(holder: Holder) -> bool:
    """Whether it cannot be busy any more: it is the caller itself, or has ended without an error."""
    if holder is None or holder is current():
        return True
    if isinstance(holder, threading.Thread):
        return not holder.is_alive()
    if not holder.done() or holder.cancelled():
        return False
    if (error := holder.exception()) is not None:
        logger.error("%s failed: what it had in hand comes again", holder, exc_info=error)
    return error is None
