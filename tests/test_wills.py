"""Last wills: published once, if and only if a client is gone for longer than the delay, and not because it moved."""

import asyncio
import os
import signal
import sys

import pytest
from msgspec.structs import replace

import wayfare
from live import tree
from test_bursts import chain
from test_kill import Processes
from test_net import live
from wayfare.core import messages as m
from wayfare.core.border import OVERTAKEN, Border
from wayfare.core.broker import Broker
from wayfare.core.codec import decode, encode
from wayfare.core.effects import (
    Confined,
    Forgotten,
    Granted,
    LinkDown,
    LinkState,
    LinkUp,
    Received,
    Send,
    Stalled,
    Tick,
    WillPublished,
)
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.core.history import Limits
from wayfare.core.messages import Notification, Retain, Will
from wayfare.core.wills import due_at, offer_of
from wayfare.errors import CodecError, InvalidNotification, UsageError
from wayfare.net.status import status_of
from wayfare.sim import World, check
from wayfare.sim.faults import Crash, Cut, Faults, Stall
from wayfare.sim.reach import reach
from wayfare.sim.wills import check_wills

LINE = [("porto", "lisbon"), ("lisbon", "faro"), ("lisbon", "braga")]
MS = 1_000_000
GONE = {"device": "d7", "state": "gone"}
WILL = Will(GONE, b"bye", 1_000 * MS)


def network(relocation="handoff", will=WILL, **limits):
    world = World(1, limits=Limits(**limits), relocation=relocation)
    world.add_brokers(LINE)
    bert = world.add_client("bert", "faro")
    bert.subscribe("exists state")
    device = world.add_client("device", "porto", will=will)
    world.run_until(world.now + 500 * MS)
    return world, bert, device


def wait(world, ms):
    world.run_until(world.now + ms * MS)


def got(client):
    return [
        (one.notification.publisher, one.notification.number, one.notification.attributes)
        for one in client.received
    ]


def published(world):
    return [event for event in world.events if event.reason == "will"]


# In the simulator


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home"])
def test_who_vanishes_has_its_will_published_once_after_the_delay(relocation):
    world, bert, device = network(relocation)
    device.disconnect()
    wait(world, 950)
    assert got(bert) == []
    wait(world, 3_000)
    assert got(bert) == [("device (will)", 1, GONE)]
    assert bert.received[0].notification.payload == b"bye"
    device.attach("braga")
    wait(world, 3_000)
    device.disconnect()
    wait(world, 3_000)
    assert [number for _, number, _ in got(bert)] == [1, 2]  # one for each absence
    device.attach()
    world.settle()
    assert check(world).violations == ()


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home", "naive"])
def test_who_moves_or_is_back_in_time_has_none(relocation):
    world, bert, device = network(relocation)
    for broker in ("braga", "faro", "porto", "porto"):
        device.disconnect()
        wait(world, 500)
        device.attach(broker)
        wait(world, 2_000)
    assert got(bert) == []
    assert check(world).violations == ()


@pytest.mark.parametrize("relocation", ["handoff", "junction", "home"])
def test_a_client_that_says_that_it_moves_has_time_for_that_however_short_the_delay_is(relocation):
    will = Will(GONE, b"bye", 0)
    world, bert, device = network(relocation, will=will, greeting_ns=2_000 * MS)
    for broker in ("braga", "faro", "porto"):
        device.detach(moves=True)
        wait(world, 1_500)
        device.attach(broker)
        wait(world, 3_000)
    assert got(bert) == []
    device.detach(moves=True)  # and dies on its way
    wait(world, 1_900)
    assert got(bert) == []
    wait(world, 500)
    assert len(got(bert)) == 1
    device.attach()
    world.settle()
    assert check(world).violations == ()


def test_a_client_that_moves_has_none_because_its_old_broker_is_suspended():
    world, bert, device = network(will=Will(GONE, b"bye", 0), greeting_ns=2_000 * MS)
    device.detach(moves=True)
    wait(world, 100)
    world.stall(Stall("porto", world.now, 5_000 * MS))
    wait(world, 4_900)
    device.attach("braga")
    wait(world, 3_000)
    assert got(bert) == []
    assert check(world).violations == ()


