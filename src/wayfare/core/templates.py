"""Templates: filters that follow the client, before it is known where it is.

    location in myloc and free >= my.need        a template
    location = 'R12' and free >= 2               what it is for a client at R12 that needs two

A template has conjunctions like a filter, in which predicates may be `Marked`. Two filters come of it:

    resolve(mine)   what the client wants now                                           exact
    widened(mine)   what it may want at several locations, or with several values,
                    for routing                                                         covers it

A marked predicate whose value is not set, or cannot be compared by its operator, is unknown, and so
is its negation: its conjunction matches nothing. docs/filter-language.md tells users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from wayfare.core import patterns, syntax
from wayfare.core import predicates as ps
from wayfare.core.algebra import DISTANCE_SLACK_M
from wayfare.core.changes import Possible, Span
from wayfare.core.conditions import Condition, Conjunction
from wayfare.core.filters import NOTHING, Filter, known, normal, order, sized
from wayfare.core.markers import OPERATORS, Clause, Given, Marked, My, Myloc, markers
from wayfare.core.predicates import KINDS, VALUES_MAX, Predicate, Value
from wayfare.errors import FilterError


class Around(msgspec.Struct, frozen=True):
    """The point that `near(myloc, metres)` is drawn around; the client is at most `slack` m away."""

    lat: float
    lon: float
    slack: float = 0.0


class Mine(msgspec.Struct, frozen=True):
    """What markers stand for: `myloc`, in lists and in `near`, and `my.<name>`."""

    locations: tuple[Value, ...] = ()
    around: Around | None = None
    values: Mapping[str, Value] = {}
    possible: Mapping[str, Possible] = {}  # for routing: of these values, what they may be soon


class Template(msgspec.Struct, frozen=True, dict=True, cache_hash=True):
    """Invariant: as `where` makes it. The text is canonical: equal texts, equal templates."""

    text: str
    clauses: tuple[Clause, ...]

    def __str__(self) -> str:
        return self.text

    @cached_property
    def names(self) -> frozenset[str]:
        """Which values of the client's state it mentions."""
        return frozenset(self.mentions)

    @cached_property
    def mentions(self) -> tuple[str, ...]:
        """The same, as often as it does so."""
        return tuple(one.name for one in markers(self.clauses) if type(one) is My)

    @cached_property
    def follows_location(self) -> bool:
        return any(type(one) is Myloc for one in markers(self.clauses))

    @cached_property
    def located(self) -> int:
        """How many of its predicates mention `myloc`."""
        return sum(type(p) is Marked and p.follows_location for one in self.clauses for p in one)

    @cached_property
    def names_places(self) -> bool:
        """Whether it asks for places by name only: then what it means in a range is what it means at each place."""
        located = [
            p for one in self.clauses for p in one if type(p) is Marked and p.follows_location
        ]
        return bool(located) and all(p.operator == "in" for p in located)

    @cached_property
    def parts(self) -> tuple[Template, ...]:
        """The conjunctions, each as a template of its own, even if it mentions no marker."""
        return tuple(Template(syntax.text((clause,)), (clause,)) for clause in self.clauses)

    def resolve(self, mine: Mine) -> Filter:
        """What the client wants: exactly, at the point itself. FilterError if that is too much."""
        found = (_resolved(clause, mine) for clause in self.clauses)
        return Filter.of(sized([one for one in found if one is not None]))

    def widened(self, mine: Mine) -> tuple[Filter, ...]:
        """For each conjunction one that covers it, wherever the client is and whatever it is like.

        It may be at one, some or all of `mine.locations`, anywhere within `mine.around.slack`, and have any of
        the values that are `mine.possible`. What matches nothing is left out. FilterError if what does not change
        is too much.
        """
        found = (_widened(clause, mine) for clause in self.clauses)
        return tuple(dict.fromkeys(one for one in found if one != NOTHING))


def parse(text: str) -> Filter | Template:
    """What a text describes: a template if it mentions `myloc` or `my.<name>`, else a filter."""
    return syntax.made(text, where, marked=True)


