"""Processes that go on where another one of their name was: whatever clocks say, and wherever that was.

The publications of a writer have given numbers, and brokers tell it how far earlier writers were. The session of a
reader is a log. Most play in the tree of roads.py, where anna listens at porto.
"""

import pytest

from roads import homes, lost, network, xs
from wayfare.core.client import Client
from wayfare.core.effects import Close
from wayfare.core.filters import Filter
from wayfare.core.messages import Announce
from wayfare.core.relocation import BEGAN_ANEW

STRATEGIES = ["handoff", "junction", "home", "naive", "standard"]


def begin(net, broker, clock, *, base=0):
    """A writer begins at this broker, which counts its attachments from there; returns the one before."""
    old, new = net.clients.get("ida"), Client("ida")
    new.resume(clock, clock + 1, base)
    new.advertise(Filter.parse("exists x"))
    net.clients["ida"] = new
    net.told.setdefault("ida", [])
    net.attach("ida", broker)
    ask(net)
    return old


def ask(net):
    """When brokers confirm the advertisement, all have said what they know."""
    ida = net.clients["ida"]
    net._perform("ida", ida.probe(ads=True))
    net.settle()
    if ida.link is None:
        net.attach("ida", net.clients["ida"].previous[0][0])
        net.settle()
    assert ida.confirmed.ads == ida.probes
    ida.go_on()


def write(net, first, last):
    for x in range(first, last + 1):
        net.publish("ida", x=x)
    net.settle()


@pytest.mark.parametrize("relocation", STRATEGIES)
@pytest.mark.parametrize("broker", ["porto", "faro"])
@pytest.mark.parametrize("left", [False, True])
def test_a_writer_knows_what_earlier_ones_published(relocation, broker, left):
    net = network(relocation=relocation)
    begin(net, "porto", 5_000)
    write(net, 1, 3)
    if left:
        net.detach("ida", leave=True)
    begin(net, broker, 7)  # its clock is behind
    assert net.clients["ida"].published == 3
    write(net, 4, 5)
    begin(net, "braga", 3)
    assert net.clients["ida"].published == 5
    assert [where for where, _ in homes(net, "ida")] == ["braga"]
    assert net.got("anna") == xs(1, 2, 3, 4, 5)
    assert lost(net) == []


def test_numbers_are_not_those_of_attachments():
    net = network()
    begin(net, "porto", 5_000)
    write(net, 1, 3)
    begin(net, "faro", 7_000, base=100)  # the next batch
    assert net.clients["ida"].published == 100
    write(net, 4, 5)
    begin(net, "porto", 3, base=100)
    assert net.clients["ida"].published == 102


def test_the_writer_before_is_closed_and_publishes_nothing_more():
    net = network()
    begin(net, "porto", 5_000)
    write(net, 1, 3)
    old = begin(net, "faro", 7)
    assert Close("ida/5001", BEGAN_ANEW.format("ida")) in net.closed
    old.publish({"x": 4})  # it does not know yet
    net.clients["ida"], new = old, net.clients["ida"]
    net.attach("ida", "porto")
    net.settle()
    assert net.closed[-1].reason == BEGAN_ANEW.format("ida")
    net.clients["ida"] = new
    write(net, 4, 4)
    assert net.got("anna") == xs(1, 2, 3, 4)


def test_a_name_that_nobody_knows_leaves_no_tombstone_elsewhere():
    """Each task of a job has a name of its own, and there may be many."""
    net = network()
    begin(net, "porto", 5_000)
    assert [name for name, one in net.brokers.items() if "ida" in one.border.tombstones] == [
        "porto"
    ]


def test_what_a_writer_accepted_elsewhere_is_not_published_again():
    """Its broker was cut off, and nobody waited for the others."""
    net = network()
    begin(net, "porto", 5_000)
    write(net, 1, 3)
    net.stop("porto", "lisbon")
    net.stop("lisbon", "faro")
    ida = Client("ida")
    ida.resume(9_000, 2, 0)
    ida.advertise(Filter.parse("exists x"))
    net.clients["ida"] = ida
    net.attach("ida", "faro")
    net.settle()
    ida.go_on()
    for x in (1, 2, 3, 4):
        net.publish("ida", x=x)
    net.go()
    assert ida.published == 4
    assert ida.reached == 4
    assert not ida.outbox
    assert net.got("anna") == xs(1, 2, 3, 4)
    net.publish("ida", x=5)
    net.settle()
    assert ida.published == 5
    assert net.got("anna")[-1] == {"x": 5}


def test_it_goes_on_counting_if_it_hears_of_a_higher_number_later():
    net = network()
    begin(net, "porto", 5_000)
    write(net, 1, 3)
    net.stop("porto", "lisbon")
    for broker in net.brokers.values():
        broker.border.tombstones.clear()
    ida = Client("ida")
    ida.resume(7, 2, 0)
    ida.advertise(Filter.parse("exists x"))
    net.clients["ida"] = ida
    net.attach("ida", "faro")
    net.settle()
    ida.go_on()
    for x in (1, 2, 3, 4):
        net.publish("ida", x=x)
    net.settle()
    net.go()
    assert ida.link is None  # it has to exceed the first one
    net.attach("ida", "faro")
    net.settle()
    net.publish("ida", x=5)
    net.settle()
    assert ida.published == 5
    assert net.got("anna") == xs(1, 2, 3, 4, 5)
    assert lost(net) == []
    assert [where for where, _ in homes(net, "ida")] == ["faro"]


@pytest.mark.parametrize("answers", ["at once", "late"])
def test_it_asks_again_where_it_is_if_it_moves_before_it_knows(answers):
    net = network()
    begin(net, "porto", 5_000)
    write(net, 1, 3)
    if answers == "late":
        net.stop("porto", "lisbon")
    ida = Client("ida")
    ida.resume(9_000, 2, 0)
    ida.advertise(Filter.parse("exists x"))
    net.clients["ida"] = ida
    net.attach("ida", "faro")
    net.step("ida", "faro")
    net.attach("ida", "braga")
    net.settle()
    net.stopped.clear()
    ask(net)
    assert ida.published == 3


def test_all_links_carry_the_question_once():
    net = network()
    net.clients["ida"] = Client("ida")
    net.clients["ida"].resume(9_000, 2, 0)
    net.told["ida"] = []
    net.attach("ida", "faro")
    asked = []
    while wires := net.moving():
        wire = wires[0]
        some = net.on_the_way(wire.sender, wire.receiver)
        if isinstance(some[0], Announce) and some[0].begun:
            asked.append((wire.sender, wire.receiver))
        net._arrive(wire)
    assert sorted(asked) == [("faro", "lisbon"), ("lisbon", "braga"), ("lisbon", "porto")]
