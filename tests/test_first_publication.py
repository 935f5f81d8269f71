"""Live brokers in processes of their own: nothing waits for tables, and nothing is lost from the first message on.

b0 --- b1 --- ... --- b9      every link takes 50 ms
"""

import asyncio
import re
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

import wayfare
from live import HERE, until
from proxy import proxy
from test_client_api import live
from test_kill import Processes
from wayfare.bench import processes
from wayfare.net.broker import BrokerHost
from wayfare.net.limits import NetLimits

README = Path(__file__).parent.parent / "README.md"
LINE = [f"b{i}" for i in range(10)]
LINK_S = 0.05


@pytest.fixture(scope="module")
def urls():
    with processes.brokers(tuple(pairwise(LINE)), heartbeat_s=2.0, delay_s=LINK_S) as running:
        yield [f"wayfare://127.0.0.1:{running[name].port}" for name in LINE]


def first_program():
    """As README.md has it."""
    text = README.read_text("utf-8")
    found = re.search(
        r"^## A first program\n.*?^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    return found[1]


def test_the_first_program_works_on_ten_brokers_with_slow_links(urls):
    """The links may not even be there yet. Its assertions are those of README.md."""
    program = first_program()
    addresses = re.findall(r'"(127\.0\.0\.1:\d+)"', program)
    anna, garage, later = addresses
    for address, url in ((anna, urls[0]), (garage, urls[9]), (later, urls[4])):
        program = program.replace(f'"{address}"', f'"{url}"')
    assert "assert asyncio.run(main())" in program and "sleep" not in program
    exec(compile(program, README, "exec"), {})


def test_a_device_that_wakes_publishes_and_sleeps_reaches_everybody(urls):
    async def main():
        async with (
            wayfare.connect(urls[9], client_id="bert") as bert,
            bert.subscribe("exists reading") as readings,
        ):
            began = time.monotonic()
            async with wayfare.connect(urls[0], client_id="device", confirm=0) as device:
                await device.advertise("exists reading")
                for reading in range(20):
                    await device.publish({"reading": reading}, confirm=True)
            took = time.monotonic() - began
            return [(await readings.get(10))["reading"] for _ in range(20)], took

    got, took = asyncio.run(main())
    assert got == [*range(20)]
    assert took < 9 * 2 * LINK_S, "the device waits for its own broker only"


# Brokers that are stopped or killed in between: a --- b --- c


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_confirmations_and_publications_survive_a_broker_that_is_killed(tmp_path, durability):
    async def main():
        net = Processes(tmp_path, durability)
        try:
            for name in ("b", "a", "c"):
                await net.start(name)
            async with (
                wayfare.connect(net.urls("a")[0], client_id="anna", confirm=30) as anna,
                wayfare.connect(net.urls("c")[0], client_id="tom", confirm=0) as tom,
            ):
                await anna.subscribe("y > 0")  # the links are there
                for x in range(1, 6):
                    await tom.advertise(f"x = {x}")
                    subscribing = asyncio.create_task(anna.subscribe(f"x = {x}").__aenter__())
                    await net.kill("b")
                    await tom.publish({"x": x, "kind": "first"}, confirm=True)
                    await net.start("b")
                    some = await subscribing
                    await tom.publish({"x": x, "kind": "later"}, confirm=True)
                    kinds = [(await some.get(20))["kind"]]
                    while kinds[-1] != "later":
                        kinds.append((await some.get(20))["kind"])
                    assert kinds in (["later"], ["first", "later"])
                assert anna.lost == 0
        finally:
            for process in net.running.values():
                process.kill()
                await process.wait()

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["memory", "os"])
def test_nothing_is_lost_of_what_is_published_before_the_first_link_begins(tmp_path, durability):
    """At a broker that is installed while the others run, after anna's subscription was confirmed."""

    async def main():
        net = Processes(tmp_path, durability)
        try:
            await net.start("a")
            async with wayfare.connect(net.urls("a")[0], client_id="anna", failover=None) as anna:
                everything = await anna.subscribe("exists x")
                await net.start("c")  # its only neighbour is not there yet
                async with wayfare.connect(net.urls("c")[0], client_id="tom", confirm=0) as tom:
                    await tom.advertise("exists x")
                    for x in range(20):
                        await tom.publish({"x": x}, confirm=True)
                will = wayfare.Will({"x": 20})
                lost = await wayfare.connect(
                    net.urls("c")[0], client_id="ann", confirm=0, will=will
                )
                lost._conversation.stop()
                await asyncio.sleep(0.2)
                if durability == "os":
                    await net.kill("c")
                    await net.start("c")
                await net.start("b")
                got = [(await everything.get(20))["x"] for _ in range(21)]
                assert got == [*range(21)]
                assert anna.lost == 0
        finally:
            for process in net.running.values():
                process.kill()
                await process.wait()

    asyncio.run(main())


