"""The broker's handlers: what goes in, what comes out, compared as values."""

from random import Random

import msgspec
import pytest

from wayfare.core import codec, filters
from wayfare.core import messages as m
from wayfare.core import predicates as ps
from wayfare.core.broker import LATER, Broker
from wayfare.core.effects import (
    EXPIRED,
    Close,
    Granted,
    LinkDown,
    LinkUp,
    Pause,
    Publications,
    Received,
    Resume,
    Send,
    SessionEnded,
    Tick,
)
from wayfare.core.filters import NOTHING, Filter
from wayfare.core.grants import Grants
from wayfare.core.handoff import NO_SESSION
from wayfare.core.history import Limits
from wayfare.core.messages import (
    AHEAD_MAX,
    Ack,
    Advertise,
    Announce,
    Attach,
    Began,
    Deliver,
    Detach,
    Entry,
    Gap,
    Hello,
    Notification,
    Probe,
    Publish,
    Published,
    Reply,
    Request,
    Subscribe,
    Unadvertise,
    Unsubscribe,
    Update,
    Welcome,
)
from wayfare.core.relocation import OUT_OF_STEP
from wayfare.core.routing import UPDATE_MAX

ALL = Filter.parse("true")
X = Filter.parse("x > 1")
NARROW = Filter.parse("x > 2")
DAY = Limits().backlog_age_ns
WEEK = Limits().away_ns
HOUR = Limits().tombstone_ns


def broker(*neighbours, routing="covering", relocation="handoff", **limits):
    return Broker("lisbon", neighbours, routing, Limits(**limits), relocation)


def tell(here, link, message, now=0):
    return here.step(Received(link, message), now)


def attach(here, name, *subscriptions, epoch=1, now=0, **more):
    """Attach on the link that carries the client's name and epoch: anna1; it was here before."""
    more.setdefault("previous", (("lisbon", epoch - 1),) if epoch > 1 else ())
    more.setdefault("welcomed", epoch > 1)
    message = Attach(name, epoch, more.pop("delivered", 0), subscriptions, **more)
    return tell(here, f"{name}{epoch}", message, now)


def the(here, name):
    """The one session of a client."""
    (session,) = here.border.of(name)
    return session


def names(here):
    """Whose sessions are here."""
    return [session.client for session in here.border.all()]


def deadline_after_a_tick(here):
    """A deadline may be too early, but only once: the tick then sets it right."""
    assert here.step(Tick(), here.next_deadline()) == []
    return here.next_deadline()


def publish(here, link, number, now=0, **attributes):
    return tell(here, link, Publish(number, attributes), now)


def note(publisher, number, **attributes):
    return Notification(publisher, number, attributes)


def fault(link, reason):
    return [Close(link, reason, fault=True)]


# Attach


def test_the_first_attach_opens_a_session():
    here = broker()
    assert attach(here, "anna", X) == [Send("anna1", Welcome(epoch=1, published=0))]
    session = the(here, "anna")
    assert (session.link, session.epoch, list(session.subscriptions)) == ("anna1", 1, [X])


def test_attaching_with_a_profile_tells_the_neighbours():
    here = broker("faro")
    tell(here, "faro", Update(add_ads=(Entry(X),)))
    assert attach(here, "anna", X, advertisements=(NARROW,)) == [
        Send("anna1", Welcome(1, 0)),
        Send("faro", Update(add_ads=(Entry(NARROW),), add_subs=(Entry(X),), probe=Probe(1))),
    ]


def test_attaching_again_gives_what_was_missed_and_nothing_else():
    here = broker()
    attach(here, "anna", X)
    attach(here, "bert")
    here.step(LinkDown("anna1"), 0)
    assert publish(here, "bert1", 1, x=2) == [Send("bert1", Published(1))]
    publish(here, "bert1", 2, x=3)
    assert attach(here, "anna", X, epoch=2) == [
        Send("anna2", Welcome(2, 0)),
        Send("anna2", Deliver(1, note("bert", 1, x=2))),
        Send("anna2", Deliver(2, note("bert", 2, x=3))),
    ]


def test_attaching_again_says_what_has_been_published():
    here = broker()
    attach(here, "anna")
    publish(here, "anna1", 1)
    publish(here, "anna1", 2)
    assert attach(here, "anna", epoch=2)[-1] == Send("anna2", Welcome(2, published=2))


