"""Filters that follow the client: what they mean, how they are widened, and the round trip."""

from __future__ import annotations

import copy
import operator
import time
from contextlib import suppress
from itertools import combinations
from math import hypot, inf, nan

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import wayfare
from test_syntax import (
    COMPARISONS,
    FRAGMENTS,
    NAMES,
    NUMBERS,
    TEXTS,
    Node,
    about,
    compounds,
    kind,
    leaves,
    names,
    nodes,
    ordered,
    publications,
    quoted,
    values,
    with_not,
)
from test_syntax import outcome as outcome_as_filter
from wayfare.core import predicates as ps
from wayfare.core.changes import EVERYWHERE as EVERYWHERE_STEPS
from wayfare.core.changes import Span, reach
from wayfare.core.conditions import CONJUNCTIONS_MAX, TERMS_MAX, Constant, attr, near
from wayfare.core.filters import EVERYTHING, NOTHING, PATTERNS_MAX, Filter
from wayfare.core.filters import checked as checked_filter
from wayfare.core.markers import My, my, myloc
from wayfare.core.syntax import FILTER_TEXT_MAX
from wayfare.core.templates import Around, Mine, Template, checked, parse, where
from wayfare.errors import FilterError, FilterSyntaxError

HERE = Mine(
    ("R2", "R1"),
    Around(52.5, 13),
    {"need": 3, "Road": "A'5", "a.b": True, "lat": 52.5, "lon": 13, "far": 900},
)

# Examples: text, its canonical text, what it is for a client that is HERE

EXAMPLES = [
    ("location in myloc", "location in myloc", "location in ('R1', 'R2')"),
    ("location = MYLOC", "location in myloc", "location in ('R1', 'R2')"),
    ("location not in myloc", "location not in myloc", "location not in ('R1', 'R2')"),
    ("location <> myloc", "location not in myloc", "location not in ('R1', 'R2')"),
    ("location != myloc", "location not in myloc", "location not in ('R1', 'R2')"),
    ("not location in myloc", "location not in myloc", "location not in ('R1', 'R2')"),
    ("not location <> myloc", "location in myloc", "location in ('R1', 'R2')"),
    ('"in" in myloc', '"in" in myloc', "\"in\" in ('R1', 'R2')"),
    ("near(myloc, 500)", "near(myloc, 500)", "near(52.5, 13, 500)"),
    ("not near(myloc, 5e2)", "not near(myloc, 500)", "not near(52.5, 13, 500)"),
    ("near(MyLoc,my.far)", "near(myloc, my.far)", "near(52.5, 13, 900)"),
    ("near(my.lat, my.lon, 10)", "near(my.lat, my.lon, 10)", "near(52.5, 13, 10)"),
    ("near(my.lat, 9.0, 10)", "near(my.lat, 9, 10)", "near(52.5, 9, 10)"),
    ("free = my.need", "free = my.need", "free = 3"),
    ("free <> my.need", "free <> my.need", "free <> 3"),
    ("free > MY.need", "free > my.need", "free > 3"),
    ("not free > my.need", "free <= my.need", "free <= 3"),
    ("my.need < free", "free > my.need", "free > 3"),
    ("my.need >= free", "free <= my.need", "free <= 3"),
    ("x in (my.need, 4)", "x in (my.need, 4)", "x in (3, 4)"),
    ("x in (4.0, my.need, 4, my.need)", "x in (my.need, 4)", "x in (3, 4)"),
    ("x not in (my.need, my.lon)", "x not in (my.lon, my.need)", "x not in (3, 13)"),
    ("x in (my.need)", "x = my.need", "x = 3"),
    ("x between my.need and 9", "x <= 9 and x >= my.need", "x between 3 and 9"),
    ("x between my.lon and my.need", "x <= my.need and x >= my.lon", "false"),
    ("x not between my.need and 9", "x < my.need or x > 9", "x > 9 or x < 3"),
    ("road prefix My.Road", "road prefix my.Road", "road prefix 'A''5'"),
    ("road not suffix my.Road", "road not suffix my.Road", "road not suffix 'A''5'"),
    ("road contains my.Road", "road contains my.Road", "road contains 'A''5'"),
    ("road like my.Road", "road like my.Road", "road = 'A''5'"),
    (
        "road not like my.Road escape 'A'",
        "road not like my.Road escape 'A'",
        "road <> '''5'",
    ),
    ("x = my.a.b", "x = my.a.b", "x = true"),
    ("x <> my.a.b", "x <> my.a.b", "x = false"),
    ("x = my.need and x = my.need", "x = my.need", "x = 3"),
    ("x = my.need or x = my.need", "x = my.need", "x = 3"),
    ("y = 1 and y = 2 or x = my.need", "x = my.need", "x = 3"),
    ("true or x = my.need", "true or x = my.need", "true"),
    (
        "(a = 1 or location in myloc) and b > 2",
        "a = 1 and b > 2 or b > 2 and location in myloc",
        "a = 1 and b > 2 or b > 2 and location in ('R1', 'R2')",
    ),
]


