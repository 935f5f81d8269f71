"""Brokers that do not run for a while: nobody is judged by what could not be read meanwhile."""

import asyncio
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import wayfare
from live import tree
from test_client_api import live
from wayfare.core.broker import Broker
from wayfare.core.effects import Close, LinkUp, Posted, Received, Send, Stalled, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import (
    Announce,
    Attach,
    BrokerId,
    ClientId,
    Followed,
    LinkId,
    Resend,
    Shadow,
    State,
)
from wayfare.core.places import of_edges
from wayfare.core.profiles import digest
from wayfare.core.virtual import Ahead
from wayfare.net import stalls
from wayfare.net.broker import BrokerHost
from wayfare.net.connection import Connection
from wayfare.net.journal import recover
from wayfare.net.limits import NetLimits
from wayfare.net.links import LIVES
from wayfare.net.stalls import Stalls
from wayfare.net.store import Stall, Store

SCRIPT = Path(__file__).with_name("broker_process.py")
ANSWER_S = 2
SECOND_NS = 10**9


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Process:
    """A broker in a process of its own, which can be stopped and continued."""

    @classmethod
    async def start(cls, name, path, port, *neighbours):
        one = cls()
        one.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(str(SCRIPT), name, str(port), str(path / name), "os", *neighbours),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "ANSWER_S": str(ANSWER_S)},
        )
        assert await one.process.stdout.readline() == b"ready\n"
        return one

    def signal(self, number):
        self.process.send_signal(number)

    async def end(self):
        self.process.kill()
        await self.process.wait()


@pytest.mark.timeout(90)
def test_brokers_on_a_machine_that_is_suspended_give_nobody_up(tmp_path):
    """Anna's session at b waits for a, and both are stopped for twice as long as `answer`."""
    asyncio.run(asyncio.wait_for(suspend_both(tmp_path, free_port(), free_port()), 80))


async def suspend_both(path, port_a, port_b):
    lost = []
    b = await Process.start("b", path, port_b, "a")
    a = await Process.start("a", path, port_a, f"b={port_b}")
    try:
        at_a, at_b = (f"wayfare://127.0.0.1:{port}" for port in (port_a, port_b))
        async with (
            wayfare.connect(at_b, client_id="tom") as tom,
            wayfare.connect(at_a, client_id="anna", on_lost=lambda *it: lost.append(it)) as anna,
        ):
            await tom.advertise("x > 0")
            async with anna.subscribe("x > 0") as all:
                await connected(tom, all)
                a.signal(signal.SIGSTOP)
                moving = asyncio.create_task(anna.move(at_b))
                await asyncio.sleep(0.4)
                await tom.publish({"x": 2})
                b.signal(signal.SIGSTOP)
                await asyncio.sleep(2 * ANSWER_S)
                b.signal(signal.SIGCONT)
                await asyncio.sleep(0.3)
                a.signal(signal.SIGCONT)
                await moving
                await tom.publish({"x": 3})
                got = [1]
                while got[-1] != 3:
                    got.append((await all.get(20))["x"])
        assert ([x for x in got if x > 1], lost) == ([2, 3], [])
    finally:
        for one in (a, b):
            one.signal(signal.SIGCONT)
            await one.end()


async def connected(publisher, subscription):
    """Publish until something arrives: then the link is up, and knows the subscription."""
    while True:
        await publisher.publish({"x": 1})
        with suppress(TimeoutError):
            await subscription.get(0.5)
            return


# What a broker does with it


def waiting_broker():
    """Anna's session at porto waits for lisbon until second 30."""
    broker = Broker("porto", ["lisbon"], limits=Limits(answer_ns=30 * SECOND_NS))
    broker.step(LinkUp(LinkId("lisbon")), 0)
    attach = Attach(
        ClientId("anna"),
        2,
        0,
        (Filter.parse("x > 0"),),
        previous=((broker.neighbours[0], 1),),
        welcomed=True,
    )
    broker.step(Received(LinkId("anna#1"), attach), 0)
    return broker


def is_waiting(broker):
    [session] = broker.border.of(ClientId("anna"))
    return session.wait is not None


def test_a_stall_extends_the_wait_for_an_old_broker():
    broker = waiting_broker()
    broker.step(Stalled(40 * SECOND_NS), 50 * SECOND_NS)
    assert broker.step(Tick(), 50 * SECOND_NS) == []
    assert is_waiting(broker)
    assert broker.next_deadline() == 70 * SECOND_NS
    assert broker.step(Tick(), 70 * SECOND_NS) != []
    assert not is_waiting(broker)


