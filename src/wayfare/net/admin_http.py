"""The admin API: what an operator may ask running brokers, and tell them to do, over HTTP with JSON.

    GET    /v1/sessions?client=car-*&state=away&limit=100&after=...     a page of sessions
    GET    /v1/sessions/car-17                                          everything about one client
    DELETE /v1/sessions/car-17?reason=...                               end its session
    POST   /v1/sessions/car-17/kick?reason=...&again=true&forget=true   disconnect it

Every request has a token (`Authorization: Bearer ...`) out of a file that only its owner may read. Failures count
in the login limits of the broker. Without TLS it listens on this machine only. One request for each connection,
short and soon, and few connections at a time.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import ssl
import stat
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from math import ceil
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from wayfare.core.codec import NAME_MAX
from wayfare.errors import UsageError
from wayfare.net.addresses import Address
from wayfare.net.answering import Answering
from wayfare.net.broker import BrokerHost
from wayfare.net.logs import tell
from wayfare.net.security import Tls, is_loopback, reload, server_context
from wayfare.net.sessions import ELSEWHERE, PAGE, Kicked, Selection, details_of, kick, page

REQUEST_BYTES = 8_192  # of a request, with all its headers
REQUEST_S = 5.0  # that a request may take, and that its answer may
CONNECTIONS_MAX = 32  # at a time; others are closed
TOKEN_MIN = 20  # characters of a token
TOKENS_BYTES = 65_536  # of their file
ACCOUNT = "\0admin"  # whose failures these are: no account has such a name
PATH = "/v1/sessions"
KICK = "/kick"  # behind the name of a client
QUERIES = {
    "GET": ("broker", "client", "state", "limit", "after"),
    "DELETE": ("broker", "reason"),
    "POST": ("broker", "reason", "again", "forget"),
}

logger = logging.getLogger("wayfare.broker")


class Refusal(Exception):
    """An answer that is not what was asked for."""

    def __init__(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.headers = status, headers


class Tokens:
    """The tokens of a file, and whose they are: a name and a token a line."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._known: dict[bytes, str] = {}  # by digest
        self.refresh()

    def refresh(self) -> bool:
        """Read the file again if it has changed; True if so. UsageError if it cannot be used, and then no token is good."""
        try:
            with self._path.open("rb") as file:
                facts = os.fstat(file.fileno())
                seen = facts.st_ino, facts.st_mtime_ns, facts.st_size
                if seen == self._seen:
                    return False
                self._known, self._seen = {}, None
                if stat.S_IMODE(facts.st_mode) & 0o077:
                    raise UsageError(
                        f"{self._path} may be read by other users, and its tokens with it: chmod 600"
                    )
                text = file.read(TOKENS_BYTES + 1)
        except OSError as error:
            self._known, self._seen = {}, None
            raise UsageError(f"cannot read the tokens in {self._path}: {error.strerror}") from None
        self._known, self._seen = dict(self._lines(text)), seen
        return True

    def _lines(self, text: bytes) -> Iterable[tuple[bytes, str]]:
        if len(text) > TOKENS_BYTES:
            raise UsageError(f"{self._path} has more than {TOKENS_BYTES} bytes")
        for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or len(words[1]) < TOKEN_MIN:
                raise UsageError(
                    f"{self._path}, line {number}: write a name and a token of at least {TOKEN_MIN}"
                    " characters, as from `openssl rand -hex 32`"
                )
            yield sha256(words[1].encode()).digest(), words[0]

    def owner(self, token: str) -> str:
        """Whose it is; "": nobody's. The time that this takes does not depend on the token."""
        given, found = sha256(token.encode("utf-8", "replace")).digest(), ""
        for known, name in self._known.items():
            if hmac.compare_digest(known, given):
                found = name
        return found


