"""Bans: who is refused for a time, at brokers, thin proxies and mobility proxies."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

import wayfare
from live import HERE, until
from test_security import file, raw
from test_service_wires import Talk
from wayfare import cli
from wayfare.core import messages as m
from wayfare.errors import Refused, UsageError
from wayfare.net import bans
from wayfare.net.accounts import Accounts
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans, target_of
from wayfare.net.broker import BrokerHost
from wayfare.net.thin import Thin
from wayfare.service import messages as sm
from wayfare.service.proxy_server import Server

__all__ = ["file"]  # a fixture
NOW = 1_763_412_901.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bans.jsonl"


# The file


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("192.0.2.7", "192.0.2.7/32"),
        ("192.0.2.7/24", "192.0.2.0/24"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("2001:db8::1/48", "2001:db8::/48"),
        ("car-17", "name:car-17"),
        ("fleet/car", "name:fleet/car"),
        ("name:192.0.2.7", "name:192.0.2.7"),
        ("name:300.1.1.1", "name:300.1.1.1"),
        ("car:17", "name:car:17"),
    ],
)
def test_a_target_is_a_network_or_a_name(text, target):
    assert target_of(text) == target == target_of(target)


@pytest.mark.parametrize(
    "text", ["", "name:", "192.0.2.7/77", "300.1.1.1", "2001:db8:::1", "a\nb", "x" * 300]
)
def test_what_is_no_target_is_refused(text):
    with pytest.raises(UsageError):
        target_of(text)


def test_a_ban_is_for_a_network_or_a_name_and_for_a_time(path):
    now = NOW
    bans.add(path, "192.0.2.0/24", 60, "", NOW)
    bans.add(path, "2001:db8::/48", None, "", NOW)
    bans.add(path, "car-17", 60, "why", NOW)
    assert path.stat().st_mode & 0o777 == 0o600
    known = Bans(path, lambda: now)
    assert known.of("192.0.2.9") is not None
    assert known.of("::ffff:192.0.2.9") is not None
    assert known.of("2001:db8:0:7::1%eth0") is not None
    assert known.of("192.0.3.9") is known.of("") is known.of("broker.example") is None
    assert known.of("10.0.0.1", "anna", "car-17").reason == "why"
    now += 61
    assert known.of("192.0.2.9", "car-17") is None
    assert known.of("2001:db8::1") is not None


def test_the_longer_ban_counts_where_a_shorter_one_is_over(path):
    bans.add(path, "192.0.2.7", 10, "", NOW)
    bans.add(path, "192.0.2.0/24", 100, "", NOW)
    assert Bans(path, lambda: NOW + 50).of("192.0.2.7").target == "192.0.2.0/24"


def test_a_change_is_read_and_recorded_and_a_wrong_file_changes_nothing(path, tmp_path):
    log = Audit("porto", "broker", tmp_path / "audit")
    known = Bans(path, lambda: NOW)
    assert not known.refresh(log)
    bans.add(path, "car-17", 60, "", NOW)
    assert known.refresh(log)
    assert not known.refresh(log)
    path.write_text("[]\n")
    with pytest.raises(UsageError, match=r"bans.jsonl, line 1: this is no ban"):
        known.refresh(log)
    assert known.of("", "car-17") is not None
    path.unlink()
    assert known.refresh(log)
    assert known.of("", "car-17") is None
    log.close()
    lines = [json.loads(one) for one in (tmp_path / "audit").read_text().splitlines()]
    assert [(one["target"], one["change"]) for one in lines] == [
        ("name:car-17", "added"),
        ("name:car-17", "removed"),
    ]


def test_the_command_adds_lists_and_removes(path, capsys):
    assert cli.main(["ban", "add", str(path), "192.0.2.7", "--for", "1h", "--reason", "x"]) == 0
    assert cli.main(["ban", "add", str(path), "car-17", "--for", "ever"]) == 0
    assert cli.main(["ban", "list", str(path), "--json"]) == 0
    *_, first, second = capsys.readouterr().out.splitlines()
    left = datetime.fromisoformat(json.loads(first)["until"]) - datetime.now(UTC)
    assert 3500 < left.total_seconds() <= 3600
    assert json.loads(second) == {"target": "name:car-17", "until": None, "reason": ""}
    assert cli.main(["ban", "remove", str(path), "car-17"]) == 0
    assert cli.main(["ban", "remove", str(path), "car-17"]) == 2
    assert "car-17 is not banned in" in capsys.readouterr().err
    assert [one.target for one in bans.read(path)] == ["192.0.2.7/32"]
    with pytest.raises(SystemExit):
        cli.main(["ban", "add", str(path), "car-17", "--for", "soon"])
    assert "is no duration" in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_list_without_bans_says_so_beside_the_list(path, capsys, form):
    assert cli.main(["ban", "list", str(path), *form]) == 0
    told = capsys.readouterr()
    assert told.out == ""  # an empty list, also for programs
    assert f"no bans are in force ({path} does not exist" in told.err
    bans.add(path, "car-17", 1, "", NOW)
    assert cli.main(["ban", "list", str(path), *form]) == 0
    assert capsys.readouterr().err == f"no bans are in force (none in {path})\n"


# Brokers and proxies


def test_a_broker_refuses_banned_peers_before_their_password_and_disconnects_them(
    file, path, tmp_path, monkeypatch
):
    checked = []
    verify = Accounts.verify
    monkeypatch.setattr(
        Accounts,
        "verify",
        lambda self, name, word: checked.append(name) or verify(self, name, word),
    )

    async def use(client):
        await client.subscribe("service = 'parking'")
        await client.flush()

    async def story():
        log = Audit("porto", "broker", tmp_path / "audit")
        broker = BrokerHost("porto", {}, accounts=Accounts(file), audit=log, bans=Bans(path))
        url = str(await broker.start(HERE))
        try:
            anna = await wayfare.connect(url, client_id="anna", password="open")
            phone = await wayfare.connect(
                url, client_id="car-17-phone", account="car-17", password="sesame"
            )
            bans.add(path, "car-17", 600, "secret reason", datetime.now(UTC).timestamp())
            async with asyncio.timeout(5):
                await until(lambda: len(broker.connections) == 1)
            with pytest.raises(Refused, match="banned until 20") as refused:
                await use(phone)
            assert "secret reason" not in str(refused.value)
            checked.clear()
            with pytest.raises(Refused, match="banned until"):
                await wayfare.connect(
                    url, client_id="car-17-phone", account="car-17", password="sesame"
                )
            assert checked == []
            await anna.flush()
            bans.add(path, "127.0.0.0/8", None, "", datetime.now(UTC).timestamp())
            async with asyncio.timeout(5):
                await until(lambda: not broker.connections)
            async with raw(broker, hello=False) as peer:
                assert "banned" in (await peer.hear(m.Refused)).reason
            bans.remove(path, "127.0.0.0/8", datetime.now(UTC).timestamp())
            broker.reload()
            async with wayfare.connect(url, client_id="anna", password="open"):
                pass
            await anna.close(0)
            await phone.close(0)
        finally:
            await broker.stop()

    asyncio.run(asyncio.wait_for(story(), 30))
    lines = [json.loads(one) for one in (tmp_path / "audit").read_text().splitlines()]
    assert {"banned", "ban_changed"} <= {one["event"] for one in lines}
    assert {one["target"] for one in lines if one["event"] == "banned"} == {
        "name:car-17",
        "127.0.0.0/8",
    }


def test_a_thin_proxy_refuses_banned_devices_and_dismisses_them(path):
    async def story():
        broker = BrokerHost("porto", {})
        proxy = Thin(str(await broker.start(HERE)), bans=Bans(path))
        port = await proxy.start("127.0.0.1", 0)
        try:

            async def hello():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b'{"hello": "meter7"}\n')
                return json.loads(await reader.readline()), reader, writer

            answer, reader, first = await hello()
            assert answer["welcome"] == "meter7"
            bans.add(path, "meter7", 600, "", datetime.now(UTC).timestamp())
            async with asyncio.timeout(5):
                told = (await reader.read()).decode()
            assert "banned until" in told
            answer, _, second = await hello()
            assert "banned until" in answer["error"]
            bans.add(path, "127.0.0.1", 600, "", datetime.now(UTC).timestamp())
            proxy.reload()
            answer, _, third = await hello()
            assert "banned until" in answer["error"]
            for one in (first, second, third):
                one.close()
        finally:
            await proxy.stop()
            await broker.stop()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_mobility_proxy_refuses_banned_clients_and_addresses(path):
    async def story():
        server = Server("mqtt://127.0.0.1:9", bans=Bans(path))
        here = await server.start()
        try:
            talk = await Talk.to(here)
            talk.say(sm.Hello("ann", "key"))
            assert isinstance(await talk.hear(), sm.Welcome)
            bans.add(path, "ann", 600, "", datetime.now(UTC).timestamp())
            server.reload()
            talk.say(sm.Hello("ann", "key"))
            assert "banned until" in (await talk.hear()).reason
            assert await talk.reader.read() == b""
            other = await Talk.to(here)
            other.say(sm.Hello("bob", "key"))
            assert isinstance(await other.hear(), sm.Welcome)
            bans.add(path, "127.0.0.1", 600, "", datetime.now(UTC).timestamp())
            async with asyncio.timeout(5):
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await other.hear()
            talk.close()
            other.close()
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(story(), 30))
