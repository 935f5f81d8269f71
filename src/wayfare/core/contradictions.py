"""Filters that nothing can match: which predicates contradict each other."""

from __future__ import annotations

from wayfare.core import syntax, templates
from wayfare.core.conditions import Condition, Conjunction
from wayfare.core.filters import NOTHING, Filter, known, normal
from wayfare.core.templates import Template
from wayfare.errors import FilterNeverMatches

SHOWN_MAX = 3  # contradictions that an error names
NO_VALUE = "no value satisfies its condition"


def parse(text: str) -> Filter | Template:
    """What a text describes; FilterNeverMatches if that can match nothing."""
    found = templates.parse(text)
    if found != NOTHING:
        return found
    return _possible(found, syntax.parse(text, marked=True), f"no value satisfies {text.strip()}")


def where(condition: Condition) -> Filter | Template:
    """The same of a condition built in Python."""
    return _possible(templates.where(condition), condition)


def possible(found: Filter | Template) -> Filter | Template:
    """A filter that something may match; else FilterNeverMatches, without what contradicts itself."""
    if found == NOTHING:
        raise FilterNeverMatches(NO_VALUE)
    return found


def _possible(
    found: Filter | Template, condition: Condition, no_value: str = NO_VALUE
) -> Filter | Template:
    if found == NOTHING:
        clauses = condition.alternatives(negated=False)
        raise FilterNeverMatches(_explanation([known(clause) for clause in clauses], no_value))
    return found


def _explanation(conjunctions: list[Conjunction], no_value: str) -> str:
    texts = list(dict.fromkeys(syntax.text((_contradiction(one),)) for one in conjunctions))
    if not texts:
        return no_value
    more = f", and {len(texts) - SHOWN_MAX} more" if len(texts) > SHOWN_MAX else ""
    return f"{'; '.join(texts[:SHOWN_MAX])}{more}: that contradicts itself"


def _contradiction(conjunction: Conjunction) -> Conjunction:
    """The predicates of a contradictory conjunction without which it would be none."""
    core = conjunction
    for p in conjunction:
        rest = tuple(q for q in core if q is not p)
        if normal(rest) is None:
            core = rest
    return core
