"""The counterpart of a thin device: its local broker, at its border broker instead of on the device.

It is a client that is done with a notification when the device has acknowledged it. What the device
has not acknowledged is kept here, a broker's window at most, and told again whenever it comes back;
the rest waits at the broker, which is never told that more is done than the device knows: so the
device can go on elsewhere from `n`, the place in its stream that it has seen last:

    17                              delivery 17
    "17/1763297123456789/3"         and of what follows the device: the attachment, and the number
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Unpack

from wayfare.core import client as core
from wayfare.core import messages as m
from wayfare.core.client import Held, Memory
from wayfare.core.effects import Effect, Event, Lost, Notify, Passed, Settled
from wayfare.core.filters import Filter
from wayfare.core.late import COUNTED, WANTED
from wayfare.core.messages import FILTERS_MAX, BrokerId, ClientId
from wayfare.core.predicates import Value
from wayfare.core.templates import Template, parse
from wayfare.errors import FilterError, UsageError
from wayfare.net import payloads
from wayfare.net.local_broker import LocalBroker, begun, clock
from wayfare.net.options import Options, Settings
from wayfare.net.subscription import Notification
from wayfare.net.thin_memory import MEMORY_MAX, ThinMemory, sealed
from wayfare.net.wanted import asked, offered_as, wanted_as
from wayfare.net.wills import Will

TELLINGS_MAX = 1_000  # that a device has not acknowledged; the rest waits at the broker
NEWS_MAX = 32  # of them, that are written before it is seen whether the device reads
NUMBER_MAX = 1_000_000_000  # of a publication, as the device counts them
FORGOTTEN_MAX = 1_000  # attachments of a counterpart that its device never heard of
NOTED_EVERY = 1_000  # publications without a number; then the device gets a new memory
UNNOTED_MAX = 1_000_000  # of them that may be accepted before it has got that
PART = re.compile(r"\d{1,18}")

Position = tuple[int, int, int]  # everything up to this delivery, and of what follows the device
Facts = dict[str, Any]
BEGINNING: Position = (0, 0, 0)


class Told(NamedTuple):
    """Something that the device has to acknowledge: a notification, or that some are lost."""

    position: Position
    facts: Facts
    notification: Notification | None = None


class Careful(core.Client):
    """A core that acknowledges no delivery before the device has."""

    seen = 0  # the device has acknowledged everything up to this delivery
    base = 0  # the device's publication 1 has the number after this one

    def done(self) -> int:
        return min(self.seen, super().done())

    def see(self, delivery: int, now: int) -> list[Effect]:
        self.seen = max(self.seen, delivery)
        return self._mind_ack(now)

    def step(self, event: Event, now: int) -> list[Effect]:
        before, effects = self.delivered, super().step(event, now)
        told = any(isinstance(one, Notify | Lost | Settled) for one in effects)
        if self.delivered > before and not told:
            effects.append(Passed())
        return effects

    def begin(self, at: int, life: int) -> None:
        super().begin(at, life)
        self.base = at

    def _exceed(self, above: int) -> list[Effect]:
        # The device goes on counting where it is: its next publication is above that, too.
        before, effects = self.published, super()._exceed(above)
        self.base += self.published - before
        return effects

    def _forget_published(self, number: int) -> None:
        # What an earlier counterpart has published may be accepted only now.
        self.published = max(number, self.published)
        super()._forget_published(number)


class Counterpart(LocalBroker):
    """What one device is to its broker, wherever the device is."""

    _core: Careful

    def __init__(
        self,
        broker: str,
        name: str,
        memory: ThinMemory | None = None,
        seen: Position = BEGINNING,
        *,
        secret: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        """With a memory, it goes on behind what the device has seen; else it begins anew."""
        settings = Settings(**options)
        mine = Careful(ClientId(name), confirms=True, late=_wish(settings.late))
        if memory is None:
            begun(mine)
        else:
            _go_on(mine, memory, seen)
        self.fresh = asyncio.Event()  # there may be something to tell
        self._secret = secret
        self._tellings: deque[Told] = deque()  # that are not acknowledged
        self._shown = 0  # of these, on the present connection
        self._seen = seen  # acknowledged
        self._handed = seen[0]  # the last delivery of all tellings
        self._remembers = False  # the device has the latest memory
        # What an earlier counterpart published without a number has none above this.
        self._beyond = 0 if memory is None else max(memory.published + UNNOTED_MAX, clock())
        self._noted = 0  # the last publication that the latest memory knows of
        self._taken = 0  # the device's last publication that a broker has accepted
        self._accepted = 0  # ... of which it was told
        # Its session waits for the device, here or elsewhere.
        super().__init__(broker, mine, settings, leaves=False)
        self._life.wakers.append(self.fresh.set)

    @property
    def epoch(self) -> int:
        """Of the last attachment."""
        return self._core.epoch

    @property
    def failed(self) -> bool:
        """Whether it cannot go on: its session is elsewhere, or its broker refused it."""
        return self._life.error is not None or self._life.closed

    def vouch(self, address: str) -> None:
        """The device is at this address: the broker is told when it logs in."""
        self._conversation.vouch(address, self._secret)

    def be_gone(self) -> None:
        """The device is gone: if it has a will, the broker has to notice."""
        if self._core.will is not None:
            self._conversation.detach()

    async def be_back(self, will: Will | None, *, late: bool) -> None:
        """The device is back, with this will, and says whether it wants what comes late."""
        message, wish = None if will is None else will.message, _wish(late)
        if message != self._core.will or wish != self._core.late:  # an attachment brings them
            self._conversation.detach()
            self._core.make_will(message)
            self._core.late = wish
        if self._conversation.is_away:
            await self.attach()

    async def leave(self) -> None:
        """The device does not come back."""
        self._leaves = True
        await self.close()

    # What the device says

    def want(self, text: Any, **terms: Any) -> None:
        """Subscribe; once is enough."""
        one = asked(text, **terms)
        if one.since_ns or not self._profile.has(one.wanted, one.terms):
            self._check_room(one.wanted)
            self._profile.want(one.wanted, one.terms, one.since_ns)

    def unwant(self, text: Any) -> None:
        wanted = wanted_as(text)
        if not self._core.asks_for(wanted):
            raise UsageError(f"{self.name} is not subscribed to {wanted}")
        self._profile.drop(wanted)

    def announce(self, text: Any) -> None:
        """Advertise; once is enough."""
        offered = offered_as(text)
        if offered not in self._core.advertisements:
            self._check_room(offered)
            self._profile.advertise(offered)

    async def retract(self, text: Any) -> None:
        offered = offered_as(text)
        if offered not in self._core.advertisements:
            raise UsageError(f"{self.name} has not advertised {offered}")
        await self.unadvertise(offered)

    async def confirm(self) -> None:
        """Wait until all that the device wants and offers by now is in effect; or NotConfirmed."""
        await self._confirmations.everything()

    def _check_room(self, filter: Filter | Template) -> None:
        if len(self.memory()) + 2 * len(str(filter)) + 100 > MEMORY_MAX:
            raise FilterError(
                f"{self.name} cannot remember more: what it wants and offers fits"
                f" {MEMORY_MAX} characters"
            )

    async def say(
        self,
        attributes: Mapping[str, Value],
        payload: bytes,
        number: int | None,
        retain: Any = (),
        *,
        clear: bool = False,
        expires: Any = None,
        area: Any = None,
    ) -> None:
        """Publish; what has the number of an earlier publication is that one, said again."""
        await self._life.until(self._may_publish)
        base, last = self._core.base, self._core.published
        if number is None:
            number = max(last, self._beyond) + 1 - base
            self._remembers &= base + number <= self._noted + NOTED_EVERY
        elif type(number) is not int or not 0 < number <= NUMBER_MAX:
            raise UsageError(
                f"publications are numbered from 1 to {NUMBER_MAX}, not {number!r:.60}"
            )
        if base + number <= last:
            self._accepted = 0  # tell it again
            self.fresh.set()
            return
        self._core.published = base + number - 1
        try:
            if clear:
                await self.clear(attributes, payload, retain=retain)
            else:
                await self.publish(attributes, payload, retain=retain, expires=expires, area=area)
        except BaseException:
            self._core.published = last
            raise

    def ack(self, seen: Position) -> None:
        """The device is done with everything up to there."""
        now, told = time.monotonic_ns(), self._tellings
        while told and told[0].position <= seen:
            self._seen, _, one = told.popleft()
            self._shown = max(0, self._shown - 1)
            if one is not None:
                who, ask = ClientId(one.publisher), one.request
                done = self._core.confirm(who, one.number, now, ask)
                self._conversation.perform(done)
        self._conversation.perform(self._core.see(self._seen[0], now))
        self._conversation.flush_soon()
        self._conversation.take_held()

    # What the device is told

    def welcome(self) -> Facts:
        """The first line of a connection; what is not acknowledged comes behind it, again."""
        self._shown = 0
        self._remembers, self._accepted = True, self._taken
        return {
            "welcome": self.name,
            "broker": self.broker,
            "n": text_of(self._seen),
            "published": self._accepted,
            "memory": self.memory(),
        }

    def news(self) -> Iterator[Facts]:
        """What is to be told now: something, or everything."""
        if not self._remembers:
            self._remembers = True
            yield {"memory": self.memory()}
        some = list(islice(self._tellings, self._shown, self._shown + NEWS_MAX))
        self._shown += len(some)
        yield from (one.facts for one in some)
        if self._taken > self._accepted:
            self._accepted = self._taken
            yield {"published": self._taken}
        if self._shown == len(self._tellings):
            self.fresh.clear()

    def memory(self) -> str:
        held, memory = self._core.held(), self._core.memory()
        self._noted = max(memory.published, self._beyond)
        whole = ThinMemory(
            self.name,
            self._core.base,
            memory.epoch,
            memory.home,
            memory.previous,
            tuple((str(one), terms) for one, terms in held.subscriptions),
            tuple(map(str, held.advertisements)),
            tuple(held.follows),
            held.state,
            memory.life,
            memory.asks,
            self._noted,
        )
        return sealed(whole, self._secret)

    def _add(self, facts: Facts, notification: Notification | None = None) -> None:
        self._handed = max(self._handed, self._core.delivered)
        heard = self._core.following.heard if self._core.following.located() else (0, 0)
        position = (self._handed, *heard)
        bare = self._shown < len(self._tellings) and self._tellings[-1].facts.keys() == {"n"}
        if bare:  # it only says where the stream is by now
            self._tellings.pop()
        self._tellings.append(Told(position, {"n": text_of(position), **facts}, notification))
        self.fresh.set()

    # What happens

    def _heard(self, message: m.AnyMessage) -> None:
        super()._heard(message)
        # Behind a change of the base, what waits in the outbox has lower numbers.
        self._taken = max(self._taken, self._confirmed - self._core.base)
        if isinstance(message, m.Welcome):
            self._remembers = False
        self.fresh.set()

    def _change(self) -> None:
        super()._change()
        self._remembers = False
        self.fresh.set()

    def _tell(self, effect: Effect) -> None:
        super()._tell(effect)
        if isinstance(effect, Passed) and self._core.delivered > self._handed:
            self._add({})

    def _may_take(self) -> bool:
        return len(self._tellings) < TELLINGS_MAX

    def _hand_out(self, notification: Notification, matching: Sequence[Filter | Template]) -> None:
        facts: Facts = {
            "notification": notification.attributes,
            "publisher": notification.publisher,
            "number": notification.number,
            **payloads.told(notification.payload),
        }
        if notification.past:
            facts["past"] = True
        if notification.retained:
            facts["retained"] = True
        if notification.late:
            facts["late"] = True
        self._add(facts, notification)

    def _tell_lost(self, effect: Lost) -> None:
        self.lost += effect.count
        self._add({"lost": effect.count, "why": effect.reason})

    def _tell_settled(self, count: int, publishers: dict[str, int]) -> None:
        self.lost += count
        self._add({"settled": count, "publishers": publishers})


def _wish(late: bool) -> int:
    """What a device wants of what comes late; it is always told how many are lost."""
    return WANTED if late else COUNTED


def _go_on(mine: Careful, memory: ThinMemory, seen: Position) -> None:
    delivered, *heard = seen
    for text, _ in memory.follows:
        if not isinstance(parse(text), Template):
            raise UsageError(f"the memory of {mine.name} is damaged: {text} follows nobody")
    held = Held(
        subscriptions=[(Filter.parse(text), terms) for text, terms in memory.subscriptions],
        advertisements=[Filter.parse(text) for text in memory.advertisements],
        follows=list(memory.follows),
        state=memory.state,
    )
    epoch = max(memory.epoch + FORGOTTEN_MAX, clock())
    previous = tuple((BrokerId(broker), epoch) for broker, epoch in memory.previous)
    was = Memory(
        epoch,
        memory.base,
        delivered,
        True,
        BrokerId(memory.home),
        previous,
        (heard[0], heard[1]),
        max(memory.asks + FORGOTTEN_MAX * FILTERS_MAX, clock()),
        memory.life,
    )
    mine.remember(was, held, (), None)
    mine.seen, mine.base, mine.life = delivered, memory.base, memory.life


def text_of(position: Position) -> int | str:
    """How a device is told of a place in its stream."""
    return "/".join(map(str, position)) if any(position[1:]) else position[0]


def position_of(given: Any) -> Position:
    """A place in its stream as the device was told it; UsageError if it is none."""
    parts = [str(given)] if type(given) is int else given.split("/") if type(given) is str else []
    if len(parts) in (1, 3) and all(PART.fullmatch(one) for one in parts):
        numbers = [*map(int, parts), 0, 0]
        return numbers[0], numbers[1], numbers[2]
    raise UsageError(f"ack is the n of a line that came before, as it came, not {given!r:.60}")
