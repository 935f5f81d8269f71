"""One attempt to move in: the merge queue, and the old proxies whose part of it is still to come.

    dialling      until the new proxy has said where it is, and its access point
    opening       ... until there is an access to that
    subscribing   ... until it has the subscriptions
    waiting       ... until they are known to be active where the old ones are
    downloading   what the old proxies have kept, one after the other

Publications come by two ways meanwhile. When all have been here, they are handed out, merged. An attempt that ends
before leaves nothing behind: what had come is still with the old proxies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.merging import last_numbers, merged
from wayfare.service.pinging import Ping, Waiting
from wayfare.service.system import Publication

MERGE_MAX = 200_000  # publications in the merge queue: the oldest are dropped, and a Gap says so


class Arrival:
    """What a library knows while its client moves in."""

    def __init__(self, old: Iterable[str]) -> None:
        self.step = "dialling"
        self.old = list(old)  # proxies to download from, the one where the client was last behind
        self.fresh = False  # nothing that the new proxy may have kept is wanted
        self.asking: Ping | None = None  # of this attempt
        self.listens_to = ""  # what responses come by
        self.waiting: Waiting | None = None
        self.forgo_at = 0  # what is kept by old proxies that cannot be reached
        self.stalled_at: int | None = None  # when something more of a download should have come
        self.adopted: tuple[str, ...] | None = None  # what the new proxy stands in with already
        self.gaps: list[e.Gap] = []
        self.releases: dict[str, m.Release] = {}  # by the old proxy that has given all
        self.here: dict[str, int] = {}  # how far senders were heard before the download began
        self._batches: deque[Publication] = deque()  # of the download under way
        self._downloaded: deque[Publication] = deque()
        self._received: deque[Publication] = deque()
        self._dropped = 0

    def extend(self, for_ns: int) -> None:
        """Nothing could be heard for so long."""
        self.forgo_at += for_ns
        if self.stalled_at is not None:
            self.stalled_at += for_ns
        if self.waiting is not None:
            self.waiting.extend(for_ns)

    def receive(self, publication: Publication) -> None:
        """At the new access point."""
        self._received.append(publication)
        self._limit()

    def take(self, batch: m.Batch) -> None:
        self._batches.extend(batch.publications)
        self._limit()

    def _limit(self) -> None:
        queues = (self._downloaded, self._batches, self._received)
        while sum(map(len, queues)) > MERGE_MAX:
            next(queue for queue in queues if queue).popleft()
            self._dropped += 1

    def begin_download(self) -> None:
        self._batches.clear()

    def end_download(self) -> None:
        """All of it has come."""
        self._downloaded.extend(self._batches)
        self._batches.clear()

    def begin_downloads(self) -> None:
        self.step, self.waiting = "downloading", None
        self.here = last_numbers(self._received)

    def is_ahead_of(self, heard: dict[str, int]) -> bool:
        """Whether something came to the new access point that had not come to the old one."""
        there = heard | last_numbers(self._batches)
        return any(there.get(sender, 0) < last for sender, last in self.here.items())

    def end(self, ids: bool) -> tuple[list[e.Gap], list[Publication]]:
        """The merge queue: what is missing, and what is there."""
        gaps = list(self.gaps)
        if self._dropped:
            gaps.append(e.Gap(self._dropped, "too much came while the client moved in"))
        if ids:
            return gaps, merged(self._downloaded, self._received)
        return gaps, [*self._downloaded, *self._received]
