"""One client moves once, on a system that knows nothing of it: with the mobility service, or without."""

from __future__ import annotations

from wayfare.service import effects as e
from wayfare.service.library import Library
from wayfare.service.messages import DEFAULT_TERMS, NO_SYNC, PING, Sync, Terms
from wayfare.service.system import Id, Publication
from wayfare.sim.hosting import Ground, LibraryHost, ProxyHost, beside
from wayfare.sim.links import Agenda
from wayfare.sim.one_move import (
    EDGES,
    HOME,
    MOBILE,
    NEW,
    OLD,
    OWN,
    PAYLOAD,
    PUBLISHER,
    TOPIC,
    Experiment,
    Figures,
    Parameters,
)
from wayfare.sim.own_brokers import Handoff
from wayfare.sim.systems import LAN_NS, SYSTEMS, Access, Radio, Wire, overlay
from wayfare.sim.traffic import Log


def run(parameters: Parameters, log: Log | None = None) -> Figures:
    """Play one experiment; `log` gets all that happened."""
    kind = Handoff if parameters.system == OWN else Moving
    return kind(parameters).run(log)


class Moving(Experiment):
    """A client of such a system, with the service or without it."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters, Agenda())
        nature = self.nature = SYSTEMS[parameters.system]
        points = overlay(self.agenda, nature, [HOME, OLD, NEW], EDGES, LAN_NS)
        self.ground = Ground(self.agenda, nature, points)
        self.radio = Radio(self.agenda, parameters.profile(), self.random)
        self.texts = tuple(f"{TOPIC}#{i}" for i in range(parameters.s))
        self.client: Supported | Bare
        if parameters.support == "none":
            self.client = Bare(self)
        else:
            self.client = Supported(self)

    def subscribe(self) -> None:
        self.client.begin()

    def subscribe_ns(self) -> int | None:
        point = self.ground.points[OLD]
        for place, table in point.tables.items():
            if type(place) is Access and place.line is self.radio and len(table) >= len(self.texts):
                return point.last_ns[place]
        return None

    def publish(self) -> None:
        id = Id(PUBLISHER, self.published)
        self.ground.points[HOME].publish((None, Publication(TOPIC, PAYLOAD, id=id)))

    def leave(self) -> None:
        self.client.leave()

    def come(self) -> None:
        self.client.come()

    def is_busy(self) -> bool:
        return not all(point.is_idle for point in self.ground.points.values())

    def missed_bytes(self, missed: int) -> int:
        return missed * (self.nature.publication_bytes + len(TOPIC) + len(PAYLOAD))

    def costs(self) -> dict[str, int]:
        return {
            "service_messages": self.ground.messages,
            "control": sum(point.control for point in self.ground.points.values()),
            "radio_bytes": sum(channel.bytes for channel in self.radio.channels),
        }


class Bare:
    """Without support: where it comes to, it subscribes again."""

    def __init__(self, moving: Moving) -> None:
        self.moving = moving
        self.access: Access | None = None

    def begin(self) -> None:
        self._open(OLD)

    def leave(self) -> None:
        assert self.access is not None
        if self.moving.parameters.abrupt:
            self.access.cut()
        else:
            self.access.close()
        self.access = None
        self.moving.went()

    def come(self) -> None:
        self._open(NEW)

    def _open(self, point: str) -> None:
        moving = self.moving
        self.access = Access(self, MOBILE, moving.ground.points[point], moving.radio)
        self.access.open()

    def opened(self, access: Access) -> None:
        access.subscribe(self.moving.texts)

    def subscribed(self, access: Access, texts: tuple[str, ...]) -> None:
        self.moving.is_up()

    def published(self, access: Access, publication: Publication) -> None:
        raise AssertionError("the client does not publish")

    def arrived(self, access: Access, publication: Publication) -> None:
        assert publication.id is not None
        self.moving.delivered(publication.id.number)


def terms_of(support: str, delay_ns: int = 0) -> tuple[Terms, Sync]:
    """At move-out, and at move-in."""
    if support == "ids":
        return DEFAULT_TERMS, PING
    sync = {"basic": NO_SYNC, "ping": PING, "delay": Sync("delay", delay_ns)}[support]
    return Terms(sync=sync, standby=False, copies=True), sync


class Supported:
    """With the service."""

    def __init__(self, moving: Moving) -> None:
        given, ground = moving.parameters, moving.ground
        self.moving = moving
        for point in ground.points:
            ProxyHost(ground, beside(point), point, Wire(moving.agenda))
        terms, sync = terms_of(given.support, given.delay_ns)
        library = Library(MOBILE, "key", ground.words, terms, sync)
        self.host = LibraryHost(ground, library, moving.radio, self._told)

    def begin(self) -> None:
        """The library looks at every subscription, and compares it where the system does."""
        agenda, texts = self.moving.agenda, self.moving.texts
        for text in texts:
            self.host.perform(self.host.core.subscribe(text, False, agenda.now))
        compared = len(texts) * (len(texts) - 1) // 2
        agenda.at(agenda.now + compared * self.moving.nature.checks_ns, self._go, OLD)

    def _go(self, point: str) -> None:
        self.host.appear(beside(point))

    def leave(self) -> None:
        if self.moving.parameters.abrupt:
            self.host.cut()
            self.moving.went()
        else:
            self.host.perform(self.host.core.move_out(self.moving.agenda.now))

    def come(self) -> None:
        self._go(NEW)

    def _told(self, effect: e.Effect) -> None:
        moving = self.moving
        match effect:
            case e.Deliver(publication):
                assert publication.id is not None
                moving.delivered(publication.id.number)
            case e.Gap(lost, reason):
                moving.note("lost", client=MOBILE, count=lost, reason=reason)
            case e.Moved(attached):
                (moving.is_up if attached else moving.went)()
            case e.Failed(reason):
                raise AssertionError(f"nothing fails here: {reason}")
            case _:
                pass
