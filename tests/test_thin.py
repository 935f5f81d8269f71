"""Thin devices: lines of JSON on a socket, and a proxy that is the same to them as a client library."""

import asyncio
import json
import re
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import wayfare
from live import tree, until
from test_kill import Processes
from wayfare.core.effects import Received
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.late import UNSURE
from wayfare.core.messages import NOWHERE, Resend, Welcome
from wayfare.errors import UsageError
from wayfare.net import counterpart as counterpart_module
from wayfare.net import local_broker, thin_memory
from wayfare.net import thin as thin_module
from wayfare.net.counterpart import Careful, position_of, text_of
from wayfare.net.thin import LINE_MAX, MISTAKES_MAX, WORDS, Thin
from wayfare.net.thin_memory import opened, sealed

DOCS = Path(__file__).resolve().parent.parent / "docs"
SECRET = "a secret of the brokers"
REAL_CLOCK = local_broker.clock


OPEN = []  # connections of devices


class Device:
    """What a device does: it keeps the last memory and the last n, and nothing else."""

    def __init__(self, name="meter7"):
        self.name = name
        self.memory, self.n = None, 0
        self.reader = self.writer = None
        self.got, self.lost, self.published = [], [], []

    async def connect(self, proxy, **more):
        """Say hello with all that it knows, and return the answer."""
        await self.open(proxy)
        known = {"memory": self.memory, "ack": self.n} if self.memory else {}
        self.say(hello=self.name, **known, **more)
        return await self.hear()

    async def open(self, proxy):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        OPEN.append(self.writer)

    def say(self, **facts):
        self.raw(json.dumps(facts).encode() + b"\n")

    def raw(self, data):
        self.writer.write(data)

    async def hear(self):
        """The next line; None if there is none any more."""
        async with asyncio.timeout(10):
            line = await self.reader.readline()
        if not line:
            return None
        facts = json.loads(line)
        self.memory, self.n = facts.get("memory", self.memory), facts.get("n", self.n)
        if "notification" in facts:
            self.got.append(facts["notification"])
        if "lost" in facts:
            self.lost.append(facts)
        if "published" in facts:
            self.published.append(facts["published"])
        return facts

    async def until(self, word):
        """Hear until a line says this."""
        while (facts := await self.hear()) is not None:
            if word in facts:
                return facts
        raise AssertionError(f"the connection ended before {word}")

    async def take(self, count, *, ack=True):
        """Hear until so many notifications are there."""
        while len(self.got) < count:
            assert await self.hear() is not None
            if ack:
                self.say(ack=self.n)

    async def flush(self):
        self.say(flush=1)
        await self.until("flushed")

    async def confirm(self):
        """Hear until all that it wants and offers is in effect."""
        self.say(confirm="all")
        assert await self.until("confirmed") == {"confirmed": "all"}

    def cut(self):
        """The network is gone: nobody says goodbye."""
        self.writer.transport.abort()


async def hang_up():
    while OPEN:
        writer = OPEN.pop()
        writer.transport.abort()
    await asyncio.sleep(0)


@asynccontextmanager
async def proxies(net, *names, **options):
    """A proxy beside each of these brokers."""
    found = {}
    try:
        for name in names:
            found[name] = Thin(net.url(name), **options)
            found[name].port = await found[name].start("127.0.0.1", 0)
        yield found
    finally:
        for one in found.values():
            await one.stop()
        await hang_up()


@asynccontextmanager
async def one_proxy(**options):
    async with tree("porto-lisbon") as net, proxies(net, "porto", **options) as found:
        yield net, found["porto"]


async def subscribed(net, proxy, filter="x > 0"):
    device = Device()
    assert "welcome" in await device.connect(proxy)
    device.say(subscribe=filter)
    await device.confirm()
    return device


@asynccontextmanager
async def publisher(net, at="lisbon", offered="exists(x)"):
    async with wayfare.connect(net.url(at), "tom") as tom:
        await tom.advertise(offered)
        yield tom


def xs(first, last):
    return [{"x": x} for x in range(first, last + 1)]


async def publish(tom, first, last):
    for x in range(first, last + 1):
        await tom.publish({"x": x}, confirm=x == last)


def run(work):
    asyncio.run(asyncio.wait_for(work(), 60))


# ---- the same interface ------------------------------------------------------------------------


def test_a_device_does_what_a_client_does():
    async def work():
        async with one_proxy() as (net, porto), wayfare.connect(net.url("lisbon"), "una") as una:
            device = Device()
            welcome = await device.connect(porto)
            assert welcome["welcome"] == "meter7"
            assert (welcome["broker"], welcome["n"]) == ("porto", 0)
            device.say(subscribe="service = 'parking' and free > 0")
            assert "memory" in await device.hear()
            device.say(advertise="exists(kmh)")
            await device.confirm()
            await una.advertise("service = 'parking'")
            async with una.subscribe("kmh > 100") as speeds:
                device.say(publish={"kmh": 120, "road": "A1"}, payload="fast")
                one = await speeds.get(5)
                assert (one.publisher, dict(one), one.payload) == (
                    "meter7",
                    {"kmh": 120, "road": "A1"},
                    b"fast",
                )
                assert (await device.until("published"))["published"] > 0
                await una.publish({"service": "parking", "free": 0})
                number = await una.publish({"service": "parking", "free": 3}, b"\xff")
                assert await device.until("notification") == {
                    "n": 1,
                    "notification": {"service": "parking", "free": 3},
                    "publisher": "una",
                    "number": number,
                    "payload_base64": "/w==",
                }
                device.say(ack=1)
                device.say(unsubscribe="service = 'parking' and free > 0")
                device.say(unadvertise="exists(kmh)")
                await device.flush()
                await una.publish({"service": "parking", "free": 4}, confirm=True)
                device.say(publish={"kmh": 130})
                assert (
                    "no advertisement of meter7 matches" in (await device.until("error"))["error"]
                )
                device.say(bye=True)
                assert await device.until("bye") == {"bye": True}
                assert await device.hear() is None
                assert device.got == [{"service": "parking", "free": 3}]
                await until(lambda: net.brokers["porto"].core.border.of("meter7") == [])

    run(work)


