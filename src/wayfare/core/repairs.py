"""Repairs: a broker sends entries that its neighbours should have known before.

Until they have crossed the tree, notifications may be lost, so each neighbour that takes subscriptions of a repair
answers with a `Gap`. A repair has a number. Under it the broker remembers the origins: the sessions whose filters are
repaired, and the repairs of neighbours that this one follows from. The answer goes back to them, and to nobody else.

An advertisement that is repaired brings subscriptions back, and these are a repair, too. Its origins are those who want
something of what is advertised.

With the number `EVERYBODY` the answer goes to everybody who hears something from its direction: a link began from
nothing. So does the answer to a number that is forgotten.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Self

import msgspec

from wayfare.core.messages import ONLY_NOTIFICATIONS, BrokerId, ClientId

EVERYBODY = ONLY_NOTIFICATIONS
REPAIRS_MAX = 1_000  # whose origins a broker remembers; the oldest are forgotten
ORIGINS_MAX = 100  # of one repair; if there are more, the answer goes to everybody


class Origins(msgspec.Struct, frozen=True, array_like=True):
    """The sessions and the neighbours' repairs that the answer to a repair is for."""

    sessions: tuple[tuple[ClientId, int], ...] = ()  # each with the epoch at which it was opened
    repairs: tuple[tuple[BrokerId, int], ...] = ()  # neighbours, each with its own number

    def __or__(self, other: Self) -> Origins:
        sessions, repairs = {*self.sessions, *other.sessions}, {*self.repairs, *other.repairs}
        return Origins(tuple(sorted(sessions)), tuple(sorted(repairs)))

    def __len__(self) -> int:
        return len(self.sessions) + len(self.repairs)

    def without(self, neighbour: BrokerId) -> Origins:
        """The same, if a neighbour does not know its numbers any more."""
        repairs = ((n, EVERYBODY if n == neighbour else number) for n, number in self.repairs)
        return Origins(self.sessions, tuple(sorted(set(repairs))))


class Repairs:
    """The repairs of one broker."""

    def __init__(self) -> None:
        self.last = EVERYBODY  # the number of the latest
        # Neighbours whose next update is part of a repair, and its number.
        self.pending: dict[BrokerId, int] = {}
        # While a journal is played again, nobody knows whether all of a repair was sent.
        self.is_replaying = False
        self._origins: dict[int, Origins] = {}  # by number, the oldest first

    def begin(self, origins: Origins) -> int:
        """Number a new repair."""
        self.last += 1
        self._remember(self.last, origins)
        return self.last

    def mark(self, neighbours: Iterable[BrokerId], number: int) -> None:
        """The next update to these neighbours is part of a repair, beside others that they wait for."""
        for neighbour in neighbours:
            earlier = self.pending.get(neighbour, number)
            self.pending[neighbour] = number if earlier == number else self._unite(earlier, number)

    def _unite(self, earlier: int, later: int) -> int:
        """The number of both repairs, which leave in the same updates."""
        first, second = self.origins(earlier), self.origins(later)
        if first is None or second is None:
            return EVERYBODY
        self._remember(later, first | second)
        return later if later in self._origins else EVERYBODY

    def _remember(self, number: int, origins: Origins) -> None:
        self._origins[number] = origins
        if len(origins) > ORIGINS_MAX:
            del self._origins[number]
        if len(self._origins) > REPAIRS_MAX:
            del self._origins[next(iter(self._origins))]

    def origins(self, number: int) -> Origins | None:
        """The origins of a repair; None: everybody."""
        return self._origins.get(number)

    def end(self, but: Container[BrokerId]) -> None:
        """All updates of pending repairs were sent, but for those to some neighbours."""
        if not self.is_replaying:
            self.pending = {n: number for n, number in self.pending.items() if n in but}

    def start_over(self, neighbour: BrokerId) -> None:
        """The link to a neighbour begins from nothing: numbers of either end mean nothing to the other."""
        self.pending.pop(neighbour, None)
        for number, origins in self._origins.items():
            self._origins[number] = origins.without(neighbour)

    def known(self) -> list[tuple[int, Origins]]:
        return list(self._origins.items())

    def load(self, last: int, known: Iterable[tuple[int, Origins]]) -> None:
        self.last = last
        self._origins.update(known)
