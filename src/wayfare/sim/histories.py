"""What every client did, in spans of time, as the event log tells it."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from wayfare.core.broker import NO_ROOM
from wayfare.core.filters import EVERYTHING, Filter
from wayfare.core.handoff import HELD_TOO_MUCH, NO_ANSWER
from wayfare.core.messages import SLOWS
from wayfare.core.predicates import Attributes, satisfied
from wayfare.core.templates import Template
from wayfare.eventlog import Event


def matches(filter: Filter, attributes: Attributes) -> bool:
    """The definition, not the code that brokers use."""
    return any(all(satisfied(p, attributes) for p in one) for one in filter.conjunctions)


def is_refusal(reason: str) -> bool:
    """Whether a broker closed a connection because it has no room for the client."""
    return reason.endswith(NO_ROOM.format(""))


class Span:
    """From when to when a client held a filter, or was attached."""

    __slots__ = ("broker", "confirmed", "end", "filter", "limited", "start")

    def __init__(self, start: int, filter: Filter | None = None, broker: str | None = None) -> None:
        self.start = start
        self.end: float = inf
        self.filter = filter
        self.broker = broker  # of an attachment
        self.limited = False  # the client does not want to have all that it missed
        self.confirmed: float = inf  # since when the subscription is known to be in effect


class History:
    """What one client did, in spans."""

    def __init__(self) -> None:
        self.attached: list[Span] = []
        self.subscribed: list[Span] = []
        self.advertised: list[Span] = []
        self.published: dict[int, Event] = {}
        self.followed: list[tuple[Template, int, float]] = []  # from when to when
        self.became: list[Event] = []
        self.left: list[int] = []
        self.replaced: list[int] = []  # when another process began under its name
        self.unanswered: list[int] = []  # when it waited no longer for its old broker
        self.refused: list[int] = []  # when a broker dropped publications that it held, and said so
        self.moves = 0  # attachments at another broker than before
        self._broker: str | None = None
        self._held: dict[tuple[str, Filter], tuple[int, Span]] = {}

    def hold(self, kind: str, spans: list[Span], filter: Filter, time: int) -> None:
        count, span = self._held.get((kind, filter), (0, Span(time, filter)))
        if not count:
            spans.append(span)
        self._held[kind, filter] = count + 1, span

    def limit(self, filter: Filter, terms: str | None) -> None:
        """A subscription with terms is limited from its beginning on, whenever they were told."""
        if terms is not None and not terms.startswith(SLOWS):  # last, and alone
            self._held["sub", filter][1].limited = True

    def let_go(self, kind: str, filter: Filter, time: int, *, all: bool = False) -> None:
        if (kind, filter) in self._held:
            count, span = self._held.pop((kind, filter))
            if count > 1 and not all:
                self._held[kind, filter] = count - 1, span
            else:
                span.end = min(span.end, time)  # it may have left before

    def confirm(self, filter: Filter, time: int, asked: int) -> None:
        """The subscription that was held when this was asked is in effect."""
        _, span = self._held.get(("sub", filter), (0, Span(time)))
        if span.start <= asked:
            span.confirmed = min(span.confirmed, time)

    def leave(self, time: int) -> None:
        """The session ends: to the brokers, the client wants and offers nothing."""
        self.left.append(time)
        for _, span in self._held.values():
            span.end = min(span.end, time)  # it may have left before

    def begin_anew(self, time: int) -> None:
        """Another process has the name now, and holds nothing."""
        self.leave(time)
        self.replaced.append(time)
        self._held.clear()

    def come(self, time: int, broker: str | None) -> None:
        """A new attachment; after leaving, everything that is held begins anew."""
        self.attached.append(Span(time, broker=broker))
        self.moves += self._broker not in (None, broker)
        self._broker = broker
        for key, (count, span) in self._held.items():
            if span.end < inf:
                again = Span(time, span.filter)
                again.limited = span.limited
                self._held[key] = count, again
                (self.subscribed if key[0] == "sub" else self.advertised).append(again)

    def process(self, time: int) -> int:
        """Which process had the client's name at this time, counted from 0."""
        return sum(replaced <= time for replaced in self.replaced)

    def contact(self, time: float, needs_ns: int, until: float = inf) -> float:
        """When the client has next been attached for so long, counted from this time; or never."""
        for (
            span
        ) in self.attached:  # judges ask this most: without `max` and `min`, in half the time
            start = span.start
            end = (start if start > time else time) + needs_ns
            if end <= span.end and end <= until:
                return end
        return inf

    def welcomed(self, time: int, trip_ns: int) -> float:
        """When the client that holds something since this time had first been welcomed; or never.

        That is a round trip after an attachment. Who left, or began anew, is welcomed anew.
        """
        anew = [one for one in (*self.left, *self.replaced) if one <= time]
        return self.contact(max(anew, default=0), 2 * trip_ns)

    def settled(self, time: int, whole_ns: int) -> int:
        """When the client's session has come to where it was at this time: each broker waits for the one before it."""
        settled = 0
        for span in self.attached:
            if span.start <= time:
                settled = max(settled, span.start) + whole_ns
        return settled

    def accepted(
        self, time: int, needs_ns: int, held_ns: int, until: float, *, expires: bool
    ) -> float:
        """When a broker has accepted what was published at this time, if it holds it for so long; or never.

        What a broker refused is sent again on the next connection. So is what it held when the session ended, because
        the client was away and its older session had expired.
        """
        dropped = self.refused
        if expires:
            dropped = sorted([*dropped, *(int(one.end) for one in self.attached if one.end < inf)])
        accepted = self.contact(time, needs_ns, until)
        for refused in dropped:
            if time <= refused <= accepted + held_ns:
                accepted = self.contact(refused, needs_ns, until)
        return accepted + held_ns


