"""Advertisement and subscription tables, and what follows from them for each neighbour.

    ads wanted at n  = reduce(ads of local sessions and of neighbours other than n)
    subs wanted at n = reduce(subs of local sessions and, one hop on, of neighbours other than n
                              that overlap an ad received from n)

A subscription may be wider at each hop (`Entry.ahead`): what a neighbour said counts here as it is, and
goes on as it is one hop farther. Whether it goes on is asked of the widest.

Every out-table is that function of the in-tables and the local sessions, and nothing else. It is
kept up entry by entry; `updates()` says what changed for each neighbour since the last time. `reduce`
is the routing strategy (reduction.py).

One event spends a limited amount of work on that. What is left goes on with `catch_up`; until then,
and where even that would take too long, more is forwarded than needed, never less: a subscription
counts as overlapping, and a filter as not covered.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf

from msgspec.structs import replace

from wayfare.core.covering import Meter, OverlapIndex, price
from wayfare.core.filters import Filter
from wayfare.core.matching import FilterIndex
from wayfare.core.messages import UPDATE_MAX, BrokerId, ClientId, Entry, Update, filter_count
from wayfare.core.reduction import OutTable, Strategy, count_down, count_up
from wayfare.errors import ProtocolError

KINDS = ("add_ads", "add_subs", "remove_subs", "remove_ads")  # of changes, in their order
LOCAL = BrokerId("")  # the source of what the broker's own sessions want or offer
NOWHERE = -1  # the place of filters that count in the tables, but for no session yet
NOBODY = ClientId("")  # whose entries are where routing is by filter

WITHDRAWN_MAX = 1_000  # advertisements of one neighbour, or of the broker's own clients
LONG_AGO = -(2**62)

Chains = tuple[tuple[Filter, ...], ...]  # filters of one conjunction, for hop after hop


class Audience:
    """The places that want what one filter matches, in ascending order."""

    __slots__ = ("counts", "filter", "here", "near")

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.counts: dict[int, int] = {}  # place -> how often it asked
        self.near: list[int] = []  # neighbours' places
        self.here: list[int] = []  # sessions' places


class Destinations:
    """Which places want a notification. A place is a small integer: a neighbour's or a session's."""

    __slots__ = ("_audiences", "_first_session", "_index", "changed", "find", "patterns")

    def __init__(self, first_session: int = 0) -> None:
        self._first_session = first_session
        self._audiences: dict[Filter, Audience] = {}
        self._index: FilterIndex[Audience] = FilterIndex()
        self.find = self._index.find  # the audiences of a notification
        self.patterns = self._index.patterns
        # Filters whose audiences changed, for who clears it again; None: nobody wants to know.
        self.changed: dict[Filter, None] | None = None

    def __len__(self) -> int:
        """How many filters somebody wants."""
        return len(self._audiences)

    def add(self, filter: Filter, place: int) -> None:
        audience = self._audiences.get(filter)
        if audience is None:
            audience = self._audiences[filter] = Audience(filter)
            self._index.add(audience, filter)
        if place not in audience.counts and place != NOWHERE:
            insort(audience.near if place < self._first_session else audience.here, place)
            if self.changed is not None:
                self.changed[filter] = None
        audience.counts[place] = audience.counts.get(place, 0) + 1

    def remove(self, filter: Filter, place: int) -> None:
        audience = self._audiences[filter]
        audience.counts[place] -= 1
        if not audience.counts[place]:
            del audience.counts[place]
            if place != NOWHERE:
                places = audience.near if place < self._first_session else audience.here
                del places[bisect_left(places, place)]
                if self.changed is not None:
                    self.changed[filter] = None
            if not audience.counts:
                del self._audiences[filter]
                self._index.remove(audience)

    def audience(self, filter: Filter) -> Audience | None:
        return self._audiences.get(filter)

    def everybody(self) -> list[int]:
        """The places of all sessions that want something."""
        return near_and_here(list(self._audiences.values()))[1]

    def counts(self) -> dict[Filter, dict[int, int]]:
        """Who wants what, and how often each said so."""
        return {filter: audience.counts for filter, audience in self._audiences.items()}


def near_and_here(audiences: Sequence[Audience]) -> tuple[list[int], list[int]]:
    """The neighbours' and the sessions' places of all these audiences, each once, in order."""
    near = {place for audience in audiences for place in audience.near}
    here = {place for audience in audiences for place in audience.here}
    return sorted(near), sorted(here)


class Sources:
    """Who an entry came from: neighbours, and LOCAL as often as sessions hold it."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[Entry, dict[BrokerId, int]] = {}

    def add(self, entry: Entry, source: BrokerId) -> bool:
        """True if that is news."""
        sources = self.of.setdefault(entry, {})
        sources[source] = sources.get(source, 0) + 1
        return sources[source] == 1

    def remove(self, entry: Entry, source: BrokerId) -> bool:
        """True if it is gone now."""
        sources = self.of[entry]
        sources[source] -= 1
        if sources[source]:
            return False
        del sources[source]
        if not sources:
            del self.of[entry]
        return True

    def beyond(self, entry: Entry, neighbour: BrokerId) -> bool:
        """Whether someone other than that neighbour has it."""
        sources = self.of.get(entry)
        return sources is not None and (len(sources) > 1 or neighbour not in sources)


