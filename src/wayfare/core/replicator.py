"""The replicator: between the virtual clients of a broker and the broker itself.

What a client follows (filters with `myloc` or `my.<name>`) is the business of a virtual client at its
border broker, and of others where it may come to next (nlb). All of them listen to what concerns the
range of their own broker, and keep it. The one whose client is there delivers: first what it kept for
the place where the client is, then live.

    client          replicator, the same everywhere           other replicators
      | Attach, Follow, State  |                                     |
      |----------------------->|  subscribes at its broker           |
      |                        |---- Shadow: listen for it, too ---->|  newset \\ oldset
      |                        |---- Forget ------------------------>|  oldset \\ newset
      |<------- Here ----------|
      | where nobody has listened for its location (see searches.py):|
      |----------------------->|---- Recall ------------------------>|  where it was, and near there
      |                        |<--- Recalled -----------------------|

Routing knows nothing of this: to the broker, the replicator is one more session. Replicators speak to
each other directly, and every message may be lost: a virtual client without news ends with its lease.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core.border import LISTENING_PLACE, OVERTAKEN, Border
from wayfare.core.buffers import Id, age_ns
from wayfare.core.costs import Wants, templates_of
from wayfare.core.deadlines import VIRTUAL
from wayfare.core.ear import Ear, Meanings
from wayfare.core.effects import Effect, Post, Send
from wayfare.core.filters import Filter
from wayfare.core.history import (
    ENDLESS,
    FORGOTTEN_PAST,
    Backlog,
    Limits,
    Stored,
    apart,
    has_expired,
    in_order,
    size_of,
)
from wayfare.core.history import Kept as Put
from wayfare.core.messages import (
    FOLLOWS_MAX,
    REPLY_BYTES_MAX,
    REPLY_KEPT_MAX,
    BrokerId,
    ClientId,
    LinkId,
    State,
    Terms,
)
from wayfare.core.pace import Pace
from wayfare.core.past_requests import PastRequests
from wayfare.core.predicates import Value
from wayfare.core.prediction import JOURNEY_NS, START
from wayfare.core.searches import (
    ANY,
    RECALLS_MAX,
    Query,
    Search,
    asked_of_publishers,
    lowest,
)
from wayfare.core.sessions import PastQuery, Session
from wayfare.core.templates import Template
from wayfare.core.thinning import Thinning
from wayfare.core.virtual import (
    PLACES_MAX,
    Ahead,
    Chains,
    Listened,
    Virtual,
    area_of,
    check_length,
    parsed,
    template_of,
)
from wayfare.errors import FilterError, ProtocolError

RENEWALS = 3  # of a lease, before it ends: two of them may be lost
VIRTUAL_MAX = 100_000  # virtual clients of one broker
TOLD_MIN = 64  # ids that a virtual client may always know without looking for them in its buffers
THIN_MIN = 16  # notifications that are kept for a client that is away before terms are applied
THIN_BYTES_MIN = 65_536
NOTHING_HEARD = (0, 0)
NOT_RECALLED = "its last broker had more of what it follows than it could send"
NO_STREAM = "its broker has forgotten what it follows: something may be missing"
NOT_ANSWERED = (
    "its last broker did not say what it kept of what it follows: something may be missing"
)
TOO_MUCH_HELD = (
    "too much came while it waited for what its last broker kept: something may be missing"
)


class Replicator:
    """The virtual clients of one broker."""

    def __init__(self, name: BrokerId, border: Border, ahead: Ahead, pasts: PastRequests) -> None:
        self.name = name
        self.border = border
        self.ahead = ahead
        self.pasts = pasts
        self.virtual: dict[ClientId, Virtual] = {}
        self.ear = Ear(ClientId(f"~{name}"), border)
        self.learner = ahead.learner(name)
        self.pace = Pace()
        self._by_link: dict[LinkId, Virtual] = {}
        self._queries: dict[int, Virtual] = {}  # who waits for replies to these

    @property
    def limits(self) -> Limits:
        return self.border.limits

    def take_over(self, virtual: Virtual) -> None:
        """A virtual client as it was before."""
        self.virtual[virtual.client] = virtual
        if virtual.link is not None:
            self._by_link[virtual.link] = virtual
        for listened in virtual.listened.values():
            self.ear.add(listened, virtual.client)
        if virtual.search is not None:
            virtual.search.hold(self.border.memory)
            self._queries.update(dict.fromkeys(virtual.search.queries, virtual))
        self._arm_all(virtual)

    # From the client

    def on_attach(self, link: LinkId, message: m.Attach, now: int) -> list[Effect]:
        """A client is here: its virtual client delivers from now on."""
        virtual = self.virtual.get(message.client)
        followed = message.followed
        if followed is None or not followed.follows:
            return [] if virtual is None else self._leave(virtual, message.epoch, now)
        follows, heard = parsed(followed.follows), followed.heard
        check_length(follows, followed.state)
        expected = virtual is not None and bool(virtual.follows)
        if virtual is None:
            virtual = self._add(message.client)
        previous, began = message.previous[0] if message.previous else (self.name, 0)
        # Its session ended here while it was away: since then, only what has room in the buffers was kept.
        stopped = virtual.until is not None and previous == self.name
        stopped &= virtual.epoch == virtual.stream == began and heard != NOTHING_HEARD
        if expected and virtual.stream == began:
            previous = self.name  # its home, which delivered what it got there
        self._put_back(virtual)
        forgotten = not expected and previous == self.name and heard != NOTHING_HEARD
        lost = "" if forgotten else _resume(virtual, heard)
        if forgotten or stopped:
            lost = NO_STREAM
        left = virtual.backlog.take_back()
        self._connect(virtual, link)
        virtual.renew_at = self._next_renewal(virtual, now) if expected else now + self._renewal_ns
        if previous != self.name or not expected or virtual.until is not None:
            virtual.came = (START if previous == self.name else previous), now
            virtual.located = virtual.valued = now
        virtual.epoch, virtual.version, virtual.until = message.epoch, 0, None
        virtual.attached = now
        self._locate(virtual, followed.state.location, now)
        self._value(virtual, followed.state, now)
        known = expected and _is_alike(virtual, follows, followed.state)
        virtual.follows, virtual.state = follows, followed.state
        self._begin_backlog(virtual, now)
        virtual.stream = message.epoch
        virtual.past.clear()
        self._listen(virtual, now)
        if lost:
            virtual.backlog.lose(1, lost, exact=False)
        recalls = previous != self.name and not (expected and _listened_ahead(virtual))
        if previous != self.name:
            self._end_search(virtual)
        if recalls:
            self._begin_search(virtual, previous, now)
        self._replay(virtual, left, now)
        effects = self.push(virtual, now)
        self._arm(virtual, virtual.renew_at)
        handed = self._hand_over(virtual, previous, known, heard, now)
        return effects + (self._recall(virtual, message, handed, heard) if recalls else handed)

    def on_follow(self, session: Session, message: m.Follow, now: int) -> list[Effect]:
        virtual = self.virtual.get(session.client)
        template = template_of(message.text)
        if virtual is None or virtual.link != session.link:
            virtual = virtual or self._add(session.client)
            assert session.link is not None
            self._connect(virtual, session.link)
            virtual.epoch, virtual.stream, virtual.until = session.epoch, session.epoch, None
            self._begin_backlog(virtual, now)
            virtual.attached = now
            virtual.came, virtual.located, virtual.valued = (START, now), now, now
        if len(virtual.follows) >= FOLLOWS_MAX and template not in virtual.follows:
            raise ProtocolError(f"a client follows at most {FOLLOWS_MAX} filters")
        check_length({**virtual.follows, template: message.terms}, virtual.state)
        virtual.follows[template] = message.terms
        if not message.since_ns:
            return self._changed(virtual, now)
        self._listen(virtual, now)  # before anybody is asked for the past
        self._look_back(virtual, template, now - message.since_ns, now)
        return [*self._changed(virtual, now), *self._go_on(virtual, now)]

    def on_unfollow(self, session: Session, message: m.Unfollow, now: int) -> list[Effect]:
        virtual = self._served(session)
        if virtual is None or virtual.follows.pop(template_of(message.text), self) is self:
            return []
        if virtual.search is not None:
            virtual.search.since.pop(template_of(message.text), None)
        if not virtual.follows:
            return self._rest(virtual, now)
        return self._changed(virtual, now)

    def on_state(self, session: Session, message: State, now: int) -> list[Effect]:
        """The client is somewhere else, or different: what it follows means something else now."""
        virtual = self._served(session)
        if virtual is None:
            return []
        check_length(virtual.follows, message)
        self._locate(virtual, message.location, now)
        self._value(virtual, message, now)
        known, virtual.state = _is_alike(virtual, virtual.follows, message), message
        self._listen(virtual, now)
        if virtual.search is not None:
            self._ask_anew(virtual, virtual.search, now)
        self._replay(virtual, self._undelivered(virtual), now)
        effects = self.push(virtual, now) + self._go_on(virtual, now)
        if not known:
            effects += self._tell_others(virtual, now)
        return effects

    def on_ack(self, session: Session, message: m.HereAck, now: int) -> list[Effect]:
        virtual = self._served(session)
        if virtual is None:
            return []
        virtual.backlog.acknowledge(message.number)
        virtual.past = {number for number in virtual.past if number > message.number}
        effects = self.push(virtual, now)
        if virtual.episode is not None:
            effects += self.border.backpressure.on_ack(virtual, now)
        return effects

    def on_link_down(self, link: LinkId, now: int) -> None:
        virtual = self._by_link.get(link)
        if virtual is not None and virtual.follows:
            self._disconnect(virtual, now)
        elif virtual is not None:
            self._remove(virtual, now)

    def on_left(self, client: ClientId, epoch: int, now: int) -> list[Effect]:
        """A client has left for good, or its earlier process is not the one any more."""
        virtual = self.virtual.get(client)
        if virtual is None or virtual.epoch > epoch:
            return []
        return self._leave(virtual, epoch + 1, now)

    def leave(self, client: ClientId, now: int) -> list[Effect]:
        """Nobody listens ahead for this client any more."""
        virtual = self.virtual.get(client)
        return [] if virtual is None else self._leave(virtual, virtual.epoch + 1, now)

    def followed_by(self, client: ClientId) -> list[Filter]:
        """What a client gets because of where it is now."""
        virtual = self.virtual.get(client)
        if virtual is None:
            return []
        return [self.ahead.exact(template, virtual.state) for template in virtual.follows]

    def wants_of(self, client: ClientId) -> Wants:
        """What a client follows that has a session here; elsewhere it is charged there."""
        virtual = self.virtual.get(client)
        if virtual is None or not self.border.of(client):
            return {}
        return templates_of(virtual.follows)

    def _served(self, session: Session) -> Virtual | None:
        """The virtual client that delivers on this connection."""
        return None if session.link is None else self._by_link.get(session.link)

    def _changed(self, virtual: Virtual, now: int) -> list[Effect]:
        """The client follows something else."""
        self._listen(virtual, now)
        self._replay(virtual, self._undelivered(virtual), now)
        return [*self.push(virtual, now), *self._tell_others(virtual, now)]

    # Between replicators

    def on_posted(self, sender: BrokerId, message: m.Peers, now: int) -> list[Effect]:
        if isinstance(message, m.Shadow):
            return self._on_shadow(message, now)
        if isinstance(message, m.Forget):
            self._forget(message, now)
            return []
        if isinstance(message, m.Recall):
            answer = self._on_recall(message, now)
            if message.forget:
                self._forget(message, now)
            return answer
        return self._on_recalled(sender, message, now)

    def _forget(self, message: m.Forget | m.Recall, now: int) -> None:
        virtual = self.virtual.get(message.client)
        if virtual is not None and virtual.epoch < message.epoch:
            self._learn(virtual, message.broker, now)
            self._remove(virtual, now)

    def _hand_over(
        self,
        virtual: Virtual,
        previous: BrokerId,
        known: bool,
        heard: tuple[int, int],
        now: int,
    ) -> list[Effect]:
        """Tell the replicators around that the client is here now.

        Not those that listen for it already, if it is `known` that they listen for the same. If the next
        brokers are learnt, all are told, as each has to know the others.
        """
        before = self._next(previous) if previous != self.name else []
        if self.learner is not None:
            before = [one for one in virtual.others if one != self.name]
        newset = self._expect(virtual, now)
        oldset = dict.fromkeys(before)  # in order: what is sent must not depend on hashes
        if previous != self.name:
            oldset[previous] = None
        known = known and self.learner is None
        fresh = [one for one in newset if not known or one not in oldset or one == previous]
        left_ns = virtual.renew_at - self._renewal_ns + self.limits.lease_ns - now
        shadow = self._shadow(virtual, max(1, left_ns), heard)
        return [
            *(Post(one, shadow) for one in fresh),
            *(
                Post(one, m.Forget(virtual.client, virtual.epoch, self.name))
                for one in oldset
                if one not in newset
            ),
        ]

    def _tell_others(self, virtual: Virtual, now: int) -> list[Effect]:
        virtual.version += 1
        virtual.renew_at = now + self._renewal_ns
        self._arm(virtual, virtual.renew_at)
        before, others = virtual.others, self._expect(virtual, now)
        shadow = self._shadow(virtual, self.limits.lease_ns)
        forget = m.Forget(virtual.client, virtual.epoch + 1)
        return [
            *(Post(one, shadow) for one in others),
            *(Post(one, forget) for one in before if one not in others),
        ]

    def _expect(self, virtual: Virtual, now: int) -> list[BrokerId]:
        """Where the client of this virtual client, which is here, may go next."""
        if self.learner is None:
            virtual.others = ()
            return self._next(self.name)
        expected = self.learner.expected(_previous(virtual, now), virtual.client)
        virtual.others = tuple(one for one in expected if one != self.name)
        return list(virtual.others)

    def _learn(self, virtual: Virtual, to: BrokerId, now: int) -> None:
        """Its client is at that broker now, and was here last, perhaps."""
        if virtual.until is not None or to in ("", self.name):
            return
        self._locate(virtual, "", now)
        if self.learner is not None:
            previous = _previous(virtual, now)
            self.learner.went(previous, virtual.client, to, to in virtual.others)

    def _locate(self, virtual: Virtual, location: str, now: int) -> None:
        """Its client, which is or was here, is somewhere else in our range now, or at another broker."""
        if virtual.until is None and location != virtual.state.location:
            if virtual.state.location and now > virtual.located:
                self.pace.stayed(now - virtual.located)
            virtual.located = now

    def _value(self, virtual: Virtual, state: State, now: int) -> None:
        """Some of the values that are declared to change, and that it follows, may be others now."""
        names = [
            one for one in virtual.state.changes if any(one in f.names for f in virtual.follows)
        ]
        if _values(virtual.state, names) != _values(state, names):
            if now > virtual.valued:
                self.pace.kept(now - virtual.valued)
            virtual.valued = now

    def _next(self, broker: BrokerId) -> list[BrokerId]:
        return [one for one in dict.fromkeys(self.ahead.nlb(broker)) if one != self.name]

    def _shadow(
        self, virtual: Virtual, lease_ns: int, heard: tuple[int, int] = NOTHING_HEARD
    ) -> m.Shadow:
        return m.Shadow(
            self.name,
            virtual.client,
            virtual.epoch,
            virtual.version,
            lease_ns,
            m.Followed(
                tuple((one.text, terms) for one, terms in virtual.follows.items()),
                virtual.state,
                heard,
            ),
            virtual.others,
        )

    def _on_shadow(self, message: m.Shadow, now: int) -> list[Effect]:
        follows, virtual = parsed(message.followed.follows), self.virtual.get(message.client)
        if virtual is None:
            virtual = self._add(message.client)
        elif (message.epoch, message.version) < (virtual.epoch, virtual.version):
            return []
        elif virtual.link is not None:
            if message.epoch == virtual.epoch:
                return []
            self._disconnect(virtual, now)  # it only looks alive
        if virtual.epoch < message.epoch and virtual.follows:
            self._learn(virtual, message.broker, now)
        virtual.others = message.others
        virtual.epoch, virtual.version = message.epoch, message.version
        virtual.until = now + min(message.lease_ns, self.limits.lease_ns)
        self._arm(virtual, virtual.until)
        epoch, number = message.followed.heard
        if epoch and epoch == virtual.stream:
            virtual.backlog.resume(number)
        self._put_back(virtual)  # it may come back before the answer, or after it
        virtual.follows, virtual.state = follows, message.followed.state
        self._listen(virtual, now)
        return []

    def _begin_search(self, virtual: Virtual, previous: BrokerId, now: int) -> None:
        """Nobody listened for the location of this client here: look for what was kept elsewhere, and for others."""
        search = virtual.search = Search(now)
        virtual.recalling, virtual.asked = now + self.limits.recall_ns, virtual.epoch
        self._arm(virtual, virtual.recalling)
        search.brokers[previous] = True
        near = self._next(previous) if self.learner is None else []
        for broker in self._with_past(virtual, [*self._brokers_of_the_place(virtual), *near]):
            search.brokers.setdefault(broker, False)
        search.since = {
            one: now - age_ns(terms, self.limits) for one, terms in virtual.follows.items()
        }
        self._ask_publishers(virtual, search, search.since, now)

    def _look_back(self, virtual: Virtual, template: Template, since: int, now: int) -> None:
        """A client asks for the past of what it follows."""
        search = virtual.search = virtual.search or Search(now)
        virtual.recalling = now + self.limits.recall_ns
        self._arm(virtual, virtual.recalling)
        search.since[template] = min(since, search.since.get(template, since))
        search.promised[template] = None
        self._ask_publishers(virtual, search, [template], now)

    def _ask_publishers(
        self, virtual: Virtual, search: Search, templates: Iterable[Template], now: int
    ) -> None:
        """Ask the brokers of publishers what these published, if that was promised, or brokers remember."""
        assert virtual.recalling is not None
        groups: dict[tuple[int, bool], dict[Filter, Terms | None]] = {}
        for one in templates:
            listened, promised = virtual.listened.get(one), one in search.promised
            if listened is None or not (promised or self.limits.past_count):
                continue
            if listened.exact is not None and listened.exact.conjunctions:
                group = groups.setdefault((search.since[one], promised), {})
                group[listened.exact] = listened.terms
        for (since, promised), wanted in groups.items():
            filter, terms = asked_of_publishers(wanted, self.limits)
            past = PastQuery(filter, since, virtual.recalling)
            number = self.pasts.look(LISTENING_PLACE, past, terms, now)
            search.queries[number] = Query(past, terms, reports=promised)
            self._queries[number] = virtual
        self.border.memory.note(virtual)

    def _ask_anew(self, virtual: Virtual, search: Search, now: int) -> None:
        """Its client is somewhere else, or different, by now: the past of something else is wanted."""
        self._drop_queries(search)
        self._ask_publishers(virtual, search, search.since, now)

    def _drop_queries(self, search: Search) -> None:
        for number in search.queries:
            self._queries.pop(number, None)
        search.let_go(self.border.memory)
        search.queries.clear()

    def _brokers_of_the_place(self, virtual: Virtual) -> list[BrokerId]:
        places = self.ahead.places.places
        there = (places[one].broker for one in area_of(virtual.state) if one in places)
        return [BrokerId(one) for one in there if one]

    def _with_past(self, virtual: Virtual, brokers: Iterable[BrokerId]) -> list[BrokerId]:
        """Those of these brokers that may have kept something for the location of a client, but not too many."""
        meant = {
            template: listened.exact
            for template, listened in virtual.listened.items()
            if listened.exact is not None
        }
        found: list[BrokerId] = []
        for broker in dict.fromkeys(brokers):
            if len(found) < RECALLS_MAX and broker != self.name:
                ranged = (self.ahead.ranged(one, virtual.state, broker) for one in meant)
                if any(map(Filter.overlaps, ranged, meant.values())):
                    found.append(broker)
        return found

    def _recall(
        self, virtual: Virtual, message: m.Attach, handed: list[Effect], heard: tuple[int, int]
    ) -> list[Effect]:
        """Ask the last broker of a client what it kept, and others what they have, beside what a handover says.

        If they need not listen any more, the same message says so: nothing is forgotten before it is recalled.
        """
        _, epoch = message.previous[0]
        if heard != NOTHING_HEARD and heard[0] != epoch:  # of an attachment in vain since then
            heard = epoch, 0
        assert virtual.search is not None
        recalls: list[Effect] = []
        for broker, owes in virtual.search.brokers.items():
            forget = Post(broker, m.Forget(message.client, message.epoch, self.name))
            recall = self._request(virtual, heard if owes else NOTHING_HEARD)
            recalls.append(Post(broker, replace(recall, forget=forget in handed)))
            handed = [one for one in handed if one != forget]
        return [*recalls, *handed]

    def _request(self, virtual: Virtual, heard: tuple[int, int] = NOTHING_HEARD) -> m.Recall:
        follows = tuple((one.text, terms) for one, terms in virtual.follows.items())
        asked = self.name, virtual.client, virtual.epoch
        return m.Recall(*asked, heard, state=virtual.state, follows=follows)

    def _end_search(self, virtual: Virtual) -> Search:
        """Wait for nothing any more; returns what has come."""
        search, virtual.search = virtual.search or Search(), None
        virtual.recalling = None
        for number in search.queries:
            self._queries.pop(number, None)
        search.let_go(self.border.memory)
        self.border.memory.note(virtual)
        return search

    def on_past_reply(self, reply: m.PastReply, now: int) -> list[Effect]:
        virtual = self._queries.get(reply.number)
        search = None if virtual is None else virtual.search
        query = None if search is None else search.queries.get(reply.number)
        if virtual is None or query is None or not query.past.left:  # it came too late
            return []
        self.pasts.take_reply(query.past, reply, now)
        self.border.memory.note(virtual)
        return [] if reply.more else self._go_on(virtual, now)

    def lose_past(self) -> None:
        """Something is lost between brokers: it may have been a request for the past, or a reply."""
        for virtual in self._queries.values():
            if virtual.search is not None:
                virtual.search.doubt()

    def _go_on(self, virtual: Virtual, now: int) -> list[Effect]:
        """Deliver if nothing is to come any more that it waits for."""
        search = virtual.search
        if search is None or virtual.until is not None:
            return []
        waits = bool(search.brokers)
        for number, one in search.queries.items():
            if one.reports:  # else nobody waits for a second round
                self.pasts.is_answered(LISTENING_PLACE, number, one.past, one.terms, now)
            waits |= one.past.left > 0
        return [] if waits else self._open(virtual, now)

    def _on_recall(self, message: m.Recall, now: int) -> list[Effect]:
        virtual = self.virtual.get(message.client)
        kept: list[Put] = []
        losses: list[m.Loss] = []
        if virtual is not None:
            undone, losses = apart(virtual.backlog.above(_heard_here(virtual, message.heard)))
            undone += virtual.thinning or ()
            if virtual.search is not None:
                undone += virtual.search.found
            kept = [*undone, *virtual.held, *self._kept(virtual, message.state)]
        began, _ = message.heard
        if began and (virtual is None or virtual.stream < began):
            losses.append(m.Loss(0, 1, NO_STREAM, exact=False))
        elif virtual is not None and virtual.search is not None and virtual.asked < message.epoch:
            search = virtual.search
            if search.is_owed or search.lost:  # it waits for an answer itself
                losses.append(m.Loss(0, 1, search.lost or NOT_ANSWERED, exact=False))
        owed = {_key(one) for one in kept}
        others = self._kept_for_others(virtual, message, now)
        kept += [one for one in others if _key(one) not in owed]
        kept = [one for one in kept if not has_expired(one[0].notification, one[1], now)]
        kept.sort(key=_when)
        newest = _newest(kept)
        dropped = sum(_key(one) in owed for one in kept[: len(kept) - len(newest)])
        answer = m.Recalled(
            message.client,
            message.epoch,
            tuple(m.Kept(stored.notification, now - put) for stored, put in newest),
            dropped + sum(one.count for one in losses),
            NOT_RECALLED if dropped else _reason(losses),
            () if virtual is None or virtual.epoch >= message.epoch else virtual.others,
        )
        return [Post(message.broker, answer)]

    def _kept_for_others(
        self, virtual: Virtual | None, message: m.Recall, now: int
    ) -> Iterator[Put]:
        """What was kept here for whomever, and is for where the client is now."""
        if message.state is None:
            return
        follows = parsed(message.follows)
        check_length(follows, message.state)
        wanted = {
            self.ahead.exact(one, message.state): now - age_ns(terms, self.limits)
            for one, terms in follows.items()
        }
        told = () if virtual is None else virtual.told
        for number, filters in self.ear.stored(wanted, [message.state], told).items():
            kept = self.ear.store.kept[number]
            if any(one.matches(kept.stored.notification.attributes) for one in filters):
                yield kept.stored, kept.came

    def _kept(self, virtual: Virtual, state: State | None) -> Iterable[Put]:
        """What is kept of the range here, and is for where the client was last, or is now."""
        meant: Meanings = {}
        if state is not None:
            try:
                check_length(virtual.follows, state)
                meant = {one: self.ahead.exact(one, state) for one in virtual.follows}
            except FilterError:  # it may follow something else by now
                state = None
        return self.ear.kept(virtual, state, meant).values()

    def _on_recalled(self, sender: BrokerId, message: m.Recalled, now: int) -> list[Effect]:
        """The answer counts also if the connection on which its client came has broken since."""
        virtual = self.virtual.get(message.client)
        if virtual is None or message.epoch not in (virtual.epoch, virtual.asked):
            return []
        search = virtual.search
        if search is not None and sender not in search.brokers:
            sender = ANY
        counts = virtual.asked == message.epoch and virtual.until is None
        owes = search is not None and search.brokers.get(sender, False)
        others = self._ask_listeners(virtual, message.others, asks=counts and owes)
        if search is None or not counts or sender not in search.brokers:
            return others
        del search.brokers[sender]
        kept = [
            (Stored(one.notification, size_of(one.notification)), now - one.age_ns)
            for one in message.kept
        ]
        search.found += kept
        if owes and message.lost:
            search.lost = message.reason or NOT_RECALLED
        self.border.memory.note(virtual)
        return [*others, *self._go_on(virtual, now)]

    def _ask_listeners(
        self, virtual: Virtual, listeners: Iterable[BrokerId], *, asks: bool
    ) -> list[Effect]:
        """These listened ahead while the client was at its last broker: ask them, or tell them to stop."""
        there = [one for one in listeners if one != self.name]
        asked = self._with_past(virtual, there) if asks else []
        effects: list[Effect] = []
        for broker in there:
            forget = broker not in virtual.others
            search = virtual.search
            if broker in asked and search is not None and broker not in search.brokers:
                search.brokers[broker] = False
                effects.append(Post(broker, replace(self._request(virtual), forget=forget)))
            elif forget:
                effects.append(Post(broker, m.Forget(virtual.client, virtual.epoch, self.name)))
        return effects

    def _open(self, virtual: Virtual, now: int, lost: str = "") -> list[Effect]:
        """It waits no longer: first what was kept, then what came meanwhile."""
        stopped = virtual.thinning is not None
        candidates = self._candidates(virtual) if stopped else {}
        search = self._end_search(virtual)
        lost = lost or search.lost
        here = [
            *self._stop(virtual),
            *_unsent(virtual),
        ]  # kept here, and put there by a location change while it waited
        if search.falls_short:
            virtual.backlog.lose(1, FORGOTTEN_PAST, exact=False)
        if lost:
            virtual.backlog.lose(1, lost, exact=False)
        before = {one.notification.publisher: one.notification.number for one, _ in here}
        came = {one.notification.publisher: one.notification.number for one, _ in virtual.held}
        past = list(here)
        # Of the present is what came since the client is here, where something later of its publisher has come by
        # itself. What is later than all that came may be ahead of something earlier, which would come behind it.
        late: list[Put] = []
        began = max(search.began, virtual.attached)  # its client may have come back meanwhile
        for stored, put in search.found:
            one = stored.notification
            between = before.get(one.publisher, 0) < one.number <= came.get(one.publisher, 0)
            (late if put >= began and between else past).append((stored, put))
        # Replies of publishers' brokers come behind whatever these have sent before. So if all are there, nothing
        # is under way any more that came before something in them.
        first = lowest(virtual.held)
        for stored, put in search.fetched():
            one = stored.notification
            behind = search.is_complete and one.number >= first.get(one.publisher, ENDLESS)
            between = before.get(one.publisher, 0) < one.number <= came.get(one.publisher, 0)
            is_late = behind or (put >= began and between)
            (late if is_late else past).append((stored, put))
        self._put_past(virtual, past, late, candidates, now)
        return self.push(virtual, now)

    # Notifications

    def hear(self, now: int) -> list[Effect]:
        """Take what the broker has for virtual clients: keep it, and deliver it to who is here."""
        effects: list[Effect] = []
        for stored, came in self.ear.heard:
            if not self.ear.session.marks.pass_on(stored.notification, now):
                effects += self._overtaken(stored, now)
                continue
            number, live = self.ear.sort(stored, came, now)
            for virtual in map(self.virtual.__getitem__, live):
                if number is not None:
                    virtual.told.add(number)
                    if len(virtual.told) > virtual.told_max:
                        self._forget_told(virtual)
                effects += self._deliver(virtual, stored, now)
        self.ear.clear()
        return effects

    def _overtaken(self, stored: Stored, now: int) -> list[Effect]:
        """Drop what comes behind something later of its publisher: a broker did not wait any more for an earlier one."""
        effects: list[Effect] = []
        for virtual in map(self.virtual.__getitem__, self.ear.live(stored.notification)):
            virtual.backlog.lose(1, OVERTAKEN, exact=False)
            effects += self.push(virtual, now)
        return effects

    def _forget_told(self, virtual: Virtual) -> None:
        """Forget what its buffers do not have any more."""
        virtual.told &= self.ear.ids(virtual)
        virtual.told_max = 2 * len(virtual.told) + TOLD_MIN

    def _deliver(self, virtual: Virtual, stored: Stored, now: int) -> list[Effect]:
        if virtual.recalling is None and virtual.thinning is None:
            effects: list[Effect] = []
            if virtual.link is None:
                self._make_room(virtual, stored, now)
            elif not virtual.backlog.is_open(self.limits.window, self.limits.window_bytes):
                effects = self.border.backpressure.on_queue(virtual, stored, None, now)
            virtual.backlog.put(stored, now, self.limits)
            return effects + self.push(virtual, now)
        virtual.held.append((stored, now))
        if len(virtual.held) <= self.limits.held_count:
            return []
        if virtual.recalling is not None:
            return self._open(virtual, now, TOO_MUCH_HELD)
        del virtual.held[0]
        virtual.overflowed += 1
        return []

    def _make_room(self, virtual: Virtual, stored: Stored, now: int) -> None:
        """Drop what the terms leave out of what is kept for a client that is away.

        So a limit of the backlog drops nothing that is wanted in favour of something that is not, and no loss is
        reported of what nobody wants. It is done now and then: what is left may double first.
        """
        backlog, (count, size) = virtual.backlog, virtual.thin_at
        if len(backlog) < count and backlog.bytes + stored.size <= size:
            return
        thinnings, asked = self.border.thinnings, virtual.wanted()
        if not any(asked.values()):
            self._leave_room(virtual)
            return
        if virtual.client in thinnings:
            return

        def thin(parts: list[list[Put]], unwanted: set[Stored], now: int) -> list[Effect]:
            if not parts:
                backlog.leave_out(unwanted)
                self._leave_room(virtual)
                return []
            thinning = Thinning(parts[0], asked, now, self.limits)

            def go_on(now: int) -> list[Effect]:
                return thin(parts[1:], unwanted | thinning.unwanted(parts[0]), now)

            if thinnings.is_done(thinning):
                return go_on(now)
            thinnings.go_on_with(virtual.client, thinning, go_on)
            self.border.go_on_soon()
            return []

        kept = [(one, put) for _, one, put in backlog.waiting]
        # Those that expire by themselves: when they are gone, the others are there.
        expiring = [one for one in kept if one[0].notification.expires_ns]
        lasting = [one for one in kept if not one[0].notification.expires_ns]
        thin([lasting, expiring], set(), now)

    def _leave_room(self, virtual: Virtual) -> None:
        """Terms were applied to what is kept for a client that is away: when to do it again."""
        backlog = virtual.backlog
        most, bytes_max = self.limits.backlog_count, self.limits.backlog_bytes
        virtual.thin_at = (
            max(min(2 * len(backlog) + THIN_MIN, most), len(backlog) + most // 8),
            max(min(2 * backlog.bytes + THIN_BYTES_MIN, bytes_max), backlog.bytes + bytes_max // 8),
        )

    def lose(self, why: str, now: int) -> list[Effect]:
        """Something may be lost that was to come here: tell every client that is here."""
        effects: list[Effect] = []
        for virtual in self._by_link.values():
            if virtual.follows:
                virtual.backlog.lose(1, why, exact=False)
                effects += self.push(virtual, now)
        return effects

    def push(self, virtual: Virtual, now: int) -> list[Effect]:
        waits = virtual.recalling is not None or virtual.thinning is not None
        if virtual.link is None or waits:
            return []
        here = self.border.places.located(virtual.state)
        return [
            Send(
                virtual.link,
                m.HereGap(one.number, one.reason, one.exact, one.expired)
                if isinstance(one, m.Gap)
                else m.Here(one.number, one.notification, one.number in virtual.past),
            )
            for one in virtual.backlog.take(self.limits.window, now, here, self.limits.window_bytes)
            if not isinstance(one, m.Settled)  # nothing comes late here
        ]

    def _replay(self, virtual: Virtual, left: list[Put], now: int) -> None:
        """Deliver what is kept for where the client is now, and was not delivered."""
        again = {None, *((one.notification.publisher, one.notification.number) for one, _ in left)}
        virtual.told = {one for one in virtual.told if self.ear.key(one) not in again}
        self._put_past(virtual, left, [], self._candidates(virtual), now)

    def _candidates(self, virtual: Virtual) -> dict[Id, dict[Filter, None]]:
        """What may be for where the client is; if nobody listened for it, also what was kept for others."""
        found = self.ear.candidates(virtual)
        search = virtual.search
        if search is None:
            return found
        wanted = {
            listened.exact: search.since[one]
            for one, listened in virtual.listened.items()
            if one in search.since and listened.exact is not None
        }
        for number, filters in self.ear.stored(wanted, [virtual.state], virtual.told).items():
            found.setdefault(number, {}).update(filters)
        return dict(sorted(found.items()))

    def _put_past(
        self,
        virtual: Virtual,
        left: list[Put],
        late: list[Put],
        candidates: Mapping[Id, Container[Filter]],
        now: int,
    ) -> None:
        """Deliver what its client wants of what is left, and of what the buffers may have; behind that, what is late.

        Now, or when it is known what that is. What comes meanwhile is held.
        """
        buffered = self.ear.store.kept
        some = [(buffered[one].stored, buffered[one].came) for one in candidates]
        there = {_key(one) for one in left}
        may_match = {
            one[0]: wanted
            for one, wanted in zip(some, candidates.values(), strict=True)
            if _key(one) not in there
        }
        once: dict[tuple[ClientId, int], Put] = {}  # else terms would count something twice
        for one in sorted([*left, *some], key=_when):
            once.setdefault(_key(one), one)
        kept = [*once.values(), *late]
        live = {stored for stored, _ in late}
        thinning = Thinning(
            kept,
            virtual.wanted(),
            now,
            self.limits,
            strict=True,
            candidates=may_match,
            live=live,
        )

        def put(now: int) -> None:
            found = {
                (one.notification.publisher, one.notification.number) for one in thinning.found
            }
            virtual.told |= {one for one in candidates if self.ear.key(one) in found}
            chosen = thinning.chosen()
            past = [one for one in chosen if one[0] not in live]
            self._put_chosen(virtual, past, [one for one in chosen if one[0] in live], now)

        def deliver(now: int) -> list[Effect]:
            put(now)
            return self.push(virtual, now)

        if not kept or self.border.thinnings.is_done(thinning):
            put(now)
        else:
            virtual.thinning = [*left, *late]
            self.border.thinnings.go_on_with(virtual.client, thinning, deliver)
            self.border.go_on_soon()

    def _put_chosen(self, virtual: Virtual, past: list[Put], late: list[Put], now: int) -> None:
        """Deliver this, and what was held; the terms are applied."""
        backlog, limits = virtual.backlog, self.limits
        virtual.thinning = None
        waiting = len(past) + len(late) + len(virtual.held)
        self.border.backpressure.expect(virtual, waiting, now)
        for stored, put in in_order(past):
            backlog.put(stored, put, limits)
            virtual.past.add(backlog.last)
        if virtual.recalling is None:
            late = [*late, *self._take_held(virtual)]
        once: dict[tuple[ClientId, int], Put] = {}
        for one in in_order(sorted(late, key=_when)):
            once.setdefault(_key(one), one)
        for stored, put in once.values():
            backlog.put(stored, put, limits)

    def _take_held(self, virtual: Virtual) -> list[Put]:
        """What came while it waited; what was too much is lost in front of that."""
        held, virtual.held = virtual.held, []
        if virtual.overflowed:
            virtual.backlog.lose(virtual.overflowed, "held_count")
            virtual.overflowed = 0
        return held

    def _stop(self, virtual: Virtual) -> list[Put]:
        """Apply no terms any more to what is kept; returns what no backlog has."""
        self.border.thinnings.stop(virtual.client)
        left, virtual.thinning = virtual.thinning, None
        return left or []

    def _put_back(self, virtual: Virtual) -> None:
        """What is not on its way to the client waits in its backlog again."""
        for stored, put in [*self._stop(virtual), *self._take_held(virtual)]:
            virtual.backlog.put(stored, put, self.limits)

    def _undelivered(self, virtual: Virtual) -> list[Put]:
        """What is not on its way to the client yet, also what came while it waited, taken back."""
        stopped, held = self._stop(virtual), self._take_held(virtual)
        return [*stopped, *_unsent(virtual), *held]

    # Virtual clients

    def _add(self, client: ClientId) -> Virtual:
        if len(self.virtual) >= VIRTUAL_MAX:
            raise ProtocolError(f"a broker has at most {VIRTUAL_MAX} virtual clients")
        virtual = self.virtual[client] = Virtual(client, self.border.memory)
        return virtual

    def _begin_backlog(self, virtual: Virtual, now: int) -> None:
        self.border.backpressure.end(virtual, now)
        virtual.backlog.clear()
        virtual.backlog = Backlog(0, self.border.memory, virtual)

    def _connect(self, virtual: Virtual, link: LinkId) -> None:
        if virtual.link is not None:
            self._by_link.pop(virtual.link, None)
        virtual.link = link
        self._by_link[link] = virtual

    def _disconnect(self, virtual: Virtual, now: int) -> None:
        """Its client is gone, and maybe comes back: go on listening for it, and waiting for its last broker."""
        assert virtual.link is not None
        self.border.backpressure.end(virtual, now)
        del self._by_link[virtual.link]
        virtual.link = None
        held = self._take_held(virtual) if virtual.recalling is None else []
        for stored, put in [*self._stop(virtual), *held]:
            virtual.backlog.put(stored, put, self.limits)

    def _leave(self, virtual: Virtual, epoch: int, now: int) -> list[Effect]:
        """Its client follows nothing any more: nobody has to listen."""
        forgotten = self._forget_elsewhere(virtual, epoch)
        self._remove(virtual, now)
        return forgotten

    def _rest(self, virtual: Virtual, now: int) -> list[Effect]:
        """Its client follows nothing on this connection for now: only the delivery numbers are kept.

        The client may follow something again, and deliveries, and acknowledgements of earlier ones, are
        still under way: so their numbers go on.
        """
        forgotten = self._forget_elsewhere(virtual, virtual.epoch + 1)
        self._end_search(virtual)
        virtual.state = m.NOWHERE
        virtual.told.clear()
        self._listen(virtual, now)
        self._undelivered(virtual)
        self.border.backpressure.end(virtual, now)
        self.border.deadlines.disarm(VIRTUAL, virtual.client)
        return [*self.push(virtual, now), *forgotten]

    def _forget_elsewhere(self, virtual: Virtual, epoch: int) -> list[Effect]:
        is_first = virtual.until is None and virtual.listened
        others = self._next(self.name) if self.learner is None else virtual.others
        return [Post(one, m.Forget(virtual.client, epoch)) for one in others if is_first]

    def _remove(self, virtual: Virtual, now: int) -> None:
        if virtual.link is not None:
            del self._by_link[virtual.link]
            virtual.link = None
        self.border.backpressure.end(virtual, now)
        virtual.follows = {}
        self._stop(virtual)
        self._end_search(virtual)
        virtual.backlog.clear()
        self.border.memory.forget(virtual)
        self._listen(virtual, now)
        del self.virtual[virtual.client]
        self.border.deadlines.disarm(VIRTUAL, virtual.client)

    def _listen(self, virtual: Virtual, now: int) -> None:
        """Subscribe to what its subscriptions mean now, and then unsubscribe from what they meant.

        FilterError: that is too much, and it is a virtual client no more.
        """
        before = virtual.listened
        try:
            virtual.listened = self._meaning(virtual, before)
        except FilterError:
            self._remove(virtual, now)
            raise
        after = virtual.listened
        for template, listened in after.items():
            if before.get(template) is not listened:
                self.ear.add(listened, virtual.client)
        for template, listened in before.items():
            if after.get(template) is not listened:
                self.ear.remove(listened, virtual.client)
        if virtual.episode is not None:
            virtual.episode.want(virtual.wanted(), self.limits.slow_publishers_ns)

    def _meaning(
        self, virtual: Virtual, before: Mapping[Template, Listened]
    ) -> dict[Template, Listened]:
        state, ahead = virtual.state, self.ahead
        now: dict[Template, Listened] = {}
        room = PLACES_MAX
        same_client = virtual.meant == (state, virtual.until is None)
        same_range = virtual.meant is not None and (
            (virtual.meant[0].values, virtual.meant[0].areas) == (state.values, state.areas)
        )
        virtual.meant = state, virtual.until is None
        for template, terms in virtual.follows.items():
            known = before.get(template)
            if same_client and known is not None and known.terms == terms:
                now[template] = known
                room -= len(known.placed)
                continue
            ranged = ahead.ranged(template, state, self.name)
            same = known is not None and (known.ranged, known.terms) == (ranged, terms)
            since = known.since if known is not None and same else self.ear.store.next
            if known is not None and same and same_range:
                placed = known.placed
            else:
                placed = ahead.placed(template, terms, state, self.name, room)
            room -= len(placed)
            exact, chains = None, Chains()
            if virtual.until is None:
                exact = ahead.exact(template, state)
                chains = ahead.chains(template, state, self.pace)
            now[template] = Listened(ranged, terms, since, exact, chains, placed)
        return now

    # Time

    def on_due(self, client: ClientId, now: int) -> list[Effect]:
        """A virtual client may have to stop recalling, to end with its lease, or to renew others'."""
        virtual = self.virtual.get(client)
        if virtual is None:
            return []
        effects: list[Effect] = []
        if virtual.recalling is not None and virtual.recalling <= now:
            search = virtual.search
            if search is not None and virtual.until is None:
                lost, is_owed = search.lost, search.is_owed
                search.give_up()
                effects += self._open(virtual, now, lost or (NOT_ANSWERED if is_owed else ""))
            else:
                self._end_search(virtual)
        if virtual.until is not None:
            if virtual.until <= now:
                self._remove(virtual, now)
        elif virtual.renew_at <= now:
            effects += self._renew(virtual, now)
        if self.virtual.get(client) is virtual:
            self._arm_all(virtual)
        return effects

    def extend_waits(self, by_ns: int, now: int) -> None:
        """Extend leases and recalls, but not beyond those of a new virtual client."""
        limits = self.limits
        for virtual in self.virtual.values():
            if virtual.until is not None:
                virtual.until = min(virtual.until + by_ns, now + limits.lease_ns)
            if virtual.recalling is not None:
                virtual.recalling = min(virtual.recalling + by_ns, now + limits.recall_ns)
                for query in virtual.search.queries.values() if virtual.search is not None else ():
                    query.past.until = virtual.recalling

    def _arm(self, virtual: Virtual, at: int) -> None:
        self.border.deadlines.arm(VIRTUAL, virtual.client, at)

    def _arm_all(self, virtual: Virtual) -> None:
        """Arm what a virtual client waits for."""
        if not virtual.follows:
            return
        self._arm(virtual, virtual.renew_at if virtual.until is None else virtual.until)
        if virtual.recalling is not None:
            self._arm(virtual, virtual.recalling)

    def _renew(self, virtual: Virtual, now: int) -> list[Effect]:
        """Say that its client is still here, if it is."""
        if virtual.link is None:
            sessions = self.border.of(virtual.client)
            if not sessions or sessions[-1].epoch < virtual.epoch:  # it has gone on, or was ended
                virtual.until = now + self.limits.lease_ns
                self._listen(virtual, now)
                return []
            away = sessions[-1].link is None
            if away and sessions[-1].away_since + self.limits.listen_ns <= now:
                return self._leave(virtual, virtual.epoch + 1, now)
        return self._tell_others(virtual, now)

    @property
    def _renewal_ns(self) -> int:
        return self.limits.lease_ns // RENEWALS

    def _next_renewal(self, virtual: Virtual, now: int) -> int:
        """When to tell all others again. A handover tells only some: all leases go on from the last time.

        Else nobody would ever renew them for a client that is off again before that is due.
        """
        if virtual.until is None:
            due = virtual.renew_at
        else:
            due = virtual.until - self.limits.lease_ns + self._renewal_ns
        return min(due, now + self._renewal_ns)

    # For who looks on

    def wanted_by(self, link: LinkId, message: m.AnyMessage) -> list[Filter]:
        """What a client would get if this message of it counted."""
        virtual = self._by_link.get(link)
        follows = dict(virtual.follows) if virtual is not None else {}
        state = virtual.state if virtual is not None else m.NOWHERE
        if isinstance(message, m.Attach):
            if message.followed is None:
                return []
            follows, state = parsed(message.followed.follows), message.followed.state
        elif isinstance(message, m.Follow):
            follows = {template_of(message.text): message.terms}
        elif isinstance(message, State):
            state = message
        else:
            return []
        return [self.ahead.exact(template, state) for template in follows]


