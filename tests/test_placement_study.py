"""The study `placement`: its checks hold, and each of them can fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from wayfare.pipeline import report
from wayfare.sim.links import SECOND_NS
from wayfare.studies.placement import PLACEMENT
from wayfare.studies.points import Point
from wayfare.studies.study import Rows


def verdicts(name: str, rows: list[dict[str, Any]]) -> dict[str, bool]:
    one = PLACEMENT.experiment(name)
    found = Rows(rows, PLACEMENT.by_of(one), one.varied)
    return {check.says: check.verdict(found).holds for check in one.checks}


@pytest.fixture(scope="module")
def measured() -> dict[str, list[dict[str, Any]]]:
    """The rows of the quick study; points that experiments share are run once."""
    known: dict[str, dict[str, Any]] = {}

    def row(point: Point) -> dict[str, Any]:
        if point.run_name() not in known:
            facts = msgspec.to_builtins(point.parameters())
            known[point.run_name()] = facts | msgspec.to_builtins(point.run())
        return known[point.run_name()]

    points = PLACEMENT.points(quick=True)
    return {name: [row(point) for _, point in of_one] for name, of_one in points.items()}


NAMES = [one.name for one in PLACEMENT.experiments]


@pytest.mark.parametrize("name", NAMES)
def test_the_checks_of_the_study_hold(name: str, measured: dict[str, list[dict[str, Any]]]) -> None:
    assert [says for says, holds in verdicts(name, measured[name]).items() if not holds] == []


BROKEN: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    # experiment, the rows that are changed, how, and the check that sees it
    *((name, {}, {"lost": 1}, "what is live is neither lost") for name in NAMES),
    *(
        ("where", {"placement": "border"}, {what: 1}, "what is live is neither lost")
        for what in ("duplicates", "strays", "order_violations", "ghosts")
    ),
    (
        "policy",
        {"application": "parking", "policy": "semantic"},
        {"share": 0.5},
        "the policy that fits",
    ),
    (
        "policy",
        {"application": "parking", "policy": "semantic"},
        {"unwanted_share": 0.2},
        "by meaning, hardly anything else",
    ),
    (
        "policy",
        {"application": "parking", "policy": "both"},
        {"unwanted_share": 0.2},
        "by time and count, much comes",
    ),
    (
        "policy",
        {"application": "chat", "policy": "semantic"},
        {"share": 0.9},
        "where every message counts",
    ),
    (
        "policy",
        {"application": "parking", "policy": "count", "placement": "border"},
        {"bytes_mean": 100.0},
        "by meaning, the next brokers need",
    ),
    (
        "policy",
        {"policy": "time", "placement": "publisher"},
        {"kept_mean": 10.0},
        "what a publisher's broker keeps",
    ),
    ("where", {"placement": "none"}, {"share": 0.1}, "where nothing is kept"),
    ("where", {"placement": "publisher"}, {"share": 0.99}, "at the publishers' brokers, all of it"),
    *(
        ("where", {"placement": one}, {"silent": 1}, f"{one}: silent never")
        for one in ("publisher", "junction", "collector")
    ),
    ("where", {"placement": "border"}, {"delay_ms": 20.0}, "at the next brokers, it is there"),
    (
        "where",
        {"placement": "publisher"},
        {"delay_max_ms": 168.0},
        "at the publishers' brokers, it takes a round trip",
    ),
    ("where", {"placement": "collector"}, {"delay_ms": 70.0}, "inner brokers are slower"),
    ("where", {"placement": "border"}, {"bytes_mean": 1e9}, "the next brokers keep less"),
    (
        "where",
        {"placement": "publisher"},
        {"notifications_per_move": 1e3},
        "... and listening ahead",
    ),
    ("where", {"placement": "collector"}, {"share": 0.05}, "inner brokers find more"),
    ("where", {"placement": "collector"}, {"share": 1.0}, "... but not all of it"),
    ("where", {"placement": "junction"}, {"reported": 0.9}, "what inner brokers know"),
    ("stay", {"placement": "border"}, {"share": 0.5}, "the next brokers know more"),
    (
        "stay",
        {"placement": "publisher", "dwell_ns": 20 * SECOND_NS},
        {"share": 0.9},
        "the publishers' brokers know the same",
    ),
    ("room", {"placement": "publisher"}, {"share": 0.9}, "publishers' brokers that remember more"),
    (
        "room",
        {"placement": "publisher", "past_count": 10},
        {"share": 1.0},
        "publishers' brokers that remember more",
    ),
    *(
        ("room", {"placement": one}, {"silent": 1}, f"{one}: silent never")
        for one in ("publisher", "junction", "collector")
    ),
    (
        "spread",
        {"placement": "border", "spread": 16},
        {"share": 0.2},
        "virtual clients do not mind",
    ),
]


@pytest.mark.parametrize(("name", "which", "changed", "says"), BROKEN)
def test_every_check_of_the_study_can_fail(
    name: str,
    which: dict[str, Any],
    changed: dict[str, Any],
    says: str,
    measured: dict[str, list[dict[str, Any]]],
) -> None:
    rows = [
        row | changed if all(row[key] == value for key, value in which.items()) else row
        for row in measured[name]
    ]
    (held,) = [holds for check, holds in verdicts(name, rows).items() if check.startswith(says)]
    assert not held


def test_no_check_is_left_out_of_those_that_can_fail() -> None:
    for one in PLACEMENT.experiments:
        for check in one.checks:
            assert any(
                name == one.name and check.says.startswith(says) for name, _, _, says in BROKEN
            ), check.says


def test_a_crossed_parameter_that_is_a_word_is_shown_as_it_is() -> None:
    assert report._setting("placement", "border") == "placement = border"
    assert report._setting("away_ns", 2 * SECOND_NS) == "away = 2 s"
