"""Studies: checks that can fail, and a folder of results that belongs to one of them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from wayfare.cli import main
from wayfare.errors import PipelineError
from wayfare.pipeline import study
from wayfare.studies import STUDIES
from wayfare.studies.study import Check, Experiment, Rows, Study, Verdict, flat, less, never, rises

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
            unit="publishers",
            values=(1, 2),
            quick_values=(1,),
            compared=("naive", "handoff"),
            impossible=((2, "naive"),),
            fixed={"height": 2, "degree": 2, "movers": 2, "moves": 2, "dwell_ns": 10**8},
            metrics=(),
            checks=(
                never("lost", "handoff"),
                never("lost", "naive"),
                rises("lost", "naive", "more"),
            ),
            seeds=1,
        ),
    ),
)


def test_a_study_leaves_its_verdicts_behind(spark: SparkSession, tmp_path: Path) -> None:
    told = []
    outcome = study.run(spark, TINY, tmp_path, progress=lambda *of: told.append(of))
    assert told[-1][0] == "checking" and ("simulating", 3, 3) in told
    assert (outcome.runs, outcome.failed) == (3, [])
    assert [one["holds"] for one in outcome.checks] == [True, False, False]
    assert outcome.checks[2]["measured"].startswith("cannot be judged: no run of naive has lost")
    assert [one["says"] for one in outcome.broken()] == ["naive: lost never"]
    rows = spark.read.parquet(str(tmp_path / "checks.parquet")).collect()
    assert [row.asDict() for row in rows] == outcome.checks

    with pytest.raises(PipelineError, match="has the results of `wayfare study tiny` already"):
        study.run(spark, TINY, tmp_path, quick=True)


def test_a_folder_that_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is no study: `wayfare study NAME --out"):
        study.read_about(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(PipelineError, match=r"study.json is damaged"):
        study.read_about(tmp_path)


def test_what_the_command_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "mars", "--out", "x"]) == 2
    assert main(["study", "relocation"]) == 2
    assert capsys.readouterr().err == (
        "wayfare: unknown study 'mars': choose one of relocation, publishers\n"
        "wayfare: where to? wayfare study relocation --out DIR\n"
    )


def test_the_full_study_of_publishers_has_300_runs() -> None:
    points = STUDIES["publishers"].points()
    assert len({point.run_name() for of_one in points.values() for _, point in of_one}) >= 300
