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
      | at an unexpected broker:                                     |
      |----------------------->|---- Recall ------------------------>|  where it was
      |                        |<--- Recalled -----------------------|

Routing knows nothing of this: to the broker, the replicator is one more session. Replicators speak to
each other directly, and every message may be lost: a virtual client without news ends with its lease.
"""

from __future__ import annotations

from collections.abc import Mapping

from wayfare.core import messages as m
from wayfare.core.border import Border
from wayfare.core.deadlines import VIRTUAL
from wayfare.core.ear import Ear
from wayfare.core.effects import Effect, Post, Send
from wayfare.core.filters import Filter
from wayfare.core.history import Backlog, Limits, Stored, in_order, size_of, thinned
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
from wayfare.core.sessions import Session
from wayfare.core.templates import Template
from wayfare.core.virtual import Ahead, Listened, Virtual, check_length, parsed, template_of
from wayfare.errors import FilterError, ProtocolError

RENEWALS = 3  # of a lease, before it ends: two of them may be lost
VIRTUAL_MAX = 100_000  # virtual clients of one broker
NOTHING_HEARD = (0, 0)
NO_STREAM = "its broker has forgotten what it follows: something may be missing"


class Replicator:
    """The virtual clients of one broker."""

    def __init__(self, name: BrokerId, border: Border, ahead: Ahead) -> None:
        self.name = name
        self.border = border
        self.ahead = ahead
        self.virtual: dict[ClientId, Virtual] = {}
        self.ear = Ear(ClientId(f"~{name}"), border)
        self._by_link: dict[LinkId, Virtual] = {}

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
        expected = virtual is not None
        if virtual is None:
            virtual = self._add(message.client)
        previous = message.previous[0][0] if message.previous else self.name
        forgotten = not expected and previous == self.name and heard != NOTHING_HEARD
        lost = (1, NO_STREAM) if forgotten else _resume(virtual, heard)
        left = virtual.backlog.take_back()
        self._connect(virtual, link)
        virtual.renew_at = self._next_renewal(virtual, now) if expected else now + self._renewal_ns
        virtual.epoch, virtual.version, virtual.until = message.epoch, 0, None
        virtual.attached = now
        virtual.follows, virtual.state = follows, followed.state
        self._begin_backlog(virtual)
        virtual.stream = message.epoch
        virtual.past.clear()
        virtual.held.clear()
        self._listen(virtual)
        if lost is not None:
            virtual.backlog.lose(*lost, exact=False)
        effects: list[Effect] = []
        virtual.recalling = None
        if not expected and previous != self.name:
            virtual.recalling = now + self.limits.recall_ns
            self._arm(virtual, virtual.recalling)
            effects.append(Post(previous, m.Recall(self.name, virtual.client, virtual.epoch)))
        self._replay(virtual, left, now)
        effects += self.push(virtual)
        self._arm(virtual, virtual.renew_at)
        return effects + self._hand_over(virtual, previous, expected, heard, now)

    def on_follow(self, session: Session, message: m.Follow, now: int) -> list[Effect]:
        virtual = self.virtual.get(session.client)
        template = template_of(message.text)
        if virtual is None or virtual.link != session.link:
            virtual = virtual or self._add(session.client)
            assert session.link is not None
            self._connect(virtual, session.link)
            virtual.epoch, virtual.stream, virtual.until = session.epoch, session.epoch, None
            self._begin_backlog(virtual)
            virtual.attached = now
        if len(virtual.follows) >= FOLLOWS_MAX and template not in virtual.follows:
            raise ProtocolError(f"a client follows at most {FOLLOWS_MAX} filters")
        check_length({**virtual.follows, template: message.terms}, virtual.state)
        virtual.follows[template] = message.terms
        return self._changed(virtual, now)

    def on_unfollow(self, session: Session, message: m.Unfollow, now: int) -> list[Effect]:
        virtual = self._served(session)
        if virtual is None or virtual.follows.pop(template_of(message.text), self) is self:
            return []
        if not virtual.follows:
            return self._leave(virtual, virtual.epoch + 1, now)
        return self._changed(virtual, now)

    def on_state(self, session: Session, message: State, now: int) -> list[Effect]:
        """The client is somewhere else, or different: what it follows means something else now."""
        virtual = self._served(session)
        if virtual is None:
            return []
        check_length(virtual.follows, message)
        before, virtual.state = virtual.state, message
        self._listen(virtual)
        self._replay(virtual, _undelivered(virtual), now)
        effects = self.push(virtual)
        if (before.values, before.areas) != (message.values, message.areas):
            effects += self._tell_others(virtual, now)
        return effects

    def on_ack(self, session: Session, message: m.HereAck, now: int) -> list[Effect]:
        virtual = self._served(session)
        if virtual is None:
            return []
        virtual.backlog.acknowledge(message.number)
        virtual.past = {number for number in virtual.past if number > message.number}
        return self.push(virtual)

    def on_link_down(self, link: LinkId) -> None:
        virtual = self._by_link.get(link)
        if virtual is not None:
            self._disconnect(virtual)

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

    def _served(self, session: Session) -> Virtual | None:
        """The virtual client that delivers on this connection."""
        return None if session.link is None else self._by_link.get(session.link)

    def _changed(self, virtual: Virtual, now: int) -> list[Effect]:
        """The client follows something else."""
        self._listen(virtual)
        self._replay(virtual, _undelivered(virtual), now)
        return [*self.push(virtual), *self._tell_others(virtual, now)]

    # Between replicators

    def on_posted(self, message: m.Peers, now: int) -> list[Effect]:
        if isinstance(message, m.Shadow):
            return self._on_shadow(message, now)
        if isinstance(message, m.Forget):
            virtual = self.virtual.get(message.client)
            if virtual is not None and virtual.epoch < message.epoch:
                self._remove(virtual)
            return []
        if isinstance(message, m.Recall):
            return self._on_recall(message, now)
        return self._on_recalled(message, now)

    def _hand_over(
        self,
        virtual: Virtual,
        previous: BrokerId,
        expected: bool,
        heard: tuple[int, int],
        now: int,
    ) -> list[Effect]:
        """Tell the replicators around that the client is here now."""
        newset = self._next(self.name)
        oldset: dict[BrokerId, None] = {}  # in order: what is sent must not depend on hashes
        if previous != self.name:
            oldset = dict.fromkeys([*self._next(previous), previous])
        # Where nobody expected it, nobody knows who else listens.
        fresh = [one for one in newset if not expected or one not in oldset or one == previous]
        left_ns = virtual.renew_at - self._renewal_ns + self.limits.lease_ns - now
        shadow = self._shadow(virtual, max(1, left_ns), heard)
        return [
            *(Post(one, shadow) for one in fresh),
            *(
                Post(one, m.Forget(virtual.client, virtual.epoch))
                for one in oldset
                if one not in newset
            ),
        ]

    def _tell_others(self, virtual: Virtual, now: int) -> list[Effect]:
        virtual.version += 1
        virtual.renew_at = now + self._renewal_ns
        self._arm(virtual, virtual.renew_at)
        shadow = self._shadow(virtual, self.limits.lease_ns)
        return [Post(one, shadow) for one in self._next(self.name)]

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
            self._disconnect(virtual)  # it only looks alive
        virtual.epoch, virtual.version = message.epoch, message.version
        virtual.until = now + min(message.lease_ns, self.limits.lease_ns)
        self._arm(virtual, virtual.until)
        epoch, number = message.followed.heard
        if epoch and epoch == virtual.stream:
            virtual.backlog.resume(number)
        virtual.follows, virtual.state = follows, message.followed.state
        virtual.recalling = None
        virtual.held.clear()
        self._listen(virtual)
        return []

    def _on_recall(self, message: m.Recall, now: int) -> list[Effect]:
        virtual = self.virtual.get(message.client)
        kept: list[m.Kept] = []
        if virtual is not None:
            room = REPLY_BYTES_MAX
            waiting = [(stored, put) for _, stored, put in virtual.backlog.waiting]
            for stored, put in [*waiting, *self.ear.kept(virtual).values()][-REPLY_KEPT_MAX:]:
                room -= stored.size
                if room < 0:
                    break
                kept.append(m.Kept(stored.notification, now - put))
        answer = m.Recalled(message.client, message.epoch, tuple(kept))
        return [Post(message.broker, answer)]

    def _on_recalled(self, message: m.Recalled, now: int) -> list[Effect]:
        virtual = self.virtual.get(message.client)
        if virtual is None or virtual.epoch != message.epoch or virtual.recalling is None:
            return []
        kept = [
            (Stored(one.notification, size_of(one.notification)), now - one.age_ns)
            for one in message.kept
        ]
        return self._open(virtual, kept, now)

    def _open(self, virtual: Virtual, kept: list[Put], now: int) -> list[Effect]:
        """It waits no longer: first what was kept, then what came meanwhile."""
        virtual.recalling = None
        held, virtual.held = virtual.held, []
        here = _unsent(virtual)  # kept here, and put there by a location change while it waited
        newest = {one.notification.publisher: one.notification.number for one, _ in here}
        past = list(here)
        late: list[Put] = []  # it will come here by itself, or not
        for stored, put in kept:
            one = stored.notification
            behind = one.number > newest.get(one.publisher, 0)
            (late if put >= virtual.attached and behind else past).append((stored, put))
        self._put_past(virtual, sorted(past, key=_when), now)
        asked = self._asked(virtual)
        there: set[tuple[ClientId, int]] = set()
        for stored, put in in_order(sorted([*late, *held], key=_when)):
            one = stored.notification
            key = one.publisher, one.number
            if key not in there and any(filter.matches(one.attributes) for filter in asked):
                there.add(key)
                virtual.backlog.put(stored, put, self.limits)
        return self.push(virtual)

    # Notifications

    def hear(self, now: int) -> list[Effect]:
        """Take what the broker has for virtual clients: keep it, and deliver it to who is here."""
        effects: list[Effect] = []
        for stored, came in self.ear.heard:
            number, live = self.ear.sort(stored, came, now)
            for virtual in map(self.virtual.__getitem__, live):
                if number is not None:
                    virtual.told.add(number)
                effects += self._deliver(virtual, stored, now)
        self.ear.clear()
        return effects

    def _deliver(self, virtual: Virtual, stored: Stored, now: int) -> list[Effect]:
        if virtual.recalling is None:
            virtual.backlog.put(stored, now, self.limits)
            return self.push(virtual)
        virtual.held.append((stored, now))
        if len(virtual.held) > self.limits.held_count:
            return self._open(virtual, [], now)
        return []

    def lose(self, why: str) -> list[Effect]:
        """Something may be lost that was to come here: tell every client that is here."""
        effects: list[Effect] = []
        for virtual in self._by_link.values():
            virtual.backlog.lose(1, why, exact=False)
            effects += self.push(virtual)
        return effects

    def push(self, virtual: Virtual) -> list[Effect]:
        if virtual.link is None or virtual.recalling is not None:
            return []
        return [
            Send(
                virtual.link,
                m.HereGap(one.number, one.reason, one.exact)
                if isinstance(one, m.Gap)
                else m.Here(one.number, one.notification, one.number in virtual.past),
            )
            for one in virtual.backlog.take(self.limits.window)
        ]

    def _replay(self, virtual: Virtual, left: list[Put], now: int) -> None:
        """Deliver what is kept for where the client is now, and was not delivered."""
        again = {None, *((one.notification.publisher, one.notification.number) for one, _ in left)}
        virtual.told = {one for one in virtual.told if self.ear.key(one) not in again}
        kept = self.ear.kept(virtual)
        virtual.told |= kept.keys()
        self._put_past(virtual, sorted([*left, *kept.values()], key=_when), now)

    def _put_past(self, virtual: Virtual, kept: list[Put], now: int) -> None:
        exact = self._asked(virtual)
        there: set[tuple[ClientId, int]] = set()
        for stored, put in in_order(thinned(kept, self._asked(virtual), now, moved=False)):
            one = stored.notification
            key = one.publisher, one.number
            if key not in there and any(filter.matches(one.attributes) for filter in exact):
                there.add(key)
                virtual.backlog.put(stored, put, self.limits)
                virtual.past.add(virtual.backlog.last)

    def _asked(self, virtual: Virtual) -> dict[Filter, Terms | None]:
        """What the client wants where it is, and of what it missed."""
        listened = virtual.listened.values()
        return {one.exact: one.terms for one in listened if one.exact is not None}

    # Virtual clients

    def _add(self, client: ClientId) -> Virtual:
        if len(self.virtual) >= VIRTUAL_MAX:
            raise ProtocolError(f"a broker has at most {VIRTUAL_MAX} virtual clients")
        virtual = self.virtual[client] = Virtual(client, self.border.memory)
        return virtual

    def _begin_backlog(self, virtual: Virtual) -> None:
        virtual.backlog.clear()
        virtual.backlog = Backlog(0, self.border.memory, virtual)

    def _connect(self, virtual: Virtual, link: LinkId) -> None:
        if virtual.link is not None:
            self._by_link.pop(virtual.link, None)
        virtual.link = link
        self._by_link[link] = virtual

    def _disconnect(self, virtual: Virtual) -> None:
        """Its client is gone, and maybe comes back: go on listening for it."""
        assert virtual.link is not None
        del self._by_link[virtual.link]
        virtual.link = virtual.recalling = None
        held, virtual.held = virtual.held, []
        for stored, put in held:
            virtual.backlog.put(stored, put, self.limits)

    def _leave(self, virtual: Virtual, epoch: int, now: int) -> list[Effect]:
        """Its client follows nothing any more: nobody has to listen."""
        self._remove(virtual)
        others = [] if virtual.until is not None else self._next(self.name)
        return [Post(one, m.Forget(virtual.client, epoch)) for one in others]

    def _remove(self, virtual: Virtual) -> None:
        if virtual.link is not None:
            del self._by_link[virtual.link]
            virtual.link = None
        virtual.follows = {}
        virtual.backlog.clear()
        self.border.memory.forget(virtual)
        self._listen(virtual)
        del self.virtual[virtual.client]
        self.border.deadlines.disarm(VIRTUAL, virtual.client)

    def _listen(self, virtual: Virtual) -> None:
        """Subscribe to what its subscriptions mean now, and then unsubscribe from what they meant.

        FilterError: that is too much, and it is a virtual client no more.
        """
        before = virtual.listened
        try:
            virtual.listened = self._meaning(virtual, before)
        except FilterError:
            self._remove(virtual)
            raise
        now = virtual.listened
        for template, listened in now.items():
            if before.get(template) is not listened:
                self.ear.add(listened, virtual.client)
        for template, listened in before.items():
            if now.get(template) is not listened:
                self.ear.remove(listened, virtual.client)

    def _meaning(
        self, virtual: Virtual, before: Mapping[Template, Listened]
    ) -> dict[Template, Listened]:
        state, ahead = virtual.state, self.ahead
        now: dict[Template, Listened] = {}
        same_client = virtual.meant == (state, virtual.until is None)
        virtual.meant = state, virtual.until is None
        for template, terms in virtual.follows.items():
            known = before.get(template)
            if same_client and known is not None and known.terms == terms:
                now[template] = known
                continue
            ranged = ahead.ranged(template, state, self.name)
            same = known is not None and (known.ranged, known.terms) == (ranged, terms)
            since = known.since if known is not None and same else self.ear.store.next
            listened = Listened(ranged, terms, since, None)
            if virtual.until is None:
                exact, chains = ahead.exact(template, state), ahead.chains(template, state)
                listened = Listened(ranged, terms, since, exact, chains)
            now[template] = listened
        return now

    # Time

    def on_due(self, client: ClientId, now: int) -> list[Effect]:
        """A virtual client may have to stop recalling, to end with its lease, or to renew others'."""
        virtual = self.virtual.get(client)
        if virtual is None:
            return []
        effects: list[Effect] = []
        if virtual.recalling is not None and virtual.recalling <= now:
            effects += self._open(virtual, [], now)
        if virtual.until is not None:
            if virtual.until <= now:
                self._remove(virtual)
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

    def _arm(self, virtual: Virtual, at: int) -> None:
        self.border.deadlines.arm(VIRTUAL, virtual.client, at)

    def _arm_all(self, virtual: Virtual) -> None:
        """Arm what a virtual client waits for."""
        self._arm(virtual, virtual.renew_at if virtual.until is None else virtual.until)
        if virtual.recalling is not None:
            self._arm(virtual, virtual.recalling)

    def _renew(self, virtual: Virtual, now: int) -> list[Effect]:
        """Say that its client is still here, if it is."""
        if virtual.link is None:
            sessions = self.border.of(virtual.client)
            if not sessions or sessions[-1].epoch < virtual.epoch:  # it has gone on, or was ended
                virtual.until = now + self.limits.lease_ns
                self._listen(virtual)
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


def _unsent(virtual: Virtual) -> list[Put]:
    """What is not on its way to the client yet, taken back."""
    unsent = virtual.backlog.take_back()
    virtual.past = {number for number in virtual.past if number <= virtual.backlog.last}
    return unsent


def _undelivered(virtual: Virtual) -> list[Put]:
    """What is not on its way to the client yet, also what came while it waits for a recall, taken back."""
    held, virtual.held = virtual.held, []
    return [*_unsent(virtual), *held]


def _resume(virtual: Virtual, heard: tuple[int, int]) -> tuple[int, str] | None:
    """Put back what the client has not got; what was lost, if anything."""
    epoch, number = heard
    backlog = virtual.backlog
    if epoch == virtual.stream and backlog.resume(number):
        lost = backlog.last - number - len(backlog.waiting)
        return (lost, backlog.why) if lost else None
    backlog.resume(backlog.acked)
    return None


def _when(kept: Put) -> int:
    return kept[1]
