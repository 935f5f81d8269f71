"""Brokers that a client finds by itself, and the nearest of them: discover://

    found (zeroconf, or a list) -> measured, round after round -> one is clearly nearer
                                                                          |
            the old connection ends  <-  the new one is there  <----------+

`wayfare.core.nearness` decides. Here brokers are found, measured (`wayfare.net.probe`), and moved to: the client leaves
a broker only when a connection to the next one is there and has been greeted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence, Set
from contextlib import AsyncExitStack

import msgspec

from wayfare.core.nearness import Nearness
from wayfare.errors import CannotConnect, UsageError, WayfareError
from wayfare.net.addresses import Address
from wayfare.net.announced_brokers import KIND, OtherNetwork, address_of
from wayfare.net.announcements import Announcement, Announcements
from wayfare.net.conversation import Conversation
from wayfare.net.kinds import NAME, NAMES
from wayfare.net.logs import printable
from wayfare.net.options import Settings
from wayfare.net.probe import round_trip_ns
from wayfare.net.security import is_loopback
from wayfare.net.unrecorded import Unrecorded

SCHEMES = {"discover": False, "discovers": True}
SETTLE_S = 0.5  # after the first broker was found: others may be nearer
FIRST_S = 1.0  # that the first measurements may take, for which the application waits
PROBE_S = 3.0  # that later ones may take: five round trips, or more with TLS
PROBED_MAX = 8  # brokers that are measured in one round
JITTER = 0.2  # share of the interval by which a round may begin earlier or later
INSTEAD = "give the addresses of brokers, like discover://host1:7410,host2:7410"

logger = logging.getLogger("wayfare.client")


class Reach(msgspec.Struct, frozen=True):
    """What an address with discover:// says: a list of brokers, or those that announce themselves on the LAN."""

    addresses: tuple[Address, ...] = ()
    network: str = ""  # of those that announce themselves; "": any
    tls: bool = False  # brokers without it do not count


