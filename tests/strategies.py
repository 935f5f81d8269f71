"""Hypothesis strategies for values, attributes, predicates and filters.

The domains are small on purpose: a handful of names, numbers and texts that are all neighbours of
each other, so that matches, covers and overlaps happen often, and so do their near misses. Now and
then a value is wild: any text, any number that a filter may contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from wayfare.core import patterns
from wayfare.core import predicates as ps
from wayfare.core.filters import EVERYTHING, NOTHING, Filter
from wayfare.core.predicates import Attributes, Predicate, Value

NAMES = ("x", "y", "lat", "lon")

NUMBERS: tuple[int | float, ...] = (
    *(0, 1, 2, 3, -1, 0.5, -0.0, 1.0, 2.5),
    *(2**62, 2**62 + 1, 2.0**62, 2**53, 2**53 + 1, 2.0**53, 2.0**63, 2**63 - 1, -(2**63)),
    *(1e308, -1e308, 5e-324),
)
ALPHABET = "ab%_"
TEXTS = ("", "\x00", "a", "b", "a\x00", "ab", "aa", "%", "_", "\\", "a%", "abab", "\U0010ffff")
TRUTHS = (False, True)

LATITUDES = (0, 0.0, 0.5, 1, -90, 90, 89.5, 91)
LONGITUDES = (0, 0.5, 1, -180, 180, 179.5, 181)
METRES = (0, 0.5, 2, 50_000, 80_000, 120_000, 200_000, 20_000_000, ps.NEAR_METRES_MAX)


T = TypeVar("T")


def _any_of(*choices: SearchStrategy[T]) -> SearchStrategy[T]:
    """One of these, all equally likely: `st.one_of` gives more weight to choices with branches."""
    return st.sampled_from(choices).flatmap(lambda choice: choice)


def _mostly(
    common: SearchStrategy[T], rare: SearchStrategy[T], one_in: int = 12
) -> SearchStrategy[T]:
    return _any_of(*[common] * (one_in - 1), rare)


_wild_texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.just("ab" * 300)
_wild_numbers = st.integers(ps.INT_MIN, ps.INT_MAX) | st.floats(
    allow_nan=False, allow_infinity=False
)


def texts() -> SearchStrategy[str]:
    return st.sampled_from(TEXTS) | st.text(ALPHABET, max_size=4)


def numbers() -> SearchStrategy[int | float]:
    return st.sampled_from(NUMBERS)


def values() -> SearchStrategy[Value]:
    """A value of any kind, as a notification or a filter may contain it."""
    common = _any_of(numbers(), texts(), st.sampled_from(TRUTHS))
    return _mostly(common, _wild_texts | _wild_numbers)


def attributes() -> SearchStrategy[dict[str, Value]]:
    """The attributes of a notification; `lat` and `lon` are mostly a point."""
    return st.fixed_dictionaries(
        {},
        optional={
            "x": values(),
            "y": values(),
            "lat": _mostly(st.sampled_from(LATITUDES), values(), one_in=4),
            "lon": _mostly(st.sampled_from(LONGITUDES), values(), one_in=4),
        },
    )


# Predicates: None, where a builder finds that no value satisfies it, is drawn again.


def _one_or_more(name: str, given: SearchStrategy[Value]) -> SearchStrategy[Predicate | None]:
    some = st.lists(given, min_size=1, max_size=4)
    return st.builds(ps.one_of, st.just(name), some) | st.builds(ps.none_of, st.just(name), some)


def _ranges(name: str, bounds: SearchStrategy[Value]) -> SearchStrategy[Predicate | None]:
    def build(ends: list[Value], shape: str, low_open: bool, high_open: bool) -> Predicate | None:
        low, high = sorted(ends)  # type: ignore[type-var]
        if shape == "above":
            return ps.between(name, low, low_open=low_open)
        if shape == "below":
            return ps.between(name, high=high, high_open=high_open)
        return ps.between(name, low, high, low_open=low_open, high_open=high_open)

    shapes = st.sampled_from(["within", "within", "above", "below"])
    ends = st.lists(bounds, min_size=2, max_size=2)
    return st.builds(build, ends, shapes, st.booleans(), st.booleans())


def _likes(name: str) -> SearchStrategy[Predicate | None]:
    affix = st.sampled_from([ps.prefix, ps.suffix, ps.contains])
    return st.builds(
        lambda build, text, negated: build(name, text, negated=negated),
        affix,
        texts(),
        st.booleans(),
    ) | st.builds(
        lambda pattern, escape, negated: ps.like(name, pattern, escape=escape, negated=negated),
        st.text(ALPHABET + "\\", max_size=5),
        st.sampled_from([None, "\\", "b"]),
        st.booleans(),
    )


def circles() -> SearchStrategy[ps.Near]:
    return st.builds(
        lambda lat, lon, metres, negated: ps.near(lat, lon, metres, negated=negated),
        st.sampled_from([lat for lat in LATITUDES if abs(lat) <= 90]),
        st.sampled_from([lon for lon in LONGITUDES if abs(lon) <= 180]),
        st.sampled_from(METRES),
        st.booleans(),
    )


@cache
def predicates_on(name: str) -> SearchStrategy[Predicate]:
    """Predicates on this attribute; `near` counts as one on `lat` and on `lon`."""
    choices: list[SearchStrategy[Predicate | None]] = [
        _one_or_more(name, _mostly(numbers(), _wild_numbers)),
        _one_or_more(name, _mostly(texts(), _wild_texts)),
        _one_or_more(name, st.sampled_from(TRUTHS)),
        _ranges(name, numbers()),
        _ranges(name, numbers()),
        _ranges(name, texts()),
        _likes(name),
        _likes(name),
        st.sampled_from([ps.Exists(name), ps.Missing(name)]),
    ]
    if name in ("lat", "lon"):
        choices = [circles(), *choices[:1], *choices[3:5], choices[-1]]
    return _any_of(*choices).filter(lambda p: p is not None)  # type: ignore[return-value]


def predicates() -> SearchStrategy[Predicate]:
    """A well-formed predicate on any attribute."""
    return _any_of(*[predicates_on(name) for name in NAMES])


# Filters


def conjunctions() -> SearchStrategy[list[Predicate]]:
    """Predicates as `and` puts them together: in any order, redundant, contradictory."""
    crowded = [st.lists(predicates_on(name), min_size=2, max_size=4) for name in NAMES]
    return _any_of(*[st.lists(predicates(), min_size=1, max_size=4)] * 4, *crowded)


def part_filters() -> SearchStrategy[Filter]:
    """Filters of one conjunction, as routing uses them."""
    return conjunctions().map(_consistent)


def _consistent(conjunction: list[Predicate]) -> Filter:
    """As many of these predicates as do not contradict the ones before."""
    made = EVERYTHING
    for p in conjunction:
        tighter = Filter.of([[*made.conjunctions[0], p]])
        made = made if tighter == NOTHING else tighter
    return made


def filters() -> SearchStrategy[Filter]:
    """Filters in normal form, of no, one or several conjunctions."""
    one = part_filters()
    several = [st.tuples(*[one] * count).map(_either) for count in (2, 3)]
    return _any_of(st.sampled_from([NOTHING, EVERYTHING]), *[one] * 4, *several, *several)


def _either(given: Iterable[Filter]) -> Filter:
    return Filter.of([conjunction for one in given for conjunction in one.conjunctions])


# Attributes that tell filters apart: their own constants, and the nearest neighbours of these.


def _neighbours(value: Value) -> Iterator[Value]:
    yield value
    if isinstance(value, str):
        yield from (value + "\x00", value + "a", "a" + value, value[:-1], value[:-1] + "\U0010ffff")
    elif isinstance(value, bool):
        yield not value
    else:
        yield from (float(value), value - 1, value + 1, value - 0.25, value + 0.25)


def _instances(pattern: str) -> Iterator[str]:
    """Texts that match the pattern."""
    for one, many in (("a", ""), ("b", "a"), ("\x00", "ba"), ("%", "\U0010ffff")):
        yield "".join(
            one if token == patterns.tokens("_")[0] else many if len(token) > 1 else token
            for token in patterns.tokens(pattern)
        )


def telling_values(p: Predicate) -> Iterator[Value]:
    """Values at the borders of what satisfies the predicate, on both sides."""
    if isinstance(p, ps.OneOf | ps.NoneOf):
        for value in p.values:
            yield from _neighbours(value)
    elif isinstance(p, ps.Between):
        for bound in (p.low, p.high):
            if bound is not None:
                yield from _neighbours(bound)
    elif isinstance(p, ps.Like):
        for text in _instances(p.pattern):
            yield from _neighbours(text)
    elif not isinstance(p, ps.Near):
        yield from (0, "", False)


def telling_attributes(*given: Filter) -> SearchStrategy[dict[str, Value]]:
    """Attributes made of the constants of these filters, where they are most likely to differ."""
    found: dict[str, list[Value]] = {name: [] for name in NAMES}
    for p in _predicates_of(given):
        if isinstance(p, ps.Near):
            degrees = p.metres / 111_195
            found["lat"] += [p.lat, p.lat + degrees, p.lat - degrees * 0.99, p.lat + degrees * 1.01]
            found["lon"] += [p.lon, p.lon, p.lon + degrees * 0.5]
        else:
            found[p.name] += telling_values(p)
    return st.fixed_dictionaries(
        {name: st.sampled_from(there) for name, there in found.items() if there}
    ).flatmap(lambda full: st.sets(st.sampled_from(NAMES)).map(lambda gone: _without(full, gone)))


def _predicates_of(given: Iterable[Filter]) -> Iterator[Predicate]:
    for one in given:
        for conjunction in one.conjunctions:
            yield from conjunction


def _without(full: Attributes, gone: set[str]) -> dict[str, Value]:
    # Mostly keep everything: a missing attribute fails most predicates.
    return dict(full) if len(gone) < 3 else {k: v for k, v in full.items() if k not in gone}
