"""The local broker of a client, on a socket: all that a client is, but for what becomes of notifications.

    core            decides (`wayfare.core.client`)
    Conversation    says it to brokers, and hears from them
    Profile         what the client wants and offers
    Keeping         writes it down, if there is a store
    Recorder        tells what happens, if anybody asked

`wayfare.Client` is one that has subscriptions. The others are for those who take notifications in their own way: a
device that is told of them, a reader that keeps them until they are committed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from wayfare.core import client as core
from wayfare.core import messages as m
from wayfare.core.areas import area_of
from wayfare.core.effects import (
    Confirmed,
    Effect,
    Ended,
    Interested,
    Lost,
    Notify,
    Settled,
    Unheard,
)
from wayfare.core.filters import Filter
from wayfare.core.messages import Area, ClientId
from wayfare.core.predicates import Value
from wayfare.core.reserved import check_unreserved
from wayfare.core.templates import Template
from wayfare.core.values import Payload, Publishable, plain_attributes, plain_payload
from wayfare.errors import InvalidNotification, NotConfirmed, StoreError
from wayfare.net.addresses import Address, parse_all
from wayfare.net.being import Being, Location, declared
from wayfare.net.client_store import ClientStore
from wayfare.net.confirmations import Confirmations
from wayfare.net.connectivity import Changes, Connectivity
from wayfare.net.conversation import Conversation
from wayfare.net.discovery import Discovery, reach_of
from wayfare.net.keeping import Keeping
from wayfare.net.life import Life
from wayfare.net.options import SECONDS_MAX, Settings, check_options
from wayfare.net.profile import Profile
from wayfare.net.rounds import Rounds
from wayfare.net.subscription import Notification
from wayfare.net.unrecorded import Unrecorded
from wayfare.net.wanted import Wanted, offered_as
from wayfare.net.wills import retained_by

if TYPE_CHECKING:
    from wayfare.eventlog import Event
    from wayfare.net.recording import Recorder

CLOSE_S = 5.0  # that closing waits for what was published to be acknowledged

logger = logging.getLogger("wayfare.client")


class LocalBroker:
    """It goes to the next address when a connection breaks: what is published meanwhile waits."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        mine: core.Client,
        settings: Settings,
        *,
        leaves: bool = True,
    ) -> None:
        """Unless it `leaves`, or if it has a store, its session waits for the next process of its name."""
        check_options(client_id=mine.name)
        self.name: str = mine.name
        self.lost = 0  # notifications of which it was told that they are lost
        self._core = mine
        if settings.will is not None:
            mine.make_will(settings.will.message)
        if settings.expires is not None:
            mine.expires_ns = max(1, int(settings.expires * 1e9))
        if settings.failover is not None:
            mine.failover_ns = max(1, int(min(settings.failover, SECONDS_MAX) * 1e9))
        if settings.changes is not None:
            mine.following.declare(declared(settings.changes))
        self._settings = settings
        self._leaves = leaves and settings.store is None
        self._life = Life(self.name)
        self._connectivity = Connectivity(
            self.name, self._life, settings.on_connect, settings.on_disconnect
        )
        self._recorder = Unrecorded() if settings.events is None else self._told(settings.events)
        reach = reach_of(addresses)
        self._conversation = Conversation(
            mine,
            self._life,
            self._connectivity,
            self._recorder,
            parse_all(addresses) if reach is None else list(reach.addresses),
            settings,
            tell=self._tell,
            heard=self._heard,
            may_take=self._may_take,
            keep=self._keep,
            go_round=self._go_round,
        )
        self._discovery: Discovery | None = None
        if reach is not None:
            self._discovery = Discovery(reach, self._conversation, self._recorder, settings)
        self._being = Being(settings.areas, settings.places, lambda: mine.following.state, self._be)
        self._keeping: Keeping | None = None  # what is written down
        if settings.store is not None:
            file = ClientStore(Path(settings.store), settings.durability, self.name)
            self._keeping = Keeping(mine, file)
            self._warn_of(file)
        self._profile = Profile(
            mine,
            self._recorder,
            self._change,
            self._conversation.perform,
            lasting=self._keeping is not None,
        )
        self._confirmations = Confirmations(
            mine,
            self._life,
            self._recorder,
            self._conversation.perform,
            lambda: self._conversation.is_away,
            settings.confirm,
        )
        self._heard_of = 0  # changes of its profile that a broker knows
        self._confirmed = 0  # the last publication that was acknowledged
        self._count_confirmed()

    def _warn_of(self, file: ClientStore) -> None:
        if file.rollback:
            logger.warning(
                "%s is older than what %s had written (%s): what it had published and not sent is lost,"
                " and brokers report the notifications that it cannot get again",
                file.path,
                self.name,
                file.rollback,
            )

    def _told(self, events: Callable[[Event], object] | str | PathLike[str]) -> Recorder:
        from wayfare.net.recording import Recorder  # brings pyarrow, which takes its time

        return Recorder(self.name, events, self._log)

    def _log(self, address: str) -> LocalBroker:
        """A client of its own, to publish events by."""
        given = self._settings
        settings = Settings(
            timeout=given.timeout,
            ca=given.ca,
            crl=given.crl,
            cert=given.cert,
            account=given.account or self.name,
            password=given.password,
        )
        expires_ns = self._core.expires_ns
        mine = core.Client(ClientId(f"{self.name}.log"), expires_ns=expires_ns)
        return LocalBroker(address, begun(mine), settings)

    # Life

    async def __aenter__(self) -> Self:
        return await self.open()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def open(self) -> Self:
        """Connect, and wait until a broker has welcomed this client."""
        if self._life.opened or self._life.closed:
            self.check()
            return self
        await self._recorder.open()
        if self._core.following.state != self._core.following.declared(m.NOWHERE):
            self._recorder.became(self._core.following.state)
        self._life.opened = True
        try:
            if self._discovery is not None:
                await self._discovery.open()
            await self._conversation.begin()
            if self._discovery is not None:
                self._conversation.tasks.run(self._discovery.run())
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

        A client with a store only goes away: the broker keeps its session for the next process. What the
        application has in hand is done, unless another task has it, or an exception is being handled.

        Returns how many publications nobody has acknowledged: they may be lost.
        """
        return await self._close(timeout, failed=sys.exc_info()[0] is not None)

    async def _close(self, timeout: float, *, failed: bool) -> int:
        if self._life.closed:
            return 0
        if not failed:
            self._settle()
        left = 0
        try:
            if not self._conversation.is_away:  # who is away cannot say anything
                with suppress(Exception):  # too late, or what everybody is told who asks
                    async with asyncio.timeout(timeout):
                        await self._acknowledged()
        finally:
            left = len(self._core.outbox)
            if left:
                logger.warning("%s closes before %d publications are acknowledged", self.name, left)
            if not self._life.closed:
                self._conversation.say_goodbye(leave=self._leaves)
                await self._end()
        return left

    async def _end(self) -> None:
        self._life.close()
        self._conversation.stop()
        await self._recorder.close()
        await self._conversation.fade_out()
        if self._discovery is not None:
            await self._discovery.close()
        if self._keeping is not None:  # also of who never came anywhere: the next one has its file
            self._keep()
            self._keeping.close()

    def check(self) -> None:
        """Raise what keeps this client from going on."""
        self._life.check()

    # What applications call

    @property
    def broker(self) -> str:
        """The name of the broker where it is; "": nowhere."""
        return self._conversation.broker

    @property
    def connected(self) -> bool:
        """Whether a broker has welcomed it, and the connection is not known to be broken."""
        return self._connectivity.now.connected

    def changes(self) -> Changes:
        """Iterate over the connection state: as it is now, and then every change from now on."""
        return Changes(self._connectivity)

    @property
    def addresses(self) -> list[Address]:
        """Where brokers are, in the order in which they are tried."""
        return self._conversation.rounds.addresses

    @addresses.setter
    def addresses(self, given: list[Address]) -> None:
        self._conversation.rounds.addresses = given

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
        if self._life.opened or self._life.closed:
            self.check()
        self._profile.be(state)

    async def advertise(self, offered: Wanted) -> None:
        """Announce what will be published; nothing else may be.

        Waits until all brokers know it, and what they want of it is known at the broker of this client. It need
        not: everything that is published from now on is delivered.
        """
        self.check()
        filter = offered_as(offered)
        self._profile.advertise(filter)
        try:
            await self._confirmations.advertised(filter)
        except NotConfirmed as error:
            logger.warning("%s", error)

    async def unadvertise(self, offered: Wanted) -> None:
        """Withdraw it, as often as it was announced."""
        self.check()
        self._profile.unadvertise(offered_as(offered))

    async def publish(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        confirm: bool = False,
        retain: str | Sequence[str] = (),
        expires: float | None = None,
        area: Area | str | Sequence[str] | Sequence[float] | None = None,
    ) -> int:
        """Publish once, now or as soon as there is a broker. Returns the number of the publication.

        An attribute that is None is left out. A payload that is a text is encoded in UTF-8.

        With `retain`, the names of some attributes, it is the current value of the key that these attributes
        with their values are: later subscribers get it first, until another publication replaces it.

        With `expires`, it is of no use after so many seconds: nobody gets it then, and nobody misses it. With `area`,
        it is of use there only, at some locations or in a circle (latitude, longitude, metres): clients that are known to be
        elsewhere do not get it, and do not miss it.

        Waits while too many are not acknowledged, or not even read; if that is cancelled, nothing was
        published. With `confirm`, waits until a broker has it; if that is cancelled, it will be there.
        """
        plain, content = plain_attributes(attributes), plain_payload(payload)
        check_unreserved(plain)
        check_options(expires=expires)
        lifetime_ns = 0 if expires is None else max(m.OVER_NS + 1, int(expires * 1e9))
        where = None if area is None else area_of(area)
        number = await self._publish(plain, content, retained_by(retain), lifetime_ns, where)
        return await self._once_taken(number, confirm)

    async def clear(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        retain: str | Sequence[str] = (),
        confirm: bool = False,
    ) -> int:
        """Publish, and leave the key without a value: later subscribers get none.

        The key is what `retain` names, all attributes by default.
        """
        plain, content = plain_attributes(attributes), plain_payload(payload)
        key = retained_by(retain or tuple(plain))
        if key is None:
            raise InvalidNotification("name at least one attribute: the key to clear")
        check_unreserved(plain)
        number = await self._publish(plain, content, m.Retain(key.names, True))
        return await self._once_taken(number, confirm)

    async def _once_taken(self, number: int, confirm: bool) -> int:
        if confirm:
            await self._life.until(lambda: self._confirmed >= number)
        return number

    async def _publish(
        self,
        plain: Mapping[str, Value],
        content: bytes,
        retain: m.Retain | None = None,
        expires_ns: int = 0,
        area: Area | None = None,
    ) -> int:
        await self._life.until(self._may_publish)
        self._life.check()
        effects = self._core.publish(plain, content, time.time_ns(), retain, expires_ns, area)
        if self._keeping is not None:
            self._keeping.publish()
            self._keep()
            self.check()
        number = self._core.published
        self._recorder.published(number, self._core.epoch, plain, retain, expires_ns, area)
        self._conversation.perform(effects)
        return number

    def _may_publish(self) -> bool:
        wire = self._conversation.wire
        full = wire is not None and wire.is_full()
        return not full and self._core.has_room()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until a broker has everything: what was published, subscribed to and advertised.

        Refused says that it does not want it.
        """
        check_options(timeout=timeout)
        async with asyncio.timeout(timeout):
            await self._acknowledged()
            await self._known()

    async def _acknowledged(self) -> None:
        last = self._core.published
        await self._life.until(lambda: self._confirmed >= last)

    async def _known(self) -> None:
        """Wait until a broker knows what this client wants and offers by now; who is away tells nobody."""
        said, there = self._profile.said, self._conversation
        while self._heard_of < said and not there.is_away and not self._life.closed:
            await there.arrived()
            if there.wire is not None and await there.answered(there.wire):
                self._heard_of = max(said, self._heard_of)

    async def move(self, address: str) -> None:
        """Go to the broker at this address, and wait until it has welcomed this client.

        CannotConnect says that it did not; the client is at another address then, or goes on trying.
        """
        there = Address.parse(address)
        self.check()
        await self._conversation.move(there)

    async def detach(self) -> None:
        """Go away for a while: the broker keeps the session, and what comes meanwhile."""
        self.check()
        self._conversation.detach()

    async def attach(self) -> None:
        """Come back, where it was if that is possible, and wait until a broker has welcomed it."""
        self.check()
        await self._conversation.attach()

    # What its parts report

    def _tell(self, effect: Effect) -> None:
        mine = self._core
        if type(effect) is Notify:
            self._recorder.delivered(effect, mine.delivered, mine.epoch)
            notification = Notification(
                effect.notification, mine.delivered, past=effect.past, request=effect.ask
            )
            if self._settings.clock_error is not None:
                notification.received_ns = time.time_ns()
            self._hand_out(notification, effect.subscriptions)
        elif type(effect) is Lost:
            self._recorder.fact("lost", count=effect.count, reason=effect.reason)
            self._tell_lost(effect)
        elif type(effect) is Settled:
            publishers = {str(name): count for name, count in effect.publishers.items()}
            self._recorder.fact("settled", count=effect.count, entries=publishers)
            self._tell_settled(effect.count, publishers)
        elif type(effect) is Confirmed:
            self._confirmations.on_confirmed(effect)
        elif type(effect) is Interested:
            kind = "wanted" if effect.wanted else "unwanted"
            self._recorder.fact(kind, filter=effect.advertisement)
        elif type(effect) is Ended:
            wanted = effect.subscription
            kind = "unfollowed" if isinstance(wanted, Template) else "unsubscribed"
            self._recorder.asked(kind, wanted, "stayed behind")
            self._stay_behind(wanted)
        elif type(effect) is Unheard:
            self._be_unheard(effect.publication)

    def _change(self) -> None:
        """What it wants, or offers, is another thing now."""
        self._life.changed.set()
        if self._keeping is not None:
            self._keeping.change()

    def _keep(self) -> bool:
        """Write down what changed, before anybody hears of it; False if that cannot be done."""
        if self._keeping is None:
            return True
        if self._life.error is not None:
            return False
        try:
            self._keeping.keep(self._confirmed)
        except StoreError as error:
            said = str(error)
            self._life.stop(lambda: StoreError(said))
            if self._conversation.wire is not None:
                self._conversation.wire.abort(said)
            return False
        return True

    def _count_confirmed(self) -> None:
        outbox = self._core.outbox
        self._confirmed = outbox[0].number - 1 if outbox else self._core.published

    # What each kind of client may do in its own way

    def _settle(self) -> None:
        """The application closes it: what it has in hand is done."""

    def _may_take(self) -> bool:
        """Whether there is room for another notification."""
        return True

    def _hand_out(self, notification: Notification, matching: Sequence[Filter | Template]) -> None:
        """A notification has come, for those that match."""

    def _be_unheard(self, publication: int) -> None:
        """Nobody subscribes to the request that was published by this number."""

    def _stay_behind(self, wanted: Filter | Template) -> None:
        """It is somewhere else now, and this subscription was a local one."""

    def _tell_lost(self, effect: Lost) -> None:
        self.lost += effect.count
        if self._settings.on_lost is None:
            count = effect.count or "an unknown number of"
            logger.warning("%s lost %s notifications: %s", self.name, count, effect.reason)
            return
        try:
            self._settings.on_lost(effect.count, effect.reason)
        except Exception:  # the application's mistake, which must not cost it its connection
            logger.exception("on_lost of %s failed", self.name)

    def _tell_settled(self, count: int, publishers: dict[str, int]) -> None:
        self.lost += count
        if self._settings.on_settled is None:
            level = logging.WARNING if count else logging.INFO
            logger.log(level, "%s lost %d notifications, as is known now", self.name, count)
            return
        try:
            self._settings.on_settled(count, publishers)
        except Exception:  # likewise
            logger.exception("on_settled of %s failed", self.name)

    def _heard(self, message: m.AnyMessage) -> None:
        """Something has come from a broker that is no notification, and was taken."""
        self._count_confirmed()

    async def _go_round(self, rounds: Rounds) -> None:
        """Be at one of its addresses, as long as there is any use in it."""
        await rounds.go()


def begun(mine: core.Client) -> core.Client:
    """A core whose name earlier processes may have had, which may have been killed."""
    mine.begin(clock(), secrets.randbits(62) + 1)
    return mine


def clock() -> int:
    """Where processes of a name start to count: two of them do not begin in the same microsecond."""
    return time.time_ns() // 1_000
