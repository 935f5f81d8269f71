"""`wayfare sim city`: publishers that drive."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import process_time
from typing import Any

import msgspec

from wayfare.cli.experiments import given, log_to, option, or_dash, parser, tell, time
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.net.maps import read_movement
from wayfare.sim import city, experiment

EXAMPLES = """examples:
  wayfare sim city                                      50 publishers, 85 brokers, with handoff
  wayfare sim city --algorithm standard --publishers 250
  wayfare sim city --algorithm delayed --speed 100 --minutes 2 --json
  wayfare sim city --algorithm proxy --overshoot 3      near the first broker, and a bit beyond
  wayfare sim city --brokers 1365 --publishers 10       a larger city
  wayfare sim city --turn 0.1 --log run.parquet         ... where publishers went; then, of that log,
  wayfare mine run.parquet --out model.json             ... where they go, for this prediction:
  wayfare sim city --turn 0.1 --seed 1 --algorithm prefetching --model model.json
"""


def add_parser(commands: Any) -> None:
    usual = experiment.Parameters()
    one = parser(
        commands,
        "city",
        "The city of the publisher mobility paper: publishers drive along the leaves of"
        " a broker tree, and publish some probes whenever they have arrived. What brokers have to"
        " say to each other for it, which probes arrive, and when the trees are complete again.",
        EXAMPLES,
    )
    routings = [name for name, strategy in STRATEGIES.items() if not strategy.floods]
    option(one, "--algorithm", "what a move does", usual.algorithm, choices=experiment.ALGORITHMS)
    option(one, "--routing", "the routing strategy", usual.routing, choices=routings)
    option(one, "--seed", "for all that is random in it", usual.seed, type=int)
    option(
        one, "--brokers", "a balanced tree of so many", 85, type=int, choices=[*experiment.TREES]
    )
    option(one, "--height", "... or of so many levels", usual.height, type=int)
    option(one, "--degree", "... with so many branches at each broker", usual.degree, type=int)
    option(one, "--publishers", "which drive", usual.publishers, type=int)
    option(one, "--subscribers", "at random leaves, where they stay", usual.subscribers, type=int)
    speed = {"type": float, "metavar": "KMH", "dest": "speed_kmh"}
    option(one, "--speed", "km/h", f"{usual.speed_kmh:g}", **speed)
    cell = {"type": float, "metavar": "KM", "dest": "cell_km"}
    option(one, "--cell", "km from one broker to the next", f"{usual.cell_km:g}", **cell)
    option(one, "--turn", "share of borders where it goes back", usual.turn, type=float)
    option(one, "--minutes", "that are measured", f"{usual.minutes:g}", type=float)
    option(one, "--locality", "share with the same publication", usual.locality, type=float)
    option(one, "--proxies", "around the first broker, which is one", usual.proxies, type=int)
    option(one, "--overshoot", "brokers that one goes beyond its proxies", "any", type=int)
    option(one, "--probes", "publications after each arrival", usual.probes, type=int)
    time(one, "--probe-first", "from the arrival to the first", usual.probe_first_ns)
    time(one, "--probe-every", "from one to the next", usual.probe_every_ns)
    time(one, "--away", "disconnected between two brokers", usual.away_ns)
    time(one, "--delay", "of delayed", usual.delay_ns)
    starts = "; ".join(f"{name}: {about}" for name, about in experiment.STARTS.items())
    option(one, "--start", starts, usual.start, choices=[*experiment.STARTS])
    time(one, "--jitter", "that a stay may be shorter or longer", usual.jitter_ns)
    time(one, "--warm-up", "before anything is measured", usual.warm_up_ns)
    size = {"type": int, "metavar": "BYTES"}
    option(one, "--message-bytes", "of a message, if it is not longer", usual.message_bytes, **size)
    option(
        one, "--broker-bps", "of links between brokers", usual.broker_bps, type=int, metavar="BPS"
    )
    time(one, "--broker-latency", "of links between brokers", usual.broker_latency_ns)
    option(one, "--client-bps", "of clients' links", usual.client_bps, type=int, metavar="BPS")
    time(one, "--client-latency", "of clients' links", usual.client_latency_ns)
    one.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="of wayfare mine: what prefetching knows of where publishers go (default: everything)",
    )
    one.set_defaults(run=run)


# Running


def parameters(a: argparse.Namespace) -> experiment.Parameters:
    chosen = given(a, "brokers", "model")
    if a.brokers is not None and (a.height is not None or a.degree is not None):
        raise UsageError("--height and --degree make a tree of their own: leave --brokers")
    if a.brokers is not None:
        chosen["height"], chosen["degree"] = experiment.TREES[a.brokers]
    return experiment.Parameters(**chosen)


def run(a: argparse.Namespace) -> int:
    started = process_time()
    chosen = parameters(a)
    if a.model is not None and "prefetching" not in chosen.algorithm:
        raise UsageError(f"--model is for prefetching, which {chosen.algorithm} does not do")
    movement = None if a.model is None else read_movement(a.model)
    with log_to(a.log, f"city-{chosen.algorithm}-{chosen.seed}") as log:
        figures = city.run(chosen, log, movement)
    spent = round(process_time() - started, 2)
    facts = msgspec.to_builtins(figures) | {"cpu_s": spent}
    return tell(a.json, facts, *_rows(chosen, figures, spent))


def _rows(
    p: experiment.Parameters, f: experiment.Figures, spent: float
) -> tuple[str, list[tuple[str, str]]]:
    title = (
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
    return title, rows


def _times(p50: float | None, p99: float | None, worst: float | None) -> str:
    parts = (f"{name} {or_dash(ms, '.0f')} ms" for name, ms in (("p50", p50), ("p99", p99)))
    return ", ".join([*parts, f"at most {or_dash(worst, '.0f')} ms"])
