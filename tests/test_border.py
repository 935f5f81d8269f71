"""The border of a broker: its sessions, what waits for them, and how long."""

import gc

import pytest

from roads import network, publish, session_of, xs
from wayfare.core import border as module
from wayfare.core.border import Border
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.deadlines import AWAY, BACKLOG, TOMBSTONE
from wayfare.core.effects import Close, Send
from wayfare.core.filters import Filter
from wayfare.core.history import Limits, Stored, size_of
from wayfare.core.messages import Attach, Deliver, Entry, Gap, Notification, Publish, Terms, Update
from wayfare.core.sessions import DEPARTURES_MAX, Tombstone, Wait, told, wanted_of
from wayfare.errors import ProtocolError

X, Y = Filter.parse("x > 0"), Filter.parse("y > 0")
LIMITS = Limits(
    backlog_count=3,
    backlog_bytes=1000,
    backlog_age_ns=40,
    away_ns=60,
    filters=2,
    window=2,
    held_count=2,
    tombstone_ns=100,
    slow_publishers_ns=0,
)


def news(number, **attributes):
    return Notification("tom", number, attributes or {"x": number})


def opened(border, name="anna", *, epoch=1, link=None, subscriptions=(X,), away_since=None):
    session = border.open(Attach(name, epoch, 0, subscriptions), link or f"{name}/{epoch}")
    if away_since is not None:
        border.lose_link(session, away_since)
    return session


@pytest.fixture
def here():
    return Border(["lisbon"], "covering", LIMITS)


def expire(border, now):
    """A tick, as far as the border's own timers go."""
    effects = []
    for kind, key in border.deadlines.take_due(now):
        if kind == BACKLOG:
            effects += border.expire_backlog(key, now)
        elif kind == TOMBSTONE:
            border.expire_tombstone(key, now)
    return effects


# One copy


def stored(session):
    """What a session keeps, as the objects that they are."""
    backlog = session.backlog
    return [one for _, one, _ in [*backlog.unacked, *backlog.waiting]]


def test_what_waits_for_several_clients_is_kept_once(here):
    sessions = [opened(here, name, away_since=0) for name in ("anna", "bert", "carl")]
    here.route(news(1), "lisbon", 0)
    here.route(news(2), "lisbon", 0)
    first, *others = map(stored, sessions)
    assert [one.notification for one in first] == [news(1), news(2)]
    for other in others:
        assert all(a is b for a, b in zip(first, other, strict=True))
    assert len(here._store) == 2


def test_what_comes_from_elsewhere_is_kept_once(here):
    """Every session that is handed over brings a copy of its own: one of them stays."""
    sessions = [opened(here, name, away_since=0) for name in ("anna", "bert", "carl")]
    here.route(news(1), "lisbon", 0)
    for session in sessions[1:]:
        copies = [Stored(news(n), size_of(news(n))) for n in (1, 2)]
        here.put(session, [(one, 0) for one in copies])
    (one,), (*_, again, two), (*_, once_more, two_too) = map(stored, sessions)
    assert one is again is once_more
    assert two is two_too
    assert len(here._store) == 2


def test_the_same_number_of_another_publisher_is_another_notification(here):
    anna = opened(here, away_since=0)
    here.route(news(1), "lisbon", 0)
    here.route(Notification("ina", 1, {"x": 7}), "lisbon", 0)
    assert [one.notification.attributes for one in stored(anna)] == xs(1, 7)
    assert len(here._store) == 2


def test_it_goes_when_nobody_waits_for_it(here):
    """With the last acknowledgement, goodbye, limit or age that lets go of it."""
    anna, bert = (opened(here, name, away_since=0) for name in ("anna", "bert"))
    here.route(news(1), "lisbon", 0)
    here.connect(anna, "anna/2")
    here.push(anna, 0)
    anna.backlog.acknowledge(1)
    assert len(here._store) == 1  # bert's
    here.end(bert, 1)
    del bert
    assert not here._store

    carl = opened(here, "carl", away_since=0)
    here.route(news(2), "lisbon", 10)
    for n in (3, 4, 5):
        here.route(news(n), "lisbon", 20)
    assert {number for _, number in here._store} == {3, 4, 5}  # backlog_count is 3
    expire(here, 60)
    assert len(carl.backlog) == 0
    assert not here._store


