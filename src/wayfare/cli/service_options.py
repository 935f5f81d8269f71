"""What the parts of `wayfare service` have in common."""

from __future__ import annotations

import argparse
from typing import Any

from wayfare.errors import UsageError
from wayfare.service.proxy_addresses import where


def part(parts: Any, name: str, about: str, description: str, epilog: str, run: Any) -> Any:
    one = parts.add_parser(
        name,
        help=about,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(run=run)
    return one


def add_trust(one: Any) -> None:
    add_ca(one, "who signs the certificates of servers of the system, and of proxies")
    one.add_argument(
        "--cert", nargs=2, metavar=("CERT", "KEY"), help="what servers are shown, if they ask"
    )


def add_ca(one: Any, about: str) -> None:
    one.add_argument("--ca", default="", metavar="FILE", help=about)


def addresses(text: str) -> list[str]:
    found = [one.strip() for one in text.split(",") if one.strip()]
    if not found:
        raise argparse.ArgumentTypeError("there is no address: write host:port,host:port")
    try:
        for one in found:
            where(one)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found
