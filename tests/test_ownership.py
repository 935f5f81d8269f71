"""Who owns a session: the watch finds every session that nobody owns, and excuses no others.

In most stories anna is at porto since epoch 1, and faro has another session of hers, a ghost.
"""

from random import Random

import pytest

from wayfare.core.broker import Broker
from wayfare.core.messages import Announce, Attach, Began, Reply, Request, Update
from wayfare.core.sessions import Tombstone, Wait
from wayfare.sim import World, check
from wayfare.sim.fuzz import Job, fuzz
from wayfare.sim.links import MS_NS
from wayfare.sim.ownership import Watch, check_ownership
from wayfare.sim.verdict import Violation


def settled_world():
    world = World()
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro"), ("faro", "braga")])
    world.add_client("ticker", "faro").advertise("price > 0")
    world.add_client("anna", "porto").subscribe("price > 10")
    world.add_client("bert", "porto").subscribe("price > 40")
    world.settle()
    return world


GHOST_AT_FARO = Violation("owner", "faro has a session anna:7-7 of nobody")
TWO_OPEN = Violation("owner", "anna has several open sessions: porto anna:1-1, faro anna:7-7")


def with_ghost(wait=None):
    """Anna is at porto since epoch 1, and faro has a session of hers, too."""
    world = settled_world()
    border = world.broker("faro").core.border
    session = border.open(Attach("anna", 7, 0, ()), None)
    session.wait = wait
    return world


def ownership(world):
    return list(check_ownership(world))


def test_a_session_that_nobody_owns_is_found_and_so_are_two_open_ones():
    assert ownership(settled_world()) == []
    assert ownership(with_ghost()) == [GHOST_AT_FARO, TWO_OPEN]


def test_a_session_that_waits_is_not_open_but_needs_an_owner():
    assert ownership(with_ghost(Wait({}, 0))) == [GHOST_AT_FARO]


def test_a_single_session_needs_an_owner_too():
    world = with_ghost()
    border = world.broker("porto").core.border
    border.end(border.of("anna")[0], 0)
    assert ownership(world) == [GHOST_AT_FARO]


REQUEST = Request("lisbon", "anna", 9, 0, (("faro", 7),))
REPLY = Reply("faro", "anna", 7, False)


@pytest.mark.parametrize("errand", [REQUEST, REPLY], ids=["request", "reply"])
@pytest.mark.parametrize("cut", [False, True])
def test_what_is_under_way_owns_a_session(errand, cut):
    world = with_ghost()
    pipe, _ = world.link("lisbon", "faro")
    if cut:
        pipe.cut()
    pipe.send(Update(errands=(errand,)))
    assert ownership(world) == []


@pytest.mark.parametrize(
    "message",
    [Update(errands=(REQUEST,)), Announce((), (Began("anna", 9),))],
    ids=["request", "began"],
)
def test_what_waits_behind_work_on_tables_is_under_way(monkeypatch, message):
    world = with_ghost()
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]
    monkeypatch.setattr(Broker, "waiting", lambda _: [message])
    assert ownership(world) == []


def test_a_request_for_another_session_owns_none():
    world = with_ghost()
    pipe, _ = world.link("lisbon", "faro")
    pipe.send(Update(errands=(Request("lisbon", "anna", 9, 0, (("faro", 6),)),)))
    assert ownership(world) == [GHOST_AT_FARO]  # but it explains that two are open


def test_a_request_that_waits_at_a_session_owns_one():
    world = with_ghost()
    (session,) = world.broker("porto").core.border.of("anna")
    session.wait = Wait({}, 0)
    session.wait.pending = Request("faro", "anna", 7, 0, (("porto", 1),))
    assert ownership(world) == []


def test_a_departure_leads_to_a_session_but_does_not_explain_two_open_ones():
    world = with_ghost()
    world.broker("porto").core.border.bury("anna", 0, 0, moved_to=("faro", 7))
    assert ownership(world) == [TWO_OPEN]


def test_a_departure_before_the_attachment_leads_nowhere():
    world = with_ghost()
    world.broker("lisbon").core.border.bury("anna", 0, 0, moved_to=("faro", 7))
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def test_a_broker_may_not_have_noticed_that_a_connection_broke():
    world = settled_world()
    world.clients["anna"].attach("faro")
    world.run_until(world.now + 15 * MS_NS)
    sessions = [one for host in world.brokers.values() for one in host.core.border.of("anna")]
    assert len(sessions) == 2
    assert ownership(world) == []
    world.settle()
    assert ownership(world) == []


