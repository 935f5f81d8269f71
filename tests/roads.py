"""A network in which traffic can be stopped, and what tests of clients that move ask it.

Most play in this tree. Tom publishes at braga, anna starts at porto.

    porto --- lisbon --- faro
                |
              braga
"""

from random import Random

from pair import Network
from wayfare.core.client import ACK_DELAY_NS, Client
from wayfare.core.effects import Ended, LinkDown, LinkUp, Lost, Tick
from wayfare.core.filters import Filter
from wayfare.core.junction import Junction

TREE = ("porto-lisbon", "lisbon-faro", "lisbon-braga")


class Roads(Network):
    """A network in which traffic in one direction can be stopped for a while."""

    def __init__(self, *pairs, **more):
        self.pairs = pairs
        self.routing = more.get("routing", "covering")
        self.stopped = []
        super().__init__(*pairs, **more)

    def stop(self, sender, receiver):
        self.stopped.append((sender, receiver))

    def go(self):
        """Everything that was stopped moves again."""
        self.stopped.clear()
        self.settle()

    def begin(self, one, other):
        """The link between them begins from nothing: what is on its way is lost, and both know."""
        for broker, neighbour in ((one, other), (other, one)):
            self._wires[broker, neighbour].frames.clear()
        for broker, neighbour in ((one, other), (other, one)):
            self._event(broker, LinkUp(neighbour))
        self.settle()

    def moving(self):
        return [
            wire
            for wire in self._wires.values()
            if wire.frames and (wire.sender, wire.receiver) not in self.stopped
        ]

    def settle(self):
        while self.moving() or self._go_on():
            for wire in self.moving():
                if wire.frames:
                    self._arrive(wire)

    def _go_on(self):
        """Let brokers do what they put off; False if there was nothing."""
        behind = [name for name, broker in self.brokers.items() if broker.is_behind()]
        for name in behind:
            self._event(name, Tick())
        return bool(behind)

    def crawl(self, seed, act, most=40):
        """As `settle`, but one message at a time, from any wire; `act` before each, not for ever."""
        random = Random(seed)
        while wires := self.moving():
            if most:
                most -= 1
                act()
            self._arrive(random.choice(wires))

    def move(self, name, broker):
        self.attach(name, broker)
        self.settle()

    def notice(self, broker, link):
        """The broker finds out that a connection is dead which its client left long ago."""
        self._event(broker, LinkDown(link))
        self.settle()

    def subscribe(self, name, text, terms=None):
        self._perform(name, self.client(name).subscribe(Filter.parse(text), terms))

    def by_digest(self, name):
        """This client, which is new, never sends its filters where a digest will do."""
        self.clients[name] = Client(name, digest_from=0)
        self.told[name] = []

    def _perform(self, name, effects):
        super()._perform(name, effects)
        self.told.get(name, []).extend(one for one in effects if isinstance(one, Ended))


def network(*pairs, at="braga", **more):
    """Anna is subscribed at porto, tom has advertised, and all is settled."""
    net = Roads(*(pairs or TREE), **more)
    net.subscribe("anna", "x > 0")
    net.advertise("tom", "exists x or exists y")
    net.attach("anna", "porto")
    net.attach("tom", at)
    net.settle()
    return net


def xs(*values):
    return [{"x": value} for value in values]


def publish(net, *values, who="tom"):
    for value in values:
        net.publish(who, x=value)
    net.settle()


def lost(net, name="anna"):
    return [one for one in net.told[name] if isinstance(one, Lost)]


def homes(net, name="anna"):
    """Where the client has a session, and of which epoch."""
    return [
        (broker, session.epoch)
        for broker, core in net.brokers.items()
        for session in core.border.of(name)
    ]


def session_of(net, broker, name="anna"):
    return net.brokers[broker].border.of(name)[-1]


def errands(net, sender, receiver):
    """What is on its way beside changes of tables."""
    return [
        errand
        for update in net.on_the_way(sender, receiver)
        for errand in getattr(update, "errands", ())
    ]


def tables(net):
    return {
        (name, kind, other): set(table[other])
        for name, core in net.brokers.items()
        for kind, table in (("ads", core.routing.in_ads), ("subs", core.routing.in_subs))
        for other in core.neighbours
    }


def assert_tidy(net):
    """Nobody waits or searches, and the tables are as if all had always been where they are."""
    net.pass_time(ACK_DELAY_NS)
    net.settle()
    fresh = Roads(*net.pairs, routing=net.routing)
    for name, client in net.clients.items():
        for filter in client.subscriptions:
            fresh.subscribe(name, str(filter))
        for filter in client.advertisements:
            fresh.advertise(name, str(filter))
        for broker, _ in homes(net, name):
            fresh.move(name, broker)
    assert tables(net) == tables(fresh)
    sessions = [one for core in net.brokers.values() for one in core.border.all()]
    assert not any(one.wait or one.backlog for one in sessions)
    assert len(sessions) == len({one.client for one in sessions})
    for core in net.brokers.values():
        assert core.profiles.asking == {}
        if isinstance(core.relocation, Junction):
            assert core.relocation.searches == {}
