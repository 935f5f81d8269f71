"""What a client gets of the past where nobody expected it, and of what it asks for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from wayfare.core.broker import Broker
from wayfare.core.effects import Exceeded
from wayfare.core.history import FORGOTTEN_PAST, Limits
from wayfare.core.messages import BrokerId, ClientId, State, Terms
from wayfare.core.places import of_edges
from wayfare.core.virtual import Ahead, Learning
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS
from wayfare.sim.quiet import check_quiet
from wayfare.sim.world import World

LINE = ["b0", "b1", "b2", "b3", "b4"]
ROAD = list(pairwise(LINE))
ALL = "location in myloc"


def road(*, remembers: int = 0, learns: bool = False, **limits: int) -> World:
    """Five brokers in a row, a location at each, and a publisher at the first."""
    places = of_edges(ROAD)
    nlb = (lambda _broker: ()) if learns else places.next_brokers
    ahead = Ahead(places, nlb, learning=Learning(0.9) if learns else None)
    world = World(limits=Limits(past_count=remembers, **limits), ahead=ahead)
    world.add_brokers(ROAD)
    world.add_client("p", "b0").advertise("exists location")
    world.settle()
    return world


def come(
    world: World,
    name: str,
    to: str,
    *,
    follows: str = ALL,
    terms: Terms | None = None,
    state: State | None = None,
) -> ClientHost:
    """The client is at this location now, or like this, and attached to the broker there."""
    if name not in world.clients:
        world.add_client(name, to, attach=False).follow(follows, terms)
    client = world.client(name)
    if client.connection is not None:
        client.detach()
    client.be(State(to) if state is None else state)
    client.attach(to)
    world.settle()
    return client


def offer(world: World, location: str, *free: int) -> None:
    for one in free:
        world.client("p").publish({"location": location, "free": one})
    world.settle()


def got(client: ClientHost) -> list[tuple[str, int, bool]]:
    """Location, free places, and whether it is of the past, of what came since the last time."""
    found = [(one.notification.attributes, one.past) for one in client.received]
    client.received.clear()
    return [(str(one["location"]), int(one["free"]), past) for one, past in found]  # type: ignore[call-overload]


def losses(world: World) -> list[tuple[str | None, str | None]]:
    return [(one.client, one.reason) for one in world.events if one.kind == "lost"]


def past(place: str, *free: int) -> list[tuple[str, int, bool]]:
    return [(place, one, True) for one in free]


def test_what_was_kept_for_others_is_filtered_by_what_the_client_follows() -> None:
    world = road()
    come(world, "van", "b4", follows="location in myloc and free > 2", terms=Terms(last=4))
    come(world, "car", "b0", follows="location in myloc and free < 6", terms=Terms(last=2))
    offer(world, "b4", 1, 3, 4, 5, 6)
    offer(world, "b3", 3)
    assert got(come(world, "car", "b4")) == past("b4", 4, 5)
    assert losses(world) == []


def test_what_was_kept_for_others_counts_as_long_as_a_virtual_client_would_keep_it() -> None:
    world = road(buffer_age_ns=10 * SECOND_NS)
    come(world, "van", "b4", terms=Terms(younger_ns=3600 * SECOND_NS))
    come(world, "car", "b0")
    offer(world, "b4", 1)
    world.run_until(world.now + 9 * SECOND_NS)
    offer(world, "b4", 2)
    world.run_until(world.now + SECOND_NS)
    assert got(come(world, "car", "b4")) == past("b4", 2)


def test_who_was_expected_gets_what_was_kept_since_then_and_no_more() -> None:
    world = road()
    come(world, "van", "b4")
    come(world, "car", "b0")
    offer(world, "b4", 1)
    come(world, "car", "b3")
    offer(world, "b4", 2)
    assert got(come(world, "car", "b4")) == past("b4", 2)


@pytest.mark.parametrize("learns", [False, True])
def test_who_listened_where_the_client_was_last_is_asked_and_then_forgets_it(
    *, learns: bool
) -> None:
    """At b4, its location stands for that of b1, too, where somebody listened ahead."""
    world = road(learns=learns)
    areas = {"b4": ("b4", "b1")}
    for to in ["b0", "b1"] * (20 if learns else 1):
        come(world, "car", to, state=State(to, areas=areas))
    car = come(world, "car", "b0", state=State("b0", areas=areas))
    assert "car" in world.brokers["b1"].core.replicator.virtual
    offer(world, "b1", 1, 2)
    offer(world, "b0", 3)
    got(car)
    assert got(come(world, "car", "b4", state=State("b4", areas=areas))) == past("b1", 1, 2)
    assert "car" not in world.brokers["b1"].core.replicator.virtual
    assert losses(world) == []


def test_who_may_have_nothing_is_not_asked() -> None:
    world = road()
    come(world, "car", "b1")
    asked: list[str] = []
    world.watchers.append(
        lambda _from, to, message: asked.append(to) if type(message).__name__ == "Recall" else None
    )
    come(world, "car", "b4")
    assert asked == ["b1"]  # not b0 and b2, which listened for what is said of these


def test_a_broker_that_does_not_answer_owes_nothing_unless_it_was_the_last() -> None:
    world = road()
    come(world, "car", "b0")
    world.brokers["b3"].core.replicator._on_recall = lambda *_: []  # type: ignore[method-assign]
    car = come(world, "car", "b1", state=State("b3"))
    world.run_until(world.now + 3 * SECOND_NS)
    offer(world, "b3", 1)
    assert got(car) == [("b3", 1, False)]
    assert losses(world) == []
    del world.brokers["b3"].core.replicator._on_recall
    assert not list(check_quiet(world))


def test_a_location_that_is_set_too_late_counts_as_long_as_the_past_is_on_its_way() -> None:
    world = road(remembers=100)
    car = come(world, "car", "b0")
    offer(world, "b4", 1)
    offer(world, "b0", 2)
    got(car)
    car.detach()
    car.attach("b4")
    world.run_until(world.now + 10 * MS_NS)
    car.be(State("b4"))
    world.settle()
    assert got(car) == past("b4", 1)


@pytest.mark.parametrize(("terms", "found"), [(None, [1, 2, 3]), (Terms(last=2), [2, 3])])
def test_terms_count_for_all_that_is_found(terms: Terms | None, found: list[int]) -> None:
    world = road(remembers=100)
    come(world, "car", "b0", terms=terms)
    offer(world, "b4", 1, 2)
    come(world, "van", "b4")
    offer(world, "b4", 3)
    assert got(come(world, "car", "b4")) == past("b4", *found)


def test_what_came_before_its_client_came_back_is_of_the_past() -> None:
    world = road(remembers=100)
    near = world.add_client("near", "b3")
    near.advertise("exists location")
    car = come(world, "car", "b0")
    world.brokers["b0"].core.replicator._on_recall = lambda *_: []  # type: ignore[method-assign]
    car.detach()
    car.be(State("b4"))
    car.attach("b4")
    world.run_until(world.now + 3 * MS_NS)
    near.publish({"location": "b4", "free": 1})  # is in the reply of b3, and nowhere else
    world.run_until(world.now + 30 * MS_NS)
    car.disconnect()
    world.run_until(world.now + 10 * MS_NS)
    car.attach("b4")
    world.run_until(world.now + 10 * MS_NS)
    near.publish({"location": "b4", "free": 2})
    world.run_until(world.now + 3 * SECOND_NS)
    assert got(car) == [("b4", 1, True), ("b4", 2, False)]


def test_a_search_survives_a_restart() -> None:
    world = road(remembers=100)
    come(world, "van", "b4")
    car = come(world, "car", "b0")
    offer(world, "b4", 1, 2)
    car.detach()
    car.be(State("b4"))
    car.attach("b4")
    world.run_until(world.now + 30 * MS_NS)  # b0 has answered as the last broker
    car.follow("free > my.need", since_ns=SECOND_NS)
    world.run_until(world.now + 3 * MS_NS)
    broker = world.brokers["b4"].core
    again = Broker(BrokerId("b4"), broker.neighbours, limits=broker.border.limits)
    again.load(broker.save())
    search = again.replicator.virtual[ClientId("car")].search
    assert search is not None and search.queries and not search.brokers
    assert again.replicator._queries.keys() == broker.replicator._queries.keys() != set()
    assert again.save() == broker.save()
    world.settle()
    assert got(car) == past("b4", 1, 2)


def test_nothing_is_left_of_a_search() -> None:
    world = road(remembers=100)
    kept = {name: host.core.border.memory.bytes for name, host in world.brokers.items()}
    come(world, "car", "b0")
    for to in ("b4", "b1", "b3"):
        offer(world, to, 1)
        car = come(world, "car", to)
    car.detach()
    car.be(State("b0"))
    car.attach("b0")
    world.run_until(world.now + 3 * MS_NS)
    assert world.brokers["b0"].core.replicator._queries
    car.detach(leave=True)  # while the past is on its way
    world.settle()
    assert not any(host.core.replicator._queries for host in world.brokers.values())
    left = {name: host.core.border.memory.bytes for name, host in world.brokers.items()}
    assert left == kept
    assert not list(check_quiet(world))


def test_a_search_that_takes_too_much_memory_loses_the_oldest() -> None:
    world = road(remembers=100)
    world.add_client("near", "b3").advertise("exists location")
    world.settle()
    car = come(world, "car", "b4", follows="location in myloc and free > 90")
    for free in range(80):
        world.client("near").publish({"location": "b4", "free": free})
    world.settle()
    world.brokers["b0"].core.pasts.on_request = lambda *_: []  # type: ignore[method-assign]
    car.follow(ALL, since_ns=5 * SECOND_NS)
    world.run_until(world.now + SECOND_NS)
    host = world.brokers["b4"]
    search = host.core.replicator.virtual[ClientId("car")].search
    assert search is not None and len(list(search.fetched())) == 80
    before = host.core.border.memory.bytes
    host.receive(Exceeded("memory", before // 3))
    assert host.core.border.memory.bytes <= before - before // 3
    world.run_until(world.now + 2 * SECOND_NS)
    found = [free for _, free, _ in got(car)]
    assert found == list(range(80 - len(found), 80)) and 10 < len(found) < 80
    assert losses(world) == [("car", FORGOTTEN_PAST)]


# ---- since -------------------------------------------------------------------------------------


def test_the_past_of_what_is_followed_is_asked_for() -> None:
    world = road(remembers=100)
    world.add_client("car", "b4")
    world.settle()
    offer(world, "b4", 1)
    world.run_until(world.now + 10 * SECOND_NS)
    offer(world, "b4", 2)
    offer(world, "b3", 3)
    car = world.client("car")
    car.be(State("b4"))
    car.follow(ALL, since_ns=5 * SECOND_NS)  # its broker hears of its location only now
    world.settle()
    offer(world, "b4", 4)
    assert got(car) == [("b4", 2, True), ("b4", 4, False)]
    car.follow(ALL, since_ns=60 * SECOND_NS)  # again, and more of it; nothing comes twice
    world.settle()
    assert got(car) == past("b4", 1)
    assert losses(world) == []


@pytest.mark.parametrize("away", [True, False])
def test_also_by_who_is_away(*, away: bool) -> None:
    world = road(remembers=100)
    car = world.add_client("car", "b4", attach=not away)
    offer(world, "b4", 1)
    car.be(State("b4"))
    car.follow(ALL, since_ns=5 * SECOND_NS)
    if away:
        car.attach("b4")
    world.settle()
    assert got(car) == past("b4", 1)


def test_of_the_past_terms_leave_what_they_say() -> None:
    world = road(remembers=100)
    car = come(world, "car", "b4", follows="location in myloc and free > 90")
    offer(world, "b4", 1, 2, 3)
    car.follow(ALL, Terms(last=2), since_ns=5 * SECOND_NS)
    world.settle()
    assert got(car) == past("b4", 2, 3)


@pytest.mark.parametrize("remembers", [0, 1])
def test_an_incomplete_past_is_reported(remembers: int) -> None:
    world = road(remembers=remembers)
    car = world.add_client("car", "b4")
    offer(world, "b4", 1, 2)
    car.be(State("b4"))
    car.follow(ALL, since_ns=5 * SECOND_NS)
    world.settle()
    assert got(car) == past("b4", 2)[:remembers]
    assert losses(world) == [("car", FORGOTTEN_PAST)]


def test_without_a_reply_it_goes_on_and_reports_that() -> None:
    world = road(remembers=100)
    car = come(world, "car", "b4", follows="location in myloc and free > 90")
    offer(world, "b4", 1)
    world.brokers["b2"].core.pasts.on_request = lambda *_: []  # type: ignore[method-assign]
    car.follow(ALL, since_ns=5 * SECOND_NS)
    world.run_until(world.now + SECOND_NS)
    world.client("p").publish({"location": "b4", "free": 2})
    world.run_until(world.now + SECOND_NS // 2)
    assert got(car) == []  # it waits for what was before that
    world.run_until(world.now + SECOND_NS)
    assert got(car) == [("b4", 2, False)]
    assert losses(world) == [("car", FORGOTTEN_PAST)]


def test_who_goes_on_meanwhile_gets_the_past_of_where_it_is() -> None:
    world = road(remembers=100)
    car = come(world, "car", "b4", follows="location in myloc and free > 90")
    offer(world, "b4", 1)
    offer(world, "b3", 2)
    car.follow(ALL, since_ns=5 * SECOND_NS)
    world.run_until(world.now + 10 * MS_NS)
    car.be(State("b3"))
    world.settle()
    assert got(car) == past("b3", 2)
    assert losses(world) == []


def test_what_is_not_followed_any_more_is_not_delivered() -> None:
    world = road(remembers=100)
    car = come(world, "car", "b4", follows="location in myloc and free > 90")
    offer(world, "b4", 1, 91)
    got(car)
    template = car.follow(ALL, since_ns=5 * SECOND_NS)
    world.run_until(world.now + 10 * MS_NS)
    car.unfollow(template)
    world.settle()
    assert got(car) == [] and losses(world) == []


def test_a_value_that_brokers_do_not_follow_has_a_past_too() -> None:
    world = road(remembers=100)
    car = world.add_client("car", "b4")
    car.be(State(values={"need": 2}))
    offer(world, "b1", 1, 2, 3)
    car.follow("free >= my.need", since_ns=5 * SECOND_NS)
    world.settle()
    assert [free for _, free, _ in got(car)] == [2, 3]
