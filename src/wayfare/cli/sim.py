"""`wayfare sim`: scenarios, random runs, and experiments with clients that move."""

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
from time import process_time
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wayfare.cli import sim_location, sim_service
from wayfare.cli.experiments import log_to, milliseconds, or_dash, print_pairs
from wayfare.core.broker import ALL_RELOCATIONS, RELOCATIONS, check_strategies
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.net.maps import read_movement
from wayfare.sim import city, experiment, fuzz, roaming, scenario
from wayfare.sim.links import MS_NS

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
  wayfare sim service --system elvin        the mobility service (see wayfare sim service --help)

statements of a scenario:
"""

FUZZ_EXAMPLES = """examples:
  wayfare sim fuzz --seeds 1000
  wayfare sim fuzz --seeds 1 --first-seed 4711 --routing merging --faults
"""

ROAMING_EXAMPLES = """examples:
  wayfare sim roaming                                   20 movers on 85 brokers, with handoff
  wayfare sim roaming --relocation naive --away 0       no support, and in a hurry
  wayfare sim roaming --brokers 7 --one-at-a-time --json
  wayfare sim roaming --table                           every relocation on every tree
  wayfare sim roaming --log run.parquet                 and its event log, for wayfare analyse
"""

CITY_EXAMPLES = """examples:
  wayfare sim city                                      50 publishers, 85 brokers, with handoff
  wayfare sim city --algorithm standard --publishers 250
  wayfare sim city --algorithm delayed --speed 100 --minutes 2 --json
  wayfare sim city --algorithm proxy --overshoot 3      near the first broker, and a bit beyond
  wayfare sim city --brokers 1365 --publishers 10       a larger city
  wayfare sim city --turn 0.1 --log run.parquet         ... where publishers went; then, of that log,
  wayfare mine run.parquet --out model.json             ... where they go, for this prediction:
  wayfare sim city --turn 0.1 --seed 1 --algorithm prefetching --model model.json
