"""What a timer costs a broker, and whether that depends on how many others there are.

At each size a broker has so many sessions (or tombstones, or virtual clients), each of them with a
deadline of its own. One tick after the other finds one that is due: what a tick costs at the largest
size is compared with what it costs at the smallest one, in the same run.

    backlog     the oldest notification of a backlog is too old
    away        the client of a session is away for too long, and the session ends
    tombstone   an ended session is forgotten (a broker keeps 10,000 of them at most)
    lease       a virtual client ends without news of its client
    answer      a session waits no longer for its old broker

`idle` is a broker whose clients get one notification a minute each, and acknowledge it: CPU time for
each session in such a minute, with everything that the broker does meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from time import process_time
from typing import Any

from wayfare.core.border import TOMBSTONES_MAX
from wayfare.core.broker import Broker
from wayfare.core.effects import LinkDown, LinkUp, Posted, Received, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import SECOND_NS, Limits
from wayfare.core.messages import (
    NOWHERE,
    Ack,
    Attach,
    BrokerId,
    ClientId,
    Followed,
    LinkId,
    Publish,
    Shadow,
)

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
    smallest = None
    for size in sizes[:2] if quick else sizes:
        us = _us_per_idle_minute(size)
        smallest = smallest or us
        yield {
            "bench": "idle",
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


def _broker(**limits: int) -> Broker:
    broker = Broker(BrokerId("here"), [ELSEWHERE], limits=_limits(**limits))
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


KINDS: dict[str, Callable[[int], Broker]] = {
    "backlog": with_backlogs,
    "away": with_clients_away,
    "tombstone": with_tombstones,
    "lease": with_leases,
    "answer": with_waiting_sessions,
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
