"""Markers: words in a filter that stand for something of the client that has it.

    attr("location").one_of(myloc)    the set of locations where the client is
    attr("free") >= my.need           the value of `need` in the client's state

A predicate that mentions a marker is `Marked`, and is made when the client's values are known
(templates.py). `OPERATORS` makes it then, exactly as it makes at once what mentions none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, final

import msgspec

from wayfare.core import predicates as ps
from wayfare.core.predicates import NAME_MAX, VALUES_MAX, Predicate, Value
from wayfare.errors import FilterError


@final
class My(msgspec.Struct, frozen=True):
    """`my.<name>`: a value of the client's state."""

    name: str

    def __str__(self) -> str:
        return f"my.{self.name}"


@final
class Myloc(msgspec.Struct, frozen=True):
    """`myloc`: the locations where the client is, and the point, for `near`."""

    def __str__(self) -> str:
        return "myloc"


Marker = My | Myloc
Given = Value | My | Myloc  # what a predicate may compare with


class _State:
    """Makes the markers of the client's state: `my.need`, or `my["need"]`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> My:
        if name.startswith("__"):  # Python asks whether it can be copied, and the like
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> My:
        if not (isinstance(name, str) and len(name) <= NAME_MAX and _STATE_NAME.fullmatch(name)):
            raise FilterError(
                f"`my.` is followed by a name of 1 to {NAME_MAX} letters A-Z a-z, digits, _ . and $"
            )
        return My(name)


_STATE_NAME = re.compile(r"[A-Za-z0-9_.$]+")
my = _State()
myloc = Myloc()


@final
class Marked(msgspec.Struct, frozen=True):
    """A predicate to be. Invariant: of its values, as `predicate` orders them, one is a marker."""

    operator: str
    name: str
    values: tuple[Given, ...]

    @property
    def follows_location(self) -> bool:
        return any(type(value) is Myloc for value in self.values)


Clause = tuple[Predicate | Marked, ...]  # a conjunction before its markers are replaced

OPERATORS: dict[str, Callable[..., Predicate | None]] = {
    "in": lambda name, *values: ps.one_of(name, values),
    "not in": lambda name, *values: ps.none_of(name, values),
    "<": lambda name, value: ps.between(name, high=value, high_open=True),
    "<=": lambda name, value: ps.between(name, high=value),
    ">": lambda name, value: ps.between(name, value, low_open=True),
    ">=": lambda name, value: ps.between(name, value),
    "like": lambda name, pattern, escape=None: ps.like(name, pattern, escape=escape),
    "not like": lambda name, pattern, escape=None: ps.like(
        name, pattern, escape=escape, negated=True
    ),
    "prefix": ps.prefix,
    "not prefix": partial(ps.prefix, negated=True),
    "suffix": ps.suffix,
    "not suffix": partial(ps.suffix, negated=True),
    "contains": ps.contains,
    "not contains": partial(ps.contains, negated=True),
    "near": lambda _, lat, lon, metres: ps.near(lat, lon, metres),
    "not near": lambda _, lat, lon, metres: ps.near(lat, lon, metres, negated=True),
}


def predicate(operator: str, name: str, *values: Given) -> Predicate | Marked | None:
    """What the operator says of the attribute; None if no value satisfies it."""
    if not any(isinstance(value, Marker) for value in values):
        return OPERATORS[operator](name, *values)
    word = operator.removeprefix("not ")
    _check_myloc(word, values)
    arranged = _ARRANGED.get(word, _as_given)(ps.checked_name(name), values)
    return Marked(operator, name, arranged)


def markers(clauses: Iterable[Clause]) -> list[Marker]:
    """All markers that are mentioned, in order."""
    return [
        value
        for clause in clauses
        for p in clause
        if type(p) is Marked
        for value in p.values
        if isinstance(value, Marker)
    ]


def refusal(marker: Marker) -> str:
    """Why a filter cannot mention it."""
    return f"`{marker}` depends on the client: it can be used in the subscriptions of a client only"


def _check_myloc(word: str, values: tuple[Given, ...]) -> None:
    at = [i for i, value in enumerate(values) if type(value) is Myloc]
    if at and (word, at, len(values)) not in (("in", [0], 1), ("near", [0], 2)):
        raise FilterError(
            "`myloc` is a set of locations: it stands alone behind in, not in, = or <>,"
            " or in near(myloc, metres)"
        )


# What is known of the values is checked at once, and brought into one form.


def _as_given(_: str, values: tuple[Given, ...]) -> tuple[Given, ...]:
    return values


def _list(name: str, values: tuple[Given, ...]) -> tuple[Given, ...]:
    if len(values) > VALUES_MAX:
        raise FilterError(f"a list has at most {VALUES_MAX} values")
    open_ = sorted({value for value in values if isinstance(value, Marker)}, key=str)
    known = [value for value in values if not isinstance(value, Marker)]
    return (*open_, *(ps.one_of(name, known).values if known else ()))


def _pattern(name: str, values: tuple[Given, ...]) -> tuple[Given, ...]:
    for escape in values[1:]:
        ps.like(name, "", escape=escape if isinstance(escape, str) else "")
    return values


def _circle(_: str, values: tuple[Given, ...]) -> tuple[Given, ...]:
    numbers: list[Any] = []
    for value in values:
        numbers += (
            [value] if not isinstance(value, Marker) else [0] if type(value) is My else [0, 0]
        )
    ps.near(*numbers)
    return tuple(v if isinstance(v, Marker) else ps.checked_value(v) for v in values)


_ARRANGED = {"in": _list, "like": _pattern, "near": _circle}
