"""Handoff, rule by rule: every test here failed once, with its rule taken out of the code.

Most play in the tree of roads.py, message by message. Tom publishes at braga, anna starts at porto.
"""

from random import Random

import pytest

from pair import Wire
from roads import TREE, Roads, assert_tidy, homes, lost, network, publish, session_of, xs
from wayfare.core import handoff
from wayfare.core.broker import Broker
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.effects import Close, Lost, Notify, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.handoff import NO_ANSWER, NO_SESSION, SESSIONS_MAX, digest
from wayfare.core.history import SECOND_NS, Limits
from wayfare.core.messages import (
    REPLY_BYTES_MAX,
    UPDATE_MAX,
    Announce,
    Attach,
    Deliver,
    Entry,
    Gap,
    Notification,
    Publish,
    Published,
    Reply,
    Request,
    Update,
    Welcome,
)
from wayfare.sim import World, check, topology
from wayfare.sim.links import MS_NS
from wayfare.sim.oracle import check_outlived

ROUTINGS = ("simple", "identity", "covering", "merging")
SEEDS = range(10)
ANSWER_NS = Limits().answer_ns
AWAY_NS = Limits().away_ns


# One move


def test_a_move_is_one_round_trip():
    net = network()
    net.cut("anna")
    publish(net, 1, 2)
    entry = Entry(Filter.parse("x > 0"))
    asked = digest([Filter.parse("x > 0")])
    net.attach("anna", "faro")
    net.step("anna", "faro")
    request = Request("faro", "anna", 2, 0, (("porto", 1),), asked)
    assert net.on_the_way("faro", "anna") == [Welcome(2, 0)]
    assert net.on_the_way("faro", "lisbon") == [Update(add_subs=(entry,), errands=(request,))]
    net.step("faro", "lisbon")
    assert net.on_the_way("lisbon", "porto") == [Update(errands=(request,))]
    assert net.on_the_way("lisbon", "braga") == []
    net.step("lisbon", "porto")
    (answer,) = net.on_the_way("porto", "lisbon")
    assert answer.remove_subs == (entry,)
    (reply,) = answer.errands
    assert [one.notification.number for one in reply.kept] == [1, 2]
    assert (reply.found, reply.marks, reply.lost, reply.subscriptions) == (
        True,
        {"tom": 2},
        0,
        None,
    )
    net.step("porto", "lisbon")
    assert net.on_the_way("lisbon", "faro") == [Update(errands=(reply,))]
    net.step("lisbon", "faro")
    assert net.on_the_way("faro", "lisbon") == net.on_the_way("lisbon", "braga") == []
    net.settle()
    assert net.got("anna") == xs(1, 2)
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ["flooding", *ROUTINGS])
def test_nothing_is_lost_whenever_it_is_published(routing, seed):
    net = network(routing=routing)
    said = []

    def say():
        said.append(len(said) + 1)
        net.publish("tom", x=said[-1])

    for broker in ("faro", "braga", "porto", "lisbon"):
        net.attach("anna", broker)
        net.crawl(seed, say)
    assert net.got("anna") == xs(*said)
    assert lost(net) == []
    assert homes(net) == [("lisbon", 5)]
    assert net.clients["anna"].delivered == len(said)
    assert_tidy(net)


# What breaks without each rule


def test_late_copy_after_ack():
    """1 is delivered and acknowledged at porto; its copy for bert reaches faro behind anna."""
    net = network()
    net.subscribe("bert", "x > 0")
    net.move("bert", "faro")
    net.stop("lisbon", "faro")
    publish(net, 1)
    net.pass_time(ACK_DELAY_NS)
    net.settle()
    assert session_of(net, "porto").backlog.acked == 1
    net.move("anna", "faro")
    net.go()
    assert net.got("bert") == net.got("anna") == xs(1)
    # The client would drop a copy, too; but a broker has to know by itself.
    assert net.clients["anna"].delivered == 1
    assert_tidy(net)


