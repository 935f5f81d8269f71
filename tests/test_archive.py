"""Archives: what is added is there once, and what is asked for is found without reading all of it."""

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from wayfare import cli
from wayfare.bench.history import rows_read, scan_of
from wayfare.core.filters import Filter
from wayfare.core.messages import Area, State
from wayfare.core.predicates import Attributes
from wayfare.errors import PipelineError
from wayfare.eventlog import Event, writer
from wayfare.pipeline import archive, columns, events, history
from wayfare.pipeline.archive import DAY_NS, NOTIFICATIONS, USE

MARCH_NS = 20_541 * DAY_NS  # 2026-03-29


def frame(spark: SparkSession, *given: tuple[int, Attributes]) -> DataFrame:
    rows = [("", time, "ticker", n, json.dumps(one), b"") for n, (time, one) in enumerate(given)]
    return spark.createDataFrame(rows, NOTIFICATIONS)


def numbers(found: DataFrame) -> list[int]:
    return [row.number for row in found.collect()]


def test_days_attributes_and_sorts_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "city")
    facts: list[tuple[int, Attributes]] = [
        (MARCH_NS - 1, {"free": 3}),
        (MARCH_NS, {"free": 3.5, "road": "A1"}),
        (MARCH_NS + DAY_NS - 1, {"free": "many", "Road": "A1"}),
        (MARCH_NS + DAY_NS, {"free": 2**53 + 1, "open": True}),
    ]
    assert archive.add(spark, path, frame(spark, *facts[:2])) == 2
    assert archive.add(spark, path, frame(spark, *facts)) == 2
    assert archive.add(spark, path, frame(spark, *facts)) == 0
    kept = archive.read(spark, path)
    assert kept.names == {
        "free": {"number", "text", "whole"},
        "road": {"text"},
        "Road": {"text"},
        "open": {"truth"},
    }
    assertDataFrameEqual(kept.frame.select(NOTIFICATIONS.names), frame(spark, *facts))
    columns_of = kept.frame.select(
        "day", "number_free", "whole_free", "text_free", "text_road", "text__52_oad", "truth_open"
    )
    assertDataFrameEqual(
        columns_of,
        [
            (date(2026, 3, 28), 3.0, None, None, None, None, None),
            (date(2026, 3, 29), 3.5, None, None, "A1", None, None),
            (date(2026, 3, 29), None, None, "many", None, "A1", None),
            (date(2026, 3, 30), None, 2**53 + 1, None, None, None, True),
        ],
    )
    for text, since, until, found in [
        ("free >= 3", MARCH_NS, None, [1, 3]),
        ("exists(free)", MARCH_NS, MARCH_NS + DAY_NS, [1, 2]),
        ("road is null", None, MARCH_NS + DAY_NS - 1, [0]),
    ]:
        got = history.past(spark, path, Filter.parse(text), since, until)
        assert numbers(got) == found, text


def of_use(spark: SparkSession, tmp_path: Path) -> str:
    """An archive of an event log with publications that expire, or are of use somewhere only."""
    at = MARCH_NS
    log, path = tmp_path / "log.parquet", str(tmp_path / "city")
    with writer(log, run="r") as file:
        file.write(
            [
                Event(at, "published", "ticker", number=0, attributes={"x": 0}),
                Event(at, "published", "ticker", number=1, attributes={"x": 1}, expires_ns=10),
                Event(at, "published", "ticker", number=2, attributes={"x": 2}, area=Area(("R1",))),
                Event(
                    at + 1,
                    "published",
                    "ticker",
                    number=3,
                    attributes={"x": 3},
                    area=Area((), (52.5, 13.4, 500.0)),
                ),
            ]
        )
    assert archive.add(spark, path, archive.published(events.read(spark, str(log)))) == 4
    return path


