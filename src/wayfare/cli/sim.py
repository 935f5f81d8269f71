"""`wayfare sim`: scenarios and random runs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from itertools import zip_longest
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wayfare import eventlog
from wayfare.core.broker import RELOCATIONS
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.sim import fuzz, scenario

EXAMPLES = """examples:
  wayfare sim                               list the scenarios
  wayfare sim away-and-back                 play one, print its trace
  wayfare sim my.txt --seed 7 --json        a scenario of your own, for a program to read
  wayfare sim lossy-link --log run.parquet  write the event log (.parquet or .jsonl)
  wayfare sim fuzz --seeds 1000             random runs (see wayfare sim fuzz --help)

statements of a scenario:
"""

FUZZ_EXAMPLES = """examples:
  wayfare sim fuzz --seeds 1000
  wayfare sim fuzz --seeds 1 --first-seed 4711 --routing merging --faults
"""

SHOWN_MAX = 20  # failed runs that are printed


def as_subcommand(argv: list[str]) -> list[str]:
    """`sim fuzz ...` has options of its own, so it is a command of its own to the parser."""
    return ["sim-fuzz", *argv[2:]] if argv[:2] == ["sim", "fuzz"] else argv


def add_parser(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    statements = "\n".join(f"  {line}" for line in scenario.help_text().splitlines())
    one = commands.add_parser(
        "sim",
        help="play a scenario, or random runs, in the simulator",
        description="Play a scenario in virtual time, print its trace, and let the oracle judge it."
        " If its file has a trace, this one has to be the same.",
        epilog=EXAMPLES + statements,
        formatter_class=raw,
        allow_abbrev=False,  # or `fuzz --seed 5` would quietly mean `--seeds 5`
    )
    one.add_argument("scenario", nargs="?", help="a name from the list, a file, or `fuzz`")
    one.add_argument("--seed", type=int, default=0, help="for what is random in it (default 0)")
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.add_argument("--log", type=Path, metavar="FILE", help="write the event log there")
    one.set_defaults(run=run_scenario)

    many = commands.add_parser(
        "sim-fuzz",
        prog="wayfare sim fuzz",
        description="Random runs on all cores: random trees, clients and actions, judged by the"
        " oracle. A failure prints the command that runs it again.",
        epilog=FUZZ_EXAMPLES,
        formatter_class=raw,
        allow_abbrev=False,  # or `fuzz --seed 5` would quietly mean `--seeds 5`
    )
    many.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    many.add_argument("--first-seed", type=int, default=0, help="the first one (default 0)")
    many.add_argument(
        "--routing", choices=[*STRATEGIES, "all"], default="all", help="default: all, each seed"
    )
    many.add_argument(
        "--relocation", choices=[*RELOCATIONS], default="handoff", help="default: handoff"
    )
    many.add_argument("--faults", action="store_true", help="cuts, crashes, losses, slow brokers")
    many.add_argument("--workers", type=int, default=None, help="processes (default: all cores)")
    many.add_argument("--json", action="store_true", help="print one JSON object")
    many.set_defaults(run=run_fuzz)


# One scenario


def run_scenario(arguments: argparse.Namespace) -> int:
    if arguments.scenario is None:
        return _list_scenarios(arguments.json)
    story = scenario.find(arguments.scenario)
    log: Path | None = arguments.log
    if log is not None and log.suffix not in eventlog.WRITERS:
        raise UsageError(f"--log {log}: the name has to end in {' or '.join(eventlog.WRITERS)}")
    if log is not None and not log.parent.is_dir():
        raise UsageError(f"--log {log}: there is no folder {log.parent}")
    outcome = scenario.play(story, arguments.seed, log_messages=log is not None)
    if log is not None:
        try:
            with eventlog.writer(log, run=f"{story.name}-{arguments.seed}") as file:
                file.write(outcome.world.events)
        except OSError as error:
            raise UsageError(f"--log {log}: cannot be written: {error.strerror}") from None
    verdict = outcome.verdict
    if arguments.json:
        facts = {"scenario": story.name, "seed": arguments.seed, "routing": outcome.world.routing}
        facts |= {"messages": outcome.world.messages(), "time_ns": outcome.world.now}
        print(json.dumps(facts | msgspec.to_builtins(verdict) | {"trace": outcome.lines}))
    else:
        print(story.about, "\n")
        print("\n".join(outcome.lines))
    # The trace in a file is that of seed 0; with another seed, what is random may go otherwise.
    difference = _difference(story, outcome.lines) if arguments.seed == 0 else None
    if difference is not None:
        line, there, here = difference
        print(
            f"wayfare: this is not the trace in {arguments.scenario}, from its line {line} on:"
            f"\n  in the file: {there}\n  in this run: {here}",
            file=sys.stderr,
        )
    return 1 if verdict.violations or difference is not None else 0


def _difference(story: scenario.Scenario, lines: list[str]) -> tuple[int, str, str] | None:
    """Where the golden trace, if there is one, first differs: the file's line, its text, and ours."""
    golden = story.trace.rstrip().splitlines()
    if not golden:
        return None
    first = story.script.count("\n") + 3  # after the last line of the script, and the separator
    pairs = zip_longest(golden, lines, fillvalue="(the end)")
    for number, (there, here) in enumerate(pairs, first):
        if there != here:
            return number, there, here
    return None


def _list_scenarios(as_json: bool) -> int:
    stories = scenario.shipped()
    if as_json:
        print(json.dumps({name: story.about for name, story in stories.items()}))
        return 0
    width = max(map(len, stories))
    for name, story in stories.items():
        first, _, _ = story.about.partition(". ")
        print(f"{name:<{width}}  {first.removesuffix('.')}")
    print("\nwayfare sim NAME plays one; wayfare sim fuzz plays random runs.")
    return 0


# Random runs


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


def run_fuzz(arguments: argparse.Namespace) -> int:
    if arguments.seeds < 1:
        raise UsageError("--seeds is at least 1")
    if arguments.workers is not None and arguments.workers < 1:
        raise UsageError("--workers is at least 1")
    routings = [arguments.routing]
    if arguments.routing == "all":  # where it is defined
        flooding = arguments.relocation != "junction"
        routings = [name for name, one in STRATEGIES.items() if flooding or not one.floods]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    jobs = [
        fuzz.Job(seed, routing, arguments.relocation, arguments.faults)
        for seed in seeds
        for routing in routings
    ]
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