def test_who_came_after_a_stall_does_not_wait_longer_for_it():
    broker = waiting_broker()
    broker.step(Stalled(40 * SECOND_NS), SECOND_NS)
    broker.step(Tick(), 31 * SECOND_NS)
    assert not is_waiting(broker)


def test_a_stall_is_played_again_from_the_journal(tmp_path):
    broker = waiting_broker()
    store = Store(tmp_path, "os", "porto")
    store.append(Stall(50 * SECOND_NS, "", 40 * SECOND_NS))
    store.commit()
    recover(store, broker, {})
    broker.step(Tick(), 50 * SECOND_NS)
    store.close()
    assert is_waiting(broker)


FILTER = Filter.parse("x > 0")
LIMITS = Limits(
    answer_ns=30 * SECOND_NS,
    greeting_ns=30 * SECOND_NS,
    lease_ns=30 * SECOND_NS,
    recall_ns=30 * SECOND_NS,
)


def asking_broker():
    """Porto waits until second 30 for anna's filters, which lisbon knows."""
    broker = Broker("porto", ["lisbon"], limits=LIMITS)
    broker.step(LinkUp(LinkId("lisbon")), 0)
    broker.step(Received(LinkId("lisbon"), Announce((BrokerId("lisbon"),))), 0)
    attach = Attach(
        ClientId("anna"),
        2,
        0,
        previous=((BrokerId("lisbon"), 1),),
        welcomed=True,
        digest=digest([FILTER]),
    )
    broker.step(Received(LinkId("anna#1"), attach), 0)
    return broker


def kinds(effects):
    """What anna is sent, or that her connection is closed."""
    return [
        type(one.message) if isinstance(one, Send) else type(one)
        for one in effects
        if isinstance(one, Send | Close) and one.link == "anna#1"
    ]


def test_a_stall_extends_the_wait_for_a_profile():
    broker = asking_broker()
    broker.step(Stalled(40 * SECOND_NS), 50 * SECOND_NS)
    assert kinds(broker.step(Tick(), 50 * SECOND_NS)) == []
    assert kinds(broker.step(Tick(), 70 * SECOND_NS)) == [Resend]


def test_a_stall_extends_the_time_that_a_client_has_to_send_its_filters():
    broker = asking_broker()
    assert kinds(broker.step(Tick(), 30 * SECOND_NS)) == [Resend]
    broker.step(Stalled(40 * SECOND_NS), 80 * SECOND_NS)
    assert kinds(broker.step(Tick(), 80 * SECOND_NS)) == []
    assert kinds(broker.step(Tick(), 100 * SECOND_NS)) == [Close]


FOLLOWED = Followed((("location in myloc", None),), State("porto"), (0, 0))
PLACES = of_edges([("porto", "lisbon")])


def broker_ahead():
    return Broker("porto", ["lisbon"], limits=LIMITS, ahead=Ahead(PLACES, PLACES.next_brokers))


def test_a_stall_extends_the_lease_of_a_virtual_client():
    broker = broker_ahead()
    shadow = Shadow(BrokerId("lisbon"), ClientId("anna"), 1, 0, LIMITS.lease_ns, FOLLOWED)
    broker.step(Posted(BrokerId("lisbon"), shadow), 0)
    broker.step(Stalled(40 * SECOND_NS), 50 * SECOND_NS)
    broker.step(Tick(), 50 * SECOND_NS)
    assert "anna" in broker.replicator.virtual
    broker.step(Tick(), 70 * SECOND_NS)
    assert "anna" not in broker.replicator.virtual


def test_a_stall_extends_the_wait_for_what_another_broker_kept():
    broker = broker_ahead()
    attach = Attach(
        ClientId("anna"),
        2,
        0,
        previous=((BrokerId("evora"), 1),),
        welcomed=True,
        followed=FOLLOWED,
    )
    broker.step(Received(LinkId("anna#1"), attach), 0)
    broker.step(Stalled(40 * SECOND_NS), 50 * SECOND_NS)
    broker.step(Tick(), 50 * SECOND_NS)
    assert broker.replicator.virtual[ClientId("anna")].recalling == 70 * SECOND_NS
    broker.step(Tick(), 70 * SECOND_NS)
    assert broker.replicator.virtual[ClientId("anna")].recalling is None


