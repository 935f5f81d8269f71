"""The benchmark of timers: what it measures is due one by one, and nothing else is touched."""

import sys
import tracemalloc

import pytest

from wayfare.bench import timers
from wayfare.core.broker import TIMERS
from wayfare.core.deadlines import (
    ANSWER,
    AWAY,
    BACKLOG,
    GROUP,
    RETAINED,
    SLOWED,
    TOMBSTONE,
    VIRTUAL,
    WILL,
)
from wayfare.core.effects import Tick

KIND = {
    "backlog": BACKLOG,
    "away": AWAY,
    "tombstone": TOMBSTONE,
    "lease": VIRTUAL,
    "answer": ANSWER,
    "retained": RETAINED,
    "expired": RETAINED,
    "will": WILL,
    "slowed": SLOWED,
    "member": GROUP,
    "renewal": VIRTUAL,
}


@pytest.mark.parametrize("kind", timers.KINDS)
def test_each_tick_handles_one_timer_of_the_kind_that_is_measured(monkeypatch, kind):
    broker, handled = timers.KINDS[kind](300), []
    for one, handler in list(TIMERS.items()):

        def counting(core, key, now, one=one, handler=handler):
            handled.append(one)
            return handler(core, key, now)

        monkeypatch.setitem(TIMERS, one, counting)
    for done in range(1, 101):
        broker.step(Tick(), broker.next_deadline())
        assert handled == [KIND[kind]] * done


def test_there_is_a_row_for_each_kind_and_size():
    rows = list(timers.run(sizes=(1_000, 2_000)))
    assert [(row["bench"], row.get("kind"), row["sessions"]) for row in rows] == [
        *(("timers", kind, size) for kind in timers.KINDS for size in (1_000, 2_000)),
        *((bench, None, size) for bench in ("idle", "walkers") for size in (1_000, 2_000)),
    ]
    assert [row["times_smallest"] for row in rows[::2]] == [1.0] * len(rows[::2])


class Steps:
    """Counts lines that are executed, and iterations of loops: time would depend on the machine."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _trace(self, _frame, event, _what):
        self.count += event == "line"
        return self._trace


def least(broker, ticks=20):
    """Steps, and bytes that are allocated at a time, of the cheapest tick: now and then a table grows."""
    steps, sizes = [], []
    for _ in range(ticks):
        with Steps() as counted:
            broker.step(Tick(), broker.next_deadline())
        steps.append(counted.count)
    tracemalloc.start()
    for _ in range(ticks):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        broker.step(Tick(), broker.next_deadline())
        sizes.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    return min(steps), min(sizes)


@pytest.mark.parametrize("kind", timers.KINDS)
def test_a_timer_takes_as_many_steps_however_many_others_there_are(kind):
    (few, few_bytes), (many, many_bytes) = (least(timers.KINDS[kind](size)) for size in (200, 2000))
    assert few <= many <= few + 20
    assert many_bytes < few_bytes + 2_000
