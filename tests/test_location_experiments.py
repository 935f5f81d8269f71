"""Subscriptions that follow their clients, as experiments: what is missed, what is there on arrival, at which price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from wayfare.cli import main
from wayfare.core.messages import BrokerId
from wayfare.errors import PipelineError, UsageError
from wayfare.eventlog import Event
from wayfare.pipeline import replay
from wayfare.sim import blackout, location, topology
from wayfare.sim.links import MS_NS, SECOND_NS
from wayfare.sim.location import Judge
from wayfare.sim.ways import grid, random_ways, read
from wayfare.sim.world import CLIENT_LINK
from wayfare.studies.location import LOCATION
from wayfare.studies.points import Point
from wayfare.studies.study import Rows

OWN_LINK_MS = 2 * CLIENT_LINK.latency_ns / MS_NS  # what nobody can do anything about


def changes(steps: str, **how: Any) -> blackout.Figures:
    return blackout.run(blackout.Parameters(steps=steps, changes=40, rate=50.0, **how))


def arrivals(nlb: str, **how: Any) -> location.Figures:
    given: dict[str, Any] = {"side": 3, "walkers": 4, "minutes": 4.0, "publishers": 3} | how
    return location.run(location.Parameters(nlb=nlb, **given))


# ---- blackout ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hops", [1, 5])
def test_without_steps_a_change_goes_to_the_publisher_and_back(hops: int) -> None:
    figures = changes("0", hops=hops)
    there_and_back_ms = 2 * hops * 10 + OWN_LINK_MS
    assert figures.blackout_ms == pytest.approx(there_and_back_ms, abs=5)
    assert there_and_back_ms - 10 < figures.blackout_max_ms < there_and_back_ms


@pytest.mark.parametrize("steps", ["dwell", "everywhere"])
@pytest.mark.parametrize("dwell_ms", [20, 200])
def test_who_is_told_ahead_misses_nothing_but_by_the_own_link(steps: str, dwell_ms: int) -> None:
    figures = changes(steps, hops=5, dwell_ns=dwell_ms * MS_NS)
    assert figures.blackout_max_ms < OWN_LINK_MS
    assert figures.delivered == figures.expected - figures.missed > 0


def test_one_step_is_not_enough_for_who_is_in_a_hurry() -> None:
    """100 ms there and back, and 20 ms at a location."""
    one, two = (changes(steps, hops=5, dwell_ns=20 * MS_NS).missed_share for steps in ("1", "2"))
    assert one > two > 0


def test_more_steps_cost_more_notifications() -> None:
    costs = [changes(steps).notifications_per_delivered or 0 for steps in blackout.STEPS]
    nothing, one, two, dwell, measured, everywhere = costs
    assert nothing < one == dwell == measured < two < everywhere
    assert changes("everywhere").control == 0


@pytest.mark.parametrize("steps", blackout.STEPS)
def test_nothing_of_a_blackout_run_is_wrong(steps: str) -> None:
    figures = changes(steps, walkers=3)
    assert figures.duplicates == figures.strays == figures.order_violations == figures.gaps == 0
    assert figures.ghosts == 0


@pytest.mark.parametrize("follow", ["my.need", "my.mode"])
def test_a_value_that_changes_costs_no_more_than_a_location(follow: str) -> None:
    """Four hops, and a change every 100 to 150 ms; without a declaration it goes to the publisher and back."""
    hurry = {"dwell_ns": 100 * MS_NS}
    place, value = changes("dwell", **hurry), changes("dwell", follow=follow, **hurry)
    assert value.blackout_max_ms < OWN_LINK_MS
    assert value.delivered / value.expected >= place.delivered / place.expected - 0.01
    assert changes("0", follow=follow, **hurry).missed_share > 0.5
    wrong = value.duplicates, value.strays, value.order_violations, value.gaps, value.ghosts
    assert wrong == (0, 0, 0, 0, 0)


def test_a_value_of_which_nothing_is_declared_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackout.Parameters, "declared", lambda _: {})
    figures = changes("dwell", follow="my.need", dwell_ns=100 * MS_NS)
    assert figures.missed_share > 0.5


def test_what_a_blackout_is() -> None:
    """Of the three that would reach it at b the first is missed; that of a is not for b."""
    events = [
        Event(0, "became", client="w", location="a"),
        *(
            Event(time, "published", client="p", number=number, attributes={"location": place})
            for number, (time, place) in enumerate([(95, "b"), (96, "a"), (120, "b"), (180, "b")])
        ),
        Event(100, "became", client="w", location="b"),
        *(Event(time, "delivered", client="w", number=number) for time, number in [(130, 2)]),
    ]
    found = blackout.judge(events, ["w"], way_ns=10)
    assert (found.expected, found.missed, found.longest_ns) == (3, 2, 90)
    again = [*events, Event(140, "delivered", client="w", number=2)]
    assert blackout.judge(again, ["w"], 10).duplicates == 1
    stray = [*events, Event(140, "delivered", client="w", number=1)]
    found = blackout.judge(stray, ["w"], 10)
    assert (found.strays, found.order_violations) == (1, 1)


# ---- arrival -----------------------------------------------------------------------------------


def test_what_is_there_on_arrival_by_who_listens_ahead() -> None:
    given = [nlb for nlb in location.NLB if nlb != "learnt"]
    found = {nlb: arrivals(nlb, remembered=0) for nlb in given}
    shares = {nlb: one.share or 0.0 for nlb, one in found.items()}
    assert shares["none"] < 0.5 and shares["all"] == 1.0  # what is kept for other clients
    assert 0.5 < shares["mined"] <= shares["neighbours"] < 1
    virtual = [found[nlb].virtual_mean for nlb in given]
    assert virtual == sorted(virtual) and virtual[-1] == pytest.approx(9, abs=0.01)
    posted = [found[nlb].posted for nlb in given]
    assert posted == sorted(posted)
    kept = [found[nlb].kept_mean for nlb in given]
    assert kept == sorted(kept)
    for one in found.values():
        assert one.expected > 0
        assert one.lost == one.duplicates == one.strays == one.order_violations == one.gaps == 0
        assert one.ghosts == 0


def test_where_nobody_listened_ahead_the_brokers_of_publishers_have_the_past() -> None:
    figures = arrivals("none", dwell_ns=30 * SECOND_NS)
    assert figures.fetched_share == figures.share == 1.0 and figures.unforeseen == figures.wanted
    assert figures.lost == figures.duplicates == figures.strays == figures.order_violations == 0
    assert figures.gaps == figures.ghosts == 0
    figures = arrivals("none", dwell_ns=30 * SECOND_NS, remembered=5)
    assert 0 < (figures.fetched_share or 0) < 0.8


def test_brokers_that_know_nothing_at_first_learn_who_comes() -> None:
    figures = arrivals("learnt", minutes=20.0)
    assert (figures.foreseen or 0) > 0.7 and (figures.share or 0) > 0.5
    assert figures.virtual_mean < arrivals("neighbours", minutes=20.0).virtual_mean + 1
    wrong = figures.lost, figures.duplicates, figures.strays, figures.order_violations
    assert (*wrong, figures.gaps, figures.ghosts) == (0, 0, 0, 0, 0, 0)


def test_who_stays_for_half_the_horizon_finds_half_of_it() -> None:
    figures = arrivals("neighbours", side=5, dwell_ns=30 * SECOND_NS, habit=0.4, jump=0.0)
    assert figures.foreseen == 1.0
    assert figures.share is not None and 0.4 < figures.share < 0.8
    # Where everybody listens all the time, it does not matter how long anybody stays.
    assert arrivals("all", dwell_ns=10 * SECOND_NS).share == 1.0


def test_more_coverage_foresees_more() -> None:
    some = arrivals("mined", coverage=0.5, jump=0.0)
    most = arrivals("mined", coverage=1.0, jump=0.0)
    assert (some.foreseen or 0) < (most.foreseen or 0) == 1.0
    assert some.virtual_mean < most.virtual_mean


def place_events(*more: Event) -> list[Event]:
    """Said of b: 1 long before, 2 and 3 in the last ten; then it comes there."""
    return [
        Event(0, "became", client="w", location="a"),
        Event(0, "attached", client="w", broker="a"),
        *(
            Event(time, "published", client="p", number=number, attributes={"location": "b"})
            for number, time in [(1, 80), (2, 91), (3, 95)]
        ),
        Event(99, "detached", client="w", broker="a"),
        Event(100, "became", client="w", location="b"),
        Event(100, "attached", client="w", broker="b"),
        *more,
    ]


def delivered(number: int, time: int = 101, past: bool = True, place: str = "b") -> Event:
    reason = "past" if past else None
    attributes = {"location": place}
    return Event(
        time, "delivered", "w", publisher="p", number=number, attributes=attributes, reason=reason
    )


@pytest.mark.parametrize(
    ("came", "counts"),
    [
        ([], {"available": 0}),
        ([delivered(2), delivered(3)], {"available": 2, "delivered": 2, "past": 2}),
        ([delivered(3), delivered(2)], {"available": 2, "order_violations": 0}),
        ([delivered(3), delivered(2, past=False)], {"available": 2, "order_violations": 1}),
        ([delivered(2), delivered(2)], {"available": 1, "duplicates": 1, "delivered": 1}),
        ([delivered(1)], {"available": 0, "delivered": 1}),
        ([delivered(2, time=101 + SECOND_NS)], {"available": 0, "delivered": 1}),
        ([delivered(2, place="a")], {"strays": 1}),
        ([Event(101, "lost", client="w")], {"gaps": 1}),
    ],
)
def test_how_arrivals_are_judged(came: list[Event], counts: dict[str, int]) -> None:
    judge = Judge(10, 0, lambda _client, _epoch, _there, here: here == "b")
    found = judge.judge(place_events(*came), ["w"])
    assert (found.moves, found.foreseen, found.wanted) == (1, 1, 2)
    assert {name: getattr(found, name) for name in counts} == counts


def test_what_is_live_has_to_come() -> None:
    said = Event(100 + 2 * SECOND_NS, "published", client="p", number=4)
    said.attributes = {"location": "b"}
    end = Event(100 + 9 * SECOND_NS, "detached", client="w", broker="b")
    for came, lost in (([], 1), ([delivered(4, said.time_ns + 5, past=False)], 0)):
        judge = Judge(10, 0, lambda *_: False)
        found = judge.judge(place_events(said, *came, end), ["w"])
        assert (found.expected, found.lost, found.foreseen) == (1, lost, 0)


# ---- ways --------------------------------------------------------------------------------------


def test_trees_over_places() -> None:
    for count in (1, 2, 4, 5, 17, 64):
        leaves = [f"p{i}" for i in range(count)]
        edges = topology.above(leaves, 4)
        names = list(dict.fromkeys(end for edge in edges for end in edge))
        assert topology.check_tree(names, edges) is None
        if count > 1:
            assert sorted(topology.leaves(edges)) == sorted(leaves)
    assert topology.above(["a", "b", "c"], 2) == [
        ("n2", "n0"),
        ("n2", "n1"),
        ("n0", "a"),
        ("n0", "b"),
        ("n1", "c"),
    ]


def test_random_ways_have_habits_that_are_learnt() -> None:
    ways = random_ways(1, side=4, walkers=3, until_ns=10**12, dwell_ns=10**10, habit=0.8, jump=0.05)
    assert ways.names() == list(grid(4)) and len(ways.ways) == 3
    here = BrokerId("1.1")
    assert set(ways.places.next_brokers(here)) == {"0.1", "2.1", "1.0", "1.2"}
    assert len(ways.movement.successors(here, 0.9)) < 4
    usual, share = ways.movement.likely(here)[0]
    assert usual in ways.places.next_brokers(here) and 0.6 < share < 0.9


WAYS = {
    "moves": [["a", "b", 9], ["a", "c", 1], ["b", "a", 5], ["c", "a", 3]],
    "ways": {
        "anna": [[0, "a"], [150 * 10**9, "b"], [300 * 10**9, "a"]],
        "ben": [[10**9, "b"], [200 * 10**9, "c"]],
    },
}


def test_the_ways_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ways.json"
    file.write_text(json.dumps(WAYS))
    assert read(file).names() == ["a", "b", "c"]
    command = ["sim", "location", "--ways", str(file), "--minutes", "4", "--coverage", "0.9"]
    assert main([*command, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    # Ben is where nobody ever was next; he has ten publications of the minute before him.
    assert (figures["walkers"], figures["moves"], figures["foreseen"]) == (2, 3, 0.66667)
    assert (figures["wanted"], figures["available"], figures["lost"]) == (36, 36, 0)
    assert (figures["unforeseen"], figures["fetched"]) == (12, 12)
    command = [*command, "--remembered", "0"]
    assert main(command) == 0
    assert "66.7%: 24 of 36" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot read .*: No such file"),
        ("[]", "has no ways of clients"),
        ('{"moves": [], "ways": {"a": []}}', "the way of a does not go from place to place"),
        (
            '{"moves": [], "ways": {"a": [[5, "x"], [5, "y"]]}}',
            "the way of a does not go from place to place, later and later",
        ),
        ('{"moves": [], "ways": {"a": [[5, "x"]]}}', "ways over 2 to 1000 places"),
    ],
)
def test_files_that_are_no_ways(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "ways.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=says):
        read(file)


# ---- commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["blackout", "--hops", "0"], "hops is from 1 to 50"),
        (["blackout", "--rate", "0"], "rate is a number of publications per second"),
        (["blackout", "--changes", "0"], "changes is at least 1"),
        (["blackout", "--follow", "my.mode", "--side", "17"], "side is at most 16 for my.mode"),
        (["location", "--minutes", "0"], "minutes is above 0"),
        (["location", "--coverage", "0"], "coverage is a share above 0"),
        (["location", "--dwell", "5"], "dwell and horizon are at least 1,000 ms"),
        (["location", "--side", "1"], "side is from 2 to 30"),
        (["location", "--remembered", "-1"], "remembered is a number of notifications"),
    ],
)
def test_what_the_commands_refuse(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"wayfare: {says}")


def test_blackout_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "blackout", "--changes", "5", "--hops", "2", "--steps", "0"]) == 0
    shown = capsys.readouterr().out
    assert "steps 0, covering routing, seed 0" in shown and "0 ghosts" in shown


# ---- the study ---------------------------------------------------------------------------------


def verdicts(name: str, rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Whether each check of an experiment holds, by the first words of it."""
    one = LOCATION.experiment(name)
    found = Rows(rows, LOCATION.by_of(one), one.varied)
    return {check.says: check.verdict(found).holds for check in one.checks}


