"""Faults strike when and where the plan says, and the protocol outlives them."""

from random import Random

import msgspec
import pytest

from wayfare.errors import UsageError
from wayfare.sim import Crash, Cut, Disconnect, Faults, Slow, World, check
from wayfare.sim.hosts import NOTICE_NS, RETRY_NS
from wayfare.sim.links import MS_NS, SECOND_NS


def city():
    """porto - lisbon - faro; ticker at faro, anna at porto, carla at lisbon; settled."""
    world = World()
    world.add_brokers([("porto", "lisbon"), ("lisbon", "faro")])
    world.add_client("ticker", "faro").advertise("price > 0")
    for name, home in (("anna", "porto"), ("carla", "lisbon")):
        world.add_client(name, home).subscribe("price > 40")
    world.settle()
    return world


def publish_every(world, every_ms, count, client="ticker"):
    host = world.clients[client]
    for i in range(count):
        time = world.now + i * every_ms * MS_NS
        world.agenda.at(time, lambda _, i=i: host.publish({"price": 41 + i}))


def deliveries(world, client):
    return [
        (event.time_ns / MS_NS, event.number)
        for event in world.events
        if event.kind == "delivered" and event.client == client
    ]


def kinds(world, client, *wanted):
    return [event for event in world.events if event.client == client and event.kind in wanted]


# Every kind by itself


def test_a_cut_link_is_down_for_its_time():
    world = city()
    start = world.now
    world.plan(Faults(cuts=(Cut("porto", "lisbon", start, 500 * MS_NS),)))
    publish_every(world, 100, 8)
    world.settle()
    anna, carla = deliveries(world, "anna"), deliveries(world, "carla")
    assert [number for _, number in anna] == list(range(1, 9))
    healed = start / MS_NS + 500
    assert [time for time, _ in anna[:5]] == [healed + 12] * 5
    assert anna[5][0] > healed + 12
    # carla, on the near side of the cut, does not notice
    assert [time - start / MS_NS for time, _ in carla] == [14 + 100 * i for i in range(8)]
    assert check(world).violations == ()


def test_a_crash_stops_a_broker_and_its_clients_come_back_by_themselves():
    world = city()
    start = world.now
    world.plan(Faults(crashes=(Crash("lisbon", start + 50 * MS_NS, 350 * MS_NS),)))
    publish_every(world, 100, 6)
    world.run_until(start + 60 * MS_NS)
    assert world.stopped == {"lisbon"}
    assert world.clients["carla"].connection is None
    assert world.clients["anna"].connection is not None
    world.settle()
    assert world.stopped == set()
    back = kinds(world, "carla", "attached")[-1]
    up_again = start + 400 * MS_NS
    assert up_again <= back.time_ns <= up_again + RETRY_NS
    for name in ("anna", "carla"):
        assert [number for _, number in deliveries(world, name)] == list(range(1, 7))
    assert check(world).violations == ()


def test_a_crashed_broker_does_nothing_while_it_is_down():
    world = city()
    world.plan(Faults(crashes=(Crash("lisbon", world.now, SECOND_NS),)))
    world.log_messages()
    start = world.now
    publish_every(world, 50, 10)
    world.run_until(start + SECOND_NS - 1)
    assert not [event for event in world.events if event.sender == "lisbon"]
    assert not deliveries(world, "anna")


def test_a_crash_keeps_the_brokers_state():
    world = city()
    border = world.broker("porto").core.border
    before = list(border.all())
    assert before
    world.plan(Faults(crashes=(Crash("porto", world.now, SECOND_NS),)))
    world.settle()
    assert list(border.all()) == before
    assert check(world).violations == ()


def test_a_crash_of_all_brokers_at_once_is_survived():
    world = city()
    names = ("porto", "lisbon", "faro")
    start = world.now
    world.plan(
        Faults(
            crashes=tuple(
                Crash(name, start + (30 + 5 * i) * MS_NS, (200 + 100 * i) * MS_NS)
                for i, name in enumerate(names)
            )
        )
    )
    publish_every(world, 10, 40)
    world.settle()
    assert [number for _, number in deliveries(world, "anna")] == list(range(1, 41))
    assert check(world).violations == ()


