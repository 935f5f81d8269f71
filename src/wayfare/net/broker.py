"""A broker on sockets: the core decides, this performs.

    bytes -> Connection -> on_messages -> core.step -> perform -> frames, written at the end of the turn

Everything that changes the core is an event, and goes through `_step`. What is written leaves in `_turn`, once for
each turn of the loop, behind whatever the journal has to keep: so nothing is acknowledged before it is safe.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

from msgspec.structs import replace

from wayfare.core.broker import DEFAULT_LIMITS, NOT_AHEAD, Broker, check_ahead
from wayfare.core.codec import encode
from wayfare.core.effects import (
    Close,
    Effect,
    Event,
    Exceeded,
    Granted,
    LinkAwaited,
    LinkDown,
    LinkState,
    LinkUp,
    Measured,
    Pause,
    Post,
    Posted,
    Pressed,
    Publications,
    Received,
    Resume,
    RolledBack,
    Send,
    SessionEnded,
    Stalled,
    Tick,
    WillPublished,
)
from wayfare.core.history import SECOND_NS, Limits
from wayfare.core.memory import FILTER_BYTES
from wayfare.core.messages import (
    Advertise,
    AnyMessage,
    Attach,
    BrokerId,
    Challenge,
    ClientId,
    Deliver,
    Follow,
    Hello,
    Join,
    LinkId,
    Login,
    Notification,
    Peer,
    Peers,
    Ping,
    Proof,
    Publish,
    Refused,
    Subscribe,
    Took,
)
from wayfare.core.saving import check_savable
from wayfare.core.virtual import Ahead
from wayfare.errors import ProtocolError, StoreError, UsageError
from wayfare.net.accounts import Accounts
from wayfare.net.addresses import Address
from wayfare.net.alarm import Alarm
from wayfare.net.audit import Audit
from wayfare.net.bans import Bans
from wayfare.net.calls import Calls
from wayfare.net.connection import Connection, Traffic, Turn
from wayfare.net.disk import DiskGuard
from wayfare.net.door import Door
from wayfare.net.enforcement import Enforcement
from wayfare.net.frames import Frames
from wayfare.net.heartbeat import HEARTBEAT_S, Heartbeats
from wayfare.net.journal import records_of, recover, snapshot_of
from wayfare.net.limits import DEFAULT_NET_LIMITS, NetLimits
from wayfare.net.links import Link
from wayfare.net.login_limits import LoginLimits
from wayfare.net.logs import printable, tell
from wayfare.net.memory import MemoryGuard
from wayfare.net.pauses import Pauses
from wayfare.net.peers import PeerNet
from wayfare.net.revocation import Revocation
from wayfare.net.security import Tls
from wayfare.net.stalls import Stalls, uptime_ns, watch
from wayfare.net.store import GaveUp, Out, Resumed, Started, Store
from wayfare.net.strangers import Strangers

MORE_FILTERS = (Subscribe, Advertise, Follow)  # refused while there is no memory left
EAGER_BYTES = 4 * 1024 * 1024  # of deliveries that are encoded in one turn, before they are written
SMOOTHING = 0.125  # of a round trip, in the mean of those before
NOTABLE = 0.25  # change of that mean of which the core is told, as a share
WARN_EVERY_S = 60.0  # of a journal that is too long

logger = logging.getLogger("wayfare.broker")


class BrokerHost:
    """One broker, its links to neighbours, and the connections of its clients."""

    def __init__(
        self,
        name: str,
        neighbours: Mapping[str, Address | None],
        *,
        routing: str = "covering",
        relocation: str = "handoff",
        limits: Limits = DEFAULT_LIMITS,
        heartbeat_s: float = HEARTBEAT_S,
        store: Store | None = None,
        tls: Tls | None = None,
        secret: str | None = None,
        accounts: Accounts | None = None,
        net_limits: NetLimits = DEFAULT_NET_LIMITS,
        ahead: Ahead = NOT_AHEAD,
        peers: Mapping[str, Address] | None = None,
        audit: Audit | None = None,
        bans: Bans | None = None,
    ) -> None:
        """Neighbours with an address are called, the others call.

        store      what it remembers when its process ends; without, it forgets
        tls        certificates, for wayfares:// addresses
        secret     that neighbours have to know
        accounts   of clients; without, everybody may come under any name
        ahead      where clients go, and so where brokers listen ahead for them
        peers      where other brokers are, beside neighbours: their replicators speak to each other
        audit      where logins, refusals and changes are recorded; without, nowhere
        bans       who may not come for a time
        """
        if store is not None:
            check_savable(relocation)
        if relocation == "home":
            check_ahead(relocation, ahead.listens(BrokerId(name)))
        self.core = Broker(
            BrokerId(name),
            [BrokerId(one) for one in neighbours],
            routing,
            replace(limits, greeting_ns=int(net_limits.greeting_s * SECOND_NS)),
            relocation,
            ahead=ahead,
        )
        self.name = name
        self.address: Address | None = None  # where it listens
        self.connections: dict[str, Connection] = {}  # by link; clients' only
        life = secrets.randbits(62) + 1
        self.links = {BrokerId(one): Link(BrokerId(one), life, net_limits) for one in neighbours}
        self.routed = 0  # notifications
        self.attachments = self.moves = 0  # of clients; and of those, from another broker
        self.traffic = {"client": Traffic(), "stranger": Traffic()}  # a link has its own
        self.ended: Counter[tuple[str, str, str]] = Counter()  # connections: whose, how and why
        self.ended_sessions: Counter[str] = Counter()  # by themselves: why
        self.reloads: list[Callable[[], None]] = []  # of what goes by the same files
        self.wills = 0  # that were published
        self.started_s = 0.0  # on the monotonic clock
        self.failed = asyncio.Event()
        self.failure: StoreError | None = None  # why it stopped by itself
        self.rollback = ""  # how its store turned out to be older than what it had promised
        self._tell = partial(tell, logger, broker=name)
        self._store = store
        self._clock = time.time_ns() - uptime_ns()
        self._addresses = dict(neighbours)
        self._heartbeat_s = heartbeat_s
        self._net_limits = net_limits
        self.audit = audit or Audit(name, "broker")
        self._bans = bans or Bans()
        self._door = Door(
            name, neighbours, tls, secret, accounts, net_limits, self.audit, self._bans
        )
        self._enforcement = (
            Enforcement(self, accounts, self._door.members, net_limits) if accounts else None
        )
        self._revocation = (
            Revocation(name, tls.crl, self._door, self._everybody, self.audit)
            if tls is not None and tls.crl
            else None
        )
        self.peers = PeerNet(name, self, self._door, net_limits, self._posted)
        self.peers.meet({**neighbours, **(peers or {})})
        self._pauses = Pauses(
            name, self.links, self.connections, net_limits.messages_per_second, self._take
        )
        self._calls = Calls(name, self.links, self._door, partial(self._connection, called=True))
        self._strangers = Strangers(name, net_limits)
        self._heartbeats = Heartbeats(heartbeat_s)
        self._stalls = Stalls()
        self._turn = Turn(self._flush)
        self.disk = DiskGuard(
            net_limits.disk_bytes,
            self.core,
            self.links,
            partial(self._put_away, close=False),
            self._press_later,
            self._exceeded,
            self._give_up,
            self._tell,
        )
        self.memory = MemoryGuard(
            self.core,
            self.links,
            self._exceeded,
            self._give_up,
            self._tell,
            self._turn.ask,
            self._press,
            self.connections,
        )
        self._dirty: dict[Connection, None] = {}  # have something to write
        self._closing: list[Connection] = []  # are closed at the end of the turn
        self._frames = Frames()
        self._sent_bytes = 0  # in frames of deliveries that are not written yet, roughly
        self._ids = count(1)
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._alarm = Alarm(self._wake)
        self.stopping = False
        self._warned_s = -WARN_EVERY_S  # when it last warned of a long journal

    # Life

    async def start(self, address: Address) -> Address:
        """Listen there, and call the neighbours that have an address. Returns where it listens."""
        loop = asyncio.get_running_loop()
        if self._store is not None:
            self._recover(self._store)
        for neighbour, link in self.links.items():
            if not self.core.convergence.has_begun(neighbour):
                link.expect()
                self._step(LinkAwaited(LinkId(neighbour)), self.now())
            self._step(LinkState(LinkId(neighbour), up=False), self.now())
        self._server = await loop.create_server(
            self._connection,
            address.host,
            address.port,
            **self._door.options(address),
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = Address(host, port, address.tls)
        self.started_s = time.monotonic()
        self._stalls.come_by()
        work = (self._beat(), watch(self._mind_stall), self._bans.watch(self._mind_bans))
        self._tasks += [loop.create_task(one) for one in work]
        if self._enforcement is not None:
            self._tasks.append(loop.create_task(self._enforcement.watch()))
        if self._revocation is not None:
            self._tasks.append(loop.create_task(self._revocation.watch()))
        for name, there in self._addresses.items():
            if there is not None:
                self._tasks.append(loop.create_task(self._calls.keep_up(BrokerId(name), there)))
        self._tell(
            logging.INFO,
            "listening",
            "%(broker)s listens at %(address)s",
            address=self.address,
        )
        self._door.warn(self.address)
        self.audit.record("started", what=f"listens at {self.address}")
        return self.address

    def reload(self) -> None:
        """Go by certificates and accounts as they are in their files now, also for who is here."""
        self.audit.reopen()
        self._door.reload()
        for one in self.reloads:
            one()
        if self._revocation is not None:
            self._revocation.enforce()
        if self._enforcement is not None:
            task = asyncio.get_running_loop().create_task(self._enforcement.enforce())
            self._tasks.append(task)
            task.add_done_callback(self._tasks.remove)
        self._mind_bans()

    async def stop(self) -> None:
        """Close everything cleanly."""
        self.stopping = True
        if self._server is not None:
            loop = asyncio.get_running_loop()
            for listening in self._server.sockets:
                loop.remove_reader(listening)
            await asyncio.sleep(0)  # who is just coming in is in, and can be closed
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._door.close()
        await self.peers.stop()
        self._alarm.clear()
        self._heartbeats.stop()
        self._flush()
        for link in self.links.values():
            link.confirm(all=True)
        for connection in [*self.connections.values(), *self._strangers, *self._linked()]:
            connection.close(f"{self.name} stops")
        self._flush()
        await asyncio.sleep(0)  # what was closed is reported
        if self._store is not None and self.failure is None:
            try:
                self._put_away(self._store)
            except StoreError as error:
                self._fail(error)
        if self._store is not None:
            self._store.close()  # it failed, and is not needed any more
        if self._server is not None:
            await self._server.wait_closed()
        self.audit.record("stopped")
        self.audit.close()

    def _connection(self, *, called: bool = False) -> Connection:
        return Connection(self, self.name, self._net_limits, stranger=True, called=called)

    def _everybody(self) -> list[Connection]:
        """The connections of clients, neighbours, peers and strangers."""
        others = [*self._strangers, *self._linked(), *self.peers.connections()]
        return [*self.connections.values(), *others]

    def _linked(self) -> list[Connection]:
        """The connections of neighbours."""
        return [link.connection for link in self.links.values() if link.connection]

    def now(self) -> int:
        """The time of day when it started, and what has passed since: it never goes back."""
        return self._clock + uptime_ns()

    @property
    def store(self) -> Store | None:
        return self._store

    @property
    def deliveries(self) -> int:
        return self._frames.deliveries

    @property
    def gaps(self) -> int:
        return self._frames.gaps

    @property
    def logins(self) -> Mapping[str, int]:
        """Logins since the start, by what came of them."""
        return self._door.logins.results

    @property
    def login_limits(self) -> LoginLimits:
        """The failed logins here, by account and address; the admin API counts its failures there, too."""
        return self._door.logins

    @property
    def slowed(self) -> int:
        """How often a publisher was paused since the start."""
        return self._pauses.slowed

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    # What connections report

    def on_connected(self, connection: Connection) -> None:
        self._strangers.add(connection)
        if not connection.called:
            self._door.on_connected(connection)
            self._strangers.make_room()

    def on_messages(self, connection: Connection, messages: list[AnyMessage]) -> None:
        if not connection.link:
            messages = self._meet(connection, messages)
        if messages and connection.link not in self.links:
            self._pauses.on_messages(connection, messages)
            if connection.meter is not None:
                size, connection.unmetered = connection.unmetered, 0
                connection.meter.on_read(connection, messages, size)
            if self._pauses.held:
                messages = self._pauses.hold(connection, messages)
        if messages:
            self._take(connection, messages)

    def _take(self, connection: Connection, messages: list[AnyMessage]) -> None:
        link = LinkId(connection.link)
        neighbour, now = self.links.get(BrokerId(link)), self.now()
        if neighbour is None and messages and type(messages[0]) is Publish:
            messages = self._publish(connection, messages, now)
        for message in messages:
            if connection.closing:
                return  # what comes behind is not for anybody
            if type(message) is Ping:
                connection.answer(message)
                if neighbour is not None and connection.round_trip_s is not None:
                    self._measured(neighbour, connection.round_trip_s)
                    connection.round_trip_s = None
                continue
            if neighbour is None:
                if type(message) is Attach and message.client != connection.peer:
                    connection.refuse(f"{connection.peer} attaches as {message.client}")
                    return
                if type(message) is Attach and not self._may_attach(connection, message):
                    return
                if type(message) in MORE_FILTERS and not self._has_memory(connection):
                    return
                self.routed += type(message) is Publish
                self._step(Received(link, message), now)
            elif neighbour.connection is not connection:
                return  # there is a newer one, and what was not taken comes there
            elif isinstance(message, Took):
                self._forget(neighbour, connection, message)
            elif isinstance(message, Refused):
                self._tell_refused(neighbour.name, message)
                connection.close(message.reason)
            else:
                self.routed += type(message) is Notification
                self._step(Received(link, message), now)
                neighbour.take()
                self._turn.ask()  # what it sent may be kept here, and has to be confirmed

    def _publish(
        self, connection: Connection, messages: list[AnyMessage], now: int
    ) -> list[AnyMessage]:
        """Publish what comes first, all at once; what is left is something else."""
        first: list[Publish] = []
        for message in messages:
            if not isinstance(message, Publish):
                break
            first.append(message)
        self.routed += len(first)
        self._step(Publications(LinkId(connection.link), first), now)
        return messages[len(first) :]

    def on_closing(self, connection: Connection) -> None:
        """What was sent to it may say that something is safe which is not yet."""
        if self._store is None:
            connection.finish()
        else:
            self._closing.append(connection)
            self._turn.ask()

    def on_closed(self, connection: Connection) -> None:
        self._strangers.discard(connection)
        self._heartbeats.on_closed(connection)
        self._calls.on_closed(connection)
        self._dirty.pop(connection, None)
        held = self._pauses.on_closed(connection)
        self._door.on_closed(connection)
        link = connection.link
        ours = link in self.links or connection.owner is self.peers
        peer = ("broker" if ours else "client") if link else "stranger"
        self.ended[peer, connection.how, connection.why] += 1
        if connection.how == "refused":
            self._audit_refused(connection)
        if not link:
            self.traffic["stranger"].add(connection.traffic)
        neighbour = self.links.get(BrokerId(link))
        if neighbour is not None:
            if neighbour.disconnect(connection) and not self.stopping:
                self._calls.on_lost(neighbour.name)
                self._tell(
                    logging.WARNING,
                    "link_down",
                    "%(broker)s lost its link to %(peer)s: %(reason)s",
                    peer=link,
                    reason=connection.reason or "the connection was closed",
                )
                self._step(LinkState(LinkId(link), up=False), self.now())
        elif self.connections.pop(link, None) is not None:
            if connection.how in ("closed", "lost"):  # else by us: then the client sends it again
                self._take_last(LinkId(link), held)
            self._step(LinkDown(LinkId(link)), self.now())

    def _take_last(self, link: LinkId, messages: list[AnyMessage]) -> None:
        """Take what waited in a connection that is closed: nobody may send it again."""
        for message in messages:
            if link not in self.core.border.by_link:
                return
            self.routed += type(message) is Publish
            if type(message) is not Ping:
                self._step(Received(link, message), self.now())

    def _audit_refused(self, connection: Connection) -> None:
        peer, address, reason = connection.peer, connection.origin, connection.reason
        if connection.audited:
            return
        if connection.denied:
            action = connection.denied
            self.audit.record("denied", client=peer, address=address, action=action, reason=reason)
        elif connection.why == "neighbour":
            self.audit.record("link_refused", peer=peer, address=address, reason=reason)
        else:
            why = connection.why
            self.audit.record("refused", client=peer, address=address, why=why, reason=reason)

    def on_output(self, connection: Connection) -> None:
        self._dirty[connection] = None
        self._turn.ask()

    # Strangers

    def _meet(self, connection: Connection, messages: list[AnyMessage]) -> list[AnyMessage]:
        """A stranger says what it is: a neighbour by `Join`, a peer by `Peer`, a client by `Attach`."""
        first = messages[0]
        if not self._strangers.may_speak(connection):
            return []
        if isinstance(first, Hello):
            self._door.on_hello(connection)
            self.on_output(connection)
            return []
        if isinstance(first, Ping):  # it measures how near we are
            connection.answer(first)
            return []
        if isinstance(first, Login):
            self._door.log_in(connection, first)
            return []
        if isinstance(first, Challenge | Proof):
            if self._door.prove(connection, first):
                connection.send(encode(self.links[BrokerId(connection.peer)].join()))
            return []
        if isinstance(first, Refused):
            if connection.called:
                self._tell_refused(connection.peer, first)
            connection.close(first.reason)
            return []
        if isinstance(first, Join):
            return messages[1:] if self._joined(connection, first) else []
        if isinstance(first, Peer):
            if self.peers.admit(connection):
                self._strangers.discard(connection)
            return []
        if isinstance(first, Attach):
            if not (
                self._door.admits(connection, first.client) and self._has_room(connection, first)
            ):
                return []
            self._strangers.discard(connection)
            link = f"{first.client}#{next(self._ids)}"
            connection.admit(link)
            connection.count_buffers(self.memory.buffers, self._frames)
            connection.attached_ns = self.now()
            self.connections[link] = connection
            self._heartbeats.add(connection)
            connection.count_in(self.traffic["client"])
            self.attachments += 1
            self.moves += bool(first.previous) and first.previous[0][0] != self.name
            self._pauses.on_attached(connection)
            grants = self._door.grants(connection, first.client)
            if grants is not None:
                self._step(Granted(LinkId(link), grants), self.now())
            return messages
        connection.refuse(f"{type(first).__name__} before Attach or Join")
        return []

    def _has_memory(self, connection: Connection) -> bool:
        """Whether a client may have one more filter; if not, it is refused."""
        if short := self.memory.short_for(connection, FILTER_BYTES):
            connection.refuse(f"{short} has no memory left for filters", again=True)
            return False
        self._turn.ask()  # it counts at the end of the turn
        return True

    def _has_memory_for(self, connection: Connection, attach: Attach) -> bool:
        """Whether a client may have this profile; if not, it is refused. One that is here already may."""
        size = self.memory.growth(attach)
        if size and (short := self.memory.short_for(connection, size)):
            connection.refuse(f"{short} has no memory left, and so no room", again=True)
        return not connection.closing

    def _may_attach(self, connection: Connection, attach: Attach) -> bool:
        """Whether a client may say more of itself: the first time it was asked when it came."""
        link, core = LinkId(connection.link), self.core
        again = link in core.profiles.asking or link in core.border.by_link
        return not again or self._has_memory_for(connection, attach)

    def _has_room(self, connection: Connection, attach: Attach) -> bool:
        """Whether one more client may come; if not, it is refused."""
        limits, border = self._net_limits, self.core.border
        if len(self.connections) >= limits.clients:
            connection.refuse(f"{self.name} has {limits.clients} clients, and no room", again=True)
        elif self._has_memory_for(connection, attach):
            self._door.has_room(
                connection, connection.peer, lambda one: border.knows(ClientId(one))
            )
        return not connection.closing

    def _joined(self, connection: Connection, join: Join) -> bool:
        """The connection is a neighbour's: take the link up where it was."""
        link = self.links.get(BrokerId(connection.peer))
        if link is None:
            connection.refuse(f"{connection.peer} is no neighbour of {self.name}", why="neighbour")
            return False
        if not self._door.trusts(connection):
            return False
        called = self._calls.made(link.name) is connection
        if not called and not self._calls.give_way(link.name):
            connection.close("both called, and one is enough")
            return False
        if self._begins_again(link, join) and called:  # it has been told how far we were
            connection.abort("the counts of the link do not match", why="rolled_back")
            return False
        if not called:
            self._leave(link)
            if link.is_over(join):
                self._start_over(link)
            connection.send(encode(link.join()))
        self._strangers.discard(connection)
        self._calls.on_joined(link.name)
        connection.admit(link.name)
        connection.timed = self.core.replicator.ahead.measures_hops
        first = link.is_first(join)
        if link.connect(connection, join):
            if self._store is not None:
                self._store.append(Resumed(self.now(), link.name, link.known))
                self._turn.ask()
            self._tell_linked(link, "for the first time" if first else "as before")
            self._step(LinkState(LinkId(link.name), up=True), self.now())
            return True
        self._tell_linked(link, "from nothing")
        self._step(LinkUp(LinkId(link.name)), self.now())
        return True

    def _measured(self, link: Link, round_trip_s: float) -> None:
        """Tell the core how long a message to a neighbour takes, unless it is about as long as before."""
        before = link.round_trip_s
        smooth = round_trip_s if before is None else before + SMOOTHING * (round_trip_s - before)
        link.round_trip_s = smooth
        if link.told_s is None or abs(smooth - link.told_s) > NOTABLE * link.told_s:
            link.told_s = smooth
            self._step(Measured(LinkId(link.name), round(smooth * 10**9)), self.now())

    def _begins_again(self, link: Link, join: Join) -> bool:
        """Whether the counts show that the store of either end was rolled back: nothing can be repeated."""
        behind = link.is_behind(join)
        if not (behind or link.is_ahead(join)):
            return False
        self._tell(
            logging.WARNING,
            "link_rolled_back",
            "the store of %(who)s was rolled back, as its link to %(peer)s shows: the link begins from"
            " nothing, and clients that may miss something are notified",
            who=self.name if behind else link.name,
            peer=link.name if behind else self.name,
        )
        self._leave(link)
        self._start_over(link)
        if behind and not self.rollback:
            self._roll_back(f"{link.name} knows more of it")
        return True

    def _roll_back(self, why: str) -> None:
        """Report to everybody that the store forgot what was promised, and begin all links from nothing.

        Neighbours may have other tables, and other messages, than this broker remembers.
        """
        self.rollback = why
        path = self._store.path if self._store is not None else "the memory"
        self._tell(
            logging.WARNING,
            "store_rolled_back",
            "%(path)s is older than what %(broker)s has promised (%(reason)s): it goes on with what is"
            " there, and clients that may miss something are notified. See that the disk is sound, and"
            " restore copies only as the operations manual says",
            path=path,
            reason=why,
        )
        for link in self.links.values():
            if link.connection is not None:
                link.connection.abort("the store was rolled back", why="rolled_back")
            self._start_over(link)
        self._step(RolledBack(), self.now())

    def _tell_linked(self, link: Link, how: str) -> None:
        self._tell(
            logging.INFO,
            "link_up",
            "%(broker)s and %(peer)s are linked, %(how)s",
            peer=link.name,
            how=how,
        )
        address = link.connection.host if link.connection is not None else ""
        self.audit.record("link_up", peer=link.name, address=address, how=how)

    def _tell_refused(self, peer: str, refused: Refused) -> None:
        self._tell(
            logging.WARNING,
            "refused_by",
            "%(peer)s refused the link of %(broker)s: %(reason)s",
            peer=peer or "a neighbour",
            reason=printable(refused.reason),
        )
        self.audit.record("link_refused", peer=peer, reason=f"it refused us: {refused.reason}")

    def _leave(self, link: Link) -> None:
        """Nothing counts any more that comes on the connection so far."""
        if link.connection is not None:
            old, link.connection = link.connection, None
            old.close("there is a newer connection")

    def _forget(self, link: Link, connection: Connection, took: Took) -> None:
        try:
            link.forget(took.taken)
        except ProtocolError as error:
            connection.refuse(str(error))
        if self._pauses:
            self._turn.ask()

    # The core

    def _step(self, event: Event, now: int) -> None:
        if self._store is not None:
            if self.failure is not None:
                return
            for record in records_of(event, now, self.links):
                self._store.append(record)
            self._turn.ask()
        effects = self.core.step(event, now)
        if effects:
            self._perform(effects)
        due = self.core.next_deadline()
        if due is not None and due < self._alarm.due:
            self._alarm.set(due, now)

    def apply(self, event: Event) -> None:
        """Something that an operator decided."""
        self._step(event, self.now())

    def account_of(self, client: str) -> str:
        """The account that this name of a client belongs to; "" if there is none."""
        return self._door.account_of_name(client)

    def _perform(self, effects: list[Effect]) -> None:
        frames, connections = self._frames, self.connections
        if self._sent_bytes > EAGER_BYTES:
            self._put_off(effects)
        frame = b""
        for effect in effects:
            if type(effect) is Send:
                connection = connections.get(effect.link)
                message = effect.message
                if connection is None:
                    self._send_on(effect)
                elif type(message) is Deliver:
                    if not connection.out:
                        if connection.lazy:
                            connection.send_later(message)
                            continue
                        self.on_output(connection)
                    frame = frames.of_delivery(message)
                    if frame:
                        connection.out.append(frame)
                    else:
                        connection.send_later(message)
                else:
                    connection.send(frames.of(message))
            elif type(effect) is Close:
                self._close(effect)
            elif type(effect) is Post:
                self.peers.post(effect.broker, effect.message)
            elif type(effect) is SessionEnded:
                self._tell_ended(effect)
            elif type(effect) is Pause or type(effect) is Resume:
                self._pace(effect)
            elif type(effect) is WillPublished:
                self.wills += 1
                who = printable(effect.client)
                what = "%(client)s is gone: its will was published"
                self._tell(logging.INFO, "will_published", what, client=who)
        self._sent_bytes += len(effects) * len(frame)  # roughly

    def _put_off(self, effects: list[Effect]) -> None:
        """Much was encoded in this turn: what comes now is encoded when it is written."""
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Deliver:
                connection = self.connections.get(effect.link)
                if connection is not None:
                    connection.be_lazy()

    def _tell_ended(self, ended: SessionEnded) -> None:
        self.ended_sessions[ended.why] += 1
        away_s = round(ended.away_ns / 1e9, 1)
        self._tell(
            logging.INFO,
            "session_ended",
            "the session of %(client)s has ended (%(why)s), with %(waiting)s notifications for it: its client"
            " has been away for %(away_s)s s",
            client=printable(ended.client),
            why=ended.why,
            waiting=ended.waiting,
            away_s=away_s,
        )
        client, account = ended.client, ended.account
        self.audit.record("session_ended", client=client, account=account, why=ended.why)

    def _pace(self, effect: Pause | Resume) -> None:
        connection = self.connections.get(effect.link)
        if connection is not None:
            (self._pauses.slow if type(effect) is Pause else self._pauses.go_on)(connection)

    def _press(self, account: str = "") -> None:
        """Slow the publishers of the largest consumer. That is not written down: it ends soon."""
        now = self.now()
        effects = self.core.step(Pressed(account), now)
        self._alarm.set(self.core.next_deadline(), now)
        if effects:
            self._perform(effects)
            self._turn.ask()

    def _press_later(self) -> None:
        """The same, when this turn is safe: what is sent to neighbours belongs to the next one."""
        asyncio.get_running_loop().call_soon(self._press)

    def _send_on(self, effect: Send) -> None:
        """To a neighbour; a client that is gone gets nothing."""
        neighbour = self.links.get(BrokerId(effect.link))
        if neighbour is not None and neighbour.keeps:
            frame = self._frames.of(effect.message)
            neighbour.send(frame)
            if self._store is not None:
                self._store.append(Out(0, effect.link, frame))
            if neighbour.full:
                self._turn.ask()
                if not self._pauses:
                    self._pauses.mind()

    def _exceeded(self, exceeded: Exceeded) -> None:
        self._step(exceeded, self.now())

    def _posted(self, broker: BrokerId, message: Peers) -> None:
        self._step(Posted(broker, message), self.now())

    def _close(self, effect: Close) -> None:
        connection = self.connections.pop(effect.link, None)
        if connection is None:
            neighbour = self.links.get(BrokerId(effect.link))
            connection = neighbour.connection if neighbour is not None else None
        if connection is None:
            return
        if connection.closing:
            return  # an operator was faster
        if effect.fault:
            connection.denied = effect.denied
            connection.refuse(effect.reason, why="grant" if effect.denied else "protocol")
        else:
            connection.send(encode(Refused(effect.reason, effect.again)))
            connection.close(effect.reason)

    def _wake(self) -> None:
        self._mind_stall()
        self._step(Tick(), self.now())

    # Disk

    def _recover(self, store: Store) -> None:
        """Be what this broker was when its process ended."""
        last = recover(store, self.core, self.links)
        self._clock = max(self._clock, last + 1 - uptime_ns())
        store.append(Started(self.now(), ""))
        for link in self.links.values():
            link.start()
        if last:  # nobody could be heard while the process was down
            self._step(Stalled(self.now() - last), self.now())
        core = self.core
        for gone in [*core.border.by_link, *core.profiles.asking, *core.intakes.taking]:
            self._step(LinkDown(gone), self.now())  # their connections ended with the process
        if store.rollback:
            self._roll_back(store.rollback)
        self._put_away(store, close=False)  # also its life, before anybody hears of it
        self._step(Tick(), self.now())

    def _keep(self, store: Store) -> bool:
        """Make the turn safe. If that fails, nothing of it leaves, and the broker stops."""
        try:
            store.commit()
            if store.is_long():
                self._put_away(store, close=False)
                self._mind_journal(store)
            self.disk.mind(store)
        except StoreError as error:
            self._fail(error)
        return self.failure is None

    def _mind_journal(self, store: Store) -> None:
        """Warn of a journal that no snapshot takes the place of: it fills the disk in the end."""
        late = time.monotonic() - self._warned_s
        if store.is_overdue and late > WARN_EVERY_S:
            self._warned_s = time.monotonic()
            self._tell(
                logging.WARNING,
                "journal_long",
                "the journal of %(broker)s has %(bytes)s bytes, because no snapshot can take its place:"
                " if this lasts, restart the broker before the disk is full",
                bytes=store.journal_bytes,
            )

    def _put_away(self, store: Store, *, close: bool = True) -> None:
        """Let a snapshot take the place of the journal, unless something is half done."""
        self._perform(self.core.pay())
        if self.core.is_quiet():
            store.replace(snapshot_of(self.core, self.links, self.now()))
        else:
            store.commit()
        if close:
            store.close()
            self._store = None

    def _fail(self, error: StoreError) -> None:
        if self.failure is None:
            self._tell(
                logging.ERROR,
                "store_failed",
                "%(broker)s stops: %(reason)s",
                reason=error,
            )
            self.failure = error
            if self._server is not None:
                self._server.close()  # nobody is to wait for an answer
            others = [*self._strangers, *self._closing, *self._linked(), *self.peers.connections()]
            for connection in [*self.connections.values(), *others]:
                connection.abort(str(error), why="store")
            self.failed.set()

    # Time, and too much of everything

    def _flush(self) -> None:
        """The end of a turn of the loop: make it safe, then write what was sent."""
        self._mind_stall()
        for link in self.links.values():
            if link.is_hopeless():
                self._give_up(link)
        self._pauses.mind()
        self.memory.mind()
        self._pauses.short = self.memory.near
        if self._store is not None and not self._keep(self._store):
            return
        more = False
        for link in self.links.values():
            link.confirm()
            more |= link.push()
        self._sent_bytes = 0
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            connection.flush()
        closing, self._closing = self._closing, []
        for connection in closing:
            connection.finish()
        if more:
            self._turn.ask()

    def _give_up(self, link: Link) -> None:
        """Forget what waits for a neighbour, or who waits for it would wait for ever.

        When it comes the link begins from nothing, and who may miss something is told.
        """
        self._tell(
            logging.WARNING,
            "given_up",
            "%(broker)s gives up the %(count)s messages for %(peer)s, which will be told everything anew",
            peer=link.name,
            count=len(link),
        )
        self._start_over(link)
        for connection in (link.connection, self._calls.made(link.name)):
            if connection is not None:  # it has been told how far we were
                connection.abort("what it had to be told was given up", why="given_up")

    def _start_over(self, link: Link) -> None:
        """Keep nothing for a neighbour: the next connection begins a new generation of the link."""
        now = self.now()
        link.give_up(now)
        if self._store is not None:
            self._store.append(GaveUp(now, link.name))
            self._turn.ask()

    def _mind_stall(self) -> None:
        """If this process did not run for a while, extend the time-outs that judge others.

        What they sent meanwhile is not read yet. The alarm goes by a clock that may have stood still.
        """
        for_ns = self._stalls.come_by()
        if not for_ns or self.stopping:
            return
        self._tell(
            logging.WARNING,
            "stalled",
            "%(broker)s did not run for %(seconds)s s, because its process was stopped, suspended or busy:"
            " others get so much more time to answer",
            seconds=round(for_ns / 1e9, 1),
        )
        for link in self.links.values():
            link.extend_absence(for_ns / 1e9)
        self._strangers.extend_greetings(for_ns / 1e9)
        self._alarm.clear()
        self._step(Stalled(for_ns), self.now())

    def _mind_bans(self) -> None:
        """Disconnect whoever is banned now."""
        try:
            if not self._bans.refresh(self.audit):
                return
        except UsageError as error:
            says = "%(broker)s goes on with the bans that it has: %(reason)s"
            self._tell(logging.WARNING, "bans_unread", says, reason=error)
            return
        for connection in [*self.connections.values(), *self._strangers]:
            if not connection.closing:
                self._door.bans(connection, connection.peer, connection.account)

    async def _beat(self) -> None:
        """Now and then: say that we are here, and find out who is not."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._mind_stall()
            self._turn.ask()  # a neighbour may be away for too long
            for link in self.links.values():
                link.confirm(all=True)
            self.peers.beat()
            if self._store is not None:
                self._store.settle()
            for connection in [*self._linked(), *self.peers.connections()]:
                self._heartbeats.check(connection)
            self._door.forget(loop.time())
            self._strangers.reassure()
            self._strangers.refuse_late()
