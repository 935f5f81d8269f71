"""What a thin device carries from one proxy to the next: a text that it need not understand.

It says where the session of the device is, how its publications are counted, and what it wants and
offers; not how far the device is, which it knows better. Brokers' proxies that share a secret sign it; else it is only protected against damage, and
whoever makes one up gets what a client of that name could get by itself.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Annotated

import msgspec
from msgspec import Meta

from wayfare.core import messages as m
from wayfare.core.codec import NAME_MAX
from wayfare.core.messages import FILTERS_MAX, PREVIOUS_MAX, Number, Terms
from wayfare.errors import UsageError

MEMORY_MAX = 49_152  # characters of a memory
VERSION = "1"
TAG_BYTES = 16

Name = Annotated[str, Meta(max_length=NAME_MAX)]
Counted = Annotated[int, Meta(ge=0, lt=2**62)]  # so that there is more to come
Texts = Annotated[tuple[tuple[str, Terms | None], ...], Meta(max_length=FILTERS_MAX)]


class ThinMemory(msgspec.Struct, frozen=True, array_like=True):
    """What the next counterpart of a device has to know. Filters are texts: they are checked again."""

    client: Name
    base: Counted  # publication 1 of the device has the number after this one
    epoch: Counted
    home: Name
    previous: Annotated[tuple[tuple[Name, Number], ...], Meta(max_length=PREVIOUS_MAX)]
    subscriptions: Texts
    advertisements: Annotated[tuple[str, ...], Meta(max_length=FILTERS_MAX)]
    follows: m.Follows
    state: m.State
    life: Number = 0  # tells the device from others of its name; 0: an earlier release wrote this
    asks: Counted = 0  # how often it asked for current values
    published: Counted = (
        0  # its last publication when this was written: later ones have higher numbers
    )


def sealed(memory: ThinMemory, secret: str | None) -> str:
    body = msgspec.msgpack.encode(memory)
    return VERSION + base64.urlsafe_b64encode(_tag(body, secret) + body).decode()


def opened(text: object, secret: str | None, client: str) -> ThinMemory:
    """The memory of this device; UsageError if it is not that."""
    if not isinstance(text, str) or not text.startswith(VERSION) or len(text) > MEMORY_MAX:
        raise _refused(client, "is none that this proxy knows")
    try:
        whole = base64.b64decode(text[1:], b"-_", validate=True)
        tag, body = whole[:TAG_BYTES], whole[TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(body, secret)):
            raise _refused(client, "is damaged, or signed with another secret")
        memory = msgspec.msgpack.decode(body, type=ThinMemory)
    except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError):
        raise _refused(client, "is damaged") from None
    if memory.client != client:
        raise _refused(client, f"is that of {memory.client!r}")
    return memory


def _refused(client: str, why: str) -> UsageError:
    return UsageError(f"the memory of {client} {why}: leave it out, to begin anew")


def _tag(body: bytes, secret: str | None) -> bytes:
    key = (secret or "").encode()
    return hmac.digest(key, b"wayfare thin memory " + body, "sha256")[:TAG_BYTES]
