"""The agent of a machine that moves: which mobility proxy is in reach, and all clients are told.

    client -> agent     {"client": "ann"}                      and then, about each order, {"done": true, "why": ""}
    agent -> client     {"move_in": "10.0.0.7:7500"}  {"move_out": true}
    anybody -> agent    {"order": "out"}  {"order": "in"}      before the machine goes, and when it is back

One JSON object a line, over a socket that only this machine can reach.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import tempfile
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from wayfare.errors import CannotConnect, UsageError, WayfareError
from wayfare.service.addresses import ANYBODY, context_of
from wayfare.service.proxy_addresses import where
from wayfare.service.system import Trust
from wayfare.service.wire import ask

CLIENTS_MAX = 1_000  # of one machine
LINE_MAX = 4_096  # bytes of what is said
PROBE_S = 1.0  # between two looks at a proxy; an answer may take as long as a client would wait
PROBES_MAX = 5  # of one proxy that are not answered: it is not looked at meanwhile
AGAIN_S = 2.0  # until a client that could not move is told once more

log = logging.getLogger(__name__)


class Word(msgspec.Struct, omit_defaults=True):
    """All that is said, in either direction."""

    client: str = ""
    move_in: str = ""
    move_out: bool = False
    done: bool | None = None
    why: str = ""
    order: str = ""


_decoder = msgspec.json.Decoder(Word)


def control_place(text: str) -> str | tuple[str, int]:
    """Where an agent listens: a path, a port, or (nothing) the usual place of this user."""
    if text.isdecimal():
        return where(f"127.0.0.1:{text}")
    if text:
        return text if "/" in text or ":" not in text else where(text)
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return str(Path(folder) / f"wayfare-agent-{os.getuid()}.sock")


class Choice:
    """Which proxy to be at. One that comes and goes moves nobody: it takes some answers in a row to
    count as in reach, some silence to be gone, and who is in reach is not left for another one.
    """

    def __init__(self, up: int = 2, down: int = 3) -> None:
        self.up, self.down = up, down
        self.now = ""
        self._rows: dict[str, int] = {}  # answers in a row, or silences below 0
        self._near: dict[str, None] = {}  # in reach

    def heard(self, proxy: str, answered: bool) -> None:
        row = self._rows.get(proxy, 0)
        row = self._rows[proxy] = max(row, 0) + 1 if answered else min(row, 0) - 1
        if row >= self.up:
            self._near[proxy] = None
        elif -row >= self.down:
            self._near.pop(proxy, None)

    def forget_others(self, watched: Container[str]) -> None:
        """Only these are heard of from now on."""
        self._rows = {one: row for one, row in self._rows.items() if one in watched}
        self._near = {one: None for one in self._near if one in watched}

    def choose(self, known: Iterable[str]) -> str:
        """The proxy to be at, of those that are known, the first ones first; "" if none is in reach."""
        candidates = [proxy for proxy in known if proxy in self._near]
        if self.now not in self._near:
            self.now = candidates[0] if candidates else ""
        return self.now


class Agent:
    """Watches proxies, and moves clients."""

    def __init__(
        self,
        known: Callable[[], Iterable[str]],
        control: str = "",
        choice: Choice | None = None,
        tell: Callable[[dict[str, Any]], None] | None = None,
        probe_s: float = PROBE_S,
        trust: Trust = ANYBODY,
    ) -> None:
        """`known` gives the proxies that may be in reach; `tell` is called with what happens."""
        self.control = control_place(control)
        self._known = known
        self._choice = choice or Choice()
        self._tell = tell or (lambda _: None)
        self._probe_s = probe_s
        context_of(trust)  # so that it is told at once what is wrong with its files
        self._trust = trust
        self._clients: dict[asyncio.StreamWriter, str] = {}
        self._all: set[asyncio.StreamWriter] = set()
        self._out = False  # everybody is to be away
        self._server: asyncio.Server | None = None
        self._again: dict[asyncio.StreamWriter, asyncio.TimerHandle] = {}
        # Those that are not answered, the oldest first.
        self._probes: defaultdict[str, list[asyncio.Task[None]]] = defaultdict(list)

    @property
    def clients(self) -> list[str]:
        return sorted(self._clients.values())

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._listen()
        try:
            async with asyncio.TaskGroup() as probes:
                while True:
                    self._choose()
                    watched = dict.fromkeys(self._known())
                    if self._choice.now:
                        watched[self._choice.now] = None
                    self._choice.forget_others(watched)
                    for proxy in watched:
                        if len(self._probes[proxy]) < PROBES_MAX:
                            self._probes[proxy].append(probes.create_task(self._probe(proxy)))
                    await asyncio.sleep(self._probe_s)
        finally:
            await self._close()

    def _choose(self) -> None:
        before = self._choice.now
        if self._choice.choose(self._known()) != before:
            self._tell({"proxy": self._choice.now, "clients": self.clients})
            self._order_all()

    async def _probe(self, proxy: str) -> None:
        """Several are on their way: a silence is one only after a while, and then counts at once."""
        probe = asyncio.current_task()
        assert probe is not None
        try:
            await ask(proxy, trust=self._trust)
            answered = True
            for earlier in itertools.takewhile(lambda one: one is not probe, self._probes[proxy]):
                earlier.cancel()  # it says nothing new
        except WayfareError as error:
            log.debug("%s is not in reach: %s", proxy, error)
            answered = False
        finally:
            self._probes[proxy].remove(probe)
            if not self._probes[proxy]:
                del self._probes[proxy]
        self._choice.heard(proxy, answered)
        if not self._probes:
            self._choose()  # now, or with the next looks: the slow ones do not hold up the others

    async def _listen(self) -> None:
        try:
            if isinstance(self.control, str):
                _take_place(self.control)
                before = os.umask(0o177)  # nobody else may move our clients
                try:
                    self._server = await asyncio.start_unix_server(
                        self._serve, self.control, limit=LINE_MAX
                    )
                finally:
                    os.umask(before)
            else:
                self._server = await asyncio.start_server(
                    self._serve, *self.control, limit=LINE_MAX
                )
        except OSError as error:
            raise UsageError(
                f"cannot listen at {_shown(self.control)} ({error.strerror}): is another agent"
                " running? --control chooses another place"
            ) from None

    async def _close(self) -> None:
        for handle in self._again.values():
            handle.cancel()
        if self._server is not None:
            self._server.close()
        for writer in list(self._all):
            writer.close()
        if isinstance(self.control, str):
            Path(self.control).unlink(missing_ok=True)
        await asyncio.sleep(0)

    # ---- clients -----------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._all.add(writer)
        try:
            while line := await reader.readline():
                word = _decoder.decode(line)
                if word.order in ("out", "in"):
                    self._out = word.order == "out"
                    self._order_all()
                elif word.client and len(self._clients) < CLIENTS_MAX:
                    self._clients[writer] = word.client
                    self._tell({"client": word.client, "proxy": self._choice.now})
                    self._order(writer)
                elif word.done is not None and writer in self._clients:
                    self._heard(writer, word)
        except (OSError, ValueError, msgspec.MsgspecError, asyncio.LimitOverrunError):
            pass  # it said something else, or is gone
        finally:
            self._all.discard(writer)
            if handle := self._again.pop(writer, None):
                handle.cancel()
            if name := self._clients.pop(writer, ""):
                self._tell({"client": name, "left": True})
            writer.close()

    def _heard(self, writer: asyncio.StreamWriter, word: Word) -> None:
        self._tell({"client": self._clients[writer], "moved": word.done, "why": word.why})
        if not word.done:
            if handle := self._again.pop(writer, None):
                handle.cancel()
            loop = asyncio.get_running_loop()
            self._again[writer] = loop.call_later(AGAIN_S, self._order, writer)

    def _order_all(self) -> None:
        for writer in list(self._clients):
            self._order(writer)

    def _order(self, writer: asyncio.StreamWriter) -> None:
        if writer not in self._clients or writer.is_closing():
            return
        if self._out:
            _say(writer, Word(move_out=True))
        elif self._choice.now:
            _say(writer, Word(move_in=self._choice.now))


class Mobile(Protocol):
    """A client that is told where to be."""

    name: str

    @property
    def state(self) -> str: ...
    @property
    def place(self) -> str: ...
    async def move_in(self, proxy: str = "") -> None: ...
    async def move_out(self) -> None: ...


class Registration:
    """A client's connection to the agent of its machine."""

    def __init__(self, control: str, name: str) -> None:
        self._control = control_place(control)
        self._name = name
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def first(self) -> str:
        """Register, and wait until a proxy is in reach: where it is."""
        while True:
            word = await self._hear()
            if word.move_in:
                return word.move_in

    async def heed(self, client: Mobile) -> None:
        """Do what the agent says, also after it was started anew; until this is cancelled."""
        try:
            self._reply(Word(done=True))
            while True:
                try:
                    word = await self._hear()
                except CannotConnect:
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._reply(await _obey(client, word))
        finally:
            self.close()

    async def _hear(self) -> Word:
        try:
            if self._streams is None:
                self._streams = await _dial(self._control)
                self._reply(Word(client=self._name))
            line = await self._streams[0].readline()
            if not line:
                raise ConnectionError("it closed the connection")
            return _decoder.decode(line)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.close()
            raise CannotConnect(
                f"no agent answers at {_shown(self._control)}: {error}; start one, with:"
                " wayfare service agent"
            ) from None

    def _reply(self, word: Word) -> None:
        if self._streams is not None:
            _say(self._streams[1], word)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def order(control: str, what: str) -> None:
    """Tell the agent of this machine to move everybody `out`, or back `in`."""
    place = control_place(control)
    try:
        _, writer = await _dial(place)
        _say(writer, Word(order=what))
        writer.close()
        await writer.wait_closed()
    except OSError as error:
        raise CannotConnect(f"no agent answers at {_shown(place)}: {error.strerror}") from None


async def _obey(client: Mobile, word: Word) -> Word:
    try:
        if word.move_out:
            if client.state == "attached":
                await client.move_out()
        elif word.move_in and (client.state != "attached" or client.place != word.move_in):
            await client.move_in(word.move_in)
    except WayfareError as error:
        log.warning("%s could not move: %s", client.name, error)
        return Word(done=False, why=str(error)[:500])
    return Word(done=True)


def _say(writer: asyncio.StreamWriter, word: Word) -> None:
    writer.write(msgspec.json.encode(word) + b"\n")


async def _dial(
    place: str | tuple[str, int],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(place, str):
        return await asyncio.open_unix_connection(place, limit=LINE_MAX)
    return await asyncio.open_connection(*place, limit=LINE_MAX)


def _take_place(path: str) -> None:
    """Remove what an agent left that was killed; not one that answers."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except OSError:
            if Path(path).is_socket():
                Path(path).unlink(missing_ok=True)
            return
    raise OSError(0, "somebody answers there")


def _shown(place: str | tuple[str, int]) -> str:
    return place if isinstance(place, str) else f"{place[0]}:{place[1]}"
