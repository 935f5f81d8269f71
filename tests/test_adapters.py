"""One contract for all adapters, over real servers.

What a system does not have (its traits) is not asked of it; everything else is.
"""

import asyncio
import contextlib
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import aio_pika
import pytest
from paho.mqtt.client import MQTTMessage
from stomp import StompConnection12
from stomp.exception import NotConnectedException

import wayfare
from wayfare.errors import CannotConnect, Closed, Refused, UsageError
from wayfare.service import line
from wayfare.service.adapters import ADAPTERS, adapter
from wayfare.service.addresses import Scheme, place, quoted
from wayfare.service.inbox import QUEUE_MAX
from wayfare.service.nodes import Node, free_ports, program
from wayfare.service.redis import MAGIC, Redis
from wayfare.service.servers import SERVERS as OVERLAYS
from wayfare.service.system import ID_PROPERTY, Access, Id, Publication, System

QUIET_S = 0.3  # nothing more comes after so long


# ---- servers ---------------------------------------------------------------------------


class Server(NamedTuple):
    """How one server of a system is started; what stands in `config` is written to a file before."""

    command: str
    config: str = ""


REDIS = Server("redis-server --bind 127.0.0.1 --port {port} --dir {dir} --save {more}")
SERVERS = {
    "mqtt": Server(
        "mosquitto -c {dir}/config",
        "user root\nlistener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
        "set_tcp_nodelay true\n{more}",
    ),
    "nats": Server("nats-server -a 127.0.0.1 -p {port} {more}"),
    "redis": REDIS,
    "redis+envelope": REDIS,
}
NODES = ("amqp", "stomp", "wayfare")  # of which one node of an overlay is started
PAYLOAD_MAX = 2_000_000  # bytes that some of them take


def nodes_of(scheme: str, directory: Path, more: str) -> list[Node]:
    """One server, and what it needs to start."""
    if scheme in NODES:
        nodes = [one for one in OVERLAYS[scheme].nodes(directory) if one.first or one.name == "a"]
        limit(scheme, nodes[-1])
        return nodes
    (port,) = free_ports(1)
    words = {"port": port, "dir": directory, "more": more}
    (directory / "config").write_text(SERVERS[scheme].config.format_map(words))
    name, *options = SERVERS[scheme].command.format_map(words).split()
    return [Node(scheme, port, directory, [program(name), *options])]


def limit(scheme: str, node: Node) -> None:
    """To payloads of so many bytes."""
    if scheme == "amqp":
        with (node.directory / "rabbitmq.conf").open("a") as config:
            config.write(f"max_message_size = {PAYLOAD_MAX}\n")
    if scheme == "stomp":
        path, at = node.directory / "activemq.xml", f"stomp://127.0.0.1:{node.port}"
        most = f"?wireFormat.maxDataLength={PAYLOAD_MAX}"
        path.write_text(path.read_text().replace(at, at + most))


@contextlib.contextmanager
def running(scheme: str, directory: Path, more: str = "") -> Iterator[tuple[str, Node]]:
    """A server of its own, with more settings: its address and process."""
    nodes = nodes_of(scheme, directory, more)
    try:
        for one in nodes:
            one.start()
            end = time.monotonic() + 100
            while not listens(one.port):
                assert time.monotonic() < end, one.last_words()
                time.sleep(0.05)
        yield f"{scheme}://127.0.0.1:{nodes[-1].port}", nodes[-1]
    finally:
        for one in nodes:
            one.kill()


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="session")
def started(
    tmp_path_factory: pytest.TempPathFactory, need_server: Callable[[str], None]
) -> Iterator[Callable[[str], str]]:
    """Gives the address of the one server of a kind, which is started when it is asked for first."""
    there: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def start(scheme: str) -> str:
            if scheme not in there:
                need_server(scheme.partition("+")[0])
                server = running(scheme, tmp_path_factory.mktemp(scheme))
                there[scheme], _ = stack.enter_context(server)
            return there[scheme]

        yield start


# That takes a while: all tests with one server go to the same worker.
@pytest.fixture(
    params=[
        pytest.param(one, marks=pytest.mark.xdist_group(f"server of {one}"))
        for one in [*SERVERS, *NODES]
    ],
)
def address(request: pytest.FixtureRequest, started: Callable[[str], str]) -> str:
    """Where a server of each kind listens, in turn."""
    return started(request.param)


@pytest.fixture
def system(address: str) -> System:
    return adapter(address)


@pytest.fixture
def word() -> str:
    """The first word of topics that no other test uses."""
    return f"t{random.randrange(10**9)}"


# ---- clients ---------------------------------------------------------------------------


class Client:
    """A client that notes everything it is told."""

    access: Access

    def __init__(self, system: System, address: str, name: str) -> None:
        self.system, self.address, self.name = system, address, name
        self.got: list[Publication] = []
        self.lost: list[str] = []
        self.hold: asyncio.Event | None = None  # `deliver` waits for this

    async def deliver(self, publication: Publication) -> None:
        self.got.append(publication)
        if self.hold is not None:
            await self.hold.wait()

    async def open(
        self, *, resume: bool = False, lasting: bool = False, address: str = ""
    ) -> "Client":
        where = address or self.address
        self.access = await self.system.open(
            where, self.name, self.deliver, self.lost.append, resume=resume, lasting=lasting
        )
        return self

    async def has(self, count: int) -> list[Publication]:
        """Wait for so many publications, and see that there are not more."""
        await until(lambda: len(self.got) >= count)
        await asyncio.sleep(QUIET_S)
        return self.got


