"""A live wireless link: a TCP relay that is as slow as `wayfare.channel` says.

    a mobile's connections -->  one Line up    --> access point
                           <--  one Line down  <--

All connections of one emulator are one mobile's, so they share its radio link: a Line each way. A Line
takes packets, asks its Channel when they arrive, and hands them over then. A new connection crosses it
three times before it carries anything, as a handshake does, and its end and its reset cross it, too,
behind the bytes that are on their way. A Line that is full is not fed: then nobody reads from the sender,
whose own buffers fill up.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from types import TracebackType

import msgspec

from wayfare.channel import S_NS, Channel, Direction, Profile, find
from wayfare.errors import UsageError
from wayfare.net.alarm import Alarm

QUEUE_BYTES_MAX = 64 * 1024
QUEUE_NS_MAX = 2 * S_NS
CONNECTIONS_MAX = 1000
SOCKET_BYTES = 32 * 1024  # that the kernel holds for us: what it holds is no part of the model
_AT_ONCE = struct.pack("ii", 1, 0)  # for SO_LINGER: a close is a reset

Place = tuple[str, int]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Way(msgspec.Struct, frozen=True):
    """What crossed the link one way."""

    bytes: int
    packets: int
    again: int  # times that a broken packet was sent again
    mean_delay_ms: float | None  # of packets, from when they came until they were handed over


class Facts(msgspec.Struct, frozen=True):
    connections: int
    refused: int  # of them, because nobody answered where they should go
    up: Way
    down: Way


class _Parcel(msgspec.Struct):
    due: int
    since: int
    size: int
    arrive: Callable[[], None]


class Line:
    """One way of the radio link, for all connections: what is on its way, in order."""

    def __init__(self, direction: Direction, random: Random) -> None:
        self.channel = Channel(direction, random)
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._parcels: deque[_Parcel] = deque()
        self._size = 0  # of all of them
        self._alarm = Alarm(self._hand_over)  # Invariant: set unless cut or empty
        self.is_cut = False
        self._moved = asyncio.Event()
        self._arrived = self._arrived_bytes = self._delay_ns = 0

    def now(self) -> int:
        return int((self._loop.time() - self._start) * S_NS)

    def send(self, size: int, arrive: Callable[[], None]) -> None:
        """So many bytes leave as soon as they can; `arrive` is called when they are there."""
        now = self.now()
        due = now if self.is_cut else self.channel.send(now, size)
        self._parcels.append(_Parcel(due, now, size, arrive))
        self._size += size
        self._arm()

    def cross(self) -> asyncio.Future[None]:
        """Send a packet without data; wait for the result to know when it is there."""
        there = self._loop.create_future()

        def arrive() -> None:
            if not there.done():
                there.set_result(None)

        self.send(0, arrive)
        return there

    async def room(self) -> None:
        """Wait until the line can take more."""
        while True:
            late_ns = self.channel.free_at - self.now() - QUEUE_NS_MAX
            if self.is_cut or self._size >= QUEUE_BYTES_MAX:
                self._moved.clear()
                await self._moved.wait()
            elif late_ns > 0:
                await asyncio.sleep(late_ns / S_NS)
            else:
                return

    def cut(self) -> None:
        """Nothing arrives any more; what is on its way stays with its sender."""
        self.is_cut = True
        self._alarm.clear()

    def restore(self) -> None:
        """Send what did not arrive again, in order."""
        if not self.is_cut:
            return
        self.is_cut = False
        now = self.now()
        self.channel.clear(now)
        for parcel in self._parcels:
            parcel.due = self.channel.send(now, parcel.size)
        self._arm()
        self._moved.set()

    def _arm(self) -> None:
        if self._parcels and not self.is_cut:
            self._alarm.set(self._parcels[0].due, self.now())

    def _hand_over(self) -> None:
        now = self.now()
        while self._parcels and self._parcels[0].due <= now:
            parcel = self._parcels.popleft()
            self._size -= parcel.size
            self._arrived += 1
            self._arrived_bytes += parcel.size
            self._delay_ns += now - parcel.since
            parcel.arrive()
        self._moved.set()
        self._arm()

    def close(self) -> None:
        self._alarm.clear()
        self._parcels.clear()

    def facts(self) -> Way:
        mean_ms = self._delay_ns / self._arrived / 1e6 if self._arrived else None
        mean_ms = None if mean_ms is None else round(mean_ms, 3)
        return Way(self._arrived_bytes, self.channel.packets, self.channel.again, mean_ms)


class Emulator:
    """One mobile's radio link. `async with Emulator("gprs", ("127.0.0.1", 7410)) as emulator:` connect to
    `emulator.port`.

    `move` sends new connections to another access point. `cut` is a tunnel: connections are stuck, and go
    on after `restore`.
    """

    def __init__(
        self,
        profile: Profile | str,
        to: Place,
        seed: int = 0,
        listen: Place = ("127.0.0.1", 0),
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.profile = find(profile) if isinstance(profile, str) else profile
        self.connections = self.refused = 0
        self._first = (to, listen)
        self._seed = seed
        self._tell = tell or (lambda _: None)
        self._targets: dict[int, Place] = {}  # by the port where we listen
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def __aenter__(self) -> Emulator:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        random = Random(self._seed)
        ways = (self.profile.up, self.profile.down)
        self.up, self.down = (Line(way, Random(random.getrandbits(64))) for way in ways)
        to, listen = self._first
        self.port = await self.listen(to, *listen)

    async def listen(self, to: Place, host: str = "127.0.0.1", port: int = 0) -> int:
        """Another port whose connections go over the same radio link, to this place."""
        try:
            server = await asyncio.start_server(
                lambda *near: self._accept(near, self._targets[port]),
                host,
                port,
                limit=SOCKET_BYTES,
            )
        except OSError as error:
            raise UsageError(
                f"cannot listen at {host}:{port} ({_reason(error)}): choose another port, or stop"
                " what listens there"
            ) from None
        for one in server.sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self._servers.append(server)
        port = int(server.sockets[0].getsockname()[1])
        self._targets[port] = to
        return port

    async def stop(self) -> None:
        """Reset all connections."""
        self._stopped = True
        for server in self._servers:
            server.close()
        self._break_all()
        await asyncio.gather(*self._open, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        self.up.close()
        self.down.close()

    # What happens to a mobile

    def move(self, to: Place, port: int | None = None) -> None:
        """New connections go there from now on; those that are open stay where they are."""
        self._targets[self.port if port is None else port] = to

    def cut(self, *, reset: bool = False) -> None:
        """No reception: everything is stuck. With `reset` connections break, too, at both ends."""
        self.up.cut()
        self.down.cut()
        if reset:
            self._break_all()

    def restore(self) -> None:
        self.up.restore()
        self.down.restore()

    def _break_all(self) -> None:
        for task in self._open:
            task.cancel()

    def facts(self) -> Facts:
        return Facts(self.connections, self.refused, self.up.facts(), self.down.facts())

    # One connection

    def _accept(self, near: Streams, to: Place) -> None:
        if self._stopped:  # it was accepted while we closed
            _reset(near[1])
            return
        if len(self._open) >= CONNECTIONS_MAX:
            self._tell(f"{CONNECTIONS_MAX} connections are open, so another one was reset")
            _reset(near[1])
            return
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._carry(near, to))
        self._open.add(task)

        def end(_: object) -> None:
            self._open.discard(task)
            _reset(near[1])  # if it was cancelled before it began, nobody else does

        task.add_done_callback(end)

    async def _carry(self, near: Streams, to: Place) -> None:
        far: Streams | None = None
        try:
            await self.up.cross()
            far = await self._reach(to)
            await self.down.cross()
            if far is None:
                return
            confirmed = self.up.cross()
            await asyncio.gather(
                _pump(near, far, self.up, self.down),
                _pump(far, near, self.down, self.up, confirmed),
            )
            for _, writer in (near, far):
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
        finally:
            for _, writer in (near, far or near):
                _reset(writer)

    async def _reach(self, to: Place) -> Streams | None:
        try:
            far = await asyncio.open_connection(*to, limit=SOCKET_BYTES)
        except (OSError, UnicodeError) as error:  # that is of names which no host has
            self.refused += 1
            self._tell(
                f"cannot reach {to[0]}:{to[1]} ({_reason(error)}), so a connection was reset:"
                " start what should listen there, or give another --to"
            )
            return None
        _socket(far[1]).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        return far


async def _pump(
    source: Streams,
    target: Streams,
    line: Line,
    back: Line,
    when: asyncio.Future[None] | None = None,
) -> None:
    """Carry what comes, and then that it has ended. A reset crosses the link as everything does."""
    (reader, _), (_, writer) = source, target
    gone = partial(back.send, 0, partial(_reset, source[1]))
    if when is not None:
        await when
    while True:
        await line.room()
        try:
            await writer.drain()
        except OSError:  # the target is gone; that it is takes its time to get here
            await back.cross()
            return
        try:
            data = await reader.read(line.channel.direction.payload)
        except OSError:
            await line.cross()
            _reset(writer)
            return
        if not data:
            break
        line.send(len(data), partial(_write, writer, data, gone))
    await line.cross()
    if not writer.is_closing():
        with suppress(OSError):
            writer.write_eof()


def _write(writer: asyncio.StreamWriter, data: bytes, gone: Callable[[], None]) -> None:
    if not writer.is_closing():
        writer.write(data)
    if writer.is_closing():
        gone()


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        with suppress(OSError):
            _socket(writer).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()


def _socket(writer: asyncio.StreamWriter) -> socket.socket:
    # It is the transport's; only its options are changed here.
    return writer.get_extra_info("socket")  # type: ignore[no-any-return]


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "there is no such host"
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno) if error.errno else str(error)
