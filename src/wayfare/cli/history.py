"""`wayfare history`: a subscription in the past."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from wayfare.cli import jobs, notation, running
from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.predicates import INT_MAX, INT_MIN
from wayfare.errors import UsageError
from wayfare.net.logs import printable
from wayfare.net.subscription import Notification

EXAMPLES = """examples:
  wayfare history city --add anna.parquet logs/             what these event logs have of publications
  wayfare history city --add logs/ --by road                ... sorted by an attribute that filters name
  wayfare history city "service = 'parking' and free > 0"   all of them, the earliest first
  wayfare history city "kmh > 120" --since 2h               of the last two hours
  wayfare history city "exists(kmh)" --since 2026-03-29 --until 2026-03-30T06:00 --limit 10 --json
  wayfare history city "near(52.52, 13.4, 500)" --out found.jsonl
  wayfare history city "service = 'traffic'" --at R12       without what was of use elsewhere only

Times are in UTC: 2026-03-29, 2026-03-29T12:30, with another offset 2026-03-29T12:30+02:00, or ago: 90s, 15m,
2h, 7d, 2w. A log that is added again adds nothing. The language of filters: docs/filter-language.md.
"""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
RESULTS = (".jsonl", ".parquet")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "history",
        help="ask an archive for what was published",
        description="Print notifications of an archive that match a filter; or add some to it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("archive", metavar="ARCHIVE", help="a folder; --add makes it")
    one.add_argument("filter", metavar="FILTER", nargs="?")
    one.add_argument("--since", type=time_ns, metavar="TIME", help="from then on")
    one.add_argument("--until", type=time_ns, metavar="TIME", help="before then")
    one.add_argument("--limit", type=running.count, metavar="N", help="the first so many")
    one.add_argument(
        "--expired", action="store_true", help="also what has expired by --until, or by now"
    )
    one.add_argument(
        "--at",
        type=place,
        metavar="PLACE",
        help="only what is of use there: a location, or LATITUDE,LONGITUDE",
    )
    one.add_argument("--json", action="store_true", help="one JSON object a line")
    one.add_argument(
        "--out",
        metavar="FILE",
        help="write it there: lines of JSON (.jsonl), or Parquet (.parquet)",
    )
    one.add_argument(
        "--add", nargs="+", metavar="LOG", help="event logs, or folders of them, to add"
    )
    one.add_argument(
        "--by",
        metavar="NAME",
        action="append",
        help="with --add: the attribute by which a day is sorted, so that filters on it read"
        " little (default: the text that repeats most)",
    )
    jobs.add_options(one)
    one.set_defaults(run=run)


def time_ns(text: str) -> int:
    """A time of day, or how long ago, in nanoseconds since 1970."""
    ago = AGO.fullmatch(text)
    try:
        if ago:
            then = datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: float(ago[1])})
        else:
            then = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: give one like 2026-03-29, 2026-03-29T12:30 (UTC), or how long"
            " ago, like 90s, 15m, 2h, 7d, 2w"
        ) from None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    found = (then - EPOCH) // timedelta(microseconds=1) * 1000
    if not INT_MIN <= found <= INT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is too far away: times are from 1678 to 2262")
    return found


def place(text: str) -> m.State:
    """Where somebody is: a location, or a position."""
    parts = text.split(",")
    try:
        position = tuple(float(part) for part in parts)
    except ValueError:
        position = ()
    if len(position) == 2 and abs(position[0]) <= 90 and abs(position[1]) <= 180:
        return m.State("", position)
    if len(parts) == 1 and text:
        return m.State(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a place: give a location, like R12, or latitude and longitude in degrees, like 52.52,13.38"
    )


def run(arguments: argparse.Namespace) -> int:
    a = arguments
    if (a.filter is None) == (a.add is None):
        raise UsageError("give either a FILTER to ask for, or --add with event logs")
    if a.by and a.add is None:
        raise UsageError("--by says how --add sorts: it makes no sense without it")
    if a.since is not None and a.until is not None and a.since >= a.until:
        raise UsageError("--since has to be before --until")
    if a.out is not None and not a.out.endswith(RESULTS):
        raise UsageError(f"{a.out}: the name of a result ends in {' or '.join(RESULTS)}")
    wanted = None if a.filter is None else Filter.parse(a.filter)
    jobs.need_spark()
    from wayfare.pipeline.spark import start

    spark = start(a.master)
    return _add(spark, a) if wanted is None else _ask(spark, a, wanted)


def _add(spark: Any, a: argparse.Namespace) -> int:
    from wayfare.pipeline import archive, events

    count = archive.add(spark, a.archive, archive.published(events.read(spark, *a.add)), a.by)
    running.tell(f"{_many(count)} added to {a.archive}")
    return 0


def _ask(spark: Any, a: argparse.Namespace, wanted: Filter) -> int:
    from wayfare.pipeline import history

    found = history.past(
        spark, a.archive, wanted, a.since, a.until, a.limit, expired=a.expired, place=a.at
    )
    if a.out is None:
        count = _print(history.told(found, a.archive), sys.stdout, _as_json if a.json else _as_text)
    elif a.out.endswith(".parquet"):
        count = history.write(found, a.out)
    else:
        count = _write(history.told(found, a.archive), Path(a.out))
    if not count:
        running.tell(f"nothing was published that matches {wanted}")
    else:
        running.tell(_many(count) + (f" written to {a.out}" if a.out else ""))
    return 0


def _many(count: int) -> str:
    return "1 notification" if count == 1 else f"{count} notifications"


def _print(
    found: Iterable[tuple[int, m.Notification]],
    out: TextIO,
    show: Callable[[datetime, Notification], str],
) -> int:
    count = 0
    for time_ns, notification in found:
        time = EPOCH + timedelta(microseconds=time_ns // 1000)
        print(show(time, Notification(notification)), file=out)
        count += 1
    return count


def _write(found: Iterable[tuple[int, m.Notification]], path: Path) -> int:
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as out:
            count = _print(found, out, _as_json)
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return count


def _as_text(time: datetime, notification: Notification) -> str:
    day = f"{time:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return f"{day}  {printable(notification.publisher)}  {notation.as_text(notification)}"


def _as_json(time: datetime, notification: Notification) -> str:
    return json.dumps({"time": time.isoformat()} | notation.facts(notification))
