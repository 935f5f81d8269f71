"""The mobility proxy: stands in for clients that are away.

It has three interfaces: to client libraries, to other proxies, and to the publish/subscribe system. For
each client there is a client proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

import msgspec

from wayfare.errors import UsageError
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.buffer import DEFAULT_LIMITS, Kept, Limits
from wayfare.service.client_proxy import CUT_OFF, WENT, ClientProxy, Record, Sending
from wayfare.service.messages import MS_NS, Terms
from wayfare.service.pinging import Waiting
from wayfare.service.relays import TAKEN, Answer, Question, Relays, not_found
from wayfare.service.system import Language, Publication

CLIENTS_MAX = 10_000  # client proxies at one proxy
OVER_MAX = 10_000  # clients that went, of which it is known when
RETRY_NS = 1000 * MS_NS  # until a broken access is opened again
_UNKNOWN = "the old proxy does not know the client any more"
_ROLLED_BACK = "the store of the mobility proxy was rolled back"
_FORGOTTEN = "the system has forgotten what the proxy was subscribed to"


class Proxy:
    """All client proxies at one access point."""

    def __init__(
        self,
        address: str,
        access: str,
        language: Language,
        limits: Limits = DEFAULT_LIMITS,
        durable: bool = False,
    ) -> None:
        self.address = address  # its own, for other proxies
        self.access = access  # the access point's
        self.language = language
        self.limits = limits
        self.durable = durable
        self.clients: dict[str, ClientProxy] = {}
        self._over: dict[tuple[str, str], int] = {}  # by client and key, the last stay of who went
        self._downloads: dict[tuple[str, str], Sending] = {}  # by peer and client
        self._relays = Relays()
        self._out: list[e.Effect] = []
        # Of each client with a deadline there is an entry that is not later; some are out of date.
        self._deadlines: list[tuple[int, str]] = []
        self._touched: list[ClientProxy] = []
        self._size_max = 0  # all buffers together have not more bytes than this

    # ---- what hosts call ---------------------------------------------------------------

    def step(self, event: e.Event, now: int) -> list[e.Effect]:
        self._out = []
        match event:
            case e.Received(peer, message):
                handler: Callable[..., None] | None = _HANDLERS.get(type(message))
                if handler is None:
                    self._out.append(e.Hang(peer))
                    self._peer_gone(peer, "it said what nobody says to a proxy")
                else:
                    handler(self, peer, message, now)
            case e.Arrived(client, publication):
                self._arrived(client, publication, now)
            case e.Opened(client, resumed):
                self._opened(client, resumed)
            case e.Subscribed(client, subscriptions):
                self._subscribed(client, subscriptions, now)
            case e.AccessGone(client, reason):
                self._access_gone(client, reason, now)
            case e.PeerGone(peer, reason):
                self._peer_gone(peer, reason)
            case e.Published(client, publication):
                found = self.clients.get(client)
                if found is not None and found.waiting is not None:
                    found.waiting.published(publication, now)
                    self._touch(found)
            case e.Stalled(for_ns):
                self._extend(for_ns)
            case e.Tick():
                pass
        self._act(now)
        return self._out

    def next_deadline(self) -> int | None:
        times = (self._next_client(), self._relays.look_at)
        return min((time for time in times if time is not None), default=None)

    def _next_client(self) -> int | None:
        """When the time has come for something: the first of the deadlines is that client's then."""
        for one in self._touched:
            if self.clients.get(one.client) is one:
                self._queue(one)
        self._touched.clear()
        while self._deadlines:
            time, client = self._deadlines[0]
            found = self.clients.get(client)
            if found is not None and found.deadline == time:
                return time
            heappop(self._deadlines)  # it has another one by now
            if found is not None and found.queued == time:
                found.queued = None
                self._queue(found)
        return None

    def _queue(self, one: ClientProxy) -> None:
        deadline = one.deadline
        if deadline is not None and (one.queued is None or deadline < one.queued):
            one.queued = deadline
            heappush(self._deadlines, (deadline, one.client))

    def record(self, client: str) -> Record:
        one = self.clients[client]
        return Record(
            client,
            one.key,
            one.stay,
            tuple(one.subscriptions),
            one.terms,
            one.buffer.last,
            one.buffer.lost,
            one.hole,
            one.stood_in,
        )

    def _extend(self, for_ns: int) -> None:
        """Clients and other proxies could not be heard for so long."""
        self._relays.extend(for_ns)
        for one in self.clients.values():
            if one.state == "here":
                one.since += for_ns
            if one.waiting is not None:
                one.waiting.extend(for_ns)
            self._touch(one)

    def restore(
        self, record: Record, kept: Iterable[Kept], now: int, *, rolled_back: bool = False
    ) -> list[e.Effect]:
        """A client as it was when the proxy ended: away, until it says a word.

        With `rolled_back`, the record is older than that, and nobody knows what was kept since.
        """
        self._out = []
        one = self._create(record.client, record.key, record.terms, now)
        one.stay = record.stay
        one.subscriptions = dict.fromkeys(record.subscriptions)
        one.buffer.last, one.buffer.lost = record.last, record.lost
        for each in kept:
            one.buffer.put(each)
        self._size_max += one.buffer.size
        one.hole, one.stood_in = record.hole, record.stood_in
        if not self.language.traits.suspends:
            one.hole = "the mobility proxy was down for a while"
        elif not one.terms.standby and not one.stood_in:
            one.hole = CUT_OFF
        if rolled_back:
            one.hole = _ROLLED_BACK
            self._save(one)
        self._stand_in(one, resume=True)
        return self._out

    def asked(self, at: str, answer: Answer) -> str | None:
        """The peer that asked what another proxy answers."""
        relay = self._relays.find(at, answer)
        return None if relay is None else relay.listener

    # ---- clients come and go ---------------------------------------------------------------

    def _on_hello(self, peer: str, message: m.Hello, now: int) -> None:
        one = self.clients.get(message.client)
        if one is not None and message.key not in ("", one.key):
            self._refuse(peer, message.client, TAKEN)  # before it takes the name in the system, too
            return
        over = self._over.get((message.client, message.key), 0)
        stay = one.stay if one is not None and message.key else over
        self._say(peer, m.Welcome(self.address, self.access, stay, one is None))

    def _on_register(self, peer: str, message: m.Register, now: int) -> None:
        one = self._known(peer, message, now, message.terms)
        if one is None:
            return
        self._hang_up(self._relays.stop(one.client, one.key))
        self._change_to(one, message.subscriptions, message.terms)
        self._begin_stay(one, peer, message, now)
        self._confirm(one, peer, message.change)

    def _begin_stay(
        self, one: ClientProxy, peer: str, message: m.Register | m.Download, now: int
    ) -> None:
        stay = message.stay
        is_back = one.stay < stay or (isinstance(message, m.Register) and one.state == "away")
        if (one.stay < stay and message.fresh) or (is_back and not one.terms.standby):
            self._forget(one)
        if is_back and not one.terms.standby:
            self._stand_down(one)
        one.stay, one.state, one.since, one.waiting = stay, "here", now, None
        one.pings += 1
        if one.terms.standby and one.access == "none":
            self._stand_in(one)
        one.told = [(peer, m.Registered(one.client, stay))]
        if one.access == "ready" and one.terms.standby and not one.pinged:
            self._synchronise(one, now)
        elif one.access in ("none", "ready"):
            self._tell(one)
        self._save(one)

    def _forget(self, one: ClientProxy) -> None:
        """The client has what was kept, or has given it up."""
        self._trim(one, one.buffer.drop_upto(one.buffer.last))
        one.buffer.tell_lost({})
        one.hole, one.buffer.lost = "", 0
        one.told_hole, one.told_lost = "", 0

    def _on_change(self, peer: str, message: m.Change, now: int) -> None:
        one = self._known(peer, message, now)
        if one is None:
            return
        now_wanted = dict.fromkeys((*one.subscriptions, *message.added))
        for subscription in message.removed:
            now_wanted.pop(subscription, None)
        try:
            m.check_subscriptions(now_wanted)
        except UsageError as error:
            self._refuse(peer, one.client, str(error))
            return
        self._change_to(one, now_wanted, one.terms)
        self._confirm(one, peer, message.change)
        self._save(one)

    def _confirm(self, one: ClientProxy, peer: str, change: int) -> None:
        """Say that it has these subscriptions, when it has: who is cut off then misses nothing."""
        if change:
            one.changed = peer, m.Changed(one.client, change)
        if one.access in ("none", "ready"):
            self._tell_change(one)

    def _tell_change(self, one: ClientProxy) -> None:
        if one.changed is not None:
            self._say(*one.changed)
            one.changed = None

    def _on_renew(self, peer: str, message: m.Renew, now: int) -> None:
        one = self._known(peer, message, now)
        if one is None:
            return
        before = now - one.terms.lease_ns
        if one.state == "away" and not one.silent:
            return  # said while it moved out
        if one.state == "away":
            one.state = "here"
            if not one.terms.standby:
                self._forget(one)
                self._stand_down(one)
        one.since = now
        if one.told and one.waiting is None and one.access == "ready":
            self._synchronise(one, now)
        self._trim(one, one.buffer.drop_heard(message.heard, before))
        found = one.buffer.find(message.heard, before)
        if one.hole and one.access == "ready" and one.ready_at <= before:
            one.hole, found = "", True  # the client was there all the time, and heard for itself
        if found:
            self._save(one)

    def _on_move_out(self, peer: str, message: m.MoveOut, now: int) -> None:
        one = self._known(peer, message, now, message.terms)
        if one is None:
            return
        self._change_to(one, message.subscriptions, message.terms)
        one.stay, one.state, one.since, one.waiting = message.stay, "out", now, None
        one.pings += 1  # what answers an earlier one does not say that the client has everything
        if one.access == "none":
            self._stand_in(one)
        one.told = [(peer, m.MovedOut(one.client, one.stay))]
        if one.access == "ready":
            self._synchronise(one, now)
        self._save(one)

    def _on_leave(self, peer: str, message: m.Leave, now: int) -> None:
        self._hang_up(self._relays.stop(message.client, message.key))  # or it would be adopted
        if message.client not in self.clients:
            self._remember(message)
        elif (one := self._known(peer, message, now)) is not None:
            self._destroy(one)
            self._remember(message)

    def _known(
        self, peer: str, message: Any, now: int, terms: Terms | None = None
    ) -> ClientProxy | None:
        """The client that this is about, and may speak for; made anew if there are terms."""
        one = self.clients.get(message.client)
        over = self._over.get((message.client, message.key), -1)
        if one is None and message.stay <= over:
            self._too_late(peer, message, over)
            return None
        if one is None and terms is not None:
            if len(self.clients) >= CLIENTS_MAX:
                self._refuse(peer, message.client, f"a proxy stands in for {CLIENTS_MAX} clients")
                return None
            return self._create(message.client, message.key, terms, now)
        if one is None:
            reason = "this proxy does not know the client: register it"
            self._say(peer, m.Refused(message.client, reason, unknown=True))
        elif one.key != message.key:
            self._refuse(peer, message.client, TAKEN)
        elif message.stay < one.stay:
            self._too_late(peer, message, one.stay)
        else:
            return self._touch(one)
        return None

    def _too_late(self, peer: str, message: Any, stay: int) -> None:
        """The client has moved on since it said so, and does not listen here; or another process has."""
        if isinstance(message, m.Renew | m.Download):
            self._say(peer, m.Welcome(self.address, self.access, stay))

    def _create(self, client: str, key: str, terms: Terms, now: int) -> ClientProxy:
        one = ClientProxy(client, key, self.limits.within(terms), self.limits, self.language)
        one.state, one.since = "away", now
        self.clients[client] = one
        self._over.pop((client, key), None)
        return self._touch(one)

    def _remember(self, message: m.Leave | m.Release) -> None:
        """What the client said before may still be on its way, by a connection that hangs."""
        who = message.client, message.key
        self._over[who] = max(message.stay, self._over.get(who, 0))
        if len(self._over) > OVER_MAX:
            del self._over[next(iter(self._over))]

    def _destroy(self, one: ClientProxy) -> None:
        if one.access != "none":
            self._out.append(e.Shut(one.client))
        del self.clients[one.client]
        if self.durable:
            self._out.append(e.Erase(one.client))

    def _change_to(self, one: ClientProxy, wanted: Iterable[str], terms: Terms) -> None:
        before, one.subscriptions = one.subscriptions, dict.fromkeys(wanted)
        one.terms = self.limits.within(terms)
        one.buffer.copies = terms.copies
        removed = tuple(text for text in before if text not in one.subscriptions)
        if one.access != "none":
            one.removed.update(dict.fromkeys(removed))
        if one.access in ("open", "ready"):
            added = tuple(text for text in one.subscriptions if text not in before)
            if added:
                self._subscribe(one, (*added, one.asked.requests))
            if removed:
                self._out.append(e.Unsubscribe(one.client, removed))

    def _subscribe(self, one: ClientProxy, subscriptions: tuple[str, ...]) -> None:
        one.access = "open"
        one.asked_for.update(subscriptions)
        self._out.append(e.Subscribe(one.client, subscriptions))

    # ---- standing in -------------------------------------------------------------------------

    def _stand_in(self, one: ClientProxy, resume: bool = False) -> None:
        one.access, one.pinged = "opening", resume and one.pinged
        one.asked_for.clear()
        resume = resume and self.language.traits.suspends
        self._out.append(e.Open(one.client, self.access, resume))

    def _stand_down(self, one: ClientProxy) -> None:
        if one.access != "none":
            one.access, one.waiting, one.stood_in = "none", None, False
            one.removed.clear()
            self._out.append(e.Shut(one.client))

    def _opened(self, client: str, resumed: bool | None) -> None:
        one = self.clients.get(client)
        if one is not None:
            if resumed is False and one.stood_in:
                one.hole = _FORGOTTEN
                self._save(one)
            removed = tuple(text for text in one.removed if text not in one.subscriptions)
            if removed:
                self._out.append(e.Unsubscribe(client, removed))
            self._subscribe(one, one.wanted)

    def _subscribed(self, client: str, subscriptions: tuple[str, ...], now: int) -> None:
        one = self.clients.get(client)
        if one is None or one.access != "open":
            return
        one.asked_for.difference_update(subscriptions)
        if one.asked_for:
            return
        one.access, one.ready_at = "ready", now
        one.removed.clear()  # this was asked before
        if not one.stood_in:
            one.stood_in = True
            self._save(one)
        self._tell_change(one)
        self._touch(one)
        if one.told:
            self._synchronise(one, now)

    def _synchronise(self, one: ClientProxy, now: int) -> None:
        """Before it says that it stands in.

        What the system had given to the client only is on its way then no more: it is in front of
        the ping, and if the client is cut off now, the old proxy still has it.
        """
        one.before_ping = one.buffer.last if one.state == "out" else 0
        nonce = f"{one.stay}.{one.pings}"
        one.waiting = Waiting(one.terms.sync, one.asking, nonce, [one.client], now)
        self._wait(one, one.waiting, now)

    def _tell(self, one: ClientProxy) -> None:
        told, one.told = one.told, []
        for peer, message in told:
            self._say(peer, message)

    def _access_gone(self, client: str, reason: str, now: int) -> None:
        one = self.clients.get(client)
        if one is not None:
            if one.stood_in and one.access != "broken" and not self.language.traits.suspends:
                one.hole = f"the proxy had no access to the system for a while: {reason}"[:1000]
                self._save(one)
            one.access, one.reopen_at = "broken", now + RETRY_NS
            self._touch(one)

    def _arrived(self, client: str, publication: Publication, now: int) -> None:
        one = self.clients.get(client)
        if one is None:
            return
        if (answer := one.asked.answer(publication, self.address)) is not None:
            self._out.append(e.Publish(client, answer))
        elif one.asking.is_response(publication):
            if one.waiting is not None and one.waiting.hear(publication, now):
                self._wait(self._touch(one), one.waiting, now)
        elif not one.asked.is_of_the_service(publication):
            self._keep(one, publication, now)

    def _keep(self, one: ClientProxy, publication: Publication, now: int) -> None:
        lost = one.buffer.lost
        kept, dropped = one.buffer.add(publication, now)
        if kept is not None:
            self._size_max += m.size_of(publication)
            if self.durable:
                self._out.append(e.Keep(one.client, kept.number, now, publication))
        self._trim(one, dropped)
        if one.buffer.lost != lost:
            self._save(one)
        if self._size_max > self.limits.all_size:
            self._make_room()

    def _make_room(self) -> None:
        """Who has kept most drops something."""
        buffers = {name: one.buffer for name, one in self.clients.items()}
        self._size_max = sum(buffer.size for buffer in buffers.values())
        while self._size_max > self.limits.all_size:
            name = max(buffers, key=lambda name: buffers[name].size)
            before = buffers[name].size
            self._trim(self.clients[name], buffers[name].shrink())
            self._save(self.clients[name])
            self._size_max -= before - buffers[name].size

    def _act(self, now: int) -> None:
        """What the time has come for."""
        self._hang_up(self._relays.expire(now))
        while (deadline := self._next_client()) is not None and deadline <= now:
            one = self.clients[self._deadlines[0][1]]
            self._touch(one)
            if one.access == "broken" and now >= one.reopen_at:
                self._stand_in(one, resume=True)
            if one.waiting is not None:
                self._wait(one, one.waiting, now)
            if one.state == "here" and now >= one.since + one.terms.lease_ns:
                self._go_away(one, now, silent=True)
                if one.access == "none":
                    one.hole = CUT_OFF
                    self._stand_in(one)
                    self._save(one)
            elif one.state == "away" and now >= one.since + one.terms.away_ns:
                self._destroy(one)

    def _touch(self, one: ClientProxy) -> ClientProxy:
        """Its deadline may be another one."""
        self._touched.append(one)
        return one

    def _wait(self, one: ClientProxy, waiting: Waiting, now: int) -> None:
        request = waiting.due(now)
        if request is not None:
            self._out.append(e.Publish(one.client, request))
        if waiting.over:
            one.waiting = None
            if waiting.unanswered and one.state == "here":
                self._synchronise(one, now)  # nobody is told that it stands in before it does
                return
            if waiting.unanswered and one.state == "away":
                return
            one.pinged = one.pinged or not waiting.unanswered
            if not one.pinged:
                one.hole = WENT
                self._save(one)
            if waiting.answered:  # so the client has it, and no id would remove the copy
                self._trim(one, one.buffer.drop_nameless(one.before_ping))
            if one.state == "out":
                self._go_away(one, now)
            self._tell(one)

    def _go_away(self, one: ClientProxy, now: int, silent: bool = False) -> None:
        one.state, one.since, one.silent = "away", now, silent  # who waits for a word still gets it

    # ---- downloads ---------------------------------------------------------------------------

    def _on_reach(self, peer: str, message: m.Reach, now: int) -> None:
        if message.at not in ("", self.address):
            self._relay_to(message.at, peer, message, now)
        elif message.client not in self.clients:
            self._say(peer, not_found(message, message.at, _UNKNOWN))

    def _relay_to(self, at: str, peer: str, question: Question, now: int) -> None:
        """Ask another proxy. There, `at` is empty, and nobody is to stand in."""
        refusal = self._relays.open(at, question, peer, now)
        if not refusal:
            self._out.append(e.Dial(at))
            changes = {"terms": None} if isinstance(question, m.Download) else {}
            self._say(at, msgspec.structs.replace(question, at="", **changes))
        elif not isinstance(question, m.Release):  # which is said again anyway
            self._say(peer, not_found(question, at, refusal, reached=False))

    def _on_download(self, peer: str, message: m.Download, now: int) -> None:
        if message.at not in ("", self.address):
            self._hang_up(self._relays.stop(message.client, message.key), but=message.at)
            self._relay_to(message.at, peer, message, now)
            self._relays.close(message.at, message.client, m.Reach)  # there is no need now
            return
        one = self.clients.get(message.client)
        if one is None:
            self._say(peer, not_found(message, self.address, _UNKNOWN))
        elif one.key != message.key:
            self._refuse(peer, message.client, TAKEN)
        elif message.stay >= one.stay:
            self._answer(self._touch(one), peer, message, now)
        elif message.at:  # else the client is here again already, and nobody waits there
            self._too_late(peer, message, one.stay)

    def _answer(self, one: ClientProxy, peer: str, message: m.Download, now: int) -> None:
        if not message.at:
            one.stay = message.stay  # elsewhere: what the client said before it went comes too late
        sending = one.answer(message, message.at or self.address, now)
        self._downloads[peer, one.client] = sending
        if message.at and message.terms is not None:
            self._change_to(one, one.subscriptions, message.terms)
            self._begin_stay(one, peer, message, now)
        elif one.state != "away":
            self._go_away(one, now)
        self._save(one)
        self._send(peer, one.client, sending, 0)

    def _send(self, peer: str, client: str, sending: Sending, got: int) -> None:
        for message in sending.next(got):
            self._say(peer, message)
            if message is sending.end:
                del self._downloads[peer, client]

    def _on_got(self, peer: str, message: m.Got, now: int) -> None:
        sending = self._downloads.get((peer, message.client))
        asked: list[str] = []
        if sending is not None and sending.end.download == message.download:
            self._send(peer, message.client, sending, message.number)
        elif not (asked := self._relays.downloading(message.client, peer)):
            return
        for at in asked:
            self._say(at, message)
        one = self.clients.get(message.client)
        if one is not None and one.state == "here":
            one.since = now  # a word as good as any other
            self._touch(one)

    def _on_release(self, peer: str, message: m.Release, now: int) -> None:
        if message.at not in ("", self.address):
            self._relay_to(message.at, peer, message, now)
            return
        one = self.clients.get(message.client)
        is_elsewhere = not message.at  # and says so by way of the proxy there
        if one is None:
            if is_elsewhere and message.upto == m.ALL:
                self._remember(message)
        elif one.key == message.key:
            is_away = one.stay == message.stay and one.state == "away"
            if is_elsewhere and (is_away or one.stay < message.stay):
                self._destroy(one)
                self._remember(message)
            elif message.upto != m.ALL and message.stay == one.told_stay:
                # Else another download was meant; numbers may have begun anew since.
                self._trim(one, one.buffer.drop_upto(message.upto))
                self._forgive(one)
        self._say(peer, m.Released(message.client, message.at or self.address, message.stay))

    def _forgive(self, one: ClientProxy) -> None:
        """The client knows what is missing: that was told with what it has now."""
        if one.told_hole or one.told_lost:
            one.hole = "" if one.hole == one.told_hole else one.hole
            one.buffer.lost -= one.told_lost
            one.told_hole, one.told_lost = "", 0
            self._save(one)

    # ---- what old proxies say ------------------------------------------------------------------

    def _relay(self, peer: str, message: Answer, now: int) -> None:
        relay = self._relays.find(peer, message)
        if relay is None:
            return
        relay.since = now
        question = relay.question
        if isinstance(message, m.Batch):
            self._say(relay.listener, message)
            return
        if isinstance(message, m.Refused):
            message = relay.not_found(peer, message.reason)
        if isinstance(message, m.Downloaded) and isinstance(question, m.Download):
            if message.download != question.download:
                return
            if message.found and question.terms is not None:
                self._adopt(relay.listener, question, message.subscriptions, now)
        self._say(relay.listener, msgspec.structs.replace(message, at=peer))
        if self._relays.close(peer, message.client, type(question)):
            self._hang_up([peer])

    def _adopt(
        self, peer: str, download: m.Download, subscriptions: tuple[str, ...], now: int
    ) -> None:
        """Stand in for a client from now on, with what the old proxy has subscribed to."""
        one = self._known(peer, download, now, download.terms)
        if one is not None and download.terms is not None:
            self._change_to(one, subscriptions, download.terms)
            self._begin_stay(one, peer, download, now)

    def _peer_gone(self, peer: str, reason: str) -> None:
        for download in [key for key in self._downloads if key[0] == peer]:
            del self._downloads[download]
        why = f"the old proxy at {peer} cannot be reached: {reason}"
        for relay in self._relays.lose(peer):
            if not isinstance(relay.question, m.Release):
                self._say(relay.listener, relay.not_found(peer, why, reached=False))
        self._hang_up(self._relays.forget(peer))

    # ---- small things ----------------------------------------------------------------------------

    def _say(self, peer: str, message: m.Message) -> None:
        self._out.append(e.Send(peer, message))

    def _hang_up(self, proxies: Iterable[str], but: str = "") -> None:
        self._out.extend(e.Hang(at) for at in proxies if at != but)

    def _refuse(self, peer: str, client: str, reason: str) -> None:
        self._say(peer, m.Refused(client, reason))

    def _save(self, one: ClientProxy) -> None:
        if self.durable:
            self._out.append(e.Save(one.client))

    def _trim(self, one: ClientProxy, numbers: list[int]) -> None:
        if numbers and self.durable:
            self._out.append(e.Trim(one.client, tuple(numbers)))


_HANDLERS: dict[type, Callable[..., None]] = {
    m.Hello: Proxy._on_hello,
    m.Register: Proxy._on_register,
    m.Change: Proxy._on_change,
    m.Renew: Proxy._on_renew,
    m.MoveOut: Proxy._on_move_out,
    m.Reach: Proxy._on_reach,
    m.Download: Proxy._on_download,
    m.Got: Proxy._on_got,
    m.Release: Proxy._on_release,
    m.Leave: Proxy._on_leave,
    m.Batch: Proxy._relay,
    m.Downloaded: Proxy._relay,
    m.Released: Proxy._relay,
    m.Refused: Proxy._relay,
}
