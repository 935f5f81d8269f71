"""Long texts in publications: patterns are looked for in slices, before such a publication is routed.

    publisher                          broker
      |-- Publish(100 KiB of text) ---->|  some patterns of the tables are looked for in the text
      |-- Publish, Unsubscribe ... ---->|  ... more with every tick; what comes on this link waits, others go on
      |<- Published --------------------|  all were looked for: it is routed, as if it had come now

Likewise for what a client published while its broker waited for the old one: it is accepted in slices, before anything
else that the client says.

Likewise for many requests for current values in one attachment: they are answered one after the other, as if the client
had sent them so. A will with a long text waits for its patterns, and nobody waits for it.

Whether a text matches depends on the text and the pattern alone, so the tables may change meanwhile: what is new in
them is looked for when the publication is routed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import NamedTuple

from wayfare.core.effects import Event, Publications, Received
from wayfare.core.filters import Filter
from wayfare.core.history import Limits, Stored, size_of
from wayfare.core.long_texts import LONG_TEXTS, SCANNED, LongText
from wayfare.core.matching import Patterns
from wayfare.core.memory import BODY_BYTES
from wayfare.core.messages import (
    AnyMessage,
    LinkId,
    Notification,
    Publish,
    Retained,
    Subscribe,
    Uncertain,
    Will,
)
from wayfare.core.patterns import fits_long, literals, shape
from wayfare.core.predicates import Attributes
from wayfare.core.retained import Table, answer_to
from wayfare.core.routing import Destinations
from wayfare.core.sessions import Session, Wait
from wayfare.core.shelves import GRAM

STEP_UNITS = 20  # that it takes to route a publication, at least
FILTERS_PER_UNIT = 8  # that it matches
VALUES_PER_UNIT = 2  # current values that are compared with a filter
TERMS_PER_UNIT = 4  # predicates of the filter


def _attributes(message: AnyMessage | None) -> Attributes:
    """Of a message that is routed by them."""
    if isinstance(message, Publish | Notification):
        return message.attributes
    if isinstance(message, Uncertain | Retained):
        return message.notification.attributes
    return {}


class Preparation:
    """The patterns that are looked for in the texts of one publication."""

    __slots__ = ("_left", "known")

    def __init__(
        self,
        attributes: Attributes,
        patterns: Patterns,
        limits: Limits,
        known: dict[str, LongText] | None = None,
    ) -> None:
        """With what is `known` already."""
        self.known: dict[str, LongText] = {} if known is None else known
        self._left = iter(
            [
                (text, pattern)
                for name, text in attributes.items()
                if type(text) is str and len(text) >= limits.long_text
                for pattern in patterns.get(name, ())
            ]
        )

    def go_on(self, units: int) -> int:
        """Spend so many units, or a bit more; returns what is left of them: nothing, unless all is done."""
        LONG_TEXTS.begin(self.known)
        for text, pattern in self._left:
            known = LONG_TEXTS.of(text)
            before = known.units()
            known.pieces(min(GRAM, max(map(len, literals(pattern)))) or 1)
            word, literal = shape(pattern)
            if word == "contains":
                known.contains(literal)
            else:
                fits_long(pattern, text)
            units -= 1 + known.units() - before
            if units <= 0:
                break
        LONG_TEXTS.end()
        return max(0, units)


class Comparison:
    """Which current values a subscription asks for: found in slices."""

    __slots__ = ("_ask", "_filter", "_left", "_values", "known")

    def __init__(self, ask: int, filter: Filter, values: Iterable[Retained]) -> None:
        self.known: dict[int, Stored | None] = {}  # what the subscription gets of a value, by id
        self._ask, self._filter = ask, filter
        self._values = list(values)  # whose ids are not given to others meanwhile
        self._left = iter(self._values)

    def go_on(self, units: int) -> int:
        """As that of a `Preparation`."""
        ask, filter, known = self._ask, self._filter, self.known
        terms = 1 + filter.weight[0] // TERMS_PER_UNIT
        for value in self._left:
            known[id(value)] = answer_to(ask, filter, value)
            units -= terms * (1 + size_of(value.notification) // SCANNED)
            if units <= 0:
                return 0
        return units

    def compared(self) -> tuple[dict[int, Filter], dict[int, Stored | None]]:
        return {self._ask: self._filter}, self.known


class Held(NamedTuple):
    """A publication that was held back until the old broker of its client had answered.

    Without one, all of them were accepted, and the client has left.
    """

    session: Session
    message: Publish | None


class Late:
    """What waits on one link."""

    __slots__ = ("bytes", "events", "own", "preparation")

    def __init__(self) -> None:
        self.events: deque[Event | Held] = deque()
        self.bytes = 0
        self.own = 0  # events that the client has not sent as such
        self.preparation: Preparation | Comparison | None = None  # of the first event


class Preparations:
    """The links of one broker on which something waits."""

    __slots__ = ("_destinations", "_limits", "_patterns", "_values", "_will", "bytes", "late")

    def __init__(self, destinations: Destinations, limits: Limits, values: Table) -> None:
        self._destinations, self._patterns = destinations, destinations.patterns
        self._limits, self._values = limits, values
        self._will: tuple[Session, Preparation] | None = None  # that is prepared now
        self.late: dict[LinkId, Late] = {}  # the next one first
        self.bytes = 0

    def takes_long(self, message: AnyMessage) -> bool:
        """Whether patterns are looked for in slices before this is routed."""
        return self._is_long(_attributes(message))

    def _is_long(self, attributes: Attributes) -> bool:
        units, patterns, limits = 0, self._patterns, self._limits
        for name, text in attributes.items():
            if type(text) is str and len(text) >= limits.long_text and name in patterns:
                units += len(patterns[name]) * (1 + len(text) // SCANNED)
        return units > limits.slice_units

    def is_for(self, event: Event) -> bool:
        return isinstance(event, Received) and self.takes_long(event.message)

    def _step_units(self) -> int:
        """What it takes to perform an event: a publication may match all filters."""
        return STEP_UNITS + len(self._destinations) // FILTERS_PER_UNIT

    def are_many(self, asks: Sized) -> bool:
        """Whether it takes too long to answer these requests for current values at once."""
        return len(asks) * self._ask_units() > self._limits.slice_units

    def _ask_units(self) -> int:
        return len(self._values) // VALUES_PER_UNIT

    def takes_long_to_answer(self) -> bool:
        """Whether a request for current values is compared with them in slices first."""
        return self._ask_units() + self._values.bytes // SCANNED > self._limits.slice_units

    def will(
        self, session: Session, will: Will, is_due: Callable[[Session], bool]
    ) -> dict[str, LongText] | None:
        """What is known of the texts of a will, or None if that needs another slice: one will after the other."""
        if not self._is_long(will.attributes):
            return {}
        if self._will is not None and self._will[0] is not session:
            if is_due(self._will[0]):
                return None
            self._will = None
        if self._will is None:
            self._will = (
                session,
                Preparation(will.attributes, self._patterns, self._limits),
            )
        preparation = self._will[1]
        if not preparation.go_on(self._limits.slice_units):
            return None
        self._will = None
        return preparation.known

    def put_off(self, link: LinkId, event: Event, *, own: bool = False) -> None:
        """Let an event of this link wait. It is our own if the client did not send it as such."""
        late = self.late.setdefault(link, Late())
        late.own += own
        if isinstance(event, Publications):
            late.events.extend(Received(link, one) for one in event.messages)
        else:
            late.events.append(event)
        size = waiting_bytes(event)
        late.bytes += size
        self.bytes += size

    def are_long(self, wait: Wait) -> bool:
        """Whether it takes too long to accept at once what a session held back."""
        units = self._step_units() * len(wait.publications) + wait.published_bytes // SCANNED
        return units > self._limits.slice_units or any(
            self.takes_long(one) for one, _ in wait.publications
        )

    def put_off_held(self, session: Session, wait: Wait, now: int) -> None:
        """Let what a session held back be accepted in slices, before what waits on the link of its client."""
        link = session.link or LinkId(f"{session.client}#held#{session.place}")
        held = [Held(session, one) for one in wait.publications_left(now)]
        if session.leaving:
            held.append(Held(session, None))
        late = self.late.setdefault(link, Late())
        late.events.extendleft(reversed(held))
        late.own += len(held)
        late.preparation = None
        size = len(held) * BODY_BYTES + wait.published_bytes
        late.bytes += size
        self.bytes += size

    def is_full(self, link: LinkId) -> bool:
        """Whether more waits on this link than a client may send ahead."""
        late, limits = self.late[link], self._limits
        return len(late.events) - late.own > limits.held_count or late.bytes > limits.backlog_bytes

    def go_on(
        self, is_busy: Callable[[LinkId], bool]
    ) -> Iterator[tuple[Event | Held, Preparation | Comparison]]:
        """Prepare a slice of what waits on one link. Yields events to perform, with what is known for them."""
        link, late = next(iter(self.late.items()))
        units = self._limits.slice_units
        while late.events and units > 0 and self.late.get(link) is late and not is_busy(link):
            event = late.events[0]
            if late.preparation is None:
                late.preparation = self._preparation(event)
            units = late.preparation.go_on(units)
            if not units:
                break
            size = waiting_bytes(event)
            units -= self._step_units() + size // SCANNED
            if isinstance(event, Received) and isinstance(event.message, Subscribe):
                units -= self._ask_units() if event.message.ask else 0
            late.events.popleft()
            late.bytes -= size
            self.bytes -= size
            preparation, late.preparation = late.preparation, None
            yield event, preparation
        if self.late.get(link) is late:
            del self.late[link]
            if late.events:
                self.late[link] = late  # behind the others

    def _preparation(self, event: Event | Held) -> Preparation | Comparison:
        message = event.message if isinstance(event, Received | Held) else None
        if isinstance(message, Subscribe) and message.ask:
            return Comparison(message.ask, message.filter, self._values.values.values())
        return Preparation(_attributes(message), self._patterns, self._limits)

    def drop(self, link: LinkId) -> list[Event]:
        """Nothing waits on this link any more; returns the events that did. What was held back is sent again."""
        late = self.late.pop(link, None)
        if late is None:
            return []
        self.bytes -= late.bytes
        return [one for one in late.events if not isinstance(one, Held)]


def waiting_bytes(event: Event | Held) -> int:
    """What an event that waits takes in memory."""
    if isinstance(event, Publications):
        return sum(BODY_BYTES + size_of(one) for one in event.messages)
    message = event.message if isinstance(event, Received | Held) else None
    if isinstance(message, Uncertain | Retained):
        message = message.notification
    return BODY_BYTES + (size_of(message) if isinstance(message, Publish | Notification) else 0)
