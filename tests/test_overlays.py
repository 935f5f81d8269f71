"""Overlays of real systems on loopback: what is published at one node reaches the others."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import aio_pika
import pytest

import wayfare
from wayfare.errors import UsageError
from wayfare.service import nodes, overlays, servers
from wayfare.service.nodes import HERE, Node, free_ports
from wayfare.service.overlays import missing, overlay, packages

SYSTEMS = list(servers.SERVERS)
WAIT_S = 20.0
AGAIN_S = 0.1  # between two publications: a subscription may be on its way

# What a client says to subscribe to "here", and to publish "hello" there, where that is a few words.
MQTT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"
STOMP = b"CONNECT\naccept-version:1.2\nhost:here\n\n\0"
WORDS = {
    "mqtt": (MQTT + b"\x82\x09\x00\x01\x00\x04here\x00", MQTT + b"\x30\x0b\x00\x04herehello"),
    "nats": (b"CONNECT {}\r\nSUB here 1\r\n", b"CONNECT {}\r\nPUB here 5\r\nhello\r\n"),
    "redis": (b"SUBSCRIBE here\r\n", b"PUBLISH here hello\r\n"),
    "stomp": (
        STOMP + b"SUBSCRIBE\nid:1\ndestination:/topic/here\n\n\0",
        STOMP + b"SEND\ndestination:/topic/here\n\nhello\0",
    ),
}


@contextlib.asynccontextmanager
async def saying(address, words):
    reader, writer = await asyncio.open_connection(HERE, int(address.rpartition(":")[2]))
    try:
        writer.write(words)
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


async def by_words(system, publish_at, subscribe_at):
    subscribe, publish = WORDS[system]
    async with saying(subscribe_at, subscribe) as subscriber:
        await subscriber.read(1)  # an answer
        arrived = asyncio.create_task(subscriber.readuntil(b"hello"))
        while not arrived.done():
            async with saying(publish_at, publish):
                await asyncio.wait([arrived], timeout=AGAIN_S)
        await arrived


async def by_amqp(publish_at, subscribe_at):
    async with (
        await aio_pika.connect(subscribe_at) as subscriber,
        await aio_pika.connect(publish_at) as publisher,
    ):
        channel = await subscriber.channel()
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind("amq.topic", "here")
        exchange = await (await publisher.channel()).get_exchange("amq.topic")
        while (message := await queue.get(fail=False, no_ack=True)) is None:
            await exchange.publish(aio_pika.Message(b"hello"), "here")
            await asyncio.sleep(AGAIN_S)
        assert message.body == b"hello"


async def by_wayfare(publish_at, subscribe_at):
    async with (
        await wayfare.connect(subscribe_at) as subscriber,
        await wayfare.connect(publish_at) as publisher,
    ):
        await publisher.advertise("topic = 'here'")
        subscription = await subscriber.subscribe("topic = 'here'")
        arrived = asyncio.create_task(subscription.get(WAIT_S))
        while not arrived.done():
            await publisher.publish({"topic": "here", "text": "hello"})
            await asyncio.wait([arrived], timeout=AGAIN_S)
        assert (await arrived)["text"] == "hello"


async def deliver(system, publish_at, subscribe_at):
    """Subscribe at one node, and publish at another until it arrives."""
    by = {"amqp": by_amqp, "wayfare": by_wayfare}.get(system)
    async with asyncio.timeout(WAIT_S):
        if by is None:
            await by_words(system, publish_at, subscribe_at)
        else:
            await by(publish_at, subscribe_at)


def processes_in(directory):
    """All processes that work in there: every node has a directory, and its children inherit it."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if process.joinpath("cwd").readlink().is_relative_to(directory):
                    found.append(int(process.name))
    return found


def nothing_works_in(directory):
    """Wait for it: Erlang has helpers that see by themselves that they are needed no more."""
    late = time.monotonic() + WAIT_S
    while processes_in(directory) and time.monotonic() < late:
        time.sleep(0.01)
    return not processes_in(directory)


@pytest.mark.parametrize("system", SYSTEMS)
def test_publications_reach_every_node_from_every_other(system, overlay_of):
    a, b, c = overlay_of(system).addresses

    async def everywhere():
        await deliver(system, a, c)
        await deliver(system, c, a)
        await deliver(system, b, a)

    asyncio.run(everywhere())


@pytest.mark.parametrize("system", ["mqtt", "nats", "redis", "wayfare"])
def test_a_node_that_was_killed_comes_back_and_finds_the_others(system, overlay_of):
    running = overlay_of(system)
    a, _, c = running.addresses

    async def again():
        killed = running.nodes["a"].pid
        running.kill("a")
        assert not Path(f"/proc/{killed}").exists()
        await running.start("a")
        await deliver(system, a, c)

    asyncio.run(again())


