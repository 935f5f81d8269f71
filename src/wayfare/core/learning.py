"""What a broker learns of where its clients go: counts, and how likely a next broker has to be.

    arrival      expected(previous, client) -> nlb of this client
    departure    went(previous, client, to): it is counted, and the least share is adjusted

The contexts are those of `prediction`, of this broker alone. Sets are sized by one share: a broker is expected
if it is at least that likely. After each departure this share falls if the client was not expected where it
went, and rises a little if it was, so that the wanted part of the departures is expected in the long run,
however clients move (adaptive conformal prediction). Whether the ways of single clients foretell more than
those of all clients is measured as well: only then they are used.

Everything is bounded: contexts, next brokers of each, and counts, which are halved when they are large, so that
new habits replace old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log

import msgspec

from wayfare.core.messages import LISTENERS_MAX, BrokerId, ClientId
from wayfare.core.prediction import (
    CLIENT_WORTH,
    EVERYBODY,
    PREVIOUS_WORTH,
    Movement,
    backed_off,
    likeliest_first,
)

COVERAGE = 0.95
CONTEXTS_MAX = 1_024  # previous brokers of a broker
CLIENT_CONTEXTS_MAX = 10_000  # ... of single clients
NEXT_MAX = 64  # brokers that are counted in a context
COUNT_MAX = 1_000  # departures that are counted in a context, before they are halved
STEP = 0.02  # by which the least share is adjusted, as a logarithm, for each departure
LEAST = (0.001, 0.5)  # within which it stays
MEMORY = 1_000  # departures after which a gain counts e times less
UNSEEN = 0.001  # the share of a broker to which no client ever went

Context = tuple[ClientId, BrokerId | None]  # client, previous broker; None: any
Counts = dict[BrokerId, int]
Rows = list[tuple[ClientId, BrokerId | None, Counts]]


class Saved(msgspec.Struct, array_like=True, frozen=True):
    """A learner as a value; contexts in the order of their last use."""

    least: float
    gain: float
    rows: Rows


class Learner:
    """What one broker has counted."""

    def __init__(self, coverage: float = COVERAGE, order: int = 2, per_client: bool = True) -> None:
        self.coverage, self.order, self.per_client = coverage, order, per_client
        self.least = min(max(1 - coverage, LEAST[0]), LEAST[1])
        # Of the ways of single clients: how much likelier they made what happened, as a logarithm.
        self.gain = 0.0
        self._seen: dict[Context, Counts] = {(EVERYBODY, None): {}}
        self._clients: dict[Context, Counts] = {}  # the one that was not used for longest is first

    def begin(self, movement: Movement, broker: BrokerId, least: float) -> None:
        """Take over what a mined model has counted at this broker."""
        self.least = min(max(least, LEAST[0]), LEAST[1])
        for one in movement.moves:
            if one.broker == broker:
                self._count(one.previous, one.client, one.to, one.count)
        for counts in (*self._seen.values(), *self._clients.values()):
            _halve(counts)

    def begin_near(self, near: Iterable[BrokerId]) -> None:
        """Take over a map: one client has gone to each of these brokers."""
        for to in near:
            self._add(self._seen, (EVERYBODY, None), to, 1, CONTEXTS_MAX)

    def expected(self, previous: BrokerId, client: ClientId) -> list[BrokerId]:
        """nlb: where this client may go, the likeliest first."""
        everybody, own = self._shares(previous, client)
        shares = own if self.gain > 0 else everybody
        likely = {to: share for to, share in shares.items() if share >= self.least}
        return [to for to, _ in likeliest_first(likely)[:LISTENERS_MAX]]

    def went(self, previous: BrokerId, client: ClientId, to: BrokerId, foreseen: bool) -> None:
        """A client that came from `previous` has gone to `to`, and was expected there or not."""
        if self._own_context(previous, client) in self._clients:
            everybody, own = self._shares(previous, client)
            better = log(own.get(to, UNSEEN) / everybody.get(to, UNSEEN))
            self.gain += better - self.gain / MEMORY
        by = STEP * ((1 - self.coverage) if foreseen else -self.coverage)
        self.least = min(max(self.least * exp(by), LEAST[0]), LEAST[1])
        for counts in self._count(previous, client, to, 1):
            _halve(counts)

    def _shares(
        self, previous: BrokerId, client: ClientId
    ) -> tuple[Mapping[BrokerId, float], Mapping[BrokerId, float]]:
        """By the ways of all clients, and by those of this client, too."""
        everybody = backed_off(self._seen[EVERYBODY, None], 0.0, {})
        if self.order > 1:
            counts = self._seen.get((EVERYBODY, previous), {})
            everybody = backed_off(counts, PREVIOUS_WORTH, everybody)
        counts = self._clients.get(self._own_context(previous, client), {})
        return everybody, backed_off(counts, CLIENT_WORTH, everybody)

    def _own_context(self, previous: BrokerId, client: ClientId) -> Context:
        return client, previous if self.order > 1 else None

    def _count(
        self, previous: BrokerId, client: ClientId, to: BrokerId, count: int
    ) -> list[Counts]:
        """Count it in all its contexts; the counts that have grown by that."""
        known = previous if self.order > 1 else None
        grown = [self._add(self._seen, (EVERYBODY, None), to, count, CONTEXTS_MAX)]
        if known is not None:
            grown.append(self._add(self._seen, (EVERYBODY, known), to, count, CONTEXTS_MAX))
        if self.per_client and client != EVERYBODY:
            own = self._own_context(previous, client)
            grown.append(self._add(self._clients, own, to, count, CLIENT_CONTEXTS_MAX))
        return grown

    def _add(
        self, seen: dict[Context, Counts], context: Context, to: BrokerId, count: int, most: int
    ) -> Counts:
        counts = seen[context] = seen.pop(context, {})  # it is the last one now
        if to not in counts and len(counts) >= NEXT_MAX:
            del counts[min(counts, key=lambda one: (counts[one], one))]
        counts[to] = counts.get(to, 0) + count
        if len(seen) > most:
            del seen[next(one for one in seen if one != (EVERYBODY, None))]
        return counts

    # As a value

    def save(self) -> Saved:
        both = (*self._seen.items(), *self._clients.items())
        rows = [(client, previous, dict(counts)) for (client, previous), counts in both]
        return Saved(self.least, self.gain, rows)

    def load(self, saved: Saved) -> None:
        self.least, self.gain = saved.least, saved.gain
        self._seen, self._clients = {}, {}
        for client, previous, counts in saved.rows:
            (self._clients if client else self._seen)[client, previous] = dict(counts)
        self._seen.setdefault((EVERYBODY, None), {})


class Mined:
    """In place of a learner: what a mined model foretells at one broker, and nothing is counted."""

    def __init__(self, movement: Movement, broker: BrokerId, least: float) -> None:
        self._movement, self._broker, self._least = movement, broker, least

    def expected(self, previous: BrokerId, client: ClientId) -> list[BrokerId]:
        """As a learner says it, by the contexts of the model."""
        likely = self._movement.likely(self._broker, previous, client)
        return [to for to, share in likely if share >= self._least][:LISTENERS_MAX]

    def went(self, previous: BrokerId, client: ClientId, to: BrokerId, foreseen: bool) -> None:
        """The model stays as it is."""

    def save(self) -> None:
        """The model is in its file."""

    def load(self, saved: Saved) -> None:
        """What was learnt earlier does not count."""


def _halve(counts: Counts) -> None:
    """Make room for what is counted from now on, which so counts more than what was counted long ago."""
    while sum(counts.values()) > COUNT_MAX:
        for to, count in list(counts.items()):
            counts[to] = count // 2
            if not counts[to]:
                del counts[to]