async def until(true: Callable[[], object], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def clients(system: System, address: str, *names: str) -> AsyncIterator[list[Client]]:
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for name in names:
            client = await Client(system, address, f"{name}{random.randrange(10**9)}").open()
            stack.push_async_callback(lambda client=client: client.access.close())
            made.append(client)
        yield made


class Relay:
    """Stands between a client and its server, and can be cut like a cable."""

    def __init__(self, address: str) -> None:
        scheme, _, rest = address.partition("://")
        self.scheme, self.port = scheme, int(rest.rpartition(":")[2])
        self.writers: list[asyncio.StreamWriter] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Relay":
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.address = f"{self.scheme}://127.0.0.1:{port}"
        return self

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers += [writer, other_writer]
        for source, sink in ((reader, other_writer), (other_reader, writer)):
            self.tasks.append(asyncio.create_task(self.pump(source, sink)))

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
            sink.write_eof()

    async def cut(self) -> None:
        for task in self.tasks:
            task.cancel()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        self.server.close()
        await self.server.wait_closed()


def run(coroutine) -> None:
    """Run it, and see that no task is left."""

    async def whole() -> None:
        async with asyncio.timeout(60):
            await coroutine
        await asyncio.sleep(0.05)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"

    asyncio.run(whole())


# ---- the contract ----------------------------------------------------------------------


def test_a_publication_arrives_as_it_was_published(system, address, word):
    properties = {"shop": "Bergstraße", "price": 42, "rate": 0.5, "fresh": True, "old": False}
    published = Publication(system.topic(word, "a"), bytes(range(256)), properties, Id("a/1", 7))
    if not system.traits.carries_ids:
        published = Publication(published.topic, published.payload)
        properties = {}

    async def story():
        async with clients(system, address, "anna", "bert") as (anna, bert):
            await anna.access.subscribe([system.subscription(published.topic)])
            await bert.access.publish(published)
            await bert.access.publish(Publication(system.topic(word, "b"), b"not asked for"))
            assert await anna.has(1) == [published]
            kinds = {name: type(value) for name, value in anna.got[0].properties.items()}
            assert kinds == {name: type(value) for name, value in properties.items()}
            assert bert.got == []

    run(story())


def test_a_publication_may_be_nothing_but_a_topic(system, address, word):
    published = Publication(system.topic(word))

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([system.subscription(published.topic)])
            await anna.access.publish(published)
            assert await anna.has(1) == [published]

    run(story())


def test_large_payloads_arrive(system, address, word):
    payload = random.randbytes(700_000)

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([system.subscription(system.topic(word))])
            await anna.access.publish(Publication(system.topic(word), payload))
            assert [publication.payload for publication in await anna.has(1)] == [payload]

    run(story())


def test_what_was_taken_back_does_not_arrive(system, address, word):
    a, b = system.topic(word, "a"), system.topic(word, "b")

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([system.subscription(a), system.subscription(b)])
            await anna.access.unsubscribe([system.subscription(a)])
            await anna.access.publish(Publication(a))
            await anna.access.publish(Publication(b))
            assert await anna.has(1) == [Publication(b)]
            await anna.access.subscribe([])
            await anna.access.unsubscribe([])

    run(story())


def test_a_hundred_subscriptions_at_once(system, address, word):
    topics = [system.topic(word, f"w{number}") for number in range(100)]

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([system.subscription(topic) for topic in topics])
            for topic in topics:
                await anna.access.publish(Publication(topic))
            assert [publication.topic for publication in await anna.has(100)] == topics

    run(story())


# Copies of one publication for a subscription to its topic and another one that covers it.
WILD = {
    "amqp": ("{word}.#", 1),
    "mqtt": ("{word}/#", 2),
    "nats": ("{word}.>", 2),
    "redis": ("{word}:*", 2),
    "stomp": ("/topic/{word}.>", 1),
    "wayfare": ("topic prefix '{word}/'", 1),
}


def test_overlapping_subscriptions(system, address, word):
    text, copies = WILD[system.scheme]
    topic = system.topic(word, "a")

    async def story():
        async with clients(system, address, "anna") as (anna,):
            wild = text.format(word=word)
            system.check(wild)
            await anna.access.subscribe([system.subscription(topic), wild])
            await anna.access.publish(Publication(topic, b"x"))
            assert await anna.has(copies) == [Publication(topic, b"x")] * copies
            # One of them taken back, the other one goes on.
            await anna.access.unsubscribe([system.subscription(topic)])
            await anna.access.publish(Publication(topic, b"y"))
            assert (await anna.has(copies + 1))[copies:] == [Publication(topic, b"y")]

    run(story())


def test_the_same_subscription_twice_is_one_subscription(system, address, word):
    topic = system.topic(word)
    text = system.subscription(topic)

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([text])
            await anna.access.subscribe([text])
            await anna.access.publish(Publication(topic))
            assert await anna.has(1) == [Publication(topic)]
            await anna.access.unsubscribe([text])
            await anna.access.publish(Publication(topic))
            assert await anna.has(1) == [Publication(topic)]

    run(story())


def test_what_was_published_before_the_goodbye_arrives(system, address, word):
    """... even if the one who leaves has not read everything that was for him."""
    topic = system.topic(word)
    count = QUEUE_MAX * 2

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([system.subscription(topic)])
            bert = await Client(system, address, f"bert{word}").open()
            bert.hold = asyncio.Event()
            await bert.access.subscribe([system.subscription(topic)])
            for start in range(0, count, 100):
                batch = [Publication(topic, b"%d" % (start + each)) for each in range(100)]
                await asyncio.gather(*map(bert.access.publish, batch))
            await bert.access.close()
            assert [int(each.payload) for each in await anna.has(count)] == list(range(count))

    run(story())


def test_publications_of_one_sender_arrive_in_order(system, address, word):
    """... over subscriptions of their own, published one by one and all at once."""
    topics = [system.topic(word, name) for name in "abc"]
    sent = [Publication(topics[number % 3], b"%d" % number) for number in range(1_000)]

    async def story():
        async with clients(system, address, "anna", "bert") as (anna, bert):
            await anna.access.subscribe([system.subscription(topic) for topic in topics])
            for publication in sent[:200]:
                await bert.access.publish(publication)
            await asyncio.gather(*(bert.access.publish(each) for each in sent[200:]))
            assert await anna.has(1_000) == sent

    run(story())


def test_a_slow_client_gets_everything(system, address, word):
    """More than its inbox and the server's window hold: the rest has to wait somewhere."""
    topic = system.topic(word)
    count = QUEUE_MAX * 3

    async def story():
        async with clients(system, address, "anna", "bert") as (anna, bert):
            anna.hold = asyncio.Event()
            await anna.access.subscribe([system.subscription(topic)])
            for number in range(0, count, 100):
                batch = [Publication(topic, b"%d" % (number + each)) for each in range(100)]
                await asyncio.gather(*map(bert.access.publish, batch))
            await asyncio.sleep(QUIET_S)
            assert len(anna.got) == 1
            if system.scheme != "wayfare":  # whose client has a window of its own
                assert len(anna.access._inbox._items) <= QUEUE_MAX
            anna.hold.set()
            assert [int(each.payload) for each in await anna.has(count)] == list(range(count))
            assert anna.lost == []

    run(story())


def test_while_one_publication_is_given_on_others_wait(system, address, word):
    topic = system.topic(word)

    async def story():
        async with clients(system, address, "anna") as (anna,):
            anna.hold = asyncio.Event()
            await anna.access.subscribe([system.subscription(topic)])
            await anna.access.publish(Publication(topic, b"1"))
            await anna.access.publish(Publication(topic, b"2"))
            assert len(await anna.has(1)) == 1
            # The access can be used from within `deliver`, meanwhile.
            await anna.access.subscribe([system.subscription(system.topic(word, "more"))])
            anna.hold.set()
            assert len(await anna.has(2)) == 2

    run(story())


def test_suspended_clients_get_what_they_missed(system, address, word):
    topic = system.topic(word)

    async def story():
        async with clients(system, address, "anna", "bert") as (anna, bert):
            await anna.access.subscribe([system.subscription(topic)])
            await anna.access.close(suspend=True)
            sent = [Publication(topic, b"%d" % number, {}, Id("b", number)) for number in range(50)]
            for publication in sent:
                await bert.access.publish(publication)
            await anna.open(resume=True)
            if not system.traits.suspends:
                assert await anna.has(0) == []
                return
            assert anna.access.resumed is True
            assert await anna.has(50) == sent
            # Closed without `suspend`, there is nothing to resume.
            await anna.access.close()
            await bert.access.publish(Publication(topic, b"missed"))
            await anna.open(resume=True)
            assert anna.access.resumed is False
            await bert.access.publish(Publication(topic, b"not asked for"))
            assert await anna.has(50) == sent

    run(story())


@pytest.mark.parametrize("lasting", [False, True], ids=["plain", "lasting"])
def test_a_client_that_does_not_resume_begins_anew(system, address, word, lasting):
    topic = system.topic(word)

    async def story():
        async with clients(system, address, "anna", "bert") as (anna, bert):
            await anna.access.subscribe([system.subscription(topic)])
            await anna.access.close(suspend=True)
            await bert.access.publish(Publication(topic, b"missed"))
            await anna.open(lasting=lasting)
            await bert.access.publish(Publication(topic, b"not asked for"))
            assert await anna.has(0) == []

    run(story())


@pytest.mark.parametrize("way", ["cut", "suspended"])
def test_what_was_not_given_on_comes_again(system, address, word, way):
    topic = system.topic(word)
    sent = [Publication(topic, b"%d" % number) for number in range(30)]

    async def story():
        async with Relay(address) as relay, clients(system, address, "bert") as (bert,):
            anna = await Client(system, address, f"anna{word}").open(address=relay.address)
            await anna.access.subscribe([system.subscription(topic)])
            await bert.access.publish(sent[0])
            assert await anna.has(1) == sent[:1]
            anna.hold = asyncio.Event()  # from here on nothing is finished
            for publication in sent[1:]:
                await bert.access.publish(publication)
            assert await anna.has(2) == sent[:2]
            if way == "cut":
                await relay.cut()
                await until(lambda: anna.lost)
            else:
                await anna.access.close(suspend=True)
            anna.hold = None
            anna.got.clear()
            before = anna.access
            await anna.open(resume=True, address=relay.address)
            kept = sent[1:] if system.traits.suspends else []
            assert await anna.has(len(kept)) == kept
            await anna.access.close()
            await before.close()

    run(story())


# What waits at a server that is killed, and started again: only a broker of Wayfare, of those that are
# started here, writes that to its disk.
SURVIVES = {"mqtt": False, "amqp": False, "stomp": False, "wayfare": True}


def test_when_the_server_is_killed_lost_is_called_once_and_later_it_is_known_what_it_kept(
    system, tmp_path, word
):
    topic = system.topic(word)

    async def story(address, server):
        anna = await Client(system, address, "anna").open()
        await anna.access.subscribe([system.subscription(topic)])
        server.kill()
        await until(lambda: anna.lost)
        await asyncio.sleep(QUIET_S)
        assert len(anna.lost) == 1 and anna.lost[0]
        for refused in (
            anna.access.publish(Publication(system.topic(word))),
            anna.access.subscribe([system.subscription(system.topic(word))]),
            anna.access.unsubscribe([system.subscription(system.topic(word))]),
        ):
            with pytest.raises(Closed, match="gone"):
                await refused
        await anna.access.close()
        await anna.access.close()
        assert len(anna.lost) == 1
        if not system.traits.suspends:
            return
        server.start()
        await server.until(server.listens)
        await anna.open(resume=True)
        assert anna.access.resumed is SURVIVES[system.scheme]
        await anna.access.subscribe([system.subscription(topic)])
        await anna.access.close(suspend=True)
        await anna.open(resume=True)
        assert anna.access.resumed is True
        await anna.access.publish(Publication(topic))
        assert await anna.has(1) == [Publication(topic)]
        await anna.access.close()

    with running(system.scheme, tmp_path) as (address, server):
        run(story(address, server))


def test_who_waits_for_an_answer_is_told_when_the_connection_goes(system, address, word):
    topic = system.topic(word)

    async def story():
        async with Relay(address) as relay:
            anna = await Client(system, address, f"anna{word}").open(address=relay.address)
            for task in relay.tasks:
                task.cancel()  # nothing comes through any more
            waiting = asyncio.create_task(anna.access.subscribe([system.subscription(topic)]))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await relay.cut()
            async with asyncio.timeout(5):
                with pytest.raises(Closed):
                    await waiting
            assert len(anna.lost) == 1
            await anna.access.close()

    run(story())


def test_close_twice_and_no_call_after(system, address, word):
    async def story():
        anna = await Client(system, address, "anna").open()
        await anna.access.close()
        await anna.access.close()
        with pytest.raises(Closed, match="gone: it was closed"):
            await anna.access.publish(Publication(system.topic(word)))
        assert anna.lost == []

    run(story())


def test_close_from_within_deliver(system, address, word):
    async def story():
        async with clients(system, address, "anna") as (anna,):
            closed = asyncio.Event()

            async def leave(_: Publication) -> None:
                await bert.access.close()
                closed.set()

            bert = Client(system, address, f"bert{word}")
            bert.deliver = leave
            await bert.open()
            await bert.access.subscribe([system.subscription(system.topic(word))])
            await anna.access.publish(Publication(system.topic(word)))
            async with asyncio.timeout(5):
                await closed.wait()

    run(story())


def test_a_deliver_that_fails_ends_the_connection(system, address, word, caplog):
    caplog.set_level("WARNING", "wayfare")

    async def fail(_: Publication) -> None:
        raise ValueError("no place left")

    async def story():
        anna = Client(system, address, f"anna{word}")
        anna.deliver = fail
        await anna.open()
        await anna.access.subscribe([system.subscription(system.topic(word))])
        await anna.access.publish(Publication(system.topic(word)))
        await until(lambda: anna.lost)
        assert "no place left" in anna.lost[0]
        with pytest.raises(Closed):
            await anna.access.publish(Publication(system.topic(word)))
        await anna.access.close()

    run(story())
    assert "no place left" in caplog.text


def test_what_goes_wrong_in_reading_is_told(system, address, word, monkeypatch, caplog):
    """Nobody is left who believes to be listening."""
    caplog.set_level("WARNING", "wayfare")
    topic = system.topic(word)

    def fail(*_: object) -> None:
        raise ValueError("nobody has thought of this")

    async def story():
        async with clients(system, address, "anna", "bert") as (anna, bert):
            await anna.access.subscribe([system.subscription(topic)])
            with monkeypatch.context() as broken:
                broken.setattr(sys.modules[type(system).__module__], "Publication", fail)
                await bert.access.publish(Publication(topic))
                await until(lambda: anna.lost)
            assert "nobody has thought of this" in anna.lost[0]
            with pytest.raises(Closed):
                await anna.access.subscribe([system.subscription(topic)])

    run(story())
    assert "nobody has thought of this" in caplog.text


def test_who_was_cut_off_in_the_midst_of_much_can_leave(system, address, word, monkeypatch):
    monkeypatch.setattr(sys.modules[type(system).__module__], "CLOSING_S", 0.5, raising=False)
    large = Publication(system.topic(word), bytes(500_000))

    async def story():
        async with Relay(address) as relay:
            anna = await Client(system, address, f"anna{word}").open(address=relay.address)
            for task in relay.tasks:
                task.cancel()  # nothing comes through any more
            said = [asyncio.create_task(anna.access.publish(large)) for _ in range(40)]
            await asyncio.sleep(0.2)
            async with asyncio.timeout(5):
                await anna.access.close()
            for task in said:
                task.cancel()
            await asyncio.gather(*said, return_exceptions=True)

    run(story())


def test_nobody_listens(system):
    async def story():
        with pytest.raises(
            CannotConnect, match=r"cannot connect to \w+://127.0.0.1:\d+: .*; is the"
        ):
            await Client(system, f"{system.scheme}://127.0.0.1:{free_ports(1)[0]}", "anna").open()

    run(story())


def test_somebody_listens_who_never_says_a_word(system, monkeypatch):
    monkeypatch.setattr(line, "ANSWER_S", 0.3)

    async def story():
        with socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            address = f"{system.scheme}://127.0.0.1:{mute.getsockname()[1]}"
            with pytest.raises(CannotConnect, match=r"no answer|[Tt]imeout|says nothing"):
                await Client(system, address, "anna").open()

    run(story())


@pytest.mark.parametrize("answers", [0, 1, 10])
def test_a_line_lives_as_long_as_it_is_answered(monkeypatch, answers):
    """By a slow link, all together take longer than one may."""
    monkeypatch.setattr(line, "ANSWER_S", 0.2)
    monkeypatch.setattr(line, "ANSWER_MAX_S", 0.9)
    lost = []

    class Slow(line.Line):
        def cut(self) -> None:
            pass

    async def story():
        slow = Slow(place("mqtt://127.0.0.1:1", {"mqtt": Scheme(1883)}), lost.append)
        slow.welcome()
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(11)]
        asking = asyncio.gather(*map(slow.answer, futures), return_exceptions=True)
        for future in futures[:answers]:
            await asyncio.sleep(0.07)
            future.set_result(None)
        began = loop.time()
        got = await asking
        assert [type(one) for one in got] == [type(None)] * answers + [Closed] * (11 - answers)
        assert 0.1 < loop.time() - began < 0.7  # neither at once nor only after ANSWER_MAX_S
        assert "no answer within" in lost[0]

    run(story())


