"""Filters as conditions on the columns of an archive, which Spark pushes down to Parquet.

A filter in normal form is an `or` of `and`s of predicates, and every predicate needs a value of one
kind. So it becomes the same of comparisons with one column, or two for numbers; a null there is
unknown to Spark, as a missing value is to Wayfare, and what is unknown is not wanted.

Not everything can be said so. What attributes without columns are, where exactly a circle ends, and
long patterns are left to `Filter.matches`: the condition then wants more than the filter does, and
what it lets through is looked at once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import ceil, floor
from operator import and_, or_
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from wayfare.core import cells, patterns
from wayfare.core import predicates as ps
from wayfare.core.filters import Filter
from wayfare.core.matching import FilterIndex
from wayfare.core.predicates import INT_MAX, INT_MIN, Predicate
from wayfare.pipeline.archive import (
    NOTIFICATIONS,
    Archive,
    Batches,
    Names,
    column_name,
    decoded,
    sort_of,
)

WILDCARDS_MAX = 4  # `%` of a pattern: Java tries out all their lengths


class Wanted(NamedTuple):
    """True of all rows that a filter matches, and of no others if it is exact."""

    column: Column
    exact: bool = True


def matching(archive: Archive, wanted: Filter) -> DataFrame:
    """The notifications that the filter matches, as rows of `NOTIFICATIONS`."""
    column, exact = compiled(wanted, archive.names)
    found = archive.frame.where(column).select(NOTIFICATIONS.names)
    return found if exact else found.mapInArrow(_testing(wanted), NOTIFICATIONS)


def _testing(wanted: Filter) -> Callable[[Batches], Batches]:
    def test(batches: Batches) -> Batches:
        for batch in batches:
            texts = batch.column("attributes").to_pylist()
            yield batch.filter(pa.array([wanted.matches(decoded(text)) for text in texts]))

    return test


def match_many(notifications: DataFrame, filters: Mapping[str, Filter]) -> DataFrame:
    """A row for each filter, by its key, and each notification that it matches."""
    schema = StructType([StructField("filter", StringType()), *NOTIFICATIONS])
    return notifications.select(NOTIFICATIONS.names).mapInArrow(_finding(filters), schema)


def _finding(filters: Mapping[str, Filter]) -> Callable[[Batches], Batches]:
    def find(batches: Batches) -> Batches:
        index: FilterIndex[str] = FilterIndex()
        for key, wanted in filters.items():
            index.add(key, wanted)
        for batch in batches:
            keys: list[str] = []
            rows: list[int] = []
            for row, text in enumerate(batch.column("attributes").to_pylist()):
                found = index.find(decoded(text))
                keys += found
                rows += [row] * len(found)
            some = batch.take(pa.array(rows, pa.int64()))
            yield some.add_column(0, "filter", pa.array(keys, pa.string()))

    return find


# ---- filters as columns ---------------------------------------------------------------------


def compiled(wanted: Filter, names: Names) -> Wanted:
    """The filter as a condition on an archive with these names."""
    return _any(
        _all(_predicate(p, names) for p in conjunction) for conjunction in wanted.conjunctions
    )


def _all(given: Iterable[Wanted]) -> Wanted:
    return _joined(and_, True, given)


def _any(given: Iterable[Wanted]) -> Wanted:
    return _joined(or_, False, given)


def _joined(
    join: Callable[[Column, Column], Column], none: bool, given: Iterable[Wanted]
) -> Wanted:
    some = list(given)
    columns = [one.column for one in some]
    return Wanted(reduce(join, columns) if columns else F.lit(none), all(one.exact for one in some))


def _predicate(p: Predicate, names: Names) -> Wanted:
    sorts = [names.get(name) for name in ps.names(p)]
    if None in sorts:  # no notification has it
        return Wanted(F.lit(type(p) is ps.Missing))
    if not all(sorts):  # only the JSON has it
        return Wanted(F.lit(True), exact=False)
    return _OPERATORS[type(p)](p, names)


def _exists(p: ps.Exists, names: Names) -> Wanted:
    return _any(Wanted(column.isNotNull()) for column in _columns(p.name, names).values())


def _missing(p: ps.Missing, names: Names) -> Wanted:
    return _all(Wanted(column.isNull()) for column in _columns(p.name, names).values())


def _columns(name: str, names: Names) -> dict[str, Column]:
    """By their sorts."""
    return {sort: F.col(column_name(sort, name)) for sort in sorted(names[name])}


def _one_of(p: ps.OneOf, names: Names) -> Wanted:
    wanted = []
    for sort, column in _columns(p.name, names).items():
        values = [_literal(value) for value in p.values if sort_of(value) == sort]
        if values:
            wanted.append(Wanted(column.isin(values)))
    return _any(wanted)


def _none_of(p: ps.NoneOf, names: Names) -> Wanted:
    wanted = []
    for sort, column in _of_kind(p.kind, p.name, names).items():
        values = [_literal(value) for value in p.values if sort_of(value) == sort]
        wanted.append(Wanted(~column.isin(values) if values else column.isNotNull()))
    return _any(wanted)


def _of_kind(kind: ps.Kind, name: str, names: Names) -> dict[str, Column]:
    kinds = {"text": ("text",), "number": ("number", "whole"), "truth": ("truth",)}
    there = _columns(name, names)
    return {sort: there[sort] for sort in kinds[kind] if sort in there}


def _literal(value: ps.Value) -> ps.Value:
    return float(value) if sort_of(value) == "number" else value


def _between(p: ps.Between, names: Names) -> Wanted:
    return _any(
        Wanted(_RANGES[sort](column, p)) for sort, column in _of_kind(p.kind, p.name, names).items()
    )


def _text_range(column: Column, p: ps.Between) -> Column:
    return _span(column, p.low, p.low_open, p.high, p.high_open)


def _number_range(column: Column, p: ps.Between) -> Column:
    """An end that no double expresses is put at the double next to it, which no other one is between."""
    low: Any = p.low
    high: Any = p.high
    low_open, high_open = p.low_open, p.high_open
    if low is not None:
        exact, low = low, float(low)
        low_open = low_open if low == exact else low < exact
    if high is not None:
        exact, high = high, float(high)
        high_open = high_open if high == exact else high > exact
    return _span(column, low, low_open, high, high_open)


def _whole_range(column: Column, p: ps.Between) -> Column:
    low: Any = INT_MIN if p.low is None else p.low
    high: Any = INT_MAX if p.high is None else p.high
    least = max(ceil(low) + (p.low_open and low == ceil(low)), INT_MIN)
    most = min(floor(high) - (p.high_open and high == floor(high)), INT_MAX)
    return _span(column, least, False, most, False) if least <= most else F.lit(False)


def _span(column: Column, low: Any, low_open: bool, high: Any, high_open: bool) -> Column:
    out = column.isNotNull()
    if low is not None:
        out &= column > low if low_open else column >= low
    if high is not None:
        out &= column < high if high_open else column <= high
    return out


_RANGES = {"text": _text_range, "number": _number_range, "whole": _whole_range}


def _like(p: ps.Like, names: Names) -> Wanted:
    column = _columns(p.name, names).get("text")
    if column is None:
        return Wanted(F.lit(False))
    word, text = patterns.shape(p.pattern)
    if word == "like" and patterns.tokens(p.pattern).count(patterns.MANY) > WILDCARDS_MAX:
        start = "" if p.negated else patterns.literal_prefix(p.pattern)
        return Wanted(column.startswith(start), exact=False)
    says = _PATTERNS[word](column, text)
    return Wanted(~says if p.negated else says)


_PATTERNS: dict[str, Callable[[Column, str], Column]] = {
    "prefix": Column.startswith,
    "suffix": Column.endswith,
    "contains": Column.contains,
    "like": Column.like,
}


def _near(p: ps.Near, names: Names) -> Wanted:
    """The box around the circle: what is in it differs in the last bit between Java and Python."""
    south, north, spans = (-90.0, 90.0, [(-180.0, 180.0)]) if p.negated else cells.circle_box(p)
    lat, lon = _columns("lat", names).get("number"), _columns("lon", names).get("number")
    if lat is None or lon is None:
        return Wanted(F.lit(False))
    longitudes = reduce(or_, [lon.between(west, east) for west, east in spans])
    return Wanted(lat.between(south, north) & longitudes, exact=False)


_OPERATORS: dict[type, Callable[[Any, Names], Wanted]] = {
    ps.OneOf: _one_of,
    ps.NoneOf: _none_of,
    ps.Between: _between,
    ps.Like: _like,
    ps.Exists: _exists,
    ps.Missing: _missing,
    ps.Near: _near,
}
