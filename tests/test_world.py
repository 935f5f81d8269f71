"""The world does what it is told, in virtual time, and says clearly what it cannot do."""

from itertools import pairwise

import pytest

from wayfare import Filter, attr
from wayfare.core.codec import NAME_MAX, decode, encode
from wayfare.core.history import SECOND_NS, Limits
from wayfare.core.messages import PROTOCOL_VERSION, Hello, Notification
from wayfare.errors import InvalidNotification, NotAdvertised, OutboxFull, UsageError
from wayfare.sim import Crash, LinkSpec, World, check
from wayfare.sim import world as world_module
from wayfare.sim.hosts import NOTICE_NS, as_filter
from wayfare.sim.links import MS_NS


def line(*names, **options):
    world = World(**options)
    world.add_brokers(list(pairwise(names)), alone=names[0] if len(names) == 1 else None)
    return world


def market(**options):
    """A publisher and a subscriber at the two ends, settled."""
    world = line("porto", "lisbon", "faro", **options)
    world.add_client("ticker", "faro").advertise("price > 0")
    world.add_client("anna", "porto").subscribe("price > 40")
    world.settle()
    return world


def numbers(world, client="anna"):
    return [one.notification.number for one in world.clients[client].received]


# Building, and what cannot be built


def test_one_broker_is_a_world():
    world = line("porto")
    assert list(world.brokers) == ["porto"]
    assert world.edges == []
    unnamed = World()
    unnamed.add_brokers([])
    assert list(unnamed.brokers) == ["b0"]


def test_a_link_is_two_pipes():
    world = line("porto", "lisbon")
    there, back = world.link("porto", "lisbon")
    assert world.link("lisbon", "porto") == (back, there)
    assert set(world.pipes) == {("porto", "lisbon"), ("lisbon", "porto")}


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda world: world.broker("braga"), "there is no broker 'braga'"),
        (lambda world: world.client("bert"), "there is no client 'bert': attach it first"),
        (lambda world: world.link("porto", "faro"), "there is no link porto - faro"),
        (lambda world: world.link("porto", "porto"), "there is no link porto - porto"),
        (lambda world: world.add_client("bert", "braga"), "there is no broker 'braga'"),
        (lambda world: world.add_client("anna", "porto"), "anna is there already"),
        (lambda world: world.add_client("porto", "porto"), "porto is there already"),
        (lambda world: world.client("anna").attach("braga"), "there is no broker 'braga'"),
        (
            lambda _: World(routing="magic"),
            "unknown routing 'magic': choose one of flooding, simple",
        ),
        (
            lambda _: World().add_brokers([("a", "b"), ("b", "a")]),
            "a tree of 2 brokers has 1 links",
        ),
        (
            lambda _: World().add_brokers([("a", "b"), ("b", "c"), ("c", "a"), ("d", "e")]),
            "d is not connected to a",
        ),
        (
            lambda world: world.add_brokers([("braga", "viseu")]),
            "the brokers are there already: name the whole tree in one call",
        ),
        (
            lambda _: World().add_brokers([("a", "b")], alone="c"),
            "'c' cannot be alone where there are links: give either edges or `alone`",
        ),
        (
            lambda _: World(seed=None),
            "None is no seed, because the same seed gives the same run: give an int",
        ),
        (lambda _: World(seed="7"), "'7' is no seed"),
        (lambda _: World(seed=1.0), "1.0 is no seed"),
    ],
)
def test_a_mistake_is_a_clear_sentence(mistake, sentence):
    world = market()
    with pytest.raises(UsageError) as caught:
        mistake(world)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    "name",
    ["", "x" * (NAME_MAX + 1), "\ud800", "a\udfffb", b"anna", 7, None, []],
    ids=lambda name: f"{name!r:.12}",
)
def test_a_name_that_no_message_could_carry_is_refused(name):
    world = market()
    refused = pytest.raises(UsageError, match=r"cannot be a name, .*: take a text of 1 to 256")
    with refused as caught:
        world.add_client(name, "porto")
    str(caught.value).encode()  # can be printed, whatever the name was
    with refused:
        World().add_brokers([("porto", name)])
    if name is not None:
        with refused:
            World().add_brokers([], alone=name)
    assert list(world.clients) == ["ticker", "anna"]


@pytest.mark.parametrize(
    "name", ["x", "x" * NAME_MAX, "Zoë 🚲", "a\n"], ids=lambda name: f"{name!r:.12}"
)
def test_a_name_that_the_codec_takes_is_taken(name):
    world = World()
    world.add_brokers([], alone=name)
    world.add_client(name[::-1] if name[::-1] != name else "anna", name)
    hello = Hello(PROTOCOL_VERSION, name)
    assert decode(encode(hello)[4:]) == hello


def test_a_refused_client_leaves_nothing_behind():
    world = market()
    with pytest.raises(UsageError):
        world.add_client("bert", "braga")
    assert list(world.clients) == ["ticker", "anna"]
    world.add_client("bert", "lisbon")