def test_what_has_expired_or_is_of_use_elsewhere_is_left_out(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, everything = of_use(spark, tmp_path), Filter.parse("exists(x)")

    def past(until_ns: int | None = None, **more: Any) -> list[int]:
        return sorted(numbers(history.past(spark, path, everything, None, until_ns, **more)))

    assert past() == [0, 2, 3]
    assert past(MARCH_NS + 10) == [0, 2, 3]  # a lifetime that is over at that very moment
    assert past(MARCH_NS + 9) == [0, 1, 2, 3]
    assert past(expired=True) == [0, 1, 2, 3]
    assert past(place=State("R1")) == [0, 2, 3]  # whose position is not known
    assert past(place=State("R2")) == [0, 3]
    assert past(place=State("", (52.5, 13.401))) == [0, 2, 3]
    assert past(place=State("", (52.5, 13.5))) == [0, 2]

    rows = spark.read.format("wayfare")
    assert sorted(numbers(rows.load(path))) == [0, 2, 3]
    assert sorted(numbers(rows.option("expired", "true").load(path))) == [0, 1, 2, 3]

    for at, found in [("R2", ["x=0", "x=3"]), ("52.5,13.5", ["x=0", "x=2"])]:
        assert cli.main(["history", path, "exists(x)", "--at", at]) == 0
        assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == found
    with pytest.raises(SystemExit):
        cli.main(["history", path, "exists(x)", "--at", "91,0"])
    assert "'91,0' is not a place" in capsys.readouterr().err


def test_an_archive_of_an_earlier_release_has_nothing_that_expires(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, old = of_use(spark, tmp_path), tmp_path / "old"
    kept = spark.read.parquet(f"{path}/notifications").drop(*USE.names)
    kept.write.partitionBy("day").parquet(f"{old}/notifications")
    shutil.copytree(f"{path}/names", old / "names")
    found = history.past(spark, str(old), Filter.parse("x < 5"), place=State("R2"))
    assert sorted(numbers(found)) == [0, 1, 2, 3]
    assert sorted(numbers(spark.read.format("wayfare").load(str(old)))) == [0, 1, 2, 3]
    new = [(MARCH_NS, {"x": 4})]
    assert (
        archive.add(
            spark, str(old), frame(spark, *new).withColumn("number", F.lit(9).cast("bigint"))
        )
        == 1
    )


def test_an_add_that_failed_can_be_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "city")
    with monkeypatch.context() as patch:
        patch.setattr(archive, "_write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            archive.add(spark, path, frame(spark, (1, {"free": 3})))
    with pytest.raises(PipelineError, match="there is no archive at"):
        archive.read(spark, path)
    assert archive.add(spark, path, frame(spark, (1, {"free": 3}))) == 1
    assert archive.read(spark, path).frame.count() == 1


def test_what_cannot_match_is_not_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "ROW_GROUP_BYTES", 16_384)
    path = str(tmp_path / "city")
    services = ["bus", "parking", "sights", "weather"]
    facts = [
        (MARCH_NS + n * DAY_NS // 4000, {"service": services[n % 4], "free": n % 97})
        for n in range(8000)
    ]
    archive.add(spark, path, frame(spark, *facts))
    kept = archive.read(spark, path)
    wanted = Filter.parse("service = 'parking' and free > 90")
    expected = [n for n, (_, one) in enumerate(facts) if wanted.matches(one)]

    def read(**bounds: Any) -> tuple[int, str]:
        then = kept._replace(frame=archive.within(kept.frame, **bounds))
        found = columns.matching(then, wanted)
        got = sorted(numbers(found))
        assert got == [n for n in expected if bounds["until_ns"] is None or n < 4000]
        scan = scan_of(found)
        return rows_read(scan), scan.verboseStringWithOperatorId()

    always = {"since_ns": None, "until_ns": None}
    pushed, plan = read(**always)
    assert "EqualTo(text_service,parking)" in plan and "GreaterThan(number_free,90.0)" in plan
    a_day, plan = read(since_ns=None, until_ns=MARCH_NS + DAY_NS)
    assert "PartitionFilters: [isnotnull(day" in plan
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    try:
        everything, _ = read(**always)
    finally:
        spark.conf.unset("spark.sql.parquet.filterPushdown")
    assert everything == 8000
    assert pushed < 4000  # a quarter, and what shares pages and row groups with it
    assert a_day < pushed


def test_many_filters_find_many_notifications(spark: SparkSession) -> None:
    facts = [(n, {"x": n % 7, "y": n % 3 == 0}) for n in range(50)]
    filters = {
        "low": Filter.parse("x < 3"),
        "some": Filter.parse("x = 5 and y = true or x = 1"),
        "none": Filter.parse("x > 10"),
    }
    found = columns.match_many(frame(spark, *facts), filters)
    assert found.columns == ["filter", *NOTIFICATIONS.names]
    assert {(row.filter, row.number) for row in found.collect()} == {
        (key, n)
        for key, wanted in filters.items()
        for n, (_, one) in enumerate(facts)
        if wanted.matches(one)
    }


# ---- the command --------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with writer(tmp_path / "log.parquet", "anna") as out:
        out.write(
            [
                Event(MARCH_NS, "published", "anna", number=1, attributes={"kmh": 130}),
                Event(MARCH_NS + 5_000_000, "published", "anna", number=2, attributes={"kmh": 80}),
                Event(MARCH_NS + 6_000_000, "delivered", "bert", publisher="anna", number=2),
                Event(MARCH_NS + DAY_NS, "published", "anna", number=3, attributes={"road": "A1"}),
            ]
        )
    return tmp_path / "log.parquet"


def test_history_of_a_log(
    spark: SparkSession, log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    city, out = str(tmp_path / "city"), tmp_path / "found.jsonl"

    def run(*arguments: str) -> tuple[str, str]:
        assert cli.main(["history", city, *arguments]) == 0
        told = capfd.readouterr()
        return told.out, told.err

    assert run("--add", str(log)) == ("", f"wayfare: 3 notifications added to {city}\n")
    assert run("--add", str(log), "--by", "kmh")[1].startswith("wayfare: 0 notifications added")
    assert run("kmh > 100 or exists(road)") == (
        "2026-03-29 00:00:00.000  anna  kmh=130\n2026-03-30 00:00:00.000  anna  road='A1'\n",
        "wayfare: 2 notifications\n",
    )
    lines, _ = run("true", "--json", "--since", "2026-03-29T02:00:00.001+02:00", "--limit", "1")
    assert json.loads(lines) == {
        "time": "2026-03-29T00:00:00.005000+00:00",
        "publisher": "anna",
        "number": 2,
        "attributes": {"kmh": 80},
    }
    assert run("true", "--until", "2026-03-30", "--out", str(out)) == (
        "",
        f"wayfare: 2 notifications written to {out}\n",
    )
    assert [json.loads(line)["number"] for line in out.read_text().splitlines()] == [1, 2]
    parquet = str(tmp_path / "found.parquet")
    assert "1 notification written" in run("kmh < 100", "--out", parquet)[1]
    assert numbers(spark.read.parquet(parquet)) == [2]
    assert run("kmh > 500") == ("", "wayfare: nothing was published that matches kmh > 500\n")


def test_history_says_what_is_wrong(
    spark: SparkSession, log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    city, empty = str(tmp_path / "city"), tmp_path / "empty.jsonl"
    empty.write_text('{"run": "a", "time_ns": 1, "kind": "left"}\n')
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(
        '{"run": "a", "time_ns": 1, "kind": "published", "client": "a", "number": 1,'
        ' "attributes": "{\\"x\\": null}"}\n'
    )
    add = ["--add", str(log)]
    for arguments, complaint in (
        ([city, "true"], f"there is no archive at {city}: make one"),
        ([city], "give either a FILTER to ask for, or --add"),
        ([city, "true", *add], "give either a FILTER"),
        ([city, "kmh >"], "at column 6"),
        ([city, "true", "--by", "x"], "--by says how --add sorts"),
        ([city, "true", "--since", "1h", "--until", "2h"], "--since has to be before --until"),
        (
            [city, "true", "--out", "a.txt"],
            "a.txt: the name of a result ends in .jsonl or .parquet",
        ),
        ([city, "--add", str(tmp_path / "no")], "there is nothing at that path"),
        ([city, "--add", str(empty)], "there are no notifications to add"),
        ([city, "--add", str(wrong)], "'{\"x\": null}' is no notification: Expected"),
        ([city, *add, "--by", "road", "--by", "nose"], "no column of an attribute nose"),
    ):
        assert cli.main(["history", *arguments]) == 2, arguments
        told = capfd.readouterr().err
        assert complaint in told and told.count("\n") == 1, (arguments, told)
    for time in ("yesterday", "5y", "2500-01-01", "99999999w"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["history", city, "true", "--since", time])
        assert f"--since: '{time}' is" in capfd.readouterr().err
    assert cli.main(["history", city, *add]) == 0
    (file,) = (tmp_path / "city/notifications/day=2026-03-29").glob("*.parquet")
    file.write_bytes(b"PAR1 and then nothing")
    file.with_name(f".{file.name}.crc").unlink()
    assert cli.main(["history", city, "true"]) == 2
    assert "cannot be read: a file there is damaged" in capfd.readouterr().err
