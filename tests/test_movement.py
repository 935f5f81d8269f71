"""Clients are where their movement says, when it says so."""

from itertools import pairwise
from random import Random

import pytest

from wayfare.errors import UsageError
from wayfare.sim import World, check
from wayfare.sim.links import MS_NS
from wayfare.sim.movement import Stay, play, random_walk


def world_with(client="anna", **limits):
    world = World(**limits)
    world.add_brokers([("porto", "lisbon")])
    return world, world.add_client(client, "porto", attach=False)


def comings_and_goings(world):
    return [
        (event.time_ns // MS_NS, event.kind, event.broker)
        for event in world.events
        if event.kind in ("attached", "detached")
    ]


def test_a_script_is_played():
    world, _ = world_with()
    stays = [Stay("porto", 10 * MS_NS, 300 * MS_NS), Stay("porto", 500 * MS_NS)]
    play(world, "anna", stays)
    world.settle()
    assert comings_and_goings(world) == [
        (10, "attached", "porto"),
        (300, "detached", "porto"),
        (500, "attached", "porto"),
    ]
    assert world.clients["anna"].core.epoch == 2


def test_who_says_goodbye_sends_a_detach_and_who_goes_silently_does_not():
    for silent, said in ((False, ["Attach", "Detach"]), (True, ["Attach"])):
        world, _ = world_with()
        world.log_messages()
        play(world, "anna", [Stay("porto", 0, 200 * MS_NS, silent)])
        world.settle()
        assert [event.message for event in world.events if event.sender == "anna"] == said
        assert world.clients["anna"].connection is None
        assert not world.connections


def test_nothing_is_lost_between_two_stays():
    world, anna = world_with()
    ticker = world.add_client("ticker", "lisbon")
    ticker.advertise("price > 0")
    anna.subscribe("price > 40")
    play(
        world,
        "anna",
        [
            Stay("porto", 0, 300 * MS_NS),
            Stay("porto", 600 * MS_NS, 900 * MS_NS, silent=True),
            Stay("porto", 1200 * MS_NS),
        ],
    )
    for time in range(100, 1500, 7):
        world.agenda.at(time * MS_NS, lambda _: ticker.publish({"price": 41}))
    world.settle()
    verdict = check(world)
    assert verdict.violations == ()
    assert verdict.delivered == verdict.published == 200


def test_a_stay_cannot_end_before_it_begins():
    with pytest.raises(UsageError, match=r"a stay from 5 until 4 cannot be, .* give an until_ns"):
        Stay("porto", 5, 4)
    assert Stay("porto", 5, 5).until_ns == 5


def test_a_movement_to_a_broker_that_is_not_there_is_refused_as_a_whole():
    world, _ = world_with()
    with pytest.raises(UsageError, match="there is no broker 'braga'"):
        play(world, "anna", [Stay("porto", 0, 1), Stay("braga", 2)])
    assert len(world.agenda) == 0


def test_a_random_walk_covers_the_time_and_ends_with_a_stay_that_lasts():
    for seed in range(30):
        stays = random_walk(Random(seed), ["a", "b", "c"], 10_000, (50, 500), (0, 300))
        assert stays[0].from_ns == 0
        assert stays[-1].until_ns is None
        assert stays[-1].from_ns >= 10_000
        for stay, following in pairwise(stays):
            assert 50 <= stay.until_ns - stay.from_ns <= 500
            away = following.from_ns - stay.until_ns
            assert 0 <= away <= 300 or following is stays[-1]
        assert {stay.broker for stay in stays} <= {"a", "b", "c"}


def test_a_random_walk_uses_all_places_and_both_ways_to_go():
    stays = random_walk(Random(1), ["a", "b", "c"], 10**6, (50, 500), (0, 300))
    assert {stay.broker for stay in stays} == {"a", "b", "c"}
    assert {stay.silent for stay in stays} == {True, False}
    never = random_walk(Random(1), ["a"], 10**5, (50, 500), (0, 300), silent=0.0)
    assert not any(stay.silent for stay in never)


def test_the_same_seed_gives_the_same_walk():
    def walk():
        return random_walk(Random(9), ["a", "b"], 10**5, (1, 500), (0, 300))

    assert walk() == walk()
