"""Random runs under every routing strategy, judged by the oracle. A failure names its command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wayfare.core.reduction import STRATEGIES
from wayfare.sim.fuzz import Fuzz, Job, Run, fuzz

SEEDS = 500
FAULT_SEEDS = 150
BATCH = 25


def failures(runs: Iterator[Run]) -> str:
    return "\n".join(
        f"reproduce: {run.job.command()}\n    {run.verdict.violations[0]}"
        for run in runs
        if run.verdict.violations
    )


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
@pytest.mark.parametrize("routing", STRATEGIES)
def test_every_subscriber_gets_everything_once_and_in_order(routing: str, first: int) -> None:
    runs = (fuzz(Job(seed, routing)) for seed in range(first, first + BATCH))
    assert failures(runs) == ""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, FAULT_SEEDS, BATCH))
@pytest.mark.parametrize("routing", STRATEGIES)
def test_faults_change_nothing_of_that(routing: str, first: int) -> None:
    runs = (fuzz(Job(seed, routing, faults=True)) for seed in range(first, first + BATCH))
    assert failures(runs) == ""


@pytest.mark.parametrize("routing", STRATEGIES)
def test_a_few_random_runs(routing: str) -> None:
    runs = [
        fuzz(Job(seed, routing, faults=faults))
        for seed in range(10_000, 10_005)
        for faults in (False, True)
    ]
    assert failures(iter(runs)) == ""


@pytest.mark.parametrize("routing", STRATEGIES)
def test_random_runs_ask_for_something(routing: str) -> None:
    """A run in which nothing has to be delivered proves nothing."""
    runs = [fuzz(Job(seed, routing)) for seed in range(60)]
    assert sum(run.verdict.required for run in runs) > 400
    assert sum(run.verdict.delivered for run in runs) > 800
    assert sum(run.verdict.lost for run in runs) > 0
    assert max(run.brokers for run in runs) > 10


def test_a_run_that_crashes_is_a_failure_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Fuzz) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(Fuzz, "run", crash)
    run = fuzz(Job(7, "simple", "handoff", faults=True))
    assert [str(one) for one in run.verdict.violations] == ["crash: KeyError: 'gone'"]
    assert run.job.command() == (
        "wayfare sim fuzz --seeds 1 --first-seed 7 --routing simple --relocation handoff --faults"
    )