def reach_of(given: str | Sequence[str]) -> Reach | None:
    """How to discover brokers; None if these are ordinary addresses."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence | Set) or not any(map(is_discovered, texts)):
        return None
    if len(texts) > 1:
        raise UsageError(f"discover:// stands for all addresses: {INSTEAD}")
    (text,) = texts
    scheme, _, said = text.partition("://")
    tls, said = SCHEMES[scheme], said.removesuffix("/")
    if "," in said or ":" in said:
        listed = [Address.parse(one.strip()) for one in said.split(",")]
        return Reach(tuple(Address(one.host, one.port, one.tls or tls) for one in listed), tls=tls)
    if said and not NAME.fullmatch(said):
        raise UsageError(f"{text!r:.80} names no network: {NAMES}")
    return Reach(network=said, tls=tls)


def is_discovered(text: object) -> bool:
    return isinstance(text, str) and text.partition("://")[0] in SCHEMES and "://" in text


class Discovery:
    """The brokers that one client may be at. `open`, `run` and `close` it."""

    def __init__(
        self, reach: Reach, conversation: Conversation, recorder: Unrecorded, settings: Settings
    ) -> None:
        self._reach = reach
        self._conversation, self._rounds = conversation, conversation.rounds
        self._recorder = recorder
        self._timeout, self._every_s = settings.timeout, settings.probe
        self._nearness: Nearness[Address] = Nearness()
        self._announcements: Announcements[Address] | None = None
        self._ignored = (
            ""  # why a broker that announced itself does not count; its own network's come first
        )
        self._first = asyncio.Event()  # a broker was found
        self._stack = AsyncExitStack()
        if reach.addresses:
            _check_listed(reach, settings.password)
        else:
            _check_announced(settings)
            trusting = not (settings.ca or settings.cert or settings.password is not None)
            self._tls = reach.tls or not trusting
            self._announcements = Announcements(
                KIND, self._read, instead=INSTEAD, changed=self._on_found
            )
            conversation.announced = True

    # Finding them

    async def open(self) -> None:
        """Find brokers, and let the client try the nearest first; CannotConnect if there are none."""
        if self._announcements is not None:
            await self._stack.enter_async_context(self._announcements)
            await self._until_found()
        self._know()
        await self._measure(FIRST_S)
        self._rounds.addresses = self._nearness.ordered()

    async def close(self) -> None:
        await self._stack.aclose()

    async def _until_found(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._first.wait()
        except TimeoutError:
            network = f" of {self._reach.network}" if self._reach.network else ""
            ignored = f" (another was ignored: {self._ignored})" if self._ignored else ""
            raise CannotConnect(
                f"no broker{network} announces itself on this LAN within {self._timeout:g} s{ignored}: say"
                f" announce.network in its configuration, or {INSTEAD}"
            ) from None
        await asyncio.sleep(SETTLE_S)

    def _read(self, announcement: Announcement) -> Address | None:
        try:
            address = address_of(announcement, self._reach.network, tls=self._tls)
        except OtherNetwork as error:
            self._ignored = self._ignored or str(error)
            return None
        except ValueError as error:
            self._ignored = str(error)
            return None
        logger.info("%s: a broker announces itself at %s", self._conversation.name, address)
        return address

    def _on_found(self) -> None:
        self._first.set()
        self._know()

    def _know(self) -> None:
        """Measure the brokers that there are, and try them in this order when a connection breaks."""
        found = self._announcements.found.values() if self._announcements else self._reach.addresses
        here, tried = self._current(), self._rounds.addresses
        known = list(found) if here is None else [here, *found]
        self._nearness.known(known or tried)
        first = here or (tried[0] if tried else None)  # where the client is, or tries to be
        self._rounds.addresses = sorted(self._nearness.ordered(), key=lambda one: one != first)

    def _current(self) -> Address | None:
        wire = self._conversation.wire
        return wire.address if wire is not None and self._conversation.broker else None

    # Measuring them

    async def run(self) -> None:
        """Measure, and move to a broker that is clearly nearer, as long as the client goes on."""
        while True:
            await asyncio.sleep(self._every_s * random.uniform(1 - JITTER, 1 + JITTER))
            if not self._conversation.broker:
                continue
            await self._measure(PROBE_S)
            there = self._nearness.nearer()
            if there is not None and self._conversation.broker:
                try:
                    await self._move(there)
                except WayfareError:
                    return  # the client cannot go on, and the application is told
            self._know()

    async def _measure(self, most_s: float) -> None:
        current = self._current()
        due = self._nearness.due(current, PROBED_MAX)
        rtts = await asyncio.gather(*(round_trip_ns(self._rounds, one, most_s) for one in due))
        if current == self._current():  # else the client has moved meanwhile
            self._nearness.measured(current, dict(zip(due, rtts, strict=True)))

    async def _move(self, there: Address) -> None:
        here = self._conversation
        before, current = here.broker, self._current()
        wire = await here.prepare(there)
        if wire is None:
            self._nearness.failed(there)
            return
        if here.broker != before or current is None or self._current() != current:
            wire.close("the client has moved meanwhile")
            return
        why = (
            f"{printable(wire.peer)} answers in {self._ms(there)}, {before} in {self._ms(current)}"
        )
        self._recorder.fact("chosen", broker=wire.peer, reason=why)
        logger.info("%s moves to a nearer broker: %s", here.name, why)
        try:
            await here.move(there, wire, f"moves to a nearer broker: {why}")
        except CannotConnect as error:
            logger.info("%s", error)
            self._nearness.failed(there)
        else:
            self._nearness.welcomed(there)

    def _ms(self, broker: Address) -> str:
        return f"{self._nearness.rtt_ns(broker) / 1e6:.3g} ms"


def _check_listed(reach: Reach, password: str | None) -> None:
    for one in reach.addresses:
        if password is not None and not (one.tls or is_loopback(one.host)):
            raise UsageError(
                f"the password would cross the network in clear, to {one.host}: use discovers://"
            )


def _check_announced(settings: Settings) -> None:
    if settings.password is not None and not settings.ca:
        raise UsageError(
            "anybody on the LAN may announce a broker, so a password is only sent to those that a CA of yours"
            f" has signed for: name its file by ca, or {INSTEAD}"
        )
