"""Convergence: confirmations of table updates, and what is flooded until they come.

Most play on a line of brokers: anna subscribes at porto, tom advertises at the other end.
"""

import pytest
from msgspec.structs import replace

from roads import Roads, assert_tidy, publish, xs
from wayfare.core import messages as m
from wayfare.core.broker import LINK_LOST, PUBLISHER_RELOCATIONS, Broker
from wayfare.core.client import Client
from wayfare.core.convergence import (
    NEVER,
    PENDING_MAX,
    Convergence,
    Provisional,
    SavedSpread,
    Spread,
)
from wayfare.core.effects import Confirmed, LinkAwaited, LinkState, LinkUp, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Echo, Entry, Notification, Probe, Update
from wayfare.errors import ProtocolError

X = Filter.parse("exists x")
LINE = ("porto-lisbon", "lisbon-faro")
CONFIRM_NS = Limits().confirm_ns


class Confirming(Roads):
    """A network that notes what applications are told of their requests."""

    def __init__(self, *pairs, **more):
        self.answers = {}  # client -> Confirmed effects
        super().__init__(*(pairs or LINE), **more)

    def probe(self, name, **kinds):
        kinds = kinds or {"subs": True}
        self._perform(name, self.client(name).probe(**kinds))

    def confirmed(self, name):
        return [(one.ads, one.subs, one.missing) for one in self.answers.get(name, [])]

    def _perform(self, name, effects):
        super()._perform(name, effects)
        some = [one for one in effects if isinstance(one, Confirmed)]
        self.answers.setdefault(name, []).extend(some)


def network(*pairs, **more):
    """Tom has advertised at faro, and anna is at porto."""
    net = Confirming(*pairs, **more)
    net.advertise("tom", "exists x")
    net.move("tom", "faro")
    net.move("anna", "porto")
    return net


def subscribed(*pairs, **more):
    """Anna has subscribed as well, and wants to know when that is in effect."""
    net = network(*pairs, **more)
    net.subscribe("anna", "x > 0")
    net.probe("anna")
    return net


# Spread: counters and barriers


def spread(*, always=False):
    """Both links have begun."""
    one = Spread(["a", "b"], always=always)
    for neighbour in ("a", "b"):
        one.start_over(neighbour)
    assert one.settle() == []
    return one


def convergence(*neighbours):
    one = Convergence(neighbours)
    for neighbour in neighbours:
        one.start_over(neighbour, again=False)
    assert one.take_echoes(lambda _: True) == {}
    return one


def sources(done):
    return [(one.source, one.number) for one in done]


def test_a_request_waits_for_neighbours_that_have_not_confirmed():
    one = spread()
    one.send("a")
    one.send("b")
    one.request(7, 1)
    assert one.settle() == []
    assert dict(one.questions()) == {"a": 1, "b": 1}
    assert one.confirm("a", 1) == []
    assert sources(one.confirm("b", 1)) == [(7, 1)]
    assert list(one.pending()) == []


def test_a_request_needs_no_answer_of_its_source_nor_where_all_is_confirmed():
    one = spread()
    one.send("a")
    one.send("b")
    one.confirm("b", 1)
    one.request("a", 3)
    assert sources(one.settle()) == [("a", 3)]
    assert dict(one.questions()) == {}


def test_an_echo_of_an_earlier_update_confirms_no_later_one():
    one = spread()
    one.send("a")
    one.request(7, 1)
    one.settle()
    one.send("a")
    one.request(7, 2)
    one.settle()
    assert sources(one.confirm("a", 1)) == [(7, 1)]
    assert sources(one.confirm("a", 2)) == [(7, 2)]


def test_a_neighbour_is_asked_once_for_what_it_was_asked_before():
    one = spread()
    one.send("a")
    for number in (1, 2):
        one.request(7, number)
        assert one.settle() == []
    assert dict(one.questions()) == {"a": 1}
    one.request(8, 1)
    one.settle()
    assert dict(one.questions()) == {}
    assert sources(one.confirm("a", 1)) == [(7, 1), (7, 2), (8, 1)]


def test_only_advertisements_are_confirmed_without_a_request():
    for always in (False, True):
        one = spread(always=always)
        one.send("a")
        assert dict(one.questions()) == ({"a": 1} if always else {})


def test_a_neighbour_confirms_no_more_than_it_was_sent():
    one = spread()
    one.send("a")
    one.confirm("a", 9)
    one.send("a")
    one.request(7, 1)
    assert one.settle() == []


