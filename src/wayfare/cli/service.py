"""`wayfare service`: mobility proxies beside other people's brokers, and the agent of a machine that moves."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from wayfare.cli import notation, running, service_adapters
from wayfare.errors import UsageError
from wayfare.net.security import Tls
from wayfare.service import Gap, connect
from wayfare.service.agent import PROBE_S, Agent, Choice, order
from wayfare.service.discovery import Neighbourhood, advertised
from wayfare.service.messages import Sync
from wayfare.service.proxy_addresses import PORT, where
from wayfare.service.proxy_server import Server
from wayfare.service.system import Trust

PROXY = """examples:
  wayfare service proxy --access mqtt://127.0.0.1:1883                      for clients on this machine
  wayfare service proxy --access mqtt://10.0.0.5 --listen 10.0.0.5:7500 --store ann.db
                                                        what it keeps survives a crash
  wayfare service proxy --access nats://127.0.0.1 --listen 10.0.0.5:7500 --advertise zeroconf
                                                        agents on the LAN find it by themselves
  wayfare service proxy --access mqtts://10.0.0.5 --listen 10.0.0.5:7500 --tls proxy.pem proxy.key --ca ca.pem
                                                        with TLS on both sides: clients call it tls://10.0.0.5:7500

It runs until Ctrl-C or SIGTERM; SIGHUP lets it read certificates again. Clients say which proxy they come from: it connects
to such addresses if they are in private networks, or to those of --peers only.
"""
AGENT = """examples:
  wayfare service agent --proxies 10.0.0.5:7500,10.0.1.5:7500   move clients to the one that is in reach
  wayfare service agent --zeroconf                              ... of those on this LAN
  wayfare service move out                                      before the machine is switched off
  wayfare service move in                                       and when it is back

Clients of this machine say connect("ann", agent="") in place of an address. It runs until Ctrl-C or SIGTERM.
"""
TRY = """examples:
  wayfare service sub 127.0.0.1:7500 "news/#"                 what comes, one a line
  wayfare service sub 127.0.0.1:7500 "news/#" -C 10 --json    ten of them, as JSON, then stop
  wayfare service pub 127.0.0.1:7500 news/local "hello"       publish at the access point of that proxy
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "service",
        help="let clients of other brokers move: mobility proxies, and agents",
        description="Give clients of an existing publish/subscribe system mobility, without touching it.",
        epilog=PROXY + "\n" + AGENT.partition("\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = one.add_subparsers(dest="part", metavar="PART", required=True)
    _add_proxy(parts)
    _add_agent(parts)
    _add_move(parts)
    _add_sub(parts)
    _add_pub(parts)
    _part(
        parts,
        "adapters",
        "the systems that it is for, and what their adapters give and take",
        "List the adapters: addresses, what systems give, lines of code, and packages.",
        service_adapters.EXAMPLES,
        service_adapters.run,
    ).add_argument("--json", action="store_true", help="print one JSON object")


def _part(parts: Any, name: str, about: str, description: str, epilog: str, run: Any) -> Any:
    one = parts.add_parser(
        name,
        help=about,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(run=run)
    return one


# ---- proxy -----------------------------------------------------------------------------


def _add_proxy(parts: Any) -> None:
    one = _part(
        parts,
        "proxy",
        "stand in for clients while they are away",
        "Run a mobility proxy beside an access point of a publish/subscribe system.",
        PROXY,
        run_proxy,
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
        metavar="HOST:PORT",
        help="where others reach it, if it listens on all addresses (0.0.0.0)",
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
        type=_addresses,
        default=[],
        metavar="HOST:PORT,...",
        help="the only proxies that it asks (default: any in a private network)",
    )
    one.add_argument(
        "--tls",
        nargs=2,
        metavar=("CERT", "KEY"),
        help="what clients and other proxies are shown, who call it tls://host:port",
    )
    _add_trust(one)
    one.add_argument("--advertise", choices=("zeroconf",), help="say on the LAN that it is here")
    one.add_argument("--json", action="store_true", help="say where it listens as a JSON object")
    running.add_log_options(one)


def _add_trust(one: Any) -> None:
    _add_ca(one, "who signs the certificates of servers of the system, and of proxies")
    one.add_argument(
        "--cert", nargs=2, metavar=("CERT", "KEY"), help="what servers are shown, if they ask"
    )


def _add_ca(one: Any, about: str) -> None:
    one.add_argument("--ca", default="", metavar="FILE", help=about)


def _addresses(text: str) -> list[str]:
    found = [one.strip() for one in text.split(",") if one.strip()]
    if not found:
        raise argparse.ArgumentTypeError("there is no address: write host:port,host:port")
    try:
        for one in found:
            where(one)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found


def run_proxy(a: argparse.Namespace) -> int:
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


# ---- agent -----------------------------------------------------------------------------


def _add_agent(parts: Any) -> None:
    one = _part(
        parts,
        "agent",
        "move all clients of this machine to a proxy that is in reach",
        "Watch which mobility proxies are in reach, and move the clients of this machine when that changes.",
        AGENT,
        run_agent,
    )
    which = one.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--proxies", type=_addresses, metavar="HOST:PORT,...", help="the nearest ones first"
    )
    which.add_argument("--zeroconf", action="store_true", help="those that are announced here")
    _add_ca(one, "who signs the certificates of proxies; of those announced, only these count then")
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
        print(json.dumps(what) if a.json else _sentence(what), flush=True)

    near: Any = Neighbourhood(safe=bool(a.ca)) if a.zeroconf else nullcontext()
    async with near:
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
            f"{what['client']} {'is there' if what['moved'] else 'could not move: ' + what['why']}"
        )
    return f"{what['client']} is a client of this machine"


