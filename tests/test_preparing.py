"""Publications with long texts: many patterns are looked for in slices, and only their own link waits."""

from itertools import pairwise
from random import Random
from unittest import mock

import pytest
from msgspec.structs import replace

from wayfare.core import long_texts
from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.effects import Close, LinkDown, LinkUp, Publications, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.long_texts import LONG_TEXTS, LongText
from wayfare.core.matching import FilterIndex
from wayfare.sim.accounting import check_accounting

ANNA, MALLORY, BERT = m.LinkId("anna#1"), m.LinkId("mallory#1"), m.LinkId("bert#1")
NORTH = m.LinkId("north")
RANDOM = Random(1)


def word(length=12):
    return "".join(RANDOM.choices("abcdefgh", k=length))


WORDS = [word() for _ in range(600)]
TEXT = "".join(RANDOM.choices("abcdefgh", k=40_000)) + "anna"
LONG = {"text": TEXT}
PATTERNS = tuple(Filter.parse(f"text like '%{one[:6]}_{one[6:]}%'") for one in WORDS)
WANTED = (Filter.parse("text contains 'anna'"), Filter.parse("n > 0"))


def ticked(broker, now=5):
    """All effects until nothing is left to do, tick by tick."""
    ticks = []
    while broker.next_deadline() == 0:
        ticks.append(broker.step(Tick(), now))
        assert not list(check_accounting(broker))
        assert not LONG_TEXTS.known
    return ticks


def attach(broker, link, subs=()):
    client = m.ClientId(link.split("#")[0])
    return broker.step(Received(link, m.Attach(client, 1, 0, tuple(subs))), 1)


def crowded(limits=Limits()):  # noqa: B008  it is frozen
    """A broker whose tables have many patterns; Anna wants what Mallory and Bert publish."""
    broker = Broker(m.BrokerId("porto"), [m.BrokerId("north")], limits=limits)
    broker.step(LinkUp(NORTH), 1)
    broker.step(Received(NORTH, m.Announce((m.BrokerId("north"),))), 1)
    attach(broker, m.LinkId("many#1"), PATTERNS)
    ticked(broker)
    attach(broker, ANNA, WANTED)
    attach(broker, MALLORY)
    attach(broker, BERT)
    ticked(broker)
    return broker


def delivered(effects):
    """The publisher and number of what Anna gets."""
    sent = [one.message for one in effects if isinstance(one, Send) and one.link == ANNA]
    out = [one.notification for one in sent if isinstance(one, m.Deliver)]
    return [(one.publisher, one.number) for one in out]


def confirmed(effects, link):
    sent = [one.message for one in effects if isinstance(one, Send) and one.link == link]
    return [one.number for one in sent if isinstance(one, m.Published)]


def test_patterns_are_looked_for_in_slices_and_others_go_on():
    """2,000 patterns and a text of 128 KiB once held the loop for 190 ms."""
    broker = crowded()
    assert broker.step(Received(MALLORY, m.Publish(1, LONG)), 2) == []
    assert broker.step(Received(MALLORY, m.Publish(2, {"n": 1})), 2) == []
    assert delivered(broker.step(Received(BERT, m.Publish(1, {"n": 2})), 2)) == [("bert", 1)]
    assert not broker.is_quiet()
    *before, last = ticked(broker)
    assert len(before) >= 3
    assert not any(before)
    assert delivered(last) == [("mallory", 1), ("mallory", 2)]
    assert confirmed(last, MALLORY) == [1, 2]
    assert broker.is_quiet()


def test_no_slice_takes_much_longer_than_it_may():
    broker = crowded()
    broker.step(Received(MALLORY, m.Publish(1, LONG)), 2)
    (late,) = broker.preparations.late.values()
    spent = [0]
    while broker.preparations.late:
        broker.step(Tick(), 3)
        if late.preparation is not None:
            spent.append(sum(one.units() for one in late.preparation.known.values()))
    most = max(after - before for before, after in pairwise(spent))
    cut = len(TEXT) // long_texts.CUT
    assert Limits().slice_units <= most <= Limits().slice_units + 2 * cut


def test_what_is_routed_then_finds_every_answer():
    broker = crowded()
    broker.step(Received(MALLORY, m.Publish(1, LONG)), 2)
    with mock.patch.object(
        LongText, "_contains", autospec=True, side_effect=LongText._contains
    ) as looked:
        effects = ticked(broker)[-1]
    assert delivered(effects) == [("mallory", 1)]
    assert looked.call_count <= 2 * len(WORDS) + len(WANTED)  # each part of a pattern once


