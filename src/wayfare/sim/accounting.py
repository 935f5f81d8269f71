"""Whether a broker counts right what it keeps: computed again from scratch, from all that it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wayfare.core.broker import Broker
from wayfare.core.history import LARGE, Backlog, Stored
from wayfare.core.memory import BODY_BYTES, RANK_MIN, Consumer
from wayfare.core.preparing import waiting_bytes


def check_accounting(core: Broker) -> Iterator[str]:
    """What is counted wrong."""
    memory, kept = core.border.memory, list(_kept(core))
    bodies = {id(one): one.size + BODY_BYTES for one in kept}
    waits = [one.wait for one in core.border.all() if one.wait is not None]
    asking = sum(one.bytes for one in core.profiles.asking.values())
    backlogs = [one.backlog for one in core.border.all()]
    backlogs += [one.backlog for one in core.replicator.virtual.values()]
    for what, counted, really in (
        ("bytes that wait", sum(one.waiting_bytes for one in backlogs), _waiting(backlogs)),
        ("large bytes", sum(one.large_bytes for one in backlogs), _large(backlogs)),
        ("notifications kept", memory.entries, len(kept)),
        ("bytes of notifications", memory.bodies, sum(bodies.values())),
        ("bytes for attached clients", memory.attached, _attached(core)),
        ("bytes of profiles", memory.profiles, _profiles(core)),
        ("bytes held back", memory.publications, sum(one.publications_bytes() for one in waits)),
        ("bytes behind long texts", core.preparations.bytes, _late(core)),
        ("bytes of half-finished attachments", core.profiles.bytes, asking),
    ):
        if counted != really:
            yield f"{core.name} counts {counted} {what}, and has {really}"
    border = core.border
    for session in [one for sessions in border.departed for one in sessions.values()]:
        if session.link is not None or border.at_place(session.place) is not session:
            yield f"{core.name} would evict {session.client}, which is attached or gone"
    for consumer in _consumers(core):
        noted, size = consumer.noted, consumer.measure()
        if size > 2 * max(noted, 1 << RANK_MIN):
            yield f"{core.name} noted {noted} bytes of {size}"


def _late(core: Broker) -> int:
    late = core.preparations.late.values()
    return sum(waiting_bytes(event) for one in late for event in one.events)


def _profiles(core: Broker) -> int:
    return sum(one.profile for one in core.border.all())


def _consumers(core: Broker) -> Iterator[Consumer]:
    yield from core.border.all()
    yield from core.replicator.virtual.values()
    yield from core.replicator.ear.buffers()
    yield from core.groups.groups.values()


def _attached(core: Broker) -> int:
    sessions = [one.backlog.counted for one in core.border.all()]
    return sum(sessions) + sum(one.backlog.counted for one in core.replicator.virtual.values())


def _waiting(backlogs: Iterable[Backlog]) -> int:
    return sum(stored.size for one in backlogs for _, stored, _ in one.waiting)


def _large(backlogs: Iterable[Backlog]) -> int:
    sizes = [stored.size for one in backlogs for _, stored, _ in one.unacked]
    return sum(one for one in sizes if one > LARGE)


def _in(backlog: Backlog) -> Iterator[Stored]:
    """What counts once: not what is small, and on its way to a client that is attached."""
    sent = [stored for _, stored, _ in backlog.unacked]
    yield from (one for one in sent if backlog.away or one.size > LARGE)
    yield from (stored for _, stored, _ in backlog.waiting)


def _kept(core: Broker) -> Iterator[Stored]:
    for virtual in core.replicator.virtual.values():
        yield from _in(virtual.backlog)
        if virtual.search is not None:
            yield from (stored for stored, _ in virtual.search.fetched())
    for session in core.border.all():
        yield from _in(session.backlog)
        if session.wait is not None:
            yield from session.wait.kept()
    yield from (one.stored for one in core.replicator.ear.store.kept.values())
    yield from core.groups.kept()
