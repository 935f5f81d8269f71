"""What a process tells about its brokers over HTTP."""

import asyncio
import json
import re
import time
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

import wayfare
from live import HERE, settled, tree, until
from test_net import LINE, live, numbers
from wayfare.cli.top import Look, draw
from wayfare.core.codec import encode
from wayfare.core.counts import Histogram
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import PROTOCOL_VERSION, Attach, Detach, Hello, Join
from wayfare.core.places import of_edges
from wayfare.core.virtual import Ahead
from wayfare.net import http, metrics
from wayfare.net import store as stores
from wayfare.net.broker import BrokerHost
from wayfare.net.doctor import Doctor
from wayfare.net.http import Endpoint
from wayfare.net.status import Spread, Status, status_of
from wayfare.net.store import Store


async def ask(where, request):
    """Send these bytes, and return all that comes back."""
    reader, writer = await asyncio.open_connection(*where)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def get(where, path, headers=""):
    """The status, the headers and the body of an answer."""
    answer = await ask(where, f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    return int(first.split()[1]), dict(one.split(": ", 1) for one in rest), body.decode()


async def scrape(where):
    """All samples: (name, labels as a sorted tuple) -> value."""
    status, _, body = await get(where, "/metrics")
    assert status == 200
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


def of(broker, name, **labels):
    return (f"wayfare_{name}", *sorted({"broker": broker, **labels}.items()))


@asynccontextmanager
async def told(brokers):
    endpoint = Endpoint(brokers)
    try:
        yield await endpoint.start("127.0.0.1", 0)
    finally:
        await endpoint.stop()


def test_a_journal_without_snapshots_is_logged_and_measured(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(stores, "SNAPSHOT_BYTES", 16 * 1024)
    overdue = of("porto", "journal_overdue")

    def warnings():
        return [one for one in caplog.records if getattr(one, "event", "") == "journal_long"]

    async def write(client, kib):
        for x in range(1, kib + 1):
            await client.publish({"x": x}, payload=bytes(1_024))
            await client.flush(10)

    async def work(host, tom, where):
        await tom.advertise("x > 0")
        await write(tom, 50)
        assert host.store.snapshots > 1
        with monkeypatch.context() as blocked:
            blocked.setattr(host.core, "is_quiet", lambda: False)
            await write(tom, 10)
            assert (await scrape(where))[overdue] == 0  # a snapshot may still come
            assert not warnings()
            await write(tom, 40)
            assert (await scrape(where))[overdue] == 1
        (warning,) = warnings()  # at most one a minute
        assert warning.levelname == "WARNING"
        assert warning.args["bytes"] > 2 * stores.SNAPSHOT_BYTES
        await write(tom, 1)
        assert (await scrape(where))[overdue] == 0

    async def test():
        host = BrokerHost("porto", {}, store=Store(tmp_path, "os", "porto"))
        address = str(await host.start(HERE))
        try:
            async with told([host]) as where, wayfare.connect(address, client_id="tom") as tom:
                await work(host, tom, where)
        finally:
            await host.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


@live
async def test_the_metrics_tell_what_happened():
    async with (
        tree(*LINE, heartbeat_s=60) as net,  # which would be on its way now and then
        told(net.brokers.values()) as where,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("faro"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 5") as some:
            before = await scrape(where)
            for x in range(1, 11):
                await tom.publish({"x": x})
            assert await numbers(some, 5) == [6, 7, 8, 9, 10]
            await anna.move(net.url("lisbon"))
            await tom.publish({"x": 11})
            assert await numbers(some, 1) == [11]
            now = await scrape(where)

    def grew(broker, name, **labels):
        key = of(broker, name, **labels)
        return now[key] - before[key]

    assert grew("faro", "notifications_routed_total") == 11
    assert grew("porto", "notifications_routed_total") == 5  # what nobody wants does not come
    assert grew("porto", "deliveries_total") == 5
    assert grew("lisbon", "deliveries_total") == 1
    assert grew("lisbon", "moves_total") == grew("lisbon", "attachments_total") == 1
    assert grew("porto", "moves_total") == grew("faro", "moves_total") == 0
    assert grew("lisbon", "handover_seconds_count") == 1
    assert 0 < grew("lisbon", "handover_seconds_sum") < 5
    assert grew("faro", "messages_received_total", kind="client", neighbour="") >= 11
    sent = grew("faro", "messages_sent_total", kind="broker", neighbour="lisbon")
    got = grew("lisbon", "messages_received_total", kind="broker", neighbour="faro")
    assert sent == got >= 6
    assert grew("faro", "sent_bytes_total", kind="broker", neighbour="lisbon") == grew(
        "lisbon", "received_bytes_total", kind="broker", neighbour="faro"
    )
    assert before[of("porto", "sessions", state="attached")] == 1
    assert now[of("porto", "sessions", state="attached")] == 0
    assert now[of("lisbon", "sessions", state="attached")] == 1
    assert before[of("porto", "subscriptions", kind="client", neighbour="")] == 1
    assert before[of("lisbon", "subscriptions", kind="broker", neighbour="porto")] == 1
    assert before[of("lisbon", "advertisements", kind="broker", neighbour="faro")] == 1
    assert before[of("faro", "advertisements", kind="client", neighbour="")] == 1
    assert now[of("lisbon", "connections", kind="broker")] == 2
    assert now[of("lisbon", "link_up", neighbour="porto")] == 1
    assert now[of("porto", "connections_ended_total", kind="client", how="closed", why="")] == 1
    assert now["process_resident_memory_bytes",] > 1e6
    assert not any("anna" in str(key) or "tom" in str(key) for key in now)


@asynccontextmanager
async def raw(broker, name, epoch, filter):
    """A client that attaches, subscribes, and never acknowledges anything."""
    reader, writer = await asyncio.open_connection(broker.address.host, broker.address.port)
    previous = ((broker.name, epoch - 1),) if epoch > 1 else ()
    attach = Attach(name, epoch, 0, (Filter.parse(filter),), (), previous, epoch > 1)
    writer.write(encode(Hello(PROTOCOL_VERSION, name)) + encode(attach))
    try:
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


@live
async def test_the_backlog_of_a_client_that_is_away_shows_and_so_does_what_it_loses():
    async with (
        tree(*LINE, limits=Limits(backlog_count=3)) as net,
        told(net.brokers.values()) as where,
        wayfare.connect(net.url("faro"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        porto = net.brokers["porto"]
        async with raw(porto, "anna", 1, "x > 0"):
            await settled(net)
        await until(lambda: not porto.connections)
        for x in range(1, 6):
            await tom.publish({"x": x})
        await until(lambda: porto.routed == 5)
        now = await scrape(where)
        assert now[of("porto", "sessions", state="away")] == 1
        assert now[of("porto", "sessions", state="attached")] == 0
        assert now[of("porto", "backlog_notifications")] == 3
        assert now[of("porto", "backlog_bytes")] == 3 * 24
        assert now[of("porto", "gaps_total")] == 0
        async with raw(porto, "anna", 2, "x > 0"):
            await until(lambda: porto.gaps)
            now = await scrape(where)
        assert now[of("porto", "gaps_total")] == 1
        assert now[of("porto", "deliveries_total")] == 3
        assert now[of("porto", "moves_total")] == 0  # it was here before
        assert now[of("porto", "attachments_total")] == 2


@live
async def test_a_link_that_is_down_shows_and_what_waits_for_it():
    async with (
        tree(*LINE) as net,
        told([net.brokers["lisbon"]]) as where,
        wayfare.connect(net.url("lisbon"), client_id="anna") as anna,
    ):
        status, _, body = await get(where, "/health")
        health = json.loads(body)
        assert (status, health["healthy"]) == (200, True)
        (lisbon,) = health["brokers"]
        assert lisbon.pop("uptime_s") >= 0
        assert lisbon == {
            "name": "lisbon",
            "links_up": ["porto", "faro"],
            "links_down": [],
            "durability": "memory",
            "failure": "",
        }
        await net.brokers["porto"].stop()
        await until(lambda: net.brokers["lisbon"].links["porto"].connection is None)
        await anna.advertise("x > 0")
        await until(lambda: net.brokers["lisbon"].links["porto"])
        status, _, body = await get(where, "/health")
        (lisbon,) = json.loads(body)["brokers"]
        assert (status, lisbon["links_down"]) == (503, ["porto"])
        now = await scrape(where)
        assert now[of("lisbon", "link_up", neighbour="porto")] == 0
        assert now[of("lisbon", "link_up", neighbour="faro")] == 1
        assert now[of("lisbon", "link_kept_messages", neighbour="porto")] >= 1


@live
async def test_connections_that_are_refused_are_counted_by_how_and_whose():
    async with tree(*LINE) as net, told(net.brokers.values()) as where:
        porto = net.brokers["porto"].address
        at = porto.host, porto.port
        hello = encode(Hello(PROTOCOL_VERSION, "eve"))
        assert b"a frame of" in await ask(at, b"GET / HTTP/1.1\r\n\r\n")
        assert b"before Attach" in await ask(at, hello + encode(Detach()))
        assert b"no neighbour" in await ask(at, hello + encode(Join(1, 0, 0)))
        attach = encode(Attach("eve", 1, 0))
        assert b"from a client" in await ask(at, hello + attach + encode(Join(1, 0, 0)))
        now = await scrape(where)
        ended = {
            tuple(value for name, value in key[1:] if name != "broker"): count
            for key, count in now.items()
            if key[0] == "wayfare_connections_ended_total"
        }
        assert ended == {  # how, kind, why
            ("refused", "stranger", "bytes"): 1,
            ("refused", "stranger", "protocol"): 1,
            ("refused", "stranger", "neighbour"): 1,
            ("refused", "client", "protocol"): 1,
        }
        assert now[of("porto", "received_bytes_total", kind="stranger", neighbour="")] >= len(hello)


@live
async def test_the_journal_shows_and_so_does_a_store_that_failed():
    async def scenario(directory):
        host = BrokerHost("porto", {}, store=Store(directory, "os", "porto"))
        address = await host.start(HERE)
        async with told([host]) as where:
            try:
                async with wayfare.connect(str(address), client_id="tom") as tom:
                    await tom.advertise("x > 0")
                    now = await scrape(where)
                    assert now[of("porto", "journal_bytes")] > 0
                    assert now[of("porto", "commit_seconds_count")] >= 2
                    assert now[of("porto", "commit_seconds_sum")] > 0
                    assert now[of("porto", "snapshots_total")] == 1
                    assert now[of("porto", "failed")] == 0
                    host.store._db.execute("DROP TABLE journal")
                    await tom.advertise("x > 1")
                    await until(host.failed.is_set)
                    await tom.close(timeout=0.1)
                now = await scrape(where)
                assert now[of("porto", "failed")] == 1
                status, _, body = await get(where, "/health")
                assert status == 503
                assert "no such table" in json.loads(body)["brokers"][0]["failure"]
            finally:
                await host.stop()

    with TemporaryDirectory() as directory:
        await scenario(Path(directory))


@live
async def test_requests_are_short_soon_and_few():
    async with tree(*LINE) as net, told(net.brokers.values()) as where:
        assert (await get(where, "/"))[0] == 404
        assert (await get(where, "/status?x=1"))[0] == 200
        answer = await ask(where, b"POST /metrics HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 405 ") and b"\r\nAllow: GET\r\n" in answer
        assert (await ask(where, b"GET /metrics\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        long = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * http.REQUEST_BYTES
        assert (await ask(where, long)).startswith(b"HTTP/1.1 431 ")


@live
async def test_who_asks_too_slowly_or_too_often_is_cut_off():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "REQUEST_S", 1.0)
        async with tree(*LINE) as net, told(net.brokers.values()) as where:
            slow = [await asyncio.open_connection(*where) for _ in range(http.CONNECTIONS_MAX)]
            await asyncio.sleep(0.05)
            assert await ask(where, b"GET /health HTTP/1.1\r\n\r\n") == b""
            for reader, writer in slow:
                async with asyncio.timeout(http.REQUEST_S + 5):
                    assert await reader.read() == b""
                writer.close()
            assert (await get(where, "/health"))[0] == 200


@live
async def test_a_scraper_gets_the_format_that_it_wants():
    async with tree(*LINE) as net, told(net.brokers.values()) as where:
        wanted = "Accept: application/openmetrics-text; version=1.0.0\r\n"
        _, headers, body = await get(where, "/metrics", wanted)
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        names = [family.name for family in openmetrics.text_string_to_metric_families(body)]
        assert "wayfare_deliveries" in names  # of which the samples have _total
        _, headers, _ = await get(where, "/metrics")
        assert headers["Content-Type"].startswith("text/plain; version=")


@live
async def test_the_status_is_all_that_top_needs():
    async with tree(*LINE) as net, told(net.brokers.values()) as where:
        _, headers, body = await get(where, "/status")
        assert headers["Content-Type"] == "application/json"
        status = msgspec.json.decode(body, type=Status)
        assert [one.name for one in status.brokers] == list(net.brokers)
        assert abs(status.time_s - time.time()) < 5
        lisbon = next(one for one in status.brokers if one.name == "lisbon")
        assert lisbon.address == net.url("lisbon")
        assert {link.name: link.up for link in lisbon.links} == {"porto": True, "faro": True}


@live
async def test_a_late_loop_shows():
    async with tree(*LINE) as net, told(net.brokers.values()) as where:
        bounds = ("wayfare_loop_lag_seconds_bucket", ("le", "0.25"))
        await asyncio.sleep(http.LAG_EVERY_S + 0.1)
        quick = await scrape(where)
        time.sleep(http.LAG_EVERY_S + 0.3)
        await asyncio.sleep(0.01)
        late = await scrape(where)
        count = ("wayfare_loop_lag_seconds_count",)
        assert late[count] - late[bounds] > quick[count] - quick[bounds]


def test_a_histogram_counts_up_to_its_bounds():
    one = Histogram([10, 20])
    for value in (1, 10, 11, 20, 21, 1_000):
        one.add(value)
    assert (one.counts, one.sum, len(one)) == ([2, 2, 2], 1_063, 6)
    spread = Spread.of(one)
    assert (spread.bounds_s, spread.counts) == ([1e-8, 2e-8], [2, 4, 6])


def test_names_of_metrics_are_as_prometheus_wants_them():
    for row in (*metrics.METRICS, metrics.LAG):
        assert re.fullmatch(r"wayfare_[a-z_]+", row.name)
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert not {*row.labels.split()} & {"client", "client_id", "le", "broker"}
    names = [row.name for row in metrics.METRICS]
    assert len({*names}) == len(names)


def test_the_manual_has_every_metric():
    page = Path(__file__).resolve().parent.parent / "docs" / "operations.md"
    assert metrics.reference() in page.read_text("utf-8")


@live
async def test_who_listens_ahead_is_told():
    places = of_edges(pair.split("-") for pair in LINE)
    ahead = Ahead(places, lambda here: [*places.next_brokers(here), "evora"])
    async with (
        tree(*LINE, heartbeat_s=60, ahead=ahead) as net,
        told(net.brokers.values()) as where,
        wayfare.connect(net.url("faro"), client_id="city") as city,
        wayfare.connect(net.url("porto"), client_id="car") as car,
    ):
        await city.advertise("exists location")
        async with car.subscribe("location in myloc"):
            await until(lambda: net.brokers["lisbon"].core.replicator.virtual)
            await settled(net)
            await city.publish({"location": "lisbon"}, confirm=True)
            await until(lambda: net.brokers["lisbon"].core.replicator.ear.store.kept)
            now = await scrape(where)
            looks = [Look(status_of(one), None) for one in net.brokers.values()]
            found = await Doctor().examine([], [f"http://{where[0]}:{where[1]}"])
    assert now[of("porto", "virtual_clients", state="here")] == 1
    assert now[of("lisbon", "virtual_clients", state="elsewhere")] == 1
    assert now[of("lisbon", "virtual_clients", state="here")] == 0
    assert now[of("lisbon", "ahead_notifications")] == 1
    sent = now[of("porto", "peer_messages_total", what="sent")]
    assert sent == now[of("lisbon", "peer_messages_total", what="received")] >= 1
    dropped = now[of("porto", "peer_messages_total", what="dropped")]
    assert dropped >= 1
    console = Console(width=120)
    with console.capture() as drawn:
        console.print(draw(looks, []))
    lines = drawn.get().splitlines()
    assert "porto listens for 1 clients here, 0 elsewhere: 0 notifications kept" in lines
    assert "lisbon listens for 0 clients here, 1 elsewhere: 1 notifications kept" in lines
    why = "nobody knows its address: name it in [peers]"
    assert f"porto cannot tell evora what to listen to: {why}" in lines
    says = f"cannot tell evora what to listen to, {dropped:.0f} messages are lost: {why}"
    assert ("warn", "porto", says) in [(one.level, one.about, one.says) for one in found]
