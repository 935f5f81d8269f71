"""The window in bytes: how much is on its way to a client, and that connections keep it once."""

import asyncio
import contextlib
import socket

import pytest

import wayfare
from live import until
from test_resources import MIB, Peer, X, serving
from test_shedding import KIB, attach, away, back, broker, publish
from wayfare.bench import memory
from wayfare.core import codec
from wayfare.core.client import ACK_BYTES, Client
from wayfare.core.effects import Received, Send
from wayfare.core.filters import Filter
from wayfare.core.messages import (
    Ack,
    Area,
    Attach,
    Deliver,
    Notification,
    Publish,
    Published,
    Refused,
    Welcome,
)
from wayfare.net.connection import STALLED_S, Buffers
from wayfare.net.frames import LARGE_BYTES, Bodies, Body, Frames
from wayfare.sim.accounting import check_accounting

SIZE = KIB + 24  # of what `publish` publishes


def delivered(effects):
    some = [one.message for one in effects if isinstance(one, Send)]
    return [one.number for one in some if isinstance(one, Deliver)]


# The core


def test_no_more_is_sent_while_a_window_of_bytes_is_on_its_way():
    core = broker(window_bytes=3 * SIZE)
    link = attach(core, "anna", "x > 0")
    assert delivered(publish(core, 1, 10)) == [1, 2, 3]
    assert delivered(core.step(Received(link, Ack(2)), 2)) == [4, 5]
    assert delivered(core.step(Received(link, Ack(5)), 2)) == [6, 7, 8]
    assert list(check_accounting(core)) == []


