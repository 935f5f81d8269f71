"""What the live client promises, against all who cancel, close, cut and hurry."""

import asyncio
import gc
import inspect
import random
from collections import deque
from functools import wraps

import pytest

import wayfare
from live import settled, tree, until
from proxy import proxy
from wayfare.core.history import Limits
from wayfare.errors import (
    CannotConnect,
    Closed,
    FilterError,
    InvalidNotification,
    Refused,
    UsageError,
)
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.options import OPTIONS, Options

LINE = ("porto-lisbon", "faro-lisbon")


def live(test):
    """Run a coroutine as a test, in debug mode; nothing may be left behind, and nothing go wrong aside."""

    @wraps(test)
    def run(**fixtures):
        wrong = []

        async def main():
            loop = asyncio.get_running_loop()
            loop.slow_callback_duration = 5
            loop.set_exception_handler(lambda _, context: wrong.append(context))
            await asyncio.wait_for(test(**fixtures), 100)
            for _ in range(3):
                await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main(), debug=True)
        gc.collect()
        # asyncio itself complains when a server stops while somebody is coming in.
        assert [one for one in wrong if "transport creation" not in one["message"]] == []

    return run


async def numbers(subscription, count):
    return [(await subscription.get(10))["x"] for _ in range(count)]


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled(work, after):
    """Cancel it after so many turns of the loop. What it returned, or None."""
    task = asyncio.ensure_future(work)
    await turns(after)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


def two(net, **options):
    """Anna at porto, who reads, and tom at faro, who writes."""
    return (
        wayfare.connect(net.url("porto"), client_id="anna", **options),
        wayfare.connect(net.url("faro"), client_id="tom", **options),
    )


# Cancelling


@live
async def test_who_cancels_get_loses_nothing():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")

            async def publish():
                for x in range(1, 501):
                    await tom.publish({"x": x})
                    await turns(x % 7)

            publishing = asyncio.create_task(publish())
            got, chance = [], random.Random(1)
            while len(got) < 500:
                one = await cancelled(all.get(5), chance.randrange(6))
                if one is not None:
                    got.append(one["x"])
            await publishing
            assert got == [*range(1, 501)]


@live
async def test_get_with_a_timeout_loses_nothing():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            got, chance = [], random.Random(2)
            for x in range(1, 101):
                await tom.publish({"x": x})
                try:
                    got.append((await all.get(chance.choice([0, 0, 0.001, 0.0005])))["x"])
                except TimeoutError:
                    continue
            got += await numbers(all, 100 - len(got))
            assert got == [*range(1, 101)]


@live
async def test_several_may_wait_at_one_subscription_and_share():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            readers = [asyncio.create_task(all.get(5)) for _ in range(20)]
            await turns(2)
            for one in readers[::3]:
                one.cancel()
            for x in range(1, 14):
                await tom.publish({"x": x})
            got = await asyncio.gather(*readers, return_exceptions=True)
            assert [one["x"] for one in got if isinstance(one, wayfare.Notification)] == [
                *range(1, 14)
            ]


@live
async def test_who_cancels_publish_has_published_once_or_not_at_all():
    async with tree(*LINE) as net:
        anna, tom = two(net, outbox=3)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            sure, maybe = [], []
            for x in range(1, 301):
                number = await cancelled(tom.publish({"x": x}, confirm=x % 2 == 0), x % 9)
                (maybe if number is None else sure).append(x)
            assert sure and maybe
            await tom.publish({"x": 1000}, confirm=True)
            got = []
            while got[-1:] != [1000]:
                got += await numbers(all, 1)
            assert got == sorted({*got})
            assert {*sure} <= {*got}


@live
async def test_a_publication_that_waited_for_room_and_was_cancelled_was_never_made():
    async with tree(*LINE) as net:
        anna, tom = two(net, outbox=3)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            await tom.detach()
            for x in (1, 2, 3):
                await tom.publish({"x": x})
            for x in (4, 5, 6):
                assert await cancelled(tom.publish({"x": x}), 10) is None
            await tom.attach()
            await tom.publish({"x": 7})
            assert await numbers(all, 4) == [1, 2, 3, 7]


@live
async def test_who_cancels_move_arrives_nevertheless():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            places = [net.url(name) for name in ("faro", "lisbon", "porto")]
            for x in range(1, 201):
                await tom.publish({"x": x})
                await cancelled(anna.move(places[x % 3]), x % 23)
                await cancelled(tom.move(places[x % 2]), x % 11)
            await until(
                lambda: anna.broker == "porto" or anna.broker == "faro" or anna.broker == "lisbon"
            )
            assert await numbers(all, 200) == [*range(1, 201)]
            assert anna.lost == 0


