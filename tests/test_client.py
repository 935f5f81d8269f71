"""The client core: what it remembers, what it says again, and what the application is told."""

from contextlib import suppress
from math import nan

import pytest

from wayfare.core import codec
from wayfare.core import messages as m
from wayfare.core.client import ACK_DELAY_NS, ACK_EVERY, Client
from wayfare.core.effects import Close, LinkDown, Lost, Notify, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.messages import (
    Ack,
    Advertise,
    Attach,
    Deliver,
    Detach,
    Gap,
    Hello,
    Notification,
    Publish,
    Published,
    Subscribe,
    Unadvertise,
    Unsubscribe,
    Update,
    Welcome,
)
from wayfare.errors import FilterError, InvalidNotification, NotAdvertised, OutboxFull

X = Filter.parse("x > 1")
NARROW = Filter.parse("x > 2")
ALL = Filter.parse("true")


def note(number=1, **attributes):
    return Notification("tom", number, attributes or {"x": 2})


def attached(**more):
    """A client that is attached at porto, with `link` as its link, and welcome there."""
    client = Client("anna", **more)
    client.attach("porto", "link")
    tell(client, Welcome(1, 0))
    return client


def tell(client, message, now=0, link="link"):
    return client.step(Received(link, message), now)


def deliver(client, first, last, now=0):
    return [
        effect for n in range(first, last + 1) for effect in tell(client, Deliver(n, note(n)), now)
    ]


# Attaching


def test_the_first_attach_says_who_is_there():
    client = Client("anna")
    assert client.attach("porto", "link") == [
        Send("link", Attach("anna", epoch=1, delivered=0, home="porto"))
    ]


def test_attaching_says_all_that_was_asked_for_while_away():
    client = Client("anna")
    assert client.subscribe(X) == client.advertise(ALL) == client.publish({"x": 1}) == []
    assert client.attach("porto", "link") == [
        Send("link", Attach("anna", 1, 0, (X,), (ALL,), home="porto")),
        Send("link", Publish(1, {"x": 1})),
    ]


def test_attaching_again_says_how_far_it_got():
    client = attached()
    deliver(client, 1, 3)
    client.step(LinkDown("link"), 0)
    assert client.attach("porto", "link2") == [
        Send("link2", Attach("anna", 2, 3, previous=(("porto", 1),), welcomed=True, home="porto"))
    ]


def test_the_first_broker_stays_the_home():
    client = attached()
    (send,) = client.attach("faro", "link2")
    assert send.message.home == "porto"
    client.detach(leave=True)
    (send,) = client.attach("beja", "link3")
    assert send.message.home == "porto"


def test_attachments_without_a_welcome_are_remembered_newest_first():
    client = attached()
    client.attach("lisbon", "link2")
    (again,) = client.attach("faro", "link3")
    assert again.message.previous == (("lisbon", 2), ("porto", 1))
    tell(client, Welcome(3, 0), link="link3")
    assert client.previous == (("faro", 3),)


def test_any_number_of_attachments_without_a_welcome_can_be_sent():
    client = Client("anna")
    for attempt in range(m.PREVIOUS_MAX + 2):
        (send,) = client.attach("porto", f"link{attempt}")
    assert codec.decode(codec.encode(send.message)[4:]) == send.message


# Attaching before it is known where


def test_who_had_a_session_can_attach_before_it_knows_where():
    client = attached()
    assert client.may_attach_unseen()
    assert client.attach(None, "link2") == [
        Send("link2", Attach("anna", 2, 0, previous=(("porto", 1),), welcomed=True, home="porto"))
    ]
    client.greet("faro")
    assert client.previous == (("faro", 2), ("porto", 1))
    tell(client, Welcome(2, 0), link="link2")
    assert client.previous == (("faro", 2),)


def moved(**more):
    """A client that has come from porto to faro, and does not know whether its session has."""
    client = attached(**more)
    client.attach("faro", "link")
    tell(client, Welcome(2, 0))
    return client


@pytest.mark.parametrize(
    "proof", [Deliver(1, note()), Gap(1, "backlog_count"), Published(0)], ids=lambda one: type(one)
)
def test_it_can_when_its_session_is_known_to_have_come_along(proof):
    client = moved()
    assert not client.may_attach_unseen()
    tell(client, proof)
    assert client.may_attach_unseen()


def never_welcomed():
    client = Client("anna")
    client.attach("porto", "link")
    return client


def with_something_local():
    client = attached()
    client.subscribe(X, m.Terms(local=True))
    return client


