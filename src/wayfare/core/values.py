"""What applications may give as values and payloads, converted to what is published.

Enum members stand for their values, and scalars of numpy and similar packages for the Python values that they
convert to: an `item()` without dimensions, or an `__index__`. No such package is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from operator import index
from typing import Any, Protocol, SupportsIndex

from wayfare.errors import InvalidNotification

PLAIN = frozenset((str, int, float, bool))

Plain = str | int | float | bool
Payload = bytes | bytearray | memoryview | str | Enum


class Scalar(Protocol):
    """A number, truth or text of another package."""

    def item(self) -> Any: ...


Publishable = Plain | Enum | SupportsIndex | Scalar | None

SPLIT = "publish one notification for each element, or an attribute for each, or use the payload"
HINTS: dict[str, str] = {
    **dict.fromkeys(("list", "tuple", "set", "frozenset", "dict", "ndarray"), SPLIT),
    **dict.fromkeys(("bytes", "bytearray", "memoryview"), "use the payload, or decode it"),
    "datetime": "use its isoformat() or its timestamp()",
    "date": "use its isoformat()",
    "timedelta": "use its total_seconds()",
    "Decimal": "use float(...) or str(...)",
    "Fraction": "use float(...) or str(...)",
    "complex": "use an attribute for the real part and another for the imaginary part",
    "datetime64": "use str(...), or a number of seconds",
    "timedelta64": "use a number of seconds",
    **dict.fromkeys(
        ("UUID", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"), "use str(...)"
    ),
}


def plain(value: Any) -> Any:
    """The str, int, float or bool that it stands for; the value itself if it stands for none."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if callable(getattr(value, "item", None)) and not getattr(value, "ndim", 0):
        found = value.item()
        return found if type(found) in PLAIN else value
    if hasattr(type(value), "__index__") and not getattr(value, "ndim", 0):
        return index(value)
    return value


def plain_attributes(attributes: Mapping[str, Publishable]) -> Mapping[str, Plain]:
    """With plain values only; without attributes that are None. Names are not checked."""
    if not isinstance(attributes, Mapping):
        raise InvalidNotification(
            f"what is published is a mapping of names to values, not {attributes!r:.60}"
        )
    if PLAIN.issuperset(map(type, attributes.values())):
        return attributes  # type: ignore[return-value]
    return {
        name: _plain_attribute(name, value)
        for name, value in attributes.items()
        if value is not None
    }


def _plain_attribute(name: str, given: Publishable) -> Plain:
    value: Plain = plain(given)
    if type(value) not in PLAIN:
        raise InvalidNotification(
            f"{name} is a {described(given)}; attributes are str, int, float or bool{hint_for(given)}"
        )
    return value


def described(given: object) -> str:
    """Its type; of a member of an Enum also the value, which is what would have been published."""
    kind = type(given).__name__
    return f"{kind} with the value {given.value!r:.60}" if isinstance(given, Enum) else kind


def hint_for(given: object) -> str:
    """What to do instead, as the end of an error; empty if nothing is known."""
    value = given.value if isinstance(given, Enum) else given
    hint = HINTS.get(type(value).__name__)
    return f": {hint}" if hint else ""


def plain_payload(payload: Payload) -> bytes:
    """As bytes: a text in UTF-8."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, Enum):
        return plain_payload(payload.value)
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if not isinstance(payload, str):
        remedy = "encode it, for instance as JSON"
        if callable(getattr(payload, "tobytes", None)):  # not its buffer: a number has one, too
            remedy = "use its tobytes(), and say in an attribute what it is"
        raise InvalidNotification(
            f"a payload is bytes or a text, not {type(payload).__name__}: {remedy}"
        )
    try:
        return payload.encode()
    except UnicodeEncodeError:
        raise InvalidNotification("the payload contains half of a surrogate pair") from None