@live
async def test_who_cancels_close_has_closed():
    async with tree(*LINE) as net:
        for after in range(1, 12):
            tom = await wayfare.connect(net.url("faro"), client_id="tom")
            await tom.advertise("x > 0")
            await tom.publish({"x": 1})
            await cancelled(tom.close(), after)
            with pytest.raises(Closed):
                await tom.publish({"x": 2})
            await tom.close()
            await turns(5)
            assert not tom._conversation.wires


@live
async def test_who_cancels_connect_leaves_nothing_behind():
    async with tree(*LINE) as net:
        for after in range(30):
            client = await cancelled(wayfare.connect(net.url("porto")).open(), after)
            if client is not None:
                await client.close()
        assert client is not None  # at some time it is done before it is cancelled
        await until(lambda: not net.brokers["porto"].connections)


# Subscriptions


@live
async def test_overlapping_subscriptions_each_get_what_they_want():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with (
            anna,
            tom,
            anna.subscribe("x > 0") as all,
            anna.subscribe("x > 5") as some,
            anna.subscribe("x > 5") as same,
            anna.subscribe(wayfare.attr("x") < 3) as few,
        ):
            await tom.advertise("x > 0")
            for x in range(1, 11):
                await tom.publish({"x": x})
            assert await numbers(all, 10) == [*range(1, 11)]
            assert await numbers(some, 5) == await numbers(same, 5) == [*range(6, 11)]
            assert await numbers(few, 2) == [1, 2]
            await same.close()
            await tom.publish({"x": 6})
            assert await numbers(some, 1) == [6]
            with pytest.raises(Closed, match="the subscription to x > 5 is closed"):
                await same.get(5)


@live
async def test_a_closed_subscription_ends_and_may_begin_again():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom:
            await tom.advertise("x > 0")
            some = anna.subscribe("x > 0")
            async with some:
                await tom.publish({"x": 1})
                await tom.publish({"x": 2})
                assert await numbers(some, 1) == [1]
                await until(lambda: len(some._queue) == 1)
            assert [one["x"] async for one in some] == [2]  # what waited, and then the end
            assert [one async for one in some] == []
            await settled(net)
            await tom.publish({"x": 3}, confirm=True)
            async with some:
                await tom.publish({"x": 4})
                assert await numbers(some, 1) == [4]
            session = net.brokers["porto"].core.border.of("anna")[0]
            await until(lambda: not session.subscriptions)


@live
async def test_a_local_subscription_ends_when_the_client_goes():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom:
            await tom.advertise("x > 0")
            here = await anna.subscribe("x > 0", local=True)
            await tom.publish({"x": 1})
            await until(lambda: len(here._queue) == 1)
            await anna.move(net.url("lisbon"))
            await tom.publish({"x": 2}, confirm=True)
            assert [one["x"] async for one in here] == [1]


@live
async def test_a_subscription_ends_with_its_client():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom:
            all = await anna.subscribe("x > 0")
            reading = asyncio.create_task(all.get())
            await turns(3)
            await anna.close()
            with pytest.raises(Closed, match="anna was closed"):
                await reading
            assert [one async for one in all] == []
            for work in (
                all.get(1),
                anna.publish({"x": 1}),
                anna.move(net.url("faro")),
                anna.flush(1),
            ):
                if work.__name__ == "flush":
                    await work  # there is nothing to wait for
                    continue
                with pytest.raises(Closed):
                    await work
            with pytest.raises(Closed):
                await wayfare.connect(net.url("porto")).__class__.open(anna)


# Queues, and too much of everything


@live
async def test_who_does_not_read_can_still_publish_flush_move_and_beat():
    """The queue is full, and stays so: nothing else may wait for that."""
    async with tree(*LINE, heartbeat_s=0.1) as net:
        anna, tom = two(net, heartbeat_s=0.1)
        async with anna, tom, anna.subscribe("x > 0", queue=5) as all:
            await tom.advertise("x > 0")
            await anna.advertise("y > 0")
            for x in range(1, 1001):
                await tom.publish({"x": x})
            await tom.flush(5)
            await until(lambda: len(all._queue) == 5)
            await anna.publish({"y": 1}, confirm=True)
            await anna.flush(5)
            await asyncio.sleep(1)  # ten beats
            assert anna.broker == "porto" and len(all._queue) == 5
            await anna.move(net.url("lisbon"))
            wire = anna._conversation.wire
            await anna.publish({"y": 2}, confirm=True)
            assert len(all._queue) == 5
            assert await numbers(all, 1000) == [*range(1, 1001)]
            assert anna.lost == 0
            assert (
                anna._conversation.wire is wire
            )  # what was held of the other connection did no harm


