"""Frames of messages: a notification is encoded once, however many connections it goes to.

A `Deliver` is a small header of its own, with the delivery number, in front of bytes that all share.
"""

from __future__ import annotations

import msgspec

from wayfare.core.codec import encode
from wayfare.core.messages import AnyMessage, Deliver, Gap, Notification

_encoder = msgspec.msgpack.Encoder()
_DELIVER = b"\x93\x15"  # an array of three, of which the first is the tag: see codec, Deliver


class Frames:
    """Remembers the last notification, because its deliveries come one after the other."""

    __slots__ = ("_body", "_last", "deliveries", "gaps")

    def __init__(self) -> None:
        self._last: Notification | None = None
        self._body = b""
        self.deliveries = 0
        self.gaps = 0

    def of(self, message: AnyMessage) -> bytes:
        if type(message) is not Deliver:
            self.gaps += type(message) is Gap
            return encode(message)
        self.deliveries += 1
        notification = message.notification
        if notification is not self._last:
            self._last = notification
            self._body = _encoder.encode(notification)
        head = _DELIVER + _encoder.encode(message.number)
        length = len(head) + len(self._body)
        return length.to_bytes(4, "big") + head + self._body