@pytest.mark.parametrize(("text", "canonical", "resolved"), EXAMPLES)
def test_examples(text, canonical, resolved):
    found = parse(text)
    assert type(found) is Template
    assert (str(found), found.text) == (canonical, canonical)
    assert parse(canonical) == found
    assert hash(parse(canonical)) == hash(found)
    assert found.resolve(HERE) == Filter.parse(resolved)


def test_what_a_template_mentions():
    found = parse("x in (my.a, my.b) and y > my.a or location in myloc or z = 1")
    assert found.names == {"a", "b"}
    assert found.follows_location
    mentions = {part.text: (part.names, part.follows_location) for part in found.parts}
    assert mentions == {
        "x in (my.a, my.b) and y > my.a": ({"a", "b"}, False),
        "location in myloc": (frozenset(), True),
        "z = 1": (frozenset(), False),
    }
    assert parse("near(myloc, 5)").follows_location
    assert [part.resolve(Mine()) for part in parse("z = 1 or x = my.a").parts] == [
        NOTHING,
        Filter.parse("z = 1"),
    ]


@pytest.mark.parametrize("text", ["x = 1", "false", "x = 1 and x = 2 or y = 3", '"my.x" = 1'])
def test_what_mentions_no_marker_is_a_filter(text):
    assert parse(text) == Filter.parse(text)


def test_what_only_mentioned_a_marker_in_vain_is_a_filter():
    assert parse("location in myloc and x = 1 and x = 2") == NOTHING
    assert parse("false and x = my.need or y = 1") == Filter.parse("y = 1")
    assert parse("not (false and x = my.need)") == parse("true or x <> my.need")


@pytest.mark.parametrize(
    ("text", "other"), [("x in (my.a, true)", "x in (my.a, 1)"), ("x = my.a", "x = my.A")]
)
def test_templates_that_look_alike_are_not_equal(text, other):
    assert parse(text) != parse(other)
    assert len(parse(f"{text} or {other}").parts) == 2


# What is not set


@pytest.mark.parametrize(
    "mine",
    [
        Mine(),
        Mine(values={"Need": 3}),
        Mine(values={"need": True}),
        Mine(values={"need": nan}),
        Mine(values={"need": "a" * (ps.TEXT_MAX + 1)}),
        Mine(values={"need": None}),
        Mine(values={"need": [1]}),
    ],
)
@pytest.mark.parametrize("text", ["x > my.need", "not x > my.need", "x not between 1 and my.need"])
def test_without_a_value_that_can_be_compared_nothing_matches(text, mine):
    expected = Filter.parse("x < 1") if "between" in text else NOTHING
    assert parse(text).resolve(mine) == expected
    assert parse(f"{text} or y = 1").resolve(mine) == Filter.of(
        [*expected.conjunctions, *Filter.parse("y = 1").conjunctions]
    )


@pytest.mark.parametrize(
    ("text", "mine"),
    [
        ("x in myloc", Mine((), Around(1, 2), {"myloc": "R1"})),
        ("x not in myloc", Mine()),
        ("x in myloc", Mine(("R1", 5))),
        ("x not in myloc", Mine(("R1", 5))),
        ("near(myloc, 5)", Mine(("R1",))),
        ("not near(myloc, 5)", Mine(("R1",))),
        ("near(myloc, 5)", Mine(around=Around(91, 0))),
        ("near(myloc, my.far)", Mine(around=Around(0, 0))),
        ("near(myloc, my.far)", Mine(around=Around(0, 0), values={"far": -1})),
        ("not near(myloc, my.far)", Mine(around=Around(0, 0), values={"far": "5"})),
        ("x in (my.a, 5)", Mine()),
        ("x in (my.a, 5)", Mine(values={"a": "5"})),
        ("x not in (my.a, 5)", Mine(values={"a": "5"})),
        ("x prefix my.a", Mine(values={"a": 5})),
        ("x not like my.a", Mine(values={"a": 5})),
    ],
)
def test_what_is_unknown_matches_nothing(text, mine):
    assert parse(text).resolve(mine) == NOTHING
    assert parse(f"not ({text})").resolve(mine) == NOTHING


