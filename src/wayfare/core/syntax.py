"""Text <-> conditions and filters."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from wayfare.core.conditions import Condition, Conjunction
from wayfare.core.predicates import Value


def parse(
    text: str, *, location: Collection[str] | None = None, state: Mapping[str, Value] | None = None
) -> Condition:
    """The condition that a text describes."""
    raise AssertionError("being written")


def text(conjunctions: tuple[Conjunction, ...]) -> str:
    """The text of a filter in normal form; parsing it gives an equal filter."""
    return repr(conjunctions)
