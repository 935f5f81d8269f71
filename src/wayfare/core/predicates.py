"""Predicates: what a filter says about one attribute.

Every predicate but `Missing` needs its attribute to be there, and every predicate on values speaks
of one kind of value: text (str), number (int and float, compared by value) or truth (bool). A value
of another kind does not satisfy it, whatever the operator: `x <> 5` is "a number other than 5".
So every predicate is a set of values of one kind, its negation is the rest of that kind, and
the algebra below is about sets:

    implies(q, p)    q's set lies within p's        sound, reflexive, transitive
    disjoint(p, q)   no value is in both            sound: never true when there is one
    unite(p, q)      one predicate for both sets    exact, or None

`implies` need not find every inclusion, but it has to be transitive: routing takes it for an order.
docs/filter-language.md says why each rule keeps that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from math import asin, cos, isfinite, radians, sin, sqrt
from typing import Any, Literal, final

import msgspec

from wayfare.core import patterns
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
# Distances carry rounding errors of some centimetres near the antipode; circles closer than
# this to touching count as touching in `disjoint` and as not included in `implies`.
DISTANCE_SLACK_M = 1.0
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


def _checked_text(text: str, longest: int) -> str:
    if len(text) > longest:
        raise FilterError(f"a text in a filter has at most {longest} characters")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise FilterError("a text with half a surrogate pair cannot be sent")
    return text


def checked_value(value: Value) -> Value:
    """The value, if a filter may contain it; whole floats become ints so that equals look equal."""
    if type(value) is str:
        return _checked_text(value, TEXT_MAX)
    if type(value) is float:
        if not isfinite(value):
            raise FilterError("NaN and infinities are not values")
        return int(value) if value.is_integer() and INT_MIN <= value <= INT_MAX else value
    if type(value) is int and not INT_MIN <= value <= INT_MAX:
        raise FilterError("an int has at most 64 bits")
    if type(value) not in KINDS:
        raise FilterError(f"a value is a str, int, float or bool, not {type(value).__name__}")
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
    return kinds.pop(), _sorted(distinct)


def _sorted(values: Iterable[Value]) -> tuple[Value, ...]:
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
    """Whether the attributes satisfy the predicate: the definition, unhurried."""
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


# Inclusion


def _common_prefix(a: str, b: str) -> str:
    end = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return min(a, b, key=len) if end is None else a[:end]


def _hull(p: Between) -> str:
    """The narrowest prefix pattern that holds all texts of a range."""
    if isinstance(p.low, str) and isinstance(p.high, str):
        return patterns.literal(_common_prefix(p.low, p.high)) + "%"
    return patterns.ANY


def _block_within(start: str, p: Between) -> bool:
    """Whether all texts that begin with `start` lie in the range."""
    low: Any = p.low
    high: Any = p.high
    return (low is None or low < start or (low == start and not p.low_open)) and (
        high is None or (high > start and not high.startswith(start))
    )


def _block_outside(start: str, p: Between) -> bool:
    """Whether no text that begins with `start` lies in the range."""
    low: Any = p.low
    high: Any = p.high
    return (high is not None and (high < start or (high == start and p.high_open))) or (
        low is not None and low > start and not low.startswith(start)
    )


def _low_within(q: Between, p: Between) -> bool:
    a: Any = q.low
    b: Any = p.low
    if b is None:
        return True
    return a is not None and (a > b or (a == b and (q.low_open or not p.low_open)))


def _high_within(q: Between, p: Between) -> bool:
    a: Any = q.high
    b: Any = p.high
    if b is None:
        return True
    return a is not None and (a < b or (a == b and (q.high_open or not p.high_open)))


def _one_of_one_of(q: OneOf, p: OneOf) -> bool:
    if q.kind != p.kind:
        return False
    if len(q.values) == 1:
        return q.values[0] in p.values
    return set(q.values).issubset(p.values)


def _all_admitted(q: OneOf, p: Valued) -> bool:
    if q.kind != kind_of(p):
        return False
    for value in q.values:  # noqa: SIM110  a loop takes half the time of `all`
        if not admits(p, value):
            return False
    return True


def _none_admitted(q: Valued, p: NoneOf) -> bool:
    return kind_of(q) == p.kind and not any(admits(q, value) for value in p.values)


def _between_like(q: Between, p: Like) -> bool:
    if q.kind != "text":
        return False
    if p.negated:
        return _block_outside(patterns.literal_prefix(p.pattern), q)
    return patterns.includes(p.pattern, _hull(q))


def _like_like(q: Like, p: Like) -> bool:
    if q.negated:
        if p.negated:
            return patterns.includes(q.pattern, p.pattern)
        return p.pattern == patterns.ANY
    if p.negated:
        return patterns.disjoint(q.pattern, p.pattern)
    return patterns.includes(p.pattern, q.pattern)


def _circle_within(q: Near, p: Near) -> bool:
    """Whether the circle of `q` lies within that of `p`, whatever is asked about them."""
    spare = p.metres - q.metres
    if spare < DISTANCE_SLACK_M:
        return spare == 0 and (q.lat, q.lon) == (p.lat, p.lon)
    return distance_m(q.lat, q.lon, p.lat, p.lon) + DISTANCE_SLACK_M <= spare


def _circles_apart(p: Near, q: Near) -> bool:
    distance = distance_m(p.lat, p.lon, q.lat, q.lon)
    return distance > p.metres + q.metres + DISTANCE_SLACK_M


def _near_near(q: Near, p: Near) -> bool:
    if q.negated:
        return p.negated and _circle_within(p, q)
    return _circles_apart(q, p) if p.negated else _circle_within(q, p)


_Rule = Callable[[Any, Any], bool]

_IMPLIES: dict[tuple[type, type], _Rule] = {
    (OneOf, OneOf): _one_of_one_of,
    (OneOf, NoneOf): _all_admitted,
    (OneOf, Between): _all_admitted,
    (OneOf, Like): _all_admitted,
    (NoneOf, NoneOf): _none_admitted,
    (Between, NoneOf): _none_admitted,
    (Like, NoneOf): _none_admitted,
    (NoneOf, Like): lambda q, p: q.kind == "text" and p.pattern == patterns.ANY,
    (Between, Between): lambda q, p: q.kind == p.kind and _low_within(q, p) and _high_within(q, p),
    (Between, Like): _between_like,
    (Like, Between): lambda q, p: (
        p.kind == "text" and not q.negated and _block_within(patterns.literal_prefix(q.pattern), p)
    ),
    (Like, Like): _like_like,
    (Near, Near): _near_near,
    **{(type_, Exists): lambda q, p: True for type_ in (OneOf, NoneOf, Between, Like, Near)},  # noqa: ARG005
}


def implies(q: Predicate, p: Predicate) -> bool:
    """Whether whatever satisfies `q` satisfies `p`; both look at the same attribute."""
    rule = _IMPLIES.get((type(q), type(p)))
    return q == p if rule is None else rule(q, p)


# Disjointness


def _points_apart(p: OneOf, q: OneOf) -> bool:
    if p.kind != q.kind:
        return True
    if len(p.values) == 1:
        return p.values[0] not in q.values
    return set(p.values).isdisjoint(q.values)


def _no_value_admitted(p: OneOf, q: Valued) -> bool:
    return p.kind != kind_of(q) or not any(admits(q, value) for value in p.values)


def _kinds_apart(p: Valued, q: Valued) -> bool:
    return kind_of(p) != kind_of(q)


def _no_number(p: Near, q: Valued) -> bool:  # noqa: ARG001
    """`near` needs two numbers: a text or truth at `lat` or `lon` contradicts it."""
    return kind_of(q) != "number"


def _ranges_apart(p: Between, q: Between) -> bool:
    return p.kind != q.kind or _below(p, q) or _below(q, p)


def _below(p: Between, q: Between) -> bool:
    high: Any = p.high
    low: Any = q.low
    if high is None or low is None:
        return False
    return bool(high < low or (high == low and (p.high_open or q.low_open)))


def _between_like_apart(p: Between, q: Like) -> bool:
    if p.kind != "text":
        return True
    if q.negated:
        return patterns.includes(q.pattern, _hull(p))
    return _block_outside(patterns.literal_prefix(q.pattern), p)


def _likes_apart(p: Like, q: Like) -> bool:
    if p.negated:
        return not q.negated and patterns.includes(p.pattern, q.pattern)
    if q.negated:
        return patterns.includes(q.pattern, p.pattern)
    return patterns.disjoint(p.pattern, q.pattern)


def _nears_apart(p: Near, q: Near) -> bool:
    if p.negated:
        return not q.negated and _circle_within(q, p)
    return _circle_within(p, q) if q.negated else _circles_apart(p, q)


# In one order of the two types; those that are not here share values.
_DISJOINT: dict[tuple[type, type], _Rule] = {
    (OneOf, OneOf): _points_apart,
    (OneOf, NoneOf): _no_value_admitted,
    (OneOf, Between): _no_value_admitted,
    (OneOf, Like): _no_value_admitted,
    (NoneOf, NoneOf): _kinds_apart,
    (NoneOf, Between): _kinds_apart,
    (NoneOf, Like): _kinds_apart,
    (Between, Between): _ranges_apart,
    (Between, Like): _between_like_apart,
    (Like, Like): _likes_apart,
    (Near, Near): _nears_apart,
    **{(Near, type_): _no_number for type_ in (OneOf, NoneOf, Between, Like)},
    **{
        (Missing, type_): lambda p, q: True  # noqa: ARG005
        for type_ in (OneOf, NoneOf, Between, Like, Near, Exists)
    },
}


def disjoint(p: Predicate, q: Predicate) -> bool:
    """True only if nothing satisfies both; both look at the same attribute."""
    rule = _DISJOINT.get((type(p), type(q)))
    if rule is not None:
        return rule(p, q)
    rule = _DISJOINT.get((type(q), type(p)))
    return rule is not None and rule(q, p)


# Union


def _join_ranges(p: Between, q: Between, gap: float) -> Predicate | None:
    """The range from the lower low to the higher high, if at most this share of it is new."""
    first, second = (p, q) if _low_within(q, p) else (q, p)
    low, low_open = first.low, first.low_open
    wide = first if _high_within(second, first) else second
    high, high_open = wide.high, wide.high_open
    if low is None and high is None:
        return None  # every value of the kind: there is no such predicate
    a: Any = first.high
    b: Any = second.low
    touching = (
        a is None or b is None or a > b or (a == b and not (first.high_open and second.low_open))
    )
    if not touching:
        if gap == 0 or p.kind != "number" or low is None or high is None:
            return None
        if _width(a, b) > Fraction(str(gap)) * _width(low, high):
            return None
    return between(p.name, low, high, low_open=low_open, high_open=high_open)


def _width(low: Any, high: Any) -> Fraction:
    """Exactly: the difference of two floats may overflow, that of large ints would be rounded."""
    return Fraction(high) - Fraction(low)


def _join_point(p: OneOf, q: Between) -> Predicate | None:
    """A range that takes in the single values at its open ends."""
    rest = [value for value in p.values if not admits(q, value)]
    low_open, high_open = q.low_open, q.high_open
    for value in rest:
        if q.low_open and value == q.low:
            low_open = False
        elif q.high_open and value == q.high:
            high_open = False
        else:
            return None
    return between(q.name, q.low, q.high, low_open=low_open, high_open=high_open)


def _without(p: NoneOf, values: Iterable[Value]) -> Predicate | None:
    gone = tuple(values)
    left = tuple(value for value in p.values if value not in gone)
    return NoneOf(p.name, p.kind, left) if left else None


def unite(p: Predicate, q: Predicate, gap: float = 0.0) -> Predicate | None:
    """One predicate that what satisfies `p` or `q` satisfies, and nothing else; or None.

    With `gap`, a range may also bridge a hole of at most this share of its width.
    """
    if implies(p, q):
        return q
    if implies(q, p):
        return p
    if kind_of(p) is None or kind_of(p) != kind_of(q):
        return None
    if type(p) is Between and type(q) is Between:
        return _join_ranges(p, q, gap)
    if type(p) is OneOf and type(q) is OneOf:
        values = _sorted([*p.values, *q.values])
        return OneOf(p.name, p.kind, values) if len(values) <= VALUES_MAX else None
    if type(p) is NoneOf and type(q) is NoneOf:
        return _without(p, [value for value in p.values if value not in q.values])
    if type(q) is OneOf:
        p, q = q, p
    if type(p) is OneOf and type(q) is Between:
        return _join_point(p, q)
    if type(p) is OneOf and type(q) is NoneOf:
        return _without(q, p.values)
    return None


# Intersection of what one conjunction says about one attribute


def _tighter(p: Between, q: Between) -> Predicate | None:
    low = p if _low_within(p, q) else q
    high = p if _high_within(p, q) else q
    return between(p.name, low.low, high.high, low_open=low.low_open, high_open=high.high_open)


def _intersection(ranges: list[Between]) -> Predicate | None:
    """Of ranges no two of which are apart: so a single value, once reached, is in all of them."""
    tight: Predicate | None = ranges[0]
    for p in ranges[1:]:
        if type(tight) is Between:
            tight = _tighter(tight, p)
    return tight


def _without_ends(p: Between, excluded: Collection[Value]) -> Predicate | None:
    """The range, open at the ends that are excluded: `>= 3 and <> 3` is `> 3`."""
    least = "" if p.low is None and p.kind == "text" else p.low
    return between(
        p.name,
        least,
        p.high,
        low_open=p.low_open or least in excluded,
        high_open=p.high_open or p.high in excluded,
    )


def conjoin(given: list[Predicate]) -> list[Predicate] | None:
    """The fewest predicates that say the same of one attribute; None if they contradict."""
    if any(disjoint(p, q) for i, p in enumerate(given) for q in given[:i]):
        return None
    ranges = [p for p in given if type(p) is Between]
    apart = [p for p in given if type(p) is NoneOf]
    others: list[Predicate] = [p for p in given if type(p) is not Between and type(p) is not NoneOf]
    excluded = {value for p in apart for value in p.values}
    if ranges:
        tight = _intersection(ranges)
        if type(tight) is Between:
            tight = _without_ends(tight, excluded)
        if tight is None or any(disjoint(tight, p) for p in others):
            return None
        others.append(tight)
    valued = [p for p in others if isinstance(p, Valued)]
    for p in others:
        if type(p) is OneOf:
            left = [v for v in p.values if v not in excluded and all(admits(q, v) for q in valued)]
            return [OneOf(p.name, p.kind, tuple(left))] if left else None
    still = [v for v in excluded if all(admits(q, v) for q in valued)]
    if len(still) > VALUES_MAX:
        raise FilterError(f"a filter excludes at most {VALUES_MAX} values of one attribute")
    if still:
        others.append(NoneOf(apart[0].name, apart[0].kind, _sorted(still)))
    return needed(others)


def needed(given: list[Predicate]) -> list[Predicate]:
    """Without what the others imply."""
    return [
        p
        for i, p in enumerate(given)
        if not any(
            implies(q, p) and (j < i or not implies(p, q)) for j, q in enumerate(given) if j != i
        )
    ]


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
