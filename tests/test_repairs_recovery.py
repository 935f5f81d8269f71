"""A broker that ends while it repairs tables, and goes on from its journal."""

from types import SimpleNamespace

from wayfare.core.broker import Broker
from wayfare.core.codec import encode
from wayfare.core.effects import LinkUp, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Announce, Entry, Update
from wayfare.net.journal import records_of, recover
from wayfare.net.links import Link
from wayfare.net.store import Out, Snapshot

LIFE = 5


def entries(*texts):
    return tuple(Entry(Filter.parse(text)) for text in texts)


OFFERED = entries("near(1, 0, 50000) and name prefix 'ab'")
GONE = entries("near(-1, 1, 50000) and name is null and price = 1", "name is null")
WANTED = entries(
    *("price > 2", "exists name", "price between 5 and 7 and topic in ('gas', 'oil')"),
    *("price > 5", "near(-1, 1, 200000) and price between 2 and 8"),
)


class Journaled:
    """A broker between a and c with a journal, which does little work in one event."""

    def __init__(self):
        self.core = Broker("b", ["a", "c"], limits=Limits(slice_units=20))
        self.links = {name: Link(name, LIFE) for name in "ac"}
        self.snapshot, self.journal, self.now = None, [], 0
        for link in self.links.values():
            link.begin(LIFE)

    def step(self, event):
        self.now += 1
        self.journal += records_of(event, self.now, self.links)
        return self._write(self.core.step(event, self.now))

    def pay(self):
        return self._write(self.core.pay())

    def _write(self, effects):
        sent = [one for one in effects if type(one) is Send]
        self.journal += [Out(self.now, one.link, encode(one.message)) for one in sent]
        return [one.message for one in sent if one.link == "a" and type(one.message) is Update]

    def work(self, ticks=1_000):
        """Do the work that was put off, for so many ticks. Returns the updates for a."""
        updates = []
        while self.core.is_behind() and ticks:
            updates += self.step(Tick())
            ticks -= 1
        return updates

    def greet(self, name, update):
        self.step(LinkUp(name))
        self.step(Received(name, Announce((name,))))
        self.step(Received(name, update))

    def save(self):
        self.pay()
        self.snapshot = Snapshot(self.now, LIFE, self.core.save(), {})
        self.journal = []

    def recovered(self):
        again = Journaled()
        again.now = self.now
        store = SimpleNamespace(snapshot=lambda: self.snapshot, records=lambda: self.journal)
        recover(store, again.core, again.links)
        return again


def interrupted():
    """Link a began from nothing; then the broker ended before a knew all subscriptions again."""
    broker = Journaled()
    broker.greet("a", Update(add_ads=OFFERED))
    broker.greet("c", Update(add_subs=WANTED + GONE))
    for entry in GONE:
        broker.step(Received("c", Update(remove_subs=(entry,))))
    broker.work()
    broker.save()
    broker.greet("a", Update(add_ads=OFFERED, repairs=True))
    broker.work(ticks=8)
    return broker


def test_what_goes_on_from_a_journal_is_still_a_repair():
    """What a table puts off depends on what it did before it was saved, so the work may be done sooner."""
    before = interrupted()
    assert before.core.is_behind()
    broker = before.recovered()
    updates = [*broker.pay(), *broker.work()]
    added = [one for one in updates if one.add_subs]
    assert added, "nothing is sent anew, so this shows nothing"
    assert all(one.repairs for one in added)


def test_a_repair_that_goes_on_from_a_journal_ends():
    broker = interrupted().recovered()
    broker.pay()
    broker.work()
    assert broker.core.is_quiet()
    updates = broker.step(Received("c", Update(add_subs=entries("near(1, 0, 60000)"))))
    assert [one.repairs for one in [*updates, *broker.work()] if one.add_subs] == [False]
