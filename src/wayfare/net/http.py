"""What a process tells about its brokers over HTTP: GET /metrics, /health and /status, and nothing else.

    /metrics    for Prometheus
    /health     200 while all is well; 503 while a link is down, or the store has failed
    /status     what `wayfare top` shows

One request for each connection, short and soon, on the loop of the brokers: whoever may ask sees numbers and
the names of brokers, and changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from importlib.metadata import version

import msgspec

from wayfare.core.codec import decode
from wayfare.core.counts import MILLISECOND_NS, Histogram
from wayfare.core.messages import Hello
from wayfare.errors import CannotConnect, CodecError
from wayfare.net.answering import Answering
from wayfare.net.broker import BrokerHost
from wayfare.net.logs import printable
from wayfare.net.metrics import Metrics
from wayfare.net.status import Spread, Status, health_of, status_of

PORT = 9410  # where to ask, if nobody says
REQUEST_BYTES = 8_192  # of a request, with all its headers
REQUEST_S = 5.0  # that a request may take, and that its answer may
STATUS_BYTES = 16 * 1024 * 1024  # of an answer that somebody else gives
CONNECTIONS_MAX = 32  # at a time; others are closed
LAG_EVERY_S = 0.5
LAGS_NS = [MILLISECOND_NS * ms for ms in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)]
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

Answer = tuple[HTTPStatus, str, bytes]


# Asking


async def fetch(host: str, port: int) -> Status:
    """The status that a process tells there; CannotConnect if none is told."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(REQUEST_S):
            body = await _get(host, port, where)
    except TimeoutError:
        reason = f"no answer within {REQUEST_S:g} s"
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        reason = "what it says is not HTTP"
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else str(error)
    else:
        try:
            return msgspec.json.decode(body, type=Status)
        except msgspec.DecodeError as error:
            raise CannotConnect(
                f"what {where} tells is no status of this release ({error}): see what listens there"
            ) from None
    raise CannotConnect(
        f"cannot ask {where} for its status: {reason}; start the broker with --status {port}, or say"
        " where it tells its status"
    )


async def _get(host: str, port: int, where: str) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, limit=REQUEST_BYTES)
    try:
        writer.write(f"GET /status HTTP/1.1\r\nHost: {where}\r\nConnection: close\r\n\r\n".encode())
        if (begin := await reader.readexactly(5)) != b"HTTP/":
            raise CannotConnect(f"{where} speaks no HTTP: {await _instead(begin, reader)}")
        await reader.readuntil(b"\r\n\r\n")
        body = bytearray()
        while piece := await reader.read(65_536):
            body += piece
            if len(body) > STATUS_BYTES:
                raise OSError(f"an answer of more than {STATUS_BYTES} bytes")
        return bytes(body)
    finally:
        writer.transport.abort()


async def _instead(begin: bytes, reader: asyncio.StreamReader) -> str:
    """Who speaks there, and what to do. A broker says Hello to everybody."""
    who = "something else than a broker is there"
    length = int.from_bytes(begin[:4], "big")
    with suppress(CodecError, asyncio.IncompleteReadError):
        if 0 < length <= REQUEST_BYTES:
            first = decode(begin[4:] + await reader.readexactly(length - 1))
            if isinstance(first, Hello):
                who = f"{printable(first.name)} listens for clients there"
    return (
        f"{who}; ask where a broker tells its status, which is the port of --status, or status.port in"
        " its file"
    )


# Telling


class Endpoint:
    """Of all brokers of this process."""

    def __init__(self, brokers: Iterable[BrokerHost]) -> None:
        self._brokers = list(brokers)
        self._lags = Histogram(LAGS_NS)
        self._lag_s = 0.0
        self._metrics = Metrics(self.status, lambda: Spread.of(self._lags))
        self._server: asyncio.Server | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._answering = Answering(self._serve, CONNECTIONS_MAX)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen there. Returns where it listens."""
        accept = self._answering.accept
        self._server = await asyncio.start_server(accept, host, port, limit=REQUEST_BYTES)
        self._measuring = asyncio.get_running_loop().create_task(self._measure())
        where: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return where

    async def stop(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)
        if self._server is not None:
            await self._answering.stop(self._server)

    def status(self) -> Status:
        brokers = [status_of(one) for one in self._brokers]
        return Status(version("wayfare"), time.time(), self._lag_s, brokers)

    async def _measure(self) -> None:
        """How late the loop is, now and then."""
        while True:
            due = time.monotonic_ns() + int(LAG_EVERY_S * 1e9)
            await asyncio.sleep(LAG_EVERY_S)
            late = max(0, time.monotonic_ns() - due)
            self._lags.add(late)
            self._lag_s = late / 1e9

    # Requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_S):
                    try:
                        answer = self._answer(await reader.readuntil(b"\r\n\r\n"))
                    except asyncio.LimitOverrunError:
                        answer = _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                async with asyncio.timeout(REQUEST_S):
                    writer.write(_response(*answer))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            if not writer.transport.is_closing() or writer.transport.get_write_buffer_size():
                writer.transport.abort()

    def _answer(self, request: bytes) -> Answer:
        first, *headers = request.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _plain(HTTPStatus.BAD_REQUEST)
        if words[0] != "GET":
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        path = words[1].partition("?")[0]
        if path == "/metrics":
            accept = [one[7:].strip() for one in headers if one.lower().startswith("accept:")]
            body, content_type = self._metrics.text(", ".join(accept))
            return HTTPStatus.OK, content_type, body
        if path == "/status":
            return HTTPStatus.OK, JSON, msgspec.json.encode(self.status()) + b"\n"
        if path == "/health":
            return self._health()
        return HTTPStatus.NOT_FOUND, TEXT, b"there are /metrics, /health and /status\n"

    def _health(self) -> Answer:
        all_of_them = [health_of(one) for one in self._brokers]
        good = all(one.is_good for one in all_of_them)
        body = msgspec.json.encode({"healthy": good, "brokers": all_of_them}) + b"\n"
        return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, JSON, body


def _plain(status: HTTPStatus) -> Answer:
    return status, TEXT, f"{status.phrase}\n".encode()


def _response(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        *(["Allow: GET"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
