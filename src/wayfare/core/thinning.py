"""What clients want of what they missed: their terms, applied in slices.

    client                    broker
      |-- Attach(terms) ------->|  a slice of what was kept is compared with the filters
      |                         |  ... another one with every tick; what comes meanwhile waits behind it
      |<-- Deliver -------------|  all was compared: what the terms leave is sent, then what came since

As many filters as a client may have, times as much as is kept for it, take seconds. What was kept stays where it is
until all of it was compared, so nothing is lost if the connection breaks, or the session goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic

from msgspec.structs import replace

from wayfare.core.effects import Effect
from wayfare.core.filters import Filter
from wayfare.core.history import (
    Kept,
    Limits,
    Loss,
    NotificationKey,
    Q,
    Stored,
    has_expired,
    key_of,
    nullifies,
)
from wayfare.core.long_texts import LONG_TEXTS, SCANNED, LongText
from wayfare.core.matching import FilterIndex
from wayfare.core.messages import Notification, Nullify, Terms
from wayfare.core.predicates import Attributes
from wayfare.core.preparing import Preparation

# What it takes, in units of about a microsecond
FILED_UNITS = 30  # to file a filter, or to take it out again
FILTERS_PER_UNIT = 8  # to look for those that match
FOUND_PER_UNIT = 4  # to count that they do
PASSED_PER_UNIT = 16  # to apply the terms of a filter to what was kept
TEXT_UNITS = 1_000  # of one slice of the patterns in a long text
ENDLESS_UNITS = 1 << 62
LIMITS = Limits()


class Thinning(Generic[Q]):
    """What the terms of many filters leave of much that was kept: found in slices."""

    __slots__ = (
        "_candidates",
        "_chosen",
        "_columns",
        "_index",
        "_kept",
        "_left",
        "_limits",
        "_live",
        "_moved",
        "_needs_all",
        "_now",
        "_nullifying",
        "_running",
        "_strict",
        "_wanted",
        "_whens",
        "found",
    )

    def __init__(
        self,
        kept: Sequence[Q],
        wanted: Mapping[Filter, Terms | None],
        now: int,
        limits: Limits = LIMITS,
        *,
        moved: bool = False,
        strict: bool = False,
        candidates: Mapping[Stored, Container[Filter]] | None = None,
        live: Collection[Stored] = (),
    ) -> None:
        """What has expired is of no use to anybody; nor is what a local subscription asks for, if the client `moved`.

        If no filter has terms, all of the rest is wanted, unless this is `strict`: then only what matches. Of the
        `candidates`, only what matches one of the given filters. Terms do not apply to what is `live`.
        """
        self._kept: list[Q] = [
            (one, put)
            for one, put in kept
            if isinstance(one, Loss) or not has_expired(one.notification, put, now)
        ]
        self._wanted = dict(wanted)  # the client may subscribe to something else meanwhile
        self._now, self._limits = now, limits
        self._moved, self._strict = moved, strict
        self._candidates, self._live = candidates or {}, live
        self._index: FilterIndex[Filter] = FilterIndex()
        self._whens: FilterIndex[Nullify] = FilterIndex()
        # What is compared is the newest first: so filters that want no more are taken out of the index.
        self._left: dict[Filter, int] = {}  # how many more they want, if their terms say only that
        self._columns: dict[Filter, bytearray] = {}  # bits: what filters with other terms match
        self._nullifying: dict[Nullify, bytearray] = {}  # bits: what nullifies what was before
        self._chosen = bytearray(len(self._kept))
        self.found: dict[Stored, None] = {}  # the candidates that match
        self._needs_all = bool(live or candidates)  # also of filters whose terms want no more
        self._running = self._run()

    def go_on(self, units: int) -> bool:
        """Spend so many units, or a bit more; True if all is done."""
        for spent in self._running:
            units -= spent
            if units <= 0:
                return False
        return True

    def chosen(self) -> list[Q]:
        """What is wanted, in the same order."""
        return [one for one, is_chosen in zip(self._kept, self._chosen, strict=True) if is_chosen]

    def unwanted(self, kept: Sequence[Q]) -> set[Stored]:
        """What is not wanted, or has expired, of what was given: for membership only."""
        wanted = {one for one, _ in self.chosen()}
        return {one for one, _ in kept if isinstance(one, Stored) and one not in wanted}

    def _run(self) -> Iterator[int]:
        if not self._strict and not any(self._wanted.values()):
            self._chosen = bytearray(b"\1" * len(self._kept))
            return
        if not self._kept:
            return
        yield from self._file()
        for at in reversed(range(len(self._kept))):
            one = self._kept[at][0]
            if isinstance(one, Loss) or one.ask:
                self._chosen[at] = 1
            elif len(self._index):
                yield from self._compare(at, one)
        for filter, column in self._columns.items():
            yield from self._choose(self._wanted[filter], column)

    def _file(self) -> Iterator[int]:
        """File the filters, by what their terms say."""
        size = len(self._kept) // 8 + 1
        for filter, terms in self._wanted.items():
            if terms is not None and self._is_needless(terms):
                continue
            self._index.add(filter, filter)
            yield FILED_UNITS
            if terms is None:
                continue
            nullify = terms.nullify
            if terms.younger_ns is not None or terms.names or nullify is not None:
                self._columns[filter] = bytearray(size)
            elif terms.last is not None:
                self._left[filter] = terms.last
            if nullify is not None and nullify not in self._nullifying:
                self._nullifying[nullify] = bytearray(size)
                self._whens.add(nullify, nullify.when)
                yield FILED_UNITS

    def _is_needless(self, terms: Terms) -> bool:
        """Whether nothing is wanted of what a filter with these terms matches."""
        return (terms.local and self._moved) or (terms.last == 0 and not self._needs_all)

    def _compare(self, at: int, one: Stored) -> Iterator[int]:
        attributes = one.notification.attributes
        known: dict[str, LongText] = {}
        yield from self._prepare(attributes, known)
        LONG_TEXTS.begin(known)
        try:
            found = self._index.find(attributes)
            for nullify in self._whens.find(attributes):
                _mark(self._nullifying[nullify], at)
        finally:
            LONG_TEXTS.end()
        only = self._candidates.get(one)
        if found and (only is None or any(filter in only for filter in found)):
            if self._candidates:
                self.found[one] = None
            if one in self._live:
                self._chosen[at] = 1
            else:
                for filter in self._take(at, found):
                    self._index.remove(filter)
                    yield FILED_UNITS
        units = (len(self._index) + len(self._whens)) // FILTERS_PER_UNIT
        yield 1 + units + len(found) // FOUND_PER_UNIT + one.size // SCANNED

    def _prepare(self, attributes: Attributes, known: dict[str, LongText]) -> Iterator[int]:
        """Look for the patterns of all filters in long texts."""
        for index in (self._index, self._whens):
            if index.patterns:
                texts = Preparation(attributes, index.patterns, self._limits, known)
                spent, is_done = 0, False
                while not is_done:
                    is_done = texts.go_on(TEXT_UNITS) > 0
                    before, spent = spent, sum(one.units() for one in known.values())
                    yield max(TEXT_UNITS if not is_done else 0, spent - before)

    def _take(self, at: int, found: Sequence[Filter]) -> list[Filter]:
        """These filters match; returns those that want no more."""
        left, columns, full = self._left, self._columns, list[Filter]()
        is_chosen = False
        for filter in found:
            more = left.get(filter)
            if more is not None:
                if more:
                    is_chosen = True
                    left[filter] = more - 1
                if more == 1 and not self._needs_all:
                    full.append(filter)
            elif (column := columns.get(filter)) is not None:
                _mark(column, at)
            else:
                is_chosen = True
        if is_chosen:
            self._chosen[at] = 1
        return full

    def _choose(self, terms: Terms | None, column: bytearray) -> Iterator[int]:
        """Apply the terms of a filter to all that it matches."""
        assert terms is not None
        mine = [at for at in range(len(self._kept)) if column[at >> 3] >> (at & 7) & 1]
        nullifying = None if terms.nullify is None else self._nullifying[terms.nullify]
        for at in _chosen(self._kept, mine, terms, self._now, nullifying):
            self._chosen[at] = 1
        yield 1 + len(self._kept) // PASSED_PER_UNIT + len(mine)


def _mark(column: bytearray, at: int) -> None:
    column[at >> 3] |= 1 << (at & 7)


def thinned(
    kept: Sequence[Q], wanted: Mapping[Filter, Terms | None], now: int, *, moved: bool
) -> list[Q]:
    """What a client wants to have of what it missed, all at once."""
    thinning = Thinning(kept, wanted, now, moved=moved)
    thinning.go_on(ENDLESS_UNITS)
    return thinning.chosen()


def past_wanted(past: list[Kept], terms: Terms | None, now: int) -> list[Kept]:
    """What a client wants to have of what was published before it subscribed."""
    return past if terms is None else _left_by(terms, past, now, past=True)


def past_to_send(past: list[Kept], terms: Terms | None, now: int) -> list[Kept]:
    """What a broker elsewhere has to know of this to find out what its client wants of all brokers' past.

    A notification that nullifies others goes along: these may be remembered by other brokers.
    """
    if terms is None:
        return past
    if terms.nullify is not None:
        terms = replace(terms, key=None, last=None)
    return _left_by(terms, past, now, past=False)


def _left_by(terms: Terms, kept: list[Kept], now: int, *, past: bool) -> list[Kept]:
    nullifying = None
    if (nullify := terms.nullify) is not None:
        nullifying = bytearray(len(kept) // 8 + 1)
        for at, one in enumerate(kept):
            if nullifies(_notification(one), nullify):
                _mark(nullifying, at)
    everything = list(range(len(kept)))
    return [kept[at] for at in _chosen(kept, everything, terms, now, nullifying, past=past)]


def _chosen(
    kept: Sequence[Q],
    mine: list[int],
    terms: Terms,
    now: int,
    nullifying: bytearray | None,
    *,
    past: bool = False,
) -> list[int]:
    """Which ones the terms of a filter leave of those that it matches."""
    if terms.nullify is not None and nullifying is not None:
        mine = _not_nullified(kept, mine, terms.nullify.same, nullifying, past)
    if terms.younger_ns is not None:
        mine = [at for at in mine if now - kept[at][1] <= terms.younger_ns]
    if names := terms.names:
        # What has no such attribute is like nothing else.
        newest = {key_of(_notification(kept[at]), names) or (at,): at for at in mine}
        mine = sorted(newest.values())
    if terms.last is not None:
        mine = mine[max(0, len(mine) - terms.last) :]
    return mine


def _not_nullified(
    kept: Sequence[Q], mine: list[int], same: Sequence[str], nullifying: bytearray, past: bool
) -> list[int]:
    """Without those that a later one nullifies.

    The nullifying one stays, because the client may have had an earlier one; but not of the past before it subscribed.
    """
    groups: dict[NotificationKey | None, list[int]] = {}  # None: nothing nullifies these
    for at in mine:
        group = key_of(_notification(kept[at]), same)
        is_nullifying = nullifying[at >> 3] >> (at & 7) & 1
        if is_nullifying and group is not None:
            groups.pop(group, None)
        if not (is_nullifying and past):
            groups.setdefault(group, []).append(at)
    return sorted(at for group in groups.values() for at in group)


def _notification(kept: Q) -> Notification:
    assert isinstance(kept[0], Stored)
    return kept[0].notification


Then = Callable[[int], list[Effect]]  # what follows when all is done


class Thinnings:
    """What is thinned at one broker, slice by slice."""

    __slots__ = ("_limits", "_pending")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # For whom: a session by its place, or a virtual client by its name. The next one first.
        self._pending: dict[Hashable, tuple[Thinning[Any], Then]] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, owner: object) -> bool:
        return owner in self._pending

    def is_done(self, thinning: Thinning[Q]) -> bool:
        """Whether the first slice is all of it."""
        return thinning.go_on(self._limits.slice_units)

    def go_on_with(self, owner: Hashable, thinning: Thinning[Q], then: Then) -> None:
        """Let it go on, later, in place of what was thinned for this owner before."""
        self._pending.pop(owner, None)
        self._pending[owner] = thinning, then

    def stop(self, owner: Hashable) -> None:
        self._pending.pop(owner, None)

    def go_on(self, now: int) -> list[Effect]:
        """Do a slice for one of them."""
        for owner, (thinning, then) in self._pending.items():
            del self._pending[owner]
            if thinning.go_on(self._limits.slice_units):
                return then(now)
            self._pending[owner] = thinning, then  # behind the others
            break
        return []
