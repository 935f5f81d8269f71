"""A client on a socket: what applications use.

    async with wayfare.connect("wayfare://127.0.0.1:7410", client_id="car-17") as car:
        await car.advertise("service = 'speed'")
        async with car.subscribe("service = 'parking' and free > 0") as parking:
            await car.publish({"service": "speed", "kmh": 92})
            async for n in parking:
                print(n["location"], n["free"])

It goes to the next address when a connection breaks, and the application does not notice: what it
publishes waits, what it subscribed to comes when it is attached again, wherever that is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import (
    Callable,
    Coroutine,
    Generator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import uuid4

from wayfare.core import client as core
from wayfare.core import messages as m
from wayfare.core.codec import encode
from wayfare.core.effects import (
    Close,
    Effect,
    Ended,
    Event,
    Interested,
    LinkDown,
    Lost,
    Notify,
    Received,
    Send,
    Tick,
)
from wayfare.core.filters import Filter
from wayfare.core.messages import BrokerId, ClientId, LinkId, Terms
from wayfare.core.predicates import Value
from wayfare.core.templates import Template
from wayfare.errors import (
    CannotConnect,
    Closed,
    CodecError,
    Refused,
    StoreError,
    UsageError,
)
from wayfare.net.addresses import Address, parse_all
from wayfare.net.alarm import Alarm
from wayfare.net.being import Being, Location
from wayfare.net.client_store import ClientStore
from wayfare.net.connection import Connection, Turn
from wayfare.net.heartbeat import SILENT_BEATS
from wayfare.net.keeping import Keeping
from wayfare.net.offer import Offer
from wayfare.net.options import Options, Settings, check_options
from wayfare.net.rounds import Rounds
from wayfare.net.security import client_context
from wayfare.net.subscription import Notification, Subscription
from wayfare.net.unrecorded import Unrecorded
from wayfare.net.wanted import Wanted, offered_as, wanted_as
from wayfare.net.wire import LINGER_S, Wire, cut_off, gone

if TYPE_CHECKING:
    from wayfare.eventlog import Event as LogEvent
    from wayfare.net.recording import Recorder

CLOSE_S = 5.0  # that closing waits for what was published to be acknowledged
NOTIFYING = frozenset((m.Deliver, m.Gap, m.Here, m.HereGap))  # wait when a queue is full

logger = logging.getLogger("wayfare.client")


class Client:
    """A client that may be anywhere. Made by `connect`."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        client_id: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = self._settings = Settings(**options)
        check_options(client_id=client_id)
        if given.store is not None and client_id is None:
            raise UsageError("a store is of one client: name it with client_id")
        self.name = client_id or f"client-{uuid4().hex[:12]}"
        tls = client_context(given.ca, given.cert) if given.ca or given.cert else None
        self._rounds = Rounds(self, parse_all(addresses), given.timeout, tls)
        self._login: m.Login | None = None
        if given.password is not None:
            self._login = m.Login(given.account or self.name, given.password)
        self.broker = ""  # the name of the broker where it is; "": nowhere
        self.lost = 0  # notifications of which it was told that they are lost
        self.wires: set[Wire] = set()  # that are not closed yet; one of them, at the most, is used
        self._core = core.Client(
            ClientId(self.name),
            given.outbox,
            outbox_bytes_max=given.outbox_bytes,
            confirms=given.store is not None,
        )
        if client_id:  # a later process of a name is never behind an earlier one, maybe killed
            self._core.epoch = self._core.published = clock()
        self._being = Being(given.areas, given.places, lambda: self._core.following.state, self._be)
        self._recorder = Unrecorded() if given.events is None else self._record_to(given.events)
        self._keeping: Keeping | None = None  # what is written down
        if given.store is not None:
            file = ClientStore(Path(given.store), given.durability, self.name)
            self._keeping = Keeping(self._core, file)
        # When it is closed; else its session waits for the next process.
        self._leaves = given.store is None
        self._wire: Wire | None = None
        self._said = self._heard_of = (
            0  # changes of what it wants and offers, and how many a broker knows
        )
        self._confirmed = 0  # the last publication that was acknowledged
        self._count_confirmed()
        self._subscriptions: dict[Filter | Template, list[Subscription]] = {}
        self._full: set[Subscription] = set()  # that have no room, so that all wait
        self._held: deque[m.AnyMessage] = deque()  # come, but not taken: a broker's window at most
        self._error: Callable[[], Exception] | None = None  # why it cannot go on
        self._opened = self._closed = False
        self._changed = asyncio.Event()  # something that somebody may wait for
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None  # keeps it connected; None: it is away
        self._alarm = Alarm(lambda: self._step(Tick(), time.monotonic_ns()))
        self._turn = Turn(self._flush)
        self._trouble = ""  # of the last attempt to connect

    def _record_to(self, events: Callable[[LogEvent], object] | str | PathLike[str]) -> Recorder:
        from wayfare.net.recording import Recorder  # brings pyarrow, which takes its time

        given = self._settings
        log = partial(
            Client,
            client_id=f"{self.name}.log",
            timeout=given.timeout,
            ca=given.ca,
            cert=given.cert,
            account=given.account or self.name,
            password=given.password,
        )
        return Recorder(self.name, events, log)

    # Life

    async def __aenter__(self) -> Self:
        return await self.open()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.open().__await__()

    async def open(self) -> Self:
        """Connect, and wait until a broker has welcomed this client."""
        if self._opened or self._closed:
            self.check()
            return self
        await self._recorder.open()
        if self._core.following.state != m.NOWHERE:
            self._recorder.became(self._core.following.state)
        self._opened = True
        self._run(self._beat())
        self._go()
        try:
            await self._arrive()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, timeout: float = CLOSE_S) -> int:
        """Leave for good, when all that was published is acknowledged, or after this time.

        A client with a store only goes away: the broker keeps its session for the next process.

        Returns how many publications nobody has acknowledged: they may be lost.
        """
        if self._closed:
            return 0
        left = 0
        try:
            if self._keeper is not None:  # who is away cannot say anything
                with suppress(Exception):  # too late, or what everybody is told who asks
                    async with asyncio.timeout(timeout):
                        await self._acknowledged()
        finally:
            left = len(self._core.outbox)
            if left:
                logger.warning("%s closes before %d publications are acknowledged", self.name, left)
            if not self._closed:
                if self._leaves:
                    self._record("left", self._wire)
                self._perform(self._core.detach(leave=self._leaves))
                await self._end()
        return left

    async def _end(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._alarm.clear()
        self._let_go("closes")
        self._wake_all()
        await self._recorder.close()
        try:
            async with asyncio.timeout(LINGER_S):
                for wire in list(self.wires):
                    await gone(wire)
        except TimeoutError:
            pass
        finally:
            for wire in list(self.wires):
                wire.abort("it does not read")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._keeping is not None:  # also of who never came anywhere: the next one has its file
            self.keep()
            self._keeping.close()

    def check(self) -> None:
        """Raise what keeps this client from going on."""
        if self._error is not None:
            raise self._error()
        if self._closed:
            raise Closed(f"{self.name} was closed")
        if not self._opened:
            raise UsageError(
                f"{self.name} is not connected yet: await it, or use it with `async with`"
            )

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.check()
            self._changed.clear()
            await self._changed.wait()

    def _wake_all(self) -> None:
        self._changed.set()
        for subscriptions in self._subscriptions.values():
            for one in subscriptions:
                one.wake()

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A mistake of our own: the state is not to be trusted any more."""
        logger.error("%s stops, for a bug: %r", self.name, error, exc_info=error)
        self._error = lambda: _bug(self.name, error)
        wire, self._wire, self.broker = self._wire, None, ""
        if wire is not None:
            wire.abort("a bug")
        self._wake_all()

    # What applications call

    def subscribe(
        self,
        wanted: Wanted,
        *,
        last: int | None = None,
        younger: float | None = None,
        key: str | None = None,
        local: bool = False,
        since: float = 0.0,
        queue: int | None = None,
        policy: str | None = None,
    ) -> Subscription:
        """Notifications that match. Begins with `async with`, `await`, or the first `get`.

        A filter that mentions `myloc` or `my.<name>` follows the client: see `location` and `state`.

        last, younger, key   of what is missed while away: the last so many, those younger than so
                             many seconds, or the newest for each value of an attribute
        local                it stays behind when the client goes to another broker
        since                also what came by in the last so many seconds, as far as the broker
                             remembers (its limit `past_count`) and as it is in order
        queue, policy        how many may wait for the application, and what happens with more:
                             wait (then nothing comes, for no subscription), drop_oldest or
                             drop_newest
        """
        queue = self._settings.queue if queue is None else queue
        policy = self._settings.policy if policy is None else policy
        check_options(
            last=last,
            younger=younger,
            key=key,
            local=local,
            since=since,
            queue=queue,
            policy=policy,
        )
        terms = None
        if last is not None or younger is not None or key is not None or local:
            younger_ns = None if younger is None else int(younger * 1e9)
            terms = Terms(last, younger_ns, key, local)
        filter = wanted_as(wanted)
        if isinstance(filter, Template) and (local or since):
            raise UsageError(
                f"{filter} follows the client, so leave out {'local' if local else 'since'}: it never"
                " stays behind, and what was kept where the client comes to is there by itself"
            )
        return Subscription(self, filter, terms, int(since * 1e9), queue, policy)

    @property
    def addresses(self) -> list[Address]:
        """Where brokers are, in the order in which they are tried."""
        return self._rounds.addresses

    @addresses.setter
    def addresses(self, given: list[Address]) -> None:
        self._rounds.addresses = given

    @property
    def location(self) -> Location | None:
        """Where the client is: what `myloc` stands for in what it subscribes to. Set it at any time.

        A name; or latitude and longitude, for `near(myloc, metres)`; None: nowhere.
        """
        return self._being.location

    @location.setter
    def location(self, there: Location | None) -> None:
        self._being.location = there

    @property
    def state(self) -> MutableMapping[str, Value]:
        """What `my.<name>` stands for. Change it at any time: `client.state["battery"] = 0.2`."""
        return self._being.values

    def _be(self, state: m.State) -> None:
        if self._opened or self._closed:
            self.check()
        if state == self._core.following.state:
            return
        effects = self._core.be(state)
        self._change()
        self._recorder.became(state)
        self._perform(effects)

    async def advertise(self, offered: Wanted) -> None:
        """Announce what will be published; nothing else may be."""
        self.check()
        self._advertise(offered_as(offered))

    def _advertise(self, filter: Filter) -> None:
        if self._keeping is not None and filter in self._core.advertisements:
            return
        effects = self._core.advertise(filter)
        self._change()
        self._recorder.fact("advertised", filter=filter)
        self._perform(effects)

    async def unadvertise(self, offered: Wanted) -> None:
        """Withdraw it, as often as it was announced."""
        self.check()
        self._unadvertise(offered_as(offered))

    def _unadvertise(self, filter: Filter) -> None:
        self._change()
        self._recorder.fact("unadvertised", filter=filter)
        self._perform(self._core.unadvertise(filter))

    def offer(self, offered: Wanted) -> Offer:
        """Advertise, and be told whether anybody wants it.

        Begins with `async with`, `await`, or the first `until_wanted` or `get`.
        """
        return Offer(self, offered_as(offered), self._until)

    async def publish(
        self, attributes: Mapping[str, Value], payload: bytes = b"", *, confirm: bool = False
    ) -> int:
        """Publish once, now or as soon as there is a broker. Returns the number of the publication.

        Waits while too many are not acknowledged, or not even read; if that is cancelled, nothing was
        published. With `confirm`, waits until a broker has it; if that is cancelled, it will be there.
        """
        await self._until(self._may_publish)
        self.check()
        effects = self._core.publish(attributes, payload)
        if self._keeping is not None:
            self._keeping.publish()
            self.keep()
            self.check()
        number = self._core.published
        self._recorder.published(number, self._core.epoch, attributes)
        self._perform(effects)
        if confirm:
            await self._until(lambda: self._confirmed >= number)
        return number

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until a broker has everything: what was published, subscribed to and advertised.

        Refused says that it does not want it.
        """
        check_options(timeout=timeout)
        async with asyncio.timeout(timeout):
            await self._acknowledged()
            await self._heard()

    async def _acknowledged(self) -> None:
        last = self._core.published
        await self._until(lambda: self._confirmed >= last)

    async def _heard(self) -> None:
        """Wait until a broker knows what this client wants and offers by now; who is away tells nobody."""
        said = self._said
        while self._heard_of < said and self._keeper is not None and not self._closed:
            await self._until(lambda: self.broker != "")
            if self._wire is not None and await self._answered(self._wire):
                self._heard_of = max(said, self._heard_of)

    async def _answered(self, wire: Wire) -> bool:
        """Whether the broker has heard all that was said there; False if it was left meanwhile."""
        asked = wire.ask()
        await self._until(lambda: wire.answered >= asked or self._wire is not wire)
        return wire.answered >= asked

    async def move(self, address: str) -> None:
        """Go to the broker at this address, and wait until it has welcomed this client.

        CannotConnect says that it did not; the client is at another address then, or goes on trying.
        """
        there = Address.parse(address)
        self.check()
        self._rounds.begin_with(there)
        if self.broker and self._wire is not None and self._wire.address == there:
            return
        self._go()
        await self._arrive()
        overtaken = self.addresses[0] != there  # by another move
        if self._wire is not None and self._wire.address != there and not overtaken:
            raise CannotConnect(
                f"{self.name} is at {self.broker} and not at {there}: {self._trouble or 'no answer'}"
            )

    async def detach(self) -> None:
        """Go away for a while: the broker keeps the session, and what comes meanwhile."""
        self.check()
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        self._perform(self._core.detach())
        self._let_go("detached")

    async def attach(self) -> None:
        """Come back, where it was if that is possible, and wait until a broker has welcomed it."""
        self.check()
        if self._keeper is None:
            self._go()
        await self._arrive()

    async def _arrive(self) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._until(lambda: self.broker != "")
        except TimeoutError:
            where = ", ".join(map(str, self.addresses))
            wire, why = self._wire, self._trouble or "no answer"
            if not self._trouble and wire is not None and wire in self.wires:
                why = wire.silence()
            raise CannotConnect(
                f"cannot reach a broker at {where} within {self._settings.timeout:g} s: {why}"
            ) from None

    def _may_publish(self) -> bool:
        full = self._wire is not None and self._wire.is_full()
        return not full and self._core.has_room()

    # What subscriptions ask for

    def begin(self, subscription: Subscription) -> None:
        self.check()
        filter, terms, mine = subscription.filter, subscription.terms, self._core
        kept = self._keeping is not None and mine.asks_for(filter)
        since_ns = subscription.since_ns
        if isinstance(filter, Template):
            if not kept or mine.following.terms.get(filter) != terms:
                effects = mine.follow(filter, terms)
                self._tell_asked("followed", filter, terms)
                self._perform(effects)
        elif not kept or since_ns or mine.terms.get(filter) != terms:
            effects = mine.subscribe(filter, terms, since_ns)
            self._tell_asked("subscribed", filter, terms)
            self._perform(effects)
        self._subscriptions.setdefault(filter, []).append(subscription)
        if self._keeping is not None:
            for notification in self._keeping.claim(filter):
                subscription.put(notification)

    def _tell_asked(self, kind: str, wanted: Filter | Template, terms: Terms | None = None) -> None:
        self._change()
        self._recorder.asked(kind, wanted, None if terms is None else m.terms_text(terms))

    def _change(self) -> None:
        """What it wants, or offers, is another thing now."""
        self._said += 1
        self._changed.set()
        if self._keeping is not None:
            self._keeping.change()

    def end(self, subscription: Subscription) -> None:
        there = self._subscriptions.get(subscription.filter, [])
        if subscription in there:
            there.remove(subscription)
            if not there:
                del self._subscriptions[subscription.filter]
            if not self._closed and self._keeping is None:
                self._drop(subscription.filter)
        self.has_room(subscription)

    def _drop(self, wanted: Filter | Template) -> None:
        if isinstance(wanted, Template):
            self._tell_asked("unfollowed", wanted)
            self._perform(self._core.unfollow(wanted))
        else:
            self._tell_asked("unsubscribed", wanted)
            self._perform(self._core.unsubscribe(wanted))

    def withdraw(self, wanted: Filter | Template) -> None:
        """Forget a subscription that was kept."""
        if self._keeping is None:
            return
        while self._core.asks_for(wanted):
            self._drop(wanted)
        for notification in self._keeping.claim(wanted):
            self.done(notification)

    def done(self, notification: Notification) -> None:
        """A subscription is done with it."""
        kept = self._keeping
        if kept is not None and kept.done(notification) and not self._closed:
            publisher, number = ClientId(notification.publisher), notification.number
            self._perform(self._core.confirm(publisher, number, time.monotonic_ns()))
            self._turn.ask()

    def has_no_room(self, subscription: Subscription) -> None:
        """What comes is not taken, so it is not acknowledged, and the broker sends no more."""
        if subscription in self._subscriptions.get(subscription.filter, ()):
            self._full.add(subscription)

    def has_room(self, subscription: Subscription) -> None:
        if subscription not in self._full:
            return
        self._full.discard(subscription)
        self._take_held()

    def _may_take(self) -> bool:
        """Whether there is room for another notification."""
        return not self._full

    def _take_held(self) -> None:
        now = time.monotonic_ns()
        while self._held and self._may_take() and self._wire is not None:
            self._step(Received(LinkId(self._wire.link), self._held.popleft()), now)

    # What offers ask for

    def begin_offer(self, offered: Filter) -> None:
        self.check()
        self._advertise(offered)
        self._change()
        self._perform(self._core.watch(offered))

    def end_offer(self, offered: Filter) -> None:
        if not self._closed:
            self._change()
            self._perform(self._core.unwatch(offered))
            if self._keeping is None:
                self._unadvertise(offered)

    def is_watching(self, offered: Filter) -> bool:
        return offered in self._core.watched

    def is_wanted(self, offered: Filter) -> bool | None:
        return self._core.wanted.get(offered)

    # Connecting

    def _go(self) -> None:
        """Leave the broker where it is, and look for one from the first address on."""
        if self._keeper is not None:
            self._keeper.cancel()
        self._let_go("moves")
        self._trouble = ""
        self._keeper = self._run(self._keep_connected())

    def _let_go(self, reason: str) -> None:
        """The connection is not used any more; what was sent may still go out."""
        wire, self._wire = self._wire, None
        if wire is None:
            return
        self.broker = ""
        self._held.clear()  # it is not acknowledged, and comes again
        if wire.link:
            self._record("detached", wire)
            self._step(LinkDown(LinkId(wire.link)), time.monotonic_ns())
        wire.close(reason)
        if not wire.gone:
            asyncio.get_running_loop().call_later(LINGER_S, cut_off, wire)
        self._changed.set()

    async def _keep_connected(self) -> None:
        await self._rounds.go()

    # What rounds over its addresses ask for

    def has_failed(self) -> bool:
        return self._error is not None

    def begin_visit(self, address: Address) -> Wire:
        self._wire = Wire(self, self.name, address)
        return self._wire

    def end_visit(self, wire: Wire, why: str) -> None:
        self._trouble = why
        if wire is self._wire:
            self._let_go("no welcome")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_s)
            wire = self._wire
            if wire is None or wire.peer == "":
                continue
            wire.silent = 0 if wire.beat() else wire.silent + 1
            if wire.silent >= SILENT_BEATS:
                wire.abort(f"silent for {wire.silent * self._settings.heartbeat_s:g} s")

    # What connections report

    def on_connected(self, connection: Connection) -> None:
        if self._login is not None and not connection.private:
            said = (
                f"the password of {self._login.name} would cross the network in clear, to"
                f" {connection.host}: use an address with wayfares://"
            )
            self._error = lambda: UsageError(said)
            self._let_go(said)
            self._wake_all()
        elif connection is self._wire and self._may_attach_unseen():
            try:
                self._attach(self._wire, None)
            except Exception as error:
                self._fail(error)

    def _may_attach_unseen(self) -> bool:
        """Whether it attaches before the broker has said who it is: that saves a round trip.

        Nobody but who speaks our version reads what is behind our Hello.
        """
        return self._core.may_attach_unseen()

    def _attach(self, wire: Wire, broker: BrokerId | None) -> None:
        wire.link = f"{self.name}#{self._core.epoch + 1}"
        if self._login is not None:
            wire.send(encode(self._login))
        effects = self._core.attach(broker, LinkId(wire.link))
        self._record("attached", wire)
        self._perform(effects)

    def on_messages(self, connection: Connection, messages: list[m.AnyMessage]) -> None:
        wire = self._wire
        if connection is not wire:
            return  # it was left
        now = time.monotonic_ns()
        try:
            for message in messages:
                self._take(wire, message, now)
                if wire is not self._wire:
                    return
        except CodecError:
            raise
        except Exception as error:
            self._fail(error)

    def _take(self, wire: Wire, message: m.AnyMessage, now: int) -> None:
        kind = type(message)
        if kind in NOTIFYING:
            if self._held or not self._may_take():
                self._held.append(message)
            else:
                self._step(Received(LinkId(wire.link), message), now)
        elif isinstance(message, m.Hello):
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
            self._changed.set()
        else:
            self._step(Received(LinkId(wire.link), message), now)
            if kind is m.Welcome and not wire.closing:
                self.broker, wire.welcomed = wire.peer, True
                wire.changed.set()
            self._count_confirmed()
            self._changed.set()

    def _count_confirmed(self) -> None:
        outbox = self._core.outbox
        self._confirmed = outbox[0].number - 1 if outbox else self._core.published

    def _on_refused(self, wire: Wire, message: m.Refused) -> None:
        said = f"{wire.peer or wire.address} closed the connection: {message.reason}"
        self._trouble = said
        if not message.again:
            self._error = lambda: Refused(said)
        self._let_go(message.reason)
        self._wake_all()

    def on_closing(self, connection: Connection) -> None:
        connection.finish()

    def on_closed(self, connection: Connection) -> None:
        assert isinstance(connection, Wire)
        self.wires.discard(connection)
        connection.gone = True
        connection.changed.set()
        if connection is self._wire:
            why = connection.reason or "it closed the connection"
            self._trouble = connection.trouble(why)
            self._let_go(why)

    def on_output(self, connection: Connection) -> None:
        self._turn.ask()

    def on_writable(self) -> None:
        self._changed.set()

    # The core

    def _step(self, event: Event, now: int) -> None:
        self._perform(self._core.step(event, now))

    def _perform(self, effects: list[Effect]) -> None:
        wire = self._wire
        for effect in effects:
            if type(effect) is Notify:
                notification = Notification(
                    effect.notification, self._core.delivered, past=effect.past
                )
                self._recorder.delivered(
                    effect.notification, self._core.delivered, self._core.epoch, effect.past
                )
                self._hand_out(notification, effect.subscriptions)
            elif type(effect) is Send:
                if wire is not None and effect.link == wire.link:
                    wire.send(encode(effect.message))
            elif type(effect) is Lost:
                self._tell_lost(effect)
            elif type(effect) is Ended:
                self._recorder.fact(
                    "unsubscribed", filter=effect.subscription, reason="stayed behind"
                )
                for one in self._subscriptions.pop(effect.subscription, []):
                    one.end()
                    self.has_room(one)
            elif type(effect) is Interested:
                kind = "wanted" if effect.wanted else "unwanted"
                self._recorder.fact(kind, filter=effect.advertisement)
            elif type(effect) is Close and wire is not None:
                if effect.fault:
                    wire.refuse(effect.reason)
                else:
                    wire.close(effect.reason)
        due = self._core.next_deadline()
        if due is not None and due < self._alarm.due:
            self._alarm.set(due, time.monotonic_ns())

    def _hand_out(self, notification: Notification, matching: Sequence[Filter | Template]) -> None:
        takers = [one for wanted in matching for one in self._subscriptions.get(wanted, ())]
        if self._keeping is not None:
            unclaimed = [wanted for wanted in matching if wanted not in self._subscriptions]
            self._keeping.hand_out(notification, len(takers), unclaimed)
            self._turn.ask()
        for one in takers:
            one.put(notification)

    def keep(self) -> bool:
        """Write down what changed, before anybody hears of it; False if that cannot be done."""
        if self._keeping is None:
            return True
        if self._error is not None:
            return False
        try:
            self._keeping.keep(self._confirmed)
        except StoreError as error:
            said = str(error)
            self._error = lambda: StoreError(said)
            if self._wire is not None:
                self._wire.abort(said)
            self._wake_all()
            return False
        return True

    def _tell_lost(self, effect: Lost) -> None:
        self.lost += effect.count
        self._recorder.fact("lost", count=effect.count, reason=effect.reason)
        if self._settings.on_lost is None:
            count = effect.count or "an unknown number of"
            logger.warning("%s lost %s notifications: %s", self.name, count, effect.reason)
            return
        try:
            self._settings.on_lost(effect.count, effect.reason)
        except Exception:  # the application's mistake, which must not cost it its connection
            logger.exception("on_lost of %s failed", self.name)

    def _record(self, kind: str, wire: Wire | None) -> None:
        """What happened between it and the broker at the other end, once that said who it is."""
        if wire is not None and wire.peer:
            self._recorder.fact(kind, broker=wire.peer, epoch=self._core.epoch)

    def _flush(self) -> None:
        if self._wire is not None:
            self._wire.flush()
        else:
            self.keep()


