"""The filter language: what each construct means, what is refused and where, and the round trip."""

from __future__ import annotations

import operator
import re
import sys
import time
from collections.abc import Callable, Mapping
from math import hypot
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from strategies import filters
from wayfare.core import syntax
from wayfare.core.conditions import TERMS_MAX, Condition, Constant, attr, near
from wayfare.core.filters import EVERYTHING, NOTHING, Filter, checked
from wayfare.core.predicates import Value
from wayfare.core.syntax import FILTER_TEXT_MAX
from wayfare.errors import FilterError, FilterSyntaxError

# Examples: text, how it prints

PRINTED = [
    ("x = 5", "x = 5"),
    ("x=5", "x = 5"),
    ("x <> 5", "x <> 5"),
    ("x != 5", "x <> 5"),
    ("x < 5", "x < 5"),
    ("x <= 5", "x <= 5"),
    ("x > 5", "x > 5"),
    ("x >= 5", "x >= 5"),
    ("5 = x", "x = 5"),
    ("5 <> x", "x <> 5"),
    ("5 < x", "x > 5"),
    ("5 <= x", "x >= 5"),
    ("5 > x", "x < 5"),
    ("5 >= x", "x <= 5"),
    ("'a' = x", "x = 'a'"),
    ("true = x", "x = true"),
    ("x = TRUE", "x = true"),
    ("x <> true", "x = false"),
    ("x = 5.0", "x = 5"),
    ("x = +5", "x = 5"),
    ("x = -5", "x = -5"),
    ("x=-.5", "x = -0.5"),
    ("x = 5.", "x = 5"),
    ("x = 1E3", "x = 1000"),
    ("x = 1e-7", "x = 1e-07"),
    ("x = -0.0", "x = 0"),
    ("x = 007", "x = 7"),
    ("x = 9223372036854775807", "x = 9223372036854775807"),
    ("x = 1e300", "x = 1e+300"),
    ("x = ''", "x = ''"),
    ("x = 'it''s'", "x = 'it''s'"),
    ("x = '''' or x = ' '", "x = '''' or x = ' '"),
    ("x = 'a\0\n\"b'", "x = 'a\0\n\"b'"),
    ("x between 1 and 5", "x between 1 and 5"),
    ("x between 'a' and 'b'", "x between 'a' and 'b'"),
    ("x between 5 and 5", "x = 5"),
    ("x between 5 and 1", "false"),
    ("x not between 1 and 5", "x > 5 or x < 1"),
    ("not x between 1 and 5", "x > 5 or x < 1"),
    ("x > 1 and x <= 5", "x > 1 and x <= 5"),
    ("x >= 1 and x < 5", "x >= 1 and x < 5"),
    ("x >= 1 and x <= 5", "x between 1 and 5"),
    ("x between 1 and 5 and y between 2 and 3", "x between 1 and 5 and y between 2 and 3"),
    ("x in (5)", "x = 5"),
    ("x in (3, 1, 2, 1)", "x in (1, 2, 3)"),
    ("x in ('b','a')", "x in ('a', 'b')"),
    ("x not in (1, 2)", "x not in (1, 2)"),
    ("x not in (1)", "x <> 1"),
    ("x in (true, false)", "x in (false, true)"),
    ("x not in (true, false)", "false"),
    ("x like 'a%b'", "x like 'a%b'"),
    ("x not like 'a_'", "x not like 'a_'"),
    ("x like 'abc'", "x = 'abc'"),
    ("x not like 'abc'", "x <> 'abc'"),
    ("x like 'a%'", "x prefix 'a'"),
    ("x like '%a'", "x suffix 'a'"),
    ("x like '%a%'", "x contains 'a'"),
    ("x like '%'", "x like '%'"),
    ("x like '%_%a'", "x like '_%a'"),
    ("x like 'a!%b_' escape '!'", r"x like 'a\%b_' escape '\'"),
    ("x like 'a\\_'", r"x like 'a\\_' escape '\'"),
    ("x like 'a''_' escape ''''", "x = 'a_'"),
    ("x prefix 'A5'", "x prefix 'A5'"),
    ("x suffix 'A5'", "x suffix 'A5'"),
    ("x contains '%'", "x contains '%'"),
    ("x not prefix 'A5'", "x not prefix 'A5'"),
    ("x not suffix 'A5'", "x not suffix 'A5'"),
    ("x not contains 'A5'", "x not contains 'A5'"),
    ("x prefix ''", "x like '%'"),
    ("x not contains ''", "false"),
    ("x is null", "x is null"),
    ("x is not null", "exists x"),
    ("exists x", "exists x"),
    ("exists(x)", "exists x"),
    ('exists ( "a b" )', 'exists "a b"'),
    ("not exists x", "x is null"),
    ("near(52.5, 13, 500)", "near(52.5, 13, 500)"),
    ("NOT near ( -52.5 , -13.25 , 5e2 )", "not near(-52.5, -13.25, 500)"),
    ("true", "true"),
    ("false", "false"),
    ("not true", "false"),
    ("true and x = 1", "x = 1"),
    ("false or x = 1", "x = 1"),
    ("true or x = 1", "true"),
    ("x = 1 and x = 2", "false"),
    ("not (x = 1 and y = 2)", "x <> 1 or y <> 2"),
    ("not (x = 1 or y <> 2)", "x <> 1 and y = 2"),
    ("not not x = 1", "x = 1"),
    ("not x = 1 and y = 2", "x <> 1 and y = 2"),
    ("x = 1 or y = 2 and z = 3", "x = 1 or y = 2 and z = 3"),
    ("(x = 1 or y = 2) and z = 3", "x = 1 and z = 3 or y = 2 and z = 3"),
    ("X = 1 AND y Is Not Null Or X = 2", "X = 1 and exists y or X = 2"),
    ("  \t\nx\n=\n1  ", "x = 1"),
    ("((x)) = 1", None),
    ('"x" = 1', "x = 1"),
    ('"and" = 1', '"and" = 1'),
    ('"Like" = 1', '"Like" = 1'),
    ('"true" = 1', '"true" = 1'),
    ('"my.x" = 1', '"my.x" = 1'),
    ('"MyLoc" = 1', '"MyLoc" = 1'),
    ('"a ""b"" \'c\'" = 1', '"a ""b"" \'c\'" = 1'),
    ('"5" = 5', '"5" = 5'),
    ("$a.b_C9 = 1", "$a.b_C9 = 1"),
    ("my = 1", "my = 1"),
    ("été = 1", None),
    ('"été" = 1', '"été" = 1'),
]


