"""`wayfare analyse`: what an event log says of its runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from wayfare.cli import follow, jobs, running
from wayfare.errors import PipelineError, UsageError

EXAMPLES = """examples:
  wayfare analyse run.parquet                   what was lost, came twice, took how long
  wayfare analyse sweep/events --out results    all runs of a folder; the tables as Parquet
  wayfare analyse anna.jsonl ben.jsonl          the logs of live clients, as one run
  wayfare analyse logs --run monday --json      ... which is called monday; for a program to read
  wayfare analyse --follow 127.0.0.1:7410       ... while it happens: what clients tell (--events)
"""

SHORT_BYTES = 50_000_000  # of logs that are analysed in seconds
SHOWN_MAX = 20  # runs that are printed; --json and --out have all of them


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "analyse",
        help="what event logs say: losses, duplicates, order, delays, moves, control messages",
        description="Read event logs, simulated or live, on Spark, and say for every run what was lost,"
        " came twice or out of order, how long it took, and what brokers said for it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("logs", nargs="*", metavar="LOG", help="a file (.parquet, .jsonl) or a folder")
    one.add_argument(
        "--run",
        dest="name",
        metavar="NAME",
        help="all of it is one run, called so (default: runs as they are named in the log; logs of"
        " live clients, which have a client's name each, are one run, called live)",
    )
    one.add_argument("--out", type=Path, metavar="DIR", help="write all tables there, as Parquet")
    one.add_argument("--json", action="store_true", help="print one JSON object for each run")
    jobs.add_options(one)
    follow.add_options(one)
    one.add_argument(
        "--late",
        type=running.seconds,
        metavar="SECONDS",
        help="with --follow: what has not come by then is lost (default 600)",
    )
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if bool(arguments.logs) == (arguments.follow is not None):
        raise UsageError("name event logs, or a broker with --follow, and not both")
    if arguments.follow is not None:
        return _follow(arguments)
    if arguments.out is not None and arguments.out.exists() and not arguments.out.is_dir():
        raise UsageError(f"--out {arguments.out}: that is a file; name a folder")
    jobs.need_spark()
    from wayfare.pipeline import events, spark
    from wayfare.pipeline.analyse import SETTINGS, analyse, write

    with Console(stderr=True).status("starting Spark ...") as status:
        short = spark.SHORT if jobs.size(arguments.logs) < SHORT_BYTES else {}
        session = spark.start(arguments.master, **SETTINGS, **short)
        status.update("reading the log ...")
        log = events.read(session, *arguments.logs)
        with spark.explained("the log cannot be analysed"):
            if log.isEmpty():
                raise PipelineError(f"{', '.join(arguments.logs)}: the log is empty")
            log = events.one_run(log, arguments.name)
            with analyse(log, lambda doing: status.update(f"{doing} ...")) as analysis:
                runs = [row.asDict() for row in analysis.tables["runs"].orderBy("run").collect()]
                if arguments.out is not None:
                    status.update(f"writing {arguments.out} ...")
                    write(analysis, arguments.out)
    show(runs, as_json=arguments.json)
    return 0


def _follow(arguments: argparse.Namespace) -> int:
    if arguments.out is not None:
        raise UsageError("--follow writes no tables: leave --out, or give --keep to go on later")

    def job(log: Any, folder: Path, tell: follow.Tell) -> Any:
        from wayfare.pipeline.running import LATE_S, analyse_stream

        def show(found: Any) -> None:
            rows = [row.asDict() for row in found.orderBy("run").collect()]
            tell(rows if arguments.json else [_row(one) for one in rows])

        late_s = LATE_S if arguments.late is None else arguments.late
        return analyse_stream(log, folder, late_s, show)

    return follow.follow(arguments, job, arguments.name)


def _row(f: dict[str, Any]) -> dict[str, Any]:
    """Of a run that is going on."""
    return {
        "run": f["run"],
        **{name: f[name] for name in ("published", "expected", "delivered", "lost", "awaited")},
        "twice": f["duplicates"],
        "out of order": f["order_violations"],
        "extra": f["extra"],
        **{f"{one} ms": f[f"delay_{one}_ms"] for one in ("p50", "p99")},
    }


def show(runs: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for one in runs:
            print(json.dumps(one))
        return
    for one in runs[:SHOWN_MAX]:
        _show(one)
    if len(runs) > SHOWN_MAX:
        print(f"(+{len(runs) - SHOWN_MAX} more runs: see --json, --out)")


def _show(f: dict[str, Any]) -> None:
    rows = [
        ("published", f["published"]),
        ("deliveries", f"{f['delivered']} of {f['expected']} expected; {f['extra']} beside them"),
        ("... of the past", f["past"]),
        ("lost", f"{f['lost']}; clients were told of a gap {f['gaps']} times"),
        ("twice", f["duplicates"]),
        ("out of order", f["order_violations"]),
        ("delay", _times(f, "delay", "p50", "p90", "p99", "max")),
        ("moves", f["moves"] if f["hops"] is None else f"{f['moves']}, over {f['hops']} hops"),
        ("first one after a move", _times(f, "first", "p50", "p99")),
        ("first live one", _times(f, "live", "p50", "p99")),
        ("... never came", f"in {f['moves_without_live']} stays"),
        ("control messages", f["control"]),
        ("... between replicators", f["posted"]),
        ("notifications", f"{f['notifications']} between brokers, {f['tunnelled']} tunnelled"),
        ("updates", f"{f['updates']}, with {f['entries']} entries"),
    ]
    if f["subs_mean"] is not None:
        rows += [
            ("subscription tables", f"{f['subs_mean']:.1f} entries, {f['subs_max']} at most"),
            ("advertisement tables", f"{f['ads_mean']:.1f} entries, {f['ads_max']} at most"),
        ]
    table = Table(box=box.SIMPLE, show_header=False)
    for what, figure in rows:
        table.add_row(what, str(figure))
    console = Console()
    with console.capture() as drawn:  # to `print`: on a broken pipe rich would exit by itself
        console.print(table)
    print(f["run"] or "(a run without a name)")
    print("\n".join(line.rstrip() for line in drawn.get().rstrip().splitlines()))


def _times(f: dict[str, Any], what: str, *which: str) -> str:
    if f[f"{what}_{which[0]}_ms"] is None:
        return "-"
    return ", ".join(f"{one} {f[f'{what}_{one}_ms']:.1f} ms" for one in which)
