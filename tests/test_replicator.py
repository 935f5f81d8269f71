"""Virtual clients: where they are, what they keep, and what their client gets when it comes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from wayfare.core import client, replicator, virtual
from wayfare.core.broker import Broker
from wayfare.core.effects import Close, Effect, LinkDown, Notify, Post, Posted, Received, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import (
    Attach,
    BrokerId,
    ClientId,
    Deliver,
    Followed,
    Follows,
    Forget,
    Here,
    LinkId,
    Notification,
    Recall,
    Request,
    Shadow,
    State,
    Terms,
    Update,
    Welcome,
)
from wayfare.core.places import EVERYWHERE, Place, Places, of_edges
from wayfare.core.prediction import Movement, Moves
from wayfare.core.replicator import (
    NO_STREAM,
    NOT_ANSWERED,
    NOT_RECALLED,
    TOLD_MIN,
    TOO_MUCH_HELD,
)
from wayfare.core.templates import Mine, Template, parse
from wayfare.core.virtual import Ahead, Learning
from wayfare.errors import UsageError
from wayfare.sim.faults import Crash
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, LinkSpec
from wayfare.sim.quiet import check_quiet
from wayfare.sim.world import World

SECOND_NS = 1000 * MS_NS
LINE = ["b0", "b1", "b2", "b3", "b4"]
ROAD = list(pairwise(LINE))
PARKING = "service = 'parking' and location in myloc"


def road(
    *, limits: Limits | None = None, steps: int | None = 0, places: Places | None = None
) -> World:
    """Five brokers in a row, a location at each, and a publisher at the first."""
    places = places or of_edges(ROAD)
    world = World(limits=limits or Limits(), ahead=Ahead(places, places.next_brokers, steps))
    world.add_brokers(ROAD)
    world.add_client("p", "b0").advertise("exists service")
    world.settle()
    return world


def drive(world: World, to: str, name: str = "car") -> ClientHost:
    """The car is at this location now, and attached to the broker there."""
    if name not in world.clients:
        world.add_client(name, to, attach=False).follow(PARKING)
    car = world.client(name)
    if car.connection is not None:
        car.detach()
    car.be(State(to))
    car.attach(to)
    world.settle()
    return car


def offer(world: World, location: str, free: int = 1, service: str = "parking") -> None:
    world.client("p").publish({"service": service, "location": location, "free": free})
    world.settle()


def got(car: ClientHost) -> list[tuple[str, int, bool]]:
    """Location, free places, and whether it is of the past, of what came since the last time."""
    out = [
        (
            str(one.notification.attributes["location"]),
            int(one.notification.attributes["free"]),
            one.past,
        )
        for one in car.received
    ]
    car.received.clear()
    return out


def losses(world: World) -> list[tuple[str | None, int | None, str | None]]:
    """Which clients were told of losses: how many, and why."""
    return [(one.client, one.count, one.reason) for one in world.events if one.kind == "lost"]


def posts(effects: list[Effect]) -> list[Post]:
    return [one for one in effects if isinstance(one, Post)]


def listening(world: World, name: str = "car") -> list[str]:
    """The brokers with a virtual client."""
    return [one for one, host in world.brokers.items() if name in host.core.replicator.virtual]


def test_a_client_is_surrounded_by_virtual_clients() -> None:
    world = road()
    car = drive(world, "b2")
    assert listening(world) == ["b1", "b2", "b3"]
    assert got(car) == []


def test_brokers_listen_for_their_own_place_and_deliver_nothing_yet() -> None:
    world = road()
    car = drive(world, "b2")
    for location in LINE:
        offer(world, location)
    assert got(car) == [("b2", 1, False)]


def test_on_arrival_first_the_past_of_the_place_then_the_present() -> None:
    world = road()
    car = drive(world, "b2")
    offer(world, "b3", 1)
    offer(world, "b3", 2)
    offer(world, "b1", 3)
    drive(world, "b3")
    offer(world, "b3", 4)
    assert got(car) == [("b3", 1, True), ("b3", 2, True), ("b3", 4, False)]


def test_a_handover_creates_and_deletes_what_differs() -> None:
    world = road()
    drive(world, "b2")
    posted: list[tuple[str, type]] = []
    world.watchers.append(
        lambda _sender, receiver, message: (
            posted.append((receiver, type(message)))
            if isinstance(message, Shadow | Forget | Recall)
            else None
        )
    )
    drive(world, "b3")
    assert listening(world) == ["b2", "b3", "b4"]
    # b2 itself is told where its client went, b4 is new, b1 is not needed any more.
    assert sorted(posted, key=str) == [("b1", Forget), ("b2", Shadow), ("b4", Shadow)]


def test_what_is_followed_later_is_followed_everywhere() -> None:
    world = road()
    car = drive(world, "b2")
    fuel = car.follow("service = 'fuel' and location in myloc")
    world.settle()
    offer(world, "b3", 7, "fuel")
    drive(world, "b3")
    assert got(car) == [("b3", 7, True)]
    car.unfollow(fuel)
    world.settle()
    offer(world, "b4", 8, "fuel")
    offer(world, "b4", 9)
    drive(world, "b4")
    assert got(car) == [("b4", 9, True)]


def test_values_that_nothing_followed_mentions_are_told_to_nobody() -> None:
    world = road()
    car = drive(world, "b2")
    car.follow("free >= my.need and location in myloc")
    car.be(State("b2", values={"need": 1}))
    world.settle()
    posted: list[str] = []
    world.watchers.append(
        lambda _sender, receiver, message: (
            posted.append(receiver) if isinstance(message, Shadow) else None
        )
    )
    for speed in range(5):
        car.be(State("b2", values={"need": 1, "speed": speed}))
        world.settle()
    assert posted == []
    car.be(State("b2", values={"need": 2, "speed": 5}))
    world.settle()
    assert posted == ["b1", "b3"]
    car.follow("limit < my.speed and location in myloc")
    world.settle()
    state = world.brokers["b3"].core.replicator.virtual[car.core.name].state
    assert state.values == {"need": 2, "speed": 5}


@pytest.mark.parametrize("change", ["follows", "values"])
def test_what_changes_while_the_client_is_away_is_told_to_all(change: str) -> None:
    """Two brokers listen for it before and after; the third one hears of it only by what they are told."""
    world = World(ahead=Ahead(of_edges(ROAD), lambda _broker: [BrokerId(one) for one in LINE]))
    world.add_brokers(ROAD)
    world.add_client("p", "b0").advertise("exists service")
    car = drive(world, "b2")
    car.follow("free >= my.need and service = 'fuel' and location in myloc")
    car.be(State("b2", values={"need": 9}))
    world.settle()
    car.detach()
    if change == "follows":
        car.follow("service = 'fuel' and location in myloc")
    car.be(State("b3", values={"need": 1 if change == "values" else 9}))
    car.attach("b3")
    world.settle()
    offer(world, "b4", 5, "fuel")
    car.detach()
    car.be(State("b4", values={"need": 1 if change == "values" else 9}))
    car.attach("b4")
    world.settle()
    assert got(car) == [("b4", 5, True)]


def test_who_follows_again_on_the_same_connection_goes_on_with_its_numbers() -> None:
    """Deliveries, and acknowledgements of them, may be under way when it unfollows."""
    world = road()
    car = drive(world, "b2")
    [template] = car.core.following.counts
    for i in range(40):
        offer(world, "b2", i)
        if i % 4 == 3:
            connection = car.connection
            car.unfollow(template)
            if i % 8 == 3:
                world.settle()
                assert world.brokers["b2"].core.replicator.ear.subscriptions() == []
            car.follow(PARKING)
            world.settle()
            assert car.connection is connection
    assert [free for _, free, _ in got(car)] == list(range(40))
    assert listening(world) == ["b1", "b2", "b3"]


def test_who_follows_nothing_any_more_leaves_nothing_behind_when_it_goes() -> None:
    world = road()
    car = drive(world, "b2")
    [template] = car.core.following.counts
    offer(world, "b2", 1)
    car.unfollow(template)
    world.settle()
    assert listening(world) == ["b2"]  # which has only the number of the last delivery
    broker = world.brokers["b2"].core
    assert tables(broker) == (1, 0)
    again = Broker(BrokerId("b2"), [BrokerId("b1"), BrokerId("b3")])
    again.load(broker.save())
    assert again.replicator.virtual[ClientId("car")].backlog.last == 1
    assert posts(again.step(Tick(), world.now + 60 * SECOND_NS)) == []  # no renewals
    car.detach()
    world.settle()
    assert listening(world) == []
    car.follow(PARKING)
    car.attach("b2")
    world.settle()
    offer(world, "b2", 2)
    assert got(car) == [("b2", 1, False), ("b2", 2, False)]


def test_nothing_is_lost_of_what_nobody_followed() -> None:
    """After it has left, or followed nothing for a while, a broker that knows nothing of it has forgotten nothing."""
    world = road()
    car = drive(world, "b2")
    [template] = car.core.following.counts
    offer(world, "b2", 1)
    car.detach(leave=True)
    world.settle()
    car.attach("b2")
    world.settle()
    offer(world, "b2", 2)
    car.unfollow(template)
    world.settle()
    car.detach()
    world.settle()
    car.follow(PARKING)
    car.attach("b2")
    world.settle()
    offer(world, "b2", 3)
    car.unfollow(template)
    car.detach()
    car.attach("b2")
    world.settle()
    car.disconnect()
    world.settle()
    car.follow(PARKING)
    car.attach("b2")
    world.settle()
    offer(world, "b2", 4)
    assert [free for _, free, _ in got(car)] == [1, 2, 3, 4]
    assert losses(world) == []


def test_what_a_broker_has_forgotten_may_be_lost() -> None:
    world = road()
    car = drive(world, "b2")
    car.disconnect()
    world.settle()
    replicator = world.brokers["b2"].core.replicator
    world.brokers["b2"].perform(replicator.leave(car.core.name, world.now))
    car.attach("b2")
    world.settle()
    assert losses(world) == [("car", 0, NO_STREAM)]


def test_who_leaves_leaves_nothing_behind() -> None:
    world = road()
    car = drive(world, "b2")
    offer(world, "b3")
    car.detach(leave=True)
    world.settle()
    assert listening(world) == []
    for host in world.brokers.values():
        ear = host.core.replicator.ear
        assert (ear.store.kept, ear.subscriptions(), ear.heard) == ({}, [], [])
    world.client("p").detach(leave=True)
    world.settle()
    assert check_quiet(world) == []


def test_only_what_depends_on_the_location_is_replicated() -> None:
    world = road()
    car = drive(world, "b2")
    car.subscribe("service = 'news'")
    world.settle()
    for name in ("b1", "b3"):
        subscriptions = world.brokers[name].core.replicator.ear.subscriptions()
        assert [str(one) for one, _ in subscriptions] == [
            f"location = '{name}' and service = 'parking'"
        ]


def test_both_together_come_once_and_in_order() -> None:
    world = road()
    car = drive(world, "b2")
    car.subscribe("free > 5")
    world.settle()
    car.detach()
    for free in (1, 6, 2, 7):
        offer(world, "b3", free)
    drive(world, "b3")
    offer(world, "b3", 8)
    came = got(car)
    assert sorted(came) == [
        ("b3", 1, True),
        ("b3", 2, True),
        ("b3", 6, False),
        ("b3", 7, False),
        ("b3", 8, False),
    ]
    assert [free for _, free, _ in came if free > 5] == [6, 7, 8]
    assert [free for _, free, _ in came if free <= 5] == [1, 2]


def test_what_a_later_subscription_does_not_deliver_comes_as_it_is_followed() -> None:
    world = road()
    car = drive(world, "b2")
    offer(world, "b3", 6)
    offer(world, "b3", 7)
    car.subscribe("free > 5")
    world.settle()
    drive(world, "b3")
    offer(world, "b3", 8)
    assert got(car) == [("b3", 6, True), ("b3", 7, True), ("b3", 8, False)]


def test_what_a_later_subscription_has_passed_comes_before_its_delivery() -> None:
    """A connection that is slow: the next notification is there before any answer."""
    world = road()
    car = drive(world, "b2")
    offer(world, "b3", 6)
    car.subscribe("free > 5")
    world.settle()
    car.detach()
    car.be(State("b3"))
    world.client("p").publish({"service": "parking", "location": "b3", "free": 7})
    world.run_until(world.now + 40 * MS_NS)
    car.attach("b3")
    world.settle()
    assert got(car) == [("b3", 6, True), ("b3", 7, False)]


@pytest.mark.parametrize("terms", [Terms(last=0), Terms(younger_ns=1), Terms(key="service")])
def test_what_terms_leave_out_comes_as_it_is_followed(terms: Terms) -> None:
    world = road()
    car = drive(world, "b2")
    car.subscribe("free > 5", terms)
    world.settle()
    car.disconnect()
    world.settle()
    for free in (6, 7):
        offer(world, "b2", free)
    car.attach("b2")
    world.settle()
    assert sorted(free for _, free, _ in got(car)) == [6, 7]  # each stream is in order by itself


def test_what_is_withdrawn_while_a_handoff_waits_comes_as_it_is_followed() -> None:
    world = road()
    car = drive(world, "b2")
    wanted = car.subscribe("free > 5")
    world.settle()
    car.detach()
    offer(world, "b3", 6)
    world.crash(Crash("b2", world.now, for_ns=5 * SECOND_NS))  # so nobody answers for a while
    car.be(State("b3"))
    car.attach("b3")
    world.run_until(world.now + SECOND_NS)
    assert got(car) == []
    car.unsubscribe(wanted)
    world.settle()
    assert got(car) == [("b3", 6, True)]


def test_what_is_put_aside_while_the_connection_breaks_comes_at_the_next_one() -> None:
    world = road()
    car = drive(world, "b2")
    offer(world, "b3", 6)
    car.subscribe("free > 5")
    world.settle()
    world.crash(Crash("b2", world.now, for_ns=5 * SECOND_NS))
    car.be(State("b3"))
    car.attach("b3")
    world.run_until(world.now + SECOND_NS)
    assert got(car) == []
    car.disconnect()
    world.run_until(world.now + SECOND_NS)
    car.attach("b3")
    world.settle()
    assert got(car) == [("b3", 6, True)]


def test_what_was_followed_comes_once_also_if_nothing_is_followed_any_more() -> None:
    """A handoff may bring what came by Here long ago, for a subscription that was made since."""
    car = client.Client(ClientId("car"))
    template = parse("location in myloc")
    assert isinstance(template, Template)
    car.follow(template)
    car.be(State("b2"))
    link = LinkId("car#1")
    car.attach(BrokerId("b2"), link)
    car.step(Received(link, Welcome(1, 0)), 1)
    offers = [Notification(ClientId("p"), number, {"location": "b2"}) for number in (1, 2)]
    assert notified(car.step(Received(link, Here(1, offers[0])), 2)) == [1]
    car.unfollow(template)
    car.subscribe(Filter.parse("exists location"))
    delivered = [
        notified(car.step(Received(link, Deliver(number, one)), 3))
        for number, one in enumerate(offers, 1)
    ]
    assert delivered == [[], [2]]


def notified(effects: list[Effect]) -> list[int]:
    return [one.notification.number for one in effects if isinstance(one, Notify)]


def test_only_so_much_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "OVERLAPS_MAX", 2)
    world = road()
    car = drive(world, "b2")
    for free in (6, 7, 8):
        offer(world, "b3", free)
    car.subscribe("free > 5")
    world.settle()
    world.crash(Crash("b2", world.now, for_ns=5 * SECOND_NS))
    car.be(State("b3"))
    car.attach("b3")
    world.run_until(world.now + SECOND_NS)
    assert got(car) == [("b3", 6, True)]
    world.settle()
    assert got(car) == [("b3", 7, True), ("b3", 8, True)]


def test_where_nobody_expected_it_what_was_kept_elsewhere_is_fetched() -> None:
    """The car is interested in the whole road, and comes to where no virtual client is."""
    world = road()
    car = world.add_client("car", "b0", attach=False)
    car.follow(PARKING)
    areas = {one: tuple(LINE) for one in LINE}
    car.be(State("b0", areas=areas))
    car.attach("b0")
    world.settle()
    car.disconnect()
    world.settle()
    offer(world, "b2", 5)
    assert listening(world) == ["b0", "b1"]
    car.be(State("b4", areas=areas))
    car.attach("b4")
    world.settle()
    assert got(car) == [("b2", 5, True)]
    offer(world, "b1", 6)
    assert got(car) == [("b1", 6, False)]
    assert listening(world) == ["b3", "b4"]


def test_who_changes_its_broker_and_not_its_location_gets_what_the_old_one_kept() -> None:
    """It is expected at b3, but nobody listens there for what concerns the range of b2."""
    world = road()
    car = drive(world, "b2")
    car.detach()
    world.settle()
    offer(world, "b2", 1)
    offer(world, "b2", 2)
    assert "b3" in listening(world)
    world.run_until(world.now + SECOND_NS)
    car.attach("b3")
    world.settle()
    offer(world, "b2", 3)
    assert got(car) == [("b2", 1, True), ("b2", 2, True), ("b2", 3, False)]


def test_what_was_delivered_in_vain_is_recalled() -> None:
    """The old broker does not know yet that the connection is broken."""
    world = road()
    car = drive(world, "b2")
    offer(world, "b2", 1)
    car.disconnect()
    for free in (2, 3):
        world.client("p").publish({"service": "parking", "location": "b2", "free": free})
    world.run_until(world.now + 40 * MS_NS)
    assert [
        len(one.backlog.unacked) for one in world.brokers["b2"].core.replicator.virtual.values()
    ]
    car.attach("b4")
    world.settle()
    assert [free for _, free, _ in got(car)] == [1, 2, 3]


def test_of_too_much_the_newest_is_recalled_and_the_rest_reported() -> None:
    world = road()
    car = drive(world, "b2")
    car.detach()
    world.settle()
    for free in range(30):
        attributes = {"service": "parking", "location": "b2", "free": free}
        world.client("p").publish(attributes, b"x" * 100_000)
        world.settle()
    car.attach("b4")
    world.settle()
    assert [free for _, free, _ in got(car)] == list(range(20, 30))
    assert losses(world) == [("car", 0, NOT_RECALLED)]


def test_an_overflow_is_reported_wherever_the_client_comes_to() -> None:
    world = road(limits=Limits(backlog_count=3))
    car = drive(world, "b2")
    car.detach()
    world.settle()
    for free in range(5):
        offer(world, "b2", free)
    car.attach("b4")
    world.settle()
    assert [free for _, free, _ in got(car)] == [2, 3, 4]
    assert losses(world) == [("car", 0, "backlog_count")]


def test_an_overflow_is_reported_when_the_client_comes_back() -> None:
    """It was somewhere else in between, and there what it follows meant something else."""
    world = road(limits=Limits(backlog_count=3, buffer_count=3))
    car = drive(world, "b2")
    car.detach()
    world.settle()
    for free in range(5):
        offer(world, "b2", free)
    drive(world, "b3")
    assert losses(world) == []
    drive(world, "b2")
    assert [free for _, free, _ in got(car)] == [2, 3, 4]
    assert losses(world) == [("car", 0, "backlog_count")]
    drive(world, "b3")
    drive(world, "b2")
    assert len(losses(world)) == 1


def test_a_location_change_during_a_recall_keeps_the_order_of_the_publisher() -> None:
    """What came for the old location, and is wanted at the new one, comes before what is younger."""
    areas = {"b3": ("b0",), "b0": ("b0", "b1")}
    world = road()
    car = drive(world, "b4")
    car.detach()
    car.be(State("b3", areas=areas))
    car.attach("b0")
    world.run_until(world.now + 3 * MS_NS)
    for free, location in enumerate(["b0", "b1"], 1):  # only the first one is for b3
        world.client("p").publish({"service": "parking", "location": location, "free": free})
    world.run_until(world.now + 3 * MS_NS)
    car.be(State("b0", areas=areas))
    world.settle()
    assert got(car) == [("b0", 1, True), ("b1", 2, True)]


def test_if_nobody_answers_it_goes_on() -> None:
    """First it waits for what the old broker may have kept; that one is down."""
    world = road()
    world.add_client("q", "b3").advertise("exists service")
    car = drive(world, "b0")
    world.crash(Crash("b0", world.now, for_ns=60 * SECOND_NS))
    car.be(State("b4"))
    car.attach("b4")
    world.run_until(world.now + SECOND_NS)
    world.client("q").publish({"service": "parking", "location": "b4", "free": 1})
    world.run_until(world.now + SECOND_NS // 2)
    assert got(car) == []
    world.run_until(world.now + SECOND_NS)
    assert got(car) == [("b4", 1, False)]
    assert losses(world) == [("car", 0, NOT_ANSWERED)]


def unexpected(*, limits: Limits | None = None) -> World:
    """The same road; nobody listens ahead."""
    world = World(limits=limits or Limits(), ahead=Ahead(of_edges(ROAD), lambda _broker: (), 0))
    world.add_brokers(ROAD)
    world.add_client("p", "b0").advertise("exists service")
    world.settle()
    return world


@pytest.mark.parametrize("pause_ms", [0, 5, 60])
@pytest.mark.parametrize("away_ms", [5, 500])
def test_a_recall_goes_on_while_the_connection_is_broken(pause_ms: int, away_ms: int) -> None:
    world = unexpected()
    car = drive(world, "b2")
    car.detach()
    world.settle()
    offer(world, "b2", 1)
    car.attach("b3")
    world.run_until(world.now + pause_ms * MS_NS)
    car.disconnect()
    world.run_until(world.now + away_ms * MS_NS)
    car.attach("b3")
    world.settle()
    offer(world, "b2", 2)
    assert [free for _, free, _ in got(car)] == [1, 2]
    assert losses(world) == []


def test_a_recall_goes_on_after_a_restart() -> None:
    world = unexpected()
    car = drive(world, "b2")
    car.detach()
    world.settle()
    offer(world, "b2", 1)
    car.attach("b3")
    world.run_until(world.now + 3 * MS_NS)
    broker = world.brokers["b3"].core
    again = Broker(BrokerId("b3"), broker.neighbours)
    again.load(broker.save())
    virtual = again.replicator.virtual[ClientId("car")]
    assert (virtual.asked, virtual.recalling is None) == (virtual.epoch, False)
    assert again.save() == broker.save()


def test_who_goes_on_to_a_third_broker_during_a_recall_is_told_of_the_loss() -> None:
    """The second broker had nothing when it was asked itself; what the first one had comes too late."""
    world = unexpected()
    world.direct_link = LinkSpec(latency_ns=100 * MS_NS)
    car = drive(world, "b2")
    car.detach()
    world.settle()
    offer(world, "b2", 1)
    car.attach("b3")
    world.run_until(world.now + 50 * MS_NS)
    car.detach()
    car.attach("b4")
    world.settle()
    offer(world, "b2", 2)
    assert [free for _, free, _ in got(car)] == [2]
    assert losses(world) == [("car", 0, NOT_ANSWERED)]


def test_what_came_during_a_recall_is_there_when_the_client_comes_back() -> None:
    """It went on, so nothing more came of the recall, and what was held back for it was not delivered."""
    world = road()
    world.direct_link = LinkSpec(latency_ns=100 * MS_NS)
    car = drive(world, "b0")
    car.detach()
    car.be(State("b3"))
    car.attach("b3")
    world.run_until(world.now + 50 * MS_NS)
    offered = {"service": "parking", "location": "b3", "free": 1}
    world.client("p").publish(offered)
    world.run_until(world.now + 50 * MS_NS)
    car.detach()
    car.be(State("b4"))
    car.attach("b4")
    world.run_until(world.now + 400 * MS_NS)
    drive(world, "b3")
    assert ("b3", 1, True) in got(car)


def test_what_a_broker_has_forgotten_cannot_be_recalled() -> None:
    world = unexpected()
    car = drive(world, "b2")
    car.disconnect()
    world.settle()
    replicator = world.brokers["b2"].core.replicator
    world.brokers["b2"].perform(replicator.leave(car.core.name, world.now))
    car.attach("b3")
    world.settle()
    assert losses(world) == [("car", 0, NO_STREAM)]


def test_who_cannot_wait_any_longer_for_a_recall_is_told_of_the_loss() -> None:
    world = unexpected(limits=Limits(held_count=2))
    world.add_client("q", "b4").advertise("exists service")
    car = drive(world, "b2")
    car.detach()
    world.settle()
    offer(world, "b2", 1)
    car.attach("b4")
    world.run_until(world.now + 4 * MS_NS)
    for free in (2, 3, 4):
        world.client("q").publish({"service": "parking", "location": "b2", "free": free})
    world.settle()
    assert [free for _, free, _ in got(car)] == [2, 3, 4]
    assert losses(world) == [("car", 0, TOO_MUCH_HELD)]


def test_what_has_expired_is_not_recalled_and_no_loss() -> None:
    world = unexpected()
    car = drive(world, "b2")
    car.detach()
    world.settle()
    offer(world, "b2", 1)
    for free in range(2, 32):
        attributes = {"service": "parking", "location": "b2", "free": free}
        world.client("p").publish(attributes, b"x" * 100_000, expires_ns=SECOND_NS)
        world.settle()
    world.run_until(world.now + 5 * SECOND_NS)
    car.attach("b4")
    world.settle()
    assert [free for _, free, _ in got(car)] == [1]
    assert losses(world) == []


@pytest.mark.parametrize("terms", [Terms(last=2), Terms(last=2, key="free")])
def test_what_expires_takes_no_room_from_what_does_not(terms: Terms) -> None:
    world = road()
    world.add_client("car", "b2", attach=False).follow(PARKING, terms)
    car = drive(world, "b2")
    for free in range(1, 7):
        attributes = {"service": "parking", "location": "b3", "free": free}
        expires_ns = SECOND_NS if free > 3 else 0
        world.client("p").publish(attributes, expires_ns=expires_ns)
        world.settle()
    store = world.brokers["b3"].core.replicator.ear.store
    assert len(store.kept) == 4
    world.run_until(world.now + 2 * SECOND_NS)
    assert len(store.kept) == 2
    drive(world, "b3")
    assert [free for _, free, _ in got(car)] == [2, 3]


def test_of_what_expires_and_what_does_not_the_last_ones_come() -> None:
    world = road()
    world.add_client("car", "b2", attach=False).follow(PARKING, Terms(last=2))
    car = drive(world, "b2")
    for free, expires_ns in enumerate([0, SECOND_NS, 0], 1):
        attributes = {"service": "parking", "location": "b3", "free": free}
        world.client("p").publish(attributes, expires_ns=expires_ns)
        world.settle()
    drive(world, "b3")
    assert [free for _, free, _ in got(car)] == [2, 3]


def test_what_came_before_the_connection_broke_is_not_lost_at_the_same_place() -> None:
    world = road()
    car = drive(world, "b2")
    car.disconnect()
    world.settle()
    offer(world, "b2", 1)
    offer(world, "b2", 2)
    car.attach("b2")
    world.settle()
    offer(world, "b2", 3)
    assert got(car) == [("b2", 1, True), ("b2", 2, True), ("b2", 3, False)]


def test_a_location_in_the_same_range_has_its_own_past() -> None:
    rooms = Places(
        {
            "kitchen": Place(("hall",), "b2"),
            "hall": Place(("kitchen",), "b2"),
            "street": Place((), "b3"),
        }
    )
    world = road(places=rooms)
    car = world.add_client("car", "b2", attach=False)
    car.follow(PARKING)
    car.be(State("hall"))
    car.attach()
    world.settle()
    offer(world, "kitchen", 1)
    offer(world, "hall", 2)
    offer(world, "street", 3)
    car.be(State("kitchen"))
    world.settle()
    offer(world, "kitchen", 4)
    car.be(State("hall"))
    world.settle()
    assert got(car) == [("hall", 2, False), ("kitchen", 1, True), ("kitchen", 4, False)]


def test_a_change_of_place_loses_nothing_that_stays_the_same() -> None:
    """Areas that overlap: what is published for both arrives, whenever the location changes."""
    world = road()
    car = world.add_client("car", "b2", attach=False)
    car.follow(PARKING)
    areas = {"x": ("x", "both"), "y": ("both", "y")}
    car.be(State("x", areas=areas))
    car.attach()
    world.settle()
    start = world.now
    for i in range(60):
        world.agenda.at(start + i * 3 * MS_NS, car.be, State("xy"[i % 2], areas=areas))
        offered = {"service": "parking", "location": "both", "free": i}
        world.agenda.at(start + i * 5 * MS_NS, world.client("p").publish, offered)
    world.run_until(start + SECOND_NS)
    world.settle()
    assert [free for _, free, _ in got(car)] == list(range(60))


def test_what_was_not_sent_when_the_place_changed_is_in_order_with_the_past() -> None:
    """The window is full, so something waits; then the car goes into the next room and back."""
    rooms = Places({"kitchen": Place(("hall",), "b2"), "hall": Place(("kitchen",), "b2")})
    world = road(places=rooms, limits=Limits(window=2))
    car = world.add_client("car", "b2", attach=False)
    car.follow(PARKING)
    areas = {"hall": ("hall", "kitchen"), "kitchen": ("kitchen",)}
    car.be(State("kitchen", areas=areas))
    car.attach()
    world.settle()
    for free, room in enumerate(["kitchen", "kitchen", "hall", "kitchen", "hall", "kitchen"], 1):
        world.client("p").publish({"service": "parking", "location": room, "free": free})
    world.run_until(
        world.now + 100 * MS_NS
    )  # two are on their way, and nobody has said that they came
    car.be(State("hall", areas=areas))
    world.settle()
    offer(world, "hall", 7)
    assert got(car) == [
        ("kitchen", 1, False),
        ("kitchen", 2, False),
        ("hall", 3, True),
        ("kitchen", 4, True),
        ("hall", 5, True),
        ("kitchen", 6, True),
        ("hall", 7, False),
    ]


POLICIES = [
    (None, [1, 2, 3, 4]),
    (Terms(last=2), [3, 4]),
    (Terms(younger_ns=25 * SECOND_NS), [3, 4]),
    (Terms(younger_ns=35 * SECOND_NS, last=1), [4]),
    (Terms(key="road"), [3, 4]),
    (Terms(key="road", last=1), [4]),
]


@pytest.mark.parametrize(("terms", "kept"), POLICIES)
def test_policies_say_what_is_kept(terms: Terms | None, kept: list[int]) -> None:
    world = road()
    car = world.add_client("car", "b2", attach=False)
    car.follow(PARKING, terms)
    car.be(State("b2"))
    car.attach()
    world.settle()
    for free, name in enumerate(["A1", "A2", "A1", "A2"], 1):
        there = {"service": "parking", "location": "b3", "free": free, "road": name}
        world.client("p").publish(there)
        world.run_until(world.now + 10 * SECOND_NS)
    drive(world, "b3")
    assert [free for _, free, _ in got(car)] == kept


ROOMS = Places(
    {
        "kitchen": Place(("hall",), "b2"),
        "hall": Place(("kitchen", "street"), "b2"),
        "street": Place(("hall",), "b3"),
    }
)
ROOM_TERMS = [
    (Terms(last=1), [2], [5]),
    (Terms(last=2), [1, 2], [4, 5]),
    (Terms(key="service"), [2], [5]),
    (Terms(key="service", last=1), [2], [5]),
    (Terms(younger_ns=60 * SECOND_NS), [1, 2], [3, 4, 5]),
]


@pytest.mark.parametrize(("terms", "kitchen", "hall"), ROOM_TERMS)
def test_policies_are_for_every_place(terms: Terms, kitchen: list[int], hall: list[int]) -> None:
    """What is said of the hall later does not count in the kitchen."""
    world = road(places=ROOMS)
    car = world.add_client("car", "b3", attach=False)
    car.follow(PARKING, terms)
    car.be(State("street"))
    car.attach()
    world.settle()
    for free, room in enumerate(["kitchen", "kitchen", "hall", "hall", "hall"], 1):
        offer(world, room, free)
    ear = world.brokers["b2"].core.replicator.ear
    assert [str(one) for one, _ in ear.subscriptions()] == [
        "location in ('hall', 'kitchen') and service = 'parking'"
    ]
    broker = world.brokers["b2"].core
    again = Broker(BrokerId("b2"), broker.neighbours)
    again.load(broker.save())
    assert again.save() == broker.save()
    car.detach()
    car.be(State("kitchen"))
    car.attach("b2")
    world.settle()
    assert [free for _, free, _ in got(car)] == kitchen
    car.be(State("hall"))
    world.settle()
    assert [free for _, free, _ in got(car)] == hall
    car.detach(leave=True)
    world.settle()
    assert (ear.store.kept, ear.subscriptions(), ear.buffers()) == ({}, [], [])


def test_of_too_many_places_all_are_kept_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator, "PLACES_MAX", 3)
    world = road(places=ROOMS)
    car = world.add_client("car", "b3", attach=False)
    car.follow(PARKING, Terms(last=1))
    car.follow("service = 'fuel' and location in myloc", Terms(last=1))
    car.be(State("street"))
    car.attach()
    world.settle()
    ear = world.brokers["b2"].core.replicator.ear
    assert len(ear.buffers()) == 3  # two places of the first one


AWAY = [
    (Terms(last=2), 2),
    (Terms(younger_ns=25 * SECOND_NS), 3),
    (Terms(key="service"), 1),
]


@pytest.mark.parametrize(("terms", "kept"), AWAY)
def test_policies_say_what_is_kept_for_who_is_away(terms: Terms, kept: int) -> None:
    """No limit is reached by what they leave out, and nobody is told that this is lost."""
    world = road(limits=Limits(backlog_count=20))
    car = world.add_client("car", "b2", attach=False)
    car.follow(PARKING, terms)
    car.follow("service = 'fuel' and location in myloc")
    car.be(State("b2"))
    car.attach()
    world.settle()
    car.detach()
    world.settle()
    offer(world, "b2", 0, "fuel")
    virtual = world.brokers["b2"].core.replicator.virtual[car.core.name]
    for free in range(1, 101):
        world.run_until(world.now + 10 * SECOND_NS)
        offer(world, "b2", free)
        assert len(virtual.backlog) <= 20
    car.attach()
    world.settle()
    assert [free for _, free, _ in got(car)] == [0, *range(101 - kept, 101)]
    assert losses(world) == []


def test_large_values_that_nobody_wants_are_no_loss() -> None:
    world = road(limits=Limits(backlog_bytes=1_000_000))
    car = world.add_client("car", "b2", attach=False)
    car.follow(PARKING, Terms(last=2))
    car.be(State("b2"))
    car.attach()
    world.settle()
    car.detach()
    world.settle()
    for free in range(30):
        attributes = {"service": "parking", "location": "b2", "free": free}
        world.client("p").publish(attributes, b"x" * 100_000)
        world.settle()
    car.attach()
    world.settle()
    assert [free for _, free, _ in got(car)] == [28, 29]
    assert losses(world) == []


def test_every_notification_is_kept_once_for_all() -> None:
    world = road()
    for i in range(20):
        drive(world, "b2", f"car{i}")
    for free in range(5):
        offer(world, "b3", free)
    ear = world.brokers["b3"].core.replicator.ear
    assert len(ear.store.kept) == 5
    assert len(ear.subscriptions()) == 1
    assert [len(one) for one in ear.buffers()] == [5]
    drive(world, "b3", "car7")
    assert len(got(world.client("car7"))) == 5
    assert len(ear.store.kept) == 5  # others wait


def test_what_was_delivered_is_forgotten_with_what_is_kept() -> None:
    """A client may stay for years."""
    world = road(limits=Limits(buffer_count=50))
    car = drive(world, "b2")
    for free in range(3_000):
        world.client("p").publish({"service": "parking", "location": "b2", "free": free})
        if not free % 100:
            world.settle()
    world.settle()
    replicator = world.brokers["b2"].core.replicator
    told = replicator.virtual[car.core.name].told
    assert len(told) <= 2 * 50 + TOLD_MIN
    assert told >= replicator.ear.store.kept.keys()
    assert len(got(car)) == 3_000
    drive(world, "b2")
    assert got(car) == []  # it was delivered before


def test_a_virtual_client_begins_to_listen_when_it_is_there() -> None:
    """Others have listened before; what they kept is not for who came later."""
    world = road()
    drive(world, "b2", "early")
    offer(world, "b3", 1)
    drive(world, "b2", "late")
    offer(world, "b3", 2)
    drive(world, "b3", "late")
    assert got(world.client("late")) == [("b3", 2, True)]


def test_without_news_a_virtual_client_ends_with_its_lease() -> None:
    world = road(limits=Limits(lease_ns=10 * SECOND_NS))
    drive(world, "b2")
    world.run_until(world.now + 60 * SECOND_NS)
    assert listening(world) == ["b1", "b2", "b3"]  # renewed
    world.crash(Crash("b2", world.now, for_ns=3600 * SECOND_NS))
    world.run_until(world.now + 15 * SECOND_NS)
    assert listening(world) == ["b2"]


def test_a_virtual_client_that_was_forgotten_comes_back_with_the_next_news() -> None:
    world = road(limits=Limits(lease_ns=9 * SECOND_NS))
    car = drive(world, "b2")
    replicator = world.brokers["b3"].core.replicator
    world.brokers["b3"].perform(replicator.on_posted("b2", Forget(car.core.name, 99), world.now))
    assert listening(world) == ["b1", "b2"]
    world.run_until(world.now + 4 * SECOND_NS)
    assert listening(world) == ["b1", "b2", "b3"]


def test_for_who_is_away_too_long_nobody_listens() -> None:
    world = road(limits=Limits(lease_ns=9 * SECOND_NS, listen_ns=60 * SECOND_NS))
    drive(world, "b2").disconnect()
    world.run_until(world.now + 50 * SECOND_NS)
    assert listening(world) == ["b1", "b2", "b3"]
    world.run_until(world.now + 20 * SECOND_NS)
    assert listening(world) == []


def test_late_messages_of_another_epoch_count_for_nothing() -> None:
    world = road()
    car = drive(world, "b2")
    drive(world, "b3")
    replicator = world.brokers["b4"].core.replicator
    old = Shadow(BrokerId("b2"), car.core.name, 1, 9, 10**10, Followed((), State("b2")))
    replicator.on_posted("b2", old, world.now)
    assert replicator.virtual[car.core.name].follows
    replicator.on_posted("b2", Forget(car.core.name, 1), world.now)
    assert "b4" in listening(world)


def test_what_depends_on_the_state_only_is_an_ordinary_subscription() -> None:
    """It moves with its client by handoff, and loses nothing."""
    world = road()
    car = world.add_client("car", "b2")
    need = car.follow("free >= my.need")
    car.be(State(values={"need": 3}))
    world.settle()
    for free in (2, 3, 4):
        offer(world, "b0", free)
    assert [free for _, free, _ in got(car)] == [3, 4]
    assert car.received == []
    car.detach()
    car.be(State(values={"need": 4}))
    offer(world, "b0", 4)
    car.attach("b4")
    world.settle()
    offer(world, "b0", 3)
    offer(world, "b0", 5)
    assert [free for _, free, _ in got(car)] == [4, 5]
    assert listening(world) == []
    car.unfollow(need)
    world.settle()
    offer(world, "b0", 9)
    assert got(car) == []


@pytest.mark.parametrize("need", [3, None])
def test_what_is_local_stays_behind(need: int | None) -> None:
    """Also if the value that it mentions is set, or changes, only somewhere else."""
    world = road()
    car = world.add_client("car", "b2")
    car.follow("free >= my.need", Terms(local=True))
    if need is not None:
        car.be(State(values={"need": need}))
    world.settle()
    offer(world, "b0", 5)
    assert [free for _, free, _ in got(car)] == ([5] if need else [])
    car.detach()
    car.attach("b2")
    world.settle()
    offer(world, "b0", 6)
    assert [free for _, free, _ in got(car)] == ([6] if need else [])
    car.detach()
    car.attach("b3")
    world.settle()
    car.be(State(values={"need": 4}))
    world.settle()
    offer(world, "b0", 7)
    assert (got(car), car.core.following.counts, car.core.subscriptions) == ([], {}, {})
    assert [one.kind for one in world.events if one.reason == "stayed behind"] == ["unfollowed"]


def test_what_is_local_stays_behind_after_the_process_ended() -> None:
    world = road()
    car = world.add_client("car", "b2")
    car.follow("free >= my.need", Terms(local=True))
    car.be(State(values={"need": 3}))
    world.settle()
    memory, held = car.core.memory(), car.core.held()
    again = client.Client(car.core.name)
    again.remember(memory, held, [], {})
    again.attach(BrokerId("b3"), LinkId("car#2"))
    again.be(State(values={"need": 4}))
    assert (again.following.counts, again.subscriptions) == ({}, {})


def test_a_state_that_is_not_set_wants_nothing() -> None:
    world = road()
    car = world.add_client("car", "b2")
    car.follow("free >= my.need")
    world.settle()
    offer(world, "b0", 9)
    car.be(State(values={"need": "much"}))
    world.settle()
    offer(world, "b0", 9)
    assert got(car) == []


def test_brokers_further_away_are_told_more() -> None:
    world = road(steps=None)
    slow = world.brokers["b4"].core.replicator.ahead
    world.brokers["b4"].core.replicator.ahead = Ahead(
        slow.places, lambda _broker: (), None, dwell_ns=40 * MS_NS, hop_ns=20 * MS_NS
    )
    drive(world, "b4")
    held = {
        name: str(
            next(iter(world.brokers[name].core.routing.in_subs[BrokerId(f"b{i + 1}")])).filter
        )
        for i, name in enumerate(LINE[:4])
    }
    assert held == {
        "b3": "location in ('b3', 'b4') and service = 'parking'",
        "b2": "location in ('b2', 'b3', 'b4') and service = 'parking'",
        "b1": "location in ('b1', 'b2', 'b3', 'b4') and service = 'parking'",
        "b0": "location in ('b0', 'b1', 'b2', 'b3', 'b4') and service = 'parking'",
    }


def test_by_dwell_it_grows_beyond_the_hops_that_an_entry_tells_apart() -> None:
    """Twelve hops, a location at each, and a client that goes on by one while a subscription goes one hop."""
    names = [f"b{i}" for i in range(20)]
    places = of_edges(pairwise(names))
    ahead = Ahead(places, lambda _broker: (), None, dwell_ns=40 * MS_NS, hop_ns=20 * MS_NS)
    world = World(ahead=ahead)
    world.add_brokers(list(pairwise(names[:13])))
    world.add_client("p", "b0").advertise("exists service")
    world.settle()
    car = world.add_client("car", "b12", attach=False)
    car.follow(PARKING)
    car.be(State("b12"))
    car.attach()
    world.settle()
    template = next(iter(car.core.following.counts))
    for hops in range(1, 13):
        mine = Mine(places.reach("b12", ahead.steps_at(hops)))
        [needed] = template.widened(mine)
        table = world.brokers[f"b{12 - hops}"].core.routing.in_subs[BrokerId(f"b{13 - hops}")]
        assert any(entry.filter.covers(needed) for entry in table), hops


def test_far_away_everything_is_sent_and_filtered_at_the_edge() -> None:
    world = road(steps=EVERYWHERE)
    car = drive(world, "b4")
    offer(world, "b0")
    offer(world, "b4")
    assert got(car) == [("b4", 1, False)]
    everything = "location in ('b0', 'b1', 'b2', 'b3', 'b4') and service = 'parking'"
    told = world.brokers["b0"].core.routing.in_subs[BrokerId("b1")]
    assert everything in {str(one.filter) for one in told}


def test_the_next_place_needs_no_time_if_it_is_subscribed_to_before() -> None:
    """With q by the dwell time, what is published while the car changes its place is not missed."""

    def missed(steps: int | None) -> int:
        places = Places({f"r{i}": Place((f"r{i + 1}",) if i < 9 else (), "b4") for i in range(10)})
        world = World(ahead=Ahead(places, lambda _broker: (), steps, 300 * MS_NS, 10 * MS_NS))
        world.add_brokers(ROAD)
        world.add_client("p", "b0").advertise("exists service")
        # Of what is kept for all of the broker's range nothing may help here.
        for host in world.brokers.values():
            host.core.replicator.ahead = Ahead(
                Places({name: Place(one.next) for name, one in places.places.items()}),
                lambda _broker: (),
                steps,
                300 * MS_NS,
                10 * MS_NS,
            )
        car = world.add_client("car", "b4", attach=False)
        car.follow(PARKING)
        car.be(State("r0"))
        car.attach()
        world.settle()
        start, wanted = world.now, 0
        for i in range(1, 10):
            arrival = start + i * 300 * MS_NS
            world.agenda.at(arrival, car.be, State(f"r{i}"))
            for late in range(0, 290, 10):  # published so that it comes while the car is there
                attributes = {"service": "parking", "location": f"r{i}", "free": late}
                world.agenda.at(
                    arrival + late * MS_NS - 40 * MS_NS, world.client("p").publish, attributes
                )
                wanted += 1
        world.run_until(start + 4 * SECOND_NS)
        world.settle()
        return wanted - len(got(car))

    assert missed(None) < missed(0)


def test_who_never_stays_for_long_is_listened_for_all_the_same() -> None:
    """A lease of 60 s is renewed every 20 s, by whoever has the client then."""
    world = World(ahead=Ahead(of_edges(ROAD), lambda _broker: [BrokerId(one) for one in LINE]))
    world.add_brokers(ROAD)
    for i in range(20):
        drive(world, LINE[1 + i % 2])
        world.run_until(world.now + 7 * SECOND_NS)
        assert listening(world) == LINE


def test_what_mentions_no_marker_is_subscribed_to() -> None:
    world = road()
    with pytest.raises(UsageError, match="subscribe to it"):
        world.client("p").follow("free > 3")


LONG = "location in myloc and " + " and ".join(f"a{i} = my.x" for i in range(100))
TOO_MUCH = {"x": "y" * 900}  # multiplied out, that is no filter any more


def tables(broker: Broker) -> tuple[int, int]:
    return len(broker.replicator.virtual), len(list(broker.replicator.ear.buffers()))


def test_a_state_that_makes_too_much_of_a_filter_is_a_fault() -> None:
    broker, link = Broker(BrokerId("b0")), LinkId("car#1")
    followed = Followed(((LONG, None),), State("b0", values={"x": "y"}))
    attach = Attach(ClientId("car"), 1, 0, (), (), (), False, followed=followed)
    broker.step(Received(link, attach), 1)
    assert tables(broker) == (1, 1)
    effects = broker.step(Received(link, State("b0", values=TOO_MUCH)), 2)
    assert [type(one) for one in effects] == [Close]
    assert tables(broker) == (0, 0)


@pytest.mark.parametrize("followed", [((LONG, None),), (("x > 0", None),), (("myloc", None),)])
def test_a_replicator_that_talks_nonsense_changes_nothing(followed: Follows) -> None:
    broker = Broker(BrokerId("b0"))
    shadow = Shadow(
        BrokerId("b1"),
        ClientId("car"),
        1,
        0,
        SECOND_NS,
        Followed(followed, State("b1", values=TOO_MUCH)),
    )
    assert broker.step(Posted(BrokerId("b1"), shadow), 1) == []
    assert tables(broker) == (0, 0)


def test_a_virtual_client_of_an_older_release_may_follow_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it follows is beyond the limit of today, but its timers run as those of others do."""
    monkeypatch.setattr(virtual, "FOLLOWED_CHARACTERS_MAX", 10**9)
    older = Broker(BrokerId("c"), [BrokerId("b")])
    follows = tuple((f"location in myloc and x = '{'y' * 150}{i}'", None) for i in range(90))
    attach = Attach(ClientId("car"), 1, 0, followed=Followed(follows, State("R1")))
    older.step(Received(LinkId("car#1"), attach), 1)
    monkeypatch.undo()
    broker = Broker(BrokerId("c"), [BrokerId("b")])
    broker.load(older.save())
    broker.step(LinkDown(LinkId("car#1")), 2)
    request = Request(BrokerId("b"), ClientId("car"), 2, 0, ((BrokerId("c"), 1),))
    broker.step(Received(LinkId("b"), Update(errands=(request,))), 3)
    due = broker.replicator.virtual[ClientId("car")].renew_at
    broker.step(Tick(), due)
    assert broker.replicator.virtual[ClientId("car")].until == due + broker.border.limits.lease_ns


