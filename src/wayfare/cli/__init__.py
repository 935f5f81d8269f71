"""The command line: parsing arguments and wiring only.

Exit codes: 0 all is well, 1 a promise was broken (a violation, a failed check) or the output cannot be
written, 2 the command makes no sense, 130 stopped by Ctrl-C, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from wayfare.errors import WayfareError
from wayfare.net.logs import printable

EXAMPLES = """examples:
  wayfare demo                          a small network, readable at a glance
  wayfare network up city.toml          brokers on this machine, until Ctrl-C
  wayfare sub 127.0.0.1:7410 "free > 0" what is published, as it comes
  wayfare pub 127.0.0.1:7411 "free=3"   publish something at another broker
  wayfare request 127.0.0.1:7410 service=parking     ask, and print the reply
  wayfare thin 127.0.0.1:7410           devices that speak lines of JSON, beside a broker
  wayfare emulate --listen 7500 --to 127.0.0.1:7410   ... as over GPRS
  wayfare service proxy --access mqtt://127.0.0.1:1883    clients of other brokers move, too
  wayfare top city.toml                 what these brokers do, live
  wayfare sessions list --config site.toml      who is here, and who is away
  wayfare doctor --config site.toml     what is wrong, and what to do
  wayfare history city "kmh > 120"      what was published, of an archive
  wayfare sim                           the scenarios that come with Wayfare
  wayfare sim uncovering                play one of them
  wayfare sim fuzz --seeds 1000         random runs on all cores, judged by the oracle
  wayfare sim roaming                   what it costs that clients move
  wayfare study relocation --quick --out DIR    a whole study on Spark
  wayfare mine handovers.csv            where clients go next
  wayfare analyse run.parquet           what an event log says of its runs
  wayfare report DIR                    its report again, from what is in the folder
  wayfare bench matching --json         how fast matching is here
"""


# The modules of the commands, in the order of `--help`.
PARTS = (
    "demo",
    "broker",
    "pub",
    "sub",
    "request",
    "reply",
    "roam",
    "thin",
    "service",
    "emulate",
    "history",
    "top",
    "doctor",
    "config",
    "account",
    "sessions",
    "ban",
    "sim",
    "study",
    "mine",
    "analyse",
    "report",
    "bench",
    "completion",
)
# A command that is all there is to know about its own arguments does not wait for the others to
# be imported: who subscribes needs no simulator. `completion` lists them all.
ALONE = {part: part for part in PARTS if part != "completion"} | {"network": "broker"}
# `sim fuzz ...` has options of its own, so it is a command of its own to the parser.
BELOW_SIM = ("fuzz", "roaming", "city", "location", "blackout", "placement", "service")


def parser(command: str = "") -> argparse.ArgumentParser:
    """Of everything, or of this command if that is one."""
    out = argparse.ArgumentParser(
        prog="wayfare",
        description="Publish/subscribe for clients that move.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--version", action="version", version=f"wayfare {version('wayfare')}")
    commands = out.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for part in [ALONE[command]] if command in ALONE else PARTS:
        import_module(f"wayfare.cli.{part}").add_parser(commands)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    _prepare_output()
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            command = given[0] if given else ""
            arguments = parser(command).parse_args(as_subcommand(given))
            code: int = arguments.run(arguments)
        finally:
            sys.stdout.flush()  # here, also after --help, because at exit it is too late to handle
        return code
    except WayfareError as error:
        for line in str(error).splitlines():
            print(f"wayfare: {printable(line)}", file=sys.stderr)  # others may have part in it
        return 2
    except KeyboardInterrupt:
        print("wayfare: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough: that is nothing to complain about. But 0 would
        # say that every promise was kept, and the line that says otherwise may be among the unread.
        # So it is what a shell reports of other tools in that place: 128 + SIGPIPE.
        _give_up_output()
        return 141
    except OSError as error:
        # Other files, and processes, have sentences of their own; what is left is the output.
        _give_up_output()
        print(f"wayfare: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1


def as_subcommand(argv: list[str]) -> list[str]:
    if argv[:1] == ["sim"] and argv[1:2] and argv[1] in BELOW_SIM:
        return [f"sim-{argv[1]}", *argv[2:]]
    return argv


def _prepare_output() -> None:
    # Python has None for a stream that was closed before it started (`>&-`). Whoever closes one
    # wants the exit code only. As a file it also keeps its number from the next file opened.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # A `?` in place of a character that the terminal lacks is better than no output at all.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _give_up_output() -> None:
    """What is still in the buffer goes nowhere, or Python would complain once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
