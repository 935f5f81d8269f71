"""Handoff: who is there, who only looks so, and who leaves. In the tree of roads.py, as test_handoff.py."""

import pytest

from pair import Wire
from roads import assert_tidy, homes, lost, network, publish, session_of, xs
from wayfare.core.broker import Broker
from wayfare.core.client import ACK_DELAY_NS, Client
from wayfare.core.effects import Close, Lost, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.handoff import NO_SESSION, SESSIONS_MAX, digest
from wayfare.core.history import Limits
from wayfare.core.messages import (
    Announce,
    Attach,
    Publish,
    Reply,
    Request,
    Update,
    Welcome,
)
from wayfare.core.relocation import BEGAN_ANEW, OUT_OF_STEP
from wayfare.sim.oracle import check
from wayfare.sim.world import World

ROUTINGS = ("simple", "identity", "covering", "merging")
AWAY_NS = Limits().away_ns


# Who is there, and who only looks so


def test_zombie():
    """The old connection looks alive: what is sent there is sent again, and it is closed."""
    net = network()
    net.attach("anna", "faro")
    publish(net, 1)
    assert Close("anna/1", "anna is elsewhere now") in net.closed
    assert net.got("anna") == xs(1)
    assert homes(net) == [("faro", 2)]
    assert net.brokers["porto"].border.by_link == {}
    assert_tidy(net)


def test_a_zombie_that_waits_is_closed_too():
    net = network()
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "faro")
    assert Close("anna/2", "anna is elsewhere now") in net.closed
    assert session_of(net, "lisbon").link is None
    net.go()
    assert homes(net) == [("faro", 3)]


def test_what_a_zombie_delivered_without_acknowledgement():
    """1 was delivered, 2 went into the dead connection: `delivered` cuts exactly there."""
    net = network()
    publish(net, 1)
    net.stop("porto", "anna")
    publish(net, 2)
    net.attach("anna", "faro")
    net.step("anna", "faro")
    net.step("faro", "lisbon")
    net.step("lisbon", "porto")
    (answer,) = net.on_the_way("porto", "lisbon")
    assert [one.notification.number for one in answer.errands[0].kept] == [2]
    net.settle()
    assert net.got("anna") == xs(1, 2)
    assert net.clients["anna"].delivered == 2


def forgotten():
    """Porto has forgotten anna, who attaches at faro."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.pass_time(AWAY_NS)
    assert homes(net) == []
    net.move("anna", "faro")
    return net


def test_orphan():
    """Nobody knows her: she is told that something is missing, and goes on."""
    net = forgotten()
    assert lost(net) == [Lost(0, NO_SESSION)]
    publish(net, 2)
    assert net.got("anna") == xs(2)
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


def test_an_orphan_that_says_nothing_is_forgotten_with_its_connection():
    net = forgotten()
    assert session_of(net, "faro").orphan
    net.cut("anna")
    assert homes(net) == []


def test_an_orphan_that_speaks_is_a_client():
    net = forgotten()
    net.pass_time(ACK_DELAY_NS)
    net.settle()
    assert not session_of(net, "faro").orphan
    net.cut("anna")
    publish(net, 2)
    net.move("anna", "lisbon")
    assert net.got("anna") == xs(2)
    assert lost(net) == [Lost(0, NO_SESSION)]


def test_a_request_passes_an_orphan():
    """A stale attachment became an orphan at faro; who asks there goes on to porto."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    stale = Attach("anna", 2, 0, (), (), (("braga", 1),), True)
    net._wires["anna", "anna/2"] = Wire("anna", "faro", "anna/2")
    net._wires["faro", "anna/2"] = Wire("faro", "anna", "anna/2")
    net._event("faro", Received("anna/2", stale))
    net.settle()
    assert session_of(net, "faro").orphan
    net.clients["anna"].epoch = 2
    net.clients["anna"].previous = (("faro", 2), ("porto", 1))
    net.move("anna", "lisbon")
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    net.notice("faro", "anna/2")
    assert homes(net) == [("lisbon", 3)]


def test_nobody_waits_for_a_client_that_is_not_there():
    """Forgotten at porto, and gone from faro before the answer: there is nobody to tell."""
    net = network()
    net.cut("anna")
    net.pass_time(AWAY_NS)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.cut("anna")
    net.go()
    assert homes(net) == []


