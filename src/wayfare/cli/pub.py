"""`wayfare pub`: publish from a shell."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from itertools import count, islice
from typing import Any

from wayfare.cli import identity, notation, running
from wayfare.core.areas import area_of
from wayfare.core.filters import Filter
from wayfare.core.messages import Area
from wayfare.core.predicates import Value
from wayfare.errors import UsageError
from wayfare.net.client import connect
from wayfare.net.offer import Offer
from wayfare.net.wanted import offered_as

EXAMPLES = """examples:
  wayfare pub 127.0.0.1:7410 service=parking free=3
  wayfare pub 127.0.0.1:7410 "service=parking place='Praça 5' open=true" --payload "any text"
  wayfare pub 127.0.0.1:7410 kmh=92 --count 10 --every 0.5
  wayfare pub 127.0.0.1:7410 kmh=92 --every 0.5 --quench
  wayfare pub 127.0.0.1:7410 road=A1 free=3 --retain road   the current value of this road
  wayfare pub 127.0.0.1:7410 road=A1 --retain road --clear  it has none any more
  wayfare pub 127.0.0.1:7410 alarm=fire --lifetime 60       of no use after a minute
  wayfare pub 127.0.0.1:7410 alarm=fire --area R1,R2        of use at these locations only
  wayfare pub 127.0.0.1:7410 alarm=fire --near 52.52,13.38,500    ... within 500 m of there
  wayfare sub a.example "free > 0" --json | wayfare pub b.example --json

Values are numbers, true or false, and else texts; a text that looks like a number, or is NaN or inf,
is in single quotes. What is published is advertised first, and reaches all subscribers from the first
message on. Several addresses with commas between them are tried
one after the other. With --quench, each publication waits until somebody is interested; stderr says
so. The exit code is 0 when a broker has acknowledged everything, and else 1;
SIGTERM is the proper end of what has no other.
"""

Publication = tuple[dict[str, Value], bytes]


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "pub",
        help="publish",
        description="Publish, and wait until a broker has acknowledged it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    identity.add_address(one)
    one.add_argument("attributes", nargs="*", metavar="NAME=VALUE")
    one.add_argument("--payload", default="", metavar="TEXT", help="what goes along, as UTF-8")
    one.add_argument(
        "--json", action="store_true", help="publish lines of stdin: objects of attributes"
    )
    one.add_argument("--count", type=running.count, metavar="N", help="so many times")
    one.add_argument(
        "--every", type=running.seconds, metavar="SECONDS", help="again and again, so often"
    )
    one.add_argument(
        "--retain",
        action="append",
        default=[],
        metavar="NAME",
        help="keep it as the current value of this attribute's value, for later subscribers; may be repeated",
    )
    one.add_argument(
        "--clear", action="store_true", help="with --retain: from now on there is no current value"
    )
    one.add_argument(
        "--lifetime",
        type=running.seconds,
        metavar="SECONDS",
        help="how long it is of use: later nobody gets it, and no loss is reported (default: for ever)",
    )
    area = one.add_mutually_exclusive_group()
    area.add_argument(
        "--area",
        metavar="LOCATIONS",
        help="of use at these locations only, with commas between them: clients elsewhere do not get it",
    )
    area.add_argument(
        "--near", metavar="LAT,LON,METRES", help="of use in this circle only, likewise"
    )
    one.add_argument("--advertise", metavar="FILTER", help="this, instead of what is published")
    one.add_argument(
        "--quench", action="store_true", help="publish only while somebody is interested"
    )
    identity.add_options(one)
    identity.add_events(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    a = arguments
    if a.json and (a.attributes or a.payload or a.count or a.every is not None):
        raise UsageError("--json reads stdin: leave attributes, --payload, --count and --every")
    if not a.json and not a.attributes:
        raise UsageError("nothing to publish: give attributes, like free=3, or --json")
    if a.lifetime == 0:
        raise UsageError(
            "--lifetime is a number of seconds above 0; leave it out if it never expires"
        )
    if a.clear and a.lifetime is not None:
        raise UsageError("--clear leaves nothing that could expire: leave out --lifetime")
    if a.clear and (a.area or a.near):
        raise UsageError("--clear leaves nothing that could be of use: leave out --area and --near")
    if a.clear and not a.retain:
        raise UsageError("--clear needs the key: give --retain NAME, once or several times")
    offered = offered_as(a.advertise) if a.advertise else None
    given = notation.attributes_of(" ".join(a.attributes))
    what = _lines() if a.json else _repeated((given, os.fsencode(a.payload)), a.count, a.every)
    area = _area(a)
    running.start_log("error")
    for_ever = a.every is not None and a.count is None
    return running.run(_publish(a, what, offered, area), lambda: 0 if for_ever else 1)


def _area(a: argparse.Namespace) -> Area | None:
    if a.area is not None:
        return area_of([one.strip() for one in a.area.split(",")])
    if a.near is None:
        return None
    try:
        return area_of([float(one) for one in a.near.split(",")])
    except ValueError:
        raise UsageError(
            f"--near is a latitude, a longitude and metres, like 52.52,13.38,500, not {a.near!r:.60}"
        ) from None


async def _repeated(
    publication: Publication, times: int | None, every: float | None
) -> AsyncIterator[Publication]:
    """So many times; without a number once, or for ever."""
    for number in islice(count(), times or (1 if every is None else None)):
        if number and every:
            await asyncio.sleep(every)
        yield publication


async def _lines() -> AsyncIterator[Publication]:
    number = 0
    async for line in running.lines():
        number += 1
        if line.strip():
            yield notation.of_json(line, number)


async def _publish(
    a: argparse.Namespace,
    what: AsyncIterator[Publication],
    offered: Filter | None,
    area: Area | None,
) -> int:
    announced: dict[Filter, Offer | None] = {}
    similar = notation.alike if a.json else notation.exactly
    published = 0
    # What is published reaches all subscribers, also before the advertisement is confirmed.
    async with connect(
        identity.addresses(a), probe=a.probe, confirm=0, **identity.options(a)
    ) as client:
        try:
            async for attributes, payload in what:
                filter = offered or similar(attributes)
                if filter not in announced:
                    announced[filter] = client.offer(filter) if a.quench else None
                    if offer := announced[filter]:
                        await running.until_ready(offer)
                    else:
                        await client.advertise(filter)
                offer = announced[filter]
                if offer and not offer.wanted:
                    running.tell(f"nobody is interested in {filter}: waiting")
                    await offer.until_wanted()
                    running.tell(f"somebody is interested in {filter}: publishing")
                publish = partial(client.publish, expires=a.lifetime, area=area)
                say = client.clear if a.clear else publish
                async with asyncio.timeout(a.timeout):
                    await say(attributes, payload, retain=a.retain, confirm=not a.json)
                published += 1
            await client.flush(a.timeout)
        except TimeoutError:
            running.tell(f"no acknowledgement within {a.timeout:g} s: it may be lost")
            await client.close(0)
            return 1
    print(f"published {published}", flush=True)
    return 0
