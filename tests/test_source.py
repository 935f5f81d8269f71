"""The data source on Spark: streams and batches of the live network, and frames that are published."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import datasource as ds
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import wayfare.sync
from test_docs import blocks
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.errors import PipelineError
from wayfare.pipeline import archive
from wayfare.pipeline.archived import ArchiveReader
from wayfare.pipeline.batch import PastReader, narrowed
from wayfare.pipeline.settings import settings
from wayfare.pipeline.spark import explained
from wayfare.testing import Tree


@pytest.fixture
def brokers():
    """Starts brokers on loopback, linked as `a-b` says."""
    with ExitStack() as stack:
        yield lambda *links, **options: stack.enter_context(Tree(*links, **options))


pytestmark = pytest.mark.timeout(600)  # with Spark's start, on a busy machine

COLUMNS = {"service": StringType(), "free": LongType(), "lat": DoubleType()}


def wait(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


def session(tree, broker, client):
    [found] = tree._hosts[broker].core.border.of(client)
    return found


def heard(tree, broker, neighbour):
    """Whether subscriptions came from there."""
    return bool(list(tree._hosts[broker].core.routing.in_subs[neighbour]))


# ---- what is pushed down ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([ds.EqualTo(("service",), "parking")], "service = 'parking'"),
        (
            [ds.GreaterThan(("free",), 3), ds.LessThanOrEqual(("lat",), 52.5)],
            "free > 3 and lat <= 52.5",
        ),
        ([ds.In(("service",), ("bus", None, "tram"))], "service in ('bus', 'tram')"),
        ([ds.Not(ds.EqualTo(("service",), "bus"))], "service <> 'bus'"),
        ([ds.StringStartsWith(("service",), "pa_")], "service prefix 'pa_'"),
        ([ds.IsNotNull(("free",))], "exists free"),
        # What a column cannot say, or Wayfare's language cannot.
        ([ds.IsNull(("free",))], "true"),
        ([ds.EqualTo(("publisher",), "tom")], "true"),
        ([ds.EqualTo(("free",), 2**64)], "true"),
        ([ds.Not(ds.StringContains(("service",), "x"))], "true"),
    ],
)
def test_what_can_be_said_in_our_language_is_pushed_down(filters, wanted):
    pushed = narrowed(Filter.parse("true"), filters, COLUMNS)
    assert pushed == Filter.parse(wanted)
    both = narrowed(Filter.parse("free < 9 or open = true"), filters, COLUMNS)
    assert both == Filter.parse(f"(free < 9 or open = true) and ({wanted})")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "say where notifications are"),
        ({"path": "a", "broker": "b"}, "say where notifications are"),
        ({"broker": "http://b"}, "the option broker: 'http://b' is no address"),
        ({"broker": "b", "filter": "x >"}, "the option filter: "),
        (
            {"broker": "b", "maxRows": "many"},
            "the option maxRows is a whole number, at least 1, not",
        ),
        ({"broker": "b", "failOnDataLoss": "maybe"}, "the option failOnDataLoss is true or false"),
        ({"broker": "b", "brokers": "b"}, "the data source wayfare has no option brokers: it has"),
    ],
)
def test_options_that_say_nothing_good_are_refused(options, complaint):
    with pytest.raises(PipelineError, match=complaint):
        settings(options)


# ---- reading ---------------------------------------------------------------------------------


def stream(spark, address, schema="x long, delivery long", **options):
    given = {"broker": address, "client_id": "spark", "filter": "x > 0", **options}
    return spark.readStream.format("wayfare").schema(schema).options(**given).load()


def drain(frame, folder, **trigger):
    """Everything that is there by now, into files."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def rows(spark, folder):
    return sorted(tuple(row) for row in spark.read.parquet(f"{folder}/rows").collect())


def test_a_stream_goes_on_where_it_was_and_the_broker_keeps_the_rest(spark, brokers, tmp_path):
    tree = brokers("a-b", limits=Limits(window=4, backlog_count=50))
    drain(stream(spark, tree["a"]), tmp_path)  # from now on
    with wayfare.sync.connect(tree["b"], client_id="tom") as tom:
        tom.advertise("exists x")
        wait(lambda: heard(tree, "b", "a"))
        for x in range(1, 11):
            tom.publish({"x": x})
        tom.flush()
        wait(lambda: session(tree, "a", "spark").backlog.last == 10)
        drain(stream(spark, tree["a"], maxRows=4), tmp_path)
        assert rows(spark, tmp_path) == [(x, x) for x in range(1, 11)]
        batches = sorted(int(one.name) for one in Path(tmp_path, "checkpoint/offsets").glob("?"))
        last = Path(tmp_path, "checkpoint/offsets", str(batches[-1])).read_text().splitlines()[-1]
        assert json.loads(last)[tree["a"]]["delivery"] == 10
        assert len(batches) >= 3  # of at most 4 rows
        # Nothing is committed before the next batch begins: then the broker forgets.
        tom.publish({"x": 11})
        tom.flush()
        wait(lambda: session(tree, "a", "spark").backlog.last == 11)
        drain(stream(spark, tree["a"]), tmp_path)
        assert rows(spark, tmp_path) == [(x, x) for x in range(1, 12)]
        assert session(tree, "a", "spark").backlog.acked >= 10