def test_somebody_listens_who_speaks_another_language(system):
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x99\xff\r\nSSH-2.0-OpenSSH_9.2\r\n" * 100)
        writer.close()

    async def story():
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            address = f"{system.scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(CannotConnect, match="cannot connect"):
                await Client(system, address, "anna").open()

    run(story())


def test_a_broker_of_stomp_that_hangs_up_while_it_is_greeted_is_told(monkeypatch):
    def hangs_up(connection: StompConnection12, *_: object, **__: object) -> None:
        connection.get_listener("wayfare").on_disconnected()
        time.sleep(0.1)  # what the end of the connection is to do is done
        raise NotConnectedException

    monkeypatch.setattr(StompConnection12, "connect", hangs_up)

    async def story():
        with pytest.raises(CannotConnect, match="cannot connect"):
            await Client(adapter("stomp://127.0.0.1:9"), "stomp://127.0.0.1:9", "anna").open()

    run(story())


# Subscriptions that are none, and why.
WRONG = {
    "amqp": {
        "": "empty",
        "a.b#": "alone",
        "a*.b": "alone",
        "\ud800": "UTF-8",
        "ä" * 128: "255",
    },
    "mqtt": {
        "": "empty",
        "a/#/b": "at the end",
        "a/b#": "alone",
        "a+/b": "alone",
        "a\0": "control character",
        "a\tb": "control character",
        "a\x85": "control character",
        "a\ufffe": "a code that is none",
        "/".join("a" * 201): "200 levels",
        "\ud800": "UTF-8",
        "a" * 65_536: "65535",
    },
    "nats": {
        "": "empty",
        ".a": "between its dots",
        "a..b": "between its dots",
        "a b": "spaces",
        "a\r\nPUB x 0": "spaces",
        "a.>.b": "at the end",
        "a.b*": "alone",
        "\ud800": "UTF-8",
        "a" * 4_001: "4000",
    },
    "redis": {"": "empty", "a[b": "no ]", "a\\": "nothing behind", "\ud800": "UTF-8"},
    "stomp": {
        "": "destination is empty",
        "/topic/": "destination is empty",
        "/topic/ ? price > 40": "destination is empty",
        "news": "destination is empty",
        "/topic/a ?": "no selector",
        "/topic/a ? shop = 'Anna": "quote",
        "/topic/a ? shop = 'Anna''s": "quote",
        "/topic/a,/topic/b": "comma",
        "/topic/a\n\nb": "control character",
        "/topic/\ud800": "UTF-8",
        "/topic/" + "a" * 5_000: "5000",
        "/topic/" + "ä" * 2_500: "5000",
    },
    "wayfare": {
        "": "column 1",
        "price >": "no filter of Wayfare: .* at column 8",
        "price > 'x": "column 9",
        "near(myloc, 100)": "follows its client",
    },
}
RIGHT = {
    "amqp": ["a", "a.b", "*.b", "a.#.b", "#", "a..b", "ä b"],
    "mqtt": ["a", "/", "a/b", "+/b", "a/+/#", "#", "$share/x/a/#", "ä b", "/".join("a" * 200)],
    "nats": ["a", "a.b", "*.b", "a.*.>", ">", "ä"],
    "redis": ["a", "a*", "a?[bc]", "a\\[", "a b", "[a\\]]", "]", "ä"],
    "stomp": [
        "/topic/a",
        "/topic/a.>",
        "/topic/a ? shop = 'Anna''s' and price > 40",
        "/topic/ä?x=1",
    ],
    "wayfare": ["true", "topic = 'a'", "topic prefix 'a' and price > 40 or price is null"],
}


