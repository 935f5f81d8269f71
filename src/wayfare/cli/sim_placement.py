"""`wayfare sim placement`: which part of the past to keep, and where."""

from __future__ import annotations

import argparse
from typing import Any

from wayfare.cli.experiments import given, log_to, option, or_dash, parser, tell, time
from wayfare.core.reduction import STRATEGIES
from wayfare.sim import placement
from wayfare.sim.application_profiles import APPLICATIONS, POLICIES

EXAMPLES = """examples:
  wayfare sim placement                                 parking notices, kept by meaning where clients may come
  wayfare sim placement --policy time --placement publisher
  wayfare sim placement --application chat --placement collector --json
  wayfare sim placement --placement publisher --past-count 100
"""


def add_parser(commands: Any) -> None:
    usual = placement.Parameters()
    one = parser(
        commands,
        "placement",
        "Clients go from place to place, and want something of what was published about each: how much of"
        " that they find when they arrive, by the policy that says what is kept and by the brokers that"
        " keep it, and what that costs.",
        EXAMPLES,
    )
    listed = "; ".join(f"{name}: {it.about}" for name, it in APPLICATIONS.items())
    option(
        one, "--application", f"what counts: {listed}", usual.application, choices=[*APPLICATIONS]
    )
    listed = "; ".join(f"{name}: {about}" for name, about in POLICIES.items())
    option(one, "--policy", f"what is kept: {listed}", usual.policy, choices=[*POLICIES])
    listed = "; ".join(f"{name}: {about}" for name, about in placement.PLACEMENTS.items())
    option(one, "--placement", f"where: {listed}", usual.placement, choices=[*placement.PLACEMENTS])
    option(one, "--routing", "the routing strategy", usual.routing, choices=[*STRATEGIES])
    option(one, "--seed", "for all that is random in it", usual.seed, type=int)
    option(one, "--side", "of a square of places", usual.side, type=int)
    option(one, "--walkers", "clients that move", usual.walkers, type=int)
    time(one, "--dwell", "that a walker stays, on average", usual.dwell_ns)
    option(one, "--habit", "share that goes the usual way", usual.habit, type=float)
    option(one, "--jump", "share that goes anywhere", usual.jump, type=float)
    time(one, "--away", "between two brokers", usual.away_ns)
    option(one, "--minutes", "that are measured", f"{usual.minutes:g}", type=float)
    option(one, "--spread", "places of which each publisher speaks", usual.spread, type=int)
    option(
        one,
        "--past-count",
        "notifications that a publisher's or inner broker remembers",
        usual.past_count,
        type=int,
    )
    option(one, "--degree", "of the tree of brokers", usual.degree, type=int)
    time(one, "--link-latency", "between brokers", usual.link_latency_ns)
    one.set_defaults(run=run)


def parameters(a: argparse.Namespace) -> placement.Parameters:
    return placement.Parameters(**given(a))


def run(a: argparse.Namespace) -> int:
    chosen = parameters(a)
    name = f"placement-{chosen.application}-{chosen.policy}-{chosen.placement}-{chosen.seed}"
    with log_to(a.log, name) as log:
        figures = placement.run(chosen, log)
    return tell(a.json, figures, *_rows(figures))


def _rows(f: placement.Figures) -> tuple[str, list[tuple[str, str]]]:
    title = (
        f"{f.application}, policy {f.policy}, placement {f.placement}, {f.routing} routing, seed {f.seed}:"
        f" {f.walkers} walkers, {f.places} places, {f.brokers} brokers"
    )
    return title, [
        ("arrivals", str(f.moves)),
        ("there on arrival", f"{or_dash(f.share, '.1%')}: {f.available} of {f.wanted} wanted"),
        ("... and not wanted", f"{f.unwanted}, {or_dash(f.unwanted_share, '.1%')} of the past"),
        ("after", f"{or_dash(f.delay_ms, '.1f')} ms, {or_dash(f.delay_max_ms, '.1f')} at most"),
        (
            "may be incomplete",
            f"reported for {or_dash(f.reported, '.1%')} of the arrivals, missing without a report for"
            f" {f.silent}",
        ),
        ("kept by all brokers", f"{f.kept_mean:.1f} notifications, {f.kept_peak} at most"),
        ("... in memory", f"{f.bytes_mean / 1024:.0f} KiB, {f.bytes_peak / 1024:.0f} at most"),
        ("messages of an arrival", or_dash(f.messages_per_move, ".1f")),
        ("... control messages", or_dash(f.control_per_move, ".1f")),
        ("... notifications", or_dash(f.notifications_per_move, ".1f")),
        ("past on its way", f"{or_dash(f.replayed_per_move, '.1f')} notifications of an arrival"),
        ("live", f"{f.lost} lost of {f.expected}"),
        (
            "wrong",
            f"{f.duplicates} twice, {f.strays} for another place, {f.order_violations} out of order,"
            f" {f.ghosts} ghosts",
        ),
    ]
