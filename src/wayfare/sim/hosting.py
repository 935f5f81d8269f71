"""Proxies and libraries of the mobility service in virtual time, on a system of `systems`.

A host steps its core, performs the effects, and wakes it when it asked to be. What a proxy keeps on disk
is still there when it begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.buffer import Kept
from wayfare.service.client_proxy import Record
from wayfare.service.library import Library
from wayfare.service.proxy import Proxy
from wayfare.service.system import Publication
from wayfare.sim.links import Agenda
from wayfare.sim.systems import NOTHING, NOTICE_NS, Access, Line, Nature, Point, Words

TICK = e.Tick()


class Ground:
    """What hosts stand on: time, access points, and who is where."""

    def __init__(self, agenda: Agenda, nature: Nature, points: dict[str, Point]) -> None:
        self.agenda, self.nature, self.points = agenda, nature, points
        self.words = Words()
        self.proxies: dict[str, ProxyHost] = {}
        self.messages = 0  # of the service
        self.bytes = 0
        self.calls = 0


class Call:
    """A TCP connection between a library and a proxy, or between two proxies."""

    def __init__(self, dialler: Host, peer: str, line: Line) -> None:
        self.ground, self.line = dialler.ground, line
        self.ground.calls += 1
        self.dialler, self.peer = dialler, peer
        self.name = f"{dialler.name}~{self.ground.calls}"  # for who is called
        self.up, self.down = line.connection()
        self.answerer: Host | None = None
        self.dead = self._there = False
        self._waiting: list[m.Message | None] = []  # until the connection is there; None: the end
        line.up(NOTHING, self._reach, None)

    def _reach(self, _: None) -> None:
        found = self.ground.proxies.get(self.peer)
        if found is None or not found.hears(self.dialler.name):
            self.line.down(NOTHING, self._refused, None)
            return
        found.calls[self.name] = self
        self.answerer = found
        self.line.down(NOTHING, self._connected, None)

    def _refused(self, _: None) -> None:
        self._lose(self.dialler, self.peer, "nobody answers")

    def _connected(self, _: None) -> None:
        self._there = True
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.send(self.dialler, message)

    def send(self, sender: Host, message: m.Message | None) -> None:
        if self.dead:
            return
        if self.answerer is None or not self._there:
            self._waiting.append(message)
            return
        to_answerer = sender is self.dialler
        way = self.up if to_answerer else self.down
        receiver = self.answerer if to_answerer else self.dialler
        size = NOTHING if message is None else len(m.encode(message))
        self.ground.messages += message is not None
        self.ground.bytes += size
        name = self.name if to_answerer else self.peer
        way.send(size, self._arrive, (receiver, name, message))

    def _arrive(self, what: tuple[Host, str, m.Message | None]) -> None:
        receiver, name, message = what
        if self.dead or receiver.calls.get(name) is not self:
            return
        if message is None:
            self._lose(receiver, name, "the other side hung up")
        else:
            receiver.step(e.Received(name, message))

    def _lose(self, host: Host, name: str, reason: str) -> None:
        if not self.dead and host.calls.get(name) is self:
            del host.calls[name]
            host.step(e.PeerGone(name, reason))

    def break_off(self, noticed_by: Host | None) -> None:
        """Gone without a word; who is told finds out."""
        if noticed_by is not None:
            name = self.peer if noticed_by is self.dialler else self.name
            self._lose(noticed_by, name, "the connection broke")
        self.dead = True
        self.up.cut()
        self.down.cut()

    def fade(self) -> None:
        """The dialler is out of reach; who was called notices after a while."""
        self.break_off(None)
        self.ground.agenda.at(self.ground.agenda.now + NOTICE_NS, self._faded)

    def _faded(self, _: None) -> None:
        if self.answerer is not None and self.answerer.calls.get(self.name) is self:
            del self.answerer.calls[self.name]
            self.answerer.step(e.PeerGone(self.name, "the connection broke"))


class Host:
    """A core: feed, perform, re-arm."""

    core: Proxy | Library

    def __init__(self, ground: Ground, name: str, line: Line) -> None:
        self.ground, self.agenda, self.name, self.line = ground, ground.agenda, name, line
        self.calls: dict[str, Call] = {}  # by peer
        self.accesses: dict[str, Access] = {}  # by client
        self.is_down = False
        self._armed: int | None = None

    def step(self, event: e.Event) -> None:
        if not self.is_down:
            self.perform(self.core.step(event, self.agenda.now))

    def perform(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            PERFORM[type(effect)](self, effect)
        due = self.core.next_deadline()
        if due is not None and (self._armed is None or due < self._armed):
            self._armed = due
            self.agenda.at(due, self._wake, due)

    def _wake(self, due: int) -> None:
        if due == self._armed:
            self._armed = None
            self.step(TICK)

    # Effects

    def dial(self, effect: e.Dial) -> None:
        if effect.peer not in self.calls:
            self.calls[effect.peer] = Call(self, effect.peer, self.line)

    def send(self, effect: e.Send) -> None:
        call = self.calls.get(effect.peer)
        if call is not None:
            call.send(self, effect.message)

    def hang(self, effect: e.Hang) -> None:
        call = self.calls.get(effect.peer)
        if call is not None:
            call.send(self, None)
            del self.calls[effect.peer]

    def open(self, effect: e.Open) -> None:
        point = self.ground.points[effect.access]
        self.accesses[effect.client] = access = Access(self, effect.client, point, self.line)
        access.open()

    def shut(self, effect: e.Shut) -> None:
        access = self.accesses.pop(effect.client, None)
        if access is not None:
            access.close()

    def subscribe(self, effect: e.Subscribe) -> None:
        access = self.accesses.get(effect.client)
        if access is not None:
            access.subscribe(effect.subscriptions)

    def unsubscribe(self, effect: e.Unsubscribe) -> None:
        access = self.accesses.get(effect.client)
        if access is not None:
            access.subscribe(effect.subscriptions, wanted=False)

    def publish(self, effect: e.Publish) -> None:
        access = self.accesses.get(effect.client)
        if access is not None:
            access.publish(effect.publication)

    def keep(self, effect: Any) -> None:
        raise AssertionError(f"{self.name} has no disk")

    def tell(self, effect: Any) -> None:
        raise AssertionError(f"{self.name} has no application")

    # What an access says

    def opened(self, access: Access) -> None:
        if self.accesses.get(access.client) is access:
            self.step(e.Opened(access.client))

    def subscribed(self, access: Access, texts: tuple[str, ...]) -> None:
        if self.accesses.get(access.client) is access:
            self.step(e.Subscribed(access.client, texts))

    def published(self, access: Access, publication: Publication) -> None:
        if self.accesses.get(access.client) is access:
            self.step(e.Published(access.client, publication))

    def arrived(self, access: Access, publication: Publication) -> None:
        if self.accesses.get(access.client) is access:
            self.step(e.Arrived(access.client, publication))


PERFORM: dict[type, Callable[[Any, Any], None]] = {
    e.Dial: lambda host, effect: host.dial(effect),
    e.Send: lambda host, effect: host.send(effect),
    e.Hang: lambda host, effect: host.hang(effect),
    e.Open: lambda host, effect: host.open(effect),
    e.Shut: lambda host, effect: host.shut(effect),
    e.Subscribe: lambda host, effect: host.subscribe(effect),
    e.Unsubscribe: lambda host, effect: host.unsubscribe(effect),
    e.Publish: lambda host, effect: host.publish(effect),
    **{kind: lambda host, effect: host.keep(effect) for kind in (e.Keep, e.Trim, e.Save, e.Erase)},
    **{
        kind: lambda host, effect: host.tell(effect)
        for kind in (e.Deliver, e.Gap, e.Ended, e.Moved, e.Failed)
    },
}


class ProxyHost(Host):
    """A proxy beside an access point, with a disk."""

    core: Proxy

    def __init__(self, ground: Ground, name: str, point: str, line: Line) -> None:
        super().__init__(ground, name, line)
        self.point = point
        self.records: dict[str, Record] = {}
        self.kept: dict[str, dict[int, Kept]] = {}
        self.unheard: set[str] = set()  # hosts that cannot reach it
        self._piled: list[e.Event] | None = None  # what came while it is stopped; None: it is not
        ground.proxies[name] = self
        self._begin()

    def _begin(self) -> None:
        self.core = Proxy(self.name, self.point, self.ground.words, durable=True)

    def hears(self, name: str) -> bool:
        return not self.is_down and name not in self.unheard

    def keep(self, effect: Any) -> None:
        client, kept = effect.client, self.kept.setdefault(effect.client, {})
        match effect:
            case e.Keep(_, number, arrived, publication):
                kept[number] = Kept(number, arrived, publication)
            case e.Trim(_, numbers):
                for number in numbers:
                    kept.pop(number, None)
            case e.Save():
                if client in self.core.clients:  # else an `Erase` of this step follows
                    self.records[client] = self.core.record(client)
            case e.Erase():
                self.records.pop(client, None)
                self.kept.pop(client, None)

    def step(self, event: e.Event) -> None:
        if self._piled is None:
            super().step(event)
        elif event is not TICK:
            self._piled.append(event)

    def stall(self, for_ns: int) -> None:
        """Its process is stopped for a while; what is sent to it piles up."""
        if self._piled is None and not self.is_down:
            self._piled = []
            self.agenda.at(self.agenda.now + for_ns, self._go_on, self._piled)

    def _go_on(self, piled: list[e.Event]) -> None:
        """Timers go off before anything is read: the worst that an operating system may do."""
        if self._piled is piled:
            self._piled = None
            for event in (TICK, *piled):
                self.step(event)

    def stop(self) -> None:
        """It ends, as if its power were cut."""
        self.is_down, self._piled = True, None
        for name, call in list(self.calls.items()):
            dialled = name == call.peer
            call.break_off(call.answerer if dialled else call.dialler)
        for access in self.accesses.values():
            access.cut()
        self.calls, self.accesses = {}, {}
        self._armed = None

    def start(self) -> None:
        """It begins again with what is on its disk."""
        self.is_down = False
        self._begin()
        for client, record in self.records.items():
            kept = list(self.kept.get(client, {}).values())
            self.perform(self.core.restore(record, kept, self.agenda.now))


class LibraryHost(Host):
    """A client with its library; `told` gets what its application does."""

    core: Library

    def __init__(
        self, ground: Ground, core: Library, line: Line, told: Callable[[e.Effect], None]
    ) -> None:
        super().__init__(ground, core.client, line)
        self.core = core
        self.is_off = False
        self._told = told

    def tell(self, effect: e.Effect) -> None:
        self._told(effect)

    def cut(self, *, noticed: bool = False) -> None:
        """Out of reach, without a word to anybody; with `noticed`, its own host sees that."""
        accesses, calls = self.accesses, self.calls
        self.is_off, self.calls = True, {}
        for access in accesses.values():
            access.cut()
        for call in calls.values():
            call.fade()
        self.line.clear()
        if noticed:
            self.accesses = {}
            for client in accesses:
                self.step(e.AccessGone(client, "out of reach"))
            for peer in calls:
                self.step(e.PeerGone(peer, "out of reach"))

    def appear(self, proxy: str) -> None:
        """In reach again, of this proxy."""
        self.is_off = False
        self.perform(self.core.move_in(proxy, self.agenda.now))

    def dial(self, effect: e.Dial) -> None:
        if self.is_off:
            self.agenda.at(self.agenda.now + NOTICE_NS, self.step, e.PeerGone(effect.peer, "off"))
        else:
            super().dial(effect)

    def open(self, effect: e.Open) -> None:
        if self.is_off:
            gone = e.AccessGone(effect.client, "off")
            self.agenda.at(self.agenda.now + NOTICE_NS, self.step, gone)
        else:
            super().open(effect)


def beside(point: str) -> str:
    """How the proxy at an access point is called."""
    return f"proxy-{point}"
