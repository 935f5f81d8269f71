"""The deadlines of a broker: what is due, in which order, and at which cost."""

import random

import pytest

from wayfare.core.broker import TIMERS, Broker
from wayfare.core.deadlines import (
    ANSWER,
    AWAY,
    BACKLOG,
    SLACK,
    TOMBSTONE,
    WILL,
    Deadlines,
)
from wayfare.core.effects import LinkDown, Received, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Attach, ClientId, Detach, LinkId, Publish


def test_nothing_is_due_before_its_time():
    deadlines = Deadlines()
    assert (deadlines.next, deadlines.take_due(100)) == (None, [])
    deadlines.arm(AWAY, 1, 20)
    deadlines.arm(AWAY, 2, 10)
    assert (deadlines.next, deadlines.take_due(9)) == (10, [])
    assert deadlines.take_due(10) == [(AWAY, 2)]
    assert (deadlines.next, deadlines.take_due(30)) == (20, [(AWAY, 1)])
    assert (deadlines.next, len(deadlines)) == (None, 0)


def test_the_earliest_time_counts():
    deadlines = Deadlines()
    deadlines.arm(AWAY, 1, 20)
    deadlines.arm(AWAY, 1, 30)
    assert deadlines.next == 20
    deadlines.arm(AWAY, 1, 10)
    assert deadlines.next == 10
    assert deadlines.take_due(40) == [(AWAY, 1)]
    assert deadlines.next is None


def test_what_is_due_together_comes_by_kind_and_then_in_order():
    deadlines = Deadlines()
    for key in ("c", "a", "b"):
        deadlines.arm(BACKLOG, key, 10)
    deadlines.arm(TOMBSTONE, "d", 5)
    deadlines.arm(ANSWER, "e", 12)
    deadlines.arm(BACKLOG, "f", 9)
    assert deadlines.take_due(12) == [
        (ANSWER, "e"),
        (BACKLOG, "f"),
        (BACKLOG, "c"),
        (BACKLOG, "a"),
        (BACKLOG, "b"),
        (TOMBSTONE, "d"),
    ]


def test_what_is_disarmed_is_not_due():
    deadlines = Deadlines()
    deadlines.arm(AWAY, 1, 10)
    deadlines.arm(AWAY, 2, 20)
    deadlines.disarm(AWAY, 1)
    deadlines.disarm(AWAY, 3)
    assert (deadlines.next, deadlines.take_due(30)) == (20, [(AWAY, 2)])


