"""A link that begins from nothing: tables are told again, and what was lost is told to who may miss it.

They play in the tree of roads.py: tom publishes at braga, anna is at porto.
"""

import pytest

from roads import TREE, assert_tidy, lost, network, publish, session_of, tables, xs
from wayfare.core.broker import LINK_LOST, Broker
from wayfare.core.effects import Close, LinkUp, Lost, Notify, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.messages import Attach, Gap

ROUTINGS = ("flooding", "simple", "identity", "covering", "merging")
RELOCATIONS = ("handoff", "junction", "home", "naive")
MAYBE = Lost(0, LINK_LOST)


def told(net, client="anna"):
    """The losses that a client was told of, each kind once."""
    return [*dict.fromkeys(lost(net, client))]


def lose(net, value):
    """Tom publishes, and the link that it crosses begins from nothing."""
    net.stop("braga", "lisbon")
    publish(net, value)
    net.stopped.clear()
    net.begin("braga", "lisbon")


@pytest.mark.parametrize("routing", ROUTINGS)
def test_who_may_miss_something_is_told_however_far_away(routing):
    net = network(routing=routing)
    before = tables(net)
    publish(net, 1)
    lose(net, 2)
    assert told(net) == [MAYBE]
    assert lost(net).count(MAYBE) == 1
    assert tables(net) == before
    publish(net, 3)
    assert net.got("anna") == xs(1, 3)
    assert_tidy(net)


@pytest.mark.parametrize("relocation", RELOCATIONS)
def test_it_is_told_once_whatever_becomes_of_sessions(relocation):
    net = network(relocation=relocation)
    lose(net, 1)
    net.move("anna", "faro")
    publish(net, 2)
    assert told(net) == [MAYBE]
    assert lost(net).count(MAYBE) == 1
    assert net.got("anna") == xs(2)


def test_a_link_that_is_new_tells_nobody():
    net = network()
    publish(net, 1)
    assert lost(net) == []


def test_a_link_that_begins_again_tells_also_if_nothing_had_come_over_it():
    """Braga had all that it needs to send over it, and lost that; lisbon had not even heard its name."""
    lisbon = Broker("lisbon", ["braga"])
    attach = Attach("anna", 1, 0, (Filter.parse("x > 0"),))
    gap = Send("anna/1", Gap(1, LINK_LOST, exact=False))
    assert gap not in lisbon.step(LinkUp("braga"), 0) + lisbon.step(Received("anna/1", attach), 1)
    assert gap in lisbon.step(LinkUp("braga"), 2)


def test_who_is_away_is_told_when_she_comes():
    net = network()
    net.cut("anna")
    publish(net, 1)
    lose(net, 2)
    publish(net, 3)
    net.move("anna", "faro")
    assert told(net) == [MAYBE]
    assert net.got("anna") == xs(1, 3)


def test_what_only_a_new_subscription_asks_for_may_be_lost_between_what_was_kept():
    """Evora has 1 and 3 for anna, who asked for 2 when she came to faro; the gap was behind all of it."""
    net = network(*TREE, "lisbon-evora")
    net.stop("porto", "lisbon")
    net.move("anna", "evora")
    net.cut("anna")
    net.subscribe("anna", "y > 0")
    net.move("anna", "faro")
    net.stop("lisbon", "faro")
    net.publish("tom", x=1)
    net.publish("tom", y=2)
    publish(net, 3)
    net.stopped.remove(("lisbon", "faro"))
    net.begin("lisbon", "faro")
    net.go()
    assert net.got("anna") == xs(1, 3)
    assert [type(one) for one in net.told["anna"]] == [Notify, Lost, Notify, Lost]
    assert_tidy(net)


def test_who_wants_nothing_is_not_told():
    """Others are, also of what nobody here knows to be offered: the advertisement may be lost, too."""
    net = network()
    net.subscribe("bert", "x is null and y is null")
    net.attach("bert", "porto")
    net.attach("carla", "braga")
    net.settle()
    lose(net, 1)
    assert (told(net), told(net, "bert"), told(net, "carla")) == ([MAYBE], [MAYBE], [])


def test_a_gap_comes_before_the_tables_that_are_told_again():
    net = network()
    net.stop("lisbon", "porto")
    net.begin("braga", "lisbon")
    first, *_ = net.on_the_way("lisbon", "porto")
    assert first == Gap(0, LINK_LOST, exact=False)


@pytest.mark.parametrize("near", [("lisbon", "faro"), ("porto", "lisbon")], ids=str)
def test_what_a_visitor_published_through_a_tunnel_is_not_lost(near):
    """Anna visits faro, and her home is porto. Else 1 would be lost when 2 is acknowledged."""
    net = network(relocation="home")
    net.advertise("anna", "x > 0")
    net.subscribe("tom", "x > 0")
    net.move("anna", "faro")
    for pair in (near, near[::-1]):
        net.stop(*pair)
    net.publish("anna", x=1)
    net.settle()
    net.stopped.clear()
    net.begin(*near)
    assert Close("anna/2", "the way to its home was broken", again=True) in net.closed
    assert session_of(net, "porto").link is None
    net.move("anna", "faro")
    publish(net, 2, who="anna")
    assert net.got("tom") == xs(1, 2)
    assert not net.clients["anna"].outbox
