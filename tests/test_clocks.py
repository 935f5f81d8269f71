"""Clients that begin anew with clocks that are wrong: no broker and no subscriber depends on them.

Most play in the tree of roads.py. Anna's first process is at porto, tom publishes at braga.
"""

import asyncio

import pytest

import wayfare
from roads import assert_tidy, homes, lost, network, publish, xs
from test_kill import Processes
from wayfare.core.border import ROOM
from wayfare.core.broker import CLOCK_SLACK_NS, LATER, NO_ROOM, Broker
from wayfare.core.client import Client
from wayfare.core.effects import Close, Forgotten, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Announce, Attach, Began, Reply, Resend, Update, Welcome
from wayfare.core.relocation import BEGAN_ANEW, EXCEED
from wayfare.errors import OutboxFull
from wayfare.net import local_broker

REFUSED = BEGAN_ANEW.format("anna")


def begin(net, broker, clock, life, *, subscribed="x > 0"):
    """Another process of anna's, which counts from there, is on its way to this broker; returns the one before."""
    old, new = net.clients["anna"], Client("anna")
    new.begin(clock, life)
    new.subscribe(Filter.parse(subscribed))
    net.clients["anna"] = new
    net.attach("anna", broker)
    return old


def forgotten():
    """No broker remembers the first process any more, but porto has its session."""
    net = network()
    begin(net, "porto", 5_000, 1)
    net.settle()
    for broker in net.brokers.values():
        broker.border.tombstones.clear()
    return net


def cut_off():
    """The next process is at faro, and porto, which knows better, cannot say so."""
    net = forgotten()
    net.stop("porto", "lisbon")
    begin(net, "faro", 7, 2)
    net.settle()
    return net


def assert_got_one(net):
    """Anna exceeds the first process, which is refused, and gets what is published."""
    assert Close("anna/5001", REFUSED) in net.closed
    assert net.got("anna") == xs(1)
    assert lost(net) == []
    assert_tidy(net)


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home", "naive"])
@pytest.mark.parametrize("broker", ["porto", "faro"])
def test_a_process_whose_clock_is_behind_begins_all_the_same(relocation, broker):
    net = network(relocation=relocation)
    begin(net, "porto", 5_000, 1)
    net.settle()
    begin(net, broker, 7, 2)
    net.settle()
    assert [where for where, _ in homes(net)] == [broker]
    assert net.clients["anna"].epoch == 5_002 + ROOM
    publish(net, 1)
    assert_got_one(net)


def test_a_broker_that_does_not_know_is_told_by_those_that_do():
    """Faro has forgotten the first process, or never heard of it; porto has its session."""
    net = forgotten()
    begin(net, "faro", 7, 2)
    net.stop("lisbon", "faro")
    net.settle()
    assert [epoch for _, epoch in homes(net)] == [5_001, 8]
    publish(net, 1)
    net.go()
    assert net.closed[-1].again
    net.attach("anna", "faro")  # the connection was closed, and the next one goes on
    net.settle()
    assert homes(net) == [("faro", 5_002 + ROOM)]
    assert_got_one(net)


def test_so_it_is_when_it_has_moved_meanwhile():
    net = cut_off()
    net.move("anna", "braga")
    net.cut("anna")
    net.go()
    (session,) = net.brokers["braga"].border.of("anna")
    assert session.above == 5_001 + ROOM
    net.attach("anna", "braga")
    net.settle()
    assert homes(net) == [("braga", 5_002 + ROOM)]
    assert_tidy(net)


def test_so_it_is_when_its_session_has_ended_meanwhile():
    """Its broker had no room for it, or it was away for too long; and it has not heard what to exceed."""
    net = cut_off()
    net.cut("anna")
    net.go()
    net._event("faro", Forgotten("anna", "no room"))
    net.attach("anna", "faro")
    net.settle()
    assert homes(net) == [("faro", 5_002 + ROOM)]
    assert_tidy(net)


def test_so_it_is_when_its_first_attachment_never_arrived():
    """It began at epoch 8, and the first attachment that a broker heard of was the next one."""
    here = Broker("porto", ("lisbon",))
    attach = Attach("anna", 9, 0, previous=(("faro", 8),), anew=8, life=2)
    here.step(Received("x", attach), 0)
    above = Reply("porto", "anna", 8, False, above=5_000)
    effects = here.step(Received("lisbon", Update(errands=(above,))), 1)
    assert Send("x", Resend(9, 5_000)) in effects
    assert Close("x", EXCEED.format("anna"), again=True) in effects


def test_who_is_refused_for_lack_of_room_has_not_begun():
    """No session is there that could be told which number to exceed."""
    here = Broker("porto", ("lisbon",), limits=Limits(sessions=1))
    here.step(Received("y", Attach("bert", 1, 0)), 0)
    effects = here.step(Received("x", Attach("anna", 8, 0, anew=8, life=2)), 0)
    assert effects == [Close("x", NO_ROOM.format("porto"), again=True)]
    assert here.border.begun() == []


def test_the_earlier_process_that_only_reconnects_stays_refused():
    net = network()
    begin(net, "porto", 5_000, 1)
    net.settle()
    old = begin(net, "faro", 7, 2)
    net.settle()
    for epoch in (5_001, 9_000_000):  # whatever it counts
        old.epoch = epoch
        attach = next(one.message for one in old.attach("braga", "x") if isinstance(one, Send))
        assert net.brokers["braga"].step(Received("x", attach), 0) == [Close("x", REFUSED)]
    assert homes(net) == [("faro", 5_002 + ROOM)]


