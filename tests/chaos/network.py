"""Real brokers and clients, one process each, with a relay on every link and at every door.

    child --- relay "child-parent" ---> parent
    client --- relay "client@broker" ---> broker

A process that ends although nobody asked for it is remembered in `surprises`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.request import urlopen

import msgspec

from chaos import plan as planned
from chaos.client import Task
from chaos.plan import Plan
from proxy import Proxy
from wayfare.net.addresses import Address
from wayfare.service.nodes import free_ports

TESTS = Path(__file__).resolve().parent.parent
HERE = "127.0.0.1"
HEARTBEAT_S = 1.0
START_S = 60.0  # that a process may take to be there, on a busy machine
STOP_S = 30.0
# If this process is killed nobody else ends its children: on Linux the kernel does.
WITH_PARENT = (
    [
        sys.executable,
        "-c",
        "import ctypes, os, signal, sys\n"
        "ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG\n"
        "os.execv(sys.argv[1], sys.argv[1:])",
    ]
    if sys.platform == "linux"
    else []
)

# What is lost for a limit is another story.
LIMITS = """
backlog_count = 10_000_000
backlog_bytes = "4GiB"
held_count = 10_000_000
link_count = 10_000_000
link_bytes = "4GiB"
link_away = "1h"
moves_per_minute = 100_000
"""


class StartFailed(Exception):
    """A process did not start; its exit code is `code`, if it has ended."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class Process:
    """A child process that may be killed, stopped, and started again. Its stderr is appended to a file."""

    def __init__(self, name: str, command: list[str], log: Path, surprises: list[str]) -> None:
        self.name = name
        self._command, self._log, self._surprises = command, log, surprises
        self._child: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    async def start(self) -> None:
        """Returns when the process has said its first line."""
        with self._log.open("ab") as log:
            self._child = child = await self._spawn(log)
        assert child.stdout is not None
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                line = await child.stdout.readline()
        if not line:
            code = await self.kill()
            raise StartFailed(f"{self.name} did not start; see {self._log}", code)
        self._watcher = asyncio.create_task(self._watch(child))

    async def _spawn(self, log: BinaryIO) -> asyncio.subprocess.Process:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        return await asyncio.create_subprocess_exec(
            *WITH_PARENT,
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us
        )

    async def _watch(self, child: asyncio.subprocess.Process) -> None:
        code = await child.wait()
        self._surprises.append(f"{self.name} ended with {code}; see {self._log}")

    def tell(self, order: dict[str, Any]) -> None:
        assert self._child is not None and self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.write(json.dumps(order).encode() + b"\n")

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> int | None:
        return await self._end(signal.SIGKILL)

    async def terminate(self) -> int | None:
        """Ask it to stop; if it does not, it is killed, and that is a surprise."""
        return await self._end(signal.SIGTERM)

    async def ended(self, seconds: float) -> int | None:
        """The exit code, if it ends by itself within that time."""
        self._unwatch()
        assert self._child is not None
        try:
            async with asyncio.timeout(seconds):
                return await self._child.wait()
        except TimeoutError:
            self._watcher = asyncio.create_task(self._watch(self._child))
            return None

    async def _end(self, how: int) -> int | None:
        if self._child is None:
            return None
        self._unwatch()
        self.signal(how)
        try:
            async with asyncio.timeout(STOP_S):
                await self._child.wait()
        except TimeoutError:
            self._surprises.append(f"{self.name} did not stop within {STOP_S:g} s")
            self.signal(signal.SIGKILL)
            await self._child.wait()
        code, self._child = self._child.returncode, None
        return code

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None


