"""Queue groups: members share the notifications that match a filter, each goes to one of them.

A group has one coordinator, a broker that follows from the group's name and filter. It subscribes for the group like
a session, queues what comes, and assigns each notification to one member. What the two say to each other are ordinary
notifications: to the address of a member, which moves with its session, and to the address of the group.

    publishers --> coordinator: queue --> Assign --> member, wherever it is --> the application
                         ^                                |
                         +----- Done, Renew, Leave -------+

A member holds a lease: for `away_ns` after it has sent something that the coordinator answered, nothing that was assigned to it is
given to anybody else. It hands a notification to the application only while the lease holds, and else renews it first. The
coordinator waits for as long after it has heard of a member, which is later. So no two members ever have the same notification in
time, unless the first has handed it out and then fallen silent: then it is assigned again, marked as redelivered, and what is
still on its way to the silent member is void (`term`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from wayfare.core.border import LISTENING_PLACE, Border
from wayfare.core.conditions import attr
from wayfare.core.deadlines import GROUP as GROUP_TIMER
from wayfare.core.deadlines import Deadlines
from wayfare.core.effects import Effect
from wayfare.core.filters import Filter
from wayfare.core.history import Limits, Loss, Marks, Stored, has_expired, size_of
from wayfare.core.matching import FilterIndex
from wayfare.core.memory import BODY_BYTES, ENTRY_BYTES
from wayfare.core.messages import (
    OVER_NS,
    BrokerId,
    ClientId,
    Enlist,
    Notification,
    Number,
    Probe,
    Terms,
)
from wayfare.core.predicates import Value
from wayfare.core.reserved import ADDRESSES, GROUP, MEMBER
from wayfare.core.sessions import Episode, Session, Wait, Wanted

GROUP_PLACE = LISTENING_PLACE + 1  # of the session that subscribes for all groups of a broker
# That one broker coordinates; further groups are refused. An account begins no more than have room beside, so that none
# takes all the room.
GROUPS_MAX = 1_000
MEMBERS_MAX = 10_000  # of one group
REPORTS_MAX = 100  # of losses that no member of a group is known to have heard of
ENDED_MAX = 1_000  # groups that ended with something in their queue, until that is reported
ENLISTING_MAX = (
    1_000  # members at a broker that does not know all brokers yet; others enlist again later
)
ASSIGNMENTS = Filter.where(attr(MEMBER).exists())  # what a coordinator advertises

QUEUE_COUNT, QUEUE_BYTES = "group_count", "group_bytes"
WAYS_OUT = (
    "close the members of groups that are not needed, which end when they had no members for limits.group,"
    " or let more members share one group"
)
NO_MEMBERS = "the queue group had no members for too long"


# What a coordinator says to a member


class Assign(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """This notification is for you."""

    term: Number  # of this membership; messages of other terms are void
    number: Number  # of the notification in the queue
    notification: Notification
    redelivered: Number  # how often it was assigned before
    beat: Number  # the last thing that the coordinator has heard of the member


class Lease(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """You are a member."""

    term: Number
    beat: Number


class Expelled(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """You are not a member, or not any more: what was assigned to you in this term is not for you."""

    term: Number


class Missed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """This number of notifications is lost to the group; 0: it is unknown."""

    count: Number
    reason: str
    number: Number = 0  # of the report


class Poll(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Are you still a member? Nothing was heard of you for long."""

    term: Number
    beat: Number


