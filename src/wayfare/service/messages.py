"""What client libraries and mobility proxies say to each other.

    library -> proxy           Hello  Register  Change  Renew  MoveOut  Reach  Download  Got
                               Release  Leave
    proxy -> library           Welcome  Registered  Changed  MovedOut  Batch  Downloaded  Released
                               Refused
    proxy -> proxy             Reach  Download  Got  Release             and the answers to them
                               Challenge  Proof  Whose  Owned            where they share a secret

A client's life is a row of stays, numbered by its library: one at each proxy that it moves in at.
Whatever concerns a client carries its key, so that only who began with a name goes on with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from wayfare.errors import CodecError, UsageError
from wayfare.service.system import Publication

MS_NS = 1_000_000
SECOND_NS = 1_000_000_000
FRAME_MAX = 8 * 1024 * 1024  # bytes of one message
PUBLICATION_BYTES_MAX = FRAME_MAX - 64 * 1024  # of one publication: it fits a Batch
NAME_MAX = 128  # characters of a client's name, and of its key
SUBSCRIPTION_MAX = 8_192  # characters of one subscription
SUBSCRIPTIONS_MAX = 10_000  # of one client
SUBSCRIPTIONS_TEXT_MAX = 2_000_000  # characters of all of them: they fit one message
SENDERS_MAX = 10_000  # of which a client says how far it has heard them
HEARD_BYTES_MAX = 1_000_000  # of all that it says of them: it fits one message
ALL = 2**62  # more than anybody has kept
BATCH_MAX = 4_096  # publications in one Batch
BATCH_BYTES = 64 * 1024  # of publications in one Batch; then the rest comes in another

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Address = Annotated[str, Meta(max_length=512)]
Number = Annotated[int, Meta(ge=0, le=ALL)]
Subscription = Annotated[str, Meta(min_length=1, max_length=SUBSCRIPTION_MAX)]
Subscriptions = Annotated[tuple[Subscription, ...], Meta(max_length=SUBSCRIPTIONS_MAX)]
Heard = Annotated[dict[str, Number], Meta(max_length=SENDERS_MAX)]  # sender: its last number
Nonce = Annotated[bytes, Meta(min_length=16, max_length=64)]
Reason = Annotated[str, Meta(max_length=1_000)]


class Sync(msgspec.Struct, frozen=True, array_like=True):
    """How it is made sure that new subscriptions are active before old ones go."""

    kind: Literal["none", "ping", "delay"] = "ping"
    delay_ns: Number = 0  # of "delay"; of "ping", behind the last response
    interval_ns: Annotated[int, Meta(ge=MS_NS)] = 100 * MS_NS  # between requests of "ping"
    patience_ns: Number = 30 * SECOND_NS  # with "ping", then it goes on without a response

    @staticmethod
    def parse(text: str) -> Sync:
        """As people write it: `none`, `ping`, `delay` or `delay 200` (milliseconds)."""
        kind, _, number = text.strip().partition(" ")
        if kind == "none" and not number:
            return NO_SYNC
        if kind == "ping" and not number:
            return PING
        if kind == "delay":
            try:
                delay = float(number or "200")
            except ValueError:
                delay = -1.0
            if 0 <= delay < 1e9:
                return Sync("delay", round(delay * MS_NS))
        raise UsageError(
            f"{text!r:.60} is no way to synchronise: write none, ping, or delay and milliseconds"
        )


NO_SYNC = Sync("none")
PING = Sync("ping")


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """What a client wants of its proxy."""

    sync: Sync = PING  # at move-out
    standby: bool = True  # subscribe while the client is there: nothing is lost when it is cut off
    copies: bool = False  # keep copies of one publication, as the paper does
    last: Annotated[int, Meta(ge=0)] | None = None  # replay at most so many
    age_ns: Number | None = None  # ... and none that is older
    lease_ns: Annotated[int, Meta(ge=100 * MS_NS)] = 10 * SECOND_NS  # without a word, it is away
    away_ns: Number = 24 * 3600 * SECOND_NS  # then its client proxy is removed
    lasting: bool = False  # its next process has the same key: protect its name for longer


DEFAULT_TERMS = Terms()


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Who there? The first message of a library."""

    client: Name
    key: Annotated[str, Meta(max_length=NAME_MAX)] = ""  # of who is not only looking


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=2):
    proxy: Address  # where other proxies reach this one
    access: Address  # the access point of the system beside it
    stay: Number = 0  # the last one that the proxy knows of, if this is the client's key
    over: bool = False  # ... and nobody goes on with it here


