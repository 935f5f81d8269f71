"""The border of a broker: its sessions, and the notifications that reach them.

    Border.route      a notification to every neighbour and session that wants it
    Border.open, end  sessions come and go; their subscriptions and advertisements count in the tables
    Border.push       what may be sent to a client now
    Border.expire_backlog, expire_tombstone   what has become too old

How a session that comes gets what an older one had is the relocation strategy's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from weakref import WeakValueDictionary

from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core import wills
from wayfare.core.backpressure import Backpressure
from wayfare.core.convergence import Convergence
from wayfare.core.costs import Costs, Wants, filters_of
from wayfare.core.counts import MILLISECOND_NS, Histogram
from wayfare.core.deadlines import ANSWER, AWAY, BACKLOG, CONFIRM, TOMBSTONE, WILL, WORK, Deadlines
from wayfare.core.effects import Close, Effect, Send, WillPublished
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.core.history import (
    LARGE,
    Backlog,
    Kept,
    Limits,
    Loss,
    Past,
    Queued,
    Stored,
    newest,
    size_of,
)
from wayfare.core.intake import Intakes
from wayfare.core.late import LATE
from wayfare.core.matching import FilterIndex
from wayfare.core.memory import Memory
from wayfare.core.messages import (
    OVER_NS,
    UNSETTLED_MAX,
    BrokerId,
    ClientId,
    Deliver,
    LinkId,
    Notification,
)
from wayfare.core.places import Places
from wayfare.core.preparing import Preparations
from wayfare.core.reduction import STRATEGIES
from wayfare.core.reserved import CONTROL, REPLY_TO
from wayfare.core.retained import Table, batches
from wayfare.core.routing import NOWHERE, Routing, near_and_here
from wayfare.core.sessions import (
    DEPARTURES_MAX,
    Departure,
    Session,
    Tombstone,
    Wait,
    Wanted,
    enlisted_among,
    wanted_of,
)
from wayfare.core.thinning import Thinning, Thinnings
from wayfare.core.watches import Watches
from wayfare.errors import ProtocolError

OVERTAKEN = "a publisher moved, and its old broker did not answer: some of it may be missing"
WITHDRAWN = "its account may not subscribe to this any more"
AWAITED_MAX = (
    16  # sessions that are passed over when one is evicted, because somebody waits for them
)
LISTENING_PLACE = 2**62  # behind those of all clients
NOTED_EVERY = 16  # marks of a session, as they become more
ROOM = 1_000  # attachments of a process that has not heard of the latest one
TOMBSTONES_MAX = 10_000  # the oldest are forgotten before their time
HANDOVERS_NS = [
    MILLISECOND_NS * ms
    for ms in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
]


class Border:
    """All sessions of one broker."""

    # Without slots, CPython looks up each of more than 30 attributes by its name: 3 % of a delivery
    # to one subscriber.
    __slots__ = (
        "_by_place",
        "_ended",
        "_everybody",
        "_find",
        "_flooding",
        "_floods",
        "_high_bytes",
        "_high_count",
        "_incomplete",
        "_links",
        "_provisional",
        "_remembers",
        "_sessions",
        "_slowed",
        "_store",
        "backpressure",
        "by_link",
        "convergence",
        "costs",
        "cut",
        "deadlines",
        "departed",
        "handovers",
        "intakes",
        "limits",
        "memory",
        "next_place",
        "out_of_reach",
        "past",
        "places",
        "preparations",
        "retained",
        "routing",
        "since",
        "thinnings",
        "tombstones",
        "watches",
        "wills_from",
    )

    def __init__(
        self,
        neighbours: Sequence[BrokerId],
        routing: str,
        limits: Limits,
        *,
        eager: bool = True,
    ) -> None:
        self.limits = limits
        self.memory = Memory(limits.account_memory_bytes)
        self.routing = Routing(neighbours, STRATEGIES[routing], limits.slice_units)
        self.convergence = Convergence(neighbours, eager=eager)
        self._provisional = self.convergence.provisional
        self.watches = Watches(self.routing)
        self.intakes = Intakes(self.routing, limits)
        self.past = Past()
        self._remembers = limits.past_count > 0
        # When links last began from nothing: what the broker there remembered may be lost.
        self.cut: dict[BrokerId, int] = {}
        # Neighbours whose links are down, having begun before, and from when on this broker has certainly
        # heard of clients that had moved while it could not listen: wills wait for that.
        self.out_of_reach: dict[BrokerId, None] = {}
        self.wills_from = 0
        self.places = Places()  # the map, if the broker has one
        self._flooding = False  # what is routed now goes to all brokers
        # Sessions that retained publications may reach before others, by place: until when, and why.
        self._incomplete: dict[int, tuple[int, str]] = {}
        self.by_link: dict[LinkId, Session] = {}
        self.costs = Costs(self.wants_of)
        self.tombstones: dict[ClientId, Tombstone] = {}
        # Sessions of clients that are away, by place, in the order in which these went: those whose clients
        # asked for less time than the limit, and the others.
        self.departed: tuple[dict[int, Session], dict[int, Session]] = ({}, {})
        self._sessions: dict[ClientId, dict[int, Session]] = {}
        # What waits for clients that are away. It lives as long as some backlog refers to it.
        self._store: WeakValueDictionary[tuple[ClientId, int], Stored] = WeakValueDictionary()
        self._floods = STRATEGIES[routing].floods
        self._find = self.routing.destinations.find
        # Where notifications go: first the neighbours, then one place per session, never reused.
        self._links: list[LinkId] = [LinkId(name) for name in neighbours]
        self._everybody = list(range(len(self._links)))
        self._by_place: dict[int, Session] = {}
        # Stands in for a session that ended while its filters still count.
        self._ended = Session(ClientId(""), 0, NOWHERE, 0, limits.marks_age_ns)
        self._ended.wait = Wait({}, 0)
        self.next_place = len(self._links)
        self.deadlines = Deadlines()  # of everything at this broker
        self.retained = Table(neighbours, limits, self.deadlines)
        self.preparations = Preparations(self.routing.destinations, limits, self.retained)
        self.thinnings = Thinnings(limits)
        self.backpressure = Backpressure(limits, self.deadlines, self.of)
        self._slowed = self.backpressure.slowed
        self._high_count = self.backpressure.high_count
        self._high_bytes = self.backpressure.high_bytes
        self.since: int | None = None  # the store is complete from this time on; None: it is new
        self.handovers = Histogram(HANDOVERS_NS)  # how long sessions waited for their old broker

    # Sessions

    def all(self) -> Iterator[Session]:
        for sessions in self._sessions.values():
            yield from sessions.values()

    def has_room(self, client: ClientId) -> bool:
        """Whether this client has a session, or one more may have one."""
        return client in self._sessions or len(self._sessions) < self.limits.sessions

    def longest_away(self) -> Session | None:
        """The session to evict: of clients that are away, first of those that asked for less time.

        A session that another broker waits for ends by itself.
        """
        for sessions in self.departed:
            for session in islice(sessions.values(), AWAITED_MAX):
                if not session.is_awaited():
                    return session
        return None

    def knows(self, client: ClientId) -> bool:
        """Whether it has a session here."""
        return client in self._sessions

    def get(self, client: ClientId, epoch: int) -> Session | None:
        return self._sessions.get(client, {}).get(epoch)

    def at(self, client: ClientId, epoch: int, life: int | None = None) -> Session | None:
        """The session that was the client's at this epoch, also if it was renewed since.

        With `life`, the session of this process: another process of the same name may have used the epoch, too. A session
        that came back with an old store may have been renewed without knowing it, unless its client had left.
        """
        sessions = self.of(client)
        if life is not None:
            sessions = [one for one in sessions if one.life == life]
        found = next((one for one in sessions if one.opened <= epoch <= one.epoch), None)
        old = (one for one in reversed(sessions) if one.rolled_back and not one.leaving)
        return found or next((one for one in old if one.opened <= epoch), None)

    def begun_at(self, client: ClientId, epoch: int) -> Session | None:
        """The session of the process that began anew at this epoch: its first attachments may not have arrived."""
        tombstone = self.tombstones.get(client)
        life = 0 if tombstone is None else tombstone.life
        later = (one for one in reversed(self.of(client)) if life and one.life == life)
        return next((one for one in later if one.epoch >= epoch), None) or self.at(client, epoch)

    def forgot(
        self, client: ClientId, epoch: int, certain: bool, now: int, life: int | None = None
    ) -> bool:
        """Whether this broker does not know what became of the session of this attachment; with `life`, of this process.

        Its session or the tombstone of a session tells. If there is neither, then the attachment never took
        place here unless that is certain, the client was away for too long, or the store is younger than that.
        """
        tombstone = self.tombstones.get(client)
        if tombstone is not None and tombstone.tells_of(epoch):
            return tombstone.partial
        if not certain or self.at(client, epoch, life) is not None:
            return False
        away_ns = self.limits.away_ns + self.limits.tombstone_ns
        return self.since is None or now - self.since <= away_ns

    def left_here(self, client: ClientId, epoch: int, life: int) -> Session | None:
        """The session that this process of a client had here; with epoch 0, it only knows that it had one.

        It was renewed since if the client forgot its last attachments: it goes on from a checkpoint.
        """
        if epoch:
            return self.at(client, epoch, life)
        return next(reversed(self.of(client)), None)

    def of(self, client: ClientId) -> list[Session]:
        """All sessions of a client, the oldest first."""
        return list(self._sessions.get(client, {}).values())

    def wants_of(self, client: ClientId) -> Wants:
        """What all its sessions here subscribe to, and the queue groups of their members."""
        wants: Wants = {}
        for session in self.of(client):
            wants |= filters_of(session.subscriptions)
            wants |= session.enlisted.values()
        return wants

    def enlist(self, session: Session, message: m.Enlist, group: str) -> None:
        """A session has a member in a queue group, until it does not listen at the address of the member any more."""
        if message.member not in session.enlisted:
            self.check_room(session.enlisted)
        session.enlisted[message.member] = group, message.filter
        self.note(session)

    def is_stale(self, client: ClientId, epoch: int) -> bool:
        """Whether a later attachment of the client was here, or asked here."""
        tombstone = self.tombstones.get(client)
        if tombstone is not None and epoch <= tombstone.epoch:
            return True
        return any(session.epoch >= epoch for session in self.of(client))

    def reached(self, client: ClientId, life: int) -> int:
        """The highest number that other processes of this client may come to, as far as they are known here; or 0.

        It counts attachments and publications. Until they hear of the latest process, they go on.
        """
        known, tombstone = [0], self.tombstones.get(client)
        if tombstone is not None and tombstone.life != life:
            known += tombstone.epoch, tombstone.published, tombstone.began
        for session in self.of(client):
            if session.life != life:
                known += session.epoch, session.published
                if session.wait is not None:
                    known += (one.number for one, _ in session.wait.publications[-1:])
        return max(known) + ROOM if any(known) else 0

    def published(self, client: ClientId) -> int:
        """The last publication of this client that was accepted here, by any process of it."""
        tombstone = self.tombstones.get(client)
        known = [one.published for one in self.of(client)]
        return max([*known, 0 if tombstone is None else tombstone.published])

    def latest(self, client: ClientId) -> int:
        """The last attachment of this client that was here, or asked here; or 0."""
        tombstone = self.tombstones.get(client)
        known = [one.epoch for one in self.of(client)]
        return max([*known, 0 if tombstone is None else tombstone.epoch])

    def contested(self, message: m.Attach) -> int:
        """The number that another process of this client has reached, which this one has to exceed."""
        known = [one.above for one in self.of(message.client) if one.life == message.life]
        return max(known, default=self.above(message.client, message.life))

    def above(self, client: ClientId, life: int) -> int:
        """What the latest process of a client has to exceed, and may not have heard of; 0: nothing."""
        tombstone = self.tombstones.get(client)
        if tombstone is None or not life or tombstone.life != life:
            return 0
        return tombstone.above

    def is_latest(self, session: Session) -> bool:
        """Whether a session is that of the latest process which began anew under its name, as is known here."""
        tombstone = self.tombstones.get(session.client)
        return tombstone is not None and session.life > 0 and session.life == tombstone.life

    def is_another(self, message: m.Attach) -> bool:
        """Whether a later process of this client has begun anew, as is known here.

        The latest one may have reached no higher number: its clock is behind, and all brokers had forgotten this one.
        """
        tombstone = self.tombstones.get(message.client)
        if tombstone is None or message.life in tombstone.over:
            return tombstone is not None
        if message.anew or not (message.welcomed and message.previous):
            return False
        return tombstone.began <= message.epoch and is_earlier(
            message.life, _earliest(message), tombstone.life, tombstone.began
        )

    def open(self, message: m.Attach, link: LinkId | None) -> Session:
        limits = self.limits
        session = Session(
            message.client,
            message.epoch,
            self.next_place,
            message.delivered,
            limits.marks_age_ns,
            self.memory,
        )
        session.welcomed, session.life = message.welcomed, message.life
        session.earliest = _earliest(message) or message.epoch
        self.next_place += 1
        self._by_place[session.place] = session
        self._sessions.setdefault(session.client, {})[session.epoch] = session
        session.home = message.home
        self.set_window(session, self._window(message))
        session.expires_ns, session.failover_ns = message.expires_ns, message.failover_ns
        session.late = message.late
        if link is not None:
            self.connect(session, link)
        self._take_profile(session, message)
        return session

    def listen(self, name: ClientId) -> Session:
        """A session of nobody: what it subscribes to is held for whoever reads it, at once."""
        session = Session(name, 0, LISTENING_PLACE, 0, self.limits.marks_age_ns, self.memory)
        session.wait = Wait({}, 0)
        self._by_place[session.place] = session
        return session

    def seat(self, session: Session) -> None:
        """A session without a client gets its place: what it subscribes to is held until the broker reads it."""
        self._by_place[session.place] = session

    def unseat(self, session: Session) -> None:
        """It has subscribed to nothing any more."""
        del self._by_place[session.place]
        self._incomplete.pop(session.place, None)

    def renew(self, session: Session, message: m.Attach, link: LinkId) -> None:
        """The same client again, at a later epoch: what the session has is still good."""
        sessions = self._sessions[session.client]
        del sessions[session.epoch]
        session.epoch, session.home = message.epoch, message.home
        session.rolled_back = session.above = 0
        sessions[session.epoch] = session
        self.set_window(session, self._window(message))
        session.failover_ns = message.failover_ns
        session.late = message.late
        self.convergence.forget(session.place)
        self.connect(session, link)
        session.expires_ns = message.expires_ns  # until here it counts as it departed
        self._take_profile(session, message)

    def _take_profile(self, session: Session, message: m.Attach) -> None:
        offered = message.advertisements
        watched = [offered[place] for place in message.watched]
        session.will = message.will
        followed = message.followed
        self.locate(session, (message.state or m.NOWHERE) if followed is None else followed.state)
        wanted = wanted_of(message.subscriptions, message.terms)
        self.set_profile(session, wanted, offered, watched)

    def locate(self, session: Session, state: m.State) -> None:
        """The client of a session is there, as far as it matters which notifications are of use to it."""
        located = self.places.located(state)
        session.state = m.State(located.location, located.position)

    def _window(self, message: m.Attach) -> int:
        """A client may have more on its way to it, but no more than is kept for it anyway."""
        return max(self.limits.window, min(message.window, self.limits.backlog_count))

    def set_window(self, session: Session, window: int) -> None:
        """So many deliveries may be on their way, and in proportion so many bytes.

        Who asks for all that is kept, as readers do that acknowledge only whole batches, gets all of it.
        """
        limits, session.window = self.limits, window
        session.window_bytes = limits.window_bytes
        more = max(0, limits.backlog_bytes - limits.window_bytes)
        if window > limits.window:
            share = (window - limits.window) / (limits.backlog_count - limits.window)
            session.window_bytes += int(more * min(1.0, share))

    def end(self, session: Session, now: int, moved_to: Departure | None = None) -> list[Effect]:
        """Forget a session; what is remembered is a tombstone."""
        effects = self.disconnect(session, f"{session.client} is elsewhere now", now)
        self.set_profile(session, {}, ())
        self._let_go(session)
        sessions = self._sessions[session.client]
        del sessions[session.epoch]
        if not sessions:
            del self._sessions[session.client]
        self._vacate(session.place)
        self._departed_like(session).pop(session.place, None)
        self.thinnings.stop(session.place)
        self.convergence.forget(session.place)
        self.retained.forget(session.place)
        self.deadlines.disarm(AWAY, session.place)
        self.deadlines.disarm(WILL, session.place)
        self.deadlines.disarm(CONFIRM, session.place)
        self.deadlines.disarm(CONFIRM, ~session.place)
        if session.ages:
            self.deadlines.disarm(BACKLOG, session.place)
        if session.wait is not None:
            self.deadlines.disarm(ANSWER, session.place)
        partial = session.is_partial() and moved_to is None  # else the next one knows
        self.bury(
            session.client,
            session.epoch,
            now,
            session.published,
            moved_to,
            partial=partial,
            opened=0 if session.rolled_back else session.opened,
            above=0 if moved_to is not None else session.above,  # the next one knows
            unsettled=tuple(session.unsettled),
        )
        return effects

    def _vacate(self, place: int) -> None:
        """The session of this place is no more; what still goes there goes to nobody."""
        self._incomplete.pop(place, None)
        if self.intakes.is_removing(place):
            self._by_place[place] = self._ended
        else:
            del self._by_place[place]

    def go_on_soon(self) -> None:
        """Some work was put off: it goes on as soon as others had their turn."""
        self.deadlines.arm(WORK, None, 0)

    def go_on(self) -> None:
        """Drop a slice of the filters that do not count any more."""
        for place in self.intakes.go_on():
            if self._by_place.get(place) is self._ended:
                self._vacate(place)

    def _let_go(self, session: Session) -> None:
        """What an ended session kept is not kept any more."""
        session.backlog.clear()
        if session.wait is not None:
            self.let_go(session.wait)
        self.memory.profiles -= session.profile
        self.memory.forget(session)

    def let_go(self, wait: Wait) -> None:
        """What a session kept while it waited is not kept there any more."""
        for stored in wait.kept():
            self.memory.let_go(stored)
        self.memory.publications -= wait.publications_bytes()

    def keep(self, wait: Wait) -> None:
        """A session keeps this while it waits."""
        for stored in wait.kept():
            self.memory.keep(stored)
        self.memory.publications += wait.publications_bytes()

    def note(self, session: Session) -> None:
        """The filters or marks of a session have changed."""
        before, session.profile = session.profile, session.profile_bytes()
        self.memory.profiles += session.profile - before
        self.memory.note(session)

    def begin_backlog(self, session: Session, delivered: int) -> None:
        """Number deliveries from here on; what the backlog kept so far is not kept any more."""
        session.backlog.clear()
        may_repeat = session.backlog.may_repeat
        session.backlog = Backlog(delivered, self.memory, session)
        session.backlog.may_repeat = may_repeat

    def bury(
        self,
        client: ClientId,
        epoch: int,
        now: int,
        published: int = 0,
        moved_to: Departure | None = None,
        began: int = 0,
        *,
        partial: bool = False,
        opened: int = 0,
        life: int = 0,
        above: int = 0,
        unsettled: tuple[int, ...] = (),
    ) -> None:
        """No attachment up to this epoch opens a session any more.

        With `opened`, because a session has ended that was opened at that epoch.
        """
        departures: tuple[Departure, ...] = () if moved_to is None else (moved_to,)
        old, over, first = self.tombstones.pop(client, None), tuple[int, ...](), 0
        if old is not None:
            epoch, departures = max(epoch, old.epoch), old.departures_with(departures)
            published, above = max(published, old.published), max(above, old.above)
            over = old.over
            unsettled = tuple({**dict.fromkeys(old.unsettled), **dict.fromkeys(unsettled)})
            if began <= old.began:
                began, life, first = old.began, old.life, old.first
            elif life and old.life == life:
                first = old.first or old.began
            elif old.life:
                over = (old.life, *(one for one in over if one != life))[:DEPARTURES_MAX]
            partial |= old.partial
            opened = old.known_since or opened
        until = now + self.limits.tombstone_ns
        last, earlier = (departures[0], departures[1:]) if departures else (None, ())
        self.tombstones[client] = Tombstone(
            until,
            epoch,
            published,
            last,
            began,
            earlier,
            partial,
            opened,
            life,
            over,
            first,
            above,
            unsettled[-UNSETTLED_MAX:],
        )
        self.deadlines.arm(TOMBSTONE, client, until)
        if len(self.tombstones) > TOMBSTONES_MAX:
            oldest = next(iter(self.tombstones))
            del self.tombstones[oldest]
            self.deadlines.disarm(TOMBSTONE, oldest)

    def begun(self) -> list[m.Began]:
        """The clients of which it is remembered that they began anew."""
        known = self.tombstones.items()
        return [m.Began(client, one.began, life=one.life) for client, one in known if one.began]

    def connect(self, session: Session, link: LinkId) -> None:
        session.link = link
        self._departed_like(session).pop(session.place, None)
        session.backlog.go_away(False)
        self.by_link[link] = session
        self.deadlines.disarm(AWAY, session.place)

    def disconnect(
        self, session: Session, why: str, now: int, *, again: bool = False
    ) -> list[Effect]:
        """Close the connection of a session, if it has one."""
        link = session.link
        if link is None:
            return []
        self.lose_link(session, now)
        return [Close(link, why, again=again)]

    def lose_link(self, session: Session, now: int) -> None:
        assert session.link is not None
        del self.by_link[session.link]
        self.thinnings.stop(session.place)
        session.asks = False
        self.backpressure.on_link_down(session.client, session.link)
        self.backpressure.end(session, now)
        session.link, session.away_since = None, now
        session.away_until = now + self.away_ns(session)
        self.depart(session)
        session.backlog.go_away(True)
        self.deadlines.arm(AWAY, session.place, session.away_until)
        if session.will is not None:
            session.will_at = now + session.will.delay_ns
            self.arm_will(session)

    def expect_elsewhere(self, session: Session, now: int) -> None:
        """A client has said that it moves: its will waits until it had time to attach, however short the delay is."""
        if session.will is not None and session.link is None:
            session.will_at = max(session.will_at, now + self.limits.greeting_ns)
            self.arm_will(session)

    def will_due_at(self, session: Session) -> int | None:
        """When the will of a session is to be published; None: it is not, or not before the session is open.

        A broker that is cut off from a neighbour, or was, or did not run, may not have heard yet that the client is
        elsewhere. It waits for that, but for no longer than others wait for its answer.
        """
        due = wills.due_at(session)
        if due is None:
            return None
        latest = due + self.limits.answer_ns
        return latest if self.out_of_reach else max(due, min(self.wills_from, latest))

    def lose_neighbour(self, neighbour: BrokerId) -> None:
        """The link to a neighbour is down; one that was never there may never come."""
        has_begun = self.convergence.has_begun(neighbour)
        if has_begun and neighbour not in self.convergence.awaited:
            self.out_of_reach[neighbour] = None

    def reach_neighbour(self, neighbour: BrokerId, now: int) -> None:
        """The link to a neighbour is up again: what waited there arrives from now on."""
        if neighbour in self.out_of_reach:
            del self.out_of_reach[neighbour]
            self.delay_wills(now)

    def delay_wills(self, now: int) -> None:
        """This broker could not listen: who has moved meanwhile has time to be heard of."""
        self.wills_from = now + self.limits.greeting_ns
        for sessions in self.departed:
            for session in sessions.values():
                self.arm_will(session)

    def arm_will(self, session: Session) -> None:
        """Publish the will of a session whose client is away, when its time has come."""
        due = self.will_due_at(session)
        if due is not None:
            self.deadlines.arm(WILL, session.place, due)

    def on_will_due(self, session: Session, now: int) -> list[Effect]:
        due = self.will_due_at(session)
        if due is None or due > now:
            self.arm_will(session)
            return []
        return self.publish_will(session, now)

    def publish_will(self, session: Session, now: int) -> list[Effect]:
        """Publish the will of a session whose client is gone, unless a later attachment of it is here.

        If its old broker has not answered, an earlier will may still be on its way, and come too late behind this one.
        """
        will = session.will
        later = any(one.epoch > session.epoch for one in self.of(session.client))
        if will is None or later or not wills.is_gone(session):
            return []
        session.will = None
        self.note(session)
        notification = wills.notification_of(session, will)
        doubted = session.doubt is not None and session.doubt.until > now
        since = notification.number if doubted or session.is_waiting() else 0
        published = WillPublished(session.client, notification, will.retain)
        if will.retain is not None:
            value = self.retained.accept(notification, will.retain, session.account, since)
            return [published, *self.route_retained(value, None, now)]
        if since:
            uncertain = m.Uncertain(notification, since)
            return [published, *self.route_uncertain(uncertain, None, now)]
        return [published, *self.route(notification, None, now)]

    def depart(self, session: Session) -> None:
        """Its client is away: the last one so far."""
        self._departed_like(session)[session.place] = session

    def _departed_like(self, session: Session) -> dict[int, Session]:
        return self.departed[self.away_ns(session) == self.limits.away_ns]

    def away_ns(self, session: Session) -> int:
        """How long its client may be away: as it asked for, within the limit."""
        limit = self.limits.away_ns
        return min(session.expires_ns or limit, limit)

    def set_profile(
        self,
        session: Session,
        wanted: Wanted,
        advertisements: Sequence[Filter],
        watched: Iterable[Filter] = (),
        *,
        at_once: bool = False,
    ) -> None:
        """Make these the client's subscriptions and advertisements, additions first.

        Unless it is to be `at_once`, many filters that go may count for a while.
        """
        client, place, routing = session.client, session.place, self.routing
        offered = dict.fromkeys(advertisements)
        for filter in offered:
            if filter not in session.advertisements:
                routing.advertise(client, filter)
        for filter in wanted:
            if filter not in session.subscriptions:
                routing.subscribe(client, filter, place)
        unwanted = [filter for filter in session.subscriptions if filter not in wanted]
        withdrawn = [filter for filter in session.advertisements if filter not in offered]
        if not at_once and self.intakes.is_large(unwanted, withdrawn):
            self.intakes.drop(client, place, withdrawn, unwanted)
            self.go_on_soon()
        else:
            for filter in unwanted:
                routing.unsubscribe(client, filter, place)
            for filter in withdrawn:
                routing.unadvertise(client, filter)
        session.subscriptions, session.advertisements = wanted, offered
        session.enlisted = enlisted_among(wanted, session.enlisted)
        self.watches.set(session, watched)
        self.note(session)

    def confine(self, session: Session, grants: Grants) -> str:
        """Withdraw what the rules do not allow any more. Returns the first reason, or ""."""
        wanted = {
            one: terms
            for one, terms in session.subscriptions.items()
            if grants.unsubscribable((one,)) is None
        }
        offered = [one for one in session.advertisements if grants.unadvertisable((one,)) is None]
        refused = next((one for one in session.subscriptions if one not in wanted), None)
        reason = grants.unsubscribable((refused,)) if refused is not None else None
        reason = reason or grants.unadvertisable(session.advertisements)
        if reason is None:
            return ""
        if refused is not None:
            index: FilterIndex[Filter] = FilterIndex()
            for one in wanted:
                index.add(one, one)
            session.backlog.withdraw(lambda kept: bool(index.find(kept.attributes)), WITHDRAWN)
        watched = [one for one in session.watched if one in offered]
        self.set_profile(session, wanted, offered, watched, at_once=True)
        return reason

    def drop_will(self, session: Session, grants: Grants) -> str:
        """Withdraw the will if the rules do not allow it any more. Returns the reason, or ""."""
        reason = grants.unpublishable(session.will) if session.will is not None else None
        if reason is None:
            return ""
        session.will = None
        self.note(session)
        return reason

    # Notifications

    def route(self, notification: Notification, came_from: LinkId | None, now: int) -> list[Effect]:
        """Send a notification on to every neighbour and session that wants it."""
        if self._remembers:
            self.past.put(notification, now, self.limits)
        found = self._find(notification.attributes)
        if len(found) == 1:  # the usual case
            near, here = found[0].near, found[0].here
        else:
            near, here = near_and_here(found)
        links = self._links
        if self._floods:
            near = self._everybody
        elif self._provisional.entries:
            near = self._provisional.join(near, notification.attributes)
        effects: list[Effect] = []
        for place in near:  # no comprehension: a call would be the longer part of it
            link = links[place]
            if link != came_from:
                effects.append(Send(link, notification))
        if came_from is not None and self._slowed and notification.publisher in self._slowed:
            effects += self.backpressure.follow(notification.publisher, came_from, now)
        if not here:
            return effects
        limits, by_place = self.limits, self._by_place
        size = size_of(notification)
        stored = Stored(notification, size)
        large, anywhere = size > LARGE, notification.area is None
        publisher, number = notification.publisher, notification.number
        for place in here:
            session = by_place[place]
            if session.wait is not None:
                self._hold(session, (stored,), now)
                continue
            recent = session.marks.recent
            if 0 < recent.get(publisher, 0) < number:  # the usual case of what follows
                recent[publisher] = number
            elif not session.marks.pass_on(notification, now):
                continue
            elif not len(recent) % NOTED_EVERY:
                self.note(session)
            if not session.ages:
                self._time_backlog(session, now)
            connection, backlog = session.link, session.backlog
            last, kept = backlog.last, backlog.bytes
            if connection is None:
                backlog.put(self.share(stored), now, limits)
            elif (
                last == backlog.sent < backlog.acked + session.window
                and kept + backlog.gone_bytes < session.window_bytes
                and anywhere
            ):
                unacked = backlog.unacked
                if large or kept + size > backlog.most or len(unacked) >= backlog.many:
                    if large:
                        backlog.enlarge(stored)
                    deliver = backlog.pass_on(stored, now, limits)
                else:  # the same without the call, which is 5 % of a delivery
                    delivery = backlog.last = backlog.sent = last + 1
                    backlog.bytes = kept + size
                    unacked.append((delivery, stored, now))
                    deliver = Deliver(delivery, notification)
                effects.append(Send(connection, deliver))
            else:
                if (
                    session.episode is not None
                    or len(backlog.waiting) >= self._high_count
                    or backlog.bytes + stored.size > self._high_bytes
                ):
                    effects += self.backpressure.on_queue(session, stored, came_from, now)
                backlog.put(stored, now, limits)
                effects += self.push(session, now)
        return effects

    def _hold(self, session: Session, some: Iterable[Stored], now: int) -> None:
        wait = session.wait
        assert wait is not None
        if session is self._ended:
            return
        for stored in some:
            wait.held.append((stored, now))
            if self._flooding:
                wait.flooded[stored.notification.publisher, stored.notification.number] = None
            wait.bytes += stored.size
            self.memory.keep(stored)
        if session.place < LISTENING_PLACE:
            self.memory.note(session)
        if self.is_full(wait):  # it waits no longer
            self.deadlines.arm(ANSWER, session.place, now)

    def is_full(self, wait: Wait) -> bool:
        return len(wait.held) > self.limits.held_count or wait.bytes > self.limits.backlog_bytes

    def share(self, stored: Stored) -> Stored:
        """The one copy of a notification that waits here, for however many clients."""
        key = stored.notification.publisher, stored.notification.number
        return self._store.setdefault(key, stored)

    def lose(self, session: Session, why: str) -> None:
        """An unknown number of notifications is lost to a session: its client is told in their place."""
        if session.wait is None:
            session.backlog.lose(1, why, exact=False)
        elif session.place != LISTENING_PLACE:  # the replicator tells its clients itself
            session.wait.lose(Loss(1, why, exact=False))

    def shared(self, queue: list[Queued]) -> list[Queued]:
        """The same, but of each notification the one copy that waits here."""
        return [
            (self.share(one) if isinstance(one, Stored) and not one.ask else one, put)
            for one, put in queue
        ]

    def put(self, session: Session, queue: list[Queued]) -> None:
        """Queue what another session of the client had, or this one remembers."""
        self.put_shared(session, self.shared(queue))

    def put_shared(self, session: Session, queue: list[Queued]) -> None:
        """As `put`, of copies that others may have, too: as they were routed, or `shared` before."""
        backlog, limits = session.backlog, self.limits
        kept: list[Kept] = []
        for one, put in queue:
            if isinstance(one, Loss):
                backlog.put_all(kept, limits)
                kept.clear()
                backlog.lose(one.count, one.why, exact=one.exact)
            else:
                kept.append((one, put))
        backlog.put_all(kept, limits)
        times = [put for one, put in queue if isinstance(one, Stored)]
        if times:
            self._time_backlog(session, min(times))

    def put_thinned(self, session: Session, queue: list[Queued], now: int) -> None:
        """Queue what the terms of its subscriptions leave of this: now, or when that is known."""
        queue = self.shared(queue)
        thinning = Thinning(queue, session.subscriptions, now, self.limits)
        if self.thinnings.is_done(thinning):
            self.put_shared(session, thinning.chosen())
        else:
            self.put_shared(session, queue)
            self.thin(session, [(queue, thinning)])

    def thin(self, session: Session, queues: list[tuple[list[Queued], Thinning[Queued]]]) -> None:
        """Leave out what is not wanted of these, which a backlog has, before any of it is sent."""
        if not queues:
            return
        (queue, thinning), *others = queues

        def leave_out(now: int) -> list[Effect]:
            session.backlog.leave_out(thinning.unwanted(queue))
            if others:
                self.thin(session, others)
                return []
            asks, session.asks = session.asks, False
            effects = self.push(session, now)
            if asks and session.link is not None:
                effects.append(Send(session.link, m.CaughtUp(session.backlog.last)))
            return effects

        self.thinnings.go_on_with(session.place, thinning, leave_out)
        self.go_on_soon()

    def push(self, session: Session, now: int) -> list[Effect]:
        """Send a client what may be sent now."""
        link = session.link
        if link is None or session.wait is not None or session.place in self.thinnings:
            return []
        return [
            Send(link, message)
            for message in session.backlog.take(
                session.window, now, session.state, session.window_bytes
            )
        ]

    def tell_unsettled(self, session: Session) -> list[Effect]:
        """Have a client note what it gets, in front of that: what it lost may be settled later."""
        if session.link is None or session.wait is not None:
            return []
        return [Send(session.link, m.Settled(0, gap, more=True)) for gap in session.unsettled]

    def accept(self, session: Session, message: m.Publish, now: int) -> list[Effect]:
        """Publish for a client that is here, and tell it so."""
        effects = self.publish(session, message, now)
        assert session.link is not None
        effects.append(Send(session.link, m.Published(session.published)))
        return effects

    def publish(self, session: Session, message: m.Publish, now: int) -> list[Effect]:
        """Accept a client's publication, unless it was accepted before."""
        number, expires_ns = message.number, message.expires_ns
        if number <= session.published:
            return []
        session.published = number
        if expires_ns == OVER_NS:
            return []
        notification = Notification(
            session.client,
            number,
            message.attributes,
            message.payload,
            message.published_ns,
            expires_ns,
            message.area,
        )
        doubt, retain = session.doubt, message.retain
        if doubt is not None or retain is not None:
            since = 0
            if doubt is not None and doubt.until > now:
                since = doubt.since = doubt.since or number
            if retain is not None:
                value = self.retained.accept(notification, retain, session.account, since)
                return self.route_retained(value, None, now)
            if since:
                return self.route_uncertain(m.Uncertain(notification, since), None, now)
        effects = self.route(notification, None, now)
        if not effects and REPLY_TO in message.attributes:
            return self._answer_unheard(session, notification)
        return effects

    def _answer_unheard(self, session: Session, request: Notification) -> list[Effect]:
        """Tell a requester at once that nobody subscribes to its request.

        The tables say so: as long as they are not settled, the request would have gone to the neighbours.
        """
        if session.link is None or self._find(request.attributes):
            return []
        return [Send(session.link, m.NoResponders(request.number))]

    def answer(
        self, session: Session, asks: dict[int, Filter], delivered: int, now: int
    ) -> list[Effect]:
        """Send a session the current values for new subscriptions, each request once.

        What its client gets anyway after this delivery, it gets by these subscriptions, too.
        """
        asks = {ask: filter for ask, filter in asks.items() if ask > session.asked}
        session.asked = max(session.asked, *asks, 0)
        self.retained.expect(session.place, asks)
        if session.wait is not None:
            session.wait.values.update(asks)
        wanted = self.retained.matching(asks, now)
        if not wanted:
            return []
        coming = session.undelivered(delivered, {one.notification.number for one in wanted})
        if coming:
            wanted = [
                one
                for one in wanted
                if (one.notification.publisher, one.notification.number) not in coming
            ]
        self._give(session, wanted, now)
        return self.push(session, now)

    def with_current_values(self, wait: Wait, asked: int, now: int) -> list[Queued]:
        """What is held, with the values that are current by now for requests after this one.

        A value that came meanwhile is held as a notification. An older session may have had that before the
        subscription was made, so it is there once more, as a current value, behind itself. Not if it is there
        already: a client whose session has ended publishes again what was not confirmed to it.
        """
        if not any(isinstance(one, Stored) and one.ask for one, _ in wait.held):
            return wait.held
        asks = {ask: filter for ask, filter in wait.values.items() if ask > asked}
        current: dict[tuple[ClientId, int], list[int]] = {}
        for value in self.retained.matching(asks, now):
            key = value.notification.publisher, value.notification.number
            current.setdefault(key, []).append(value.ask)
        held: list[Queued] = []
        for one, came in wait.held:
            if isinstance(one, Loss) or one.ask >= LATE:
                held.append((one, came))
                continue
            wanted = current.get((one.notification.publisher, one.notification.number), [])
            if not one.ask:
                copies = [Stored(one.notification, one.size, ask=ask) for ask in wanted]
                held += [(one, came), *((copy, came) for copy in copies)]
                wanted.clear()
            elif one.ask in wanted:
                held.append((one, came))
                wanted.remove(one.ask)
        return held

    def _give(self, session: Session, values: list[Stored], now: int) -> None:
        """Queue current values for a session."""
        if session.wait is not None:
            self._hold(session, values, now)
            return
        session.marks.raise_to(newest(values))
        self.backpressure.expect(session, len(values), now)
        session.backlog.put_all([(one, now) for one in values], self.limits)
        self._time_backlog(session, now)

    def merge(
        self, values: Sequence[m.Retained], came_from: LinkId, now: int
    ) -> tuple[list[Effect], Sequence[m.Retained]]:
        """Take current values of a neighbour, and send on what others may not know.

        If many requests want them, this takes a slice of them, and returns the others.
        """
        news, mine, meter = list[m.Retained](), list[m.Retained](), self.routing.meter
        given: dict[int, list[Stored]] = {}
        taken = 0
        for value in values:
            new, again = self.retained.merge(value, now)
            taken += 1
            if again is not None:
                mine.append(again)
            if new is not None:
                news.append(new)
                requests, units = self.retained.expected(new, self._find)
                meter.left -= units
                size = size_of(new.notification)
                for place, ask in requests:
                    given.setdefault(place, []).append(Stored(new.notification, size, ask=ask))
            if meter.left <= 0:
                break
        effects: list[Effect] = []
        for link in self._links:
            told = mine if link == came_from else [*news, *mine]
            effects += [Send(link, one) for one in batches(told)]
        for place, some in given.items():
            session = self._by_place.get(place)
            if session is not None:
                self._give(session, some, now)
                effects += self.push(session, now)
        return effects, values[taken:]

    def route_retained(self, value: m.Retained, came_from: LinkId | None, now: int) -> list[Effect]:
        """Keep a current value, and send it on to every neighbour and to the sessions that want it."""
        self.retained.put(value, now)
        notification = value.notification
        if value.since:
            self._doubt(notification, value.since)
        effects: list[Effect] = [Send(link, value) for link in self._links if link != came_from]
        self._flooding = True
        before = self._incomplete_sessions(now)
        routed = self.route(notification, came_from, now)
        for session, last in before:
            if session.backlog.last > last:  # others behind this one may be missing
                session.backlog.lose(1, self._incomplete[session.place][1], exact=False)
                routed += self.push(session, now)
        self._flooding = False
        return effects + [
            effect
            for effect in routed
            if not (type(effect) is Send and effect.message is notification)
        ]

    def expect_incomplete(self, session: Session, why: str, now: int) -> None:
        """A session waits no longer for its old broker, and its filters may not be in effect everywhere yet.

        Retained publications reach it all the same, as they go to all brokers. What is between them may be missing.
        """
        self._incomplete[session.place] = now + self.limits.delay_ns, why

    def _incomplete_sessions(self, now: int) -> list[tuple[Session, int]]:
        """Those sessions, and how much each got."""
        if not self._incomplete:
            return []
        for place, (until, _) in list(self._incomplete.items()):
            if until <= now:
                del self._incomplete[place]
        sessions = map(self._by_place.__getitem__, self._incomplete)
        return [(one, one.backlog.last) for one in sessions]

    def _doubt(self, notification: Notification, since: int) -> None:
        """Report to the clients that got nothing of its publisher since then that something may be missing.

        What queue groups and their members say to each other is said again until it is answered.
        """
        if not CONTROL.isdisjoint(notification.attributes):
            return
        _, here = near_and_here(self._find(notification.attributes))
        for place in here:
            session = self._by_place[place]
            if session.last_of(notification.publisher) < since:
                self.lose(session, OVERTAKEN)

    def route_uncertain(
        self, message: m.Uncertain, came_from: LinkId | None, now: int
    ) -> list[Effect]:
        """Forward a notification in doubt; clients that got nothing of its publisher since then get a gap."""
        notification = message.notification
        self._doubt(notification, message.since)
        return [
            Send(effect.link, message)
            if type(effect) is Send and effect.message is notification
            else effect
            for effect in self.route(notification, came_from, now)
        ]

    def lose_all(self, why: str, now: int) -> list[Effect]:
        """Something that was to come from a neighbour is lost: tell every session that wants anything.

        Nobody here may know yet of an advertisement that is lost, with the first publications behind it.
        """
        places = list(self._by_place) if self._floods else self.routing.destinations.everybody()
        effects: list[Effect] = []
        for session in map(self._by_place.__getitem__, places):
            self.lose(session, why)
            effects += self.push(session, now)
        return effects

    def roll_back(self, why: str, now: int) -> list[Effect]:
        """All sessions are as they once were: report that, and know those again that went on since."""
        effects: list[Effect] = []
        for client, tombstone in self.tombstones.items():
            self.tombstones[client] = replace(tombstone, known_since=0)
        for session in list(self._by_place.values()):
            session.backlog.lose(1, why, exact=False)
            if session.place != LISTENING_PLACE:
                if session.wait is not None:  # it may also be missing behind what is held
                    session.wait.lose(Loss(1, why, exact=False))
                if session.link is None:
                    session.rolled_back = session.backlog.last
            effects += self.push(session, now)
        return effects

    # Time

    def at_place(self, place: int) -> Session | None:
        """The session whose notifications go to this place; None if it has ended."""
        return self._by_place.get(place)

    def _time_backlog(self, session: Session, put: int) -> None:
        """Expire what was put into the backlog at this time when it is too old."""
        session.ages = True
        self.deadlines.arm(BACKLOG, session.place, put + self.limits.backlog_age_ns)

    def expire_backlog(self, place: int, now: int) -> list[Effect]:
        """Drop what is too old for a session, and report it."""
        session = self._by_place.get(place)
        if session is None:
            return []
        backlog = session.backlog
        backlog.expire(now, self.limits)
        session.ages = False
        if backlog:
            self._time_backlog(session, backlog.oldest())
        return self.push(session, now)

    def expire_tombstone(self, client: ClientId, now: int) -> None:
        tombstone = self.tombstones.get(client)
        if tombstone is None:
            return
        if tombstone.until > now:
            self.deadlines.arm(TOMBSTONE, client, tombstone.until)
        else:
            del self.tombstones[client]

    def arm_all(self) -> None:
        """Arm the timers of everything that was loaded."""
        for client, tombstone in self.tombstones.items():
            self.deadlines.arm(TOMBSTONE, client, tombstone.until)
        for session in self.all():
            if session.backlog:
                self._time_backlog(session, session.backlog.oldest())
            if session.link is None:
                self.deadlines.arm(AWAY, session.place, session.away_until)
                self.arm_will(session)
            if session.wait is not None:
                asked = [one.until for one in session.wait.queries.values() if one.left]
                self.deadlines.arm(ANSWER, session.place, min([session.wait.until, *asked]))

    def extend_waits(self, by_ns: int, now: int) -> None:
        """Let sessions wait longer for their old brokers, but no longer from now than a new one.

        Likewise for clients that are away: they may have come back, and were not heard.
        """
        for session in self.all():
            if session.link is None:
                longest = now + self.away_ns(session)
                session.away_until = min(session.away_until + by_ns, longest)
                if (
                    session.will is not None
                ):  # who said that it moves was given longer than the delay
                    patience_ns = session.will_at - session.away_since
                    session.will_at = min(session.will_at + by_ns, now + patience_ns)
            if session.wait is not None:
                latest = now + self.patience_ns(session, session.wait)
                session.wait.until = min(session.wait.until + by_ns, latest)
        self.delay_wills(now)

    def patience_ns(self, session: Session, wait: Wait) -> int:
        """How long a session waits for its old broker."""
        if wait.unreachable:
            return min(session.failover_ns, self.limits.failover_ns)
        return self.limits.answer_ns

    def check_room(self, held: Collection[Filter] | Collection[str]) -> None:
        if len(held) >= self.limits.filters:
            raise ProtocolError(f"a client has at most {self.limits.filters} filters of a kind")


def _earliest(message: m.Attach) -> int:
    """The first attachment of a process that one of its attachments tells of; 0: it has forgotten the number."""
    return message.previous[-1][1] if message.previous else message.epoch


def is_earlier(life: int, earliest: int, began_life: int, began: int) -> bool:
    """Whether a process that was there at `earliest` is another one than that which began anew, and was there before.

    A process without a `life` has never begun anew, so it is earlier than any other, whatever number it has reached.
    """
    return began_life not in (0, life) and (not life or earliest < began)