def test_a_connection_that_only_looks_alive_is_closed_when_its_client_comes_again():
    here = broker()
    attach(here, "anna")
    assert attach(here, "anna", epoch=2) == [
        Close("anna1", "anna attached again"),
        Send("anna2", Welcome(2, 0)),
    ]
    assert here.step(LinkDown("anna1"), 0) == []
    assert the(here, "anna").link == "anna2"


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_stale_attach_is_refused_without_fault(epoch):
    here = broker()
    attach(here, "anna", X, epoch=2)
    assert tell(here, "late", Attach("anna", epoch, 0)) == [Close("late", LATER.format("anna"))]
    session = the(here, "anna")
    assert (session.link, session.epoch, list(session.subscriptions)) == ("anna2", 2, [X])


def test_attaching_twice_on_one_connection_is_a_fault():
    here = broker()
    attach(here, "anna")
    assert tell(here, "anna1", Attach("anna", 2, 0)) == fault(
        "anna1", "Attach twice on one connection"
    )
    assert (the(here, "anna").link, the(here, "anna").epoch) == (None, 1)


def test_nobody_takes_a_second_name_on_one_connection():
    here = broker()
    attach(here, "anna")
    assert tell(here, "anna1", Attach("bert", 1, 0)) == fault(
        "anna1", "Attach twice on one connection"
    )
    assert names(here) == ["anna"]


@pytest.mark.parametrize("delivered", [0, 3])
def test_a_client_whose_numbers_are_not_from_here_starts_anew(delivered):
    """It is not locked out, learns that nobody knows what it missed, and gets what it cannot have had."""
    here = broker("faro")
    attach(here, "anna", X)
    attach(here, "bert")
    for number in (1, 2):
        publish(here, "bert1", number, x=2)
    tell(here, "anna1", Ack(1))
    kept = [Send("anna2", Deliver(2, note("bert", 2, x=2)))] if not delivered else []
    assert attach(here, "anna", X, epoch=2, delivered=delivered) == [
        Close("anna1", "anna attached again"),
        Send("anna2", Welcome(2, 0)),
        Send("anna2", Gap(delivered + 1, OUT_OF_STEP, exact=False)),
        *kept,
    ]
    assert publish(here, "bert1", 3, x=2)[0] == Send(
        "anna2", Deliver(delivered + 2 + len(kept), note("bert", 3, x=2))
    )


def test_a_client_that_names_no_session_ends_the_one_that_its_lost_goodbye_left():
    here = broker("faro")
    tell(here, "faro", Update(add_ads=(Entry(X),)))
    attach(here, "anna", X)
    attach(here, "bert")
    here.step(LinkDown("anna1"), now=0)
    publish(here, "bert1", 1, x=2)
    assert attach(here, "anna", NARROW, epoch=2, previous=(), welcomed=False) == [
        Send("faro", Announce((), (Began("anna", 2),))),
        Send("anna2", Welcome(2, 0)),
        Send("faro", Update(add_subs=(Entry(NARROW),), remove_subs=(Entry(X),))),
    ]
    assert (the(here, "anna").epoch, len(the(here, "anna").backlog)) == (2, 0)


def test_what_was_taken_from_a_client_is_remembered_when_its_session_is_too_old():
    here = broker("faro")
    here.step(LinkUp("faro"), now=0)
    attach(here, "anna", X)
    attach(here, "bert")
    publish(here, "bert1", 1, x=2)
    here.step(LinkDown("bert1"), now=0)
    here.step(Tick(), now=WEEK)
    assert names(here) == ["anna"]
    stale = tell(here, "late", Attach("bert", 1, 0))
    assert stale == [Close("late", LATER.format("bert"))]
    assert attach(here, "bert", epoch=2, now=WEEK) == [
        Send("bert2", Welcome(2, published=1)),
        Send("bert2", Gap(1, NO_SESSION, exact=False)),
        Send("bert2", Published(1)),
    ]
    assert publish(here, "bert2", 1, x=2) == [Send("bert2", Published(1))]
    assert len(publish(here, "bert2", 2, x=2)) == 2


def test_an_ended_session_is_remembered_for_a_while_and_then_forgotten():
    here = broker("faro")
    attach(here, "anna", X)
    tell(here, "anna1", Detach(leave=True), now=5)
    assert list(here.border.tombstones) == ["anna"]
    assert here.step(Tick(), now=5 + HOUR - 1) == []
    assert type(tell(here, "late", Attach("anna", 1, 0), now=5 + HOUR - 1)[0]) is Close
    here.step(Tick(), now=5 + HOUR)
    assert here.border.tombstones == {}
    assert deadline_after_a_tick(here) is None


