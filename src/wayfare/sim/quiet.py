"""When all is quiet: what is left behind, and whether all know what they have to.

Every table has to equal the one computed here from scratch, from the tree and what the clients want and offer now;
and no message, timer or backlog may be left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wayfare.core.broker import Broker
from wayfare.core.filters import Filter
from wayfare.core.groups import ASSIGNMENTS, GROUP_PLACE
from wayfare.core.home import Home, tunnelled
from wayfare.core.junction import Junction
from wayfare.core.messages import BrokerId, ClientId, Entry
from wayfare.core.reduction import STRATEGIES, Strategy
from wayfare.core.retained import order
from wayfare.sim import interest
from wayfare.sim.accounting import check_accounting
from wayfare.sim.expiry import stands_in
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import SECOND_NS
from wayfare.sim.sharing import check_groups_quiet
from wayfare.sim.tables import Places, Tables, add_place, differences, faults
from wayfare.sim.verdict import Violation
from wayfare.sim.world import World


def check_quiet(world: World) -> list[Violation]:
    """What is left behind, and which table differs from the one computed from scratch."""
    found = [Violation("tidy", what) for what in world.broken]
    for (a, b), pipe in world.pipes.items():
        if len(pipe):
            found.append(Violation("tidy", f"{len(pipe)} messages on their way from {a} to {b}"))
    for client in world.clients.values():
        if client.core.outbox and client.connection is not None:
            found.append(Violation("tidy", f"{client.name} still has publications to send"))
    for link in world.paused:
        found.append(Violation("tidy", f"the publications of {link} are still paused"))
    found += check_groups_quiet(world)
    for broker in world.brokers.values():
        found += [Violation("accounting", what) for what in check_accounting(broker.core)]
        found += [Violation("tidy", what) for what in _unconfirmed(broker.core)]
    found += [Violation("tidy", what) for what in _differing_values(world)]
    away = [one for one in world.clients.values() if one.connection is None and not one.left]
    found += _check_sessions(world, {one.name for one in away})
    # What a broker knows of a client that is away is what it last heard, which nobody else knows.
    return found if away else [*found, *_check_tables(world), *_check_told(world)]


def _unconfirmed(broker: Broker) -> Iterator[str]:
    """What the neighbours of a broker have not answered."""
    spread = broker.convergence
    for kind, one in (("advertisements", spread.ads), ("subscriptions", spread.subs)):
        for barrier in one.pending():
            missing = ", ".join(barrier.missing)
            yield f"{broker.name} waits for {missing} to confirm {kind} of {barrier.source}"
    for neighbour, entries in spread.provisional.entries.items():
        yield f"{neighbour} has not answered {len(entries)} advertisements of {broker.name}"


def _differing_values(world: World) -> Iterator[str]:
    """All brokers have the same current values, unless a limit dropped some."""
    tables = {name: host.core.border.retained for name, host in world.brokers.items()}
    if any(table.evicted for table in tables.values()):
        return
    for name, table in tables.items():
        for key in table.values.keys() - table.cleared.keys():
            mine = order(table.values[key])
            others = {name: one.values.get(key) for name, one in tables.items()}
            lacking = [other for other, one in others.items() if not one or order(one) != mine]
            if lacking:
                yield f"{name} has another value of {key} than {', '.join(sorted(lacking))}"


def _check_sessions(world: World, away: set[str]) -> Iterator[Violation]:
    for name, host in world.brokers.items():
        core = host.core
        for session in core.border.all():
            client = session.client
            if client in away or stands_in(core, session):
                continue
            if len(session.backlog):
                yield Violation("tidy", f"{name} keeps {len(session.backlog)} for {client}")
            if session.episode is not None:
                yield Violation("tidy", f"{name} still slows publishers for {client}")
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
        if host.core.backpressure.slowed:
            yield Violation(
                "tidy", f"{name} still slows {', '.join(host.core.backpressure.slowed)}"
            )
        if host.core.groups.groups:
            yield Violation("tidy", f"{name} still coordinates queue groups")
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
        for session in host.core.border.all():
            if stands_in(host.core, session):
                ads[name] += _entries(strategy, session.client, session.advertisements)
                subs[name] += _entries(strategy, session.client, session.subscriptions)
        ear = host.core.replicator.ear
        owner = ear.session.client if strategy.per_client else ClientId("")
        for filter, chains in ear.subscriptions():
            if not chains:
                subs[name] += _entries(strategy, ear.session.client, [filter])
            subs[name] += [Entry(first, owner, tuple(rest)) for first, *rest in chains]
        groups = host.core.groups
        if groups.groups:
            ads[name] += _entries(strategy, groups.session.client, [ASSIGNMENTS])
            subs[name] += _entries(strategy, groups.session.client, groups.subscriptions())
    return Tables(strategy, world.edges, ads, subs)


def _entries(strategy: Strategy, client: ClientId, filters: Iterable[Filter]) -> list[Entry]:
    owner = client if strategy.per_client else ClientId("")
    return [Entry(part, owner) for filter in filters for part in filter.parts()]


def is_exact(world: World) -> bool:
    """Whether no broker ever left work on its tables undone, to save time."""
    return all(host.core.routing.meter.exact for host in world.brokers.values())


def _check_tables(world: World) -> Iterator[Violation]:
    tables = tables_of(world)
    routings = {name: host.core.routing for name, host in world.brokers.items()}
    for name, host in world.brokers.items():
        here: Places = {}
        for session in host.core.border.all():
            held = world.clients[session.client].core.subscriptions.keys()
            for filter in session.subscriptions if stands_in(host.core, session) else held:
                for part in filter.parts():
                    add_place(here, part, session.place)
        ear = host.core.replicator.ear
        for filter, _ in ear.subscriptions():
            for part in filter.parts():
                add_place(here, part, ear.session.place)
        for filter in host.core.groups.subscriptions():
            for part in filter.parts():
                add_place(here, part, GROUP_PLACE)
        checked = differences(name, host.core.routing, tables, here)
        if not is_exact(world):
            checked = faults(name, routings, tables)
        for what in checked:
            yield Violation("tidy", what)


def _check_told(world: World) -> Iterator[Violation]:
    """What publishers that watch were told last is true."""
    tables, exact = tables_of(world), is_exact(world)
    here = {name: host for name, host in world.clients.items() if not host.left}
    for name, host in here.items():
        others = [filter for one in here if one != name for filter in here[one].core.subscriptions]
        others += [
            one for broker in world.brokers.values() for one in broker.core.groups.subscriptions()
        ]
        near = tables.near.get(session_at(world, host), [])
        words = [
            entry.filter
            for neighbour in near
            for entry in tables.told_subs(neighbour, session_at(world, host))
        ]
        for offered in host.core.watched:
            told = host.core.wanted.get(offered)
            must = tables.strategy.floods or any(interest.meet(offered, one) for one in others)
            may = must or not exact or any(offered.overlaps(one) for one in [*others, *words])
            if told is None:
                yield Violation("interest", f"{name} was not told whether anybody wants {offered}")
            elif told != must and told != may:
                who = "somebody" if told else "nobody"
                yield Violation("interest", f"{name} believes that {who} wants {offered}")


def ghosts(world: World) -> Iterator[Violation]:
    """Everybody leaves; then nothing may be left."""
    for client in world.clients.values():
        if client.connection is None:
            client.attach()
    world.settle()
    for client in world.clients.values():
        client.detach(leave=True)
    world.run_until(world.now + 3 * world.limits.lease_ns + 60 * SECOND_NS)
    for name, host in world.brokers.items():
        replicator = host.core.replicator
        for what, left in (
            ("virtual clients", list(replicator.virtual)),
            ("ids in its store", list(replicator.ear.store.kept)),
            ("subscriptions", replicator.ear.subscriptions()),
        ):
            if left:
                yield Violation("ghosts", f"{name} has {what}: {left!r:.200}")
