"""When an application is done with a notification, and what comes again."""

import asyncio
import threading

import pytest

import wayfare
import wayfare.sync
from live import tree, until
from test_client_api import LINE, live
from test_client_store import crash
from test_net import numbers
from wayfare.core.history import Limits
from wayfare.errors import Closed, UsageError
from wayfare.testing import Tree


def anna_at(net, file=None):
    return wayfare.connect(net.url("porto"), client_id="anna", store=file)


async def tom_at(net, *values):
    tom = await wayfare.connect(net.url("lisbon"), client_id="tom")
    await tom.advertise("x > 0")
    for x in values:
        await tom.publish({"x": x})
    return tom


async def waiting(anna):
    """What the next process gets, of what is there; 99 is published last."""
    found = []
    async with anna.subscribe("x > 0") as all:
        while not found or found[-1]["x"] != 99:
            found.append(await all.get(5))
    return [(one["x"], one.redelivered) for one in found]


# Closing


@live
async def test_a_client_that_is_closed_is_done_with_the_last_one(tmp_path):
    file = tmp_path / "anna.db"
    async with tree(*LINE) as net:
        anna = await anna_at(net, file)
        all = await anna.subscribe("x > 0")
        async with await tom_at(net, 1, 2) as tom:
            assert await numbers(all, 2) == [1, 2]
            await anna.close()
            await tom.publish({"x": 99})
            async with anna_at(net, file) as anna:
                assert await waiting(anna) == [(99, 0)]


@live
async def test_what_a_task_has_in_hand_that_has_ended_is_done(tmp_path):
    file = tmp_path / "anna.db"

    async def take_one(all):
        async for one in all:
            assert one["x"] == 1
            break

    async with tree(*LINE) as net:
        async with anna_at(net, file) as anna:
            all = await anna.subscribe("x > 0")
            async with await tom_at(net, 1):
                await asyncio.create_task(take_one(all))
        async with anna_at(net, file) as anna, await tom_at(net, 99):
            assert await waiting(anna) == [(99, 0)]


@live
async def test_what_another_task_is_busy_with_comes_again(tmp_path):
    file = tmp_path / "anna.db"
    took = asyncio.Event()
    with Tree("porto"):  # a synchronous call leaves nothing behind in the context of this task
        pass

    async def work(all):
        await all.get(5)
        took.set()
        await asyncio.sleep(100)

    async with tree(*LINE) as net:
        anna = await anna_at(net, file)
        all = await anna.subscribe("x > 0")
        async with await tom_at(net, 1) as tom:
            busy = asyncio.create_task(work(all))
            await took.wait()
            await anna.close()
            busy.cancel()
            await tom.publish({"x": 99})
            async with anna_at(net, file) as anna:
                assert await waiting(anna) == [(1, 1), (99, 0)]


@pytest.mark.parametrize("close", ["client", "subscription", "with"])
@live
async def test_who_closes_because_of_an_error_is_not_done(tmp_path, close):
    file = tmp_path / "anna.db"

    async def fail(anna, all):
        if close == "with":
            async with anna:
                await all.get(5)
                raise ZeroDivisionError
        try:
            await all.get(5)
            raise ZeroDivisionError
        finally:
            await (anna if close == "client" else all).close()

    async with tree(*LINE) as net, await tom_at(net) as tom:
        anna = await anna_at(net, file)
        all = await anna.subscribe("x > 0")
        await tom.publish({"x": 1})
        with pytest.raises(ZeroDivisionError):
            await fail(anna, all)
        await anna.close()
        await tom.publish({"x": 99})
        async with anna_at(net, file) as anna:
            assert await waiting(anna) == [(1, 1), (99, 0)]


# Acknowledging


@live
async def test_what_is_not_acknowledged_comes_again_to_the_next_process(tmp_path):
    file = tmp_path / "anna.db"
    async with tree(*LINE) as net, await tom_at(net) as tom:
        for attempt in range(3):
            anna = await anna_at(net, file)
            all = await anna.subscribe("x > 0", ack=True)
            if not attempt:
                for x in range(1, 6):
                    await tom.publish({"x": x})
            some = [await all.get(5) for _ in range(5 if not attempt else 3)]
            assert [one["x"] for one in some] == ([1, 2, 3, 4, 5] if not attempt else [1, 3, 5])
            assert {one.redelivered for one in some} == {attempt}
            if not attempt:
                await some[1].ack()
                await some[3].ack()
                await some[3].ack()  # once is enough
            if attempt == 1:
                await anna.close()
            else:
                await asyncio.sleep(0.1)  # it is written down
                crash(anna)
        async with anna_at(net, file) as anna:
            await tom.publish({"x": 99})
            assert await waiting(anna) == [(1, 3), (3, 3), (5, 3), (99, 0)]


