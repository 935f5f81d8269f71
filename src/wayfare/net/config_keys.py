"""The language of configurations: every key, what it may be, what it says, and what it is if nothing is said.

What is not in KEYS is refused, and docs/configuration.md is written from it. To add a key, add a line to it, and
a field to `configured.Settings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from wayfare.core.codec import NAME_MAX, PASSWORD_MAX
from wayfare.core.history import MAY_BE_NONE, Limits
from wayfare.net.addresses import PORT
from wayfare.net.configured import Ahead, Status
from wayfare.net.heartbeat import HEARTBEAT_S
from wayfare.net.kinds import (
    ADDRESS,
    COUNT,
    COUNT_OR_NONE,
    DURATION,
    DURATION_OR_NONE,
    DURATIONS_NS,
    FLAG,
    LINKS,
    MEMORY,
    MODE,
    NAMED,
    NEIGHBOUR,
    NEXT,
    NUMBERED,
    PEER,
    RELOCATION,
    ROUTING,
    SHARE,
    SIZE,
    SIZE_OR_NONE,
    SIZES,
    STEPS,
    TEXT,
    Kind,
    shown,
    written,
)
from wayfare.net.limits import DEFAULT_NET_LIMITS

REQUIRED = object()
BOTH, SITE, CITY = "both", "broker", "network"  # in which files a key may be


class Key(msgspec.Struct, frozen=True):
    name: str  # "limits.away"; "neighbours.*" is there for every name
    kind: Kind
    default: Any  # as it would be written; None: there is none, and nothing is needed
    about: str
    file: str = BOTH


# Limits in sum, and what they are if nothing is said.
IN_SUM = {"memory_bytes": "50%", "account_memory_bytes": "none"}


def _limit(field: str, about: str) -> Key:
    value = getattr(Limits(), field)
    if field in IN_SUM:
        return Key(f"limits.{field.removesuffix('_bytes')}", MEMORY, IN_SUM[field], about)
    if field.endswith("_ns"):
        kind = DURATION_OR_NONE if field in MAY_BE_NONE else DURATION
        return Key(f"limits.{field.removesuffix('_ns')}", kind, written(value, DURATIONS_NS), about)
    if field.endswith("_bytes") and not value:
        return Key(f"limits.{field}", SIZE_OR_NONE, "none", about)
    if field.endswith("_bytes"):
        return Key(f"limits.{field}", SIZE, written(value, SIZES), about)
    return Key(f"limits.{field}", COUNT if value else COUNT_OR_NONE, value, about)


# By field of `Limits`. Not here: what only the published algorithms for publishers use, which the simulator runs.
LIMITS = {
    field: _limit(field, about)
    for field, about in (
        ("backlog_count", "notifications that wait for one client; then the oldest are lost"),
        ("backlog_bytes", "the same, in bytes"),
        ("backlog_age_ns", "the same, by age"),
        (
            "slow_publishers_ns",
            "that publishers are slowed, at most, for a connected client that reads too slowly; then it loses",
        ),
        ("burst_count", "that may wait for such a client beyond `limits.backlog_count` meanwhile"),
        ("burst_bytes", "the same, in bytes"),
        ("away_ns", "that a client may be away; then its session ends"),
        ("filters", "subscriptions, or advertisements, of one client"),
        ("window", "deliveries on their way to a client without an acknowledgement"),
        ("window_bytes", "the same, in bytes: while so many are on their way, no more are sent"),
        ("held_count", "notifications held back until a client's old broker has answered"),
        ("answer_ns", "that a client waits for its old broker"),
        (
            "failover_ns",
            "the same where that cannot be reached, at most, for a client that asks for longer by its option `failover`",
        ),
        (
            "confirm_ns",
            "until a client is told which neighbours have not confirmed its filters, and whether"
            " anybody wants what it offers",
        ),
        ("group_ns", "that a queue group without members keeps its queue"),
        ("marks_age_ns", "that a copy of a notification may be under way"),
        ("tombstone_ns", "that an attachment may be under way"),
        (
            "past_count",
            "notifications that came by last, for clients that subscribe with `since`, or come where nobody expected them, here or elsewhere: what the broker's own clients published, and what came by for others",
        ),
        ("past_bytes", "the same, in bytes"),
        ("buffer_count", "notifications that are kept where a client may come to"),
        ("buffer_age_ns", "the same, by age"),
        ("listen_ns", "that brokers listen ahead for a client that is away"),
        ("lease_ns", "that a broker listens ahead without news of the client"),
        ("recall_ns", "that a client waits for what was kept, or is remembered, for it elsewhere"),
        (
            "sessions",
            "of clients, attached or away; then the session of the client that has been away for the longest time ends",
        ),
        (
            "memory_bytes",
            "that a broker keeps in memory in sum; then the largest consumer is slowed, and loses",
        ),
        ("account_memory_bytes", "the same, for the clients of one account"),
        ("retained_count", "current values; then those that were set longest ago are dropped"),
        ("retained_bytes", "the same, in bytes"),
        ("account_retained_count", "the same, of those that the clients of one account have set"),
        ("account_retained_bytes", "the same, in bytes"),
    )
}


def _net_limit(field: str, about: str) -> Key:
    value = getattr(DEFAULT_NET_LIMITS, field)
    if field in ("disk_bytes", "account_disk_bytes"):
        return Key(f"limits.{field.removesuffix('_bytes')}", SIZE_OR_NONE, "none", about)
    if field.endswith("_s"):
        return Key(f"limits.{field.removesuffix('_s')}", DURATION, f"{value:g}s", about)
    if field.endswith("_bytes"):
        return Key(f"limits.{field}", SIZE, written(value, SIZES), about)
    return Key(f"limits.{field}", COUNT if value else COUNT_OR_NONE, value, about)


# By field of `NetLimits`.
NET_LIMITS = {
    field: _net_limit(field, about)
    for field, about in (
        ("stranger_bytes", "of a message from a peer that has yet to log in or to join"),
        ("frame_bytes", "of a message from then on"),
        ("greeting_s", "that a peer may take to say what it is"),
        ("strangers", "peers that have not said what they are; then the oldest is closed"),
        ("connections_per_address", "from one address, or one /64 of IPv6"),
        ("clients", "that are attached at a time"),
        ("moves_per_minute", "attachments of one client"),
        ("messages_per_second", "from one client; then it is not read for a while"),
        ("trickle_bytes", "of an unfinished message in a heartbeat; less counts as silence"),
        ("write_bytes", "that wait for a peer that does not read; then it is cut off"),
        ("link_count", "messages that wait for a neighbour; then publishers wait, too"),
        ("link_bytes", "the same, in bytes"),
        ("link_away_s", "that publishers wait for a neighbour that is away; then it is given up"),
        ("closing_s", "that a peer may take to read the rest, when it is closed"),
        ("logins", "whose passwords wait to be checked"),
        ("failed_logins_per_minute", "from one address, or one /64 of IPv6"),
        ("account_publications_per_second", "of an account that does not say; 0: no limit"),
        ("account_bytes_per_second", "from the clients of an account that does not say"),
        ("account_subscription_cost", "of all subscriptions of an account that does not say"),
        ("account_connections", "attached clients of an account that does not say"),
        ("account_sessions", "of an account that does not say, attached or away"),
        ("failed_logins_per_account", "a minute, from addresses where it has not logged in before"),
        (
            "disk_bytes",
            "that a store takes, journal and snapshot together; then the largest consumer is slowed, and loses",
        ),
        ("account_disk_bytes", "the same, for the clients of one account"),
    )
}

KEYS = (
    Key("name", NAMED, REQUIRED, "what this broker is called; no other in the tree is", SITE),
    Key("listen", ADDRESS, f"127.0.0.1:{PORT}", "where it listens; port 0 is any free one", SITE),
    Key(
        "neighbours.*",
        NEIGHBOUR,
        None,
        "a neighbour, and where it is called; with an empty text, it calls us",
        SITE,
    ),
    Key(
        "peers.*",
        PEER,
        None,
        "another broker of the tree, and where it is: to listen ahead, brokers speak directly",
        SITE,
    ),
    Key("host", TEXT, "127.0.0.1", "where all brokers listen", CITY),
    Key(
        "links",
        LINKS,
        (),
        "which brokers are linked: together one tree, without a circle",
        CITY,
    ),
    Key(
        "brokers.*",
        NUMBERED,
        None,
        "a broker, and its port; without this table, all that links name, at any free port",
        CITY,
    ),
    Key("routing", ROUTING, "covering", "what brokers tell each other; the same in all"),
    Key("relocation", RELOCATION, "handoff", "how sessions follow clients; the same in all"),
    Key(
        "heartbeat",
        DURATION,
        f"{HEARTBEAT_S:g}s",
        "how often something is said; silent for three of them is dead",
    ),
    *LIMITS.values(),
    *NET_LIMITS.values(),
    Key("ahead.places", TEXT, None, "file of a map: locations, and whose range they are in"),
    Key("ahead.movement", TEXT, None, "instead, file of a mined model: every broker a location"),
    Key("ahead.coverage", SHARE, Ahead().coverage, "of the moves that its next brokers make up"),
    Key("ahead.nlb", NEXT, Ahead().nlb, "at which brokers somebody listens for who may come"),
    Key("ahead.steps", STEPS, Ahead().steps, "how far from a client brokers farther away listen"),
    Key(
        "ahead.dwell",
        DURATION,
        None,
        "by dwell: that clients stay at a location, or keep a value; without it, both are measured",
    ),
    Key(
        "ahead.hop",
        DURATION,
        None,
        "by dwell: that a subscription takes from broker to broker; without it, this is measured",
    ),
    Key("tls.cert", TEXT, None, "file of its certificate, to listen at wayfares://"),
    Key("tls.key", TEXT, None, "file of the key for that, without a password"),
    Key("tls.ca", TEXT, None, "file of who signs for its peers: neighbours show a certificate"),
    Key("tls.crl", TEXT, None, "file of certificate revocation lists of that CA, in PEM"),
    Key("tls.require", FLAG, False, "clients have to show one, too"),
    Key("secret_file", TEXT, None, "file whose first line all neighbours know, and nobody else"),
    Key("accounts", TEXT, None, "file of the accounts of clients; without, everybody may come"),
    Key("bans", TEXT, None, "file of banned addresses and names, as `wayfare ban` writes it"),
    Key(
        "audit.file",
        TEXT,
        None,
        "audit log in JSON lines: logins, refusals and changes; without it, none is kept",
    ),
    Key(
        "durability.mode",
        MODE,
        "memory",
        "what its acknowledgements outlive: nothing, the process, or a loss of power",
    ),
    Key(
        "durability.directory",
        TEXT,
        None,
        "where it is kept, for os and disk; relative to the file",
    ),
    Key(
        "admin.socket",
        TEXT,
        None,
        "path of the admin socket, for `wayfare sessions`; without it, beside the store, if there is one",
    ),
    Key(
        "admin.listen",
        ADDRESS,
        None,
        "where the admin API answers over HTTP; with the certificate of tls.cert, if there is one, and"
        " without it on this machine only",
    ),
    Key(
        "admin.tokens",
        TEXT,
        None,
        "file of the tokens for it, a name and a token a line; only its owner may read it",
    ),
    Key(
        "announce.network",
        NAMED,
        None,
        "name of the network by which clients find it on the LAN (mDNS); without it, it is not announced",
    ),
    Key(
        "announce.host",
        TEXT,
        None,
        "the host by which clients on the LAN reach it; without it, the one where it listens",
    ),
    Key(
        "status.port",
        NUMBERED,
        None,
        "where /metrics, /health and /status are answered over HTTP; without it, nowhere",
    ),
    Key("status.host", TEXT, Status().host, "the same: the address, which is this machine only"),
)


# What is too little to be of use: the least of a key, and why.
LEAST = {
    "heartbeat": ("10ms", "no peer answers as soon as that"),
    "limits.greeting": ("100ms", "no peer says what it is as soon as that"),
    "limits.stranger_bytes": (
        written(4 * (NAME_MAX + PASSWORD_MAX) + 64, SIZES),
        "a login with a long name and password does not fit",
    ),
    "limits.frame_bytes": ("64KiB", "messages that everybody sends do not fit"),
}


# For people to read


def rows() -> Iterator[dict[str, str]]:
    """Every key."""
    for key in KEYS:
        default = "" if key.default in (None, ()) else shown(key.default)
        if key.default is REQUIRED:
            default = "(needed)"
        yield {
            "key": key.name,
            "file": key.file,
            "kind": key.kind.name,
            "default": default,
            "about": key.about,
        }


def reference() -> str:
    """The tables of docs/configuration.md."""
    head = ["| key | what it is | default | what it says |", "| --- | --- | --- | --- |"]
    parts = []
    for title, file in (
        ("One broker", SITE),
        ("A network on one machine", CITY),
        ("Both", BOTH),
    ):
        lines = [
            f"| `{one['key']}` | {one['kind']} | {_cell(one['default'])} | {one['about']} |"
            for one in rows()
            if one["file"] == file
        ]
        parts.append("\n".join([f"## {title}", "", *head, *lines]))
    return "\n\n".join(parts) + "\n"


def _cell(default: str) -> str:
    return default if default in ("", "(needed)") else f"`{default}`"
