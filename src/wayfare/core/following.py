"""The client's side of subscriptions that follow it: what they mean now, and what has come of them.

A filter that mentions `myloc` is followed by brokers: its deliveries come as `Here`, from the virtual
client where the client is. So is one that mentions a value of which it is declared how it changes. One that
mentions only other values is an ordinary subscription to what it means now, and another one when that changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from wayfare.core import changes
from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.matching import FilterIndex
from wayfare.core.messages import FOLLOWS_MAX, ClientId, Notification, State, Terms
from wayfare.core.templates import Around, Mine, Template
from wayfare.core.virtual import area_of, check_length
from wayfare.errors import FilterError, ProtocolError, UsageError

SEEN_MAX = 50_000  # notifications that are remembered, so that they do not come twice


class Following:
    """What one client follows."""

    __slots__ = ("_index", "acked", "counts", "heard", "meant", "seen", "served", "state", "terms")

    def __init__(self) -> None:
        self.state = m.NOWHERE
        self.counts: dict[Template, int] = {}  # how often the application asked for it
        self.terms: dict[Template, Terms] = {}
        self.meant: dict[Template, Filter] = {}  # what each of them means now
        self.heard = (0, 0)  # since which attachment, and up to which number, by Here
        self.acked = 0
        self.served = (
            False  # a broker follows something for it: what comes of that has these numbers
        )
        self._index: FilterIndex[Template] = FilterIndex()
        # Brokers listen in several places, so the same may come from several of them.
        self.seen: dict[tuple[ClientId, int], None] = {}

    def declare(self, how: changes.Changes) -> None:
        """These values change like this. Before anything is followed: it decides who follows it."""
        if self.counts:
            raise UsageError("declare how values change before anything is followed")
        changes.check(how)
        self.state = replace(self.state, changes=how)

    def is_served(self, template: Template) -> bool:
        """Whether brokers follow it for the client."""
        return template.follows_location or not template.names.isdisjoint(self.state.changes)

    def add(self, template: Template, terms: Terms | None) -> bool:
        """True if that is news to the broker."""
        before = self.terms.get(template)
        if template not in self.counts:
            if len(self.counts) >= FOLLOWS_MAX:
                raise FilterError(f"a client follows at most {FOLLOWS_MAX} filters")
            check_length([*self.counts, template], self.state)
            self.meant[template] = self._meaning(template, self.state)
            self._index.add(template, self.meant[template])
        self.counts[template] = self.counts.get(template, 0) + 1
        self.terms.pop(template, None)
        if terms is not None:
            self.terms[template] = terms
        return self.counts[template] == 1 or terms != before

    def remove(self, template: Template) -> bool:
        """True if it was the last."""
        if template not in self.counts:
            return False
        self.counts[template] -= 1
        if self.counts[template]:
            return False
        del self.counts[template], self.meant[template]
        self.terms.pop(template, None)
        self._index.remove(template)
        return True

    def end(self, template: Template) -> None:
        """However often the application asked for it."""
        self.counts[template] = 1
        self.remove(template)

    def be(self, state: State) -> dict[Template, Filter]:
        """The client is like this from now on: what meant something else before, and what."""
        check_length(self.counts, state)
        meanings = {one: self._meaning(one, state) for one in self.counts}  # raises before anything
        self.state = state
        before = {one: was for one, was in self.meant.items() if was != meanings[one]}
        for one in before:
            self._index.remove(one)
            self._index.add(one, meanings[one])
        self.meant = meanings
        return before

    def declared(self, state: State) -> State:
        """How values change is the same in all states."""
        how = self.state.changes
        return state if state.changes == how else replace(state, changes=how)

    def _meaning(self, template: Template, state: State) -> Filter:
        around = None if state.position is None else Around(*state.position)
        return template.resolve(Mine(area_of(state), around, state.values))

    def place(self) -> State:
        """Where the client is, without what else it is like."""
        return State(self.state.location, self.state.position)

    def located(self) -> m.Follows:
        """What brokers follow for the client."""
        return tuple((one.text, self.terms.get(one)) for one in self.counts if self.is_served(one))

    def stand_ins(self) -> dict[Filter, int]:
        """The ordinary subscriptions of what brokers do not follow, and of how many."""
        filters: dict[Filter, int] = {}
        for template, filter in self.meant.items():
            if not self.is_served(template):
                filters[filter] = filters.get(filter, 0) + 1
        return filters

    def followed(self) -> m.Followed | None:
        """What an attachment says of what is followed; None: nothing."""
        follows = self.located()
        return m.Followed(follows, self.state, self.resumes_at()) if follows else None

    def resumes_at(self) -> tuple[int, int]:
        """Behind which delivery the next broker goes on; (0, 0): no broker has followed anything for it."""
        return self.heard if self.served else (0, 0)

    def begin(self, epoch: int) -> None:
        """The numbers of deliveries begin anew with an attachment."""
        self.heard, self.acked = (epoch, 0), 0

    def find(self, notification: Notification) -> Sequence[Template]:
        return self._index.find(notification.attributes)

    def hear(self, number: int) -> None:
        """The next delivery has come."""
        epoch, last = self.heard
        if number <= last:
            raise ProtocolError(f"delivery {number} after {last}")
        self.heard = epoch, number

    def has_seen(self, notification: Notification) -> bool:
        return (notification.publisher, notification.number) in self.seen

    def is_news(self, notification: Notification) -> bool:
        """Whether this has not come before; from now on it has."""
        key = notification.publisher, notification.number
        if key in self.seen:
            return False
        self.seen[key] = None
        if len(self.seen) > SEEN_MAX:
            del self.seen[next(iter(self.seen))]
        return True