def test_a_batch_is_published_in_order():
    broker = crowded()
    batch = [m.Publish(1, {"n": 1}), m.Publish(2, LONG), m.Publish(3, {"n": 1})]
    assert delivered(broker.step(Publications(MALLORY, batch), 2)) == [("mallory", 1)]
    assert broker.step(Publications(MALLORY, [m.Publish(4, {"n": 1})]), 2) == []
    effects = [effect for one in ticked(broker) for effect in one]
    assert delivered(effects) == [("mallory", number) for number in (2, 3, 4)]


def test_a_client_that_goes_is_heard_first():
    broker = crowded()
    broker.step(Received(MALLORY, m.Publish(1, LONG)), 2)
    broker.step(Received(MALLORY, m.Detach(leave=True)), 2)
    broker.step(LinkDown(MALLORY), 2)
    assert broker.border.knows(m.ClientId("mallory"))
    effects = [effect for one in ticked(broker) for effect in one]
    assert delivered(effects) == [("mallory", 1)]
    assert not broker.border.knows(m.ClientId("mallory"))


def test_what_waits_on_a_connection_that_is_replaced_is_dropped():
    """It was not accepted: the client sends it again."""
    broker = crowded()
    broker.step(Received(MALLORY, m.Publish(1, LONG)), 2)
    again = m.LinkId("mallory#2")
    closed = broker.step(Received(again, m.Attach(m.ClientId("mallory"), 2, 0)), 3)
    assert [one.link for one in closed if isinstance(one, Close)] == [MALLORY]
    assert not broker.preparations.late
    broker.step(Received(again, m.Publish(1, LONG)), 3)
    effects = [effect for one in ticked(broker) for effect in one]
    assert delivered(effects) == [("mallory", 1)]


def test_a_neighbour_s_messages_stay_in_order():
    broker = crowded()
    entry = m.Entry(Filter.parse("n > 0"))
    far = m.ClientId("far")
    broker.step(Received(NORTH, m.Notification(far, 1, LONG)), 2)
    broker.step(Received(NORTH, m.Update(add_subs=(entry,))), 2)
    broker.step(Received(NORTH, m.Notification(far, 2, {"n": 1})), 2)
    assert entry not in broker.routing.in_subs[m.BrokerId("north")]
    assert broker.waiting()[1:] == [
        m.Notification(far, 1, LONG),
        m.Update(add_subs=(entry,)),
        m.Notification(far, 2, {"n": 1}),
    ]
    effects = [effect for one in ticked(broker) for effect in one]
    assert delivered(effects) == [("far", 1), ("far", 2)]
    assert entry in broker.routing.in_subs[m.BrokerId("north")]


def test_a_link_that_begins_from_nothing_is_behind_what_came_before():
    broker = crowded()
    broker.step(Received(NORTH, m.Notification(m.ClientId("far"), 1, LONG)), 2)
    effects = broker.step(LinkUp(NORTH), 3)
    assert delivered(effects) == [("far", 1)]
    assert not broker.preparations.late


def test_publications_behind_a_large_profile_stay_in_order():
    """They wait for the profile first: some of them once overtook others in a second queue."""
    broker = crowded()
    attach(broker, m.LinkId("carl#1"), [Filter.parse(f"x > {i}") for i in range(500)])
    carl = m.LinkId("carl#1")
    assert carl in broker.intakes.taking
    for number in range(1, 6):
        broker.step(Received(carl, m.Publish(number, {"n": 1} if number % 2 else LONG)), 2)
    effects = [effect for one in ticked(broker) for effect in one]
    assert delivered(effects) == [("carl", number) for number in range(1, 6)]


def test_who_sends_too_much_behind_it_is_closed():
    broker = crowded(replace(Limits(), held_count=3))
    broker.step(Received(MALLORY, m.Publish(1, LONG)), 2)
    for number in (2, 3):
        assert broker.step(Received(MALLORY, m.Publish(number, {"n": 1})), 2) == []
    (closed,) = broker.step(Received(MALLORY, m.Publish(4, {"n": 1})), 2)
    assert isinstance(closed, Close)
    assert closed.again
    assert broker.preparations.bytes == 0
    assert not [effect for one in ticked(broker) for effect in one]


@pytest.mark.parametrize("attributes", [{"text": "short"}, {"other": TEXT}])
def test_nothing_else_waits(attributes):
    broker = crowded()
    effects = broker.step(Received(MALLORY, m.Publish(1, {"n": 1, **attributes})), 2)
    assert delivered(effects) == [("mallory", 1)]