class Register(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The client is here from now on; if it is cut off, stand in for it."""

    client: Name
    key: Name
    stay: Number
    subscriptions: Subscriptions
    terms: Terms
    fresh: bool = False  # what was kept here in an earlier stay is given up: the client was told
    change: Number = 0  # the last one that the subscriptions have


class Registered(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The client proxy is ready."""

    client: Name
    stay: Number


class Change(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The client has other subscriptions now."""

    client: Name
    key: Name
    stay: Number
    added: Subscriptions
    removed: Subscriptions
    change: Number = 0  # counted by the library


class Changed(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Whoever stands in for the client has its subscriptions up to this change."""

    client: Name
    change: Number


class Renew(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The client is still there, and has heard these senders so far."""

    client: Name
    key: Name
    stay: Number
    heard: Heard


class MoveOut(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The client is about to go: stand in for it, and say when."""

    client: Name
    key: Name
    stay: Number
    subscriptions: Subscriptions
    terms: Terms


class MovedOut(msgspec.Struct, frozen=True, array_like=True, tag=8):
    client: Name
    stay: Number


class Reach(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The client will download from this proxy. If it is down, or does not know the client, say so.

    The answer is a `Downloaded` of download 0. Otherwise there is none.
    """

    client: Name
    at: Address
    key: Annotated[str, Meta(max_length=NAME_MAX)] = ""  # of an old release: none, and no answer


class Download(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Bring what the proxy `at` has kept for the client since; and stand in for it from now on.

    Between proxies `at` is empty, and nobody is to stand in.
    """

    client: Name
    key: Name
    stay: Number
    download: Number  # which one: what comes of an earlier one is not meant
    at: Address
    heard: Heard
    terms: Terms | None = None  # on which to stand in, with the subscriptions of the old proxy
    fresh: bool = False  # as of `Register`


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Publications that were kept, in order."""

    client: Name
    download: Number
    number: Number  # of this batch: 1, 2, ...
    publications: Annotated[tuple[Publication, ...], Meta(max_length=BATCH_MAX)]


class Got(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """So many batches have come: send more."""

    client: Name
    download: Number
    number: Number


class Downloaded(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """That was all. `lost` of them were dropped before; None: nobody knows how many."""

    client: Name
    download: Number
    at: Address
    stay: Number  # of the client proxy there
    upto: Number  # kept until here
    lost: Number | None = 0
    reason: Reason = ""
    found: bool = True  # it knew the client
    reached: bool = True  # else it may be worth another try
    subscriptions: Subscriptions = ()


class Release(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The client has all that was kept `upto` here. If it stayed elsewhere since, forget it."""

    client: Name
    key: Name
    at: Address
    stay: Number
    upto: Number


class Released(msgspec.Struct, frozen=True, array_like=True, tag=14):
    client: Name
    at: Address
    stay: Number


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The client does not come back."""

    client: Name
    key: Name
    stay: Number


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """That cannot be done: why, and what to do."""

    client: Name
    reason: Reason
    unknown: bool = False  # the proxy does not know the client: it may register


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Prove that you know the secret of the proxies. This is the address of the one that asks."""

    nonce: Nonce
    proxy: Address


class Proof(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Of who knows the secret: a digest of it, of both challenges and of both addresses."""

    digest: Nonce


class Whose(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Whose name is this? Somebody who is new here wants it."""

    client: Name


class Owned(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """The name belongs to the key with this digest until then; an empty digest: to nobody here."""

    client: Name
    digest: Annotated[bytes, Meta(max_length=64)] = b""
    until: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


Message = (
    Hello
    | Welcome
    | Register
    | Registered
    | Change
    | Changed
    | Renew
    | MoveOut
    | MovedOut
    | Download
    | Batch
    | Got
    | Downloaded
    | Release
    | Released
    | Leave
    | Refused
    | Reach
    | Challenge
    | Proof
    | Whose
    | Owned
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(frame: bytes) -> Message:
    """Raises CodecError: whatever it was, it was none of ours."""
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"not a message of the mobility service: {error}") from None


def check_subscriptions(subscriptions: Collection[str]) -> None:
    """UsageError if one client cannot have them all."""
    if (
        len(subscriptions) > SUBSCRIPTIONS_MAX
        or sum(map(len, subscriptions)) > SUBSCRIPTIONS_TEXT_MAX
    ):
        raise UsageError(
            f"a client has at most {SUBSCRIPTIONS_MAX} subscriptions, "
            f"with {SUBSCRIPTIONS_TEXT_MAX} characters in all"
        )


def batches(publications: list[Publication]) -> list[tuple[Publication, ...]]:
    """Cut into pieces that are short enough for one Batch each."""
    pieces: list[tuple[Publication, ...]] = []
    piece: list[Publication] = []
    size = 0
    for publication in publications:
        more = size_of(publication)
        if piece and (size + more > BATCH_BYTES or len(piece) == BATCH_MAX):
            pieces.append(tuple(piece))
            piece, size = [], 0
        piece.append(publication)
        size += more
    if piece:
        pieces.append(tuple(piece))
    return pieces


def size_of(publication: Publication) -> int:
    """At least as many bytes as it takes in a message."""
    texts = sum(
        16 + _size(name) + (_size(value) if isinstance(value, str) else 0)
        for name, value in publication.properties.items()
    )
    sender = 0 if publication.id is None else _size(publication.id.sender)
    return 40 + _size(publication.topic) + len(publication.payload) + texts + sender


def _size(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