def test_a_device_hears_when_what_it_said_is_in_effect_everywhere():
    async def work():
        async with (
            tree("porto-lisbon", "faro-lisbon") as net,
            proxies(net, "porto") as found,
            publisher(net, "faro") as tom,
        ):
            device = Device()
            await device.connect(found["porto"])
            device.say(subscribe="x > 0")
            device.say(advertise="exists(y)")
            await device.confirm()
            await publish(tom, 1, 1)
            await device.take(1)
            ads = net.brokers["faro"].core.routing.in_ads["lisbon"]
            assert any("y" in str(one) for one in ads)

    run(work)


def test_a_device_hears_which_neighbours_did_not_confirm():
    async def work():
        async with (
            tree("porto-lisbon") as net,
            proxies(net, "porto", confirm=0.3) as found,
        ):
            device = Device()
            await device.connect(found["porto"])
            lisbon = net.brokers.pop("lisbon")
            await lisbon.stop()
            device.say(subscribe="x > 0")
            device.say(advertise="exists(x)")
            device.say(confirm=1)
            device.say(publish={"x": 1})  # nothing waits for that
            answer = await device.until("unconfirmed")
            await device.take(1)
            why = answer.pop("why")
            assert answer == {"unconfirmed": 1, "missing": ["lisbon"]}
            assert why.startswith("what meter7 has subscribed to and advertised is not confirmed")
            assert "no answer from the brokers behind lisbon" in why

    run(work)


def test_confirmations_are_not_asked_for_without_end(monkeypatch):
    monkeypatch.setattr(thin_module, "CONFIRMING_MAX", 2)

    async def work():
        async with (
            tree("porto-lisbon") as net,
            proxies(net, "porto") as found,
        ):
            device = Device()
            await device.connect(found["porto"])
            lisbon = net.brokers.pop("lisbon")
            await lisbon.stop()
            device.say(advertise="exists(x)")
            for mark in range(3):
                device.say(confirm=mark)
            answer = await device.until("error")
            assert answer["error"] == "2 confirmations are under way: wait for one of them"
            device.cut()  # nobody waits for them any more
            await until(lambda: not found["porto"]._served)

    run(work)


def test_subscribing_twice_is_subscribing_once():
    async def work():
        async with one_proxy() as (net, porto), publisher(net) as tom:
            device = await subscribed(net, porto)
            device.say(subscribe="x > 0")
            device.say(subscribe="x > 0", last=5)
            device.say(unsubscribe="x > 0")
            await device.flush()
            await publish(tom, 1, 2)
            await device.flush()
            assert device.got == []
            assert net.brokers["porto"].core.border.of("meter7")[0].subscriptions == {}

    run(work)


def test_a_subscription_follows_the_device():
    async def work():
        async with one_proxy() as (net, porto), publisher(net, offered="exists(room)") as tom:
            device = await subscribed(net, porto, "room in myloc and free >= my.need")
            device.say(location="R1")
            device.say(state={"need": 2})
            await device.confirm()
            for room in ("R1", "R2"):
                for free in (1, 2):
                    await tom.publish({"room": room, "free": free}, confirm=True)
            await device.take(1)
            device.say(location="R2")
            device.say(state={"need": 1})
            await device.confirm()
            await tom.publish({"room": "R1", "free": 3})
            await tom.publish({"room": "R2", "free": 4})
            await device.take(2)
            await device.flush()
            assert device.got == [{"room": "R1", "free": 2}, {"room": "R2", "free": 4}]
            device.say(state={"need": None})
            device.say(location=None)
            await device.flush()

    run(work)


def test_a_subscription_follows_the_device_to_another_proxy():
    async def work():
        async with (
            tree("porto-lisbon", "faro-lisbon") as net,
            proxies(net, "porto", "faro") as found,
            publisher(net, offered="exists(room)") as tom,
        ):
            device = await subscribed(net, found["porto"], "room in myloc")
            device.say(location="R1")
            await device.confirm()
            await tom.publish({"room": "R1", "x": 1}, confirm=True)
            await device.take(1)
            assert device.n.count("/") == 2
            device.cut()
            welcome = await device.connect(found["faro"])
            assert welcome["n"] == device.n
            await device.confirm()
            await tom.publish({"room": "R1", "x": 2}, confirm=True)
            await device.take(2)
            await device.flush()
            assert device.got == [{"room": "R1", "x": 1}, {"room": "R1", "x": 2}]

    run(work)