def test_only_so_many_old_sessions_are_remembered(monkeypatch):
    monkeypatch.setattr("wayfare.core.border.TOMBSTONES_MAX", 2)
    here = broker("faro")
    for name in ("anna", "bert", "carl"):
        tell(here, f"{name}1", Attach(name, 1, 0))
        here.step(LinkDown(f"{name}1"), now=0)
    here.step(Tick(), now=WEEK)
    (refused,) = tell(here, "carl2", Attach("carl", 1, 0))
    assert type(refused) is Close
    assert tell(here, "anna2", Attach("anna", 1, 0)) == [Send("anna2", Welcome(1, 0))]


def test_attaching_with_another_profile_adds_before_it_removes():
    here = broker("faro")
    tell(here, "faro", Update(add_ads=(Entry(Filter.parse("true")),)))
    attach(here, "anna", X, advertisements=(X,))
    assert attach(here, "anna", NARROW, epoch=2, advertisements=(NARROW,)) == [
        Close("anna1", "anna attached again"),
        Send("anna2", Welcome(2, 0)),
        Send(
            "faro",
            Update((Entry(NARROW),), (Entry(NARROW),), (Entry(X),), (Entry(X),), probe=Probe(2)),
        ),
    ]


def test_a_profile_may_name_a_filter_twice():
    here = broker()
    attach(here, "anna", X, X, advertisements=(X, X))
    tell(here, "anna1", Unsubscribe(X))
    tell(here, "anna1", Unadvertise(X))
    assert here.routing.destinations.counts() == {}


def test_a_client_that_comes_from_elsewhere_goes_on_with_its_numbers():
    here = broker()
    attach(here, "anna", X, delivered=7)
    attach(here, "bert")
    assert publish(here, "bert1", 1, x=2)[0] == Send("anna1", Deliver(8, note("bert", 1, x=2)))


def test_a_client_whose_session_is_gone_is_told():
    here = broker()
    assert attach(here, "anna", delivered=7, welcomed=True) == [
        Send("anna1", Welcome(1, 0)),
        Send("anna1", Gap(8, NO_SESSION, exact=False)),
    ]


# Detach, and going without a word


def test_detaching_keeps_the_session_and_its_place_in_the_tables():
    here = broker("faro")
    tell(here, "faro", Update(add_ads=(Entry(X),)))
    attach(here, "anna", X)
    assert tell(here, "anna1", Detach(), now=5) == []
    assert (the(here, "anna").link, here.next_deadline()) == (None, 5 + WEEK)
    tell(here, "faro", note("tom", 1, x=2))
    assert len(the(here, "anna").backlog) == 1


def test_leaving_ends_the_session_and_takes_all_back():
    here = broker("faro")
    tell(here, "faro", Update(add_ads=(Entry(X),)))
    attach(here, "anna", X, advertisements=(X,))
    tell(here, "faro", note("tom", 1, x=2))
    assert tell(here, "anna1", Detach(leave=True)) == [
        Send("faro", Update(remove_subs=(Entry(X),), remove_ads=(Entry(X),)))
    ]
    assert (names(here), deadline_after_a_tick(here)) == ([], None)
    assert tell(here, "faro", note("tom", 2, x=2)) == []


def test_a_link_that_nobody_uses_may_go_down():
    assert broker("faro").step(LinkDown("nobody"), 0) == []


def test_a_client_that_detached_is_not_attached():
    here = broker()
    attach(here, "anna")
    tell(here, "anna1", Detach())
    assert tell(here, "anna1", Ack(0)) == fault("anna1", "Ack before Attach")


# Subscribe and advertise


@pytest.mark.parametrize(
    ("say", "withdraw"), [(Subscribe(X), Unsubscribe(X)), (Advertise(X), Unadvertise(X))]
)
def test_saying_it_twice_is_saying_it_once(say, withdraw):
    here = broker("faro")
    tell(here, "faro", Update(add_ads=(Entry(X),)))
    attach(here, "anna")
    assert len(tell(here, "anna1", say)) == 1
    assert tell(here, "anna1", say) == []
    assert len(tell(here, "anna1", withdraw)) == 1
    assert here.routing.destinations.counts() == {}


def test_subscriptions_come_and_go():
    here = broker("faro")
    tell(here, "faro", Update(add_ads=(Entry(X),)))
    attach(here, "anna")
    added = [Send("faro", Update(add_subs=(Entry(X),)))]
    removed = [Send("faro", Update(remove_subs=(Entry(X),)))]
    assert tell(here, "anna1", Subscribe(X)) == added
    assert tell(here, "anna1", Unsubscribe(X)) == removed
    assert tell(here, "anna1", Unsubscribe(X)) == []