@pytest.mark.parametrize(("text", "printed"), [row for row in PRINTED if row[1] is not None])
def test_examples_print_in_normal_form(text, printed):
    found = Filter.parse(text)
    assert str(found) == printed
    assert Filter.parse(printed) == found


@pytest.mark.parametrize("text", [text for text, printed in PRINTED if printed is None])
def test_names_are_not_conditions_and_unusual_ones_need_quotes(text):
    with pytest.raises(FilterSyntaxError):
        Filter.parse(text)


def test_constants():
    assert Filter.parse("true") == EVERYTHING
    assert Filter.parse("false") == NOTHING


# Refusals: text, position, part of the reason

BAD = [
    ("", 0, "expected a condition, found the end: `true` matches everything"),
    ("   ", 3, "expected a condition"),
    ("x", 1, "one of = <>"),
    ("x", 1, "a name alone is no condition, but `name = true` is"),
    ("x and y = 1", 2, "a name alone"),
    ('"a\x1b" y', 5, "found `y`"),
    ("x \x1b", 2, r"found `\x1b`"),
    ("x == 5", 2, "found `==`: use ="),
    ("x = 1 && y = 2", 6, "use and"),
    ("x = 1 & y = 2", 6, "use and"),
    ("x = 1 || y = 2", 6, "use or"),
    ("! x = 1", 0, "use not"),
    ("x startswith 'a'", 2, "use prefix"),
    ("x EndsWith 'a'", 2, "use suffix"),
    ("x matches 'a'", 2, "use like"),
    ("x ~ 'a'", 2, "found `~`"),
    ("x + 1 = 2", 2, "found `+`"),
    ("x -1", 2, "found `-1`"),
    ("x = 5 y", 6, "expected `and`, `or` or the end, found `y`"),
    ("x = 5;", 5, "found `;`"),
    ("x = 5)", 5, "expected `and`, `or` or the end, found `)`"),
    ("x = ", 4, "expected a value, found the end"),
    ("x = abc", 4, "texts stand in single quotes"),
    ('x = "abc"', 4, "texts stand in single quotes"),
    ('x = "true"', 4, "expected a value"),
    ("x = null", 4, "use is null"),
    ("x = (5)", 4, "expected a value, found `(`"),
    ("x = 'abc", 4, "no closing '"),
    ("x = 'abc''", 4, "no closing '"),
    ('"abc = 5', 0, 'no closing "'),
    ("x = ‘a’", 4, "straight quotes"),
    ("x = 'a' 'b'", 8, "found the text 'b'"),
    ("x = 1e400", 4, "infinities"),
    ("x = -1e400", 4, "infinities"),
    ("x = 9223372036854775808", 4, "64 bits"),
    ("x = " + "9" * 5000, 4, "64 bits"),
    ("x < 2 and y = " + "9" * 4301, 14, "64 bits"),
    ("x = '" + "a" * 1025 + "'", 4, "at most 1024"),
    ("x < true", 4, "no order"),
    ("false <= x", 0, "no order"),
    ("x between true and false", 10, "no order"),
    ("x between 1", 11, "expected `and`"),
    ("x between 1 or 2", 12, "expected `and`, found `or`"),
    ("x between 1 and 'a'", 16, "expected a number, found the text 'a'"),
    ("x in 5", 5, "expected `(` or `myloc`"),
    ("x in ()", 6, "expected a value, found `)`"),
    ("x in (1 2)", 8, "expected `,` or `)`"),
    ("x in (1,)", 8, "expected a number, found `)`"),
    ("x in (1, 2", 10, "expected `,` or `)`, found the end"),
    ("x in (1, 2.5, 'a')", 14, "expected a number"),
    ("x in (true, 1)", 12, "expected true or false"),
    ("x in (" + ",".join(map(str, range(257))) + ")", 6, "at most 256 values"),
    ("x like 5", 7, "expected a text in single quotes, found `5`"),
    ("x like a", 7, "expected a text in single quotes, found `a`: texts"),
    ("x like 'a' escape 'bc'", 18, "one character"),
    ("x like 'a' escape ''", 18, "one character"),
    ("x like 'a' escape", 17, "expected a text"),
    ("x prefix true", 9, "expected a text in single quotes, found `true`"),
    ("x not = 5", 6, "one of between in like prefix suffix contains"),
    ("x not is null", 6, "one of between"),
    ("x not null", 6, "use is null"),
    ("x is 5", 5, "expected `null` or `not null`"),
    ("x is not 5", 9, "expected `null`, found `5`"),
    ("exists", 6, "an attribute's name, found the end"),
    ("exists 5", 7, "an attribute's name"),
    ("exists (x", 9, "expected `)`"),
    ("exists like", 7, 'double quotes: "like"'),
    ("near = 5", 5, "(latitude, longitude, metres)"),
    ("near(1, 2)", 9, "near takes latitude, longitude, metres"),
    ("near(1, 'a', 2)", 8, "expected a number"),
    ("near(91, 0, 2)", 5, "latitude of -90 to 90"),
    ("near(1, 181, 2)", 8, "longitude of -180 to 180"),
    ("near(1, 2, -1)", 11, "metres"),
    ("near(1, 2, 3, 4)", 12, "expected `)`"),
    ("near(1, 2, x)", 11, "expected a number"),
    ("and = 5", 0, 'double quotes: "and"'),
    ("x = 1 and", 9, "expected a condition, such as price > 40, found the end"),
    ("x = 1 or or y = 2", 9, "found `or`"),
    ("x = 1 and not", 13, "expected a condition"),
    ("(x = 1", 6, "expected `)`, `and` or `or`, found the end"),
    ("()", 1, "expected a condition"),
    ("((x = 1) and (y = 2)", 20, "expected `)`"),
    ("5", 1, "one of = <> < <= > >="),
    ("5 between x and 2", 2, "one of = <> < <= > >="),
    ("5 < 6", 4, "an attribute's name, found `6`"),
    ("'a' like 'b'", 4, "one of = <> < <= > >="),
    ("x = y", 4, "texts stand in single quotes"),
    ("x < myloc", 4, "expected a value, found `myloc`"),
    ("myloc = x", 0, "expected a condition"),
    ("x in (myloc)", 6, "expected a value"),
    ("x < myloc", 4, "it is a set: use in myloc"),
    ("myloc = 5", 0, 'double quotes: "myloc"'),
    ("x = 1 and y in myloc", 15, "`myloc` depends on the client"),
    ("x <> myloc", 5, "can be used in the subscriptions of a client only"),
    ("near(myloc, 500)", 5, "`myloc` depends on the client"),
    ("x > my.y", 4, "`my.y` depends on the client"),
    ("x = 1 or my.y < x", 9, "can be used in the subscriptions of a client only"),
    ("exists my.y", 7, 'stands in double quotes, as in "my.x" = 5'),
    ("5 < my." + "y" * 5000, 4, "stands in double quotes"),
    ("x = my.", 4, "`my.` is followed by a name"),
    ("x = my." + "y" * 129, 4, "`my.` is followed by a name"),
    ('"" = 5', 0, "1 to 128 characters"),
    ("a" * 129 + " = 5", 0, "1 to 128 characters"),
    ("x = 5 and \0", 10, "expected a condition"),
    ("x = '\ud800'", 5, "surrogate"),
    ('x = 1 and "\udfff" = 1', 11, "surrogate"),
    ("é = 1", 0, "found `é`"),
    ("[x] = 1", 0, "found `[`"),
    ("x = 1" + " " * FILTER_TEXT_MAX, FILTER_TEXT_MAX, f"at most {FILTER_TEXT_MAX} characters"),
    ("(" * 33 + "x = 1" + ")" * 33, 32, "nests at most 32 deep"),
    ("(" * 4000, 32, "nests at most 32 deep"),
    ("not " * 2000, 32 * 4, "nests at most 32 deep"),
    ("not " * 32 + "x = 1", 0, "nests at most 32 deep"),
    ("x=1or " * TERMS_MAX + "y=1", 6 * TERMS_MAX, "at most 256 predicates"),
    (" or ".join(f"x{i} = 1" for i in range(33)), 0, "at most 32 conjunctions"),
    (" and ".join(f"(x{i} = 1 or y{i} = 1)" for i in range(6)), 0, "at most 32 conjunctions"),
]


