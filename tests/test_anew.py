"""Clients that begin anew: another process of a name, anywhere, that remembers nothing.

Most play in the tree of roads.py. Anna's first process is at porto, tom publishes at braga.
"""

import pytest

from pair import Network
from roads import assert_tidy, homes, lost, network, publish, xs
from wayfare.core import codec
from wayfare.core.broker import Broker
from wayfare.core.client import Client
from wayfare.core.effects import Close, LinkUp, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import ANNOUNCE_MAX, Announce, Attach, Began, Publish, Welcome
from wayfare.core.relocation import BEGAN_ANEW

REFUSED = BEGAN_ANEW.format("anna")
LATER = 1_000  # what a clock says when the second process begins


def begin_anew(net, broker, *, epoch=LATER, subscribed="x > 0"):
    """Another process of anna's is on its way to this broker; returns the one before."""
    old, new = net.clients["anna"], Client("anna")
    new.epoch = new.published = epoch
    new.subscribe(Filter.parse(subscribed))
    net.clients["anna"] = new
    net.attach("anna", broker)
    return old


def say(net, link, message):
    """What the earlier process says on its connection, if it still has one."""
    net._wires["anna", link].put(codec.encode(message))


def announced(net):
    """Let everything arrive; which links were told that somebody began anew, in order."""
    told = []
    while wires := net.moving():
        wire = wires[0]
        message = codec.decode(wire.frames[0][4:]) if wire.frames[0] else None
        if isinstance(message, Announce) and message.begun:
            told.append((wire.sender, wire.receiver))
        net._arrive(wire)
    return told


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home", "naive"])
def test_the_session_of_an_earlier_process_ends_wherever_it_is(relocation):
    net = network(relocation=relocation)
    begin_anew(net, "faro")
    net.settle()
    assert homes(net) == [("faro", LATER + 1)]
    assert net.closed == [Close("anna/1", REFUSED)]
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_so_does_the_one_at_the_same_broker():
    net = network()
    begin_anew(net, "porto")
    net.settle()
    assert homes(net) == [("porto", LATER + 1)]
    assert net.closed == [Close("anna/1", REFUSED)]
    assert_tidy(net)


def test_every_link_carries_it_once():
    net = network()
    begin_anew(net, "faro")
    assert sorted(announced(net)) == [("faro", "lisbon"), ("lisbon", "braga"), ("lisbon", "porto")]


def test_nobody_is_told_of_moves_of_first_processes_and_of_goodbyes():
    net = network()
    for step in (
        lambda: net.attach("anna", "faro"),  # welcomed before
        lambda: net.attach("carl", "faro"),  # epoch 1: nobody had the name before
        lambda: net.attach("carl", "braga"),  # the same, and not welcomed yet
        lambda: net.detach("anna", leave=True),
    ):
        step()
        assert announced(net) == []


def test_nobody_is_told_of_moves_of_later_processes():
    net = network()
    begin_anew(net, "faro")
    net.settle()
    for broker in ("braga", "porto", "faro"):
        net.attach("anna", broker)
        assert announced(net) == []


def test_a_client_with_a_store_goes_on_and_does_not_begin_anew():
    net = network()
    old = net.clients["anna"]
    publish(net, 1)
    new = net.clients["anna"] = Client("anna")
    new.remember(old.memory(), old.held(), old.outbox, {})
    net.attach("anna", "faro")
    assert announced(net) == []
    assert homes(net) == [("faro", 2)]


def test_nothing_that_the_earlier_process_says_is_delivered_any_more():
    net = network()
    net.clients["anna"].advertise(Filter.parse("y > 0"))
    net.move("anna", "porto")
    net.subscribe("tom", "y > 0")
    net.settle()
    say(net, "anna/2", Publish(1, {"y": 1}))
    net.settle()
    assert net.got("tom") == [{"y": 1}]
    begin_anew(net, "faro")
    net.settle()
    say(net, "anna/2", Publish(2, {"y": 2}))
    net.settle()
    assert net.got("tom") == [{"y": 1}]
    assert net.brokers["porto"].border.by_link == {}


