"""One client at its border broker: attached or away, waiting for its old broker or open.

Attach, was nowhere before              Attach, was elsewhere
           |                                      |
           |                                      v
           |                                    WAIT   holds back what comes
           |        Reply, or too late            |
           v                                      |
         OPEN  <----------------------------------+
           |
           v   a Request, goodbye, or away for too long
         ended, with a tombstone
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from operator import itemgetter

import msgspec

from wayfare.core.effects import SessionEnded
from wayfare.core.filters import Filter
from wayfare.core.history import (
    NEVER,
    Backlog,
    Kept,
    Limits,
    Loss,
    Marks,
    Queued,
    Stored,
    aged,
    size_of,
)
from wayfare.core.late import UNTOLD
from wayfare.core.matching import FilterIndex
from wayfare.core.memory import (
    BODY_BYTES,
    ENTRY_BYTES,
    FILTER_BYTES,
    MARK_BYTES,
    SESSION_BYTES,
    Memory,
)
from wayfare.core.messages import (
    NOWHERE,
    BrokerId,
    ClientId,
    Echo,
    Fetch,
    LinkId,
    Notification,
    Publish,
    Request,
    Terms,
    Unclaimed,
    Will,
)
from wayfare.core.reserved import listening_at

Departure = tuple[BrokerId, int]  # which broker took a session over, at which epoch
DEPARTURES_MAX = 32  # that a tombstone remembers; a request older than those finds nothing
Wanted = dict[Filter, Terms | None]  # subscriptions, and what of what is missed is wanted
Enlisted = dict[str, tuple[str, Filter]]  # queue groups and their filters, by address of the member


class PastQuery:
    """What a session has asked brokers for, of the time before it subscribed: see past_requests.py."""

    __slots__ = ("bytes", "complete", "filter", "found", "left", "others", "since", "until")

    def __init__(self, filter: Filter, since: int, until: int) -> None:
        self.filter = filter
        self.since = since  # when what is wanted begins
        self.until = until  # then it waits for replies no longer
        self.left = 0  # replies that are still to come
        self.others = False  # brokers are asked whose clients have published nothing that matches
        self.complete = True
        # What was found, each once, and when it came to the broker that remembers it.
        self.found: dict[tuple[ClientId, int], Kept] = {}
        self.bytes = 0

    def give_up(self) -> None:
        """Wait no longer for replies."""
        if self.left:
            self.left, self.complete, self.others = 0, False, True

    def put(self, stored: Stored, came: int) -> bool:
        """Whether this is new."""
        key = stored.notification.publisher, stored.notification.number
        if key in self.found:
            return False
        self.found[key] = stored, came
        self.bytes += stored.size
        return True

    def shorten(self, count: int, size: int) -> list[Stored]:
        """Drop the oldest, to keep at most so many and so many bytes; what was dropped."""
        if len(self.found) <= count and self.bytes <= size:
            return []
        self.found = dict(sorted(self.found.items(), key=lambda one: one[1][1]))
        dropped: list[Stored] = []
        while len(self.found) > count or self.bytes > size:
            stored, _ = self.found.pop(next(iter(self.found)))
            self.bytes -= stored.size
            dropped.append(stored)
        return dropped


class Old:
    """What an older session of the client had, as far as it has come."""

    __slots__ = ("asked", "kept", "known", "marks")

    def __init__(self, known: Wanted) -> None:
        self.known = known  # its subscriptions
        self.asked = 0  # the last request for current values that it answered
        self.kept: list[Queued] = []
        self.marks: dict[ClientId, int] = {}


class Wait:
    """What a session has until its old broker has answered."""

    __slots__ = (
        "asked",
        "asks",
        "bytes",
        "echo",
        "flooded",
        "held",
        "is_due",
        "is_open",
        "old",
        "old_bytes",
        "pending",
        "publications",
        "published_bytes",
        "queries",
        "refused",
        "repeated",
        "request",
        "returning",
        "superseded",
        "unclaimed",
        "unreachable",
        "until",
        "values",
    )

    def __init__(self, asked: Wanted, until: int) -> None:
        self.asked = asked  # the subscriptions that the request was made with
        self.until = until  # then a client that is attached waits no longer
        self.held: list[Queued] = []  # notifications that matched since it came, and losses
        self.bytes = 0  # of those
        # Of those, the retained publications: they go to all brokers, whether its filters are in effect or not.
        self.flooded: dict[tuple[ClientId, int], None] = {}
        self.old: dict[int, Old] = {}  # by epoch
        self.old_bytes = 0  # of what those kept
        # Not accepted, so not acknowledged; and when each came.
        self.publications: list[tuple[Publish, int]] = []
        self.published_bytes = 0
        self.refused = False  # there were more of them than may be held back
        self.superseded = False  # what was searched for goes to a later attachment
        self.pending: Request | Fetch | None = None  # from where the client went on to
        self.request: Request | None = None  # what the old broker was asked
        self.values: dict[int, Filter] = {}  # requests for current values that came meanwhile
        self.asks = False  # its client wants to know when the session opens: see CaughtUp
        self.echo: Echo | None = None  # what has spread: its client is told when the session opens
        # There is no older session, or it is here: the session waits until its filters are in effect again.
        self.returning = False
        self.unreachable = False  # the old broker is, so the client waits for `failover_ns` only
        self.repeated = False  # because the request, or its reply, may have been lost
        # Other sessions of the client to request afterwards: the stores of their brokers were rolled back.
        self.unclaimed: list[Unclaimed] = []
        # What it asked for of the past, by the numbers of the requests.
        self.queries: dict[int, PastQuery] = {}
        self.is_open = False  # it waits for nothing else: it was open before
        self.is_due = False  # likewise: everything else has come

    def asks_for_past(self) -> bool:
        """Whether replies are still to come."""
        return any(one.left for one in self.queries.values())

    def give_up(self) -> None:
        """Wait no longer for replies about the past."""
        for query in self.queries.values():
            query.give_up()

    def hold(self, publication: Publish, limits: Limits, now: int) -> bool:
        """Hold back a publication; False if that are too many, and all that follow it."""
        size = size_of(publication)
        if (
            self.refused
            or len(self.publications) >= limits.held_count
            or self.published_bytes + size > limits.backlog_bytes
        ):
            return False
        self.publications.append((publication, now))
        self.published_bytes += size
        return True

    def lose(self, loss: Loss) -> None:
        """The client is told behind what is held already, and before what comes later."""
        if self.held and isinstance(before := self.held[-1][0], Loss):
            self.held[-1] = before.and_then(loss), self.held[-1][1]
        else:
            self.held.append((loss, self.held[-1][1] if self.held else NEVER))

    def last_of(self, publisher: ClientId) -> int:
        """The number of the last notification of a publisher that is held; 0: none is."""
        for one, _ in reversed(self.held):
            if isinstance(one, Loss) or one.ask:
                continue
            if one.notification.publisher == publisher:
                return one.notification.number
        return 0

    def publications_left(self, now: int) -> list[Publish]:
        """The publications that are held back, with what is left of their lifetimes."""
        return [aged(one, came, now) for one, came in self.publications]

    def forget_publications(self) -> None:
        self.publications.clear()
        self.published_bytes, self.refused = 0, False

    def kept(self) -> Iterator[Stored]:
        """Every notification that is held back, or came from an older session."""
        for kept in (self.held, *(old.kept for old in self.old.values())):
            yield from (one for one, _ in kept if isinstance(one, Stored))
        for query in self.queries.values():
            yield from (stored for stored, _ in query.found.values())

    def shed(self, memory: Memory, why: str) -> int:
        """Drop the older half of what is kept, or all publications if they are more; how many notifications.

        Publications were not acknowledged, so their client sends them again.
        """
        if 2 * self.publications_bytes() > self.kept_bytes():
            memory.publications -= self.publications_bytes()
            self.forget_publications()
            self.refused = True
            return 0
        dropped = [self._halve(self.held, memory, why)]
        self.bytes -= dropped[0][1]
        for old in self.old.values():
            dropped.append(self._halve(old.kept, memory, why))
            self.old_bytes -= dropped[-1][1]
        for query in self.queries.values():
            gone = query.shorten(len(query.found) // 2, query.bytes)
            query.complete &= not gone
            for stored in gone:
                memory.let_go(stored)
            dropped.append((len(gone), 0))
        return sum(count for count, _ in dropped)

    def _halve(self, kept: list[Queued], memory: Memory, why: str) -> tuple[int, int]:
        """How many were dropped, and their bytes; there is a loss in their place."""
        places = [place for place, (one, _) in enumerate(kept) if isinstance(one, Stored)]
        if not places:
            return 0, 0
        end = places[(len(places) - 1) // 2] + 1
        gone = [one for one, _ in kept[:end] if isinstance(one, Stored)]
        kept[:end] = [(Loss(1, why, exact=False), kept[end - 1][1])]
        for stored in gone:
            memory.let_go(stored)
        return len(gone), sum(stored.size for stored in gone)

    def kept_bytes(self) -> int:
        """What it keeps, as if nobody else kept the same."""
        count = len(self.held) + sum(len(old.kept) for old in self.old.values())
        count += sum(len(query.found) for query in self.queries.values())
        return (
            self.bytes
            + self.old_bytes
            + sum(query.bytes for query in self.queries.values())
            + count * (BODY_BYTES + ENTRY_BYTES)
            + self.publications_bytes()
        )

    def publications_bytes(self) -> int:
        return self.published_bytes + len(self.publications) * BODY_BYTES


class Doubt(msgspec.Struct, gc=False):
    """A publisher whose old broker did not answer: what it took may come behind what is new."""

    until: int  # then nothing is on its way any more
    since: int = 0  # the first publication that was accepted without knowing
    # Only because its client had to exceed another process: no old broker owes an answer.
    exceeds: bool = False


class Episode:
    """The congestion of one reader, from the high mark to the low mark: see backpressure.py."""

    __slots__ = ("_bounds", "_index", "ends", "publishers", "since")

    def __init__(self, now: int, wanted: Wanted, limit_ns: int) -> None:
        self.since = now
        self.ends = now  # then no publisher is slowed any more
        self.publishers: dict[ClientId, None] = {}  # that were looked at
        self.want(wanted, limit_ns)

    def want(self, wanted: Wanted, limit_ns: int) -> None:
        """From now on these subscriptions say for how long publishers are slowed."""
        self._bounds = {
            filter: limit_ns if terms is None or terms.slow_ns is None else terms.slow_ns
            for filter, terms in wanted.items()
        }
        self._index: FilterIndex[Filter] | None = None
        if len({*self._bounds.values()}) > 1:
            self._index = FilterIndex()
            for filter in self._bounds:
                self._index.add(filter, filter)

    def bound_ns(self, notification: Notification) -> int:
        """For how long its publisher may be slowed: the longest of the subscriptions that want it."""
        matching: Iterable[Filter] = self._bounds
        if self._index is not None:
            matching = self._index.find(notification.attributes)
        return max((self._bounds[filter] for filter in matching), default=0)


def enlisted_among(wanted: Container[Filter], enlisted: Enlisted) -> Enlisted:
    """The members whose addresses are subscribed to."""
    return {one: group for one, group in enlisted.items() if listening_at(one) in wanted}


class Session:
    """What a border broker knows of a client.

    A session counts in the tables whether its client is attached or away, and whether it is open or
    not. One client may have several here, of different epochs, while it moves fast.
    """

    __slots__ = (
        "above",
        "account",
        "advertisements",
        "ages",
        "asked",
        "asks",
        "away_since",
        "away_until",
        "backlog",
        "client",
        "doubt",
        "earliest",
        "enlisted",
        "episode",
        "epoch",
        "expires_ns",
        "failover_ns",
        "handing",
        "home",
        "late",
        "leaving",
        "life",
        "link",
        "marks",
        "noted",
        "opened",
        "orphan",
        "partial",
        "place",
        "profile",
        "published",
        "rolled_back",
        "sought_since",
        "state",
        "subscriptions",
        "unlike",
        "unsettled",
        "wait",
        "watched",
        "welcomed",
        "will",
        "will_at",
        "window",
        "window_bytes",
    )

    def __init__(
        self,
        client: ClientId,
        epoch: int,
        place: int,
        delivered: int,
        marks_age_ns: int,
        memory: Memory | None = None,
    ) -> None:
        self.account = ""  # of its client; empty: it has none
        self.noted = 0  # see memory.Consumer
        self.profile = 0  # bytes that its filters and marks take, as last noted
        self.client = client
        self.epoch = epoch  # of the latest attachment; only goes up
        self.opened = epoch  # and of the first one
        self.earliest = epoch  # the first attachment of its client's process that is known here
        self.place = place  # where notifications for it go: see routing.Destinations
        self.link: LinkId | None = None  # None: away
        self.home = BrokerId("")  # where the client attached first
        self.away_since = 0
        self.away_until = 0  # then it ends, if its client is still away
        self.expires_ns = 0  # that its client may be away, if that is less than the broker's limit
        self.subscriptions: Wanted = {}
        self.advertisements: dict[Filter, None] = {}
        self.enlisted: Enlisted = {}  # its members of queue groups that enlisted here
        # Advertisements of it that it watches, and whether it was told that somebody wants them.
        self.watched: dict[Filter, bool | None] = {}
        self.state = NOWHERE  # where its client is, if it has said so
        self.will: Will | None = None  # None: its client has none, or it was published
        self.will_at = 0  # then it is published, if its client is still away
        self.published = 0  # the last publication accepted from it
        self.asked = 0  # its last request for current values that was answered
        self.asks = (
            False  # its client wants to know when what was kept has been thinned: see CaughtUp
        )
        # From where the client went on to, if the session goes there when that is known: see thinning.py.
        self.handing: Request | Fetch | None = None
        self.backlog = Backlog(delivered, memory, self)
        self.ages = False  # whether a timer is armed for the age of the backlog
        self.marks = Marks(marks_age_ns)
        self.wait: Wait | None = None  # None: open
        self.welcomed = False  # it had a session before this one
        # Nobody knew its old session, and it has not said anything since: maybe a stale attachment.
        self.orphan = False
        self.partial = False  # older sessions may be left elsewhere: see Handoff._seek
        # When they were sought for, or asked for in vain: again behind each link that begins from nothing.
        self.sought_since: int | None = None
        self.unlike = 0  # the epoch of an older session that comes late and lacks subscriptions
        self.leaving = False  # it said goodbye for good while it waited
        # It came back with an old store, and its client has not come since: that may be elsewhere.
        self.rolled_back = 0  # the last number that it had given away then; 0: it is not so
        self.window = 0  # deliveries that may be on their way to it
        self.window_bytes = 0  # no more are sent while so many bytes are
        self.doubt: Doubt | None = None  # what it published before may still be on its way
        # An earlier process of its client, elsewhere, reached this number, and the client is to exceed it.
        self.above = 0
        self.failover_ns = 0  # that it waits for an old broker which cannot be reached; 0: any time
        self.late = UNTOLD  # what its client wants of what such a broker sends when it is back
        # Attachments at which its client was told of a loss of unknown number that may be settled later.
        self.unsettled: dict[int, None] = {}
        self.life = 0  # of the process of its client; 0: unknown
        self.episode: Episode | None = None  # publishers may be slowed for it

    def is_waiting(self) -> bool:
        """Whether it waits for what an older session of its client had, or for its filters to be in effect."""
        return self.wait is not None and not self.wait.is_open

    def wanted(self) -> Wanted:
        return self.subscriptions

    def spares(self, publisher: ClientId) -> bool:
        return False

    def last_of(self, publisher: ClientId) -> int:
        """The number of the last notification of a publisher that was queued, or is held."""
        queued = self.marks.of(publisher)
        return queued if self.wait is None else max(queued, self.wait.last_of(publisher))

    def undelivered(self, delivered: int, numbers: Container[int]) -> set[tuple[ClientId, int]]:
        """What its client gets after this delivery by all subscriptions that match: for membership only.

        Of all that, publications with these numbers.
        """
        some = [
            stored.notification
            for queue in (self.backlog.unacked, self.backlog.waiting)
            for number, stored, _ in queue
            if number > delivered and not stored.ask and stored.notification.number in numbers
        ]
        if self.wait is not None:
            held = [one for one, _ in self.wait.held if isinstance(one, Stored) and not one.ask]
            some += [one.notification for one in held]
        return {(one.publisher, one.number) for one in some}

    def held_values(self) -> set[tuple[ClientId, int]]:
        """The current values that it holds back while it waits: for membership only."""
        held = [] if self.wait is None else [one for one, _ in self.wait.held]
        some = [one.notification for one in held if isinstance(one, Stored) and one.ask]
        return {(one.publisher, one.number) for one in some}

    def measure(self) -> int:
        self.backlog.count()
        waiting = 0 if self.wait is None else self.wait.kept_bytes()
        return self.profile_bytes() + self.backlog.kept_bytes() + waiting

    def profile_bytes(self) -> int:
        """What it takes even if nothing waits for it."""
        filters = len(self.subscriptions) + len(self.advertisements) + len(self.enlisted)
        marks = len(self.marks.recent) + len(self.marks.older)
        will = 0 if self.will is None else size_of(self.will)
        return SESSION_BYTES + filters * FILTER_BYTES + marks * MARK_BYTES + will

    def is_partial(self) -> bool:
        """Whether older sessions of its client may be left elsewhere, to which nothing refers."""
        repeated = self.wait is not None and self.wait.repeated
        return self.partial or repeated or self.rolled_back > 0

    def miss_sessions(self) -> None:
        """Older sessions of its client may be left elsewhere, as is known only now."""
        self.partial, self.sought_since = True, None

    def ended(self, why: str, now: int) -> SessionEnded:
        """The report for operators when it ends by itself: made before it does."""
        away_ns = now - self.away_since
        return SessionEnded(self.client, self.account, why, away_ns, len(self.backlog))

    def may_have_published(self) -> bool:
        """Whether its client may have published before it knew of higher numbers: that may count as repeated."""
        return self.published > 0 or self.wait is not None

    def is_awaited(self) -> bool:
        """Whether somebody waits for this session while it waits."""
        asked = self.handing is not None or (
            self.wait is not None and self.wait.pending is not None
        )
        return self.link is not None or asked or self.leaving


class Tombstone(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of the ended sessions of a client, for a while."""

    until: int
    epoch: int  # no attachment up to this one opens a session any more
    published: int = 0  # the last publication accepted, where nobody else knows it
    moved_to: Departure | None = None  # the last one, by epoch
    began: int = 0  # the epoch at which the client last began anew; what was before is another life
    earlier: tuple[Departure, ...] = ()  # the departures before that, the latest first
    partial: bool = False  # a part of the chain of hand-offs is unknown here
    # The first attachment that this store knows of: all later ones here are known, too. 0: there is none.
    known_since: int = 0
    life: int = 0  # of the process that began anew
    over: tuple[int, ...] = ()  # the lives of those before it, the latest first
    first: int = (
        0  # where that process first began, if it had to exceed others since; 0: at `began`
    )
    above: int = 0  # what the client of an ended session had to exceed, and may not have heard of
    # Attachments at which a client missed an unknown number, to be settled by replies that come after the session.
    unsettled: tuple[int, ...] = ()

    def departures_with(self, more: tuple[Departure, ...]) -> tuple[Departure, ...]:
        """All departures by epoch, the latest first: requests overtake each other, and so do these."""
        known = self.earlier if self.moved_to is None else (self.moved_to, *self.earlier)
        if not more:
            return known
        # Two processes under one name may use one epoch: then the names of the brokers decide.
        return tuple(sorted({*known, *more}, key=itemgetter(1, 0), reverse=True)[:DEPARTURES_MAX])

    def tells_of(self, epoch: int) -> bool:
        """Whether it says what became of the session of this attachment, or that nobody knows."""
        return epoch <= self.epoch and (self.partial or 0 < self.known_since <= epoch)

    def went_after(self, epoch: int) -> bool:
        """Whether a session went from here to a later attachment than this one."""
        return self.moved_to is not None and self.moved_to[1] > epoch

    def is_before(self, epoch: int) -> bool:
        """Whether an attachment of this epoch was of an earlier process."""
        return epoch < (self.first or self.began)

    def next_stop(self, epoch: int, before: int) -> Departure | None:
        """Where the session of this epoch was last, as far as it left from here before that attachment."""
        if self.is_before(epoch):
            return None
        return next((one for one in self.departures_with(()) if epoch < one[1] < before), None)


def told(wanted: Wanted) -> tuple[tuple[Filter, ...], tuple[tuple[int, Terms], ...]]:
    """Subscriptions as messages have them."""
    terms = [(place, one) for place, one in enumerate(wanted.values()) if one is not None]
    return tuple(wanted), tuple(terms)


def places(some: Container[Filter], all: Iterable[Filter]) -> tuple[int, ...]:
    """Which ones of these filters, as messages say it."""
    return tuple(place for place, one in enumerate(all) if one in some)


def wanted_of(filters: tuple[Filter, ...], terms: tuple[tuple[int, Terms], ...]) -> Wanted:
    """Subscriptions, out of a message."""
    wanted: Wanted = dict.fromkeys(filters)
    for place, one in terms:
        wanted[filters[place]] = one
    return wanted
