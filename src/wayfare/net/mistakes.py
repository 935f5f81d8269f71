"""What is wrong in a file of TOML, and in which line: tomllib does not say where a key was that it has read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

Place = tuple[str | int, ...]  # ("limits", "away"), ("links", 3)

# All that matters of TOML here: texts and comments, in which anything may stand, and what is around them.
TOKEN = re.compile(
    r"""
    "{3} (?: [^\\] | \\. )*? "{3,5} | '{3} .*? '{3,5}   # texts of several lines
    | " (?: [^"\\] | \\. )* " | ' [^']* '              # and of one
    | \# [^\n]*
    | [\[\]{},\n]
    | [^\s\[\]{},"'\#]+
    """,
    re.DOTALL | re.VERBOSE,
)


class Mistake(msgspec.Struct, frozen=True):
    """What is wrong, and where: a line of 0 is the file as a whole."""

    file: str
    line: int
    key: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.key} {self.reason}" if self.key else f"{where}{self.reason}"


def dotted(place: Place) -> str:
    return ".".join(one for one in place if isinstance(one, str))


def located(file: str, text: str, wrong: Iterable[tuple[Place, str]]) -> list[Mistake]:
    """What is wrong with keys of this text, in the order of its lines."""
    lines = _lines(text)
    out = []
    for place, reason in wrong:
        line = lines.get(place, lines.get(place[:1], 0)) if place else 0
        out.append(Mistake(file, line, dotted(place), reason))
    return sorted(out, key=lambda one: one.line)


def _lines(text: str) -> dict[Place, int]:
    """The line of every key, and of the elements of its list. tomllib, which took the text, does not say."""
    out: dict[Place, int] = {}
    table: Place = ()
    for first, statement, elements in _statements(text):
        is_table = statement.startswith("[")
        for place in _places(tomllib.loads(statement)):
            number = next((one for one in place if isinstance(one, int)), len(elements))
            line = first if is_table or number >= len(elements) else elements[number]
            out.setdefault(place if is_table else (*table, *place), line)
            if is_table:
                table = place
    return out


def _statements(text: str) -> Iterator[tuple[int, str, list[int]]]:
    """The line of each, what it says, and if that is a list, the lines where its elements begin."""
    line, first, start, depth = 1, 0, -1, 0
    elements: list[int] = []
    in_list = awaited = False  # the next element
    for token in TOKEN.finditer(f"{text}\n"):
        word = token[0]
        if word == "\n":
            if start >= 0 and depth == 0:
                yield first, text[start : token.start()].rstrip(), elements
                start = -1
        elif not word.startswith("#"):
            if start < 0:
                start, first, elements, in_list = token.start(), line, [], False
            if in_list and depth == 1:
                if awaited and word != "]":
                    elements.append(line)
                awaited = word == ","
            if word in ("[", "{"):
                depth += 1
                if depth == 1:
                    in_list = awaited = word == "["
            elif word in ("]", "}"):
                depth -= 1
        line += word.count("\n")


def _places(found: Any, above: Place = ()) -> Iterator[Place]:
    inner = found.items() if isinstance(found, dict) else enumerate(found)
    for name, value in inner:
        yield (*above, name)
        if isinstance(value, dict | list):
            yield from _places(value, (*above, name))
