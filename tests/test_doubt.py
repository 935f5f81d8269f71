"""A publisher's old broker does not answer in time: others learn that something may be missing.

a --- b --- c      bert is subscribed at b, tom publishes 1 at c, which gets stuck, and comes to a
"""

import pytest

from roads import Roads, assert_tidy, lost, publish, xs
from wayfare.core.border import OVERTAKEN
from wayfare.core.effects import Lost, Notify
from wayfare.core.handoff import NO_ANSWER
from wayfare.core.history import Limits

ANSWER_NS = Limits().answer_ns


def network(**more):
    net = Roads("a-b", "b-c", **more)
    net.subscribe("bert", "x > 0")
    net.advertise("tom", "exists x")
    net.move("bert", "b")
    net.move("tom", "c")
    return net


def overtaken(**more):
    net = network(**more)
    overtake(net)
    return net


def overtake(net):
    """Tom's 1 gets stuck at c, and tom waits at a until nobody has answered in time."""
    net.stop("c", "b")
    publish(net, 1)
    net.move("tom", "a")
    for _ in range(2):
        net.pass_time(ANSWER_NS // 2)
        net.settle()


@pytest.mark.parametrize("routing", ["flooding", "covering"])
def test_who_gets_what_overtook_something_is_told(routing):
    net = overtaken(routing=routing)
    publish(net, 2, 3)
    net.go()
    assert [type(one) for one in net.told["bert"]] == [Lost, Notify, Notify]
    assert net.told["bert"][0] == Lost(0, OVERTAKEN)
    assert net.got("bert") == xs(2, 3)


def test_who_gets_nothing_of_it_gets_what_is_late():
    net = network()
    net.subscribe("cora", "x = 1 or x = 3")
    net.move("cora", "b")
    overtake(net)
    publish(net, 2)
    net.go()
    publish(net, 3)
    assert net.got("cora") == xs(1, 3)
    assert [type(one) for one in net.told["cora"]] == [Notify, Lost, Notify]  # for all it knows


def test_who_is_away_or_moving_is_told_when_it_is_there():
    net = overtaken()
    net.cut("bert")
    publish(net, 2)
    net.stop("b", "a")
    net.move("bert", "a")
    publish(net, 3)
    net.go()
    # Where it is now nobody knows that it was told before, where it was.
    assert [type(one) for one in net.told["bert"]] == [Lost, Notify, Lost, Notify]
    assert net.got("bert") == xs(2, 3)
    assert_tidy(net)


def test_who_waits_for_its_old_broker_is_told_once():
    """Each notification that a waiting session held had a gap in front of it."""
    net = overtaken()
    net.stop("b", "a")
    net.move("bert", "a")
    publish(net, 2, 3, 4)
    net.go()
    assert [type(one) for one in net.told["bert"]] == [Lost, Notify, Notify, Notify]
    assert net.got("bert") == xs(2, 3, 4)


def test_who_held_both_is_told_between_what_was_late_and_what_overtook_it():
    """What was late was sorted in front, and the gap stayed in front of it; bert had 2 where nobody answers."""
    net = Roads("a-b", "b-c", "b-d")
    net.subscribe("bert", "x > 0")
    net.advertise("tom", "exists x")
    net.move("bert", "d")
    net.move("tom", "c")
    overtake(net)
    net.cut("bert")
    publish(net, 2)
    net.stop("d", "b")
    net.move("bert", "b")
    publish(net, 3)
    net.stopped.remove(("c", "b"))
    net.settle()
    net.pass_time(ANSWER_NS)
    net.settle()
    assert [type(one) for one in net.told["bert"]] == [Lost, Notify, Lost, Notify]
    assert net.got("bert") == xs(1, 3)


def test_who_learns_late_that_nobody_has_its_session_is_told_again():
    """Bert waited no longer for d. By then d had forgotten him, and what he wants was not known everywhere."""
    net = Roads("a-b", "b-c", "b-d", limits=Limits(away_ns=ANSWER_NS // 2))
    net.subscribe("bert", "x > 0")
    net.move("bert", "d")
    net.cut("bert")
    net.stop("b", "d")
    net.move("bert", "a")
    net.pass_time(ANSWER_NS)
    net.settle()
    assert lost(net, "bert") == [Lost(0, NO_ANSWER)]
    net.go()
    assert lost(net, "bert") == 2 * [Lost(0, NO_ANSWER)]


def test_doubt_goes_with_a_publisher_that_moves_on():
    """At b, where tom is next, nobody would know that 1 is stuck; bert is told of it once."""
    net = overtaken()
    net.move("tom", "b")
    publish(net, 2)
    net.move("tom", "a")
    publish(net, 3)
    net.go()
    assert [type(one) for one in net.told["bert"]] == [Lost, Notify, Notify]
    assert net.got("bert") == xs(2, 3)


def test_there_is_no_doubt_for_ever():
    net = overtaken()
    net.pass_time(Limits().marks_age_ns)
    net.settle()
    publish(net, 2)
    assert net.got("bert") == xs(2)
    assert lost(net, "bert") == []


def test_nor_where_the_answer_came_in_time():
    net = network()
    net.move("tom", "a")
    net.pass_time(ANSWER_NS)
    publish(net, 1)
    assert lost(net, "bert") == []
