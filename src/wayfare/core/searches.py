"""The past that a virtual client fetches, because nobody has listened for its client here.

    client       its new broker                    others
      | Attach -->|  reads its own store             |
      |           |---- Recall --------------------->|  the last broker, those next to it, those of the place
      |           |---- PastRequest ---------------->|  towards the publishers, if brokers remember
      |           |<--- Recalled, PastReply ---------|
      |<-- Here --|  the past, and then what came meanwhile

The last broker owes what it kept, and its client is told if that is missing. What the others have is there by
chance: it was kept for other clients, or comes from what brokers remember anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wayfare.core.filters import Filter
from wayfare.core.history import Kept as Put
from wayfare.core.history import Limits
from wayfare.core.memory import BODY_BYTES, ENTRY_BYTES, Memory
from wayfare.core.messages import BrokerId, ClientId, Terms
from wayfare.core.sessions import PastQuery
from wayfare.core.templates import Template

RECALLS_MAX = 16  # brokers that are asked for one arrival
ANY = BrokerId("")  # that an earlier process has asked


class Query:
    """What was asked of the brokers of publishers."""

    __slots__ = ("past", "reports", "terms")

    def __init__(self, past: PastQuery, terms: Terms | None, *, reports: bool) -> None:
        self.past, self.terms = past, terms
        self.reports = reports  # whether the client is told if the answer is incomplete


class Search:
    """What one virtual client waits for."""

    __slots__ = ("began", "brokers", "found", "lost", "promised", "queries", "since")

    def __init__(self, began: int = 0) -> None:
        self.began = began  # what came since then may be of the present
        self.brokers: dict[BrokerId, bool] = {}  # whose reply is to come; whether it owes that
        self.queries: dict[int, Query] = {}
        self.since: dict[Template, int] = {}  # since when the past of these is wanted
        self.promised: dict[Template, None] = {}  # ... and its client is told if that is incomplete
        self.found: list[Put] = []  # what was recalled
        self.lost = ""  # why something that was owed is missing

    @property
    def is_owed(self) -> bool:
        return any(self.brokers.values())

    @property
    def is_complete(self) -> bool:
        """Whether all that was to come has come."""
        return not self.brokers and all(one.past.complete for one in self.queries.values())

    @property
    def falls_short(self) -> bool:
        """Whether the client is to be told that it did not get all that it asked for."""
        return any(one.reports and not one.past.complete for one in self.queries.values())

    def fetched(self) -> Iterator[Put]:
        for query in self.queries.values():
            yield from query.past.found.values()

    def give_up(self) -> None:
        """Wait no longer."""
        self.brokers.clear()
        for query in self.queries.values():
            query.past.give_up()

    def doubt(self) -> None:
        """Something is lost between brokers: it may have been a request, or a reply."""
        for query in self.queries.values():
            query.past.complete &= not query.past.left

    def hold(self, memory: Memory) -> None:
        for stored, _ in self.fetched():
            memory.keep(stored)

    def let_go(self, memory: Memory) -> None:
        for stored, _ in self.fetched():
            memory.let_go(stored)

    def shed(self, memory: Memory, why: str) -> int:
        """Drop the older half of what has come; returns how many that were."""
        half = (len(self.found) + 1) // 2
        if half:
            self.found = sorted(self.found, key=lambda one: one[1])[half:]
            self.lost = self.lost or why
        for query in self.queries.values():
            dropped = query.past.shorten(len(query.past.found) // 2, query.past.bytes)
            query.past.complete &= not dropped
            half += len(dropped)
            for stored in dropped:
                memory.let_go(stored)
        return half

    def measure(self) -> int:
        kept = [*self.found, *self.fetched()]
        return sum(stored.size + BODY_BYTES + ENTRY_BYTES for stored, _ in kept)


def asked_of_publishers(
    wanted: Mapping[Filter, Terms | None], limits: Limits
) -> tuple[Filter, Terms | None]:
    """One request for all that a client wants of the past: the terms count here in any case."""
    filter = Filter.of(part for one in wanted for part in one.conjunctions)
    all_terms = list(dict.fromkeys(wanted.values()))
    if len(all_terms) == len(wanted) == 1 and all_terms[0] is not None:
        return filter, all_terms[0]
    if any(terms is not None for terms in all_terms):
        return filter, None
    return filter, Terms(last=limits.buffer_count * len(wanted))


def lowest(kept: list[Put]) -> dict[ClientId, int]:
    """The earliest number of every publisher."""
    found: dict[ClientId, int] = {}
    for stored, _ in kept:
        one = stored.notification
        found[one.publisher] = min(one.number, found.get(one.publisher, one.number))
    return found