class Stale:
    """What a neighbour said before its link began from nothing, and has not repeated since."""

    __slots__ = ("ads", "subs")

    def __init__(self, ads: dict[Entry, None], subs: dict[Entry, None]) -> None:
        self.ads, self.subs = ads, subs

    def without_repeated(self, update: Update) -> Update:
        """What is new in an update; what it repeats is not stale any more."""
        ads, subs = _take_out(self.ads, update.add_ads), _take_out(self.subs, update.add_subs)
        return replace(update, add_ads=ads, add_subs=subs)


def _take_out(stale: dict[Entry, None], added: tuple[Entry, ...]) -> tuple[Entry, ...]:
    new = tuple(one for one in added if one not in stale)
    for one in added:
        stale.pop(one, None)
    return new


REVIEW_UNITS = 10  # that it takes to settle one subscription for one neighbour


class Withdrawn:
    """Advertisements that a neighbour, or this broker's own clients, have withdrawn, and when: the last ones.

    What was published under them may still be asked for.
    """

    __slots__ = ("ads", "forgotten")

    def __init__(self) -> None:
        self.ads: dict[Entry, int] = {}  # in the order of their times
        self.forgotten = LONG_AGO  # when the last one was withdrawn that is not known any more

    def add(self, ad: Entry, now: int) -> None:
        self.ads.pop(ad, None)
        self.ads[ad] = now
        if len(self.ads) > WITHDRAWN_MAX:
            oldest = next(iter(self.ads))
            self.forgotten = self.ads.pop(oldest)

    def may_meet(self, filter: Filter, since: int) -> bool:
        """Whether something that matches may have been offered at this time or later."""
        if self.forgotten >= since:
            return True
        return any(at >= since and ad.filter.overlaps(filter) for ad, at in self.ads.items())


class Review:
    """An advertisement of a neighbour came or went: subscriptions that overlap it are due."""

    __slots__ = ("filter", "left", "neighbour")

    def __init__(self, neighbour: BrokerId, filter: Filter) -> None:
        self.neighbour, self.filter = neighbour, filter
        self.left: list[Entry] | None = None  # subscriptions, the next one last; None: not begun


