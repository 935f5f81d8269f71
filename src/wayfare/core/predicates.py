"""Predicates: what a filter says about one attribute.

Every predicate but `Missing` needs its attribute to be there, and every predicate on values speaks
of one kind of value: text (str), number (int and float, compared by value) or truth (bool). A value
of another kind does not satisfy it, whatever the operator: `x <> 5` is "a number other than 5".
So every predicate is a set of values of one kind, and its negation is the rest of that kind.
algebra.py compares and combines them as sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import asin, cos, isfinite, radians, sin, sqrt
from typing import Any, Literal, final

import msgspec

from wayfare.core import patterns
from wayfare.core.values import described, hint_for, plain
from wayfare.errors import FilterError

Value = str | int | float | bool
Attributes = Mapping[str, Value]
Kind = Literal["text", "number", "truth"]
Test = Callable[[Attributes], bool]

KINDS: dict[type, Kind] = {str: "text", int: "number", float: "number", bool: "truth"}

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
NAME_MAX = 128  # characters of an attribute's name
TEXT_MAX = 1024  # characters of a text value in a filter
PATTERN_MAX = 2 * TEXT_MAX + 2  # ... of a canonical pattern: `contains`, with every one escaped
VALUES_MAX = 256  # values of one `in`, or excluded for one attribute

EARTH_RADIUS_M = 6_371_008.8
NEAR_METRES_MAX = 20_100_000.0  # half the way round the earth


@final
class OneOf(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """`=` and `in`. Invariant: values are sorted, distinct, of this kind, and at least one."""

    name: str
    kind: Kind
    values: tuple[Value, ...]


@final
class NoneOf(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """`<>` and `not in`. Invariant: as `OneOf`, and never of kind truth (`<> true` is `= false`)."""

    name: str
    kind: Kind
    values: tuple[Value, ...]


@final
class Between(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """`<  <=  >  >=  between`. Invariant: a bound is there, the lower one is less than the upper."""

    name: str
    kind: Kind
    low: str | int | float | None = None
    high: str | int | float | None = None
    low_open: bool = False
    high_open: bool = False


@final
class Like(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """`like prefix suffix contains` and their negations. Invariant: the pattern is canonical."""

    name: str
    pattern: str
    negated: bool = False


@final
class Exists(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """`exists`: the attribute is there, with any value."""

    name: str


@final
class Missing(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """`is null`: the attribute is not there."""

    name: str


@final
class Near(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """`near(lat, lon, metres)`: the attributes `lat` and `lon` are a point within that distance."""

    lat: float
    lon: float
    metres: float
    negated: bool = False

    @property
    def name(self) -> str:
        return "lat"


Valued = OneOf | NoneOf | Between | Like  # a set of values of one kind
Predicate = Valued | Exists | Missing | Near


def names(p: Predicate) -> tuple[str, ...]:
    """The attributes that the predicate looks at."""
    return ("lat", "lon") if type(p) is Near else (p.name,)


# Building: checked values in, one normal form out. `None` stands for "no value satisfies it".


def checked_name(name: str) -> str:
    if type(name) is not str or not 0 < len(name) <= NAME_MAX:
        raise FilterError(f"an attribute's name is a text of 1 to {NAME_MAX} characters")
    return _checked_text(name, NAME_MAX)


_SURROGATE = re.compile("[\ud800-\udfff]")


def half_surrogate(text: str) -> re.Match[str] | None:
    """Where there is half a character, which no text on the wire can hold."""
    return None if text.isascii() else _SURROGATE.search(text)


def _checked_text(text: str, longest: int) -> str:
    if len(text) > longest:
        raise FilterError(f"a text in a filter has at most {longest} characters")
    if half_surrogate(text):
        raise FilterError("a text with half a surrogate pair cannot be sent")
    return text


def checked_value(value: Value) -> Value:
    """The value, if a filter may contain it; whole floats become ints so that equals look equal."""
    value = plain(value)
    if type(value) is str:
        return _checked_text(value, TEXT_MAX)
    if type(value) is float:
        if not isfinite(value):
            raise FilterError("NaN and infinities are not values")
        return int(value) if value.is_integer() and INT_MIN <= value <= INT_MAX else value
    if type(value) is int and not INT_MIN <= value <= INT_MAX:
        raise FilterError("an int has at most 64 bits")
    if type(value) not in KINDS:
        raise FilterError(
            f"a value is a str, int, float or bool, not {described(value)}{hint_for(value)}"
        )
    return value


def _checked_values(values: Iterable[Value]) -> tuple[Kind, tuple[Value, ...]]:
    distinct = [checked_value(value) for value in values]
    kinds = {KINDS[type(value)] for value in distinct}
    if not distinct:
        raise FilterError("a list of values cannot be empty")
    if len(kinds) > 1:
        raise FilterError("the values of one list must be all texts, all numbers or all truths")
    if len(distinct) > VALUES_MAX:
        raise FilterError(f"a list has at most {VALUES_MAX} values")
    return kinds.pop(), sorted_values(distinct)


def sorted_values(values: Iterable[Value]) -> tuple[Value, ...]:
    """Distinct and in order; they are of one kind."""
    ordered: Any = set(values)
    return tuple(sorted(ordered))


def one_of(name: str, values: Iterable[Value]) -> OneOf:
    return OneOf(checked_name(name), *_checked_values(values))


def none_of(name: str, values: Iterable[Value]) -> OneOf | NoneOf | None:
    kind, given = _checked_values(values)
    if kind == "truth":
        rest = tuple(value for value in (False, True) if value not in given)
        return OneOf(checked_name(name), kind, rest) if rest else None
    return NoneOf(checked_name(name), kind, given)


def between(
    name: str,
    low: Value | None = None,
    high: Value | None = None,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> Predicate | None:
    checked_name(name)
    bottom: Any = None if low is None else checked_value(low)
    top: Any = None if high is None else checked_value(high)
    kinds = {KINDS[type(bound)] for bound in (bottom, top) if bound is not None}
    if len(kinds) != 1:
        raise FilterError("a range needs a bound, and both bounds of one kind")
    kind = kinds.pop()
    if kind == "truth":
        raise FilterError("true and false have no order: use = or <>")
    if bottom is not None and top is not None:
        if bottom > top or (bottom == top and (low_open or high_open)):
            return None
        if bottom == top:
            return OneOf(name, kind, (bottom,))
    # The empty text is the least of all texts: a bound there says less, or more, than a range.
    if top == "":
        return None if high_open else OneOf(name, kind, ("",))
    if bottom == "":
        if top is None:
            return NoneOf(name, kind, ("",)) if low_open else Like(name, patterns.ANY)
        if not low_open:
            bottom = None
    return Between(
        name, kind, bottom, top, bottom is not None and low_open, top is not None and high_open
    )


def like(
    name: str, pattern: str, *, escape: str | None = None, negated: bool = False
) -> Predicate | None:
    if type(pattern) is not str:
        raise FilterError(f"a pattern is a text, not {type(pattern).__name__}")
    if escape is not None and len(escape) != 1:
        raise FilterError("the escape of a pattern is one character")
    canonical = patterns.canonical(_checked_text(pattern, TEXT_MAX), escape)
    return _like(checked_name(name), canonical, negated)


def _like(name: str, pattern: str, negated: bool) -> Predicate | None:
    word, text = patterns.shape(pattern)
    _checked_text(text, TEXT_MAX)  # as it is printed, and so can be parsed
    if word == "=":
        return (NoneOf if negated else OneOf)(name, "text", (text,))
    if pattern == patterns.ANY and negated:
        return None
    return Like(name, pattern, negated)


def prefix(name: str, text: str, *, negated: bool = False) -> Predicate | None:
    return _affix(name, text, "", "%", negated)


def suffix(name: str, text: str, *, negated: bool = False) -> Predicate | None:
    return _affix(name, text, "%", "", negated)


def contains(name: str, text: str, *, negated: bool = False) -> Predicate | None:
    return _affix(name, text, "%", "%", negated)


def _affix(name: str, text: str, before: str, behind: str, negated: bool) -> Predicate | None:
    if type(text) is not str:
        raise FilterError(f"prefix, suffix and contains take a text, not {type(text).__name__}")
    _checked_text(text, TEXT_MAX)
    pattern = before + patterns.literal(text) + behind if text else patterns.ANY
    return _like(checked_name(name), pattern, negated)


def near(lat: float, lon: float, metres: float, *, negated: bool = False) -> Near:
    for number in (lat, lon, metres):
        if KINDS.get(type(number)) != "number":
            raise FilterError("near takes three numbers: latitude, longitude, metres")
    if not (-90 <= lat <= 90 and -180 <= lon <= 180 and 0 <= metres <= NEAR_METRES_MAX):
        raise FilterError(
            "near takes a latitude of -90 to 90, a longitude of -180 to 180"
            f" and 0 to {NEAR_METRES_MAX:.0f} metres"
        )
    return Near(float(lat) + 0.0, float(lon) + 0.0, float(metres) + 0.0, negated)


# Testing


def distance_m(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Great-circle distance by the haversine formula."""
    a = sin(radians(lat2 - lat1) / 2) ** 2
    b = sin(radians(lon2 - lon1) / 2) ** 2
    h = a + cos(radians(lat1)) * cos(radians(lat2)) * b
    return 2 * EARTH_RADIUS_M * asin(min(1.0, sqrt(h)))


