"""Who a client of the command line is, where it goes, and whom it trusts: options that `pub`, `sub` and others share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from wayfare.cli import notation, running
from wayfare.errors import UsageError
from wayfare.net.discovery import is_discovered
from wayfare.net.options import PROBE_S
from wayfare.net.wills import Will

PASSWORD = "WAYFARE_PASSWORD"


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        help="of a broker: host:port; or discover://, for the nearest broker of the LAN",
    )
    parser.add_argument(
        "--probe",
        type=running.seconds,
        default=PROBE_S,
        metavar="SECONDS",
        help=f"with discover://: how often brokers are measured (default {PROBE_S:g})",
    )


def addresses(arguments: argparse.Namespace) -> list[str]:
    """For `connect`."""
    given: str = arguments.address
    return [given] if is_discovered(given) else given.split(",")


def add_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--id", help="of this client (default: a new one)")
    parser.add_argument(
        "--timeout",
        type=running.seconds,
        default=10.0,
        metavar="SECONDS",
        help="for a connection, or an acknowledgement (default 10)",
    )
    parser.add_argument(
        "--expires",
        type=running.seconds,
        metavar="SECONDS",
        help="after this time away its session ends (default: as the broker allows; without --id, 300)",
    )
    parser.add_argument(
        "--will",
        metavar="'NAME=VALUE ...'",
        help="what the broker publishes when this client is gone, and has not said goodbye",
    )
    parser.add_argument(
        "--will-delay",
        type=running.seconds,
        default=0.0,
        metavar="SECONDS",
        help="... for longer than this (default 0)",
    )
    parser.add_argument(
        "--will-retain",
        action="append",
        default=[],
        metavar="NAME",
        help="... as the current value of this attribute's value; may be repeated",
    )
    parser.add_argument(
        "--ca", default="", metavar="FILE", help="who signs the certificates of brokers"
    )
    parser.add_argument(
        "--crl", default="", metavar="FILE", help="certificate revocation lists of that CA"
    )
    parser.add_argument(
        "--cert", nargs=2, metavar=("CERT", "KEY"), help="our own, where brokers require one"
    )
    parser.add_argument("--account", metavar="NAME", help="to log in with (default: the client's)")
    parser.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help=f"its first line is the password (default: what {PASSWORD} says, if anything)",
    )


def add_events(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--events",
        metavar="WHERE",
        help="what happens to this client: into a file (.jsonl, .parquet), or to a broker, like"
        " wayfare://127.0.0.1:7410, for `wayfare analyse --follow`",
    )


def _will(a: argparse.Namespace) -> Will | None:
    if a.will is None:
        if a.will_delay or a.will_retain:
            raise UsageError("--will-delay and --will-retain say more of a will: give --will, too")
        return None
    attributes = notation.attributes_of(a.will)
    return Will(attributes, delay=a.will_delay, retain=a.will_retain)


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """For `connect`."""
    a = arguments
    password = os.environ.get(PASSWORD)
    if a.password_file is not None:
        try:
            password = a.password_file.read_text("utf-8").split("\n")[0].rstrip("\r")
        except OSError as error:
            raise UsageError(
                f"cannot read the password in {a.password_file}: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise UsageError(f"{a.password_file} has no password: it is not UTF-8 text") from None
    if a.account and password is None:
        raise UsageError(f"{a.account} needs a password: give --password-file, or set {PASSWORD}")
    return {
        "client_id": a.id,
        "timeout": a.timeout,
        "expires": a.expires,
        "will": _will(a),
        "ca": a.ca,
        "crl": a.crl,
        "cert": tuple(a.cert) if a.cert else None,
        "account": a.account,
        "password": password,
        "events": getattr(a, "events", None),
    }