def not_welcomed_where_it_was_last():
    client = attached()
    client.attach("faro", "link2")
    return client


def not_greeted():
    client = attached()
    client.attach(None, "link2")
    client.step(LinkDown("link2"), 0)
    return client


def restarted_where_nothing_had_come_yet():
    """Porto delivered something, faro did not: its session may not have come along."""
    before = attached()
    tell(before, Deliver(1, note()))
    before.attach("faro", "link")
    tell(before, Welcome(2, 0))
    client = Client("anna")
    client.remember(before.memory(), before.held(), (), {})
    return client


@pytest.mark.parametrize(
    "client",
    [
        never_welcomed,
        with_something_local,
        not_welcomed_where_it_was_last,
        not_greeted,
        restarted_where_nothing_had_come_yet,
    ],
)
def test_else_it_has_to_wait_until_it_is_greeted(client):
    assert not client().may_attach_unseen()


def test_who_was_not_greeted_says_where_it_was_before_and_all_that_it_wants():
    client = attached(digest_from=0)
    client.subscribe(X)
    client.attach(None, "link2")
    client.step(LinkDown("link2"), 0)
    (again,) = client.attach("faro", "link3")
    assert (again.message.epoch, again.message.previous) == (3, (("porto", 1),))
    assert (again.message.digest, again.message.subscriptions) == (0, (X,))


def test_what_stays_behind_is_made_where_it_turns_out_to_be():
    client = attached()
    client.attach(None, "link2")
    client.subscribe(X, m.Terms(local=True))
    client.greet("faro")
    tell(client, Welcome(2, 0), link="link2")
    assert client.held().local == [(X, "faro")]
    assert X in client.subscriptions


def test_messages_of_an_earlier_connection_are_not_heard():
    client = attached()
    client.subscribe(X)
    client.attach("porto", "link2")
    assert tell(client, Deliver(1, note()), link="link") == []
    assert client.step(LinkDown("link"), 0) == []
    assert (client.link, client.delivered) == ("link2", 0)


# Detaching


def test_detaching_says_goodbye_and_closes():
    client = attached()
    assert client.detach() == [Send("link", Detach()), Close("link", "detached")]
    assert (client.link, client.detach()) == (None, [])


def test_leaving_says_so_and_forgets_what_waits():
    client = attached()
    client.advertise(ALL)
    client.publish({"x": 1})
    assert client.detach(leave=True) == [
        Send("link", Detach(leave=True)),
        Close("link", "detached"),
    ]
    assert client.attach("faro", "link2") == [
        Send("link2", Attach("anna", 2, 0, (), (ALL,), home="porto"))
    ]


def test_leaving_while_away_forgets_what_waits_too():
    client = attached()
    client.advertise(ALL)
    client.step(LinkDown("link"), 0)
    client.publish({"x": 1})
    assert client.detach(leave=True) == []
    assert client.attach("porto", "link2") == [
        Send("link2", Attach("anna", 2, 0, (), (ALL,), home="porto"))
    ]


def test_publications_go_on_counting_after_leaving():
    client = attached()
    client.advertise(ALL)
    client.publish({"x": 1})
    client.detach(leave=True)
    assert client.publish({"x": 2}) == []
    assert client.attach("faro", "link2")[1:] == [Send("link2", Publish(2, {"x": 2}))]


def test_detaching_leaves_no_deadline():
    client = attached()
    deliver(client, 1, 1)
    assert client.next_deadline() is not None
    client.detach()
    assert client.next_deadline() is None


def test_a_link_that_goes_down_leaves_no_deadline():
    client = attached()
    deliver(client, 1, 1)
    assert client.step(LinkDown("link"), 0) == []
    assert (client.link, client.next_deadline()) == (None, None)
    assert client.step(Tick(), 10**18) == []


# Subscribing and advertising


def test_only_the_first_subscribe_and_the_last_unsubscribe_are_said():
    client = attached()
    assert client.subscribe(X) == [Send("link", Subscribe(X))]
    assert client.subscribe(X) == []
    assert client.unsubscribe(X) == []
    assert client.unsubscribe(X) == [Send("link", Unsubscribe(X))]
    assert client.unsubscribe(X) == []


def test_only_the_first_advertise_and_the_last_unadvertise_are_said():
    client = attached()
    assert client.advertise(X) == [Send("link", Advertise(X))]
    assert client.advertise(X) == []
    assert client.unadvertise(X) == []
    assert client.unadvertise(X) == [Send("link", Unadvertise(X))]
    assert client.unadvertise(X) == []


