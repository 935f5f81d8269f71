"""The world: brokers, clients and links in virtual time, from one seed.

The hosts here are as thin as those of the live network: they feed the cores with events and perform
the effects. Whatever a run does follows from the seed and the calls; the trace is the same, byte for
byte, under any hash seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from wayfare.core.broker import DEFAULT_LIMITS, Broker
from wayfare.core.client import OUTBOX_MAX, Client
from wayfare.core.codec import encode
from wayfare.core.conditions import Condition
from wayfare.core.effects import Close, Effect, LinkDown, Lost, Notify, Received, Send, Tick
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import AnyMessage, BrokerId, ClientId, LinkId
from wayfare.core.predicates import Value
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.faults import Crash, Cut, Disconnect, Faults, Slow
from wayfare.sim.links import MS_NS, Action, Agenda, LinkSpec, Pipe

BROKER_LINK = LinkSpec(latency_ns=10 * MS_NS)
CLIENT_LINK = LinkSpec(latency_ns=2 * MS_NS)
NOTICE_NS = 50 * MS_NS  # until a broker notices that a connection broke
SETTLE_MAX = 10_000_000  # events until quiet
RETRY_NS = 100 * MS_NS  # until a client tries again to reach a broker that is down

TICK = Tick()
Watcher = Callable[[str, str, AnyMessage], None]  # sender, receiver, message


class Host:
    """A core in the world: feed, perform, re-arm."""

    __slots__ = ("_armed", "agenda", "core", "next_deadline", "pipes", "step", "watchers", "world")

    def __init__(self, world: World, core: Broker | Client) -> None:
        self.world = world
        self.agenda = world.agenda
        self.watchers = world.watchers
        self.core = core
        self.step = core.step
        self.next_deadline = core.next_deadline
        self.pipes: dict[LinkId, Pipe] = {}
        self._armed: int | None = None  # Invariant: a tick is on the agenda for this time

    def receive(self, event: Received | LinkDown | Tick) -> None:
        self.perform(self.step(event, self.agenda.now))

    def perform(self, effects: list[Effect]) -> None:
        """Do what the core decided, and see when it wants to be woken."""
        pipes, watchers = self.pipes, self.watchers
        for effect in effects:
            if type(effect) is Send:
                link = effect.link
                if link in pipes:
                    if watchers:
                        self.world.saw_sent(self.core.name, effect)
                    pipes[link].send(effect.message)
            elif type(effect) is Notify:
                self.notified(effect)
            elif type(effect) is Lost:
                self.lost(effect)
            else:
                assert type(effect) is Close
                self.close(effect)
        due = self.next_deadline()
        if due is not None and (self._armed is None or due < self._armed):
            self.arm(due)

    def arm(self, due: int) -> None:
        self._armed = due
        self.agenda.at(due, self.wake, due)

    def wake(self, due: int) -> None:
        if due == self._armed:
            self._armed = None
            self.receive(TICK)

    def notified(self, effect: Notify) -> None:
        raise AssertionError(f"{self.core.name} is no client")

    def lost(self, effect: Lost) -> None:
        raise AssertionError(f"{self.core.name} is no client")

    def close(self, effect: Close) -> None:
        raise AssertionError(f"{self.core.name} cannot close links")

    def mind_fault(self, effect: Close) -> None:
        """In the world everybody keeps to the protocol; a fault is a bug."""
        if effect.fault:
            self.world.broken.append(f"{self.core.name} closed {effect.link}: {effect.reason}")


class BrokerHost(Host):
    """A broker. While it is slow, messages wait for their turn."""

    __slots__ = ("_busy_until", "_queueing", "_slow_ns", "worst_ns")
    core: Broker

    def __init__(self, world: World, core: Broker) -> None:
        super().__init__(world, core)
        self.worst_ns = 0  # the longest that a message waited here
        self._slow_ns = 0
        self._queueing = False
        self._busy_until = 0

    def receive(self, event: Received | LinkDown | Tick) -> None:
        """As `Host.receive`; what a broker mostly does is to send notifications on."""
        if self._queueing:
            self._queue(event)
            return
        agenda, pipes = self.agenda, self.pipes
        now = agenda.now
        effects = self.step(event, now)
        if self.watchers:
            self.perform(effects)
            return
        for effect in effects:
            if type(effect) is not Send:
                self.perform([effect])
            elif effect.link in pipes:
                pipes[effect.link].send(effect.message)
        due = self.next_deadline()
        if due is not None and (self._armed is None or due < self._armed):
            self.arm(due)

    def take_its_time(self, per_message_ns: int) -> None:
        """From now on a message takes so long; what waits already keeps its place."""
        self._slow_ns = per_message_ns
        self._queueing = True

    def _queue(self, event: Received | LinkDown | Tick) -> None:
        agenda = self.world.agenda
        if not self._slow_ns and self._busy_until < agenda.now:
            self._queueing = False
            self._leave_queue(event)
            return
        self._busy_until = max(self._busy_until, agenda.now) + self._slow_ns
        self.worst_ns = max(self.worst_ns, self._busy_until - agenda.now)
        agenda.at(self._busy_until, self._leave_queue, event)

    _leave_queue = Host.receive

    def close(self, effect: Close) -> None:
        self.mind_fault(effect)
        connection = self.world.connections.get(effect.link)
        if connection is not None:
            connection.break_off(noticed=True)


class Connection:
    """A client's connection to a broker; the same link id at both ends."""

    __slots__ = ("broker", "client", "down", "link", "up", "world")

    def __init__(
        self, client: ClientHost, broker: BrokerHost, link: LinkId, spec: LinkSpec
    ) -> None:
        world = client.world
        self.world, self.client, self.broker, self.link = world, client, broker, link
        self.up = Pipe(world.agenda, world.random, spec, link, broker.receive)
        self.down = Pipe(world.agenda, world.random, spec, link, client.receive)
        client.pipes[link] = self.up
        broker.pipes[link] = self.down
        world.connections[link] = self

    def break_off(self, *, noticed: bool) -> None:
        """Both directions are gone. Without `noticed`, the broker finds out later."""
        self.up.drop()
        self.down.drop()
        self.client.pipes.pop(self.link, None)
        self.client.receive(LinkDown(self.link))
        self.client.gone(self)
        self.world.agenda.at(self.world.now + (0 if noticed else NOTICE_NS), self._noticed)

    def hang_up(self) -> None:
        """The client goes; what it sent still arrives, what comes down does not."""
        self.down.drop()
        self.client.pipes.pop(self.link, None)
        self.client.gone(self)
        self.world.agenda.at(self.world.now + NOTICE_NS, self._end)

    def _end(self, _: None) -> None:
        if len(self.up):
            self.world.agenda.at(self.world.now + NOTICE_NS, self._end)
        else:
            self._noticed(None)

    def _noticed(self, _: None) -> None:
        world = self.world
        if world.connections.pop(self.link, None) is not None:
            world.closed_messages += self.up.messages + self.down.messages
            world.closed_worst_ns = max(world.closed_worst_ns, self.worst_ns())
            self.broker.pipes.pop(self.link, None)
            self.broker.receive(LinkDown(self.link))

    def worst_ns(self) -> int:
        return max(self.up.worst_ns, self.down.worst_ns)