@pytest.mark.parametrize(("text", "position", "reason"), BAD, ids=lambda value: repr(value)[:40])
def test_refusals_say_where_and_why(text, position, reason):
    with pytest.raises(FilterSyntaxError) as caught:
        Filter.parse(text)
    error = caught.value
    assert (error.position, error.text) == (position, text)
    assert reason in error.reason
    assert len(str(error)) < 400
    assert str(error).isprintable()  # it can be logged


@pytest.mark.parametrize("given_", [None, 5, b"x = 5", ["x = 5"], attr("x")])
def test_what_is_no_text_is_refused(given_):
    with pytest.raises(FilterError, match="a filter is a text"):
        Filter.parse(given_)


# Meaning: an evaluator of three-valued logic that shares no code with the filters

Truth = bool | None
Attributes = Mapping[str, Value]


class Node(NamedTuple):
    """A condition in three forms: its text, the same built in Python, and its truth."""

    text: str
    condition: Condition
    truth: Callable[[Attributes], Truth]
    binds: int = 3  # or 0, and 1, not 2, the rest 3: what needs parentheses within what


def negation(truth: Truth) -> Truth:
    return None if truth is None else not truth


def kind(value: object) -> str:
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def about(name: str, sample: Value, test: Callable[[Value], bool]) -> Callable[[Attributes], Truth]:
    """Unknown unless the attribute is there, with a value of the kind of the sample."""

    def truth(attributes: Attributes) -> Truth:
        value = attributes.get(name)
        return None if value is None or kind(value) != kind(sample) else test(value)

    return truth


