"""Random runs under every routing strategy, judged by the oracle. A failure names its command."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import pytest

from wayfare.core.border import OVERTAKEN
from wayfare.core.broker import PUBLISHER_RELOCATIONS
from wayfare.core.effects import EXPIRED, SessionEnded
from wayfare.core.messages import AnyMessage, ClientId, Prepare, Update
from wayfare.core.reduction import STRATEGIES
from wayfare.core.relocation import ROUTES_LOST
from wayfare.eventlog import Event
from wayfare.sim.fuzz import Fuzz, Job, Run, fuzz

BATCH = 25
# (relocation, who moves, with faults, how many seeds), each under every routing strategy where it
# is defined; where there are many, all of them under covering, and a quarter under each of the others.
FAMILIES = [
    ("handoff", "subscribers", False, 1000),
    ("handoff", "both", False, 1000),
    ("junction", "subscribers", False, 300),
    ("home", "both", False, 100),
    ("handoff", "subscribers", True, 200),
    ("handoff", "both", True, 200),
    ("junction", "subscribers", True, 100),
    ("home", "both", True, 50),
]
LOST_WITHOUT_SUPPORT = {"complete", "once", "fifo", "shared", "request"}
MANY = 1000
OTHERS = [one for one in STRATEGIES if one != "covering"]


def is_played(seeds: int, first: int, routing: str) -> bool:
    return seeds < MANY or routing == "covering" or OTHERS[first // BATCH % len(OTHERS)] == routing


BATCHES = [
    (relocation, mobile, faults, first, routing)
    for relocation, mobile, faults, seeds in FAMILIES
    for routing in STRATEGIES
    for first in range(0, seeds, BATCH)
    if (relocation, routing) != ("junction", "flooding") and is_played(seeds, first, routing)
]


def failures(runs: Iterator[Run]) -> str:
    return "\n".join(
        f"reproduce: {run.job.command()}\n    {run.verdict.violations[0]}"
        for run in runs
        if run.verdict.violations
    )


@pytest.mark.slow
@pytest.mark.parametrize(("relocation", "mobile", "faults", "first", "routing"), BATCHES)
def test_every_subscriber_gets_everything_once_and_in_order(
    relocation: str, mobile: str, faults: bool, first: int, routing: str
) -> None:
    seeds = range(first, first + BATCH)
    jobs = [Job(seed, routing, relocation, faults, mobile) for seed in seeds]
    assert failures(map(fuzz, jobs)) == ""


def test_without_support_moving_loses_and_duplicates() -> None:
    """An oracle that finds nothing here is broken."""
    runs = [fuzz(Job(seed, routing, "naive")) for seed in range(20) for routing in STRATEGIES]
    found = {(run.job.routing, one.rule) for run in runs for one in run.verdict.violations}
    assert {routing for routing, rule in found if rule == "complete"} == {*STRATEGIES}
    rules = {rule for _, rule in found}
    assert {"complete", "once"} <= rules <= LOST_WITHOUT_SUPPORT


def by_its_publisher(run: Fuzz, what: str) -> bool:
    """Whether "c0 did not get c4 7 ..." is of a client that never was away, and c4 moves."""
    words = what.split()
    attached = [event.client for event in run.world.events if event.kind == "attached"]
    return attached.count(words[0]) == 1 and words[4] in run.movers


def test_what_handoff_keeps_when_everybody_moves_standard_loses() -> None:
    """The same runs. Most is lost by clients that move, some by others: their publishers moved."""
    seeds = range(20)
    kept = (fuzz(Job(seed, "covering", "handoff", mobile="both")) for seed in seeds)
    assert failures(kept) == ""
    lost = []
    for seed in seeds:
        run = Fuzz(Job(seed, "covering", "standard", mobile="both"))
        whats = [one.what for one in run.run().violations if one.rule == "complete"]
        lost += [(seed, by_its_publisher(run, what)) for what in whats]
    assert len(lost) > 15
    assert len({seed for seed, _ in lost}) > 6
    assert any(publisher for _, publisher in lost)


def losses(relocation: str) -> int:
    runs = [fuzz(Job(seed, "covering", relocation, mobile="both")) for seed in range(10)]
    return sum(one.rule == "complete" for run in runs for one in run.verdict.violations)


def test_what_is_known_of_the_ways_of_publishers_is_used() -> None:
    """Without a forecast, both algorithms are as standard."""
    assert losses("proxy") < losses("prefetching") < losses("standard")


def test_the_forecast_is_where_the_plan_says_that_clients_go() -> None:
    right = wrong = 0
    for seed in range(10):
        run = Fuzz(Job(seed, "covering", "prefetching", mobile="both"))
        prepared: list[Prepare] = []

        def note(sender: str, receiver: str, message: AnyMessage, to: list[Prepare]) -> None:
            errands = message.errands if isinstance(message, Update) else ()
            to += [one for one in errands if isinstance(one, Prepare) and one.broker == receiver]

        run.world.watchers.append(partial(note, to=prepared))
        run.run()
        came = {
            (event.client, event.broker, event.epoch)
            for event in run.world.events
            if event.kind == "attached"
        }
        found = [(one.client, one.broker, one.epoch + 1) in came for one in prepared]
        right, wrong = right + sum(found), wrong + len(found) - sum(found)
    assert right > 50
    assert right > wrong  # clients also do what is not in the plan


@pytest.mark.parametrize("relocation", sorted(PUBLISHER_RELOCATIONS))
def test_only_deliveries_suffer_where_publishers_relocate_as_published(relocation: str) -> None:
    """Brokers that advertise for others leave nothing behind, and their tables are right."""
    runs = [fuzz(Job(seed, "covering", relocation, mobile="both")) for seed in range(100, 106)]
    rules = {one.rule for run in runs for one in run.verdict.violations}
    assert rules <= {"complete", "once", "fifo", "request"}


@pytest.mark.parametrize("routing", STRATEGIES)
def test_a_few_random_runs(routing: str) -> None:
    runs = [
        fuzz(Job(seed, routing, faults=faults))
        for seed in range(10_000, 10_005)
        for faults in (False, True)
    ]
    assert failures(iter(runs)) == ""


@cache
def thirty(routing: str) -> list[Run]:
    return [fuzz(Job(seed, routing)) for seed in range(60, 90)]


@pytest.mark.parametrize("routing", STRATEGIES)
def test_random_runs_ask_for_something(routing: str) -> None:
    """A run in which nothing has to be delivered proves nothing."""
    runs = thirty(routing)
    assert sum(run.verdict.required for run in runs) > 400
    assert sum(run.verdict.delivered for run in runs) > 800
    assert max(run.brokers for run in runs) > 10


def test_random_runs_come_to_limits() -> None:
    lost = [run.verdict.lost for routing in STRATEGIES for run in thirty(routing)]
    assert sum(lost) > 20
    assert sum(map(bool, lost)) > 3


def complaints(run: Fuzz, *events: Event) -> int:
    """How many losses of a run in which nothing went wrong are not expected."""
    run.world.events[:] = events
    return len(list(run._unexpected_losses()))


@pytest.mark.parametrize(("time", "found"), [(3, 1), (5, 0), (7, 0)])
def test_numbers_are_overtaken_only_once_a_client_has_begun_anew(time: int, found: int) -> None:
    run = Fuzz(Job(1))
    run.world.begin_anew("c0", run.world.client("c0").home)
    lost = Event(time, "lost", client="c1", count=0, reason=OVERTAKEN)
    events = sorted([Event(5, "replaced", client="c0"), lost], key=lambda one: one.time_ns)
    assert complaints(run, *events) == found


@pytest.mark.parametrize(("client", "time", "found"), [("c0", 3, 0), ("c0", 7, 1), ("c1", 3, 1)])
def test_routes_are_lost_only_once_the_session_of_a_client_has_ended(
    client: str, time: int, found: int
) -> None:
    run = Fuzz(Job(2))
    assert run.expiring and not run.crowded
    run.world.ended.append((time, SessionEnded(ClientId(client), "", EXPIRED, 0, 0)))
    lost = Event(5, "lost", client="c0", count=0, reason=ROUTES_LOST)
    assert complaints(run, lost) == found


def test_a_run_that_crashes_is_a_failure_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Fuzz) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(Fuzz, "run", crash)
    run = fuzz(Job(7, "simple", "handoff", faults=True))
    assert [str(one) for one in run.verdict.violations] == ["crash: KeyError: 'gone'"]
    assert run.job.command() == (
        "wayfare sim fuzz --seeds 1 --first-seed 7 --routing simple --relocation handoff --faults"
    )
