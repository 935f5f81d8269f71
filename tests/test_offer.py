"""Publishers on sockets that sleep until somebody wants what they offer."""

import asyncio
import threading

import pytest

import wayfare
import wayfare.sync
from live import HERE, tree, until
from proxy import proxy
from test_client_api import cancelled, live
from wayfare.errors import Closed, UsageError
from wayfare.net.broker import BrokerHost
from wayfare.net.store import Store
from wayfare.testing import Tree

LINE = ("porto-lisbon", "faro-lisbon")
OFFERED = "kind = 'temperature'"
WANTED = "kind = 'temperature' and value > 30"


def sensor(net, at="porto", **options):
    return wayfare.connect(net.url(at), client_id="sensor", **options)


@live
async def test_a_publisher_sleeps_until_somebody_comes_also_elsewhere_and_again_when_all_left():
    async with (
        tree(*LINE) as net,
        sensor(net) as device,
        device.offer(OFFERED) as offer,
    ):
        answers = []

        async def hear():
            async for wanted in offer:
                answers.append(wanted)

        hearing = asyncio.create_task(hear())
        await until(lambda: answers == [False])
        with pytest.raises(TimeoutError):
            await offer.until_wanted(0.05)

        anna = await wayfare.connect(net.url("faro"), client_id="anna")
        hot = await anna.subscribe(WANTED)
        await offer.until_wanted(10)
        await device.publish({"kind": "temperature", "value": 31})
        assert (await hot.get(10))["value"] == 31

        await device.move(net.url("lisbon"))
        await anna.move(net.url("porto"))
        await hot.ready()
        await offer.ready()
        assert offer.wanted is True and answers == [False, True]
        await device.publish({"kind": "temperature", "value": 32})
        assert (await hot.get(10))["value"] == 32

        await hot.close()
        await until(lambda: offer.wanted is False)
        await anna.subscribe(WANTED)
        await offer.until_wanted(10)
        await anna.close()
        await until(lambda: answers == [False, True, False, True, False])
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


# Mixed networks: others want other attributes


async def publish(device, count, **attributes):
    for value in range(count):
        await device.publish({**attributes, "value": value}, confirm=True)


@live
async def test_interest_in_other_attributes_does_not_hasten_the_first_answer():
    """Bert is near, and wants something else that overlaps: the answer waits until anna's interest is known."""
    lisbon = BrokerHost("lisbon", {"porto": None})
    await lisbon.start(HERE)
    async with proxy(lisbon.address) as road:
        porto = BrokerHost("porto", {"lisbon": road.address})
        await porto.start(HERE)
        async with (
            wayfare.connect(str(porto.address), client_id="bert") as bert,
            wayfare.connect(str(lisbon.address), client_id="anna") as anna,
            wayfare.connect(str(porto.address), client_id="sensor", confirm=0) as device,
            bert.subscribe("pressure > 0") as pressures,
            anna.subscribe("kind = 'temperature' and value >= 0") as all,
        ):
            road.delay_s = 0.2
            async with device.offer(OFFERED) as offer:
                await offer.until_wanted(10)
                assert [str(one.filter) for one in porto.core.routing.in_subs["lisbon"]] == [
                    str(all.filter)
                ]
                await publish(device, 25, kind="temperature")
                assert [(await all.get(10))["value"] for _ in range(25)] == [*range(25)]
                assert not pressures._queue
        await porto.stop()
    await lisbon.stop()


@live
async def test_an_offer_excludes_interest_in_other_attributes_by_its_own_constraints():
    """Once a sensor could not sleep where anybody was interested in anything else, and published in vain."""
    async with (
        tree(*LINE) as net,
        sensor(net) as device,
        wayfare.connect(net.url("porto"), client_id="bert") as bert,
        wayfare.connect(net.url("lisbon"), client_id="carla") as carla,
        wayfare.connect(net.url("faro"), client_id="anna") as anna,
        bert.subscribe("pressure > 0 or exists humidity") as others,
        carla.subscribe("kind = 'pressure'") as kinds,
        device.offer(OFFERED) as vague,
        device.offer(f"{OFFERED} and pressure is null and humidity is null") as exact,
    ):
        assert await vague.get(10) is True
        assert await exact.get(10) is False
        with pytest.raises(TimeoutError):
            await exact.until_wanted(0.05)
        async with anna.subscribe("kind = 'temperature' and value >= 0") as all:
            assert await exact.get(10) is True
            await exact.until_wanted(10)
            await publish(device, 25, kind="temperature")
            assert [(await all.get(10))["value"] for _ in range(25)] == [*range(25)]
        assert await exact.get(10) is False
        assert vague.wanted is True
        assert not others._queue and not kinds._queue


@live
async def test_what_changed_while_a_publisher_was_away_it_hears_when_it_is_back():
    async with tree(*LINE) as net, sensor(net) as device, device.offer(OFFERED) as offer:
        assert await offer.get(10) is False
        await device.detach()
        async with wayfare.connect(net.url("faro")) as anna, anna.subscribe(WANTED):
            assert offer.wanted is False, "as far as it knows"
            await device.attach()
            assert await offer.get(10) is True


