"""A broker as bytes, and back: what it has to know after its process ended.

    broker.save() -> bytes        broker.load(bytes): a new broker is as the saved one was

Saved are the sessions, half-finished attachments, what neighbours said, tombstones and paths. What follows from these is computed
again: out-tables, indices. Every notification is saved once, however many sessions it waits for.
Nothing may be half done that is not here: ask `broker.is_quiet()` first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeVar

import msgspec

from wayfare.core.border import Border
from wayfare.core.convergence import SavedConvergence
from wayfare.core.filters import Filter
from wayfare.core.grants import Grants
from wayfare.core.handoff import Handoff
from wayfare.core.history import (
    Backlog,
    Hole,
    Kept,
    Marks,
    Queued,
    Stored,
    apart,
    size_of,
    together,
)
from wayfare.core.intake import Intake
from wayfare.core.late import REPORT
from wayfare.core.memory import Consumer, Memory
from wayfare.core.messages import (
    NOWHERE,
    Attach,
    BrokerId,
    ClientId,
    Echo,
    Entry,
    Fetch,
    FromClient,
    LinkId,
    Loss,
    Notification,
    Publish,
    Request,
    State,
    Terms,
    Unclaimed,
    Update,
    Will,
)
from wayfare.core.paths import Paths
from wayfare.core.profiles import Asking, Profiles
from wayfare.core.relocation import Naive, Relocation
from wayfare.core.retained import Saved as SavedRetained
from wayfare.core.routing import Stale
from wayfare.core.sessions import Doubt, Old, PastQuery, Session, Tombstone, Wait, Wanted
from wayfare.errors import UsageError

FORMAT = 1
SAVABLE = (Handoff.name, Naive.name)  # the others keep searches and tunnels, which are not saved

NOT_YET = 1 << 62  # when something came whose time an earlier version did not save: no time counts
Waiting = TypeVar("Waiting")
SavedWanted = list[tuple[Filter, Terms | None]]
Place = tuple[int, int]  # of a notification among all that are saved, and when it was put there


class SavedBacklog(msgspec.Struct, array_like=True):
    acked: int
    sent: int
    last: int
    why: str
    exact: bool
    unacked: list[tuple[int, int, int]]  # number, place of the notification, when
    waiting: list[tuple[int, int, int]]
    holes: list[tuple[int, int, str, bool]] = []  # first and last number, why, exact
    may_repeat: bool = False


class SavedOld(msgspec.Struct, array_like=True):
    known: SavedWanted
    kept: list[Place]
    marks: dict[ClientId, int]
    losses: list[Loss] = []
    asked: int = 0


class SavedQuery(msgspec.Struct, array_like=True):
    filter: Filter
    since: int
    until: int
    left: int
    others: bool
    complete: bool
    found: list[Place]


class SavedWait(msgspec.Struct, array_like=True):
    asked: SavedWanted
    until: int
    held: list[Place]
    bytes: int
    old: dict[int, SavedOld]
    publications: list[Publish]
    published_bytes: int
    refused: bool
    superseded: bool
    pending: Request | Fetch | None
    losses: list[Loss] = []  # among those held
    request: Request | None = None
    repeated: bool = False
    unclaimed: list[Unclaimed] = []
    returning: bool = False
    echo: Echo | None = None
    unreachable: bool = False
    asks: bool = False
    values: list[tuple[int, Filter]] = []
    flooded: list[tuple[ClientId, int]] = []
    queries: list[tuple[int, SavedQuery]] = []
    is_open: bool = False
    is_due: bool = False
    came: list[int] = []  # when each publication came; nothing: an earlier version did not know it


class SavedSession(msgspec.Struct, array_like=True):
    client: ClientId
    epoch: int
    opened: int
    place: int
    link: LinkId | None
    home: BrokerId
    away_since: int
    subscriptions: SavedWanted
    advertisements: list[Filter]
    published: int
    welcomed: bool
    orphan: bool
    leaving: bool
    doubt: tuple[int, int] | None
    backlog: SavedBacklog
    recent: dict[ClientId, int]
    older: dict[ClientId, int]
    turn_at: int
    wait: SavedWait | None
    window: int = 0
    watched: list[tuple[Filter, bool | None]] = []
    rolled_back: int = 0
    account: str = ""
    partial: bool = False
    sought: bool = False  # as earlier versions have it
    sought_since: int | None = None
    away_until: int = 0  # 0: an earlier version, which knew the limit only
    expires_ns: int = 0
    asked: int = 0
    above: int = 0
    life: int = 0
    failover_ns: int = 0
    will: Will | None = None
    will_at: int = 0
    late: int = 0
    unsettled: list[int] = []
    earliest: int = 0  # 0: an earlier version, which did not know it
    exceeds: bool = False
    state: State = NOWHERE
    enlisted: dict[str, tuple[str, Filter]] = {}


class SavedAsking(msgspec.Struct, array_like=True):
    """An attachment whose profile is not known yet."""

    link: LinkId
    message: Attach
    until: int
    later: list[FromClient]
    bytes: int
    resent: bool
    gone: bool
    came: list[int] = []  # when each of `later` came; nothing: an earlier version did not know it


class Saved(msgspec.Struct, array_like=True):
    """Everything. The first fields never change, so that any version can tell what it reads."""

    format: int
    name: str
    strategies: tuple[str, str]  # routing and relocation
    neighbours: list[BrokerId]
    ads: list[list[Entry]]  # that each neighbour said
    subs: list[list[Entry]]
    hops: dict[BrokerId, BrokerId]
    tombstones: list[tuple[ClientId, Tombstone]]
    next_place: int
    sessions: list[SavedSession]
    notifications: list[Notification]
    astray: list[Request]
    past: list[tuple[int, int]]  # when it came, and the place of the notification
    forgotten: int
    grants: dict[LinkId, Grants]  # of connections, which may say more before they end
    virtual: bytes = b""  # virtual clients, by themselves: see saving_virtual.py
    asking: list[SavedAsking] = []
    payers: dict[str, list[ClientId]] = {}  # whose subscriptions count for the quota of an account
    # What each neighbour was told; nothing if it follows from the rest.
    told: list[tuple[list[Entry], list[Entry]]] = []
    taking: list[SavedAsking] = []  # attachments whose filters are being taken in
    since: int | None = 0  # when the store began; 0: before that was saved, long ago
    convergence: SavedConvergence = SavedConvergence()
    # Of neighbours that tell everything anew: the advertisements and subscriptions that they have not repeated.
    stale: list[tuple[BrokerId, list[Entry], list[Entry]]] = []
    departed: list[int] = []  # the places of sessions whose clients are away, in their order
    retained: SavedRetained = SavedRetained()
    # Notifications that are current values of one client, by their places: for which request.
    asks: dict[int, int] = {}
    groups: bytes = b""  # queue groups, by themselves: see groups.py
    # Advertisements that were withdrawn, by neighbour or own clients, and when the oldest were forgotten.
    withdrawn: list[tuple[BrokerId, list[tuple[Entry, int]], int]] = []
    cut: dict[BrokerId, int] = {}  # when links last began from nothing
    out_of_reach: list[BrokerId] = []  # neighbours whose links are down
    wills_from: int = 0  # no will is published before that


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Saved)


def check_savable(relocation: str) -> None:
    """Raise UsageError unless brokers of this strategy can be saved."""
    if relocation not in SAVABLE:
        raise UsageError(
            f"{relocation} keeps what it does in memory only: choose {' or '.join(SAVABLE)},"
            " or durability = memory"
        )


def save(
    border: Border,
    paths: Paths,
    relocation: Relocation,
    profiles: Profiles,
    grants: dict[LinkId, Grants],
    virtual: bytes,
    groups: bytes,
) -> bytes:
    places = Places()
    routing = border.routing
    saved = Saved(
        FORMAT,
        paths.name,
        (routing.strategy, relocation.name),
        list(paths.neighbours),
        [list(routing.in_ads[one]) for one in paths.neighbours],
        [list(routing.in_subs[one]) for one in paths.neighbours],
        paths.known(),
        list(border.tombstones.items()),
        border.next_place,
        [_saved_session(one, places) for one in border.all()],
        places.notifications,
        relocation.astray() if isinstance(relocation, Handoff) else [],
        [(came, places.place(one)) for came, one in border.past.kept],
        border.past.forgotten,
        grants,
        virtual,
        [_saved_asking(link, one) for link, one in profiles.asking.items()],
        border.costs.payers(),
        [] if routing.is_reduced() and not border.intakes else routing.told(),
        [_saved_taking(link, one) for link, one in border.intakes.taking.items()],
        border.since,
        border.convergence.save(),
        [(name, list(one.ads), list(one.subs)) for name, one in routing.stale.items()],
        [place for sessions in border.departed for place in sessions],
        border.retained.save(),
        places.asks,
        groups=groups,
        withdrawn=[
            (source, list(one.ads.items()), one.forgotten)
            for source, one in routing.withdrawn.items()
        ],
        cut=border.cut,
        out_of_reach=list(border.out_of_reach),
        wills_from=border.wills_from,
    )
    return _encoder.encode(saved)


def load(
    data: bytes,
    border: Border,
    paths: Paths,
    relocation: Relocation,
    profiles: Profiles,
    grants: dict[LinkId, Grants],
    load_virtual: Callable[[bytes], None],
    load_groups: Callable[[bytes], None],
) -> None:
    """Make the parts of a new broker what they were; UsageError if they are another one's."""
    saved = _decoder.decode(data)
    given = (border.routing.strategy, relocation.name)
    if saved.name != paths.name:
        raise UsageError(f"it is the memory of {saved.name}, and this is {paths.name}")
    if saved.strategies != given:
        raise UsageError(
            f"it ran {' and '.join(saved.strategies)}, and is to run {' and '.join(given)} now:"
            " change it back, or begin with an empty directory"
        )
    if sorted(saved.neighbours) != sorted(paths.neighbours):
        raise UsageError(
            f"its neighbours were {', '.join(saved.neighbours) or 'none'}, and are"
            f" {', '.join(paths.neighbours) or 'none'} now: change it back, or begin with an"
            " empty directory"
        )
    stored = [
        Stored(one, size_of(one), ask=saved.asks[place])
        if place in saved.asks
        else border.share(Stored(one, size_of(one)))
        for place, one in enumerate(saved.notifications)
    ]
    routing = border.routing
    routing.meter.left = inf
    if not saved.told:  # what the neighbours know follows from all that is here
        routing.meter.limit = inf
    for neighbour, ads, subs in zip(saved.neighbours, saved.ads, saved.subs, strict=True):
        border.routing.apply(neighbour, Update(tuple(ads), tuple(subs)))
    paths.remember(saved.hops)
    border.tombstones.update(saved.tombstones)
    for one in saved.sessions:
        _load_session(border, one, stored)
    border.next_place, border.since = saved.next_place, saved.since
    _load_departed(border, saved.departed)
    if isinstance(relocation, Handoff):
        relocation.take_astray(saved.astray)
    for came, place in saved.past:
        border.past.put(saved.notifications[place], came, border.limits)
    border.past.forgotten = max(border.past.forgotten, saved.forgotten)
    grants.update(saved.grants)
    for half in saved.asking:
        profiles.take_over(half.link, _asking(half))
    if saved.virtual:
        load_virtual(saved.virtual)
    if saved.groups:
        load_groups(saved.groups)
    for account, clients in saved.payers.items():
        for client in clients:
            border.costs.know(account, client)
    routing.updates()  # the neighbours know
    routing.meter.limit = border.limits.slice_units
    routing.meter.reset()
    for neighbour, (ads, subs) in zip(saved.neighbours, saved.told, strict=bool(saved.told)):
        routing.believe(neighbour, ads, subs)
        routing.meter.exact = False
    border.convergence.load(saved.convergence)
    border.retained.load(saved.retained)
    for neighbour, stale_ads, stale_subs in saved.stale:
        routing.stale[neighbour] = Stale(dict.fromkeys(stale_ads), dict.fromkeys(stale_subs))
    for source, withdrawn, forgotten in saved.withdrawn:
        routing.withdrawn[source].ads.update(withdrawn)
        routing.withdrawn[source].forgotten = forgotten
    border.cut.update(saved.cut)
    border.out_of_reach.update(dict.fromkeys(saved.out_of_reach))
    border.wills_from = saved.wills_from
    for asking in saved.taking:
        border.intakes.taking[asking.link] = _intake(asking)
    if saved.told or saved.taking:
        border.go_on_soon()
    border.arm_all()


