"""Whether a client was told of each loss at its place.

A notification that is missing has a place in what its client got: behind the earlier notifications of the same
publisher and before the later ones. A gap reports the loss only if it is between the two, and not before the
notification was published:

    got 1    gap      got 3       2 is reported
    gap      got 1    got 3       the gap comes too early
    got 1    got 3    gap         the gap comes too late

A gap with a number reports at most that many losses, a gap of unknown size (0) any number.

There is one exception. When the old broker of a client did not answer in time, its reply may come late, and what of it was overtaken
is dropped, with another gap. What is lost like that is missing anywhere between the gap of the time-out and the gap of the late reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import msgspec

from wayfare.core.handoff import NO_ANSWER
from wayfare.eventlog import Event


class Gap(msgspec.Struct, frozen=True):
    """The report of a loss that reached an application."""

    place: int  # among all events
    time_ns: int
    count: int  # 0: nobody knows how many
    since: int  # the place from which on it reports losses: its own, unless a reply came late
    unanswered: bool = False  # an old broker did not answer in time


class Missing(msgspec.Struct, frozen=True):
    """A notification that did not come, and between which places of a stream a gap reports it."""

    publisher: str
    number: int
    published_ns: int
    behind: int
    before: float

    def is_reported_by(self, gap: Gap) -> bool:
        at_its_place = self.behind < gap.place and gap.since < self.before
        return at_its_place and self.published_ns <= gap.time_ns


class Stream:
    """What one process of a client got, and the gaps between that."""

    def __init__(self) -> None:
        self.delivered: dict[str, list[tuple[int, int]]] = {}  # publisher -> number, place
        self.gaps: list[Gap] = []
        self.late: dict[str, list[int]] = {}  # publisher -> numbers of what came late: anywhere
        self._unanswered: int | None = None  # the place of the last gap because of a time-out

    def deliver(self, publisher: str, number: int, place: int) -> None:
        self.delivered.setdefault(publisher, []).append((number, place))

    def lose(self, event: Event, place: int) -> None:
        assert event.count is not None
        since = place
        if event.reason == NO_ANSWER:
            since = place if self._unanswered is None else self._unanswered
            self._unanswered = place
        unanswered = event.reason == NO_ANSWER
        self.gaps.append(Gap(place, event.time_ns, event.count, since, unanswered))

    def may_be_settled(self) -> bool:
        """Whether a loss of unknown size was reported; a limit that drops more at its place is the reason given then."""
        return any(not gap.count for gap in self.gaps)

    def settle(self, event: Event, place: int) -> None:
        """What was lost in a gap of unknown size is known: it may be missing anywhere behind that."""
        if event.count and self._unanswered is not None:
            self.gaps.append(Gap(place, event.time_ns, event.count, self._unanswered))

    def size(self) -> int:
        """How much came."""
        late = sum(map(len, self.late.values()))
        return late + sum(map(len, self.delivered.values()))

    def got(self, publisher: str) -> list[int]:
        """All that came from this publisher."""
        return [*self.numbers(publisher), *self.late.get(publisher, [])]

    def numbers(self, publisher: str) -> list[int]:
        """What came from this publisher, in the order in which it came, without what came late."""
        return [number for number, _ in self.delivered.get(publisher, [])]

    def unreported(
        self, missing: Iterable[Event], is_past: Callable[[str, int], bool] = lambda *_: False
    ) -> list[Missing]:
        """Which of these publications, none of which came, no gap reports at its place.

        What came because a later subscription asked for the past has no place.
        """
        left = sorted((self._missing(one, is_past) for one in missing), key=lambda one: one.before)
        for gap in self.gaps:
            # The first to be overdue go first, so no other assignment of losses to gaps reports more.
            reported = [one for one in left if one.is_reported_by(gap)]
            reported = reported[: gap.count or None]
            left = [one for one in left if one not in reported]
        return sorted(left, key=lambda one: (one.published_ns, one.publisher, one.number))

    def _missing(self, published: Event, is_past: Callable[[str, int], bool]) -> Missing:
        assert published.client and published.number
        publisher, number = published.client, published.number
        delivered = [
            one for one in self.delivered.get(publisher, []) if not is_past(publisher, one[0])
        ]
        before = min((place for one, place in delivered if one > number), default=inf)
        earlier = [place for one, place in delivered if one < number]
        published_ns = published.time_ns
        if published.reason == "will":
            # Each is published by another broker, as soon as that knows: maybe behind a later one, and the gap in
            # front of that reports it; an earlier one may still come.
            earlier = [place for place in earlier if place < before < inf]
            published_ns = 0 if before < inf else published_ns
        return Missing(publisher, number, published_ns, max(earlier, default=-1), before)