def test_of_too_many_requests_a_later_one_answers_an_earlier_one():
    one = spread()
    for number in range(1, PENDING_MAX + 11):
        one.send("a")
        one.request(7, number, report_at=100 - number)
        assert one.settle() == []
        assert len(one.of(7)) <= PENDING_MAX
    assert one.late(7, 100).number == PENDING_MAX + 10
    done = sources(one.confirm("a", PENDING_MAX + 10))
    assert done[-1] == (7, PENDING_MAX + 10)
    assert len(done) == PENDING_MAX
    assert list(one.pending()) == []


def test_a_link_that_begins_from_nothing_with_nothing_to_say_confirms_what_was_sent_before():
    one = spread()
    one.send("a")
    one.request(7, 1)
    one.settle()
    one.start_over("a")
    assert sources(one.settle()) == [(7, 1)]


def test_a_link_that_begins_from_nothing_with_something_to_say_is_asked_again():
    one = spread()
    one.send("a")
    one.request(7, 1)
    one.settle()
    assert dict(one.questions()) == {"a": 1}
    one.start_over("a")
    one.send("a")
    assert one.settle() == []
    assert dict(one.questions()) == {"a": 2}
    assert sources(one.confirm("a", 2)) == [(7, 1)]


def test_requests_of_a_neighbour_whose_link_begins_from_nothing_are_forgotten():
    one = spread()
    one.send("b")
    one.request("a", 1)
    one.settle()
    one.request("a", 2)
    one.start_over("a")
    assert one.settle() == []
    assert one.confirm("b", 1) == []
    assert list(one.pending()) == []


def test_late_requests_are_reported_once():
    one = spread()
    one.send("a")
    one.request(7, 1, report_at=10)
    one.settle()
    assert one.late(7, 9) is None
    assert one.late(7, 10).missing == {"a": 1}
    assert one.late(7, 11) is None
    assert sources(one.confirm("a", 1)) == [(7, 1)]


def test_requests_survive_saving():
    one, other = spread(), spread()
    for number in (1, 2):
        one.send("a")
        one.send("b")
        one.request(7, number, report_at=5)
        one.settle()
    dict(one.questions())
    one.confirm("b", 2)
    other.load(one.save())
    assert dict(other.questions()) == {}
    assert other.late(7, 5).number == 2
    assert sources(other.confirm("a", 1)) == [(7, 1)]
    assert sources(other.confirm("a", 2)) == [(7, 2)]


def test_a_neighbour_whose_link_has_not_begun_confirms_nothing():
    one = Spread(["a", "b"], always=False)
    one.start_over("b")
    one.request(7, 1)
    assert one.settle() == []
    assert dict(one.questions()) == {}
    assert one.late(7, NEVER).missing == {"a": 0}
    other = Spread(["a", "b"], always=False)
    other.load(one.save())
    other.request(8, 1)
    assert other.settle() == []
    other.start_over("a")
    assert sources(other.settle()) == [(7, 1), (8, 1)]


def test_links_that_an_earlier_release_has_written_down_have_begun():
    one = Spread(["a", "b"], always=False)
    one.load(SavedSpread())
    one.request(7, 1)
    assert sources(one.settle()) == [(7, 1)]


# Provisional: what is flooded


def test_what_is_offered_goes_to_a_neighbour_until_it_has_answered():
    one = Provisional(["a", "b"])
    one.add("b", [Entry(X)], 3)
    assert one.join([], {"x": 1}) == [1]
    assert one.join([0, 1], {"x": 1}) == [0, 1]
    assert one.join([0], {"y": 1}) == [0]
    one.answer("b", 2)
    assert one.join([], {"x": 1}) == [1]
    one.answer("b", 3)
    assert one.join([], {"x": 1}) == []
    assert not one


def test_an_advertisement_that_is_sent_again_waits_for_the_later_answer():
    one = Provisional(["a"])
    one.add("a", [Entry(X)], 1)
    one.add("a", [Entry(X)], 2)
    one.answer("a", 1)
    assert one.join([], {"x": 1}) == [0]
    one.answer("a", 2)
    assert one.join([], {"x": 1}) == []


def test_what_is_withdrawn_or_begins_from_nothing_is_not_flooded():
    one = Provisional(["a"])
    one.add("a", [Entry(X)], 1)
    one.remove("a", [Entry(X)])
    assert one.join([], {"x": 1}) == [] and not one
    one.add("a", [Entry(X)], 2)
    one.start_over("a")
    assert one.join([], {"x": 1}) == [] and not one


