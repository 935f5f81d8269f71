"""The conversation of a client with its broker, whichever that is: one connection after the other.

    go -> rounds over all addresses -> connected -> Attach ... Welcome -> there, until the connection is gone
                    ^                                                                     |
                    +------------------------ the next address ---------------------------+

It steps the core with what comes, and performs what the core wants said. What concerns the application is told
to the client by the functions that it gives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from wayfare.core import messages as m
from wayfare.core.client import Client
from wayfare.core.codec import encode
from wayfare.core.effects import Close, Effect, Event, LinkDown, Received, Send, Tick
from wayfare.core.messages import BrokerId, LinkId
from wayfare.errors import CannotConnect, CodecError, LoginFailed, Refused, UsageError
from wayfare.net.addresses import Address
from wayfare.net.alarm import Alarm
from wayfare.net.connection import Connection, Turn
from wayfare.net.connectivity import Connectivity
from wayfare.net.heartbeat import SILENT_BEATS
from wayfare.net.life import Life
from wayfare.net.options import Settings
from wayfare.net.rounds import Rounds
from wayfare.net.security import client_context, vouch
from wayfare.net.stalls import running_timeout
from wayfare.net.tasks import Tasks
from wayfare.net.unrecorded import Unrecorded
from wayfare.net.wire import LINGER_S, Wire, cut_off, gone

NOTIFYING = frozenset(
    (m.Deliver, m.Current, m.Late, m.Gap, m.Settled, m.Here, m.HereGap)
)  # wait when the client has no room

logger = logging.getLogger("wayfare.client")


class Conversation:
    """That of one client."""

    def __init__(
        self,
        core: Client,
        life: Life,
        connectivity: Connectivity,
        recorder: Unrecorded,
        addresses: list[Address],
        settings: Settings,
        *,
        tell: Callable[[Effect], None],
        heard: Callable[[m.AnyMessage], None],
        may_take: Callable[[], bool],
        keep: Callable[[], bool],
        go_round: Callable[[Rounds], Coroutine[Any, Any, None]],
    ) -> None:
        """What the client does:

        tell       gets what the core has for the application
        heard      is called behind every message that is no notification
        may_take   says whether there is room for another notification
        keep       makes safe what happened, before anybody hears of it; False if that failed
        go_round   goes over the addresses, as long as there is any use in it
        """
        self.name: str = core.name
        self.broker = ""  # the name of the broker where it is; "": nowhere
        self.wire: Wire | None = None
        self.wires: set[Wire] = set()  # that are not closed yet; one of them, at the most, is used
        self.trouble = ""  # of the last attempt to connect
        self.announced = False  # brokers were found: if one refuses the client, it tries others
        self._refusing: set[Address] = set()  # those that did, since the client was last welcomed
        self.keep = keep
        self.tasks = Tasks(self._fail)
        tls = None
        if settings.ca or settings.cert or settings.crl:
            tls = client_context(settings.ca, settings.cert, settings.crl)
        self.rounds = Rounds(self, addresses, settings.timeout, tls, settings.crl)
        self._core = core
        self._life = life
        self._connectivity = connectivity
        self._recorder = recorder
        self._timeout, self._heartbeat_s = settings.timeout, settings.heartbeat_s
        self._login: m.Login | None = None
        if settings.password is not None:
            self._login = m.Login(settings.account or self.name, settings.password)
        self._tell, self._heard, self._may_take = tell, heard, may_take
        self._go_round = go_round
        self._link = LinkId("")  # of the last attachment
        self._held: deque[m.AnyMessage] = deque()  # come, but not taken: a broker's window at most
        self._keeper: asyncio.Task[None] | None = None  # keeps it connected; None: it is away
        self._alarm = Alarm(lambda: self.step(Tick(), time.monotonic_ns()))
        self._turn = Turn(self._flush)

    def vouch(self, address: str, secret: str | None) -> None:
        """Say at the next login that a device at this address logs in, if brokers can believe it."""
        if self._login is not None and secret is not None and address:
            name, password = self._login.name, self._login.password
            proof = vouch(secret, name, password, address)
            self._login = m.Login(name, password, address, proof)

    # Coming and going

    async def begin(self) -> None:
        """Connect, and wait until a broker has welcomed the client."""
        self.tasks.run(self._beat())
        self._go()
        await self._arrive()

    async def prepare(self, there: Address) -> Wire | None:
        """A connection to this broker, which has greeted the client, while the one that is used stays.

        None if no broker is there. Whoever asked for it uses it for a `move`, or closes it.
        """
        wire = Wire(self, self.name, there)
        try:
            async with running_timeout(self._timeout):
                await self.rounds.connect(there, wire)
                while not (wire.peer or wire.gone):
                    wire.changed.clear()
                    await wire.changed.wait()
        except (OSError, UnicodeError):
            wire.close("no greeting")
        except BaseException:
            wire.close("not needed any more")
            raise
        return wire if wire.peer and not wire.closing else None

    async def move(self, there: Address, spare: Wire | None = None, why: str = "moves") -> None:
        """With a spare connection, from `prepare`, nothing has to be dialled."""
        self.rounds.begin_with(there, spare)
        if self.broker and self.wire is not None and self.wire.address == there:
            return
        if self._core.will is not None and self.wire is not None:
            self.perform(self._core.detach(moves=True))
        self._go(why)
        await self._arrive()
        overtaken = self.rounds.addresses[0] != there  # by another move
        if self.wire is not None and self.wire.address != there and not overtaken:
            raise CannotConnect(
                f"{self.name} is at {self.broker} and not at {there}: {self.trouble or 'no answer'}"
            )

    def detach(self) -> None:
        """Be away, until `attach`."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        self.perform(self._core.detach())
        self._let_go("detached")

    async def attach(self) -> None:
        if self._keeper is None:
            self._go()
        await self._arrive()

    @property
    def is_away(self) -> bool:
        """It does not even try to be anywhere."""
        return self._keeper is None

    def say_goodbye(self, *, leave: bool) -> None:
        """With `leave`, for good."""
        if leave:
            self._record("left", self.wire)
        self.perform(self._core.detach(leave=leave))

    def stop(self) -> None:
        """Nothing is done any more; what was sent may still go out."""
        self.tasks.cancel()
        self._alarm.clear()
        self._let_go("closes")

    async def fade_out(self) -> None:
        """Wait until what was sent is gone, for a moment."""
        try:
            async with asyncio.timeout(LINGER_S):
                for wire in list(self.wires):
                    await gone(wire)
        except TimeoutError:
            pass
        finally:
            for wire in list(self.wires):
                wire.abort("it does not read")
        await self.tasks.join()

    def _go(self, why: str = "moves") -> None:
        """Leave the broker where it is, and look for one from the first address on."""
        if self._keeper is not None:
            self._keeper.cancel()
        self._let_go(why)
        self.trouble = ""
        self._keeper = self.tasks.run(self._go_round(self.rounds))

    async def _arrive(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self.arrived()
        except TimeoutError:
            where = ", ".join(map(str, self.rounds.addresses))
            wire, why = self.wire, self.trouble or "no answer"
            if not self.trouble and wire is not None and wire in self.wires:
                why = wire.silence()
            raise CannotConnect(
                f"cannot reach a broker at {where} within {self._timeout:g} s: {why}"
            ) from None

    async def arrived(self) -> None:
        """Wait until a broker has welcomed it, however long that takes."""
        await self._life.until(lambda: self.broker != "")

    async def answered(self, wire: Wire) -> bool:
        """Whether the broker has heard all that was said there; False if it was left meanwhile."""
        asked = wire.ask()
        await self._life.until(lambda: wire.answered >= asked or self.wire is not wire)
        return wire.answered >= asked

    def _let_go(self, reason: str) -> None:
        """The connection is not used any more; what was sent may still go out."""
        wire, self.wire = self.wire, None
        if wire is None:
            return
        broker, self.broker = self.broker, ""
        self._held.clear()  # it is not acknowledged, and comes again
        if wire.link:
            self._record("detached", wire)
            self.step(LinkDown(LinkId(wire.link)), time.monotonic_ns())
        wire.close(reason)
        if not wire.gone:
            asyncio.get_running_loop().call_later(LINGER_S, cut_off, wire)
        self._life.changed.set()
        if broker:
            self._connectivity.disconnected(broker, reason)

    def _give_up(self, error: Callable[[], Exception], why: str) -> None:
        self._life.stop(error)
        self._let_go(why)

    def _fail(self, error: BaseException) -> None:
        """A mistake of our own: the state is not to be trusted any more."""
        logger.error("%s stops, for a bug: %r", self.name, error, exc_info=error)
        self._life.stop(lambda: _bug(self.name, error))
        wire, self.wire = self.wire, None
        broker, self.broker = self.broker, ""
        if wire is not None:
            wire.abort("a bug")
        if broker:
            self._connectivity.disconnected(broker, f"stopped by a bug of Wayfare: {error!r}")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            wire = self.wire
            if wire is None or wire.peer == "":
                continue
            wire.silent = 0 if wire.beat() else wire.silent + 1
            if wire.silent >= SILENT_BEATS:
                wire.abort(f"silent for {wire.silent * self._heartbeat_s:g} s")

    # The core

    def step(self, event: Event, now: int) -> None:
        self.perform(self._core.step(event, now))

    def perform(self, effects: list[Effect]) -> None:
        wire = self.wire
        for effect in effects:
            if type(effect) is Send:
                if wire is not None and effect.link == wire.link:
                    wire.send(encode(effect.message))
            elif type(effect) is not Close:
                self._tell(effect)
            elif wire is not None:
                if effect.fault:
                    wire.refuse(effect.reason)
                else:
                    wire.close(effect.reason)
        due = self._core.next_deadline()
        if due is not None and due < self._alarm.due:
            self._alarm.set(due, time.monotonic_ns())

    def take_held(self) -> None:
        """There is room again."""
        now = time.monotonic_ns()
        while self._held and self._may_take() and self.wire is not None:
            self.step(Received(self._link, self._held.popleft()), now)

    def flush_soon(self) -> None:
        """Write, and write down, what there is, at the end of this turn of the loop."""
        self._turn.ask()

    def _flush(self) -> None:
        if self.wire is not None:
            self.wire.flush()
        else:
            self.keep()

    def _record(self, kind: str, wire: Wire | None) -> None:
        """What happened between it and the broker at the other end, once that said who it is."""
        if wire is not None and wire.peer:
            self._recorder.fact(kind, broker=wire.peer, epoch=self._core.epoch)

    # What rounds over its addresses ask for

    def has_failed(self) -> bool:
        return self._life.error is not None

    def begin_visit(self, address: Address, spare: Wire | None) -> Wire:
        self.wire = spare or Wire(self, self.name, address)
        if spare is not None:
            self._attach(spare, BrokerId(spare.peer))
        return self.wire

    def end_visit(self, wire: Wire, why: str) -> None:
        self.trouble = why
        if wire is self.wire:
            self._let_go("no welcome")

    # What connections report

    def on_connected(self, connection: Connection) -> None:
        if self._login is not None and not connection.private:
            said = (
                f"the password of {self._login.name} would cross the network in clear, to"
                f" {connection.host}: use an address with wayfares://"
            )
            self._give_up(lambda: UsageError(said), said)
        elif connection is self.wire and self._core.may_attach_unseen():
            # That saves a round trip. Nobody but who speaks our version reads what is behind our Hello.
            try:
                self._attach(self.wire, None)
            except Exception as error:
                self._fail(error)

    def _attach(self, wire: Wire, broker: BrokerId | None) -> None:
        link = LinkId(f"{self.name}#{self._core.epoch + 1}")
        try:
            effects = self._core.attach(broker, link, time.time_ns())
        except UsageError as error:  # it will not be at this broker
            said = str(error)
            self._give_up(lambda: UsageError(said), said)
            return
        wire.link = self._link = link
        if self._login is not None:
            wire.send(encode(self._login))
        self._record("attached", wire)
        self.perform(effects)

    def on_messages(self, connection: Connection, messages: list[m.AnyMessage]) -> None:
        wire = self.wire
        if connection is not wire:  # it was left, or is a spare one
            if isinstance(connection, Wire):
                connection.changed.set()
            return
        now = time.monotonic_ns()
        try:
            for message in messages:
                if type(message) not in NOTIFYING:
                    self._hear(wire, message, now)
                elif self._held or not self._may_take():
                    self._held.append(message)
                else:
                    self.step(Received(self._link, message), now)
                if wire is not self.wire:
                    return
        except CodecError:
            raise
        except Exception as error:
            self._fail(error)

    def _hear(self, wire: Wire, message: m.AnyMessage, now: int) -> None:
        if isinstance(message, m.Hello):
            if wire.link:
                self._core.greet(BrokerId(message.name))
                self._record("attached", wire)
            else:
                self._attach(wire, BrokerId(message.name))
        elif isinstance(message, m.Refused):
            self._on_refused(wire, message)
        elif isinstance(message, m.Ping):
            wire.answer(message)
            wire.answered += message.answer
            self._life.changed.set()
        else:
            self.step(Received(self._link, message), now)
            if type(message) is m.Welcome and not wire.closing:
                self._be_welcome(wire)
            self._heard(message)
            self._life.changed.set()

    def _be_welcome(self, wire: Wire) -> None:
        first = not wire.welcomed
        self.broker, wire.welcomed = wire.peer, True
        self._refusing.clear()
        wire.changed.set()
        if first:
            self._connectivity.connected(wire.peer)

    def _on_refused(self, wire: Wire, message: m.Refused) -> None:
        said = f"{wire.peer or wire.address} closed the connection: {message.reason}"
        self.trouble = said
        if message.again or self._may_try_others(wire):
            self._let_go(message.reason)
        else:
            kind = LoginFailed if message.login else Refused
            self._give_up(lambda: kind(said), message.reason)

    def _may_try_others(self, wire: Wire) -> bool:
        """Whether others are left: of brokers that announce themselves, one alone may refuse whom it likes."""
        if not self.announced or wire.welcomed:
            return False
        there = set(self.rounds.addresses)
        self._refusing = (self._refusing & there) | {wire.address}
        return bool(there - self._refusing)

    def on_closing(self, connection: Connection) -> None:
        connection.finish()

    def on_closed(self, connection: Connection) -> None:
        assert isinstance(connection, Wire)
        self.wires.discard(connection)
        connection.gone = True
        connection.changed.set()
        if connection is self.wire:
            why = connection.reason or "it closed the connection"
            self.trouble = connection.trouble(why)
            self._let_go(why)

    def on_output(self, connection: Connection) -> None:
        self._turn.ask()

    def on_writable(self) -> None:
        self._life.changed.set()


def _bug(name: str, error: BaseException) -> RuntimeError:
    out = RuntimeError(f"{name} was stopped by a bug of Wayfare: {error!r}; please report it")
    out.__cause__ = error
    return out
