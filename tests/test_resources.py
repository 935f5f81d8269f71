"""What peers may cost a broker in sum: its journal, its memory, its disk."""

import asyncio
import contextlib
import socket

import pytest

import wayfare
from live import HERE, tree, until
from wayfare.bench import memory
from wayfare.core import codec
from wayfare.core.broker import Broker
from wayfare.core.effects import Close, LinkDown, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import (
    PROTOCOL_VERSION,
    Announce,
    Attach,
    Gap,
    Hello,
    Ping,
    Publish,
    Refused,
    Resend,
    Welcome,
)
from wayfare.net import store as stores
from wayfare.net.broker import BrokerHost
from wayfare.net.limits import NetLimits
from wayfare.net.store import Store

MIB = 2**20
GREETING_NS = Limits().greeting_ns
X = Filter.parse("x > 0")


class Peer:
    """A client that says exactly what a test tells it to."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.heard = []
        self._decoder = codec.FrameDecoder()

    async def __aenter__(self):
        self._reader, self._writer = await asyncio.open_connection(
            self.address.host, self.address.port
        )
        self.say(Hello(PROTOCOL_VERSION, self.name))
        return self

    async def __aexit__(self, *_):
        self._writer.close()

    def say(self, *messages):
        self._writer.write(b"".join(map(codec.encode, messages)))

    def write(self, data):
        self._writer.write(data)

    async def hear(self, kind):
        """Read until a message of this kind comes; None when the broker closes instead."""
        while data := await asyncio.wait_for(self._reader.read(65536), 10):
            self.heard += self._decoder.feed(data)
            for one in self.heard:
                if isinstance(one, kind):
                    return one
        return None


# Half-finished attachments


def half_attached():
    """A broker that a client has attached to by the digest of filters that nobody knows."""
    core = Broker("porto")
    effects = core.step(Received("eve#1", Attach("eve", 1, 0, digest=7)), 0)
    assert effects == [Send("eve#1", Resend(1))]
    return core


def test_a_half_finished_attachment_ends_with_the_time_of_a_greeting():
    core = half_attached()
    assert core.next_deadline() == GREETING_NS
    assert core.step(Tick(), GREETING_NS - 1) == []
    (close,) = core.step(Tick(), GREETING_NS)
    assert isinstance(close, Close)
    assert close.link == "eve#1"
    assert "did not attach again within 10 s" in close.reason
    assert core.profiles.asking == {}


def test_a_second_digest_does_not_renew_a_half_finished_attachment():
    core = half_attached()
    (close,) = core.step(Received("eve#1", Attach("eve", 2, 0, digest=8)), 1)
    assert close.fault
    core.step(LinkDown("eve#1"), 2)
    assert core.profiles.asking == {}


def test_a_half_finished_attachment_is_saved_and_goes_on():
    """Each of its states: the old broker is asked, the client is asked, the connection is gone."""
    core = Broker("porto", ["faro"])
    core.step(Received("faro", Announce(("faro",))), 0)
    for link, epoch in (("eve#1", 2), ("eve#2", 3)):
        attach = Attach("eve", epoch, 0, (), (), (("faro", 1),), True, digest=7)
        core.step(Received(link, attach), 0)
        core.step(Received(link, Publish(1, {"x": 1})), 0)
    core.step(LinkDown("eve#2"), 0)
    core.step(Received("tom#1", Attach("tom", 1, 0, digest=7)), 0)
    core.step(Tick(), 0)
    assert core.is_quiet()
    new = Broker("porto", ["faro"])
    new.load(core.save())
    for one in (core, new):
        states = [
            (link, asking.message, asking.later, asking.until, asking.resent, asking.gone)
            for link, asking in one.profiles.asking.items()
        ]
        assert [state[-2:] for state in states] == [(False, False), (False, True), (True, False)]
    full = Attach("tom", 1, 0, (X,))
    said = [
        Received("tom#1", full),
        Tick(),
        Received("eve#1", Attach("eve", 2, 0, (X,), (), (("faro", 1),), True)),
    ]
    for now, event in enumerate(said, Limits().answer_ns):
        assert new.step(event, now) == core.step(event, now)
    assert new.save() == core.save()


def test_one_idle_connection_does_not_stop_snapshots(tmp_path, monkeypatch, caplog):
    """It attaches by an unknown digest, and then says that it is there."""
    monkeypatch.setattr(stores, "SNAPSHOT_BYTES", 64 * 1024)

    async def play():
        host = BrokerHost(
            "porto",
            {},
            store=Store(tmp_path, "os", "porto"),
            heartbeat_s=0.2,
            net_limits=NetLimits(greeting_s=1.0),
        )
        address = await host.start(HERE)
        longest = 0
        try:
            async with (
                Peer("eve", address) as eve,
                wayfare.connect(str(address), client_id="tom") as tom,
            ):
                eve.say(Attach("eve", 1, 0, digest=7))
                assert await eve.hear(Resend) is not None
                await tom.advertise("x > 0")
                for x in range(1, 3_001):
                    await tom.publish({"x": x}, payload=bytes(100))
                    if x % 50 == 0:
                        await tom.flush(10)
                        eve.say(Ping())
                        longest = max(longest, host.store.journal_bytes)
                assert host.store.snapshots > 3
                assert longest < 2 * stores.SNAPSHOT_BYTES
                while host.core.profiles.asking:
                    eve.say(Ping())
                    await asyncio.sleep(0.05)
                assert await eve.hear(Refused) is not None
        finally:
            await host.stop()

    asyncio.run(asyncio.wait_for(play(), 60))
    assert "journal_long" not in [getattr(one, "event", "") for one in caplog.records]


# Memory


@contextlib.asynccontextmanager
async def serving(**limits):
    host = BrokerHost("porto", {}, limits=Limits(**limits))
    await host.start(HERE)
    try:
        yield host
    finally:
        await host.stop()


async def leave_behind(address, name, text):
    """A session of a client that is away."""
    async with Peer(name, address) as one:
        one.say(Attach(name, 1, 0, (Filter.parse(text),)))
        assert await one.hear(Welcome) is not None


def test_beyond_the_limit_the_largest_is_slowed_and_loses_and_others_do_not():
    limit = 2 * MIB

    async def play():
        async with (
            serving(memory_bytes=limit) as host,
            wayfare.connect(str(host.address), client_id="anna") as anna,
            anna.subscribe("x > 0 and y = 1") as news,
            wayfare.connect(str(host.address), client_id="tom") as tom,
        ):
            for name in ("eve", "mallory"):
                await leave_behind(host.address, name, "x > 0")
            await leave_behind(host.address, "ben", "x > 0 and y = 1")
            await tom.advertise("x > 0")
            for x in range(1, 401):
                await tom.publish({"x": x, "y": int(x % 100 == 0)}, payload=bytes(10_000))
                assert host.memory.used() < 1.3 * limit
            await tom.flush(30)
            got = [(await anext(news)).attributes["x"] for _ in range(4)]
            assert got == [100, 200, 300, 400]
            assert anna.lost == 0
            assert host.slowed > 0
            backlogs = {one.client: one.backlog for one in host.core.border.all()}
            assert len(backlogs["ben"]) == 4
            assert len(backlogs["eve"]) < 400
            async with Peer("eve", host.address) as eve:
                eve.say(Attach("eve", 2, 0, (X,), (), (("porto", 1),), True))
                gap = await eve.hear(Gap)
                assert (gap.reason, gap.exact) == ("memory", True)

    asyncio.run(asyncio.wait_for(play(), 60))


def test_clients_of_a_neighbour_are_slowed_and_the_largest_consumer_here_loses():
    limit = 2 * MIB

    async def play():
        limits = {"porto": Limits(memory_bytes=limit), "faro": Limits()}
        async with tree("faro-porto", each=lambda name: {"limits": limits[name]}) as net:
            porto, faro = net.brokers["porto"], net.brokers["faro"]
            await leave_behind(porto.address, "eve", "x > 0")
            await leave_behind(porto.address, "ben", "x > 0 and y = 1")
            async with wayfare.connect(net.url("faro"), client_id="tom") as tom:
                await tom.advertise("x > 0")
                for x in range(1, 401):
                    await tom.publish({"x": x, "y": int(x % 100 == 0)}, payload=bytes(10_000))
                await tom.flush(30)
            await until(lambda: porto.routed == 400)
            assert porto.memory.used() < 1.3 * limit
            assert porto.slowed == 0 < faro.slowed
            backlogs = {one.client: one.backlog for one in porto.core.border.all()}
            assert len(backlogs["ben"]) == 4
            kept = len(backlogs["eve"])
            async with Peer("eve", porto.address) as eve:
                eve.say(Attach("eve", 2, 0, (X,), (), (("porto", 1),), True))
                gap = await eve.hear(Gap)
                assert (gap.reason, gap.exact) == ("memory", True)
                assert gap.number == 400 - kept

    asyncio.run(asyncio.wait_for(play(), 60))


def test_readers_that_do_not_read_are_cut_off_at_the_limit_of_all_together():
    limit, some = 8 * MIB, 8

    async def play():
        async with (
            serving(memory_bytes=limit, backlog_bytes=4 * MIB) as host,
            contextlib.AsyncExitStack() as deaf,
            wayfare.connect(str(host.address), client_id="tom") as tom,
        ):
            await tom.advertise("x > 0")
            for number in range(some):  # each gets something else, or it would be there once
                one = await deaf.enter_async_context(Peer(f"deaf{number}", host.address))
                mine = Filter.parse(f"x > 0 and y = {number}")
                one.say(Attach(one.name, 1, 0, (mine,), window=10_000))
                assert await one.hear(Welcome) is not None
            for one in host.connections.values():
                sock = one._transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
            for x in range(1, 601):
                await tom.publish({"x": x, "y": x % some}, payload=bytes(50_000))
                assert host.memory.outside() < 1.5 * limit
            await tom.flush(30)
            assert host.memory.cut > 0
            assert host.ended["client", "cut", "memory"] == host.memory.cut

    asyncio.run(asyncio.wait_for(play(), 60))


def test_frames_that_are_never_finished_count():
    async def play():
        async with serving(memory_bytes=4 * MIB) as host, contextlib.AsyncExitStack() as all:
            for number in range(8):
                one = await all.enter_async_context(Peer(f"slow{number}", host.address))
                one.say(Attach(one.name, 1, 0))
                assert await one.hear(Welcome) is not None
                one.write((8 * MIB - 4).to_bytes(4, "big") + bytes(MIB))
            await until(lambda: host.memory.cut >= 4)
            assert host.memory.outside() <= 4 * MIB

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "some"), [("names", 10), ("frames", 30)])
def test_resident_memory_stays_near_the_limit(case, some):
    limit = 64 * MIB
    unlimited, _ = memory.grown(memory.CASES[case][0], some, 0)
    limited, _ = memory.grown(memory.CASES[case][0], some, limit)
    assert unlimited > 1.6 * limit
    assert limited < 1.3 * limit + 16 * MIB


# Disk


def test_beyond_the_limit_of_the_disk_the_largest_loses_and_the_store_stays_small(tmp_path):
    limit = MIB

    async def play():
        store = Store(tmp_path, "os", "porto")
        host = BrokerHost("porto", {}, store=store, net_limits=NetLimits(disk_bytes=limit))
        await host.start(HERE)
        longest = 0
        try:
            async with wayfare.connect(str(host.address), client_id="tom") as tom:
                await leave_behind(host.address, "eve", "x > 0")
                await leave_behind(host.address, "ben", "x > 0 and y = 1")
                await tom.advertise("x > 0")
                for x in range(1, 401):
                    await tom.publish({"x": x, "y": int(x % 100 == 0)}, payload=bytes(10_000))
                    if x % 10 == 0:
                        await tom.flush(10)
                        longest = max(longest, host.store.disk_bytes)
            backlogs = {one.client: one.backlog for one in host.core.border.all()}
            assert len(backlogs["ben"]) == 4
            assert 0 < len(backlogs["eve"]) < 400
            assert backlogs["eve"].why == "disk"
            assert longest < 1.3 * limit
            assert host.slowed > 0
            return [number for number, _, _ in backlogs["eve"].waiting]
        finally:
            await host.stop()

    kept = asyncio.run(asyncio.wait_for(play(), 60))

    async def again():
        """What was not lost is there after a restart."""
        host = BrokerHost("porto", {}, store=Store(tmp_path, "os", "porto"))
        await host.start(HERE)
        try:
            (eve,) = host.core.border.of("eve")
            assert [number for number, _, _ in eve.backlog.waiting] == kept
        finally:
            await host.stop()

    asyncio.run(again())


def test_what_waits_for_a_dead_neighbour_is_given_up_at_the_limit_of_the_disk(tmp_path):
    limit = MIB
    own = {"store": Store(tmp_path, "os", "porto"), "net_limits": NetLimits(disk_bytes=limit)}

    async def play():
        async with tree("faro-porto", each=lambda name: own if name == "porto" else {}) as net:
            porto, faro = net.brokers["porto"], net.brokers["faro"]
            await leave_behind(faro.address, "eve", "x > 0")
            await leave_behind(porto.address, "ben", "x > 0 and y = 1")
            async with wayfare.connect(str(porto.address), client_id="tom") as tom:
                await tom.advertise("x > 0")
                await until(lambda: len(porto.core.routing.in_subs["faro"]) == 1)
                await faro.stop()
                for x in range(1, 401):
                    await tom.publish({"x": x, "y": int(x % 100 == 0)}, payload=bytes(10_000))
                    if x % 10 == 0:
                        await tom.flush(10)
                        assert porto.store.disk_bytes < 1.3 * limit
            (ben,) = porto.core.border.of("ben")
            assert len(ben.backlog) == 4
            assert not porto.links["faro"].keeps

    asyncio.run(asyncio.wait_for(play(), 60))
