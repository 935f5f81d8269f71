"""How long clients stay, and messages to neighbours take, as brokers measure it."""

import asyncio
import time
from random import Random

import pytest

from wayfare.core.broker import Broker
from wayfare.core.effects import Measured
from wayfare.core.messages import BrokerId, LinkId, State
from wayfare.core.pace import DWELL_NS, FINENESS, HOP_NS, STAYS_MAX, STAYS_MIN, Pace
from wayfare.core.places import of_edges
from wayfare.core.virtual import Ahead
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.journal import records_of
from wayfare.net.store import Timed
from wayfare.sim.links import MS_NS, LinkSpec
from wayfare.sim.world import World

SECOND_NS = 1000 * MS_NS
A, B = BrokerId("a"), BrokerId("b")


def test_before_enough_was_measured_usual_values_hold() -> None:
    pace = Pace()
    assert (pace.dwell_ns, pace.hop_ns) == (DWELL_NS, HOP_NS)
    for _ in range(STAYS_MIN - 1):
        pace.stayed(SECOND_NS)
    assert pace.dwell_ns == DWELL_NS
    pace.stayed(SECOND_NS)
    assert SECOND_NS / 2 ** (1 / FINENESS) <= pace.dwell_ns <= SECOND_NS


def test_nine_of_ten_stays_are_longer() -> None:
    random, pace = Random(1), Pace()
    stays = sorted(random.randint(SECOND_NS, 100 * SECOND_NS) for _ in range(900))
    for one in random.sample(stays, len(stays)):
        pace.stayed(one)
    assert stays[90] / 2 ** (1 / FINENESS) <= pace.dwell_ns <= stays[90]


def test_the_slowest_link_counts() -> None:
    pace = Pace()
    pace.on_round_trip(A, 10 * MS_NS)
    pace.on_round_trip(B, 30 * MS_NS)
    assert pace.hop_ns == 15 * MS_NS
    pace.on_round_trip(B, 4 * MS_NS)
    assert pace.hop_ns == 5 * MS_NS


def test_what_is_measured_is_bounded_and_new_habits_replace_old_ones() -> None:
    pace = Pace()
    for _ in range(5 * STAYS_MAX):
        pace.stayed(SECOND_NS)
    for number in range(5 * STAYS_MAX):
        pace.stayed(100 * SECOND_NS + number)
    stays = pace.save().stays
    assert sum(stays.values()) <= STAYS_MAX
    assert pace.dwell_ns > 50 * SECOND_NS
    for bits in range(200):
        pace.stayed(2**bits)
    assert len(pace.save().stays) <= STAYS_MAX


def walks(**said: int) -> World:
    """A client that changes its location every 100 ms, in the range of one broker."""
    places = of_edges([(f"R{i}", f"R{i + 1}") for i in range(20)])
    ahead = Ahead(places, steps=None, **said)
    world = World(ahead=ahead, broker_link=LinkSpec(latency_ns=50 * MS_NS))
    world.add_brokers([("a", "b")])
    world.measure_links()
    car = world.add_client("car", "a")
    car.follow("location in myloc")
    for i in range(20):
        car.be(State(f"R{i}"))
        world.run_until(world.now + 100 * MS_NS)
    return world


def test_brokers_tell_others_more_by_what_they_have_measured() -> None:
    replicator = walks().brokers[A].core.replicator
    assert 80 * MS_NS <= replicator.pace.dwell_ns <= 100 * MS_NS
    assert replicator.pace.hop_ns == 50 * MS_NS
    assert replicator.ahead.steps_at(1, replicator.pace) == 2  # 100 ms there and back
    (listened,) = replicator.virtual["car"].listened.values()
    near = listened.chains[0][0]
    found = [i for i in range(20) if near.matches({"location": f"R{i}"})]
    assert found == [17, 18, 19]
    said = walks(dwell_ns=SECOND_NS, hop_ns=MS_NS).brokers[A].core.replicator
    assert said.ahead.steps_at(1, said.pace) == 1


def test_what_was_measured_survives_a_restart() -> None:
    broker = walks().brokers[A].core
    again = Broker(A, [B], ahead=broker.replicator.ahead)
    again.load(broker.save())
    assert again.replicator.pace.save() == broker.replicator.pace.save()
    assert again.save() == broker.save()


def test_a_measured_link_is_written_down_and_no_stranger_is_measured() -> None:
    event = Measured(LinkId("b"), 7)
    assert records_of(event, 5, {}) == [Timed(5, "b", 7)]
    broker = Broker(A, [B])
    broker.step(event, 5)
    broker.step(Measured(LinkId("car#1"), 99), 5)
    assert broker.replicator.pace.save().hops == {"b": 3}


@pytest.mark.parametrize("said", [None, 5 * MS_NS])
def test_live_brokers_measure_their_links_unless_that_is_said(said: int | None) -> None:
    async def run() -> dict[BrokerId, int]:
        ahead = Ahead(steps=None, hop_ns=said)
        a = BrokerHost("a", {"b": None}, heartbeat_s=0.05, ahead=ahead)
        where = await a.start(Address("127.0.0.1", 0))
        b = BrokerHost("b", {"a": where}, heartbeat_s=0.05)
        await b.start(Address("127.0.0.1", 0))
        deadline = time.monotonic() + (10 if said is None else 0.5)
        while time.monotonic() < deadline and not a.core.replicator.pace.save().hops:
            await asyncio.sleep(0.02)
        await b.stop()
        await a.stop()
        return a.core.replicator.pace.save().hops

    hops = asyncio.run(run())
    assert list(hops) == ([] if said else ["b"])
    assert all(0 < one < SECOND_NS for one in hops.values())