def test_the_pieces_of_a_long_text_are_found_once_for_all_groups():
    """Each group of conjunctions with something in common once looked for all pieces again."""
    index = FilterIndex()
    for group in range(20):
        for letter in "abcdefghijklmnopqrst":
            for value in (1, 2):  # so that no value is as frequent as a letter
                one = Filter.parse(f"a{group} = {value} and text like '%{letter}_{letter}%'")
                index.add(one, one)
    attributes = {f"a{group}": 1 for group in range(20)} | LONG
    pieces, cut = LongText.pieces, LongText._cut
    with (
        mock.patch.object(LongText, "pieces", autospec=True, side_effect=pieces) as asked,
        mock.patch.object(LongText, "_cut", autospec=True, side_effect=cut) as cut_up,
    ):
        found = index.match(attributes)
    assert asked.call_count >= 20  # one for every group
    assert [call.args[1] for call in cut_up.call_args_list] == [1]
    assert found
    assert all(one.matches(attributes) for one in found)
    LONG_TEXTS.forget()


def retaining(count):
    """A broker that keeps so many current values."""
    broker = Broker(m.BrokerId("porto"), [m.BrokerId("north")])
    broker.step(LinkUp(NORTH), 1)
    values = [
        m.Retained(m.Notification(m.ClientId("far"), n, {"n": n}), m.Retain(("n",)), n)
        for n in range(1, count + 1)
    ]
    broker.step(Received(NORTH, m.Values(tuple(values))), 1)
    broker.step(Received(NORTH, m.Announce((m.BrokerId("north"),))), 1)
    return broker


def currents(effects):
    sent = [one.message for one in effects if isinstance(one, Send) and one.link == ANNA]
    return [(one.ask, one.notification.number) for one in sent if isinstance(one, m.Current)]


def asking(filters):
    asks = tuple((place, place + 1) for place in range(len(filters)))
    return m.Attach(m.ClientId("anna"), 1, 0, tuple(filters), window=10_000, asks=asks)


def test_many_requests_for_current_values_are_answered_one_after_the_other():
    """2,000 requests for 10,000 values once held the loop for two seconds."""
    broker = retaining(1_000)
    filters = [Filter.parse(f"n <= {n}") for n in range(1, 51)]
    effects = broker.step(Received(ANNA, asking(filters)), 2)
    assert [type(one.message) for one in effects if isinstance(one, Send) and one.link == ANNA] == [
        m.Welcome
    ]
    assert broker.step(Received(ANNA, m.Publish(1, {"n": 7})), 2) == []
    assert delivered(broker.step(Received(NORTH, m.Notification("far", 2_000, {"n": 3})), 2))
    ticks = ticked(broker)
    answered = [{ask for ask, _ in currents(one)} for one in ticks]
    assert max(map(len, answered)) <= 1 + Limits().slice_units // 500
    assert sum(map(len, answered)) == 50, "a request is answered in one tick"
    wanted = [(ask, n) for ask in range(1, 51) for n in range(1, ask + 1)]
    assert [one for tick in ticks for one in currents(tick)] == wanted
    assert confirmed(ticks[-1], ANNA) == [1]
    assert broker.border.by_link[ANNA].asked == 50


def test_a_value_that_came_by_the_subscription_meanwhile_is_no_answer():
    broker = retaining(1_000)
    broker.step(Received(ANNA, asking([Filter.parse(f"n <= {n}") for n in range(1, 51)])), 2)
    newer = m.Notification(m.ClientId("far"), 2_000, {"n": 1})
    value = m.Retained(newer, m.Retain(("n",)), 2_000)
    assert delivered(broker.step(Received(NORTH, value), 2)) == [("far", 2_000)]
    broker.step(Received(ANNA, m.Ack(1)), 2)
    found = [one for tick in ticked(broker) for one in currents(tick)]
    assert {n for _, n in found} == set(range(2, 51))


def test_few_requests_for_current_values_are_answered_at_once():
    broker = retaining(100)
    effects = broker.step(
        Received(ANNA, asking([Filter.parse("n <= 2"), Filter.parse("n = 9")])), 2
    )
    assert currents(effects) == [(1, 1), (1, 2), (2, 9)]


def test_wills_with_long_texts_are_published_after_some_slices():
    """2,000 patterns and a will of 64 KiB once held the loop for 190 ms."""
    broker = crowded()
    for link in (m.LinkId("dora#1"), m.LinkId("emil#1")):
        client = m.ClientId(link[:4])
        broker.step(Received(link, m.Attach(client, 1, 0, will=m.Will(LONG))), 2)
        broker.step(LinkDown(link), 2)
    ticks = []
    while (due := broker.next_deadline()) is not None and due <= 3:
        ticks.append(delivered(broker.step(Tick(), 3)))
        assert not LONG_TEXTS.known
    assert [[name[:4] for name, _ in one] for one in ticks if one] == [["dora"], ["emil"]]
    assert len(ticks) >= 6


