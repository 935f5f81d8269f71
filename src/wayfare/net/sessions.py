"""What an operator may see of the sessions of running brokers, and do to them.

One implementation for the admin socket (`admin`) and the admin API over HTTP (`admin_http`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from heapq import nsmallest
from itertools import islice

import msgspec

from wayfare.core.codec import NAME_MAX
from wayfare.core.effects import Forgotten
from wayfare.core.filters import Filter
from wayfare.core.messages import ClientId
from wayfare.core.sessions import Session
from wayfare.errors import UsageError
from wayfare.net.broker import BrokerHost
from wayfare.net.connection import Connection

ATTACHED, AWAY, WAITING, ELSEWHERE = "attached", "away", "waiting", "elsewhere"
STATES = (ATTACHED, AWAY, WAITING)
FILTERS_SHOWN = 1_000  # subscriptions, or advertisements, of one session
SLICE = 2_000  # sessions that are looked at before clients have their turn
PAGE = 100  # sessions that a page has, if nobody says
PAGE_MAX = 1_000
BEGINNING = -1  # before the place of any session


class SessionFacts(msgspec.Struct, frozen=True):
    broker: str
    client: str
    account: str
    state: str  # attached, away or waiting (for its old broker)
    address: str  # of an attached client
    away_s: float
    backlog: int
    backlog_bytes: int
    subscriptions: int
    advertisements: int
    oldest_s: float = 0.0  # the age of the oldest notification that waits
    expires_s: float | None = None  # until it ends, if its client stays away


class SessionDetails(msgspec.Struct, frozen=True):
    """Everything about one session; or, if there is none at this broker, where it went."""

    broker: str
    client: str
    state: str  # as above, or elsewhere
    account: str = ""
    address: str = ""
    since: str = ""  # when its client was attached, or went away; UTC
    since_s: float = 0.0
    expires: str = ""  # when it ends, if its client stays away; UTC
    expires_s: float | None = None
    expiry_s: float = 0.0  # how long its client may be away
    backlog: int = 0
    backlog_bytes: int = 0
    oldest_s: float = 0.0
    subscriptions: int = 0
    advertisements: int = 0
    wants: list[str] = []  # the first of its subscriptions
    offers: list[str] = []  # ... and of its advertisements
    epoch: int = 0  # of its last attachment: each has a higher one
    moved_to: str = ""  # the broker that the client went to, if its session is not here


class Kicked(msgspec.Struct, frozen=True):
    """What came of a kick at one broker."""

    broker: str
    client: str
    disconnected: int  # connections
    forgotten: int  # sessions
    away: int  # sessions that are still there
    moved_to: str = ""  # the broker that the client went to, if it is not here


class Selection(msgspec.Struct, frozen=True):
    """Which sessions, and how many of them at a time."""

    client: str = ""  # a pattern; "": any
    state: str = ""  # "": any
    limit: int = PAGE
    after: str = ""  # what the page before said

    def __post_init__(self) -> None:
        if self.state not in ("", *STATES):
            raise UsageError(f"state is one of {', '.join(STATES)}, not {self.state[:60]!r}")
        if len(self.client) > NAME_MAX:
            raise UsageError(f"client is a pattern of at most {NAME_MAX} characters")
        if not 1 <= self.limit <= PAGE_MAX:
            raise UsageError(f"limit is a number from 1 to {PAGE_MAX}, not {self.limit}")
        self.begin()

    def matches(self, session: Session) -> bool:
        return (not self.client or fnmatchcase(session.client, self.client)) and (
            not self.state or _state(session) == self.state
        )

    def begin(self) -> tuple[int, int]:
        """Behind which session of which broker a page begins."""
        if not self.after:
            return 0, BEGINNING
        try:
            broker, place = self.after.split("-")
            return int(broker[:9]), int(place[:19])
        except ValueError:
            raise UsageError(
                f"after is what a page says in `next`, not {self.after[:60]!r}"
            ) from None


class Page(msgspec.Struct, frozen=True):
    sessions: list[SessionFacts]
    next: str = ""  # for `after`; "": there are no more


async def page(hosts: list[BrokerHost], wanted: Selection) -> Page:
    """Some sessions, by broker and age; those that come or go meanwhile may be missing."""
    first, after = wanted.begin()
    found: list[SessionFacts] = []
    for number, host in enumerate(hosts[first:], first):
        left = wanted.limit - len(found)
        candidates: list[Session] = []
        for some in _slices(host.core.border.all()):
            fresh = [one for one in some if one.place > after and wanted.matches(one)]
            candidates = nsmallest(left + 1, [*candidates, *fresh], key=_place)
            await asyncio.sleep(0)
        found += [facts_of(host, one) for one in candidates[:left]]
        if len(candidates) > left:
            last = candidates[left - 1].place if left else after
            return Page(found, f"{number}-{last}")
        after = BEGINNING
    return Page(found)


def _place(session: Session) -> int:
    return session.place


def _slices(sessions: Iterator[Session]) -> Iterator[list[Session]]:
    everything = iter(list(sessions))
    while some := list(islice(everything, SLICE)):
        yield some


def sessions_of(host: BrokerHost, wanted: Selection) -> Iterator[SessionFacts]:
    """All of them, at one moment for each."""
    for session in list(host.core.border.all()):
        if wanted.matches(session):
            yield facts_of(host, session)


def facts_of(host: BrokerHost, session: Session) -> SessionFacts:
    connection, now = host.connections.get(session.link or ""), host.now()
    away = session.link is None
    return SessionFacts(
        host.name,
        session.client,
        host.account_of(session.client),
        _state(session),
        connection.host if connection is not None else "",
        _seconds(now - session.away_since) if away else 0.0,
        len(session.backlog),
        session.backlog.bytes,
        len(session.subscriptions),
        len(session.advertisements),
        _oldest_s(session, now),
        _seconds(session.away_until - now) if away else None,
    )


def details_of(host: BrokerHost, client: str) -> list[SessionDetails]:
    """Its sessions, or where they went, if that is known."""
    border = host.core.border
    sessions = border.of(ClientId(client))
    if sessions:
        return [_details(host, one) for one in sessions]
    moved_to = _moved_to(host, client)
    return [SessionDetails(host.name, client, ELSEWHERE, moved_to=moved_to)] if moved_to else []


def _details(host: BrokerHost, session: Session) -> SessionDetails:
    facts, now = facts_of(host, session), host.now()
    connection = host.connections.get(session.link or "")
    since = session.away_since
    if session.link is not None:
        since = connection.attached_ns if connection is not None else now
    return SessionDetails(
        facts.broker,
        facts.client,
        facts.state,
        facts.account,
        facts.address,
        _time(since),
        _seconds(now - since),
        _time(session.away_until) if session.link is None else "",
        facts.expires_s,
        _seconds(host.core.border.away_ns(session)),
        facts.backlog,
        facts.backlog_bytes,
        facts.oldest_s,
        facts.subscriptions,
        facts.advertisements,
        _texts(session.subscriptions),
        _texts(session.advertisements),
        session.epoch,
    )


def _texts(filters: Iterable[Filter]) -> list[str]:
    return [str(one) for one in islice(filters, FILTERS_SHOWN)]


def _state(session: Session) -> str:
    if session.wait is not None:
        return WAITING
    return AWAY if session.link is None else ATTACHED


def _oldest_s(session: Session, now: int) -> float:
    return _seconds(now - session.backlog.oldest()) if len(session.backlog) else 0.0


def _seconds(ns: int) -> float:
    return round(max(0, ns) / 1e9, 1)


def _time(ns: int) -> str:
    return (
        datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    )


def _moved_to(host: BrokerHost, client: str) -> str:
    tombstone = host.core.border.tombstones.get(ClientId(client))
    if tombstone is None or tombstone.moved_to is None:
        return ""
    broker, epoch = tombstone.moved_to
    came_back = broker == host.name or tombstone.epoch > epoch
    return "" if came_back else broker


def kick(
    host: BrokerHost,
    name: str,
    by: str,
    *,
    forget: bool = False,
    again: bool = False,
    reason: str = "",
) -> Kicked:
    """Disconnect a client, and with `forget` end its session: its backlog is dropped."""
    client = ClientId(name)
    did = "ended its session" if forget else "disconnected it"
    reason = reason or f"an operator {did}"
    connections = [one for one in host.connections.values() if one.peer == client]
    sessions = host.core.border.of(client)
    for connection in connections:
        _disconnect(host, connection, reason, by, again=again)
    if forget and sessions:
        host.apply(Forgotten(client, reason))
        if not connections:
            account = host.account_of(client)
            host.audit.record("kicked", client=client, account=account, by=by, reason=reason)
    forgotten = len(sessions) if forget else 0
    return Kicked(
        host.name,
        client,
        len(connections),
        forgotten,
        len(sessions) - forgotten,
        "" if sessions else _moved_to(host, client),
    )


def _disconnect(
    host: BrokerHost, connection: Connection, reason: str, by: str, *, again: bool
) -> None:
    host.audit.record(
        "kicked",
        client=connection.peer,
        account=host.account_of(connection.peer),
        address=connection.host,
        by=by,
        reason=reason,
    )
    connection.audited = True
    connection.refuse(reason, again=again, why="kicked")
