"""Everything that crosses a link.

On the wire a message is an array: its tag, then its fields. Tags and fields are append-only: a new
field goes last and has a default, a tag is never used again. `Hello` is the first frame of every
connection and never changes.

    client -> border broker   Attach  Detach  Subscribe  Unsubscribe  Advertise  Unadvertise
                              Publish  Ack(Probe)  Follow  Unfollow  State  HereAck  Enlist
    border broker -> client   Welcome  Deliver  Current  Late  Gap  Settled  Published  Resend  Interest
                              Here  HereGap  Echo  NoResponders
    broker -> broker          Notification  Uncertain  Retained  Values  Gap  Announce  Tunnel
                              Update(Probe, Echo, Slow, Request, Reply, Fetch, Searched, Ask,
                                         Profile, Prepare, Convene, PastRequest, PastReply)
    replicator -> replicator  Shadow  Forget  Recall  Recalled
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated, ClassVar, NewType

import msgspec
from msgspec import Meta

from wayfare.core.changes import Changes
from wayfare.core.filters import Filter
from wayfare.core.predicates import INT_MAX, INT_MIN, NAME_MAX, NEAR_METRES_MAX, Like, Value
from wayfare.errors import FilterError, InvalidNotification

BrokerId = NewType("BrokerId", str)
ClientId = NewType("ClientId", str)
LinkId = NewType("LinkId", str)

PROTOCOL_VERSION = 1
CLIENT_NAME_MAX = 256  # characters of a client's or broker's name
_LARGEST = float.fromhex("0x1.fffffffffffffp+1023")  # the last one before infinity
ATTRIBUTES_MAX = 128  # of one notification
_SURROGATE = re.compile("[\ud800-\udfff]")


PUBLICATION_BYTES_MAX = 4 * 1024 * 1024  # of payload and texts
FILTERS_MAX = 10_000  # subscriptions, or advertisements, of one client
KEY_MAX = 8  # attributes that make up a key in terms
NULLIFY_CHARACTERS_MAX = 500  # of the condition under which a notification nullifies others
PROFILE_CHARACTERS_MAX = 1_000_000  # of all filters of one client, as text: they fit a frame
PREVIOUS_MAX = 100  # attachments without a welcome that a client remembers
UPDATE_MAX = 200  # filters of entries in one Update: as many of the longest fit a frame
AHEAD_MAX = 8  # filters that an entry has for the hops beyond
ERRANDS_MAX = 4  # in one Update
SLOW_MAX = 100  # publishers in one Update
ANNOUNCE_MAX = 1_000  # brokers, or clients, in one Announce
PAST_HOPS_MAX = 64  # that a request for the past travels
REPLY_BYTES_MAX = 1024 * 1024  # of notifications in one Reply; then the rest comes in another
REPLY_KEPT_MAX = 10_000  # notifications in one Reply
REPLY_MARKS_MAX = 1_000  # publishers of which one Reply says how far they were heard
UNSETTLED_MAX = 100  # losses of unknown number of one client that may be settled later
WILL_SUFFIX = (
    " (will)"  # of the name that the will of a client is published under; no client has such a name
)
WILL_BYTES_MAX = 64 * 1024  # of payload and texts of a will
RETAIN_NAMES_MAX = 8  # attributes that are the key of a retained publication
VALUES_MAX = 1_000  # current values in one Values
LOCATION_MAX = 256  # characters of a location's name
AREA_MAX = 256  # locations of an area, or for which one location stands

# The decoder checks lengths before it looks at what is in there.
Filters = Annotated[tuple[Filter, ...], Meta(max_length=FILTERS_MAX)]
# And of what mostly comes it checks everything: attributes as `check_attributes` does.
Number = Annotated[int, Meta(ge=0, le=INT_MAX)]
Attributes = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=NAME_MAX)],
        str
        | Annotated[int, Meta(ge=INT_MIN, le=INT_MAX)]
        | Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]  # neither infinite nor NaN
        | bool,
    ],
    Meta(max_length=ATTRIBUTES_MAX),
]
Location = Annotated[str, Meta(max_length=LOCATION_MAX)]
Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]
Metres = Annotated[float, Meta(ge=0, le=NEAR_METRES_MAX)]


class Area(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a notification is of use: at these locations, or else in this circle."""

    locations: Annotated[tuple[Location, ...], Meta(max_length=AREA_MAX)] = ()
    circle: tuple[Latitude, Longitude, Metres] | None = None


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages: values without identity."""


class Hello(Message, frozen=True, tag=0):
    """Who speaks which version of the protocol."""

    version: int
    name: str


class Join(Message, frozen=True, tag=3):
    """A broker takes up its link to a neighbour, where it was or from nothing.

    A life is as long as a broker remembers what it sent and took; each has a number of its own.
    """

    life: int  # of the sender
    known: int  # the life of the receiver that the sender has heard of; 0: none
    taken: int  # how many messages of that life it has taken
    confirmed: int = -1  # how many of its own the receiver has confirmed; -1: an older release


class Took(Message, frozen=True, tag=4):
    """So many messages on this link were taken, and need not be kept any more."""

    taken: int


class Ping(Message, frozen=True, tag=5):
    """Still here: says something, so that the other end knows, and answers."""

    answer: bool = False  # to one


class Refused(Message, frozen=True, tag=6):
    """Why the connection is closed now."""

    reason: str
    again: bool = False  # the same may be tried again later
    login: bool = False  # the account or its password is wrong


class Login(Message, frozen=True, tag=7):
    """Whose account a client uses. It says so before it attaches, where nobody else can hear."""

    name: str
    password: str
    # The address of the device that a proxy logs in, and a proof that the proxy knows the secret of the brokers.
    address: str = ""
    proof: bytes = b""

    def __repr__(self) -> str:
        return f"Login({self.name!r}, ...)"  # so that no log has the password


class Challenge(Message, frozen=True, tag=8):
    """Prove that you know our secret: by a digest of it and of this, which nobody has seen before."""

    nonce: bytes


class Proof(Message, frozen=True, tag=9):
    """Answers a challenge; the secret itself never crosses a link."""

    digest: bytes


class Peer(Message, frozen=True, tag=74):
    """From now on a broker says here what its replicator has for ours, and nothing else."""


class Notification(Message, frozen=True, tag=1):
    """A published message; (publisher, number) identifies it."""

    publisher: ClientId
    number: Number
    attributes: Attributes
    payload: bytes = b""
    published_ns: Number = 0  # by the publisher's clock, since 1970; 0: unknown
    expires_ns: Number = 0  # after which it is of no use, counted from its arrival; 0: never
    area: Area | None = None  # where it is of use; None: everywhere


class Uncertain(Message, frozen=True, tag=2):
    """A notification that may have overtaken others of its publisher, with numbers below `since`."""

    notification: Notification
    since: int


class Retain(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Keep a publication as the current value of its key: the attributes with these names, and their values."""

    names: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=NAME_MAX)], ...],
        Meta(min_length=1, max_length=RETAIN_NAMES_MAX),
    ]
    clear: bool = False  # from now on the key has no value