def test_what_was_withdrawn_while_away_is_not_said_again():
    client = attached()
    for each in (X, NARROW):
        client.subscribe(each)
        client.advertise(each)
    client.step(LinkDown("link"), 0)
    assert client.unsubscribe(X) == client.unadvertise(NARROW) == []
    (send,) = client.attach("porto", "link2")
    assert (send.message.subscriptions, send.message.advertisements) == ((NARROW,), (X,))


def test_whatever_was_asked_for_can_be_said_in_one_attach():
    client = Client("anna")
    with suppress(FilterError):
        for n in range(m.FILTERS_MAX + 1):
            client.subscribe(Filter.parse(f"x = {n}"))
    (send,) = client.attach("porto", "link")
    assert codec.decode(codec.encode(send.message)[4:]) == send.message


def test_all_filters_together_have_a_limit(monkeypatch):
    monkeypatch.setattr("wayfare.core.client.PROFILE_CHARACTERS_MAX", 20)
    client = attached()
    client.subscribe(Filter.parse("x = 1"))
    client.advertise(Filter.parse("x = 11"))
    with pytest.raises(FilterError, match="all filters of anna have at most 20 characters"):
        client.subscribe(Filter.parse("x = 1111111"))
    assert list(client.subscriptions) == [Filter.parse("x = 1")]
    client.unadvertise(Filter.parse("x = 11"))
    assert len(client.subscribe(Filter.parse("x = 1111111"))) == 1


# Publishing


def test_publications_are_numbered_and_wait_for_their_acknowledgement():
    client = attached()
    client.advertise(ALL)
    assert client.publish({"x": 1}, b"!") == [Send("link", Publish(1, {"x": 1}, b"!"))]
    assert client.publish({"x": 2}) == [Send("link", Publish(2, {"x": 2}))]
    assert tell(client, Published(1)) == []
    assert list(client.outbox) == [Publish(2, {"x": 2})]
    tell(client, Published(2))
    assert not client.outbox


def test_what_was_not_acknowledged_is_sent_again_in_order():
    client = attached()
    client.advertise(ALL)
    for n in (1, 2, 3):
        client.publish({"x": n})
    tell(client, Published(1))
    client.step(LinkDown("link"), 0)
    client.publish({"x": 4})
    assert client.attach("porto", "link2")[1:] == [
        Send("link2", Publish(n, {"x": n})) for n in (2, 3, 4)
    ]


def test_a_welcome_acknowledges_what_had_arrived():
    client = attached()
    client.advertise(ALL)
    client.publish({"x": 1})
    client.publish({"x": 2})
    client.attach("porto", "link2")
    assert tell(client, Welcome(2, published=1), link="link2") == []
    assert list(client.outbox) == [Publish(2, {"x": 2})]


def test_the_application_may_change_its_attributes_afterwards():
    client = attached()
    client.advertise(ALL)
    attributes = {"x": 1}
    client.publish(attributes)
    attributes["x"] = 2
    assert list(client.outbox) == [Publish(1, {"x": 1})]


def test_a_full_outbox_refuses_until_something_is_acknowledged():
    client = attached(outbox_max=2)
    client.advertise(ALL)
    client.publish({})
    client.publish({})
    with pytest.raises(OutboxFull, match="2 publications of anna, 0 bytes, wait for an ack"):
        client.publish({})
    tell(client, Published(1))
    assert client.publish({}) == [Send("link", Publish(3, {}))]


def test_an_outbox_is_also_full_of_bytes():
    client = attached(outbox_bytes_max=100)
    client.advertise(ALL)
    client.publish({}, bytes(99))
    client.publish({}, bytes(200))  # the last one may come on top
    with pytest.raises(OutboxFull, match="2 publications of anna, 299 bytes, wait for an ack"):
        client.publish({})
    tell(client, Published(1))
    assert not client.has_room()
    tell(client, Published(2))
    client.publish({}, bytes(300))
    assert not client.has_room()
    client.detach(leave=True)
    assert client.has_room()