def test_subscriptions_are_checked(system):
    for text in RIGHT[system.scheme]:
        system.check(text)
    for text, reason in WRONG[system.scheme].items():
        with pytest.raises(UsageError, match=reason):
            system.check(text)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"a b": 1}, "cannot be called 'a b'"),
        ({"": 1}, "cannot be called ''"),
        ({ID_PROPERTY: "x/1"}, "cannot be called 'wayfare-id'"),
        ({"a": "x\r\ny: 2"}, "without line breaks"),
        ({"a": "\ud800"}, "cannot be '.ud800'"),
        ({"\ud800": 1}, "cannot be called '.ud800'"),
    ],
)
def test_properties_that_cannot_travel_are_refused(system, address, word, properties, reason):
    if system.scheme == "redis":
        if system.traits.carries_ids:
            return  # in an envelope everything can travel
        reason = "publications of Redis have no properties"

    async def story():
        async with clients(system, address, "anna") as (anna,):
            with pytest.raises(UsageError, match=reason):
                await anna.access.publish(Publication(system.topic(word), b"", properties))

    run(story())


# ---- overlays --------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["mqtt", "nats", "redis"])
def test_publications_cross_an_overlay_once_and_whole(system, overlay_of, word):
    """From each node to all: with all they carry, and without going in circles."""
    adapted = adapter(f"{system}://")
    topic = adapted.topic(word)
    places = overlay_of(system).addresses

    async def story():
        async with contextlib.AsyncExitStack() as stack:
            found = [
                (await stack.enter_async_context(clients(adapted, place, "anna")))[0]
                for place in places
            ]
            for client in found:
                await client.access.subscribe([adapted.subscription(topic)])
            await asyncio.sleep(1)  # until the nodes have told each other
            sent = [Publication(topic, b"%d" % number) for number in range(len(found))]
            if adapted.traits.carries_ids:
                sent = [
                    Publication(topic, each.payload, {"price": 42}, Id(f"n{number}", number))
                    for number, each in enumerate(sent)
                ]
            for client, publication in zip(found, sent, strict=True):
                await client.access.publish(publication)
            for client in found:
                got = await client.has(len(sent))
                assert sorted(got, key=lambda each: each.payload) == sent

    run(story())


# ---- what others publish ---------------------------------------------------------------


def packet(kind: int, *parts: bytes) -> bytes:
    """A packet of MQTT."""
    left = len(body := b"".join(parts))
    size = bytearray()
    while True:
        left, low = divmod(left, 128)
        size.append(low | (128 if left else 0))
        if not left:
            return bytes([kind]) + bytes(size) + body