@pytest.mark.parametrize("system", SYSTEMS)
def test_stopped_while_it_starts_nothing_is_left(system, need_server, tmp_path):
    need_server(system)

    async def enter():
        async with overlay(system, tmp_path):
            raise AssertionError("it was to be stopped before")

    async def stop_early():
        task = asyncio.create_task(enter())
        while len(processes_in(tmp_path)) < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stop_early())
    assert nothing_works_in(tmp_path)


@pytest.mark.parametrize("system", ["nats"])
def test_an_error_inside_leaves_nothing_behind(system, need_server, tmp_path):
    need_server(system)

    async def fail():
        async with overlay(system, tmp_path):
            assert len(processes_in(tmp_path)) == 3
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(fail())
    assert nothing_works_in(tmp_path)


STARTS = """
import asyncio, pathlib, signal, sys
from wayfare.service.overlays import overlay

async def main():
    async with overlay(sys.argv[1], pathlib.Path(sys.argv[2])):
        print("ready", flush=True)
        await asyncio.sleep(60)

# Whoever runs tests in the background may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda one: one.name)
@pytest.mark.parametrize("system", ["mqtt", "nats"])
def test_whoever_is_interrupted_or_killed_takes_the_nodes_along(
    system, number, need_server, tmp_path
):
    need_server(system)
    command = [sys.executable, "-c", STARTS, system, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert len(processes_in(tmp_path)) == 3
        process.send_signal(number)
        process.wait(30)
    assert nothing_works_in(tmp_path)


def test_a_server_that_ends_at_once_says_why_and_takes_the_others_along(tmp_path, monkeypatch):
    def two(directory):
        sleep = Node("a", free_ports(1)[0], directory, ["sleep", "60"])
        wrong = Node("b", free_ports(1)[0], directory, ["sh", "-c", "echo error: no disk; exit 1"])
        return [sleep, wrong]

    server = servers.Server("nats", "nats-server", [], two)
    monkeypatch.setitem(servers.SERVERS, "nats", server)

    async def start():
        async with overlay("nats", tmp_path):
            raise AssertionError("it cannot start")

    with pytest.raises(
        UsageError, match=r"^sh \(b\) ended at once: error: no disk \(see .*/output"
    ):
        asyncio.run(start())
    assert nothing_works_in(tmp_path)


def test_a_server_that_finds_nobody_is_given_up(tmp_path, monkeypatch):
    def one(directory):
        return [Node("a", free_ports(1)[0], directory, ["sleep", "60"])]

    monkeypatch.setitem(servers.SERVERS, "nats", servers.Server("nats", "nats-server", [], one))
    monkeypatch.setattr(overlays, "START_S", 0.2)

    async def start():
        async with overlay("nats", tmp_path):
            raise AssertionError("it cannot start")

    with pytest.raises(
        UsageError, match=r"did not find each other within 0\.2 s; a said: it said no"
    ):
        asyncio.run(start())
    assert nothing_works_in(tmp_path)


def test_what_is_missing_is_named_with_its_package(monkeypatch):
    needs = ["nats-server-that-is-not", "/usr/lib/nats", "sh"]
    absent = servers.Server("nats", "nats-server", needs, servers.nats)
    for name in servers.SERVERS:
        monkeypatch.setitem(servers.SERVERS, name, servers.Server(name, "", [], servers.nats))
    assert packages() == []
    monkeypatch.setitem(servers.SERVERS, "nats", absent)
    sentence = "nats needs nats-server-that-is-not and /usr/lib/nats: apt-get install nats-server"
    assert missing("nats") == sentence
    assert packages() == ["nats-server"]
    with pytest.raises(UsageError, match=f"^{sentence}$"):
        asyncio.run(overlay("nats", Path("nowhere")).__aenter__())
    with pytest.raises(UsageError, match="there is no system 'kafka': there are mqtt, nats"):
        missing("kafka")


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_a_missing_server_fails_in_ci_and_is_skipped_elsewhere(
    ci, outcome, need_server, monkeypatch
):
    monkeypatch.setenv("CI", ci)
    absent = servers.Server("nats", "nats-server", ["nats-server-that-is-not"], servers.nats)
    monkeypatch.setitem(servers.SERVERS, "nats", absent)
    with pytest.raises(outcome, match="apt-get install nats-server"):
        need_server("nats")


def test_a_port_is_free_where_nobody_listens_and_only_once(monkeypatch):
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(nodes, "PORTS", range(port, port + 1))
        with pytest.raises(
            UsageError, match=f"no 1 ports of {HERE} are free from {port} to {port}$"
        ):
            free_ports(1)
    assert free_ports(1) == [port]
    with pytest.raises(UsageError, match="no 1 ports"):  # it may not listen there yet
        free_ports(1)
