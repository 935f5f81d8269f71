"""The boundary of the core: events in, effects out.

A host turns what happens into events, calls `step(event, now)`, and performs the effects in order:

    Received, LinkUp, LinkDown,       ->  core  ->  Send, Close       (broker and client)
                                                    Pause, Resume     (broker: of publishers)
    Publications, Granted,                          Notify, Lost, Settled, Ended,
    Confined, Forgotten, Exceeded,                  Interested, Confirmed,
                                                    Unheard           (client: to the application)
    Tick, Stalled, RolledBack, Posted,              Post              (broker: to another replicator)
    Pressed, Measured                               SessionEnded, WillPublished (broker: to the operator)

`now` is an integer of nanoseconds that never goes back. Whenever `next_deadline()` is reached, the
host steps a `Tick`; a tick too many does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.core.late import LATE
from wayfare.core.messages import (
    Ack,
    AnyMessage,
    BrokerId,
    ClientId,
    Enlist,
    HereAck,
    LinkId,
    Notification,
    Peers,
    Publish,
    Retain,
)
from wayfare.core.templates import Template

# Events


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message arrived on a link."""

    link: LinkId
    message: AnyMessage


class Publications(msgspec.Struct, frozen=True, gc=False):
    """Publications of a client arrived together; as if each were received, in less time."""

    link: LinkId
    messages: Sequence[Publish]


class LinkUp(msgspec.Struct, frozen=True, gc=False):
    """A link to a neighbour begins: for the first time, or once more from nothing."""

    link: LinkId


class LinkAwaited(msgspec.Struct, frozen=True, gc=False):
    """A neighbour was never there: what is sent to it from now on is kept until it comes, from the first message on.

    Comes before any client. If that is given up, the link begins from nothing when the neighbour comes (`LinkUp`).
    """

    link: LinkId


class LinkState(msgspec.Struct, frozen=True, gc=False):
    """A neighbour can be reached now, or cannot; what is sent to it waits until it can."""

    link: LinkId
    up: bool


class LinkDown(msgspec.Struct, frozen=True, gc=False):
    """The connection to a client is gone (or, for a client, the one to its broker)."""

    link: LinkId


class Granted(msgspec.Struct, frozen=True, gc=False):
    """The client on this connection may do so much, and no more. Comes in front of its `Attach`,

    and again whenever the rules change; then `Confined` follows.
    """

    link: LinkId
    grants: Grants


class Confined(msgspec.Struct, frozen=True, gc=False):
    """The rules for a client have changed: what its sessions hold against them is withdrawn."""

    client: ClientId
    grants: Grants


class Forgotten(msgspec.Struct, frozen=True, gc=False):
    """An operator ends all sessions of a client; the client is told of a gap when it comes back."""

    client: ClientId
    reason: str


class Posted(msgspec.Struct, frozen=True, gc=False):
    """A message of the replicator at another broker."""

    broker: BrokerId
    message: Peers


class RolledBack(msgspec.Struct, frozen=True, gc=False):
    """The broker's store is older than what it promised: what happened since then is forgotten here."""


class Exceeded(msgspec.Struct, frozen=True, gc=False):
    """A limit in sum is exceeded: the largest consumers lose so many bytes, of this account if one is named."""

    limit: str  # for the `Gap`
    bytes: int
    account: str = ""


class Pressed(msgspec.Struct, frozen=True, gc=False):
    """A total limit is near: the publishers of the largest consumer (of this account, if it is named) are slowed."""

    account: str = ""