def counted(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


PUBLISH_MQTT = 0x30  # and 0x31, if it is to be retained


def speak_mqtt(topic: bytes, payload: bytes, pairs: dict[str, str]) -> tuple[bytes, bytes]:
    """With quality of service 0."""
    properties = b"".join(
        b"\x26" + counted(name.encode()) + counted(value.encode()) for name, value in pairs.items()
    )
    size = packet(0, properties)[1 : -len(properties)] if properties else b"\x00"
    hello = packet(0x10, counted(b"MQTT"), b"\x05\x02\x00\x3c\x00", counted(b""))
    return hello, packet(PUBLISH_MQTT, counted(topic), size, properties, payload)


def speak_nats(topic: bytes, payload: bytes, pairs: dict[str, str]) -> tuple[bytes, bytes]:
    head = "NATS/1.0\r\n" + "".join(f"{name}:{pairs[name]}\r\n" for name in pairs)
    head += "no header\r\n\r\n"
    sizes = b" %d %d\r\n" % (len(head), len(head) + len(payload))
    hello = b'CONNECT {"headers":true,"verbose":false}\r\n'
    return hello, b"HPUB " + topic + sizes + head.encode() + payload + b"\r\n"


def speak_redis(topic: bytes, payload: bytes, pairs: dict[str, str]) -> tuple[bytes, bytes]:
    """Which has no headers."""
    words = [b"PUBLISH", topic, payload]
    lines = [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"PING\r\n", b"*3\r\n" + b"".join(lines)


def speak_stomp(topic: bytes, payload: bytes, pairs: dict[str, str]) -> tuple[bytes, bytes]:
    head = "".join(f"{name}:{pairs[name]}\n" for name in pairs).encode()
    size = b"content-length:%d\n" % len(payload)
    hello = b"CONNECT\naccept-version:1.2\nhost:here\n\n\0"
    return hello, b"SEND\ndestination:" + topic + b"\n" + size + head + b"\n" + payload + b"\0"


NO_TEXT = "\ue0ff"  # stands for a byte that is in no text


def any_text(size: struct.Struct, value: str) -> bytes:
    data = value.encode().replace(NO_TEXT.encode(), b"\xff")
    return size.pack(len(data)) + data


async def publish_by_amqp(address: str, topic: bytes, payload: bytes, pairs: dict[str, object]):
    async with await aio_pika.connect(address) as connection:
        exchange = await (await connection.channel()).get_exchange("amq.topic")
        headers = {**pairs, "odd": [1, {"x": None}], "none": None}
        with mock.patch("pamqp.encode._string", any_text):
            message = aio_pika.Message(payload, headers=headers)
            await exchange.publish(message, topic.replace(b"\xff", NO_TEXT.encode()).decode())


async def publish_by_wayfare(address: str, topic: bytes, payload: bytes, pairs: dict[str, str]):
    async with await wayfare.connect(address) as client:
        await client.advertise("true")
        await client.publish({"topic": topic.decode(), **pairs}, payload, confirm=True)


OTHERS = {"amqp": publish_by_amqp, "wayfare": publish_by_wayfare}
SPEAK = {"mqtt": speak_mqtt, "nats": speak_nats, "redis": speak_redis, "stomp": speak_stomp}
PING = {"mqtt": (b"\xc0\x00", b"\xd0\x00"), "nats": (b"PING\r\n", b"PONG")}
PING["redis"] = (b"PING\r\n" * 2, b"+PONG")
PING["stomp"] = (b"SEND\ndestination:/topic/ping\nreceipt:1\n\n\0", b"RECEIPT")


async def others_publish(
    system: System,
    address: str,
    topic: bytes,
    payload: bytes,
    pairs: dict[str, str] | None = None,
    times: int = 1,
) -> None:
    """Publish without our adapter. Returns when the server has it."""
    if system.scheme in OTHERS:
        await OTHERS[system.scheme](address, topic, payload, pairs or {})
        return
    hello, publish = SPEAK[system.scheme](topic, payload, pairs or {})
    ping, pong = PING[system.scheme]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    writer.write(hello)
    await reader.read(1000)
    writer.write(publish * times + ping)
    await reader.readuntil(pong)
    writer.close()
    await writer.wait_closed()


def test_ids_and_types_that_make_no_sense_are_no_harm(system, address, word):
    pairs = {"wayfare-id": "no id", "wayfare-types": "n=int m=bool f=float x=", "n": "nine"}
    pairs |= {"m": "9", "f": "1.2.3", "i": "1"}
    seen = {} if system.scheme == "redis" else {"n": "nine", "m": "9", "f": "1.2.3", "i": "1"}
    topic = system.topic(word)

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([system.subscription(topic)])
            await others_publish(system, address, topic.encode(), b"\xff", pairs)
            assert await anna.has(1) == [Publication(topic, b"\xff", seen)]

    run(story())


def test_a_topic_that_is_no_text_is_left_out(system, address, word):
    if system.scheme in ("mqtt", "stomp", "wayfare"):
        return  # the servers let no such topic through, or make it one: see below
    wild = WILD[system.scheme][0].format(word=word)
    good = system.topic(word, "a")

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([wild])
            await others_publish(system, address, good.encode() + b"\xff", b"odd")
            await others_publish(system, address, good.encode(), b"good")
            assert await anna.has(1) == [Publication(good, b"good")]

    run(story())


# ---- MQTT ------------------------------------------------------------------------------


@pytest.fixture
def mosquitto(started: Callable[[str], str]) -> str:
    return started("mqtt")


def test_mqtt_drops_what_nobody_acknowledges_when_the_inbox_is_full(mosquitto, word, caplog):
    caplog.set_level("WARNING", "wayfare")
    system = adapter(mosquitto)

    async def story():
        async with clients(system, mosquitto, "anna") as (anna,):
            anna.hold = asyncio.Event()
            await anna.access.subscribe([word])
            await others_publish(system, mosquitto, word.encode(), b"0", times=QUEUE_MAX + 500)
            await anna.access.publish(Publication(word, b"1"))
            await asyncio.sleep(QUIET_S)
            anna.hold.set()
            got = [each.payload for each in await anna.has(QUEUE_MAX)]
            # One is with `deliver`, the others wait; what is acknowledged has a place in any case.
            assert got == [b"0"] * (QUEUE_MAX + 1) + [b"1"]

    run(story())
    assert caplog.text.count("are dropped") == 1


def test_mqtt_goes_on_after_a_topic_that_is_no_text(mosquitto, word):
    system = adapter(mosquitto)

    async def story():
        async with clients(system, mosquitto, "anna") as (anna,):
            client = anna.access._client
            message = MQTTMessage(0, b"\xff")
            client.on_message(client, None, message)
            await anna.access.subscribe([word])
            await anna.access.publish(Publication(word))
            assert await anna.has(1) == [Publication(word)]

    run(story())


def test_mqtt_carries_a_mark_that_its_library_takes_for_a_mistake(mosquitto, word):
    """It would come again and again: the library ended the connection, each time."""
    published = [
        Publication(word, b"1", {"x": "\ufeffhello", "\ufeffn": 1}),
        Publication(word, b"2"),
    ]

    async def story():
        async with clients(adapter(mosquitto), mosquitto, "anna") as (anna,):
            await anna.access.subscribe([word])
            for one in published:
                await anna.access.publish(one)
            assert await anna.has(2) == published
            assert anna.lost == []

    run(story())


# Properties of MQTT that are no use, as a server may let them through.
TWICE = b"\x01\x00\x01\x00"
ODD = [TWICE, b"\x01\x07", b"\x7f", b"\x02\x01", b"\x26\x00\x01a\x00\x09b", b"\x23\x00\x00"]


def test_mqtt_leaves_out_properties_that_make_no_sense(mosquitto, word):
    def sent(number: int, properties: bytes) -> bytes:
        size = bytes([len(properties)])
        return packet(0x32, counted(b"a"), bytes([0, number]), size, properties, b"%d" % number)

    async def story():
        async with Relay(mosquitto) as relay:
            anna = await Client(adapter(mosquitto), mosquitto, f"anna{word}").open(
                address=relay.address
            )
            good = b"\x26" + counted(b"no text \xff") + counted(b"b")
            for number, properties in enumerate([*ODD, good], 1):
                relay.writers[0].write(sent(number, properties))
            left_out = [Publication("a", b"%d" % number) for number in range(1, len(ODD) + 1)]
            last = Publication("a", b"%d" % (len(ODD) + 1), {"no text \ufffd": "b"})
            assert await anna.has(len(ODD) + 1) == [*left_out, last]
            assert anna.lost == []
            relay.writers[0].write(packet(0x32, b"\xff\xffa"))
            await until(lambda: anna.lost)
            await anna.access.close()

    run(story())


def test_mqtt_packets_that_are_too_large_for_the_server_are_refused(tmp_path, word, need_server):
    """It would cut off who sends one, who would send it again."""
    need_server("mqtt")
    sizes = range(900, 1_000)

    async def story(address):
        async with clients(adapter(address), address, "anna") as (anna,):
            await anna.access.subscribe([word])
            told = [Publication(word, bytes(size), {"n": size}, Id("anna", size)) for size in sizes]
            ends = await asyncio.gather(*map(anna.access.publish, told), return_exceptions=True)
            whole = [size for size, error in zip(sizes, ends, strict=True) if error is None]
            assert whole
            for number, error in enumerate(ends[len(whole) :], 1_001):
                assert f"takes packets of 1000 bytes, and this has {number}" in str(error)
            with pytest.raises(UsageError, match="takes packets of 1000 bytes"):
                await anna.access.subscribe([f"{word}/{number:0100}" for number in range(10)])
            assert [len(one.payload) for one in await anna.has(len(whole))] == whole
            assert anna.lost == []

    with running("mqtt", tmp_path, "max_packet_size 1000\n") as (address, _):
        run(story(address))


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "stomp+ssl"])
def test_those_who_cannot_reach_their_server_are_in_nobodys_way(scheme, monkeypatch):
    """Many wait for one that drops packets; the threads that are there for everybody are free."""
    monkeypatch.setattr(line, "ANSWER_S", 1.0)

    async def story():
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(3):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            address = f"{scheme}://127.0.0.1:{full.getsockname()[1]}"
            opening = [
                asyncio.create_task(Client(adapter(address), address, f"c{number}").open())
                for number in range(20)
            ]
            while not all(task.done() for task in opening):
                await asyncio.sleep(0.1)
                async with asyncio.timeout(0.7):
                    await asyncio.to_thread(lambda: None)
            for error in await asyncio.gather(*opening, return_exceptions=True):
                assert isinstance(error, CannotConnect)
                assert "no answer within 1 s" in str(error) or "nobody answers" in str(error)

    run(story())


