"""Brokers that listen ahead, over real sockets: their replicators speak to each other directly."""

import asyncio
import socket
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import wayfare
from live import HERE, settled, tree, until
from test_client_api import live
from test_kill import free_ports
from test_location_live import PARKING, a_city, got, say
from test_security import raw
from wayfare.core import messages as m
from wayfare.core.effects import Post
from wayfare.core.history import Limits
from wayfare.core.places import of_edges
from wayfare.core.virtual import Ahead
from wayfare.errors import UsageError
from wayfare.net import config, network, peers
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost

SECRET = "a secret that all brokers know"
NAMES = ["porto", "lisbon", "faro", "evora"]
ROAD = [f"{b}-{a}" for a, b in pairwise(NAMES)]
MAP = of_edges(pairwise(NAMES))
AHEAD = Ahead(MAP, MAP.next_brokers)
LEASE_NS = 10**9


def road(**options):
    return tree(*ROAD, **{"ahead": AHEAD, "limits": Limits(lease_ns=LEASE_NS), **options})


def virtual(net, client="car"):
    """Where somebody listens for it."""
    known = {name: net.brokers[name].core.replicator.virtual.get(client) for name in NAMES}
    return [name for name, one in known.items() if one is not None and one.follows]


async def go(net, car, there):
    """Drive to the broker there, which is a location of its name."""
    car.location = there
    await car.move(net.url(there))


async def listened(net, *names):
    await until(lambda: virtual(net) == [*names])
    await settled(net)


@pytest.mark.parametrize("secret", [None, SECRET])
@live
async def test_what_was_said_of_a_place_is_there_on_arrival(secret):
    async with (
        road(secret=secret) as net,
        await a_city(net) as city,
        wayfare.connect(net.url("porto"), client_id="car") as car,
    ):
        car.location = "porto"
        async with car.subscribe(PARKING) as parking:
            await listened(net, "porto", "lisbon")
            await say(city, "porto", "lisbon", "faro")
            assert await got(parking, 1) == [("porto", False)]
            await go(net, car, "lisbon")
            assert await got(parking, 1) == [("lisbon", True)]
            await listened(net, "porto", "lisbon", "faro")
            await say(city, "lisbon", "faro")
            assert await got(parking, 1) == [("lisbon", False)]
            await go(net, car, "faro")
            assert await got(parking, 1) == [("faro", True)]
            await listened(net, "lisbon", "faro", "evora")
        await listened(net)  # nobody follows anything any more
        assert all(one.core.replicator.ear.store.kept == {} for one in net.brokers.values())


@live
async def test_a_value_that_changes_is_followed_by_brokers():
    """The next one holds what it may be soon, and the virtual client there what it was last."""
    ahead = Ahead(MAP, MAP.next_brokers, steps=1)
    async with (
        road(ahead=ahead) as net,
        await a_city(net) as city,
        wayfare.connect(net.url("porto"), client_id="car", changes={"need": 1}) as car,
    ):
        car.state["need"] = 3
        async with car.subscribe("free >= my.need") as some:
            await listened(net, "porto", "lisbon")
            at_lisbon = net.brokers["lisbon"].core.routing.in_subs["porto"]
            assert [str(one.filter) for one in at_lisbon] == ["free >= 2"]
            await say(city, "R1", free=2)
            await say(city, "R1", free=3)
            assert (await some.get(10))["free"] == 3
            car.state["need"] = 2
            await car.flush()
            await until(lambda: [str(one.filter) for one in at_lisbon] == ["free >= 1"])
            await listened(net, "porto", "lisbon")
            await car.detach()
            await say(city, "R1", free=1)
            await say(city, "R1", free=2)
            await car.move(net.url("lisbon"))
            one = await some.get(10)
            assert (one["free"], one.past) == (2, True)
            with pytest.raises(TimeoutError):
                await some.get(0.1)
        await listened(net)
        assert all(one.core.replicator.ear.store.kept == {} for one in net.brokers.values())


def test_no_broker_listens_ahead_if_sessions_stay_at_home():
    with pytest.raises(UsageError, match="so no broker can listen ahead"):
        BrokerHost("porto", {}, relocation="home", ahead=AHEAD)
    BrokerHost("porto", {}, relocation="home", ahead=Ahead(MAP))