def test_replies_from_bytes_are_kept_once():
    """Anna, bert and carl come to faro from three brokers, each with a reply of its own."""
    net = network()
    clients = {"anna": "porto", "bert": "braga", "carl": "lisbon"}
    for name, broker in clients.items():
        net.subscribe(name, "x > 0")
        net.move(name, broker)
        net.cut(name)
    net.subscribe("dora", "x > 0")
    net.move("dora", "faro")
    net.cut("dora")
    publish(net, 1, 2, 3)
    for name in clients:
        net.stop("faro", name)
        net.move(name, "faro")
    kept = [stored(session_of(net, "faro", name)) for name in (*clients, "dora")]
    assert [[one.notification.number for one in each] for each in kept] == [[1, 2, 3]] * 4
    for copies in zip(*kept, strict=True):
        assert len({*map(id, copies)}) == 1
    faro = net.brokers["faro"].border
    assert len(faro._store) == 3
    # Elsewhere nobody waits any more.
    del kept, copies
    assert not any(net.brokers[broker].border._store for broker in clients.values())
    net.go()
    net.move("dora", "faro")
    for name in (*clients, "dora"):
        assert net.got(name) == xs(1, 2, 3)
    net.pass_time(ACK_DELAY_NS)
    net.settle()
    gc.collect()
    assert not faro._store


def test_what_is_held_back_is_kept_once_when_it_is_released():
    """Anna and bert wait at faro for their sessions when 1 comes; carl is away there."""
    net = network()
    for name, broker in (("bert", "porto"), ("carl", "faro")):
        net.subscribe(name, "x > 0")
        net.move(name, broker)
    net.cut("carl")
    net.stop("porto", "lisbon")
    for name in ("anna", "bert"):
        net.stop("faro", name)
        net.move(name, "faro")
    publish(net, 1)
    net.stopped.remove(("porto", "lisbon"))
    net.settle()
    kept = [stored(session_of(net, "faro", name)) for name in ("anna", "bert", "carl")]
    assert [len(each) for each in kept] == [1, 1, 1]
    assert len({id(one) for each in kept for one in each}) == 1


# Sessions


def test_places_are_never_used_again(here):
    first = opened(here)
    here.end(first, 0)
    second = opened(here, epoch=2)
    assert second.place == first.place + 1
    (send,) = here.route(news(1), "lisbon", 0)
    assert send == Send("anna/2", Deliver(1, news(1)))


def test_sessions_of_one_client(here):
    old, new = opened(here, epoch=1), opened(here, epoch=2)
    bert = opened(here, "bert")
    assert here.of("anna") == [old, new]
    assert here.of("nobody") == []
    assert [*here.all()] == [old, new, bert]
    assert here.get("anna", 2) is new
    assert here.get("anna", 3) is None
    assert here.get("nobody", 1) is None
    here.end(old, 0)
    assert here.of("anna") == [new]
    here.end(new, 0)
    assert [*here.all()] == [bert]


def test_a_session_that_is_renewed_changes_its_epoch_and_profile(here):
    session = opened(here)
    here.lose_link(session, 5)
    here.renew(session, Attach("anna", 4, 0, (Y,), (X,)), "anna/4")
    assert here.of("anna") == [session]
    assert here.get("anna", 1) is None
    assert here.get("anna", 4) is session is here.by_link["anna/4"]
    assert (session.subscriptions, session.advertisements) == ({Y: None}, {X: None})
    assert here.route(news(1), "lisbon", 6) == []
    assert len(here.route(news(1, y=1), "lisbon", 6)) == 1


def test_a_session_that_ends_leaves_a_tombstone_and_nothing_else(here):
    session = opened(here)
    session.published = 7
    assert here.end(session, 5, ("faro", 2)) == [Close("anna/1", "anna is elsewhere now")]
    assert (here.by_link, here._sessions) == ({}, {})
    assert here.route(news(1), "lisbon", 6) == []
    assert here.routing.destinations.counts() == {}
    assert here.tombstones == {"anna": Tombstone(105, 1, 7, ("faro", 2), known_since=1)}


def test_a_session_that_is_away_is_not_closed(here):
    session = opened(here, away_since=3)
    assert (session.link, session.away_since, here.by_link) == (None, 3, {})
    assert here.disconnect(session, "why", 4) == []
    assert session.away_since == 3
    assert here.end(session, 4) == []


def test_a_profile_that_stays_is_no_news():
    here = Border(["lisbon"], "simple", LIMITS)
    here.routing.apply("lisbon", Update(add_ads=(Entry(Filter.parse("exists x"), "tom"),)))
    session = opened(here, subscriptions=(X,))
    here.routing.updates()
    here.set_profile(session, {X: Terms(last=1)}, ())
    assert here.routing.updates() == []
    assert here.routing.destinations.counts() == {X: {session.place: 1}}
    assert session.subscriptions == {X: Terms(last=1)}


def test_terms_are_given_by_place():
    wanted = {X: None, Y: Terms(last=2)}
    assert told(wanted) == ((X, Y), ((1, Terms(last=2)),))
    assert wanted_of(*told(wanted)) == wanted


def test_room_for_filters(here):
    here.check_room({X: None})
    with pytest.raises(ProtocolError, match="a client has at most 2 filters of a kind"):
        here.check_room({X: None, Y: None})


