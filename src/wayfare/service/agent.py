"""The agent of a machine that moves: which mobility proxy is in reach, and all clients are told.

    client -> agent     {"client": "ann"}
    agent -> client     {"move_in": "10.0.0.7:7500", "number": 1}  {"move_out": true, "number": 2}
    client -> agent     {"done": true, "number": 2}  {"done": false, "number": 2, "why": "nobody listens there"}
    anybody -> agent    {"order": "out"}  {"order": "in"}      before the machine goes, and when it is back
    agent -> anybody    {"done": true}                         when all clients have moved, or were given time to

One JSON object a line, over a socket that only this machine can reach. What is said last replaces what was said before,
done or not.
"""

from __future__ import annotations

import asyncio
import errno
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
from wayfare.net.private import bind_private
from wayfare.net.security import is_loopback
from wayfare.service.addresses import ANYBODY, context_of
from wayfare.service.proxy_addresses import where
from wayfare.service.system import Trust
from wayfare.service.wire import ask

CLIENTS_MAX = 1_000  # of one machine
LINE_MAX = 4_096  # bytes of what is said
PROBE_S = 1.0  # between two looks at a proxy; an answer may take as long as a client would wait
PROBES_MAX = 5  # of one proxy that are not answered: it is not looked at meanwhile
AGAIN_S = 2.0  # until a client that could not move is told once more
ORDER_S = 60.0  # that all clients have to move, until it is told who has not
WHY_MAX = 500  # characters of a reason

log = logging.getLogger(__name__)


class Word(msgspec.Struct, omit_defaults=True):
    """All that is said, in either direction."""

    client: str = ""
    move_in: str = ""
    move_out: bool = False
    number: int = 0  # of what a client is told
    done: bool | None = None
    why: str = ""
    order: str = ""


_decoder = msgspec.json.Decoder(Word)


def control_place(text: str) -> str | tuple[str, int]:
    """Where an agent listens: a path, a port, or (nothing) the usual place of this user."""
    if text.isdecimal():
        return where(f"127.0.0.1:{text}")
    if "/" in text or (text and ":" not in text):
        return text
    if text:
        host, port = where(text)
        if not is_loopback(host):
            raise UsageError(
                f"whoever reaches {text} could move the clients of this machine: give a port, or a path"
            )
        return host, port
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


