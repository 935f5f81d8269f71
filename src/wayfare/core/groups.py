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

from wayfare.core.border import LISTENING_PLACE, Border
from wayfare.core.conditions import attr
from wayfare.core.deadlines import GROUP as GROUP_TIMER
from wayfare.core.effects import Effect
from wayfare.core.filters import Filter
from wayfare.core.history import Limits, Loss, Marks, Stored, size_of
from wayfare.core.matching import FilterIndex
from wayfare.core.messages import (
    BrokerId,
    ClientId,
    Enlist,
    Notification,
    Number,
    Probe,
)
from wayfare.core.reserved import ADDRESSES, GROUP, MEMBER
from wayfare.core.sessions import Session, Wait

GROUP_PLACE = LISTENING_PLACE + 1  # of the session that subscribes for all groups of a broker
GROUPS_MAX = 1_000  # that one broker coordinates; another one is not begun
MEMBERS_MAX = 10_000  # of one group
ENDED_MAX = 1_000  # groups that ended with something in their queue, as long as nobody was told
ASSIGNMENTS = Filter.where(attr(MEMBER).exists())  # what a coordinator advertises

QUEUE_COUNT, QUEUE_BYTES = "group_count", "group_bytes"
NO_MEMBERS = "the queue group had no members for too long"
TOO_MANY = "its broker coordinates too many queue groups"


# What a coordinator says to a member


