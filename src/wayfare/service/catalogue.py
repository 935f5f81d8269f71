"""What each adapter is and gives, and how many lines of code it takes, as table 5 of the paper counts."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec

from wayfare.service.adapters import ADAPTERS, adapter
from wayfare.service.servers import SERVERS
from wayfare.service.system import Traits

# With what they import of the service: the part that decides, and the programs that perform it.
DECIDING, PERFORMING = ("proxy", "library"), ("proxy_server", "client")
LIBRARIES = {
    "mqtt": "paho-mqtt",
    "amqp": "aio-pika",
    "nats": "nats-py",
    "redis": "redis",
    "stomp": "stomp.py",
    "wayfare": "",
}
# Table 5 of the paper.
PUBLISHED = {"core": 639, "Elvin": 797, "FioranoMQ": 936, "Siena": 755}
QUIET = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)


class Entry(msgspec.Struct, frozen=True):
    """One adapter."""

    name: str
    schemes: list[str]
    with_ids: list[str]  # schemes whose publications carry ids
    traits: Traits
    lines: int
    library: str  # of Python, that it needs
    server: str  # a Debian package


class Catalogue(msgspec.Struct, frozen=True):
    adapters: list[Entry]
    core_lines: int  # of what decides: proxy and library, without input and output
    host_lines: int  # of what performs it on sockets and disks; the paper has both in one
    shared_lines: int  # of what several adapters use
    published: dict[str, int]


def catalogue() -> Catalogue:
    """All adapters."""
    modules = dict.fromkeys(module for module, _ in ADAPTERS.values())
    core = core_modules()
    hosts = _with_imports(PERFORMING) - core - modules.keys()
    parts = {module: _with_imports([module]) - core - hosts for module in modules}
    users = Counter(part for of_one in parts.values() for part in of_one)
    shared = {part for part, count in users.items() if count > 1}
    return Catalogue(
        [_entry(module, sum(map(_lines, parts[module] - shared))) for module in modules],
        sum(map(_lines, core)),
        sum(map(_lines, hosts)),
        sum(map(_lines, shared)),
        PUBLISHED,
    )


def core_modules() -> set[str]:
    return _with_imports(DECIDING)


def _with_imports(names: Iterable[str]) -> set[str]:
    """These modules of the service, and those that they import, and so on."""
    found: set[str] = set()
    left = [*names]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _imports(name)
    return found


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(_source(module))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module == "wayfare.service":
            yield from (name.name for name in node.names if _path(name.name) is not None)
        elif node.module.startswith("wayfare.service."):
            yield node.module.removeprefix("wayfare.service.")


def _entry(module: str, lines: int) -> Entry:
    schemes = [scheme for scheme, (of, _) in ADAPTERS.items() if of == module]
    traits = {scheme: adapter(f"{scheme}://localhost").traits for scheme in schemes}
    with_ids = [scheme for scheme, gives in traits.items() if gives.carries_ids]
    library, server = LIBRARIES[module], SERVERS[module].package
    return Entry(module, schemes, with_ids, traits[schemes[0]], lines, library, server)


def _path(module: str) -> Path | None:
    found = find_spec(f"wayfare.service.{module}")
    return Path(found.origin) if found is not None and found.origin is not None else None


def _source(module: str) -> str:
    path = _path(module)
    assert path is not None, module
    return path.read_text("utf-8")


def _lines(module: str) -> int:
    return lines_of_code(_source(module))


def lines_of_code(source: str) -> int:
    """Lines with anything but comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in QUIET:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)
