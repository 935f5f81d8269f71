"""`wayfare sessions`: what an operator may do to a running broker, over its admin socket."""

import asyncio
import gc
import json
import logging
import os
import stat

import pytest

import wayfare
from live import HERE, Tree, tree, until
from test_account import wayfare as command
from test_client_api import LINE, live
from test_live_cli import Program
from wayfare.errors import Refused, UsageError
from wayfare.net import admin
from wayfare.net.admin import AdminSocket
from wayfare.net.broker import BrokerHost
from wayfare.net.private import bind_private
from wayfare.net.sessions import details_of, kick


@pytest.fixture
def site(tmp_path):
    """A broker with a store, as a process, and its file."""
    file = tmp_path / "site.toml"
    file.write_text(
        """
        name = "porto"
        listen = "127.0.0.1:0"
        [admin]
        socket = "run/a.sock"
        [audit]
        file = "audit.jsonl"
        """,
        "utf-8",
    )
    broker = Program("broker", "--config", str(file), "--json")
    try:
        yield file, json.loads(broker.line())["address"]
    finally:
        broker.stop()


async def kicked(client):
    """What a client is told when it is disconnected for good."""
    async with asyncio.timeout(20):
        while True:
            try:
                await client.subscribe("y > 0")
                await client.flush()
            except Refused as refused:
                return str(refused)
            await asyncio.sleep(0.05)


def test_sessions_are_listed_and_clients_kicked(site):
    file, url = site
    there = ("--config", file)
    sock = file.with_name("run") / "a.sock"
    assert stat.S_IMODE(sock.stat().st_mode) == 0o600
    assert stat.S_IMODE(sock.parent.stat().st_mode) == 0o700

    async def test():
        anna = await wayfare.connect(url, client_id="anna")
        bert = await wayfare.connect(url, client_id="bert")
        await anna.subscribe("x > 0")
        await anna.flush()
        code, out, _ = await asyncio.to_thread(command, "sessions", "list", *there, "--json")
        assert code == 0
        listed = {one["client"]: one for one in map(json.loads, out.splitlines())}
        assert listed.keys() == {"anna", "bert"}
        assert (listed["anna"]["state"], listed["anna"]["subscriptions"]) == ("attached", 1)
        assert listed["anna"]["address"] == "127.0.0.1"
        code, out, _ = await asyncio.to_thread(command, "sessions", "list", "b*", *there)
        assert (code, "bert" in out, "anna" in out) == (0, True, False)
        nobody = ("sessions", "list", "zoe*", *there)
        for form in ((), ("--json",)):
            told = await asyncio.to_thread(command, *nobody, *form)
            assert told == (0, "", "no sessions of clients like zoe*\n")

        code, out, _ = await asyncio.to_thread(command, "sessions", "show", "anna", *there)
        assert code == 0
        assert "state          attached from 127.0.0.1, since 20" in out
        assert "subscribes to  x > 0" in out
        shown = await asyncio.to_thread(command, "sessions", "show", "anna", *there, "--json")
        assert json.loads(shown[1])["wants"] == ["x > 0"]
        gone = await asyncio.to_thread(command, "sessions", "show", "zoe", *there)
        assert gone == (1, "", "zoe has no session here\n")
        code, out, _ = await asyncio.to_thread(command, "sessions", "remove", "bert", *there)
        assert (code, out) == (0, "bert was disconnected at porto, and its session has ended\n")
        told = await asyncio.to_thread(command, "sessions", "remove", "bert", *there)
        assert told == (1, "bert is not at porto\n", "")
        only = ("sessions", "list", "--state", "away", *there)
        assert await asyncio.to_thread(command, *only) == (0, "", "no sessions\n")

        kick = ("sessions", "kick", "anna", *there)
        code, out, _ = await asyncio.to_thread(command, *kick, "--reason", "maintenance")
        assert (code, out) == (0, "anna was disconnected at porto; its session stays\n")
        assert "maintenance" in await kicked(anna)
        code, out, _ = await asyncio.to_thread(command, *kick)
        assert (code, out) == (1, "anna is away from porto: --forget ends its session\n")
        code, out, _ = await asyncio.to_thread(command, *kick, "--forget")
        assert (code, out) == (0, "anna was away at porto, and its session has ended\n")
        code, out, _ = await asyncio.to_thread(command, *kick, "--json")
        assert code == 1
        assert json.loads(out)["away"] == 0
        await bert.close()

    asyncio.run(asyncio.wait_for(test(), 60))
    lines = file.with_name("audit.jsonl").read_text("utf-8").splitlines()
    kicks = [one for one in map(json.loads, lines) if one["event"] == "kicked"]
    ended = "an operator ended its session"
    assert [one["reason"] for one in kicks] == [ended, "maintenance", ended]
    assert kicks[0]["by"] == f"uid {os.getuid()}"


