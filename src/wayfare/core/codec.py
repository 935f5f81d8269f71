"""Bytes <-> messages: the only place where a malformed frame can surface.

A frame is its length (4 bytes, big-endian) and a message in MessagePack. The first frame of a
connection is a `Hello`; its layout never changes, so that any two versions can at least tell that they
do not understand each other. Whatever is wrong with the bytes of a peer ends in `CodecError`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import lru_cache
from struct import Struct
from typing import Any

import msgspec

from wayfare.core import changes, filters, late
from wayfare.core import messages as m
from wayfare.core.filters import Filter
from wayfare.core.messages import PUBLICATION_BYTES_MAX
from wayfare.core.syntax import FILTER_TEXT_MAX
from wayfare.errors import CodecError, WayfareError

FRAME_MAX = 8 * 1024 * 1024  # bytes of one message
NAME_MAX = m.CLIENT_NAME_MAX
REASON_MAX = 1_000  # characters
NUMBER_MAX = 2**63 - 1
DELIVERED_MAX = 2**62  # the last delivery that an Attach may name: there is room for more
LOST_MAX = 2**40  # notifications that one Reply says were lost
KNOWN = 4_096  # filters whose check is remembered: with a client that moves, they come again
KNOWN_BYTES = 1_000  # of one of them
PASSWORD_MAX = 1_000  # characters
PROOF_BYTES = 32  # of a challenge, and of its proof
ADDRESS_MAX = 64  # characters of the address of a device

CHARACTERS = "characters"  # what a filter that has been checked in advance keeps of that
LONG_BYTES = 2_048  # of a frame that is decoded filter by filter, if it may have many
COSTLY_MAX = 4  # frames with filters that are decoded together

_LENGTH = 4
_filters = msgspec.msgpack.Decoder(Filter)
_length_at = Struct(">I").unpack_from
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[m.AnyMessage] = msgspec.msgpack.Decoder(m.AnyMessage)


def encode(message: m.AnyMessage) -> bytes:
    """The frame of a message; CodecError if it has none, by the fault of whoever made it."""
    try:
        body = _encoder.encode(message)
    except (OverflowError, TypeError, UnicodeEncodeError) as error:
        raise CodecError(f"{type(message).__name__} cannot be encoded: {error}") from None
    if len(body) > FRAME_MAX:
        raise CodecError(f"a message of {len(body)} bytes; at most {FRAME_MAX} fit a frame")
    return len(body).to_bytes(_LENGTH, "big") + body


def decode(body: bytes | bytearray | memoryview) -> m.AnyMessage:
    """The message in the body of a frame, checked."""
    try:
        message = _decoder.decode(body)
        CHECKS[type(message)](message)
        if len(body) > PUBLICATION_BYTES_MAX:
            _check_publications(message)
    except MALFORMED as error:
        raise CodecError(f"malformed frame: {error}") from None
    return message


MALFORMED = (msgspec.MsgspecError, WayfareError, UnicodeDecodeError, RecursionError)


def _check_publications(message: m.AnyMessage) -> None:
    for one in _publications(message):
        m.check_publication(one.attributes, one.payload)


def decoding(body: bytes) -> Generator[None, None, m.AnyMessage]:
    """As `decode`, but filter by filter: what runs it may do something else between two of them."""
    try:
        message = _decoder.decode(body)
        yield
        for given in _filters_in(message):
            given.__dict__[CHARACTERS] = _characters(given)
            yield
        CHECKS[type(message)](message)
        if len(body) > PUBLICATION_BYTES_MAX:
            _check_publications(message)
    except MALFORMED as error:
        raise CodecError(f"malformed frame: {error}") from None
    return message


def _filters_in(message: Any) -> Iterator[Filter]:
    """The filters of a message that may have many."""
    if isinstance(message, m.Attach | m.Profile):
        yield from message.subscriptions
        yield from message.advertisements
    elif isinstance(message, m.Reply | m.Fetch):
        yield from message.subscriptions or ()
    elif isinstance(message, m.Prepare):
        yield from message.advertisements
    elif isinstance(message, m.Tunnel):
        yield from _filters_in(message.message)
    elif isinstance(message, m.Update):
        for entries in (message.add_ads, message.add_subs, message.remove_subs, message.remove_ads):
            for entry in entries:
                yield entry.filter
                yield from entry.ahead
        for errand in message.errands:
            yield from _filters_in(errand)


class FrameDecoder:
    """Frames out of a stream of bytes, from one peer."""

    __slots__ = ("_buffer", "_greeted", "costly", "frame_max", "long", "singly", "slowly")

    def __init__(
        self, frame_max: int = FRAME_MAX, *, singly: bool = False, slowly: bool = False
    ) -> None:
        """What one call of `feed` returns:

        singly   one message: what comes next may depend on it
        slowly   few messages that take long, each of them short; a long one is left in `long`
        """
        self.frame_max = frame_max
        self.singly = singly
        self.slowly = slowly
        self.long: Generator[None, None, m.AnyMessage] | None = None  # run it before the next call
        self.costly = 0  # messages of the last call that may take long
        self._buffer = bytearray()
        self._greeted = False

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[m.AnyMessage]:
        """The messages that are complete with these bytes; CodecError if the next frame is bad.

        Messages before a bad frame were properly sent, so they are returned, and the next call raises
        (`feed(b"")` tells at once), as does every one after it.
        """
        if self._buffer:
            self._buffer += data
            if not self._is_due():
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        out: list[m.AnyMessage] = []
        at, size, left = 0, len(data), LONG_BYTES
        self.costly = 0
        try:
            while size - at >= _LENGTH:
                (length,) = _length_at(data, at)
                if length > self.frame_max:
                    raise CodecError(
                        f"a frame of {length} bytes; at most {self.frame_max} are allowed"
                    )
                end = at + _LENGTH + length
                if size < end:
                    break
                body = data[at + _LENGTH : end]
                if length > LONG_BYTES and self._greeted and self.slowly and _is_costly(body):
                    self.costly += 1
                    if not out:
                        self.long = decoding(body)
                        at = end
                    break
                message = decode(body)
                if type(message) not in CHEAP or not self._greeted:
                    self._mind_greeting(message)
                    if self.slowly:
                        self.costly += 1
                        left -= length
                out.append(message)
                at = end
                if self.singly or self.costly >= COSTLY_MAX or left < 0:
                    break
        except CodecError:
            if not out:
                raise
        finally:
            if at < size:  # a bad frame stays, and is found again
                self._buffer += data[at:]
        return out

    def keep(self, data: bytes) -> None:
        """Let these bytes be there for the next call of `feed`."""
        self._buffer += data

    def _is_due(self) -> bool:
        """Whether there is a frame, or the beginning of one that is too long."""
        if len(self._buffer) < _LENGTH:
            return False
        length: int = _length_at(self._buffer)[0]
        return length > self.frame_max or len(self._buffer) >= _LENGTH + length

    def _mind_greeting(self, message: m.AnyMessage) -> None:
        if type(message) is m.Hello:
            if self._greeted:
                raise CodecError("a second Hello")
            if message.version != m.PROTOCOL_VERSION:
                raise CodecError(
                    f"{message.name} speaks version {message.version} of the protocol,"
                    f" this is version {m.PROTOCOL_VERSION}: run the same release on both sides"
                )
            self._greeted = True
        elif not self._greeted:
            raise CodecError(f"{type(message).__name__} before Hello")


def _is_costly(body: bytes) -> bool:
    """Whether a long body may hold filters: whatever does not begin like a cheap message."""
    return body[0] & 0xF0 != 0x90 or body[1] not in CHEAP_TAGS


# Messages without filters
CHEAP = frozenset((m.Publish, m.Notification, m.Deliver, m.Ack, m.Published, m.Took, m.Ping))
CHEAP_TAGS = frozenset(kind.__struct_config__.tag for kind in CHEAP)

# What the types of the messages do not say


def _require(good: bool, what: str) -> None:
    if not good:
        raise CodecError(what)


def _check_name(name: str) -> None:
    _require(0 < len(name) <= NAME_MAX, f"a name has 1 to {NAME_MAX} characters")


def _check_number(number: int) -> None:
    _require(0 <= number <= NUMBER_MAX, "a number is not negative and has at most 63 bits")


def _check_previous(previous: m.Previous) -> None:
    for broker, epoch in previous:
        _check_name(broker)
        _check_number(epoch)


def _check_hello(message: m.Hello) -> None:
    _check_name(message.name)


def _check_join(message: m.Join) -> None:
    for number in (message.life, message.known, message.taken, max(message.confirmed, 0)):
        _check_number(number)
    _require(message.life > 0, "a life has a number above 0")
    _require(message.confirmed >= -1, "a count of messages is not negative")


def _check_took(message: m.Took) -> None:
    _check_number(message.taken)


def _check_refused(message: m.Refused) -> None:
    _require(len(message.reason) <= REASON_MAX, "a reason that is too long")


def _check_login(message: m.Login) -> None:
    _check_name(message.name)
    _require(len(message.password) <= PASSWORD_MAX, "a password that is too long")
    _require(len(message.address) <= ADDRESS_MAX, "an address that is too long")
    _require(len(message.proof) in (0, PROOF_BYTES), f"a proof has {PROOF_BYTES} bytes")


def _check_challenge(message: m.Challenge) -> None:
    _require(len(message.nonce) == PROOF_BYTES, f"a challenge has {PROOF_BYTES} bytes")


def _check_proof(message: m.Proof) -> None:
    _require(len(message.digest) == PROOF_BYTES, f"a proof has {PROOF_BYTES} bytes")


def _publications(message: m.AnyMessage) -> Iterator[m.Publish | m.Notification]:
    """All that is in there; only where a frame is long may one of them be too long."""
    if isinstance(message, m.Publish | m.Notification):
        yield message
    elif isinstance(message, m.Deliver | m.Current | m.Late | m.Uncertain | m.Retained | m.Here):
        yield message.notification
    elif isinstance(message, m.Values):
        yield from (value.notification for value in message.values)
    elif isinstance(message, m.Recalled):
        yield from (kept.notification for kept in message.kept)
    elif isinstance(message, m.Update):
        replies = [one for one in message.errands if isinstance(one, m.Reply | m.PastReply)]
        yield from (kept.notification for reply in replies for kept in reply.kept)
    elif isinstance(message, m.Tunnel) and message.message is not None:
        yield from _publications(message.message)


def _check_notification(message: m.Notification) -> None:
    _check_name(message.publisher)
    if message.area is not None:
        m.check_area(message.area)


def _check_uncertain(message: m.Uncertain) -> None:
    _check_notification(message.notification)
    _check_number(message.since)


def _check_publish(message: m.Publish) -> None:
    if message.area is not None:
        m.check_area(message.area)
    if message.retain is not None:
        m.check_retain(message.retain, message.attributes)


def _check_retained(message: m.Retained) -> None:
    _check_notification(message.notification)
    m.check_retain(message.retain, message.notification.attributes)
    _require(len(message.account) <= NAME_MAX, f"a name has at most {NAME_MAX} characters")


def _check_values(message: m.Values) -> None:
    for value in message.values:
        _check_retained(value)


def _check_attach(message: m.Attach) -> None:
    _check_name(message.client)
    _check_number(message.epoch)
    _check_number(message.delivered)
    _require(message.delivered <= DELIVERED_MAX, "more deliveries than there can be")
    _check_previous(message.previous)
    _require(len(message.home) <= NAME_MAX, f"a name has at most {NAME_MAX} characters")
    _check_filters((*message.subscriptions, *message.advertisements))
    _check_all_terms(message)
    _check_number(message.digest)
    _check_number(message.window)
    _check_watched(message)
    for place, _ in message.asks:
        _require(0 <= place < len(message.subscriptions), "current values of no subscription")
    if message.followed is not None:
        _check_followed(message.followed)
    if message.state is not None:
        _check_state(message.state)
    _require(not message.client.endswith(m.WILL_SUFFIX), "a name that only wills have")
    if message.will is not None:
        m.check_will(message.will, message.client)


def _check_watched(message: m.Attach | m.Profile) -> None:
    for place in message.watched:
        _require(0 <= place < len(message.advertisements), "no such advertisement is watched")


def _check_followed(followed: m.Followed) -> None:
    _check_follows(followed.follows)
    _check_state(followed.state)


def _check_follows(follows: m.Follows) -> None:
    for text, terms in follows:
        _check_text(text)
        if terms is not None:
            _check_terms(terms)


def _check_text(text: str) -> None:
    _require(0 < len(text) <= FILTER_TEXT_MAX, "a filter that is too long, or empty")


def _check_all_terms(message: m.Attach | m.Profile | m.Reply) -> None:
    for place, terms in message.terms:
        _require(0 <= place < len(message.subscriptions or ()), "terms of no subscription")
        _check_terms(terms)


def _check_terms(terms: m.Terms) -> None:
    if terms.nullify is not None:
        _characters(terms.nullify.when)
    m.check_terms(terms)


def _characters(given: Filter) -> int:
    """How long a filter is as text; FilterError if it is none. It is known by its bytes: 1 equals 1.0."""
    known = given.__dict__.get(CHARACTERS)
    if known is not None:
        return int(known)
    encoded = _encoder.encode(given)
    return (_known if len(encoded) <= KNOWN_BYTES else _known.__wrapped__)(encoded)


@lru_cache(KNOWN)
def _known(encoded: bytes) -> int:
    return len(str(filters.checked(_filters.decode(encoded))))


def _check_filters(profile: tuple[Filter, ...]) -> None:
    left = m.PROFILE_CHARACTERS_MAX
    for given in profile:
        left -= _characters(given)
        _require(left >= 0, "more filters than a client may have")


def _check_filter(message: Any) -> None:
    _characters(message.filter)


def _check_subscribe(message: m.Subscribe) -> None:
    _check_filter(message)
    _check_number(message.since_ns)
    if message.terms is not None:
        _check_terms(message.terms)


def _check_follow(message: m.Follow) -> None:
    _check_follows(((message.text, message.terms),))
    _check_number(message.since_ns)


def _check_unfollow(message: m.Unfollow) -> None:
    _check_text(message.text)


def _check_state(message: m.State) -> None:
    m.check_attributes(message.values)
    changes.check(message.changes)


def _check_welcome(message: m.Welcome) -> None:
    _check_number(message.epoch)
    _check_number(message.published)


def _check_deliver(message: m.Deliver | m.Current | m.Late | m.Here) -> None:
    _check_notification(message.notification)


def _check_settled(message: m.Settled) -> None:
    for name in message.missed:
        _check_name(name)


def _check_gap(message: m.Gap | m.HereGap) -> None:
    _require(len(message.reason) <= REASON_MAX, "too long a reason")


def _check_entry(entry: m.Entry) -> None:
    _require(len(entry.client) <= NAME_MAX, f"a name has at most {NAME_MAX} characters")
    chain = (entry.filter, *entry.ahead)
    for one in chain:
        _require(len(one.conjunctions) == 1, "a filter of an entry has one conjunction")
        _characters(one)
    _require(len(chain) < 2 or chain[-2] != chain[-1], "an entry that names its last filter twice")


def _check_update(message: m.Update) -> None:
    for entry in (*message.add_subs, *message.remove_subs):
        _check_entry(entry)
    for entry in (*message.add_ads, *message.remove_ads):
        _check_entry(entry)
        _require(not entry.ahead, "an advertisement is the same everywhere")
    for errand in message.errands:
        CHECKS[type(errand)](errand)
    if message.echo is not None:
        _check_echo(message.echo)
    for slow in message.slow:
        _check_name(slow.publisher)


def _check_announce(message: m.Announce) -> None:
    for name in message.brokers:
        _check_name(name)
    for began in message.begun:
        _check_name(began.client)
        _check_number(began.epoch)
        _require(len(began.broker) <= NAME_MAX, f"a name has at most {NAME_MAX} characters")
    for one in message.unclaimed:
        _check_name(one.broker)
        _check_name(one.client)
        _check_number(one.epoch)
    for request in message.sought:
        _check_request(request)


def _check_request(message: m.Request) -> None:
    _check_name(message.broker)
    _check_name(message.client)
    _check_number(message.epoch)
    _check_number(message.delivered)
    _check_previous(message.previous)
    _check_number(message.digest)


def _check_reply(message: m.Reply) -> None:
    _check_name(message.broker)
    _check_name(message.client)
    _require(len(message.why) <= REASON_MAX, "too long a reason")
    _require(message.lost <= LOST_MAX, "more lost than anybody can have published")
    counts = (message.epoch, message.old_epoch, message.lost, message.published)
    for number in (*counts, *message.marks.values()):
        _check_number(number)
    for name in message.marks:
        _check_name(name)
    for kept in message.kept:
        _check_notification(kept.notification)
        _check_number(kept.age_ns)
        if kept.ask == late.REPORT:
            _check_settled(late.settled_of(kept.notification))
    for loss in message.losses:
        _check_number(loss.place)
        _check_number(loss.count)
        _require(len(loss.why) <= REASON_MAX, "too long a reason")
        _require(loss.count <= LOST_MAX, "more lost than anybody can have published")
    _check_filters(message.subscriptions or ())
    _check_all_terms(message)


def _check_fetch(message: m.Fetch) -> None:
    _check_searched(message)
    _check_number(message.delivered)
    _check_number(message.digest)
    _check_number(message.since)
    _check_filters(message.subscriptions)


def _check_searched(message: m.Fetch | m.Searched | m.Ask | m.Profile | m.Prepare) -> None:
    _check_name(message.broker)
    _check_name(message.client)
    _check_number(message.epoch)


def _check_ask(message: m.Ask) -> None:
    _check_searched(message)
    _check_previous(message.previous)
    _check_number(message.digest)


def _check_profile(message: m.Profile) -> None:
    _check_searched(message)
    _check_filters((*message.subscriptions, *message.advertisements))
    _check_all_terms(message)
    _check_watched(message)


def _check_prepare(message: m.Prepare) -> None:
    _check_searched(message)
    _check_filters(message.advertisements)


def _check_echo(message: m.Echo) -> None:
    for name in message.missing:
        _check_name(name)


def _check_convene(message: m.Convene) -> None:
    _check_name(message.broker)
    _check_filter(message.enlist)


def _check_past_request(message: m.PastRequest) -> None:
    _check_name(message.broker)
    _check_filter(message)
    if message.terms is not None:
        _check_terms(message.terms)


def _check_past_reply(message: m.PastReply) -> None:
    _check_name(message.broker)
    for kept in message.kept:
        _check_notification(kept.notification)
        _check_number(kept.age_ns)


def _check_resend(message: m.Resend) -> None:
    _check_number(message.epoch)
    _require(message.above <= DELIVERED_MAX, "more attachments than there can be")


def _check_tunnel(message: m.Tunnel) -> None:
    for name in (message.broker, message.visited, message.link):
        _check_name(name)
    _require(len(message.reason) <= REASON_MAX, "too long a reason")
    if message.message is not None:
        CHECKS[type(message.message)](message.message)


def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        _check_name(name)


def _check_shadow(message: m.Shadow) -> None:
    _check_name(message.broker)
    _check_name(message.client)
    _check_followed(message.followed)
    _check_names(message.others)


def _check_forget(message: m.Forget) -> None:
    _check_name(message.client)
    if message.broker:
        _check_name(message.broker)


def _check_recall(message: m.Recall) -> None:
    _check_name(message.broker)
    _check_name(message.client)
    if message.state is not None:
        _check_state(message.state)
    _check_follows(message.follows)


def _check_recalled(message: m.Recalled) -> None:
    _check_name(message.client)
    _check_names(message.others)
    _require(len(message.reason) <= REASON_MAX, "too long a reason")
    for kept in message.kept:
        _check_notification(kept.notification)
        _check_number(kept.age_ns)


def _check_nothing(message: m.AnyMessage) -> None:
    """The decoder has checked it all."""


CHECKS: dict[type, Callable[[Any], None]] = {
    m.Hello: _check_hello,
    m.Join: _check_join,
    m.Took: _check_took,
    m.Ping: _check_nothing,
    m.Refused: _check_refused,
    m.Login: _check_login,
    m.Challenge: _check_challenge,
    m.Proof: _check_proof,
    m.Peer: _check_nothing,
    m.Notification: _check_notification,
    m.Uncertain: _check_uncertain,
    m.Retained: _check_retained,
    m.Values: _check_values,
    m.Attach: _check_attach,
    m.Detach: _check_nothing,
    m.Subscribe: _check_subscribe,
    m.Unsubscribe: _check_filter,
    m.Advertise: _check_filter,
    m.Unadvertise: _check_filter,
    m.Publish: _check_publish,
    m.Ack: _check_nothing,
    m.Welcome: _check_welcome,
    m.Deliver: _check_deliver,
    m.Current: _check_deliver,
    m.Late: _check_deliver,
    m.Gap: _check_gap,
    m.Settled: _check_settled,
    m.Published: _check_nothing,
    m.Update: _check_update,
    m.Announce: _check_announce,
    m.Request: _check_request,
    m.Reply: _check_reply,
    m.Fetch: _check_fetch,
    m.Searched: _check_searched,
    m.Tunnel: _check_tunnel,
    m.Ask: _check_ask,
    m.Profile: _check_profile,
    m.Prepare: _check_prepare,
    m.Echo: _check_echo,
    m.Resend: _check_resend,
    m.Interest: _check_filter,
    m.NoResponders: _check_nothing,
    m.Enlist: _check_filter,
    m.Convene: _check_convene,
    m.PastRequest: _check_past_request,
    m.PastReply: _check_past_reply,
    m.Follow: _check_follow,
    m.Unfollow: _check_unfollow,
    m.State: _check_state,
    m.HereAck: _check_nothing,
    m.Here: _check_deliver,
    m.HereGap: _check_gap,
    m.CaughtUp: _check_nothing,
    m.Shadow: _check_shadow,
    m.Forget: _check_forget,
    m.Recall: _check_recall,
    m.Recalled: _check_recalled,
}