def _add_move(parts: Any) -> None:
    one = _part(
        parts,
        "move",
        "have the agent move all clients of this machine out, or back in",
        "Before a machine goes, and when it is back: tell its agent. Returns when all clients have moved.",
        AGENT,
        lambda a: running.run(_order(a)),
    )
    one.add_argument("direction", choices=("out", "in"))
    _add_control(one)


async def _order(a: argparse.Namespace) -> int:
    trouble = await order(a.control, a.direction)
    if trouble:
        running.tell(trouble)
    return 1 if trouble else 0


# ---- to try it -------------------------------------------------------------------------


def _add_sub(parts: Any) -> None:
    one = _part(
        parts,
        "sub",
        "subscribe by way of a proxy, and print what comes",
        "Print what comes, one message a line. The language of subscriptions is the system's own.",
        TRY,
        lambda a: running.run(_sub(a)),
    )
    _add_client(one)
    one.add_argument("subscription", metavar="SUBSCRIPTION")
    one.add_argument("-C", "--count", type=running.count, metavar="N", help="stop after so many")
    one.add_argument("--sync", default="ping", help="ping, none, or delay and milliseconds")
    one.add_argument("--json", action="store_true", help="one JSON object a line")


def _add_pub(parts: Any) -> None:
    one = _part(
        parts,
        "pub",
        "publish by way of a proxy",
        "Publish one message at the access point of a proxy.",
        TRY,
        lambda a: running.run(_pub(a)),
    )
    _add_client(one)
    one.add_argument("topic", metavar="TOPIC")
    one.add_argument("payload", nargs="?", default="", metavar="TEXT")
    one.add_argument("attributes", nargs="*", metavar="NAME=VALUE", help="properties")


def _add_client(one: Any) -> None:
    one.add_argument(
        "proxy", metavar="PROXY", help="host:port, tls://host:port, or `agent`: where that says"
    )
    one.add_argument("--name", default="", help="of the client")
    one.add_argument("--login", default="", metavar="USER:PASSWORD", help="for the system")
    _add_trust(one)


def _client(a: argparse.Namespace, kind: str, **options: Any) -> Any:
    import secrets

    name = a.name or f"{kind}-{secrets.token_hex(4)}"
    where_to = {"agent": ""} if a.proxy == "agent" else {"proxy": a.proxy}
    cert = tuple(a.cert) if a.cert else None
    return connect(name, login=a.login, ca=a.ca, cert=cert, **where_to, **options)


async def _sub(a: argparse.Namespace) -> int:
    came = 0
    async with _client(a, "sub", sync=Sync.parse(a.sync)) as client:
        await client.subscribe(a.subscription)
        running.tell(f"subscribed to {a.subscription} at {client.place}")
        async for message in client:
            if isinstance(message, Gap):
                many = "some" if message.lost is None else str(message.lost)
                running.tell(f"{many} messages were lost: {message.reason}")
                continue
            text = message.payload.decode("utf-8", "replace")
            if a.json:
                facts = {"topic": message.topic, "payload": text, **message.properties}
                print(json.dumps(facts), flush=True)
            else:
                print(f"{message.topic}  {text}", flush=True)
            came += 1
            if came == a.count:
                break
    return 0


async def _pub(a: argparse.Namespace) -> int:
    properties = notation.attributes_of(" ".join(a.attributes))
    async with _client(a, "pub", standby=False) as client:
        await client.publish(a.topic, a.payload.encode(), **properties)
        return 1 if await client.close() else 0