"""

# Of the comparison, with their widths: control messages, time to the first live one, deliveries.
COLUMNS = (
    ("brokers", 7),
    ("relocation", 10),
    ("a move", 6),
    ("a hop", 5),
    ("off path", 8),
    ("live ms", 7),
    ("lost", 5),
    ("twice", 5),
)

SHOWN_MAX = 20  # failed runs that are printed


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
    one.add_argument(
        "scenario",
        nargs="?",
        help="a name from the list, a file, `fuzz`, `roaming`, `city`, `location`, `blackout`,"
        " `service`",
    )
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
        "--relocation", choices=[*ALL_RELOCATIONS], default="handoff", help="default: handoff"
    )
    many.add_argument(
        "--mobile",
        choices=fuzz.MOBILE,
        default="subscribers",
        help="who moves: subscribers (default), clients that publish, too (both), clients that follow their"
        " location (walkers), or clients of other systems, with the mobility service",
    )
    many.add_argument("--faults", action="store_true", help="cuts, crashes, losses, slow brokers")
    many.add_argument("--workers", type=int, default=None, help="processes (default: all cores)")
    many.add_argument("--json", action="store_true", help="print one JSON object")
    many.set_defaults(run=run_fuzz)

    add_roaming_parser(commands)
    add_city_parser(commands)
    sim_location.add_parsers(commands)
    sim_service.add_parser(commands)


def add_roaming_parser(commands: Any) -> None:
    usual = roaming.Parameters()
    one = commands.add_parser(
        "sim-roaming",
        prog="wayfare sim roaming",
        description="Subscribers move from leaf to leaf of a broker tree while publishers go on:"
        " what is lost, what comes twice, how long it takes, and what brokers have to say to each"
        " other for it.",
        epilog=ROAMING_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def option(name: str, about: str, default: object, **how: Any) -> None:
        one.add_argument(name, help=f"{about} (default {default})", **how)

    ms = {"type": milliseconds, "metavar": "MS"}
    option("--relocation", "how sessions follow", usual.relocation, choices=[*RELOCATIONS])
    option("--routing", "the routing strategy", usual.routing, choices=[*STRATEGIES])
    option("--seed", "for all that is random in it", usual.seed, type=int)
    option("--brokers", "a balanced tree of so many", 85, type=int, choices=[*roaming.TREES])
    option("--height", "... or of so many levels", usual.height, type=int)
    option("--degree", "... with so many branches at each broker", usual.degree, type=int)
    option("--publishers", "at random leaves, where they stay", usual.publishers, type=int)
    option("--movers", "subscribers that move", usual.movers, type=int)
    option("--moves", "of each mover", usual.moves, type=int)
    option("--dwell", "that a mover stays, on average", usual.dwell_ns // MS_NS, **ms)
    option("--away", "between two stays, on average", usual.away_ns // MS_NS, **ms)
    option("--rate", "publications of each publisher, per second", f"{usual.rate:g}", type=float)
    option("--link-latency", "between brokers", usual.link_latency_ns // MS_NS, **ms)
    option("--silent", "share of departures that nobody announces", usual.silent, type=float)
    one.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="each move settles before the next: control messages on and off the path are exact",
    )
    one.add_argument(
        "--table",
        action="store_true",
        help="compare: every relocation on every tree (or those given), one at a time, as Markdown;"
        " by default fewer and faster moves: 5 of each mover, 500 ms here and 250 ms away",
    )
    one.add_argument(
        "--json", action="store_true", help="print one JSON object; with --table, one per line"
    )
    one.add_argument("--log", type=Path, metavar="FILE", help="write the event log there")
    one.set_defaults(run=run_roaming)


def add_city_parser(commands: Any) -> None:
    usual = experiment.Parameters()
    one = commands.add_parser(
        "sim-city",
        prog="wayfare sim city",
        description="The city of the publisher mobility paper: publishers drive along the leaves of"
        " a broker tree, and publish some probes whenever they have arrived. What brokers have to"
        " say to each other for it, which probes arrive, and when the trees are complete again.",
        epilog=CITY_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def option(name: str, about: str, default: object, **how: Any) -> None:
        one.add_argument(name, help=f"{about} (default {default})", **how)

    def time(name: str, about: str, default_ns: int) -> None:
        ms = {"type": milliseconds, "metavar": "MS"}
        option(name, f"{about}, in ms", default_ns // MS_NS, **ms)

    routings = [name for name, strategy in STRATEGIES.items() if not strategy.floods]
    option("--algorithm", "what a move does", usual.algorithm, choices=experiment.ALGORITHMS)
    option("--routing", "the routing strategy", usual.routing, choices=routings)
    option("--seed", "for all that is random in it", usual.seed, type=int)
    option("--brokers", "a balanced tree of so many", 85, type=int, choices=[*experiment.TREES])
    option("--height", "... or of so many levels", usual.height, type=int)
    option("--degree", "... with so many branches at each broker", usual.degree, type=int)
    option("--publishers", "which drive", usual.publishers, type=int)
    option("--subscribers", "at random leaves, where they stay", usual.subscribers, type=int)
    option("--speed", "km/h", f"{usual.speed_kmh:g}", type=float, metavar="KMH")
    option("--cell", "km from one broker to the next", f"{usual.cell_km:g}", type=float)
    option("--turn", "share of borders where it goes back", usual.turn, type=float)
    option("--minutes", "that are measured", f"{usual.minutes:g}", type=float)
    option("--locality", "share with the same publication", usual.locality, type=float)
    option("--proxies", "around the first broker, which is one", usual.proxies, type=int)
    option("--overshoot", "brokers that one goes beyond its proxies", "any", type=int)
    option("--probes", "publications after each arrival", usual.probes, type=int)
    time("--probe-first", "from the arrival to the first", usual.probe_first_ns)
    time("--probe-every", "from one to the next", usual.probe_every_ns)
    time("--away", "disconnected between two brokers", usual.away_ns)
    time("--delay", "of delayed", usual.delay_ns)
    starts = "; ".join(f"{name}: {about}" for name, about in experiment.STARTS.items())
    option("--start", starts, usual.start, choices=[*experiment.STARTS])
    time("--jitter", "that a stay may be shorter or longer", usual.jitter_ns)
    time("--warm-up", "before anything is measured", usual.warm_up_ns)
    size = {"type": int, "metavar": "BYTES"}
    option("--message-bytes", "of a message, if it is not longer", usual.message_bytes, **size)
    option("--broker-bps", "of links between brokers", usual.broker_bps, type=int, metavar="BPS")
    time("--broker-latency", "of links between brokers", usual.broker_latency_ns)
    option("--client-bps", "of clients' links", usual.client_bps, type=int, metavar="BPS")
    time("--client-latency", "of clients' links", usual.client_latency_ns)
    one.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="of wayfare mine: what prefetching knows of where publishers go (default: everything)",
    )
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.add_argument("--log", type=Path, metavar="FILE", help="write the event log there")
    one.set_defaults(run=run_city)


# One scenario


def run_scenario(arguments: argparse.Namespace) -> int:
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
        if arguments.mobile == "service":
            routings = ["flooding", "simple"]  # publications are broadcast, subscriptions propagate
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    jobs = [
        fuzz.Job(seed, routing, arguments.relocation, arguments.faults, arguments.mobile)
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


# Clients that roam


def run_roaming(arguments: argparse.Namespace) -> int:
    a = arguments
    if (a.height is not None or a.degree is not None) and (a.brokers is not None or a.table):
        raise UsageError("--height and --degree make a tree of their own: leave --brokers, --table")
    if a.table and a.log is not None:
        raise UsageError("--log is for one experiment, and --table makes many: leave one of them")
    if a.table:
        given = _roaming_given(a)
        brokers = [a.brokers] if a.brokers else [*roaming.TREES]
        relocations = [a.relocation] if a.relocation else [*RELOCATIONS]
        if a.relocation:
            check_strategies(given.get("routing", "covering"), a.relocation)
        return _compare(roaming.comparison(brokers, relocations, **given), a.json)
    parameters = roaming_parameters(a)
    with log_to(a.log, f"roaming-{parameters.relocation}-{parameters.seed}") as log:
        figures = roaming.run(parameters, log)
    if a.json:
        print(json.dumps(msgspec.to_builtins(figures)))
    else:
        _show_figures(parameters, figures)
    return 0


def _roaming_given(a: argparse.Namespace) -> dict[str, Any]:
    """What the experiments of a comparison share."""
    given = {
        "routing": a.routing,
        "seed": a.seed,
        "publishers": a.publishers,
        "movers": a.movers,
        "moves": a.moves,
        "dwell_ns": a.dwell,
        "away_ns": a.away,
        "rate": a.rate,
        "link_latency_ns": a.link_latency,
        "silent": a.silent,
    }
    return {name: value for name, value in given.items() if value is not None}


def roaming_parameters(a: argparse.Namespace) -> roaming.Parameters:
    """One experiment."""
    given = _roaming_given(a)
    for name in ("relocation", "height", "degree"):
        if getattr(a, name) is not None:
            given[name] = getattr(a, name)
    parameters = roaming.Parameters(**given, one_at_a_time=a.one_at_a_time)
    return parameters if a.brokers is None else parameters.for_brokers(a.brokers)


def _show_figures(parameters: roaming.Parameters, figures: roaming.Figures) -> None:
    f = figures
    print(
        f"{f.relocation}, {f.routing} routing, seed {f.seed}: {parameters.movers} movers,"
        f" {parameters.publishers} publishers, {f.brokers} brokers"
    )
    off_path = "not known, as moves overlap: try --one-at-a-time"
    if f.control_off_path is not None:
        off_path = str(f.control_off_path)
    rows = [
        ("published", f.published),
        ("deliveries", f"{f.delivered} of {f.expected} expected"),
        ("lost", f"{f.lost}; movers were told of a gap {f.gaps} times"),
        ("twice", f.duplicates),
        ("out of order", f.order_violations),
        ("moves", f"{f.moves}, over {f.hops} hops"),
        ("control messages", f"{f.control_per_move:.2f} a move, {f.control_per_hop:.2f} a hop"),
        ("... off the path", off_path),
        ("notifications", f"{f.notifications} between brokers, {f.tunnelled} of them tunnelled"),
        ("first live one, p50", _latency(f.live_p50_ms, f.live_p50_links)),
        ("... p99", _latency(f.live_p99_ms, f.live_p99_links)),
        ("... never came", f"in {f.moves_without_live} stays, which were too short"),
        ("first one at all, p50", _latency(f.first_p50_ms, f.first_p50_links)),
        ("... p99", _latency(f.first_p99_ms, f.first_p99_links)),
        ("subscription tables", f"{f.subs_mean:.1f} entries a broker, {f.subs_max} at most"),
        ("advertisement tables", f"{f.ads_mean:.1f} entries a broker, {f.ads_max} at most"),
        ("buffers", f"{f.buffer_peak} notifications at most, in all brokers together"),
    ]
    print_pairs([(what, str(figure)) for what, figure in rows])


def _latency(ms: float | None, links: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms:.1f} ms" + ("" if links is None else f", {links:.1f} times the latency of a link")


def _compare(experiments: Iterator[roaming.Parameters], as_json: bool) -> int:
    """One line for each, as soon as it is there."""
    undefined: dict[str, None] = {}
    if not as_json:
        _print_row(*(name for name, _ in COLUMNS))
        _print_row(*("-" * (width - 1) + ":" for _, width in COLUMNS))
    for one in experiments:
        try:
            experiment = roaming.Roaming(one)
        except UsageError as error:  # these two strategies do not go together
            undefined[str(error)] = None
            continue
        f = experiment.run()
        if as_json:
            print(json.dumps(msgspec.to_builtins(f)), flush=True)
            continue
        off_path = (f.control_off_path or 0) / f.moves
        live = "-" if f.live_p50_ms is None else f"{f.live_p50_ms:.0f}"
        costs = (f"{cost:.2f}" for cost in (f.control_per_move, f.control_per_hop, off_path))
        _print_row(f.brokers, f.relocation, *costs, live, f.lost, f.duplicates)
    for sentence in undefined:
        print(f"wayfare: left out: {sentence}", file=sys.stderr)
    return 0


def _print_row(*cells: object) -> None:
    padded = (f"{cell!s:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    print(f"| {' | '.join(padded)} |", flush=True)


# Publishers that drive


def run_city(arguments: argparse.Namespace) -> int:
    a = arguments
    started = process_time()
    parameters = city_parameters(a)
    if a.model is not None and "prefetching" not in parameters.algorithm:
        raise UsageError(f"--model is for prefetching, which {parameters.algorithm} does not do")
    movement = None if a.model is None else read_movement(a.model)
    with log_to(a.log, f"city-{parameters.algorithm}-{parameters.seed}") as log:
        figures = city.run(parameters, log, movement)
    spent = round(process_time() - started, 2)
    if a.json:
        print(json.dumps(msgspec.to_builtins(figures) | {"cpu_s": spent}))
    else:
        _show_city(parameters, figures, spent)
    return 0


def city_parameters(a: argparse.Namespace) -> experiment.Parameters:
    names = {"speed": "speed_kmh", "cell": "cell_km"}
    times = {"jitter", "probe_first", "probe_every", "away", "delay", "warm_up"}
    times |= {"broker_latency", "client_latency"}
    given = {
        names.get(name, f"{name}_ns" if name in times else name): value
        for name, value in vars(a).items()
        if value is not None and name not in ("run", "command", "json", "brokers", "log", "model")
    }
    if a.brokers is not None and (a.height is not None or a.degree is not None):
        raise UsageError("--height and --degree make a tree of their own: leave --brokers")
    if a.brokers is not None:
        given["height"], given["degree"] = experiment.TREES[a.brokers]
    return experiment.Parameters(**given)


def _show_city(
    parameters: experiment.Parameters, figures: experiment.Figures, spent: float
) -> None:
    p, f = parameters, figures
    print(
        f"{f.algorithm}, {f.routing} routing, seed {f.seed}: {f.publishers} publishers,"
        f" {f.subscribers} subscribers, {f.brokers} brokers"
    )
    rows: list[tuple[str, str]] = [
        ("moves", f"{f.moves}, in {p.minutes:g} minutes at {f.speed_kmh:g} km/h"),
        ("control messages", f"{f.control_total}, {or_dash(f.control_per_move, '.1f')} a move"),
        *((f"... {kind}", f"{count}") for kind, count in f.control.items()),
        ("... travelled in", f"{f.link_messages} messages on links"),
    ]
    if f.control_by_hops:
        paths = ", ".join(f"{hops}: {cost:.1f}" for hops, cost in f.control_by_hops.items())
        rows.append(("... a move, by hops", paths))
    ratios = [or_dash(one, ".3f") for one in f.probe_ratio]
    rows += [
        ("deliveries", f"{f.delivered} of {f.expected}; {f.lost} lost, {f.duplicates} twice"),
        ("probe ratio by index", " ".join(ratios)),
        ("tree complete", _times(f.rebuild_p50_ms, f.rebuild_p99_ms, f.rebuild_max_ms)),
        ("... not in time", f"{f.rebuild_unfinished} of {f.rebuilds}"),
        ("delivery time", _times(f.delivery_p50_ms, f.delivery_p99_ms, f.delivery_max_ms)),
        *(
            (
                f"tables at depth {one.depth}",
                f"{one.ads_mean:.1f} ads ({one.ads_max} at most), {one.subs_mean:.1f} subs"
                f" ({one.subs_max} at most)",
            )
            for one in f.state
        ),
        ("busiest link", f"{f.link_load_max:.1%}; a hop took {f.link_worst_ms:.0f} ms at most"),
        ("CPU", f"{spent:.1f} s"),
    ]
    print_pairs(rows)


def _times(p50: float | None, p99: float | None, worst: float | None) -> str:
    parts = (f"{name} {or_dash(ms, '.0f')} ms" for name, ms in (("p50", p50), ("p99", p99)))
    return ", ".join([*parts, f"at most {or_dash(worst, '.0f')} ms"])