@live
async def test_a_publisher_goes_on_hearing_when_its_broker_was_stopped_and_is_back(tmp_path):
    def stores(name):
        return {"store": Store(tmp_path / name, "disk", name)}

    async with (
        tree(*LINE, each=stores) as net,
        sensor(net) as device,
        device.offer(OFFERED) as offer,
    ):
        assert await offer.get(10) is False
        await net.restart("porto")
        async with wayfare.connect(net.url("faro")) as anna, anna.subscribe(WANTED):
            assert await offer.get(10) is True


@live
async def test_an_offer_withdraws_what_it_advertised_and_nothing_else():
    async with tree("porto-lisbon") as net, sensor(net) as device:
        await device.advertise(OFFERED)
        offer = device.offer(OFFERED)
        assert offer.wanted is None and device._core.watched == {}
        async with offer, device.offer(OFFERED) as other:
            assert await offer.get(10) is False is await other.get(10)
            await offer.close()
            assert offer.wanted is None and other.wanted is False
        assert device._core.watched == {} and offer.wanted is None
        await device.publish({"kind": "temperature", "value": 1})  # it is still advertised
        await device.unadvertise(OFFERED)
        with pytest.raises(wayfare.NotAdvertised):
            await device.publish({"kind": "temperature", "value": 1})


@live
async def test_who_waits_for_an_offer_that_is_closed_is_told():
    async with tree("porto-lisbon") as net, sensor(net) as device:
        for close in (lambda one: one.close(), lambda one: device.unadvertise(one.filter)):
            offer = await device.offer(OFFERED)
            await device.detach()  # so that nothing else wakes it
            waiting = asyncio.create_task(offer.until_wanted())
            await asyncio.sleep(0.02)
            await close(offer)
            with pytest.raises(Closed, match="the offer of kind = 'temperature' is closed"):
                await asyncio.wait_for(waiting, 1)  # before the next heartbeat
            assert [one async for one in offer] == []
            await device.attach()
        offer = await device.offer(OFFERED)
        waiting = asyncio.create_task(offer.until_wanted())
        await asyncio.sleep(0.02)
        await device.close()
        with pytest.raises(Closed, match="sensor was closed"):
            await waiting
        await offer.close()


@live
async def test_bad_times_and_filters_get_one_clear_sentence():
    async with tree("porto-lisbon") as net, sensor(net) as device:
        with pytest.raises(wayfare.FilterError):
            device.offer("kind =")
        with pytest.raises(UsageError, match="timeout is a number of seconds, not 'soon'"):
            await device.offer(OFFERED).until_wanted("soon")


@live
async def test_who_is_cancelled_has_not_heard_anything():
    async with tree("porto-lisbon") as net, sensor(net) as device:
        for turns in range(6):
            async with device.offer(OFFERED) as offer:
                told = await cancelled(offer.get(), turns)
                if told is None:
                    assert await offer.get(10) is False


@live
async def test_a_client_with_a_store_offers_again_what_its_last_process_advertised(tmp_path):
    async with tree("porto-lisbon") as net:
        for _ in range(2):
            async with (
                sensor(net, store=tmp_path / "sensor.db") as device,
                device.offer(OFFERED) as offer,
            ):
                assert await offer.get(10) is False
                await offer.close()
                assert list(map(str, device._core.advertisements)) == [OFFERED]


@live
async def test_flush_waits_until_a_broker_knows_that_somebody_watches(tmp_path):
    async with tree("porto-lisbon") as net:
        for _ in range(2):  # the second one need not advertise
            async with (
                sensor(net, store=tmp_path / "sensor.db") as device,
                device.offer(OFFERED) as offer,
            ):
                await device.flush(10)
                [session] = net.brokers["porto"].core.border.of("sensor")
                assert offer.filter in session.watched


@live
async def test_an_offer_begins_when_somebody_waits_for_it():
    async with tree("porto-lisbon") as net, sensor(net) as device:
        with pytest.raises(TimeoutError):
            await device.offer(OFFERED).until_wanted(0.05)
        assert await device.offer("x > 0").get(10) is False
        assert list(map(str, device._core.watched)) == [OFFERED, "x > 0"]


def test_without_asyncio():
    """As above, in threads; and Ctrl-C loses no answer."""
    with (
        Tree(*LINE) as net,
        wayfare.sync.connect(net["porto"], client_id="sensor") as device,
        device.offer(OFFERED) as offer,
    ):
        assert str(offer.filter) == OFFERED
        assert offer.get(10) is False is offer.wanted
        with pytest.raises(TimeoutError):
            offer.until_wanted(0.05)
        with wayfare.sync.connect(net["faro"]) as anna, anna.subscribe(WANTED):
            offer.until_wanted(10)
            assert next(offer) is True
            offer._live.give_back(True)
            assert offer.get(10) is True
            device.move(net["lisbon"])
        assert next(offer) is False
        closing = threading.Timer(0.1, offer.close)
        closing.start()
        assert list(offer) == []
        closing.join()
