"""Terms: what of what it missed a client wants to have, for each of its subscriptions.

They play in the tree of roads.py. Anna goes away, tom publishes, and she comes back at the same
broker (porto) or at another one (faro).
"""

import pytest

from roads import TREE, Roads, assert_tidy, errands, homes, lost, network, publish, session_of, xs
from wayfare.core import handoff
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.effects import Ended, Lost, Notify
from wayfare.core.filters import Filter
from wayfare.core.history import SECOND_NS, Limits, Stored
from wayfare.core.messages import Notification, Terms
from wayfare.core.routing import Destinations
from wayfare.core.sessions import Old
from wayfare.core.thinning import thinned
from wayfare.sim import World, check
from wayfare.sim.links import MS_NS

RELOCATIONS = ("handoff", "junction", "home")
X = Filter.parse("x > 0")


@pytest.fixture(params=RELOCATIONS)
def relocation(request):
    return request.param


@pytest.fixture(params=["porto", "faro"])
def there(request):
    """Where she comes back."""
    return request.param


def roads(terms, *, relocation="handoff", text="x > 0", **more):
    """Anna is subscribed at porto with these terms."""
    net = Roads(*TREE, relocation=relocation, **more)
    net.subscribe("anna", text, terms)
    net.advertise("tom", "exists x or exists y")
    net.move("anna", "porto")
    net.move("tom", "braga")
    return net


def missed(net, *values):
    """She is away, and this is published."""
    net.cut("anna")
    publish(net, *values)


def assert_without_holes(net, count):
    """So many deliveries, and no gap."""
    assert lost(net) == []
    assert net.clients["anna"].delivered == count
    publish(net, 99)
    assert net.got("anna")[-1] == {"x": 99}
    assert net.clients["anna"].delivered == count + 1
    assert_tidy(net)


# Each term


@pytest.mark.parametrize(
    ("last", "wanted"), [(0, []), (1, [4]), (2, [3, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4])]
)
def test_last(last, wanted, relocation, there):
    net = roads(Terms(last=last), relocation=relocation)
    missed(net, 1, 2, 3, 4)
    net.move("anna", there)
    assert net.got("anna") == xs(*wanted)
    assert_without_holes(net, len(wanted))


def test_younger(relocation, there):
    """Not older than five seconds; what is exactly that old still comes."""
    net = roads(Terms(younger_ns=5 * SECOND_NS), relocation=relocation)
    missed(net, 1)
    net.pass_time(1)
    publish(net, 2)
    net.pass_time(4 * SECOND_NS)
    publish(net, 3)
    net.pass_time(SECOND_NS)
    net.move("anna", there)
    assert net.got("anna") == xs(2, 3)
    assert_without_holes(net, 2)


def test_key(relocation, there):
    """The newest of every road, in the order in which they came; what is on no road is all there."""
    net = roads(Terms(key="road"), relocation=relocation)
    net.cut("anna")
    for x, road in enumerate(["A1", "A2", "A1", None, 7, None, "A2", 7.0], 1):
        net.publish("tom", x=x, **({} if road is None else {"road": road}))
    net.settle()
    net.move("anna", there)
    assert [one["x"] for one in net.got("anna")] == [3, 4, 6, 7, 8]
    assert_without_holes(net, 5)


def test_true_is_not_one():
    net = roads(Terms(key="y"))
    net.cut("anna")
    net.publish("tom", x=1, y=True)
    net.publish("tom", x=2, y=1)
    net.settle()
    net.move("anna", "faro")
    assert [one["x"] for one in net.got("anna")] == [1, 2]


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        (Terms(), [1, 2, 3, 4, 5]),
        (Terms(key="road"), [1, 3, 5]),
        (Terms(last=2, key="road"), [3, 5]),
        (Terms(last=1, key="road"), [5]),
        (Terms(last=9, key="road", younger_ns=4), [3, 5]),
        (Terms(younger_ns=2), [4, 5]),
        (Terms(younger_ns=4, last=3), [3, 4, 5]),
        (Terms(local=True, last=2), [4, 5]),
    ],
)
def test_terms_together(terms, wanted):
    """First by age, then by key, then the last: the last two are of different roads."""
    kept = [
        (Stored(Notification("tom", x, {"x": x, "road": road}), 0), x)
        for x, road in enumerate(["A1", "A2", "A3", "A2", "A2"], 1)
    ]
    found = thinned(kept, {X: terms}, 6, moved=False)
    assert [one.notification.number for one, _ in found] == wanted
    if terms.local:
        assert thinned(kept, {X: terms}, 6, moved=True) == []