class Assign(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """This notification is for you."""

    term: Number  # of this membership; another one is void
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
    """So many notifications are lost to the group; 0: nobody knows how many."""

    count: Number
    reason: str


class Poll(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Are you still a member? Nothing was heard of you for long."""

    term: Number
    beat: Number


ToMember = Assign | Lease | Expelled | Missed | Poll

# What a member says


class Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The application is done with these. Without any, it only renews the lease."""

    member: str
    term: Number
    numbers: tuple[Number, ...]
    beat: Number
    # What it has, if something that was assigned to it may be lost: then the rest is sent again.
    has: tuple[Number, ...] | None = None


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
    """Which of the brokers coordinates a group: the same for all who know the same ones (rendezvous hashing)."""
    return max(brokers, key=lambda one: (sha256("\0".join((group, one)).encode()).digest(), one))


class Item(msgspec.Struct, eq=False):
    """A notification in the queue of a group, or in the hands of a member."""

    number: int
    stored: Stored
    redelivered: int = 0


class Member:
    """One member, as its coordinator knows it."""

    __slots__ = ("assigned", "away_ns", "beat", "busy_ns", "heard_ns", "polled", "prefetch", "term")

    def __init__(self, term: int, prefetch: int, away_ns: int, beat: int, now: int) -> None:
        self.term, self.prefetch, self.away_ns = term, prefetch, away_ns
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

    def told_of(self, item: Item) -> Assign:
        """What it is told when this is assigned to it."""
        one = item.stored.notification
        return Assign(self.term, item.number, one, item.redelivered, self.beat)


Said = tuple[str, ToMember]  # and to which member


class Group:
    """One queue group, at its coordinator: pure, and knows nothing of brokers."""

    def __init__(self, name: str, filter: Filter, now: int) -> None:
        self.name, self.filter = name, filter
        self.id = group_id(name, filter)
        self.publisher = ClientId(f"group:{self.id}:{now}")  # of what it sends
        self.published = 0
        self.members: dict[str, Member] = {}  # the next one that gets something first
        self.queue: deque[Item] = deque()  # in order of number
        self.bytes = 0  # of the queue and of what is assigned
        self.confirmed = False  # everything that is published from now on comes here
        self.probe = 0  # which request says so
        self.empty_ns = now  # since when there are no members
        self.lost = 0  # of which no member was told yet
        self.why = ""
        self.exact = True
        self.redelivered = 0  # how often something was assigned again
        self._count = 0  # notifications
        self._terms = 0

    def items(self) -> Iterator[Item]:
        """What is kept."""
        yield from self.queue
        for member in self.members.values():
            yield from member.assigned.values()

    def put(self, stored: Stored, limits: Limits) -> list[Stored]:
        """A notification has come; what is dropped to keep a limit."""
        self._count += 1
        self.queue.append(Item(self._count, stored))
        self.bytes += stored.size
        dropped: list[Stored] = []
        while self.queue:
            if len(self.queue) > limits.backlog_count:
                why = QUEUE_COUNT
            elif self.bytes > limits.backlog_bytes and len(self.queue) > 1:
                why = QUEUE_BYTES
            else:
                break
            oldest = self.queue.popleft().stored
            self.bytes -= oldest.size
            dropped.append(oldest)
            self.lose(1, why)
        return dropped

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
        self._hear(member, message.beat, now)
        return [(message.member, Lease(member.term, member.beat))] if self.confirmed else []

    def confirm(self) -> list[Said]:
        """The subscriptions for the group are in effect: it begins."""
        self.confirmed = True
        return [(name, Lease(one.term, one.beat)) for name, one in self.members.items()]

    def on_done(self, message: Done, now: int) -> tuple[list[Said], list[Stored]]:
        """What a member has to be told, and what need not be kept any more."""
        member = self.members.get(message.member)
        if member is None or member.term != message.term:
            return [(message.member, Expelled(message.term))], []
        self._hear(member, message.beat, now)
        done = [member.assigned.pop(one) for one in message.numbers if one in member.assigned]
        self.bytes -= sum(one.stored.size for one in done)
        said: list[Said] = []
        if not message.numbers:
            said.append((message.member, Lease(member.term, member.beat)))
        if message.has is not None:
            lost = [one for number, one in member.assigned.items() if number not in message.has]
            said += [(message.member, member.told_of(one)) for one in lost]
        return said, [one.stored for one in done]

    def remove(self, name: str, now: int) -> None:
        """Not a member any more: what it is not done with is for others, first."""
        member = self.members.pop(name, None)
        if member is None:
            return
        for item in member.assigned.values():
            item.redelivered += 1
            self.redelivered += 1
        both = [*member.assigned.values(), *self.queue]
        self.queue = deque(sorted(both, key=lambda one: one.number))
        if not self.members:
            self.empty_ns = now

    def mind_silent(self, group_ns: int, now: int) -> list[Said]:
        """What was assigned to members that are silent for too long is for others; idle ones are asked."""
        said: list[Said] = []
        for name, member in list(self.members.items()):
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
            # To all members: one of them may be dead, and nobody knows yet.
            missed = Missed(self.lost if self.exact else 0, self.why)
            out += [(name, missed) for name in self.members]
            self.lost, self.exact = 0, True
        ready = [name for name, one in self.members.items() if len(one.assigned) < one.prefetch]
        turns = deque(ready)
        while self.queue and turns:
            name = turns.popleft()
            member, item = self.members[name], self.queue.popleft()
            if not (member.assigned or member.polled):
                member.busy_ns = now
            member.assigned[item.number] = item
            out.append((name, member.told_of(item)))
            self.members[name] = self.members.pop(name)  # behind the others
            if len(member.assigned) < member.prefetch:
                turns.append(name)
        return out

    def next_deadline(self, group_ns: int) -> int:
        if not self.members:
            return self.empty_ns + group_ns
        return min(one.due_at(group_ns) for one in self.members.values())

    def _hear(self, member: Member, beat: int, now: int) -> None:
        member.heard_ns, member.beat, member.polled = now, max(beat, member.beat), False


class Groups:
    """The groups that one broker coordinates."""

    def __init__(self, name: BrokerId, border: Border) -> None:
        self.name = name
        self.groups: dict[str, Group] = {}  # by id
        self.refused = 0  # groups that were not begun, because there are too many
        self.ended: dict[str, int] = {}  # groups that ended, and how many were in their queues
        self._border = border
        self.session = Session(
            ClientId(f"groups:{name}"), 0, GROUP_PLACE, 0, border.limits.marks_age_ns
        )
        self.session.wait = wait = Wait({}, 0)
        self.heard = wait.held  # what the broker has for groups, and losses
        self._index: FilterIndex[str] = FilterIndex()
        self._probes = 0
        self._resumed = False  # from a store: members may have said something meanwhile

    # What the broker reports

    def on_convene(self, enlist: Enlist, now: int) -> list[Effect]:
        """A member says that it is there, for the first time or again."""
        group = self._group(enlist, now)
        if group is None:
            return []
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
        return effects

    def on_due(self, name: str, now: int) -> list[Effect]:
        group = self.groups.get(name)
        if group is None:
            return []
        if self._resumed:
            self._resumed = False
            self.extend_waits(now, now)
        said = group.mind_silent(self._border.limits.group_ns, now)
        if not group.members and group.empty_ns + self._border.limits.group_ns <= now:
            self._end(group)
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
            group.publisher = ClientId(f"group:{group.id}:{now}")

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
        for name in self._index.find(attributes):
            self._border.memory.keep(stored)
            for dropped in self.groups[name].put(stored, self._border.limits):
                self._border.memory.let_go(dropped)
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
        self._arm(group)
        return effects

    def _arm(self, group: Group) -> None:
        due = group.next_deadline(self._border.limits.group_ns)
        self._border.deadlines.arm(GROUP_TIMER, group.id, due)

    def _group(self, enlist: Enlist, now: int) -> Group | None:
        name = group_id(enlist.group, enlist.filter)
        group = self.groups.get(name)
        if group is not None:
            return group
        if len(self.groups) >= GROUPS_MAX:
            self.refused += 1
            return None
        group = Group(enlist.group, enlist.filter, now)
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
        self._index.add(group.id, group.filter)
        for filter, count in self.subscriptions().items():
            if count and filter not in session.subscriptions:
                session.subscriptions[filter] = None
                routing.subscribe(session.client, filter, session.place)

    def _end(self, group: Group) -> None:
        routing, session = self._border.routing, self.session
        for item in group.items():
            self._border.memory.let_go(item.stored)
        if lost := len(group.queue) + group.lost:
            self.ended[group.id] = lost
            while len(self.ended) > ENDED_MAX:
                del self.ended[next(iter(self.ended))]
        del self.groups[group.id]
        self._index.remove(group.id)
        wanted = self.subscriptions()
        for filter in [one for one in session.subscriptions if one not in wanted]:
            del session.subscriptions[filter]
            routing.unsubscribe(session.client, filter, session.place)
        self._border.deadlines.disarm(GROUP_TIMER, group.id)
        if not self.groups:
            routing.unadvertise(session.client, ASSIGNMENTS)
            self._border.unseat(session)
            self._border.convergence.forget(GROUP_PLACE)

    def subscriptions(self) -> dict[Filter, int]:
        """What is subscribed to for all groups: several may have the same filter."""
        wanted: dict[Filter, int] = {}
        for group in self.groups.values():
            for filter in (group.filter, Filter.where(attr(GROUP) == group.id)):
                wanted[filter] = wanted.get(filter, 0) + 1
        return wanted

    def kept(self) -> Iterator[Stored]:
        """Every notification that waits for members, or is not done."""
        for group in self.groups.values():
            yield from (item.stored for item in group.items())

    def facts(self) -> dict[str, int]:
        """How many of what there are, for operators."""
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
        if not self.groups and not self.ended:
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
            )
        )

    def load(self, data: bytes) -> None:
        saved = _saved_decoder.decode(data)
        for one in saved.groups:
            group = _loaded(one)
            self.begin(group)
            for item in group.items():
                self._border.memory.keep(item.stored)
            self._arm(group)
        self.ended, self._probes = saved.ended, saved.probes
        self.session.marks = Marks(self._border.limits.marks_age_ns)
        self.session.marks.recent, self.session.marks.older = saved.recent, saved.older
        self.session.marks.turn_at = saved.turn_at
        self._resumed = True