def test_where_nobody_remembers_the_clock_of_the_broker_counts():
    """Subscribers may still know what an earlier process has published."""
    now = 10**15
    here = Broker("porto")
    behind = Attach("anna", 8, 0, anew=8, life=1)
    assert here.step(Received("x", behind), now) == [Send("x", Resend(8, now // 1_000))]
    close = now // 1_000 - CLOCK_SLACK_NS // 1_000 + 1
    effects = here.step(Received("x", Attach("anna", close, 0, anew=close, life=1)), now)
    assert Send("x", Welcome(close, 0)) in effects


def test_who_is_told_and_says_nothing_is_closed():
    here = Broker("porto")
    here.step(Received("lisbon", Attach("anna", 9, 0, anew=9, life=1)), 0)
    assert here.step(Received("x", Attach("anna", 3, 0, anew=3, life=2)), 0) == [
        Send("x", Resend(3, 9 + ROOM))
    ]
    late = here.border.limits.greeting_ns
    close = Close("x", "it did not attach again within 10 s", again=True)
    assert here.step(Tick(), late) == [close]


def test_publications_are_numbered_above_those_of_earlier_processes():
    net = network()
    net.subscribe("tom", "y > 0")
    begin(net, "porto", 5_000, 1)
    net.settle()
    net.advertise("anna", "y > 0")
    net.settle()
    net.publish("anna", y=1)
    begin(net, "faro", 7, 2)
    net.advertise("anna", "y > 0")
    with pytest.raises(OutboxFull, match="before its first Welcome"):
        net.publish("anna", y=2)
    net.settle()
    net.publish("anna", y=3)
    net.settle()
    assert net.got("tom") == [{"y": 1}, {"y": 3}]


def test_what_was_published_before_it_knew_is_in_doubt():
    """Others may take it for a repetition: whoever gets what follows is notified."""
    net = network()
    net.subscribe("tom", "y > 0")
    begin(net, "porto", 5_000, 1)
    net.settle()
    net.advertise("anna", "y > 0")
    net.publish("anna", y=1)
    net.settle()
    for broker in net.brokers.values():
        broker.border.tombstones.clear()
    net.stop("porto", "lisbon")
    begin(net, "faro", 7, 2)
    net.settle()
    net.advertise("anna", "y > 0")
    net.publish("anna", y=2)  # below what tom has of the first process
    net.settle()
    net.go()
    net.attach("anna", "faro")
    net.settle()
    net.publish("anna", y=3)
    net.settle()
    assert net.got("tom") == [{"y": 1}, {"y": 3}]
    assert [one.count for one in lost(net, "tom")] == [0]


def test_a_refusal_that_remains_says_why_and_what_to_do():
    """The store of this client is an old copy, and its clock is behind."""
    here = Broker("porto")
    here.step(Received("x", Attach("anna", 9, 0, welcomed=True)), 0)
    (close,) = here.step(Received("y", Attach("anna", 3, 0, welcomed=True)), 0)
    assert close == Close("y", LATER.format("anna"))
    assert "set the clock" in close.reason and "stop the other process" in close.reason


def test_a_broker_that_was_saved_remembers_lives():
    before = Broker("porto", ["lisbon"])
    for life in (1, 2):
        before.step(Received("lisbon", Announce((), (Began("anna", 7 + life, "faro", life),))), 0)
    after = Broker("porto", ["lisbon"])
    after.load(before.save())
    again = Attach("anna", 99, 0, previous=(("faro", 8),), welcomed=True, life=1)
    assert after.step(Received("late", again), 1) == [Close("late", REFUSED)]


async def restart_behind(path, monkeypatch):
    net = Processes(path, "os")
    for name in ("b", "a", "c"):
        await net.start(name)
    told = []
    try:
        async with wayfare.connect(net.urls("c"), client_id="tom") as tom:
            seen = await tom.subscribe("x > 0")
            first = await wayfare.connect(net.urls("a"), client_id="device")
            await first.advertise("x > 0")
            await first.publish({"x": 1}, confirm=True)
            first._conversation.stop()  # killed: nobody says goodbye
            real = local_broker.clock
            monkeypatch.setattr(local_broker, "clock", lambda: real() - 600_000_000)
            for number, at in ((2, "a"), (3, "c")):
                urls = net.urls(at)[:1]
                on_lost = lambda *it: told.append(it)  # noqa: E731
                async with wayfare.connect(urls, client_id="device", on_lost=on_lost) as device:
                    mine = await device.subscribe("x > 0")
                    await device.advertise("x > 0")
                    await device.publish({"x": number}, confirm=True)
                    assert (await mine.get(5))["x"] == number
            assert [(await seen.get(5))["x"] for _ in range(3)] == [1, 2, 3]
            assert told == []
    finally:
        for process in net.running.values():
            process.kill()
            await process.wait()


def test_a_live_device_without_a_store_restarts_ten_minutes_behind(tmp_path, monkeypatch):
    asyncio.run(asyncio.wait_for(restart_behind(tmp_path, monkeypatch), 20))