def rows_of(name: str) -> list[dict[str, Any]]:
    """Of an experiment with two values and one seed, smaller."""
    small = {"changes": 30, "side": 5} if LOCATION.experiment(name).kind == "" else SMALL
    points = LOCATION.points(quick=True)[name]
    xs = list(dict.fromkeys(x for x, _ in points))[:2]
    out = []
    for x, point in points:
        if x in xs:
            given = point.given | small
            run = Point(point.kind, given).run()
            facts = msgspec.to_builtins(Point(point.kind, given).parameters())
            out.append(facts | msgspec.to_builtins(run))
    return out


SMALL = {"side": 4, "walkers": 6, "minutes": 10.0}


@pytest.fixture(scope="module")
def measured() -> dict[str, list[dict[str, Any]]]:
    return {name: rows_of(name) for name in ("hops", "stay")}


@pytest.mark.parametrize("name", ["hops", "stay"])
def test_the_checks_of_the_study_hold(name: str, measured: dict[str, list[dict[str, Any]]]) -> None:
    assert all(verdicts(name, measured[name]).values())


@pytest.mark.parametrize(
    ("name", "series", "changed", "says"),
    [
        ("hops", "dwell", {"strays": 1}, "nothing comes twice, or to the wrong place"),
        ("hops", "0", {"ghosts": 1}, "nothing comes twice, or to the wrong place"),
        ("hops", "0", {"blackout_ms": 5.0}, "steps 0: in the dark for as long as"),
        ("hops", "0", {"blackout_ms": 5.0}, "steps 0: the blackout grows"),
        ("hops", "dwell", {"blackout_max_ms": 4.1}, "steps dwell: nobody misses more"),
        ("hops", "everywhere", {"blackout_max_ms": 4.1}, "steps everywhere: nobody misses more"),
        ("hops", "2", {"notifications_per_delivered": 1e9}, "everywhere takes the most"),
        ("hops", "everywhere", {"control": 1}, "everywhere: control never"),
        ("stay", "mined", {"lost": 1}, "nothing is lost, comes twice"),
        ("stay", "none", {"fetched": 0}, "where nobody listens ahead"),
        ("stay", "mined", {"fetched": 1}, "where nobody listens ahead"),
        ("stay", "all", {"share": 0.9999}, "where all listen ahead"),
        ("stay", "mined", {"share": 0.1}, "what is mined finds at least 90%"),
        ("stay", "mined", {"virtual_mean": 9.0}, "what is mined takes fewer virtual clients"),
        ("stay", "mined", {"messages_per_minute": 1e9}, "what is mined takes fewer messages"),
        ("stay", "mined", {"kept_mean": 1e9}, "what is mined takes fewer kept notifications"),
        ("stay", "learnt", {"messages_per_minute": 1e9}, "to listen everywhere takes more"),
        ("stay", "none", {"kept_mean": 1e9}, "... and most memory"),
        ("stay", "neighbours", {"share": 0.5}, "neighbours find more"),
    ],
)
def test_every_check_of_the_study_can_fail(
    name: str,
    series: str,
    changed: dict[str, Any],
    says: str,
    measured: dict[str, list[dict[str, Any]]],
) -> None:
    by = LOCATION.by_of(LOCATION.experiment(name))
    rows = [row | changed if row[by] == series else row for row in measured[name]]
    (held,) = [holds for check, holds in verdicts(name, rows).items() if check.startswith(says)]
    assert not held


