"""The oracle: was everything delivered that had to be, once, in order, and is nothing left behind.

It sees publications, subscriptions and deliveries (the event log), never the code that it checks,
and knows one thing of the network: how long a message took at the most, from anywhere to anywhere
(`Reach`). A delivery has to happen when the subscription and the advertisement had settled
before the publication, and nobody withdrew them before it could arrive. What was in between may be
delivered or not, but then too at most once and in order. What is left behind is `quiet`'s.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from math import inf

import msgspec

from wayfare.core.broker import ALL_RELOCATIONS
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.handoff import Handoff
from wayfare.core.history import Limits
from wayfare.core.late import WANTED
from wayfare.core.relocation import Naive
from wayfare.core.templates import Mine
from wayfare.eventlog import Event
from wayfare.sim import interest
from wayfare.sim.asking import check_requests
from wayfare.sim.current import Judge as Values
from wayfare.sim.current import check_fresh
from wayfare.sim.expiry import has_ended
from wayfare.sim.gap_places import Stream
from wayfare.sim.histories import History, Span, histories, matches
from wayfare.sim.quiet import check_quiet
from wayfare.sim.reach import Reach, reach
from wayfare.sim.relevance import check_inside, was_elsewhere
from wayfare.sim.sharing import check_groups
from wayfare.sim.verdict import Verdict, Violation
from wayfare.sim.wills import check_wills
from wayfare.sim.world import World


class Forgotten(msgspec.Struct, frozen=True):
    """That a client was told of the loss of an unknown number."""

    time_ns: int
    lost: int = 0  # how many were reported as lost before, with their number


NEVER_TOLD = Forgotten(-1)


def check(world: World) -> Verdict:
    """Everything about a run that has become quiet."""
    # A subscription to a missing attribute, like `x is null`, matches messages of groups, too.
    has_groups = world.joined or any(one.memberships for one in world.clients.values())
    members = {*world.clients} if has_groups else ()
    late = {name for name, one in world.clients.items() if one.core.late == WANTED}
    deliveries = check_deliveries(
        world.events, reach(world), members, late=late, settling=_settling(world)
    )
    violations = (
        *deliveries.violations,
        *_check_early(world),
        *_check_requests(world),
        *_check_groups(world),
        *check_quiet(world),
        *check_wills(world, reach(world)),
    )
    return msgspec.structs.replace(deliveries, violations=violations)


def _settling(world: World) -> Container[str]:
    """The clients that lose nothing of what an old broker kept, but by being elsewhere.

    Where a limit drops something in the same place, both are one gap of unknown size.
    """
    is_small = world.limits.backlog_count < Limits().backlog_count
    if world.relocation != Handoff.name or world.outage_ns or world.sheds or is_small:
        return ()
    ended = {one.client for _, one in world.ended}
    return world.clients.keys() - ended


def _check_early(world: World) -> Iterator[Violation]:
    if not issubclass(ALL_RELOCATIONS[world.relocation], Naive):
        for what in interest.early(world.events, histories(world.events), reach(world)):
            yield Violation("interest", what)


def _check_requests(world: World) -> Iterator[Violation]:
    if all(client.requests is None for client in world.clients.values()):
        return
    clients, within = histories(world.events), reach(world)
    published = sum(len(client.published) for client in clients.values())

    def has_responder(publisher: str, number: int, until: int) -> bool:
        event = clients[publisher].published[number]
        return any(
            _required(event, client, clients[publisher], within, published)
            and not has_ended(world, name, client, event.time_ns, until, within)
            and not (within.outage_ns and _is_forgotten(name, event, world.events))
            for name, client in clients.items()
        )

    yield from check_requests(world.clients, world.events, has_responder)


def _is_forgotten(name: str, published: Event, events: list[Event]) -> bool:
    """Whether a client did not get this, and was told that nobody knows what it missed.

    The broker that said so had forgotten its subscription, and nobody else knew it at that time.
    """
    later = [one for one in events if one.client == name and one.time_ns >= published.time_ns]
    id = published.client, published.number
    got = any(one.kind == "delivered" and (one.publisher, one.number) == id for one in later)
    return not got and any(one.kind == "lost" and not one.count for one in later)


def _check_groups(world: World) -> Iterator[Violation]:
    if not world.joined:
        return
    clients, within = histories(world.events), reach(world)
    published = sum(len(client.published) for client in clients.values())
    yield from check_groups(
        world,
        clients,
        within,
        lambda event, client, publisher: _required(event, client, publisher, within, published),
    )


def check_deliveries(
    events: list[Event],
    reach: Reach,
    members: Container[str] = (),
    elsewhere: Iterable[tuple[str, str, int]] = (),
    late: Container[str] = (),
    settling: Container[str] = (),
) -> Verdict:
    """Members of queue groups are told of losses among what they were assigned, too: sharing.py judges that.

    What came to a client because of where it is need not come again; stays.py judges what of that is not among the
    events (`elsewhere`: client, publisher, number).

    Clients that are `late` want what their old broker sends when it is back. Those that are `settling` get all of
    that, or know how many they lost.
    """
    clients = histories(events)
    streams = {name: [Stream()] for name in clients}  # one for each process of the client
    forgotten: dict[str, Forgotten] = {}  # when a client was last told of an unknown number
    lost: dict[str, int] = {}
    behind: dict[str, int] = {}  # what came behind a gap, although it was published before it
    settled: dict[str, list[Event]] = {}
    violations: list[Violation] = []
    followed: set[tuple[str, str, int]] = set()  # client, publisher, number
    values = Values(events, clients, reach)
    current: dict[str, set[tuple[str, int]]] = {}  # what came as a current value
    for place, event in enumerate(events):
        if event.kind == "delivered":
            assert event.client and event.publisher and event.number
            if event.reason == "current":
                current.setdefault(event.client, set()).add((event.publisher, event.number))
                continue
            if _is_followed(event, clients[event.client]):
                violations += _check_once(event, followed)
                continue
            wrong = list(_check_wanted(event, clients))
            violations += wrong
            source = None if wrong else clients[event.publisher].published[event.number]
            if source is not None and source.expires_ns is not None:
                violations += check_fresh(source, event, clients, reach)
            if source is not None and source.area is not None:
                violations += check_inside(source, event, clients[event.client])
            stream = streams[event.client][-1]
            if event.reason == "late":
                violations += _check_late(event, late, stream)
                stream.late.setdefault(event.publisher, []).append(event.number)
            else:
                stream.deliver(event.publisher, event.number, place)
            if _is_behind(event, clients, forgotten.get(event.client, NEVER_TOLD)):
                behind[event.client] = behind.get(event.client, 0) + 1
        elif event.kind == "lost":
            assert event.client and event.count is not None
            streams[event.client][-1].lose(event, place)
            lost[event.client] = lost.get(event.client, 0) + event.count
            if not event.count:
                forgotten[event.client] = Forgotten(event.time_ns, lost[event.client])
        elif event.kind == "settled":
            assert event.client and event.count is not None
            stream = streams[event.client][-1]
            if not stream.may_be_settled():
                what = f"{event.client} was told how many are lost, but of no loss before"
                violations.append(Violation("settled", what))
            stream.settle(event, place)
            lost[event.client] = lost.get(event.client, 0) + event.count
            settled.setdefault(event.client, []).append(event)
        elif event.kind == "replaced":
            assert event.client
            streams[event.client].append(Stream())
    for name, processes in streams.items():
        for stream in processes:
            for publisher_name in {**stream.delivered, **stream.late}:
                numbers, rest = stream.numbers(publisher_name), stream.late.get(publisher_name, [])
                violations += _check_order(name, publisher_name, numbers, rest)
    came = followed.union(elsewhere)
    # What a publisher that moves published before may be lost in the same place, for the same reason.
    steady = not any(one.published and (one.moves or one.replaced) for one in clients.values())
    required = 0
    published = sum(len(client.published) for client in clients.values())
    for name, client in clients.items():
        *earlier, now = streams[name]
        missing: list[Event] = []
        possible = 0
        for publisher_name, publisher in clients.items():
            got_now = set(now.got(publisher_name))
            got = got_now.union(*(stream.got(publisher_name) for stream in earlier))
            for number, event in publisher.published.items():
                must = _required(event, client, publisher, reach, published)
                required += must
                if (name, publisher_name, number) in came:
                    continue
                if number not in got and (publisher_name, number) not in current.get(name, ()):
                    possible += _possible(event, client, reach)
                    if must:
                        missing.append(event)
                elif number not in got_now:
                    possible += (
                        1  # what an earlier process had not confirmed is lost to the later one
                    )
        # Who does not know what its client got does not know either what was reported as lost: it may come.
        possible += min(behind.get(name, 0), forgotten.get(name, NEVER_TOLD).lost)
        possible += values.possible(name)
        violations += _check_reported(name, clients, streams[name], missing)
        told = lost.get(name, 0)
        if name in settling and not earlier:
            times = len(settled.get(name, []))
            violations += _check_settled(name, now, times, missing, wants=steady and name in late)
        if told > possible and name not in members:
            violations.append(
                Violation("gap", f"{name} was told of {told} lost, but misses {possible} at most")
            )
    violations += values.violations()
    return Verdict(
        tuple(violations),
        published=published,
        delivered=len(followed)
        + sum(map(len, current.values()))
        + sum(stream.size() for processes in streams.values() for stream in processes),
        required=required + values.required,
        lost=sum(lost.values()),
    )


def _check_reported(
    name: str, clients: dict[str, History], streams: list[Stream], missing: list[Event]
) -> Iterator[Violation]:
    """Every loss has to be reported at its place, to the process that wanted the notification."""
    client = clients[name]

    def is_past(publisher: str, number: int) -> bool:
        published = clients[publisher].published.get(number)
        return published is not None and _is_past(published, client)

    for process, stream in enumerate(streams):
        its_own = [one for one in missing if client.process(one.time_ns) == process]
        unreported = stream.unreported(its_own, is_past)
        if unreported:
            listed = ", ".join(f"{one.publisher} {one.number}" for one in unreported[:5])
            but = " (no gap is at its place)" if stream.gaps else ""
            yield Violation("complete", f"{name} did not get {listed}{but}")


def _is_past(published: Event, client: History) -> bool:
    """Whether a client did not subscribe to this before it was published."""
    return not any(
        span.start <= published.time_ns
        and span.filter
        and matches(span.filter, published.attributes)
        for span in client.subscribed
        if published.attributes is not None
    )


def _check_late(event: Event, late: Container[str], stream: Stream) -> Iterator[Violation]:
    """Late comes only what was reported to be missing perhaps, to who wants it."""
    what = f"{event.client} got {event.publisher} {event.number} late"
    if event.client not in late:
        yield Violation("late", f"{what}, but did not ask for it")
    elif not stream.may_be_settled():
        yield Violation("late", f"{what}, but was told of no loss")


def _check_settled(
    name: str, stream: Stream, settled: int, missing: list[Event], *, wants: bool
) -> Iterator[Violation]:
    """Where nobody knew how many are lost, only because an old broker did not answer, that is known in the end.

    If the client `wants` what that kept, nothing is missing.
    """
    unknown = [gap for gap in stream.gaps if not gap.count]
    if not unknown or not all(gap.unanswered for gap in unknown):
        return
    told = sum(gap.count for gap in stream.gaps)
    if wants and len(missing) > told:
        some = ", ".join(f"{one.client} {one.number}" for one in missing[:5])
        yield Violation("late", f"{name} did not get {some}, which its old broker kept")
    elif settled >= len(unknown) and len(missing) > told:
        what = f"{name} was told of {told} lost in the end, but misses {len(missing)}"
        yield Violation("settled", what)


def _is_behind(event: Event, clients: dict[str, History], told: Forgotten) -> bool:
    """Whether this was published before its client was told of the loss of an unknown number."""
    assert event.publisher and event.number
    publisher = clients.get(event.publisher)
    published = publisher.published.get(event.number) if publisher else None
    return published is not None and published.time_ns <= told.time_ns


def _is_followed(event: Event, client: History) -> bool:
    """Whether this is for where the client is at that moment, and no ordinary subscription delivers it.

    Only for locations that stand for themselves; stays.py judges the others, and what has to come.
    """
    attributes, time = event.attributes or {}, event.time_ns
    if event.follows is None:
        return False
    became = [one for one in client.became if one.time_ns <= time]
    mine = Mine()
    if became:
        mine = Mine((became[-1].location or "",), None, became[-1].attributes or {})
    return any(
        start <= time <= end and matches(template.resolve(mine), attributes)
        for template, start, end in client.followed
    )


def _check_once(event: Event, seen: set[tuple[str, str, int]]) -> Iterator[Violation]:
    assert event.client and event.publisher and event.number
    key = event.client, event.publisher, event.number
    if key in seen:
        yield Violation("once", f"{event.client} got {event.publisher} {event.number} twice")
    seen.add(key)


def _check_wanted(event: Event, clients: dict[str, History]) -> Iterator[Violation]:
    """Delivered is only what was published, and what the client wants at that moment."""
    assert event.client and event.publisher and event.number and event.attributes is not None
    what = f"{event.client} got {event.publisher} {event.number}"
    publisher = clients.get(event.publisher)
    published = publisher.published.get(event.number) if publisher else None
    if published is None or published.time_ns > event.time_ns:
        yield Violation("wanted", f"{what}, which nobody has published")
    elif published.attributes != event.attributes:
        yield Violation("wanted", f"{what} with other attributes")
    elif not any(
        span.start <= event.time_ns <= span.end
        and span.filter is not None
        and matches(span.filter, event.attributes)
        for span in clients[event.client].subscribed
    ):
        yield Violation("wanted", f"{what}, which it does not want")


def _check_order(
    client: str, publisher: str, numbers: list[int], late: list[int]
) -> Iterator[Violation]:
    """What comes late may be out of order, but comes once, too."""
    seen: set[int] = set()
    last = 0
    for number in numbers:
        if number in seen:
            yield Violation("once", f"{client} got {publisher} {number} twice")
        elif number < last:
            yield Violation("fifo", f"{client} got {publisher} {number} after {last}")
        seen.add(number)
        last = max(last, number)
    for number in late:
        if number in seen:
            yield Violation("once", f"{client} got {publisher} {number} twice, the last one late")
        seen.add(number)


def _moving_ns(client: History, reach: Reach) -> int:
    """Until a session has come to where its client is: each attachment may wait for the one before it.

    Where that has expired, the new one waits until its filters are in effect.
    """
    returns = len(client.attached) if reach.expires else 0
    return 2 * reach.tree_ns * (client.moves + returns)


def _possible(event: Event, client: History, reach: Reach) -> bool:
    """Whether its broker may have kept this publication for the client.

    The broker learns that a filter was withdrawn when the client is next in contact with it; older
    ones, where the client was before, only when they hand its session over.
    """
    assert event.attributes is not None
    moving_ns = _moving_ns(client, reach)
    return any(
        span.filter is not None
        and client.contact(span.end, reach.client_ns) + moving_ns >= event.time_ns
        and matches(span.filter, event.attributes)
        for span in client.subscribed
    )


def _required(
    event: Event, client: History, publisher: History, reach: Reach, published: int
) -> bool:
    assert event.attributes is not None
    # First what excludes most: judges ask this for every publication and every client.
    wanting = [
        span
        for span in client.subscribed
        if span.start < event.time_ns < span.end
        and not span.limited
        and span.filter is not None
        and matches(span.filter, event.attributes)
    ]
    if not wanting:
        return False
    if event.reason == "will" and reach.outage_ns:
        return False  # its broker may have forgotten it, and nobody else knows
    leaves = next((time for time in publisher.left if time >= event.time_ns), inf)
    held_ns = _moving_ns(publisher, reach)  # for that long its broker may hold it back
    accepted = publisher.accepted(
        event.time_ns, reach.client_ns, held_ns, leaves, expires=reach.expires
    )
    if accepted == inf:
        return False
    arrived = accepted + reach.tree_ns
    if any(event.time_ns <= time < arrived for time in publisher.replaced):
        return False  # what the later process publishes may overtake it
    if not reach.at_once:
        complete = event.time_ns - 2 * reach.tree_ns  # the tree of who moved before that
        if any(complete <= time <= arrived for time in publisher.unanswered):
            return False  # it did not wait until all subscriptions were known where it is
    # When the window is full, deliveries wait for an acknowledgement, as often as that may happen.
    waits = published // reach.window
    receiving_ns = 3 * reach.client_ns + waits * (2 * reach.client_ns + ACK_DELAY_NS)
    receiving_ns += _moving_ns(client, reach) + reach.past_ns

    def settled(span: Span, spoken: History, trips: int) -> bool:
        if span.confirmed <= event.time_ns:
            return True
        contact = spoken.contact(span.start, reach.client_ns, span.end)
        # Nobody misses what a broker forgot before it could welcome the client.
        if reach.outage_ns or reach.expires:
            contact = max(contact, spoken.welcomed(span.start, reach.client_ns))
        return contact + trips * reach.tree_ns <= event.time_ns

    expires = inf if event.expires_ns is None else event.time_ns + event.expires_ns

    def is_of_use(received: float) -> bool:
        """Brokers know a while later where a client is."""
        since = event.time_ns - reach.client_ns
        elsewhere = event.area is not None and was_elsewhere(event.area, client, since, received)
        return received < expires and not elsewhere

    if not any(
        settled(span, client, 1)
        and is_of_use(client.contact(arrived + reach.outage_ns, receiving_ns, span.end))
        for span in wanting
    ):
        return False
    # Where it has to settle, an advertisement travels out, and the subscriptions for it travel back.
    return any(
        span.start <= event.time_ns
        and accepted <= span.end
        and (reach.at_once or settled(span, publisher, 2))
        and span.filter is not None
        and matches(span.filter, event.attributes)
        for span in publisher.advertised
    )