@live
async def test_what_is_acknowledged_after_the_subscription_is_closed_is_done(tmp_path):
    file = tmp_path / "anna.db"
    async with tree(*LINE) as net, await tom_at(net) as tom:
        anna = await anna_at(net, file)
        async with anna.subscribe("x > 0", ack=True) as all:
            await tom.publish({"x": 1})
            one = await all.get(5)
        await one.ack()
        await anna.close()
        with pytest.raises(Closed):
            await one.ack()
        await tom.publish({"x": 99})
        async with anna_at(net, file) as anna:
            assert await waiting(anna) == [(99, 0)]


@live
async def test_what_is_rejected_comes_again_at_once():
    async with (
        tree(*LINE) as net,
        anna_at(net) as anna,
        anna.subscribe("x > 0", ack=True) as all,
        await tom_at(net, 1, 2),
    ):
        one = await all.get(5)
        assert (one["x"], one.redelivered) == (1, 0)
        await one.nack()
        await one.nack()  # once is enough
        again = await all.get(5)
        assert (again["x"], again.redelivered) == (1, 1)
        await one.ack()  # it was rejected
        await again.nack()
        assert (await all.get(5)).redelivered == 2
        assert (await all.get(5))["x"] == 2


@live
async def test_overlapping_subscriptions_acknowledge_each_for_itself():
    async with (
        tree(*LINE) as net,
        anna_at(net) as anna,
        anna.subscribe("x > 0", ack=True) as one,
        anna.subscribe("x > 0", ack=True) as two,
        anna.subscribe("x > 0") as plain,
        await tom_at(net, 1),
    ):
        first, second = await one.get(5), await two.get(5)
        await first.nack()
        await second.ack()
        assert (await one.get(5)).redelivered == 1
        with pytest.raises(TimeoutError):
            await two.get(0.05)
        with pytest.raises(UsageError, match=r"only what comes by subscribe\(..., ack=True\)"):
            await (await plain.get(5)).ack()


@live
async def test_what_is_not_acknowledged_counts_for_the_queue():
    async with (
        tree(*LINE, limits=Limits(window=4)) as net,
        anna_at(net) as anna,
        anna.subscribe("x > 0", ack=True, queue=3) as all,
        await tom_at(net, *range(1, 11)),
    ):
        some = [await all.get(5) for _ in range(3)]
        with pytest.raises(TimeoutError):
            await all.get(0.1)
        seen = [one["x"] for one in some]
        while some:
            await some.pop(0).ack()
            if len(some) < 2 and len(seen) < 10:
                some.append(await all.get(5))
                seen.append(some[-1]["x"])
        assert seen == [*range(1, 11)]


@live
async def test_policies_drop_what_waits_and_nothing_that_was_taken():
    async with (
        tree(*LINE) as net,
        anna_at(net) as anna,
        anna.subscribe("x > 0", ack=True, queue=2, policy="drop_oldest") as all,
        await tom_at(net, 1, 2) as tom,
    ):
        some = [await all.get(5), await all.get(5)]
        await tom.publish({"x": 3})
        await until(lambda: all.dropped == 1)
        for one in some:
            await one.ack()
        await tom.publish({"x": 4})
        assert (await all.get(5))["x"] == 4


def fail(client):
    with client:
        client.subscribe("x > 0").get(5)
        raise ZeroDivisionError


def test_the_synchronous_twin_acknowledges_too(tmp_path):
    with Tree("porto-lisbon") as net, wayfare.sync.connect(net["lisbon"]) as tom:
        tom.advertise("x > 0")

        def anna():
            return wayfare.sync.connect(net["porto"], client_id="anna", store=tmp_path / "anna.db")

        with anna() as one, one.subscribe("x > 0", ack=True) as all:
            for x in (1, 2, 3):
                tom.publish({"x": x})
            some = [all.get(5) for _ in range(3)]
            some[0].ack()
            some[1].nack()
            again = all.get(5)
            assert (dict(again), again.redelivered) == ({"x": 2}, 1)
            again.ack()
        with anna() as one:
            found = one.subscribe("x > 0").get(5)
            assert (found["x"], found.redelivered) == (3, 1)
        tom.publish({"x": 4})
        with pytest.raises(ZeroDivisionError):
            fail(anna())
        with anna() as one:
            other = threading.Thread(target=lambda: one.subscribe("x > 0").get(5))
            other.start()
            other.join()
        with anna() as one:
            tom.publish({"x": 99})
            assert one.subscribe("x > 0").get(5)["x"] == 99