def test_a_second_client_of_the_same_name_takes_over(mosquitto):
    system = adapter(mosquitto)

    async def story():
        first = await Client(system, mosquitto, "twin").open()
        second = await Client(system, mosquitto, "twin").open()
        await until(lambda: first.lost)
        await second.access.close()
        await first.access.close()
        assert len(first.lost) == 1 and second.lost == []

    run(story())


# ---- NATS ------------------------------------------------------------------------------


def test_nats_counts_headers_as_it_counts_the_payload(tmp_path, word, need_server):
    """The server cuts off who sends more, and says so to nobody else."""
    need_server("nats")
    sizes = range(900, 1_000)

    async def story(address):
        async with clients(adapter(address), address, "anna") as (anna,):
            await anna.access.subscribe([word])
            told = [Publication(word, bytes(size), {"n": size}, Id("anna", size)) for size in sizes]
            ends = await asyncio.gather(*map(anna.access.publish, told), return_exceptions=True)
            whole = [size for size, error in zip(sizes, ends, strict=True) if error is None]
            assert whole
            for number, error in enumerate(ends[len(whole) :], 1_001):
                assert f"takes 1000 bytes, with headers, not {number}" in str(error)
            assert [len(one.payload) for one in await anna.has(len(whole))] == whole
            assert anna.lost == []

    (tmp_path / "limits").write_text("max_payload: 1000\n")
    with running("nats", tmp_path, f"-c {tmp_path}/limits") as (address, _):
        run(story(address))


# ---- Redis -----------------------------------------------------------------------------


@pytest.fixture
def redis(started: Callable[[str], str]) -> str:
    return started("redis")


def test_redis_takes_special_characters_as_they_are_when_asked_to(redis, word):
    system = Redis()
    topics = [f"{word}*", f"{word}[a]", f"{word}?", f"{word}\\", f"{word}]"]

    async def story():
        async with clients(system, redis, "anna") as (anna,):
            texts = [system.subscription(topic) for topic in topics]
            for text in texts:
                system.check(text)
            await anna.access.subscribe(texts)
            for topic in [*topics, f"{word}a", f"{word}x"]:
                await anna.access.publish(Publication(topic))
            assert [each.topic for each in await anna.has(5)] == topics

    run(story())


def test_redis_is_asked_whether_it_is_there(redis):
    async def story():
        async with clients(Redis(), redis, "anna") as (anna,):
            for connection in (anna.access._listening, anna.access._publishing):
                found = connection._writer.get_extra_info("socket")
                assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10

    run(story())


def test_redis_envelopes_of_others_are_payloads(redis, word):
    system = Redis(envelope=True)
    odd = [MAGIC, MAGIC + b"\xc1", MAGIC + b"\x93\xc0\x80\xa1x", MAGIC + b"\x93\x01\x80\xc4\x00"]
    odd += [b"\x93\xc0\x80\xc4\x00", MAGIC + b"\x93\xc0\x81\xa1a\x90\xc4\x00"]
    odd += [MAGIC + b"\x93\xa1\xff\x80\xc4\x00"]  # an id that is no text
    odd += [
        MAGIC + b"\x94\xc0\x80\xc4\x00" + b"\x91" * 100_000 + b"\xc0"
    ]  # and one level in the other

    async def story():
        async with clients(system, redis, "anna") as (anna,):
            await anna.access.subscribe([word])
            for payload in odd:
                await others_publish(system, redis, word.encode(), payload)
            assert await anna.has(len(odd)) == [Publication(word, each) for each in odd]
            anna.got.clear()
            # An id that is none is left out, whatever else is in the envelope.
            await others_publish(
                system, redis, word.encode(), MAGIC + b"\x93\xa5no id\x81\xa1a\x01\xc4\x01x"
            )
            assert await anna.has(1) == [Publication(word, b"x", {"a": 1})]

    run(story())


def test_redis_properties_that_are_too_large_are_refused(redis, word):
    async def story():
        async with clients(Redis(envelope=True), redis, "anna") as (anna,):
            with pytest.raises(UsageError, match="cannot be published"):
                await anna.access.publish(Publication(word, b"", {"a": 2**64}))

    run(story())


def test_redis_that_closes_what_is_idle_costs_nothing(tmp_path, word, need_server):
    """It does not close who listens, but who publishes; what came meanwhile would be lost with the access."""
    need_server("redis")
    sent = [Publication(word, b"%d" % number) for number in range(20)]

    async def story(address):
        async with clients(Redis(), address, "anna") as (anna,):
            await anna.access.subscribe([word])
            for part in (sent[:10], sent[10:]):
                idle = anna.access._publishing
                await until(lambda idle=idle: not idle.is_connected)
                await asyncio.gather(*map(anna.access.publish, part))
            assert await anna.has(20) == sent
            assert anna.lost == []

    with running("redis", tmp_path, "--timeout 1") as (address, _):
        run(story(address))


def test_redis_payloads_that_are_too_large_for_the_server_are_refused(tmp_path, word, need_server):
    need_server("redis")

    async def story(address):
        async with clients(Redis(), address, "anna") as (anna,):
            await anna.access.subscribe([word])
            with pytest.raises(UsageError, match="takes 1048576 bytes, not 1048577"):
                await anna.access.publish(Publication(word, bytes(1_048_577)))
            whole = Publication(word, bytes(1_048_576))
            await anna.access.publish(whole)
            assert await anna.has(1) == [whole]
            assert anna.lost == []

    with running("redis", tmp_path, "--proto-max-bulk-len 1mb") as (address, _):
        run(story(address))


def test_what_is_published_at_a_replica_of_redis_reaches_everybody(redis, word, tmp_path):
    system = Redis()

    async def story(replica):
        async with (
            clients(system, redis, "anna") as (anna,),
            clients(system, replica, "bert") as (bert,),
        ):
            await anna.access.subscribe([word])
            await bert.access.publish(Publication(word))
            assert await anna.has(1) == [Publication(word)]

    with contextlib.ExitStack() as stack:
        where = redis
        for name in ("replica", "of a replica"):
            (folder := tmp_path / name.replace(" ", "")).mkdir()
            above = f"--replicaof 127.0.0.1 {where.rpartition(':')[2]}"
            where, _ = stack.enter_context(running("redis", folder, above))
        run(story(where))


# ---- AMQP, STOMP and Wayfare -----------------------------------------------------------


def only(scheme: str):
    """A test of one system, with the server that the contract has."""
    return pytest.mark.parametrize(
        "address",
        [pytest.param(scheme, marks=pytest.mark.xdist_group(f"server of {scheme}"))],
        indirect=True,
    )


@only("amqp")
def test_amqp_headers_that_cannot_be_read_are_left_out(system, address, word):
    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([word])
            await publish_by_amqp(address, word.encode(), b"1", {f"a{NO_TEXT}": "x"})
            await publish_by_amqp(address, word.encode(), b"2", {"a": f"x{NO_TEXT}", "b": 1})
            assert await anna.has(2) == [Publication(word, b"1"), Publication(word, b"2", {"b": 1})]
            assert anna.lost == []

    run(story())


