"""What each adapter is and gives, and how many lines of code it takes, as table 5 of the paper counts."""

from __future__ import annotations

import ast
import io
import tokenize
from importlib.util import find_spec
from pathlib import Path

import msgspec

from wayfare.service.adapters import ADAPTERS, adapter
from wayfare.service.servers import SERVERS
from wayfare.service.system import Traits

# The part that decides, whatever system is below.
CORE = (
    "buffer",
    "client_proxy",
    "effects",
    "library",
    "merging",
    "messages",
    "pinging",
    "proxy",
    "system",
)
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

PARTS = {"stomp": ["stomp_notes"]}  # of an adapter, beside the module of its name


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
    core_lines: int
    published: dict[str, int]


def catalogue() -> Catalogue:
    """All adapters."""
    modules = dict.fromkeys(module for module, _ in ADAPTERS.values())
    return Catalogue([_entry(module) for module in modules], sum(map(_lines, CORE)), PUBLISHED)


def _entry(module: str) -> Entry:
    schemes = [scheme for scheme, (of, _) in ADAPTERS.items() if of == module]
    traits = {scheme: adapter(f"{scheme}://localhost").traits for scheme in schemes}
    with_ids = [scheme for scheme, gives in traits.items() if gives.carries_ids]
    library, server = LIBRARIES[module], SERVERS[module].package
    lines = sum(map(_lines, [module, *PARTS.get(module, [])]))
    return Entry(module, schemes, with_ids, traits[schemes[0]], lines, library, server)


def _lines(module: str) -> int:
    found = find_spec(f"wayfare.service.{module}")
    assert found is not None and found.origin is not None
    return lines_of_code(Path(found.origin).read_text("utf-8"))


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