def where(condition: Condition) -> Filter | Template:
    """The same of a condition built in Python."""
    found: dict[str, Clause] = {}
    for clause in sized(condition.alternatives(negated=False)):
        tight = normal(known(clause))
        if tight is not None:
            marked = {repr(p): p for p in clause if type(p) is Marked}
            whole = tuple(sorted((*tight, *marked.values()), key=order))
            found[syntax.text((whole,))] = whole
    clauses = tuple(found[text] for text in sorted(found))
    if not markers(clauses):  # what mentioned one contradicted itself
        return Filter.of(map(known, clauses))
    return Template(syntax.text(clauses), clauses)


def checked(mine: Mine) -> Mine:
    """What markers stand for, if it is all values that a filter may contain; else FilterError."""
    for value in (*mine.locations, *mine.values.values()):
        ps.checked_value(value)
    if mine.around is not None:
        ps.near(mine.around.lat, mine.around.lon, 0)
        slack = mine.around.slack
        if KINDS.get(type(slack)) != "number" or not slack >= 0:
            raise FilterError("the slack around a point is 0 metres or more")
    return mine


# Resolving: exactly


def _resolved(clause: Iterable[Predicate | Marked], mine: Mine) -> Conjunction | None:
    """None if something is unknown, or satisfied by nothing."""
    out: list[Predicate] = []
    for p in clause:
        exact = _exact(p, mine) if type(p) is Marked else p
        if exact is None:
            return None
        out.append(exact)
    return tuple(out)


def _exact(p: Marked, mine: Mine) -> Predicate | None:
    values: list[Value] = []
    for value in p.values:
        if type(value) is My:
            if value.name not in mine.values:
                return None
            values.append(mine.values[value.name])
        elif type(value) is Myloc:
            here = _here(p, mine)
            if not here:
                return None
            values.extend(here)
        else:
            values.append(value)
    try:
        return OPERATORS[p.operator](p.name, *values)
    except FilterError:  # of a kind that cannot be compared so
        return None


def _here(p: Marked, mine: Mine) -> tuple[Value, ...]:
    if p.operator.endswith("near"):
        return () if mine.around is None else (mine.around.lat, mine.around.lon)
    if len(mine.locations) > VALUES_MAX:
        raise FilterError(
            f"`myloc` stands for {len(mine.locations)} locations, and a list has at most"
            f" {VALUES_MAX} values: let the client's location stand for fewer"
        )
    return mine.locations


# Widening: what covers the exact predicate for every location, and value, that is possible


def _widened(clause: Clause, mine: Mine) -> Filter:
    open_ = [p for p in clause if type(p) is Marked and _is_open(p, mine)]
    rest = _resolved((p for p in clause if p not in open_), mine)
    wide = [q for p in open_ if (q := _WIDER.get(p.operator, _text)(p, mine)) is not None]
    if rest is None or len(wide) < len(open_):
        return NOTHING
    there: list[Predicate] = [ps.Exists(p.name) for p in open_]
    for way in (wide, there):
        try:
            return Filter.of(sized([(*rest, *way)]))
        except FilterError:  # that was too much: say less
            continue
    return Filter.of(sized([rest]))


def _is_open(p: Marked, mine: Mine) -> bool:
    """Whether what it stands for may be something else soon."""
    return p.follows_location or any(type(v) is My and v.name in mine.possible for v in p.values)


def _what(given: Given, mine: Mine) -> Possible | None:
    """What one of its values may be; None: it is not set."""
    if type(given) is not My:
        assert type(given) is not Myloc
        return (given,)
    if given.name not in mine.values:
        return None
    return mine.possible.get(given.name, (mine.values[given.name],))


def _in(p: Marked, mine: Mine) -> Predicate | None:
    if p.follows_location:
        return _inside(p, mine)
    found = [_what(one, mine) for one in p.values]
    if None in found:
        return None
    listed = [value for one in found if type(one) is tuple for value in one]
    spans = [one for one in found if type(one) is Span]
    try:
        if not spans:
            return ps.one_of(p.name, listed)
        ends: list[Any] = [end for one in spans for end in (one.low, one.high)]
        if None in ends or any(KINDS.get(type(value)) != "number" for value in listed):
            return ps.Exists(p.name)
        return ps.between(p.name, min([*ends, *listed]), max([*ends, *listed]))
    except FilterError:  # too many, or not of one kind
        return ps.Exists(p.name)


