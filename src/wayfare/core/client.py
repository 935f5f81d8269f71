"""The local broker: the client's side of the protocol, part of the client library.

It remembers what the application subscribed to and advertised, the last delivery, and every
publication that no broker has acknowledged, and says it all again at the next attachment. So the
application may call at any time, attached or not.

    attach -> (Attach, outbox) ->          Welcome, Deliver, Late, Gap, Settled, Published, Interest
                                                   -> Notify, Lost, Settled, Interested
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core.areas import is_outside
from wayfare.core.effects import (
    Close,
    Confirmed,
    Effect,
    Ended,
    Event,
    Interested,
    LinkDown,
    Lost,
    Notify,
    Received,
    Send,
    Settled,
    Tick,
    Unheard,
)
from wayfare.core.filters import Filter
from wayfare.core.following import Following
from wayfare.core.history import Marks, aged, size_of
from wayfare.core.late import LATE, UNSURE, UNTOLD, WANTED, Tally
from wayfare.core.matching import FilterIndex
from wayfare.core.messages import (
    FILTERS_MAX,
    PREVIOUS_MAX,
    PROFILE_CHARACTERS_MAX,
    BrokerId,
    ClientId,
    Deliver,
    LinkId,
)
from wayfare.core.predicates import Value
from wayfare.core.profiles import digest
from wayfare.core.reserved import is_address
from wayfare.core.sessions import places
from wayfare.core.templates import Template, parse
from wayfare.core.wills import offer_of
from wayfare.errors import (
    FilterError,
    InvalidNotification,
    NotAdvertised,
    OutboxFull,
    ProtocolError,
)

ACK_EVERY = 32  # deliveries; must be well below the broker's window
ACK_BYTES = 64 * 1024  # of deliveries; likewise
ACK_DELAY_NS = 1_000_000_000  # that an acknowledgement may wait for more deliveries
ACK_GRAIN_NS = 100_000_000  # many clients wake up together, and not each at its own time
MARKS_AGE_NS = 24 * 3600 * 1_000_000_000  # that a copy of a notification may be under way
# Characters of all filters; then a digest is sent to a new broker, first. It costs a round trip between
# brokers, and these take 0.2 s by GPRS.
DIGEST_FROM = 500
OUTBOX_MAX = 10_000  # publications without an acknowledgement; then publish refuses
OUTBOX_BYTES_MAX = 64 * 1024 * 1024  # of them; the last one may come on top


NO_PROBE = m.Probe()
CAME_MAX = 10_000  # notifications that are remembered since current values were asked for
NO_END = 2**62  # no delivery has this number
OVERLAPS_MAX = 1_000  # notifications by Here that may still come by an ordinary subscription
InHand = tuple[ClientId, int, int]  # publisher, number; of a current value, the request for it
CHANGES = (m.Subscribe, m.Unsubscribe, m.Advertise, m.Unadvertise)  # of a profile


class Memory(msgspec.Struct, frozen=True):
    """What a client has to know after its process ended."""

    epoch: int
    published: int
    delivered: int  # everything up to this delivery is done
    welcomed: bool
    home: BrokerId
    previous: tuple[tuple[BrokerId, int], ...]
    heard: tuple[int, int] = (
        0,
        0,
    )  # of what it follows: since which attachment, up to which number
    asks: int = 0
    life: int = 0


class Held(msgspec.Struct, frozen=True):
    """... and what it subscribed to, advertised and follows, and what it was like."""

    subscriptions: list[tuple[Filter, m.Terms | None]] = []
    local: list[tuple[Filter, BrokerId]] = []
    advertisements: list[Filter] = []
    follows: list[tuple[str, m.Terms | None]] = []
    state: m.State = m.NOWHERE
    local_follows: list[tuple[str, BrokerId]] = []


class Client:
    """One client: durable, attached to at most one border broker at a time."""

    def __init__(
        self,
        name: ClientId,
        outbox_max: int = OUTBOX_MAX,
        *,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        once: bool = True,
        confirms: bool = False,
        digest_from: int = DIGEST_FROM,
        window: int = 0,
        expires_ns: int = 0,
        failover_ns: int = 0,
        late: int = UNTOLD,
        will: m.Will | None = None,
    ) -> None:
        """Without `once`, duplicates reach the application: for clients that have no support.

        With `confirms`, a delivery is acknowledged when the application is done with it. That may take
        a while: a larger `window` lets more come meanwhile, as far as the broker allows it.

        With `failover_ns`, it waits no longer than that for what is at a broker that cannot be reached; 0: as
        long as brokers allow. When that is back, it gets what was kept there, or is told how many it lost, as `late`
        says: see late.py. With `expires_ns`, its session ends when it has been away for that long; 0, or more than the
        broker's limit: after that. A `will` is published when it is gone for longer than the will's delay.
        """
        self.name = name
        self.epoch = 0
        self.delivered = 0  # number of the last delivery
        self.published = 0  # number of the last publication
        self.link: LinkId | None = None
        self.subscriptions: dict[Filter, int] = {}  # and how often the application asked for it
        self._has_subscribed = False  # ever
        self.terms: dict[Filter, m.Terms] = {}  # of subscriptions that have some
        self.advertisements: dict[Filter, int] = {}
        self.watched: dict[
            Filter, int
        ] = {}  # those of which it is told whether anybody is interested
        self.wanted: dict[Filter, bool] = {}  # ... and what it was told last
        self.outbox: deque[m.Publish] = deque()  # not acknowledged yet, in order
        self.previous: tuple[tuple[BrokerId, int], ...] = ()
        self.welcomed = False
        # The epoch of its first attachment, if others may have had its name and the tree may not know; or 0.
        self.anew = 0
        self.life = 0  # tells it from other processes of its name; 0: it need not
        # It goes on where another process of its name was, until it is welcomed; or until `go_on`, if its numbers are given.
        self.resumes = False
        self._numbers_are_given = False
        self.reached = 0  # then: the last publication that a broker says it has accepted
        self._attached = False  # its last attachment was welcomed
        self.greeted = True  # it knows where its last attachment is
        self._open_here = False  # its session there is known not to wait; or else as
        self._started = 0  # ... something was delivered since then
        self.home = BrokerId("")  # the first broker that it attached to
        self._outbox_max, self._outbox_bytes_max = outbox_max, outbox_bytes_max
        self._outbox_bytes = 0
        self._digest_from = digest_from
        self._window = window
        self.expires_ns = expires_ns
        self.failover_ns = failover_ns
        self.late = late
        self._tally: Tally | None = None  # what it has had, while a loss may be settled later
        self._restored = 0  # what came to attachments up to this one, earlier processes had
        self._knows_marks = True  # ... and this one knows how far that was, for each publisher
        self._local: dict[Filter, BrokerId] = {}  # local subscriptions, and where they were made
        self._local_follows: dict[
            Template, BrokerId
        ] = {}  # the same of what only mentions `my.<name>`
        # How much of the past is still to be asked for
        self._recalls: dict[Filter, int] = {}
        self._followed_recalls: dict[Template, int] = {}
        self._characters = 0  # of all filters that are held
        self._changed = False  # what it wants or offers, since it could tell a broker
        self._wanted: FilterIndex[Filter] = FilterIndex()
        self._marks = Marks(MARKS_AGE_NS) if once else None
        self._recent = self._marks.recent if self._marks else {}  # at hand, for `step`
        self._acked = 0
        self._came_bytes = 0  # since it last acknowledged
        self._confirms = confirms
        # What the application has in hand -> its delivery; 0: of an earlier attachment, it comes again.
        self._hand: dict[InHand, int] = {}
        self._open: dict[int, InHand] = {}  # ... and the other way round, in order
        self._done: set[InHand] = set()  # before others that came before them
        self.asks = 0  # how often it asked for current values
        self._asks_before = 0  # ... in earlier processes
        # For which subscriptions that are still there, and behind which delivery.
        self._asked: dict[int, tuple[Filter, int]] = {}
        # Those that a session may not have answered: it has when a value came, or what was said behind them is confirmed.
        self._unanswered: dict[int, Filter] = {}
        self._asked_before = 0  # up to this one, it asked before the last attachment
        self._asked_here = False  # ... which says so; else it has to be said again
        self._noted_to = 0  # up to this delivery, it is noted ...
        # ... what came as it was published: publisher, number -> delivery.
        self._came: dict[tuple[ClientId, int], int] = {}
        self._probed: dict[int, int] = {}  # probes, and up to which one they say it
        self.deadline: int | None = None  # when the next acknowledgement has to go
        self.probes = 0  # how often it asked to have something confirmed
        self.asked = NO_PROBE  # the last probe for each kind
        self.confirmed = m.Echo()  # the last one that was answered
        self.following = Following()
        self._follows = self.following.counts  # at hand
        self._time_ns = 0  # of the last attachment, by the clock of publications; 0: unknown
        self._has_followed = False  # at some time: what comes by both ways is noted from then on
        # What came by Here and an ordinary subscription asks for, too: whether it is of the past, and which
        # delivery is the last that it can have. If it has none, it is handed out then.
        self._overlaps: dict[tuple[ClientId, int], tuple[m.Notification, bool, int]] = {}
        self._asks_here = False  # which delivery that is, and was not answered yet
        self.will: m.Will | None = None
        self._offer: Filter | None = None
        if will is not None:
            self.make_will(will)

    # What the application calls

    def begin(self, at: int, life: int) -> None:
        """Count attachments and publications from here on: other processes may have had this name.

        A clock is a good guess. If a broker knows of higher numbers, the client goes on above them. No other
        process of this name has the same `life`.
        """
        self.epoch = self.published = self.asks = at
        self.anew, self.life = at + 1, life

    def resume(self, at: int, life: int, published: int) -> None:
        """Begin, and go on behind this publication with those that earlier processes of its name may have made.

        The same publication has the same number in each of them, whatever numbers their attachments have. Brokers say which
        ones they have accepted: everything up to `reached`, when an advertisement is confirmed. Then call `go_on`.
        """
        self.begin(at, life)
        self.published, self.resumes, self._numbers_are_given = published, True, True

    def go_on(self) -> None:
        """All brokers have said how far earlier processes were, or nobody waits for that."""
        self.published = max(self.published, self.reached)
        self.anew, self.resumes = 0, False

    def make_will(self, will: m.Will | None) -> None:
        """From the next attachment on, publish this when it is gone for longer than the delay."""
        if will is not None:
            m.check_will(will, self.name)
        if self._offer is not None:
            self._count_down(self.advertisements, self._offer)
            self._offer = None
        self.will = will
        if will is not None:
            self._offer = offer_of(will.attributes)
            self._count_up(self.advertisements, self._offer)

    def may_attach_unseen(self) -> bool:
        """Whether it can attach before it knows where.

        If it is not greeted there, it does not know where that attachment was, and cannot say so at the
        next one. Then the broker before knows where its session went: if it had it, and has told so.
        """
        return self._is_settled() and not self._local and not self._local_follows

    def _is_settled(self) -> bool:
        """Whether its session is known to be open where it was last, and nowhere else."""
        one = self.welcomed and len(self.previous) == 1
        return one and (self._open_here or self.delivered > self._started)

    def attach(self, broker: BrokerId | None, link: LinkId, time_ns: int = 0) -> list[Effect]:
        """A connection to this broker is there: use it from now on. None: `greet` tells which it is.

        The time is by the same clock as that of publications: some that wait may have expired. 0: unknown.
        """
        self.epoch += 1
        self.link, self._attached = link, False
        ended: list[Effect] = []
        if broker is not None:
            self.home = self.home or broker
            ended = self._leave_behind(broker)
        if self._confirms:
            self._put_back()
        self._acked, self.deadline, self._came_bytes = self.done(), None, 0
        self._open_here, self._started = not self.previous, self.delivered
        attach = self._attachment()
        self.following.begin(self.epoch)
        self._asks_here = False
        self._overlaps = {
            key: (one, past, NO_END) for key, (one, past, _) in self._overlaps.items()
        }
        # Only who was welcomed where it was last can be sure that somebody there knows its filters.
        welcomed_there = self.welcomed and self.greeted and len(self.previous) == 1
        known_there = welcomed_there and not self._changed and not ended
        if known_there and self._characters >= self._digest_from:
            known = digest(
                {**dict.fromkeys(self.subscriptions), **self.terms},
                self.advertisements,
                self.watched,
            )
            attach = replace(
                attach,
                subscriptions=(),
                terms=(),
                advertisements=(),
                watched=(),
                digest=known,
                asks=(),
            )
        self._changed = False
        self.greeted = broker is not None
        if broker is not None:
            self._be_at(broker)
        self._time_ns = time_ns
        return [*ended, *self._present(attach)]

    def greet(self, broker: BrokerId) -> None:
        """Who it attached to unseen is this broker: said before anything else that comes from there."""
        self.greeted = True
        self.home = self.home or broker
        self._leave_behind(broker)  # local subscriptions that were made since are made here
        self._be_at(broker)

    def _be_at(self, broker: BrokerId) -> None:
        self.previous = ((broker, self.epoch), *self.previous)
        if len(self.previous) > PREVIOUS_MAX:  # the last was welcomed: it holds the session
            self.previous = (*self.previous[: PREVIOUS_MAX - 1], self.previous[-1])

    def _attachment(self) -> m.Attach:
        terms = [
            (place, self.terms[one])
            for place, one in enumerate(self.subscriptions)
            if one in self.terms
        ]
        return m.Attach(
            self.name,
            self.epoch,
            self.delivered,
            tuple(self.subscriptions),
            tuple(self.advertisements),
            self.previous,
            self.welcomed,
            self.home,
            tuple(terms),
            window=self._window,
            watched=places(self.watched, self.advertisements),
            followed=self.following.followed(),
            expires_ns=self.expires_ns,
            asks=self._asking(),
            anew=self.anew,
            life=self.life,
            failover_ns=self.failover_ns,
            will=self.will,
            late=self.late,
            state=self._unfollowed_place(),
            resumes=self.resumes,
        )

    def _unfollowed_place(self) -> m.State | None:
        """Where it is, for a broker that does not need this for what it follows; None: it has not said so."""
        place = self.following.place()
        return None if self.following.located() or place == m.NOWHERE else place

    def _asking(self) -> tuple[tuple[int, int], ...]:
        """The requests for current values that nobody may have heard, and the places of their subscriptions."""
        if not self._unanswered:
            return ()
        place = {filter: at for at, filter in enumerate(self.subscriptions)}
        return tuple((place[filter], ask) for ask, filter in self._unanswered.items())

    def _present(self, attach: m.Attach) -> list[Effect]:
        """Attach, and send what nobody has accepted or confirmed yet."""
        assert self.link is not None
        unconfirmed = self._unconfirmed()
        self._asked_here, self._asked_before = bool(attach.asks), self.asks
        waiting = (Send(self.link, _remaining(one, self._time_ns)) for one in self.outbox)
        said = [Send(self.link, attach), *waiting]
        return [*said, *(self._ask(unconfirmed) if unconfirmed != NO_PROBE else [])]

    def _leave_behind(self, broker: BrokerId) -> list[Effect]:
        """Let go of the local subscriptions made at another broker."""
        ended: list[Effect] = []
        for template, made_at in list(self._local_follows.items()):
            if made_at not in ("", broker):
                meant = self.following.meant[template]
                self.following.end(template)
                del self._local_follows[template]
                if self._count_down(self.subscriptions, meant):
                    self._forget_subscription(meant)
                ended.append(Ended(template))
            else:
                self._local_follows[template] = broker
        for filter, made_at in list(self._local.items()):
            if made_at not in ("", broker):
                del self.subscriptions[filter]
                self._characters -= len(str(filter))
                self._forget_subscription(filter)
                ended.append(Ended(filter))
            else:
                self._local[filter] = broker
        return ended

    def detach(self, *, leave: bool = False, moves: bool = False) -> list[Effect]:
        """Go away; with `leave`, for good: the session ends, and so does what waits in it; with `moves`, to attach elsewhere.

        What was published before has been sent in front of the goodbye, on the same connection.
        """
        link, self.link = self.link, None
        self.deadline = None
        if leave:
            self.outbox.clear()
            self._overlaps.clear()
            self.following.served = False
            self._outbox_bytes = 0
            self.previous = ()
            self.welcomed = False
            self._tally = None
            if link is not None:
                self._unanswered.clear()
                self._note_for_a_while()
        return [] if link is None else [Send(link, m.Detach(leave, moves)), Close(link, "detached")]

    def follow(
        self, template: Template, terms: m.Terms | None = None, since_ns: int = 0
    ) -> list[Effect]:
        """Subscribe to what this means wherever the client is, and whatever it is like.

        With `since_ns`, also what was published for where it is now within that time.
        """
        if terms is not None:
            m.check_terms(terms)
        before = self.following.meant.get(template)
        if not self.following.add(template, terms) and not since_ns:
            return []
        self._has_followed = True
        if self.following.is_served(template):
            if since_ns and self.link is None:
                self._followed_recalls[template] = since_ns
            first = len(self.following.located()) == 1  # so nobody was told where the client is
            self.following.served |= self.link is not None
            past = self._say(m.Follow(template.text, terms, since_ns)) if since_ns else []
            if past and not first:
                return past
            said = self._say(m.Follow(template.text, terms))
            return [*said, *self._say(self.following.state), *past] if first else said
        self._local_follows.pop(template, None)
        if terms is not None and terms.local:
            self._local_follows[template] = self._here()
        now = self.following.meant[template]
        effects = self.subscribe(now, terms, since_ns) if now.conjunctions else []
        return effects if before is None else [*effects, *self.unsubscribe(before)]

    def unfollow(self, template: Template) -> list[Effect]:
        meant = self.following.meant.get(template)
        if meant is None or not self.following.remove(template):
            return []
        self._followed_recalls.pop(template, None)
        if self.following.is_served(template):
            if self.link is not None:
                self.following.served = bool(self.following.located())
            return self._say(m.Unfollow(template.text))
        self._local_follows.pop(template, None)
        return self.unsubscribe(meant)

    def be(self, state: m.State) -> list[Effect]:
        """The client is like this now: what it follows means something else. New comes before old."""
        state = self.following.declared(state)
        if state == self.following.state:
            return []
        place = self.following.place()
        changed = self.following.be(state)
        effects: list[Effect] = []
        stand_ins = [one for one in changed if not self.following.is_served(one)]
        for one in stand_ins:
            if self.following.meant[one].conjunctions:
                effects += self.subscribe(self.following.meant[one], self.following.terms.get(one))
        for one in stand_ins:
            effects += self.unsubscribe(changed[one])
        if self.following.located():
            return [*effects, *self._say(state)]
        there = self.following.place()
        return [*effects, *(self._say(there) if there != place else [])]

    def subscribe(
        self,
        filter: Filter,
        terms: m.Terms | None = None,
        since_ns: int = 0,
        *,
        current: bool = False,
    ) -> list[Effect]:
        """Subscribe, and with `terms` say what of what is missed is wanted; the last ones count.

        With `since_ns`, also what was published within that time, as far as brokers remember, and
        nothing of a publisher that is older than what this client has of it. With `current`, also the
        current values that match, first; `asks` is the number of this request.
        """
        if terms is not None:
            m.check_terms(terms)
        first = self._count_up(self.subscriptions, filter)
        self._has_subscribed = True
        if since_ns and self.link is None:
            self._recalls[filter] = since_ns
        ask = self._ask_for_current(filter) if current else 0
        if not (first or since_ns or ask) and terms == self.terms.get(filter):
            return []
        if first:
            self._wanted.add(filter, filter)
        self.terms.pop(filter, None)
        self._local.pop(filter, None)
        if terms is not None:
            self.terms[filter] = terms
            if terms.local:
                self._local[filter] = self._here()
        return self._say(m.Subscribe(filter, terms, since_ns, ask, self._has_for_certain(ask)))

    def _has_for_certain(self, ask: int) -> int:
        """Behind which delivery everything reaches the subscription that asks for current values.

        What came by Here is dropped when it comes by the ordinary stream, too. So what is on its way
        stands for no current value, and the broker sends that as well.
        """
        if not ask:
            return 0
        return NO_END if self._has_followed else self.delivered

    def _here(self) -> BrokerId:
        """Where it is; empty: wherever it will be."""
        return self.previous[0][0] if self.link is not None and self.greeted else BrokerId("")

    def _ask_for_current(self, filter: Filter) -> int:
        self.asks += 1
        if self.delivered >= self._noted_to:
            self._came.clear()
        self._noted_to = NO_END
        self._asked[self.asks] = filter, self.delivered
        self._unanswered[self.asks] = filter
        return self.asks

    def unsubscribe(self, filter: Filter) -> list[Effect]:
        if not self._count_down(self.subscriptions, filter):
            return []
        self._forget_subscription(filter)
        unwanted = self._hand_out_unwanted() if self._overlaps else []
        return [*self._say(m.Unsubscribe(filter)), *unwanted]

    def _forget_subscription(self, filter: Filter) -> None:
        self._wanted.remove(filter)
        self._recalls.pop(filter, None)
        self.terms.pop(filter, None)
        self._local.pop(filter, None)
        if self._asked:
            for ask in [ask for ask, (one, _) in self._asked.items() if one == filter]:
                del self._asked[ask]
                self._unanswered.pop(ask, None)
            self._note_for_a_while()

    def advertise(self, filter: Filter) -> list[Effect]:
        if not self._count_up(self.advertisements, filter):
            return []
        return self._say(m.Advertise(filter))

    def unadvertise(self, filter: Filter) -> list[Effect]:
        if filter == self._offer and self.advertisements[filter] == 1:
            return []  # its will needs it
        if not self._count_down(self.advertisements, filter):
            return []
        self._forget_watch(filter)
        return self._say(m.Unadvertise(filter))

    def probe(self, *, ads: bool = False, subs: bool = False, report_ns: int = 0) -> list[Effect]:
        """Ask when what is advertised, or subscribed to, by now is in effect in the whole tree.

        `Confirmed` says so, once, wherever the client is by then; `probes` is the number of this request. After
        `report_ns` it says which neighbours of the broker have not confirmed it.
        """
        self.probes += 1
        ads_number = self.probes if ads else self.asked.ads
        self.asked = m.Probe(ads_number, self.probes if subs else self.asked.subs)
        number = self.probes
        if subs and self._unanswered:
            self._probed[number] = self.asks
        return self._ask(m.Probe(number if ads else 0, number if subs else 0, report_ns))

    def _ask(self, probe: m.Probe) -> list[Effect]:
        """A broker of an earlier release knows no probe: to it, this is an acknowledgement of nothing."""
        return self._say(m.Ack(0, probe))

    def _unconfirmed(self) -> m.Probe:
        """What is to be asked again at a new attachment."""
        asked, confirmed = self.asked, self.confirmed
        return m.Probe(
            asked.ads if asked.ads > confirmed.ads else 0,
            asked.subs if asked.subs > confirmed.subs else 0,
        )

    def enlist(self, message: m.Enlist) -> list[Effect]:
        """Say that it is a member of a queue group: see membership.py, which says it again until it is answered."""
        return self._say(message)

    def watch(self, filter: Filter) -> list[Effect]:
        """Be told whether anybody wants what it advertised by this, now and when that changes."""
        if filter not in self.advertisements:
            raise NotAdvertised(f"{self.name} has not advertised {filter}: advertise it first")
        self.watched[filter] = self.watched.get(filter, 0) + 1
        return self._say(m.Advertise(filter, watch=True)) if self.watched[filter] == 1 else []

    def unwatch(self, filter: Filter) -> list[Effect]:
        """Be told no more, when that was said as often as `watch`."""
        if filter not in self.watched:
            return []
        self.watched[filter] -= 1
        if self.watched[filter]:
            return []
        self._forget_watch(filter)
        return self._say(m.Advertise(filter))

    def _forget_watch(self, filter: Filter) -> None:
        self.watched.pop(filter, None)
        self.wanted.pop(filter, None)

    def publish(
        self,
        attributes: Mapping[str, Value],
        payload: bytes = b"",
        published_ns: int = 0,
        retain: m.Retain | None = None,
        expires_ns: int = 0,
        area: m.Area | None = None,
    ) -> list[Effect]:
        """Publish once, now or at the next attachment. The time is for subscribers; 0: unknown.

        With `expires_ns`, it is of no use after this time: brokers forget it then. With an `area`, it is of no use to
        clients that are known to be outside: they do not get it.
        """
        self.check_publication(attributes, payload)
        if area is not None:
            m.check_area(area)
        if retain is not None:
            m.check_retain(retain, attributes)
        if self.is_unnumbered():
            raise OutboxFull(f"{self.name} does not know its numbers before its first Welcome")
        if not self.has_room():
            raise OutboxFull(
                f"{len(self.outbox)} publications of {self.name}, {self._outbox_bytes} bytes, wait for"
                " an acknowledgement"
            )
        self.published += 1
        publish = m.Publish(
            self.published, dict(attributes), payload, published_ns, retain, expires_ns, area
        )
        self._keep(publish)
        return self._say(publish)

    def check_publication(self, attributes: Mapping[str, Value], payload: bytes) -> None:
        """Raise what keeps this from being published."""
        if type(payload) is not bytes:
            raise InvalidNotification(f"a payload is bytes, not {type(payload).__name__}")
        if type(attributes) is not dict and not isinstance(attributes, Mapping):
            raise InvalidNotification(
                f"what is published is a mapping of names to values, not {attributes!r:.60}"
            )
        m.check_publication(attributes, payload)
        for filter in self.advertisements:
            if filter.matches(attributes):
                break
        else:
            raise NotAdvertised(
                f"no advertisement of {self.name} matches {dict(attributes)}: advertise it first"
            )

    def has_room(self) -> bool:
        """Whether one more may be published before something is acknowledged."""
        if self.is_unnumbered():
            return False
        return len(self.outbox) < self._outbox_max and self._outbox_bytes < self._outbox_bytes_max

    def is_unnumbered(self) -> bool:
        """Whether a broker may still say that an earlier process has published more."""
        return self.anew > 0 and not self.welcomed

    def _keep(self, publish: m.Publish) -> None:
        self.outbox.append(publish)
        self._outbox_bytes += size_of(publish)

    def _count_up(self, counts: dict[Filter, int], filter: Filter) -> bool:
        """True for the first."""
        if filter in counts:
            counts[filter] += 1
            return False
        characters = self._characters + len(str(filter))
        if len(counts) >= FILTERS_MAX:
            raise FilterError(f"{self.name} has at most {FILTERS_MAX} filters of a kind")
        if characters > PROFILE_CHARACTERS_MAX:
            raise FilterError(
                f"all filters of {self.name} have at most {PROFILE_CHARACTERS_MAX} characters"
            )
        self._characters = characters
        counts[filter] = 1
        return True

    def _count_down(self, counts: dict[Filter, int], filter: Filter) -> bool:
        """True for the last."""
        if filter not in counts:
            return False
        counts[filter] -= 1
        if counts[filter]:
            return False
        self._characters -= len(str(filter))
        del counts[filter]
        return True

    def _say(self, message: m.FromClient) -> list[Effect]:
        if self.link is None:
            self._changed |= type(message) in CHANGES
            return []
        return [Send(self.link, message)]

    # What the host reports

    def step(self, event: Event, now: int) -> list[Effect]:
        if type(event) is Received:
            message = event.message
            if (
                type(message) is Deliver
                and event.link == self.link
                and message.number == self.delivered + 1
            ):
                # The next delivery: what mostly happens.
                self.delivered = message.number
                notification = message.notification
                self._came_bytes += size_of(notification)
                subscriptions: Sequence[Filter | Template]
                subscriptions = self._wanted.find(notification.attributes)
                if notification.area is not None and self._is_outside(notification.area):
                    subscriptions = ()
                if subscriptions and self._has_followed:
                    subscriptions = self._with_followed(notification, subscriptions)
                effects: list[Effect] = []
                passed = self._hand_out_passed(notification) if self._overlaps else effects
                # It may have been on its way when the last of them was withdrawn; or come twice, when
                # a broker that was asked in vain did not know what had been delivered before.
                if self._confirms:
                    return [*passed, *self._hand_out(message, subscriptions, now)]
                if subscriptions:
                    recent, publisher = self._recent, notification.publisher
                    last = recent.get(publisher)
                    if last is not None and last < notification.number:  # as mostly
                        recent[publisher] = notification.number
                        effects.append(Notify(notification, subscriptions))
                    elif self._marks is None or self._marks.pass_on(notification, now):
                        effects.append(Notify(notification, subscriptions))
                    if self._tally is not None:
                        if effects:
                            self._tally.add(publisher, notification.number)
                        else:
                            effects += self._overtaken(notification, subscriptions)
                if message.number <= self._noted_to and effects:
                    self._note_came(message)
                if (
                    self.deadline is None
                    or message.number - self._acked >= ACK_EVERY
                    or self._came_bytes >= ACK_BYTES
                ):
                    effects += self._mind_ack(now)
                return [*passed, *effects] if passed is not effects else effects
        return EVENTS[type(event)](self, event, now)

    def _is_outside(self, area: m.Area) -> bool:
        """Whether it is known to be outside: it may have gone there since its broker sent this."""
        return is_outside(area, self.following.state)

    def _note_came(self, message: Deliver) -> None:
        """Remember that this came as it was published: it may come as a current value, too."""
        notification, came = message.notification, self._came
        came[notification.publisher, notification.number] = message.number
        if len(came) > CAME_MAX:
            del came[next(iter(came))]

    def next_deadline(self) -> int | None:
        return self.deadline

    # What the application has done

    def asks_for(self, wanted: Filter | Template) -> bool:
        """Whether the application does so; what it follows may be a subscription to the same."""
        if isinstance(wanted, Template):
            return wanted in self._follows
        asked = self.subscriptions.get(wanted, 0)
        return asked > (self.following.stand_ins().get(wanted, 0) if self._follows else 0)

    def _with_followed(
        self, notification: m.Notification, subscriptions: Sequence[Filter | Template]
    ) -> Sequence[Filter | Template]:
        """These, and what is followed; nothing if it came by Here before."""
        if not self.following.is_news(notification):
            return []
        if not self._follows:
            return subscriptions
        asked = [one for one in subscriptions if self.asks_for(one)]
        return [*asked, *self.following.find(notification)]

    def _hand_out(
        self, message: Deliver, subscriptions: Sequence[Filter | Template], now: int
    ) -> list[Effect]:
        """Notify the application, which will say when it is done."""
        notification = message.notification
        key = notification.publisher, notification.number, 0
        if self._tally is not None and (*key[:2], LATE) in self._hand:
            key = (*key[:2], LATE)  # it was overtaken, and comes again
        told: list[Effect] = []
        if key not in self._hand:
            if not subscriptions or key in self._done:
                return self._mind_ack(now)
            if self._marks is not None and not self._marks.pass_on(notification, now):
                told = self._overtaken(notification, subscriptions)
                if not told:
                    return self._mind_ack(now)
                key = (*key[:2], LATE)
            else:
                told = [Notify(notification, subscriptions)]
                if self._tally is not None:
                    self._tally.add(notification.publisher, notification.number)
            if message.number <= self._noted_to:
                self._note_came(message)
        self._hand[key], self._open[message.number] = message.number, key
        return [*told, *self._mind_ack(now)]

    def _overtaken(
        self, notification: m.Notification, subscriptions: Sequence[Filter | Template]
    ) -> list[Effect]:
        """It is older than what came before: it came twice, or only another broker knew of what came before."""
        publisher, number = notification.publisher, notification.number
        if self._tally is None:
            return []
        if self.late != WANTED:
            self._tally.miss(publisher, number)
            return []
        return self._take_late(self._tally, notification, subscriptions)

    def _take_late(
        self,
        tally: Tally,
        notification: m.Notification,
        subscriptions: Sequence[Filter | Template],
    ) -> list[Effect]:
        """Notify the application of what it has not had."""
        publisher, number = notification.publisher, notification.number
        had = tally.had(publisher, number)
        if had is None:
            tally.exact = False
        if had or (
            had is None and self._knows_marks
        ):  # else it comes, even if that should be twice
            return []
        tally.add(publisher, number)
        if self._marks is not None:
            self._marks.raise_to({publisher: number})
        return [Notify(notification, subscriptions, ask=LATE)]

    def has_in_hand(self, publisher: ClientId, number: int, ask: int = 0) -> bool:
        """Whether it is to be confirmed; what came by Here is not."""
        return (publisher, number, ask) in self._hand

    def done(self) -> int:
        """Everything up to this delivery is done."""
        if not self._confirms or not self._open:
            return self.delivered
        return next(iter(self._open)) - 1

    def confirm(self, publisher: ClientId, number: int, now: int, ask: int = 0) -> list[Effect]:
        """The application is done with this notification; one that was a current value, for this request."""
        delivery = self._hand.pop((publisher, number, ask), None)
        if delivery is None:
            return []
        self._open.pop(delivery, None)
        self._done.add((publisher, number, ask))
        if not any(who == publisher for who, _, _ in self._hand):
            self._done = {one for one in self._done if one[0] != publisher}
        return self._mind_ack(now)

    def confirm_to(self, delivery: int, now: int) -> list[Effect]:
        """The application is done with all deliveries up to this one."""
        while self._open and next(iter(self._open)) <= delivery:
            del self._hand[self._open.pop(next(iter(self._open)))]
        return self._mind_ack(now)

    def rewind(self) -> None:
        """Have what the application is not done with delivered again, at the next attachment."""
        self._put_back()
        self._hand.clear()

    def _put_back(self) -> None:
        """What is not done is asked for again: it would be lost with this process otherwise."""
        self.delivered = self.done()
        self._open.clear()
        self._hand = dict.fromkeys(self._hand, 0)

    def progress(self, publisher: ClientId) -> tuple[int, list[int]]:
        """Of a publisher: everything up to this publication is done, and beyond it these."""
        hand = [number for who, number, ask in self._hand if who == publisher and not ask]
        done = [number for who, number, ask in self._done if who == publisher and not ask]
        beyond = sorted(done)
        if hand:
            return min(hand) - 1, [number for number in beyond if number >= min(hand)]
        return (self._marks.of(publisher) if self._marks is not None else 0), []

    def memory(self) -> Memory:
        return Memory(
            self.epoch,
            self.published,
            self.done(),
            self.welcomed,
            self.home,
            self.previous,
            self.following.resumes_at(),
            self.asks,
            self.life,
        )

    def held(self) -> Held:
        following = self.following
        return Held(
            [
                (one, self.terms.get(one))
                for one in self.subscriptions
                if self.asks_for(one) and not is_address(one)  # nobody waits for replies any more
            ],
            list(self._local.items()),
            [one for one, count in self.advertisements.items() if one != self._offer or count > 1],
            [(one.text, following.terms.get(one)) for one in following.counts],
            following.state,
            [(one.text, broker) for one, broker in self._local_follows.items()],
        )

    def remember(
        self,
        memory: Memory,
        held: Held,
        outbox: Iterable[m.Publish],
        progress: Mapping[ClientId, tuple[int, list[int]]] | None,
    ) -> None:
        """Go on as the client of this memory. Nobody may have asked anything of this one yet.

        Without `progress`, it does not know how far it has heard which publisher.
        The memory may be an old copy: who begins by a clock is above all that was reached since then.
        """
        self.epoch = max(self.epoch, memory.epoch)
        self._restored = memory.epoch
        self.published = max(self.published, memory.published)
        # What came to the process before is no news of where its session is: that is not written down.
        self.delivered = self._acked = self._started = memory.delivered
        self.welcomed, self.home, self.previous = memory.welcomed, memory.home, memory.previous
        if self.anew:
            self.anew = 0 if memory.welcomed else self.epoch + 1
            self.life = memory.life if memory.welcomed else self.life
        for one, terms in held.subscriptions:
            self.subscribe(one, terms)
        self._local = dict(held.local)
        for one in held.advertisements:
            self.advertise(one)
        self.be(held.state)
        made_at = dict(held.local_follows)
        for text, terms in held.follows:
            template = parse(text)
            assert isinstance(template, Template)
            self.follow(template, terms)
            if text in made_at:
                self._local_follows[template] = made_at[text]
        self.following.heard, self.following.served = memory.heard, memory.heard != (0, 0)
        self.asks = self._asks_before = max(self.asks, memory.asks)
        for publish in outbox:
            self._keep(publish)
        self._knows_marks = progress is not None
        for publisher, (mark, beyond) in (progress or {}).items():
            self._recent[publisher] = mark
            self._done.update((publisher, number, 0) for number in beyond)

    def on_received(self, event: Received, now: int) -> list[Effect]:
        if event.link != self.link:
            return []
        handler = FROM_BROKER.get(type(event.message))
        try:
            if handler is None:
                raise ProtocolError(f"{type(event.message).__name__} from a broker")
            return handler(self, event.message, now)
        except ProtocolError as error:
            self.link = self.deadline = None
            return [Close(event.link, str(error), fault=True)]

    def on_link_down(self, event: LinkDown, now: int) -> list[Effect]:
        if event.link == self.link:
            self.link = self.deadline = None
        return []

    def on_tick(self, event: Tick, now: int) -> list[Effect]:
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = None
        return self._acknowledge() if self.done() > self._acked else self._acknowledge_here()

    def on_welcome(self, message: m.Welcome, now: int) -> list[Effect]:
        if message.epoch != self.epoch:
            raise ProtocolError(f"Welcome to epoch {message.epoch}, but this is {self.epoch}")
        self.previous = self.previous[:1]
        self.welcomed = self._attached = True
        if not self._numbers_are_given:
            self.anew, self.resumes = 0, False
        self.following.served = bool(self.following.located())
        self._forget_published(message.published)
        recalls, self._recalls = self._recalls, {}
        followed, self._followed_recalls = self._followed_recalls, {}
        terms = self.following.terms
        again: list[m.Follow | m.Subscribe] = [
            *(m.Follow(one.text, terms.get(one), ns) for one, ns in followed.items()),
            *(m.Subscribe(one, self.terms.get(one), ns) for one, ns in recalls.items()),
        ]
        again += [
            m.Subscribe(one, self.terms.get(one), 0, ask, self._has_for_certain(ask))
            for ask, one in self._unanswered.items()
            if ask <= self._asked_before and not self._asked_here
        ]
        effects = [effect for one in again for effect in self._say(one)]
        return [*effects, *(self._ask_here() if self._overlaps else [])]

    def on_deliver(self, message: m.Deliver, now: int) -> list[Effect]:
        raise ProtocolError(f"delivery {message.number} after {self.delivered}")

    def on_current(self, message: m.Current, now: int) -> list[Effect]:
        """The value that a key had when a subscription was made; that may be withdrawn by now, or have got it."""
        if message.number != self.delivered + 1:
            raise ProtocolError(f"delivery {message.number} after {self.delivered}")
        self.delivered = message.number
        notification, ask = message.notification, message.ask
        self._came_bytes += size_of(notification)
        wanted: Sequence[Filter] = []
        if ask <= self._asks_before:  # nobody knows any more which subscription that was
            wanted = self._wanted.find(notification.attributes)
        elif ask in self._asked:
            filter, since = self._asked[ask]
            came = self._came.get((notification.publisher, notification.number), 0)
            wanted = [filter] if came <= since else []
        if notification.area is not None and self._is_outside(notification.area):
            wanted = []
        if self._unanswered.pop(ask, None) is not None:
            self._note_for_a_while()
        if self._marks is not None:
            self._marks.raise_to({notification.publisher: notification.number})
        if self._tally is not None and wanted:
            self._tally.add(notification.publisher, notification.number)
        key = notification.publisher, notification.number, ask
        if not wanted or key in self._done:
            return self._mind_ack(now)
        told = [] if key in self._hand else [Notify(notification, wanted, ask=ask)]
        if self._confirms:
            self._hand[key], self._open[message.number] = message.number, key
        return [*told, *self._mind_ack(now)]

    def on_late(self, message: m.Late, now: int) -> list[Effect]:
        """An old broker kept this, and is back."""
        if message.number != self.delivered + 1:
            raise ProtocolError(f"delivery {message.number} after {self.delivered}")
        self.delivered = message.number
        notification = message.notification
        self._came_bytes += size_of(notification)
        key = notification.publisher, notification.number, LATE
        subscriptions: Sequence[Filter | Template] = self._wanted.find(notification.attributes)
        if notification.area is not None and self._is_outside(notification.area):
            subscriptions = ()
        if subscriptions and self._has_followed:
            subscriptions = self._with_followed(notification, subscriptions)
        told: list[Effect] = []
        if key not in self._hand:
            if not subscriptions or key in self._done:
                return self._mind_ack(now)
            tally = self._tally or self._doubtful_tally()
            told = self._take_late(tally, notification, subscriptions)
            if not told:
                unsure = [] if tally is self._tally or tally.exact else [Lost(0, UNSURE)]
                return [*unsure, *self._mind_ack(now)]
        if self._confirms:
            self._hand[key], self._open[message.number] = message.number, key
        return [*told, *self._mind_ack(now)]

    def on_settled(self, message: m.Settled, now: int) -> list[Effect]:
        """What is lost of what an old broker had is known now, or will be later."""
        gap = message.gap
        if not message.number:
            if self._tally is None:
                self._tally = self._new_tally(knows_floor=True)
            self._tally.knows_floor &= gap > self._restored
            self._tally.gaps[gap] = None
            return []
        if message.number != self.delivered + 1:
            raise ProtocolError(f"delivery {message.number} after {self.delivered}")
        self.delivered = message.number
        tally = self._tally or self._doubtful_tally()
        for publisher, numbers in message.missed.items():
            for number in numbers:
                tally.miss(publisher, number)
        effects: list[Effect] = []
        tally.counted &= message.exact
        if not message.more:
            missed, exact, counted = tally.settle(gap)
            if not exact:
                effects.append(Lost(0, UNSURE))
            elif counted:
                effects.append(Settled(sum(missed.values()), missed))
            if not tally.gaps:
                self._tally = None
        return [*effects, *self._mind_ack(now)]

    def _doubtful_tally(self) -> Tally:
        """For who has noted nothing: what may have come before is not known."""
        return self._new_tally(knows_floor=False)

    def _new_tally(self, *, knows_floor: bool) -> Tally:
        known = {} if self._marks is None else self._marks.known()
        knows_all = self._marks is not None and self._knows_marks
        return Tally(known, knows_floor=knows_floor, knows_all=knows_all)

    def _answered(self, ask: int) -> None:
        """A broker knows all requests for current values up to this one."""
        self._unanswered = {one: wanted for one, wanted in self._unanswered.items() if one > ask}
        self._note_for_a_while()

    def _note_for_a_while(self) -> None:
        """If no request is unanswered, only what the broker sent before its answer can come twice.

        That may come later than the confirmation: hosts hold notifications back while the application has no room.
        """
        if not self._unanswered:
            self._noted_to = min(self._noted_to, self.delivered + CAME_MAX)

    def on_here(self, message: m.Here, now: int) -> list[Effect]:
        """What is followed, of the place where the client is. It may be somewhere else by now.

        What an ordinary subscription asks for comes by that one, if it does: in the order of that stream.
        """
        following, notification = self.following, message.notification
        following.hear(message.number)
        self._came_bytes += size_of(notification)
        effects: list[Effect] = []
        if not self._wanted.find(notification.attributes):
            effects += self._hand_out_followed(notification, message.past)
        elif following.find(notification) and not following.has_seen(notification):
            key = notification.publisher, notification.number
            self._overlaps[key] = notification, message.past, NO_END
            if len(self._overlaps) > OVERLAPS_MAX:
                effects += self._hand_out_overlaps([next(iter(self._overlaps))])
            effects += self._ask_here()
        return [*effects, *self._mind_here_ack(now)]

    def _hand_out_followed(self, notification: m.Notification, past: bool) -> list[Effect]:
        if notification.area is not None and self._is_outside(notification.area):
            return []
        templates = self.following.find(notification)
        if templates and self.following.is_news(notification):
            return [Notify(notification, templates, past)]
        return []

    def _ask_here(self) -> list[Effect]:
        """Ask which delivery is the last that what came by Here so far can have."""
        if self._asks_here:
            return []
        self._asks_here, self.following.acked = True, self.following.heard[1]
        return self._say(m.HereAck(self.following.acked, asks=True))

    def on_caught_up(self, message: m.CaughtUp, now: int) -> list[Effect]:
        self._asks_here = False
        end = message.delivered
        self._overlaps = {key: (one, past, end) for key, (one, past, _) in self._overlaps.items()}
        return self._hand_out_overlaps(self._ended_overlaps())

    def _ended_overlaps(self) -> list[tuple[ClientId, int]]:
        """What no ordinary subscription has delivered, nor will."""
        return [key for key, (_, _, end) in self._overlaps.items() if end <= self.delivered]

    def _hand_out_passed(self, delivered: m.Notification) -> list[Effect]:
        """The ordinary stream is in every publisher's order: what it has passed does not come by it any more."""
        passed = [
            (publisher, number)
            for publisher, number in self._overlaps
            if publisher == delivered.publisher and number <= delivered.number
        ]
        return self._hand_out_overlaps(dict.fromkeys([*passed, *self._ended_overlaps()]))

    def _hand_out_unwanted(self) -> list[Effect]:
        """What no ordinary subscription asks for any more."""
        overlaps = self._overlaps.items()
        return self._hand_out_overlaps(
            [key for key, (one, _, _) in overlaps if not self._wanted.find(one.attributes)]
        )

    def _hand_out_overlaps(self, keys: Iterable[tuple[ClientId, int]]) -> list[Effect]:
        effects: list[Effect] = []
        for notification, past, _ in [self._overlaps.pop(key) for key in keys]:
            effects += self._hand_out_followed(notification, past)
        return effects

    def on_here_gap(self, message: m.HereGap, now: int) -> list[Effect]:
        lost = message.number - self.following.heard[1]
        self.following.hear(message.number)
        return [*_losses(message, lost), *self._mind_here_ack(now)]

    def _mind_here_ack(self, now: int) -> list[Effect]:
        unsaid = self.following.heard[1] - self.following.acked
        if unsaid >= ACK_EVERY or self._came_bytes >= ACK_BYTES:
            self._came_bytes = 0
            return self._acknowledge_here()
        if self.deadline is None:
            self.deadline = now - now % ACK_GRAIN_NS + ACK_DELAY_NS
        return []

    def _acknowledge_here(self) -> list[Effect]:
        if self.following.heard[1] == self.following.acked:
            return []
        self.following.acked = self.following.heard[1]
        return self._say(m.HereAck(self.following.acked))

    def on_gap(self, message: m.Gap, now: int) -> list[Effect]:
        lost = message.number - self.delivered
        if lost <= 0:
            return []
        self.delivered = message.number
        # A broker that has forgotten the client does not know that it never wanted anything.
        effects = _losses(message, lost) if message.exact or self._has_subscribed else []
        if self._overlaps:
            effects += self._hand_out_overlaps(self._ended_overlaps())
        return [*effects, *self._mind_ack(now)]

    def on_published(self, message: m.Published, now: int) -> list[Effect]:
        self._open_here = True
        self._forget_published(message.number)
        return []

    def on_resend(self, message: m.Resend, now: int) -> list[Effect]:
        if message.epoch != self.epoch:
            raise ProtocolError(f"Resend for epoch {message.epoch}, but this is {self.epoch}")
        if message.above:
            return self._exceed(message.above)
        return self._present(replace(self._attachment(), previous=self.previous[1:]))

    def _exceed(self, above: int) -> list[Effect]:
        """An earlier process of its name has reached this number: attach again, above it.

        A client that was welcomed does so on the next connection: its broker closes this one.
        """
        if above < self.epoch:
            raise ProtocolError(f"{above} is no number to exceed at epoch {self.epoch}")
        attached, here = self._attached, self.previous[0][0]
        begins = self.anew > 0 or not self.resumes  # else it only goes on with its session
        if self._numbers_are_given or not begins:
            self.epoch, self.resumes = above, True
        else:
            self.epoch = self.published = max(self.published, above)
        self.anew = self.epoch + 1 if begins else 0
        if attached:
            return []
        assert self.link is not None
        self.previous = self.previous[1:]
        self.following.served &= self.welcomed
        self._changed = True  # so that it sends everything
        return self.attach(here, self.link, self._time_ns)

    def on_interest(self, message: m.Interest, now: int) -> list[Effect]:
        filter, wanted = message.filter, message.wanted
        if filter not in self.watched or self.wanted.get(filter) == wanted:
            return []
        self.wanted[filter] = wanted
        return [Interested(filter, wanted)]

    def on_no_responders(self, message: m.NoResponders, now: int) -> list[Effect]:
        if message.number > self.published:
            raise ProtocolError(f"NoResponders to {message.number} of {self.published}")
        return [Unheard(message.number)]

    def on_echo(self, message: m.Echo, now: int) -> list[Effect]:
        asked, known = self.asked, self.confirmed
        if message.ads > asked.ads or message.subs > asked.subs:
            raise ProtocolError(f"{message} answers no probe")
        if message.missing:
            return [Confirmed(message.ads, message.subs, message.missing)]
        ads, subs = max(message.ads, known.ads), max(message.subs, known.subs)
        if (ads, subs) == (known.ads, known.subs):
            return []
        self.confirmed = m.Echo(ads, subs)
        for probe in [one for one in self._probed if one <= subs]:
            self._answered(self._probed.pop(probe))
        return [Confirmed(message.ads, message.subs)]

    def _forget_published(self, number: int) -> None:
        if self._numbers_are_given:
            self.reached = max(self.reached, number)
            number = min(number, self.published)
        if number > self.published:
            raise ProtocolError(f"accepted publication {number} of {self.published}")
        outbox = self.outbox
        while outbox and outbox[0].number <= number:
            self._outbox_bytes -= size_of(outbox.popleft())

    def _mind_ack(self, now: int) -> list[Effect]:
        done = self.done()
        if done - self._acked >= ACK_EVERY or (
            self._came_bytes >= ACK_BYTES and done > self._acked
        ):
            return self._acknowledge()
        if self.deadline is None and done > self._acked:
            self.deadline = now - now % ACK_GRAIN_NS + ACK_DELAY_NS
        return []

    def _acknowledge(self) -> list[Effect]:
        self._acked, self.deadline, self._came_bytes = self.done(), None, 0
        return [*self._say(m.Ack(self._acked)), *self._acknowledge_here()]


