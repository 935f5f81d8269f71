"""The command line: parsing arguments and wiring only.

Exit codes: 0 all is well, 1 a promise was broken (a violation, a failed check), 2 the command makes no
sense, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from wayfare.cli import bench, demo, sim
from wayfare.errors import WayfareError

EXAMPLES = """examples:
  wayfare demo                          a small network, readable at a glance
  wayfare sim                           the scenarios that come with Wayfare
  wayfare sim uncovering                play one of them
  wayfare sim fuzz --seeds 1000         random runs on all cores, judged by the oracle
  wayfare bench matching --json         how fast matching is here
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="wayfare",
        description="Publish/subscribe for clients that move.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--version", action="version", version=f"wayfare {version('wayfare')}")
    commands = out.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for part in (demo, sim, bench):
        part.add_parser(commands)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(sim.as_subcommand(given))
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except WayfareError as error:
        print(f"wayfare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("wayfare: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; do not complain at exit either.
        sys.stderr.close()
        return 0