def _load_departed(border: Border, places: list[int]) -> None:
    """An earlier version has not saved the order: then it is that of the times."""
    away = sorted((one for one in border.all() if one.link is None), key=_since)
    order = {place: number for number, place in enumerate(places)}
    for session in sorted(away, key=lambda one: order.get(one.place, len(order))):
        border.depart(session)


def _since(session: Session) -> int:
    return session.away_since


class Places:
    """Notifications that are saved, each once."""

    def __init__(self) -> None:
        self.notifications: list[Notification] = []
        self.asks: dict[int, int] = {}
        self._places: dict[tuple[ClientId, int, int], int] = {}

    def of(self, stored: Stored) -> int:
        return self.place(stored.notification, stored.ask)

    def place(self, notification: Notification, ask: int = 0) -> int:
        key = notification.publisher, notification.number, ask
        if key not in self._places or ask == REPORT:  # there may be several of one gap
            self._places[key] = len(self.notifications)
            if ask:
                self.asks[len(self.notifications)] = ask
            self.notifications.append(notification)
        return self._places[key]

    def all(self, kept: list[Kept]) -> list[Place]:
        return [(self.of(stored), put) for stored, put in kept]


def _saved_session(session: Session, places: Places) -> SavedSession:
    backlog, marks, wait = session.backlog, session.marks, session.wait
    doubt = session.doubt
    return SavedSession(
        session.client,
        session.epoch,
        session.opened,
        session.place,
        session.link,
        session.home,
        session.away_since,
        list(session.subscriptions.items()),
        list(session.advertisements),
        session.published,
        session.welcomed,
        session.orphan,
        session.leaving,
        None if doubt is None else (doubt.until, doubt.since),
        saved_backlog(backlog, places),
        dict(marks.recent),
        dict(marks.older),
        marks.turn_at,
        None if wait is None else _saved_wait(wait, places),
        session.window,
        list(session.watched.items()),
        session.rolled_back,
        session.account,
        session.partial,
        session.sought_since is not None,
        session.sought_since,
        session.away_until,
        session.expires_ns,
        session.asked,
        session.above,
        session.life,
        session.failover_ns,
        session.will,
        session.will_at,
        session.late,
        list(session.unsettled),
        session.earliest,
        doubt is not None and doubt.exceeds,
        session.state,
        session.enlisted,
    )


