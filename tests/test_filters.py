"""The algebra of filters: normal form, matching, covering, overlap, merging, identity."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import product
from math import inf, nan
from random import Random

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import strategies
import wayfare
from strategies import (
    attributes,
    conjunctions,
    filters,
    part_filters,
    ready_predicates,
    telling_attributes,
    telling_values,
)
from wayfare.core import algebra
from wayfare.core import predicates as ps
from wayfare.core.conditions import CONJUNCTIONS_MAX, TERMS_MAX, Condition, Constant, attr, near
from wayfare.core.filters import EVERYTHING, NOTHING, Filter, checked
from wayfare.core.predicates import Attributes, Predicate, Value
from wayfare.errors import FilterError

raw_filters = st.lists(conjunctions(), max_size=3)


def meant(conjunctions_: list[list[Predicate]], notification: Attributes) -> bool:
    """The definition: some conjunction, all of whose predicates are satisfied."""
    return any(all(ps.satisfied(p, notification) for p in one) for one in conjunctions_)


def some_attributes(*given_: Filter) -> st.SearchStrategy[dict[str, Value]]:
    """Mostly what is likely to tell these filters apart, sometimes anything."""
    telling = telling_attributes(*given_)
    return st.sampled_from([telling, telling, telling, attributes()]).flatmap(lambda one: one)


def several(data: st.DataObject, *given_: Filter, count: int = 4) -> list[dict[str, Value]]:
    return data.draw(st.lists(some_attributes(*given_), min_size=count, max_size=count))


# Normal form


@settings(max_examples=300)
@given(raw_filters, st.data())
def test_the_normal_form_means_what_was_given(raw, data):
    made = Filter.of(raw)
    bare = [Filter((tuple(one),)) for one in raw]
    for notification in several(data, *bare):
        expected = meant(raw, notification)
        assert meant(made.conjunctions, notification) == expected
        assert made.matches(notification) == expected


@settings(max_examples=400)
@given(raw_filters, st.data())
def test_the_normal_form_does_not_depend_on_the_order(raw, data):
    other = data.draw(st.permutations([data.draw(st.permutations(one)) for one in raw]))
    assert repr(Filter.of(raw)) == repr(Filter.of(other))


@settings(max_examples=300)
@given(raw_filters)
def test_the_normal_form_stays(raw):
    made = Filter.of(raw)
    assert repr(Filter.of(made.conjunctions)) == repr(made)
    assert checked(made) is made


@settings(max_examples=400)
@given(conjunctions(), conjunctions())
def test_a_conjunction_can_be_built_in_steps(one, two):
    for first in Filter.of([one]).conjunctions:
        assert Filter.of([[*first, *two]]) == Filter.of([[*one, *two]])


@settings(max_examples=200)
@given(filters(), st.data())
def test_the_parts_are_the_conjunctions(f, data):
    assert all(len(part.conjunctions) == 1 for part in f.parts())
    assert all(checked(part) == part for part in f.parts())
    for notification in several(data, f):
        assert f.matches(notification) == any(part.matches(notification) for part in f.parts())


# Covering


@settings(max_examples=100)
@given(filters(), filters(), st.data())
def test_what_covers_matches_all_that_the_other_matches(wide, narrow, data):
    assume(wide.covers(narrow))
    for notification in several(data, wide, narrow):
        assert wide.matches(notification) or not narrow.matches(notification)


@settings(max_examples=200)
@given(filters())
def test_every_filter_covers_itself_its_parts_and_nothing(f):
    assert f.covers(f)
    assert f.covers(NOTHING)
    assert EVERYTHING.covers(f)
    assert all(f.covers(part) for part in f.parts())
    assert not NOTHING.covers(f) or f == NOTHING


@settings(max_examples=200)
@given(st.lists(filters(), min_size=3, max_size=8))
def test_covering_is_transitive(given_):
    for a, b, c in product(given_, repeat=3):
        if a.covers(b) and b.covers(c):
            assert a.covers(c), (a, b, c)


def _wider(f: Filter, data: st.DataObject) -> Filter:
    """A filter that matches at least as much, made by one step that a reader finds obvious."""
    if f == NOTHING:
        return data.draw(part_filters())
    out = [list(one) for one in f.conjunctions]
    at = data.draw(st.integers(0, len(out) - 1))
    step = data.draw(st.sampled_from(["drop", "widen", "add"]))
    if step == "add" or not out[at]:
        return Filter.of([*out, *data.draw(part_filters()).conjunctions])
    i = data.draw(st.integers(0, len(out[at]) - 1))
    p = out[at][i]
    if step == "drop":
        del out[at][i]
    else:
        other = data.draw(strategies.predicates_on(p.name))
        if ps.names(other) == ps.names(p):
            out[at][i] = algebra.unite(p, other, gap=0.5) or p
    return Filter.of(out)


@settings(max_examples=500)
@given(filters(), st.data())
def test_covering_finds_and_chains_obvious_steps(f, data):
    g = _wider(f, data)
    h = _wider(g, data)
    assert g.covers(f), (g, f)
    assert h.covers(g), (h, g)
    assert h.covers(f), (h, g, f)


@settings(max_examples=200)
@given(filters(), filters())
def test_filters_that_cover_each_other_are_equal(f, g):
    if f.covers(g) and g.covers(f):
        assert f == g


# Overlap


@settings(max_examples=300)
@given(filters(), filters(), st.data())
def test_filters_that_match_the_same_notification_overlap(f, g, data):
    assert f.overlaps(g) == g.overlaps(f)
    if not f.overlaps(g):
        for notification in several(data, f, g, count=8):
            assert not (f.matches(notification) and g.matches(notification)), notification


@settings(max_examples=200)
@given(filters(), filters())
def test_a_filter_overlaps_what_it_covers(f, g):
    assert f.overlaps(f) == (f != NOTHING)
    if f.covers(g) and g != NOTHING:
        assert f.overlaps(g)


# Merging


@settings(max_examples=200)
@given(filters(), filters(), st.data())
def test_a_perfect_merge_matches_what_both_match_and_nothing_else(f, g, data):
    merged = f.merge(g)
    assume(merged is not None)
    assert checked(merged) is merged
    assert merged.covers(f), merged
    assert merged.covers(g), merged
    assert len(merged.conjunctions) <= max(len(f.conjunctions), len(g.conjunctions))
    for notification in several(data, f, g, merged):
        wanted = f.matches(notification) or g.matches(notification)
        assert merged.matches(notification) == wanted, merged


@settings(max_examples=200)
@given(filters(), filters(), st.sampled_from([0.01, 0.5, 1.0]))
def test_an_imperfect_merge_covers_both(f, g, imperfection):
    merged = f.merge(g, imperfection)
    assume(merged is not None)
    assert checked(merged) is merged
    assert merged.covers(f), merged
    assert merged.covers(g), merged


ranges = st.sampled_from(
    [p for p in ready_predicates("x")[1] if type(p) is ps.Between and None not in (p.low, p.high)]
)


@settings(max_examples=200)
@given(ranges, ranges, st.lists(strategies.predicates_on("y"), max_size=2), st.data())
def test_an_imperfect_merge_adds_no_more_than_a_small_hole(p, q, common, data):
    imperfection = data.draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
    f, g = Filter.of([[p, *common]]), Filter.of([[q, *common]])
    merged = f.merge(g, imperfection)
    assume(merged is not None)
    first, second = sorted([p, q], key=lambda p: (p.low, p.low_open))
    width = Fraction(max(p.high, q.high)) - Fraction(min(p.low, q.low))
    hole = Fraction(second.low) - Fraction(first.high)
    for notification in several(data, f, g, merged, count=8):
        if f.matches(notification) or g.matches(notification):
            assert merged.matches(notification)
        elif merged.matches(notification):
            assert first.high <= notification["x"] <= second.low
            assert hole <= Fraction(imperfection) * width
            assert imperfection > 0


# In bulk: filters and their meaning as a set, over a fixed population of notifications


class World:
    """Notifications, and predicates to speak about them. A set of notifications is a bit mask."""

    def __init__(self, population: list[dict[str, Value]], sorts: list[list[Predicate]]) -> None:
        self.random = Random(4)
        self.population = population
        self.sorts = sorts
        self.masks: dict[str, int] = {}

    def conjunction(self) -> list[Predicate]:
        # From one sort or two, so that predicates often speak of the same attribute.
        sorts = self.random.choices(self.sorts, k=2)
        return [
            self.random.choice(self.random.choice(sorts))
            for _ in range(self.random.choice([1, 2, 2, 3, 4]))
        ]

    def raw(self) -> list[list[Predicate]]:
        return [self.conjunction() for _ in range(self.random.choice([1, 1, 1, 2, 3]))]

    def filters(self, count: int) -> list[Filter]:
        made: dict[Filter, None] = {EVERYTHING: None, NOTHING: None}
        while len(made) < count:
            made[Filter.of(self.raw())] = None
        return list(made)

    def satisfying(self, p: Predicate) -> int:
        key = repr(p)
        if key not in self.masks:
            told = (ps.satisfied(p, notification) for notification in self.population)
            self.masks[key] = sum(1 << i for i, yes in enumerate(told) if yes)
        return self.masks[key]

    def meaning(self, conjunctions_: Iterable[Iterable[Predicate]]) -> int:
        whole = 0
        for one in conjunctions_:
            part = (1 << len(self.population)) - 1
            for p in one:
                part &= self.satisfying(p)
            whole |= part
        return whole


def _plain() -> World:
    numbers, ranges_, texts, text_ranges, likes, truths, presence = ready_predicates("x")
    pick = Random(3).sample
    sorts = [
        *(pick(numbers, 60), pick(ranges_, 60), pick(texts, 60), pick(text_ranges, 60)),
        *(pick(likes, 90), truths, presence),
    ]
    found = [value for sort in sorts for p in sort for value in telling_values(p)]
    xs = list({repr(value): value for value in found}.values())
    sorts.append([ps.between("y", 0), ps.none_of("y", [1]), ps.one_of("y", [1]), ps.Missing("y")])
    return World([{"x": x, **y} for x in xs for y in ({}, {"y": 0}, {"y": 1})], sorts)


def _places() -> World:
    lats, circles, presence = ready_predicates("lat")
    lons, _, more_presence = ready_predicates("lon")
    pick = Random(3).sample
    sorts = [pick(circles, 120), pick(lats, 40), pick(lons, 40), presence + more_presence]
    lat_values = [*strategies.LATITUDES, 0.25, 0.3, 1.1, 1.9, 45, -89.9, "a", True]
    lon_values = [*strategies.LONGITUDES, 0.25, 0.3, 1.1, 1.9, 45, -179.9, "a", True]
    lat_choices = [{}, *({"lat": lat} for lat in lat_values)]
    lon_choices = [{}, *({"lon": lon} for lon in lon_values)]
    return World([{**lat, **lon} for lat in lat_choices for lon in lon_choices], sorts)


@pytest.fixture(scope="module", params=[_plain, _places], ids=["plain", "places"])
def world(request: pytest.FixtureRequest) -> World:
    return request.param()


def test_bulk_normal_forms(world):
    for _ in range(6000):
        raw = world.raw()
        made = Filter.of(raw)
        assert world.meaning(made.conjunctions) == world.meaning(raw), (raw, made)
        assert repr(Filter.of(made.conjunctions)) == repr(made), (raw, made)
        shuffled = [world.random.sample(one, len(one)) for one in raw]
        world.random.shuffle(shuffled)
        assert repr(Filter.of(shuffled)) == repr(made), (raw, shuffled)
        assert checked(made) is made


def test_bulk_covers_and_overlaps(world):
    given_ = world.filters(500)
    meaning = [world.meaning(f.conjunctions) for f in given_]
    covering = [0] * len(given_)  # by which others each one is covered
    for i, f in enumerate(given_):
        for j, g in enumerate(given_):
            if g.covers(f):
                covering[i] |= 1 << j
                assert meaning[i] & ~meaning[j] == 0, (f, g)
            overlap = f.overlaps(g)
            assert overlap or meaning[i] & meaning[j] == 0, (f, g)
            assert j > i or overlap == g.overlaps(f), (f, g)
    for i, f in enumerate(given_):
        assert covering[i] & 1 << i, f
        for j, g in enumerate(given_):
            if covering[i] & 1 << j:
                beyond = covering[j] & ~covering[i]
                assert not beyond, (f, g, given_[beyond.bit_length() - 1])
                assert i == j or not covering[j] & 1 << i, ("cover each other", f, g)


def test_bulk_merges(world):
    given_ = world.filters(150)
    for f, g in product(given_, repeat=2):
        merged = f.merge(g)
        if merged is not None:
            both = world.meaning(f.conjunctions) | world.meaning(g.conjunctions)
            assert world.meaning(merged.conjunctions) == both, (f, g, merged)
        for one in (merged, f.merge(g, 0.5)):
            if one is not None:
                assert one.covers(f), (f, g, one)
                assert one.covers(g), (f, g, one)
                assert len(one.conjunctions) <= max(len(f.conjunctions), len(g.conjunctions))
                assert checked(one) is one


# Identity


def test_a_truth_is_not_a_number():
    assert Filter.where(attr("x") == True) != Filter.where(attr("x") == 1)  # noqa: E712
    assert Filter.where(attr("x") == 1) == Filter.where(attr("x") == 1.0)
    assert hash(Filter.where(attr("x") == 1)) == hash(Filter.where(attr("x") == 1.0))
    assert Filter.where(attr("x") == 0) == Filter.where(attr("x") == -0.0)


@settings(max_examples=300)
@given(filters())
def test_a_filter_survives_the_wire(f):
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(f), type=Filter)
    assert back == f
    assert hash(back) == hash(f)
    assert repr(back) == repr(f)
    assert checked(back) is back


@settings(max_examples=300)
@given(filters(), filters())
def test_equal_filters_have_equal_hashes_and_look_equal(f, g):
    assert (f == g) == (repr(f) == repr(g))
    assert f != g or hash(f) == hash(g)


# What has to be found: soundness alone would be content with "no"


def where(condition: Condition) -> Filter:
    return Filter.where(condition)


PARKING = (attr("service") == "parking") & (attr("free") > 0)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (attr("x") > 3, attr("x") >= 4),
        (attr("x") > 3, (attr("x") > 4) & (attr("y") == 1)),
        (attr("x").exists(), attr("x").prefix("a")),
        (attr("lat").exists() & attr("lon").exists(), near(1, 1, 100)),
        (near(0, 0, 1000), near(0, 0, 100) & (attr("x") == 1)),
        (PARKING, PARKING & near(1, 1, 100)),
        (attr("x").one_of(1, 2), attr("x") == 1),
        (~attr("x").one_of(1, 20), (attr("x") > 1) & (attr("x") != 20)),
        (
            (attr("x") == 1) | (attr("y") > 1),
            (attr("y") > 2) | ((attr("x") == 1) & (attr("y") == 0)),
        ),
        (attr("x") == 1, Constant(False)),
    ],
)
def test_covers_that_are_found(wide, narrow):
    assert where(wide).covers(where(narrow))
    assert not where(narrow).covers(where(wide))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (attr("x") > 3, attr("x") < 3),
        (attr("x") > 3, attr("x") == 3),
        (attr("x") == 1, attr("x") == True),  # noqa: E712
        (attr("x") > 3, attr("x") > "a"),
        (attr("x") == 1, attr("x").is_null()),
        (attr("x").prefix("a"), attr("x").prefix("b")),
        (attr("x").prefix("ab"), ~attr("x").prefix("a")),
        (near(0, 0, 1000), near(1, 1, 1000)),
        (near(0, 0, 1000), ~near(0, 0, 1000)),
        (near(0, 0, 1000), attr("lon").is_null()),
        (near(0, 0, 1000), attr("lon") == "a"),
        (PARKING, (attr("service") == "fuel") & near(1, 1, 100)),
        ((attr("x") == 1) | (attr("x") == 2), attr("x") > 2),
    ],
)
def test_overlaps_that_are_denied(one, other):
    assert not where(one).overlaps(where(other))
    assert where(one & other) == NOTHING


def test_a_contradiction_that_only_the_whole_range_shows():
    within = (attr("x") >= "aa") & (attr("x") <= "ab")
    assert where(within & ~attr("x").prefix("a")) == NOTHING
    assert where((attr("x") >= 1) & (attr("x") <= 1) & (attr("x") != 1)) == NOTHING
    assert where((attr("x") >= 1) & (attr("x") <= 1) & (attr("x") >= 2)) == NOTHING
    assert where((attr("x") >= 1) & (attr("x") <= 1) & (attr("x") <= 2)) == where(attr("x") == 1)


# Filters from the wire


X1, X2, Y1 = ps.one_of("x", [1]), ps.one_of("x", [2]), ps.one_of("y", [1])


@pytest.mark.parametrize(
    "conjunctions_",
    [
        ((X1, X1),),
        ((Y1, X1),),
        ((X1, X2),),
        ((X1, ps.Exists("x")),),
        ((X1, ps.Missing("x")),),
        ((ps.between("x", 1), ps.between("x", high=2)),),
        ((ps.between("x", 1), ps.none_of("x", [1])),),
        ((ps.between("x", 1), ps.none_of("x", [0])),),
        ((ps.none_of("x", [1]), ps.none_of("x", [2])),),
        ((ps.Exists("lon"), ps.near(0, 0, 1)),),
        ((ps.near(0, 0, 1), ps.near(0, 0, 10)),),
        ((X2,), (X1,)),
        ((X1,), (X1,)),
        ((X1,), (X1, Y1)),
        ((), (X1,)),
        ((ps.OneOf("x", "number", (1.0,)),),),
        tuple((ps.one_of("x", [i]),) for i in range(10, 11 + CONJUNCTIONS_MAX)),
        (tuple(ps.Exists(f"x{i:04}") for i in range(TERMS_MAX + 1)),),
    ],
    ids=lambda given_: repr(given_)[:100],
)
def test_what_is_not_in_normal_form_is_refused(conjunctions_):
    with pytest.raises(FilterError):
        checked(Filter(conjunctions_))


def test_filters_at_the_limits_are_accepted():
    most = tuple((ps.one_of("x", [i]),) for i in range(10, 10 + CONJUNCTIONS_MAX))
    assert checked(Filter(most)).conjunctions == most
    longest = tuple(ps.Exists(f"x{i:04}") for i in range(TERMS_MAX))
    assert checked(Filter((longest,))).conjunctions == (longest,)


@pytest.mark.parametrize("imperfection", [-0.1, 1.1, float("nan")])
def test_imperfection_is_a_share(imperfection):
    with pytest.raises(FilterError):
        EVERYTHING.merge(NOTHING, imperfection)


# One example for each mistake that these properties have found


def test_equal_numbers_of_different_types_do_not_change_the_order():
    """The float looked like `4.6e+18`, and the conjunctions were sorted by their looks."""
    five = ps.one_of("x", [45])
    whole, real = ps.one_of("x", [2**62]), ps.one_of("x", [2.0**62])
    assert whole == real
    assert Filter.of([[whole], [five]]) == Filter.of([[real], [five]])


@pytest.mark.parametrize(
    ("said", "meant_"),
    [
        ([ps.between("x", 3), ps.none_of("x", [3])], [ps.between("x", 3, low_open=True)]),
        (
            [ps.between("x", 3, 4), ps.none_of("x", [3, 4])],
            [ps.between("x", 3, 4, low_open=True, high_open=True)],
        ),
        (
            [ps.between("x", high="b"), ps.none_of("x", [""])],
            [ps.between("x", "", "b", low_open=True)],
        ),
        (
            [ps.between("x", 3, 5), ps.none_of("x", [3, 4])],
            [ps.between("x", 3, 5, low_open=True), ps.none_of("x", [4])],
        ),
    ],
)
def test_a_range_that_excludes_its_end_is_open_there(said, meant_):
    assert Filter.of([said]) == Filter.of([meant_])
    assert Filter.of([meant_]).covers(Filter.of([said]))


def test_a_merge_over_the_whole_range_of_floats_is_perfect():
    low, high = ps.between("x", -1e308, -9e307), ps.between("x", 9e307, 1e308)
    assert Filter.of([[low]]).merge(Filter.of([[high]])) is None


def test_users_import_filters_and_their_errors_from_wayfare():
    for name in ("Condition", "Constant", "Filter", "FilterError", "FilterSyntaxError"):
        assert name in wayfare.__all__
    with pytest.raises(wayfare.FilterSyntaxError):
        wayfare.Filter.parse("price ==")
    assert wayfare.Filter.where(wayfare.Constant(True)) == EVERYTHING


@pytest.mark.parametrize(
    ("odd", "true_of_it"),
    [
        (inf, ["x > 5", "x <> 5", "x not in (5, 6)", "exists x"]),
        (2**64, ["x > 5", "x <> 5", "x not in (5, 6)", "exists x"]),
        (-inf, ["x <= 5", "x <> 5", "x not in (5, 6)", "exists x"]),
        (nan, ["x <> 5", "x not in (5, 6)", "exists x"]),
        (None, ["exists x"]),
        (b"a", ["exists x"]),
    ],
)
def test_what_cannot_be_published_is_matched_as_the_documentation_says(odd, true_of_it):
    texts = [
        *("x = 5", "x > 5", "x <= 5", "x between 1 and 9", "x <> 5", "x in (5, 6)"),
        *("x not in (5, 6)", "x prefix ''", "x = true", "exists x", "x is null"),
    ]
    assert [text for text in texts if Filter.parse(text).matches({"x": odd})] == true_of_it
