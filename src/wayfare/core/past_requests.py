"""The past from other brokers: what was published before a client subscribed, and is remembered elsewhere.

    client         its broker                            towards the advertisers
      |-- Subscribe -->|-- Update(+sub), PastRequest -->|-- Update(+sub), PastRequest -->|
      |   (since)      |<-- PastReply(1 more to reply) -|<- PastReply(what it remembers) |
      |<- Deliver ... -|  the past, and then what came meanwhile

A request follows the subscription on every link, so what was published before it arrived is in a reply, and what was
published after that comes behind the reply. Until all replies are there, the session holds back what comes, like a
session that waits for its old broker; then both are delivered, each notification once, in every publisher's order.

All that a broker's own clients publish comes by there, so that broker is the one to reply. Others remember what somebody
behind them wanted: they are asked only if a publisher's broker has forgotten too much, or remembers nothing. A broker
replies at once, and says how many neighbours it has passed the request on to; no state is left behind on the way.

What is incomplete is reported by a gap: a reply that does not come in time, a broker that does not reach back so far, a
link that began from nothing, limits. Where publishers of something that matches are, or were, is known by their
advertisements (`Routing.may_have_come`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core.border import Border
from wayfare.core.deadlines import ANSWER, AWAY
from wayfare.core.effects import Effect, Send
from wayfare.core.filters import Filter
from wayfare.core.history import (
    FORGOTTEN_PAST,
    NEVER,
    Kept,
    Loss,
    Queued,
    Stored,
    has_expired,
    in_order,
    in_order_with_losses,
    size_of,
    with_loss_behind,
    with_values_behind,
)
from wayfare.core.late import LATE
from wayfare.core.messages import (
    REPLY_BYTES_MAX,
    REPLY_KEPT_MAX,
    BrokerId,
    ClientId,
    PastReply,
    PastRequest,
    Terms,
)
from wayfare.core.paths import Paths
from wayfare.core.relocation import Relocation
from wayfare.core.routing import LOCAL
from wayfare.core.sessions import PastQuery, Session, Wait
from wayfare.core.thinning import past_to_send, past_wanted

QUERIES_MAX = 100  # requests of one session whose replies are still to come


class PastRequests:
    """At one broker."""

    def __init__(self, border: Border, paths: Paths, relocation: Relocation) -> None:
        self.border, self.paths, self.relocation = border, paths, relocation
        self._floods = border.routing.strategy == "flooding"
        self._last = 0  # the number of the last request

    # For sessions here

    def begin(self, session: Session, message: m.Subscribe, now: int) -> None:
        """Look for what a session wants of the past; it holds back what comes until `go_on` opens it."""
        border, wait = self.border, session.wait
        until = now + border.limits.recall_ns
        if wait is None:
            wait = session.wait = Wait(dict(session.subscriptions), until)
            wait.is_open = True
        query = PastQuery(message.filter, now - message.since_ns, until)
        is_many = sum(one.left > 0 for one in wait.queries.values()) >= QUERIES_MAX
        terms = session.subscriptions[message.filter]
        wait.queries[self.look(session.place, query, terms, now, elsewhere=not is_many)] = query
        border.memory.note(session)

    def look(
        self, place: int, query: PastQuery, terms: Terms | None, now: int, *, elsewhere: bool = True
    ) -> int:
        """Look for the past here, and ask other brokers to reply to this place; under which number."""
        self._last = max(self._last + 1, now)  # no number of an earlier process
        found = self.border.past.since(query.since, query.filter, now)
        self._take(query, ((Stored(one, size_of(one)), came) for one, came in found))
        query.complete = self._is_complete(query.filter, query.since, terms, now)
        if not elsewhere:
            query.complete, query.others = False, True
        elif not (self._floods and query.complete):  # else everything came by here
            self._ask(place, terms, self._last, query, now)
        return self._last

    def is_answered(
        self, place: int, number: int, query: PastQuery, terms: Terms | None, now: int
    ) -> bool:
        """Whether no reply is to come any more; if what came is incomplete, more brokers are asked first."""
        if not (query.left or query.complete or query.others or self._floods):
            query.others = True
            self._ask(place, terms, number, query, now)
        return not query.left

    def _ask(
        self, place: int, terms: Terms | None, number: int, query: PastQuery, now: int
    ) -> None:
        request = PastRequest(
            self.paths.name,
            place,
            number,
            query.filter,
            now - query.since,
            terms,
            query.others,
        )
        asked, complete = self._pass_on(request, None, now)
        query.left += asked
        query.complete &= complete

    def go_on(self, session: Session, now: int) -> list[Effect]:
        """Open a session if nothing is to come any more that it waits for."""
        wait = session.wait
        if wait is None or not wait.queries:
            return []
        for number, query in wait.queries.items():
            terms = session.subscriptions.get(query.filter)
            self.is_answered(session.place, number, query, terms, now)
        waiting = [one.until for one in wait.queries.values() if one.left]
        if waiting:
            self.border.deadlines.arm(ANSWER, session.place, min(waiting))
            return []
        if wait.is_open:
            return self._open(session, wait, now)
        return self.relocation.release(session, now) if wait.is_due else []

    def on_reply(self, reply: PastReply, now: int) -> list[Effect]:
        if reply.broker != self.paths.name:
            self.paths.send(reply)
            return []
        session = self.border.at_place(reply.place)
        wait = None if session is None else session.wait
        query = None if wait is None else wait.queries.get(reply.number)
        if session is None or query is None or not query.left:  # it came too late
            return []
        self.take_reply(query, reply, now)
        self.border.memory.note(session)
        return [] if reply.more else self.go_on(session, now)

    def take_reply(self, query: PastQuery, reply: PastReply, now: int) -> None:
        kept = [(one.notification, now - one.age_ns) for one in reply.kept]
        found = (
            (Stored(one, size_of(one)), came)
            for one, came in kept
            if query.filter.matches(one.attributes) and not has_expired(one, came, now)
        )
        self._take(query, found)
        query.complete &= reply.complete
        if not reply.more:
            query.left += reply.asked - 1

    def on_due(self, session: Session, now: int) -> list[Effect]:
        """Wait no longer for replies that are late, or if too much is held back."""
        wait = session.wait
        if wait is None or not wait.asks_for_past():
            return []
        is_full = self.border.is_full(wait)
        for query in wait.queries.values():
            if is_full or query.until <= now:
                query.give_up()
        return self.go_on(session, now)

    def end(self, session: Session, now: int) -> list[Effect]:
        """Open a session that waits for replies only, whatever has come."""
        wait = session.wait
        if wait is None or not wait.is_open:
            return []
        wait.give_up()
        return self.go_on(session, now)

    def lose(self) -> None:
        """Something is lost between brokers: it may have been a request, or a reply."""
        for session in self.border.all():
            if session.wait is not None:
                for query in session.wait.queries.values():
                    query.complete &= not query.left

    def extend_waits(self, by_ns: int, now: int) -> None:
        latest = now + self.border.limits.recall_ns
        for session in self.border.all():
            if session.wait is not None:
                for query in session.wait.queries.values():
                    query.until = min(query.until + by_ns, latest)

    def _take(self, query: PastQuery, found: Iterator[Kept]) -> None:
        """Remember what was found, but no more than is held back, or remembered, here anyway."""
        memory, limits = self.border.memory, self.border.limits
        count = max(limits.held_count, limits.backlog_count, limits.past_count)
        size = max(limits.backlog_bytes, limits.past_bytes)
        for stored, came in found:
            if query.put(stored, came):
                memory.keep(stored)
        for stored in query.shorten(count, size):
            memory.let_go(stored)
            query.complete = False

    def _open(self, session: Session, wait: Wait, now: int) -> list[Effect]:
        """Deliver the past, what came meanwhile, and from now on what comes."""
        border = self.border
        held = border.with_current_values(wait, 0, now)
        past, lost = found_past(session, wait, held, {}, now)
        session.wait = None
        border.deadlines.disarm(ANSWER, session.place)
        queue = list(_news(session, with_values_behind(in_order_with_losses([*past, *held])), now))
        if session.backlog.may_repeat:  # what an older session had may be missing in between
            recalled = {one for one, _ in past if isinstance(one, Stored)}
            queue = with_loss_behind(queue, Loss(1, FORGOTTEN_PAST, exact=False), recalled)
        border.backpressure.expect(session, len(queue), now)
        border.put(session, [*lost, *queue])
        border.let_go(wait)
        border.note(session)
        if session.link is None:
            border.deadlines.arm(AWAY, session.place, session.away_until)
        border.arm_will(session)
        border.watches.review(session)
        effects = border.push(session, now)
        if session.link is not None and wait.echo is not None:
            effects.append(Send(session.link, wait.echo))
        if session.link is not None and wait.asks:
            effects.append(Send(session.link, m.CaughtUp(session.backlog.last)))
        return effects + self.relocation.on_opened(session, wait, now)

    # For sessions elsewhere

    def on_request(self, came_from: BrokerId, request: PastRequest, now: int) -> list[Effect]:
        """Reply with what is remembered here, and let the neighbours behind which there may be more do so."""
        since = now - request.since_ns
        asked, complete = self._pass_on(request, came_from, now)
        kept: list[Kept] = []
        is_origin = self.border.routing.may_have_come(LOCAL, request.filter, since)
        if is_origin != request.others:
            found = self.border.past.since(since, request.filter, now)
            stored = [(Stored(one, size_of(one)), came) for one, came in found]
            kept = past_to_send(stored, request.terms, now)
            complete &= self._is_complete(request.filter, since, request.terms, now)
        reply = PastReply(request.broker, request.place, request.number)
        pieces = list(_pieces(kept)) or [[]]
        for piece in pieces[:-1]:
            self.paths.send(replace(reply, kept=_told(piece, now), more=True))
        last = replace(reply, kept=_told(pieces[-1], now), asked=asked, complete=complete)
        self.paths.send(last)
        return []

    def _is_complete(self, filter: Filter, since: int, terms: Terms | None, now: int) -> bool:
        """Whether this broker remembers all that is wanted of what its clients published since then."""
        past = self.border.past
        if past.forgotten <= since and self.border.limits.past_count:
            return True
        if not self.border.routing.may_have_come(LOCAL, filter, since):
            return True
        if terms is None or terms.last is None:
            return False
        found = [(Stored(one, 0), came) for one, came in past.since(since, filter, now)]
        return len(past_wanted(found, terms, now)) >= terms.last

    def _pass_on(
        self, request: PastRequest, came_from: BrokerId | None, now: int
    ) -> tuple[int, bool]:
        """Send a request to the neighbours behind which there may be more.

        Returns how many those are, and whether nothing is known to be missing there.
        """
        since, routing = now - request.since_ns, self.border.routing
        there = [
            one
            for one in self.paths.neighbours
            if one != came_from and routing.may_have_come(one, request.filter, since)
        ]
        near = [one for one in there if one not in self.paths.down and request.hops]
        for one in near:
            self.paths.send_by(one, replace(request, hops=request.hops - 1))
        cut = any(self.border.cut.get(one, NEVER) >= since for one in near)
        return len(near), len(near) == len(there) and not cut


def found_past(
    session: Session, wait: Wait, held: list[Queued], known: Mapping[ClientId, int], now: int
) -> tuple[list[Queued], list[Queued]]:
    """What a session wants of what was found, and the loss in front of that, if it is incomplete.

    Without current values that are `held`, because it gets them anyway, and what is older than what its client has of
    the publisher. Values that are not current any more are in the past only.
    """
    values = [one for one, _ in held if isinstance(one, Stored) and one.ask]
    there = {(one.notification.publisher, one.notification.number) for one in values}
    out: list[Kept] = []
    lost: list[Queued] = []
    for query in wait.queries.values():
        if query.filter not in session.subscriptions:
            continue
        found = in_order(sorted(query.found.values(), key=_when))
        for stored, came in past_wanted(found, session.subscriptions[query.filter], now):
            one = stored.notification
            key = one.publisher, one.number
            if key in there or one.number <= known.get(one.publisher, 0):
                continue
            there.add(key)
            if one.number > session.marks.of(one.publisher):
                out.append((stored, came))
        if not query.complete:
            lost = [(Loss(1, FORGOTTEN_PAST, exact=False), NEVER)]
    return [*sorted(out, key=_when)], lost


def _news(session: Session, queue: list[Queued], now: int) -> Iterator[Queued]:
    """What its client has not got yet; a current value only if it does not get it anyway."""
    there: set[tuple[ClientId, int]] = set()
    for one, put in queue:
        if isinstance(one, Loss):
            yield one, put
            continue
        notification = one.notification
        key = notification.publisher, notification.number
        if not one.ask:
            if session.marks.pass_on(notification, now):
                there.add(key)
                yield one, put
        elif one.ask >= LATE or key not in there:
            if one.ask < LATE:
                session.marks.raise_to({notification.publisher: notification.number})
            yield one, put


def _pieces(kept: list[Kept]) -> Iterator[list[Kept]]:
    """What fits a reply each."""
    piece: list[Kept] = []
    room = REPLY_BYTES_MAX
    for one in kept:
        if piece and (one[0].size > room or len(piece) == REPLY_KEPT_MAX):
            yield piece
            piece, room = [], REPLY_BYTES_MAX
        piece.append(one)
        room -= one[0].size
    if piece:
        yield piece


def _told(piece: list[Kept], now: int) -> tuple[m.Kept, ...]:
    return tuple(m.Kept(stored.notification, now - came) for stored, came in piece)


def _when(kept: Kept) -> int:
    return kept[1]
