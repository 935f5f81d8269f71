"""Properties and ids as headers, for systems whose headers are texts.

A value stands in a header of its name as anybody would write it, so that clients of the system
can read it. Which of them are no texts stands in one more header, so that ours get back what
was published: `wayfare-types: price=int fresh=bool`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from wayfare.errors import UsageError
from wayfare.service.system import ID_PROPERTY, Id, Property, Publication

TYPES_PROPERTY = "wayfare-types"
OURS = (ID_PROPERTY, TYPES_PROPERTY)
NAME = re.compile(r"[^\s:=\x00-\x20\x7f\ud800-\udfff]+")
UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and no characters
INTEGER = re.compile(r"-?[0-9]{1,20}")
FLOAT = re.compile(r"-?[0-9.]{1,30}(e[-+]?[0-9]{1,3})?|-?inf|nan")
TRUTH = {"true": True, "false": False}
INTEGERS = range(-(2**63), 2**64)  # that can be stored and sent on


def headers(publication: Publication) -> list[tuple[str, str]]:
    """Give all headers of a publication."""
    made: list[tuple[str, str]] = []
    types: list[str] = []
    for name, value in publication.properties.items():
        if isinstance(value, int) and value not in INTEGERS:
            raise UsageError(
                f"the property {name:.60} is too large: integers are from -2^63 to 2^64 - 1"
            )
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name in OURS or not NAME.fullmatch(name):
            raise UsageError(
                f"a property cannot be called {name!r:.60}: without spaces, ':' and '=', "
                f"and not {' or '.join(OURS)}"
            )
        if UNFIT.search(text) or text != text.strip():
            raise UsageError(
                f"the property {name} cannot be {text!r:.60}: "
                "without line breaks, control characters, and spaces around it"
            )
        made.append((name, text))
        if not isinstance(value, str):
            types.append(f"{name}={type(value).__name__}")
    if types:
        made.append((TYPES_PROPERTY, " ".join(types)))
    if publication.id is not None:
        made.append((ID_PROPERTY, str(publication.id)))
    return made


def read(pairs: Iterable[tuple[str, Property]]) -> tuple[dict[str, Property], Id | None]:
    """Read what `headers` wrote, or anybody else. What makes no sense stays a text."""
    properties: dict[str, Property] = dict(pairs)
    if not properties:
        return properties, None
    mark = properties.pop(ID_PROPERTY, None)
    types = properties.pop(TYPES_PROPERTY, None)
    for entry in str(types).split(" ") if types else ():
        name, _, kind = entry.partition("=")
        text = properties.get(name)
        if isinstance(text, str):
            properties[name] = value_of(text, kind)
    return properties, None if mark is None else Id.parse(str(mark))


def value_of(text: str, kind: str) -> Property:
    if kind == "bool":
        return TRUTH.get(text, text)
    if kind == "int" and INTEGER.fullmatch(text):
        return number if (number := int(text)) in INTEGERS else text
    if kind == "float" and FLOAT.fullmatch(text):
        try:
            return float(text)
        except ValueError:
            return text
    return text
