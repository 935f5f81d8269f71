"""`wayfare sim`: one scenario; random runs and experiments have modules of their own."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from wayfare.cli import sim_city, sim_fuzz, sim_location, sim_placement, sim_roaming, sim_service
from wayfare.cli.experiments import log_to
from wayfare.sim import scenario

EXAMPLES = """examples:
  wayfare sim                               list the scenarios
  wayfare sim away-and-back                 play one, print its trace
  wayfare sim my.txt --seed 7 --json        a scenario of your own, for a program to read
  wayfare sim lossy-link --log run.parquet  write the event log (.parquet or .jsonl)
  wayfare sim fuzz --seeds 1000             random runs (see wayfare sim fuzz --help)
  wayfare sim roaming --relocation naive    what moving costs (see wayfare sim roaming --help)
  wayfare sim city --algorithm delayed      publishers that move (see wayfare sim city --help)
  wayfare sim location --nlb all            what is there on arrival (see wayfare sim location --help)
  wayfare sim blackout --steps 0            ... and what is missed (see wayfare sim blackout --help)
  wayfare sim placement --policy count      where to keep the past (see wayfare sim placement --help)
  wayfare sim service --system elvin        the mobility service (see wayfare sim service --help)

statements of a scenario:
"""


def add_parser(commands: Any) -> None:
    statements = "\n".join(f"  {line}" for line in scenario.help_text().splitlines())
    one = commands.add_parser(
        "sim",
        help="play a scenario, or random runs, in the simulator",
        description="Play a scenario in virtual time, print its trace, and let the oracle judge it."
        " If its file has a trace, this one has to be the same.",
        epilog=EXAMPLES + statements,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # or `fuzz --seed 5` would quietly mean `--seeds 5`
    )
    one.add_argument(
        "scenario",
        nargs="?",
        help="a name from the list, a file, `fuzz`, `roaming`, `city`, `location`, `blackout`,"
        " `placement`, `service`",
    )
    one.add_argument("--seed", type=int, default=0, help="for what is random in it (default 0)")
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.add_argument("--log", type=Path, metavar="FILE", help="write the event log there")
    one.set_defaults(run=run)

    sim_fuzz.add_parser(commands)
    sim_roaming.add_parser(commands)
    sim_city.add_parser(commands)
    sim_location.add_parsers(commands)
    sim_placement.add_parser(commands)
    sim_service.add_parser(commands)


# Running


def run(arguments: argparse.Namespace) -> int:
    if arguments.scenario is None:
        return _list_scenarios(arguments.json)
    story = scenario.find(arguments.scenario)
    with log_to(arguments.log, f"{story.name}-{arguments.seed}") as log:
        outcome = scenario.play(story, arguments.seed, log_messages=log is not None)
        if log is not None:
            log(outcome.world.events)
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
