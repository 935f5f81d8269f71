"""One connection: frames in, frames out, and how it ends.

All frames of a read are decoded at once. What is sent is collected, and written when its owner says
so, once for each turn of the loop. Whatever goes wrong with a peer ends this connection, with a reason, and
nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from wayfare.core.codec import REASON_MAX, FrameDecoder, encode
from wayfare.core.messages import PROTOCOL_VERSION, AnyMessage, Deliver, Hello, Ping, Refused
from wayfare.errors import CodecError
from wayfare.net.frames import ENTRY_BYTES, Bodies, Body, Frames
from wayfare.net.limits import DEFAULT_NET_LIMITS, NetLimits
from wayfare.net.logs import printable, tell
from wayfare.net.security import is_loopback, names_of

SLICE_S = 0.005  # that one connection is read before others have their turn
READ_BYTES = 64 * 1024  # that are read at once: what others say has its turn soon

PING = encode(Ping())
ANSWER = encode(Ping(answer=True))

LITTLE_BYTES = 16 * 1024  # that a connection may have in memory without being looked at
PIECE_BYTES = 64 * 1024  # of what was put off that are written at once
STALLED_S = 2.0  # that a peer has read nothing: it is cut off before others

logger = logging.getLogger("wayfare.net")


class Owner(Protocol):
    """Who a connection reports to."""

    def on_connected(self, connection: Connection) -> None: ...
    def on_messages(self, connection: Connection, messages: list[AnyMessage]) -> None: ...
    def on_closing(self, connection: Connection) -> None:
        """It is to be closed: call `finish` as soon as what was sent may be written."""

    def on_closed(self, connection: Connection) -> None: ...
    def on_output(self, connection: Connection) -> None:
        """There is something to write: call `flush` in this turn of the loop."""


class Meter(Protocol):
    """Measures what a peer sends, and makes it wait if that is too much."""

    def on_read(self, connection: Connection, messages: list[AnyMessage], size: int) -> None: ...


class Traffic:
    """What went over connections of one kind."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = 0

    def add(self, other: Traffic) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Buffers:
    """Bytes that connections have in memory: to be written, or of a frame that is not complete."""

    def __init__(self, grown: Callable[[], None]) -> None:
        """Whenever they become more, `grown` is called."""
        self._bytes = 0
        self.bodies = Bodies()  # of what waits in several of them
        self._grown = grown
        self._sizes: dict[Connection, int] = {}

    @property
    def bytes(self) -> int:
        return self._bytes + self.bodies.bytes

    def note(self, connection: Connection, size: int) -> None:
        """A connection has so many of its own now."""
        before = self._sizes.pop(connection, 0)
        self._bytes += size - before
        if size:
            self._sizes[connection] = size
        if size > before:
            self._grown()

    def refresh(self) -> None:
        """Look at all of them again: what was written is not kept any more."""
        for connection in list(self._sizes):
            self.note(connection, connection.buffered())

    def largest(self) -> tuple[Connection | None, int]:
        """Who has most, and how much: first of those that have read nothing for a while."""
        now = time.monotonic()
        sizes = [
            (one.is_stalled(now), size + one.put_off, one) for one, size in self._sizes.items()
        ]
        if not sizes:
            return None, 0
        _, size, connection = max(sizes, key=lambda one: one[:2])
        return connection, size


