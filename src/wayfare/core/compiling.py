"""Predicates and conjunctions as functions of a notification's attributes, made to be called often."""

from __future__ import annotations

from wayfare.core import predicates as ps
from wayfare.core.conditions import Conjunction
from wayfare.core.predicates import Attributes, Test


def compiled(conjunction: Conjunction) -> Test:
    """A function that tells whether attributes satisfy all of these predicates."""

    def test(attributes: Attributes) -> bool:
        return all(ps.satisfied(p, attributes) for p in conjunction)

    return test
