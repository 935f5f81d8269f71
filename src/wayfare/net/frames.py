"""Frames of messages: a notification is encoded once, however many connections it goes to.

A `Deliver` is a small head of its own, with the delivery number, in front of bytes that all share.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from wayfare.core.codec import encode
from wayfare.core.messages import AnyMessage, Deliver, Gap, Here, HereGap, Notification

_encode = msgspec.msgpack.Encoder().encode
# The length of the frame, an array of three, the tag of `Deliver`; then a number of 5 or 3 bytes.
_head = Struct(">I2B").pack
_head_5 = Struct(">I3BI").pack
_head_3 = Struct(">I3BH").pack


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
            return self.of_delivery(message)
        self.gaps += type(message) is Gap or type(message) is HereGap
        self.deliveries += type(message) is Here
        return encode(message)

    def of_delivery(self, message: Deliver) -> bytes:
        self.deliveries += 1
        if message.notification is not self._last:
            self._last = message.notification
            self._body = _encode(self._last)
        number, body = message.number, self._body
        if 0xFFFF < number <= 0xFFFF_FFFF:
            return _head_5(len(body) + 7, 0x93, 0x15, 0xCE, number) + body
        if 0xFF < number <= 0xFFFF:
            return _head_3(len(body) + 5, 0x93, 0x15, 0xCD, number) + body
        encoded = _encode(number)
        return _head(len(encoded) + len(body) + 2, 0x93, 0x15) + encoded + body