def test_the_transcript_of_the_docs():
    lines = re.search(r"```thin\n(.*?)```", (DOCS / "thin.md").read_text("utf-8"), re.DOTALL)[1]

    async def work():
        async with tree("porto-lisbon") as net, proxies(net, "lisbon") as found:
            device = Device()
            await device.open(found["lisbon"])
            for line in lines.splitlines():
                if line[0] == ">":
                    device.raw(line[2:].encode() + b"\n")
                    continue
                async with asyncio.timeout(10):
                    heard = (await device.reader.readline()).decode().strip()
                shown = re.escape(line[2:]).replace(r"\.\.\.", ".+")
                assert re.fullmatch(shown, heard), (line, heard)
            assert await device.reader.read() == b""

    run(work)


def test_the_words_of_the_docs_are_all():
    text = (DOCS / "thin.md").read_text("utf-8")
    rows = re.findall(
        r'^\| `\{"(\w+)": .*\| ([^|]*)\|$', text.partition("## What a device is told")[0], re.M
    )
    assert [word for word, _ in rows] == list(WORDS)
    for word, beside in rows:
        assert all(f"`{one}`" in beside for one in WORDS[word].beside), word


# ---- cut off, and back -------------------------------------------------------------------------


def test_what_is_not_acknowledged_comes_again_and_what_is_does_not():
    async def work():
        async with one_proxy() as (net, porto), publisher(net) as tom:
            device = await subscribed(net, porto)
            await publish(tom, 1, 5)
            await device.take(5, ack=False)
            device.say(ack=3)
            await device.flush()
            device.cut()
            await publish(tom, 6, 7)
            device.memory, device.got = (
                None,
                [],
            )  # it even forgot itself, but its counterpart did not
            assert (await device.connect(porto))["n"] == 3
            await device.take(4)
            await device.flush()
            assert device.got == xs(4, 7)
            assert device.lost == []

    run(work)


def test_the_ack_of_a_hello_counts():
    async def work():
        async with one_proxy() as (net, porto), publisher(net) as tom:
            device = await subscribed(net, porto)
            await publish(tom, 1, 5)
            await device.take(5, ack=False)
            device.cut()
            await device.connect(porto)
            await publish(tom, 6, 6)
            await device.take(6)
            await device.flush()
            assert device.got == xs(1, 6)

    run(work)


def test_the_broker_is_told_no_more_than_the_device_has_seen():
    async def work():
        async with one_proxy() as (net, porto), publisher(net) as tom:
            device = await subscribed(net, porto)
            await publish(tom, 1, 40)
            await device.take(40, ack=False)
            backlog = net.brokers["porto"].core.border.of("meter7")[0].backlog
            await asyncio.sleep(1.3)
            assert backlog.acked == 0
            device.say(ack=39)
            await until(lambda: backlog.acked == 39)

    run(work)


def test_the_latest_connection_of_a_device_has_it():
    async def work():
        async with one_proxy() as (net, porto), publisher(net) as tom:
            device = await subscribed(net, porto)
            other = Device()
            await other.connect(porto)
            assert (await device.until("error"))["error"] == "meter7 has connected again"
            assert await device.hear() is None
            await publish(tom, 1, 2)
            await other.take(2)
            assert other.got == xs(1, 2)

    run(work)


def test_a_counterpart_does_not_stay_for_ever():
    async def work():
        async with one_proxy(stay_s=0.2) as (net, porto), publisher(net) as tom:
            device = await subscribed(net, porto)
            device.cut()
            session = net.brokers["porto"].core.border.of("meter7")[0]
            await until(lambda: session.link is None)
            assert porto._seats == {}
            await publish(tom, 1, 3)
            await device.connect(porto)
            await device.take(3)
            assert device.got == xs(1, 3)

    run(work)


def test_a_broker_that_is_away_for_a_while_is_not_noticed():
    async def work():
        async with one_proxy() as (net, porto), publisher(net) as tom:
            device = await subscribed(net, porto)
            await publish(tom, 1, 3)
            await device.take(3, ack=False)
            seat = porto._seats["meter7"]
            seat.counterpart._conversation.wire.abort("a test")
            device.say(ack=2)
            await device.until("memory")
            await publish(tom, 4, 5)
            await device.take(5)
            await device.flush()
            assert device.got == xs(1, 5)
            backlog = net.brokers["porto"].core.border.of("meter7")[0].backlog
            await until(lambda: backlog.acked == backlog.sent)

    run(work)


# ---- elsewhere ---------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_device_that_moves_gets_everything_once_and_in_order(secret):
    async def work():
        names = ("porto", "faro", "braga")
        async with (
            tree("porto-lisbon", "faro-lisbon", "braga-lisbon") as net,
            proxies(net, *names, secret=secret) as found,
            publisher(net) as tom,
        ):
            device = await subscribed(net, found["porto"])
            next_x = 1
            for turn, name in enumerate(("faro", "braga", "porto", "porto", "faro", "braga")):
                await publish(tom, next_x, next_x + 4)
                await device.take(next_x + 1, ack=turn % 2 == 0)
                if turn % 3 == 2:
                    device.writer.close()
                else:
                    device.cut()
                await publish(tom, next_x + 5, next_x + 9)
                assert (await device.connect(found[name]))["broker"] == name
                next_x += 10
            await device.take(next_x - 1)
            await device.flush()
            assert device.got == xs(1, next_x - 1)
            assert device.lost == []
            sessions = [
                one for core in net.brokers.values() for one in core.core.border.of("meter7")
            ]
            assert len(sessions) == 1

    run(work)


