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
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from wayfare.errors import UsageError
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.limits import NetLimits

HERE = "127.0.0.1"
START_S = 20.0  # that a broker may take until it listens
RATE = 10_000_000  # messages a second from one client: more than there can be
QUIET_S = 3600.0  # between two heartbeats: load generators neither send nor understand them

_spawn = get_context("spawn")


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


@contextlib.contextmanager
def brokers(
    edges: Sequence[tuple[str, str]] = (), heartbeat_s: float = QUIET_S
) -> Iterator[dict[str, Process]]:
    """A process for each broker of a tree; of an edge, the second one calls the first."""
    names = list(dict.fromkeys(name for edge in edges for name in edge)) or ["lisbon"]
    running: dict[str, Process] = {}
    stop = []
    try:
        for name in names:
            near: dict[str, int | None] = {}
            for a, b in edges:
                if name == b:
                    near[a] = running[a].port
                elif name == a:
                    near[b] = None
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(target=_serve, args=(theirs, name, near, heartbeat_s))
            process.start()
            stop.append((ours, process))
            if not ours.poll(START_S):
                raise UsageError(f"broker {name} did not start within {START_S:g} s")
            assert process.pid is not None
            running[name] = Process(process.pid, ours.recv())
        yield running
    finally:
        for ours, _ in stop:
            with contextlib.suppress(OSError):
                ours.send("stop")
        for _, process in stop:
            process.join(START_S)
            if process.is_alive():
                process.kill()


def _serve(pipe: Pipe, name: str, near: Mapping[str, int | None], heartbeat_s: float) -> None:
    logging.disable(logging.WARNING)
    asyncio.run(_broker(pipe, name, near, heartbeat_s))


async def _broker(
    pipe: Pipe, name: str, near: Mapping[str, int | None], heartbeat_s: float
) -> None:
    neighbours = {one: None if port is None else Address(HERE, port) for one, port in near.items()}
    broker = BrokerHost(
        name, neighbours, heartbeat_s=heartbeat_s, net_limits=NetLimits(messages_per_second=RATE)
    )
    address = await broker.start(Address(HERE, 0))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), stop.set)
    pipe.send(address.port)
    await stop.wait()
    await broker.stop()


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