class Full(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """There is no room for your group: ask again later."""

    reason: str


ToMember = Assign | Lease | Expelled | Missed | Poll | Full

# What a member says


class Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The application is done with these. Without any, it only renews the lease."""

    member: str
    term: Number
    numbers: tuple[Number, ...]
    beat: Number
    # What it has, if something that was assigned to it may be lost: then the rest is sent again.
    has: tuple[Number, ...] | None = None
    missed: Number = 0  # the last report of a loss that has come


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Give what I am not done with to somebody else."""

    member: str


FromMember = Done | Leave

_encoder = msgspec.msgpack.Encoder()
_to_member = msgspec.msgpack.Decoder(ToMember)
_from_member = msgspec.msgpack.Decoder(FromMember)


def encoded(message: ToMember | FromMember) -> bytes:
    return _encoder.encode(message)


def to_member(payload: bytes) -> ToMember | None:
    """What a coordinator says; None if that is nothing."""
    try:
        said: ToMember = _to_member.decode(payload)
        return said
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def from_member(payload: bytes) -> FromMember | None:
    try:
        said: FromMember = _from_member.decode(payload)
        return said
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def group_id(name: str, filter: Filter) -> str:
    """The address of a group: its name, and what its filter says."""
    digest = sha256("\0".join((name, str(filter))).encode()).hexdigest()
    return f"{name}:{digest[:32]}"


def coordinator(group: str, brokers: Iterable[BrokerId]) -> BrokerId:
    """The broker that coordinates a group: the same wherever the same brokers are known (rendezvous hashing)."""
    return max(brokers, key=lambda one: (sha256("\0".join((group, one)).encode()).digest(), one))


class Item(msgspec.Struct, eq=False):
    """A notification in the queue of a group, or in the hands of a member."""

    number: int
    stored: Stored
    redelivered: int = 0
    came: int = 0  # when


class Member:
    """One member, as its coordinator knows it."""

    __slots__ = (
        "assigned",
        "away_ns",
        "beat",
        "busy_ns",
        "client",
        "heard_ns",
        "polled",
        "prefetch",
        "slow_ns",
        "term",
    )

    def __init__(self, term: int, prefetch: int, away_ns: int, beat: int, now: int) -> None:
        self.term, self.prefetch, self.away_ns = term, prefetch, away_ns
        self.client = ClientId("")  # unknown
        self.slow_ns: int | None = None  # that publishers may be slowed; None: as the broker allows
        self.beat = beat  # the last thing that was heard of it
        self.heard_ns = now  # ... and when
        self.busy_ns = now  # since when it has something
        self.polled = False  # it was asked whether it is still there
        self.assigned: dict[int, Item] = {}  # by number

    def silent_at(self) -> int:
        """When what it has is given to others, unless something is heard of it."""
        return max(self.heard_ns, self.busy_ns) + self.away_ns

    def due_at(self, group_ns: int) -> int:
        """When it is silent for too long, or is asked whether it is still there."""
        if self.assigned or self.polled:
            return self.silent_at()
        return max(self.heard_ns + group_ns, self.silent_at())

    def told_of(self, item: Item, now: int) -> Assign:
        """The message that assigns this to it."""
        one = item.stored.notification
        if one.expires_ns:
            one = replace(one, expires_ns=max(OVER_NS, item.came + one.expires_ns - now))
        return Assign(self.term, item.number, one, item.redelivered, self.beat)


Said = tuple[str, ToMember]  # and to which member


class Report(msgspec.Struct, array_like=True):
    """A loss of which some members were told, and none is known to have heard."""

    number: int
    count: int
    why: str
    exact: bool
    members: dict[str, None]


class Group:
    """One queue group, at its coordinator: pure, and knows nothing of brokers."""

    def __init__(self, name: str, filter: Filter, now: int) -> None:
        self.name, self.filter = name, filter
        self.id = group_id(name, filter)
        self.publisher = ClientId(f"group:{self.id}:{now}")  # of what it sends
        self.published = 0
        self.members: dict[str, Member] = {}  # the member that is next in turn comes first
        self.queue: deque[Item] = deque()  # in order of number
        self.bytes = 0  # of the queue and of what is assigned
        self.count = 0  # likewise
        self.spare = self.spare_bytes = 0  # that the queue may keep beyond its limits
        self.episode: Episode | None = None  # publishers may be slowed for it
        self.account, self.noted = "", 0  # see memory.Consumer
        self.owner = ""  # the account of the member that began it
        self.confirmed = False  # everything that is published from now on comes here
        self.probe = 0  # which request says so
        self.empty_ns = now  # since when there are no members
        self.lost = 0  # that was not reported to a member yet
        self.why = ""
        self.exact = True
        self.reports: list[Report] = []  # the oldest first
        self.reported = 0  # the number of the last report
        self.redelivered = 0  # how often something was assigned again
        self.expired: list[Stored] = []  # what the queue had, to be forgotten
        self._count = 0  # notifications
        # Beyond those of an earlier coordinator that was forgotten: its members may not know that yet, and say that
        # they are done with what it had assigned to them.
        self._terms = now
        self._silences = Deadlines()  # of members: when each of them may be silent for too long
        self._untimed: dict[str, None] = {}  # members that may be due earlier than these say

    def roll_back(self, now: int) -> None:
        """What it has said since is forgotten: nothing has the same number."""
        self.publisher = ClientId(f"group:{self.id}:{now}")
        self._count = max(self._count, now)

    def items(self) -> Iterator[Item]:
        """What is kept."""
        yield from self.queue
        for member in self.members.values():
            yield from member.assigned.values()

    # What a reader is to backpressure.py

    @property
    def backlog(self) -> Group:
        return self

    @property
    def waiting(self) -> deque[Item]:
        return self.queue

    def allow(self, count: int, size: int) -> None:
        self.spare, self.spare_bytes = count, size

    def wanted(self) -> Wanted:
        bounds = [one.slow_ns for one in self.members.values()]
        longest = max((one for one in bounds if one is not None), default=None)
        slow_ns = None if None in bounds else longest
        return {self.filter: None if slow_ns is None else Terms(slow_ns=slow_ns)}

    def spares(self, publisher: ClientId) -> bool:
        """What a member is done with is a publication, too, and must not wait."""
        return any(one.client == publisher for one in self.members.values())

    def put(self, stored: Stored, limits: Limits, now: int) -> list[Stored]:
        """A notification has come; what is dropped to keep a limit."""
        self._count += 1
        self.queue.append(Item(self._count, stored, came=now))
        self.count += 1
        self.bytes += stored.size
        dropped: list[Stored] = []
        while self.queue:
            if len(self.queue) > limits.backlog_count + self.spare:
                why = QUEUE_COUNT
            elif self.bytes > limits.backlog_bytes + self.spare_bytes and len(self.queue) > 1:
                why = QUEUE_BYTES
            else:
                break
            oldest = self.queue[0]
            dropped.append(self._drop_oldest())
            if not has_expired(oldest.stored.notification, oldest.came, now):
                self.lose(1, why)
        return dropped

    def measure(self) -> int:
        return self.bytes + self.count * (BODY_BYTES + ENTRY_BYTES)

    def shed(self, size: int, why: str) -> list[Stored]:
        """Drop the oldest of the queue until this is at most so large. What is assigned stays."""
        dropped: list[Stored] = []
        while self.queue and self.measure() > size:
            dropped.append(self._drop_oldest())
        if dropped:
            self.lose(len(dropped), why)
        return dropped

    def _drop_oldest(self) -> Stored:
        oldest = self.queue.popleft().stored
        self.count -= 1
        self.bytes -= oldest.size
        return oldest

    def lose(self, count: int, why: str, *, exact: bool = True) -> None:
        self.lost, self.why, self.exact = self.lost + count, why, self.exact and exact

    def enlist(self, message: Enlist, now: int) -> list[Said]:
        """A member comes, or says once more that it is there."""
        member = self.members.get(message.member)
        if member is None:
            if len(self.members) >= MEMBERS_MAX:
                return []
            self._terms += 1
            member = self.members[message.member] = Member(
                self._terms, message.prefetch, message.away_ns, message.beat, now
            )
            self._untimed[message.member] = None
        member.client, member.slow_ns = message.client, message.slow_ns
        self._hear(member, message.beat, now)
        return [(message.member, Lease(member.term, member.beat))] if self.confirmed else []

    def confirm(self) -> list[Said]:
        """The subscriptions for the group are in effect: it begins."""
        self.confirmed = True
        return [(name, Lease(one.term, one.beat)) for name, one in self.members.items()]

    def on_done(self, message: Done, now: int) -> tuple[list[Said], list[Stored]]:
        """The replies to a member, and the notifications that need not be kept any more."""
        member = self.members.get(message.member)
        if member is None or member.term != message.term:
            return [(message.member, Expelled(message.term))], []
        self._hear(member, message.beat, now)
        if self.reports:
            self._settle(message)
        done = [member.assigned.pop(one) for one in message.numbers if one in member.assigned]
        self.bytes -= sum(one.stored.size for one in done)
        self.count -= len(done)
        said: list[Said] = []
        if not message.numbers or message.has is not None:
            said.append((message.member, Lease(member.term, member.beat)))
        if message.has is not None:
            lost = [one for number, one in member.assigned.items() if number not in message.has]
            said += [(message.member, member.told_of(one, now)) for one in lost]
        return said, [one.stored for one in done]

    def remove(self, name: str, now: int) -> None:
        """Not a member any more: what it is not done with is for others, first."""
        member = self.members.pop(name, None)
        if member is None:
            return
        self._silences.disarm(GROUP_TIMER, name)
        for item in member.assigned.values():
            item.redelivered += 1
            self.redelivered += 1
        both = [*member.assigned.values(), *self.queue]
        self.queue = deque(sorted(both, key=lambda one: one.number))
        if not self.members:
            self.empty_ns = now
        self._report_again(name)

    def _report(self) -> list[Said]:
        """Tell all members of a loss: one of them may be dead, and nobody knows yet."""
        if len(self.reports) == REPORTS_MAX:
            first, second = self.reports[:2]
            second.count, second.exact = first.count + second.count, first.exact and second.exact
            del self.reports[0]
        self.reported += 1
        self.reports.append(
            Report(self.reported, self.lost, self.why, self.exact, dict.fromkeys(self.members))
        )
        missed = Missed(self.lost if self.exact else 0, self.why, self.reported)
        self.lost, self.exact = 0, True
        return [(name, missed) for name in self.members]

    def _settle(self, message: Done) -> None:
        """A member has heard of losses, all that it was told of up to a report."""
        self.reports = [
            one
            for one in self.reports
            if one.number > message.missed or message.member not in one.members
        ]

    def _report_again(self, name: str) -> None:
        """If nobody else was told of a loss but a member that is gone, others are."""
        for one in self.reports:
            if name in one.members:
                del one.members[name]
                if not one.members:
                    self.lose(one.count, one.why, exact=one.exact)
        self.reports = [one for one in self.reports if one.members]

    def mind_silent(self, group_ns: int, now: int) -> list[Said]:
        """What was assigned to members that are silent for too long is for others; idle ones are asked."""
        said: list[Said] = []
        self._time_members(group_ns)
        for _, name in self._silences.take_due(now):
            assert isinstance(name, str)
            member = self.members[name]
            self._untimed[name] = None
            if member.due_at(group_ns) > now:
                continue
            if member.assigned or member.polled:
                self.remove(name, now)
                said.append((name, Expelled(member.term)))  # for when it is back
            else:
                member.polled, member.busy_ns = True, now
                said.append((name, Poll(member.term, member.beat)))
        return said

    def assign(self, now: int) -> list[Said]:
        """Give each notification of the queue to a member that may have more, in turn."""
        if not (self.confirmed and self.members):
            return []
        out: list[Said] = []
        if self.lost:
            out += self._report()
        if not self.queue:
            return out
        ready = [name for name, one in self.members.items() if len(one.assigned) < one.prefetch]
        turns = deque(ready)
        while self.queue and turns:
            if has_expired(self.queue[0].stored.notification, self.queue[0].came, now):
                self.expired.append(self._drop_oldest())
                continue
            name = turns.popleft()
            member, item = self.members[name], self.queue.popleft()
            if not (member.assigned or member.polled):
                member.busy_ns = now
                self._untimed[name] = None
            member.assigned[item.number] = item
            out.append((name, member.told_of(item, now)))
            self.members[name] = self.members.pop(name)  # behind the others
            if len(member.assigned) < member.prefetch:
                turns.append(name)
        return out

    def next_deadline(self, group_ns: int) -> int:
        """When to look at members that may be silent, or at a group without any; or earlier."""
        if not self.members:
            return self.empty_ns + group_ns
        self._time_members(group_ns)
        assert self._silences.next is not None
        return self._silences.next

    def _time_members(self, group_ns: int) -> None:
        for name in self._untimed:
            if name in self.members:
                self._silences.arm(GROUP_TIMER, name, self.members[name].due_at(group_ns))
        self._untimed.clear()

    def _hear(self, member: Member, beat: int, now: int) -> None:
        member.heard_ns, member.beat, member.polled = now, max(beat, member.beat), False


def _subscriptions(group: Group) -> tuple[Filter, Filter]:
    """What is subscribed to for a group; several may have the same filter."""
    return group.filter, Filter.where(attr(GROUP) == group.id)


class Groups:
    """The groups that one broker coordinates."""

    def __init__(self, name: BrokerId, border: Border) -> None:
        self.name = name
        self.groups: dict[str, Group] = {}  # by id
        self.refused = 0  # groups that were not begun, because there are too many
        self.ended: dict[str, int] = {}  # groups that ended, and how many were in their queues
        # Whether this broker has been told of all others: only then does it know who coordinates a group.
        self.knows_all = False
        self._enlisting: dict[str, Enlist] = {}  # by member: what waits for that
        self._border = border
        self.session = Session(
            ClientId(f"groups:{name}"), 0, GROUP_PLACE, 0, border.limits.marks_age_ns
        )
        self.session.wait = wait = Wait({}, 0)
        self.heard = wait.held  # what the broker has for groups, and losses
        self._index: FilterIndex[str] = FilterIndex()
        self._wanted: dict[Filter, int] = {}  # what is subscribed to, and for how many groups
        self._owned: dict[str, int] = {}  # groups of each account
        self._told = 0  # the last thing that was said for no group
        self._probes = 0
        self._resumed = False  # from a store: members may have said something meanwhile

    # What the broker reports

    def on_enlist(self, enlist: Enlist) -> list[Enlist]:
        """A member at this broker says that it is there; what can be sent to the coordinators.

        A broker that has lost its store does not know the others at first, and would choose a second coordinator. The
        neighbours tell it of them before they confirm what its clients advertise, and a member always advertises.
        """
        if self.knows_all:
            return [enlist]
        if len(self._enlisting) < ENLISTING_MAX:
            self._enlisting[enlist.member] = enlist
        self._border.convergence.on_probe(GROUP_PLACE, Probe(ads=1))
        return []

    def on_known(self) -> list[Enlist]:
        """All brokers are known; what has waited for that."""
        self.knows_all = True
        waiting = list(self._enlisting.values())
        self._enlisting.clear()
        return waiting

    def on_convene(self, enlist: Enlist, now: int) -> list[Effect]:
        """A member says that it is there, for the first time or again."""
        group = self.groups.get(group_id(enlist.group, enlist.filter))
        if group is None:
            if reason := self._shortage(enlist.account):
                self.refused += 1
                return self._tell(enlist.member, Full(reason), now)
            group = self._new(enlist, now)
        return self._go_on(group, group.enlist(enlist, now), now)

    def on_confirmed(self, probe: int, now: int) -> list[Effect]:
        """The subscriptions of groups up to this request are in effect."""
        effects: list[Effect] = []
        for group in list(self.groups.values()):
            if not group.confirmed and group.probe <= probe:
                effects += self._go_on(group, group.confirm(), now)
        return effects

    def hear(self, now: int) -> list[Effect]:
        """Take what the broker has for groups."""
        heard = list(self.heard)
        self.heard.clear()
        assert self.session.wait is not None
        self.session.wait.bytes = 0
        concerned: dict[str, list[Said]] = {}
        for one, _ in heard:
            if isinstance(one, Loss):
                for name, group in self.groups.items():
                    group.lose(one.count, one.why, exact=one.exact)
                    concerned.setdefault(name, [])
                continue
            self._border.memory.let_go(one)
            if self.session.marks.pass_on(one.notification, now):
                self._take(one, concerned, now)
        effects: list[Effect] = []
        for name, said in concerned.items():
            if name in self.groups:
                effects += self._go_on(self.groups[name], said, now)
        return effects + self._border.backpressure.take_out()

    def on_due(self, name: str, now: int) -> list[Effect]:
        group = self.groups.get(name)
        if group is None:
            return []
        if self._resumed:
            self._resumed = False
            self.extend_waits(now, now)
        said = group.mind_silent(self._border.limits.group_ns, now)
        if not group.members and group.empty_ns + self._border.limits.group_ns <= now:
            self._end(group, now)
            return []
        return self._go_on(group, said, now)

    def extend_waits(self, by_ns: int, now: int) -> None:
        """This process did not run for a while: members were not silent, but not heard."""
        for group in self.groups.values():
            for member in group.members.values():
                member.heard_ns = min(member.heard_ns + by_ns, now)

    def roll_back(self, now: int) -> None:
        """The store is an old one: what is sent from now on is new to everybody."""
        for group in self.groups.values():
            group.roll_back(now)

    def shed(self, group: Group, size: int, why: str) -> None:
        """Beyond a limit in sum, a queue loses its oldest."""
        memory, dropped = self._border.memory, group.shed(size, why)
        for stored in dropped:
            memory.let_go(stored)
        memory.shed += len(dropped)
        memory.note(group)

    def report(self, now: int) -> list[Effect]:
        """Tell the members of all groups what was lost."""
        effects: list[Effect] = []
        for group in self.groups.values():
            if group.lost:
                effects += self._go_on(group, [], now)
        return effects

    # Inside

    def _take(self, stored: Stored, concerned: dict[str, list[Said]], now: int) -> None:
        attributes = stored.notification.attributes
        if not ADDRESSES.isdisjoint(attributes):
            address = attributes.get(GROUP)
            group = self.groups.get(address) if isinstance(address, str) else None
            said = from_member(stored.notification.payload)
            if group is not None and said is not None:
                concerned.setdefault(group.id, []).extend(self._on_said(group, said, now))
            return
        memory, pressure = self._border.memory, self._border.backpressure
        for name in self._index.find(attributes):
            group = self.groups[name]
            if group.members and group.queue:
                pressure.out += pressure.on_queue(group, stored, None, now)
            memory.keep(stored)
            for dropped in group.put(stored, self._border.limits, now):
                memory.let_go(dropped)
            if group.measure() > group.noted + memory.room(group):
                memory.note(group)
            concerned.setdefault(name, [])

    def _on_said(self, group: Group, said: FromMember, now: int) -> list[Said]:
        if isinstance(said, Leave):
            group.remove(said.member, now)
            return []
        answers, done = group.on_done(said, now)
        for stored in done:
            self._border.memory.let_go(stored)
        return answers

    def _go_on(self, group: Group, said: list[Said], now: int) -> list[Effect]:
        """Say this to members, and assign what can be assigned."""
        effects: list[Effect] = []
        for member, message in [*said, *group.assign(now)]:
            group.published += 1
            notification = Notification(
                group.publisher, group.published, {MEMBER: member}, encoded(message)
            )
            effects += self._border.route(notification, None, now)
        for stored in group.expired:
            self._border.memory.let_go(stored)
        group.expired.clear()
        self._arm(group)
        if group.episode is not None:
            effects += self._look_at(group, now)
        return effects

    def _look_at(self, group: Group, now: int) -> list[Effect]:
        """The queue of a group that is congested may be shorter, or there may be no members any more."""
        pressure = self._border.backpressure
        if not group.members:
            pressure.end(group, now)
        return pressure.on_ack(group, now)

    def _arm(self, group: Group) -> None:
        due = group.next_deadline(self._border.limits.group_ns)
        self._border.deadlines.arm(GROUP_TIMER, group.id, due)

    def _shortage(self, account: str) -> str:
        """Why this account may not begin another group, or ""."""
        left, own = GROUPS_MAX - len(self.groups), self._owned.get(account, 0)
        if not left:
            return f"{self.name} coordinates {GROUPS_MAX} queue groups, and has no room: {WAYS_OUT}"
        if account and own >= left:
            return (
                f"the account {account} has begun {own} of the queue groups that {self.name} coordinates,"
                f" and may begin no more than have room beside, which are {left}: {WAYS_OUT}"
            )
        return ""

    def _tell(self, member: str, message: ToMember, now: int) -> list[Effect]:
        """Say this to a member of no group."""
        self._told = max(now, self._told + 1)  # also after a restart, it goes up
        attributes: dict[str, Value] = {MEMBER: member}
        said = Notification(self.session.client, self._told, attributes, encoded(message))
        return self._border.route(said, None, now)

    def _new(self, enlist: Enlist, now: int) -> Group:
        name = group_id(enlist.group, enlist.filter)
        group = Group(enlist.group, enlist.filter, now)
        group.owner = enlist.account
        if lost := self.ended.pop(name, 0):
            group.lose(lost, NO_MEMBERS)
        self.begin(group)
        self._probes += 1
        group.probe = self._probes
        self._border.convergence.on_probe(GROUP_PLACE, Probe(subs=self._probes))
        return group

    def begin(self, group: Group) -> None:
        """Subscribe for a group."""
        routing, session = self._border.routing, self.session
        if not self.groups:
            self._border.seat(session)
            routing.advertise(session.client, ASSIGNMENTS)
        self.groups[group.id] = group
        if group.owner:
            self._owned[group.owner] = self._owned.get(group.owner, 0) + 1
        self._index.add(group.id, group.filter)
        for filter in _subscriptions(group):
            self._wanted[filter] = self._wanted.get(filter, 0) + 1
            if self._wanted[filter] == 1:
                session.subscriptions[filter] = None
                routing.subscribe(session.client, filter, session.place)

    def _end(self, group: Group, now: int) -> None:
        self._border.backpressure.end(group, now)
        routing, session = self._border.routing, self.session
        for item in group.items():
            self._border.memory.let_go(item.stored)
        self._border.memory.forget(group)
        if lost := len(group.queue) + group.lost:
            self.ended[group.id] = lost
            while len(self.ended) > ENDED_MAX:
                del self.ended[next(iter(self.ended))]
        del self.groups[group.id]
        if group.owner:
            self._owned[group.owner] -= 1
            if not self._owned[group.owner]:
                del self._owned[group.owner]
        self._index.remove(group.id)
        for filter in _subscriptions(group):
            self._wanted[filter] -= 1
            if not self._wanted[filter]:
                del self._wanted[filter], session.subscriptions[filter]
                routing.unsubscribe(session.client, filter, session.place)
        self._border.deadlines.disarm(GROUP_TIMER, group.id)
        if not self.groups:
            routing.unadvertise(session.client, ASSIGNMENTS)
            self._border.unseat(session)
            self._border.convergence.forget(GROUP_PLACE)

    def subscriptions(self) -> dict[Filter, int]:
        """What has to be subscribed to for all groups, looked at one by one."""
        wanted: dict[Filter, int] = {}
        for group in self.groups.values():
            for filter in _subscriptions(group):
                wanted[filter] = wanted.get(filter, 0) + 1
        return wanted

    def kept(self) -> Iterator[Stored]:
        """Every notification that waits for members, or is not done."""
        for group in self.groups.values():
            yield from (item.stored for item in group.items())

    def facts(self) -> dict[str, int]:
        """Counts for operators."""
        groups = self.groups.values()
        assigned = [len(member.assigned) for one in groups for member in one.members.values()]
        return {
            "groups": len(groups),
            "members": len(assigned),
            "queued": sum(len(one.queue) for one in groups),
            "assigned": sum(assigned),
            "redelivered": sum(one.redelivered for one in groups),
            "refused": self.refused,
        }

    # Saving

    def save(self) -> bytes:
        """The groups as bytes; nothing may be left in `heard`."""
        if not (self.groups or self.ended or self.knows_all):
            return b""
        marks = self.session.marks
        return _encoder.encode(
            SavedGroups(
                [_saved(one) for one in self.groups.values()],
                self.ended,
                self._probes,
                marks.recent,
                marks.older,
                marks.turn_at,
                self.knows_all,
            )
        )

    def load(self, data: bytes) -> None:
        saved = _saved_decoder.decode(data)
        for one in saved.groups:
            group = _loaded(one)
            self.begin(group)
            for item in group.items():
                self._border.memory.keep(item.stored)
            self._border.memory.note(group)
            self._arm(group)
        self.ended, self._probes, self.knows_all = saved.ended, saved.probes, saved.knows_all
        self.session.marks = Marks(self._border.limits.marks_age_ns)
        self.session.marks.recent, self.session.marks.older = saved.recent, saved.older
        self.session.marks.turn_at = saved.turn_at
        self._resumed = True


class SavedItem(msgspec.Struct, array_like=True):
    number: int
    notification: Notification
    redelivered: int
    came: int = 0


class SavedMember(msgspec.Struct, array_like=True):
    name: str
    term: int
    prefetch: int
    away_ns: int
    beat: int
    heard_ns: int
    assigned: list[SavedItem]
    client: ClientId = ClientId("")
    slow_ns: int | None = None


class SavedGroup(msgspec.Struct, array_like=True):
    name: str
    filter: Filter
    publisher: ClientId
    published: int
    members: list[SavedMember]
    queue: list[SavedItem]
    confirmed: bool
    probe: int
    empty_ns: int
    lost: int
    why: str
    exact: bool
    redelivered: int
    count: int
    terms: int
    reports: list[Report] = []
    reported: int = 0
    owner: str = ""


class SavedGroups(msgspec.Struct, array_like=True):
    groups: list[SavedGroup]
    ended: dict[str, int]
    probes: int
    recent: dict[ClientId, int]
    older: dict[ClientId, int]
    turn_at: int
    knows_all: bool = True


_saved_decoder = msgspec.msgpack.Decoder(SavedGroups)


def _saved_items(items: Iterable[Item]) -> list[SavedItem]:
    return [
        SavedItem(one.number, one.stored.notification, one.redelivered, one.came) for one in items
    ]


def _items(saved: list[SavedItem]) -> list[Item]:
    return [
        Item(
            one.number,
            Stored(one.notification, size_of(one.notification)),
            one.redelivered,
            one.came,
        )
        for one in saved
    ]


def _saved(group: Group) -> SavedGroup:
    return SavedGroup(
        group.name,
        group.filter,
        group.publisher,
        group.published,
        [
            SavedMember(
                name,
                one.term,
                one.prefetch,
                one.away_ns,
                one.beat,
                one.heard_ns,
                _saved_items(one.assigned.values()),
                one.client,
                one.slow_ns,
            )
            for name, one in group.members.items()
        ],
        _saved_items(group.queue),
        group.confirmed,
        group.probe,
        group.empty_ns,
        group.lost,
        group.why,
        group.exact,
        group.redelivered,
        group._count,
        group._terms,
        group.reports,
        group.reported,
        group.owner,
    )


def _loaded(saved: SavedGroup) -> Group:
    group = Group(saved.name, saved.filter, 0)
    group.owner = saved.owner
    group.publisher, group.published = saved.publisher, saved.published
    group.queue.extend(_items(saved.queue))
    for one in saved.members:
        member = Member(one.term, one.prefetch, one.away_ns, one.beat, one.heard_ns)
        member.client, member.slow_ns = one.client, one.slow_ns
        member.assigned = {item.number: item for item in _items(one.assigned)}
        group.members[one.name] = member
        group._untimed[one.name] = None
    sizes = [item.stored.size for item in group.items()]
    group.count, group.bytes = len(sizes), sum(sizes)
    group.confirmed, group.probe, group.empty_ns = saved.confirmed, saved.probe, saved.empty_ns
    group.lost, group.why, group.exact = saved.lost, saved.why, saved.exact
    group.reports, group.reported = saved.reports, saved.reported
    group.redelivered, group._count, group._terms = saved.redelivered, saved.count, saved.terms
    return group
