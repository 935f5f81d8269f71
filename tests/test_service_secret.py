"""Mobility proxies that share a secret: whom they trust, and that a name is protected at all of them."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest

from live import HERE
from test_live_cli import program, wayfare
from test_service_live import next_of
from test_service_trouble import until
from test_service_wires import Talk
from wayfare.core import messages as core
from wayfare.errors import Refused, UsageError
from wayfare.net import bans
from wayfare.net.bans import Bans
from wayfare.net.broker import BrokerHost
from wayfare.net.security import Proving
from wayfare.service import Gap, admission, claims, connect, wire
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.nodes import free_ports
from wayfare.service.proxy_server import Server
from wayfare.service.relays import TAKEN
from wayfare.service.secret import DIFFERENT, UNPROVEN, Secret
from wayfare.service.wire import NO_ANSWER, Wires

SECRET = "a secret of sufficient length, known to few"
OTHER = "another one, as long, that nobody has told"
NOWHERE = "mqtt://127.0.0.1:9"  # no system is needed
TERMS = m.Terms(standby=False, lasting=True)


def run(story):
    asyncio.run(asyncio.wait_for(story, 60))


@asynccontextmanager
async def proxies(*secrets, access=NOWHERE):
    """Proxies with these secrets, all with the same list of peers: where they are."""
    ports = free_ports(len(secrets))
    at = [f"127.0.0.1:{port}" for port in ports]
    servers = []
    try:
        for port, secret in zip(ports, secrets, strict=True):
            servers.append(Server(access, port=port, peers=at, secret=secret))
            await servers[-1].start()
        yield servers, at
    finally:
        for one in servers:
            await one.stop()


@asynccontextmanager
async def porto():
    broker = BrokerHost("porto", {})
    try:
        yield str(await broker.start(HERE))
    finally:
        await broker.stop()


@asynccontextmanager
async def silent():
    """Something that accepts connections, and says nothing."""

    async def listen(reader, writer):
        try:
            await reader.read()
        finally:
            writer.close()

    listening = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*listening.sockets[0].getsockname())
    finally:
        listening.close()
        await asyncio.sleep(0.05)  # until it has noticed


async def answers(where, *messages):
    """What a proxy answers to each of these."""
    talk = await Talk.to(where)
    try:
        out = []
        for message in messages:
            talk.say(message)
            out.append(await talk.hear())
        return out
    finally:
        talk.close()


async def proven(where):
    """A connection of a proxy that has proved the secret."""
    ours, talk = Secret(SECRET), await Talk.to(where)
    ours.address = "127.0.0.1:1"
    call = ours.call(where)
    talk.say(m.Hello("?"))
    talk.say(call.challenge(await talk.hear()))
    talk.say(call.proof(await talk.hear()))
    call.check(await talk.hear())
    return talk


def register(name, key, stay=1):
    return m.Register(name, key, stay, (), TERMS)


# Whom a proxy trusts


def test_clients_move_between_proxies_that_share_a_secret():
    async def story():
        async with (
            porto() as access,
            proxies(SECRET, SECRET, access=access) as (_, (first, second)),
            connect("bob", first) as bob,
            connect("ann", first) as ann,
        ):
            await ann.subscribe("x > 0")
            await ann.move_out()
            for x in (1, 2):
                await bob.publish("", x=x)
            await ann.move_in(second)
            got = await next_of(ann, 2)
            assert [one.properties["x"] for one in got] == [1, 2]

    run(story())


@pytest.mark.parametrize("theirs", [OTHER, None])
def test_a_proxy_without_the_secret_gets_nothing_and_is_not_asked(theirs, caplog):
    caplog.set_level(logging.WARNING)

    async def story():
        async with (
            porto() as access,
            proxies(SECRET, theirs, access=access) as (_, (first, second)),
            connect("ann", first, patience=0.5) as ann,
        ):
            await ann.subscribe("x > 0")
            await ann.move_out()
            await ann.move_in(second)  # which cannot prove what it does not know
            (gap,) = await next_of(ann, 1)
            assert isinstance(gap, Gap)

    run(story())
    assert (DIFFERENT if theirs else "has not proved that it knows the secret") in caplog.text


def test_who_has_not_proved_the_secret_may_not_ask_like_a_proxy():
    async def story():
        async with proxies(SECRET) as (_, (here,)):
            known = (register("ann", "key"),)
            asked = (
                m.Reach("ann", "", "key"),
                m.Download("ann", "key", 2, 1, "", {}),
                m.Release("ann", "key", "", 2, m.ALL),
                m.Whose("ann"),
            )
            _, *got = await answers(here, *known, *asked)
            assert got == [m.Refused("ann", UNPROVEN)] * 4
            (got,) = await answers(here, m.Proof(bytes(32)))
            assert got == m.Refused("?", DIFFERENT)

    run(story())


def test_without_a_secret_proxies_trust_each_other_as_before():
    async def story():
        async with proxies(None) as (_, (here,)):
            _, got = await answers(
                here, register("ann", "key"), m.Download("ann", "key", 2, 1, "", {})
            )
            assert got.found
            (got,) = await answers(here, m.Whose("ann"))
            assert got.reason == UNPROVEN

    run(story())


def test_a_proof_cannot_be_passed_on_to_another_proxy(caplog):
    """Somebody in between says that it is the proxy, and lets the other ends prove the secret to each other."""
    caplog.set_level(logging.WARNING)

    async def story():
        async with proxies(SECRET, SECRET) as (_, (_, there)):
            heard = []

            async def between(reader, writer):
                caller, called = Talk(reader, writer), await Talk.to(there)
                try:
                    with suppress(asyncio.IncompleteReadError, ConnectionError):
                        while True:
                            called.say(await caller.hear())
                            answer = await called.hear()
                            heard.append(type(answer))
                            if isinstance(answer, m.Welcome):
                                answer = m.Welcome(middle, answer.access)
                            caller.say(answer)
                finally:
                    for talk in (caller, called):
                        talk.close()

            listening = await asyncio.start_server(between, "127.0.0.1", 0)
            middle = "{}:{}".format(*listening.sockets[0].getsockname())
            wires = Server(NOWHERE, secret=SECRET)
            await wires.start()
            try:
                (got,) = await answers(
                    wires.proxy.address, m.Reach("ann", middle, "key")
                )  # it calls who it is told to
                assert not got.reached
                assert heard == [m.Welcome, m.Challenge, m.Refused]
            finally:
                await wires.stop()
                listening.close()

    run(story())
    assert DIFFERENT in caplog.text


def test_a_proxy_that_is_called_by_another_name_is_told_how_to_be_called(caplog):
    caplog.set_level(logging.WARNING)

    async def story():
        async with proxies(SECRET, SECRET) as (_, (_, there)):
            by_name = there.replace("127.0.0.1", "localhost")
            server = Server(NOWHERE, secret=SECRET, peers=[by_name])
            await server.start()
            try:
                (got,) = await answers(server.proxy.address, m.Reach("ann", by_name, "key"))
                assert not got.reached
            finally:
                await server.stop()

    run(story())
    assert "and its address is" in caplog.text


def test_a_proxy_whose_client_is_banned_keeps_its_connection_for_others(tmp_path):
    path = tmp_path / "bans.jsonl"

    async def story():
        server = Server(NOWHERE, secret=SECRET, bans=Bans(path))
        here = await server.start()
        try:
            for name in ("ann", "bob"):
                await answers(here, register(name, "key"))
            talk = await proven(here)
            bans.add(path, "ann", 600, "", datetime.now(UTC).timestamp())
            server.reload()
            talk.say(m.Download("ann", "key", 2, 1, "", {}))
            assert "banned until" in (await talk.hear()).reason
            talk.say(m.Download("bob", "key", 2, 1, "", {}))
            assert (await talk.hear()).found
            talk.close()
        finally:
            await server.stop()

    run(story())


@asynccontextmanager
async def called(serve):
    """Call a proxy that does what `serve` says: its address, and the events of the caller in order."""
    events, serving, ours = [], [], Secret(SECRET)
    ours.address = "127.0.0.1:1"
    wires = Wires(events.append, is_named=lambda _: True, secret=ours)
    wires.dialled = lambda _, good: events.append(good)

    async def accept(reader, writer):
        serving.append(asyncio.current_task())
        talk = Talk(reader, writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(talk, at)
            await talk.hear()  # until the caller is gone
        talk.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    at = "{}:{}".format(*listening.sockets[0].getsockname())
    wires.dial(at)
    try:
        yield at, events
    finally:
        wires.close()
        listening.close()
        await asyncio.gather(*serving)


@pytest.mark.parametrize("injected", [m.Owned("ann", b"digest", 1), m.Refused("ann", TAKEN)])
@pytest.mark.parametrize("challenged", [False, True])
def test_a_called_proxy_says_nothing_about_clients_before_its_proof(injected, challenged, caplog):
    """The called end sends both frames before the caller can read, so they are read at once."""
    caplog.set_level(logging.WARNING)

    async def serve(talk, at):
        await talk.hear()
        if not challenged:
            talk.say(m.Welcome(at, NOWHERE))
            talk.say(injected)
            return
        talk.say(m.Welcome(at, NOWHERE))
        theirs = Secret(SECRET)
        theirs.address = at
        talk.say(theirs.answer("", await talk.hear()))
        talk.say(injected)

    async def story():
        async with called(serve) as (_, events):
            await until(lambda: len(events) >= 2)
            assert events[0] is False
            assert [type(one) for one in events[1:]] == [e.PeerGone]

    run(story())
    assert "not asked for during the greeting" in caplog.text


def test_what_follows_the_proof_in_the_same_segment_is_received_afterwards():
    async def serve(talk, at):
        theirs = Secret(SECRET)
        theirs.address = at
        await talk.hear()
        talk.say(m.Welcome(at, NOWHERE))
        talk.say(theirs.answer("", await talk.hear()))
        talk.say(theirs.answer("", await talk.hear()))
        talk.say(m.Owned("ann"))

    async def story():
        async with called(serve) as (at, events):
            await until(lambda: len(events) >= 2)
            assert events == [True, e.Received(at, m.Owned("ann"))]

    run(story())


def test_the_proof_of_a_broker_with_the_same_secret_is_none_of_a_proxy():
    """Whoever can make a broker prove the secret to it learns nothing that a proxy accepts."""

    async def story():
        async with proxies(SECRET) as (_, (here,)):
            broker, talk = Proving(SECRET, "127.0.0.1:1", here), await Talk.to(here)
            talk.say(m.Challenge(broker.challenge().nonce, "127.0.0.1:1"))
            broker.challenged(core.Challenge((await talk.hear()).nonce))
            talk.say(m.Proof(broker.proof().digest))
            assert await talk.hear() == m.Refused("?", DIFFERENT)
            talk.close()

    run(story())


def test_a_secret_has_to_be_long():
    with pytest.raises(UsageError, match="at least"):
        Secret("short")


# Names


def test_a_name_is_protected_by_its_key_at_all_proxies():
    async def story():
        async with proxies(SECRET, SECRET, SECRET) as (servers, (first, second, third)):
            (got,) = await answers(first, register("ann", "key"))
            assert isinstance(got, m.Registered)
            for where in (second, third):
                for message in (m.Hello("ann", "guess"), register("ann", "guess")):
                    (got,) = await answers(where, message)
                    assert got == m.Refused("ann", TAKEN)
            assert not servers[1].proxy.clients
            (got,) = await answers(second, register("ann", "key", 2))
            assert isinstance(got, m.Registered)
            (got,) = await answers(third, register("bob", "other"))  # nobody has that name
            assert isinstance(got, m.Registered)

    run(story())


def test_a_name_is_free_again_when_a_client_without_a_lasting_key_has_left(monkeypatch):
    async def story():
        async with proxies(SECRET, SECRET) as (_, (first, second)):
            talk = await Talk.to(first)
            talk.say(m.Register("ann", "random", 1, (), m.Terms(standby=False)))
            assert isinstance(await talk.hear(), m.Registered)
            talk.say(m.Leave("ann", "random", 1))
            await asyncio.sleep(0.1)
            talk.close()
            (got,) = await answers(second, register("ann", "another"))
            assert isinstance(got, m.Registered)

    run(story())


def test_a_client_may_come_although_a_proxy_does_not_answer(monkeypatch, caplog):
    monkeypatch.setattr(claims, "CLAIM_S", 0.3)
    caplog.set_level(logging.WARNING)

    async def story():
        (down,) = free_ports(1)
        async with silent() as frozen:
            server = Server(NOWHERE, peers=[f"127.0.0.1:{down}", frozen], secret=SECRET)
            try:
                first, second = await answers(
                    await server.start(), m.Hello("ann", "key"), register("ann", "key")
                )
                assert isinstance(first, m.Welcome)
                assert isinstance(second, m.Registered)
                monkeypatch.setattr(claims, "CLAIM_S", 60)  # it is not asked again so soon
                (third,) = await answers(server.proxy.address, register("bob", "key"))
                assert isinstance(third, m.Registered)
            finally:
                await server.stop()

    run(story())
    assert "ann may come all the same" in caplog.text


def owned(name, key):
    return m.Owned(name, admission._digest(name, key), 2**62)


@asynccontextmanager
async def lying(secret, *lies):
    """A proxy that proves the secret, if there is one, and then sends these messages once it is asked something.

    Its address, and a list that gets an entry when it is disconnected.
    """
    disconnected, serving = [], []

    async def accept(reader, writer):
        serving.append(asyncio.current_task())
        talk, theirs = Talk(reader, writer), Secret(secret)
        theirs.address = at
        await talk.hear()
        talk.say(m.Welcome(at, NOWHERE))
        for _ in range(2 if secret else 0):
            talk.say(theirs.answer("", await talk.hear()))
        await talk.hear()
        for lie in lies:
            talk.say(lie)
        with suppress(ConnectionError):
            await reader.read()
        disconnected.append(True)
        talk.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    at = "{}:{}".format(*listening.sockets[0].getsockname())
    try:
        yield at, disconnected
    finally:
        listening.close()
        await asyncio.gather(*serving, return_exceptions=True)


def test_without_a_secret_no_proxy_says_whose_a_name_is(caplog):
    """A client makes the proxy call another one, which claims a name for a key of its own."""
    caplog.set_level(logging.WARNING)

    async def story():
        async with lying(None, owned("ann", "evil")) as (at, ended):
            server = Server(NOWHERE)
            try:
                here = await server.start()
                talk = await Talk.to(here)
                talk.say(m.Reach("eve", at, "key"))
                assert not (await talk.hear()).reached
                talk.close()
                await until(lambda: ended)
                (got,) = await answers(here, register("ann", "key"))
                assert isinstance(got, m.Registered)
            finally:
                await server.stop()

    run(story())
    assert "was not asked" in caplog.text


@pytest.mark.parametrize("lie", [owned("ann", "evil"), owned("bob", "evil")])
def test_a_proxy_with_the_secret_answers_what_it_was_asked_once(lie):
    async def story():
        async with lying(SECRET, m.Owned("bob"), lie) as (at, ended):
            server = Server(NOWHERE, peers=[at], secret=SECRET)
            try:
                here = await server.start()
                (got,) = await answers(here, m.Hello("bob", "key"))
                assert isinstance(got, m.Welcome)
                await until(lambda: ended)
                assert not server.admission.knows(lie.client, 0)
            finally:
                await server.stop()

    run(story())


def test_a_client_that_says_whose_a_name_is_is_disconnected():
    async def story():
        async with proxies(SECRET) as (_, (here,)):
            with pytest.raises(asyncio.IncompleteReadError):
                await answers(here, owned("ann", "evil"))

    run(story())


def test_a_late_answer_counts_and_keeps_the_connection():
    """The first proxy that knows the owner is enough; the answer of the other one is no offence."""

    async def story():
        async with proxies(SECRET, SECRET, SECRET) as (servers, (first, second, third)):
            for where in (first, second):
                await answers(where, register("ann", "key"))
            for _ in range(3):
                (got,) = await answers(third, register("ann", "guess"))
                assert got == m.Refused("ann", TAKEN)
            await asyncio.sleep(0.1)
            assert {first, second} <= servers[2]._wires._wires.keys()

    run(story())


def test_names_that_others_own_do_not_displace_those_of_this_proxy(monkeypatch):
    monkeypatch.setattr(admission, "OWNERS_MAX", 2)

    async def story():
        async with proxies(SECRET, SECRET) as (_, (first, second)):
            await answers(first, register("ann", "key"))
            talk = await Talk.to(first)
            talk.say(m.Leave("ann", "key", 1))
            for name in ("bob", "carl", "dora"):
                await answers(second, register(name, "key"))
                talk.say(m.Hello(name, "guess"))
                assert await talk.hear() == m.Refused(name, TAKEN)
            talk.say(register("ann", "guess", 2))
            assert await talk.hear() == m.Refused("ann", TAKEN)
            talk.close()

    run(story())


def test_clients_that_leave_while_their_claim_waits_use_up_no_calls(monkeypatch):
    monkeypatch.setattr(admission, "DIALS_MAX", 1)
    monkeypatch.setattr(claims, "CLAIM_S", 60)
    monkeypatch.setattr(wire, "UNNAMED_S", 0.1)

    async def story():
        async with silent() as frozen:
            server = Server(NOWHERE, peers=[frozen], secret=SECRET)
            try:
                here = await server.start()
                gone = await Talk.to(here)
                gone.say(m.Download("ann", "key", 2, 1, "127.0.0.1:1", {}))
                await until(lambda: server._gate.claims.is_asking(frozen))
                gone.close()
                (got,) = await answers(here, m.Reach("bob", "127.0.0.1:2", "key"))
                assert NO_ANSWER in got.reason
            finally:
                await server.stop()

    run(story())


def test_questions_to_a_connected_proxy_use_up_no_calls(monkeypatch):
    monkeypatch.setattr(admission, "DIALS_MAX", 1)
    monkeypatch.setattr(wire, "UNNAMED_S", 0.1)

    async def story():
        async with lying(None) as (at, _):  # it answers nothing
            server = Server(NOWHERE)
            try:
                talk = await Talk.to(await server.start())
                for name in ("ann", "bob"):
                    talk.say(m.Reach(name, at, "key"))
                    await until(lambda: server._wires.is_connected(at))
                talk.say(m.Reach("carl", "127.0.0.1:2", "key"))
                assert NO_ANSWER in (await talk.hear()).reason
                talk.close()
            finally:
                await server.stop()

    run(story())


def test_too_many_new_names_at_once_have_to_try_again(monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS_MAX", 2)
    monkeypatch.setattr(claims, "HELD_MAX", 1)

    async def story():
        async with silent() as frozen:
            server = Server(NOWHERE, peers=[frozen], secret=SECRET)
            try:
                talk = await Talk.to(await server.start())
                for name in ("ann", "bob", "carl", "ann"):
                    talk.say(register(name, "key"))
                for name in ("carl", "ann"):
                    assert await talk.hear() == m.Refused(name, claims.TOO_MANY)
                talk.close()
            finally:
                await server.stop()

    run(story())


def test_one_address_does_not_use_up_the_claims_of_others(monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS_OF_ADDRESS_MAX", 2)

    async def story():
        async with silent() as frozen:
            server = Server(NOWHERE, host="0.0.0.0", peers=[frozen], secret=SECRET)
            try:
                port = (await server.start()).rpartition(":")[2]
                eve = await Talk.to(f"127.0.0.1:{port}")
                for name in ("ann", "bob", "carl"):
                    eve.say(register(name, "key"))
                assert await eve.hear() == m.Refused("carl", claims.TOO_MANY)
                dora = await Talk.to(f"127.0.0.1:{port}", ("127.0.0.2", 0))
                dora.say(register("dora", "key"))
                assert isinstance(await dora.hear(), m.Registered)
                eve.close()
                dora.close()
            finally:
                await server.stop()

    run(story())


def test_a_name_is_asked_about_again_when_a_proxy_that_was_missed_is_back(monkeypatch):
    """Only the proxy that is down knows the name. It is back before a complete answer would have expired."""
    monkeypatch.setattr(claims, "UNREACHABLE_S", 0.3)

    async def story():
        ports = free_ports(2)
        at = [f"127.0.0.1:{port}" for port in ports]
        here, there = (Server(NOWHERE, port=port, peers=at, secret=SECRET) for port in ports)
        await here.start()
        try:
            (got,) = await answers(at[0], m.Hello("ann", "guess"))
            assert isinstance(got, m.Welcome)
            await there.start()
            await answers(at[1], register("ann", "key"))
            await asyncio.sleep(0.5)
            (got,) = await answers(at[0], register("ann", "guess"))
            assert got == m.Refused("ann", TAKEN)
        finally:
            await here.stop()
            await there.stop()

    run(story())


# As processes


def test_processes_read_the_secret_from_a_file(tmp_path):
    secret, bad = tmp_path / "secret", tmp_path / "bad"
    secret.write_text(f"{SECRET}\n")
    bad.write_text("short\n")
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    words = ("service", "proxy", "--access", NOWHERE, "--json", "--secret-file")
    with (
        program(*words, str(secret), "--listen", first, "--peers", second) as one,
        program(*words, str(secret), "--listen", second, "--peers", first) as other,
    ):
        assert json.loads(one.line())["proxy"] == first
        assert json.loads(other.line())["proxy"] == second

        async def story():
            (got,) = await answers(first, register("ann", "key"))
            assert isinstance(got, m.Registered)
            with pytest.raises(Refused):
                async with connect("ann", second, key="guess"):
                    pass

        run(story())
    code, _, told = wayfare(*words, str(bad))
    assert code == 2
    assert "a shared secret has at least" in told
