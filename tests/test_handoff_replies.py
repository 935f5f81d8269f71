"""Handoff: replies that come late, or never, or in pieces, and how much is kept for them.

In the tree of roads.py, as test_handoff.py.
"""

from roads import assert_tidy, homes, lost, network, publish, session_of, xs
from wayfare.core import handoff
from wayfare.core.effects import Lost, Notify, Received
from wayfare.core.handoff import NO_ANSWER
from wayfare.core.history import SECOND_NS, Limits
from wayfare.core.messages import (
    REPLY_BYTES_MAX,
    Deliver,
    Gap,
    Notification,
)

ANSWER_NS = Limits().answer_ns


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


def test_a_late_reply_finds_a_session_that_was_renewed():
    """Nobody waited for it any more, and she has attached once more since."""
    net = timed_out()
    net.move("anna", "faro")
    net.go()
    assert {one["x"] for one in net.got("anna")} >= {2, 100}


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