def admits(p: Valued, value: Value) -> bool:
    """Whether a value, known to be of the predicate's kind, satisfies it."""
    if type(p) is OneOf:
        return value in p.values
    if type(p) is NoneOf:
        return value not in p.values
    v: Any = value  # what it can be compared with follows from its kind
    if type(p) is Like:
        return patterns.matcher(p.pattern)(v) != p.negated
    low, high = p.low, p.high
    return bool(
        (low is None or (v >= low and not (p.low_open and v == low)))
        and (high is None or (v <= high and not (p.high_open and v == high)))
    )


def kind_of(p: Predicate) -> Kind | None:
    """The kind of value that the predicate needs; None for `Exists`, `Missing` and `Near`."""
    if type(p) is Like:
        return "text"
    return None if type(p) is Exists or type(p) is Missing or type(p) is Near else p.kind


def satisfied(p: Predicate, attributes: Attributes) -> bool:
    """Whether the attributes satisfy the predicate: the definition, unhurried.

    Nobody checks again that the attributes could be published; filter-language.md says what holds
    of those that could not.
    """
    if type(p) is Missing:
        return p.name not in attributes
    if type(p) is Exists:
        return p.name in attributes
    if type(p) is Near:
        lat: Any = attributes.get("lat")
        lon: Any = attributes.get("lon")
        if KINDS.get(type(lat)) != "number" or KINDS.get(type(lon)) != "number":
            return False
        if not (-90 <= lat <= 90 and -180 <= lon <= 180):
            return False
        return (distance_m(p.lat, p.lon, lat, lon) <= p.metres) != p.negated
    value = attributes.get(p.name)
    return value is not None and KINDS.get(type(value)) == kind_of(p) and admits(p, value)


# Trust: predicates that came over the wire


def check(p: Predicate) -> None:
    """Raise FilterError unless the builders above would have made exactly this predicate."""
    # By their looks: `1.0` is equal to `1`, but the order within a filter depends on how it looks.
    if repr(_rebuilt(p)) != repr(p):
        raise FilterError(f"not a well-formed predicate: {p!r}")


def _rebuilt(p: Predicate) -> Predicate | None:
    if type(p) is OneOf:
        return one_of(p.name, p.values)
    if type(p) is NoneOf:
        return none_of(p.name, p.values)
    if type(p) is Between:
        return between(p.name, p.low, p.high, low_open=p.low_open, high_open=p.high_open)
    if type(p) is Like:
        pattern = patterns.canonical(_checked_text(p.pattern, PATTERN_MAX), escape="\\")
        return _like(checked_name(p.name), pattern, p.negated)
    if type(p) is Near:
        return near(p.lat, p.lon, p.metres, negated=p.negated)
    return type(p)(checked_name(p.name))
