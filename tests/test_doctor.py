"""`wayfare doctor`: what is wrong, and what to do; nothing is changed by looking."""

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

import msgspec
import pytest
import trustme
from msgspec.structs import replace

from live import HERE, tree
from test_live_cli import broker, program, wayfare
from test_metrics import told
from test_net import LINE, live
from wayfare import cli
from wayfare.core.codec import encode
from wayfare.core.messages import PROTOCOL_VERSION, Hello
from wayfare.net import accounts as accounts_file
from wayfare.net import checks, config, configured, database
from wayfare.net import http as asking
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.checks import FAIL, OK, WARN
from wayfare.net.doctor import Doctor
from wayfare.net.security import Tls
from wayfare.net.status import AccountMemory, status_of
from wayfare.net.store import FILE, Store


async def examine(*places, files=(), **options):
    """What is found, without what is fine: (level, what it says)."""
    found = await Doctor(timeout_s=0.5, **options).examine(map(str, files), map(str, places))
    return [(one.level, one.says) for one in found if one.level != OK]


async def examine_all(*places, files=(), **options):
    found = await Doctor(timeout_s=0.5, **options).examine(map(str, files), map(str, places))
    return [(one.level, one.says) for one in found]


@asynccontextmanager
async def server(answer, *, asked=b"", wait=False):
    """Something that says this to whoever comes, and has asked up to there."""

    async def serve(reader, writer):
        if asked:
            await reader.readuntil(asked)
        writer.write(answer)
        if wait:
            await reader.read()
        writer.close()

    one = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", one.sockets[0].getsockname()[1])
    finally:
        one.close()
        await one.wait_closed()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def write(path, text):
    path.write_text(text)
    return path


# Who is at an address


@live
async def test_a_broker_that_is_there_is_well_and_notices_nothing():
    async with tree(*LINE) as net:
        before = {name: len(one.core.border.by_link) for name, one in net.brokers.items()}
        found = await examine_all(*(net.url(name) for name in net.brokers))
        assert found == [
            (OK, f"{name} is there, and speaks version {PROTOCOL_VERSION}") for name in net.brokers
        ]
        assert all(link.connection for one in net.brokers.values() for link in one.links.values())
        assert before == {name: len(one.core.border.by_link) for name, one in net.brokers.items()}


@live
async def test_what_is_wrong_with_an_address_is_told_apart():
    ((level, says),) = await examine("nowhere.invalid")
    assert (level, says) == (
        FAIL,
        "there is no host named nowhere.invalid: correct the name, or see to DNS",
    )
    ((level, says),) = await examine(f"127.0.0.1:{free_port()}")
    assert (level, says) == (FAIL, "nobody listens there: start it, or correct the port")
    async with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as at:
        assert await examine(at) == [
            (FAIL, "something else than a broker is there: correct the port")
        ]
    async with server(b"\0\0\0\x02\x91\x63") as at:
        assert await examine(at) == [
            (FAIL, "something else than a broker is there: correct the port")
        ]
    async with server(b"") as at:
        assert await examine(at) == [
            (FAIL, "something else than a broker is there: correct the port")
        ]
    async with server(b"", wait=True) as at:
        assert await examine(at) == [
            (FAIL, "it says nothing within 0.5 s; maybe it wants TLS: try wayfares://")
        ]
    async with server(encode(Hello(PROTOCOL_VERSION + 1, "porto")), wait=True) as at:
        ((level, says),) = await examine(at)
        assert level == FAIL
        assert says.startswith(f"porto speaks version {PROTOCOL_VERSION + 1} of the protocol")


@live
async def test_the_port_of_clients_and_the_port_of_the_status_are_told_apart():
    async with tree(*LINE) as net:
        port = net.brokers["porto"].address.port
        assert await examine(f"http://127.0.0.1:{port}") == [
            (
                FAIL,
                f"127.0.0.1:{port} speaks no HTTP: porto listens for clients there; ask where a broker"
                " tells its status, which is the port of --status, or status.port in its file",
            )
        ]
        async with told(net.brokers.values()) as (host, port):
            assert await examine(f"{host}:{port}") == [
                (
                    FAIL,
                    "it tells a status there, and listens elsewhere: correct the port, or ask"
                    f" http://{host}:{port}",
                )
            ]
    async with server(b"\0\0\0\x02\x91\x63more", asked=b"\r\n\r\n") as at:
        ((_, says),) = await examine(f"http://127.0.0.1:{at.port}")
        assert "speaks no HTTP: something else than a broker is there; ask" in says


