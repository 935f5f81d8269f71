"""Analyse and mine as jobs over streams: at the end they know what the whole log says."""

import json
import time

import pytest

import wayfare.sync
from test_analyse import (
    LOGS,
    ROAMING,
    attached,
    delivered,
    frame_of,
    published,
    subscribed,
    unsubscribed,
)
from wayfare.core.prediction import encode
from wayfare.errors import PipelineError
from wayfare.eventlog import IS_EVENT, Event, fields
from wayfare.pipeline import events
from wayfare.pipeline.analyse import analyse
from wayfare.pipeline.batches import Batches
from wayfare.pipeline.mine import Plan, attachments, mine, mine_stream, streamed
from wayfare.pipeline.running import RUNNING, analyse_stream, running
from wayfare.sim import roaming
from wayfare.testing import Tree

SAME = (
    "published expected delivered duplicates extra past order_violations gaps told_lost"
    " delay_p50_ms delay_p90_ms delay_p99_ms delay_max_ms"
).split()
S = 10**9
LATE_S = 0.5

# Over more time than is open: who comes and goes is still known, and so is what holds.
STANDING = [
    attached(0, "x", 1),
    subscribed(1, "price > 0"),
    subscribed(2, "price > 5"),
    published(1 * S, 1, 7),
    delivered(1 * S + 9, 1, 1),
    unsubscribed(2 * S, "price > 5"),
    Event(3 * S, "left", "a", "x", epoch=1),
    published(4 * S, 2, 7),
    attached(5 * S, "y", 2),
    attached(6 * S, "x", 3),
    published(7 * S, 3, 3),
    delivered(7 * S + 9, 3, 2),
    unsubscribed(8 * S, "price > 0"),
    published(9 * S, 4, 7),
    subscribed(10 * S, "price > 5"),
    published(11 * S, 5, 7),
    published(12 * S, 6, 1),
    delivered(12 * S + 9, 5, 3),
]


@pytest.fixture(scope="module")
def logs():
    """Runs whose log can be told bit by bit; in one, clients that move lose much, or get it twice."""
    roamed = []
    roaming.run(roaming.Parameters(**ROAMING, relocation="naive"), roamed.extend)
    whole = {"roamed": roamed, "standing": STANDING, **LOGS}
    left_out = ("measured", "sent", "updated", "tables", "placed")
    return {run: [one for one in log if one.kind not in left_out] for run, log in whole.items()}


@pytest.fixture(scope="module")
def whole(spark, logs):
    """What the job over the whole log says of each run."""
    with analyse(frame_of(spark, logs)) as analysis:
        return {row.run: row.asDict() for row in analysis.tables["runs"].collect()}


def of_stream(spark, folder):
    found = running(spark, folder)
    assert found.dtypes == [tuple(column.split()) for column in RUNNING.split(",")]
    return {row.run: row.asDict() for row in found.collect()}


def assert_same(found, whole):
    assert set(found) == set(whole)
    for run, row in found.items():
        assert {name: row[name] for name in SAME} == {name: whole[run][name] for name in SAME}, run
        assert row["lost"] + row["awaited"] == whole[run]["lost"], run


def test_a_stream_in_parts_comes_to_the_figures_of_the_whole_log(spark, tmp_path, logs, whole):
    """Three batches, the last two with the checkpoint of the first; most is settled before the end."""
    folder, out = tmp_path / "logs", tmp_path / "out"
    folder.mkdir()

    def come(part, parts, behind):
        lines = [
            json.dumps(fields(event, run))
            for run, log in [*logs.items(), ("behind", behind)]
            for event in (log if run == "behind" else portion(log, part, parts))
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))

    def judge():
        stream = spark.readStream.schema(events.EVENTS).option("maxFilesPerTrigger", 1)
        job = analyse_stream(stream.json(str(folder)), out, LATE_S)
        assert job.trigger(availableNow=True).start().awaitTermination(200)
        return of_stream(spark, out)

    # 1 comes too late, and so does a copy of 2.
    come(0, 3, [subscribed(0, "price > 0"), published(1, 1, 7), published(2, 2, 7)])
    first = judge()
    assert (first["behind"]["lost"], first["behind"]["awaited"]) == (0, 2)
    come(1, 3, [delivered(3, 2, 1), published(1 * S, 3, 7)])
    come(2, 3, [delivered(1 * S, 1, 2), delivered(1 * S + 1, 2, 3), delivered(1 * S + 2, 3, 4)])
    found = judge()
    behind = found.pop("behind")
    counts = ("expected", "delivered", "lost", "awaited", "duplicates", "extra")
    assert [behind[name] for name in counts] == [3, 2, 1, 0, 0, 2]
    assert_same(found, whole)
    row, log = found["roamed"], logs["roamed"]
    # Or nothing of this was put to the test.
    assert min(row["lost"], row["duplicates"], found["order"]["order_violations"]) > 0
    assert (row["attachments"], row["last_ns"]) == (
        sum(one.kind == "attached" for one in log),
        max(one.time_ns for one in log),
    )
    (_, newer) = sorted((out / "batches").iterdir(), key=lambda one: int(one.name))
    kept = spark.read.parquet(str(newer / "rows"))
    assert kept.where("run = 'roamed'").count() < len(log) / 2
    standing = kept.where("run = 'standing'").orderBy("time_ns").collect()
    assert [(row.kind, row.time_ns) for row in standing] == [
        ("attached", 6 * S),
        ("subscribed", 10 * S),
        ("published", 12 * S),
    ]