def test_one_notification_is_sent_however_large_it_is():
    core = broker(window_bytes=SIZE // 2)
    link = attach(core, "anna", "x > 0")
    assert delivered(publish(core, 1, 3)) == [1]
    assert delivered(core.step(Received(link, Ack(1)), 2)) == [2]
    assert delivered(core.step(Received(link, Ack(2)), 2)) == [3]


def test_who_comes_back_gets_a_window_of_its_backlog():
    core = broker(window_bytes=3 * SIZE)
    away(core, "anna", "x > 0")
    publish(core, 1, 10)
    got = [one.number for one in back(core, "anna") if isinstance(one, Deliver)]
    assert got == [1, 2, 3]
    assert list(check_accounting(core)) == []


def test_a_larger_window_is_larger_in_bytes_too_up_to_all_that_is_kept():
    core = broker(window=2, window_bytes=2 * SIZE, backlog_bytes=5 * SIZE, backlog_count=8)
    for name, window in (("anna", 4), ("ben", 8)):
        one = Attach(name, 1, 0, (Filter.parse(f"{name} = 1"),), window=window)
        core.step(Received(f"{name}#1", one), 0)
    assert delivered(publish(core, 1, 5, anna=1)) == [1, 2, 3]
    assert delivered(publish(core, 6, 13, ben=1)) == [1, 2, 3, 4, 5]


def test_what_a_limit_dropped_is_still_on_its_way():
    core = broker(window_bytes=3 * SIZE, backlog_bytes=2 * SIZE, slow_publishers_ns=0)
    link = attach(core, "anna", "x > 0")
    assert delivered(publish(core, 1, 20)) == [1, 2, 3]
    assert delivered(core.step(Received(link, Ack(3)), 2)) == [19, 20]


@pytest.mark.parametrize("size", [KIB, 8 * KIB], ids=["small", "large"])
def test_many_who_come_back_to_one_backlog_do_not_multiply_it(size):
    core = broker(window_bytes=16 * KIB)
    names = [f"c{number}" for number in range(20)]
    for name in names:
        away(core, name, "x > 0")
    for number in range(1, 201):
        one = Notification("tom", number, {"x": number}, bytes(size))
        core.step(Received("faro", one), 1)
    before = core.memory_bytes()
    for name in names:
        back(core, name)
    assert core.memory_bytes() < before + len(names) * 40 * KIB
    assert list(check_accounting(core)) == []
    for name in names:
        for number in range(1, 201):
            with contextlib.suppress(wayfare.WayfareError):
                core.step(Received(f"{name}#2", Ack(number)), 3)
    assert core.border.memory.notification_bytes() == core.border.memory.attached == 0


def test_what_is_large_counts_once_on_its_way_to_many():
    core = broker()
    for number in range(50):
        attach(core, f"c{number}", "x > 0")
    before = core.memory_bytes()
    core.step(Received("faro", Notification("tom", 1, {"x": 1}, bytes(MIB))), 1)
    assert MIB < core.memory_bytes() - before < 1.1 * MIB


def test_a_client_acknowledges_what_is_large_at_once():
    anna = Client("anna")
    anna.subscribe(X)
    anna.attach("porto", "porto#1")
    anna.step(Received("porto#1", Welcome(1, 0)), 0)
    acks = []
    for number in range(1, 5):
        one = Deliver(number, Notification("tom", number, {"x": 1}, bytes(ACK_BYTES // 2)))
        effects = anna.step(Received("porto#1", one), 0)
        acks += [one.message for one in effects if isinstance(one, Send)]
    assert acks == [Ack(2), Ack(4)]


# Frames


@pytest.mark.parametrize("number", [1, 200, 70_000, 2**33])
@pytest.mark.parametrize("area", [None, Area(("Rua Augusta",))])
def test_the_parts_of_a_large_delivery_are_its_frame(number, area):
    frames = Frames()
    for payload, attributes in (
        (bytes(LARGE_BYTES + 1), {"x": 1.5, "on": True}),
        (b"x", {"text": "y" * LARGE_BYTES}),
    ):
        for lifetime in (0, 10**12):
            one = Notification("tom", number, attributes, payload, 2**60, lifetime, area)
            message = Deliver(number, one)
            assert frames.of_delivery(message) == b""
            assert b"".join(frames.parts(message, Body(one))) == codec.encode(message)
    assert frames.deliveries == 4


def test_bodies_are_kept_once_and_as_long_as_somebody_has_them():
    bodies, attributes = Bodies(), {"x": 1}
    one, later = (Notification("tom", 1, attributes, bytes(KIB), 0, left) for left in (9, 8))
    first, second = bodies.hold(one), bodies.hold(later)
    other = bodies.hold(Notification("tom", 2, {"x": 1}, bytes(KIB)))
    assert first is second is not other
    assert bodies.bytes == 2 * SIZE
    bodies.let_go(first)
    bodies.let_go(other)
    assert bodies.bytes == SIZE
    bodies.let_go(second)
    assert bodies.bytes == 0


def test_who_reads_nothing_is_cut_off_before_who_only_has_more():
    class One:
        def __init__(self, put_off, stalled):
            self.put_off, self.stalled = put_off, stalled

        def is_stalled(self, now):
            return self.stalled

    buffers = Buffers(lambda: None)
    assert buffers.largest() == (None, 0)
    reading, little, much = One(900, False), One(0, True), One(50, True)
    for one, size in ((reading, 100), (little, 40), (much, 10)):
        buffers.note(one, size)
    assert buffers.largest() == (much, 60)
    assert STALLED_S > 1


# Brokers


def test_many_who_return_at_once_lose_nothing_and_nobody_is_cut_off(tmp_path):
    limit, some, count = 4 * MIB, 12, 30

    async def play():
        async with serving(memory_bytes=limit) as host, contextlib.AsyncExitStack() as stack:
            lost = []

            def connect(name):
                store = tmp_path / f"{name}.db"
                return wayfare.connect(
                    str(host.address),
                    client_id=name,
                    store=store,
                    on_lost=lambda count, why: lost.append((name, count, why)),
                )

            names = [f"c{number}" for number in range(some)]
            for name in names:
                async with connect(name) as one:
                    await one.subscribe("x > 0")
            tom = await stack.enter_async_context(connect("tom"))
            await tom.advertise("x > 0")
            for x in range(1, count + 1):
                await tom.publish({"x": x}, payload=bytes(50_000))
            await tom.flush(30)

            async def come_back(name):
                async with connect(name) as one:
                    news = await one.subscribe("x > 0")
                    return [(await anext(news))["x"] for _ in range(count)]

            got = await asyncio.gather(*map(come_back, names))
            assert got == [list(range(1, count + 1))] * some
            assert lost == []
            assert host.memory.cut == host.core.border.memory.shed == 0

    asyncio.run(asyncio.wait_for(play(), 20))


async def attached(stack, host, some, **profile):
    """Peers that read nothing behind their welcome, until they are asked to."""
    peers = []
    for number in range(some):
        one = await stack.enter_async_context(Peer(f"deaf{number}", host.address))
        one.say(Attach(one.name, 1, 0, (X,), **profile))
        assert await one.hear(Welcome) is not None
        sock = one._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        one._reader._transport.pause_reading()
        peers.append(one)
    for one in host.connections.values():
        sock = one._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    return peers


def in_buffers(host):
    """Bytes that the transports of clients have."""
    transports = (one._transport for one in host.connections.values())
    return sum(one.get_write_buffer_size() for one in transports if one is not None)


async def publish_live(host, tom, sizes):
    """Publish, and return how much was kept beside the core at most."""
    most = 0
    for number, size in enumerate(sizes, 1):
        payload = bytes([number % 256]) * size
        tom.say(Publish(number, {"x": number}, payload))
        await tom._writer.drain()
        while (last := await tom.hear(Published)) is not None and last.number < number:
            tom.heard.clear()
        tom.heard.clear()
        most = max(most, in_buffers(host) + host.memory.buffers.bodies.bytes)
    return most


def test_a_large_publication_is_kept_once_for_all_who_do_not_read():
    size, some = 4_000_000, 20

    async def play():
        async with serving(memory_bytes=64 * MIB) as host, contextlib.AsyncExitStack() as stack:
            deaf = await attached(stack, host, some)
            tom = await stack.enter_async_context(Peer("tom", host.address))
            tom.say(Attach("tom", 1, 0))
            most = await publish_live(host, tom, [size, size])
            assert most < 2 * size + some * 128 * KIB
            assert host.memory.used() < 5 * size
            assert sum(one.lazy for one in host.connections.values()) == some
            assert host.memory.cut == 0
            for one in deaf:  # all of it is there when they read
                one._reader._transport.resume_reading()
                for number in (1, 2):
                    while not (got := [m for m in one.heard if isinstance(m, Deliver)]):
                        await one.hear(Deliver)
                    assert got[0].notification.payload == bytes([number]) * size
                    one.heard.remove(got[0])
                    one.say(Ack(number))
            await until(lambda: host.memory.outside() == 0)

    asyncio.run(asyncio.wait_for(play(), 20))


def test_small_notifications_are_encoded_when_there_is_room_for_them():
    """A client may ask for a large window: what is on its way to it is not in its connection."""
    some, count = 8, 500

    async def play():
        async with serving(memory_bytes=64 * MIB) as host, contextlib.AsyncExitStack() as stack:
            deaf = await attached(stack, host, some, window=10_000)
            tom = await stack.enter_async_context(Peer("tom", host.address))
            tom.say(Attach("tom", 1, 0))
            assert await publish_live(host, tom, [12 * KIB] * count) < 12 * KIB * count * 1.2 + MIB
            assert host.memory.cut == 0
            for one in deaf:
                one._reader._transport.resume_reading()
                while sum(isinstance(m, Deliver) for m in one.heard) < count:
                    one.heard += one._decoder.feed(await one._reader.read(MIB))
                got = [m.number for m in one.heard if isinstance(m, Deliver)]
                assert got == list(range(1, count + 1))

    asyncio.run(asyncio.wait_for(play(), 20))


@pytest.mark.parametrize("reads", [True, False])
def test_what_was_put_off_is_written_before_the_connection_is_closed(reads):
    async def play():
        async with serving() as host, contextlib.AsyncExitStack() as stack:
            (deaf,) = await attached(stack, host, 1)
            tom = await stack.enter_async_context(Peer("tom", host.address))
            tom.say(Attach("tom", 1, 0))
            await publish_live(host, tom, [4_000_000])
            connection = next(one for one in host.connections.values() if one.peer == "deaf0")
            connection._limits = connection._limits.__class__(closing_s=30.0 if reads else 0.1)
            assert connection.lazy
            connection.refuse("enough")
            if reads:
                deaf._reader._transport.resume_reading()
                assert await deaf.hear(Refused) is not None
                kinds = [type(one) for one in deaf.heard if not isinstance(one, Welcome)]
                assert kinds[-2:] == [Deliver, Refused]
            await until(lambda: len(host.connections) == 1)
            assert host.memory.outside() == 0

    asyncio.run(asyncio.wait_for(play(), 20))


@pytest.mark.parametrize(
    ("case", "some"),
    [("returning", 16), ("fanout", 24), pytest.param("readers", 12, marks=pytest.mark.slow)],
)
def test_resident_memory_does_not_multiply(case, some):
    grown, _ = memory.grown(memory.CASES[case][0], some, 64 * MIB)
    assert grown < 40 * MIB
