"""Filters as columns of an archive are the filters that they were."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strategies import attributes, filters, telling_attributes
from wayfare.core.filters import EVERYTHING, NOTHING, Filter
from wayfare.core.messages import check_attributes
from wayfare.core.predicates import Attributes
from wayfare.errors import InvalidNotification
from wayfare.pipeline import archive, columns
from wayfare.pipeline.archive import NOTIFICATIONS, Archive

EXAMPLES = 150

WRITTEN = [  # what is drawn rarely, or never together
    "x like '%a%b%a%b%a%' and y > 1",
    "x not like 'a%b%a%b%a%'",
    "x like '_!%%' escape '!' or x like '_\\%'",
    "near(0.5, 179.9, 100000) or near(89.9, 0, 50000)",
    "not near(0, 0, 100000) and x is null",
    "x >= 9007199254740993 and x <> 9007199254740995",
    "x in (9007199254740993, 0, 0.5)",
    "x < -9007199254740993 or y > 1e300",
    '"X" = 1 or "x y" = 2 or "größe" = \'groß\'',
    "nowhere is null and (exists(x) or nobody = 1)",
    "nowhere > 5",
    "rare = 5 or x = 1",
    "rare is null and exists(y)",
]
ODD: list[Attributes] = [
    {},
    {"X": 1, "x": 2, "x y": 2, "größe": "groß"},
    {"x": 2**53 + 1, "y": -0.0},
    {"x": 2**53 + 3, "y": True},
    {"x": -(2**63), "y": 2**63 - 1},
    {"x": "a%"},
    {"x": "a\\b"},
    {"x": "aab"},
    {"lat": 0.5, "lon": -179.9},
    {"lat": 90, "lon": 17},
    {"rare": 5},
    {"rare": "5", "y": 1},
]


def drawn() -> tuple[list[Filter], list[Attributes]]:
    """Many filters, and for each attributes that it may be wrong about."""
    some, values = [Filter.parse(text) for text in WRITTEN], list(ODD)

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        wanted = data.draw(filters())
        some.append(wanted)
        values.append(data.draw(telling_attributes(wanted)))
        values.append(data.draw(attributes()))

    draw()
    return some, [one for one in values if can_be_published(one)]


def can_be_published(values: Attributes) -> bool:
    """Not with a number next to the largest one that there is, which may be too large."""
    try:
        check_attributes(values)
    except InvalidNotification:
        return False
    return True


def frame(spark: SparkSession, values: list[Attributes]) -> DataFrame:
    rows = [("", n, "ticker", n, json.dumps(one), b"") for n, one in enumerate(values)]
    return spark.createDataFrame(rows, NOTIFICATIONS)


@pytest.fixture(scope="module")
def case(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Filter], list[Attributes], Archive]:
    """Filters, attributes, and an archive of these where `rare` came too late for a column."""
    some, values = drawn()
    path = str(tmp_path_factory.mktemp("columns"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "COLUMNS_MAX", 7)
        patch.setattr(archive, "ROW_GROUP_BYTES", 4096)
        every = frame(spark, values)
        common = every.where(~F.col("attributes").contains('"rare"'))
        late = sum("rare" in one for one in values)
        assert archive.add(spark, path, common, by=["x"]) == len(values) - late
        assert archive.add(spark, path, every) == late
    return some, values, archive.read(spark, path)


def test_columns_want_what_filters_match(
    case: tuple[list[Filter], list[Attributes], Archive],
) -> None:
    some, _, kept = case
    wanted = [columns.compiled(one, kept.names) for one in some]
    exact = 0
    for start in range(0, len(some), 50):
        part = [one.column.alias(str(n)) for n, one in enumerate(wanted[start : start + 50])]
        for row in kept.frame.select("attributes", *part).collect():
            values = json.loads(row.attributes)
            for n, (one, (_, is_exact)) in enumerate(
                zip(some[start : start + 50], wanted[start : start + 50], strict=True)
            ):
                says = bool(row[str(n)])
                if is_exact or not says:
                    assert says == one.matches(values), (str(one), values)
                exact += is_exact
    assert exact


def test_matching_is_what_filters_match(
    case: tuple[list[Filter], list[Attributes], Archive],
) -> None:
    """With push-down, from Parquet of small row groups; what is not exact is looked at again."""
    some, _, kept = case
    tried = {n: one for n, one in enumerate(some[:30]) if one not in (EVERYTHING, NOTHING)}
    whole: DataFrame | None = None
    for n, one in tried.items():
        found = columns.matching(kept, one).select(F.lit(n).alias("filter"), "attributes")
        whole = found if whole is None else whole.union(found)
    assert whole is not None
    got = sorted((row.filter, row.attributes) for row in whole.collect())
    rows = [row.attributes for row in kept.frame.select("attributes").collect()]
    assert got == sorted(
        (n, text) for n, one in tried.items() for text in rows if one.matches(json.loads(text))
    )