# ---- brokers that learn ------------------------------------------------------------------------


def learning_road() -> World:
    """Five brokers in a row that know nothing at first."""
    places = of_edges(ROAD)
    world = World(ahead=Ahead(places, lambda _broker: (), learning=Learning(0.9)))
    world.add_brokers(ROAD)
    world.add_client("p", "b0").advertise("exists service")
    world.settle()
    return world


def test_brokers_learn_where_clients_go_by_where_they_came_from() -> None:
    world = learning_road()
    drive(world, "b1")
    assert listening(world) == ["b1"]
    for _ in range(10):
        for place in ("b2", "b3", "b2", "b1"):
            drive(world, place)
    drive(world, "b2")
    assert listening(world) == ["b2", "b3"]  # who comes from b1 goes on
    offer(world, "b3", 7)
    car = drive(world, "b3")
    assert got(car) == [("b3", 7, True)]
    drive(world, "b2")
    assert listening(world) == ["b1", "b2"]


def test_who_is_expected_in_vain_and_comes_elsewhere_leaves_nobody_listening() -> None:
    world = learning_road()
    for _ in range(10):
        drive(world, "b1")
        drive(world, "b2")
    drive(world, "b1")
    assert listening(world) == ["b1", "b2"]
    offer(world, "b1", 3)
    car = drive(world, "b4")
    assert listening(world) == ["b4"]  # b1 has told it that b2 listens
    car.detach(leave=True)
    world.settle()
    assert listening(world) == []
    assert not list(check_quiet(world))


