"""`wayfare service` in a shell: real processes, what they say, and what they say when it makes no sense."""

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from test_adapters import running
from test_live_cli import program, wayfare
from test_service_live import Nodes, run
from wayfare.errors import UsageError
from wayfare.service import connect
from wayfare.service.discovery import advertised
from wayfare.service.experiment import proxy
from wayfare.service.nodes import program as found
from wayfare.service.proxy_addresses import with_port
from wayfare.service.wire import ask

on_mqtt = pytest.mark.parametrize("system", ["mqtt"])


@contextmanager
def proxy_beside(access: str, *options: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A proxy at any free port, and what it says of itself."""
    listening = ("--listen", "0", "--json", *options)
    with program("service", "proxy", "--access", access, *listening) as one:
        yield one, json.loads(one.line())


@contextmanager
def subscriber(place: str, wanted: str, *options: str) -> Iterator[Any]:
    with program("service", "sub", place, wanted, *options) as one:
        assert one.told().startswith("wayfare: subscribed to ")
        yield one


@on_mqtt
def test_what_is_published_in_a_shell_may_be_any_bytes_and_none_reach_a_terminal(
    overlay_of: Nodes, system: str, word: str
) -> None:
    a, *_ = overlay_of(system).addresses
    with proxy_beside(a) as (_, facts):
        place = facts["proxy"]
        with (
            subscriber(place, f"{word}/#") as in_words,
            subscriber(place, f"{word}/#", "--json") as in_json,
        ):
            for payload in (b"\xff\xfe", b"red \x1b[31m\nhi"):
                said = wayfare("service", "pub", place, f"{word}/x", payload)
                assert said == (0, "", "")
            assert in_words.line() == f"{word}/x  \ufffd\ufffd"
            assert in_words.line() == f"{word}/x  red ?[31m?hi"
            topic = {"topic": f"{word}/x", "properties": {}}
            assert json.loads(in_json.line()) == topic | {"payload_base64": "//4="}
            assert json.loads(in_json.line()) == topic | {"payload": "red \x1b[31m\nhi"}


@on_mqtt
def test_properties_may_be_called_as_they_like(overlay_of: Nodes, system: str, word: str) -> None:
    async def story() -> None:
        a, *_ = overlay_of(system).addresses
        async with proxy(a) as place, connect(f"ann{word}", place) as ann:
            await ann.subscribe(f"{word}/#")
            await ann.publish(f"{word}/x", b"hello", topic=5, payload="none", self=True)
            came = await anext(ann)
            assert (came.topic, came.payload) == (f"{word}/x", b"hello")
            assert came.properties == {"topic": 5, "payload": "none", "self": True}
            with pytest.raises(UsageError, match="property payload is a text, a number or a bool"):
                await ann.publish(f"{word}/x", payload=b"named")

    run(story())


def test_a_password_may_have_any_characters(tmp_path: Path, need_server: Any, word: str) -> None:
    need_server("mqtt")
    users = tmp_path / "users"
    login = ["ann", "p/w@s#1%41"]
    subprocess.run(
        [found("mosquitto_passwd"), "-b", "-c", str(users), *login], check=True, capture_output=True
    )
    allowed = f"allow_anonymous false\npassword_file {users}\n"
    with running("mqtt", tmp_path, allowed) as (access, _):
        url = access.replace("://", f"://ann:{quote(login[1], safe='')}@")
        with proxy_beside(url, "--tell", access) as (_, facts):
            place = facts["proxy"]
            said = wayfare("service", "pub", place, f"{word}/x", "hi", "--login", ":".join(login))
            assert said == (0, "", "")


def test_an_address_without_a_port_is_at_the_port_where_the_proxy_listens() -> None:
    for given in ("127.0.0.1", "tls://localhost", "[::1]"):
        assert with_port(given, 7510) == f"{given}:7510"
        assert with_port(f"{given}:80", 7510) == f"{given}:80"
    with proxy_beside("mqtt://127.0.0.1:9", "--address", "127.0.0.1") as (_, facts):
        assert asyncio.run(ask(facts["proxy"])).access == "mqtt://127.0.0.1:9"


def test_a_proxy_that_another_one_announces_is_told_so() -> None:
    here = ["127.0.0.1"]

    async def story() -> None:
        async with advertised("127.0.0.1:9", "mqtt://a", here):
            told = ""
            for _ in range(10):
                # Multicast DNS repeats no answer within a second, so a probe may get none in time.
                await asyncio.sleep(1.2)
                try:
                    async with advertised("127.0.0.1:9", "mqtt://b", here):
                        pass
                except UsageError as error:
                    told = str(error)
                    break
            assert told.startswith("another proxy announces 127.0.0.1:9 on this LAN")

    run(story())


@pytest.mark.parametrize(
    ("control", "sentence"),
    [
        ("/nosuch/x", "(No such file or directory): --control chooses another place"),
        ("/tmp/" + "x" * 200, "(AF_UNIX path too long): --control chooses another place"),
        ("/", "is another agent running? --control chooses another place"),
    ],
)
def test_an_agent_says_why_it_cannot_listen(control: str, sentence: str) -> None:
    code, out, err = wayfare("service", "agent", "--proxies", "127.0.0.1:9", "--control", control)
    assert (code, out) == (2, "")
    assert err.startswith(f"wayfare: cannot listen at {control} (")
    assert err.endswith(f"{sentence}\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--address", "nosuch.invalid", "--advertise", "zeroconf"], "cannot announce nosuch.invalid:"),
        (["--store", "/"], "/ is a directory: name a file in it, like /store.db"),
    ],
)  # fmt: skip
def test_a_proxy_says_what_is_wrong(options: list[str], sentence: str) -> None:
    listening = ["--access", "mqtt://127.0.0.1:9", "--listen", "0"]
    code, out, err = wayfare("service", "proxy", *listening, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"wayfare: {sentence}")


def test_an_agent_that_nobody_hears_of_ends_and_does_not_turn_clients_away(tmp_path: Path) -> None:
    control = str(tmp_path / "agent")
    with proxy_beside("mqtt://127.0.0.1:9") as (_, facts):
        watching = ("--proxies", facts["proxy"], "--control", control, "--interval", "0.1")
        with program("service", "agent", *watching) as agent:
            assert agent.line() == f"{facts['proxy']} is in reach: no client yet"
            agent.process.stdout.close()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(control)
                client.sendall(b'{"client": "ann"}\n')
                assert agent.process.wait(20) == 141
                assert json.loads(client.recv(1000))["move_in"] == facts["proxy"]
            assert agent.process.stderr.read() == ""