class Member:
    """A client of this machine, as its agent knows it."""

    def __init__(self, name: str, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self._writer = writer
        self._told = Word()
        self.done = True  # what it was told
        self.why = ""  # it has not
        self._again: asyncio.TimerHandle | None = None

    def tell(self, **what: Any) -> None:
        self.forget_again()
        self._told = Word(number=self._told.number + 1, **what)
        self.done, self.why = False, "it does not say that it has moved"
        self._say()

    def _say(self) -> None:
        if not self._writer.is_closing():
            _say(self._writer, self._told)

    def hear(self, word: Word) -> bool:
        """Whether it is about what it was told last."""
        if word.number != self._told.number:
            return False
        self.done, self.why = bool(word.done), word.why[:WHY_MAX]
        if not self.done:
            self.forget_again()
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._say)
        return True

    def forget_again(self) -> None:
        if self._again is not None:
            self._again.cancel()


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
        self._clients: dict[asyncio.StreamWriter, Member] = {}
        self._all: set[asyncio.StreamWriter] = set()
        self._moved = asyncio.Event()  # somebody has
        self._waiting: set[asyncio.Task[Any]] = set()  # until all have
        self._out = False  # everybody is to be away
        self._server: asyncio.Server | None = None
        # Those that are not answered, the oldest first.
        self._probes: defaultdict[str, list[asyncio.Task[None]]] = defaultdict(list)

    @property
    def clients(self) -> list[str]:
        return sorted(one.name for one in self._clients.values())

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
                bound = bind_private(self.control)  # nobody else may move our clients
                self._server = await asyncio.start_unix_server(
                    self._serve, sock=bound, limit=LINE_MAX
                )
            else:
                self._server = await asyncio.start_server(
                    self._serve, *self.control, limit=LINE_MAX
                )
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise UsageError(
                f"cannot listen at {_shown(self.control)} ({error.strerror or error}):"
                f"{' is another agent running?' if taken else ''} --control chooses another place"
            ) from None

    async def _close(self) -> None:
        for member in self._clients.values():
            member.forget_again()
        for task in self._waiting:
            task.cancel()
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
                    _say(writer, await self._move_all(out=word.order == "out"))
                elif word.client and len(self._clients) >= CLIENTS_MAX:
                    _say(writer, Word(done=False, why=f"it moves {CLIENTS_MAX} clients already"))
                    break
                elif word.client:
                    self._clients[writer] = Member(word.client, writer)
                    self._tell({"client": word.client, "proxy": self._choice.now})
                    self._order(self._clients[writer])
                elif word.done is not None and writer in self._clients:
                    self._heard(self._clients[writer], word)
        except (OSError, ValueError, msgspec.MsgspecError, asyncio.LimitOverrunError):
            pass  # it said something else, or is gone
        finally:
            self._all.discard(writer)
            writer.close()
            if member := self._clients.pop(writer, None):
                member.forget_again()
                self._tell({"client": member.name, "left": True})
                self._moved.set()

    def _heard(self, member: Member, word: Word) -> None:
        if member.hear(word):
            self._tell({"client": member.name, "moved": word.done, "why": word.why})
            self._moved.set()

    async def _move_all(self, out: bool) -> Word:
        """Say who has not moved in time."""
        self._out = out
        self._order_all()
        if not out and not self._choice.now and self._clients:
            return Word(done=False, why="no proxy is in reach: clients are moved when one is")
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            async with asyncio.timeout(ORDER_S):
                while not all(member.done for member in self._clients.values()):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            late = [f"{one.name} ({one.why})" for one in self._clients.values() if not one.done]
            return Word(
                done=False, why=f"not moved within {ORDER_S:g} s: {', '.join(late)}"[:WHY_MAX]
            )
        finally:
            self._waiting.discard(task)
        return Word(done=True)

    def _order_all(self) -> None:
        for member in self._clients.values():
            self._order(member)

    def _order(self, member: Member) -> None:
        if self._out:
            member.tell(move_out=True)
        elif self._choice.now:
            member.tell(move_in=self._choice.now)


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
        self._number = 0  # of what the agent said first
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def first(self) -> str:
        """Register, and wait until a proxy is in reach: where it is."""
        while True:
            word = await self._hear()
            if word.move_in:
                self._number = word.number
                return word.move_in
            self._reply(Word(number=word.number, done=True))  # it is nowhere yet

    async def heed(self, client: Mobile) -> None:
        """Do what the agent says, also after it was started anew; until this is cancelled."""
        obeying: asyncio.Task[None] | None = None
        try:
            self._reply(Word(number=self._number, done=True))
            while True:
                try:
                    word = await self._hear()
                except CannotConnect:
                    await asyncio.sleep(AGAIN_S)
                    continue
                await _end(obeying)  # what is said now is meant instead
                obeying = asyncio.create_task(self._obey(client, word))
        finally:
            await _end(obeying)
            self.close()

    async def _obey(self, client: Mobile, word: Word) -> None:
        why = ""
        try:
            await _move(client, word)
        except WayfareError as error:
            why = str(error)[:WHY_MAX] or type(error).__name__
            log.warning("%s could not move: %s", client.name, why)
        except Exception as error:
            why = repr(error)[:WHY_MAX]
            log.exception("%s could not move", client.name)
        self._reply(Word(number=word.number, done=not why, why=why))

    async def _hear(self) -> Word:
        try:
            if self._streams is None:
                self._streams = await _dial(self._control)
                self._reply(Word(client=self._name))
            word = await _hear(self._streams[0])
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.close()
            raise CannotConnect(
                f"no agent answers at {_shown(self._control)}: {error}; start one, with:"
                " wayfare service agent"
            ) from None
        if word.done is False:
            self.close()
            raise CannotConnect(f"the agent at {_shown(self._control)} refuses: {word.why}")
        return word

    def _reply(self, word: Word) -> None:
        if self._streams is not None:
            _say(self._streams[1], word)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def order(control: str, what: str) -> str:
    """Tell the agent of this machine to move everybody `out`, or back `in`: why not all have, or nothing."""
    place = control_place(control)
    try:
        reader, writer = await _dial(place)
        try:
            _say(writer, Word(order=what))
            async with asyncio.timeout(ORDER_S + AGAIN_S):
                answer = await _hear(reader)
        finally:
            writer.close()
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        reason = str(error) or "it says nothing"
        raise CannotConnect(f"no agent answers at {_shown(place)}: {reason}") from None
    return "" if answer.done else answer.why


async def _move(client: Mobile, word: Word) -> None:
    if word.move_in and (client.state != "attached" or client.place != word.move_in):
        await client.move_in(word.move_in)
    elif word.move_out and client.state != "away":
        # UsageError while it moves in: it is told again, when it may be there.
        await client.move_out()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


async def _hear(reader: asyncio.StreamReader) -> Word:
    line = await reader.readline()
    if not line:
        raise ConnectionError("it closed the connection")
    return _decoder.decode(line)


def _say(writer: asyncio.StreamWriter, word: Word) -> None:
    writer.write(msgspec.json.encode(word) + b"\n")


async def _dial(
    place: str | tuple[str, int],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(place, str):
        if os.stat(place).st_uid not in (0, os.getuid()):
            raise PermissionError("that is of another user, who would say where to be")
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
    raise OSError(errno.EADDRINUSE, "somebody answers there")


def _shown(place: str | tuple[str, int]) -> str:
    return place if isinstance(place, str) else f"{place[0]}:{place[1]}"
