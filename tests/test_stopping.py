"""Brokers as processes: how they stop, what they log, and what they answer over HTTP."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from live import HERE
from test_cli import BUFFERED
from test_live_cli import COMMAND, broker, program, subscriber, wayfare
from wayfare.cli import running
from wayfare.net import network
from wayfare.net.broker import BrokerHost


def fetch(url):
    """The status code and the JSON of an answer."""
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


@contextmanager
def durable(directory, *options, listen="127.0.0.1:0"):
    """A broker with a memory on disk: what it said when it was up."""
    file = directory / "site.toml"
    file.write_text(
        f'name = "lisbon"\nlisten = "{listen}"\n[durability]\nmode = "os"\ndirectory = "memory"\n'
        "[status]\nport = 0\n"
    )
    with program("broker", "--config", str(file), "--json", *options) as one:
        yield one, json.loads(one.line())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_broker_that_stops_puts_its_sessions_away_and_the_next_has_them(tmp_path, how):
    with durable(tmp_path) as (one, facts):
        assert wayfare("sub", facts["address"], "x > 0", "--id", "anna", "-W", "0.1")[0] == 0
        with subscriber(facts["address"], "x > 0", "--id", "bert"):
            until(lambda: status(facts)["subscriptions"] == 1)
            began = time.monotonic()
            assert one.stop(how)[0] == 0
            assert time.monotonic() - began < 5
    with durable(tmp_path) as (_, facts):
        after = status(facts)
        assert sum(after["sessions"].values()) == 1, "bert's; anna said goodbye"
        assert after["subscriptions"] == 1
        assert after["durability"] == "os"


def status(facts):
    code, told = fetch(f"{facts['status']}/status")
    assert code == 200
    (one,) = told["brokers"]
    return one


def test_a_network_answers_for_all_its_brokers(tmp_path):
    file = tmp_path / "city.toml"
    file.write_text('links = [["a", "b"], ["b", "c"]]\n')
    with program("network", "up", str(file), "--json", "--status", "0") as one:
        rows = [json.loads(one.line()) for _ in range(3)]
        (url,) = {row["status"] for row in rows}
        code, health = fetch(f"{url}/health")
        assert (code, health["healthy"]) == (200, True)
        assert [broker["name"] for broker in health["brokers"]] == ["a", "b", "c"]
        assert [len(broker["links_up"]) for broker in health["brokers"]] == [1, 2, 1]
        with urlopen(f"{url}/metrics", timeout=10) as answer:
            assert 'wayfare_link_up{broker="b",neighbour="c"} 1.0' in answer.read().decode()
        assert one.stop() == (0, "", "")


def test_a_link_that_is_down_is_no_good_health():
    words = ("broker", "--name", "lisbon", "--listen", "127.0.0.1:0", "--status", "0")
    with program(*words, "--neighbour", "porto") as one:
        address, said = one.line().split()[-1], one.line()
        assert said.startswith("metrics, health and status are at http://127.0.0.1:")
        url = f"{said.split()[-1]}/health"
        code, health = fetch(url)
        assert (code, health["brokers"][0]["links_down"]) == (503, ["porto"])
        with broker("porto", "--neighbour", f"lisbon={address}"):
            until(lambda: fetch(url)[0] == 200)
        until(lambda: fetch(url)[0] == 503)
        assert one.stop()[0] == 0


def test_a_status_port_in_use_is_one_clear_sentence():
    with broker("lisbon", "--status", "0", "--log-level", "error") as (_, address):
        port = address.rpartition(":")[2]
        code, out, err = wayfare(
            "broker", "--name", "a", "--listen", "127.0.0.1:0", "--status", port
        )
        assert (code, out) == (2, "")
        assert err == (
            f"wayfare: cannot tell the status at 127.0.0.1:{port}: Address already in use; choose"
            " another address, or stop what listens there\n"
        )


def test_logs_are_lines_of_json():
    options = ("--log-format", "json", "--log-level", "info")
    with broker("lisbon", "--neighbour", "porto", *options) as (lisbon, address):
        with broker("porto", "--neighbour", f"lisbon={address}", *options) as (porto, _):
            events = [json.loads(porto.told())["event"] for _ in range(2)]
            assert events == ["listening", "link_up"]
            assert porto.stop()[0] == 0
        lines = [json.loads(lisbon.told()) for _ in range(3)]
        assert [one["event"] for one in lines] == ["listening", "link_up", "link_down"]
        assert (lines[2]["broker"], lines[2]["peer"], lines[2]["level"]) == (
            "lisbon",
            "porto",
            "warning",
        )
        assert lines[2]["reason"] == "the connection was closed"


def test_a_broker_that_cannot_write_says_why_and_exits_with_1(tmp_path):
    """No file may grow beyond 128 KiB: as if the disk were full."""
    file = tmp_path / "site.toml"
    file.write_text(
        'name = "lisbon"\nlisten = "127.0.0.1:0"\n[durability]\nmode = "os"\ndirectory = "memory"\n'
    )
    words = [*COMMAND, "broker", "--config", str(file), "--json"]
    with subprocess.Popen(
        ["bash", "-c", 'ulimit -f 128; exec "$@"', "bash", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=BUFFERED,
    ) as process:
        try:
            address = json.loads(process.stdout.readline())["address"]
            with program("pub", address, "x=1", "--payload", "y" * 50_000, "--every", "0.01"):
                out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out) == (1, ""), err
    assert " ERROR lisbon stops: " in err.splitlines()[0] and "broker.db" in err
    assert "Traceback" not in err


def test_stopping_has_an_end(monkeypatch, caplog):
    """A peer may not go; it is left behind."""

    class Slow(BrokerHost):
        async def stop(self):
            await super().stop()
            await asyncio.sleep(60)

    async def test():
        host = Slow("a", {})
        await host.start(HERE)
        began = time.monotonic()
        await network.stop([host])
        return time.monotonic() - began

    caplog.set_level("WARNING", "wayfare")  # other tests make it quiet
    monkeypatch.setattr(network, "STOP_S", 0.2)
    assert 0.2 <= asyncio.run(test()) < 10
    assert "some connections did not close within 0.2 s: they are left behind" in caplog.text


SLOW = """
import asyncio, sys
from wayfare.cli import running

async def work():
    try:
        print("up", flush=True)
        await asyncio.Event().wait()
    finally:
        print("stopping", flush=True)
        await asyncio.sleep(60)

sys.exit(running.serve(work(), lambda: 0))
"""


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"]
)
def test_told_twice_it_ends_at_once(how, code):
    with subprocess.Popen(
        [sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "stopping\n"
            process.send_signal(how)  # so soon after the first, it is meant once
            time.sleep(2 * running.ONCE_S)
            assert process.poll() is None
            process.send_signal(how)
            _, err = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (process.returncode, err) == (code, "wayfare: stopped at once\n")