def test_what_comes_while_she_is_there_is_not_limited(relocation):
    net = roads(Terms(last=1, younger_ns=0, key="road"), relocation=relocation)
    net.move("anna", "faro")
    publish(net, 1, 2, 3)
    assert net.got("anna") == xs(1, 2, 3)
    assert_without_holes(net, 3)


def test_what_comes_while_she_waits_is_not_limited():
    """Held back at faro, it is not what she missed."""
    net = roads(Terms(last=1))
    missed(net, 1, 2)
    net.stop("porto", "lisbon")
    net.move("anna", "faro")
    publish(net, 3, 4)
    net.go()
    assert net.got("anna") == xs(2, 3, 4)
    assert_without_holes(net, 3)


def test_what_went_into_a_dead_connection_was_missed(there):
    net = roads(Terms(last=1))
    publish(net, 1)
    net.stop("porto", "anna")
    publish(net, 2, 3, 4)
    net.cut("anna")
    net.stopped.clear()
    net.move("anna", there)
    assert net.got("anna") == xs(1, 4)
    assert_without_holes(net, 2)


def test_again_at_every_move():
    """Porto hands over two of three; one more comes to faro, and faro hands over two of three."""
    net = roads(Terms(last=2))
    missed(net, 1, 2, 3)
    net.stop("faro", "anna")
    net.move("anna", "faro")
    net.cut("anna")
    net.stopped.clear()
    assert len(session_of(net, "faro").backlog) == 2
    publish(net, 4)
    net.move("anna", "braga")
    assert net.got("anna") == xs(3, 4)
    assert_without_holes(net, 2)


# Several subscriptions


def test_one_limited_and_one_not(relocation, there):
    """What both match comes because one of them is not limited; what matches one, by its terms."""
    net = roads(Terms(last=1), relocation=relocation)
    net.subscribe("anna", "x > 3")
    net.subscribe("anna", "y > 0", Terms(last=2))
    net.settle()
    net.cut("anna")
    for attributes in ({"x": 4}, {"x": 1}, {"y": 1}, {"x": 5}, {"y": 2}, {"y": 3}, {"x": 2}):
        net.publish("tom", **attributes)
    net.settle()
    net.move("anna", there)
    assert net.got("anna") == [{"x": 4}, {"x": 5}, {"y": 2}, {"y": 3}, {"x": 2}]
    assert_without_holes(net, 5)


def test_what_two_limited_ones_choose_comes_once(there):
    net = roads(Terms(last=2))
    net.subscribe("anna", "x > 1", Terms(last=1))
    net.settle()
    missed(net, 1, 2, 3)
    net.move("anna", there)
    assert net.got("anna") == xs(2, 3)
    (*_, notify) = [one for one in net.told["anna"] if isinstance(one, Notify)]
    assert {*map(str, notify.subscriptions)} == {"x > 0", "x > 1"}
    assert_without_holes(net, 2)


# Terms that change


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (None, Terms(last=1), [3]),
        (Terms(last=1), None, [1, 2, 3]),
        (Terms(last=1), Terms(last=2), [2, 3]),
        (Terms(last=2), Terms(last=2), [2, 3]),
    ],
)
def test_terms_changed_before_she_went(before, after, wanted, relocation, there):
    net = roads(before, relocation=relocation)
    net.subscribe("anna", "x > 0", after)
    net.settle()
    missed(net, 1, 2, 3)
    net.move("anna", there)
    assert net.got("anna") == xs(*wanted)
    assert_without_holes(net, len(wanted))


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (None, Terms(last=1), [3]),
        (Terms(last=1), None, [1, 2, 3]),
        (Terms(last=1), Terms(last=2), [2, 3]),
    ],
)
def test_terms_changed_while_she_was_away(before, after, wanted):
    """At the same broker: the last ones count."""
    net = roads(before)
    missed(net, 1, 2, 3)
    net.subscribe("anna", "x > 0", after)
    net.move("anna", "porto")
    assert net.got("anna") == xs(*wanted)
    assert_without_holes(net, len(wanted))


def test_to_ask_again_with_the_same_terms_says_nothing():
    net = roads(Terms(last=1))
    net.subscribe("anna", "x > 0", Terms(last=1))
    assert net.on_the_way("anna", "porto") == []
    net.unsubscribe("anna", "x > 0")
    assert net.on_the_way("anna", "porto") == []
    net.unsubscribe("anna", "x > 0")
    assert len(net.on_the_way("anna", "porto")) == 1
    assert net.clients["anna"].terms == {}


# Local subscriptions


