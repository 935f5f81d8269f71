"""Whether sessions end when their clients have been away for too long: not before that, and not later."""

from __future__ import annotations

from collections.abc import Iterator

from wayfare.core.broker import Broker
from wayfare.core.effects import EXPIRED
from wayfare.core.publishers import Publishers
from wayfare.core.relocation import NO_SESSION
from wayfare.core.sessions import Session
from wayfare.eventlog import Event
from wayfare.sim.histories import History, histories
from wayfare.sim.reach import Reach, reach
from wayfare.sim.verdict import Violation
from wayfare.sim.world import World


def expires_ns(world: World, client: str) -> int:
    """How long this client may be away."""
    limit = world.limits.away_ns
    return min(world.clients[client].core.expires_ns or limit, limit)


def stands_in(broker: Broker, session: Session) -> bool:
    """Whether this advertises for a client that is elsewhere, as the published algorithms do."""
    return isinstance(broker.relocation, Publishers) and session.link is None


def overdue(world: World) -> Iterator[Violation]:
    """The sessions that should have ended."""
    for name, host in world.brokers.items():
        if name in world.stopped:
            continue
        for session in host.core.border.all():
            if session.link is not None or session.wait is not None:
                continue
            if stands_in(host.core, session):
                continue  # for as long as the algorithm says, and not the client
            age_ns = world.now - session.away_since
            # While it did nothing, nobody was away; a tick that waits is lost in a crash, and waits again.
            slack_ns = 2 * host.worst_ns + host.stalled_ns
            if age_ns > expires_ns(world, session.client) + slack_ns:
                seconds = age_ns / 1e9
                what = f"{name} keeps a session of {session.client}, away for {seconds:g} s"
                yield Violation("expired", what)


def unexpired(world: World) -> Iterator[Event]:
    """Reports that a session has ended, to clients that were neither away for long enough nor evicted."""
    known, slowest = histories(world.events), reach(world)
    evicted = {one.client for _, one in world.ended if one.why != EXPIRED}
    for event in world.events:
        if event.kind == "lost" and event.reason == NO_SESSION and event.client not in evicted:
            assert event.client
            history, most_ns = known[event.client], expires_ns(world, event.client)
            if not _was_away(history, event.time_ns, most_ns, slowest):
                yield event


def has_ended(
    world: World, client: str, history: History, published: int, time: int, reach: Reach
) -> bool:
    """Whether the session of this client had ended by itself by this time, and the client was not back.

    It is back when its filters are in effect again, at all brokers: before that nobody knows that it wants what is published.
    If it had no session any more, its next one may have ended with the connection: until the client has sent
    something, its broker cannot tell whether it is there.
    """
    over = [at for at, one in world.ended if one.client == client and at <= time + reach.client_ns]
    if not over:
        return False
    over += [
        one.time_ns
        for one in world.events
        if one.kind == "lost" and (one.client, one.reason) == (client, NO_SESSION)
    ]
    last = max(at for at in over if at <= time + reach.client_ns)
    return not any(
        min(span.end, time) - span.start >= reach.client_ns  # else no broker may have heard of it
        and span.start + reach.client_ns + reach.tree_ns <= published
        and (span.end >= time or span.start > last)
        for span in history.attached
    )


def _was_away(client: History, before: int, most_ns: int, reach: Reach) -> bool:
    """Whether brokers may have missed this client for that long, until its session was found."""
    finding_ns = reach.client_ns + 2 * reach.tree_ns * client.moves
    left = 0.0
    for span in client.attached:
        if span.start > before:
            break
        if span.start - left + finding_ns >= most_ns:
            return True
        if span.end - span.start >= reach.client_ns:  # else no broker may have heard of it
            left = span.end
    return False