def test_only_what_was_advertised_may_be_published():
    client = attached()
    client.advertise(NARROW)
    with pytest.raises(NotAdvertised, match=r"no advertisement of anna matches {'x': 2}"):
        client.publish({"x": 2})
    client.advertise(X)
    client.publish({"x": 2})
    client.unadvertise(X)
    with pytest.raises(NotAdvertised):
        client.publish({"x": 2})
    assert client.published == len(client.outbox) == 1


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"x": nan}, "x is nan; NaN and infinities are not values"),
        ({"x": float("-inf")}, "x is -inf; NaN and infinities are not values"),
        ({"x": 2**63}, "an int has at most 64 bits"),
        ({"x": None}, "x is a NoneType; attributes are str, int, float or bool"),
        ({"x": [1]}, "x is a list"),
        ({"x": b"1"}, "x is a bytes"),
        ({"": 1}, "an attribute's name is a text of 1 to 128 characters: ''"),
        ({1: 1}, "an attribute's name is a text of 1 to 128 characters: 1"),
        ({"n" * 129: 1}, "an attribute's name is a text"),
        ({f"x{n}": n for n in range(129)}, "a notification has at most 128 attributes"),
    ],
)
def test_attributes_that_cannot_be_sent_are_refused(attributes, reason):
    client = attached()
    client.advertise(ALL)
    with pytest.raises(InvalidNotification, match=reason):
        client.publish(attributes)
    assert (client.published, len(client.outbox)) == (0, 0)


def test_a_payload_is_bytes():
    client = attached()
    client.advertise(ALL)
    with pytest.raises(InvalidNotification, match="a payload is bytes, not str"):
        client.publish({}, "text")


@pytest.mark.parametrize("attributes", [{"x": "\ud800"}, pytest.param({"\ud800": 1})], ids=repr)
def test_half_a_surrogate_pair_is_refused(attributes):
    client = attached()
    client.advertise(ALL)
    with pytest.raises(InvalidNotification):
        client.publish(attributes)


@pytest.mark.parametrize(
    ("attributes", "payload"),
    [({}, bytes(codec.FRAME_MAX)), ({"x": "x" * codec.FRAME_MAX}, b"")],
    ids=["payload", "text"],
)
def test_what_fits_no_frame_is_refused(attributes, payload):
    client = attached()
    client.advertise(ALL)
    with pytest.raises(InvalidNotification):
        client.publish(attributes, payload)


