"""Brokers in processes of their own, killed at random moments while clients move between them.

a --- b --- c      anna is subscribed, tom publishes, both move; with durability disk nothing is lost
"""

import asyncio
import socket
import sys
from contextlib import suppress
from pathlib import Path
from random import Random, randrange

import pytest

import wayfare
from wayfare.errors import CannotConnect

SCRIPT = Path(__file__).with_name("broker_process.py")
NEAR = {"a": ["b"], "b": ["a", "c"], "c": ["b"]}


def free_ports(count):
    """Below those that the system gives away: a broker that was killed wants its port back."""
    ports = set()
    while len(ports) < count:
        port = randrange(10_000, 32_768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    return sorted(ports)


PATIENT = {"timeout": 60, "failover": None}  # they wait for brokers that are down


class Processes:
    """Three brokers; a and c call b."""

    def __init__(self, path, durability):
        self.path, self.durability = path, durability
        self.ports = dict(zip(NEAR, free_ports(3), strict=True))
        self.running = {}

    async def start(self, name):
        near = [f"{one}={self.ports[one]}" if one == "b" else one for one in NEAR[name]]
        command = [str(SCRIPT), name, str(self.ports[name]), str(self.path / name), self.durability]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *near, stdout=asyncio.subprocess.PIPE
        )
        assert await process.stdout.readline() == b"ready\n"
        self.running[name] = process

    async def kill(self, name):
        process = self.running.pop(name)
        process.kill()
        await process.wait()

    def urls(self, first):
        names = [first, *(name for name in NEAR if name != first)]
        return [f"wayfare://127.0.0.1:{self.ports[name]}" for name in names]


async def rounds(path, seed, count, durability="disk"):
    random = Random(seed)
    net = Processes(path, durability)
    for name in ("b", "a", "c"):
        await net.start(name)
    told = []
    try:
        async with (
            wayfare.connect(
                net.urls("a"), client_id="anna", on_lost=lambda *it: told.append(it), **PATIENT
            ) as anna,
            wayfare.connect(net.urls("c"), client_id="tom", **PATIENT) as tom,
        ):
            await tom.advertise("x > 0")
            async with anna.subscribe("x > 0") as all:
                for number in range(count):
                    await one_round(net, random, anna, tom, number)
                got = [(await all.get(60))["x"] for _ in range(10 * count)]
        assert got == list(range(1, 10 * count + 1))
        assert told == []
    finally:
        for process in net.running.values():
            process.kill()
            await process.wait()


async def one_round(net, random, anna, tom, number):
    """Ten are published; somebody moves; somebody is killed meanwhile, and comes back."""

    async def publish():
        for x in range(10 * number + 1, 10 * number + 11):
            await tom.publish({"x": x})
            await asyncio.sleep(random.choice((0, 0.001, 0.003)))

    async def move():
        await asyncio.sleep(random.uniform(0, 0.02))
        who = anna if random.random() < 0.7 else tom
        with suppress(CannotConnect):  # that one was just killed, and it is somewhere else now
            await who.move(net.urls(random.choice([*NEAR]))[0])

    async def kill():
        await asyncio.sleep(random.uniform(0, 0.03))
        name = random.choice([*NEAR])
        await net.kill(name)
        await net.start(name)

    await asyncio.gather(publish(), move(), kill())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.timeout(300)
def test_twenty_kills_lose_nothing(tmp_path, seed):
    asyncio.run(asyncio.wait_for(rounds(tmp_path, seed, 20), 280))


def test_a_kill_loses_nothing(tmp_path):
    asyncio.run(asyncio.wait_for(rounds(tmp_path, 100, 2), 60))