def test_advertisements_come_and_go():
    here = broker("faro")
    attach(here, "anna")
    assert tell(here, "anna1", Advertise(X)) == [
        Send("faro", Update(add_ads=(Entry(X),), probe=Probe(1)))
    ]
    assert tell(here, "anna1", Unadvertise(X)) == [Send("faro", Update(remove_ads=(Entry(X),)))]
    assert tell(here, "anna1", Unadvertise(X)) == []


# Publish


def test_a_publication_goes_to_everybody_who_wants_it_and_is_acknowledged():
    here = broker("faro", "porto")
    tell(here, "faro", Update(add_subs=(Entry(X),)))
    tell(here, "porto", Update(add_subs=(Entry(Filter.parse("y > 1")),)))
    attach(here, "anna", X)
    attach(here, "bert")
    it = note("bert", 1, x=2)
    assert publish(here, "bert1", 1, x=2) == [
        Send("faro", it),
        Send("anna1", Deliver(1, it)),
        Send("bert1", Published(1)),
    ]


def test_the_payload_goes_along():
    here = broker()
    attach(here, "anna", X)
    assert tell(here, "anna1", Publish(1, {"x": 2}, b"!"))[0] == Send(
        "anna1", Deliver(1, Notification("anna", 1, {"x": 2}, b"!"))
    )


def test_a_repeated_publication_is_acknowledged_and_dropped():
    here = broker()
    attach(here, "anna", X)
    attach(here, "bert")
    publish(here, "bert1", 1, x=2)
    publish(here, "bert1", 2, x=2)
    for number in (1, 2):
        assert publish(here, "bert1", number, x=2) == [Send("bert1", Published(2))]


def test_one_copy_however_many_filters_match():
    here = broker()
    attach(here, "anna", X, NARROW, Filter.parse("x > 3 or y > 3"))
    attach(here, "bert")
    it = note("bert", 1, x=9, y=9)
    assert publish(here, "bert1", 1, x=9, y=9) == [
        Send("anna1", Deliver(1, it)),
        Send("bert1", Published(1)),
    ]


def test_a_publisher_that_subscribed_hears_itself():
    here = broker()
    attach(here, "anna", X)
    assert publish(here, "anna1", 1, x=2) == [
        Send("anna1", Deliver(1, note("anna", 1, x=2))),
        Send("anna1", Published(1)),
    ]


def test_a_notification_does_not_go_back_to_where_it_came_from():
    here = broker("faro", "porto")
    for neighbour in ("faro", "porto"):
        tell(here, neighbour, Update(add_subs=(Entry(X),)))
    it = note("tom", 1, x=2)
    assert tell(here, "faro", it) == [Send("porto", it)]


def test_flooding_sends_a_notification_to_all_other_neighbours():
    here = broker("faro", "porto", routing="flooding")
    attach(here, "anna", X)
    wanted, unwanted = note("tom", 1, x=2), note("tom", 2, x=0)
    assert tell(here, "faro", wanted) == [
        Send("porto", wanted),
        Send("anna1", Deliver(1, wanted)),
    ]
    assert tell(here, "faro", unwanted) == [Send("porto", unwanted)]


def test_flooding_sends_no_notification_twice_even_to_a_neighbour_that_asked_for_it():
    here = broker("faro", "porto", routing="flooding")
    assert tell(here, "porto", Update(add_subs=(Entry(X),))) == fault(
        "porto", "an update of tables, but this broker floods"
    )
    it = note("tom", 1, x=2)
    assert tell(here, "faro", it) == [Send("porto", it)]


# Updates


def test_an_update_is_applied_and_passed_on():
    here = broker("faro", "porto")
    assert tell(here, "faro", Update(add_ads=(Entry(X),))) == [
        Send("porto", Update(add_ads=(Entry(X),), probe=Probe(1)))
    ]


def test_an_inconsistent_update_is_a_fault_of_the_neighbour():
    here = broker("faro", "porto")
    assert tell(here, "faro", Update(remove_ads=(Entry(X),))) == fault(
        "faro", "an update that removes what is not there"
    )
    assert here.routing.in_ads == {"faro": {}, "porto": {}}


def big_filter(n):
    """As many bytes as a filter may have: characters count, and these take four bytes each."""
    texts = [f"{n:04}{i}" + "\N{BICYCLE}" * 1019 for i in range(7)]
    return Filter.of([[ps.one_of("x", texts)]])


