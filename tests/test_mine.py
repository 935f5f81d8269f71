"""Handover logs to models of movement: each transform on a literal frame, the job on walks in a ring."""

import json
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from wayfare.cli import main, models
from wayfare.core.messages import BrokerId
from wayfare.core.prediction import START, Movement, encode
from wayfare.errors import ModelError, PipelineError, UsageError
from wayfare.eventlog import Event, writer
from wayfare.net.maps import read_movement
from wayfare.pipeline import events
from wayfare.pipeline.mine import (
    HANDOVERS,
    Plan,
    counts,
    mine,
    mine_stream,
    moves,
    read,
    streamed,
    visits,
    without_bounces,
)

VISITS = "run string, client string, time_ns long, broker string, arrived boolean"
MOVES = "run string, client string, time_ns long, previous string, broker string, to string"
SECOND_NS = 10**9


def handovers(spark: SparkSession, *rows: tuple[int, str | None, str]) -> DataFrame:
    return spark.createDataFrame([("", "anna", *row) for row in rows], HANDOVERS)


def way(spark: SparkSession, text: str) -> DataFrame:
    """Visits of anna, like "0a 5b": at time 0 she was first seen at a, and at 5 she came to b."""
    rows = [(int(one[:-1]), one[-1]) for one in text.split()]
    return spark.createDataFrame(
        [("", "anna", time, broker, i > 0) for i, (time, broker) in enumerate(rows)], VISITS
    )


# ---- transforms --------------------------------------------------------------------------------


def test_visits_follow_from_handovers(spark: SparkSession) -> None:
    log = handovers(spark, (9, "d", "e"), (1, "a", "b"), (3, "b", "c"), (4, "c", "c"))
    others = [("", "ben", 1, "a", "b"), ("two", "anna", 2, "b", "a")]
    expected = [
        ("", "anna", 1, "a", False),
        ("", "anna", 1, "b", True),
        ("", "anna", 3, "c", True),
        ("", "anna", 9, "d", False),  # nobody saw how she came there
        ("", "anna", 9, "e", True),
        ("", "ben", 1, "a", False),
        ("", "ben", 1, "b", True),
        ("two", "anna", 2, "b", False),
        ("two", "anna", 2, "a", True),
    ]
    found = log.union(spark.createDataFrame(others, HANDOVERS)).transform(visits)
    assertDataFrameEqual(found, spark.createDataFrame(expected, VISITS))


def test_without_from_a_client_comes_from_where_it_was(spark: SparkSession) -> None:
    log = handovers(spark, (1, None, "a"), (5, None, "a"), (7, None, "b"), (9, None, "a"))
    assertDataFrameEqual(log.transform(visits), way(spark, "1a 7b 9a"))


BOUNCES = {
    "0a 20b 29a 50c": "0a 50c",
    "0a 20b 30a 50c": "0a 20b 30a 50c",  # long enough
    "0a 20b 29c": "0a 20b 29c",  # no way back
    "0a 20b 21a 22b 23a 50c": "0a 50c",
    "0a 20b 21a 22b 50c": "0a 22b 50c",  # she went over after all
    "0a 20b": "0a 20b",
}


def test_bounces_are_taken_away(spark: SparkSession) -> None:
    def ways(texts: Iterable[str]) -> DataFrame:
        parts = [way(spark, text).replace("anna", str(i)) for i, text in enumerate(texts)]
        return reduce(DataFrame.union, parts)

    found = ways(BOUNCES).transform(without_bounces(10))
    assertDataFrameEqual(found, ways(BOUNCES.values()))


def test_who_was_not_seen_coming_has_not_bounced(spark: SparkSession) -> None:
    seen = handovers(spark, (1, "a", "b"), (2, "c", "b")).transform(visits)
    assertDataFrameEqual(seen.transform(without_bounces(10)), seen)


def test_moves_know_the_broker_before_within_a_journey(spark: SparkSession) -> None:
    log = handovers(spark, (1, "a", "b"), (11, "b", "c"), (22, "c", "d"), (25, "e", "f"))
    expected = [
        ("", "anna", 1, START, "a", "b"),
        ("", "anna", 11, "a", "b", "c"),
        ("", "anna", 22, START, "c", "d"),  # she stayed for 11 there
        ("", "anna", 25, START, "e", "f"),  # nobody knows how she came there
    ]
    found = log.transform(visits).transform(moves(journey_ns=10))
    assertDataFrameEqual(found, spark.createDataFrame(expected, MOVES))


