"""What happens in a world is written down so that people can read it."""

import pytest

from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId, ClientId, Entry, LinkId
from wayfare.core.syntax import value_text
from wayfare.sim import World
from wayfare.sim.scenario import read_attributes
from wayfare.sim.trace import TEXTS, Trace, attributes_text

ANNA, TICKER, PORTO = ClientId("anna"), ClientId("ticker"), BrokerId("porto")
WIDE, NARROW = Filter.parse("price > 10"), Filter.parse("price > 40")
KEPT = m.Kept(m.Notification(TICKER, 3, {}), age_ns=5)
REQUEST = m.Request(PORTO, ANNA, 3, 7, ((BrokerId("lisbon"), 2), (BrokerId("faro"), 1)))
ASKED = "Request(anna at porto, epoch 3, delivered 7, was at lisbon:2 faro:1)"
LINK = LinkId("anna#3")
NOT_FOUND = m.Reply(PORTO, ANNA, 3, found=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (41, "41"),
        (-1.5, "-1.5"),
        (2.0, "2.0"),
        (True, "true"),
        (False, "false"),
        ("A5", "'A5'"),
        ("it's", "'it''s'"),
        ("", "''"),
    ],
)
def test_a_value(value, text):
    assert value_text(value) == text


def test_attributes_read_as_they_are_written():
    attributes = {"price": 41, "road": "it's", "open": True, "kmh": 1.5}
    assert attributes_text(attributes) == "{price: 41, road: 'it''s', open: true, kmh: 1.5}"
    assert read_attributes(attributes_text(attributes)) == attributes
    assert attributes_text({}) == "{}"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (m.Notification(TICKER, 3, {"price": 41}), "Notification(ticker 3)"),
        (m.Update(), "Update()"),
        (
            m.Update((Entry(WIDE),), (Entry(NARROW, ANNA),), (Entry(WIDE),), (Entry(NARROW),)),
            "Update(+ad price > 10, +sub anna: price > 40, -sub price > 10, -ad price > 40)",
        ),
        (m.Announce((BrokerId("porto"), BrokerId("faro"))), "Announce(porto faro)"),
        (m.Announce((), (m.Began(ANNA, 7),)), "Announce(anna anew at epoch 7)"),
        (
            m.Update((Entry(WIDE),), errands=(REQUEST, NOT_FOUND)),
            f"Update(+ad price > 10, {ASKED}, Reply(to porto, anna is not here))",
        ),
        (REQUEST, ASKED),
        (NOT_FOUND, "Reply(to porto, anna is not here)"),
        (m.Reply(PORTO, ANNA, 3, found=True), "Reply(to porto, anna)"),
        (
            m.Reply(PORTO, ANNA, 3, True, (KEPT,), lost=2, why="backlog_age", more=True),
            "Reply(to porto, anna, ticker 3, 2 lost: backlog_age, ...)",
        ),
        (
            m.Reply(PORTO, ANNA, 3, True, lost=1, why="no session", exact=False),
            "Reply(to porto, anna, some lost: no session)",
        ),
        (
            m.Fetch(PORTO, ANNA, 3, 7, (WIDE,)),
            "Fetch(anna at porto, epoch 3, delivered 7)",
        ),
        (
            m.Fetch(PORTO, ANNA, 3, 7, (), everywhere=True),
            "Fetch(anna at porto, epoch 3, delivered 7, everywhere)",
        ),
        (m.Searched(PORTO, ANNA, 3), "Searched(anna, epoch 3)"),
        (m.Ask(PORTO, ANNA, 3, (), 77), "Ask(anna at porto, epoch 3)"),
        (m.Profile(PORTO, ANNA, 3, True, (WIDE,)), "Profile(to porto, anna: 1 subs)"),
        (m.Profile(PORTO, ANNA, 3, False), "Profile(to porto, anna is not known)"),
        (m.Resend(3), "Resend(epoch 3)"),
        (m.NoResponders(7), "NoResponders(7)"),
        (m.Resend(3, 9), "Resend(epoch 3, above 9)"),
        (m.Enlist("w", WIDE, "a1", 3, 16, 10**9), "Enlist(w: price > 10)"),
        (
            m.Convene("porto", m.Enlist("w", WIDE, "a1", 3, 16, 10**9)),
            "Convene(at porto, w: price > 10)",
        ),
        (m.PastRequest(PORTO, 1, 2, WIDE, 3), "PastRequest(to porto: price > 10)"),
        (
            m.PastRequest(PORTO, 1, 2, WIDE, 3, others=True),
            "PastRequest(to porto: price > 10, of others)",
        ),
        (m.PastReply(PORTO, 1, 2, asked=1), "PastReply(to porto, 1 more to reply)"),
        (
            m.PastReply(PORTO, 1, 2, more=True, complete=False),
            "PastReply(to porto, some forgotten, ...)",
        ),
        (m.Interest(WIDE, wanted=True), "Interest(price > 10 is wanted)"),
        (m.Interest(WIDE, wanted=False), "Interest(price > 10 is unwanted)"),
        (m.Advertise(WIDE, watch=True), "Advertise(price > 10, watched)"),
        (
            m.Attach(ANNA, 2, 7, (), (WIDE, NARROW), watched=(1,)),
            "Attach(epoch 2, delivered 7, ad price > 10, ad price > 40, watched)",
        ),
        (m.Attach(ANNA, 3, 7, digest=77), "Attach(epoch 3, delivered 7, digest)"),
        (m.Tunnel(PORTO, BrokerId("faro"), LINK, m.Ack(9)), "Tunnel(to porto, Ack(9))"),
        (m.Tunnel(PORTO, BrokerId("faro"), LINK, None), "Tunnel(to porto, gone)"),
        (m.Attach(ANNA, 1, 0), "Attach(epoch 1, delivered 0)"),
        (
            m.Attach(ANNA, 2, 7, (WIDE,), (NARROW,), ((BrokerId("porto"), 1),)),
            "Attach(epoch 2, delivered 7, sub price > 10, ad price > 40)",
        ),
        (m.Detach(), "Detach()"),
        (m.Detach(leave=True), "Detach(leave)"),
        (m.Subscribe(WIDE), "Subscribe(price > 10)"),
        (m.Unsubscribe(WIDE), "Unsubscribe(price > 10)"),
        (m.Advertise(WIDE), "Advertise(price > 10)"),
        (m.Unadvertise(WIDE), "Unadvertise(price > 10)"),
        (m.Publish(3, {"price": 41}), "Publish(3 {price: 41})"),
        (m.Ack(9), "Ack(9)"),
        (m.Welcome(2, 5), "Welcome(epoch 2, published 5)"),
        (m.Deliver(4, m.Notification(TICKER, 3, {})), "Deliver(4: ticker 3)"),
        (m.Gap(4, "backlog_age"), "Gap(4, backlog_age)"),
        (m.Published(5), "Published(5)"),
        (m.Ack(9, m.Probe(1, 2)), "Ack(9, Probe(ads 1, subs 2))"),
        (m.Echo(0, 2, (BrokerId("faro"),)), "Echo(ads 0, subs 2, faro)"),
        (m.Update(echo=m.Echo(3)), "Update(Echo(ads 3, subs 0))"),
    ],
)
def test_a_message(message, text):
    assert TEXTS[type(message)](message) == text