def test_a_device_that_never_heard_of_its_last_moves_gets_everything():
    """Two proxies had it in between, but it was cut off before they could say so."""

    async def work():
        async with (
            tree("porto-lisbon", "faro-lisbon", "braga-lisbon") as net,
            proxies(net, "porto", "faro", "braga", "lisbon") as found,
            publisher(net) as tom,
        ):
            device = await subscribed(net, found["porto"])
            await publish(tom, 1, 2)
            await device.take(2)
            for name in ("faro", "braga"):
                await device.open(found[name])
                device.say(hello="meter7", memory=device.memory, ack=device.n)
                border = net.brokers[name].core.border
                await until(
                    lambda border=border: [one.wait for one in border.of("meter7")] == [None]
                )
                device.cut()
                await publish(tom, 3, 4)
            await device.connect(found["lisbon"])
            await device.take(6)
            await device.flush()
            assert device.got == xs(1, 2) + xs(3, 4) + xs(3, 4)
            assert device.lost == []

    run(work)


def test_what_a_device_says_again_is_published_once():
    async def work():
        async with (
            tree("porto-lisbon", "faro-lisbon") as net,
            proxies(net, "porto", "faro") as found,
            wayfare.connect(net.url("lisbon"), "una") as una,
            una.subscribe("exists(x)") as some,
        ):
            device = Device()
            await device.connect(found["porto"])
            device.say(advertise="exists(x)")
            await device.flush()
            for x in (1, 2, 3):
                device.say(publish={"x": x}, number=x)
            while (await device.until("published"))["published"] < 3:
                pass
            device.say(publish={"x": 3}, number=3)
            assert await device.until("published") == {"published": 3}
            device.cut()
            for name in ("porto", "faro", "porto"):
                await device.connect(found[name])
                for x in (2, 3):
                    device.say(publish={"x": x}, number=x)
                await device.flush()
            device.say(publish={"x": 4}, number=4)
            got = [(await some.get(5))["x"] for _ in range(4)]
            assert got == [1, 2, 3, 4]
            assert device.published[-1] == 3
            assert await device.until("published") == {"published": 4}
            with pytest.raises(TimeoutError):
                await some.get(0.1)

    run(work)


def test_what_nobody_wants_any_more_does_not_part_the_device_from_its_session():
    """It was under way when the subscription was withdrawn: the device is told that the stream went on."""

    async def work():
        async with (
            tree("porto-lisbon", "faro-lisbon") as net,
            proxies(net, "porto", "faro") as found,
            publisher(net, offered="exists(x) or exists(y)") as tom,
        ):
            device = await subscribed(net, found["porto"])
            device.say(subscribe="y > 0")
            await device.confirm()
            counterpart = found["porto"]._seats["meter7"].counterpart
            counterpart._core.unsubscribe(Filter.parse("x > 0"))  # and the broker does not know yet
            await publish(tom, 1, 3)
            while device.n != 3:
                assert set(await device.hear()) <= {"n", "memory"}
            await asyncio.sleep(1.3)
            assert net.brokers["porto"].core.border.of("meter7")[0].backlog.acked == 0
            device.n = 0  # as if it had been cut off before
            device.cut()
            await device.connect(found["faro"])
            await tom.publish({"y": 1}, confirm=True)
            await device.until("notification")
            await device.flush()
            assert device.got[-1] == {"y": 1}
            assert device.lost == []

    run(work)


def test_a_device_without_its_memory_begins_anew_elsewhere():
    async def work():
        async with (
            tree("porto-lisbon", "faro-lisbon") as net,
            proxies(net, "porto", "faro") as found,
            publisher(net) as tom,
        ):
            device = await subscribed(net, found["porto"])
            device.cut()
            await publish(tom, 1, 2)
            device.memory, device.n = None, 0
            await device.connect(found["faro"])
            device.say(subscribe="x > 0")
            await device.confirm()
            await publish(tom, 3, 4)
            await device.take(2)
            assert device.got == xs(3, 4)
            await until(lambda: net.brokers["porto"].core.border.of("meter7") == [])

    run(work)


# ---- clocks that are wrong ---------------------------------------------------------------------


def set_clock(monkeypatch, seconds):
    """From now on, proxies take it to be so much later."""
    for module in (counterpart_module, local_broker):
        monkeypatch.setattr(module, "clock", lambda: REAL_CLOCK() + seconds * 1_000_000)


@pytest.mark.parametrize("name", ["porto", "faro"])
def test_a_device_begins_anew_at_a_proxy_whose_clock_is_behind(monkeypatch, name):
    async def work():
        async with (
            tree("porto-lisbon", "faro-lisbon") as net,
            proxies(net, "porto") as found,
            publisher(net) as tom,
            tom.subscribe("exists(y)") as some,
        ):
            for turn, seconds in enumerate((0, -600, -1200)):
                set_clock(monkeypatch, seconds)
                async with proxies(net, name) as others:
                    proxy = found["porto"] if turn == 0 else others[name]
                    device = Device()  # it remembers nothing
                    assert (await device.connect(proxy))["published"] == 0
                    device.say(subscribe="x > 0")
                    device.say(advertise="exists(y)")
                    for number in (1, 2, 2):
                        device.say(publish={"y": 10 * turn + number}, number=number)
                    got = [(await some.get(5))["y"] for _ in range(2)]
                    assert got == [10 * turn + 1, 10 * turn + 2]
                    while (await device.until("published"))["published"] < 2:
                        pass
                    await device.confirm()
                    await publish(tom, turn + 1, turn + 1)
                    await device.take(1)
                    assert device.got == xs(turn + 1, turn + 1)
                    assert device.lost == []
                    device.cut()
            with pytest.raises(TimeoutError):
                await some.get(0.1)

    run(work)