# Python


def test_markers_in_python():
    assert wayfare.my is my
    assert wayfare.myloc is myloc
    assert my.need == my["need"] == My("need")
    condition = attr("location").one_of(myloc) & (attr("free") > my.need) & near(myloc, 500)
    assert where(condition) == parse("location in myloc and free > my.need and near(myloc, 500)")
    assert where(attr("x") == myloc) == parse("x in myloc")
    assert where(attr("x") != myloc) == parse("x not in myloc")
    assert where(~near(myloc, my["a.b"])) == parse("not near(myloc, my.a.b)")
    assert where(my.need < attr("x")) == parse("x > my.need")
    assert where(my.need == attr("x")) == parse("x = my.need")
    assert where(attr("x").like(my.pattern, "!")) == parse("x like my.pattern escape '!'")
    assert where(attr("x") == 5) == Filter.parse("x = 5")
    assert copy.deepcopy(my.need) == my.need
    with pytest.raises(AttributeError):
        my.__wrapped__  # noqa: B018


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: attr("x") > myloc, "`myloc` is a set"),
        (lambda: attr("x").one_of(myloc, "R1"), "`myloc` is a set"),
        (lambda: attr("x").one_of(myloc, myloc), "`myloc` is a set"),
        (lambda: attr("x").prefix(myloc), "`myloc` is a set"),
        (lambda: attr("x").between(1, myloc), "`myloc` is a set"),
        (lambda: near(5, myloc, 5), "`myloc` is a set"),
        (lambda: near(myloc, myloc), "`myloc` is a set"),
        (lambda: near(myloc, 5, 5), "or myloc and metres"),
        (lambda: near(5, 5), "or myloc and metres"),
        (lambda: near(myloc, -5), "metres"),
        (lambda: near(my.lat, 200, 5), "longitude"),
        (lambda: near(my.lat, "a", 5), "three numbers"),
        (lambda: my["free places"], "is followed by a name"),
        (lambda: my[""], "is followed by a name"),
        (lambda: my[5], "is followed by a name"),
        (lambda: attr("x").one_of(my.a, 5, "5"), "all texts, all numbers"),
        (lambda: attr("x").one_of(my.a, nan), "NaN"),
        (lambda: attr("x").one_of(*(my[f"a{i}"] for i in range(257))), "at most 256 values"),
        (lambda: attr("x").between(my.a, True), "no order"),
        (lambda: attr("x").like(my.a, "bc"), "one character"),
        (lambda: attr("x").like("a%", my.a), "one character"),
        (lambda: attr("") > my.a, "1 to 128 characters"),
    ],
)
def test_what_makes_no_sense_is_refused_in_python(build, reason):
    with pytest.raises(FilterError, match=reason):
        build()


@pytest.mark.parametrize(
    "condition", [attr("x").one_of(myloc), attr("y").exists() & near(myloc, 5)]
)
def test_a_filter_is_not_made_of_markers(condition):
    with pytest.raises(
        FilterError, match=r"`myloc` depends on the client.*subscriptions of a client"
    ):
        Filter.where(condition)
    with pytest.raises(FilterError, match=r"`my\.a` depends on the client"):
        Filter.where((attr("x") > my.a) & condition)


# Refusals of texts: text, position, part of the reason

