"""How a client that moves gets its session back: what the strategies have in common, and naive.

naive      no support: the client subscribes anew                  here
handoff    one round trip between the new broker and the old one   handoff.py
"""

from __future__ import annotations

from wayfare.core import messages as m
from wayfare.core.border import Border
from wayfare.core.effects import Effect, Send
from wayfare.core.messages import BrokerId, LinkId
from wayfare.core.paths import Paths
from wayfare.core.sessions import Session
from wayfare.errors import ProtocolError


class Relocation:
    """What the strategies have in common: the client opens a session, and ends it."""

    name: str

    def __init__(self, border: Border, paths: Paths) -> None:
        self.border = border
        self.paths = paths

    def on_attach(self, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        raise NotImplementedError

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        self.border.lose_link(session, now)
        if message.leave:
            return self.border.end(session, now)
        return []

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        self.border.lose_link(session, now)
        return []

    def on_publish(self, session: Session, message: m.Publish, now: int) -> list[Effect]:
        effects = self.border.publish(session, message, now)
        assert session.link is not None
        return [*effects, Send(session.link, m.Published(session.published))]

    def on_errand(self, came_from: BrokerId, errand: m.Errand, now: int) -> list[Effect]:
        raise ProtocolError(f"{type(errand).__name__}, but relocation is {self.name} here")

    def on_announced(self, now: int) -> list[Effect]:
        """More brokers are known."""
        return []

    def on_tick(self, now: int) -> list[Effect]:
        return self._end_away(now)

    def _end_away(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for session in list(self.border.all()):
            if session.link is None and session.away_since + self.border.limits.away_ns <= now:
                effects += self._end(session, now)
        return effects

    def _end(self, session: Session, now: int) -> list[Effect]:
        return self.border.end(session, now)

    def _open(self, link: LinkId, message: m.Attach) -> Session:
        """A session that starts here."""
        session = self.border.open(message, link)
        tombstone = self.border.tombstones.get(session.client)
        if tombstone is not None:
            session.published = tombstone.published
        return session


class Naive(Relocation):
    """No support: the client subscribes anew, its old broker forgets it when it is gone."""

    name = "naive"

    def on_attach(self, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for old in self.border.of(message.client):
            effects += self.border.end(old, now)
        session = self._open(link, message)
        return [*effects, Send(link, m.Welcome(session.epoch, session.published))]

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        self.border.lose_link(session, now)
        return self.border.end(session, now)

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        return self.on_link_down(session, now)