def test_every_message_of_a_link_has_a_text():
    unions = (m.FromClient, m.ToClient, m.Between, m.Errand, m.Peers)
    assert {kind for union in unions for kind in union.__args__} == set(TEXTS)


def played(**options):
    world = World()
    world.add_brokers([("porto", "lisbon")])
    trace = Trace(world, **options)
    world.add_client("ticker", "lisbon").advertise("price > 0")
    world.add_client("anna", "porto").subscribe("price > 40")
    world.settle()
    world.clients["ticker"].publish({"price": 41})
    world.settle()
    return trace.lines


def test_links_between_brokers_and_what_applications_see():
    assert played() == [
        "     2.0 ms  lisbon -> porto         Update(+ad price > 0)",
        "    12.0 ms  porto -> lisbon         Update(+sub price > 40)",
        "    24.0 ms  lisbon -> porto         Notification(ticker 1)",
        "    36.0 ms  anna <=                 ticker 1 {price: 41}",
    ]


def test_with_clients_their_links_too():
    both = played(clients=True)
    assert "     0.0 ms  anna -> porto           Subscribe(price > 40)" in both
    assert "    34.0 ms  porto -> anna           Deliver(1: ticker 1)" in both
    assert [line for line in both if line in played()] == played()


def test_a_loss_is_told():
    world = World()
    world.add_brokers([], alone="porto")
    trace = Trace(world)
    world.add_client("anna", "porto")
    world.log("lost", client="anna", count=3, reason="backlog_age")
    world.log("lost", client="anna", count=0, reason="no session")
    assert trace.lines == [
        "     0.0 ms  anna <=                 3 lost: backlog_age",
        "     0.0 ms  anna <=                 nobody knows how many lost: no session",
    ]


def test_lines_have_no_blanks_at_their_ends():
    world = World()
    trace = Trace(world)
    trace.line("", "")
    assert trace.lines == ["     0.0 ms"]
