"""Random walks of clients that follow their location, judged by where they were when."""

from __future__ import annotations

from typing import Any

import pytest

from wayfare.core.convergence import Provisional
from wayfare.core.ear import Ear
from wayfare.core.effects import Effect
from wayfare.core.following import Following
from wayfare.core.handoff import Handoff
from wayfare.core.reduction import STRATEGIES
from wayfare.core.replicator import Replicator
from wayfare.core.virtual import Virtual
from wayfare.sim.fuzz import Job, fuzz
from wayfare.sim.histories import histories
from wayfare.sim.walks import Walks

BATCH = 25
ROUTINGS = list(STRATEGIES)
BATCHES = [
    (first, faults)
    for faults, seeds in ((False, 1000), (True, 150))
    for first in range(0, seeds, BATCH)
]


def jobs(first: int, faults: bool = False, count: int = BATCH) -> list[Job]:
    return [
        Job(seed, ROUTINGS[seed % len(ROUTINGS)], faults=faults, mobile="walkers")
        for seed in range(first, first + count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "faults"), BATCHES)
def test_who_follows_its_location_gets_what_is_for_it(first: int, faults: bool) -> None:
    runs = [fuzz(job) for job in jobs(first, faults)]
    failures = [
        f"reproduce: {run.job.command()}\n    {run.verdict.violations[0]}"
        for run in runs
        if run.verdict.violations
    ]
    assert "\n".join(failures) == ""
    assert sum(run.verdict.required for run in runs) > 100 or faults


@pytest.mark.parametrize("relocation", ["junction", "home", "naive"])
def test_ghosts_and_wishes_under_other_relocations(relocation: str) -> None:
    """What is followed does not depend on how the other subscriptions relocate."""
    rules = set()
    for seed in range(25):
        run = fuzz(Job(seed, "covering", relocation, mobile="walkers"))
        assert run.verdict.delivered
        rules |= {one.rule for one in run.verdict.violations}
    assert rules <= ({"complete", "once"} if relocation == "naive" else set())


@pytest.mark.parametrize(
    ("seed", "routing", "faults"),
    [(1020079, "flooding", False), (1020936, "simple", True), (1021367, "identity", True)],
)
def test_what_is_recalled_comes_before_what_was_kept_here(
    seed: int, routing: str, faults: bool
) -> None:
    """The location had changed before the recalled notifications came: they came behind younger ones."""
    run = fuzz(Job(seed, routing, faults=faults, mobile="walkers"))
    assert run.verdict.violations == ()


OFFLINE_PUBLISHERS = [
    (1020124, "flooding"),
    (1020190, "covering"),
    (1021190, "covering"),
    (1000320, "covering"),
    (90005, "flooding"),
]


@pytest.mark.parametrize(("seed", "routing"), OFFLINE_PUBLISHERS)
def test_what_a_publisher_could_not_send_is_not_of_the_past(seed: int, routing: str) -> None:
    """Its broker had crashed; the publications left it after the walker had arrived."""
    run = fuzz(Job(seed, routing, faults=True, mobile="walkers"))
    assert run.verdict.violations == ()


def broken(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, instead: Any) -> set[str]:
    """The rules that random walks break when this is done instead."""
    monkeypatch.setattr(owner, name, instead)
    runs = [fuzz(job) for job in jobs(0, count=30)]
    return {one.rule for run in runs for one in run.verdict.violations}


def test_the_judge_sees_what_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "once" in broken(monkeypatch, Following, "is_news", lambda *_: True)


def test_the_judge_sees_what_is_not_for_this_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is on its way when the client goes on."""
    find = lambda self, _: list(self.counts)  # noqa: E731
    assert "wanted" in broken(monkeypatch, Following, "find", find)


def test_the_judge_sees_that_the_past_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "past" in broken(monkeypatch, Ear, "kept", lambda *_: {})


def test_the_judge_sees_that_the_past_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what its publisher could not send at once."""
    push = Replicator.push

    def unmarked(self: Replicator, virtual: Virtual) -> list[Effect]:
        virtual.past.clear()
        return push(self, virtual)

    monkeypatch.setattr(Replicator, "push", unmarked)
    seed, routing = OFFLINE_PUBLISHERS[0]
    walks = Walks(seed, routing, faults=True)
    found = [one.what for one in walks.run().violations if one.rule == "past"]
    offline = {
        (event.client, event.number)
        for one in histories(walks.world.events).values()
        for event in one.published.values()
        if one.contact(event.time_ns, 0) > event.time_ns
    }
    kept = [what for what in found for name, number in offline if f"got {name} {number} " in what]
    assert 0 < len(kept) < len(found)


def test_the_judge_sees_that_the_present_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "complete" in broken(monkeypatch, Replicator, "_deliver", lambda *_: [])


def test_the_judge_sees_ghosts(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = lambda self, virtual, now: self._tell_others(virtual, now)  # noqa: E731
    monkeypatch.setattr(Replicator, "_renew", go_on)
    assert "ghosts" in broken(monkeypatch, Replicator, "on_left", lambda *_: [])


def test_the_judge_sees_sessions_that_nobody_owns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walkers attach several times before the greeting, so that requests have to follow departures."""
    monkeypatch.setattr(Handoff, "_went_on", lambda *_: ())
    rules = {one.rule for job in jobs(0, True) for one in fuzz(job).verdict.violations}
    assert "owner" in rules


def test_the_judge_sees_the_past_in_disorder(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Replicator._put_past

    def backwards(self: Replicator, virtual: Virtual, kept: Any, now: int) -> None:
        number = virtual.backlog.last
        real(self, virtual, kept, now)
        waiting = [one for one in virtual.backlog.waiting if one[0] > number]
        for (at, _, _), (_, stored, put) in zip(waiting, reversed(waiting), strict=True):
            for place, one in enumerate(virtual.backlog.waiting):
                if one[0] == at:
                    virtual.backlog.waiting[place] = at, stored, put

    assert "fifo" in broken(monkeypatch, Replicator, "_put_past", backwards)


def test_the_judge_sees_that_a_first_publication_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers publish right after they have advertised."""
    assert "complete" in broken(monkeypatch, Provisional, "join", lambda _self, near, _: list(near))
