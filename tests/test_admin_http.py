"""The admin API: sessions over HTTP, for operators with a token."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

import wayfare
from live import HERE, until
from test_account import wayfare as command
from test_client_api import live
from test_live_cli import Program
from test_security import certificates, tls_of  # noqa: F401
from wayfare.core.messages import ClientId
from wayfare.errors import ConfigError, UsageError
from wayfare.net import admin_http, config
from wayfare.net.addresses import Address
from wayfare.net.admin_http import REQUEST_BYTES, AdminApi, Tokens
from wayfare.net.audit import Audit
from wayfare.net.broker import BrokerHost

TOKEN = "0123456789abcdef0123456789abcdef"
HERE_TOO = Address("127.0.0.1", 0)


@pytest.fixture
def tokens(tmp_path):
    return private(tmp_path / "tokens", f"# of the night shift\nolga {TOKEN}\n")


def private(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


@asynccontextmanager
async def serving(tokens, *names, audit=None):
    """Brokers and their admin API."""
    brokers = [BrokerHost(name, {}, audit=audit) for name in names or ("porto",)]
    for one in brokers:
        await one.start(HERE)
    api = AdminApi(brokers, str(tokens), None)
    where = await api.start(HERE_TOO)
    brokers[0].reloads.append(api.reload)
    try:
        yield brokers, where
    finally:
        await api.stop()
        for one in brokers:
            await one.stop()


async def ask(where, text):
    """Status, headers and body of the answer."""
    reader, writer = await asyncio.open_connection(where.host, where.port)
    try:
        writer.write(text if isinstance(text, bytes) else text.encode())
        async with asyncio.timeout(10):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), json.loads(body)


async def call(where, target, method="GET", token=TOKEN, more=""):
    said = f"Authorization: Bearer {token}\r\n" if token else ""
    status, _, body = await ask(where, f"{method} {target} HTTP/1.1\r\n{said}{more}\r\n")
    return status, body


@live
async def test_sessions_are_listed_by_pages(tokens):
    async with serving(tokens, "porto", "faro") as ((porto, faro), where):
        names = [f"car-{number}" for number in range(5)]
        for broker in (porto, faro):
            for name in names:
                attach(broker, f"{name}-{broker.name}")
        attach(porto, "bus")
        status, body = await call(where, "/v1/sessions")
        assert (status, len(body["sessions"]), body["next"]) == (200, 11, "")
        seen, after = [], ""
        for _ in range(4):
            query = f"client=car-*&state=away&limit=3&after={after}"
            status, body = await call(where, f"/v1/sessions?{query}")
            assert status == 200
            seen += [(one["broker"], one["client"]) for one in body["sessions"]]
            after = body["next"]
        assert after == ""
        assert seen == [(one, f"{name}-{one}") for one in ("porto", "faro") for name in names]
        status, body = await call(where, "/v1/sessions?broker=faro&state=attached")
        assert (status, body) == (200, {"sessions": [], "next": ""})


def attach(broker, client, **more):
    """A client that has been here, as the core knows it."""
    from wayfare.core.effects import LinkDown, Received
    from wayfare.core.messages import Attach

    broker.apply(Received(f"{client}#", Attach(client, 1, 0, **more)))
    broker.apply(LinkDown(f"{client}#"))


@live
async def test_a_session_is_shown_with_what_waits_and_ended(tokens, tmp_path):
    file = tmp_path / "audit.jsonl"
    audit = Audit("porto", "broker", str(file))
    async with serving(tokens, audit=audit) as ((porto,), where):
        anna = await wayfare.connect(str(porto.address), client_id="anna", expires=60)
        tom = await wayfare.connect(str(porto.address), client_id="tom")
        await anna.subscribe("x > 0")
        await tom.advertise("x > 0")
        status, body = await call(where, "/v1/sessions/anna")
        (session,) = body["sessions"]
        assert (status, session["state"], session["wants"]) == (200, "attached", ["x > 0"])
        assert session["expires"] == ""
        assert session["since"].startswith("20")
        await anna.detach()
        await until(lambda: porto.core.border.of(ClientId("anna"))[0].link is None)
        await tom.publish({"x": 1}, b"12345", confirm=True)
        status, body = await call(where, "/v1/sessions/anna")
        (session,) = body["sessions"]
        assert (session["state"], session["backlog"]) == ("away", 1)
        assert session["backlog_bytes"] > 5
        assert session["expiry_s"] == 60
        assert 0 < session["expires_s"] <= 60
        status, body = await call(where, "/v1/sessions/anna?reason=sold", "DELETE")
        assert (status, body["removed"][0]["forgotten"]) == (200, 1)
        status, body = await call(where, "/v1/sessions/anna", "DELETE")
        assert (status, body["error"]) == (404, "anna has no session here")
        status, body = await call(where, "/v1/sessions/tom", "DELETE")
        assert (status, body["removed"][0]["disconnected"]) == (200, 1)
        await anna.close()
        await tom.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kicked = [
        (one["client"], one["by"], one["reason"]) for one in lines if one["event"] == "kicked"
    ]
    assert kicked == [
        ("anna", "token olga", "sold"),
        ("tom", "token olga", "an operator ended its session"),
    ]


@live
async def test_a_client_is_kicked(tokens):
    async with serving(tokens, "porto", "faro") as ((porto, _), where):
        at = "/v1/sessions/anna/kick"
        assert (await call(where, at, "POST"))[0] == 404
        anna = await wayfare.connect(str(porto.address), client_id="anna")
        status, body = await call(where, f"{at}?again=true&reason=maintenance", "POST")
        (kicked,) = body["kicked"]
        assert (status, kicked["broker"], kicked["disconnected"]) == (200, "porto", 1)
        await until(lambda: porto.core.border.of(ClientId("anna"))[0].link is not None)
        assert (await call(where, at, "POST"))[0] == 200
        with pytest.raises(wayfare.Refused, match="an operator disconnected it"):
            await anna.attach()
        status, body = await call(where, at, "POST")
        (kicked,) = body["kicked"]
        assert (status, kicked["disconnected"], kicked["away"]) == (200, 0, 1)
        status, body = await call(where, f"{at}?forget=true", "POST")
        assert (status, body["kicked"][0]["forgotten"]) == (200, 1)
        assert (await call(where, at, "POST"))[0] == 404
        status, body = await call(where, f"{at}?again=perhaps", "POST")
        assert (status, body["error"]) == (400, "again is true or false, not 'perhaps'")
        assert (await call(where, "/v1/sessions/anna", "POST"))[0] == 405
        await anna.close()


@live
async def test_names_of_clients_are_any_text(tokens):
    async with serving(tokens) as ((porto,), where):
        attach(porto, "a/kick")
        status, body = await call(where, "/v1/sessions/a%2Fkick/kick", "POST")
        assert (status, body["client"]) == (200, "a/kick")
        attach(porto, "a/b ?&ü")
        status, body = await call(where, "/v1/sessions/a%2Fb%20%3F%26%C3%BC")
        assert (status, body["sessions"][0]["client"]) == (200, "a/b ?&ü")


@live
async def test_without_a_token_nothing_is_told_and_failures_count(tokens, tmp_path):
    file = tmp_path / "audit.jsonl"
    async with serving(tokens, audit=Audit("porto", "broker", str(file))) as ((porto,), where):
        for token in ("", "x" * 32, TOKEN[:-1], TOKEN + "0"):
            status, body = await call(where, "/v1/sessions", token=token)
            assert (status, body["status"]) == (401, 401)
        for scheme in ("Basic", "bearer2"):
            text = f"GET /v1/sessions HTTP/1.1\r\nAuthorization: {scheme} {TOKEN}\r\n\r\n"
            status, head, _ = await ask(where, text)
            assert (status, "WWW-Authenticate: Bearer" in head) == (401, True)
        assert porto.logins["failed"] == 5  # to come without one is no guess
        for _ in range(5):
            await call(where, "/v1/sessions", token="wrong")
        status, head, body = await ask(where, b"GET / HTTP/1.1\r\nAuthorization: Bearer y\r\n\r\n")
        assert (status, "Retry-After: " in head) == (429, True)
        assert (await call(where, "/v1/sessions"))[0] == 429
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert "login_failed" in events
    assert "login_throttled" in events
    assert TOKEN not in file.read_text()


@live
async def test_a_token_that_is_removed_counts_no_more(tokens):
    async with serving(tokens) as (_, where):
        assert (await call(where, "/v1/sessions"))[0] == 200
        private(tokens, "olga another-token-of-hers-instead\n")
        assert (await call(where, "/v1/sessions"))[0] == 401
        assert (await call(where, "/v1/sessions", token="another-token-of-hers-instead"))[0] == 200
        tokens.unlink()
        assert (await call(where, "/v1/sessions", token="another-token-of-hers-instead"))[0] == 401


@live
async def test_a_changed_file_of_tokens_is_in_the_audit_log(tokens, tmp_path):
    file = tmp_path / "audit.jsonl"
    async with serving(tokens, audit=Audit("porto", "broker", str(file))) as ((porto,), where):
        await call(where, "/v1/sessions")
        private(tokens, f"{tokens.read_text()}mallory another-token-that-is-added\n")
        await call(where, "/v1/sessions", token="another-token-that-is-added")
        private(tmp_path / "next", f"olga {TOKEN}\n").replace(tokens)
        porto.reload()
        tokens.unlink()
        for _ in range(2):
            await call(where, "/v1/sessions", token="")
        private(tokens, f"olga {TOKEN}\n")
        await call(where, "/v1/sessions")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    reloaded = [
        one for one in lines if one["event"] == "reloaded" and one["what"] == "admin tokens"
    ]
    assert [one["ok"] for one in reloaded] == [True, True, False, True]
    assert reloaded[2]["reason"].startswith(f"cannot read the tokens in {tokens}")
    assert "another-token" not in file.read_text()


WRONG = [
    ("/", 404),
    ("/v1/sessions/", 404),
    (f"/v1/sessions/{'x' * 300}", 404),
    ("/v1/sessions/nobody", 404),
    ("/v1/sessions?broker=lagos", 404),
    ("/v1/sessions?limit=0", 400),
    ("/v1/sessions?limit=1001", 400),
    ("/v1/sessions?limit=many", 400),
    ("/v1/sessions?state=gone", 400),
    ("/v1/sessions?after=x", 400),
    ("/v1/sessions?after=0-x", 400),
    ("/v1/sessions?cleint=a", 400),
    (f"/v1/sessions?client={'*' * 300}", 400),
    ("//[", 400),
]


@live
async def test_what_makes_no_sense_is_refused_with_a_sentence(tokens):
    async with serving(tokens) as (_, where):
        for target, code in WRONG:
            status, body = await call(where, target)
            assert (target, status, body["status"]) == (target, code, code)
            assert body["error"]
        for method, code in (("POST", 405), ("PUT", 405), ("DELETE", 404)):
            assert (await call(where, "/v1/sessions", method))[0] == code
        more = "Content-Length: 1000000000\r\n"
        assert (await call(where, "/v1/sessions/a", "DELETE", more=more))[0] == 413
        twice = f"Authorization: Bearer {TOKEN}\r\n"
        assert (await call(where, "/v1/sessions", more=twice))[0] == 400
        for raw in (b"hello\r\n\r\n", b"\x00\xff\xfe\r\n\r\n", b"GET /v1/sessions HTTP/9\r\n\r\n"):
            assert (await ask(where, raw))[0] == 400
        assert (await ask(where, b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * REQUEST_BYTES))[0] == 431


@live
async def test_few_connections_at_a_time_and_none_for_long(tokens, monkeypatch):
    monkeypatch.setattr(admin_http, "REQUEST_S", 0.3)
    async with serving(tokens) as (_, where):
        slow = [
            await asyncio.open_connection(where.host, where.port)
            for _ in range(admin_http.CONNECTIONS_MAX)
        ]
        reader, writer = await asyncio.open_connection(where.host, where.port)
        assert await asyncio.wait_for(reader.read(), 5) == b""  # there is no room for it
        writer.close()
        for reader, writer in slow:
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        assert (await call(where, "/v1/sessions"))[0] == 200


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("short\n", "line 1: write a name and a token of at least 20 characters"),
        ("olga short\n", "line 1: write a name and a token of at least 20 characters"),
        ("x" * 70_000, "more than 65536 bytes"),
    ],
    ids=["no name", "short", "long"],
)
def test_a_file_of_tokens_that_is_no_good(tmp_path, text, why):
    with pytest.raises(UsageError, match=why):
        Tokens(str(private(tmp_path / "tokens", text)))


def test_a_file_of_tokens_that_others_may_read(tokens):
    tokens.chmod(0o640)
    with pytest.raises(UsageError, match="may be read by other users"):
        Tokens(str(tokens))


@live
async def test_without_tls_it_is_for_this_machine_only(tokens):
    broker = BrokerHost("porto", {})
    api = AdminApi([broker], str(tokens), None)
    with pytest.raises(UsageError, match="tokens would cross the network in clear"):
        await api.start(Address("0.0.0.0", 0))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('listen = "127.0.0.1:0"', "admin.tokens is missing"),
        ('listen = "0.0.0.0:9420"\ntokens = "t"', "say tls.cert and tls.key"),
        ('listen = "wayfares://127.0.0.1:9420"\ntokens = "t"', "say tls.cert and tls.key"),
    ],
    ids=["no tokens", "not here", "no certificate"],
)
def test_a_configuration_that_is_no_good(text, why):
    with pytest.raises(ConfigError, match=why):
        config.parse(f'name = "porto"\n[admin]\n{text}\n')


def test_over_tls_from_the_command_line(tmp_path, tokens, certificates):  # noqa: F811
    file = tmp_path / "site.toml"
    trusted = tls_of(certificates, "porto")
    file.write_text(
        f"""
        name = "porto"
        listen = "127.0.0.1:0"
        [tls]
        cert = "{trusted.cert}"
        key = "{trusted.key}"
        [admin]
        listen = "127.0.0.1:0"
        tokens = "tokens"
        """,
        "utf-8",
    )
    broker = Program("broker", "--config", str(file), "--json")
    try:
        facts = json.loads(broker.line())
        assert facts["admin"].startswith("https://")
        there = ("--url", facts["admin"], "--token-file", tokens, "--ca", trusted.ca)

        async def test():
            async with wayfare.connect(facts["address"], client_id="anna", expires=60) as anna:
                await anna.subscribe("x > 0")
                code, out, err = await asyncio.to_thread(
                    command, "sessions", "list", *there, "--json"
                )
                assert err == ""
                assert (code, json.loads(out)["client"]) == (0, "anna")
                code, out, _ = await asyncio.to_thread(command, "sessions", "show", "anna", *there)
                assert code == 0
                assert "subscribes to  x > 0" in out
                assert "expires        after 60 s away" in out
                gone = await asyncio.to_thread(command, "sessions", "show", "bert", *there)
                assert gone == (1, "", "bert has no session here\n")
                kick = ("sessions", "kick", "anna", "--again")
                code, out, _ = await asyncio.to_thread(command, *kick, *there)
                assert (code, out) == (0, "anna was disconnected at porto; its session stays\n")
                await anna.attach()
                code, out, _ = await asyncio.to_thread(
                    command, "sessions", "remove", "anna", *there
                )
                assert (code, out) == (
                    0,
                    "anna was disconnected at porto, and its session has ended\n",
                )
                code, _, err = await asyncio.to_thread(
                    command, "sessions", "remove", "anna", *there
                )
                assert (code, err) == (1, "anna has no session here\n")
                code, _, err = await asyncio.to_thread(command, *kick, *there)
                assert (code, err) == (1, "anna has no session here\n")

        asyncio.run(test())
        wrong = private(tmp_path / "wrong", "x" * 32)
        code, _, err = command("sessions", "list", *there[:2], "--token-file", wrong, *there[4:])
        assert (code, "give a token of this broker" in err) == (2, True)
    finally:
        broker.stop()


@live
async def test_what_is_no_admin_api_is_named_as_such(tokens):
    """A client's port, or another server of HTTP: what comes from there is not shown."""
    broker = BrokerHost("porto", {})
    await broker.start(HERE)

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ports = {
        broker.address.port: "what listens there does not speak HTTP",
        server.sockets[0].getsockname()[1]: "is no admin API: it answers 404 Not Found",
    }
    for port, why in ports.items():
        there = ("--url", f"http://127.0.0.1:{port}", "--token-file", tokens)
        for words in (("list",), ("show", "anna"), ("remove", "anna"), ("kick", "anna")):
            code, out, err = await asyncio.to_thread(command, "sessions", *words, *there)
            assert (code, out, why in err) == (2, "", True)
    server.close()
    await broker.stop()


def test_a_token_is_for_the_admin_api(tokens):
    code, _, err = command("sessions", "list", "--socket", "x.sock", "--token-file", tokens)
    assert (code, "are for the admin API: give --url, too" in err) == (2, True)