def _is_alike(virtual: Virtual, follows: Mapping[Template, Terms | None], state: State) -> bool:
    """Whether what brokers listen to for a client that may come does not change by this."""
    if virtual.follows != follows or virtual.state.areas != state.areas:
        return False
    names = {name for template in follows for name in template.names}  # other values mean nothing
    return _values(virtual.state, names) == _values(state, names)


def _values(state: State, names: Container[str]) -> dict[str, tuple[bool, Value]]:
    """What these values are; `True` is not 1."""
    return {
        name: (type(value) is bool, value) for name, value in state.values.items() if name in names
    }


def _previous(virtual: Virtual, now: int) -> BrokerId:
    """Where its client came from; START if it is, or was, here for longer than a journey allows."""
    previous, since = virtual.came
    return START if now - since > JOURNEY_NS else previous


def _unsent(virtual: Virtual) -> list[Put]:
    """What is not on its way to the client yet, taken back."""
    unsent = virtual.backlog.take_back()
    virtual.past = {number for number in virtual.past if number <= virtual.backlog.last}
    return unsent


def _heard_here(virtual: Virtual, heard: tuple[int, int]) -> int:
    """Up to which delivery from here its client is known to have got everything."""
    epoch, number = heard
    return max(number, virtual.backlog.acked) if epoch == virtual.stream else virtual.backlog.acked


