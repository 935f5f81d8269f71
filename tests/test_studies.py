"""Studies: checks that can fail, and a folder of results that belongs to one of them."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from wayfare.cli import main
from wayfare.errors import PipelineError
from wayfare.pipeline import results, study, sweep
from wayfare.studies import STUDIES
from wayfare.studies.checks import flat, less, never, rises
from wayfare.studies.publishers import carried
from wayfare.studies.study import Check, Experiment, Metric, Picture, Rows, Study, Verdict

ROWS = Rows(
    [
        {"algorithm": name, "publishers": x, "cost": cost, "lost": lost}
        for name, x, cost, lost in [
            ("handoff", 50, 10.0, 0),
            ("handoff", 50, 12.0, 0),
            ("handoff", 100, 11.0, 0),
            ("standard", 50, 120.0, 3),
            ("standard", 100, 240.0, 0),
        ]
    ],
    "algorithm",
    "publishers",
)


@pytest.mark.parametrize(
    ("check", "holds", "measured"),
    [
        (never("lost", "handoff"), True, "0 in 3 runs"),
        (never("lost", "standard"), False, "3 in 2 runs"),
        (
            less("cost", "handoff", "standard", 10),
            True,
            "standard has 10.9 to 21.8 times handoff's",
        ),
        (
            less("cost", "handoff", "standard", 11),
            False,
            "standard has 10.9 to 21.8 times handoff's",
        ),
        (
            less("cost", "standard", "handoff"),
            False,
            "handoff has 0.0458 to 0.0917 times standard's",
        ),
        (flat("cost", "handoff", 1.1, "flat"), True, "from 11 to 11"),
        (flat("cost", "standard", 1.5, "flat"), False, "from 120 to 240"),
        (rises("cost", "standard", "up"), True, "120 -> 240"),
        (rises("cost", "standard", "down", down=True), False, "120 -> 240"),
    ],
)
def test_checks_can_fail(check: Check, holds: bool, measured: str) -> None:
    assert check.verdict(ROWS) == Verdict(holds, measured)


@pytest.mark.parametrize(
    ("runs", "holds", "measured"),
    [
        ([(0.9, 0), (0.8, 0)], True, "0 in 2 runs"),
        ([(0.9, 0), (1.2, 7)], True, "0 in 1 runs; with more than a link can carry, 7 in 1"),
        ([(0.9, 1), (1.2, 7)], False, "1 in 1 runs; with more than a link can carry, 7 in 1"),
        ([(1.0, 0)], False, "0 in 0 runs; with more than a link can carry, 0 in 1"),
    ],
)
def test_what_overload_loses_breaks_no_promise(
    runs: list[tuple[float, int]], holds: bool, measured: str
) -> None:
    rows = [{"algorithm": "handoff", "link_load_max": load, "lost": lost} for load, lost in runs]
    assert carried(Rows(rows, "algorithm", "speed_kmh")) == Verdict(holds, measured)


TINY = Study(
    name="tiny",
    title="Tiny",
    about="Two strategies on three brokers.",
    kind="roaming",
    by="relocation",
    experiments=(
        Experiment(
            name="publishers",
            title="Publishers",
            varied="publishers",
            axis="publishers",
            values=(1, 2),
            quick_values=(1,),
            compared=("naive", "handoff"),
            impossible=((2, "naive"),),
            fixed={"height": 2, "degree": 2, "movers": 2, "moves": 2, "dwell_ns": 10**8},
            metrics=(Metric("lost", "Lost", "notifications"),),
            pictures=(Picture("traces"), Picture("delivery")),
            checks=(
                never("lost", "handoff"),
                never("lost", "naive"),
                rises("lost", "naive", "more"),
            ),
            seeds=1,
        ),
    ),
)


@pytest.mark.timeout(300)  # a busy machine must not fail a test
def test_a_study_leaves_its_verdicts_behind(spark: SparkSession, tmp_path: Path) -> None:
    told = []
    outcome = study.run(spark, TINY, tmp_path, progress=lambda *of: told.append(of))
    assert told[-1][0] == "drawing" and ("simulating", 3, 3) in told
    assert (outcome.runs, outcome.failed) == (3, [])
    assert [one["holds"] for one in outcome.checks] == [True, True, False, False]
    assert outcome.checks[0]["measured"] == "45 equal counts in 3 runs"
    assert outcome.checks[3]["measured"].startswith("cannot be judged: no run of naive has lost")
    assert [one["says"] for one in outcome.broken()] == ["naive: lost never"]
    rows = spark.read.parquet(str(tmp_path / "checks.parquet")).collect()
    assert [row.asDict() for row in rows] == outcome.checks
    assert outcome.written == [str(tmp_path / name) for name in ("report.html", "report.md")]
    assert "naive: lost never" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "figures/publishers-traces.svg").exists()

    # What is analysed already is not analysed again, and a count that differs is told.
    (file,) = (tmp_path / "analysis/runs").glob("*.parquet")
    analysed = pq.read_table(file).to_pylist()
    analysed[0]["lost"] += 1
    pq.write_table(pa.Table.from_pylist(analysed), file)
    again = study.run(spark, TINY, tmp_path)
    wrong = (
        f"{analysed[0]['run']} has lost {analysed[0]['lost'] - 1}, analysed {analysed[0]['lost']}"
    )
    assert (again.checks[0]["holds"], again.checks[0]["measured"]) == (False, wrong)

    with pytest.raises(PipelineError, match="has the results of `wayfare study tiny` already"):
        study.run(spark, TINY, tmp_path, quick=True)


def test_a_study_without_a_run_that_works(spark: SparkSession, tmp_path: Path) -> None:
    bad = structs.replace(
        TINY.experiments[0],
        fixed=TINY.experiments[0].fixed | {"routing": "flooding"},
        compared=("junction",),
    )
    with pytest.raises(
        PipelineError, match=r"every run failed, `wayfare sim roaming .* with .*junction"
    ):
        study.run(spark, structs.replace(TINY, experiments=(bad,)), tmp_path)


def test_a_folder_that_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is no study: `wayfare study NAME --out"):
        results.read_about(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(PipelineError, match=r"study.json is damaged"):
        results.read_about(tmp_path)


def test_what_the_command_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "mars", "--out", "x"]) == 2
    assert main(["study", "relocation"]) == 2
    assert main(["study", "relocation", "--out", "x", "--trace", "log.csv"]) == 2
    assert main(["study", "location", "--out", "x", "--columns", "to=b"]) == 2
    assert capsys.readouterr().err == (
        "wayfare: unknown study 'mars': choose one of relocation, publishers, location, placement, service\n"
        "wayfare: where to? wayfare study relocation --out DIR\n"
        "wayfare: relocation follows nobody: leave --trace\n"
        "wayfare: --columns are those of a log: name it with --trace\n"
    )


def test_the_full_study_of_publishers_has_300_runs() -> None:
    points = STUDIES["publishers"].points()
    assert len({point.run_name() for of_one in points.values() for _, point in of_one}) >= 300


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ctrl_c_stops_a_study_without_a_stack_trace(tmp_path: Path) -> None:
    """What was finished stays, and the same command goes on from there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wayfare", "study", "publishers", "--quick", "--out", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*.parquet")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert told.splitlines()[-1] == "wayfare: stopped"
    assert sweep.finished(tmp_path)