def test_a_client_whose_goodbye_is_lost_is_gone_as_if_it_did_not_move():
    world, bert, device = network(will=Will(GONE, b"bye", 500 * MS), greeting_ns=2_000 * MS)
    device.detach(moves=True)
    world.crash(Crash("porto", world.now, 1_000 * MS))  # before it has arrived
    wait(world, 2_900)  # porto may not have heard of it before
    assert got(bert) == []
    wait(world, 500)
    assert len(got(bert)) == 1
    device.attach("braga")
    world.settle()
    assert check(world).violations == ()


def test_who_leaves_for_good_has_none_and_who_only_goes_away_has_one():
    world, bert, device = network()
    device.detach(leave=True)
    wait(world, 3_000)
    assert got(bert) == []
    device.attach()
    wait(world, 500)
    device.detach()
    wait(world, 3_000)
    assert len(got(bert)) == 1
    device.attach()
    world.settle()
    assert check(world).violations == ()


def test_a_session_that_expires_before_the_delay_is_published_for_at_its_end():
    world = World(1)
    world.add_brokers(LINE)
    bert = world.add_client("bert", "faro")
    bert.subscribe("exists state")
    world.settle()
    device = world.add_client("device", "porto", expires_ns=300 * MS, will=WILL)
    wait(world, 500)
    device.disconnect()
    wait(world, 500)
    assert len(got(bert)) == 1
    device.attach()
    world.settle()
    assert check(world).violations == ()


def test_a_will_may_be_retained():
    world, _, device = network(will=replace(WILL, retain=Retain(("device",))))
    device.disconnect()
    wait(world, 3_000)
    anna = world.add_client("anna", "braga")
    anna.subscribe("device = 'd7'")
    wait(world, 500)
    assert [(one.ask > 0, one.notification.attributes) for one in anna.received] == [(True, GONE)]
    device.attach()
    world.settle()
    assert check(world).violations == ()


def test_a_client_that_moves_on_while_its_session_is_on_its_way_has_none():
    world, bert, device = network(will=replace(WILL, delay_ns=0))
    device.attach("braga")  # at once, beside a connection that looks alive
    wait(world, 15)
    device.attach("faro")
    wait(world, 3_000)
    assert got(bert) == []
    device.disconnect()
    wait(world, 3_000)
    assert len(got(bert)) == 1
    device.attach()
    world.settle()
    assert check(world).violations == ()


def test_the_oracle_finds_what_is_wrong():
    world, _, device = network()
    device.disconnect()
    wait(world, 3_000)
    (event,) = published(world)
    device.attach()
    world.settle()
    events = world.events

    def rules(changed):
        world.events = changed
        return [one.what for one in check_wills(world, reach(world))]

    without = [one for one in events if one is not event]
    assert rules(events) == []
    assert "was not published" in rules(without)[0]
    assert "twice" in rules([*events, event])[0]
    event.time_ns -= 500 * MS
    assert "gone at" in rules(events)[0]
    event.time_ns += 10_000 * MS
    assert "back at" in rules(events)[0]


@pytest.mark.parametrize("waits", [True, False])
def test_the_oracle_knows_who_has_failed_over(monkeypatch, waits):
    if not waits:
        monkeypatch.setattr(Border, "will_due_at", lambda _, session: due_at(session))
    world, bert, device = network()
    world.plan(Faults(crashes=(Crash("porto", world.now, 500 * MS),)))
    wait(world, 1)
    world.cut(Cut("porto", "lisbon", world.now, 3_000 * MS))
    device.attach("faro")
    wait(world, 10_000)
    world.settle()
    found = [one.what for one in check_wills(world, reach(world))]
    assert [one.partition(", but ")[2] for one in found] == (
        [] if waits else ["it was back at 501000000, behind a link that was down"]
    )
    assert [number for _, number, _ in got(bert)] == ([] if waits else [1])


# One broker


def attached(will=WILL, client="d", **options):
    broker = Broker("porto", **options)
    offered = (offer_of(GONE),)
    broker.step(Received("a", m.Attach(client, 1, 0, (), offered, will=will)), 0)
    return broker


def wills(effects):
    return [one for one in effects if isinstance(one, WillPublished)]