def test_a_local_subscription_ends_elsewhere(relocation):
    net = roads(Terms(local=True), relocation=relocation)
    net.subscribe("anna", "y > 0")
    net.settle()
    net.cut("anna")
    net.publish("tom", x=1)
    net.publish("tom", y=2)
    net.settle()
    net.attach("anna", "faro")
    assert net.told["anna"] == [Ended(X)]
    (attach,) = net.on_the_way("anna", "faro")
    assert [*map(str, attach.subscriptions)] == ["y > 0"]
    assert attach.terms == ()
    net.settle()
    net.publish("tom", x=3)
    net.publish("tom", y=4)
    net.settle()
    assert net.got("anna") == [{"y": 2}, {"y": 4}]
    assert lost(net) == []
    assert net.clients["anna"].subscriptions == {Filter.parse("y > 0"): 1}
    ((broker, _),) = homes(net)
    assert [*map(str, session_of(net, broker).subscriptions)] == ["y > 0"]
    assert_tidy(net)


@pytest.mark.parametrize("times", [1, 2])
def test_it_ends_however_often_it_was_asked_for(times):
    net = roads(Terms(local=True))
    for _ in range(1, times):
        net.subscribe("anna", "x > 0", Terms(local=True))
    net.move("anna", "faro")
    assert net.told["anna"] == [Ended(X)]
    net.subscribe("anna", "x > 0")
    net.settle()
    publish(net, 1)
    assert net.got("anna") == xs(1)
    assert_tidy(net)


def test_it_stays_at_the_same_broker(relocation):
    """And she gets what she missed there."""
    net = roads(Terms(local=True), relocation=relocation)
    missed(net, 1, 2)
    net.move("anna", "porto")
    assert Ended(X) not in net.told["anna"]
    assert net.got("anna") == xs(1, 2)
    assert_without_holes(net, 2)


def test_what_only_a_local_subscription_wanted_is_not_sent_elsewhere():
    net = roads(Terms(local=True))
    net.subscribe("anna", "x > 5")
    net.settle()
    missed(net, 1, 6, 2)
    net.stop("lisbon", "faro")
    net.move("anna", "faro")
    replies = errands(net, "lisbon", "faro")
    assert [one.notification.attributes for reply in replies for one in reply.kept] == xs(6)
    assert not any(reply.lost for reply in replies)
    net.go()
    assert net.got("anna") == xs(6)
    assert net.clients["anna"].delivered == 1
    assert lost(net) == []


def test_it_is_local_to_where_it_was_made():
    """Made at faro, not where she was first: it ends when she goes back to porto."""
    net = network()
    net.move("anna", "faro")
    net.subscribe("anna", "y > 0", Terms(local=True))
    net.settle()
    net.move("anna", "faro")
    assert net.told["anna"] == []
    net.move("anna", "porto")
    assert net.told["anna"] == [Ended(Filter.parse("y > 0"))]
    assert_tidy(net)


def test_made_while_away_it_is_local_to_where_she_turns_up():
    net = network()
    net.cut("anna")
    net.subscribe("anna", "y > 0", Terms(local=True))
    net.move("anna", "faro")
    assert net.told["anna"] == []
    net.publish("tom", y=1)
    net.settle()
    assert net.got("anna") == [{"y": 1}]
    net.move("anna", "porto")
    assert net.told["anna"][1:] == [Ended(Filter.parse("y > 0"))]
    assert_tidy(net)


def test_a_local_subscription_can_become_an_ordinary_one():
    net = roads(Terms(local=True))
    net.subscribe("anna", "x > 0")
    net.settle()
    missed(net, 1)
    net.move("anna", "faro")
    assert net.got("anna") == xs(1)
    assert_without_holes(net, 1)


def test_an_ordinary_one_can_become_local():
    net = network()
    net.subscribe("anna", "x > 0", Terms(local=True))
    net.settle()
    net.move("anna", "faro")
    assert net.told["anna"] == [Ended(X)]


def test_a_local_subscription_that_was_given_up_does_not_end_again():
    net = roads(Terms(local=True))
    net.unsubscribe("anna", "x > 0")
    net.settle()
    net.move("anna", "faro")
    assert net.told["anna"] == []


def test_a_digest_is_of_what_is_left():
    """Her local filter is gone when she attaches elsewhere: nobody knows that profile, so all is sent."""
    net = Roads(*TREE)
    net.by_digest("anna")
    net.subscribe("anna", "x > 0", Terms(local=True))
    net.subscribe("anna", "y > 0")
    net.advertise("tom", "exists x or exists y")
    net.move("tom", "braga")
    net.move("anna", "porto")
    net.move("anna", "faro")
    assert [*map(str, session_of(net, "faro").subscriptions)] == ["y > 0"]
    assert net.clients["anna"]._characters == len("y > 0")
    assert_tidy(net)


