"""`wayfare request`: ask from a shell, and print what is answered."""

from __future__ import annotations

import argparse
import os
from typing import Any

from wayfare.cli import identity, notation, running
from wayfare.errors import NoReply, NoResponders, UsageError
from wayfare.net.client import connect

EXAMPLES = """examples:
  wayfare request 127.0.0.1:7410 service=parking place=A1
  wayfare request 127.0.0.1:7410 service=parking place=A1 --timeout 2 --json
  wayfare request 127.0.0.1:7410 service=parking --all --timeout 1      every reply that comes in 1 s

The exit code is 1 if nobody answers in time, or nobody subscribes to such requests: stderr says which.
--timeout is for the connection, and for the reply. `wayfare reply` answers requests.
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "request",
        help="publish a request, and print the reply",
        description="Publish a request, wait for the first reply to it, and print that.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    identity.add_address(one)
    one.add_argument("attributes", nargs="+", metavar="NAME=VALUE")
    one.add_argument("--payload", default="", metavar="TEXT", help="what goes along, as UTF-8")
    one.add_argument("--all", action="store_true", help="every reply that comes in that time")
    one.add_argument("--json", action="store_true", help="one JSON object a line")
    identity.add_options(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    attributes = notation.attributes_of(" ".join(arguments.attributes))
    if not attributes:
        raise UsageError("nothing to ask: give attributes, like service=parking")
    running.start_log("error")
    return running.run(_request(arguments, attributes), lambda: 1)


async def _request(a: argparse.Namespace, attributes: dict[str, Any]) -> int:
    show = notation.as_json if a.json else notation.as_text
    came = 0
    # A request reaches all subscribers, also before the advertisement is confirmed; but only a confirmed one
    # is known to reach nobody.
    async with connect(identity.addresses(a), probe=a.probe, **identity.options(a)) as client:
        await client.advertise(notation.exactly(attributes))
        most = None if a.all else 1
        replies = client.requests(attributes, os.fsencode(a.payload), timeout=a.timeout, most=most)
        try:
            async for reply in replies:
                print(show(reply), flush=True)
                came += 1
            if not came:
                raise replies.failure()
        except (NoReply, NoResponders) as error:
            running.tell(str(error))
    return 0 if came else 1
