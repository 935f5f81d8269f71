"""Connections of mobility proxies: whom they may call, and what others make them keep."""

import asyncio
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import pytest

from test_service_live import Nodes, run
from test_service_trouble import until
from wayfare.errors import UsageError
from wayfare.service import messages as m
from wayfare.service import wire
from wayfare.service.nodes import free_ports
from wayfare.service.proxy_addresses import only
from wayfare.service.proxy_server import Server
from wayfare.service.wire import WAITING_MAX


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",  # where clouds tell their machines secrets
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::169.254.169.254]",
        "[64:ff9b:1::169.254.169.254]",
        "[2002:a9fe:a9fe::1]",
        "[2001:0:a9fe:a9fe::1]",
        "[::169.254.169.254]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fe80::1%lo]",
        "0.0.0.0",
        "[::]",
        "[::ffff:0.0.0.0]",
        "[::ffff:8.8.8.8]",
        "192.0.0.192",
        "100.100.100.200",
        "255.255.255.255",
        "224.0.0.1",
        "[ff02::1]",
    ],
)
def test_no_client_gets_at_what_only_the_machine_of_its_proxy_reaches(host: str) -> None:
    async def story() -> None:
        with pytest.raises(UsageError, match="not in a private network"):
            await only([], lambda _: "127.0.0.1", proves=True)(f"{host}:80")

    run(story())


@pytest.mark.parametrize(
    ("host", "ip"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3"),
        ("172.31.0.1", "172.31.0.1"),
        ("192.168.0.1", "192.168.0.1"),
        ("[::ffff:10.1.2.3]", "10.1.2.3"),
        ("[::1]", "::1"),
        ("[fd12::1]", "fd12::1"),
    ],
)
def test_an_address_of_a_private_network_is_called_without_looking_it_up(
    host: str, ip: str
) -> None:
    """Lookups wait for threads, and all of these may be waiting for servers that do not answer."""

    async def looked_up(*_: Any, **__: Any) -> None:
        raise AssertionError("it was looked up")

    async def story() -> None:
        with mock.patch.object(asyncio.get_running_loop(), "getaddrinfo", looked_up):
            assert await only([], lambda _: "127.0.0.1", proves=True)(f"{host}:80") == (ip, 80)

    run(story())


# ---- what others say -------------------------------------------------------------------


