"""What an application may say to a client beside filters and notifications: what each may be.

Options    what `connect` may be told
Settings   the same with what is usual, where nothing was said
OPTIONS    name -> (whether a value is good, what to give)
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from math import inf, isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from wayfare.core.client import OUTBOX_BYTES_MAX, OUTBOX_MAX
from wayfare.core.codec import NAME_MAX
from wayfare.core.messages import GROUP_NAME_MAX, PREFETCH_MAX
from wayfare.core.places import Places
from wayfare.errors import UsageError
from wayfare.net.being import Areas, Changes, Map, is_areas, is_changes
from wayfare.net.database import SYNCHRONOUS
from wayfare.net.heartbeat import HEARTBEAT_S
from wayfare.net.wills import Will

if TYPE_CHECKING:
    from wayfare.eventlog import Event

CONFIRM_S = 10.0  # until `subscribe` and `advertise` go on without a confirmation
EXPIRES_S = 300.0  # that a client without a name of its own may be away, unless it says otherwise
CONNECT_S = 10.0  # until `connect` gives up
FAILOVER_S = 2.0  # that a client waits for what is at a broker that cannot be reached
QUEUE_MAX = 1_000  # notifications that wait for the application, of one subscription
PROBE_S = 10.0  # between two measurements of the brokers that were discovered
POLICIES = ("wait", "drop_oldest", "drop_newest")
SECONDS_MAX = 1e9  # 31 years


class Options(TypedDict, total=False):
    """What `connect` may be told beside where to go, and as whom."""

    queue: int
    policy: str
    outbox: int
    outbox_bytes: int
    on_lost: Callable[[int, str], None] | None
    on_settled: Callable[[int, dict[str, int]], None] | None
    on_connect: Callable[[str], object] | None
    on_disconnect: Callable[[str, str], object] | None
    events: Callable[[Event], object] | str | PathLike[str] | None
    timeout: float
    confirm: float
    heartbeat_s: float
    clock_error: float | None
    ca: str
    crl: str
    cert: tuple[str, str] | None
    account: str | None
    password: str | None
    store: str | Path | None
    durability: str
    areas: Areas | None
    changes: Changes | None
    places: Map | None
    expires: float | None
    failover: float | None
    late: bool
    will: Will | None
    probe: float


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a client goes by: `Settings(**options)` says what is wrong with them."""

    queue: int = QUEUE_MAX
    policy: str = "wait"
    outbox: int = OUTBOX_MAX
    outbox_bytes: int = OUTBOX_BYTES_MAX
    on_lost: Callable[[int, str], None] | None = None
    on_settled: Callable[[int, dict[str, int]], None] | None = None
    on_connect: Callable[[str], object] | None = None
    on_disconnect: Callable[[str, str], object] | None = None
    events: Callable[[Event], object] | str | PathLike[str] | None = None
    timeout: float = CONNECT_S
    confirm: float = CONFIRM_S
    heartbeat_s: float = HEARTBEAT_S
    clock_error: float | None = None
    ca: str = ""
    crl: str = ""
    cert: tuple[str, str] | None = None
    account: str | None = None
    password: str | None = None
    store: str | Path | None = None
    durability: str = "os"
    areas: Areas | None = None
    changes: Changes | None = None
    places: Map | None = None
    expires: float | None = None
    failover: float | None = FAILOVER_S
    late: bool = False
    will: Will | None = None
    probe: float = PROBE_S

    def __post_init__(self) -> None:
        check_options(**{name: getattr(self, name) for name in self.__struct_fields__})


def _count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _seconds(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and type(value) is not bool
        and isfinite(value)
        and 0 <= value < SECONDS_MAX
    )


def _patience(value: Any) -> bool:
    return _seconds(value) or value == inf


def _text(value: Any) -> bool:
    """In characters of UTF-8: not every word of a command line is."""
    return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)


def _is_names(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list | tuple) and bool(names) and all(_text(one) for one in names)


