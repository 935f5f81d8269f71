"""The live wireless link: as the simulator's, to the millisecond, and honest TCP at both ends."""

import asyncio
import errno
import socket
import statistics
from contextlib import asynccontextmanager, suppress
from functools import wraps
from random import Random

import pytest

from wayfare.channel import MS_NS, PROFILES, S_NS, find, floor
from wayfare.core.codec import encode
from wayfare.core.messages import LinkId, Publish
from wayfare.errors import UsageError
from wayfare.net import emulator as module
from wayfare.net.emulator import Emulator
from wayfare.sim.links import Agenda, Pipe, wireless

LATE_MS = 20  # that a busy machine may be late, most of the time


class End:
    """A server: its connections, in order."""

    def __init__(self):
        self.accepted = asyncio.Queue()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.place = self.server.sockets[0].getsockname()
        self.writers = []
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for writer in self.writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        await self.server.wait_closed()

    def _accept(self, reader, writer):
        self.writers.append(writer)
        self.accepted.put_nowait((reader, writer))


@asynccontextmanager
async def connected(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def pair(profile, seed=0):
    """An emulator, and the two ends of one connection over it."""
    async with (
        End() as end,
        Emulator(profile, end.place, seed) as emulator,
        connected(emulator.port) as near,
    ):
        far = await asyncio.wait_for(end.accepted.get(), 10)
        while emulator.up._arrived < 2:
            await asyncio.sleep(0.01)  # the handshake
        yield emulator, near, far


def runs(test):
    @wraps(test)
    def run(*arguments, **named):
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 30))

    return run


FAST = ("bps=8000000", "least=1", "most=1", "error=0", "overhead=0", "latency=40ms")


def fast(*settings):
    return find("gprs", [*FAST, *settings])


# ---- held to the simulator ------------------------------------------------------------------------


def planned(random, count):
    """Messages of random sizes at random times, some of them in bursts: (ns, message)."""
    at = 2 * S_NS  # when the connection is there for sure
    for number in range(count):
        at += random.choice([20, 60, 400]) * MS_NS
        text = "x" * random.choice([1, 50, 100, 200, 1600 if number % 10 == 5 else 10])
        yield at, Publish(number, {"text": text})


def test_what_is_sent_at_the_same_time_arrives_at_the_same_time_as_in_the_simulator():
    """The same seed, the same draws: gprs with more errors, so that some are sure to happen."""
    profile, seed = find("gprs", ["error=0.15"]), 3
    plans = {way: [*planned(Random(way), 30)] for way in ("up", "down")}
    live, facts = asyncio.run(asyncio.wait_for(live_times(profile, seed, plans), 60))
    for way, plan in plans.items():
        sent, arrived = live[way]
        messages = [message for _, message in plan]
        simulated, channel = simulated_times(profile, way, seed, zip(sent, messages, strict=True))
        assert getattr(facts, way).again == channel.again > 3
        assert getattr(facts, way).packets == channel.packets
        late = [(there - here) / MS_NS for here, there in zip(simulated, arrived, strict=True)]
        _, middle, most = statistics.quantiles(late, n=4)
        print(f"{way}: median {middle:.2f} ms late, {min(late):.2f} to {max(late):.2f}")
        assert min(late) > -0.01, "never earlier, however busy the machine is"
        assert middle < LATE_MS
        assert most < 2 * LATE_MS


def simulated_times(profile, way, seed, plan):
    agenda, out = Agenda(), []
    channel = wireless(profile).channels(Random(seed))[("up", "down").index(way)]
    for _ in range({"up": 2, "down": 1}[way]):  # of the handshake
        channel.send(0, 0)
    pipe = Pipe(
        agenda,
        Random(0),
        wireless(profile),
        LinkId("x"),
        lambda _: out.append(agenda.now),
        channel,
    )
    for at, message in plan:
        agenda.at(at, pipe.send, message)
    while (time := agenda.next()) is not None:
        agenda.run_until(time)
    return out, channel


