"""TLS in the mobility service: to servers of every system, and between clients and proxies."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from test_adapters import Client, until
from test_live_cli import program as shell
from test_live_cli import wayfare as wayfare_command
from test_service_live import Nodes, next_of, payloads, quiet, run
from wayfare.errors import CannotConnect, Refused, UsageError
from wayfare.net.security import Tls
from wayfare.service import Gap, connect
from wayfare.service.adapters import adapter
from wayfare.service.nodes import Node, free_ports, program
from wayfare.service.proxy_addresses import only
from wayfare.service.proxy_server import Server
from wayfare.service.servers import SERVERS
from wayfare.service.system import Publication, Trust
from wayfare.service.wire import ask

START_S = 100.0


class Files(NamedTuple):
    """In PEM."""

    ca: str
    cert: str
    key: str
    other: str  # a CA that has signed nothing

    @property
    def tls(self) -> tuple[str, str]:
        return self.cert, self.key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The certificate is for 127.0.0.1, and no other name of this machine."""
    there = tmp_path_factory.mktemp("certificates")
    made = Files(*(str(there / f"{name}.pem") for name in Files._fields))
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(made.ca)
    issued.private_key_pem.write_to_path(made.key)
    issued.cert_chain_pems[0].write_to_path(made.cert)
    trustme.CA().cert_pem.write_to_path(made.other)
    return made


# ---- servers ---------------------------------------------------------------------------


def mqtt(directory: Path, port: int, files: Files) -> list[Node]:
    config = directory / "config"
    config.write_text(
        f"user root\nlistener {port} 127.0.0.1\nallow_anonymous true\n"
        f"certfile {files.cert}\nkeyfile {files.key}\n"
    )
    return [Node("a", port, directory, [program("mosquitto"), "-c", config])]


def nats(directory: Path, port: int, files: Files) -> list[Node]:
    asked = f"-a 127.0.0.1 -p {port} --tls --tlscert {files.cert} --tlskey {files.key}"
    return [Node("a", port, directory, [program("nats-server"), *asked.split()])]


def redis(directory: Path, port: int, files: Files) -> list[Node]:
    asked = f"--bind 127.0.0.1 --port 0 --tls-port {port} --tls-auth-clients no --save '' --dir ."
    asked += (
        f" --tls-cert-file {files.cert} --tls-key-file {files.key} --tls-ca-cert-file {files.ca}"
    )
    return [Node("a", port, directory, [program("redis-server"), *asked.split()])]


def amqp(directory: Path, port: int, files: Files) -> list[Node]:
    epmd, node, *_ = SERVERS["amqp"].nodes(directory)
    safe = f"listeners.tcp = none\nlisteners.ssl.1 = 127.0.0.1:{node.port}\n"
    for name, file in (("cacertfile", files.ca), ("certfile", files.cert), ("keyfile", files.key)):
        safe += f"ssl_options.{name} = {file}\n"
    safe += "ssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false\n"
    change(node.directory / "rabbitmq.conf", f"listeners.tcp.1 = 127.0.0.1:{node.port}\n", safe)
    return [epmd, node]


def stomp(directory: Path, port: int, files: Files) -> list[Node]:
    node = SERVERS["stomp"].nodes(directory)[0]
    key = load_pem_private_key(Path(files.key).read_bytes(), None)
    cert = load_pem_x509_certificate(Path(files.cert).read_bytes())
    store = directory / "store.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"a",
            key,  # type: ignore[arg-type]
            cert,
            None,
            BestAvailableEncryption(b"secret"),
        )
    )
    config = node.directory / "activemq.xml"
    change(config, f"stomp://127.0.0.1:{node.port}", f"stomp+ssl://127.0.0.1:{node.port}")
    context = f'<sslContext><sslContext keyStore="file:{store}" keyStoreType="PKCS12" keyStorePassword="secret"/></sslContext>'
    change(config, "<transportConnectors>", f"{context}<transportConnectors>")
    return [node]


def wayfare(directory: Path, port: int, files: Files) -> list[Node]:
    config = directory / "broker.toml"
    config.write_text(
        f'name = "a"\nlisten = "wayfares://127.0.0.1:{port}"\n'
        f'[tls]\ncert = "{files.cert}"\nkey = "{files.key}"\n'
    )
    command = SERVERS["wayfare"].nodes(directory / "others")[0].command
    return [Node("a", port, directory, [*command[:-1], config])]


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


