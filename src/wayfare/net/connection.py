"""One connection: frames in, frames out, and how it ends.

All frames of a read are decoded at once. What is sent is collected, and written when its owner says
so, once for each turn of the loop. Whatever goes wrong with a peer ends this connection, with a reason, and
nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from wayfare.core.codec import FrameDecoder, encode
from wayfare.core.messages import PROTOCOL_VERSION, AnyMessage, Hello, Ping, Refused
from wayfare.errors import CodecError

WRITE_MAX = 8 * 1024 * 1024  # bytes that wait for a peer that does not read; then it is cut off
PING = encode(Ping())

logger = logging.getLogger("wayfare.net")


class Owner(Protocol):
    """Who a connection reports to."""

    def on_messages(self, connection: Connection, messages: list[AnyMessage]) -> None: ...
    def on_closed(self, connection: Connection) -> None: ...
    def on_output(self, connection: Connection) -> None:
        """There is something to write: call `flush` in this turn of the loop."""


class Traffic:
    """What went over connections of one kind."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = 0

    def add(self, other: Traffic) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Connection(asyncio.Protocol):
    """A connection to a broker or a client, from its first byte to its last."""

    def __init__(self, owner: Owner, name: str, write_max: int = WRITE_MAX) -> None:
        self.owner = owner
        self.peer = ""  # its name, once it said Hello
        self.link = ""  # what the owner calls it
        self.reason = ""  # why it ended, if the peer or we said so
        self.closing = False
        self.how = "closed"  # it ended: closed, lost, refused or cut
        self.traffic = Traffic()
        self.heard = False  # since somebody last looked
        self.spoken = False
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._out: list[bytes] = [encode(Hello(PROTOCOL_VERSION, name))]
        self._write_max = write_max

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._write_max)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.heard = True
        try:
            messages = self._decoder.feed(data)
            self.traffic.bytes_in += len(data)
            self.traffic.messages_in += len(messages)
            if messages and not self.peer:
                messages = self._greeted(messages)
            if messages:
                self.owner.on_messages(self, messages)
            self._decoder.feed(b"")  # tells at once of a bad frame behind good ones
        except CodecError as error:
            self.refuse(str(error))

    def _greeted(self, messages: list[AnyMessage]) -> list[AnyMessage]:
        first = messages[0]
        assert isinstance(first, Hello)  # the decoder insists on it
        self.peer = first.name
        self.owner.on_messages(self, [first])
        return messages[1:]

    def pause_writing(self) -> None:
        self.abort(f"it does not read: {self._write_max} bytes wait for it")

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.closing:
            self.how = "lost"
        self.closing = True
        self._transport = None
        self._out.clear()
        if exc is not None and not self.reason:
            self.reason = str(exc)
        self.owner.on_closed(self)

    # What the owner calls

    def send(self, frame: bytes) -> None:
        if not self._out:
            self.owner.on_output(self)
        self._out.append(frame)

    def count_in(self, traffic: Traffic) -> None:
        """What went over this connection, and will, counts there."""
        traffic.add(self.traffic)
        self.traffic = traffic

    def flush(self) -> None:
        """Write what was sent."""
        if self._out and self._transport is not None:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self.traffic.messages_out += len(self._out)
            self.traffic.bytes_out += len(data)
            self._out = []
            self.spoken = True
            self._transport.write(data)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def beat(self) -> bool:
        """Say something if there was nothing to say; False if the peer was silent since last time."""
        if not self.spoken:
            self.send(PING)
        heard, self.heard, self.spoken = self.heard, False, False
        return heard

    def refuse(self, reason: str) -> None:
        """Close, and tell the peer why."""
        if not self.closing:
            logger.warning("closed the connection of %s: %s", self.peer or "a stranger", reason)
            self.how = "refused"
            self.send(encode(Refused(reason[:1000])))
            self.close(reason)

    def close(self, reason: str = "") -> None:
        """Write what was sent, then close."""
        if self.closing:
            return
        self.closing, self.reason = True, self.reason or reason
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once; what was sent may be lost."""
        if not self.closing:
            logger.warning("cut off %s: %s", self.peer or "a stranger", reason)
            self.how = "cut"
        self.closing, self.reason = True, self.reason or reason
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()


class Turn:
    """What happens once at the end of a turn of the loop, however often it was asked for."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._asked = False

    def ask(self) -> None:
        if not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._asked = False
        self._action()
