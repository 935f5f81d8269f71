"""A few orderings from end to end, message by message, through the codec."""

import pytest

from pair import Network
from wayfare.core.broker import DEFAULT_LIMITS
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.effects import Close, Lost, Notify
from wayfare.core.filters import Filter
from wayfare.core.handoff import NO_SESSION
from wayfare.core.history import Limits
from wayfare.core.messages import Ack, Deliver, Entry, Notification, Publish, Published, Update
from wayfare.core.reduction import STRATEGIES


def network(*pairs, **more):
    """Anna subscribed at the first broker, tom advertised at the last one, and all is settled."""
    net = Network(*pairs, **more)
    net.subscribe("anna", "x > 0")
    net.advertise("tom", "exists x")
    net.attach("anna", pairs[0].split("-")[0])
    net.attach("tom", pairs[-1].split("-")[-1])
    net.settle()
    return net


def xs(*values):
    return [{"x": value} for value in values]


LINE = ("porto-lisbon", "lisbon-faro")


@pytest.mark.parametrize("routing", STRATEGIES)
def test_a_notification_crosses_three_brokers(routing):
    net = network(*LINE, routing=routing)
    net.publish("tom", x=1)
    net.settle()
    assert net.told["anna"] == [Notify(Notification("tom", 1, {"x": 1}), [Filter.parse("x > 0")])]
    assert not net.clients["tom"].outbox


@pytest.mark.parametrize("routing", STRATEGIES)
def test_what_one_publisher_says_arrives_in_that_order(routing):
    net = network(*LINE, routing=routing)
    net.subscribe("anna", "x > 5")
    net.settle()
    for x in range(1, 9):
        net.publish("tom", x=x)
        if x % 3 == 0:
            net.step("tom", "faro")
            net.step("faro", "lisbon")
    net.settle()
    assert net.got("anna") == xs(*range(1, 9))


def test_a_publication_that_was_lost_is_sent_again():
    net = network("porto")
    net.publish("tom", x=1)
    net.cut("tom")
    net.attach("tom", "porto")
    net.settle()
    assert net.got("anna") == xs(1)


def test_a_publication_whose_acknowledgement_was_lost_is_dropped_as_a_repeat():
    net = network("porto")
    net.publish("tom", x=1)
    net.step("tom", "porto")
    assert net.on_the_way("porto", "tom") == [Published(1)]
    net.cut("tom")
    net.attach("tom", "porto")
    assert net.on_the_way("tom", "porto")[1:] == [Publish(1, {"x": 1})]
    net.publish("tom", x=2)
    net.settle()
    assert net.got("anna") == xs(1, 2)
    assert not net.clients["tom"].outbox


def test_a_delivery_that_was_lost_comes_again():
    net = network("porto")
    net.publish("tom", x=1)
    net.step("tom", "porto")
    net.cut("anna")
    net.attach("anna", "porto")
    net.settle()
    assert net.got("anna") == xs(1)


def test_a_delivery_whose_acknowledgement_was_lost_does_not_come_again():
    net = network("porto")
    net.publish("tom", x=1)
    net.settle()
    net.pass_time(ACK_DELAY_NS)
    assert net.on_the_way("anna", "porto") == [Ack(1)]
    net.cut("anna")
    net.attach("anna", "porto")
    net.publish("tom", x=2)
    net.settle()
    assert net.got("anna") == xs(1, 2)


def test_what_comes_while_the_client_is_away_waits_for_it():
    net = network(*LINE)
    net.detach("anna")
    net.settle()
    net.publish("tom", x=1)
    net.publish("tom", x=2)
    net.settle()
    assert net.got("anna") == []
    net.attach("anna", "porto")
    net.settle()
    assert net.got("anna") == xs(1, 2)
    net.pass_time(ACK_DELAY_NS)
    net.settle()
    (session,) = net.brokers["porto"].border.of("anna")
    assert len(session.backlog) == 0


def test_what_does_not_fit_the_backlog_is_counted():
    net = network("porto", limits=Limits(backlog_count=2))
    net.cut("anna")
    for x in range(1, 6):
        net.publish("tom", x=x)
    net.settle()
    net.attach("anna", "porto")
    net.settle()
    assert net.told["anna"][0] == Lost(3, "backlog_count")
    assert net.got("anna") == xs(4, 5)


def test_a_client_that_stays_away_for_too_long_is_told_so():
    net = network("porto", limits=Limits(away_ns=1_000, backlog_age_ns=1_000))
    net.detach("anna")
    net.settle()
    net.publish("tom", x=1)
    net.settle()
    net.pass_time(1_000)
    assert [session.client for session in net.brokers["porto"].border.all()] == ["tom"]
    net.attach("anna", "porto")
    net.settle()
    net.publish("tom", x=2)
    net.settle()
    assert net.told["anna"][0] == Lost(0, NO_SESSION)
    assert net.got("anna") == xs(2)


