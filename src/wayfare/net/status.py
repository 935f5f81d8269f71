"""What a broker is doing, as facts: read when somebody asks, so that nobody pays who does not."""

from __future__ import annotations

import time

import msgspec

from wayfare.core.counts import Histogram
from wayfare.core.messages import BrokerId
from wayfare.net.broker import BrokerHost
from wayfare.net.connection import Traffic

CLIENT, BROKER, STRANGER = KINDS = ("client", "broker", "stranger")  # of connections
NEVER = Histogram(())
SHOWN = 10  # accounts whose memory a status shows: those nearest to their limits


class Told(msgspec.Struct, frozen=True):
    """Messages and bytes, in both directions, since the start."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @staticmethod
    def of(traffic: Traffic) -> Told:
        return Told(traffic.messages_in, traffic.messages_out, traffic.bytes_in, traffic.bytes_out)


class Ended(msgspec.Struct, frozen=True):
    """Connections that are no more: closed in peace, lost, refused or cut, and why we did that."""

    kind: str
    how: str
    why: str
    count: int


class LinkStatus(msgspec.Struct, frozen=True):
    """A link to a neighbour."""

    name: str
    up: bool
    kept: int  # messages that it has not confirmed
    subscriptions: int  # entries that it told
    advertisements: int
    traffic: Told
    kept_bytes: int = 0


class Sessions(msgspec.Struct, frozen=True):
    """Of clients; each is one of these."""

    attached: int = 0
    away: int = 0
    waiting: int = 0  # for the old broker


class Ahead(msgspec.Struct, frozen=True):
    """Virtual clients, what they keep, and what replicators said to each other since the start."""

    here: int = 0  # whose clients are here
    elsewhere: int = 0
    kept: int = 0  # notifications, each once
    sent: int = 0  # messages to other replicators
    heard: int = 0
    dropped: int = 0
    trouble: dict[str, str] = {}  # brokers that cannot be told anything, and why


class AccountMemory(msgspec.Struct, frozen=True):
    """What is kept for the clients of one account that has a limit, in bytes."""

    account: str
    bytes: int
    limit: int


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    address: str
    uptime_s: float
    routing: str
    relocation: str
    durability: str
    failure: str  # why its store failed; else empty
    rollback: str = ""  # how its store turned out to be older than what it had promised, if it did
    connections: dict[str, int]  # by kind
    ended: list[Ended]
    sessions: Sessions
    attachments: int
    moves: int
    backlog_notifications: int
    backlog_bytes: int
    subscriptions: int  # of clients
    advertisements: int
    links: list[LinkStatus]
    traffic: dict[str, Told]  # of clients, and of strangers
    routed: int
    deliveries: int
    gaps: int
    journal_bytes: int
    snapshots: int
    handovers: Spread
    commits: Spread
    ahead: Ahead = Ahead()
    journal_overdue: bool = False  # no snapshot takes the place of the journal
    half_attached: int = 0  # clients whose filters are not known yet
    memory: dict[str, int] = {}  # bytes by what they are kept for, as estimated
    memory_limit: int = 0  # 0: none
    account_memory: list[AccountMemory] = []  # of the accounts nearest to their limits
    disk_bytes: int = 0  # of the store
    disk_limit: int = 0  # 0: none
    shed: int = 0  # notifications that were dropped because of a limit in sum
    slowed: int = 0  # times that the publications of a client here were paused
    audit_lines: dict[str, int] = {}  # written, and failed
    logins: dict[str, int] = {}  # ok, failed and throttled
    ended_sessions: dict[
        str, int
    ] = {}  # of clients that are away: expired, evicted, or a limit of memory
    wills: int = 0  # published since the start
    retained: int = 0  # current values
    retained_bytes: int = 0
    retained_evicted: int = 0  # that a limit dropped
    paused_publishers: int = 0  # clients here whose publications wait
    slow_leases: int = 0  # publishers, here or behind neighbours, that are slowed
    congested_clients: int = 0  # that are connected and read too slowly
    congestions: int = 0  # times that a client was, since the start
    groups: dict[str, int] = {}  # queue groups that it coordinates


class Spread(msgspec.Struct, frozen=True):
    """A histogram: upper bounds, and how many values were up to each, and in all."""

    bounds_s: list[float]
    counts: list[int]
    sum_s: float

    @staticmethod
    def of(histogram: Histogram) -> Spread:
        counts, so_far = [], 0
        for count in histogram.counts:
            so_far += count
            counts.append(so_far)
        return Spread([bound / 1e9 for bound in histogram.bounds], counts, histogram.sum / 1e9)


class Status(msgspec.Struct, frozen=True):
    """Of a process, and its brokers."""

    version: str
    time_s: float  # of day
    lag_s: float  # how late the loop was when it was last looked at
    brokers: list[BrokerStatus]


class Health(msgspec.Struct, frozen=True):
    name: str
    uptime_s: float
    links_up: list[str]
    links_down: list[str]
    durability: str
    failure: str

    @property
    def is_good(self) -> bool:
        return not (self.links_down or self.failure)


def health_of(host: BrokerHost) -> Health:
    return Health(
        host.name,
        _uptime_s(host),
        [name for name, link in host.links.items() if link.connection is not None],
        [name for name, link in host.links.items() if link.connection is None],
        _durability(host),
        str(host.failure or ""),
    )


def status_of(host: BrokerHost) -> BrokerStatus:
    routing, store = host.core.routing, host.store
    states = {"attached": 0, "away": 0, "waiting": 0}
    notifications = size = subscriptions = advertisements = 0
    for session in host.core.border.all():
        state = "away" if session.link is None else "attached"
        states[state if session.wait is None else "waiting"] += 1
        notifications += len(session.backlog)
        size += session.backlog.bytes
        subscriptions += len(session.subscriptions)
        advertisements += len(session.advertisements)
    return BrokerStatus(
        name=host.name,
        address=str(host.address or ""),
        uptime_s=_uptime_s(host),
        routing=routing.strategy,
        relocation=host.core.relocation.name,
        durability=_durability(host),
        failure=str(host.failure or ""),
        rollback=host.rollback,
        connections={
            CLIENT: len(host.connections),
            BROKER: sum(link.connection is not None for link in host.links.values()),
            STRANGER: host.strangers,
        },
        ended=[Ended(*what, count) for what, count in sorted(host.ended.items())],
        sessions=Sessions(**states),
        attachments=host.attachments,
        moves=host.moves,
        backlog_notifications=notifications,
        backlog_bytes=size,
        subscriptions=subscriptions,
        advertisements=advertisements,
        links=[
            LinkStatus(
                name,
                link.connection is not None,
                len(link),
                len(routing.in_subs[BrokerId(name)]),
                len(routing.in_ads[BrokerId(name)]),
                Told.of(link.traffic),
                link.bytes,
            )
            for name, link in host.links.items()
        ],
        traffic={kind: Told.of(traffic) for kind, traffic in host.traffic.items()},
        routed=host.routed,
        deliveries=host.deliveries,
        gaps=host.gaps,
        journal_bytes=store.journal_bytes if store is not None else 0,
        snapshots=store.snapshots if store is not None else 0,
        handovers=Spread.of(host.core.border.handovers),
        commits=Spread.of(store.commits if store is not None else NEVER),
        ahead=_ahead(host),
        journal_overdue=store is not None and store.is_overdue,
        half_attached=len(host.core.profiles.asking),
        memory=dict(host.memory.kinds()),
        memory_limit=host.core.border.limits.memory_bytes,
        account_memory=_account_memory(host),
        disk_bytes=store.disk_bytes if store is not None else 0,
        disk_limit=host.disk.limit,
        shed=host.core.border.memory.shed,
        ended_sessions=dict(host.ended_sessions),
        slowed=host.slowed,
        audit_lines={"written": host.audit.written, "failed": host.audit.failed},
        logins=dict(host.logins),
        wills=host.wills,
        retained=len(host.core.border.retained),
        retained_bytes=host.core.border.retained.bytes,
        retained_evicted=host.core.border.retained.evicted,
        paused_publishers=host.core.backpressure.paused,
        slow_leases=len(host.core.backpressure.slowed),
        congested_clients=len(host.core.backpressure.episodes),
        congestions=host.core.backpressure.begun,
        groups=host.core.groups.facts(),
    )


def _account_memory(host: BrokerHost) -> list[AccountMemory]:
    known = [AccountMemory(*one) for one in host.core.border.memory.limited_accounts()]
    known.sort(key=lambda one: (-one.bytes / one.limit, one.account))
    return known[:SHOWN]


def _ahead(host: BrokerHost) -> Ahead:
    replicator, peers = host.core.replicator, host.peers
    here = [one.link is not None for one in replicator.virtual.values() if one.follows]
    return Ahead(
        sum(here),
        len(here) - sum(here),
        len(replicator.ear.store.kept),
        peers.sent,
        peers.heard,
        peers.dropped,
        dict(peers.trouble),
    )


def _uptime_s(host: BrokerHost) -> float:
    return round(time.monotonic() - host.started_s, 3) if host.started_s else 0.0


def _durability(host: BrokerHost) -> str:
    return host.store.durability if host.store is not None else "memory"