@live
async def test_a_full_queue_that_is_closed_holds_up_nobody():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            narrow = await anna.subscribe("x > 0", queue=1)
            for x in range(1, 51):
                await tom.publish({"x": x})
            await tom.flush(5)
            assert await numbers(all, 1) == [1]
            with pytest.raises(TimeoutError):
                await all.get(0.1)
            await narrow.close()
            assert await numbers(all, 49) == [*range(2, 51)]


@live
async def test_policies_drop_what_they_say_and_count_it():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with (
            anna,
            tom,
            anna.subscribe("x > 0") as all,
            anna.subscribe("x > 0", queue=3, policy="drop_oldest") as last,
            anna.subscribe("x > 0", queue=3, policy="drop_newest") as first,
        ):
            await tom.advertise("x > 0")
            for x in range(1, 101):
                await tom.publish({"x": x})
            assert await numbers(all, 100) == [*range(1, 101)]
            assert (last.dropped, first.dropped) == (97, 97)
            assert await numbers(last, 3) == [98, 99, 100]
            assert await numbers(first, 3) == [1, 2, 3]


@pytest.mark.parametrize("options", [{"outbox": 10}, {"outbox_bytes": 10_000}], ids=str)
@live
async def test_a_full_outbox_makes_publish_wait_and_nothing_is_lost(options):
    async with tree(*LINE) as net:
        anna, tom = two(net, **options)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            await tom.detach()

            async def publish():
                for x in range(1, 101):
                    await tom.publish({"x": x}, bytes(1_000))

            publishing = asyncio.create_task(publish())
            await asyncio.sleep(0.1)
            assert not publishing.done() and len(tom._core.outbox) == 10
            await tom.attach()
            await publishing
            assert await numbers(all, 100) == [*range(1, 101)]


@live
async def test_much_more_than_a_connection_takes_at_once_waits_for_it():
    """Large payloads, and a thin wire: nobody is cut off, and nothing waits in memory without bound."""
    async with tree(*LINE) as net, proxy(net.brokers["faro"].address) as thin:
        thin.bytes_per_s = 20_000_000
        async with (
            wayfare.connect(net.url("faro"), client_id="anna") as anna,
            wayfare.connect(thin.url, client_id="tom") as tom,
            anna.subscribe("x > 0") as all,
        ):
            await tom.advertise("x > 0")
            most = 0
            for x in range(1, 31):
                await tom.publish({"x": x}, payload=b"x" * 1_000_000)
                most = max(most, tom._conversation.wire.unwritten)
            await tom.flush(20)
            assert most < 3_000_000
            assert await numbers(all, 30) == [*range(1, 31)]
            assert thin.accepted == 1


@live
async def test_large_payloads_are_delivered_however_many_come_at_once():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            for x in range(1, 13):
                await tom.publish({"x": x}, payload=b"x" * 3_000_000)
            for x in range(1, 13):
                one = await all.get(10)
                assert (one["x"], len(one.payload)) == (x, 3_000_000)


@live
async def test_a_link_gets_over_more_than_a_connection_takes_at_once():
    """It once was cut off for what waited for it, again and again, and never came back."""
    lisbon = BrokerHost("lisbon", {"porto": None}, heartbeat_s=0.1)
    await lisbon.start(Address("127.0.0.1", 0))
    async with proxy(lisbon.address) as road:
        porto = BrokerHost("porto", {"lisbon": road.address}, heartbeat_s=0.1)
        await porto.start(Address("127.0.0.1", 0))
        async with (
            wayfare.connect(str(lisbon.address), client_id="anna") as anna,
            wayfare.connect(str(porto.address), client_id="tom") as tom,
            anna.subscribe("x > 0") as all,
        ):
            await tom.advertise("x > 0")
            road.swallow()
            for x in range(1, 61):
                await tom.publish({"x": x}, payload=b"x" * 1_000_000)
            await tom.flush(10)
            assert len(porto.links["lisbon"]) >= 60
            road.cut()
            road.heal()
            road.bytes_per_s = 100_000_000
            assert await numbers(all, 60) == [*range(1, 61)]
        await porto.stop()
    await lisbon.stop()


