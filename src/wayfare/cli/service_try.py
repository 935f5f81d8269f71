"""`wayfare service sub` and `pub`: a client of the mobility service in a shell, to try it."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from wayfare.cli import notation, running, service_options
from wayfare.net import payloads
from wayfare.net.logs import printable
from wayfare.service import Gap, Publication, connect
from wayfare.service.messages import Sync

EXAMPLES = """examples:
  wayfare service sub 127.0.0.1:7500 "news/#"                 what comes, one a line
  wayfare service sub 127.0.0.1:7500 "news/#" -C 10 --json    ten of them, as JSON, then stop
  wayfare service pub 127.0.0.1:7500 news/local "hello"       publish at the access point of that proxy
"""


def add_parsers(parts: Any) -> None:
    _add_sub(parts)
    _add_pub(parts)


def _add_sub(parts: Any) -> None:
    one = service_options.part(
        parts,
        "sub",
        "subscribe by way of a proxy, and print what comes",
        "Print what comes, one message a line. The language of subscriptions is the system's own.",
        EXAMPLES,
        lambda a: running.run(_sub(a)),
    )
    _add_client(one)
    one.add_argument("subscription", metavar="SUBSCRIPTION")
    one.add_argument("-C", "--count", type=running.count, metavar="N", help="stop after so many")
    one.add_argument("--sync", default="ping", help="ping, none, or delay and milliseconds")
    one.add_argument("--json", action="store_true", help="one JSON object a line")


def _add_pub(parts: Any) -> None:
    one = service_options.part(
        parts,
        "pub",
        "publish by way of a proxy",
        "Publish one message at the access point of a proxy.",
        EXAMPLES,
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
    service_options.add_trust(one)


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
            print(_as_json(message) if a.json else _as_text(message), flush=True)
            came += 1
            if came == a.count:
                break
    return 0


def _as_json(message: Publication) -> str:
    facts = {"topic": message.topic, "properties": message.properties}
    return json.dumps(facts | payloads.told(message.payload))


def _as_text(message: Publication) -> str:
    text = message.payload.decode("utf-8", "replace")
    return printable(f"{message.topic}  {text}")


async def _pub(a: argparse.Namespace) -> int:
    properties = notation.attributes_of(" ".join(a.attributes))
    async with _client(a, "pub", standby=False) as client:
        await client.publish(a.topic, os.fsencode(a.payload), **properties)
        return 1 if await client.close() else 0
