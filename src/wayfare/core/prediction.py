"""Where clients go from a broker, learnt from where they went before.

    first order     from this broker
    second order    ... by whom it came from; START: its journey begins here
    per client      ... by who it is

A longer context has seen fewer moves. So to its own it adds those of the shorter one, as if they were
some few: with none of its own it says what the shorter one says, with many it decides alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from wayfare.core.messages import BrokerId, ClientId
from wayfare.errors import ModelError

FORMAT = "wayfare movement"
VERSION = 1
START = BrokerId("")  # in place of the previous broker: it comes from nowhere
EVERYBODY = ClientId("")
JOURNEY_NS = 600 * 10**9  # who stays longer has arrived, and begins another journey
PREVIOUS_WORTH = 2.0  # moves that first order counts as, beside those of second order
CLIENT_WORTH = 60.0  # moves that everybody counts as, beside those of one client

Context = tuple[ClientId, BrokerId | None, BrokerId]  # client, previous broker (None: any), broker


class Moves(msgspec.Struct, frozen=True, order=True, gc=False):
    """So many moves of one kind."""

    client: ClientId
    previous: BrokerId
    broker: BrokerId
    to: BrokerId
    count: int


class Movement:
    """A model of movement: all that was counted, and what follows from it."""

    def __init__(
        self, moves: Iterable[Moves], order: int = 2, journey_ns: int = JOURNEY_NS
    ) -> None:
        self.order = order
        self.journey_ns = journey_ns
        self.moves = sorted(moves)
        self._seen: dict[Context, dict[BrokerId, int]] = {}
        for one in self.moves:
            for client in dict.fromkeys((EVERYBODY, one.client)):
                self._add((client, None, one.broker), one)
                self._add((client, one.previous, one.broker), one)

    def _add(self, context: Context, one: Moves) -> None:
        counts = self._seen.setdefault(context, {})
        counts[one.to] = counts.get(one.to, 0) + one.count

    def brokers(self) -> list[BrokerId]:
        """Those from which somebody went away."""
        return [
            broker for client, previous, broker in self._seen if not client and previous is None
        ]

    def previous(self, broker: BrokerId | None, stayed_ns: int) -> BrokerId:
        """What counts as the previous broker of a client that has been here for so long."""
        return START if broker is None or stayed_ns > self.journey_ns else broker

    def likely(
        self, broker: BrokerId, previous: BrokerId | None = None, client: ClientId = EVERYBODY
    ) -> list[tuple[BrokerId, float]]:
        """Where a client goes, with the share of each, the largest first; `None`: from anywhere."""
        known = previous if self.order > 1 else None
        contexts: dict[Context, float] = {(EVERYBODY, None, broker): 0.0}
        contexts.setdefault((EVERYBODY, known, broker), PREVIOUS_WORTH)
        contexts.setdefault((client, known, broker), CLIENT_WORTH)
        shares: Mapping[BrokerId, float] = {}
        for context, worth in contexts.items():
            shares = backed_off(self._seen.get(context, {}), worth, shares)
        return likeliest_first(shares)

    def next_broker(
        self, broker: BrokerId, previous: BrokerId | None = None, client: ClientId = EVERYBODY
    ) -> BrokerId | None:
        """Where a client most likely goes; None: nobody ever left this broker."""
        for to, _ in self.likely(broker, previous, client):
            return to
        return None

    def successors(
        self,
        broker: BrokerId,
        coverage: float,
        previous: BrokerId | None = None,
        client: ClientId = EVERYBODY,
    ) -> list[BrokerId]:
        """The fewest brokers that make up this share of the moves, the likeliest first."""
        likely = self.likely(broker, previous, client)
        return [to for to, _ in likely[: fewest([share for _, share in likely], coverage)]]

    def least_share(self, coverage: float) -> float:
        """The share from which on next brokers, in all contexts together, cover this part of all moves.

        This gives smaller sets than the same coverage in each context: where clients go one of two ways
        hardly anything has to be covered in addition, and where they go anywhere, much.
        """
        per_client = any(client for client, _, _ in self._seen)
        moves: dict[float, float] = {}  # by share
        for client, previous, broker in self._seen:
            if bool(client) == per_client and (previous is None) == (self.order == 1):
                total = sum(self._seen[client, previous, broker].values())
                for _, share in self.likely(broker, previous, client):
                    moves[share] = moves.get(share, 0.0) + total * share
        shares = sorted(moves, reverse=True)
        everything = sum(moves.values()) or 1.0
        number = fewest([moves[share] / everything for share in shares], coverage)
        return shares[number - 1] if number else 1.0


def backed_off(
    counts: Mapping[BrokerId, int], worth: float, shares: Mapping[BrokerId, float]
) -> Mapping[BrokerId, float]:
    """Shares of a longer context: of its own counts, and of the shorter one's as if they were so many moves."""
    if not counts:
        return shares
    total = sum(counts.values()) + worth
    return {
        to: (counts.get(to, 0) + worth * shares.get(to, 0.0)) / total for to in {**shares, **counts}
    }


