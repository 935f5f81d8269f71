"""The benchmark of timers: what it measures is due one by one, and nothing else is touched."""

import pytest

from wayfare.bench import timers
from wayfare.core.broker import TIMERS
from wayfare.core.deadlines import ANSWER, AWAY, BACKLOG, TOMBSTONE, VIRTUAL
from wayfare.core.effects import Tick

KIND = {
    "backlog": BACKLOG,
    "away": AWAY,
    "tombstone": TOMBSTONE,
    "lease": VIRTUAL,
    "answer": ANSWER,
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
        *(("idle", None, size) for size in (1_000, 2_000)),
    ]
    assert [row["times_smallest"] for row in rows[::2]] == [1.0] * len(rows[::2])