class Retained(Message, frozen=True, tag=80):
    """A notification that is the current value of its key: it goes to every broker."""

    notification: Notification
    retain: Retain
    version: Number  # higher is later; of equal ones, the name of the publisher decides
    account: str = ""  # of the publisher
    since: Number = 0  # as in Uncertain; 0: it has overtaken nothing


class Values(Message, frozen=True, tag=81):
    """Current values that a neighbour may not know, because its link began from nothing."""

    values: Annotated[tuple[Retained, ...], Meta(max_length=VALUES_MAX)]


class Will(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What to publish when a client is gone for longer than the delay."""

    attributes: Attributes
    payload: bytes = b""
    delay_ns: Number = 0
    retain: Retain | None = None

    area: ClassVar[Area | None] = None  # a will is of use everywhere


def check_will(will: Will, client: str) -> None:
    """Raise InvalidNotification unless this can be the will of a client of that name."""
    if not will.attributes:
        raise InvalidNotification("a will has at least one attribute: say what it is about")
    check_publication(will.attributes, will.payload)
    texts = [value for value in will.attributes.values() if isinstance(value, str)]
    if len(will.payload) + sum(len(text.encode()) for text in texts) > WILL_BYTES_MAX:
        raise InvalidNotification(f"a will has at most {WILL_BYTES_MAX} bytes")
    if len(client) + len(WILL_SUFFIX) > CLIENT_NAME_MAX:
        raise InvalidNotification(
            f"a client with a will has a name of at most {CLIENT_NAME_MAX - len(WILL_SUFFIX)} characters"
        )
    if will.retain is not None:
        check_retain(will.retain, will.attributes)


def check_retain(retain: Retain, attributes: Mapping[str, Value]) -> None:
    """Raise InvalidNotification unless a notification with these attributes has such a key."""
    names = retain.names
    if not 0 < len(names) <= RETAIN_NAMES_MAX or len(set(names)) < len(names):
        raise InvalidNotification(
            f"the key of a retained publication is 1 to {RETAIN_NAMES_MAX} different attributes"
        )
    for name in names:
        if name not in attributes:
            raise InvalidNotification(
                f"it is to be retained by {name}, and has no such attribute: add it, or name others"
            )


def check_attributes(attributes: Mapping[str, Value]) -> None:
    """Raise InvalidNotification unless these can be published."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidNotification(f"a notification has at most {ATTRIBUTES_MAX} attributes")
    for name, value in attributes.items():
        if type(name) is not str or not 0 < len(name) <= NAME_MAX:
            raise InvalidNotification(
                f"an attribute's name is a text of 1 to {NAME_MAX} characters: {name!r}"
            )
        if not name.isascii() and _SURROGATE.search(name):
            raise InvalidNotification(f"the name {name!r} contains half of a surrogate pair")
        if type(value) is str:
            if not value.isascii() and _SURROGATE.search(value):
                raise InvalidNotification(f"{name} contains half of a surrogate pair, no character")
        elif type(value) is float:
            if not isfinite(value):
                raise InvalidNotification(f"{name} is {value}; NaN and infinities are not values")
        elif type(value) is int:
            if not INT_MIN <= value <= INT_MAX:
                raise InvalidNotification(f"{name} is too large: an int has at most 64 bits")
        elif type(value) is not bool:
            raise InvalidNotification(
                f"{name} is a {type(value).__name__}; attributes are str, int, float or bool"
            )


def check_area(area: Area) -> None:
    """Raise InvalidNotification unless this is an area: some locations, or a circle."""
    if bool(area.locations) == (area.circle is not None):
        raise InvalidNotification("an area is either some locations, or a circle")
    if not 0 <= len(area.locations) <= AREA_MAX:
        raise InvalidNotification(f"an area has at most {AREA_MAX} locations")
    for name in area.locations:
        if type(name) is not str or not 0 < len(name) <= LOCATION_MAX or _SURROGATE.search(name):
            raise InvalidNotification(
                f"a location of an area is a text of 1 to {LOCATION_MAX} characters: {name!r:.60}"
            )
    if area.circle is not None and not _is_circle(area.circle):
        raise InvalidNotification(
            f"a circle is a latitude, a longitude and metres, like (52.52, 13.38, 500): {area.circle!r:.60}"
        )


def _is_circle(circle: tuple[float, float, float]) -> bool:
    limits = (-90, 90), (-180, 180), (0, NEAR_METRES_MAX)
    return len(circle) == 3 and all(
        type(number) in (int, float) and least <= number <= most
        for number, (least, most) in zip(circle, limits, strict=True)
    )


def check_publication(attributes: Mapping[str, Value], payload: bytes) -> None:
    """Raise InvalidNotification unless this can be published, and fits a frame when it is delivered."""
    check_attributes(attributes)
    size = len(payload)
    for value in attributes.values():
        if type(value) is str:
            size += len(value) if value.isascii() else len(value.encode())
    if size > PUBLICATION_BYTES_MAX:
        raise InvalidNotification(f"a publication has at most {PUBLICATION_BYTES_MAX} bytes")


# Client -> border broker

# Attachments of a client, newest first.
Previous = Annotated[tuple[tuple[BrokerId, int], ...], Meta(max_length=PREVIOUS_MAX)]


class Nullify(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification that matches nullifies earlier ones with the same values of some attributes."""

    when: Filter
    same: Annotated[tuple[str, ...], Meta(max_length=KEY_MAX)] = ()  # none: it nullifies all


class Terms(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much of what it missed a client wants to have, for one of its subscriptions."""

    last: int | None = None  # this many, the newest
    younger_ns: int | None = None  # not older than this
    # The newest for every value of this attribute, or of several together.
    key: str | Annotated[tuple[str, ...], Meta(max_length=KEY_MAX)] | None = None
    local: bool = False  # the subscription stays behind when its client goes to another broker
    # That publishers may be slowed for a client that reads too slowly; None: as long as its broker allows.
    slow_ns: int | None = None
    nullify: Nullify | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes of the key; none: the terms have no key."""
        return (self.key,) if isinstance(self.key, str) else self.key or ()


SLOWS = "slows publishers for "
NULLIFIED = "nullified"


def terms_text(terms: Terms) -> str:
    """last 3, younger than 2.5 s, newest by road + lane, local, slows publishers for 10 s"""
    parts = [
        f"last {terms.last}" if terms.last is not None else "",
        f"younger than {terms.younger_ns / 1e9:g} s" if terms.younger_ns is not None else "",
        f"newest by {' + '.join(terms.names)}" if terms.names else "",
        "local" if terms.local else "",
        f"{SLOWS}{terms.slow_ns / 1e9:g} s" if terms.slow_ns is not None else "",
        _nullify_text(terms.nullify) if terms.nullify is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _nullify_text(nullify: Nullify) -> str:
    """Last in a text of terms: the filter may contain anything."""
    same = f" for the same {' + '.join(nullify.same)}" if nullify.same else ""
    return f"{NULLIFIED}{same} by {nullify.when}"


def check_terms(terms: Terms) -> None:
    """Raise FilterError unless a client may ask for this."""
    numbers = ("last", terms.last), ("younger_ns", terms.younger_ns), ("slow_ns", terms.slow_ns)
    for name, number in numbers:
        if number is not None and (type(number) is not int or not 0 <= number <= INT_MAX):
            raise FilterError(f"the term {name} is {number!r}: give a whole number, at least 0")
    if terms.key is not None:
        _check_names("key", terms.names or terms.key)
    if type(terms.local) is not bool:
        raise FilterError(f"the term local is {terms.local!r:.60}: give True or False")
    if terms.nullify is not None:
        _check_nullify(terms.nullify)


def _check_names(term: str, names: object) -> None:
    good = (
        isinstance(names, tuple)
        and 0 < len(set(names)) == len(names) <= KEY_MAX
        and all(type(one) is str and 0 < len(one) <= NAME_MAX for one in names)
    )
    if not good:
        raise FilterError(
            f"the term {term} is {names!r:.60}: give an attribute's name, or up to {KEY_MAX} different ones"
        )


def _check_nullify(nullify: Nullify) -> None:
    """The condition is tested for each notification that is kept, so it has to be short, and without patterns."""
    if nullify.same:
        _check_names("same", nullify.same)
    if len(str(nullify.when)) > NULLIFY_CHARACTERS_MAX:
        raise FilterError(
            f"the term nullify has {len(str(nullify.when))} characters: give at most {NULLIFY_CHARACTERS_MAX}"
        )
    if any(isinstance(one, Like) for some in nullify.when.conjunctions for one in some):
        raise FilterError("the term nullify compares values: leave out like, prefix, contains")


AllTerms = Annotated[tuple[tuple[int, Terms], ...], Meta(max_length=FILTERS_MAX)]
Places = Annotated[tuple[int, ...], Meta(max_length=FILTERS_MAX)]  # of filters in a list

# Subscriptions that follow the client

FOLLOWS_MAX = 100  # location-dependent subscriptions of one client
LISTENERS_MAX = 32  # brokers that listen ahead for one client, if that is learnt
FOLLOWED_CHARACTERS_MAX = 10_000  # of all of them: each change of state resolves them at once
AREAS_MAX = 1_000  # locations that stand for more than themselves

Areas = Annotated[
    dict[Location, Annotated[tuple[Location, ...], Meta(min_length=1, max_length=AREA_MAX)]],
    Meta(max_length=AREAS_MAX),
]


class State(Message, frozen=True, tag=62):
    """What a client is like now: what `myloc` and `my.<name>` stand for in what it follows."""

    location: Location = ""  # nowhere
    position: tuple[Latitude, Longitude] | None = None
    values: Attributes = {}
    areas: Areas = {}  # what `myloc` stands for at a location, unless that is the location itself
    changes: Changes = {}  # which values brokers follow, and how they change


NOWHERE = State()
# The text of a filter that mentions `myloc` or `my.<name>`, and what is kept for a client that is away.
Follows = Annotated[tuple[tuple[str, Terms | None], ...], Meta(max_length=FOLLOWS_MAX)]


class Followed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What follows a client, what it is like, and how far it got what came of that by `Here`."""

    follows: Follows
    state: State
    heard: tuple[Number, Number] = (0, 0)  # since which attachment, and up to which number


class Attach(Message, frozen=True, tag=10):
    """A client is here. `epoch` counts its attachments: higher is later."""

    client: ClientId
    epoch: int
    delivered: int  # number of the last delivery that it got
    subscriptions: Filters = ()
    advertisements: Filters = ()
    # Attachments that may still hold its session, newest first, back to the last Welcome. Epoch 0:
    # whichever was the last one there.
    previous: Previous = ()
    welcomed: bool = False  # a session of it is, or was, somewhere
    home: BrokerId = BrokerId("")  # where it attached first
    terms: AllTerms = ()  # and of which subscription, by its place
    digest: int = 0  # in place of subscriptions, terms and advertisements
    window: int = 0  # deliveries that may be on their way to it; the broker allows some anyway
    watched: Places = ()  # advertisements of which it wants to know whether anybody is interested
    followed: Followed | None = None
    expires_ns: Number = 0  # that it may be away until its session ends; 0: the broker's limit
    # New subscriptions, by their places, that ask for current values; and the numbers of these requests.
    asks: Annotated[tuple[tuple[int, Number], ...], Meta(max_length=FILTERS_MAX)] = ()
    # Its process began at this epoch, and the tree may not know it; 0: it does.
    anew: Number = 0
    life: Number = (
        0  # tells it from other processes of its name; goes on with its store; 0: unknown
    )
    # That it waits for what an old broker has which cannot be reached; 0: as long as the new broker allows.
    failover_ns: Number = 0
    will: Will | None = None
    late: Number = 0  # what it wants of what such a broker sends when it is back: see late.py
    state: State | None = None  # where it is, if it has said so and follows nothing
    # It goes on where another process of its name was, and is later than that: it is told what to exceed, and not
    # refused. If it begins anew, its publications go on, and all brokers say how far these are.
    resumes: bool = False


class Detach(Message, frozen=True, tag=11):
    """The client goes away; with `leave`, for good: its session ends; with `moves`, to another broker now."""

    leave: bool = False
    moves: bool = False


class Subscribe(Message, frozen=True, tag=12):
    filter: Filter
    terms: Terms | None = None
    since_ns: Number = 0  # how much of the past is wanted, too
    ask: Number = 0  # the number of this request for current values; 0: they are not wanted
    delivered: Number = 0  # the last delivery that came before it


class Unsubscribe(Message, frozen=True, tag=13):
    filter: Filter


class Advertise(Message, frozen=True, tag=14):
    filter: Filter
    watch: bool = False  # tell me whether anybody is interested; the last one counts


class Unadvertise(Message, frozen=True, tag=15):
    filter: Filter


OVER_NS = 1  # of a lifetime that is over


class Publish(Message, frozen=True, tag=16):
    """The client's publication of that number: 1, 2, 3 ... for its whole life."""

    number: Number
    attributes: Attributes
    payload: bytes = b""
    published_ns: Number = 0  # by the publisher's clock, since 1970; 0: unknown
    retain: Retain | None = None
    expires_ns: Number = 0  # after which it is of no use; 0: never
    area: Area | None = None  # where it is of use; None: everywhere


MISSING_MAX = 1_000  # neighbours that an Echo names


class Probe(Message, frozen=True, tag=47):
    """Tell me by an `Echo` when what I said so far has spread: see convergence.py. 0: not asked.

    From a client: everything up to this request, by its own count. Between neighbours: the updates up to
    this one, as the sender counts them.
    """

    ads: Number = 0  # advertisements, and the subscriptions that answer them
    subs: Number = 0  # subscriptions
    # From a client: after this time, report what is missing. 0, or more than the broker's limit: after that.
    report_ns: Number = 0


class Echo(Message, frozen=True, tag=48):
    """Everything up to these numbers has spread. 0: nothing new.

    To a client, with `missing`: it has not in time, because these neighbours of its broker have not answered.
    """

    ads: Number = 0
    subs: Number = 0
    missing: Annotated[tuple[BrokerId, ...], Meta(max_length=MISSING_MAX)] = ()


class Ack(Message, frozen=True, tag=17):
    """All deliveries up to this number have reached the application."""

    number: Number
    probe: Probe | None = None  # a question that goes along


class Follow(Message, frozen=True, tag=60):
    """Subscribe to what this filter says wherever the client is, and whatever it is like."""

    text: str
    terms: Terms | None = None
    since_ns: Number = 0  # how much of the past is wanted, too


class Unfollow(Message, frozen=True, tag=61):
    text: str


GROUP_NAME_MAX = 256  # characters of the name of a queue group
PREFETCH_MAX = (
    10_000  # notifications that one member of a queue group may have without being done with them
)
AWAY_MIN_NS = 1_000_000  # that a member may be silent, at least


class Enlist(Message, frozen=True, tag=86):
    """The client is a member of a queue group: see groups.py. Said again, it changes nothing."""

    group: Annotated[str, Meta(min_length=1, max_length=GROUP_NAME_MAX)]
    filter: Filter
    member: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]  # its address
    beat: Number  # of this message, as the member counts
    prefetch: Annotated[int, Meta(ge=1, le=PREFETCH_MAX)]
    away_ns: Annotated[int, Meta(ge=AWAY_MIN_NS, le=INT_MAX)]
    # For how long publishers may be slowed for the group; None: as long as its broker allows.
    slow_ns: Number | None = None
    client: Annotated[ClientId, Meta(max_length=NAME_MAX)] = ClientId("")  # its broker says which
    account: Annotated[str, Meta(max_length=NAME_MAX)] = ""  # likewise; empty: it has none


class HereAck(Message, frozen=True, tag=63):
    """All deliveries by `Here` up to this number have reached the application."""

    number: Number
    # Which deliveries has the session of the client? `CaughtUp` answers, when the session is open.
    asks: bool = False


# Border broker -> client


class Welcome(Message, frozen=True, tag=20):
    """The session is open; publications up to `published` have been accepted."""

    epoch: int
    published: int


class Deliver(Message, frozen=True, tag=21):
    """The client's delivery of that number: one stream per client, without holes."""

    number: Number
    notification: Notification


class Current(Message, frozen=True, tag=82):
    """A delivery, in the same stream: the current value of a key, for one new subscription."""

    number: Number
    notification: Notification
    ask: Number  # the request of this subscription


class Late(Message, frozen=True, tag=98):
    """A delivery, in the same stream: kept by an old broker of the client that did not answer in time."""

    number: Number
    notification: Notification


class Settled(Message, frozen=True, tag=99):
    """A delivery, in the same stream: what is lost of what the client's old broker had, as is known now.

    With the number 0 it is no delivery: this may be known later, so the client has to note what it gets.
    """

    number: Number
    gap: Number  # at which attachment the client was told of a loss of unknown number
    # Publications that come too late, unless the client has had them: publisher -> numbers.
    missed: Annotated[
        dict[ClientId, Annotated[tuple[Number, ...], Meta(max_length=REPLY_KEPT_MAX)]],
        Meta(max_length=REPLY_KEPT_MAX),
    ] = {}
    exact: bool = True  # False: more may be lost, which nobody can count
    more: bool = False  # the rest comes later


class Gap(Message, frozen=True, tag=22):
    """Deliveries up to this number that have not arrived are lost.

    Between brokers: something that was to come from the direction of the sender is lost.
    """

    number: Number
    reason: str
    exact: bool = True  # False: nobody knows how many notifications that were
    expired: Number = (
        0  # of these, so many had expired, or were of use elsewhere: they are not lost
    )


class Published(Message, frozen=True, tag=23):
    """All publications up to this number have been accepted."""

    number: Number


class Resend(Message, frozen=True, tag=24):
    """Nobody knows the profile of this digest: attach again, with everything.

    With `above`, another process of this name has reached that number: attach with a higher epoch.
    """

    epoch: int
    above: Number = 0  # of its attachments and publications; only for a client that begins anew


class Interest(Message, frozen=True, tag=25):
    """Whether anybody wants what an advertisement offers: for clients that watch it."""

    filter: Filter
    wanted: bool


class NoResponders(Message, frozen=True, tag=85):
    """Nobody subscribes to the request that the client published by this number: see requests.py."""

    number: Number


class Here(Message, frozen=True, tag=64):
    """A delivery of what the client follows. The numbers begin anew with every attachment."""

    number: Number
    notification: Notification
    past: bool = False  # it came by before the client was here


class HereGap(Message, frozen=True, tag=65):
    """Deliveries by `Here` up to this number that have not arrived are lost."""

    number: Number
    reason: str
    exact: bool = True
    expired: Number = 0  # as in `Gap`


class CaughtUp(Message, frozen=True, tag=66):
    """The session is open. What came by `Here` so far has a delivery up to this one, or none."""

    delivered: Number


# Broker -> broker


class Entry(msgspec.Struct, frozen=True, array_like=True, cache_hash=True, gc=False):
    """An element of a routing table: a filter, and whose it is where routing is per client.

    A subscription may become wider with the distance from its client: `ahead` are the filters of the
    hops beyond this one, the next hop's first. The last one is that of all hops behind it, too.
    """

    filter: Filter
    client: ClientId = ClientId("")
    ahead: Annotated[tuple[Filter, ...], Meta(max_length=AHEAD_MAX)] = ()

    @staticmethod
    def along(chain: Sequence[Filter], client: ClientId = ClientId("")) -> Entry:
        """The entry with these filters, of one conjunction each, from this hop on."""
        needed = len(chain)
        while needed > 1 and chain[needed - 2] == chain[needed - 1]:
            needed -= 1
        if not 0 < needed <= AHEAD_MAX + 1:
            raise ValueError(f"an entry has 1 to {AHEAD_MAX + 1} filters, not {needed}")
        if any(len(one.conjunctions) != 1 for one in chain):
            raise ValueError("each filter of an entry has one conjunction")
        return Entry(chain[0], client, tuple(chain[1:needed]))

    def __str__(self) -> str:
        owner = f"{self.client}: " if self.client else ""
        return owner + " -> ".join(map(str, (self.filter, *self.ahead)))

    def shifted(self) -> Entry:
        """What it is one hop farther from its client."""
        return Entry(self.ahead[0], self.client, self.ahead[1:]) if self.ahead else self

    def widest(self) -> Filter:
        """What it is in the end: nobody beyond wants anything else."""
        return self.ahead[-1] if self.ahead else self.filter


def filter_count(entries: Sequence[Entry]) -> int:
    return sum([len(entry.ahead) for entry in entries], len(entries))


Entries = Annotated[tuple[Entry, ...], Meta(max_length=UPDATE_MAX)]


class Began(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client of this name began anew: sessions of it that are older than this epoch end."""

    client: ClientId
    epoch: int
    broker: BrokerId = BrokerId(
        ""
    )  # where; a broker that knows of a later session reports it there
    life: Number = 0  # of its process; with a broker, older sessions of the same life go on
    asks: bool = False  # whoever knows how far its publications are reports it there


class Unclaimed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The store of this broker was rolled back: the client of this session may be elsewhere by now."""

    broker: BrokerId
    client: ClientId
    epoch: int


class Announce(Message, frozen=True, tag=31):
    """These brokers are in the direction of the sender; these clients began anew.

    Whoever has a later session than an unclaimed one asks for what is left of it. Whoever has an
    older session than one that is `sought` for hands it over: the chain of its hand-offs is broken.
    """

    brokers: Annotated[tuple[BrokerId, ...], Meta(max_length=ANNOUNCE_MAX)]
    begun: Annotated[tuple[Began, ...], Meta(max_length=ANNOUNCE_MAX)] = ()
    unclaimed: Annotated[tuple[Unclaimed, ...], Meta(max_length=ANNOUNCE_MAX)] = ()
    sought: Annotated[tuple[Request, ...], Meta(max_length=ANNOUNCE_MAX)] = ()


# Messages from one broker to any other, which travel in an Update.


class Request(Message, frozen=True, tag=40):
    """A client is at `broker` now: whoever has its session, hand it over."""

    broker: BrokerId
    client: ClientId
    epoch: int
    delivered: int
    previous: Previous  # where to ask, the first one first
    digest: int = 0  # of its subscriptions there
    publishes: bool = False  # so what matches its advertisements has to go there, by the reply
    forgotten: bool = (
        False  # a broker on its way remembers nothing of an attachment that took place
    )
    # Of those in `previous`, these certainly took place; the others may never have reached their broker.
    welcomed: bool = False  # the last one
    departed: bool = False  # the first one: a session went there
    # A broker that cannot forward it says so by a `Reply`, and forwards it later all the same.
    failover: bool = False
    life: Number = 0  # of the process whose session it is: others may have used its epochs; 0: any


class Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification that waits for a client."""

    notification: Notification
    age_ns: int
    ask: Number = 0  # it is a current value, for this request; or comes late: see late.py


class Loss(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Notifications that are lost, before the notification at this place among those that are kept."""

    place: int
    count: int
    why: str
    exact: bool = True  # False: an unknown number, at least one


class Reply(Message, frozen=True, tag=41):
    """What the old broker had for a client, or that nobody has a session of it."""

    broker: BrokerId
    client: ClientId
    epoch: int
    found: bool
    kept: Annotated[tuple[Kept, ...], Meta(max_length=REPLY_KEPT_MAX)] = ()
    lost: int = 0  # notifications dropped to keep a limit, of which the client does not know
    why: str = ""
    exact: bool = True  # False: nobody knows how many were lost
    published: int = 0
    marks: Annotated[dict[ClientId, int], Meta(max_length=REPLY_MARKS_MAX)] = {}
    old_epoch: int = 0  # of the session that is handed over
    subscriptions: Filters | None = None  # of the old session, where they are others than asked for
    more: bool = False  # the rest comes behind it
    terms: AllTerms = ()
    # Where the lost ones are missing among `kept`; without it, before all of them.
    losses: Annotated[tuple[Loss, ...], Meta(max_length=REPLY_KEPT_MAX + 1)] = ()
    # A broker forgot a part of the chain of hand-offs: older sessions may be left elsewhere.
    partial: bool = False
    sought: bool = (
        False  # ... or a link that begins from nothing may lose the answer: see Handoff._seek
    )
    sought_age_ns: Number = 0  # how long ago
    superseded: bool = False  # not found, because a later attachment of the client has it
    asked: Number = 0  # the last request for current values that was answered
    above: Number = (
        0  # an earlier process of the client reached this number: the client has to exceed it
    )
    # What the client published before may still be on its way for so long, behind later ones from this one on.
    doubt_ns: Number = 0
    doubt_since: Number = 0
    unreachable: bool = False  # no answer: a link on the way to the old broker is down
    gap: Number = 0  # it follows its client: the attachment that asked for it; 0: `epoch`
    # Attachments of the client whose losses may be settled later.
    unsettled: Annotated[tuple[Number, ...], Meta(max_length=UNSETTLED_MAX)] = ()


class Fetch(Message, frozen=True, tag=42):
    """A client is at `broker` now: whoever in this direction has a session of it, hand it over.

    It goes where sessions with these subscriptions may be; with `everywhere`, just everywhere.
    """

    broker: BrokerId
    client: ClientId
    epoch: int
    delivered: int
    subscriptions: Filters
    digest: int = 0  # of these subscriptions, with their terms
    since: int = 0  # the epoch that the client was last welcomed with: an older session is not all
    everywhere: bool = False


class Searched(Message, frozen=True, tag=43):
    """This direction has been searched, and everything found there has been sent."""

    broker: BrokerId
    client: ClientId
    epoch: int
    everywhere: bool = False
    superseded: bool = False  # a later attachment of the client takes what was there


class Ask(Message, frozen=True, tag=44):
    """A client is at `broker` now: whoever has its profile of this digest, tell."""

    broker: BrokerId
    client: ClientId
    epoch: int
    previous: Previous  # where to ask, the first one first
    digest: int


class Profile(Message, frozen=True, tag=45):
    """What a client subscribes to and advertises, or that nobody knows."""

    broker: BrokerId
    client: ClientId
    epoch: int
    found: bool
    subscriptions: Filters = ()
    terms: AllTerms = ()
    advertisements: Filters = ()
    watched: Places = ()


class Prepare(Message, frozen=True, tag=46):
    """Advertise this for a client that will be, or may be, at `broker`."""

    broker: BrokerId
    client: ClientId
    epoch: int
    advertisements: Filters


class Convene(Message, frozen=True, tag=87):
    """Coordinate a queue group, which has this member."""

    broker: BrokerId
    enlist: Enlist


class PastRequest(Message, frozen=True, tag=57):
    """Reply to `broker` with what was published in your direction, and matches: see past_requests.py."""

    broker: BrokerId
    place: Number  # of the session there that asks
    number: Number  # of the request
    filter: Filter
    since_ns: Number  # what came by within that time
    terms: Terms | None = None
    # From brokers whose clients did not publish what matches: they have what others wanted, too.
    others: bool = False
    hops: Annotated[int, Meta(ge=0, le=PAST_HOPS_MAX)] = PAST_HOPS_MAX  # that it may still travel


class PastReply(Message, frozen=True, tag=58):
    """What the sender remembers; each neighbour that it has passed the request on to replies as well."""

    broker: BrokerId
    place: Number
    number: Number
    kept: Annotated[tuple[Kept, ...], Meta(max_length=REPLY_KEPT_MAX)] = ()
    more: bool = False  # the rest comes in another
    asked: Number = 0  # neighbours that it has passed the request on to
    complete: bool = True  # False: something of the time that was asked for may be forgotten


Errand = (
    Request | Reply | Fetch | Searched | Ask | Profile | Prepare | Convene | PastRequest | PastReply
)


class Slow(Message, frozen=True, tag=95):
    """Slow a publisher down for so long, unless this is renewed; 0: not any more."""

    publisher: ClientId
    for_ns: Number


class Update(Message, frozen=True, tag=30):
    """How the sender's tables changed, to be applied in this order and as a whole; then errands.

    Additions come first: what a leaving filter covered is there before it goes.
    """

    add_ads: Entries = ()
    add_subs: Entries = ()
    remove_subs: Entries = ()
    remove_ads: Entries = ()
    errands: Annotated[tuple[Errand, ...], Meta(max_length=ERRANDS_MAX)] = ()
    repairs: bool = False  # not used any more
    # Of all updates on this link so far, with this one.
    probe: Probe | None = None
    echo: Echo | None = None
    # Publishers in the direction of the receiver: see backpressure.py.
    slow: Annotated[tuple[Slow, ...], Meta(max_length=SLOW_MAX)] = ()


FromClient = (
    Attach
    | Detach
    | Subscribe
    | Unsubscribe
    | Advertise
    | Unadvertise
    | Publish
    | Ack
    | Follow
    | Unfollow
    | State
    | HereAck
    | Enlist
)
ToClient = (
    Welcome
    | Deliver
    | Current
    | Late
    | Gap
    | Settled
    | Published
    | Resend
    | Interest
    | Here
    | HereGap
    | CaughtUp
    | Echo
    | NoResponders
)


class Tunnel(Message, frozen=True, tag=32):
    """What a client that visits a broker and its home broker say to each other.

    Without a message: the connection is gone, or has to go.
    """

    broker: BrokerId  # where it goes
    visited: BrokerId
    link: LinkId  # the client's connection there
    message: FromClient | ToClient | None
    reason: str = ""
    again: bool = False  # the client is to attach again


# Replicator -> replicator, directly. Any of them may be lost: a virtual client has a lease.


Listeners = Annotated[tuple[BrokerId, ...], Meta(max_length=LISTENERS_MAX)]


class Shadow(Message, frozen=True, tag=70):
    """Be, or stay for so long, a virtual client of a client that is at `broker`."""

    broker: BrokerId
    client: ClientId
    epoch: Number
    version: Number  # of what the client follows, and is like
    lease_ns: Number
    followed: Followed
    others: Listeners = ()  # all that listen ahead for it, if they are not the same for all clients


class Forget(Message, frozen=True, tag=71):
    """No virtual client of an epoch before this one is needed."""

    client: ClientId
    epoch: Number
    broker: BrokerId = BrokerId("")  # where the client is now; empty: it left, or that is known


class Recall(Message, frozen=True, tag=72):
    """A client is at `broker`, where nobody has listened for its location: what was kept for it?"""

    broker: BrokerId
    client: ClientId
    epoch: Number
    heard: tuple[Number, Number] = (0, 0)  # since which attachment, and up to which number, by Here
    forget: bool = False  # as by `Forget`, when this is answered
    state: State | None = None  # of the client now; None: that of its virtual client there
    follows: Follows = ()  # by the client: also what was kept for others matches this


class Recalled(Message, frozen=True, tag=73):
    """What a virtual client had for its client, the oldest first, and how many were too many."""

    client: ClientId
    epoch: Number
    kept: Annotated[tuple[Kept, ...], Meta(max_length=REPLY_KEPT_MAX)] = ()
    lost: Number = 0
    reason: str = ""  # why these were lost
    others: Listeners = ()  # that listen ahead for it, as in Shadow


Between = Notification | Uncertain | Retained | Values | Gap | Update | Announce | Tunnel
# What the core never sees.
Hosts = Hello | Join | Took | Ping | Refused | Login | Challenge | Proof | Peer
Peers = Shadow | Forget | Recall | Recalled
AnyMessage = Hosts | FromClient | ToClient | Between | Peers
