"""`wayfare sim service`: one client of another system moves once, with the mobility service or without."""

from __future__ import annotations

import argparse
from typing import Any

from wayfare.channel import PROFILES
from wayfare.cli.experiments import given, log_to, option, or_dash, parser, tell, time
from wayfare.sim import one_move, service
from wayfare.sim.systems import SYSTEMS

EXAMPLES = """examples:
  wayfare sim service                                   Siena, with what the service does by default
  wayfare sim service --system elvin --support ping --s 100 --network gprs
  wayfare sim service --support none --log run.parquet  and its event log, for wayfare analyse
  wayfare sim service --support delay --delay 50 --p 10
  wayfare sim service --system wayfare --support own --s 100 --network gprs
"""


def add_parser(commands: Any) -> None:
    usual = one_move.Parameters()
    one = parser(
        commands,
        "service",
        "The experiment of the mobility service paper: three access points of another publish/subscribe"
        " system, a publisher, and a client that moves once. What is lost, what comes twice, and how long"
        " it takes until the flow is up again.",
        EXAMPLES,
    )
    systems = [*SYSTEMS, one_move.OWN]
    option(one, "--system", "what is below", usual.system, choices=systems)
    option(one, "--support", "of who moves", usual.support, choices=[*one_move.SUPPORT])
    option(one, "--s", "subscriptions", usual.s, type=int)
    option(one, "--p", "publications per second", f"{usual.p:g}", type=float)
    time(one, "--away", "between the access points", usual.away_ns)
    option(one, "--network", "of the client", usual.network, choices=[*PROFILES])
    time(one, "--delay", "of support delay", usual.delay_ns)
    time(one, "--latency", "one way by radio, if not the network's", None)
    one.add_argument(
        "--abrupt", action="store_true", default=None, help="cut off, without a move-out"
    )
    option(one, "--seed", "for all that is random in it", usual.seed, type=int)
    one.set_defaults(run=run)


def parameters(a: argparse.Namespace) -> one_move.Parameters:
    return one_move.Parameters(**given(a))


def run(a: argparse.Namespace) -> int:
    chosen = parameters(a)
    with log_to(a.log, f"service-{chosen.system}-{chosen.support}-{chosen.seed}") as log:
        figures = service.run(chosen, log)
    return tell(a.json, figures, *_rows(figures))


def _rows(f: one_move.Figures) -> tuple[str, list[tuple[str, str]]]:
    title = (
        f"{f.system}, support {f.support}, {f.network}, seed {f.seed}: {f.s} subscriptions,"
        f" {f.p:g} publications per second"
    )
    return title, [
        ("deliveries", f"{f.delivered} of {f.expected} expected"),
        (
            "lost",
            f"{f.lost}: {f.lost_out} while moving out, {f.lost_away} while away, {f.lost_in} at reattach",
        ),
        (
            "twice",
            f"{f.duplicates}: {f.duplicates_away} from before, {f.duplicates_in} at reattach",
        ),
        ("out of order", f"{f.order_violations}"),
        ("gaps told", f"{f.gaps}"),
        ("subscribing", f"{f.subscribe_ms:.0f} ms, at first"),
        ("move-out", f"{or_dash(f.move_out_ms, '.0f')} ms"),
        ("move-in", f"{or_dash(f.move_in_ms, '.0f')} ms"),
        ("first publication", f"{or_dash(f.first_ms, '.0f')} ms after move-in"),
        ("delay at reattach", f"{or_dash(f.delay_ms, '.0f')} ms; physics ask for {f.floor_ms:.0f}"),
        ("messages", f"{f.service_messages} of the service, {f.control} between access points"),
        ("by radio", f"{f.radio_bytes} bytes"),
    ]