class ClientHost(Host):
    """A client, and what its application does."""

    __slots__ = ("connection", "home", "left", "received")
    core: Client

    def __init__(self, world: World, core: Client, home: str) -> None:
        super().__init__(world, core)
        self.home = home  # the broker that it attaches to when none is named
        self.connection: Connection | None = None
        self.left = False
        self.received: list[Notify] = []

    @property
    def name(self) -> str:
        return self.core.name

    # Application

    def attach(self, broker: str | None = None) -> None:
        """Attach at this broker, where it was before by default, leaving a connection behind."""
        world = self.world
        self.home = broker or self.home
        host = world.broker(self.home)
        if self.connection is not None:
            self.connection.break_off(noticed=False)
        self.left = False
        if self.home in world.stopped:
            world.agenda.at(world.now + RETRY_NS, world.come_back, self)
            return
        link = LinkId(f"{self.name}#{self.core.epoch + 1}")
        self.connection = Connection(self, host, link, world.client_link)
        world.log("attached", client=self.name, broker=self.home, epoch=self.core.epoch + 1)
        self.perform(self.core.attach(BrokerId(self.home), link))

    def detach(self, *, leave: bool = False) -> None:
        """Say goodbye; with `leave`, for good."""
        if self.connection is not None:
            self.left = leave
            if leave:
                self.world.log("left", client=self.name, broker=self.home, epoch=self.core.epoch)
            self.perform(self.core.detach(leave=leave))

    def disconnect(self) -> None:
        """The connection breaks without a word."""
        if self.connection is not None:
            self.connection.break_off(noticed=False)

    def subscribe(self, filter: str | Filter | Condition) -> Filter:
        wanted = as_filter(filter)
        self.world.log("subscribed", client=self.name, filter=wanted)
        self.perform(self.core.subscribe(wanted))
        return wanted

    def unsubscribe(self, filter: str | Filter | Condition) -> None:
        wanted = as_filter(filter)
        self.world.log("unsubscribed", client=self.name, filter=wanted)
        self.perform(self.core.unsubscribe(wanted))

    def advertise(self, filter: str | Filter | Condition) -> Filter:
        offered = as_filter(filter)
        self.world.log("advertised", client=self.name, filter=offered)
        self.perform(self.core.advertise(offered))
        return offered

    def unadvertise(self, filter: str | Filter | Condition) -> None:
        offered = as_filter(filter)
        self.world.log("unadvertised", client=self.name, filter=offered)
        self.perform(self.core.unadvertise(offered))

    def publish(self, attributes: Mapping[str, Value], payload: bytes = b"") -> None:
        effects = self.core.publish(attributes, payload)
        self.world.log(
            "published",
            client=self.name,
            number=self.core.published,
            attributes=dict(attributes),
        )
        self.perform(effects)

    # Host

    def notified(self, effect: Notify) -> None:
        self.received.append(effect)
        notification, core = effect.notification, self.core
        self.world.record(
            Event(
                self.agenda.now,
                "delivered",
                client=core.name,
                publisher=notification.publisher,
                number=notification.number,
                delivery=core.delivered,
                attributes=notification.attributes,
            )
        )

    def lost(self, effect: Lost) -> None:
        self.world.log("lost", client=self.name, count=effect.count, reason=effect.reason)

    def close(self, effect: Close) -> None:
        self.mind_fault(effect)
        if self.connection is not None and self.connection.link == effect.link:
            self.connection.hang_up()

    def gone(self, connection: Connection) -> None:
        if self.connection is connection:
            self.connection = None
            self.world.log("detached", client=self.name, broker=self.home, epoch=self.core.epoch)