# Beside real losses


def test_what_a_limit_dropped_is_told_and_only_that(relocation, there):
    """Four are missed, two dropped by the limit, one left out on request: two are lost."""
    net = roads(Terms(last=1), relocation=relocation, limits=Limits(backlog_count=2))
    missed(net, 1, 2, 3, 4)
    net.move("anna", there)
    assert net.told["anna"][0] == Lost(2, "backlog_count")
    assert net.got("anna") == xs(4)
    assert net.clients["anna"].delivered == 3
    assert len(lost(net)) == 1
    assert_tidy(net)


def test_what_was_left_out_does_not_come_later():
    """Its numbers are above 1, but it is no news: the marks know."""
    net = roads(Terms(last=1))
    net.subscribe("bert", "x > 0")
    net.move("bert", "faro")
    net.stop("lisbon", "faro")
    missed(net, 1, 2, 3)
    net.move("anna", "faro")
    net.go()
    assert net.got("bert") == xs(1, 2, 3)
    assert net.got("anna") == xs(3)
    assert_without_holes(net, 1)


def test_what_was_left_out_comes_when_another_subscription_wants_it():
    """She comes with one that porto did not know: a slow copy of 2 is news to that, 1 is not."""
    net = roads(Terms(last=1))
    net.subscribe("bert", "x > 0")
    net.move("bert", "faro")
    net.stop("lisbon", "faro")
    missed(net, 1, 2, 3)
    net.subscribe("anna", "x > 1")
    net.move("anna", "faro")
    net.go()
    assert net.got("anna") == xs(2, 3)
    assert_without_holes(net, 2)


def test_acknowledged_is_what_was_sent():
    net = roads(Terms(last=2))
    missed(net, 1, 2, 3)
    net.move("anna", "porto")
    net.pass_time(ACK_DELAY_NS)
    net.settle()
    backlog = session_of(net, "porto").backlog
    assert (backlog.acked, backlog.sent, backlog.last, len(backlog)) == (2, 2, 2, 0)


# In a world


def test_the_oracle_knows_of_terms(relocation):
    """Anna wants the last one of each road, bert everything: nobody misses what he wanted."""
    world = World(seed=3, relocation=relocation)
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro"), ("lisbon", "braga")])
    ticker = world.add_client("ticker", "braga")
    ticker.advertise("exists road")
    anna, bert = world.add_client("anna", "porto"), world.add_client("bert", "porto")
    anna.subscribe("exists road", Terms(key="road"))
    anna.subscribe("road = 'A9'", Terms(local=True))
    bert.subscribe("exists road")
    world.settle()
    for broker in ("faro", "porto", "lisbon"):
        for client in (anna, bert):
            client.disconnect()
        world.run_until(world.now + 200 * MS_NS)
        for road in ("A1", "A2", "A1", "A9"):
            ticker.publish({"road": road})
        world.run_until(world.now + 200 * MS_NS)
        for client in (anna, bert):
            client.attach(broker)
        world.settle()
    verdict = check(world)
    assert verdict.violations == ()
    assert (len(anna.received), len(bert.received), verdict.lost) == (9, 12, 0)
    ended = [one for one in world.events if one.kind == "unsubscribed"]
    assert [(one.client, str(one.filter), one.reason) for one in ended] == [
        ("anna", "road = 'A9'", "stayed behind")
    ]


@pytest.mark.parametrize("relocation", ["handoff", "junction"])
@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (None, Terms(last=1), [3]),
        (Terms(last=1), None, [1, 2, 3]),
        (Terms(last=1), Terms(last=2), [2, 3]),
    ],
)
def test_terms_changed_while_she_was_away_and_moved(before, after, wanted, relocation):
    """The last ones count (Client.subscribe), also when she turns up elsewhere."""
    net = roads(before, relocation=relocation)
    missed(net, 1, 2, 3)
    net.subscribe("anna", "x > 0", after)
    net.move("anna", "faro")
    assert net.got("anna") == xs(*wanted)
    assert lost(net) == []


def test_what_terms_left_out_is_news_when_they_are_loosened():
    """It came to the old session, which did not keep it; now somebody wants it."""
    old = Old({X: Terms(last=1)})
    old.marks = {"tom": 5}
    note = Notification("tom", 3, {"x": 1})

    def had(wanted):
        tables = Destinations(0)
        for filter in wanted:
            tables.add(filter, 1)
        return handoff._Earlier(old, wanted, handoff._finder(wanted, tables)).had(note)

    assert had({X: Terms(last=1)})
    assert not had({X: None})
