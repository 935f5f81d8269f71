"""What brokers keep on disk: they go on after a crash, and refuse what they cannot use."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

import wayfare
from live import HERE, until
from test_net import numbers
from wayfare.core.codec import FrameDecoder, encode
from wayfare.core.filters import Filter
from wayfare.core.messages import (
    PROTOCOL_VERSION,
    Ack,
    Attach,
    Hello,
    Publish,
    Published,
    Refused,
    Welcome,
)
from wayfare.errors import StoreError, UsageError
from wayfare.net import database
from wayfare.net.broker import BrokerHost
from wayfare.net.store import FILE, Out, SavedLink, Snapshot, Store, Ticked


class Site:
    """Two brokers, porto calls lisbon; each may crash and come back."""

    def __init__(self, path, **options):
        self.path = path
        self.options = options
        self.brokers = {}
        self.addresses = {"lisbon": HERE, "porto": HERE}

    async def __aenter__(self):
        for name in ("lisbon", "porto"):
            await self.start(name)
        return self

    async def __aexit__(self, *_):
        for broker in self.brokers.values():
            await broker.stop()

    async def start(self, name):
        near = {"lisbon": {"porto": None}, "porto": {"lisbon": self.addresses["lisbon"]}}[name]
        store = Store(self.path / name, "os", name)
        broker = self.brokers[name] = BrokerHost(name, near, store=store, **self.options)
        self.addresses[name] = await broker.start(self.addresses[name])

    async def crash(self, name):
        """As kill -9: nothing is said or written any more."""
        broker = self.brokers.pop(name)
        broker.stopping = True
        broker._server.close()
        for task in broker._tasks:
            task.cancel()
        broker._alarm.clear()
        broker._store.close()
        broker.failure = StoreError("dead")  # it does nothing any more
        links = [link.connection for link in broker.links.values() if link.connection]
        for connection in [*broker.connections.values(), *broker._strangers, *links]:
            connection.abort("killed")
        await asyncio.sleep(0.02)

    def url(self, name):
        return str(self.addresses[name])

    async def linked(self):
        await until(
            lambda: all(
                link.connection for one in self.brokers.values() for link in one.links.values()
            )
        )


@pytest.fixture
def path(tmp_path):
    return tmp_path


def with_path(test):
    def run(tmp_path):
        asyncio.run(asyncio.wait_for(test(tmp_path), 60))

    run.__name__ = test.__name__
    return run


@with_path
async def test_a_broker_goes_on_after_a_crash(tmp_path):
    async with (
        Site(tmp_path) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            for x in range(1, 201):
                await tom.publish({"x": x})
                if x % 50 == 0:
                    name = ("porto", "lisbon")[x // 50 % 2]
                    await net.crash(name)
                    await net.start(name)
                    await asyncio.sleep(0.05)
            assert await numbers(all, 200) == list(range(1, 201))
            assert anna.lost == tom.lost == 0


@with_path
async def test_what_waited_for_a_client_that_is_away_is_still_there(tmp_path):
    async with Site(tmp_path) as net, wayfare.connect(net.url("lisbon"), client_id="tom") as tom:
        await tom.advertise("x > 0")
        async with (
            wayfare.connect(net.url("porto"), client_id="anna") as anna,
            anna.subscribe("x > 0") as all,
        ):
            await net.crash("porto")
            for x in range(1, 51):
                await tom.publish({"x": x})
            await tom.flush(5)
            await net.crash("lisbon")
            await net.start("lisbon")
            await net.start("porto")
            assert await numbers(all, 50) == list(range(1, 51))


@with_path
async def test_a_clean_stop_leaves_a_snapshot_and_no_journal(tmp_path):
    async with Site(tmp_path) as net, wayfare.connect(net.url("porto"), client_id="anna") as anna:
        await anna.advertise("x > 0")
    for name in ("porto", "lisbon"):
        with sqlite3.connect(tmp_path / name / FILE) as db:
            assert db.execute("SELECT count(*) FROM journal").fetchone() == (0,)
            assert db.execute("SELECT count(*) FROM snapshot").fetchone() == (1,)
        db.close()


@with_path
async def test_a_long_journal_becomes_a_snapshot(tmp_path):
    async with (
        Site(tmp_path) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("lisbon"), client_id="tom") as tom,
    ):
        net.brokers["porto"]._store.is_long = lambda: True
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            for x in range(1, 101):
                await tom.publish({"x": x})
            assert await numbers(all, 100) == list(range(1, 101))
            await net.crash("porto")
            await net.start("porto")
            await tom.publish({"x": 101})
            assert await numbers(all, 1) == [101]


# ---- refusals: a sentence, and nothing is touched ------------------------------------------------


def made(path, name="porto"):
    store = Store(path, "os", name)
    store.append(Ticked(1, ""))
    store.commit()
    store.close()
    return path / FILE


def test_what_was_written_is_read(tmp_path):
    store = Store(tmp_path, "disk", "porto")
    assert store.snapshot() is None
    snapshot = Snapshot(5, 7, b"core", {"faro": SavedLink(1, 2, 3, [b"x"])})
    store.replace(snapshot)
    store.append(Out(0, "faro", b"y"))
    store.append(Ticked(6, ""))
    store.commit()
    store.close()
    again = Store(tmp_path, "disk", "porto")
    assert again.snapshot() == snapshot
    assert [*again.records()] == [Out(0, "faro", b"y"), Ticked(6, "")]
    again.close()


def test_a_snapshot_and_the_turn_before_it_are_one_commit(tmp_path):
    """A crash between the two would leave messages that the snapshot's broker has yet to send."""
    store = Store(tmp_path, "os", "porto")
    store.append(Out(0, "lisbon", b"frame"))
    before = store.sequence
    store.replace(Snapshot(1, 7, b"core", {}))
    assert store.sequence == before + 1
    store.commit()
    assert [*store.records()] == []
    store.close()


