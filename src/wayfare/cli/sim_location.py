"""`wayfare sim location` and `wayfare sim blackout`: subscriptions that follow their clients."""

from __future__ import annotations

import argparse
from typing import Any

from wayfare.cli.experiments import given, log_to, option, or_dash, parser, tell, time
from wayfare.core.reduction import STRATEGIES
from wayfare.sim import blackout, location

LOCATION_EXAMPLES = """examples:
  wayfare sim location                            brokers listen ahead where clients mostly go
  wayfare sim location --nlb neighbours --dwell 30000
  wayfare sim location --nlb all --walkers 50 --json
  wayfare sim location --ways ways.json           the ways of a file (see docs/location.md)
"""

BLACKOUT_EXAMPLES = """examples:
  wayfare sim blackout --steps 0                  a new subscription at each change
  wayfare sim blackout --steps 1 --hops 8         the next locations, too
  wayfare sim blackout --dwell 20 --json          in a hurry
  wayfare sim blackout --follow my.need           a value of the state changes
"""


def add_parsers(commands: Any) -> None:
    add_location_parser(commands)
    add_blackout_parser(commands)


def add_location_parser(commands: Any) -> None:
    usual = location.Parameters()
    one = parser(
        commands,
        "location",
        "Clients go from broker to broker and follow their location: how much of what was said of a"
        " place in the last minute is there when they arrive, and what it costs that brokers listen"
        " ahead.",
        LOCATION_EXAMPLES,
    )
    nlb = "; ".join(f"{name}: {about}" for name, about in location.NLB.items())
    option(one, "--nlb", nlb, usual.nlb, choices=[*location.NLB])
    option(one, "--coverage", "share of the moves, if mined or learnt", usual.coverage, type=float)
    _routing(one, usual.routing)
    option(one, "--seed", "for all that is random in it", usual.seed, type=int)
    option(one, "--ways", "ways of clients, and what was learnt before", "random", metavar="FILE")
    option(one, "--side", "of a square of places", usual.side, type=int)
    option(one, "--walkers", "clients that move", usual.walkers, type=int)
    time(one, "--dwell", "that a walker stays, on average", usual.dwell_ns)
    option(one, "--habit", "share that goes the usual way", usual.habit, type=float)
    option(one, "--jump", "share that goes anywhere", usual.jump, type=float)
    time(one, "--away", "between two brokers", usual.away_ns)
    option(one, "--minutes", "that are measured", f"{usual.minutes:g}", type=float)
    option(one, "--publishers", "at random places", usual.publishers, type=int)
    option(one, "--rate", "publications of a place, per second", usual.rate, type=float)
    time(one, "--horizon", "of the past that is wanted on arrival", usual.horizon_ns)
    remembered = "notifications that each broker remembers of what it routed; 0: none"
    option(one, "--remembered", remembered, usual.remembered, type=int)
    option(one, "--degree", "of the tree of brokers", usual.degree, type=int)
    time(one, "--link-latency", "between brokers", usual.link_latency_ns)
    one.set_defaults(run=run_location)


def add_blackout_parser(commands: Any) -> None:
    usual = blackout.Parameters()
    one = parser(
        commands,
        "blackout",
        "Clients change their location in the range of one broker, and nothing is kept for them: how"
        " long they miss what is published some hops away, by how far ahead brokers are told. Or a value"
        " of their state changes.",
        BLACKOUT_EXAMPLES,
    )
    steps = "how many steps ahead brokers further away are told; dwell: as many as needed, or as measured"
    option(one, "--steps", steps, usual.steps, choices=[*blackout.STEPS])
    follow = "what changes: the location, or a number or text of the state"
    option(one, "--follow", follow, usual.follow, choices=[*blackout.FOLLOWED])
    _routing(one, usual.routing)
    option(one, "--seed", "for all that is random in it", usual.seed, type=int)
    option(one, "--hops", "to the broker of the publisher", usual.hops, type=int)
    option(one, "--side", "of a square of locations, or its root of values", usual.side, type=int)
    option(one, "--walkers", "clients that walk", usual.walkers, type=int)
    option(one, "--changes", "of the location, or value, of each", usual.changes, type=int)
    time(one, "--dwell", "that a walker stays at least", usual.dwell_ns)
    option(one, "--rate", "publications of a location, per second", f"{usual.rate:g}", type=float)
    time(one, "--link-latency", "between brokers", usual.link_latency_ns)
    one.set_defaults(run=run_blackout)