BAD = [
    ("x < myloc", 4, "it is a set: use in myloc"),
    ("x in (myloc)", 6, "it is a set"),
    ("x in (my.a, myloc)", 12, "it is a set"),
    ("x prefix myloc", 9, "it is a set"),
    ("x between 1 and myloc", 16, "it is a set"),
    ("myloc = x", 0, 'double quotes: "myloc"'),
    ("myloc in (1, 2)", 0, 'double quotes: "myloc"'),
    ("exists myloc", 7, 'double quotes: "myloc"'),
    ("near(myloc)", 10, "near takes"),
    ("near(myloc, 1, 2)", 13, "expected `)`"),
    ("near(myloc, -1)", 12, "0 to 20100000 metres"),
    ("near(myloc, 'a')", 12, "expected a number"),
    ("near(1, myloc, 2)", 8, "expected a number, found `myloc`"),
    ("near(my.a, 1)", 12, "near takes latitude, longitude, metres"),
    ("near(my.a, 181, 5)", 11, "longitude of -180 to 180"),
    ("my.a", 4, "one of = <> < <= > >="),
    ("my.a = 5", 7, 'stands in double quotes, as in "my.x" = 5'),
    ("my.a = my.b", 7, "stands in double quotes"),
    ("my.a in (1, 2)", 5, "stands in double quotes"),
    ("my.a = myloc", 7, 'double quotes: "myloc"'),
    ("x = my.", 4, "is followed by a name"),
    ("x = my." + "a" * 129, 4, "is followed by a name"),
    ("x = my.é", 4, "is followed by a name"),
    ("x = my.a.é", 9, "expected `and`, `or` or the end"),
    ("x in (my.a, 5, 'a')", 15, "expected a number"),
    ("x in (" + ",".join(f"my.a{i}" for i in range(257)) + ")", 6, "at most 256 values"),
    ("x between 'a' and 5", 18, "expected a text"),
    ("x between my.a and true", 10, "no order"),
    ("x like my.a escape my.b", 19, "one character"),
    ("x like my.a escape 'bc'", 19, "one character"),
    ("(" * 33 + "x = my.a" + ")" * 33, 32, "nests at most 32 deep"),
    ("x=my.a or " * TERMS_MAX + "y=1", 10 * 256, "at most 256 predicates"),
    (" or ".join(f"x{i} = my.a" for i in range(33)), 0, "at most 32 conjunctions"),
    ("x in myloc" + " " * FILTER_TEXT_MAX, FILTER_TEXT_MAX, "at most 8192 characters"),
    (
        f"v in (my.{'a' * 120}, my.{'b' * 120}) and "
        + " and ".join(f"(a{i}=my.a or b{i}=1)" for i in range(5)),
        0,
        "characters, and at most 8192",
    ),
    ("x = '\ud800'", 5, "surrogate"),
]


@pytest.mark.parametrize(("text", "position", "reason"), BAD, ids=lambda value: repr(value)[:40])
def test_refusals_say_where_and_why(text, position, reason):
    with pytest.raises(FilterSyntaxError) as caught:
        parse(text)
    assert (caught.value.position, reason in caught.value.reason) == (position, True), caught.value
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("given_", [None, 5, b"x in myloc"])
def test_what_is_no_text_is_refused(given_):
    with pytest.raises(FilterError, match="a filter is a text"):
        parse(given_)


# Too much


def test_more_locations_than_a_list_may_have():
    many = Mine(tuple(f"R{i}" for i in range(ps.VALUES_MAX + 1)), Around(0, 0))
    for text in ("x in myloc", "x not in myloc"):
        with pytest.raises(
            FilterError, match=r"stands for 257 locations, and a list has at most 256"
        ):
            parse(text).resolve(many)
    assert parse("near(myloc, 5)").resolve(many) == Filter.parse("near(0, 0, 5)")
    assert parse("x in myloc and y = 1").widened(many) == (Filter.parse("exists x and y = 1"),)
    assert parse("x not in myloc").widened(many) == (Filter.parse("x like '%'"),)


def test_more_characters_than_a_filter_may_have():
    many = Mine(tuple(f"{'R' * 100}{i}" for i in range(100)))
    found = parse("x in myloc and y = 1")
    with pytest.raises(FilterError, match="at most 8192 are allowed"):
        found.resolve(many)
    assert found.widened(many) == (Filter.parse("exists x and y = 1"),)


def long_texts(characters: int) -> dict[str, str]:
    """Values such that `y in (my.a0, ... my.a8)` prints so long."""
    rest = characters - len("y in ()") - 8 * len(", ") - 9 * len("''") - 8 * 1000
    return {f"a{i}": str(i) * (1000 if i < 8 else rest) for i in range(9)}


def test_what_does_not_speak_of_the_location_is_never_widened():
    found = parse(
        "x in myloc and y in (my.a0, my.a1, my.a2, my.a3, my.a4, my.a5, my.a6, my.a7, my.a8)"
    )
    exactly = FILTER_TEXT_MAX - len("x = '' and ")
    full = Mine(("",), None, long_texts(exactly))
    assert len(str(found.resolve(full))) == FILTER_TEXT_MAX
    assert found.widened(full) == (found.resolve(full),)
    (wide,) = found.widened(Mine(("", "a"), None, long_texts(exactly)))
    assert str(wide).startswith("y in ('000")  # not even `exists x` has room
    assert wide.covers(found.resolve(full))
    for mine in (full, Mine(("", "a"))):
        over = Mine(mine.locations, None, long_texts(FILTER_TEXT_MAX + 1))
        with pytest.raises(FilterError, match="characters, and at most 8192"):
            found.resolve(over)
        with pytest.raises(FilterError, match="characters, and at most 8192"):
            found.widened(over)


