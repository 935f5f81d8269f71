"""`wayfare study service --live`: the study on real systems, from servers to a report."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from wayfare.cli import main
from wayfare.pipeline import live, report, results
from wayfare.service import overlays
from wayfare.studies import service_live
from wayfare.studies.study import Study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT = results.About(service_live.NAME, True, "wayfare study service --live --quick")


def small() -> Study:
    """One system, on a wire."""
    whole = service_live.live(["mqtt"], quick=True)
    return msgspec.structs.replace(whole, experiments=whole.experiments[:1])


@pytest.mark.slow
def test_a_live_study_leaves_logs_that_say_what_it_counted_and_a_report(
    spark: "SparkSession", need_server: Callable[[str], None], tmp_path: Path
) -> None:
    need_server("mqtt")
    told: list[tuple[int, int]] = []
    failed = live.run(small(), tmp_path, ABOUT, lambda *far: told.append(far))
    assert failed == []
    assert (told[0], told[-1]) == ((0, 4), (4, 4))
    outcome = live.tell(spark, small(), tmp_path, ABOUT, failed)
    assert (outcome.runs, outcome.failed, outcome.broken()) == (4, [], [])
    assert "20 equal counts in 4 runs" in outcome.checks[0]["measured"]
    rows = {row["support"]: row for row in results.read_rows(tmp_path)["wire"]}
    assert rows["none"]["lost_away"] >= 0.8 * rows["none"]["missed"] > 0
    assert (rows["ids"]["lost"], rows["ids"]["duplicates"]) == (0, 0)
    page = (tmp_path / "report.md").read_text()
    assert "4 live runs" in page
    report.write(tmp_path)  # as `wayfare report` does, which knows only the folder
    assert (tmp_path / "report.md").read_text() == page
    again: list[tuple[int, int]] = []
    live.run(small(), tmp_path, ABOUT, lambda *far: again.append(far))
    assert again == [(4, 4)]  # nothing is run twice


def test_the_supports_are_those_of_the_paper_and_ours() -> None:
    assert set(live.PLANS) == set(service_live.SUPPORT)
    plans = {
        support: live.Point(
            system="mqtt", support=support, network="gprs", s=3, p=2.0, away_s=1.0
        ).plan()
        for support in service_live.SUPPORT
    }
    paper = {"basic": "none", "ping": "ping"}
    for support, sync in paper.items():
        one = plans[support]
        assert (one.sync, one.duplicates, one.standby, one.service) == (sync, True, False, True)
    assert not plans["none"].service
    assert plans["own"].own
    assert (plans["ids"].sync, plans["ids"].duplicates, plans["ids"].standby) == (
        "ping",
        False,
        True,
    )
    assert {one.link for one in plans.values()} == {"gprs"}


def test_what_a_quick_study_has_is_in_the_whole_one() -> None:
    quick, whole = service_live.live(quick=True), service_live.live()
    names = {one.name for one in quick.experiments}
    assert names < {one.name for one in whole.experiments}
    assert service_live.only(names) == msgspec.structs.replace(
        whole, experiments=tuple(one for one in whole.experiments if one.name in names)
    )


def test_systems_that_are_not_installed_are_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = {"nats": "nats needs nats-server: apt-get install nats-server"}
    monkeypatch.setattr(live, "missing", gone.get)
    assert live.split(["mqtt", "nats"]) == (["mqtt"], [gone["nats"]])
    assert overlays.missing("wayfare") is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("study relocation --live --out X", "only the study service can be run live"),
        ("study service --live", "where to?"),
        ("study service --live --out X --systems mqtt,kafka", "there is no system 'kafka'"),
        ("study service --live --out X --systems ,", "there is no system ','"),
        ("study relocation --out X --systems mqtt", "add --live"),
        ("study service --live --out X --trace log.csv", "follows nobody"),
        ("study service --live --out X --systems wayfare --master 5", "'5' is no Spark master"),
    ],
)
def test_bad_input_of_a_live_study_gets_a_sentence_before_anything_is_run(
    words: str,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