class Talk:
    """A connection to a proxy, or of one, without the library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, proxy: str, source: tuple[str, int] | None = None) -> "Talk":
        host, port = proxy.split(":")
        return cls(*await asyncio.open_connection(host, port, local_addr=source))

    def say(self, message: m.Message) -> None:
        frame = m.encode(message)
        self.writer.write(struct.pack(">I", len(frame)) + frame)

    async def hear(self) -> m.Message:
        async with asyncio.timeout(10):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            return m.decode(await self.reader.readexactly(length))

    def close(self) -> None:
        self.writer.close()


BAD = ("fine", "a\r\nPUB door.open 3\r\nyes")
TERMS = m.Terms(sync=m.NO_SYNC)


@pytest.mark.parametrize("system", ["nats"])
def test_a_subscription_that_the_system_cannot_have_is_refused_by_the_proxy_too(
    overlay_of: Nodes, system: str, word: str
) -> None:
    """Else its access breaks on it, is opened again, and breaks, for ever."""

    async def old_proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = Talk(reader, writer)
        assert isinstance(await talk.hear(), m.Hello)
        talk.say(m.Welcome("", ""))
        await talk.hear()
        talk.say(m.Downloaded(f"eve{word}", 1, "", 1, 0, subscriptions=BAD))
        await reader.read()  # until it is hung up on
        talk.close()

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        server = Server(a)
        talk = await Talk.to(await server.start())
        (port,) = free_ports(1)
        old = await asyncio.start_server(old_proxy, "127.0.0.1", port)
        at = f"127.0.0.1:{port}"
        ann, eve = f"ann{word}", f"eve{word}"
        talk.say(m.Register(ann, "key", 1, ("fine",), TERMS))
        assert isinstance(await talk.hear(), m.Registered)
        refused: list[m.Message] = [
            m.Register(eve, "key", 1, BAD, TERMS),
            m.MoveOut(eve, "key", 1, BAD, TERMS),
            m.Register(eve, "key", 1, tuple(f"{n}{'x' * 8000}" for n in range(300)), TERMS),
            m.Change(ann, "key", 1, BAD, ()),
            m.Download(eve, "key", 1, 1, at, {}, TERMS),
        ]
        for message in refused:
            talk.say(message)
            answer = await talk.hear()
            assert isinstance(answer, m.Refused) or (
                isinstance(answer, m.Downloaded) and not answer.found
            ), message
            assert "is no NATS subscription" in answer.reason or "at most" in answer.reason
        assert list(server.proxy.clients) == [ann]
        assert list(server.proxy.clients[ann].subscriptions) == ["fine"]
        talk.close()
        old.close()
        await server.stop()

    run(story())


@contextmanager
def nobody_answers() -> Iterator[str]:
    """An address where calls get lost, as behind a firewall."""
    (port,) = free_ports(1)
    place = "127.0.0.1", port
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(place)
        full.listen(0)
        for each in (one, two):
            each.setblocking(False)
            each.connect_ex(place)
        yield f"127.0.0.1:{port}"


def test_questions_to_a_proxy_that_does_not_answer_do_not_fill_the_memory() -> None:
    heard = {f"{number}{'x' * 700}": 1 for number in range(5000)}

    async def story() -> None:
        server = Server("nats://127.0.0.1:9")
        with nobody_answers() as at:
            talk = await Talk.to(await server.start())
            wanted = m.Download("ann", "key", 1, 1, at, heard)
            for _ in range(12):  # the same one again takes the place of the first
                talk.say(wanted)
            talk.say(m.Release("ann", "key", at, 1, 1))
            talk.say(m.Download("nobody", "key", 1, 2, "", {}))
            answer = await talk.hear()
            assert isinstance(answer, m.Downloaded) and answer.client == "nobody"
            size = server._wires._dialling[at].size
            assert size < 2 * len(m.encode(wanted))
            for number in range(WAITING_MAX // size):
                talk.say(m.Download(f"eve{number}", "key", 1, 1, at, heard))
            for _ in range(WAITING_MAX // size + 1):
                answer = await talk.hear()
                assert isinstance(answer, m.Downloaded) and not answer.reached
                assert "too much is to be said to it" in answer.reason
            assert not server._wires._dialling
            talk.close()
        await server.stop()

    run(story())


def test_who_speaks_for_no_client_may_not_stay_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "IDLE_S", 0.3)
    terms = m.Terms(standby=False)

    async def story() -> None:
        server = Server("nats://127.0.0.1:9")
        here = await server.start()
        idle, ann, eve, bob = [await Talk.to(here) for _ in range(4)]
        for talk, name in ((ann, "ann"), (bob, "bob")):
            talk.say(m.Register(name, "key", 1, (), terms))
            assert isinstance(await talk.hear(), m.Registered)
        bob.say(m.Leave("bob", "key", 1))
        eve.say(m.Renew("ann", "another key", 1, {}))
        assert isinstance(await eve.hear(), m.Refused)
        idle.say(m.Hello("?"))
        assert isinstance(await idle.hear(), m.Welcome)
        for talk in (idle, eve, bob):
            async with asyncio.timeout(5):
                with suppress(ConnectionResetError):
                    assert await talk.reader.read() == b""
            talk.close()
        ann.say(m.Hello("ann"))
        assert isinstance(await ann.hear(), m.Welcome)
        ann.close()
        await server.stop()

    run(story())


def test_a_proxy_that_has_too_many_connections_says_so_once_and_serves_those_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "wayfare")  # other tests make it quiet
    monkeypatch.setattr(resource, "getrlimit", lambda _: (6, 6))

    async def is_served(talk: Talk) -> bool:
        talk.say(m.Hello("?"))
        with suppress(ConnectionResetError, asyncio.IncompleteReadError):
            return isinstance(await talk.hear(), m.Welcome)
        return False

    async def story() -> None:
        server = Server("nats://127.0.0.1:9")
        here = await server.start()
        talks = [await Talk.to(here) for _ in range(6)]
        assert [await is_served(talk) for talk in talks] == 3 * [True] + 3 * [False]
        assert len(caplog.messages) == 1
        assert "3 connections are open: no more are taken" in caplog.text
        for talk in talks:
            talk.close()
        await until(lambda: not len(server._wires))
        another = await Talk.to(here)
        assert await is_served(another)
        another.close()
        await server.stop()

    run(story())


def test_whatever_is_wrong_with_the_system_is_told_when_a_proxy_is_started(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", "wayfare")  # other tests make it quiet

    async def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug of a library")

    async def story() -> None:
        server = Server("nats://127.0.0.1:9")
        await server.start()
        with mock.patch.object(server._system, "open", breaks):
            serving = asyncio.create_task(server.serve())
            await until(lambda: "nats://127.0.0.1:9 could not be asked" in caplog.text, 5)
            assert "a bug of a library" in caplog.text
        serving.cancel()
        await asyncio.wait([serving])
        await server.stop()

    run(story())
