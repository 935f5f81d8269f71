"""`wayfare broker`, `wayfare network up`: brokers that run until they are stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from wayfare.cli import running
from wayfare.errors import UsageError
from wayfare.net import config, configured, network
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.collector import Collector

EXAMPLES = """examples:
  wayfare broker site.toml                          as the file says
  wayfare broker --name lisbon                      alone, on this machine
  wayfare broker --name lisbon --listen 0.0.0.0:7410 --neighbour porto
                                                    for others; porto will call
  wayfare broker --name porto --listen 0.0.0.0:7410 --neighbour lisbon=10.0.0.1:7410
                                                    porto, which calls lisbon
  wayfare broker --name porto --announce city       clients find it: wayfare sub discover://city ...

It runs until Ctrl-C or SIGTERM; told twice, it stops at once. SIGHUP lets it read certificates and accounts
again. All keys of the file: docs/configuration.md, `wayfare config keys`.
"""

NETWORK_EXAMPLES = """examples:
  wayfare network up city.toml              a whole tree on this machine, until Ctrl-C
  wayfare network up city.toml --status 9410
                                            with metrics at http://127.0.0.1:9410/metrics
  wayfare network up city.toml --json       one JSON object a line: name, address, neighbours
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "broker",
        help="run one broker",
        description="Run one broker, as a file or a few options say.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="its configuration, in TOML; as --config"
    )
    one.add_argument("--config", type=Path, metavar="FILE", help="its configuration, in TOML")
    one.add_argument("--name", help="without a file: what it is called")
    one.add_argument(
        "--listen", metavar="ADDRESS", help="without a file: where (default 127.0.0.1:7410)"
    )
    one.add_argument(
        "--neighbour",
        action="append",
        metavar="NAME[=ADDRESS]",
        help="without a file: a neighbour, and where to call it; without an address, it calls",
    )
    one.add_argument(
        "--announce",
        metavar="NETWORK",
        help="without a file: announce it on the LAN, for clients that look for this network",
    )
    one.add_argument("--json", action="store_true", help="say where it listens as a JSON object")
    _add_status(one)
    running.add_log_options(one)
    one.set_defaults(run=run_broker)

    many = commands.add_parser(
        "network",
        help="run a whole tree of brokers on this machine",
        description="Run a whole tree of brokers in one process, for trying out.",
        epilog=NETWORK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    up = many.add_subparsers(dest="what", metavar="COMMAND", required=True).add_parser(
        "up",
        help="start it",
        description="Start all brokers of a file, and run until Ctrl-C or SIGTERM.",
        epilog=NETWORK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    up.add_argument("file", type=Path, metavar="FILE", help="brokers and links, in TOML")
    up.add_argument("--json", action="store_true", help="one JSON object a line, a broker each")
    _add_status(up)
    running.add_log_options(up)
    up.set_defaults(run=run_network)


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--status",
        type=running.place,
        metavar="[HOST:]PORT",
        help="answer /metrics, /health and /status over HTTP there; without a host, on this machine",
    )


def _status(arguments: argparse.Namespace, settings: configured.Settings) -> configured.Status:
    return configured.Status(*arguments.status) if arguments.status else settings.status


# One broker


def run_broker(arguments: argparse.Namespace) -> int:
    site = _site(arguments)
    running.start_log(arguments.log_level, arguments.log_format)
    host = network.host(site.name, site.neighbours, site.settings, site.peers)
    endpoint = network.Telling([host], _status(arguments, site.settings))
    admin = network.Administered([host], site.settings)
    announced = network.announced([host], site.settings.announce)
    work = _serve(host, site.listen, endpoint, admin, announced, arguments.json)
    Collector().install()
    return running.serve(work, lambda: _code([host]), host.reload)


def _site(arguments: argparse.Namespace) -> configured.Broker:
    a = arguments
    if a.config is not None and a.file is not None:
        raise UsageError(f"which is it, {a.file} or {a.config}? Give one configuration")
    if (file := a.config or a.file) is not None:
        if a.name or a.listen or a.neighbour or a.announce:
            raise UsageError(
                "the file has it all: leave --name, --listen, --neighbour and --announce"
            )
        site = config.read(file)
        if isinstance(site, configured.Network):
            raise UsageError(f"{file} is a network: start it with wayfare network up {file}")
        return site
    if not a.name:
        raise UsageError("a broker needs a name: give --config FILE, or --name NAME")
    neighbours = {}
    for one in a.neighbour or ():
        name, _, address = one.partition("=")
        neighbours[name] = address
    values = {"name": a.name, "neighbours": neighbours} | ({"listen": a.listen} if a.listen else {})
    if a.announce:
        values["announce"] = {"network": a.announce}
    site = config.understand(values)
    assert isinstance(site, configured.Broker)
    return site


async def _serve(
    host: BrokerHost,
    listen: Address,
    telling: network.Telling,
    admin: network.Administered,
    announced: AbstractAsyncContextManager[object],
    as_json: bool,
) -> int:
    try:
        address = await network.listen(host, listen)
        async with admin as api, telling as status, announced:
            if as_json:
                facts = {"name": host.name, "address": str(address)} | _where(status, api)
                print(json.dumps(facts), flush=True)
            else:
                print(f"{host.name} listens at {address}", flush=True)
                _say_where(status, api)
            await host.failed.wait()
    finally:
        await network.stop([host])
    return _code([host])


def _where(status: str, api: str) -> dict[str, str]:
    return {name: url for name, url in (("status", status), ("admin", api)) if url}


def _say_where(status: str, api: str) -> None:
    if status:
        print(f"metrics, health and status are at {status}", flush=True)
    if api:
        print(f"the admin API is at {api}", flush=True)


def _code(hosts: Iterable[BrokerHost]) -> int:
    """1 if one of them could not keep what it had acknowledged; its log says why."""
    return 1 if any(one.failure for one in hosts) else 0


def _reload(hosts: Iterable[BrokerHost]) -> None:
    for one in hosts:
        one.reload()


# A tree


def run_network(arguments: argparse.Namespace) -> int:
    city = config.read(arguments.file)
    if isinstance(city, configured.Broker):
        raise UsageError(
            f"{arguments.file} is one broker: start it with wayfare broker --config {arguments.file}"
        )
    running.start_log(arguments.log_level, arguments.log_format)
    brokers: dict[str, BrokerHost] = {}
    work = _serve_all(city, brokers, _status(arguments, city.settings), arguments.json)
    Collector().install()
    return running.serve(work, lambda: _code(brokers.values()), lambda: _reload(brokers.values()))


async def _serve_all(
    city: configured.Network,
    brokers: dict[str, BrokerHost],
    where: configured.Status,
    as_json: bool,
) -> int:
    brokers |= await network.start(city)
    try:
        admin = network.Administered(brokers.values(), city.settings)
        telling = network.Telling(brokers.values(), where)
        announced = network.announced(brokers.values(), city.settings.announce)
        async with admin as api, telling as status, announced:
            if as_json:
                for facts in _facts(brokers):
                    print(json.dumps(facts | _where(status, api)), flush=True)
            else:
                _show(_facts(brokers))
                _say_where(status, api)
            failing = [asyncio.create_task(one.failed.wait()) for one in brokers.values()]
            await asyncio.wait(failing, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await network.stop(brokers.values())
    return _code(brokers.values())


def _facts(brokers: dict[str, BrokerHost]) -> list[dict[str, Any]]:
    return [
        {"name": name, "address": str(one.address), "neighbours": list(one.links)}
        for name, one in brokers.items()
    ]


def _show(facts: list[dict[str, Any]]) -> None:
    table = Table("broker", "address", "linked with", box=box.SIMPLE_HEAD, show_edge=False)
    for one in facts:
        table.add_row(one["name"], one["address"], ", ".join(one["neighbours"]))
    console = Console()
    with console.capture() as drawn:  # to `print`: on a broken pipe rich would exit by itself
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
    print(f"\n{len(facts)} brokers are up; Ctrl-C stops them.", flush=True)
