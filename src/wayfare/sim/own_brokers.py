"""One client moves once, on Wayfare's own brokers: with handoff, and no service is needed."""

from __future__ import annotations

from typing import Any

from wayfare.core.codec import encode
from wayfare.core.effects import Effect, Received
from wayfare.core.effects import Event as CoreEvent
from wayfare.core.messages import Ack, Deliver, Welcome
from wayfare.eventlog import Event
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import LinkSpec, wireless
from wayfare.sim.one_move import (
    EDGES,
    HOME,
    MOBILE,
    NEW,
    OLD,
    PAYLOAD,
    PUBLISHER,
    TOPIC,
    Experiment,
    Parameters,
)
from wayfare.sim.systems import LAN_NS
from wayfare.sim.traffic import CARRIED
from wayfare.sim.world import World, innermost


class Handoff(Experiment):
    """A client by radio has to set up its connection first."""

    def __init__(self, parameters: Parameters) -> None:
        wire = LinkSpec(latency_ns=LAN_NS)
        self.world = World(parameters.seed, broker_link=wire, client_link=wire)
        super().__init__(parameters, self.world.agenda)
        self.world.add_brokers(EDGES)
        self.world.listeners.append(self._happened)
        self.sizes = self.control = 0
        self.subscribed_ns: int | None = None
        self.publisher = self.world.add_client(PUBLISHER, HOME)
        self.publisher.advertise(f"topic = '{TOPIC}'")
        self.world.settle()
        self.mobile: ClientHost = self.world.add_client(
            MOBILE, OLD, attach=False, link=wireless(parameters.profile(), tcp=True)
        )
        self.world.watchers.append(self._saw)
        self._step, self.mobile.step = self.mobile.step, self._mobile_step

    def _mobile_step(self, event: CoreEvent, now: int) -> list[Effect]:
        if type(event) is Received and isinstance(event.message, Welcome):
            self.is_up()
        return self._step(event, now)

    def _saw(self, sender: str, receiver: str, message: Any) -> None:
        if receiver == MOBILE and isinstance(message, Deliver):
            self.sizes = max(self.sizes, len(encode(message)))
        elif receiver == MOBILE and isinstance(message, Welcome) and self.subscribed_ns is None:
            self.subscribed_ns = self.agenda.now
        elif sender in self.world.brokers and receiver in self.world.brokers:
            self.control += not isinstance(innermost(message), (*CARRIED, Ack))

    def _happened(self, event: Event) -> None:
        if event.client == MOBILE and event.kind == "delivered":
            self.delivered(event.number or 0)
        elif event.client == MOBILE and event.kind == "detached" and self.out_ns:
            self.went()
        elif event.client == MOBILE and event.kind == "lost":
            self.note("lost", client=MOBILE, count=event.count, reason=event.reason)

    def _connect(self, broker: str) -> None:
        """A round trip for TCP, then the attachment."""
        up, down = self.mobile.channels
        assert up is not None and down is not None
        there = up.send(self.agenda.now, 0)
        self.agenda.at(there, lambda _: self.agenda.at(down.send(there, 0), self._attach, broker))

    def _attach(self, broker: str) -> None:
        self.mobile.attach(broker)

    def subscribe(self) -> None:
        for i in range(self.parameters.s):
            self.mobile.subscribe(f"topic = '{TOPIC}' and without{i} is null")
        self._connect(OLD)

    def subscribe_ns(self) -> int | None:
        return self.subscribed_ns

    def publish(self) -> None:
        self.publisher.publish({"topic": TOPIC}, PAYLOAD)

    def leave(self) -> None:
        if self.parameters.abrupt:
            self.mobile.disconnect()
        else:
            self.mobile.detach()

    def come(self) -> None:
        self._connect(NEW)

    def is_busy(self) -> bool:
        return False

    def missed_bytes(self, missed: int) -> int:
        return missed * self.sizes

    def costs(self) -> dict[str, int]:
        channels = [one for one in self.mobile.channels if one is not None]
        return {
            "service_messages": 0,
            "control": self.control,
            "radio_bytes": sum(channel.bytes for channel in channels),
        }