# Convergence


def test_a_neighbour_gets_its_echo_when_the_subscriptions_for_it_are_settled():
    one = convergence("a")
    one.on_probe("a", Probe(ads=4))
    assert one.take_echoes(lambda _: False) == {}
    assert one.is_due
    assert one.take_echoes(lambda _: True) == {"a": Echo(ads=4)}


def test_the_answers_for_both_kinds_travel_together_and_never_go_back():
    one = convergence("a", "b")
    one.on_sent("b", [Update(add_ads=(Entry(X),), add_subs=(Entry(X),))])
    for number in (1, 2):
        one.on_probe("a", Probe(number, number))
    assert one.take_echoes(lambda _: True) == {}
    assert one.probes() == {"b": Probe(1, 1)}
    one.on_echo("b", Echo(1, 1))
    assert one.take_echoes(lambda _: True) == {"a": Echo(2, 2)}


def test_what_has_spread_for_an_ended_session_is_not_confirmed():
    one = convergence("a")
    one.on_sent("a", [Update(add_subs=(Entry(X),))])
    one.on_probe(5, Probe(subs=1))
    one.take_echoes(lambda _: True)
    one.on_echo("a", Echo(subs=1))
    one.forget(5)
    assert one.take_echoes(lambda _: True) == {}


def test_convergence_survives_saving():
    one, other = convergence("a"), convergence("a")
    one.on_sent("a", [Update(add_ads=(Entry(X),))])
    one.on_probe(5, Probe(ads=1), report_at=9)
    one.take_echoes(lambda _: True)
    one.probes()
    other.load(one.save())
    assert other.provisional.join([], {"x": 1}) == [0]
    assert other.report_at(5) == 9
    other.on_echo("a", Echo(ads=1))
    assert other.take_echoes(lambda _: True) == {5: Echo(ads=1)}
    assert not other.provisional
    assert other.report_at(5) == NEVER


# A tree of brokers


def test_a_subscription_is_confirmed_when_the_farthest_broker_has_it():
    net = network()
    net.stop("faro", "lisbon")
    net.subscribe("anna", "x > 0")
    net.probe("anna")
    net.settle()
    assert net.confirmed("anna") == []
    net.go()
    assert net.confirmed("anna") == [(0, 1, ())]
    net.stop("lisbon", "porto")
    net.probe("anna")
    net.settle()
    assert net.confirmed("anna")[1:] == [(0, 2, ())], "nothing is left to ask"


def test_a_broker_answers_when_all_behind_it_have_answered():
    net = network("porto-lisbon", "lisbon-faro", "lisbon-braga")
    net.advertise("una", "exists x")
    net.move("una", "braga")
    net.stop("braga", "lisbon")
    net.subscribe("anna", "x > 0")
    net.probe("anna")
    net.settle()
    assert net.confirmed("anna") == []
    net.go()
    assert net.confirmed("anna") == [(0, 1, ())]


def test_an_advertisement_is_confirmed_behind_all_subscriptions_to_it():
    net = Confirming()
    net.subscribe("anna", "x > 0")
    net.move("anna", "porto")
    net.move("tom", "faro")
    net.advertise("tom", "exists x")
    net.probe("tom", ads=True)
    net.stop("porto", "lisbon")
    net.settle()
    assert net.confirmed("tom") == []
    assert net.brokers["faro"].convergence.provisional
    net.publish("tom", x=1)
    net.go()
    assert net.confirmed("tom") == [(1, 0, ())]
    assert list(net.brokers["faro"].routing.in_subs["lisbon"]) != []
    assert not net.brokers["faro"].convergence.provisional
    assert net.got("anna") == xs(1)


def test_nothing_is_lost_from_the_first_publication_on():
    for routing in ("simple", "identity", "covering", "merging", "flooding"):
        net = Confirming(*(f"b{i}-b{i + 1}" for i in range(9)), routing=routing)
        net.subscribe("anna", "x > 0")
        net.move("anna", "b0")
        net.attach("tom", "b9")
        net.advertise("tom", "exists x")
        for x in range(1, 21):
            net.publish("tom", x=x)
        net.detach("tom", leave=True)
        net.settle()
        assert net.got("anna") == xs(*range(1, 21)), routing
        assert_tidy(net)


def test_notifications_go_where_they_are_wanted_once_the_advertisement_is_confirmed():
    net = network()
    net.publish("tom", x=1)
    net.step("tom", "faro")
    assert net.on_the_way("faro", "lisbon") == []


