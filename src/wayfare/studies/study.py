"""What a study is: experiments that vary one thing, and checks that can fail.

Study        a name, and experiments
Experiment   one parameter is varied, some strategies are compared, the rest is fixed
Check        a sentence, of the paper or of ours, and whether the rows of its experiment bear it out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from statistics import mean
from typing import Any

import msgspec

from wayfare.errors import UsageError
from wayfare.sim import experiment as city
from wayfare.sim import roaming
from wayfare.studies.points import Point

Row = dict[str, Any]  # parameters and figures of a run

# A tree by its number of brokers -> height, degree.
TREES: dict[int, tuple[int, int]] = {**roaming.TREES, **city.TREES}


class Rows:
    """The runs of one experiment that did not fail."""

    def __init__(self, rows: list[Row], by: str, varied: str) -> None:
        self.rows, self.by, self.varied = rows, by, varied

    def of(self, series: str | None = None, x: Any = None) -> list[Row]:
        return [
            row
            for row in self.rows
            if (series is None or row[self.by] == series) and (x is None or row[self.varied] == x)
        ]

    def where(self, **given: Any) -> Rows:
        """Those with these parameters."""
        rows = [row for row in self.rows if all(row[name] == x for name, x in given.items())]
        return Rows(rows, self.by, self.varied)

    def series(self) -> list[str]:
        return list(dict.fromkeys(row[self.by] for row in self.rows))

    def xs(self) -> list[Any]:
        return sorted({row[self.varied] for row in self.rows})

    def mean(self, metric: str, series: str | None = None, x: Any = None) -> float:
        """Over all seeds."""
        values = [row[metric] for row in self.of(series, x) if row[metric] is not None]
        if not values:
            raise LookupError(f"no run of {series} has {metric} at {self.varied} = {x}")
        return float(mean(values))

    def curve(self, metric: str, series: str) -> list[float]:
        return [self.mean(metric, series, x) for x in self.xs()]

    def total(self, metric: str, series: str | None = None) -> int:
        return sum(row[metric] or 0 for row in self.of(series))


class Verdict(msgspec.Struct, frozen=True):
    holds: bool
    measured: str


class Check(msgspec.Struct, frozen=True):
    says: str
    verdict: Callable[[Rows], Verdict]
    source: str = "published"  # or `ours`: a promise of this system
    note: str = ""  # what is known of it, for when it does not hold


class Metric(msgspec.Struct, frozen=True):
    """A figure that an experiment shows, with its unit for people."""

    name: str
    title: str
    unit: str
    log: bool = False  # better seen on a logarithmic axis
    drawn: bool = True  # else it is in the table only
    crossed: bool = True  # else it is the same whatever is crossed, and drawn once
    note: str = ""  # what has to be known to read it


class Picture(msgspec.Struct, frozen=True):
    """A figure that is no metric."""

    kind: str  # probes: by index; delivery: the distribution of its time; traces: of a client that moves
    at: int = 10**6  # which of the values that are varied it is of: the first is 0; else the last
    x: Any = None  # ... or the value itself, where that is one of them
    but: dict[str, Any] = {}  # in place of what `at` says


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    where: str = ""  # what its figures are of, for their titles
    kind: str = ""  # of its simulations, if it is not that of the study
    by: str = ""  # the parameter whose values are compared, likewise
    replayed: bool = False  # on the ways of a file, which has to be given
    varied: str  # a parameter, or `brokers`
    axis: str  # what it is, for people; the unit of times is added where they are shown
    values: tuple[Any, ...]
    quick_values: tuple[Any, ...]
    compared: tuple[str, ...]
    impossible: tuple[
        tuple[Any, str], ...
    ] = ()  # pairs of a value and one of those that are compared
    metrics: tuple[Metric, ...]
    pictures: tuple[Picture, ...] = ()
    checks: tuple[Check, ...] = ()
    published: str = ""  # what the paper has of it, in words
    # What the paper measured: by metric, what is varied, and what is compared.
    printed: dict[tuple[str, Any, str], float] = {}
    fixed: dict[str, Any] = {}
    but: dict[str, dict[str, Any]] = {}  # ... of some of those that are compared
    crossed: dict[str, tuple[Any, ...]] = {}  # further parameters: every value with every other
    quick_crossed: dict[str, tuple[Any, ...]] = {}
    at: dict[str, Any] = {}  # ... which of them tables and traces are of
    quick_fixed: dict[str, Any] = {}  # instead, or as well
    seeds: int = 3
    quick_seeds: int = 1


class Study(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    about: str
    kind: str  # of its simulations
    by: str  # the parameter whose values are compared
    experiments: tuple[Experiment, ...]
    # What the paper shows, and the figures here that show it, by name; or, of what has none, a sentence.
    shows: dict[str, tuple[str, ...] | str] = {}

    def points(
        self, quick: bool = False, ways: str | None = None
    ) -> dict[str, list[tuple[Any, Point]]]:
        """By experiment: what is varied, and the point. Experiments may share points."""
        return {one.name: list(self._points_of(one, quick, ways)) for one in self.experiments}

    def _points_of(
        self, one: Experiment, quick: bool, ways: str | None
    ) -> Iterator[tuple[Any, Point]]:
        if one.replayed and ways is None:
            return
        values = one.quick_values if quick else one.values
        seeds = one.quick_seeds if quick else one.seeds
        fixed = one.fixed | (one.quick_fixed if quick else {})
        crossed = one.quick_crossed if quick else one.crossed
        more = [dict(zip(crossed, each, strict=True)) for each in product(*crossed.values())]
        for x, series, each, seed in product(values, one.compared, more, range(seeds)):
            if (x, series) in one.impossible:
                continue
            given = fixed | each | {self.by_of(one): series, "seed": seed}
            given |= _varied(one.varied, x) | one.but.get(series, {})
            if one.replayed:
                given["ways"] = ways
            yield x, Point(one.kind or self.kind, given)

    def by_of(self, one: Experiment) -> str:
        return one.by or self.by

    def experiment(self, name: str) -> Experiment:
        for one in self.experiments:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in self.experiments)
        raise UsageError(f"{self.name} has no experiment {name!r}: it has {names}")


def _varied(name: str, x: Any) -> dict[str, Any]:
    if name != "brokers":
        return {name: x}
    height, degree = TREES[x]
    return {"height": height, "degree": degree}
