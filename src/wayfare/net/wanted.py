"""What applications want and offer, as they may write it: a text, or built by `attr` and `near`."""

from __future__ import annotations

from wayfare.core.conditions import Condition
from wayfare.core.filters import Filter
from wayfare.core.templates import Template, parse, where
from wayfare.errors import FilterError

Wanted = str | Filter | Template | Condition


def wanted_as(given: Wanted) -> Filter | Template:
    """What is subscribed to: it may follow the client."""
    if isinstance(given, Filter | Template):
        return given
    if isinstance(given, Condition):
        return where(given)
    if not isinstance(given, str):
        raise FilterError(f"a filter is a text, or built by `attr` and `near`, not {given!r:.60}")
    return parse(given)


def offered_as(given: Wanted) -> Filter:
    """What is advertised: it follows nobody."""
    filter = wanted_as(given)
    if isinstance(filter, Template):
        raise FilterError(f"{filter} follows a client: it can be subscribed to, not advertised")
    return filter