@live
async def test_a_client_gets_over_more_than_a_connection_takes_at_once():
    async with (
        tree(*LINE) as net,
        proxy(net.brokers["porto"].address) as road,
        wayfare.connect(road.url, client_id="anna") as anna,
        wayfare.connect(net.url("porto"), client_id="tom") as tom,
        anna.subscribe("x > 0") as all,
    ):
        await tom.advertise("x > 0")
        await tom.flush()
        await anna.detach()
        for x in range(1, 61):
            await tom.publish({"x": x}, payload=b"x" * 250_000)
        await tom.flush(10)
        before = road.accepted
        road.bytes_per_s = 30_000_000
        await anna.attach()
        assert await numbers(all, 60) == [*range(1, 61)]
        assert (anna.lost, road.accepted) == (0, before + 1)


# Publishing


@live
async def test_publish_with_confirm_waits_for_the_broker():
    async with tree(*LINE) as net, wayfare.connect(net.url("porto"), client_id="tom") as tom:
        await tom.advertise("x > 0")
        first = await tom.publish({"x": 1}, confirm=True)
        assert net.brokers["porto"].core.border.of("tom")[0].published == first
        await tom.detach()
        waiting = asyncio.create_task(tom.publish({"x": 2}, confirm=True))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await tom.attach()
        assert await waiting == first + 1


@live
async def test_close_waits_for_what_was_published_and_says_what_is_left():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, anna.subscribe("x > 0") as all:
            async with tom:
                await tom.advertise("x > 0")
                for x in range(1, 1001):
                    await tom.publish({"x": x})
            assert await numbers(all, 1000) == [*range(1, 1001)]
        bert = await wayfare.connect(net.url("faro"), client_id="bert")
        await bert.advertise("x > 0")
        assert await bert.close() == 0
        carl = await wayfare.connect(net.url("faro"), client_id="carl")
        await carl.advertise("x > 0")
        await net.brokers["faro"].stop()
        await carl.publish({"x": 1})
        assert await carl.close(timeout=0.1) == 1


@live
async def test_who_comes_again_under_its_name_is_heard_again():
    """Another process, as far as brokers can tell: after a goodbye, after none, here and elsewhere."""
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        anna.subscribe("x > 0") as all,
    ):
        for round, place in enumerate(("faro", "faro", "lisbon", "porto", "faro")):
            tom = await wayfare.connect(net.url(place), client_id="tom", timeout=3)
            await tom.advertise("x > 0")
            await tom.publish({"x": 2 * round + 1})
            await tom.publish({"x": 2 * round + 2}, confirm=True)
            assert await numbers(all, 2) == [2 * round + 1, 2 * round + 2]
            if round % 2:
                await tom.close()
            else:
                await tom._end()  # without a word


# Moving


@pytest.mark.slow
@live
async def test_thousands_of_quick_moves():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            places = [net.url(name) for name in ("faro", "lisbon", "porto")]
            chance = random.Random(3)
            moves = 0
            for x in range(1, 1001):
                await tom.publish({"x": x})
                for client in (anna, tom):
                    if chance.random() < 0.5:  # on at once
                        moving = asyncio.create_task(client.move(chance.choice(places)))
                        await turns(chance.randrange(4))
                        await client.move(chance.choice(places))
                        await moving
                        moves += 2
                    else:
                        await client.move(chance.choice(places))
                        moves += 1
            assert moves > 2500
            assert await numbers(all, 1000) == [*range(1, 1001)]
            assert anna.lost == 0
            await asyncio.sleep(0.1)
            assert len(anna._conversation.wires) == len(tom._conversation.wires) == 1


@live
async def test_detach_and_attach_keep_everything():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            await anna.detach()
            await anna.detach()
            assert anna.broker == ""
            for x in range(1, 11):
                await tom.publish({"x": x})
            with pytest.raises(TimeoutError):
                await all.get(0.1)
            await anna.attach()
            await anna.attach()
            assert anna.broker == "porto"
            assert await numbers(all, 10) == [*range(1, 11)]
            await anna.detach()
            await tom.publish({"x": 11})
            await anna.move(net.url("lisbon"))
            assert await numbers(all, 1) == [11]


@live
async def test_a_broker_that_stops_during_a_move():
    async with tree(*LINE, limits=Limits(answer_ns=500_000_000)) as net:
        both = [net.url("porto"), net.url("lisbon")]
        told = []
        async with (
            wayfare.connect(both, client_id="anna", on_lost=lambda *one: told.append(one)) as anna,
            wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
            anna.subscribe("x > 0") as all,
        ):
            await tom.advertise("x > 0")
            said = []
            for x in range(1, 9):
                moving = asyncio.create_task(anna.move(net.url("faro")))
                await turns(x)
                await net.brokers["faro"].stop()
                said += await asyncio.gather(moving, return_exceptions=True)
                await until(lambda: anna.broker in ("porto", "lisbon"))
                await net.start("faro", net.brokers["faro"].address)
                await net.linked()
                await settled(net)
                await tom.publish({"x": x})
                assert await numbers(all, 1) == [x]
            assert {type(one) for one in said} == {type(None), CannotConnect}
            assert all._queue == deque()