def likeliest_first(shares: Mapping[BrokerId, float]) -> list[tuple[BrokerId, float]]:
    return sorted(shares.items(), key=lambda one: (-one[1], one[0]))


ROUNDING = 1e-9  # of a sum of shares


def fewest(shares: list[float], coverage: float) -> int:
    """How many of these shares, the largest first, it takes to cover so much."""
    covered = 0.0
    for number, share in enumerate(shares):
        if covered >= coverage - ROUNDING:
            return number
        covered += share
    return len(shares)


# As bytes

Name = Annotated[str, Meta(min_length=1, max_length=1_000)]
Row = tuple[
    Annotated[int, Meta(ge=-1)],  # client; -1: everybody
    Annotated[int, Meta(ge=-1)],  # previous broker; -1: START
    Annotated[int, Meta(ge=0)],  # broker
    Annotated[int, Meta(ge=0)],  # where they went
    Annotated[int, Meta(ge=1)],  # how often
]


class _Head(msgspec.Struct):
    format: str
    version: int


class _File(msgspec.Struct):
    """Names are said once; rows have their places."""

    format: str
    version: int
    order: Literal[1, 2]
    journey_ns: Annotated[int, Meta(ge=0)]
    brokers: list[Name]
    clients: list[Name]
    moves: list[Row]


def encode(movement: Movement) -> bytes:
    """JSON; the same bytes for the same moves."""
    brokers = sorted(
        {name for one in movement.moves for name in (one.previous, one.broker, one.to)}
    )
    clients = sorted({one.client for one in movement.moves})
    brokers, clients = [name for name in brokers if name], [name for name in clients if name]
    place = {name: i for i, name in enumerate(brokers)} | {START: -1}
    who = {name: i for i, name in enumerate(clients)} | {EVERYBODY: -1}
    rows: list[Row] = [
        (who[one.client], place[one.previous], place[one.broker], place[one.to], one.count)
        for one in movement.moves
    ]
    file = _File(
        FORMAT, VERSION, _order(movement), movement.journey_ns, [*brokers], [*clients], rows
    )
    return msgspec.json.encode(file)


def _order(movement: Movement) -> Literal[1, 2]:
    return 2 if movement.order > 1 else 1


def decode(data: bytes) -> Movement:
    """ModelError: this is no model, or none that can be understood here."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise ModelError(f"it is {head.format!r}, and not {FORMAT!r}: {REMEDY}")
        if head.version != VERSION:
            raise ModelError(
                f"it is of version {head.version}, but this Wayfare reads version {VERSION}: {REMEDY}"
            )
        file = msgspec.json.decode(data, type=_File)
    except msgspec.DecodeError as error:
        raise ModelError(f"it is no movement model ({error}): {REMEDY}") from None
    brokers = {i: BrokerId(name) for i, name in enumerate(file.brokers)} | {-1: START}
    clients = {i: ClientId(name) for i, name in enumerate(file.clients)} | {-1: EVERYBODY}
    try:
        moves = [
            Moves(clients[client], brokers[previous], brokers[broker], brokers[to], count)
            for client, previous, broker, to, count in file.moves
        ]
    except KeyError as error:
        raise ModelError(f"a row of it names number {error}, which it has not: {REMEDY}") from None
    return Movement(moves, file.order, file.journey_ns)


REMEDY = "make one with `wayfare mine LOG --out FILE`"
