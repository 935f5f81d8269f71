"""What a mobility proxy lets peers do: no scanning of ports, no guessing of keys, no names of others."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager

import pytest

from test_service_wires import Talk
from wayfare.errors import UsageError
from wayfare.net.audit import Audit
from wayfare.service import admission, wire
from wayfare.service import messages as m
from wayfare.service.nodes import free_ports
from wayfare.service.proxy_addresses import only
from wayfare.service.proxy_server import Server
from wayfare.service.relays import TAKEN

NOWHERE = "mqtt://127.0.0.1:9"  # no system is needed
TERMS = m.Terms(lasting=True)


@asynccontextmanager
async def server(**options):
    one = Server(NOWHERE, **options)
    address = await one.start()
    try:
        yield one, address
    finally:
        await one.stop()


async def answer(talk, message):
    talk.say(message)
    return await talk.hear()


def test_a_proxy_is_no_port_scanner(monkeypatch):
    """What listens at a port cannot be told from the answer, nor from how long it takes."""
    monkeypatch.setattr(wire, "UNNAMED_S", 0.5)
    called = []

    async def ssh(reader, writer):
        called.append("ssh")
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await reader.read()
        writer.close()

    async def silent(reader, writer):
        called.append("silent")
        await reader.read()
        writer.close()

    async def story():
        (closed,) = free_ports(1)
        loop = asyncio.get_running_loop()
        async with server() as (_, here):
            listening = [await asyncio.start_server(one, "127.0.0.1", 0) for one in (ssh, silent)]
            ports = [one.sockets[0].getsockname()[1] for one in listening] + [closed]
            talk = await Talk.to(here)
            for port in ports:  # without a key, nothing is called, and nothing is said
                talk.say(m.Reach("ann", f"127.0.0.1:{port}"))
            assert isinstance(await answer(talk, m.Hello("ann")), m.Welcome)
            assert called == []
            reasons, times = set(), []
            for port in ports:
                for number, message in enumerate(
                    (
                        m.Reach("ann", f"127.0.0.1:{port}", "key"),
                        m.Download("ann", "key", 1, 1, f"127.0.0.1:{port}", {}),
                    )
                ):
                    began = loop.time()
                    got = await answer(talk, message)
                    times.append(loop.time() - began)
                    assert (got.found, got.reached, got.download) == (False, False, number)
                    reasons.add(got.reason.replace(str(port), "PORT"))
            assert len(reasons) == 1
            assert "SSH" not in str(reasons)
            assert str(int.from_bytes(b"SSH-", "big")) not in str(reasons)
            assert min(times) > 0.45
            assert called == ["ssh", "ssh", "silent", "silent"]
            talk.close()
            for one in listening:
                one.close()

    asyncio.run(story())


def test_a_client_elsewhere_does_not_make_a_proxy_call_its_own_machine(monkeypatch):
    """Once, a key that was made up, for a name that nobody had, was enough to have any local port called."""
    monkeypatch.setattr(wire, "UNNAMED_S", 0.2)
    monkeypatch.setattr(wire.Wires, "address_of", lambda *_: "10.0.0.9")
    called = []

    async def listening(reader, writer):
        called.append("local")
        writer.close()

    async def story():
        local = await asyncio.start_server(listening, "127.0.0.1", 0)
        port = local.sockets[0].getsockname()[1]
        async with (
            server() as (_, here),
            server(secret="a secret of all proxies") as (_, secretive),
        ):
            for at in (here, secretive):
                talk = await Talk.to(at)
                for name in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
                    question = m.Download("made-up", "key", 1, 1, f"{name}:{port}", {})
                    got = await answer(talk, question)
                    assert (got.found, got.reached) == (False, False)
                talk.close()
        assert called == []
        async with server(peers=[f"127.0.0.1:{port}"]) as (_, here):
            talk = await Talk.to(here)
            await answer(talk, m.Download("ann", "key", 1, 1, f"127.0.0.1:{port}", {}))
            talk.close()
        assert called == ["local"], "the operator has named it"
        local.close()

    asyncio.run(story())


PERMITTED = {  # the peers, whether there is a secret, who asks, and for which proxy
    ((), False, "127.0.0.1", "127.0.0.1:1"): True,
    ((), False, "::1", "[::1]:1"): True,
    ((), False, "10.0.0.9", "127.0.0.1:1"): False,
    ((), False, "", "127.0.0.1:1"): False,
    ((), True, "10.0.0.9", "127.0.0.1:1"): False,
    ((), False, "127.0.0.1", "10.0.0.5:1"): False,
    ((), False, "10.0.0.5", "10.0.0.5:1"): False,
    ((), True, "10.0.0.9", "10.0.0.5:1"): True,
    ((), True, "10.0.0.9", "8.8.8.8:1"): False,
    (("10.0.0.5:1",), False, "10.0.0.9", "10.0.0.5:1"): True,
    (("10.0.0.5:1",), True, "10.0.0.9", "10.0.0.5:2"): False,
    (("8.8.8.8:1",), False, "10.0.0.9", "8.8.8.8:1"): True,
}


@pytest.mark.parametrize("case", PERMITTED, ids=str)
def test_a_proxy_calls_who_is_named_or_proves_itself_or_is_on_the_same_machine_as_the_client(case):
    peers, proves, asker, at = case
    permit = only(peers, lambda _: asker, proves=proves)
    if PERMITTED[case]:
        assert f"{':'.join(map(str, asyncio.run(permit(at))))}" == at.replace("[", "").replace(
            "]", ""
        )
    else:
        with pytest.raises(UsageError, match="peers"):
            asyncio.run(permit(at))


def test_one_address_makes_a_proxy_call_few_others_at_a_time(monkeypatch):
    monkeypatch.setattr(wire, "UNNAMED_S", 0.5)
    monkeypatch.setattr(admission, "DIALS_MAX", 2)

    async def story():
        async with server() as (_, here):
            talk = await Talk.to(here)
            for port in free_ports(4):
                talk.say(m.Reach("ann", f"127.0.0.1:{port}", "key"))
            reasons = [(await talk.hear()).reason for _ in range(4)]
            assert sum("too many proxies were to be called" in one for one in reasons) == 2
            talk.close()

    asyncio.run(story())


def test_guessing_the_key_of_a_client_is_slow_logged_and_audited(tmp_path, caplog):
    caplog.set_level(logging.WARNING)

    async def story():
        log = Audit("", "service", tmp_path / "audit")
        async with server(audit=log) as (one, here):
            ann, eve = await Talk.to(here), await Talk.to(here)
            ann.say(m.Register("ann", "secret", 1, (), m.Terms()))
            assert isinstance(await answer(ann, m.Hello("ann", "secret")), m.Welcome)
            got = [(await answer(eve, m.Hello("ann", f"guess{i}"))).reason for i in range(30)]
            assert got[:10] == 10 * [TAKEN]
            assert all("too many wrong keys before this one" in reason for reason in got[10:])
            results = dict(one.admission.keys.results)
            assert (results["failed"], results["throttled"]) == (10, 20)
            # Other names are not concerned where they have been before; ann has been here, too.
            ann.close()
            eve.close()

    asyncio.run(story())
    assert caplog.text.count("127.0.0.1 gave a wrong key for ann") == 10
    text = (tmp_path / "audit").read_text()
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert {"login_failed", "login_throttled"} <= set(events)
    assert "guess" not in text
    assert "secret" not in text


def test_one_connection_brings_a_limited_number_of_clients(monkeypatch):
    monkeypatch.setattr(admission, "ACCESSES_MAX", 3)

    async def story():
        async with server() as (one, here):
            talk = await Talk.to(here)
            for number in range(5):
                talk.say(m.Register(f"client{number}", "key", 1, (), m.Terms()))
            refused = [await talk.hear(), await talk.hear()]
            assert all("at most 3 clients" in got.reason for got in refused)
            assert list(one.proxy.clients) == ["client0", "client1", "client2"]
            talk.say(m.Register("client0", "key", 2, (), m.Terms()))  # no new one
            assert isinstance(await answer(talk, m.Hello("client0", "key")), m.Welcome)
            talk.close()

    asyncio.run(story())


def test_a_name_is_protected_by_its_key_when_the_client_has_moved_on_and_after_a_restart(tmp_path):
    (port,) = free_ports(1)

    async def taken(here, key):
        talk = await Talk.to(here)
        try:
            talk.say(m.Register("ann", key, 3, (), TERMS))
            got = await answer(talk, m.Hello("?"))
            return isinstance(got, m.Refused) and got.reason == TAKEN
        finally:
            talk.close()

    async def story():
        async with server(store=tmp_path / "store", port=port) as (one, here):
            talk = await Talk.to(here)
            talk.say(m.Register("ann", "key", 1, (), TERMS))
            released = await answer(talk, m.Release("ann", "key", "", 2, m.ALL))
            assert isinstance(released, m.Released)
            assert one.proxy.clients == {}
            assert await taken(here, "other")
            talk.close()
        async with server(store=tmp_path / "store", port=port) as (one, here):
            assert one.proxy.clients == {}
            assert await taken(here, "other")
            assert one.proxy.clients == {}
            assert not await taken(here, "key")
            assert list(one.proxy.clients) == ["ann"]

    asyncio.run(story())


def test_a_name_without_a_key_of_its_own_is_free_when_its_client_has_left():
    """Its next process has another key."""

    async def story():
        async with server() as (one, here):
            talk = await Talk.to(here)
            talk.say(m.Register("ann", "key1", 1, (), m.Terms()))
            talk.say(m.Leave("ann", "key1", 1))
            talk.say(m.Register("ann", "key2", 2, (), m.Terms()))
            assert isinstance(await answer(talk, m.Hello("ann", "key2")), m.Welcome)
            assert one.proxy.clients["ann"].key == "key2"
            talk.close()

    asyncio.run(story())


@pytest.mark.parametrize("message", [m.Reach("ann", "x"), m.Terms()])
def test_fields_were_added_at_the_end(message):
    """Peers of both releases understand each other."""
    fields = message.__struct_fields__
    assert fields[-1] in ("key", "lasting")