FIRED = WillPublished("d", Notification("d (will)", 1, GONE, b"bye"), None)


def test_a_will_survives_its_broker():
    broker = attached()
    broker.step(LinkDown("a"), 10 * MS)
    again = Broker("porto")
    again.load(broker.save())
    assert again.save() == broker.save()
    assert again.next_deadline() == 1_010 * MS
    assert wills(again.step(Tick(), 1_009 * MS)) == []
    assert wills(again.step(Tick(), 1_010 * MS)) == [FIRED]
    assert wills(again.step(Tick(), 9_999 * MS)) == []
    third = Broker("porto")
    third.load(again.save())
    assert wills(third.step(Tick(), 9_999 * MS)) == []  # it was published


def test_a_broker_that_could_not_listen_waits_longer():
    broker = attached()
    broker.step(LinkDown("a"), 10 * MS)
    broker.step(Stalled(700 * MS), 900 * MS)
    assert wills(broker.step(Tick(), 1_800 * MS)) == []
    assert wills(broker.step(Tick(), 10_899 * MS)) == []  # who has moved may not be heard of yet
    assert wills(broker.step(Tick(), 10_900 * MS)) == [FIRED]


def test_a_client_that_is_back_after_a_mere_restart_has_none_without_any_delay():
    broker = Broker("porto")
    broker.load(attached(Will(GONE, b"", 0)).save())
    broker.step(Stalled(300 * MS), 1_000 * MS)
    assert wills(broker.step(LinkDown("a"), 1_000 * MS)) == []
    assert wills(broker.step(Tick(), 1_001 * MS)) == []
    attach = m.Attach("d", 2, 0, (), (offer_of(GONE),), (("porto", 1),), welcomed=True, will=WILL)
    broker.step(Received("b", attach), 2_000 * MS)
    assert wills(broker.step(Tick(), 60_000 * MS)) == []


def cut_off(**limits):
    broker = attached(neighbours=("lisbon",), limits=Limits(**limits))
    broker.step(LinkState("lisbon", up=False), 0)  # as a host says at its start
    broker.step(LinkUp("lisbon"), 1)
    broker.step(LinkState("lisbon", up=False), 5 * MS)
    broker.step(LinkDown("a"), 10 * MS)
    assert wills(broker.step(Tick(), 1_010 * MS)) == []
    again = Broker("porto", ("lisbon",), limits=Limits(**limits))
    again.load(broker.save())
    assert again.save() == broker.save()
    return again


def test_a_broker_that_is_cut_off_waits_until_it_may_have_heard_of_the_client():
    broker = cut_off(greeting_ns=3_000 * MS)
    assert wills(broker.step(Tick(), 5_000 * MS)) == []
    broker.step(LinkState("lisbon", up=True), 6_000 * MS)
    assert wills(broker.step(Tick(), 8_999 * MS)) == []
    assert broker.next_deadline() == 9_000 * MS
    assert wills(broker.step(Tick(), 9_000 * MS)) == [FIRED]


def test_a_broker_that_stays_cut_off_waits_no_longer_than_others_wait_for_it():
    broker = cut_off(answer_ns=20_000 * MS)
    assert wills(broker.step(Tick(), 21_009 * MS)) == []
    assert wills(broker.step(Tick(), 21_010 * MS)) == [FIRED]


def test_a_neighbour_that_was_never_there_hides_nobody():
    broker = attached(neighbours=("lisbon",))
    broker.step(LinkState("lisbon", up=False), 0)
    broker.step(LinkDown("a"), 10 * MS)
    assert wills(broker.step(Tick(), 1_010 * MS)) == [FIRED]


def test_an_operator_who_removes_a_session_has_its_will_published():
    broker = attached()
    assert wills(broker.step(Forgotten("d", "removed"), 5)) == [FIRED]


