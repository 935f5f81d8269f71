"""Quenching: publishers that watch an advertisement are told whether anybody is interested.

Most play in the tree of roads.py: tom publishes at braga, and anna may come to porto.
"""

from collections import Counter

import pytest

from roads import TREE, Roads, assert_tidy
from wayfare.core import codec
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.client import Client
from wayfare.core.effects import Interested, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import CodecError, NotAdvertised

X = Filter.parse("exists x")
ROUTINGS = [name for name in STRATEGIES if name != "flooding"]


class Watched(Roads):
    """A network that writes down what publishers are told, and what brokers say of it."""

    def __init__(self, *pairs, **more):
        self.news = {}  # client -> what its application was told
        self.said = []  # (broker, message)
        super().__init__(*(pairs or TREE), **more)

    def watch(self, name, text):
        self._perform(name, self.client(name).watch(Filter.parse(text)))

    def unwatch(self, name, text):
        self._perform(name, self.client(name).unwatch(Filter.parse(text)))

    def _perform(self, name, effects):
        super()._perform(name, effects)
        for effect in effects:
            if isinstance(effect, Interested):
                self.news.setdefault(name, []).append(effect.wanted)
            elif isinstance(effect, Send) and isinstance(effect.message, m.Interest):
                self.said.append((name, effect.message.wanted))


def network(at="braga", **more):
    """Tom has advertised, watches it, and was told that nobody is interested."""
    net = Watched(**more)
    net.advertise("tom", "exists x")
    net.watch("tom", "exists x")
    net.move("tom", at)
    assert net.news.pop("tom") == [False]
    net.said.clear()
    return net


def subscriber(net, name="anna", at="porto", text="x > 0"):
    net.subscribe(name, text)
    net.move(name, at)


# The first answer


def watching(net, at="braga"):
    """Tom has just begun to watch what he advertises."""
    net.advertise("tom", "exists x")
    net.watch("tom", "exists x")
    net.attach("tom", at)


@pytest.mark.parametrize("somebody", [False, True])
def test_the_first_answer_waits_until_all_brokers_have_confirmed_the_advertisement(somebody):
    """Also if somebody near is interested, perhaps in other attributes."""
    net = Watched()
    if somebody:
        subscriber(net, "bert", "braga", "y > 0")
        subscriber(net, "anna", "porto", "x > 0")
    net.stop("porto", "lisbon")
    watching(net)
    net.settle()
    assert "tom" not in net.news
    net.go()
    assert net.news["tom"] == [somebody]
    assert net.said == [("braga", somebody)]
    assert_tidy(net)


def test_the_first_answer_waits_no_longer_than_the_limit():
    net = Watched()
    subscriber(net)
    net.stop("porto", "lisbon")
    watching(net)
    net.settle()
    net.pass_time(Limits().confirm_ns - 1)
    net.settle()
    assert "tom" not in net.news
    net.pass_time(1)
    net.settle()
    assert net.news["tom"] == [False]
    net.go()
    assert net.news["tom"] == [False, True]
    assert_tidy(net)


def test_what_is_watched_later_has_a_first_answer_of_its_own():
    net = network()
    subscriber(net, "anna", "porto", "y > 0")
    assert net.news.pop("tom") == [True]
    net.stop("porto", "lisbon")
    net.advertise("tom", "exists y")
    net.watch("tom", "exists y")
    net.settle()
    assert "tom" not in net.news
    net.go()
    assert net.news["tom"] == [True]
    assert_tidy(net)


# Who is interested


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("at", ["porto", "lisbon", "braga"])
def test_a_publisher_hears_of_the_first_subscriber_and_that_the_last_is_gone(routing, at):
    net = network(routing=routing)
    subscriber(net, "anna", at)
    assert net.news["tom"] == [True]
    subscriber(net, "bert", "faro", "x > 0")
    net.unsubscribe("anna", "x > 0")
    net.settle()
    assert net.news["tom"] == [True]
    net.detach("bert", leave=True)
    net.settle()
    assert net.news["tom"] == [True, False]
    assert net.said == [("braga", True), ("braga", False)]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_who_asks_late_is_told_at_once(routing):
    net = Watched(routing=routing)
    net.advertise("tom", "exists x")
    net.move("tom", "braga")
    subscriber(net)
    net.watch("tom", "exists x")
    net.settle()
    assert net.news == {"tom": [True]}


def test_what_does_not_overlap_is_no_interest():
    net = network()
    subscriber(net, text="x is null and y > 0")
    subscriber(net, "bert", "braga", "x is null")
    assert net.news == {}


