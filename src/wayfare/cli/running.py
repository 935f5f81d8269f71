"""Commands that run for a while: how they are stopped, and what the log of the library says meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from math import isfinite
from typing import Any

from wayfare.errors import NotConfirmed
from wayfare.net import logs
from wayfare.net.addresses import host_and_port
from wayfare.net.options import CONFIRM_S
from wayfare.net.stream import Stream

ONCE_S = 0.2  # a signal that comes twice within this time was meant once


def run(work: Coroutine[Any, Any, int], when_told: Callable[[], int] = lambda: 0) -> int:
    """Run it to its end. Ctrl-C cancels it, as SIGTERM does; but that is a proper end, with this code."""
    return asyncio.run(_heed(work, when_told, [signal.SIGTERM]))


def serve(
    work: Coroutine[Any, Any, int],
    when_told: Callable[[], int],
    reload: Callable[[], None] | None = None,
) -> int:
    """Run it until Ctrl-C or SIGTERM, which both are its proper end; told twice, it ends at once.

    With `reload`, SIGHUP calls that, unless it comes because the terminal was closed.
    """
    return asyncio.run(_heed(work, when_told, [signal.SIGTERM, signal.SIGINT], reload))


async def _heed(
    work: Coroutine[Any, Any, int],
    when_told: Callable[[], int],
    signals: list[signal.Signals],
    reload: Callable[[], None] | None = None,
) -> int:
    loop = asyncio.get_running_loop()
    in_terminal = os.isatty(0)
    task, told, told_at = loop.create_task(work), asyncio.Event(), 0.0

    def stop(by: signal.Signals) -> None:
        nonlocal told_at
        if told.is_set():
            if loop.time() - told_at < ONCE_S:
                return
            tell("stopped at once")
            os._exit(128 + by)
        told.set()
        told_at = loop.time()
        task.cancel()

    def on_hangup(then: Callable[[], None]) -> None:
        if in_terminal and not os.isatty(0):
            stop(signal.SIGHUP)
        else:
            then()

    with suppress(NotImplementedError):  # where there are no signals
        for one in signals:
            loop.add_signal_handler(one, stop, one)
        if reload is not None:
            loop.add_signal_handler(signal.SIGHUP, on_hangup, reload)
    try:
        return await task
    except asyncio.CancelledError:
        if told.is_set():
            return when_told()
        raise


@asynccontextmanager
async def printing() -> AsyncIterator[Callable[[str], None]]:
    """Print lines from callbacks, too: if that fails, it ends the task that is in here, and not them."""
    task, failed = asyncio.current_task(), list[OSError]()
    assert task is not None

    def say(line: str) -> None:
        try:
            print(line, flush=True)
        except OSError as error:
            failed.append(error)
            task.cancel()

    try:
        yield say
    except asyncio.CancelledError:
        if failed:
            raise failed[0] from None
        raise


async def lines() -> AsyncIterator[bytes]:
    """Of stdin, without a thread that nobody could stop."""
    rest = b""
    while True:
        await _readable(0)
        data = os.read(0, 65536)
        *whole, rest = (rest + data).split(b"\n")
        for line in whole if data else [rest]:
            yield line
        if not data:
            return


async def _readable(file: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(file, ready.set)
    except (PermissionError, NotImplementedError):
        return  # a file, which always is
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)


def add_log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level", choices=logs.LEVELS, default="warning", help="on stderr (default: warning)"
    )
    parser.add_argument(
        "--log-format", choices=logs.FORMATS, default="text", help="of a line (default: text)"
    )


def start_log(level: str, format: str = "text") -> None:
    logs.start(level, format, sys.stderr)


def tell(sentence: str) -> None:
    """Something to know, beside the output."""
    print(f"wayfare: {logs.printable(sentence)}", file=sys.stderr, flush=True)


async def until_ready(stream: Stream[Any], timeout: float = CONFIRM_S) -> None:
    """Wait until a subscription or an offer is in effect everywhere, but go on with a warning if it is not."""
    try:
        await stream.ready(timeout)
    except NotConfirmed as error:
        tell(str(error))


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, like 2.5")
    return value


def place(text: str) -> tuple[str, int]:
    """`PORT`, here, or `HOST:PORT`."""
    try:
        host, port = host_and_port(text if ":" in text else f":{text}", "a port, or host:port")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no place: {error}") from None
    return host or "127.0.0.1", port


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: give a whole number, at least 1")
    return int(text)
