"""Which part of the past to keep, and where, as an experiment: what clients find on arrival, at which price."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wayfare.cli import main
from wayfare.eventlog import Event
from wayfare.sim.application_profiles import APPLICATIONS, POLICIES, Said
from wayfare.sim.links import SECOND_NS
from wayfare.sim.placement import PLACEMENTS, Figures, Found, Judge, Parameters, run


def arrivals(**given: Any) -> Figures:
    return run(Parameters(**{"side": 3, "walkers": 4, "minutes": 5.0} | given))


def wrong(figures: Figures) -> dict[str, int]:
    names = ("lost", "duplicates", "strays", "order_violations", "ghosts")
    return {name: getattr(figures, name) for name in names if getattr(figures, name)}


# ---- applications ------------------------------------------------------------------------------


def said(*given: tuple[int, dict[str, Any]]) -> list[Said]:
    return [
        Said(seconds * SECOND_NS, ("p", number), attributes)
        for number, (seconds, attributes) in enumerate(given, 1)
    ]


def counted(application: str, known: list[Said], seconds: int) -> list[int]:
    found = APPLICATIONS[application].counts(known, seconds * SECOND_NS)
    return sorted(one.key[1] for one in found)


def test_of_parking_notices_the_newest_of_each_free_space_counts() -> None:
    known = said(
        (1, {"space": 1, "state": "free"}),
        (2, {"space": 2, "state": "free"}),
        (3, {"space": 1, "state": "taken"}),
        (4, {"space": 3, "state": "taken"}),
        (5, {"space": 3, "state": "free"}),
    )
    assert counted("parking", known, 9) == [2, 5]
    assert counted("parking", known[:2], 9) == [1, 2]


def test_of_warnings_all_that_are_valid_count() -> None:
    known = said((1, {"road": 1}), (100, {"road": 1}), (101, {"road": 2}))
    assert counted("warnings", known, 400) == [2, 3]


def test_of_messages_the_last_twenty_count_however_old() -> None:
    known = said(*((at, {"author": 1}) for at in range(30)))
    assert counted("chat", known, 10_000) == list(range(11, 31))
    assert counted("chat", known[:3], 10_000) == [1, 2, 3]


def test_of_readings_the_newest_of_each_sensor_counts() -> None:
    known = said((1, {"sensor": 1}), (2, {"sensor": 2}), (3, {"sensor": 1}))
    assert counted("sensors", known, 4) == [2, 3]


@pytest.mark.parametrize("name", APPLICATIONS)
def test_policies_say_what_they_are_called(name: str) -> None:
    application = APPLICATIONS[name]
    terms = {policy: application.terms(policy) for policy in POLICIES}
    assert (terms["time"].younger_ns, terms["time"].last) == (application.age_ns, None)
    assert (terms["count"].younger_ns, terms["count"].last) == (None, application.last)
    assert (terms["both"].younger_ns, terms["both"].last) == (application.age_ns, application.last)
    assert terms["semantic"].names and terms["semantic"].last is None
    assert terms["fitting"] == terms[application.fitting]
    assert application.since_ns("both") == application.age_ns < application.since_ns("semantic")


# ---- the judge ---------------------------------------------------------------------------------

ARRIVED = 1000 * SECOND_NS


def at_place(*more: Event, application: str = "parking") -> Found:
    """A client has been at a; of b are published 1 and 2, and 3 just after it has come; then it goes."""
    spaces = [(1, 500, 1, "free"), (2, 600, 2, "free"), (4, 700, 3, "free"), (5, 710, 3, "taken")]
    events = [
        Event(0, "attached", client="w", broker="a"),
        *(
            Event(
                seconds * SECOND_NS,
                "published",
                client="p",
                number=number,
                attributes={"location": "b", "space": space, "state": state},
            )
            for number, seconds, space, state in spaces
        ),
        Event(ARRIVED - SECOND_NS, "detached", client="w", broker="a"),
        Event(ARRIVED, "attached", client="w", broker="b"),
        *more,
        Event(ARRIVED + 60 * SECOND_NS, "detached", client="w", broker="b"),
    ]
    events.sort(key=lambda one: one.time_ns)
    return Judge(Parameters(application=application), 0).judge(events, ["w"])


def delivered(number: int, after_ns: int = 5, place: str = "b", past: bool = True) -> Event:
    reason = "past" if past else None
    attributes = {"location": place}
    return Event(
        ARRIVED + after_ns,
        "delivered",
        "w",
        publisher="p",
        number=number,
        attributes=attributes,
        reason=reason,
    )


def published(number: int, after_ns: int, space: int, state: str) -> Event:
    attributes = {"location": "b", "space": space, "state": state}
    return Event(ARRIVED + after_ns, "published", "p", number=number, attributes=attributes)


GAP = Event(ARRIVED + 5, "lost", client="w")


@pytest.mark.parametrize(
    ("came", "counts"),
    [
        ([], {"available": 0, "silent": 1, "reported": 0}),
        ([GAP], {"available": 0, "silent": 0, "reported": 1, "gaps": 1}),
        ([delivered(1)], {"available": 1, "silent": 1}),
        ([delivered(1), delivered(2)], {"available": 2, "silent": 0, "delays_ns": [5]}),
        ([delivered(1), delivered(2, 9)], {"available": 2, "delays_ns": [9]}),
        ([delivered(1, 4 * SECOND_NS)], {"available": 0}),
        ([delivered(4)], {"available": 0, "unwanted": 1}),
        ([delivered(1), delivered(1)], {"available": 1, "duplicates": 1, "unwanted": 0}),
        ([delivered(1, place="a")], {"strays": 1}),
        ([delivered(2), delivered(1, past=False)], {"order_violations": 1}),
        ([delivered(2), delivered(1)], {"order_violations": 0}),
    ],
)
def test_how_arrivals_are_judged(came: list[Event], counts: dict[str, Any]) -> None:
    found = at_place(*came)
    assert (found.moves, found.wanted) == (1, 2)
    assert {name: getattr(found, name) for name in counts} == counts


def test_what_is_replaced_while_the_past_is_on_its_way_may_come_or_not() -> None:
    taken = published(6, 10, 1, "taken")
    for came in ((), (delivered(1),)):
        found = at_place(taken, *came)
        assert (found.wanted, found.available, found.unwanted) == (1, 0, 0)


def test_what_is_published_while_a_client_is_there_has_to_come() -> None:
    later = published(6, 30 * SECOND_NS, 9, "free")
    assert at_place(later).lost == 1
    found = at_place(later, delivered(6, 31 * SECOND_NS, past=False))
    assert (found.expected, found.lost) == (1, 0)


# ---- runs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def placed() -> dict[str, Figures]:
    return {placement: arrivals(placement=placement) for placement in PLACEMENTS}


def test_who_keeps_the_past_finds_it(placed: dict[str, Figures]) -> None:
    shares = {name: one.share for name, one in placed.items()}
    assert shares["none"] == 0 and shares["publisher"] == 1
    assert 0 < (shares["border"] or 0) < 1
    assert (shares["junction"] or 0) < (shares["collector"] or 0) < 1
    for figures in placed.values():
        assert figures.moves > 10 and figures.expected > 0
        assert wrong(figures) == {}


def test_what_is_incomplete_is_reported_to_those_who_ask(placed: dict[str, Figures]) -> None:
    reported = {name: (one.reported, one.silent) for name, one in placed.items()}
    assert reported["publisher"] == (0, 0)
    assert reported["junction"] == reported["collector"] == (1, 0)
    assert reported["border"][0] == 0 < reported["border"][1]


def test_what_each_placement_costs(placed: dict[str, Figures]) -> None:
    border, publisher, junction = (placed[one] for one in ("border", "publisher", "junction"))
    assert border.delay_ms == 4 < (publisher.delay_ms or 0) < (junction.delay_ms or 0)
    assert placed["none"].kept_peak == placed["none"].posted == placed["none"].requests == 0
    assert 0 < border.bytes_mean < publisher.bytes_mean
    assert border.posted > 0 == border.requests
    assert 0 < publisher.requests < junction.requests
    assert (border.notifications_per_move or 0) > (publisher.notifications_per_move or 0)
    assert publisher.replayed > 0


@pytest.mark.parametrize("application", APPLICATIONS)
def test_the_fitting_policy_finds_everything_at_the_publisher(application: str) -> None:
    figures = arrivals(application=application, placement="publisher", minutes=3.0)
    assert (figures.share, figures.unwanted, figures.silent) == (1, 0, 0)
    assert wrong(figures) == {}


def test_a_policy_that_does_not_fit_misses_something_or_brings_more() -> None:
    messages = arrivals(application="chat", policy="semantic", placement="publisher")
    assert (messages.share or 0) < 0.5
    by_time = arrivals(policy="time", placement="publisher")
    assert (by_time.share or 1) < 1 and (by_time.unwanted_share or 0) > 0.5


def test_who_remembers_too_little_says_so() -> None:
    figures = arrivals(placement="publisher", past_count=5)
    assert (figures.share or 1) < 0.7
    assert (figures.reported or 0) > 0.5 and figures.silent == 0


def test_publishers_of_several_places_are_remembered_in_vain() -> None:
    """`since` gives nothing that is older than what the client has of its publisher."""
    one, all_of_them = (arrivals(placement="publisher", spread=spread) for spread in (1, 9))
    assert one.share == 1 and (all_of_them.share or 0) < 0.5
    ahead = [arrivals(spread=spread).share for spread in (1, 9)]
    assert ahead[0] == ahead[1]


def test_the_same_seed_gives_the_same_figures() -> None:
    given = {"placement": "collector", "minutes": 2.0}
    assert arrivals(**given) == arrivals(**given) != arrivals(**given, seed=1)


# ---- the command -------------------------------------------------------------------------------


def test_the_command_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sim", "placement", "--side", "3", "--walkers", "2", "--minutes", "2"]
    assert main([*command, "--placement", "publisher", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["application"], figures["placement"], figures["share"]) == (
        "parking",
        "publisher",
        1.0,
    )
    assert main([*command, "--placement", "none"]) == 0
    shown = capsys.readouterr().out
    assert "parking, policy fitting, placement none, covering routing, seed 0" in shown
    assert "0 out of order" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--minutes", "0"], "minutes is above 0"),
        (["--side", "1"], "side is from 2 to 12"),
        (["--jump", "2"], "jump is a share from 0 to 1"),
        (["--past-count", "0"], "past_count is at least 1"),
        (["--spread", "0"], "spread is at least 1"),
        (["--degree", "1"], "degree is at least 2"),
        (["--dwell", "5"], "dwell is at least 10,000 ms"),
        (["--away", "70000"], "away and link-latency are times"),
    ],
)
def test_what_the_command_refuses(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "placement", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"wayfare: {says}")