# Tombstones


def test_a_tombstone_keeps_the_latest(here):
    here.bury("anna", 3, 0, 5, ("faro", 4))
    here.bury("anna", 2, 10, 7, ("braga", 3))
    earlier = (("braga", 3),)
    assert here.tombstones["anna"] == Tombstone(110, 3, 7, ("faro", 4), 0, earlier)
    here.bury("anna", 5, 20)
    assert here.tombstones["anna"] == Tombstone(120, 5, 7, ("faro", 4), 0, earlier)
    here.bury("anna", 6, 30, 1, ("porto", 7))
    earlier = (("faro", 4), ("braga", 3))
    assert here.tombstones["anna"] == Tombstone(130, 6, 7, ("porto", 7), 0, earlier)
    here.bury("anna", 7, 40, began=8)
    here.bury("anna", 8, 50)
    assert here.tombstones["anna"] == Tombstone(150, 8, 7, ("porto", 7), 8, earlier)


def test_a_tombstone_keeps_departures_by_epoch_when_requests_overtake_each_other(here):
    """A later request, which found nothing, was here before the one that takes the session."""
    here.bury("anna", 10, 0, moved_to=("lagos", 11))
    here.bury("anna", 23, 0)
    here.bury("anna", 20, 0, moved_to=("faro", 21))
    assert here.tombstones["anna"] == Tombstone(100, 23, 0, ("faro", 21), 0, (("lagos", 11),))


@pytest.mark.parametrize(
    ("epoch", "before", "stop"),
    [
        (2, 9, ("faro", 7)),
        (2, 7, ("braga", 3)),  # the later departure is none of an earlier request's business
        (2, 3, None),
        (3, 9, ("faro", 7)),
        (7, 9, None),
    ],
)
def test_where_a_session_was_last_for_a_request(here, epoch, before, stop):
    here.bury("anna", 2, 0, moved_to=("braga", 3))
    here.bury("anna", 6, 0, moved_to=("faro", 7))
    assert here.tombstones["anna"].next_stop(epoch, before) == stop


def test_where_a_session_was_in_another_life_is_nobodys_business(here):
    here.bury("anna", 6, 0, moved_to=("faro", 7), began=5)
    assert here.tombstones["anna"].next_stop(4, 9) is None
    assert here.tombstones["anna"].next_stop(5, 9) == ("faro", 7)


def test_departures_at_one_epoch_have_one_order(here):
    """Sets have another order in another process: brokers must not decide by that."""
    for brokers in (["faro", "beja", "evora"], ["evora", "faro", "beja"]):
        tombstone = Tombstone(0, 7)
        for broker in brokers:
            last, *earlier = tombstone.departures_with(((broker, 7),))
            tombstone = Tombstone(0, 7, moved_to=last, earlier=tuple(earlier))
        assert tombstone.departures_with(()) == (("faro", 7), ("evora", 7), ("beja", 7))


def test_departures_are_bounded(here):
    for epoch in range(DEPARTURES_MAX + 3):
        here.bury("anna", epoch, 0, moved_to=("faro", epoch + 1))
    departures = here.tombstones["anna"].departures_with(())
    assert [epoch for _, epoch in departures] == [*range(DEPARTURES_MAX + 3, 3, -1)]


def test_what_is_stale(here):
    assert not here.is_stale("anna", 1)
    here.bury("anna", 2, 0)
    assert [here.is_stale("anna", epoch) for epoch in (1, 2, 3)] == [True, True, False]
    opened(here, epoch=5)
    assert [here.is_stale("anna", epoch) for epoch in (4, 5, 6)] == [True, True, False]
    assert not here.is_stale("bert", 1)


def test_tombstones_are_bounded(here, monkeypatch):
    """The ones that were not needed for longest are forgotten."""
    monkeypatch.setattr(module, "TOMBSTONES_MAX", 3)
    for now, name in enumerate(["anna", "bert", "carl", "anna", "dora", "eva"]):
        here.bury(name, 1, now)
        assert len(here.tombstones) <= 3
    assert [*here.tombstones] == ["anna", "dora", "eva"]


def test_tombstones_expire(here):
    here.bury("anna", 1, 0)
    here.bury("bert", 1, 1)
    expire(here, 99)
    assert [*here.tombstones] == ["anna", "bert"]
    expire(here, 100)
    assert [*here.tombstones] == ["bert"]
    assert here.deadlines.next == 101
    expire(here, 101)
    assert (here.tombstones, here.deadlines.next) == ({}, None)


def test_a_tombstone_that_is_renewed_lives_longer(here):
    here.bury("anna", 1, 0)
    here.bury("anna", 2, 50)
    expire(here, 100)
    assert [*here.tombstones] == ["anna"]
    assert here.deadlines.next == 150
    expire(here, 150)
    assert (here.tombstones, here.deadlines.next) == ({}, None)


