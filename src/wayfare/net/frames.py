"""Frames of messages: a notification is encoded once, however many connections it goes to.

A `Deliver` is a small head of its own, with the delivery number, in front of bytes that all share. A small one is a
frame of its own for each connection. A large one is written in parts, of which the longest is shared by all
connections that have not written it yet: see `Bodies`.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from wayfare.core.codec import encode
from wayfare.core.history import size_of
from wayfare.core.messages import AnyMessage, Deliver, Gap, Here, HereGap, Notification

LARGE_BYTES = 16 * 1024  # of a notification that connections share until they have written it
ENTRY_BYTES = 300  # of a delivery that waits in a connection, beside its body

_encode = msgspec.msgpack.Encoder().encode
# The length of the frame, an array of three, the tag of `Deliver`; then a number of 5 or 3 bytes.
_head = Struct(">I2B").pack
_head_5 = Struct(">I3BI").pack
_head_3 = Struct(">I3BH").pack


class Body:
    """What all deliveries of a notification have in common, also if some of its lifetime has passed."""

    __slots__ = ("_data", "_payload", "attributes", "refs", "size")

    def __init__(self, notification: Notification) -> None:
        self.attributes, self._payload = notification.attributes, notification.payload
        self.size = size_of(notification)
        self.refs = 0  # connections in which it waits
        self._data = b""

    def data(self) -> bytes:
        """Its attributes and payload in MessagePack, made when the first connection writes it."""
        if not self._data:
            self._data = _encode(self.attributes) + _encode(self._payload)
        return self._data


class Bodies:
    """Notifications that wait in connections: each is there once, however many of them it waits in."""

    __slots__ = ("_known", "bytes")

    def __init__(self) -> None:
        # By the identity of their attributes, which copies with another lifetime have in common.
        self._known: dict[int, Body] = {}
        self.bytes = 0

    def hold(self, notification: Notification) -> Body:
        """It waits in one more connection."""
        key = id(notification.attributes)
        body = self._known.get(key)
        if body is None:
            body = self._known[key] = Body(notification)
            self.bytes += body.size
        body.refs += 1
        return body

    def let_go(self, body: Body) -> None:
        body.refs -= 1
        if not body.refs:
            del self._known[id(body.attributes)]
            self.bytes -= body.size


class Frames:
    """Remembers the last notification, because its deliveries come one after the other."""

    __slots__ = ("_body", "_last", "deliveries", "gaps")

    def __init__(self) -> None:
        self._last: Notification | None = None
        self._body = b""
        self.deliveries = 0
        self.gaps = 0

    def of(self, message: AnyMessage) -> bytes:
        if type(message) is Deliver:
            frame = self.of_delivery(message)
            self.deliveries += not frame
            return frame or encode(message)
        self.gaps += type(message) is Gap or type(message) is HereGap
        self.deliveries += type(message) is Here
        return encode(message)

    def parts(self, message: Deliver, body: Body) -> tuple[bytes, bytes, bytes]:
        """The frame of a large delivery; the second part is that of all."""
        self.deliveries += 1
        one = message.notification
        head = b"\x93\x15" + _encode(message.number)
        head += b"\x98\x01" + _encode(one.publisher) + _encode(one.number)
        tail = _encode(one.published_ns) + _encode(one.expires_ns) + _encode(one.area)
        data = body.data()
        size = len(head) + len(data) + len(tail)
        return size.to_bytes(4, "big") + head, data, tail

    def of_delivery(self, message: Deliver) -> bytes:
        """Its frame; nothing if it is large: then it has `parts`."""
        self.deliveries += 1
        if message.notification is not self._last:
            self._last = message.notification
            self._body = b""
            if len(self._last.payload) <= LARGE_BYTES:
                body = _encode(self._last)
                self._body = body if len(body) <= LARGE_BYTES else b""
        number, body = message.number, self._body
        if not body:
            self.deliveries -= 1
            return b""
        if 0xFFFF < number <= 0xFFFF_FFFF:
            return _head_5(len(body) + 7, 0x93, 0x15, 0xCE, number) + body
        if 0xFF < number <= 0xFFFF:
            return _head_3(len(body) + 5, 0x93, 0x15, 0xCD, number) + body
        encoded = _encode(number)
        return _head(len(encoded) + len(body) + 2, 0x93, 0x15) + encoded + body
