"""Requests and replies: the requester's side as a state machine, and how both travel.

A request is an ordinary publication that also carries a reply address and a number. A reply is an
ordinary notification to that address; what it says is packed into its payload, so that nobody else's
subscription matches it. The requester subscribes to its address once, before its first request, so
replies follow it wherever it goes: once, in order, and from its session if it was away.

    begin ---- Listen (first request only), Ask ---->  the host subscribes, publishes
    on_listening, on_published, on_reply, on_no_responders, expire  ---- Answered ---->  the application

The address is unguessable: a client that knows it has received a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

import msgspec

from wayfare.core.conditions import attr
from wayfare.core.filters import Filter
from wayfare.core.messages import (
    Attributes,
    Notification,
    check_attributes,
)
from wayfare.core.predicates import Value
from wayfare.core.reserved import INBOX, REPLY_TO, REQUEST
from wayfare.errors import InvalidNotification, OutboxFull

REPLIES = Filter.where(attr(INBOX).exists())  # what responders advertise
PENDING_MAX = 10_000  # requests of one client without a reply; further requests are refused
SLACK = 64  # deadlines of requests that are over, before they are cleared away
LISTEN_NS = 2_000_000_000  # that the first request waits until the reply address is confirmed

NO_RESPONDERS = "no responders"
NO_ANSWER = "it was sent, but nobody has answered"
NOT_SENT = "it could not be sent in time"


class Listen(msgspec.Struct, frozen=True):
    """Subscribe to this, and report when that is in effect, or after `LISTEN_NS` that it is not."""

    filter: Filter


class Ask(msgspec.Struct, frozen=True):
    """Publish this request, and report the number of the publication."""

    request: int
    attributes: dict[str, Value]
    payload: bytes


class Answered(msgspec.Struct, frozen=True):
    """Report to the application: a reply to this request, or why no (other) reply will come."""

    request: int
    reply: Notification | None  # of the responder, with what it said
    reason: str = ""


Action = Listen | Ask | Answered


class _Pending(msgspec.Struct):
    """A request that waits for a reply, or for several."""

    deadline: int
    many: bool
    ask: Ask | None = None  # it waits for the reply address
    publication: int = 0
    replies: int = 0


class Requests:
    """The requests of one client."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self.filter = Filter.where(attr(INBOX) == inbox)
        self.pending: dict[int, _Pending] = {}
        self.dropped = 0  # replies that nobody waits for: too late, too many, or malformed
        self.listening: bool | None = None  # None: nobody has asked yet; False: not confirmed yet
        self.confirmed = False  # the subscription to the address is in effect in the whole tree
        self._count = 0
        self._publications: dict[int, int] = {}  # to requests
        self._deadlines: list[tuple[int, int]] = []  # a heap, with their requests; some are over

    def begin(
        self,
        attributes: Mapping[str, Value],
        payload: bytes,
        timeout_ns: int,
        now: int,
        *,
        many: bool = False,
    ) -> tuple[int, list[Action]]:
        """Ask something. Without `many`, the first reply is the answer."""
        if len(self.pending) >= PENDING_MAX:
            raise OutboxFull(f"{PENDING_MAX} requests wait for an answer")
        self._count += 1
        number = self._count
        ask = Ask(number, {**attributes, REPLY_TO: self.inbox, REQUEST: number}, payload)
        pending = self.pending[number] = _Pending(now + timeout_ns, many)
        heappush(self._deadlines, (pending.deadline, number))
        if self.listening:
            return number, [ask]
        pending.ask = ask
        first, self.listening = self.listening is None, False
        return number, [Listen(self.filter)] if first else []

    def on_listening(self, *, confirmed: bool) -> list[Action]:
        """The reply address is in effect; or it was not confirmed in time, and requests go out anyway."""
        self.listening, self.confirmed = True, self.confirmed or confirmed
        asks: list[Action] = []
        for pending in self.pending.values():
            if pending.ask is not None:
                asks.append(pending.ask)
                pending.ask = None
        return asks

    def on_published(self, request: int, publication: int) -> None:
        if request in self.pending:
            self.pending[request].publication = publication
            self._publications[publication] = request

    def on_reply(self, notification: Notification, now: int) -> list[Action]:
        """Something has come to the reply address."""
        number = notification.attributes.get(REQUEST)
        pending = self.pending.get(number) if type(number) is int else None
        content = unpacked(notification.payload)
        if pending is None or content is None or now >= pending.deadline:
            self.dropped += 1
            return []
        assert isinstance(number, int)
        pending.replies += 1
        if not pending.many:
            self.forget(number)
        reply = Notification(
            notification.publisher,
            notification.number,
            content[0],
            content[1],
            notification.published_ns,
        )
        return [Answered(number, reply)]

    def on_no_responders(self, publication: int) -> list[Action]:
        """Nobody subscribes to this request."""
        request = self._publications.get(publication)
        if request is None:
            return []
        self.forget(request)
        return [Answered(request, None, NO_RESPONDERS)]

    def expire(self, now: int) -> list[Action]:
        """No more replies to what has taken too long."""
        ended: list[Action] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, number = heappop(self._deadlines)
            reason = NO_ANSWER if self.pending[number].ask is None else NOT_SENT
            self.forget(number)
            ended.append(Answered(number, None, reason))
        return ended

    def forget(self, request: int) -> None:
        """Nobody waits for it any more."""
        pending = self.pending.pop(request, None)
        if pending is not None:
            self._publications.pop(pending.publication, None)
        if len(self._deadlines) > 2 * len(self.pending) + SLACK:
            self._deadlines = [(one.deadline, number) for number, one in self.pending.items()]
            heapify(self._deadlines)

    def next_deadline(self) -> int | None:
        while self._deadlines and self._deadlines[0][1] not in self.pending:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None


# What a reply says

_Content = tuple[Attributes, bytes]
_decoder = msgspec.msgpack.Decoder(_Content)


def reply_to(attributes: Mapping[str, Value]) -> dict[str, Value] | None:
    """The attributes of a reply to the request with these; None if it is no request."""
    inbox, number = attributes.get(REPLY_TO), attributes.get(REQUEST)
    if type(inbox) is not str or type(number) is not int:
        return None
    return {INBOX: inbox, REQUEST: number}


def packed(attributes: Mapping[str, Value], payload: bytes) -> bytes:
    """What a responder says, as the payload of a reply."""
    check_attributes(attributes)
    return msgspec.msgpack.encode((dict(attributes), payload))


def unpacked(payload: bytes) -> _Content | None:
    """What a responder said; None if that is no reply."""
    try:
        content: _Content = _decoder.decode(payload)
        check_attributes(content[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidNotification, RecursionError):
        return None
    return content