def test_every_update_fits_a_frame():
    here = broker("faro")
    attach(here, "anna")
    for n in range(UPDATE_MAX):
        tell(here, "anna1", Subscribe(filters.checked(big_filter(n))))
    updates = [send.message for send in tell(here, "faro", Update(add_ads=(Entry(ALL),)))]
    assert max(len(msgspec.msgpack.encode(update)) for update in updates) <= codec.FRAME_MAX


def test_every_update_of_entries_that_become_wider_fits_a_frame():
    here = broker("faro")
    attach(here, "anna")
    chains = [tuple(big_filter(10 * n + i) for i in range(AHEAD_MAX + 1)) for n in range(25)]
    here.routing.subscribe("anna", NOTHING, 1, tuple(chains))
    sent = tell(here, "faro", Update(add_ads=(Entry(ALL),)))
    while here.next_deadline() == 0:  # it goes on with what exceeds the budget of one event
        sent += here.step(Tick(), 0)
    updates = [send.message for send in sent]
    assert sum(len(update.add_subs) for update in updates) == len(chains)
    assert max(len(msgspec.msgpack.encode(update)) for update in updates) <= codec.FRAME_MAX


# Acknowledgements, window, backlog


def full(here, count, first=1):
    """Publish so many at once, for anna, who wants them; returns what goes to her."""
    sent = []
    for number in range(first, first + count):
        sent += publish(here, "bert1", number, x=2)
    return [effect for effect in sent if effect.link.startswith("anna")]


def pair(**limits):
    """A broker with anna, who subscribed, and bert, who publishes."""
    here = broker(**limits)
    attach(here, "anna", X)
    attach(here, "bert")
    return here


def delivered(link, first, last):
    return [Send(link, Deliver(n, note("bert", n, x=2))) for n in range(first, last + 1)]


def test_an_acknowledgement_makes_room_in_the_window():
    here = pair(window=2)
    assert full(here, 5) == delivered("anna1", 1, 2)
    assert tell(here, "anna1", Ack(1)) == delivered("anna1", 3, 3)
    assert tell(here, "anna1", Ack(3)) == delivered("anna1", 4, 5)
    assert tell(here, "anna1", Ack(5)) == []
    assert deadline_after_a_tick(here) is None


@pytest.mark.parametrize("number", [3, 2**63 - 1])
def test_acknowledging_what_was_not_sent_is_a_fault(number):
    here = pair(window=2)
    full(here, 3)
    assert tell(here, "anna1", Ack(number)) == fault(
        "anna1", f"acknowledged {number}, but only 2 were sent"
    )
    assert (the(here, "anna").link, len(the(here, "anna").backlog)) == (None, 3)


def test_acknowledging_from_an_empty_backlog_is_a_fault_too():
    here = pair()
    assert tell(here, "anna1", Ack(1)) == fault("anna1", "acknowledged 1, but only 0 were sent")


def test_what_exceeds_the_backlog_of_a_client_that_is_away_is_a_gap():
    here = pair(backlog_count=2)
    tell(here, "anna1", Detach())
    assert full(here, 5) == []
    assert attach(here, "anna", X, epoch=2) == [
        Send("anna2", Welcome(2, 0)),
        Send("anna2", Gap(3, "backlog_count")),
        *delivered("anna2", 4, 5),
    ]


def test_a_slow_client_gets_or_counts_everything():
    here = pair(backlog_count=4, window=2)
    sent = full(here, 20)
    got, lost, last = [], 0, 0
    while sent:
        effect = sent.pop(0)
        if isinstance(effect, Pause | Resume):
            continue
        message = effect.message
        if isinstance(message, Gap):
            lost += message.number - last
        else:
            got.append(message.number)
        last = message.number
        sent += tell(here, "anna1", Ack(last))
    assert (last, len(got) + lost) == (20, 20)
    assert got == sorted(set(got))


def test_a_client_that_reads_nothing_has_a_window_on_its_way_and_no_more():
    here = pair(backlog_bytes=100, window=10)
    sent = full(here, 1_000)
    assert len(sent) <= 10


def test_nobodys_backlog_delays_another_client():
    here = pair(window=1)
    attach(here, "carl", X)
    full(here, 3)
    tell(here, "carl1", Ack(1))
    assert len(the(here, "anna").backlog) == 3
    assert tell(here, "carl1", Ack(2)) == [Send("carl1", Deliver(3, note("bert", 3, x=2)))]


# Time


