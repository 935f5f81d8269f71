"""Handoff, rule by rule: every test here failed once, with its rule taken out of the code.

Most play in the tree of roads.py, message by message. Tom publishes at braga, anna starts at porto.
Who has a session where is in test_handoff_sessions.py, what a reply holds and when it comes in
test_handoff_replies.py.
"""

from random import Random

import pytest

from roads import TREE, Roads, assert_tidy, homes, lost, network, publish, session_of, xs
from wayfare.core.broker import Broker
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.effects import Close, LinkUp, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.handoff import digest
from wayfare.core.history import Limits
from wayfare.core.messages import (
    UPDATE_MAX,
    Announce,
    Attach,
    Entry,
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
from wayfare.sim.quiet import check_outlived

ROUTINGS = ("simple", "identity", "covering", "merging")
SEEDS = range(10)


# One move


def test_a_move_is_one_round_trip():
    net = network()
    net.cut("anna")
    publish(net, 1, 2)
    entry = Entry(Filter.parse("x > 0"))
    asked = digest([Filter.parse("x > 0")])
    net.attach("anna", "faro")
    net.step("anna", "faro")
    request = Request("faro", "anna", 2, 0, (("porto", 1),), asked, welcomed=True)
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
    assert Close("anna/3", "anna is elsewhere now") in net.closed
    net.go()
    assert net.got("anna") == xs(1)
    assert lost(net) == []
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
        nobody = Update(errands=(Reply("faro", "anna", 3, False, superseded=True),))
        first, second = (asked[epoch] for epoch in epochs)
        closed = Close("anna/2", "anna is elsewhere now")
        assert lisbon.step(Received("faro", Update(errands=(first,))), 1) == [closed]
        assert lisbon.step(Received("faro", Update(errands=(second,))), 2) == [Send("faro", nobody)]
        reply = Reply("lisbon", "anna", 2, True)
        (handed_over,) = lisbon.step(Received("porto", Update(errands=(reply,))), 3)
        assert handed_over.link == "braga"


@pytest.mark.parametrize("moves_on", [False, True])
def test_what_is_held_is_published_where_the_client_is(moves_on):
    """Tom comes from porto to lisbon (2), and goes on to faro (3), where he sends again what nobody confirmed."""
    lisbon = Broker("lisbon", ["porto", "faro"])
    for name in lisbon.neighbours:
        lisbon.step(LinkUp(name), 0)
        lisbon.step(Received(name, Announce((name,))), 0)
    offered = (Filter.parse("x > 0"),)
    lisbon.step(Received("tom/2", Attach("tom", 2, 0, (), offered, (("porto", 1),), True)), 1)
    lisbon.step(Received("tom/2", Publish(1, {"x": 1})), 2)
    if moves_on:
        request = Request("faro", "tom", 3, 0, (("lisbon", 2),), publishes=True)
        lisbon.step(Received("faro", Update(errands=(request,))), 3)
    reply = Reply("lisbon", "tom", 2, True, old_epoch=1)
    effects = lisbon.step(Received("porto", Update(errands=(reply,))), 4)
    published = [one.link for one in effects if type(one.message) is Notification]
    assert published == ([] if moves_on else ["porto", "faro"])


@pytest.mark.parametrize("epoch", [7, 20])
def test_a_later_attachment_supersedes_one_that_asks_for_what_is_forgotten(epoch):
    """Anna's earlier process comes to faro (8); lisbon has forgotten it (7), and has her later one (20)."""
    lisbon = Broker("lisbon", ["faro"])
    lisbon.step(Received("faro", Announce(("faro",))), 0)
    lisbon.step(Received("anna/20", Attach("anna", epoch, 0, ())), 0)
    request = Request("faro", "anna", 8, 0, (("lisbon", 6),), digest(()), welcomed=True)
    effects = lisbon.step(Received("faro", Update(errands=(request,))), 1)
    (answer,) = [one.message for one in effects if isinstance(one, Send)]
    assert [(one.found, one.superseded) for one in answer.errands] == [(False, epoch == 20)]


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
    assert "anna/2" in [one.link for one in net.closed]
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
