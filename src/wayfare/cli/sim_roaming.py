"""`wayfare sim roaming`: subscribers that move."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from wayfare.cli.experiments import given, log_to, option, parser, tell, time
from wayfare.core.broker import RELOCATIONS, check_strategies
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.sim import roaming

EXAMPLES = """examples:
  wayfare sim roaming                                   20 movers on 85 brokers, with handoff
  wayfare sim roaming --relocation naive --away 0       no support, and in a hurry
  wayfare sim roaming --brokers 7 --one-at-a-time --json
  wayfare sim roaming --table                           every relocation on every tree
  wayfare sim roaming --log run.parquet                 and its event log, for wayfare analyse
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


def add_parser(commands: Any) -> None:
    usual = roaming.Parameters()
    one = parser(
        commands,
        "roaming",
        "Subscribers move from leaf to leaf of a broker tree while publishers go on:"
        " what is lost, what comes twice, how long it takes, and what brokers have to say to each"
        " other for it.",
        EXAMPLES,
    )
    option(one, "--relocation", "how sessions follow", usual.relocation, choices=[*RELOCATIONS])
    option(one, "--routing", "the routing strategy", usual.routing, choices=[*STRATEGIES])
    option(one, "--seed", "for all that is random in it", usual.seed, type=int)
    option(one, "--brokers", "a balanced tree of so many", 85, type=int, choices=[*roaming.TREES])
    option(one, "--height", "... or of so many levels", usual.height, type=int)
    option(one, "--degree", "... with so many branches at each broker", usual.degree, type=int)
    option(one, "--publishers", "at random leaves, where they stay", usual.publishers, type=int)
    option(one, "--movers", "subscribers that move", usual.movers, type=int)
    option(one, "--moves", "of each mover", usual.moves, type=int)
    time(one, "--dwell", "that a mover stays, on average", usual.dwell_ns)
    time(one, "--away", "between two stays, on average", usual.away_ns)
    rate = f"{usual.rate:g}"
    option(one, "--rate", "publications of each publisher, per second", rate, type=float)
    time(one, "--link-latency", "between brokers", usual.link_latency_ns)
    option(one, "--silent", "share of departures that nobody announces", usual.silent, type=float)
    one.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="each move settles before the next: control messages on and off the path are exact",
    )
    one.add_argument(
        "--table",
        action="store_true",
        help="compare: every relocation on every tree (or those given), one at a time, as Markdown,"
        " or with --json as one object a line;"
        " by default fewer and faster moves: 5 of each mover, 500 ms here and 250 ms away",
    )
    one.set_defaults(run=run)


# Running


def parameters(a: argparse.Namespace) -> roaming.Parameters:
    """Of one experiment."""
    out = roaming.Parameters(**given(a, "brokers", "table"))
    return out if a.brokers is None else out.for_brokers(a.brokers)


def run(a: argparse.Namespace) -> int:
    if (a.height is not None or a.degree is not None) and (a.brokers is not None or a.table):
        raise UsageError("--height and --degree make a tree of their own: leave --brokers, --table")
    if a.table and a.log is not None:
        raise UsageError("--log is for one experiment, and --table makes many: leave one of them")
    if a.table:
        return _compare(_compared(a), a.json)
    chosen = parameters(a)
    with log_to(a.log, f"roaming-{chosen.relocation}-{chosen.seed}") as log:
        figures = roaming.run(chosen, log)
    return tell(a.json, figures, *_rows(chosen, figures))


def _compared(a: argparse.Namespace) -> Iterator[roaming.Parameters]:
    """The experiments of a comparison."""
    shared = given(a, "brokers", "table", "relocation", "one_at_a_time")
    if a.relocation:
        check_strategies(shared.get("routing", "covering"), a.relocation)
    return roaming.comparison(
        [a.brokers] if a.brokers else [*roaming.TREES],
        [a.relocation] if a.relocation else [*RELOCATIONS],
        **shared,
    )


def _rows(p: roaming.Parameters, f: roaming.Figures) -> tuple[str, list[tuple[str, str]]]:
    title = (
        f"{f.relocation}, {f.routing} routing, seed {f.seed}: {p.movers} movers,"
        f" {p.publishers} publishers, {f.brokers} brokers"
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
    return title, [(what, str(figure)) for what, figure in rows]


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
