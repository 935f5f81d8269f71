"""A network of cores in memory, driven by hand: one frame at a time, in any order a test likes.

    net = Network("porto-lisbon", "lisbon-faro")
    net.attach("anna", "porto")              Attach is on its way
    net.step("anna", "porto")                ... and arrives
    net.settle()                             everything arrives, until nothing is on its way
    net.cut("anna")                          the connection breaks; what was on its way is gone

Links are reliable and in order, and every message crosses them as bytes, through the codec. There
is no time but `net.now`.
"""

from collections import deque

from wayfare.core import codec
from wayfare.core import messages as m
from wayfare.core.broker import DEFAULT_LIMITS, Broker
from wayfare.core.client import Client
from wayfare.core.effects import (
    Close,
    LinkDown,
    LinkUp,
    Lost,
    Notify,
    Received,
    Send,
    Settled,
    Tick,
)
from wayfare.core.filters import Filter

END = b""  # in place of a frame: the sender has closed the connection


class Wire:
    """One direction of a connection. `link` is what the receiver calls it."""

    def __init__(self, sender, receiver, link):
        self.sender, self.receiver, self.link = sender, receiver, link
        self.frames = deque()
        self.open = True
        self._decoder = codec.FrameDecoder()
        self._decoder.feed(codec.encode(m.Hello(m.PROTOCOL_VERSION, sender)))

    def put(self, frame):
        if self.open:
            self.frames.append(frame)

    def get(self):
        """What happens at the receiver next."""
        frame = self.frames.popleft()
        if frame == END:
            return LinkDown(self.link)
        (message,) = self._decoder.feed(frame)
        return Received(self.link, message)

    def cut(self):
        self.frames.clear()
        self.open = False


class Network:
    def __init__(
        self, *pairs, routing="covering", limits=DEFAULT_LIMITS, relocation="handoff", apart=None
    ):
        """Brokers and their links, each written `porto-lisbon`; a broker all alone is `porto`.

        They have announced themselves to each other, and nothing is on its way. `apart` are brokers with other limits.
        """
        self.now = 0
        self.clients = {}
        self.told = {}  # client -> Notify, Lost and Settled effects, as they came
        self.closed = []  # Close effects of everybody
        self._wires = {}  # (who sends, link as the sender calls it) -> Wire
        neighbours = {}
        for a, _, b in (pair.partition("-") for pair in pairs):
            neighbours.setdefault(a, [])
            if b:
                neighbours[a].append(b)
                neighbours.setdefault(b, []).append(a)
                self._wires[a, b] = Wire(a, b, link=a)
                self._wires[b, a] = Wire(b, a, link=b)
        self.brokers = {
            name: Broker(name, there, routing, (apart or {}).get(name, limits), relocation)
            for name, there in neighbours.items()
        }
        for broker, neighbour in list(self._wires):
            self._event(broker, LinkUp(neighbour))
        self.settle()

    # What applications do

    def client(self, name):
        if name not in self.clients:
            self.clients[name] = Client(name)
            self.told[name] = []
        return self.clients[name]

    def attach(self, name, broker):
        """A new connection; the client's first words are on their way."""
        client = self.client(name)
        link = f"{name}/{client.epoch + 1}"
        self._wires[name, link] = Wire(name, broker, link)
        self._wires[broker, link] = Wire(broker, name, link)
        self._perform(name, client.attach(broker, link))

    def detach(self, name, *, leave=False):
        self._perform(name, self.client(name).detach(leave=leave))

    def subscribe(self, name, text):
        self._perform(name, self.client(name).subscribe(Filter.parse(text)))

    def unsubscribe(self, name, text):
        self._perform(name, self.client(name).unsubscribe(Filter.parse(text)))

    def advertise(self, name, text):
        self._perform(name, self.client(name).advertise(Filter.parse(text)))

    def unadvertise(self, name, text):
        self._perform(name, self.client(name).unadvertise(Filter.parse(text)))

    def publish(self, name, **attributes):
        self._perform(name, self.client(name).publish(attributes))

    def got(self, name):
        """The attributes of what the application was notified of, in order."""
        return [
            told.notification.attributes for told in self.told[name] if isinstance(told, Notify)
        ]

    # What the network does

    def step(self, sender, receiver):
        """What is next on the way from one to the other arrives; returns the event."""
        return self._arrive(next(wire for wire in self._between(sender, receiver) if wire.frames))

    def settle(self):
        """Everything arrives, from each wire in turn, until nothing is on its way."""
        while wires := [wire for wire in self._wires.values() if wire.frames]:
            for wire in wires:
                if wire.frames:  # it may have been closed meanwhile
                    self._arrive(wire)

    def on_the_way(self, sender, receiver):
        """The messages from one to the other that have not arrived."""
        wires = self._between(sender, receiver)
        return [codec.decode(frame[4:]) for wire in wires for frame in wire.frames if frame != END]

    def cut(self, name):
        """The client's connection breaks, and both sides notice."""
        link = self.clients[name].link
        broker = self._wires[name, link].receiver
        self._wires[name, link].cut()
        self._wires[broker, link].cut()
        self._event(name, LinkDown(link))
        self._event(broker, LinkDown(link))

    def pass_time(self, nanoseconds):
        """Whoever has a deadline until then gets a tick when it is due."""
        end = self.now + nanoseconds
        while due := [(at, name) for at, name in self._deadlines() if at <= end]:
            self.now, name = min(due)
            self._event(name, Tick())
        self.now = end

    # Inside

    def _core(self, name):
        return self.brokers.get(name) or self.clients[name]

    def _deadlines(self):
        for name in (*self.brokers, *self.clients):
            at = self._core(name).next_deadline()
            if at is not None:
                yield max(at, self.now), name

    def _between(self, sender, receiver):
        return [w for w in self._wires.values() if (w.sender, w.receiver) == (sender, receiver)]

    def _arrive(self, wire):
        event = wire.get()
        self._event(wire.receiver, event)
        return event

    def _event(self, name, event):
        self._perform(name, self._core(name).step(event, self.now))

    def _perform(self, name, effects):
        for effect in effects:
            match effect:
                case Send(link, message):
                    self._wires[name, link].put(codec.encode(message))
                case Notify() | Lost() | Settled():
                    self.told[name].append(effect)
                case Close(link):
                    self.closed.append(effect)
                    self._close(name, link)

    def _close(self, name, link):
        """Who closes hears nothing more; the other one gets what was sent before, then the end."""
        wire = self._wires[name, link]
        wire.put(END)
        wire.open = False
        self._wires[wire.receiver, link].cut()
