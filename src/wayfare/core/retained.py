"""Current values: of each key, the newest publication that was retained. Every broker has all of them.

    publisher -- Publish(retain) --> border broker -- Retained(version) --> every broker
                                                          each keeps the newest version of the key
    subscriber -- Subscribe(ask) --> its border broker: Current(value) ..., then what is new

A key is the names of some attributes with their values. The broker that accepts a publication gives it a version
above all that it knows, so of two publications of which one was known where the other one was accepted, all brokers
keep the later one. Of two that know nothing of each other, all brokers keep the same one.

A retained publication travels like any other, in order, to all brokers; so brokers differ only by what is on its way.
When a link begins from nothing, both ends tell each other their values (`Values`), and the newer ones win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from wayfare.core.codec import encode
from wayfare.core.deadlines import RETAINED, Deadlines
from wayfare.core.filters import Filter
from wayfare.core.history import Limits, size_of
from wayfare.core.matching import FilterIndex
from wayfare.core.memory import BODY_BYTES
from wayfare.core.messages import (
    FILTERS_MAX,
    REPLY_BYTES_MAX,
    VALUES_MAX,
    BrokerId,
    Notification,
    Retain,
    Retained,
    Values,
)
from wayfare.core.predicates import Attributes, Value

Key = tuple[tuple[str, bool, Value], ...]  # name, whether it is a truth value, value; by name


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
        # Neighbours that have not told their values since their links began from nothing.
        self.unheard = dict.fromkeys(neighbours)
        self._early: dict[Key, Retained] = {}  # accepted here while somebody was unheard
        # Requests that were answered meanwhile, with their numbers, by the place of the session.
        self._asks: dict[int, dict[int, Filter]] = {}
        self._accounts: dict[str, Account] = {}
        self._limits, self._deadlines = limits, deadlines

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
        self._deadlines.arm(RETAINED, None, until)

    def _drop(self, key: Key) -> None:
        value = self.values.pop(key)
        size = size_of(value.notification)
        self.bytes -= size
        self.cleared.pop(key, None)
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

    def expire(self, now: int) -> None:
        """Forget which keys were cleared long ago."""
        for key, until in list(self.cleared.items()):
            if until > now:
                self._deadlines.arm(RETAINED, None, until)
                break
            self._drop(key)

    # Asking

    def matching(self, asks: Mapping[int, Filter]) -> list[tuple[int, Retained]]:
        """The values for each of these requests, what was set last of each comes last."""
        if not asks or not self.values:
            return []
        find = _finder(asks)
        found = [
            (ask, value)
            for key, value in self.values.items()
            for ask in find(value.notification.attributes)
            if key not in self.cleared
        ]
        return sorted(found, key=itemgetter(0)) if len(asks) > 1 else found

    def expect(self, place: int, asks: Mapping[int, Filter]) -> None:
        """A session at this place has asked: it may get more from neighbours that are unheard."""
        if self.unheard and asks:
            known = self._asks.setdefault(place, {})
            known.update(asks)
            while len(known) > FILTERS_MAX:
                del known[next(iter(known))]

    def withdraw(self, place: int, filter: Filter) -> None:
        """A session has no such subscription any more."""
        known = self._asks.get(place)
        if known is not None:
            self._asks[place] = {ask: one for ask, one in known.items() if one != filter}

    def forget(self, place: int) -> None:
        """The session at this place has ended."""
        self._asks.pop(place, None)

    def expected(self, values: Iterable[Retained]) -> Iterator[tuple[int, int, Retained]]:
        """Places and numbers of requests that these values, which a neighbour told, are for."""
        for value in values:
            if not value.retain.clear:
                for place, asks in self._asks.items():
                    for ask, filter in asks.items():
                        if filter.matches(value.notification.attributes):
                            yield place, ask, value

    # Neighbours

    def start_over(self, neighbour: BrokerId) -> list[Values]:
        """A link begins from nothing: what to tell first."""
        self.unheard[neighbour] = None
        return batches(self.values.values())

    def heard(self, neighbour: BrokerId) -> None:
        """A neighbour has told its values."""
        self.unheard.pop(neighbour, None)
        if not self.unheard:
            self._early.clear()
            self._asks.clear()

    def merge(self, values: Iterable[Retained], now: int) -> tuple[list[Retained], list[Retained]]:
        """Which values of a neighbour are news here, and what it has to be told in turn.

        What was accepted here before the neighbour was heard is later than what it told: this broker had forgotten
        how far the versions were.
        """
        news, mine = list[Retained](), list[Retained]()
        for value in values:
            if not self.put(value, now):
                continue
            early = self._early.get(key_of(value))
            if early is None:
                news.append(value)
            else:
                again = replace(early, version=self.clock + 1)
                self._early[key_of(again)] = again
                self.put(again, now)
                mine.append(again)
        return news, mine

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
        )

    def load(self, saved: Saved) -> None:
        """Become what was saved; nothing may be here yet."""
        if saved.unheard is None:
            self.unheard.clear()
            return
        cleared = dict(saved.cleared)
        for at, value in enumerate(saved.values):
            self.put(value, cleared.get(at, 0) - self._limits.tombstone_ns)
        self.clock, self.evicted = saved.clock, saved.evicted
        self.unheard = dict.fromkeys(saved.unheard)
        self._early = {key_of(value): value for value in saved.early}
        for place, ask, filter in saved.asks:
            self._asks.setdefault(place, {})[ask] = filter


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
