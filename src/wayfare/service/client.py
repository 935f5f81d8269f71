"""A client of somebody else's publish/subscribe system that moves.

    async with connect("ann", proxy="127.0.0.1:7500") as ann:
        await ann.subscribe("news/#")
        async for message in ann:
            ...

and when the machine moves: `await ann.move_out()`, later `await ann.move_in("10.0.0.7:7500")`. Who is cut off
calls `move_in` only. The agent of a machine (`agent=""`, the usual one) does both for all clients on it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import msgspec

from wayfare.errors import CannotConnect, Closed, Refused, UsageError
from wayfare.net.alarm import Alarm
from wayfare.net.stalls import Stalls, watch
from wayfare.net.unrecorded import Unrecorded
from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.adapters import adapter, refusal
from wayfare.service.agent import Registration
from wayfare.service.answers import Answers, within
from wayfare.service.effects import Gap
from wayfare.service.errands import Errands, name_of
from wayfare.service.library import PATIENCE_NS, Library
from wayfare.service.messages import SECOND_NS, Sync
from wayfare.service.options import Options, Record, options
from wayfare.service.proxy_addresses import where
from wayfare.service.system import Property, Publication, System, Trust
from wayfare.service.wire import Wires, ask

LEAVE_S = 2.0  # that closing waits for a proxy that is to let go of the client
INBOX_MAX = 1_000  # messages that the application has not taken: then no more is read

log = logging.getLogger(__name__)

Message = Publication


class Client:
    """Made by `connect`."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        agent = options.agent
        self._registration = None if agent is None else Registration(agent, name)
        self._heeding: asyncio.Task[None] | None = None
        self._first = options.proxy
        self._recorder = Unrecorded()
        self._wires = Wires(self._step, trust=options.trust)
        self._alarm = Alarm(lambda: self._step(e.Tick()))
        self._stalls = Stalls(now)
        self._watching: asyncio.Task[None] | None = None
        self._inbox: deque[Message | Gap] = deque()
        self._changed = asyncio.Event()  # something is in the inbox, or it is closed
        self._room = asyncio.Event()
        self._answers = Answers()
        self._begun = False  # there is a library, and what belongs to it
        self._refusal: Refused | None = None  # why it cannot come back
        self._closed = False
        self._closing: asyncio.Task[int] | None = None
        self._delivered = 0
        self._told_upto = 0  # the last change of which who waits for it was told
        self.system: System
        self._kind: str  # an address of that system
        self._library: Library
        self._errands: Errands

    # ---- coming and going --------------------------------------------------------------

    async def __aenter__(self) -> Client:
        if self._begun:
            raise UsageError("a client is entered once: make another one with `connect`")
        try:
            await self._begin()
        except BaseException:
            if self._registration is not None:
                self._registration.close()
            raise
        if self._registration is not None:
            self._heeding = asyncio.create_task(self._registration.heed(self))
        return self

    async def _begin(self) -> None:
        if self._registration is not None:
            self._first = await self._registration.first()
        options = self._options
        welcome = await ask(self._first, self.name, options.trust)
        self.system, self._kind = adapter(welcome.access, options.trust), welcome.access
        # Another process of this name may have been here before: stays go on from it.
        self._library = Library(
            self.name,
            options.key or secrets.token_hex(16),
            self.system,
            msgspec.structs.replace(options.terms, lasting=options.key is not None),
            options.sync,
            options.patience_ns,
            sender=f"{self.name}~{secrets.token_hex(4)}",
        )
        self._library.stay = time.time_ns() // 1_000
        if options.key is not None:
            self._library.behind[welcome.proxy] = (0, False)
        for subscription in options.subscriptions:
            self.system.check(subscription)
            self._library.subscribe(subscription, False, now())
        self._errands = Errands(
            self.name,
            name_of(self.name),
            self.system,
            self._step,
            self._deliver,
            self._unwanted,
        )
        if options.record is not None:
            from wayfare.net.recording import Recorder  # brings pyarrow, which takes its time

            self._recorder = Recorder(self.name, options.record, _no_network)
            await self._recorder.open()
        self._begun = True
        self._stalls.come_by()
        self._watching = asyncio.create_task(watch(self._mind_stall))
        known = self._answers.wait("known")
        try:
            await self.move_in(self._first)
            # The name may be somebody else's: Refused.
            if not await within(known, options.patience_ns / SECOND_NS):
                log.warning("%s: nobody says yet that it is stood in for", self.name)
        except BaseException:
            known.cancel()
            await self.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> int:
        """Leave. Nobody stands in for the client any more; but for one with a `key`, that is away.

        Returns how many publications no access point is known to have: they may be lost.
        """
        if not self._begun:
            return 0
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.create_task(self._close())
        return await asyncio.shield(self._closing)  # who does not wait for it leaves nothing open

    async def _close(self) -> int:
        for task in filter(None, (self._heeding, self._watching)):
            task.cancel()
            await asyncio.wait([task])
        if self._registration is not None:
            self._registration.close()  # it may not have begun to heed
        was_attached = self.state == "attached"
        left = self._library.unsent
        if left:
            log.warning("%s closes before an access point has %d publications", self.name, left)
        self._answers.close(Closed("the client was closed"))
        self._alarm.clear()
        if was_attached or self._options.key is None:  # else the next process goes on
            self._perform(self._library.leave(now()))
            await self._wires.said(LEAVE_S)
        await self._errands.stop()
        self._wires.close()
        self._changed.set()
        self._room.set()
        if was_attached:
            self._note("left")
        await self._recorder.close()
        return left

    @property
    def state(self) -> str:
        """One of `attached`, `moving-out`, `away`, `moving-in`."""
        return self._library.state if self._begun else "away"

    @property
    def place(self) -> str:
        """The proxy where it is, or was last, as it was named."""
        return self._library.proxy if self._begun else self._first

    async def move_in(self, proxy: str = "") -> None:
        """Appear at this proxy; without one, at the last one. Returns when all that was kept is here.

        A client that was attached elsewhere is cut off there, as it is when it loses its network.
        CannotConnect: nobody answers there, and the client is away; try again, or another proxy.
        """
        self._check_open()
        proxy = proxy or self._library.proxy or self._first
        where(proxy)
        while self.state == "moving-out" and (others := self._answers.waiting("moved")):
            await asyncio.wait(others)
            self._check_open()
        instead = CannotConnect(f"the client moves in at {proxy} instead")
        self._answers.answer("moved", error=instead)
        self._refusal = None
        self._wires.hang(self._library.proxy)  # it may be a connection of another network
        await self._move(lambda: self._library.move_in(proxy, now()))

    async def move_out(self, *, suspend: bool = False) -> None:
        """Have the proxy take over, then leave the access point.

        With `suspend`, a system that can is asked to keep the subscriptions of this client, too.
        """
        self._check_open()

        def begin() -> list[e.Effect]:
            effects = self._library.move_out(now(), suspend)
            self._note("detached")
            return effects

        await self._move(begin)
        await self._errands.done()

    async def _move(self, begin: Callable[[], list[e.Effect]]) -> None:
        effects = begin()
        moved = self._answers.wait("moved")
        self._perform(effects)
        self._arm()
        self._room.set()
        self._settle()
        await moved

    # ---- what applications do ----------------------------------------------------------

    async def subscribe(
        self, subscription: str, *more: str, local: bool = False, means: Any = None
    ) -> None:
        """Subscribe, in the language of the system; if the client is away, when it is back.

        Returns when the access point and the proxy have it: who is cut off then misses nothing.
        Several at once take no longer than one: what matters on a slow link.
        A `local` subscription is not stood in for, and ends when the client moves elsewhere.
        `means`: the same as a filter of Wayfare's language, for the event log.
        """
        self._check_open()
        for text in (subscription, *more):
            self.system.check(text)
        effects = self._library.subscribe(subscription, local, now(), *more)
        change = self._library.changes
        asked = any(isinstance(effect, e.Subscribe) for effect in effects)
        self._perform(effects)
        if means is not None:
            self._recorder.fact("subscribed", filter=means)
        if asked:
            wait = self._answers.wait
            await asyncio.gather(*(wait("subscribed", text) for text in (subscription, *more)))
            if not local:
                await self._confirmed(change)

    async def _confirmed(self, change: int) -> None:
        """The proxy has what was changed. Without its proxy a client goes on."""
        if self.state != "attached" or self._library.confirmed >= change:
            return
        changed = self._answers.wait("changed", change)
        if not await within(changed, self._options.patience_ns / SECOND_NS):
            log.warning("%s: its proxy does not say that it has the subscription", self.name)

    async def unsubscribe(self, subscription: str) -> None:
        """What is on its way may still come."""
        self._check_open()
        self._perform(self._library.unsubscribe(subscription, now()))
        await self._errands.done()

    async def publish(self, topic: str, payload: bytes = b"", /, **properties: Property) -> None:
        """Publish. Returns when the access point has it; if the client is away, it is sent later.

        OutboxFull: too much waits for an access point. UsageError, Refused: the system will not have it.
        Closed: the client was closed before an access point had it.
        """
        self._check_open()
        for name, value in properties.items():
            if not isinstance(value, Property):  # a payload that was named, perhaps
                raise UsageError(
                    f"the property {name} is a text, a number or a bool, and no {type(value).__name__}"
                )
        effects = self._library.publish(Publication(topic, payload, properties), now())
        self._perform(effects)
        sent = next((effect for effect in effects if isinstance(effect, e.Publish)), None)
        attributes = {**properties, "topic": topic}
        self._recorder.published(self._library.published, self._library.stay, attributes)
        if sent is not None:
            await self._answers.wait("published", id(sent.publication))

    def __aiter__(self) -> Client:
        return self

    async def __anext__(self) -> Message | Gap:
        """The next message; or a Gap where some are missing.

        Refused: the client was cut off, and may not come back: another process goes on with it.
        """
        while not self._inbox:
            if self._closed:
                raise StopAsyncIteration
            self._check_open()
            if self._refusal is not None:
                raise self._refusal
            self._changed.clear()
            await self._changed.wait()
        message = self._inbox.popleft()
        if len(self._inbox) == INBOX_MAX // 2 or not self._inbox:
            self._room.set()
        return message

    # ---- the host of the core ----------------------------------------------------------

    def _step(self, event: e.Event) -> None:
        if self._closed:
            return
        match event:
            case e.Subscribed(_, subscriptions):
                for subscription in subscriptions:
                    self._answers.answer("subscribed", subscription)
            case e.Published(_, publication):
                self._answers.answer("published", id(publication))
            case e.Received(_, m.Registered()):
                self._answers.answer("known")
        if type(event) is not e.Arrived:  # which judges nobody
            self._mind_stall()
        self._perform(self._library.step(event, now()))
        if type(event) is not e.Arrived:
            self._tell_confirmed()
            self._arm()
            if isinstance(event, e.AccessGone):
                self._settle()

    def _mind_stall(self) -> None:
        """If this process did not run for a while, its proxy gets that much more time to answer."""
        if for_ns := self._stalls.come_by():
            log.info("%s did not run for %.1f s", self.name, for_ns / 1e9)
            self._perform(self._library.step(e.Stalled(for_ns), now()))

    def _tell_confirmed(self) -> None:
        while self._told_upto < min(self._library.confirmed, self._library.changes):
            self._told_upto += 1
            self._answers.answer("changed", self._told_upto)

    def _arm(self) -> None:
        if not self._closed:
            self._alarm.set(self._library.next_deadline(), now())

    def _perform(self, effects: Sequence[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.Deliver(publication):
                    self._hand_out(publication)
                case e.Send(peer, message):
                    self._wires.send(peer, message)
                case e.Dial(peer):
                    self._wires.dial(peer)
                case e.Hang(peer):
                    self._wires.hang(peer)
                case e.Open(client, access, resume):
                    self._open(client, access, resume)
                case e.Shut() | e.Subscribe() | e.Unsubscribe() | e.Publish():
                    self._errands.ask(effect)
                case e.Gap():
                    self._tell(effect)
                    self._recorder.fact("lost", count=effect.lost, reason=effect.reason)
                case e.Ended(subscription):
                    log.info("%s: the local subscription %s ended", self.name, subscription)
                case e.Moved(attached):
                    if attached:
                        self._note("attached")
                    else:
                        self._settle()
                    self._answers.answer("moved")
                case e.Failed(reason, refused):
                    self._fail(reason, refused)
                case _:
                    raise AssertionError(f"no effect of a library: {effect}")

    def _fail(self, reason: str, refused: bool) -> None:
        if self.state != "attached":
            self._settle()
        refusal = Refused(f"{self._library.proxy} refuses {self.name!r}: {reason}")
        if self._library.replaced:
            self._refuse(refusal)
        told = self._answers.answer("moved", error=refusal if refused else CannotConnect(reason))
        if told or self._answers.answer("known", error=refusal):
            return
        log.warning("%s: nobody stands in for it: %s", self.name, reason)
        if self.state == "away":  # it was on its way back by itself, and cannot come
            self._refuse(refusal)

    def _refuse(self, refusal: Refused) -> None:
        self._refusal = refusal
        self._changed.set()

    def _open(self, client: str, access: str, resume: bool) -> None:
        if reason := refusal(access, self._kind):
            refused = e.Received(self._library.proxy, m.Refused(client, reason))
            asyncio.get_running_loop().call_soon(self._step, refused)
            return
        if self._options.login:
            access = access.replace("://", f"://{self._options.login}@", 1)
        self._errands.ask(e.Open(client, access, resume))

    async def _deliver(self, publication: Publication) -> None:
        self._step(e.Arrived(self.name, publication))
        # A system that notices that somebody is slow is better than a full memory. While the client
        # moves, pings must not wait.
        while len(self._inbox) >= INBOX_MAX and self.state == "attached" and not self._closed:
            self._room.clear()
            await self._room.wait()

    def _hand_out(self, publication: Publication) -> None:
        self._tell(publication)
        self._delivered += 1
        mark = publication.id
        self._recorder.fact(
            "delivered",
            publisher=None if mark is None else mark.sender.rpartition("~")[0],
            number=None if mark is None else mark.number,
            delivery=self._delivered,
            epoch=self._library.stay,
            attributes={**publication.properties, "topic": publication.topic},
        )

    def _tell(self, message: Message | Gap) -> None:
        self._inbox.append(message)
        self._changed.set()

    def _unwanted(self, what: str | Publication, error: Exception) -> None:
        if isinstance(what, str):
            told = self._answers.answer("subscribed", what, error)
            if told and what in self._library.subscriptions:  # its caller knows that there is none
                self._perform(self._library.unsubscribe(what, now()))
                self._tell_confirmed()
        else:
            told = self._answers.answer("published", id(what), error)
        if not told:  # of a subscription, another access point may
            log.warning("%s: the system will not have it: %s", self.name, error)

    def _settle(self) -> None:
        """Without an access point, what was asked waits in the library, and nobody for it."""
        self._answers.settle("subscribed", "changed", "published")

    def _note(self, kind: str) -> None:
        self._recorder.fact(kind, broker=self._library.at, epoch=self._library.stay)

    def _check_open(self) -> None:
        if not self._begun:
            raise UsageError("enter the client first: async with connect(...) as client")
        if self._closed:
            raise Closed("the client was closed")


def connect(
    name: str,
    proxy: str = "",
    *,
    agent: str | None = None,
    sync: str | Sync = "ping",
    move_out_sync: str | Sync | None = None,
    duplicates: bool = False,
    last: int | None = None,
    age: float | None = None,
    standby: bool = True,
    lease: float = 10.0,
    patience: float = PATIENCE_NS / SECOND_NS,
    key: str | None = None,
    subscriptions: Sequence[str] = (),
    login: str = "",
    ca: str = "",
    cert: tuple[str, str] | None = None,
    record: Record | None = None,
) -> Client:
    """Make a client of the system that this proxy stands beside; `async with` connects it.

    `agent`: where the agent of this machine listens ("": where it does by itself); it says where the proxy is.
    `sync` and `move_out_sync`: how it is made sure, when the client moves in and out, that nothing falls
    between two access points: `ping`, `none`, or `delay 200` (milliseconds). `duplicates`: as the paper has
    it, copies are kept. `last` and `age` (seconds): replay no more than that. `standby`: the proxy is subscribed
    all the time, so that nothing is lost when the client is cut off without moving out; that is noticed
    after `lease` seconds. `patience`: seconds for a proxy that cannot be reached. `key`: who knows it goes on with
    the client, after a restart: what this proxy has kept for it comes, if it wants the same `subscriptions`. (What the
    process that ended had got a moment before comes again.) `login`: user:password for the system. `ca`: for TLS, a file
    with who signs the certificates of its servers, and of proxies (tls://host:port). `cert`: our own certificate and key,
    where servers require one.
    `record`: an event log.
    """
    checked = options(
        name,
        proxy,
        agent,
        sync=sync,
        move_out_sync=move_out_sync,
        duplicates=duplicates,
        last=last,
        age=age,
        standby=standby,
        lease=lease,
        patience=patience,
        key=key,
        subscriptions=subscriptions,
        login=login,
        trust=Trust(ca, cert),
        record=record,
    )
    return Client(name, checked)


def now() -> int:
    return time.monotonic_ns()


def _no_network(address: str) -> Any:
    raise UsageError(f"{address!r}: the event log of the service is a file, or a function")
