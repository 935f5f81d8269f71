"""Random walks of clients that follow their location, judged by where they were when."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import msgspec
import pytest

from wayfare.core import replicator
from wayfare.core.broker import ALL_RELOCATIONS
from wayfare.core.client import FROM_BROKER
from wayfare.core.convergence import Provisional
from wayfare.core.ear import Ear
from wayfare.core.effects import Effect
from wayfare.core.following import Following
from wayfare.core.handoff import Handoff
from wayfare.core.history import Kept
from wayfare.core.messages import BrokerId, ClientId, HereGap, Recalled
from wayfare.core.reduction import STRATEGIES
from wayfare.core.replicator import Replicator
from wayfare.core.templates import Template
from wayfare.core.thinning import Thinning
from wayfare.core.virtual import Virtual
from wayfare.eventlog import Event
from wayfare.sim.fuzz import Job, fuzz
from wayfare.sim.histories import histories
from wayfare.sim.links import MS_NS
from wayfare.sim.walks import Walks, disorder_in_place

BATCH = 25
ROUTINGS = list(STRATEGIES)
BATCHES = [
    (first, faults, mobile)
    for mobile, faults, seeds in (
        ("walkers", False, 1000),
        ("walkers", True, 150),
        ("learners", False, 300),
        ("learners", True, 150),
    )
    for first in range(0, seeds, BATCH)
]


def jobs(
    first: int, faults: bool = False, count: int = BATCH, mobile: str = "walkers"
) -> list[Job]:
    return [
        Job(seed, ROUTINGS[seed % len(ROUTINGS)], faults=faults, mobile=mobile)
        for seed in range(first, first + count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "faults", "mobile"), BATCHES)
def test_who_follows_its_location_gets_what_is_for_it(
    first: int, faults: bool, mobile: str
) -> None:
    runs = [fuzz(job) for job in jobs(first, faults, mobile=mobile)]
    failures = [
        f"reproduce: {run.job.command()}\n    {run.verdict.violations[0]}"
        for run in runs
        if run.verdict.violations
    ]
    assert "\n".join(failures) == ""
    assert sum(run.verdict.required for run in runs) > 100 or faults


@pytest.mark.parametrize("relocation", sorted({*ALL_RELOCATIONS} - {"handoff"}))
def test_ghosts_and_wishes_under_other_relocations(relocation: str) -> None:
    """What is followed does not depend on how the other subscriptions relocate."""
    runs = [fuzz(Job(seed, "covering", relocation, mobile="walkers")) for seed in range(12)]
    assert sum(run.verdict.delivered for run in runs) > 300
    assert [one for run in runs for one in run.verdict.violations] == []


def test_walkers_have_a_forecast() -> None:
    walks = Walks(0, relocation="prefetching")
    [first, *_] = walks.plan.stays["w0"]
    assert walks.world.forecast is not None
    ahead = walks.world.forecast.next_broker(ClientId("w0"), BrokerId(first.broker))
    assert ahead in {one.broker for one in walks.plan.stays["w0"]}
    assert ahead != first.broker


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


def test_random_walkers_subscribe_later_and_withdraw_during_a_move() -> None:
    later = during = 0
    for walks in thirty():
        came: dict[str | None, int] = {}
        for event in walks.world.events:
            if event.kind == "attached":
                came[event.client] = event.time_ns
            elif event.kind == "subscribed" and event.time_ns:
                later += 1
            elif event.kind == "unsubscribed":
                during += event.time_ns - came[event.client] < 100 * MS_NS
    assert later > 30
    assert during > 5


def test_random_walkers_leave_return_and_begin_anew() -> None:
    ends = 0
    for walks in thirty():
        kinds = [event.kind for event in walks.world.events if event.time_ns < walks.until_ns]
        ends += "left" in kinds and "replaced" in kinds
    assert ends > 3


def test_random_walkers_publish_and_publishers_move() -> None:
    spoken = moved = 0
    for walks in thirty():
        for event in walks.world.events:
            walks_itself = event.client in walks.areas
            spoken += event.kind == "published" and walks_itself
            moved += event.kind == "attached" and event.time_ns > 0 and not walks_itself
    assert spoken > 100
    assert moved > 30


def test_random_walkers_limit_what_they_want_of_what_they_missed() -> None:
    found: Counter[tuple[str, str]] = Counter()
    for walks in thirty():
        for event in walks.world.events:
            if event.kind in ("followed", "subscribed") and event.reason is not None:
                found.update((event.kind, word) for word in event.reason.split())
    for word in ("last", "younger", "newest"):
        assert found["followed", word] > 10
        assert found["subscribed", word] > 5


@cache
def thirty() -> list[Walks]:
    """Some random walks, without a violation."""
    found = [Walks(job.seed, job.routing) for job in jobs(0, count=30)]
    assert [one.run().violations for one in found] == [()] * 30
    return found


def test_the_judge_of_random_walks_asks_for_something() -> None:
    required = sum((one.required for one in thirty()), Counter[str]())
    assert required["complete"] > 150
    assert required["past"] > 20
    assert required["recalled"] > 1


def test_a_past_that_is_not_wanted_any_more_before_it_comes_is_not_required() -> None:
    """The client followed the same without any past while its broker asked the last one what it had."""
    run = fuzz(Job(71010, "flooding", mobile="learners"))
    assert run.verdict.violations == ()


def test_where_brokers_learn_the_judge_asks_for_the_past_too() -> None:
    found = [Walks(job.seed, job.routing, learns=True) for job in jobs(0, count=30)]
    assert [one.run().violations for one in found] == [()] * 30
    assert sum(one.required["past"] for one in found) > 10


def test_the_judge_of_learners_misses_brokers_that_do_not_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They say that others listen ahead, and tell them nothing."""
    monkeypatch.setattr(Replicator, "_on_shadow", lambda *_: [])
    found = [Walks(job.seed, job.routing, learns=True) for job in jobs(0, count=30)]
    assert "past" in {one.rule for walks in found for one in walks.run().violations}


