"""Analyse: from the log alone, the same counts that the simulator has; and what they mean, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from wayfare.bench import analyse as bench
from wayfare.cli import main
from wayfare.cli.analyse import show
from wayfare.core.broker import RELOCATIONS
from wayfare.core.filters import Filter
from wayfare.errors import PipelineError
from wayfare.eventlog import Event, row, writer
from wayfare.pipeline import events
from wayfare.pipeline.analyse import TABLES, analyse
from wayfare.pipeline.study import COUNTS
from wayfare.sim import blackout, city, experiment, location, one_move, roaming, service
from wayfare.sim.experiment import ALGORITHMS
from wayfare.sim.links import MS_NS, SECOND_NS
from wayfare.sim.location import NLB

# Hasty enough that clients without support lose some, and get some twice or out of order.
ROAMING: dict[str, Any] = {
    "height": 3,
    "degree": 2,
    "publishers": 4,
    "movers": 6,
    "moves": 10,
    "dwell_ns": 80 * MS_NS,
    "away_ns": 0,
    "rate": 40.0,
    "seed": 1,
}
CITY: dict[str, Any] = {
    "height": 3,
    "degree": 2,
    "publishers": 3,
    "subscribers": 6,
    "minutes": 2.0,
    "warm_up_ns": 20 * SECOND_NS,
}


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with the logs of many runs, and what the simulator says of each."""
    folder = tmp_path_factory.mktemp("logs")
    figures: dict[str, Any] = {}
    for relocation in RELOCATIONS:
        one = roaming.Parameters(**ROAMING, relocation=relocation)
        with writer(folder / f"{relocation}.parquet", f"roaming {relocation}") as log:
            figures[f"roaming {relocation}"] = roaming.run(one, log.write)
    for algorithm in ALGORITHMS:
        for start in ("spread", "cold"):
            run = f"city {algorithm} {start}"
            other = experiment.Parameters(**CITY, algorithm=algorithm, start=start)
            with writer(folder / f"{algorithm}-{start}.parquet", run) as log:
                figures[run] = city.run(other, log.write)
    for nlb in NLB:
        there = location.Parameters(
            nlb=nlb, side=3, walkers=4, minutes=2.0, dwell_ns=15 * SECOND_NS
        )
        with writer(folder / f"location-{nlb}.parquet", f"location {nlb}") as log:
            figures[f"location {nlb}"] = location.run(there, log.write)
    for steps in ("0", "everywhere"):
        change = blackout.Parameters(steps=steps, changes=20)
        with writer(folder / f"blackout-{steps}.parquet", f"blackout {steps}") as log:
            figures[f"blackout {steps}"] = blackout.run(change, log.write)
    for support in one_move.SUPPORT:
        system = one_move.OWN if support == "own" else "siena"
        moves = one_move.Parameters(system=system, support=support, s=100)
        with writer(folder / f"service-{support}.parquet", f"service {support}") as log:
            figures[f"service {support}"] = service.run(moves, log.write)
    return folder, figures