def test_a_device_goes_on_at_a_proxy_whose_clock_is_behind(monkeypatch):
    async def work():
        async with (
            tree("porto-lisbon", "faro-lisbon") as net,
            proxies(net, "porto", "faro") as found,
            publisher(net, offered="exists(x) or exists(z)") as tom,
            tom.subscribe("exists(y)") as some,
        ):
            await tom.publish({"z": 1}, retain="z", confirm=True)
            device = await subscribed(net, found["porto"])
            device.say(advertise="exists(y)")
            device.say(subscribe="z > 5")  # it asks for current values
            await device.flush()
            device.say(publish={"y": 0})
            assert (await some.get(5))["y"] == 0
            for turn, name in enumerate(("faro", "porto", "faro"), 1):
                set_clock(monkeypatch, -600 * turn)
                device.cut()
                await device.connect(found[name])
                device.say(subscribe=f"z > {-turn}")
                assert (await device.until("retained"))["notification"] == {"z": 1}
                device.say(ack=device.n)
                device.say(publish={"y": turn})
                assert (await some.get(5))["y"] == turn
                await publish(tom, turn, turn)
                await device.until("notification")
                device.say(ack=device.n)
                await device.flush()
            assert [one for one in device.got if "x" in one] == xs(1, 3)
            assert device.lost == []

    run(work)


def test_a_device_goes_on_counting_above_another_process_that_is_found_later():
    """Its broker was cut off when it began, and hears later of one whose clock was ahead."""
    core = Careful("meter7")
    core.begin(100, 7)
    core.advertise(Filter.parse("exists(y)"))
    core.attach("porto", "a")
    core.step(Received("a", Welcome(101, 0)), 0)
    core.publish({"y": 1})
    assert (core.published, core.base) == (101, 100)
    core.step(Received("a", Resend(101, 5_000)), 0)
    core.publish({"y": 2})
    assert (core.published, core.base) == (5_001, 4_999)


# ---- losses that become exact ------------------------------------------------------------------


@asynccontextmanager
async def failed_over(path, **more):
    """A device whose broker, a, was killed with 2 and 3 for it. It is at c, and has been told of a loss."""
    net, found = Processes(path, "disk"), {}
    try:
        for name in ("b", "a", "c"):
            await net.start(name)
            found[name] = Thin(net.urls(name)[0], failover=0.1)
            found[name].port = await found[name].start("127.0.0.1", 0)
        device = Device()
        await device.connect(found["a"], **more)
        device.say(subscribe="x > 0")
        await device.flush()
        async with (
            wayfare.connect(net.urls("c"), client_id="tom") as tom,
            wayfare.connect(net.urls("a")[0], client_id="eve") as eve,
        ):
            await tom.advertise("x > 0")
            seen = await eve.subscribe("x > 0")  # so the same is in effect for the device
            await publish(tom, 1, 1)
            await device.take(1)
            await device.flush()
            device.cut()
            await publish(tom, 2, 3)
            while (await seen.get(5))["x"] != 3:
                pass
            await net.kill("a")
            await device.connect(found["c"], **more)
            assert (await device.until("lost"))["lost"] == 0
            device.say(ack=device.n)
            await publish(tom, 4, 4)  # newer than what a has
            await device.take(2)
            await device.flush()
            yield net, found, device
    finally:
        for one in found.values():
            await one.stop()
        await hang_up()
        for process in net.running.values():
            process.kill()
            await process.wait()


async def heard(device, word):
    """All lines up to one that says this, acknowledged; but those that only keep the device up to date."""
    lines = [await device.hear()]
    while word not in lines[-1]:
        if "n" in lines[-1]:
            device.say(ack=device.n)
        lines.append(await device.hear())
    return [one for one in lines if one.keys() - {"n", "memory"}]


def test_a_device_is_told_how_many_its_dead_broker_kept(tmp_path):
    async def work():
        async with failed_over(tmp_path) as (net, _, device):
            await net.start("a")
            (settled,) = await heard(device, "settled")
            assert settled == {"n": device.n, "settled": 2, "publishers": {"tom": 2}}
            device.cut()

    run(work)


def test_a_device_that_wants_it_gets_late_what_its_dead_broker_kept(tmp_path):
    async def work():
        async with failed_over(tmp_path, late=True) as (net, _, device):
            await net.start("a")
            *late, settled = await heard(device, "settled")
            assert [(one["notification"], one["late"]) for one in late] == [
                ({"x": 2}, True),
                ({"x": 3}, True),
            ]
            assert (settled["settled"], settled["publishers"]) == (0, {})

    run(work)


def test_a_device_that_has_moved_since_is_told_that_nobody_knows(tmp_path):
    async def work():
        async with failed_over(tmp_path) as (net, found, device):
            await device.connect(found["b"])
            await device.flush()
            await net.start("a")
            (lost,) = await heard(device, "lost")
            assert (lost["lost"], lost["why"]) == (0, UNSURE)

    run(work)


