"""What clients get of the past that brokers elsewhere remember: towards the advertisers, in order, each once."""

import pytest
from msgspec.structs import replace

from roads import Roads, errands, lost, publish, session_of, xs
from wayfare.core import messages as m
from wayfare.core.broker import LINK_LOST, Broker
from wayfare.core.effects import LinkState, Lost, Notify
from wayfare.core.filters import Filter
from wayfare.core.history import FORGOTTEN_PAST, Limits
from wayfare.core.messages import Nullify, Terms
from wayfare.core.routing import WITHDRAWN_MAX

HOUR = 3600 * 10**9
TREE = ("porto-lisbon", "lisbon-faro", "lisbon-braga")
REMEMBERS = Limits(past_count=100)
INCOMPLETE = [Lost(0, FORGOTTEN_PAST)]


def network(limits=REMEMBERS, **more):
    """Tom publishes at faro what nobody wants yet; anna is at porto."""
    net = Roads(*TREE, limits=limits, **more)
    net.advertise("tom", "exists x")
    net.move("tom", "faro")
    net.move("anna", "porto")
    return net


def start(net, text="x > 0", since_ns=HOUR, terms=None, who="anna"):
    net._perform(who, net.client(who).subscribe(Filter.parse(text), terms, since_ns))


def ask(net, *given, **named):
    start(net, *given, **named)
    net.settle()


def begin_to_ask(net, **named):
    """Anna's request has reached faro, whose reply has got as far as lisbon."""
    net.stop("lisbon", "porto")
    ask(net, **named)


@pytest.mark.parametrize("routing", ["flooding", "simple", "identity", "covering", "merging"])
@pytest.mark.parametrize("relocation", ["handoff", "home", "naive"])
def test_what_nobody_wanted_is_at_the_publishers_broker(routing, relocation):
    net = network(routing=routing, relocation=relocation)
    publish(net, 1, 2)
    ask(net)
    publish(net, 3)
    assert net.got("anna") == xs(1, 2, 3)
    assert lost(net) == []


def test_what_comes_meanwhile_comes_behind():
    net = network()
    net.advertise("lara", "exists x")
    net.move("lara", "porto")
    publish(net, 1, 2)
    begin_to_ask(net)
    publish(net, 3)
    publish(net, 10, who="lara")
    assert net.got("anna") == []
    net.go()
    assert net.got("anna") == xs(1, 2, 10, 3)
    publish(net, 4)
    assert net.got("anna") == xs(1, 2, 10, 3, 4)
    assert session_of(net, "porto").wait is None


def test_nothing_comes_twice_and_nothing_out_of_order():
    net = network()
    net.subscribe("anna", "x = 2")
    net.settle()
    publish(net, 1, 2, 3)
    ask(net)
    publish(net, 4)
    assert net.got("anna") == xs(2, 3, 4)  # 1 is older than 2, which she has