class Routing:
    """The tables of one broker."""

    __slots__ = (
        "_ads",
        "_ads_from",
        "_late",
        "_neighbours",
        "_only_here",
        "_only_here_counts",
        "_reviews",
        "_strategy",
        "_subs",
        "_subs_by_overlap",
        "destinations",
        "in_ads",
        "in_subs",
        "meter",
        "now",
        "out_ads",
        "out_subs",
        "stale",
        "strategy",
        "touched",
        "withdrawn",
    )

    def __init__(
        self, neighbours: Sequence[BrokerId], strategy: Strategy, units: float = inf
    ) -> None:
        """With `units`, one event spends no more than so many on these tables."""
        self.strategy = strategy.name
        self.meter = meter = Meter(units)
        self._neighbours = tuple(neighbours)
        self._strategy = strategy
        self.in_ads: dict[BrokerId, dict[Entry, None]] = {n: {} for n in neighbours}
        self.in_subs: dict[BrokerId, dict[Entry, None]] = {n: {} for n in neighbours}
        self.out_ads: dict[BrokerId, OutTable] = {
            n: strategy.table(meter=meter) for n in neighbours
        }
        self.out_subs: dict[BrokerId, OutTable] = {
            n: strategy.table(meter=meter) for n in neighbours
        }
        self._late: dict[BrokerId, None] = {}  # whose out-tables put something off
        self._reviews: deque[Review] = deque()
        self.destinations = Destinations(len(neighbours))
        self._ads = Sources()
        self._subs = Sources()
        self._ads_from: dict[BrokerId, OverlapIndex[Entry]] = {
            n: OverlapIndex() for n in neighbours
        }
        self._subs_by_overlap: OverlapIndex[Entry] = OverlapIndex()
        # Filters that count here, and go on as others; how often each does.
        self._only_here: OverlapIndex[Filter] = OverlapIndex()
        self._only_here_counts: dict[Filter, int] = {}
        # Of neighbours that tell everything anew: advertisements and subscriptions that they have not repeated yet.
        self.stale: dict[BrokerId, Stale] = {}
        self.now = 0  # of this event
        self.withdrawn: dict[BrokerId, Withdrawn] = {
            one: Withdrawn() for one in (*neighbours, LOCAL)
        }
        self.touched: set[BrokerId] = set()  # whose out-tables may have changed since last time

    # What local sessions want and offer

    def subscribe(self, client: ClientId, filter: Filter, place: int, ahead: Chains = ()) -> None:
        """Let the place have what the filter matches, and tell the neighbours so.

        With `ahead`, they are told these chains instead: the next broker has the first filter of
        each, the one behind it the second one, and all beyond the last have the last.
        """
        entries = self._entries(client, filter, ahead)
        for part in filter.parts():
            self._add_destination(part, place, only_here=bool(ahead))
        for entry in entries:
            self._add_sub(entry, LOCAL)

    def unsubscribe(self, client: ClientId, filter: Filter, place: int, ahead: Chains = ()) -> None:
        for part in filter.parts():
            self._remove_destination(part, place, only_here=bool(ahead))
        for entry in self._entries(client, filter, ahead):
            self._remove_sub(entry, LOCAL)

    def advertise(self, client: ClientId, filter: Filter) -> None:
        for entry in self._entries(client, filter):
            self._add_ad(entry, LOCAL)

    def unadvertise(self, client: ClientId, filter: Filter) -> None:
        for entry in self._entries(client, filter):
            self._remove_ad(entry, LOCAL)

    def _entries(self, client: ClientId, filter: Filter, ahead: Chains = ()) -> list[Entry]:
        if not self._strategy.per_client:
            client = NOBODY
        if ahead:
            return [Entry.along(one, client) for one in ahead]
        return [Entry(part, client) for part in filter.parts()]

    # What neighbours say

    def apply(self, neighbour: BrokerId, update: Update) -> None:
        """Take over a neighbour's update; checked as a whole before anything changes."""
        ads, subs = self.in_ads[neighbour], self.in_subs[neighbour]
        if self.stale and neighbour in self.stale:
            update = self.stale[neighbour].without_repeated(update)
        per_client = self._strategy.per_client
        for entry in update.add_ads + update.add_subs:
            if bool(entry.client) != per_client:
                raise ProtocolError(f"an update for another strategy than {self._strategy.name}")
        if update.add_ads or update.remove_ads:
            _check_changes(ads, update.add_ads, update.remove_ads)
        if update.add_subs or update.remove_subs:
            _check_changes(subs, update.add_subs, update.remove_subs)
        place = self._neighbours.index(neighbour)
        for entry in update.add_ads:
            ads[entry] = None
            self._add_ad(entry, neighbour)
        for entry in update.add_subs:
            subs[entry] = None
            self._add_destination(entry.filter, place, only_here=bool(entry.ahead))
            self._add_sub(entry.shifted(), neighbour)
        for entry in update.remove_subs:
            del subs[entry]
            self._remove_destination(entry.filter, place, only_here=bool(entry.ahead))
            self._remove_sub(entry.shifted(), neighbour)
        for entry in update.remove_ads:
            del ads[entry]
            self._remove_ad(entry, neighbour)

    def towards(
        self, client: ClientId, subscriptions: Iterable[Filter], came_from: BrokerId | None
    ) -> set[BrokerId]:
        """Behind which neighbours there may be a session of the client with these subscriptions.

        Entries of the client itself show the way. Others only cover it, or do not if it is farther
        towards the advertisements.
        """
        entries = [entry for one in subscriptions for entry in self._entries(client, one)]
        others = [one for one in self._neighbours if one != came_from]
        offered = {
            n for n in others for e in entries if self._ads_from[n].any(e.filter, self.meter)
        }
        if self._strategy.per_client:
            path = {n for n in others if any(e in self.in_subs[n] for e in entries)}
            if path:
                return path
        if len(entries) * len(self._subs_by_overlap) > self.meter.limit:
            return {*others}  # it takes too long to find out
        covered = {
            source
            for entry in entries
            for sub in self._subs_by_overlap.overlapping(entry.filter)
            if sub.client == entry.client and sub.filter.covers(entry.filter)
            for source in self._subs.of[sub]
        }
        return offered | (covered & {*others})

    def is_wanted(self, offered: Filter, place: int) -> bool:
        """Whether anybody else than this place may want something of what is offered.

        Where notifications are flooded, nobody knows what others want, and everything is.
        """
        return self._strategy.floods or any(
            other not in (place, NOWHERE)
            for audience in self._audiences(offered)
            for other in audience.counts
        )

    def _audiences(self, offered: Filter) -> Iterator[Audience]:
        """Who wants something of what is offered, in any order; some may come twice."""
        meter = self.meter
        subs = self._subs_by_overlap.meeting(offered, meter)
        plain = (sub.filter for sub in subs if not sub.ahead)
        for filter in chain(plain, self._only_here.meeting(offered, meter)):
            audience = self.destinations.audience(filter)
            if audience is not None:  # None: it is wanted beyond, but not here
                yield audience

    def may_have_come(self, source: BrokerId, filter: Filter, since: int) -> bool:
        """Whether something that matches may have been published behind this neighbour since then.

        Or at this broker, for LOCAL.
        """
        if self._strategy.floods or self.withdrawn[source].may_meet(filter, since):
            return True
        if source == LOCAL:
            own = (ad.filter for ad, sources in self._ads.of.items() if LOCAL in sources)
            return any(one.overlaps(filter) for one in own)
        return self._ads_from[source].any(filter, self.meter)

    def start_over(self, neighbour: BrokerId) -> None:
        """A neighbour knows nothing any more. What it said counts until it has told everything anew."""
        ads, subs = self.in_ads[neighbour], self.in_subs[neighbour]
        if ads or subs:
            self.stale[neighbour] = Stale(dict.fromkeys(ads), dict.fromkeys(subs))
        self.out_ads[neighbour].start_over()
        self.out_subs[neighbour].start_over()
        self.touched.add(neighbour)

    def drop_stale(self, neighbour: BrokerId) -> None:
        """A neighbour has told everything anew: what it has not repeated does not count any more."""
        stale = self.stale.pop(neighbour, None)
        if stale is not None:
            self.apply(neighbour, Update((), (), tuple(stale.subs), tuple(stale.ads)))

    def is_reduced(self) -> bool:
        """Whether what the neighbours know is exactly what the strategy sends of the candidates."""
        return self.meter.exact and not self.is_behind

    def told(self) -> list[tuple[list[Entry], list[Entry]]]:
        """The advertisements and subscriptions that each neighbour has been told."""
        return [(self.out_ads[n].known(), self.out_subs[n].known()) for n in self._neighbours]

    def believe(self, neighbour: BrokerId, ads: Iterable[Entry], subs: Iterable[Entry]) -> None:
        """The neighbour has been told these, whatever these tables say; it is told the difference."""
        self.out_ads[neighbour].believe(ads)
        self.out_subs[neighbour].believe(subs)
        self.touched.add(neighbour)

    # What follows for the neighbours

    def updates(self) -> list[tuple[BrokerId, Update]]:
        """What every neighbour has to be told since the last time."""
        self.meter.reset()
        if not self.touched:
            return []
        out = []
        for neighbour in self._neighbours:
            if neighbour not in self.touched:
                continue
            ads, subs = self.out_ads[neighbour], self.out_subs[neighbour]
            add_ads, remove_ads = ads.difference()
            add_subs, remove_subs = subs.difference()
            for update in _in_pieces(add_ads, add_subs, remove_subs, remove_ads):
                out.append((neighbour, update))
            if ads.is_behind or subs.is_behind:
                self._late[neighbour] = None
        self.touched.clear()
        return out

    @property
    def is_behind(self) -> bool:
        """Whether something was put off that `catch_up` goes on with."""
        return bool(self._late or self._reviews)

    def is_settled(self, neighbour: BrokerId) -> bool:
        """Whether the neighbour has been told at least all that it has to know."""
        return all(one.neighbour != neighbour for one in self._reviews)

    def catch_up(self) -> None:
        """Go on with what was put off, for as long as one event may."""
        self._go_on()
        late, self._late = self._late, {}
        for neighbour in late:
            self.out_ads[neighbour].catch_up()
            self.out_subs[neighbour].catch_up()
            self.touched.add(neighbour)

    def _go_on(self) -> None:
        """Settle subscriptions that overlap an advertisement that came or went."""
        reviews, meter = self._reviews, self.meter
        while reviews and meter.left > 0:
            review = reviews[0]
            if review.left is None:
                review.left = self._subs_by_overlap.candidates(review.filter)[::-1]
                meter.left -= len(review.left) // 4
            while review.left and meter.left > 0:
                sub = review.left.pop()
                if sub not in self._subs_by_overlap:
                    continue
                meter.left -= price(review.filter, sub.widest())
                if review.filter.overlaps(sub.widest()):
                    self._review_sub(sub, review.neighbour)
            if not review.left:
                reviews.popleft()

    def _add_destination(self, filter: Filter, place: int, *, only_here: bool) -> None:
        self.destinations.add(filter, place)
        if only_here and count_up(self._only_here_counts, filter):
            self._only_here.add(filter, filter)

    def _remove_destination(self, filter: Filter, place: int, *, only_here: bool) -> None:
        self.destinations.remove(filter, place)
        if only_here and count_down(self._only_here_counts, filter):
            self._only_here.remove(filter)

    def _add_ad(self, ad: Entry, source: BrokerId) -> None:
        if not self._ads.add(ad, source) or self._strategy.floods:
            return
        if source != LOCAL:
            self._ads_from[source].add(ad, ad.filter)
            self._review_subs(ad, source)
        self._review_ad(ad)

    def _remove_ad(self, ad: Entry, source: BrokerId) -> None:
        if not self._ads.remove(ad, source) or self._strategy.floods:
            return
        self.withdrawn[source].add(ad, self.now)
        if source != LOCAL:
            self._ads_from[source].remove(ad)
            self._review_subs(ad, source)
        self._review_ad(ad)

    def _review_ad(self, ad: Entry) -> None:
        for neighbour in self._neighbours:
            self._settle(self.out_ads, neighbour, ad, self._ads.beyond(ad, neighbour))

    def _review_subs(self, ad: Entry, neighbour: BrokerId) -> None:
        self._reviews.append(Review(neighbour, ad.filter))
        self._go_on()

    def _add_sub(self, sub: Entry, source: BrokerId) -> None:
        known = sub in self._subs.of
        if not self._subs.add(sub, source) or self._strategy.floods:
            return
        if not known:
            self._subs_by_overlap.add(sub, sub.widest())
        for neighbour in self._neighbours:
            self._review_sub(sub, neighbour)

    def _remove_sub(self, sub: Entry, source: BrokerId) -> None:
        if not self._subs.remove(sub, source) or self._strategy.floods:
            return
        if sub not in self._subs.of:
            self._subs_by_overlap.remove(sub)
        for neighbour in self._neighbours:
            self._review_sub(sub, neighbour)

    def _review_sub(self, sub: Entry, neighbour: BrokerId) -> None:
        ads, meter = self._ads_from[neighbour], self.meter
        meter.left -= REVIEW_UNITS
        wanted = self._subs.beyond(sub, neighbour) and ads.any(sub.widest(), meter)
        self._settle(self.out_subs, neighbour, sub, wanted)

    def _settle(
        self, tables: dict[BrokerId, OutTable], neighbour: BrokerId, entry: Entry, wanted: bool
    ) -> None:
        table = tables[neighbour]
        if wanted != (entry in table):
            (table.add if wanted else table.remove)(entry)
            self.touched.add(neighbour)


