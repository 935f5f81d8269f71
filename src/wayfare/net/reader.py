"""A client for readers with checkpoints: the session at its broker is a log, kept until they commit.

    reader = await Reader(address, "spark", wanted, Position())     begins, with what comes from now on
    reader.held                                                     deliveries, by their numbers
    reader.commit(7)                                                the broker may forget 1 to 7
    ... kill -9 ...
    await Reader(address, "spark", wanted, Position("porto", reader.session, 7))     goes on with 8

Numbers belong to a session, so a reader stays at the broker where it began: what was delivered as
number 8 comes as number 8 again, to any later process, until somebody commits it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Unpack

import msgspec

from wayfare.core import client as core
from wayfare.core import messages as m
from wayfare.core.effects import Effect, Lost
from wayfare.core.filters import Filter
from wayfare.core.handoff import NO_ANSWER
from wayfare.core.late import COUNTED
from wayfare.core.messages import BrokerId, ClientId, LinkId
from wayfare.core.relocation import NO_SESSION, OUT_OF_STEP
from wayfare.core.templates import Template
from wayfare.errors import UsageError
from wayfare.net.local_broker import LocalBroker, clock
from wayfare.net.options import Options, Settings, check_options
from wayfare.net.recording import CLOCK_NS
from wayfare.net.subscription import Notification

WINDOW = 1_000_000  # deliveries that are not committed; brokers allow no more than they keep
NO_DIGEST = 2**62  # characters: it sends its filter, always


class Position(NamedTuple):
    """Up to where a reader is done. The broker and the session are known when it was there once."""

    broker: str = ""
    session: int = 0  # one of the epochs of the session
    delivery: int = 0


class Held(NamedTuple):
    """A delivery that is not committed."""

    time_ns: int  # when it came
    notification: Notification


class Missing(msgspec.Struct, frozen=True):
    """Deliveries that are lost."""

    count: int  # 0: nobody knows how many
    reason: str


class Log(core.Client):
    """A core whose session is a log at one broker: at each attachment it asks for all that is not committed."""

    def __init__(self, name: str, address: str, start: Position) -> None:
        super().__init__(
            ClientId(name),
            once=False,
            confirms=True,
            digest_from=NO_DIGEST,
            window=WINDOW,
            late=COUNTED,
        )
        # It goes on with the session of an earlier process, which may have been killed later than it was written down.
        self.epoch, self.resumes = max(start.session, clock()), True
        self.delivered, self.welcomed = start.delivery, start.session > 0
        # What is committed does not come again: this process cannot know what that was.
        self._restored = self.epoch if start.delivery else 0
        self.where, self.session = start.broker, start.session
        self.attachments = 0
        self._address = address

    def may_attach_unseen(self) -> bool:
        return False  # it reads at one broker, and nowhere else

    def ask_for_all(self) -> list[Effect]:
        """Ask the broker to say so when this has all that it has: see `CaughtUp`."""
        return self._say(m.HereAck(self.following.acked, asks=True))

    def attach(self, broker: BrokerId | None, link: LinkId, time_ns: int = 0) -> list[Effect]:
        assert broker is not None
        if self.where not in ("", broker):
            raise UsageError(
                f"{self._address} is {broker}, and {self.name} has read at {self.where} up to"
                " now: give that broker's address, or begin with a new checkpoint"
            )
        self.where = broker
        self.attachments += 1
        self.previous = ((broker, self.session),)
        self.rewind()
        return super().attach(broker, link, time_ns)


class Reader(LocalBroker):
    """Takes everything that matches, and is done with it when it says so."""

    _core: Log

    def __init__(
        self,
        address: str,
        client_id: str,
        wanted: Filter,
        start: Position,
        *,
        since: float = 0.0,
        leaves: bool = False,
        **options: Unpack[Options],
    ) -> None:
        """With `since`, a reader that begins gets what came by in the last so many seconds, too.

        Unless it `leaves`, its session waits for the next reader of its name.
        """
        mine = Log(client_id, address, start)
        super().__init__(address, mine, Settings(**options), leaves=leaves)
        self.held: dict[int, Held] = {}
        self.gaps: dict[int, Missing] = {}  # by the last delivery that is lost
        self.latest = start.delivery
        self._start = start
        self._committed = start.delivery
        self._wanted = wanted
        self._caught_up = 0  # how often the broker said that this has all
        self._since_ns = 0 if start.session else int(since * 1e9)
        if not self._since_ns:
            mine.subscribe(wanted)

    @property
    def where(self) -> str:
        """The broker where it reads; "": it was nowhere yet."""
        return self._core.where

    @property
    def session(self) -> int:
        return self._core.session

    def position(self) -> Position:
        """The end of what has come."""
        return Position(self.where, self.session, self.latest)

    def commit(self, delivery: int) -> None:
        """Everything up to this delivery is done, and the broker may forget it."""
        self._committed = max(delivery, self._committed)
        for kept in (self.held, self.gaps):
            for number in [one for one in kept if one <= delivery]:
                del kept[number]
        self._confirm()
        self._conversation.flush_soon()

    def _confirm(self) -> None:
        now = time.monotonic_ns()
        self._conversation.perform(self._core.confirm_to(self._committed, now))

    async def settle(self) -> None:
        """Wait until all is here that the broker had when it was asked, and the past that it fetches."""
        there = self._conversation
        while there.wire is None or not await self._has_caught_up():
            await there.arrived()

    async def _has_caught_up(self) -> bool:
        """Whether the broker said so; False if the connection ended meanwhile."""
        there = self._conversation
        wire, before = there.wire, self._caught_up
        there.perform(self._core.ask_for_all())
        await self._life.until(lambda: self._caught_up > before or there.wire is not wire)
        return self._caught_up > before

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until its subscription is in effect at every broker from which something that matches can come.

        What is published from then on comes. After the time-out, by default that of the option `confirm`,
        NotConfirmed says which neighbours of its broker did not confirm it.
        """
        check_options(timeout=timeout)
        await self._confirmations.subscribed(self._wanted, timeout)

    async def reach(self, delivery: int) -> None:
        """Wait until so much has come."""
        await self._life.until(lambda: self.latest >= delivery)

    # What happens

    def _heard(self, message: m.AnyMessage) -> None:
        super()._heard(message)
        if isinstance(message, m.CaughtUp):
            self._caught_up += 1
            self._life.changed.set()
        elif isinstance(message, m.Welcome):
            self._core.session = self._core.session or self._core.epoch
            if self._since_ns:
                since_ns, self._since_ns = self._since_ns, 0
                self._conversation.perform(self._core.subscribe(self._wanted, None, since_ns))

    def _hand_out(self, notification: Notification, matching: Sequence[Filter | Template]) -> None:
        number = notification.delivery
        if number <= self._committed:  # while it was not attached
            self._confirm()
            return
        self.held.setdefault(number, Held(time.monotonic_ns() + CLOCK_NS, notification))
        self._reached(number)

    def _tell_lost(self, effect: Lost) -> None:
        anew = effect.reason in (NO_SESSION, OUT_OF_STEP)
        if anew:
            self._core.session = self._core.epoch
        # Who begins is not concerned with what an earlier reader of this name has committed.
        begins = self._core.attachments == 1 and not self._start.session
        if not (begins and anew):
            self.lost += effect.count
            self.gaps[self._core.delivered] = Missing(effect.count, effect.reason)
        self._reached(self._core.delivered)

    def _tell_settled(self, count: int, publishers: dict[str, int]) -> None:
        super()._tell_settled(count, publishers)
        unknown = (one for one, lost in self.gaps.items() if lost == Missing(0, NO_ANSWER))
        gap = next(unknown, None)
        if gap is not None:  # it is not committed yet
            del self.gaps[gap]
            if count:
                self.gaps[gap] = Missing(count, NO_ANSWER)
        self._reached(self._core.delivered)

    def _reached(self, delivery: int) -> None:
        self.latest = max(self.latest, delivery)
        self._life.changed.set()
