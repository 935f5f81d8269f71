"""Payloads in JSON: as text if they are text, else in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any


def told(payload: bytes) -> dict[str, str]:
    """What an object in JSON says of a payload; nothing of an empty one."""
    if not payload:
        return {}
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def found(facts: Mapping[str, Any]) -> bytes:
    """The payload that an object in JSON tells of; ValueError if it is none."""
    text, coded = facts.get("payload", ""), facts.get("payload_base64", "")
    if not isinstance(text, str) or not isinstance(coded, str):
        raise ValueError("its payload is no text")
    try:
        return base64.b64decode(coded, validate=True) if coded else text.encode()
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"its payload cannot be read: {error}") from None