@pytest.mark.parametrize("again", [False, True])
def test_the_log_says_that_an_operator_kicked_a_client(tmp_path, caplog, again):
    async def test():
        broker = BrokerHost("porto", {})
        url = str(await broker.start(HERE))
        anna = await wayfare.connect(url, client_id="anna")
        kick(broker, "anna", "uid 0", again=again)
        await until(lambda: broker.ended["client", "refused", "kicked"] == 1)
        await anna.close()
        await broker.stop()

    asyncio.run(asyncio.wait_for(test(), 60))
    told = [one for one in caplog.records if getattr(one, "event", "") == "refused"]
    assert [one.args["why"] for one in told] == ["kicked"]


def test_a_request_that_is_too_long_is_answered(tmp_path, caplog):
    async def test():
        broker, path = BrokerHost("porto", {}), tmp_path / "a.sock"
        await broker.start(HERE)
        socket = AdminSocket([broker], str(path))
        await socket.start()
        for length in (admin.REQUEST_BYTES + 1, 10 * admin.REQUEST_BYTES):  # in one read, and not
            for end in (b"\n", b""):
                reader, writer = await asyncio.open_unix_connection(str(path))
                writer.write(b"x" * length + end)
                answer = json.loads(await reader.readline())
                assert answer == {"error": "a request has at most 8192 bytes"}
                writer.close()
        gc.collect()
        await asyncio.sleep(0)
        await socket.stop()
        await broker.stop()

    asyncio.run(asyncio.wait_for(test(), 60))
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_a_broker_that_is_not_there_is_reported(tmp_path):
    path = tmp_path / "none.sock"
    code, _, told = command("sessions", "list", "--socket", path)
    assert code == 2
    assert f"cannot reach a broker at {path}: No such file or directory" in told
    assert "Give --config FILE, --socket PATH or --url URL" in command("sessions", "list")[2]
    file = tmp_path / "site.toml"
    file.write_text('name = "porto"', "utf-8")
    assert "has no admin socket" in command("sessions", "list", "--config", file)[2]


async def asked(path, line):
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(line)
    got = [json.loads(one) async for one in reader]
    writer.close()
    return got


def test_a_client_that_was_kicked_with_again_comes_back_and_a_forgotten_one_has_a_gap(tmp_path):
    async def test():
        broker, path = BrokerHost("porto", {}), tmp_path / "a.sock"
        await broker.start(HERE)
        socket = AdminSocket([broker], str(path))
        await socket.start()
        anna = await wayfare.connect(str(broker.address), client_id="anna")
        await anna.subscribe("x > 0")
        await anna.flush()
        (kicked, end) = await asked(
            path, b'{"do":"kick","client":"anna","forget":true,"again":true}\n'
        )
        assert (kicked["disconnected"], kicked["forgotten"], end) == (1, 1, {"end": True})
        await until(lambda: broker.core.border.knows("anna"))
        await until(lambda: broker.gaps == 1)
        assert broker.ended["client", "refused", "kicked"] == 1
        assert await asked(path, b'{"do":"kick","client":"anna","broker":"faro"}\n') == [
            {"error": "there is no broker faro here, only porto"}
        ]
        assert "not a request" in (await asked(path, b"nonsense\n"))[0]["error"]
        assert "there is no dance here" in (await asked(path, b'{"do":"dance"}\n'))[0]["error"]
        await anna.close()
        with pytest.raises(UsageError, match="another process listens there"):
            await AdminSocket([broker], str(path)).start()
        await socket.stop()
        assert not path.exists()
        await broker.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_another_user_is_refused_and_a_stale_socket_replaced(tmp_path, monkeypatch):
    async def test():
        broker, path = BrokerHost("porto", {}), tmp_path / "a.sock"
        bind_private(str(path)).close()  # an earlier process was killed
        socket = AdminSocket([broker], str(path))
        await socket.start()
        assert await asked(path, b'{"do":"sessions"}\n') == [{"end": True}]
        monkeypatch.setattr(admin, "_user_of", lambda _: os.getuid() + 1)
        (refused,) = await asked(path, b'{"do":"sessions"}\n')
        assert "for the user that runs the broker" in refused["error"]
        await socket.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_the_directories_of_the_socket_are_for_their_owner_alone(tmp_path):
    """Once, all but the last one had the mode that the umask allows."""

    async def test():
        socket = AdminSocket([], str(tmp_path / "run" / "deep" / "a.sock"))
        before = os.umask(0)
        try:
            await socket.start()
        finally:
            os.umask(before)
        await socket.stop()

    asyncio.run(test())
    for one in ("run", "run/deep"):
        assert stat.S_IMODE((tmp_path / one).stat().st_mode) == 0o700


