"""The mobility service when something goes wrong: processes that are killed, proxies that go away, bad words."""

import asyncio
import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from test_adapters import others_publish, running
from test_live_cli import program, wayfare
from test_service_live import Nodes, next_of, payloads, quiet, run
from test_service_systems import addresses
from wayfare.errors import CannotConnect, Refused, StoreError, UsageError
from wayfare.service import Gap, Publication, connect
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.adapters import adapter
from wayfare.service.agent import Agent, Choice, control_place, order
from wayfare.service.client import INBOX_MAX, Client
from wayfare.service.discovery import Neighbourhood, advertised
from wayfare.service.errands import Errands, name_of
from wayfare.service.experiment import proxy
from wayfare.service.nodes import Node, free_ports
from wayfare.service.proxy_addresses import only, where
from wayfare.service.proxy_server import Server
from wayfare.service.store import Store
from wayfare.service.wire import NO_ANSWER, Wires, ask

on_mqtt = pytest.mark.parametrize("system", ["mqtt"])


async def until(condition: Any, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


CRASHES = """
import asyncio, os, signal, sys
from wayfare.service import connect

async def main(name, proxy, subscription):
    async with connect(name, proxy, key="secret") as client:
        await client.subscribe(subscription)
        await anext(client)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


@on_mqtt
def test_a_client_that_was_killed_goes_on_with_its_key(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, b, _ = overlay_of(system).addresses
        name, wanted = f"ann{word}", f"{word}/#"
        async with proxy(a) as first, proxy(b) as second, connect(f"bob{word}", first) as bob:
            crashing = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CRASHES, name, second, wanted
            )
            number = 0
            while crashing.returncode is None:
                number += 1
                await bob.publish(f"{word}/x", b"%d" % number)
                await asyncio.sleep(0.05)
            assert await crashing.wait() == -signal.SIGKILL
            await bob.publish(f"{word}/x", b"while it was gone")
            await asyncio.sleep(0.2)
            with pytest.raises(Refused):
                async with connect(name, second, key="another"):
                    pass
            async with connect(name, second, key="secret", subscriptions=[wanted]) as ann:
                await bob.publish(f"{word}/x", b"and now")
                got = [b""]
                while got[-1] != b"and now":
                    got += await payloads(ann, 1)
            assert got[-2] == b"while it was gone"
            numbers = [int(one) for one in got[1:-2]]
            assert numbers == list(range(numbers[0], number + 1))

    run(story())


# ---- proxies that go away --------------------------------------------------------------


@pytest.mark.parametrize("system", ["mqtt", "amqp", "stomp", "nats", "redis", "wayfare"])
def test_a_proxy_that_is_killed_with_a_full_buffer_loses_nothing(
    overlay_of: Nodes, system: str, word: str, tmp_path: Path
) -> None:
    """Nor is lost what comes while it is down, where systems keep that; where not, a gap says so."""
    a, b, c = addresses(overlay_of(system))
    language = adapter(a)
    topic = language.topic(word)
    port = str(free_ports(1)[0])
    command = ["service", "proxy", "--access", b, "--listen", port, "--json"]
    command += ["--store", str(tmp_path / "proxy.db")]

    async def story() -> None:
        async with (
            proxy(a) as first,
            proxy(c) as third,
            connect(f"bob{word}", first) as bob,
        ):

            async def publish(*numbers: int) -> None:
                for number in numbers:
                    await bob.publish(topic, b"%d" % number)

            with program(*command) as one:
                assert json.loads(one.line())["clients"] == 0
                ann = connect(f"ann{word}", f"127.0.0.1:{port}")
                await ann.__aenter__()
                await ann.subscribe(language.subscription(topic))
                await known_to(bob, ann, topic)
                await ann.move_out()
                await publish(*range(50))
                await asyncio.sleep(0.5)
            # It was killed by -9. What is published meanwhile waits at the server of the system.
            await publish(*range(50, 60))
            with program(*command) as one:
                assert json.loads(one.line())["clients"] == 1
                await asyncio.sleep(1)  # until it is subscribed again
                await publish(*range(60, 70))
                await ann.move_in(third)
                gaps, numbers = 0, [-1]
                while numbers[-1] != 69:
                    (came,) = await next_of(ann, 1)
                    if isinstance(came, Gap):
                        gaps += 1
                    else:
                        numbers.append(int(came.payload))
                await quiet(ann)
                await ann.close()
            everything = list(range(-1, 70))
            if system in ("mqtt", "amqp", "stomp"):
                assert (gaps, numbers) == (0, everything)
            else:
                assert gaps == 1
                assert numbers == [n for n in everything if not 50 <= n < 60 or n in numbers]

    run(story())


@pytest.mark.parametrize("system", ["mqtt", "amqp", "stomp", "nats", "redis", "wayfare"])
def test_what_waits_for_a_busy_proxy_is_in_front_of_a_ping(
    overlay_of: Nodes, system: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a proxy has not taken yet, it has when it answers."""

    def busy(
        client: str, name: str, system: Any, step: Any, deliver: Any, *more: Any, **options: Any
    ) -> Errands:
        async def slowly(publication: Publication) -> None:
            await asyncio.sleep(0.05)
            await deliver(publication)

        return Errands(client, name, system, step, slowly, *more, **options)

    monkeypatch.setattr("wayfare.service.proxy_server.Errands", busy)

    async def story() -> None:
        a, b, _ = addresses(overlay_of(system))
        language = adapter(a)
        topic = language.topic(word)
        async with (
            proxy(a) as here,
            proxy(b) as there,
            connect(f"bob{word}", here) as bob,
            connect(f"ann{word}", here) as ann,
        ):
            await ann.subscribe(language.subscription(topic))
            await ann.move_out()
            published = [b"%d" % number for number in range(1000)]
            await asyncio.gather(*(bob.publish(topic, payload) for payload in published))
            await ann.move_in(there)
            assert await payloads(ann, 1000) == published

    run(story())


async def known_to(bob: Client, ann: Client, topic: str) -> None:
    """Systems that propagate subscriptions take a moment until somebody elsewhere knows of one."""
    async with asyncio.timeout(20):
        listening = asyncio.create_task(anext(ann))
        while not listening.done():
            await bob.publish(topic, b"hello")
            await asyncio.wait([listening], timeout=0.1)
        while True:  # and those behind it
            try:
                await asyncio.wait_for(anext(ann), 0.5)
            except TimeoutError:
                return


@pytest.mark.parametrize("standby", [True, False])
@pytest.mark.parametrize("system", ["mqtt", "amqp", "stomp", "nats", "redis", "wayfare"])
def test_a_client_that_is_cut_off_for_longer_than_its_lease(
    overlay_of: Nodes, system: str, word: str, standby: bool
) -> None:
    """On standby nothing is lost; else the proxy takes over when the lease has run out, and a gap says so."""

    async def story() -> None:
        a, b, c = addresses(overlay_of(system))
        language = adapter(a)
        topic = language.topic(word)
        async with (
            proxy(a) as first,
            proxy(b) as second,
            proxy(c) as third,
            connect(f"bob{word}", first) as bob,
            connect(f"ann{word}", second, lease=0.5, standby=standby) as ann,
        ):
            await ann.subscribe(language.subscription(topic))
            await known_to(bob, ann, topic)
            ann._perform([e.Shut(f"ann{word}")])  # the network is gone, and says nothing
            ann._wires.close()
            ann._alarm.clear()
            published = [b"%d" % number for number in range(20)]
            for payload in published:
                await bob.publish(topic, payload)
                await asyncio.sleep(0.1)
            await ann.move_in(third)
            gaps = 0
            got = [b""]
            while got[-1] != published[-1]:
                (came,) = await next_of(ann, 1)
                if isinstance(came, Gap):
                    gaps += 1
                else:
                    got.append(came.payload)
            assert got[1:] == [one for one in published if one in got]  # in order, each once
            if standby:
                assert (gaps, got[1:]) == (0, published)
            else:
                assert gaps == 1
                assert 0 < len(published) - len(got[1:]) < 15

    run(story())


def test_a_proxy_says_at_once_that_nobody_is_there(tmp_path: Path) -> None:
    nobody, port = free_ports(2)
    command = [sys.executable, "-m", "wayfare", "service", "proxy", "--listen", str(port)]
    command += ["--access", f"mqtt://127.0.0.1:{nobody}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as one:
        assert one.stderr is not None
        said = one.stderr.readline()
        one.send_signal(signal.SIGINT)
        one.communicate(timeout=20)
    assert f"cannot connect to mqtt://127.0.0.1:{nobody}" in said
    assert "is tried again with every client" in said


@on_mqtt
def test_a_client_whose_old_proxy_is_gone_has_a_gap_and_goes_on(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, b, c = overlay_of(system).addresses
        async with proxy(a) as first, proxy(c) as third, connect(f"bob{word}", first) as bob:
            async with proxy(b) as second:
                ann = connect(f"ann{word}", second, patience=1)
                await ann.__aenter__()
                await ann.subscribe(f"{word}/#")
                await ann.move_out()
                await bob.publish(f"{word}/x", b"lost")
                await asyncio.sleep(0.5)
            await ann.move_in(third)
            await bob.publish(f"{word}/x", b"found")
            gap, message = await next_of(ann, 2)
            assert isinstance(gap, Gap)
            assert gap.lost is None
            assert "cannot be reached: no mobility proxy answers there" in gap.reason
            assert message.payload == b"found"
            await ann.close()

    run(story())


def test_who_calls_itself_hears_that_nobody_is_there() -> None:
    """From the port that it calls, which is none of a server: TCP connects such a socket with itself."""
    (port,) = free_ports(1)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        connect_from = partial(loop.create_connection, local_addr=("127.0.0.1", port))
        with (
            mock.patch.object(loop, "create_connection", connect_from),
            pytest.raises(CannotConnect, match="nobody listens there"),
        ):
            await ask(f"127.0.0.1:{port}")

    run(story())


@on_mqtt
def test_a_client_survives_its_access_point(overlay_of: Nodes, system: str, word: str) -> None:
    """The server of the system is killed and started again: client and client proxy subscribe anew."""

    async def story() -> None:
        nodes = overlay_of(system)
        a, _, c = nodes.addresses
        async with (
            proxy(a) as first,
            proxy(c) as third,
            connect(f"bob{word}", first) as bob,
            connect(f"ann{word}", third) as ann,
        ):
            await ann.subscribe(f"{word}/#")
            nodes.kill("c")
            await until(lambda: ann.state == "moving-in")
            await nodes.start("c")
            await until(lambda: ann.state == "attached")
            await bob.publish(f"{word}/x", b"1")
            while not isinstance(message := await anext(ann), Publication):
                pass
            assert message.payload == b"1"
            await ann.move_out()
            await bob.publish(f"{word}/x", b"2")
            await ann.move_in(first)
            assert await payloads(ann, 1) == [b"2"]

    run(story())


@on_mqtt
def test_a_slow_application_slows_the_system_down(
    overlay_of: Nodes, system: str, word: str
) -> None:
    count = 3 * INBOX_MAX

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with (
            proxy(a) as here,
            connect(f"bob{word}", here) as bob,
            connect(f"ann{word}", here) as ann,
        ):
            await ann.subscribe(f"{word}/#")
            await asyncio.gather(*(bob.publish(f"{word}/x", b"%d" % n) for n in range(count)))
            await asyncio.sleep(0.5)
            assert INBOX_MAX <= len(ann._inbox) < 2 * INBOX_MAX  # one step may bring several
            async with asyncio.timeout(10):
                await ann.move_out()  # pings come through all the same
            await ann.move_in()
            assert await payloads(ann, count) == [b"%d" % number for number in range(count)]
            await quiet(ann)

    run(story())


@on_mqtt
def test_a_suspended_client_is_not_taken_for_subscribed_if_the_system_forgot_it(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with (
            proxy(a) as here,
            connect(f"bob{word}", here) as bob,
            connect(f"ann{word}", here) as ann,
        ):
            await ann.subscribe(f"{word}/#")
            await ann.move_out(suspend=True)
            forgetful = await ann.system.open(a, f"ann{word}", None, None)
            await forgetful.close()  # the session of her name was another one, and is none now
            await ann.move_in()
            await bob.publish(f"{word}/x", b"1")
            assert await payloads(ann, 1) == [b"1"]

    run(story())


@pytest.mark.parametrize("system", ["mqtt", "stomp", "wayfare", "amqp"])
def test_a_proxy_tells_what_the_system_has_forgotten_while_it_was_down(
    overlay_of: Nodes, system: str, word: str, tmp_path: Path
) -> None:
    async def came(forgotten: bool) -> list[bytes | str]:
        """To ann, to whom 1 is published while her proxy is down."""
        a, _, _ = overlay_of(system).addresses
        language, name = adapter(a), f"ann{forgotten}{word}"
        topic = language.topic(name)
        (port,) = free_ports(1)
        down = Server(a, port=port, store=tmp_path / f"{forgotten}.db")
        here = await down.start()
        async with proxy(a) as other, connect(f"bob{forgotten}{word}", other) as bob:
            ann = connect(name, here)
            await ann.__aenter__()
            await ann.subscribe(language.subscription(topic))
            await ann.move_out()
            await down.stop()
            if forgotten:  # whoever begins anew has nothing left of before
                anew = await language.open(a, name_of(name, here), None, None)  # type: ignore[arg-type]
                await anew.close()
            await bob.publish(topic, b"1")
            up = Server(a, port=port, store=tmp_path / f"{forgotten}.db")
            await up.start()
            await ann.move_in()
            await bob.publish(topic, b"2")
            got: list[bytes | str] = []
            while got[-1:] != [b"2"]:
                (one,) = await next_of(ann, 1)
                got.append(one.reason if isinstance(one, Gap) else one.payload)
            await ann.close()
        await up.stop()
        return got

    async def story() -> None:
        assert await came(False) == [b"1", b"2"]
        assert await came(True) == [
            "the system has forgotten what the proxy was subscribed to",
            b"2",
        ]

    run(story())


@pytest.mark.parametrize("system", ["stomp", "wayfare", "amqp"])
def test_a_suspended_client_does_not_subscribe_again_where_that_was_kept(
    overlay_of: Nodes, system: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with (
            proxy(a) as here,
            connect(f"bob{word}", here) as bob,
            connect(f"ann{word}", here) as ann,
        ):
            topic = ann.system.topic(word)
            wanted = ann.system.subscription(topic)
            await ann.subscribe(wanted)
            await ann.move_out(suspend=True)
            await bob.publish(topic, b"1")
            asked: list[str] = []
            ask = Errands.ask

            def noted(self: Errands, errand: Any) -> None:
                if isinstance(errand, e.Subscribe) and self._name == f"ann{word}":
                    asked.extend(errand.subscriptions)
                ask(self, errand)

            monkeypatch.setattr(Errands, "ask", noted)
            await ann.move_in()
            await bob.publish(topic, b"2")
            assert await payloads(ann, 2) == [b"1", b"2"]
            await quiet(ann)
            assert asked and wanted not in asked

    run(story())


def test_a_mosquitto_that_is_restarted_has_kept_what_came_for_a_proxy(
    need_server: Callable[[str], None], tmp_path: Path
) -> None:
    """Also for one that began with something left of before, which is forgotten."""
    need_server("mqtt")

    async def restart(node: Node) -> None:
        os.kill(node.pid, signal.SIGTERM)
        await until(lambda: node._has_ended())
        node.kill()
        node.start()
        await node.until(node.listens)

    async def story(access: str, node: Node) -> None:
        (port,) = free_ports(1)
        here = f"127.0.0.1:{port}"
        before = await adapter(access).open(access, name_of("ann", here), None, None)  # type: ignore[arg-type]
        await before.subscribe(["#"])
        await before.close(suspend=True)
        store = tmp_path / "proxy.db"
        async with proxy(access) as other, connect("bob", other) as bob:
            await bob.publish("others", b"left")
            server = Server(access, port=port, store=store)
            await server.start()
            ann = connect("ann", here)
            await ann.__aenter__()
            await ann.subscribe("news")
            await ann.move_out()
            await bob.publish("news", b"1")
            await server.stop()
            await bob.publish("news", b"2")
            await bob.move_out()
            await restart(node)
            server = Server(access, port=port, store=store)
            await server.start()
            await ann.move_in()
            await bob.move_in()
            await bob.publish("news", b"3")
            assert [getattr(one, "payload", one) for one in await next_of(ann, 3)] == [
                b"1",
                b"2",
                b"3",
            ]
            await ann.close()
            await server.stop()

    with running("mqtt", tmp_path, f"persistence true\npersistence_location {tmp_path}/\n") as one:
        run(story(*one))


@on_mqtt
def test_who_moves_in_makes_a_new_connection(overlay_of: Nodes, system: str, word: str) -> None:
    """The old one may be of a network that is gone, and nobody would notice for minutes."""

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        server = Server(a)
        async with connect(f"ann{word}", await server.start()) as ann:
            before = set(server._wires._wires)
            await ann.move_in()
            assert before.isdisjoint(server._wires._wires)
        await server.stop()

    run(story())


@on_mqtt
def test_what_no_header_can_say_is_refused(overlay_of: Nodes, system: str, word: str) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect(f"ann{word}", here) as ann:
            for value in ("v" * 65_536, "\ud800"):
                with pytest.raises(UsageError, match="property"):
                    async with asyncio.timeout(10):
                        await ann.publish(f"{word}/x", b"1", told=value)
            await ann.publish(f"{word}/x", b"1", told="v" * 65_000)

    run(story())


@on_mqtt
def test_what_is_retained_comes_once_for_each_server_and_is_not_kept_by_proxies(
    overlay_of: Nodes, system: str, word: str
) -> None:
    async def story() -> None:
        a, _, c = overlay_of(system).addresses
        topic = f"{word}/state"
        with mock.patch("test_adapters.PUBLISH_MQTT", 0x31):
            await others_publish(adapter(a), a, topic.encode(), b"on")
        await asyncio.sleep(0.5)  # until the bridges have told
        async with proxy(a) as first, proxy(c) as third, connect(f"ann{word}", first) as ann:
            await ann.subscribe(f"{word}/#")
            assert await payloads(ann, 1) == [b"on"]
            await ann.subscribe(f"{word}/#")
            await ann.move_out()
            await ann.move_in(third)
            assert await payloads(ann, 1) == [b"on"]
            await ann.move_out(suspend=True)
            await ann.move_in()
            await quiet(ann)
        with mock.patch("test_adapters.PUBLISH_MQTT", 0x31):
            await others_publish(adapter(a), a, topic.encode(), b"")  # it is forgotten

    run(story())


@on_mqtt
def test_a_client_may_have_any_name(overlay_of: Nodes, system: str, word: str) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here:
            for name in (f"Ännchen von {word}/#", word + "x" * 100, f"a~b {word}"):
                async with connect(name, here) as ann:
                    await ann.subscribe(f"{word}/#")
                    await ann.move_out()
                    await ann.publish(f"{word}/x", b"1")
                    await ann.move_in()
                    assert await payloads(ann, 1) == [b"1"]

    run(story())


def test_names_for_the_system_differ_as_clients_and_proxies_do() -> None:
    names = [
        name_of(client, at)
        for client in ("ann", "ann/", "ann#", "a" * 100)
        for at in ("", "x", "y")
    ]
    assert names[0] == "ann"
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and len(name) <= 100 for name in names)


@on_mqtt
def test_the_name_of_a_client_is_its_own(overlay_of: Nodes, system: str, word: str) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect("ann" + word, here, key="hers") as ann:
            await ann.subscribe(f"{word}/#")
            await ann.move_out()
            with pytest.raises(Refused, match="another client has this name"):
                async with connect("ann" + word, here):
                    pass
            async with connect("bob" + word, here) as bob:
                await bob.publish(f"{word}/x", b"1")
            await ann.move_in()
            assert await payloads(ann, 1) == [b"1"]

    run(story())


# ---- what is on disk -------------------------------------------------------------------


@on_mqtt
def test_nothing_is_promised_that_is_not_on_disk(
    overlay_of: Nodes,
    system: str,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The disk is full: no acknowledgement goes out, the proxy ends with a sentence, and all is there later.

    Also what comes between the end of the disk and that of the process, for others.
    """
    path = tmp_path / "proxy.db"

    async def story() -> None:
        a, b, c = overlay_of(system).addresses
        (port,) = free_ports(1)
        server = Server(b, port=port, store=path)
        where = await server.start()
        async with proxy(a) as first, proxy(c) as third, connect(f"bob{word}", first) as bob:
            there = {name: connect(f"{name}{word}", where) for name in ("ann", "carl")}
            for name, client in there.items():
                await client.__aenter__()
                await client.subscribe(f"{word}/{name}")
                await client.move_out()
            full = sqlite3.OperationalError("database or disk is full")

            def fail(self: Store, statements: Any) -> None:
                raise self._trouble(full)

            with monkeypatch.context() as broken:
                broken.setattr(Store, "write", fail)
                await bob.publish(f"{word}/ann", b"1")
                with pytest.raises(StoreError, match="no room left"):
                    await asyncio.wait_for(server.serve(), 10)
                await bob.publish(f"{word}/carl", b"2")
                await asyncio.sleep(0.3)  # as long as it takes to go wrong
                await server.stop()
            server = Server(b, port=port, store=path)
            await server.start()
            for client, payload in zip(there.values(), (b"1", b"2"), strict=True):
                await client.move_in(third)
                assert await payloads(client, 1) == [payload]
                await client.close()
            await server.stop()

    run(story())
    assert not any(one.exc_info for one in caplog.records)


def test_what_ends_a_proxy_need_not_be_its_disk(tmp_path: Path) -> None:
    """Nobody goes on as if what was noted was safe."""

    async def story() -> None:
        server = Server("mqtt://127.0.0.1:1", store=tmp_path / "proxy.db")
        await server.start()
        assert server._store is not None
        with mock.patch.object(server._store, "commit", side_effect=OverflowError("too big")):
            server._step(e.Received("#1", m.Register("ann", "key", 1, ("news",), m.Terms())))
            with pytest.raises(OverflowError, match="too big"):
                await asyncio.wait_for(server.serve(), 10)
        await server.stop()

    run(story())


@on_mqtt
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "unstored"])
def test_a_number_that_is_too_large_for_everybody_is_a_text(
    overlay_of: Nodes, system: str, word: str, tmp_path: Path, stored: bool
) -> None:
    """Any client of the system may publish one. No proxy ends by that, and its clients get everything."""
    pairs = {
        "n": "9" * 20,
        "m": f"-{2**63 + 1}",
        "i": str(2**64 - 1),
        "wayfare-types": "n=int m=int i=int",
    }

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        server = Server(a, store=tmp_path / "proxy.db" if stored else None)
        async with connect(f"ann{word}", await server.start()) as ann:
            await ann.subscribe(f"{word}/#")
            await ann.move_out()
            for payload in (b"1", b"2"):
                await others_publish(adapter(a), a, f"{word}/x".encode(), payload, pairs)
            await until(lambda: server.arrived >= 2)
            await ann.move_in()
            large = {"n": pairs["n"], "m": pairs["m"], "i": 2**64 - 1}
            assert [(one.payload, one.properties) for one in await next_of(ann, 2)] == [
                (b"1", large),
                (b"2", large),
            ]
            with pytest.raises(UsageError, match="too large"):
                await ann.publish(f"{word}/x", b"", n=2**64)
        await server.stop()

    run(story())


def test_a_store_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "proxy.db"
    Store(path, "os", "one").close()
    with pytest.raises(StoreError, match="is the memory of one"):
        Store(path, "os", "another")
    store = Store(path, "os", "one")
    store.write([("INSERT INTO clients VALUES ('ann', 0, x'00', x'00')", ())])
    with pytest.raises(StoreError, match=r"damaged \(ann\)"):
        list(store.load())
    store.close()


def test_a_store_that_was_never_written_is_as_good_as_none(tmp_path: Path) -> None:
    """Whoever began with it was killed before it had a table."""
    for path in (tmp_path / "empty.db", tmp_path / "begun.db"):
        path.touch()
        if path.stem == "begun":
            with closing(sqlite3.connect(path)) as begun:
                begun.execute("PRAGMA journal_mode = WAL")
        Store(path, "os", "one").close()
        with pytest.raises(StoreError, match="is the memory of one"):
            Store(path, "os", "another")


def test_a_store_is_no_database_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE cats (name TEXT)")
    with pytest.raises(StoreError, match="is a database of somebody else: choose another file"):
        Store(path, "os", "one")


# ---- hostile words ---------------------------------------------------------------------


@on_mqtt
def test_who_says_something_else_is_cut_off_and_others_are_served(
    overlay_of: Nodes, system: str, word: str
) -> None:
    frames = [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", m.FRAME_MAX + 1),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">I", 2) + b"\x91\x63",
    ]

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with proxy(a) as here, connect(f"ann{word}", here) as ann:
            for frame in frames:
                reader, writer = await asyncio.open_connection(*here.split(":"))
                writer.write(frame)
                with suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 5) == b"", frame
                writer.close()
            await ann.subscribe(f"{word}/#")
            await ann.publish(f"{word}/x", b"1")
            assert await payloads(ann, 1) == [b"1"]

    run(story())


@on_mqtt
def test_nobody_makes_a_proxy_connect_to_whom_it_likes(
    overlay_of: Nodes, system: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def refusal(here: str, target: str) -> str:
        reader, writer = await asyncio.open_connection(*here.split(":"))
        download = m.encode(m.Download(word, "key", 1, 1, target, {}))
        writer.write(struct.pack(">I", len(download)) + download)
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        answer = m.decode(await reader.readexactly(length))
        writer.close()
        assert isinstance(answer, m.Downloaded)
        return answer.reason

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        server = Server(a, peers=["127.0.0.1:9"])
        async with proxy(a) as here:
            strict = await server.start()
            for at, target, why in (
                (here, "8.8.8.8:53", "not in a private network"),
                (here, "169.254.169.254:80", "not in a private network"),
                (here, "nonsense:", "is no address"),
                (here, "127.0.0.1:9", "nobody listens there"),
                (strict, "127.0.0.1:9", "nobody listens there"),
                (strict, here, "is not among the proxies"),
            ):
                caplog.clear()
                assert (await refusal(at, target)).endswith(f"cannot be reached: {NO_ANSWER}")
                assert why in caplog.text
        await server.stop()

    run(story())


def test_only_addresses_can_be_permitted() -> None:
    with pytest.raises(UsageError, match="no address of a mobility proxy"):
        only(["10.0.0.1:http"])


# ---- the agent -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("7000", ("127.0.0.1", 7000)),
        ("127.0.0.2:7000", ("127.0.0.2", 7000)),
        ("localhost:7000", ("localhost", 7000)),
        ("agent.sock", "agent.sock"),
        ("/run/a:1.sock", "/run/a:1.sock"),
    ],
)
def test_an_agent_listens_at_a_port_or_a_path(text: str, place: object) -> None:
    assert control_place(text) == place


def test_a_proxy_that_flaps_moves_nobody() -> None:
    choice = Choice(up=2, down=3)
    assert choice.choose(["a", "b"]) == ""
    for _ in range(2):
        choice.heard("b", True)
    assert choice.choose(["a", "b"]) == "b"
    for answered in (True, False, True, True, False, False) * 3:
        choice.heard("a", answered)
        choice.heard("b", answered)
        assert choice.choose(["a", "b"]) == "b"
    for _ in range(2):
        choice.heard("a", True)
    for _ in range(3):
        choice.heard("b", False)
    assert choice.choose(["a", "b"]) == "a"
    for _ in range(9):
        choice.heard("b", True)
    assert choice.choose(["b", "a"]) == "a"


@on_mqtt
def test_an_agent_moves_the_clients_of_its_machine(
    overlay_of: Nodes, system: str, word: str, tmp_path: Path
) -> None:
    control = str(tmp_path / "agent")
    told: list[dict[str, Any]] = []

    async def story() -> None:
        a, b, c = overlay_of(system).addresses
        old = Server(b)
        async with proxy(c) as third, proxy(a) as first, connect(f"bob{word}", first) as bob:
            second = await old.start()
            agent = Agent(lambda: [second, third], control, tell=told.append, probe_s=0.1)
            running = asyncio.create_task(agent.run())
            await until(lambda: Path(control).exists())
            assert Path(control).stat().st_mode & 0o077 == 0
            names = [f"ann{word}", f"eve{word}"]
            clients = [connect(name, agent=control, patience=1) for name in names]
            for client in clients:
                await client.__aenter__()
                await client.subscribe(f"{word}/#")
                assert client.place == second
            assert agent.clients == sorted(names)
            await bob.publish(f"{word}/x", b"1")
            await asyncio.sleep(0.3)
            await old.stop()
            await until(
                lambda: all((one.place, one.state) == (third, "attached") for one in clients)
            )
            await bob.publish(f"{word}/x", b"2")
            for client in clients:
                got = await next_of(client, 3)
                assert [getattr(one, "payload", "gap") for one in got] == [b"1", "gap", b"2"]
            assert await order(control, "out") == ""
            assert all(one.state == "away" for one in clients)
            await bob.publish(f"{word}/x", b"3")
            assert await order(control, "in") == ""
            for client in clients:
                assert await payloads(client, 1) == [b"3"]
                await client.close()
            await until(lambda: not agent.clients)
            running.cancel()
            await asyncio.wait([running])
            assert not Path(control).exists()

    run(story())


@on_mqtt
def test_proxies_are_found_by_zeroconf(overlay_of: Nodes, system: str) -> None:
    here = ["127.0.0.1"]

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        async with Neighbourhood(here) as neighbourhood:
            async with proxy(a) as address, advertised(address, a, here):
                await until(lambda: address in neighbourhood.addresses)
                assert (await ask(address)).access == a
                neighbourhood._safe = True
                assert neighbourhood.addresses == []
                async with advertised("tls://127.0.0.1:9", a, here):
                    await until(lambda: neighbourhood.addresses == ["tls://127.0.0.1:9"])
                neighbourhood._safe = False
            await until(lambda: address not in neighbourhood.addresses)

    run(story())


# ---- the command line ------------------------------------------------------------------


@on_mqtt
def test_a_shell_can_try_it(overlay_of: Nodes, system: str, word: str) -> None:
    a, _, c = overlay_of(system).addresses
    one_port, two_port = map(str, free_ports(2))
    with (
        program("service", "proxy", "--access", a, "--listen", one_port) as one,
        program("service", "proxy", "--access", c, "--listen", two_port) as two,
    ):
        assert one.line() == f"clients of {a} move by the proxy 127.0.0.1:{one_port}"
        two.line()
        with program(
            "service", "sub", f"127.0.0.1:{one_port}", f"{word}/#", "-C", "1", "--json"
        ) as sub:
            assert "subscribed to" in sub.told()
            code, out, err = wayfare(
                *("service", "pub", f"127.0.0.1:{two_port}", f"{word}/x", "hello"),
                *("price=3", "topic=5", "payload=none"),
            )
            assert (code, out, err) == (0, "", "")
            properties = {"price": 3, "topic": 5, "payload": "none"}
            facts = {"topic": f"{word}/x", "payload": "hello", "properties": properties}
            assert msgspec.json.decode(sub.line()) == facts
            assert sub.end() == (0, "", "")
        assert one.stop(signal.SIGINT) == (0, "", "")
        assert two.stop(signal.SIGTERM) == (0, "", "")


@on_mqtt
def test_an_agent_runs_in_a_shell(
    overlay_of: Nodes, system: str, word: str, tmp_path: Path
) -> None:
    a, _, _ = overlay_of(system).addresses
    (port,) = free_ports(1)
    control = str(tmp_path / "agent")
    where = f"127.0.0.1:{port}"
    watching = ["--proxies", f"127.0.0.1:9,{where}", "--control", control, "--interval", "0.3"]

    async def story() -> None:
        async with connect("ann" + word, agent=control) as ann:
            assert ann.place == where
            done = asyncio.to_thread(wayfare, "service", "move", "out", "--control", control)
            assert await done == (0, "", "")
            assert ann.state == "away"

    with (
        program("service", "proxy", "--access", a, "--listen", str(port)) as one,
        program("service", "agent", *watching, "--json") as agent,
    ):
        one.line()
        assert json.loads(agent.line()) == {"proxy": where, "clients": []}
        run(story())
        assert json.loads(agent.line()) == {"client": "ann" + word, "proxy": where}
        moved = {"client": "ann" + word, "moved": True, "why": ""}
        assert [json.loads(agent.line()) for _ in range(2)] == [moved, moved]
        assert json.loads(agent.line()) == {"client": "ann" + word, "left": True}
        assert agent.stop(signal.SIGINT) == (0, "", "")
        assert not Path(control).exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["proxy", "--access", "carrier://pigeon"], "no publish/subscribe system is known"),
        (["proxy", "--access", "mqtt://a", "--listen", "0.0.0.0:7500"], "--address 10.0.0.5:7500"),
        (["proxy", "--access", "mqtt://a", "--peers", "a:b"], "no address of a mobility proxy"),
        (["proxy", "--access", "mqtt://a", "--listen", "256.0.0.1:0"], "cannot listen"),
        (["proxy", "--access", "mqtt://a:99999"], "is no address"),
        (["proxy", "--access", "mqtt://a..b"], "names of hosts have 1 to 63 characters between dots; write mqtt://"),
        (["proxy", "--access", "mqtt://::1"], "an IPv6 address is in brackets, like [::1]:1883"),
        (["proxy", "--access", "mqtt://a", "--listen", "a..b:7500"], "'a..b:7500' is no place: names of hosts"),
        (["proxy", "--access", "mqtt://a", "--listen", "::1"], "is no place: it has too many colons"),
        (["proxy", "--access", "mqtt://a", "--address", "a..b"], "names of hosts have 1 to 63 characters"),
        (["proxy", "--access", "mqtt://a", "--peers", "::1"], "an IPv6 address is in brackets, like [::1]:7500"),
        (["sub", "::1", "x"], "an IPv6 address is in brackets, like [::1]:7500"),
        (["pub", "tls://fe80::1", "x"], "an IPv6 address is in brackets, like [::1]:7500"),
        (["proxy", "--access", "mqtt://a/b"], "is no address: write mqtt://host:port"),
        (["proxy", "--access", "mqtt://a", "--tell", "mqtt://"], "is no address"),
        (["proxy", "--access", "mqtt://a", "--tell", "nats://a"], "--tell is by nats:// and --access by mqtt://: give"),
        (["proxy", "--access", "mqtt://a", "--peers", ","], "there is no address"),
        (["proxy", "--access", "mqtt://a", "--address", "tls://a:1"], "give a certificate and its key, by --tls"),
        (["proxy", "--access", "mqtt://a", "--tls", "/no/cert", "/no/key"], "cannot read /no/key: No such file"),
        (["proxy", "--access", "mqtts://a", "--ca", "/no/ca"], "cannot read /no/ca: No such file"),
        (["agent", "--proxies", "tls://a:1", "--ca", "/no/ca"], "cannot read /no/ca: No such file"),
        (["pub", "http://a:1", "x"], "write host:port, or tls://host:port"),
        (["agent", "--proxies", ""], "there is no address"),
        (["agent", "--proxies", "127.0.0.1:9", "--interval", "0"], "more than 0 seconds"),
        (["agent", "--proxies", "a:b"], "no address of a mobility proxy"),
        (["agent", "--proxies", "127.0.0.1:9", "--control", "/no/such/place"], "cannot listen at /no"),
        (["move", "out", "--control", "/no/such/place"], "no agent answers at /no/such/place"),
        (["sub", "127.0.0.1:9", "x"], "no mobility proxy answers at 127.0.0.1:9"),
        (["pub", "127.0.0.1:9", "x"], "nobody listens there"),
        (["pub", "127.0.0.1:9", "x", "--login", "\udcff:x"], "a login is user:password"),
        (["sub", "127.0.0.1:9", "x", "--sync", "pong"], "no way to synchronise"),
    ],
)  # fmt: skip
def test_bad_words_get_a_sentence(arguments: list[str], sentence: str) -> None:
    code, out, err = wayfare("service", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


def test_a_client_needs_one_place_to_be() -> None:
    for places in ({}, {"proxy": "127.0.0.1:1", "agent": ""}):
        with pytest.raises(UsageError, match="say where the client is"):
            connect("ann", **places)

    async def story() -> None:
        with pytest.raises(CannotConnect, match="no agent answers"):
            async with connect("ann", agent="/no/such/place"):
                pass

    run(story())


@pytest.mark.parametrize(
    "option", [{"lease": 0}, {"lease": 1e30}, {"age": float("inf")}, {"patience": float("nan")}]
)
def test_options_that_no_proxy_can_be_told_are_refused_at_once(option: dict[str, float]) -> None:
    (name,) = option
    with pytest.raises(UsageError, match=f"{name} cannot be .*: give 0"):
        connect("ann", "127.0.0.1:1", **option)


def test_one_text_in_place_of_several_is_not_taken_for_its_letters() -> None:
    with pytest.raises(UsageError, match=r"write \['news/#'\]"):
        connect("ann", "127.0.0.1:1", subscriptions="news/#")


# ---- hosts ---------------------------------------------------------------------------------


class Told:
    """In place of connections: what is done, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def send(self, peer: str, message: m.Message) -> None:
        self.done.append("send")

    def dial(self, peer: str) -> None:
        self.done.append("dial")

    def hang(self, peer: str) -> None:
        self.done.append("hang")


def test_who_is_hung_up_on_and_dialled_before_that_is_safe_is_dialled_after_it() -> None:
    async def story() -> None:
        server, told = Server("mqtt://127.0.0.1:1"), Told()
        server._wires = told  # type: ignore[assignment]
        server._safe = asyncio.get_running_loop().create_future()
        server._perform([e.Hang("proxy")])
        server._perform([e.Dial("proxy"), e.Send("proxy", m.Hello("ann"))])
        assert not told.done
        server._say()
        assert told.done == ["hang", "dial", "send"]

    run(story())


def test_names_that_no_host_can_have() -> None:
    async def story() -> None:
        for name in ("a..b:7500", f"{'x' * 300}:7500"):
            with pytest.raises(UsageError, match="names of hosts have 1 to 63 characters"):
                await ask(name)
        gone: list[e.Event] = []
        wires = Wires(gone.append)
        wires.dial("a..b:7500")
        await until(lambda: gone)
        (why,) = gone
        assert isinstance(why, e.PeerGone)
        assert "names of hosts have" in why.reason
        with pytest.raises(UsageError, match="no address"):
            where("host:0001000000")

    run(story())