@live
async def test_a_move_to_where_nobody_is_says_so_and_leads_back():
    async with tree(*LINE) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            with pytest.raises(
                CannotConnect, match=r"anna is at porto and not at wayfare://127.0.0.1:1: "
            ):
                await anna.move("127.0.0.1:1")
            await tom.publish({"x": 1})
            assert await numbers(all, 1) == [1]
            with pytest.raises(UsageError):
                await anna.move("http://porto")
            assert anna.broker == "porto"


# Connecting


@live
async def test_the_first_address_that_answers_is_taken():
    async with tree(*LINE) as net:
        some = ["127.0.0.1:1", "no-such-host.invalid", net.url("faro")]
        async with wayfare.connect(some, timeout=30) as anna:
            assert anna.broker == "faro"


@live
async def test_a_name_that_does_not_exist():
    with pytest.raises(CannotConnect, match=r"no-such-host\.invalid:7410 within 0\.5 s: "):
        await wayfare.connect("no-such-host.invalid", timeout=0.5)
    with pytest.raises(UsageError, match="1 to 63 characters between dots"):
        await wayfare.connect("a" * 70 + ".example", timeout=0.5)


@live
async def test_what_is_no_broker():
    async def page(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def silence(reader, writer):
        while await reader.read(100):
            pass
        writer.close()

    async def hang_up(reader, writer):
        writer.close()

    said = {
        page: "no broker is there: a frame of 1213486160 bytes",
        silence: "no broker is there: it says nothing; if it wants TLS, call it with wayfares://",
        hang_up: "no broker is there: ",
    }
    for serve, words in said.items():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        began = asyncio.get_running_loop().time()
        with pytest.raises(CannotConnect) as caught:
            await wayfare.connect(f"127.0.0.1:{port}", timeout=0.5)
        assert asyncio.get_running_loop().time() - began < 3
        assert f"cannot reach a broker at wayfare://127.0.0.1:{port} within 0.5 s: " in str(
            caught.value
        )
        assert words in str(caught.value)
        server.close()
        await server.wait_closed()


@live
async def test_a_silent_one_does_not_keep_from_the_next():
    async def silence(reader, writer):
        while await reader.read(100):
            pass
        writer.close()

    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        tree(*LINE) as net,
        wayfare.connect([f"127.0.0.1:{port}", net.url("faro")], timeout=3) as anna,
    ):
        assert anna.broker == "faro"
    server.close()
    await server.wait_closed()


