"""The hosts of the simulated world, as thin as those of the live network.

They feed a core with events, perform the effects, and wake it when it asked to be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from wayfare.core import membership as ms
from wayfare.core import messages as m
from wayfare.core.broker import LATER, Broker
from wayfare.core.client import Client
from wayfare.core.conditions import Condition
from wayfare.core.effects import (
    Close,
    Confirmed,
    Effect,
    Ended,
    Exceeded,
    Interested,
    LinkDown,
    LinkState,
    LinkUp,
    Lost,
    Notify,
    Pause,
    Post,
    Posted,
    Received,
    Resume,
    RolledBack,
    Send,
    SessionEnded,
    Settled,
    Stalled,
    Tick,
    Unheard,
    WillPublished,
    passes_pauses,
)
from wayfare.core.filters import Filter
from wayfare.core.home import Home
from wayfare.core.membership import Membership
from wayfare.core.messages import (
    Area,
    Attach,
    BrokerId,
    Current,
    Deliver,
    Gap,
    Here,
    HereGap,
    Late,
    LinkId,
    Notification,
    Publish,
    Retain,
    State,
    Terms,
    Will,
    terms_text,
)
from wayfare.core.predicates import Value
from wayfare.core.relocation import EXCEED
from wayfare.core.requests import (
    REPLIES,
    Action,
    Answered,
    Ask,
    Listen,
    Requests,
    packed,
    reply_to,
)
from wayfare.core.reserved import INBOX, MEMBER, REPLY_TO
from wayfare.core.saving import SAVABLE
from wayfare.core.templates import Template, parse
from wayfare.core.wills import offer_of
from wayfare.errors import UsageError
from wayfare.eventlog import Event
from wayfare.sim.links import MS_NS, LinkSpec, Pipe
from wayfare.sim.links import Action as Planned

if TYPE_CHECKING:
    from wayfare.sim.world import World

NOTICE_NS = 50 * MS_NS  # until a broker notices that a connection broke
SLICE = 16  # publications that waited and are taken in one millisecond
RETRY_NS = 100 * MS_NS  # until a client tries again to reach a broker that is down

MOVES = "moves"  # the reason of a client that has said so
TICK = Tick()
NOTIFYING = (
    Deliver,
    Current,
    Late,
    Gap,
    m.Settled,
    Here,
    HereGap,
)  # wait for a reader that does not read


class Host:
    """A core in the world: feed, perform, re-arm."""

    __slots__ = ("_armed", "agenda", "core", "pipes", "step", "watchers", "world")

    def __init__(self, world: World, core: Broker | Client) -> None:
        self.world = world
        self.agenda = world.agenda
        self.watchers = world.watchers
        self.core = core
        self.step = core.step
        self.pipes: dict[LinkId, Pipe] = {}
        self._armed: int | None = None  # Invariant: a tick is on the agenda for this time

    def receive(self, event: Received | LinkDown | LinkState | Posted | Exceeded | Tick) -> None:
        self.perform(self.step(event, self.agenda.now))

    def perform(self, effects: list[Effect]) -> None:
        """Do what the core decided, and see when it wants to be woken."""
        pipes, watchers = self.pipes, self.watchers
        for effect in effects:
            if type(effect) is Notify:
                self.notified(effect)
            elif type(effect) is Send:
                link = effect.link
                if link in pipes:
                    if watchers:
                        self.world.saw_sent(self.core.name, effect)
                    pipes[link].send(effect.message)
            elif type(effect) is Lost:
                self.lost(effect)
            elif type(effect) is Settled:
                self.settled(effect)
            elif type(effect) is Ended:
                self.ended(effect)
            elif type(effect) is Interested:
                self.interested(effect)
            elif type(effect) is Confirmed:
                self.confirmed(effect)
            elif type(effect) is Unheard:
                self.unheard(effect)
            elif type(effect) is Post:
                self.world.post(BrokerId(self.core.name), effect)
            elif type(effect) is SessionEnded:
                self.world.ended.append((self.world.now, effect))
            elif type(effect) is Pause or type(effect) is Resume:
                self.pace(effect)
            elif type(effect) is WillPublished:
                self.world.log_will(effect, self.core.name)
            else:
                assert type(effect) is Close
                self.close(effect)
        due = self.core.next_deadline()
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

    def settled(self, effect: Settled) -> None:
        raise AssertionError(f"{self.core.name} is no client")

    def ended(self, effect: Ended) -> None:
        raise AssertionError(f"{self.core.name} is no client")

    def interested(self, effect: Interested) -> None:
        raise AssertionError(f"{self.core.name} is no client")

    def confirmed(self, effect: Confirmed) -> None:
        raise AssertionError(f"{self.core.name} is no client")

    def unheard(self, effect: Unheard) -> None:
        raise AssertionError(f"{self.core.name} is no client")

    def pace(self, effect: Pause | Resume) -> None:
        raise AssertionError(f"{self.core.name} is no broker")

    def close(self, effect: Close) -> None:
        raise AssertionError(f"{self.core.name} cannot close links")

    def mind_fault(self, effect: Close) -> None:
        """In the world everybody keeps to the protocol; a fault is a bug."""
        if effect.fault:
            self.world.broken.append(f"{self.core.name} closed {effect.link}: {effect.reason}")


class Paused:
    """A client's connection from which a broker takes no publications, and what waits in it."""

    __slots__ = ("messages", "resumed")

    def __init__(self) -> None:
        self.messages: deque[tuple[Received, int]] = deque()  # and since when
        self.resumed = False  # what waits is about to be taken