@live
async def test_where_nobody_expected_it_it_asks_where_it_was():
    """From porto to evora, which is not next: what porto had for it, and it did not get, comes."""
    async with (
        road(limits=Limits(recall_ns=30 * 10**9)) as net,
        await a_city(net) as city,
        wayfare.connect(net.url("porto"), client_id="car", areas={"evora": ["porto"]}) as car,
    ):
        car.location = "porto"
        async with car.subscribe(PARKING) as parking:
            await listened(net, "porto", "lisbon")
            await car.detach()
            await say(city, "porto")
            await until(lambda: net.brokers["porto"].core.replicator.virtual["car"].backlog.last)
            await asyncio.sleep(0.2)  # clearly before it comes to evora
            car.location = "evora"
            await car.move(net.url("evora"))
            assert await got(parking, 1) == [("porto", True)]


@live
async def test_a_broker_that_was_away_listens_again():
    async with (
        road() as net,
        await a_city(net) as city,
        wayfare.connect(net.url("porto"), client_id="car") as car,
    ):
        car.location = "porto"
        async with car.subscribe(PARKING) as parking:
            await listened(net, "porto", "lisbon")
            await net.restart("lisbon")
            await listened(net, "porto", "lisbon")  # when porto renews the lease
            await until(lambda: city.broker == "lisbon")
            await city.flush()
            await settled(net)
            await say(city, "lisbon")
            await go(net, car, "lisbon")
            assert await got(parking, 1) == [("lisbon", True)]


@live
async def test_a_connection_that_nobody_uses_is_closed(monkeypatch):
    monkeypatch.setattr(peers, "IDLE_S", 0.1)
    async with (
        road(heartbeat_s=0.05, limits=Limits()) as net,
        wayfare.connect(net.url("porto"), client_id="car") as car,
        car.subscribe(f"{PARKING} and free >= my.need"),
    ):
        porto, lisbon = net.brokers["porto"].peers, net.brokers["lisbon"].peers
        await until(lambda: porto.sent and lisbon.incoming)
        await until(lambda: not (porto.connections() or lisbon.incoming))
        before = porto.sent
        car.state["need"] = 2
        await until(lambda: lisbon.heard == porto.sent > before)
        assert (porto.dropped, porto.trouble, lisbon.trouble) == (0, {}, {})


@live
async def test_what_cannot_be_told_is_dropped_and_counted(monkeypatch, caplog):
    monkeypatch.setattr(peers, "RETRY_S", (60.0, 60.0))
    porto = BrokerHost("porto", {}, peers={"faro": Address("127.0.0.1", 1)})
    porto.peers.meet({"evora": None})
    await porto.start(HERE)
    try:
        for name in ("lisbon", "evora", "faro", "faro", "lisbon"):
            porto._perform([Post(name, m.Forget("car", 1))])
        await until(lambda: porto.peers.dropped == 5)
        assert porto.peers.trouble == {
            "lisbon": "nobody knows its address: name it in [peers]",
            "evora": "nobody knows its address: name it in [peers]",
            "faro": "wayfare://127.0.0.1:1: nobody listens there",
        }
        porto._perform([Post("faro", m.Forget("car", 1))])  # too early to call again
        assert (porto.peers.dropped, porto.peers.sent) == (6, 0)
        porto.peers._ways["faro"].retry_at = 0.0  # a minute later
        faro = BrokerHost("faro", {}, peers={"porto": porto.address})
        porto.peers.meet({"faro": await faro.start(HERE)})
        porto._perform([Post("faro", m.Forget("car", 1))])
        await until(lambda: faro.peers.heard == 1)
        porto._perform([Post("faro", m.Forget("car", 1))])  # over the same connection
        await until(lambda: faro.peers.heard == 2)
        assert (porto.peers.sent, len(faro.peers.incoming)) == (2, 1)
        await faro.stop()
        await until(lambda: not porto.peers.connections())
    finally:
        await porto.stop()


@live
async def test_no_more_waits_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(peers, "WAITING_MAX", 2)
    silent = socket.create_server(("127.0.0.1", 0))
    there = Address("127.0.0.1", silent.getsockname()[1])
    porto = BrokerHost("porto", {}, peers={"faro": there})
    await porto.start(HERE)
    for _ in range(5):
        porto._perform([Post("faro", m.Forget("car", 1))])
    assert porto.peers.dropped == 3
    assert porto.peers.trouble == {"faro": "it does not answer, and too much waits for it"}
    await porto.stop()
    silent.close()


STATE = m.Followed((("location in myloc", None),), m.State("porto"))
SHADOW = m.Shadow("porto", "car", 1, 0, 10**9, STATE)
OF_FARO = m.Shadow("faro", "car", 1, 0, 10**9, STATE)


