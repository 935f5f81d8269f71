"""Notifications as people write them in a shell, `service='parking' free=3`, and as lines of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from math import isinf
from operator import and_
from typing import Any

from wayfare.core.conditions import Condition, attr
from wayfare.core.filters import Filter
from wayfare.core.predicates import Value
from wayfare.core.syntax import value_text
from wayfare.errors import UsageError
from wayfare.net import payloads
from wayfare.net.logs import printable
from wayfare.net.subscription import Notification

# A value goes on up to the next name, so that words need no quotes of their own.
ATTRIBUTE = re.compile(r"\s*([^\s=]+)=('(?:[^']|'')*'|.*?)(?=\s+[^\s=]+=|\s*\Z)", re.DOTALL)
INTEGER = re.compile(r"[+-]?\d+")
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d+)?")


def attributes_of(text: str) -> dict[str, Value]:
    """`service=parking free=3 open=true`: numbers, true and false, and else texts."""
    out: dict[str, Value] = {}
    at = 0
    while text[at:].strip():
        found = ATTRIBUTE.match(text, at)
        if found is None:
            raise UsageError(f"{text[at:].strip()!r} is no attribute: write name=value")
        name, value = found.groups()
        if name in out:
            raise UsageError(f"{name} is there twice: an attribute has one value")
        out[name] = _typed(name, value)
        at = found.end()
    return out


def _typed(name: str, text: str) -> Value:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if text in ("true", "false"):
        return text == "true"
    if INTEGER.fullmatch(text):
        return int(text)
    if NOT_FINITE.fullmatch(text):
        raise UsageError(
            f"{name}={text} is not a number that can be published; for the text, write {name}=\"'{text}'\""
        )
    if not FRACTION.fullmatch(text):
        return text
    number = float(text)
    if isinf(number):
        raise UsageError(
            f"{name}={text} is too large for a number; for the text, write {name}=\"'{text}'\""
        )
    return number


def as_text(notification: Notification) -> str:
    """As `wayfare pub` takes it, and behind that what is no attribute."""
    words = [f"{name}={value_text(value)}" for name, value in notification.items()]
    if notification.payload:
        words.append(f"({len(notification.payload)} bytes)")
    if notification.past:
        words.append("(past)")
    if notification.retained:
        words.append("(retained)")
    if notification.late:
        words.append("(late)")
    return printable(" ".join(words))


def as_json(notification: Notification) -> str:
    return json.dumps(facts(notification))


def facts(notification: Notification) -> dict[str, Any]:
    """What there is to know of it, as JSON has it."""
    out: dict[str, Any] = {"publisher": notification.publisher, "number": notification.number}
    out["attributes"] = notification.attributes
    if notification.past:
        out["past"] = True
    if notification.retained:
        out["retained"] = True
    if notification.late:
        out["late"] = True
    return out | payloads.told(notification.payload)


def of_json(line: bytes, number: int) -> tuple[dict[str, Value], bytes]:
    """A line as `wayfare sub --json` prints it, or the attributes alone."""
    try:
        facts = json.loads(line)
        inner = facts.get("attributes", facts) if isinstance(facts, dict) else {}
        attributes = inner if isinstance(inner, dict) else facts  # no attribute is an object
        if not attributes:
            raise ValueError("give an object of attributes")
        given = {name: value for name, value in attributes.items() if value is not None}
        if not given:
            raise ValueError("all its attributes are null: give one a value")
        return given, b"" if attributes is facts else payloads.found(facts)
    except ValueError as error:
        raise UsageError(f"line {number} is no notification in JSON: {error}") from None


def exactly(attributes: Mapping[str, Value]) -> Filter:
    """The filter of all notifications that have these attributes, with these values."""
    return _all(attr(name) == value for name, value in attributes.items())


def alike(attributes: Mapping[str, Value]) -> Filter:
    """The filter of all notifications that have these attributes, with any values."""
    return _all(attr(name).exists() for name in sorted(attributes))


def _all(conditions: Iterable[Condition]) -> Filter:
    return Filter.where(reduce(and_, conditions))
