"""What matches a publisher that moves goes to it with the reply, and no later than it is needed.

a --- b --- c --- d      bert is subscribed at b, tom publishes at d and comes to a
"""

import pytest

from roads import Roads, assert_tidy, lost, publish, xs
from wayfare.core.effects import Received
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Entry, Request, Update
from wayfare.core.reduction import STRATEGIES

LINE = ("a-b", "b-c", "c-d")
ANSWER_NS = Limits().answer_ns


class Counted(Roads):
    """A network that counts the updates which arrive."""

    updates = 0

    def _arrive(self, wire):
        event = super()._arrive(wire)
        self.updates += isinstance(getattr(event, "message", None), Update)
        return event


def network(at="d", **more):
    net = Roads(*LINE, **more)
    net.subscribe("bert", "x > 0")
    net.advertise("tom", "exists x")
    net.move("bert", "b")
    net.move("tom", at)
    return net


def knows(net, broker, neighbour):
    return [str(entry.filter) for entry in net.brokers[broker].routing.in_subs[neighbour]]


@pytest.mark.parametrize("routing", [name for name in STRATEGIES if name != "flooding"])
def test_a_publisher_that_moves_costs_three_messages_a_hop(routing):
    """Request, reply, and that nothing is wanted on the other side any more.

    With a different subscriber at each broker, and each answering by itself, these were 7, 18, 52 and
    168 messages for 2, 4, 8 and 16 hops.
    """
    costs = []
    for hops in (2, 4, 8, 16):
        net = Counted(*(f"b{i}-b{i + 1}" for i in range(hops)), routing=routing)
        for i in range(hops + 1):
            net.subscribe(f"s{i}", f"x = {i}")
            net.move(f"s{i}", f"b{i}")
        net.advertise("tom", "exists x")
        net.move("tom", "b0")
        before = net.updates
        net.move("tom", f"b{hops}")
        costs.append(net.updates - before)
        publish(net, *range(hops + 1))
        assert [net.got(f"s{i}") for i in range(hops + 1)] == [xs(i) for i in range(hops + 1)]
        assert_tidy(net)
    assert costs == [6, 12, 24, 48]


def test_what_is_put_off_goes_with_the_reply():
    net = network()
    net.stop("d", "c")
    net.move("tom", "a")
    assert knows(net, "a", "b") == []
    publish(net, 1)
    assert net.got("bert") == []  # it waits at a
    net.go()
    assert net.got("bert") == xs(1)
    assert_tidy(net)


def test_what_is_put_off_goes_long_before_a_client_waits_no_longer():
    net = network()
    net.stop("c", "d")
    net.move("tom", "a")
    net.pass_time(ANSWER_NS // 2)
    net.settle()
    assert knows(net, "a", "b") == ["x > 0"]
    publish(net, 1)
    net.pass_time(ANSWER_NS // 2)
    net.settle()
    assert net.got("bert") == xs(1)
    net.go()
    assert_tidy(net)


def test_what_is_put_off_goes_with_whatever_else_is_wanted():
    """Una's advertisement is no longer known at b, because tom's covers it."""
    net = network()
    net.advertise("una", "x = 1")
    net.move("una", "a")
    net.stop("d", "c")
    net.move("tom", "a")
    net.subscribe("cora", "x < 2")
    net.move("cora", "c")
    publish(net, 1, who="una")
    assert net.got("bert") == net.got("cora") == xs(1)
    net.go()
    assert_tidy(net)


def test_nothing_is_put_off_while_a_request_waits_for_another():
    """Tom went to c and on to a, and d is slow. Una, who is new at a, needs what b has put off."""
    net = network()
    net.stop("d", "c")
    net.move("tom", "c")
    net.move("tom", "a")
    net.advertise("una", "x = 1")
    net.move("una", "a")
    publish(net, 1, who="una")
    assert net.got("bert") == xs(1)
    net.go()
    publish(net, 2)
    assert net.got("bert") == xs(1, 2)
    assert lost(net, "bert") == lost(net, "tom") == []
    assert_tidy(net)


@pytest.mark.parametrize(("asks", "told"), [("d", ["a"]), ("a", ["a", "c"])])
def test_nothing_is_put_off_for_a_neighbour_that_no_reply_goes_to(asks, told):
    """A request that has been beyond c, and did not find its session there, is back at b."""
    net = Roads(*LINE)
    net.subscribe("bert", "x > 0")
    net.move("bert", "b")
    offered = Entry(Filter.parse("exists x"))
    request = Request(asks, "tom", 5, 0, (("a", 1),), 0, True)
    update = Update(add_ads=(offered,), errands=(request,))
    sent = net.brokers["b"].step(Received("c", update), net.now)
    assert [effect.link for effect in sent] == told