def test_a_pattern_too_much_is_left_out():
    found = parse("x not in myloc and y prefix my.a and y suffix my.b and z contains my.c")
    values_ = {"a": "a" * 1023, "b": "b" * 1000, "c": "c" * (PATTERNS_MAX - 1024 - 1001 - 2)}
    (wide,) = found.widened(Mine(("R1", "R2"), None, values_))
    assert str(wide).startswith("exists x and ")
    assert wide.covers(found.resolve(Mine(("R1",), None, values_)))


# Widening: examples

FAR = Mine(("R1", "R2"), Around(0, 0, slack=100), {"need": 3})
WIDENED = [
    ("x in myloc", FAR, ["x in ('R1', 'R2')"]),
    ("x not in myloc", FAR, ["x like '%'"]),
    ("x not in myloc", Mine(("R1",)), ["x <> 'R1'"]),
    ("x not in myloc", Mine((1, 2)), ["exists x"]),
    ("x not in myloc", Mine((True, 1)), ["exists x"]),
    ("x not in myloc", Mine(("R1", 2)), ["exists x"]),
    ("x in myloc", Mine(("R1", 2)), ["exists x"]),
    ("near(myloc, 500)", FAR, ["near(0, 0, 601)"]),
    ("near(myloc, 500)", Mine(around=Around(0, 0)), ["near(0, 0, 500)"]),
    ("near(myloc, 500)", Mine(around=Around(0, 0, inf)), ["exists lat"]),
    ("not near(myloc, 500)", FAR, ["not near(0, 0, 399)"]),
    ("not near(myloc, 100)", FAR, ["exists lat"]),
    ("near(1, 2, 500)", FAR, ["near(1, 2, 500)"]),
    ("free > my.need", FAR, ["free > 3"]),
    ("free > my.other or x in myloc", FAR, ["x in ('R1', 'R2')"]),
    ("x in myloc or y = 1", Mine(), ["y = 1"]),
    ("near(myloc, 500) or y = 1", Mine(("R1",)), ["y = 1"]),
    ("x in myloc and x = 'R3' or y = 1", FAR, ["y = 1"]),
    ("x in myloc and x = 'R2'", FAR, ["x = 'R2'"]),
    ("x not in myloc or x like '%'", FAR, ["x like '%'"]),
    ("x in myloc and y = 1 or x not in myloc", FAR, ["x in ('R1', 'R2') and y = 1", "x like '%'"]),
    (
        "x not in myloc or x <> myloc and y <> myloc",
        FAR,
        ["x like '%'", "x like '%' and y like '%'"],
    ),
]


@pytest.mark.parametrize(("text", "mine", "wide"), WIDENED)
def test_widened(text, mine, wide):
    found = parse(text)
    made = found.widened(mine) if isinstance(found, Template) else found.parts()
    assert made == tuple(map(Filter.parse, wide))


# What markers stand for, from whoever tells it


@pytest.mark.parametrize(
    "mine",
    [
        Mine((nan,)),
        Mine(("R1", None)),
        Mine(("\ud800",)),
        Mine(("a" * 1025,)),
        Mine(values={"a": 2**63}),
        Mine(values={"a": [1]}),
        Mine(around=Around(91, 0)),
        Mine(around=Around(nan, 0)),
        Mine(around=Around(0, "1")),
        Mine(around=Around(0, 0, -1)),
        Mine(around=Around(0, 0, nan)),
        Mine(around=Around(0, 0, "1")),
    ],
)
def test_what_no_filter_may_contain_is_refused(mine):
    with pytest.raises(FilterError):
        checked(mine)


def test_what_a_filter_may_contain_is_accepted():
    for mine in (Mine(), HERE, FAR, Mine(around=Around(0, 0, inf))):
        assert checked(mine) is mine


# Meaning, by an evaluator that shares no code with the templates. What is given to a truth is a pair:
# attributes, and what markers stand for.


def lifted(node: Node) -> Node:
    return node._replace(truth=lambda both: node.truth(both[0]))


def state(mine: Mine, name: str, *kinds: str):
    """The value, if there is one of these kinds."""
    value = mine.values.get(name)
    return value if value is not None and kind(value) in kinds else None


STATE = ["a", "b"]
KINDS = ("text", "number", "truth")


