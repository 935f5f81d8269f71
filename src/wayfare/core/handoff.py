"""Handoff: the session follows its client, in one round trip between the new broker and the old one.

    new broker                                   old broker
        | Attach                                      |
        |---- Update(make), Request ----------------->|   the request makes
        |<--- Update(break), Reply(what is kept) -----|   the reply breaks
        | what was kept, what was held, live          |

A request walks over the client's attachments, the newest first, until it finds its session. No
request or reply edits a table: that the new session is there makes, that the old one is gone breaks,
and both travel in front of them. Under `docs/mobility.md` is why this loses nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from wayfare.core import late
from wayfare.core import messages as m
from wayfare.core.border import Border
from wayfare.core.codec import encode
from wayfare.core.deadlines import ANSWER, AWAY
from wayfare.core.effects import Close, Effect, LinkDown, Received, Send
from wayfare.core.filters import Filter
from wayfare.core.history import (
    FORGOTTEN_PAST,
    NEVER,
    Kept,
    Loss,
    Queued,
    Stored,
    apart,
    in_order_with_losses,
    inexact,
    is_unsure,
    newest,
    size_of,
    still_wanted,
    together,
    with_loss_behind,
    with_loss_between,
    with_values_behind,
)
from wayfare.core.late import LATE, REPORT
from wayfare.core.messages import (
    REPLY_BYTES_MAX,
    REPLY_KEPT_MAX,
    REPLY_MARKS_MAX,
    UNSETTLED_MAX,
    BrokerId,
    ClientId,
    Fetch,
    LinkId,
    Notification,
    Reply,
    Request,
)
from wayfare.core.past_requests import found_past
from wayfare.core.paths import Paths
from wayfare.core.predicates import Attributes
from wayfare.core.profiles import digest
from wayfare.core.relocation import (
    NO_SESSION,
    SUBSCRIPTIONS_FORGOTTEN,
    Relocation,
    left_of,
)
from wayfare.core.routing import Destinations
from wayfare.core.sessions import (
    Departure,
    Doubt,
    Old,
    Session,
    Wait,
    Wanted,
    told,
    wanted_of,
)
from wayfare.core.thinning import Thinning, thinned

Unthinned = tuple[list[Queued], Thinning[Queued]]
Find = Callable[[Attributes], Collection[Filter]]  # the subscriptions of a session that match
SESSIONS_MAX = 100  # of one client at one broker, while it moves fast
SOUGHT_MAX = 100  # requests in one Announce
SENT_ON_MAX = 10_000  # requests that are watched; the oldest are forgotten
ASTRAY_MAX = 1_000  # requests to brokers that nobody knows yet; the oldest are forgotten
HELD_TOO_MUCH = (
    "it published more than is held back while it moves: attach again, and send the rest"
)
LOSS_BYTES = 500  # of a reply, at the most: its reason is the longest part
REPLY_LOST = "a link between brokers began from nothing: what its old session kept may be missing"
NO_ANSWER = "the broker where it was before did not answer in time"


class Handoff(Relocation):
    """One round trip between the new broker and the old one, wherever both are."""

    name = "handoff"

    def __init__(self, border: Border, paths: Paths) -> None:
        super().__init__(border, paths)
        self._astray: deque[Request] = deque(maxlen=ASTRAY_MAX)  # to brokers that nobody knows yet
        # Where requests went whose senders want to know whether they can go on; until they are answered.
        self._sent_on: dict[tuple[ClientId, int, BrokerId], BrokerId] = {}

    # At the new broker

    def on_attach(self, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        border = self.border
        if not message.previous:
            return super().on_attach(link, message, now)
        last = self._last_here(message)
        if last is not None and not last.orphan and last.handing is None:
            if last.rolled_back:
                last.miss_sessions()
            if last.wait is None:
                forgotten = self._are_forgotten(last, message)
                effects = self._renew(last, link, message, now)
                if forgotten:
                    last.wait = Wait(dict(last.subscriptions), 0)
                    self._return(last, last.wait, now)
                return effects + self._seek([last], now)
            if last.wait.pending is None:
                return self._wait_on(last, last.wait, link, message, now)
        if len(border.of(message.client)) >= SESSIONS_MAX:
            why = f"{message.client} attached too often in too short a time"
            return [Close(link, why, again=True)]
        session = self._open(link, message)
        session.wait = Wait(dict(session.subscriptions), now + border.limits.answer_ns)
        border.deadlines.arm(ANSWER, session.place, session.wait.until)
        welcome = Send(link, m.Welcome(session.epoch, session.published))
        return [welcome, *self._ask(session, message, now)]

    def _last_here(self, message: m.Attach) -> Session | None:
        """The session of the client's last attachment, if that was here."""
        broker, epoch = message.previous[0]
        if broker != self.paths.name:
            return None
        return self.border.left_here(message.client, epoch, message.life)

    def _ask(self, session: Session, message: m.Attach, now: int) -> list[Effect]:
        """Look for what the client had before."""
        request = Request(
            self.paths.name,
            session.client,
            session.epoch,
            message.delivered,
            message.previous,
            digest(session.subscriptions),
            bool(session.advertisements),
            welcomed=message.welcomed,
            failover=session.failover_ns > 0,
            life=session.life,
        )
        assert session.wait is not None
        session.wait.request = request
        return self._walk(request, now)

    def on_gap(self, neighbour: BrokerId, now: int) -> list[Effect | Received | LinkDown]:
        """Repeat all requests without an answer: one of the messages that were lost may have been it.

        If it was the reply, the old broker has no session any more, and the client gets a gap.
        What was sought is sought again: some brokers may not have heard of it.
        """
        effects: list[Effect | Received | LinkDown] = []
        for session in list(self.border.all()):
            wait = session.wait
            if wait is not None and wait.request is not None:
                wait.repeated = True
                effects += self._walk(wait.request, now)
            session.partial |= self._is_sought(session, now)
        return [*effects, *self._seek(self.border.all(), now)]

    def _wait_on(
        self, session: Session, wait: Wait, link: LinkId, message: m.Attach, now: int
    ) -> list[Effect]:
        """The client is back where it was, and its session still waits."""
        effects = self.border.disconnect(session, f"{message.client} attached again", now)
        # Else the backlog is empty, unless the session was rolled back to this wait.
        if wait.is_open or message.delivered != session.backlog.last:
            left = left_of(session, message.delivered)
            if wait.is_open:
                left = thinned(left, session.subscriptions, now, moved=False)
            self.border.begin_backlog(session, message.delivered)
            self.border.put(session, left)
        if self._are_forgotten(session, message):
            wait.held = with_loss_between(wait.held, SUBSCRIPTIONS_FORGOTTEN)
            self.border.convergence.on_returned(session.place)
        elif wait.returning:
            self.border.convergence.on_returned(session.place)
        wait.echo, wait.asks = None, False  # the client asks again
        self.border.renew(session, message, link)
        self.border.memory.publications -= wait.publications_bytes()
        wait.forget_publications()  # they are sent again
        wait.until = now + self._patience_ns(session, wait)
        self.border.deadlines.arm(ANSWER, session.place, wait.until)
        return [*effects, Send(link, m.Welcome(session.epoch, session.published))]

    def on_reply(self, reply: Reply, now: int) -> list[Effect]:
        session = self.border.at(reply.client, reply.epoch)
        if session is None:
            return self._send_after(reply, now)
        if session.epoch < reply.epoch and not reply.more:  # an old store has replaced the asker
            reply = _and_lost(reply, NO_SESSION)
        if reply.unreachable:
            self._wait_less(session, now)
            return []
        session.above = max(session.above, reply.above)
        effects = self._take_over(session, reply, now)
        return effects + self._have_exceed(session, now) if session.above else effects

    def _take_over(self, session: Session, reply: Reply, now: int) -> list[Effect]:
        """Take what an older session had, or know that there is none."""
        if reply.partial:
            session.miss_sessions()
        elif reply.sought and not session.partial:
            since = now - reply.sought_age_ns
            session.sought_since = max(since, session.sought_since or since)
        is_told = bool(session.unsettled)
        if session.late:
            late.open_gap(session.unsettled, reply.unsettled)
        if not reply.found:
            return self._not_found(session, reply, now)
        kept = _queue_of(reply, now)
        session.published = max(session.published, reply.published)
        if reply.doubt_ns and session.doubt is None:
            session.doubt = Doubt(now + reply.doubt_ns, reply.doubt_since)
        wait = session.wait
        if wait is None or wait.is_open:
            if reply.subscriptions is not None:
                lacking = session.subscriptions.keys() - reply.subscriptions
                session.unlike = reply.old_epoch if lacking else 0
            effects = self._take_late(session, kept, reply, now, is_told=is_told)
            return effects if reply.more else effects + self._seek([session], now)
        old = wait.old.setdefault(reply.old_epoch, Old(wait.asked))
        if reply.gap in session.unsettled and not reply.more:
            lost = any(
                isinstance(one, Loss) and not _is_open(one, reply) for one, _ in (*old.kept, *kept)
            )
            exact = not (lost or reply.partial) and old.known == wait.asked
            kept.append((self._settle(session, reply.gap, exact=exact), now))
        kept = self.border.shared(kept)
        old.kept += kept
        for one, _ in kept:
            if isinstance(one, Stored):
                wait.old_bytes += one.size
                self.border.memory.keep(one)
        self.border.memory.note(session)
        old.marks |= reply.marks
        old.asked = max(old.asked, reply.asked)
        if reply.subscriptions is not None:
            old.known = wanted_of(reply.subscriptions, reply.terms)
        return [] if reply.more else self._on_taken_over(session, wait, reply, now)

    def _not_found(self, session: Session, reply: Reply, now: int) -> list[Effect]:
        gap = reply.gap or reply.epoch
        if not session.is_waiting() and gap in session.unsettled:  # that will not be known any more
            self.border.put(session, [(self._settle(session, gap, exact=False), now)])
        if reply.old_epoch:  # it was an answer to an older session, and followed that
            return [*self.border.push(session, now), *self._seek([session], now)]
        awaited = session.wait is not None and session.wait.pending is not None
        if reply.superseded and session.epoch == reply.epoch and not awaited:
            return self._end(session, now)  # no attachment will ask for it
        if session.wait is not None and session.wait.is_due:  # another reply was here before
            return []
        if session.is_waiting():
            return self._nothing(session, now)
        waited = session.doubt is not None and not session.doubt.exceeds
        if waited and session.welcomed and not reply.superseded:
            # It waited no longer. What an older session should have had until now is lost, too.
            self.border.lose(session, NO_ANSWER)
        return [*self.border.push(session, now), *self._seek([session], now)]

    def _on_taken_over(self, session: Session, wait: Wait, reply: Reply, now: int) -> list[Effect]:
        """Open the session, unless the old one was rolled back to other subscriptions: the tree forgot the rest."""
        old = wait.old[reply.old_epoch]
        whys = {one.why for one, _ in old.kept if isinstance(one, Loss)}
        lacking = session.subscriptions.keys() - old.known
        if SUBSCRIPTIONS_FORGOTTEN.why in whys and lacking and not wait.returning:
            self._return(session, wait, now)
        if wait.returning:  # it opens when its filters are in effect
            return []
        return self._release(session, now)

    def _take_late(
        self, session: Session, kept: list[Queued], reply: Reply, now: int, *, is_told: bool
    ) -> list[Effect]:
        """The session did not wait any more: take what is still in order, or all, if its client wants that.

        What was reported as lost before that may also be missing between, if the older session did not ask for it.
        Where the client `is_told` of no loss yet, because the report is with a session that is still to come, it is
        told now, before what comes late.
        """
        session.backlog.may_repeat |= bool(kept)
        gap = reply.gap or reply.epoch
        if session.late:
            kept = still_wanted(kept, session.subscriptions)
        news: list[Queued] = []
        missed: dict[ClientId, list[int]] = {}
        overtaken = False
        for one, put in kept:
            if isinstance(one, Loss) or one.ask >= LATE:
                news.append((one, put))
            elif one.ask:
                overtaken = True
            elif session.late == late.WANTED and gap in session.unsettled:
                news.append((Stored(one.notification, one.size, ask=LATE), put))
            elif session.marks.pass_on(one.notification, now):
                news.append((one, put))
            elif gap in session.unsettled:
                missed.setdefault(one.notification.publisher, []).append(one.notification.number)
            else:  # come twice, or overtaken: nobody knows
                overtaken = True
        queue = inexact(news, NO_ANSWER)  # some may have come here by themselves
        if session.unlike and session.unlike == reply.old_epoch:
            some = {one for one, _ in news if isinstance(one, Stored)}
            queue = with_loss_behind(queue, Loss(1, NO_ANSWER, exact=False), some)
        if gap in session.unsettled:
            lost = any(isinstance(one, Loss) and not _is_open(one, reply) for one, _ in news)
            exact = reply.subscriptions is None and not (overtaken or reply.partial or lost)
            report = self._settle(session, gap, missed, exact=exact, more=reply.more)
            has_room = len(session.backlog) + len(queue) < self.border.limits.backlog_count
            if session.link is None and not has_room:  # no notification gives way to a report
                exact = False
            elif missed or not (exact and reply.more):
                queue.append((report, now))
            overtaken |= bool(missed) and not exact
        if not is_told and any(isinstance(one, Stored) and one.ask >= LATE for one, _ in queue):
            queue.insert(0, (Loss(1, NO_ANSWER, exact=False), now))
        self.border.backpressure.expect(session, len(queue), now)
        self.border.put(session, queue)
        session.marks.raise_to(reply.marks)
        if overtaken:
            session.backlog.lose(1, NO_ANSWER, exact=False)
        told = self.border.tell_unsettled(session) if reply.unsettled else []
        return [*told, *self.border.push(session, now)]

    def _settle(
        self,
        session: Session,
        gap: int,
        missed: dict[ClientId, list[int]] | None = None,
        *,
        exact: bool,
        more: bool = False,
    ) -> Stored:
        """Report what is lost of what an older session had; unless there is `more`, that is known now."""
        if not more:
            del session.unsettled[gap]
        numbers = {publisher: tuple(some) for publisher, some in (missed or {}).items()}
        notification = late.report(session.client, m.Settled(0, gap, numbers, exact, more))
        return Stored(notification, size_of(notification), ask=REPORT)

    def _send_after(self, reply: Reply, now: int) -> list[Effect]:
        """A reply that comes too late follows the session to where it went, if it says something of older ones."""
        tombstone = self.border.tombstones.get(reply.client)
        is_news = reply.found or reply.partial
        if not is_news or tombstone is None or tombstone.moved_to is None:
            return []
        broker, epoch = tombstone.moved_to
        if epoch <= reply.epoch or tombstone.is_before(reply.epoch):
            return []
        old_epoch, gap = reply.old_epoch or reply.epoch, reply.gap or reply.epoch
        unsettled = reply.unsettled
        if gap in tombstone.unsettled and gap not in unsettled:
            # The session there may hear of this gap later than of this reply.
            unsettled = (*unsettled, gap)[-UNSETTLED_MAX:]
        if not 0 < tombstone.known_since <= reply.epoch and not reply.more:
            reply = _and_lost(reply, NO_SESSION)  # a session was forgotten here that asked for it
        follows = replace(
            reply, broker=broker, epoch=epoch, old_epoch=old_epoch, gap=gap, unsettled=unsettled
        )
        return self._answer(follows, now)

    def _nothing(self, session: Session, now: int) -> list[Effect]:
        """Nobody has a session of this client."""
        assert session.wait is not None
        if session.wait.returning and session.wait.old:  # it is here already
            return []
        if not session.welcomed:
            if not session.wait.repeated:
                return self._release(session, now)
            return self._miss(session, session.wait, REPLY_LOST, now)
        if session.wait.pending is None and session.leaving:
            return self._release(session, now)
        if session.link is None:
            return self._end(session, now)
        session.orphan = True
        if session.wait.pending is None:
            self._return(session, session.wait, now)
            return []
        return self._miss(session, session.wait, NO_SESSION, now)

    def on_spread(self, session: Session, now: int) -> list[Effect]:
        if session.wait is None or not session.wait.returning:
            return super().on_spread(session, now)
        return self._miss(session, session.wait, NO_SESSION, now)

    def _are_forgotten(self, session: Session, message: m.Attach) -> bool:
        """Whether the store was rolled back to other subscriptions than a client has."""
        changed = session.subscriptions.keys() != {*message.subscriptions}
        return session.rolled_back > 0 and changed

    def _return(self, session: Session, wait: Wait, now: int) -> None:
        """Report a loss when the subscriptions are in effect again, and hold back what comes until then.

        So the gap is at its place: behind it nothing is missing.
        """
        wait.returning, wait.until = True, now + self.border.limits.confirm_ns
        self.border.convergence.on_returned(session.place)
        self.border.deadlines.arm(ANSWER, session.place, wait.until)

    def _miss(self, session: Session, wait: Wait, why: str, now: int) -> list[Effect]:
        """Open a session whose client misses what older sessions had.

        What came here before the answer may have gone there, too, and something else in between only there.
        """
        loss = Loss(1, why, exact=False)
        held = {one for one, _ in wait.held if isinstance(one, Stored)}
        wait.held = with_loss_behind(wait.held, loss, held)
        return self._release(session, now, loss)

    def _give_up(self, session: Session, why: str, now: int) -> list[Effect]:
        """Wait no longer, and say that something may be missing, if it may."""
        wait = session.wait
        assert wait is not None
        wanted = session.subscriptions
        may_miss = any(
            one in wanted and not (terms and (terms.local or terms.last == 0))
            for one, terms in wait.asked.items()
        )
        if not may_miss:
            return self._release(session, now)
        if wait.request is not None and session.late:
            late.open_gap(session.unsettled, [wait.request.epoch])
        loss = Loss(1, why, exact=False)
        if wait.flooded:
            # These came although the filters may not have been in effect, so others behind them may be missing.
            held = (one for one, _ in wait.held if isinstance(one, Stored))
            flooded = {
                one
                for one in held
                if (one.notification.publisher, one.notification.number) in wait.flooded
            }
            wait.held = with_loss_behind(wait.held, loss, flooded)
        self.border.expect_incomplete(session, why, now)
        return self._release(session, now, loss)

    def _release(self, session: Session, now: int, loss: Loss | None = None) -> list[Effect]:
        """Open a session: first what was held back, then live; then whoever asked for it.

        A loss is of what older sessions had: it comes behind what of that is here, before what was held.
        """
        wait = session.wait
        assert wait is not None
        if loss is None and wait.asks_for_past():
            wait.is_due, wait.request = True, None
            return []
        session.wait = None
        wait.give_up()
        if session.link is None:  # it did not end while it waited
            self.border.deadlines.arm(AWAY, session.place, session.away_until)
        if wait.repeated:
            session.miss_sessions()
        if not wait.returning:
            self.border.handovers.add(now - (wait.until - self._patience_ns(session, wait)))
        olds = wait.old.values()
        unsure = loss is not None and bool(wait.asked)  # else those had nothing that it wants
        session.backlog.may_repeat = unsure or any(is_unsure(old.kept) for old in olds)
        losses: list[Queued] = [] if loss is None else [(loss, NEVER)]
        past, lost_past = self._hold_past(session, wait, now) if wait.queries else ([], [])
        queue, unthinned = self._merged(session, wait, [*losses, *lost_past], now)
        if past and session.backlog.may_repeat:  # what was lost may be missing in between
            recalled = {one for one, _ in past if isinstance(one, Stored)}
            queue = with_loss_behind(queue, Loss(1, FORGOTTEN_PAST, exact=False), recalled)
        self.border.put_shared(session, queue)
        self.border.thin(session, unthinned)
        self.border.let_go(wait)
        for old in olds:
            session.marks.raise_to(old.marks)
            session.asked = max(session.asked, old.asked)
        some = [one for one, _ in queue if isinstance(one, Stored) and one.ask < LATE]
        session.marks.raise_to(newest(some))
        self.border.note(session)
        self.border.arm_will(session)
        self.border.watches.review(session)  # the tables are complete now
        effects = [*self.border.tell_unsettled(session), *self.border.push(session, now)]
        away = session.link is None and not session.leaving
        lost = wait.repeated and away  # what its client published elsewhere since then may be
        # Else its client sends them again.
        accepts = not (wait.pending or session.rolled_back or lost)
        in_slices = accepts and self.border.preparations.are_long(wait)
        if in_slices:
            self.border.preparations.put_off_held(session, wait, now)
            self.border.go_on_soon()
        elif accepts:
            for publication in wait.publications_left(now):
                effects += self.border.publish(session, publication, now)
        if session.link is not None and session.published:
            effects.append(Send(session.link, m.Published(session.published)))
        if session.link is not None and wait.echo is not None:
            effects.append(Send(session.link, wait.echo))
        session.asks = wait.asks and bool(unthinned)
        if session.link is not None and wait.asks and not unthinned:
            effects.append(Send(session.link, m.CaughtUp(session.backlog.last)))
        if wait.refused:
            effects += self.border.disconnect(session, HELD_TOO_MUCH, now, again=True)
        effects += self._claim(session, wait.unclaimed, now)
        if wait.pending is not None:
            return effects + self._hand_over(session, wait.pending, now)
        if session.leaving:
            return effects if in_slices else effects + self._end(session, now)
        return effects + self._seek([session], now)

    def release(self, session: Session, now: int) -> list[Effect]:
        return self._release(session, now)

    def on_opened(self, session: Session, wait: Wait, now: int) -> list[Effect]:
        effects = self._claim(session, wait.unclaimed, now)
        if wait.pending is not None:
            return effects + self._hand_over(session, wait.pending, now)
        if session.leaving:
            return effects + self._end(session, now)
        return effects + self._seek([session], now)

    def _hold_past(
        self, session: Session, wait: Wait, now: int
    ) -> tuple[list[Queued], list[Queued]]:
        """Add what was found of the past to what is held back; that, and the loss if it is incomplete."""
        marks: dict[ClientId, int] = {}
        for old in wait.old.values():
            marks |= {who: max(mark, marks.get(who, 0)) for who, mark in old.marks.items()}
        asked = max((old.asked for old in wait.old.values()), default=0)
        held = self.border.with_current_values(wait, asked, now)
        past, lost = found_past(session, wait, held, marks, now)
        for one, _ in past:
            assert isinstance(one, Stored)
            self.border.memory.keep(one)
        wait.held[:0] = past
        return past, lost

    def _merged(
        self, session: Session, wait: Wait, lost: list[Queued], now: int
    ) -> tuple[list[Queued], list[Unthinned]]:
        """What older sessions had and what was held back, each once, in every publisher's order.

        And what of it is still to be thinned: that takes long.
        """
        is_last = self._is_last(session, wait)
        unthinned: list[Unthinned] = []
        queue: list[Queued] = []
        there: set[tuple[ClientId, int, int]] = set()  # publisher, number, request
        for epoch in sorted(wait.old):
            kept = wait.old[epoch].kept
            if wait.old[epoch].known != wait.asked:
                limits = self.border.limits
                thinning = Thinning(kept, session.subscriptions, now, limits, moved=True)
                if self.border.thinnings.is_done(thinning):
                    kept = thinning.chosen()
                else:
                    unthinned.append((kept, thinning))
            queue += _news(kept, there, [], is_last)
        wanted = session.subscriptions
        find = _finder(wanted, self.border.routing.destinations)
        earlier = [_Earlier(old, wanted, find) for old in wait.old.values()]
        # What was lost there may be news here, and counted twice.
        counts = all(old.known == wanted for old in wait.old.values())
        if not is_last:
            earlier, counts = [], False  # what is dropped may be no loss
        asked = max((old.asked for old in wait.old.values()), default=0)
        held = self.border.with_current_values(wait, asked, now)
        news = list(_news(held, there, earlier, is_last))
        merged = with_values_behind(in_order_with_losses([*queue, *lost, *news]))
        behind = _loss_behind(queue, news, wait.old.values(), find)
        if behind is not None:
            merged = with_loss_behind(merged, *behind)
        losses = [one for one, _ in news if isinstance(one, Loss)]
        if losses and any(session.subscriptions.keys() - old.known for old in wait.old.values()):
            # What was lost here may be what only new subscriptions ask for, and older than what is kept.
            older = {one for one, _ in queue if isinstance(one, Stored)}
            merged = with_loss_behind(merged, replace(losses[-1], count=1, exact=False), older)
        if len(wait.old) > 1 and (losses := [one for one, _ in queue if isinstance(one, Loss)]):
            # Sorting moves what one old session kept across the losses of another one.
            loss = replace(losses[-1], count=1, exact=False)
            merged = with_loss_between([(loss, NEVER), *merged], loss)
        return merged if counts else inexact(merged), unthinned

    def _is_last(self, session: Session, wait: Wait) -> bool:
        """Whether what is not news to the old session is not news to the client."""
        return True

    # At the old broker

    def _walk(self, request: Request, now: int) -> list[Effect]:
        """Take a request to where its client may have been last, and from there on."""
        border, effects = self.border, list[Effect]()
        superseded = False
        while request.previous:
            broker, epoch = request.previous[0]
            if broker != self.paths.name:
                if not self.paths.send_to(broker, request):
                    self._astray.append(request)
                return effects + self._watch(request, broker, now) if request.failover else effects
            certain = request.departed or (request.welcomed and len(request.previous) == 1)
            life = request.life or None
            forgotten = request.forgotten or border.forgot(
                request.client, epoch, certain, now, life
            )
            border.bury(request.client, request.epoch - 1, now, partial=forgotten)
            session = border.at(request.client, epoch, life)
            superseded = any(
                one.epoch > request.epoch and (one is session or not one.is_waiting())
                for one in border.of(request.client)
            )
            superseded |= border.tombstones[request.client].went_after(request.epoch)
            if session is not None and session.epoch < request.epoch:
                if not session.orphan:
                    return effects + self._on_found(session, request, now)
                forgotten |= session.is_partial()
                effects += self._end(session, now)
            effects += self._end_earlier_processes(request, now)
            stops = self._went_on(request, epoch)
            if not stops and certain:  # its session has ended: the next one begins there
                border.bury(request.client, 0, now, moved_to=(request.broker, request.epoch))
            request = replace(
                request,
                previous=(*stops, *request.previous[1:]),
                forgotten=forgotten,
                departed=bool(stops),
            )
        return effects + self._refuse(request, now, superseded=superseded)

    def _end_earlier_processes(self, request: Request, now: int) -> list[Effect]:
        """End the sessions of earlier processes of the client that came back with an old store."""
        effects: list[Effect] = []
        for old in self.border.of(request.client):
            another = old.epoch < request.epoch and request.life not in (0, old.life)
            if another and old.rolled_back and not old.leaving:
                effects += self._end(old, now)
        return effects

    def _watch(self, request: Request, broker: BrokerId, now: int) -> list[Effect]:
        """Reply to the sender of a request if it cannot be forwarded to this broker, now or later."""
        key = request.client, request.epoch, request.broker
        self._sent_on.pop(key, None)
        if not self.paths.reaches(broker):
            return self._report_unreachable(*key, now)
        if len(self._sent_on) >= SENT_ON_MAX:
            del self._sent_on[next(iter(self._sent_on))]
        hop = self.paths.towards(broker)
        assert hop is not None
        self._sent_on[key] = hop
        return []

    def _report_unreachable(
        self, client: ClientId, epoch: int, broker: BrokerId, now: int
    ) -> list[Effect]:
        return self._answer(Reply(broker, client, epoch, False, unreachable=True), now)

    def on_unlinked(self, neighbour: BrokerId, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for key in [key for key, hop in self._sent_on.items() if hop == neighbour]:
            del self._sent_on[key]
            effects += self._report_unreachable(*key, now)
        return effects

    def _wait_less(self, session: Session, now: int) -> None:
        """The old broker cannot be reached: its client waits as long as it wants to, within a limit."""
        wait = session.wait
        if wait is None or wait.returning or wait.unreachable or not session.failover_ns:
            return
        wait.unreachable = True
        until = now + self.border.patience_ns(session, wait)
        is_longer = session.failover_ns > self.border.limits.answer_ns
        wait.until = until if is_longer else min(wait.until, until)
        self.border.deadlines.arm(ANSWER, session.place, wait.until)

    def _patience_ns(self, session: Session, wait: Wait) -> int:
        if wait.returning:
            return self.border.limits.confirm_ns
        return self.border.patience_ns(session, wait)

    def _went_on(self, request: Request, epoch: int) -> tuple[tuple[BrokerId, int], ...]:
        """Where a session went from here, for a client that has forgotten its last attachments."""
        stop = self.border.tombstones[request.client].next_stop(epoch, request.epoch)
        return () if stop is None else (stop,)

    def _on_found(self, session: Session, request: Request | Fetch, now: int) -> list[Effect]:
        wait, handing = session.wait, session.handing
        if handing is not None and handing.epoch > request.epoch:
            return self._refuse(request, now, superseded=True)
        if wait is None:
            effects = self._hand_over(session, request, now)
            if handing is None or _is_repeated(handing, request):
                return effects
            return effects + self._refuse(handing, now, superseded=True)
        effects = self.border.disconnect(session, f"{session.client} is elsewhere now", now)
        self.border.deadlines.arm(ANSWER, session.place, wait.until)
        superseded, wait.pending = wait.pending, request
        if superseded is not None and _is_repeated(superseded, request):
            superseded = None
        if superseded is not None and superseded.epoch > request.epoch:
            superseded, wait.pending = request, superseded
        elif isinstance(request, Request) and request.publishes:
            effects += self._answer_later(request, epoch=session.epoch, now=now)
        return (
            effects
            if superseded is None
            else effects + self._refuse(superseded, now, superseded=True)
        )

    def _answer_later(self, request: Request, epoch: int, now: int) -> list[Effect]:
        """Nothing yet, but brokers on the way put off subscriptions until something comes."""
        reply = Reply(
            request.broker, request.client, request.epoch, True, old_epoch=epoch, more=True
        )
        return self._answer(reply, now)

    def _refuse(
        self, request: Request | Fetch, now: int, *, superseded: bool = False
    ) -> list[Effect]:
        """Nobody has what is asked for, or a later attachment of the client has it."""
        reply = Reply(request.broker, request.client, request.epoch, False, superseded=superseded)
        if not isinstance(request, Request):
            return self._answer(reply, now)
        effects: list[Effect] = []
        if above := self.border.above(request.client, request.life):
            effects = self.on_reached(replace(reply, above=above), now)
        return effects + self._answer(replace(reply, partial=request.forgotten), now)

    def _ask_on(self, request: Request | Fetch, now: int) -> list[Effect]:
        """What a request waited for has ended."""
        assert isinstance(request, Request)
        return self._walk(request, now)

    def _hand_over(self, session: Session, request: Request | Fetch, now: int) -> list[Effect]:
        """Send the session to its client's new broker: now, or when it is known what of it is wanted."""
        left, wanted = self._left_for(session, request, now)
        border = self.border
        thinning = Thinning(left, wanted, now, border.limits, moved=True)
        session.handing = None
        if border.thinnings.is_done(thinning):
            return self._hand_over_now(session, request, thinning.chosen(), now)
        effects = border.disconnect(session, f"{session.client} is elsewhere now", now)
        session.handing = request

        def hand_over(now: int) -> list[Effect]:
            unwanted = thinning.unwanted(left)
            more, _ = self._left_for(session, request, now)  # it may have got more
            kept = [(one, put) for one, put in more if one not in unwanted]
            return self._hand_over_now(session, request, kept, now)

        border.thinnings.go_on_with(session.place, thinning, hand_over)
        border.go_on_soon()
        return effects

    def _left_for(
        self, session: Session, request: Request | Fetch, now: int
    ) -> tuple[list[Queued], Wanted]:
        """What the sender of a request may want of a session, and by which filters and terms."""
        left = left_of(session, request.delivered)
        wanted = session.subscriptions
        if digest(wanted) != request.digest:  # only the new broker knows the terms of today
            wanted = {
                one: terms if terms and terms.local else None for one, terms in wanted.items()
            }
            if session.rolled_back:
                left = with_loss_between(left, SUBSCRIPTIONS_FORGOTTEN)
                if not left or left[-1][0] != SUBSCRIPTIONS_FORGOTTEN:
                    left.append((SUBSCRIPTIONS_FORGOTTEN, NEVER))
        if not self._is_sought(session, now):
            session.sought_since = None
        return left, wanted

    def _hand_over_now(
        self, session: Session, request: Request | Fetch, left: list[Queued], now: int
    ) -> list[Effect]:
        """Send this to the client's new broker, and forget the session here."""
        session.handing = None
        replies = list(_replies(request, session, left, now))
        effects = self.border.end(session, now, (request.broker, request.epoch))
        for reply in replies:
            effects += self._answer(reply, now)
        return effects

    def _answer(self, reply: Reply, now: int) -> list[Effect]:
        if self._sent_on and not (reply.unreachable or reply.more):
            self._sent_on.pop((reply.client, reply.epoch, reply.broker), None)
        if reply.broker == self.paths.name:
            return self.on_reply(reply, now)
        self.paths.send(reply)
        return []

    # Otherwise

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        if session.wait is None:
            return super().on_detach(session, message, now)
        self.border.lose_link(session, now)
        session.leaving = message.leave
        self.border.deadlines.arm(ANSWER, session.place, session.wait.until)
        return []

    def on_link_down(self, session: Session, now: int) -> list[Effect]:
        self.border.lose_link(session, now)
        return self._end(session, now) if session.orphan else []

    def on_publish(self, session: Session, message: m.Publish, now: int) -> list[Effect]:
        wait = session.wait
        if wait is None or wait.is_open:
            return super().on_publish(session, message, now)
        before = wait.publications_bytes()
        if not wait.hold(message, self.border.limits, now):
            wait.refused = True
        self.border.memory.publications += wait.publications_bytes() - before
        self.border.memory.note(session)
        return []

    def on_errand(self, came_from: BrokerId, errand: m.Errand, now: int) -> list[Effect]:
        if isinstance(errand, Request):
            return self._walk(errand, now)
        if isinstance(errand, Reply):
            return self._answer(errand, now)
        return super().on_errand(came_from, errand, now)

    def on_announced(self, now: int) -> list[Effect]:
        astray = list(self._astray)
        self._astray.clear()
        return [effect for request in astray for effect in self._walk(request, now)]

    def on_unclaimed(self, unclaimed: Sequence[m.Unclaimed], now: int) -> list[Effect]:
        """Ask for what is left of a session that came back with an old store: its client is here."""
        effects: list[Effect] = []
        for one in unclaimed:
            later = [
                session
                for session in self.border.of(one.client)
                if session.epoch > one.epoch and not session.rolled_back
            ]
            if later and later[-1].orphan:
                later[-1].miss_sessions()  # it seeks them when its client is known to be there
            elif later and later[-1].wait is not None:
                _add_once(later[-1].wait.unclaimed, one)
            elif later:
                effects += self._claim(later[-1], (one,), now)
            else:  # a request for a later session that has ended here is for this session, too
                tombstone = self.border.tombstones.get(one.client)
                if tombstone is not None and tombstone.tells_of(tombstone.epoch):
                    self.border.bury(one.client, one.epoch, now, partial=True)
        return effects

    def _claim(self, session: Session, unclaimed: Iterable[m.Unclaimed], now: int) -> list[Effect]:
        effects: list[Effect] = []
        for one in unclaimed:
            effects += self._walk(self._request(session, (one.broker, one.epoch)), now)
        return effects

    def _request(self, session: Session, *previous: Departure) -> Request:
        """A request for older sessions, of a session that is open."""
        return Request(
            self.paths.name,
            session.client,
            session.epoch,
            session.backlog.acked,
            previous,
            digest(session.subscriptions),
            welcomed=True,
            life=session.life,
        )

    # Where the chain of hand-offs is broken

    def _seek(self, sessions: Iterable[Session], now: int) -> list[Effect]:
        """Ask all brokers for older sessions of these clients, if a broker forgot where they are.

        That is so when its store was rolled back or lost, or when a link began from nothing while the
        session waited. Nobody else would ever request them. Only a client that is really there asks.
        """
        sought: list[Request] = []
        for session in sessions:
            if session.partial and session.link and not (session.orphan or session.wait):
                session.partial = False
                if session.sought_since is None:
                    session.sought_since = now
                sought.append(self._request(session))
        effects: list[Effect] = []
        for start in range(0, len(sought), SOUGHT_MAX):
            some = m.Announce((), sought=tuple(sought[start : start + SOUGHT_MAX]))
            effects += [Send(LinkId(one), some) for one in self.paths.neighbours]
        return effects + self.on_sought(sought, now)

    def _is_sought(self, session: Session, now: int) -> bool:
        """Whether older sessions may still be left that were sought for: after `away_ns` they have ended."""
        since = session.sought_since
        return since is not None and now - since <= self.border.limits.away_ns

    def on_sought(self, sought: Sequence[Request], now: int) -> list[Effect]:
        effects: list[Effect] = []
        for request in sought:
            effects += self._end_earlier_processes(request, now)
            older = [one for one in self.border.of(request.client) if one.epoch < request.epoch]
            for session in older:
                if not request.life and self.border.is_latest(session):
                    continue  # who has no life has never begun anew: it will hear of this one
                if request.life and session.life not in (0, request.life):
                    effects += self._end(
                        session, now
                    )  # nobody goes on with another process's session
                    continue
                here = replace(request, previous=((self.paths.name, session.epoch),), life=0)
                effects += self._walk(here, now)
        return effects

    def on_spoken(self, session: Session, now: int) -> list[Effect]:
        if not session.partial:
            return []
        return self._seek([session], now)

    def astray(self) -> list[Request]:
        """Requests to brokers that nobody knows yet."""
        return list(self._astray)

    def take_astray(self, requests: Iterable[Request]) -> None:
        self._astray.extend(requests)

    def on_answer_due(self, session: Session, now: int) -> list[Effect]:
        """The old broker did not answer in time, or too much is held back until it does."""
        wait = session.wait
        if wait is None or wait.is_open or wait.is_due:
            return []
        if wait.returning and (wait.until <= now or self.border.is_full(wait)):
            return self._miss(session, wait, NO_SESSION, now)
        if self.border.is_full(wait) or (wait.until <= now and session.is_awaited()):
            session.doubt = Doubt(now + self.border.limits.marks_age_ns)
            session.sought_since = now  # if a link begins from nothing, the answer may never come
            return self._give_up(session, NO_ANSWER, now)
        if session.is_awaited() or wait.returning:
            self.border.deadlines.arm(ANSWER, session.place, wait.until)
        return []

    def _end(self, session: Session, now: int) -> list[Effect]:
        """As in general; whoever asked for the session goes on asking, and may end others."""
        if self.border.get(session.client, session.epoch) is not session:
            return []
        effects = self.border.end(session, now)
        if session.handing is not None:
            effects += self._ask_on(session.handing, now)
        if session.wait is None:
            return effects
        effects += self._claim(session, session.wait.unclaimed, now)
        if session.wait.pending is not None:
            effects += self._ask_on(session.wait.pending, now)
        return effects


def _is_open(loss: Loss, reply: Reply) -> bool:
    """Whether this is the report of a loss that may itself be settled later."""
    return bool(reply.unsettled) and loss.why == NO_ANSWER and loss.count == 1


def _and_lost(reply: Reply, why: str) -> Reply:
    """The same, with a loss behind what is kept: the session that asked for it held more, and is forgotten."""
    if not reply.found:
        return reply
    *losses, last = apart([*_queue_of(reply, 0), (Loss(1, why, exact=False), NEVER)])[1]
    if losses and losses[-1].place == last.place:  # in the same place
        last = replace(losses.pop(), exact=False)
    return replace(reply, lost=reply.lost + 1, why=why, exact=False, losses=(*losses, last))


def _add_once(unclaimed: list[m.Unclaimed], one: m.Unclaimed) -> None:
    if one not in unclaimed:
        unclaimed.append(one)


def _is_repeated(first: Request | Fetch, second: Request | Fetch) -> bool:
    """Whether both were sent for the same attachment of a client."""
    requests = isinstance(first, Request) and isinstance(second, Request)
    return requests and (first.broker, first.epoch) == (second.broker, second.epoch)


def _queue_of(reply: Reply, now: int) -> list[Queued]:
    """What a reply brings, with its losses in their places."""
    kept: list[Kept] = [
        (Stored(one.notification, size_of(one.notification), ask=one.ask), now - one.age_ns)
        for one in reply.kept
    ]
    losses = reply.losses
    if reply.lost and not losses:  # of a broker that does not know the places
        losses = (m.Loss(0, reply.lost, reply.why, reply.exact),)
    return together(kept, losses)


def _news(
    kept: list[Queued],
    there: set[tuple[ClientId, int, int]],
    earlier: list[_Earlier],
    is_last: bool,
) -> Iterator[Queued]:
    """What is not there yet, and earlier sessions did not have; and what is lost.

    A current value is for one subscription; if the same is there for all that match, that one gets it, too. Unless
    `is_last`, that may have come to the client before, and only the client knows.
    """
    marks: dict[ClientId, int] = {}
    for old in earlier:
        marks = {name: max(mark, marks.get(name, 0)) for name, mark in (marks | old.marks).items()}
    for one in kept:
        if isinstance(one[0], Loss) or one[0].ask == REPORT:
            yield one
            continue
        notification, ask = one[0].notification, one[0].ask
        publisher, number = notification.publisher, notification.number
        key = publisher, number, ask
        if key in there or (ask and is_last and (publisher, number, 0) in there):
            continue
        above = number > marks.get(publisher, 0)
        if above or ask or not any(old.had(notification) for old in earlier):
            there.add(key)
            yield one


def _loss_behind(
    queue: list[Queued], news: list[Queued], olds: Iterable[Old], find: Find
) -> tuple[Loss, set[Stored]] | None:
    """The last loss of old sessions, and the news that may be older than what was lost; None: there are none.

    News that an old session has not had because only a new subscription asks for it may have been
    published before what that session lost. The loss is in front of it, and has to be behind it, too. So may news
    of a publisher of which that session knows nothing, if it lost an unknown number. And so may news that came here before
    a loss was reported here: on the way to that session, something between may be lost, for the same reason.
    """
    last = next((at for at in reversed(range(len(queue))) if isinstance(queue[at][0], Loss)), None)
    if last is None:
        return None
    reported = next((at for at in reversed(range(len(news))) if isinstance(news[at][0], Loss)), 0)
    first: dict[ClientId, int] = {}  # of each publisher behind the loss: what was lost is older
    for one, _ in queue[last + 1 :]:
        assert isinstance(one, Stored)
        if not one.ask:
            first.setdefault(one.notification.publisher, one.notification.number)
    loss = queue[last][0]
    assert isinstance(loss, Loss)
    older = set[Stored]()  # for membership only
    for place, (one, _) in enumerate(news):
        if isinstance(one, Stored) and not one.ask:
            publisher, number = one.notification.publisher, one.notification.number
            end: float = max((old.marks.get(publisher, 0) for old in olds), default=0)
            if not loss.exact and (not end or place < reported):
                end = inf
            if number < min(end, first.get(publisher, end)) and find(one.notification.attributes):
                older.add(one)
    return (Loss(1, loss.why, exact=False), older) if older else None


def _finder(wanted: Wanted, tables: Destinations) -> Find:
    """Find the subscriptions of a session by the tables, which have all conjunctions of them."""
    of_part: dict[Filter, list[Filter]] = {}
    for one in wanted:
        for part in one.parts():
            of_part.setdefault(part, []).append(one)

    def find(attributes: Attributes) -> Collection[Filter]:
        found = (of_part.get(one.filter, ()) for one in tables.find(attributes))
        return dict.fromkeys(one for some in found for one in some)

    return find


class _Earlier:
    """What an older session had, for one that has these subscriptions, all of which are in the tables."""

    __slots__ = ("_find", "_fresh", "_gone", "_known", "marks")

    def __init__(self, old: Old, wanted: Wanted, find: Find) -> None:
        self.marks, self._known, self._find = old.marks, old.known, find
        self._gone = [(one, terms) for one, terms in old.known.items() if one not in wanted]
        self._fresh = {
            one for one, terms in wanted.items() if one not in old.known or old.known[one] != terms
        }

    def had(self, notification: Notification) -> bool:
        """Whether a notification came to the old session, and is not news to the client.

        What is not above its mark came there before that was handed over: it is among what was kept, was
        delivered long ago, or was left out by the terms of a subscription. Unless only a subscription asks
        for it that was not known there, or had other terms.
        """
        if notification.number > self.marks.get(notification.publisher, 0):
            return False
        if not self._gone and not self._fresh:
            return True  # it was wanted there, because it was held back here
        attributes, known = notification.attributes, self._known
        here = self._find(attributes)
        matching = [known[one] for one in here if one in known]
        matching += [terms for one, terms in self._gone if one.matches(attributes)]
        if None in matching or not matching:
            return bool(matching)
        return not any(one in self._fresh for one in here)


def _replies(
    request: Request | Fetch, session: Session, left: list[Queued], now: int
) -> Iterator[Reply]:
    """The answer to a request: one reply, or several when it would be too long."""
    kept = [_piece(part, now) for part in _parts(left)]
    known = list(session.marks.known().items())
    marks = [dict(known[i : i + REPLY_MARKS_MAX]) for i in range(0, len(known), REPLY_MARKS_MAX)]
    # Marks come last: they say that what was kept is no news any more.
    pieces: list[dict[str, Any]] = [
        *kept,
        *({"marks": one} for one in marks),
    ]
    if len(kept) <= 1 and len(marks) <= 1:
        pieces = [{name: value for piece in pieces for name, value in piece.items()}]
    if digest(session.subscriptions) != request.digest:  # by themselves: they may be long
        filters, terms = told(session.subscriptions)
        pieces.insert(0, {"subscriptions": filters, "terms": terms})
    reply = Reply(
        request.broker,
        session.client,
        request.epoch,
        True,
        published=session.published,
        old_epoch=session.epoch,
        partial=session.is_partial(),
        sought=session.sought_since is not None,
        sought_age_ns=now - (session.sought_since or now),
        doubt_ns=max(0, session.doubt.until - now) if session.doubt else 0,
        doubt_since=session.doubt.since if session.doubt else 0,
        asked=session.asked,
        above=session.above,
        unsettled=tuple(session.unsettled),
    )
    for number, piece in enumerate(pieces, 1):
        yield replace(reply, **piece, more=number < len(pieces))


def _piece(part: list[Queued], now: int) -> dict[str, Any]:
    """What a reply says of these: losses in their places, and in sum for brokers that only know that."""
    kept, losses = apart(part)
    piece: dict[str, Any] = {
        "kept": tuple(m.Kept(stored.notification, now - put, stored.ask) for stored, put in kept)
    }
    if losses:
        piece |= {
            "lost": sum(one.count for one in losses),
            "why": losses[-1].why,
            "exact": all(one.exact for one in losses),
            "losses": tuple(losses),
        }
    return piece


def _parts(kept: Iterable[Queued]) -> Iterator[list[Queued]]:
    """What fits a reply each."""
    part: list[Queued] = []
    bytes_left = REPLY_BYTES_MAX
    for one in kept:
        size = LOSS_BYTES if isinstance(one[0], Loss) else len(encode(one[0].notification))
        if part and (size > bytes_left or len(part) == REPLY_KEPT_MAX):
            yield part
            part, bytes_left = [], REPLY_BYTES_MAX
        part.append(one)
        bytes_left -= size
    if part:
        yield part
