"""A broker: routes notifications by content, and keeps the sessions of its clients.

The whole surface is `step(event, now)` and `next_deadline()`. Every handler does its work on the
sessions and tables; then the broker sends each neighbour how its tables changed, and behind that the
errands of relocation. Notifications of a handler go out before that.

Links to neighbours carry the neighbour's name; the host keeps them reliable and in order. Links to
clients may break at any time. A session stays when its client is away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from wayfare.core import deadlines, saving, saving_virtual, wills
from wayfare.core import messages as m
from wayfare.core.backpressure import PRESSURE
from wayfare.core.border import LISTENING_PLACE, Border
from wayfare.core.buffers import Buffer
from wayfare.core.codec import DELIVERED_MAX
from wayfare.core.convergence import NEVER, Source, merged
from wayfare.core.costs import Wants, filters_of, templates_of
from wayfare.core.deadlines import CONFIRM, UPDATE, WILL
from wayfare.core.effects import (
    Close,
    Confined,
    Effect,
    Event,
    Exceeded,
    Forgotten,
    Granted,
    LinkAwaited,
    LinkDown,
    LinkState,
    LinkUp,
    Measured,
    Posted,
    Pressed,
    Publications,
    Received,
    RolledBack,
    Send,
    Stalled,
    Tick,
)
from wayfare.core.grants import Grants
from wayfare.core.groups import GROUP_PLACE, Group, Groups, coordinator, group_id
from wayfare.core.handoff import Handoff
from wayfare.core.history import SECOND_NS, Limits, aged_messages
from wayfare.core.home import Home
from wayfare.core.intake import in_slices, takes_long, update_units
from wayfare.core.junction import Junction
from wayfare.core.long_texts import LONG_TEXTS
from wayfare.core.memory import BODY_BYTES
from wayfare.core.messages import (
    ANNOUNCE_MAX,
    UPDATE_MAX,
    Announce,
    BrokerId,
    LinkId,
    Notification,
    Publish,
    Update,
)
from wayfare.core.past_requests import PastRequests
from wayfare.core.paths import Paths
from wayfare.core.preparing import Comparison, Held
from wayfare.core.profiles import Profiles, Step
from wayfare.core.publishers import (
    Delayed,
    Forecast,
    Prefetching,
    PrefetchingDelayed,
    Proxy,
    Publishers,
    Standard,
)
from wayfare.core.reduction import STRATEGIES
from wayfare.core.relocation import BEGAN_ANEW, Naive, Relocation, began
from wayfare.core.replicator import Replicator
from wayfare.core.reserved import is_address
from wayfare.core.retained import Key
from wayfare.core.sessions import Doubt, Session, enlisted_among
from wayfare.core.shedding import Shedding
from wayfare.core.virtual import Ahead, Virtual, parsed, template_of
from wayfare.errors import FilterError, NotGranted, ProtocolError, UsageError

DEFAULT_LIMITS = Limits()
NOT_AHEAD = Ahead()
ROLLED_BACK = "the store of a broker was rolled back: what it had accepted since may be missing"
LATER = (
    "a later attachment of {} is or was here: stop the other process of this name. If there is none, the"
    " store of this client is an old copy and its clock is behind: set the clock, or begin with a new store"
)
NO_ROOM = "{} has no room for one more session: come again later"
CLOCK_SLACK_NS = SECOND_NS  # by which the clock of a client that begins anew may be behind
MEMORY = "memory"  # a limit in sum, as a `Gap` names it
QUEUED_MAX = 256  # messages of one neighbour that waited and are performed in one event
WAYS_TO_SUBSCRIBE = m.Follow | m.State | m.Enlist  # beside `Subscribe`
FEEDERS_MAX = 16  # notifications of the largest consumer whose publishers are slowed
PRESSED_NS = 20_000_000  # that they are slowed, again and again
SPARE = 16  # of this part of a limit in sum there is room again when somebody had to lose
LINK_LOST = "a link between brokers began from nothing: what was to cross it may be missing"
# For clients that move; the second are for publishers, and as naive for subscribers.
RELOCATIONS: dict[str, type[Relocation]] = {
    one.name: one for one in (Handoff, Junction, Home, Naive)
}
PUBLISHER_RELOCATIONS: dict[str, type[Relocation]] = {
    one.name: one for one in (Standard, Prefetching, Proxy, Delayed, PrefetchingDelayed)
}
ALL_RELOCATIONS = RELOCATIONS | PUBLISHER_RELOCATIONS


def check_strategies(routing: str, relocation: str) -> None:
    """Raise UsageError unless there are such strategies, and they go together."""
    for what, name, names in (
        ("routing", routing, STRATEGIES),
        ("relocation", relocation, ALL_RELOCATIONS),
    ):
        if name not in names:
            raise UsageError(f"unknown {what} {name!r}: choose one of {', '.join(names)}")
    if relocation == "junction" and STRATEGIES[routing].floods:
        raise UsageError(
            f"junction follows subscriptions, and {routing} has none: choose another relocation"
        )


def check_ahead(relocation: str, listens: bool) -> None:
    """Raise UsageError if brokers are to listen ahead, and this relocation does not tell them where clients are."""
    if listens and relocation == "home":
        raise UsageError(
            "sessions stay at home, so no broker can listen ahead for a client that comes: choose"
            ' another relocation, or say ahead.nlb = "none"'
        )


class Broker:
    """One broker of the tree."""

    def __init__(
        self,
        name: BrokerId,
        neighbours: Sequence[BrokerId] = (),
        routing: str = "covering",
        limits: Limits = DEFAULT_LIMITS,
        relocation: str = "handoff",
        forecast: Forecast | None = None,
        ahead: Ahead = NOT_AHEAD,
    ) -> None:
        check_strategies(routing, relocation)
        self.name = name
        self.neighbours = tuple(neighbours)
        eager = (
            relocation not in PUBLISHER_RELOCATIONS
        )  # as published, those lose what comes too early
        self.border = Border(self.neighbours, routing, limits, eager=eager)
        self.routing, self.watches = self.border.routing, self.border.watches
        self.intakes, self.convergence = self.border.intakes, self.border.convergence
        self.backpressure = self.border.backpressure
        self.paths = Paths(name, self.neighbours)
        strategy = ALL_RELOCATIONS[relocation]
        if issubclass(strategy, Publishers):
            self.relocation: Relocation = strategy(self.border, self.paths, forecast=forecast)
        else:
            self.relocation = strategy(self.border, self.paths)
        self.pasts = PastRequests(self.border, self.paths, self.relocation)
        self.profiles = Profiles(self.border, self.paths)
        self.border.places = ahead.places
        self.replicator = Replicator(name, self.border, ahead, self.pasts)
        self._heard = self.replicator.ear.heard  # what is there for virtual clients
        self.groups = Groups(name, self.border)
        self._shared = self.groups.heard  # what is there for queue groups
        self._shedding = Shedding(self.border, self.replicator, self.relocation, self.groups)
        self._route = self.border.route
        self._tunnels = relocation == "home"
        if self._tunnels:
            self._route = self._route_home
        self._floods = STRATEGIES[routing].floods
        self._neighbour_links = frozenset(map(LinkId, self.neighbours))
        # What clients may do, by connection; who is not in here may do everything.
        self.grants: dict[LinkId, Grants] = {}
        self.costs = self.border.costs
        self.costs.count(self.replicator.wants_of)
        # Whom to tell later how the tables changed: with the next message, or then at the latest.
        self._owed: dict[BrokerId, int] = {}
        # Updates and values of neighbours that take long, in slices, and what came behind them.
        self._queued: dict[BrokerId, deque[m.Between]] = {}
        # Links with publications whose texts take long to match, and what came behind them.
        self._patterns = self.routing.destinations.patterns
        self.preparations = self.border.preparations
        self._late = self.preparations.late
        self._prepared: Event | None = None
        self._now = 0  # of this event

    def step(self, event: Event, now: int) -> list[Effect]:
        if self._patterns or self._late:
            link = self._put_off_behind(event)
            if link is not None:
                return self._wait(link, now)
        if type(event) is Received:
            message = event.message
            if (
                type(message) is Notification
                and event.link in self._neighbour_links
                and (not self._queued or BrokerId(event.link) not in self._queued)
            ):
                effects = self._route(message, event.link, now)
                return effects + self._hear(now) if self._heard or self._shared else effects
            if type(message) is Publish:
                session = self.border.by_link.get(event.link)
                if session is not None and self._is_ready(session, event.link):
                    effects = self.border.accept(session, message, now)
                    return effects + self._hear(now) if self._heard or self._shared else effects
        self._now = self.routing.now = now
        effects = EVENTS[type(event)](self, event, now)
        if self._heard or self._shared:
            effects += self._hear(now)
        if self.grants or self._late:
            for effect in effects:
                if type(effect) is Close:
                    self.grants.pop(effect.link, None)
                    if effect.link not in self._neighbour_links:
                        self.preparations.drop(effect.link)
        return effects

    def _put_off_behind(self, event: Event) -> LinkId | None:
        """Let an event wait if its texts take long to match, or it comes behind such a one; returns its link then."""
        if event is self._prepared or not isinstance(event, Received | Publications | LinkDown):
            return None
        link = event.link
        if link not in self._late and (self._is_busy(link) or not self.preparations.is_for(event)):
            return None
        self.preparations.put_off(link, event)
        return link

    def _is_busy(self, link: LinkId) -> bool:
        """Whether what comes on this link waits behind filters that are taken in, or asked for."""
        taking = link in self.intakes.taking or link in self.profiles.asking
        return taking or BrokerId(link) in self._queued

    def _wait(self, link: LinkId, now: int) -> list[Effect]:
        """What came on this link waits behind a publication whose texts take long to match."""
        if link in self._neighbour_links or not self.preparations.is_full(link):
            self.border.go_on_soon()
            return []
        self.preparations.drop(link)
        closed = Close(link, "too many messages behind a publication with a long text", again=True)
        return [closed, *self.step(LinkDown(link), now)]

    def _perform_late(self, now: int) -> list[Effect]:
        """Prepare a slice of the publications that take long to match, and perform those that are prepared."""
        effects: list[Effect] = []
        for event, prepared in self.preparations.go_on(self._is_busy):
            self._prepared = None if isinstance(event, Held) else event
            known = {}
            if isinstance(prepared, Comparison):
                self.border.retained.compared = prepared.compared()
            else:
                known = prepared.known
            LONG_TEXTS.begin(known)
            try:
                if isinstance(event, Held):
                    effects += self._accept_held(*event, now)
                else:
                    effects += self.step(event, now)
            finally:
                LONG_TEXTS.end()
                self.border.retained.compared = None
        self._prepared = None
        return effects

    def _accept_held(self, session: Session, publication: Publish | None, now: int) -> list[Effect]:
        """Publish what was held back, unless its client is to send it again: elsewhere, or because it came back."""
        if self.border.at_place(session.place) is not session or session.is_waiting():
            return []
        if publication is None:
            return self.relocation.leave(session, now)
        effects = self.border.publish(session, publication, now)
        if session.link is not None:
            effects.append(Send(session.link, m.Published(session.published)))
        return effects

    def _hear(self, now: int) -> list[Effect]:
        """Take what came for virtual clients, and for queue groups: what these send may come here, too."""
        effects: list[Effect] = []
        while self._heard or self._shared:
            effects += self.replicator.hear(now) if self._heard else self.groups.hear(now)
        return self.relocation.outward(effects)

    def memory_bytes(self) -> int:
        """Everything that is kept, as an estimate of resident memory."""
        kept = self.border.memory.bytes + self.past_bytes() + self.profiles.bytes
        return kept + self.border.retained.memory_bytes() + self.preparations.bytes

    def past_bytes(self) -> int:
        past = self.border.past
        return past.bytes + len(past.kept) * BODY_BYTES

    def largest_bytes(self) -> int:
        """What the largest consumer keeps."""
        largest = self.border.memory.largest()
        return 0 if largest is None else largest.noted

    def _feeders(self, account: str) -> list[m.ClientId]:
        """The publishers of what the largest consumer got last.

        With an account: its largest consumer, and its own clients only, as far as they are here.
        """
        largest = self.border.memory.largest(account)
        if isinstance(largest, Session | Virtual):
            backlog = largest.backlog
            queue = reversed(backlog.waiting or backlog.unacked)
            last = [stored for _, stored, _ in islice(queue, FEEDERS_MAX)]
        elif isinstance(largest, Group):
            last = [item.stored for item in islice(reversed(largest.queue), FEEDERS_MAX)]
        else:
            return []
        publishers = dict.fromkeys(stored.notification.publisher for stored in last)
        return [
            name
            for name in publishers
            if not account or any(one.account == account for one in self.border.of(name))
        ]

    def excess(self, outside: int = 0) -> list[Exceeded]:
        """What has to be shed, where a host keeps this much beside: ask when something was kept."""
        limits = self.border.limits
        accounts = map(self.account_excess, list(self.border.memory.suspects))
        out = [one for one in accounts if one is not None]
        if limits.memory_bytes:
            beyond = self.memory_bytes() + outside - limits.memory_bytes
            if beyond > 0:
                out.append(Exceeded(MEMORY, beyond + limits.memory_bytes // SPARE))
        return out

    def account_excess(self, account: str) -> Exceeded | None:
        """What the clients of this account have to shed; None: it keeps within its limit."""
        memory = self.border.memory
        beyond = memory.beyond(account)
        if not beyond:
            return None
        limit = memory.limit_of(account)
        return Exceeded(limit.name, beyond + limit.bytes // SPARE, account)

    def next_deadline(self) -> int | None:
        """When something that is kept may have become too old."""
        return self.border.deadlines.next

    def _route_home(
        self, notification: Notification, came_from: LinkId | None, now: int
    ) -> list[Effect]:
        return self.relocation.outward(self.border.route(notification, came_from, now))

    # Events

    def on_received(self, event: Received, now: int, *, taken: bool = False) -> list[Effect]:
        """With `taken`, the filters of an `Attach` count in the tables already."""
        link, message = event.link, event.message
        try:
            effects = self._handle(link, message, now, taken=taken)
        except (ProtocolError, FilterError) as error:
            denied = error.action if isinstance(error, NotGranted) else ""
            closed = [Close(link, str(error), fault=True, denied=denied)]
            return self.relocation.outward([*closed, *self.on_link_down(LinkDown(link), now)])
        if self.watches.begun:
            self._begin_watches(now)
        routing = self.routing
        done = not (effects or self.paths.mail or routing.touched or self.watches.sessions)
        done = done and not self.backpressure.out
        if done and not (routing.is_behind or self.convergence.is_due):
            return effects  # an Ack, mostly
        return self._with_updates(effects)

    def on_publications(self, event: Publications, now: int) -> list[Effect]:
        link, border = event.link, self.border
        session = border.by_link.get(link)
        effects: list[Effect] = []
        late = self._patterns and any(map(self.preparations.takes_long, event.messages))
        if session is None or late or not self._is_ready(session, link):
            for message in event.messages:
                effects += self.step(Received(link, message), now)
                if any(type(effect) is Close and effect.link == link for effect in effects):
                    break
            return effects
        publish = border.publish
        for message in event.messages:
            effects += publish(session, message, now)
        effects.append(Send(link, m.Published(session.published)))
        return effects

    def _is_ready(self, session: Session, link: LinkId) -> bool:
        """Whether its client may publish, here and now, without further questions."""
        if session.wait is not None or session.orphan or self._tunnels:
            return False
        grants = self.grants.get(link)
        return grants is None or not grants.checks_publications()

    def on_link_state(self, event: LinkState, now: int) -> list[Effect]:
        neighbour = BrokerId(event.link)
        if event.up:
            self.paths.down.discard(neighbour)
            self.border.reach_neighbour(neighbour, now)
            self.convergence.awaited.discard(neighbour)
            return []
        self.paths.down.add(neighbour)
        self.border.lose_neighbour(neighbour)
        return self._with_updates(self.relocation.on_unlinked(neighbour, now))

    def on_link_up(self, event: LinkUp, now: int) -> list[Effect]:
        neighbour = BrokerId(event.link)
        self.paths.down.discard(neighbour)
        self.border.reach_neighbour(neighbour, now)
        self._begin(now)
        effects: list[Effect] = []
        for late in self.preparations.drop(event.link):
            self._prepared = late
            effects += self.step(late, now)
        self._prepared = None
        again = self.convergence.has_begun(neighbour)  # whether or not anything came over it
        awaited = neighbour in self.convergence.awaited
        if again and not awaited:
            self.border.cut[neighbour] = now
            effects += self.on_gap(neighbour, m.Gap(0, LINK_LOST, exact=False), now)
        if neighbour in self.convergence.unheard:  # it cannot know what it misses
            effects.append(Send(event.link, m.Gap(0, LINK_LOST, exact=False)))
        queue = self._queued.pop(neighbour, deque())
        while queue:
            message = queue.popleft()
            if isinstance(message, Update):  # of its tables, it tells everything anew
                message = Update(errands=message.errands)
            effects += self._perform(neighbour, message, now)
            queue.extendleft(self._queued.pop(neighbour, ()))
        self.routing.start_over(neighbour)
        self.convergence.start_over(neighbour, again=again)
        if not self.convergence.is_eager:  # nobody says when it has told everything anew
            self.routing.drop_stale(neighbour)
        return self._with_updates([*effects, *self._introduction(neighbour, now)])

    def _introduction(self, neighbour: BrokerId, now: int) -> list[Effect]:
        """What a neighbour is told first, in front of the tables."""
        values = self.border.retained.start_over(neighbour, now)  # before the announcements
        known, begun = self.paths.known_beyond(neighbour), self.border.begun()
        for start in range(0, len(begun), ANNOUNCE_MAX):  # it may have forgotten, or never heard it
            known.append(Announce((), tuple(begun[start : start + ANNOUNCE_MAX])))
        known += self._unclaimed()
        said: list[m.Between] = [*values, *known]
        return [Send(LinkId(neighbour), one) for one in said]

    def on_link_awaited(self, event: LinkAwaited, now: int) -> list[Effect]:
        """From now on the link is as one that is down: nothing is lost that is for it, and nobody waits for it."""
        neighbour = BrokerId(event.link)
        if self.convergence.has_begun(neighbour):
            return []
        self._begin(now)
        self.routing.start_over(neighbour)
        self.convergence.start_over(neighbour, again=False)
        self.convergence.expect(neighbour)
        return self._with_updates(self._introduction(neighbour, now))

    def _begin(self, now: int) -> None:
        """Remember when this store began: it knows nothing of what was before."""
        if self.border.since is None:
            self.border.since = now

    def on_rolled_back(self, event: RolledBack, now: int) -> list[Effect]:
        """Report the loss to everybody who may miss something, and look for sessions that moved on."""
        self.border.since = self.border.past.forgotten = now
        gap = m.Gap(0, ROLLED_BACK, exact=False)
        effects: list[Effect] = [Send(LinkId(one), gap) for one in self.neighbours]
        effects += self.replicator.lose(ROLLED_BACK, now)
        effects += self.border.roll_back(ROLLED_BACK, now)
        self.groups.roll_back(now)
        unclaimed = self._unclaimed()
        for neighbour in self.neighbours:
            effects += [Send(LinkId(neighbour), one) for one in unclaimed]
        for one in unclaimed:
            effects += self.relocation.on_unclaimed(one.unclaimed, now)
        return self._with_updates(effects)

    def _unclaimed(self) -> list[Announce]:
        """What to tell of sessions that nobody has claimed since the store was rolled back."""
        known = [
            m.Unclaimed(self.name, one.client, one.epoch)
            for one in self.border.all()
            if one.rolled_back
        ]
        return [
            Announce((), (), tuple(known[start : start + ANNOUNCE_MAX]))
            for start in range(0, len(known), ANNOUNCE_MAX)
        ]

    def on_granted(self, event: Granted, now: int) -> list[Effect]:
        self.grants[event.link] = event.grants
        if event.link in self.border.by_link:
            self._assign(event.link, event.grants)
        return []

    def _assign(self, link: LinkId, grants: Grants) -> None:
        """Charge what is kept for this client to its account, and drop grants that restrict nothing."""
        self.border.memory.assign(self.border.by_link[link], grants.account)
        if not grants.is_limited():
            del self.grants[link]

    def on_confined(self, event: Confined, now: int) -> list[Effect]:
        client, grants = event.client, event.grants
        effects: list[Effect] = []
        if grants.cost_max:
            self.costs.know(grants.account, client)
        following = grants.unsubscribable(self.replicator.followed_by(client))
        if following is not None:
            effects += self.replicator.leave(client, now)
        for session in self.border.of(client):
            effects += self.pasts.end(session, now)  # what it holds back may be withdrawn
            unpublishable = self.border.drop_will(session, grants)
            reason = self.border.confine(session, grants)
            if reason and session.wait is not None:
                # Its old broker may still send what is withdrawn: the session cannot go on.
                effects += self.border.disconnect(session, reason, now)
                effects += self.relocation.forget(session, now)
            elif why := reason or following or unpublishable:
                effects += self.relocation.hang_up(session, why, now)
        return self._with_updates(effects)

    def on_forgotten(self, event: Forgotten, now: int) -> list[Effect]:
        effects = self.replicator.leave(event.client, now)
        for session in self.border.of(event.client):
            effects += self.border.disconnect(session, event.reason, now)
            effects += self.relocation.forget(session, now)
        return self._with_updates(effects)

    def on_link_down(self, event: LinkDown, now: int) -> list[Effect]:
        self.profiles.on_link_down(event.link)
        self.intakes.on_link_down(event.link)
        waiting = event.link in self.profiles.asking or event.link in self.intakes.taking
        if not waiting:  # what is asked for still has to be granted
            self.grants.pop(event.link, None)
        self.replicator.on_link_down(event.link, now)
        session = self.border.by_link.get(event.link)
        if session is None:
            return self.relocation.on_stranger_down(event.link, now)
        return self._with_updates(self.relocation.on_link_down(session, now))

    def on_posted(self, event: Posted, now: int) -> list[Effect]:
        try:
            effects = self.replicator.on_posted(event.broker, event.message, now)
        except (ProtocolError, FilterError):  # it may as well have been lost
            effects = []
        return self._with_updates(effects)

    def on_measured(self, event: Measured, now: int) -> list[Effect]:
        if event.link in self._neighbour_links:
            self.replicator.pace.on_round_trip(BrokerId(event.link), event.round_trip_ns)
        return []

    def on_exceeded(self, event: Exceeded, now: int) -> list[Effect]:
        return self._with_updates(self._shedding.shed(event, now))

    def on_pressed(self, event: Pressed, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for publisher in self._feeders(event.account):
            slowed = self.backpressure.slowed.get(publisher)
            if slowed is None or PRESSURE not in slowed.by:
                effects += self.backpressure.slow(publisher, PRESSURE, now + PRESSED_NS, now)
        return effects

    def on_tick(self, event: Tick, now: int) -> list[Effect]:
        timers = self.border.deadlines
        if timers.next is None or now < timers.next:
            return []
        effects: list[Effect] = []
        for kind, key in timers.take_due(now):
            effects += TIMERS[kind](self, key, now)
        return self._with_updates(effects)

    def on_stalled(self, event: Stalled, now: int) -> list[Effect]:
        """Others could not be heard for a while: give them that much more time."""
        self.border.extend_waits(event.for_ns, now)
        self.pasts.extend_waits(event.for_ns, now)
        self.profiles.extend_waits(event.for_ns, now)
        self.replicator.extend_waits(event.for_ns, now)
        self.backpressure.extend(event.for_ns)
        self.groups.extend_waits(event.for_ns, now)
        return []

    # Timers: each handler looks at what is due, and arms the timer again if that is later

    def on_profile_due(self, link: LinkId, now: int) -> list[Effect]:
        return self._take(self.profiles.on_due(link, now), now)

    def on_search_due(self, key: Hashable, now: int) -> list[Effect]:
        self.relocation.on_search_due(key, now)
        return []

    def on_answer_due(self, place: int, now: int) -> list[Effect]:
        session = self.border.at_place(place)
        if session is None:
            return []
        effects = self.pasts.on_due(session, now)
        return effects + self.relocation.on_answer_due(session, now)

    def on_away_due(self, place: int, now: int) -> list[Effect]:
        session = self.border.at_place(place)
        return [] if session is None else self.relocation.on_away_due(session, now)

    def on_virtual_due(self, client: m.ClientId, now: int) -> list[Effect]:
        return self.replicator.on_due(client, now)

    def on_buffer_due(self, buffer: Buffer, now: int) -> list[Effect]:
        self.replicator.ear.expire(buffer, now)
        return []

    def on_backlog_due(self, place: int, now: int) -> list[Effect]:
        return self.border.expire_backlog(place, now)

    def on_tombstone_due(self, client: m.ClientId, now: int) -> list[Effect]:
        self.border.expire_tombstone(client, now)
        return []

    def on_slowed_due(self, publisher: m.ClientId, now: int) -> list[Effect]:
        return self.backpressure.on_due(publisher, now)

    def on_group_due(self, group: str, now: int) -> list[Effect]:
        return self.groups.on_due(group, now)

    def on_update_due(self, neighbour: BrokerId, now: int) -> list[Effect]:
        until = self._owed.get(neighbour)
        if until is not None and until <= now:
            self.routing.touched.add(neighbour)
        elif until is not None:
            self.border.deadlines.arm(UPDATE, neighbour, until)
        return []

    def _with_updates(self, effects: list[Effect]) -> list[Effect]:
        """Behind these effects, what publishers and every neighbour have to be told."""
        if self.watches.sessions:
            effects = effects + self.watches.tell()
        if self.backpressure.out:
            effects = effects + self.backpressure.take_out()
        effects = self.relocation.outward(effects)
        mail = self._settled_mail()
        if mail or self.routing.touched or self.convergence.is_due:
            effects = effects + self._updates(mail)
        if self.is_behind():
            self.border.go_on_soon()
        self.routing.meter.reset()
        return effects

    def is_behind(self) -> bool:
        """Whether there is work that was put off, and goes on with the next tick."""
        late = self.routing.is_behind or self.watches.is_behind or self._late
        return bool(late or self.intakes or self._queued or self.border.thinnings)

    def on_work_due(self, _: None, now: int) -> list[Effect]:
        """Do a slice of the work that was put off."""
        self.routing.catch_up()
        self.border.go_on()
        effects = self._apply_queued(now)
        if self.border.thinnings:
            effects += self.border.thinnings.go_on(now)
        if self._late:
            effects += self._perform_late(now)
        taken = self.intakes.take()
        if taken is None:
            return effects
        link, intake = taken
        said: list[Step] = [Received(link, one) for one in aged_messages(intake.later, now)]
        effects += self.on_received(Received(link, intake.message), now, taken=True)
        if link not in self.border.by_link:
            return effects  # it came too late
        effects += self._take(said, now)
        return effects + self.step(LinkDown(link), now) if intake.gone else effects

    def waiting(self) -> list[m.Between]:
        """The messages of neighbours, and the errands to them, that wait here behind work on tables."""
        mail = [errand for errands in self.paths.mail.values() for errand in errands]
        late = [one for link in self._late.values() for one in link.events]
        said = [one.message for one in late if isinstance(one, Received)]
        return [
            Update(errands=tuple(mail)),
            *(one for some in self._queued.values() for one in some),
            *(one for one in said if isinstance(one, m.Between)),
        ]

    def _updates(self, mail: dict[BrokerId, list[m.Errand]]) -> list[Effect]:
        """What every neighbour has to be told, and the errands behind it."""
        if self._owed:
            touched = self.routing.touched
            touched |= self._owed.keys() & mail.keys()
            for neighbour in touched:
                self._owed.pop(neighbour, None)
        updates = self._table_updates()
        echoes = self.convergence.take_echoes(self.routing.is_settled)
        if self._owed and self._owed.keys() & echoes.keys():
            self._pay_before(echoes, updates)
        for neighbour, errands in mail.items():
            _put_behind(updates.setdefault(neighbour, []), errands)
        for neighbour, probe in self.convergence.probes().items():
            _put_last(updates.setdefault(neighbour, []), probe=probe)
        effects, returned = list[Effect](), list[int]()
        for source, echo in echoes.items():
            if isinstance(source, str):
                _put_last(updates.setdefault(source, []), echo=echo)
            elif source >= 0:
                effects += self._confirm(source, echo)
            else:
                effects += self._settle(~source) if echo.ads else []
                returned += [~source] if echo.subs else []
        sent = [Send(LinkId(one), update) for one, some in updates.items() for update in some]
        effects = self.relocation.outward(effects)
        return [*sent, *effects, *(self._on_returned(returned) if returned else [])]

    def _on_returned(self, places: list[int]) -> list[Effect]:
        """The filters of these sessions, which the tree had forgotten, are in effect again."""
        effects: list[Effect] = []
        for session in map(self.border.at_place, places):
            if session is not None:
                effects += self.relocation.on_spread(session, self._now)
        return self._with_updates(effects)

    def _table_updates(self) -> dict[BrokerId, list[Update]]:
        updates: dict[BrokerId, list[Update]] = {}
        for neighbour, update in self.routing.updates():
            updates.setdefault(neighbour, []).append(update)
        for neighbour, some in updates.items():
            self.convergence.on_sent(neighbour, some)
        return updates

    def _pay_before(
        self, echoes: dict[Source, m.Echo], updates: dict[BrokerId, list[Update]]
    ) -> None:
        """An echo is behind the subscriptions that were put off for a neighbour."""
        for neighbour in [one for one in self._owed if one in echoes]:
            del self._owed[neighbour]
            self.routing.touched.add(neighbour)
        for neighbour, some in self._table_updates().items():
            updates.setdefault(neighbour, []).extend(some)

    def _confirm(self, place: int, echo: m.Echo) -> list[Effect]:
        """Tell a client what has spread."""
        if not self.convergence.waits(place):
            self.border.deadlines.disarm(CONFIRM, place)
        if place == GROUP_PLACE:
            return self._confirm_groups(echo)
        session = self.border.at_place(place)
        if session is None:
            return []
        if session.wait is not None:  # what an older session had may still be incomplete
            session.wait.echo = merged(session.wait.echo, echo)
            return []
        return [] if session.link is None else [Send(session.link, echo)]

    def _confirm_groups(self, echo: m.Echo) -> list[Effect]:
        effects = self.groups.on_confirmed(echo.subs, self._now) if echo.subs else []
        if not echo.ads:
            return effects
        for one in self.groups.on_known():
            effects += self._enlist(one, self._now)
        return self._with_updates(effects)

    def _begin_watches(self, now: int) -> None:
        """The first answer to what a client watches waits until its advertisements are confirmed."""
        report_at = now + self.border.limits.confirm_ns
        for place in self.watches.begun:
            self.convergence.on_watch(place)
            self.border.deadlines.arm(CONFIRM, ~place, report_at)
        self.watches.begun.clear()

    def _settle(self, place: int) -> list[Effect]:
        """Tell a client whether anybody wants what it advertises, unless it has begun to watch more."""
        if self.convergence.ads.of(~place):
            return []
        self.border.deadlines.disarm(CONFIRM, ~place)
        self.watches.settle(place)
        return self.watches.tell()

    def _settled_mail(self) -> dict[BrokerId, list[m.Errand]]:
        """The errands that may leave: not before what a neighbour has to know in front of them."""
        mail = self.paths.take_mail()
        if self.routing.is_behind:
            for neighbour in [one for one in mail if not self.routing.is_settled(one)]:
                self.paths.mail[neighbour] = mail.pop(neighbour)
        return mail

    def pay(self) -> list[Effect]:
        """Tell neighbours now what was put off."""
        self.routing.touched |= self._owed.keys()
        return self._with_updates([])

    def is_quiet(self) -> bool:
        """Whether nothing is half done that cannot be saved."""
        waiting = self.routing.touched or self._owed or self.paths.mail or self._queued
        return not (waiting or self.border.thinnings or self._late or self.convergence.is_due)

    def save(self) -> bytes:
        assert self.is_quiet()
        virtual = saving_virtual.save(self.replicator)
        return saving.save(
            self.border,
            self.paths,
            self.relocation,
            self.profiles,
            self.grants,
            virtual,
            self.groups.save(),
        )

    def load(self, saved: bytes) -> None:
        """Become what a broker was that was saved; UsageError if that was another one."""
        saving.load(
            saved,
            self.border,
            self.paths,
            self.relocation,
            self.profiles,
            self.grants,
            lambda virtual: saving_virtual.load(virtual, self.replicator),
            self.groups.load,
        )

    # Messages from brokers

    def _handle(
        self, link: LinkId, message: m.AnyMessage, now: int, *, taken: bool = False
    ) -> list[Effect]:
        if link in self._neighbour_links:
            neighbour = BrokerId(link)
            if not isinstance(message, m.Between):
                raise ProtocolError(f"{type(message).__name__} from a broker")
            if neighbour in self._queued:
                self._queued[neighbour].append(message)
                return []
            return self._perform(neighbour, message, now)
        if self.grants:
            self._check_grants(link, message)
        if type(message) is m.Attach:
            return self.on_attach(link, message, now, taken=taken)
        handler = FROM_CLIENT.get(type(message))
        session = self.border.by_link.get(link)
        if handler is None:
            raise ProtocolError(f"{type(message).__name__} from a client")
        if session is None:
            assert isinstance(message, m.FromClient)
            if link in self.profiles.asking:
                self.profiles.on_message(link, message, now)
                return []
            if link in self.intakes.taking:
                self.intakes.on_message(link, message, now)
                return []
            return self.relocation.on_stranger(link, message, now)
        if not session.orphan or _is_part_of_attachment(message):
            return handler(self, session, message, now)
        session.orphan = False  # its client is really there
        effects = self.relocation.on_spoken(session, now)
        try:
            return effects + handler(self, session, message, now)
        except (ProtocolError, FilterError):
            session.partial |= (
                session.sought_since is not None
            )  # nobody hears of it now: seek at the next attachment
            raise

    def _perform(self, neighbour: BrokerId, message: m.Between, now: int) -> list[Effect]:
        """Do what a neighbour says."""
        return FROM_BROKER[type(message)](self, neighbour, message, now)

    def on_notification(self, neighbour: BrokerId, message: Notification, now: int) -> list[Effect]:
        return self._route(message, LinkId(neighbour), now)

    def _check_grants(self, link: LinkId, message: m.AnyMessage) -> None:
        grants = self.grants.get(link)
        if grants is None:
            return
        refusal = grants.refusal(message)
        followed = self.replicator.wanted_by(link, message)
        if followed:
            refusal = refusal or grants.unsubscribable(followed)
        if grants.cost_max and refusal is None:
            refusal = self._overspent(grants, message) or None
        if refusal is not None:
            named = m.Subscribe if isinstance(message, WAYS_TO_SUBSCRIBE) else type(message)
            raise NotGranted(refusal, named.__name__.lower())

    def _overspent(self, grants: Grants, message: m.AnyMessage) -> str:
        client = m.ClientId(grants.client)
        wants: Wants
        if isinstance(message, m.Attach):
            wants = filters_of(message.subscriptions)
            for session in self.border.of(client):
                wants |= enlisted_among(set(message.subscriptions), session.enlisted).values()
            if message.followed is not None:
                wants |= templates_of(parsed(message.followed.follows))
            return self.costs.charge(grants, wants)
        if isinstance(message, m.Subscribe):
            wants = filters_of((message.filter,))
        elif isinstance(message, m.Follow):
            wants = templates_of((template_of(message.text),))
        elif isinstance(message, m.Enlist):
            wants = {group_id(message.group, message.filter): message.filter}
        else:
            return ""
        return self.costs.charge(grants, self.costs.wants(client) | wants)

    def on_uncertain(self, neighbour: BrokerId, message: m.Uncertain, now: int) -> list[Effect]:
        return self.border.route_uncertain(message, LinkId(neighbour), now)

    def on_retained(self, neighbour: BrokerId, message: m.Retained, now: int) -> list[Effect]:
        return self.border.route_retained(message, LinkId(neighbour), now)

    def on_values(self, neighbour: BrokerId, message: m.Values, now: int) -> list[Effect]:
        effects, left = self.border.merge(message.values, LinkId(neighbour), now)
        if left:
            self._queued[neighbour] = deque([m.Values(tuple(left))])
            self.border.go_on_soon()
        return effects

    def on_will_due(self, place: int, now: int) -> list[Effect]:
        session = self.border.at_place(place)
        if session is None:
            return []
        will, due = session.will, self.border.will_due_at(session)
        if not self._patterns or will is None or due is None or due > now:
            return self.border.on_will_due(session, now)
        known = self.preparations.will(session, will, self._has_will_due)
        if known is None:
            self.border.deadlines.arm(WILL, place, now)  # it goes on with the next tick
            return []
        LONG_TEXTS.begin(known)
        try:
            return self.border.on_will_due(session, now)
        finally:
            LONG_TEXTS.end()

    def _has_will_due(self, session: Session) -> bool:
        here = self.border.at_place(session.place) is session
        return here and wills.due_at(session) is not None

    def on_retained_due(self, key: Key, now: int) -> list[Effect]:
        self.border.retained.expire(key, now)
        return []

    def on_gap(self, neighbour: BrokerId, message: m.Gap, now: int) -> list[Effect]:
        """Something that was to come from there is lost, for all who are behind this broker."""
        others = [one for one in self.neighbours if one != neighbour]
        self.pasts.lose()
        self.replicator.lose_past()
        effects: list[Effect] = [Send(LinkId(one), message) for one in others]
        effects += self._take(self.relocation.on_gap(neighbour, now), now)
        effects += self._take(self.profiles.on_gap(now), now)
        unclaimed = self._unclaimed()  # an announcement may be lost, too
        effects += [Send(LinkId(to), one) for to in self.neighbours for one in unclaimed]
        effects += self.replicator.lose(message.reason, now)
        return effects + self.border.lose_all(message.reason, now)

    def on_announce(self, neighbour: BrokerId, message: Announce, now: int) -> list[Effect]:
        self.border.retained.heard(neighbour)
        self.convergence.unheard.discard(neighbour)
        told = self.paths.learn(neighbour, message.brokers)
        effects: list[Effect] = [Send(LinkId(other), one) for other, one in told]
        for one in message.begun:
            effects += self._on_began(one, neighbour, now)
        if message.unclaimed:
            again = Announce((), (), message.unclaimed)
            effects += [Send(LinkId(one), again) for one in self.neighbours if one != neighbour]
            effects += self.relocation.on_unclaimed(message.unclaimed, now)
        if message.sought:
            on = Announce((), sought=message.sought)
            effects += [Send(LinkId(one), on) for one in self.neighbours if one != neighbour]
            effects += self.relocation.on_sought(message.sought, now)
        return effects + self.relocation.on_announced(now)

    def _on_began(self, began: m.Began, came_from: BrokerId | None, now: int) -> list[Effect]:
        effects = self.replicator.on_left(began.client, began.epoch - 1, now)
        return effects + self.relocation.on_began(began, came_from, now)

    def on_tunnel(self, neighbour: BrokerId, message: m.Tunnel, now: int) -> list[Effect]:
        return self._take(self.relocation.on_tunnel(message, now), now)

    def _take(self, steps: list[Step], now: int) -> list[Effect]:
        """Perform what happens here next; the rest is for the host."""
        effects: list[Effect] = []
        closed = set[LinkId]()  # for membership only
        for one in steps:
            if isinstance(one, Received) and one.link in closed:
                continue  # what its client said behind an attachment that was refused
            more = self.step(one, now) if isinstance(one, Received | LinkDown) else [one]
            closed |= {effect.link for effect in more if type(effect) is Close}
            effects += more
        return effects

    def on_update(self, neighbour: BrokerId, message: Update, now: int) -> list[Effect]:
        if self._floods and _filters(message):
            raise ProtocolError("an update of tables, but this broker floods")
        if takes_long(message, self.border.limits.slice_units):
            pieces = in_slices(message, self.border.limits.slice_units)
            self._queued.setdefault(neighbour, deque()).extend(pieces)
            self.border.go_on_soon()
            return []
        return self._apply(neighbour, message, now)

    def _apply_queued(self, now: int) -> list[Effect]:
        """Apply a slice of the updates that neighbours sent, in their order."""
        effects: list[Effect] = []
        for neighbour in list(self._queued):
            queue, left = self._queued.pop(neighbour), QUEUED_MAX
            try:
                while queue and self.routing.meter.left > 0 and left:
                    left -= 1
                    message = queue[0]
                    if isinstance(message, Update):
                        self.routing.meter.left -= update_units(message)
                        effects += self._apply(neighbour, message, now)
                    elif self.routing.touched:
                        break  # notifications go behind the updates that show them the way
                    else:
                        effects += self._perform(neighbour, message, now)
                    queue.popleft()
                    queue.extendleft(self._queued.pop(neighbour, ()))  # what is left of values
            except (ProtocolError, FilterError) as error:
                effects.append(Close(LinkId(neighbour), str(error), fault=True))
                continue
            if queue:
                self._queued[neighbour] = queue  # behind the others
        return effects

    def _apply(self, neighbour: BrokerId, message: Update, now: int) -> list[Effect]:
        if _filters(message):
            self.routing.apply(neighbour, message)
        effects: list[Effect] = []
        if message.echo is not None and self.convergence.on_echo(neighbour, message.echo):
            self.routing.drop_stale(neighbour)
        if message.probe is not None:
            self.convergence.on_probe(neighbour, message.probe)
        for slow in message.slow:
            effects += self.backpressure.on_slow(neighbour, slow, now)
        for errand in message.errands:
            if isinstance(errand, m.Ask):
                effects += self._take(self.profiles.on_ask(errand, now), now)
            elif isinstance(errand, m.Profile):
                effects += self._take(self.profiles.on_profile(errand, now), now)
            elif isinstance(errand, m.Reply) and _tells_how_far(errand):
                effects += self.relocation.on_reached(errand, now)
            elif isinstance(errand, m.Convene):
                effects += self._convene(errand, now)
            elif isinstance(errand, m.PastRequest):
                effects += self.pasts.on_request(neighbour, errand, now)
            elif isinstance(errand, m.PastReply):
                if (errand.broker, errand.place) == (self.name, LISTENING_PLACE):
                    effects += self.replicator.on_past_reply(errand, now)
                else:
                    effects += self.pasts.on_reply(errand, now)
            else:
                effects += self.relocation.on_errand(neighbour, errand, now)
        if any(
            isinstance(errand, m.Request)
            and errand.publishes
            and self.paths.towards(errand.broker) == neighbour  # otherwise no reply goes there
            for errand in message.errands
        ):
            self._put_off(neighbour, now)
        return effects

    def _convene(self, errand: m.Convene, now: int) -> list[Effect]:
        """Coordinate a queue group, or send the errand on; the member says it again if it gets lost."""
        if errand.broker == self.name:
            return self.groups.on_convene(errand.enlist, now)
        self.paths.send(errand)
        return []

    def _put_off(self, neighbour: BrokerId, now: int) -> None:
        """Subscriptions that match the advertisements of a publisher go to it with the reply.

        It publishes nothing before that comes. If they went at once, those of every broker on the way
        would travel by themselves, all the way: messages in the square of its length.
        """
        if (
            neighbour in self.routing.touched
            and self.paths.mail
            and neighbour not in self.paths.mail
        ):
            self.routing.touched.discard(neighbour)
            until = now + self.border.limits.answer_ns // 2
            self._owed.setdefault(neighbour, until)
            self.border.deadlines.arm(UPDATE, neighbour, until)

    # Messages from clients

    def on_attach(
        self, link: LinkId, message: m.Attach, now: int, *, taken: bool = False
    ) -> list[Effect]:
        self._begin(now)
        limit = self.border.limits.filters
        if link in self.border.by_link or link in self.intakes.taking:
            raise ProtocolError("Attach twice on one connection")
        if max(len(message.subscriptions), len(message.advertisements)) > limit:
            raise ProtocolError(f"a client has at most {limit} filters of a kind")
        if self.border.is_another(message):
            return [Close(link, BEGAN_ANEW.format(message.client))]
        above = self._above(message, now) if message.anew else 0
        if above:
            return self.profiles.on_behind(link, message, above, now)
        contested = self.border.contested(message)
        if message.resumes and not message.anew:  # its session goes on
            contested = max(contested, self.border.latest(message.client))
        if contested >= message.epoch:
            return self.profiles.on_behind(link, message, contested, now)
        if self.border.is_stale(message.client, message.epoch):
            return [self._refuse_stale(link, message)]
        if message.digest and not self.relocation.visits(message):
            return self._take(self.profiles.on_attach(link, message, now), now)
        self.profiles.forget(link)
        if not taken and self._takes_long(message):
            self.intakes.begin(link, message)
            self.border.go_on_soon()
            return []
        effects: list[Effect] = []
        if not self.border.has_room(message.client) and not self.relocation.visits(message):
            effects += self._shedding.make_room(message.client, now)
            if not self.border.has_room(message.client):
                return [*effects, Close(link, NO_ROOM.format(self.name), again=True)]
        anew = began(message, self.name)
        if anew is not None:  # not before there is a session: a broker may reply to it
            effects += self._on_began(anew, None, now)
        effects += self.relocation.on_attach(link, message, now)
        session = self.border.by_link.get(link)
        if session is not None and message.anew and message.welcomed and not message.resumes:
            # Its earlier epochs were those of another process, too: its older sessions may not be found by them.
            session.miss_sessions()
            effects += self.relocation.on_spoken(session, now)
            if session.may_have_published():
                until = now + self.border.limits.marks_age_ns
                exceeds = session.doubt is None or session.doubt.exceeds
                session.doubt = Doubt(until, message.anew, exceeds)
        if link in self.grants and link in self.border.by_link:
            self._assign(link, self.grants[link])
        if message.asks and link in self.border.by_link:
            effects += self._answer(self.border.by_link[link], message, now)
        if link in self.border.by_link and (message.followed or self.replicator.virtual):
            effects += self.replicator.on_attach(link, message, now)
        return effects + self.backpressure.on_attached(message.client)

    def _answer(self, session: Session, message: m.Attach, now: int) -> list[Effect]:
        """Send current values for the requests of an attachment, at once or one request after the other."""
        link = session.link
        asks = {ask: message.subscriptions[place] for place, ask in message.asks}
        # What came because of where the client is, it drops when it comes again: that stands for no current value.
        delivered = DELIVERED_MAX if message.followed else message.delivered
        if link is None or len(asks) < 2 or not self.preparations.are_many(asks):
            return self.border.answer(session, asks, delivered, now)
        for ask, filter in sorted(asks.items(), key=itemgetter(0)):
            terms = session.subscriptions.get(filter)
            again = m.Subscribe(filter, terms, 0, ask, delivered)
            self.preparations.put_off(link, Received(link, again), own=True)
        self.border.go_on_soon()
        return []

    def _above(self, message: m.Attach, now: int) -> int:
        """The number that a client has to exceed which begins anew; 0: it does, or has to be refused.

        Others may have had its name and got so far. Where nobody remembers them, the clock of this broker
        stands in: what they published may still be known to subscribers.
        """
        border, client = self.border, message.client
        reached, tombstone = border.reached(client, message.life), border.tombstones.get(client)
        known = tombstone is not None and tombstone.life == message.life
        if message.anew > max(reached, 0 if known else (now - CLOCK_SLACK_NS) // 1_000):
            return 0
        return min(max(reached, now // 1_000), DELIVERED_MAX)

    def _takes_long(self, message: m.Attach) -> bool:
        """Whether the filters of an attachment are taken in first, in slices."""
        filters = message.subscriptions, message.advertisements
        return self.intakes.is_large(*filters) and not self.relocation.visits(message)

    def _refuse_stale(self, link: LinkId, message: m.Attach) -> Close:
        """A later attachment of the client was here.

        If that was of another process, this one may still be the latest, and its announcement under way.
        """
        tombstone = self.border.tombstones.get(message.client)
        if tombstone is not None and message.epoch < tombstone.began:
            return Close(link, BEGAN_ANEW.format(message.client))
        lives = {one.life for one in self.border.of(message.client)}
        if tombstone is not None:
            lives.add(tombstone.life)
        known = not message.life or message.life in lives
        return Close(link, LATER.format(message.client), again=not known)

    def on_detach(self, session: Session, message: m.Detach, now: int) -> list[Effect]:
        effects: list[Effect] = []
        if message.leave:
            effects = self.replicator.on_left(session.client, session.epoch, now)
        effects += self.relocation.on_detach(session, message, now)
        if message.moves:
            self.border.expect_elsewhere(session, now)
        return effects

    def on_subscribe(self, session: Session, message: m.Subscribe, now: int) -> list[Effect]:
        if message.ask > session.asked and self._compares_first(session, message):
            return []
        if message.filter not in session.subscriptions:
            self.border.check_room(session.subscriptions)
            self.routing.subscribe(session.client, message.filter, session.place)
        session.subscriptions[message.filter] = message.terms
        self.border.note(session)
        effects: list[Effect] = []
        if message.since_ns:
            self.pasts.begin(session, message, now)
        if message.ask:
            asks = {message.ask: message.filter}
            effects += self.border.answer(session, asks, message.delivered, now)
        return effects + self.pasts.go_on(session, now) if message.since_ns else effects

    def _compares_first(self, session: Session, message: m.Subscribe) -> bool:
        """Whether a request for current values waits until it was compared with them in slices."""
        link, prepared = session.link, self._prepared
        if isinstance(prepared, Received) and prepared.message is message:
            return False
        if link is None or not self.preparations.takes_long_to_answer():
            return False
        self.preparations.put_off(link, Received(link, message))
        self.border.go_on_soon()
        return True

    def on_unsubscribe(self, session: Session, message: m.Unsubscribe, now: int) -> list[Effect]:
        if message.filter in session.subscriptions:
            del session.subscriptions[message.filter]
            self.routing.unsubscribe(session.client, message.filter, session.place)
            if is_address(message.filter):
                session.enlisted = enlisted_among(session.subscriptions, session.enlisted)
            self.border.retained.withdraw(session.place, message.filter)
            self.border.note(session)
        return []

    def on_advertise(self, session: Session, message: m.Advertise, now: int) -> list[Effect]:
        if message.filter not in session.advertisements:
            self.border.check_room(session.advertisements)
            session.advertisements[message.filter] = None
            self.border.note(session)
            self.routing.advertise(session.client, message.filter)
            self.relocation.on_profile(session, now)
        self.watches.watch(session, message.filter, watch=message.watch)
        return []

    def on_unadvertise(self, session: Session, message: m.Unadvertise, now: int) -> list[Effect]:
        if message.filter in session.advertisements:
            self.watches.watch(session, message.filter, watch=False)
            del session.advertisements[message.filter]
            self.border.note(session)
            self.routing.unadvertise(session.client, message.filter)
            self.relocation.on_profile(session, now)
        return []

    def on_publish(self, session: Session, message: m.Publish, now: int) -> list[Effect]:
        return self.relocation.on_publish(session, message, now)

    def on_ack(self, session: Session, message: m.Ack, now: int) -> list[Effect]:
        backlog = session.backlog
        backlog.acknowledge(message.number)
        if message.probe is not None:
            self._ask(session, message.probe, now)
        effects = self.border.push(session, now) if backlog.sent < backlog.last else []
        if session.episode is not None:
            effects += self.backpressure.on_ack(session, now)
        return effects

    def _ask(self, session: Session, probe: m.Probe, now: int) -> None:
        """Tell a client when what it said so far has spread."""
        limit = self.border.limits.confirm_ns
        report_at = now + min(probe.report_ns or limit, limit)
        self.convergence.on_probe(session.place, probe, report_at)
        self.border.deadlines.arm(CONFIRM, session.place, report_at)

    def on_confirm_due(self, place: int, now: int) -> list[Effect]:
        """Tell a client which neighbours have not confirmed in time; it is told again when they have."""
        if place < 0:
            self.watches.settle(~place)
            return []
        session = self.border.at_place(place)
        if session is None:
            return []
        effects: list[Effect] = []
        for late in self.convergence.late(place, now):
            if session.link is not None:
                effects.append(Send(session.link, late))
        report_at = self.convergence.report_at(place)
        if report_at < NEVER:
            self.border.deadlines.arm(CONFIRM, place, report_at)
        return effects

    def on_follow(self, session: Session, message: m.Follow, now: int) -> list[Effect]:
        return self.replicator.on_follow(session, message, now)

    def on_unfollow(self, session: Session, message: m.Unfollow, now: int) -> list[Effect]:
        return self.replicator.on_unfollow(session, message, now)

    def on_enlist(self, session: Session, message: m.Enlist, now: int) -> list[Effect]:
        effects: list[Effect] = []
        self.border.enlist(session, message, group_id(message.group, message.filter))
        said = replace(message, client=session.client, account=session.account)
        for one in self.groups.on_enlist(said):
            effects += self._enlist(one, now)
        return effects

    def _enlist(self, message: m.Enlist, now: int) -> list[Effect]:
        group = group_id(message.group, message.filter)
        there = coordinator(group, [self.name, *self.paths.known()])
        return self._convene(m.Convene(there, message), now)

    def on_state(self, session: Session, message: m.State, now: int) -> list[Effect]:
        self.border.locate(session, message)
        return self.replicator.on_state(session, message, now)

    def on_here_ack(self, session: Session, message: m.HereAck, now: int) -> list[Effect]:
        effects = self.replicator.on_ack(session, message, now)
        if message.asks and session.wait is not None:
            session.wait.asks = True
        elif message.asks and session.place in self.border.thinnings:
            session.asks = True
        elif message.asks and session.link is not None:
            effects.append(Send(session.link, m.CaughtUp(session.backlog.last)))
        return effects


def _is_part_of_attachment(message: m.AnyMessage) -> bool:
    """Whether a client may have said this with its `Attach`, before it could know whether anybody is there."""
    return type(message) is m.Ack and message.probe is not None


def _put_behind(updates: list[Update], errands: list[m.Errand]) -> None:
    """Let the first errand travel with the last update, if they fit a frame together."""
    first, *others = errands
    if updates and _filters(updates[-1]) <= UPDATE_MAX // 4:
        updates[-1] = replace(updates[-1], errands=(first,))
    else:
        others = errands
    updates += [Update(errands=(errand,)) for errand in others]


def _put_last(updates: list[Update], **fields: m.Probe | m.Echo) -> None:
    """Let this travel with the last update to a neighbour, or in one of its own."""
    if updates:
        updates[-1] = replace(updates[-1], **fields)
    else:
        updates.append(replace(Update(), **fields))


def _tells_how_far(reply: m.Reply) -> bool:
    """Whether it is no session, but says how far earlier processes of a client are that began anew."""
    return not reply.found and bool(reply.above or reply.published)


def _filters(update: Update) -> int:
    parts = (update.add_ads, update.add_subs, update.remove_subs, update.remove_ads)
    return sum(map(m.filter_count, parts))


EVENTS: dict[type, Callable[[Broker, Any, int], list[Effect]]] = {
    Received: Broker.on_received,
    Publications: Broker.on_publications,
    LinkUp: Broker.on_link_up,
    LinkAwaited: Broker.on_link_awaited,
    LinkState: Broker.on_link_state,
    LinkDown: Broker.on_link_down,
    Granted: Broker.on_granted,
    Confined: Broker.on_confined,
    Forgotten: Broker.on_forgotten,
    Posted: Broker.on_posted,
    RolledBack: Broker.on_rolled_back,
    Exceeded: Broker.on_exceeded,
    Pressed: Broker.on_pressed,
    Measured: Broker.on_measured,
    Tick: Broker.on_tick,
    Stalled: Broker.on_stalled,
}

TIMERS: dict[int, Callable[[Broker, Any, int], list[Effect]]] = {
    deadlines.WORK: Broker.on_work_due,
    deadlines.PROFILE: Broker.on_profile_due,
    deadlines.SEARCH: Broker.on_search_due,
    deadlines.ANSWER: Broker.on_answer_due,
    deadlines.AWAY: Broker.on_away_due,
    deadlines.VIRTUAL: Broker.on_virtual_due,
    deadlines.BUFFER: Broker.on_buffer_due,
    deadlines.BACKLOG: Broker.on_backlog_due,
    deadlines.TOMBSTONE: Broker.on_tombstone_due,
    deadlines.UPDATE: Broker.on_update_due,
    deadlines.CONFIRM: Broker.on_confirm_due,
    deadlines.RETAINED: Broker.on_retained_due,
    deadlines.SLOWED: Broker.on_slowed_due,
    deadlines.GROUP: Broker.on_group_due,
    deadlines.WILL: Broker.on_will_due,
}

FROM_BROKER: dict[type, Callable[[Broker, BrokerId, Any, int], list[Effect]]] = {
    Notification: Broker.on_notification,
    m.Uncertain: Broker.on_uncertain,
    m.Retained: Broker.on_retained,
    m.Values: Broker.on_values,
    m.Gap: Broker.on_gap,
    Announce: Broker.on_announce,
    m.Update: Broker.on_update,
    m.Tunnel: Broker.on_tunnel,
}

FROM_CLIENT: dict[type, Callable[[Broker, Session, Any, int], list[Effect]]] = {
    m.Detach: Broker.on_detach,
    m.Subscribe: Broker.on_subscribe,
    m.Unsubscribe: Broker.on_unsubscribe,
    m.Advertise: Broker.on_advertise,
    m.Unadvertise: Broker.on_unadvertise,
    m.Publish: Broker.on_publish,
    m.Ack: Broker.on_ack,
    m.Follow: Broker.on_follow,
    m.Unfollow: Broker.on_unfollow,
    m.State: Broker.on_state,
    m.HereAck: Broker.on_here_ack,
    m.Enlist: Broker.on_enlist,
}