def _callback(value: Any) -> bool:
    """It is called and not awaited."""
    return callable(value) and not iscoroutinefunction(value)


def _path(value: Any) -> bool:
    return isinstance(value, str | PathLike)


def _pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_path, value))


OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "client_id": (
        lambda value: _text(value) and len(value) <= NAME_MAX,
        f"a text of at most {NAME_MAX} characters",
    ),
    "queue": (_count, "a whole number, at least 1"),
    "policy": (lambda value: value in POLICIES, f"one of {', '.join(POLICIES)}"),
    "outbox": (_count, "a whole number, at least 1"),
    "outbox_bytes": (_count, "a whole number, at least 1"),
    "on_lost": (_callback, "a function that is called with a count and a reason"),
    "on_settled": (_callback, "a function that is called with a count and counts by publisher"),
    "on_connect": (_callback, "a function that is called with the name of a broker"),
    "on_disconnect": (
        _callback,
        "a function that is called with the name of a broker and a reason",
    ),
    "events": (
        lambda value: callable(value) or _path(value),
        "a function, the path of a file, or the address of a broker",
    ),
    "timeout": (_seconds, "a number of seconds"),
    "confirm": (_seconds, "a number of seconds"),
    "heartbeat_s": (
        lambda value: _seconds(value) and value > 0,
        "a number of seconds, above 0",
    ),
    "clock_error": (_seconds, "a number of seconds"),
    "ca": (_path, "the path of a file"),
    "crl": (_path, "the path of a file"),
    "cert": (_pair, "a pair of paths: the file of the certificate, and the file of its key"),
    "account": (_text, "a text"),
    "password": (_text, "a text"),
    "store": (_path, "the path of a file"),
    "durability": (lambda value: value in SYNCHRONOUS, f"one of {', '.join(SYNCHRONOUS)}"),
    "areas": (is_areas, 'locations by location, like {"R1": ["R1", "R2"]}'),
    "changes": (
        is_changes,
        'steps, or values in their order, by name, like {"need": 1, "mode": ["walk", "bike", "car"]}',
    ),
    "places": (
        lambda value: isinstance(value, Places) or _path(value),
        "a map, or the path of its file",
    ),
    "failover": (_patience, "a number of seconds"),
    "late": (lambda value: type(value) is bool, "True or False"),
    "will": (
        lambda value: isinstance(value, Will),
        'a wayfare.Will({"device": "d7", "state": "gone"})',
    ),
    "probe": (lambda value: _seconds(value) and value >= 0.1, "a number of seconds, at least 0.1"),
    "expires": (lambda value: _seconds(value) and value > 0, "a number of seconds, above 0"),
    "last": (lambda value: type(value) is int and value >= 0, "a whole number, at least 0"),
    "younger": (_seconds, "a number of seconds"),
    "key": (_is_names, "the name of an attribute, or of several"),
    "same": (_is_names, "the name of an attribute, or of several"),
    "local": (lambda value: type(value) is bool, "True or False"),
    "since": (_seconds, "a number of seconds"),
    "slow_publishers": (_seconds, "a number of seconds"),
    "ack": (lambda value: type(value) is bool, "True or False"),
    "retained": (lambda value: type(value) is bool, "True or False"),
    "group": (
        lambda value: _text(value) and 0 < len(value) <= GROUP_NAME_MAX,
        f"a text of 1 to {GROUP_NAME_MAX} characters",
    ),
    "prefetch": (
        lambda value: _count(value) and value <= PREFETCH_MAX,
        f"a whole number from 1 to {PREFETCH_MAX}",
    ),
    "away": (lambda value: _seconds(value) and value >= 0.1, "a number of seconds, at least 0.1"),
}


def check_options(**given: Any) -> None:
    """UsageError for the first that is not what it may be; None is as good as not given."""
    for name, value in given.items():
        is_good, what = OPTIONS[name]
        if value is not None and not is_good(value):
            raise UsageError(f"{name} is {what}, not {value!r:.60}")