def test_a_ghost_is_seen_though_it_is_gone_when_all_is_quiet():
    world = settled_world()
    watch = Watch(world, Random(0))
    border = world.broker("lisbon").core.border
    world.clients["bert"].attach("faro")
    ghost = border.open(Attach("anna", 7, 0, ()), None)
    world.run_until(world.now + 600 * MS_NS)
    border.end(ghost, world.now)
    world.settle()
    assert check(world).violations == ()
    assert [one.what for one in watch.found] == [
        "lisbon has a session anna:7-7 of nobody",
        "anna has several open sessions: porto anna:1-1, lisbon anna:7-7",
    ]


def first_departure(tombstone, more):
    """The rule that lost sessions: a departure that came first was kept, whatever its epoch."""
    known = () if tombstone.moved_to is None else (tombstone.moved_to, *tombstone.earlier)
    return (known or more)[:1]


def broken_rules(job):
    return {one.rule for one in fuzz(job).verdict.violations}


@pytest.mark.parametrize(
    ("seed", "mobile"), [(379, "subscribers"), (10, "walkers")], ids=["subscribers", "walkers"]
)
def test_random_runs_find_ghosts_that_are_gone_when_all_is_quiet(monkeypatch, seed, mobile):
    job = Job(seed, "covering", faults=True, mobile=mobile)
    assert broken_rules(job) == set()
    monkeypatch.setattr(Tombstone, "departures_with", first_departure)
    assert broken_rules(job) == {"owner"}


# What tombstones lead to


def bury(world, broker, epoch=0, departure=None):
    """The broker remembers that anna was there until this epoch, and where she went."""
    border = world.broker(broker).core.border
    border.bury("anna", epoch, world.now, moved_to=departure, opened=1)


def test_departures_lead_from_broker_to_broker():
    world = with_ghost()
    bury(world, "porto", departure=("lisbon", 5))
    bury(world, "lisbon", 5)
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]
    bury(world, "lisbon", 5, ("faro", 7))
    assert ownership(world) == [TWO_OPEN]


@pytest.mark.parametrize(
    ("broker", "epoch"),
    [("faro", 6), ("faro", 8), ("lisbon", 7)],
    ids=["an earlier attachment", "a later one", "another broker"],
)
def test_a_departure_to_anything_else_leads_to_no_session(broker, epoch):
    world = with_ghost()
    bury(world, "porto", departure=(broker, epoch))
    bury(world, broker, epoch)
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def test_a_departure_to_a_broker_that_is_not_there_leads_nowhere():
    world = with_ghost()
    bury(world, "porto", departure=("nowhere", 7))
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def test_a_departure_to_any_attachment_of_a_session_leads_to_it():
    world = with_ghost()
    (session,) = world.broker("faro").core.border.of("anna")
    session.epoch = 9
    bury(world, "porto", departure=("faro", 8))
    assert [one.what for one in ownership(world)] == [
        "anna has several open sessions: porto anna:1-1, faro anna:7-9"
    ]


def test_a_departure_from_before_an_arrival_does_not_lead_on():
    """Anna came to lisbon with epoch 8; she had left it before, with epoch 7, for faro."""
    world = with_ghost()
    bury(world, "porto", departure=("lisbon", 8))
    bury(world, "lisbon", 8, ("faro", 7))
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def test_departures_of_another_client_lead_nowhere():
    world = with_ghost()
    world.broker("porto").core.border.bury("bert", 0, world.now, moved_to=("faro", 7))
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def test_departures_in_a_circle_lead_to_no_other_session():
    world = with_ghost()
    bury(world, "porto", departure=("lisbon", 5))
    bury(world, "lisbon", 5, ("porto", 6))
    bury(world, "porto", 6, ("lisbon", 5))
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


# What brokers forgot


def forget(world, broker="porto"):
    """The broker loses its store: it knows neither the session nor a tombstone of anna."""
    world.clients["anna"].core.epoch = 8  # she has attached since the ghost was opened
    border = world.broker(broker).core.border
    for session in border.of("anna"):
        border.end(session, world.now)
    border.tombstones.clear()
    border.since = world.now


def test_a_session_is_sought_whose_client_was_welcomed_where_it_is_forgotten():
    world = with_ghost()
    forget(world)
    assert ownership(world) == []


def test_a_session_is_not_sought_that_is_later_than_all_attachments_of_its_client():
    world = with_ghost()
    forget(world)
    world.clients["anna"].core.epoch = 7
    assert ownership(world) == []
    world.clients["anna"].core.epoch = 6
    assert ownership(world) == [GHOST_AT_FARO]


def test_a_broker_that_ended_a_session_did_not_forget_it():
    world = with_ghost()
    border = world.broker("porto").core.border
    border.end(border.of("anna")[0], world.now)
    assert ownership(world) == [GHOST_AT_FARO]


