"""`wayfare report`: the report of a study, or of an analysed log, from the tables in its folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from wayfare.cli import jobs

EXAMPLES = """examples:
  wayfare report reloc            reloc/report.html and reloc/report.md, with reloc/figures
  wayfare report reloc --json     the files that were written
"""


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "report",
        help="the report of a study or of an analysed log, again",
        description="Write report.html, report.md and figures (SVG, PNG, and CSV with their data) from"
        " the tables that a study or an analysis has left in a folder. Nothing is simulated for it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="what --out was, of `wayfare study` or `wayfare analyse`",
    )
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    jobs.need_spark("report")
    from wayfare.pipeline import report

    written = [str(path) for path in report.write(arguments.folder)]
    print(json.dumps({"written": written}) if arguments.json else "\n".join(written))
    return 0
