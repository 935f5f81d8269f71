"""Operating a mobility proxy: bans, stores that were rolled back, processes that did not run for a while."""

import asyncio
import shutil
import time
from datetime import UTC, datetime

import pytest

from live import HERE
from test_service_live import next_of, run
from test_service_wires import Talk
from wayfare.net import bans
from wayfare.net.bans import Bans
from wayfare.net.broker import BrokerHost
from wayfare.service import Gap, connect, library
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.adapters import adapter
from wayfare.service.buffer import DEFAULT_LIMITS
from wayfare.service.experiment import proxy
from wayfare.service.messages import SECOND_NS
from wayfare.service.nodes import free_ports
from wayfare.service.proxy import Proxy
from wayfare.service.proxy_server import Server

NOWHERE = "mqtt://127.0.0.1:9"  # no system is needed


# Bans


def test_a_ban_by_name_disconnects_a_client_that_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(bans, "WATCH_S", 0.05)
    path = tmp_path / "bans.jsonl"

    async def story():
        server = Server(NOWHERE, bans=Bans(path))
        here = await server.start()
        try:
            ann, bob = await Talk.to(here), await Talk.to(here)
            for name, talk in (("ann", ann), ("bob", bob)):
                talk.say(m.Register(name, "key", 1, (), m.Terms(standby=False)))
                assert isinstance(await talk.hear(), m.Registered)
            bans.add(path, "ann", 600, "", datetime.now(UTC).timestamp())
            assert "banned until" in (await ann.hear()).reason
            assert await ann.reader.read() == b""
            bob.say(m.Hello("bob", "key"))
            assert isinstance(await bob.hear(), m.Welcome)
            for talk in (ann, bob):
                talk.close()
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(story(), 30))


# Stores


@pytest.mark.parametrize("system", ["mqtt"])
def test_a_proxy_whose_store_was_rolled_back_reports_a_gap(overlay_of, system, word, tmp_path):
    path, old = tmp_path / "proxy.db", tmp_path / "old.db"

    async def story():
        a, b, c = overlay_of(system).addresses
        (port,) = free_ports(1)
        server = Server(b, port=port, store=path)
        where = await server.start()
        async with proxy(a) as first, proxy(c) as third, connect(f"bob{word}", first) as bob:
            ann = connect(f"ann{word}", where)
            await ann.__aenter__()
            await ann.subscribe(f"{word}/news")
            await ann.move_out()
            await server.stop()
            shutil.copy(path, old)
            server = Server(b, port=port, store=path)
            await server.start()
            for number in range(5):
                await bob.publish(f"{word}/news", b"%d" % number)
            async with asyncio.timeout(10):
                while server.arrived < 5:
                    await asyncio.sleep(0.02)
            await server.stop()
            shutil.copy(old, path)  # five publications that the system does not have any more
            server = Server(b, port=port, store=path)
            await server.start()
            await ann.move_in(third)
            (gap,) = await next_of(ann, 1)
            assert isinstance(gap, Gap)
            assert "rolled back" in gap.reason
            await ann.close()
            await server.stop()

    run(story())


# Processes that do not run


def test_a_client_that_did_not_run_gives_its_proxy_that_time(monkeypatch):
    """As after SIGSTOP: the answer is not there yet when the client wakes, and its time-out is over."""
    monkeypatch.setattr(library, "SILENT_NS", SECOND_NS // 2)

    async def story():
        broker = BrokerHost("porto", {})
        access = str(await broker.start(HERE))
        servers = [Server(access), Server(access)]
        first, second = [await one.start() for one in servers]
        try:
            async with connect("ann", first, patience=0.2) as ann:
                moving = asyncio.create_task(ann.move_in(second))
                while ann.state != "moving-in":
                    await asyncio.sleep(0)
                time.sleep(2)  # the whole process stands still
                await moving
                assert (ann.state, ann.place) == ("attached", second)
        finally:
            for one in servers:
                await one.stop()
            await broker.stop()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_proxy_that_did_not_run_gives_its_clients_that_time():
    one = Proxy("here:1", "wayfare://porto", adapter("wayfare://porto"), DEFAULT_LIMITS)
    terms = m.Terms(standby=False, lease_ns=10 * SECOND_NS)
    one.step(e.Received("#1", m.Register("ann", "key", 1, (), terms)), 0)
    one.step(e.Stalled(60 * SECOND_NS), 61 * SECOND_NS)
    one.step(e.Tick(), 61 * SECOND_NS)
    assert one.clients["ann"].state == "here"
    one.step(e.Tick(), 71 * SECOND_NS)
    assert one.clients["ann"].state == "away"