def test_random_walks_follow_twice_the_same_and_nothing_at_all() -> None:
    most, none = 0, 0
    for walks in thirty():
        counts: dict[str | None, Counter[Template]] = {}
        for event in walks.world.events:
            mine = counts.setdefault(event.client, Counter())
            if event.kind == "followed" and event.follows is not None:
                mine[event.follows] += 1
                most = max(most, mine[event.follows])
            elif event.kind == "unfollowed" and event.follows is not None:
                mine[event.follows] -= 1
                none += not mine.total()
    assert most > 1
    assert none > 5


def test_random_walks_follow_values_that_change() -> None:
    """Not their location, but what they declared; and it changes, as declared or otherwise."""
    found = [walks for walks in thirty() if walks.declared]
    came = [
        event
        for walks in found
        for event in walks.world.events
        if event.kind == "delivered" and event.follows is not None
        if not event.follows.follows_location
    ]
    assert len(found) > 5
    assert len(came) > 50


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


def broken(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, instead: Any, first: int = 0
) -> set[str]:
    """The rules that random walks break when this is done instead."""
    monkeypatch.setattr(owner, name, instead)
    runs = [fuzz(job) for job in jobs(first, count=30)]
    return {one.rule for run in runs for one in run.verdict.violations}


def test_the_judge_sees_what_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "once" in broken(monkeypatch, Following, "is_news", lambda *_: True)