def test_a_client_that_nobody_knows_goes_on_before_the_answer():
    """Forgotten at porto; lisbon asks, faro asks lisbon: told once, and only where she is."""
    net = network()
    net.cut("anna")
    net.pass_time(AWAY_NS)
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "faro")
    net.go()
    assert lost(net) == [Lost(0, NO_SESSION)]
    assert homes(net) == [("faro", 3)]
    publish(net, 1)
    assert net.got("anna") == xs(1)


def test_deliveries_that_were_not_made_from_there():
    """Porto's session knows of no delivery that anna says she got: it starts anew, with a Gap."""
    net = network()
    net.clients["anna"].delivered = 7
    net.move("anna", "faro")
    assert lost(net) == [Lost(0, OUT_OF_STEP)]
    publish(net, 1)
    assert net.got("anna") == xs(1)


def test_two_attachments_at_one_broker_compete():
    """Both reach faro, in either order: the later one has the session."""
    for first, second in ((2, 3), (3, 2)):
        net = network()
        net.cut("anna")
        publish(net, 1)
        net.attach("anna", "faro")
        net.attach("anna", "faro")
        for epoch in (first, second):
            net._arrive(net._wires["anna", f"anna/{epoch}"])
        net.settle()
        assert net.got("anna") == xs(1)
        assert lost(net) == []
        assert homes(net) == [("faro", 3)]
        assert "anna/2" in [one.link for one in net.closed]
        assert_tidy(net)


def test_an_attachment_from_before_a_goodbye_comes_late():
    """She left for good and came back: nothing in her words says that there was another one."""
    net = network()
    net.attach("anna", "faro")
    net.detach("anna", leave=True)
    net.attach("anna", "faro")
    net._arrive(net._wires["anna", "anna/3"])
    net._arrive(net._wires["anna", "anna/2"])
    assert Close("anna/2", BEGAN_ANEW.format("anna")) in net.closed
    assert [epoch for broker, epoch in homes(net) if broker == "faro"] == [3]


def test_who_attaches_again_where_it_waits_goes_on_waiting():
    """However often: there is one session, and one request."""
    net = network()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    for _ in range(300):
        net.move("anna", "faro")
    assert homes(net) == [("faro", 302)]  # porto has handed it over, but nobody knows
    publish(net, 1)
    net.go()
    assert homes(net) == [("faro", 302)]
    assert net.got("anna") == xs(1)
    assert lost(net) == []


def test_only_so_many_sessions_of_a_client():
    faro = Broker("faro")
    effects = []
    for epoch in range(3, SESSIONS_MAX + 10):
        attach = Attach("anna", epoch, 0, (), (), (("nowhere", 1),), True)
        effects += faro.step(Received(f"link{epoch}", attach), 0)
    assert len(faro.border.of("anna")) == SESSIONS_MAX
    assert effects[-1] == Close(
        f"link{SESSIONS_MAX + 9}", "anna attached too often in too short a time", again=True
    )


# Leaving, and brokers that nobody knows


@pytest.mark.parametrize("routing", ROUTINGS)
def test_leaving_while_waiting(routing):
    """The goodbye is remembered until the old session has come, and then it ends, too."""
    net = network(routing=routing)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.detach("anna", leave=True)
    net.settle()
    assert homes(net) == [("faro", 2)]
    net.go()
    assert homes(net) == []
    assert_tidy(net)


