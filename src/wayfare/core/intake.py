"""Large profiles, taken in and dropped in slices: no event does more than a `Meter` allows.

    client                       broker
      |-- Attach(10,000 filters) ->|  a slice of the filters counts in the tables, for nobody yet
      |                            |  ... another one with every tick; others have their turn between
      |<-- Welcome ----------------|  all of them do: now the client attaches

While its filters are taken in, the client is not attached, and what it says waits. When they all count,
the attachment itself finds every filter in the tables, and costs little. What was counted for
nobody is dropped again, as are the filters of a client that leaves: later, in slices, too. A neighbour's
update that takes long is applied in slices, and what it sends behind that in updates waits.
Until then the tables ask for more than anybody wants, which loses nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.history import Limits, size_of
from wayfare.core.messages import Attach, ClientId, Entry, LinkId, Update
from wayfare.core.routing import KINDS, NOWHERE, Routing
from wayfare.errors import ProtocolError

TAKEN_UNITS = 30  # that it takes to count a filter in the tables, or not any more
CHARACTERS_PER_UNIT = 8  # of its patterns and texts


def units(filter: Filter) -> int:
    """What it takes to count a filter in the tables, roughly."""
    terms, eights, characters = filter.weight
    return TAKEN_UNITS * max(1, terms + eights) + characters // CHARACTERS_PER_UNIT


def takes_long(update: Update, limit: int) -> bool:
    """Whether a neighbour's update is applied in slices of so many units."""
    return update_units(update) > 2 * limit


def update_units(update: Update) -> int:
    """What it takes to count the entries of an update in the tables, or not any more, roughly."""
    return sum(_entry_units(entry) for kind in KINDS for entry in getattr(update, kind))


def in_slices(update: Update, limit: int) -> Iterator[Update]:
    """The same as several updates of about so many units; the last one has what is behind the entries."""
    for kind in KINDS:
        slice, left = list[Entry](), limit
        for entry in getattr(update, kind):
            slice.append(entry)
            left -= _entry_units(entry)
            if left <= 0:
                yield replace(Update(), **{kind: tuple(slice)})
                slice, left = [], limit
        if slice:
            yield replace(Update(), **{kind: tuple(slice)})
    if update.errands or update.probe or update.echo or update.slow:
        yield Update(errands=update.errands, probe=update.probe, echo=update.echo, slow=update.slow)


def _entry_units(entry: Entry) -> int:
    here = units(entry.filter)
    return here + sum(map(units, entry.ahead)) if entry.ahead else here


class Intake:
    """An attachment whose filters are being taken in."""

    __slots__ = ("bytes", "gone", "later", "message", "taken")

    def __init__(self, message: Attach) -> None:
        self.message = message
        self.taken = 0  # filters: first of its advertisements, then of its subscriptions
        self.later: list[tuple[m.FromClient, int]] = []  # what the client said since, and when
        self.bytes = 0  # of publications among that
        self.gone = False  # the connection is no more, but what was said counts

    def counted(self) -> tuple[list[Filter], list[Filter]]:
        """The advertisements and subscriptions that count in the tables so far."""
        ads = self.message.advertisements[: self.taken]
        subs = self.message.subscriptions[: max(0, self.taken - len(self.message.advertisements))]
        return list(ads), list(subs)


class Removal:
    """Filters that do not count any more, as soon as there is time for it. The next one is the last."""

    __slots__ = ("advertisements", "client", "place", "subscriptions")

    def __init__(
        self,
        client: ClientId,
        place: int,
        advertisements: list[Filter],
        subscriptions: list[Filter],
    ) -> None:
        self.client, self.place = client, place
        self.advertisements, self.subscriptions = advertisements[::-1], subscriptions[::-1]

    def __bool__(self) -> bool:
        return bool(self.advertisements or self.subscriptions)


class Intakes:
    """The attachments that are being taken in at one broker, and the removals."""

    __slots__ = ("_limits", "_routing", "removals", "taking")

    def __init__(self, routing: Routing, limits: Limits) -> None:
        self._routing = routing
        self._limits = limits
        self.taking: dict[LinkId, Intake] = {}  # the next one first
        self.removals: deque[Removal] = deque()

    def __bool__(self) -> bool:
        return bool(self.taking or self.removals)

    def is_large(self, *filters: Iterable[Filter]) -> bool:
        """Whether it takes too long to count these filters at once."""
        left = self._limits.slice_units
        for some in filters:
            for one in some:
                left -= units(one)
                if left < 0:
                    return True
        return False

    # Attachments

    def begin(self, link: LinkId, message: Attach) -> None:
        self.taking[link] = Intake(message)

    def on_message(self, link: LinkId, message: m.FromClient, now: int) -> None:
        """A client speaks before it is attached."""
        intake, limits = self.taking[link], self._limits
        if isinstance(message, m.Publish):
            intake.bytes += size_of(message)
        if len(intake.later) >= limits.held_count or intake.bytes > limits.backlog_bytes:
            self._give_up(link)
            raise ProtocolError("too many messages before the client is attached")
        intake.later.append((message, now))

    def on_link_down(self, link: LinkId) -> None:
        intake = self.taking.get(link)
        if intake is not None:
            if intake.later:
                intake.gone = True
            else:
                self._give_up(link)

    def _give_up(self, link: LinkId) -> None:
        self._release(self.taking.pop(link))

    def _release(self, intake: Intake) -> None:
        """What was counted for nobody does not count any more."""
        self.drop(intake.message.client, NOWHERE, *intake.counted())

    def take(self) -> tuple[LinkId, Intake] | None:
        """Count a slice of the filters of one attachment; returns it if these were the last.

        Its filters are released: let the client attach at once.
        """
        for link in list(self.taking)[:1]:
            intake = self.taking.pop(link)
            if not self._count(intake):
                self.taking[link] = intake  # behind the others
                return None
            self._release(intake)
            return link, intake
        return None

    def _count(self, intake: Intake) -> bool:
        """True if all of it counts."""
        message, routing = intake.message, self._routing
        ads, subs = message.advertisements, message.subscriptions
        while intake.taken < len(ads) + len(subs):
            if routing.meter.left <= 0:
                return False
            if intake.taken < len(ads):
                filter = ads[intake.taken]
                routing.advertise(message.client, filter)
            else:
                filter = subs[intake.taken - len(ads)]
                routing.subscribe(message.client, filter, NOWHERE)
            intake.taken += 1
            routing.meter.left -= units(filter)
        return True

    # Removals

    def drop(
        self,
        client: ClientId,
        place: int,
        advertisements: list[Filter],
        subscriptions: list[Filter],
    ) -> None:
        """Let these filters not count any more, later."""
        removal = Removal(client, place, advertisements, subscriptions)
        if removal:
            self.removals.append(removal)

    def is_removing(self, place: int) -> bool:
        """Whether filters of this place still count."""
        return any(one.place == place for one in self.removals)

    def go_on(self) -> list[int]:
        """Drop a slice of the filters that do not count any more. Returns places that are free now."""
        routing, free = self._routing, []
        while self.removals and routing.meter.left > 0:
            removal = self.removals[0]
            if removal.subscriptions:
                filter = removal.subscriptions.pop()
                routing.unsubscribe(removal.client, filter, removal.place)
            else:
                filter = removal.advertisements.pop()
                routing.unadvertise(removal.client, filter)
            routing.meter.left -= units(filter)
            if not removal:
                self.removals.popleft()
                free.append(removal.place)
        return free