def test_late_copy_after_ack_and_another_move():
    """The marks move with the session: braga, in between, never saw 1."""
    net = network(at="lisbon")
    net.subscribe("bert", "x > 0")
    net.move("bert", "faro")
    net.stop("lisbon", "faro")
    publish(net, 1)
    net.pass_time(ACK_DELAY_NS)
    net.move("anna", "braga")
    net.move("anna", "faro")
    net.go()
    assert net.got("anna") == xs(1)
    assert net.clients["anna"].delivered == 1


def test_stale_attach_steals():
    """Anna is at braga (4) and has asked lisbon (2), which waits. Her old words (3) reach faro last."""
    net = network(limits=Limits(tombstone_ns=1))
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.stop("anna", "faro")
    net.move("anna", "faro")
    net.move("anna", "braga")
    assert session_of(net, "lisbon").wait.pending.epoch == 4
    net.pass_time(2)  # faro has forgotten that epoch 4 asked there
    net.stopped.remove(("anna", "faro"))
    net.settle()
    assert session_of(net, "faro").orphan
    net.go()
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    net.notice("faro", "anna/3")
    assert homes(net) == [("braga", 4)]
    assert_tidy(net)


def test_of_two_requests_the_later_one_stays():
    """Faro (3) and braga (4) ask lisbon, which waits, in either order: faro gets nothing."""
    for epochs in ((3, 4), (4, 3)):
        lisbon = Broker("lisbon", ["porto", "faro", "braga"])
        for name in lisbon.neighbours:
            lisbon.step(Received(name, Announce((name,))), 0)
        attach = Attach("anna", 2, 0, (), (), (("porto", 1),), True)
        lisbon.step(Received("anna/2", attach), 0)
        asked = {
            epoch: Request(broker, "anna", epoch, 0, (("lisbon", 2),), digest(()))
            for epoch, broker in ((3, "faro"), (4, "braga"))
        }
        nobody = Update(errands=(Reply("faro", "anna", 3, False),))
        first, second = (asked[epoch] for epoch in epochs)
        closed = Close("anna/2", "anna is elsewhere now")
        assert lisbon.step(Received("faro", Update(errands=(first,))), 1) == [closed]
        assert lisbon.step(Received("faro", Update(errands=(second,))), 2) == [Send("faro", nobody)]
        reply = Reply("lisbon", "anna", 2, True)
        (handed_over,) = lisbon.step(Received("porto", Update(errands=(reply,))), 3)
        assert handed_over.link == "braga"


def test_attach_lost():
    """Anna's words to lisbon never arrive: faro has to ask there, and then porto."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.attach("anna", "lisbon")
    net.cut("anna")
    net.move("anna", "faro")
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    assert homes(net) == [("faro", 3)]
    assert_tidy(net)


def test_welcome_lost():
    """Lisbon has her session, but she does not know."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.stop("lisbon", "anna")
    net.move("anna", "lisbon")
    net.cut("anna")
    assert net.clients["anna"].previous == (("lisbon", 2), ("porto", 1))
    net.move("anna", "faro")
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    assert_tidy(net)


def test_first_attach_lost():
    """Nobody has a session because she never had one: nothing is missing."""
    net = Roads(*TREE)
    net.subscribe("anna", "x > 0")
    net.attach("anna", "porto")
    net.cut("anna")
    net.move("anna", "faro")
    assert homes(net) == [("faro", 2)]
    assert not session_of(net, "faro").orphan
    assert net.told["anna"] == []
    net.advertise("tom", "exists x")
    net.move("tom", "braga")
    publish(net, 1)
    assert net.got("anna") == xs(1)


def test_late_attach_ghost():
    """Her words to lisbon arrive when she is at faro: lisbon must not open a session for them."""
    net = network()
    net.stop("anna", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "faro")
    assert homes(net) == [("faro", 3)]
    net.go()
    assert homes(net) == [("faro", 3)]
    assert Close("anna/2", "a later attachment of anna is or was here") in net.closed
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_filter_changed_in_place(routing, seed):
    """Away, she wants something else. What goes at porto is not what came at faro."""
    net = network(routing=routing)
    net.cut("anna")
    net.unsubscribe("anna", "x > 0")
    net.subscribe("anna", "x > 10")
    said = []

    def say():
        said.append(11 + len(said))
        net.publish("tom", x=said[-1])

    net.attach("anna", "faro")
    net.step("anna", "faro")
    net.settle()
    net.crawl(seed, say)
    publish(net, 5, 50)
    assert net.got("anna") == xs(*said, 50)
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_filter_changed_in_place_at_the_same_broker(routing):
    net = network(routing=routing)
    net.cut("anna")
    net.unsubscribe("anna", "x > 0")
    net.subscribe("anna", "x > 10")
    net.move("anna", "porto")
    publish(net, 5, 50)
    assert net.got("anna") == xs(50)
    assert_tidy(net)


