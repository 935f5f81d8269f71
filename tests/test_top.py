"""`wayfare top`: what brokers do, live."""

import json
import os
import pty
import select
import signal
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from rich.console import Console

from test_cli import BUFFERED
from test_live_cli import COMMAND, program, subscriber, wayfare
from wayfare import cli
from wayfare.cli.top import Look, binary, draw, duration, rates_of, short
from wayfare.net.broker import BrokerHost
from wayfare.net.status import AccountMemory, status_of


@contextmanager
def city(tmp_path):
    """A network that tells its status: the file, the port of the status, and the addresses."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = tmp_path / "city.toml"
    file.write_text(f'links = [["porto", "lisbon"], ["lisbon", "faro"]]\n[status]\nport = {port}\n')
    with program("network", "up", str(file), "--json") as one:
        rows = [json.loads(one.line()) for _ in range(3)]
        yield file, port, {row["name"]: row["address"] for row in rows}


def test_top_shows_every_broker_of_a_network(tmp_path):
    with (
        city(tmp_path) as (file, port, at),
        subscriber(at["porto"], "x > 0") as anna,
        program("pub", at["faro"], "x=1", "--every", "0.02"),
    ):
        assert "x=1" in anna.line()  # so the publisher is attached
        code, out, err = wayfare("top", str(file), "--once")
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert all(len(line) <= 80 for line in lines)
        names = lines[0].split()
        end = lines.index("")
        rows = {
            line.split()[0]: dict(zip(names, line.split(), strict=True)) for line in lines[2:end]
        }
        assert list(rows) == ["porto", "lisbon", "faro"]
        assert [rows[name]["links"] for name in rows] == ["1/1", "2/2", "1/1"]
        assert [rows[name]["here"] for name in rows] == ["1", "0", "1"]
        assert float(rows["porto"]["out/s"]) > 1
        assert float(rows["lisbon"]["in/s"]) > 1
        assert rows["lisbon"]["out/s"] == "0"

        titles, _, *kept = (line.split() for line in lines[end + 1 :])
        assert titles == ["broker", *"memory limit used disk limit used shed slowed values".split()]
        assert [row[0] for row in kept] == [*rows]
        assert all(row[3] == "0%" and row[4:] == ["0", "none", "-", "0", "0", "0"] for row in kept)

        code, out, err = wayfare("top", f"http://127.0.0.1:{port}/status", "--once", "--json")
        assert (code, err) == (0, "")
        facts = json.loads(out)
        assert facts["troubles"] == []
        porto = facts["brokers"][0]
        assert (porto["status"]["name"], porto["status"]["address"]) == ("porto", at["porto"])
        assert porto["rates"]["delivered"] > 1
        assert porto["status"]["sessions"]["attached"] == 1


def test_top_of_one_broker_shows_its_links():
    words = ("broker", "--name", "lisbon", "--neighbour", "porto", "--listen", "127.0.0.1:0")
    with program(*words, "--status", "0", "--json") as one:
        port = json.loads(one.line())["status"].rpartition(":")[2]
        code, out, _ = wayfare("top", port, "--once")
        assert code == 0
        assert ["porto", "down", "1"] in [line.split()[:3] for line in out.splitlines()]
        code, out, _ = wayfare("top", port, port, "--once")
        assert "lisbon has no link to porto: 1 messages wait" in out.splitlines()


def test_top_says_what_it_cannot_reach_and_goes_on(tmp_path):
    with city(tmp_path) as (file, _, _), socket.create_server(("127.0.0.1", 0)) as free:
        free_port = free.getsockname()[1]
        free.close()
        code, out, err = wayfare("top", str(file), str(free_port), "--once")
        assert (code, err) == (1, "")
        assert out.splitlines()[2].startswith("porto ")
        assert f"cannot ask 127.0.0.1:{free_port} for its status: Connection refused;" in out


def test_top_is_not_fooled_by_what_is_no_status(tmp_path):
    with city(tmp_path) as (_, _, at):
        port = at["porto"].rpartition(":")[2]  # a broker, which answers in its own way
        code, out, _ = wayfare("top", port, "--once")
        assert code == 1
        assert out.startswith(f"127.0.0.1:{port} speaks no HTTP: porto listens for clients there;")
        code, _, err = wayfare("top", at["porto"], "--once")
        assert code == 2
        assert err.startswith(f"wayfare: {at['porto']} is where a broker listens for clients: give")


def test_top_runs_in_a_terminal_until_ctrl_c(tmp_path):
    with city(tmp_path) as (file, _, _):
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*COMMAND, "top", str(file), "--every", "0.1"],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**BUFFERED, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            start_new_session=True,
        ) as process:
            try:
                os.close(theirs)
                shown = b""
                end = time.monotonic() + 20
                while shown.count(b"lisbon") < 3:
                    assert time.monotonic() < end, shown
                    if select.select([ours], [], [], 1)[0]:
                        shown += os.read(ours, 65_536)
                process.send_signal(signal.SIGINT)
                while select.select([ours], [], [], 5)[0]:
                    try:
                        shown += os.read(ours, 65_536)
                    except OSError:  # it is gone
                        break
                assert process.wait(10) == 0
                assert process.stderr.read() == b""
            finally:
                process.kill()
                os.close(ours)
        assert shown.rstrip().endswith(b"\x1b[?1049l"), "the screen is as it was before"
        assert b"\x1b[?25h" in shown, "and so is the cursor"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["top", "nowhere.toml"], "cannot read nowhere.toml"),
        (["top", "here"], "'here' is no place: write a port, or host:port, or a configuration"),
        (["top", "h:99999"], "'h:99999' is no place"),
        (["top", "a..b:9410"], "'a..b:9410' is no place: names of hosts have 1 to 63 characters"),
    ],
)
def test_bad_places_get_one_clear_sentence(arguments, says, capsys):
    assert cli.main(arguments) == 2
    assert says in capsys.readouterr().err


def test_a_configuration_without_a_status_is_explained(tmp_path, capsys):
    file = tmp_path / "site.toml"
    file.write_text('name = "lisbon"\n')
    assert cli.main(["top", str(file)]) == 2
    assert "does not say where its status is told: give status.port" in capsys.readouterr().err


def test_rates_are_per_second_and_none_behind_a_restart():
    before = replace(status_of(BrokerHost("a", {})), uptime_s=10.0, routed=100, deliveries=7)
    now = replace(before, uptime_s=12.0, routed=150, deliveries=10)
    assert rates_of(None, now) is None
    assert rates_of(now, before) is None
    rates = rates_of(before, now)
    assert (rates.routed, rates.delivered, rates.moves) == (25.0, 1.5, 0.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.04, "0.0"),
        (1.5, "1.5"),
        (9.96, "10"),
        (999, "999"),
        (999.6, "1.0k"),
        (1_234, "1.2k"),
        (99_999, "100k"),
        (12_345_678, "12M"),
        (2.5e15, "2P"),
    ],
)
def test_numbers_are_short(value, text):
    assert short(value) == text
    assert len(short(value)) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7300, "2h"), (9e5, "10d")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1.5Ki"),
        (2**28, "256Mi"),
        (2**60, "1048576Ti"),
    ],
)
def test_bytes_are_in_the_units_of_configurations(value, text):
    assert binary(value) == text


def test_top_names_accounts_near_their_limits():
    near = [AccountMemory("guests", 15 * 2**20, 2**24), AccountMemory("staff", 1, 2**24)]
    status = replace(status_of(BrokerHost("porto", {})), account_memory=near)
    console = Console(width=80)
    with console.capture() as drawn:
        console.print(draw([Look(status, None)], []))
    (line,) = [one for one in drawn.get().splitlines() if "account" in one]
    assert line.rstrip() == "the account guests keeps 15Mi of 16Mi at porto"