def test_where_every_arrival_was_expected_nothing_is_shown_about_the_others(
    measured: dict[str, list[dict[str, Any]]],
) -> None:
    rows = [row | {"unforeseen": 0, "fetched": 0} for row in measured["stay"]]
    (held,) = [
        holds
        for check, holds in verdicts("stay", rows).items()
        if check.startswith("where nobody listens ahead")
    ]
    assert not held


def test_without_a_log_nobody_is_followed() -> None:
    assert LOCATION.points()["taxis"] == LOCATION.points()["coverage"] == []
    (x, point), *_ = LOCATION.points(quick=True, ways="w.json")["taxis"]
    assert (x, point.given["ways"], point.kind) == (5, "w.json", "location")


def test_a_part_of_a_log_is_played_again(spark: SparkSession, tmp_path: Path) -> None:
    """Learnt from the first 70 % of the time; then the ways of its clients, from where they were."""
    hour = 3600
    rows = [
        ("anna", 0, "a", "b"),
        ("anna", hour, "b", "a"),
        ("ben", 2 * hour, "a", "b"),
        ("ben", 7 * hour + 60, "b", "c"),  # from here on it is played
        ("ben", 7 * hour + 90, "c", "c"),
        ("anna", 8 * hour, "a", "b"),
        ("anna", 10 * hour, "b", "a"),  # too late
    ]
    log = tmp_path / "log.csv"
    log.write_text("client,time,from,to\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in rows))
    path = replay.write(spark, str(log), {}, tmp_path / "out")
    assert json.loads(path.read_text()) == {
        "moves": [["a", "b", 2], ["b", "a", 1]],
        "ways": {
            "anna": [[0, "a"], [hour * 10**9, "b"]],
            "ben": [[0, "b"], [60 * 10**9, "c"]],
        },
    }
    ways = read(path)
    assert ways.movement.successors(BrokerId("a"), 0.95) == ["b"]
    log.write_text("client,time,from,to\nanna,0,a,b\n")
    with pytest.raises(PipelineError, match="no moves to learn from in the first 70%"):
        replay.write(spark, str(log), {}, tmp_path / "other")
