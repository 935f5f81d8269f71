"""Predicates as sets of values: what each one means, and what the algebra says of all pairs.

Everything here is exhaustive over a few hundred predicates on one attribute and the values at
and next to their constants: every pair, and every triple where an order is claimed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import combinations, product
from math import asin, atan2, cos, degrees, pi, radians, sin

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import strategies
from wayfare.core import algebra, patterns
from wayfare.core import predicates as ps
from wayfare.core.predicates import Predicate, Value
from wayfare.errors import FilterError

NUMBERS = (-1e308, -1, 0, 0.5, 1, 2, 2**62, 2**62 + 1, 1e308)
TEXTS = ("", "\x00", "a", "a\x00", "aa", "ab", "a%", "b")
PATTERNS = [
    patterns.canonical("".join(letters))
    for length in range(4)
    for letters in product("ab%_", repeat=length)
    if length < 3 or "%" in letters
]

MISSING = object()  # stands for "the attribute is not there" among the values
VALUES: list[object] = [
    *(MISSING, False, True),
    *(*NUMBERS, -2, -0.5, -0.0, 1.0, 0.25, 0.75, 1.5, 3, 2**62 - 1, 2**62 + 2, 2.0**62, 1.1e308),
    *("".join(letters) for n in range(4) for letters in product("ab%", repeat=n)),
    *("\x00", "\x00\x00", "a\x00", "a\x00\x00", "a\x00b", "\U0010ffff", "a\U0010ffff", "_", "c"),
]

Meaning = Callable[[Value], bool]


def kind(value: object) -> str:
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def described() -> list[tuple[Predicate | None, object, Meaning]]:
    """What the builders make of each description: the predicate, a value of its kind, the meaning."""
    found: list[tuple[Predicate | None, object, Meaning]] = []

    def add(p: Predicate | None, like: object, meaning: Meaning) -> None:
        found.append((p, like, meaning))

    for constants in (NUMBERS, TEXTS):
        for c in constants:
            add(ps.one_of("x", [c]), c, lambda v, c=c: v == c)
            add(ps.none_of("x", [c]), c, lambda v, c=c: v != c)
            add(ps.between("x", c), c, lambda v, c=c: v >= c)
            add(ps.between("x", c, low_open=True), c, lambda v, c=c: v > c)
            add(ps.between("x", None, c), c, lambda v, c=c: v <= c)
            add(ps.between("x", None, c, high_open=True), c, lambda v, c=c: v < c)
        for a, b in product(constants, repeat=2):
            add(ps.one_of("x", [a, b]), a, lambda v, a=a, b=b: v in (a, b))
            add(ps.none_of("x", [a, b]), a, lambda v, a=a, b=b: v not in (a, b))
            for low_open, high_open in product((False, True), repeat=2):
                above = operator.lt if low_open else operator.le
                below = operator.lt if high_open else operator.le
                add(
                    ps.between("x", a, b, low_open=low_open, high_open=high_open),
                    a,
                    lambda v, a=a, b=b, above=above, below=below: above(a, v) and below(v, b),
                )
    for pattern in PATTERNS:
        matches = patterns.matcher(pattern)  # its own tests are in test_patterns.py
        add(ps.like("x", pattern), "", matches)
        add(ps.like("x", pattern, negated=True), "", lambda v, m=matches: not m(v))
    for text in ("", "a", "%"):
        add(ps.prefix("x", text), "", lambda v, t=text: v.startswith(t))
        add(ps.suffix("x", text), "", lambda v, t=text: v.endswith(t))
        add(ps.contains("x", text), "", lambda v, t=text: t in v)
        add(ps.prefix("x", text, negated=True), "", lambda v, t=text: not v.startswith(t))
        add(ps.suffix("x", text, negated=True), "", lambda v, t=text: not v.endswith(t))
        add(ps.contains("x", text, negated=True), "", lambda v, t=text: t not in v)
    for truths in ([False], [True], [False, True]):
        add(ps.one_of("x", truths), True, lambda v, t=tuple(truths): v in t)
        add(ps.none_of("x", truths), True, lambda v, t=tuple(truths): v not in t)
    return found


def attributes(value: object) -> dict[str, Value]:
    return {} if value is MISSING else {"x": value}  # type: ignore[dict-item]


def satisfying(p: Predicate) -> int:
    """The values that satisfy the predicate, as the bits of a number."""
    return sum(1 << i for i, v in enumerate(VALUES) if ps.satisfied(p, attributes(v)))


DESCRIBED = described()
PREDICATES: list[Predicate] = [
    *dict.fromkeys(p for p, _, _ in DESCRIBED if p is not None),
    *(ps.Exists("x"), ps.Missing("x")),
]
SET = {p: satisfying(p) for p in PREDICATES}

CIRCLES = [
    ps.near(lat, lon, metres, negated=negated)
    for lat, lon in (
        (0, 0),
        (0, 0.5),
        (0, 1),
        (1, 0),
        (90, 0),
        (90, 77),
        (-90, 0),
        (0, 180),
        (0, -180),
    )
    for metres in (
        0,
        0.5,
        50_000,
        60_000,
        112_000,
        120_000,
        200_000,
        20_000_000,
        ps.NEAR_METRES_MAX,
    )
    for negated in (False, True)
]
POINTS = [
    {"lat": lat, "lon": lon}
    for lat in (-90, -89.9, -1, 0, 0.25, 0.45, 0.5, 1, 1.01, 89, 90)
    for lon in (-180, -179.9, 0, 0.25, 0.45, 0.5, 1, 1.01, 77, 179.9, 180)
]
CIRCLE_SET = {
    p: sum(1 << i for i, point in enumerate(POINTS) if ps.satisfied(p, point)) for p in CIRCLES
}


# Meaning


def test_the_builders_and_the_test_agree_with_the_description():
    for p, like, meaning in DESCRIBED:
        for value in VALUES:
            expected = value is not MISSING and kind(value) == kind(like) and meaning(value)
            assert (p is not None and ps.satisfied(p, attributes(value))) == expected, (p, value)


def test_exists_and_missing_do_not_look_at_the_value():
    for value in VALUES:
        assert ps.satisfied(ps.Exists("x"), attributes(value)) == (value is not MISSING)
        assert ps.satisfied(ps.Missing("x"), attributes(value)) == (value is MISSING)


def test_a_negation_is_the_rest_of_the_kind():
    texts = satisfying(ps.Like("x", "%"))
    negatable = [p for p in PREDICATES if type(p) is ps.Like and not p.negated and p.pattern != "%"]
    for p in negatable:
        rest = ps.like("x", p.pattern, escape="\\", negated=True)
        assert SET[rest] == texts & ~SET[p], p
        assert algebra.disjoint(p, rest), p
    for p in (p for p in PREDICATES if type(p) is ps.OneOf):
        rest = ps.none_of("x", p.values)
        if rest is not None:
            whole = SET[p] | SET[rest]
            assert whole == sum(1 << i for i, v in enumerate(VALUES) if _of_kind(v, p.kind)), p
            assert algebra.disjoint(p, rest), p
            assert SET[p] & SET[rest] == 0


def _of_kind(value: object, wanted: str) -> bool:
    return value is not MISSING and kind(value) == wanted


# Inclusion, disjointness, union


def test_inclusion_is_sound():
    for sets in (SET, CIRCLE_SET):
        for q, p in product(sets, repeat=2):
            if algebra.implies(q, p):
                assert sets[q] & ~sets[p] == 0, (q, p)


def test_inclusion_is_an_order():
    for sets in (SET, CIRCLE_SET):
        bit = {p: 1 << i for i, p in enumerate(sets)}
        above = {q: sum(bit[p] for p in sets if algebra.implies(q, p)) for q in sets}
        for q, p in product(sets, repeat=2):
            if p == q:
                assert above[q] & bit[q], f"not reflexive: {q}"
            elif above[q] & bit[p]:
                beyond = above[p] & ~above[q]
                assert not beyond, (q, p, [r for r in sets if bit[r] & beyond])
                assert not above[p] & bit[q], f"they imply each other: {p} {q}"


def test_disjoint_predicates_share_no_value():
    for sets in (SET, CIRCLE_SET):
        for p, q in product(sets, repeat=2):
            apart = algebra.disjoint(p, q)
            assert apart == algebra.disjoint(q, p), (p, q)
            if apart:
                assert sets[p] & sets[q] == 0, (p, q)


def test_unions_are_exact():
    for sets, domain in ((SET, PREDICATES), (CIRCLE_SET, CIRCLES)):
        for p, q in product(domain, repeat=2):
            united = algebra.unite(p, q)
            if united is not None:
                ps.check(united)
                meaning = sets[united] if united in sets else satisfying(united)
                assert meaning == sets[p] | sets[q], (p, q, united)
                assert algebra.implies(p, united), (p, q, united)
                assert algebra.implies(q, united), (p, q, united)


def test_conjunctions_are_exact():
    for p, q in combinations(PREDICATES, 2):
        both = algebra.conjoin([p, q])
        meaning = 0 if both is None else -1
        for r in both or []:
            ps.check(r)
            meaning &= SET[r] if r in SET else satisfying(r)
        assert meaning == SET[p] & SET[q], (p, q, both)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (ps.one_of("x", [1, 2]), ps.between("x", 0, 2)),
        (ps.one_of("x", ["ab"]), ps.like("x", "_b")),
        (ps.between("x", 1, 2), ps.none_of("x", [3, 4])),
        (ps.between("x", 1, 2, low_open=True), ps.none_of("x", [1])),
        (ps.between("x", "aa", "ab"), ps.prefix("x", "a")),
        (ps.prefix("x", "a"), ps.between("x", "a", "b", high_open=True)),
        (ps.prefix("x", "a"), ps.prefix("x", "b", negated=True)),
        (ps.contains("x", "a", negated=True), ps.prefix("x", "a", negated=True)),
        (ps.suffix("x", "a"), ps.none_of("x", [""])),
        (ps.none_of("x", ["a", "b"]), ps.none_of("x", ["a"])),
        (ps.near(0, 0, 100), ps.near(0, 0, 200)),
        (ps.near(0, 0, 100), ps.near(1, 0, 100, negated=True)),
        (ps.near(0, 0, 100, negated=True), ps.near(0, 0, 50, negated=True)),
    ],
)
def test_inclusions_that_are_found(narrow, wide):
    assert algebra.implies(narrow, wide)
    assert not algebra.implies(wide, narrow)


@pytest.mark.parametrize(
    ("p", "q", "united"),
    [
        (ps.between("x", 0, 1), ps.between("x", 1, 2), ps.between("x", 0, 2)),
        (ps.between("x", 0, 1), ps.between("x", 1, low_open=True), ps.between("x", 0)),
        (ps.between("x", 0, 1, high_open=True), ps.between("x", 1, 2, low_open=True), None),
        (ps.between("x", 0, 1), ps.between("x", 2, 3), None),
        (ps.between("x", high=1), ps.between("x", 0), None),  # any number: no such predicate
        (ps.between("x", 0, 1, low_open=True), ps.one_of("x", [0]), ps.between("x", 0, 1)),
        (ps.between("x", "", "b", low_open=True), ps.one_of("x", [""]), ps.between("x", high="b")),
        (ps.between("x", "", "b", low_open=True), ps.between("x", "a"), ps.none_of("x", [""])),
        (ps.one_of("x", [1]), ps.one_of("x", [2]), ps.one_of("x", [1, 2])),
        (ps.none_of("x", [1, 2]), ps.none_of("x", [2, 3]), ps.none_of("x", [2])),
        (ps.none_of("x", [1, 2]), ps.one_of("x", [1]), ps.none_of("x", [2])),
        (ps.none_of("x", [1]), ps.one_of("x", [1]), None),
        (ps.one_of("x", [1]), ps.one_of("x", ["a"]), None),
        (ps.near(0, 0, 100), ps.near(0, 0, 200), ps.near(0, 0, 200)),
        (ps.near(0, 0, 100), ps.near(0, 0.001, 100), None),
    ],
)
def test_unions(p, q, united):
    assert algebra.unite(p, q) == united
    assert algebra.unite(q, p) == united


def test_the_union_of_the_longest_lists_is_not_too_long():
    half = ps.VALUES_MAX // 2 + 1
    p, q = ps.one_of("x", range(half)), ps.one_of("x", range(half, 2 * half))
    assert algebra.unite(p, q) is None


def test_a_gap_is_a_share_of_the_whole_range():
    p, q = ps.between("x", 0, 3), ps.between("x", 6, 10)
    assert algebra.unite(p, q, gap=0.29) is None
    assert algebra.unite(p, q, gap=0.3) == ps.between("x", 0, 10)
    assert algebra.unite(p, ps.between("x", 6), gap=1.0) is None
    assert algebra.unite(ps.between("x", "a", "b"), ps.between("x", "c", "d"), gap=1.0) is None


# Circles on a sphere


def _destination(lat: float, lon: float, metres: float, bearing: float) -> dict[str, Value]:
    """The point at this distance and bearing: independent of how distances are measured."""
    angle, start = metres / ps.EARTH_RADIUS_M, radians(lat)
    end = asin(sin(start) * cos(angle) + cos(start) * sin(angle) * cos(bearing))
    turn = atan2(sin(bearing) * sin(angle) * cos(start), cos(angle) - sin(start) * sin(end))
    return {"lat": degrees(end), "lon": (lon + degrees(turn) + 540) % 360 - 180}


some_circles = st.builds(
    ps.near,
    st.sampled_from([-90, 0, 0.3, 45, 89.9, 90]) | st.floats(-90, 90),
    st.sampled_from([-180, 0, 0.3, 179.9, 180]) | st.floats(-180, 180),
    st.sampled_from([0, 0.5, 1, 2, 1000, 100_000, 20_015_000, 20_016_000])
    | st.floats(0, ps.NEAR_METRES_MAX),
    negated=st.booleans(),
)


@settings(max_examples=1000)
@given(some_circles, some_circles, st.floats(0, 6.28), st.sampled_from([0.5, 0.999, 1.0, 1.001]))
def test_what_is_said_of_circles_holds_at_their_rims(p, q, bearing, share):
    half_way_round = pi * ps.EARTH_RADIUS_M
    rims = [
        _destination(circle.lat, circle.lon, min(circle.metres * share, half_way_round), bearing)
        for circle in (p, q)
    ]
    for point in (*rims, {"lat": p.lat, "lon": p.lon}, {"lat": q.lat, "lon": q.lon}):
        in_p, in_q = ps.satisfied(p, point), ps.satisfied(q, point)
        if algebra.implies(p, q):
            assert in_q or not in_p, point
        if algebra.disjoint(p, q):
            assert not (in_p and in_q), point


@given(some_circles, st.floats(0, 6.28), st.floats(0, 2))
def test_near_measures_great_circles(p, bearing, share):
    metres = min(p.metres * share, pi * ps.EARTH_RADIUS_M)
    assume(abs(metres - p.metres) > 0.5)
    point = _destination(p.lat, p.lon, metres, bearing)
    assert ps.satisfied(p, point) == ((metres <= p.metres) != p.negated)


@pytest.mark.parametrize("lat", [None, "0", True, 91, -90.5, 1e308, 2**63 - 1])
def test_what_is_no_point_is_neither_near_nor_far(lat):
    point = {"lon": 0} if lat is None else {"lat": lat, "lon": 0}
    assert not ps.satisfied(ps.near(0, 0, 20_100_000), point)
    assert not ps.satisfied(ps.near(0, 0, 0, negated=True), point)


# Building


@given(strategies.predicates())
def test_what_was_built_is_accepted_from_the_wire(p):
    ps.check(p)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(p), type=Predicate) == p


@pytest.mark.parametrize(
    "p",
    [
        ps.OneOf("x", "number", ()),
        ps.OneOf("x", "number", (2, 1)),
        ps.OneOf("x", "number", (1, 1)),
        ps.OneOf("x", "number", (1.0,)),
        ps.OneOf("x", "number", (2.0**62,)),
        ps.OneOf("x", "number", (True,)),
        ps.OneOf("x", "text", (1,)),
        ps.OneOf("x", "number", (float("nan"),)),
        ps.OneOf("x", "number", (1, "a")),
        ps.OneOf("x", "number", tuple(range(ps.VALUES_MAX + 1))),
        ps.OneOf("", "number", (1,)),
        ps.OneOf("x" * (ps.NAME_MAX + 1), "number", (1,)),
        ps.OneOf("x", "text", ("a" * (ps.TEXT_MAX + 1),)),
        ps.NoneOf("x", "truth", (True,)),
        ps.Between("x", "number"),
        ps.Between("x", "number", 1, 1),
        ps.Between("x", "number", 2, 1),
        ps.Between("x", "number", 1, "a"),
        ps.Between("x", "text", "", "a"),
        ps.Between("x", "text", "a", ""),
        ps.Between("x", "text", "", None, True),
        ps.Between("x", "number", None, 1, True),
        ps.Between("x", "number", float("inf")),
        ps.Between("x", "truth", False, True),
        ps.Like("x", "%", True),
        ps.Like("x", "%%"),
        ps.Like("x", "a"),
        ps.Like("x", "a%\\"),
        ps.Like("x", "%" + "a" * ps.PATTERN_MAX),
        ps.Exists(""),
        ps.Missing(""),
        ps.Near(91.0, 0.0, 1.0),
        ps.Near(0.0, -181.0, 1.0),
        ps.Near(0.0, 0.0, -1.0),
        ps.Near(0.0, 0.0, ps.NEAR_METRES_MAX + 1),
        ps.Near(float("nan"), 0.0, 1.0),
        ps.Near(-0.0, 0.0, 1.0),
    ],
    ids=repr,
)
def test_what_could_not_have_been_built_is_refused_from_the_wire(p):
    with pytest.raises(FilterError):
        ps.check(p)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ps.one_of("x", []),
        lambda: ps.one_of("x", [1, "a"]),
        lambda: ps.one_of("x", [1, True]),
        lambda: ps.one_of("x", [None]),
        lambda: ps.one_of("x", [b"a"]),
        lambda: ps.one_of("x", [2**63]),
        lambda: ps.one_of("x", [float("inf")]),
        lambda: ps.one_of(1, [1]),
        lambda: ps.one_of("x", range(ps.VALUES_MAX + 1)),
        lambda: ps.between("x"),
        lambda: ps.between("x", 1, "a"),
        lambda: ps.between("x", True),
        lambda: ps.like("x", 1),
        lambda: ps.like("x", "a" * (ps.TEXT_MAX + 1)),
        lambda: ps.like("x", "a", escape=""),
        lambda: ps.prefix("x", 1),
        lambda: ps.prefix("x", "a" * (ps.TEXT_MAX + 1)),
        lambda: ps.near(0, 0, float("nan")),
        lambda: ps.near(0, "0", 1),
        lambda: ps.near(0, 0, True),
    ],
)
def test_what_a_filter_may_not_contain_is_refused(build):
    with pytest.raises(FilterError):
        build()


# One example for each mistake that these properties have found


def test_a_union_of_ranges_wider_than_the_largest_float_is_exact():
    """`high - low` is infinite, and no hole is wider than a share of that."""
    low, high = ps.between("x", -1e308, -9e307), ps.between("x", 9e307, 1e308)
    assert algebra.unite(low, high) is None
    assert algebra.unite(low, high, gap=0.5) is None
    assert algebra.unite(low, high, gap=0.95) == ps.between("x", -1e308, 1e308)


def test_whole_floats_of_any_size_look_like_ints():
    """`2.0**62 = 2**62`, so that the order within a filter must not tell them apart."""
    assert repr(ps.one_of("x", [2.0**62])) == repr(ps.one_of("x", [2**62]))
    assert repr(ps.between("x", -(2.0**63))) == repr(ps.between("x", -(2**63)))
    assert repr(ps.one_of("x", [2.0**63])) == repr(ps.OneOf("x", "number", (2.0**63,)))


@pytest.mark.parametrize("build", [ps.prefix, ps.suffix, ps.contains])
def test_the_longest_text_makes_a_pattern_that_the_wire_accepts(build):
    ps.check(build("x", "%" * ps.TEXT_MAX))
    ps.check(ps.like("x", "\\" * (ps.TEXT_MAX - 1) + "%"))


def test_near_refuses_an_int_that_is_no_float():
    with pytest.raises(FilterError):
        ps.near(0, 0, 10**400)


@pytest.mark.parametrize(
    "build",
    [
        lambda text: ps.one_of("x", [text]),
        lambda text: ps.one_of(text, [1]),
        lambda text: ps.between("x", text),
        lambda text: ps.like("x", text),
        lambda text: ps.prefix("x", text),
    ],
)
def test_a_text_that_cannot_be_sent_is_refused(build):
    with pytest.raises(FilterError):
        build("a\ud800")


@pytest.mark.parametrize("text", ["", "a", "é", "𝄞", "\ud7ff\ue000"])
def test_whole_characters_have_no_half(text):
    assert ps.half_surrogate(text) is None
    for half in ("\ud800", "\udbff", "\udc00", "\udfff"):
        assert ps.half_surrogate(text + half).start() == len(text)


def test_excluding_too_many_values_in_small_lists_is_refused():
    lists = [ps.none_of("x", range(i, i + 100)) for i in range(0, ps.VALUES_MAX, 100)]
    with pytest.raises(FilterError):
        algebra.conjoin(lists)
    assert algebra.conjoin([*lists, ps.between("x", 0, 10)]) is not None