@pytest.mark.parametrize("retain", [None, Retain(("device",))], ids=["passing", "retained"])
@pytest.mark.parametrize("gives_up", [False, True], ids=["removed", "given-up"])
def test_a_will_that_may_overtake_an_earlier_one_is_uncertain(gives_up, retain):
    """The old broker has not answered: it may have published a will of the client that is still on its way."""
    broker = Broker("porto", ("lisbon",))
    broker.step(Received("lisbon", m.Announce(("lisbon",))), 0)
    broker.step(Received("b", m.Attach("bert", 1, 0, (Filter.parse("exists state"),))), 0)
    will = replace(WILL, retain=retain)
    attach = m.Attach("d", 2, 0, (), (offer_of(GONE),), (("lisbon", 1),), welcomed=True, will=will)
    broker.step(Received("a", attach), 0)
    if gives_up:
        broker.step(Tick(), Limits().answer_ns)
        broker.step(LinkDown("a"), Limits().answer_ns)
        effects = broker.step(Tick(), Limits().answer_ns + will.delay_ns)
    else:
        effects = broker.step(Forgotten("d", "removed"), 5)
    sent = [one.message for one in effects if isinstance(one, Send)]
    (to_lisbon,) = [one for one in sent if isinstance(one, m.Uncertain | m.Retained)]
    assert (to_lisbon.notification.number, to_lisbon.since) == (2, 2)
    gap, deliver = [one for one in sent if isinstance(one, m.Gap | m.Deliver)]
    assert (gap.reason, deliver.notification.number) == (OVERTAKEN, 2)


def test_who_may_not_publish_it_is_refused_and_loses_it_when_the_rules_change():
    allowed = Grants("d", publish=(Filter.parse("device = 'd7'"),), account="d")
    denied = Grants("d", publish=(Filter.parse("device = 'd8'"),), account="d")
    broker = Broker("porto")
    broker.step(Granted("a", denied), 0)
    attach = m.Attach("d", 1, 0, (), (offer_of(GONE),), will=WILL)
    (closed, *_) = broker.step(Received("a", attach), 0)
    assert closed.denied == "attach"
    assert "d may not publish a notification with device, state" in closed.reason
    broker = Broker("porto")
    broker.step(Granted("a", allowed), 0)
    broker.step(Received("a", attach), 0)
    broker.step(Confined("d", denied), 1)
    broker.step(LinkDown("a"), 2)
    assert wills(broker.step(Tick(), 5_000 * MS)) == []


@pytest.mark.parametrize(
    ("client", "will", "why"),
    [
        ("d (will)", None, "a name that only wills have"),
        ("d", Will({}), "at least one attribute"),
        ("d", Will(GONE, bytes(65_536)), "at most 65536 bytes"),
        ("d" * 250, WILL, "a name of at most 249 characters"),
        ("d", Will(GONE, retain=Retain(("road",))), "no such attribute"),
    ],
    ids=["name", "empty", "long", "long-name", "retain"],
)
def test_wills_that_make_no_sense_do_not_come_in(client, will, why):
    with pytest.raises(CodecError, match=why):
        decode(encode(m.Attach(client, 1, 0, will=will))[4:])


# Live


@live
async def test_live():
    will = wayfare.Will(GONE, "bye", delay=0.1, retain="device")
    async with (
        tree("porto-lisbon", "faro-lisbon") as net,
        wayfare.connect(net.url("faro"), client_id="bert") as bert,
    ):
        states = await bert.subscribe("exists state")
        device = await wayfare.connect(net.url("porto"), client_id="device", will=will)
        await device.move(net.url("lisbon"))
        await device.detach()
        one = await states.get(5)
        assert (one.publisher, dict(one), one.payload) == ("device (will)", GONE, b"bye")
        assert status_of(net.brokers["lisbon"]).wills == 1
        await device.attach()
        await device.close()
        with pytest.raises(TimeoutError):
            await states.get(0.3)
        late = await bert.subscribe("device = 'd7'")
        assert (await late.get(5)).retained


@live
async def test_a_client_that_moves_has_no_will_published_without_any_delay():
    async with (
        tree("porto-lisbon", "faro-lisbon") as net,
        wayfare.connect(net.url("faro"), client_id="bert") as bert,
    ):
        states = await bert.subscribe("exists state")
        device = await wayfare.connect(
            net.url("porto"), client_id="device", will=wayfare.Will(GONE)
        )
        for at in ("lisbon", "faro", "porto") * 3:
            await device.move(net.url(at))
        await device.detach()
        assert (await states.get(5)).publisher == "device (will)"
        with pytest.raises(TimeoutError):  # that was the only one
            await states.get(0.3)
        await device.attach()
        await device.close()