class AdminApi:
    """Of all brokers of this process."""

    def __init__(self, brokers: Iterable[BrokerHost], tokens: str, tls: Tls | None) -> None:
        self._brokers, self._tls = list(brokers), tls
        self._tokens = Tokens(tokens)
        self._trouble = ""  # with the file of the tokens
        self._context: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._answering = Answering(self._serve, CONNECTIONS_MAX)

    async def start(self, listen: Address) -> Address:
        """Listen there, with TLS if there is a certificate. Returns where it listens."""
        if self._tls is None and not is_loopback(listen.host):
            raise UsageError(
                f"admin.listen is {listen.host}: without TLS, tokens would cross the network in clear."
                " Give tls.cert and tls.key, or listen at 127.0.0.1"
            )
        options: dict[str, float | ssl.SSLContext] = {}
        if self._tls is not None:
            self._context = server_context(self._tls)
            timeouts = dict.fromkeys(("ssl_handshake_timeout", "ssl_shutdown_timeout"), REQUEST_S)
            options = {"ssl": self._context, **timeouts}
        self._server = await asyncio.start_server(
            self._answering.accept,
            listen.host,
            listen.port,
            limit=REQUEST_BYTES,
            **options,  # type: ignore[arg-type]
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port, self._tls is not None)

    def reload(self) -> None:
        """Go by the certificate and the tokens as they are in their files now."""
        self._refresh()
        if self._tls is not None and self._context is not None:
            try:
                reload(self._tls, self._context)
            except UsageError as error:
                says = "the admin API goes on with the certificate that it has: %(reason)s"
                tell(logger, logging.WARNING, "admin_not_reloaded", says, reason=error)

    async def stop(self) -> None:
        if self._server is not None:
            await self._answering.stop(self._server)

    # Requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = (writer.get_extra_info("peername") or ("",))[0]
        answer: tuple[HTTPStatus, object, dict[str, str]]
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                try:
                    async with asyncio.timeout(REQUEST_S):
                        request = await _read(reader)
                        answer = HTTPStatus.OK, await self._answer(request, address), {}
                except Refusal as refusal:
                    error = {"error": str(refusal), "status": refusal.status.value}
                    answer = refusal.status, error, refusal.headers
                async with asyncio.timeout(REQUEST_S):
                    writer.write(_response(*answer))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            if not writer.transport.is_closing() or writer.transport.get_write_buffer_size():
                writer.transport.abort()

    async def _answer(self, request: bytes, address: str) -> object:
        first, *lines = request.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise Refusal(HTTPStatus.BAD_REQUEST, "this is not a request of HTTP/1.1")
        method, target, _ = words
        headers = _headers(lines)
        by = self._authorize(headers.get("authorization", ""), address)
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no request here has a body")
        if method not in QUERIES:
            allowed = ", ".join(QUERIES)
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"use one of {allowed}", Allow=allowed)
        path, query = _target(target, method)
        if method == "POST" and not path.endswith(KICK):
            use = f"POST is for {PATH}/CLIENT{KICK}"
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, use, Allow="GET, DELETE")
        hosts = [one for one in self._brokers if query.get("broker", "") in ("", one.name)]
        if not hosts:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no broker {query['broker'][:60]} here")
        if path == PATH and method == "GET":
            return await self._page(hosts, query)
        name = path.removesuffix(KICK) if method == "POST" else path
        client = unquote(name.removeprefix(f"{PATH}/")) if name.startswith(f"{PATH}/") else ""
        if not client or len(client) > NAME_MAX:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there are {PATH} and {PATH}/CLIENT")
        if method == "GET":
            return _one(hosts, client)
        reason = query.get("reason", "")[:NAME_MAX]
        did, forget = (
            ("removed", True) if method == "DELETE" else ("kicked", _flag(query, "forget"))
        )
        again = _flag(query, "again")
        done = [
            kick(host, client, f"token {by}", forget=forget, again=again, reason=reason)
            for host in hosts
        ]
        return {"client": client, did: _found(client, done)}

    def _authorize(self, given: str, address: str) -> str:
        """Whose token it is; Refusal if it is nobody's, or too many were wrong before."""
        limits, audit = self._brokers[0].login_limits, self._brokers[0].audit
        scheme, _, token = given.partition(" ")
        if wait_s := limits.wait_s(ACCOUNT, address):
            audit.record("login_throttled", address=address, reason="admin API")
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too many wrong tokens before this one",
                **{"Retry-After": str(ceil(wait_s))},
            )
        self._refresh()
        owner = self._tokens.owner(token.strip()) if scheme.lower() == "bearer" else ""
        if given:  # a request without a token is no guess
            limits.settle(ACCOUNT, address, bool(owner))
        if not owner:
            if given:
                audit.record("login_failed", address=address, reason="admin API: no such token")
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "give a token of this broker: Authorization: Bearer TOKEN",
                **{"WWW-Authenticate": "Bearer"},
            )
        return owner

    def _refresh(self) -> None:
        """Read the tokens if their file has changed."""
        audit, before = self._brokers[0].audit, self._trouble
        try:
            if self._tokens.refresh():
                audit.record("reloaded", what="admin tokens", ok=True)
            self._trouble = ""
        except UsageError as error:
            says = "the admin API accepts no token: %(reason)s"
            tell(logger, logging.WARNING, "admin_tokens", says, reason=error)
            self._trouble = str(error)
            if self._trouble != before:  # else each request would write a line
                audit.record("reloaded", what="admin tokens", ok=False, reason=self._trouble)

    async def _page(self, hosts: list[BrokerHost], query: dict[str, str]) -> object:
        try:
            limit = int(query.get("limit") or PAGE)
            wanted = Selection(
                query.get("client", ""), query.get("state", ""), limit, query.get("after", "")
            )
        except UsageError as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        except ValueError:
            raise Refusal(HTTPStatus.BAD_REQUEST, "limit is a number") from None
        return await page(hosts, wanted)


