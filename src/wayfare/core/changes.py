"""How the values of a client's state change: what `my.<name>` may stand for soon.

    {"need": 1}                            a number, which changes by at most 1 at a time
    {"mode": ("walk", "bike", "car")}      one of these; it changes to one beside it

As the movement graph does for `myloc`, this says which values are at most q steps from the present one:

    reach(change, value, q)     a Span of numbers, or a list of values; the present one is among them

A value that changes otherwise than declared, or is none of the list, reaches only itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta

from wayfare.core.predicates import KINDS, NAME_MAX, VALUES_MAX, Value, checked_value
from wayfare.errors import FilterError

EVERYWHERE = 1_000_000  # steps
CHANGES_MAX = 32  # values of one client that are declared

Change = int | float | Annotated[tuple[Value, ...], Meta(max_length=VALUES_MAX)]
Changes = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=NAME_MAX)], Change],
    Meta(max_length=CHANGES_MAX),
]


class Span(msgspec.Struct, frozen=True):
    """All numbers from one to another; None: there is no bound."""

    low: int | float | None = None
    high: int | float | None = None


Possible = Span | tuple[Value, ...]


def check(changes: Mapping[str, Change]) -> None:
    """FilterError unless values can change like this."""
    if len(changes) > CHANGES_MAX:
        raise FilterError(
            f"changes are declared for at most {CHANGES_MAX} values, not {len(changes)}"
        )
    for name, change in changes.items():
        if isinstance(change, tuple):
            _check_list(name, change)
        elif KINDS.get(type(change)) != "number" or not (isfinite(change) and change > 0):
            raise FilterError(
                f"the changes of {name} are {change!r:.60}: give the largest step, a number above 0, or"
                " the values in their order"
            )


def _check_list(name: str, values: tuple[Value, ...]) -> None:
    if not 1 < len(values) <= VALUES_MAX:
        raise FilterError(
            f"the changes of {name} list {len(values)} values: give 2 to {VALUES_MAX}"
        )
    if len({_identity(checked_value(value)) for value in values}) < len(values):
        raise FilterError(f"the changes of {name} list a value twice: give each of them once")


def reach(change: Change, value: Value, steps: int) -> Possible:
    """What the value may be after at most so many steps."""
    if isinstance(change, tuple):
        return _along(change, value, steps)
    if isinstance(value, str | bool) or not isfinite(value) or steps <= 0:
        return (value,)
    if steps >= EVERYWHERE:
        return Span()
    low, high = value - steps * change, value + steps * change
    return Span(_bound(min(low, value)), _bound(max(high, value)))  # as floats are not exact


def _along(values: tuple[Value, ...], value: Value, steps: int) -> tuple[Value, ...]:
    known = list(map(_identity, values))
    if steps <= 0 or _identity(value) not in known:
        return (value,)
    at = known.index(_identity(value))
    return values[max(0, at - steps) : at + steps + 1]


def _identity(value: Value) -> tuple[bool, Value]:
    """`True` is not 1."""
    return type(value) is bool, value


def _bound(number: int | float) -> int | float | None:
    """None: a filter cannot contain such a number, so there is no bound."""
    try:
        bound = checked_value(number)
    except FilterError:
        return None
    assert not isinstance(bound, str)
    return bound


def characters(change: Change) -> int:
    """How long the texts of all possible values together may be in a filter."""
    return sum(len(str(value)) for value in change) if isinstance(change, tuple) else 0
