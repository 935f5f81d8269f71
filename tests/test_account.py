"""`wayfare account`, and clients of the command line that log in."""

import fcntl
import io
import json
import os
import pty
import subprocess
import sys
import termios
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import pytest
import trustme

from test_cli import BUFFERED
from test_live_cli import Program
from wayfare import cli
from wayfare.net.accounts import Accounts

COMMAND = [sys.executable, "-m", "wayfare"]


def wayfare(*arguments, stdin="", **environment):
    """A command that ends soon, in this process: its exit code, and what it printed and told."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = cli.main([*map(str, arguments)])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "accounts.toml"


def test_accounts_are_added_listed_and_removed(file):
    assert wayfare("account", "add", file, "anna", "--password-stdin", stdin="open\n") == (
        0,
        "added anna\n",
        "",
    )
    lists = ("--client", "car-*", "--client", "bus", "--subscribe", "service = 'parking'")
    wayfare("account", "add", file, "fleet", "--password-stdin", *lists, stdin="sesame")
    wayfare("account", "add", file, "anna", "--password-stdin", stdin="new\r\n")
    known = Accounts(file)
    assert known.verify("anna", "new")
    assert known.verify("fleet", "sesame")
    code, out, _ = wayfare("account", "list", file, "--json")
    assert (code, [json.loads(line) for line in out.splitlines()]) == (
        0,
        [
            {
                "name": "anna",
                "clients": [],
                "subscribe": None,
                "publish": None,
                "advertise": None,
            },
            {
                "name": "fleet",
                "clients": ["car-*", "bus"],
                "subscribe": ["service = 'parking'"],
                "publish": None,
                "advertise": None,
            },
        ],
    )
    assert wayfare("account", "list", file)[1].splitlines()[4:] == [
        "fleet",
        "  clients    car-*, bus",
        "  subscribe  service = 'parking'",
        "  publish    everything",
        "  advertise  everything",
    ]
    assert "argon2" not in out
    assert wayfare("account", "remove", file, "anna") == (0, "removed anna\n", "")
    assert wayfare("account", "remove", file, "anna") == (
        2,
        "",
        f"wayfare: there is no account anna in {file}\n",
    )


def test_a_filter_that_cannot_be_parsed_changes_nothing(file):
    code, _, told = wayfare(
        "account", "add", file, "anna", "--password-stdin", "--publish", "x >", stdin="open"
    )
    assert code == 2
    assert "account 'anna':" in told
    assert not file.exists()


def typed(file, *lines):
    """What happens when these lines are typed, on a terminal of its own: exit code and screen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "account", "add", str(file), "anna"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=BUFFERED,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    screen, left = b"", list(lines)
    while True:
        try:
            data = os.read(ours, 1000)
        except OSError:  # the terminal is gone
            break
        if not data:
            break
        screen += data
        if left and screen.endswith((b"Password for anna: ", b"Once more: ")):
            os.write(ours, left.pop(0).encode() + b"\n")
    os.close(ours)
    return process.wait(30), screen.decode()


def test_a_password_is_asked_for_twice_and_not_shown(file):
    code, screen = typed(file, "sesame", "sesame")
    assert (code, "sesame" in screen) == (0, False)
    assert Accounts(file).verify("anna", "sesame")
    code, screen = typed(file, "sesame", "sesamo")
    assert code == 2
    assert "these were two different passwords: try again" in screen


def test_without_a_terminal_nothing_is_asked(file):
    assert wayfare("account", "add", file, "anna") == (
        2,
        "",
        "wayfare: there is no terminal to ask for a password: give --password-stdin\n",
    )