def _one(hosts: list[BrokerHost], client: str) -> object:
    known = [one for host in hosts for one in details_of(host, client)]
    sessions = [one for one in known if one.state != ELSEWHERE]
    if not sessions:
        raise _not_found(client, [one.moved_to for one in known])
    return {"client": client, "sessions": sessions}


def _found(client: str, done: list[Kicked]) -> list[Kicked]:
    """What came of it at brokers that know the client; Refusal if none does."""
    found = [one for one in done if one.disconnected or one.forgotten or one.away]
    if not found:
        raise _not_found(client, [one.moved_to for one in done if one.moved_to])
    return found


def _flag(query: dict[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{name} is true or false, not {text[:60]!r}")
    return text == "true"


def _not_found(client: str, moved_to: list[str]) -> Refusal:
    went = f": it moved to {', '.join(dict.fromkeys(moved_to))}" if moved_to else ""
    return Refusal(HTTPStatus.NOT_FOUND, f"{client} has no session here{went}")


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        raise Refusal(status, f"a request has at most {REQUEST_BYTES} bytes") from None


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            if name.lower() in headers and name.lower() == "authorization":
                raise Refusal(HTTPStatus.BAD_REQUEST, "Authorization is given twice")
            headers[name.lower()] = value.strip()
    return headers


def _target(target: str, method: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=10))
    except ValueError:
        raise Refusal(HTTPStatus.BAD_REQUEST, "this is not an address") from None
    for name in query:
        if name not in QUERIES[method]:
            known = ", ".join(QUERIES[method])
            raise Refusal(HTTPStatus.BAD_REQUEST, f"there is no {name[:60]!r} here, only {known}")
    return parts.path, query


def _response(status: HTTPStatus, answer: object, headers: dict[str, str]) -> bytes:
    body = msgspec.json.encode(answer) + b"\n"
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        *(f"{name}: {value}" for name, value in headers.items()),
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