async def live_times(profile, seed, plans):
    async with pair(profile, seed) as (emulator, near, far):
        ways = {"up": (near[1], far[0], emulator.up), "down": (far[1], near[0], emulator.down)}
        both = (carry(*ways[way], plan) for way, plan in plans.items())
        times = await asyncio.gather(*both)
        return dict(zip(plans, times, strict=True)), emulator.facts()


async def carry(writer, reader, line, plan):
    """Send about as planned, and say when that was, and when it arrived."""
    frames = [encode(message) for _, message in plan]

    async def read():
        times = []
        for frame in frames:
            assert await reader.readexactly(len(frame)) == frame
            times.append(line.now())
        return times

    reading = asyncio.ensure_future(read())
    sent, size = [], 0
    for (at, _), frame in zip(plan, frames, strict=True):
        await asyncio.sleep((at - line.now()) / S_NS)
        while line.channel.bytes < size:  # or two messages would share a packet
            await asyncio.sleep(0)
        sent.append(line.now())
        writer.write(frame)
        size += len(frame)
    return sent, await reading


@runs
async def test_a_question_and_its_answer_take_no_less_than_the_floor():
    profile = find("gprs", ["latency=50ms"])
    async with pair(profile) as (emulator, near, far):
        await asyncio.sleep(0.5)
        start = emulator.up.now()
        near[1].write(b"?")
        await far[0].readexactly(1)
        far[1].write(bytes(2000))
        await near[0].readexactly(2000)
        took = emulator.up.now() - start
        assert floor(profile, 2000) <= took < 4 * floor(profile, 2000)


@runs
async def test_a_new_connection_costs_a_round_trip_before_its_first_byte_passes():
    async with End() as end, Emulator(fast("latency=100ms"), end.place) as emulator:
        start = emulator.up.now()
        async with connected(emulator.port) as (reader, writer):
            writer.write(b"x")
            far = await end.accepted.get()
            assert emulator.up.now() - start >= 100 * MS_NS
            await far[0].readexactly(1)
            assert 300 * MS_NS <= emulator.up.now() - start < 1000 * MS_NS
            far[1].write(b"y")
            await reader.readexactly(1)
            assert emulator.up.now() - start >= 400 * MS_NS


@runs
async def test_who_speaks_first_at_the_far_end_waits_for_the_handshake_too():
    async with End() as end, Emulator(fast("latency=100ms"), end.place) as emulator:
        start = emulator.up.now()
        async with connected(emulator.port) as (reader, _):
            far = await end.accepted.get()
            far[1].write(b"y")
            await reader.readexactly(1)
            assert 400 * MS_NS <= emulator.up.now() - start < 1200 * MS_NS


@runs
async def test_all_connections_share_one_radio_link():
    async with End() as end, Emulator(fast("bps=800000"), end.place) as emulator:
        other = await emulator.listen(end.place)
        async with connected(emulator.port) as one, connected(other) as two:
            fars = [await end.accepted.get() for _ in range(2)]
            start = emulator.up.now()
            for _, writer in (one, two):
                writer.write(bytes(25_000))
            for reader, _ in fars:
                await reader.readexactly(25_000)
            assert emulator.up.now() - start >= S_NS // 2  # 50,000 bytes at 100 a millisecond
            assert emulator.facts().connections == 2


# ---- TCP at both ends -----------------------------------------------------------------------------


@runs
async def test_what_is_on_its_way_still_arrives_when_its_sender_closes():
    async with pair(fast("bps=400000")) as (_, near, far):
        near[1].write(bytes(10_000))
        near[1].close()
        assert await far[0].read(-1) == bytes(10_000)


@runs
async def test_half_a_connection_can_be_closed():
    async with pair(fast()) as (_, near, far):
        near[1].write(b"the question")
        near[1].write_eof()
        assert await far[0].read(-1) == b"the question"
        far[1].write(b"the answer")
        far[1].close()
        assert await near[0].read(-1) == b"the answer"


@runs
async def test_a_reset_crosses_the_link_behind_what_was_sent():
    async with pair(fast("latency=100ms")) as (emulator, near, far):
        near[1].write(b"last words")
        await asyncio.sleep(0.02)
        start = emulator.up.now()
        module._reset(near[1])
        assert await far[0].readexactly(10) == b"last words"
        with pytest.raises(ConnectionResetError):
            await far[0].readexactly(1)
        assert emulator.up.now() - start >= 95 * MS_NS