def saved_backlog(backlog: Backlog, places: Places) -> SavedBacklog:
    return SavedBacklog(
        backlog.acked,
        backlog.sent,
        backlog.last,
        backlog.why,
        all(one.exact for one in backlog.holes),
        [(number, places.of(stored), put) for number, stored, put in backlog.unacked],
        [(number, places.of(stored), put) for number, stored, put in backlog.waiting],
        [(one.first, one.last, one.why, one.exact) for one in backlog.holes],
        backlog.may_repeat,
    )


def _saved_asking(link: LinkId, asking: Asking) -> SavedAsking:
    return SavedAsking(
        link,
        asking.message,
        asking.until,
        [message for message, _ in asking.later],
        asking.bytes,
        asking.resent,
        asking.gone,
        [came for _, came in asking.later],
    )


def _saved_taking(link: LinkId, intake: Intake) -> SavedAsking:
    return SavedAsking(
        link,
        intake.message,
        0,
        [message for message, _ in intake.later],
        intake.bytes,
        False,
        intake.gone,
        [came for _, came in intake.later],
    )


def _intake(saved: SavedAsking) -> Intake:
    """From the first filter on: none of them counts in the tables of a new broker."""
    intake = Intake(saved.message)
    intake.later = _timed(saved.later, saved.came)
    intake.bytes, intake.gone = saved.bytes, saved.gone
    return intake


