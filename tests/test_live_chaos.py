"""A few seconds of random trouble with brokers of this process: the quick part of tests/chaos.

Everybody moves and publishes, and nothing is lost, doubled or late.
"""

import asyncio
import random
from contextlib import suppress

import wayfare
from live import until
from proxy import Proxy
from test_client_api import live
from wayfare.core.history import Limits
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost

EDGES = (("porto", "lisbon"), ("faro", "lisbon"), ("evora", "faro"))  # the first calls the second
BROKERS = ("lisbon", "porto", "faro", "evora")
CLIENTS = ("anna", "bert", "carla", "tom")
HEARTBEAT_S = 0.2
# What is lost for a limit, or because an answer is late, is another story.
PATIENT = Limits(backlog_count=10**6, backlog_bytes=10**9, held_count=10**6, answer_ns=600 * 10**9)
# From nothing to more than the buffers of a socket take, so that cuts go through frames.
# Large ones are rare: everything follows everybody who moves, three times a second.
SIZES = {0: 30, 10: 30, 1_000: 20, 2_000: 17, 30_000: 2, 200_000: 1}
TROUBLE_S = (0.05, 1.2)  # shorter and longer than it takes to find out that a peer is silent


def payload(x, size):
    """Bytes of which none is like its neighbours: a piece that is missing, or comes twice, shows."""
    return bytes((x + at) % 251 for at in range(251)) * (size // 251) + bytes(size % 251)


class City:
    """Brokers and clients with a proxy on every road."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.brokers, self.links, self.doors, self.clients = {}, [], {}, {}
        self.got = {name: [] for name in CLIENTS}
        self.lost = []
        self.published = dict.fromkeys(CLIENTS, 0)
        self.moves = self.troubles = 0
        self.end, self.least = 0.0, 0

    def goes_on(self):
        """Until that time, and on a busy machine until there were so many moves and troubles."""
        enough = min(self.moves, self.troubles) >= self.least
        return asyncio.get_running_loop().time() < self.end or not enough

    async def start(self):
        for name in BROKERS:
            near = {}
            for a, b in EDGES:
                if name == b:
                    near[a] = None
                if name == a:
                    road = Proxy(self.brokers[b].address)
                    await road.start()
                    self.links.append(road)
                    near[b] = road.address
            self.brokers[name] = broker = BrokerHost(
                name, near, heartbeat_s=HEARTBEAT_S, limits=PATIENT
            )
            await broker.start(Address("127.0.0.1", 0))
        others = len(BROKERS) - 1
        await until(
            lambda: all(len(one.core.paths._hops) == others for one in self.brokers.values())
        )
        for name in CLIENTS:
            for broker in BROKERS:
                door = self.doors[name, broker] = Proxy(self.brokers[broker].address)
                await door.start()
            urls = [self.doors[name, broker].url for broker in BROKERS]
            self.chance.shuffle(urls)
            self.clients[name] = await wayfare.connect(
                urls,
                client_id=name,
                heartbeat_s=HEARTBEAT_S,
                timeout=8,
                on_lost=lambda *what: self.lost.append(what),
            )

    async def stop(self):
        for client in self.clients.values():
            await client.close(timeout=0.5)
        for road in [*self.links, *self.doors.values()]:
            await road.stop()
        for broker in self.brokers.values():
            await broker.stop()

    async def read(self, name, subscription):
        async for one in subscription:
            assert one.payload == payload(one["x"], one["size"])
            self.got[name].append((one.publisher, one["x"]))

    async def publish(self, name):
        chance = random.Random(self.chance.random())
        client = self.clients[name]
        while self.goes_on():
            self.published[name] += 1
            x, (size,) = self.published[name], chance.choices([*SIZES], [*SIZES.values()])
            await client.publish({"x": x, "who": name, "size": size}, payload(x, size))
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01, 0.05]))

    async def roam(self, name):
        chance = random.Random(self.chance.random())
        client = self.clients[name]
        while self.goes_on():
            await asyncio.sleep(chance.expovariate(3))
            try:
                async with asyncio.timeout(chance.choice([0.01, 0.5, 5])):
                    if chance.random() < 0.2:
                        await client.detach()
                        await asyncio.sleep(chance.random() / 5)
                        await client.attach()
                    else:
                        await client.move(self.doors[name, chance.choice(BROKERS)].url)
                self.moves += 1
            except (TimeoutError, wayfare.CannotConnect):
                pass

    async def trouble(self, roads, every_s):
        chance = random.Random(self.chance.random())
        while self.goes_on():
            await asyncio.sleep(chance.expovariate(1 / every_s))
            road = chance.choice(roads)
            self.troubles += 1
            kind = chance.choice(["cut", "swallow", "half", "slow", "thin"])
            if kind == "cut":
                road.cut()
                continue
            if kind == "half":
                road.half_close(chance.choice(["up", "down"]))
                continue
            if kind == "swallow":
                road.swallow(*chance.choice([("up",), ("down",), ("up", "down")]))
            elif kind == "slow":
                road.delay_s = chance.choice([0.005, 0.05])
            else:
                road.bytes_per_s = chance.choice([20_000, 500_000])
            await asyncio.sleep(chance.uniform(*TROUBLE_S))
            self.calm(road)

    def calm(self, road):
        road.heal()
        road.delay_s, road.bytes_per_s = 0.0, None


async def chaos(seed, seconds, least=0):
    city = City(seed)
    await city.start()
    try:
        readers = []
        for name, client in city.clients.items():
            subscription = await client.subscribe("x > 0", queue=50)
            await client.advertise(wayfare.attr("who") == name)
            readers.append(asyncio.create_task(city.read(name, subscription)))
        city.end, city.least = asyncio.get_running_loop().time() + seconds, least
        doors = [*city.doors.values()]
        async with asyncio.TaskGroup() as group:
            for name in CLIENTS:
                group.create_task(city.publish(name))
                group.create_task(city.roam(name))
            group.create_task(city.trouble(city.links, 0.4))
            group.create_task(city.trouble(doors, 0.1))
            group.create_task(city.trouble(doors, 0.1))
        for road in [*city.links, *doors]:
            city.calm(road)
        for client in city.clients.values():
            await client.attach()
            await client.flush(30)
        total = sum(city.published.values())
        with suppress(TimeoutError):
            await until(lambda: all(len(got) >= total for got in city.got.values()), 15)
        await asyncio.sleep(0.3)  # for what comes twice
        for one in readers:
            one.cancel()
        ends = await asyncio.gather(*readers, return_exceptions=True)
        assert [one for one in ends if not isinstance(one, asyncio.CancelledError)] == []
    finally:
        await city.stop()
    return city


def check(city):
    for name in CLIENTS:
        for publisher in CLIENTS:
            got = [x for who, x in city.got[name] if who == publisher]
            assert got == [*range(1, city.published[publisher] + 1)], (name, publisher)
    assert city.lost == []


@live
async def test_nothing_is_lost_in_a_few_seconds_of_trouble():
    city = await chaos(seed=1, seconds=4, least=11)
    check(city)
    assert min(city.moves, city.troubles) > 10
