"""Ways of clients from place to place: random ones, or those of a file, and what was learnt from others.

A random way goes over a square of places. From each, one neighbour is the usual next one, another one
comes second, and so on: so there are habits that can be learnt. Now and then it goes on somewhere else.
A file has what was learnt before, and where clients went then:

    {"moves": [["a", "b", 17], ["b", "a", 12]], "ways": {"anna": [[0, "a"], [60000000000, "b"]]}}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from wayfare.core.messages import LOCATION_MAX, BrokerId
from wayfare.core.places import Place, Places, of_movement
from wayfare.core.prediction import EVERYBODY, START, Movement, Moves
from wayfare.errors import UsageError

LEARNT = 100  # random ways that the model of others is learnt from
LEARNT_MOVES = 200  # of each
PLACES = range(2, 1001)  # of a file
EVERYTHING = 1.0  # coverage: whoever ever came next

Name = Annotated[str, Meta(min_length=1, max_length=LOCATION_MAX)]
Way = list[tuple[Annotated[int, Meta(ge=0)], Name]]  # when it comes to which place


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where clients go, after what was learnt of where they went."""

    moves: list[tuple[Name, Name, Annotated[int, Meta(ge=1)]]]  # from, to, how often
    ways: dict[Name, Way]


class Ways(msgspec.Struct, frozen=True):
    places: Places  # the movement graph: every place is the range of a broker of its name
    movement: Movement
    ways: dict[str, Way]

    def names(self) -> list[str]:
        """Of all places."""
        known = dict.fromkeys(self.places.places)
        return list(known | {place: None for way in self.ways.values() for _, place in way})


def grid(side: int) -> dict[str, tuple[str, ...]]:
    """A square of places, and the neighbours of each."""
    name = {(x, y): f"{x}.{y}" for y in range(side) for x in range(side)}
    return {
        here: tuple(
            name[there]
            for there in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1))
            if there in name
        )
        for (x, y), here in name.items()
    }


class Habits:
    """Where one goes from a place: mostly to one neighbour, sometimes to another, rarely anywhere."""

    def __init__(self, random: Random, near: dict[str, tuple[str, ...]], habit: float, jump: float):
        self.near = {here: random.sample(there, len(there)) for here, there in near.items()}
        self.all = list(near)
        self.habit, self.jump = habit, jump

    def next(self, random: Random, here: str) -> str:
        if random.random() < self.jump:
            return random.choice([one for one in self.all if one != here])
        *likely, last = self.near[here]
        return next((one for one in likely if random.random() < self.habit), last)

    def learnt(self, random: Random) -> Movement:
        """What others did."""
        seen: Counter[tuple[str, str]] = Counter()
        for _ in range(LEARNT):
            here = random.choice(self.all)
            for _ in range(LEARNT_MOVES):
                here, before = self.next(random, here), here
                seen[before, here] += 1
        return movement_of((a, b, count) for (a, b), count in sorted(seen.items()))


def random_ways(
    seed: int,
    *,
    side: int,
    walkers: int,
    until_ns: int,
    dwell_ns: int,
    habit: float,
    jump: float,
) -> Ways:
    """The same for the same seed, whoever plays it; a stay is half the dwell time to one and a half."""
    random = Random(f"ways {seed}")
    near = grid(side)
    habits = Habits(random, near, habit, jump)
    ways: dict[str, Way] = {}
    for i in range(walkers):
        at, here = random.randrange(dwell_ns), random.choice(habits.all)
        way = ways[f"w{i}"] = [(at, here)]
        while at < until_ns:
            at += random.randint(dwell_ns // 2, dwell_ns + dwell_ns // 2)
            here = habits.next(random, here)
            way.append((at, here))
    places = Places({here: Place(there, here) for here, there in near.items()})
    return Ways(places, habits.learnt(Random(f"others {seed}")), ways)


def movement_of(moves: Iterable[tuple[str, str, int]]) -> Movement:
    rows = [
        Moves(EVERYBODY, START, BrokerId(here), BrokerId(there), count)
        for here, there, count in moves
        if here != there
    ]
    return Movement(rows, order=1)


def read(path: str | Path) -> Ways:
    """Of a file; neighbours are all that anybody ever went to next."""
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=File)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} has no ways of clients ({error}): {REMEDY}") from None
    movement = movement_of(file.moves)
    ways = Ways(of_movement(movement, EVERYTHING), movement, file.ways)
    for client, way in file.ways.items():
        if not way or any(a[0] >= b[0] or a[1] == b[1] for a, b in pairwise(way)):
            raise UsageError(
                f"{path}: the way of {client} does not go from place to place, later and later"
            )
    if not file.ways or len(ways.names()) not in PLACES:
        raise UsageError(f"{path} has to have ways over 2 to {PLACES[-1]} places: {REMEDY}")
    return ways


REMEDY = "`wayfare study location --trace LOG --out DIR` makes one, DIR/ways.json"