@st.composite
def marked_comparisons(draw):
    name, sign, at = (
        draw(names),
        draw(st.sampled_from(sorted(COMPARISONS))),
        draw(st.sampled_from(STATE)),
    )
    compare, turned = COMPARISONS[sign]
    text = f"{NAMES[name]} {sign} my.{at}"
    if draw(st.booleans()):
        text = f"my.{at} {turned} {NAMES[name]}"
    kinds = KINDS if compare in (operator.eq, operator.ne) else KINDS[:2]

    def truth(both):
        value = state(both[1], at, *kinds)
        return None if value is None else about(name, value, lambda x: compare(x, value))(both[0])

    return Node(text, compare(attr(name), my[at]), truth)


@st.composite
def marked_ranges(draw):
    """`between` is its two comparisons."""
    name, at, other = draw(names), draw(st.sampled_from(STATE)), draw(ordered)
    below = draw(st.booleans())
    low, high = (my[at], other) if below else (other, my[at])

    def truth(both):
        value = state(both[1], at, "text", "number")
        bottom, top = (value, other) if below else (other, value)
        truths = [
            None if bottom is None else about(name, bottom, lambda x: x >= bottom)(both[0]),
            None if top is None else about(name, top, lambda x: x <= top)(both[0]),
        ]
        return False if False in truths else None if None in truths else True

    words = f"between {low if below else quoted(low)} and {quoted(high) if below else high}"
    return with_not(draw, name, words, attr(name).between(low, high), truth)


@st.composite
def marked_lists(draw):
    name, at = draw(names), draw(st.lists(st.sampled_from(STATE), min_size=1, max_size=2))
    known = draw(
        st.one_of(
            *(
                st.lists(one, max_size=2)
                for one in (st.sampled_from(TEXTS), st.sampled_from(NUMBERS))
            )
        )
    )

    def truth(both):
        choice = [both[1].values.get(one) for one in at] + known
        if None in choice or len({*map(kind, choice)}) > 1:
            return None
        return about(name, choice[0], lambda x: x in choice)(both[0])

    members = draw(st.permutations([*(my[one] for one in at), *known]))
    words = f"in ({', '.join(str(one) if isinstance(one, My) else quoted(one) for one in members)})"
    return with_not(draw, name, words, attr(name).one_of(*members), truth)


@st.composite
def located(draw):
    name = draw(names)

    def truth(both):
        places = both[1].locations
        if not places or len({*map(kind, places)}) > 1:
            return None
        return about(name, places[0], lambda x: x in places)(both[0])

    words, condition = draw(
        st.sampled_from([("in myloc", attr(name).one_of(myloc)), ("= myloc", attr(name) == myloc)])
    )
    if words == "= myloc":
        return Node(f"{NAMES[name]} = myloc", condition, truth)
    return with_not(draw, name, words, condition, truth)


@st.composite
def marked_affixes(draw):
    name, at = draw(names), draw(st.sampled_from(STATE))
    word, test = draw(
        st.sampled_from(
            [("prefix", str.startswith), ("suffix", str.endswith), ("contains", str.__contains__)]
        )
    )

    def truth(both):
        part = state(both[1], at, "text")
        return None if part is None else about(name, "", lambda x: test(x, part))(both[0])

    return with_not(draw, name, f"{word} my.{at}", getattr(attr(name), word)(my[at]), truth)


@st.composite
def marked_circles(draw):
    metres = draw(st.sampled_from([0, 500, 200_000]))

    def truth(both):
        point, here = (both[0].get("lat"), both[0].get("lon")), both[1].around
        if here is None or any(value is None or kind(value) != "number" for value in point):
            return None
        if not (-90 <= point[0] <= 90 and -180 <= point[1] <= 180):
            return None
        return hypot(point[0] - here.lat, point[1] - here.lon) * 111_195 <= metres

    return Node(f"near(myloc, {metres})", near(myloc, metres), truth)


marked = st.one_of(
    marked_comparisons(),
    marked_ranges(),
    marked_lists(),
    located(),
    marked_affixes(),
    marked_circles(),
)
templates = st.recursive(st.one_of(marked, marked, leaves.map(lifted)), compounds, max_leaves=6)

places = st.one_of(
    st.lists(st.sampled_from(TEXTS), max_size=4),
    st.lists(st.sampled_from(TEXTS), max_size=4),
    st.lists(st.sampled_from(NUMBERS), max_size=3),
    st.lists(values, max_size=3),
)
mines = st.builds(
    Mine,
    places.map(tuple),
    st.sampled_from([None, Around(0, 0), Around(0.001, 1), Around(0, 0, 500)]),
    st.dictionaries(st.sampled_from(STATE), values),
)


