"""What applications want and offer, as they may write it: a text, or built by `attr` and `near`."""

from __future__ import annotations

from typing import NamedTuple

from wayfare.core.conditions import Condition
from wayfare.core.contradictions import parse, possible, where
from wayfare.core.filters import Filter
from wayfare.core.messages import Terms
from wayfare.core.templates import Template
from wayfare.errors import FilterError, UsageError
from wayfare.net.options import check_options

Wanted = str | Filter | Template | Condition


def wanted_as(given: Wanted) -> Filter | Template:
    """What is subscribed to: it may follow the client. FilterNeverMatches if nothing can match."""
    if isinstance(given, Filter | Template):
        return possible(given)
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


class Asked(NamedTuple):
    """A subscription as it was asked for."""

    wanted: Filter | Template
    terms: Terms | None
    since_ns: int


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1e9)


def asked(
    given: Wanted,
    *,
    last: int | None = None,
    younger: float | None = None,
    key: str | None = None,
    local: bool = False,
    since: float = 0.0,
    slow_publishers: float | None = None,
) -> Asked:
    """What is wanted, and how: see `Client.subscribe`."""
    check_options(last=last, younger=younger, key=key, local=local, since=since)
    check_options(slow_publishers=slow_publishers)
    terms = Terms(last, _ns(younger), key, local, _ns(slow_publishers))
    wanted = wanted_as(given)
    if isinstance(wanted, Template) and (local or since):
        raise UsageError(
            f"{wanted} follows the client, so leave out {'local' if local else 'since'}: it never"
            " stays behind, and what was kept where the client comes to is there by itself"
        )
    return Asked(wanted, terms if terms != Terms() else None, int(since * 1e9))