def _asking(saved: SavedAsking) -> Asking:
    asking = Asking(saved.message, saved.until)
    asking.later, asking.bytes = _timed(saved.later, saved.came), saved.bytes
    asking.resent, asking.gone = saved.resent, saved.gone
    return asking


def _timed(messages: list[Waiting], came: list[int]) -> list[tuple[Waiting, int]]:
    """Messages that wait, and when each came."""
    return list(zip(messages, came or [NOT_YET] * len(messages), strict=True))


def _saved_wait(wait: Wait, places: Places) -> SavedWait:
    held, losses = apart(wait.held)
    return SavedWait(
        list(wait.asked.items()),
        wait.until,
        places.all(held),
        wait.bytes,
        {
            epoch: SavedOld(list(old.known.items()), places.all(kept), old.marks, lost, old.asked)
            for epoch, old in wait.old.items()
            for kept, lost in [apart(old.kept)]
        },
        [publication for publication, _ in wait.publications],
        wait.published_bytes,
        wait.refused,
        wait.superseded,
        wait.pending,
        losses,
        wait.request,
        wait.repeated,
        wait.unclaimed,
        wait.returning,
        wait.echo,
        wait.unreachable,
        wait.asks,
        list(wait.values.items()),
        list(wait.flooded),
        [(number, saved_query(one, places)) for number, one in wait.queries.items()],
        wait.is_open,
        wait.is_due,
        [came for _, came in wait.publications],
    )


def saved_query(query: PastQuery, places: Places) -> SavedQuery:
    return SavedQuery(
        query.filter,
        query.since,
        query.until,
        query.left,
        query.others,
        query.complete,
        places.all(list(query.found.values())),
    )