def test_without_clients_there_is_no_deadline():
    here = broker("faro")
    assert here.next_deadline() is None
    assert here.step(Tick(), 10**18) == []


def test_a_client_that_is_there_and_has_everything_needs_no_deadline():
    here = pair()
    assert here.next_deadline() is None
    publish(here, "bert1", 1, now=7, x=2)
    assert here.next_deadline() == 7 + DAY
    tell(here, "anna1", Ack(1), now=8)
    assert deadline_after_a_tick(here) is None


def test_a_tick_too_early_does_no_harm():
    here = pair()
    publish(here, "bert1", 1, now=7, x=2)
    assert here.step(Tick(), 7 + DAY - 1) == []
    assert (len(the(here, "anna").backlog), here.next_deadline()) == (1, 7 + DAY)


def test_old_notifications_go_and_the_next_oldest_sets_the_deadline():
    here = pair()
    tell(here, "anna1", Detach())
    for number, now in ((1, 0), (2, 10), (3, 20)):
        publish(here, "bert1", number, now=now, x=2)
    assert here.step(Tick(), DAY + 10) == []
    assert here.next_deadline() == DAY + 20
    assert attach(here, "anna", X, epoch=2, now=DAY + 11)[1:] == [
        Send("anna2", Gap(2, "backlog_age")),
        *delivered("anna2", 3, 3),
    ]
    assert here.step(Tick(), DAY + 20) == []  # it was sent, so it may have arrived
    assert here.next_deadline() is None


def test_an_attached_client_is_told_of_what_became_too_old_before_it_was_sent():
    here = pair(window=1)
    full(here, 3)
    sent = here.step(Tick(), DAY) + tell(here, "anna1", Ack(1), now=DAY)
    assert sent == [Send("anna1", Gap(3, "backlog_age"))]


def test_the_deadline_is_the_earliest_of_all():
    here = pair(backlog_age_ns=100, away_ns=1_000)
    tell(here, "anna1", Detach(), now=5)
    assert here.next_deadline() == 1_005
    publish(here, "bert1", 1, now=10, x=2)
    assert here.next_deadline() == 110
    here.step(Tick(), 110)
    assert here.next_deadline() == 1_005


def test_a_client_that_comes_back_needs_no_deadline():
    here = pair()
    tell(here, "anna1", Detach(), now=5)
    attach(here, "anna", X, epoch=2, now=6)
    assert deadline_after_a_tick(here) is None


def test_resuming_may_empty_the_backlog_and_with_it_the_deadline():
    here = pair()
    full(here, 2)
    here.step(LinkDown("anna1"), 5)
    attach(here, "anna", X, epoch=2, delivered=2, now=6)
    assert (len(the(here, "anna").backlog), deadline_after_a_tick(here)) == (0, None)


def test_a_client_that_stays_away_is_forgotten():
    here = broker("faro", away_ns=1_000)
    tell(here, "faro", Update(add_ads=(Entry(X),)))
    attach(here, "anna", X)
    attach(here, "bert")
    tell(here, "anna1", Detach(), now=5)
    tell(here, "faro", note("tom", 1, x=2), now=6)
    assert here.step(Tick(), 1_004) == []
    assert here.step(Tick(), 1_005) == [
        SessionEnded("anna", "", EXPIRED, 1_000, 1),
        Send("faro", Update(remove_subs=(Entry(X),))),
    ]
    assert (names(here), deadline_after_a_tick(here)) == (["bert"], None)


@pytest.mark.parametrize("seed", range(20))
def test_the_deadline_is_never_too_late_and_ticks_find_nothing_twice(seed):
    random = Random(seed)
    here = pair(backlog_count=3, backlog_age_ns=40, away_ns=60, window=2, tombstone_ns=50)
    number, epoch, now = 0, 1, 0
    for _ in range(200):
        now += random.randrange(10)
        anna = next(iter(here.border.of("anna")), None)
        due = False
        online = anna is not None and anna.link is not None
        match random.choice(["publish", "publish", "ack", "go", "come", "come", "tick", "leave"]):
            case "publish":
                number += 1
                publish(here, "bert1", number, now=now, x=2)
            case "ack" if online:
                tell(here, anna.link, Ack(anna.backlog.sent), now)
            case "go" if online:
                here.step(LinkDown(anna.link), now)
            case "leave" if online and random.random() < 0.2:
                tell(here, anna.link, Detach(leave=True), now)
            case "come":
                epoch += 1
                done = anna.backlog.acked if anna else 0
                attach(here, "anna", X, epoch=epoch, delivered=done, now=now)
            case "tick":
                due = here.next_deadline() is not None and here.next_deadline() <= now
                here.step(Tick(), now)
        ends = [
            *(s.away_since + 60 for s in here.border.all() if s.link is None),
            *(s.backlog.oldest() + 40 for s in here.border.all() if s.backlog),
            *(tombstone.until for tombstone in here.border.tombstones.values()),
        ]
        deadline = here.next_deadline()
        assert not ends or deadline <= min(ends)
        assert not due or deadline is None or deadline > now


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("away", [False, True])
def test_a_notification_that_no_backlog_can_keep_leaves_no_deadline_of_its_own(kept, away):
    here = pair(backlog_bytes=60)
    full(here, kept)
    if away:
        tell(here, "anna1", Detach())
    publish(here, "bert1", kept + 1, x=2, text="too long for this backlog" * 3)
    assert len(the(here, "anna").backlog) == 0
    assert here.next_deadline() <= WEEK
    assert deadline_after_a_tick(here) == (WEEK if away else None)


