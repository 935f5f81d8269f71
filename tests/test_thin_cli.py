"""`wayfare thin`, the device of the docs, and who may come in: real processes, TLS and accounts."""

import asyncio
import json
import logging
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import trustme

from live import HERE
from test_live_cli import EXAMPLES, broker, program, wayfare
from wayfare import cli
from wayfare.net import accounts
from wayfare.net.accounts import Accounts
from wayfare.net.audit import Audit
from wayfare.net.broker import BrokerHost
from wayfare.net.security import Tls, server_context
from wayfare.net.thin import Thin


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@contextmanager
def thin(address, port=0, *options):
    with program("thin", address, "--listen", str(port), "--json", *options) as one:
        facts = json.loads(one.line())
        yield one, facts["port"]


@contextmanager
def device(port, wanted):
    command = [
        sys.executable,
        str(EXAMPLES / "device.py"),
        "127.0.0.1",
        str(port),
        "meter7",
        wanted,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as one:
        try:
            yield one.stdout
        finally:
            one.kill()


def publish(address, free):
    assert wayfare("pub", address, "service=parking", f"free={free}")[0] == 0


def test_the_device_of_the_docs_gets_everything_once_also_when_its_proxy_is_gone():
    port = free_port()
    with broker("lisbon") as (_, address), device(port, "service = 'parking'") as lines:
        with thin(address, port) as (proxy, _):
            while wayfare("pub", address, "service=parking", "free=0", "--quench")[0]:
                time.sleep(0.1)
            publish(address, 1)
            assert [lines.readline() for _ in range(2)] == [
                "{'service': 'parking', 'free': 0}\n",
                "{'service': 'parking', 'free': 1}\n",
            ]
            assert proxy.stop() == (0, "", "")
        publish(address, 2)
        with thin(address, port):
            publish(address, 3)
            assert [lines.readline() for _ in range(2)] == [
                "{'service': 'parking', 'free': 2}\n",
                "{'service': 'parking', 'free': 3}\n",
            ]


def test_it_says_where_it_listens():
    with broker("lisbon") as (_, address), program("thin", address, "--listen", "0") as one:
        said = one.line()
        assert said.startswith(f"devices of {address} connect to 127.0.0.1:")
        assert one.stop()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["thin", "a:b:c"], "'a:b:c' is no address"),
        (["thin", "a", "--secret-file", "/no/such"], "cannot read the secret in /no/such"),
        (["thin", "a", "--listen", "0", "--tls", "/no/c", "/no/k"], "cannot read /no/k"),
        (["thin", "a", "--listen", "256.0.0.1:0"], "cannot listen at 256.0.0.1:0"),
    ],
)
def test_bad_input_gets_one_clear_sentence(arguments, says, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("wayfare: ") and says in captured.err


def test_a_short_secret_is_refused(tmp_path, capsys):
    (tmp_path / "secret").write_text("short\n")
    assert cli.main(["thin", "a", "--secret-file", str(tmp_path / "secret")]) == 2
    assert "a shared secret has at least 16 characters" in capsys.readouterr().err


# Who may come in


FAILED = "car-17 cannot log in: no such account, or not its password"


async def hello(port, tls=None, **facts):
    """Say hello; the answer, and the connection."""
    reader, writer = await asyncio.open_connection("localhost", port, ssl=tls)
    writer.write(json.dumps({"hello": "car-17", **facts}).encode() + b"\n")
    answer = json.loads(await reader.readline())
    return answer, writer


def with_accounts(tmp_path, work, tls=None):
    async def whole():
        file = tmp_path / "accounts.toml"
        accounts.add(file, "car-17", "sesame")
        host = BrokerHost("porto", {}, accounts=Accounts(file))
        audit = Audit("thin", "thin", tmp_path / "audit")
        proxy = Thin(str(await host.start(HERE)), timeout=10.0, audit=audit)
        port = await proxy.start("localhost", 0, tls)
        try:
            await work(proxy, port)
        finally:
            await proxy.stop()
            await host.stop()

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_a_device_logs_in_at_the_broker_with_its_own_password(tmp_path):
    async def work(proxy, port):
        for wrong in ({}, {"password": "wrong"}, {"account": "eve", "password": "sesame"}):
            answer, writer = await hello(port, **wrong)
            assert "car-17 has not logged in" in answer["error"] or answer["error"].endswith(
                FAILED[7:]
            )
            writer.close()
            assert proxy._seats == {}
        answer, writer = await hello(port, password="sesame")
        assert answer["welcome"] == "car-17"
        for wrong in ({}, {"password": "wrong"}):  # the counterpart is there, but not for everybody
            answer, other = await hello(port, **wrong)
            assert answer["error"] == FAILED
            other.close()
        assert proxy._seats["car-17"].device is not None  # and the device did not notice
        answer, other = await hello(port, password="sesame")
        assert answer["welcome"] == "car-17"
        for one in (writer, other):
            one.close()

    with_accounts(tmp_path, work)
    lines = [json.loads(one) for one in (tmp_path / "audit").read_text().splitlines()]
    reasons = [one["reason"] for one in lines if one["event"] == "login_failed" if "reason" in one]
    assert len(reasons) == 2  # of the account car-17, and of eve; the rest is counted
    assert all("cannot log in: no such account, or not its password" in one for one in reasons)


def test_guessing_the_password_of_a_device_that_is_here_is_slow_and_logged(tmp_path, caplog):
    caplog.set_level(logging.WARNING)

    async def work(proxy, port):
        answer, device = await hello(port, password="sesame")
        assert answer["welcome"] == "car-17"

        async def guess(number):
            answer, writer = await hello(port, password=f"guess{number}")
            writer.close()
            return answer["error"].split(":")[0]

        got = await asyncio.gather(*(guess(i) for i in range(100)))
        assert got.count("car-17 cannot log in") == 10
        assert got.count("too many failed logins before this one") == 90
        assert proxy.limits.results == {"ok": 1, "failed": 10, "throttled": 90}
        device.close()

    with_accounts(tmp_path, work)
    assert caplog.text.count("car-17 could not log in from 127.0.0.1") == 10
    lines = [json.loads(one) for one in (tmp_path / "audit").read_text().splitlines()]
    events = {one["event"]: one.get("count", 1) for one in lines}
    assert events == {"login_ok": 1, "login_failed": 9, "login_throttled": 89, "stopped": 1}
    assert "guess" not in (tmp_path / "audit").read_text()


def test_devices_that_log_in_at_once_are_not_refused(tmp_path):
    async def work(proxy, port):
        answers = await asyncio.gather(*(hello(port, password="sesame") for _ in range(12)))
        for answer, writer in answers:
            assert answer["welcome"] == "car-17"
            writer.close()

    with_accounts(tmp_path, work)


def test_a_password_goes_by_tls_or_stays_on_this_machine(tmp_path, monkeypatch):
    authority = trustme.CA()
    pair = authority.issue_cert("localhost")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    pair.private_key_pem.write_to_path(key)
    for one in pair.cert_chain_pems:
        one.write_to_path(cert, append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    # As if devices came from elsewhere.
    monkeypatch.setattr("wayfare.net.thin.is_loopback", lambda _: False)

    async def in_clear(proxy, port):
        answer, writer = await hello(port, password="sesame")
        assert "a password would cross the network in clear" in answer["error"]
        writer.close()

    async def by_tls(proxy, port):
        answer, writer = await hello(port, context, password="sesame")
        assert answer["welcome"] == "car-17"
        writer.close()

    with_accounts(tmp_path, in_clear)
    with_accounts(tmp_path, by_tls, server_context(Tls(str(cert), str(key))))
