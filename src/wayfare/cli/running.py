"""Commands that run for a while: how they are stopped, and what the log of the library says meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import isfinite
from typing import Any

LEVELS = ("debug", "info", "warning", "error")


def run(work: Coroutine[Any, Any, int], when_told: Callable[[], int] = lambda: 0) -> int:
    """Run it to its end. Ctrl-C cancels it, as SIGTERM does; but that is a proper end, with this code."""
    return asyncio.run(_heed(work, when_told))


async def _heed(work: Coroutine[Any, Any, int], when_told: Callable[[], int]) -> int:
    loop = asyncio.get_running_loop()
    task, told = loop.create_task(work), asyncio.Event()

    def stop() -> None:
        told.set()
        task.cancel()

    with suppress(NotImplementedError):  # where there are no signals
        loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if told.is_set():
            return when_told()
        raise


def add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level", choices=LEVELS, default="warning", help="on stderr (default: warning)"
    )


def start_log(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )


def tell(sentence: str) -> None:
    """Something to know, beside the output."""
    print(f"wayfare: {sentence}", file=sys.stderr, flush=True)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, like 2.5")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: give a whole number, at least 1")
    return int(text)