def test_the_judge_sees_what_is_not_for_this_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is on its way when the client goes on."""
    find = lambda self, _: list(self.counts)  # noqa: E731
    assert "wanted" in broken(monkeypatch, Following, "find", find)


def test_the_judge_sees_that_the_past_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "past" in broken(monkeypatch, Ear, "candidates", lambda *_: {})


def test_the_judge_sees_that_the_past_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what its publisher could not send at once."""
    push = Replicator.push

    def unmarked(self: Replicator, virtual: Virtual, now: int) -> list[Effect]:
        virtual.past.clear()
        return push(self, virtual, now)

    monkeypatch.setattr(Replicator, "push", unmarked)
    walks = Walks(90011, faults=True)
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


def test_the_judge_sees_that_the_present_is_missing_with_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replicator, "_deliver", lambda *_: [])
    runs = [fuzz(job) for job in jobs(0, True, 10)]
    assert "complete" in {one.rule for run in runs for one in run.verdict.violations}


def test_the_judge_sees_that_what_was_recalled_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Replicator._on_recalled

    def empty(self: Replicator, sender: BrokerId, message: Recalled, now: int) -> list[Effect]:
        return real(self, sender, msgspec.structs.replace(message, kept=()), now)

    assert "recalled" in broken(monkeypatch, Replicator, "_on_recalled", empty)


def test_the_judge_sees_that_nobody_answers_a_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told of a loss, where nothing goes wrong."""
    assert "gap" in broken(monkeypatch, Replicator, "_on_recall", lambda *_: [])


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
    real = Replicator._put_chosen

    def backwards(self: Replicator, virtual: Virtual, *given: Any) -> None:
        number = virtual.backlog.last
        real(self, virtual, *given)
        waiting = [one for one in virtual.backlog.waiting if one[0] > number]
        for (at, _, _), (_, stored, put) in zip(waiting, reversed(waiting), strict=True):
            for place, one in enumerate(virtual.backlog.waiting):
                if one[0] == at:
                    virtual.backlog.waiting[place] = at, stored, put

    assert "fifo" in broken(monkeypatch, Replicator, "_put_chosen", backwards)


def test_the_judge_sees_that_a_first_publication_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers publish right after they have advertised."""
    join = lambda _self, near, _: list(near)  # noqa: E731
    assert "complete" in broken(monkeypatch, Provisional, "join", join, first=300)


def test_the_judge_sees_a_loss_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who left and returned was told that its broker had forgotten something."""
    assert "gap" in broken(monkeypatch, Following, "resumes_at", lambda self: self.heard)


def test_the_judge_sees_more_of_the_past_than_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutTerms(Thinning[Kept]):
        def __init__(self, kept, wanted, *given, **named) -> None:  # type: ignore[no-untyped-def]
            super().__init__(kept, dict.fromkeys(wanted), *given, **named)

    assert "terms" in broken(monkeypatch, replicator, "Thinning", WithoutTerms)


def test_the_judge_sees_a_loss_that_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    on_here_gap = FROM_BROKER[HereGap]
    silent = lambda *given: on_here_gap(*given)[1:]  # noqa: E731
    assert Walks(118).run().violations == ()
    monkeypatch.setitem(FROM_BROKER, HereGap, silent)
    assert "complete" in {one.rule for one in Walks(118).run().violations}


@pytest.mark.parametrize(("moves", "found"), [(False, 1), (True, 0)])
def test_the_judge_sees_disorder_without_support_where_nobody_moves(
    moves: bool, found: int
) -> None:
    def attached(at: int, client: str, broker: str) -> Event:
        return Event(at, "attached", client=client, broker=broker)

    def got(at: int, number: int) -> Event:
        return Event(at, "delivered", client="w", publisher="p", number=number)

    published = [Event(10 * i, "published", client="p", number=i) for i in (1, 2)]
    moved = [
        Event(52, "detached", client="w", broker="porto"),
        attached(55, "w", "faro"),
    ]
    events = [
        attached(0, "w", "porto"),
        attached(0, "p", "porto"),
        *published,
        got(50, 2),
        *(moved if moves else []),
        got(60, 1),
    ]
    assert len(list(disorder_in_place(events, client_ns=2))) == found
