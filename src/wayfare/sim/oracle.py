"""The oracle: was everything delivered that had to be, once, in order, and is nothing left behind.

It sees publications, subscriptions and deliveries (the event log), never the code that it checks,
and knows one thing of the network: how long a message took at the most, from anywhere to anywhere
(`Reach`). A delivery has to happen when the subscription and the advertisement had settled
before the publication, and nobody withdrew them before it could arrive. What was in between may be
delivered or not, but then too at most once and in order.

When all is quiet, every table has to equal the one computed here from scratch, from the tree
and what the clients want and offer now; and no message, timer or backlog may be left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

import msgspec

from wayfare.core.broker import ALL_RELOCATIONS, DEFAULT_LIMITS
from wayfare.core.client import ACK_DELAY_NS, DIGEST_FROM
from wayfare.core.filters import Filter
from wayfare.core.home import Home, tunnelled
from wayfare.core.junction import Junction
from wayfare.core.messages import BrokerId, ClientId, Entry
from wayfare.core.predicates import Attributes, satisfied
from wayfare.core.reduction import STRATEGIES, Strategy
from wayfare.core.relocation import Naive
from wayfare.core.templates import Mine, Template
from wayfare.eventlog import Event
from wayfare.sim import interest, topology
from wayfare.sim.hosts import ClientHost
from wayfare.sim.tables import Places, Tables, add_place, differences
from wayfare.sim.world import World


class Violation(msgspec.Struct, frozen=True):
    """A promise that was broken."""

    rule: (
        str  # complete, once, fifo, wanted, gap, tidy, interest; crash, when the run itself failed
    )
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


class Verdict(msgspec.Struct, frozen=True):
    """What the oracle found in one run."""

    violations: tuple[Violation, ...]
    published: int
    delivered: int
    required: int  # deliveries that had to happen
    lost: int  # that clients were told of


class Reach(msgspec.Struct, frozen=True):
    """How long messages took at the most."""

    tree_ns: int  # from any broker to any other
    client_ns: int  # between a client and its broker
    window: int = DEFAULT_LIMITS.window  # deliveries that may be on their way to a client


def check(world: World) -> Verdict:
    """Everything about a run that has become quiet."""
    deliveries = check_deliveries(world.events, reach(world))
    violations = (*deliveries.violations, *_check_early(world), *check_quiet(world))
    return msgspec.structs.replace(deliveries, violations=violations)


def reach(world: World) -> Reach:
    wait = {name: host.worst_ns for name, host in world.brokers.items()}
    near = topology.neighbours(world.edges)

    def farthest(start: str) -> tuple[int, str]:
        best = (wait[start], start)
        todo = [(start, "", wait[start])]
        while todo:
            here, came_from, so_far = todo.pop()
            best = max(best, (so_far, here))
            for there in near.get(here, []):
                if there != came_from:
                    pipes = world.link(here, there)
                    todo.append(
                        (there, here, so_far + wait[there] + max(p.worst_ns for p in pipes))
                    )
        return best

    start = next(iter(world.brokers))
    tree_ns, _ = farthest(farthest(start)[1])
    client_ns = max(
        [world.closed_worst_ns, *(one.worst_ns() for one in world.connections.values())]
    )
    client_ns += max(wait.values())
    if world.relocation == Home.name:  # what a client says or gets goes by its home
        client_ns += tree_ns
    if world.digest_from < DIGEST_FROM:  # a new broker may ask an old one, and then the client
        client_ns = 3 * client_ns + 2 * tree_ns
    return Reach(tree_ns, client_ns, world.limits.window)


# Deliveries


class Span:
    """From when to when a client held a filter, or was attached."""

    __slots__ = ("end", "filter", "limited", "start")

    def __init__(self, start: int, filter: Filter | None = None) -> None:
        self.start = start
        self.end: float = inf
        self.filter = filter
        self.limited = False  # the client does not want to have all that it missed


class History:
    """What one client did, in spans."""

    def __init__(self) -> None:
        self.attached: list[Span] = []
        self.subscribed: list[Span] = []
        self.advertised: list[Span] = []
        self.published: dict[int, Event] = {}
        self.followed: list[tuple[Template, int, float]] = []  # from when to when
        self.became: list[Event] = []
        self.left: list[int] = []
        self.replaced: list[int] = []  # when another process began under its name
        self.moves = 0  # attachments at another broker than before
        self._broker: str | None = None
        self._held: dict[tuple[str, Filter], tuple[int, Span]] = {}

    def hold(self, kind: str, spans: list[Span], filter: Filter, time: int) -> None:
        count, span = self._held.get((kind, filter), (0, Span(time, filter)))
        if not count:
            spans.append(span)
        self._held[kind, filter] = count + 1, span

    def limit(self, filter: Filter, terms: str | None) -> None:
        """A subscription with terms is limited from its beginning on, whenever they were told."""
        if terms is not None:
            self._held["sub", filter][1].limited = True

    def let_go(self, kind: str, filter: Filter, time: int, *, all: bool = False) -> None:
        if (kind, filter) in self._held:
            count, span = self._held.pop((kind, filter))
            if count > 1 and not all:
                self._held[kind, filter] = count - 1, span
            else:
                span.end = min(span.end, time)  # it may have left before

    def leave(self, time: int) -> None:
        """The session ends: to the brokers, the client wants and offers nothing."""
        self.left.append(time)
        for _, span in self._held.values():
            span.end = min(span.end, time)  # it may have left before

    def begin_anew(self, time: int) -> None:
        """Another process has the name now, and holds nothing."""
        self.leave(time)
        self.replaced.append(time)
        self._held.clear()

    def come(self, time: int, broker: str | None) -> None:
        """A new attachment; after leaving, everything that is held begins anew."""
        self.attached.append(Span(time))
        self.moves += self._broker not in (None, broker)
        self._broker = broker
        for key, (count, span) in self._held.items():
            if span.end < inf:
                again = Span(time, span.filter)
                again.limited = span.limited
                self._held[key] = count, again
                (self.subscribed if key[0] == "sub" else self.advertised).append(again)

    def contact(self, time: float, needs_ns: int, until: float = inf) -> float:
        """When the client has next been attached for so long, counted from this time; or never."""
        for span in self.attached:
            end = max(span.start, time) + needs_ns
            if end <= min(span.end, until):
                return end
        return inf


def histories(events: Iterable[Event]) -> dict[str, History]:
    out: dict[str, History] = {}
    for event in events:
        if event.client is None:
            continue
        history = out.setdefault(event.client, History())
        time, filter = event.time_ns, event.filter
        if event.kind == "published":
            assert event.number is not None
            history.published[event.number] = event
        elif event.kind == "attached":
            history.come(time, event.broker)
        elif event.kind == "detached":
            history.attached[-1].end = time
        elif event.kind == "left":
            history.leave(time)
        elif event.kind == "replaced":
            history.begin_anew(time)
        elif event.kind == "subscribed" and filter is not None:
            history.hold("sub", history.subscribed, filter, time)
            history.limit(filter, event.reason)
        elif event.kind == "followed" and event.follows is not None:
            history.followed.append((event.follows, time, inf))
        elif event.kind == "unfollowed":
            history.followed = [
                (one, start, time if one == event.follows and end == inf else end)
                for one, start, end in history.followed
            ]
        elif event.kind == "became":
            history.became.append(event)
        elif event.kind == "advertised" and filter is not None:
            history.hold("ad", history.advertised, filter, time)
        elif event.kind == "unsubscribed" and filter is not None:
            history.let_go("sub", filter, time, all=event.reason is not None)
        elif event.kind == "unadvertised" and filter is not None:
            history.let_go("ad", filter, time)
    return out


def matches(filter: Filter, attributes: Attributes) -> bool:
    """The definition, not the code that brokers use."""
    return any(all(satisfied(p, attributes) for p in one) for one in filter.conjunctions)


def check_deliveries(events: list[Event], reach: Reach) -> Verdict:
    clients = histories(events)
    delivered: dict[tuple[str, str], list[int]] = {}  # (client, publisher) -> numbers
    earlier: dict[tuple[str, str], list[int]] = {}  # likewise, to earlier processes of the client
    lost: dict[str, int] = {}
    forgotten: dict[str, int] = {}  # when a client was last told that nobody knows how many
    violations: list[Violation] = []
    followed: set[tuple[str, str, int]] = set()  # client, publisher, number
    for event in events:
        if event.kind == "delivered":
            assert event.client and event.publisher and event.number
            if _is_followed(event, clients[event.client]):
                violations += _check_once(event, followed)
                continue
            violations += _check_wanted(event, clients)
            delivered.setdefault((event.client, event.publisher), []).append(event.number)
        elif event.kind == "lost":
            assert event.client and event.count is not None
            if event.count:
                lost[event.client] = lost.get(event.client, 0) + event.count
            else:
                forgotten[event.client] = event.time_ns
        elif event.kind == "replaced":
            for pair in [pair for pair in delivered if pair[0] == event.client]:
                numbers = delivered.pop(pair)
                violations += _check_order(pair, numbers)
                earlier.setdefault(pair, []).extend(numbers)
    for pair, numbers in delivered.items():
        violations += _check_order(pair, numbers)
    required = 0
    published = sum(len(client.published) for client in clients.values())
    for name, client in clients.items():
        missing = []
        possible = 0
        for publisher_name, publisher in clients.items():
            pair = name, publisher_name
            got = {*delivered.get(pair, []), *earlier.get(pair, [])}
            for number, event in publisher.published.items():
                must = _required(event, client, publisher, reach, published)
                required += must
                if number not in got:
                    possible += _possible(event, client, reach)
                    if must and event.time_ns > forgotten.get(name, -1):
                        missing.append(f"{publisher_name} {number}")
        told = lost.get(name, 0)
        if len(missing) > told:
            but = f" (it was told of {told})" if told else ""
            listed = ", ".join(missing[:5])
            violations.append(Violation("complete", f"{name} did not get {listed}{but}"))
        if told > possible:
            violations.append(
                Violation("gap", f"{name} was told of {told} lost, but misses {possible} at most")
            )
    return Verdict(
        tuple(violations),
        published=published,
        delivered=sum(map(len, [*delivered.values(), *earlier.values(), followed])),
        required=required,
        lost=sum(event.count or 0 for event in events if event.kind == "lost"),
    )


def _is_followed(event: Event, client: History) -> bool:
    """Whether this is for where the client is at that moment, and no ordinary subscription asks for it.

    Only for locations that stand for themselves; walks.py judges the others, and what has to come.
    """
    attributes, time = event.attributes or {}, event.time_ns
    if not client.followed or any(
        span.start <= time <= span.end and span.filter and matches(span.filter, attributes)
        for span in client.subscribed
    ):
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


def _check_order(pair: tuple[str, str], numbers: list[int]) -> Iterator[Violation]:
    client, publisher = pair
    seen: set[int] = set()
    last = 0
    for number in numbers:
        if number in seen:
            yield Violation("once", f"{client} got {publisher} {number} twice")
        elif number < last:
            yield Violation("fifo", f"{client} got {publisher} {number} after {last}")
        seen.add(number)
        last = max(last, number)


def _moving_ns(client: History, reach: Reach) -> int:
    """Until a session has come to where its client is: every one may wait for the one before it."""
    return 2 * reach.tree_ns * client.moves


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
    leaves = next((time for time in publisher.left if time >= event.time_ns), inf)
    accepted = publisher.contact(event.time_ns, reach.client_ns, leaves)
    if accepted == inf:
        return False
    accepted += _moving_ns(publisher, reach)  # until then its broker may hold it back
    arrived = accepted + reach.tree_ns
    if any(event.time_ns <= time < arrived for time in publisher.replaced):
        return False  # what the later process publishes may overtake it
    # When the window is full, deliveries wait for an acknowledgement, as often as that may happen.
    waits = published // reach.window
    receiving_ns = 3 * reach.client_ns + waits * (2 * reach.client_ns + ACK_DELAY_NS)
    receiving_ns += _moving_ns(client, reach)

    def settled(span: Span, spoken: History, trips: int) -> bool:
        contact = spoken.contact(span.start, reach.client_ns, span.end)
        return contact + trips * reach.tree_ns <= event.time_ns

    for span in client.subscribed:
        if (
            span.start < event.time_ns < span.end
            and not span.limited
            and settled(span, client, 1)
            and client.contact(arrived, receiving_ns, span.end) < inf
            and span.filter is not None
            and matches(span.filter, event.attributes)
        ):
            break
    else:
        return False
    # An advertisement travels out, and the subscriptions for it travel back.
    return any(
        span.start < event.time_ns
        and accepted <= span.end
        and settled(span, publisher, 2)
        and span.filter is not None
        and matches(span.filter, event.attributes)
        for span in publisher.advertised
    )


# Quiet


def check_quiet(world: World) -> list[Violation]:
    """What is left behind, and which table differs from the one computed from scratch."""
    found = [Violation("tidy", what) for what in world.broken]
    for (a, b), pipe in world.pipes.items():
        if len(pipe):
            found.append(Violation("tidy", f"{len(pipe)} messages on their way from {a} to {b}"))
    for client in world.clients.values():
        if client.core.outbox and client.connection is not None:
            found.append(Violation("tidy", f"{client.name} still has publications to send"))
    away = [one for one in world.clients.values() if one.connection is None and not one.left]
    found += _check_sessions(world, {one.name for one in away})
    # What a broker knows of a client that is away is what it last heard, which nobody else knows.
    return found if away else [*found, *_check_tables(world), *_check_told(world)]


def _check_sessions(world: World, away: set[str]) -> Iterator[Violation]:
    for name, host in world.brokers.items():
        core = host.core
        for session in core.border.all():
            client = session.client
            if client in away:
                continue
            if len(session.backlog):
                yield Violation("tidy", f"{name} keeps {len(session.backlog)} for {client}")
            if session.wait is not None:
                yield Violation("tidy", f"{name} waits for the session of {client}")
            if world.clients[client].left or session_at(world, world.clients[client]) != name:
                yield Violation("tidy", f"{name} has a session of {client}, which is not here")
    for client_host in world.clients.values():
        if client_host.connection is not None:
            yield from _check_attached(world, client_host)
    for link, connection in world.connections.items():
        if world.clients[connection.client.name].connection is not connection:
            yield Violation("tidy", f"{connection.broker.core.name} keeps the connection {link}")


def session_at(world: World, client: ClientHost) -> str:
    """Which broker should have the client's session."""
    return client.core.home if world.relocation == Home.name else client.home


