"""Clients that keep their memory in a file, and the next process of their name."""

import asyncio
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

import wayfare
from live import tree
from test_net import numbers
from test_store import with_path
from wayfare.errors import CannotConnect, StoreError, UsageError
from wayfare.net import database

SCRIPT = Path(__file__).with_name("client_process.py")
LINE = ("porto-lisbon", "faro-lisbon")


def crash(client):
    """As kill -9, within this process: nothing is said or written any more."""
    client._life.closed = True
    client._conversation.tasks.cancel()
    client._keeping._store.close()
    client._keeping._store.keep = lambda *_: None
    if client._conversation.wire is not None:
        client._conversation.wire.abort("killed")


@with_path
async def test_the_next_process_goes_on_where_the_last_one_was(tmp_path):
    file = tmp_path / "anna.db"
    async with tree(*LINE) as net, wayfare.connect(net.url("lisbon"), client_id="tom") as tom:
        await tom.advertise("x > 0")
        async with (
            wayfare.connect(net.url("porto"), client_id="anna", store=file) as anna,
            anna.subscribe("x > 0") as all,
        ):
            await tom.publish({"x": 1})
            assert await numbers(all, 1) == [1]
        for x in (2, 3):
            await tom.publish({"x": x})
        async with (
            wayfare.connect(net.url("faro"), client_id="anna", store=file) as anna,
            anna.subscribe("x > 0") as all,
        ):
            assert await numbers(all, 2) == [2, 3]
            assert anna.lost == 0


@with_path
async def test_what_was_in_hand_comes_again(tmp_path):
    file = tmp_path / "anna.db"
    async with tree(*LINE) as net, wayfare.connect(net.url("lisbon"), client_id="tom") as tom:
        await tom.advertise("x > 0")
        anna = await wayfare.connect(net.url("porto"), client_id="anna", store=file)
        all = await anna.subscribe("x > 0")
        for x in range(1, 6):
            await tom.publish({"x": x})
        assert await numbers(all, 3) == [1, 2, 3]
        await asyncio.sleep(0.1)
        crash(anna)
        async with wayfare.connect(net.url("faro"), client_id="anna", store=file) as anna:
            assert await numbers(anna.subscribe("x > 0"), 3) == [3, 4, 5]


async def fail(net, anna, tom):
    async with anna.subscribe("x > 0") as all:
        await tom.publish({"x": 1})
        one = await all.get(5)
        print(one["x"] / 0)


@with_path
async def test_who_fails_is_not_done(tmp_path):
    file = tmp_path / "anna.db"
    async with tree(*LINE) as net, wayfare.connect(net.url("lisbon"), client_id="tom") as tom:
        await tom.advertise("x > 0")
        async with wayfare.connect(net.url("porto"), client_id="anna", store=file) as anna:
            with pytest.raises(ZeroDivisionError):
                await fail(net, anna, tom)
        async with wayfare.connect(net.url("porto"), client_id="anna", store=file) as anna:
            assert await numbers(anna.subscribe("x > 0"), 1) == [1]


@with_path
async def test_what_was_published_and_nobody_has_is_published_by_the_next_process(tmp_path):
    file = tmp_path / "tom.db"
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        anna.subscribe("x > 0") as all,
    ):
        tom = await wayfare.connect(net.url("lisbon"), client_id="tom", store=file)
        await tom.advertise("x > 0")
        await tom.publish({"x": 1}, confirm=True)
        await tom.detach()
        for x in (2, 3):
            await tom.publish({"x": x})
        crash(tom)
        async with wayfare.connect(net.url("faro"), client_id="tom", store=file) as tom:
            await tom.publish({"x": 4})
            assert await numbers(all, 4) == [1, 2, 3, 4]


async def listen(reader, writer):
    """Say nothing, until the other end is gone."""
    while await reader.read(4096):
        pass
    writer.close()


@with_path
async def test_what_nobody_has_is_not_forgotten_where_nobody_answers(tmp_path):
    """A process in between may find somebody who accepts its connection, and no broker."""
    file = tmp_path / "tom.db"
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        anna.subscribe("x > 0") as all,
    ):
        tom = await wayfare.connect(net.url("lisbon"), client_id="tom", store=file)
        await tom.advertise("x > 0")
        await tom.detach()
        await tom.publish({"x": 1})
        crash(tom)
        silent = await asyncio.start_server(listen, "127.0.0.1", 0)
        host, port = silent.sockets[0].getsockname()
        with pytest.raises(CannotConnect):
            await wayfare.connect(
                f"wayfare://{host}:{port}", client_id="tom", store=file, timeout=0.2
            )
        silent.close()
        async with wayfare.connect(net.url("faro"), client_id="tom", store=file):
            assert await numbers(all, 1) == [1]