@live
async def test_who_is_behind_a_first_link_that_was_given_up_is_told_and_nobody_else():
    """Porto cannot keep all that is for lisbon. Nothing of what lisbon kept is lost."""
    lost = {"anna": [], "bert": []}
    lisbon = BrokerHost("lisbon", {"porto": None})
    await lisbon.start(HERE)
    async with proxy(lisbon.address) as road:
        road.refuses = True
        limits = NetLimits(link_count=50, link_away_s=0.1)
        porto = BrokerHost("porto", {"lisbon": road.address}, net_limits=limits)
        await porto.start(HERE)
        urls = {"anna": str(porto.address), "bert": str(lisbon.address)}
        async with (
            wayfare.connect(
                urls["anna"],
                client_id="anna",
                confirm=0,
                on_lost=lambda *it: lost["anna"].append(it),
            ) as anna,
            wayfare.connect(
                urls["bert"],
                client_id="bert",
                confirm=0,
                on_lost=lambda *it: lost["bert"].append(it),
            ) as bert,
            anna.subscribe("exists y") as ys,
            bert.subscribe("exists x") as xs,
        ):
            await ys.ready(5)
            await xs.ready(5)
            await anna.advertise("exists x")
            await bert.advertise("exists y")
            for number in range(200):
                await anna.publish({"x": number}, confirm=True)
            for number in range(5):
                await bert.publish({"y": number}, confirm=True)
            assert len(porto.links["lisbon"]) == 0
            road.refuses = False
            assert [(await ys.get(10))["y"] for _ in range(5)] == [*range(5)]
            await until(lambda: lost["bert"])
            await anna.publish({"x": 200}, confirm=True)
            assert (await xs.get(10))["x"] == 200
            assert [count for count, *_ in lost["bert"]] == [0]
            assert lost["anna"] == []
        await porto.stop()
        await lisbon.stop()


def test_a_neighbour_that_is_stopped_is_named_and_confirms_when_it_is_back(tmp_path):
    async def main():
        net = Processes(tmp_path, "memory")
        try:
            for name in ("b", "a", "c"):
                await net.start(name)
            async with (
                wayfare.connect(net.urls("a")[0], client_id="anna") as anna,
                wayfare.connect(net.urls("c")[0], client_id="tom") as tom,
            ):
                await anna.subscribe("y > 0")
                await tom.advertise("exists x")
                net.running["b"].send_signal(signal.SIGSTOP)
                some = anna.subscribe("x > 0")
                began = time.monotonic()
                with pytest.raises(wayfare.NotConfirmed) as caught:
                    await some.ready(1)
                assert time.monotonic() - began < 1.5
                assert caught.value.missing == ("b",)
                net.running["b"].send_signal(signal.SIGCONT)
                await some.ready(20)
                await tom.publish({"x": 1})
                assert (await some.get(10))["x"] == 1
        finally:
            for process in net.running.values():
                process.kill()
                await process.wait()

    asyncio.run(main())
