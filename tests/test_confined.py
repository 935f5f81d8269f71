"""Rules that deny, rules that change while a client is here or away, and sessions that an operator ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import attributes, filters
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.costs import EVERYTHING_COST, cost_of
from wayfare.core.effects import Close, Confined, Forgotten, Granted, LinkDown, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.core.virtual import template_of


def f(text):
    return Filter.parse(text)


PARKING, SPEED, SECRET = f("service = 'parking'"), f("service = 'speed'"), f("level > 5")


# Deny rules


@given(st.lists(filters(), min_size=1, max_size=3), filters(), attributes())
def test_a_subscription_that_is_not_refused_brings_nothing_denied(denied, asked, published):
    grants = Grants("anna", deny_subscribe=tuple(denied), deny_advertise=tuple(denied))
    if grants.refusal(m.Subscribe(asked)) is None:
        assert grants.refusal(m.Advertise(asked)) is None
        assert not (asked.matches(published) and any(one.matches(published) for one in denied))


@given(st.lists(filters(), max_size=3), st.lists(filters(), max_size=3), attributes())
def test_a_publication_is_allowed_exactly_if_allowed_and_not_denied(allowed, denied, published):
    grants = Grants("anna", publish=tuple(allowed), deny_publish=tuple(denied))
    may = any(one.matches(published) for one in allowed)
    may = may and not any(one.matches(published) for one in denied)
    assert (grants.refusal(m.Publish(1, published)) is None) == may


def test_a_deny_rule_wins_and_is_named():
    grants = Grants("anna", (PARKING,), deny_subscribe=(SECRET,), deny_publish=(SECRET,))
    assert grants.refusal(m.Subscribe(f("service = 'parking' and level <= 5"))) is None
    assert grants.refusal(m.Subscribe(PARKING)) == (
        "anna may not subscribe to service = 'parking': its account denies subscribe to level > 5"
    )
    assert grants.refusal(m.Attach("anna", 1, 0, (PARKING,))) is not None
    assert grants.refusal(m.Publish(1, {"level": 5})) is None
    assert grants.refusal(m.Publish(1, {"level": 6})) == (
        "anna may not publish a notification with level: its account denies publish level > 5"
    )
    assert not Grants("anna", deny_advertise=(SECRET,)).checks_publications()
    assert grants.checks_publications()


# Rules that change


def garage_and_anna(*wanted):
    """A broker with a publisher, and anna, who subscribed to this."""
    broker = Broker("porto")
    broker.step(Received("g", m.Attach("garage", 1, 0)), 0)
    broker.step(Received("l", m.Attach("anna", 1, 0, wanted, (SPEED,))), 0)
    return broker


def publish(broker, *services):
    for number, service in enumerate(services, 1):
        broker.step(Received("g", m.Publish(number, {"service": service})), number)


def test_rules_that_still_allow_everything_disturb_nobody():
    broker = garage_and_anna(PARKING)
    grants = Grants("anna", (PARKING,), None, (SPEED,))
    assert broker.step(Granted("l", grants), 0) == []
    assert broker.step(Confined("anna", grants), 0) == []
    (session,) = broker.border.of("anna")
    assert (session.link, list(session.subscriptions)) == ("l", [PARKING])


def test_an_attached_client_is_disconnected_and_told_which_filter_it_lost():
    broker = garage_and_anna(PARKING, SPEED)
    grants = Grants("anna", (PARKING,))
    broker.step(Granted("l", grants), 0)
    (closed,) = broker.step(Confined("anna", grants), 1)
    reason = grants.refusal(m.Subscribe(SPEED))
    assert closed == Close("l", reason)
    (session,) = broker.border.of("anna")
    assert (session.link, list(session.subscriptions)) == (None, [PARKING])
    assert broker.grants == {}
    publish(broker, "parking", "speed")
    assert [one.notification.attributes["service"] for _, one, _ in session.backlog.waiting] == [
        "parking"
    ]


def test_what_waits_for_a_client_that_is_away_is_withdrawn_and_reported():
    broker = garage_and_anna(PARKING, SPEED)
    broker.step(LinkDown("l"), 0)
    publish(broker, "parking", "speed", "speed", "parking")
    before = broker.border.of("anna")[0].backlog.bytes
    assert broker.step(Confined("anna", Grants("anna", deny_subscribe=(SPEED,))), 5) == []
    (session,) = broker.border.of("anna")
    assert 0 < session.backlog.bytes < before
    again = m.Attach("anna", 2, 0, (PARKING,), (), (("porto", 1),), welcomed=True)
    welcome, *got = broker.step(Received("l2", again), 6)
    assert type(welcome.message) is m.Welcome
    delivered = [one.message for one in got if type(one.message) is m.Deliver]
    assert [one.notification.attributes["service"] for one in delivered] == ["parking", "parking"]
    assert delivered[-1].number == 4  # so two are missing, and counted
    (gap,) = [one.message for one in got if type(one.message) is m.Gap]
    assert gap.exact
    assert "may not subscribe to this any more" in gap.reason


def test_advertisements_that_are_not_allowed_any_more_are_withdrawn():
    broker = garage_and_anna(PARKING)
    (closed,) = broker.step(Confined("anna", Grants("anna", advertise=())), 1)
    assert "may not advertise service = 'speed'" in closed.reason
    assert not broker.border.of("anna")[0].advertisements


def test_neighbours_stop_sending_what_is_withdrawn():
    broker = Broker("porto", ["faro"])
    broker.step(Received("faro", m.Announce(("faro",))), 0)
    broker.step(Received("faro", m.Update(add_ads=(m.Entry(SPEED),))), 0)
    broker.step(Received("l", m.Attach("anna", 1, 0, (SPEED,))), 0)
    effects = broker.step(Confined("anna", Grants("anna", ())), 1)
    (update,) = [one.message for one in effects if isinstance(one, Send) and one.link == "faro"]
    assert [one.filter for one in update.remove_subs] == [SPEED]


def test_a_session_that_waits_for_its_old_broker_ends_if_it_loses_a_filter():
    broker = Broker("porto", ["faro"])
    broker.step(Received("faro", m.Announce(("faro",))), 0)
    attach = m.Attach("anna", 2, 0, (SPEED,), (), (("faro", 1),), welcomed=True)
    broker.step(Received("l", attach), 0)
    broker.step(Confined("anna", Grants("anna", ())), 1)
    assert broker.border.of("anna") == []


# Sessions that an operator ends


def test_a_forgotten_session_is_closed_and_its_client_is_told_of_a_gap_later():
    broker = garage_and_anna(PARKING)
    assert broker.step(Forgotten("anna", "kicked"), 1) == [Close("l", "kicked")]
    assert broker.border.of("anna") == []
    publish(broker, "parking")
    again = m.Attach("anna", 2, 0, (PARKING,), (), (("porto", 1),), welcomed=True)
    welcome, gap = broker.step(Received("l2", again), 2)
    assert type(welcome.message) is m.Welcome
    assert not gap.message.exact


def test_to_forget_who_is_not_here_changes_nothing():
    assert Broker("porto").step(Forgotten("anna", "kicked"), 1) == []
    assert Broker("porto").step(Confined("anna", Grants("anna", ())), 1) == []


# What subscriptions cost


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("service = 'parking'", 1),
        ("service = 'parking' and free > 0", 3),
        ("name like '%abc%'", 8),
        ("name not like '%abc%'", 16),
        ("x <> 1 or y <> 1", 16),
        ("near(1, 2, 300)", 4),
        ("true", EVERYTHING_COST),
        (f"x in ({', '.join(map(str, range(0, 42, 2)))})", 3),
    ],
)
def test_the_cost_of_a_filter_grows_with_what_it_has_to_be_compared_with(text, cost):
    assert cost_of(f(text)) == cost


def spender(client, cost_max=10):
    return Grants(client, account="fleet", cost_max=cost_max)


def test_clients_of_an_account_share_its_quota_of_subscriptions():
    broker = Broker("porto")
    for client in ("anna", "bert"):
        broker.step(Granted(client, spender(client)), 0)
    broker.step(Received("anna", m.Attach("anna", 1, 0, (f("a like '%x%'"),))), 0)
    broker.step(Received("bert", m.Attach("bert", 1, 0, (PARKING,))), 0)
    assert broker.costs.spent("fleet") == 9
    assert broker.step(Received("bert", m.Subscribe(SPEED)), 0) == []
    assert broker.step(Received("bert", m.Subscribe(SPEED)), 0) == []  # the same one is free
    (closed,) = broker.step(Received("bert", m.Subscribe(f("free > 0"))), 0)
    assert closed.fault
    assert "would cost 4, and its account has used 10 of 10 (subscription_cost)" in closed.reason


def test_a_session_that_ended_and_filters_that_were_withdrawn_cost_nothing():
    broker = Broker("porto")
    wide = f("a like '%x%'")
    for epoch, client in enumerate(("anna", "bert"), 1):
        broker.step(Granted(client, spender(client)), 0)
        broker.step(Received(client, m.Attach(client, epoch, 0)), 0)
    assert broker.step(Received("anna", m.Subscribe(wide)), 0) == []
    assert broker.step(Received("anna", m.Unsubscribe(wide)), 0) == []
    assert broker.step(Received("bert", m.Subscribe(wide)), 0) == []
    broker.step(Received("bert", m.Detach(leave=True)), 0)
    assert broker.step(Received("anna", m.Subscribe(wide)), 0) == []
    assert broker.costs.spent("fleet") == 8


WIDE, FOLLOWED = f("a like '%x%'"), "place in myloc and a like '%x%'"


def enlist(group="g", filter=WIDE, member="m1"):
    return m.Enlist(group, filter, member, 1, 16, 10**10)


def attached(cost_max, **fields):
    broker = Broker("porto")
    broker.step(Granted("l", spender("anna", cost_max)), 0)
    return broker, broker.step(Received("l", m.Attach("anna", 1, 0, **fields)), 0)


@pytest.mark.parametrize(
    ("message", "cost"), [(enlist(), 8), (m.Follow(FOLLOWED), 9), (m.Subscribe(WIDE), 8)]
)
def test_queue_groups_and_filters_that_follow_cost_as_much_as_subscriptions(message, cost):
    broker, _ = attached(cost - 1)
    (closed,) = broker.step(Received("l", message), 0)
    assert closed.fault and f"would cost {cost}, and its account has used 0 of" in closed.reason
    assert closed.denied == "subscribe"  # as the audit log has it
    broker, _ = attached(cost + 1)
    for _ in range(2):  # said again, it costs nothing
        assert not any(type(one) is Close for one in broker.step(Received("l", message), 0))
    assert broker.costs.spent("fleet") == cost
    again = Broker("porto")
    again.load(broker.save())
    assert again.costs.spent("fleet") == cost
    for one in (broker, again):
        both = {PARKING: PARKING, SPEED: SPEED}
        assert one.costs.charge(spender("bert", cost + 1), both) != ""
        assert one.costs.charge(spender("bert", cost + 1), {PARKING: PARKING}) == ""


def test_a_client_that_attaches_with_filters_that_follow_pays_for_them():
    followed = m.Followed(((FOLLOWED, None),), m.NOWHERE)
    assert attached(8, followed=followed)[1][-1].fault
    broker, effects = attached(9, followed=followed)
    assert type(effects[-1].message) is m.Welcome
    broker.step(Received("l", m.Unfollow(FOLLOWED)), 0)
    assert broker.costs.spent("fleet") == 0


def test_a_group_costs_until_its_last_member_does_not_listen_any_more():
    addresses = tuple(f(f"$member = 'm{number}'") for number in (1, 2))
    broker, _ = attached(10, subscriptions=addresses)
    for member in ("m1", "m2"):
        broker.step(Received("l", enlist(member=member)), 0)
    assert broker.costs.spent("fleet") == 8
    broker.step(Received("l", m.Unsubscribe(addresses[0])), 0)
    assert broker.costs.spent("fleet") == 8
    broker.step(Granted("l2", spender("anna")), 0)
    again = m.Attach("anna", 2, 0, addresses[1:], (), (("porto", 1),), welcomed=True)
    broker.step(Received("l2", again), 0)
    assert broker.costs.spent("fleet") == 8
    broker.step(Received("l2", m.Unsubscribe(addresses[1])), 0)
    assert broker.costs.spent("fleet") == 0


def test_addresses_of_requesters_and_members_are_free():
    addresses = (f("$inbox = 'i1'"), f("$member = 'm1'"))
    broker, effects = attached(1, subscriptions=addresses)
    assert type(effects[-1].message) is m.Welcome
    assert broker.step(Received("l", m.Subscribe(f("$member = 'm2'"))), 0) == []
    assert broker.step(Received("l", m.Subscribe(PARKING)), 0) == []
    assert broker.costs.spent("fleet") == 1


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("place in myloc", 1),
        ("place not in myloc", 8),
        ("near(myloc, 300)", 4),
        ("not near(myloc, 300)", 8),
        ("free >= my.need", 2),
        ("name like my.name", 8),
        ("name not like my.name and x = 1", 17),
        ("place in myloc or x = my.x", 2),
    ],
)
def test_a_filter_that_follows_costs_the_same_wherever_its_client_is(text, cost):
    assert cost_of(template_of(text)) == cost


def test_a_client_that_attaches_again_pays_for_its_new_filters_only():
    broker = Broker("porto")
    for epoch, wanted in enumerate((f("a like '%x%'"), f("a like '%y%'")), 1):
        link = f"l{epoch}"
        broker.step(Granted(link, spender("anna")), 0)
        previous = (("porto", epoch - 1),) if epoch > 1 else ()
        effects = broker.step(
            Received(link, m.Attach("anna", epoch, 0, (wanted,), (), previous)), 0
        )
        assert type(effects[-1].message) is m.Welcome
    assert broker.costs.spent("fleet") == 8