def test_what_cannot_be_made_is_not_half_written(tmp_path):
    """... and does not stand in the way of what is written next."""

    def statements():
        yield "INSERT INTO things VALUES (1)", ()
        raise OverflowError("too big")

    file = database.Database(tmp_path / "some.db", "os", "porto", ["things (number INTEGER)"])
    with pytest.raises(OverflowError, match="too big"):
        file.write(statements())
    file.write([("INSERT INTO things VALUES (2)", ())])
    assert [*file.read("SELECT number FROM things")] == [(2,)]
    file.close()


def test_a_damaged_file_is_refused_and_stays_as_it_is(tmp_path):
    file = made(tmp_path)
    data = bytearray(file.read_bytes())
    data[:100] = bytes(100)
    file.write_bytes(data)
    with pytest.raises(StoreError, match=r"broker.db is damaged .*: restore it from a copy"):
        Store(tmp_path, "os", "porto")
    assert file.read_bytes() == data


def test_a_damaged_row_is_refused(tmp_path):
    file = made(tmp_path)
    db = sqlite3.connect(file)
    db.execute("UPDATE journal SET body = x'00'")
    db.commit()
    db.close()
    store = Store(tmp_path, "os", "porto")
    with pytest.raises(StoreError, match=r"damaged \(journal 1\)"):
        list(store.records())
    store.close()


def test_a_newer_file_is_refused(tmp_path):
    file = made(tmp_path)
    db = sqlite3.connect(file)
    db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="written by a newer release"):
        Store(tmp_path, "os", "porto")


def test_the_file_of_another_broker_is_refused(tmp_path):
    made(tmp_path)
    with pytest.raises(StoreError, match="is the memory of porto, and this is faro"):
        Store(tmp_path, "os", "faro")


def test_a_file_in_use_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.1)
    store = Store(tmp_path, "os", "porto")
    with pytest.raises(StoreError, match="in use by another process"):
        Store(tmp_path, "os", "porto")
    store.close()


@pytest.mark.parametrize("name", ["a#b.db", "a?b.db", "a%41.db", "a b.db", "ä\udcff.db"])
def test_a_file_of_any_name_is_found_again_and_no_other_one_is_made(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    for _ in range(2):
        database.Database(path, "os", "somebody", ["things (x)"]).close()
    made = {one.name for one in tmp_path.iterdir()}
    assert made - {f"{name}-wal", f"{name}-shm"} == {name, f"{name}-mark"}


def test_a_directory_is_no_file_to_keep_anything_in(tmp_path):
    with pytest.raises(StoreError, match="is a directory: name a file in it"):
        database.Database(tmp_path, "os", "somebody", [])
    assert not list(tmp_path.iterdir())


def test_strategies_that_cannot_be_saved_are_refused(tmp_path):
    store = Store(tmp_path, "os", "porto")
    with pytest.raises(UsageError, match="junction keeps what it does in memory only"):
        BrokerHost("porto", {}, relocation="junction", store=store)
    store.close()


@with_path
async def test_other_neighbours_or_strategies_than_before_are_refused(tmp_path):
    async with Site(tmp_path):
        pass
    for near, routing, why in (
        ({"faro": None}, "covering", "its neighbours were lisbon, and are faro now"),
        (
            {"lisbon": None},
            "simple",
            "it ran covering and handoff, and is to run simple and handoff",
        ),
    ):
        host = BrokerHost(
            "porto", near, routing=routing, store=Store(tmp_path / "porto", "os", "porto")
        )
        with pytest.raises(StoreError, match=why):
            await host.start(HERE)
        host._store.close()


@with_path
async def test_a_full_disk_stops_the_broker_and_loses_nothing_that_was_acknowledged(tmp_path):
    async with Site(tmp_path) as net, wayfare.connect(net.url("lisbon"), client_id="tom") as tom:
        await tom.advertise("x > 0")
        async with (
            wayfare.connect(net.url("porto"), client_id="anna") as anna,
            anna.subscribe("x > 0") as all,
        ):
            await tom.publish({"x": 1}, confirm=True)
            db = net.brokers["lisbon"]._store._db
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count = {pages}")
            for x in range(2, 200):
                await tom.publish({"x": x}, payload=bytes(1000))
            await until(net.brokers["lisbon"].failed.is_set)
            assert "no room left" in str(net.brokers["lisbon"].failure)
            await net.crash("lisbon")
            await net.start("lisbon")
            assert await numbers(all, 199) == list(range(1, 200))


@with_path
async def test_nothing_is_acknowledged_before_it_is_safe(tmp_path):
    """Also not to a client that says something wrong behind it, and is closed at once."""
    async with Site(tmp_path) as net:
        reader, writer = await asyncio.open_connection("127.0.0.1", net.addresses["lisbon"].port)
        attach = Attach("tom", 1, 0, (), (Filter.parse("x > 0"),))
        writer.write(encode(Hello(PROTOCOL_VERSION, "tom")) + encode(attach))
        decoder, heard = FrameDecoder(), []
        while not any(isinstance(one, Welcome) for one in heard):
            heard += decoder.feed(await asyncio.wait_for(reader.read(1000), 5))

        def full():
            raise StoreError("no room")

        net.brokers["lisbon"]._store.commit = full
        writer.write(encode(Publish(1, {"x": 1})) + encode(Ack(7)))
        try:
            while data := await asyncio.wait_for(reader.read(1000), 5):
                heard += decoder.feed(data)
        except ConnectionResetError:
            pass
        writer.close()
        assert not any(isinstance(one, Published | Refused) for one in heard)
        assert net.brokers["lisbon"].failure is not None
