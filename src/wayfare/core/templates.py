"""Templates: filters that follow the client, before it is known where it is.

    location in myloc and free >= my.need        a template
    location = 'R12' and free >= 2               what it is for a client at R12 that needs two

A template has conjunctions like a filter, in which predicates may be `Marked`. Two filters come of it:

    resolve(mine)   what the client wants now                                      exact
    widened(mine)   what it may want at any of several locations, for routing      covers it

A marked predicate whose value is not set, or cannot be compared by its operator, is unknown, and so
is its negation: its conjunction matches nothing. docs/filter-language.md tells users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec

from wayfare.core import patterns, syntax
from wayfare.core import predicates as ps
from wayfare.core.algebra import DISTANCE_SLACK_M
from wayfare.core.conditions import Condition, Conjunction
from wayfare.core.filters import NOTHING, Filter, known, normal, order, sized
from wayfare.core.markers import OPERATORS, Clause, Marked, My, Myloc, markers
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


class Template(msgspec.Struct, frozen=True, dict=True, cache_hash=True):
    """Invariant: as `where` makes it. The text is canonical: equal texts, equal templates."""

    text: str
    clauses: tuple[Clause, ...]

    def __str__(self) -> str:
        return self.text

    @cached_property
    def names(self) -> frozenset[str]:
        """Which values of the client's state it mentions."""
        return frozenset(one.name for one in markers(self.clauses) if type(one) is My)

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
        return all(p.operator == "in" for p in located)

    @cached_property
    def parts(self) -> tuple[Template, ...]:
        """The conjunctions, each as a template of its own, even if it mentions no marker."""
        return tuple(Template(syntax.text((clause,)), (clause,)) for clause in self.clauses)

    def resolve(self, mine: Mine) -> Filter:
        """What the client wants: exactly, at the point itself. FilterError if that is too much."""
        found = (_resolved(clause, mine) for clause in self.clauses)
        return Filter.of(sized([one for one in found if one is not None]))

    def widened(self, mine: Mine) -> tuple[Filter, ...]:
        """For each conjunction one that covers it, whichever of the locations the client is at.

        It may be at one, some or all of `mine.locations`, and anywhere within `mine.around.slack`. What
        matches nothing is left out. FilterError if what does not speak of the location is too much.
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


# Widening: what covers the exact predicate for every location that is possible


def _widened(clause: Clause, mine: Mine) -> Filter:
    located = [p for p in clause if type(p) is Marked and p.follows_location]
    rest = _resolved((p for p in clause if p not in located), mine)
    wide = [q for p in located if (q := _WIDER[p.operator](p, mine)) is not None]
    if rest is None or len(wide) < len(located):
        return NOTHING
    there: list[Predicate] = [ps.Exists(p.name) for p in located]
    for way in (wide, there):
        try:
            return Filter.of(sized([(*rest, *way)]))
        except FilterError:  # that was too much: say less
            continue
    return Filter.of(sized([rest]))


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
    circle = _exact(p, mine)
    if type(circle) is not ps.Near or mine.around is None or mine.around.slack == 0:
        return circle
    reach = mine.around.slack + DISTANCE_SLACK_M  # so that `covers` finds it
    metres = circle.metres + (-reach if circle.negated else reach)
    if not 0 <= metres <= ps.NEAR_METRES_MAX:
        return ps.Exists(p.name)
    return ps.near(circle.lat, circle.lon, metres, negated=circle.negated)


_WIDER = {"in": _inside, "not in": _outside, "near": _circle, "not near": _circle}
