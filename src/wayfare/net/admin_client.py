"""Asking the admin API of a running broker: what `wayfare sessions --url` does."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

import msgspec

from wayfare.errors import CannotConnect, UsageError
from wayfare.net.admin_http import KICK, PATH
from wayfare.net.security import client_context, is_loopback
from wayfare.net.sessions import PAGE_MAX, Kicked, Page, SessionDetails, SessionFacts

T = TypeVar("T")
ANSWER_S = 10.0  # that an answer may take
ANSWER_BYTES = 64 * 1024 * 1024


class Missing(Exception):
    """The client has no session there."""


class _Details(msgspec.Struct):
    sessions: list[SessionDetails]


class _Removed(msgspec.Struct):
    removed: list[Kicked]


class _Kicked(msgspec.Struct):
    kicked: list[Kicked]


class _NoRedirects(HTTPRedirectHandler):
    """A token goes to the address that was given, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


class AdminClient:
    """Speaks for the owner of one token."""

    def __init__(self, url: str, token_file: str | Path | None, ca: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r:.80} is no address of an admin API: write https://host:port")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise UsageError("the token would cross the network in clear: use https://")
        if token_file is None:
            raise UsageError("give --token-file FILE, too: the admin API wants a token")
        self._url, self._token = url.rstrip("/"), _token(Path(token_file))
        context: ssl.SSLContext | None = client_context(ca) if parts.scheme == "https" else None
        handlers = [HTTPSHandler(context=context)] if context is not None else []
        self._opener = build_opener(ProxyHandler({}), _NoRedirects(), *handlers)

    def sessions(self, query: Mapping[str, str]) -> Iterator[SessionFacts]:
        """All pages of them."""
        asked = {"limit": str(PAGE_MAX), **{name: one for name, one in query.items() if one}}
        while True:
            page = self._ask("GET", f"{PATH}?{urlencode(asked)}", Page)
            yield from page.sessions
            if not page.next:
                return
            asked["after"] = page.next

    def session(self, client: str, broker: str = "") -> list[SessionDetails]:
        return self._ask("GET", _path(client, broker=broker), _Details).sessions

    def remove(self, client: str, broker: str = "", reason: str = "") -> list[Kicked]:
        return self._ask("DELETE", _path(client, broker=broker, reason=reason), _Removed).removed

    def kick(
        self,
        client: str,
        broker: str = "",
        reason: str = "",
        *,
        forget: bool = False,
        again: bool = False,
    ) -> list[Kicked]:
        flags = {"forget": "true" if forget else "", "again": "true" if again else ""}
        target = _path(client, KICK, broker=broker, reason=reason, **flags)
        return self._ask("POST", target, _Kicked).kicked

    def _ask(self, method: str, target: str, answer: type[T]) -> T:
        said = {"Authorization": f"Bearer {self._token}"}
        request = Request(f"{self._url}{target}", method=method, headers=said)
        try:
            with self._opener.open(request, timeout=ANSWER_S) as response:
                return msgspec.json.decode(response.read(ANSWER_BYTES), type=answer)
        except HTTPError as error:
            reason = _reason(error)
            if reason is None:
                came = f"it answers {error.code} {error.reason}"
                raise CannotConnect(f"{self._url} is no admin API: {came}") from None
            if error.code == HTTPStatus.NOT_FOUND:
                raise Missing(reason) from None
            raise UsageError(f"{self._url}: {reason}") from None
        except (OSError, HTTPException) as error:
            inner = getattr(error, "reason", error)
            reason = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
            if isinstance(error, HTTPException) and not isinstance(error, OSError):
                reason = "what listens there does not speak HTTP"
            raise CannotConnect(
                f"cannot reach an admin API at {self._url}: {reason}; see that the broker runs, and has"
                " admin.listen"
            ) from None
        except msgspec.DecodeError as error:
            raise CannotConnect(f"{self._url} is no admin API of this release: {error}") from None


def _reason(error: HTTPError) -> str | None:
    """What the broker says is wrong; None if this is no answer of an admin API."""
    try:
        return str(json.loads(error.read(ANSWER_BYTES))["error"])
    except (ValueError, KeyError, TypeError, OSError, HTTPException):
        return None


def _path(client: str, action: str = "", **query: str) -> str:
    said = urlencode({name: one for name, one in query.items() if one})
    return f"{PATH}/{quote(client, safe='')}{action}{'?' if said else ''}{said}"


def _token(path: Path) -> str:
    """The last word of the first line that has one, as in the file of the broker."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read the token in {path}: {reason}") from None
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    if not words:
        raise UsageError(f"{path} has no token: write one into its first line")
    return words[0][-1]