def check_outlived(world: World) -> Iterator[Violation]:
    """What is left when everything has become as old as it may."""
    for name, host in world.brokers.items():
        if host.core.next_deadline() is not None:
            yield Violation("tidy", f"{name} still waits for a deadline")
        if host.core.border.tombstones:
            yield Violation("tidy", f"{name} still has tombstones")
        if isinstance(host.core.relocation, Junction) and host.core.relocation.searches:
            yield Violation("tidy", f"{name} still searches")


def _check_attached(world: World, host: ClientHost) -> Iterator[Violation]:
    """What its broker knows of a client that is attached, and what it knows itself."""
    client, broker = host.core, session_at(world, host)
    sessions = world.broker(broker).core.border.of(client.name)
    if not sessions:
        yield Violation("tidy", f"{broker} has no session of {host.name}, which is attached")
        return
    session, *others = reversed(sessions)
    link = client.link
    if broker != host.home and link is not None:
        link = tunnelled(BrokerId(host.home), link)
    if others:
        yield Violation("tidy", f"{broker} has several sessions of {host.name}")
    if (session.link, session.epoch) != (link, client.epoch):
        yield Violation("tidy", f"{broker} knows another attachment of {host.name}")
    elif {*session.subscriptions} != {*client.subscriptions}:
        yield Violation("tidy", f"{broker} knows other subscriptions of {host.name}")
    elif {*session.advertisements} != {*client.advertisements}:
        yield Violation("tidy", f"{broker} knows other advertisements of {host.name}")
    if client.next_deadline() is not None:
        yield Violation("tidy", f"{host.name} still waits for a deadline")


