"""What a client proxy keeps for its client, and what it had to drop."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wayfare.service.messages import PUBLICATION_BYTES_MAX, SECOND_NS, Terms, size_of
from wayfare.service.system import Id, Publication

BUFFER_MAX = 100_000  # publications for one client
BUFFER_BYTES_MAX = 64 * 1024 * 1024
ALL_BYTES_MAX = 1024 * 1024 * 1024  # for all clients: then the fullest buffer drops its oldest
AWAY_NS_MAX = 30 * 24 * 3600 * SECOND_NS
LEASE_NS_MAX = 24 * 3600 * SECOND_NS
DROPPED_MAX = 10_000  # the first that were dropped, of which it is known whether they were heard


class Limits(msgspec.Struct, frozen=True):
    """What a proxy keeps for one client at most, whatever the client wants; and for all of them."""

    count: int = BUFFER_MAX
    size: int = BUFFER_BYTES_MAX
    all_size: int = ALL_BYTES_MAX
    away_ns: int = AWAY_NS_MAX
    lease_ns: int = LEASE_NS_MAX

    def within(self, terms: Terms) -> Terms:
        """As much of it as is granted."""
        return msgspec.structs.replace(
            terms,
            away_ns=min(terms.away_ns, self.away_ns),
            lease_ns=min(terms.lease_ns, self.lease_ns),
        )


DEFAULT_LIMITS = Limits()


class Kept(msgspec.Struct, frozen=True, gc=False):
    number: int
    arrived: int
    publication: Publication


class Buffer:
    """Publications in the order of their arrival, numbered from 1."""

    __slots__ = ("_dropped", "_first", "_ids", "copies", "kept", "last", "limits", "lost", "size")

    def __init__(self, limits: Limits, copies: bool) -> None:
        self.limits = limits
        self.copies = copies  # keep copies of one publication
        self.kept: dict[int, Kept] = {}
        self._first = 0  # none that is kept has a lower number
        self.last = 0
        self.size = 0
        self.lost = 0  # dropped for the limits, since somebody was told
        self._ids: set[Id] = set()
        # The first of those: sender and number; of what has no id, when it came.
        self._dropped: list[tuple[str, int]] = []

    def add(self, publication: Publication, now: int) -> tuple[Kept | None, list[int]]:
        """What is kept now, if it is no copy; and the numbers of what had to go for it."""
        if size_of(publication) > PUBLICATION_BYTES_MAX:  # nobody could download it
            self._lose(publication, now)
            return None, []
        if not self.copies and publication.id is not None:
            if publication.id in self._ids:
                return None, []
            self._ids.add(publication.id)
        self.last += 1
        kept = Kept(self.last, now, publication)
        self.put(kept)
        dropped: list[int] = []
        while len(self.kept) > self.limits.count or self.size > self.limits.size:
            dropped.append(self._lose_oldest())
        return kept, dropped

    def shrink(self) -> list[int]:
        """Drop some of the oldest; their numbers."""
        return [self._lose_oldest() for _ in range(1 + len(self.kept) // 8)] if self.kept else []

    def _lose_oldest(self) -> int:
        while self._first not in self.kept:  # a look at the dict itself would pass all that is gone
            self._first += 1
        oldest = self.kept[self._first]
        self._lose(oldest.publication, oldest.arrived)
        self._remove(oldest.number)
        return oldest.number

    def _lose(self, publication: Publication, arrived: int) -> None:
        self.lost += 1
        id = publication.id
        if len(self._dropped) < DROPPED_MAX:
            self._dropped.append(("", arrived) if id is None else (id.sender, id.number))

    def find(self, heard: Mapping[str, int], before: int = 0) -> bool:
        """What was dropped is not lost if the client has heard it. Whether there was something."""
        marks = {**heard, "": before - 1}
        missing = [one for one in self._dropped if one[1] > marks.get(one[0], -1)]
        found = len(self._dropped) - len(missing)
        self.lost -= found
        self._dropped = missing
        return found > 0

    def tell_lost(self, heard: Mapping[str, int]) -> int:
        """For the client: what it is told of is not found any more."""
        self.find(heard)
        self._dropped.clear()
        return self.lost

    def put(self, kept: Kept) -> None:
        """As it was, from a disk."""
        self._first = min(self._first, kept.number) if self.kept else kept.number
        self.kept[kept.number] = kept
        self.last = max(self.last, kept.number)
        self.size += size_of(kept.publication)
        if kept.publication.id is not None:
            self._ids.add(kept.publication.id)

    def drop_upto(self, number: int) -> list[int]:
        return self._drop([one for one in self.kept if one <= number])

    def drop_heard(self, heard: Mapping[str, int], before: int) -> list[int]:
        """What the client has heard; of what has no id, what came before this time."""
        return self._drop(
            [one.number for one in self.kept.values() if _is_heard(one, heard, before)]
        )

    def drop_nameless(self, number: int) -> list[int]:
        """What has no id, up to this number."""
        return self._drop(
            [n for n, one in self.kept.items() if n <= number and one.publication.id is None]
        )

    def since(self, heard: Mapping[str, int]) -> list[Kept]:
        return [one for one in self.kept.values() if not _is_heard(one, heard, 0)]

    def _drop(self, numbers: list[int]) -> list[int]:
        for number in numbers:
            self._remove(number)
        return numbers

    def _remove(self, number: int) -> None:
        publication = self.kept.pop(number).publication
        self.size -= size_of(publication)
        if publication.id is not None:
            self._ids.discard(publication.id)


def _is_heard(kept: Kept, heard: Mapping[str, int], before: int) -> bool:
    id = kept.publication.id
    if id is None:
        return kept.arrived < before
    return id.number <= heard.get(id.sender, -1)
