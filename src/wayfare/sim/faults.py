"""Faults as a typed plan: what goes wrong, where, when, and for how long.

`Faults.random` draws in two levels: first which kinds of fault this run has at all, then where and when
they strike. So one run explores a coherent set of oddities.
"""

from __future__ import annotations

from random import Random

import msgspec

from wayfare.errors import UsageError
from wayfare.sim.links import SECOND_NS


def _check_times(*times: int) -> None:
    for time in times:
        if type(time) is not int or time < 0:
            raise UsageError(
                f"{time!r:.60} is no time of a fault, because time is in whole nanoseconds"
                " from 0 on: give an int that is not negative"
            )


class Cut(msgspec.Struct, frozen=True):
    """A link between brokers is down for a while; what it lost is sent again."""

    a: str
    b: str
    at_ns: int
    for_ns: int | None  # None: until somebody heals it

    def __post_init__(self) -> None:
        _check_times(self.at_ns, 0 if self.for_ns is None else self.for_ns)


class Crash(msgspec.Struct, frozen=True):
    """A broker stops and starts again with its state; its clients' connections break."""

    broker: str
    at_ns: int
    for_ns: int

    def __post_init__(self) -> None:
        _check_times(self.at_ns, self.for_ns)


class Rollback(msgspec.Struct, frozen=True):
    """A broker stops and starts again with a copy of its store that was made before, or with none.

    All links to its neighbours begin from nothing. With a copy, it reports that its store was rolled
    back; without, it knows nothing.
    """

    broker: str
    copied_ns: int | None  # None: the store is lost
    at_ns: int
    for_ns: int

    def __post_init__(self) -> None:
        _check_times(self.copied_ns or 0, self.at_ns, self.for_ns)


class Late(msgspec.Struct, frozen=True):
    """A broker starts late, for the first time, and its links begin so much later.

    No fault: what is published there before, or for it, is kept.
    """

    at_ns: int
    link_ns: int

    def __post_init__(self) -> None:
        _check_times(self.at_ns, self.link_ns)


class Slow(msgspec.Struct, frozen=True):
    """A broker takes so long for every message for a while."""

    broker: str
    at_ns: int
    for_ns: int | None  # None: for ever
    per_message_ns: int

    def __post_init__(self) -> None:
        _check_times(self.at_ns, 0 if self.for_ns is None else self.for_ns, self.per_message_ns)


class Stall(msgspec.Struct, frozen=True):
    """A broker's process is stopped or suspended for a while; what is sent to it piles up."""

    broker: str
    at_ns: int
    for_ns: int

    def __post_init__(self) -> None:
        _check_times(self.at_ns, self.for_ns)


class Disconnect(msgspec.Struct, frozen=True):
    """A client's connection breaks: what is on its way, acknowledgements too, is gone.

    The client is back after a while; with `unnoticed`, before the broker has noticed.
    """

    client: str
    at_ns: int
    back_after_ns: int
    unnoticed: bool = False

    def __post_init__(self) -> None:
        _check_times(self.at_ns, self.back_after_ns)


class Faults(msgspec.Struct, frozen=True):
    """All that goes wrong in one run."""

    loss: float = 0.0  # on every link between brokers
    cuts: tuple[Cut, ...] = ()
    crashes: tuple[Crash, ...] = ()
    slow: tuple[Slow, ...] = ()
    stalls: tuple[Stall, ...] = ()
    rollbacks: tuple[Rollback, ...] = ()
    disconnects: tuple[Disconnect, ...] = ()

    @staticmethod
    def random(
        random: Random,
        brokers: list[str],
        edges: list[tuple[str, str]],
        clients: list[str],
        until_ns: int,
    ) -> Faults:
        def active(likely: float = 0.4) -> bool:
            return random.random() < likely

        def when() -> int:
            return random.randrange(until_ns)

        def how_long() -> int:
            return random.choice([SECOND_NS // 100, SECOND_NS // 10, SECOND_NS])

        def some(most: int) -> range:
            return range(random.randint(1, most))

        return Faults(
            loss=random.choice([0.01, 0.2]) if active() else 0.0,
            cuts=tuple(Cut(*random.choice(edges), when(), how_long()) for _ in some(4))
            if edges and active()
            else (),
            crashes=tuple(Crash(random.choice(brokers), when(), how_long()) for _ in some(2))
            if active()
            else (),
            slow=tuple(
                Slow(random.choice(brokers), when(), how_long(), random.randint(1, SECOND_NS // 50))
                for _ in some(2)
            )
            if active()
            else (),
            disconnects=tuple(
                Disconnect(random.choice(clients), when(), how_long() // 10, active(0.5))
                for _ in some(2 * len(clients))
            )
            if clients and active(0.6)
            else (),
        )