def loaded_query(saved: SavedQuery, stored: list[Stored]) -> PastQuery:
    query = PastQuery(saved.filter, saved.since, saved.until)
    query.left, query.others, query.complete = saved.left, saved.others, saved.complete
    for place, came in saved.found:
        query.put(stored[place], came)
    return query


def _load_session(border: Border, saved: SavedSession, stored: list[Stored]) -> None:
    subscriptions: Wanted = dict(saved.subscriptions)
    border.next_place = saved.place
    attach = Attach(saved.client, saved.epoch, 0, (), tuple(saved.advertisements))
    session = border.open(attach, saved.link)
    border.set_profile(session, subscriptions, saved.advertisements, dict(saved.watched))
    session.watched = dict(saved.watched)
    session.opened, session.home, session.away_since = saved.opened, saved.home, saved.away_since
    session.earliest = saved.earliest or saved.opened
    session.expires_ns = saved.expires_ns
    session.away_until = saved.away_until
    if saved.link is None and not saved.away_until:
        session.away_until = saved.away_since + border.limits.away_ns
    session.published, session.welcomed = saved.published, saved.welcomed
    session.orphan, session.leaving = saved.orphan, saved.leaving
    session.rolled_back = saved.rolled_back
    session.partial, session.sought_since = saved.partial, saved.sought_since
    session.asked, session.will, session.will_at = saved.asked, saved.will, saved.will_at
    session.above, session.life = saved.above, saved.life
    session.failover_ns, session.late = saved.failover_ns, saved.late
    session.unsettled = dict.fromkeys(saved.unsettled)
    session.state, session.enlisted = saved.state, saved.enlisted
    if saved.sought and saved.sought_since is None:
        session.sought_since = border.since
    session.doubt = None if saved.doubt is None else Doubt(*saved.doubt, saved.exceeds)
    session.backlog = loaded_backlog(saved.backlog, stored, border.memory, session)
    session.backlog.away = saved.link is None
    session.backlog.hold()
    session.backlog.count()
    session.marks = Marks(border.limits.marks_age_ns)
    session.marks.recent, session.marks.older = saved.recent, saved.older
    session.marks.turn_at = saved.turn_at
    border.set_window(session, saved.window or border.limits.window)
    if saved.wait is not None:
        session.wait = _wait(saved.wait, stored)
        border.keep(session.wait)
    border.memory.assign(session, saved.account)
    border.note(session)


def loaded_backlog(
    saved: SavedBacklog, stored: list[Stored], memory: Memory, owner: Consumer
) -> Backlog:
    backlog = Backlog(saved.acked, memory, owner)
    backlog.sent, backlog.last = saved.sent, saved.last
    backlog.why, backlog.holes = saved.why, [Hole(*one) for one in saved.holes]
    backlog.may_repeat = saved.may_repeat
    for here, there in ((saved.unacked, backlog.unacked), (saved.waiting, backlog.waiting)):
        for number, place, put in here:
            there.append((number, stored[place], put))
            backlog.bytes += stored[place].size
    if not saved.exact and not saved.holes:  # by a version that did not know which one is inexact
        backlog.doubt_all()
    return backlog


def _wait(saved: SavedWait, stored: list[Stored]) -> Wait:
    def kept(places: list[Place], losses: list[Loss]) -> list[Queued]:
        return together([(stored[place], put) for place, put in places], losses)

    wait = Wait(dict(saved.asked), saved.until)
    wait.held, wait.bytes = kept(saved.held, saved.losses), saved.bytes
    for epoch, one in saved.old.items():
        old = wait.old[epoch] = Old(dict(one.known))
        old.kept, old.marks, old.asked = kept(one.kept, one.losses), one.marks, one.asked
        wait.old_bytes += sum(one.size for one, _ in old.kept if isinstance(one, Stored))
    wait.publications = _timed(saved.publications, saved.came)
    wait.published_bytes = saved.published_bytes
    wait.refused, wait.superseded, wait.pending = saved.refused, saved.superseded, saved.pending
    wait.request, wait.repeated, wait.unclaimed = saved.request, saved.repeated, saved.unclaimed
    wait.returning, wait.echo = saved.returning, saved.echo
    wait.unreachable, wait.asks = saved.unreachable, saved.asks
    wait.values, wait.flooded = dict(saved.values), dict.fromkeys(saved.flooded)
    wait.queries = {number: loaded_query(one, stored) for number, one in saved.queries}
    wait.is_open, wait.is_due = saved.is_open, saved.is_due
    return wait
