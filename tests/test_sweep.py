"""Sweeps: every point is run once, whatever happens in between."""

import json
from pathlib import Path
from shlex import split

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from wayfare.cli import (
    as_subcommand,
    parser,
    sim_city,
    sim_location,
    sim_placement,
    sim_roaming,
    sim_service,
)
from wayfare.eventlog import SCHEMA
from wayfare.pipeline import results, sweep
from wayfare.sim import experiment, roaming
from wayfare.studies import STUDIES
from wayfare.studies.points import KINDS, Point

SMALL = {"height": 2, "degree": 2, "movers": 2, "moves": 2, "publishers": 1, "dwell_ns": 10**8}
POINTS = [Point("roaming", SMALL | {"seed": seed}) for seed in range(3)]
READ = {
    "city": sim_city.parameters,
    "roaming": sim_roaming.parameters,
    "location": sim_location.location_parameters,
    "blackout": sim_location.blackout_parameters,
    "placement": sim_placement.parameters,
    "service": sim_service.parameters,
}
BAD = Point("roaming", SMALL | {"seed": 0, "relocation": "junction", "routing": "flooding"})


def test_a_sweep_gives_what_the_simulator_gives(spark: SparkSession, tmp_path: Path) -> None:
    """The same figures, and all its events; a point that fails is a row with its command."""
    told: list[tuple[int, int]] = []
    failed = sweep.run_points(spark, [*POINTS, BAD], tmp_path, progress=lambda *of: told.append(of))
    assert failed == [BAD.run_name()]
    assert told[-1] == (4, 4)
    rows = results.read_runs(tmp_path)
    for point in POINTS:
        events: list[object] = []
        figures = roaming.run(point.parameters(), events.extend)
        row = rows[point.run_name()]
        assert json.loads(row["figures"]) == msgspec.to_builtins(figures)
        assert row["error"] is None and row["cpu_s"] > 0
        log = pq.read_table(tmp_path / f"events/run={row['run']}/events.parquet")
        assert log.schema.names == SCHEMA.names and log.num_rows == len(events) > 0
    bad = rows[BAD.run_name()]
    assert bad["figures"] is None
    assert "junction follows subscriptions" in bad["error"]
    assert bad["command"].startswith("wayfare sim roaming --relocation junction --routing flooding")
    assert spark.read.parquet(str(tmp_path / "events")).select("run").distinct().count() == 3

    # And again: what is finished stays as it is, what failed gets another try.
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "runs").iterdir()}
    more = Point("roaming", SMALL | {"seed": 7})
    assert sweep.run_points(spark, [*POINTS, BAD, more], tmp_path) == [BAD.run_name()]
    after = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "runs").iterdir()}
    changed = {name.removesuffix(".parquet") for name in after if before.get(name) != after[name]}
    assert changed == {BAD.run_name(), more.run_name()}


def test_equal_points_are_one_run() -> None:
    usual = Point("roaming", {"routing": "covering", "seed": 0})
    assert usual.run_name() == Point("roaming", {}).run_name()
    assert usual.run_name() != Point("roaming", {"seed": 1}).run_name()


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("quick", [True, False])
def test_the_command_of_every_point_runs_the_same(name: str, quick: bool) -> None:
    points = STUDIES[name].points(quick, "ways.json")
    parse = parser().parse_args
    for point in (point for of_one in points.values() for _, point in of_one):
        words = split(point.command())[1:]
        arguments = parse(as_subcommand(words))
        read = READ[point.kind]
        assert read(arguments) == point.parameters()


def test_kinds_are_the_experiments_of_the_simulator() -> None:
    assert KINDS["roaming"].parameters is roaming.Parameters
    assert KINDS["city"].parameters is experiment.Parameters