# Messages from the wrong side

TO_CLIENTS = [Welcome(1, 0), Deliver(1, note("tom", 1)), Gap(1, ""), Published(1)]
FROM_CLIENTS = [Attach("carl", 1, 0), Detach(), Subscribe(X), Publish(1, {}), Ack(0)]
BETWEEN = [note("tom", 1, x=2), Update(add_ads=(Entry(X),)), Announce(("faro",))]
kinds = {"ids": lambda message: type(message).__name__}


def state(here):
    return (
        [(s.client, s.epoch, s.published, list(s.subscriptions)) for s in here.border.all()],
        here.routing.in_ads,
        here.routing.destinations.counts(),
    )


@pytest.mark.parametrize(
    "message", [*TO_CLIENTS, *BETWEEN, Hello(m.PROTOCOL_VERSION, "anna")], **kinds
)
def test_a_client_that_speaks_like_a_broker_is_at_fault(message):
    here = broker("faro")
    attach(here, "anna", X)
    before = state(here)
    (close,) = tell(here, "anna1", message)
    assert (close.link, close.fault) == ("anna1", True)
    assert state(here) == before
    assert the(here, "anna").link is None


@pytest.mark.parametrize("message", FROM_CLIENTS[1:], **kinds)
def test_a_client_speaks_only_when_it_is_attached(message):
    here = broker("faro")
    name = type(message).__name__
    assert tell(here, "anna1", message) == fault("anna1", f"{name} before Attach")
    assert names(here) == []


@pytest.mark.parametrize(
    "message",
    [
        one
        for one in (*TO_CLIENTS, *FROM_CLIENTS, Hello(m.PROTOCOL_VERSION, "faro"))
        if type(one) is not Gap  # brokers say that, too
    ],
    **kinds,
)
def test_a_broker_that_speaks_like_a_client_is_at_fault(message):
    here = broker("faro")
    assert tell(here, "faro", message) == fault("faro", f"{type(message).__name__} from a broker")
    assert names(here) == []


def test_after_a_fault_the_client_may_come_back():
    here = pair()
    tell(here, "anna1", Ack(5))
    full(here, 1)
    assert attach(here, "anna", X, epoch=2)[1:] == delivered("anna2", 1, 1)


# The tree


def test_a_new_link_learns_who_is_beyond_this_broker():
    here = broker("faro", "porto")
    assert here.step(LinkUp("faro"), 0) == [Send("faro", Announce(("lisbon",)))]
    tell(here, "faro", Announce(("faro", "lagos")))
    assert here.step(LinkUp("porto"), 0) == [Send("porto", Announce(("lisbon", "faro", "lagos")))]


def test_an_announcement_goes_on_to_the_other_neighbours_once():
    here = broker("faro", "porto", "evora")
    news = Announce(("faro",))
    assert tell(here, "faro", news) == [Send("porto", news), Send("evora", news)]
    assert tell(here, "faro", news) == []


def test_an_errand_to_another_broker_is_sent_on_behind_the_tables():
    here = broker("faro", "porto")
    tell(here, "faro", Announce(("faro",)))
    request = Request("porto", "anna", 2, 0, (("faro", 1),))
    assert tell(here, "porto", Update(add_ads=(Entry(X),), errands=(request,))) == [
        Send("faro", Update(add_ads=(Entry(X),), errands=(request,), probe=Probe(1)))
    ]