class BrokerHost(Host):
    """A broker. While it is slow, messages wait for their turn."""

    __slots__ = (
        "_busy_until",
        "_deadlines",
        "_queueing",
        "_slow_ns",
        "copy",
        "held_ns",
        "paused",
        "stalled_ns",
        "worst_ns",
    )
    core: Broker

    def __init__(self, world: World, core: Broker) -> None:
        super().__init__(world, core)
        self._deadlines = core.border.deadlines  # asked for the next one at every event
        self.worst_ns = 0  # the longest that a message waited here
        self.stalled_ns = 0  # for how long it did nothing, in all
        self._slow_ns = 0
        self._queueing = False
        self._busy_until = 0
        self.copy = b""  # of its store; empty: there is none
        self.paused = world.paused  # connections of publishers
        self.held_ns = 0  # the longest that a publication waited in one of those

    def receive(self, event: Received | LinkDown | LinkState | Posted | Exceeded | Tick) -> None:
        """As `Host.receive`; what a broker mostly does is to send notifications on."""
        if self._queueing:
            self._queue(event)
            return
        if self.paused and self._holds(event):
            return
        pipes = self.pipes
        effects = self.step(event, self.agenda.now)
        if self.watchers:
            self.perform(effects)
            return
        for effect in effects:
            if type(effect) is not Send:
                self.perform([effect])
            elif (pipe := pipes.get(effect.link)) is not None:
                pipe.send(effect.message)
        due = self._deadlines.next
        if due is not None and (self._armed is None or due < self._armed):
            self.arm(due)

    def reload(self, stopped_ns: int) -> None:
        """Start again with what was saved, if this broker can be saved, as a live broker does."""
        if (saved := self._saved()) is not None:
            self._load(saved)
        self.stalled_ns += stopped_ns
        self.perform(self.step(Stalled(stopped_ns), self.agenda.now))

    def wake(self, due: int) -> None:
        """As `Host.wake`; while it is stopped, no timer of it goes off, and `reload` arms them again."""
        if self.core.name not in self.world.stopped:
            super().wake(due)
        elif due == self._armed:
            self._armed = None

    def can_be_saved(self) -> bool:
        return self.core.relocation.name in SAVABLE

    def lose_copy(self) -> None:
        """Forget the copy: the store is gone, and the next start is with nothing."""
        self.copy = b""

    def make_copy(self) -> None:
        """Copy what is saved at this moment, for a rollback."""
        self.copy = self._saved() or self.copy

    def restore_copy(self) -> None:
        """Start again with the copy, as a live broker does whose store was rolled back."""
        self.agenda.cancel(self._is_gone)
        self._load(self.copy)
        if not self.copy:  # it does not know that there was a store
            return
        border, now = self.core.border, self.agenda.now
        for gone in [*border.by_link, *self.core.profiles.asking]:
            self.perform(self.step(LinkDown(gone), now))
        self.perform(self.step(RolledBack(), now))

    def _is_gone(self, action: Planned) -> bool:
        """Whether this waited to be read, and is gone with the process; so are connections whose ends were."""
        waits = action[0] == self._leave_queue
        if waits and type(action[1]) is LinkDown:
            self.drop_paused(action[1].link)
        return waits

    def begin_link(self, neighbour: str) -> None:
        """A link to a neighbour begins from nothing: what was to be read from it, or sent, is gone."""
        link = LinkId(neighbour)

        def is_old(action: Planned) -> bool:
            waits = action[0] == self._leave_queue
            return waits and type(action[1]) is Received and action[1].link == link

        self.agenda.cancel(is_old)
        self.pipes[link].forget()
        self.perform(self.step(LinkUp(link), self.agenda.now))

    def _saved(self) -> bytes | None:
        """The broker as bytes; None if it cannot be saved, or not at this moment."""
        old = self.core
        if not self.can_be_saved():
            return None
        self.perform(old.pay())
        # A profile may be asked for: as if it had been saved a bit later.
        return old.save() if old.is_quiet() else None

    def _load(self, saved: bytes) -> None:
        old = self.core
        new = Broker(
            old.name,
            old.neighbours,
            old.routing.strategy,
            old.border.limits,
            old.relocation.name,
            self.world.forecast,
            ahead=old.replicator.ahead,
        )
        if saved:
            new.load(saved)
        self.core, self._deadlines, self.step = new, new.border.deadlines, new.step

    def take_its_time(self, per_message_ns: int) -> None:
        """From now on a message takes so long; what waits already keeps its place."""
        self._slow_ns = per_message_ns
        self._queueing = True

    def stall(self, for_ns: int) -> None:
        """Do nothing for so long, once what waits already is done; then go on with what came."""
        agenda = self.world.agenda
        self._queueing = True
        self.stalled_ns += for_ns
        self._busy_until = max(self._busy_until, agenda.now) + for_ns
        self.worst_ns = max(self.worst_ns, self._busy_until - agenda.now)
        agenda.at(self._busy_until, self._go_on, for_ns)

    def _go_on(self, for_ns: int) -> None:
        """Timers go off before anything is read: the worst that an operating system may do."""
        self.perform(self.step(Stalled(for_ns), self.agenda.now))
        self.perform(self.step(TICK, self.agenda.now))

    def _queue(self, event: Received | LinkDown | LinkState | Posted | Exceeded | Tick) -> None:
        agenda = self.world.agenda
        if not self._slow_ns and self._busy_until < agenda.now:
            self._queueing = False
            self._leave_queue(event)
            return
        self._busy_until = max(self._busy_until, agenda.now) + self._slow_ns
        self.worst_ns = max(self.worst_ns, self._busy_until - agenda.now)
        agenda.at(self._busy_until, self._leave_queue, event)

    def _leave_queue(
        self, event: Received | LinkDown | LinkState | Posted | Exceeded | Tick
    ) -> None:
        """What came on a link that was closed while it waited does not count."""
        if type(event) is Received and event.link not in self.pipes:
            if type(event.message) is m.Detach:
                self.world.unheard.add(event.link)
        elif not self._holds(event):
            Host.receive(self, event)

    def pace(self, effect: Pause | Resume) -> None:
        if effect.link not in self.core.border.by_link:
            return  # it is connected elsewhere
        if type(effect) is Pause:
            self.paused.setdefault(effect.link, Paused()).resumed = False
        elif effect.link in self.paused:
            self.paused[effect.link].resumed = True
            self.agenda.at(self.agenda.now, self._go_on_with, effect.link)

    def _holds(self, event: Received | LinkDown | LinkState | Posted | Exceeded | Tick) -> bool:
        """Whether this waits, because its client is paused; what waits is taken before its connection ends."""
        if not isinstance(event, Received | LinkDown) or event.link not in self.paused:
            return False
        if isinstance(event, LinkDown):
            for one, since in self.paused.pop(event.link).messages:
                self.held_ns = max(self.held_ns, self.agenda.now - since)
                if event.link in self.core.border.by_link:
                    Host.receive(self, one)
            self.paused.pop(event.link, None)  # what waited may have paused it again
            return False
        paused, message = self.paused[event.link], event.message
        if passes_pauses(message) or not (paused.messages or type(message) is Publish):
            return False
        paused.messages.append((event, self.agenda.now))
        return True

    def _go_on_with(self, link: LinkId) -> None:
        """Take some of what waits in a connection, and then more, unless it is paused again meanwhile."""
        paused = self.paused.get(link)
        if paused is None or not paused.resumed:
            return
        for _ in range(min(SLICE, len(paused.messages))):
            event, since = paused.messages.popleft()
            self.held_ns = max(self.held_ns, self.agenda.now - since)
            Host.receive(self, event)
        if self.paused.get(link) is not paused or not paused.resumed:
            return
        if paused.messages:
            self.agenda.at(self.agenda.now + MS_NS, self._go_on_with, link)
        else:
            del self.paused[link]

    def drop_paused(self, link: LinkId) -> None:
        """What waits in a connection is not read any more."""
        paused = self.paused.pop(link, None)
        if paused is not None and paused.messages:
            self.held_ns = max(self.held_ns, self.agenda.now - paused.messages[0][1])
            if type(paused.messages[-1][0].message) is m.Detach:
                self.world.unheard.add(link)

    def close(self, effect: Close) -> None:
        self.mind_fault(effect)
        self.drop_paused(effect.link)
        connection = self.world.connections.get(effect.link)
        if connection is not None:
            connection.break_off(noticed=True, reason=effect.reason)
            client = connection.client
            contested = {one.format(client.name) for one in (EXCEED, LATER)}
            # Others would try for ever where a broker has no room.
            tries = effect.reason in contested or self.core.relocation.name == Home.name
            if effect.again and tries and not client.replaced:
                self.agenda.at(self.agenda.now + RETRY_NS, self.world.come_back, client)