@with_path
async def test_subscriptions_stay_until_they_are_withdrawn(tmp_path):
    file = tmp_path / "anna.db"
    async with tree(*LINE) as net:
        async with (
            wayfare.connect(net.url("porto"), client_id="anna", store=file) as anna,
            anna.subscribe("x > 0"),
        ):
            other = await anna.subscribe("y > 0")
            await other.unsubscribe()
        async with wayfare.connect(net.url("porto"), client_id="anna", store=file) as anna:
            assert [str(one) for one in anna._core.subscriptions] == ["x > 0"]


@with_path
async def test_a_store_is_of_one_client_in_one_process(tmp_path):
    file = tmp_path / "anna.db"
    async with tree(*LINE) as net:
        with pytest.raises(UsageError, match="name it with client_id"):
            wayfare.connect(net.url("porto"), store=file)
        async with wayfare.connect(net.url("porto"), client_id="anna", store=file):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(database, "LOCK_WAIT_S", 0.1)
                with pytest.raises(StoreError, match="in use by another process"):
                    wayfare.connect(net.url("porto"), client_id="anna", store=file)
        with pytest.raises(StoreError, match="is the memory of anna, and this is bert"):
            wayfare.connect(net.url("porto"), client_id="bert", store=file)


@with_path
async def test_an_old_copy_of_a_store_goes_on_at_once_and_what_it_missed_is_reported(tmp_path):
    """It attached, published and got more since: its epoch, numbers and deliveries are behind."""
    file, told = tmp_path / "anna.db", []
    async with tree(*LINE) as net, wayfare.connect(net.url("lisbon"), client_id="tom") as tom:
        await tom.advertise("x > 0")
        answers = await tom.subscribe("y > 0")

        async def visit(xs, broker="porto"):
            url = net.url(broker)
            async with (
                wayfare.connect(
                    url, client_id="anna", store=file, on_lost=lambda *it: told.append(it)
                ) as anna,
                anna.subscribe("x > 0") as all,
            ):
                await anna.advertise("y > 0")
                for x in xs:
                    await tom.publish({"x": x})
                    got = []
                    while x not in got:
                        got.append((await all.get(5))["x"])
                    await anna.publish({"y": x}, confirm=True)
                return got

        await visit([1])
        shutil.copy(file, tmp_path / "copy.db")
        await visit([2])
        assert await visit([3, 4]) == [4]
        assert told == []
        shutil.copy(tmp_path / "copy.db", file)
        got = await visit([5])  # it is not refused
        assert got == sorted(set(got))
        assert [count for count, _ in told] == [0]
        shutil.copy(tmp_path / "copy.db", file)
        file.with_name("anna.db-mark").unlink()
        got = await visit([6], "faro")
        assert got == sorted(set(got))
        assert [(await answers.get(5))["y"] for _ in range(6)] == [1, 2, 3, 4, 5, 6]


async def kill_clients(path, seed, rounds):
    random = Random(seed)
    async with tree(*LINE) as net:
        addresses = [net.url(name) for name in ("porto", "lisbon", "faro")]
        running, kills = {}, {"sub": 0, "pub": 0}

        async def start(what):
            there = ",".join(random.sample(addresses, 3))
            arguments = (what, there, str(path / f"{what}.db"), str(path / f"{what}.txt"))
            running[what] = await asyncio.create_subprocess_exec(
                sys.executable, str(SCRIPT), *arguments, stdout=asyncio.subprocess.PIPE
            )
            assert await running[what].stdout.readline() == b"ready\n"

        async def kill(what):
            running[what].kill()
            await running[what].wait()

        await start("sub")
        await start("pub")
        for _ in range(rounds):
            await asyncio.sleep(random.uniform(0, 0.3))
            what = random.choice(("sub", "pub"))
            await kill(what)
            kills[what] += 1
            await start(what)
        await asyncio.sleep(0.2)
        await kill("pub")
        published = [int(x) for x in (path / "pub.txt").read_text().split()]
        async with asyncio.timeout(20):
            while int((path / "sub.txt").read_text().split()[-1]) < published[-1]:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        await kill("sub")
        got = [int(x) for x in (path / "sub.txt").read_text().split()]
        # A process that is killed may have published, or got, one more than it could write down.
        again = sum(a == b for a, b in pairwise(got))
        assert again <= kills["sub"] + kills["pub"] + 2
        assert list(dict.fromkeys(got)) == sorted(set(got))
        assert set(published) <= set(got) <= {*published, published[-1] + 1}


def test_clients_that_are_killed_lose_nothing(tmp_path):
    asyncio.run(asyncio.wait_for(kill_clients(tmp_path, 0, 3), 60))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_clients_that_are_killed_often_lose_nothing(tmp_path, seed):
    asyncio.run(asyncio.wait_for(kill_clients(tmp_path, seed, 20), 110))
