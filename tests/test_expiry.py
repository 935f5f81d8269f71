"""How long a session waits for its client: as long as that asked for, and no longer than its broker allows."""

import pytest

import wayfare
from live import tree, until
from test_client_api import live
from wayfare.core.broker import Broker
from wayfare.core.effects import LinkDown, Received, Stalled, Tick
from wayfare.core.history import Limits
from wayfare.core.messages import Attach
from wayfare.core.relocation import NO_SESSION
from wayfare.eventlog import Event
from wayfare.net.options import EXPIRES_S
from wayfare.sim import World, check
from wayfare.sim.expiry import overdue, unexpired
from wayfare.sim.faults import Cut
from wayfare.sim.fuzz import Fuzz, Job
from wayfare.sim.links import MS_NS

SECOND_NS = 1000 * MS_NS
HIGHEST_NS = 2**63 - 1


def broker(**limits):
    return Broker("porto", limits=Limits(**limits))


def away(here, client, *, at, expires_ns, epoch=1, **more):
    """A client comes and goes at this time."""
    link = f"{client}#{epoch}"
    here.step(Received(link, Attach(client, epoch, 0, expires_ns=expires_ns, **more)), at)
    here.step(LinkDown(link), at)


def clients(here):
    return [one.client for one in here.border.all()]


def test_each_session_ends_in_its_own_time():
    here = broker(away_ns=1_000)
    away(here, "anna", at=10, expires_ns=100)
    away(here, "bert", at=10, expires_ns=300)
    away(here, "carl", at=10, expires_ns=0)
    away(here, "dora", at=10, expires_ns=HIGHEST_NS)
    for now, left in (
        (109, ["anna", "bert", "carl", "dora"]),
        (110, ["bert", "carl", "dora"]),
        (310, ["carl", "dora"]),
        (1_009, ["carl", "dora"]),
        (1_010, []),
    ):
        here.step(Tick(), now)
        assert clients(here) == left
    assert here.next_deadline() == 110 + Limits().tombstone_ns


def test_the_last_attachment_says_how_long():
    here = broker()
    away(here, "anna", at=10, expires_ns=100)
    again = {"previous": (("porto", 1),), "welcomed": True, "epoch": 2}
    away(here, "anna", at=50, expires_ns=500, **again)
    here.step(Tick(), 549)
    assert clients(here) == ["anna"]
    here.step(Tick(), 550)
    assert clients(here) == []


def test_it_is_saved():
    here = broker()
    away(here, "anna", at=10, expires_ns=100)
    link = "bert#1"
    here.step(Received(link, Attach("bert", 1, 0, expires_ns=30)), 10)
    again = broker()
    again.load(here.save())
    assert again.next_deadline() == 110
    again.step(LinkDown(link), 90)
    again.step(Tick(), 119)
    assert clients(again) == ["bert"]
    again.step(Tick(), 120)
    assert clients(again) == []


def test_a_broker_that_did_not_run_gives_clients_more_time():
    """They may have come back meanwhile: nothing was read."""
    here = broker()
    away(here, "anna", at=10, expires_ns=100)
    here.step(Stalled(1_000), 1_050)
    here.step(Tick(), 1_050)
    assert clients(here) == ["anna"]
    here.step(Tick(), 1_109)
    assert clients(here) == ["anna"]
    here.step(Tick(), 1_110)
    assert clients(here) == []


def market(expires_ns=SECOND_NS, **options):
    world = World(1, **options)
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    ticker = world.add_client("ticker", "lisbon")
    ticker.advertise("x > 0")
    anna = world.add_client("anna", "porto", expires_ns=expires_ns)
    anna.subscribe("x > 0")
    world.settle()
    return world, ticker, anna


def lost(world):
    return [event.reason for event in world.events if event.kind == "lost"]


def numbers(client):
    return [one.notification.attributes["x"] for one in client.received]


@pytest.mark.parametrize("where", ["porto", "faro"])
def test_back_in_time_nothing_is_lost(where):
    world, ticker, anna = market()
    anna.disconnect()
    world.run_until(world.now + 900 * MS_NS)
    ticker.publish({"x": 1})
    anna.attach(where)
    world.settle()
    assert (numbers(anna), lost(world)) == ([1], [])
    assert check(world).violations == ()