SAFE = {
    "mqtts": mqtt,
    "nats+tls": nats,
    "rediss+envelope": redis,
    "amqps": amqp,
    "stomp+ssl": stomp,
    "wayfares": wayfare,
}
PLAIN = {
    "mqtts": "mqtt",
    "rediss+envelope": "redis+envelope",
    "amqps": "amqp",
    "stomp+ssl": "stomp",
    "wayfares": "wayfare",
}


@contextmanager
def serving(scheme: str, directory: Path, files: Files, more: str = "") -> Iterator[str]:
    """A server with TLS: where it is. For mosquitto, `more` settings."""
    nodes = SAFE[scheme](directory, free_ports(1)[0], files)
    if more:
        change(directory / "config", "certfile", f"{more}certfile")

    async def started(node: Node) -> None:
        async with asyncio.timeout(START_S):
            await node.until(node.listens)

    with ExitStack() as stack:
        for node in nodes:
            node.start()
            stack.callback(node.kill)
            asyncio.run(started(node))
        yield f"{scheme}://127.0.0.1:{nodes[-1].port}"


def system_of(scheme: str) -> str:
    return SAFE[scheme].__name__


# ---- to servers ------------------------------------------------------------------------


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "scheme", [pytest.param(one, marks=[pytest.mark.slow] * (one == "amqps")) for one in SAFE]
)
def test_servers_with_tls(
    scheme: str,
    files: Files,
    tmp_path: Path,
    need_server: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    need_server(system_of(scheme))
    payload = bytes(range(256)) * 2_000

    async def refusal(address: str, ca: str) -> str:
        async with asyncio.timeout(9):
            with pytest.raises(CannotConnect, match="cannot connect") as caught:
                await Client(adapter(address, Trust(ca)), address, "anna").open()
        return str(caught.value)

    async def story(address: str) -> None:
        for ca in (files.other, ""):
            assert "its certificate is not trusted" in await refusal(address, ca)
            assert "by `ca`" in await refusal(address, ca)
        elsewhere = address.replace("127.0.0.1", "localhost")
        assert "not valid for 'localhost'" in await refusal(elsewhere, files.ca)
        if scheme in PLAIN:
            plain = await refusal(address.replace(scheme, PLAIN[scheme]), files.ca)
            assert scheme in plain
        system = adapter(address, Trust(files.ca))
        topic = system.topic("news")
        anna = await Client(system, address, "anna").open()
        await anna.access.subscribe([system.subscription(topic)])
        for number in range(3):
            await anna.access.publish(Publication(topic, payload, {"n": number}))
        sent = [Publication(topic, payload, {"n": number}) for number in range(3)]
        assert await anna.has(3) == sent
        await anna.access.close()
        server = Server(address, trust=Trust(files.ca))
        async with connect("ann", await server.start(), ca=files.ca) as ann:
            await ann.subscribe(system.subscription(topic))
            await ann.move_out()
            await ann.publish(topic, b"later")
            await ann.move_in()
            (message,) = await next_of(ann, 1)
            assert isinstance(message, Publication) and message.payload == b"later"
        await server.stop()

    with serving(scheme, tmp_path, files) as address:
        run(story(address))
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


def test_a_goodbye_with_tls_is_heard_also_by_who_is_not_read_to_the_end(
    files: Files, tmp_path: Path, need_server: Callable[[str], None]
) -> None:
    """mosquitto would keep for a day what it was told to forget."""
    need_server("mqtt")

    async def leave(client: Client, bert: Client) -> None:
        await client.access.subscribe(["news"])
        many = [bert.access.publish(Publication("news", bytes(300_000))) for _ in range(20)]
        sending = asyncio.gather(*many)
        await until(lambda: client.got)
        await client.access.close()
        await sending

    async def story(address: str) -> None:
        system = adapter(address, Trust(files.ca))
        bert = await Client(system, address, "bert").open()
        for name in ("anna", "berta", "clara", "dora"):
            client = Client(system, address, name)
            await leave(await client.open(), bert)
            await client.open(resume=True)
            assert client.access.resumed is False
            await client.access.close()
        await bert.access.close()

    with serving("mqtts", tmp_path, files) as address:
        run(story(address))


@pytest.mark.parametrize("scheme", SAFE)
def test_servers_without_tls_are_told_nothing(scheme: str, files: Files) -> None:
    """Neither by those who say so, as NATS does before TLS begins, nor by those who hang up."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if scheme == "nats+tls":
            writer.write(b'INFO {"server_id": "x", "version": "2.9.10", "max_payload": 1000}\r\n')
        heard.append(await reader.read(10_000))
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            address = f"{scheme}://anna:secret@127.0.0.1:{port}"
            async with asyncio.timeout(9):
                with pytest.raises(CannotConnect, match="cannot connect") as caught:
                    await Client(adapter(address, Trust(files.ca)), address, "anna").open()
            assert "TLS" in str(caught.value)
            assert "secret" not in str(caught.value)
            await until(lambda: heard)
        assert not any(b"secret" in one for one in heard)

    run(story())


def test_servers_may_want_a_certificate(
    files: Files, tmp_path: Path, need_server: Callable[[str], None]
) -> None:
    need_server("mqtt")

    async def story(address: str) -> None:
        without = adapter(address, Trust(files.ca))
        # Now and then the server has hung up before the handshake is over, for us.
        tried = [Client(without, address, f"anna{number}").open() for number in range(8)]
        for refusal in await asyncio.gather(*tried, return_exceptions=True):
            assert isinstance(refusal, CannotConnect), repr(refusal)
            assert "want to see a certificate" in str(refusal)
        anna = Client(adapter(address, Trust(files.ca, files.tls)), address, "anna")
        await anna.open()
        await anna.access.close()

    with serving("mqtts", tmp_path, files, f"cafile {files.ca}\nrequire_certificate true\n") as at:
        run(story(at))


def test_files_that_cannot_be_used_are_named_at_once(files: Files, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    for trust in (Trust(missing), Trust(files.ca, (files.cert, missing))):
        for use in (
            lambda trust=trust: connect("ann", "127.0.0.1:1", ca=trust.ca, cert=trust.cert),
            lambda trust=trust: Server("mqtts://127.0.0.1:1", trust=trust),
        ):
            with pytest.raises(UsageError, match=r"cannot read .*missing\.pem: No such file"):
                use()


# ---- between clients and proxies -------------------------------------------------------

on_mqtt = pytest.mark.parametrize("system", ["mqtt"])


@asynccontextmanager
async def proxies(*servers: Server) -> AsyncIterator[list[str]]:
    try:
        yield [await one.start() for one in servers]
    finally:
        for one in servers:
            await one.stop()


@on_mqtt
def test_who_roams_between_proxies_with_tls_misses_nothing(
    overlay_of: Nodes, system: str, word: str, files: Files
) -> None:
    async def story() -> None:
        a, _, c = overlay_of(system).addresses
        safe = {"tls": Tls(*files.tls), "trust": Trust(files.ca)}
        async with (
            proxies(Server(a, **safe), Server(c, **safe)) as (first, second),
            connect(f"bob{word}", first, ca=files.ca) as bob,
            connect(f"ann{word}", first, ca=files.ca) as ann,
        ):
            assert first.startswith("tls://127.0.0.1:")
            await ann.subscribe(f"{word}/#")
            await ann.move_out()
            sent = [b"%d" % number * 100_000 for number in range(10)]
            for payload in sent:
                await bob.publish(f"{word}/x", payload)
            await ann.move_in(second)
            assert await payloads(ann, 10) == sent
            await quiet(ann)

    run(story())


@on_mqtt
def test_no_proxy_leads_a_client_from_a_server_with_tls_to_one_without(
    overlay_of: Nodes, system: str, word: str, files: Files, tmp_path: Path
) -> None:
    """Its password, and all that it says, would cross the network in clear."""

    async def story(safe: str) -> None:
        a, _, _ = overlay_of(system).addresses
        async with (
            proxies(Server(safe, trust=Trust(files.ca)), Server(a)) as (first, second),
            connect(f"ann{word}", first, ca=files.ca, login="ann:secret") as ann,
        ):
            with pytest.raises(Refused, match="is without TLS"):
                await ann.move_in(second)
            await ann.move_in(first)
            async with connect(f"bob{word}", second, ca=files.ca, sync="none") as bob:
                await bob.move_in(first)  # the other way it is as it should be

    with serving("mqtts", tmp_path, files) as safe:
        run(story(safe))


@on_mqtt
def test_a_proxy_that_does_not_trust_another_one_tells_a_gap(
    overlay_of: Nodes, system: str, word: str, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        a, _, c = overlay_of(system).addresses
        old, new = (Server(at, tls=Tls(*files.tls)) for at in (a, c))
        async with (
            proxies(old, new) as (first, second),
            connect(f"ann{word}", first, ca=files.ca, patience=0.5) as ann,
        ):
            await ann.subscribe(f"{word}/#")
            await ann.move_out()
            await ann.move_in(second)
            (gap,) = await next_of(ann, 1)
            assert isinstance(gap, Gap)
            assert "no mobility proxy answers there" in gap.reason
            assert "its certificate is not trusted" in caplog.text  # for operators only

    run(story())


@on_mqtt
def test_who_does_not_speak_as_a_proxy_does_gets_a_sentence(
    overlay_of: Nodes, system: str, word: str, files: Files
) -> None:
    async def sentence(proxy: str, ca: str = "") -> str:
        async with asyncio.timeout(9):
            with pytest.raises(CannotConnect) as caught:
                async with connect("ann", proxy, ca=ca):
                    pass
        return str(caught.value)

    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        server = Server(a, tls=Tls(*files.tls))
        async with proxies(server, Server(a)) as (safe, plain):
            host = safe.removeprefix("tls://")
            assert f"the connection was closed; if it wants TLS, call it {safe}" in await sentence(
                host
            )
            told = await sentence(f"tls://{plain}", files.ca)
            assert f"it does not speak TLS: call it {plain}, without tls://" in told
            for ca in (files.other, ""):
                assert "its certificate is not trusted" in await sentence(safe, ca)
            elsewhere = safe.replace("127.0.0.1", "localhost")
            assert "not valid for 'localhost'" in await sentence(elsewhere, files.ca)
            assert len(server._wires) == 0
            async with connect(f"ann{word}", plain, patience=0.3) as ann:
                with pytest.raises(CannotConnect, match="if it wants TLS"):
                    await ann.move_in(host)

    run(story())


@on_mqtt
def test_renewed_certificates_are_read_again(
    overlay_of: Nodes,
    system: str,
    files: Files,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        a, _, _ = overlay_of(system).addresses
        cert, key = tmp_path / "cert", tmp_path / "key"
        cert.write_bytes(Path(files.cert).read_bytes())
        key.write_bytes(Path(files.key).read_bytes())
        server = Server(a, tls=Tls(str(cert), str(key)))
        async with proxies(server) as (here,):
            await ask(here, trust=Trust(files.ca))
            cert.write_text("nonsense")
            server.reload()
            assert "the old certificate is shown" in caplog.text
            await ask(here, trust=Trust(files.ca))
            ca = trustme.CA()
            ca.cert_pem.write_to_path(tmp_path / "ca")
            issued = ca.issue_cert("127.0.0.1")
            issued.private_key_pem.write_to_path(key)
            issued.cert_chain_pems[0].write_to_path(cert)
            server.reload()
            await ask(here, trust=Trust(str(tmp_path / "ca")))
            with pytest.raises(CannotConnect, match="not trusted"):
                await ask(here, trust=Trust(files.ca))

    run(story())


def test_peers_that_are_named_with_tls_are_called_with_tls_only() -> None:
    async def story() -> None:
        permit = only(["tls://10.0.0.1:7500"])
        assert await permit("tls://10.0.0.1:7500") == ("10.0.0.1", 7500)
        with pytest.raises(UsageError, match="not among the proxies"):
            await permit("10.0.0.1:7500")

    run(story())


@on_mqtt
def test_a_shell_can_do_it(
    overlay_of: Nodes, system: str, word: str, files: Files, tmp_path: Path
) -> None:
    a, _, _ = overlay_of(system).addresses
    (port,) = free_ports(1)
    here, control = f"tls://127.0.0.1:{port}", str(tmp_path / "agent")
    listening = ["--listen", str(port), "--tls", *files.tls]
    watching = ["--proxies", here, "--ca", files.ca, "--control", control, "--interval", "0.2"]

    async def story() -> None:
        async with connect(f"eve{word}", agent=control, ca=files.ca) as eve:
            assert eve.place == here

    with (
        shell("service", "proxy", "--access", a, *listening) as one,
        shell("service", "agent", *watching, "--json") as agent,
    ):
        assert one.line() == f"clients of {a} move by the proxy {here}"
        one.process.send_signal(signal.SIGHUP)
        said = ["service", "pub", here, f"{word}/x", "hello"]
        code, out, err = wayfare_command(*said, "--ca", files.other)
        assert (code, out) == (2, "")
        assert "its certificate is not trusted" in err and "Traceback" not in err
        with shell("service", "sub", here, f"{word}/#", "-C", "1", "--ca", files.ca) as sub:
            assert "subscribed to" in sub.told()
            assert wayfare_command(*said, "--ca", files.ca) == (0, "", "")
            assert sub.line() == f"{word}/x  hello"
        assert json.loads(agent.line())["proxy"] == here
        run(story())
