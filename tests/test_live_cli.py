"""Brokers and clients of the command line: real processes on loopback."""

import asyncio
import json
import os
import pty
import shlex
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
import trustme

from live import tree
from test_cli import BUFFERED, heed_ctrl_c
from wayfare import cli
from wayfare.cli import completion, notation, running
from wayfare.cli.roam import Tally
from wayfare.core import messages as m
from wayfare.errors import UsageError
from wayfare.net import accounts, config
from wayfare.net.client import connect
from wayfare.net.network import start
from wayfare.net.subscription import Notification

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"
COMMAND = [sys.executable, "-m", "wayfare"]


class Program:
    """A command that runs, in a session of its own; nothing of it outlives the test."""

    def __init__(self, *arguments, stdin=subprocess.DEVNULL):
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=BUFFERED,
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
        )

    def line(self):
        """The next line that it prints."""
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.rstrip("\n")

    def told(self):
        """The next line on stderr."""
        return self.process.stderr.readline().rstrip("\n")

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.end()

    def end(self):
        """Its exit code, and the rest of what it printed, and told."""
        out, err = self.process.communicate(timeout=30)
        assert "Traceback" not in err, err
        return self.process.returncode, out, err


@contextmanager
def program(*arguments, **options):
    one = Program(*arguments, **options)
    try:
        yield one
    finally:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