def as_filter(given: str | Filter | Condition) -> Filter:
    """The filter that a text, a condition or a filter is."""
    if isinstance(given, Filter):
        return given
    return Filter.parse(given) if isinstance(given, str) else Filter.where(given)


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
    ) -> None:
        if routing not in STRATEGIES:
            raise UsageError(f"unknown routing {routing!r}: choose one of {', '.join(STRATEGIES)}")
        self.random = Random(seed)
        self.agenda = Agenda()
        self.routing = routing
        self.limits = limits
        self.broker_link = broker_link
        self.client_link = client_link
        self.outbox_max = outbox_max
        self.brokers: dict[str, BrokerHost] = {}
        self.clients: dict[str, ClientHost] = {}
        self.edges: topology.Edges = []
        self.pipes: dict[tuple[str, str], Pipe] = {}
        self.connections: dict[LinkId, Connection] = {}
        self.events: list[Event] = []
        self.watchers: list[Watcher] = []  # of every message that is put on a link
        self.listeners: list[Callable[[Event], None]] = []  # of every event
        self.stopped: set[str] = set()  # crashed brokers, for membership only
        self.broken: list[str] = []  # faults that peers found with each other
        self.closed_messages = 0  # of connections that are no more
        self.closed_worst_ns = 0

    # Building

    def add_brokers(
        self,
        edges: Sequence[tuple[str, str]],
        alone: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        """All brokers and links of the tree, at once; `alone` names a single broker."""
        names = list(dict.fromkeys(end for edge in edges for end in edge)) or [alone or "b0"]
        wrong = topology.check_tree(names, list(edges))
        if wrong is not None:
            raise UsageError(wrong)
        self.edges = list(edges)
        near = topology.neighbours(self.edges)
        for name in names:
            neighbours = [BrokerId(other) for other in near.get(name, [])]
            core = Broker(BrokerId(name), neighbours, self.routing, limits or self.limits)
            self.brokers[name] = BrokerHost(self, core)
        for a, b in self.edges:
            for end, other in ((a, b), (b, a)):
                receive = self.brokers[other].receive
                pipe = Pipe(self.agenda, self.random, self.broker_link, LinkId(end), receive)
                self.brokers[end].pipes[LinkId(other)] = pipe
                self.pipes[end, other] = pipe

    def add_client(self, name: str, broker: str, *, attach: bool = True) -> ClientHost:
        if name in self.clients or name in self.brokers:
            raise UsageError(f"{name} is there already")
        self.broker(broker)
        core = Client(ClientId(name), outbox_max=self.outbox_max)
        client = self.clients[name] = ClientHost(self, core, broker)
        if attach:
            client.attach()
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
            left -= agenda.step()
            if left < 0:
                raise UsageError(f"no quiet after {SETTLE_MAX} events: something goes on for ever")

    def _quiet(self) -> bool:
        """Whether nothing is on the agenda but the ticks of brokers; asked before each step."""
        actions = self.agenda.actions

        def waits(action: Action) -> bool:
            host = getattr(action[0], "__self__", None)
            return isinstance(host, BrokerHost) and action[0] == host.wake

        return all(map(waits, actions[self.agenda.times[0]])) and all(
            waits(action) for due in actions.values() for action in due
        )

    # Faults

    def plan(self, faults: Faults) -> None:
        """Put these faults on the agenda."""
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
        for disconnect in faults.disconnects:
            at(disconnect.at_ns, self._disconnect, disconnect)

    def cut(self, cut: Cut) -> None:
        for pipe in self.link(cut.a, cut.b):
            pipe.cut()
        if cut.for_ns is not None:
            self.agenda.at(self.now + cut.for_ns, self.heal, cut)

    def heal(self, cut: Cut) -> None:
        for pipe in self.link(cut.a, cut.b):
            pipe.heal()

    def crash(self, crash: Crash) -> None:
        host = self.broker(crash.broker)
        if crash.broker in self.stopped:
            return
        self.stopped.add(crash.broker)
        for pipe in self._pipes_of(crash.broker):
            pipe.cut()
        for connection in list(self.connections.values()):
            if connection.broker is host:
                in_use = connection.client.connection is connection
                connection.break_off(noticed=True)
                if in_use:  # else the client has hung up, and does not care
                    self.agenda.at(self.now + RETRY_NS, self.come_back, connection.client)
        self.agenda.at(self.now + crash.for_ns, self.restart, crash)

    def restart(self, crash: Crash) -> None:
        self.stopped.discard(crash.broker)
        for pipe in self._pipes_of(crash.broker):
            pipe.heal()

    def _pipes_of(self, broker: str) -> list[Pipe]:
        return [pipe for ends, pipe in self.pipes.items() if broker in ends]

    def slow_down(self, slow: Slow) -> None:
        self.broker(slow.broker).take_its_time(slow.per_message_ns)
        if slow.for_ns is not None:
            self.agenda.at(self.now + slow.for_ns, self._speed_up, slow)

    def _speed_up(self, slow: Slow) -> None:
        self.broker(slow.broker).take_its_time(0)

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
        if client.connection is None and not client.left:
            client.attach()

    # Watching

    def log(self, kind: str, **facts: object) -> None:
        self.record(Event(self.agenda.now, kind, **facts))  # type: ignore[arg-type]

    def record(self, event: Event) -> None:
        self.events.append(event)
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
        self.log(
            "sent",
            sender=sender,
            receiver=receiver,
            message=type(message).__name__,
            size=len(encode(message)),
        )

    def messages(self) -> int:
        """How many messages were put on links so far."""
        return (
            sum(pipe.messages for pipe in self.pipes.values())
            + sum(one.up.messages + one.down.messages for one in self.connections.values())
            + self.closed_messages
        )


def _lossy(spec: LinkSpec, loss: float) -> LinkSpec:
    return LinkSpec(spec.latency_ns, spec.jitter_ns, spec.bandwidth_bps, loss, spec.retransmit_ns)
