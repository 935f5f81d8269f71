"""The merge queue, and what tells a copy from another publication.

While a client moves in, publications come by two ways: downloaded from the old proxy, and received at
the new access point. Where they carry ids, copies are removed, and each sender's publications are put
in order; where they do not, all are kept, what was downloaded first.
"""

from __future__ import annotations

from collections.abc import Iterable

from wayfare.service.messages import HEARD_BYTES_MAX, SENDERS_MAX
from wayfare.service.system import Id, Publication

RECENT = 4_096  # numbers of a sender within which a late publication is told from a copy


class Seen:
    """Which publications a client has had."""

    __slots__ = ("_marks", "_news", "_senders", "_settled")

    def __init__(self) -> None:
        # Of each sender, least recently heard first: the numbers that came, and the highest.
        self._senders: dict[str, tuple[set[int], int]] = {}
        self._settled: dict[str, int] = {}  # how far they were heard when that was asked last
        self._marks: dict[str, int] = {}  # ... and the time before
        self._news: dict[str, int] = {}

    def is_news(self, id: Id | None) -> bool:
        """True the first time. What has no id is always news."""
        if id is None:
            return True
        numbers, highest = self._senders.pop(id.sender, (set(), 0))
        news = id.number not in numbers and (id.number > highest - RECENT or not numbers)
        if news:
            numbers.add(id.number)
            highest = max(highest, id.number)
            if len(numbers) > 2 * RECENT:
                numbers = {number for number in numbers if number > highest - RECENT}
        self._senders[id.sender] = numbers, highest
        if len(self._senders) > SENDERS_MAX:
            del self._senders[next(iter(self._senders))]
        return news

    def settle(self) -> dict[str, int]:
        """How far senders were heard when this was asked before, if it is news: each is said twice.

        Not now: systems may put publications of one sender on different topics a little out of
        order, and then a number that has come does not say that all before it have.
        """
        before, self._marks = self._marks, self._settled
        self._settled = {sender: highest for sender, (_, highest) in self._senders.items()}
        told, self._news = (
            self._news,
            {one: number for one, number in self._marks.items() if before.get(one) != number},
        )
        return _fitting(told | self._news)

    @property
    def marks(self) -> dict[str, int]:
        """How far all senders were heard, as of the last `settle`."""
        return _fitting(self._marks)


def _fitting(marks: dict[str, int]) -> dict[str, int]:
    """As many as one message carries, those that were heard last."""
    fitting: dict[str, int] = {}
    left = HEARD_BYTES_MAX
    for sender, number in reversed(marks.items()):
        left -= 4 * len(sender) + 12
        if left < 0 or len(fitting) == SENDERS_MAX:
            break
        fitting[sender] = number
    return fitting


def merged(downloaded: Iterable[Publication], received: Iterable[Publication]) -> list[Publication]:
    """All of them, each id once, and those of a sender in order in the places that they have."""
    result: list[Publication] = []
    places: dict[str, list[int]] = {}
    ids: set[Id] = set()
    for publication in (*downloaded, *received):
        id = publication.id
        if id is not None:
            if id in ids:
                continue
            ids.add(id)
            places.setdefault(id.sender, []).append(len(result))
        result.append(publication)
    for at in places.values():
        in_order = sorted((result[place] for place in at), key=_number)
        for place, publication in zip(at, in_order, strict=True):
            result[place] = publication
    return result


def last_numbers(publications: Iterable[Publication]) -> dict[str, int]:
    """Of each sender, the highest."""
    last: dict[str, int] = {}
    for publication in publications:
        if (id := publication.id) is not None and id.number > last.get(id.sender, 0):
            last[id.sender] = id.number
    return last


def _number(publication: Publication) -> int:
    return 0 if publication.id is None else publication.id.number
