"""The virtual clients of a broker as bytes, and back; a part of what `saving` saves.

What they listen to is saved as it was: neighbours know it, and it may mean something else by now.
"""

from __future__ import annotations

import msgspec

from wayfare.core.filters import Filter
from wayfare.core.history import Stored, size_of
from wayfare.core.learning import Saved as Learnt
from wayfare.core.memory import Memory
from wayfare.core.messages import BrokerId, ClientId, LinkId, Notification, State, Terms
from wayfare.core.pace import Saved as Paced
from wayfare.core.prediction import START
from wayfare.core.replicator import Replicator
from wayfare.core.saving import (
    Place,
    Places,
    SavedBacklog,
    SavedQuery,
    loaded_backlog,
    loaded_query,
    saved_backlog,
    saved_query,
)
from wayfare.core.searches import ANY, Query, Search
from wayfare.core.virtual import Chains, Listened, Virtual, template_of


class SavedListened(msgspec.Struct, array_like=True):
    text: str
    ranged: Filter
    terms: Terms | None
    since: int
    exact: Filter | None
    chains: Chains
    placed: tuple[Filter, ...] = ()


class SavedVirtual(msgspec.Struct, array_like=True):
    client: ClientId
    epoch: int
    version: int
    link: LinkId | None
    attached: int
    state: State
    listened: list[SavedListened]
    backlog: SavedBacklog
    stream: int
    past: list[int]
    told: list[int]
    until: int | None
    renew_at: int
    recalling: int | None
    held: list[Place]
    thin_at: tuple[int, int] = (0, 0)
    came: tuple[BrokerId, int] = (START, 0)
    others: tuple[BrokerId, ...] = ()
    located: int = 0
    asked: int = 0
    valued: int = 0
    search: SavedSearch | None = None


class SavedAsked(msgspec.Struct, array_like=True):
    number: int
    query: SavedQuery
    terms: Terms | None
    reports: bool


class SavedSearch(msgspec.Struct, array_like=True):
    brokers: list[tuple[BrokerId, bool]]
    queries: list[SavedAsked]
    since: list[tuple[str, int]]
    found: list[Place]
    lost: str
    began: int
    promised: list[str]


class SavedBuffer(msgspec.Struct, array_like=True):
    ranged: Filter
    terms: Terms | None
    ids: list[int]


class Saved(msgspec.Struct, array_like=True):
    next_id: int
    kept: list[tuple[int, int, int]]  # id, place of the notification, when it came
    buffers: list[SavedBuffer]
    virtual: list[SavedVirtual]
    notifications: list[Notification]
    learnt: Learnt | None = None
    pace: Paced = Paced({}, {})


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Saved)


def save(replicator: Replicator) -> bytes:
    """Nothing, if there are no virtual clients, and nothing is learnt or measured."""
    learner, pace = replicator.learner, replicator.pace.save()
    if not replicator.virtual and learner is None and pace == Paced({}, {}):
        return b""
    places, ear = Places(), replicator.ear
    saved = Saved(
        ear.store.next,
        [(number, places.of(one.stored), one.came) for number, one in ear.store.kept.items()],
        [SavedBuffer(one.filter, one.terms, list(one.ids())) for one in ear.buffers()],
        [_saved(one, places) for one in replicator.virtual.values()],
        places.notifications,
        None if learner is None else learner.save(),
        pace,
    )
    return _encoder.encode(saved)


def load(data: bytes, replicator: Replicator) -> None:
    saved = _decoder.decode(data)
    stored = [Stored(one, size_of(one)) for one in saved.notifications]
    for one in saved.virtual:
        replicator.take_over(_loaded(one, stored, replicator.border.memory))
    ear = replicator.ear
    for number, place, came in saved.kept:
        ear.store.take_over(number, stored[place], came)
    ear.store.next = saved.next_id
    buffers = {(one.filter, one.terms): one for one in ear.buffers()}
    for buffer in saved.buffers:
        for number in buffer.ids:
            buffers[buffer.ranged, buffer.terms].hold(number)
    ear.arm_all()
    replicator.pace.load(saved.pace)
    if replicator.learner is not None and saved.learnt is not None:
        replicator.learner.load(saved.learnt)


def _saved(virtual: Virtual, places: Places) -> SavedVirtual:
    return SavedVirtual(
        virtual.client,
        virtual.epoch,
        virtual.version,
        virtual.link,
        virtual.attached,
        virtual.state,
        [
            SavedListened(
                one.text, now.ranged, now.terms, now.since, now.exact, now.chains, now.placed
            )
            for one, now in virtual.listened.items()
        ],
        saved_backlog(virtual.backlog, places),
        virtual.stream,
        sorted(virtual.past),
        sorted(virtual.told),
        virtual.until,
        virtual.renew_at,
        virtual.recalling,
        places.all(virtual.held),
        virtual.thin_at,
        virtual.came,
        virtual.others,
        virtual.located,
        virtual.asked,
        virtual.valued,
        None if virtual.search is None else _saved_search(virtual.search, places),
    )


def _saved_search(search: Search, places: Places) -> SavedSearch:
    return SavedSearch(
        list(search.brokers.items()),
        [
            SavedAsked(number, saved_query(one.past, places), one.terms, one.reports)
            for number, one in search.queries.items()
        ],
        [(one.text, since) for one, since in search.since.items()],
        places.all(search.found),
        search.lost,
        search.began,
        [one.text for one in search.promised],
    )


def _loaded_search(saved: SavedSearch, stored: list[Stored]) -> Search:
    search = Search(saved.began)
    search.brokers = dict(saved.brokers)
    search.promised = dict.fromkeys(map(template_of, saved.promised))
    for one in saved.queries:
        past = loaded_query(one.query, stored)
        search.queries[one.number] = Query(past, one.terms, reports=one.reports)
    search.since = {template_of(text): since for text, since in saved.since}
    search.found = [(stored[place], put) for place, put in saved.found]
    search.lost = saved.lost
    return search


def _loaded(saved: SavedVirtual, stored: list[Stored], memory: Memory) -> Virtual:
    virtual = Virtual(saved.client, memory)
    virtual.epoch, virtual.version, virtual.link = saved.epoch, saved.version, saved.link
    virtual.attached, virtual.state, virtual.stream = saved.attached, saved.state, saved.stream
    virtual.backlog = loaded_backlog(saved.backlog, stored, memory, virtual)
    virtual.backlog.hold()
    memory.note(virtual)
    virtual.past, virtual.told = set(saved.past), set(saved.told)
    virtual.until, virtual.renew_at = saved.until, saved.renew_at
    virtual.recalling, virtual.thin_at = saved.recalling, saved.thin_at
    virtual.came, virtual.others, virtual.located = saved.came, saved.others, saved.located
    virtual.asked = saved.asked or (0 if saved.recalling is None else saved.epoch)
    virtual.valued = saved.valued
    if saved.search is not None:
        virtual.search = _loaded_search(saved.search, stored)
    elif saved.recalling is not None:  # by an earlier release, which asked one broker
        virtual.search = Search(saved.attached)
        virtual.search.brokers[ANY] = True
    virtual.held = [(stored[place], put) for place, put in saved.held]
    for one in saved.listened:
        template = template_of(one.text)
        virtual.follows[template] = one.terms
        listened = Listened(one.ranged, one.terms, one.since, one.exact, one.chains, one.placed)
        virtual.listened[template] = listened
    return virtual
