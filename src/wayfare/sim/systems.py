"""Other people's publish/subscribe systems, as far as a client that moves feels them.

    mobile  ==radio==  access point  --  access point  --  access point  ==wire==  publisher
                            |                                   |
                          proxy                               proxy

A system is a tree of access points. Each has two lanes: subscriptions are worked through one after the
other, which takes time; publications are matched with what the table says at that moment, and do not
wait for subscriptions. What one neighbour sends to another arrives in order.

    broadcast    subscriptions stay where they are made, publications go to every access point
    propagate    subscriptions go to every access point, unless an equal one has gone there before;
                 publications go where somebody wants them
    one-time     every message needs a TCP connection of its own: a round trip, and more packets;
                 what a client asks is done one after the other, and answered
    keep-alive   one connection for all; a call returns when the bytes are handed to the connection

One publication that matches many subscriptions of a client travels to it once: Elvin's protocol names
all of them in one packet, Siena has no copies, and what FioranoMQ measured cannot have been copies
either (100 of each would be 20 times what the radio carries). A client gives them to its processor
objects itself.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import msgspec

from wayfare.channel import Channel, Profile
from wayfare.service.system import Publication, Traits
from wayfare.sim.links import MS_NS, Agenda, connection

LAN_NS = MS_NS // 5  # one way on a wire: as the profile `lan`, whose bytes take hardly any time
MATCH_NS = MS_NS // 5  # that an access point takes for a publication
NOTICE_NS = 1000 * MS_NS  # until an access point notices that a client was cut off
NOTHING = 0  # bytes of a packet that only sets up, acknowledges or ends a connection


class Nature(msgspec.Struct, frozen=True):
    """A system: what it does, how many bytes that takes, and how long."""

    propagates: bool
    one_time: bool
    subscribe_ns: int  # that an access point works at a subscription, or at its end
    compare_ns: int  # ... and for each one that it knows: whether one covers the other
    subscription_bytes: int
    publication_bytes: int  # beside what is published
    reply_bytes: int
    checks_ns: int = 0  # that a client library compares a subscription with each one it has


# Chosen, not measured: a server of 2003, its protocol, and Java. One row per system, whatever s and p.
# Publications are short enough for 10 a second to fit the radio, as they did in the paper.
SYSTEMS = {
    "elvin": Nature(False, True, 25 * MS_NS, 0, 120, 100, 40),
    "fioranomq": Nature(False, True, 2 * MS_NS, 0, 220, 110, 60),
    "siena": Nature(True, False, 5 * MS_NS, MS_NS // 2, 150, 120, 0, checks_ns=MS_NS // 2),
}


class Words:
    """The language of all of them: `news#7` is a seventh subscription to the topic `news`."""

    traits = Traits()

    def topic(self, *words: str) -> str:
        return "/".join(words)

    def subscription(self, topic: str) -> str:
        return topic


def topic_of(subscription: str) -> str:
    return subscription.partition("#")[0]


# Links

Then = Callable[[Any], None]


class Way(Protocol):
    """One direction of a TCP connection that stays."""

    def send(self, size: int, then: Then, argument: Any) -> None: ...
    def cut(self) -> None:
        """Send nothing more."""


class Line(Protocol):
    """What somebody reaches everybody else by."""

    def up(self, size: int, then: Then, argument: Any) -> None:
        """Send a packet, or several; `then` is called when it is there."""

    def down(self, size: int, then: Then, argument: Any) -> None: ...
    def connection(self) -> tuple[Way, Way]:
        """Up, and down."""

    def clear(self) -> None:
        """Who has it is out of reach: nothing is on its way any more."""


class Wire:
    """A wire of so much latency."""

    def __init__(self, agenda: Agenda, latency_ns: int = LAN_NS) -> None:
        self._agenda = agenda
        self.latency_ns = latency_ns

    def send(self, size: int, then: Then, argument: Any) -> None:
        self._agenda.at(self._agenda.now + self.latency_ns, then, argument)

    up = down = send

    def cut(self) -> None:
        pass

    clear = cut

    def connection(self) -> tuple[Way, Way]:
        return self, self


class Radio:
    """The link of a mobile: all that it says to anybody goes through these two channels."""

    def __init__(self, agenda: Agenda, profile: Profile, random: Random) -> None:
        self.agenda = agenda
        up, down = (
            Channel(way, Random(random.getrandbits(64))) for way in (profile.up, profile.down)
        )
        self.channels = up, down

    def up(self, size: int, then: Then, argument: Any) -> None:
        self.agenda.at(self.channels[0].send(self.agenda.now, size), then, argument)

    def down(self, size: int, then: Then, argument: Any) -> None:
        self.agenda.at(self.channels[1].send(self.agenda.now, size), then, argument)

    def connection(self) -> tuple[Way, Way]:
        return connection(self.agenda, *self.channels)

    def clear(self) -> None:
        for channel in self.channels:
            channel.clear(self.agenda.now)


# Access points


class Point:
    """An access point: its table, and its neighbours."""

    def __init__(self, agenda: Agenda, nature: Nature, name: str) -> None:
        self.agenda, self.nature, self.name = agenda, nature, name
        self.near: dict[Point, int] = {}  # neighbours, and how far they are in ns
        self.tables: dict[Any, dict[str, None]] = {}  # by access or neighbour: its subscriptions
        self.topics: dict[Any, Counter[str]] = {}  # ... and how many there are of each topic
        self.told: dict[Point, set[str]] = {}  # what neighbours were asked for
        self.known = 0  # subscriptions in all tables
        self.control = self.publications = 0  # messages to neighbours
        self.last_ns: dict[Any, int] = {}  # when an access got its last subscription
        self._work: deque[tuple[Any, str, bool, Callable[[], None] | None]] = deque()
        self._working = False

    def work(
        self, place: Any, text: str, wanted: bool, done: Callable[[], None] | None = None
    ) -> None:
        """A subscription, or its end, has its turn when all before it are done."""
        self._work.append((place, text, wanted, done))
        if not self._working:
            self._working = True
            self._begin()

    def _begin(self) -> None:
        cost = self.nature.subscribe_ns + self.nature.compare_ns * self.known
        self.agenda.at(self.agenda.now + cost, self._worked)

    def _worked(self, _: None) -> None:
        place, text, wanted, done = self._work.popleft()
        self._change(place, text, wanted)
        if done is not None:
            done()
        if self._work:
            self._begin()
        else:
            self._working = False

    @property
    def is_idle(self) -> bool:
        return not self._working

    def drop(self, access: Any) -> None:
        """A client is gone: its subscriptions end."""
        for text in list(self.tables.get(access, ())):
            self.work(access, text, False)

    def _change(self, place: Any, text: str, wanted: bool) -> None:
        table = self.tables.setdefault(place, {})
        if (text in table) == wanted:
            return
        topics = self.topics.setdefault(place, Counter())
        if wanted:
            table[text] = None
            self.last_ns[place] = self.agenda.now
        else:
            del table[text]
        topics[topic_of(text)] += 1 if wanted else -1
        self.known += 1 if wanted else -1
        if self.nature.propagates:
            self._tell(place, text, wanted)

    def _tell(self, place: Any, text: str, wanted: bool) -> None:
        """Neighbours hear of the first subscription of its kind, and of the end of the last."""
        for other, far_ns in self.near.items():
            told = self.told.setdefault(other, set())
            if other is place or (text in told) == wanted:
                continue
            if not wanted and any(
                text in table for where, table in self.tables.items() if where is not other
            ):
                continue
            (told.add if wanted else told.discard)(text)
            self.control += 1
            self.agenda.at(self.agenda.now + far_ns, other.hear, (self, text, wanted))

    def hear(self, what: tuple[Any, str, bool]) -> None:
        self.work(*what)

    def publish(self, what: tuple[Any, Publication]) -> None:
        """From an access, or from a neighbour."""
        self.agenda.at(self.agenda.now + MATCH_NS, self._route, what)

    def _route(self, what: tuple[Any, Publication]) -> None:
        source, publication = what
        for place, topics in self.topics.items():
            if type(place) is not Point and topics.get(publication.topic):
                place.deliver(publication)
        for other, far_ns in self.near.items():
            wanted = not self.nature.propagates or self._asked_for(other, publication.topic)
            if other is not source and wanted:
                self.publications += 1
                self.agenda.at(self.agenda.now + far_ns, other.publish, (self, publication))

    def _asked_for(self, other: Point, topic: str) -> bool:
        topics = self.topics.get(other)
        return topics is not None and topics[topic] > 0


class User(Protocol):
    """Who has an access."""

    def opened(self, access: Access) -> None: ...
    def subscribed(self, access: Access, texts: tuple[str, ...]) -> None: ...
    def published(self, access: Access, publication: Publication) -> None: ...
    def arrived(self, access: Access, publication: Publication) -> None: ...


class Access:
    """The connection, or the connections, of one client to one access point."""

    def __init__(self, user: User, client: str, point: Point, line: Line) -> None:
        self.user, self.client, self.point, self.line = user, client, point, line
        self.agenda, self.nature = point.agenda, point.nature
        self.up, self.down = line.connection()
        self.alive = True  # for its client
        self._reached = True  # for the access point
        self._left = False
        self._asked: deque[tuple[int, Callable[[Callable[[], None]], None], Callable[[], None]]] = (
            deque()
        )

    # What clients ask

    def open(self) -> None:
        def opened() -> None:
            self.user.opened(self)

        if self.nature.one_time:
            self._ask(self.nature.reply_bytes, lambda done: done(), opened)
        else:
            self.line.up(NOTHING, self._shake, opened)

    def subscribe(self, texts: tuple[str, ...], wanted: bool = True) -> None:
        def subscribed() -> None:
            if wanted:
                self.user.subscribed(self, texts)

        size = self.nature.subscription_bytes
        if not self.nature.one_time:
            for text in texts:
                self.up.send(size, self._take, (text, wanted))
            self.agenda.at(self.agenda.now, self._call, subscribed)
            return
        if not texts:
            self.agenda.at(self.agenda.now, self._call, subscribed)
        for at, text in enumerate(texts, 1):
            self._ask(
                size, self._worker(text, wanted), subscribed if at == len(texts) else lambda: None
            )

    def publish(self, publication: Publication) -> None:
        def published() -> None:
            self.user.published(self, publication)

        size = self.size_of(publication)
        if not self.nature.one_time:
            self.up.send(size, self._publish, (publication, published))
            return

        def work(done: Callable[[], None]) -> None:
            self.point.publish((self, publication))
            done()

        self._ask(size, work, published)

    def close(self) -> None:
        """Say goodbye."""
        self.alive = False
        if self.nature.one_time:
            self.line.up(NOTHING, self._shake, lambda: self.line.up(NOTHING, self.leave, None))
        else:
            self.up.send(NOTHING, self.leave, None)

    def cut(self) -> None:
        """Out of reach, without a word."""
        self.alive = self._reached = False
        self.up.cut()
        self.down.cut()
        self.agenda.at(self.agenda.now + NOTICE_NS, self.leave)

    def leave(self, _: None) -> None:
        """The access point knows that the client has gone."""
        if not self._left:
            self._left, self._reached = True, False
            self.down.cut()
            self.point.drop(self)

    # What the access point does

    def deliver(self, publication: Publication) -> None:
        if not self._reached:
            return
        size = self.size_of(publication)
        if self.nature.one_time:
            self.line.down(NOTHING, self._answer, (size, publication))
        else:
            self.down.send(size, self._arrive, publication)

    def _answer(self, what: tuple[int, Publication]) -> None:
        if self.alive:
            self.line.up(NOTHING, self._deliver, what)

    def _deliver(self, what: tuple[int, Publication]) -> None:
        size, publication = what
        if self._reached:
            self.line.down(size, self._arrive, publication)

    def _arrive(self, publication: Publication) -> None:
        if self.alive:
            self.user.arrived(self, publication)

    # Connections

    def size_of(self, publication: Publication) -> int:
        return self.nature.publication_bytes + len(publication.topic) + len(publication.payload)

    def _take(self, what: tuple[str, bool]) -> None:
        if self._reached:
            self.point.work(self, *what)

    def _publish(self, what: tuple[Publication, Callable[[], None]]) -> None:
        publication, published = what
        if self._reached:
            self.point.publish((self, publication))
            self.agenda.at(self.agenda.now, self._call, published)

    def _worker(self, text: str, wanted: bool) -> Callable[[Callable[[], None]], None]:
        def work(done: Callable[[], None]) -> None:
            self.point.work(self, text, wanted, done)

        return work

    def _call(self, then: Callable[[], None]) -> None:
        if self.alive:
            then()

    def _shake(self, then: Callable[[], None]) -> None:
        """A packet that sets up a connection is there: the answer."""
        self.line.down(NOTHING, lambda _: then(), None)

    def _ask(
        self,
        size: int,
        work: Callable[[Callable[[], None]], None],
        then: Callable[[], None],
    ) -> None:
        """One request on a connection of its own; the next one when it is answered."""
        self._asked.append((size, work, then))
        if len(self._asked) == 1:
            self._connect()

    def _connect(self) -> None:
        self.line.up(NOTHING, self._shake, self._request)

    def _request(self) -> None:
        if self.alive:
            self.line.up(self._asked[0][0], self._requested, None)

    def _requested(self, _: None) -> None:
        if self._reached:
            self._asked[0][1](self._reply)

    def _reply(self) -> None:
        if self._reached:
            self.line.down(self.nature.reply_bytes, self._replied, None)

    def _replied(self, _: None) -> None:
        if not self.alive:
            return
        self.line.up(NOTHING, lambda _: None, None)  # the end of the connection
        then = self._asked.popleft()[2]
        if self._asked:
            self._connect()
        then()


def overlay(
    agenda: Agenda, nature: Nature, names: list[str], edges: list[tuple[str, str]], far_ns: int
) -> dict[str, Point]:
    """Access points in a tree."""
    points = {name: Point(agenda, nature, name) for name in names}
    for a, b in edges:
        points[a].near[points[b]] = points[b].near[points[a]] = far_ns
    return points
