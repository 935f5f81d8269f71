"""How well a model of movement foretells moves that it has not learnt from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from wayfare.core.learning import Learner
from wayfare.core.messages import BrokerId, ClientId
from wayfare.core.prediction import EVERYBODY, START, Movement, Moves, fewest

TOPS = (1, 3, 5)
LEVELS = (0.9, 0.92, 0.94, 0.96, 0.98, 0.99)  # coverage that is tried beside the wanted one


class Counted(msgspec.Struct, frozen=True, gc=False):
    """Moves of one kind, before and after the split."""

    client: ClientId
    previous: BrokerId
    broker: BrokerId
    to: BrokerId
    train: int
    test: int


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """How often the next broker was among the likeliest ones, of moves that were not learnt from."""

    learnt_from: str  # "all", or "no bounces"
    tested_on: str
    order: int
    per_client: bool
    moves: int
    top: dict[int, float]  # so many -> share of the moves


class Sets(msgspec.Struct, frozen=True, kw_only=True):
    """Next brokers for a coverage, and what of the moves they cover that were not learnt from."""

    learnt_from: str
    tested_on: str
    order: int
    per_client: bool
    sized: str  # "context": each set covers that much; "share": all of them together do
    coverage: float  # wanted, of the moves that were learnt from
    covered: float  # of all moves that were not
    mean_per_broker: float
    mean_per_move: float
    largest: int


def learn(
    rows: Iterable[Counted], order: int, journey_ns: int, count: Callable[[Counted], int]
) -> Movement:
    """A model of these moves, or of some of them."""
    found: dict[tuple[ClientId, BrokerId, BrokerId, BrokerId], int] = {}
    for one in rows:
        kind = (one.client, one.previous if order > 1 else START, one.broker, one.to)
        found[kind] = found.get(kind, 0) + count(one)
    return Movement((Moves(*kind, n) for kind, n in found.items() if n), order, journey_ns)


def judge(
    tested: Mapping[str, list[Counted]],
    order: int,
    journey_ns: int,
    per_client: bool,
    wanted: float,
) -> tuple[list[Predictions], list[Sets]]:
    """Every model up to this one, on the moves that it knows the beginning of, and on all of them."""
    predictions: list[Predictions] = []
    sets: list[Sets] = []
    for learnt_from, rows in tested.items():
        for known in (False, True) if per_client else (False,):
            own = rows if known else [anyone(one) for one in rows]
            for used in range(1, order + 1):
                model = learn(own, used, journey_ns, lambda one: one.train)
                for tested_on in dict.fromkeys((learnt_from, "all")):
                    judged = Judged(model, tested[tested_on], known, learnt_from, tested_on)
                    predictions.append(judged.predictions())
                    some = LEVELS if learnt_from == "all" else ()
                    sets += [judged.sets(level) for level in sorted({*some, wanted})]
                    if learnt_from == "all":
                        sets.append(judged.sets_by_share(wanted, model.least_share(wanted)))
    return predictions, sets


def anyone(one: Counted) -> Counted:
    return msgspec.structs.replace(one, client=EVERYBODY)


class Judged:
    """A model, and moves that it has not learnt from."""

    def __init__(
        self,
        model: Movement,
        rows: Iterable[Counted],
        per_client: bool,
        learnt_from: str,
        tested_on: str,
    ) -> None:
        self.about: dict[str, Any] = {
            "learnt_from": learnt_from,
            "tested_on": tested_on,
            "order": model.order,
            "per_client": per_client,
        }
        self.moves = 0
        self.contexts: dict[tuple[ClientId, BrokerId | None, BrokerId], Context] = {}
        for one in rows:
            client = one.client if per_client else EVERYBODY
            key = (client, one.previous if model.order > 1 else None, one.broker)
            context = self.contexts.get(key)
            if context is None:
                likely = model.likely(one.broker, key[1], client)
                context = self.contexts[key] = Context(one.broker, likely)
            context.add(one)
            self.moves += one.test

    def predictions(self) -> Predictions:
        top = {number: self._share(self._among(number)) for number in TOPS}
        return Predictions(**self.about, moves=self.moves, top=top)

    def _among(self, number: int) -> int:
        return sum(sum(one.hits[:number]) for one in self.contexts.values())

    def sets(self, coverage: float) -> Sets:
        """Sets that cover this share in each context."""
        return self._sets("context", coverage, lambda shares: fewest(shares, coverage))

    def sets_by_share(self, coverage: float, least: float) -> Sets:
        """Sets of all next brokers with at least this share, which cover that much together."""
        return self._sets("share", coverage, lambda shares: sum(one >= least for one in shares))

    def _sets(self, sized: str, coverage: float, size_of: Callable[[list[float]], int]) -> Sets:
        covered = per_move = largest = 0
        here: dict[BrokerId, list[int]] = {}  # broker -> moves that were learnt, and sets for them
        for one in self.contexts.values():
            size = size_of(one.shares)
            covered += sum(one.hits[:size])
            per_move += size * one.tested
            largest = max(largest, size)
            of_broker = here.setdefault(one.broker, [0, 0])
            of_broker[0] += one.learnt
            of_broker[1] += one.learnt * size
        means = [sizes / learnt for learnt, sizes in here.values() if learnt]
        return Sets(
            **self.about,
            sized=sized,
            coverage=coverage,
            covered=self._share(covered),
            mean_per_broker=sum(means) / max(1, len(means)),
            mean_per_move=self._share(per_move),
            largest=largest,
        )

    def _share(self, count: int) -> float:
        return count / max(1, self.moves)


class Context:
    """What is likely there, and how often it happened, the likeliest first."""

    def __init__(self, broker: BrokerId, likely: list[tuple[BrokerId, float]]) -> None:
        self.broker = broker
        self.shares = [share for _, share in likely]
        self.place = {to: i for i, (to, _) in enumerate(likely)}
        self.hits = [0] * len(likely)
        self.learnt = self.tested = 0

    def add(self, one: Counted) -> None:
        self.learnt += one.train
        self.tested += one.test
        place = self.place.get(one.to)
        if place is not None:
            self.hits[place] += one.test


# While clients move


class Online(msgspec.Struct, frozen=True, kw_only=True):
    """Sets of brokers that learn while clients move, and what of the later moves they cover."""

    begun_with: (
        str  # "the log": from its first move on; "nothing", or "the model": from the split on
    )
    order: int
    per_client: bool
    coverage: float  # wanted
    moves: int  # since the split
    covered: float
    mean_per_move: float
    least_covered: float  # at the broker where it is least, of those with a thousandth of the moves
    largest: int


Move = tuple[int, ClientId, BrokerId, BrokerId, BrokerId]  # when, client, previous, broker, to


def play(
    moves: Iterable[Move],
    split_ns: int,
    coverage: float,
    begun_with: str,
    order: int = 2,
    per_client: bool = False,
    model: Movement | None = None,
) -> Online:
    """Let every broker learn from these moves, which come in the order of their times."""
    least = 0.0 if model is None else model.least_share(coverage)
    learners: dict[BrokerId, Learner] = {}
    tested: dict[BrokerId, list[int]] = {}  # moves from a broker, and how many of these it expected
    sizes = largest = 0
    for when_ns, client, previous, broker, to in moves:
        learner = learners.get(broker)
        if learner is None:
            learner = learners[broker] = Learner(coverage, order, per_client)
            if model is not None:
                learner.begin(model, broker, least)
        expected = learner.expected(previous, client)
        learner.went(previous, client, to, to in expected)
        if when_ns >= split_ns:
            here = tested.setdefault(broker, [0, 0])
            here[0] += 1
            here[1] += to in expected
            sizes += len(expected)
            largest = max(largest, len(expected))
    total = max(1, sum(count for count, _ in tested.values()))
    often = [hits / count for count, hits in tested.values() if 1000 * count >= total]
    return Online(
        begun_with=begun_with,
        order=order,
        per_client=per_client,
        coverage=coverage,
        moves=sum(count for count, _ in tested.values()),
        covered=sum(hits for _, hits in tested.values()) / total,
        mean_per_move=sizes / total,
        least_covered=min(often, default=0.0),
        largest=largest,
    )