@only("amqp")
def test_amqp_keeps_numbers_as_they_are(system, address, word):
    properties = {"a": 0.1, "b": 1e300, "c": 2**63 - 1, "d": 2**63, "e": -(2**63), "f": 0}
    published = Publication(word, b"", properties)

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([word])
            await anna.access.publish(published)
            assert await anna.has(1) == [published]
            with pytest.raises(UsageError, match="at most 128 bytes"):
                await anna.access.publish(Publication(word, b"", {"a" * 129: 1}))

    run(story())


TOO_MUCH = [
    ("amqp", {"x": "v" * 140_000}, 0, "takes 131072 bytes of properties, not 1400"),
    ("amqp", {f"x{number}": 1 for number in range(12_000)}, 0, "takes 131072 bytes of properties"),
    ("amqp", {}, PAYLOAD_MAX + 1, "takes 2000000 bytes, not 2000001"),
    ("stomp", {"x": "v" * 10_239}, 0, "the property x has more than 10240 bytes"),
    ("stomp", {"x": ":" * 6_000}, 0, "the property x has more than 10240 bytes"),
    ("stomp", {f"x{number}": "1" for number in range(991)}, 0, "at most 990 properties, not 991"),
    ("stomp", {}, 3 * PAYLOAD_MAX, "takes no 6000000 bytes: The maximum"),
    ("wayfare", {}, 5_000_000, "at most 4194304 bytes"),
]


@pytest.mark.parametrize(
    ("address", "properties", "size", "reason"),
    [
        pytest.param(one, *facts, marks=pytest.mark.xdist_group(f"server of {one}"))
        for one, *facts in TOO_MUCH
    ],
    indirect=["address"],
    ids=[f"{one}-{len(properties)}-{size}" for one, properties, size, _ in TOO_MUCH],
)
def test_what_is_too_large_for_the_server_is_refused_and_nothing_else(
    system, address, word, properties, size, reason
):
    """It may be noticed only when the connection is gone: then, others are published again with the next."""
    topic = system.topic(word)
    others = [Publication(topic, b"%d" % number) for number in range(10)]
    sent = [*others[:5], Publication(topic, bytes(size), properties), *others[5:]]

    async def story():
        async with clients(system, address, "anna") as (anna,):
            ends = await asyncio.gather(*map(anna.access.publish, sent), return_exceptions=True)
            assert isinstance(ends[5], UsageError)
            assert reason in str(ends[5])
            assert {type(one) for one in ends[:5] + ends[6:]} <= {type(None), Closed}
            if not anna.lost:
                assert ends[:5] + ends[6:] == [None] * 10

    run(story())


@only("stomp")
def test_a_broker_of_stomp_is_not_read_on_while_much_waits(system, address, word, monkeypatch):
    monkeypatch.setattr("wayfare.service.stomp.AHEAD_BYTES_MAX", 100_000)
    monkeypatch.setattr("wayfare.service.stomp.BRIDGE_MAX", 10)
    topic = system.topic(word)

    async def story():
        async with clients(system, address, "bert") as (bert,):
            anna = await Client(system, address, f"anna{word}").open(lasting=True)
            anna.hold = asyncio.Event()
            await anna.access.subscribe([topic])
            for number in range(200):
                await bert.access.publish(Publication(topic, b"%d " % number + bytes(10_000)))
            await asyncio.sleep(QUIET_S)
            assert len(anna.access._inbox._items) < 20
            anna.hold.set()
            got = [int(each.payload.split()[0]) for each in await anna.has(200)]
            assert got == list(range(200))
            anna.hold.clear()  # and who is slow can leave
            for _ in range(100):
                await bert.access.publish(Publication(topic, bytes(10_000)))
            await asyncio.sleep(QUIET_S)
            await anna.access.close()

    run(story())


@only("stomp")
def test_stomp_carries_as_much_as_it_says(system, address, word):
    properties = {f"x{number}": "1" for number in range(989)} | {"x": "v" * (10_240 - 2)}
    published = Publication(system.topic(word), bytes(PAYLOAD_MAX), properties)

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([published.topic])
            await anna.access.publish(published)
            assert await anna.has(1) == [published]

    run(story())


@only("amqp")
def test_amqp_wants_the_right_password(system, address):
    async def story():
        place = address.partition("://")[2]
        anna = await Client(system, f"amqp://guest:guest@{place}", "anna").open()
        await anna.access.close()
        with pytest.raises(CannotConnect, match="cannot connect") as caught:
            await Client(system, f"amqp://guest:secret@{place}", "anna").open()
        assert "secret" not in str(caught.value)

    run(story())


@pytest.mark.parametrize(
    ("address", "takes_over"),
    [
        pytest.param(one, taken, marks=pytest.mark.xdist_group(f"server of {one}"))
        for one, taken in (("amqp", False), ("stomp", False), ("wayfare", True))
    ],
    indirect=["address"],
)
def test_a_second_client_of_a_name_that_resumes(system, address, takes_over, word):
    async def story():
        first = await Client(system, address, f"twin{word}").open()
        second = Client(system, address, first.name)
        if takes_over:
            await second.open(resume=True)
            await until(lambda: first.lost)
            await second.access.close()
        else:
            with pytest.raises(CannotConnect, match=r"already connected|another client"):
                await second.open(resume=True)
            assert first.lost == []
        await first.access.close()

    run(story())


@only("stomp")
def test_stomp_selectors(system, address, word):
    topic = system.topic(word)
    prices = [9, 41, 39, 40.5, 100, "abc"]

    async def story():
        async with clients(system, address, "anna", "bert") as (anna, bert):
            await anna.access.subscribe([f"{topic} ? price > 40"])
            await bert.access.subscribe([f"{topic}?price > 40.0 AND shop = 'Anna''s'"])
            for price in prices:
                published = Publication(topic, b"", {"price": price, "shop": "Anna's"})
                await bert.access.publish(published)
            assert [one.properties["price"] for one in await anna.has(2)] == [41, 100]
            assert [one.properties["price"] for one in await bert.has(3)] == [41, 40.5, 100]

    run(story())


@only("stomp")
def test_stomp_goes_on_after_a_subscription_that_is_refused(system, address, word):
    topic = system.topic(word)

    async def story():
        async with clients(system, address, "anna") as (anna,):
            with pytest.raises(Refused, match=r"refuses .* price >>"):
                await anna.access.subscribe([f"{topic} ? price >> 1", topic])
            await anna.access.close(suspend=True)
            await anna.open(resume=True)
            await anna.access.publish(Publication(topic))
            assert await anna.has(1) == [Publication(topic)]

    run(story())


@only("stomp")
def test_stomp_goes_on_after_notes_of_somebody_else(system, address, word):
    topic = system.topic(word)
    odd = [b"", b"{}", b"no", b'{"number":1,"subscriptions":["\xff"]}', b'{"x":' + b"[" * 100_000]

    async def story():
        async with clients(system, address, "anna") as (anna,):
            for body in odd:
                await others_publish(system, address, anna.access._notes.queue.encode(), body)
            await anna.access.subscribe([topic])
            await anna.access.close(suspend=True)
            await anna.open(resume=True)
            await anna.access.publish(Publication(topic))
            assert await anna.has(1) == [Publication(topic)]
            assert anna.lost == []

    run(story())


@only("stomp")
def test_stomp_carries_properties_that_are_called_like_its_headers(system, address, word):
    properties = {"priority": "high", "timestamp": 7, "type": "x", "JMSXGroupSeq": "a", "id": 1}
    properties |= {"wayfare.type": "y", "back\\slash": "a:\\b", "content-length": 3, "ack": True}
    published = Publication(system.topic(word), b"payload", properties)

    async def story():
        async with clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([published.topic])
            await anna.access.publish(published)
            assert await anna.has(1) == [published]

    run(story())


