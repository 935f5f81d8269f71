"""Brokers in processes of their own, on loopback, and what they take."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from wayfare.core.history import Limits
from wayfare.errors import UsageError
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.limits import NetLimits

HERE = "127.0.0.1"
START_S = 20.0  # that a broker may take until it listens
RATE = 10_000_000  # messages a second from one client: more than there can be
QUIET_S = 3600.0  # between two heartbeats: load generators neither send nor understand them

_spawn = get_context("spawn")
Work = Callable[..., Coroutine[Any, Any, None]]


class Process:
    """A broker that runs by itself: where it listens, and what it takes."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    @property
    def url(self) -> str:
        return f"wayfare://{HERE}:{self.port}"

    def cpu_ns(self) -> int:
        """CPU time so far, of user and system."""
        if sys.platform != "linux":
            raise UsageError("the CPU time of another process can be read on Linux only")
        return time.clock_gettime_ns(~self.pid << 3 | 2)  # as clock_getcpuclockid(3) has it

    def memory(self) -> int:
        """Bytes that are resident."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text("ascii").split()
        except OSError:
            raise UsageError("the memory of another process can be read on Linux only") from None
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak(self) -> int:
        """Bytes that were resident at most."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text("ascii").splitlines()
        except OSError:
            raise UsageError("the memory of another process can be read on Linux only") from None
        (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM")]
        return int(peak) * 1024


@contextlib.contextmanager
def brokers(
    edges: Sequence[tuple[str, str]] = (),
    heartbeat_s: float = QUIET_S,
    delay_s: float = 0.0,
    limits: Limits | None = None,
) -> Iterator[dict[str, Process]]:
    """A process for each broker of a tree; of an edge, the second one calls the first.

    With a delay, a process for each link that holds back what it carries, in both directions.
    """
    names = list(dict.fromkeys(name for edge in edges for name in edge)) or ["lisbon"]
    running: dict[str, Process] = {}
    stop: list[tuple[Pipe, SpawnProcess]] = []
    try:
        for name in names:
            near: dict[str, int | None] = {}
            for a, b in edges:
                if name == b:
                    near[a] = running[a].port
                    if delay_s:
                        near[a] = _start(stop, _delay, running[a].port, delay_s).port
                elif name == a:
                    near[b] = None
            running[name] = _start(stop, _broker, name, near, heartbeat_s, limits)
        yield running
    finally:
        for pipe, _ in stop:
            with contextlib.suppress(OSError):
                pipe.send("stop")
        for _, process in stop:
            process.join(START_S)
            if process.is_alive():
                process.kill()


def _start(stop: list[tuple[Pipe, SpawnProcess]], work: Work, *arguments: Any) -> Process:
    """Do that work in another process, until it is told to stop."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=_serve, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    stop.append((ours, process))
    if not ours.poll(START_S):
        raise UsageError(f"{arguments[0]} did not start within {START_S:g} s")
    assert process.pid is not None
    return Process(process.pid, ours.recv())


def _serve(pipe: Pipe, work: Work, arguments: tuple[Any, ...]) -> None:
    logging.disable(logging.WARNING)
    asyncio.run(work(pipe, *arguments))


async def _until_stopped(pipe: Pipe, port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), stop.set)
    pipe.send(port)
    await stop.wait()


async def _broker(
    pipe: Pipe,
    name: str,
    near: Mapping[str, int | None],
    heartbeat_s: float,
    limits: Limits | None,
) -> None:
    neighbours = {one: None if port is None else Address(HERE, port) for one, port in near.items()}
    broker = BrokerHost(
        name,
        neighbours,
        heartbeat_s=heartbeat_s,
        limits=limits or Limits(),
        net_limits=NetLimits(messages_per_second=RATE),
    )
    address = await broker.start(Address(HERE, 0))
    await _until_stopped(pipe, address.port)
    await broker.stop()


async def _delay(pipe: Pipe, port: int, delay_s: float) -> None:
    """Accept connections, and let each reach that port, late."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Late(delay_s, port), HERE, 0)
    await _until_stopped(pipe, server.sockets[0].getsockname()[1])
    server.close()


class Late(asyncio.Protocol):
    """One end of a connection that takes its time: what it reads, the other end writes later."""

    def __init__(self, delay_s: float, port: int | None = None) -> None:
        self._delay_s = delay_s
        self._port = port  # where the other end has to go, if it is not there yet
        self._waiting: deque[bytes] = deque()
        self._calling: asyncio.Task[None] | None = None
        self.other: Late | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._port is not None:
            transport.pause_reading()
            calling = self._call(transport, self._port)
            self._calling = asyncio.get_running_loop().create_task(calling)

    async def _call(self, transport: asyncio.Transport, port: int) -> None:
        loop = asyncio.get_running_loop()
        _, self.other = await loop.create_connection(lambda: Late(self._delay_s), HERE, port)
        self.other.other = self
        transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._waiting.append(data)
        asyncio.get_running_loop().call_later(self._delay_s, self._pass_on)

    def _pass_on(self) -> None:
        data = self._waiting.popleft()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)


MOSQUITTO = """per_listener_settings false
listener {port} 127.0.0.1
allow_anonymous true
persistence false
log_type error
max_queued_messages 0
set_tcp_nodelay true
"""


def which_mosquitto() -> str | None:
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def mosquitto(program: str) -> Iterator[Process]:
    """A mosquitto that keeps nothing on disk."""
    with socket.socket() as free:
        free.bind((HERE, 0))
        port = free.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write(MOSQUITTO.format(port=port))
        config.flush()
        process = subprocess.Popen([program, "-c", config.name], stderr=subprocess.DEVNULL)
        try:
            _await_listening(port)
            yield Process(process.pid, port)
        finally:
            process.terminate()
            process.wait()


def _await_listening(port: int) -> None:
    late = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((HERE, port)).close()
            return
        except OSError as error:
            if time.monotonic() > late:
                raise UsageError(f"mosquitto did not start: {error}") from None
            time.sleep(0.02)