def test_an_attachment_of_the_earlier_process_that_comes_late_is_refused_anywhere():
    net = network()
    net.attach("anna", "braga")
    late = net._wires["anna", "anna/2"]
    net.stop("anna", "braga")
    begin_anew(net, "faro")
    net.settle()
    net._arrive(late)
    net.go()
    assert Close("anna/2", REFUSED) in net.closed
    assert homes(net) == [("faro", LATER + 1)]
    assert_tidy(net)


def test_a_session_that_waits_for_its_old_broker_ends_as_well():
    net = network()
    net.stop("lisbon", "porto")
    net.move("anna", "braga")  # which asks porto, in vain for now
    begin_anew(net, "faro")
    net.settle()
    assert homes(net) == [("porto", 1), ("faro", LATER + 1)]
    net.go()
    assert homes(net) == [("faro", LATER + 1)]
    assert lost(net) == []
    assert_tidy(net)


def test_it_says_so_until_it_is_welcomed():
    """Nobody has heard its first attachment."""
    net = network()
    begin_anew(net, "braga")
    net._wires["anna", f"anna/{LATER + 1}"].cut()
    net.attach("anna", "faro")
    net.settle()
    assert homes(net) == [("faro", LATER + 2)]
    assert Close("anna/1", REFUSED) in net.closed
    assert_tidy(net)


def test_its_own_attachments_survive_that_and_nobody_is_told_twice():
    net = network()
    begin_anew(net, "braga")
    net.stop("braga", "anna")  # the welcome
    net.settle()
    net.attach("anna", "faro")
    assert announced(net) == []
    net.go()
    assert homes(net) == [("faro", LATER + 2)]
    publish(net, 1)
    assert net.got("anna") == xs(1)


def test_a_broker_that_hears_it_late_keeps_the_later_session():
    """It has forgotten that it knew, and a neighbour tells it again."""
    net = network()
    begin_anew(net, "faro")
    net.settle()
    faro = net.brokers["faro"]
    faro.border.tombstones.clear()
    net._event("faro", Received("lisbon", Announce((), (Began("anna", LATER + 1),))))
    net.settle()
    assert list(faro.border.tombstones) == ["anna"]
    assert homes(net) == [("faro", LATER + 1)]


def test_nobody_begins_after_its_own_attachment():
    """Whatever a client says of where it was before."""
    here = Broker("porto")
    here.step(Received("first", Attach("anna", 5, 0, previous=(("faro", 9),))), 0)
    effects = here.step(Received("again", Attach("anna", 6, 0, previous=(("porto", 5),))), 0)
    assert Send("again", Welcome(6, 0)) in effects


def test_at_home_a_session_of_the_earlier_process_is_not_taken_for_its_own():
    net = network(relocation="home")
    publish(net, 1)
    begin_anew(net, "porto", subscribed="x > 5")
    net._wires["anna", f"anna/{LATER + 1}"].cut()
    net.attach("anna", "porto")
    net.settle()
    (session,) = net.brokers["porto"].border.of("anna")
    assert session.opened == LATER + 2


def test_who_visits_another_broker_is_told_through_the_tunnel():
    net = network(relocation="home")
    net.move("anna", "faro")
    begin_anew(net, "braga")
    net.settle()
    assert Close("anna/2", REFUSED) in net.closed
    assert homes(net) == [("braga", LATER + 1)]


def test_what_it_published_before_its_goodbye_is_published():
    """It left while its session waited: that one publishes what it holds, and ends by itself."""
    net = network()
    net.subscribe("tom", "y > 0")
    net.advertise("anna", "y > 0")
    net.settle()
    net.stop("lisbon", "porto")
    net.move("anna", "faro")
    net.publish("anna", y=1)
    net.detach("anna", leave=True)
    net.settle()
    net.attach("anna", "faro")
    net.go()
    assert net.got("tom") == [{"y": 1}]
    assert homes(net) == [("faro", 3)]
    assert_tidy(net)