def test_only_what_matches_and_is_young_enough():
    net = network()
    publish(net, 1, 5)
    net.pass_time(10**9)
    publish(net, 2, 6)
    ask(net, "x > 3", since_ns=10**9 // 2)
    assert net.got("anna") == xs(6)


def test_brokers_without_advertisers_are_not_asked():
    net = network()
    start(net)
    net.step("anna", "porto")
    net.step("porto", "lisbon")
    assert [one.filter for one in errands(net, "lisbon", "faro")] == [Filter.parse("x > 0")]
    assert errands(net, "lisbon", "braga") == []
    (reply,) = errands(net, "lisbon", "porto")
    assert (reply.kept, reply.asked, reply.complete) == ((), 1, True)


def test_a_publisher_that_has_moved_on_has_left_its_past_behind():
    net = network()
    publish(net, 1, 2)
    net.move("tom", "braga")
    publish(net, 3)
    ask(net)
    assert net.got("anna") == xs(1, 2, 3)
    assert lost(net) == []


def test_what_was_offered_before_is_asked_for():
    net = network()
    publish(net, 1)
    net.unadvertise("tom", "exists x")
    net.settle()
    ask(net)
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    net.pass_time(2 * HOUR)
    ask(net, "x > -1")
    assert net.got("anna") == xs(1)


def test_of_too_many_that_were_withdrawn_nothing_is_missed():
    net = network()
    publish(net, 1)
    net.unadvertise("tom", "exists x")
    for number in range(WITHDRAWN_MAX):
        net.advertise("tom", f"y = {number}")
        net.unadvertise("tom", f"y = {number}")
    net.settle()
    ask(net)
    assert net.got("anna") == xs(1)


@pytest.mark.parametrize("forgetful", [Limits(past_count=2), Limits(past_bytes=60, past_count=9)])
def test_a_broker_that_does_not_reach_back_that_far_says_so(forgetful):
    net = network(apart={"faro": forgetful})
    publish(net, 1, 2, 3)
    ask(net)
    publish(net, 4)
    assert net.got("anna") == xs(2, 3, 4)
    assert lost(net) == INCOMPLETE
    assert net.told["anna"][0] == INCOMPLETE[0]  # in front of what is there


def test_a_broker_that_remembers_nothing_says_so_if_its_clients_published():
    net = network(apart={"faro": Limits()})
    publish(net, 1)
    ask(net)
    assert (net.got("anna"), lost(net)) == ([], INCOMPLETE)
    net = network(apart={"lisbon": Limits(), "porto": Limits()})
    publish(net, 1)
    ask(net)
    assert (net.got("anna"), lost(net)) == (xs(1), [])


def test_others_remember_what_somebody_wanted():
    """The publisher's broker remembers nothing, and braga what came for bert."""
    net = network(apart={"faro": Limits()})
    net.subscribe("bert", "x > 1")
    net.move("bert", "braga")
    publish(net, 1, 2, 3)
    ask(net)
    assert net.got("anna") == xs(2, 3)
    assert lost(net) == INCOMPLETE


def test_a_reply_that_is_late_is_not_waited_for():
    net = network()
    publish(net, 1)
    begin_to_ask(net)
    publish(net, 2)
    net.pass_time(REMEMBERS.recall_ns)
    net.settle()
    assert lost(net) == INCOMPLETE
    net.go()
    publish(net, 3)
    assert net.got("anna") == xs(2, 3)
    assert lost(net) == INCOMPLETE


def test_a_neighbour_that_is_known_to_be_away_is_not_waited_for():
    net = network()
    publish(net, 1)
    net._event("porto", LinkState("lisbon", False))
    ask(net)
    assert (net.got("anna"), lost(net)) == ([], INCOMPLETE)


def test_a_link_that_begins_from_nothing_may_have_lost_a_reply():
    """Lisbon's reply, which says that faro will reply, too."""
    net = network()
    publish(net, 1)
    net.stop("faro", "lisbon")
    begin_to_ask(net)
    net.begin("porto", "lisbon")
    net.go()
    assert net.got("anna") == xs(1)
    assert [one.reason for one in lost(net)] == [FORGOTTEN_PAST, LINK_LOST]


def test_a_broker_whose_link_began_from_nothing_may_have_forgotten():
    net = network()
    publish(net, 1)
    net.begin("lisbon", "faro")
    net.told["anna"].clear()
    ask(net)
    assert lost(net) == INCOMPLETE
    net.pass_time(10**9)
    ask(net, "x > 1", since_ns=10**8)
    assert lost(net) == INCOMPLETE  # that is behind it


def test_a_client_that_moves_meanwhile_gets_it_where_it_is():
    net = network()
    publish(net, 1)
    begin_to_ask(net)
    net.attach("anna", "braga")
    net.settle()
    publish(net, 2)
    assert net.got("anna") == []
    net.go()
    publish(net, 3)
    assert net.got("anna") == xs(1, 2, 3)
    assert lost(net) == []


def test_a_client_that_is_back_meanwhile_gets_it():
    net = network()
    net.subscribe("anna", "x = 7")
    publish(net, 1)
    begin_to_ask(net)
    net.cut("anna")
    net.move("anna", "porto")
    net.go()
    publish(net, 7)
    assert net.got("anna") == xs(1, 7)
    assert lost(net) == []


def test_what_was_delivered_before_is_acknowledged_by_coming_back():
    net = network()
    net.subscribe("anna", "x = 7")
    net.settle()
    publish(net, 7)
    begin_to_ask(net)
    net.cut("anna")
    net.move("anna", "porto")
    net.go()
    assert len(session_of(net, "porto").backlog) == 0


def test_who_asks_before_its_session_is_here_gets_both_in_order():
    net = network()
    net.subscribe("anna", "x = 1")
    net.settle()
    net.detach("anna")
    net.settle()
    publish(net, 1, 2)
    start(net, "x > 0")
    net.stop("faro", "lisbon")
    net.move("anna", "braga")  # the session of porto is here before the past of faro
    publish(net, 3)
    assert net.got("anna") == []
    assert session_of(net, "braga").wait.is_due
    net.go()
    assert net.got("anna") == xs(1, 2, 3)
    assert lost(net) == []


def test_who_leaves_meanwhile_leaves_nothing():
    net = network()
    begin_to_ask(net)
    net.detach("anna", leave=True)
    net.go()
    assert net.brokers["porto"].border.of("anna") == []
    assert net.brokers["porto"].border.deadlines.next is not None  # of a tombstone
    net.pass_time(2 * HOUR)
    assert net.brokers["porto"].next_deadline() is None


def test_what_is_withdrawn_meanwhile_does_not_come():
    net = network()
    publish(net, 1)
    begin_to_ask(net)
    net.unsubscribe("anna", "x > 0")
    net.go()
    assert net.got("anna") == []


def test_who_publishes_need_not_wait():
    net = network()
    net.advertise("anna", "exists y")
    net.subscribe("tom", "exists y")
    net.settle()
    begin_to_ask(net)
    net.publish("anna", y=1)
    net.settle()
    assert net.got("tom") == [{"y": 1}]


def test_several_requests_are_one_stream():
    net = network()
    publish(net, 1, 2, 3, 4)
    net.stop("lisbon", "porto")
    start(net, "x > 2")
    start(net, "x < 4")
    net.go()
    assert net.got("anna") == xs(1, 2, 3, 4)
    assert lost(net) == []


def test_terms_count_over_all_brokers():
    net = network()
    net.advertise("lara", "exists x")
    net.move("lara", "braga")
    for x in (1, 3, 5):
        net.pass_time(10**6)
        publish(net, x)
        net.pass_time(10**6)
        publish(net, x + 1, who="lara")
    ask(net, terms=Terms(last=3))
    assert net.got("anna") == xs(4, 5, 6)
    assert lost(net) == []


def test_a_broker_that_has_as_many_as_are_wanted_has_not_forgotten_too_much():
    net = network(apart={"faro": Limits(past_count=2)})
    publish(net, 1, 2, 3)
    ask(net, terms=Terms(last=2))
    assert (net.got("anna"), lost(net)) == (xs(2, 3), [])


def test_what_nullifies_may_be_elsewhere():
    net = network()
    net.advertise("lara", "exists x")
    net.move("lara", "braga")
    publish(net, 1, 2, who="lara")
    net.pass_time(10**6)
    publish(net, 9)
    net.pass_time(10**6)
    publish(net, 3, who="lara")
    ask(net, terms=Terms(last=2, nullify=Nullify(Filter.parse("x = 9"))))
    assert (net.got("anna"), lost(net)) == (xs(3), [])


def test_a_long_past_comes_in_several_replies():
    net = network()
    for x in range(1, 8):
        net._perform("tom", net.client("tom").publish({"x": x}, bytes(300_000)))
    net.settle()
    net.stop("faro", "lisbon")
    ask(net)
    replies = errands(net, "faro", "lisbon")
    assert [(len(one.kept), one.more) for one in replies] == [(3, True), (3, True), (1, False)]
    net.go()
    assert net.got("anna") == xs(*range(1, 8))


def test_no_more_is_taken_than_is_held_back_anyway():
    net = network(apart={"porto": Limits(held_count=3, backlog_count=3)})
    publish(net, *range(1, 6))
    ask(net)
    assert (net.got("anna"), lost(net)) == (xs(3, 4, 5), INCOMPLETE)


def test_a_request_does_not_travel_for_ever():
    net = network()
    publish(net, 1)
    border = net.brokers["porto"]
    request = m.PastRequest("porto", 99, 1, Filter.parse("x > 0"), HOUR, hops=0)
    assert net.brokers["lisbon"].pasts.on_request("porto", request, net.now) == []
    (reply,) = net.brokers["lisbon"].paths.take_mail()["porto"]
    assert (reply.asked, reply.complete) == (0, False)
    assert border.pasts.on_reply(reply, net.now) == []  # nobody has asked


def test_a_broker_that_comes_back_with_its_store_goes_on():
    net = network()
    publish(net, 1)
    begin_to_ask(net)
    publish(net, 2)
    saved = net.brokers["porto"].save()
    again = net.brokers["porto"] = Broker("porto", ("lisbon",), "covering", REMEMBERS)
    again.load(saved)
    assert again.save() == saved
    net.go()
    publish(net, 3)
    assert (net.got("anna"), lost(net)) == (xs(1, 2, 3), [])
    assert again.border.memory.entries == 0


def test_a_broker_that_comes_back_with_its_store_knows_where_publishers_were():
    net = network()
    publish(net, 1)
    net.move("tom", "braga")
    net.begin("lisbon", "porto")
    lisbon = net.brokers["lisbon"]
    again = net.brokers["lisbon"] = Broker("lisbon", lisbon.neighbours, "covering", REMEMBERS)
    again.load(lisbon.save())
    assert again.border.cut == lisbon.border.cut != {}
    ask(net)
    assert net.got("anna") == xs(1)


def test_current_values_are_behind_the_past():
    net = network()
    net._perform("tom", net.client("tom").publish({"x": 1}, retain=m.Retain(("x",))))
    publish(net, 2)
    wanted = Filter.parse("x > 0")
    net._perform("anna", net.client("anna").subscribe(wanted, None, HOUR, current=True))
    net.settle()
    assert sorted(one["x"] for one in net.got("anna")) == [1, 2]
    assert lost(net) == []


def test_memory_is_counted():
    net = network()
    publish(net, 1, 2)
    net.stop("lisbon", "porto")
    net.advertise("lara", "exists x")
    net.move("lara", "porto")
    publish(net, 10, who="lara")
    ask(net)
    assert net.brokers["porto"].border.memory.entries == 1  # of the broker's own past
    net.go()
    assert net.brokers["porto"].border.memory.entries == 0


def test_a_broker_without_a_past_costs_nothing():
    net = network(limits=Limits())
    publish(net, 1)
    assert not net.brokers["faro"].border.past.kept
    assert all(isinstance(one, Notify | Lost) for one in net.told["anna"])
    assert replace(REMEMBERS, past_count=0) == Limits()
