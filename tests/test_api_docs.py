"""docs/api.md names all there is, and users get the types of it."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wayfare
import wayfare.sync
from test_docs import DOCS, rows
from wayfare.core.client import OUTBOX_BYTES_MAX, OUTBOX_MAX
from wayfare.net.connectivity import CHANGES_MAX, Changes
from wayfare.net.heartbeat import HEARTBEAT_S
from wayfare.net.options import CONNECT_S, EXPIRES_S, QUEUE_MAX, Options

PAGE = DOCS / "api.md"


def first_cells():
    return [name for row in rows(PAGE) for name in re.findall(r"\w+", row[0])]


def test_every_option_is_described():
    assert [name for name in Options.__annotations__ if name not in first_cells()] == []


def test_defaults_are_as_described():
    told = {row[0]: row[1] for row in rows(PAGE) if len(row) == 3}
    assert told["queue"] == str(QUEUE_MAX)
    assert told["outbox"] == str(OUTBOX_MAX)
    assert told["outbox_bytes"] == str(OUTBOX_BYTES_MAX)
    assert f"the latest {CHANGES_MAX} changes" in PAGE.read_text("utf-8")
    assert told["expires"].startswith(f"{EXPIRES_S:g} without a name")
    assert told["timeout"] == f"{CONNECT_S:g}"
    assert told["heartbeat_s"] == f"{HEARTBEAT_S:g}"


@pytest.mark.parametrize(
    "kind", [wayfare.Client, wayfare.Subscription, wayfare.Offer, wayfare.Notification, Changes]
)
def test_every_method_is_described(kind):
    text = PAGE.read_text("utf-8")
    for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
        if not name.startswith("_") and name != "open":
            assert f".{name}(" in text or f"`{name}`" in text, name
            assert method.__doc__, name
    for name in inspect.signature(wayfare.Client.subscribe).parameters:
        assert name in ("self", "wanted") or name in first_cells(), name


def test_every_error_of_the_facade_is_described():
    errors = [
        name
        for name in wayfare.__all__
        if inspect.isclass(one := getattr(wayfare, name))
        and issubclass(one, wayfare.WayfareError)
        and one is not wayfare.WayfareError
    ]
    assert [name for name in errors if name not in first_cells()] == []


SAMPLE = """
import wayfare
import wayfare.sync
from wayfare.testing import Tree

async def main() -> None:
    async with wayfare.connect("127.0.0.1", client_id="anna", queue=5, events=print) as anna:
        reveal_type(anna)
        reveal_type(anna.broker)
        async with anna.subscribe(wayfare.attr("x") > 0, last=3) as some:
            reveal_type(await some.get(1.0))
            async for one in some:
                reveal_type(one.payload)
                reveal_type(one["x"])
        reveal_type(await anna.publish({"x": 1}, confirm=True))
        reveal_type(await anna.close())

with Tree("porto-lisbon") as tree, wayfare.sync.connect(tree["porto"], timeout=3) as bert:
    reveal_type(bert)
    reveal_type(bert.subscribe("x > 0").get())
"""

REVEALED = [
    "Client",
    "str",
    "Notification",
    "bytes",
    "str | float | bool",
    "int",
    "int",
    "Client",
    "Notification",
]

WRONG = {
    'wayfare.connect("a", quue=5)': "quue",
    'wayfare.connect("a", queue="5")': "queue",
    "wayfare.connect(5)": "Argument 1",
    'wayfare.sync.connect("a", polizy="wait")': "polizy",
    'wayfare.sync.connect("a").publish("x")': "publish",
}


def check_types(folder: Path, text: str) -> list[str]:
    """What mypy says of a program of somebody who has Wayfare installed."""
    (folder / "sample.py").write_text(text, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    command += ["--config-file", "", "--cache-dir", str(folder / "cache"), "sample.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_users_get_types(tmp_path):
    lines = check_types(tmp_path, SAMPLE)
    assert not [line for line in lines if "note: Revealed" not in line]
    revealed = [re.findall(r'"(.*)"$', line)[0] for line in lines]
    plain = [re.sub(r"builtins\.|wayfare\.[\w.]*\.", "", one) for one in revealed]
    assert plain[4].count("|") >= 2  # a value: several kinds
    plain[4] = REVEALED[4]
    assert plain == REVEALED
    wrong = "import wayfare\nimport wayfare.sync\n" + "\n".join(WRONG) + "\n"
    complaints = check_types(tmp_path, wrong)
    for number, (line, word) in enumerate(WRONG.items(), 3):
        assert any(f":{number}: error:" in one and word in one for one in complaints), line