SavedItem = tuple[int, Notification, int]  # number, notification, how often assigned before


class SavedMember(msgspec.Struct, array_like=True):
    name: str
    term: int
    prefetch: int
    away_ns: int
    beat: int
    heard_ns: int
    assigned: list[SavedItem]


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


class SavedGroups(msgspec.Struct, array_like=True):
    groups: list[SavedGroup]
    ended: dict[str, int]
    probes: int
    recent: dict[ClientId, int]
    older: dict[ClientId, int]
    turn_at: int


_saved_decoder = msgspec.msgpack.Decoder(SavedGroups)


def _saved_items(items: Iterable[Item]) -> list[SavedItem]:
    return [(one.number, one.stored.notification, one.redelivered) for one in items]


def _items(saved: list[SavedItem]) -> list[Item]:
    return [Item(number, Stored(one, size_of(one)), again) for number, one, again in saved]


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
    )


def _loaded(saved: SavedGroup) -> Group:
    group = Group(saved.name, saved.filter, 0)
    group.publisher, group.published = saved.publisher, saved.published
    group.queue.extend(_items(saved.queue))
    for one in saved.members:
        member = Member(one.term, one.prefetch, one.away_ns, one.beat, one.heard_ns)
        member.assigned = {item.number: item for item in _items(one.assigned)}
        group.members[one.name] = member
    group.bytes = sum(item.stored.size for item in group.items())
    group.confirmed, group.probe, group.empty_ns = saved.confirmed, saved.probe, saved.empty_ns
    group.lost, group.why, group.exact = saved.lost, saved.why, saved.exact
    group.redelivered, group._count, group._terms = saved.redelivered, saved.count, saved.terms
    return group