def connect(
    addresses: str | Sequence[str], client_id: str | None = None, **options: Unpack[Options]
) -> Client:
    """A client of the broker at one of these addresses. Use it with `async with`, or await it.

    queue, policy   how many notifications of a subscription may wait for the application, and what
                    happens with more: see `Client.subscribe`
    outbox          how many publications may wait for an acknowledgement; then `publish` waits
    outbox_bytes    the same, in bytes: payloads and texts
    on_lost         called with a count (0: nobody knows) and a reason, when notifications are lost
    events          what happens, in the schema of `wayfare.eventlog`: a function that is called with
                    each event, the path of a file (.jsonl or .parquet), or the address of a broker,
                    wayfare://..., where a client of its own publishes each event
    timeout         seconds until `connect`, `move` and `attach` give up
    heartbeat_s     a broker that is silent for three of them is left
    ca, cert        for wayfares:// addresses: the file of the CA that signs the certificates of
                    brokers, and of our own certificate and its key, where brokers require one
    account         whose password it is, if the client has another name
    password        said only over TLS, or within this machine
    store           a file in which the client remembers, so that the next process of its name goes on
                    where this one was: its subscriptions stay, what it published is not lost, and what
                    it was not done with comes again
    durability      of that file: os (survives the process) or disk (survives a loss of power)
    areas           what `myloc` stands for at a location, where that is not the location itself:
                    {"R1": ["R1", "R2"]}
    places          a map, or the file of one (.json or .toml), that says where named locations are:
                    for `near(myloc, metres)`
    """
    return Client(addresses, client_id, **options)


def clock() -> int:
    """Where processes of a name start to count: two of them do not begin in the same microsecond."""
    return time.time_ns() // 1_000


def _bug(name: str, error: BaseException) -> RuntimeError:
    out = RuntimeError(f"{name} was stopped by a bug of Wayfare: {error!r}; please report it")
    out.__cause__ = error
    return out