@pytest.mark.parametrize("relocation", PUBLISHER_RELOCATIONS)
def test_published_algorithms_for_publishers_stay_lossy(relocation):
    net = Confirming(relocation=relocation)
    net.subscribe("anna", "x > 0")
    net.move("anna", "porto")
    net.attach("tom", "faro")
    net.advertise("tom", "exists x")
    net.publish("tom", x=1)
    net.settle()
    assert net.got("anna") == []
    publish(net, 2)
    assert net.got("anna") == xs(2)


def test_subscriptions_that_were_put_off_travel_in_front_of_the_echo():
    """Bert is subscribed at b. Tom moves from d to a; what b wants of him is to go with the reply."""
    net = Confirming("a-b", "b-c", "c-d")
    net.subscribe("bert", "x > 0")
    net.advertise("tom", "exists x")
    net.move("bert", "b")
    net.move("tom", "d")
    net.stop("c", "d")
    net.move("tom", "a")
    assert list(net.brokers["a"].routing.in_subs["b"]) == []
    b = net.brokers["b"]
    echo = Echo(ads=b.convergence.ads.sent["c"])
    [effect] = b.step(Received("c", Update(echo=echo)), 0)
    assert effect.link == "a"
    assert [str(one.filter) for one in effect.message.add_subs] == ["x > 0"]
    assert effect.message.echo == Echo(ads=1)


@pytest.mark.parametrize("units", [1, 50, 400])
def test_what_is_taken_in_slices_is_confirmed_when_all_of_it_has_spread(units):
    """Of either kind, and wherever the work is put off."""
    limits = replace(Limits(), slice_units=units)
    net = Confirming(limits=limits)
    net.move("anna", "porto")
    net.move("tom", "faro")
    for number in range(40):
        net.advertise("tom", f"x = {number}")
    net.settle()
    for number in range(40):
        net.subscribe("anna", f"x = {number}")
    net.probe("anna")
    while net.moving() or net._go_on():
        if net.confirmed("anna"):
            break
        for wire in net.moving():
            if wire.frames:
                net._arrive(wire)
    assert net.confirmed("anna") == [(0, 1, ())]
    assert len(list(net.brokers["faro"].routing.in_subs["lisbon"])) == 40
    net.settle()
    assert_tidy(net)


@pytest.mark.parametrize("units", [1, 50, 400])
def test_an_advertisement_is_confirmed_behind_subscriptions_that_are_found_in_slices(units):
    net = Confirming(limits=replace(Limits(), slice_units=units))
    net.move("anna", "porto")
    for number in range(40):
        net.subscribe("anna", f"x = {number}")
    net.move("tom", "faro")
    net.advertise("tom", "exists x")
    net.probe("tom", ads=True)
    while not net.confirmed("tom") and (net.moving() or net._go_on()):
        for wire in net.moving():
            if wire.frames:
                net._arrive(wire)
    assert net.confirmed("tom") == [(1, 0, ())]
    assert len(list(net.brokers["faro"].routing.in_subs["lisbon"])) == 40


def test_messages_of_a_neighbour_behind_a_long_update_keep_their_order():
    limits = replace(Limits(), slice_units=50)
    lisbon = Broker("lisbon", ["porto", "faro"], limits=limits)
    for one in lisbon.neighbours:
        lisbon.step(LinkUp(one), 0)
    lisbon.step(Received("faro", Update(add_ads=(Entry(X),))), 0)
    subs = tuple(Entry(Filter.parse(f"x = {number}")) for number in range(40))
    lisbon.step(Received("porto", Update(add_subs=subs, probe=Probe(subs=1))), 0)
    assert lisbon.is_behind()
    said = [
        Notification("una", 1, {"x": 1}),
        Update(add_ads=(Entry(X),), probe=Probe(ads=1)),
        Notification("una", 2, {"x": 2}),
    ]
    out = [effect for one in said for effect in lisbon.step(Received("porto", one), 0)]
    assert out == []
    bert = "bert/1"
    lisbon.step(Received(bert, m.Attach("bert", 1, 0)), 0)
    lisbon.step(Received(bert, m.Subscribe(X)), 0)
    order = []
    while lisbon.is_behind():
        for effect in lisbon.step(Tick(), 0):
            if isinstance(effect, Send) and isinstance(effect.message, m.Deliver):
                order.append(effect.message.notification.number)
            elif isinstance(effect, Send) and effect.link == "faro":
                update = effect.message
                order += ["subs"] if getattr(update, "add_subs", ()) else []
                order += ["ads"] if getattr(update, "add_ads", ()) else []
    assert [one for one in order if one != "subs"] == [1, "ads", 2]
    assert order.index("subs") < order.index(1)