@runs
async def test_who_sends_to_somebody_who_is_gone_is_reset():
    async with pair(fast()) as (_, near, far):
        near[1].close()
        await near[1].wait_closed()
        assert await far[0].read(1) == b""
        for _ in range(2):  # the first one finds out, the second one is too much
            far[1].write(b"hello?")
            await asyncio.sleep(0.2)
        error, sock = 0, far[1].get_extra_info("socket")
        while not error:  # it is told without a further word
            await asyncio.sleep(0.01)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        assert error in (errno.ECONNRESET, errno.EPIPE)


@runs
async def test_a_slow_link_does_not_take_what_it_cannot_send():
    """Beyond the buffers of the kernel, the sender is stuck; and all of it arrives at last."""
    async with pair(fast("bps=800000")) as (emulator, near, far):
        near[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        near[1].transport.set_write_buffer_limits(0)
        whole = Random(1).randbytes(600_000)
        near[1].write(whole)
        await asyncio.sleep(0.3)
        assert emulator.up._size <= module.QUEUE_BYTES_MAX + emulator.profile.up.payload
        assert near[1].transport.get_write_buffer_size() > 200_000
        near[1].write_eof()
        emulator.up.channel.direction = fast("bps=80000000").up
        emulator.up.channel._epoch = -1
        assert await far[0].read(-1) == whole


@runs
async def test_a_slow_link_holds_no_more_than_two_seconds():
    async with pair(fast("bps=80000")) as (emulator, near, _):
        near[1].write(bytes(60_000))  # 6 s
        await asyncio.sleep(0.2)
        ahead = emulator.up.channel.free_at - emulator.up.now()
        one_packet = emulator.profile.up.packet * S_NS // 10_000
        assert module.QUEUE_NS_MAX // 2 < ahead <= module.QUEUE_NS_MAX + one_packet


@runs
async def test_a_receiver_that_does_not_read_holds_up_its_own_connection_only():
    async with pair(fast("bps=800000000", "latency=1ms")) as (emulator, near, far):
        far[0]._transport.pause_reading()
        near[1].write(bytes(20_000_000))
        await asyncio.sleep(0.5)
        assert near[1].transport.get_write_buffer_size() > 1_000_000
        async with End() as other, connected(await emulator.listen(other.place)) as (_, writer):
            writer.write(b"x")
            reader, _ = await other.accepted.get()
            assert await asyncio.wait_for(reader.readexactly(1), 5) == b"x"
        near[1].transport.abort()


# ---- tunnels and moves ----------------------------------------------------------------------------


@runs
async def test_in_a_tunnel_connections_are_stuck_and_go_on_afterwards():
    async with pair(fast("latency=100ms")) as (emulator, near, far):
        near[1].write(b"before ")
        await asyncio.sleep(0.02)
        emulator.cut()
        near[1].write(b"within ")
        far[1].write(b"answer")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(far[0].read(1), 0.4)
        emulator.restore()
        start = emulator.up.now()
        near[1].write(b"after")
        assert await far[0].readexactly(7) == b"before "
        assert emulator.up.now() - start >= 100 * MS_NS
        assert await far[0].readexactly(12) == b"within after"
        assert await near[0].readexactly(6) == b"answer"
        assert emulator.up.now() - start >= 100 * MS_NS


@runs
async def test_what_waited_before_a_tunnel_does_not_hold_up_what_is_sent_again():
    async with pair(fast("bps=80000")) as (emulator, near, far):
        start = emulator.up.now()
        near[1].write(bytes(15_000))  # 1.5 s
        await asyncio.sleep(0.1)
        emulator.cut()
        emulator.restore()
        await far[0].readexactly(15_000)
        assert 1500 * MS_NS <= emulator.up.now() - start < 2500 * MS_NS


@runs
async def test_who_connects_in_a_tunnel_is_connected_behind_it():
    async with End() as end, Emulator(fast(), end.place) as emulator:
        emulator.cut()
        async with connected(emulator.port) as (_, writer):
            writer.write(b"x")
            await asyncio.sleep(0.2)
            assert end.accepted.empty()
            assert emulator.facts().up.packets == 0
            emulator.restore()
            far = await end.accepted.get()
            assert await far[0].readexactly(1) == b"x"


@runs
async def test_a_cut_can_break_connections_at_both_ends():
    async with pair(fast()) as (emulator, near, far):
        emulator.cut(reset=True)
        for reader, _ in (near, far):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        emulator.restore()
        async with connected(emulator.port) as (_, writer):
            writer.write(b"again")
            await asyncio.sleep(0.3)


@runs
async def test_a_mobile_moves_to_another_access_point_over_the_same_radio():
    async with End() as porto, End() as faro, Emulator(fast(), porto.place) as emulator:
        async with connected(emulator.port) as first:
            here = await porto.accepted.get()
            emulator.move(faro.place)
            async with connected(emulator.port) as second:
                there = await faro.accepted.get()
                first[1].write(b"1")
                second[1].write(b"2")
                assert await here[0].readexactly(1) == b"1"
                assert await there[0].readexactly(1) == b"2"
        assert porto.accepted.empty()


@runs
async def test_where_nobody_listens_connections_are_reset_and_it_is_told():
    told = []
    with socket.create_server(("127.0.0.1", 0)) as one:
        nowhere = one.getsockname()
    async with Emulator(fast("latency=100ms"), nowhere, tell=told.append) as emulator:
        async with connected(emulator.port) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            assert emulator.up.now() >= 200 * MS_NS, "the refusal takes a round trip, too"
        assert emulator.facts().refused == 1
    assert told == [
        f"cannot reach 127.0.0.1:{nowhere[1]} (Connection refused), so a connection was reset:"
        " start what should listen there, or give another --to"
    ]


@runs
async def test_a_name_that_no_host_has_resets_the_connection_and_is_told():
    told = []
    async with Emulator("lan", ("a..b", 80), tell=told.append) as emulator:
        async with connected(emulator.port) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        assert emulator.facts().refused == 1
    assert told[0].startswith("cannot reach a..b:80 (there is no such host), so a connection was")


@runs
async def test_a_port_in_use_is_told_in_one_sentence():
    async with End() as end:
        with pytest.raises(UsageError, match=r"cannot listen at .*\(Address already in use\)"):
            await Emulator(fast(), end.place, listen=end.place).start()


@runs
async def test_there_is_a_most_of_connections(monkeypatch):
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)
    told = []
    async with (
        End() as end,
        Emulator(fast(), end.place, tell=told.append) as emulator,
        connected(emulator.port),
        connected(emulator.port) as (reader, _),
    ):
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
    assert told == ["1 connections are open, so another one was reset"]


