"""Decides whether a round was good. Knows nothing about brokers: it reads journals only.

Every publication that was confirmed while the subscription was in effect is handed out exactly once,
in the order of its publisher, or a gap stands at its place: between the neighbours of what is missing.

    stream     tom 1   tom 2   gap   tom 5
    missing                    3, 4            reported at their place
    stream     gap   tom 1   tom 2   tom 5
    missing                          3, 4      not reported: the gap is somewhere else
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop
from typing import NamedTuple

# Notifications that a process with a store may get again after it was killed: the one in hand, and the
# one before it, which was done in the turn of the loop that was not written down any more.
IN_HAND = 2


class Got(NamedTuple):
    """The application was handed this publication."""

    publisher: str
    index: int


class Gap(NamedTuple):
    """The application was told that this number of notifications is lost; 0: an unknown number."""

    count: int
    reason: str = ""


class Began(NamedTuple):
    """Another process of this client has begun, with the store of the one before."""


Entry = Got | Gap | Began


class Published(NamedTuple):
    """What one publisher did, by the numbers that its application gave."""

    tried: int  # 1 to this number were given to the client library, or may have been
    confirmed: Sequence[int]  # a broker has these
    first: int = 1  # subscriptions are in effect from this one on


class Violation(NamedTuple):
    kind: str  # a field of Counts
    subscriber: str
    text: str


class Counts(NamedTuple):
    """What was found, in all streams together."""

    delivered: int = 0
    duplicates: int = 0
    reordered: int = 0
    unknown: int = 0  # handed out, but nobody has published it
    reported: int = 0  # missing, with a gap at its place
    unreported: int = 0  # missing, without
    gaps: int = 0
    needless: int = 0  # gaps where nothing is missing
    unexplained: int = 0  # gaps although no fault was played that may lose something
    again: int = 0  # handed out again after the process was killed, as promised

    def plus(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Verdict(NamedTuple):
    counts: Counts
    violations: tuple[Violation, ...]


def judge(
    published: Mapping[str, Published],
    streams: Mapping[str, Sequence[Entry]],
    wanted: Mapping[str, Iterable[str]],
    *,
    may_lose: bool,
) -> Verdict:
    """`wanted` has the publishers of each subscriber. Unless a fault `may_lose` something, no gap may be."""
    counts, violations = Counts(), []
    for name, stream in streams.items():
        mine = {publisher: published[publisher] for publisher in wanted[name]}
        found = list(_order(name, mine, stream))
        again = sum(one.kind == "again" for one in found)
        missing, needless = _missing(name, mine, stream)
        found += missing
        gaps = [one for one in stream if isinstance(one, Gap)]
        if not may_lose:
            found += (
                Violation("unexplained", name, f"{name} was told of a gap: {one}") for one in gaps
            )
        tally = {kind: sum(one.kind == kind for one in found) for kind in Counts._fields}
        seen = {one for one in stream if isinstance(one, Got)}
        tally |= {"delivered": len(seen), "gaps": len(gaps), "needless": needless, "again": again}
        counts = counts.plus(Counts(**tally))
        violations += (one for one in found if one.kind not in ("reported", "again"))
    return Verdict(counts, tuple(violations))


def _order(
    name: str, published: Mapping[str, Published], stream: Sequence[Entry]
) -> Iterable[Violation]:
    """What is wrong with the order of a stream, entry by entry."""
    last: dict[str, int] = {}
    seen: set[Got] = set()
    recent: deque[Got] = deque(maxlen=IN_HAND)
    excused: list[Got] = []  # may come again, in this order
    for place, one in enumerate(stream):
        if isinstance(one, Began):
            excused = list(dict.fromkeys(recent))
        if not isinstance(one, Got):
            continue
        said = f"{name}: {one.publisher} {one.index} at {place}"
        of = published.get(one.publisher)
        if of is None or not 1 <= one.index <= of.tried:
            yield Violation("unknown", name, f"{said} was never published, or not wanted")
        elif one in seen and one in excused:
            yield Violation("again", name, f"{said} came again after a kill")
            del excused[: excused.index(one) + 1]
        elif one in seen:
            yield Violation("duplicates", name, f"{said} is a duplicate")
        elif one.index < last.get(one.publisher, 0):
            yield Violation("reordered", name, f"{said} came after {last[one.publisher]}")
        if one not in seen:  # what comes again comes before what is new
            excused = [other for other in excused if other.publisher != one.publisher]
        seen.add(one)
        recent.append(one)
        last[one.publisher] = max(one.index, last.get(one.publisher, 0))


class _Hole(NamedTuple):
    """A publication that is missing, and between which places of the stream a gap may stand for it."""

    before: int
    after: int
    publisher: str
    index: int


def _missing(
    name: str, published: Mapping[str, Published], stream: Sequence[Entry]
) -> tuple[list[Violation], int]:
    """What is missing, reported or not, and the number of gaps that stand for nothing."""
    holes = [hole for publisher in published for hole in _holes(publisher, published, stream)]
    reported, used = _cover(holes, stream)
    violations = []
    for hole in sorted(holes):
        kind = "reported" if hole in reported else "unreported"
        text = f"{name} misses {hole.publisher} {hole.index} between {hole.before} and {hole.after}"
        violations.append(Violation(kind, name, text))
    gaps = sum(isinstance(one, Gap) for one in stream)
    return violations, gaps - used


def _holes(
    publisher: str, published: Mapping[str, Published], stream: Sequence[Entry]
) -> Iterable[_Hole]:
    places: dict[int, int] = {}
    for place, one in enumerate(stream):
        if isinstance(one, Got) and one.publisher == publisher:
            places.setdefault(one.index, place)
    of = published[publisher]
    wanted = sorted({index for index in of.confirmed if index >= of.first} | places.keys())
    before = -1
    open_: list[int] = []
    for index in wanted:
        if index not in places:
            open_.append(index)
            continue
        yield from (_Hole(before, places[index], publisher, one) for one in open_)
        before, open_ = places[index], []
    yield from (_Hole(before, len(stream), publisher, one) for one in open_)


def _cover(holes: Sequence[_Hole], stream: Sequence[Entry]) -> tuple[set[_Hole], int]:
    """Which holes have a gap at their place, and how many gaps that takes.

    A gap of n stands for n holes. From left to right, each takes those first whose place ends first:
    if any assignment covers all of them, this one does.
    """
    covered: set[_Hole] = set()
    used = 0
    waiting = sorted(holes)
    at_hand: list[tuple[int, _Hole]] = []
    for place, one in enumerate(stream):
        if not isinstance(one, Gap):
            continue
        at_hand += ((hole.after, hole) for hole in waiting if hole.before < place)
        waiting = [hole for hole in waiting if hole.before >= place]
        at_hand = [(after, hole) for after, hole in at_hand if after > place]
        heapify(at_hand)
        room = one.count or len(at_hand)
        used += bool(at_hand)
        for _ in range(min(room, len(at_hand))):
            covered.add(heappop(at_hand)[1])
    return covered, used