def test_what_a_will_may_be():
    with pytest.raises(InvalidNotification, match="at least one attribute"):
        wayfare.Will({})
    for wrong in (-1, "x", True):
        with pytest.raises(UsageError, match="delay is a number of seconds"):
            wayfare.Will(GONE, delay=wrong)
    with pytest.raises(UsageError, match=r"will is a wayfare\.Will"):
        wayfare.connect("127.0.0.1", will={"state": "gone"})


def test_a_client_whose_broker_is_restarted_has_no_will_published(tmp_path):
    async def main():
        net = Processes(tmp_path, "os")
        try:
            for name in ("b", "a", "c"):
                await net.start(name)
            async with wayfare.connect(net.urls("c")[0], client_id="bert", confirm=30) as bert:
                states = await bert.subscribe("exists state")
                will = wayfare.Will(GONE)
                async with wayfare.connect(net.urls("a")[0], client_id="d", will=will) as device:
                    await net.kill("a")
                    await net.start("a")
                    with pytest.raises(TimeoutError):
                        await states.get(2)
                    await device.flush(20)
        finally:
            for process in net.running.values():
                process.kill()
                await process.wait()

    asyncio.run(main())


def test_a_client_that_moves_between_processes_has_a_will_once_for_each_absence(tmp_path):
    """Not because it moves, also without any delay; and the will is the current value of its key."""

    async def main():
        will = wayfare.Will(GONE, retain="device")
        async with (
            chain(tmp_path, 3) as net,
            wayfare.connect(net.url(2), client_id="bert", timeout=60) as bert,
        ):
            states = await bert.subscribe("exists state")
            async with wayfare.connect(net.url(0), client_id="device", will=will) as device:
                for at in (1, 2, 0) * 3:
                    await device.move(net.url(at))
                with pytest.raises(TimeoutError):
                    await states.get(0.5)
                for at in (1, 2):
                    await device.detach()
                    one = await states.get(20)
                    assert (dict(one), one.publisher, one.retained) == (
                        GONE,
                        "device (will)",
                        False,
                    )
                    await device.move(net.url(at))
                with pytest.raises(TimeoutError):
                    await states.get(0.5)
            async with wayfare.connect(net.url(0), client_id="anna") as anna:
                current = await (await anna.subscribe("device = 'd7'")).get(20)
                assert (dict(current), current.retained) == (GONE, True)

    asyncio.run(main())


def test_a_process_that_is_killed_leaves_its_will_also_if_its_broker_is_killed_meanwhile(tmp_path):
    async def main():
        net = Processes(tmp_path, "os")
        devices = []

        async def device(name, delay):
            command = [sys.executable, "-m", "wayfare", "sub", net.urls("a")[0], "x > 0"]
            options = ["--id", name, "--will", f"device={name} state=gone", "--will-delay", delay]
            one = await asyncio.create_subprocess_exec(
                *command, *options, stderr=asyncio.subprocess.PIPE, env=os.environ
            )
            devices.append(one)
            assert b"subscribed" in await one.stderr.readline()
            return one

        async def killed(one):
            one.send_signal(signal.SIGKILL)
            await one.wait()

        try:
            for name in ("b", "a", "c"):
                await net.start(name)
            async with wayfare.connect(net.urls("c")[0], client_id="bert", confirm=30) as bert:
                states = await bert.subscribe("exists state")
                await killed(await device("d1", "0.2"))
                first = dict(await states.get(20))
                await killed(await device("d2", "3"))
                await net.kill("a")
                await net.start("a")
                second = dict(await states.get(20))
                polite = await device("d3", "0")
                polite.send_signal(signal.SIGTERM)
                await polite.wait()
                with pytest.raises(TimeoutError):
                    await states.get(0.5)
                return first["device"], second["device"]
        finally:
            for process in [
                *net.running.values(),
                *(one for one in devices if one.returncode is None),
            ]:
                process.kill()
                await process.wait()

    assert asyncio.run(main()) == ("d1", "d2")
