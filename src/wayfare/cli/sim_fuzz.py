"""`wayfare sim fuzz`: random runs on all cores, judged by the oracle."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import Pool
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wayfare.core.broker import ALL_RELOCATIONS, RELOCATIONS
from wayfare.core.reduction import STRATEGIES
from wayfare.core.relocation import Naive
from wayfare.errors import UsageError
from wayfare.sim import fuzz

EXAMPLES = """examples:
  wayfare sim fuzz --seeds 1000
  wayfare sim fuzz --seeds 1 --first-seed 4711 --routing merging --faults
  wayfare sim fuzz --seeds 20000 --routing rotate --faults --mobile both
"""

SHOWN_MAX = 20  # failed runs that are printed


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "sim-fuzz",
        prog="wayfare sim fuzz",
        description="Random runs on all cores: random trees, clients and actions, judged by the"
        " oracle. A failure prints the command that runs it again.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # or `fuzz --seed 5` would quietly mean `--seeds 5`
    )
    one.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    one.add_argument("--first-seed", type=int, default=0, help="the first one (default 0)")
    one.add_argument(
        "--routing",
        choices=[*STRATEGIES, "all", "rotate"],
        default="all",
        help="all (default) runs each seed under every strategy, rotate under one, taking turns",
    )
    one.add_argument(
        "--relocation",
        choices=[*ALL_RELOCATIONS, "rotate"],
        default="handoff",
        help="default: handoff; rotate runs each seed under one of those that the oracle can judge, taking turns",
    )
    one.add_argument(
        "--mobile",
        choices=fuzz.MOBILE,
        default="subscribers",
        help="who moves: subscribers (default), clients that publish, too (both), clients that follow their"
        " location (walkers; learners: their brokers learn where they go), or clients of other systems, with the mobility service",
    )
    one.add_argument(
        "--rollbacks",
        action="store_true",
        help="brokers that go back to an old copy of their store, or lose it",
    )
    one.add_argument("--faults", action="store_true", help="cuts, crashes, losses, slow brokers")
    one.add_argument("--workers", type=int, default=None, help="processes (default: all cores)")
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.set_defaults(run=run)


# Running


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _runs(jobs: list[fuzz.Job], workers: int) -> Iterator[fuzz.Run]:
    if workers == 1:
        yield from map(fuzz.fuzz, jobs)
        return
    try:
        pool = Pool(workers, _leave_ctrl_c_to_the_parent)
    except OSError as error:
        raise UsageError(
            f"cannot start {workers} processes: {error.strerror}; try --workers 1"
        ) from None
    # Leaving the block ends the workers, however that comes about.
    with pool:
        yield from pool.imap(fuzz.fuzz, jobs, chunksize=max(1, min(20, len(jobs) // (4 * workers))))


def _routings(arguments: argparse.Namespace) -> list[str]:
    """The strategies to run under."""
    if arguments.routing in STRATEGIES:
        return [arguments.routing]
    if arguments.mobile == "service":
        return ["flooding", "simple"]  # publications are broadcast, subscriptions propagate
    flooding = arguments.relocation not in ("junction", "rotate")  # junction follows subscriptions
    return [name for name, one in STRATEGIES.items() if flooding or not one.floods]


def _relocation(arguments: argparse.Namespace, turn: int) -> str:
    """The strategy to run under; without support, only what follows its client is as promised."""
    if arguments.relocation != "rotate":
        return str(arguments.relocation)
    follows = arguments.mobile in ("walkers", "learners")
    names = [
        name
        for name, one in ALL_RELOCATIONS.items()
        if follows or (name in RELOCATIONS and not issubclass(one, Naive))
    ]
    return names[turn % len(names)]


def _jobs(arguments: argparse.Namespace) -> list[fuzz.Job]:
    routings = _routings(arguments)
    return [
        fuzz.Job(
            seed,
            routing,
            _relocation(arguments, seed // len(routings)),
            arguments.faults,
            arguments.mobile,
            arguments.rollbacks,
        )
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for turn, routing in enumerate(routings)
        if arguments.routing != "rotate" or turn == seed % len(routings)
    ]


def run(arguments: argparse.Namespace) -> int:
    if arguments.seeds < 1:
        raise UsageError("--seeds is at least 1")
    if arguments.workers is not None and arguments.workers < 1:
        raise UsageError("--workers is at least 1")
    if arguments.rollbacks and arguments.mobile not in fuzz.ROLLED_BACK:
        raise UsageError(
            f"--rollbacks does not go with --mobile {arguments.mobile}: choose"
            f" {' or '.join(fuzz.ROLLED_BACK)}, or leave --rollbacks out"
        )
    jobs = _jobs(arguments)
    workers = min(arguments.workers or os.cpu_count() or 1, len(jobs))
    totals = {"published": 0, "delivered": 0, "required": 0, "lost": 0, "messages": 0}
    failed: list[fuzz.Run] = []
    with _progress() as progress:
        task = progress.add_task("random runs", total=len(jobs))
        for run in _runs(jobs, workers):
            for name in ("published", "delivered", "required", "lost"):
                totals[name] += getattr(run.verdict, name)
            totals["messages"] += run.messages
            if run.verdict.violations:
                failed.append(run)
            progress.advance(task)
    facts = {"seeds": arguments.seeds, "first_seed": arguments.first_seed, "runs": len(jobs)}
    if arguments.json:
        violations = [
            {"command": run.job.command()} | msgspec.to_builtins(run.verdict) for run in failed
        ]
        print(json.dumps(facts | {"failed": len(failed)} | totals | {"failures": violations}))
    else:
        _report(facts | totals, failed)
    return 1 if failed else 0


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    )


def _report(facts: dict[str, int], failed: list[fuzz.Run]) -> None:
    for run in failed[:SHOWN_MAX]:
        print(f"FAILED  {run.job.command()}")
        for violation in run.verdict.violations[:5]:
            print(f"    {violation}")
    if len(failed) > SHOWN_MAX:
        print(f"(+{len(failed) - SHOWN_MAX} more)")
    print(
        f"{facts['runs']} runs of {facts['seeds']} seeds: {facts['published']} published,"
        f" {facts['delivered']} delivered ({facts['required']} required), {facts['lost']} lost"
        f" with notice, {facts['messages']} messages; {len(failed)} runs failed",
        file=sys.stderr if failed else sys.stdout,
    )
