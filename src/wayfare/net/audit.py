"""The audit log: who logged in, who was refused, and what an operator changed, as JSON lines.

    audit = Audit("lisbon", "broker", "/var/log/wayfare/audit.jsonl")
    audit.record("login_failed", account="car-17", client="car-17", address="192.0.2.7", reason="password")

    {"schema":1,"time":"2026-11-17T20:55:01.123Z","event":"login_failed","node":"lisbon","role":"broker",...}

EVENTS is the schema; docs/audit.md is checked against it. A change that would break a reader of the file (an
event or a field that is renamed, removed, or changes its meaning) needs a new SCHEMA; an addition does not.

A flood does not fill the disk: of an event that a peer can cause, the first occurrence is written at once, and
repetitions within INTERVAL_S are counted and written as one line when the interval ends. No line contains a
password or a secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from wayfare.errors import UsageError
from wayfare.net.logs import printable, tell

SCHEMA = 1
INTERVAL_S = 60.0  # in which repetitions of one event are counted instead of written
DISTINCT_MAX = 50  # lines of one kind of event in an interval; the rest share one line
TEXT_MAX = 500  # characters of one field
ROLES = ("broker", "thin", "service")

logger = logging.getLogger("wayfare.audit")

Value = str | int | float | bool | None


class Kind(msgspec.Struct, frozen=True):
    """One kind of event: what it means, and which fields its lines have beside those of every line."""

    about: str
    fields: tuple[str, ...]
    by_peer: bool = False  # a peer can cause any number of them, so repetitions are aggregated


# Fields that every line has, in this order.
COMMON = {
    "schema": "the version of this schema",
    "time": "UTC, with milliseconds",
    "event": "one of the events below",
    "node": "the broker or proxy that writes the line",
    "role": "`broker`, `thin` or `service`",
}

# Fields of some events. A field that is unknown or empty is left out.
FIELDS = {
    "account": "the account that a peer named; it may not exist",
    "address": "of the peer, without its port; of a device behind a trusted thin proxy, the device's",
    "via": "the address of the thin proxy that the peer came through",
    "client": "the name of the client",
    "peer": "the name of the broker at the other end",
    "reason": "why, as a sentence or a word; its wording may change",
    "why": "the kind of refusal, as in `wayfare_connections_ended_total`; of a session, as in"
    " `wayfare_sessions_ended_total`",
    "action": "`attach`, `subscribe`, `publish` or `advertise`",
    "target": "of a ban: an address, a network, or `name:` and a client or account",
    "until": "when the ban ends, UTC",
    "change": "`added`, `removed` or `changed`",
    "what": "what was changed or reloaded",
    "by": "who asked for it",
    "ok": "whether it succeeded",
    "how": "`as before` or `from nothing`",
    "count": "of an aggregated line: how many more there were since `since`",
    "since": "of an aggregated line: when the interval began",
    "others": "`true` for an aggregated line of different peers, which were too many to list",
}

EVENTS = {
    "started": Kind("the broker or proxy started, or began to write this file", ("what",)),
    "stopped": Kind("it stopped", ()),
    "login_ok": Kind(
        "a client logged in with its password", ("account", "client", "address", "via"), True
    ),
    "login_failed": Kind(
        "a wrong password or key, or no such account",
        ("account", "client", "address", "via", "reason"),
        True,
    ),
    "login_throttled": Kind(
        "too many failures before: refused without a look at the password",
        ("account", "client", "address", "via", "reason"),
        True,
    ),
    "refused": Kind(
        "a connection was refused or cut off",
        ("client", "address", "why", "reason"),
        True,
    ),
    "denied": Kind(
        "a client asked for more than its account grants",
        ("account", "client", "address", "action", "reason"),
        True,
    ),
    "banned": Kind(
        "a banned peer was refused or disconnected",
        ("target", "account", "client", "address", "via", "until", "reason"),
        True,
    ),
    "ban_changed": Kind(
        "the list of bans has changed", ("target", "change", "until", "reason")
    ),
    "kicked": Kind(
        "an operator disconnected a client", ("client", "account", "address", "by", "reason")
    ),
    "session_ended": Kind(
        "the session of a client that is away has ended by itself", ("client", "account", "why"), True
    ),
    "account_changed": Kind(
        "an account was added, removed or changed, and that is in force",
        ("account", "change", "what"),
    ),
    "reloaded": Kind("files were read again", ("what", "ok", "reason")),
    "link_up": Kind("the link to a neighbour is up", ("peer", "address", "how"), True),
    "link_refused": Kind(
        "a peer could not prove that it is a neighbour, or a neighbour refused us",
        ("peer", "address", "reason"),
        True,
    ),
}  # fmt: skip

Key = tuple[str, tuple[tuple[str, Value], ...]]
# Fields that do not make two events different ones.
NOT_IDENTIFYING = frozenset(("reason", "until"))


class Audit:
    """The audit log of one broker or proxy; without a file, it records nothing."""

    def __init__(
        self,
        node: str,
        role: str,
        path: str | Path = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """UsageError if the file cannot be written."""
        assert role in ROLES, role
        self.node, self.role = node, role
        self.path = Path(path) if path else None
        self.written = self.failed = 0  # lines
        self._clock = clock
        self._file: int | None = None
        self._since = 0.0  # when the present interval began
        self._seen: dict[Key, int] = {}  # in this interval: how many were not written
        self._kinds: dict[str, int] = {}  # in this interval: different ones of each event
        self._others: dict[str, int] = {}  # in this interval: those beyond DISTINCT_MAX
        self._timer: asyncio.TimerHandle | None = None
        if self.path is not None:
            self._open(self.path)

    def _open(self, path: Path) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise UsageError(f"cannot write the audit log {path}: {error.strerror}") from None

    def reopen(self) -> None:
        """Go on in a new file, after the old one was renamed; if that fails, in the old one."""
        if self.path is None:
            return
        old, self._file = self._file, None
        try:
            self._open(self.path)
        except UsageError as error:
            self._file = old
            tell(logger, logging.ERROR, "audit_failed", "%(reason)s", reason=error)
            return
        if old is not None:
            os.close(old)

    def close(self) -> None:
        """Write what was only counted so far, and close the file."""
        if self._file is not None:
            self.flush()
            os.close(self._file)
            self._file = None

    def record(self, event: str, **fields: Value) -> None:
        """Write an event, or count it if the same one was written in this interval."""
        kind = EVENTS[event]
        assert kind.fields or not fields, f"{event} has no fields"
        assert set(fields) <= {*kind.fields}, f"{event} has the fields {kind.fields}, not {fields}"
        if self._file is None:
            return
        plain = {name: _plain(fields[name]) for name in kind.fields if _is_given(fields.get(name))}
        if not kind.by_peer or self._is_first(event, plain):
            self._write(event, plain)

    def _is_first(self, event: str, fields: dict[str, Value]) -> bool:
        if self._clock() - self._since >= INTERVAL_S:
            self.flush()
            self._since = self._clock()
        same = tuple(item for item in fields.items() if item[0] not in NOT_IDENTIFYING)
        key = event, same
        if key in self._seen:
            self._seen[key] += 1
        elif self._kinds.get(event, 0) >= DISTINCT_MAX:
            self._others[event] = self._others.get(event, 0) + 1
        else:
            self._kinds[event] = self._kinds.get(event, 0) + 1
            self._seen[key] = 0
            return True
        self._flush_later()
        return False

    def _flush_later(self) -> None:
        if self._timer is None:
            left = max(0.0, self._since + INTERVAL_S - self._clock())
            self._timer = asyncio.get_running_loop().call_later(left, self.flush)

    def flush(self) -> None:
        """Write what was counted in the present interval, which ends now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seen, self._seen = self._seen, {}
        others, self._others = self._others, {}
        self._kinds = {}
        since = _time(self._since)
        for (event, same), count in seen.items():
            if count:
                self._write(event, {**dict(same), "count": count, "since": since})
        for event, count in others.items():
            self._write(event, {"count": count, "since": since, "others": True})

    def _write(self, event: str, fields: dict[str, Value]) -> None:
        if self._file is None:
            return
        common = (SCHEMA, _time(self._clock()), event, self.node, self.role)
        line = msgspec.json.encode({**dict(zip(COMMON, common, strict=True)), **fields}) + b"\n"
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(28, "no space is left")
            self.written += 1
        except OSError as error:
            self.failed += 1
            says = "the audit log %(file)s has a gap: %(reason)s"
            tell(logger, logging.ERROR, "audit_failed", says, file=self.path, reason=error.strerror)


def _is_given(value: Value) -> bool:
    return value is not None and value != ""


def _plain(value: Value) -> Value:
    if isinstance(value, bool | int | float):
        return value
    return printable(str(value))[:TEXT_MAX].encode("utf-8", "replace").decode()


def _time(at: float) -> str:
    when = datetime.fromtimestamp(at, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z"


def reference() -> str:
    """The tables of docs/audit.md."""
    lines = ["| field | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {about} |" for name, about in (COMMON | FIELDS).items()]
    lines += ["", "| event | when | fields |", "| --- | --- | --- |"]
    for name, kind in EVENTS.items():
        fields = ", ".join(f"`{one}`" for one in kind.fields)
        starred = f"{fields} *" if kind.by_peer else fields
        lines.append(f"| `{name}` | {kind.about} | {starred} |")
    return "\n".join(lines) + "\n"
