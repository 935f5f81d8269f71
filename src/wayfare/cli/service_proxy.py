"""`wayfare service proxy`: a mobility proxy beside an access point of somebody else's system."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from wayfare.cli import running, service_options
from wayfare.errors import UsageError
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans
from wayfare.net.network import secret_of
from wayfare.net.security import Tls
from wayfare.service.adapters import alike
from wayfare.service.addresses import scheme_of
from wayfare.service.discovery import advertised
from wayfare.service.proxy_addresses import PORT, where
from wayfare.service.proxy_server import Server
from wayfare.service.system import Trust

EXAMPLES = """examples:
  wayfare service proxy --access mqtt://127.0.0.1:1883                      for clients on this machine
  wayfare service proxy --access mqtt://10.0.0.5 --listen 10.0.0.5:7500 --store ann.db
                                                        what it keeps survives a crash
  wayfare service proxy --access nats://127.0.0.1 --listen 10.0.0.5:7500 --advertise zeroconf
                                                        agents on the LAN find it by themselves
  wayfare service proxy --access mqtts://10.0.0.5 --listen 10.0.0.5:7500 --tls proxy.pem proxy.key --ca ca.pem
                                                        with TLS on both sides: clients call it tls://10.0.0.5:7500

  wayfare service proxy --access mqtt://10.0.0.5 --listen 10.0.0.5:7500 --peers 10.0.1.5:7500 --secret-file secret
                                                        it trusts that proxy, and nobody who only says to be one

It runs until Ctrl-C or SIGTERM; SIGHUP lets it read certificates again, and reopen the audit log. Clients say which proxy they
come from: it connects to those of --peers only; or, with --secret-file alone, to private addresses, where it says nothing before
the secret is proved; or, with neither, to others on this machine, for clients that are on it, too.
"""


def add_parser(parts: Any) -> None:
    one = service_options.part(
        parts,
        "proxy",
        "stand in for clients while they are away",
        "Run a mobility proxy beside an access point of a publish/subscribe system.",
        EXAMPLES,
        run,
    )
    one.add_argument("--access", required=True, metavar="URL", help="mqtt://host:port, nats://...")
    one.add_argument(
        "--listen",
        type=running.place,
        default=("127.0.0.1", PORT),
        metavar="[HOST:]PORT",
        help=f"for clients and other proxies (default 127.0.0.1:{PORT})",
    )
    one.add_argument(
        "--address",
        default="",
        metavar="HOST[:PORT]",
        help="where others reach it, if it listens on all addresses (0.0.0.0); without a port, at that of --listen",
    )
    one.add_argument(
        "--tell", default="", metavar="URL", help="the access point, as clients reach it"
    )
    one.add_argument("--store", type=Path, metavar="FILE", help="what it keeps is in this file")
    one.add_argument(
        "--durability",
        choices=("disk", "os"),
        default="disk",
        help="of the file: disk survives a power failure, os a crash of the process (default: disk)",
    )
    one.add_argument(
        "--peers",
        type=service_options.addresses,
        default=[],
        metavar="HOST:PORT,...",
        help="the only proxies that it calls (default: those in private networks that know the secret of --secret-file, or"
        " else only others on this machine)",
    )
    one.add_argument(
        "--secret-file",
        default="",
        metavar="FILE",
        help="its first line is a secret that all proxies know: they prove it to each other, and with --peers"
        " a name is protected by its key at all of them",
    )
    one.add_argument(
        "--bans", default="", metavar="FILE", help="of `wayfare ban`: who is refused for a time"
    )
    one.add_argument(
        "--audit", default="", metavar="FILE", help="record refusals there, as JSON lines"
    )
    one.add_argument(
        "--tls",
        nargs=2,
        metavar=("CERT", "KEY"),
        help="what clients and other proxies are shown, who call it tls://host:port",
    )
    service_options.add_trust(one)
    one.add_argument("--advertise", choices=("zeroconf",), help="say on the LAN that it is here")
    one.add_argument("--json", action="store_true", help="say where it listens as a JSON object")
    running.add_log_options(one)


def run(a: argparse.Namespace) -> int:
    running.start_log(a.log_level, a.log_format)
    host, port = a.listen
    if host in ("0.0.0.0", "::") and not a.address:
        raise UsageError(
            f"others cannot reach {host}: say where they do, like --address 10.0.0.5:{port or PORT}"
        )
    if a.address:
        where(a.address)
    server = Server(
        a.access,
        host,
        port,
        address=a.address,
        told=a.tell,
        store=a.store,
        durability=a.durability,
        peers=a.peers,
        trust=Trust(a.ca, tuple(a.cert) if a.cert else None),
        tls=Tls(*a.tls) if a.tls else None,
        audit=Audit("", "service", a.audit),
        bans=Bans(a.bans),
        secret=secret_of(a.secret_file),
    )
    if a.tell and not alike(a.access, a.tell):
        raise UsageError(
            f"--tell is by {scheme_of(a.tell)}:// and --access by {scheme_of(a.access)}://:"
            " give the same access point, as clients reach it"
        )
    return running.serve(_serve(server, a), lambda: 0, server.reload)


async def _serve(server: Server, a: argparse.Namespace) -> int:
    try:
        address = await server.start()
        access = server.proxy.access
        clients = len(server.proxy.clients)
        told: Any = advertised(address, access) if a.advertise else nullcontext()
        async with told:
            if a.json:
                facts = {"proxy": address, "access": access, "clients": clients}
                print(json.dumps(facts), flush=True)
            else:
                known = f"; it knows {clients} of them" if clients else ""
                print(f"clients of {access} move by the proxy {address}{known}", flush=True)
            await server.serve()
    finally:
        await server.stop()
    return 0
