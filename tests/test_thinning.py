"""Terms are applied in slices where that takes long: a client gets the same, and nothing is lost between."""

import pytest

from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.effects import LinkDown, LinkUp, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.profiles import digest
from wayfare.core.sessions import wanted_of

NORTH, ANNA = m.LinkId("north"), m.ClientId("anna")
FIRST, SECOND, THIRD = (m.LinkId(f"anna#{n}") for n in (1, 2, 3))
PORTO = m.BrokerId("porto")
FILTERS = tuple(Filter.parse(f"n > {-n}") for n in range(20))
TERMS = tuple((place, m.Terms(last=5)) for place in range(20))


def attach(link, epoch, previous=()):
    again = m.Attach(ANNA, epoch, 0, FILTERS, terms=TERMS, welcomed=epoch > 1, previous=previous)
    return Received(link, again)


def published(broker, *numbers):
    effects = []
    for n in numbers:
        one = m.Notification(m.ClientId("far"), n, {"n": n})
        effects += broker.step(Received(NORTH, one), 2)
    return effects


def away(count=100):
    """A broker where this much is kept for Anna, who is away; all her filters want the last five."""
    limits = Limits(slice_units=300)
    broker = Broker(PORTO, [m.BrokerId("north")], limits=limits)
    broker.step(LinkUp(NORTH), 1)
    broker.step(Received(NORTH, m.Announce((m.BrokerId("north"),))), 1)
    broker.step(attach(FIRST, 1), 1)
    ticked(broker)
    broker.step(LinkDown(FIRST), 1)
    published(broker, *range(1, count + 1))
    return broker


def ticked(broker):
    ticks = []
    while broker.next_deadline() == 0:
        ticks.append(broker.step(Tick(), 3))
    return ticks


def delivered(effects):
    sent = [one.message for one in effects if isinstance(one, Send)]
    return [one.notification.number for one in sent if isinstance(one, m.Deliver)]


def come_back(broker, link=SECOND, epoch=2):
    """Until terms are applied."""
    effects = broker.step(attach(link, epoch, ((PORTO, epoch - 1),)), 2)
    while not broker.border.thinnings and broker.next_deadline() == 0:
        effects += broker.step(Tick(), 2)
    assert broker.border.thinnings
    assert delivered(effects) == []


def test_what_comes_meanwhile_is_behind_what_the_terms_leave():
    broker = away()
    come_back(broker)
    assert not broker.is_quiet()
    assert delivered(published(broker, 101, 102)) == []
    ticks = ticked(broker)
    assert len(ticks) > 1
    assert [one for tick in ticks for one in delivered(tick)] == [*range(96, 101), 101, 102]
    assert broker.is_quiet()


def test_whoever_asks_meanwhile_hears_up_to_which_delivery_it_has_caught_up():
    broker = away()
    come_back(broker)
    assert broker.step(Received(SECOND, m.HereAck(0, asks=True)), 2) == []
    effects = [effect for tick in ticked(broker) for effect in tick]
    sent = [one.message for one in effects if isinstance(one, Send)]
    last = [one.number for one in sent if isinstance(one, m.Deliver)][-1]
    assert [one.delivered for one in sent if isinstance(one, m.CaughtUp)] == [last]


def test_a_client_that_is_gone_before_gets_the_same_later():
    broker = away()
    come_back(broker)
    broker.step(LinkDown(SECOND), 2)
    assert not broker.border.thinnings
    assert len(broker.border.of(ANNA)[0].backlog) == 100
    come_back(broker, THIRD, 3)
    assert [one for tick in ticked(broker) for one in delivered(tick)] == [*range(96, 101)]


def replies(effects):
    updates = [one.message for one in effects if isinstance(one, Send) and one.link == NORTH]
    errands = [one for update in updates if isinstance(update, m.Update) for one in update.errands]
    return [one for one in errands if isinstance(one, m.Reply)]


def request(epoch):
    wanted = digest(wanted_of(FILTERS, TERMS))
    one = m.Request(m.BrokerId("north"), ANNA, epoch, 0, ((PORTO, 1),), wanted)
    return Received(NORTH, m.Update(errands=(one,)))


@pytest.mark.parametrize("again", [False, True])
def test_a_session_goes_elsewhere_when_it_is_known_what_is_wanted(again):
    broker = away()
    assert replies(broker.step(request(5), 2)) == []
    published(broker, 101)
    effects = broker.step(request(6), 2) if again else []
    effects += [effect for tick in ticked(broker) for effect in tick]
    *refused, reply = replies(effects)
    assert [(one.epoch, one.found, one.superseded) for one in refused] == [(5, False, True)][:again]
    # With a later request, all that was there by then is what the client missed.
    kept = [97, 98, 99, 100, 101] if again else [*range(96, 101), 101]
    assert [one.notification.number for one in reply.kept] == kept
    assert (reply.epoch, reply.found) == (6 if again else 5, True)
    assert broker.border.of(ANNA) == []
    assert broker.is_quiet()


def test_a_client_that_comes_back_before_its_session_went_gets_it():
    broker = away()
    broker.step(request(5), 2)
    effects = broker.step(attach(SECOND, 6, ((PORTO, 1),)), 2)
    effects += [effect for tick in ticked(broker) for effect in tick]
    assert [(one.epoch, one.found) for one in replies(effects)] == [(5, False)]
    assert delivered(effects) == [96, 97, 98, 99, 100]
    assert len(broker.border.of(ANNA)) == 1
    assert broker.is_quiet()
