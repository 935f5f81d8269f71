"""The published algorithms for publishers that move (publisher mobility paper, section 3).

    standard      on leaving, unadvertise; on arriving, advertise                 = no support
    prefetching   on leaving, the old broker tells the next one to advertise now
    proxy         some brokers advertise for the client all the time
    delayed       the old broker unadvertises only after a while
    prefetching+delayed

None of them knows when the tree is complete, so what is published before is lost: baselines for the
handoff, which keeps publications back until then. They say nothing of subscriptions: for these
they are as naive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from wayfare.core import messages as m
from wayfare.core.deadlines import AWAY
from wayfare.core.effects import Effect, Send
from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId, ClientId, LinkId, Prepare
from wayfare.core.relocation import Naive
from wayfare.core.sessions import Session


class Forecast(msgspec.Struct, frozen=True):
    """What a network knows of its clients' ways."""

    # Where a client goes from this broker, and which ones advertise for it, by where it came first.
    next_broker: Callable[[ClientId, BrokerId], BrokerId | None] = lambda _client, _broker: None
    proxies: Callable[[BrokerId], Sequence[BrokerId]] = lambda _home: ()


class Standard(Naive):
    name = "standard"


class Publishers(Naive):
    """Sessions without a client, which only advertise: where it will be, may be, or has been."""

    def __init__(self, *components: object, forecast: Forecast | None = None) -> None:
        super().__init__(*components)  # type: ignore[arg-type]
        self.forecast = forecast or Forecast()

    def on_attach(self, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        for session in self.border.of(message.client):  # there is one at most
            before = dict(session.advertisements)
            effects = self._renew(session, link, message, now)
            if session.advertisements != before:
                self.on_profile(session, now)
            return effects
        session = self._open(link, message)
        if session.advertisements and not message.previous:
            self.on_profile(session, now)
        return [Send(link, m.Welcome(session.epoch, session.published))]

    def on_errand(self, came_from: BrokerId, errand: m.Errand, now: int) -> list[Effect]:
        if not isinstance(errand, Prepare):
            return super().on_errand(came_from, errand, now)
        if errand.broker == self.paths.name:
            return self._prepare(errand, now)
        self.paths.send(errand)
        return []

    def _prepare(self, prepare: Prepare, now: int) -> list[Effect]:
        """Advertise for a client that is not here."""
        for session in self.border.of(prepare.client):
            if session.link is None:
                self.border.set_profile(session, {}, prepare.advertisements)
                session.away_since = now
            return []
        if self.border.is_stale(prepare.client, prepare.epoch + 1):
            return []
        attach = m.Attach(prepare.client, prepare.epoch, 0, (), prepare.advertisements)
        session = self.border.open(attach, None)
        session.away_since = now
        self._time_absence(session)
        return []

    def _leave(self, session: Session, now: int) -> list[Effect]:
        """The client is gone for good: nobody advertises for it any more."""
        self.border.lose_link(session, now)
        return self._end(session, now)

    def _patience_ns(self) -> int:
        """How long a broker advertises for a client that is not there."""
        return self.border.limits.prepared_ns

    def _away_until(self, session: Session) -> int | None:
        return session.away_since + self._patience_ns()

    def _time_absence(self, session: Session) -> None:
        until = session.away_since + self._patience_ns()
        self.border.deadlines.arm(AWAY, session.place, until)


class Prefetching(Publishers):
    name = "prefetching"

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        self._tell_next(session)
        return super().on_link_down(session, now)

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        return self._leave(session, now) if message.leave else self.on_link_down(session, now)

    def _tell_next(self, session: Session) -> None:
        there = self.forecast.next_broker(session.client, self.paths.name)
        if there is not None and there != self.paths.name:
            offered = tuple(session.advertisements)
            self.paths.send(Prepare(there, session.client, session.epoch, offered))


class Delayed(Publishers):
    name = "delayed"

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        self.border.lose_link(session, now)
        self._time_absence(session)
        return []

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        return self._leave(session, now) if message.leave else self.on_link_down(session, now)

    def _patience_ns(self) -> int:
        return self.border.limits.delay_ns


class PrefetchingDelayed(Delayed, Prefetching):
    name = "prefetching+delayed"

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        self._tell_next(session)
        return Delayed.on_link_down(self, session, now)


class Proxy(Publishers):
    name = "proxy"

    def __init__(self, *components: object, forecast: Forecast | None = None) -> None:
        super().__init__(*components, forecast=forecast)
        self._standing: dict[ClientId, None] = {}  # for whom this broker is a proxy

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        if session.client not in self._standing:
            return super().on_link_down(session, now)
        self.border.lose_link(session, now)
        return []

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        if message.leave:
            self._tell_proxies(session, ())
        return self.on_link_down(session, now)

    def on_profile(self, session: Session, now: int) -> None:
        self._tell_proxies(session, tuple(session.advertisements))

    def _tell_proxies(self, session: Session, offered: tuple[Filter, ...]) -> None:
        for proxy in self.forecast.proxies(session.home):
            if proxy != self.paths.name:
                self.paths.send(Prepare(proxy, session.client, session.epoch, offered))
            elif offered:
                self._standing[session.client] = None
            else:
                self._standing.pop(session.client, None)

    def _prepare(self, prepare: Prepare, now: int) -> list[Effect]:
        if prepare.advertisements:
            self._standing[prepare.client] = None
            return super()._prepare(prepare, now)
        self._standing.pop(prepare.client, None)
        effects: list[Effect] = []
        for session in self.border.of(prepare.client):
            if session.link is None:
                effects += self._end(session, now)
        return effects

    def _away_until(self, session: Session) -> int | None:
        return None if session.client in self._standing else super()._away_until(session)