def test_what_is_withdrawn_is_not_flooded():
    net = network()
    net.stop("porto", "lisbon")
    net.advertise("una", "exists y")
    net.move("una", "lisbon")
    net.unadvertise("una", "exists y")
    net.settle()
    assert not net.brokers["lisbon"].convergence.provisional
    assert net.brokers["lisbon"].convergence.ads.sent["porto"] == 2


def test_a_link_that_begins_from_nothing_is_flooded_with_what_is_offered_by_now():
    one = convergence("a")
    one.on_sent("a", [Update(add_ads=(Entry(X),))])
    one.start_over("a", again=True)
    one.take_echoes(lambda _: True)
    assert not one.provisional


# What is missing


def test_a_broker_without_its_links_confirms_nothing():
    """A publisher may be behind them."""
    porto = Broker("porto", ["lisbon"])
    porto.step(Received("1", m.Attach("anna", 1, 0)), 0)
    porto.step(Received("1", m.Subscribe(X)), 0)
    assert porto.step(Received("1", m.Ack(0, Probe(subs=1))), 0) == []
    porto.step(Tick(), CONFIRM_NS - 1)
    late = porto.step(Tick(), CONFIRM_NS)
    assert late == [Send("1", Echo(subs=1, missing=("lisbon",)))]
    assert Send("1", Echo(subs=1)) in porto.step(LinkUp("lisbon"), CONFIRM_NS)


def test_a_broker_that_keeps_everything_for_its_neighbours_need_not_know_them():
    """What is published behind them waits there until they come."""
    porto = Broker("porto", ["lisbon"])
    assert porto.step(LinkAwaited("lisbon"), 0) == [Send("lisbon", m.Announce(("porto",)))]
    porto.step(Received("1", m.Attach("anna", 1, 0)), 0)
    porto.step(Received("1", m.Subscribe(X)), 0)
    assert porto.step(Received("1", m.Ack(0, Probe(subs=1))), 0) == [Send("1", Echo(subs=1))]
    assert porto.step(LinkAwaited("lisbon"), 0) == [], "once is enough"


def offered_while_awaited():
    porto = Broker("porto", ["lisbon", "faro"])
    porto.step(LinkAwaited("lisbon"), 0)
    porto.step(LinkUp("faro"), 0)
    porto.step(Received("1", m.Attach("tom", 1, 0)), 0)
    porto.step(Received("1", m.Advertise(X)), 0)
    return porto


def test_what_is_offered_is_sent_to_a_neighbour_that_was_never_there():
    porto = offered_while_awaited()
    effects = porto.step(Received("1", m.Publish(1, {"x": 1})), 0)
    there = [one.message for one in effects if one.link == "lisbon"]
    assert [type(one) for one in there] == [m.Notification]


GAP = m.Gap(0, LINK_LOST, exact=False)


def test_who_is_behind_a_neighbour_that_was_given_up_before_it_came_is_told():
    """It had said nothing, so nothing is missing here."""
    porto = offered_while_awaited()
    effects = porto.step(LinkUp("lisbon"), 1)
    assert effects[0] == Send("lisbon", GAP), "in front of the tables"
    assert Send("faro", GAP) not in effects
    again = porto.step(LinkUp("lisbon"), 2)
    assert Send("faro", GAP) in again and Send("lisbon", GAP) not in again


def test_both_are_told_if_a_neighbour_was_there_and_nothing_came():
    """It may have got nothing, and not know that anything was sent."""
    porto = offered_while_awaited()
    porto.step(LinkState("lisbon", up=True), 0)
    effects = porto.step(LinkUp("lisbon"), 1)
    assert {Send("lisbon", GAP), Send("faro", GAP)} <= {*effects}


def test_a_neighbour_that_was_heard_tells_its_own():
    porto = offered_while_awaited()
    porto.step(LinkState("lisbon", up=True), 0)
    porto.step(Received("lisbon", m.Announce(("lisbon",))), 0)
    effects = porto.step(LinkUp("lisbon"), 1)
    assert Send("faro", GAP) in effects and Send("lisbon", GAP) not in effects


def test_a_broker_remembers_for_whom_it_keeps_everything():
    before = offered_while_awaited()
    after = Broker("porto", ["lisbon", "faro"])
    after.load(before.save())
    assert after.step(LinkUp("lisbon"), 1)[0] == Send("lisbon", GAP)