def test_a_client_that_leaves_is_forgotten_where_it_was_expected() -> None:
    world = learning_road()
    for _ in range(5):
        drive(world, "b1")
        drive(world, "b2")
    assert listening(world) == ["b1", "b2"]
    world.client("car").detach(leave=True)
    world.settle()
    assert listening(world) == []


def test_a_client_that_stays_long_begins_another_journey() -> None:
    """Its next brokers are those of clients that set out here, from the next renewal on."""
    world = learning_road()
    for _ in range(10):
        drive(world, "b2")
        drive(world, "b1")
        world.run_until(world.now + 700 * SECOND_NS)
        drive(world, "b0")
    drive(world, "b2")
    assert listening(world) == ["b1", "b2"]
    drive(world, "b1")
    world.run_until(world.now + 700 * SECOND_NS)
    assert listening(world) == ["b0", "b1"]


@pytest.mark.parametrize(("client", "expected"), [("lorry", ["b2", "b3"]), ("bus", ["b1", "b2"])])
def test_a_mined_model_foretells_by_where_a_client_came_from_and_who_it_is(
    client: str, expected: list[str]
) -> None:
    """First order would have b1 and b3 listen for whoever is at b2."""
    b1, b2, b3 = (BrokerId(name) for name in ("b1", "b2", "b3"))
    moves = [
        Moves(ClientId("bus"), b1, b2, b1, 500),
        Moves(ClientId("lorry"), b1, b2, b3, 500),
        Moves(ClientId("lorry"), b3, b2, b1, 500),
    ]
    places = of_edges(ROAD)
    learning = Learning(0.9, Movement(moves), learns=False)
    world = World(ahead=Ahead(places, places.next_brokers, learning=learning))
    world.add_brokers(ROAD)
    mover = world.add_client(client, "b1")
    mover.follow("location in myloc")

    def go(*places: str) -> list[str]:
        for place in places:
            mover.be(State(place))
            mover.attach(place)
            world.settle()
        return listening(world, client)

    assert go("b1", "b2") == expected
    assert go("b3", "b2") == ["b1", "b2"]
    assert not list(check_quiet(world))