def _reason(losses: list[m.Loss]) -> str:
    """Why something is lost; empty: nothing is."""
    return losses[-1].why if losses else ""


def _newest(kept: list[Put]) -> list[Put]:
    """As many of them as one message holds, in the same order."""
    room = REPLY_BYTES_MAX
    for count, (stored, _) in enumerate(reversed(kept)):
        room -= stored.size
        if room < 0 or count == REPLY_KEPT_MAX:
            return kept[len(kept) - count :]
    return kept


def _resume(virtual: Virtual, heard: tuple[int, int]) -> str:
    """Put back what the client has not got; why something of it was lost, if it was."""
    backlog = virtual.backlog
    if not backlog.resume(_heard_here(virtual, heard)):
        backlog.resume(backlog.acked)
    return _reason(apart(backlog.above(backlog.acked))[1])


def _listened_ahead(virtual: Virtual) -> bool:
    """Whether what its client wants where it is now was listened to before it came.

    It may come to another broker without changing its location, which is in the range of the old one.
    """
    return all(
        one.exact is not None and one.ranged.covers(one.exact) for one in virtual.listened.values()
    )


def _key(kept: Put) -> tuple[ClientId, int]:
    return kept[0].notification.publisher, kept[0].notification.number


def _when(kept: Put) -> int:
    return kept[1]
