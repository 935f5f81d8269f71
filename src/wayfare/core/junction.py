"""Junction: REBECA's relocation. Nobody says where the client was; its session is searched for.

A fetch travels behind the subscriptions of the new session, towards matching advertisements, until
it meets the old path; from there it follows the entries of the old path to the session (figures 5 and
6 of the physical mobility paper). Where entries are not those of one client (covering, merging), it
goes towards all advertisements and covering subscriptions. Every direction that was searched says so;
when none of them had the session, because nothing matches any more, all the tree is searched.

What differs from the paper:

- The fetch is for the client with all its subscriptions, not for each of them. So one session
  is handed over at one time, and the order across subscriptions is that of its queue.
- No fetch turns entries round: the session that comes makes, the one that goes breaks, and both are
  ordinary changes of the tables in front of fetch and reply (as in handoff.py).
- The epoch is the relocation counter: a fetch that meets a session which itself still waits, waits
  there; one that meets a later session is answered with nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core.border import Border
from wayfare.core.deadlines import SEARCH
from wayfare.core.effects import Effect
from wayfare.core.handoff import Handoff
from wayfare.core.history import Queued
from wayfare.core.messages import BrokerId, ClientId, Fetch, Request, Searched
from wayfare.core.paths import Paths
from wayfare.core.profiles import digest
from wayfare.core.relocation import NO_SESSION
from wayfare.core.sessions import Session, Wait

SEARCHES_MAX = 10_000  # the oldest are forgotten, and whoever waits for them does so in vain

Key = tuple[ClientId, int, bool]


class Search:
    """A fetch that was here."""

    __slots__ = ("came_from", "fetch", "left", "superseded", "until")

    def __init__(self, fetch: Fetch, came_from: BrokerId | None, left: int, until: int) -> None:
        self.until = until  # then nobody waits for it any more
        self.fetch = fetch
        self.came_from = came_from  # None: from here
        self.left = left  # directions, and sessions here, that have not answered
        self.superseded = False  # a later attachment takes what was found


class Junction(Handoff):
    name = "junction"

    def __init__(self, border: Border, paths: Paths) -> None:
        super().__init__(border, paths)
        self.searches: dict[Key, Search] = {}

    # At the new broker

    def _last_here(self, message: m.Attach) -> Session | None:
        """The client's last session here, unless it attached elsewhere since then.

        Attachments that never reached this broker are skipped: a search for them would take long and find nothing.
        """
        tombstone = self.border.tombstones.get(message.client)
        for broker, epoch in message.previous:
            if broker != self.paths.name:
                return None
            session = self.border.left_here(message.client, epoch, message.life)
            if session is not None:
                return session
            if tombstone is not None and tombstone.next_stop(epoch, message.epoch) is not None:
                return None  # it went on from here
        return None

    def _ask(self, session: Session, message: m.Attach, now: int) -> list[Effect]:
        fetch = Fetch(
            self.paths.name,
            session.client,
            session.epoch,
            message.delivered,
            message.subscriptions,
            digest(session.subscriptions),
            message.previous[-1][1] if message.welcomed else 0,
        )
        return self._search(fetch, None, now)

    def _on_taken_over(
        self, session: Session, wait: Wait, reply: m.Reply, now: int
    ) -> list[Effect]:
        return []  # there may be more: it is released when all has been searched

    def _on_searched_all(self, search: Search, now: int) -> list[Effect]:
        fetch = search.fetch
        session = self.border.at(fetch.client, fetch.epoch)
        if (
            session is None or session.wait is None or session.wait.is_open
        ):  # its time was up; nothing may be left behind
            return [] if fetch.everywhere else self._search_everywhere(fetch, now)
        old = session.wait.old
        session.wait.superseded |= search.superseded
        if fetch.epoch - 1 in old:
            return self._release(session, now)
        if not fetch.everywhere:
            return self._search_everywhere(fetch, now)
        if not old:
            return self._nothing(session, now)
        if max(old) < fetch.since and not session.wait.superseded:
            return self._give_up(session, NO_SESSION, now)
        return self._release(session, now)

    def _search_everywhere(self, fetch: Fetch, now: int) -> list[Effect]:
        return self._search(replace(fetch, everywhere=True), None, now)

    def _is_last(self, session: Session, wait: Wait) -> bool:
        # Else what it has may have come by several ways, and the client has to see what is new to it.
        return [*wait.old] == [session.opened - 1]

    def _nothing(self, session: Session, now: int) -> list[Effect]:
        wait = session.wait
        assert wait is not None
        if wait.pending is None:
            return super()._nothing(session, now)
        if session.welcomed and not wait.superseded:
            return self._give_up(session, NO_SESSION, now)
        return self._release(session, now)  # what it holds may be all there is

    def _seek(self, sessions: Iterable[Session], now: int) -> list[Effect]:
        return []  # its search found what there is

    # On the way, and at the old broker

    def on_errand(self, came_from: BrokerId, errand: m.Errand, now: int) -> list[Effect]:
        if isinstance(errand, Fetch):
            return self._search(errand, came_from, now)
        if isinstance(errand, Searched):
            key = errand.client, errand.epoch, errand.everywhere
            return self._on_searched(key, now, superseded=errand.superseded)
        return super().on_errand(came_from, errand, now)

    def _search(self, fetch: Fetch, came_from: BrokerId | None, now: int) -> list[Effect]:
        border, key = self.border, _key(fetch)
        border.bury(fetch.client, fetch.epoch - 1, now)
        here = [one for one in border.of(fetch.client) if one.epoch < fetch.epoch]
        found = [one for one in here if not one.orphan]
        # The last session before this one has, or waits for, all that older ones had.
        enough = any(one.epoch == fetch.epoch - 1 for one in found)
        directions = [] if enough else self._directions(fetch, came_from)
        until = now + border.limits.tombstone_ns
        border.deadlines.arm(SEARCH, key, until)
        left = 1 + len(directions) + len(found)
        self.searches[key] = Search(fetch, came_from, left, until)
        if len(self.searches) > SEARCHES_MAX:
            self._forget(next(iter(self.searches)))
        for neighbour in directions:
            self.paths.send_by(neighbour, fetch)
        effects: list[Effect] = []
        for session in reversed(found):
            if border.get(session.client, session.epoch) is session:
                effects += self._on_found(session, fetch, now)
            else:  # ended on account of a later one
                effects += self._on_searched(key, now)
        return effects + self._on_searched(key, now, superseded=self._is_superseded(fetch))

    def _is_superseded(self, fetch: Fetch) -> bool:
        """Whether a later attachment of the client took what was here."""
        tombstone = self.border.tombstones.get(fetch.client)
        moved_to = tombstone.moved_to if tombstone is not None else None
        return moved_to is not None and moved_to[1] > fetch.epoch

    def _directions(self, fetch: Fetch, came_from: BrokerId | None) -> list[BrokerId]:
        neighbours = self.paths.neighbours
        if not fetch.everywhere:
            where = self.border.routing.towards(fetch.client, fetch.subscriptions, came_from)
            return [one for one in neighbours if one in where]
        return [one for one in neighbours if one != came_from]

    def _on_searched(self, key: Key, now: int, *, superseded: bool = False) -> list[Effect]:
        """One direction less to wait for, or one session."""
        search = self.searches.get(key)
        if search is None:
            return []
        search.superseded |= superseded
        search.left -= 1
        if search.left:
            return []
        self._forget(key)
        if search.came_from is None:
            return self._on_searched_all(search, now)
        done = Searched(self.paths.name, *key, search.superseded)
        self.paths.send_by(search.came_from, done)
        return []

    def _forget(self, key: Key) -> None:
        del self.searches[key]
        self.border.deadlines.disarm(SEARCH, key)

    def on_search_due(self, key: Key, now: int) -> None:
        search = self.searches.get(key)
        if search is None:
            return
        if search.until <= now:
            self._forget(key)
        else:
            self.border.deadlines.arm(SEARCH, key, search.until)

    def _hand_over_now(
        self, session: Session, request: Request | Fetch, left: list[Queued], now: int
    ) -> list[Effect]:
        assert isinstance(request, Fetch)
        effects = super()._hand_over_now(session, request, left, now)
        return effects + self._on_searched(_key(request), now)

    def _refuse(
        self, request: Request | Fetch, now: int, *, superseded: bool = False
    ) -> list[Effect]:
        assert isinstance(request, Fetch)
        return self._on_searched(_key(request), now, superseded=True)

    def _ask_on(self, request: Request | Fetch, now: int) -> list[Effect]:
        assert isinstance(request, Fetch)
        return self._on_searched(_key(request), now)


def _key(fetch: Fetch) -> Key:
    return fetch.client, fetch.epoch, fetch.everywhere