def test_what_was_learnt_survives_a_restart_and_goes_on_alike() -> None:
    world = learning_road()
    for place in ["b1", "b2", "b3", "b2"] * 5:
        drive(world, place)
    broker = world.brokers["b2"].core
    ahead = broker.replicator.ahead
    again = Broker(broker.name, ["b1", "b3"], ahead=ahead)
    again.load(broker.save())
    learner, before = again.replicator.learner, broker.replicator.learner
    assert learner is not None and before is not None
    assert learner.save() == before.save()
    assert learner.expected(BrokerId("b1"), ClientId("car"))[0] == "b3"
    assert again.save() == broker.save()
    forgetful = Broker(broker.name, ["b1", "b3"])  # it is not to learn any more
    forgetful.load(broker.save())
    assert forgetful.replicator.learner is None


def test_only_where_a_client_was_last_its_departure_is_counted_and_once() -> None:
    world = learning_road()
    for place in ["b1", "b2", "b3", "b2", "b1", "b0"]:
        drive(world, place)
    counted = {
        name: sum(
            sum(counts.values())
            for client, previous, counts in learner.save().rows
            if not client and previous is None
        )
        for name, host in world.brokers.items()
        if (learner := host.core.replicator.learner) is not None
    }
    assert counted == {"b0": 0, "b1": 2, "b2": 2, "b3": 1, "b4": 0}


@pytest.mark.parametrize("relocation", ["handoff", "naive"])
def test_who_comes_back_after_its_session_ended_is_told_that_something_may_be_missing(
    relocation: str,
) -> None:
    """From then on, only what has room in the buffers is kept for it."""
    world = World(
        limits=Limits(buffer_count=2, lease_ns=30 * SECOND_NS),
        relocation=relocation,
        ahead=Ahead(of_edges(ROAD), lambda _broker: ()),
    )
    world.add_brokers(ROAD)
    world.add_client("p", "b0").advertise("exists service")
    world.settle()
    car = world.add_client("car", "b1", attach=False, expires_ns=SECOND_NS)
    car.follow(PARKING)
    car.be(State("b1"))
    car.attach()
    world.settle()
    offer(world, "b1", 1)
    car.disconnect()
    world.run_until(world.now + 15 * SECOND_NS)
    for free in (2, 3, 4):
        world.client("p").publish({"service": "parking", "location": "b1", "free": free})
    world.run_until(world.now + SECOND_NS)
    car.attach()
    world.run_until(world.now + SECOND_NS)
    assert got(car) == [("b1", 1, False), ("b1", 3, True), ("b1", 4, True)]
    assert ("car", 0, NO_STREAM) in losses(world)