def outcome(text: str) -> Filter | Template | FilterSyntaxError:
    """Nothing else may come of any text."""
    try:
        return parse(text)
    except FilterSyntaxError as error:
        return error


def parsed(node: Node) -> Filter | Template:
    found = outcome(node.text)
    if isinstance(found, FilterSyntaxError):
        assert "conjunctions" in found.reason
        assume(False)
    return found


def resolved(found: Filter | Template, mine: Mine) -> Filter:
    return found.resolve(mine) if isinstance(found, Template) else found


@settings(max_examples=500)
@given(templates, mines, publications())
def test_a_template_matches_exactly_what_makes_its_condition_true(node, mine, published):
    """Whatever is set: what is unset leaves its predicate unknown, under any nesting of `not`."""
    exact = resolved(parsed(node), mine)
    for attributes in published:
        assert exact.matches(attributes) == (node.truth((attributes, mine)) is True), attributes


@given(templates)
def test_text_and_builders_make_the_same_template(node):
    assert parsed(node) == where(node.condition)


@settings(max_examples=300)
@given(templates)
def test_what_is_printed_parses_to_an_equal_template(node):
    found = parsed(node)
    again = parse(str(found))
    assert (again, hash(again), str(again)) == (found, hash(found), str(found))
    for part in found.parts if isinstance(found, Template) else ():
        assert str(parse(part.text)) == part.text


@settings(max_examples=300)
@given(templates, mines)
def test_the_parts_are_the_conjunctions(node, mine):
    found = parsed(node)
    assume(isinstance(found, Template))
    parts = [part.resolve(mine) for part in found.parts]
    assert all(len(part.conjunctions) <= 1 for part in parts)
    assert found.resolve(mine) == Filter.of(one for part in parts for one in part.conjunctions)
    assert found.names == {name for part in found.parts for name in part.names}
    assert found.follows_location == any(part.follows_location for part in found.parts)


def subsets(mine: Mine) -> list[Mine]:
    """The client at one, some or all of the locations."""
    return [
        Mine(some, mine.around, mine.values)
        for count in range(len(mine.locations) + 1)
        for some in combinations(mine.locations, count)
    ]


@settings(max_examples=300)
@given(templates, mines)
def test_what_is_widened_covers_every_choice_of_locations(node, mine):
    found = parsed(node)
    assume(isinstance(found, Template))
    wide = found.widened(mine)
    assert all(len(one.conjunctions) == 1 and checked_filter(one) == one for one in wide)
    assert len({*wide}) == len(wide) <= len(found.parts)
    together = Filter.of(conjunction for one in wide for conjunction in one.conjunctions)
    for one in subsets(mine):
        assert together.covers(found.resolve(one)), one
        for part in found.parts:
            exact = part.resolve(one)
            assert exact == NOTHING or part.widened(mine)[0].covers(exact)


@given(templates, mines)
def test_at_a_single_location_and_point_nothing_is_widened(node, mine):
    found = parsed(node)
    assume(isinstance(found, Template))
    one = Mine(
        mine.locations[:1], mine.around and Around(mine.around.lat, mine.around.lon), mine.values
    )
    exact = [part.resolve(one) for part in found.parts]
    assert found.widened(one) == tuple(dict.fromkeys(part for part in exact if part != NOTHING))


@settings(max_examples=300)
@given(
    st.sampled_from(["near(myloc, 500)", "not near(myloc, 500)", "near(myloc, 0)"]),
    st.floats(-80, 80),
    st.floats(-170, 170),
    st.sampled_from([0.5, 30, 499, 501, 20_000, 1e6]),
    st.floats(0, 0.99),
    st.sampled_from([(0, 1), (1, 0), (0, -1), (-1, 0)]),
)
def test_wherever_the_client_is_within_the_slack(text, lat, lon, slack, share, way):
    degrees = share * slack / 111_196
    there = Around(lat + way[0] * degrees, lon + way[1] * degrees)
    found = parse(text)
    (wide,) = found.widened(Mine(around=Around(lat, lon, slack)))
    assert wide.covers(found.resolve(Mine(around=there)))