class Network:
    """Everything that a plan needs, in one directory. Use it with `async with`."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan, self.directory = plan, directory
        self.surprises: list[str] = []
        self.every_s: float | None = None  # between two batches of a publisher
        self.brokers: dict[str, Process] = {}
        self.clients: dict[str, Process] = {}
        self.roads: dict[str, Proxy] = {}  # by `child-parent`, and by `client@broker`
        self.busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        ports = iter(free_ports(2 * len(plan.brokers)))
        self.ports = {one.name: next(ports) for one in plan.brokers}
        self.status_ports = {one.name: next(ports) for one in plan.brokers}

    async def __aenter__(self) -> Network:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        for broker in self.plan.brokers:
            if broker.parent:
                await self._open_road(f"{broker.name}-{broker.parent}", broker.parent)
            self.brokers[broker.name] = self._broker(broker)
        await asyncio.gather(*(one.start() for one in self.brokers.values()))
        for client in self.plan.clients:
            for name in self._goes_to(client):
                await self._open_road(f"{client.name}@{name}", name)
            self.clients[client.name] = self._client(client)
        await asyncio.gather(*(one.start() for one in self.clients.values()))

    async def stop(self) -> None:
        for one in [*self.clients.values(), *self.brokers.values()]:
            await one.kill()
        for road in self.roads.values():
            await road.stop()

    async def _open_road(self, name: str, broker: str) -> None:
        road = self.roads[name] = Proxy(Address(HERE, self.ports[broker]))
        await road.start()

    def _broker(self, one: planned.Broker) -> Process:
        file = self.directory / f"{one.name}.toml"
        file.write_text(self._configuration(one))
        command = [sys.executable, "-m", "wayfare", "broker", "--config", str(file)]
        command += ["--log-level", "debug"]
        return Process(one.name, command, self.directory / f"{one.name}.log", self.surprises)

    def _configuration(self, one: planned.Broker) -> str:
        near = {other.name: "" for other in self.plan.brokers if other.parent == one.name}
        if one.parent:
            near[one.parent] = self.roads[f"{one.name}-{one.parent}"].url.partition("://")[2]
        neighbours = "\n".join(f'{name} = "{address}"' for name, address in near.items())
        keeps = f'directory = "{one.name}"\n' if one.durability != "memory" else ""
        return (
            f'name = "{one.name}"\nlisten = "{HERE}:{self.ports[one.name]}"\n'
            f'heartbeat = "{HEARTBEAT_S:g}s"\n[neighbours]\n{neighbours}\n'
            f'[limits]\nanswer = "{self.plan.answer_s:g}s"{LIMITS}\n'
            f'[durability]\nmode = "{one.durability}"\n{keeps}'
            f"[status]\nport = {self.status_ports[one.name]}\n"
        )

    def _goes_to(self, one: planned.Client) -> list[str]:
        return [one.home] if one.home else [broker.name for broker in self.plan.brokers]

    def _client(self, one: planned.Client) -> Process:
        task = Task(
            one.name,
            [self.roads[f"{one.name}@{name}"].url for name in self._goes_to(one)],
            str(self.journal(one.name)),
            store=str(self.directory / f"{one.name}.db") if one.store else None,
            publishes=one.publishes,
            wants=one.wants,
            heartbeat_s=HEARTBEAT_S,
            seed=self.plan.seed,
        )
        command = [sys.executable, "-m", "chaos.client", msgspec.json.encode(task).decode()]
        return Process(one.name, command, self.directory / f"{one.name}.log", self.surprises)

    def pace(self, every_s: float | None) -> None:
        """Have publishers publish a batch that often; None: not at all."""
        self.every_s = every_s
        for one in self.clients.values():
            one.tell({"do": "pace", "every_s": every_s})

    def journal(self, client: str) -> Path:
        return self.directory / f"{client}.jsonl"

    def store(self, broker: str) -> Path:
        return self.directory / broker

    async def status(self, broker: str) -> dict[str, Any]:
        """What the broker says about itself."""

        def fetch() -> dict[str, Any]:
            url = f"http://{HERE}:{self.status_ports[broker]}/status"
            with urlopen(url, timeout=10) as answer:
                return dict(json.load(answer)["brokers"][0])

        return await asyncio.to_thread(fetch)