@pytest.mark.parametrize(("text", "byte"), [("", b"!"), ("\N{BICYCLE}", b"")])
def test_the_largest_publication_can_be_delivered(text, byte):
    client = attached()
    client.advertise(ALL)
    names = {f"{i:0127}\N{BICYCLE}": i for i in range(m.ATTRIBUTES_MAX - 1)}
    width = len(text.encode() or byte)
    for size in range(codec.FRAME_MAX // width, 0, -(2**16) // width):
        with suppress(InvalidNotification):
            (send,) = client.publish({**names, "text": text * size}, byte * size)
            break
    largest = Notification("n" * 256, 1, send.message.attributes, send.message.payload)
    assert codec.decode(codec.encode(Deliver(codec.NUMBER_MAX, largest))[4:])


# Deliveries


def test_a_delivery_is_handed_on_with_the_subscriptions_that_match():
    client = attached()
    for each in (X, NARROW, Filter.parse("y = 1")):
        client.subscribe(each)
    (notify,) = tell(client, Deliver(1, note(x=3)))
    assert notify.notification == note(x=3)
    assert sorted(notify.subscriptions, key=str) == [X, NARROW]


def test_what_comes_after_the_last_unsubscribe_is_dropped_but_counted():
    client = attached()
    client.subscribe(X)
    client.unsubscribe(X)
    assert tell(client, Deliver(1, note())) == []
    assert client.delivered == 1


def test_a_subscription_that_was_asked_for_twice_lasts_until_the_second_unsubscribe():
    client = attached()
    client.subscribe(X)
    client.subscribe(X)
    client.unsubscribe(X)
    assert tell(client, Deliver(1, note())) == [Notify(note(), [X])]


@pytest.mark.parametrize("number", [1, 2, 4], ids=["long ago", "again", "too early"])
def test_a_delivery_out_of_turn_is_a_fault_of_the_broker(number):
    client = attached()
    client.subscribe(X)
    deliver(client, 1, 2)
    assert tell(client, Deliver(number, note(number))) == [
        Close("link", f"delivery {number} after 2", fault=True)
    ]
    assert (client.link, client.delivered, client.next_deadline()) == (None, 2, None)


def test_a_gap_says_how_many_are_lost():
    client = attached()
    client.subscribe(X)
    deliver(client, 1, 2)
    assert tell(client, Gap(5, "backlog_age")) == [Lost(3, "backlog_age")]
    assert tell(client, Deliver(6, note(6))) == [Notify(note(6), [X])]


def test_a_gap_may_say_that_nobody_knows_and_takes_a_number():
    client = attached()
    client.subscribe(X)
    deliver(client, 1, 2)
    assert tell(client, Gap(3, "no session", exact=False)) == [Lost(0, "no session")]
    assert tell(client, Deliver(4, note(4))) == [Notify(note(4), [X])]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("number", [1, 2])
def test_a_gap_of_the_past_says_nothing(number, exact):
    client = attached()
    deliver(client, 1, 2)
    assert tell(client, Gap(number, "backlog_age", exact)) == []
    assert client.delivered == 2


# Once


def test_a_notification_that_comes_again_under_another_number_is_told_once():
    """A broker that was asked in vain did not know what had been delivered before."""
    client = attached()
    client.subscribe(X)
    assert tell(client, Deliver(1, note(1))) == [Notify(note(1), [X])]
    assert tell(client, Deliver(2, note(1))) == []
    assert tell(client, Deliver(3, note(2))) == [Notify(note(2), [X])]
    assert client.delivered == 3


def test_without_support_what_comes_twice_is_told_twice():
    client = Client("anna", once=False)
    client.attach("porto", "link")
    client.subscribe(X)
    assert tell(client, Deliver(1, note(1))) == [Notify(note(1), [X])]
    assert tell(client, Deliver(2, note(1))) == [Notify(note(1), [X])]


# Acknowledgements


def acks(effects):
    return [effect for effect in effects if isinstance(effect, Send)]


def test_many_deliveries_are_acknowledged_together():
    client = attached()
    assert acks(deliver(client, 1, ACK_EVERY - 1)) == []
    assert acks(deliver(client, ACK_EVERY, ACK_EVERY)) == [Send("link", Ack(ACK_EVERY))]
    assert client.next_deadline() is None
    assert acks(deliver(client, ACK_EVERY + 1, 2 * ACK_EVERY)) == [Send("link", Ack(2 * ACK_EVERY))]


def test_few_deliveries_are_acknowledged_after_a_while():
    client = attached()
    deliver(client, 1, 1, now=5)
    deliver(client, 2, 2, now=9)
    assert client.next_deadline() == ACK_DELAY_NS  # what is nearly together falls together
    assert client.step(Tick(), ACK_DELAY_NS - 1) == []
    assert client.step(Tick(), ACK_DELAY_NS) == [Send("link", Ack(2))]
    assert client.next_deadline() is None
    assert client.step(Tick(), 10 + ACK_DELAY_NS) == []


def test_a_gap_is_acknowledged_like_deliveries():
    client = attached()
    assert tell(client, Gap(2, "")) == [Lost(2, "")]
    assert client.step(Tick(), ACK_DELAY_NS) == [Send("link", Ack(2))]
    assert acks(tell(client, Gap(2 + ACK_EVERY, ""))) == [Send("link", Ack(2 + ACK_EVERY))]


def test_what_an_attach_has_said_needs_no_acknowledgement():
    client = attached()
    deliver(client, 1, ACK_EVERY - 1)
    client.attach("porto", "link2")
    assert client.next_deadline() is None
    assert acks(tell(client, Deliver(ACK_EVERY, note(ACK_EVERY)), link="link2")) == []


def test_the_application_has_it_before_it_is_acknowledged():
    client = attached()
    client.subscribe(X)
    deliver(client, 1, ACK_EVERY - 1)
    assert deliver(client, ACK_EVERY, ACK_EVERY) == [
        Notify(note(ACK_EVERY), [X]),
        Send("link", Ack(ACK_EVERY)),
    ]


# Messages from the wrong side


@pytest.mark.parametrize(
    "message",
    [
        *(Attach("anna", 1, 0), Detach(), Subscribe(X), Publish(1, {}), Ack(0)),
        *(note(), Update(), Hello(m.PROTOCOL_VERSION, "porto")),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_broker_that_says_what_brokers_do_not_say_is_at_fault(message):
    client = attached()
    client.subscribe(X)
    (close,) = tell(client, message)
    assert (close.link, close.fault) == ("link", True)
    assert (client.link, client.delivered) == (None, 0)
    assert client.attach("porto", "link2")[0].message.subscriptions == (X,)


def test_the_attachment_that_was_welcomed_is_never_forgotten():
    """It is the one that holds the session."""
    client = Client("anna")
    client.attach("home", "first")
    client.step(Received("first", Welcome(1, 0)), 0)
    for attempt in range(2 * m.PREVIOUS_MAX):
        client.attach("away", f"link{attempt}")
    assert len(client.previous) == m.PREVIOUS_MAX
    assert client.previous[-1] == ("home", 1)
