"""The status of brokers as Prometheus wants it.

METRICS is all there is: docs/operations.md is checked against it. Names of neighbours are labels, those of
clients are not: there may be any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from wayfare.net.status import BROKER, CLIENT, BrokerStatus, Spread, Status, Told

Sample = tuple[tuple[str, ...], float | Spread]  # the values of labels, and the value
FAMILIES: dict[str, type[Metric]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Row(msgspec.Struct, frozen=True):
    """One metric: it has the label `broker`, and these."""

    name: str
    kind: str
    labels: str
    about: str
    read: Callable[[BrokerStatus], Iterable[Sample]]


def _one(read: Callable[[BrokerStatus], float | Spread]) -> Callable[[BrokerStatus], list[Sample]]:
    return lambda status: [((), read(status))]


def _stored(
    read: Callable[[BrokerStatus], float | Spread],
) -> Callable[[BrokerStatus], list[Sample]]:
    """What only a broker with a store has."""
    return lambda status: [] if status.durability == "memory" else [((), read(status))]


def _traffic(read: Callable[[Told], int]) -> Callable[[BrokerStatus], Iterator[Sample]]:
    def samples(status: BrokerStatus) -> Iterator[Sample]:
        for kind, traffic in status.traffic.items():
            yield (kind, ""), read(traffic)
        for link in status.links:
            yield (BROKER, link.name), read(link.traffic)

    return samples


METRICS = (
    Row(
        "wayfare_info",
        "gauge",
        "routing relocation durability",
        "always 1; what kind of broker it is",
        lambda one: [((one.routing, one.relocation, one.durability), 1)],
    ),
    Row(
        "wayfare_uptime_seconds",
        "gauge",
        "",
        "since it listens",
        _one(lambda one: one.uptime_s),
    ),
    Row(
        "wayfare_failed",
        "gauge",
        "",
        "1 when its store failed, and nothing is accepted any more",
        _one(lambda one: bool(one.failure)),
    ),
    Row(
        "wayfare_store_rolled_back",
        "gauge",
        "",
        "1 when its store turned out to be older than what it had promised; clients were told of gaps",
        _one(lambda one: bool(one.rollback)),
    ),
    Row(
        "wayfare_connections",
        "gauge",
        "kind",
        "open ones: of clients, of neighbours (broker), and of strangers, who have not said what they are",
        lambda one: [((kind,), count) for kind, count in one.connections.items()],
    ),
    Row(
        "wayfare_connections_ended_total",
        "counter",
        "kind how why",
        "closed in peace, lost, refused with a reason for the peer, or cut off without; and why that: limit,"
        " login, neighbour (not ours, or it cannot prove it), bytes (no frames of ours), protocol, late (it did"
        " not say what it is), silent, unread (it does not read), given_up (too much waited for a neighbour),"
        " rolled_back (a store was), memory (it had most of it, beyond the limit), store (that failed),"
        " grant (more than its account allows), account (that was removed or changed), kicked (by an operator),"
        " revoked (its certificate), banned",
        lambda one: [((ended.kind, ended.how, ended.why), ended.count) for ended in one.ended],
    ),
    Row(
        "wayfare_attachments_total",
        "counter",
        "",
        "of clients, also to a session that is here",
        _one(lambda one: one.attachments),
    ),
    Row(
        "wayfare_logins_total",
        "counter",
        "result",
        "passwords that were ok or failed, and logins that were throttled: refused without a check,"
        " because too many had failed before",
        lambda one: [((result,), count) for result, count in one.logins.items()],
    ),
    Row(
        "wayfare_audit_lines_total",
        "counter",
        "result",
        "lines of the audit log: written, or failed, for example because the disk is full",
        lambda one: [((result,), count) for result, count in one.audit_lines.items()],
    ),
    Row(
        "wayfare_moves_total",
        "counter",
        "",
        "attachments of clients that were at another broker before",
        _one(lambda one: one.moves),
    ),
    Row(
        "wayfare_handover_seconds",
        "histogram",
        "",
        "that sessions of clients that moved here waited for their old broker",
        _one(lambda one: one.handovers),
    ),
    Row(
        "wayfare_sessions",
        "gauge",
        "state",
        "of clients that are attached, or away, or waiting for their old broker",
        lambda one: [
            ((state,), count) for state, count in msgspec.structs.asdict(one.sessions).items()
        ],
    ),
    Row(
        "wayfare_queue_groups",
        "gauge",
        "kind",
        "queue groups that this broker coordinates: groups, members, notifications that are queued or assigned, how"
        " many were assigned again, and groups refused beyond the limit",
        lambda one: [((kind,), count) for kind, count in one.groups.items()],
    ),
    Row(
        "wayfare_half_attached",
        "gauge",
        "",
        "clients that attached by the digest of their filters, which are being asked for",
        _one(lambda one: one.half_attached),
    ),
    Row(
        "wayfare_backlog_notifications",
        "gauge",
        "",
        "kept until clients acknowledge them, counted for every client",
        _one(lambda one: one.backlog_notifications),
    ),
    Row(
        "wayfare_backlog_bytes",
        "gauge",
        "",
        "the same in bytes; what several clients wait for is in memory once",
        _one(lambda one: one.backlog_bytes),
    ),
    Row(
        "wayfare_wills_published_total",
        "counter",
        "",
        "last wills of clients that were gone for longer than the delay",
        _one(lambda one: one.wills),
    ),
    Row(
        "wayfare_retained_values",
        "gauge",
        "",
        "current values of retained publications; every broker of a tree has all of them",
        _one(lambda one: one.retained),
    ),
    Row(
        "wayfare_retained_bytes",
        "gauge",
        "",
        "the same in bytes",
        _one(lambda one: one.retained_bytes),
    ),
    Row(
        "wayfare_retained_evicted_total",
        "counter",
        "",
        "current values that were dropped to keep `limits.retained_count` or another limit of theirs",
        _one(lambda one: one.retained_evicted),
    ),
    Row(
        "wayfare_memory_bytes",
        "gauge",
        "kind",
        "what counts for `limits.memory`, as estimated: notifications, profiles (sessions with their filters),"
        " publications that are not accepted yet, the past, current values, and what waits in connections and"
        " links",
        lambda one: [((kind,), size) for kind, size in one.memory.items()],
    ),
    Row(
        "wayfare_memory_limit_bytes",
        "gauge",
        "",
        "`limits.memory`; 0 is none",
        _one(lambda one: one.memory_limit),
    ),
    Row(
        "wayfare_sessions_ended_total",
        "counter",
        "why",
        "sessions of clients that are away, which get a gap when they are back: expired, evicted"
        " (beyond `limits.sessions`), or memory, account_memory, disk or account_disk (large because"
        " of their filters)",
        lambda one: [((why,), count) for why, count in one.ended_sessions.items()],
    ),
    Row(
        "wayfare_shed_notifications_total",
        "counter",
        "",
        "dropped because a limit in sum was exceeded; clients that miss them are told",
        _one(lambda one: one.shed),
    ),
    Row(
        "wayfare_slowed_total",
        "counter",
        "",
        "times that the publications of a client here were paused: for a client that reads too slowly, or because"
        " a limit in sum is near",
        _one(lambda one: one.slowed),
    ),
    Row(
        "wayfare_paused_publishers",
        "gauge",
        "",
        "clients here whose publications are paused",
        _one(lambda one: one.paused_publishers),
    ),
    Row(
        "wayfare_slow_leases",
        "gauge",
        "",
        "publishers that are slowed, here or in the direction of a neighbour",
        _one(lambda one: one.slow_leases),
    ),
    Row(
        "wayfare_congested_clients",
        "gauge",
        "",
        "clients here, and queue groups, that read too slowly: from the high mark of their backlog to the low mark",
        _one(lambda one: one.congested_clients),
    ),
    Row(
        "wayfare_congestions_total",
        "counter",
        "",
        "times that a client, or a queue group, was congested",
        _one(lambda one: one.congestions),
    ),
    Row(
        "wayfare_subscriptions",
        "gauge",
        "kind neighbour",
        "of clients here, and as each neighbour told them",
        lambda one: [
            ((CLIENT, ""), one.subscriptions),
            *(((BROKER, link.name), link.subscriptions) for link in one.links),
        ],
    ),
    Row(
        "wayfare_advertisements",
        "gauge",
        "kind neighbour",
        "likewise",
        lambda one: [
            ((CLIENT, ""), one.advertisements),
            *(((BROKER, link.name), link.advertisements) for link in one.links),
        ],
    ),
    Row(
        "wayfare_link_up",
        "gauge",
        "neighbour",
        "1 while there is a connection to the neighbour",
        lambda one: [((link.name,), link.up) for link in one.links],
    ),
    Row(
        "wayfare_link_kept_messages",
        "gauge",
        "neighbour",
        "sent, and kept until the neighbour confirms them",
        lambda one: [((link.name,), link.kept) for link in one.links],
    ),
    Row(
        "wayfare_link_kept_bytes",
        "gauge",
        "neighbour",
        "of those",
        lambda one: [((link.name,), link.kept_bytes) for link in one.links],
    ),
    Row(
        "wayfare_messages_received_total",
        "counter",
        "kind neighbour",
        "from clients, strangers and each neighbour, heartbeats included",
        _traffic(lambda told: told.messages_in),
    ),
    Row(
        "wayfare_messages_sent_total",
        "counter",
        "kind neighbour",
        "to them",
        _traffic(lambda told: told.messages_out),
    ),
    Row(
        "wayfare_received_bytes_total",
        "counter",
        "kind neighbour",
        "as they came, inside TLS",
        _traffic(lambda told: told.bytes_in),
    ),
    Row(
        "wayfare_sent_bytes_total",
        "counter",
        "kind neighbour",
        "likewise",
        _traffic(lambda told: told.bytes_out),
    ),
    Row(
        "wayfare_notifications_routed_total",
        "counter",
        "",
        "from clients and neighbours, wanted or not",
        _one(lambda one: one.routed),
    ),
    Row(
        "wayfare_deliveries_total",
        "counter",
        "",
        "of notifications to clients, repetitions included",
        _one(lambda one: one.deliveries),
    ),
    Row(
        "wayfare_gaps_total",
        "counter",
        "",
        "times a client was told that notifications for it are lost, or may be",
        _one(lambda one: one.gaps),
    ),
    Row(
        "wayfare_virtual_clients",
        "gauge",
        "state",
        "of clients that follow their location and are here, or elsewhere: it listens for both",
        lambda one: [(("here",), one.ahead.here), (("elsewhere",), one.ahead.elsewhere)],
    ),
    Row(
        "wayfare_ahead_notifications",
        "gauge",
        "",
        "that virtual clients keep for when their clients come, each once",
        _one(lambda one: one.ahead.kept),
    ),
    Row(
        "wayfare_peer_messages_total",
        "counter",
        "what",
        "of replicators to each other: sent, received, or dropped because the other broker cannot be"
        " reached",
        lambda one: [
            (("sent",), one.ahead.sent),
            (("received",), one.ahead.heard),
            (("dropped",), one.ahead.dropped),
        ],
    ),
    Row(
        "wayfare_journal_bytes",
        "gauge",
        "",
        "since the last snapshot; only with a store",
        _stored(lambda one: one.journal_bytes),
    ),
    Row(
        "wayfare_disk_bytes",
        "gauge",
        "",
        "what counts for `limits.disk`: the snapshot and the journal; only with a store",
        _stored(lambda one: one.disk_bytes),
    ),
    Row(
        "wayfare_disk_limit_bytes",
        "gauge",
        "",
        "`limits.disk`; 0 is none; only with a store",
        _stored(lambda one: one.disk_limit),
    ),
    Row(
        "wayfare_journal_overdue",
        "gauge",
        "",
        "1 while the journal is twice as long as when a snapshot is due: it grows until the disk is full;"
        " only with a store",
        _stored(lambda one: one.journal_overdue),
    ),
    Row(
        "wayfare_snapshots_total",
        "counter",
        "",
        "that took the place of a journal; only with a store",
        _stored(lambda one: one.snapshots),
    ),
    Row(
        "wayfare_commit_seconds",
        "histogram",
        "",
        "that it took to make a turn of the loop safe; only with a store",
        _stored(lambda one: one.commits),
    ),
)
LAG = Row(
    "wayfare_loop_lag_seconds",
    "histogram",
    "",
    "that the event loop was late; of the process, without the label `broker`",
    lambda _: (),
)


class Brokers(Collector):
    """Asked at every scrape."""

    def __init__(self, status: Callable[[], Status], lag: Callable[[], Spread]) -> None:
        self._status, self._lag = status, lag

    def describe(self) -> list[Metric]:
        return []  # or the registry would ask for everything, once, to know the names

    def collect(self) -> Iterator[Metric]:
        brokers = self._status().brokers
        for row in METRICS:
            samples = [
                ((one.name, *labels), value) for one in brokers for labels, value in row.read(one)
            ]
            if samples:
                yield _family(row, ["broker", *row.labels.split()], samples)
        yield _family(LAG, [], [((), self._lag())])


def _family(row: Row, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    family = FAMILIES[row.kind](row.name, row.about, labels=labels)  # type: ignore[call-arg]
    for values, value in samples:
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Spread)
            bounds = [*map(str, value.bounds_s), "+Inf"]
            buckets = list(zip(bounds, value.counts, strict=True))
            family.add_metric(values, buckets, value.sum_s)
        else:
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
            assert not isinstance(value, Spread)
            family.add_metric(values, value)
    return family


class Metrics:
    """The text that a scrape gets."""

    def __init__(self, status: Callable[[], Status], lag: Callable[[], Spread]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(Brokers(status, lag))
        for of_process in (ProcessCollector, PlatformCollector, GCCollector):
            of_process(registry=self._registry)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """In a format that the scraper accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def reference() -> str:
    """The table of docs/operations.md."""
    lines = ["| metric | kind | labels | what it says |", "| --- | --- | --- | --- |"]
    for row in (*METRICS, LAG):
        labels = ", ".join(f"`{one}`" for one in row.labels.split())
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.about} |")
    return "\n".join(lines) + "\n"