CHANGES = (
    'steps, or values in their order, by name, like {"need": 1, "mode": ["walk", "bike", "car"]}'
)
WRONG_OPTIONS = [
    ("will", {"x": 1}, 'a wayfare.Will({"device": "d7", "state": "gone"})'),
    ("client_id", 5, "a text of at most 256 characters"),
    ("client_id", "\udcff", "a text of at most 256 characters"),  # a byte of a command line
    ("queue", 0, "a whole number, at least 1"),
    ("queue", "many", "a whole number, at least 1"),
    ("policy", "no", "one of wait, drop_oldest, drop_newest"),
    ("policy", ["wait"], "one of wait, drop_oldest, drop_newest"),
    ("outbox", 0, "a whole number, at least 1"),
    ("outbox", True, "a whole number, at least 1"),
    ("outbox_bytes", 0, "a whole number, at least 1"),
    ("on_lost", "print", "a function that is called with a count and a reason"),
    ("expires", 0, "a number of seconds, above 0"),
    ("on_connect", 5, "a function that is called with the name of a broker"),
    ("on_disconnect", turns, "a function that is called with the name of a broker and a reason"),
    ("events", 5, "a function, the path of a file, or the address of a broker"),
    ("timeout", "10", "a number of seconds"),
    ("timeout", float("nan"), "a number of seconds"),
    ("confirm", "x", "a number of seconds"),
    ("heartbeat_s", 0, "a number of seconds, above 0"),
    ("heartbeat_s", "x", "a number of seconds, above 0"),
    ("clock_error", "x", "a number of seconds"),
    ("ca", 5, "the path of a file"),
    ("crl", b"crl.pem", "the path of a file"),
    ("failover", "x", "a number of seconds"),
    ("late", 1, "True or False"),
    ("on_settled", 1, "a function that is called with a count and counts by publisher"),
    ("cert", "x", "a pair of paths: the file of the certificate, and the file of its key"),
    ("cert", ("x", 5), "a pair of paths: the file of the certificate, and the file of its key"),
    ("account", 5, "a text"),
    ("password", 5, "a text"),
    ("store", 5, "the path of a file"),
    ("durability", "tape", "one of os, disk"),
    ("areas", {"R1": "R2"}, 'locations by location, like {"R1": ["R1", "R2"]}'),
    ("changes", {"need": 0}, CHANGES),
    ("changes", {"need": "x"}, CHANGES),
    ("changes", {"mode": ["walk", 1, None]}, CHANGES),
    ("changes", {"mo de": 1}, CHANGES),
    ("changes", {5: 1}, CHANGES),
    ("changes", ["need"], CHANGES),
    ("places", 5, "a map, or the path of its file"),
    ("probe", 0, "a number of seconds, at least 0.1"),
]
WRONG_TERMS = [
    ("last", "x", "a whole number, at least 0"),
    ("last", -1, "a whole number, at least 0"),
    ("younger", "x", "a number of seconds"),
    ("key", 5, "the name of an attribute, or of several"),
    ("key", ["a", 5], "the name of an attribute, or of several"),
    ("same", 5, "the name of an attribute, or of several"),
    ("local", "x", "True or False"),
    ("since", "x", "a number of seconds"),
    ("since", -1, "a number of seconds"),
    ("slow_publishers", "x", "a number of seconds"),
    ("group", "", "a text of 1 to 256 characters"),
    ("prefetch", 0, "a whole number from 1 to 10000"),
    ("away", 0.01, "a number of seconds, at least 0.1"),
    ("ack", 1, "True or False"),
    ("retained", 1, "True or False"),
    ("queue", "x", "a whole number, at least 1"),
    ("policy", "no", "one of wait, drop_oldest, drop_newest"),
]


@pytest.mark.parametrize(("name", "value", "what"), WRONG_OPTIONS)
def test_an_option_that_makes_no_sense_is_one_sentence(name, value, what):
    with pytest.raises(UsageError) as caught:
        wayfare.connect("127.0.0.1", **{name: value})
    assert str(caught.value) == f"{name} is {what}, not {value!r}"


@pytest.mark.parametrize(("name", "value", "what"), WRONG_TERMS)
@live
async def test_a_term_that_makes_no_sense_is_one_sentence(name, value, what):
    with pytest.raises(UsageError) as caught:
        wayfare.connect("127.0.0.1").subscribe("x > 0", **{name: value})
    assert str(caught.value) == f"{name} is {what}, not {value!r}"


def test_every_option_is_checked():
    terms = {*inspect.signature(wayfare.Client.subscribe).parameters} - {"self", "wanted"}
    filters = {"nullify"}  # checked where filters are parsed
    assert {*OPTIONS} == {*Options.__annotations__} | terms - filters | {"client_id"}
    assert {one for one, *_ in WRONG_OPTIONS} | {one for one, *_ in WRONG_TERMS} == {*OPTIONS}


@live
async def test_what_is_no_address_and_no_filter():
    for wrong in ([], 5, None, {"a": 1}):
        with pytest.raises(UsageError, match="connect needs the address of a broker, or several"):
            wayfare.connect(wrong)
    with pytest.raises(UsageError, match="an address is a text like wayfare://host:port, not 5"):
        wayfare.connect([5])
    client = wayfare.connect(("127.0.0.1", "127.0.0.2"))
    with pytest.raises(UsageError, match="an address is a text"):
        await client.move(None)
    for wrong in (5, None, ["x > 0"]):
        with pytest.raises(FilterError, match="a filter is a text, or built by `attr` and `near`"):
            client.subscribe(wrong)


@live
async def test_who_is_not_connected_yet_is_told_so():
    """And does not wait for what cannot come: somebody forgot to await."""
    anna = wayfare.connect("127.0.0.1:1")
    for call in (
        anna.advertise("x > 0"),
        anna.publish({"x": 1}, confirm=True),
        anna.subscribe("x > 0").get(),
        anna.subscribe("x > 0"),
        anna.move("127.0.0.1"),
        anna.attach(),
        anna.detach(),
    ):
        with pytest.raises(UsageError, match="is not connected yet: await it, or use it with"):
            await call
    assert await anna.close() == 0


