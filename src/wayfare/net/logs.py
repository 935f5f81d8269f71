"""Logs: one event a line, as text for people or as JSON for programs, and none of them a thousand times.

    tell(logger, logging.INFO, "link_up", "%(broker)s and %(peer)s are linked", broker="porto", peer="lisbon")

    2026-11-16T06:00:00.123Z INFO porto and lisbon are linked
    {"time":"2026-11-16T06:00:00.123Z","level":"info","event":"link_up","broker":"porto","peer":"lisbon",...}

Lines name brokers and clients, and say reasons. What notifications contain, and passwords, are in none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
REPEATED_MAX = 20  # lines of one kind, in REPEATED_S; the others are left out, and counted
REPEATED_S = 10.0
KINDS_MAX = 1_000  # of lines that are counted; then counting begins anew


def tell(logger: logging.Logger, level: int, event: str, sentence: str, **facts: Any) -> None:
    """Log an event: a sentence with names of facts in it, `%(peer)s`."""
    if logger.isEnabledFor(level):
        logger.log(level, sentence, *([facts] if facts else []), extra={"event": event})


def printable(text: str) -> str:
    """One line, and nothing that a terminal obeys."""
    return "".join(one if one.isprintable() else "?" for one in text)


def start(level: str, format: str, stream: TextIO) -> logging.Handler:
    """Write the log of this process there, from this level on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Json() if format == "json" else Text())
    handler.addFilter(Sparing())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


class Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {printable(record.getMessage())}"
        line += "".join(f" ({one})" for one in _left_out(record))
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": _time(record), "level": record.levelname.lower()}
        line["event"] = getattr(record, "event", "log")
        if isinstance(record.args, dict):
            line |= {name: _plain(value) for name, value in record.args.items()}
        else:
            line["logger"] = record.name
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if told := _left_out(record):
            line["left_out"] = ", ".join(told)
        return msgspec.json.encode(line).decode("utf-8", "replace")


class Sparing(logging.Filter):
    """Lets few lines of one kind pass in a while. A kind is a sentence, whatever facts are in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int, str], tuple[float, int]] = {}  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        now, kind = self._clock(), (record.name, record.levelno, str(record.msg))
        since, count = self._kinds.get(kind, (now, 0))
        before = 0
        if now - since >= REPEATED_S:
            before = max(0, count - REPEATED_MAX)
            since, count = now, 0
        if len(self._kinds) >= KINDS_MAX and kind not in self._kinds:
            self._kinds.clear()
        self._kinds[kind] = since, count + 1
        record.left_out_before, record.left_out_now = before, count + 1 == REPEATED_MAX
        return count < REPEATED_MAX


def _left_out(record: logging.LogRecord) -> list[str]:
    before, now = getattr(record, "left_out_before", 0), getattr(record, "left_out_now", False)
    told = [f"{before} like this were left out before"] if before else []
    return told + ([f"more like this are left out for up to {REPEATED_S:g} s"] if now else [])


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | None) else str(value)