def test_moves_are_counted_before_and_after_the_split(spark: SparkSession) -> None:
    seen = spark.createDataFrame(
        [
            ("", client, time, previous, "b", "c")
            for client, time, previous in [
                ("anna", 1, "a"), ("anna", 9, "a"), ("anna", 10, "a"), ("ben", 2, "a"), ("ben", 3, ""),
            ]
        ],
        MOVES,
    )  # fmt: skip
    schema = "client string, previous string, broker string, to string, train long, test long"
    everybody = [("", "a", "b", "c", 3, 1), ("", "", "b", "c", 1, 0)]
    assertDataFrameEqual(seen.transform(counts(10)), spark.createDataFrame(everybody, schema))
    each = [
        ("anna", "a", "b", "c", 2, 1),
        ("ben", "a", "b", "c", 1, 0),
        ("ben", "", "b", "c", 1, 0),
    ]
    assertDataFrameEqual(
        seen.transform(counts(10, per_client=True)), spark.createDataFrame(each, schema)
    )


# ---- reading -----------------------------------------------------------------------------------

CSV = "cab,at,new\n7,2008-05-17 10:00:44,1\n7,1211018445.5,2\n"


def test_logs_may_be_written_in_many_ways(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "taxis.csv").write_text(CSV)
    expected = handovers(
        spark, (1211018444 * SECOND_NS, None, "1"), (1211018445_500_000_000, None, "2")
    ).replace("anna", "7")
    names = {"client": "cab", "time": "at", "to": "new"}
    assertDataFrameEqual(read(spark, tmp_path / "taxis.csv", names), expected)
    stamped = expected.selectExpr(
        "7 as client", "timestamp_micros(time_ns div 1000) as time", "int(`to`) as `to`"
    )
    stamped.write.parquet(str(tmp_path / "stamped"))
    assertDataFrameEqual(read(spark, tmp_path / "stamped"), expected)
    expected.selectExpr("client", "time_ns / 1e9 as time", "`to`", "`from`").write.parquet(
        str(tmp_path / "seconds")
    )
    assertDataFrameEqual(read(spark, tmp_path / "seconds"), expected)


@pytest.mark.parametrize("name", ["run.jsonl", "run.parquet"])
def test_of_an_event_log_the_attachments_are_taken(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    with writer(tmp_path / name, "one") as log:
        log.write([Event(1, "attached", "anna", "a"), Event(2, "detached", "anna", "a")])
        log.write([Event(3, "attached", "anna", "b")])
    found = read(spark, tmp_path / name)
    expected = [("one", "anna", 1, None, "a"), ("one", "anna", 3, None, "b")]
    assertDataFrameEqual(found, spark.createDataFrame(expected, HANDOVERS))


def test_what_is_no_log_is_refused_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "taxis.csv").write_text(CSV)
    (tmp_path / "bad.csv").write_text("client,time,to\nanna,soon,a\nanna,1,b\n")
    (tmp_path / "empty.csv").write_text("client,time,to\n")
    (tmp_path / "still.csv").write_text("client,time,to\nanna,1,a\n")
    (tmp_path / "no.parquet").write_text("nothing of the kind")
    cases: list[tuple[str, dict[str, str], str]] = [
        (
            "taxis.csv",
            {},
            r"has no column client and no time and no to \(it has cab, at, new\): say",
        ),
        ("taxis.csv", {"from": "old"}, "and no from=old"),
        ("taxis.csv", {"cab": "client"}, "there is no column cab to name: name client, time"),
        ("bad.csv", {}, "has 1 rows of 2 without a client, a broker, or a time that can be read"),
        ("empty.csv", {}, "is empty: it has no handover"),
        ("still.csv", {}, "has no move: every client in it is at one broker only"),
        ("none.parquet", {}, "cannot be read as a handover log: there is nothing at that path"),
        ("no.parquet", {}, "cannot be read as a handover log: a file there is damaged"),
    ]
    for name, columns, complaint in cases:
        with pytest.raises(PipelineError, match=complaint):
            mine(read(spark, tmp_path / name, columns), Plan(), name)
    for how, complaint in [
        ({"coverage": 0.0}, "coverage is 0: give a share"),
        ({"order": 3}, "order is 3"),
        ({"dwell_ns": -1}, "give seconds, 0 or more"),
    ]:
        with pytest.raises(PipelineError, match=complaint):
            Plan(**how)  # type: ignore[arg-type]


