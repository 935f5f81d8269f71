"""What a timer costs a broker, and whether that depends on how many others there are.

At each size a broker has so many sessions (or tombstones, or virtual clients), each of them with a
deadline of its own. One tick after the other finds one that is due: what a tick costs at the largest
size is compared with what it costs at the smallest one, in the same run.

    backlog     the oldest notification of a backlog is too old
    away        the client of a session is away for too long, and the session ends
    tombstone   an ended session is forgotten (a broker keeps 10,000 of them at most)
    lease       a virtual client ends without news of its client
    answer      a session waits no longer for its old broker
    retained    a key that was cleared is forgotten
    expired     a retained value expires, and its key is cleared
    will        the last will of a client is published
    slowed      the lease of a publisher that is slowed ends (a broker slows 10,000 at most)
    member      a silent member of a queue group is asked whether it is there (a group has 10,000 at most)
    renewal     the leases of the virtual clients of a client are renewed

`idle` is a broker whose clients get one notification a minute each, and acknowledge it: CPU time for
each session in such a minute, with everything that the broker does meanwhile. `walkers` is a broker whose
clients follow their location and do nothing: CPU time in a minute for the renewals of their leases, which the
broker sends, and for taking in as many from a neighbour.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from time import process_time
from typing import Any

from msgspec.structs import replace

from wayfare.core.backpressure import LEASE_NS, SLOWED_MAX
from wayfare.core.border import TOMBSTONES_MAX
from wayfare.core.broker import NOT_AHEAD, Broker
from wayfare.core.effects import LinkDown, LinkUp, Post, Posted, Received, Tick
from wayfare.core.filters import Filter
from wayfare.core.groups import MEMBERS_MAX
from wayfare.core.history import SECOND_NS, Limits
from wayfare.core.messages import (
    AWAY_MIN_NS,
    NOWHERE,
    Ack,
    Attach,
    BrokerId,
    ClientId,
    Convene,
    Enlist,
    Followed,
    LinkId,
    Publish,
    Retain,
    Shadow,
    Slow,
    State,
    Update,
    Will,
)
from wayfare.core.places import of_edges
from wayfare.core.replicator import RENEWALS
from wayfare.core.virtual import Ahead

SIZES = (1_000, 10_000, 100_000)
BATCHES = 10
BATCH = 50  # timers; all batches take half of those of the smallest size
STEP_NS = 1_000  # between two timers
MINUTE_NS = 60 * SECOND_NS
ELSEWHERE = BrokerId("elsewhere")
# Far apart from each other: only the timers that are measured become due.
SOON_NS, NEVER_NS = 3600 * SECOND_NS, 10**6 * 3600 * SECOND_NS


def run(
    quick: bool = False, sizes: Sequence[int] = SIZES, **_unused: Any
) -> Iterator[dict[str, Any]]:
    """A row for each kind and size; `times_smallest` is the cost beside that of the smallest size."""
    for kind, made in KINDS.items():
        smallest: float | None = None
        for size in sizes[:2] if quick else sizes:
            broker = made(size)
            us = _us_per_timer(broker)
            smallest = smallest or us
            yield {
                "bench": "timers",
                "kind": kind,
                "sessions": size,
                "us_per_timer": round(us, 2),
                "times_smallest": round(us / smallest, 2),
            }
    for bench, measured in (("idle", _us_per_idle_minute), ("walkers", _us_per_walking_minute)):
        smallest = None
        for size in sizes[:2] if quick else sizes:
            us = measured(size)
            smallest = smallest or us
            yield {
                "bench": bench,
                "sessions": size,
                "cpu_ms_per_second": round(us * size / 60 / 1e3, 2),
                "us_per_session_and_minute": round(us, 2),
                "times_smallest": round(us / smallest, 2),
            }


def _us_per_timer(broker: Broker) -> float:
    """Of the quickest batch, because others use the machine, too: one tick for each due timer."""
    return min(_cpu_us(lambda: _fire(broker, BATCH)) / BATCH for _ in range(BATCHES))


def _fire(broker: Broker, count: int) -> None:
    for _ in range(count):
        due = broker.next_deadline()
        assert due is not None and due < NEVER_NS
        broker.step(Tick(), due)


def _cpu_us(work: Callable[[], object]) -> float:
    """As `timing.cpu_us`, but what is there is left out of garbage collection instead of collected."""
    gc.freeze()
    gc.disable()
    start = process_time()
    work()
    spent = process_time() - start
    gc.enable()
    gc.unfreeze()
    return spent * 1e6


# Brokers with many timers


def _limits(**limits: int) -> Limits:
    never = dict.fromkeys(("backlog_age_ns", "away_ns", "tombstone_ns", "answer_ns"), NEVER_NS)
    return Limits(**{**never, "lease_ns": SOON_NS, **limits})


def _broker(ahead: Ahead = NOT_AHEAD, /, **limits: int) -> Broker:
    broker = Broker(BrokerId("here"), [ELSEWHERE], limits=_limits(**limits), ahead=ahead)
    broker.step(LinkUp(LinkId(ELSEWHERE)), 0)
    return broker


def _link(number: int) -> LinkId:
    return LinkId(f"c{number}#1")


def _attach(broker: Broker, number: int, now: int, **more: Any) -> None:
    wanted = (Filter.parse(f"n = {number}"),)
    attach = Attach(ClientId(f"c{number}"), 2, 0, wanted, welcomed=True, **more)
    broker.step(Received(_link(number), attach), now)


def with_backlogs(size: int) -> Broker:
    broker = _broker(backlog_age_ns=SOON_NS)
    for number in range(size):
        _attach(broker, number, 0)
        broker.step(LinkDown(_link(number)), 0)
    publisher = LinkId("publisher#1")
    broker.step(Received(publisher, Attach(ClientId("publisher"), 1, 0)), 0)
    for number in range(size):
        broker.step(Received(publisher, Publish(number + 1, {"n": number})), number * STEP_NS)
    return broker


def _with_publisher(**limits: int) -> tuple[Broker, LinkId]:
    broker, publisher = _broker(**limits), LinkId("publisher#1")
    broker.step(Received(publisher, Attach(ClientId("publisher"), 1, 0)), 0)
    return broker, publisher


def with_clients_away(size: int) -> Broker:
    broker = _broker(away_ns=SOON_NS)
    for number in range(size):
        _attach(broker, number, 0)
        broker.step(LinkDown(_link(number)), number * STEP_NS)
    return broker


def with_tombstones(size: int) -> Broker:
    """No more than a broker keeps; the sessions are there, and have nothing to wait for."""
    broker = _broker(tombstone_ns=SOON_NS)
    for number in range(size):
        _attach(broker, number, 0)
    for number in range(min(size, TOMBSTONES_MAX)):
        broker.border.bury(ClientId(f"gone{number}"), 1, number * STEP_NS)
    return broker


def with_leases(size: int) -> Broker:
    broker = _broker()
    followed = Followed((("location in myloc", None),), NOWHERE)
    for number in range(size):
        shadow = Shadow(ELSEWHERE, ClientId(f"c{number}"), 1, 1, SOON_NS, followed)
        broker.step(Posted(ELSEWHERE, shadow), number * STEP_NS)
    return broker


def with_waiting_sessions(size: int) -> Broker:
    broker = _broker(answer_ns=SOON_NS)
    for number in range(size):
        _attach(broker, number, number * STEP_NS, previous=((ELSEWHERE, 1),))
    return broker


def with_cleared_keys(size: int) -> Broker:
    broker, publisher = _with_publisher(tombstone_ns=SOON_NS, retained_count=size)
    for number in range(size):
        clear = Publish(number + 1, {"n": number}, retain=Retain(("n",), clear=True))
        broker.step(Received(publisher, clear), number * STEP_NS)
    return broker


def with_values_that_expire(size: int) -> Broker:
    broker, publisher = _with_publisher(retained_count=size)
    for number in range(size):
        publish = Publish(number + 1, {"n": number}, retain=Retain(("n",)), expires_ns=SOON_NS)
        broker.step(Received(publisher, publish), number * STEP_NS)
    return broker


def with_wills(size: int) -> Broker:
    broker = _broker()
    for number in range(size):
        _attach(broker, number, 0, will=Will({"gone": number}, delay_ns=SOON_NS))
        broker.step(LinkDown(_link(number)), number * STEP_NS)
    return broker


def with_slowed_publishers(size: int) -> Broker:
    """The sessions are there, and have nothing to wait for; a lease is shorter than the other timers are."""
    broker = _broker()
    for number in range(size):
        _attach(broker, number, 0)
    for number in range(min(size, SLOWED_MAX)):
        slow = Update(slow=(Slow(ClientId(f"p{number}"), LEASE_NS),))
        broker.step(Received(LinkId(ELSEWHERE), slow), number * STEP_NS)
    return broker


def with_silent_members(size: int) -> Broker:
    broker = _broker(group_ns=SOON_NS)
    for number in range(size):
        _attach(broker, number, 0)
    wanted = Filter.parse("job = 1")
    for number in range(min(size, MEMBERS_MAX)):
        enlist = Enlist("workers", wanted, f"m{number}", 1, 1, 2 * AWAY_MIN_NS)
        broker.step(Received(LinkId(ELSEWHERE), _convene(enlist)), number * STEP_NS)
    return broker


def _convene(enlist: Enlist) -> Update:
    return Update(errands=(Convene(BrokerId("here"), enlist),))


def with_walkers(size: int, lease_ns: int = RENEWALS * SOON_NS) -> Broker:
    """Clients that follow their location, at one of two brokers on a road; they came at different times."""
    places = of_edges([("here", str(ELSEWHERE))])
    broker = _broker(Ahead(places, places.next_brokers), lease_ns=lease_ns)
    followed = Followed((("location in myloc", None),), State("here"))
    for number in range(size):
        now = number * (lease_ns // RENEWALS // size // 2)
        attach = Attach(ClientId(f"c{number}"), 1, 0, followed=followed)
        broker.step(Received(_link(number), attach), now)
    return broker


KINDS: dict[str, Callable[[int], Broker]] = {
    "backlog": with_backlogs,
    "away": with_clients_away,
    "tombstone": with_tombstones,
    "lease": with_leases,
    "answer": with_waiting_sessions,
    "retained": with_cleared_keys,
    "expired": with_values_that_expire,
    "will": with_wills,
    "slowed": with_slowed_publishers,
    "member": with_silent_members,
    "renewal": with_walkers,
}


# A broker with little to do


def _us_per_idle_minute(size: int) -> float:
    """CPU microseconds for each session; the second minute counts, when timers of the first are due."""
    broker = _broker(backlog_age_ns=MINUTE_NS)
    for number in range(size):
        _attach(broker, number, 0)
    publisher = LinkId("publisher#1")
    broker.step(Received(publisher, Attach(ClientId("publisher"), 1, 0)), 0)
    _idle_minute(broker, size, 0)
    return _cpu_us(lambda: _idle_minute(broker, size, 1)) / size


def _idle_minute(broker: Broker, size: int, minute: int) -> None:
    publisher, start = LinkId("publisher#1"), minute * MINUTE_NS
    for number in range(size):
        now = start + number * MINUTE_NS // size
        due = broker.next_deadline()
        if due is not None and due <= now:
            broker.step(Tick(), now)
        publish = Publish(minute * size + number + 1, {"n": number})
        broker.step(Received(publisher, publish), now)
        broker.step(Received(_link(number), Ack(minute + 1)), now)


def _us_per_walking_minute(size: int) -> float:
    """CPU microseconds for each walker, in the second minute; half of it for the leases of others."""
    broker = with_walkers(size, lease_ns=MINUTE_NS)
    _walking_minute(broker, 0)
    return _cpu_us(lambda: _walking_minute(broker, 1)) / size


def _walking_minute(broker: Broker, minute: int) -> None:
    end = (minute + 1) * MINUTE_NS
    while (due := broker.next_deadline()) is not None and due < end:
        for effect in broker.step(Tick(), due):
            if isinstance(effect, Post) and isinstance(effect.message, Shadow):
                shadow = effect.message
                theirs = replace(shadow, broker=ELSEWHERE, client=ClientId(f"e{shadow.client}"))
                broker.step(Posted(ELSEWHERE, theirs), due)
