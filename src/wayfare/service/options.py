"""What an application says of its client to `connect`: checked when it is said, and not when it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from types import NoneType
from typing import TYPE_CHECKING

import msgspec

from wayfare.errors import UsageError
from wayfare.service import messages as m
from wayfare.service.addresses import context_of, quoted
from wayfare.service.messages import SECOND_NS, Sync, Terms
from wayfare.service.proxy_addresses import where
from wayfare.service.system import Trust

if TYPE_CHECKING:
    from wayfare.eventlog import Event

Record = Callable[["Event"], object] | str | PathLike[str]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Of one client."""

    proxy: str  # "": where its agent says
    agent: str | None
    sync: Sync  # at move-in
    terms: Terms
    patience_ns: int
    key: str | None
    subscriptions: tuple[str, ...]
    login: str  # as it stands in an address
    trust: Trust
    record: Record | None


# What an option is, in words; where nothing is usual, it may also be None.
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "name": ((str,), "a text"),
    "proxy": ((str,), "an address"),
    "agent": ((str, NoneType), "an address"),
    "key": ((str, NoneType), "a text"),
    "login": ((str,), "user:password"),
    "ca": ((str, PathLike), "a file"),
    "sync": ((str, Sync), "ping, none, or delay and milliseconds"),
    "move_out_sync": ((str, Sync, NoneType), "ping, none, or delay and milliseconds"),
    "duplicates": ((bool,), "True or False"),
    "standby": ((bool,), "True or False"),
    "last": ((int, NoneType), "a number"),
    "age": ((int, float, NoneType), "a number of seconds"),
    "lease": ((int, float), "a number of seconds"),
    "patience": ((int, float), "a number of seconds"),
}


def options(
    name: str,
    proxy: str,
    agent: str | None,
    *,
    sync: str | Sync,
    move_out_sync: str | Sync | None,
    duplicates: bool,
    last: int | None,
    age: float | None,
    standby: bool,
    lease: float,
    patience: float,
    key: str | None,
    subscriptions: Sequence[str],
    login: str,
    trust: Trust,
    record: Record | None,
) -> Options:
    """Raises UsageError: what makes no sense, and what to write."""
    given: dict[str, object] = {"name": name, "proxy": proxy, "agent": agent, "key": key}
    given |= {"login": login, "sync": sync}
    given |= {"move_out_sync": move_out_sync, "duplicates": duplicates, "standby": standby}
    given |= {"last": last, "age": age, "lease": lease, "patience": patience, "ca": trust.ca}
    for option, said in given.items():
        _check_kind(option, said)
    if trust.cert is not None and not (isinstance(trust.cert, tuple) and len(trust.cert) == 2):
        raise UsageError("cert is a pair of files: (certificate, key)")
    if bool(proxy) == (agent is not None):
        raise UsageError("say where the client is: by `proxy`, or by the `agent` of its machine")
    if proxy:
        where(proxy)
    if not 0 < len(name) <= m.NAME_MAX or not name.isprintable():
        raise UsageError(f"a client's name has 1 to {m.NAME_MAX} characters that can be printed")
    if key is not None and not 0 < len(key) <= m.NAME_MAX:
        raise UsageError(f"a key has 1 to {m.NAME_MAX} characters")
    for what, value in (("age", age), ("lease", lease), ("patience", patience), ("last", last)):
        least = 0.1 if what == "lease" else 0
        if value is not None and not least <= value <= 1e9:  # nanoseconds, they fit 64 bits
            raise UsageError(f"{what} cannot be {value}: give {least} to 1,000,000,000")
    if isinstance(subscriptions, str):
        raise UsageError(f"several subscriptions are wanted: write [{subscriptions!r:.60}]")
    if not isinstance(subscriptions, Sequence):
        raise UsageError(f"subscriptions are a list of texts, and not {subscriptions!r:.60}")
    context_of(trust)  # so that it is told at once what is wrong with its files
    moving_in = _sync(sync)
    return Options(
        proxy=proxy,
        agent=agent,
        sync=moving_in,
        terms=Terms(
            sync=moving_in if move_out_sync is None else _sync(move_out_sync),
            standby=standby,
            copies=duplicates,
            last=last,
            age_ns=None if age is None else round(age * SECOND_NS),
            lease_ns=round(lease * SECOND_NS),
        ),
        patience_ns=round(patience * SECOND_NS),
        key=key,
        subscriptions=tuple(subscriptions),
        login=quoted(login),
        trust=trust,
        record=record,
    )


def _check_kind(what: str, value: object) -> None:
    kinds, words = KINDS[what]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise UsageError(f"{what} is {words}, and not {value!r:.60}")


def _sync(given: str | Sync) -> Sync:
    return given if isinstance(given, Sync) else Sync.parse(given)