# ---- the job -----------------------------------------------------------------------------------


def ring(clients: int, steps: int, seed: int = 1, turn: float = 0.1) -> list[tuple[Any, ...]]:
    """They go around a ring of 8 brokers, minute by minute, and sometimes turn."""
    random, rows = Random(seed), []
    for client in range(clients):
        at, step = random.randrange(8), random.choice((-1, 1))
        for minute in range(steps):
            step = -step if random.random() < turn else step
            old, at = at, (at + step) % 8
            rows.append(("", f"c{client}", minute * 60 * SECOND_NS, f"b{old}", f"b{at}"))
    return rows


def test_the_end_of_a_log_is_foretold_from_its_beginning(spark: SparkSession) -> None:
    log = spark.createDataFrame(ring(10, 400), HANDOVERS)
    model, report = mine(log, Plan(coverage=0.85))
    assert (report.handovers, report.clients, report.brokers, report.moves) == (4000, 10, 8, 4000)
    first, second = report.predictions
    assert first.moves == second.moves == 10 * 120  # the last 30 % of the time, and all of them
    assert first.top[1] == pytest.approx(0.5, abs=0.05)  # left or right
    assert second.top[1] == pytest.approx(0.9, abs=0.03)  # mostly straight on
    assert first.top[3] == second.top[3] == 1
    one, two = (
        next(one for one in report.sets if one.order == n and one.coverage == 0.85) for n in (1, 2)
    )
    assert (one.mean_per_broker, one.mean_per_move, one.largest, one.covered) == (2, 2, 2, 1)
    assert two.mean_per_move == pytest.approx(1, abs=0.1)
    assert two.covered == pytest.approx(0.9, abs=0.03)
    assert sum(one.count for one in model.moves) == 4000  # the model is of all of it
    assert model.next_broker(BrokerId("b3"), BrokerId("b2")) == "b4"
    assert model.next_broker(BrokerId("b3"), BrokerId("b4")) == "b2"


def test_the_dwell_filter_is_judged_on_all_moves_too(spark: SparkSession) -> None:
    """Anna looks in at b for 5 s, and stays at c for 40."""
    rows = [
        ("", "anna", (start + after) * SECOND_NS, old, new)
        for start in range(0, 10_000, 100)
        for after, old, new in ((0, "a", "b"), (5, "b", "a"), (50, "a", "c"), (90, "c", "a"))
    ]
    log = spark.createDataFrame(rows, HANDOVERS)
    model, report = mine(log, Plan(order=1, dwell_ns=10 * SECOND_NS))
    assert (report.moves, report.bounces) == (400, 200)
    tested = {(one.learnt_from, one.tested_on): one for one in report.predictions}
    assert {key: one.moves for key, one in tested.items()} == {
        ("all", "all"): 120,
        ("no bounces", "no bounces"): 60,
        ("no bounces", "all"): 120,
    }
    assert tested["no bounces", "no bounces"].top[1] == 1
    sets = {
        (one.learnt_from, one.tested_on): one
        for one in report.sets
        if one.coverage == 0.95 and one.sized == "context"
    }
    assert {key: one.covered for key, one in sets.items()} == {
        ("all", "all"): 1,
        ("no bounces", "no bounces"): 1,
        ("no bounces", "all"): 0.5,
    }
    assert tested["no bounces", "all"].top[1] == 0.5  # nothing is known of b, nor of going there
    assert model.successors(BrokerId("a"), 1) == ["c"]


def test_a_client_is_foretold_better_by_its_own_ways(spark: SparkSession) -> None:
    """One goes around to the left, the other to the right."""
    rows = [
        (
            "",
            client,
            minute * 60 * SECOND_NS,
            f"b{step * minute % 5}",
            f"b{step * (minute + 1) % 5}",
        )
        for client, step in (("anna", 1), ("ben", -1))
        for minute in range(2000)
    ]
    model, report = mine(spark.createDataFrame(rows, HANDOVERS), Plan(order=1, per_client=True))
    found = {one.per_client: one.top[1] for one in report.predictions}
    assert found == {False: pytest.approx(0.5, abs=0.01), True: 1}
    assert {one.client for one in model.moves} == {"anna", "ben"}