def test_a_will_whose_client_is_back_keeps_no_other_one_waiting():
    broker = crowded()
    dora, emil = m.LinkId("dora#1"), m.LinkId("emil#1")
    for link in (dora, emil):
        client = m.ClientId(link[:4])
        broker.step(Received(link, m.Attach(client, 1, 0, will=m.Will(LONG))), 2)
        broker.step(LinkDown(link), 2)
    assert delivered(broker.step(Tick(), 3)) == []
    broker.step(Received(m.LinkId("dora#2"), m.Attach(m.ClientId("dora"), 2, 0)), 3)
    effects = []
    while (due := broker.next_deadline()) is not None and due <= 3:
        effects += broker.step(Tick(), 3)
    assert [name[:4] for name, _ in delivered(effects)] == ["emil"]


def test_a_request_is_compared_with_many_values_in_slices():
    """10,000 values with texts of 1,000 characters once held the loop for 90 ms."""
    broker = retaining(1_000)
    text = "abcdefgh" * 500
    values = [
        m.Retained(m.Notification("far", n, {"n": n, "t": text}), m.Retain(("n",)), n)
        for n in range(2_001, 2_501)
    ]
    broker.step(Received(NORTH, m.Values(tuple(values))), 1)
    attach(broker, ANNA)
    wanted = Filter.parse("t contains 'ha' and n <= 2003")
    assert broker.step(Received(ANNA, m.Subscribe(wanted, ask=1)), 2) == []
    assert broker.step(Received(ANNA, m.Publish(1, {"n": 0})), 2) == []
    broker.step(Tick(), 3)
    newer = m.Notification(m.ClientId("far"), 3_000, {"n": 2_002, "t": text})
    broker.step(Received(NORTH, m.Retained(newer, m.Retain(("n",)), 3_000)), 3)
    ticks = ticked(broker)
    answers = [currents(one) for one in ticks if currents(one)]
    assert answers == [[(1, 2_001), (1, 2_003), (1, 3_000)]]
    assert [one for tick in ticks for one in confirmed(tick, ANNA)] == [1]


def values(*numbers):
    far = m.ClientId("far")
    kept = [m.Retained(m.Notification(far, n, {"n": n}), m.Retain(("n",)), n) for n in numbers]
    return m.Values(tuple(kept))


def test_values_that_many_requests_want_are_taken_in_slices():
    """2,000 requests for the values of a neighbour once held the loop for minutes."""
    limits = Limits(slice_units=1_000)
    broker = Broker(m.BrokerId("porto"), [m.BrokerId("north")], limits=limits)
    broker.step(LinkUp(NORTH), 1)
    filters = [Filter.parse(f"n <= {n}") for n in range(1, 1_001)]
    broker.step(Received(ANNA, asking(filters)), 2)
    effects = [effect for tick in ticked(broker, 2) for effect in tick]
    effects += broker.step(Received(NORTH, values(*range(1, 10))), 3)
    newer = m.Notification(m.ClientId("far"), 2_000, {"n": 9})
    behind = [
        m.Retained(newer, m.Retain(("n",)), 2_000),
        m.Announce((m.BrokerId("north"),)),
        m.Values(values(500).values),
    ]
    for message in behind:
        assert broker.step(Received(NORTH, message), 3) == []
    assert not broker.is_quiet()
    broker.step(Received(ANNA, m.Unsubscribe(filters[998])), 3)
    ticks = ticked(broker, 3)
    given = [currents(one) for one in (effects, *ticks)]
    assert sum(map(len, given)) > 8_000
    assert max(map(len, given)) <= 1_000, "one value in each tick"
    found = [one for some in given for one in some]
    assert [n for _, n in found] == sorted(n for _, n in found), "in the order of the values"
    assert len(set(found)) == len(found)
    assert {ask for ask, n in found if n == 8} == set(range(8, 1_001)) - {999}
    assert not [n for _, n in found if n == 500], "who has heard all asks for nothing more"
    last = [effect for tick in ticks for effect in tick]
    assert delivered(last) == [("far", 2_000)]
    assert broker.is_quiet()