def test_disarmed_timers_do_not_pile_up():
    """A client that comes and goes all day long leaves nothing in the heap."""
    deadlines = Deadlines()
    for key in range(10_000):
        deadlines.arm(AWAY, key, 1_000_000 - key)
        deadlines.disarm(AWAY, key)
        deadlines.arm(BACKLOG, 0, 2_000_000 - key)
    assert len(deadlines._heap) <= 2 * len(deadlines) + SLACK
    assert deadlines.take_due(2_000_000) == [(BACKLOG, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_as_a_table_that_is_searched(seed):
    chance, deadlines, table = random.Random(seed), Deadlines(), {}
    for now in range(500):
        timer = chance.randrange(WILL + 1), chance.randrange(20)
        if chance.random() < 0.7:
            at = now + chance.randrange(100)
            deadlines.arm(*timer, at)
            table[timer] = min(at, table.get(timer, at))
        else:
            deadlines.disarm(*timer)
            table.pop(timer, None)
        assert deadlines.next == min(table.values(), default=None)
        due = deadlines.take_due(now)
        assert sorted(due) == sorted(one for one, at in table.items() if at <= now)
        assert [kind for kind, _ in due] == sorted(kind for kind, _ in due)
        for one in due:
            del table[one]


class CountedList(list):
    """Counts what is looked at, one by one or at a place."""

    looked_at = 0

    def __getitem__(self, place):
        self.looked_at += 1
        return super().__getitem__(place)

    def __iter__(self):
        for one in super().__iter__():
            self.looked_at += 1
            yield one


class CountedTable(dict):
    """Likewise."""

    looked_at = 0

    def __contains__(self, key):
        self.looked_at += 1
        return super().__contains__(key)

    def __iter__(self):
        for one in super().__iter__():
            self.looked_at += 1
            yield one

    def values(self):
        return (self[key] for key in self)

    def items(self):
        return ((key, self[key]) for key in self)


@pytest.mark.parametrize("count", [1_000, 30_000])
def test_a_timer_is_found_without_looking_at_the_others(count):
    """What is looked at is counted, not the time: no search through the heap, nor through the tables."""
    deadlines = Deadlines()
    for key in range(count):
        deadlines.arm(AWAY, key, key)
    deadlines._heap = heap = CountedList(deadlines._heap)
    deadlines._timers = timers = CountedTable(deadlines._timers)
    deadlines._armed = armed = CountedTable(deadlines._armed)
    for now in range(100):
        assert deadlines.take_due(now) == [(AWAY, now)]
        deadlines.disarm(AWAY, count - 1 - now)
        deadlines.arm(AWAY, now, count + now)
        assert deadlines.next == now + 1
    assert heap is deadlines._heap and timers is deadlines._timers
    assert 100 <= heap.looked_at <= 1_000
    assert timers.looked_at + armed.looked_at <= 1_000


# At a broker


def test_every_kind_of_timer_has_a_handler():
    assert sorted(TIMERS) == list(range(WILL + 1))


def test_a_tick_with_one_due_timer_among_thousands_looks_at_one(monkeypatch):
    """The count of operations, not the time: whatever else is armed is not touched."""
    broker = Broker("porto", limits=Limits(backlog_age_ns=1000, away_ns=5_000_000))
    wanted = (Filter.parse("x > 0"),)
    for n in range(10_000):
        client, link = ClientId(f"c{n}"), LinkId(f"c{n}#1")
        broker.step(Received(link, Attach(client, 1, 0, wanted if n == 77 else ())), n)
        broker.step(LinkDown(link), n)
    broker.step(Received(LinkId("tom#1"), Attach(ClientId("tom"), 1, 0, (), wanted)), 20_000)
    broker.step(Received(LinkId("tom#1"), Publish(1, {"x": 1})), 20_000)
    handled = []
    for kind, handler in list(TIMERS.items()):

        def counting(core, key, now, kind=kind, handler=handler):
            handled.append((kind, key))
            return handler(core, key, now)

        monkeypatch.setitem(TIMERS, kind, counting)
    monkeypatch.setattr(type(broker.border), "all", None)  # nobody walks over the sessions
    [session] = broker.border.of(ClientId("c77"))
    assert broker.next_deadline() == 21_000
    broker.step(Tick(), 21_000)
    assert (handled, len(session.backlog)) == ([(BACKLOG, session.place)], 0)
    assert broker.next_deadline() == 5_000_000  # the first session whose client went away
    broker.step(Tick(), 5_000_000)
    assert [kind for kind, _ in handled[1:]] == [AWAY]
    assert broker.border.of(ClientId("c0")) == []


def test_what_was_loaded_is_due_when_it_was():
    """A backlog, a session whose client is away, one that waits for its old broker, tombstones."""
    wanted = (Filter.parse("x > 0"),)
    limits = Limits(backlog_age_ns=2500, away_ns=3000, answer_ns=2000, tombstone_ns=5000)
    broker = Broker("porto", ["lisbon"], limits=limits)
    for client, previous in (("anna", ()), ("bert", (("lisbon", 1),))):
        attach = Attach(ClientId(client), 2, 0, wanted, previous=previous, welcomed=True)
        broker.step(Received(LinkId(f"{client}#1"), attach), 0)
    broker.step(LinkDown(LinkId("anna#1")), 100)
    broker.step(Received(LinkId("tom#1"), Attach(ClientId("tom"), 1, 0, (), wanted)), 200)
    broker.step(Received(LinkId("tom#1"), Publish(1, {"x": 1})), 200)
    broker.step(Received(LinkId("tom#1"), Detach(leave=True)), 300)
    loaded = Broker("porto", ["lisbon"], limits=limits)
    loaded.load(broker.save())
    assert deadlines_of(loaded) == deadlines_of(broker) == [2000, 2700, 3100, 5300, 8100]


def deadlines_of(broker):
    """All of them, one tick after the other."""
    times, now = [], 0
    while (due := broker.next_deadline()) is not None:
        times.append(due)
        now = max(now, due)
        broker.step(Tick(), now)
    return times
