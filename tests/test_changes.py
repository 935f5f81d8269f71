"""How values of a client's state change, and what brokers further away hold for `my.<name>`."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan
from typing import Any

import pytest

from wayfare.core import changes
from wayfare.core.changes import CHANGES_MAX, EVERYWHERE, Changes, Span, reach
from wayfare.core.client import Client
from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId, ClientId, LinkId, Shadow, State, Terms, Update
from wayfare.core.pace import DWELL_NS, STAYS_MIN, Pace
from wayfare.core.places import of_edges
from wayfare.core.predicates import INT_MAX, VALUES_MAX, Value
from wayfare.core.templates import Mine, Template, parse
from wayfare.core.virtual import Ahead, check_length
from wayfare.errors import FilterError, UsageError
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS
from wayfare.sim.quiet import check_quiet, ghosts
from wayfare.sim.world import World

MODES = ("walk", "bike", "car", "train")
LINE = ["b0", "b1", "b2", "b3", "b4"]
ROAD = list(pairwise(LINE))


# What a value may be soon


@pytest.mark.parametrize(
    ("change", "value", "steps", "found"),
    [
        (1, 3, 0, (3,)),
        (1, 3, 1, Span(2, 4)),
        (2, 3, 2, Span(-1, 7)),
        (0.5, 3, 3, Span(1.5, 4.5)),
        (1, 3, EVERYWHERE, Span()),
        (1, INT_MAX, 1, Span(INT_MAX - 1, None)),  # beyond it, a filter has no numbers
        (0.5, INT_MAX, 1, Span(INT_MAX, float(2**63))),  # not even a little less, as a float
        (1e308, 1e308, 1, Span(0, None)),
        (1, "3", 5, ("3",)),
        (1, True, 5, (True,)),
        (MODES, "walk", 1, ("walk", "bike")),
        (MODES, "bike", 1, ("walk", "bike", "car")),
        (MODES, "bike", 0, ("bike",)),
        (MODES, "bike", EVERYWHERE, MODES),
        (MODES, "plane", EVERYWHERE, ("plane",)),
        ((0, True, 1), 1, 1, (True, 1)),
    ],
)
def test_what_a_value_may_be_soon(change: Any, value: Value, steps: int, found: Any) -> None:
    assert reach(change, value, steps) == found


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"need": 0}, "the largest step, a number above 0"),
        ({"need": -1}, "above 0"),
        ({"need": nan}, "above 0"),
        ({"need": inf}, "above 0"),
        ({"need": True}, "above 0"),
        ({"mode": ("walk",)}, "list 1 values"),
        ({"mode": tuple(range(VALUES_MAX + 1))}, "give 2 to 256"),
        ({"mode": ("walk", "bike", "walk")}, "list a value twice"),
        ({"mode": ("walk", nan)}, "NaN"),
        ({f"v{i}": 1 for i in range(CHANGES_MAX + 1)}, "at most 32 values"),
    ],
)
def test_what_cannot_be_declared(declared: Any, says: str) -> None:
    with pytest.raises(FilterError, match=says):
        changes.check(declared)


def test_lists_take_room_of_what_a_client_follows() -> None:
    many = State(values={"mode": 1}, changes={"mode": tuple("x" * 99 + str(i) for i in range(100))})
    follows = [parse("mode = my.mode")]
    with pytest.raises(FilterError, match="or declare fewer values"):
        check_length(follows, many)  # type: ignore[arg-type]
    check_length(follows, State(values={"mode": 1}))  # type: ignore[arg-type]


# What is wanted soon


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("free >= my.need", "free >= 2"),
        ("free > my.need", "free > 2"),
        ("free < my.need", "free < 4"),
        ("free <= my.need", "free <= 4"),
        ("free = my.need", "free between 2 and 4"),
        ("free <> my.need", "exists free"),
        ("free in (my.need, 9)", "free between 2 and 9"),
        ("free not in (my.need, 9)", "free <> 9"),
        ("free between my.need and 9", "free between 2 and 9"),
        ("free >= my.other", "free >= 7"),  # it is not declared
        ("mode = my.mode", "mode in ('bike', 'car', 'walk')"),
        ("mode in (my.mode, 'plane')", "mode in ('bike', 'car', 'plane', 'walk')"),
        ("mode <> my.mode", "exists mode"),
        ("mode >= my.mode", "mode >= 'bike'"),
        ("mode prefix my.mode", "mode like '%'"),
        ("mode not contains my.mode", "mode like '%'"),
        ("name prefix my.need", None),  # no text
        ("free >= my.unset", None),
        ("near(1, 2, my.need)", "near(1, 2, 4)"),
        ("not near(1, 2, my.need)", "not near(1, 2, 2)"),
        ("near(my.need, 2, 5)", "exists lat"),
        ("near(1, 2, my.mode)", "exists lat"),
        ("near(1, 2, my.far)", "near(1, 2, 20100000)"),
        ("free >= my.need and mode = my.mode", "free >= 2 and mode in ('bike', 'car', 'walk')"),
    ],
)
def test_what_is_wanted_soon(text: str, wide: str | None) -> None:
    template = parse(text)
    assert isinstance(template, Template)
    values: dict[str, Value] = {"need": 3, "mode": "bike", "other": 7, "far": 20_000_000}
    declared: Changes = {"need": 1, "mode": MODES, "far": 200_000}
    possible = {name: reach(how, values[name], 1) for name, how in declared.items()}
    found = template.widened(Mine(values=values, possible=possible))
    assert found == (() if wide is None else (Filter.parse(wide),))


def test_further_away_a_filter_is_wider() -> None:
    ahead = Ahead(steps=None, dwell_ns=40 * MS_NS, hop_ns=20 * MS_NS)
    template = parse("free >= my.need")
    assert isinstance(template, Template)
    state = State(values={"need": 10}, changes={"need": 1})
    [chain] = ahead.chains(template, state)
    assert [str(one) for one in chain] == [
        *(f"free >= {10 - hops}" for hops in range(1, 8)),
        f"free >= {10 - 32}",
    ]
    assert ahead.chains(template, State(values={"need": 10})) == ()
    assert ahead.chains(template, State(changes={"need": 1})) == ()
    assert Ahead(steps=0).chains(template, state) == ()


def test_places_and_values_are_widened_together() -> None:
    ahead = Ahead(of_edges(ROAD), steps=1)
    template = parse("location in myloc and free >= my.need or mode = my.mode")
    assert isinstance(template, Template)
    here = State("b1", values={"need": 3, "mode": "car"}, changes={"need": 1, "mode": MODES})
    assert {str(one[0]) for one in ahead.chains(template, here)} == {
        "free >= 2 and location in ('b0', 'b1', 'b2')",
        "mode in ('bike', 'car', 'train')",
    }


# Brokers


def road(steps: int | None = 1) -> World:
    """Five brokers in a row, and a publisher at the first."""
    places = of_edges(ROAD)
    world = World(ahead=Ahead(places, places.next_brokers, steps))
    world.add_brokers(ROAD)
    world.add_client("p", "b0").advertise("exists free")
    world.settle()
    return world


def car_at(world: World, broker: str, text: str = "free = my.need", need: int = 3) -> ClientHost:
    car = world.add_client("car", broker, attach=False, changes={"need": 1})
    car.follow(text)
    car.be(State(values={"need": need}))
    car.attach()
    world.settle()
    return car


def offer(world: World, *free: int) -> None:
    for one in free:
        world.client("p").publish({"free": one})


def got(car: ClientHost) -> list[tuple[int, bool]]:
    out = [(int(one.notification.attributes["free"]), one.past) for one in car.received]
    car.received.clear()
    return out


def listening(world: World) -> list[str]:
    return [one for one, host in world.brokers.items() if "car" in host.core.replicator.virtual]


def test_a_change_costs_no_blackout() -> None:
    """What is on its way for the new value comes; what is for neither does not."""
    world = road()
    car = car_at(world, "b4")
    offer(world, 3, 4, 5)
    world.run_until(world.now + 30 * MS_NS)  # they are at b2, or b3
    car.be(State(values={"need": 4}))
    world.settle()
    assert got(car) == [(4, False)]
    assert car.core.subscriptions == {}


def test_without_a_declaration_it_does() -> None:
    world = road()
    car = world.add_client("car", "b4")
    car.follow("free = my.need")
    car.be(State(values={"need": 3}))
    world.settle()
    offer(world, 3, 4, 5)
    world.run_until(world.now + 30 * MS_NS)
    car.be(State(values={"need": 4}))
    world.settle()
    assert got(car) == []
    assert listening(world) == []


def test_virtual_clients_listen_for_the_last_known_value() -> None:
    world = road()
    car = car_at(world, "b2")
    assert listening(world) == ["b1", "b2", "b3"]
    car.be(State(values={"need": 4}))
    world.settle()
    car.detach()
    offer(world, 3, 4)
    world.settle()
    car.attach("b3")
    world.settle()
    offer(world, 4)
    world.settle()
    assert got(car) == [(4, True), (4, False)]


def test_nobody_hears_of_values_that_no_filter_mentions() -> None:
    world = road()
    car = car_at(world, "b2")
    posted: list[str] = []
    world.watchers.append(
        lambda _sender, receiver, message: (
            posted.append(receiver) if isinstance(message, Shadow | Update) else None
        )
    )
    car.be(State(values={"need": 3, "battery": 0.5}))
    world.settle()
    assert posted == []
    car.be(State(values={"need": 4, "battery": 0.5}))
    world.settle()
    assert "b3" in posted


def test_when_nothing_is_followed_any_more_nothing_is_left() -> None:
    world = road()
    car = car_at(world, "b2")
    car.unfollow(next(iter(car.core.following.counts)))
    world.settle()
    assert list(check_quiet(world)) == list(ghosts(world)) == []
    assert listening(world) == []
    car.be(State(values={"need": 5}))
    offer(world, 5)
    world.settle()
    assert got(car) == []


def test_values_have_a_pace_of_their_own() -> None:
    world = road(steps=None)
    car = car_at(world, "b2")
    pace = world.brokers["b2"].core.replicator.pace
    for i in range(STAYS_MIN + 1):
        world.run_until(world.now + 100 * MS_NS)
        car.be(State(values={"need": i % 2}))
    world.settle()
    assert 80 * MS_NS <= pace.kept_ns <= 100 * MS_NS
    assert pace.dwell_ns == DWELL_NS
    again = Pace()
    again.load(pace.save())
    assert again.kept_ns == pace.kept_ns


# The client


def test_changes_are_declared_before_anything_is_followed() -> None:
    mine = Client(ClientId("car"))
    template = parse("free >= my.need")
    assert isinstance(template, Template)
    mine.follow(template)
    with pytest.raises(UsageError, match="before anything is followed"):
        mine.following.declare({"need": 1})


def test_a_process_that_declares_something_else_follows_it_otherwise() -> None:
    template = parse("free >= my.need")
    assert isinstance(template, Template)
    mine = Client(ClientId("car"))
    mine.following.declare({"need": 1})
    mine.follow(template, Terms(last=3))
    mine.be(State(values={"need": 3}))
    mine.attach(BrokerId("b0"), LinkId("car"))
    assert mine.subscriptions == {}
    again = Client(mine.name)
    again.remember(mine.memory(), mine.held(), [], {})
    assert again.following.state == State(values={"need": 3})
    assert list(again.subscriptions) == [Filter.parse("free >= 3")]
    back = Client(mine.name)
    back.following.declare({"need": 2})
    back.remember(again.memory(), again.held(), [], {})
    assert back.following.state == State(values={"need": 3}, changes={"need": 2})
    assert (back.subscriptions, len(back.following.located())) == ({}, 1)