def test_where_a_client_went_is_said(tmp_path):
    async def test():
        net = Tree("porto-faro")
        for name in net.names:
            await net.start(name)
        await net.linked()
        path = tmp_path / "a.sock"
        socket = AdminSocket([net.brokers["porto"]], str(path))
        await socket.start()
        anna = await wayfare.connect(net.url("porto"), client_id="anna")
        await anna.subscribe("x > 0")
        await anna.flush()
        await anna.move(net.url("faro"))
        await until(lambda: not net.brokers["porto"].core.border.knows("anna"))
        code, out, _ = await asyncio.to_thread(
            command, "sessions", "kick", "anna", "--socket", path
        )
        assert (code, out) == (1, "anna is not at porto: it moved to faro\n")
        await anna.close()
        await socket.stop()
        for broker in net.brokers.values():
            await broker.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


@live
async def test_a_session_that_came_back_and_was_removed_is_nowhere():
    async with tree(*LINE) as net:
        porto = net.brokers["porto"]
        anna = await wayfare.connect(net.url("porto"), client_id="anna")
        await anna.subscribe("x > 0")
        await anna.move(net.url("lisbon"))
        await anna.flush(5)
        assert [one.moved_to for one in details_of(porto, "anna")] == ["lisbon"]
        await anna.move(net.url("porto"))
        await anna.flush(5)
        kick(porto, "anna", "uid 0", forget=True)
        assert details_of(porto, "anna") == []
        porto.core.border.bury("zoe", 3, porto.now(), moved_to=("porto", 4))  # was asked by itself
        assert details_of(porto, "zoe") == []
        await anna.close()


def test_show_says_where_a_session_went(tmp_path):
    async def test():
        net = Tree("porto-lisbon")
        for name in net.names:
            await net.start(name)
        await net.linked()
        sock = AdminSocket(net.brokers.values(), str(tmp_path / "a.sock"))
        await sock.start()
        anna = await wayfare.connect(net.url("porto"), client_id="anna")
        await anna.move(net.url("lisbon"))
        await until(lambda: not net.brokers["porto"].core.border.of("anna"))
        there = ("--socket", tmp_path / "a.sock", "--broker", "porto")
        code, out, _ = await asyncio.to_thread(command, "sessions", "show", "anna", *there)
        assert (code, out) == (1, "anna is not at porto: it moved to lisbon\n")
        await anna.close()
        await sock.stop()
        for broker in net.brokers.values():
            await broker.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--url", "http://porto.example:9420", "--token-file", "t"), "cross the network in clear"),
        (("--url", "ftp://porto.example"), "write https://host:port"),
        (("--url", "https://porto.example"), "give --token-file FILE, too"),
        (("--url", "https://porto.example", "--socket", "a"), "which is it?"),
    ],
    ids=["in clear", "no address", "no token", "two"],
)
def test_what_the_admin_api_needs(options, says):
    code, _, told = command("sessions", "list", *options)
    assert code == 2
    assert says in told
