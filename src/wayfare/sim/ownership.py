"""Who owns a session, at any time and not only when all is quiet.

A session of a client is owned while something leads to it:

    the client            it is attached there, or knows that it was
    a departure           of a session that is owned, as a tombstone remembers it
    a request, a reply or an announcement that it is unclaimed
                          under way, waiting at another session or behind work on tables, or stored for an
                          unknown broker; also while what a session hands over is thinned in slices
    a later session       whose broker knows that the chain of hand-offs is broken, or will find out: then
                          it seeks all older ones

Any other session is a ghost: it collects a backlog that nobody ever asks for. And of the sessions of one
client at most one is open, unless a hand-off that is under way explains the other ones: otherwise each of
them takes part in what only the last one should get.

`Watch` looks a while after every attachment, because that is what makes and moves sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

from wayfare.core.handoff import Handoff
from wayfare.core.messages import (
    Announce,
    AnyMessage,
    ClientId,
    Errand,
    Fetch,
    Gap,
    Reply,
    Request,
    Unclaimed,
    Update,
)
from wayfare.core.sessions import Departure, Session
from wayfare.eventlog import Event
from wayfare.sim.expiry import overdue
from wayfare.sim.links import MS_NS
from wayfare.sim.verdict import Violation
from wayfare.sim.world import World

Held = list[tuple[str, Session]]  # sessions, and the brokers that have them


class Traffic:
    """What is under way between brokers about one client."""

    __slots__ = ("began", "certain", "leads_to", "sought")

    def __init__(self) -> None:
        self.leads_to: list[Departure] = []  # where a request looks, or where a reply goes
        self.certain: list[
            Departure
        ] = []  # attachments that took place, as a request will find out
        self.began = 0  # the epoch at which the client began anew, as some brokers will hear
        self.sought = 0  # sessions before this epoch are sought for, or will be

    def add(self, errand: Request | Fetch | Reply) -> None:
        self.leads_to.append((errand.broker, errand.epoch))
        if isinstance(errand, Request):
            self.leads_to += errand.previous
            self.certain += errand.previous[-1:] if errand.welcomed else ()
        if isinstance(errand, Reply) and errand.above:
            self.began = max(self.began, errand.above + 1)
        if isinstance(errand, Reply) and errand.partial:
            self.sought = max(self.sought, errand.epoch)
        if isinstance(errand, Request) and errand.forgotten:
            self.sought = max(self.sought, errand.epoch)


NOTHING = Traffic()


def check_ownership(world: World) -> Iterator[Violation]:
    """The sessions that nobody owns, and clients with several open sessions."""
    if world.relocation != Handoff.name:
        return
    held: dict[ClientId, Held] = {}
    for name, host in world.brokers.items():
        if name in world.restoring:
            continue  # its sessions are about to be replaced by older ones, which it announces
        for session in host.core.border.all():
            held.setdefault(session.client, []).append((name, session))
    doubtful = {client: some for client, some in held.items() if not _is_simple(world, some)}
    if not doubtful:
        return
    traffic = traffic_of(world)
    for client, some in doubtful.items():
        about = traffic.get(client, NOTHING)
        yield from _check_owned(world, client, some, about)
        yield from _check_open(client, some, about)


def _is_simple(world: World, held: Held) -> bool:
    """Whether the client has one session only, and knows it; or has none that it must find again."""
    client = world.clients[held[0][1].client].core
    if not client.welcomed:  # it left, or began anew: nothing that it had before counts
        return True
    (name, session), *others = held
    known = client.previous[:1]
    return not others and any(
        broker == name and session.opened <= epoch <= session.epoch for broker, epoch in known
    )


def _check_owned(world: World, client: ClientId, held: Held, about: Traffic) -> Iterator[Violation]:
    leads = [*world.clients[client].core.previous, *about.leads_to]
    reached = _reached(world, client, leads)
    for name, session in held:
        owned = any(
            broker == name and session.opened <= epoch <= session.epoch for broker, epoch in reached
        )
        if not owned and not _ends_by_itself(world, session, about):
            is_older = session.epoch <= world.clients[client].core.epoch
            departures = [*about.certain, *(one for one in reached if one not in leads)]
            if is_older and _is_forgotten(world, client, held, departures):
                continue  # its client will seek it
            yield Violation("owner", f"{name} has a session {_epochs(session)} of nobody")


def _is_forgotten(world: World, client: ClientId, held: Held, departures: list[Departure]) -> bool:
    """Whether a broker forgot an attachment that certainly took place: a request finds that out."""
    certain = [*world.clients[client].core.previous[-1:], *departures]
    for _, session in held:
        request = None if session.wait is None else session.wait.request
        if request is not None and request.welcomed:
            certain += request.previous[-1:]
    return any(
        world.brokers[broker].core.border.forgot(client, epoch, True, world.now)
        for broker, epoch in certain
        if broker in world.brokers
    )


def _reached(world: World, client: ClientId, leads: Iterable[Departure]) -> list[Departure]:
    """These attachments, and those that tombstones lead to from there."""
    reached: dict[Departure, None] = {}
    todo = [*leads]
    while todo:
        here = todo.pop()
        broker, epoch = here
        if here in reached or broker not in world.brokers:
            continue
        reached[here] = None
        tombstone = world.brokers[broker].core.border.tombstones.get(client)
        if tombstone is not None:
            todo += [one for one in tombstone.departures_with(()) if one[1] > epoch]
    return list(reached)


def _ends_by_itself(world: World, session: Session, about: Traffic) -> bool:
    """Whether its connection still has to break for its broker, or a goodbye or a new life ends it."""
    if session.rolled_back:  # somebody may have a later one, and ask for it
        return True
    if session.orphan and session.link is not None:  # its broker may be stopped, and hear it later
        return True
    ends = session.epoch < max(about.began, about.sought)
    return session.link in world.connections or session.leaving or ends


def _check_open(client: ClientId, held: Held, about: Traffic) -> Iterator[Violation]:
    some = [(n, s) for n, s in held if s.wait is None and not (s.orphan or s.leaving)]
    some = [(n, s) for n, s in some if s.epoch >= about.sought]
    if len(some) > 1 and not (about.leads_to or about.began):
        where = ", ".join(f"{name} {_epochs(session)}" for name, session in some)
        yield Violation("owner", f"{client} has several open sessions: {where}")


def _epochs(session: Session) -> str:
    return f"{session.client}:{session.opened}-{session.epoch}"


def traffic_of(world: World) -> dict[ClientId, Traffic]:
    """What is under way between brokers, by client."""
    out: dict[ClientId, Traffic] = {}
    messages = [*world.in_flight()]
    for host in world.brokers.values():
        messages += host.core.waiting()
    restoring = _is_restoring(world, messages)

    def add(errand: Errand | None) -> None:
        if isinstance(errand, Request | Fetch | Reply):
            out.setdefault(errand.client, Traffic()).add(errand)
        if isinstance(errand, Reply) and errand.sought and restoring:
            seek(errand.client, errand.epoch)
        if isinstance(errand, Request) and _finds_old_store(world, errand):
            seek(errand.client, errand.epoch)

    def announce(one: Unclaimed) -> None:
        out.setdefault(one.client, Traffic()).leads_to.append((one.broker, one.epoch))

    def seek(client: ClientId, epoch: int) -> None:
        traffic = out.setdefault(client, Traffic())
        traffic.sought = max(traffic.sought, epoch)

    def begin(client: ClientId, epoch: int) -> None:
        traffic = out.setdefault(client, Traffic())
        traffic.began = max(traffic.began, epoch)

    for client in world.clients.values():
        if client.core.anew:
            begin(client.core.name, client.core.anew)
    for message in messages:
        for errand in _errands(message):
            add(errand)
        for began in message.begun if isinstance(message, Announce) else ():
            begin(began.client, began.epoch)
            if began.broker:  # a broker that has a later session reports it, and that session ends
                for host in world.brokers.values():
                    begin(began.client, host.core.border.reached(began.client, began.life) + 1)
        for one in message.unclaimed if isinstance(message, Announce) else ():
            announce(one)
        for request in message.sought if isinstance(message, Announce) else ():
            seek(request.client, request.epoch)
    for name, host in world.brokers.items():
        core = host.core
        for session in core.border.all():
            if (
                session.partial
                or session.rolled_back
                or (session.sought_since is not None and restoring)
            ):
                seek(session.client, _sought_before(world, name, session))
            if session.above:
                begin(session.client, session.above + 1)
            add(session.handing)
            if session.wait is not None:
                if session.wait.repeated:
                    seek(session.client, session.epoch)
                if restoring:
                    add(session.wait.request)
                add(session.wait.pending)
                for one in session.wait.unclaimed:
                    announce(one)
        for request in core.relocation.astray() if isinstance(core.relocation, Handoff) else ():
            add(request)
    return out


def _finds_old_store(world: World, request: Request) -> bool:
    """Whether a request will find a session that came back with an old store: then its answer is partial."""
    for broker, epoch in request.previous:
        host = world.brokers.get(broker)
        session = None if host is None else host.core.border.at(request.client, epoch)
        if session is not None and session.epoch < request.epoch:
            return session.rolled_back > 0
    return False


def _sought_before(world: World, broker: str, session: Session) -> int:
    """The epoch of the attachment that will seek all sessions before it.

    A session that came back with an old store may be older than others that its client had since then. If
    the client asks for it, that is at its next attachment.
    """
    client = world.clients[session.client].core
    border = world.brokers[broker].core.border
    is_next = session.rolled_back and any(
        name == broker and border.at(session.client, epoch) is session
        for name, epoch in client.previous
    )
    return client.epoch + 1 if is_next else session.epoch


def _is_restoring(world: World, messages: Iterable[AnyMessage]) -> bool:
    """Whether a link begins from nothing: requests that were lost with it will be repeated.

    What was sought, or asked for in vain, will be sought again.
    """
    gaps = (one for one in messages if isinstance(one, Gap) and not one.number)
    return bool(world.stopped) or any(True for _ in gaps)


def _errands(message: AnyMessage) -> tuple[Errand, ...]:
    return message.errands if isinstance(message, Update) else ()


class Watch:
    """Looks at the sessions of a world a while after every attachment."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.found: dict[Violation, None] = {}
        self._random = random
        self._next = -1  # no other look is planned before this time
        world.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.kind != "attached" or self._next >= event.time_ns:
            return
        self._next = event.time_ns + self._random.choice([1, 20, 100, 500]) * MS_NS
        self.world.agenda.at(self._next, self._look)

    def _look(self, _: None) -> None:
        found = [*check_ownership(self.world), *overdue(self.world)]
        self.found.update(dict.fromkeys(found))
