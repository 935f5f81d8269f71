"""The live host: brokers and clients on loopback."""

import asyncio
import socket

import pytest

import wayfare
from live import HERE, settled, tree, until
from wayfare.core import messages as m
from wayfare.core.codec import FrameDecoder, encode
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.errors import CannotConnect, Closed, NotAdvertised, Refused
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.connection import Connection
from wayfare.net.frames import Frames
from wayfare.net.limits import NetLimits

LINE = ("porto-lisbon", "faro-lisbon")


def live(test):
    """Run a coroutine as a test."""

    def run():
        asyncio.run(asyncio.wait_for(test(), 60))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


async def numbers(subscription, count):
    return [(await subscription.get(20))["x"] for _ in range(count)]


@live
async def test_a_notification_crosses_the_tree():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("faro"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 5") as some:
            for x in range(1, 11):
                await tom.publish({"x": x}, payload=b"!")
            first = await some.get(5)
            assert (first["x"], first.payload, first.publisher, dict(first)) == (
                6,
                b"!",
                "tom",
                {"x": 6},
            )
            assert await numbers(some, 4) == [7, 8, 9, 10]


@live
async def test_a_subscriber_moves_and_misses_nothing():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            got = []
            for round, name in enumerate(("faro", "lisbon", "porto", "faro")):
                for x in range(20):
                    await tom.publish({"x": 100 * round + x + 1})
                await anna.move(net.url(name))
                assert anna.broker == name
                got += await numbers(all, 20)
            assert got == [100 * round + x + 1 for round in range(4) for x in range(20)]


@live
async def test_a_publisher_moves_and_nothing_is_missed():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            for x, name in enumerate(("faro", "porto", "lisbon") * 3):
                await tom.publish({"x": x + 1})
                await tom.move(net.url(name))
            assert await numbers(all, 9) == list(range(1, 10))


class Silent:
    """Who says nothing by itself, but hears what each connection says."""

    def __init__(self):
        self.heard = asyncio.Queue()
        self.last = None

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        self.url = f"wayfare://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _hear(self, reader, writer):
        self.last, decoder = writer, FrameDecoder()
        while data := await reader.read(1 << 16):
            for message in decoder.feed(data):
                self.heard.put_nowait(message)
        writer.close()

    async def hears(self, *kinds):
        said = [await asyncio.wait_for(self.heard.get(), 10) for _ in kinds]
        assert [type(one) for one in said] == [*kinds]
        return said[-1]

    def say(self, *messages):
        self.last.write(b"".join(map(encode, messages)))


@live
async def test_who_comes_back_attaches_without_a_round_trip_before():
    """A connection has its price in round trips already; who speaks first pays no further one."""
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        Silent() as faro,
    ):
        moving = asyncio.create_task(anna.move(faro.url))
        attach = await faro.hears(m.Hello, m.Attach)
        assert [broker for broker, _ in attach.previous] == ["porto"]
        faro.say(m.Hello(m.PROTOCOL_VERSION, "faro"), m.Welcome(attach.epoch, 0))
        await moving
        assert anna.broker == "faro"
        anna._core.detach(leave=True)


@live
async def test_who_was_not_greeted_waits_for_it_the_next_time():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        Silent() as faro,
    ):
        moving = asyncio.create_task(anna.move(faro.url))
        first = await faro.hears(m.Hello, m.Attach)
        anna.addresses = anna.addresses[:1]
        faro.last.close()
        await faro.hears(m.Hello)
        await asyncio.sleep(0.2)
        assert faro.heard.empty()
        faro.say(m.Hello(m.PROTOCOL_VERSION, "faro"))
        second = await faro.hears(m.Attach)
        assert (second.epoch, second.previous) == (first.epoch + 1, first.previous)
        faro.say(m.Welcome(second.epoch, 0))
        await moving
        anna._core.detach(leave=True)


@live
async def test_who_attached_to_another_version_is_told_so():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna", timeout=1) as anna,
        Silent() as faro,
    ):
        moving = asyncio.create_task(anna.move(faro.url))
        await faro.hears(m.Hello, m.Attach)
        faro.say(m.Hello(m.PROTOCOL_VERSION + 1, "faro"))
        with pytest.raises(CannotConnect, match="faro speaks version 2 of the protocol"):
            await moving
        await until(lambda: anna.broker == "porto")


@live
async def test_a_client_goes_to_the_next_address_when_its_broker_is_gone():
    async with tree(*LINE, limits=Limits(answer_ns=300_000_000)) as net:
        both = [net.url("porto"), net.url("faro")]
        async with (
            wayfare.connect(both, client_id="anna") as anna,
            wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
        ):
            await tom.advertise("x > 0")
            async with anna.subscribe("x > 0") as all:
                await net.brokers["porto"].stop()
                await until(lambda: anna.broker == "faro")
                await tom.publish({"x": 1})
                assert await numbers(all, 1) == [1]


