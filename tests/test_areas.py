"""Publications that are of use somewhere: who is known to be elsewhere gets none, and misses none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare
from roads import lost, network
from test_client_api import live
from wayfare import cli, eventlog
from wayfare.core import client as client_module
from wayfare.core import codec, history
from wayfare.core import messages as m
from wayfare.core.areas import area_of, is_outside, touches
from wayfare.core.broker import Broker
from wayfare.core.client import Client
from wayfare.core.effects import Notify, Received
from wayfare.core.filters import Filter
from wayfare.core.history import NO_LOSS, Backlog, Limits, Stored
from wayfare.core.messages import Area, State
from wayfare.core.places import Place, Places, of_edges
from wayfare.core.templates import parse
from wayfare.core.virtual import Ahead
from wayfare.errors import CodecError, InvalidNotification
from wayfare.eventlog import Event
from wayfare.sim.fuzz import Job, fuzz
from wayfare.sim.histories import History
from wayfare.sim.relevance import check_inside, was_elsewhere
from wayfare.sim.world import World
from wayfare.testing import Tree

X = Filter.parse("x > 0")
LIMITS = Limits()
HERE, THERE = Area(("here",)), Area(("there",))
BERLIN = Area((), (52.52, 13.38, 500.0))


def note(number, area=None):
    return m.Notification("tom", number, {"x": number}, area=area)


# Areas


@pytest.mark.parametrize(
    ("area", "state", "outside"),
    [
        (HERE, State("here"), False),
        (HERE, State("there"), True),
        (HERE, State(), False),
        (HERE, State("", (52.52, 13.38)), False),
        (BERLIN, State("anywhere", (52.521, 13.38)), False),
        (BERLIN, State("anywhere", (52.53, 13.38)), True),
        (BERLIN, State("anywhere"), False),
    ],
)
def test_outside_is_only_who_has_said_so(area, state, outside):
    assert is_outside(area, state) == outside


@pytest.mark.parametrize(
    ("given", "area"),
    [
        ("R1", Area(("R1",))),
        (["R1", "R2"], Area(("R1", "R2"))),
        ((52, 13, 500), Area((), (52.0, 13.0, 500.0))),
        (BERLIN, BERLIN),
    ],
)
def test_an_area_as_applications_say_it(given, area):
    assert area_of(given) == area


BAD = [
    (),
    [""],
    ["x" * 257],
    ["R1"] * 257,
    (91, 0, 1),
    (0, 181, 1),
    (0, 0, -1),
    (0, 0, 3e7),
    (0, 0, float("nan")),
    (0, 0),
    (0, True, 1),
    ["R1", 2],
    Area(),
    Area(("R1",), (0.0, 0.0, 1.0)),
    b"R1",
    5,
]


@pytest.mark.parametrize("given", BAD, ids=lambda one: f"{one!r:.20}")
def test_what_is_no_area_is_refused(given):
    with pytest.raises(InvalidNotification):
        area_of(given)


NAMES = ("a", "b", "c")
AREAS = st.one_of(
    st.sets(st.sampled_from(NAMES), min_size=1).map(lambda names: Area(tuple(sorted(names)))),
    st.floats(0, 400_000).map(lambda metres: Area((), (0.0, 0.0, metres))),
)


@given(
    AREAS,
    st.lists(st.tuples(st.sampled_from([None, (0.0, 0.0), (0.0, 2.0)])), min_size=3, max_size=3),
)
def test_who_is_in_a_range_that_an_area_does_not_touch_is_outside(area, positions):
    places = Places(
        {
            name: Place(broker="b1", position=at)
            for name, (at,) in zip(NAMES, positions, strict=True)
        }
    )
    outside = [is_outside(area, places.located(State(name))) for name in NAMES]
    assert touches(area, "b1", places) == (not all(outside))


# A backlog


def said(backlog, state, window=100):
    return [
        (one.number, one.reason, one.expired) if isinstance(one, m.Gap) else one.notification.number
        for one in backlog.take(window, 0, state)
    ]


def backlog_of(*areas):
    backlog = Backlog()
    for number, area in enumerate(areas, 1):
        backlog.put(Stored(note(number, area), 10), 0, LIMITS)
    return backlog


def test_what_is_of_use_elsewhere_is_passed_over_and_not_lost():
    backlog = backlog_of(None, THERE, THERE, None, HERE)
    assert said(backlog, State("here")) == [1, (3, NO_LOSS, 2), 4, 5]


def test_what_was_passed_over_in_vain_is_decided_again():
    backlog = backlog_of(THERE, HERE)
    assert said(backlog, State("here")) == [(1, NO_LOSS, 1), 2]
    assert backlog.resume(0)
    assert said(backlog, State("there")) == [1, (2, NO_LOSS, 1)]
    backlog.acknowledge(2)
    assert backlog.bytes == 0 and not backlog


def test_the_window_counts_what_was_passed_over():
    backlog = backlog_of(THERE, THERE, None)
    assert said(backlog, State("here"), window=2) == [(2, NO_LOSS, 2)]
    backlog.acknowledge(2)
    assert said(backlog, State("here"), window=2) == [3]


# A client


def client_at(state, follows=()):
    anna = Client("anna")
    anna.subscribe(X)
    anna.be(state)
    for text in follows:
        anna.follow(parse(text))
    sent = [one.message for one in anna.attach("porto", "anna#1")]
    anna.step(Received("anna#1", m.Welcome(1, 0)), 0)
    return anna, sent[0]


def test_an_attachment_says_where_the_client_is():
    assert client_at(State("here", None, {"need": 1}))[1].state == State("here")
    assert client_at(State())[1].state is None
    followed = client_at(State("here"), ["location in myloc"])[1]
    assert followed.state is None and followed.followed.state == State("here")


def test_a_broker_hears_where_the_client_is_though_it_follows_nothing():
    anna, _ = client_at(State("here"))
    (said,) = anna.be(State("there", (1.0, 2.0), {"need": 1}))
    assert said.message == State("there", (1.0, 2.0))
    assert anna.be(State("there", (1.0, 2.0), {"need": 2})) == []


@pytest.mark.parametrize(
    "message", [m.Deliver, lambda *one: m.Current(*one, 1), lambda *one: m.Late(*one)]
)
@pytest.mark.parametrize(("state", "count"), [(State("here"), 0), (State("there"), 1)])
def test_a_client_drops_what_was_on_its_way_when_it_went_on(message, state, count):
    anna = Client("anna", late=2)
    anna.subscribe(X, current=True)
    anna.attach("porto", "anna#1")
    anna.step(Received("anna#1", m.Welcome(1, 0)), 0)
    anna.be(state)
    effects = anna.step(Received("anna#1", message(1, note(1, THERE))), 0)
    assert len([one for one in effects if isinstance(one, Notify)]) == count
    assert anna.delivered == 1


# A network


def numbers(net, name="anna"):
    return [one.notification.number for one in net.told[name] if isinstance(one, Notify)]


def tell(net, **more):
    net._perform("tom", net.clients["tom"].publish({"x": 1, "y": 1}, **more))
    net.settle()


def be(net, *state):
    net._perform("anna", net.clients["anna"].be(State(*state)))
    net.settle()


def test_who_is_elsewhere_gets_nothing_until_it_is_there():
    net = network()
    be(net, "here")
    tell(net, area=THERE)
    tell(net, area=HERE)
    be(net, "there")
    tell(net, area=THERE)
    assert numbers(net) == [2, 3] and lost(net) == []


def test_a_client_that_comes_back_gets_what_is_of_use_where_it_is():
    net = network()
    be(net, "here")
    net.cut("anna")
    tell(net, area=HERE)
    tell(net, area=THERE)
    net.clients["anna"].be(State("there"))
    net.attach("anna", "faro")
    net.settle()
    assert numbers(net) == [2] and lost(net) == []


def test_what_a_dead_connection_swallowed_is_decided_where_the_client_is():
    """The old broker sends a `Gap` into it, as to somebody who is elsewhere."""
    net = network()
    be(net, "here")
    net.stop("porto", "anna")
    tell(net, area=THERE)
    net.clients["anna"].be(State("there"))
    net.attach("anna", "faro")
    net.settle()
    assert numbers(net) == [1] and lost(net) == []


@pytest.mark.parametrize(("where", "got"), [("here", []), ("there", [1]), ("", [1])])
def test_a_current_value_comes_where_it_is_of_use(where, got):
    net = network()
    tell(net, retain=m.Retain(("y",)), area=THERE)
    be(net, where)
    before = len(numbers(net))
    net._perform("anna", net.clients["anna"].subscribe(Filter.parse("y > 0"), current=True))
    net.settle()
    assert numbers(net)[before:] == got and lost(net) == []


def test_a_restarted_broker_knows_where_a_client_is():
    net = network()
    be(net, "here")
    loaded = Broker("porto", ["lisbon"])
    loaded.load(net.brokers["porto"].save())
    (session,) = [one for one in loaded.border.all() if one.client == "anna"]
    assert session.state == State("here")


def test_what_is_followed_comes_where_it_is_of_use_and_is_not_sent_elsewhere():
    """A broker knows the positions of locations by its map."""
    places = Places({"here": Place(broker="porto", position=(0.0, 0.0))})
    world = World(seed=1, ahead=Ahead(places, places.next_brokers))
    world.add_brokers([("porto", "lisbon")])
    city, car = world.add_client("city", "lisbon"), world.add_client("car", "porto")
    city.advertise("exists location")
    car.follow("location in myloc")
    car.be(State("here"))
    world.settle()
    sent = []
    world.watchers.append(lambda _sender, _receiver, message: sent.append(message))
    for metres in (1.0, 20_000.0):
        city.publish({"location": "here"}, area=Area((), (0.0, 0.1, metres)))
        world.settle()
    assert [one.notification.number for one in sent if isinstance(one, m.Here)] == [2]
    assert [one.expired for one in sent if isinstance(one, m.HereGap)] == [1]
    assert [one.notification.number for one in car.received] == [2]


@pytest.mark.parametrize(("location", "kept"), [("faro", 1), ("porto", 0)])
def test_nobody_listens_ahead_for_what_is_of_no_use_there(location, kept):
    streets = of_edges([("porto", "lisbon"), ("lisbon", "faro")])
    world = World(seed=1, ahead=Ahead(streets, nlb=streets.next_brokers))
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    city, car = world.add_client("city", "porto"), world.add_client("car", "lisbon")
    city.advertise("exists location")
    car.follow("location in myloc")
    car.be(State("lisbon"))
    world.settle()
    city.publish({"location": "faro"}, area=Area((location,)))
    world.settle()
    assert len(world.brokers["faro"].core.replicator.ear.store.kept) == kept
    car.detach()
    car.be(State("faro"))
    car.attach("faro")
    world.settle()
    assert len(car.received) == kept and world.events[-1].kind != "lost"


# Wire, event log, judge


@pytest.mark.parametrize("given", [Area(), Area(("R1",), (0.0, 0.0, 1.0)), Area(("",))])
@pytest.mark.parametrize("kind", ["publish", "notification"])
def test_a_peer_that_sends_what_is_no_area_is_at_fault(kind, given):
    message = m.Publish(1, {"x": 1}, area=given) if kind == "publish" else note(1, given)
    with pytest.raises(CodecError):
        codec.decode(codec.encode(message))


@pytest.mark.parametrize(
    ("area", "text"),
    [
        (Area(("R1", "R2")), {"locations": ["R1", "R2"]}),
        (BERLIN, {"lat": 52.52, "lon": 13.38, "metres": 500.0}),
    ],
)
def test_the_event_log_says_where_it_is_of_use(area, text):
    assert json.loads(eventlog.row(Event(0, "published", area=area), "r")["area"]) == text


def test_the_judge_knows_who_is_elsewhere():
    anna = History()
    anna.became = [
        Event(10, "became", "anna", location="here"),
        Event(20, "became", "anna", location="there"),
    ]
    published = Event(12, "published", "tom", number=1, area=THERE)
    late = [
        len(list(check_inside(published, Event(at, "delivered", "anna"), anna)))
        for at in (5, 15, 20, 25)
    ]
    assert late == [0, 1, 0, 0]
    assert was_elsewhere(THERE, anna, 12, 25) and not was_elsewhere(THERE, anna, 21, 25)


@pytest.mark.parametrize(("seed", "mobile"), [(10, "subscribers"), (9, "walkers")])
def test_the_judges_see_brokers_that_decide_wrongly(seed, mobile, monkeypatch):
    def rules():
        return {one.rule for one in fuzz(Job(seed, mobile=mobile)).verdict.violations}

    assert rules() == set()
    monkeypatch.setattr(history, "is_outside", lambda *_: True)
    assert "complete" in rules()
    monkeypatch.setattr(history, "is_outside", lambda *_: False)
    monkeypatch.setattr(client_module, "is_outside", lambda *_: False)
    assert rules() & {"elsewhere", "wanted"}


# Live


@live
async def test_live_clients_get_what_is_of_use_where_they_are():
    with Tree("porto-lisbon") as tree:
        missed = []
        more = {"on_lost": lambda *loss: missed.append(loss)}
        async with (
            wayfare.connect(tree["porto"]) as tom,
            wayfare.connect(tree["lisbon"], **more) as anna,
            wayfare.connect(tree["lisbon"], **more) as bert,
        ):
            anna.location, bert.location = "R1", (52.6, 13.38)
            mine, his = await anna.subscribe("exists x"), await bert.subscribe("exists x")
            await mine.ready()
            await his.ready()
            await tom.advertise("exists x")
            await tom.publish({"x": 1}, area=["R2"])
            await tom.publish({"x": 2}, area=(52.52, 13.38, 500))
            await tom.publish({"x": 3}, area="R1")
            assert [(await anext(aiter(mine)))["x"] for _ in range(2)] == [2, 3]
            assert [(await anext(aiter(his)))["x"] for _ in range(2)] == [1, 3]
            with pytest.raises(InvalidNotification, match="an area is locations"):
                await tom.publish({"x": 4}, area=5)
        assert missed == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--near", "52.5,13.4"], "an area is locations"),
        (["--near", "a,b,c"], "--near is a latitude"),
        (["--area", "R1,,R2"], "a location of an area"),
        (["--retain", "x", "--clear", "--area", "R1"], "leave out --area"),
    ],
)
def test_an_area_that_makes_no_sense_is_refused_before_anybody_is_called(options, said, capsys):
    assert cli.main(["pub", "127.0.0.1:1", "x=1", *options]) == 2
    assert said in capsys.readouterr().err


def test_what_was_passed_over_is_not_brought_back_by_a_location_change():
    """Found at random, in the judge: its location stood for that of the notice, but was outside the area."""
    assert fuzz(Job(81047, "identity", mobile="learners")).verdict.violations == ()
