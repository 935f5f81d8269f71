"""One process of an overlay: how it is started, what it has said, whether it is ready."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from wayfare.errors import UsageError

HERE = "127.0.0.1"
NAMES = ("a", "b", "c")
LINE = {"a": "b", "b": "ac", "c": "b"}  # who has whom as neighbours
PORTS = range(20_000, 32_000)  # below those that the system gives to whoever calls
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
ASK_S = 2.0  # that an answer may take
POLL_S = 0.05
SHOWN = 300  # characters of what it said, in an error

Fact = Callable[[], Awaitable[bool]]


class Node:
    """A server with a directory of its own, where it also finds its configuration."""

    def __init__(
        self,
        name: str,
        port: int,
        directory: Path,
        command: Sequence[str | Path],
        environment: Mapping[str, object] | None = None,
    ) -> None:
        self.name, self.port, self.directory, self.command = name, port, directory, command
        self.environment = {key: str(value) for key, value in (environment or {}).items()}
        self.first = False  # whether the others need it when they start
        self.linked: Fact = _alone  # whether its neighbours and it have found each other
        self._output = directory / "output.log"
        self._heard_from = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. What is said from now on counts, and where the system can, it dies with us."""
        if self.running:
            raise UsageError(f"{self.name} runs: kill it first")
        self.mark()
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*_bound_to_us(), *self.command],
                cwd=self.directory,
                env={**os.environ, "PATH": PATH, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us, and a kill is for all its children
            )

    def kill(self) -> None:
        """As kill -9, with all that it has started. Returns when it is gone."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so nobody else has this id
            process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UsageError(f"{self.name} does not run")
        return self._process.pid

    def mark(self) -> None:
        """Forget what was said."""
        self._heard_from = self._output.stat().st_size if self._output.exists() else 0

    def said(self) -> str:
        with self._output.open("rb") as output:
            output.seek(self._heard_from)
            return output.read().decode("utf-8", "replace")

    async def until(self, fact: Fact) -> None:
        """Wait for it; UsageError if the process ends before."""
        while not await fact():
            if self._has_ended():
                program = Path(self.command[0]).name
                raise UsageError(f"{program} ({self.name}) ended at once: {self.last_words()}")
            await asyncio.sleep(POLL_S)

    def last_words(self) -> str:
        """The first line with an error, or the last one; and where the others are."""
        lines = [line for line in self.said().splitlines() if line.strip()] or ["it said nothing"]
        words = next((line for line in lines if "error" in line.lower()), lines[-1])
        return f"{words.strip()[:SHOWN]} (see {self._output})"

    async def listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HERE, self.port)
        except OSError:
            return False
        writer.transport.abort()
        return True

    def _has_ended(self) -> bool:
        """Look without taking the process's id away: `kill` needs it for those it has started."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, look) is not None


async def _alone() -> bool:
    return True


def _bound_to_us() -> list[str]:
    """What starts a process that is killed when the thread that started it is no more."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "KILL"] if program else []


def free_ports(count: int) -> list[int]:
    """Ports where nobody listens, and which nobody else gets here as long as this process lives."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if _claim(port):
            found.append(port)
        if len(found) == count:
            return found
    raise UsageError(f"no {count} ports of {HERE} are free from {PORTS.start} to {PORTS.stop - 1}")


def _claim(port: int) -> bool:
    """Servers take a while until they listen: meanwhile, that UDP is taken keeps other processes off."""
    claim = socket.socket(type=socket.SOCK_DGRAM)
    try:
        claim.bind((HERE, port))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HERE, port))
    except OSError:
        claim.close()
        return False
    claim.detach()
    return True


def three_ports(purposes: int) -> list[dict[str, int]]:
    """For each purpose, a port of each node."""
    found = free_ports(purposes * len(NAMES))
    return [dict(zip(NAMES, found[i::purposes], strict=True)) for i in range(purposes)]


async def ask(port: int, question: str) -> str:
    """Give all that is answered before the connection is closed; nothing if nobody is there."""
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(HERE, port)
            try:
                writer.write(question.encode())
                return (await reader.read(-1)).decode("utf-8", "replace")
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return ""


def program(name: str) -> str:
    """Where it is; its name, if it is nowhere."""
    return shutil.which(name, path=PATH) or name


def folder_of(directory: Path, name: str) -> Path:
    """A new directory for a node."""
    folder = directory.resolve() / name
    folder.mkdir(parents=True)
    return folder


def all_say(heard: Iterable[tuple[Node, str]]) -> Fact:
    """Whether each of these nodes has said that text."""
    facts = list(heard)

    async def linked() -> bool:
        return all(text in node.said() for node, text in facts)

    return linked
