"""What an application can do with its client, at the wrong time, too; and who waits for what."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from test_adapters import running
from test_service_live import Nodes, payloads, quiet, run
from test_service_trouble import until
from wayfare.errors import CannotConnect, Closed, Refused, UsageError
from wayfare.net.emulator import Emulator
from wayfare.service import connect
from wayfare.service.experiment import proxy
from wayfare.service.nodes import free_ports
from wayfare.service.proxy_addresses import where
from wayfare.service.proxy_server import Server

on_mqtt = pytest.mark.parametrize("system", ["mqtt"])


@on_mqtt
def test_who_is_cut_off_while_publishing_is_soon_elsewhere_and_that_arrives_once(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, b, _ = overlay_of(system).addresses
        async with (
            Emulator("lan", where(a.partition("://")[2])) as link,
            proxy(a, told=f"{system}://127.0.0.1:{link.port}") as first,
            proxy(b) as second,
            connect(f"ann{word}", first) as ann,
            connect(f"bob{word}", second) as bob,
        ):
            await bob.subscribe(f"{word}/#")
            await ann.publish(f"{word}/x", b"1")
            assert await payloads(bob, 1) == [b"1"]  # it has crossed the bridge
            link.cut()
            publishing = asyncio.create_task(ann.publish(f"{word}/x", b"2"))
            await asyncio.sleep(0)
            async with asyncio.timeout(5):  # an answer is waited for twice as long
                await ann.move_in(second)
                await publishing
            await ann.publish(f"{word}/x", b"3")
            link.restore()
            assert await payloads(bob, 2) == [b"2", b"3"]
            await quiet(bob)

    run(story())


@on_mqtt
def test_who_gives_up_a_subscription_gives_it_up_for_nobody_else(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect(f"ann{word}", here) as ann:
            one, other = (asyncio.create_task(ann.subscribe(f"{word}/x")) for _ in range(2))
            await asyncio.sleep(0)
            one.cancel()
            await asyncio.wait([one, other])
            assert one.cancelled() and other.exception() is None
            await ann.publish(f"{word}/x", b"1")
            assert await payloads(ann, 1) == [b"1"]

    run(story())


@on_mqtt
def test_who_subscribes_to_the_same_again_waits_for_nothing(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect(f"ann{word}", here) as ann:
            for _ in range(2):
                async with asyncio.timeout(3):  # patience is longer
                    await ann.subscribe(f"{word}/x")

    run(story())


RIGHTS = """
authorization {users: [
  {user: proxy, password: x},
  {user: ann, password: x, permissions: {subscribe: {deny: yours}, publish: {allow: ">"}}}
]}
"""


def test_a_subscription_that_was_refused_is_none(
    tmp_path: Path, need_server: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    need_server("nats")
    (tmp_path / "rights").write_text(RIGHTS)

    async def story(address: str) -> None:
        server = Server(address.replace("://", "://proxy:x@"))
        async with connect("ann", await server.start(), login="ann:x") as ann:
            for _ in range(2):
                with pytest.raises(Refused, match="permissions violation"):
                    await ann.subscribe("yours")
            await ann.subscribe("mine")
            await ann.publish("mine", b"1")
            assert await payloads(ann, 1) == [b"1"]
            await until(lambda: [*server.proxy.clients["ann"].subscriptions] == ["mine"])
            await ann.move_in()
            with pytest.raises(UsageError, match="not subscribed to 'yours'"):
                await ann.unsubscribe("yours")
        await server.stop()

    with running("nats", tmp_path, f"-c {tmp_path}/rights") as (address, _):
        run(story(address))
    assert not caplog.messages


# ---- coming and leaving --------------------------------------------------------------------


def test_who_did_not_get_in_is_told_so_and_can_close() -> None:
    async def story() -> None:
        ann = connect("ann", f"127.0.0.1:{free_ports(1)[0]}", patience=0.1)
        for _ in range(2):
            for use in (ann.subscribe("x"), ann.publish("x"), ann.move_in(), anext(ann)):
                with pytest.raises(UsageError, match="enter the client first"):
                    await use
            assert ann.state == "away"
            assert await ann.close() == 0
            with pytest.raises(CannotConnect):
                await ann.__aenter__()

    run(story())


def test_a_password_may_have_any_letters_and_is_told_to_nobody(
    tmp_path: Path, need_server: Callable[[str], None]
) -> None:
    need_server("nats")
    password = "s/e:c#r?e%41t@"
    with pytest.raises(UsageError, match="characters of UTF-8"):
        connect("ann", "127.0.0.1:1", login="ann:\ud800")

    async def story(address: str) -> None:
        login = quote(password, safe="")
        async with proxy(address.replace("://", f"://ann:{login}@")) as here:
            async with connect("ann", here, login=f"ann:{password}") as ann:
                await ann.subscribe("x")
            for wrong in (password[:-1], "s/e", "12345/"):
                with pytest.raises(CannotConnect) as caught:
                    await connect("ann", here, login=f"ann:{wrong}", patience=0).__aenter__()
                assert "authorization violation" in str(caught.value).lower()
                assert wrong not in str(caught.value)

    with running("nats", tmp_path, f"--user ann --pass {password}") as (address, _):
        run(story(address))


@on_mqtt
def test_a_client_is_entered_once(overlay_of: Nodes, system: str, word: str) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect(f"ann{word}", here) as ann:
            for _ in range(2):
                with pytest.raises(UsageError, match="entered once"):
                    await ann.__aenter__()
                await ann.close()

    run(story())


@on_mqtt
def test_who_closes_is_told_what_no_access_point_has(
    overlay_of: Nodes, system: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with (
            Emulator("lan", where(a.partition("://")[2])) as link,
            proxy(a, told=f"{system}://127.0.0.1:{link.port}") as here,
        ):
            ann = await connect(f"ann{word}", here).__aenter__()
            await ann.publish(f"{word}/x", b"1")
            link.cut()
            publishing = asyncio.create_task(ann.publish(f"{word}/x", b"2"))
            subscribing = asyncio.create_task(ann.subscribe(f"{word}/x"))
            await asyncio.sleep(0)
            assert await ann.close() == 1
            for waiting in (publishing, subscribing):
                with pytest.raises(Closed, match="the client was closed"):
                    await waiting
            assert "closes before an access point has 1 publications" in caplog.text
            link.restore()

    run(story())


@on_mqtt
def test_who_waits_to_move_in_hears_that_the_client_was_closed(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, Emulator("lan", where(here)) as link:
            ann = await connect(f"ann{word}", f"127.0.0.1:{link.port}").__aenter__()
            link.cut()
            moving = [asyncio.create_task(move) for move in (ann.move_out(), ann.move_in(here))]
            await asyncio.sleep(0)
            assert await ann.close() == 0
            for one in moving:
                with pytest.raises(Closed):
                    async with asyncio.timeout(5):
                        await one
            link.restore()

    run(story())


@on_mqtt
def test_who_does_not_wait_for_the_end_leaves_nothing_open(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        events: list[str] = []
        async with proxy(a) as here:
            ann = connect(f"ann{word}", here, record=lambda event: events.append(event.kind))
            await ann.__aenter__()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await ann.close()
            assert "left" not in events
            assert await ann.close() == 0
            assert events[-1] == "left"

    run(story())


@on_mqtt
def test_who_publishes_what_a_server_hangs_up_for_is_told_and_goes_on(
    overlay_of: Nodes, system: str, word: str
) -> None:
    """mosquitto refuses, and ends the connection: the refusal counts, though both come together."""

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect(f"ann{word}", here) as ann:
            await ann.subscribe(f"{word}/#")
            for _ in range(3):
                with pytest.raises(Refused, match="Not authorized"):
                    await ann.publish("$SYS/x", b"")
                await until(lambda: ann.state != "attached")
                await until(lambda: ann.state == "attached")
            await ann.publish(f"{word}/x", b"1")
            assert await payloads(ann, 1) == [b"1"]

    run(story())


# ---- leaving --------------------------------------------------------------------------------


@on_mqtt
@pytest.mark.parametrize("key", [None, "secret"])
def test_who_closes_while_away_is_forgotten_unless_another_process_can_go_on(
    overlay_of: Nodes, system: str, word: str, key: str | None
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect(f"bob{word}", here) as bob:
            async with connect(f"ann{word}", here, key=key) as ann:
                await ann.subscribe(f"{word}/#")
                await ann.move_out()
            await bob.publish(f"{word}/x", b"1")
            again = connect(f"ann{word}", here, key=key, subscriptions=[f"{word}/#"])
            async with again:
                await bob.publish(f"{word}/x", b"2")
                expected = [b"2"] if key is None else [b"1", b"2"]
                assert await payloads(again, len(expected)) == expected

    run(story())


@pytest.mark.parametrize("system", ["mqtt", "nats"])  # which know one of a name, and any number
def test_of_two_processes_with_one_key_the_older_one_ends(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect(f"ann{word}", here, key="secret") as older:
            await older.subscribe(f"{word}/x")
            async with connect(f"ann{word}", here, key="secret") as later:
                await later.subscribe(f"{word}/x")
                with pytest.raises(Refused, match="another process has gone on with this client"):
                    await asyncio.wait_for(anext(older), 20)
                await later.publish(f"{word}/x", b"1")
                assert await payloads(later, 1) == [b"1"]
                assert (older.state, later.state) == ("away", "attached")
                for again in (older.move_in(here), anext(older)):  # as an agent has it do
                    with pytest.raises(Refused, match="another process has gone on"):
                        await asyncio.wait_for(again, 10)

    run(story())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"last": "x"}, "last is a number, and not 'x'"),
        ({"last": True}, "last is a number, and not True"),
        ({"lease": "x"}, "lease is a number of seconds, and not 'x'"),
        ({"lease": 0.01}, "lease cannot be 0.01"),
        ({"sync": None}, "sync is ping, none, or delay and milliseconds, and not None"),
        ({"duplicates": "yes"}, "duplicates is True or False, and not 'yes'"),
        ({"cert": "a"}, "cert is a pair of files"),
        ({"key": 5}, "key is a text, and not 5"),
        ({"name": None}, "name is a text, and not None"),
    ],
)
def test_an_option_that_makes_no_sense_is_told_when_it_is_given(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        connect(**{"name": "ann", "proxy": "127.0.0.1:7500", **options})
