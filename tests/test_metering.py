"""The work of one event is bounded, as counted; `wayfare bench hostile` measures it in time."""

from random import Random

from wayfare.core import intake
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.covering import CoverIndex, Meter
from wayfare.core.effects import LinkUp, Received, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.reduction import OVERSPENT, CoveringTable


def long_lists(count):
    random = Random(1)
    for _ in range(count):
        values = ["".join(random.choices("abcdefgh", k=12)) for _ in range(200)]
        yield Filter.parse(f"x in ({', '.join(map(repr, values))})")


def test_a_tick_applies_one_slice_of_a_long_update():
    """Simple routing charges for no covering, so all slices were once applied in one tick."""
    entries = tuple(m.Entry(one, m.ClientId("far")) for one in long_lists(60))
    broker = Broker(m.BrokerId("porto"), [m.BrokerId("north"), m.BrokerId("south")], "simple")
    for name in ("north", "south"):
        broker.step(LinkUp(m.LinkId(name)), 1)
        broker.step(Received(m.LinkId(name), m.Announce((m.BrokerId(name),))), 1)
    for update in (m.Update(add_subs=entries), m.Update(remove_subs=entries)):
        broker.step(Received(m.LinkId("north"), update), 2)
        ticks = 0
        while broker.next_deadline() == 0:
            broker.step(Tick(), 3)
            ticks += 1
        slices = len(list(intake.in_slices(update, Limits().slice_units)))
        assert slices > 5
        assert ticks >= slices
    assert broker.routing.destinations.counts() == {}


def alike(count):
    """Patterns of two letters, which share their pieces: an index tests hundreds for one question."""
    random = Random(1)
    texts = {"".join(random.choices("ab", k=14)): None for _ in range(count)}
    return [Filter.parse(f"x like '%{text[:7]}_{text[7:]}%'") for text in texts]


def test_candidates_that_do_not_match_are_charged_too():
    patterns = alike(1_000)
    spent = []
    for members in (patterns[:1], patterns):
        index = CoverIndex(meter := Meter(1_000_000))
        for pattern in members:
            index.add(pattern)
        meter.reset()
        index.coverers(patterns[0])
        spent.append(meter.limit - meter.left)
    assert spent[1] > spent[0] + 100


def test_no_index_is_asked_when_too_much_was_spent():
    """An update of some KB once had a table test 100,000 candidates."""
    patterns = alike(1_000)
    table = CoveringTable(meter := Meter(5_000))
    for pattern in patterns[:800]:
        table.add(m.Entry(pattern))
        meter.reset()
    filing = 0
    for pattern in patterns[800:]:
        table.add(m.Entry(pattern))
        filing += 300  # at most, where no index is asked
    assert -meter.left < OVERSPENT * meter.limit + filing
    assert {entry.filter for entry in table.sent()} >= set(patterns[800:])
