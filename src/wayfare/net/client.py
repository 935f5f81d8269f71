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

from collections.abc import Mapping, Sequence
from typing import Unpack
from uuid import uuid4

from wayfare.core import client as core
from wayfare.core import messages as m
from wayfare.core.effects import Lost
from wayfare.core.filters import Filter
from wayfare.core.late import COUNTED, WANTED
from wayfare.core.membership import AWAY_NS, PREFETCH
from wayfare.core.messages import ClientId
from wayfare.core.reserved import GROUP, MEMBER, REPLY_TO, is_address
from wayfare.core.templates import Template
from wayfare.core.values import Payload, Publishable
from wayfare.errors import Closed, UsageError
from wayfare.net.intake import Intake
from wayfare.net.local_broker import LocalBroker, begun
from wayfare.net.offer import Offer
from wayfare.net.options import EXPIRES_S, Options, Settings, check_options
from wayfare.net.requests import Replies, Requesting
from wayfare.net.sharing import Sharing
from wayfare.net.subscription import Notification, Subscription
from wayfare.net.wanted import Wanted, asked, offered_as, wanted_as


class Client(LocalBroker):
    """A client that may be anywhere. Made by `connect`."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        client_id: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        settings = Settings(**options)
        if settings.store is not None and client_id is None:
            raise UsageError("a store is of one client: name it with client_id")
        mine = core.Client(
            ClientId(client_id or f"client-{uuid4().hex[:12]}"),
            settings.outbox,
            outbox_bytes_max=settings.outbox_bytes,
            confirms=settings.store is not None,
            expires_ns=0 if client_id else int(EXPIRES_S * 1e9),
            late=WANTED if settings.late else COUNTED,
        )
        super().__init__(addresses, begun(mine) if client_id else mine, settings)
        self._intake = Intake(
            mine, self._life, self._profile, self._conversation, self._keeping, self._confirmations
        )
        self._requesting = Requesting(
            mine, self._life, self._profile, self._intake, self._confirmations, self._publish
        )
        self._sharing = Sharing(
            mine,
            self._life,
            self._profile,
            self._intake,
            self._confirmations,
            settings.confirm,
            self._publish,
            self._conversation.perform,
            self._requesting.mark,
            super()._tell_lost,
        )

    def subscribe(
        self,
        wanted: Wanted,
        *,
        last: int | None = None,
        younger: float | None = None,
        key: str | Sequence[str] | None = None,
        nullify: Wanted | None = None,
        same: str | Sequence[str] = (),
        local: bool = False,
        since: float = 0.0,
        slow_publishers: float | None = None,
        queue: int | None = None,
        policy: str | None = None,
        ack: bool = False,
        retained: bool | None = None,
        group: str | None = None,
        prefetch: int = PREFETCH,
        away: float = AWAY_NS / 1e9,
    ) -> Subscription:
        """Notifications that match. Begins with `async with`, `await`, or the first `get`.

        The first two also wait until it is in effect: what is published anywhere from then on is
        delivered. See `Subscription.ready`.

        A filter that mentions `myloc` or `my.<name>` follows the client: see `location` and `state`.

        last, younger, key   of what is missed while away, and of the past: the last N, those younger than N
                             seconds, or the newest for each value of an attribute, or of several together
        nullify, same        a filter: a notification that matches it nullifies all earlier ones with the same
                             values of the attributes `same`, or all if it names none. What is nullified is
                             not kept for later, and in the past the nullifying notification is left out, too
        local                it stays behind when the client goes to another broker
        since                also what was published in the last so many seconds, as far as brokers
                             remember it (their limit `past_count`) and as it is in order
        slow_publishers      for how many seconds publishers may be slowed while this client is connected
                             and does not read fast enough; then it loses the oldest (`on_lost`). 0: at
                             once; by default, and at most: the broker's limit `slow_publishers`. Of the
                             members of a queue group, the one that allows most decides
        queue, policy        how many may wait for the application, and what happens with more:
                             wait (then nothing comes, for no subscription), drop_oldest or
                             drop_newest
        ack                  each notification is done when the application calls its `ack()`; else, when
                             the next one is asked for, or the subscription is closed
        retained             the current values that match come first, unless this is False. What follows the
                             client, and queue groups, get none: then True is refused
        group                the name of a queue group: subscriptions with the same name and filter share the
                             notifications, each goes to one of them, wherever their clients are
        prefetch             how many notifications a member may have without being done with them
        away                 seconds after which another member gets what a silent one has: it died, or is away
        """
        queue = self._settings.queue if queue is None else queue
        policy = self._settings.policy if policy is None else policy
        check_options(queue=queue, policy=policy, ack=ack, retained=retained)
        check_options(group=group, prefetch=prefetch, away=away)
        if group is not None:
            terms = last, younger, key, nullify
            if any(one is not None for one in terms) or local or since:
                raise UsageError(
                    "a queue group keeps everything: leave out last, younger, key, nullify, local, since"
                )
            if retained:
                raise UsageError("a queue group gets no current values: leave out retained")
            check_options(slow_publishers=slow_publishers)
            shared, away_ns = wanted_as(wanted), int(away * 1e9)
            if isinstance(shared, Template):
                raise UsageError(
                    f"{shared} follows one client, so no group can share it: leave group"
                )
            return self._sharing.subscription(
                group,
                shared,
                queue,
                prefetch=prefetch,
                away_ns=away_ns,
                slow_ns=None if slow_publishers is None else int(slow_publishers * 1e9),
                ack=ack,
            )
        one = asked(
            wanted,
            last=last,
            younger=younger,
            key=key,
            nullify=nullify,
            same=same,
            local=local,
            since=since,
            slow_publishers=slow_publishers,
        )
        if retained and isinstance(one.wanted, Template):
            raise UsageError(
                f"{one.wanted} follows the client, so leave out retained: it gets no current values"
            )
        return Subscription(
            self._intake,
            one.wanted,
            one.terms,
            one.since_ns,
            queue,
            policy,
            ack=ack,
            retained=retained is not False,
        )

    def offer(self, offered: Wanted) -> Offer:
        """Advertise, and be told whether anybody wants it.

        Begins with `async with`, `await`, or the first `until_wanted` or `get`.
        """
        return Offer(self._life, self._profile, self._confirmations, offered_as(offered))

    async def request(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        timeout: float = 5.0,
    ) -> Notification:
        """Publish a request, and wait for the first reply to it: every subscriber may `reply`.

        What is asked has to be advertised, as everything that is published. The reply reaches this client
        wherever it is by then. NoResponders says that nobody subscribes to such requests, NoReply (a
        TimeoutError) that nobody has answered in time. A reply that comes later is dropped.
        """
        replies = Replies(self._requesting, self._life, attributes, payload, timeout, most=1)
        try:
            return await replies.get()
        except Closed:
            self._life.check()
            raise replies.failure() from None
        finally:
            await replies.close()

    def requests(
        self,
        attributes: Mapping[str, Publishable],
        payload: Payload = b"",
        *,
        timeout: float = 5.0,
        most: int | None = None,
    ) -> Replies:
        """As `request`, for several replies: iterate over them, until the time is over or `most` have come."""
        return Replies(self._requesting, self._life, attributes, payload, timeout, most)

    @property
    def replies_dropped(self) -> int:
        """Replies that came when nobody waited for them any more."""
        return self._requesting.machine.dropped

    async def _close(self, timeout: float, *, failed: bool) -> int:
        if not self._life.closed:
            await self._sharing.leave(timeout, failed=failed)
        return await super()._close(timeout, failed=failed)

    async def _end(self) -> None:
        self._sharing.stop()
        self._requesting.stop()
        await super()._end()

    def _settle(self) -> None:
        self._intake.settle()

    def _may_take(self) -> bool:
        return not self._intake.full

    def _hand_out(self, notification: Notification, matching: Sequence[Filter | Template]) -> None:
        attributes = notification.attributes
        if REPLY_TO in attributes:
            self._requesting.mark(notification)
        elif (
            MEMBER in attributes or GROUP in attributes
        ):  # for the library, whichever filters match
            matching = [one for one in matching if isinstance(one, Filter) and is_address(one)]
            if not matching:
                self._intake.skip(notification)
                return
        self._intake.hand_out(notification, matching)

    def _heard(self, message: m.AnyMessage) -> None:
        super()._heard(message)
        if type(message) is m.Welcome:
            self._sharing.on_connected()

    def _tell_lost(self, effect: Lost) -> None:
        super()._tell_lost(effect)
        self._sharing.on_lost()

    def _be_unheard(self, publication: int) -> None:
        self._requesting.on_unheard(publication)

    def _stay_behind(self, wanted: Filter | Template) -> None:
        self._intake.stay_behind(wanted)


def connect(
    addresses: str | Sequence[str], client_id: str | None = None, **options: Unpack[Options]
) -> Client:
    """A client of the broker at one of these addresses. Use it with `async with`, or await it.

    queue, policy   how many notifications of a subscription may wait for the application, and what
                    happens with more: see `Client.subscribe`
    outbox          how many publications may wait for an acknowledgement; then `publish` waits
    outbox_bytes    the same, in bytes: payloads and texts
    on_lost         called with a count (0: nobody knows) and a reason, when notifications are lost
    on_settled      called with the exact number, and a dict of the number for each publisher, when it becomes
                    known how many were lost of which on_lost said that nobody knows: see `failover`
    on_connect      called with the name of the broker, when one has welcomed the client
    on_disconnect   called with the name of the broker and a reason, when the client is not connected
                    to it any more
    events          what happens, in the schema of `wayfare.eventlog`: a function that is called with
                    each event, the path of a file (.jsonl or .parquet), or the address of a broker,
                    wayfare://..., where a client of its own publishes each event
    timeout         seconds until `connect`, `move` and `attach` give up
    confirm         seconds that `subscribe` and `advertise` wait until all brokers concerned have
                    heard of it; then they go on with a warning; 0: they do not wait
    heartbeat_s     a broker that is silent for three of them is left
    clock_error     seconds by which the clocks of publishers may differ from this one: notifications have
                    a `delay` then
    ca, cert        for wayfares:// addresses: the file of the CA that signs the certificates of
                    brokers, and of our own certificate and its key, where brokers require one
    crl             a file of certificate revocation lists of that CA, read again for every connection
    account         whose password it is, if the client has another name
    password        said only over TLS, or within this machine
    store           a file in which the client remembers, so that the next process of its name goes on
                    where this one was: its subscriptions stay, what it published is not lost, and what
                    it was not done with comes again
    durability      of that file: os (survives the process) or disk (survives a loss of power)
    areas           what `myloc` stands for at a location, where that is not the location itself:
                    {"R1": ["R1", "R2"]}
    changes         how values of the state change, so that brokers listen to what they may be soon: the
                    largest step of a number, or a list of values, each of which changes to one
                    beside it: {"need": 1, "mode": ["walk", "bike", "car"]}
    places          a map, or the file of one (.json or .toml), that says where named locations are:
                    for `near(myloc, metres)`
    failover        seconds that live notifications wait for what is at a broker that cannot be reached, but
                    no more than the new broker allows (its `limits.failover`, 10 minutes by default); None:
                    as long as for one that can be reached (its `limits.answer`, 30 s)
    late            whether what such a broker kept is wanted when it is back: it comes once, marked as `late`,
                    whatever of the same publisher came before. If not, on_settled says how many were lost
    will            what brokers publish when the client is gone for longer than a delay: `wayfare.Will`
    probe           for discover:// addresses: seconds between two measurements of the brokers that were found
    expires         seconds that the client may be away: then its session ends, and what waited in it is
                    reported as lost when the client is back. By default, and at most, what the broker
                    allows (`limits.away`); without a client_id, 5 minutes
    """
    return Client(addresses, client_id, **options)
