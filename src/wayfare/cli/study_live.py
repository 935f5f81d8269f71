"""`wayfare study service --live`: the mobility service on real systems of this machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.console import Console

from wayfare.cli import jobs
from wayfare.errors import UsageError
from wayfare.studies import service_live


def add_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--live",
        action="store_true",
        help="of service: on real systems, which are started on this machine, in place of simulations",
    )
    one.add_argument(
        "--systems",
        metavar="A,B,...",
        help=f"of --live: only these (default: those that are installed, of"
        f" {', '.join(service_live.SYSTEMS)})",
    )


def run(arguments: argparse.Namespace, bar: Any) -> Any:
    """What came of it."""
    a = arguments
    if a.name != "service":
        raise UsageError("only the study service can be run live: wayfare study service --live")
    if a.trace is not None or a.columns:
        raise UsageError("the study service follows nobody: leave --trace and --columns")
    if a.out is None:
        raise UsageError("where to? wayfare study service --live --out DIR")
    systems = _systems(a.systems)
    jobs.need_spark("live")
    from wayfare.pipeline import analyse, live, results, spark

    if a.master is not None:
        spark.checked_master(a.master)  # now, and not behind all runs
    there, sentences = live.split(systems)
    for sentence in sentences:
        print(f"wayfare: left out, for {sentence}", file=sys.stderr)
    if not there:
        raise UsageError("no system is left to try: install one of them")
    chosen = service_live.live(there, quick=a.quick)
    named = f" --systems {','.join(there)}" if there != list(service_live.SYSTEMS) else ""
    command = f"wayfare study service --live{' --quick' if a.quick else ''}{named}"
    about = results.About(chosen.name, a.quick, command)
    console = Console(stderr=True)
    with bar(console) as progress:
        failed = live.run(chosen, a.out, about, lambda done, of: progress("moving", done, of))
        progress("starting Spark", 0, 0)
        session = spark.start(a.master, **analyse.SETTINGS, **spark.SHORT)
        return live.tell(session, chosen, a.out, about, failed, lambda doing: progress(doing, 0, 0))


def _systems(text: str | None) -> list[str]:
    if text is None:
        return list(service_live.SYSTEMS)
    named = [one.strip() for one in text.split(",") if one.strip()]
    for one in named or [text]:
        if one not in service_live.SYSTEMS:
            raise UsageError(
                f"there is no system {one!r}: choose from {', '.join(service_live.SYSTEMS)}"
            )
    return list(dict.fromkeys(named))