def test_a_device_that_has_moved_since_gets_late_what_it_may_have_had(tmp_path):
    async def work():
        async with failed_over(tmp_path, late=True) as (net, found, device):
            await device.connect(found["b"], late=True)
            await device.flush()
            await net.start("a")
            *late, lost = await heard(device, "lost")
            assert [one["notification"] for one in late] == xs(2, 3)
            assert (lost["lost"], lost["why"]) == (0, UNSURE)

    run(work)


def test_a_device_may_change_its_mind_about_what_comes_late(tmp_path):
    async def work():
        async with failed_over(tmp_path) as (net, found, device):
            device.cut()
            await device.connect(found["c"], late=True)
            await device.flush()
            await net.start("a")
            *late, settled = await heard(device, "settled")
            assert [one["notification"] for one in late] == xs(2, 3)
            assert settled["settled"] == 0

    run(work)


def test_late_is_true_or_false():
    async def work():
        async with one_proxy() as (_, porto):
            answer = await Device().connect(porto, late="maybe")
            assert answer["error"] == "late is true or false, not 'maybe'"

    run(work)


# ---- memory ------------------------------------------------------------------------------------


def test_a_memory_is_only_good_as_it_was_given():
    async def work():
        async with one_proxy(secret=SECRET) as (net, porto):
            device = await subscribed(net, porto)
            memory = opened(device.memory, SECRET, "meter7")
            assert memory.subscriptions == (("x > 0", None),)
            good = device.memory
            for bad, why in [
                (
                    good[:-5] + ("A" if good[-5] != "A" else "B") + good[-4:],
                    "is damaged, or signed",
                ),
                (good[:50], "is damaged"),
                ("1", "is damaged"),
                ("no memory", "is none that this proxy knows"),
                (17, "is none that this proxy knows"),
                ("1" + "A" * thin_memory.MEMORY_MAX, "is none that this proxy knows"),
                (sealed(memory, None), "signed with another secret"),
                (sealed(memory, SECRET + "!"), "signed with another secret"),
                (
                    sealed(thin_memory.msgspec.structs.replace(memory, client="eve"), SECRET),
                    "'eve'",
                ),
            ]:
                other = Device()
                await other.open(porto)
                other.say(hello="meter7", memory=bad, ack=0)
                answer = await other.hear()
                assert why in answer["error"]
                assert answer["error"].endswith("leave it out, to begin anew")
                assert await other.hear() is None
            device.say(flush=2)
            assert await device.until("flushed") == {"flushed": 2}

    run(work)


def test_a_made_up_memory_is_refused_with_a_sentence():
    """Where there is no secret anybody can make one; it is no more than a client could say."""

    async def work():
        async with one_proxy() as (net, porto):
            device = await subscribed(net, porto)
            memory = opened(device.memory, None, "meter7")
            device.say(bye=1)
            await device.until("bye")
            for change in (
                {"subscriptions": (("x >", None),)},
                {"advertisements": ("x >",)},
                {"follows": (("x >", None),)},
                {"follows": (("x > 0", None),)},
                {"epoch": 2**62},
                {"asks": 2**62},
                {"life": -1},
                {"base": 2**62},
                {"client": "m" * 257},
            ):
                bad = sealed(thin_memory.msgspec.structs.replace(memory, **change), None)
                other = Device()
                await other.open(porto)
                other.say(hello="meter7", memory=bad, ack=0)
                assert list(await other.hear()) == ["error", "line"], change
                assert await other.hear() is None
            assert "welcome" in await Device().connect(porto)

    run(work)


def test_a_memory_that_an_earlier_release_wrote_is_good():
    fields = thin_memory.ThinMemory.__struct_fields__
    names = fields[: fields.index("life")]
    earlier = thin_memory.msgspec.defstruct("Earlier", names, array_like=True)
    old = earlier("meter7", 7, 8, "porto", (("porto", 8),), (), (), (), NOWHERE)
    memory = opened(sealed(old, SECRET), SECRET, "meter7")
    assert (memory.base, memory.epoch, memory.life, memory.published) == (7, 8, 0, 0)


def test_a_memory_goes_with_an_ack():
    async def work():
        async with one_proxy() as (net, porto):
            device = await subscribed(net, porto)
            await device.open(porto)
            device.say(hello="meter7", memory=device.memory)
            assert 'say "ack" too' in (await device.hear())["error"]

    run(work)


def test_what_cannot_be_remembered_is_refused(monkeypatch):
    monkeypatch.setattr("wayfare.net.counterpart.MEMORY_MAX", 600)

    async def work():
        async with one_proxy() as (net, porto):
            device = await subscribed(net, porto)
            device.say(subscribe=" or ".join(f"place = '{number}'" for number in range(30)))
            assert "meter7 cannot remember more" in (await device.until("error"))["error"]
            device.say(subscribe="x > 1")
            assert await device.until("memory")

    run(work)


@pytest.mark.parametrize("position", [(0, 0, 0), (17, 0, 0), (17, 5, 3), (0, 5, 0)])
def test_positions_are_read_as_they_are_told(position):
    assert position_of(text_of(position)) == position


@pytest.mark.parametrize("given", [-1, 1.5, True, None, "", "1/2", "1/2/3/4", "a", "1/-2/3", [1]])
def test_what_is_no_position(given):
    with pytest.raises(UsageError, match="ack is the n of a line"):
        position_of(given)


