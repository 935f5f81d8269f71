"""What applications want and offer, as they may write it: a text, or built by `attr` and `near`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wayfare.core.conditions import Condition
from wayfare.core.contradictions import parse, possible, where
from wayfare.core.filters import Filter
from wayfare.core.messages import Nullify, Terms
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


def _nullifying(given: Wanted) -> Filter:
    filter = wanted_as(given)
    if isinstance(filter, Template):
        raise FilterError(f"{filter} follows a client: nullify with a filter that does not")
    return filter


class Asked(NamedTuple):
    """A subscription as it was asked for."""

    wanted: Filter | Template
    terms: Terms | None
    since_ns: int


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1e9)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _key(given: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """A single name is a text: earlier releases know nothing else."""
    names = () if given is None else _names(given)
    return names[0] if len(names) == 1 else names or None


def asked(
    given: Wanted,
    *,
    last: int | None = None,
    younger: float | None = None,
    key: str | Sequence[str] | None = None,
    nullify: Wanted | None = None,
    same: str | Sequence[str] = (),
    local: bool = False,
    since: float = 0.0,
    slow_publishers: float | None = None,
) -> Asked:
    """What is wanted, and how: see `Client.subscribe`."""
    check_options(last=last, younger=younger, key=key, local=local, since=since)
    check_options(slow_publishers=slow_publishers, same=same or None)
    if same and nullify is None:
        raise UsageError("same names attributes for nullify: give both, or leave out same")
    nullified = None if nullify is None else Nullify(_nullifying(nullify), _names(same))
    terms = Terms(last, _ns(younger), _key(key), local, _ns(slow_publishers), nullified)
    wanted = wanted_as(given)
    if isinstance(wanted, Template) and local:
        raise UsageError(f"{wanted} follows the client, so leave out local: it never stays behind")
    return Asked(wanted, terms if terms != Terms() else None, int(since * 1e9))
