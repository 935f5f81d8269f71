"""`wayfare emulate`: real processes, what they say, and what they say when it makes no sense."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from test_live_cli import broker, program, subscriber, wayfare
from wayfare import cli
from wayfare.channel import PROFILES
from wayfare.cli import emulate


@contextmanager
def emulator(*options):
    with program("emulate", "--json", *options, stdin=subprocess.PIPE) as one:
        yield one, json.loads(one.line())


def say(one, line):
    one.process.stdin.write(f"{line}\n")
    one.process.stdin.flush()


@contextmanager
def server():
    with socket.create_server(("127.0.0.1", 0)) as one:
        one.settimeout(20)
        yield one, f"127.0.0.1:{one.getsockname()[1]}"


def connect(facts):
    return socket.create_connection(("127.0.0.1", facts["port"]), timeout=20)


def test_a_subscriber_over_gprs_gets_what_is_published_and_ctrl_c_sums_up():
    with broker("lisbon") as (_, address):
        to = address.removeprefix("wayfare://")
        with (
            emulator("--to", to, "--set", "latency=50ms") as (one, facts),
            subscriber(f"127.0.0.1:{facts['port']}", "free > 0") as sub,
        ):
            assert wayfare("pub", address, "free=3")[0] == 0
            assert "free" in sub.line()
            code, out, err = one.stop(signal.SIGINT)
            assert (code, err) == (0, "")
            summary = json.loads(out)
            assert summary["connections"] == 1
            assert summary["down"]["bytes"] > 0 < summary["up"]["bytes"]
            assert summary["down"]["mean_delay_ms"] > 50
            assert facts["to"] == to


@pytest.mark.parametrize("how", ["lines", "signals"])
def test_a_tunnel_of_the_command_line(how):
    with server() as (there, to), emulator("--profile", "lan", "--to", to) as (one, facts):

        def does(what):
            if how == "signals":
                one.process.send_signal(signal.SIGUSR1)
            else:
                say(one, what)
            assert json.loads(one.line()) == {"did": what}

        with connect(facts) as near, there.accept()[0] as far:
            far.settimeout(20)
            near.sendall(b"1")
            assert far.recv(1) == b"1"
            does("cut")
            near.sendall(b"2")
            far.settimeout(0.3)
            with pytest.raises(TimeoutError):
                far.recv(1)
            does("restore")
            far.settimeout(20)
            assert far.recv(1) == b"2"


def test_connections_can_be_broken_and_moved_and_what_makes_no_sense_is_told():
    with (
        server() as (first, to),
        server() as (second, other),
        emulator("--profile", "lan", "--to", to) as (one, facts),
    ):
        with connect(facts) as near, first.accept()[0]:
            say(one, "cut reset")
            with pytest.raises(ConnectionResetError):
                near.recv(1)
        say(one, "restore")
        say(one, "jump")
        assert one.told() == (
            "wayfare: 'jump' does nothing: say cut, cut reset, restore or move HOST:PORT"
        )
        say(one, "move nowhere")
        assert one.told() == "wayfare: 'nowhere' is no place: write a port, or host:port"
        say(one, f"move {other}")
        done = [json.loads(one.line())["did"] for _ in range(3)]
        assert done == ["cut reset", "restore", f"move {other}"]
        with connect(facts), second.accept()[0]:
            assert one.stop()[0] == 0


def test_two_places_over_one_link_in_words():
    with (
        server() as (_, to),
        server() as (_, other),
        program("emulate", "--to", to, "--to", other) as one,
    ):
        assert [one.line().partition(" to ")[2] for _ in range(2)] == [to, other]
        code, out, err = one.stop()
        assert (code, err) == (0, "")
        assert "connections   0, 0 of them refused" in out
        assert "0 bytes in 0 packets, 0 sent again; - ms on average" in out


def test_a_target_that_does_not_answer_is_told_in_a_sentence():
    with server() as (_, to):
        pass
    with emulator("--profile", "lan", "--to", to) as (one, facts):
        with connect(facts) as near, pytest.raises(ConnectionResetError):
            near.recv(1)
        assert one.told() == (
            f"wayfare: cannot reach {to} (Connection refused), so a connection was reset:"
            " start what should listen there, or give another --to"
        )
        code, out, _ = one.stop()
        assert (code, json.loads(out)["refused"]) == (0, 1)


def test_it_does_not_read_the_terminal_of_a_shell_in_its_background(monkeypatch):
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    assert emulate._has_stdin()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    assert not emulate._has_stdin()


def test_it_needs_no_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not emulate._has_stdin()


def test_a_port_in_use_is_told_in_a_sentence(capsys):
    with server() as (_, to):
        for first in ([], ["--listen", "0", "--to", to]):
            assert cli.main(["emulate", *first, "--listen", to, "--to", to]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert err == (
                f"wayfare: cannot listen at {to} (Address already in use): choose another port,"
                " or stop what listens there\n"
            )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--profile", "umts", "--to", "1"], "there is no profile 'umts': take one of gprs,"),
        ([], "there is nothing to connect to: give --to HOST:PORT"),
        (["--to", "1", "--listen", "2", "--listen", "3"], "--listen was given 2 times and --to 1"),
        (["--to", "1", "--set", "speed=3"], "'speed=3' sets nothing: write NAME=VALUE"),
        (["--to", "1", "--set", "error=2"], "error is a share from 0 to below 1"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(options, why, capsys):
    assert cli.main(["emulate", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"wayfare: {why}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("::1", "it has too many colons; an IPv6 address is in brackets, like [::1]:PORT"),
        ("a..b:80", "names of hosts have 1 to 63 characters between dots"),
        (f"{'x' * 64}:80", "names of hosts have 1 to 63 characters between dots"),
        ("host", "write a port, or host:port"),
    ],
)
def test_where_no_connection_can_go_is_told_before_one_comes(to, why, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["emulate", "--to", to])
    assert f"argument --to: {to!r} is no place: {why}\n" in capsys.readouterr().err


def test_profiles_are_listed_for_programs_too(capsys):
    assert cli.main(["emulate", "--profile", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == PROFILES.keys()


def test_a_signal_that_nobody_hears_of_ends_it():
    with server() as (_, to), program("emulate", "--to", to) as one:
        one.line()
        one.process.stdout.close()
        one.process.send_signal(signal.SIGUSR1)
        assert (one.process.wait(20), one.process.stderr.read()) == (141, "")
