"""Shedding: beyond a limit in sum, the largest consumer loses, and is told so.

    a backlog           its oldest notifications, with a `Gap` in their place
    a waiting session   the older half of what it holds back, with a `Gap`
    a buffer            its oldest notifications, as if it were shorter: nobody was promised them

Consumers that are small are left alone, and so are all others while one is larger. A session that is large because
of its filters keeps them: it is the host that refuses more. If it ended, others could miss what its client
publishes next, and would not know.
"""

from __future__ import annotations

from wayfare.core.border import Border
from wayfare.core.buffers import Buffer
from wayfare.core.effects import Effect, Exceeded
from wayfare.core.memory import RANK_MIN, Consumer, rank_of
from wayfare.core.replicator import Replicator
from wayfare.core.sessions import Session
from wayfare.core.virtual import Virtual

LEFT = 7 / 8  # of a consumer, when it had to lose something
MUCH = 4  # that part of a session


class Shedding:
    """At one broker."""

    def __init__(self, border: Border, replicator: Replicator) -> None:
        self._border, self._replicator = border, replicator
        self._memory = border.memory

    def shed(self, event: Exceeded) -> list[Effect]:
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
                effects += self._cut(largest, event.limit)
            if largest.noted >= before:
                spared.append(largest)
                goal -= largest.noted if event.account else 0
                self._memory.forget(largest)
        for one in spared:
            self._memory.note(one)
        return effects

    def _used(self, account: str) -> int:
        return self._memory.noted(account) if account else self._memory.bytes

    def _cut(self, consumer: Consumer, limit: str) -> list[Effect]:
        """Make one smaller: what it loses is its oldest."""
        if isinstance(consumer, Session):
            return self._cut_session(consumer, limit)
        if isinstance(consumer, Virtual):
            backlog = consumer.backlog
            self._memory.shed += backlog.shed(int(backlog.kept_bytes() * LEFT), limit)
            self._memory.note(consumer)
            return self._replicator.push(consumer)
        assert isinstance(consumer, Buffer)
        self._memory.shed += consumer.shed(int(consumer.size() * LEFT))
        self._memory.note(consumer)
        return []

    def _cut_session(self, session: Session, limit: str) -> list[Effect]:
        backlog, wait, memory = session.backlog, session.wait, self._memory
        waiting = 0 if wait is None else wait.kept_bytes()
        if wait is not None and waiting > backlog.kept_bytes():
            dropped = wait.shed(memory, limit)
        else:
            dropped = backlog.shed(int(backlog.kept_bytes() * LEFT), limit)
        memory.shed += dropped
        memory.note(session)
        return self._border.push(session)


def _keeps_much(session: Session) -> bool:
    """Whether what waits for its client is a good part of it."""
    waiting = 0 if session.wait is None else session.wait.kept_bytes()
    return MUCH * (session.backlog.kept_bytes() + waiting) >= session.measure()
