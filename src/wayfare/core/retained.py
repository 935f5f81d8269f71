"""Current values: of each key, the newest publication that was retained. Every broker has all of them.

    publisher -- Publish(retain) --> border broker -- Retained(version) --> every broker
                                                          each keeps the newest version of the key
    subscriber -- Subscribe(ask) --> its border broker: Current(value) ..., then what is new

A key is the names of some attributes with their values. The broker that accepts a publication gives it a version
above all that it knows, so if the first of two publications was known where the second was accepted, all brokers
keep the second. Of two concurrent publications, all brokers keep the same.

A retained publication travels like any other, in order, to all brokers; so brokers differ only by what is on its way.
When a link begins from nothing, both ends tell each other their values (`Values`), and the newer ones win. Values that
many requests wait for are taken in slices, and what the neighbour sends behind them waits.

A value that expires leaves its key without a value, as if it had been cleared; an earlier value does not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from wayfare.core.codec import encode
from wayfare.core.deadlines import RETAINED, Deadlines
from wayfare.core.filters import Filter
from wayfare.core.history import Limits, Stored, size_of
from wayfare.core.matching import FilterIndex
from wayfare.core.memory import BODY_BYTES
from wayfare.core.messages import (
    FILTERS_MAX,
    OVER_NS,
    REPLY_BYTES_MAX,
    VALUES_MAX,
    BrokerId,
    Notification,
    Retain,
    Retained,
    Values,
)
from wayfare.core.predicates import Attributes, Value
from wayfare.core.routing import Audience

Key = tuple[tuple[str, bool, Value], ...]  # name, whether it is a truth value, value; by name
Request = tuple[int, int]  # the place of a session, and the number of its request
FEW_FILTERS = 16  # of requests that are compared with a value one by one
AUDIENCES_PER_UNIT = 8  # that are found for a value, asked for or not
TESTS_PER_UNIT = 128  # filters that a value may have to be tested against


def key_of(value: Retained) -> Key:
    """Equal for equal values; true is not 1."""
    attributes = value.notification.attributes
    names = sorted(value.retain.names)
    return tuple((name, type(attributes[name]) is bool, attributes[name]) for name in names)


def is_newer(one: Retained, other: Retained) -> bool:
    return order(one) > order(other)


def order(value: Retained) -> tuple[int, str, int]:
    return value.version, value.notification.publisher, value.notification.number


class Account:
    """The values that the clients of one account have set."""

    __slots__ = ("bytes", "keys")

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}  # what was set last is last
        self.bytes = 0


class Saved(msgspec.Struct, array_like=True, frozen=True):
    clock: int = 0
    values: list[Retained] = []
    cleared: list[tuple[int, int]] = []  # which of them are cleared, and until when this is known
    unheard: list[BrokerId] | None = None  # None: of an earlier release, which had no values
    early: list[Retained] = []
    asks: list[tuple[int, int, Filter]] = []
    evicted: int = 0
    ends: list[tuple[int, int]] = []  # which of them expire, and when


class Table:
    """The current values at one broker."""

    def __init__(
        self, neighbours: Sequence[BrokerId], limits: Limits, deadlines: Deadlines
    ) -> None:
        self.values: dict[Key, Retained] = {}  # what was set last is last
        self.bytes = 0
        self.evicted = 0  # values that a limit dropped
        self.clock = 0  # no version is above this one
        self.cleared: dict[Key, int] = {}  # keys without a value, and until when this is known
        # Neighbours that have not sent their values since their links began from nothing.
        self.unheard = dict.fromkeys(neighbours)
        self._early: dict[Key, Retained] = {}  # accepted here while somebody was unheard
        # Requests that were answered meanwhile, with their numbers, by the place of the session.
        self._asks: dict[int, dict[int, Filter]] = {}
        self._asking: dict[Filter, dict[Request, None]] = {}  # the same by conjunction
        self._ends: dict[Key, int] = {}  # when values expire
        self._accounts: dict[str, Account] = {}
        self._limits, self._deadlines = limits, deadlines
        # What this request gets of the values that were compared in advance, by their ids; None: not this one.
        self.compared: tuple[dict[int, Filter], Mapping[int, Stored | None]] | None = None

    def __len__(self) -> int:
        """How many keys have a value."""
        return len(self.values) - len(self.cleared)

    def memory_bytes(self) -> int:
        return self.bytes + len(self.values) * BODY_BYTES

    # Setting

    def accept(
        self, notification: Notification, retain: Retain, account: str, since: int
    ) -> Retained:
        """What a client of this broker has published, as it goes to every broker."""
        value = Retained(notification, retain, self.clock + 1, account, since)
        if self.unheard:
            self._early[key_of(value)] = value
        return value

    def put(self, value: Retained, now: int) -> bool:
        """Keep a value, unless a newer one is known; True if it is kept."""
        self.clock = max(self.clock, value.version)
        key = key_of(value)
        known = self.values.get(key)
        if known is not None:
            if not is_newer(value, known):
                return False
            self._drop(key)
        if value.retain.clear:
            self._clear(key, now + self._limits.tombstone_ns)
            value = _without_content(value)
        elif value.notification.expires_ns:
            self._end_at(key, now + value.notification.expires_ns)
        self.values[key] = value
        size = size_of(value.notification)
        self.bytes += size
        account = self._accounts.setdefault(value.account, Account())
        account.keys[key] = None
        account.bytes += size
        self._keep_to_limits(value.account, account)
        return True

    def _clear(self, key: Key, until: int) -> None:
        self.cleared[key] = until
        self._deadlines.arm(RETAINED, key, until)

    def _end_at(self, key: Key, at: int) -> None:
        self._ends[key] = at
        self._deadlines.arm(RETAINED, key, at)

    def _drop(self, key: Key) -> None:
        value = self.values.pop(key)
        self._ends.pop(key, None)
        size = size_of(value.notification)
        self.bytes -= size
        self.cleared.pop(key, None)
        self._deadlines.disarm(RETAINED, key)
        account = self._accounts[value.account]
        del account.keys[key]
        account.bytes -= size
        if not account.keys:
            del self._accounts[value.account]

    def _keep_to_limits(self, name: str, account: Account) -> None:
        """What was set longest ago goes: of the account if that has too much, or of all."""
        limits = self._limits
        count, size = limits.account_retained_count, limits.account_retained_bytes
        while name and (0 < count < len(account.keys) or 0 < size < account.bytes):
            self._evict(next(iter(account.keys)))
        while len(self.values) > limits.retained_count or self.bytes > limits.retained_bytes:
            self._evict(next(iter(self.values)))

    def _evict(self, key: Key) -> None:
        self.evicted += key not in self.cleared
        self._early.pop(key, None)
        self._drop(key)

    def expire(self, key: Key, now: int) -> None:
        """Clear a key whose value has expired, or forget one that was cleared long ago."""
        until = self._ends.get(key, self.cleared.get(key))
        if until is None:
            return
        if until > now:
            self._deadlines.arm(RETAINED, key, until)
            return
        value = self.values[key]
        self._drop(key)
        if not value.retain.clear:
            self.put(replace(value, retain=replace(value.retain, clear=True)), now)

    # Asking

    def matching(self, asks: Mapping[int, Filter], now: int) -> list[Stored]:
        """The values for each of these requests, what was set last of each comes last."""
        if not asks or not self.values:
            return []
        if self.compared is not None and asks == self.compared[0]:
            return self._alive(self._matching_known(*self.compared), now)
        find, cleared = _finder(asks), self.cleared
        found = [
            (key, _stored(value, ask))
            for key, value in self.values.items()
            for ask in find(value.notification.attributes)
            if key not in cleared
        ]
        if len(asks) > 1:
            found.sort(key=lambda one: one[1].ask)
        return self._alive(found, now)

    def _matching_known(
        self, asks: Mapping[int, Filter], compared: Mapping[int, Stored | None]
    ) -> list[tuple[Key, Stored]]:
        ((ask, filter),) = asks.items()
        cleared, found = self.cleared, list[tuple[Key, Stored]]()
        for key, value in self.values.items():
            if id(value) in compared:
                stored = compared[id(value)]
            else:
                stored = answer_to(ask, filter, value)
            if stored is not None and key not in cleared:
                found.append((key, stored))
        return found

    def _alive(self, found: list[tuple[Key, Stored]], now: int) -> list[Stored]:
        """Without those that have expired."""
        ends = self._ends
        if not ends:
            return [one for _, one in found]
        return [
            replace(one, notification=self._at(key, one.notification, now)) if key in ends else one
            for key, one in found
            if ends.get(key, now + 1) > now
        ]

    def _at(self, key: Key, notification: Notification, now: int) -> Notification:
        """A value with what is left of its lifetime."""
        return replace(notification, expires_ns=max(OVER_NS, self._ends[key] - now))

    def expect(self, place: int, asks: Mapping[int, Filter]) -> None:
        """A session at this place has asked: it may get more from neighbours that are unheard."""
        if self.unheard:
            for ask, filter in asks.items():
                self._expect(place, ask, filter)

    def _expect(self, place: int, ask: int, filter: Filter) -> None:
        known = self._asks.setdefault(place, {})
        known[ask] = filter
        for part in filter.parts():
            self._asking.setdefault(part, {})[place, ask] = None
        if len(known) > FILTERS_MAX:
            self._expect_no_more(place, next(iter(known)))

    def _expect_no_more(self, place: int, ask: int) -> None:
        for part in self._asks[place].pop(ask).parts():
            requests = self._asking[part]
            del requests[place, ask]
            if not requests:
                del self._asking[part]

    def withdraw(self, place: int, filter: Filter) -> None:
        """A session has no such subscription any more."""
        known = self._asks.get(place, {})
        for ask in [ask for ask, one in known.items() if one == filter]:
            self._expect_no_more(place, ask)

    def forget(self, place: int) -> None:
        """The session at this place has ended."""
        for ask in list(self._asks.get(place, ())):
            self._expect_no_more(place, ask)
        self._asks.pop(place, None)

    def expected(
        self, value: Retained, find: Callable[[Attributes], Sequence[Audience]]
    ) -> tuple[list[Request], int]:
        """The requests that a neighbour's value is for, and what it took to find them.

        They are requests of subscriptions, so `find` finds them among all subscriptions that match.
        """
        if value.retain.clear or not self._asking:
            return [], 0
        attributes = value.notification.attributes
        if len(self._asking) <= FEW_FILTERS:
            found = [some for one, some in self._asking.items() if one.matches(attributes)]
            units = FEW_FILTERS // 2
        else:
            audiences = find(attributes)
            filters = [one.filter for one in audiences if one.filter in self._asking]
            found = [self._asking[one] for one in filters]
            tested = (
                len(self._asking) // TESTS_PER_UNIT
            )  # those that no index can exclude, at worst
            units = 1 + max(tested, len(audiences) // AUDIENCES_PER_UNIT)
        requests = sorted({request for some in found for request in some})
        return requests, units + len(requests)

    # Neighbours

    def start_over(self, neighbour: BrokerId, now: int) -> list[Values]:
        """A link begins from nothing: what to tell first."""
        self.unheard[neighbour] = None
        return batches(
            replace(one, notification=self._at(key, one.notification, now))
            if key in self._ends
            else one
            for key, one in self.values.items()
        )

    def heard(self, neighbour: BrokerId) -> None:
        """A neighbour has sent its values."""
        self.unheard.pop(neighbour, None)
        if not self.unheard:
            self._early.clear()
            self._asks.clear()
            self._asking.clear()

    def merge(self, value: Retained, now: int) -> tuple[Retained | None, Retained | None]:
        """A value of a neighbour if it is news here, and the value that all neighbours have to get in its place.

        What was accepted here before the neighbour's values came is later than they are: this broker had forgotten
        how far the versions were.
        """
        if not self.put(value, now):
            return None, None
        early = self._early.get(key_of(value))
        if early is None:
            return value, None
        again = replace(early, version=self.clock + 1)
        self._early[key_of(again)] = again
        self.put(again, now)
        return None, again

    # Saving

    def save(self) -> Saved:
        cleared = [(at, self.cleared[k]) for at, k in enumerate(self.values) if k in self.cleared]
        asks = [(place, *one) for place, asks in self._asks.items() for one in asks.items()]
        return Saved(
            self.clock,
            list(self.values.values()),
            cleared,
            list(self.unheard),
            list(self._early.values()),
            asks,
            self.evicted,
            [(at, self._ends[key]) for at, key in enumerate(self.values) if key in self._ends],
        )

    def load(self, saved: Saved) -> None:
        """Become what was saved; nothing may be here yet."""
        if saved.unheard is None:
            self.unheard.clear()
            return
        cleared = dict(saved.cleared)
        for at, value in enumerate(saved.values):
            self.put(value, cleared.get(at, 0) - self._limits.tombstone_ns)
        keys = list(self.values)
        for at, ends in saved.ends:
            self._end_at(keys[at], ends)
        self.clock, self.evicted = saved.clock, saved.evicted
        self.unheard = dict.fromkeys(saved.unheard)
        self._early = {key_of(value): value for value in saved.early}
        for place, ask, filter in saved.asks:
            self._expect(place, ask, filter)


def _stored(value: Retained, ask: int) -> Stored:
    return Stored(value.notification, size_of(value.notification), ask=ask)


def answer_to(ask: int, filter: Filter, value: Retained) -> Stored | None:
    """What a request gets of this value; None: nothing, because it does not match."""
    return _stored(value, ask) if filter.matches(value.notification.attributes) else None


def _finder(asks: Mapping[int, Filter]) -> Callable[[Attributes], Iterable[int]]:
    """Which of these requests ask for something with such attributes."""
    if len(asks) == 1:
        (one,) = asks.items()
        return lambda attributes: one[:1] if one[1].matches(attributes) else ()
    index: FilterIndex[int] = FilterIndex()
    for ask, filter in asks.items():
        index.add(ask, filter)
    return index.find


def batches(values: Iterable[Retained]) -> list[Values]:
    """All of them, in messages that fit a frame."""
    out: list[Values] = []
    some: list[Retained] = []
    left = REPLY_BYTES_MAX
    for value in values:
        size = len(encode(value))
        if some and (size > left or len(some) == VALUES_MAX):
            out.append(Values(tuple(some)))
            some, left = [], REPLY_BYTES_MAX
        some.append(value)
        left -= size
    return [*out, Values(tuple(some))] if some else out


def _without_content(value: Retained) -> Retained:
    """Only the key is left."""
    one = value.notification
    attributes = {name: one.attributes[name] for name in value.retain.names}
    return replace(value, notification=Notification(one.publisher, one.number, attributes))
