"""Hypothesis strategies for values, attributes, predicates and filters.

The domains are small on purpose: a handful of names, numbers and texts that are all neighbours of
each other, so that matches, covers and overlaps happen often, and so do their near misses. Now and
then a value is wild: any text, any number that a filter may contain. Predicates are drawn from
ready lists, which is much faster than to draw their parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations, product
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from wayfare.core import patterns
from wayfare.core import predicates as ps
from wayfare.core.filters import EVERYTHING, NOTHING, Filter
from wayfare.core.predicates import Attributes, Predicate, Value

NAMES = ("x", "y", "lat", "lon")

# In ascending order, as are the texts. Some are equal, but not of one type.
NUMBERS: tuple[int | float, ...] = (
    *(-1e308, -(2**63), -1, -0.0, 0, 5e-324, 0.5, 1, 1.0, 2, 2.5, 3, 2**53, 2.0**53, 2**53 + 1),
    *(2**62, 2.0**62, 2**62 + 1, 2**63 - 1, 2.0**63, 1e308),
)
BOUNDS = (-1e308, -0.0, 0.5, 1, 2, 3.0, 2**62, 2.0**62, 2**62 + 1, 1e308)
TEXTS = ("", "\x00", "%", "_", "\\", "a", "a\x00", "a%", "aa", "ab", "abab", "b", "\U0010ffff")
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


def values() -> SearchStrategy[Value]:
    """A value of any kind, as a notification or a filter may contain it."""
    common: list[SearchStrategy[Value]] = [
        st.sampled_from(NUMBERS),
        st.sampled_from(TEXTS),
        st.sampled_from(TRUTHS),
    ]
    return _any_of(*common * 3, st.text("ab%_", max_size=4), _wild_texts, _wild_numbers)


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


# Predicates


def _lists(name: str, given: Sequence[Value]) -> Iterator[Predicate | None]:
    for count in (1, 2):
        for some in combinations(given, count):
            yield ps.one_of(name, some)
            yield ps.none_of(name, some)


def _ranges(name: str, given: Sequence[Value]) -> Iterator[Predicate | None]:
    for bound, is_open in product(given, (False, True)):
        yield ps.between(name, bound, low_open=is_open)
        yield ps.between(name, high=bound, high_open=is_open)
    for (low, high), low_open, high_open in product(
        combinations(given, 2), (False, True), (False, True)
    ):
        yield ps.between(name, low, high, low_open=low_open, high_open=high_open)


def _likes(name: str) -> Iterator[Predicate | None]:
    spelled = ["".join(word) for n in range(4) for word in product("ab%_", repeat=n)]
    for pattern, negated in product([*spelled, "\\%%", "%\\_", "\\\\%", "a%b%a"], (False, True)):
        yield ps.like(name, pattern, escape="\\", negated=negated)


def _circles() -> Iterator[ps.Near]:
    lats = [lat for lat in LATITUDES if abs(lat) <= 90]
    lons = [lon for lon in LONGITUDES if abs(lon) <= 180]
    for lat, lon, metres, negated in product(lats, lons, METRES, (False, True)):
        yield ps.near(lat, lon, metres, negated=negated)


def _wild(name: str) -> SearchStrategy[Predicate | None]:
    some = st.lists(_wild_texts, min_size=1, max_size=3) | st.lists(
        _wild_numbers, min_size=1, max_size=3
    )
    return _any_of(
        st.builds(ps.one_of, st.just(name), some),
        st.builds(ps.none_of, st.just(name), some),
        st.builds(ps.between, st.just(name), _wild_texts | _wild_numbers),
        st.builds(ps.like, st.just(name), _wild_texts | st.text("ab%_\\", max_size=12)),
    )


@cache
def ready_predicates(name: str) -> list[list[Predicate]]:
    """Lists of predicates on this attribute, by sort; `near` counts as one on `lat` and `lon`."""
    if name in ("lat", "lon"):
        degrees = [*_lists(name, LATITUDES), *_ranges(name, LATITUDES)]
        sorts = [degrees, [*_circles()]]
    else:
        sorts = [
            *([*_lists(name, NUMBERS)], [*_ranges(name, BOUNDS)]),
            *([*_lists(name, TEXTS)], [*_ranges(name, TEXTS)], [*_likes(name)]),
            [*_lists(name, TRUTHS)],
        ]
    sorts.append([ps.Exists(name), ps.Missing(name)])
    return [[p for p in sort if p is not None] for sort in sorts]


@cache
def predicates_on(name: str) -> SearchStrategy[Predicate]:
    """Predicates on this attribute, now and then a wild one."""
    ready = [st.sampled_from(sort) for sort in ready_predicates(name)]
    return _any_of(*ready, *ready, _wild(name).filter(lambda p: p is not None))


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
            one if token == patterns.ONE else many if token == patterns.MANY else token
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
