"""What clients that move got, as the event log tells it: what was lost, came twice or late, and how late.

Their subscriptions stand from before the first publication until after the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

import msgspec

from wayfare.core.filters import Filter
from wayfare.eventlog import Event
from wayfare.sim.histories import matches


class Deliveries(msgspec.Struct):
    """What the event log says of the movers."""

    published: int = 0
    expected: int = 0
    delivered: int = 0
    lost: int = 0
    duplicates: int = 0
    order_violations: int = 0
    gaps: int = 0
    moves: list[tuple[str, str]] = []  # from where, and to where
    live_ns: list[int] = []
    first_ns: list[int] = []


class Mover:
    """What one mover wants, where it is, and what it got."""

    def __init__(self) -> None:
        self.wanted: list[Filter] = []
        self.broker: str | None = None
        self.since = 0  # when it came here
        self.got: set[tuple[str, int]] = set()  # for membership only
        self.last: dict[str, int] = {}  # publisher -> the highest number that it got
        # What it still waits for since its last move.
        self.first_due = self.live_due = False


def judge(events: list[Event], names: Iterable[str]) -> Deliveries:
    """Compare what movers got with all that matches, published when they had subscribed."""
    out = Deliveries()
    movers = {name: Mover() for name in names}
    published: dict[tuple[str, int], Event] = {}
    for event in events:
        if event.kind == "published":
            assert event.client is not None and event.number is not None
            published[event.client, event.number] = event
        elif (mover := movers.get(event.client or "")) is None:
            continue
        elif event.kind == "subscribed":
            assert event.filter is not None
            mover.wanted.append(event.filter)
        elif event.kind == "attached":
            _on_attached(out, mover, event)
        elif event.kind == "delivered":
            _on_delivered(out, mover, event, published)
        elif event.kind == "lost":
            out.gaps += 1
    out.published = len(published)
    for mover in movers.values():
        expected = [key for key, one in published.items() if _wants(mover, one)]
        out.expected += len(expected)
        out.lost += sum(key not in mover.got for key in expected)
    return out


def _wants(mover: Mover, publication: Event) -> bool:
    assert publication.attributes is not None
    return any(matches(filter, publication.attributes) for filter in mover.wanted)


def _on_attached(out: Deliveries, mover: Mover, event: Event) -> None:
    assert event.broker is not None
    if mover.broker not in (None, event.broker):
        assert mover.broker is not None
        out.moves.append((mover.broker, event.broker))
        mover.since = event.time_ns
        mover.first_due = mover.live_due = True
    mover.broker = event.broker


def _on_delivered(
    out: Deliveries, mover: Mover, event: Event, published: dict[tuple[str, int], Event]
) -> None:
    assert event.publisher is not None and event.number is not None
    key = event.publisher, event.number
    out.delivered += 1
    if key in mover.got:
        out.duplicates += 1
    elif event.number < mover.last.get(event.publisher, 0) and event.reason != "late":
        out.order_violations += 1
    mover.got.add(key)
    mover.last[event.publisher] = max(event.number, mover.last.get(event.publisher, 0))
    if mover.first_due:
        mover.first_due = False
        out.first_ns.append(event.time_ns - mover.since)
    if mover.live_due and published[key].time_ns > mover.since:
        mover.live_due = False
        out.live_ns.append(event.time_ns - mover.since)


def percentile(values: list[int], percent: int) -> int | None:
    """The smallest one that so many percent are not above; None if there are none."""
    if not values:
        return None
    return sorted(values)[ceil(len(values) * percent / 100) - 1]
