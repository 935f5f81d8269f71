"""What clients that follow their location got wherever they stayed, and had to get.

The judge knows where every client was when, and which brokers were to listen ahead for it:

    wanted     what is delivered matches where the client is at that moment
    once       ... and was not delivered before
    fifo       while it stays, every publisher's in order, and the past before the present
    complete   what is published for where it stays, while it stays there, is delivered
    past       ... and what was published before, while a virtual client listened for it there;
    recalled   ... or while it was at another broker, which kept it;
    fetched    ... or at any time, if nobody expected it there and brokers remember what they routed;
               of each of these that does not come, its client is told
    terms      ... but no more of it than the client wants

What an ordinary subscription delivers is in the order of that one, which the other oracle judges
(`Judge.ordinary`). What both ask for comes once, by either, and has to come if one of them requires it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import TypeVar

import msgspec

from wayfare.core.broker import ALL_RELOCATIONS
from wayfare.core.filters import Filter
from wayfare.core.home import Home
from wayfare.core.messages import NOWHERE, NULLIFIED, BrokerId, ClientId, Nullify, State, Terms
from wayfare.core.places import Places
from wayfare.core.predicates import Attributes
from wayfare.core.relocation import Naive
from wayfare.core.templates import Around, Mine, Template
from wayfare.core.virtual import area_of, spread, union
from wayfare.eventlog import Event
from wayfare.sim.histories import histories, matches
from wayfare.sim.links import SECOND_NS
from wayfare.sim.reach import reach
from wayfare.sim.relevance import is_elsewhere
from wayfare.sim.verdict import Violation
from wayfare.sim.world import World

Areas = Mapping[str, tuple[str, ...]]
Key = tuple[str, int]  # publisher, number
T = TypeVar("T")
FOLLOWING = ("followed", "unfollowed")  # nothing to the oracle of ordinary subscriptions


class Followed(msgspec.Struct, frozen=True):
    """A filter that a client follows, and how much of what it missed it wants."""

    template: Template
    terms: Terms | None


class Stay(msgspec.Struct):
    """While a client is attached to one broker, is somewhere, and follows the same."""

    broker: str
    attached: int  # since when it is at this broker
    start: int
    end: int
    state: State
    follows: tuple[Followed, ...]
    attachment: int  # which one
    process: int  # of those that had its name, and ...
    life: int  # ... which session: another one begins when the client leaves, or begins anew
    meanings: list[Filter]  # of what it follows
    got: list[tuple[Event, bool]] = []  # and whether it may have been put aside before


class Walker:
    """What a client follows and is like, as events tell it."""

    def __init__(self, process: int = 0, life: int = 0) -> None:
        self.process, self.life = process, life
        self.state = NOWHERE
        self.follows: Counter[Template] = Counter()  # and how often it said so
        self.since: dict[Template, int] = {}  # it has followed each of them
        self.terms: dict[Template, Terms] = {}  # the last ones count
        self.ordinary: Counter[Filter] = Counter()
        self.withdrawn: dict[Filter, int] = {}  # ordinary ones, and when
        self.where: tuple[str, int, int] | None = None  # broker, since when, which attachment

    def overlaps(self, published: Event) -> bool:
        """Whether an ordinary subscription asked for this, too, at any time since it was published.

        Then the client puts it aside until it is known that the other one does not deliver it: what comes
        meanwhile is no disorder.
        """
        asked = [*self.ordinary]
        asked += [one for one, at in self.withdrawn.items() if at >= published.time_ns]
        return any(matches(one, published.attributes or {}) for one in asked)

    def stay(self, time: int, end: int) -> Stay:
        """What begins now; if it is away, at no broker."""
        follows = tuple(Followed(one, self.terms.get(one)) for one in sorted(self.follows, key=str))
        broker, since, count = self.where or ("", time, 0)
        meanings = _meanings(follows, self.state)
        who = count, self.process, self.life
        return Stay(broker, since, time, end, self.state, follows, *who, meanings)


class Judge:
    """What clients that follow something got, and had to get."""

    def __init__(self, world: World, places: Places, areas: Mapping[str, Areas]) -> None:
        """`areas`: what locations mean, for each of these clients."""
        self.world, self.places, self.areas = world, places, areas
        self.reach = reach(world)
        self.required: Counter[str] = Counter()  # how many deliveries, by rule
        self.published = {
            (event.client or "", event.number or 0): event
            for event in world.events
            if event.kind == "published"
        }
        self.stays: dict[str, list[Stay]] = {name: [] for name in areas}
        # ... and when they got something while they were at no broker.
        self.away: dict[str, list[Stay]] = {name: [] for name in areas}
        self.ordinary: list[Event] = []  # what the other oracle judges
        # What an ordinary subscription delivered, to which process, and what came otherwise: client, publisher, number.
        self.subscribed: dict[str, list[tuple[int, Event]]] = {name: [] for name in areas}
        self.followed: list[tuple[str, str, int]] = []
        # Since when a client has followed the filter by which it got something of the past: client, process, what.
        self._followed_since: dict[tuple[str, int, Key], int] = {}
        self.lost: dict[str, list[Event]] = {name: [] for name in areas}
        self._publishers = histories(world.events)
        self._arrivals: dict[Key, float] = {}
        self._wrong: list[Violation] = []
        self._read()

    def _read(self) -> None:
        """Sort what happened into stays."""
        walkers = {name: Walker() for name in self.stays}
        for event in self.world.events:
            if event.client not in walkers:
                self.ordinary.append(event)
                continue
            walker, client = walkers[event.client], event.client
            if event.kind == "replaced":  # another process has its name, and remembers nothing
                walker = walkers[client] = Walker(walker.process + 1, walker.life + 1)
            if event.kind == "delivered" and event.follows is not None:
                self._take(client, walker, event)
                continue
            if event.kind == "delivered":
                self.subscribed[client].append((walker.process, event))
            if event.kind == "lost":
                self.lost[client].append(event)
            if event.kind not in FOLLOWING:
                self.ordinary.append(event)
            if self._changed(walker, event):
                self._turn(client, walker, event.time_ns)

    def _changed(self, walker: Walker, event: Event) -> bool:
        """Whether another stay begins with this."""
        if event.kind == "became":
            place = self.places.places[event.location or ""]
            values, areas = event.attributes or {}, dict(self.areas[event.client or ""])
            walker.state = State(event.location or "", place.position, values, areas)
        elif event.kind == "followed":
            assert event.follows is not None
            if event.follows not in walker.follows:
                walker.since[event.follows] = event.time_ns
            walker.follows[event.follows] += 1
            walker.terms.pop(event.follows, None)
            if event.reason is not None:
                walker.terms[event.follows] = _terms(event.reason)
        elif event.kind == "unfollowed":
            assert event.follows is not None
            _count_down(walker.follows, event.follows)
            if event.follows not in walker.follows:
                walker.terms.pop(event.follows, None)
        elif event.kind == "attached":
            walker.where = event.broker or "", event.time_ns, event.epoch or 0
        elif event.kind == "detached":
            walker.where = None
        elif event.kind == "left":
            walker.life += 1
            return False
        elif event.kind == "subscribed":
            assert event.filter is not None
            walker.ordinary[event.filter] += 1
            return False
        elif event.kind == "unsubscribed":
            assert event.filter is not None
            _count_down(walker.ordinary, event.filter)
            walker.withdrawn[event.filter] = event.time_ns
            return False
        else:
            return False
        return True

    def _turn(self, client: str, walker: Walker, time: int) -> None:
        stays, now = self.stays[client], self.world.now
        if stays and stays[-1].end == now:
            stays[-1].end = time
        if walker.where is not None:
            stays.append(walker.stay(time, now))

    def _take(self, client: str, walker: Walker, event: Event) -> None:
        stays, (publisher, number) = self.stays[client], _key(event)
        self.followed.append((client, publisher, number))
        if event.reason == "past":
            assert event.follows is not None
            since = walker.since.get(event.follows, 0)
            self._followed_since[client, walker.process, (publisher, number)] = since
        published = self.published.get((publisher, number))
        aside = published is not None and walker.overlaps(published)
        if walker.where is not None:
            stays[-1].got.append((event, aside))
        elif aside:  # the subscription was withdrawn while it is away
            self.away[client].append(walker.stay(event.time_ns, event.time_ns))
            self.away[client][-1].got.append((event, aside))
        else:
            self._wrong.append(Violation("wanted", f"{client} got {_name(event)} while away"))

    def violations(self) -> Iterator[Violation]:
        yield from self._wrong
        for client, stays in self.stays.items():
            seen: set[tuple[int, Key]] = set()
            for stay in [*stays, *self.away[client]]:
                yield from self._check_stay(client, stay, seen)
            subscribed = [(process, _key(event)) for process, event in self.subscribed[client]]
            for (process, key), (_, event) in zip(subscribed, self.subscribed[client], strict=True):
                # Before it followed anything that matches, the client did not note what it got.
                since = self._followed_since.get((client, process, key), 0)
                if (process, key) in seen and event.time_ns >= since:
                    yield Violation("once", f"{client} got {key[0]} {key[1]} by both kinds")
            yield from self._check_complete(client, stays, seen.union(subscribed))

    def _check_stay(
        self, client: str, stay: Stay, seen: set[tuple[int, Key]]
    ) -> Iterator[Violation]:
        last: dict[tuple[str | None, bool], int] = {}  # of the past, and of the present
        for event, aside in stay.got:
            past = event.reason == "past"
            what = f"{client} got {_name(event)}"
            key = _key(event)
            published = self.published.get(key)
            assert event.attributes is not None and event.number is not None
            if published is None or published.attributes != event.attributes:
                yield Violation("wanted", f"{what}, which nobody has published")
                continue
            if not any(matches(exact, event.attributes) for exact in stay.meanings):
                yield Violation("wanted", f"{what}, which is not for {stay.state.location}")
            if _is_elsewhere(stay, published):
                yield Violation("wanted", f"{what}, which is of use elsewhere")
            if (stay.process, key) in seen:
                yield Violation("once", f"{what} twice")
            seen.add((stay.process, key))
            if aside or event.time_ns < stay.start + 2 * self.reach.client_ns:
                continue  # or it was sent before the broker knew where the client is
            number = last.get((event.publisher, past), 0)
            if event.number < number:
                yield Violation("fifo", f"{what} after {number} at {stay.state.location}")
            if past and (event.publisher, False) in last:
                yield Violation("fifo", f"{what}, which is of the past, after what is not")
            last[event.publisher, past] = event.number
            if past and published.time_ns > self._asked_ns(stay):
                yield Violation(
                    "past", f"{what} as of the past, but it was published while it stayed"
                )
            if past and not self._may_be_missed(stay, event, published):
                yield Violation("terms", f"{what}, which it did not want of what it missed")
            # What was kept elsewhere looks younger by the time that it took to come here.
            if not past and self._sent_last(published) + 2 * self._direct_ns() < stay.attached:
                yield Violation("past", f"{what} as if it were live, but it is of the past")

    def _asked_ns(self, stay: Stay) -> int:
        """Until when something may be published that comes as of the past.

        Its broker may not know yet that the client is there; the last one keeps what comes until it is asked.
        """
        asked = stay.attached + self.reach.client_ns + self._direct_ns()
        fetched = stay.start + self.reach.client_ns + self._fetching_ns() // 2
        return max(stay.start + 2 * self.reach.client_ns, asked, fetched)

    def _may_be_missed(self, stay: Stay, event: Event, published: Event) -> bool:
        """Whether terms may have kept this, until it could be delivered."""
        age_ns = event.time_ns - self._arrived(published)
        age_ns -= self._receiving_ns() + self.reach.client_ns
        for one, exact in zip(stay.follows, stay.meanings, strict=True):
            if not matches(exact, event.attributes or {}):
                continue
            if one.terms is None or one.terms.last != 0:
                younger_ns = None if one.terms is None else one.terms.younger_ns
                if younger_ns is None or age_ns <= younger_ns:
                    return True
        return False

    def _arrived(self, published: Event) -> float:
        """When a publication was at every client at the latest; or never, perhaps."""
        key = published.client or "", published.number or 0
        if key not in self._arrivals:
            self._arrivals[key] = self._accepted(published) + self._way_ns()
        return self._arrivals[key]

    def _accepted(self, published: Event) -> float:
        """When a broker had sent a publication on at the latest; or never, perhaps.

        A publisher without a connection keeps what it publishes until it is attached again. Its first
        broker holds what comes before all have confirmed the advertisement, perhaps behind another one; another
        one, where it moves to, until its session has come. When it leaves, or begins anew, what nobody has
        accepted is gone, and what it publishes later may overtake the rest.
        """
        publisher, time = self._publishers[published.client or ""], published.time_ns
        leaves = next((at for at in publisher.left if at >= time), inf)
        held_ns = 2 * self.reach.tree_ns * publisher.moves
        accepted = publisher.accepted(
            time, self.reach.client_ns, held_ns, leaves, expires=self.reach.expires
        )
        begun = min((one.start for one in publisher.advertised if one.start <= time), default=inf)
        confirmed = begun + self.reach.client_ns + 4 * self.reach.tree_ns
        accepted = max(accepted, confirmed if accepted < confirmed else 0)
        if any(time <= at < accepted + self.reach.tree_ns for at in publisher.replaced):
            return inf
        if not self.reach.at_once:  # then what comes before its advertisement has settled is lost
            offered = [one.start for one in (*publisher.advertised, *publisher.attached)]
            settled_ns = self.reach.client_ns + 3 * self.reach.tree_ns
            if any(at and time - settled_ns < at <= accepted for at in offered):
                return inf
        return accepted

    def _sent_last(self, published: Event) -> float:
        """As `_arrived`, but if its publisher sends it again, that time.

        Without support nobody knows at its next broker what the last one has accepted, so what was not acknowledged
        goes out again.
        """
        arrived = self._arrived(published)
        if not issubclass(ALL_RELOCATIONS[self.world.relocation], Naive):
            return arrived
        publisher = self._publishers[published.client or ""]
        again = publisher.contact(published.time_ns, 2 * self.reach.client_ns)
        return max(arrived, again + self._way_ns())

    def _way_ns(self) -> int:
        """From the broker of a publisher to a client, at the most."""
        return self.reach.client_ns + self.reach.tree_ns

    def _advertised_ns(self) -> int:
        """Since when what publishers offered at first counts."""
        return 0 if self.reach.at_once else 3 * self.reach.tree_ns

    def _direct_ns(self) -> int:
        return self.world.direct_link.latency_ns + self.world.direct_link.jitter_ns

    def _recalling_ns(self) -> int:
        """That a broker waits for what others have kept; a reply may be lost."""
        if self.world.faulty:
            return self.world.limits.recall_ns
        return max(2 * self._direct_ns(), self._fetching_ns())

    def _fetching_ns(self) -> int:
        """That a broker waits for what others remember."""
        return 2 * self.reach.tree_ns if self.world.limits.past_count else 0

    def _receiving_ns(self) -> int:
        """Until a client has got what is there for it, when it comes, or what arrives later."""
        waits = len(self.published) // self.reach.window
        return self._recalling_ns() + waits * (2 * self.reach.client_ns + 2 * SECOND_NS)

    def _check_complete(
        self, client: str, stays: list[Stay], got: set[tuple[int, Key]]
    ) -> Iterator[Violation]:
        reports = [[one.time_ns, one.count or inf] for one in self.lost[client]]
        for key, event in sorted(self.published.items(), key=lambda one: one[1].time_ns):
            why = None if event.expires_ns is not None else self._required(client, stays, event)
            if why is None:
                continue
            rule, stay = why
            self.required[rule] += 1
            if (stay.process, key) in got or _is_reported(event, reports):
                continue
            yield Violation(
                rule,
                f"{client} did not get {key[0]} {key[1]} of {event.attributes} at"
                f" {stay.state.location} ({stay.broker}), where it was from {stay.start} to"
                f" {stay.end}; published at {event.time_ns}",
            )

    def _required(self, client: str, stays: list[Stay], event: Event) -> tuple[str, Stay] | None:
        """By which rule this has to come, and where; None: it need not."""
        sent: set[tuple[str, int]] = (
            set()
        )  # by these brokers, perhaps, and dropped: its client had gone on
        for first, run in self._runs(stays, event):
            if self._was_heard(stays, run[0]) and self._has_time(client, run, event):
                settled = max(run[0].start, self._advertised_ns())
                if any(_is_limited(one, event.attributes or {}) for one in run):
                    # What comes while a recall is under way, or waits, is thinned like the past.
                    waits = len(self.published) >= self.reach.window
                    settled = 2**62 if waits else settled + self.reach.client_ns
                    settled += self._recalling_ns()
                if event.time_ns > settled + self.reach.client_ns + self.reach.tree_ns:
                    return "complete", run[0]
                if (
                    (run[0].broker, run[0].life) not in sent
                    and self._was_expected(client, stays[:first], run[0], event)
                    and not self._is_limited_soon(run, event)
                    and not _was_passed_over(stays[:first], run[0], event)
                ):
                    return "past", run[0]
                if self._has_to_be_recalled(
                    client, stays[:first], run[0], event
                ) and not self._is_limited_soon(run, event):
                    return "recalled", run[0]
                if self._has_to_be_fetched(
                    client, stays[:first], run[0], event
                ) and not self._is_limited_soon(run, event):
                    return "fetched", run[0]
            if run[-1].end > event.time_ns:
                sent.add((run[0].broker, run[0].life))
        return None

    def _runs(self, stays: list[Stay], event: Event) -> Iterator[tuple[int, list[Stay]]]:
        """While a client wants this at one broker without a seam, even if its connection breaks; from which stay on.

        If its broker has not heard before the connection broke what began it, another one begins with the next.
        """
        run: list[Stay] = []
        attributes = event.attributes or {}
        for at, stay in enumerate(stays):
            wanted = any(matches(exact, attributes) for exact in stay.meanings)
            wanted &= not _is_elsewhere(stay, event)
            elsewhere = run and (stay.broker, stay.life) != (run[0].broker, run[0].life)
            anew = run and stay.attachment != run[-1].attachment
            unheard = anew and not self._was_heard(stays, run[0])
            # Who comes back gets what it missed as far as it wants that.
            limited = anew and any(_is_limited(one, attributes) for one in [*run, stay])
            if run and (not wanted or elsewhere or limited or unheard):
                yield at - len(run), run
                run = []
            if wanted:
                run.append(stay)
        if run:
            yield len(stays) - len(run), run

    def _was_heard(self, stays: list[Stay], stay: Stay) -> bool:
        """Whether its broker has, before the connection broke: of the client, and of what it is like by then."""
        end = max(one.end for one in stays if one.attachment == stay.attachment)
        return end - stay.start >= self.reach.client_ns

    def _has_time(self, client: str, run: list[Stay], event: Event) -> bool:
        """Whether a client was attached for so long that it got what had arrived by then.

        What an ordinary subscription asks for, too, it puts aside until its session has come.
        """
        history, arrived = self._publishers[client], self._arrived(event)
        aside = any(
            span.start <= run[-1].end
            and span.end >= event.time_ns
            and span.filter is not None
            and matches(span.filter, event.attributes or {})
            for span in history.subscribed
        )
        for one in run:
            told = max(one.attached, run[0].start) + 2 * self.reach.client_ns  # and answered
            if aside:
                whole_ns = 2 * (self.reach.client_ns + self.reach.tree_ns)
                told = max(told, history.settled(one.attached, whole_ns) + self.reach.client_ns)
            came = max(told, arrived)
            ends = max(other.end for other in run if other.attachment == one.attachment)
            if came + self._receiving_ns() <= ends:
                return True
        return False

    def _was_expected(self, client: str, before: list[Stay], stay: Stay, event: Event) -> bool:
        """Whether a virtual client listened for this, at the broker where it is wanted from this stay on.

        It is there since the client is, or was next to it; then for as long as the client is what it was.
        """
        if self.world.relocation == Home.name:
            return False  # sessions stay at home: nobody listens where a client is
        ours = [*(one for one in before if one.attachment == stay.attachment), stay]
        earlier = [one for one in before if one.attachment != stay.attachment]
        earlier = [one for one in earlier if one.life == stay.life]
        last = [one for one in earlier if one.attachment == earlier[-1].attachment]
        here, set_up = BrokerId(stay.broker), ours[0].attached
        if len(ours) > 1 and stay.start < set_up + 2 * (self.reach.client_ns + self._direct_ns()):
            return False  # a recall is under way, and does not know where in the range the client is now
        there = BrokerId(last[0].broker) if last else here
        if here != there and self._listens(client, last, here) and _is_same([*last, *ours]):
            if not self._has_heard(client, last, here, event.time_ns):
                return False
            if last[-1].end - last[0].start >= 2 * self.reach.client_ns:
                set_up = last[0].attached + self._direct_ns()
        elif len(ours) == 1 or not _is_same(ours):
            return False
        set_up = max(set_up + 2 * self.reach.client_ns, self._advertised_ns())
        if event.time_ns <= set_up + self.reach.tree_ns or self._is_outside(stay.broker, event):
            return False
        age_ns = stay.start + self._receiving_ns() - event.time_ns
        return any(
            self._is_kept(one, exact, ranged, event, age_ns)
            for one, exact, ranged in zip(
                stay.follows, stay.meanings, self._ranged(stay), strict=True
            )
        )

    def _has_to_be_recalled(
        self, client: str, before: list[Stay], stay: Stay, event: Event
    ) -> bool:
        """Whether the last broker of a client kept this for it, and has to be asked where it comes to now.

        That is where nobody listened for this. What came to the last broker after it was asked need not be in its answer.
        """
        earlier = [one for one in before if one.life == stay.life]
        if self.world.relocation == Home.name or not earlier or stay.start != stay.attached:
            return False
        last = [one for one in earlier if one.attachment == earlier[-1].attachment]
        attributes, here = event.attributes or {}, BrokerId(stay.broker)
        if last[-1].broker == here or last[-1].attachment == stay.attachment:
            return False
        if not _is_same([*last, stay]) or len({one.state.location for one in last}) > 1:
            return False  # what it got for another location, and dropped, does not come again
        if _was_passed_over(last, last[-1], event) or self._is_outside(last[-1].broker, event):
            return False  # nor what the last broker handed over as of use elsewhere, and it keeps nothing such
        if last[-1].end - last[0].attached < 2 * self.reach.client_ns:
            return False
        if self._listens(client, last, here) and any(
            matches(one, attributes) for one in self._ranged(stay)
        ):
            return False
        set_up = max(last[0].attached + 2 * self.reach.client_ns, self._advertised_ns())
        if event.time_ns <= set_up + self.reach.tree_ns or self._arrived(event) > stay.attached:
            return False
        age_ns = stay.start + self._receiving_ns() - event.time_ns
        kept = zip(stay.follows, stay.meanings, self._ranged(last[-1]), strict=True)
        return any(self._is_kept(*one, event, age_ns) for one in kept)

    def _has_to_be_fetched(self, client: str, before: list[Stay], stay: Stay, event: Event) -> bool:
        """Whether the broker of a publisher that stays there remembers this, for a client that nobody expected.

        It is certain that nobody did if the client has never been at its new broker, nor next to it.
        """
        earlier = [one for one in before if one.life == stay.life]
        world, here = self.world, BrokerId(stay.broker)
        if world.relocation == Home.name or world.faulty or not earlier:
            return False
        if stay.start != stay.attached or client == event.client:
            return False
        later = [
            one
            for one in self.published.values()
            if self._arrived(one) > event.time_ns
            and any(matches(exact, one.attributes or {}) for exact in stay.meanings)
        ]
        # It is remembered, and among what is asked for.
        if len(self.published) > world.limits.past_count or len(later) > world.limits.buffer_count:
            return False
        last = [one for one in earlier if one.attachment == earlier[-1].attachment]
        if last[-1].end - last[0].attached < 2 * self.reach.client_ns:
            return False
        for one in before:
            if one.broker == stay.broker or self._listens(client, [one], here):
                return False
        publisher = self._publishers[event.client or ""]
        if publisher.moves or publisher.left or publisher.replaced or not publisher.advertised:
            return False
        offered = min(one.start for one in publisher.advertised)
        if offered + self.reach.client_ns + 3 * self.reach.tree_ns > stay.start:
            return False  # brokers do not know yet where to ask
        if self._accepted(event) > stay.attached:
            return False
        age_ns = stay.start + self._receiving_ns() - event.time_ns
        kept = zip(stay.follows, stay.meanings, strict=True)
        return any(self._is_kept(one, exact, exact, event, age_ns) for one, exact in kept)

    def _is_over(self, event: Event, time: int) -> bool:
        """Whether a publication had expired everywhere by then."""
        return event.expires_ns is not None and self._arrived(event) + event.expires_ns <= time

    def _is_limited_soon(self, run: list[Stay], event: Event) -> bool:
        """Whether the client limited what it wants of the past before that could have come."""
        came, first = run[0].start + self._receiving_ns(), run[0]
        return any(
            one.start <= came
            and one.follows != first.follows
            and _is_limited(one, event.attributes or {})
            for one in run[1:]
        )

    def _listens(self, client: str, last: list[Stay], here: BrokerId) -> bool:
        """Whether this broker was to listen ahead while the client was where it was last."""
        epoch, there = last[0].attachment, BrokerId(last[0].broker)
        return self.world.listens_for(ClientId(client), epoch, there, here)

    def _has_heard(self, client: str, last: list[Stay], here: BrokerId, time: int) -> bool:
        """Whether this broker knew that when something that was published at a time came there."""
        heard, epoch = self.world.listening.has_heard, last[0].attachment
        return heard(ClientId(client), epoch, here, time, self.reach.tree_ns)

    def _is_outside(self, broker: str, event: Event) -> bool:
        """Whether a publication is of no use at any place in the range of a broker, which does not keep it then."""
        if event.area is None:
            return False
        positions = {
            one: self.places.places[one].position if one in self.places.places else None
            for one in self.places.locations(BrokerId(broker))
        }
        return all(is_elsewhere(event.area, *place) for place in positions.items())

    def _ranged(self, stay: Stay) -> Iterator[Filter]:
        """What virtual clients listen to where this client stays, for each filter that it follows."""
        locations = self.places.locations(BrokerId(stay.broker))
        around = self.places.around(locations)
        mine = Mine(spread(locations, stay.state.areas), around, stay.state.values)
        for one in stay.follows:
            yield union(one.template.widened(mine))

    def _is_kept(
        self, followed: Followed, exact: Filter, ranged: Filter, event: Event, age_ns: int
    ) -> bool:
        """Whether this is among what is kept, and wanted, of what a client missed; whatever was published since.

        The terms count for where the client is: what is said of other places takes nobody's room.
        """
        attributes, limits = event.attributes or {}, self.world.limits
        if not matches(exact, attributes) or not matches(ranged, attributes):
            return False
        terms = followed.terms or Terms()
        if age_ns > min(terms.younger_ns or limits.buffer_age_ns, limits.buffer_age_ns):
            return False
        if terms.younger_ns == 0:
            return False
        came = event.time_ns + age_ns
        later = [
            one.attributes or {}
            for one in self.published.values()
            if self._arrived(one) > event.time_ns
            and matches(ranged, one.attributes or {})
            # With a key, it has taken the place of an earlier one.
            and (
                terms.names or terms.nullify or not self._is_over(one, came - self._receiving_ns())
            )
        ]
        if terms.names and sum(_is_like(one, attributes, terms.names) for one in later) > 1:
            return False
        if terms.nullify is not None and any(
            matches(terms.nullify.when, one) and _is_like(one, attributes, terms.nullify.same)
            for one in (attributes, *later)
        ):
            return False
        if terms.last is not None:
            return sum(matches(exact, one) for one in later) <= terms.last
        return len(later) <= limits.buffer_count


def _is_elsewhere(stay: Stay, published: Event) -> bool:
    """Whether a publication is of no use where a client stays."""
    state, area = stay.state, published.area
    return area is not None and is_elsewhere(area, state.location, state.position)


def _was_passed_over(before: list[Stay], stay: Stay, published: Event) -> bool:
    """Whether this broker may have handed it over before, as of use elsewhere: a location change does not bring it back."""
    return any(
        (one.broker, one.life) == (stay.broker, stay.life)
        and _is_elsewhere(one, published)
        and any(matches(exact, published.attributes or {}) for exact in one.meanings)
        for one in before
    )


def _is_reported(published: Event, reports: list[list[float]]) -> bool:
    """Whether a client was told of a loss behind this; a report of some stands for as many."""
    for report in reports:
        time_ns, left = report
        if time_ns >= published.time_ns and left > 0:
            report[1] -= 1
            return True
    return False


def _is_like(one: Attributes, other: Attributes, names: Iterable[str]) -> bool:
    """Whether these attributes have the same values, or both are missing."""
    return all(one.get(name) == other.get(name) for name in names)


def _is_limited(stay: Stay, attributes: Attributes) -> bool:
    """Whether a client that missed this may not want it, whatever else it follows."""
    whole = (
        one.terms is None and matches(exact, attributes)
        for one, exact in zip(stay.follows, stay.meanings, strict=True)
    )
    return not any(whole)


def _is_same(stays: list[Stay]) -> bool:
    """Whether a client followed the same all the time, and was the same but for its location."""
    return len({(one.follows, tuple(one.state.values.items())) for one in stays}) == 1


def _terms(text: str) -> Terms:
    """The terms that this text describes: see `terms_text`."""
    last = younger_ns = key = nullify = None
    text, _, nullified = text.partition(NULLIFIED)
    if nullified:
        same, _, when = nullified.partition(" by ")
        names = same.removeprefix(" for the same ").split(" + ") if same else ()
        nullify = Nullify(Filter.parse(when), tuple(names))
    for part in text.split(", "):
        *_, value = part.removesuffix(" s").split(" ")
        if part.startswith("last"):
            last = int(value)
        elif part.startswith("younger"):
            younger_ns = round(float(value) * SECOND_NS)
        elif part.startswith("newest"):
            key = tuple(part.removeprefix("newest by ").split(" + "))
    return Terms(last, younger_ns, key, nullify=nullify)


def _meanings(follows: Iterable[Followed], state: State) -> list[Filter]:
    around = None if state.position is None else Around(*state.position)
    mine = Mine(area_of(state), around, state.values)
    return [one.template.resolve(mine) for one in follows]


def _count_down(counts: Counter[T], one: T) -> None:
    """As often as it was said, it has to be taken back; what was not said, cannot be."""
    counts[one] -= 1
    if counts[one] <= 0:
        del counts[one]


def _key(event: Event) -> Key:
    assert event.publisher and event.number
    return event.publisher, event.number


def _name(event: Event) -> str:
    return f"{event.publisher} {event.number} of {event.attributes}"