def test_a_broker_that_has_a_session_did_not_forget_it():
    world = with_ghost()
    border = world.broker("porto").core.border
    border.tombstones.clear()
    border.since = world.now
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def test_a_session_that_is_known_to_have_ended_is_not_sought():
    world = with_ghost()
    forget(world)
    bury(world, "porto", 1)
    assert ownership(world) == [GHOST_AT_FARO]


@pytest.mark.parametrize("facts", [{}, {"opened": 2}, {"opened": 1, "partial": True}], ids=str)
def test_a_session_is_sought_if_a_tombstone_does_not_tell_what_became_of_it(facts):
    """A request passed by, the store knows a later session only, or a part of the chain is unknown."""
    world = with_ghost()
    forget(world)
    world.broker("porto").core.border.bury("anna", 2, world.now, **facts)
    assert ownership(world) == []


def test_an_old_store_without_a_trace_of_an_attachment_did_not_forget_it():
    """Then the client was away for too long, and nobody has a session of it any more."""
    world = with_ghost()
    forget(world)
    border = world.broker("porto").core.border
    border.since = world.now - world.limits.away_ns - world.limits.tombstone_ns
    assert ownership(world) == []
    border.since -= 1
    assert ownership(world) == [GHOST_AT_FARO]


def test_what_another_broker_forgot_is_no_excuse():
    world = with_ghost()
    forget(world, "lisbon")
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def test_an_attachment_that_was_not_welcomed_may_never_have_come():
    """Anna was welcomed at porto; since then she tried lisbon, which knows nothing of that."""
    world = with_ghost()
    forget(world, "lisbon")
    world.clients["anna"].core.previous = (("lisbon", 2), ("porto", 1))
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]
    forget(world, "porto")
    assert ownership(world) == []


def test_a_session_is_sought_whose_client_went_where_it_is_forgotten():
    world = with_ghost()
    bury(world, "porto", departure=("lisbon", 5))
    forget(world, "lisbon")
    assert ownership(world) == [TWO_OPEN]
    world.broker("lisbon").core.border.open(Attach("anna", 5, 0, ()), None).wait = Wait({}, 0)
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def test_what_a_broker_forgot_that_is_not_there_is_no_excuse():
    world = with_ghost()
    world.clients["anna"].core.epoch = 8
    world.clients["anna"].core.previous = (("porto", 1), ("nowhere", 1))
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


def asking(world, **facts):
    """Lisbon has a session of anna that waits for one at braga, where she was before."""
    world.clients["anna"].core.epoch = 8
    world.clients["anna"].core.previous = (("lisbon", 8), ("porto", 1))
    session = world.broker("lisbon").core.border.open(Attach("anna", 8, 0, ()), None)
    session.wait = Wait({}, 0)
    session.wait.request = Request("lisbon", "anna", 8, 0, (("porto", 1), ("braga", 1)), **facts)


@pytest.mark.parametrize("welcomed", [False, True])
def test_a_session_is_sought_if_a_request_will_find_out_that_it_was_forgotten(welcomed):
    """The client was welcomed at braga, or not: then nobody forgot anything."""
    world = with_ghost()
    asking(world, welcomed=welcomed)
    assert ownership(world) == [*([] if welcomed else [GHOST_AT_FARO]), TWO_OPEN]


@pytest.mark.parametrize("welcomed", [False, True])
def test_a_session_is_sought_if_a_request_under_way_will_find_out(welcomed):
    """Lisbon does not wait any more for what it asked, and braga has forgotten it."""
    world = with_ghost()
    world.clients["anna"].core.epoch = 8
    request = Request("lisbon", "anna", 8, 0, (("porto", 1), ("braga", 1)), welcomed=welcomed)
    world.link("lisbon", "faro")[0].send(Update(errands=(request,)))
    assert ownership(world) == ([] if welcomed else [GHOST_AT_FARO])


def test_a_request_for_what_is_remembered_is_no_excuse():
    world = with_ghost()
    asking(world, welcomed=True)
    bury(world, "braga", 7)
    assert ownership(world) == [GHOST_AT_FARO, TWO_OPEN]


@pytest.mark.parametrize("rolled_back", [0, 1])
def test_a_session_is_sought_if_a_request_will_find_that_another_one_was_rolled_back(rolled_back):
    """Anna's session at porto has an old store, and lisbon asks for a later one than that of faro."""
    world = with_ghost()
    world.clients["anna"].core.epoch = 9
    world.broker("porto").core.border.of("anna")[0].rolled_back = rolled_back
    pipe, _ = world.link("lisbon", "porto")
    pipe.send(Update(errands=(Request("lisbon", "anna", 9, 0, (("braga", 8), ("porto", 8))),)))
    assert ownership(world) == ([] if rolled_back else [GHOST_AT_FARO])