class Connection(asyncio.Protocol):
    """A connection to a broker or a client, from its first byte to its last."""

    # As in `Border`: it has more than 30 attributes.
    __slots__ = (
        "_body",
        "_buffers",
        "_bytes",
        "_closing",
        "_decoder",
        "_ending",
        "_frames",
        "_held",
        "_held_bytes",
        "_large",
        "_later",
        "_later_bytes",
        "_limits",
        "_parts",
        "_pauses",
        "_pinged_s",
        "_read_s",
        "_slicing",
        "_transport",
        "_us",
        "account",
        "attached_ns",
        "audited",
        "blocked",
        "called",
        "closing",
        "denied",
        "heard",
        "host",
        "how",
        "lazy",
        "link",
        "meter",
        "names",
        "origin",
        "out",
        "owner",
        "patient",
        "peer",
        "private",
        "put_off",
        "reason",
        "round_trip_s",
        "spoken",
        "timed",
        "tls",
        "traffic",
        "unmetered",
        "why",
        "words",
    )

    def __init__(
        self,
        owner: Owner,
        name: str,
        limits: NetLimits = DEFAULT_NET_LIMITS,
        *,
        stranger: bool = False,
        called: bool = False,
    ) -> None:
        """A stranger is read one message at a time, and only short ones, until its owner knows it."""
        self.owner = owner
        self._us = {"broker" if stranger else "client": name}  # for logs
        self.called = called  # we called, it did not
        self.host = ""  # of the peer, without its port
        self.origin = ""  # of the device behind it, if it is a proxy that is believed; else `host`
        self.tls = False
        self.private = False  # nobody else can hear it
        self.names: tuple[str, ...] = ()  # of the peer's certificate
        self.peer = ""  # its name, once it said Hello
        self.attached_ns = 0  # when its client attached, by the clock of its owner
        self.link = ""  # what the owner calls it
        self.reason = ""  # why it ended, if the peer or we said so
        self.closing = False
        self.blocked = False  # it does not read as fast as we write
        self.patient = False  # ... and its owner waits for it
        self.how = "closed"  # it ended: closed, lost, refused or cut
        self.why = ""  # we did that, in a word
        self.denied = ""  # what it asked for and is not granted
        self.account = ""  # that it has logged in with
        self.audited = False  # its refusal is in the audit log
        self.traffic = Traffic()
        self.meter: Meter | None = None
        self.unmetered = 0  # bytes that were read since the meter last looked
        self.words = 0  # messages before its owner knew who is there
        self.heard = False  # since somebody last looked
        self.spoken = False
        self.timed = False  # its round trips are wanted
        self.round_trip_s: float | None = None  # the last one
        self._pinged_s: float | None = None  # when a ping was sent that is not answered yet
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(
            limits.stranger_bytes if stranger else limits.frame_bytes,
            singly=stranger,
            slowly=stranger,
        )
        self._slicing = False  # what is here is read on in a later turn of the loop
        self._limits = limits
        self._bytes = 0  # read since somebody last looked
        self._pauses: set[str] = set()  # why it is not read
        self._held: bytearray | None = None  # what was read while nobody may see it
        self._closing: asyncio.TimerHandle | None = None
        self._buffers: Buffers | None = None  # where counts what it has in memory
        self._large = False  # that is more than a little
        self._held_bytes = 0  # of messages that its owner has not taken yet
        # Deliveries are encoded when there is room for them, and so is what comes behind: see `be_lazy`.
        self.lazy = False
        self._frames: Frames | None = None
        self._later: deque[bytes | tuple[Deliver, Body]] = deque()
        self._later_bytes = 0  # its own
        self.put_off = 0  # bytes of bodies in `_later`, whoever else has them
        self._parts: deque[memoryview] = deque()  # of what was taken from there, and is written now
        self._body: Body | None = None  # to which these belong
        self._read_s = 0.0  # when the peer last read something, or it did not have to
        self._ending = False  # it is closed as soon as all is written
        self.out: list[bytes] = [encode(Hello(PROTOCOL_VERSION, name))]  # what was sent

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._limits.write_bytes)
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        self.host = (transport.get_extra_info("peername") or ("",))[0]
        self.origin = self.host
        self.tls = transport.get_extra_info("ssl_object") is not None
        self.private = self.tls or is_loopback(self.host)
        self.names = names_of(transport.get_extra_info("peercert"))
        self.owner.on_connected(self)
        self.flush()

    def certificate(self) -> bytes | None:
        """That the peer has shown, in DER."""
        transport = self._transport
        tls = None if transport is None else transport.get_extra_info("ssl_object")
        return None if tls is None else tls.getpeercert(binary_form=True)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        self.unmetered += len(data)
        self.traffic.bytes_in += len(data)
        if self._held is not None:
            self._held += data
        elif not self.closing:
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Read what is here; if it takes long, in slices, so that others have their turn."""
        end = time.monotonic() + SLICE_S
        decoder = self._decoder
        late = False  # complete messages may still be here
        if decoder.long is not None:
            decoder.keep(data)
            data = b""
        try:
            while messages := self._decoded(data, end):
                self.heard = True
                self.traffic.messages_in += len(messages)
                if not self.peer:
                    messages = self._greeted(messages)
                if messages:
                    self.owner.on_messages(self, messages)
                if self.closing or self._held is not None:
                    return
                data = b""  # if there is more: tells at once of a bad frame behind good ones
                late = bool(decoder.costly) and time.monotonic() > end
                if late or not decoder.pending:
                    break
            if self._large or self._decoder.pending > LITTLE_BYTES:
                self._note()
        except CodecError as error:
            self.refuse(str(error), why="bytes")
            return
        if late or decoder.long is not None:
            self._read_later()

    def _decoded(self, data: bytes, end: float) -> list[AnyMessage]:
        """The next messages; none if there are none yet, or a long one takes longer than until then."""
        decoder = self._decoder
        if decoder.long is None:
            messages = decoder.feed(data)
            if messages or decoder.long is None:
                return messages
        try:
            while time.monotonic() < end:
                next(decoder.long)
        except StopIteration as done:
            decoder.long = None
            return [done.value]
        return []

    def _read_later(self) -> None:
        """Go on in another turn of the loop; until then, nothing more is read."""
        self._slicing = True
        self.hold()
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._slicing:
            self._slicing = False
            if not self.closing:
                self.heard = True  # it is us who are slow
                self.release()

    def _greeted(self, messages: list[AnyMessage]) -> list[AnyMessage]:
        first = messages[0]
        assert isinstance(first, Hello)  # the decoder insists on it
        self.peer = first.name
        self.owner.on_messages(self, [first])
        return messages[1:]

    def pause_writing(self) -> None:
        self.blocked = True
        if self._frames is not None:
            self.be_lazy()
        self._read_s = time.monotonic()
        self._note()
        self._mind_unread()

    def is_stalled(self, now: float) -> bool:
        """Whether the peer has not read anything for a while."""
        return self.blocked and now - self._read_s > STALLED_S

    def _mind_unread(self) -> None:
        """Cut off a peer for which too much waits, unless its owner waits for it."""
        transport, most = self._transport, self._limits.write_bytes
        if transport is None or self.patient:
            return
        if transport.get_write_buffer_size() + self._later_bytes + self.put_off > most:
            self.abort(f"it does not read: {most} bytes wait for it", why="unread")

    def resume_writing(self) -> None:
        self.blocked = False
        self._note()
        self.owner.on_output(self)

    def buffered(self) -> int:
        """Bytes that it has in memory, if they are more than a little."""
        unread = self._transport.get_write_buffer_size() if self._transport and self.blocked else 0
        unread += self._later_bytes
        pending = self._decoder.pending + self._held_bytes
        return unread + (pending if pending > LITTLE_BYTES else 0)

    def note_held(self, size: int) -> None:
        """Its owner keeps messages of this size, and takes them later."""
        self._held_bytes = size
        self._note()

    def _note(self) -> None:
        if self._buffers is not None:
            size = self.buffered()
            self._large = size > 0
            self._buffers.note(self, size)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.closing:
            self.how = "lost"
        self.closing = True
        self._transport = None
        self._drop_output()
        if self._buffers is not None:
            self._buffers.note(self, 0)
            self._buffers = None
        if self._closing is not None:
            self._closing.cancel()
        if exc is not None and not self.reason:
            self.reason = str(exc)
        self.owner.on_closed(self)

    # What the owner calls

    def send(self, frame: bytes) -> None:
        if self.lazy:
            self._put_off(frame, len(frame))
            return
        if not self.out:
            self.owner.on_output(self)
        self.out.append(frame)

    def send_later(self, message: Deliver) -> None:
        """Encode this when there is room for it: because it is large, much is sent, or the peer does not read.

        Until then it is one object, whoever else gets the same.
        """
        assert self._buffers is not None
        body = self._buffers.bodies.hold(message.notification)
        self.put_off += body.size
        self.be_lazy()
        self._put_off((message, body), ENTRY_BYTES)

    def be_lazy(self) -> None:
        """From now on everything waits, in order, until there is room: as long as it does, `out` is empty."""
        self.lazy = True
        out, self.out = self.out, []
        for frame in out:
            self._put_off(frame, len(frame))

    def _put_off(self, item: bytes | tuple[Deliver, Body], size: int) -> None:
        waits = self._later_bytes + self.put_off
        if not self.blocked or not self._later or waits > self._limits.write_bytes:
            self.owner.on_output(self)  # how much waits is looked at
        self._later.append(item)
        self._later_bytes += size

    def count_in(self, traffic: Traffic) -> None:
        """What went over this connection, and will, counts there."""
        traffic.add(self.traffic)
        self.traffic = traffic

    def count_buffers(self, buffers: Buffers, frames: Frames) -> None:
        """What it has in memory counts there, from a little on. Deliveries may be sent later."""
        self._buffers, self._frames = buffers, frames
        self.lazy = self.blocked
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=LITTLE_BYTES)

    def flush(self) -> None:
        """Write what was sent."""
        if self.out and self._transport is not None:
            data = self.out[0] if len(self.out) == 1 else b"".join(self.out)
            self.traffic.messages_out += len(self.out)
            self.traffic.bytes_out += len(data)
            self.out = []
            self.spoken = True
            self._transport.write(data)
        if self._later or self._parts:
            self._write_later()
        if self.blocked and self._buffers is not None:
            self._note()
            self._mind_unread()

    def _write_later(self) -> None:
        """Write of what was put off as much as the peer reads."""
        transport = self._transport
        while transport is not None and (self._later or self._parts) and not self.blocked:
            if not self._parts:
                self._encode_more()
            part = self._parts.popleft()
            piece, rest = part[:PIECE_BYTES], part[PIECE_BYTES:]
            if rest:
                self._parts.appendleft(rest)
            elif not self._parts:
                self._let_go_body()
            self.traffic.bytes_out += len(piece)
            self.spoken = True
            transport.write(piece)
            transport = self._transport
        if not self._later and not self._parts:
            self.lazy = self.blocked
            if self._ending and transport is not None:
                self._close_transport()
        self._note()

    def _encode_more(self) -> None:
        """Take small frames that make a piece together, or a large one."""
        some: list[bytes] = []
        size = 0
        while self._later and size < PIECE_BYTES:
            item = self._later[0]
            if isinstance(item, bytes):
                frame, own = item, len(item)
            else:
                assert self._frames is not None and self._buffers is not None
                message, body = item
                frame, own = self._frames.of_delivery(message), ENTRY_BYTES
                if not frame:
                    if some:
                        break
                    self._body = body
                    self._parts += map(memoryview, self._frames.parts(message, body))
                else:
                    self.put_off -= body.size
                    self._buffers.bodies.let_go(body)
            self._later.popleft()
            self._later_bytes -= own
            self.traffic.messages_out += 1
            if not frame:
                return
            some.append(frame)
            size += len(frame)
        self._parts.append(memoryview(b"".join(some)))

    def _let_go_body(self) -> None:
        body, self._body = self._body, None
        if body is not None and self._buffers is not None:
            self.put_off -= body.size
            self._buffers.bodies.let_go(body)

    def _drop_output(self) -> None:
        """Nothing more is written."""
        self.out.clear()
        self._parts.clear()
        self._let_go_body()
        for item in self._later:
            if not isinstance(item, bytes) and self._buffers is not None:
                self._buffers.bodies.let_go(item[1])
        self._later.clear()
        self._later_bytes = self.put_off = 0

    def admit(self, link: str) -> None:
        """It is known who is there: from now on read whatever comes."""
        self.link = link
        self._decoder.singly = False
        self.allow_long_frames()

    def allow_long_frames(self) -> None:
        self._decoder.frame_max = self._limits.frame_bytes

    @property
    def held(self) -> bool:
        """Nothing is read, and it is not the peer's fault."""
        return self._held is not None

    def hold(self) -> None:
        """Read nothing until `release`, not even what is here already."""
        self._held = bytearray()
        self.pause("held")

    def release(self) -> None:
        held, self._held = self._held, None
        self.resume("held")
        if held is not None and not self.closing:
            self._read(bytes(held))

    def pause(self, why: str = "") -> None:
        """Do not read, until no reason not to is left."""
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses.add(why)

    def resume(self, why: str = "") -> None:
        if why in self._pauses:
            self._pauses.discard(why)
            if not self._pauses and self._transport and not self._transport.is_closing():
                self._transport.resume_reading()

    def answer(self, ping: Ping) -> None:
        """The other end may have a quicker heartbeat than ours."""
        if not ping.answer:
            self.send(ANSWER)
        elif self._pinged_s is not None:
            self.round_trip_s = time.monotonic() - self._pinged_s
            self._pinged_s = None

    def beat(self) -> bool:
        """Say something if nothing was said, or heard; False if the peer was silent since last time.

        So was one that we did not listen to, but that is not its fault.
        """
        if self.timed and self._pinged_s is None:
            self._pinged_s = time.monotonic()
            self.send(PING)
        elif not (self.spoken and self.heard):
            self.send(PING)
        heard = self.heard or self._bytes >= self._limits.trickle_bytes or bool(self._pauses)
        self.heard, self.spoken, self._bytes = False, False, 0
        return heard

    def refuse(
        self,
        reason: str,
        *,
        again: bool = False,
        why: str | None = None,
        login: bool = False,
        details: str = "",
    ) -> None:
        """Close, and tell the peer why; with `again`, it may come again when there is room.

        why        in a word; unless given, "limit" with `again`, and else "protocol"
        login      its account or password is wrong
        details    for the log, and not for the peer
        """
        if not self.closing:
            self.how, self.why = "refused", why or ("limit" if again else "protocol")
            self._tell(
                "refused", "closed the connection of", reason + (details and f" ({details})")
            )
            self.send(encode(Refused(reason[:REASON_MAX], again, login)))
            self.close(reason)

    def who(self) -> str:
        """The peer, for logs."""
        return printable(self.peer) or f"a stranger at {self.host or 'an unknown place'}"

    def _tell(self, event: str, did: str, reason: str) -> None:
        (us,) = self._us
        tell(
            logger,
            logging.WARNING,
            event,
            f"%({us})s {did} %(peer)s: %(reason)s",
            **self._us,
            peer=self.who(),
            why=self.why,
            reason=printable(reason),
        )

    def close(self, reason: str = "") -> None:
        """Write what was sent, then close; from now on nothing is read."""
        if not self.closing:
            self.closing, self.reason = True, self.reason or reason
            self.owner.on_closing(self)

    def finish(self) -> None:
        self.flush()
        if self._later or self._parts:
            self._ending = True
            self._close_in_time()
        else:
            self._close_transport()

    def _close_transport(self) -> None:
        transport = self._transport
        if transport is not None:
            unread = 0 if self.tls else transport.get_write_buffer_size()  # TLS has its own time
            transport.close()
            if unread:  # who does not read is not waited for
                self._close_in_time()

    def _close_in_time(self) -> None:
        if self._transport is not None and self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(self._limits.closing_s, self._transport.abort)

    def abort(self, reason: str, *, why: str = "silent") -> None:
        """Close at once; what was sent may be lost."""
        if not self.closing:
            self.how, self.why = "cut", why
            self._tell("cut_off", "cut off", reason)
        self.closing, self.reason = True, self.reason or reason
        self._drop_output()
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
