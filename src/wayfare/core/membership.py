"""A member of a queue group: the client's side as a state machine. What it is about is in groups.py.

    begin ---- Listen ---->  the host subscribes to the member's address and advertises that of the group
    on_listening ---- Enrol ---->  Enlist, to the broker of the client, until the coordinator answers
    on_notified ---- Ready ---->  the application, which calls `take` when it wants one, and `done` afterwards
    take, done, tick, on_connected, leave ---- Tell ---->  the coordinator: the host publishes it

What is assigned waits here until the application takes it, however late that is: it gets a notification only while
the lease holds; else the lease is renewed first. What waits when the member is expelled is void.

What a member tells the coordinator are publications, and those wait while the client is slowed for other readers. So
that it is not expelled meanwhile, a member that gets no answer enlists once more: that is no publication, and passes
them. It has said nothing new by that: neither the lease begins anew, nor is anything answered that still waits.

When a loss is reported to the client, its members ask what they missed. All do so at once, and the answers may be more
than there is room for behind a window that the gap has closed: that would be the next loss, for ever. So whoever is told
of another loss soon asks later, each time twice as late, and not at the same time as others.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.conditions import attr
from wayfare.core.filters import Filter
from wayfare.core.groups import (
    Assign,
    Done,
    Expelled,
    Full,
    Lease,
    Leave,
    Missed,
    Poll,
    encoded,
    group_id,
    to_member,
)
from wayfare.core.messages import ClientId, Enlist, Notification
from wayfare.core.predicates import Value
from wayfare.core.reserved import GROUP, listening_at

PREFETCH = 16  # notifications that a member may have without being done with them, unless it says otherwise
AWAY_NS = 10_000_000_000  # that a member may be silent, unless it says otherwise
SEEN_MIN = 64  # assignments of which a member knows that it had them, beside four prefetches
RENEWALS = 3  # in that time, as long as it has something
UNHEARD_MAX_NS = 60_000_000_000  # that what it publishes may wait, before it counts as lost
PAUSE_MAX_NS = (
    16 * ACK_DELAY_NS
)  # between two losses, and asking what it missed; at most twice that


class Listen(msgspec.Struct, frozen=True):
    """Subscribe to the first, advertise the second, and report when both are in effect."""

    wanted: Filter
    offered: Filter


class Enrol(msgspec.Struct, frozen=True):
    """Send this to the broker, if the client is connected; it is repeated."""

    message: Enlist


class Tell(msgspec.Struct, frozen=True):
    """Publish this."""

    attributes: dict[str, Value]
    payload: bytes


class Ready(msgspec.Struct, frozen=True):
    """Something waits for the application, which may `take` it."""


class Work(msgspec.Struct, frozen=True):
    """The application has taken this; the host reports when it is done with it."""

    number: tuple[int, int]  # term and number of the assignment
    notification: Notification
    redelivered: int  # how often another member may have had it


class Joined(msgspec.Struct, frozen=True):
    """The group is in effect: what is published from now on goes to one of its members."""


class Lacking(msgspec.Struct, frozen=True):
    """Tell the application that notifications are lost to the group."""

    count: int  # 0: nobody knows how many
    reason: str


class NoRoom(msgspec.Struct, frozen=True):
    """The group may not begin now, for this reason; the member asks again."""

    reason: str


Action = Listen | Enrol | Tell | Ready | Joined | Lacking | NoRoom


class Membership:
    """One member of one group."""

    def __init__(
        self,
        name: str,
        filter: Filter,
        address: str,
        prefetch: int = PREFETCH,
        away_ns: int = AWAY_NS,
        slow_ns: int | None = None,
    ) -> None:
        self.name, self.filter, self.address = name, filter, address
        self.prefetch, self.away_ns, self.slow_ns = prefetch, away_ns, slow_ns
        self.group = group_id(name, filter)
        self.wanted = listening_at(address)
        self.offered = Filter.where(attr(GROUP) == self.group)
        self.term = 0  # 0: no member, or not known to be one
        self.joined = False  # it has been a member at some time
        self.left = False
        self.connected = True
        self.held: dict[int, Assign] = {}  # assigned, and not taken by the application yet
        self.hand: dict[int, Assign] = {}  # taken in this term, and the application is not done
        self._done: list[int] = []  # of this term, and not sent yet
        self._lease_until = 0
        self._beat = 0  # counts what is sent
        self._missed = 0  # the last report of a loss that has come
        self._unsure = False  # something may have been assigned to it of which it does not know
        self._seen: dict[int, None] = {}  # numbers that came in this term: one may be sent again
        self._checked: int | None = None  # the beat of a check that was not answered yet
        self._pending: int | None = (
            None  # ... and of the last renewal: there is no other before that
        )
        self._sent: dict[int, int] = {}  # when, of what may still be answered
        self._listening = False
        self._coordinator = ClientId(
            ""
        )  # as it publishes; a new coordinator has forgotten what was before
        self._enrolled = (
            0  # a coordinator that has not heard this, or a later beat, has forgotten this member
        )
        self._enlisted_ns = 0  # when it last enlisted
        self._asked_ns: int | None = None  # when something was last sent that is answered
        self._due: int | None = None  # when to enlist, or to renew, again
        self._answered = 0  # the last beat that the coordinator has heard
        self._told = (
            0  # the beat of the last publication to it: those are not lost with a connection
        )
        # Since when the coordinator may not hear what is said to it; None: it has heard all.
        self._unheard_ns: int | None = None
        self._unanswered_ns = 0  # ... and since when it has answered nothing at all
        self._told_ns = 0  # when the last publication to it was made
        self._asks_at: int | None = None  # when it asks what it missed by a loss that came too soon
        self._missing_ns = 0  # when it last asked
        self._pause_ns = 0  # after the next loss that comes soon
        # A part of each pause, its own.
        self._share = sha256(address.encode()).digest()[0] / 256

    def begin(self) -> list[Action]:
        return [Listen(self.wanted, self.offered)]

    def on_listening(self, now: int) -> list[Action]:
        """Its address is in effect, and all brokers know each other."""
        self._listening = True
        return self._enrol(now, first=True)

    def on_notified(self, notification: Notification, now: int) -> list[Action]:
        """Something has come to its address."""
        said = to_member(notification.payload)
        if said is None or self.left:
            return []
        if isinstance(said, Full):
            return [Lacking(0, said.reason) if self.joined else NoRoom(said.reason)]
        if notification.publisher != self._coordinator:
            if isinstance(said, Missed | Expelled) or said.beat < self._enrolled:
                self._unsure |= isinstance(said, Assign)
                return []  # it does not know of the last time that this member came
            self._coordinator, self._missed = notification.publisher, 0
            self._begin_term(0)
        if isinstance(said, Missed):
            self._missed = max(self._missed, said.number)
            told = self._tell(now) if self.term and self.connected else []
            return [Lacking(said.count, said.reason), *told]
        if isinstance(said, Expelled):
            if said.term != self.term:
                return []
            self._begin_term(0)
            return self._enrol(now, first=True)
        actions: list[Action] = []
        if said.term < self.term:
            return []  # void
        if said.term > self.term:
            self._begin_term(said.term)
        if not self.joined:
            self.joined = True
            actions.append(Joined())
        self._extend(said.beat)
        self._on_heard(said.beat, now, enlisted=isinstance(said, Lease))
        if self._checked is not None and said.beat >= self._checked:
            self._checked = None
        if self._pending is not None and said.beat >= self._pending:
            self._pending = None
        if self._unsure:
            self._unsure = False
            actions += self._tell(now, check=True)
        elif isinstance(said, Poll):
            actions += self._renew(now)
        if isinstance(said, Assign):
            actions += self._on_assign(said, now)
        actions += self._offer(now)
        if self._due is None and self._pending is None and self._has_something():
            self._due = max(now, (self._asked_ns or now) + self.away_ns // RENEWALS)
        return actions

    def _on_assign(self, said: Assign, now: int) -> list[Action]:
        if said.number not in self._seen:
            self.held[said.number] = said
            self._seen[said.number] = None
            while len(self._seen) > SEEN_MIN + 4 * self.prefetch:
                del self._seen[next(iter(self._seen))]
            return []
        if said.number in self._has():
            return []
        self._done.append(said.number)  # the coordinator may not have heard that it is done
        return self._tell(now)

    def take(self, now: int) -> tuple[Work | None, list[Action]]:
        """The application wants the next one. None: nothing waits, or the lease is over and is renewed first."""
        if not self.held:
            return None, []
        if now >= self._lease_until:
            return None, self._ask(now) if self.connected else []
        number = next(iter(self.held))
        one = self.hand[number] = self.held.pop(number)
        return Work((one.term, number), one.notification, one.redelivered), []

    def put_back(self, number: tuple[int, int], redelivered: int) -> None:
        """The application is not done with this, and takes it again, unless it is void by now."""
        term, place = number
        if term == self.term and place in self.hand:
            again = msgspec.structs.replace(self.hand.pop(place), redelivered=redelivered)
            self.held = {place: again, **self.held}

    def done(self, number: tuple[int, int]) -> bool:
        """The application is done with this; whether there is something to `flush`."""
        term, place = number
        if term == self.term and self.hand.pop(place, None) is not None:
            self._done.append(place)
        return bool(self._done)

    def flush(self, now: int) -> list[Action]:
        """Tell the coordinator what is done."""
        return self._tell(now) if self._done else []

    def leave(self, now: int) -> list[Action]:
        """Be no member any more: what is not done is for others."""
        if self.left:
            return []
        told = self.flush(now)
        self.left, self._due = True, None
        self.held.clear()
        if not self._listening:
            return []
        return [*told, Tell({GROUP: self.group}, encoded(Leave(self.address)))]

    def on_lost(self, now: int) -> list[Action]:
        """A loss was reported to the client: maybe of an assignment, or the coordinator has forgotten its members."""
        if not self._listening or self.left or self._asks_at is not None:
            return []
        if self._pause_ns and now - self._missing_ns <= 2 * self._pause_ns and self.connected:
            self._asks_at = now + int(self._pause_ns * (1 + self._share))
            self._pause_ns = min(2 * self._pause_ns, PAUSE_MAX_NS)
            self._arm(now, self._asks_at - now)
            return []
        self._pause_ns = ACK_DELAY_NS  # the window may be closed for so long
        return self._ask_for_missing(now)

    def _ask_for_missing(self, now: int) -> list[Action]:
        self._asks_at, self._missing_ns = None, now
        checked: list[Action] = []
        if self.term and self.connected:
            checked = self._tell(now, check=True)
        else:  # it may be a member by now: it asks once it knows
            self._unsure = True
        return [*checked, *self._enrol(now, first=True)]

    def on_disconnected(self) -> None:
        """Nothing is said to anybody until the client is connected again."""
        self.connected, self._due = False, None
        if self._asks_at is not None:
            self._ask_for_missing(self._missing_ns)  # when it is connected again

    def on_connected(self, now: int) -> list[Action]:
        """The client is back, or somewhere else: renew the lease, or enlist again."""
        self.connected = True
        # The coordinator may have answered meanwhile: some relocation strategies lose what comes for who is away.
        self._unanswered_ns = now
        if self.left or not self._listening:
            return []
        if not self.term:
            return self._enrol(now)
        if self._may_be_forgotten():  # what said that it is there was lost with the connection
            return [*self._renew(now), *self._enrol(now)]
        return [*self._keep_alive(now), *self._renew(now)]

    def tick(self, now: int) -> list[Action]:
        if self._due is None or now < self._due or self.left:
            return []
        self._due = None
        if self._asks_at is not None:
            if now >= self._asks_at:
                return self._ask_for_missing(now)
            self._arm(now, self._asks_at - now)
        if not self.term:
            return self._enrol(now)
        actions = self._keep_alive(now)
        if self._has_something() or self._checked is not None:
            actions += self._renew(now)
        if self._may_be_forgotten():
            if now - self._enlisted_ns >= self.away_ns:
                actions += self._enrol(now)
            elif self.connected:
                self._arm(now, self._enlisted_ns + self.away_ns - now)
        return actions

    def next_deadline(self) -> int | None:
        return self._due

    def _may_be_forgotten(self) -> bool:
        """Whether it has said again that it is there, and that was not heard."""
        return self._enrolled > self._answered

    def _has_something(self) -> bool:
        return bool(self.held or self.hand)

    def _has(self) -> set[int]:
        """What was assigned to it in this term, and is not done."""
        return {*self.held, *self.hand}

    def _begin_term(self, term: int) -> None:
        """What was assigned before is void; what the application has taken, it has."""
        self.term = term
        self.held.clear()
        self.hand.clear()
        self._seen.clear()
        self._done.clear()
        self._checked = self._pending = self._unheard_ns = None
        self._lease_until = 0

    def _extend(self, beat: int) -> None:
        """The coordinator has heard this, after it was sent."""
        sent = self._sent.get(beat)
        if sent is not None:
            self._lease_until = max(self._lease_until, sent + self.away_ns)
            self._sent = {one: at for one, at in self._sent.items() if one >= beat}

    def _offer(self, now: int) -> list[Action]:
        """Something may be ready for the application."""
        if not self.held:
            return []
        if now >= self._lease_until:
            return self._ask(now)
        self._arm(now)
        return [Ready()]

    def _ask(self, now: int) -> list[Action]:
        """The lease is over: renew it."""
        if self._asked_ns is not None and now - self._asked_ns < self.away_ns // RENEWALS:
            self._arm(now)  # the answer is on its way
            return []
        return [*self.flush(now), *self._renew(now)]

    def _arm(self, now: int, for_ns: int = 0) -> None:
        if not self.connected:
            return
        due = now + (for_ns or self.away_ns // RENEWALS)
        self._due = due if self._due is None else min(due, self._due)

    def _enrol(self, now: int, *, first: bool = False) -> list[Action]:
        """Say that it is there; again after a while, until that is answered."""
        if first:
            self._enrolled = self._beat + 1
        if not self.connected or self.left:
            return []
        self._arm(now, self.away_ns)
        self._asked_ns = self._enlisted_ns = now
        return [self._enlist(self._next_beat(now))]

    def _enlist(self, beat: int) -> Enrol:
        waits = (self.prefetch, self.away_ns, self.slow_ns)
        return Enrol(Enlist(self.name, self.filter, self.address, beat, *waits))

    def _keep_alive(self, now: int) -> list[Action]:
        """Enlist once more if nothing that was said has been heard for a while.

        A coordinator that has answered nothing for as long as this member may be silent cannot be reached: then
        that would pile up. One that answers, and has not heard for long what was published, may never hear it:
        some relocation strategies lose what a publisher says where it has just come to.
        """
        if self._unheard_ns is None or not self.connected:
            return []
        if now - self._unanswered_ns >= self.away_ns:
            return []
        due = self._unheard_ns + self.away_ns // RENEWALS
        if now < due:
            self._arm(now, due - now)
            return []
        self._unheard_ns = now
        self._arm(now)
        enlisted = self._enlist(self._answered)
        if now - self._told_ns >= UNHEARD_MAX_NS:
            return [*self._tell(now, check=True), enlisted]
        return [enlisted]

    def _on_heard(self, beat: int, now: int, *, enlisted: bool) -> None:
        """The coordinator has heard this, and answered; with `enlisted`, maybe what passed what it has not heard."""
        if enlisted or beat > self._answered:
            self._unanswered_ns = now
            self._unheard_ns = None if beat >= self._told else now
        self._answered = max(self._answered, beat)

    def _renew(self, now: int) -> list[Action]:
        """Renew the lease, unless the last renewal is still on its way: while the coordinator cannot be reached, they would pile up."""
        if self._pending is not None:
            return []
        return self._tell(now, check=self._checked is not None)

    def _tell(self, now: int, *, check: bool = False) -> list[Action]:
        """What is done by now; if that is nothing, it renews the lease.

        With `check`, something that either side has said may be lost: all that is done, and all that is not,
        is said again until the coordinator answers.
        """
        numbers, has, beat = tuple(self._done), None, self._next_beat(now)
        self._told, self._told_ns = beat, now
        if check:
            has = tuple(sorted(self._has()))
            numbers = tuple(one for one in self._seen if one not in has)
            self._checked = beat
        if check or not numbers:
            self._asked_ns, self._pending = now, beat
        self._done.clear()
        self._due = None
        if self._unheard_ns is None:
            self._unheard_ns = self._unanswered_ns = now
        self._arm(now)
        if (due := self._unheard_ns + self.away_ns // RENEWALS) > now:
            self._arm(now, due - now)
        done = Done(self.address, self.term, numbers, beat, has, self._missed)
        return [Tell({GROUP: self.group}, encoded(done))]

    def _next_beat(self, now: int) -> int:
        self._beat += 1
        self._sent[self._beat] = now
        while len(self._sent) > self.prefetch + RENEWALS:
            del self._sent[next(iter(self._sent))]
        return self._beat