@pytest.mark.parametrize("routing", ["simple", "identity", "covering"])
@pytest.mark.parametrize("neighbour", ["porto", "lisbon", "faro", "braga"])
def test_equal_filters_churn(routing, neighbour):
    """Somebody has the same filter: a move is no news off the path."""
    net = network(*TREE, "braga-evora", at="evora", routing=routing)
    net.subscribe("bert", "x > 0")
    net.move("bert", neighbour)
    for broker in ("faro", "lisbon", "porto"):
        net.stop("lisbon", "braga")
        net.move("anna", broker)
        assert net.on_the_way("lisbon", "braga") == []
        net.go()
    publish(net, 1)
    assert net.got("anna") == net.got("bert") == xs(1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_covered_advertiser(routing, seed):
    """Ina's narrow advertisement at faro gives way to tom's wide one, which comes. She is heard."""
    net = network(at="porto", routing=routing)
    net.subscribe("bert", "exists x")
    net.move("bert", "braga")
    net.advertise("ina", "x > 5")
    net.move("ina", "faro")
    said = []

    def say():
        said.append(6 + len(said))
        net.publish("ina", x=said[-1])

    net.attach("tom", "faro")
    net.crawl(seed, say)
    assert net.got("bert") == net.got("anna") == xs(*said)
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_publications_not_held(routing, seed):
    """Tom talks as soon as he is there; the way to his subscribers is not made yet."""
    net = network(routing=routing)
    net.subscribe("bert", "x > 0")
    net.move("bert", "braga")
    said = []

    def say():
        said.append(len(said) + 1)
        net.publish("tom", x=said[-1])

    for broker in ("faro", "porto", "lisbon", "braga"):
        net.attach("tom", broker)
        net.crawl(seed, say)
    assert net.got("anna") == net.got("bert") == xs(*said)
    assert not net.clients["tom"].outbox
    assert_tidy(net)


def test_publications_are_accepted_when_the_reply_is_there():
    net = network()
    net.stop("braga", "lisbon")
    net.move("tom", "faro")
    net.publish("tom", x=1)
    net.step("tom", "faro")
    assert net.on_the_way("faro", "tom") == net.on_the_way("faro", "lisbon") == []
    net.stopped.clear()
    net.step("braga", "lisbon")
    net.step("lisbon", "faro")
    assert net.on_the_way("faro", "tom") == [Published(1)]
    assert net.on_the_way("faro", "lisbon") == [Notification("tom", 1, {"x": 1})]


def test_subs_behind_reply():
    """Bert is where tom was: his subscription reaches faro only with the reply, and in front of it."""
    net = network()
    net.subscribe("bert", "x > 3")
    net.unsubscribe("anna", "x > 0")
    net.move("bert", "braga")
    net.attach("tom", "faro")
    net.publish("tom", x=4)
    net.settle()
    assert net.got("bert") == xs(4)


def test_what_was_accepted_is_not_accepted_again():
    """Braga took 1, but tom does not know, and says it again at faro: it is dropped there."""
    net = network()
    net.stop("braga", "tom")
    publish(net, 1)
    net.cut("tom")
    net.stop("lisbon", "faro")
    net.move("tom", "faro")
    publish(net, 2)
    net.stopped.clear()
    net.stop("faro", "lisbon")
    net.settle()
    assert net.on_the_way("faro", "lisbon") == [Notification("tom", 2, {"x": 2})]
    net.go()
    assert net.got("anna") == xs(1, 2)
    assert not net.clients["tom"].outbox


def test_a_publisher_moves_on_before_the_reply():
    """Lisbon holds 1, faro holds 1 and 2: each is accepted once, in order."""
    net = network()
    net.stop("braga", "lisbon")
    net.move("tom", "lisbon")
    publish(net, 1)
    net.move("tom", "faro")
    publish(net, 2)
    assert len(session_of(net, "lisbon", "tom").wait.publications) == 1
    assert len(session_of(net, "faro", "tom").wait.publications) == 2
    net.go()
    assert net.got("anna") == xs(1, 2)
    assert net.clients["anna"].delivered == 2
    assert not net.clients["tom"].outbox
    assert_tidy(net)


def test_move_on_before_reply():
    """Faro asks lisbon, which still waits for porto: the request waits there, too."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    publish(net, 2)
    net.move("anna", "faro")
    publish(net, 3)
    assert net.got("anna") == []
    assert homes(net) == [("lisbon", 2), ("faro", 3)]
    net.go()
    assert net.got("anna") == xs(1, 2, 3)
    assert lost(net) == []
    assert net.clients["anna"].delivered == 3
    assert homes(net) == [("faro", 3)]
    assert_tidy(net)


@pytest.mark.parametrize("held", [("porto", "lisbon"), ("lisbon", "porto"), ("faro", "lisbon")])
@pytest.mark.parametrize("welcome", [True, False])
def test_there_and_back(held, welcome):
    """Porto, faro, porto, before the first answer came, wherever that is on its way."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.stop(*held)
    if not welcome:
        net.stop("faro", "anna")
    net.move("anna", "faro")
    publish(net, 2)
    net.move("anna", "porto")
    publish(net, 3)
    net.go()
    publish(net, 4)
    assert net.got("anna") == xs(1, 2, 3, 4)
    assert lost(net) == []
    assert net.clients["anna"].delivered == 4
    assert homes(net) == [("porto", 3)]
    assert_tidy(net)


def test_there_and_back_after_the_reply():
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.move("anna", "faro")
    publish(net, 2)
    net.cut("anna")
    publish(net, 3)
    net.move("anna", "porto")
    publish(net, 4)
    assert net.got("anna") == xs(1, 2, 3, 4)
    assert lost(net) == []
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
def test_remove_before_add(seed):
    """Anna's filter covers all of bert's, more than one update carries: they go first, hers last."""
    net = network()
    for x in range(1, UPDATE_MAX + 50):
        net.subscribe("bert", f"x = {x}")
    net.move("bert", "porto")
    said = []

    def say():
        said.append(len(said) % (UPDATE_MAX + 49) + 1)
        net.publish("tom", x=said[-1])

    net.attach("anna", "faro")
    net.crawl(seed, say)
    assert net.got("bert") == net.got("anna") == xs(*said)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_break_on_the_way_out(routing, seed):
    """Bert's narrow filter hides behind anna's wide one. She goes; he misses nothing."""
    net = network(routing=routing)
    net.subscribe("bert", "x > 5")
    net.move("bert", "porto")
    said = []

    def say():
        said.append(6 + len(said))
        net.publish("tom", x=said[-1])

    for broker in ("faro", "porto", "lisbon"):
        net.attach("anna", broker)
        net.crawl(seed, say)
    assert net.got("bert") == net.got("anna") == xs(*said)
    assert_tidy(net)


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
    assert lost(net) == [Lost(0, NO_SESSION)]
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
    assert Close("anna/2", "a later attachment of anna is or was here") in net.closed
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


def test_a_late_reply_finds_a_session_that_was_renewed():
    """Nobody waited for it any more, and she has attached once more since."""
    net = timed_out()
    net.move("anna", "faro")
    net.go()
    assert {one["x"] for one in net.got("anna")} >= {2, 100}


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


# When the old broker does not answer in time


def timed_out(*, at="faro"):
    """Tom 1 and ina 1 wait at porto, tom 2 came to faro, where nobody waits any more."""
    net = network()
    net.advertise("ina", "exists x")
    net.move("ina", "braga")
    net.cut("anna")
    publish(net, 1)
    publish(net, 100, who="ina")
    net.stop("porto", "lisbon")
    net.move("anna", at)
    publish(net, 2)
    assert net.got("anna") == []
    net.pass_time(ANSWER_NS - 1)
    assert net.told["anna"] == []
    net.pass_time(1)
    net.settle()
    return net


def test_time_out():
    net = timed_out()
    assert net.told["anna"][0] == Lost(0, NO_ANSWER)
    assert net.got("anna") == xs(2)
    publish(net, 3)
    assert net.got("anna") == xs(2, 3)


def test_a_late_reply_is_used_as_far_as_order_permits():
    """Ina's 1 is still in order; tom's 1 was overtaken by 2, and is lost."""
    net = timed_out()
    net.go()
    assert [type(one) for one in net.told["anna"]] == [Lost, Notify, Notify, Lost]
    assert net.got("anna") == xs(2, 100)
    assert lost(net) == [Lost(0, NO_ANSWER)] * 2
    publish(net, 3)
    assert net.got("anna") == xs(2, 100, 3)
    assert homes(net) == [("faro", 2)]
    assert_tidy(net)


def test_a_late_reply_that_is_all_in_order_loses_nothing():
    net = network()
    net.cut("anna")
    publish(net, 1, 2)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.pass_time(ANSWER_NS)
    net.settle()
    net.go()
    publish(net, 3)
    assert net.got("anna") == xs(1, 2, 3)
    assert lost(net) == [Lost(0, NO_ANSWER)]
    assert net.clients["anna"].delivered == 4  # three, and the gap


def test_a_late_reply_raises_marks():
    """1 was delivered at porto; the copy of it for bert comes to faro behind the late reply."""
    net = network(at="lisbon")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.pass_time(ANSWER_NS)
    net.settle()
    net.go()
    net._event("faro", Received("lisbon", Notification("tom", 1, {"x": 1})))
    net.settle()
    assert net.got("anna") == xs(1)
    assert net.clients["anna"].delivered == 2  # one, and the gap


def test_a_late_reply_follows_the_session():
    """Anna went on to braga with what she had; the answer comes to faro, and is sent after her."""
    net = timed_out()
    net.move("anna", "braga")
    assert homes(net) == [("braga", 3)]
    net.go()
    assert net.got("anna") == xs(2, 100)
    assert homes(net) == [("braga", 3)]
    assert_tidy(net)


def test_a_late_reply_follows_the_session_twice():
    net = timed_out(at="lisbon")
    net.move("anna", "faro")
    net.move("anna", "braga")
    net.go()
    assert net.got("anna") == xs(2, 100)


def test_a_late_reply_to_nobody_is_dropped():
    net = timed_out()
    net.detach("anna", leave=True)
    net.settle()
    net.go()
    assert homes(net) == []
    assert_tidy(net)


def test_a_client_that_is_away_has_time():
    """Nobody is there to be told of a gap: the session waits for the answer."""
    net = network()
    net.cut("anna")
    publish(net, 1)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.cut("anna")
    net.pass_time(10 * ANSWER_NS)
    assert session_of(net, "faro").wait is not None
    net.go()
    net.move("anna", "faro")
    assert net.got("anna") == xs(1)
    assert lost(net) == []


def test_held_count_overflow():
    """More than may be held back: it is as if the answer came too late."""
    net = network(limits=Limits(held_count=2))
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    publish(net, 1, 2)
    net.pass_time(1)
    assert net.told["anna"] == []
    publish(net, 3)
    net.pass_time(1)
    net.settle()
    assert lost(net) == [Lost(0, NO_ANSWER)]
    assert net.got("anna") == xs(1, 2, 3)
    net.go()
    publish(net, 4)
    assert net.got("anna") == xs(1, 2, 3, 4)


def test_held_count_overflow_while_away():
    net = network(limits=Limits(held_count=2))
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.cut("anna")
    publish(net, 1, 2, 3, 4, 5)
    net.pass_time(1)
    assert session_of(net, "faro").wait is None
    net.move("anna", "faro")
    assert lost(net) == [Lost(0, NO_ANSWER)]
    assert net.got("anna") == xs(1, 2, 3, 4, 5)


def test_more_publications_than_are_held_back():
    """The rest is not accepted; the connection is closed, so that the client sends it again."""
    net = network(limits=Limits(held_count=2))
    net.stop("braga", "lisbon")
    net.move("tom", "faro")
    publish(net, 1, 2, 3)
    assert session_of(net, "faro", "tom").link is not None
    net.go()
    (close,) = [one for one in net.closed if one.link == "tom/2"]
    assert not close.fault
    assert net.got("anna") == xs(1, 2)
    net.move("tom", "faro")
    assert net.got("anna") == xs(1, 2, 3)
    assert net.clients["anna"].delivered == 3


def test_no_reply_is_longer_than_it_may_be():
    net = network()
    net.cut("anna")
    text = "a" * (REPLY_BYTES_MAX * 2 // 3)
    for x in (1, 2, 3):
        net.publish("tom", x=x, text=text)
    net.settle()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    replies = [update.errands[0] for update in net.on_the_way("porto", "lisbon")]
    assert [[one.notification.number for one in reply.kept] for reply in replies] == [
        [1],
        [2],
        [3],
        [],
    ]


# Filters that change on the way


def test_subscription_made_while_waiting():
    """Both lisbon and faro hold back tom 2 {x}; only faro knows that she wants tom 1 {y}, too."""
    net = network()
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.move("anna", "faro")
    net.subscribe("anna", "y > 0")
    net.settle()
    net.publish("tom", y=1)
    publish(net, 2)
    assert len(session_of(net, "lisbon").wait.held) == 1
    assert len(session_of(net, "faro").wait.held) == 2
    net.go()
    assert net.got("anna") == [{"y": 1}, {"x": 2}]
    assert net.clients["anna"].delivered == 2
    assert_tidy(net)


def test_subscription_made_between_two_moves():
    """As before, but she already comes to faro with it: lisbon says what it knew of."""
    net = network()
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.cut("anna")
    net.subscribe("anna", "y > 0")
    net.move("anna", "faro")
    net.publish("tom", y=1)
    publish(net, 2)
    net.go()
    assert net.got("anna") == [{"y": 1}, {"x": 2}]
    assert net.clients["anna"].delivered == 2
    assert_tidy(net)


def test_unsubscribe_while_waiting():
    net = network()
    net.subscribe("anna", "y > 0")
    net.settle()
    net.cut("anna")
    net.publish("tom", x=1)
    net.publish("tom", y=2)
    net.settle()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.unsubscribe("anna", "x > 0")
    net.settle()
    publish(net, 3)
    net.publish("tom", y=4)
    net.go()
    assert net.got("anna") == [{"y": 2}, {"y": 4}]
    assert_tidy(net)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_advertise_and_unadvertise_while_waiting(routing):
    net = network(routing=routing)
    net.stop("braga", "lisbon")
    net.move("tom", "faro")
    net.advertise("tom", "exists z")
    net.unadvertise("tom", "exists x or exists y")
    net.subscribe("anna", "z > 0")
    net.publish("tom", z=1)
    net.go()
    assert net.got("anna") == [{"z": 1}]
    assert_tidy(net)


def test_several_filters_are_one_stream():
    """What matches two filters comes once; what matches either comes in order."""
    net = network()
    net.subscribe("anna", "x > 5")
    net.subscribe("anna", "y > 0")
    net.settle()
    net.cut("anna")
    net.publish("tom", x=6, y=1)
    net.publish("tom", y=2)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.publish("tom", x=1)
    net.publish("tom", x=7, y=3)
    net.go()
    assert net.got("anna") == [{"x": 6, "y": 1}, {"y": 2}, {"x": 1}, {"x": 7, "y": 3}]
    assert net.clients["anna"].delivered == 4


@pytest.mark.parametrize("routing", ROUTINGS)
def test_no_matching_advertisement(routing):
    """Nobody offers what she wants: her move does not wait for anything but her old broker."""
    net = Roads(*TREE, routing=routing)
    net.subscribe("anna", "x > 0")
    net.move("anna", "porto")
    net.move("anna", "faro")
    assert homes(net) == [("faro", 2)]
    assert session_of(net, "faro").wait is None
    net.advertise("tom", "exists x")
    net.move("tom", "braga")
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_publishers_on_several_branches(routing, seed):
    """Tom at braga, ina at porto, joe at faro: old and new, and beside the path."""
    net = network(routing=routing)
    for name, broker in (("ina", "porto"), ("joe", "faro")):
        net.advertise(name, "exists x")
        net.move(name, broker)
    said = []

    def say():
        who = ("tom", "ina", "joe")[len(said) % 3]
        said.append((who, len(said) + 1))
        net.publish(who, x=len(said))

    for broker in ("faro", "braga", "porto"):
        net.attach("anna", broker)
        net.crawl(seed, say)
    told = [
        (one.notification.publisher, one.notification.attributes["x"]) for one in net.told["anna"]
    ]
    assert sorted(told, key=lambda one: one[1]) == said
    for who in ("tom", "ina", "joe"):
        assert [one for one in told if one[0] == who] == [one for one in said if one[0] == who]
    assert_tidy(net)


# How much is kept, and how it is sent


def test_a_reply_in_several_pieces():
    """Nothing is delivered before the last one is there: what was held back comes behind."""
    net = network()
    net.cut("anna")
    text = "a" * REPLY_BYTES_MAX
    for x in (1, 2, 3):
        net.publish("tom", x=x, text=text)
    net.settle()
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    publish(net, 4)
    replies = [update.errands[0] for update in net.on_the_way("porto", "lisbon")]
    assert [[one.notification.number for one in reply.kept] for reply in replies] == [
        [1],
        [2],
        [3],
        [],
    ]
    assert [reply.marks for reply in replies] == [{}, {}, {}, {"tom": 3}]
    assert [reply.more for reply in replies] == [True, True, True, False]
    for _ in range(3):
        net.step("porto", "lisbon")
        net.settle()
        assert net.got("anna") == []
    net.go()
    assert [one["x"] for one in net.got("anna")] == [1, 2, 3, 4]
    assert net.clients["anna"].delivered == 4
    assert_tidy(net)


def test_a_late_reply_in_several_pieces(monkeypatch):
    """Marks come last: in front, they would say that what is kept is no news."""
    monkeypatch.setattr(handoff, "REPLY_BYTES_MAX", 10)
    net = network()
    net.cut("anna")
    publish(net, 1, 2)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    net.pass_time(ANSWER_NS)
    net.settle()
    assert len(net.on_the_way("porto", "lisbon")) == 3
    net.go()
    assert net.got("anna") == xs(1, 2)
    assert lost(net) == [Lost(0, NO_ANSWER)]


def test_marks_in_several_pieces(monkeypatch):
    monkeypatch.setattr(handoff, "REPLY_MARKS_MAX", 2)
    net = network()
    net.subscribe("bert", "x > 0")
    net.move("bert", "faro")
    for i in range(5):
        net.advertise(f"p{i}", "exists x")
        net.move(f"p{i}", "lisbon")
    net.stop("lisbon", "faro")
    for i in range(5):
        publish(net, i + 1, who=f"p{i}")
    net.move("anna", "faro")
    net.go()
    assert net.got("anna") == xs(1, 2, 3, 4, 5)
    assert net.clients["anna"].delivered == 5


def test_backlog_limits_across_moves():
    """Two are dropped at porto, one more when the held ones come: told once, exactly."""
    net = network(limits=Limits(backlog_count=2))
    net.cut("anna")
    publish(net, 1, 2, 3, 4)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    publish(net, 5)
    net.go()
    assert net.told["anna"][0] == Lost(3, "backlog_count")
    assert net.got("anna") == xs(4, 5)
    assert len(lost(net)) == 1
    assert_tidy(net)


def test_backlog_limits_across_two_moves_while_away():
    net = network(limits=Limits(backlog_count=2))
    net.cut("anna")
    publish(net, 1, 2, 3)
    net.stop("porto", "lisbon")
    net.move("anna", "lisbon")
    net.cut("anna")
    publish(net, 4)
    net.go()
    publish(net, 5)
    net.move("anna", "faro")
    publish(net, 6)
    assert lost(net) == [Lost(3, "backlog_count")]
    assert net.got("anna") == xs(4, 5, 6)


def test_a_gap_that_was_told_but_not_acknowledged_is_told_again():
    net = network(limits=Limits(backlog_count=1))
    net.cut("anna")
    publish(net, 1, 2)
    net.stop("faro", "anna")
    net.move("anna", "faro")
    assert net.on_the_way("faro", "anna")[1:] == [
        Gap(1, "backlog_count"),
        Deliver(2, Notification("tom", 2, {"x": 2})),
    ]
    net.cut("anna")
    net.stopped.clear()
    net.move("anna", "braga")
    assert net.told["anna"][0] == Lost(1, "backlog_count")
    assert net.got("anna") == xs(2)


def test_what_is_kept_goes_on_growing_old():
    """Half of its time at porto, half at faro."""
    net = network(limits=Limits(backlog_age_ns=10 * SECOND_NS))
    net.cut("anna")
    publish(net, 1)
    net.pass_time(5 * SECOND_NS)
    publish(net, 2)
    net.move("anna", "faro")
    net.clients["anna"].delivered = 0
    net.told["anna"].clear()
    net.cut("anna")
    net.pass_time(6 * SECOND_NS)
    net.move("anna", "braga")
    assert net.told["anna"][0] == Lost(1, "backlog_age")
    assert net.got("anna") == []


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
    request = Request("faro", "anna", 2, 0, (("porto", 1),), digest([wanted]))
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


# Many at once


@pytest.mark.parametrize("routing", ["simple", "covering"])
def test_hundreds_move_at_the_same_time(routing):
    """Everybody goes to the next broker at the same moment, again and again, in a hurry."""
    world = World(seed=1, routing=routing)
    world.add_brokers(topology.balanced(3, 3))
    brokers = list(world.brokers)
    for i, broker in enumerate(brokers):
        world.add_client(f"p{i}", broker).advertise(f"topic = {i % 4}")
    clients = [world.add_client(f"c{i}", brokers[i % len(brokers)]) for i in range(200)]
    for i, client in enumerate(clients):
        client.subscribe(f"topic = {i % 4}")
    world.settle()
    for turn, hurry_ns in enumerate([3, 25, 60, 1000], 1):
        for i, client in enumerate(clients):
            client.attach(brokers[(i * turn + turn) % len(brokers)])
        for i, _ in enumerate(brokers):
            world.client(f"p{i}").publish({"topic": i % 4})
        world.run_until(world.now + hurry_ns * MS_NS)
    world.settle()
    verdict = check(world)
    assert verdict.violations == ()
    assert verdict.lost == 0
    assert verdict.delivered == verdict.published * 50 >= verdict.required
    world.outlive()
    assert list(check_outlived(world)) == []


@pytest.mark.parametrize("routing", ["flooding", *ROUTINGS])
@pytest.mark.parametrize("seed", range(20))
def test_everybody_moves_at_any_moment(routing, seed):
    """Subscribers and publishers, with and without a word, while messages arrive in any order."""
    random = Random(f"{seed} {routing}")
    net = network(routing=routing, at=random.choice(["porto", "faro"]))
    places = list(net.brokers)
    net.subscribe("bert", random.choice(["x > 0", "exists x"]))
    net.move("bert", random.choice(places))
    net.advertise("ina", random.choice(["x > 0", "exists x", "x > -5"]))
    net.move("ina", random.choice(places))
    said = {"tom": 0, "ina": 0}
    todo = random.choice([10, 30, 60])
    while todo or net.moving():
        if net.moving() and random.random() < 0.7:
            net._arrive(random.choice(net.moving()))
        elif todo:
            todo -= 1
            who = random.choice(list(net.clients))
            if who in said and random.random() < 0.6:
                said[who] += 1
                net.publish(who, x=said[who])
            else:
                if random.random() < 0.4 and net.clients[who].link is not None:
                    net.cut(who)
                if random.random() < 0.8:
                    net.attach(who, random.choice(places))
    for who, client in net.clients.items():
        if client.link is None:
            net.move(who, random.choice(places))
    for who in ("anna", "bert"):
        assert lost(net, who) == []
        for publisher, count in said.items():
            notifications = [one.notification for one in net.told[who]]
            numbers = [one.number for one in notifications if one.publisher == publisher]
            assert numbers == list(range(1, count + 1))
        assert net.clients[who].delivered == sum(said.values())
    assert not any(net.clients[who].outbox for who in said)
    assert not any(close.fault for close in net.closed)
    assert all(len(homes(net, who)) == 1 for who in net.clients)
    assert_tidy(net)
