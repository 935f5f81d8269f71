"""What a client may do, and that a broker asks before it does anything for a client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import filters, values
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.client import Client
from wayfare.core.effects import Close, Granted, LinkDown, Received, Send
from wayfare.core.filters import EVERYTHING, NOTHING, Filter
from wayfare.core.grants import TOLD_MAX, Grants


def f(text):
    return Filter.parse(text)


PARKING = f("service = 'parking'")
CAR = Grants("car-17", (PARKING, f("price > 10")), (f("service = 'speed'"),), (f("kmh > 0"),))

ALLOWED = [
    m.Subscribe(PARKING),
    m.Subscribe(f("service = 'parking' and free > 0")),
    m.Subscribe(f("service = 'parking' and free > 0 or price > 20")),  # each half by another one
    m.Subscribe(NOTHING),
    m.Unsubscribe(EVERYTHING),
    m.Unadvertise(EVERYTHING),
    m.Advertise(f("kmh > 5")),
    m.Publish(1, {"service": "speed", "kmh": 92}),
    m.Attach("car-17", 1, 0, (PARKING,), (f("kmh > 0"),)),
    m.Attach("car-17", 1, 0, digest=7),
    m.Detach(),
    m.Ack(1),
    # Its own reply address, and replies to others.
    m.Subscribe(f("$inbox = 'a1b2'")),
    m.Advertise(f("exists $inbox")),
    m.Publish(2, {"$inbox": "a1b2", "$request": 1}),
]
REFUSED = {
    "may not subscribe to price > 0: its account allows subscribe to service = 'parking'; price > 10": (
        m.Subscribe(f("price > 0"))
    ),
    "may not subscribe to x > 0 or service = 'parking': ": m.Subscribe(
        f("service = 'parking' or x > 0")
    ),
    "may not advertise service = 'parking': its account allows advertise kmh > 0": m.Advertise(
        PARKING
    ),
    "may not publish a notification with service: its account allows publish service = 'speed'": (
        m.Publish(1, {"service": "parking"})
    ),
    "may not subscribe to exists $inbox: ": m.Subscribe(f("exists $inbox")),
    "may not subscribe to $inbox in ('a1b2', 'c3'): ": m.Subscribe(f("$inbox in ('a1b2', 'c3')")),
    "may not publish a notification with $inbox, $request, free: ": (
        m.Publish(2, {"$inbox": "a1b2", "$request": 1, "free": 3})
    ),
    "may not subscribe to x > 0: ": m.Attach("car-17", 1, 0, (PARKING, f("x > 0"))),
    "may not advertise x > 0: ": m.Attach("car-17", 1, 0, (PARKING,), (f("x > 0"),)),
}


@pytest.mark.parametrize("message", ALLOWED, ids=repr)
def test_what_a_granted_filter_covers_is_allowed(message):
    assert CAR.refusal(message) is None


@pytest.mark.parametrize(("reason", "message"), REFUSED.items())
def test_what_none_covers_is_refused_and_the_rule_is_named(reason, message):
    assert CAR.refusal(message).startswith(f"car-17 {reason}")


def test_no_list_is_everything_and_an_empty_one_is_nothing():
    asked = [m.Subscribe(PARKING), m.Advertise(PARKING), m.Publish(1, {"x": 1})]
    assert [Grants("anna").refusal(one) for one in asked] == [None] * 3
    assert [Grants("anna", (), (), ()).refusal(one) for one in asked] == [
        "anna may not subscribe to service = 'parking': its account allows subscribe to nothing",
        "anna may not advertise service = 'parking': its account allows advertise nothing",
        "anna may not publish a notification with x: its account allows publish nothing",
    ]


def test_a_refusal_is_short_whatever_was_asked():
    many = tuple(f(f"x = '{i:090}'") for i in range(20))
    refusal = Grants("anna", many).refusal(m.Subscribe(f(f"y = '{'a' * 900}'")))
    assert len(refusal) < 2 * TOLD_MAX + 100


@given(st.lists(filters(), max_size=3), filters(), st.dictionaries(st.text(), values(), max_size=3))
def test_what_is_allowed_brings_nothing_that_is_not(granted, asked, attributes):
    grants = Grants("anna", tuple(granted))
    if grants.refusal(m.Subscribe(asked)) is None and asked.matches(attributes):
        assert any(one.matches(attributes) for one in granted)


# At a broker


def attached(broker, link="l", **fields):
    return broker.step(Received(link, m.Attach("car-17", 1, 0, **fields)), 0)


def test_a_broker_refuses_and_closes():
    broker = Broker("porto")
    assert broker.step(Granted("l", CAR), 0) == []
    assert attached(broker) == [Send("l", m.Welcome(1, 0))]
    (closed,) = broker.step(Received("l", m.Subscribe(f("price > 0"))), 0)
    reason = CAR.refusal(m.Subscribe(f("price > 0")))
    assert closed == Close("l", reason, fault=True, denied="subscribe")
    assert broker.grants == {}
    (session,) = broker.border.of("car-17")
    assert not session.subscriptions


def test_what_comes_by_digest_is_checked_when_it_is_known():
    """Her old broker did not restrict her; the new one has never seen her filters."""
    porto, faro = Broker("porto", ["faro"]), Broker("faro", ["porto"])
    porto.step(Received("faro", m.Announce(("faro",))), 0)
    faro.step(Received("porto", m.Announce(("porto",))), 0)
    anna = Client("car-17", digest_from=1)
    anna.subscribe(f("price > 0"))
    for effect in anna.attach("porto", "l1"):
        for back in porto.step(Received("l1", effect.message), 0):
            if back.link == "l1":
                anna.step(Received("l1", back.message), 0)
    (attach,) = anna.attach("faro", "l2")
    assert attach.message.digest
    for gone in (False, True):
        link = f"l2-{gone}"
        faro.step(Granted(link, CAR), 0)
        (ask,) = faro.step(Received(link, attach.message), 0)
        if gone:  # what she said behind it counts, so the answer does, too
            faro.step(Received(link, m.Ack(0)), 0)
            faro.step(LinkDown(link), 0)
        (profile,) = porto.step(Received("faro", ask.message), 0)
        effects = faro.step(Received("porto", profile.message), 0)
        reason = CAR.refusal(m.Subscribe(f("price > 0")))
        assert Close(link, reason, fault=True, denied="attach") in effects
        assert faro.border.of("car-17") == []
        assert faro.grants == {}


def test_grants_are_forgotten_with_the_connection():
    broker = Broker("porto")
    broker.step(Granted("l", CAR), 0)
    attached(broker)
    broker.step(Received("l", m.Detach()), 0)
    broker.step(LinkDown("l"), 0)
    assert broker.grants == {}
    broker.step(Granted("never attached", CAR), 0)
    broker.step(LinkDown("never attached"), 0)
    assert broker.grants == {}


def test_a_later_connection_of_the_client_ends_the_grants_of_the_first():
    broker = Broker("porto")
    broker.step(Granted("l1", CAR), 0)
    broker.step(Received("l1", m.Attach("car-17", 1, 0)), 0)
    broker.step(Granted("l2", CAR), 0)
    broker.step(Received("l2", m.Attach("car-17", 2, 0)), 0)
    assert [*broker.grants] == ["l2"]


def test_grants_without_limits_only_say_whose_account_it_is():
    broker = Broker("porto")
    broker.step(Granted("l1", Grants("car-17", account="fleet")), 0)
    broker.step(Received("l1", m.Attach("car-17", 1, 0)), 0)
    assert not broker.grants  # so publishing asks nobody
    assert broker.border.memory.noted("fleet") > 0
    broker.step(Granted("l1", Grants("car-17", account="cars")), 0)
    assert broker.border.memory.noted("fleet") == 0 < broker.border.memory.noted("cars")


def test_a_deny_rule_takes_replies_away_if_it_names_the_address():
    others = Grants("anna", deny_subscribe=(f("price > 0"),), deny_publish=(f("true"),))
    assert others.refusal(m.Subscribe(f("$inbox = 'a1b2'"))) is None, "it is not about replies"
    assert others.refusal(m.Publish(1, {"$inbox": "a1b2", "$request": 1})) is None
    silent = Grants(
        "anna",
        deny_subscribe=(f("exists $inbox"),),
        deny_publish=(f("exists $inbox"),),
        deny_advertise=(f("exists $inbox"),),
    )
    for message in (
        m.Subscribe(f("$inbox = 'a1b2'")),
        m.Advertise(f("exists $inbox")),
        m.Publish(1, {"$inbox": "a1b2", "$request": 1}),
    ):
        assert "its account denies" in silent.refusal(message)
