"""`wayfare service agent` and `move`: the agent of a machine that moves, and what it is told."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from typing import Any

from wayfare.cli import running, service_options
from wayfare.errors import UsageError
from wayfare.net.logs import printable
from wayfare.service.agent import PROBE_S, Agent, Choice, order
from wayfare.service.discovery import Neighbourhood
from wayfare.service.system import Trust

EXAMPLES = """examples:
  wayfare service agent --proxies 10.0.0.5:7500,10.0.1.5:7500   move clients to the one that is in reach
  wayfare service agent --zeroconf                              ... of those on this LAN
  wayfare service move out                                      before the machine is switched off
  wayfare service move in                                       and when it is back

Clients of this machine say connect("ann", agent="") in place of an address. It runs until Ctrl-C or SIGTERM.
"""


def add_parsers(parts: Any) -> None:
    _add_agent(parts)
    _add_move(parts)


def _add_agent(parts: Any) -> None:
    one = service_options.part(
        parts,
        "agent",
        "move all clients of this machine to a proxy that is in reach",
        "Watch which mobility proxies are in reach, and move the clients of this machine when that changes.",
        EXAMPLES,
        run_agent,
    )
    which = one.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--proxies",
        type=service_options.addresses,
        metavar="HOST:PORT,...",
        help="the nearest ones first",
    )
    which.add_argument("--zeroconf", action="store_true", help="those that are announced here")
    service_options.add_ca(
        one, "who signs the certificates of proxies; of those announced, only these count then"
    )
    _add_control(one)
    one.add_argument(
        "--interval",
        type=running.seconds,
        default=PROBE_S,
        metavar="SECONDS",
        help=f"between two looks at a proxy (default {PROBE_S:g})",
    )
    one.add_argument(
        "--up", type=running.count, default=2, metavar="N", help="answers in a row: it is in reach"
    )
    one.add_argument(
        "--down", type=running.count, default=3, metavar="N", help="silences in a row: it is gone"
    )
    one.add_argument("--json", action="store_true", help="what happens, one JSON object a line")
    running.add_log_options(one)


def _add_control(one: Any) -> None:
    one.add_argument(
        "--control",
        default="",
        metavar="PATH|PORT",
        help="where clients of this machine reach the agent (default: a socket of this user)",
    )


def run_agent(a: argparse.Namespace) -> int:
    if not a.interval:
        raise UsageError("an agent looks at intervals of more than 0 seconds: give --interval 1")
    running.start_log(a.log_level, a.log_format)
    return running.serve(_watch(a), lambda: 0)


async def _watch(a: argparse.Namespace) -> int:
    def tell(what: dict[str, Any]) -> None:
        say(json.dumps(what) if a.json else printable(_sentence(what)))

    near: Any = Neighbourhood(safe=bool(a.ca)) if a.zeroconf else nullcontext()
    async with running.printing() as say, near:
        choice = Choice(a.up, a.down)
        known = (lambda: near.addresses) if a.zeroconf else (lambda: a.proxies)
        await Agent(known, a.control, choice, tell, a.interval, Trust(a.ca)).run()
    return 0


def _sentence(what: dict[str, Any]) -> str:
    if "clients" in what:
        who = ", ".join(what["clients"]) or "no client yet"
        return f"{what['proxy'] or 'no proxy'} is in reach: {who}"
    if what.get("left"):
        return f"{what['client']} has left"
    if "moved" in what:
        return (
            f"{what['client']} {'has moved' if what['moved'] else 'could not move: ' + what['why']}"
        )
    return f"{what['client']} is a client of this machine"


def _add_move(parts: Any) -> None:
    one = service_options.part(
        parts,
        "move",
        "have the agent move all clients of this machine out, or back in",
        "Before a machine goes, and when it is back: tell its agent. Returns when all clients have moved.",
        EXAMPLES,
        lambda a: running.run(_order(a)),
    )
    one.add_argument("direction", choices=("out", "in"))
    _add_control(one)


async def _order(a: argparse.Namespace) -> int:
    trouble = await order(a.control, a.direction)
    if trouble:
        running.tell(trouble)
    return 1 if trouble else 0