@pytest.mark.parametrize(
    ("secret", "who", "said", "refusal"),
    [
        (None, "mallory", [m.Peer()], "lisbon knows no broker mallory: name it in [peers]"),
        (None, "porto", [SHADOW], "Shadow before Attach or Join"),
        (None, "porto", [m.Peer(), m.Publish(1, {})], "Publish from a peer"),
        (None, "porto", [m.Peer(), m.Took(1)], "Took from a peer"),
        (None, "porto", [m.Peer(), OF_FARO], "porto speaks for faro"),
        (None, "porto", [m.Peer(), m.Recall("faro", "car", 1)], "porto speaks for faro"),
        (SECRET, "porto", [m.Peer(), SHADOW], "porto has not proved that it knows the secret"),
    ],
)
@live
async def test_who_may_not_speak_is_refused(secret, who, said, refusal):
    lisbon = BrokerHost("lisbon", {}, secret=secret, peers={"porto": HERE})
    await lisbon.start(HERE)
    try:
        async with raw(lisbon, who) as stranger:
            await stranger.say(*said)
            assert refusal in (await stranger.hear(m.Refused)).reason
        assert (lisbon.core.replicator.virtual, lisbon.peers.heard) == ({}, 0)
        await until(lambda: not lisbon.peers.incoming)
    finally:
        await lisbon.stop()


@live
async def test_who_has_another_secret_or_another_name_is_told_nothing():
    porto = BrokerHost("porto", {}, secret=SECRET)
    lisbon = BrokerHost("lisbon", {}, secret="x" * 20, peers={"porto": HERE})
    await porto.start(HERE)
    there = await lisbon.start(HERE)
    try:
        porto.peers.meet({"lisbon": there, "faro": there})
        porto._perform([Post("lisbon", SHADOW), Post("faro", SHADOW)])
        await until(lambda: porto.peers.dropped == 2)
        assert "have different secrets" in porto.peers.trouble["lisbon"]
        assert porto.peers.trouble["faro"] == "faro was called, and lisbon is there: see to [peers]"
        assert (lisbon.peers.heard, porto.peers.sent) == (0, 0)
    finally:
        await porto.stop()
        await lisbon.stop()


SCRIPT = Path(__file__).with_name("broker_process.py")


async def start(name, ports, path):
    near = [f"lisbon={ports['lisbon']}"] if name == "porto" else ["porto"]
    others = [f"~{one}={port}" for one, port in ports.items() if one != name]
    command = [str(SCRIPT), name, str(ports[name]), str(path / name), "disk", *near, *others]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    assert await process.stdout.readline() == b"ready\n"
    return process


@live
async def test_what_was_kept_outlives_a_broker_that_is_killed(tmp_path):
    ports = dict(zip(("porto", "lisbon"), free_ports(2), strict=True))
    url = {name: f"wayfare://127.0.0.1:{port}" for name, port in ports.items()}
    lisbon, porto = [await start(name, ports, tmp_path) for name in ("lisbon", "porto")]
    try:
        async with (
            wayfare.connect(url["porto"], client_id="city") as city,
            wayfare.connect(url["porto"], client_id="car") as car,
            wayfare.connect(url["lisbon"], client_id="witness") as witness,
        ):
            await city.advertise("service = 'parking'")
            car.location = "porto"
            async with car.subscribe(PARKING) as parking:
                async with city.offer("service = 'parking' and location = 'lisbon'") as offer:
                    await offer.until_wanted(10)  # so lisbon listens
                async with witness.subscribe("location = 'lisbon'") as seen:
                    await witness.flush()
                    await say(city, "lisbon", "porto")
                    assert await got(parking, 1) == [("porto", False)]
                    await seen.get(10)  # so lisbon has it
                lisbon.kill()
                await lisbon.wait()
                lisbon = await start("lisbon", ports, tmp_path)
                car.location = "lisbon"
                await car.move(url["lisbon"])
                assert await got(parking, 1) == [("lisbon", True)]
    finally:
        for process in (lisbon, porto):
            process.kill()
            await process.wait()


@live
async def test_brokers_of_a_network_know_each_other(tmp_path):
    (tmp_path / "city.toml").write_text(
        'links = [["a", "b"], ["b", "c"]]\nahead = { nlb = "all" }', "utf-8"
    )
    city = config.read(tmp_path / "city.toml")
    running = await network.start(city)
    try:
        async with (
            wayfare.connect(str(running["a"].address), client_id="car") as car,
            car.subscribe(PARKING),
        ):
            await until(
                lambda: all("car" in one.core.replicator.virtual for one in running.values())
            )
    finally:
        await network.stop(running.values())
