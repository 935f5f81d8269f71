"""The judge of clients that follow their location: each of its rules sees a result that is wrong.

A short walk is right. Then its event log is changed as if brokers, or the client, had done something wrong.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from wayfare.core.history import Limits
from wayfare.core.messages import State, Terms
from wayfare.core.places import of_edges
from wayfare.core.virtual import Ahead
from wayfare.eventlog import Event
from wayfare.sim import World
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS
from wayfare.sim.oracle import check_deliveries
from wayfare.sim.reach import reach
from wayfare.sim.stays import Judge

TREE = [("porto", "lisbon"), ("lisbon", "faro")]
PLACES = of_edges(TREE)
HERE = "location in myloc"
PARKING = "location in myloc and topic = 'parking'"


class Walk:
    """A car that follows what is said of where it is, and a city that says it."""

    def __init__(self, ahead: Ahead | None = None, limits: Limits | None = None) -> None:
        self.world = World(
            ahead=ahead or Ahead(PLACES, PLACES.next_brokers), limits=limits or Limits()
        )
        self.world.add_brokers(TREE)
        self.city = self.world.add_client("city", "porto")
        self.city.advertise("exists location")
        self.car = self.world.add_client("car", "lisbon", attach=False)
        self.car.be(self.state("lisbon"))

    @property
    def events(self) -> list[Event]:
        return self.world.events

    def state(self, location: str) -> State:
        return State(location, PLACES.places[location].position)

    def wait(self, seconds: int = 100) -> None:
        """Longer than anything takes."""
        self.world.run_until(self.world.now + seconds * SECOND_NS)

    def say(self, location: str, topic: str = "parking") -> None:
        self.city.publish({"location": location, "topic": topic, "level": 1})

    def go(self, location: str) -> None:
        self.car.detach()
        self.car.be(self.state(location))
        self.car.attach(location)

    def rules(self) -> set[str]:
        """Those that are broken, of both kinds of subscriptions."""
        judge = Judge(self.world, PLACES, {"car": {}})
        ordinary = check_deliveries(judge.ordinary, reach(self.world), elsewhere=judge.followed)
        return {one.rule for one in (*judge.violations(), *ordinary.violations)}

    def delivered(self) -> list[Event]:
        return [one for one in self.events if one.kind == "delivered"]


@pytest.fixture
def walk() -> Walk:
    return Walk()


def at_lisbon(walk: Walk) -> ClientHost:
    walk.car.follow(HERE)
    walk.car.attach()
    walk.wait()
    for _ in range(3):
        walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    return walk.car


def test_what_is_said_of_where_it_is_has_to_come(walk: Walk) -> None:
    at_lisbon(walk)
    walk.events.remove(walk.delivered()[1])
    assert walk.rules() == {"complete"}


def test_nothing_comes_twice(walk: Walk) -> None:
    at_lisbon(walk)
    walk.events.append(walk.delivered()[-1])
    assert walk.rules() == {"once"}


def test_a_publisher_is_heard_in_order(walk: Walk) -> None:
    at_lisbon(walk)
    first, second, _ = walk.delivered()
    one, two = walk.events.index(first), walk.events.index(second)
    walk.events[one], walk.events[two] = second, first
    assert walk.rules() == {"fifo"}


def test_the_past_comes_where_somebody_listened(walk: Walk) -> None:
    at_lisbon(walk)
    walk.say("faro")
    walk.wait()
    walk.go("faro")
    walk.wait()
    assert walk.rules() == set()
    *_, past = walk.delivered()
    assert past.reason == "past"
    walk.events.remove(past)
    assert walk.rules() == {"past"}


def unexpected(*, past_count: int) -> Walk:
    """It comes from lisbon to faro, where nobody listened for it, and where something was said before."""
    walk = Walk(Ahead(PLACES), Limits(past_count=past_count))
    at_lisbon(walk)
    walk.say("faro")
    walk.say("faro")
    walk.wait()
    walk.go("faro")
    walk.wait()
    return walk


def test_the_past_comes_where_brokers_remember_it() -> None:
    walk = unexpected(past_count=10)
    assert walk.rules() == set()
    came = walk.delivered()[-1]
    assert (came.number, came.reason) == (5, "past")
    walk.events.remove(came)
    assert walk.rules() == {"fetched"}


@pytest.mark.parametrize("past_count", [0, 4])
def test_where_brokers_forget_it_need_not_come(past_count: int) -> None:
    walk = unexpected(past_count=past_count)
    for event in [one for one in walk.delivered() if one.reason == "past"]:
        walk.events.remove(event)
    assert walk.rules() == set()


def test_what_it_follows_no_more_is_not_wanted(walk: Walk) -> None:
    car = at_lisbon(walk)
    car.unfollow(car.follow(HERE))  # once more, and back
    car.unfollow(next(iter(car.core.following.counts)))
    walk.wait()
    walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    last = walk.delivered()[-1]
    said = walk.events[-1]
    assert said.kind == "published"
    walk.events.append(
        Event(said.time_ns + 1, "delivered", "car", None, "city", said.number, None, 1)
    )
    walk.events[-1].attributes = last.attributes
    assert walk.rules() == {"wanted"}


def test_what_it_follows_still_has_to_come(walk: Walk) -> None:
    """Of two that it followed, or of two times the same, one is left."""
    car = at_lisbon(walk)
    car.follow(HERE)
    car.unfollow(car.follow(PARKING))
    car.unfollow(car.follow(HERE))
    walk.wait()
    walk.say("lisbon", "fuel")
    walk.wait()
    assert walk.rules() == set()
    walk.events.remove(walk.delivered()[-1])
    assert walk.rules() == {"complete"}


def test_what_it_follows_anew_has_to_come(walk: Walk) -> None:
    """After the last one was withdrawn."""
    car = at_lisbon(walk)
    car.unfollow(next(iter(car.core.following.counts)))
    walk.wait()
    car.follow(HERE)
    walk.wait()
    walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    walk.events.remove(walk.delivered()[-1])
    assert walk.rules() == {"complete"}


def test_a_short_stay_is_long_enough(walk: Walk) -> None:
    """Nothing has to wait for a recall, or for an acknowledgement."""
    at_lisbon(walk)
    walk.say("lisbon")
    walk.wait(1)
    last = walk.delivered()[-1]
    walk.go("faro")
    walk.wait()
    assert walk.rules() == set()
    walk.events.remove(last)
    assert walk.rules() == {"complete"}


def test_there_is_no_seam_where_it_follows_something_else(walk: Walk) -> None:
    """The publication is for the filter before and for the one behind, and is made between the two."""
    car = at_lisbon(walk)
    car.follow(PARKING)
    walk.say("lisbon")
    car.unfollow(next(iter(car.core.following.counts)))
    walk.wait()
    assert walk.rules() == set()
    walk.events.remove(walk.delivered()[-1])
    assert walk.rules() == {"complete"}


def test_nothing_is_missing_where_it_comes_back_to_the_same_broker(walk: Walk) -> None:
    car = at_lisbon(walk)
    car.disconnect()
    walk.wait(1)
    walk.say("lisbon")
    walk.wait(1)
    car.attach()
    walk.wait()
    assert walk.rules() == set()
    walk.events.remove(walk.delivered()[-1])
    assert walk.rules() == {"complete"}


def test_an_attachment_of_which_no_broker_heard_promises_nothing(walk: Walk) -> None:
    car = walk.car
    car.follow(HERE)
    car.attach()
    car.disconnect()
    walk.wait()
    walk.say("lisbon")
    walk.wait()
    car.attach()
    walk.wait()
    assert walk.rules() == set()
    assert walk.delivered() == []


def test_what_is_subscribed_to_as_well_comes_once(walk: Walk) -> None:
    """And it has to come, by either."""
    car = at_lisbon(walk)
    car.subscribe("topic = 'parking'")
    walk.wait()
    walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    first, *_, last = walk.delivered()
    walk.events.append(replace(first, time_ns=walk.world.now))
    assert walk.rules() == {"once"}
    walk.events.pop()
    walk.events.remove(last)
    assert walk.rules() == {"complete"}


def test_what_is_subscribed_to_no_more_is_not_wanted(walk: Walk) -> None:
    car = at_lisbon(walk)
    wanted = car.subscribe("topic = 'parking'")
    walk.wait()
    walk.say("faro")
    walk.wait()
    assert walk.rules() == set()
    *_, last = walk.delivered()
    car.unsubscribe(wanted)
    walk.events.append(replace(last, time_ns=walk.world.now + 1))
    assert "wanted" in walk.rules()


def test_what_a_subscription_does_not_deliver_need_not_be_in_its_order(walk: Walk) -> None:
    """It was made when the publication was on its way; the client puts that aside for a while."""
    car = at_lisbon(walk)
    walk.say("lisbon")
    walk.world.run_until(walk.world.now + 11 * MS_NS)
    car.subscribe("topic = 'parking'")
    walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    late, last = walk.delivered()[-2:]
    assert (late.follows is None, last.follows is None) == (False, True)
    walk.events.remove(late)
    assert walk.rules() == {"complete"}
    walk.events.append(replace(late, time_ns=walk.world.now))
    assert walk.rules() == set()
    walk.events.append(replace(last, time_ns=walk.world.now, follows=late.follows))
    assert walk.rules() == {"once"}


def test_nothing_comes_while_it_is_away(walk: Walk) -> None:
    """Unless the client had put it aside for a subscription that it withdraws then, and it is for where it is."""
    car = at_lisbon(walk)
    walk.say("lisbon")
    walk.wait(1)
    wanted = car.subscribe("topic = 'parking'")
    *_, last = walk.delivered()
    walk.events.remove(last)
    car.detach()
    walk.wait(1)
    away = replace(last, time_ns=walk.world.now)
    walk.events.append(away)
    assert walk.rules() == set()
    walk.events.remove(away)
    car.unsubscribe(wanted)
    walk.wait(1)
    walk.say("lisbon")
    said = walk.events[-1]
    walk.events.append(replace(away, time_ns=said.time_ns, number=said.number))
    assert "wanted" in walk.rules()
    walk.events.pop()
    car.be(walk.state("faro"))
    walk.events.append(away)
    assert "wanted" in walk.rules()


def test_who_left_and_returned_gets_what_is_said_from_then_on(walk: Walk) -> None:
    """And nothing of what was said before it was back: nobody listened."""
    car = at_lisbon(walk)
    car.detach(leave=True)
    walk.wait()
    walk.say("lisbon")
    walk.wait()
    car.attach()
    walk.wait()
    walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    assert len(walk.delivered()) == 4
    walk.events.remove(walk.delivered()[-1])
    assert walk.rules() == {"complete"}


def test_a_process_that_begins_anew_follows_nothing(walk: Walk) -> None:
    at_lisbon(walk)
    walk.world.begin_anew("car", "lisbon")
    walk.wait()
    walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    *_, last = walk.delivered()
    walk.events.append(replace(last, time_ns=walk.world.now))
    assert "wanted" in walk.rules()


def test_a_process_that_begins_anew_gets_each_once(walk: Walk) -> None:
    """Also what the earlier one got; and not what it got twice itself."""
    at_lisbon(walk)
    walk.world.begin_anew("car", "lisbon")
    car = walk.world.client("car")
    car.be(walk.state("lisbon"))
    car.follow(HERE)
    walk.wait()
    walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    *others, last = walk.delivered()
    walk.events.append(replace(others[-1], time_ns=walk.world.now, reason="past"))
    assert "once" not in walk.rules()
    walk.events.append(replace(last, time_ns=walk.world.now))
    assert "once" in walk.rules()
    del walk.events[-2:]
    walk.events.remove(last)
    assert walk.rules() == {"complete"}


def test_what_a_publisher_says_where_it_moved_to_has_to_come(walk: Walk) -> None:
    at_lisbon(walk)
    walk.city.attach("faro")
    walk.say("lisbon")
    walk.wait()
    assert walk.rules() == set()
    walk.events.remove(walk.delivered()[-1])
    assert walk.rules() == {"complete"}


def test_what_another_client_that_moves_says_has_to_come(walk: Walk) -> None:
    """Also what it said before it left for good, if a broker had accepted it."""
    at_lisbon(walk)
    bus = walk.world.add_client("bus", "porto")
    bus.advertise("exists location")
    bus.attach("faro")
    bus.publish({"location": "lisbon", "topic": "parking", "level": 2})
    walk.wait()
    bus.detach(leave=True)
    walk.wait()
    assert walk.rules() == set()
    walk.events.remove(walk.delivered()[-1])
    assert walk.rules() == {"complete"}


def past(like: Event, number: int, topic: str) -> Event:
    """Another delivery, of the past."""
    attributes = {**(like.attributes or {}), "topic": topic}
    return replace(like, number=number, attributes=attributes, reason="past")


def at_faro(walk: Walk, terms: Terms, *topics: str) -> None:
    """It follows its location with these terms, and comes to faro when all that has been said there."""
    walk.car.follow(HERE, terms)
    walk.car.attach()
    walk.wait()
    for topic in topics:
        walk.say("faro", topic)
        walk.wait(1)
    walk.say("porto")  # takes nobody's room
    walk.go("faro")
    walk.wait()
    assert walk.rules() == set()


def test_the_last_of_the_past_has_to_come(walk: Walk) -> None:
    at_faro(walk, Terms(last=2), "a", "b", "c")
    assert [one.number for one in walk.delivered()] == [2, 3]
    walk.events.remove(walk.delivered()[0])
    assert walk.rules() == {"past"}


def test_the_newest_of_every_key_has_to_come(walk: Walk) -> None:
    at_faro(walk, Terms(key="topic"), "a", "b", "a")
    assert [one.number for one in walk.delivered()] == [2, 3]
    walk.events.remove(walk.delivered()[0])
    assert walk.rules() == {"past"}


def test_what_is_young_enough_has_to_come_and_nothing_older(walk: Walk) -> None:
    at_faro(walk, Terms(younger_ns=3 * SECOND_NS // 2), "a", "b", "c")
    [young] = walk.delivered()
    walk.events.append(past(young, 1, "a"))
    assert "terms" in walk.rules()
    walk.events.pop()
    walk.events.remove(young)
    assert walk.rules() == {"past"}


def test_who_wants_nothing_of_the_past_gets_nothing_of_it(walk: Walk) -> None:
    """And it gets what is said when it is there."""
    at_faro(walk, Terms(last=0), "a", "b")
    assert walk.delivered() == []
    walk.say("faro")
    walk.wait()
    [live] = walk.delivered()
    walk.events.append(past(live, 2, "b"))
    assert "terms" in walk.rules()
    walk.events.pop()
    walk.events.remove(live)
    assert walk.rules() == {"complete"}


def test_a_loss_has_to_be_reported_behind_the_publication(walk: Walk) -> None:
    """A report of one loss does not stand for two."""
    at_lisbon(walk)
    first, second, _ = walk.delivered()
    walk.events.remove(first)
    told = Event(first.time_ns, "lost", "car", count=1, reason="backlog_count")
    walk.events.append(told)
    judge = Judge(walk.world, PLACES, {"car": {}})
    assert [*judge.violations()] == []
    walk.events.remove(second)
    assert "complete" in walk.rules()
    told.count = 0  # nobody knows how many
    judge = Judge(walk.world, PLACES, {"car": {}})
    assert [*judge.violations()] == []
    told.time_ns = 1
    assert "complete" in walk.rules()
