"""The client library: a client of the system that moves from access point to access point.

    attached   the client talks to the system directly; its proxy knows what to stand in for
    moving-out the proxy is asked to take over
    away       nothing is received; what is published waits
    moving-in  the merge queue collects, from the new access point and from the old proxies

Moving in is what the paper does in six steps: a merge queue with a receiver (1), subscriptions at the
new access point (2), synchronisation, a download by way of the new proxy from the old one (3, 4), and
when all has come, what is in the queue, merged, and from then on what is received (5, 6). At the same
proxy the download is shorter. A client that is cut off moves in without having moved out. What is known
during one attempt only is an `Arrival`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import msgspec

from wayfare.errors import OutboxFull, UsageError
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.arrival import Arrival
from wayfare.service.merging import Seen
from wayfare.service.messages import DEFAULT_TERMS, PING, SECOND_NS, Sync, Terms
from wayfare.service.pinging import UNANSWERED, Ping, Waiting
from wayfare.service.releases import Releases
from wayfare.service.standing import Standing
from wayfare.service.system import Id, Language, Publication

OUTBOX_MAX = 10_000  # publications that wait until the client is attached
REPLACED = "another process has gone on with this client, and began later"
# Stays (they begin by a clock, in microseconds) that a process is behind the last one, if its clock is not.
LATER = 1_000_000
RETRY_NS = 1 * SECOND_NS  # until a proxy or an access point is tried again
# Of a download of which nothing comes: by radio, a batch takes its time.
STALLED_NS = 120 * SECOND_NS
MESH_NS = SECOND_NS // 10  # that one link of a mesh may be slower than others
SILENT_NS = 30 * SECOND_NS  # beyond patience, of a proxy that can be reached, and says nothing
GIVEN_UP_MAX = 16  # old proxies that could not be reached, and are told when they can
LAG_NS = SECOND_NS // 50  # until one is asked again that was slower still
PATIENCE_NS = 5 * SECOND_NS  # with an old proxy that cannot be reached


class Library:
    """One client."""

    def __init__(
        self,
        client: str,
        key: str,
        language: Language,
        terms: Terms = DEFAULT_TERMS,
        sync: Sync = PING,
        patience_ns: int = PATIENCE_NS,
        sender: str | None = None,
    ) -> None:
        self.client = client
        self.language = language
        self.terms = terms
        self.sync = sync  # at move-in
        self.patience_ns = patience_ns
        self.state = "away"
        self.replaced = False  # by another process
        self.stay = 0
        self.subscriptions: dict[str, bool] = {}  # and whether it is local
        self.proxy = ""  # where it is, or moves in, as the application calls it
        self.at = ""  # ... and as the proxy itself does
        self.access = ""
        # Proxies that may keep something for it: since which stay, and whether they promised to.
        self.behind: dict[str, tuple[int, bool]] = {}
        self._key = key
        self._sender = sender or client
        self.published = 0  # publications of the application
        self._outbox: deque[Publication] = deque()  # what no access point is known to have
        self._seen = Seen()
        self._ids = language.traits.carries_ids and not terms.copies
        self._heard: dict[str, int] = {}  # when it went away
        self._asking = Ping(language, client, "in")
        self._asked = Ping(language, client, "out")
        self._pings = 0
        self._suspended = ""  # the access point where the client is suspended
        self._suspended_with: tuple[str, ...] = ()
        self._open = False
        self._connected = False  # to its proxy
        self._gone_since: int | None = None  # since when that cannot be reached
        self._renew_at: int | None = None
        self._retry_at: int | None = None
        self._give_up_at: int | None = None
        self._silent_at: int | None = None  # when a proxy should have said something
        self.arrival: Arrival | None = None  # while it moves in; None: it will try again
        # Proxies that it went on without, until they know it; with gaps that are not told yet.
        self._given_up: dict[str, list[e.Gap]] = {}
        self._downloads = 0  # the last one
        self._registered = 0  # the last stay that a proxy stands in for
        self._fresh = False  # as of the last `Arrival`
        self._standing = Standing()
        self._releases = Releases()
        self._out: list[e.Effect] = []

    # ---- what applications call ----------------------------------------------------------

    def move_in(self, proxy: str, now: int) -> list[e.Effect]:
        """Appear at this proxy, and its access point: for the first time, again, or elsewhere."""
        self._out = []
        if self.replaced:
            return [e.Failed(REPLACED, refused=True)]
        if self.state in ("attached", "moving-out"):
            self._cut_off()
        else:
            self._abandon()
        self.state = "moving-in"
        self.stay += 1
        if self.proxy and self.proxy != proxy:
            self._out.append(e.Hang(self.proxy))
        self.proxy = proxy
        self._give_up_at = now + self.patience_ns
        self._begin(now)
        return self._out

    def move_out(self, now: int, suspend: bool = False) -> list[e.Effect]:
        """Have the proxy take over, then leave."""
        self._out = []
        if self.state != "attached":
            raise UsageError(
                f"only a client that is attached can move out: this one is {self.state}"
            )
        self.state = "moving-out"
        self._silent_at = now + self.patience_ns + max(SILENT_NS, self.terms.sync.patience_ns)
        self._give_up_at = self._silent_at
        self._gone_since = None
        self._suspended = self.access if suspend and self.language.traits.suspends else ""
        self._ask_to_move_out()
        return self._out

    def subscribe(self, subscription: str, local: bool, now: int, *more: str) -> list[e.Effect]:
        """A local subscription is not stood in for, and does not move. Many are told in one message."""
        self._out = []
        asked = (subscription, *more)
        m.check_subscriptions(self.subscriptions.keys() | set(asked))
        if not all(0 < len(text) <= m.SUBSCRIPTION_MAX for text in asked):
            raise UsageError(f"a subscription has 1 to {m.SUBSCRIPTION_MAX} characters")
        self.subscriptions |= dict.fromkeys(asked, local)
        self._standing.changes += 1
        if self._open:
            self._out.append(e.Subscribe(self.client, asked))
        self._tell_changes()
        return self._out

    def unsubscribe(self, subscription: str, now: int) -> list[e.Effect]:
        self._out = []
        if subscription not in self.subscriptions:
            raise UsageError(f"the client has not subscribed to {subscription!r:.200}")
        del self.subscriptions[subscription]
        self._standing.active.discard(subscription)
        self._standing.changes += 1
        if self._open:
            self._out.append(e.Unsubscribe(self.client, (subscription,)))
        self._tell_changes()
        return self._out

    def publish(self, publication: Publication, now: int) -> list[e.Effect]:
        """Publish now, or when the client is attached again."""
        self._out = []
        if len(self._outbox) >= OUTBOX_MAX:
            raise OutboxFull(f"{OUTBOX_MAX} publications wait for an access point: publish less")
        self.published += 1
        if publication.id is None and self.language.traits.carries_ids:
            id = Id(self._sender, self.published)
            publication = msgspec.structs.replace(publication, id=id)
        self._outbox.append(publication)
        if self._open:
            self._out.append(e.Publish(self.client, publication))
        return self._out

    @property
    def unsent(self) -> int:
        """How many publications no access point is known to have."""
        return len(self._outbox)

    def leave(self, now: int) -> list[e.Effect]:
        """Go for good: nobody stands in for the client any more. Who is away has to dial to say so."""
        self._out = []
        known = {**self.behind, **self._given_up}
        if self.proxy and known:
            if not self._connected:
                self._dial()
            for at in known:
                self._say(m.Release(self.client, self._key, at, self.stay, m.ALL))
            self._say(m.Leave(self.client, self._key, self.stay))
        self._shut_if_open()
        self._go_away()
        self.proxy = ""
        self._retry_at = None
        return self._out

    # ---- what hosts call -------------------------------------------------------------------

    def step(self, event: e.Event, now: int) -> list[e.Effect]:
        self._out = []
        match event:
            case e.Arrived(_, publication):
                self._arrived(publication, now)
            case e.Received(peer, message):
                if peer == self.proxy:
                    self._hear(message, now)
            case e.Opened(_, resumed):
                self._opened(resumed)
            case e.Subscribed(_, subscriptions):
                self._subscribed(subscriptions, now)
            case e.Published(_, publication):
                if self._outbox and self._outbox[0] is publication:
                    self._outbox.popleft()
                elif self.arrival is not None and self.arrival.waiting is not None:
                    self.arrival.waiting.published(publication, now)
            case e.AccessGone(_, reason):
                self._access_gone(reason, now)
            case e.PeerGone(peer, reason):
                if peer == self.proxy:
                    self._proxy_gone(reason, now)
            case e.Stalled(for_ns):
                self._extend(for_ns)
            case e.Tick():
                self._tick(now)
        return self._out

    def next_deadline(self) -> int | None:
        times = [self._renew_at, self._retry_at, self._silent_at]
        if self._may_release:
            times.append(self._releases.due_at)
        if self.arrival is not None:
            times.append(self.arrival.stalled_at)
            if self.arrival.waiting is not None:
                times.append(self.arrival.waiting.deadline)
        return min((time for time in times if time is not None), default=None)

    def _extend(self, for_ns: int) -> None:
        """Give others as much more time to answer as nothing could be heard."""
        if self._silent_at is not None:
            self._silent_at += for_ns
        if self._give_up_at is not None:
            self._give_up_at += for_ns
        if self._gone_since is not None:
            self._gone_since += for_ns
        if self.arrival is not None:
            self.arrival.extend(for_ns)

    def _tick(self, now: int) -> None:
        if self.arrival is not None and self.arrival.waiting is not None:
            self._wait(self.arrival, self.arrival.waiting, now)
        if self._renew_at is not None and now >= self._renew_at:
            self._renew_at = now + self.terms.lease_ns // 3
            self._say(m.Renew(self.client, self._key, self.stay, self._seen.settle()))
        if self._may_release and is_due(self._releases.due_at, now):
            self._release(now)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._retry(now)
        if self.arrival is not None and is_due(self.arrival.stalled_at, now):
            self._stall(self.arrival, now)
        if is_due(self._silent_at, now):
            self._silent_at = None
            self._despair(now)

    # ---- moving in -----------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        """Step 1: the merge queue. Whoever receives puts into it."""
        self._silent_at = now + self.patience_ns + SILENT_NS
        self._retry_at = None
        self.arrival = Arrival(sorted(self.behind, key=lambda at: self.behind[at]))
        self._dial()
        self._say(m.Hello(self.client, self._key))

    def _dial(self) -> None:
        self._connected = True  # until the host says otherwise
        self._out.append(e.Dial(self.proxy))

    def _hang_up(self) -> None:
        self._connected = False
        self._out.append(e.Hang(self.proxy))

    def _abandon(self) -> None:
        """Another proxy is nearer by now, or this one cannot be had."""
        self._leave_behind()
        self._shut_if_open()
        self.arrival = self._silent_at = None

    def _leave_behind(self) -> None:
        """The new proxy may have adopted the client already, who goes on without it."""
        if self.arrival is not None and self.arrival.step == "downloading":
            self.behind.setdefault(self.at, (self.stay, False))

    def _welcomed(self, arrival: Arrival, welcome: m.Welcome) -> None:
        arrival.step = "opening"
        self._silent_at = None
        if self.at and self.at != welcome.proxy:
            for subscription in [text for text, local in self.subscriptions.items() if local]:
                del self.subscriptions[subscription]
                self._out.append(e.Ended(subscription))
        if welcome.stay >= self.stay and (welcome.over or not self.at):
            # A clock was put back since. Of two processes that begin now, one should be the later.
            self.stay = welcome.stay + LATER + self.stay % LATER
        self.at, self.access = welcome.proxy, welcome.access
        self._fresh = arrival.fresh = self.at not in self.behind
        self._out.append(e.Open(self.client, self.access, self._suspended == self.access))

    def _opened(self, resumed: bool | None) -> None:
        """Step 2: subscriptions at the new access point."""
        arrival = self.arrival
        if arrival is None or arrival.step != "opening":
            return
        suspended = self._suspended_with if self._suspended == self.access else ()
        self._open, self._suspended, arrival.step = True, "", "subscribing"
        before = suspended if resumed else ()
        removed = tuple(text for text in suspended if text not in self.subscriptions)
        self._standing.active = {text for text in before if text in self.subscriptions}
        added = [text for text in self.subscriptions if text not in before]
        if self.terms.sync.kind == "ping":
            added.append(self._asked.requests)
        self._pings += 1
        arrival.asking = self._asking.tagged(f"{self.stay}-{self._pings}")
        if self.sync.kind == "ping" and arrival.old:
            arrival.listens_to = arrival.asking.responses
            added.append(arrival.listens_to)
        for publication in self._outbox:
            self._out.append(e.Publish(self.client, publication))
        if removed:
            self._out.append(e.Unsubscribe(self.client, removed))
        self._out.append(e.Subscribe(self.client, tuple(added)))

    def _subscribed(self, subscriptions: tuple[str, ...], now: int) -> None:
        self._standing.active.update(text for text in subscriptions if text in self.subscriptions)
        arrival = self.arrival
        if arrival is not None and arrival.asking is not None and arrival.step == "subscribing":
            arrival.step = "waiting"
            arrival.forgo_at = now + self.patience_ns
            sync = self._sync_by_nature() if arrival.old else m.NO_SYNC
            nonce = f"{self.stay}.{self._pings}"
            arrival.waiting = Waiting(sync, arrival.asking, nonce, arrival.old, now)
            self._reach(arrival, now)
            self._wait(arrival, arrival.waiting, now)
        else:
            self._tell_changes()

    def _sync_by_nature(self) -> Sync:
        """On a mesh a ping does not push aside what comes to the old access point by another link."""
        if self.language.traits.mesh and self.sync.kind == "ping" and not self.sync.delay_ns:
            return msgspec.structs.replace(self.sync, delay_ns=MESH_NS)
        return self.sync

    def _wait(self, arrival: Arrival, waiting: Waiting, now: int) -> None:
        """Between: the subscriptions have to be active everywhere."""
        request = waiting.due(now)
        if request is not None:
            self._out.append(e.Publish(self.client, request))
        if waiting.over:
            for at in waiting.unanswered:
                if self.behind.get(at, (0, False))[1]:
                    arrival.gaps.append(e.Gap(None, f"{at} {UNANSWERED}"))
            if self._connected:
                self._retry_at = None
            if arrival.listens_to:
                self._out.append(e.Unsubscribe(self.client, (arrival.listens_to,)))
            arrival.begin_downloads()
            self._download(arrival, now)

    def _reach(self, arrival: Arrival, now: int) -> None:
        """Nobody answers pings for a proxy that is down, or has let go: let the new one find out."""
        self._retry_at = now + RETRY_NS
        for at in arrival.old if self.sync.kind == "ping" else ():
            self._say(m.Reach(self.client, at, self._key))

    def _not_reached(self, arrival: Arrival, end: m.Downloaded, now: int) -> None:
        if arrival.waiting is None or end.at not in arrival.old:
            return
        if end.reached or now >= arrival.forgo_at:
            if not end.reached:  # without its answer, what it has kept may come out of order
                self._give_up(arrival, end)
            arrival.waiting.settle(end.at)
            self._wait(arrival, arrival.waiting, now)

    def _give_up(self, arrival: Arrival, end: m.Downloaded) -> None:
        """Go on without what this proxy has kept, whatever becomes of this attempt."""
        arrival.old.remove(end.at)
        _, promised = self.behind.pop(end.at, (0, False))  # or it was released meanwhile
        untold = self._given_up.setdefault(end.at, [])
        if promised:
            untold.append(e.Gap(None, end.reason))

    def _download(self, arrival: Arrival, now: int) -> None:
        """Steps 3 and 4: what the old proxies have kept, one after the other."""
        if not arrival.old:
            self._arrive(arrival, now)
            return
        arrival.begin_download()
        arrival.stalled_at = now + STALLED_NS
        self._downloads += 1
        at = arrival.old[0]
        self._say(
            m.Download(
                self.client,
                self._key,
                self.stay,
                self._downloads,
                at,
                self._heard,
                self.terms if self._adopts(arrival, at) else None,
                arrival.fresh,
            )
        )

    def _adopts(self, arrival: Arrival, at: str) -> bool:
        """Whether the new proxy stands in from now on with what that one has subscribed to.

        That is what the client had last.
        """
        return self.terms.standby and at == arrival.old[-1]

    def _stall(self, arrival: Arrival, now: int) -> None:
        """Somebody on the way is there, and says nothing."""
        arrival.stalled_at = None
        at = arrival.old[0]
        reason = f"the old proxy at {at} does not answer"
        self._on_downloaded(
            m.Downloaded(self.client, self._downloads, at, 0, 0, None, reason, found=False), now
        )

    def _on_batch(self, batch: m.Batch, now: int) -> None:
        arrival = self.arrival
        if arrival is None or arrival.step != "downloading" or batch.download != self._downloads:
            return
        arrival.stalled_at, arrival.forgo_at = now + STALLED_NS, now + self.patience_ns
        arrival.take(batch)
        self._say(m.Got(self.client, batch.download, batch.number))

    def _on_downloaded(self, end: m.Downloaded, now: int) -> None:
        arrival = self.arrival
        if arrival is None:
            return
        if end.download == 0:
            self._not_reached(arrival, end, now)
            return
        if (
            arrival.step != "downloading"
            or end.download != self._downloads
            or end.at != arrival.old[0]
        ):
            return
        if not end.reached and now < arrival.forgo_at:
            self._retry_at = now + RETRY_NS
            return
        if end.found and self._lags(arrival, end) and now < arrival.forgo_at:
            self._retry_at = now + LAG_NS
            return
        if not end.found:
            self._give_up(arrival, end)
        else:
            if self._adopts(arrival, end.at):
                arrival.adopted = end.subscriptions
            arrival.old.remove(end.at)
            arrival.end_download()
            arrival.releases[end.at] = m.Release(self.client, self._key, end.at, end.stay, end.upto)
            if end.lost or end.lost is None:
                arrival.gaps.append(e.Gap(end.lost, end.reason))
        self._download(arrival, now)

    def _lags(self, arrival: Arrival, end: m.Downloaded) -> bool:
        """On a mesh: something that came here has not come to the old access point yet.

        Then something that was sent before it may be on its way to there only. (If the subscriptions
        are others, or not all is replayed, nobody knows what should have come.)
        """
        all_of_it = self.terms.last is None and self.terms.age_ns is None
        if not (self.language.traits.mesh and self._ids and self.sync.kind == "ping" and all_of_it):
            return False
        _, promised = self.behind.get(end.at, (0, False))
        if not promised or set(end.subscriptions) != self.subscriptions.keys():
            return False
        return arrival.is_ahead_of(self._heard)

    def _arrive(self, arrival: Arrival, now: int) -> None:
        """Steps 5 and 6: what is in the queue, merged; then what is received."""
        self.state, self.arrival = "attached", None
        _, promised = self.behind.get(self.at, (0, False))
        self.behind[self.at] = (self.stay, promised or self._may_release)
        gaps, publications = arrival.end(self._ids)
        for untold in (*self._given_up.values(), gaps):
            self._out.extend(untold)
        for publication in publications:
            self._hand_out(publication)
        self._releases.begin(arrival.releases | self._farewells(arrival.releases))
        if arrival.adopted is None:
            self._register()
        else:
            self._standing.begin(arrival.adopted, self._moving)
            self._tell_changes()
            if self._registered == self.stay:
                self._stands()
        self._renew_at = now + self.terms.lease_ns // 3
        self._out.append(e.Moved(attached=True))
        self._release(now)

    # ---- what the proxy knows ---------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """Of subscriptions."""
        return self._standing.changes

    @property
    def confirmed(self) -> int:
        """Until which change the proxy has them, too."""
        return self._standing.confirmed

    @property
    def _moving(self) -> tuple[str, ...]:
        return tuple(text for text, local in self.subscriptions.items() if not local)

    def _register(self) -> None:
        self._registered, told = 0, self._standing.fit(self._moving)
        change = self._standing.begin(told, self._moving)
        self._say(
            m.Register(self.client, self._key, self.stay, told, self.terms, self._fresh, change)
        )

    def _tell_changes(self) -> None:
        if self.state == "attached" and (change := self._standing.tell(self._moving)) is not None:
            self._say(m.Change(self.client, self._key, self.stay, *change))

    def _stands(self) -> None:
        self._standing.stands()
        self._tell_changes()

    @property
    def _may_release(self) -> bool:
        stands_in = self._registered == self.stay or not self.terms.standby
        return self.state == "attached" and stands_in

    def _release(self, now: int) -> None:
        """The client has it all, and somebody else stands in: the old proxies may forget it."""
        if self._may_release:
            for release in self._releases.say(now):
                self._say(release)
                if release.at != self.at and release.upto != m.ALL:
                    self.behind[release.at] = (release.stay, False)

    def _farewells(self, but: Collection[str]) -> dict[str, m.Release]:
        """Who was given up may be back one day, and would stand in for nobody."""
        given_up = [at for at in self._given_up if at != self.at and at not in but][-GIVEN_UP_MAX:]
        self._given_up = {at: [] for at in given_up}
        return {at: m.Release(self.client, self._key, at, self.stay, m.ALL) for at in given_up}

    def _on_released(self, released: m.Released) -> None:
        if self._releases.done(released):
            self._given_up.pop(released.at, None)
        stay, _ = self.behind.get(released.at, (released.stay + 1, False))
        if stay <= released.stay and released.at != self.at:
            del self.behind[released.at]

    # ---- moving out ------------------------------------------------------------------------------

    def _ask_to_move_out(self) -> None:
        told = self._standing.fit(self._moving)
        self._say(m.MoveOut(self.client, self._key, self.stay, told, self.terms))

    def _moved_out(self) -> None:
        self._suspended_with = tuple(self.subscriptions)
        self._shut(suspend=bool(self._suspended))
        self._go_away()
        self._hang_up()
        self._out.append(e.Moved(attached=False))

    def _cut_off(self) -> None:
        self._suspended = ""
        if self._open:
            self._shut()
        self._go_away()

    def _go_away(self) -> None:
        self.state = "away"
        self._renew_at = self._silent_at = self.arrival = None
        self._releases.begin({})
        self._heard = self._seen.marks

    def _shut_if_open(self) -> None:
        is_opening = self.arrival is not None and self.arrival.step == "opening"
        if self._open or is_opening:
            self._shut()

    def _shut(self, suspend: bool = False) -> None:
        self._open = False
        self._out.append(e.Shut(self.client, suspend))

    # ---- what comes --------------------------------------------------------------------------------

    def _hear(self, message: m.Message, now: int) -> None:
        self._gone_since = None
        match message:
            case m.Welcome():
                self._on_welcome(message)
            case m.Batch():
                self._on_batch(message, now)
            case m.Downloaded():
                self._on_downloaded(message, now)
            case m.Registered(_, stay):
                self._on_registered(stay, now)
            case m.Changed(_, change):
                self._standing.confirm(change)
                self._tell_changes()
            case m.Released():
                self._on_released(message)
            case m.MovedOut(_, stay):
                if self.state == "moving-out" and stay == self.stay:
                    self._moved_out()
            case m.Refused(_, reason, unknown):
                self._refused(reason, unknown)

    def _on_welcome(self, welcome: m.Welcome) -> None:
        dialling = self.arrival if self.arrival and self.arrival.step == "dialling" else None
        strange = welcome.proxy != self.at and welcome.proxy not in self.behind
        is_excused = dialling and welcome.over and strange  # somebody who went before this began
        if self.at and welcome.stay > self.stay and not is_excused:
            self._give_way()
        elif dialling:
            self._welcomed(dialling, welcome)
        elif self.state == "attached":
            self._register()  # the connection broke, and the client has not moved

    def _on_registered(self, stay: int, now: int) -> None:
        self._registered = stay
        if self.state == "attached" and stay == self.stay:
            self.behind[self.at] = (stay, True)
            if self._renew_at is None:  # it was refused before
                self._renew_at = now + self.terms.lease_ns // 3
            self._stands()
            self._release(now)

    def _arrived(self, publication: Publication, now: int) -> None:
        if (answer := self._asked.answer(publication, self.client)) is not None:
            if publication.payload.startswith(b"%d." % self.stay):  # else it is not for who is here
                self._out.append(e.Publish(self.client, answer))
        elif self._asking.is_of_the_service(publication):
            waiting = None if self.arrival is None else self.arrival.waiting
            if self.arrival is not None and waiting is not None and waiting.hear(publication, now):
                self._wait(self.arrival, waiting, now)
        elif self.state in ("attached", "moving-out"):
            self._hand_out(publication)
        elif self.arrival is not None:  # who is away has left it to a proxy
            self.arrival.receive(publication)

    def _hand_out(self, publication: Publication) -> None:
        is_news = self._seen.is_news(publication.id)
        if is_news or not self._ids:
            self._out.append(e.Deliver(publication))

    # ---- trouble -----------------------------------------------------------------------------------

    def _refused(self, reason: str, unknown: bool) -> None:
        if unknown:
            if self.state == "attached":
                self._register()
        elif self.state == "attached":
            if self._registered != self.stay:
                self._renew_at = None  # it goes on, and nobody stands in for it
            self._out.append(e.Failed(reason, refused=True))
        elif self.state != "away":
            self._fail(reason, refused=True)

    def _give_way(self) -> None:
        """To a process with the same key, for good: else the two would put each other out in turn."""
        self.replaced = True
        if self.state in ("attached", "moving-out"):
            self._cut_off()
            self.state = "moving-in"
        if self.state != "away":
            self._fail(REPLACED, refused=True)

    def _fail(self, reason: str, refused: bool = False) -> None:
        self._retry_at = self._silent_at = None
        if self.state == "moving-out":
            self.state, self._suspended = "attached", ""
            self._tell_changes()
        else:
            self._abandon()
            self._hang_up()
            self.state = "away"
        self._out.append(e.Failed(reason, refused))

    def _proxy_gone(self, reason: str, now: int) -> None:
        """Without its proxy a client that is attached goes on."""
        self._connected = False
        if self._gone_since is None:
            self._gone_since = now
        is_gone, is_late = now >= self._gone_since + self.patience_ns, self._is_late(now)
        ends = {"moving-in": is_gone and is_late, "moving-out": is_gone or is_late}
        if ends.get(self.state):
            self._fail(f"the proxy at {self.proxy} cannot be reached: {reason}")
        if self.state != "away":
            self._retry_at = now + RETRY_NS

    def _despair(self, now: int) -> None:
        """The connection stands, and nothing comes: the proxy is frozen, or the network is."""
        if self.state == "moving-in" and self._give_up_at is None:
            self._out.append(e.Hang(self.proxy))
            self._begin(now)  # nobody else would have it come back
            return
        self._fail(f"the proxy at {self.proxy} does not answer")
        if self.state == "attached":
            self._out.append(e.Hang(self.proxy))
            self._proxy_gone("it does not answer", now)

    def _access_gone(self, reason: str, now: int) -> None:
        """Cut off. Until somebody says where else to go, come back to where it was."""
        self._open = False
        if self.state == "moving-out":
            self._suspended = ""
            self._out.append(e.Failed(f"the client was cut off before it had moved out: {reason}"))
        if self.state in ("attached", "moving-out"):
            self._go_away()
            self.state = "moving-in"
            self.stay += 1
            self._give_up_at = None
        elif self.state == "away":
            return
        elif self._is_late(now):
            self._fail(f"the access point at {self.access} cannot be reached: {reason}")
            return
        else:
            self._leave_behind()
            self.arrival = None
        self._retry_at = now + RETRY_NS

    def _is_late(self, now: int) -> bool:
        return self._give_up_at is not None and now >= self._give_up_at

    def _retry(self, now: int) -> None:
        arrival = self.arrival
        if self.state == "moving-in" and (arrival is None or arrival.step == "dialling"):
            self._begin(now)
            return
        self._dial()
        if arrival is not None and arrival.step == "downloading":
            self._download(arrival, now)
        elif arrival is not None and arrival.step == "waiting":
            self._reach(arrival, now)
        elif self.state == "attached":
            self._say(m.Hello(self.client, self._key))
        elif self.state == "moving-out":
            self._ask_to_move_out()

    def _say(self, message: Any) -> None:
        self._out.append(e.Send(self.proxy, message))


def is_due(time: int | None, now: int) -> bool:
    return time is not None and now >= time