def quoted(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else repr(value)


NAMES = {"x": "x", "and": '"and"'}
TEXTS = ["", "a", "aa", "ab", "b", "%", "_a", "'", "\\"]
NUMBERS = [-1, 0, 0.5, 1, 2.0, 2**53 + 1, 2.0**53, -1e300]
DEGREES = [0, 0.001, 1, 2.5, 95, -200, "a", True]

names = st.sampled_from(sorted(NAMES))
texts, numbers = st.sampled_from(TEXTS), st.sampled_from(NUMBERS)
ordered = st.one_of(texts, numbers)
values = st.one_of(texts, numbers, st.booleans())
several = st.one_of(
    *(st.lists(one, min_size=1, max_size=4) for one in (texts, numbers, st.booleans()))
)


@st.composite
def publications(draw) -> list[Attributes]:
    """Every value of the domain once for each attribute, in random company, or missing."""
    everything = [*TEXTS, *NUMBERS, False, True, None, None, None]
    columns = {name: draw(st.permutations(everything)) for name in NAMES}
    for name in ("lat", "lon"):
        one = st.sampled_from([*DEGREES, None])
        columns[name] = draw(st.lists(one, min_size=len(everything), max_size=len(everything)))
    rows = zip(*columns.values(), strict=True)
    return [
        {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        for row in rows
    ]


COMPARISONS = {
    "=": (operator.eq, "="),
    "<>": (operator.ne, "<>"),
    "<": (operator.lt, ">"),
    "<=": (operator.le, ">="),
    ">": (operator.gt, "<"),
    ">=": (operator.ge, "<="),
}


@st.composite
def comparisons(draw):
    name, sign = draw(names), draw(st.sampled_from(sorted(COMPARISONS)))
    value = draw(values if sign in ("=", "<>") else ordered)
    compare, turned = COMPARISONS[sign]
    text = f"{NAMES[name]} {sign} {quoted(value)}"
    if draw(st.booleans()):
        text = f"{quoted(value)} {turned} {NAMES[name]}"
    truth = about(name, value, lambda found: compare(found, value))
    return Node(text, compare(attr(name), value), truth)


def with_not(draw, name: str, words: str, condition: Condition, truth) -> Node:
    """`x in ...` or `x not in ...`."""
    if draw(st.booleans()):
        return Node(
            f"{NAMES[name]} not {words}", ~condition, lambda given_: negation(truth(given_))
        )
    return Node(f"{NAMES[name]} {words}", condition, truth)


@st.composite
def ranges(draw):
    name = draw(names)
    low, high = draw(st.one_of(st.tuples(texts, texts), st.tuples(numbers, numbers)))
    truth = about(name, low, lambda found: low <= found <= high)
    words = f"between {quoted(low)} and {quoted(high)}"
    return with_not(draw, name, words, attr(name).between(low, high), truth)


@st.composite
def lists(draw):
    name, choice = draw(names), draw(several)
    truth = about(name, choice[0], lambda found: found in choice)
    words = f"in ({', '.join(map(quoted, choice))})"
    return with_not(draw, name, words, attr(name).one_of(*choice), truth)


def regex_of(pattern: str, escape: str | None) -> re.Pattern[str]:
    out, at = [], 0
    while at < len(pattern):
        if pattern[at] == escape:
            out.append(re.escape(pattern[at + 1 : at + 2] or escape))
            at += 1
        else:
            out.append({"%": ".*", "_": "."}.get(pattern[at], re.escape(pattern[at])))
        at += 1
    return re.compile("".join(out), re.DOTALL)


@st.composite
def likes(draw):
    name, pattern = draw(names), draw(st.text("ab%_\\'!", max_size=5))
    escape = draw(st.sampled_from([None, "!", "\\", "%"]))
    words = f"like {quoted(pattern)}" + (f" escape {quoted(escape)}" if escape else "")
    truth = about(name, "", lambda found: bool(regex_of(pattern, escape).fullmatch(found)))
    return with_not(draw, name, words, attr(name).like(pattern, escape), truth)


@st.composite
def affixes(draw):
    name, part = draw(names), draw(texts)
    word, test = draw(
        st.sampled_from(
            [("prefix", str.startswith), ("suffix", str.endswith), ("contains", str.__contains__)]
        )
    )
    truth = about(name, "", lambda found: test(found, part))
    return with_not(draw, name, f"{word} {quoted(part)}", getattr(attr(name), word)(part), truth)


@st.composite
def presences(draw):
    name = draw(names)
    text, there = draw(
        st.sampled_from(
            [
                (f"exists {NAMES[name]}", True),
                (f"exists({NAMES[name]})", True),
                (f"{NAMES[name]} is not null", True),
                (f"{NAMES[name]} is null", False),
            ]
        )
    )
    condition = attr(name).exists() if there else attr(name).is_null()
    return Node(text, condition, lambda given_: (name in given_) == there)


@st.composite
def circles(draw):
    lat, lon, metres = draw(st.sampled_from([(0, 0, 0), (0, 0, 500), (0, 0, 200_000), (2, 2, 300)]))

    def truth(given_: Attributes) -> Truth:
        point = given_.get("lat"), given_.get("lon")
        if any(value is None or kind(value) != "number" for value in point):
            return None
        if not (-90 <= point[0] <= 90 and -180 <= point[1] <= 180):
            return None
        return hypot(point[0] - lat, point[1] - lon) * 111_195 <= metres  # flat, near the equator

    return Node(f"near({lat}, {lon}, {metres})", near(lat, lon, metres), truth)


constants = st.sampled_from(
    [
        Node("true", Constant(True), lambda _: True),
        Node("FALSE", Constant(False), lambda _: False),
    ]
)
leaves = st.one_of(
    comparisons(), ranges(), lists(), likes(), affixes(), presences(), circles(), constants
)


def within(part: Node, binds: int) -> str:
    return f"({part.text})" if part.binds < binds else part.text


def negated_node(part: Node) -> Node:
    return Node(
        f"not {within(part, 2)}", ~part.condition, lambda given_: negation(part.truth(given_)), 2
    )


def conjoined(parts: list[Node]) -> Node:
    def truth(given_: Attributes) -> Truth:
        truths = [part.truth(given_) for part in parts]
        return False if False in truths else None if None in truths else True

    condition = parts[0].condition
    for part in parts[1:]:
        condition = condition & part.condition
    return Node(" and ".join(within(part, 2) for part in parts), condition, truth, 1)


def disjoined(parts: list[Node]) -> Node:
    def truth(given_: Attributes) -> Truth:
        truths = [part.truth(given_) for part in parts]
        return True if True in truths else None if None in truths else False

    condition = parts[0].condition
    for part in parts[1:]:
        condition = condition | part.condition
    return Node(" or ".join(within(part, 1) for part in parts), condition, truth, 0)


def compounds(parts):
    chains = st.lists(parts, min_size=2, max_size=3)
    return st.one_of(parts.map(negated_node), chains.map(conjoined), chains.map(disjoined))


nodes = st.recursive(leaves, compounds, max_leaves=7)


def outcome(text: str) -> Filter | FilterSyntaxError:
    """Nothing else may come of any text."""
    try:
        return Filter.parse(text)
    except FilterSyntaxError as error:
        return error


def parsed(node: Node) -> Filter:
    found = outcome(node.text)
    if isinstance(found, FilterSyntaxError):
        assert "conjunctions" in found.reason
        assume(False)
    return found


@settings(max_examples=500)
@given(nodes, publications())
def test_a_filter_matches_exactly_what_makes_its_condition_true(node, published):
    """Neither what makes it false nor what leaves it unknown, under any nesting of `not`."""
    found = parsed(node)
    for attributes in published:
        assert found.matches(attributes) == (node.truth(attributes) is True), attributes


@given(nodes)
def test_text_and_builders_make_the_same_filter(node):
    assert parsed(node) == Filter.where(node.condition)


@settings(max_examples=500)
@given(nodes)
def test_what_is_printed_parses_to_an_equal_filter(node):
    found = checked(parsed(node))
    assert Filter.parse(str(found)) == found
    assert str(Filter.parse(str(found))) == str(found)


@given(filters())
def test_well_formed_filters_of_any_origin_print_and_parse(found):
    assert Filter.parse(str(found)) == found


@given(nodes, nodes, st.sampled_from([0.0, 0.5]))
def test_merged_filters_print_and_parse_too(a, b, imperfection):
    merged = parsed(a).merge(parsed(b), imperfection)
    if merged is not None:
        assert Filter.parse(str(checked(merged))) == merged


whole_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole_values = st.one_of(
    whole_texts,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(whole_texts.filter(bool), whole_values, whole_values, whole_texts)
@example("'", "''", "\0", "\\")
@example('"', '"', "\n", "_%")
@example("x\n", "\u2028", "", "__%%\\")
def test_every_name_and_value_prints_and_parses(name, value, other, pattern):
    x = attr(name)
    made = [x == value, x != value, x.like(pattern), ~x.like(pattern, "\\"), x.prefix(pattern)]
    made += [~x.suffix(pattern), x.contains(pattern), x.exists(), x.is_null()]
    if kind(value) == kind(other):
        made.append(x.one_of(value, other))
    made += [x < one for one in (value, other) if not isinstance(one, bool)]
    for condition in made:
        found = checked(Filter.where(condition))
        assert Filter.parse(str(found)) == found


@given(st.floats(-90, 90), st.floats(-180, 180), st.floats(0, 20_000_000), st.booleans())
def test_every_circle_prints_and_parses(lat, lon, metres, negated):
    circle = near(lat, lon, metres)
    found = checked(Filter.where(~circle if negated else circle))
    assert Filter.parse(str(found)) == found


# Garbage

FRAGMENTS = (
    sorted(syntax._WORDS) + "= == <> != < <= > >= ( ) , ' '' \" \"\" 'a' 5 -1 1e9 . x".split()
)
FRAGMENTS += ["my.x", "my.", "'a%'", '"q"', " ", "\0", "é", "\\", "\n", "1e999", "9" * 30, "''''"]


def check_outcome(text: str) -> None:
    found = outcome(text)
    if isinstance(found, Filter):
        assert Filter.parse(str(found)) == found
    else:
        assert 0 <= found.position <= len(text)
        assert found.reason
        assert str(found).isprintable()


@given(st.text(max_size=40))
def test_any_text_gives_a_filter_or_a_syntax_error(text):
    check_outcome(text)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(" ".join))
def test_any_words_give_a_filter_or_a_syntax_error(text):
    check_outcome(text)


@given(nodes, st.data())
def test_a_damaged_filter_gives_a_filter_or_a_syntax_error(node, data):
    at = data.draw(st.integers(0, len(node.text)))
    end = data.draw(st.integers(at, min(len(node.text), at + 4)))
    check_outcome(node.text[:at] + data.draw(st.sampled_from(["", *FRAGMENTS])) + node.text[end:])


# Limits: everything accepted prints as something that is accepted


def product_of_ors(pairs: int, rest: str) -> str:
    return " and ".join([rest, *(f"(a{i} = 1 or b{i} = 1)" for i in range(pairs))])


def longest(text_of: Callable[[int], str], limit: int) -> int:
    """The greatest size below the limit that is accepted; it and its neighbours print and parse."""
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        found = outcome(text_of(middle))
        accepted = isinstance(found, Filter)
        assert accepted or "at most" in found.reason
        low, high = (middle, high) if accepted else (low, middle)
    for size in range(max(1, low - 2), low + 1):
        found = Filter.parse(text_of(size))
        assert Filter.parse(str(checked(found))) == found
    return low


def test_a_filter_that_prints_longer_than_it_was_written_still_parses():
    text = product_of_ors(5, f"v = '{'a' * 150}'")
    found = Filter.parse(text)
    assert len(str(found)) > 20 * len(text)
    assert Filter.parse(str(found)) == found


def test_a_filter_that_would_print_longer_than_may_be_parsed_is_refused():
    def text_of(n):
        return product_of_ors(5, f"v = '{'a' * n}'")

    size = longest(text_of, limit=1024)
    assert 150 < size < FILTER_TEXT_MAX / 32
    with pytest.raises(FilterSyntaxError, match=f"characters, and at most {FILTER_TEXT_MAX}"):
        Filter.parse(text_of(size + 1))


def test_the_spaces_that_printing_adds_count():
    def text_of(n):
        return "and ".join(f"\"a b c d {i}\"<>'{'b' * 40}'" for i in range(n))

    size = longest(text_of, limit=TERMS_MAX)
    assert len(text_of(size + 1)) < FILTER_TEXT_MAX < len(text_of(size + 1)) + 3 * (size + 1)


@pytest.mark.parametrize(
    "text_of",
    [
        lambda n: "x>'" + "a" * n + "'and x<'" + "b" * n + "'",
        lambda n: "x>='" + "a" * n + "'and x<='" + "b" * n + "'",
        lambda n: "and ".join(f"x<>{i}" for i in range(n)),
        lambda n: "and ".join(f"x<>{i}.5" for i in range(n)) + " and x > 7",
        lambda n: "and ".join(f"x not like'{i}_'" for i in range(n)),
        lambda n: "or ".join(f"x not between 1 and {i} and y<>1 and y>=0" for i in range(n)),
        lambda n: "x in(" + ",".join(f"1e{i}" for i in range(n)) + ")",
        lambda n: "x like '" + "%_" * n + "'",
        lambda n: "x like '_" + "!%" * n + "'escape'!'",
        lambda n: "x contains '" + "'' " * n + "'",
    ],
)
def test_whatever_is_accepted_prints_as_something_accepted(text_of):
    assert longest(text_of, limit=300) > 10


def test_predicates_are_counted_when_multiplied_out():
    def text_of(n):
        return product_of_ors(1, " and ".join(f"x{i} > 1 and x{i} < 3" for i in range(n)))

    size = longest(text_of, limit=TERMS_MAX)
    assert 2 * (2 * size + 1) <= TERMS_MAX < 2 * (2 * (size + 1) + 1)
    with pytest.raises(FilterSyntaxError, match=f"predicates, and at most {TERMS_MAX}"):
        Filter.parse(text_of(size + 1))


UNPARSABLE = {
    "too long": lambda: attr("x").one_of(*(f"{'a' * 100}{i}" for i in range(100))),
    "too many excluded": lambda: (
        ~attr("x").one_of(*range(200)) & ~attr("x").one_of(*range(200, 400))
    ),
    "pattern": lambda: attr("x").like("_" + "\\" * 1000),
    "int": lambda: attr("x") == 10**5000,
}


@pytest.mark.parametrize("build", UNPARSABLE.values(), ids=UNPARSABLE)
def test_what_could_not_be_parsed_cannot_be_built_in_python(build):
    with pytest.raises(FilterError):
        Filter.where(build())


def test_too_many_exclusions_are_refused_as_a_text_too():
    lists = [", ".join(map(str, range(start, start + 200))) for start in (0, 200)]
    with pytest.raises(FilterSyntaxError, match="excludes at most 256 values"):
        Filter.parse(f"x not in ({lists[0]}) and x not in ({lists[1]})")


def test_as_deep_as_allowed_is_accepted():
    assert Filter.parse("(" * 32 + "x = 1" + ")" * 32) == Filter.parse("x = 1")
    assert Filter.parse("not " * 31 + "x = 1") == Filter.parse("x <> 1")


# Time

ADVERSARIAL = {
    "quotes": lambda n: "'" * n,
    "odd quotes": lambda n: "x = " + "'" * (n | 1),
    "names": lambda n: '"' * n,
    "unclosed": lambda n: "x = '" + "a" * n,
    "blanks": lambda n: "x = 1" + " " * n,
    "blanks between": lambda n: "x" + " " * n + "= 1",
    "digits": lambda n: "x = " + "1" * n,
    "dots": lambda n: "x = " + "1." * n,
    "exponents": lambda n: "x = " + "1e" * n,
    "signs": lambda n: "x = " + "+-" * n,
    "word": lambda n: "a" * n,
    "stray": lambda n: "x = 1 " + "=" * n,
    "list": lambda n: "x in (" + "1," * n,
    "or": lambda n: "x=1or " * n,
}


@pytest.mark.parametrize("family", ADVERSARIAL)
def test_the_tokenizer_takes_linear_time(family):
    def seconds(n: int) -> float:
        text = ADVERSARIAL[family](n)
        best = 1e9
        for _ in range(5):
            start = time.thread_time()
            for _token in syntax._tokens(text):
                pass
            best = min(best, time.thread_time() - start)
        return best

    # Quadratic would be 64 times; the constant forgives a noisy machine.
    assert seconds(80_000) < 24 * seconds(10_000) + 0.01


def calls(text: str) -> int:
    """How many functions run to parse the text: a count, so that the test cannot be noisy."""
    count = 0

    def tick(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tick)
    try:
        syntax.parse(text)
    except FilterSyntaxError:
        pass
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    "text_of",
    [
        *ADVERSARIAL.values(),
        lambda n: "x in (" + ",".join(map(str, range(n // 16))) + ")",
        lambda n: " and ".join(f"x{i} = 1" for i in range(n // 16)),
        lambda n: " or ".join(f"x{i} = 1" for i in range(n // 128)),
        lambda n: "(" * (n // 128) + "x = 1" + ")" * (n // 128),
        lambda n: "not " * (n // 128) + "x = 1",
    ],
)
def test_the_parser_takes_linear_time(text_of):
    assert calls(text_of(4000)) <= 5 * calls(text_of(1000)) + 100
