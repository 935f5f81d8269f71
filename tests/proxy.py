"""A TCP proxy that makes trouble: it cuts, delays, half-closes, throttles, and swallows a direction.

`up` is from who connects to the target, `down` the way back.
"""

import asyncio
from contextlib import asynccontextmanager, suppress

from wayfare.net.addresses import Address

CHUNK = 16 * 1024


class Proxy:
    def __init__(self, target):
        self.target = target
        self.address = None
        self.delay_s = 0.0  # for each chunk, so it is also a limit of speed
        self.bytes_per_s = None
        self.passed = {"up": 0, "down": 0}  # bytes
        self.accepted = 0  # connections
        self._open = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._pairs = {}  # task: its two writers
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
            there, back = await asyncio.open_connection(self.target.host, self.target.port)
            self._pairs[task].append(back)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump("up", reader, back))
                group.create_task(self._pump("down", there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        except ExceptionGroup as group:
            if group.split(OSError)[1] is not None:
                raise
        finally:
            for one in self._pairs.pop(task):
                one.transport.abort()

    async def _pump(self, direction, reader, writer):
        while data := await reader.read(CHUNK):
            await self._open[direction].wait()
            wait = self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0)
            if wait:
                await asyncio.sleep(wait)
                await self._open[direction].wait()
            self.passed[direction] += len(data)
            with suppress(RuntimeError):  # half-closed: what comes now goes nowhere
                writer.write(data)
            await writer.drain()
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