@st.composite
def changing(draw):
    """A state, how its values change, by how many steps, and what it may be then."""
    mine = draw(mines)
    values_ = dict(mine.values)
    possible, then = {}, {}
    for name, value in mine.values.items():
        if draw(st.booleans()):
            continue
        if draw(st.booleans()):
            steps = draw(st.sampled_from([0, 1, 3, EVERYWHERE_STEPS]))
            step = draw(st.sampled_from([0.5, 1, 10]))
            possible[name] = reach(step, value, steps)
            if type(possible[name]) is Span:
                then[name] = [value + step * draw(st.integers(-min(steps, 9), min(steps, 9)))]
        else:
            row = tuple(draw(st.lists(values, min_size=1, max_size=4)))
            possible[name] = reach((value, *row), value, 2)
        then.setdefault(name, possible[name])
    several = {name: one for name, one in possible.items() if one != (mine.values[name],)}
    wide = Mine(mine.locations, mine.around, values_, several)
    found = [mine]
    for name, some in then.items():
        found += [
            Mine(mine.locations, mine.around, {**one.values, name: v})
            for one in found
            for v in some
        ][:20]
    return wide, found


@settings(max_examples=500)
@given(templates, changing())
def test_what_is_widened_covers_whatever_the_state_may_be_soon(node, given_):
    mine, soon = given_
    found = parsed(node)
    assume(isinstance(found, Template))
    wide = found.widened(mine)
    assert all(len(one.conjunctions) == 1 and checked_filter(one) == one for one in wide)
    for one in soon:
        for part in found.parts:
            exact = part.resolve(one)
            assert exact == NOTHING or part.widened(mine)[0].covers(exact), (part, exact)


@given(nodes)
def test_what_mentions_no_marker_parses_as_ever(node):
    assert repr(outcome(node.text)) == repr(outcome_as_filter(node.text))


# Garbage


def check_outcome(text: str) -> None:
    found = outcome(text)
    if isinstance(found, FilterSyntaxError):
        assert 0 <= found.position <= len(text)
        assert str(found).isprintable()
    else:
        assert parse(str(found)) == found
        resolved(found, HERE)


MORE = [
    *FRAGMENTS,
    *["my.x", "myloc", "in myloc", "near(myloc,", "x in (my.x,", "x =", "5)", "x"] * 4,
]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(MORE), max_size=25).map(" ".join))
def test_any_words_give_a_template_or_a_syntax_error(text):
    check_outcome(text)


@given(templates, st.data())
def test_a_damaged_template_gives_a_template_or_a_syntax_error(node, data):
    at = data.draw(st.integers(0, len(node.text)))
    end = data.draw(st.integers(at, min(len(node.text), at + 4)))
    check_outcome(node.text[:at] + data.draw(st.sampled_from(["", *MORE])) + node.text[end:])


# Time: brokers parse what clients send

HOSTILE = {
    "lists": " and ".join(f"x{i} in myloc" for i in range(256)),
    "one attribute": " and ".join(["x in myloc"] * 256),
    "exclusions": " and ".join(f"x{i} <> myloc" for i in range(256)),
    "circles": " and ".join(f"near(myloc, {i})" for i in range(256)),
    "patterns": " and ".join(f"x like my.p escape '{chr(256 + i)}'" for i in range(90)),
    "conjunctions": " or ".join(
        " and ".join(f"x{j} in (my.a{i}, my.p)" for j in range(8)) for i in range(CONJUNCTIONS_MAX)
    ),
    "values": "x in (" + ", ".join(f"my.a{i}" for i in range(256)) + ")",
}
EVERYWHERE = Mine(
    tuple(f"R{i}" for i in range(ps.VALUES_MAX)),
    Around(0, 0, 100),
    {"p": "a%" * 500, **{f"a{i}": "ab_" * i for i in range(256)}},
)


def seconds(function, *given_) -> float:
    start = time.process_time()
    with suppress(FilterError):
        function(*given_)
    return time.process_time() - start


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_templates_are_cheap(text):
    """Beside the worst that a filter within the limits takes (docs/filter-language.md, Limits)."""
    worst = " and ".join(f"x like '%{i}%_a'" for i in range(200))
    limit = 10 * seconds(Filter.parse, worst)
    found = parse(text)
    assert isinstance(found, Template)
    assert seconds(parse, text) < limit
    assert seconds(found.resolve, EVERYWHERE) < limit
    assert seconds(found.widened, EVERYWHERE) < limit


def test_everything_resolves_to_everything():
    assert where(Constant(True)) == EVERYTHING
    assert parse("true or x in myloc").resolve(Mine()) == EVERYTHING