@runs
async def test_stopping_breaks_what_is_open_even_before_it_began():
    async with End() as end:
        emulator = Emulator("lossy", end.place)
        await emulator.start()
        async with connected(emulator.port) as (reader, writer):
            writer.write(b"x")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await emulator.stop()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        assert not emulator._open


@runs
async def test_a_connection_that_is_cancelled_before_it_began_is_reset_too():
    async with End() as end, Emulator(fast(), end.place) as emulator:
        accept = emulator._accept

        def accept_and_cut(near, to):
            accept(near, to)
            emulator.cut(reset=True)

        emulator._accept = accept_and_cut
        async with connected(emulator.port) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(1), 10)


@runs
async def test_facts_count_what_crossed():
    async with pair(fast()) as (emulator, near, far):
        near[1].write(bytes(3000))
        await far[0].readexactly(3000)
        facts = emulator.facts()
        assert facts.up.bytes == 3000
        assert facts.up.packets == 2 + 2  # two of the handshake, 3000 bytes in two
        assert facts.up.mean_delay_ms >= 40
        assert (facts.down.bytes, facts.down.packets) == (0, 1)


def test_profiles_have_names_here_too():
    assert Emulator("gprs", ("127.0.0.1", 1)).profile == PROFILES["gprs"]
    with pytest.raises(UsageError, match="there is no profile 'umts'"):
        Emulator("umts", ("127.0.0.1", 1))
