"""The backlog of one client: numbered deliveries, kept until acknowledged, within limits.

    1 ... acked | acked+1 ... sent | sent+1 ... last
                  unacknowledged     waiting

Whatever is dropped to keep a limit is the oldest. Numbers are never used again, so a hole
shows: the client gets a `Gap` in place of what is gone, and counts exactly what it misses.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from wayfare.core import late
from wayfare.core import messages as m
from wayfare.core.areas import is_outside
from wayfare.core.filters import Filter
from wayfare.core.matching import FilterIndex
from wayfare.core.memory import BODY_BYTES, ENTRY_BYTES, Consumer, Memory
from wayfare.core.messages import (
    OVER_NS,
    ClientId,
    Current,
    Deliver,
    Gap,
    Late,
    Notification,
    Nullify,
    Publish,
    Settled,
    State,
    Will,
)
from wayfare.errors import ProtocolError, UsageError

SECOND_NS = 1_000_000_000
MARKS_MAX = 50_000  # publishers of which a session knows how far they were heard, twice
ATTRIBUTE_BYTES = 24  # a name and a number, roughly
COUNTED_MIN = 8_192  # bytes on their way to a client that is attached; less is part of a session
LARGE = 4_096  # bytes of a notification that counts once also on its way to many clients
ROOM_MIN = 4_096  # bytes by which a backlog may always grow before its owner is looked at again


MAY_BE_NONE = (
    "past_count",
    "memory_bytes",
    "account_memory_bytes",
    "account_retained_count",
    "account_retained_bytes",
    "slow_publishers_ns",
    "burst_count",
    "burst_bytes",
)


class Limits(msgspec.Struct, frozen=True):
    """How much a border broker keeps for one client, and for how long.

    Beyond a limit of the backlog, the oldest go, with a `Gap`.
    """

    backlog_count: int = 10_000
    backlog_bytes: int = 16 * 1024 * 1024
    backlog_age_ns: int = 24 * 3600 * SECOND_NS
    away_ns: int = 7 * 24 * 3600 * SECOND_NS  # then the session of a client that is away ends
    filters: int = 10_000  # subscriptions, or advertisements, of one client
    window: int = 256  # deliveries on the way to a client without an acknowledgement
    # ... in bytes: no more are sent while so many are on the way. It grows with the window of a client that has a larger one.
    window_bytes: int = 256 * 1024
    held_count: int = 10_000  # notifications held back until the old broker has answered
    answer_ns: int = 30 * SECOND_NS  # that a client waits for its old broker
    failover_ns: int = 600 * SECOND_NS  # ... if it asks for that, and the old broker is unreachable
    marks_age_ns: int = 3600 * SECOND_NS  # that a copy of a notification may be under way
    delay_ns: int = 10 * SECOND_NS  # that `delayed` advertises for a publisher that left
    prepared_ns: int = 60 * SECOND_NS  # that `prefetching` advertises for one that may come
    tombstone_ns: int = 3600 * SECOND_NS  # that an attachment may be under way
    past_count: int = 0  # notifications that came by last, for who subscribes to the past
    past_bytes: int = 16 * 1024 * 1024
    buffer_count: int = 1_000  # that a virtual client keeps for a subscription without terms
    buffer_age_ns: int = 3600 * SECOND_NS  # ... and for how long
    listen_ns: int = 3600 * SECOND_NS  # that brokers listen ahead for a client that is away
    lease_ns: int = 60 * SECOND_NS  # that a virtual client lives without news of its client
    recall_ns: int = 2 * SECOND_NS  # that a client waits for what was kept for it elsewhere
    greeting_ns: int = 10 * SECOND_NS  # that a client may take to send its filters when asked
    confirm_ns: int = 10 * SECOND_NS  # until a client is told which neighbours have not confirmed
    sessions: int = 100_000  # of clients, attached or away; then the longest away is evicted
    memory_bytes: int = 0  # that a broker keeps in sum; then the largest consumer loses; 0: any
    account_memory_bytes: int = 0  # ... that the clients of one account keep; 0: any
    group_ns: int = 3600 * SECOND_NS  # that a queue group without members keeps its queue
    slice_units: int = 5_000  # of work on tables in one event, about a microsecond each
    long_text: int = 2_048  # characters of texts in which many patterns are looked for in slices
    retained_count: int = 10_000  # current values of retained publications; then the oldest go
    retained_bytes: int = 64 * 1024 * 1024
    account_retained_count: int = 0  # ... that the clients of one account have set; 0: any
    account_retained_bytes: int = 0
    slow_publishers_ns: int = 10 * SECOND_NS  # for a client that reads too slowly; 0: not at all
    # What a backlog may keep beyond its limits while publishers are slowed: it was under way then.
    burst_count: int = 100_000
    burst_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 0 if name in MAY_BE_NONE else 1
            if getattr(self, name) < least:
                raise UsageError(
                    f"the limit {name} is {getattr(self, name)}; it is at least {least}"
                )


def size_of(notification: Notification | Publish | Will) -> int:
    """Roughly what a notification occupies: payload, texts, and something for every attribute."""
    size = len(notification.payload)
    for value in notification.attributes.values():
        size += ATTRIBUTE_BYTES + len(value) if type(value) is str else ATTRIBUTE_BYTES
    if notification.area is not None:
        size += ATTRIBUTE_BYTES + sum(len(one) for one in notification.area.locations)
    return size


class Marks:
    """The last publication of every publisher that was queued: what comes again is not news.

    Two generations, so that publishers long unheard are forgotten when others are heard: a mark lives
    for `age_ns` at least, which has to be longer than any copy of a notification is under way.
    """

    __slots__ = ("age_ns", "older", "recent", "turn_at")

    def __init__(self, age_ns: int) -> None:
        self.age_ns = age_ns
        self.recent: dict[ClientId, int] = {}
        self.older: dict[ClientId, int] = {}
        self.turn_at = 0  # when the recent ones become the older ones

    def pass_on(self, notification: Notification, now: int) -> bool:
        """Whether this is news; from now on it is not."""
        publisher, number = notification.publisher, notification.number
        recent = self.recent
        mark = recent.get(publisher)
        if mark is None:
            if number <= self.older.get(publisher, 0):
                return False
            # Only here do the marks become more.
            if now >= self.turn_at or len(recent) >= MARKS_MAX:
                self.older = dict(recent)
                recent.clear()
                self.turn_at = now + self.age_ns
        elif number <= mark:
            return False
        recent[publisher] = number
        return True

    def of(self, publisher: ClientId) -> int:
        return self.recent.get(publisher) or self.older.get(publisher, 0)

    def known(self) -> dict[ClientId, int]:
        return self.older | self.recent

    def raise_to(self, marks: Mapping[ClientId, int]) -> None:
        """None of these is below what it is here from now on."""
        for publisher, number in marks.items():
            if number > self.of(publisher):
                self.recent[publisher] = number


NEVER = -(2**62)


class Past:
    """What came by last, whoever wanted it: for clients that subscribe to the past."""

    __slots__ = ("bytes", "forgotten", "kept")

    def __init__(self) -> None:
        self.kept: deque[tuple[int, Notification]] = deque()  # and when it came
        self.bytes = 0
        self.forgotten = NEVER  # when the last one came that is not kept any more

    def put(self, notification: Notification, now: int, limits: Limits) -> None:
        self.kept.append((now, notification))
        self.bytes += size_of(notification)
        while len(self.kept) > limits.past_count or self.bytes > limits.past_bytes:
            self.forgotten, oldest = self.kept.popleft()
            self.bytes -= size_of(oldest)

    def since(self, time: int, filter: Filter, now: int) -> list[tuple[Notification, int]]:
        """What matches of what came since then and has not expired, the oldest first, and when."""
        return [
            (notification, came)
            for came, notification in self.kept
            if came >= time
            and not has_expired(notification, came, now)
            and filter.matches(notification.attributes)
        ]


class Stored(msgspec.Struct, eq=False, weakref=True):
    """A notification that is kept, once for however many clients, and what it occupies."""

    notification: Notification
    size: int
    refs: int = 0  # consumers that keep it; see memory.py
    ask: int = 0  # it is a current value, for this request of one client; or see late.py


NO_LOSS = "expired"  # the reason of a `Gap` without a loss
SCAN_NS = 100_000_000  # between two looks at a whole backlog for what has expired
ENDLESS = 1 << 62


def has_expired(notification: Notification, put: int, now: int) -> bool:
    """Whether something that came here at this time is of no use any more."""
    lifetime = notification.expires_ns
    return lifetime > 0 and put + lifetime <= now


def aged(publication: Publish, came: int, now: int) -> Publish:
    """A publication with what is left of its lifetime, if it came at this time and has waited since."""
    lifetime, waited = publication.expires_ns, max(0, now - came)
    if not (lifetime and waited):
        return publication
    return replace(publication, expires_ns=max(OVER_NS, lifetime - waited))


def aged_messages(later: Iterable[tuple[m.FromClient, int]], now: int) -> list[m.FromClient]:
    """What a client said while its messages had to wait, and when: with what is left of each lifetime."""
    return [aged(one, came, now) if isinstance(one, Publish) else one for one, came in later]


FORGOTTEN_PAST = "brokers remember less of the past than was asked for, or did not reply in time"


def reason(first: str, then: str, *, exact: bool) -> str:
    """Of two losses in one place: why nobody knows how many the first ones are says more than a limit.

    But a client that asked for the past may be content with what its broker remembers, and not with less.
    """
    return then if exact or first == FORGOTTEN_PAST else first


class Loss(msgspec.Struct, frozen=True, gc=False):
    """Notifications that are lost, in the place where they are missing."""

    count: int
    why: str
    exact: bool = True  # False: an unknown number, at least one

    def and_then(self, other: Loss) -> Loss:
        """Both, in one place; why nobody knows how many says more than a limit."""
        why = reason(self.why, other.why, exact=self.exact)
        return Loss(self.count + other.count, why, self.exact and other.exact)


Kept = tuple[Stored, int]  # something stored, and when it was put into this backlog
Queued = tuple[Stored | Loss, int]  # ... or lost
Q = TypeVar("Q", Kept, Queued)


def inexact(queue: list[Queued], why: str = "") -> list[Queued]:
    """The same, but of each loss nobody knows how many it were; perhaps for another reason."""
    return [
        (Loss(one.count, why or one.why, exact=False), put) if isinstance(one, Loss) else (one, put)
        for one, put in queue
    ]


def is_unsure(queue: Iterable[Queued]) -> bool:
    """Whether whoever kept this may not have known what its client got before."""
    return any(isinstance(one, Loss) and not one.exact for one, _ in queue)


def with_loss_behind(queue: list[Queued], loss: Loss, some: Container[Stored]) -> list[Queued]:
    """The same, with a loss behind each of these notifications, before the next one of its publisher."""
    out: list[Queued] = []
    doubtful: set[ClientId] = set()  # publishers of these since the last loss
    for one, put in queue:
        if isinstance(one, Stored):
            publisher = one.notification.publisher
            if publisher in doubtful:
                out.append((loss, put))
                doubtful.clear()
            if one in some:
                doubtful.add(publisher)
        out.append((one, put))
    return [*out, (loss, NEVER)] if doubtful else out


def with_loss_between(queue: list[Queued], loss: Loss) -> list[Queued]:
    """The same, where anything may be missing between two notifications behind the first loss."""
    lost = itertools.dropwhile(lambda queued: isinstance(queued[0], Stored), queue)
    return with_loss_behind(queue, loss, {one for one, _ in lost if isinstance(one, Stored)})


def apart(queue: list[Queued]) -> tuple[list[Kept], list[m.Loss]]:
    """What is kept, and what is lost in between, as messages say it."""
    kept: list[Kept] = []
    losses: list[m.Loss] = []
    for one, put in queue:
        if isinstance(one, Loss):
            losses.append(m.Loss(len(kept), one.count, one.why, one.exact))
        else:
            kept.append((one, put))
    return kept, losses


def together(kept: list[Kept], losses: Iterable[m.Loss]) -> list[Queued]:
    """The same as one queue; a loss has the age of what comes behind it."""
    queue: list[Queued] = list(kept)
    for one in sorted(losses, key=lambda loss: loss.place, reverse=True):
        place = min(one.place, len(kept))
        put = kept[place][1] if place < len(kept) else NEVER
        queue.insert(place, (Loss(one.count, one.why, one.exact), put))
    return queue


def nullifies(notification: Notification, nullify: Nullify) -> bool:
    """Whether this nullifies earlier notifications, if there are any."""
    return nullify.when.matches(notification.attributes)


def still_wanted(kept: list[Queued], wanted: Iterable[Filter]) -> list[Queued]:
    """What a client still subscribes to; losses and what is no ordinary notification stay."""
    index: FilterIndex[Filter] = FilterIndex()
    for filter in wanted:
        index.add(filter, filter)
    return [
        (one, put)
        for one, put in kept
        if isinstance(one, Loss) or one.ask or index.find(one.notification.attributes)
    ]


NotificationKey = tuple[object, ...]


def key_of(notification: Notification, names: Sequence[str]) -> NotificationKey | None:
    """Equal for equal values of these attributes, where true is not 1; None if it lacks one of them."""
    key: list[object] = []
    for name in names:
        value = notification.attributes.get(name)
        if value is None:
            return None
        key += type(value) is bool, value
    return tuple(key)


def in_order(queue: list[Q]) -> list[Q]:
    """The same, but of each publisher in the order of its numbers; losses and current values stay."""
    if _is_in_order(queue):
        return queue
    of: dict[ClientId, list[Q]] = {}
    for one in queue:
        if _has_turn(one):
            of.setdefault(_notification(one).publisher, []).append(one)
    turns = {who: iter(sorted(ones, key=_number)) for who, ones in of.items()}
    return [next(turns[_notification(one).publisher]) if _has_turn(one) else one for one in queue]


def _is_in_order(queue: Iterable[Kept | Queued]) -> bool:
    last: dict[ClientId, int] = {}
    for one, _ in queue:
        if isinstance(one, Stored) and not one.ask:
            publisher, number = one.notification.publisher, one.notification.number
            if number < last.get(publisher, 0):
                return False
            last[publisher] = number
    return True


def _has_turn(queued: Kept | Queued) -> bool:
    return isinstance(queued[0], Stored) and not queued[0].ask


def in_order_with_losses(queue: list[Queued]) -> list[Queued]:
    """As `in_order`; what is lost in front of a notification that overtook an older one is also lost between them."""
    losses = [place for place, (one, _) in enumerate(queue) if isinstance(one, Loss)]
    ordered = in_order(queue)
    if not losses or ordered == queue:
        return ordered
    places = {one: place for place, (one, _) in enumerate(queue)}
    doubtful = set[Stored]()  # for membership only
    last: dict[ClientId, Stored] = {}
    for one, _ in ordered:
        if isinstance(one, Stored) and one.ask < late.LATE:
            before = last.get(one.notification.publisher, one)
            since = bisect(losses, places[before]) if places[before] <= places[one] else 0
            if bisect(losses, max(places[before], places[one])) > since:
                doubtful.add(before)
            last[one.notification.publisher] = one
    why = next(one.why for one, _ in reversed(queue) if isinstance(one, Loss))
    return with_loss_behind(ordered, Loss(1, why, exact=False), doubtful)


def with_values_behind(queue: list[Queued]) -> list[Queued]:
    """The same, but current values are behind the earlier notifications of their publishers.

    A client that has a value takes nothing earlier of its publisher.
    """
    values = [place for place, (one, _) in enumerate(queue) if _is_value(one)]
    if not values:
        return queue
    of: dict[ClientId, list[tuple[int, int]]] = {}  # numbers, which ascend, and places
    for place, one in enumerate(queue[values[0] :], values[0]):
        if _has_turn(one):
            of.setdefault(_notification(one).publisher, []).append((_number(one), place))
    behind: dict[int, list[Queued]] = {}
    for place in values:
        known = of.get(_notification(queue[place]).publisher, [])
        earlier = bisect(known, (_number(queue[place]),))
        last = known[earlier - 1][1] if earlier else place
        behind.setdefault(max(place, last), []).append(queue[place])
    out: list[Queued] = []
    for place, one in enumerate(queue):
        if not _is_value(one[0]):
            out.append(one)
        out += behind.get(place, ())
    return out


def _is_value(one: Stored | Loss) -> bool:
    return isinstance(one, Stored) and 0 < one.ask < late.LATE


def _notification(kept: Kept | Queued) -> Notification:
    assert isinstance(kept[0], Stored)
    return kept[0].notification


def newest(some: Iterable[Stored]) -> dict[ClientId, int]:
    """The highest number of each publisher."""
    found: dict[ClientId, int] = {}
    for one in some:
        publisher, number = one.notification.publisher, one.notification.number
        if number > found.get(publisher, 0):
            found[publisher] = number
    return found


def _number(kept: Kept | Queued) -> int:
    return _notification(kept).number


class Hole(msgspec.Struct, frozen=True, gc=False):
    """Numbers of a backlog that stand for something that never came to it."""

    first: int
    last: int
    why: str
    exact: bool
    expired: int = 0  # of these numbers: they are not lost

    def and_then(self, other: Hole) -> Hole:
        """Both, and what was dropped in between; for the reason, see Loss."""
        expired = self.expired + other.expired
        if self.is_no_loss():
            return Hole(self.first, other.last, other.why, other.exact, expired)
        if other.is_no_loss():
            return Hole(self.first, other.last, self.why, self.exact, expired)
        why = reason(self.why, other.why, exact=self.exact)
        return Hole(self.first, other.last, why, self.exact and other.exact, expired)

    def is_no_loss(self) -> bool:
        return self.expired == self.last - self.first + 1


def _pass_over(out: list[Deliver | Current | Late | Settled | Gap], number: int) -> None:
    """The client does not get this number, and misses nothing."""
    before = out[-1] if out else None
    if isinstance(before, Gap):
        out[-1] = replace(before, number=number, expired=before.expired + 1)
    else:
        out.append(Gap(number, NO_LOSS, True, 1))


def _first(hole: Hole) -> int:
    return hole.first


class Backlog:
    """Invariant: acked <= sent <= last. A number that is neither kept nor acknowledged is lost.

    Of these, the holes were lost before they came here; the other ones were dropped to keep a limit.
    """

    __slots__ = (
        "_expires_at",
        "_least",
        "_memory",
        "_owner",
        "_spare",
        "_spare_bytes",
        "acked",
        "away",
        "bytes",
        "counted",
        "gone_bytes",
        "gone_to",
        "holes",
        "large",
        "large_bytes",
        "last",
        "many",
        "may_repeat",
        "most",
        "sent",
        "unacked",
        "waiting",
        "waiting_bytes",
        "why",
    )

    def __init__(
        self, start: int = 0, memory: Memory | None = None, owner: Consumer | None = None
    ) -> None:
        """What it keeps counts in `memory`, and makes its owner larger."""
        self._memory, self._owner = memory or Memory(), owner
        self.most = self.many = -1  # beyond these bytes, or entries, somebody has to look
        self._least = -1  # ... and below these bytes
        self._expires_at = ENDLESS  # when to look for what has expired while it waited
        self._spare = self._spare_bytes = 0  # that it may keep beyond its limits
        # Its client is. What waits counts once, with others that keep the same; so does what is on its way to a
        # client if that is large, or the client is away.
        self.away = False
        self.counted = 0  # bytes of the rest, when somebody last looked
        self.large = self.large_bytes = 0  # of what is not acknowledged: how many, and bytes
        self.acked = self.sent = self.last = start
        self.why = ""  # the limit that was kept last
        # Nobody knows what its client got before: what is dropped here may be no loss.
        self.may_repeat = False
        self.holes: list[Hole] = []  # not acknowledged, in order of number
        self.bytes = 0
        self.waiting_bytes = 0  # of those, what was not sent
        # What was sent and dropped here is still on its way: until this number is acknowledged.
        self.gone_bytes = self.gone_to = 0
        # (number, what is stored, when it was put here), in order of number.
        self.unacked: deque[tuple[int, Stored, int]] = deque()
        self.waiting: deque[tuple[int, Stored, int]] = deque()

    def __len__(self) -> int:
        return len(self.unacked) + len(self.waiting)

    def __bool__(self) -> bool:
        return bool(self.unacked or self.waiting)

    def put(self, stored: Stored, now: int, limits: Limits) -> None:
        self.last += 1
        self.waiting.append((self.last, stored, now))
        self.bytes += stored.size
        self.waiting_bytes += stored.size
        self._memory.keep(stored)
        if stored.notification.expires_ns:
            self._expires_at = min(self._expires_at, now + stored.notification.expires_ns)
        if self.bytes > self.most or len(self) > self.many:
            self._mind(limits, now)

    def put_all(self, some: Sequence[Kept], limits: Limits) -> None:
        """As `put` of each of them, but the limits are kept at the end."""
        for stored, put in some:
            self.last += 1
            self.waiting.append((self.last, stored, put))
            self.bytes += stored.size
            self.waiting_bytes += stored.size
            self._memory.keep(stored)
            if stored.notification.expires_ns:
                self._expires_at = min(self._expires_at, put + stored.notification.expires_ns)
        if some and (self.bytes > self.most or len(self) > self.many):
            self._mind(limits, some[-1][1])

    def is_open(self, window: int, window_bytes: int) -> bool:
        """Whether nothing waits, and what is put here goes on its way at once."""
        free = self.bytes + self.gone_bytes < window_bytes
        return free and self.last == self.sent < self.acked + window

    def pass_on(self, stored: Stored, now: int, limits: Limits) -> Deliver:
        """As `put` and `take`, where nothing waits and the window is open. See `enlarge`.

        In the usual case, `Border.route` does this by itself.
        """
        number = self.last = self.sent = self.last + 1
        size = self.bytes = self.bytes + stored.size
        unacked = self.unacked
        unacked.append((number, stored, now))
        if size > self.most or len(unacked) > self.many:
            self._mind(limits, now)
        return Deliver(number, stored.notification)

    def enlarge(self, stored: Stored) -> None:
        """This is large, and goes on its way."""
        self.large += 1
        self.large_bytes += stored.size
        self._memory.keep(stored)

    def _let_go_sent(self, stored: Stored) -> None:
        """This is not on its way any more."""
        if stored.size > LARGE:
            self.large -= 1
            self.large_bytes -= stored.size
            self._memory.let_go(stored)
        elif self.away:
            self._memory.let_go(stored)

    def lose(self, count: int, why: str, *, exact: bool = True) -> None:
        """So many were lost before they came here; if not `exact`, at least one.

        The client is told between what was put here before and what will be.
        """
        hole = Hole(self.last + 1, self.last + count, why, exact)
        if self.holes and self.holes[-1].last == self.last > self.sent:  # in the same place
            hole = self.holes.pop().and_then(hole)
        self.last += count
        self.holes.append(hole)

    def doubt_all(self) -> None:
        """Of no lost number it is known for how many it stands."""
        numbers = [number for number, _, _ in (*self.unacked, *self.waiting)]
        ends = zip([self.acked, *numbers], [*numbers, self.last + 1], strict=True)
        self.holes = [
            Hole(before + 1, after - 1, self.why, exact=False)
            for before, after in ends
            if after > before + 1
        ]

    def _mind(self, limits: Limits, now: int) -> None:
        """It has grown: keep to the limits, and say when to look again."""
        self._keep_to(limits, now)
        room = 1 << 62
        if self._owner is not None:
            self._memory.note(self._owner)
            room = max(self._memory.room(self._owner) // 8, ROOM_MIN)
        self._least = self._shrunk()
        self.most = min(limits.backlog_bytes + self._spare_bytes, self.bytes + room)
        most = limits.backlog_count + self._spare
        self.many = min(most, len(self) + room // (BODY_BYTES + ENTRY_BYTES))

    def _shrunk(self) -> int:
        """Below these bytes its owner is looked at again: not whenever a window of deliveries is acknowledged."""
        return self.bytes // 4 - 2 * ROOM_MIN

    def allow(self, count: int, size: int) -> None:
        """Let it keep this much beyond its limits; what is too much is dropped when more is put here."""
        self._spare, self._spare_bytes = count, size
        self.most = self.many = -1

    def _keep_to(self, limits: Limits, now: int) -> None:
        if (
            len(self) > limits.backlog_count + self._spare
            or self.bytes > limits.backlog_bytes + self._spare_bytes
        ):
            self.drop_expired(now)
        while len(self) > limits.backlog_count + self._spare:
            self._drop("backlog_count")
        while self.bytes > limits.backlog_bytes + self._spare_bytes:
            self._drop("backlog_bytes")

    def expire(self, now: int, limits: Limits) -> None:
        self.drop_expired(now)
        while self and self.oldest() + limits.backlog_age_ns <= now:
            self._drop("backlog_age")

    def drop_expired(self, now: int) -> None:
        """Drop what has expired while it waited: that is no loss."""
        if self._expires_at > now:
            return
        left, ends = [], ENDLESS
        for item in self.waiting:
            number, stored, put = item
            lifetime = stored.notification.expires_ns
            if lifetime and put + lifetime <= now:
                self._forget(number, stored)
                continue
            if lifetime:
                ends = min(ends, put + lifetime)
            left.append(item)
        if len(left) < len(self.waiting):
            self.waiting.clear()
            self.waiting.extend(left)
        self._expires_at = ends if ends == ENDLESS else max(ends, now + SCAN_NS)

    def _forget(self, number: int, stored: Stored) -> None:
        """What had this number has expired."""
        self.bytes -= stored.size
        self.waiting_bytes -= stored.size
        self._memory.let_go(stored)
        hole, holes = Hole(number, number, NO_LOSS, exact=True, expired=1), self.holes
        place = bisect(holes, number, key=_first)
        before = holes[place - 1] if place else None
        if (
            before is not None
            and before.is_no_loss()
            and before.last + 1 == number
            and before.last != self.sent
        ):
            holes[place - 1] = before.and_then(hole)
        else:
            holes.insert(place, hole)

    def oldest(self) -> int:
        """When the oldest notification was put here; there must be one."""
        return (self.unacked or self.waiting)[0][2]

    def _drop(self, why: str) -> None:
        if self.unacked:
            number, stored, _ = self.unacked.popleft()
            self.gone_bytes += stored.size
            self.gone_to = number
            self._let_go_sent(stored)
        else:
            number, stored, _ = self.waiting.popleft()
            self.waiting_bytes -= stored.size
            self._memory.let_go(stored)
        self.bytes -= stored.size
        self.why = why
        if self.may_repeat:
            self._doubt(Hole(number, number, why, exact=False))
        if len(self.holes) > 1:
            self._join_holes()

    def _doubt(self, dropped: Hole) -> None:
        """What was dropped may be no loss; it was the oldest that was kept."""
        place = bisect(self.holes, dropped.first, key=_first)
        before = self.holes[place - 1] if place else None
        if before is not None and before.last + 1 == dropped.first and before.last != self.sent:
            self.holes[place - 1] = before.and_then(dropped)
        else:
            self.holes.insert(place, dropped)

    def _join_holes(self) -> None:
        """Holes between which nothing is kept any more are one, so that they are never too many."""
        kept = self.unacked or self.waiting
        first = kept[0][0] if kept else self.last + 1
        holes, sent = self.holes, self.sent
        while (
            len(holes) > 1
            and holes[1].last < first
            and sent not in range(holes[0].last, holes[1].last)
        ):
            joined = holes[0].and_then(holes[1])
            if joined.why == NO_LOSS and not joined.is_no_loss():  # what was between was dropped
                joined = replace(joined, why=self.why)
            holes[:2] = [joined]

    def shed(self, size: int, why: str) -> int:
        """Drop the oldest until this is at most so large; how many were dropped."""
        dropped = 0
        while self and self.kept_bytes() > size:
            self._drop(why)
            dropped += 1
        return dropped

    def kept_bytes(self) -> int:
        """What it keeps, as if nobody else kept the same."""
        return self.bytes + len(self) * (BODY_BYTES + ENTRY_BYTES)

    def count(self) -> None:
        """See how much is on its way to a client that is attached; little does not count."""
        self.most = self.many = -1  # somebody has to look when it grows: it may have shrunk
        self._count_sent()

    def _count_sent(self) -> None:
        kept = 0
        if not self.away:
            kept = self.bytes - self.waiting_bytes - self.large_bytes
            kept += (len(self.unacked) - self.large) * (BODY_BYTES + ENTRY_BYTES)
        kept = kept if kept > COUNTED_MIN else 0
        self._memory.attached += kept - self.counted
        self.counted = kept

    def go_away(self, away: bool) -> None:
        """Its client is away now, or back."""
        if self.away != away:
            self.away = away
            change = self._memory.keep if away else self._memory.let_go
            for _, stored, _ in self.unacked:
                if stored.size <= LARGE:
                    change(stored)
            self.count()

    def clear(self) -> None:
        """Keep nothing; it is not used any more."""
        self._release()
        self.unacked.clear()
        self.waiting.clear()
        self.away = False
        self.bytes = 0
        self.count()

    def hold(self) -> None:
        """Count what it keeps: it was put here without."""
        for _, stored, _ in self.waiting:
            self.waiting_bytes += stored.size
            self._memory.keep(stored)
        for _, stored, _ in self.unacked:
            if stored.size > LARGE:
                self.enlarge(stored)
            elif self.away:
                self._memory.keep(stored)

    def _release(self) -> None:
        """Count nothing of what it keeps."""
        for _, stored, _ in self.unacked:
            self._let_go_sent(stored)
        for _, stored, _ in self.waiting:
            self._memory.let_go(stored)
        self.waiting_bytes = 0

    def take(
        self,
        window: int,
        now: int,
        state: State = m.NOWHERE,
        window_bytes: int = ENDLESS,
    ) -> list[Deliver | Current | Late | Settled | Gap]:
        """What may be sent now to a client of this state; where something is gone, what says so.

        What is of use elsewhere is kept until its number is acknowledged: the client may come back from there.
        """
        out: list[Deliver | Current | Late | Settled | Gap] = []
        waiting, unacked = self.waiting, self.unacked
        if self._expires_at <= now:
            self.drop_expired(now)
        end = self.acked + window  # by number: what a limit dropped is still on its way
        on_way = before = self.bytes - self.waiting_bytes + self.gone_bytes
        while self.sent < min(end, self.last):
            first = waiting[0][0] if waiting else self.last + 1
            if first == self.sent + 1:
                if on_way >= window_bytes:
                    break
                item = waiting.popleft()
                unacked.append(item)
                stored = item[1]
                on_way += stored.size
                self.waiting_bytes -= stored.size
                if stored.size > LARGE:
                    self.large += 1
                    self.large_bytes += stored.size
                elif not self.away:
                    self._memory.let_go(stored)
                notification = stored.notification
                if notification.area is not None and is_outside(notification.area, state):
                    _pass_over(out, item[0])
                    self.sent = item[0]
                    continue
                if notification.expires_ns:
                    left = max(1, item[2] + notification.expires_ns - now)
                    notification = replace(notification, expires_ns=left)
                if stored.ask:
                    out.append(late.message(item[0], notification, stored.ask))
                else:
                    out.append(Deliver(item[0], notification))
            else:
                loss = self._loss(self.sent, first - 1)
                expired = first - 1 - self.sent - loss.count
                out.append(Gap(first - 1, loss.why, loss.exact, expired))
            self.sent = out[-1].number
        if on_way > before:
            self._count_sent()
        return out

    def _loss(self, before: int, last: int) -> Loss:
        """What is lost of the numbers behind `before`, up to the last one."""
        holes = [one for one in self.holes if before < one.last <= last]
        expired = 0
        for one in holes:
            if one.expired:  # the client may have got over the first ones already
                expired += min(one.expired, one.last - max(one.first, before + 1) + 1)
        if expired:
            if expired == last - before:
                return Loss(0, NO_LOSS)
            holes = [one for one in holes if not one.is_no_loss()]
        at_the_end = bool(holes) and holes[-1].last == last
        why = holes[-1].why if holes and (at_the_end or not self.why) else self.why
        unknown = (one.why for one in holes if not one.exact and one.why != FORGOTTEN_PAST)
        why = next(unknown, why)
        return Loss(last - before - expired, why, all(one.exact for one in holes))

    def acknowledge(self, number: int) -> None:
        if number > self.sent:
            raise ProtocolError(f"acknowledged {number}, but only {self.sent} were sent")
        unacked, counted, size = self.unacked, self.away or self.large > 0, 0
        while unacked and unacked[0][0] <= number:
            stored = unacked.popleft()[1]
            size += stored.size
            if counted:
                self._let_go_sent(stored)
        self.bytes -= size
        if number >= self.gone_to:
            self.gone_bytes = 0
        if self.bytes < self._least and self._owner is not None:
            self._least = self._shrunk()
            self._memory.note(self._owner)
        if number > self.acked:
            self.acked = number
            while self.holes and self.holes[0].last <= number:
                del self.holes[0]

    def resume(self, delivered: int) -> bool:
        """Start on a new connection behind this delivery; False if it was not made from here."""
        if not self.acked <= delivered <= self.sent:
            return False
        self.acknowledge(delivered)
        for item in reversed(self.unacked):
            if item[1].size <= LARGE and not self.away:
                self._memory.keep(item[1])
            self.waiting.appendleft(item)
        self.unacked.clear()
        self.large = self.large_bytes = self.gone_bytes = 0
        self.waiting_bytes = self.bytes
        self.sent = delivered
        self._count_sent()
        return True

    def withdraw(self, keep: Callable[[Notification], bool], why: str) -> None:
        """Drop what `keep` rejects; each is lost, and reported at its place."""
        self._release()
        for queue in (self.unacked, self.waiting):
            kept = [one for one in queue if keep(one[1].notification)]
            if len(kept) < len(queue):
                queue.clear()
                queue.extend(kept)
                self.why = why
        self.bytes = sum(stored.size for _, stored, _ in (*self.unacked, *self.waiting))
        self.hold()
        self.count()

    def take_back(self) -> list[Kept]:
        """What was not sent yet, as if it had never been put here; what was lost stays lost."""
        kept = [(stored, put) for _, stored, put in self.waiting]
        loss = self._loss(self.sent, self.last)
        lost = loss.count - len(kept)
        self.bytes -= sum(stored.size for stored, _ in kept)
        for stored, _ in kept:
            self._memory.let_go(stored)
        self.waiting.clear()
        self.waiting_bytes = 0
        self.holes = [one for one in self.holes if one.last <= self.sent]
        self.last = self.sent
        if lost:
            self.lose(lost, loss.why, exact=loss.exact)
        return kept

    def leave_out(self, unwanted: Container[Stored]) -> None:
        """Drop this of what was not sent: it is not lost, and others get its numbers."""
        queue = self._with_losses(self.sent, self.waiting)
        self.waiting.clear()
        self.holes = [one for one in self.holes if one.last <= self.sent]
        self.last = self.sent
        for one, put in queue:
            if isinstance(one, Loss):
                self.lose(one.count, one.why, exact=one.exact)
            elif one not in unwanted:
                self.last += 1
                self.waiting.append((self.last, one, put))
            else:
                self.bytes -= one.size
                self.waiting_bytes -= one.size
                self._memory.let_go(one)
        if self._owner is not None:
            self._memory.note(self._owner)

    def left(self, delivered: int) -> list[Queued] | None:
        """What comes behind this delivery, to be continued elsewhere; None if it was not made from here.

        Then a store was rolled back, at the broker or at the client, and what is kept may have come before.
        """
        if not self.resume(delivered):
            return None
        return self._with_losses(delivered, self.waiting)

    def above(self, number: int) -> list[Queued]:
        """What is kept with a number above this one, sent or not, and the losses between."""
        kept = (one for one in (*self.unacked, *self.waiting) if one[0] > number)
        return self._with_losses(max(number, self.acked), kept)

    def _with_losses(self, before: int, kept: Iterable[tuple[int, Stored, int]]) -> list[Queued]:
        """What is kept behind a delivery, and a loss in each place where numbers are missing."""
        queue: list[Queued] = []
        for number, stored, put in kept:
            if number > before + 1 and (loss := self._loss(before, number - 1)).count:
                queue.append((loss, put))
            queue.append((stored, put))
            before = number
        if self.last > before and (loss := self._loss(before, self.last)).count:
            queue.append((loss, NEVER))
        return queue