@live
async def test_what_is_no_time_and_no_notification():
    async with tree(*LINE) as net, wayfare.connect(net.url("porto")) as anna:
        for call in (anna.flush("x"), anna.subscribe("x > 0").get("x")):
            with pytest.raises(UsageError, match="timeout is a number of seconds, not 'x'"):
                await call
        for wrong in (None, 5, [("x", 1)]):
            with pytest.raises(InvalidNotification, match="a mapping of names to values, not "):
                await anna.publish(wrong)


@live
async def test_files_that_are_not_there_are_told(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read nowhere\.pem: No such file"):
        wayfare.connect("127.0.0.1", ca="nowhere.pem")
    with pytest.raises(UsageError, match=r"cannot read nowhere\.key: No such file"):
        wayfare.connect("127.0.0.1", cert=("nowhere.pem", "nowhere.key"))
    for name in ("log.jsonl", "log.parquet"):
        with pytest.raises(UsageError, match=r"cannot write the event log .*: .*No such file"):
            await wayfare.connect("127.0.0.1", events=tmp_path / "no" / name)


@live
async def test_opened_twice_is_opened_once():
    async with tree(*LINE) as net:
        anna = await wayfare.connect(net.url("porto"), client_id="anna")
        async with anna:
            assert len(anna._conversation.tasks) == 2
        with pytest.raises(Closed):
            await anna


@live
async def test_who_may_try_again_is_not_told_that_it_is_refused():
    """Held back more than fits while it moves: the broker closes the connection, and it comes again."""
    async with tree(*LINE, limits=Limits(held_count=5, answer_ns=400_000_000)) as net:
        anna, tom = two(net)
        async with anna, tom, anna.subscribe("x > 0") as all:
            await tom.advertise("x > 0")
            link = net.brokers["faro"].links["lisbon"]
            for x in range(1, 101):
                if x == 50:
                    link.connection.pause()
                    await tom.move(net.url("porto"))
                await tom.publish({"x": x})
            await asyncio.sleep(0.2)
            if link.connection is not None:
                link.connection.resume()
            await tom.flush(10)
            await until(lambda: all._queue and all._queue[-1]["x"] == 100)
            got = [one["x"] for one in all._queue]
            assert got == sorted({*got})


@live
async def test_a_mistake_in_on_lost_does_no_harm(caplog):
    def wrong(count, reason):
        raise ZeroDivisionError

    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna", on_lost=wrong) as anna,
        wayfare.connect(net.url("faro"), client_id="tom") as tom,
        anna.subscribe("x > 0") as all,
    ):
        await tom.advertise("x > 0")
        await net.restart("porto")
        await until(lambda: anna.broker == "porto")
        await net.linked()
        await settled(net)
        await tom.publish({"x": 1})
        assert await numbers(all, 1) == [1]
        assert "on_lost of anna failed" in caplog.text


@live
async def test_a_bug_stops_the_client_and_says_so(caplog):
    async with tree(*LINE) as net, wayfare.connect(net.url("porto"), client_id="anna") as anna:
        all = await anna.subscribe("x > 0")
        reading = asyncio.create_task(all.get(5))
        await turns(2)
        await anna.advertise("y > 0")
        anna._core.on_published = anna._core.step = lambda *_: 1 / 0
        await anna.publish({"y": 1})
        with pytest.raises(RuntimeError, match="anna was stopped by a bug of Wayfare"):
            await reading
        with pytest.raises(RuntimeError, match="anna was stopped by a bug of Wayfare"):
            await anna.publish({"y": 2})
        anna._core.step = lambda *_: []


# Peers that are silent


@live
async def test_a_broker_that_is_silent_is_left_in_time():
    async with (
        tree(*LINE, heartbeat_s=0.1) as net,
        proxy(net.brokers["porto"].address) as road,
        wayfare.connect([road.url, net.url("faro")], client_id="anna", heartbeat_s=0.1) as anna,
    ):
        for directions in (("down",), ("up", "down")):
            await anna.move(road.url)
            await asyncio.sleep(0.3)
            assert anna.broker == "porto"
            road.swallow(*directions)
            began = asyncio.get_running_loop().time()
            await until(lambda: anna.broker == "faro", 5)
            took = asyncio.get_running_loop().time() - began
            assert 0.15 < took < 2.0
            road.heal()
            road.cut()