def _routing(one: argparse.ArgumentParser, default: str) -> None:
    option(one, "--routing", "the routing strategy", default, choices=[*STRATEGIES])


# Running


def location_parameters(a: argparse.Namespace) -> location.Parameters:
    return location.Parameters(**given(a))


def blackout_parameters(a: argparse.Namespace) -> blackout.Parameters:
    return blackout.Parameters(**given(a))


def run_location(a: argparse.Namespace) -> int:
    parameters = location_parameters(a)
    with log_to(a.log, f"location-{parameters.nlb}-{parameters.seed}") as log:
        figures = location.run(parameters, log)
    return tell(a.json, figures, *_location_rows(figures))


def run_blackout(a: argparse.Namespace) -> int:
    parameters = blackout_parameters(a)
    with log_to(a.log, f"blackout-{parameters.steps}-{parameters.seed}") as log:
        figures = blackout.run(parameters, log)
    return tell(a.json, figures, *_blackout_rows(figures))


def _location_rows(f: location.Figures) -> tuple[str, list[tuple[str, str]]]:
    title = (
        f"nlb {f.nlb}, {f.routing} routing, seed {f.seed}: {f.walkers} walkers, {f.places} places,"
        f" {f.brokers} brokers"
    )
    return title, [
        ("moves", f"{f.moves}; somebody was to listen there for {or_dash(f.foreseen, '.1%')}"),
        ("there on arrival", f"{or_dash(f.share, '.1%')}: {f.available} of {f.wanted}"),
        (
            "... where nobody listened",
            f"{or_dash(f.fetched_share, '.1%')}: {f.fetched} of {f.unforeseen}",
        ),
        ("live", f"{f.lost} lost of {f.expected}"),
        ("deliveries", f"{f.delivered} of {f.published} published, {f.past} of the past"),
        ("wrong", _wrong(f)),
        ("messages of a move", or_dash(f.messages_per_move, ".1f")),
        ("... between replicators", or_dash(f.posted_per_move, ".1f")),
        ("... control messages", or_dash(f.control_per_move, ".1f")),
        ("... notifications", or_dash(f.notifications_per_move, ".1f")),
        ("messages of a client", f"{f.messages_per_minute:.1f} a minute"),
        ("virtual clients of one", f"{f.virtual_mean:.1f}"),
        ("kept at a place", f"{f.kept_mean:.1f} notifications, {f.kept_peak} at most"),
        ("... ids of them", f"{f.ids_mean:.1f}, {f.ids_peak} at most"),
        ("subscription tables", f"{f.subs_mean:.1f} entries a broker, {f.subs_max} at most"),
    ]


def _blackout_rows(f: blackout.Figures) -> tuple[str, list[tuple[str, str]]]:
    title = (
        f"steps {f.steps}, {f.routing} routing, seed {f.seed}: {f.walkers} walkers follow {f.follow},"
        f" {f.locations} locations, {f.hops} hops"
    )
    per_delivered = or_dash(f.notifications_per_delivered, ".2f")
    return title, [
        ("changes", str(f.changes)),
        ("blackout", f"{f.blackout_ms:.1f} ms on average, {f.blackout_max_ms:.1f} ms at most"),
        ("missed", f"{f.missed_share:.1%}: {f.missed} of {f.expected}"),
        ("deliveries", f"{f.delivered} of {f.published} published"),
        ("wrong", _wrong(f)),
        ("control messages", f"{f.control_per_change:.2f} a change"),
        ("notifications", f"{per_delivered} between brokers for each that is delivered"),
        ("subscription tables", f"{f.subs_mean:.1f} entries a broker, {f.subs_max} at most"),
    ]


def _wrong(f: location.Figures | blackout.Figures) -> str:
    return (
        f"{f.duplicates} twice, {f.strays} for another place, {f.order_violations} out of order,"
        f" {f.ghosts} ghosts"
    )
