"""How a client that moves gets its session back: what the strategies have in common, and naive.

naive       no support: the client subscribes anew                   here
handoff     one round trip between the new broker and the old one    handoff.py
junction    the same, but the old broker has to be searched for      junction.py
home        the session stays at the first broker, others tunnel     home.py
standard, prefetching, proxy, delayed    for publishers              publishers.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core.border import Border, is_earlier
from wayfare.core.deadlines import AWAY
from wayfare.core.effects import EXPIRED, Close, Effect, LinkDown, Received, Send
from wayfare.core.history import NEVER, Loss, Queued, is_unsure, with_loss_between
from wayfare.core.messages import BrokerId, LinkId
from wayfare.core.paths import Paths
from wayfare.core.sessions import Session, Wait
from wayfare.errors import ProtocolError

BEGAN_ANEW = "{} began anew: a name is one client's, and its latest process has it"
NO_SESSION = "no session: it was away for too long, or its broker has forgotten it"
EXCEED = "an earlier process of {} reached a higher number: attach again, above it"
OUT_OF_STEP = (
    "the client and its session disagree about what was delivered: the store of one of them was"
    " rolled back"
)

ROUTES_LOST = (
    "a broker had forgotten its subscriptions: what was published before they were in effect again"
    " may be missing"
)
SUBSCRIPTIONS_FORGOTTEN = Loss(
    1,
    "the store of its broker was rolled back, to other subscriptions of the client than the latest",
    exact=False,
)


class Relocation:
    """What the strategies have in common: the client opens a session, and ends it."""

    name: str
    remembers = True  # what a client misses; so a client that has to begin anew is told

    def __init__(self, border: Border, paths: Paths) -> None:
        self.border = border
        self.paths = paths

    def on_attach(self, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        """A client is here, and was nowhere before."""
        session = self._open(link, message)
        if message.welcomed and self.remembers:
            session.backlog.lose(1, NO_SESSION, exact=False)
        welcome = Send(link, m.Welcome(session.epoch, session.published))
        return [welcome, *self.border.push(session, now)]

    def on_began(self, began: m.Began, came_from: BrokerId | None, now: int) -> list[Effect]:
        """A client began anew, here or elsewhere: in all the tree, its older sessions end.

        Its earlier process was killed, its goodbye was lost, or it is still there.
        """
        border, client = self.border, began.client
        tombstone, reached = border.tombstones.get(client), 0
        effects = self._ask_on_how_far(began, came_from) if began.asks else []
        if came_from is not None and began.broker:
            reached = border.reached(client, began.life)
            reached = reached if reached >= began.epoch else 0
            published = border.published(client) if began.asks else 0
            if reached or published:
                told = m.Reply(
                    began.broker, client, began.epoch, False, published=published, above=reached
                )
                self.paths.send(told)
            if began.asks and tombstone is None and not border.knows(client):
                return effects  # its name may be new: that is not remembered everywhere
        if tombstone is not None and tombstone.began >= began.epoch:
            return effects
        border.bury(client, began.epoch - 1, now, began=began.epoch, life=began.life, above=reached)
        if not began.asks:
            effects = self._announce(began, came_from)
        for old in border.of(client):
            own = old.life == began.life
            ends = old.epoch < began.epoch and not (began.broker and own)
            # It may have reached no lower number.
            ends |= is_earlier(old.life, old.earliest, began.life, began.epoch)
            if ends and not old.leaving:  # otherwise it ends by itself
                effects += border.disconnect(old, BEGAN_ANEW.format(client), now)
                effects += self._end(old, now)
        return effects

    def _announce(self, began: m.Began, came_from: BrokerId | None) -> list[Effect]:
        return [
            Send(LinkId(neighbour), m.Announce((), (began,)))
            for neighbour in self.paths.neighbours
            if neighbour != came_from
        ]

    def _ask_on_how_far(self, began: m.Began, came_from: BrokerId | None) -> list[Effect]:
        """Pass it on, also where it is known. Advertisements are confirmed behind the replies to it."""
        for neighbour in self.paths.neighbours:
            if neighbour != came_from:
                self.border.convergence.ads.send(neighbour)
        return self._announce(began, came_from)

    def on_reached(self, reply: m.Reply, now: int) -> list[Effect]:
        """A broker knows how far earlier processes of a client are that began anew here.

        The client has to exceed their attachments; what they published counts as published by it, if it asked for that.
        """
        if reply.broker != self.paths.name:
            self.paths.send(reply)
            return []
        session = self.border.begun_at(reply.client, reply.epoch)
        if session is None:
            tombstone = self.border.tombstones.get(reply.client)
            if tombstone is not None and tombstone.went_after(reply.epoch):
                assert tombstone.moved_to is not None
                broker, epoch = tombstone.moved_to
                return self.on_reached(replace(reply, broker=broker, epoch=epoch), now)
            # Its next broker asks here.
            self.border.bury(reply.client, 0, now, reply.published, above=reply.above)
            return []
        session.above = max(session.above, reply.above)
        effects: list[Effect] = []
        if reply.published > session.published:
            session.published = reply.published
            if session.link is not None:
                effects.append(Send(session.link, m.Published(session.published)))
        return [*effects, *self._have_exceed(session, now)]

    def _have_exceed(self, session: Session, now: int) -> list[Effect]:
        """If an earlier process of the client reached a higher number, have the client attach above it."""
        if session.link is None or session.above < session.epoch:
            return []
        tell = Send(session.link, m.Resend(session.epoch, session.above))
        why = EXCEED.format(session.client)
        return [tell, *self.hang_up(session, why, now, again=True)]

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        self.border.lose_link(session, now)
        if message.leave:
            return self.border.end(session, now)
        return []

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        self.border.lose_link(session, now)
        return []

    def hang_up(self, session: Session, why: str, now: int, *, again: bool = False) -> list[Effect]:
        """Close the connection of a session, if it has one; the client may attach again."""
        return self.border.disconnect(session, why, now, again=again)

    def visits(self, message: m.Attach) -> bool:
        """Whether the session of this client is another broker's business."""
        return False

    def on_stranger(self, link: LinkId, message: m.FromClient, now: int) -> list[Effect]:
        """A client that has no session here speaks."""
        raise ProtocolError(f"{type(message).__name__} before Attach")

    def on_stranger_down(self, link: LinkId, now: int) -> list[Effect]:
        """The connection of a client that has no session here is gone."""
        return []

    def on_tunnel(self, message: m.Tunnel, now: int) -> list[Effect | Received | LinkDown]:
        raise ProtocolError(f"Tunnel, but relocation is {self.name} here")

    def on_gap(self, neighbour: BrokerId, now: int) -> list[Effect | Received | LinkDown]:
        """Something that was to come from there, or to go there, is lost."""
        return []

    def outward(self, effects: list[Effect]) -> list[Effect]:
        """The same effects, for links that this broker really has."""
        return effects

    def on_publish(self, session: Session, message: m.Publish, now: int) -> list[Effect]:
        return self.border.accept(session, message, now)

    def on_unlinked(self, neighbour: BrokerId, now: int) -> list[Effect]:
        """A neighbour cannot be reached any more."""
        return []

    def on_sought(self, sought: Sequence[m.Request], now: int) -> list[Effect]:
        """Hand older sessions of these clients over."""
        return []

    def on_spoken(self, session: Session, now: int) -> list[Effect]:
        """The client of a session that was an orphan has said something: it is really there."""
        return []

    def on_spread(self, session: Session, now: int) -> list[Effect]:
        """The filters of a session, which the tree had forgotten, are in effect again."""
        self.border.lose(session, ROUTES_LOST)
        return self.border.push(session, now)

    def on_errand(self, came_from: BrokerId, errand: m.Errand, now: int) -> list[Effect]:
        raise ProtocolError(f"{type(errand).__name__}, but relocation is {self.name} here")

    def on_unclaimed(self, unclaimed: Sequence[m.Unclaimed], now: int) -> list[Effect]:
        """Sessions of a broker whose store was rolled back: their clients may be here by now."""
        return []

    def on_profile(self, session: Session, now: int) -> None:
        """The client of a session advertises something else now."""

    def on_announced(self, now: int) -> list[Effect]:
        """More brokers are known."""
        return []

    def on_answer_due(self, session: Session, now: int) -> list[Effect]:
        """A session may have waited for its old broker for too long."""
        return []

    def release(self, session: Session, now: int) -> list[Effect]:
        """Open a session that waited for its old broker, and then for replies about the past."""
        return []

    def on_opened(self, session: Session, wait: Wait, now: int) -> list[Effect]:
        """A session was open, held back what came while it asked for the past, and is open again."""
        return []

    def on_away_due(self, session: Session, now: int) -> list[Effect]:
        """The client of a session may have been away for too long."""
        until = self._away_until(session) if session.link is None else None
        if until is None:
            return []
        if session.wait is not None:  # a broker that waits for it gets a reply first
            until = max(until, session.wait.until)
        if until <= now:
            ended = session.ended(EXPIRED, now)
            return [*self.border.publish_will(session, now), *self._end(session, now), ended]
        self.border.deadlines.arm(AWAY, session.place, until)
        return []

    def _away_until(self, session: Session) -> int | None:
        """When the session of a client that is away ends; None: not because of its age."""
        return session.away_until

    def on_search_due(self, key: Any, now: int) -> None:
        """A search of this strategy may have taken too long."""

    def forget(self, session: Session, now: int) -> list[Effect]:
        """End a session because an operator says so."""
        return [*self.border.publish_will(session, now), *self._end(session, now)]

    def leave(self, session: Session, now: int) -> list[Effect]:
        """End a session whose client has left, and whose publications are all accepted."""
        return self._end(session, now)

    def _end(self, session: Session, now: int) -> list[Effect]:
        return self.border.end(session, now)

    def _open(self, link: LinkId, message: m.Attach) -> Session:
        """A session that starts here."""
        session = self.border.open(message, link)
        tombstone = self.border.tombstones.get(session.client)
        if tombstone is not None:
            session.published = tombstone.published
        return session

    def _renew(self, session: Session, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        """The client is back where it was: as if its session were handed over on the spot."""
        border = self.border
        effects = border.disconnect(session, f"{message.client} attached again", now)
        left = left_of(session, message.delivered)
        if session.rolled_back and session.subscriptions.keys() != {*message.subscriptions}:
            left = with_loss_between(left, SUBSCRIPTIONS_FORGOTTEN)
        border.renew(session, message, link)
        border.begin_backlog(session, message.delivered)
        session.backlog.may_repeat |= is_unsure(left)
        border.put_thinned(session, left, now)
        effects.append(Send(link, m.Welcome(session.epoch, session.published)))
        return [*effects, *border.tell_unsettled(session), *border.push(session, now)]


def left_of(session: Session, delivered: int) -> list[Queued]:
    """What a client has not got yet; if nobody knows, what it may not have got before.

    If its own store was rolled back, that is all that is kept. If the session was, that is what came
    since then, or has a higher number.
    """
    backlog = session.backlog
    left = backlog.left(delivered)
    if left is not None:
        return left
    kept = backlog.above(min(delivered, max(session.rolled_back, backlog.acked)))
    if delivered > backlog.sent and not session.rolled_back:
        kept = []
    return [(Loss(1, OUT_OF_STEP, exact=False), NEVER), *kept]


def began(message: m.Attach, here: BrokerId) -> m.Began | None:
    """That a client begins anew; None if it does not, or brokers know it already.

    It says so until it is welcomed: nobody may have heard it before. Who counts from 1 has a name
    that nobody had before.
    """
    if message.anew:
        first = min(message.anew, message.epoch)
        return m.Began(message.client, first, here, message.life, message.resumes)
    first = message.previous[-1][1] if message.previous else message.epoch
    if message.welcomed or first <= 1:
        return None
    return m.Began(message.client, min(first, message.epoch), life=message.life)


class Naive(Relocation):
    """No support: the client subscribes anew, its old broker forgets it when it is gone."""

    name = "naive"
    remembers = False

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        self.border.lose_link(session, now)
        return self.border.end(session, now)

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        return self.on_link_down(session, now)

    def hang_up(self, session: Session, why: str, now: int, *, again: bool = False) -> list[Effect]:
        """No link will go down any more: the session would stay beside the next one."""
        link = session.link
        if link is None:
            return []
        return [Close(link, why, again=again), *self.on_link_down(session, now)]