def tables_of(world: World) -> Tables:
    """What the tables have to be, from what the clients want and offer now."""
    strategy = STRATEGIES[world.routing]
    ads: dict[str, list[Entry]] = {name: [] for name in world.brokers}
    subs: dict[str, list[Entry]] = {name: [] for name in world.brokers}
    for client in world.clients.values():
        if not client.left:
            core = client.core
            broker = session_at(world, client)
            ads[broker] += _entries(strategy, core.name, core.advertisements)
            subs[broker] += _entries(strategy, core.name, core.subscriptions)
    for name, host in world.brokers.items():
        ear = host.core.replicator.ear
        owner = ear.session.client if strategy.per_client else ClientId("")
        for filter, chains in ear.subscriptions():
            if not chains:
                subs[name] += _entries(strategy, ear.session.client, [filter])
            subs[name] += [Entry(first, owner, tuple(rest)) for first, *rest in chains]
    return Tables(strategy, world.edges, ads, subs)


def _entries(strategy: Strategy, client: ClientId, filters: Iterable[Filter]) -> list[Entry]:
    owner = client if strategy.per_client else ClientId("")
    return [Entry(part, owner) for filter in filters for part in filter.parts()]


def _check_tables(world: World) -> Iterator[Violation]:
    tables = tables_of(world)
    for name, host in world.brokers.items():
        here: Places = {}
        for session in host.core.border.all():
            for filter in world.clients[session.client].core.subscriptions:
                for part in filter.parts():
                    add_place(here, part, session.place)
        ear = host.core.replicator.ear
        for filter, _ in ear.subscriptions():
            for part in filter.parts():
                add_place(here, part, ear.session.place)
        for what in differences(name, host.core.routing, tables, here):
            yield Violation("tidy", what)


def _check_early(world: World) -> Iterator[Violation]:
    if not issubclass(ALL_RELOCATIONS[world.relocation], Naive):
        for what in interest.early(world.events, histories(world.events), reach(world)):
            yield Violation("interest", what)


def _check_told(world: World) -> Iterator[Violation]:
    """What publishers that watch were told last is true."""
    tables = tables_of(world)
    here = {name: host for name, host in world.clients.items() if not host.left}
    for name, host in here.items():
        others = [filter for one in here if one != name for filter in here[one].core.subscriptions]
        near = tables.near.get(session_at(world, host), [])
        words = [
            entry.filter
            for neighbour in near
            for entry in tables.told_subs(neighbour, session_at(world, host))
        ]
        for offered in host.core.watched:
            told = host.core.wanted.get(offered)
            must = tables.strategy.floods or any(interest.meet(offered, one) for one in others)
            may = must or any(offered.overlaps(one) for one in [*others, *words])
            if told is None:
                yield Violation("interest", f"{name} was not told whether anybody wants {offered}")
            elif told != must and told != may:
                who = "somebody" if told else "nobody"
                yield Violation("interest", f"{name} believes that {who} wants {offered}")