def test_a_slow_broker_keeps_the_order_and_gets_fast_again():
    world = city()
    start = world.now
    world.plan(Faults(slow=(Slow("lisbon", start, 100 * MS_NS, 30 * MS_NS),)))
    publish_every(world, 10, 12)
    world.settle()
    anna = deliveries(world, "anna")
    assert [number for _, number in anna] == list(range(1, 13))
    took = [time - start / MS_NS - 10 * (number - 1) for time, number in anna]
    assert took[0] == 24 + 30
    assert took[1] == 24 + 2 * 30 - 10
    assert took[-1] < max(took)
    assert world.broker("lisbon").worst_ns >= 100 * MS_NS
    publish_every(world, 10, 1)
    now = world.now / MS_NS
    world.settle()
    assert deliveries(world, "anna")[-1] == (now + 24, 13)
    assert check(world).violations == ()


def test_a_broker_may_be_slow_twice_and_nothing_overtakes():
    world = city()
    start = world.now
    plan = (Slow("lisbon", start, 20 * MS_NS, 40 * MS_NS), Slow("lisbon", start + 30 * MS_NS, 1, 1))
    world.plan(Faults(slow=plan))
    publish_every(world, 3, 30)
    world.settle()
    assert [number for _, number in deliveries(world, "anna")] == list(range(1, 31))
    assert check(world).violations == ()


