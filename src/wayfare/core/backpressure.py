"""Backpressure: publishers are slowed before the backlog of a client that is connected overflows.

    publisher        its broker          a broker between      the reader's broker        reader
        |-- Publish ---->|-- Notification ---->|-- Notification ---->|  more than the high mark waits
        |                |                     |<-- Slow(publisher) -|
        |                |<-- Slow(publisher) -|  with the next notification: it shows the way
        |     Pause: publications stay in the connection              |-- Deliver --------->|
        |                |                     |                     |<-- Ack ---------------|
        |                |<-- Slow(.., 0) -----|<-- Slow(.., 0) -----|  no more than the low mark waits
        |     Resume     |

`Slow` is a lease: it ends by itself unless it is renewed, so nothing has to be cleaned up when a broker
crashes, a link is lost or a client moves. It goes where the publisher's notifications come from, so no
broker remembers where publishers are, and nobody pays for it while nobody is congested.

What is under way when a publisher is slowed still arrives: as long as publishers are slowed for a client,
its backlog may exceed its limits by `burst_count` and `burst_bytes`.

An episode begins beyond the high mark and ends when the client has caught up, at the low mark. Within an
episode, publishers are slowed for the bound of the subscription that wants their notifications, counted from its
beginning, and then no longer: a client that always reads too slowly slows others once.

Virtual clients whose clients are here, and queue groups that have members, are readers, too. What comes for them is
sorted behind `Border.route`, so their publishers are asked with the next notification, wherever these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Protocol

from wayfare.core.deadlines import SLOWED, Deadlines
from wayfare.core.effects import Effect, Pause, Resume, Send
from wayfare.core.history import SECOND_NS, Limits, Stored
from wayfare.core.messages import BrokerId, ClientId, LinkId, Slow, Update
from wayfare.core.sessions import Episode, Session, Wanted

LEASE_NS = 2 * SECOND_NS  # that a publisher is slowed, unless the lease is renewed
RENEWED_NS = LEASE_NS // 2
WORTH_NS = LEASE_NS // 4  # by which a renewal has to extend a lease
SLOWED_MAX = 10_000  # publishers that are slowed at a broker, or for one reader; others are not
PRESSURE = -1  # the source of leases that end before they are renewed: limits in sum


class Queue(Protocol):
    """What waits for a reader."""

    bytes: int

    @property
    def waiting(self) -> Sized: ...

    def allow(self, count: int, size: int) -> None:
        """Let it keep this much beyond its limits."""


class Reader(Protocol):
    """What may be congested: the session of a client, a virtual client, or a queue group."""

    episode: Episode | None

    @property
    def backlog(self) -> Queue: ...

    def wanted(self) -> Wanted:
        """What it subscribes to, and for how long publishers may be slowed for that."""

    def spares(self, publisher: ClientId) -> bool:
        """Whether this publisher must not be slowed: what the reader waits for would wait with its publications."""


class Connected(Reader, Protocol):
    link: LinkId | None


Source = (
    BrokerId | int | Reader
)  # what asks to slow a publisher: a neighbour, `PRESSURE`, or a reader


class Slowed:
    """A publisher that is slowed. Invariant: there is a source."""

    __slots__ = ("by", "paused", "told")

    def __init__(self) -> None:
        self.by: dict[Source, int] = {}  # and until when
        self.told: dict[BrokerId, int] = {}  # neighbours where it comes from, and their leases
        self.paused: dict[LinkId, None] = {}  # its connections here

    def until(self, besides: BrokerId | None = None) -> int:
        """When the last lease ends, of others than this neighbour: it is not asked for its own sake."""
        return max((until for source, until in self.by.items() if source != besides), default=0)


class Backpressure:
    """Of one broker: the congestion of its readers, and the publishers that are slowed."""

    def __init__(
        self,
        limits: Limits,
        deadlines: Deadlines,
        sessions_of: Callable[[ClientId], list[Session]],
    ) -> None:
        self._limits, self._deadlines, self._sessions_of = limits, deadlines, sessions_of
        # A reader is congested beyond the high marks, until it has no more than the low ones.
        self.high_count, self.high_bytes = limits.backlog_count // 2, limits.backlog_bytes // 2
        self._low_count, self._low_bytes = self.high_count // 2, self.high_bytes // 2
        self.slowed: dict[ClientId, Slowed] = {}
        self.episodes: dict[Reader, None] = {}  # readers that are congested
        self.begun = 0  # episodes, since the start
        self.out: list[Effect] = []  # of what has ended: goes out with the event

    # Readers

    def on_queue(
        self, reader: Reader, stored: Stored, came_from: LinkId | None, now: int
    ) -> list[Effect]:
        """A notification is about to be queued for a reader beyond the high mark, or in an episode."""
        backlog, episode, notification = reader.backlog, reader.episode, stored.notification
        if episode is not None and self._has_caught_up(backlog):
            self.end(reader, now)
            episode = None
        if episode is None:
            if not self._limits.slow_publishers_ns or not self._is_high(backlog, stored):
                return []
            episode = self._begin(reader, now)
        publisher = notification.publisher
        if publisher not in episode.publishers and len(episode.publishers) < SLOWED_MAX:
            episode.publishers[publisher] = None
            until = episode.since + min(
                episode.bound_ns(notification), self._limits.slow_publishers_ns
            )
            if until > now:
                episode.ends = max(episode.ends, until)
                backlog.allow(self._limits.burst_count, self._limits.burst_bytes)
                if not reader.spares(publisher):
                    return self.slow(publisher, reader, until, now, came_from)
        if episode.ends <= now:  # what is beyond the limits is lost with what is queued now
            backlog.allow(0, 0)
        return []

    def expect(self, reader: Connected, count: int, now: int) -> None:
        """This number is queued at once, because a client asked for it: publishers are not the cause."""
        waiting = len(reader.backlog.waiting) + count
        if reader.link is None or reader.episode is not None or waiting <= self.high_count:
            return
        if self._limits.slow_publishers_ns:
            self._begin(reader, now).ends = now + self._limits.slow_publishers_ns
            reader.backlog.allow(self._limits.burst_count, self._limits.burst_bytes)

    def _begin(self, reader: Reader, now: int) -> Episode:
        episode = Episode(now, reader.wanted(), self._limits.slow_publishers_ns)
        reader.episode, self.episodes[reader] = episode, None
        self.begun += 1
        return episode

    def _is_high(self, backlog: Queue, stored: Stored) -> bool:
        size = backlog.bytes + stored.size
        return len(backlog.waiting) >= self.high_count or size > self.high_bytes

    def _has_caught_up(self, backlog: Queue) -> bool:
        return len(backlog.waiting) <= self._low_count and backlog.bytes <= self._low_bytes

    def on_ack(self, reader: Reader, now: int) -> list[Effect]:
        """A reader that is congested has taken something."""
        if self._has_caught_up(reader.backlog):
            self.end(reader, now)
        return self.take_out()

    def end(self, reader: Reader, now: int) -> None:
        """A reader has caught up, or is not here any more: nobody is slowed for it."""
        episode, reader.episode = reader.episode, None
        if episode is None:
            return
        del self.episodes[reader]
        reader.backlog.allow(0, 0)
        for publisher in episode.publishers:
            self.out += self.release(publisher, reader, now)

    def take_out(self) -> list[Effect]:
        out, self.out = self.out, []
        return out

    def extend(self, by_ns: int) -> None:
        """This broker did not run for a while: its clients could not be read meanwhile."""
        for reader in self.episodes:
            episode = reader.episode
            assert episode is not None
            episode.since += by_ns
            episode.ends += by_ns
            for publisher in episode.publishers:
                slowed = self.slowed.get(publisher)
                if slowed is not None and reader in slowed.by:
                    slowed.by[reader] += by_ns

    # Publishers

    def slow(
        self,
        publisher: ClientId,
        source: Source,
        until: int,
        now: int,
        came_from: LinkId | None = None,
    ) -> list[Effect]:
        """A source wants a publisher to be slowed until then, at the latest."""
        slowed = self.slowed.get(publisher)
        if slowed is None:
            if len(self.slowed) >= SLOWED_MAX:
                return []
            slowed = self.slowed[publisher] = Slowed()
        slowed.by[source] = until
        if came_from is not None:
            slowed.told.setdefault(BrokerId(came_from), 0)
        effects = [*self._pause(publisher, slowed), *self._tell(publisher, slowed, now)]
        self._arm(publisher, slowed, now)
        return effects

    def on_slow(self, neighbour: BrokerId, message: Slow, now: int) -> list[Effect]:
        """A neighbour wants a publisher to be slowed, or not any more."""
        if not message.for_ns:
            return self.release(message.publisher, neighbour, now)
        until = now + min(message.for_ns, LEASE_NS)
        return self.slow(message.publisher, neighbour, until, now)

    def follow(self, publisher: ClientId, came_from: LinkId, now: int) -> list[Effect]:
        """A notification of a publisher that is slowed came from there: so does the publisher."""
        slowed = self.slowed[publisher]
        neighbour = BrokerId(came_from)
        if neighbour in slowed.told:
            return []
        slowed.told[neighbour] = 0
        self._arm(publisher, slowed, now)
        return self._tell(publisher, slowed, now)

    def release(self, publisher: ClientId, source: Source, now: int) -> list[Effect]:
        """A source does not want a publisher to be slowed any more."""
        slowed = self.slowed.get(publisher)
        if slowed is None or slowed.by.pop(source, None) is None:
            return []
        effects = self._tell(publisher, slowed, now)
        return effects if slowed.by else [*effects, *self._forget(publisher, slowed)]

    def on_due(self, publisher: ClientId, now: int) -> list[Effect]:
        """Renew leases that go on, and end those that were not renewed."""
        slowed = self.slowed.get(publisher)
        if slowed is None:
            return []
        for source in [source for source, until in slowed.by.items() if until <= now]:
            del slowed.by[source]
        effects = self._tell(publisher, slowed, now)
        if not slowed.by:
            return [*effects, *self._forget(publisher, slowed)]
        self._arm(publisher, slowed, now)
        return effects

    def on_attached(self, publisher: ClientId) -> list[Effect]:
        """A client has come: perhaps it is slowed."""
        slowed = self.slowed.get(publisher)
        return [] if slowed is None else self._pause(publisher, slowed)

    def on_link_down(self, publisher: ClientId, link: LinkId) -> None:
        slowed = self.slowed.get(publisher)
        if slowed is not None:
            slowed.paused.pop(link, None)

    def _pause(self, publisher: ClientId, slowed: Slowed) -> list[Effect]:
        links = [one.link for one in self._sessions_of(publisher) if one.link is not None]
        fresh = [link for link in links if link not in slowed.paused]
        slowed.paused.update(dict.fromkeys(fresh))
        return [Pause(link) for link in fresh]

    def _tell(self, publisher: ClientId, slowed: Slowed, now: int) -> list[Effect]:
        """Tell the neighbours where a publisher comes from, if that is news."""
        effects: list[Effect] = []
        for neighbour, known in slowed.told.items():
            until = min(slowed.until(besides=neighbour), now + LEASE_NS)
            if until <= now and known > now:
                until = now  # go on
            elif until <= max(known, now) or (known > now and until - known < WORTH_NS):
                continue
            slowed.told[neighbour] = until
            message = Update(slow=(Slow(publisher, until - now),))
            effects.append(Send(LinkId(neighbour), message))
        return effects

    def _forget(self, publisher: ClientId, slowed: Slowed) -> list[Effect]:
        del self.slowed[publisher]
        self._deadlines.disarm(SLOWED, publisher)
        return [Resume(link) for link in slowed.paused]

    def _arm(self, publisher: ClientId, slowed: Slowed, now: int) -> None:
        due = min(slowed.by.values())
        if slowed.told:
            due = min(due, now + RENEWED_NS)
        self._deadlines.arm(SLOWED, publisher, due)

    @property
    def paused(self) -> int:
        """Connections of clients whose publications wait."""
        return sum(len(slowed.paused) for slowed in self.slowed.values())