def wayfare(*arguments, stdin=""):
    """Run to the end: the exit code, stdout, stderr."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=BUFFERED,
    )
    return done.returncode, done.stdout, done.stderr


@contextmanager
def broker(name, *options):
    """A broker at any free port, and its address."""
    with program("broker", "--name", name, "--listen", "127.0.0.1:0", "--json", *options) as one:
        facts = json.loads(one.line())
        assert facts["name"] == name
        yield one, facts["address"]


@contextmanager
def network(tmp_path, *links):
    """Brokers that are linked as `a-b` says: their addresses by name."""
    file = tmp_path / "city.toml"
    file.write_text(f"links = {json.dumps([one.split('-') for one in links])}\n")
    with program("network", "up", str(file), "--json") as one:
        rows = [json.loads(one.line()) for _ in range(len(links) + 1)]
        yield {row["name"]: row["address"] for row in rows}


@contextmanager
def subscriber(address, wanted, *options):
    with program("sub", address, wanted, *options) as one:
        assert one.told().startswith("wayfare: subscribed to ")
        yield one


# Certificates


def certificate_at(address, ca):
    host, _, port = address.removeprefix("wayfares://").rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as safe,
    ):
        return safe.getpeercert()["serialNumber"]


@pytest.mark.parametrize("kind", ["broker", "network"])
def test_a_broker_that_is_told_so_reads_its_certificate_again(tmp_path, kind):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")

    def renew():
        cert = ca.issue_cert("lisbon", "porto", "127.0.0.1")
        cert.private_key_pem.write_to_path(tmp_path / "our.key")
        cert.cert_chain_pems[0].write_to_path(tmp_path / "our.pem")

    renew()
    tls = "tls = { cert = 'our.pem', key = 'our.key', ca = 'ca.pem' }\n"
    if kind == "broker":
        text, words = f"name = 'lisbon'\nlisten = 'wayfares://127.0.0.1:0'\n{tls}", ["--config"]
    else:
        text, words = f"links = [['lisbon', 'porto']]\n{tls}", []
    command = ["broker"] if kind == "broker" else ["network", "up"]
    (tmp_path / "site.toml").write_text(text)
    options = ("--json", "--log-level", "info", "--log-format", "json")
    with program(*command, *words, str(tmp_path / "site.toml"), *options) as one:
        address = json.loads(one.line())["address"]
        assert address.startswith("wayfares://")

        def reloaded():
            one.process.send_signal(signal.SIGHUP)
            while (said := json.loads(one.told()))["event"] not in ("reloaded", "not_reloaded"):
                pass
            return said

        first = certificate_at(address, tmp_path / "ca.pem")
        renew()
        assert certificate_at(address, tmp_path / "ca.pem") == first
        assert reloaded()["event"] == "reloaded"
        second = certificate_at(address, tmp_path / "ca.pem")
        assert second != first
        (tmp_path / "our.pem").write_text("nonsense")
        if kind == "network":
            one.told()  # of the other broker
        said = reloaded()
        assert said["event"] == "not_reloaded"
        assert "our.pem is not what TLS needs" in said["reason"]
        assert certificate_at(address, tmp_path / "ca.pem") == second
        assert one.stop()[0] == 0


def test_a_network_needs_a_certificate_with_all_names(tmp_path):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    cert = ca.issue_cert("lisbon", "127.0.0.1")
    cert.private_key_and_cert_chain_pem.write_to_path(tmp_path / "our.pem")
    file = tmp_path / "city.toml"
    file.write_text("links = [['lisbon', 'porto']]\ntls = { cert = 'our.pem', key = 'our.pem' }\n")
    code, _, err = wayfare("network", "up", str(file))
    assert (code, "tls.ca is missing: brokers look at the certificates of each" in err) == (2, True)
    file.write_text(file.read_text().replace("}", ", ca = 'ca.pem' }"))
    code, _, err = wayfare("network", "up", str(file))
    assert code == 2
    assert "our.pem is of lisbon, and not of porto: all brokers of a network show this" in err


def test_a_broker_stops_when_its_terminal_is_closed():
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [*COMMAND, "broker", "--name", "a", "--listen", "127.0.0.1:0"])
    try:
        assert b"a listens at" in os.read(terminal, 1000)
        os.kill(child, signal.SIGHUP)
        time.sleep(0.3)
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it goes on: its terminal is there"
        os.close(terminal)
        ends = time.monotonic() + 20
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
            assert time.monotonic() < ends
            time.sleep(0.05)
        assert done == (child, 0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


# Permissions


def test_who_may_not_subscribe_is_not_told_that_it_did(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('name = "lisbon"\nlisten = "127.0.0.1:0"\naccounts = "accounts.toml"\n')
    (tmp_path / "password").write_text("sesame\n")
    accounts.add(
        tmp_path / "accounts.toml", "car", "sesame", {"subscribe": ["service = 'parking'"]}
    )
    with program("broker", "--config", str(file), "--json") as one:
        address = json.loads(one.line())["address"]
        who = ("--id", "car", "--password-file", str(tmp_path / "password"))
        for command in (
            ("sub", address, "price > 0", *who),
            ("roam", "price > 0", "--through", address, *who),
        ):
            code, out, err = wayfare(*command)
            assert code == 2
            assert "may not subscribe to price > 0: its account allows subscribe to service" in err
            assert "subscribed to" not in err + out
        with subscriber(address, "service = 'parking'", *who):
            pass


# Brokers


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_broker_says_where_it_listens_and_stops_cleanly(how):
    with program("broker", "--name", "lisbon", "--listen", "127.0.0.1:0") as one:
        name, listens, at, address = one.line().split()
        assert (name, listens, at) == ("lisbon", "listens", "at")
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as stranger:
            assert stranger.recv(100), "it says hello"
            assert one.stop(how) == (0, "", "")


def test_a_broker_stops_while_clients_are_there():
    with (
        broker("lisbon") as (lisbon, address),
        subscriber(address, "x > 0") as some,
    ):
        assert lisbon.stop() == (0, "", "")
        assert some.stop(signal.SIGINT)[0] == 130


def test_a_broker_as_its_file_says(tmp_path):
    file = tmp_path / "site.toml"
    text = (EXAMPLES / "site.toml").read_text("utf-8")
    assert text.count(":7410") == 2
    file.write_text(text.replace("127.0.0.1:7410", "127.0.0.1:0"), "utf-8")
    with program("broker", "--config", str(file)) as one:
        assert one.line().startswith("lisbon listens at wayfare://127.0.0.1:")
        assert one.stop() == (0, "", "")


def test_a_broker_with_a_disk_remembers_its_clients_when_it_was_killed(tmp_path):
    """Without, the client would be told that something may be lost: see further below."""
    file = tmp_path / "site.toml"

    def start(port):
        text = f'name = "lisbon"\nlisten = "127.0.0.1:{port}"\n'
        file.write_text(f'{text}[durability]\nmode = "disk"\ndirectory = "memory"\n')
        return program("broker", "--config", str(file))

    with start(0) as one:
        address = one.line().split()[-1]
        with subscriber(address, "x > 0", "-C", "1") as some:
            one.process.kill()
            one.process.wait()
            with start(address.rpartition(":")[2]) as again:
                assert again.line() == f"lisbon listens at {address}"
                assert wayfare("pub", address, "x=1")[:2] == (0, "published 1\n")
                assert some.end() == (0, "x=1\n", "")
    assert [path.name for path in (tmp_path / "memory").glob("*.db")] == ["broker.db"]


def test_a_memory_of_another_broker_is_refused(tmp_path):
    file = tmp_path / "site.toml"
    for name in ("lisbon", "porto"):
        file.write_text(
            f'name = "{name}"\nlisten = "127.0.0.1:0"\n'
            '[durability]\nmode = "os"\ndirectory = "memory"\n'
        )
        with program("broker", "--config", str(file)) as one:
            if name == "lisbon":
                assert one.line().startswith("lisbon listens at ")
                assert one.stop() == (0, "", "")
                assert is_put_away(tmp_path / "memory")
            else:
                code, out, err = one.end()
                assert (code, out, err.count("\n")) == (2, "", 1)
                assert "is the memory of lisbon, and this is porto" in err


def test_each_broker_of_a_network_has_a_memory_of_its_own(tmp_path):
    file = tmp_path / "city.toml"
    file.write_text('links = [["a", "b"]]\n[durability]\nmode = "os"\ndirectory = "all"\n')
    for _ in range(2):
        with program("network", "up", str(file), "--json") as one:
            assert [json.loads(one.line())["name"] for _ in range(2)] == ["a", "b"]
            assert one.stop() == (0, "", "")
            assert is_put_away(tmp_path / "all" / "a") and is_put_away(tmp_path / "all" / "b")
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"a", "b"}


def is_put_away(directory):
    """Whether a broker has stopped in peace: a snapshot, and no journal."""
    with closing(sqlite3.connect(directory / "broker.db")) as db:
        (snapshots,) = db.execute("SELECT count(*) FROM snapshot").fetchone()
        (turns,) = db.execute("SELECT count(*) FROM journal").fetchone()
    return (snapshots, turns) == (1, 0)


def test_brokers_in_processes_of_their_own_are_linked():
    with (
        broker("lisbon", "--neighbour", "porto") as (_, lisbon),
        broker("porto", "--neighbour", f"lisbon={lisbon}") as (_, porto),
        subscriber(porto, "x > 0", "-C", "1", "-W", "30") as some,
        program("pub", lisbon, "x=1", "--every", "0.2") as ticker,
    ):
        assert some.line() == "x=1"
        assert some.end()[0] == 0
        assert ticker.stop()[0] == 0


def test_a_port_in_use_is_one_clear_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        at = f"wayfare://127.0.0.1:{port}: Address already in use; choose another address, or stop"
        code, out, err = wayfare("broker", "--name", "a", "--listen", f"127.0.0.1:{port}")
        assert (code, out) == (2, "")
        assert err == f"wayfare: a cannot listen at {at} what listens there\n"
        file = tmp_path / "city.toml"
        file.write_text(f'links = [["a", "b"], ["b", "c"]]\n[brokers]\na = 0\nb = {port}\nc = 0\n')
        code, out, err = wayfare("network", "up", str(file))
        assert (code, out) == (2, "")
        assert err == f"wayfare: b cannot listen at {at} what listens there\n"


def test_a_host_that_is_not_here_is_one_clear_sentence():
    code, out, err = wayfare("broker", "--name", "a", "--listen", "nowhere.invalid")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("wayfare: a cannot listen at wayfare://nowhere.invalid:7410: ")
    assert err.endswith("; give a name or an address of this machine\n")


def test_nothing_of_a_network_is_left_when_a_part_cannot_start():
    async def attempt():
        before = asyncio.all_tasks()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            ports = f"[brokers]\na = 0\nb = {taken.getsockname()[1]}\n"
            city = config.parse(f'links = [["a", "b"]]\n{ports}')
            with pytest.raises(UsageError, match="b cannot listen"):
                await start(city)
        return asyncio.all_tasks() - before

    assert asyncio.run(attempt()) == set()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_network_shows_its_brokers_and_stops(tmp_path, how):
    file = tmp_path / "city.toml"
    text = (EXAMPLES / "city.toml").read_text("utf-8")
    for port in (7410, 7411, 7412, 7413, 9410):
        text = text.replace(f"= {port}", "= 0")
    file.write_text(text, "utf-8")
    with program("network", "up", str(file)) as one:
        shown = []
        while "Ctrl-C stops them" not in (line := one.line()):
            shown.append(line.split())
        rows = {row[0]: row[1:] for row in shown if row[1:] and row[1].startswith("wayfare://")}
        assert list(rows) == ["porto", "lisbon", "faro", "evora"]
        assert len({row[0] for row in rows.values()}) == 4
        assert rows["lisbon"][1:] == ["porto,", "faro,", "evora"]
        ports = [int(row[0].rpartition(":")[2]) for row in rows.values()]
        assert one.stop(how)[0] == 0
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass  # nobody is there any more


# Configuration


BAD = 'name = "lisbon"\nrouting = "covring"\n[limits]\naway = 0\n'


def test_a_bad_configuration_is_explained_by_file_line_and_key(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text(BAD)
    code, out, err = wayfare("broker", "--config", str(file))
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith(f'wayfare: {file}:2: routing is "covring": choose one of ')
    assert second.startswith(f"wayfare: {file}:4: limits.away is 0: give seconds")


def test_config_check(tmp_path, capsys):
    file = tmp_path / "site.toml"
    file.write_text(BAD)
    assert cli.main(["config", "check", str(file)]) == 2
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in out] == [
        [f"{file}:2:", "routing"],
        [f"{file}:4:", "limits.away"],
    ]
    assert cli.main(["config", "check", str(file), "--json"]) == 2
    facts = json.loads(capsys.readouterr().out)
    assert [(one["line"], one["key"]) for one in facts["mistakes"]] == [
        (2, "routing"),
        (4, "limits.away"),
    ]
    for name, says in (("site", "the broker lisbon at"), ("city", "a network of 4 brokers")):
        good = EXAMPLES / f"{name}.toml"
        assert cli.main(["config", "check", str(good)]) == 0
        assert capsys.readouterr().out.startswith(f"{good} is fine: {says}")
        assert cli.main(["config", "check", str(good), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"file": str(good), "mistakes": []}


def test_config_lists_its_keys(capsys):
    assert cli.main(["config", "keys"]) == 0
    assert "limits.away" in capsys.readouterr().out
    assert cli.main(["config", "keys", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (away,) = [row for row in rows if row["key"] == "limits.away"]
    assert (away["default"], away["file"]) == ('"7d"', "both")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["broker"], "a broker needs a name: give --config FILE, or --name NAME"),
        (["broker", "--name", "a b"], 'name is "a b": give a name'),
        (["broker", "--name", "a", "--listen", "x:y"], 'listen is "x:y": give a text like'),
        (["broker", "--name", "a", "--neighbour", "b=c:d"], 'neighbours.b is "c:d": give a text'),
        (["broker", "--name", "a", "--neighbour", "a"], "neighbours.a is this broker itself"),
        (["broker", "x.toml", "--config", "y.toml"], "which is it, x.toml or y.toml?"),
        (["broker", "x.toml", "--name", "a"], "the file has it all: leave --name"),
        (["broker", "--config", "x.toml", "--name", "a"], "the file has it all: leave --name"),
        (["broker", "--config", "/no/such.toml"], "cannot read /no/such.toml: No such file"),
        (
            ["broker", "--config", str(EXAMPLES / "city.toml")],
            "is a network: start it with wayfare",
        ),
        (
            ["network", "up", str(EXAMPLES / "site.toml")],
            "is one broker: start it with wayfare bro",
        ),
        (["sub", "a:b:c", "x > 0"], "'a:b:c' is no address"),
        (["sub", "::1", "x > 0"], "an IPv6 address is in brackets, like [::1]:7410"),
        (["pub", "a..b", "x=1"], "names of hosts have 1 to 63 characters between dots"),
        (["sub", "127.0.0.1", "x >"], "expected a value, found the end at column 4"),
        (["sub", "127.0.0.1", "x in myloc"], "the filter mentions myloc: say where this client is"),
        (["sub", "127.0.0.1", "x > 0", "--at", "R1"], "does not mention myloc: leave --at"),
        (["sub", "127.0.0.1", "x > my.y"], "mentions my.y: give it a value, like --state y=3"),
        (["sub", "127.0.0.1", "x > 0", "--state", "y=3"], "does not mention my.y: leave --state y"),
        (["sub", "127.0.0.1", "x > my.y", "--state", "y"], "'y' is no attribute: write name=value"),
        (["pub", "127.0.0.1"], "nothing to publish: give attributes, like free=3, or --json"),
        (["pub", "127.0.0.1", "free"], "'free' is no attribute: write name=value"),
        (["pub", "127.0.0.1", "a=1", "a=2"], "a is there twice"),
        (["pub", "127.0.0.1", "a=1", "--json"], "--json reads stdin: leave attributes"),
        (["pub", "127.0.0.1", "a=1", "--advertise", "a >"], "expected a value, found the end"),
        (["roam", "x > 0", "--through", ","], "--through needs the address of a broker"),
    ],
)
def test_bad_input_gets_one_clear_sentence(arguments, says, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("wayfare: ") and says in captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        "sub a x>0 -C 0",
        "sub a x>0 -W -1",
        "pub a x=1 --every soon",
        "pub a x=1 --count 1.5",
        "config",
    ],
)
def test_wrong_usage_exits_with_2(arguments):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments.split())


# Clients


def test_publish_and_subscribe(tmp_path):
    with (
        network(tmp_path, "porto-lisbon", "lisbon-faro") as at,
        subscriber(at["porto"], "service = 'parking' and free > 0", "-C", "2") as text,
        subscriber(at["faro"], "free > 0", "-C", "2", "--json", "--id", "faro-1") as lines,
    ):
        words = ["service=parking", "place=Praça da Figueira", "free=3", "open=true", "zip='0800'"]
        told = wayfare("pub", at["lisbon"], *words, "--payload", "só", "--count", "2", "--id", "p")
        assert told == (0, "published 2\n", "")
        shown = "service='parking' place='Praça da Figueira' free=3 open=true zip='0800' (3 bytes)"
        assert text.end() == (0, f"{shown}\n{shown}\n", "")
        code, out, _ = lines.end()
        assert code == 0
        first, second = [json.loads(line) for line in out.splitlines()]
        assert second == first | {"number": first["number"] + 1}
        del first["number"]
        attributes = {"service": "parking", "place": "Praça da Figueira", "free": 3, "open": True}
        attributes["zip"] = "0800"
        assert first == {"publisher": "p", "attributes": attributes, "payload": "só"}


def test_a_payload_may_be_any_bytes_and_texts_of_others_do_nothing_to_a_terminal():
    with broker("lisbon") as (_, address), subscriber(address, "free > 0", "-C", "2") as in_words:
        with subscriber(address, "free > 0", "-C", "1", "--json") as in_json:
            words = ["free=3", "place=red \x1b[31m\nhi"]
            told = wayfare("pub", address, *words, "--payload", b"\xff\xfe", "--count", "2")
            assert told == (0, "published 2\n", "")
            assert json.loads(in_json.line())["payload_base64"] == "//4="
        assert in_words.line() == "free=3 place='red ?[31m?hi' (2 bytes)"


def test_lines_of_one_network_can_be_published_in_another(tmp_path):
    """`wayfare sub --json | wayfare pub --json`, and lines that people write."""
    lines = [
        '{"free": 3, "place": "A"}',
        "",
        '{"publisher": "p", "number": 7, "attributes": {"free": 4}, "payload_base64": "gIE="}',
        '{"attributes": {"free": 5}, "payload": "text"}',
    ]
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(lines))
    with broker("lisbon") as (_, address):
        for number, feed in enumerate((f"cat {file} |", f"< {file}")):
            with subscriber(address, "free > 0", "-C", "3", "--json") as some:
                command = f"{feed} {shlex.join([*COMMAND, 'pub', address, '--json', '--id', f'q{number}'])}"
                done = subprocess.run(
                    ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
                )
                assert (done.returncode, done.stdout, done.stderr) == (0, "published 3\n", "")
                code, out, _ = some.end()
                assert code == 0
                got = [json.loads(line) for line in out.splitlines()]
                assert [
                    (one["attributes"]["free"], one.get("payload"), one.get("payload_base64"))
                    for one in got
                ] == [(3, None, None), (4, None, "gIE="), (5, "text", None)]


BAD_LINES = [
    ("{", "line 2 is no notification in JSON: Expecting property name"),
    ("[1]", "line 2 is no notification in JSON: give an object of attributes"),
    ("{}", "line 2 is no notification in JSON: give an object of attributes"),
    ('{"attributes": {}}', "line 2 is no notification in JSON: give an object of attributes"),
    ('{"attributes": {"x": 1}, "payload": 3}', "line 2 is no notification in JSON: its payload"),
    ('{"attributes": {"x": 1}, "payload_base64": "?"}', "line 2 is no notification in JSON: "),
    ('{"x": [1]}', "x is a list; attributes are"),
]


def test_a_bad_line_is_one_clear_sentence():
    with broker("lisbon") as (_, address):
        for line, says in BAD_LINES:
            lines = f'{{"x": 1}}\n{line}\n'
            code, out, err = wayfare("pub", address, "--json", stdin=lines)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert err.startswith("wayfare: ") and says in err


def test_pub_exits_with_1_if_it_is_stopped_before_its_end():
    with broker("lisbon") as (_, address), subscriber(address, "n = 1") as reader:
        for more, code in ((["--count", "100"], 1), ([], 0)):
            options = ("--every", "0.05", *more)
            with program("pub", address, "n=1", *options) as one:
                assert reader.line()
                assert one.stop()[0] == code


def test_pub_quenched_sleeps_until_somebody_is_interested_and_again_when_nobody_is(tmp_path):
    waiting = "wayfare: nobody is interested in n = 1: waiting"
    publishing = "wayfare: somebody is interested in n = 1: publishing"
    options = ("--every", "0.05", "--quench")
    with network(tmp_path, "porto-lisbon") as at:
        with program("pub", at["porto"], "n=1", *options, "--count", "1") as one:
            assert one.told() == waiting
            assert one.stop()[0] == 1, "it has published nothing"
        with program("pub", at["porto"], "n=1", *options) as one:
            for _ in range(2):
                assert one.told() == waiting
                with subscriber(at["lisbon"], "n > 0") as reader:
                    assert one.told() == publishing
                    assert reader.line() == "n=1"
                    assert reader.stop()[0] == 0
            assert one.told() == waiting
            assert one.stop() == (0, "", "")
        with subscriber(at["lisbon"], "n > 0", "-C", "2") as reader:
            told = wayfare("pub", at["porto"], "n=1", "--quench", "--every", "0.05", "--count", "2")
            assert told == (0, "published 2\n", "")
            assert reader.end()[0] == 0


def test_what_is_not_confirmed_is_told_and_the_command_goes_on(capsys):
    """A neighbour that is gone confirms nothing."""

    async def main():
        async with tree("alone-gone") as net:
            publisher = await connect(net.url("gone"))
            await publisher.advertise("x > 0")
            await net.brokers["gone"].stop()
            async with connect(net.url("alone")) as client:
                some = client.subscribe("x > 0")
                await running.until_ready(some, 0.3)
                assert client.broker == "alone"
            await publisher.close(0)

    asyncio.run(main())
    assert "x > 0 is not confirmed after 0.3 s: no answer from the brokers behind gone" in (
        capsys.readouterr().err
    )


def test_sub_follows_where_it_is_said_to_be():
    with broker("lisbon") as (_, address):
        wanted = "location in myloc and free >= my.need"
        with (
            subscriber(address, wanted, "--at", "R1", "--state", "need=2", "-C", "1") as some,
            subscriber(address, "near(myloc, 500)", "--at", "52.5163,13.3777", "-C", "1") as near,
        ):
            for location, free in (("R1", 1), ("R2", 2), ("R1", 3)):
                wayfare("pub", address, f"location={location}", f"free={free}")
            assert some.line() == "location='R1' free=3"
            assert some.end()[0] == 0
            wayfare("pub", address, "lat=52.5170", "lon=13.3780")
            assert near.line() == "lat=52.517 lon=13.378"
            assert near.end()[0] == 0


def test_what_is_of_the_past_is_shown_as_such():
    one = Notification(m.Notification("city", 1, {"free": 3}), past=True)
    assert notation.as_text(one) == "free=3 (past)"
    assert json.loads(notation.as_json(one))["past"] is True


def test_sub_exits_with_1_if_it_got_less_than_it_was_told_to_wait_for():
    with broker("lisbon") as (_, address):
        code, out, err = wayfare("sub", address, "x > 0", "-C", "1", "-W", "0.3")
        assert (code, out, err) == (1, "", "wayfare: subscribed to x > 0 at lisbon\n")
        assert wayfare("sub", address, "x > 0", "-W", "0.3")[0] == 0
        with subscriber(address, "x > 0", "-C", "1") as some:
            assert some.stop(signal.SIGTERM)[0] == 1
        with subscriber(address, "x > 0") as some:
            assert some.stop(signal.SIGTERM)[0] == 0


def test_sub_says_for_how_long_it_may_slow_publishers(tmp_path):
    events = tmp_path / "events.jsonl"
    with broker("lisbon") as (_, address):
        slow = ("x > 0", "-W", "0.1", "--slow-publishers", "0.5")
        assert wayfare("sub", address, *slow, "--group", "workers")[0] == 0
        assert wayfare("sub", address, *slow, "--events", str(events))[0] == 0
    assert "slows publishers for 0.5 s" in events.read_text()


def test_sub_says_when_something_may_be_lost():
    with broker("lisbon") as (lisbon, address), subscriber(address, "x > 0") as some:
        assert lisbon.stop()[0] == 0
        port = address.rpartition(":")[2]
        with program("broker", "--name", "lisbon", "--listen", f"127.0.0.1:{port}") as again:
            assert again.line().startswith("lisbon listens")
            assert some.told().startswith("wayfare: notifications may have been lost: no session")
            assert wayfare("pub", address, "x=1")[0] == 0
            assert some.line() == "x=1", "and goes on"


@pytest.mark.parametrize(
    "command", ["sub ADDRESS x>0", "pub ADDRESS x=1", "roam x>0 --through ADDRESS"]
)
@pytest.mark.parametrize(
    ("address", "says"),
    [("nowhere.invalid", "nowhere.invalid:7410"), ("127.0.0.1:1", "127.0.0.1:1")],
)
def test_a_broker_that_is_not_there_is_one_clear_sentence(command, address, says):
    words = [address if word == "ADDRESS" else word for word in command.split()]
    code, out, err = wayfare(*words, "--timeout", "0.5")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"wayfare: cannot reach a broker at wayfare://{says} within 0.5 s: ")


def test_pub_exits_with_1_without_an_acknowledgement():
    with broker("lisbon") as (lisbon, address):
        with program("pub", address, "x=1", "--every", "0.1", "--timeout", "1") as ticker:
            with subscriber(address, "x > 0", "-C", "1") as some:
                some.line()
            os.kill(lisbon.process.pid, signal.SIGSTOP)
            code, out, err = ticker.end()
            os.kill(lisbon.process.pid, signal.SIGCONT)
        assert (code, out) == (1, "")
        assert err == "wayfare: no acknowledgement within 1 s: it may be lost\n"


def test_ctrl_c_stops_a_publisher_that_waits_for_lines():
    with (
        broker("lisbon") as (_, address),
        subscriber(address, "x > 0") as some,
        program("pub", address, "--json", stdin=subprocess.PIPE) as one,
    ):
        one.process.stdin.write('{"x": 1}\n')
        one.process.stdin.flush()
        assert some.line() == "x=1"
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(10) == 130, "though nobody has closed its stdin"


def test_a_reader_who_has_left_ends_a_subscriber():
    with broker("lisbon") as (_, address):
        reader, writer = os.pipe()
        with subprocess.Popen(
            [*COMMAND, "sub", address, "x > 0"], stdout=writer, stderr=subprocess.PIPE, text=True
        ) as some:
            os.close(writer)
            os.close(reader)
            assert some.stderr.readline().startswith("wayfare: subscribed")
            assert wayfare("pub", address, "x=1")[0] == 0
            assert (some.wait(30), some.stderr.read()) == (141, "")


def test_roam_moves_and_misses_nothing(tmp_path):
    with network(tmp_path, "porto-lisbon", "lisbon-faro") as at, ExitStack() as stack:
        stack.enter_context(program("pub", at["lisbon"], "x=1", "--every", "0.02", "--id", "p"))
        through = f"{at['porto']},{at['faro']},{at['lisbon']}"
        code, out, err = wayfare("roam", "x > 0", "--through", through, "--every", "0.7", "--json")
        assert (code, err) == (0, "")
        *lines, summary = [json.loads(line) for line in out.splitlines()]
        assert [one["moved_to"] for one in lines if "moved_to" in one] == ["faro", "lisbon"]
        numbers = [one["number"] for one in lines if "number" in one]
        assert len(numbers) > 20
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert summary["summary"] == {
            "received": len(numbers),
            "duplicates": 0,
            "out_of_order": 0,
            "lost": 0,
            "unsure": 0,
            "moves": 2,
        }
        with program("roam", "x > 0", "--through", through, "--every", "0.1") as one:
            assert one.told() == "wayfare: subscribed to x > 0 at porto"
            code, out, err = one.end()
        assert code == 0
        assert err.splitlines() == ["wayfare: moved to faro", "wayfare: moved to lisbon"]
        assert out.splitlines()[-1].startswith("2 moves: ")
        assert out.splitlines()[-1].endswith(" received, 0 twice, 0 out of order, 0 lost")


def test_roam_sums_up_when_it_is_stopped():
    with (
        broker("lisbon") as (_, address),
        program("roam", "x > 0", "--through", address, "--every", "60") as one,
    ):
        assert one.told() == "wayfare: subscribed to x > 0 at lisbon"
        code, out, err = one.stop(signal.SIGINT)
        assert (code, err) == (130, "wayfare: stopped\n")
        assert out == "0 moves: 0 received, 0 twice, 0 out of order, 0 lost\n"


def test_a_tally_counts_as_the_application_sees_it(capsys):
    tally = Tally()
    for publisher, number in (
        ("p", 7),
        ("q", 1),
        ("p", 9),
        ("p", 8),
        ("p", 9),
        ("q", 1),
        ("p", 10),
    ):
        tally.take(Notification(m.Notification(publisher, number, {}, b"")))
    assert tally.facts() == {
        "received": 7,
        "duplicates": 2,
        "out_of_order": 1,
        "lost": 0,
        "unsure": 0,
        "moves": 0,
    }
    assert tally.code() == 1
    tally.lose(3, "too many")
    tally.lose(0, "nobody knows")
    assert capsys.readouterr().err.splitlines() == [
        "wayfare: 3 notifications were lost: too many",
        "wayfare: notifications may have been lost: nobody knows",
    ]
    assert str(tally) == (
        "0 moves: 7 received, 2 twice, 1 out of order, 3 lost (and 1 times something may be)"
    )


@pytest.mark.parametrize("wrong", ["duplicates", "out_of_order", "lost", "unsure"])
def test_whatever_went_wrong_is_in_the_exit_code(wrong):
    tally = Tally()
    assert tally.code() == 0
    setattr(tally, wrong, 1)
    assert tally.code() == 1


# What Tab offers, and help

COMPLETED = [
    ("", " ".join(cli.PARTS).replace("broker", "broker network")),
    ("ne", "network"),
    ("network ", "up"),
    ("config ", "check keys"),
    ("config check ", ""),
    ("broker --config ", ""),
    ("broker --log-level ", "debug info warning error"),
    ("sim fuzz --routing m", "merging"),
    ("sim fuzz --see", "--seeds"),
    ("sim ", "fuzz roaming city location blackout placement service"),
    ("roam --th", "--through"),
    ("completion ", "bash zsh fish"),
]


@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_bash_completes(typed, offered, capsys):
    assert cli.main(["completion", "bash"]) == 0
    words = ["wayfare", *typed.split(" ")]
    script = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}\n"
        '_wayfare; echo "${COMPREPLY[*]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{offered}\n", "")


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_completion_knows_every_command_and_option(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (
        "network up",
        "config check",
        "sim fuzz",
        "roam",
        "through",
        "log-level",
        "merging",
    ):
        assert word in script


def test_every_command_has_examples(capsys):
    for words in (
        "broker",
        "network",
        "network up",
        "pub",
        "sub",
        "roam",
        "config",
        "config check",
    ):
        with pytest.raises(SystemExit, match="0"):
            cli.main([*words.split(), "--help"])
        shown = capsys.readouterr().out
        assert "examples:\n  wayfare" in shown
        examples = [line.strip() for line in shown.partition("examples:")[2].splitlines()]
        for line in examples:
            if line.startswith("wayfare "):
                for command in line.split("  ")[0].split(" | "):
                    cli.parser().parse_args(shlex.split(command)[1:])


# Attributes as people write them


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("free=3 service=parking", {"free": 3, "service": "parking"}),
        (
            "a=-1 b=+2 c=0.5 d=1e3 e=.5 f=5.",
            {"a": -1, "b": 2, "c": 0.5, "d": 1e3, "e": 0.5, "f": 5.0},
        ),
        ("a=true b=false c=True d='true'", {"a": True, "b": False, "c": "True", "d": "true"}),
        ("c=0x10 d=1_000", {"c": "0x10", "d": "1_000"}),
        ("street=Rua do Ouro free=3", {"street": "Rua do Ouro", "free": 3}),
        ("name='it''s x=1' free=3", {"name": "it's x=1", "free": 3}),
        ("url=http://h/?a=b&c=d x=''", {"url": "http://h/?a=b&c=d", "x": ""}),
        ("a= b=", {"a": "", "b": ""}),
        ("  a=1\n b=2 ", {"a": 1, "b": 2}),
    ],
)
def test_attributes_are_typed(text, attributes):
    found = notation.attributes_of(text)
    assert found == attributes
    assert [type(one) for one in found.values()] == [type(one) for one in attributes.values()]