@pytest.fixture(scope="module")
def found(
    spark: SparkSession, experiments: tuple[Path, dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """What is found in all logs of this page at once."""
    return collected(events.read(spark, experiments[0]).unionByName(frame_of(spark, LOGS)))


def collected(log: DataFrame, **how: Any) -> dict[str, list[dict[str, Any]]]:
    # As the command has it: the small queries here take half the time.
    log.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        with analyse(log, **how) as analysis:
            return {
                name: [one.asDict() for one in frame.collect()]
                for name, frame in analysis.tables.items()
            }
    finally:
        log.sparkSession.conf.unset("spark.sql.adaptive.enabled")


def test_roaming_gives_the_figures_of_the_simulator(
    experiments: tuple[Path, dict[str, Any]], found: dict[str, list[dict[str, Any]]]
) -> None:
    rows = {one["run"]: one for one in found["runs"]}
    for relocation in RELOCATIONS:
        figures, row = experiments[1][f"roaming {relocation}"], rows[f"roaming {relocation}"]
        same = (
            "published expected lost duplicates order_violations gaps moves hops control"
            " notifications tunnelled acknowledgements moves_without_live subs_max ads_max"
        )
        for name in same.split():
            assert row[name] == getattr(figures, name), (relocation, name)
        assert row["delivered"] + row["duplicates"] + row["extra"] == figures.delivered
        for name in ("live_p50", "live_p99", "first_p50", "first_p99"):
            assert _same(row[f"{name}_ms"], getattr(figures, f"{name}_ms"), 3)
        for name in ("subs_mean", "ads_mean"):
            assert _same(row[name], getattr(figures, name), 3)
    naive = experiments[1]["roaming naive"]
    # Or nothing of this was put to the test.
    assert naive.lost > 0 and naive.duplicates > 0 and naive.moves_without_live > 0


def test_the_mobility_service_has_the_figures_of_the_simulator(
    experiments: tuple[Path, dict[str, Any]], found: dict[str, list[dict[str, Any]]]
) -> None:
    rows = {one["run"]: one for one in found["runs"]}
    for support in one_move.SUPPORT:
        figures, row = experiments[1][f"service {support}"], rows[f"service {support}"]
        for name, theirs in COUNTS["service"].items():
            assert row[name] == getattr(figures, theirs), (support, name)
    lost = {support: rows[f"service {support}"]["lost"] for support in one_move.SUPPORT}
    assert lost["none"] > 0 < lost["basic"] and lost["ping"] == lost["ids"] == lost["own"] == 0
    assert rows["service ping"]["duplicates"] > 0 == rows["service ids"]["duplicates"]


def test_who_follows_its_location_has_the_figures_of_the_simulator(
    experiments: tuple[Path, dict[str, Any]], found: dict[str, list[dict[str, Any]]]
) -> None:
    """Nobody says what is expected, so all of it is extra; the past may be older than what is known."""
    rows = {one["run"]: one for one in found["runs"]}
    runs = [run for run in rows if run.startswith(("location", "blackout"))]
    assert len(runs) == len(NLB) + 2
    for run in runs:
        figures, row = experiments[1][run], rows[run]
        for name, theirs in COUNTS[run.split()[0]].items():
            assert row[name] == getattr(figures, theirs), (run, name)
        assert (row["expected"], row["delivered"], row["lost"]) == (0, 0, 0)
    everywhere = experiments[1]["location all"]
    assert everywhere.past > 0 and everywhere.posted > 0 and everywhere.moves > 0


def test_the_city_gives_the_figures_of_the_simulator(
    experiments: tuple[Path, dict[str, Any]], found: dict[str, list[dict[str, Any]]]
) -> None:
    rows = {one["run"]: one for one in found["runs"]}
    cities = {run: figures for run, figures in experiments[1].items() if run.startswith("city")}
    for run, figures in cities.items():
        row = rows[run]
        for name in ("expected", "delivered", "lost", "duplicates", "moves"):
            assert row[name] == getattr(figures, name), (run, name)
        assert row["published"] == figures.probes
        assert (row["entries"], row["updates"]) == (figures.control_total, figures.link_messages)
        for percent in ("p50", "p90", "p99", "max"):
            assert _same(row[f"delay_{percent}_ms"], getattr(figures, f"delivery_{percent}_ms"), 3)
        entries = {
            one["message"]: one["count"]
            for one in found["control"]
            if (one["run"], one["counted"]) == (run, "entries")
        }
        assert entries == {kind: count for kind, count in figures.control.items() if count}
        ratios = {one["index"]: one["ratio"] for one in found["probes"] if one["run"] == run}
        assert [round(ratios[index], 5) for index in range(20)] == figures.probe_ratio
        state = sorted(
            (one for one in found["tables"] if one["run"] == run), key=lambda one: one["depth"]
        )
        assert [
            (one["depth"], one["brokers"], one["ads_max"], one["subs_max"]) for one in state
        ] == [(one.depth, one.brokers, one.ads_max, one.subs_max) for one in figures.state]
        for one, other in zip(state, figures.state, strict=True):
            assert _same(one["ads_mean"], other.ads_mean, 2)
            assert _same(one["subs_mean"], other.subs_mean, 2)
        taken = sum(one["count"] for one in found["delays"] if one["run"] == run)
        assert taken == figures.delivered
    assert sum(figures.lost for figures in cities.values()) > 0


# ---- row by row --------------------------------------------------------------------------------


def published(time: int, number: int, price: int, client: str = "p", epoch: int = 1) -> Event:
    facts = {"client": client, "number": number, "epoch": epoch}
    return Event(time, "published", attributes={"price": price}, **facts)


def delivered(time: int, number: int, delivery: int, client: str = "a", epoch: int = 1) -> Event:
    return Event(time, "delivered", client, None, "p", number, delivery, epoch)


def past(event: Event, reason: str = "past") -> Event:
    event.reason = reason
    return event


def subscribed(time: int, filter: str, client: str = "a", **how: Any) -> Event:
    return Event(time, "subscribed", client, filter=Filter.parse(filter), **how)


def unsubscribed(time: int, filter: str, client: str = "a") -> Event:
    return Event(time, "unsubscribed", client, filter=Filter.parse(filter))


def attached(time: int, broker: str, epoch: int, client: str = "a") -> Event:
    return Event(time, "attached", client, broker, epoch=epoch)


MS = 1_000_000
LOGS = {
    # 1 is of the past, so nobody minds that 3 came before; 2 is not. 1 comes once more.
    "past": [
        *(published(number * MS, number, 7) for number in range(1, 4)),
        delivered(11 * MS, 3, 1),
        past(delivered(12 * MS, 1, 2)),
        delivered(13 * MS, 2, 3),
        past(delivered(14 * MS, 1, 4)),
    ],
    # 1 was kept by an old broker, and comes late; 2 is lost, as is known in the end.
    "late": [
        subscribed(0, "price > 0"),
        *(published(number * MS, number, 7) for number in range(1, 4)),
        Event(10 * MS, "lost", "a", count=0, reason="nobody knows"),
        delivered(11 * MS, 3, 2),
        past(delivered(12 * MS, 1, 3), "late"),
        Event(13 * MS, "settled", "a", count=1, entries={"p": 1}),
    ],
    # 1 comes, then 4, so 2 and 3 are late, though 3 comes after 2; 4 comes again, 5 never; 7 and 6 come
    # at once, but in this order.
    "order": [
        subscribed(0, "price > 0"),
        *(published(number * MS, number, 7) for number in range(1, 8)),
        delivered(11 * MS, 1, 1),
        delivered(12 * MS, 4, 2),
        delivered(13 * MS, 2, 3),
        delivered(13 * MS, 3, 4),
        delivered(14 * MS, 4, 5),
        Event(15 * MS, "lost", "a", count=3, reason="full"),
        Event(16 * MS, "lost", "a", count=0, reason="nobody knows"),
        delivered(20 * MS, 7, 6),
        delivered(20 * MS, 6, 7),
    ],
    # Asked for twice and withdrawn twice; two filters that match are one wish; 4 and 6 are extra.
    "spans": [
        subscribed(0, "price > 0"),
        subscribed(1, "price > 0"),
        subscribed(2, "price > 5"),
        published(10, 1, 7),
        unsubscribed(11, "price > 0"),
        published(12, 2, 3),
        unsubscribed(13, "price > 0"),
        published(14, 3, 7),
        published(15, 4, 3),
        *(delivered(20 + number, number, number) for number in (1, 2, 3, 4)),
        subscribed(30, "price < 0", "b", reason="last 1"),
        published(31, 5, -1),
        delivered(33, 6, 5),
    ],
    # Nothing is expected between leaving and coming back.
    "leaving": [
        subscribed(0, "price > 0"),
        published(1, 1, 7),
        attached(5, "x", 1),
        Event(10, "left", "a", "x", epoch=1),
        published(11, 2, 7),
        attached(20, "x", 2),
        published(21, 3, 7),
    ],
    # What is measured: published from 10 to 20, a move that began and ended in it.
    "window": [
        Event(0, "placed", broker="x", path=["x"]),
        Event(0, "placed", broker="y", path=["x", "y"]),
        Event(0, "placed", broker="z", path=["x", "z"]),
        subscribed(0, "price > 0"),
        attached(1, "x", 1, "p"),
        attached(1, "y", 1),
        published(9, 1, 7),
        Event(9, "detached", "a", "y", epoch=1),
        attached(10, "z", 2),
        published(10, 2, 7),
        delivered(10, 1, 1, epoch=2),
        Event(11, "detached", "a", "z", epoch=2),
        attached(11, "y", 3),
        Event(13, "detached", "a", "y", epoch=3),
        attached(14, "y", 4),
        delivered(15, 2, 2, epoch=4),
        published(16, 3, 7),
        delivered(20, 3, 3, epoch=4),
        Event(20, "measured", since_ns=10),
        published(21, 4, 7),
        Event(12, "sent", sender="x", receiver="y", message="Update"),
        Event(12, "sent", sender="y", receiver="a", message="Deliver"),
        Event(12, "sent", sender="y", receiver="x", message="Tunnel", inner="Ack", count=4),
        Event(12, "sent", sender="y", receiver="x", message="Tunnel"),
        Event(12, "sent", sender="x", receiver="y", message="Tunnel", inner="Deliver", count=2),
        Event(12, "sent", sender="x", receiver="y", message="Notification", count=3),
        Event(9, "sent", sender="x", receiver="y", message="Update"),
        Event(12, "updated", sender="x", receiver="y", entries={"subscriptions": 2, "errands": 1}),
        Event(9, "updated", sender="x", receiver="y", entries={"subscriptions": 5}),
        Event(20, "tables", broker="x", entries={"advertisements": 1, "subscriptions": 4}),
        Event(20, "tables", broker="y", entries={"advertisements": 3}),
    ],
    # The publisher has no log, so nobody knows what was expected; it is in nobody's way.
    "alone": [subscribed(0, "price > 0"), delivered(5, 1, 1), delivered(6, 1, 2)],
}


@pytest.fixture(scope="module")
def literal(spark: SparkSession) -> DataFrame:
    return frame_of(spark, LOGS)


def frame_of(spark: SparkSession, logs: dict[str, list[Event]]) -> DataFrame:
    rows = [row(event, run) for run, log in logs.items() for event in log]
    return spark.createDataFrame([tuple(one.values()) for one in rows], events.EVENTS)


@pytest.fixture(scope="module")
def told(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [one for one in rows if one["run"] in LOGS] for name, rows in found.items()}


def facts(told: dict[str, list[dict[str, Any]]], run: str, *names: str) -> tuple[Any, ...]:
    (one,) = [row for row in told["runs"] if row["run"] == run]
    return tuple(one[name] for name in names)


def test_every_run_has_one_row(told: dict[str, list[dict[str, Any]]]) -> None:
    assert sorted(one["run"] for one in told["runs"]) == sorted(LOGS)


def test_what_comes_late_or_again(told: dict[str, list[dict[str, Any]]]) -> None:
    counts = ("expected", "delivered", "lost", "duplicates", "extra", "order_violations")
    assert facts(told, "order", *counts) == (7, 6, 1, 1, 0, 3)
    assert facts(told, "order", "gaps", "told_lost") == (2, 3)
    delays = ("delay_p50_ms", "delay_p90_ms", "delay_max_ms")
    assert facts(told, "order", *delays) == (10.0, 14.0, 14.0)
    assert sorted(
        (one["delay_us"], one["count"]) for one in told["delays"] if one["run"] == "order"
    ) == [(8000, 1), (10000, 2), (11000, 1), (13000, 1), (14000, 1)]


def test_the_past_has_an_order_of_its_own(told: dict[str, list[dict[str, Any]]]) -> None:
    counts = ("expected", "extra", "past", "duplicates", "order_violations")
    assert facts(told, "past", *counts) == (0, 3, 1, 1, 1)


def test_what_comes_late_has_no_order(told: dict[str, list[dict[str, Any]]]) -> None:
    counts = ("expected", "delivered", "lost", "duplicates", "order_violations")
    assert facts(told, "late", *counts) == (3, 2, 1, 0, 0)
    assert facts(told, "late", "gaps", "told_lost") == (1, 1)


def test_a_subscription_counts_until_it_is_withdrawn(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    counts = ("published", "expected", "delivered", "lost", "extra")
    assert facts(told, "spans", *counts) == (5, 3, 3, 0, 2)
    assert facts(told, "leaving", *counts) == (3, 2, 0, 2, 0)
    assert facts(told, "alone", *counts, "duplicates") == (0, 0, 0, 0, 1, 1)


def test_only_what_is_measured_counts(told: dict[str, list[dict[str, Any]]]) -> None:
    assert facts(told, "window", "published", "expected", "delivered", "extra") == (2, 2, 2, 0)
    assert [
        (one["index"], one["expected"], one["delivered"], one["ratio"])
        for one in sorted(told["probes"], key=lambda one: one["index"])
        if one["run"] == "window"
    ] == [(1, 1, 1, 1.0), (2, 1, 1, 1.0)]


def test_a_move_waits_for_something_until_the_next(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    """The first move began too early; the second goes on when the client comes to the same broker."""
    assert [one for one in told["moves"] if one["run"] == "window"] == [
        {
            "run": "window",
            "client": "a",
            "old": "z",
            "new": "y",
            "left_ns": 11,
            "came_ns": 11,
            "hops": 2,
            "first_ms": 4e-6,
            "live_ms": 9e-6,
        }
    ]
    names = ("moves", "hops", "first_p50_ms", "live_p99_ms", "moves_without_live")
    assert facts(told, "window", *names) == (1, 2, 4e-6, 9e-6, 0)
    assert facts(told, "order", *names) == (0, None, None, None, 0)


def test_what_brokers_said_is_counted_by_kind(told: dict[str, list[dict[str, Any]]]) -> None:
    assert sorted(
        (one["counted"], one["message"], one["count"])
        for one in told["control"]
        if one["run"] == "window"
    ) == [
        ("entries", "errands", 1),
        ("entries", "subscriptions", 2),
        ("messages", "Ack", 4),
        ("messages", "Deliver", 2),
        ("messages", "Notification", 3),
        ("messages", "Tunnel", 1),
        ("messages", "Update", 1),
    ]
    names = ("control", "notifications", "tunnelled", "acknowledgements", "entries", "updates")
    assert facts(told, "window", *names) == (2, 5, 2, 4, 3, 1)
    names = ("ads_mean", "ads_max", "subs_mean", "subs_max")
    assert facts(told, "window", *names) == (2.0, 3, 2.0, 4)
    assert sorted((one["depth"], one["brokers"], one["subs_max"]) for one in told["tables"]) == [
        (0, 1, 4),
        (1, 1, 0),
    ]


def test_tables_that_are_too_large_to_send_around_give_the_same(
    literal: DataFrame, told: dict[str, list[dict[str, Any]]]
) -> None:
    shuffled = collected(literal, broadcast_rows=0)
    for name in told:
        assert sorted(map(repr, shuffled[name])) == sorted(map(repr, told[name])), name


def test_a_filter_that_is_none_is_one_sentence(spark: SparkSession) -> None:
    log = frame_of(spark, {"one": [subscribed(0, "price > 0"), published(1, 1, 7)]})
    broken = log.withColumn("filter", F.expr("if(filter is null, null, 'price >')"))
    with pytest.raises(PipelineError, match="the log has a filter that is none: expected"):
        collected(broken)


def _same(ours: float | None, theirs: float | None, digits: int) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return abs(ours - theirs) <= 0.51 * 10**-digits


# ---- the command -------------------------------------------------------------------------------


def written(path: Path, run: str, log: list[Event]) -> str:
    with writer(path, run) as file:
        file.write(log)
    return str(path)


def test_the_command_prints_writes_and_takes_logs_of_live_clients_as_one_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anna's log and that of the publisher: each has a run of its own, but what happened is one."""
    anna = [one for one in LOGS["order"] if one.client == "a"]
    logs = [
        written(tmp_path / "a.jsonl", "a", anna),
        written(tmp_path / "p.parquet", "p", [one for one in LOGS["order"] if one.client == "p"]),
    ]
    assert main(["analyse", *logs, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("live\n")
    assert "6 of 7 expected; 0 beside them" in shown and "p50 10.0 ms" in shown
    for name in TABLES:
        assert spark.read.parquet(str(tmp_path / "out" / name)).columns == [
            column.split()[0] for column in TABLES[name].split(",")
        ]
    (row,) = spark.read.parquet(str(tmp_path / "out/runs")).collect()
    assert (row.run, row.expected, row.lost, row.duplicates) == ("live", 7, 1, 1)


def test_runs_are_printed_as_text_or_as_json(
    found: dict[str, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    show(found["runs"], as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == found["runs"]
    many = found["runs"] * 2
    show(many, as_json=False)
    assert capsys.readouterr().out.endswith(f"(+{len(many) - 20} more runs: see --json, --out)\n")


def test_only_logs_of_one_client_each_are_put_together(spark: SparkSession) -> None:
    of_clients = frame_of(spark, {"a": [attached(1, "x", 1)], "b": [attached(1, "x", 1, "b")]})
    assert {row.run for row in events.one_run(of_clients).collect()} == {"live"}
    other = of_clients.unionByName(frame_of(spark, {"a": [attached(1, "x", 1, "b")]}))
    assert {row.run for row in events.one_run(other).collect()} == {"a", "b"}
    assert {row.run for row in events.one_run(other, "both").collect()} == {"both"}


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("", "the log is empty"),
        ('{"run": "one", "time_ns": 1\n', "a line there is no JSON object"),
        (None, "there is nothing at that path"),
    ],
)
def test_bad_logs_get_one_sentence(
    spark: SparkSession,
    tmp_path: Path,
    log: str | None,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if log is not None:
        (tmp_path / "log.jsonl").write_text(log)
    assert main(["analyse", str(tmp_path / "log.jsonl")]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_file_is_no_folder_for_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["analyse", "log.jsonl", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.endswith("file: that is a file; name a folder\n")


# ---- the yardstick -----------------------------------------------------------------------------


def test_duckdb_comes_to_the_same_counts(spark: SparkSession, tmp_path: Path) -> None:
    """Only then the bench compares what is comparable."""
    bench.synthetic(spark, 20_000, seed=1).write.parquet(str(tmp_path / "log"))
    here, there = bench.on_spark(spark, tmp_path / "log"), bench.in_duckdb(tmp_path / "log")
    assert there is not None
    assert {name: here[name] for name in there} == there
    assert min(there[name] for name in ("lost", "duplicates", "order_violations", "moves")) > 0