def test_a_refused_publication_is_no_publication():
    world = market()
    before = len(world.events)
    for attributes, error in (
        ({"price": 0}, NotAdvertised),
        ({"price": float("nan")}, InvalidNotification),
        ({"price": [1]}, InvalidNotification),
        ({"": 1}, InvalidNotification),
    ):
        with pytest.raises(error):
            world.clients["ticker"].publish(attributes)
    assert len(world.events) == before
    world.clients["ticker"].publish({"price": 41})
    world.settle()
    assert numbers(world) == [1]


def test_a_publisher_that_is_away_is_told_when_its_outbox_is_full():
    world = market(outbox_max=2)
    ticker = world.clients["ticker"]
    ticker.detach()
    ticker.publish({"price": 41})
    ticker.publish({"price": 42})
    with pytest.raises(OutboxFull):
        ticker.publish({"price": 43})
    ticker.attach()
    world.settle()
    ticker.publish({"price": 44})
    world.settle()
    assert numbers(world) == [1, 2, 3]
    assert check(world).violations == ()


def test_filters_may_be_texts_conditions_or_filters():
    wanted = Filter.parse("price > 40")
    assert as_filter("price > 40") == as_filter(wanted) == as_filter(attr("price") > 40) == wanted
    world = market()
    assert world.clients["anna"].subscribe(attr("price") > 40) == wanted
    assert world.clients["ticker"].advertise(wanted) == wanted
    world.clients["anna"].unsubscribe(wanted)
    world.clients["ticker"].unadvertise("price > 40")
    world.settle()
    assert check(world).violations == ()


# Time


def test_run_until_stops_there():
    world = market()
    world.clients["ticker"].publish({"price": 41})
    start = world.now
    world.run_until(start + 23 * MS_NS)
    assert numbers(world) == []
    world.run_until(start + 24 * MS_NS)
    assert numbers(world) == [1]
    assert world.now == start + 24 * MS_NS


def test_time_passes_when_nothing_happens_and_never_goes_back():
    world = line("porto")
    world.run_until(500)
    assert world.now == 500
    world.run_until(100)
    assert world.now == 500


def test_settling_waits_for_everything_but_for_old_age():
    world = market()
    world.clients["anna"].detach()
    world.settle()
    world.clients["ticker"].publish({"price": 41})
    world.settle()
    assert world.now < world.limits.backlog_age_ns // 2
    assert world.broker("porto").core.next_deadline() is not None
    world.run_until(world.now + world.limits.backlog_age_ns)
    world.clients["anna"].attach()
    world.settle()
    assert [event.count for event in world.events if event.kind == "lost"] == [1]


def test_a_world_that_never_gets_quiet_says_so(monkeypatch):
    monkeypatch.setattr(world_module, "SETTLE_MAX", 100)
    world = line("porto")

    def again(_):
        world.agenda.at(world.now + 1, again)

    world.agenda.at(0, again)
    with pytest.raises(UsageError, match="no quiet after 100 events: something goes on for ever"):
        world.settle()


def test_a_delivery_takes_the_time_of_its_links():
    world = market(broker_link=LinkSpec(100 * MS_NS), client_link=LinkSpec(7 * MS_NS))
    start = world.now
    world.clients["ticker"].publish({"price": 41})
    world.settle()
    (delivered,) = (event for event in world.events if event.kind == "delivered")
    assert delivered.time_ns == start + 214 * MS_NS


# Clients


def test_what_an_application_gets():
    world = market()
    world.clients["anna"].subscribe("topic = 'gas'")
    world.settle()
    world.clients["ticker"].publish({"price": 41, "topic": "gas"}, payload=b"body")
    world.settle()
    (got,) = world.clients["anna"].received
    assert got.notification == Notification("ticker", 1, {"price": 41, "topic": "gas"}, b"body")
    assert set(map(str, got.subscriptions)) == {"price > 40", "topic = 'gas'"}


def test_changing_the_attributes_later_changes_nothing():
    world = market()
    attributes = {"price": 41}
    world.clients["ticker"].publish(attributes)
    attributes["price"] = 0
    world.settle()
    assert check(world).violations == ()
    assert world.clients["anna"].received[0].notification.attributes == {"price": 41}


def test_who_detaches_comes_back_to_where_it_was():
    world = market()
    anna = world.clients["anna"]
    anna.detach()
    assert anna.connection is None
    anna.detach()
    world.settle()
    anna.attach()
    world.settle()
    assert (anna.home, anna.core.epoch) == ("porto", 2)
    assert [one.epoch for one in world.broker("porto").core.border.of("anna")] == [2]
    assert check(world).violations == ()


def test_what_was_said_before_the_goodbye_still_arrives():
    world = market()
    ticker = world.clients["ticker"]
    ticker.publish({"price": 41})
    ticker.advertise("topic = 'gas'")
    ticker.detach()
    world.settle()
    assert numbers(world) == [1]
    (session,) = world.broker("faro").core.border.of("ticker")
    assert len(session.advertisements) == 2


def test_what_was_on_its_way_when_the_connection_broke_is_gone_and_comes_again():
    world = market()
    ticker = world.clients["ticker"]
    ticker.publish({"price": 41})
    ticker.disconnect()
    world.settle()
    assert numbers(world) == []
    ticker.attach()
    world.settle()
    assert numbers(world) == [1]
    assert check(world).violations == ()