def test_what_is_lost_fails_a_stream_that_does_not_allow_it(spark, brokers, tmp_path):
    tree = brokers("a", limits=Limits(backlog_count=5))
    drain(stream(spark, tree["a"]), tmp_path)
    with wayfare.sync.connect(tree["a"], client_id="tom") as tom:
        tom.advertise("exists x")
        for x in range(1, 9):
            tom.publish({"x": x})
        tom.flush()
        with pytest.raises(PipelineError) as caught, explained("the stream failed"):
            drain(stream(spark, tree["a"]), tmp_path)
        assert "notifications for spark were lost at a: backlog_count" in str(caught.value)
        drain(stream(spark, tree["a"], failOnDataLoss="false"), tmp_path)
    assert rows(spark, tmp_path) == [(x, x) for x in range(4, 9)]


def test_the_past_of_a_broker_is_a_batch(spark, brokers):
    tree = brokers("a", limits=Limits(past_count=100))
    with wayfare.sync.connect(tree["a"], client_id="tom") as tom:
        tom.advertise("exists service")
        for free in range(6):
            tom.publish({"service": "parking" if free % 2 else "bus", "free": free}, b"!")
        tom.publish({"service": 5, "free": 5})
        tom.flush()

    def past():
        return spark.read.format("wayfare").option("broker", tree["a"])

    asked = past().schema("service string, free long, payload binary").load()
    found = asked.where("service = 'parking' and free > 1").collect()
    assert [(row.free, bytes(row.payload)) for row in found] == [(3, b"!"), (5, b"!")]
    whole = past().option("filter", "free = 5").load().collect()
    assert [(row.publisher, row.broker, json.loads(row.attributes)) for row in whole] == [
        ("tom", "a", {"service": "parking", "free": 5}),
        ("tom", "a", {"service": 5, "free": 5}),
    ]
    assert tree._hosts["a"].core.border.of("spark") == []


def test_a_past_that_a_broker_cannot_deliver_as_a_whole_is_no_batch(brokers):
    """It may remember more than it keeps for a client that has not acknowledged anything."""
    limits = Limits(past_count=60, backlog_count=20, window=4, slow_publishers_ns=0)
    tree = brokers("a", limits=limits)
    with wayfare.sync.connect(tree["a"], client_id="tom") as tom:
        tom.advertise("exists x")
        for x in range(70):
            tom.publish({"x": x})
        tom.flush()

    def read(**options):
        given = settings({"broker": tree["a"], **options})
        parts = PastReader(given, StructType([StructField("x", LongType())])).partitions()
        return [x for part in parts for x in part.rows.column("x").to_pylist()]

    with pytest.raises(PipelineError, match="a cannot tell all it remembers: backlog_count"):
        read()
    assert read(failOnDataLoss="false") == [*range(50, 70)]
    assert read(filter="x > 55") == [*range(56, 70)]
    with pytest.raises(PipelineError, match="a cannot tell the last 60 s: brokers remember less"):
        read(filter="x > 55", since="60")


