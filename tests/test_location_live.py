"""Live clients that say where they are, and what follows them."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

import wayfare
import wayfare.sync
from live import HERE, tree
from proxy import proxy
from test_client_api import LINE, live
from wayfare.core.history import Limits
from wayfare.errors import FilterError, ModelError, UsageError
from wayfare.net.broker import BrokerHost
from wayfare.testing import Tree

PARKING = "service = 'parking' and location in myloc"


async def say(city, *places, **more):
    for place in places:
        await city.publish({"service": "parking", "location": place, **more}, confirm=True)


async def got(subscription, count):
    """Where, and whether that was of the past; and nothing comes behind it."""
    found = [await subscription.get(10) for _ in range(count)]
    with pytest.raises(TimeoutError):
        await subscription.get(0.1)
    return [(one["location"], one.past) for one in found]


async def a_city(net, name="city"):
    city = await wayfare.connect(net.url("lisbon"), client_id=name)
    await city.advertise("service = 'parking'")
    return city


@live
async def test_a_subscription_follows_its_client():
    async with (
        tree(*LINE) as net,
        await a_city(net) as city,
        wayfare.connect(net.url("porto"), client_id="car") as car,
        car.subscribe(PARKING) as parking,
    ):
        await say(city, "R1", "R2")
        assert await got(parking, 0) == []  # it has not said where it is
        car.location = "R1"
        assert car.location == "R1"
        await parking.ready()
        await say(city, "R1", "R2")
        assert await got(parking, 1) == [("R1", False)]
        car.location = "R2"
        await parking.ready()
        await say(city, "R1", "R2")
        assert await got(parking, 1) == [("R2", False)]
        car.location = None
        await parking.ready()
        await say(city, "R1", "R2")
        assert await got(parking, 0) == []


@live
async def test_a_subscription_is_ready_when_brokers_behind_slow_links_know_where_its_client_is():
    """`flush` does not wait for them, so what was published there at once would be missed."""
    lisbon = BrokerHost("lisbon", {"porto": None})
    await lisbon.start(HERE)
    async with proxy(lisbon.address) as road:
        porto = BrokerHost("porto", {"lisbon": road.address})
        await porto.start(HERE)
        road.delay_s = 0.1
        async with (
            wayfare.connect(str(porto.address), client_id="car") as car,
            wayfare.connect(str(lisbon.address), client_id="city") as city,
            car.subscribe(PARKING) as parking,
            car.subscribe("service = 'bus' and line = my.line") as bus,
        ):
            await city.advertise("exists service")
            for number, place in enumerate(("R1", "R2", "R1")):
                car.location = place
                await parking.ready()
                await say(city, place, number=number)
                assert (await parking.get(10))["number"] == number
                car.state["line"] = number
                await bus.ready()
                await city.publish({"service": "bus", "line": number})
                assert (await bus.get(10))["line"] == number
        await porto.stop()
    await lisbon.stop()


@live
async def test_it_is_told_where_its_client_is_also_before_and_while_it_is_away():
    async with tree(*LINE) as net, await a_city(net) as city:
        car = wayfare.connect(net.url("porto"), client_id="car")
        car.location = "R1"
        async with car, car.subscribe(PARKING) as parking:
            await say(city, "R1", "R2")
            assert await got(parking, 1) == [("R1", False)]
            await car.detach()
            car.location = "R2"
            await say(city, "R1", "R2")
            await car.attach()
            await parking.ready()
            await say(city, "R2")
            assert (await got(parking, 1))[0][0] == "R2"
            await car.move(net.url("faro"))
            await parking.ready()
            await say(city, "R1", "R2")
            assert (await got(parking, 1))[0][0] == "R2"


@live
async def test_a_subscription_that_ends_follows_no_more():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="car") as car,
    ):
        car.location = "R1"
        async with car.subscribe(PARKING), car.subscribe(PARKING):
            await car.flush()
            assert net.brokers["porto"].core.replicator.ear.subscriptions() != []
        await car.flush()
        assert net.brokers["porto"].core.replicator.ear.subscriptions() == []


@live
async def test_what_is_needed_may_change():
    """Values of the state: `my.need` is an ordinary subscription to what it means now."""
    async with (
        tree(*LINE) as net,
        await a_city(net) as city,
        wayfare.connect(net.url("porto"), client_id="car") as car,
        car.subscribe(wayfare.attr("free") >= wayfare.my.need) as some,
    ):

        async def free(*counts):
            await some.ready()
            for count in counts:
                await say(city, "R1", free=count)
            found = []
            while True:
                try:
                    found.append((await some.get(0.1))["free"])
                except TimeoutError:
                    return found

        assert await free(1, 2) == []
        car.state["need"] = 2
        assert dict(car.state) == {"need": 2}
        assert await free(1, 2, 3) == [2, 3]
        car.state["need"] = 3
        await car.move(net.url("faro"))
        assert await free(1, 2, 3) == [3]
        del car.state["need"]
        assert await free(1, 2, 3) == []
        assert len(car.state) == 0


@live
async def test_where_nobody_expected_it_the_past_is_there_too():
    """Nobody listens ahead: the last broker and those of publishers are asked."""
    async with (
        tree(*LINE, limits=Limits(past_count=100)) as net,
        await a_city(net) as city,
        wayfare.connect(net.url("porto"), client_id="car") as car,
        car.subscribe(PARKING) as parking,
    ):
        car.location = "R1"
        await parking.ready()
        await say(city, "R2", "R1", "R2")
        assert await got(parking, 1) == [("R1", False)]
        await car.detach()
        car.location = "R2"
        await car.move(net.url("faro"))
        assert await got(parking, 2) == [("R2", True), ("R2", True)]
        await say(city, "R2")
        assert await got(parking, 1) == [("R2", False)]


@live
@pytest.mark.parametrize("remembers", [0, 1, 100])
async def test_the_past_of_what_is_followed_and_whether_it_is_complete(remembers):
    lost = []
    async with (
        tree(*LINE, limits=Limits(past_count=remembers)) as net,
        await a_city(net) as city,
        wayfare.connect(
            net.url("porto"), client_id="car", on_lost=lambda *given: lost.append(given)
        ) as car,
    ):
        await say(city, "R1", "R1")
        car.location = "R1"
        async with car.subscribe(PARKING, since=60) as parking:
            assert await got(parking, min(remembers, 2)) == [("R1", True)] * min(remembers, 2)
            assert len(lost) == (remembers < 2)


@live
async def test_areas_and_points(tmp_path):
    (tmp_path / "map.toml").write_text("[places.R1]\nposition = [52.5163, 13.3777]\n")
    async with (
        tree(*LINE) as net,
        await a_city(net) as city,
        wayfare.connect(
            net.url("porto"), areas={"R1": ["R1", "R2"]}, places=tmp_path / "map.toml"
        ) as car,
        car.subscribe("location in myloc") as here,
        car.subscribe("near(myloc, 500)") as around,
    ):

        async def all_of(location):
            car.location = location
            await here.ready()
            await say(city, "R1", "R2", "R3")
            await say(city, "there", lat=52.5170, lon=13.3780)
            found = []
            for one in (here, around):
                while True:
                    try:
                        found.append((await one.get(0.1))["location"])
                    except TimeoutError:
                        break
            return found

        assert await all_of("R1") == ["R1", "R2", "there"]  # an area, and where the map says it is
        assert await all_of("R3") == ["R3"]
        assert await all_of((52.5171, 13.3781)) == ["there"]
        assert car.location == (52.5171, 13.3781)


@live
async def test_when_a_queue_is_full_it_waits():
    async with (
        tree(*LINE) as net,
        await a_city(net) as city,
        wayfare.connect(net.url("porto"), client_id="car", queue=2) as car,
        car.subscribe(PARKING) as parking,
    ):
        car.location = "R1"
        await parking.ready()
        for number in range(10):
            await say(city, "R1", free=number)
        await asyncio.sleep(0.2)
        assert len(parking._queue) == 2
        assert [(await parking.get(5))["free"] for _ in range(10)] == [*range(10)]


@live
async def test_a_client_with_a_store_goes_on_following(tmp_path):
    def connect(net):
        return wayfare.connect(net.url("porto"), client_id="car", store=tmp_path / "car.db")

    async with tree(*LINE) as net, await a_city(net) as city:
        async with connect(net) as car:
            car.location, car.state["need"] = "R1", 2
            async with car.subscribe(PARKING, last=5) as parking, car.subscribe("free >= my.need"):
                await say(city, "R1")
                assert await got(parking, 1) == [("R1", False)]
            held = car._core.held()
            assert (held.subscriptions, len(held.follows)) == ([], 2)
        with closing(sqlite3.connect(tmp_path / "car.db")) as file:
            assert file.execute("SELECT publisher FROM progress").fetchall() == []
        await say(city, "R1", "R2", free=0)
        await say(city, "R2", free=3)
        async with connect(net) as car:
            assert (car.location, dict(car.state)) == ("R1", {"need": 2})
            await asyncio.sleep(0.2)  # it comes before anybody subscribes
            async with car.subscribe(PARKING) as parking, car.subscribe("free >= my.need") as some:
                assert (await parking.get(5))["free"] == 0  # and what was handed out is done
                assert await got(parking, 0) == []
                assert (await some.get(5))["free"] == 3
                await parking.unsubscribe()
                await some.unsubscribe()
        async with connect(net) as car, car.subscribe(PARKING) as parking:
            await say(city, "R1", free=1)
            assert len(await got(parking, 1)) == 1
            assert car._core.held().follows == [(parking.filter.text, None)]
        assert net.brokers["porto"].core.replicator.virtual.keys() == {"car"}


@live
async def test_what_happens_is_recorded():
    rows = []
    async with tree(*LINE) as net, await a_city(net) as city:
        car = wayfare.connect(net.url("porto"), client_id="car", events=rows.append)
        car.location = "R1"
        async with car, car.subscribe(PARKING, last=3) as parking:
            car.state["need"] = 2
            await parking.ready()
            await say(city, "R1")
            await parking.get(5)
    told = [(one.kind, one.location, one.attributes) for one in rows if one.kind == "became"]
    assert told == [("became", "R1", {}), ("became", "R1", {"need": 2})]
    told = [(one.kind, str(one.follows), one.reason) for one in rows if one.follows is not None]
    assert told == [
        ("followed", str(parking.filter), "last 3"),
        ("unfollowed", str(parking.filter), None),
    ]
    assert [one.number is not None for one in rows if one.kind == "delivered"] == [True]


@live
async def test_what_makes_no_sense_is_one_sentence(tmp_path):
    car = wayfare.connect("127.0.0.1")
    for wrong in ("", "x" * 257):
        with pytest.raises(UsageError, match="a location is a name of 1 to 256 characters, not "):
            car.location = wrong
    for wrong in (5, (1, 2, 3), (91, 0), ("a", "b"), (float("nan"), 0)):
        with pytest.raises(UsageError, match="a location is a name, or a pair of latitude and lon"):
            car.location = wrong
    for name, value in (("", 1), ("a b", 1), (5, 1), ("x", [1]), ("x", float("nan"))):
        with pytest.raises(UsageError, match=r"state\[.*\] cannot be .*: "):
            car.state[name] = value
    with pytest.raises(KeyError):
        del car.state["need"]
    for number in range(128):
        car.state[f"x{number}"] = number
    with pytest.raises(UsageError, match="the state of a client has at most 128 values"):
        car.state["more"] = 1
    with pytest.raises(UsageError, match="follows the client, so leave out local"):
        car.subscribe(PARKING, local=True)
    with pytest.raises(FilterError, match="it can be subscribed to, not advertised"):
        async with tree(*LINE) as net, wayfare.connect(net.url("porto")) as city:
            await city.advertise(PARKING)
    with pytest.raises(UsageError, match="the area of 'R1' is 1 to 256 locations"):
        wayfare.connect("127.0.0.1", areas={"R1": []})
    with pytest.raises(UsageError, match=r"cannot read .*none.json: No such file"):
        wayfare.connect("127.0.0.1", places=tmp_path / "none.json")
    (tmp_path / "map.json").write_text("[]")
    with pytest.raises(ModelError, match=r"map.json cannot be used: it is no map"):
        wayfare.connect("127.0.0.1", places=tmp_path / "map.json")
    with pytest.raises(UsageError, match=r"is no map by its name: call it .json or .toml"):
        wayfare.connect("127.0.0.1", places=tmp_path / "map.txt")
    car._life.closed = True
    with pytest.raises(wayfare.Closed):
        car.location = "R1"


def test_the_twin_without_asyncio():
    with (
        Tree("porto-lisbon") as net,
        wayfare.sync.connect(net["porto"], "car") as car,
        wayfare.sync.connect(net["porto"], "city") as city,
    ):
        city.advertise("exists location")
        with car.subscribe("location in myloc and free >= my.need") as some:
            car.location = "R1"
            car.state.update(need=2)
            assert (car.location, dict(car.state), len(car.state)) == ("R1", {"need": 2}, 1)
            with pytest.raises(UsageError, match="cannot be"):
                car.state["need"] = [2]
            some.ready()
            for free in (1, 2):
                city.publish({"location": "R1", "free": free})
            assert (some.get(5)["free"], some.filter.names) == (2, {"need"})
            del car.state["need"]
            assert dict(car.state) == {}
