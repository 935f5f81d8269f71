"""What virtual clients keep for clients that may come: one store, and ids in buffers.

A notification is in the store once, however many virtual clients wait with it. A buffer has the ids of
what one filter matched, as far as its terms keep it: the last so many, the younger ones, the newest of
every key, those that no later one nullified. Virtual clients with the same filter and terms share a buffer, and each knows since which id
it listens.

Notifications that expire are counted by themselves: when they are gone, as many others as the terms say are there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from heapq import merge

from wayfare.core.filters import Filter
from wayfare.core.history import (
    ENDLESS,
    SCAN_NS,
    Limits,
    NotificationKey,
    Stored,
    has_expired,
    key_of,
    nullifies,
)
from wayfare.core.memory import BODY_BYTES, ENTRY_BYTES, Memory
from wayfare.core.messages import Notification, Nullify, Terms

Id = int
OFFSETS = 2**32  # what four bytes can say
EMPTY = 64  # places at the front of a queue that may be empty


def age_ns(terms: Terms | None, limits: Limits) -> int:
    """For how long something is kept for a virtual client."""
    if terms is None:
        return limits.buffer_age_ns
    asked = limits.buffer_age_ns if terms.younger_ns is None else terms.younger_ns
    return min(asked, limits.backlog_age_ns)


class Kept:
    """A notification in the store: when it came, and how many buffers have its id."""

    __slots__ = ("came", "held", "stored")

    def __init__(self, stored: Stored, came: int) -> None:
        self.stored = stored
        self.came = came
        self.held = 0

    @property
    def expires(self) -> bool:
        return self.stored.notification.expires_ns > 0

    def has_expired(self, now: int) -> bool:
        return has_expired(self.stored.notification, self.came, now)


class Store:
    """The notifications of all buffers of a broker, each once."""

    __slots__ = ("kept", "memory", "next")

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.kept: dict[Id, Kept] = {}
        self.next: Id = 1  # ids are given in the order in which notifications came

    def put(self, stored: Stored, came: int) -> Id:
        """Keep a notification until no buffer has its id any more."""
        number = self.next
        self.next += 1
        self.take_over(number, stored, came)
        return number

    def take_over(self, number: Id, stored: Stored, came: int) -> None:
        """What was kept under this id before."""
        self.kept[number] = Kept(stored, came)
        self.memory.keep(stored)

    def hold(self, number: Id) -> None:
        self.kept[number].held += 1

    def let_go(self, number: Id) -> None:
        kept = self.kept[number]
        kept.held -= 1
        if not kept.held:
            del self.kept[number]
            self.memory.let_go(kept.stored)


class Ids:
    """A queue of ascending ids, four bytes each: there may be many buffers of the same ids."""

    __slots__ = ("_base", "_gone", "_offsets")

    def __init__(self, ids: Iterable[Id] = ()) -> None:
        self._base: Id = 0
        self._offsets = array("I")  # from the base
        self._gone = 0  # of them, at the front
        for number in ids:
            self.append(number)

    def __len__(self) -> int:
        return len(self._offsets) - self._gone

    def __iter__(self) -> Iterator[Id]:
        base, offsets = self._base, self._offsets
        return (base + offsets[at] for at in range(self._gone, len(offsets)))

    def append(self, number: Id) -> None:
        if number - self._base >= OFFSETS or not len(self):
            self._begin_with(list(self) or [number])
        self._offsets.append(number - self._base)

    def _begin_with(self, ids: list[Id]) -> None:
        again = ids if len(self) else []
        self._base = ids[0]
        self._offsets, self._gone = array("I", (one - ids[0] for one in again)), 0

    def first(self) -> Id:
        return self._base + self._offsets[self._gone]

    def popleft(self) -> Id:
        number = self.first()
        self._gone += 1
        if self._gone > EMPTY and 2 * self._gone > len(self._offsets):
            del self._offsets[: self._gone]
            self._gone = 0
        return number


class Buffer:
    """The ids of what one filter matched, as far as its terms keep it."""

    __slots__ = (
        "_age_ns",
        "_bytes",
        "_count",
        "_ends",
        "_groups",
        "_ids",
        "_newest",
        "_newest_expire",
        "_perishable",
        "_scan_at",
        "_store",
        "account",
        "ages",
        "filter",
        "listeners",
        "noted",
        "terms",
    )

    def __init__(self, filter: Filter, terms: Terms | None, store: Store, limits: Limits) -> None:
        self.account, self.noted = "", 0  # see memory.Consumer
        self.filter, self.terms = filter, terms
        self._bytes = 0  # of what it has ids of
        self.listeners = 0  # subscriptions of virtual clients
        self.ages = False  # whether a timer is armed for the age of its oldest notification
        self._store = store
        self._ids = Ids()
        self._perishable = Ids()  # likewise, of those that expire
        # By key, in ascending order; without a key of their own, ids are their keys.
        self._newest: dict[NotificationKey, Id] = {}
        self._newest_expire = 0  # so many of these
        self._ends = ENDLESS  # when something may have expired, but not before ...
        self._scan_at = -ENDLESS  # ... all are looked at again
        # Keys of those that one notification would nullify together.
        self._groups: dict[NotificationKey, dict[NotificationKey, None]] = {}
        asked = terms or Terms()
        self._count = limits.buffer_count if asked.last is None else asked.last
        self._age_ns = age_ns(terms, limits)
        if terms is not None:  # a client may ask for less than a broker keeps, not for more
            self._count = min(self._count, limits.backlog_count)

    def put(self, number: Id, now: int) -> None:
        """Take an id, and drop what the terms do not keep any more."""
        self.hold(number)
        self.expire(now)
        for expire in (False, True):
            while self._counted(expire) > self._count:
                self._drop_of(expire)

    def hold(self, number: Id) -> None:
        kept = self._store.kept[number]
        notification = kept.stored.notification
        terms = self.terms
        if terms is not None and (terms.key is not None or terms.nullify is not None):
            if terms.nullify is not None and self._nullify(notification, terms.nullify):
                return
            names = terms.names
            key = key_of(notification, names) if names else None
            if key is None:
                key = (number,)
            if key in self._newest:
                self._remove(key)
            self._newest[key] = number  # behind all others: they stay in the order of their ids
            self._newest_expire += kept.expires
            if terms.nullify is not None:
                self._group(key, notification, terms.nullify)
        else:
            (self._perishable if kept.expires else self._ids).append(number)
        if kept.expires:
            self._ends = min(self._ends, kept.came + notification.expires_ns)
        self._store.hold(number)
        self._bytes += self._store.kept[number].stored.size
        if self.size() > self.noted + self._store.memory.room(self):
            self._store.memory.note(self)

    def _nullify(self, notification: Notification, nullify: Nullify) -> bool:
        """Drop what this nullifies; False if it is an ordinary notification."""
        if not nullifies(notification, nullify):
            return False
        group = key_of(notification, nullify.same)
        if group is not None:
            for key in list(self._groups.get(group, ())):
                self._remove(key)
        return True

    def _group(self, key: NotificationKey, notification: Notification, nullify: Nullify) -> None:
        group = key_of(notification, nullify.same)
        if group is not None:
            self._groups.setdefault(group, {})[key] = None

    def _remove(self, key: NotificationKey) -> None:
        number = self._newest.pop(key)
        self._newest_expire -= self._store.kept[number].expires
        nullify = None if self.terms is None else self.terms.nullify
        if nullify is not None:
            group = key_of(self._store.kept[number].stored.notification, nullify.same)
            if group is not None:
                del self._groups[group][key]
                if not self._groups[group]:
                    del self._groups[group]
        self._let_go(number)

    def measure(self) -> int:
        return self.size()

    def size(self) -> int:
        return self._bytes + len(self) * (BODY_BYTES + ENTRY_BYTES)

    def shed(self, size: int) -> int:
        """Drop the oldest until this is at most so large; how many were dropped."""
        before = len(self)
        while len(self) and self.size() > size:
            self._drop()
        return before - len(self)

    def _let_go(self, number: Id) -> None:
        self._bytes -= self._store.kept[number].stored.size
        self._store.let_go(number)

    def __len__(self) -> int:
        return len(self._ids) + len(self._perishable) + len(self._newest)

    def ids(self) -> Iterator[Id]:
        """In ascending order."""
        return iter(self._newest.values()) if self._newest else merge(self._ids, self._perishable)

    def expire(self, now: int) -> None:
        """Drop what is too old, and what has expired."""
        while len(self) and self._ages_at() <= now:
            self._drop()
        if max(self._ends, self._scan_at) > now:
            return
        ends, kept = ENDLESS, self._store.kept
        for key, number in list(self._newest.items()):
            if kept[number].has_expired(now):
                self._remove(key)
        left = list[Id]()
        for number in self._perishable:
            if kept[number].has_expired(now):
                self._let_go(number)
            else:
                left.append(number)
        self._perishable = Ids(left)
        for number in (*left, *self._newest.values()):
            if kept[number].expires:
                ends = min(ends, kept[number].came + kept[number].stored.notification.expires_ns)
        self._ends, self._scan_at = ends, now + SCAN_NS

    def expires_at(self) -> int:
        """When the first notification is too old, or may have expired; there must be one."""
        return min(self._ages_at(), max(self._ends, self._scan_at))

    def _ages_at(self) -> int:
        return self._store.kept[self._oldest()].came + self._age_ns + 1

    def _oldest(self) -> Id:
        if self._newest:
            return next(iter(self._newest.values()))
        return min(one.first() for one in (self._ids, self._perishable) if len(one))

    def _counted(self, expire: bool) -> int:
        """How many there are of those that expire, or of the others."""
        newest = self._newest_expire if expire else len(self._newest) - self._newest_expire
        return newest + len(self._perishable if expire else self._ids)

    def _drop(self) -> None:
        """The oldest."""
        self._drop_of(self._store.kept[self._oldest()].expires)

    def _drop_of(self, expire: bool) -> None:
        """The oldest of those that expire, or of the others."""
        if self._newest:
            kept = self._store.kept
            self._remove(next(k for k, one in self._newest.items() if kept[one].expires == expire))
        else:
            self._let_go((self._perishable if expire else self._ids).popleft())

    def clear(self) -> None:
        while len(self):
            self._drop()
        self._store.memory.forget(self)