def test_going_away_while_waiting():
    """A goodbye, but not for good: the session comes, and keeps."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.detach("anna")
    net.go()
    publish(net, 2)
    net.move("anna", "braga")
    assert net.got("anna") == xs(1, 2)
    assert lost(net) == []


def test_a_publisher_that_leaves_while_waiting_has_said_everything():
    net = network()
    net.stop("braga", "lisbon")
    net.move("tom", "faro")
    net.publish("tom", x=1)
    net.detach("tom", leave=True)
    net.go()
    assert net.got("anna") == xs(1)
    assert homes(net, "tom") == []
    assert_tidy(net)


def test_a_request_to_a_broker_that_nobody_knows_yet():
    """It waits until the broker is announced."""
    faro = Broker("faro", ["lisbon"])
    wanted = Filter.parse("x > 0")
    attach = Attach("anna", 2, 0, (wanted,), (), (("porto", 1),), True)
    assert faro.step(Received("anna/2", attach), 0) == [Send("anna/2", Welcome(2, 0))]
    asked = digest([wanted])
    request = Request("faro", "anna", 2, 0, (("porto", 1),), asked, welcomed=True)
    assert faro.step(Received("lisbon", Announce(("lisbon",))), 1) == []
    assert faro.step(Received("lisbon", Announce(("porto",))), 2) == [
        Send("lisbon", Update(errands=(request,)))
    ]
    assert faro.step(Received("lisbon", Announce(("braga",))), 3) == []


def test_a_reply_to_a_session_that_is_open_already_changes_nothing():
    """NONE came too late: the client was told when nobody waited any more."""
    faro = Broker("faro", ["lisbon"])
    faro.step(Received("lisbon", Announce(("lisbon", "porto"))), 0)
    faro.step(Received("anna/1", Attach("anna", 1, 0)), 0)
    nobody = Reply("faro", "anna", 1, False)
    assert faro.step(Received("lisbon", Update(errands=(nobody,))), 1) == []


def test_a_publication_is_answered_even_when_it_was_accepted_before():
    """A reply says how far the old broker accepted; the client hears of it at once."""
    net = network()
    net.stop("braga", "tom")
    publish(net, 1)
    net.cut("tom")
    net.attach("tom", "faro")
    assert net.on_the_way("tom", "faro")[1:] == [Publish(1, {"x": 1})]
    net.settle()
    assert not net.clients["tom"].outbox


# Who has forgotten its last attachments


def with_old_memory(net, memory, held):
    """Anna, as she was then: she does not know where she attached since, but is later than that."""
    forgetful = Client("anna")
    forgetful.remember(memory, held, (), {})
    forgetful.epoch = net.clients["anna"].epoch + 10
    forgetful.delivered = net.clients["anna"].delivered
    if net.clients["anna"].link is not None:
        net.cut("anna")
    net.clients["anna"] = forgetful


@pytest.mark.parametrize("there", ["porto", "faro"])
def test_a_session_is_found_that_was_renewed_since(there):
    net = network()
    old = net.clients["anna"].memory(), net.clients["anna"].held()
    net.cut("anna")
    net.move("anna", "porto")
    with_old_memory(net, *old)
    publish(net, 1)
    net.move("anna", there)
    publish(net, 2)
    assert net.got("anna") == xs(1, 2)
    assert lost(net) == []
    assert homes(net) == [(there, 13)]
    assert_tidy(net)


@pytest.mark.parametrize("there", ["porto", "lisbon", "faro", "braga"])
def test_a_session_is_found_that_went_on_twice(there):
    net = network()
    old = net.clients["anna"].memory(), net.clients["anna"].held()
    net.move("anna", "faro")
    net.move("anna", "lisbon")
    with_old_memory(net, *old)
    publish(net, 1)
    net.move("anna", there)
    publish(net, 2)
    assert net.got("anna") == xs(1, 2)
    assert lost(net) == []
    assert [broker for broker, _ in homes(net)] == [there]
    assert_tidy(net)


@pytest.mark.parametrize("there", ["porto", "lisbon", "faro", "braga"])
@pytest.mark.parametrize("is_there", [True, False], ids=["taken over", "asked for"])
def test_who_was_not_greeted_finds_its_session_wherever_it_is(there, is_there):
    """Anna attaches at faro, and her connection breaks before she knows that it is faro."""
    world = World(seed=1)
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro"), ("lisbon", "braga")])
    tom, anna = (
        world.add_client(name, place) for name, place in (("tom", "braga"), ("anna", "porto"))
    )
    tom.advertise("exists x")
    anna.subscribe("x > 0")
    world.settle()
    tom.publish({"x": 1})
    world.settle()
    anna.attach("faro")
    world.run_until(world.now + (anna.link.latency_ns if is_there else 0) + 1)
    anna.disconnect(late=not is_there)
    if is_there:
        world.settle()
    assert anna.core.previous == (("porto", 1),)
    tom.publish({"x": 2})
    anna.attach(there)
    tom.publish({"x": 3})
    world.settle()
    assert [one.notification.attributes["x"] for one in anna.received] == [1, 2, 3]
    assert [event for event in world.events if event.kind == "lost"] == []
    assert not list(check(world).violations)


def test_nobody_gets_the_session_of_a_later_life():
    net = network()
    old = net.clients["anna"].memory(), net.clients["anna"].held()
    net.move("anna", "faro")
    net.detach("anna", leave=True)
    net.settle()
    net.move("anna", "porto")
    net.move("anna", "lisbon")
    with_old_memory(net, *old)
    publish(net, 1)
    net.move("anna", "braga")
    assert net.got("anna") == []
    assert lost(net) == [Lost(0, NO_SESSION)]
