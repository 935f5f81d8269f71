"""The fixture for tests of applications, as users have it."""

import asyncio
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

import wayfare
import wayfare.sync
from wayfare.core.history import Limits
from wayfare.errors import UsageError
from wayfare.testing import Tree, wayfare_tree  # noqa: F401  (a fixture)

ROOT = Path(__file__).resolve().parent.parent

SAMPLE = """
import asyncio
import wayfare
import wayfare.sync


def test_sync(wayfare_tree):
    tree = wayfare_tree("porto-lisbon", "lisbon-faro")
    assert [*tree] == ["porto", "lisbon", "faro"]
    with wayfare.sync.connect(tree["porto"]) as car, wayfare.sync.connect(tree["faro"]) as road:
        assert (car.broker, road.broker) == ("porto", "faro")


def test_async(wayfare_tree):
    tree = wayfare_tree("porto-lisbon")

    async def main():
        async with wayfare.connect(tree["lisbon"]) as car:
            assert car.broker == "lisbon"

    asyncio.run(main())


def test_one_broker(wayfare_tree):
    (address,) = wayfare_tree().values()
    with wayfare.sync.connect(address) as car:
        assert car.broker == "broker"
"""


def test_a_user_has_the_fixture(tmp_path):
    (tmp_path / "test_sample.py").write_text(SAMPLE, "utf-8")
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:wayfare"]
    command += ["-p", "wayfare.testing", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_it_where_wayfare_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"wayfare": "wayfare.testing"}


def test_a_broker_stops_and_starts(wayfare_tree):  # noqa: F811
    tree = wayfare_tree("porto-lisbon", heartbeat_s=0.2, limits=Limits(answer_ns=300_000_000))
    before = dict(tree)
    with wayfare.sync.connect([tree["porto"], tree["lisbon"]], client_id="anna") as anna:
        tree.stop("porto")
        with anna.subscribe("x > 0") as some, wayfare.sync.connect(tree["lisbon"]) as tom:
            anna.attach()
            assert anna.broker == "lisbon"
            tom.advertise("x > 0")
            tree.start("porto")
            assert dict(tree) == before
            anna.move(tree["porto"])
            tom.publish({"x": 1}, confirm=True)
            assert some.get(5)["x"] == 1


def test_async_with():
    async def main():
        async with Tree("porto-lisbon") as tree, wayfare.connect(tree["porto"]) as anna:
            assert anna.broker == "porto"

    before = {*threading.enumerate()}
    asyncio.run(main())
    assert {*threading.enumerate()} == before


def test_what_is_no_tree():
    for links in (["a-b-c"], ["a-"], ["a-b", "c-d"], ["a-b", "b-c", "c-a"]):
        with pytest.raises(UsageError):
            Tree(*links)
    with pytest.raises(UsageError, match="are not there"):
        Tree("a-b").start("a")


def test_brokers_that_cannot_be_stopped_or_started(wayfare_tree):  # noqa: F811
    tree = wayfare_tree("porto-lisbon")
    for change in (tree.stop, tree.start):
        with pytest.raises(UsageError, match="there is no broker 'zz': there are porto, lisbon"):
            change("zz")
    with pytest.raises(UsageError, match="porto runs: stop it first"):
        tree.start("porto")
    tree.stop("porto")
    tree.stop("porto")
    tree.start("porto")
    assert "zz" not in tree
