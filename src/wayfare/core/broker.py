"""A broker: routes notifications by content, and keeps the sessions of its clients.

The whole surface is `step(event, now)` and `next_deadline()`. Every handler does its work on the
sessions and tables; then the broker sends each neighbour how its tables changed. Notifications of a
handler go out before that.

Links to neighbours carry the neighbour's name; the host keeps them reliable and in order. Links to
clients may break at any time. A session stays when its client is away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wayfare.core import messages as m
from wayfare.core.effects import Close, Effect, Event, LinkDown, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Backlog, Limits, size_of
from wayfare.core.messages import BrokerId, ClientId, LinkId, Notification
from wayfare.core.reduction import STRATEGIES
from wayfare.core.routing import Routing, each_once
from wayfare.core.sessions import Session
from wayfare.errors import ProtocolError, UsageError

DEFAULT_LIMITS = Limits()
NO_SESSION = "no session: it was away for too long, or elsewhere"
EXPIRED_MAX = 10_000  # expired sessions that are remembered; the oldest are forgotten


class Broker:
    """One broker of the tree."""

    def __init__(
        self,
        name: BrokerId,
        neighbours: Sequence[BrokerId] = (),
        routing: str = "covering",
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if routing not in STRATEGIES:
            raise UsageError(f"unknown routing {routing!r}: choose one of {', '.join(STRATEGIES)}")
        self.name = name
        self.neighbours = tuple(neighbours)
        self.sessions: dict[ClientId, Session] = {}
        self.routing = Routing(self.neighbours, STRATEGIES[routing])
        self.limits = limits
        self._find = self.routing.destinations.find
        self._floods = STRATEGIES[routing].floods
        self._by_link: dict[LinkId, Session] = {}
        # Of sessions that were away for too long: the last epoch, so that no older attachment opens one
        # again, and the last publication, so that none is taken twice.
        self._expired: dict[ClientId, tuple[int, int]] = {}
        # Where notifications go: first the neighbours, then one place per session, never reused.
        self._links: list[LinkId] = [LinkId(name) for name in self.neighbours]
        self._neighbour_links = frozenset(self._links)
        self._by_place: dict[int, Session] = {}
        self._next_place = len(self.neighbours)
        # Backlogs that are not empty and clients that are away become too old one day.
        # Invariant: none does so before the deadline, which is None exactly when there are none.
        self.deadline: int | None = None
        self._waits = 0  # how many there are

    def step(self, event: Event, now: int) -> list[Effect]:
        if type(event) is Received:
            message = event.message
            if type(message) is Notification and event.link in self._neighbour_links:
                return self._route(message, event.link, now)
        return EVENTS[type(event)](self, event, now)

    def next_deadline(self) -> int | None:
        """When something that is kept may have become too old."""
        return self.deadline

    # Events

    def on_received(self, event: Received, now: int) -> list[Effect]:
        link, message = event.link, event.message
        try:
            effects = self._handle(link, message, now)
        except ProtocolError as error:
            return [Close(link, str(error), fault=True), *self.on_link_down(LinkDown(link), now)]
        return effects + self._updates() if self.routing.changed else effects

    def on_link_down(self, event: LinkDown, now: int) -> list[Effect]:
        session = self._by_link.pop(event.link, None)
        if session is not None:
            session.link, session.away_since = None, now
            self._wait_for(now + self.limits.away_ns)
        return []

    def on_tick(self, event: Tick, now: int) -> list[Effect]:
        """Sweep all sessions for what has become too old, and see when to look again."""
        if self.deadline is None or now < self.deadline:
            return []
        effects: list[Effect] = []
        for session in list(self.sessions.values()):
            session.backlog.expire(now, self.limits)
            effects += self._push(session)
            if session.link is None and session.away_since + self.limits.away_ns <= now:
                self._end(session)
                self._remember(session)
        ends = [end for session in self.sessions.values() for end in self._ends(session)]
        self._waits = len(ends)
        self.deadline = min(ends, default=None)
        return effects + self._updates()

    def _ends(self, session: Session) -> list[int]:
        """When something of this session will be too old."""
        ends = [session.away_since + self.limits.away_ns] if session.link is None else []
        if session.backlog:
            ends.append(session.backlog.oldest() + self.limits.backlog_age_ns)
        return ends

    def _wait_for(self, end: int) -> None:
        """One more thing that may become too old."""
        self._waits += 1
        if self.deadline is None or end < self.deadline:
            self.deadline = end

    def _wait_less(self) -> None:
        """One thing less; without any, there is no deadline."""
        self._waits -= 1
        if not self._waits:
            self.deadline = None

    # Messages

    def _handle(self, link: LinkId, message: m.AnyMessage, now: int) -> list[Effect]:
        if link in self._neighbour_links:
            if type(message) is not m.Update:
                raise ProtocolError(f"{type(message).__name__} from a broker")
            if self._floods:
                raise ProtocolError("Update from a broker, but this one floods")
            self.routing.apply(BrokerId(link), message)
            return []
        if type(message) is m.Attach:
            return self.on_attach(link, message, now)
        handler = FROM_CLIENT.get(type(message))
        session = self._by_link.get(link)
        if handler is None:
            raise ProtocolError(f"{type(message).__name__} from a client")
        if session is None:
            raise ProtocolError(f"{type(message).__name__} before Attach")
        return handler(self, session, message, now)

    def on_attach(self, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        if link in self._by_link:
            raise ProtocolError("Attach twice on one connection")
        session = self.sessions.get(message.client)
        epoch, published = self._expired.get(message.client, (0, 0))
        if message.epoch <= (epoch if session is None else session.epoch):
            return [Close(link, f"a later attachment of {message.client} is or was here")]
        effects: list[Effect] = []
        if max(len(message.subscriptions), len(message.advertisements)) > self.limits.filters:
            raise ProtocolError(f"a client has at most {self.limits.filters} filters of a kind")
        forgotten = message.welcomed
        if session is None:
            session = self._open(message)
            session.published = published
        else:
            forgotten = not self._resume(session, message.delivered)
            if session.link is not None:
                effects.append(Close(session.link, f"{message.client} attached again"))
                del self._by_link[session.link]
            else:
                self._wait_less()
        session.epoch = message.epoch
        session.link = link
        self._by_link[link] = session
        self._set_profile(session, message.subscriptions, message.advertisements)
        effects.append(Send(link, m.Welcome(session.epoch, session.published)))
        if forgotten:
            effects.append(Send(link, m.Gap(message.delivered, NO_SESSION)))
        return effects + self._push(session)

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        assert session.link is not None
        self.on_link_down(LinkDown(session.link), now)
        if message.leave:
            self._end(session)
        return []

    def on_subscribe(self, session: Session, message: m.Subscribe, now: int) -> list[Effect]:
        if message.filter not in session.subscriptions:
            self._check_room(session.subscriptions)
            session.subscriptions[message.filter] = None
            self.routing.subscribe(session.client, message.filter, session.place)
        return []

    def on_unsubscribe(self, session: Session, message: m.Unsubscribe, now: int) -> list[Effect]:
        if message.filter in session.subscriptions:
            del session.subscriptions[message.filter]
            self.routing.unsubscribe(session.client, message.filter, session.place)
        return []

    def on_advertise(self, session: Session, message: m.Advertise, now: int) -> list[Effect]:
        if message.filter not in session.advertisements:
            self._check_room(session.advertisements)
            session.advertisements[message.filter] = None
            self.routing.advertise(session.client, message.filter)
        return []

    def on_unadvertise(self, session: Session, message: m.Unadvertise, now: int) -> list[Effect]:
        if message.filter in session.advertisements:
            del session.advertisements[message.filter]
            self.routing.unadvertise(session.client, message.filter)
        return []

    def _check_room(self, held: dict[Filter, None]) -> None:
        if len(held) >= self.limits.filters:
            raise ProtocolError(f"a client has at most {self.limits.filters} filters of a kind")

    def on_publish(self, session: Session, message: m.Publish, now: int) -> list[Effect]:
        effects: list[Effect] = []
        if message.number > session.published:
            session.published = message.number
            notification = Notification(
                session.client, message.number, message.attributes, message.payload
            )
            effects = self._route(notification, None, now)
        assert session.link is not None
        effects.append(Send(session.link, m.Published(session.published)))
        return effects

    def on_ack(self, session: Session, message: m.Ack, now: int) -> list[Effect]:
        kept = bool(session.backlog)
        session.backlog.acknowledge(message.number)
        if kept and not session.backlog:
            self._wait_less()
        return self._push(session)

    # Notifications

    def _route(
        self, notification: Notification, came_from: LinkId | None, now: int
    ) -> list[Effect]:
        """Send a notification on to every neighbour and session that wants it."""
        links, limits, by_place = self._links, self.limits, self._by_place
        first_session = len(links)
        effects: list[Effect] = []
        if self._floods:
            effects += [Send(link, notification) for link in links if link != came_from]
        size = -1
        found = self._find(notification.attributes)
        for place in found[0].places if len(found) == 1 else each_once(found):
            if place < first_session:
                link = links[place]
                if link != came_from:
                    effects.append(Send(link, notification))
            else:
                if size < 0:
                    size = size_of(notification)
                session = by_place[place]
                connection, backlog = session.link, session.backlog
                unacked = backlog.unacked
                kept = bool(unacked or backlog.waiting)
                if connection is None:
                    backlog.put(notification, size, now, limits)
                elif backlog.last == backlog.sent < backlog.acked + limits.window:
                    deliver = backlog.pass_on(notification, size, now, limits)
                    effects.append(Send(connection, deliver))
                else:
                    backlog.put(notification, size, now, limits)
                    effects += self._push(session)
                if not kept:
                    if backlog:
                        self._wait_for(now + limits.backlog_age_ns)
                elif not backlog:  # a limit has dropped everything
                    self._wait_less()
        return effects

    def _push(self, session: Session) -> list[Effect]:
        """Send a client what may be sent now."""
        link = session.link
        if link is None:
            return []
        return [Send(link, message) for message in session.backlog.take(self.limits.window)]

    # Sessions

    def _open(self, message: m.Attach) -> Session:
        self._expired.pop(message.client, None)
        session = Session(message.client, message.epoch, self._next_place, message.delivered)
        self._next_place += 1
        self._by_place[session.place] = session
        self.sessions[session.client] = session
        return session

    def _resume(self, session: Session, delivered: int) -> bool:
        """Go on behind this delivery; False if the client was elsewhere in between."""
        kept = bool(session.backlog)
        known = session.backlog.resume(delivered)
        if not known:
            session.backlog = Backlog(delivered)
        if kept and not session.backlog:
            self._wait_less()
        return known

    def _end(self, session: Session) -> None:
        """Forget a session whose client is away."""
        self._set_profile(session, (), ())
        self._wait_less()
        if session.backlog:
            self._wait_less()
        del self._by_place[session.place]
        del self.sessions[session.client]

    def _remember(self, session: Session) -> None:
        """Its client did not say goodbye: it may come back, and send again what nobody confirmed."""
        self._expired[session.client] = session.epoch, session.published
        if len(self._expired) > EXPIRED_MAX:
            del self._expired[next(iter(self._expired))]

    def _set_profile(
        self, session: Session, subscriptions: Sequence[Filter], advertisements: Sequence[Filter]
    ) -> None:
        """Make these the client's subscriptions and advertisements, additions first."""
        client, place = session.client, session.place
        wanted, offered = dict.fromkeys(subscriptions), dict.fromkeys(advertisements)
        for filter in offered:
            if filter not in session.advertisements:
                self.routing.advertise(client, filter)
        for filter in wanted:
            if filter not in session.subscriptions:
                self.routing.subscribe(client, filter, place)
        for filter in session.subscriptions:
            if filter not in wanted:
                self.routing.unsubscribe(client, filter, place)
        for filter in session.advertisements:
            if filter not in offered:
                self.routing.unadvertise(client, filter)
        session.subscriptions, session.advertisements = wanted, offered

    def _updates(self) -> list[Effect]:
        return [Send(LinkId(name), update) for name, update in self.routing.updates()]


EVENTS: dict[type, Callable[[Broker, Any, int], list[Effect]]] = {
    Received: Broker.on_received,
    LinkDown: Broker.on_link_down,
    Tick: Broker.on_tick,
}

FROM_CLIENT: dict[type, Callable[[Broker, Session, Any, int], list[Effect]]] = {
    m.Detach: Broker.on_detach,
    m.Subscribe: Broker.on_subscribe,
    m.Unsubscribe: Broker.on_unsubscribe,
    m.Advertise: Broker.on_advertise,
    m.Unadvertise: Broker.on_unadvertise,
    m.Publish: Broker.on_publish,
    m.Ack: Broker.on_ack,
}