def portion(log, part, parts):
    return log[part * len(log) // parts : (part + 1) * len(log) // parts]


def test_a_batch_that_is_repeated_leaves_the_same(spark, tmp_path):
    def known(number):
        return Batches(tmp_path, {"sums": "x bigint"}).before(spark, number)["sums"]

    def add(number, x):
        batches = Batches(tmp_path, {"sums": "x bigint"})
        before = batches.before(spark, number)["sums"]
        batches.write(number, {"sums": before.union(spark.range(x, x + 1))})

    for number, x in ((0, 5), (1, 6), (1, 6), (2, 7)):
        add(number, x)
    (tmp_path / "batches/3.part/sums").mkdir(parents=True)  # killed before it was whole
    latest = Batches(tmp_path, {"sums": "x bigint"}).latest(spark)["sums"]
    assert sorted(row.x for row in latest.collect()) == [5, 6, 7]
    add(3, 8)
    assert sorted(row.x for row in known(4).collect()) == [5, 6, 7, 8]
    assert sorted(one.name for one in (tmp_path / "batches").iterdir()) == ["2", "3"]
    with pytest.raises(PipelineError, match=r"after batch 0 is not at .*: the checkpoint beside"):
        known(1)
    with pytest.raises(PipelineError, match=r"there is nothing of a stream at .*elsewhere yet"):
        running(spark, tmp_path / "elsewhere")


# ---- over the live network -------------------------------------------------------------------


def test_both_jobs_run_over_the_live_network(spark, tmp_path, logs, whole):
    """A client publishes what happened at one broker; two streams of Spark read it at another."""

    def live(tree, name):
        options = {"broker": tree["a"], "client_id": name, "filter": IS_EVENT}
        rows = spark.readStream.format("wayfare").options(**options).load()
        return events.of_notifications(rows)

    def wait(what):
        end = time.monotonic() + 200
        while not what():
            for job in jobs:
                assert job.exception() is None
            assert time.monotonic() < end, "it does not happen"
            time.sleep(0.05)

    told, models = [], []
    with (
        Tree("a-b") as tree,
        wayfare.sync.connect(tree["b"], client_id="log") as log,
        log.offer(IS_EVENT) as offer,
    ):
        jobs = [
            analyse_stream(live(tree, "analysis"), tmp_path / "analysis", tell=told.append).start(),
            mine_stream(live(tree, "mine"), tmp_path / "mine", tell=models.append).start(),
        ]
        wait(lambda: offer.wanted)
        wait(lambda: all(tree._hosts["a"].core.border.of(one) for one in ("analysis", "mine")))
        for part in range(2):
            log.publish({"kind": "no event", "run": "x", "time_ns": "soon"})
            for run, rows in logs.items():
                for event in portion(rows, part, 2):
                    log.publish(fields(event, run))
            log.flush()
            wait(lambda so_far=part: min(len(told), len(models)) > so_far)
        for job in jobs:
            job.processAllAvailable()
            job.stop()
    assert_same(of_stream(spark, tmp_path / "analysis"), whole)
    model, _ = mine(attachments(frame_of(spark, logs)), Plan())
    assert encode(models[-1]) == encode(streamed(spark, tmp_path / "mine")) == encode(model)
    assert len(model.moves) > 1
