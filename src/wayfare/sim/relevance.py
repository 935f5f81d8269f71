"""Whether notifications that are of use in an area only came to clients that are there, and to all of those.

Where a client is known to be comes from the event log (`became`), by name and position. Its broker knows it a while later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wayfare.core.messages import Area
from wayfare.core.predicates import distance_m
from wayfare.eventlog import Event
from wayfare.sim.histories import History
from wayfare.sim.verdict import Violation


def is_elsewhere(area: Area, location: str, position: tuple[float, float] | None) -> bool:
    """Whether who is there is known to be outside: the definition, not the code that brokers use."""
    if area.locations:
        return location not in ("", *area.locations)
    assert area.circle is not None
    lat, lon, metres = area.circle
    return position is not None and distance_m(lat, lon, position[0], position[1]) > metres


def was_elsewhere(area: Area, client: History, since: float, until: float) -> bool:
    """Whether a client was outside at any time between."""
    return any(
        is_elsewhere(area, location, position)
        for begin, end, location, position in _places(client)
        if begin <= until and end >= since
    )


def check_inside(published: Event, delivered: Event, client: History) -> Iterator[Violation]:
    """Who is known to be outside gets nothing, from the moment when the client itself knows it."""
    assert published.area is not None
    here = [place for place in _places(client) if place[0] <= delivered.time_ns <= place[1]]
    # Of several at the same time, each may be the one.
    if here and all(is_elsewhere(published.area, at, position) for _, _, at, position in here):
        what = f"{delivered.client} got {published.client} {published.number}, which is of use elsewhere"
        yield Violation("elsewhere", what)


Place = tuple[float, float, str, "tuple[float, float] | None"]


def _places(client: History) -> Sequence[Place]:
    """From when to when a client was where. A process that begins anew has not said it yet."""
    changes: list[tuple[int, str, tuple[float, float] | None]] = [(0, "", None)]
    changes += [(time, "", None) for time in client.replaced]
    for event in client.became:
        circle = None if event.area is None else event.area.circle
        changes.append((event.time_ns, event.location or "", circle and circle[:2]))
    changes.sort(key=lambda change: change[0])
    ends = [*(time for time, _, _ in changes[1:]), float("inf")]
    return [(*change[:1], end, *change[1:]) for change, end in zip(changes, ends, strict=True)]