def test_a_link_that_begins_from_nothing_is_behind_the_values_that_came_before():
    broker = Broker(m.BrokerId("porto"), [m.BrokerId("north")])
    broker.step(LinkUp(NORTH), 1)
    broker.step(Received(ANNA, asking([Filter.parse(f"n <= {n}") for n in range(1, 1_001)])), 2)
    ticked(broker, 2)
    effects = broker.step(Received(NORTH, values(*range(1, 11))), 3)
    assert 0 < len({n for _, n in currents(effects)}) < 10
    effects += broker.step(LinkUp(NORTH), 3)
    assert {n for _, n in currents(effects)} == set(range(1, 11))
    assert len(broker.border.retained) == 10
    assert broker.is_quiet()


def holding(broker, count=300):
    """Bert comes from the north, and publishes before his old broker has answered."""
    came = m.Attach(m.ClientId("bert"), 2, 0, previous=((m.BrokerId("north"), 1),))
    broker.step(Received(BERT, came), 2)
    for n in range(1, count + 1):
        assert broker.step(Received(BERT, m.Publish(n, {"n": n})), 2) == []
    return broker.border.by_link[BERT]


def answered(broker, published=0):
    reply = m.Reply(m.BrokerId("porto"), m.ClientId("bert"), 2, True, old_epoch=1)
    reply = replace(reply, published=published)
    return broker.step(Received(NORTH, m.Update(errands=(reply,))), 3)


def moving(limits=Limits()):  # noqa: B008  it is frozen
    broker = Broker(m.BrokerId("porto"), [m.BrokerId("north")], limits=limits)
    broker.step(LinkUp(NORTH), 1)
    broker.step(Received(NORTH, m.Announce((m.BrokerId("north"),))), 1)
    attach(broker, ANNA, WANTED)
    return broker


def all_of(count, first=1):
    return [("bert", n) for n in range(first, count + 1)]


def test_what_was_held_back_is_accepted_in_slices():
    """16 MiB of long texts that were held back during a move once held the loop for five seconds."""
    broker = moving()
    holding(broker)
    effects = answered(broker, published=40)
    assert delivered(effects) == []
    for n in (301, 302):
        assert broker.step(Received(BERT, m.Publish(n, {"n": n})), 3) == []
    assert not broker.is_quiet()
    ticks = ticked(broker)
    assert len(delivered(ticks[0])) <= Limits().slice_units // 20
    assert [one for tick in ticks for one in delivered(tick)] == all_of(256 + 40, 41)  # the window
    assert confirmed(ticks[-1], BERT)[-1] == 302
    assert broker.border.by_link[BERT].published == 302
    assert broker.is_quiet()


def test_few_that_were_held_back_are_accepted_at_once():
    broker = moving()
    holding(broker, 20)
    effects = answered(broker)
    assert delivered(effects) == all_of(20)
    assert confirmed(effects, BERT) == [20]


def test_what_was_held_back_is_accepted_before_its_client_is_gone():
    broker = moving(Limits(slice_units=500))
    session = holding(broker, 100)
    answered(broker)
    assert broker.step(LinkDown(BERT), 3) == []
    assert session.link == BERT
    assert [one for tick in ticked(broker) for one in delivered(tick)] == all_of(100)
    assert session.link is None
    assert broker.is_quiet()


@pytest.mark.parametrize("leave", [False, True])
def test_what_was_held_back_is_accepted_if_its_client_went_before(leave):
    """A client that says goodbye has a session until then: its advertisements count."""
    broker = moving(Limits(slice_units=500))
    session = holding(broker, 100)
    broker.step(Received(BERT, m.Detach(leave=leave)), 2)
    assert delivered(answered(broker)) == []
    assert broker.border.of(m.ClientId("bert")) == [session]
    assert [one for tick in ticked(broker) for one in delivered(tick)] == all_of(100)
    assert broker.border.of(m.ClientId("bert")) == ([] if leave else [session])
    assert broker.is_quiet()


def test_a_client_that_comes_again_sends_again_what_was_held_back():
    broker = moving(Limits(slice_units=500))
    holding(broker, 100)
    answered(broker)
    effects = broker.step(Tick(), 3)
    again = m.LinkId("bert#2")
    came = m.Attach(m.ClientId("bert"), 3, 0, previous=((m.BrokerId("porto"), 2),), welcomed=True)
    effects += broker.step(Received(again, came), 3)
    for n in range(1, 101):
        effects += broker.step(Received(again, m.Publish(n, {"n": n})), 3)
    effects += [effect for tick in ticked(broker) for effect in tick]
    assert delivered(effects) == all_of(100)
    assert broker.is_quiet()