@pytest.mark.parametrize("where", ["porto", "faro"])
@pytest.mark.parametrize("relocation", ["handoff", "junction"])
def test_back_too_late_the_loss_is_reported(where, relocation):
    world, ticker, anna = market(relocation=relocation)
    anna.disconnect()
    world.run_until(world.now + 900 * MS_NS)
    ticker.publish({"x": 1})
    world.run_until(world.now + 200 * MS_NS)
    ticker.publish({"x": 2})
    world.run_until(world.now + 200 * MS_NS)
    anna.attach(where)
    world.settle()
    ticker.publish({"x": 3})
    world.settle()
    assert (numbers(anna), lost(world)) == ([3], [NO_SESSION])
    assert check(world).violations == ()


def test_an_attachment_after_that_which_nobody_greeted_is_found_again():
    """Anna does not know that she was back: she asks for her first session there, which has expired."""
    world, _, anna = market()
    anna.disconnect()
    world.run_until(world.now + 1_100 * MS_NS)
    assert anna.core.may_attach_unseen()
    anna.attach("porto")
    anna.subscribe("y > 0")
    anna.disconnect(late=True)
    world.run_until(world.now + 100 * MS_NS)
    assert clients(world.broker("porto").core) == ["anna"]
    assert [epoch for _, epoch in anna.core.previous] == [1]
    anna.attach("faro")
    world.run_until(world.now + 200 * MS_NS)
    assert clients(world.broker("porto").core) == []
    world.settle()
    assert check(world).violations == ()


def test_a_session_that_waits_ends_when_it_has_got_its_answer():
    world, _, anna = market(expires_ns=60 * SECOND_NS)
    anna.core.expires_ns = SECOND_NS
    cut = Cut("porto", "lisbon", 0, None)
    world.cut(cut)
    anna.attach("faro")
    anna.disconnect(late=True)
    world.run_until(world.now + 5 * SECOND_NS)
    assert clients(world.broker("faro").core) == ["anna"]
    world.heal(cut)
    world.settle()
    world.run_until(world.now + 1)
    assert clients(world.broker("porto").core) == clients(world.broker("faro").core) == []


def test_the_oracle_sees_a_session_that_does_not_end():
    world, _, anna = market()
    anna.disconnect()
    world.run_until(world.now + 900 * MS_NS)
    assert list(overdue(world)) == []
    (session,) = world.broker("porto").core.border.of("anna")
    session.away_until += 5 * SECOND_NS
    world.run_until(world.now + SECOND_NS)
    (found,) = overdue(world)
    assert str(found).startswith("expired: porto keeps a session of anna, away for 1.")


@pytest.mark.parametrize(("away_ms", "early"), [(500, 1), (1_000, 0)])
def test_the_oracle_sees_a_session_that_ends_too_early(away_ms, early):
    world, _, anna = market()
    anna.disconnect()
    world.run_until(world.now + away_ms * MS_NS)
    anna.attach()
    world.settle()
    world.events.append(Event(world.now, "lost", "anna", reason=NO_SESSION, count=0))
    assert len(list(unexpired(world))) == early


def test_random_runs_have_clients_that_expire():
    counts = [0, 0]
    for seed in (2, 4, 5, 7):
        run = Fuzz(Job(seed))
        assert run.run().violations == ()
        expiring = [one for one in run.world.clients.values() if one.core.expires_ns]
        counts[0] += len(expiring)
        counts[1] += lost(run.world).count(NO_SESSION)
    assert counts[0] >= 8
    assert counts[1] >= 8


@live
async def test_a_client_says_how_long_it_may_be_away():
    async with tree("porto-lisbon") as net:
        border = net.brokers["porto"].core.border
        named = await wayfare.connect(net.url("porto"), client_id="anna")
        short = await wayfare.connect(net.url("porto"), client_id="bert", expires=0.2)
        nameless = await wayfare.connect(net.url("porto"))
        asked = {one.client: one.expires_ns for one in border.all()}
        assert asked == {"anna": 0, "bert": 200_000_000, nameless.name: int(EXPIRES_S * 1e9)}
        for one in (named, short):
            await one.detach()
        await until(lambda: border.of("bert") == [])
        assert border.of("anna")
        for one in (named, short, nameless):
            await one.close()
