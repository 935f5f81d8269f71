"""The admin socket: what an operator of this machine may ask running brokers, and tell them to do.

    {"do": "sessions", "client": "car-*"}                     one request, a line of JSON
    {"broker": "lisbon", "client": "car-17", ...}             the answer: any number of lines
    {"end": true}                                             ... and the last one; or {"error": "..."}

The socket is a file that only its owner may open, in a directory that is made for its owner only. Where the
system can say who connects, anybody but that user and root is refused, whatever the permissions of the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from wayfare.errors import CannotConnect, UsageError
from wayfare.net.answering import Answering
from wayfare.net.broker import BrokerHost
from wayfare.net.logs import tell
from wayfare.net.private import bind_private, create_private_directory
from wayfare.net.sessions import Selection, SessionFacts, details_of, kick, sessions_of

PATH_MAX = 100  # bytes of a path: the system takes few more
REQUEST_BYTES = 8_192
REQUEST_S = 5.0  # that a request may take
CONNECTIONS_MAX = 8  # at a time; others are closed
SLICE = 200  # sessions that are listed before clients have their turn

logger = logging.getLogger("wayfare.broker")


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    do: str
    broker: str = ""  # "": all of the process
    client: str = ""  # a name, or for `sessions` a pattern
    forget: bool = False  # end the session as well
    again: bool = False  # the client may attach again
    reason: str = ""
    state: str = ""  # of sessions that are listed


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line."""

    end: bool = False
    error: str = ""


# At the broker


class AdminSocket:
    """Of all brokers of this process."""

    def __init__(self, brokers: Iterable[BrokerHost], path: str) -> None:
        self._brokers, self._path = list(brokers), Path(path)
        self._server: asyncio.Server | None = None
        self._answering = Answering(self._serve, CONNECTIONS_MAX)

    async def start(self) -> None:
        """Listen; UsageError if that cannot be."""
        if len(os.fsencode(self._path)) > PATH_MAX:
            raise UsageError(
                f"the path of the admin socket has more than {PATH_MAX} bytes ({self._path}):"
                " give admin.socket a shorter one"
            )
        try:
            create_private_directory(self._path.parent)
            _clear(self._path)
            listening = bind_private(str(self._path))
            self._server = await asyncio.start_unix_server(
                self._answering.accept, sock=listening, limit=REQUEST_BYTES
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise UsageError(f"cannot make the admin socket {self._path}: {reason}") from None

    async def stop(self) -> None:
        if self._server is None:
            return
        await self._answering.stop(self._server)
        with suppress(OSError):
            self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
                async with asyncio.timeout(REQUEST_S):
                    user = _user_of(writer)
                    try:
                        line = await reader.readuntil(b"\n")
                    except asyncio.LimitOverrunError:
                        too_long = Answer(error=f"a request has at most {REQUEST_BYTES} bytes")
                        writer.write(msgspec.json.encode(too_long) + b"\n")
                        return
                async for answer in self._answers(line, user):
                    writer.write(msgspec.json.encode(answer) + b"\n")
                    async with asyncio.timeout(REQUEST_S):
                        await writer.drain()
        finally:
            writer.close()

    async def _answers(self, line: bytes, user: int | None) -> AsyncIterator[msgspec.Struct]:
        if user not in (None, 0, os.geteuid()):
            says = "another user tried to use the admin socket of %(broker)s: uid %(uid)s"
            broker = ", ".join(one.name for one in self._brokers)
            tell(logger, logging.WARNING, "admin_refused", says, broker=broker, uid=user)
            yield Answer(error="this socket is for the user that runs the broker, and for root")
            return
        try:
            request = msgspec.json.decode(line, type=Request)
        except msgspec.DecodeError as error:
            yield Answer(error=f"this is not a request: {error}")
            return
        hosts = [one for one in self._brokers if request.broker in ("", one.name)]
        if not hosts:
            names = ", ".join(one.name for one in self._brokers)
            yield Answer(error=f"there is no broker {request.broker} here, only {names}")
        elif request.do == "sessions":
            try:
                wanted = Selection(request.client, request.state)
            except UsageError as error:
                yield Answer(error=str(error))
                return
            async for facts in _listed(hosts, wanted):
                yield facts
            yield Answer(end=True)
        elif request.do == "session" and request.client:
            for host in hosts:
                for details in details_of(host, request.client):
                    yield details
            yield Answer(end=True)
        elif request.do == "kick" and request.client:
            by = f"uid {user}" if user is not None else "admin socket"
            for host in hosts:
                yield kick(
                    host,
                    request.client,
                    by,
                    forget=request.forget,
                    again=request.again,
                    reason=request.reason,
                )
            yield Answer(end=True)
        else:
            yield Answer(error=f"there is no {request.do or 'request without a name'} here")


async def _listed(hosts: Iterable[BrokerHost], wanted: Selection) -> AsyncIterator[SessionFacts]:
    for host in hosts:
        for count, facts in enumerate(sessions_of(host, wanted), 1):
            yield facts
            if not count % SLICE:
                await asyncio.sleep(0)


def _clear(path: Path) -> None:
    """Remove a socket that an earlier process left; OSError if somebody listens there."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise OSError(f"{path} is there, and not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise OSError("another process listens there")


def _user_of(writer: asyncio.StreamWriter) -> int | None:
    """Who connected; None where the system does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    peer = writer.get_extra_info("socket")
    if option is None or peer is None:
        return None
    size = struct.calcsize("3i")
    user: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, option, size))[1]
    return user


# At the command line


async def ask(path: str, request: Request) -> AsyncIterator[bytes]:
    """The lines of an answer; CannotConnect or UsageError if there is none."""
    try:
        async with asyncio.timeout(REQUEST_S):
            reader, writer = await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or f"no answer within {REQUEST_S:g} s"
        raise CannotConnect(
            f"cannot reach a broker at {path}: {reason}; see that it runs, and has this admin socket"
        ) from None
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        async for line in reader:
            answer = msgspec.json.decode(line, type=Answer)
            if answer.error:
                raise UsageError(f"{path}: {answer.error}")
            if answer.end:
                return
            yield line
        raise CannotConnect(f"the broker at {path} closed the connection: ask again")
    finally:
        writer.close()