# ---- last wills --------------------------------------------------------------------------------

WILL = {"device": "meter7", "state": "gone"}


@asynccontextmanager
async def watched(*names):
    """Proxies beside these brokers, and a subscription to the states of devices."""
    async with (
        tree("porto-lisbon", "faro-lisbon") as net,
        proxies(net, *names) as found,
        wayfare.connect(net.url("lisbon"), "monitor") as monitor,
        monitor.subscribe("exists state") as states,
    ):
        yield net, found, states


def test_the_will_of_a_device_that_is_gone_is_published():
    async def work():
        async with watched("porto") as (net, found, states):
            device = Device()
            for _ in range(2):  # once for each absence
                await device.connect(found["porto"], will=WILL)
                device.cut()
                gone = await states.get(10)
                assert (gone.attributes, gone.publisher) == (WILL, "meter7 (will)")
            await device.connect(found["porto"])  # without a will
            device.cut()
            await device.connect(
                found["porto"], will={**WILL, "state": "lost"}, will_retain="device"
            )
            device.cut()
            assert (await states.get(10))["state"] == "lost"
            await until(lambda: len(net.brokers["porto"].core.border.retained) == 1)
            await device.connect(found["porto"], will=WILL)
            device.say(bye=True)
            await device.until("bye")
            await until(lambda: not net.brokers["porto"].core.border.of("meter7"))
            with pytest.raises(TimeoutError):
                await states.get(0.2)

    run(work)


def test_no_will_is_published_of_a_device_that_moves_or_is_back_in_time():
    async def work():
        async with watched("porto", "faro") as (net, found, _), publisher(net) as tom:
            device = await subscribed(net, found["porto"])
            more = {"will": WILL, "will_delay": 60}
            await device.connect(found["porto"], **more)  # it had none
            await publish(tom, 1, 3)
            await device.take(3, ack=False)
            device.n, device.got = 0, []  # it forgets them
            device.cut()
            border = net.brokers["porto"].core.border
            await until(lambda: border.of("meter7")[0].link is None)
            await publish(tom, 4, 5)
            await device.connect(found["porto"], **more)
            await device.take(5, ack=False)
            assert device.got == xs(1, 5)
            device.n, device.got = 0, []
            device.cut()
            await device.connect(found["faro"], **more)
            await device.take(5)
            assert device.got == xs(1, 5)
            await until(lambda: not border.of("meter7"))
            assert [one.wills for one in net.brokers.values()] == [0, 0, 0]

    run(work)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"will": {}}, "a will has at least one attribute"),
        ({"will": 5}, "a mapping of names to values"),
        ({"will": WILL, "will_delay": "soon"}, "delay is a number of seconds"),
        ({"will": WILL, "will_retain": "colour"}, "colour"),
        ({"will_delay": 5}, 'will_delay says more of a will: say "will" too'),
    ],
    ids=["empty", "number", "delay", "key", "no will"],
)
def test_a_will_that_makes_no_sense_is_refused(said, why):
    async def work():
        async with one_proxy() as (_, porto):
            answer = await Device().connect(porto, **said)
            assert why in answer["error"]

    run(work)


# ---- hostile, slow, silent ---------------------------------------------------------------------

BAD = [
    (b"nonsense", "a line is an object in JSON"),
    (b"\xff\xfe", "a line is an object in JSON"),
    (b"[1]", "a line is an object in JSON, like"),
    (b"[" * 60_000, "a line is an object in JSON"),
    (b"{}", "a line says one of hello, subscribe"),
    (b'{"shout": 1}', "a line says one of hello, subscribe"),
    (b'{"hello": "again"}', "the first line, and only that"),
    (b'{"subscribe": "x >"}', "x >"),
    (b'{"subscribe": 5}', "a filter is a text"),
    (b'{"subscribe": "x > 0", "last": "many"}', "last is a whole number"),
    (b'{"subscribe": "x > 0", "colour": 1}', "beside subscribe a line says last, younger"),
    (b'{"unsubscribe": "y > 0"}', "is not subscribed to"),
    (b'{"unadvertise": "y > 0"}', "has not advertised"),
    (b'{"advertise": "x in myloc"}', "follows a client"),
    (b'{"publish": {"x": 1}}', "no advertisement of"),
    (b'{"publish": 5}', "a mapping of names to values"),
    (b'{"publish": {"x": [1]}}', "x"),
    (b'{"publish": {"x": 1}, "number": 0}', "publications are numbered from 1"),
    (b'{"publish": {"x": 1}, "number": "1"}', "publications are numbered from 1"),
    (b'{"publish": {"x": 1}, "payload_base64": "?"}', "its payload cannot be read"),
    (b'{"publish": {"x": 1}, "payload": 3}', "its payload is no text"),
    (b'{"location": {}}', "a location is a name"),
    (b'{"location": [91, 0]}', "a location is a name"),
    (b'{"state": 5}', "state is an object"),
    (b'{"state": {"a b": 1}}', "a b"),
    (b'{"state": {"a": [1]}}', "cannot be [1]"),
    (b'{"ack": "x"}', "ack is the n of a line"),
]


