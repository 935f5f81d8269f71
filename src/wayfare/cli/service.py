"""`wayfare service`: mobility proxies beside other people's brokers, and the agent of a machine that moves."""

from __future__ import annotations

import argparse
from typing import Any

from wayfare.cli import service_adapters, service_agent, service_proxy, service_try


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "service",
        help="let clients of other brokers move: mobility proxies, and agents",
        description="Give clients of an existing publish/subscribe system mobility, without touching it.",
        epilog=service_proxy.EXAMPLES + "\n" + service_agent.EXAMPLES.partition("\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = one.add_subparsers(dest="part", metavar="PART", required=True)
    service_proxy.add_parser(parts)
    service_agent.add_parsers(parts)
    service_try.add_parsers(parts)
    service_adapters.add_parser(parts)
