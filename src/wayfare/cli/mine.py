"""`wayfare mine`: where clients go next, learnt from a log of where they went."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from wayfare.cli import follow, jobs, models, running
from wayfare.cli.bench import draw
from wayfare.core.prediction import JOURNEY_NS, Movement
from wayfare.errors import UsageError

if TYPE_CHECKING:
    from wayfare.pipeline.mine import Report

EXAMPLES = """examples:
  wayfare mine handovers.csv                            how well its end follows from its beginning
  wayfare mine run.parquet --out model.json             ... of an event log; and the model
  wayfare sim city --algorithm prefetching --model model.json   what that is good for
  wayfare mine taxis.parquet --columns time=at,from=from_broker,to=to_broker
  wayfare mine handovers.csv --dwell 120 --per-client --json
  wayfare mine handovers.csv --online                   ... and how brokers do that learn by themselves
  wayfare mine --follow 127.0.0.1:7410 --out model.json   what clients tell (--events), while they move

A log has a row for each handover: client, time (seconds, or a date), from, to. Without `from`, it is where the
client was before. Of an event log, .jsonl or .parquet, the attachments are taken.
"""
SECOND_NS = 10**9


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "mine",
        help="where clients go next, from a log of where they went",
        description="Learn from a handover log where clients go next: test a model of the first 70 % of"
        " the time on the rest, and write one of all of it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "log", nargs="?", metavar="LOG", help=".csv, .parquet or .jsonl, or a folder of Parquet"
    )
    one.add_argument("--out", type=Path, metavar="FILE", help="write the model there, as JSON")
    one.add_argument(
        "--coverage",
        type=float,
        default=0.95,
        metavar="SHARE",
        help="of the moves from a broker, by its set of next brokers (default 0.95)",
    )
    one.add_argument(
        "--order",
        type=int,
        choices=(1, 2),
        default=2,
        help="1: by the broker; 2: and by the one before it, as far as that was seen (default 2)",
    )
    one.add_argument(
        "--dwell",
        type=running.seconds,
        default=0.0,
        metavar="SECONDS",
        help="who goes from a to b and back to a sooner has stayed at a (default 0: keep all)",
    )
    one.add_argument(
        "--journey",
        type=running.seconds,
        default=JOURNEY_NS / SECOND_NS,
        metavar="SECONDS",
        help="who stays longer has no broker before it any more"
        f" (default {JOURNEY_NS / SECOND_NS:g})",
    )
    one.add_argument("--per-client", action="store_true", help="learn the ways of each client, too")
    one.add_argument(
        "--online",
        action="store_true",
        help="also play the log, move by move, to brokers that learn by themselves",
    )
    jobs.add_columns(one)
    one.add_argument(
        "--json", action="store_true", help="print one JSON object; with --follow, again and again"
    )
    jobs.add_options(one)
    follow.add_options(one)
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    a = arguments
    if a.out is not None and not a.out.parent.is_dir():
        raise UsageError(f"--out {a.out}: there is no folder {a.out.parent}")
    if (a.log is None) == (a.follow is None):
        raise UsageError("name a log, or a broker with --follow, and not both")
    if a.follow is not None:
        return _follow(a)
    jobs.need_spark()
    from wayfare.pipeline import mine
    from wayfare.pipeline.spark import start

    plan = mine.Plan(
        coverage=a.coverage,
        order=a.order,
        dwell_ns=int(a.dwell * SECOND_NS),
        journey_ns=int(a.journey * SECOND_NS),
        per_client=a.per_client,
        online=a.online,
    )
    with Console(stderr=True).status(f"mining {a.log} ..."):
        model, report = mine.mine(mine.read(start(a.master), a.log, a.columns), plan, a.log)
    if a.out is not None:
        models.write(a.out, model)
    if a.json:
        print(json.dumps(msgspec.to_builtins(report, str_keys=True)))
    else:
        _show(report, a.out)
    return 0


def _follow(a: argparse.Namespace) -> int:
    if a.dwell or a.per_client or a.online or a.columns:
        raise UsageError("--follow goes without --dwell, --per-client, --online and --columns")

    def job(log: Any, folder: Path, tell: follow.Tell) -> Any:
        from wayfare.pipeline.mine import mine_stream

        def show(model: Movement) -> None:
            if a.out is not None:
                models.write(a.out, model)
            tell([_facts(model, a.coverage)])

        return mine_stream(log, folder, a.order, int(a.journey * SECOND_NS), show)

    return follow.follow(a, job)


def _facts(model: Movement, coverage: float) -> dict[str, Any]:
    """Of a model that grows."""
    brokers = sorted({broker for one in model.moves for broker in (one.broker, one.to)})
    sizes = [len(model.successors(one, coverage)) for one in brokers]
    return {
        "moves": sum(one.count for one in model.moves),
        "brokers": len(brokers),
        "set_size": round(sum(sizes) / len(sizes), 2)
        if sizes
        else None,  # of next ones, on average
    }


def _show(report: Report, out: Path | None) -> None:
    r, width = report, get_terminal_size().columns
    bounces = "" if r.bounces is None else f", {r.bounces} of them in bounces"
    print(
        f"{r.handovers} handovers of {r.clients} clients between {r.brokers} brokers:"
        f" {r.moves} moves{bounces}\n\nThe next broker is among the 1, 3, 5 likeliest:\n"
    )
    rows = [
        {"learnt from": one.learnt_from, "tested on": one.tested_on}
        | {"moves": one.moves, "order": one.order, "per client": _yes(one.per_client)}
        | {f"top-{number}": f"{share:.3f}" for number, share in one.top.items()}
        for one in r.predictions
    ]
    print(draw(rows, width))
    print("\nThe next broker is in the set of its broker (order 2: and of the one before):\n")
    sets = [
        {"learnt from": one.learnt_from, "tested on": one.tested_on}
        | {"order": one.order, "per client": _yes(one.per_client)}
        | {"wanted": f"{one.coverage:g}", "by": one.sized, "covered": f"{one.covered:.4f}"}
        | {"size, mean of brokers": f"{one.mean_per_broker:.2f}"}
        | {"size, mean of moves": f"{one.mean_per_move:.2f}", "largest": one.largest}
        for one in r.sets
    ]
    print(draw(sets, width))
    if r.online:
        print("\nThe next broker was expected by its broker, which learns while clients move:\n")
        online = [
            {"begun with": one.begun_with, "order": one.order, "per client": _yes(one.per_client)}
            | {"wanted": f"{one.coverage:g}", "covered": f"{one.covered:.4f}"}
            | {"least of a broker": f"{one.least_covered:.4f}"}
            | {"size, mean of moves": f"{one.mean_per_move:.2f}", "largest": one.largest}
            for one in r.online
        ]
        print(draw(online, width))
    if out is not None:
        print(f"\n{out}: the model of all moves, {os.path.getsize(out):,} bytes")


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