def test_clients_of_the_command_line_say_who_they_are(tmp_path):
    """A broker with TLS and accounts, as its file says; one client publishes, one subscribes."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    cert = ca.issue_cert("porto", "127.0.0.1")
    cert.private_key_pem.write_to_path(tmp_path / "porto.key")
    cert.cert_chain_pems[0].write_to_path(tmp_path / "porto.pem")
    accounts = tmp_path / "accounts.toml"
    for name in ("anna", "tom"):
        wayfare("account", "add", accounts, name, "--password-stdin", stdin=f"{name}-opens")
    (tmp_path / "anna.txt").write_text("anna-opens\nmore\n", "utf-8")
    site = tmp_path / "site.toml"
    site.write_text(
        """
        name = "porto"
        listen = "wayfares://127.0.0.1:0"
        accounts = "accounts.toml"
        tls.cert = "porto.pem"
        tls.key = "porto.key"
        """,
        "utf-8",
    )
    porto = Program("broker", "--config", str(site), "--json")
    try:
        url = json.loads(porto.line())["address"]
        assert url.startswith("wayfares://")
        trusted = ("--ca", tmp_path / "ca.pem")
        anna = Program(
            *map(str, ("sub", url, "x > 0", "--json", "--count", "1", "--id", "anna", *trusted)),
            *("--password-file", str(tmp_path / "anna.txt")),
        )
        assert anna.told() == "wayfare: subscribed to x > 0 at porto"
        said = wayfare(
            *("pub", url, "x=7", "--id", "tom", *trusted),
            WAYFARE_PASSWORD="tom-opens",
        )
        assert said[0] == 0, said
        code, out, _ = anna.end()
        assert (code, "7" in out) == (0, True)
        code, _, told = wayfare("pub", url, "x=7", "--id", "tom", *trusted)
        assert code != 0
        assert "tom has not logged in: porto wants an account and its password" in told
    finally:
        porto.stop()


def test_an_account_needs_a_password(capsys, monkeypatch):
    monkeypatch.delenv("WAYFARE_PASSWORD", raising=False)
    assert cli.main(["pub", "127.0.0.1", "x=1", "--account", "anna"]) == 2
    assert capsys.readouterr().err == (
        "wayfare: anna needs a password: give --password-file, or set WAYFARE_PASSWORD\n"
    )
    command = ["pub", "127.0.0.1", "x=1", "--password-file", "nowhere.txt"]
    assert cli.main(command) == 2
    assert "cannot read the password in nowhere.txt: " in capsys.readouterr().err


def test_a_password_is_rotated_and_both_count_until_it_is_finished(file):
    wayfare(
        "account", "add", file, "anna", "--password-stdin", "--deny-publish", "x > 5", stdin="a"
    )
    code, out, _ = wayfare("account", "rotate", file, "anna", "--password-stdin", stdin="b")
    assert (code, out) == (
        0,
        "anna has a new password; the previous one counts until --finish\n",
    )
    known = Accounts(file)
    assert [bool(known.verify("anna", one)) for one in ("a", "b", "c")] == [True, True, False]
    assert wayfare("account", "rotate", file, "anna", "--finish")[0] == 0
    known = Accounts(file)
    assert [bool(known.verify("anna", one)) for one in ("a", "b")] == [False, True]
    assert 'deny_publish = ["x > 5"]' in file.read_text("utf-8")
    code, _, told = wayfare("account", "rotate", file, "anna", "--finish")
    assert (code, "no rotation is under way" in told) == (2, True)


def test_a_rotation_ends_by_itself(file):
    wayfare("account", "add", file, "anna", "--password-stdin", stdin="a")
    code, out, _ = wayfare(
        "account", "rotate", file, "anna", "--for", "1d", "--password-stdin", stdin="b"
    )
    assert (code, "counts until 20" in out) == (0, True)
    later = wayfare("account", "show", file, "anna")[1]
    assert "previous password counts until 20" in later
    text = file.read_text("utf-8")
    start = text.index("previous_expires = ") + len("previous_expires = ")
    file.write_text(text[:start] + "2020-01-01T00:00:00Z\n", "utf-8")
    assert not Accounts(file).verify("anna", "a")
    file.write_text(text[:start] + "5\n", "utf-8")
    code, _, told = wayfare("account", "list", file)
    assert code == 2
    assert "previous_expires is 5: give a time like 2026-12-01T00:00:00Z" in told


def test_quotas_and_deny_rules_are_written_and_shown(file):
    code, _, told = wayfare(
        *("account", "add", file, "fleet", "--password-stdin", "--client", "car-*"),
        *("--deny-client", "car-0*", "--deny-subscribe", "level > 5"),
        *("--publications-per-second", "100", "--sessions", "0"),
        stdin="sesame",
    )
    assert (code, told) == (0, "")
    assert json.loads(wayfare("account", "show", file, "fleet", "--json")[1]) == {
        "name": "fleet",
        "clients": ["car-*"],
        "subscribe": None,
        "publish": None,
        "advertise": None,
        "deny_subscribe": ["level > 5"],
        "deny_clients": ["car-0*"],
        "publications_per_second": 100,
        "sessions": 0,
    }
    shown = wayfare("account", "show", file, "fleet")[1].splitlines()
    assert "  deny_subscribe  level > 5" in shown
    assert "  publications_per_second 100" in shown
    assert "  sessions unlimited" in shown
    known = Accounts(file)
    assert known.owner("car-17").name == "fleet"
    assert known.owner("car-017") is None
    assert "deny_clients" in known.refusal(known.get("fleet"), "car-017")
    code, _, told = wayfare("account", "show", file, "nobody")
    assert (code, told) == (2, f"wayfare: there is no account nobody in {file}\n")
    file.write_text(file.read_text("utf-8") + "connections = -1\n", "utf-8")
    assert "connections is -1: give a whole number" in wayfare("account", "list", file)[2]


@pytest.mark.parametrize("key", ["memory", "disk"])
def test_memory_and_disk_are_sizes_in_the_file_and_as_they_are_shown(file, key):
    wayfare("account", "add", file, "anna", "--password-stdin", f"--{key}", "64MiB", stdin="open\n")
    assert f'{key} = "64MiB"' in file.read_text("utf-8")
    assert f"  {key} 64MiB" in wayfare("account", "show", file, "anna")[1]
    _, out, _ = wayfare("account", "show", file, "anna", "--json")
    assert json.loads(out)[key] == 64 * 2**20
    wrong = ("account", "add", file, "ben", "--password-stdin", f"--{key}", "64M")
    with pytest.raises(SystemExit):
        wayfare(*wrong, stdin="open\n")
