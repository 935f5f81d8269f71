"""Whether last wills were published: once, if and only if a client was gone for longer than the delay.

The broker that has the session judges, and it learns later than the client that the client is gone, or back. So there are
absences after which a will has to be there, those after which it must not, and some in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import msgspec

from wayfare.core.broker import ALL_RELOCATIONS
from wayfare.core.history import Limits
from wayfare.core.messages import WILL_SUFFIX, LinkId, Will
from wayfare.core.relocation import Naive
from wayfare.eventlog import Event
from wayfare.sim.hosts import MOVES, NOTICE_NS
from wayfare.sim.reach import Reach
from wayfare.sim.verdict import Violation
from wayfare.sim.world import World


class Attachment(msgspec.Struct):
    """Of a client: from when to when, and whether it said goodbye for good."""

    epoch: int
    start: int
    end: float = inf
    left: bool = False
    moves: bool = False  # it said that it would attach elsewhere at once, and its broker heard that

    def patience_ns(self, will: Will, limits: Limits) -> int:
        """How long its client may be gone."""
        return max(will.delay_ns, limits.greeting_ns if self.moves else 0)


def check_wills(world: World, reach: Reach) -> Iterator[Violation]:
    if issubclass(ALL_RELOCATIONS[world.relocation], Naive):
        return  # a session ends with its connection, and nobody knows whether its client moves
    replaced = {event.client for event in world.events if event.kind == "replaced"}
    for name, host in world.clients.items():
        if host.core.will is not None and name not in replaced:
            yield from Judge(world, reach, name, host.core.will).violations()


def evicted_at(world: World) -> float:
    """When a will was first published because a session ended early; it may have overtaken an earlier one."""
    ended = {(time, one.client + WILL_SUFFIX) for time, one in world.ended}
    times = [
        event.time_ns
        for event in world.events
        if event.reason == "will" and (event.time_ns, event.client) in ended
    ]
    return min(times, default=inf)


class Judge:
    """Judges the will of one client."""

    def __init__(self, world: World, reach: Reach, name: str, will: Will) -> None:
        self._world, self._reach, self._name, self._will = world, reach, name, will
        self._attachments: list[Attachment] = []
        self._published: dict[int, list[Event]] = {}  # by epoch
        # A session that ended was published for at once; nobody else was there to judge.
        self._ended = any(one.client == name for _, one in world.ended)
        moves, broker = 0, None
        for event in world.events:
            if event.client == name + WILL_SUFFIX and event.kind == "published":
                assert event.number is not None
                self._published.setdefault(event.number, []).append(event)
            elif event.client == name and event.kind == "attached":
                moves += broker not in (None, event.broker)
                broker = event.broker
                self._attachments.append(Attachment(event.epoch or 0, event.time_ns))
            elif event.client == name and event.kind in ("detached", "left"):
                self._attachments[-1].end = event.time_ns
                self._attachments[-1].left |= event.kind == "left"
                self._attachments[-1].moves |= event.reason == MOVES and self._is_heard(event)
        self._moving_ns = 2 * reach.tree_ns * moves  # until a session is where its client is

    def _is_heard(self, goodbye: Event) -> bool:
        """Whether it reached the broker, which has not gone back to an older store since then."""
        heard = LinkId(f"{self._name}#{goodbye.epoch}") not in self._world.unheard
        return heard and goodbye.broker not in self._world.rolled_back

    def violations(self) -> Iterator[Violation]:
        for epoch, events in self._published.items():
            if len(events) > 1 and not self._reach.outage_ns:
                yield Violation("will", f"the will of {self._name} {epoch} was published twice")
            for event in events:
                yield from self._check_published(epoch, event)
        if not self._world.faulty and not self._ended:
            yield from self._check_missing()

    def _check_published(self, epoch: int, event: Event) -> Iterator[Violation]:
        what = f"the will of {self._name} {epoch} was published at {event.time_ns}"
        mine = next((one for one in self._attachments if one.epoch == epoch), None)
        if mine is None or mine.end > event.time_ns:
            yield Violation("will", f"{what}, but it was not gone")
            return
        patience_ns = mine.patience_ns(self._will, self._world.limits)
        if event.time_ns < mine.end + patience_ns and not self._ended:
            yield Violation("will", f"{what}, but it was gone at {mine.end} only")
        if mine.left and not self._world.faulty:
            yield Violation("will", f"{what}, but it had left for good")
        if self._world.rolled_back or self._reach.outage_ns:
            return  # it may have been forgotten that the client was back
        client_ns, tree_ns = self._reach.client_ns, self._reach.tree_ns
        for later in self._attachments:  # faults of links, too, make a message take longer
            known = later.start + client_ns + tree_ns + self._moving_ns
            arrived = later.end - later.start > client_ns  # its broker has heard of it
            if later.epoch > epoch and arrived and known < event.time_ns:
                yield Violation("will", f"{what}, but it was back at {later.start}")
            elif (
                later.start < event.time_ns
                and later.epoch > epoch
                and arrived
                and self._was_hasty(mine, event)
            ):
                yield Violation(
                    "will", f"{what}, but it was back at {later.start}, behind a link that was down"
                )

    def _was_hasty(self, mine: Attachment, event: Event) -> bool:
        """Whether a broker that knew that it was cut off published a will as if it were not."""
        if self._ended:
            return False
        assert event.client is not None and event.number is not None and event.broker is not None
        cut_off_ns = self._world.cut_off_wills.get((event.client, event.number), 0)
        limits = self._world.limits
        latest = mine.end + mine.patience_ns(self._will, limits) + limits.answer_ns
        return cut_off_ns > self._world.brokers[event.broker].worst_ns and event.time_ns < latest

    def _check_missing(self) -> Iterator[Violation]:
        client_ns = self._reach.client_ns
        slack_ns = 2 * NOTICE_NS + 3 * client_ns + self._moving_ns
        for one, later in zip(self._attachments, [*self._attachments[1:], None], strict=True):
            back = self._world.now if later is None else later.start
            stayed = one.end - one.start > 2 * client_ns + self._moving_ns
            patience_ns = one.patience_ns(self._will, self._world.limits)
            gone = back - one.end > patience_ns + slack_ns
            if stayed and gone and not one.left and one.epoch not in self._published:
                yield Violation(
                    "will",
                    f"the will of {self._name} {one.epoch} was not published: gone from {one.end} to {back}",
                )
