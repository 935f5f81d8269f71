"""What waits for a neighbour has an end: publishers wait for a while, then the link begins from nothing."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

import wayfare
from live import HERE, Tree, settled, tree, until
from proxy import proxy
from test_client_api import live
from wayfare.core.messages import BrokerId, Join
from wayfare.errors import ProtocolError
from wayfare.net.broker import BrokerHost
from wayfare.net.connection import Connection
from wayfare.net.limits import NetLimits
from wayfare.net.links import Link
from wayfare.net.store import Store

BEAT_S = 0.05
PATIENT_S = 60.0
PAIR = ("porto-lisbon",)
LINE = ("porto-lisbon", "faro-lisbon")


def limits(**more):
    return {"net_limits": NetLimits(**{"link_count": 50, **more}), "heartbeat_s": BEAT_S}


@asynccontextmanager
async def roads(*pairs, **options):
    """A tree, and a proxy on the road between the two of the last pair."""
    logging.getLogger("wayfare").setLevel(logging.ERROR)
    net = Tree(*pairs, **options)
    *_, (caller, called) = net.pairs
    try:
        for name in net.names:
            if name != caller:
                await net.start(name)
        async with proxy(net.brokers[called].address) as road:
            net.brokers[caller] = BrokerHost(caller, {called: road.address}, **options)
            await net.brokers[caller].start(HERE)
            await net.linked()
            yield net, road
    finally:
        for broker in net.brokers.values():
            await broker.stop()


async def publish(client, first, last, payload=b""):
    for x in range(first, last + 1):
        await client.publish({"x": x}, payload)


async def numbers(subscription, count):
    return [(await subscription.get(10))["x"] for _ in range(count)]


# One end


def link(**more):
    out = Link(BrokerId("faro"), 7, NetLimits(**more))
    out.begin(3)
    return out


@pytest.mark.parametrize("more", [{"link_count": 4}, {"link_bytes": 40}], ids=str)
def test_a_link_is_full_until_half_of_it_is_taken(more):
    one = link(**more)
    for _ in range(4):
        one.send(b"0123456789")
    assert not one.full
    one.send(b"0123456789")
    assert one.full
    assert one.bytes == 50
    one.forget(2)
    assert one.full
    one.forget(3)
    assert not one.full
    assert one.bytes == 20


@pytest.mark.parametrize("more", [{"link_count": 4}, {"link_bytes": 40}], ids=str)
def test_a_link_with_far_too_much_is_hopeless(more):
    one = link(**more)
    for _ in range(16):
        one.send(b"0123456789")
    assert one.full
    assert not one.is_hopeless()
    one.send(b"0123456789")
    assert one.is_hopeless()


def test_a_full_link_to_who_is_away_for_too_long_is_hopeless():
    one = link(link_count=1, link_away_s=0.0)
    one.send(b"1")
    assert not one.is_hopeless()
    one.send(b"2")
    assert one.is_hopeless()
    one.connection = Connection  # it is there, and may be slow
    assert not one.is_hopeless()


def test_a_link_that_was_given_up_keeps_nothing_and_begins_from_nothing():
    one = link(link_count=1)
    one.send(b"1")
    one.send(b"2")
    one.give_up(now=1)
    one.send(b"3")
    assert (len(one), one.bytes, one.full) == (0, 0, False)
    assert one.join() == Join(9, 0, 0, 0)  # another life: the next counts are not these
    with pytest.raises(ProtocolError):
        one.forget(1)


def test_a_link_is_as_full_as_it_was_saved():
    one, other = link(link_count=1), link(link_count=1)
    one.send(b"1")
    one.send(b"2")
    other.load(one.saved())
    assert (other.bytes, other.full) == (2, True)


# A neighbour that is away


@live
async def test_who_only_subscribes_is_never_stopped_by_a_dead_neighbour():
    """Table changes alone are more than is kept: then the link begins from nothing."""
    async with (
        tree(*PAIR, **limits(link_away_s=PATIENT_S)) as net,
        wayfare.connect(net.url("lisbon"), client_id="tom", confirm=0) as tom,
        wayfare.connect(net.url("porto"), client_id="anna", confirm=0) as anna,
    ):
        await tom.advertise("x >= 0")
        await tom.detach()
        porto, lisbon = net.brokers["porto"], net.brokers["lisbon"]
        await lisbon.stop()
        await until(lambda: porto.links["lisbon"].connection is None)
        for x in range(60):
            await (await anna.subscribe(f"x = {x}")).close()
            await asyncio.sleep(0)  # so that each is heard for itself
        await until(lambda: len(porto.links["lisbon"]) >= 120)
        assert porto.links["lisbon"].full
        await anna.detach()
        await anna.attach()
        for x in range(60):
            await (await anna.subscribe(f"x = {x}")).close()
            await asyncio.sleep(0)
        await until(lambda: porto.links["lisbon"].known == 0)
        assert len(porto.links["lisbon"]) == 0
        async with anna.subscribe("x > 0") as all:
            await net.start("lisbon", lisbon.address)
            await net.linked()
            await tom.attach()
            await settled(net)
            await tom.publish({"x": 1})
            assert (await all.get(5))["x"] == 1


@live
async def test_publishers_wait_for_a_neighbour_that_comes_back_and_nothing_is_lost():
    lost = []
    async with (
        roads("porto-lisbon", **limits(link_count=500, link_away_s=PATIENT_S)) as (net, road),
        wayfare.connect(
            net.url("lisbon"), client_id="anna", on_lost=lambda *one: lost.append(one)
        ) as anna,
        wayfare.connect(net.url("porto"), client_id="tom", outbox=1_000) as tom,
    ):
        there = net.brokers["porto"].links["lisbon"]
        all = await anna.subscribe("x > 0")
        await tom.advertise("x > 0")
        road.swallow()
        await until(lambda: there.connection is None)
        publishing = asyncio.create_task(publish(tom, 1, 2_000, bytes(1_000)))
        await until(lambda: there.full)
        await asyncio.sleep(0.5)
        assert not publishing.done()  # it waits
        road.heal()
        assert await numbers(all, 2_000) == list(range(1, 2_001))
        await publishing
        assert lost == []


def told(net, broker, name, lost):
    """A client that writes down what it lost."""
    lost[name] = []
    return wayfare.connect(
        net.url(broker), client_id=name, on_lost=lambda count, _: lost[name].append(count)
    )


@pytest.mark.parametrize("routing", ["covering", "flooding"])
@live
async def test_publishers_go_on_without_a_neighbour_that_stays_away_and_who_misses_it_is_told(
    routing,
):
    """Both directions begin from nothing: so is told who is behind the one that gave up."""
    lost = {}
    async with (
        roads("faro-lisbon", "porto-lisbon", routing=routing, **limits(link_away_s=0.3)) as (
            net,
            road,
        ),
        told(net, "faro", "anna", lost) as anna,
        told(net, "porto", "bert", lost) as bert,
        told(net, "porto", "carla", lost) as carla,
        wayfare.connect(net.url("porto"), client_id="tom") as tom,
        wayfare.connect(net.url("faro"), client_id="eve") as eve,
    ):
        there = net.brokers["porto"].links["lisbon"]
        far, near = await anna.subscribe("x > 0"), await bert.subscribe("x > 0")
        await carla.subscribe("x < 0")
        await tom.advertise("x > 0")
        await eve.advertise("x > 0")
        road.swallow()
        await until(lambda: there.connection is None)
        await publish(tom, 1, 200)
        assert await numbers(near, 200) == list(range(1, 201))
        await until(lambda: there.known == 0)
        assert len(there) == 0
        assert lost == {"anna": [], "bert": [], "carla": []}
        road.heal()
        await net.linked()
        await settled(net)
        await publish(tom, 201, 210)
        assert await numbers(far, 10) == list(range(201, 211))
        reported = {name: set(counts) for name, counts in lost.items()}  # maybe more than once
        assert reported == {"anna": {0}, "bert": {0}, "carla": {0}}


@live
async def test_what_was_given_up_is_still_given_up_after_a_crash(tmp_path):
    """Else the link would go on with a hole in it that nobody knows of."""

    def each(name):
        return {"store": Store(tmp_path / name, "os", name)}

    async with tree(*PAIR, each=each, **limits(link_away_s=PATIENT_S)) as net:
        async with (
            wayfare.connect(net.url("lisbon"), client_id="anna", confirm=0) as anna,
            wayfare.connect(net.url("porto"), client_id="tom", confirm=0) as tom,
        ):
            await anna.subscribe("x > 0")
            await tom.advertise("x > 0")
            await anna.detach()
            porto, lisbon = net.brokers["porto"], net.brokers["lisbon"]
            await lisbon.stop()
            await until(lambda: porto.links["lisbon"].connection is None)
            for x in range(300):
                await tom.advertise(f"y = {x}")
            await until(lambda: porto.links["lisbon"].known == 0)
            await tom.publish({"x": 1}, confirm=True)
            copy = tmp_path / "copy"
            copy.mkdir()
            for file in (tmp_path / "porto").iterdir():  # as a crash would leave it
                (copy / file.name).write_bytes(file.read_bytes())
            await tom.detach()
        again = BrokerHost("porto", {"lisbon": lisbon.address}, store=Store(copy, "os", "porto"))
        await again.start(HERE)
        assert again.links["lisbon"].known == 0
        assert len(again.links["lisbon"]) == 0
        await again.stop()


# A neighbour that is slow


@live
async def test_a_slow_link_slows_publishers_down_who_are_not_even_near_it():
    """A thin line from lisbon to faro, and a publisher at porto: nothing is lost, queues have an end."""
    lost = {}
    sizes = limits(link_bytes=100_000, link_count=10_000, write_bytes=50_000)
    async with (
        roads("porto-lisbon", "faro-lisbon", **sizes) as (net, road),
        told(net, "faro", "anna", lost) as anna,
        wayfare.connect(net.url("porto"), client_id="tom") as tom,
    ):
        there = net.brokers["lisbon"].links["faro"]
        all = await anna.subscribe("x > 0")
        await tom.advertise("x > 0")
        road.bytes_per_s = 1_000_000
        publishing = asyncio.create_task(publish(tom, 1, 300, bytes(10_000)))
        got, most = [], 0
        for _ in range(300):
            got += await numbers(all, 1)
            most = max(most, there.bytes)
        await publishing
        assert got == list(range(1, 301))
        assert 100_000 < most < 600_000  # what is read at once comes on top of the limit
        assert lost == {"anna": []}
