"""Events as they are written down, and a broker as it was: what `store` keeps, for a core and its links."""

from __future__ import annotations

from collections.abc import Mapping

from wayfare.core.broker import Broker
from wayfare.core.codec import decode, encode
from wayfare.core.effects import (
    Confined,
    Event,
    Exceeded,
    Forgotten,
    Granted,
    LinkAwaited,
    LinkDown,
    LinkState,
    LinkUp,
    Measured,
    Posted,
    Pressed,
    Publications,
    Received,
    RolledBack,
    Stalled,
    Tick,
)
from wayfare.core.messages import BrokerId, ClientId, LinkId, Peers, Update
from wayfare.errors import StoreError, UsageError
from wayfare.net.links import Link
from wayfare.net.store import (
    AnyRecord,
    Awaits,
    Confine,
    Down,
    Forget,
    GaveUp,
    Grant,
    Heard,
    In,
    Linked,
    Out,
    Resumed,
    Shed,
    Snapshot,
    Stall,
    Started,
    Store,
    Ticked,
    Timed,
    Up,
    WentBack,
)

Links = Mapping[BrokerId, Link]
UPDATE_TAG = encode(Update())[5:6]  # behind the length of a frame, and of the list that it is


def records_of(event: Event, now: int, links: Links) -> list[AnyRecord]:
    """What to write down of an event, before anybody hears of what it did."""
    if isinstance(event, Received):
        return [In(now, event.link, encode(event.message))]
    if isinstance(event, Publications):
        return [In(now, event.link, encode(one)) for one in event.messages]
    if isinstance(event, LinkUp):
        return [Up(now, event.link, links[BrokerId(event.link)].known)]
    if isinstance(event, LinkAwaited):
        return [Awaits(now, event.link)]
    if isinstance(event, LinkState):
        return [Linked(now, event.link, event.up)]
    if isinstance(event, Granted):
        return [Grant(now, event.link, event.grants)]
    if isinstance(event, Confined):
        return [Confine(now, event.client, event.grants)]
    if isinstance(event, Forgotten):
        return [Forget(now, event.client, event.reason)]
    if isinstance(event, Exceeded):
        return [Shed(now, "", event.limit, event.bytes, event.account)]
    if isinstance(event, Posted):
        return [Heard(now, event.broker, encode(event.message))]
    if isinstance(event, Measured):
        return [Timed(now, event.link, event.round_trip_ns)]
    if isinstance(event, Stalled):
        return [Stall(now, "", event.for_ns)]
    if isinstance(event, RolledBack):
        return [WentBack(now, "")]
    if isinstance(event, Pressed):
        return []
    return [Down(now, event.link) if isinstance(event, LinkDown) else Ticked(now, "")]


def snapshot_of(core: Broker, links: Links, now: int) -> Snapshot:
    saved = {str(name): link.saved() for name, link in links.items()}
    life = next((link.life for link in links.values()), 1)
    return Snapshot(now, life, core.save(), saved)


def recover(store: Store, core: Broker, links: Links) -> int:
    """Make a new broker and its links what they were. Returns when it last was."""
    snapshot, last = store.snapshot(), 0
    if snapshot is not None:
        try:
            core.load(snapshot.core)
        except UsageError as error:
            raise StoreError(f"{store.path}: {error}") from None
        last = snapshot.now
        for link in links.values():
            link.life = snapshot.life
        for name, saved in snapshot.links.items():
            links[BrokerId(name)].load(saved)
    told = Told(core)
    for record in store.records():
        last = max(last, record.now)
        told.mind(record)
        _replay(record, core, links)
    told.settle()
    return last


class Told:
    """The entries that each neighbour knows, by what was sent to it.

    A table that saves work may send other entries after it was loaded than the one that was saved: what
    it covers depends on the order in which filters came. What neighbours know is what was sent.
    """

    def __init__(self, core: Broker) -> None:
        self._routing = core.routing
        known = zip(core.neighbours, core.routing.told(), strict=True)
        self._known = {
            neighbour: (dict.fromkeys(ads), dict.fromkeys(subs)) for neighbour, (ads, subs) in known
        }

    def mind(self, record: AnyRecord) -> None:
        neighbour = BrokerId(record.link)
        if isinstance(record, Up | Awaits):
            self._known[neighbour] = {}, {}
        elif isinstance(record, Out) and record.frame[5:6] == UPDATE_TAG:
            update = decode(record.frame[4:])
            assert isinstance(update, Update)
            ads, subs = self._known[neighbour]
            for known, added, removed in (
                (ads, update.add_ads, update.remove_ads),
                (subs, update.add_subs, update.remove_subs),
            ):
                known.update(dict.fromkeys(added))
                for entry in removed:
                    known.pop(entry, None)

    def settle(self) -> None:
        """Let the tables go on from there."""
        for neighbour, (ads, subs) in self._known.items():
            self._routing.believe(neighbour, ads, subs)


def _replay(record: AnyRecord, core: Broker, links: Links) -> None:
    """What a core decides now, it decided before: it was done, or written down."""
    link = LinkId(record.link)
    neighbour = links.get(BrokerId(record.link))
    if isinstance(record, Out):
        assert neighbour is not None
        neighbour.send(record.frame)
    elif isinstance(record, GaveUp):
        assert neighbour is not None
        neighbour.give_up(record.now)
    elif isinstance(record, Resumed):
        assert neighbour is not None
        neighbour.resume(record.known)
    elif isinstance(record, Started):
        for one in links.values():
            one.start()
    elif isinstance(record, WentBack):
        core.step(RolledBack(), record.now)
    elif isinstance(record, In):
        if neighbour is not None:
            neighbour.take()
        core.step(Received(link, decode(record.frame[4:])), record.now)
    elif isinstance(record, Up):
        assert neighbour is not None
        neighbour.begin(record.known)
        core.step(LinkUp(link), record.now)
    elif isinstance(record, Awaits):
        assert neighbour is not None
        neighbour.expect()
        core.step(LinkAwaited(link), record.now)
    elif isinstance(record, Linked):
        core.step(LinkState(link, record.up), record.now)
    elif isinstance(record, Grant):
        core.step(Granted(link, record.grants), record.now)
    elif isinstance(record, Confine):
        core.step(Confined(ClientId(record.link), record.grants), record.now)
    elif isinstance(record, Forget):
        core.step(Forgotten(ClientId(record.link), record.reason), record.now)
    elif isinstance(record, Heard):
        message = decode(record.frame[4:])
        assert isinstance(message, Peers)
        core.step(Posted(BrokerId(record.link), message), record.now)
    elif isinstance(record, Timed):
        core.step(Measured(link, record.round_trip_ns), record.now)
    elif isinstance(record, Stall):
        core.step(Stalled(record.for_ns), record.now)
    elif isinstance(record, Shed):
        core.step(Exceeded(record.limit, record.bytes, record.account), record.now)
    elif isinstance(record, Down):
        core.step(LinkDown(link), record.now)
    else:
        core.step(Tick(), record.now)
