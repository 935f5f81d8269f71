"""A gap is delivered where something is missing: behind what came before the loss, before what comes later.

In the tree of roads.py: tom publishes at braga, anna starts at porto.
"""

import msgspec
import pytest

from roads import assert_tidy, network, publish, session_of
from wayfare.core.broker import Broker
from wayfare.core.effects import Lost, Notify, Received
from wayfare.core.handoff import NO_ANSWER
from wayfare.core.history import Limits
from wayfare.core.messages import Gap, Kept, Loss, Notification, Reply, Update
from wayfare.core.saving import Saved

BROKEN = "the link was broken"


def lose(net, broker, neighbour="lisbon"):
    """Something that was to come from there is lost."""
    net._event(broker, Received(neighbour, Gap(1, BROKEN)))
    net.settle()


def story(net, name="anna"):
    """What the client was told, in order: values, and reasons of losses."""
    return [
        one.notification.attributes["x"] if isinstance(one, Notify) else one.reason
        for one in net.told[name]
        if isinstance(one, Notify | Lost)
    ]


def waiting(**more):
    """Anna is at faro; porto has handed her session over, but its reply is stuck. 2 is held."""
    net = network(**more)
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    publish(net, 2)
    return net


@pytest.mark.parametrize("relocation", ["handoff", "junction"])
def test_a_loss_while_a_session_waits_is_behind_what_it_holds(relocation):
    net = waiting(relocation=relocation)
    lose(net, "faro")
    publish(net, 3)
    assert story(net) == []
    net.go()
    assert story(net) == [1, 2, BROKEN, 3]
    publish(net, 4)
    assert story(net) == [1, 2, BROKEN, 3, 4]
    assert_tidy(net)


def test_two_losses_while_a_session_waits_have_two_places():
    net = waiting()
    lose(net, "faro")
    publish(net, 3)
    lose(net, "faro")
    lose(net, "faro")
    net.go()
    assert story(net) == [1, 2, BROKEN, 3, BROKEN]


def test_what_the_old_broker_did_not_send_is_missing_before_what_is_held():
    net = waiting(limits=Limits(answer_ns=1000))
    lose(net, "faro")
    publish(net, 3)
    net.pass_time(1000)
    net.settle()
    assert story(net) == [NO_ANSWER, 2, BROKEN, 3]


def away():
    """Anna is away from porto, which has 1 and 2 for her, and misses something between them."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    lose(net, "porto")
    publish(net, 2)
    return net


@pytest.mark.parametrize("broker", ["porto", "lisbon", "faro"])
def test_a_loss_while_a_client_is_away_keeps_its_place(broker):
    net = away()
    net.move("anna", broker)
    assert story(net) == [1, BROKEN, 2]
    assert_tidy(net)


def test_a_loss_keeps_its_place_in_a_session_that_moves_on_and_on():
    net = away()
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "faro")
    net.go()
    assert story(net) == [1, BROKEN, 2]


def test_a_loss_keeps_its_place_in_a_reply_that_comes_too_late():
    """Its reason is that the reply came late: it may be missing anywhere since the time-out."""
    net = away()
    for core in net.brokers.values():
        core.border.limits = Limits(answer_ns=1000)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.pass_time(1000)
    net.settle()
    net.go()
    assert story(net) == [NO_ANSWER, 1, NO_ANSWER, 2]


def test_of_a_broker_that_does_not_know_places_the_loss_comes_first():
    net = network()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.brokers["porto"].paths.take_mail()
    net._wires["porto", "lisbon"].frames.clear()
    note = Notification("tom", 1, {"x": 1}, b"")
    reply = Reply("faro", "anna", 2, True, (Kept(note, 0),), 3, BROKEN, old_epoch=1)
    net._event("faro", Received("lisbon", Update(errands=(reply,))))
    net.settle()
    assert [one for one in net.told["anna"] if isinstance(one, Lost)] == [Lost(3, BROKEN)]
    assert story(net) == [BROKEN, 1]


def again(core):
    new = Broker(core.name, core.neighbours)
    new.load(core.save())
    return new


def test_losses_of_a_session_that_waits_are_saved_in_their_places():
    net = waiting()
    lose(net, "faro")
    publish(net, 3)
    core = net.brokers["faro"]
    net.brokers["faro"] = again(core)
    held = session_of(net, "faro").wait.held
    assert [type(one).__name__ for one, _ in held] == ["Stored", "Loss", "Stored"]
    net.go()
    assert story(net) == [1, 2, BROKEN, 3]


def test_losses_of_a_backlog_are_saved_in_their_places():
    net = away()
    net.brokers["porto"] = again(net.brokers["porto"])
    net.move("anna", "faro")
    assert story(net) == [1, BROKEN, 2]


def test_that_drops_are_not_counted_after_a_time_out_is_saved():
    net = waiting(limits=Limits(answer_ns=1000))
    assert not session_of(net, "faro").backlog.may_repeat
    net.pass_time(1000)
    net.settle()
    (session,) = again(net.brokers["faro"]).border.of("anna")
    assert session.backlog.may_repeat


def test_of_an_older_store_every_gap_of_a_backlog_is_inexact():
    """It has one flag for all losses, and no places of those that are held."""
    net = away()
    porto = net.brokers["porto"]
    saved = msgspec.msgpack.decode(porto.save())
    at = Saved.__struct_fields__.index("sessions")
    (session,) = saved[at]
    (backlog,) = [one for one in session if isinstance(one, list) and one[3:5] == ["", False]]
    assert backlog[7] == [[2, 2, BROKEN, False]]
    del backlog[7:]
    backlog[3] = "older"
    new = Broker(porto.name, porto.neighbours)
    new.load(msgspec.msgpack.encode(saved))
    net.brokers["porto"] = new
    net.move("anna", "faro")
    assert story(net) == [1, "older", 2]
    assert [one for one in net.told["anna"] if isinstance(one, Lost)] == [Lost(0, "older")]


def test_losses_cross_the_wire():
    net = away()
    net.stop("lisbon", "faro")
    net.move("anna", "faro")
    (update,) = [one for one in net.on_the_way("lisbon", "faro") if isinstance(one, Update)]
    (reply,) = update.errands
    assert reply.losses == (Loss(1, 1, BROKEN, False),)
    assert (reply.lost, reply.why, reply.exact) == (1, BROKEN, False)  # for older brokers