def test_an_archive_is_a_batch(spark, tmp_path):
    day = 86_400 * 10**9
    facts = [
        ("city", n * day // 4, "tom", n, json.dumps({"road": f"A{n % 3}", "kmh": n}), b"!")
        for n in range(12)
    ]
    archive.add(spark, str(tmp_path), spark.createDataFrame(facts, archive.NOTIFICATIONS))
    read = spark.read.format("wayfare").option("filter", "kmh > 1")
    whole = read.load(str(tmp_path)).orderBy("number").collect()
    assert [(*row[:4], json.loads(row[4]), row[5]) for row in whole] == [
        (*fact[:4], json.loads(fact[4]), fact[5]) for fact in facts[2:]
    ]
    assert {row.broker for row in whole} == {None}
    roads = read.schema("road string, kmh long, number long, time_ns long").load(str(tmp_path))
    some = roads.where(f"road = 'A2' and time_ns >= {day} and time_ns < {3 * day}")
    assert sorted(tuple(row)[:3] for row in some.collect()) == [
        ("A2", 5, 5),
        ("A2", 8, 8),
        ("A2", 11, 11),
    ]
    # Of three days, the files of two.
    reader = ArchiveReader(settings({"path": str(tmp_path)}), roads.schema)
    files = len(reader.partitions())
    reader.pushFilters([ds.GreaterThanOrEqual(("time_ns",), day), ds.EqualTo(("road",), "A2")])
    assert 0 < len(reader.partitions()) < files
    assert reader._wanted == Filter.parse("road = 'A2'")
    with pytest.raises(PipelineError, match="there is no archive at"):
        ArchiveReader(settings({"path": "/nowhere"}), roads.schema).partitions()


# ---- publishing ------------------------------------------------------------------------------


def test_rows_are_published(spark, brokers):
    tree = brokers("a-b")
    with wayfare.sync.connect(tree["a"]) as anna, anna.subscribe("exists x") as all:
        frame = spark.range(1, 41).selectExpr(
            "id as x", "if(id % 2 = 0, 'even', null) as sort", "cast('!' as binary) as payload"
        )
        options = {"broker": tree["b"], "advertise": "exists x"}
        frame.write.format("wayfare").options(**options).mode("append").save()
        got = [all.get(10) for _ in range(40)]
        assert sorted((one["x"], one.get("sort"), one.payload) for one in got) == [
            (x, None if x % 2 else "even", b"!") for x in range(1, 41)
        ]
        assert tree._hosts["b"].core.border.of(got[0].publisher) == []


def test_a_batch_of_a_stream_that_is_repeated_is_not_published_again(spark, brokers, tmp_path):
    tree = brokers("a-b")

    def run(number):
        """What is in the files by now, in one batch."""
        line = {"attributes": json.dumps({"x": number, "half": number / 2})}
        Path(tmp_path, f"in/{number}.json").write_text(json.dumps(line))
        again()

    def again():
        lines = spark.readStream.schema("attributes string").json(f"{tmp_path}/in")
        query = (
            lines.writeStream.format("wayfare")
            .options(broker=tree["b"], advertise="exists x", client_id="lines")
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    Path(tmp_path, "in").mkdir()
    with wayfare.sync.connect(tree["a"]) as anna, anna.subscribe("exists x") as all:
        run(1)
        run(2)
        Path(tmp_path, "checkpoint/commits/1").unlink()  # killed before it was written
        Path(tmp_path, "checkpoint/commits/.1.crc").unlink(missing_ok=True)
        again()
        run(3)
        got = [all.get(10) for _ in range(3)]
        assert [dict(one) for one in got] == [{"x": x, "half": x / 2} for x in (1, 2, 3)]
        with pytest.raises(TimeoutError):
            all.get(0.3)
        assert {one.publisher for one in got} == {got[0].publisher}


# ---- what the documentation says -------------------------------------------------------------


def test_the_examples_run(spark, brokers, tmp_path):
    """Those that are fenced as `python spark`, in one namespace."""
    tree = brokers("porto", limits=Limits(past_count=100))
    facts = [("city", 1, "tom", 1, '{"service": "parking"}', b"")]
    archive.add(spark, f"{tmp_path}/city", spark.createDataFrame(facts, archive.NOTIFICATIONS))

    def asked(read, schema, **options):
        given = read.format("wayfare").options(broker=tree["porto"], **options)
        return given.schema(schema).load() if schema else given.load()

    names = {
        "spark": spark,
        "address": tree["porto"],
        "archive_path": f"{tmp_path}/city",
        "folder": str(tmp_path),
        "past_of": lambda schema="": asked(spark.read, schema),
        "live_of": lambda schema="": asked(
            spark.readStream, schema, client_id="parking", since=60, filter="free >= 0"
        ),
    }
    with wayfare.sync.connect(tree["porto"], client_id="tom") as tom:
        tom.advertise("exists free")
        for free in range(5):
            tom.publish({"service": "parking", "free": free})
        tom.flush()
    page = Path(__file__).parent.parent / "docs/pipeline.md"
    examples = [one for one in blocks(page.read_text("utf-8")) if one.info == "python spark"]
    assert len(examples) >= 5
    for one in examples:
        exec(compile(one.text, f"{page}:{one.line}", "exec"), names)
    assert len(names["kept"].collect()) == 1
    assert [row.free for row in spark.read.parquet(f"{tmp_path}/rows").collect()] == [0, 1, 2, 3, 4]