# ---- as a stream -------------------------------------------------------------------------------


def test_a_stream_is_counted_as_the_whole_log_is(spark: SparkSession, tmp_path: Path) -> None:
    facts = [
        Event(time_ns, "attached", client, to)
        for _, client, time_ns, _, to in sorted(ring(4, 60), key=lambda row: row[2])
    ]
    (tmp_path / "logs").mkdir()

    def come(number: int, some: list[Event]) -> None:
        with writer(tmp_path / f"logs/{number}.parquet", "one") as log:
            log.write(some)

    def take() -> None:
        stream = spark.readStream.schema(events.EVENTS).option("maxFilesPerTrigger", 1)
        log = stream.parquet(str(tmp_path / "logs"))
        query = mine_stream(log, str(tmp_path / "out")).trigger(availableNow=True).start()
        query.awaitTermination()

    come(1, facts[:50])
    come(2, facts[50:51])
    take()
    come(3, [*facts[51:120], Event(facts[119].time_ns, "detached", "c0", "b0")])
    come(4, facts[120:])
    take()  # goes on where it was
    whole, _ = mine(read(spark, tmp_path / "logs"), Plan())
    assert encode(streamed(spark, str(tmp_path / "out"))) == encode(whole)
    with pytest.raises(PipelineError, match=r"there is nothing of a stream at .*elsewhere yet"):
        streamed(spark, str(tmp_path / "elsewhere"))


# ---- the command -------------------------------------------------------------------------------


def test_the_command_mines_what_the_city_then_foretells(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, model = str(tmp_path / "run.parquet"), tmp_path / "model.json"
    city = "sim city --height 3 --degree 2 --publishers 9 --subscribers 6 --turn 0 --json".split()
    assert main([*city, "--minutes", "20", "--log", log]) == 0
    capsys.readouterr()
    assert main(["mine", log, "--out", str(model), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["brokers"] == 4 and told["predictions"][1]["top"]["1"] == 1.0
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == ["model.json"]

    def rebuilding(*how: str) -> tuple[float, float]:
        prefetching = [*city, "--seed", "1", "--minutes", "3", "--algorithm", "prefetching", *how]
        assert main(prefetching) == 0
        figures = json.loads(capsys.readouterr().out)
        return figures["lost"], figures["rebuild_max_ms"]

    assert rebuilding("--model", str(model)) == rebuilding()  # as good as knowing it all
    assert main(["mine", log, "--order", "1", "--out", str(model)]) == 0
    out = capsys.readouterr().out
    assert "top-1" in out and f"{model}: the model of all moves," in out
    assert max(map(len, out.replace(str(model), "").splitlines())) <= 80
    lost, latest = rebuilding("--model", str(model))
    assert lost > 0 and latest > rebuilding()[1]


def test_the_command_says_what_is_wrong(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.csv").write_text("client,time,to\nanna,1,a\nanna,2,b\n")
    (tmp_path / "other.json").write_text("{}")
    log, there = str(tmp_path / "log.csv"), str(tmp_path / "there.json")
    assert main(["mine", log, "--out", there]) == 0
    capsys.readouterr()
    city = "sim city --height 2 --minutes 1 --algorithm".split()
    for words, complaint in [
        (["mine", log, "--out", f"{tmp_path}/no/model.json"], "there is no folder"),
        (["mine", log, "--out", str(tmp_path)], "cannot write"),
        (["mine", log, "--coverage", "2"], "coverage is 2: give a share up to 1"),
        (["mine", f"{tmp_path}/none.csv"], "there is nothing at that path"),
        ([*city, "prefetching", "--model", f"{tmp_path}/none"], "cannot read"),
        ([*city, "prefetching", "--model", f"{tmp_path}/other.json"], "cannot be used: it is no"),
        ([*city, "prefetching", "--model", there], "the model knows no broker of this city"),
        ([*city, "delayed", "--model", there], "--model is for prefetching, which delayed"),
    ]:
        assert main(words) == 2, words
        assert complaint in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["mine", log, "--columns", "client"])
    assert "names no columns: give them like" in capsys.readouterr().err


def test_a_model_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.json"
    models.write(path, Movement([]))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match=r"cannot write .*: No space left on device"):
        models.write(path, Movement([], order=1))
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
    path.write_bytes(before[:20])
    with pytest.raises(ModelError, match=r"model.json cannot be used: it is no movement model"):
        read_movement(path)
