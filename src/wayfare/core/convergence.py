"""Convergence: which table updates have spread through the tree, and requests that wait for that.

    client        border broker        neighbour           its other neighbours
      |-- Subscribe -->|                   |                        |
      |-- Probe ------>|-- Update, Probe ->|-- Update, Probe ------>|
      |                |                   |<----------------- Echo-|   nobody is behind it
      |<-------- Echo -|<------------ Echo-|                            all behind it have answered

This is the echo algorithm on a tree: a probe follows the updates on every link, and a broker answers
when all neighbours behind it have answered. A probe stops where nothing is left to confirm, so it goes
no farther than the updates themselves. Numbers count the updates that were sent to one neighbour, and an echo
confirms all of them up to its number.

Subscriptions are confirmed on request. Advertisements always are: until the brokers behind a neighbour have said what
they want of an advertisement, everything that it offers is sent there (`Provisional`). So a publisher
does not wait, and loses nothing from its first publication on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from wayfare.core.messages import MISSING_MAX, BrokerId, Echo, Entry, Probe, Update
from wayfare.core.predicates import Attributes
from wayfare.core.routing import Destinations, near_and_here

# Of a request: a neighbour, or the place of a session whose client asked. With ~place the session itself waits: for
# advertisements, to answer what its client watches; for subscriptions, which the tree may have forgotten.
Source = BrokerId | int
NEVER = 2**63 - 1
NO_ECHO = Echo()
PENDING_MAX = 64  # requests of one source; a later one then answers an earlier one, too


class Barrier(msgspec.Struct, gc=False, eq=False):
    """A request to confirm everything up to now, and the neighbours that still have to."""

    source: Source
    number: int
    report_at: int = NEVER  # then the source is told which neighbours are missing
    missing: dict[BrokerId, int] = {}  # which of its updates each has to confirm


class Spread:
    """The updates of one kind that were sent to each neighbour, and how far they have spread."""

    __slots__ = (
        "_always",
        "_pending",
        "_unlinked",
        "_waiting",
        "asked",
        "confirmed",
        "new",
        "restarted",
        "sent",
    )

    def __init__(self, neighbours: Sequence[BrokerId], *, always: bool) -> None:
        """With `always`, neighbours are asked to confirm every update, and not only on request."""
        self._always = always
        self.sent = dict.fromkeys(neighbours, 0)
        self.asked = dict.fromkeys(neighbours, 0)
        self.confirmed = dict.fromkeys(neighbours, 0)
        self.new: list[Barrier] = []  # requests of this event
        self._pending: dict[Source, deque[Barrier]] = {}  # in the order of their numbers
        self._waiting: dict[BrokerId, deque[Barrier]] = {one: deque() for one in neighbours}
        self.restarted: dict[BrokerId, int] = {}  # and what had been sent before
        self._unlinked = set(neighbours)  # whose links have not begun: nobody knows what they need

    def has_begun(self, neighbour: BrokerId) -> bool:
        """Whether the link to a neighbour has ever begun."""
        return neighbour not in self._unlinked

    def send(self, neighbour: BrokerId) -> int:
        """An update goes to this neighbour now; returns its number."""
        self.sent[neighbour] += 1
        return self.sent[neighbour]

    def request(self, source: Source, number: int, report_at: int = NEVER) -> None:
        self.new.append(Barrier(source, number, report_at))

    def start_over(self, neighbour: BrokerId) -> None:
        """The link begins from nothing: what was asked here or there is forgotten."""
        self.restarted.setdefault(neighbour, self.sent[neighbour])
        self._unlinked.discard(neighbour)
        self.asked[neighbour] = 0
        self.forget(neighbour)
        self.new = [one for one in self.new if one.source != neighbour]

    def forget(self, source: Source) -> None:
        """The source does not wait for its requests any more."""
        for barrier in self._pending.pop(source, ()):
            self._drop(barrier)

    def _drop(self, barrier: Barrier) -> None:
        for neighbour in barrier.missing:
            self._waiting[neighbour].remove(barrier)

    def settle(self) -> list[Barrier]:
        """Behind the updates of this event: the requests that need not wait."""
        done = []
        for neighbour, before in self.restarted.items():
            if self.sent[neighbour] == before:  # it needs to know nothing
                done += self.confirm(neighbour, before)
        self.restarted.clear()
        for barrier in self.new:
            barrier.missing = {
                neighbour: number
                for neighbour, number in self.sent.items()
                if neighbour != barrier.source
                and (number > self.confirmed[neighbour] or neighbour in self._unlinked)
            }
            if barrier.missing:
                self._wait(barrier)
            else:
                done.append(barrier)
        self.new.clear()
        return done

    def _wait(self, barrier: Barrier) -> None:
        pending = self._pending.setdefault(barrier.source, deque())
        if len(pending) >= PENDING_MAX:
            earlier = pending.pop()
            barrier.report_at = min(barrier.report_at, earlier.report_at)
            self._drop(earlier)
        pending.append(barrier)
        for neighbour in barrier.missing:
            self._waiting[neighbour].append(barrier)

    def questions(self) -> Iterator[tuple[BrokerId, int]]:
        """The neighbours to ask now, and which update they are to confirm."""
        for neighbour, number in self.sent.items():
            if number > self.asked[neighbour]:
                waiting = self._waiting[neighbour]
                needed = waiting[-1].missing[neighbour] if waiting else 0
                if self._always or needed > self.asked[neighbour]:
                    self.asked[neighbour] = number
                    yield neighbour, number

    def confirm(self, neighbour: BrokerId, number: int) -> list[Barrier]:
        """Everything up to this update has spread behind the neighbour; the requests that waited for it."""
        number = min(number, self.sent[neighbour])
        self.confirmed[neighbour] = max(self.confirmed[neighbour], number)
        waiting, done = self._waiting[neighbour], []
        while waiting and waiting[0].missing[neighbour] <= number:
            barrier = waiting.popleft()
            del barrier.missing[neighbour]
            if not barrier.missing:
                pending = self._pending[barrier.source]
                pending.remove(barrier)
                if not pending:
                    del self._pending[barrier.source]
                done.append(barrier)
        return done

    def of(self, source: Source) -> Sequence[Barrier]:
        """The requests of a source that wait."""
        return self._pending.get(source, ())

    def late(self, source: Source, now: int) -> Barrier | None:
        """The last request of a source that is late; none of them is reported again."""
        late = [one for one in self.of(source) if one.report_at <= now]
        for barrier in late:
            barrier.report_at = NEVER
        return late[-1] if late else None

    def pending(self) -> Iterator[Barrier]:
        for barriers in self._pending.values():
            yield from barriers

    def save(self) -> SavedSpread:
        unlinked = sorted(self._unlinked)
        return SavedSpread(self.sent, self.asked, self.confirmed, list(self.pending()), unlinked)

    def load(self, saved: SavedSpread) -> None:
        self.sent.update(saved.sent)
        self.asked.update(saved.asked)
        self.confirmed.update(saved.confirmed)
        if saved.sent:
            self._unlinked -= saved.sent.keys() - saved.unlinked
        else:  # of an earlier release, which did not count
            self._unlinked.clear()
        for barrier in saved.pending:
            self._pending.setdefault(barrier.source, deque()).append(barrier)
        for neighbour, waiting in self._waiting.items():
            some = [one for one in saved.pending if neighbour in one.missing]
            waiting.extend(sorted(some, key=lambda one: one.missing[neighbour]))


class Provisional:
    """The advertisements that neighbours have not answered yet: what these offer is sent to them."""

    __slots__ = ("_destinations", "_places", "entries")

    def __init__(self, neighbours: Sequence[BrokerId]) -> None:
        self._places = {name: place for place, name in enumerate(neighbours)}
        self._destinations = Destinations(len(neighbours))
        # Each advertisement, and the number of its update.
        self.entries: dict[BrokerId, dict[Entry, int]] = {}

    def __bool__(self) -> bool:
        return bool(self.entries)

    def add(self, neighbour: BrokerId, entries: Iterable[Entry], number: int) -> None:
        known = self.entries.setdefault(neighbour, {})
        for entry in entries:
            if entry not in known:
                self._destinations.add(entry.filter, self._places[neighbour])
            known[entry] = number
        self._mind(neighbour)

    def remove(self, neighbour: BrokerId, entries: Iterable[Entry]) -> None:
        known = self.entries.get(neighbour, {})
        for entry in entries:
            if known.pop(entry, None) is not None:
                self._destinations.remove(entry.filter, self._places[neighbour])
        self._mind(neighbour)

    def answer(self, neighbour: BrokerId, number: int) -> None:
        """The neighbour has said what it wants of all advertisements up to this update."""
        known = self.entries.get(neighbour, {})
        self.remove(neighbour, [entry for entry, sent in known.items() if sent <= number])

    def start_over(self, neighbour: BrokerId) -> None:
        self.remove(neighbour, list(self.entries.get(neighbour, ())))

    def _mind(self, neighbour: BrokerId) -> None:
        if not self.entries.get(neighbour, True):
            del self.entries[neighbour]

    def join(self, near: Sequence[int], attributes: Attributes) -> list[int]:
        """These places of neighbours, and those that have not said whether they want this."""
        unanswered, _ = near_and_here(self._destinations.find(attributes))
        return sorted({*near, *unanswered})


class SavedSpread(msgspec.Struct, array_like=True, frozen=True):
    sent: dict[BrokerId, int] = {}
    asked: dict[BrokerId, int] = {}
    confirmed: dict[BrokerId, int] = {}
    pending: list[Barrier] = []
    unlinked: list[BrokerId] = []


class SavedConvergence(msgspec.Struct, array_like=True, frozen=True):
    ads: SavedSpread = SavedSpread()
    subs: SavedSpread = SavedSpread()
    provisional: list[tuple[BrokerId, list[tuple[Entry, int]]]] = []
    restarts: dict[BrokerId, int] = {}
    awaited: list[BrokerId] = []
    unheard: list[BrokerId] = []


class Convergence:
    """How far the tables of one broker have spread."""

    __slots__ = (
        "_echoes",
        "_restarts",
        "ads",
        "awaited",
        "is_eager",
        "provisional",
        "subs",
        "unheard",
    )

    def __init__(self, neighbours: Sequence[BrokerId], *, eager: bool = True) -> None:
        """Unless it is `eager`, publications that come before the answers of neighbours are lost."""
        self.is_eager = eager
        self.ads = Spread(neighbours, always=eager)
        self.subs = Spread(neighbours, always=False)
        self.provisional = Provisional(neighbours)
        # Neighbours that tell everything anew: they have when they echo this update of advertisements.
        self._restarts: dict[BrokerId, int] = {}
        self._echoes: dict[Source, Echo] = {}  # of what has spread; not sent yet
        # Neighbours for whom everything is kept until they come, and that were never there; and those that were, but
        # may not have got anything: they cannot know that something is missing. For membership only.
        self.awaited: set[BrokerId] = set()
        self.unheard: set[BrokerId] = set()

    @property
    def is_due(self) -> bool:
        """Whether there is something to do at the end of this event."""
        ads, subs = self.ads, self.subs
        return bool(self._echoes or ads.new or ads.restarted or subs.new or subs.restarted)

    def has_begun(self, neighbour: BrokerId) -> bool:
        """Whether the link to a neighbour has ever begun."""
        return self.subs.has_begun(neighbour)

    def on_probe(self, source: Source, probe: Probe, report_at: int = NEVER) -> None:
        if probe.ads:
            self.ads.request(source, probe.ads, report_at)
        if probe.subs:
            self.subs.request(source, probe.subs, report_at)

    def on_watch(self, place: int) -> None:
        """What a session advertises by now is to be confirmed, for the answers to what it watches."""
        self.ads.request(~place, 1)

    def on_returned(self, place: int) -> None:
        """The tree may have forgotten the filters of a session: it waits until they are in effect again."""
        self.subs.request(~place, 1)

    def on_echo(self, neighbour: BrokerId, echo: Echo) -> bool:
        """What a neighbour was asked for has spread behind it.

        Returns whether it has told everything anew, after its link began from nothing.
        """
        if echo.ads:
            self.provisional.answer(neighbour, echo.ads)
            self._confirm(self.ads.confirm(neighbour, echo.ads), "ads")
        if echo.subs:
            self._confirm(self.subs.confirm(neighbour, echo.subs), "subs")
        if echo.ads < self._restarts.get(neighbour, NEVER):
            return False
        del self._restarts[neighbour]
        return True

    def _confirm(self, done: list[Barrier], kind: str) -> None:
        for barrier in done:
            echo = replace(NO_ECHO, **{kind: barrier.number})
            self._echoes[barrier.source] = merged(self._echoes.get(barrier.source), echo)

    def take_echoes(self, is_settled: Callable[[BrokerId], bool]) -> dict[Source, Echo]:
        """Behind the updates of this event: what to confirm now.

        A neighbour has to wait until the subscriptions that answer its advertisements are settled.
        """
        self._confirm(self.ads.settle(), "ads")
        self._confirm(self.subs.settle(), "subs")
        echoes, self._echoes = self._echoes, {}
        for source in [one for one in echoes if isinstance(one, str) and not is_settled(one)]:
            self._echoes[source] = echoes.pop(source)
        return echoes

    def on_sent(self, neighbour: BrokerId, updates: Sequence[Update]) -> None:
        """Note what a neighbour is told now."""
        added = [entry for one in updates for entry in one.add_ads]
        if added:
            number = self.ads.send(neighbour)
            if self.is_eager:
                self.provisional.add(neighbour, added, number)
        removed = [entry for one in updates for entry in one.remove_ads]
        if removed and self.provisional:
            self.provisional.remove(neighbour, removed)
        if any(one.add_subs for one in updates):
            self.subs.send(neighbour)

    def probes(self) -> dict[BrokerId, Probe]:
        """What neighbours have to be asked behind the updates of this event."""
        ads, subs = dict(self.ads.questions()), dict(self.subs.questions())
        return {one: Probe(ads.get(one, 0), subs.get(one, 0)) for one in {**ads, **subs}}

    def waits(self, place: int) -> bool:
        """Whether a session waits for something."""
        return bool(self.ads.of(place) or self.subs.of(place))

    def late(self, place: int, now: int) -> list[Echo]:
        """The reports on requests of a session that are not confirmed in time."""
        ads, subs = self.ads.late(place, now), self.subs.late(place, now)
        out = [Echo(ads=ads.number, missing=_names(ads))] if ads else []
        return [*out, Echo(subs=subs.number, missing=_names(subs))] if subs else out

    def report_at(self, place: int) -> int:
        """When to report next on the requests of a session."""
        waiting = [*self.ads.of(place), *self.subs.of(place)]
        return min((one.report_at for one in waiting), default=NEVER)

    def expect(self, neighbour: BrokerId) -> None:
        """What is sent to this neighbour is kept from now on, though its link has never begun."""
        self.awaited.add(neighbour)
        self.unheard.add(neighbour)

    def start_over(self, neighbour: BrokerId, *, again: bool) -> None:
        """The link to a neighbour begins from nothing; `again`, if it was there before."""
        self.awaited.discard(neighbour)
        self.unheard.discard(neighbour)
        self.ads.start_over(neighbour)
        self.subs.start_over(neighbour)
        self.provisional.start_over(neighbour)
        self._echoes.pop(neighbour, None)
        if again and self.is_eager:
            # Its echo comes behind all advertisements and subscriptions that it knows by then.
            self._restarts[neighbour] = self.ads.send(neighbour)

    def forget(self, place: int) -> None:
        """The session at this place has ended, or its client is there anew and asks again."""
        for source in (place, ~place):
            self.ads.forget(source)
            self.subs.forget(source)
            self._echoes.pop(source, None)

    def save(self) -> SavedConvergence:
        entries = self.provisional.entries.items()
        provisional = [(name, list(known.items())) for name, known in entries]
        return SavedConvergence(
            self.ads.save(),
            self.subs.save(),
            provisional,
            self._restarts,
            sorted(self.awaited),
            sorted(self.unheard),
        )

    def load(self, saved: SavedConvergence) -> None:
        self.ads.load(saved.ads)
        self.subs.load(saved.subs)
        self._restarts.update(saved.restarts)
        self.awaited.update(saved.awaited)
        self.unheard.update(saved.unheard)
        for neighbour, known in saved.provisional:
            for entry, number in known:
                self.provisional.add(neighbour, [entry], number)


def merged(earlier: Echo | None, later: Echo) -> Echo:
    """Both, as one."""
    if earlier is None:
        return later
    return Echo(max(earlier.ads, later.ads), max(earlier.subs, later.subs))


def _names(barrier: Barrier) -> tuple[BrokerId, ...]:
    return tuple(sorted(barrier.missing))[:MISSING_MAX]