def _losses(message: m.Gap | m.HereGap, missing: int) -> list[Effect]:
    """What an application is told of deliveries that do not come: not of those that have expired."""
    if not message.exact:
        return [Lost(0, message.reason)]
    lost = missing - message.expired
    return [Lost(lost, message.reason)] if lost > 0 else []


def _remaining(publish: m.Publish, time_ns: int) -> m.Publish:
    """A publication as it is sent at this time: some of its lifetime may be over."""
    if not (publish.expires_ns and publish.published_ns and time_ns):
        return publish
    return aged(publish, publish.published_ns, time_ns)


EVENTS: dict[type, Callable[[Client, Any, int], list[Effect]]] = {
    Received: Client.on_received,
    LinkDown: Client.on_link_down,
    Tick: Client.on_tick,
}

FROM_BROKER: dict[type, Callable[[Client, Any, int], list[Effect]]] = {
    m.Welcome: Client.on_welcome,
    m.Deliver: Client.on_deliver,
    m.Current: Client.on_current,
    m.Late: Client.on_late,
    m.Gap: Client.on_gap,
    m.Settled: Client.on_settled,
    m.Published: Client.on_published,
    m.Resend: Client.on_resend,
    m.Interest: Client.on_interest,
    m.Echo: Client.on_echo,
    m.NoResponders: Client.on_no_responders,
    m.Here: Client.on_here,
    m.HereGap: Client.on_here_gap,
    m.CaughtUp: Client.on_caught_up,
}