@pytest.mark.parametrize(
    ("address", "limit"),
    [
        pytest.param(one, limit, marks=pytest.mark.xdist_group(f"server of {one}"))
        for one, limit in (("amqp", "RECEIVED_MAX"), ("stomp", "_ahead"))
    ],
    indirect=["address"],
)
def test_a_server_that_sends_more_than_asked_for_is_left(system, address, word, limit, monkeypatch):
    topic = system.topic(word)

    async def story():
        async with clients(system, address, "anna", "bert") as (anna, bert):
            anna.hold = asyncio.Event()
            await anna.access.subscribe([topic])
            module = sys.modules[type(system).__module__]
            monkeypatch.setattr(anna.access if limit == "_ahead" else module, limit, 3)
            for _ in range(10):
                await bert.access.publish(Publication(topic))
            await until(lambda: anna.lost)
            assert anna.lost == [
                f"the {'broker' if limit == '_ahead' else 'server'} sends more than was asked for"
            ]

    run(story())


@only("wayfare")
def test_wayfare_has_the_topic_among_the_attributes(system, address, word):
    async def story():
        async with clients(system, address, "anna") as (anna,):
            with pytest.raises(UsageError, match="cannot be called 'topic'"):
                await anna.access.publish(Publication(word, b"", {"topic": "x"}))
            with pytest.raises(UsageError, match="too large"):
                await anna.access.publish(Publication(word, b"", {"a": 2**64}))
            await anna.access.subscribe(
                [f"price > 40 and topic prefix '{word}'", "free is not null"]
            )
            for published in (
                Publication(word, b"", {"price": 40}),
                Publication(word, b"", {"price": 41}),
                Publication("", b"", {"free": True}),
            ):
                await anna.access.publish(published)
            assert [one.properties for one in await anna.has(2)] == [{"price": 41}, {"free": True}]

    run(story())


@only("wayfare")
def test_a_client_of_wayfare_is_another_one_at_each_access_point(system, address, word):
    """What was suspended here does not follow a client of the same name elsewhere."""
    topic = system.topic(word)

    async def story():
        async with Relay(address) as elsewhere, clients(system, address, "anna") as (anna,):
            await anna.access.subscribe([system.subscription(topic)])
            await anna.access.close(suspend=True)
            await anna.open(resume=True, address=elsewhere.address)
            await anna.access.publish(Publication(topic))
            assert await anna.has(0) == []
            await anna.access.close()
            await anna.open(resume=True)
            assert await anna.has(1) == [Publication(topic)]

    run(story())


# ---- users and passwords ---------------------------------------------------------------


@pytest.mark.parametrize("scheme", SERVERS)
def test_users_and_passwords(scheme, tmp_path, need_server):
    need_server(scheme.partition("+")[0])
    if scheme == "mqtt":
        passwords = [program("mosquitto_passwd"), "-b", "-c", str(tmp_path / "users")]
        subprocess.run([*passwords, "anna", "se:cret"], check=True, capture_output=True)
    more = {
        "mqtt": f"allow_anonymous false\npassword_file {tmp_path}/users\n",
        "nats": "--user anna --pass se:cret",
        "redis": "--user default off --user anna on >se:cret ~* &* +@all",
    }[scheme.partition("+")[0]]

    async def story(address):
        system = adapter(address)
        place = address.partition("://")[2]
        anna = await Client(system, f"{scheme}://anna:se%3Acret@{place}", "anna").open()
        await anna.access.subscribe(["a"])
        await anna.access.publish(Publication("a"))
        assert await anna.has(1) == [Publication("a")]
        await anna.access.close()
        for user in ("", "anna:another@"):
            with pytest.raises(CannotConnect, match="cannot connect") as caught:
                await Client(system, f"{scheme}://{user}{place}", "anna").open()
            assert "another" not in str(caught.value)

    with running(scheme, tmp_path, more) as (address, _):
        run(story(address))


# What lets anna do what is hers, and nothing else.
ALLOWED = {
    "mqtt": "acl_file {dir}/rights\n",
    "nats": "-c {dir}/rights",
    "redis": "--user anna on >x &mine -@all +subscribe +publish +client --user default off",
}
RIGHTS = {
    "mqtt": "topic readwrite mine\n",
    "nats": "authorization {users: [{user: anna, password: x, permissions: {publish: mine, "
    "subscribe: mine}}]}\n",
    "redis": "",
}


@pytest.mark.parametrize("scheme", ALLOWED)
def test_what_a_client_may_not_do_is_refused(scheme, tmp_path, need_server, caplog):
    caplog.set_level("WARNING", "wayfare")
    need_server(scheme)
    (tmp_path / "rights").write_text(RIGHTS[scheme])
    user = "" if scheme == "mqtt" else "anna:x@"

    async def story(address):
        place = address.partition("://")[2]
        anna = await Client(adapter(address), f"{scheme}://{user}{place}", "anna").open()
        await anna.access.subscribe(["mine"])
        await anna.access.publish(Publication("mine"))
        assert await anna.has(1) == [Publication("mine")]
        if scheme != "mqtt":  # mosquitto says yes, and sends nothing
            for asked in (["others", "yours"], ["yours"], ["others"]):  # again, one by one
                with pytest.raises(Refused, match="refuses"):
                    await anna.access.subscribe(asked)
        if scheme == "nats":  # which does not answer publications
            await anna.access.publish(Publication("yours"))
            await until(lambda: "refuses a publication" in caplog.text)
        else:
            with pytest.raises(Refused, match="refuses"):
                await anna.access.publish(Publication("yours"))
        if scheme != "mqtt":  # mosquitto 2.0.11 closes the connection after its refusal
            await anna.access.publish(Publication("mine"))
            assert await anna.has(2) == [Publication("mine")] * 2
            assert anna.lost == []
        await anna.access.close()

    with running(scheme, tmp_path, ALLOWED[scheme].format(dir=tmp_path)) as (address, _):
        run(story(address))


# ---- addresses and the table of adapters -----------------------------------------------


def test_an_address_that_nobody_knows():
    for address in ("ftp://host", "host:1", ""):
        with pytest.raises(UsageError, match="no publish/subscribe system is known by"):
            adapter(address)


def test_a_missing_package_is_named(monkeypatch):
    module, _ = ADAPTERS["mqtt"]
    monkeypatch.delitem(sys.modules, f"wayfare.service.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    with pytest.raises(UsageError, match=r"mqtt:// needs .*: pip install 'wayfare\[service\]'"):
        adapter("mqtt://localhost")


SCHEMES = {"mqtt": Scheme(1883), "mqtts": Scheme(8883, tls=True)}


def test_addresses_are_read():
    whole = place("mqtts://an%40na:p%2Fw@[::1]:99", SCHEMES)
    assert (whole.host, whole.port, whole.user, whole.password, whole.tls) == (
        "::1", 99, "an@na", "p/w", True
    )  # fmt: skip
    assert str(whole) == "mqtts://[::1]:99"
    assert place("mqtt://host", SCHEMES).port == 1883


@pytest.mark.parametrize("password", ["p/w", "p#1", "p@ss:word", "p%41", "[p", "", "pä ss"])
def test_a_password_may_have_any_characters(password):
    there = place(f"mqtt://{quoted(f'ann:{password}')}@host", SCHEMES)
    assert (there.user, there.password, there.host) == ("ann", password, "host")
    assert place(f"mqtt://{quoted('ann')}@host", SCHEMES).password is None


@pytest.mark.parametrize(
    "text",
    [
        "mqtt://",
        "mqtt://u:secret@h:x",
        "ftp://u:secret@h",
        "mqtt://h/path",
        "mqtt://h:0",
        "mqtt://u:secret@a..b",
        "mqtt://u:secret@::1",
        f"mqtt://{'x' * 64}.example",
    ],
)
def test_addresses_that_are_none(text):
    with pytest.raises(UsageError, match="is no address") as caught:
        place(text, SCHEMES)
    assert "secret" not in str(caught.value)
