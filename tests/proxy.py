"""A TCP proxy that makes trouble: it cuts, delays, half-closes, throttles, and swallows a direction.

`up` is from who connects to the target, `down` the way back. It may also leave a connection half open,
or break it between a client's Attach and the Welcome.
"""

import asyncio
from contextlib import asynccontextmanager, suppress

from wayfare.core.codec import FrameDecoder
from wayfare.core.messages import Attach
from wayfare.net.addresses import Address

CHUNK = 16 * 1024
GREETING_S = (
    0.05  # between the caller's first words and the end of a connection whose greeting is lost
)


class Proxy:
    def __init__(self, target):
        self.target = target
        self.address = None
        self.delay_s = 0.0  # for each chunk, so it is also a limit of speed
        self.bytes_per_s = None
        self.passed = {"up": 0, "down": 0}  # bytes
        self.accepted = 0  # connections
        self._open = {"up": asyncio.Event(), "down": asyncio.Event()}
        self.refuses = False  # new connections end at once
        self.greetings_to_lose = 0  # connections of clients that break before the Welcome
        self._pairs = {}  # task: its two writers
        self._half_open = set()  # tasks of connections of which one end is gone
        self._server = None
        self.heal()

    @property
    def url(self):
        return str(self.address)

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address(*self._server.sockets[0].getsockname())

    async def stop(self):
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    # Trouble

    def cut(self):
        """Break all connections, both ends at once, with whatever is on its way."""
        for task, writers in list(self._pairs.items()):
            for writer in writers:
                writer.transport.abort()
            task.cancel()

    def half_close(self, direction):
        """End one direction of all connections, and leave the other one as it is."""
        for writers in self._pairs.values():
            with suppress(OSError, RuntimeError, IndexError):  # it may not be connected yet
                writers[("down", "up").index(direction)].write_eof()

    def half_open(self, end):
        """The caller's or the called end of all connections is gone, and the other end is not told."""
        for task, writers in list(self._pairs.items()):
            if len(writers) == 2:
                self._half_open.add(task)
                writers[("caller", "called").index(end)].transport.abort()

    def swallow(self, *directions):
        """Nothing gets through any more, and nobody is told: until `heal`, or for ever."""
        for direction in directions or ("up", "down"):
            self._open[direction].clear()

    def heal(self):
        for event in self._open.values():
            event.set()

    # Work

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self.accepted += 1
        self._pairs[task] = [writer]
        try:
            if self.refuses:
                return
            there, back = await asyncio.open_connection(self.target.host, self.target.port)
            self._pairs[task].append(back)
            pump, shared = self._pump, task
            if self.greetings_to_lose:
                self.greetings_to_lose -= 1
                pump, shared = self._lose_greeting, asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(pump("up", reader, back, shared))
                group.create_task(pump("down", there, writer, shared))
        except (OSError, asyncio.CancelledError):
            pass
        except ExceptionGroup as group:
            if group.split(OSError)[1] is not None:
                raise
        finally:
            self._half_open.discard(task)
            for one in self._pairs.pop(task):
                one.transport.abort()

    async def _pump(self, direction, reader, writer, task):
        try:
            await self._pass_on(direction, reader, writer, task)
        except OSError:
            if task not in self._half_open:
                raise
        if task in self._half_open:
            await asyncio.Event().wait()  # until it is cut

    async def _lose_greeting(self, direction, reader, writer, waits):
        """Both ends are gone as soon as the client's Attach has passed, and before it hears of that.

        A client that attaches before it is greeted is never greeted.
        """
        if direction == "down":
            await waits.wait()
            writer.write(await reader.read(CHUNK))
            await asyncio.Event().wait()
        decoder = FrameDecoder()
        while data := await reader.read(CHUNK):
            writer.write(data)
            if any(isinstance(one, Attach) for one in decoder.feed(data)):
                await asyncio.sleep(GREETING_S)
                raise ConnectionAbortedError
            waits.set()  # it wants to be greeted first

    async def _pass_on(self, direction, reader, writer, task):
        while (data := await reader.read(CHUNK)) and task not in self._half_open:
            await self._open[direction].wait()
            wait = self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0)
            if wait:
                await asyncio.sleep(wait)
                await self._open[direction].wait()
            if task in self._half_open:
                return
            self.passed[direction] += len(data)
            with suppress(RuntimeError):  # half-closed: what comes now goes nowhere
                writer.write(data)
            await writer.drain()
        if task not in self._half_open:
            with suppress(OSError, RuntimeError):
                writer.write_eof()


@asynccontextmanager
async def proxy(target):
    out = Proxy(target)
    await out.start()
    try:
        yield out
    finally:
        await out.stop()