# Time


def test_nothing_to_wait_for(here):
    assert here.deadlines.next is None
    session = opened(here)
    assert here.deadlines.next is None
    here.route(news(1), "lisbon", 10)
    session.backlog.acknowledge(1)
    assert expire(here, 50) == []
    assert here.deadlines.next is None


@pytest.mark.parametrize(
    ("what", "end"),
    [
        (lambda here, session: here.lose_link(session, 7), 67),
        (lambda here, _: here.route(news(1), "lisbon", 7), 47),
        (lambda here, session: here.put(session, [(Stored(news(1), 1), 3)]), 43),
        (lambda here, _: here.bury("bert", 1, 7), 107),
    ],
)
def test_the_deadline_is_minded_at_once(here, what, end):
    session = opened(here)
    here.deadlines.arm(AWAY, session.place, 1000)
    what(here, session)
    assert here.deadlines.next == end


def test_a_backlog_has_one_timer_for_its_oldest_notification(here):
    anna = opened(here)
    here.route(news(1), "lisbon", 10)
    here.route(news(2), "lisbon", 20)
    assert len(here.deadlines) == 1
    anna.backlog.acknowledge(1)
    assert expire(here, 50) == []  # what was the oldest then is acknowledged
    assert here.deadlines.next == 60
    expire(here, 60)
    assert (len(anna.backlog), here.deadlines.next) == (0, None)
    here.route(news(3), "lisbon", 70)
    assert here.deadlines.next == 110


def test_what_is_handed_over_is_as_old_as_it_was(here):
    anna = opened(here)
    here.route(news(1), "lisbon", 20)
    here.put(anna, [(Stored(news(2), 1), 5)])
    assert here.deadlines.next == 45


def test_a_session_that_ends_leaves_no_timer(here):
    anna = opened(here)
    here.route(news(1), "lisbon", 20)
    here.lose_link(anna, 30)
    here.end(anna, 40)
    assert len(here.deadlines) == 1  # its tombstone
    expire(here, 140)
    assert len(here.deadlines) == 0


def test_what_becomes_too_old_is_told(here):
    """Two wait because the window is full; the others were sent, and are too old to be sent again."""
    anna = opened(here)
    for n in (1, 2, 3):
        here.route(news(n), "lisbon", 10 * n)
    assert [len(anna.backlog.unacked), len(anna.backlog.waiting)] == [2, 1]
    assert expire(here, 69) == []
    assert len(anna.backlog) == 1
    anna.backlog.acknowledge(2)
    assert expire(here, 70) == [Send("anna/1", Gap(3, "backlog_age"))]
    assert len(anna.backlog) == 0


# Notifications


def test_it_does_not_go_back_to_where_it_came_from():
    here = Border(["lisbon", "faro"], "covering", LIMITS)
    for neighbour in ("lisbon", "faro"):
        here.routing.apply(neighbour, Update(add_subs=(Entry(X),)))
    assert here.route(news(1), "lisbon", 0) == [Send("faro", news(1))]
    assert here.route(news(1), None, 0) == [Send("lisbon", news(1)), Send("faro", news(1))]


def test_what_is_held_back_has_a_limit(here):
    """By count, or by bytes: then it is time to wait no longer."""
    for big in (False, True):
        session = opened(here, f"anna{big}")
        session.wait = Wait({}, 1000)
        for n in (1, 2):
            here.route(news(n), "lisbon", n)
            assert not here.is_full(session.wait)
        assert here.deadlines.next == (103 if big else None)  # the tombstone of the first one
        last = news(3, x=1, text="a" * 1000) if big else news(3)
        if big:
            session.wait.held.pop()
        here.route(last, "lisbon", 3)
        assert here.is_full(session.wait)
        assert here.deadlines.next == 3
        assert len(session.backlog) == 0
        here.end(session, 3)


def test_a_publication_is_accepted_once(here):
    tom = opened(here, "tom", subscriptions=())
    anna = opened(here)
    assert here.publish(tom, Publish(3, {"x": 1}), 0) == [
        Send(anna.link, Deliver(1, Notification("tom", 3, {"x": 1})))
    ]
    assert tom.published == 3
    for number in (3, 1):
        assert here.publish(tom, Publish(number, {"x": 2}), 0) == []
    assert tom.published == 3


def test_nothing_is_pushed_to_who_waits_or_is_away(here):
    session = opened(here, away_since=0)
    here.put(session, [(Stored(news(1), 1), 0)])
    assert here.push(session, 0) == []
    here.connect(session, "anna/2")
    session.wait = Wait({}, 1000)
    assert here.push(session, 0) == []
    session.wait = None
    assert here.push(session, 0) == [Send("anna/2", Deliver(1, news(1)))]