def test_a_client_is_told_which_neighbours_have_not_answered_and_again_when_they_have():
    net = network()
    net.stop("faro", "lisbon")
    net.subscribe("anna", "x > 0")
    net.probe("anna", subs=True, report_ns=CONFIRM_NS // 10)
    net.settle()
    net.pass_time(CONFIRM_NS // 10 - 1)
    net.settle()
    assert net.confirmed("anna") == []
    net.pass_time(1)
    net.settle()
    assert net.confirmed("anna") == [(0, 1, ("lisbon",))]
    net.pass_time(10 * CONFIRM_NS)
    net.settle()
    assert len(net.confirmed("anna")) == 1, "it is reported once"
    net.go()
    assert net.confirmed("anna")[1:] == [(0, 1, ())]


def test_a_client_that_names_no_time_is_told_after_the_limit_of_its_broker():
    net = subscribed()
    net.stop("faro", "lisbon")
    net.settle()
    net.pass_time(CONFIRM_NS - 1)
    net.settle()
    assert net.confirmed("anna") == []
    net.pass_time(1)
    net.settle()
    assert net.confirmed("anna") == [(0, 1, ("lisbon",))]


def test_a_link_that_begins_from_nothing_confirms_what_was_asked_before():
    net = subscribed()
    net.stop("faro", "lisbon")
    net.settle()
    net.stopped.clear()
    net.begin("lisbon", "faro")
    assert net.confirmed("anna") == [(0, 1, ())]
    publish(net, 1)
    assert net.got("anna") == xs(1)
    net.settle()
    assert_tidy(net)


def test_requests_survive_a_broker_that_is_saved_and_loaded():
    net = subscribed()
    net.stop("faro", "lisbon")
    net.settle()
    for name in ("porto", "lisbon"):
        before = net.brokers[name]
        after = Broker(name, before.neighbours)
        after.load(before.save())
        net.brokers[name] = after
    net.move("anna", "porto")  # her connection did not survive
    net.go()
    assert net.confirmed("anna") == [(0, 1, ())]
    assert net.brokers["faro"].routing.in_subs["lisbon"]


# Clients


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home", "naive"])
@pytest.mark.parametrize("to", ["porto", "lisbon", "faro"])
def test_a_client_that_moves_or_comes_back_before_the_answer_gets_it_there(to, relocation):
    net = subscribed(relocation=relocation)
    net.stop("faro", "lisbon")
    net.settle()
    net.cut("anna")
    net.attach("anna", to)
    net.settle()
    net.go()
    assert net.confirmed("anna") == [(0, 1, ())]
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_a_later_process_is_not_told_what_an_earlier_one_asked():
    """It goes on with the session, and has asked for nothing."""
    net = subscribed()
    net.stop("faro", "lisbon")
    net.settle()
    net.cut("anna")
    earlier, later = net.clients["anna"], Client("anna")
    later.epoch, later.previous = earlier.epoch, earlier.previous
    later.subscribe(Filter.parse("x > 0"))
    later.welcomed = earlier.welcomed
    net.clients["anna"] = later
    net.move("anna", "porto")
    net.go()
    assert not [one for one in net.closed if one.fault]
    assert net.confirmed("anna") == []


def test_an_echo_that_answers_no_probe_is_an_error():
    anna = Client("anna")
    anna.attach("porto", "1")
    anna.step(Received("1", m.Welcome(1, 0)), 0)
    for wrong in (Echo(ads=1), Echo(subs=1), Echo(subs=1, missing=("lisbon",))):
        with pytest.raises(ProtocolError, match="answers no probe"):
            anna.on_echo(wrong, 0)
    anna.probe(subs=True)
    with pytest.raises(ProtocolError):
        anna.on_echo(Echo(ads=1), 0)
    assert anna.on_echo(Echo(subs=1), 0) == [Confirmed(0, 1)]
    assert anna.on_echo(Echo(subs=1), 0) == [], "it is told once"


def test_a_probe_goes_with_an_acknowledgement_that_a_broker_of_an_earlier_release_takes():
    anna = Client("anna")
    anna.attach("porto", "1")
    anna.step(Received("1", m.Welcome(1, 0)), 0)
    assert anna.probe(subs=True, report_ns=3) == [Send("1", m.Ack(0, Probe(0, 1, 3)))]
    assert anna.probe(ads=True) == [Send("1", m.Ack(0, Probe(2, 0)))]