class Measured(msgspec.Struct, frozen=True, gc=False):
    """A message to a neighbour, and its answer, take so long."""

    link: LinkId
    round_trip_ns: int


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed: a deadline may be due."""


class Stalled(msgspec.Struct, frozen=True, gc=False):
    """This process did not run for a while: it was stopped, suspended, or kept busy.

    Time-outs that judge others were running meanwhile, although nothing that others sent was read.
    They are extended by this time; the ages of what is kept are not.
    """

    for_ns: int


Event = (
    Received
    | Publications
    | LinkUp
    | LinkAwaited
    | LinkState
    | LinkDown
    | Granted
    | Confined
    | Forgotten
    | Posted
    | RolledBack
    | Exceeded
    | Pressed
    | Measured
    | Tick
    | Stalled
)

# Effects


class Send(msgspec.Struct, frozen=True, gc=False):
    """Put the message on the link, behind what was sent there before."""

    link: LinkId
    message: AnyMessage


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close the link: it is not needed any more, or, with `fault`, the peer broke the protocol."""

    link: LinkId
    reason: str
    fault: bool = False
    again: bool = False  # a client may attach again, later
    denied: str = ""  # what the client asked for and is not granted: attach, subscribe, ...


class Notify(msgspec.Struct, frozen=True, gc=False):
    """Hand the notification to the application; these subscriptions of it match."""

    notification: Notification
    subscriptions: Sequence[Filter | Template]
    past: bool = False  # it came by where the client is now before it was there
    ask: int = (
        0  # it is a current value, and the subscription asked for it by this number; or see `late`
    )

    @property
    def late(self) -> bool:
        """Whether an old broker kept it that did not answer in time: it may be older than what came before."""
        return self.ask == LATE


class Lost(msgspec.Struct, frozen=True, gc=False):
    """Tell the application that so many notifications were dropped, and why."""

    count: int  # 0: nobody knows how many
    reason: str


class Settled(msgspec.Struct, frozen=True):
    """Tell the application how many are lost of which it was told that nobody knows how many."""

    count: int  # perhaps none
    publishers: dict[ClientId, int]  # the same for each of them


class Passed(msgspec.Struct, frozen=True, gc=False):
    """Tell who counts deliveries that one has come which nobody wants any more."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Tell the application that a local subscription stayed behind: the client is elsewhere now."""

    subscription: Filter | Template


class Interested(msgspec.Struct, frozen=True, gc=False):
    """Tell the application whether anybody wants what it advertised and watches; it is news."""

    advertisement: Filter
    wanted: bool


class Confirmed(msgspec.Struct, frozen=True, gc=False):
    """What the client subscribed to or advertised before these probes is in effect in the whole tree.

    With `missing`: not yet, because these neighbours of its broker have not confirmed it in time.
    """

    ads: int  # the number of the last probe for advertisements; 0: nothing new
    subs: int
    missing: tuple[BrokerId, ...] = ()


class Unheard(msgspec.Struct, frozen=True, gc=False):
    """Nobody subscribes to the request that was published by this number."""

    publication: int


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Take no publications from this connection of a client until `Resume`.

    They wait there, and so does what comes behind them, unless it `passes_pauses`: acknowledgements are
    received as ever, and so are members of queue groups that say that they are there.
    """

    link: LinkId


def passes_pauses(message: AnyMessage) -> bool:
    """Whether a host steps this at once, however much waits in a connection that is paused."""
    return type(message) in (HereAck, Enlist) or (type(message) is Ack and message.probe is None)


class Resume(msgspec.Struct, frozen=True, gc=False):
    """Take publications from this connection again, first those that wait."""

    link: LinkId


class Post(msgspec.Struct, frozen=True, gc=False):
    """Send the message to the replicator at this broker directly, if that can be done: it may be lost."""

    broker: BrokerId
    message: Peers


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    """Tell the operator that the session of a client that is away has ended before the client was back."""

    client: ClientId
    account: str
    why: str  # EXPIRED, EVICTED, or a limit in sum, as in `Exceeded`
    away_ns: int  # how long its client had been away
    waiting: int  # notifications that it had kept


class WillPublished(msgspec.Struct, frozen=True, gc=False):
    """Tell the operator that the will of a client that is gone was published."""

    client: ClientId
    notification: Notification
    retain: Retain | None


EXPIRED, EVICTED = "expired", "evicted"

Effect = (
    Send
    | Close
    | Pause
    | Resume
    | Notify
    | Lost
    | Settled
    | Passed
    | Ended
    | Interested
    | Confirmed
    | Unheard
    | Post
    | SessionEnded
    | WillPublished
)
