"""Jobs over the live network: they read what clients tell of themselves (`--events`), until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import get_terminal_size
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.live import Live
from rich.text import Text

from wayfare.cli import identity, jobs, running
from wayfare.cli.bench import draw
from wayfare.errors import UsageError, WayfareError
from wayfare.eventlog import IS_EVENT
from wayfare.net.client import connect
from wayfare.net.private import create_private_directory

EVERY_S = 10.0  # a batch takes some seconds of CPU time, however small it is
POLL_S = 0.2

Tell = Callable[[list[dict[str, Any]]], None]
Job = Callable[[Any, Path, Tell], Any]  # a streaming frame, to one that is written


def add_options(parser: argparse.ArgumentParser) -> None:
    one = parser.add_argument_group("over the live network")
    one.add_argument(
        "--follow",
        metavar="ADDRESS",
        help="in place of a log: what clients tell in the network of this broker (--events), until"
        " Ctrl-C",
    )
    one.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep there what is known: the same command goes on from it",
    )
    one.add_argument(
        "--since",
        type=running.seconds,
        metavar="SECONDS",
        help="begin with what the broker remembers of the last so many seconds",
    )
    one.add_argument(
        "--every",
        type=running.seconds,
        default=EVERY_S,
        metavar="SECONDS",
        help=f"how often it looks (default {EVERY_S:g})",
    )
    identity.add_options(one)


def follow(arguments: argparse.Namespace, job: Job, name: str | None = None) -> int:
    """Run it until Ctrl-C, and print rows as they change. With a name, all that happens is one run."""
    a = arguments
    connection = identity.options(a)
    jobs.need_spark()
    from wayfare.pipeline import events, spark
    from wayfare.pipeline.analyse import SETTINGS

    with _folder(a.keep, a.command) as folder:
        who = a.id or _name_in(folder)
        given = {
            "broker": a.follow,
            "client_id": who,
            "filter": IS_EVENT,
            "since": a.since,
            "cert": ",".join(connection["cert"]) if connection["cert"] else None,
            **{key: connection[key] for key in ("timeout", "ca", "crl", "account", "password")},
        }
        with Console(stderr=True).status("starting Spark ..."):
            session = spark.start(a.master, **SETTINGS, **spark.SHORT)
        source = session.readStream.format("wayfare")
        with spark.explained(f"following {a.follow}"), _shown(a.json) as tell, _told() as stop:
            rows = source.options(**{key: one for key, one in given.items() if one}).load()
            log = events.of_clients(events.of_notifications(rows), name)
            broken: list[OSError] = []

            def show(rows: list[dict[str, Any]]) -> None:
                try:
                    tell(rows)
                except OSError as error:  # nobody reads the output any more
                    broken.append(error)
                    stop.set()

            query = job(log, folder, show).trigger(processingTime=f"{a.every} seconds").start()
            _run(query, stop, f"following {a.follow}, until Ctrl-C")
            for error in broken:
                raise error
        if a.keep is None:
            with suppress(WayfareError):  # then its session ends by itself, later
                asyncio.run(_leave(a.follow, {**connection, "client_id": who}))
    return 0


def _run(query: Any, stop: threading.Event, begun: str) -> None:
    """Until it is told to stop, or fails."""
    while query.isActive and not stop.wait(POLL_S):
        if begun and query.status["message"].startswith(("Waiting", "Processing")):
            running.tell(begun)  # it has been at its broker: whatever is told now is not missed
            begun = ""
    failure = query.exception()
    query.stop()
    if failure is not None:
        raise failure


@contextmanager
def _folder(kept: Path | None, job: str) -> Iterator[Path]:
    """One for each job, which is there."""
    with ExitStack() as stack:
        if kept is None:
            room = TemporaryDirectory(prefix="wayfare-follow-", ignore_cleanup_errors=True)
            kept = Path(stack.enter_context(room))
        try:
            create_private_directory(kept / job)
        except OSError as error:
            raise UsageError(f"--keep {kept}: {error.strerror}") from None
        yield kept / job


def _name_in(folder: Path) -> str:
    """The name of the reader there: a stream goes on under the name that it began with."""
    file = folder / "client"
    if not file.exists():
        file.write_text(f"follow-{uuid4().hex[:12]}", "utf-8")
    return file.read_text("utf-8")


@contextmanager
def _told() -> Iterator[threading.Event]:
    """Set by Ctrl-C, and SIGTERM. Spark's own handler would interrupt what is said to Java."""
    stop = threading.Event()
    before = {
        one: signal.signal(one, lambda *_: stop.set()) for one in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _shown(as_json: bool) -> Iterator[Tell]:
    if as_json:
        yield _print_json
    elif sys.stdout.isatty():
        with Live(Text("nothing has happened yet"), auto_refresh=False) as live:
            yield lambda rows: live.update(Text(_table(rows)), refresh=True)
    else:
        yield lambda rows: print(_table(rows) + "\n", flush=True)


def _print_json(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row), flush=True)


def _table(rows: list[dict[str, Any]]) -> str:
    return draw(rows, get_terminal_size().columns)


async def _leave(address: str, options: dict[str, Any]) -> None:
    """End the session of a reader that will not come back."""
    async with connect(address.split(","), **options):
        pass