def test_a_disconnected_client_is_back_after_its_time():
    world = city()
    start = world.now
    fault = Disconnect("anna", start + 100 * MS_NS, back_after_ns=300 * MS_NS)
    world.plan(Faults(disconnects=(fault,)))
    publish_every(world, 20, 30)
    world.settle()
    times = [
        (event.kind, (event.time_ns - start) // MS_NS)
        for event in kinds(world, "anna", "attached", "detached")
    ]
    assert times[-2:] == [("detached", 100), ("attached", 400)]
    assert [number for _, number in deliveries(world, "anna")] == list(range(1, 31))
    assert check(world).violations == ()


def test_the_broker_notices_a_broken_connection_later():
    world = city()
    world.plan(Faults(disconnects=(Disconnect("anna", world.now, SECOND_NS),)))
    start = world.now
    (session,) = world.broker("porto").core.border.of("anna")
    world.run_until(start + NOTICE_NS - 1)
    assert session.link is not None
    world.run_until(start + NOTICE_NS)
    assert session.link is None


def test_unnoticed_the_client_is_back_beside_its_old_connection():
    world = city()
    start = world.now
    publish_every(world, 5, 10)
    fault = Disconnect("anna", start + 25 * MS_NS, back_after_ns=SECOND_NS, unnoticed=True)
    world.plan(Faults(disconnects=(fault,)))
    world.run_until(start + 25 * MS_NS)
    anna = [link for link in world.connections if link.startswith("anna")]
    assert anna == ["anna#1", "anna#2"]
    border = world.broker("porto").core.border
    assert [one.epoch for one in border.of("anna")] == [1]
    world.settle()
    assert [link for link in world.connections if link.startswith("anna")] == ["anna#2"]
    assert [one.epoch for one in border.of("anna")] == [2]
    assert [number for _, number in deliveries(world, "anna")] == list(range(1, 11))
    assert check(world).violations == ()


def test_who_is_away_cannot_be_disconnected():
    world = city()
    world.clients["anna"].detach()
    world.settle()
    world.plan(Faults(disconnects=(Disconnect("anna", world.now, 10),)))
    world.settle()
    assert world.clients["anna"].connection is None


def test_loss_holds_for_every_link_between_brokers():
    world = city()
    specs = {key: pipe.spec for key, pipe in world.pipes.items()}
    world.plan(Faults(loss=0.4))
    for key, pipe in world.pipes.items():
        assert pipe.spec.loss == 0.4
        assert pipe.spec.latency_ns == specs[key].latency_ns
    publish_every(world, 3, 100)
    world.settle()
    assert [number for _, number in deliveries(world, "anna")] == list(range(1, 101))
    assert check(world).violations == ()
    assert world.pipes["faro", "lisbon"].worst_ns > 50 * MS_NS


@pytest.mark.parametrize(
    "faults",
    [
        Faults(cuts=(Cut("porto", "faro", 0, 1),)),
        Faults(crashes=(Crash("braga", 0, 1),)),
        Faults(slow=(Slow("braga", 0, 1, 1),)),
        Faults(disconnects=(Disconnect("nobody", 0, 1),)),
    ],
)
def test_a_plan_for_what_is_not_there_is_refused_as_a_whole(faults):
    world = city()
    good = Faults(loss=0.1, cuts=(Cut("porto", "lisbon", world.now, 1),))
    with pytest.raises(UsageError, match="there is no"):
        world.plan(msgspec.structs.replace(faults, loss=good.loss, cuts=good.cuts + faults.cuts))
    world.settle()
    assert len(world.agenda) == 0
    assert {pipe.spec.loss for pipe in world.pipes.values()} == {0.0}


@pytest.mark.parametrize(
    "fault",
    [
        lambda: Cut("porto", "lisbon", -1, 1),
        lambda: Cut("porto", "lisbon", 0, -1),
        lambda: Crash("porto", -1, 1),
        lambda: Crash("porto", 0, -1),
        lambda: Crash("porto", 0, None),
        lambda: Slow("porto", -1, 1, 1),
        lambda: Slow("porto", 0, -1, 1),
        lambda: Slow("porto", 0, None, -1),
        lambda: Disconnect("anna", -1, 1),
        lambda: Disconnect("anna", 0, -1),
        lambda: Disconnect("anna", 0.5, 1),
    ],
)
def test_a_time_that_cannot_be_is_refused(fault):
    with pytest.raises(UsageError, match=r"is no time of a fault, .*: give an int"):
        fault()


def test_no_faults_is_no_change():
    calm, planned = city(), city()
    planned.plan(Faults())
    for world in (calm, planned):
        publish_every(world, 5, 5)
        world.settle()
    assert calm.events == planned.events


# All together


@pytest.mark.parametrize("seed", range(10))
def test_all_kinds_together_break_no_promise(seed):
    random = Random(seed)
    world = city()
    start = world.now

    def when():
        return start + random.randrange(2 * SECOND_NS)

    world.plan(
        Faults(
            loss=0.1,
            cuts=(
                Cut("porto", "lisbon", when(), 200 * MS_NS),
                Cut("lisbon", "faro", when(), MS_NS),
            ),
            crashes=(Crash("lisbon", when(), 300 * MS_NS), Crash("faro", when(), 100 * MS_NS)),
            slow=(Slow("porto", when(), SECOND_NS, 3 * MS_NS),),
            disconnects=tuple(
                Disconnect(name, when(), 80 * MS_NS, unnoticed)
                for name in ("anna", "carla", "ticker")
                for unnoticed in (False, True)
            ),
        )
    )
    publish_every(world, 10, 200)
    world.settle()
    verdict = check(world)
    assert verdict.violations == ()
    assert verdict.delivered == 400


# Random plans


def plans(count=200):
    edges = [("a", "b"), ("b", "c")]
    for seed in range(count):
        yield Faults.random(Random(seed), ["a", "b", "c"], edges, ["x", "y"], 5 * SECOND_NS)


def test_random_plans_name_only_what_is_there_and_when():
    for plan in plans():
        assert 0.0 <= plan.loss < 1.0
        assert all((cut.a, cut.b) in [("a", "b"), ("b", "c")] for cut in plan.cuts)
        assert {one.broker for one in (*plan.crashes, *plan.slow)} <= {"a", "b", "c"}
        assert {one.client for one in plan.disconnects} <= {"x", "y"}
        everything = (*plan.cuts, *plan.crashes, *plan.slow, *plan.disconnects)
        assert all(0 <= one.at_ns < 5 * SECOND_NS for one in everything)


def test_random_plans_have_each_kind_sometimes_and_sometimes_not():
    """Two levels: which kinds at all, then where and when."""
    for field in {*Faults.__struct_fields__} - {
        "stalls",
        "rollbacks",
    }:  # these are planned by sim/fuzz.py
        there = sum(bool(getattr(plan, field)) for plan in plans())
        assert 40 < there < 160, field
    both = [one.unnoticed for plan in plans() for one in plan.disconnects]
    assert {True, False} == set(both)


def test_random_plans_need_no_links_and_no_clients():
    for seed in range(30):
        plan = Faults.random(Random(seed), ["a"], [], [], SECOND_NS)
        assert plan.cuts == plan.disconnects == ()
