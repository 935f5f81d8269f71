"""`wayfare reply`: answer requests from a shell, always in the same way."""

from __future__ import annotations

import argparse
import os
from typing import Any

from wayfare.cli import identity, notation, running
from wayfare.cli.sub import tell_lost
from wayfare.errors import UsageError
from wayfare.net.client import connect
from wayfare.net.wanted import wanted_as

EXAMPLES = """examples:
  wayfare reply 127.0.0.1:7411 "service = 'parking'" free=3 place=A1
  wayfare reply 127.0.0.1:7411 "service = 'parking'" free=3 -C 10 --json     ten requests, then stop
  wayfare reply 127.0.0.1:7411 "service = 'parking'" free=3 --group desks    one member answers each

Each request is answered with these attributes, and printed. What matches the filter and is no request is not
answered, and not printed. Without -C it runs until Ctrl-C.
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "reply",
        help="answer requests",
        description="Subscribe to requests, and answer each with the same attributes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    identity.add_address(one)
    one.add_argument("filter", metavar="FILTER", help="of requests")
    one.add_argument("attributes", nargs="*", metavar="NAME=VALUE", help="of the reply")
    one.add_argument("--payload", default="", metavar="TEXT", help="of the reply, as UTF-8")
    one.add_argument("-C", "--count", type=running.count, metavar="N", help="stop after N requests")
    one.add_argument("--group", metavar="NAME", help="share requests in this queue group")
    one.add_argument("--json", action="store_true", help="requests as JSON, one a line")
    identity.add_options(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    wanted_as(arguments.filter)
    attributes = notation.attributes_of(" ".join(arguments.attributes))
    if not attributes and not arguments.payload:
        raise UsageError("nothing to reply: give attributes, like free=3, or --payload")
    running.start_log("error")
    for_ever = arguments.count is None
    return running.run(_reply(arguments, attributes), lambda: 0 if for_ever else 1)


async def _reply(a: argparse.Namespace, attributes: dict[str, Any]) -> int:
    show = notation.as_json if a.json else notation.as_text
    answered = 0
    async with connect(
        identity.addresses(a), probe=a.probe, on_lost=tell_lost, **identity.options(a)
    ) as client:
        requests = client.subscribe(a.filter, group=a.group)
        async with requests:
            await running.until_ready(requests)
            running.tell(f"answering {requests.filter} at {client.broker}")
            async for request in requests:
                if not request.is_request:
                    continue
                await request.reply(attributes, os.fsencode(a.payload))
                print(show(request), flush=True)
                answered += 1
                if answered == a.count:
                    break
    return 0
