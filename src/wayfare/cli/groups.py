"""Commands that have commands of their own, like `wayfare account add`."""

from __future__ import annotations

import argparse
from typing import Any


class Group:
    """One such command; all of its commands end their help with the same examples."""

    def __init__(
        self, commands: Any, name: str, *, help: str, description: str, examples: str
    ) -> None:
        self._examples = examples
        parser = commands.add_parser(
            name,
            help=help,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._parts = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)

    def add(self, name: str, help: str, run: Any) -> argparse.ArgumentParser:
        """Add a command; its description is the help text as a sentence."""
        one: argparse.ArgumentParser = self._parts.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=self._examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(run=run)
        return one
