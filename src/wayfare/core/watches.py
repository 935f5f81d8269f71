"""Quenching: a publisher that watches an advertisement is told whether anybody wants what it offers.

Wanted is what a subscription of a neighbour, or of another session here, overlaps. What a publisher
was told is compared with that after every change of subscriptions that overlap its advertisement,
and after every attachment. The first answer comes from tables that are complete: when all brokers have confirmed
the advertisement (`convergence.py`), and the session does not wait for an older one. A broker of which nobody
watches anything does nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from wayfare.core import messages as m
from wayfare.core.covering import OverlapIndex, price
from wayfare.core.effects import Effect, Send
from wayfare.core.filters import Filter
from wayfare.core.routing import Routing
from wayfare.core.sessions import Session

Key = tuple[int, Filter]  # the place of a session, and an advertisement of it


class Watches:
    """The advertisements that clients of one broker watch."""

    __slots__ = (
        "_destinations",
        "_due",
        "_offers",
        "_routing",
        "_unsettled",
        "begun",
        "sessions",
    )

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._destinations = routing.destinations
        self._offers: OverlapIndex[Key] = OverlapIndex()
        self.sessions: dict[int, Session] = {}  # that watch something, by place
        self._due: dict[Key, None] = {}  # what to look at again
        self._unsettled: set[int] = set()  # places whose first answers wait for confirmations
        self.begun: set[int] = set()  # of them, those that nobody was asked to confirm yet

    def set(self, session: Session, watched: Iterable[Filter]) -> None:
        """Make these what its client watches. It is told everything anew."""
        for filter in [*session.watched]:
            self._forget(session, filter)
        for filter in dict.fromkeys(watched):
            self._add(session, filter)

    def watch(self, session: Session, filter: Filter, *, watch: bool) -> None:
        """Its client watches this, or does not any more."""
        if watch and filter not in session.watched:
            self._add(session, filter)
        elif not watch and filter in session.watched:
            self._forget(session, filter)

    def review(self, session: Session) -> None:
        """Look again at what its client watches."""
        for filter in session.watched:
            self._due[session.place, filter] = None

    def _add(self, session: Session, filter: Filter) -> None:
        session.watched[filter] = None
        key = session.place, filter
        self._offers.add(key, filter)
        self.sessions[session.place] = session
        self._unsettled.add(session.place)
        self.begun.add(session.place)
        self._due[key] = None
        if self._destinations.changed is None:
            self._destinations.changed = {}

    def _forget(self, session: Session, filter: Filter) -> None:
        del session.watched[filter]
        key = session.place, filter
        self._offers.remove(key)
        self._due.pop(key, None)
        if not session.watched:
            del self.sessions[session.place]
            self._unsettled.discard(session.place)
            self.begun.discard(session.place)
        if not self.sessions:
            self._destinations.changed = None

    def settle(self, place: int) -> None:
        """All brokers have confirmed what the session at this place advertises, or nobody waits for them."""
        self._unsettled.discard(place)
        if place in self.sessions:
            self.review(self.sessions[place])

    def tell(self) -> list[Effect]:
        """What publishers have to be told since the last time."""
        self._mind_changes()
        effects: list[Effect] = []
        for place, filter in list(self._due):
            if self._routing.meter.left <= 0:
                break  # the others are told later
            del self._due[place, filter]
            session = self.sessions[place]
            if session.link is None or session.wait is not None:
                continue  # it is told when it is there, and open
            if place in self._unsettled and session.watched[filter] is None:
                continue  # it is told when it has settled
            wanted = self._routing.is_wanted(filter, place)
            if session.watched[filter] != wanted:
                session.watched[filter] = wanted
                effects.append(Send(session.link, m.Interest(filter, wanted)))
        return effects

    def _mind_changes(self) -> None:
        """Find what is to be looked at again, because of subscriptions that came or went."""
        changed, meter = self._destinations.changed or {}, self._routing.meter
        if len(changed) * len(self._offers) > meter.limit:
            for session in self.sessions.values():
                self.review(session)
            changed.clear()
        for filter in list(changed):
            if meter.left <= 0:
                return
            del changed[filter]
            candidates = self._offers.candidates(filter)
            for key in candidates:
                meter.left -= price(key[1], filter)
                if meter.left <= 0 or key[1].overlaps(filter):
                    self._due[key] = None

    @property
    def is_behind(self) -> bool:
        """Whether there is more to tell, later."""
        return bool(self._due or self._destinations.changed)
