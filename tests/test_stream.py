"""The stream reader of the data source without Spark: what it is asked, killed in between."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

import wayfare.sync
from wayfare.core.history import Limits
from wayfare.errors import PipelineError
from wayfare.pipeline.rows import check_schema
from wayfare.pipeline.settings import settings
from wayfare.pipeline.stream import StreamReader
from wayfare.testing import Tree

SCHEMA = StructType().add("x", "long").add("broker", "string").add("delivery", "long")
ALL = ReadAllAvailable()


def reader(*addresses, **options):
    given = {"client_id": "spark", "filter": "x > 0", "broker": ",".join(addresses), **options}
    return StreamReader(settings(given), SCHEMA)


def kill(one):
    """Its process ends, and says nothing to anybody."""

    async def cut(each):
        each._conversation._keeper.cancel()
        each._conversation.wire.abort("killed")

    for each in one._readers.values():
        one._call(cut, each)
    one._background.stop()


def publish(address, *xs):
    with wayfare.sync.connect(address) as tom:
        tom.advertise("exists x")
        for x in xs:
            tom.publish({"x": x})
        tom.flush()


def end_of(one, start, wanted, limit=ALL):
    """The latest offset, when so much has come."""
    for _ in range(100):
        end = one.latestOffset(start, limit)
        if sum(each["delivery"] for each in end.values()) >= wanted:
            return end
    raise AssertionError(f"{wanted} do not come: {end}")


def rows(one, start, end):
    batches = [batch for part in one.partitions(start, end) for batch in one.read(part)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_several_networks_are_one_stream():
    with Tree("a") as first, Tree("b") as second:
        both = reader(first["a"], second["b"])
        start = both.initialOffset()
        assert both.latestOffset(start, ALL) == start
        publish(first["a"], 1, 2, 3)
        publish(second["b"], 7)
        end = end_of(both, start, 4)
        assert rows(both, start, end) == [(1, "a", 1), (2, "a", 2), (3, "a", 3), (7, "b", 1)]
        # Each has its share of what a batch may have.
        some = end_of(both, start, 3, ReadMaxRows(4))
        assert [each["delivery"] for each in some.values()] == [2, 1]
        both.commit(end)
        kill(both)
        publish(second["b"], 8)
        again = reader(first["a"], second["b"])
        later = end_of(again, end, 5)
        assert rows(again, end, later) == [(8, "b", 2)]
        again.stop()
        alone = reader(first["a"])
        with pytest.raises(
            PipelineError, match=f"a batch with deliveries of {second['b']} that is not"
        ):
            alone.partitions(end, later)
        assert list(alone.latestOffset(later, ALL)) == [first["a"]]
        alone.stop()


def test_killed_in_its_first_batch_it_has_the_same_rows_again():
    with Tree("a") as tree:
        one = reader(tree["a"])
        start = one.initialOffset()
        assert one.latestOffset(start, ALL) == start
        publish(tree["a"], 1, 2)
        end = end_of(one, start, 2)
        first = rows(one, start, end)
        kill(one)
        publish(tree["a"], 3)
        again = reader(tree["a"])
        assert again.initialOffset() == start
        assert rows(again, start, end) == first == [(1, "a", 1), (2, "a", 2)]
        again.commit(end)
        assert rows(again, end, end_of(again, end, 3)) == [(3, "a", 3)]
        again.stop()


def test_a_batch_that_nobody_has_any_more_is_told_or_left_out():
    with Tree("a") as tree:
        one = reader(tree["a"])
        start = one.initialOffset()
        assert one.latestOffset(start, ALL) == start
        publish(tree["a"], *range(1, 6))
        end = end_of(one, start, 5)
        kill(one)
        tree.stop("a")
        tree.start("a")
        strict = reader(tree["a"])
        with pytest.raises(
            PipelineError,
            match="an unknown number of notifications for spark were lost at a: no session",
        ):
            strict.partitions(start, end)
        kill(strict)
        lenient = reader(tree["a"], failOnDataLoss="false")
        assert rows(lenient, start, end) == []
        publish(tree["a"], 9)
        later = end_of(lenient, end, 7)  # a number stands for what was lost
        assert rows(lenient, end, later) == [(9, "a", 7)]
        kill(lenient)
        last = reader(tree["a"], failOnDataLoss="false")
        assert rows(last, end, later) == [(9, "a", 7)]
        last.stop()


def test_what_is_there_now_is_all_that_a_stream_reads_that_ends():
    with Tree("a", limits=Limits(past_count=10)) as tree:
        publish(tree["a"], 1, 2, 3)
        one = reader(tree["a"], since=60)
        one.prepareForTriggerAvailableNow()
        start = one.initialOffset()
        end = one.latestOffset(start, ReadMaxRows(2))
        publish(tree["a"], 4)
        later = one.latestOffset(end, ALL)
        assert rows(one, start, later) == [(1, "a", 1), (2, "a", 2), (3, "a", 3)]
        assert one.latestOffset(later, ALL) == later
        one.stop()


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        (("time_ns", "string"), "the column time_ns is bigint, not string"),
        (
            ("free", "integer"),
            "the column free is int: an attribute is a string, bigint, double or boolean",
        ),
    ],
)
def test_columns_that_rows_cannot_have_are_refused(column, complaint):
    with pytest.raises(PipelineError, match=complaint):
        check_schema(StructType().add(*column))