def run_host(monkeypatch, check, **limits):
    """Check a broker's host, which does not listen; all clocks stand still unless they are turned."""
    clock = [0.0]

    async def main():
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: clock[0])
        monkeypatch.setattr(stalls, "uptime_ns", lambda: int(clock[0] * SECOND_NS))
        monkeypatch.setattr("wayfare.net.links.time", SimpleNamespace(monotonic=loop.time))
        check(BrokerHost("porto", {"lisbon": None}, net_limits=NetLimits(**limits)), clock)
        monkeypatch.undo()

    asyncio.run(main())


def test_a_stall_extends_the_time_that_a_connection_has_to_greet(monkeypatch):
    def check(host, clock):
        silent = Connection(host, "porto", stranger=True)
        host.on_connected(silent)
        clock[0] = 40.0
        host._mind_stall()
        host._strangers.refuse_late()
        assert not silent.closing
        clock[0] = 71.0
        host._strangers.refuse_late()
        assert silent.closing

    run_host(monkeypatch, check, greeting_s=30.0)


def test_a_stall_extends_the_time_that_a_neighbour_has_to_come_back(monkeypatch):
    def check(host, clock):
        link = host.links[BrokerId("lisbon")]
        link.begin(LIVES)
        link.send(b"1")
        link.send(b"2")
        clock[0] = 40.0
        host._mind_stall()
        assert not link.is_hopeless()
        clock[0] = 71.0
        assert link.is_hopeless()

    run_host(monkeypatch, check, link_count=1, link_away_s=30.0)


# What a client does with it


@live
async def test_a_client_that_did_not_run_gives_the_broker_its_time_to_answer():
    async with tree("porto-lisbon") as net:
        addresses = [net.url("porto"), net.url("lisbon"), *(f"127.0.0.1:{n}" for n in (1, 2, 3))]
        async with wayfare.connect(addresses, client_id="anna", timeout=6.0) as anna:
            moving = asyncio.create_task(anna.move(net.url("lisbon")))
            await asyncio.sleep(0)
            while anna._conversation.wire is None:  # until it calls
                await asyncio.sleep(0)
            time.sleep(1.5)  # longer than the part of its time that one address has
            await moving
            assert anna.broker == "lisbon"


def test_time_without_a_stall_is_not_extended():
    async def wait():
        with pytest.raises(TimeoutError):
            async with stalls.running_timeout(0.7):
                await asyncio.sleep(60)

    asyncio.run(asyncio.wait_for(wait(), 30))


LIMIT_S = 0.2


async def wait_through_stall(begins_s, answered):
    """Wait `LIMIT_S` for an answer that arrives right after the process did not run for a while.

    The loop runs timers in the order of their due times, however late it is, so a busy machine changes nothing.
    """
    loop, answer = asyncio.get_running_loop(), asyncio.Event()

    def stall():
        time.sleep(1.25 * LIMIT_S)
        if answered:
            loop.call_later(LIMIT_S / 10, answer.set)

    loop.call_later(begins_s, stall)
    async with stalls.running_timeout(LIMIT_S):
        await answer.wait()


@pytest.mark.parametrize("begins", [0, 0.3, 0.6, 0.9])
def test_a_stall_extends_a_timeout_whenever_the_stall_begins(monkeypatch, begins):
    monkeypatch.setattr(stalls, "WATCH_S", LIMIT_S / 2)
    monkeypatch.setattr(stalls, "STALL_S", LIMIT_S)
    asyncio.run(asyncio.wait_for(wait_through_stall(begins * LIMIT_S, True), 30))


def test_an_extended_timeout_still_expires(monkeypatch):
    monkeypatch.setattr(stalls, "WATCH_S", LIMIT_S / 2)
    monkeypatch.setattr(stalls, "STALL_S", LIMIT_S)

    async def wait():
        with pytest.raises(TimeoutError):
            await wait_through_stall(0.9 * LIMIT_S, False)

    asyncio.run(asyncio.wait_for(wait(), 30))


# How it is noticed


def test_a_loop_that_comes_by_in_time_has_not_stalled(monkeypatch):
    clock = [0]
    monkeypatch.setattr(stalls, "uptime_ns", lambda: clock[0])
    watched = Stalls()
    for passed, noticed in ((SECOND_NS // 2, 0), (SECOND_NS, 0), (5 * SECOND_NS, 5), (1, 0)):
        clock[0] += passed
        assert watched.come_by() == noticed * SECOND_NS
