"""`wayfare thin`: a proxy for devices that speak lines of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from wayfare.cli import running
from wayfare.net import network
from wayfare.net.addresses import Address
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans
from wayfare.net.security import Tls, server_context
from wayfare.net.thin import DEVICES_MAX, IDLE_S, STAY_S, Thin

EXAMPLES = """examples:
  wayfare thin 127.0.0.1:7410                          for devices on this machine, at port 7480
  wayfare thin lisbon.example --listen 0.0.0.0:7480 --secret-file secret
                                                       for all, beside the broker
  wayfare thin 127.0.0.1:7410 --listen 0.0.0.0:7480 --tls cert.pem key.pem
                                                       for devices that have passwords
  nc 127.0.0.1 7480                                    and then, line by line:
  {"hello": "meter7"}
  {"subscribe": "service = 'parking' and free > 0"}

A device says and hears one JSON object a line: docs/thin.md. It runs until Ctrl-C or SIGTERM; sessions wait
at their broker for the devices, here or at another proxy. SIGHUP lets it reopen the audit log.
"""
LISTEN = ("127.0.0.1", 7480)


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "thin",
        help="let devices without a library connect by lines of JSON",
        description="Run a proxy beside a broker, for devices that cannot host a local broker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("address", metavar="ADDRESS", help="of the broker: host:port")
    one.add_argument(
        "--listen",
        type=running.place,
        default=LISTEN,
        metavar="[HOST:]PORT",
        help=f"for devices (default {LISTEN[0]}:{LISTEN[1]})",
    )
    one.add_argument(
        "--secret-file",
        default="",
        metavar="FILE",
        help="its first line is the secret of the brokers: it signs what devices carry to other proxies",
    )
    one.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"), help="what devices are shown")
    one.add_argument(
        "--ca", default="", metavar="FILE", help="who signs the certificates of brokers"
    )
    one.add_argument(
        "--crl", default="", metavar="FILE", help="certificate revocation lists of that CA"
    )
    one.add_argument(
        "--cert", nargs=2, metavar=("CERT", "KEY"), help="what the broker is shown, if it asks"
    )
    one.add_argument(
        "--devices",
        type=running.count,
        default=DEVICES_MAX,
        metavar="N",
        help=f"no more (default {DEVICES_MAX})",
    )
    one.add_argument(
        "--idle",
        type=running.seconds,
        default=IDLE_S,
        metavar="SECONDS",
        help=f"without a line, until a connection is closed (default {IDLE_S:g})",
    )
    one.add_argument(
        "--stay",
        type=running.seconds,
        default=STAY_S,
        metavar="SECONDS",
        help=f"that a device may be away and come back without its memory (default {STAY_S:g})",
    )
    one.add_argument(
        "--bans", default="", metavar="FILE", help="of `wayfare ban`: who is refused for a time"
    )
    one.add_argument(
        "--audit",
        default="",
        metavar="FILE",
        help="record logins and refusals there, as JSON lines",
    )
    one.add_argument("--json", action="store_true", help="say where it listens as a JSON object")
    running.add_log_options(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    a = arguments
    running.start_log(a.log_level, a.log_format)
    Address.parse(a.address)
    proxy = Thin(
        a.address,
        secret=network.secret_of(a.secret_file),
        devices=a.devices,
        idle_s=a.idle,
        stay_s=a.stay,
        ca=a.ca,
        crl=a.crl,
        cert=tuple(a.cert) if a.cert else None,
        audit=Audit(f"{a.listen[0]}:{a.listen[1]}", "thin", a.audit),
        bans=Bans(a.bans),
    )
    return running.serve(_serve(proxy, a), lambda: 0, proxy.reload)


async def _serve(proxy: Thin, a: argparse.Namespace) -> int:
    host, port = a.listen
    try:
        tls = server_context(Tls(*a.tls)) if a.tls else None
        port = await proxy.start(host, port, tls)
        if a.json:
            print(json.dumps({"broker": a.address, "host": host, "port": port}), flush=True)
        else:
            print(f"devices of {a.address} connect to {host}:{port}", flush=True)
        await asyncio.Event().wait()
    finally:
        await proxy.stop()
    return 0