class Connection:
    """A client's connection to a broker; the same link id at both ends."""

    __slots__ = ("broker", "client", "down", "link", "up", "world")

    def __init__(
        self, client: ClientHost, broker: BrokerHost, link: LinkId, spec: LinkSpec
    ) -> None:
        world = client.world
        self.world, self.client, self.broker, self.link = world, client, broker, link
        up, down = client.channels
        streams = spec.streams(world.agenda, client.channels)
        self.up = Pipe(world.agenda, world.random, spec, link, broker.receive, up, streams[0])
        self.down = Pipe(world.agenda, world.random, spec, link, client.receive, down, streams[1])
        client.pipes[link] = self.up
        broker.pipes[link] = self.down
        world.connections[link] = self

    def break_off(self, *, noticed: bool, reason: str | None = None) -> None:
        """Both directions are gone. Without `noticed`, the broker finds out later.

        The `reason` is that of a broker which closed the connection.
        """
        if self.client.connection is not self and len(self.up):
            self.world.unheard.add(self.link)
        self.up.drop()
        self.down.drop()
        self.client.pipes.pop(self.link, None)
        self.client.receive(LinkDown(self.link))
        self.client.gone(self, reason)
        if noticed:
            self.broker.pipes.pop(self.link, None)
        self.world.agenda.at(self.world.now + (0 if noticed else NOTICE_NS), self._noticed)

    def hang_up(self) -> None:
        """The client goes; what it sent still arrives, what comes down does not."""
        self.down.drop()
        self.client.pipes.pop(self.link, None)
        self.client.receive(LinkDown(self.link))
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

    __slots__ = (
        "_asked",
        "_listening",
        "_unpublished",
        "_unread_since",
        "_unseen",
        "answers",
        "asked",
        "channels",
        "connection",
        "goodbye",
        "home",
        "left",
        "link",
        "memberships",
        "process",
        "reading",
        "received",
        "replaced",
        "requests",
        "unread",
    )
    core: Client

    def __init__(self, world: World, core: Client, home: str, link: LinkSpec) -> None:
        super().__init__(world, core)
        self.home = home  # the broker that it attaches to when none is named
        self.link = link
        self.channels = link.channels(world.random)  # its own, wherever it is
        self.connection: Connection | None = None
        self.left = False
        self.goodbye: str | None = None  # what it says while it detaches
        self.replaced = False  # a later process has its name: of this one only brokers hear
        self.received: list[Notify] = []
        self._asked: dict[int, tuple[int, list[Filter]]] = {}  # probes: when, and for what
        self.process = 0  # how many had its name before
        self._unpublished: list[
            tuple[dict[str, Value], Callable[[], None]]
        ] = []  # before its welcome
        self._unseen = False  # it has heard nothing yet of the broker that it attached to
        self.requests: Requests | None = None
        self.asked: dict[int, tuple[int, int, bool]] = {}  # publication, deadline, many replies
        self.answers: list[tuple[int, Answered]] = []  # and when they came
        self._listening = 0  # the probe for its reply address
        self.reading = True  # its application does: else what comes waits, unacknowledged
        self._unread_since = 0  # ... since then
        self.unread: deque[Received] = deque()
        self.memberships: dict[str, tuple[Membership, int]] = {}  # by address, and a probe

    @property
    def name(self) -> str:
        return self.core.name

    # Application

    def make_will(self, will: Will) -> None:
        """To be published when it is gone for longer than the delay. Said before it attaches."""
        self.core.make_will(will)
        self.world.log("advertised", client=self.name, filter=offer_of(will.attributes))

    def attach(self, broker: str | None = None) -> None:
        """Attach at this broker, where it was before by default, leaving a connection behind."""
        world = self.world
        host = world.broker(broker or self.home)
        if self.connection is not None:
            self.connection.break_off(noticed=False)
        self.home = broker or self.home
        had_left, self.left = self.left, False
        if self.home in world.stopped:
            world.agenda.at(world.now + RETRY_NS, world.come_back, self)
            return
        process = f"~{self.process}" if self.process else ""
        link = LinkId(f"{self.name}{process}#{self.core.epoch + 1}")
        self.connection = Connection(self, host, link, self.link)
        self._unseen = self.core.may_attach_unseen()
        effects = self.core.attach(None if self._unseen else BrokerId(self.home), link, world.now)
        attach = next(one.message for one in effects if type(one) is Send)
        world.digests += type(attach) is Attach and attach.digest > 0
        self.log("attached")
        self.perform(effects)
        if (
            self.replaced
        ):  # its members say nothing: they would publish under the name of another process
            return
        for one, _ in list(self.memberships.values()):
            self._belong(one, one.on_connected(world.now))
            if had_left:  # what was assigned to it since is lost with its session
                self._belong(one, one.on_lost(world.now))

    def detach(self, *, leave: bool = False, moves: bool = False) -> None:
        """Say goodbye; with `leave`, for good; with `moves`, to attach elsewhere at once."""
        if self.connection is not None:
            self.left = leave
            if leave:
                self.log("left")
            self.goodbye = MOVES if moves else None
            self.perform(self.core.detach(leave=leave, moves=moves))
            self.goodbye = None

    def replace(self) -> None:
        """Another process has begun under its name; this one stays as it is, unless somebody ends it."""
        if self.connection is not None:
            self.log("detached")
        self.log("replaced")
        self.replaced, step = True, self.step
        self.step = lambda event, now: [
            effect for effect in step(event, now) if isinstance(effect, Send | Close)
        ]

    def disconnect(self, *, late: bool = False) -> None:
        """The connection breaks without a word; if `late`, what was sent still arrives."""
        if self.connection is None:
            return
        if late:
            self.connection.hang_up()
        else:
            self.connection.break_off(noticed=False)

    def subscribe(
        self,
        filter: str | Filter | Condition,
        terms: Terms | None = None,
        since_ns: int = 0,
        *,
        current: bool = True,
    ) -> Filter:
        """Unless it is `current`, without the current values that match."""
        wanted = as_filter(filter)
        if since_ns:
            self.world.recalls[self.name] = self.world.recalls.get(self.name, 0) + 1
        effects = self.core.subscribe(wanted, terms, since_ns, current=current)
        self.world.log(
            "subscribed",
            client=self.name,
            filter=wanted,
            reason=terms and terms_text(terms),
            count=self.core.asks if current else None,
        )
        self.perform(effects)
        return wanted

    def unsubscribe(self, filter: str | Filter | Condition) -> None:
        wanted = as_filter(filter)
        effects = self.core.unsubscribe(wanted)
        self.world.log("unsubscribed", client=self.name, filter=wanted)
        self.perform(effects)

    def confirm(self) -> None:
        """Ask when all that it subscribes to, and advertises, is in effect."""
        effects = self.core.probe(ads=True, subs=True)
        self._asked[self.core.probes] = self.world.now, list(self.core.subscriptions)
        self.perform(effects)

    def follow(self, text: str, terms: Terms | None = None, since_ns: int = 0) -> Template:
        """Subscribe to what follows the client: a filter with `myloc` or `my.<name>`."""
        template = parse(text)
        if not isinstance(template, Template):
            raise UsageError(f"{text!r:.60} mentions neither myloc nor my.<name>: subscribe to it")
        effects = self.core.follow(template, terms, since_ns)
        self.world.log(
            "followed", client=self.name, follows=template, reason=terms and terms_text(terms)
        )
        self.perform(effects)
        return template

    def unfollow(self, template: Template) -> None:
        effects = self.core.unfollow(template)
        self.world.log("unfollowed", client=self.name, follows=template)
        self.perform(effects)

    def be(self, state: State) -> None:
        """The client is like this from now on."""
        effects = self.core.be(state)
        self.world.log(
            "became",
            client=self.name,
            location=state.location,
            attributes=dict(state.values),
            area=None if state.position is None else Area((), (*state.position, 0.0)),
        )
        self.perform(effects)

    def advertise(self, filter: str | Filter | Condition) -> Filter:
        offered = as_filter(filter)
        effects = self.core.advertise(offered)
        self.world.log("advertised", client=self.name, filter=offered)
        self.perform(effects)
        return offered

    def unadvertise(self, filter: str | Filter | Condition) -> None:
        offered = as_filter(filter)
        effects = self.core.unadvertise(offered)
        self.world.log("unadvertised", client=self.name, filter=offered)
        self.perform(effects)

    def watch(self, filter: str | Filter | Condition) -> None:
        self.perform(self.core.watch(as_filter(filter)))

    def unwatch(self, filter: str | Filter | Condition) -> None:
        self.perform(self.core.unwatch(as_filter(filter)))

    def publish(
        self,
        attributes: Mapping[str, Value],
        payload: bytes = b"",
        *,
        retain: str | Sequence[str] = (),
        clear: bool = False,
        expires_ns: int = 0,
        area: Area | None = None,
    ) -> None:
        """Publish; with `retain`, as the current value of the key that these attributes are."""
        if self.core.is_unnumbered():
            again = partial(
                self.publish,
                attributes,
                payload,
                retain=retain,
                clear=clear,
                expires_ns=expires_ns,
                area=area,
            )
            self._unpublished.append((dict(attributes), again))
            return
        names = (retain,) if isinstance(retain, str) else tuple(retain)
        kept = Retain(names, clear) if names else None
        published_ns = max(1, self.world.now) if expires_ns else 0
        effects = self.core.publish(attributes, payload, published_ns, kept, expires_ns, area)
        self.world.log(
            "published",
            client=self.name,
            number=self.core.published,
            epoch=self.core.epoch,
            attributes=dict(attributes),
            reason="clear" if clear else None,
            path=list(names) or None,
            expires_ns=expires_ns or None,
            area=area,
        )
        self.perform(effects)

    def request(
        self,
        attributes: Mapping[str, Value],
        payload: bytes = b"",
        *,
        timeout_ns: int = 5000 * MS_NS,
        many: bool = False,
    ) -> int:
        """Send a request to all that subscribe to it; `answers` has the replies."""
        self.core.check_publication(attributes, payload)
        if self.requests is None:
            self.requests = Requests(f"{self.name}/{self.core.life}/{self.core.epoch}")
        number, actions = self.requests.begin(
            attributes, payload, timeout_ns, self.world.now, many=many
        )
        self.asked[number] = 0, self.world.now + timeout_ns, many
        self.agenda.at(self.world.now + timeout_ns, self._expire)
        self._request(actions)
        return number

    def reply(
        self, request: Notification, attributes: Mapping[str, Value], payload: bytes = b""
    ) -> None:
        """Answer a request."""
        address = reply_to(request.attributes)
        if address is None:
            raise UsageError(f"{request.publisher} {request.number} is no request")
        if REPLIES not in self.core.advertisements:
            self.advertise(REPLIES)
        self.publish(address, packed(attributes, payload))

    def _expire(self, _: None) -> None:
        if self.requests is not None:
            self._request(self.requests.expire(self.world.now))

    def _request(self, actions: list[Action]) -> None:
        assert self.requests is not None
        for action in actions:
            if isinstance(action, Listen):
                self.subscribe(action.filter)
                self.confirm()
                self._listening = self.core.probes
            elif isinstance(action, Ask):
                if not any(one.matches(action.attributes) for one in self.core.advertisements):
                    self.requests.forget(action.request)  # it was withdrawn meanwhile
                    del self.asked[action.request]
                    continue
                _, deadline, many = self.asked[action.request]
                self.publish(action.attributes, action.payload)
                self.requests.on_published(action.request, self.core.published)
                self.asked[action.request] = self.core.published, deadline, many
            else:
                self.answers.append((self.world.now, action))
                if self.world.answered is not None:
                    self.world.answered(self, action)

    def join(
        self,
        group: str,
        filter: str | Filter | Condition,
        *,
        prefetch: int = ms.PREFETCH,
        away_ns: int = ms.AWAY_NS,
        slow_ns: int | None = None,
    ) -> Membership:
        """Be a member of a queue group; `world.handed` has what it gets."""
        address = f"{self.name}/{self.core.epoch}/{len(self.memberships)}"
        one = Membership(group, as_filter(filter), address, prefetch, away_ns, slow_ns)
        one.connected = self.connection is not None
        self.memberships[address] = one, 0
        self.world.members.append((self.name, one))
        self._belong(one, one.begin())
        return one

    def quit(self, one: Membership) -> None:
        """Be no member any more."""
        if one.left:
            return
        self.world.quits[one.address] = self.world.now
        self._belong(one, one.leave(self.world.now))
        self.unsubscribe(one.wanted)
        self.unadvertise(one.offered)

    def take(self, one: Membership) -> bool:
        """The application of a member asks for the next one; whether it gets one now."""
        work, actions = one.take(self.world.now)
        self._belong(one, actions)
        if work is not None:
            self.world.handed.append((self.world.now, self.name, one, work))
            if self.world.worker is None:
                self.done(one, work.number)
            else:
                self.world.worker(self, one, work)
        return work is not None

    def done(self, one: Membership, number: tuple[int, int]) -> None:
        """The application is done with something that it got as a member."""
        if one.done(number) and not self.replaced and not one.left:
            self.world.done.append((self.world.now, one, number))
            self._belong(one, one.flush(self.world.now))

    def _belong(self, one: Membership, actions: list[ms.Action]) -> None:
        world = self.world
        for action in actions:
            if isinstance(action, ms.Listen):
                self.subscribe(action.wanted)
                self.advertise(action.offered)
                self.confirm()
                self.memberships[one.address] = one, self.core.probes
            elif isinstance(action, ms.Enrol):
                world.enlisted.setdefault(one.group, world.now)
                self.perform(self.core.enlist(action.message))
            elif isinstance(action, ms.Tell):
                self.publish(action.attributes, action.payload)
            elif isinstance(action, ms.Ready):
                for number in one.held:
                    world.assigned.setdefault((one.address, (one.term, number)), world.now)
                if world.reader is None:
                    while self.take(one):
                        pass
                else:
                    world.reader(self, one)
            elif isinstance(action, ms.Joined):
                world.joined.setdefault(one.group, world.now)
            elif isinstance(action, ms.Lacking):
                world.missed.append((world.now, one.group, action.reason))
                world.lacking.setdefault(one.address, []).append((world.now, action.count))
        due = one.next_deadline()
        if due is not None:
            self.agenda.at(max(due, world.now), self._mind, one)

    def _mind(self, one: Membership) -> None:
        due = one.next_deadline()
        if due is not None and due <= self.world.now and not self.replaced:
            self._belong(one, one.tick(self.world.now))

    def unheard(self, effect: Unheard) -> None:
        if self.requests is not None:
            self._request(self.requests.on_no_responders(effect.publication))

    def burst(self, count: int, attributes: Mapping[str, Value]) -> None:
        """Publish the same so many times at once."""
        for _ in range(count):
            self.publish(attributes)

    def stop_reading(self, for_ns: int) -> None:
        """The application takes no notification for so long; heartbeats and the like go on."""
        self._unread_since = self.agenda.now if self.reading else self._unread_since
        self.reading = False
        self.world.unread_ns = max(self.world.unread_ns, for_ns)
        self.agenda.at(self.agenda.now + for_ns, self._read_on)

    def _read_on(self, _: None) -> None:
        if not self.reading:
            self.world.unread.append((self.name, self._unread_since, self.agenda.now))
        self.reading = True
        while self.unread:
            self.receive(self.unread.popleft())

    # Host

    def receive(self, event: Received | LinkDown | LinkState | Posted | Exceeded | Tick) -> None:
        """As `Host.receive`; what a client mostly does is to be notified."""
        if not self.reading and type(event) is Received and type(event.message) in NOTIFYING:
            self.unread.append(event)
            return
        if self._unseen and type(event) is Received and event.link == self.core.link:
            self._unseen = False
            self.core.greet(BrokerId(self.home))  # by a Hello that came just before
        effects = self.step(event, self.agenda.now)
        if len(effects) == 1 and self._armed is not None and type(effects[0]) is Notify:
            self.notified(effects[0])  # the acknowledgement is on the agenda already
        else:
            self.perform(effects)
        if self._unpublished and not self.core.is_unnumbered():
            waiting, self._unpublished = self._unpublished, []
            for attributes, publish in waiting:
                if any(one.matches(attributes) for one in self.core.advertisements):
                    publish()

    def notified(self, effect: Notify) -> None:
        if MEMBER in effect.notification.attributes:
            self._on_assigned(effect)
            return
        self.received.append(effect)
        notification, core = effect.notification, self.core
        # By position, which takes half the time: this is what a simulation does most.
        event = Event(
            self.agenda.now,
            "delivered",
            core.name,
            None,
            notification.publisher,
            notification.number,
            core.delivered,
            core.epoch,
            None,
            notification.attributes,
        )
        if core.following.counts and isinstance(effect.subscriptions[0], Template):
            event.follows = effect.subscriptions[0]  # no ordinary subscription delivers it
        if effect.past:
            event.reason = "past"
        elif effect.late:
            event.reason = "late"
        elif effect.ask:
            assert isinstance(effect.subscriptions[0], Filter)
            event.reason, event.filter = "current", effect.subscriptions[0]
            event.count = effect.ask
        world = self.world
        world.events.append(event)
        if world.listeners:
            world.tell(event)
        if self.requests is not None and notification.attributes.get(INBOX) == self.requests.inbox:
            self._request(self.requests.on_reply(notification, world.now))
        elif world.responder is not None and REPLY_TO in notification.attributes:
            world.responder(self, notification)

    def _on_assigned(self, effect: Notify) -> None:
        """Something for a member: its application gets it by `Work`, and others do not want it."""
        found = self.memberships.get(str(effect.notification.attributes[MEMBER]))
        if found is not None:
            self._belong(found[0], found[0].on_notified(effect.notification, self.world.now))

    def lost(self, effect: Lost) -> None:
        self.world.log("lost", client=self.name, count=effect.count, reason=effect.reason)
        for one, _ in list(self.memberships.values()):
            self._belong(one, one.on_lost(self.world.now))

    def settled(self, effect: Settled) -> None:
        publishers = {str(name): count for name, count in effect.publishers.items()}
        self.world.log("settled", client=self.name, count=effect.count, entries=publishers)

    def ended(self, effect: Ended) -> None:
        wanted, why = effect.subscription, "stayed behind"
        if isinstance(wanted, Template):
            self.world.log("unfollowed", client=self.name, follows=wanted, reason=why)
        else:
            self.world.log("unsubscribed", client=self.name, filter=wanted, reason=why)

    def interested(self, effect: Interested) -> None:
        if effect.wanted:
            self.world.log("wanted", client=self.name, filter=effect.advertisement)
        else:
            self.world.log("unwanted", client=self.name, filter=effect.advertisement)

    def confirmed(self, effect: Confirmed) -> None:
        listening = self.requests is not None and not self.requests.listening
        if listening and self._listening <= effect.subs and self.requests is not None:
            self._request(self.requests.on_listening(confirmed=not effect.missing))
        if effect.missing:
            return
        known = self.core.confirmed
        for address, (one, probe) in list(self.memberships.items()):
            if probe and min(known.ads, known.subs) >= probe:
                self.memberships[address] = one, 0
                self._belong(one, one.on_listening(self.world.now))
        for number in [one for one in self._asked if one <= effect.subs]:
            asked_ns, filters = self._asked.pop(number)
            for filter in filters:
                self.world.log("confirmed", client=self.name, filter=filter, since_ns=asked_ns)

    def close(self, effect: Close) -> None:
        self.mind_fault(effect)
        if self.connection is not None and self.connection.link == effect.link:
            self.connection.hang_up()

    def gone(self, connection: Connection, reason: str | None = None) -> None:
        if self.connection is connection:
            self.connection = None
            for one, _ in self.memberships.values():
                one.on_disconnected()
            self.log("detached", reason or self.goodbye)

    def log(self, kind: str, reason: str | None = None) -> None:
        """What this process did, as long as it is the one that has the name."""
        if not self.replaced:
            facts = {"client": self.name, "broker": self.home, "reason": reason}
            self.world.log(kind, epoch=self.core.epoch, **facts)


def as_filter(given: str | Filter | Condition) -> Filter:
    """The filter that a text, a condition or a filter is."""
    if isinstance(given, Filter):
        return given
    return Filter.parse(given) if isinstance(given, str) else Filter.where(given)
