"""What the replicator of a broker has subscribed to, for all virtual clients, and what came of it.

To the broker it is one more session; what comes is sorted here: into the buffers of those who wait, and to
those whose clients are there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import cast

from wayfare.core.areas import is_outside, touches
from wayfare.core.border import Border
from wayfare.core.buffers import Buffer, Id, Store
from wayfare.core.deadlines import BUFFER
from wayfare.core.filters import Filter
from wayfare.core.history import Kept as Put
from wayfare.core.history import Stored
from wayfare.core.matching import FilterIndex
from wayfare.core.messages import BrokerId, ClientId, Notification, State, Terms
from wayfare.core.sessions import Session
from wayfare.core.templates import Template
from wayfare.core.virtual import Chains, Listened, Virtual

Meanings = Mapping[Template, Filter]  # of what a client follows
NOTHING: Meanings = {}


class Listening:
    """One filter that the replicator listens to, and for whom."""

    __slots__ = ("buffers", "chains", "filter", "live", "subscribed")

    def __init__(self, filter: Filter, chains: Chains) -> None:
        self.filter, self.chains = filter, chains
        self.buffers: dict[Terms | None, Buffer] = {}
        self.live: dict[ClientId, int] = {}  # whose clients are here, with so many subscriptions
        self.subscribed = 0  # for how many; 0: to others that cover it, for each place of a range


class Ear:
    """The subscriptions of one replicator."""

    def __init__(self, name: ClientId, border: Border) -> None:
        self.store = Store(border.memory)
        self._broker = BrokerId(name.removeprefix("~"))
        self.session = border.listen(name)
        self.heard = _held(self.session)  # what the broker has for virtual clients
        self._border = border
        self._listening: dict[tuple[Filter, Chains], Listening] = {}
        self._index: FilterIndex[Listening] = FilterIndex()

    def add(self, listened: Listened, client: ClientId) -> None:
        """A virtual client listens to this."""
        self._count(listened, client, 1)

    def remove(self, listened: Listened, client: ClientId) -> None:
        self._count(listened, client, -1)

    def sort(self, stored: Stored, came: int, now: int) -> tuple[Id | None, list[ClientId]]:
        """Keep a notification for who waits: under which id, and who gets it now."""
        found = self._index.find(stored.notification.attributes)
        area = stored.notification.area
        buffers = [buffer for one in found for buffer in one.buffers.values()]
        if area is not None and not touches(area, self._broker, self._border.places):
            buffers = []  # whoever comes here is outside
        number: Id | None = None
        if buffers:
            number = self.store.put(stored, came)
            self.store.hold(number)
            for buffer in buffers:
                buffer.put(number, now)
                if not buffer.ages or stored.notification.expires_ns:
                    self._time(buffer)
            self.store.let_go(number)
        return number, _live(found)

    def live(self, notification: Notification) -> list[ClientId]:
        """The clients here that get this."""
        return _live(self._index.find(notification.attributes))

    def clear(self) -> None:
        """Everything that was heard has been sorted."""
        for stored, _ in self.heard:
            self._border.memory.let_go(stored)
        self.heard.clear()
        assert self.session.wait is not None
        self.session.wait.bytes = 0

    def kept(
        self, virtual: Virtual, there: State | None = None, meant: Meanings = NOTHING
    ) -> dict[Id, Put]:
        """What its buffers have for a virtual client, and its client was not told, the oldest first.

        If its client is `there` by now, where what it follows is `meant` so, also what is for that place.
        """
        found: dict[Id, Put] = {}
        for number, wanted in self.candidates(virtual, there, meant).items():
            kept = self.store.kept[number]
            if any(one.matches(kept.stored.notification.attributes) for one in wanted):
                found[number] = kept.stored, kept.came
        return found

    def candidates(
        self, virtual: Virtual, there: State | None = None, meant: Meanings = NOTHING
    ) -> dict[Id, dict[Filter, None]]:
        """As `kept`, but it is not known yet what matches, and by each id is what it may match."""
        found: dict[Id, dict[Filter, None]] = {}
        states = (virtual.state,) if there is None else (virtual.state, there)
        places = [self._border.places.located(one) for one in states]
        for template, listened in virtual.listened.items():
            wanted = {listened.ranged if listened.exact is None else listened.exact: None}
            if template in meant:
                wanted[meant[template]] = None
            for number in self._ids(listened):
                if number >= listened.since and number not in virtual.told:
                    area = self.store.kept[number].stored.notification.area
                    if area is None or not all(is_outside(area, one) for one in places):
                        found.setdefault(number, {}).update(wanted)
        return dict(sorted(found.items()))

    def stored(
        self, wanted: Mapping[Filter, int], states: Iterable[State], told: Container[Id] = ()
    ) -> dict[Id, dict[Filter, None]]:
        """What the store has for whomever: since when, by filter. It is not known yet what matches.

        Without what is of use in none of these states.
        """
        found: dict[Id, dict[Filter, None]] = {}
        oldest = min(wanted.values(), default=0)
        places = [self._border.places.located(one) for one in states]
        for number, kept in reversed(self.store.kept.items()):  # the newest first
            if not wanted or kept.came < oldest:
                break
            area = kept.stored.notification.area
            is_relevant = area is None or not all(is_outside(area, one) for one in places)
            if is_relevant and number not in told:
                found[number] = {one: None for one, since in wanted.items() if kept.came >= since}
        return dict(sorted(found.items()))

    def ids(self, virtual: Virtual) -> set[Id]:
        """What its buffers have, delivered or not."""
        return {number for one in virtual.listened.values() for number in self._ids(one)}

    def key(self, number: Id) -> tuple[ClientId, int] | None:
        """Whose notification has this id; None: it is not kept any more."""
        kept = self.store.kept.get(number)
        if kept is None:
            return None
        return kept.stored.notification.publisher, kept.stored.notification.number

    def expire(self, buffer: Buffer, now: int) -> None:
        """Drop what a buffer has kept for too long."""
        buffer.expire(now)
        buffer.ages = False
        self._time(buffer)

    def _time(self, buffer: Buffer) -> None:
        """Arm a timer for the oldest notification of a buffer, if it has one."""
        if len(buffer):
            buffer.ages = True
            self._border.deadlines.arm(BUFFER, buffer, buffer.expires_at())

    def arm_all(self) -> None:
        """Arm the timers of what was loaded."""
        for buffer in self.buffers():
            self._time(buffer)

    def subscriptions(self) -> list[tuple[Filter, Chains]]:
        """What the replicator has subscribed to at its broker."""
        return [key for key, one in self._listening.items() if one.subscribed]

    def buffers(self) -> list[Buffer]:
        return [buffer for one in self._listening.values() for buffer in one.buffers.values()]

    def _ids(self, listened: Listened) -> Iterator[Id]:
        for filter in listened.placed or (listened.ranged,):
            one = self._listening.get((filter, ()))
            if one is not None and listened.terms in one.buffers:
                yield from one.buffers[listened.terms].ids()

    def _count(self, listened: Listened, client: ClientId, by: int) -> None:
        """So many more virtual clients listen to this, or fewer."""
        ranged = listened.ranged
        if ranged.conjunctions:
            for filter in listened.placed or (ranged,):
                self._keep(filter, listened.terms, by)
            self._subscribe(self._listening_to(ranged, ()), by)
        exact, chains = listened.exact, listened.chains
        if exact is not None and (exact.conjunctions or chains):
            one = self._listening_to(exact, chains)
            one.live[client] = one.live.get(client, 0) + by
            if not one.live[client]:
                del one.live[client]
            self._subscribe(one, by)

    def _keep(self, filter: Filter, terms: Terms | None, by: int) -> None:
        """So many more virtual clients keep what this filter matches, or fewer."""
        one = self._listening_to(filter, ())
        buffer = one.buffers.get(terms)
        if buffer is None:
            buffer = one.buffers[terms] = Buffer(filter, terms, self.store, self._border.limits)
        buffer.listeners += by
        if not buffer.listeners:
            buffer.clear()
            self._border.deadlines.disarm(BUFFER, buffer)
            del one.buffers[terms]
        self._forget_unheard(one)

    def _subscribe(self, one: Listening, by: int) -> None:
        before, one.subscribed = one.subscribed, one.subscribed + by
        session, routing = self.session, self._border.routing
        if not before:
            routing.subscribe(session.client, one.filter, session.place, one.chains)
        elif not one.subscribed:
            routing.unsubscribe(session.client, one.filter, session.place, one.chains)
        self._forget_unheard(one)

    def _listening_to(self, filter: Filter, chains: Chains) -> Listening:
        one = self._listening.get((filter, chains))
        if one is None:
            one = self._listening[filter, chains] = Listening(filter, chains)
            self._index.add(one, filter)
        return one

    def _forget_unheard(self, one: Listening) -> None:
        if not (one.buffers or one.live or one.subscribed):
            del self._listening[one.filter, one.chains]
            self._index.remove(one)


def _live(found: Iterable[Listening]) -> list[ClientId]:
    return list(dict.fromkeys(client for one in found for client in one.live))


def _held(session: Session) -> list[Put]:
    """The list itself: `Border.lose` puts no loss there."""
    assert session.wait is not None
    return cast(list[Put], session.wait.held)