def test_a_goodbye_that_was_lost_is_made_up_for_when_the_client_comes_back_elsewhere():
    net = network()
    net.stop("anna", "porto")
    net.detach("anna", leave=True)
    net._wires["anna", "anna/1"].cut()
    net.attach("anna", "faro")
    net.go()
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


# Brokers that forget, and that remember


def restart(net, broker, neighbours):
    """A broker loses its memory, and what was on its way to it and from it."""
    net.brokers[broker] = Broker(broker, neighbours)
    for other in neighbours:
        for ends in ((broker, other), (other, broker)):
            net._wires[ends].frames.clear()
    for other in neighbours:
        net._event(other, LinkUp(broker))
        net._event(broker, LinkUp(other))


def test_a_broker_that_lost_its_memory_on_the_way_is_told_again():
    net = network()
    net.stop("faro", "lisbon")
    begin_anew(net, "faro")
    net.settle()
    restart(net, "lisbon", ["porto", "faro", "braga"])
    net.go()
    assert homes(net) == [("faro", LATER + 1)]
    assert Close("anna/1", REFUSED) in net.closed


def test_so_is_the_one_that_had_the_earlier_process():
    net = network()
    old = begin_anew(net, "faro")
    net.stop("lisbon", "porto")
    net.settle()
    restart(net, "porto", ["lisbon"])
    net.go()
    attach = next(one.message for one in old.attach("porto", "again") if isinstance(one, Send))
    assert attach.previous
    assert net.brokers["porto"].step(Received("again", attach), 0) == [Close("again", REFUSED)]


def test_a_broker_that_was_saved_remembers_it():
    before = Broker("porto", ["lisbon"])
    before.step(Received("lisbon", Announce((), (Began("anna", 7),))), 0)
    after = Broker("porto", ["lisbon"])
    after.load(before.save())
    assert after.step(Received("late", Attach("anna", 6, 0)), 1) == [Close("late", REFUSED)]
    assert Send("lisbon", Announce((), (Began("anna", 7),))) in after.step(LinkUp("lisbon"), 1)


def test_a_new_link_is_told_of_all_in_several_messages_if_they_are_many():
    here = Broker("porto", ["lisbon"])
    names = [f"c{number}" for number in range(ANNOUNCE_MAX + 1)]
    for name in names:
        here.step(Received("x" + name, Attach(name, 7, 0)), 0)
    sent = [one.message for one in here.step(LinkUp("lisbon"), 0)]
    told = [one.begun for one in sent if isinstance(one, Announce) and one.begun]
    assert [len(one) for one in told] == [ANNOUNCE_MAX, 1]
    assert [one.client for part in told for one in part] == names


def test_it_is_remembered_as_long_as_an_attachment_may_be_under_way():
    here = Broker("porto", ["lisbon"])
    here.step(Received("lisbon", Announce((), (Began("anna", 7),))), 0)
    net = Network("porto")
    net.brokers["porto"] = here
    net.pass_time(Limits().tombstone_ns)
    assert here.border.tombstones == {}
    assert here.step(LinkUp("lisbon"), net.now) == [Send("lisbon", Announce(("porto",)))]


# What waited


@pytest.mark.parametrize("broker", ["porto", "faro"])
def test_who_begins_anew_is_owed_nothing_and_told_of_no_loss(broker):
    """What waits is for the subscriptions of a process that is gone; this one asked for nothing yet."""
    net = network()
    net.cut("anna")
    publish(net, 1, 2)
    begin_anew(net, broker)
    net.settle()
    publish(net, 3)
    assert net.got("anna") == xs(3)
    assert lost(net) == []
    assert net.clients["anna"].delivered == 1
