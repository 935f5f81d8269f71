"""The world: brokers, clients and links in virtual time, from one seed.

Whatever a run does follows from the seed and the calls; the trace is the same, byte for
byte, under any hash seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType

from msgspec.structs import replace

from wayfare.core.broker import (
    ALL_RELOCATIONS,
    DEFAULT_LIMITS,
    NOT_AHEAD,
    Broker,
    check_strategies,
)
from wayfare.core.changes import Changes
from wayfare.core.client import DIGEST_FROM, OUTBOX_MAX, Client
from wayfare.core.codec import NAME_MAX, encode
from wayfare.core.effects import (
    LinkAwaited,
    LinkState,
    LinkUp,
    Measured,
    Post,
    Posted,
    Received,
    Send,
    SessionEnded,
    WillPublished,
)
from wayfare.core.history import Limits
from wayfare.core.late import COUNTED, WANTED
from wayfare.core.membership import Membership, Work
from wayfare.core.messages import (
    Announce,
    AnyMessage,
    BrokerId,
    ClientId,
    LinkId,
    Notification,
    Tunnel,
    Will,
)
from wayfare.core.predicates import half_surrogate
from wayfare.core.publishers import Forecast
from wayfare.core.relocation import Naive
from wayfare.core.requests import Answered
from wayfare.core.virtual import Ahead
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.faults import Crash, Cut, Disconnect, Faults, Late, Rollback, Slow, Stall
from wayfare.sim.hosts import RETRY_NS, BrokerHost, ClientHost, Connection, Paused
from wayfare.sim.links import MS_NS, Action, Agenda, LinkSpec, Pipe
from wayfare.sim.listening import Listening

BROKER_LINK = LinkSpec(latency_ns=10 * MS_NS)
CLIENT_LINK = LinkSpec(latency_ns=2 * MS_NS)
DIRECT_LINK = LinkSpec(latency_ns=10 * MS_NS)  # between replicators; its loss is for good
SETTLE_MAX = 10_000_000  # events until quiet
LIFE = 10_000  # attachments, and publications, of one process, by far
Watcher = Callable[[str, str, AnyMessage], None]  # sender, receiver, message


class World:
    """A broker tree with its clients, in virtual time."""

    def __init__(
        self,
        seed: int = 0,
        routing: str = "covering",
        limits: Limits = DEFAULT_LIMITS,
        broker_link: LinkSpec = BROKER_LINK,
        client_link: LinkSpec = CLIENT_LINK,
        outbox_max: int = OUTBOX_MAX,
        relocation: str = "handoff",
        digest_from: int = DIGEST_FROM,
        forecast: Forecast | None = None,
        ahead: Ahead = NOT_AHEAD,
        direct_link: LinkSpec = DIRECT_LINK,
    ) -> None:
        check_strategies(routing, relocation)
        if type(seed) is not int:  # Random takes None, too, and then no run is like another
            raise UsageError(
                f"{seed!r:.60} is no seed, because the same seed gives the same run: give an int"
            )
        self.random = Random(seed)
        self.agenda = Agenda()
        self.routing = routing
        self.relocation = relocation
        self.limits = limits
        self.recalls: dict[str, int] = {}  # how often each client has asked for the past
        self.broker_link = broker_link
        self.client_link = client_link
        self.outbox_max = outbox_max
        self.digest_from = digest_from
        self.digests = 0  # attachments by digest
        self.forecast = forecast
        self.ahead = ahead
        self.direct_link = direct_link
        self.posted = 0  # messages between replicators
        self.listening = Listening(self.limits.lease_ns)
        self.brokers: dict[str, BrokerHost] = {}
        self.clients: dict[str, ClientHost] = {}
        self.edges: topology.Edges = []
        self.pipes: dict[tuple[str, str], Pipe] = {}
        self.connections: dict[LinkId, Connection] = {}
        self.events: list[Event] = []
        self.watchers: list[Watcher] = []  # of every message that is put on a link
        self.listeners: list[Callable[[Event], None]] = []  # of every event
        # What clients do with a request that they get.
        self.responder: Callable[[ClientHost, Notification], None] | None = None
        self.answered: Callable[[ClientHost, Answered], None] | None = (
            None  # ... and with an answer
        )
        self.ended: list[tuple[int, SessionEnded]] = []  # by themselves, and when
        # Connections whose client hung up, and whose broker did not get all that it had said, like its goodbye.
        self.unheard: set[LinkId] = set()
        # When members of queue groups take what is assigned to them (None: at once), and what they do with it;
        # what they got, and were done with, and when.
        self.reader: Callable[[ClientHost, Membership], None] | None = None
        self.worker: Callable[[ClientHost, Membership, Work], None] | None = None
        self.handed: list[tuple[int, str, Membership, Work]] = []
        # When something was first ready for a member: by its address, and the number that `handed` has.
        self.assigned: dict[tuple[str, tuple[int, int]], int] = {}
        self.rolled_back: set[str] = set()  # brokers whose stores went back, or were lost
        self.done: list[tuple[int, Membership, tuple[int, int]]] = []
        self.enlisted: dict[str, int] = {}  # groups, and when the first member enlisted
        self.joined: dict[str, int] = {}  # groups, and since when they are in effect
        self.quits: dict[str, int] = {}  # addresses of members, and when they left
        # Losses that were reported to each member, by its address: when, and how many; 0: an unknown number.
        self.lacking: dict[str, list[tuple[int, int]]] = {}
        self.members: list[tuple[str, Membership]] = []  # of all groups, and whose they are
        self.missed: list[tuple[int, str, str]] = []  # losses of groups: when reported, which, why
        self.faulty = False  # faults are planned
        self.sheds = False  # brokers have too little memory, now and then
        self.stopped: set[str] = set()  # brokers that crashed, or never ran; for membership only
        self.awaited: set[tuple[str, str]] = set()  # links that were never there; likewise
        self._begun_late: set[tuple[str, str]] = set()  # both directions of all that began late
        self.restoring: set[str] = set()  # those of them whose store is to be replaced; likewise
        self._unlinked: dict[tuple[str, str], int] = {}  # since when a broker knows that
        # For how long brokers were cut off that published a will: by its publisher and number.
        self.cut_off_wills: dict[tuple[str, int], int] = {}
        self.broken: list[str] = []  # faults that peers found with each other
        self.closed_messages = 0  # of connections that are no more
        self.closed_worst_ns = 0
        self.outage_ns = 0  # the longest of a broker whose links began from nothing
        # Since when a link or a broker was down, or a broker did nothing.
        self.outages: list[tuple[int, Cut | Crash | Stall]] = []
        self.unread_ns = 0  # the longest that a client did not read what had come
        # Clients whose applications took nothing, since when, and until when.
        self.unread: list[tuple[str, int, int]] = []
        self.paused: dict[LinkId, Paused] = {}  # connections of publishers that are slowed

    # Building

    def add_brokers(
        self,
        edges: Sequence[tuple[str, str]],
        alone: str | None = None,
        limits: Limits | None = None,
        own: Mapping[str, Limits] = MappingProxyType({}),
        late: Mapping[str, Late] = MappingProxyType({}),
    ) -> None:
        """All brokers and links of the tree, at once; `alone` names a single broker. Some have limits of their `own`.

        Those that are `late` start then for the first time.
        """
        if self.brokers:
            raise UsageError("the brokers are there already: name the whole tree in one call")
        if edges and alone is not None:
            raise UsageError(
                f"{alone!r:.60} cannot be alone where there are links: give either edges or `alone`"
            )
        ends = [end for edge in edges for end in edge] or ["b0" if alone is None else alone]
        for name in ends:
            _check_name(name)
        names = list(dict.fromkeys(ends))
        wrong = topology.check_tree(names, list(edges))
        if wrong is not None:
            raise UsageError(wrong)
        self.edges = list(edges)
        near = topology.neighbours(self.edges)
        for name in names:
            neighbours = [BrokerId(other) for other in near.get(name, [])]
            core = Broker(
                BrokerId(name),
                neighbours,
                self.routing,
                own.get(name, limits or self.limits),
                self.relocation,
                self.forecast,
                self.ahead,
            )
            self.brokers[name] = BrokerHost(self, core)
        for a, b in self.edges:
            up, down = self.broker_link.channels(self.random)  # up is from the one named later
            for end, other, channel in ((a, b, down), (b, a, up)):
                pipe = Pipe(
                    self.agenda,
                    self.random,
                    self.broker_link,
                    LinkId(end),
                    self.brokers[other].receive,
                    channel,
                )
                self.brokers[end].pipes[LinkId(other)] = pipe
                self.pipes[end, other] = pipe
        self._expect(late)
        self._introduce()

    def _expect(self, late: Mapping[str, Late]) -> None:
        """Some brokers are not there yet: their links begin when both ends are, and then a bit later."""
        for name, one in late.items():
            self.broker(name)
            self.stopped.add(name)
            for pipe in self._pipes_of(name):
                pipe.cut()
            self.agenda.at(one.at_ns, self._start_late, name)
        for a, b in self.edges:
            ends = [late[end] for end in (a, b) if end in late]
            if ends:
                self.awaited.add((a, b))
                self._begun_late |= {(a, b), (b, a)}
                for pipe in self.link(a, b):
                    pipe.cut()
                begins_ns = max(one.at_ns for one in ends) + max(one.link_ns for one in ends)
                self.agenda.at(begins_ns, self._begin_late, (a, b))

    def _start_late(self, name: str) -> None:
        """A broker starts for the first time: it keeps what is for neighbours that were never there."""
        self.stopped.discard(name)
        host = self.broker(name)
        for neighbour in host.core.neighbours:
            host.perform(host.step(LinkAwaited(LinkId(neighbour)), self.now))
        for pipe in self._pipes_of(name):
            pipe.heal()
        self._report_links(self._edges_of(name))

    def _begin_late(self, edge: tuple[str, str]) -> None:
        self.awaited.discard(edge)
        for pipe in self.link(*edge):
            pipe.heal()
        self._report_links([edge])

    def _introduce(self) -> None:
        """All brokers have announced themselves before the world begins.

        Each link carries at once what came to it in the round before. One by one, messages would be as many
        as the square of brokers.
        """
        told: dict[tuple[str, str], list[BrokerId]] = {}
        awaited = {(end, other) for a, b in self.awaited for end, other in ((a, b), (b, a))}

        def step(name: str, event: LinkUp | LinkAwaited | Received) -> None:
            for effect in self.brokers[name].core.step(event, 0):
                assert isinstance(effect, Send) and isinstance(effect.message, Announce)
                if (name, effect.link) in awaited:
                    self.brokers[name].perform([effect])
                else:
                    told.setdefault((name, effect.link), []).extend(effect.message.brokers)

        for end, other in self.pipes:
            if end not in self.stopped:
                there = LinkId(other)
                step(end, LinkAwaited(there) if (end, other) in awaited else LinkUp(there))
        while told:
            now, told = told, {}
            for (end, other), names in now.items():
                step(other, Received(LinkId(end), Announce(tuple(names))))
        self._report_links([one for one in self.edges if one in self.awaited])

    def add_client(
        self,
        name: str,
        broker: str,
        *,
        attach: bool = True,
        link: LinkSpec | None = None,
        expires_ns: int = 0,
        failover_ns: int = 0,
        late: bool = False,
        will: Will | None = None,
        changes: Changes | None = None,
    ) -> ClientHost:
        """A client at that broker, over a link of its own kind if one is given.

        Its session ends when it has been away for `expires_ns`; 0: for as long as the brokers allow. For a
        broker that cannot be reached it waits for `failover_ns`; likewise. With `late`, it wants what that has kept
        when it is back. Values of its state change as `changes` says.
        """
        _check_name(name)
        if name in self.clients or name in self.brokers:
            raise UsageError(f"{name} is there already")
        client = self._add_process(name, broker, link or self.client_link, expires_ns)
        client.core.failover_ns = failover_ns
        client.core.late = WANTED if late else COUNTED
        client.core.following.declare(changes or {})
        if will is not None:
            client.make_will(will)
        if attach:
            client.attach()
        return client

    def begin_anew(self, name: str, broker: str, clock: int | None = None) -> ClientHost:
        """Another process of a client begins, and remembers nothing; the earlier one is returned.

        It counts from what its clock says; by default, from above all that the earlier one can have reached.
        """
        old = self.client(name)
        self.broker(broker)
        old.replace()
        new = self._add_process(name, broker, old.link, old.core.expires_ns).core
        latest = old.core.epoch + LIFE
        self.clients[name].process = old.process + 1
        new.failover_ns, new.late = old.core.failover_ns, old.core.late
        new.following.declare(old.core.following.state.changes)
        new.begin(latest if clock is None else clock, old.process + 1)
        new.published = old.core.published + LIFE
        self.clients[name].attach()
        return old

    def _add_process(self, name: str, broker: str, link: LinkSpec, expires_ns: int) -> ClientHost:
        self.broker(broker)
        once = not issubclass(ALL_RELOCATIONS[self.relocation], Naive)
        core = Client(
            ClientId(name),
            outbox_max=self.outbox_max,
            once=once,
            digest_from=self.digest_from,
            expires_ns=expires_ns,
        )
        client = self.clients[name] = ClientHost(self, core, broker, link)
        return client

    def broker(self, name: str) -> BrokerHost:
        if name not in self.brokers:
            raise UsageError(f"there is no broker {name!r}")
        return self.brokers[name]

    def client(self, name: str) -> ClientHost:
        if name not in self.clients:
            raise UsageError(f"there is no client {name!r}: attach it first")
        return self.clients[name]

    def link(self, a: str, b: str) -> tuple[Pipe, Pipe]:
        """Both directions of a link."""
        if (a, b) not in self.pipes:
            raise UsageError(f"there is no link {a} - {b}")
        return self.pipes[a, b], self.pipes[b, a]

    # Time

    @property
    def now(self) -> int:
        return self.agenda.now

    def run_until(self, time: int) -> None:
        """Let everything happen up to this time."""
        self.agenda.run_until(time)

    def settle(self) -> None:
        """Let everything happen that is under way, until brokers only wait for something to grow old."""
        agenda = self.agenda
        left = SETTLE_MAX
        while agenda.times and not self._quiet():
            left -= agenda.run_until(agenda.times[0], most=left)
            if left <= 0:
                raise UsageError(f"no quiet after {SETTLE_MAX} events: something goes on for ever")

    def outlive(self) -> None:
        """Let time pass until everything has become as old as it may."""
        limits = self.limits
        self.run_until(self.now + limits.away_ns + limits.tombstone_ns + limits.backlog_age_ns)

    def _quiet(self) -> bool:
        """Whether nothing is on the agenda but the ticks of brokers; asked before each step."""
        if self.paused:  # what waits there will be taken
            return False
        actions = self.agenda.actions

        def waits(action: Action) -> bool:
            host = getattr(action[0], "__self__", None)
            return isinstance(host, BrokerHost) and action[0] == host.wake

        return all(map(waits, actions[self.agenda.times[0]])) and all(
            waits(action) for due in actions.values() for action in due
        )

    def post(self, sender: BrokerId, effect: Post) -> None:
        """A message between replicators: on its way, or lost."""
        self.posted += 1
        for watcher in self.watchers:
            watcher(sender, effect.broker, effect.message)
        self.listening.on_posted(effect.broker, effect.message)
        spec, random = self.direct_link, self.random
        if effect.broker not in self.brokers or (spec.loss and random.random() < spec.loss):
            self.listening.on_lost(effect.broker, effect.message, self.now)
            return
        late_ns = random.randrange(spec.jitter_ns + 1) if spec.jitter_ns else 0
        arrival = self.now + spec.latency_ns + late_ns
        self.agenda.at(arrival, self._deliver_post, (sender, effect))

    def measure_links(self) -> None:
        """Tell all brokers how long a message to each neighbour, and its answer, take."""
        for a, b in self.edges:
            there, back = self.link(a, b)
            round_trip_ns = there.spec.latency_ns + back.spec.latency_ns
            for end, other in ((a, b), (b, a)):
                host = self.brokers[BrokerId(end)]
                host.perform(host.step(Measured(LinkId(other), round_trip_ns), self.now))

    def listens_for(self, client: ClientId, epoch: int, there: BrokerId, here: BrokerId) -> bool:
        """Whether a broker was to listen ahead for a client all the time of an attachment to another one."""
        if self.ahead.learning is None:
            return here in self.ahead.nlb(there)
        return self.listening.was_asked(client, epoch, here)

    def _deliver_post(self, posted: tuple[BrokerId, Post]) -> None:
        sender, effect = posted
        if effect.broker in self.stopped or sender in self.stopped:
            self.listening.on_lost(effect.broker, effect.message, self.now)
            return
        self.listening.on_arrived(effect.broker, effect.message, self.now)
        self.brokers[effect.broker].receive(Posted(sender, effect.message))

    # Faults

    def plan(self, faults: Faults) -> None:
        """Put these faults on the agenda, or none if one of them is for what is not there."""
        self.faulty = True
        for cut in faults.cuts:
            self.link(cut.a, cut.b)
        for crash in faults.crashes:
            self.broker(crash.broker)
        for slow in faults.slow:
            self.broker(slow.broker)
        for rollback in faults.rollbacks:
            self.broker(rollback.broker)
        for stall in faults.stalls:
            self.broker(stall.broker)
        for disconnect in faults.disconnects:
            self.client(disconnect.client)
        at = self.agenda.at
        if faults.loss:
            for pipe in self.pipes.values():
                pipe.shape(_lossy(pipe.spec, faults.loss))
        for cut in faults.cuts:
            at(cut.at_ns, self.cut, cut)
        for crash in faults.crashes:
            at(crash.at_ns, self.crash, crash)
        for slow in faults.slow:
            at(slow.at_ns, self.slow_down, slow)
        for rollback in faults.rollbacks:
            if rollback.copied_ns is not None:
                at(rollback.copied_ns, self._copy, rollback)
            at(rollback.at_ns, self.roll_back, rollback)
        for stall in faults.stalls:
            at(stall.at_ns, self.stall, stall)
        for disconnect in faults.disconnects:
            at(disconnect.at_ns, self._disconnect, disconnect)

    def cut(self, cut: Cut) -> None:
        self.outages.append((self.now, cut))
        for pipe in self.link(cut.a, cut.b):
            pipe.cut()
        self._report_links([(cut.a, cut.b)])
        if cut.for_ns is not None:
            self.agenda.at(self.now + cut.for_ns, self.heal, cut)

    def heal(self, cut: Cut) -> None:
        for pipe in self.link(cut.a, cut.b):
            pipe.heal()
        self._report_links([(cut.a, cut.b)])

    def crash(self, crash: Crash, then: Callable[[Crash], None] | None = None) -> None:
        host = self.broker(crash.broker)
        if crash.broker in self.stopped:
            return
        self.stopped.add(crash.broker)
        self.outages.append((self.now, crash))
        for pipe in self._pipes_of(crash.broker):
            pipe.cut()
        self._report_links(self._edges_of(crash.broker))
        for connection in list(self.connections.values()):
            if connection.broker is host:
                host.drop_paused(connection.link)
                in_use = connection.client.connection is connection
                connection.break_off(noticed=True)
                if in_use:  # else the client has hung up, and does not care
                    self.agenda.at(self.now + RETRY_NS, self.come_back, connection.client)
        self.agenda.at(self.now + crash.for_ns, then or self.restart, crash)

    def restart(self, crash: Crash) -> None:
        self.stopped.discard(crash.broker)
        self.broker(crash.broker).reload(crash.for_ns)
        for pipe in self._pipes_of(crash.broker):
            pipe.heal()
        self._report_links(self._edges_of(crash.broker))

    def _copy(self, rollback: Rollback) -> None:
        if rollback.broker not in self.stopped:
            self.broker(rollback.broker).make_copy()

    def roll_back(self, rollback: Rollback) -> None:
        """Stop a broker, and let it start again with the copy of its store, if there is one, or without."""
        host = self.broker(rollback.broker)
        if rollback.copied_ns is None and host.can_be_saved():
            host.lose_copy()
        elif not host.copy:
            return
        if rollback.broker not in self.stopped:
            self.rolled_back.add(rollback.broker)
            self.restoring.add(rollback.broker)
            self.outage_ns = max(self.outage_ns, rollback.for_ns)
            self.crash(Crash(rollback.broker, rollback.at_ns, rollback.for_ns), self._restore)

    def _restore(self, crash: Crash) -> None:
        """The restart: each of its links begins from nothing, at both ends."""
        self.stopped.discard(crash.broker)
        self.restoring.discard(crash.broker)
        host = self.broker(crash.broker)
        host.restore_copy()
        for neighbour in host.core.neighbours:
            host.begin_link(neighbour)
            self.broker(neighbour).begin_link(crash.broker)
        for pipe in self._pipes_of(crash.broker):
            pipe.heal()
        self._report_links(self._edges_of(crash.broker))

    def _report_links(self, edges: Sequence[tuple[str, str]]) -> None:
        """Tell the brokers whether they reach each other; who is stopped learns it when it starts."""
        for a, b in edges:
            up = not any(pipe.is_down for pipe in self.link(a, b))
            for end, other in ((a, b), (b, a)):
                if up:
                    self._unlinked.pop((end, other), None)
                else:
                    self._unlinked.setdefault((end, other), self.now)
                self.brokers[end].receive(LinkState(LinkId(other), up))

    def _edges_of(self, broker: str) -> list[tuple[str, str]]:
        return [edge for edge in self.edges if broker in edge]

    def _pipes_of(self, broker: str) -> list[Pipe]:
        return [pipe for ends, pipe in self.pipes.items() if broker in ends]

    def slow_down(self, slow: Slow) -> None:
        self.broker(slow.broker).take_its_time(slow.per_message_ns)
        if slow.for_ns is not None:
            self.agenda.at(self.now + slow.for_ns, self._speed_up, slow)

    def _speed_up(self, slow: Slow) -> None:
        self.broker(slow.broker).take_its_time(0)

    def stall(self, stall: Stall) -> None:
        self.outages.append((self.now, stall))
        self.broker(stall.broker).stall(stall.for_ns)

    def _disconnect(self, fault: Disconnect) -> None:
        client = self.client(fault.client)
        if client.connection is None:
            return
        if fault.unnoticed:
            client.attach()  # beside the old connection, which still looks alive to the broker
            return
        client.disconnect()
        self.agenda.at(self.now + fault.back_after_ns, self.come_back, client)

    def come_back(self, client: ClientHost) -> None:
        unheard = (
            client.replaced and client.core.anew
        )  # nobody could tell that it is not the latest
        if client.connection is None and not client.left and not unheard:
            client.attach()

    # Watching

    def log_will(self, effect: WillPublished, broker: str) -> None:
        one = effect.notification
        since = [
            down
            for (end, other), down in self._unlinked.items()
            if end == broker and not self._was_never_there(end, other)
        ]
        if since:
            self.cut_off_wills[one.publisher, one.number] = self.now - min(since)
        self.log(
            "published",
            client=one.publisher,
            broker=broker,
            number=one.number,
            attributes=one.attributes,
            reason="will",
            path=None if effect.retain is None else list(effect.retain.names),
        )

    def _was_never_there(self, broker: str, neighbour: str) -> bool:
        """Whether nothing has come yet over a link that began late: no will waits for such a neighbour."""
        awaited = self.brokers[broker].core.convergence.awaited
        return (broker, neighbour) in self._begun_late and BrokerId(neighbour) in awaited

    def log(self, kind: str, **facts: object) -> None:
        event = Event(self.agenda.now, kind, **facts)  # type: ignore[arg-type]
        self.events.append(event)
        self.tell(event)

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def saw_sent(self, sender: str, effect: Send) -> None:
        connection = self.connections.get(effect.link)
        receiver = str(effect.link)
        if connection is not None:
            receiver = (
                connection.client.name if sender in self.brokers else connection.broker.core.name
            )
        for watcher in self.watchers:
            watcher(sender, receiver, effect.message)

    def log_messages(self) -> None:
        """Log every message that is put on a link, too."""
        self.watchers.append(self._log_sent)

    def _log_sent(self, sender: str, receiver: str, message: AnyMessage) -> None:
        inner = innermost(message)
        self.log(
            "sent",
            sender=sender,
            receiver=receiver,
            message=type(message).__name__,
            size=len(encode(message)),
            inner=None if inner is message else type(inner).__name__,
        )

    def log_tree(self) -> None:
        """Log where every broker is; the one that was named first is the root."""
        for name, path in topology.paths(self.edges, next(iter(self.brokers))).items():
            self.log("placed", broker=name, path=path)

    def in_flight(self) -> Iterator[AnyMessage]:
        """Messages that have not arrived: on a link, behind a cut, or in the queue of a slow broker."""
        for _, due, done in self.agenda.ahead(max(self.agenda.times, default=self.now)):
            for _, argument in due[done:]:
                if type(argument) is Received:
                    yield argument.message
        for pipe in self.pipes.values():
            for event in pipe.held():
                yield event.message
        for paused in self.paused.values():
            for event, _ in paused.messages:
                yield event.message

    def messages(self) -> int:
        """How many messages were put on links so far."""
        return (
            sum(pipe.messages for pipe in self.pipes.values())
            + sum(one.up.messages + one.down.messages for one in self.connections.values())
            + self.closed_messages
        )


def innermost(message: AnyMessage) -> AnyMessage:
    """What a message is about: what it carries through a tunnel, or else itself."""
    if type(message) is Tunnel and message.message is not None:
        return message.message
    return message


def _check_name(name: str) -> None:
    """Refuse what the codec refuses: otherwise it shows only where somebody encodes a message."""
    if type(name) is not str or not 0 < len(name) <= NAME_MAX or half_surrogate(name):
        raise UsageError(
            f"{name!r:.60} cannot be a name, because no message could carry it: take a text"
            f" of 1 to {NAME_MAX} characters, without halves of surrogate pairs"
        )


def _lossy(spec: LinkSpec, loss: float) -> LinkSpec:
    return replace(spec, loss=loss)
