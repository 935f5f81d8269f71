"""Applications see when their client is connected, and why it is not."""

import asyncio

import pytest

import wayfare
import wayfare.sync
from live import tree, until
from test_client_api import LINE, live
from wayfare.errors import Closed, Refused
from wayfare.net.connectivity import CHANGES_MAX, Change, Changes, Connectivity
from wayfare.net.life import Life
from wayfare.testing import Tree


@live
async def test_changes_begin_with_the_state_and_end_with_the_client():
    async with tree(*LINE) as net:
        anna = wayfare.connect([net.url("porto"), net.url("faro")], client_id="anna")
        assert not anna.connected
        changes = anna.changes()
        assert not (await changes.get()).connected
        await anna
        assert anna.connected
        assert await changes.get(5) == Change(True, "porto")
        await anna.move(net.url("lisbon"))
        await anna.detach()
        assert not anna.connected
        await anna.close()
        assert [one async for one in changes] == [
            Change(False, "porto", "moves"),
            Change(True, "lisbon"),
            Change(False, "lisbon", "detached"),
        ]
        with pytest.raises(Closed):
            await changes.get()


@live
async def test_callbacks_are_called_when_a_broker_stops_and_another_takes_over():
    seen = []
    async with tree(*LINE) as net:
        async with wayfare.connect(
            [net.url("porto"), net.url("faro")],
            client_id="anna",
            on_connect=lambda broker: seen.append(("connected", broker)),
            on_disconnect=lambda *why: seen.append(("disconnected", *why)),
        ) as anna:
            await net.brokers["porto"].stop()
            await until(lambda: anna.broker == "faro")
        await net.start("porto")
    assert [one[:2] for one in seen] == [
        ("connected", "porto"),
        ("disconnected", "porto"),
        ("connected", "faro"),
        ("disconnected", "faro"),
    ]
    assert seen[1][2] and seen[3][2] == "closes"


@live
async def test_a_callback_that_raises_is_logged_and_costs_nothing(caplog):
    def fail(*_):
        raise ZeroDivisionError

    async with (
        tree(*LINE) as net,
        wayfare.connect(
            net.url("porto"), client_id="anna", on_connect=fail, on_disconnect=fail
        ) as anna,
    ):
        await anna.move(net.url("faro"))
        assert anna.connected
    for name in ("on_connect", "on_disconnect"):
        assert f"{name} of anna failed" in caplog.text


@live
async def test_a_callback_may_change_what_the_client_says_of_itself():
    async with tree(*LINE) as net:
        anna = wayfare.connect(
            net.url("porto"),
            client_id="anna",
            on_connect=lambda broker: anna.state.update(at=broker),
            on_disconnect=lambda *_: anna.state.clear(),
        )
        async with anna, anna.subscribe("broker = my.at"):
            assert anna.state == {"at": "porto"}
            await anna.move(net.url("faro"))
            assert anna.state == {"at": "faro"}
            await anna.detach()
            assert anna.state == {}


@live
async def test_a_client_that_is_refused_for_good_says_so_to_its_iterators():
    async with tree(*LINE) as net, wayfare.connect(net.url("porto"), client_id="anna") as first:
        changes = first.changes()
        await changes.get()
        async with wayfare.connect(net.url("faro"), client_id="anna"):
            gone = await changes.get(5)
            assert (gone.connected, gone.broker) == (False, "porto")
            with pytest.raises(Refused):
                await changes.get(5)


@live
async def test_who_does_not_read_changes_misses_the_oldest():
    life = Life("anna")
    life.opened = True
    state = Connectivity("anna", life)
    changes = Changes(state)
    await changes.get()
    for number in range(CHANGES_MAX + 5):
        state.connected(str(number))
    life.close()
    assert [one.broker async for one in changes] == [str(n) for n in range(5, CHANGES_MAX + 5)]


@live
async def test_changes_before_the_first_one_is_read_are_not_lost():
    life = Life("anna")
    life.opened = True
    state = Connectivity("anna", life)
    state.connected("porto")
    changes = Changes(state)
    state.disconnected("porto", "detached")
    state.connected("faro")
    first = await changes.get()
    changes.give_back(first)
    life.close()
    assert [one async for one in changes] == [
        Change(True, "porto"),
        Change(False, "porto", "detached"),
        Change(True, "faro"),
    ]


@live
async def test_waiting_for_a_change_may_time_out_and_loses_nothing():
    async with tree(*LINE) as net, wayfare.connect(net.url("porto")) as anna:
        changes = anna.changes()
        assert await changes.get() == Change(True, "porto")
        with pytest.raises(TimeoutError):
            await changes.get(0.02)
        await anna.detach()
        assert (await changes.get(5)).reason == "detached"


def test_the_synchronous_twin_has_it_too():
    seen = []
    with Tree("porto-lisbon") as net:
        with wayfare.sync.connect(
            net["porto"], on_connect=seen.append, on_disconnect=lambda *why: seen.append(why)
        ) as anna:
            changes = anna.changes()
            assert anna.connected
            assert next(changes) == Change(True, "porto")
            anna.detach()
            assert not anna.connected
            assert next(changes) == Change(False, "porto", "detached")
            with pytest.raises(TimeoutError):
                changes.get(0.02)
        assert list(changes) == []
    assert seen == ["porto", ("porto", "detached")]


def test_a_coroutine_function_is_no_callback():
    with pytest.raises(wayfare.WayfareError, match="on_connect is a function"):
        wayfare.connect("127.0.0.1", on_connect=asyncio.sleep)