def test_who_leaves_leaves_nothing_behind():
    world = market()
    world.clients["anna"].detach(leave=True)
    world.settle()
    assert world.broker("porto").core.border.of("anna") == []
    assert not world.broker("faro").core.routing.destinations.counts()
    assert [event.kind for event in world.events][-2:] == ["left", "detached"]
    assert check(world).violations == ()


def test_who_left_may_come_again():
    world = market()
    anna = world.clients["anna"]
    anna.detach(leave=True)
    world.settle()
    anna.attach()
    world.settle()
    world.clients["ticker"].publish({"price": 41})
    world.settle()
    assert numbers(world) == [1]
    assert check(world).violations == ()


def test_a_broker_that_is_down_is_tried_again():
    world = market()
    world.crash(Crash("porto", world.now, 1000 * MS_NS))
    world.run_until(world.now + 500 * MS_NS)
    assert world.clients["anna"].connection is None
    world.settle()
    assert world.clients["anna"].connection is not None
    assert check(world).violations == ()


def test_a_client_that_is_added_later_waits_for_its_word():
    world = line("porto")
    anna = world.add_client("anna", "porto", attach=False)
    anna.subscribe("price > 40")
    assert anna.connection is None
    assert not world.connections
    anna.attach()
    world.settle()
    assert [one.client for one in world.broker("porto").core.border.all()] == ["anna"]
    assert check(world).violations == ()


def test_a_connection_that_ended_is_forgotten_by_everybody():
    world = market()
    anna = world.clients["anna"]
    for _ in range(3):
        anna.disconnect()
        world.run_until(world.now + NOTICE_NS)
        anna.attach()
        world.settle()
    assert list(world.connections) == ["ticker#1", "anna#4"]
    assert list(world.broker("porto").pipes) == ["lisbon", "anna#4"]
    assert list(anna.pipes) == ["anna#4"]


# Limits


def test_limits_hold_at_every_broker():
    world = market(limits=Limits(backlog_count=1))
    world.clients["anna"].detach()
    world.settle()
    for price in (41, 42, 43):
        world.clients["ticker"].publish({"price": price})
    world.settle()
    world.clients["anna"].attach()
    world.settle()
    assert numbers(world) == [3]
    assert [event.count for event in world.events if event.kind == "lost"] == [2]
    assert check(world).violations == ()


def test_a_session_that_is_away_for_too_long_ends():
    world = market(limits=Limits(away_ns=100 * SECOND_NS))
    anna = world.clients["anna"]
    anna.detach()
    world.run_until(world.now + 101 * SECOND_NS)
    assert world.broker("porto").core.border.of("anna") == []
    assert not world.broker("faro").core.routing.destinations.counts()
    world.clients["ticker"].publish({"price": 41})
    world.settle()
    anna.attach()
    world.settle()
    (lost,) = (event for event in world.events if event.kind == "lost")
    assert lost.count == 0, "nobody knows how many"
    world.clients["ticker"].publish({"price": 42})
    world.settle()
    assert numbers(world) == [2]
    assert check(world).violations == ()


# Watching


def test_all_messages_are_counted():
    world = line("porto", "lisbon")
    sent = []
    world.watchers.append(lambda *message: sent.append(message))
    ticker, anna = world.add_client("ticker", "porto"), world.add_client("anna", "lisbon")
    ticker.advertise("price > 0")
    anna.subscribe("price > 40")
    world.settle()
    for price in range(30, 60):
        ticker.publish({"price": price})
    anna.detach()
    world.settle()
    anna.attach()
    world.settle()
    anna.detach(leave=True)
    world.settle()
    assert world.messages() == len(sent) > 50
    names = {(sender, receiver) for sender, receiver, _ in sent}
    ends = [("ticker", "porto"), ("porto", "lisbon"), ("lisbon", "anna")]
    assert names == {*ends, *((b, a) for a, b in ends)}


def test_listeners_hear_every_event_at_once():
    world = line("porto")
    heard = []
    world.listeners.append(heard.append)
    world.add_client("anna", "porto").subscribe("price > 40")
    assert heard == world.events
    assert [event.kind for event in heard] == ["attached", "subscribed"]


@pytest.mark.parametrize("routing", ["flooding", "simple", "identity", "covering", "merging"])
def test_every_routing_delivers_the_same(routing):
    world = market(routing=routing)
    world.add_client("bert", "lisbon").subscribe("price between 30 and 45 or price = 99")
    world.settle()
    for price in (20, 35, 41, 50, 99):
        world.clients["ticker"].publish({"price": price})
    world.settle()
    assert numbers(world) == [3, 4, 5]
    assert numbers(world, "bert") == [2, 3, 5]
    assert check(world).violations == ()


def test_attaching_at_a_broker_that_is_not_there_changes_nothing():
    world = market()
    client = next(iter(world.clients.values()))
    home = client.home
    with pytest.raises(UsageError):
        client.attach("nowhere")
    assert client.home == home
    client.attach()
    world.settle()
    assert check(world).violations == ()