def test_a_new_connection_takes_over_from_one_that_only_looks_alive():
    net = network("porto")
    net.publish("tom", x=1)
    net.step("tom", "porto")
    net.attach("anna", "porto")
    net.settle()
    net.publish("tom", x=2)
    net.settle()
    assert net.closed == [Close("anna/1", "anna attached again")]
    assert net.got("anna") == xs(1, 2)


def test_what_is_under_way_when_the_client_unsubscribes_is_dropped():
    net = network("porto")
    net.publish("tom", x=1)
    net.step("tom", "porto")
    net.unsubscribe("anna", "x > 0")
    net.settle()
    assert net.got("anna") == []
    assert net.clients["anna"].delivered == 1


def test_uncovering_while_a_notification_is_under_way_loses_nothing():
    """Bert's wide subscription goes while a notification passes the broker that anna depends on."""
    net = network(*LINE)
    net.subscribe("bert", "x >= 0")
    net.attach("bert", "lisbon")
    net.settle()
    assert list(net.brokers["faro"].routing.in_subs["lisbon"]) == [Entry(Filter.parse("x >= 0"))]
    net.unsubscribe("bert", "x >= 0")
    net.step("bert", "lisbon")
    swap = Update(
        add_subs=(Entry(Filter.parse("x > 0")),), remove_subs=(Entry(Filter.parse("x >= 0")),)
    )
    assert net.on_the_way("lisbon", "faro") == [swap]
    net.publish("tom", x=1)  # sent on by faro for the filter that is going
    net.step("tom", "faro")
    net.step("lisbon", "faro")
    net.publish("tom", x=2)  # and for the one that came in its place
    net.step("tom", "faro")
    assert net.on_the_way("faro", "lisbon") == [
        Notification("tom", 1, {"x": 1}),
        Notification("tom", 2, {"x": 2}),
    ]
    net.settle()
    assert net.got("anna") == xs(1, 2)
    assert net.got("bert") == []


def test_an_advertiser_that_goes_does_not_hide_the_one_it_covered():
    net = network(*LINE)
    net.advertise("carl", "x > 3")
    net.attach("carl", "lisbon")
    net.settle()
    net.unadvertise("tom", "exists x")
    net.step("tom", "faro")
    net.publish("carl", x=4)
    net.settle()
    net.publish("carl", x=5)
    net.settle()
    assert net.got("anna") == xs(4, 5)
    assert net.brokers["faro"].routing.in_subs == {"lisbon": {}}


def test_what_many_filters_are_merged_to_is_understood_by_the_neighbour():
    """However long the texts in them are, and however many."""
    net = network(*LINE, routing="merging")
    net.advertise("tom", "exists word")
    for n in range(300):
        net.subscribe("anna", f"word = '{'a' * 40}{n:03}'")
    net.settle()
    net.publish("tom", word="a" * 40 + "299")
    net.settle()
    assert net.got("anna") == [{"word": "a" * 40 + "299"}]


def test_a_subscriber_elsewhere_costs_no_second_copy_on_a_link():
    net = network(*LINE)
    net.subscribe("bert", "x > 0")
    net.attach("bert", "porto")
    net.settle()
    net.publish("tom", x=1)
    net.step("tom", "faro")
    net.step("faro", "lisbon")
    assert net.on_the_way("lisbon", "porto") == [Notification("tom", 1, {"x": 1})]
    net.step("lisbon", "porto")
    delivery = [Deliver(1, Notification("tom", 1, {"x": 1}))]
    assert net.on_the_way("porto", "anna") == net.on_the_way("porto", "bert") == delivery


def test_a_client_that_leaves_leaves_nothing_behind():
    net = network(*LINE)
    net.publish("tom", x=1)
    net.settle()
    net.detach("anna", leave=True)
    net.detach("tom", leave=True)
    net.settle()
    net.pass_time(max(DEFAULT_LIMITS.tombstone_ns, DEFAULT_LIMITS.backlog_age_ns))
    for broker in net.brokers.values():
        assert list(broker.border.all()) == []
        assert (broker.border.tombstones, broker.next_deadline()) == ({}, None)
        assert broker.routing.destinations.counts() == {}
        assert not any(broker.routing.in_ads.values())


def test_brokers_have_announced_themselves_when_the_network_is_there():
    net = Network(*LINE, "lisbon-evora")
    for broker in net.brokers.values():
        assert net.brokers.keys() - {broker.name} == broker.paths._hops.keys()
    assert net.brokers["faro"].paths._hops["porto"] == "lisbon"


@pytest.mark.parametrize("routing", STRATEGIES)
def test_a_client_that_moves_gets_what_it_missed_and_what_comes(routing):
    net = network(*LINE, routing=routing)
    net.cut("anna")
    net.publish("tom", x=1)
    net.settle()
    net.attach("anna", "faro")
    net.step("anna", "faro")
    net.publish("tom", x=2)
    net.settle()
    assert net.got("anna") == xs(1, 2)
    assert list(net.brokers["porto"].border.all()) == []