def test_every_bad_line_gets_a_sentence_and_nobody_else_notices():
    async def work():
        async with one_proxy() as (net, porto), publisher(net) as tom:
            other = Device("other")
            await other.connect(porto)
            other.say(subscribe="x > 0")
            await other.confirm()
            for start in range(0, len(BAD), MISTAKES_MAX - 1):
                device = Device(f"bad{start}")
                await device.connect(porto)
                for line, why in BAD[start : start + MISTAKES_MAX - 1]:
                    device.raw(line + b"\n")
                    answer = await device.until("error")
                    assert why in answer["error"], line
                    assert "\n" not in answer["error"]
                    assert answer["line"] > 1
                await device.flush()
            await publish(tom, 1, 2)
            await other.take(2)
            assert other.got == xs(1, 2)

    run(work)


@pytest.mark.parametrize(
    "line", [*(line for line, _ in BAD if b"hello" not in line), b'{"hello": ""}']
)
def test_a_stranger_has_one_line(line):
    async def work():
        async with one_proxy() as (_, porto):
            device = Device()
            await device.open(porto)
            device.raw(line + b"\n" + b'{"hello": "eve"}\n')
            assert "error" in await device.hear()
            assert await device.hear() is None

    run(work)


def test_enough_mistakes_are_enough():
    async def work():
        async with one_proxy() as (_, porto):
            device = Device()
            await device.connect(porto)
            device.raw(b"x\n" * 50)
            heard = []
            while (one := await device.hear()) is not None:
                heard.append(one["error"])
            assert len(heard) == MISTAKES_MAX + 1
            assert heard[-1] == f"{MISTAKES_MAX} mistakes are enough"

    run(work)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_has_an_end(end):
    async def work():
        async with one_proxy() as (_, porto):
            device = Device()
            await device.connect(porto)
            device.raw(b"x" * (2 * LINE_MAX + 1) + end)
            assert (await device.until("error"))["error"] == f"a line has at most {LINE_MAX} bytes"
            assert await device.hear() is None
            assert "welcome" in await device.connect(porto)

    run(work)


def test_a_slow_device_holds_up_nobody_and_its_backlog_stays_at_the_broker():
    async def work():
        async with one_proxy() as (net, porto), publisher(net) as tom:
            slow, quick = await subscribed(net, porto), Device("quick")
            await quick.connect(porto)
            quick.say(subscribe="x > 0")
            await quick.confirm()
            slow.reader._transport.pause_reading()
            for x in range(1, 1001):
                await tom.publish({"x": x}, b"p" * 900)
            await quick.take(1000)
            assert quick.got == xs(1, 1000)
            told = porto._seats["meter7"].counterpart._tellings
            assert len(told) == Limits().window
            assert len(net.brokers["porto"].core.border.of("meter7")[0].backlog) == 1000
            slow.reader._transport.resume_reading()
            await slow.take(1000)
            assert slow.got == xs(1, 1000)

    run(work)


def test_what_follows_a_slow_device_does_not_pile_up(monkeypatch):
    monkeypatch.setattr("wayfare.net.counterpart.TELLINGS_MAX", 20)

    async def work():
        async with one_proxy() as (net, porto), publisher(net, offered="exists(room)") as tom:
            device = await subscribed(net, porto, "room in myloc")
            device.say(location="R1")
            await device.confirm()
            for x in range(1, 101):
                await tom.publish({"room": "R1", "x": x}, confirm=x == 100)
            await device.take(20, ack=False)
            told = porto._seats["meter7"].counterpart._tellings
            assert len(told) == 20
            device.say(ack=device.n)
            await device.take(100)
            assert [one["x"] for one in device.got] == list(range(1, 101))

    run(work)


def test_who_says_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(thin_module, "GREETING_S", 0.2)

    async def work():
        async with one_proxy(idle_s=0.4) as (net, porto):
            stranger = Device()
            await stranger.open(porto)
            assert "for too long" in (await stranger.hear())["error"]
            assert await stranger.hear() is None
            device = await subscribed(net, porto)
            for _ in range(3):
                await asyncio.sleep(0.25)
                device.raw(b"\n")
            await device.flush()
            assert "for too long" in (await device.until("error"))["error"]
            assert "meter7" in porto._seats

    run(work)


def test_only_so_many_devices(monkeypatch):
    monkeypatch.setattr(thin_module, "STRANGERS_MAX", 1)

    async def work():
        async with one_proxy(devices=2) as (_, porto):
            first, second, third = Device("a"), Device("b"), Device("c")
            await first.connect(porto)
            await second.connect(porto)
            assert "2 devices are here already" in (await third.connect(porto))["error"]
            stranger = Device()
            await stranger.open(porto)
            await asyncio.sleep(0.05)
            assert "too many are connected" in (await third.connect(porto))["error"]
            first.cut()
            await until(lambda: porto._seats["a"].ends is not None)
            assert "welcome" in await third.connect(porto)
            assert sorted(porto._seats) == ["b", "c"]

    run(work)


def test_a_broker_that_is_not_there():
    async def work():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        proxy = Thin(f"127.0.0.1:{port}", timeout=0.2)
        proxy.port = await proxy.start("127.0.0.1", 0)
        device = Device()
        assert "cannot reach a broker" in (await device.connect(proxy))["error"]
        assert await device.hear() is None
        assert proxy._seats == {}
        await proxy.stop()
        await hang_up()

    run(work)


def test_a_proxy_that_cannot_listen():
    async def work():
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(UsageError, match="cannot listen at"),
        ):
            await Thin("127.0.0.1:1").start("127.0.0.1", taken.getsockname()[1])

    run(work)