def test_its_own_subscriptions_are_none_but_equal_ones_of_others_are():
    net = network()
    net.subscribe("tom", "x > 0")
    net.settle()
    assert net.news == {}
    subscriber(net, "anna", "braga")
    assert net.news["tom"] == [True]
    net.detach("anna", leave=True)
    net.settle()
    assert net.news["tom"] == [True, False]


def test_its_own_subscriptions_are_none_after_a_move_either():
    net = network()
    net.subscribe("tom", "x > 0")
    net.settle()
    net.move("tom", "porto")
    assert net.news == {}


def test_a_subscriber_that_is_away_is_still_one():
    net = network()
    subscriber(net)
    net.detach("anna")
    net.settle()
    assert net.news["tom"] == [True]
    net.pass_time(Limits().away_ns + 1)
    net.settle()
    assert net.news["tom"] == [True, False]


def test_where_notifications_are_flooded_everything_is_wanted():
    net = Watched(routing="flooding")
    net.advertise("tom", "exists x")
    net.watch("tom", "exists x")
    net.move("tom", "braga")
    subscriber(net, "anna", "braga")
    net.detach("anna", leave=True)
    net.settle()
    assert net.news["tom"] == [True]


def test_one_broker_alone_tells_too():
    net = Watched("porto")
    net.advertise("tom", "exists x")
    net.watch("tom", "exists x")
    net.move("tom", "porto")
    net.move("anna", "porto")
    net.subscribe("anna", "x > 0")
    net.settle()
    net.unsubscribe("anna", "x > 0")
    net.settle()
    assert net.news["tom"] == [False, True, False]


def test_two_watch_what_they_advertised_each():
    net = network()
    net.advertise("uta", "x < 10")
    net.move("uta", "braga")
    net.watch("uta", "x < 10")
    net.settle()
    subscriber(net, text="x > 20")
    assert net.news == {"tom": [True], "uta": [False]}
    net.subscribe("anna", "x = 5")
    net.unsubscribe("anna", "x > 20")
    net.settle()
    assert net.news == {"tom": [True], "uta": [False, True]}


def test_a_change_that_leaves_somebody_interested_says_nothing():
    """The filter that goes, and the one behind it that comes, are one update."""
    net = network()
    subscriber(net, text="x > 0")
    net.subscribe("anna", "x > 40")  # covered: nobody is told
    net.settle()
    net.unsubscribe("anna", "x > 0")
    net.settle()
    assert net.news["tom"] == [True]


# Moving


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_new_broker_says_nothing_before_the_old_one_has_answered(routing):
    net = network(routing=routing)
    subscriber(net)
    net.said.clear()
    net.stop("lisbon", "faro")
    net.move("tom", "faro")
    assert net.said == []
    net.go()
    assert net.said == [("faro", True)]
    assert net.news["tom"] == [True]
    assert_tidy(net)


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_publisher_that_moves_is_never_told_that_nobody_is_interested(routing, relocation):
    net = network(routing=routing, relocation=relocation)
    subscriber(net)
    for place in ("faro", "porto", "lisbon", "braga", "faro"):
        net.move("tom", place)
    assert net.news["tom"] == [True]
    net.detach("anna", leave=True)
    net.settle()
    assert net.news["tom"] == [True, False]


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home", "naive"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_at_a_new_broker_it_is_told_anew(routing, relocation):
    """What changed while it was away, and what changes there."""
    net = network(routing=routing, relocation=relocation)
    net.cut("tom")
    subscriber(net)
    net.move("tom", "faro")
    assert net.news["tom"][-1] is True
    net.detach("anna", leave=True)
    net.settle()
    assert net.news["tom"][-1] is False


def test_a_subscriber_that_moves_stays_one():
    net = network()
    subscriber(net)
    for place in ("faro", "braga", "lisbon", "porto"):
        net.move("anna", place)
    assert net.news["tom"] == [True]


def test_back_at_its_broker_it_is_told_anew_and_hears_news_only():
    net = network()
    net.cut("tom")
    net.move("tom", "braga")
    assert net.said == [("braga", False)] and net.news == {}
    net.cut("tom")
    subscriber(net)
    assert net.said == [("braga", False)]
    net.move("tom", "braga")
    assert net.said == [("braga", False), ("braga", True)] and net.news == {"tom": [True]}


def test_when_the_old_broker_does_not_answer_it_is_told_what_the_new_one_knows():
    limits = Limits(answer_ns=1_000_000, confirm_ns=1_000_000)
    net = network(limits=limits)
    subscriber(net, at="faro")
    net.stop("lisbon", "braga")
    net.move("tom", "faro")
    net.said.clear()
    net.pass_time(limits.answer_ns)
    assert net.said == [("faro", True)]