def test_an_errand_goes_with_no_more_filters_than_leave_it_room():
    for entries, together in ((UPDATE_MAX // 8, True), (UPDATE_MAX // 8 + 1, False)):
        here = broker("faro", "porto", routing="identity")
        tell(here, "faro", Announce(("faro",)))
        tell(here, "faro", Update(add_ads=(Entry(ALL),)))
        request = Request("porto", "anna", 2, 0, (("faro", 1),))
        two = [(Filter.parse(f"x = {n}"), Filter.parse(f"x < {n}")) for n in range(entries)]
        said = tuple(Entry.along((one[0], *one)) for one in two)
        sent = tell(here, "porto", Update(add_subs=said, errands=(request,)))
        subs = tuple(map(Entry.along, two))
        whole = [Update(add_subs=subs, errands=(request,))]
        apart = [Update(add_subs=subs), Update(errands=(request,))]
        assert sent == [Send("faro", one) for one in (whole if together else apart)]


def test_flooding_takes_errands_but_no_tables():
    here = broker("faro", "porto", routing="flooding")
    tell(here, "faro", Announce(("faro",)))
    request = Request("porto", "anna", 2, 0, (("faro", 1),))
    assert tell(here, "porto", Update(errands=(request,))) == [
        Send("faro", Update(errands=(request,)))
    ]


@pytest.mark.parametrize("welcomed", [False, True])
def test_an_errand_for_a_session_that_is_nowhere_is_answered(welcomed):
    """If the client was welcomed here, this broker has forgotten it; else it may never have come."""
    here = broker("faro")
    tell(here, "faro", Announce(("faro",)))
    request = Request("faro", "anna", 2, 0, (("lisbon", 1),), welcomed=welcomed)
    assert tell(here, "faro", Update(errands=(request,))) == [
        Send("faro", Update(errands=(Reply("faro", "anna", 2, found=False, partial=welcomed),)))
    ]


@pytest.mark.parametrize(
    "errand", [Request("faro", "anna", 2, 0, ()), Reply("lisbon", "anna", 2, False)], **kinds
)
def test_errands_are_a_fault_where_clients_get_no_support(errand):
    here = broker("faro", relocation="naive")
    name = type(errand).__name__
    assert tell(here, "faro", Update(errands=(errand,))) == fault(
        "faro", f"{name}, but relocation is naive here"
    )


def test_without_support_a_session_ends_with_its_connection():
    here = broker("faro", relocation="naive")
    tell(here, "faro", Update(add_ads=(Entry(X),)))
    attach(here, "anna", X)
    assert here.step(LinkDown("anna1"), 0) == [Send("faro", Update(remove_subs=(Entry(X),)))]
    assert names(here) == []


# Publications that come together


def publishing(case):
    """A broker, and tom, who publishes there on tom1, each time the same."""
    here = broker("porto", relocation="home" if case == "at home" else "handoff")
    here.step(LinkUp("porto"), 0)
    tell(here, "porto", Announce(("porto", "faro")))
    tell(here, "porto", Update(add_subs=(Entry(X),)))
    attach(here, "anna", ALL)
    match case:
        case "allowed":
            here.step(Granted("tom1", Grants("tom", publish=(NARROW,))), 0)
            attach(here, "tom")
        case "waiting":
            tell(here, "tom1", Attach("tom", 1, 0, (), (ALL,), (("faro", 0),), welcomed=True))
        case "closed":
            pass
        case _:
            attach(here, "tom")
    return here


@pytest.mark.parametrize("case", ["ready", "at home", "allowed", "waiting", "closed"])
@pytest.mark.parametrize("first", [1, 3])
def test_publications_that_come_together_are_as_if_they_came_alone(case, first):
    """But that one acknowledgement is enough; some of these were published before."""
    messages = [Publish(number, {"x": 4 - number}) for number in (1, 2, 3)]
    alone, together = publishing(case), publishing(case)
    for here in (alone, together):
        for message in messages[: first - 1]:
            tell(here, "tom1", message)
    one_by_one = []
    for message in messages:
        one_by_one += tell(alone, "tom1", message, 5)
        if any(type(effect) is Close for effect in one_by_one):
            break
    at_once = together.step(Publications("tom1", messages), 5)
    if case == "ready":
        others = [Send("tom1", Published(number)) for number in (1, 2, 3)]
        assert at_once[-1] == one_by_one[-1] == others[-1]
        assert at_once[:-1] == [effect for effect in one_by_one if effect not in others]
    else:
        assert at_once == one_by_one
    if case != "at home":
        assert together.save() == alone.save()
    assert together.next_deadline() == alone.next_deadline()