@live
async def test_flush_waits_until_a_broker_has_heard_of_a_subscription():
    async with (
        tree(*LINE) as net,
        proxy(net.brokers["porto"].address) as road,
        wayfare.connect(road.url, client_id="anna", heartbeat_s=30) as anna,
    ):
        await anna.flush(0)  # nothing to wait for

        def known():
            sessions = net.brokers["porto"].core.border.by_link.values()
            return {str(filter) for one in sessions for filter in one.subscriptions}

        async with anna.subscribe("x > 0"):
            await anna.flush(5)
            assert known() == {"x > 0"}
            await anna.flush(0)
            road.swallow("up")
            async with anna.subscribe("y > 0"):
                with pytest.raises(TimeoutError):
                    await anna.flush(0.2)
                waiting = asyncio.create_task(anna.flush(5))
                await asyncio.sleep(0.05)
                road.cut()
                road.heal()
                await waiting  # at the next connection
                assert known() == {"x > 0", "y > 0"}
                await anna.detach()
                async with anna.subscribe("z > 0"):
                    await anna.flush(1)  # who is away tells nobody


@pytest.mark.parametrize(("ours", "theirs"), [(0.1, 30), (30, 0.1)])
@live
async def test_heartbeats_need_not_be_equal(ours, theirs):
    """Whoever wants to know sooner is answered: nobody is cut off because the other one is patient."""
    async with (
        tree(*LINE, heartbeat_s=theirs) as net,
        wayfare.connect(net.url("porto"), client_id="anna", heartbeat_s=ours) as anna,
    ):
        wire = anna._conversation.wire
        await asyncio.sleep(1)
        assert anna._conversation.wire is wire and not wire.closing


@live
async def test_a_client_that_is_silent_is_noticed_in_time():
    async with (
        tree(*LINE, heartbeat_s=0.1) as net,
        proxy(net.brokers["porto"].address) as road,
        wayfare.connect(road.url, client_id="anna", heartbeat_s=30) as anna,
    ):
        await asyncio.sleep(0.05)
        road.swallow("up")
        began = asyncio.get_running_loop().time()
        await until(lambda: not net.brokers["porto"].connections, 5)
        assert 0.15 < asyncio.get_running_loop().time() - began < 2.0
        assert anna.name == "anna"


@live
async def test_a_neighbour_that_is_silent_is_noticed_in_time():
    lisbon = BrokerHost("lisbon", {"porto": None}, heartbeat_s=0.1)
    await lisbon.start(Address("127.0.0.1", 0))
    async with proxy(lisbon.address) as road:
        porto = BrokerHost("porto", {"lisbon": road.address}, heartbeat_s=0.1)
        await porto.start(Address("127.0.0.1", 0))
        await until(lambda: porto.links["lisbon"].connection and lisbon.links["porto"].connection)
        await asyncio.sleep(0.2)
        road.swallow()
        began = asyncio.get_running_loop().time()
        await until(
            lambda: not porto.links["lisbon"].connection and not lisbon.links["porto"].connection
        )
        assert 0.15 < asyncio.get_running_loop().time() - began < 2.0
        road.cut()
        road.heal()
        await until(lambda: porto.links["lisbon"].connection and lisbon.links["porto"].connection)
        await porto.stop()
        await lisbon.stop()


@live
async def test_another_of_the_same_name_is_told_to_both():
    async with tree(*LINE) as net, wayfare.connect(net.url("porto"), client_id="anna") as first:
        waiting = [asyncio.create_task(first.subscribe("x > 0").get()) for _ in range(3)]
        await asyncio.sleep(0.01)
        async with wayfare.connect(net.url("porto"), client_id="anna") as second:
            for one in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(one, Refused)
            with pytest.raises(Refused, match="anna"):
                await first.advertise("x > 0")
            await second.advertise("x > 0")


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"nullify": "state ="}, r"expected a value"),
        ({"nullify": 5}, r"a filter is a text"),
        ({"nullify": "location in myloc"}, r"nullify with a filter that does not"),
        ({"nullify": "state like 'a%b'"}, r"leave out like, prefix, contains"),
        ({"nullify": f"x = '{'a' * 500}'"}, r"give at most 500"),
        ({"same": "x"}, r"same names attributes for nullify"),
        ({"nullify": "x = 1", "same": ["a", "a"]}, r"up to 8 different ones"),
        ({"key": [str(i) for i in range(9)]}, r"up to 8 different ones"),
        ({"nullify": "x = 1", "group": "g"}, r"leave out last, younger, key, nullify"),
    ],
)
@live
async def test_terms_that_make_no_sense_are_refused(terms, why):
    async with (
        tree("porto-lisbon") as net,
        wayfare.connect(str(net.brokers["porto"].address)) as anna,
    ):
        with pytest.raises(wayfare.WayfareError, match=why):
            await anna.subscribe("x > 0", **terms)