def _not_in(p: Marked, mine: Mine) -> Predicate | None:
    """Of two values each is another one than the other: only what is excluded in any case is left to say."""
    if p.follows_location:
        return _outside(p, mine)
    found = [_what(one, mine) for one in p.values]
    if None in found:
        return None
    always = [one[0] for one in found if type(one) is tuple and len(one) == 1]
    if always:
        try:
            return ps.none_of(p.name, always)
        except FilterError:  # not of one kind
            return None
    return ps.Exists(p.name)


def _least(p: Marked, mine: Mine) -> Predicate | None:
    return _extreme(p, mine, _low)


def _greatest(p: Marked, mine: Mine) -> Predicate | None:
    return _extreme(p, mine, _high)


def _extreme(p: Marked, mine: Mine, end: Callable[[Possible], Value | None]) -> Predicate | None:
    """Compare with the value for which it says least."""
    possible = _what(p.values[0], mine)
    if possible is None:
        return None
    value = end(possible)
    return ps.Exists(p.name) if value is None else OPERATORS[p.operator](p.name, value)


def _low(possible: Possible) -> Value | None:
    """None: there is no bound, or no order."""
    values: Any = possible
    return possible.low if type(possible) is Span else min(values) if _ordered(values) else None


def _high(possible: Possible) -> Value | None:
    values: Any = possible
    return possible.high if type(possible) is Span else max(values) if _ordered(values) else None


def _ordered(values: tuple[Value, ...]) -> bool:
    return {KINDS.get(type(value)) for value in values} in ({"text"}, {"number"})


def _text(p: Marked, mine: Mine) -> Predicate | None:
    """Any text, as patterns have no union."""
    found = [_what(one, mine) for one in p.values]
    for possible in found:
        if possible is None or not any(type(value) is str for value in _values(possible)):
            return None
    return ps.Like(p.name, patterns.ANY)


def _values(possible: Possible) -> tuple[Value, ...]:
    return () if isinstance(possible, Span) else possible


def _inside(p: Marked, mine: Mine) -> Predicate | None:
    if not mine.locations:
        return None
    if len(mine.locations) > VALUES_MAX:
        return ps.Exists(p.name)
    return _exact(p, mine) or ps.Exists(p.name)  # not of one kind: together they are no list


def _outside(p: Marked, mine: Mine) -> Predicate | None:
    """Of two locations each is outside the other: only the kind is left to say."""
    if len(mine.locations) < 2:
        return _exact(p, mine)
    kinds = {KINDS.get(type(value)) for value in mine.locations}
    return ps.Like(p.name, patterns.ANY) if kinds == {"text"} else ps.Exists(p.name)


def _circle(p: Marked, mine: Mine) -> Predicate | None:
    """The circle that holds, or outside which lie, all circles around points within the slack."""
    *point, metres = p.values
    if any(type(v) is My and v.name in mine.possible for v in point):
        return ps.Exists(p.name)
    if type(metres) is My and metres.name in mine.possible:
        possible = mine.possible[metres.name]
        widest: Any = (_low if p.operator == "not near" else _high)(possible)
        if KINDS.get(type(widest)) != "number":
            return ps.Exists(p.name)
        p = Marked(p.operator, p.name, (*point, min(max(widest, 0), ps.NEAR_METRES_MAX)))
    circle = _exact(p, mine)
    if type(circle) is not ps.Near or mine.around is None or mine.around.slack == 0:
        return circle
    if not p.follows_location:
        return circle
    reach = mine.around.slack + DISTANCE_SLACK_M  # so that `covers` finds it
    metres = circle.metres + (-reach if circle.negated else reach)
    if not 0 <= metres <= ps.NEAR_METRES_MAX:
        return ps.Exists(p.name)
    return ps.near(circle.lat, circle.lon, metres, negated=circle.negated)


_WIDER = {
    "in": _in,
    "not in": _not_in,
    "<": _greatest,
    "<=": _greatest,
    ">": _least,
    ">=": _least,
    "near": _circle,
    "not near": _circle,
}
