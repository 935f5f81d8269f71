"""Shedding: beyond a total limit, some clients lose notifications, and get a gap.

Beyond a limit of bytes, the largest consumer:

    a backlog           its oldest notifications, with a `Gap` in their place
    a waiting session   the older half of what it holds back, with a `Gap`
    a queue group       the oldest of its queue; its members are told
    a buffer            its oldest notifications, as if it were shorter: nobody was promised them

Consumers that are small are left alone, and so are all others while one is larger. A session that is large because
of its filters is evicted if its client is away; else it keeps them, and it is the host that refuses more.

Beyond the limit of sessions, the session whose client has been away for the longest time is evicted: first of the
clients that asked for less time than the limit. Clients that are attached keep theirs. An evicted session is one
that has expired early: when its client comes back, the client gets a `Gap`.
"""

from __future__ import annotations

from wayfare.core.border import Border
from wayfare.core.buffers import Buffer
from wayfare.core.effects import EVICTED, Effect, Exceeded
from wayfare.core.groups import Group, Groups
from wayfare.core.memory import RANK_MIN, SESSION_BYTES, Consumer, rank_of
from wayfare.core.messages import ClientId
from wayfare.core.relocation import Relocation
from wayfare.core.replicator import Replicator
from wayfare.core.sessions import Session
from wayfare.core.virtual import Virtual

LEFT = 7 / 8  # of a consumer, when it had to lose something
MUCH = 4  # that part of a session
EVICTED_MAX = 16  # sessions that end for a new one: a client may have had several


class Shedding:
    """At one broker."""

    def __init__(
        self, border: Border, replicator: Replicator, relocation: Relocation, groups: Groups
    ) -> None:
        self._border, self._replicator, self._relocation = border, replicator, relocation
        self._groups = groups
        self._memory = border.memory

    def make_room(self, client: ClientId, now: int) -> list[Effect]:
        """Evict sessions until this client can have one; if all others are attached, it cannot."""
        effects: list[Effect] = []
        for _ in range(EVICTED_MAX):
            session = self._border.longest_away()
            if session is None or self._border.has_room(client):
                break
            effects += self._evict(session, EVICTED, now)
        return effects

    def _evict(self, session: Session, why: str, now: int) -> list[Effect]:
        ended = session.ended(why, now)
        return [*self._relocation.forget(session, now), ended]

    def shed(self, event: Exceeded, now: int) -> list[Effect]:
        """Let the largest consumers lose until so many bytes are free."""
        effects: list[Effect] = []
        spared: list[Consumer] = []  # are large because of their filters, or of losses to report
        goal = self._used(event.account) - event.bytes
        while self._used(event.account) > goal:
            largest = self._memory.largest(event.account)
            if largest is None or rank_of(largest.noted) <= RANK_MIN:
                break
            before = largest.noted
            if not isinstance(largest, Session) or _keeps_much(largest):
                effects += self._cut(largest, event.limit, now)
            elif _has_many_filters(largest) and not largest.is_awaited():
                effects += self._evict(largest, event.limit, now)
                continue
            if largest.noted >= before:
                spared.append(largest)
                goal -= largest.noted if event.account else 0
                self._memory.forget(largest)
        for one in spared:
            self._memory.note(one)
        return effects + self._groups.report(now)

    def _used(self, account: str) -> int:
        return self._memory.noted(account) if account else self._memory.bytes

    def _cut(self, consumer: Consumer, limit: str, now: int) -> list[Effect]:
        """Make one smaller: what it loses is its oldest."""
        if isinstance(consumer, Session):
            return self._cut_session(consumer, limit, now)
        if isinstance(consumer, Virtual):
            backlog, search = consumer.backlog, consumer.search
            if search is not None and search.measure() > backlog.kept_bytes():
                self._memory.shed += search.shed(self._memory, limit)
            else:
                self._memory.shed += backlog.shed(int(backlog.kept_bytes() * LEFT), limit)
            self._memory.note(consumer)
            return self._replicator.push(consumer, now)
        if isinstance(consumer, Group):
            self._groups.shed(consumer, int(consumer.measure() * LEFT), limit)
            return []
        assert isinstance(consumer, Buffer)
        self._memory.shed += consumer.shed(int(consumer.size() * LEFT))
        self._memory.note(consumer)
        return []

    def _cut_session(self, session: Session, limit: str, now: int) -> list[Effect]:
        backlog, wait, memory = session.backlog, session.wait, self._memory
        waiting = 0 if wait is None else wait.kept_bytes()
        if wait is not None and waiting > backlog.kept_bytes():
            dropped = wait.shed(memory, limit)
        else:
            dropped = backlog.shed(int(backlog.kept_bytes() * LEFT), limit)
        memory.shed += dropped
        memory.note(session)
        return self._border.push(session, now)


def _has_many_filters(session: Session) -> bool:
    """Whether its filters take more than any session does."""
    return session.profile_bytes() > 2 * SESSION_BYTES


def _keeps_much(session: Session) -> bool:
    """Whether what waits for its client is a good part of it."""
    waiting = 0 if session.wait is None else session.wait.kept_bytes()
    return MUCH * (session.backlog.kept_bytes() + waiting) >= session.measure()