def test_a_file_may_stand_where_an_address_does(tmp_path):
    file = write(tmp_path / "a.toml", "name = 'a'\nlisten = '127.0.0.1:0'\n")
    assert asyncio.run(examine_all(file)) == [(OK, "is a good configuration")]
    assert asyncio.run(examine("nowhere.toml")) == [
        (FAIL, "cannot read nowhere.toml: No such file or directory")
    ]


@live
async def test_two_brokers_of_one_name_are_found():
    one, two = BrokerHost("porto", {}), BrokerHost("porto", {})
    try:
        first, second = await one.start(HERE), await two.start(HERE)
        assert await examine(first, first) == []
        assert await examine(first, second) == [
            (
                FAIL,
                f"a broker named porto is also at {first}: if these are two, name one of them"
                " differently",
            )
        ]
    finally:
        await one.stop()
        await two.stop()


# Certificates


def ended(days):
    return f"{datetime.now(UTC) + timedelta(days=days):%b %e}"


def issue(there, name, days):
    """Files of a CA, and of a certificate that ends in so many days."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(there / "ca.pem")
    now = datetime.now(UTC)
    began, ends = now - timedelta(days=100), now + timedelta(days=days)
    cert = ca.issue_cert(name, "127.0.0.1", common_name=name, not_before=began, not_after=ends)
    cert.private_key_pem.write_to_path(there / f"{name}.key")
    (there / f"{name}.key").chmod(0o600)
    cert.cert_chain_pems[0].write_to_path(there / f"{name}.pem")
    return Tls(str(there / f"{name}.pem"), str(there / f"{name}.key"), str(there / "ca.pem"))


@pytest.mark.parametrize(
    ("days", "level", "says"),
    [
        (90, OK, "its certificate is good for 90 days"),
        (10, WARN, "its certificate expires in 10 days"),
        (-1, FAIL, f"its certificate has expired ({ended(-1)}"),
    ],
)
def test_the_certificate_of_a_broker_is_looked_at(tmp_path, days, level, says):
    tls = issue(tmp_path, "porto", days)

    async def test():
        host = BrokerHost("porto", {}, tls=replace(tls, ca=""))
        at = await host.start(Address("127.0.0.1", 0, tls=True))
        try:
            found = await examine_all(at, ca=tls.ca)
            assert (found[-1][0], found[-1][1][: len(says)]) == (level, says)
            ((level_1, says_1),) = await examine(at)
            assert (level_1, "is not trusted" in says_1) == (FAIL, True), "without its CA"
            ((_, plain),) = await examine(replace(at, tls=False))
            assert "try wayfares://" in plain
        finally:
            await host.stop()

    asyncio.run(test())


@pytest.mark.parametrize("require", [False, True])
def test_a_broker_whose_own_certificate_has_expired_is_told_so(tmp_path, require):
    """It would not take that certificate itself, and so does not say who it is."""
    tls = replace(issue(tmp_path, "porto", -1), require=require)

    async def test():
        host = BrokerHost("porto", {}, tls=tls)
        at = await host.start(Address("127.0.0.1", 0, tls=True))
        try:
            more = f'listen = "{at}"\ntls = {{ cert = "{tls.cert}", key = "{tls.key}", ca = "{tls.ca}", '
            more += f"require = {str(require).lower()} }}"
            file = write(tmp_path / "porto.toml", f'name = "porto"\n{more}')
            return await examine_all(files=[file])
        finally:
            await host.stop()

    good, (level, says), (met, who) = asyncio.run(test())
    assert good[0] == OK
    assert (level, says.startswith(f"its certificate has expired ({ended(-1)}")) == (FAIL, True)
    assert says.endswith("so no peer will take it: renew it")
    if require:
        assert (met, "whether the certificate that it is shown" in who) == (FAIL, True)
    else:
        assert (met, who.startswith("porto is there")) == (OK, True)


@pytest.mark.parametrize(("began", "ends"), [(-9, -1), (1, 9)])
def test_times_of_certificates(began, ends):
    now = 1_800_000_000

    def at(days):
        return f"{datetime.fromtimestamp(now + days * 86_400, UTC):%b %e %H:%M:%S %Y} GMT"

    found = checks.check_times("x", {"notBefore": at(began), "notAfter": at(ends)}, now)
    late = f"has expired ({at(ends)})" if ends < 0 else f"is not valid before {at(began)}"
    assert found.level == FAIL
    assert late in found.says


def test_a_ca_that_has_expired_is_told_from_a_certificate_that_has(tmp_path, monkeypatch):
    tls = issue(tmp_path, "porto", -1)
    monkeypatch.setattr(
        "wayfare.net.doctor.check_times", lambda about, *_: checks.Finding(OK, about, "")
    )

    async def test():
        host = BrokerHost("porto", {}, tls=replace(tls, ca=""))
        at = await host.start(Address("127.0.0.1", 0, tls=True))
        try:
            return await examine(at, ca=tls.ca)
        finally:
            await host.stop()

    ((_, says),) = asyncio.run(test())
    assert says.startswith("the certificate of the CA that signed its own has expired")


def test_a_neighbour_with_the_certificate_of_another_is_found(tmp_path):
    """It is called by its name, wherever it is: so that has to be in its certificate."""
    tls = issue(tmp_path, "porto", 90)

    async def test(name):
        host = BrokerHost(name, {"lisbon": None}, tls=tls)
        at = await host.start(Address("127.0.0.1", 0, tls=True))
        try:
            more = f'tls = {{ cert = "{tls.cert}", key = "{tls.key}", ca = "{tls.ca}" }}'
            return await examine(files=[site(tmp_path, "lisbon", {name: at}, more)])
        finally:
            await host.stop()

    assert asyncio.run(test("porto")) == []
    ((level, says),) = asyncio.run(test("faro"))
    assert (level, says) == (
        FAIL,
        "its certificate is of porto, and not of faro: give it one of its name",
    )


@live
async def test_tls_where_there_is_none_is_told():
    async with tree(*LINE) as net:
        ((level, says),) = await examine(replace(net.brokers["porto"].address, tls=True))
        assert level == FAIL
        assert says.endswith("if it has no TLS, call it with wayfare://")


@pytest.mark.parametrize(
    ("days", "level", "says"),
    [
        (90, OK, "its certificate is good for 90 days"),
        (10, WARN, "its certificate expires in 10 days"),
        (-1, FAIL, f"its certificate has expired ({ended(-1)}"),
    ],
)
def test_the_certificate_in_a_file_is_looked_at(tmp_path, days, level, says):
    tls = issue(tmp_path, "porto", days)
    (found,) = checks.check_security("site.toml", configured.Security(tls))
    assert (found.level, found.about, found.says[: len(says)]) == (level, tls.cert, says)


def test_files_that_others_may_read_or_that_are_wrong(tmp_path):
    secret = write(tmp_path / "secret", "a secret of good chance")
    secret.chmod(0o640)
    (found,) = checks.check_security("site.toml", configured.Security(secret_file=str(secret)))
    assert (found.level, found.says) == (
        WARN,
        f"others on this machine may read it: chmod 600 {secret}",
    )
    secret.chmod(0o600)
    assert (
        list(checks.check_security("site.toml", configured.Security(secret_file=str(secret)))) == []
    )
    secret.write_text("short")
    (found,) = checks.check_security("site.toml", configured.Security(secret_file=str(secret)))
    assert (found.level, "at least 16 characters" in found.says) == (FAIL, True)
    (found,) = checks.check_security(
        "site.toml", configured.Security(accounts=str(tmp_path / "no"))
    )
    assert found.level == FAIL


# Configurations


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        ("[limits]\nwindow = 20\nbacklog_count = 10", FAIL, "limits.window is 20, and limits.back"),
        ("[limits]\nbacklog_bytes = 1000", WARN, "limits.backlog_bytes is 1000, and one notific"),
        ("[limits]\nanswer = '2m'\naway = '1m'", WARN, "limits.answer is longer than limits.away"),
        ("[limits]\ntombstone = 10", WARN, "limits.tombstone is shorter than limits.answer"),
        ("heartbeat = '11s'", WARN, "heartbeat is 11 s, and a dead neighbour is noticed after 3"),
        ("[status]\nport = 9\nhost = '0.0.0.0'", WARN, "status.host is 0.0.0.0: whoever reaches"),
        ("listen = '0.0.0.0:0'", WARN, "a listens at every address of this machine and has no acc"),
        ("colour = 1", FAIL, "1: colour is no key"),
        ("[limits]\nwindow = 10\nbacklog_count = 10", OK, ""),
    ],
)
def test_what_makes_no_sense_in_a_configuration(tmp_path, text, level, says):
    text = text if "listen" in text else f"listen = '127.0.0.1:0'\n{text}"
    file = write(tmp_path / "a.toml", f"name = 'a'\n{text}\n".replace("name = 'a'\ncol", "col"))
    if "colour" in text:
        file.write_text("colour = 1\nname = 'a'\n")
    found = [
        one for one in asyncio.run(examine(files=[file])) if "cannot ask" not in one[1]
    ]  # nothing runs
    assert [(one[0], one[1][: len(says)]) for one in found][:1] == [(level, says)] * (level != OK)


def test_who_listens_to_others_needs_accounts_and_tls():
    def found(listen, **security):
        settings = config.parse('name = "a"').settings
        settings = replace(settings, security=configured.Security(**security))
        some = configured.Broker("a", Address.parse(listen), {}, settings)
        return [one.says.partition(": ")[0] for one in checks.check_listening("a.toml", some)]

    open_to_all = "a listens at every address of this machine and has no accounts"
    in_clear = "a listens at every address of this machine without TLS"
    assert found("127.0.0.1") == found("localhost") == found("[::1]") == []
    assert found("0.0.0.0") == found("[::]") == [open_to_all, in_clear]
    assert found("0.0.0.0", accounts="accounts.toml") == [in_clear]
    assert found("wayfares://0.0.0.0") == [open_to_all]
    assert found("wayfares://10.0.0.1", accounts="accounts.toml") == []


def test_a_store_needs_a_directory_and_room(tmp_path, monkeypatch):
    fine = configured.Durability("os", str(tmp_path / "new" / "memory"))
    (found,) = checks.check_store("a", fine)
    assert (found.level, "can be written" in found.says) == (OK, True)
    assert not (tmp_path / "new").exists(), "looking makes nothing"
    assert list(checks.check_store("a", configured.Durability())) == []
    write(tmp_path / "file", "")
    (found,) = checks.check_store(
        "a", configured.Durability("os", str(tmp_path / "file" / "memory"))
    )
    assert (found.level, found.says.split(":")[0]) == (FAIL, f"{tmp_path / 'file'} is no directory")
    monkeypatch.setattr(checks, "ROOM_BYTES", 2**62)
    (found,) = checks.check_store("a", fine)
    assert (found.level, found.says.endswith(": make room")) == (WARN, True)
    monkeypatch.setattr(checks, "ROOM_MIN_BYTES", 2**62)
    (found,) = checks.check_store("a", fine)
    assert found.level == FAIL


def test_a_store_has_to_be_whole_and_of_this_broker(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.1)
    where = configured.Durability("os", str(tmp_path))
    store = Store(tmp_path, "os", "a")
    (found,) = checks.check_store("a", where)
    assert found.level == checks.OK  # it is in use, as it should be
    store.close()
    (found,) = checks.check_store("b", where)
    assert found.level == checks.FAIL
    assert found.says.endswith("is the memory of a, and this is b")
    (tmp_path / FILE).write_bytes(b"nonsense" * 1000)
    (found,) = checks.check_store("a", where)
    assert found.level == checks.FAIL
    assert "is damaged" in found.says


def test_a_store_needs_a_directory_that_may_be_written():
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        me = os.geteuid()
        try:
            if me == 0:  # root may write everywhere
                os.seteuid(65_534)
            (found,) = checks.check_store("a", configured.Durability("os", directory))
        finally:
            os.seteuid(me)
            os.chmod(directory, 0o755)
    assert (found.level, found.says.split(":")[0]) == (FAIL, f"{directory} cannot be written")


def site(tmp_path, name, neighbours, more=""):
    lines = "".join(f'{one} = "{at}"\n' for one, at in neighbours.items())
    text = f'name = "{name}"\nlisten = "127.0.0.1:0"\n{more}\n[neighbours]\n{lines}'
    return write(tmp_path / f"{name}.toml", text)


def test_files_that_do_not_fit_together(tmp_path):
    a = site(tmp_path, "a", {"b": "", "c": ""})
    b = site(tmp_path, "b", {"a": ""}, 'routing = "merging"')
    c = site(tmp_path, "c", {})
    twin = write(tmp_path / "twin.toml", a.read_text())
    assert asyncio.run(examine(files=[a])) == []
    assert asyncio.run(examine(files=[a, b, c])) == [
        (FAIL, "waits for b to call, and b waits as well: give one of them the other's address"),
        (FAIL, "a has routing covering, and b has merging: give all the same"),
        (FAIL, f"has the neighbour c, which does not know a: write a into {c}"),
        (FAIL, "waits for a to call, and a waits as well: give one of them the other's address"),
    ]
    assert asyncio.run(examine(files=[a, twin])) == [
        (FAIL, f"{twin} is of a broker named a, too: name one differently")
    ]


@live
async def test_a_neighbour_that_is_somebody_else_or_not_there():
    async with tree(*LINE) as net:
        with TemporaryDirectory() as directory:
            text = 'name = "x"\nlisten = "127.0.0.1:0"\n[neighbours]\nfaro = "{}"\n'
            file = f"{directory}/x.toml"
            for at, expected in (
                (net.url("faro"), []),
                (
                    net.url("porto"),
                    [(FAIL, "porto is there, and not faro: correct the address, or the name")],
                ),
                (
                    f"127.0.0.1:{free_port()}",
                    [(FAIL, "nobody listens there: start it, or correct the port")],
                ),
            ):
                with open(file, "w") as out:
                    out.write(text.format(at))
                assert await examine(files=[file]) == expected


# What processes tell


@live
async def test_links_that_are_down_and_neighbours_that_do_not_know_each_other():
    one, two = BrokerHost("a", {"b": None}), BrokerHost("b", {})
    await one.start(HERE)
    await two.start(HERE)
    try:
        async with told([one, two]) as where, told([one]) as other:
            url = f"http://{where[0]}:{where[1]}"
            found = await examine(url)
            assert [(level, says.split(":")[0]) for level, says in found] == [
                (FAIL, "has no link to b, for which 1 messages wait"),  # that it is there
                (FAIL, "has the neighbour b, which does not know a"),
            ]
            found = await examine(url, f"http://{other[0]}:{other[1]}")
            assert (
                FAIL,
                f"{url} has a broker of this name, too: name one of them differently",
            ) in found
    finally:
        await one.stop()
        await two.stop()


@live
async def test_clocks_and_releases_that_differ():
    async with tree(*LINE) as net, told(net.brokers.values()) as where:
        good = f"http://{where[0]}:{where[1]}"
        assert await examine(good) == []
        status = await asking.fetch(*where)
        late = replace(status, time_s=status.time_s - 100, version="0.0.0", brokers=[])
        body = msgspec.json.encode(late)
        answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body
        async with server(answer, asked=b"\r\n\r\n") as at:
            found = await examine(good, f"http://{at.host}:{at.port}")
            assert [(level, says.split(":")[0].split("(")[0]) for level, says in found] == [
                (WARN, "its clock is -100 s from ours"),
                (WARN, "different releases run "),
            ]


# The command


def test_doctor_of_a_network_that_runs_and_of_one_that_does_not(tmp_path):
    port = free_port()
    links = 'links = [["porto", "lisbon"], ["lisbon", "faro"]]\n'
    file = write(tmp_path / "city.toml", f"{links}[status]\nport = {port}\n")
    with program("network", "up", str(file), "--json") as one:
        rows = [json.loads(one.line()) for _ in range(3)]
        code, out, err = wayfare("doctor", "--config", str(file), rows[0]["address"])
        assert (code, err) == (0, "")
        assert [line.split()[0] for line in out.splitlines()] == ["ok"] * 5
        assert f"ok    {rows[0]['address']}: porto is there, and speaks" in out
    code, out, err = wayfare("doctor", "--config", str(file), "--json")
    assert (code, err) == (0, "")
    levels = [json.loads(line)["level"] for line in out.splitlines()]
    assert levels == ["ok", "warn"], "it does not run, which may be as it should"
    code, out, err = wayfare("doctor", rows[0]["address"], "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["level"] == "fail"


def test_doctor_of_a_broker_with_a_file(tmp_path):
    port, status = free_port(), free_port()
    text = f'name = "lisbon"\nlisten = "127.0.0.1:{port}"\n[status]\nport = {status}\n'
    file = write(tmp_path / "site.toml", f'{text}[neighbours]\nporto = ""\n')
    code, out, _ = wayfare("doctor", "--config", str(file))
    assert (code, "lisbon does not run: start it" in out) == (0, True)
    with (
        program("broker", "--config", str(file)) as one,
        broker("porto", "--neighbour", f"lisbon=127.0.0.1:{port}"),
    ):
        one.line()
        code, out, _ = wayfare("doctor", "--config", str(file))
        assert code == 0, out
        assert "ok    lisbon: runs, and its links are up: porto" in out
        file.write_text(f'{text}[neighbours]\nporto = ""\nfaro = ""\n')
        code, out, _ = wayfare("doctor", "--config", str(file))
        assert (
            "lisbon runs with other neighbours (porto) than it has in its file (porto, faro)" in out
        )
        file.write_text(text.replace("lisbon", "evora"))
        code, out, _ = wayfare("doctor", "--config", str(file))
        assert code == 1
        assert "lisbon is there, and not evora" in out
        assert "lisbon tells its status where evora should" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["doctor"], "nothing to examine: give --config FILE, or addresses of brokers"),
        (["doctor", "a:b:c"], "'a:b:c' is no address"),
        (["doctor", "http://a"], "'http://a' is no address: write http://host:port"),
        (["doctor", "http://a..b:9410"], "names of hosts have 1 to 63 characters between dots"),
        (["doctor", "http://::1"], "an IPv6 address is in brackets, like [::1]:PORT"),
        (["doctor", "a", "--ca", "/no/ca.pem"], "cannot read /no/ca.pem"),
    ],
)
def test_bad_input_gets_one_clear_sentence(arguments, says, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert says in captured.err


def test_peers_that_cannot_be_reached_and_maps_that_cannot_be_read(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text(
        'name = "porto"\npeers = { faro = "127.0.0.1:1" }\nahead = { places = "map.json" }\n'
        'listen = "127.0.0.1:0"\n',
        "utf-8",
    )
    (_, says), (_, reached) = found = asyncio.run(examine(files=[file]))
    assert [level for level, _ in found] == [FAIL, FAIL]
    assert says.startswith("ahead.places names no good file: cannot read ")
    assert "nobody listens there" in reached


# Limits in sum


@pytest.mark.parametrize(
    ("limits", "key", "says"),
    [
        ('memory = "10000000GiB"', "limits.memory", "this machine, or container, has only"),
        (
            'memory = "100MiB"\naccount_memory = "200MiB"',
            "limits.account_memory",
            "never reaches it",
        ),
        ('account_memory = "1MiB"', "limits.account_memory", "one message may have 8 MiB"),
        ('disk = "1MiB"', "limits.disk", "one message may have 8 MiB"),
        ('disk = "1GiB"\naccount_disk = "2GiB"', "limits.account_disk", "never reaches it"),
        ('account_disk = "1MiB"', "limits.account_disk", "one message may have 8 MiB"),
        ('memory = "32MiB"', "limits.memory", "64 MiB may wait for a neighbour"),
    ],
)
def test_limits_in_sum_that_make_no_sense_are_warned_of(tmp_path, capsys, limits, key, says):
    file = write(tmp_path / "site.toml", f'name = "a"\n[limits]\n{limits}\n')
    assert cli.main(["config", "check", str(file)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{file} is fine")
    assert told.err.startswith(f"warning: {file}:{2 + limits.count(chr(10)) + 1}: {key} is ")
    assert says in told.err
    assert cli.main(["config", "check", str(file), "--json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning["key"] == key


@pytest.mark.parametrize("key", ["memory", "disk"])
def test_accounts_whose_limits_make_no_sense_are_warned_of(tmp_path, capsys, key):
    accounts = tmp_path / "accounts.toml"
    for name, limit in (("anna", "1MiB"), ("ben", "2GiB"), ("carl", "20MiB"), ("dora", None)):
        accounts_file.add(accounts, name, "sesame", quota={key: limit})
    text = f'name = "a"\naccounts = "accounts.toml"\n[limits]\n{key} = "1GiB"\n'
    file = write(tmp_path / "site.toml", text)
    assert cli.main(["config", "check", str(file)]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert f"account 'anna': {key} is 1 MiB, and one message may have 8 MiB" in first
    assert f"account 'ben': {key} is 2 GiB, and limits.{key} only 1 GiB" in second


def test_a_broker_near_its_limits_is_warned_of():
    status = status_of(BrokerHost("porto", {}))
    near = replace(
        status,
        memory={"notifications": 90},
        memory_limit=100,
        disk_bytes=2**30,
        account_memory=[AccountMemory("guests", 9, 10), AccountMemory("staff", 1, 10)],
        shed=3,
    )
    memory, account = checks.check_use(near)
    assert memory.says.startswith(
        "takes 90 bytes of 100 bytes (limits.memory), and 3 notifications"
    )
    assert account.says.startswith("keeps 9 bytes of 10 bytes for the account guests")
    assert checks.use_of(near) == "memory 90 bytes of 100 bytes, disk 1 GiB without a limit"
    assert list(checks.check_use(replace(status, memory={"past": 5}, memory_limit=10))) == []