def histories(events: Iterable[Event]) -> dict[str, History]:
    out: dict[str, History] = {}
    for event in events:
        if event.client is None:
            continue
        history = out.setdefault(event.client, History())
        time, filter = event.time_ns, event.filter
        if event.kind == "published":
            assert event.number is not None
            history.published.setdefault(
                event.number, event
            )  # a broker that forgot a will repeats it
            if event.reason == "will":  # its publisher is the broker, and offers it since long
                history.attached, history.advertised = [Span(0)], [Span(0, EVERYTHING)]
        elif event.kind == "attached":
            history.come(time, event.broker)
        elif event.kind == "detached":
            history.attached[-1].end = time
            if is_refusal(event.reason or ""):
                history.attached.pop()
            if event.reason == HELD_TOO_MUCH:
                history.refused.append(time)
        elif event.kind == "left":
            history.leave(time)
        elif event.kind == "replaced":
            history.begin_anew(time)
        elif event.kind == "subscribed" and filter is not None:
            history.hold("sub", history.subscribed, filter, time)
            history.limit(filter, event.reason)
        elif event.kind == "followed" and event.follows is not None:
            history.followed.append((event.follows, time, inf))
        elif event.kind == "unfollowed":
            history.followed = [
                (one, start, time if one == event.follows and end == inf else end)
                for one, start, end in history.followed
            ]
        elif event.kind == "lost" and event.reason == NO_ANSWER:
            history.unanswered.append(time)
        elif event.kind == "became":
            history.became.append(event)
        elif event.kind == "confirmed" and filter is not None:
            history.confirm(filter, time, event.since_ns or 0)
        elif event.kind == "advertised" and filter is not None:
            history.hold("ad", history.advertised, filter, time)
        elif event.kind == "unsubscribed" and filter is not None:
            history.let_go("sub", filter, time, all=event.reason is not None)
        elif event.kind == "unadvertised" and filter is not None:
            history.let_go("ad", filter, time)
    return out