def _check_changes(
    table: dict[Entry, None], added: tuple[Entry, ...], removed: tuple[Entry, ...]
) -> None:
    if len({*added, *removed}) != len(added) + len(removed):
        raise ProtocolError("an update that names an entry twice")
    if not table.keys().isdisjoint(added):
        raise ProtocolError("an update that adds what is there already")
    if not table.keys() >= {*removed}:
        raise ProtocolError("an update that removes what is not there")


def _in_pieces(
    add_ads: list[Entry], add_subs: list[Entry], remove_subs: list[Entry], remove_ads: list[Entry]
) -> list[Update]:
    """One update, or several in the same order when it would be too long."""
    kinds = (add_ads, add_subs, remove_subs, remove_ads)
    if sum(map(filter_count, kinds)) <= UPDATE_MAX:
        parts = (tuple(add_ads), tuple(add_subs), tuple(remove_subs), tuple(remove_ads))
        return [Update(*parts)] if any(kinds) else []
    return [
        replace(Update(), **{kind: piece})
        for kind, entries in zip(KINDS, kinds, strict=True)
        for piece in _pieces(entries)
    ]


def _pieces(entries: list[Entry]) -> Iterator[tuple[Entry, ...]]:
    piece: list[Entry] = []
    room = UPDATE_MAX
    for entry in entries:
        size = filter_count([entry])
        if piece and size > room:
            yield tuple(piece)
            piece, room = [], UPDATE_MAX
        piece.append(entry)
        room -= size
    if piece:
        yield tuple(piece)
