"""The oracle's rules for queue groups: each notification to one member, and to another only if the first fell silent.

What members got, and were done with, is in the world's records (`handed`, `done`), which their hosts write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import inf

from wayfare.core.groups import QUEUE_BYTES, QUEUE_COUNT, coordinator
from wayfare.core.membership import RENEWALS, Membership, Work
from wayfare.core.messages import BrokerId
from wayfare.core.reserved import ADDRESSES
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.faults import Cut
from wayfare.sim.histories import History, Span
from wayfare.sim.reach import Reach
from wayfare.sim.verdict import Violation
from wayfare.sim.world import World

Handed = tuple[int, str, Membership, Work]


def check_groups(
    world: World,
    clients: dict[str, History],
    reach: Reach,
    required: Callable[[Event, History, History], bool],
) -> Iterator[Violation]:
    """`required` says whether a client with a history has to get a publication of another client."""
    for group, since in world.joined.items():
        of: dict[tuple[str, int], list[Handed]] = {}
        for one in world.handed:
            if one[2].group == group:
                key = one[3].notification.publisher, one[3].notification.number
                of.setdefault(key, []).append(one)
        # A coordinator with an old store assigns again what it has forgotten to be done.
        forgets = coordinator(group, map(BrokerId, world.brokers)) in world.rolled_back
        for (publisher, number), handed in () if forgets else of.items():
            what = f"{publisher} {number} of the queue group {group}"
            yield from _check_sequence(what, handed, world, clients, reach)
        yield from _check_complete(group, since, set(of), world, clients, required)


def _check_sequence(
    what: str, handed: list[Handed], world: World, clients: dict[str, History], reach: Reach
) -> Iterator[Violation]:
    for before, after in pairwise(handed):
        if after[3].redelivered <= before[3].redelivered:
            # It was assigned to somebody else meanwhile, and so was void.
            yield Violation("shared", f"{after[1]} got {what}, which {before[1]} had got")
        elif not _fell_silent(before, after[0], world, clients[before[1]], reach):
            yield Violation("shared", f"{after[1]} got {what}, but {before[1]} was there")


def _fell_silent(handed: Handed, until: int, world: World, history: History, reach: Reach) -> bool:
    """Whether a member may have been silent for too long, or left, before somebody else got what it had."""
    time, _, member, _ = handed
    slow_ns = 2 * (reach.tree_ns + reach.client_ns) + reach.outage_ns
    patience_ns = member.away_ns - member.away_ns // RENEWALS - slow_ns
    if patience_ns <= 0 or world.quits.get(member.address, until + 1) <= until:
        return True
    if any(time - member.away_ns <= one <= until for one in (*history.left, *history.replaced)):
        return True
    ends = sorted((span.start, span.end) for span in history.attached)
    gone = time - member.away_ns
    for start, end in ends:
        if start > until:
            break
        if start - max(gone, time - member.away_ns) > patience_ns:
            return True
        gone = max(gone, int(min(end, until)))
    return until - gone > patience_ns


def _check_complete(
    group: str,
    since: int,
    got: set[tuple[str, int]],
    world: World,
    clients: dict[str, History],
    required: Callable[[Event, History, History], bool],
) -> Iterator[Violation]:
    """Everything that was published since the group began was given to a member, if there is one in the end."""
    there = [
        member
        for client in world.clients.values()
        for member, _ in client.memberships.values()
        if member.group == group and member.term and not member.left and client.connection
    ]
    if not there:
        return
    session, span = History(), Span(since, there[0].filter)
    span.confirmed = since
    session.subscribed, session.attached = [span], [Span(since)]
    missing = [
        event
        for name, publisher in clients.items()
        for number, event in publisher.published.items()
        if (name, number) not in got
        and event.expires_ns is None  # else it may have expired before a member was ready
        and not any(attribute.startswith("$") for attribute in event.attributes or ())
        and required(event, session, publisher)
    ]
    members = {
        one.address: name
        for name, client in world.clients.items()
        for one, _ in client.memberships.values()
        if one.group == group
    }
    unreported = _unreported(missing, _reports(world, members))
    if unreported:
        listed = ", ".join(f"{one.client} {one.number}" for one in unreported[:5])
        yield Violation("shared", f"nobody in the queue group {group} got {listed}")


def _reports(world: World, members: dict[str, str]) -> Iterator[tuple[int, int]]:
    """The losses that were reported to these members or to their clients: when, and how many; 0: an unknown number."""
    for address in members:
        yield from world.lacking.get(address, ())
    clients = set(members.values())
    for event in world.events:
        if event.kind == "lost" and event.client in clients:
            yield event.time_ns, event.count or 0


def _unreported(missing: list[Event], reports: Iterable[tuple[int, int]]) -> list[Event]:
    """What is missing beyond the reported losses. A report of an unknown number is of what was published before it."""
    counted, unknown_ns = 0, -1
    for now, count in reports:
        counted += count
        if not count:
            unknown_ns = max(unknown_ns, now)
    later = [one for one in missing if one.time_ns > unknown_ns]
    return later if len(later) > counted else []


def unexpected_losses(world: World) -> Iterator[Violation]:
    """Whatever limit its queue has, a group loses nothing as long as its members are there and fast enough."""
    slow = _slow_groups(world)
    for time_ns, group, reason in world.missed:
        if reason in (QUEUE_COUNT, QUEUE_BYTES) and slow.get(group, inf) > time_ns:
            what = f"the queue group {group}, whose members are there, was told of a loss: {reason}"
            yield Violation("gap", what)


def _slow_groups(world: World) -> dict[str, int]:
    """Groups that may lose something, and since when: a member was away or out of reach for long, or something waited for too long.

    Or they were congested for too long without a break: publishers are slowed once for that, however little of it
    each notification waits.
    """
    limit_ns = world.limits.slow_publishers_ns
    patience_ns = min((one.away_ns for _, one in world.members), default=0) // RENEWALS
    bounds: dict[str, int] = {}
    groups: dict[str, dict[str, None]] = {}  # of each client
    excuses: list[tuple[int, str]] = []
    for name, one in world.members:
        groups.setdefault(name, {})[one.group] = None
        bound = limit_ns if one.slow_ns is None else one.slow_ns
        bounds[one.group] = min(bounds.get(one.group, limit_ns), bound)
        if one.address in world.quits:
            excuses.append((world.quits[one.address], one.group))
    published = {
        (one.client, one.number): one.time_ns for one in world.events if one.kind == "published"
    }
    for now, _, member, work in world.handed:
        note = work.notification
        slow_ns = published[note.publisher, note.number] + bounds[member.group]
        if now >= slow_ns:
            excuses.append((slow_ns, member.group))
    taken = {(member.address, work.number): now for now, _, member, work in world.handed}
    group_of = {one.address: one.group for _, one in world.members}
    for assigned, now in world.assigned.items():
        group = group_of[assigned[0]]
        if taken.get(assigned, inf) - now >= bounds[group]:
            excuses.append((now + bounds[group], group))
    for group in dict.fromkeys(name for _, name, reason in world.missed if reason == QUEUE_COUNT):
        if (begun := _congested_since(world, group, bounds[group])) is not None:
            excuses.append((begun + bounds[group], group))
    for name, one in world.members:
        excuses += [(now, one.group) for now in _out_of_reach(world, name, one.group, patience_ns)]
        # Whose application does not read what else it subscribes to hears nothing of the group, either.
        deaf_ns = one.away_ns - one.away_ns // RENEWALS
        excuses += [
            (since, one.group)
            for client, since, until in world.unread
            if client == name and until - since >= deaf_ns
        ]
    back: dict[str, int] = {}  # when a client was next attached
    for event in reversed(world.events):
        client, now = event.client or "", event.time_ns
        if event.kind == "attached":
            back[client] = now
        elif event.kind == "detached" and back.get(client, world.now) - now < patience_ns:
            continue  # it has not fallen silent
        if event.kind in ("detached", "left", "replaced"):
            excuses += [(now, group) for group in groups.get(client, ())]
    since: dict[str, int] = {}
    for now, group in excuses:
        since[group] = min(since.get(group, now), now)
    return since


def _congested_since(world: World, group: str, bound_ns: int) -> int | None:
    """When a queue first went beyond the high mark, and was not down at the low one within the bound.

    A notification is in the queue from its publication until a member has it, or until the group is told of a loss. The
    queue begins before the group is in effect, as soon as its coordinator has heard of the first member.
    """
    high = world.limits.backlog_count // 2
    low = high // 2
    wanted = next(one.filter for _, one in world.members if one.group == group)
    begun_ns = world.enlisted.get(group, inf)
    told = [now for now, name, reason in world.missed if name == group and reason == QUEUE_COUNT]
    given: dict[tuple[str | None, int | None], int] = {}
    for now, _, member, work in world.handed:
        if member.group == group:
            note = work.notification
            taken = world.assigned.get((member.address, work.number), now)
            given.setdefault((note.publisher, note.number), taken)
    changes: list[tuple[int, int]] = []
    for event in world.events:
        attributes = event.attributes or {}
        if event.kind != "published" or not ADDRESSES.isdisjoint(attributes):
            continue
        if not wanted.matches(attributes):
            continue
        until = given.get((event.client, event.number))
        if until is None and event.time_ns >= begun_ns:
            until = next((now for now in told if now >= event.time_ns), None)
        if until is not None:
            changes += [(event.time_ns, 1), (until, -1)]
    waiting, since = 0, None
    for now, change in sorted(changes, key=lambda one: (one[0], -one[1])):
        if since is not None and now >= since + bound_ns:
            return since
        waiting += change
        if waiting <= low:
            since = None
        elif waiting > high and since is None:
            since = now
    return None


def _out_of_reach(world: World, client: str, group: str, patience_ns: int) -> Iterator[int]:
    """When something between a member and its coordinator went down for so long that the member may be given up.

    Not the coordinator itself: once it is back, it gives its members time.
    """
    long = [
        (now, fault)
        for now, fault in world.outages
        if fault.for_ns is None or fault.for_ns >= patience_ns
    ]
    if not long:
        return
    start = coordinator(group, map(BrokerId, world.brokers))
    ways = topology.paths(world.edges, start)
    stays = [
        (event.time_ns, event.broker or "")
        for event in world.events
        if event.kind == "attached" and event.client == client
    ]
    for now, fault in long:
        until = inf if fault.for_ns is None else now + fault.for_ns
        for (since, broker), (end, _) in pairwise([*stays, (inf, "")]):
            between = ways[broker][1:]
            if isinstance(fault, Cut):
                hit = {fault.a, fault.b} <= {start, *between}
            else:
                hit = fault.broker in between
            if hit and since <= until and now < end:
                yield now


def check_groups_quiet(world: World) -> Iterator[Violation]:
    """When all is quiet, nothing waits for a member that is there."""
    for name, host in world.brokers.items():
        for group in host.core.groups.groups.values():
            there = [
                member
                for client in world.clients.values()
                for member, _ in client.memberships.values()
                if member.group == group.id and not member.left and client.connection
            ]
            if there and any(True for _ in group.items()):
                kept = sum(1 for _ in group.items())
                yield Violation("tidy", f"{name} keeps {kept} for the queue group {group.name}")