@pytest.mark.parametrize("change", [False, True])
def test_by_digest(change):
    """Who watches something else than its old broker knows has to say everything."""
    net = Watched()
    net.by_digest("tom")
    net.advertise("tom", "exists x")
    net.watch("tom", "exists x")
    net.move("tom", "braga")
    subscriber(net)
    if change:
        net.unwatch("tom", "exists x")  # it does not arrive
    net.cut("tom")
    net.said.clear()
    net.attach("tom", "faro")
    [attach] = net.on_the_way("tom", "faro")
    assert attach.digest and not attach.watched and not attach.advertisements
    net.settle()
    assert net.said == ([] if change else [("faro", True)])


def test_another_process_of_the_name_is_told_what_it_asks_for_itself():
    net = network()
    subscriber(net)
    net.said.clear()
    later = net.clients["tom"] = Client("tom")
    later.epoch = 100
    net.advertise("tom", "exists x")
    net.move("tom", "faro")
    assert net.said == []
    net.watch("tom", "exists x")
    net.settle()
    assert net.said == [("faro", True)]


# No longer


@pytest.mark.parametrize("how", ["unwatch", "unadvertise", "leave"])
def test_who_does_not_watch_any_more_is_not_told_and_costs_nothing(how):
    net = network()
    broker = net.brokers["braga"]
    assert broker.routing.destinations.changed == {}
    if how == "leave":
        net.detach("tom", leave=True)
    else:
        getattr(net, how)("tom", "exists x")
    net.settle()
    subscriber(net)
    assert net.said == [] and net.news == {}
    assert broker.routing.destinations.changed is None
    assert all(core.routing.destinations.changed is None for core in net.brokers.values())


def test_nobody_watches_where_it_was_before():
    net = network()
    net.move("tom", "porto")
    assert net.brokers["braga"].routing.destinations.changed is None
    assert net.brokers["porto"].routing.destinations.changed == {}


def test_a_broker_looks_only_at_what_a_change_overlaps(monkeypatch):
    net = network()
    for i in range(50):
        net.advertise("tom", f"x = {i} and topic = 'gas'")
        net.watch("tom", f"x = {i} and topic = 'gas'")
    net.settle()
    looked = Counter()
    routing = type(net.brokers["braga"].routing)
    is_wanted = routing.is_wanted

    def counted(self, offered, place):
        looked[str(offered)] += 1
        return is_wanted(self, offered, place)

    monkeypatch.setattr(routing, "is_wanted", counted)
    subscriber(net, "anna", "porto", "x = 7")
    assert looked == {"exists x": 1, "topic = 'gas' and x = 7": 1}
    looked.clear()
    subscriber(net, "bert", "braga", "x is null")
    assert looked == {}


# A broker that begins again


def test_a_broker_remembers_who_watches_what():
    net = network()
    old = net.brokers["braga"]
    new = net.brokers["braga"] = Broker("braga", old.neighbours)
    new.load(old.save())
    assert new.save() == old.save()
    net.cut("tom")
    subscriber(net)
    assert net.said == []
    net.move("tom", "braga")
    assert net.said == [("braga", True)]


# The client's side


def test_a_client_counts_how_often_it_watches():
    client = Client("tom")
    client.attach("braga", "link")
    with pytest.raises(NotAdvertised, match="tom has not advertised exists x: advertise it first"):
        client.watch(X)
    client.advertise(X)
    assert client.watch(X) == [Send("link", m.Advertise(X, watch=True))]
    assert client.watch(X) == []
    assert client.unwatch(X) == []
    assert client.unwatch(X) == [Send("link", m.Advertise(X))]
    assert client.unwatch(X) == []


def test_a_client_hears_only_of_what_it_watches():
    client = Client("tom")
    client.attach("braga", "link")
    client.advertise(X)
    interest = Received("link", m.Interest(X, True))
    assert client.step(interest, 0) == []
    client.watch(X)
    assert client.step(interest, 0) == [Interested(X, True)]
    assert client.step(interest, 0) == []
    client.unadvertise(X)
    assert client.step(interest, 0) == [] and client.wanted == {}


# What peers say


def test_watching_what_is_not_there_is_refused():
    attach = m.Attach("tom", 1, 0, (), (X,), watched=(1,))
    with pytest.raises(CodecError, match="no such advertisement is watched"):
        codec.decode(codec.encode(attach)[4:])


def test_watching_the_same_twice_is_watching_it_once():
    broker = Broker("braga")
    attach = m.Attach("tom", 1, 0, (), (X, X), watched=(0, 0, 1))
    effects = broker.step(Received("link", attach), 0)
    assert [one.message for one in effects] == [m.Welcome(1, 0), m.Interest(X, False)]
