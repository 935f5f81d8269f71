"""What a client proxy keeps for its client, and what it had to drop."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wayfare.service.messages import PUBLICATION_BYTES_MAX, size_of
from wayfare.service.system import Id, Publication

BUFFER_MAX = 100_000  # publications for one client
BUFFER_BYTES_MAX = 64 * 1024 * 1024


class Limits(msgspec.Struct, frozen=True):
    """What a proxy keeps for one client at most, whatever the client wants."""

    count: int = BUFFER_MAX
    size: int = BUFFER_BYTES_MAX


DEFAULT_LIMITS = Limits()


class Kept(msgspec.Struct, frozen=True, gc=False):
    number: int
    arrived: int
    publication: Publication


class Buffer:
    """Publications in the order of their arrival, numbered from 1."""

    __slots__ = ("_ids", "copies", "kept", "last", "limits", "lost", "size")

    def __init__(self, limits: Limits, copies: bool) -> None:
        self.limits = limits
        self.copies = copies  # keep copies of one publication
        self.kept: dict[int, Kept] = {}
        self.last = 0
        self.size = 0
        self.lost = 0  # dropped for the limits, since somebody was told
        self._ids: set[Id] = set()

    def add(self, publication: Publication, now: int) -> tuple[Kept | None, list[int]]:
        """What is kept now, if it is no copy; and the numbers of what had to go for it."""
        if size_of(publication) > PUBLICATION_BYTES_MAX:  # nobody could download it
            self.lost += 1
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
            dropped.append(next(iter(self.kept)))
            self._remove(dropped[-1])
        self.lost += len(dropped)
        return kept, dropped

    def put(self, kept: Kept) -> None:
        """As it was, from a disk."""
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