@live
async def test_a_link_goes_on_where_it_was_when_its_connection_breaks():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("faro"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            for x in range(1, 301):
                await tom.publish({"x": x})
                if x % 50 == 0:
                    for link in net.brokers["lisbon"].links.values():
                        if link.connection is not None:
                            link.connection.abort("a test")
                    await asyncio.sleep(0.01)
            assert await numbers(all, 300) == list(range(1, 301))


def test_a_neighbour_that_hangs_up_before_the_first_word_is_called_again(monkeypatch):
    """A broker that is being killed still takes calls, and ends them at once."""
    made, hung_up = Connection.connection_made, []

    def hang_up(connection, transport):
        if connection.called and len(hung_up) < 3:
            hung_up.append(connection)
            transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        made(connection, transport)

    async def story():
        async with tree(*LINE) as net:
            await net.linked()
            monkeypatch.setattr(Connection, "connection_made", hang_up)
            for link in net.brokers["lisbon"].links.values():
                link.connection.abort("a test")
            await until(lambda: len(hung_up) == 3)
            await net.linked()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_neighbour_whose_address_names_no_host_does_not_end_the_calls(caplog):
    async def story():
        broker = BrokerHost("porto", {"lisbon": Address("a..b")})
        await broker.start(HERE)
        try:
            await until(lambda: caplog.text.count("cannot reach lisbon") == 2)
        finally:
            await broker.stop()

    caplog.set_level("DEBUG", "wayfare.broker")
    asyncio.run(asyncio.wait_for(story(), 30))


@live
async def test_a_broker_that_lost_its_memory_is_told_everything_again():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("faro"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            await net.restart("lisbon")
            await net.linked()
            await settled(net)
            await tom.publish({"x": 1})
            assert await numbers(all, 1) == [1]
            await anna.move(net.url("faro"))
            await tom.publish({"x": 2})
            assert await numbers(all, 1) == [2]


@live
async def test_a_client_whose_broker_lost_its_memory_is_told_so():
    told = []
    async with (
        tree(*LINE) as net,
        wayfare.connect(
            net.url("porto"), client_id="anna", on_lost=lambda *lost: told.append(lost)
        ) as anna,
        wayfare.connect(net.url("faro"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            await net.restart("porto")
            await until(lambda: anna.broker == "porto")
            await net.linked()
            await settled(net)
            await tom.publish({"x": 1})
            assert await numbers(all, 1) == [1]
            assert told
            assert {count for count, _ in told} == {0}


@live
async def test_errors_say_what_to_do():
    with pytest.raises(
        CannotConnect, match=r"cannot reach a broker at wayfare://127.0.0.1:1 within"
    ):
        await wayfare.connect("127.0.0.1:1", timeout=0.2)
    async with tree(*LINE) as net:
        async with wayfare.connect(net.url("porto")) as someone:
            with pytest.raises(NotAdvertised):
                await someone.publish({"x": 1})
        with pytest.raises(Closed):
            await someone.advertise("x > 0")


@live
async def test_the_second_client_of_a_name_takes_over_and_the_first_is_told():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as first,
        wayfare.connect(net.url("porto"), client_id="anna"),
    ):
        with pytest.raises(Refused, match="porto closed the connection"):
            async with first.subscribe("x > 0") as nothing:
                await nothing.get(5)


@live
async def test_so_it_does_at_another_broker_and_nothing_of_the_first_is_delivered_any_more():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
        wayfare.connect(net.url("porto"), client_id="anna") as first,
        tom.subscribe("x > 0") as seen,
    ):
        await first.advertise("x > 0")
        await first.publish({"x": 1}, confirm=True)
        assert await numbers(seen, 1) == [1]
        async with wayfare.connect(net.url("faro"), client_id="anna") as second:
            with pytest.raises(Refused, match="porto closed the connection: anna began anew"):
                async with first.subscribe("x > 0") as nothing:
                    await nothing.get(5)
            with pytest.raises(Refused):
                await first.publish({"x": 2})
            await second.advertise("x > 0")
            await second.publish({"x": 3}, confirm=True)
            assert await numbers(seen, 1) == [3]
            with pytest.raises(Refused, match="lisbon closed the connection: anna began anew"):
                await late_attachment(net, first)
        sessions = [one.core.border.of("anna") for one in net.brokers.values()]
        assert sessions == [[], [], []]


async def late_attachment(net, first):
    """The process that was replaced tries once more, elsewhere."""
    again = wayfare.connect(net.url("lisbon"), client_id="anna")
    again._core.epoch, again._core.previous = first._core.epoch, first._core.previous
    again._core.welcomed = True
    await again.open()


@live
async def test_only_a_name_that_was_given_can_be_of_an_earlier_process():
    """Nobody else has to be told: a name that was made up is new."""
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto")),
        wayfare.connect(net.url("porto"), client_id="anna"),
    ):
        await settled(net)
        begun = [list(one.core.border.tombstones) for one in net.brokers.values()]
        assert begun == [["anna"]] * 3


@live
async def test_a_process_that_begins_anew_does_not_hear_of_what_waited_for_the_last_one():
    told = []
    async with tree(*LINE) as net, wayfare.connect(net.url("faro"), client_id="tom") as tom:
        await tom.advertise("x > 0")
        first = await wayfare.connect(net.url("porto"), client_id="anna")
        await first.subscribe("x > 0")
        first._conversation.wire.abort("killed")
        await first._end()
        await tom.publish({"x": 1}, confirm=True)
        await until(lambda: len(net.brokers["porto"].core.border.of("anna")[0].backlog) == 1)
        async with (
            wayfare.connect(
                net.url("porto"), client_id="anna", on_lost=lambda *lost: told.append(lost)
            ) as second,
            second.subscribe("x > 0") as seen,
        ):
            await tom.publish({"x": 2}, confirm=True)
            assert (await seen.get(5))["x"] == 2
            assert told == []


@live
async def test_a_slow_reader_waits_and_loses_nothing():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna", queue=10) as anna,
        wayfare.connect(net.url("faro"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with (
            anna.subscribe("x > 0") as all,
            anna.subscribe("x > 0", policy="drop_oldest") as last,
        ):
            for x in range(1, 2001):
                await tom.publish({"x": x})
            await tom.flush(5)
            assert await numbers(all, 2000) == list(range(1, 2001))
            assert last.dropped == 1990
            assert await numbers(last, 10) == list(range(1991, 2001))


@live
async def test_nothing_is_left_behind():
    before = asyncio.all_tasks()
    async with tree(*LINE) as net, wayfare.connect(net.url("porto")) as anna:
        reading = asyncio.create_task(anna.subscribe("x > 0").get())
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == before
    assert all(not one.core.border.by_link for one in net.brokers.values())


@pytest.mark.parametrize(
    "number", [0, 127, 128, 2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63 - 1]
)
@pytest.mark.parametrize("payload", [b"", b"x" * 70_000])
def test_a_delivery_of_shared_bytes_is_its_frame(number, payload):
    message = m.Deliver(number, m.Notification("tom", 7, {"x": 1}, payload))
    assert Frames().of(message) == encode(message)


@live
async def test_publications_that_come_together_are_acknowledged_together():
    """And in front of what is said later."""
    async with tree(*LINE) as net:
        address = net.brokers["porto"].address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        offered = (Filter.parse("x > 0"),)
        first = m.Attach("tom", 1, 0, (), offered)
        said = [m.Publish(i, {"x": i}) for i in range(1, 11)]
        writer.write(b"".join(map(encode, [m.Hello(m.PROTOCOL_VERSION, "tom"), first])))
        decoder, heard = FrameDecoder(), []
        while len(heard) < 2:
            heard += decoder.feed(await reader.read(65536))
        writer.write(b"".join(map(encode, [*said, first])))  # who attaches twice is refused
        while data := await reader.read(65536):
            heard += decoder.feed(data)
        writer.close()
    assert [type(one) for one in heard] == [m.Hello, m.Welcome, m.Published, m.Refused]
    assert heard[2] == m.Published(10)


@live
async def test_a_neighbour_that_never_comes_costs_no_more_than_a_link_may():
    limits = NetLimits(link_count=60, link_away_s=0.1)
    alone = BrokerHost("alone", {"never": Address("127.0.0.1", 1)}, net_limits=limits)
    await alone.start(HERE)
    async with wayfare.connect(str(alone.address), confirm=0) as anna:
        for x in range(50):
            await anna.advertise(f"x = {x}")
        await anna.publish({"x": 1}, confirm=True)
        assert len(alone.links["never"]) == 52, "it is announced, told and sent everything"
        for _ in range(20):
            await anna.publish({"x": 1}, confirm=True)
        assert len(alone.links["never"]) == 0, "it was given up"
    await alone.stop()


@live
async def test_a_neighbour_that_is_refused_says_so_and_calls_less_and_less():
    async with tree("porto-lisbon") as net:
        stranger = BrokerHost("stranger", {"lisbon": net.brokers["lisbon"].address})
        calls = []
        count = stranger.on_connected
        stranger.on_connected = lambda one: (calls.append(one), count(one))
        await stranger.start(HERE)
        await asyncio.sleep(1.5)
        await stranger.stop()
        assert 2 <= len(calls) <= 6
        assert {one.reason for one in calls} == {"stranger is no neighbour of lisbon"}
