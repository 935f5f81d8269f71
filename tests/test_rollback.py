"""A store that goes back in time: an old copy is put back, or the end of its WAL is damaged.

Brokers run in processes of their own. Whatever is missing then has to be reported to every client that may
miss it, nothing may come twice, and the tree has to be whole again.
"""

import asyncio
import shutil
import sys
from random import Random

import pytest

import wayfare
from live import until
from test_kill import SCRIPT, free_ports
from wayfare.net.store import FILE


class Brokers:
    """Brokers in a line, each of which calls the one before it."""

    def __init__(self, path, *names, durability="os"):
        self.path, self.durability, self.names = path, durability, names
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.running = {}

    async def __aenter__(self):
        for name in self.names:
            await self.start(name)
        return self

    async def __aexit__(self, *_):
        for name in list(self.running):
            await self.kill(name)

    async def start(self, name):
        at = self.names.index(name)
        near = [f"{one}={self.ports[one]}" for one in self.names[max(0, at - 1) : at]]
        near += self.names[at + 1 : at + 2]
        command = [str(SCRIPT), name, str(self.ports[name]), str(self.path / name), self.durability]
        with (self.path / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, *near, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert await process.stdout.readline() == b"ready\n"
        self.running[name] = process

    async def kill(self, name):
        process = self.running.pop(name)
        process.kill()
        await process.wait()

    async def copy(self, name):
        """Take a copy of its store, between two lives."""
        await self.kill(name)
        shutil.copytree(self.path / name, self.path / f"{name}.copy", dirs_exist_ok=True)
        await self.start(name)

    async def put_back(self, name, *, mark):
        """Let it start from the copy; with the mark of that time, or with the latest one."""
        if name in self.running:
            await self.kill(name)
        for file in (self.path / name).iterdir():
            if mark or not file.name.endswith("-mark"):
                file.unlink()
        for file in (self.path / f"{name}.copy").iterdir():
            if mark or not file.name.endswith("-mark"):
                shutil.copy(file, self.path / name / file.name)

    def log(self, name):
        return (self.path / f"{name}.log").read_text()

    def client(self, name, at, told=None):
        on_lost = None if told is None else lambda *lost: told.append(lost)
        url = f"wayfare://127.0.0.1:{self.ports[at]}"
        return wayfare.connect(url, client_id=name, on_lost=on_lost, timeout=20)


def live(test):
    def run(tmp_path, **given):
        asyncio.run(asyncio.wait_for(test(tmp_path, **given), 60))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.pytestmark = getattr(test, "pytestmark", [])
    return run


async def publish(client, numbers):
    for x in numbers:
        await client.publish({"x": x})
    await client.flush(20)


async def drain(subscription, told, last):
    """What comes up to this one, which is published when all is well again."""
    got = []
    while not got or got[-1] != last:
        got.append((await subscription.get(20))["x"])
    return got


def check(got, told, expected):
    """In order, each once; and what is missing was reported."""
    assert got == sorted(set(got))
    assert set(got) <= set(expected)
    assert told or got == list(expected), f"{len(expected) - len(got)} are missing, nobody is told"


with_and_without_mark = pytest.mark.parametrize("mark", [False, True])


def both(test):
    """With the mark of the copy, so that only the neighbour can see it, or with the latest mark."""

    @with_and_without_mark
    def run(tmp_path, mark):
        asyncio.run(asyncio.wait_for(test(tmp_path, mark), 60))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@both
async def test_an_old_copy_whose_neighbour_went_on_is_reported(tmp_path, mark):
    """The neighbour's messages were confirmed, and are kept nowhere any more."""
    told = []
    async with (
        Brokers(tmp_path, "b", "a") as net,
        net.client("tom", "b") as tom,
        net.client("anna", "a", told) as anna,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            await anna.detach()
            await publish(tom, range(1, 101))
            await net.copy("a")
            await publish(tom, range(101, 301))
            await asyncio.sleep(1.2)  # a heartbeat confirms the rest
            await net.put_back("a", mark=mark)
            await net.start("a")
            await anna.attach()
            await until(lambda: bool(told))
            await asyncio.sleep(1)  # the link is whole again
            await publish(tom, [301])
            check(await drain(all, told, 301), told, range(1, 302))


@both
async def test_an_old_copy_that_has_sent_less_than_its_neighbour_took_does_not_split_the_tree(
    tmp_path, mark
):
    told = []
    async with (
        Brokers(tmp_path, "b", "a") as net,
        net.client("tom", "a") as tom,
        net.client("anna", "b", told) as anna,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            await publish(tom, range(1, 4))
            await net.copy("a")
            await tom.attach()
            await publish(tom, range(4, 5))
            await asyncio.sleep(1.2)
            await net.put_back("a", mark=mark)
            await net.start("a")
            await tom.attach()
            await asyncio.sleep(2)
            await publish(tom, [5])
            check(await drain(all, told, 5), told, range(1, 6))
            assert told  # what tom had been promised may be lost


def damaged(path, how, random):
    wal = path.with_name(f"{FILE}-wal")
    data = bytearray(wal.read_bytes())
    if how == "flipped":
        data[random.randrange(32, len(data))] ^= 1 << random.randrange(8)
    else:
        del data[random.randrange(32, len(data)) :]
    wal.write_bytes(data)


@pytest.mark.parametrize("how", ["flipped", "truncated"])
@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_end_of_the_wal_is_reported(tmp_path, how, seed):
    async def run():
        told = []
        async with (
            Brokers(tmp_path, "a") as net,
            net.client("tom", "a") as tom,
            net.client("anna", "a", told) as anna,
        ):
            await tom.advertise("x > 0")
            async with anna.subscribe("x > 0") as all:
                await anna.detach()
                for x in range(1, 301):
                    await tom.publish({"x": x}, confirm=True)
                await net.kill("a")
                damaged(net.path / "a" / FILE, how, Random(seed))
                await net.start("a")
                await anna.attach()
                await tom.publish({"x": 301}, confirm=True)
                check(await drain(all, told, 301), told, range(1, 302))
            assert "broker.db is older than what a has promised" in net.log("a")

    asyncio.run(asyncio.wait_for(run(), 60))
