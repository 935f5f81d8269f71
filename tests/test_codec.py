"""Bytes and messages: the round trip, the limits, and what hostile bytes do (nothing but fail)."""

import struct
from contextlib import suppress
from math import inf, nan
from random import Random
from time import process_time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from strategies import filters, part_filters, values
from wayfare.core import codec
from wayfare.core import messages as m
from wayfare.core import predicates as ps
from wayfare.core.codec import FRAME_MAX, NAME_MAX, NUMBER_MAX, FrameDecoder, decode, encode
from wayfare.core.conditions import CONJUNCTIONS_MAX, TERMS_MAX
from wayfare.core.filters import EVERYTHING, NOTHING, Filter
from wayfare.errors import CodecError

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode

HELLO = m.Hello(m.PROTOCOL_VERSION, "porto")
X = Filter.parse("x > 1")
ON_WIRE = [[[3, "x", "number", 1, None, True, False]]]  # X


def body(message):
    return encode(message)[4:]


# Every message

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
numbers = st.integers(0, NUMBER_MAX)
attributes = st.dictionaries(names, values(), max_size=4)
notifications = st.builds(
    m.Notification, names, numbers, attributes, st.binary(max_size=20), numbers
)
retained = st.builds(
    lambda one, clear, version, account, since: m.Retained(
        one, m.Retain(tuple(one.attributes)[:1], clear), version, account, since
    ),
    notifications.filter(lambda one: bool(one.attributes)),
    *(st.booleans(), numbers, st.text(st.characters(codec="utf-8"), max_size=3), numbers),
)
profiles = st.lists(filters(), max_size=3).map(tuple)
owners = st.just("") | names
ads = st.lists(st.builds(m.Entry, part_filters(), owners), max_size=3).map(tuple)
chains = st.lists(part_filters(), min_size=1, max_size=3)
subs = st.lists(st.builds(m.Entry.along, chains, owners), max_size=3).map(tuple)

attachments = st.lists(st.tuples(names, numbers), max_size=3).map(tuple)
terms = st.builds(
    m.Terms,
    st.none() | numbers,
    st.none() | numbers,
    st.none() | names,
    slow_ns=st.none() | numbers,
)


def with_terms(kind, **fields):
    """A message with terms for the first of its subscriptions, and a watched advertisement, if any."""
    return st.builds(
        lambda one, term: replace(
            one,
            terms=((0, term),) if one.subscriptions else (),
            watched=(len(one.advertisements) - 1,) if one.advertisements else (),
            **({"asks": ((0, 7),)} if kind is m.Attach and one.subscriptions else {}),
        ),
        st.builds(kind, **fields),
        terms,
    )


requests = st.builds(m.Request, names, names, numbers, numbers, attachments, numbers)
replies = st.builds(
    m.Reply,
    broker=names,
    client=names,
    epoch=numbers,
    found=st.booleans(),
    kept=st.lists(st.builds(m.Kept, notifications, numbers, numbers), max_size=3).map(tuple),
    lost=st.integers(0, codec.LOST_MAX),
    why=texts,
    exact=st.booleans(),
    published=numbers,
    marks=st.dictionaries(names, numbers, max_size=3),
    old_epoch=numbers,
    subscriptions=st.none() | profiles,
    more=st.booleans(),
    asked=numbers,
)
enlistings = st.builds(
    m.Enlist,
    st.just("workers"),
    filters(),
    st.just("a1b2"),
    numbers,
    st.integers(1, m.PREFETCH_MAX),
    st.integers(m.AWAY_MIN_NS, 2**63 - 1),
    st.none() | numbers,
    st.text(max_size=5),
)
ERRANDS = {
    m.Request: requests,
    m.Reply: replies,
    m.Fetch: st.builds(
        m.Fetch,
        names,
        names,
        numbers,
        numbers,
        profiles,
        digest=numbers,
        since=numbers,
        everywhere=st.booleans(),
    ),
    m.Searched: st.builds(m.Searched, names, names, numbers, st.booleans()),
    m.Ask: st.builds(m.Ask, names, names, numbers, attachments, numbers),
    m.Profile: with_terms(
        m.Profile,
        broker=names,
        client=names,
        epoch=numbers,
        found=st.booleans(),
        subscriptions=profiles,
        advertisements=profiles,
    ),
    m.Prepare: st.builds(m.Prepare, names, names, numbers, profiles),
    m.Convene: st.builds(m.Convene, names, enlistings),
    m.PastRequest: st.builds(
        m.PastRequest,
        names,
        numbers,
        numbers,
        filters(),
        numbers,
        st.none() | terms,
        st.booleans(),
        st.integers(0, m.PAST_HOPS_MAX),
    ),
    m.PastReply: st.builds(
        m.PastReply,
        names,
        numbers,
        numbers,
        st.lists(st.builds(m.Kept, notifications, numbers)).map(tuple),
        st.booleans(),
        numbers,
        st.booleans(),
    ),
}
errand = st.sampled_from(sorted(ERRANDS, key=repr)).flatmap(ERRANDS.get)

pairs = st.tuples(numbers, numbers)
follows = st.lists(
    st.tuples(st.sampled_from(["location in myloc", "x = my.y", "?"]), st.none() | terms),
    max_size=2,
).map(tuple)
states = st.builds(
    m.State,
    st.text(max_size=5),
    st.none() | st.tuples(st.floats(-90, 90), st.floats(-180, 180)),
    attributes,
    st.dictionaries(
        st.text(max_size=5),
        st.lists(st.text(max_size=5), min_size=1, max_size=2).map(tuple),
        max_size=2,
    ),
    st.dictionaries(
        st.text("ab", min_size=1, max_size=5),
        st.integers(1, 9) | st.floats(0.1, 5) | st.just(("walk", "bike", 3, True)),
        max_size=2,
    ),
)
followed = st.builds(m.Followed, follows, states, pairs)
listeners = st.lists(names, max_size=3).map(tuple)

MESSAGES = {
    m.Hello: st.builds(m.Hello, st.integers(-(2**63), 2**64 - 1), names),
    m.Notification: notifications,
    m.Attach: with_terms(
        m.Attach,
        client=names,
        epoch=numbers,
        delivered=st.integers(0, codec.DELIVERED_MAX),
        subscriptions=profiles,
        advertisements=profiles,
        previous=attachments,
        welcomed=st.booleans(),
        home=st.just("") | names,
        digest=numbers,
        followed=st.none() | followed,
    ),
    m.Follow: st.builds(
        m.Follow, st.sampled_from(["location in myloc", "?"]), st.none() | terms, numbers
    ),
    m.Unfollow: st.builds(m.Unfollow, st.sampled_from(["location in myloc", "?"])),
    m.State: states,
    m.HereAck: st.builds(m.HereAck, numbers, st.booleans()),
    m.CaughtUp: st.builds(m.CaughtUp, numbers),
    m.Here: st.builds(m.Here, numbers, notifications, st.booleans()),
    m.HereGap: st.builds(m.HereGap, numbers, texts, st.booleans()),
    m.Shadow: st.builds(m.Shadow, names, names, numbers, numbers, numbers, followed, listeners),
    m.Forget: st.builds(m.Forget, names, numbers, names),
    m.Recall: st.builds(
        m.Recall,
        names,
        names,
        numbers,
        st.tuples(numbers, numbers),
        st.booleans(),
        st.none() | states,
        st.lists(
            st.tuples(st.sampled_from(["location in myloc", "?"]), st.none() | terms), max_size=2
        ).map(tuple),
    ),
    m.Recalled: st.builds(
        m.Recalled,
        names,
        numbers,
        st.lists(st.builds(m.Kept, notifications, numbers), max_size=3).map(tuple),
        numbers,
        texts,
        listeners,
    ),
    m.Detach: st.builds(m.Detach, st.booleans()),
    m.Subscribe: st.builds(m.Subscribe, filters(), st.none() | terms, numbers, numbers, numbers),
    m.Unsubscribe: st.builds(m.Unsubscribe, filters()),
    m.Advertise: st.builds(m.Advertise, filters(), st.booleans()),
    m.Unadvertise: st.builds(m.Unadvertise, filters()),
    m.Publish: st.builds(m.Publish, numbers, attributes, st.binary(max_size=20))
    | retained.map(lambda one: m.Publish(1, one.notification.attributes, b"", 0, one.retain)),
    m.Retained: retained,
    m.Values: st.builds(m.Values, st.lists(retained, max_size=3).map(tuple)),
    m.Current: st.builds(m.Current, numbers, notifications, numbers),
    m.Late: st.builds(m.Late, numbers, notifications),
    m.Settled: st.builds(
        m.Settled,
        numbers,
        numbers,
        st.dictionaries(names, st.lists(numbers, max_size=3).map(tuple), max_size=3),
        st.booleans(),
        st.booleans(),
    ),
    m.Ack: st.builds(m.Ack, numbers, st.none() | st.builds(m.Probe, numbers, numbers, numbers)),
    m.Welcome: st.builds(m.Welcome, numbers, numbers),
    m.Deliver: st.builds(m.Deliver, numbers, notifications),
    m.Gap: st.builds(m.Gap, numbers, texts, st.booleans()),
    m.Published: st.builds(m.Published, numbers),
    m.Resend: st.builds(m.Resend, numbers, st.integers(0, codec.DELIVERED_MAX)),
    m.Interest: st.builds(m.Interest, filters(), st.booleans()),
    m.NoResponders: st.builds(m.NoResponders, numbers),
    m.Enlist: enlistings,
    m.Update: st.builds(m.Update, ads, subs, subs, ads, st.lists(errand, max_size=2).map(tuple)),
    m.Echo: st.builds(m.Echo, numbers, numbers, st.lists(names, max_size=2).map(tuple)),
    m.Join: st.builds(m.Join, numbers.map(lambda n: n or 1), numbers, numbers, numbers),
    m.Took: st.builds(m.Took, numbers),
    m.Ping: st.builds(m.Ping, st.booleans()),
    m.Refused: st.builds(m.Refused, texts, st.booleans()),
    m.Login: st.builds(m.Login, names, texts),
    m.Challenge: st.builds(m.Challenge, st.binary(min_size=32, max_size=32)),
    m.Proof: st.builds(m.Proof, st.binary(min_size=32, max_size=32)),
    m.Peer: st.builds(m.Peer),
    m.Uncertain: st.builds(m.Uncertain, notifications, numbers),
    m.Announce: st.builds(
        m.Announce,
        st.lists(names, max_size=3).map(tuple),
        st.lists(st.builds(m.Began, names, numbers, st.just("") | names, numbers), max_size=3).map(
            tuple
        ),
        st.lists(st.builds(m.Unclaimed, names, names, numbers), max_size=3).map(tuple),
        st.lists(requests, max_size=3).map(tuple),
    ),
}
CARRIED = sorted((*m.FromClient.__args__, *m.ToClient.__args__), key=repr)
MESSAGES[m.Tunnel] = st.builds(
    m.Tunnel,
    names,
    names,
    names,
    st.none() | st.sampled_from(CARRIED).flatmap(MESSAGES.get),
    texts,
)


@st.composite
def after_hello(draw):
    """Any message but Hello."""
    return draw(MESSAGES[draw(st.sampled_from([kind for kind in MESSAGES if kind is not m.Hello]))])


every_type = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)


def test_every_message_is_known_to_the_codec_and_to_these_tests():
    assert MESSAGES.keys() == set(m.AnyMessage.__args__)
    assert ERRANDS.keys() == set(m.Errand.__args__)
    assert codec.CHECKS.keys() == MESSAGES.keys() | ERRANDS.keys()


@pytest.mark.parametrize("kind", ERRANDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=20)
def test_errands_travel_in_an_update_and_not_alone(kind, data):
    errand = data.draw(ERRANDS[kind])
    with pytest.raises(CodecError):
        decode(body(errand))
    assert decode(body(m.Update(errands=(errand,)))).errands == (errand,)


@every_type
@given(data=st.data())
@settings(max_examples=40)
def test_a_message_survives_the_wire(kind, data):
    message = data.draw(MESSAGES[kind])
    again = decode(body(message))
    assert again == message
    assert repr(again) == repr(message)  # 1, 1.0 and True are equal, but not the same


AREA = m.Area(("R1", "R2"))
NOTE = m.Notification("ticker", 7, {"x": 1}, b"!", 1_790_000_000_000_000_000, 9, AREA)
NOTE_ON_WIRE = [1, "ticker", 7, {"x": 1}, b"!", 1_790_000_000_000_000_000, 9, [["R1", "R2"], None]]

LAYOUT = [
    (HELLO, [0, 1, "porto"]),
    (NOTE, NOTE_ON_WIRE),
    (
        m.Attach(
            *("anna", 3, 9, (X,), (EVERYTHING, NOTHING)),
            *(
                (("faro", 2), ("porto", 1)),
                True,
                "beja",
                ((0, m.Terms(5, 6, "key", True, 8)),),
                77,
                500,
                (1,),
                None,
                300,
                ((0, 4),),
            ),
            anew=2,
            life=8,
            failover_ns=9,
            will=m.Will({"x": 1}, b"!", 5, m.Retain(("x",))),
            late=2,
            state=m.State("R1"),
            resumes=True,
        ),
        [
            *(10, "anna", 3, 9, [[ON_WIRE]], [[[[]]], [[]]], [["faro", 2], ["porto", 1]], True),
            *(
                "beja",
                [[0, [5, 6, "key", True, 8, None]]],
                77,
                500,
                [1],
                None,
                300,
                [[0, 4]],
                2,
                8,
                9,
            ),
            [{"x": 1}, b"!", 5, [["x"], False]],
            2,
            [62, "R1", None, {}, {}, {}],
            True,
        ],
    ),
    (
        m.State("R1", (1.5, 2.0), {"need": 3}, {"R1": ("R1", "R2")}, {"need": 1, "by": ("a", 2)}),
        [62, "R1", [1.5, 2.0], {"need": 3}, {"R1": ["R1", "R2"]}, {"need": 1, "by": ["a", 2]}],
    ),
    (m.Follow("x", m.Terms(last=5), 7), [60, "x", [5, None, None, False, None, None], 7]),
    (
        m.Follow("x", m.Terms(key=("a", "b"), nullify=m.Nullify(X, ("c",)))),
        [60, "x", [None, None, ["a", "b"], False, None, [[ON_WIRE], ["c"]]], 0],
    ),
    (m.Unfollow("x"), [61, "x"]),
    (m.HereAck(4), [63, 4, False]),
    (m.CaughtUp(7), [66, 7]),
    (m.Here(4, NOTE, past=True), [64, 4, NOTE_ON_WIRE, True]),
    (m.HereGap(4, "why"), [65, 4, "why", True, 0]),
    (
        m.Shadow("b1", "anna", 3, 2, 9, m.Followed((("x", None),), m.State("R1"), (3, 7))),
        [70, "b1", "anna", 3, 2, 9, [[["x", None]], [62, "R1", None, {}, {}, {}], [3, 7]], []],
    ),
    (m.Forget("anna", 3, "b1"), [71, "anna", 3, "b1"]),
    (
        m.Recall("b1", "anna", 3, (2, 7), True, m.State("R1")),
        [72, "b1", "anna", 3, [2, 7], True, [62, "R1", None, {}, {}, {}], []],
    ),
    (
        m.Recalled("anna", 3, (m.Kept(NOTE, 5),), 8, "why"),
        [73, "anna", 3, [[NOTE_ON_WIRE, 5, 0]], 8, "why", []],
    ),
    (m.Detach(leave=True), [11, True, False]),
    (m.Subscribe(X), [12, [ON_WIRE], None, 0, 0, 0]),
    (
        m.Subscribe(X, m.Terms(last=5), 7, 8, 9),
        [12, [ON_WIRE], [5, None, None, False, None, None], 7, 8, 9],
    ),
    (m.Unsubscribe(X), [13, [ON_WIRE]]),
    (m.Advertise(X, watch=True), [14, [ON_WIRE], True]),
    (m.Unadvertise(X), [15, [ON_WIRE]]),
    (
        m.Publish(7, {"x": 1}, b"!", 5, None, 9, m.Area((), (1.5, 2.0, 5.0))),
        [16, 7, {"x": 1}, b"!", 5, None, 9, [[], [1.5, 2.0, 5.0]]],
    ),
    (
        m.Publish(7, {"x": 1}, retain=m.Retain(("x",), True)),
        [16, 7, {"x": 1}, b"", 0, [["x"], True], 0, None],
    ),
    (
        m.Retained(NOTE, m.Retain(("x",)), 4, "city", 3),
        [80, NOTE_ON_WIRE, [["x"], False], 4, "city", 3],
    ),
    (
        m.Values((m.Retained(NOTE, m.Retain(("x",)), 4),)),
        [81, [[80, NOTE_ON_WIRE, [["x"], False], 4, "", 0]]],
    ),
    (m.Current(4, NOTE, 9), [82, 4, NOTE_ON_WIRE, 9]),
    (m.Late(4, NOTE), [98, 4, NOTE_ON_WIRE]),
    (
        m.Settled(4, 2, {"ticker": (7, 9)}, exact=False, more=True),
        [99, 4, 2, {"ticker": [7, 9]}, False, True],
    ),
    (m.Ack(4), [17, 4, None]),
    (m.Welcome(3, 6), [20, 3, 6]),
    (m.Deliver(4, NOTE), [21, 4, NOTE_ON_WIRE]),
    (m.Gap(4, "backlog_age", expired=2), [22, 4, "backlog_age", True, 2]),
    (m.Gap(4, "no session", exact=False), [22, 4, "no session", False, 0]),
    (m.Published(7), [23, 7]),
    (m.Resend(3, 4), [24, 3, 4]),
    (m.Interest(X, True), [25, [ON_WIRE], True]),
    (m.NoResponders(7), [85, 7]),
    (
        m.Enlist("workers", X, "a1", 3, 16, 10**9),
        [86, "workers", [ON_WIRE], "a1", 3, 16, 10**9, None, "", ""],
    ),
    (
        m.Update((m.Entry(X),), (m.Entry(X, "anna"),), repairs=True),
        [30, [[[ON_WIRE], "", []]], [[[ON_WIRE], "anna", []]], [], [], [], True, None, None, []],
    ),
    (
        m.Update(remove_subs=(m.Entry(X, "", (X, EVERYTHING)),)),
        [30, [], [], [[[ON_WIRE], "", [[ON_WIRE], [[[]]]]]], [], [], False, None, None, []],
    ),
    (
        m.Update(probe=m.Probe(3, 4, 5), echo=m.Echo(6, 7, (m.BrokerId("faro"),))),
        [30, [], [], [], [], [], False, [47, 3, 4, 5], [48, 6, 7, ["faro"]], []],
    ),
    (
        m.Update(slow=(m.Slow("tom", 9),)),
        [30, [], [], [], [], [], False, None, None, [[95, "tom", 9]]],
    ),
    (m.Ack(4, m.Probe(3, 5)), [17, 4, [47, 3, 5, 0]]),
    (m.Echo(6, 7), [48, 6, 7, []]),
    (m.Join(7, 8, 9, 6), [3, 7, 8, 9, 6]),
    (m.Took(9), [4, 9]),
    (m.Ping(), [5, False]),
    (m.Refused("no"), [6, "no", False, False]),
    (m.Login("anna", "sesame"), [7, "anna", "sesame", "", b""]),
    (m.Challenge(b"c" * 32), [8, b"c" * 32]),
    (m.Proof(b"p" * 32), [9, b"p" * 32]),
    (m.Peer(), [74]),
    (
        m.Uncertain(m.Notification("tom", 3, {"x": 1}), 2),
        [2, [1, "tom", 3, {"x": 1}, b"", 0, 0, None], 2],
    ),
    (m.Announce(("porto", "faro")), [31, ["porto", "faro"], [], [], []]),
    (
        m.Announce((), (m.Began("anna", 3, "porto", 4, asks=True),)),
        [31, [], [["anna", 3, "porto", 4, True]], [], []],
    ),
    (
        m.Announce((), (), (m.Unclaimed("porto", "anna", 3),)),
        [31, [], [], [["porto", "anna", 3]], []],
    ),
    (
        m.Announce((), sought=(m.Request("porto", "anna", 3, 9, ()),)),
        [
            31,
            [],
            [],
            [],
            [[40, "porto", "anna", 3, 9, [], 0, False, False, False, False, False, 0]],
        ],
    ),
    (
        m.Tunnel("porto", "faro", "anna#2", m.Ack(4)),
        [32, "porto", "faro", "anna#2", [17, 4, None], "", False],
    ),
    (m.Tunnel("porto", "faro", "l", None, "gone"), [32, "porto", "faro", "l", None, "gone", False]),
    *(
        (m.Update(errands=(errand,)), [30, [], [], [], [], [array], False, None, None, []])
        for errand, array in (
            (
                m.Request("porto", "anna", 3, 9, (("faro", 2),), 77, True, failover=True, life=8),
                [40, "porto", "anna", 3, 9, [["faro", 2]], 77, True, False, False, False, True, 8],
            ),
            (
                m.Reply("porto", "anna", 3, found=False),
                [
                    *(41, "porto", "anna", 3, False, [], 0, "", True, 0, {}, 0, None, False, []),
                    *([], False, False, 0, False, 0, 0, 0, 0, False, 0, []),
                ],
            ),
            (
                m.Reply(
                    *("porto", "anna", 3, True, (m.Kept(NOTE, 5, 6),), 2, "backlog_age", False, 8),
                    *({"ticker": 7}, 2, (X,), True, ((0, m.Terms(last=3)),)),
                    losses=(m.Loss(1, 2, "backlog_age", False),),
                    partial=True,
                    sought=True,
                    sought_age_ns=9,
                    superseded=True,
                    asked=6,
                    above=7,
                    doubt_ns=4,
                    doubt_since=5,
                    unreachable=True,
                    gap=2,
                    unsettled=(3, 4),
                ),
                [
                    *(
                        41,
                        "porto",
                        "anna",
                        3,
                        True,
                        [[NOTE_ON_WIRE, 5, 6]],
                        2,
                        "backlog_age",
                        False,
                    ),
                    *(
                        8,
                        {"ticker": 7},
                        2,
                        [[ON_WIRE]],
                        True,
                        [[0, [3, None, None, False, None, None]]],
                    ),
                    *([[1, 2, "backlog_age", False]], True, True, 9, True, 6, 7, 4, 5, True),
                    *(2, [3, 4]),
                ],
            ),
            (
                m.Fetch("porto", "anna", 3, 9, (X,), 77, 2, everywhere=True),
                [42, "porto", "anna", 3, 9, [[ON_WIRE]], 77, 2, True],
            ),
            (
                m.Searched("porto", "anna", 3, everywhere=True),
                [43, "porto", "anna", 3, True, False],
            ),
            (m.Prepare("porto", "anna", 3, (X,)), [46, "porto", "anna", 3, [[ON_WIRE]]]),
            (
                m.Convene("porto", m.Enlist("w", X, "a1", 3, 16, 10**9)),
                [87, "porto", [86, "w", [ON_WIRE], "a1", 3, 16, 10**9, None, "", ""]],
            ),
            (
                m.PastRequest("porto", 7, 8, X, 9, m.Terms(last=3), True, 5),
                [57, "porto", 7, 8, [ON_WIRE], 9, [3, None, None, False, None, None], True, 5],
            ),
            (
                m.PastReply("porto", 7, 8, (m.Kept(NOTE, 5),), True, 2, complete=False),
                [58, "porto", 7, 8, [[NOTE_ON_WIRE, 5, 0]], True, 2, False],
            ),
            (
                m.Ask("porto", "anna", 3, (("faro", 2),), 77),
                [44, "porto", "anna", 3, [["faro", 2]], 77],
            ),
            (
                m.Profile(
                    *("porto", "anna", 3, True, (X,), ((0, m.Terms(key="x")),), (EVERYTHING,)),
                    (0,),
                ),
                [
                    *(45, "porto", "anna", 3, True),
                    *([[ON_WIRE]], [[0, [None, None, "x", False, None, None]]], [[[[]]]], [0]),
                ],
            ),
        )
    ),
]


@pytest.mark.parametrize(("message", "array"), LAYOUT, ids=lambda it: type(it).__name__)
def test_tags_and_fields_stay_where_they_are(message, array):
    assert unpack(body(message)) == array
    assert decode(pack(array)) == message


def test_a_frame_is_its_length_and_a_message():
    assert encode(m.Ack(4)) == b"\x00\x00\x00\x04" + b"\x93\x11\x04\xc0"


def test_a_message_that_fits_no_frame_is_refused_where_it_is_made():
    with pytest.raises(CodecError, match="at most 8388608 fit a frame"):
        encode(m.Publish(1, {}, bytes(FRAME_MAX)))


# Later versions append fields


@every_type
@given(data=st.data())
@settings(max_examples=10)
def test_fields_of_a_later_version_are_passed_over(kind, data):
    message = data.draw(MESSAGES[kind])
    extra = data.draw(st.lists(st.sampled_from([None, 0, "new", [1, [2]], {"a": {}}]), min_size=1))
    assert decode(pack(unpack(body(message)) + extra)) == message


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ([1, "ticker", 7, {}], m.Notification("ticker", 7, {}, b"")),
        ([10, "anna", 1, 0], m.Attach("anna", 1, 0, (), (), (), welcomed=False)),
        ([10, "anna", 1, 0, [[ON_WIRE]]], m.Attach("anna", 1, 0, (X,), (), ())),
        ([11], m.Detach(leave=False)),
        ([12, [ON_WIRE]], m.Subscribe(X, terms=None)),
        ([12, [ON_WIRE], []], m.Subscribe(X, m.Terms())),
        ([16, 1, {}], m.Publish(1, {}, b"")),
        ([22, 1, "why"], m.Gap(1, "why", exact=True)),
        ([30], m.Update()),
        (
            [30, [], [], [], [], [[40, "porto", "anna", 2, 0, []]]],
            m.Update(errands=(m.Request("porto", "anna", 2, 0, (), digest=0),)),
        ),
        (
            [30, [], [], [], [], [[41, "porto", "anna", 2, True]]],
            m.Update(errands=(m.Reply("porto", "anna", 2, found=True),)),
        ),
        ([30, [[[ON_WIRE]]]], m.Update((m.Entry(X, ""),))),
        ([12, [[[[3, "x", "number", 1]]]]], m.Subscribe(Filter.parse("x >= 1"))),
    ],
    ids=repr,
)
def test_fields_that_an_earlier_version_lacks_have_defaults(array, message):
    assert decode(pack(array)) == message


# A stream of frames


@given(st.lists(after_hello(), max_size=4), st.data())
@settings(max_examples=60)
def test_any_split_of_the_stream_gives_the_same_messages(sent, data):
    stream = b"".join(map(encode, [HELLO, *sent]))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    decoder, got = FrameDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    assert got == [HELLO, *sent]


def test_bytes_may_come_one_by_one():
    sent = [message for message, _ in LAYOUT]
    decoder = FrameDecoder()
    got = [one for byte in b"".join(map(encode, sent)) for one in decoder.feed(bytes([byte]))]
    assert got == sent


def test_a_frame_that_is_too_long_is_refused_before_it_comes():
    decoder = FrameDecoder()
    decoder.feed(encode(HELLO))
    assert decoder.feed(FRAME_MAX.to_bytes(4, "big")) == []
    decoder = FrameDecoder()
    decoder.feed(encode(HELLO))
    with pytest.raises(CodecError, match="a frame of 8388609 bytes; at most 8388608 are allowed"):
        decoder.feed((FRAME_MAX + 1).to_bytes(4, "big"))


def test_a_reader_may_take_one_message_at_a_time_and_allow_more_behind_it():
    decoder = FrameDecoder(100, singly=True)
    long = m.Publish(1, {}, bytes(200))
    assert decoder.feed(encode(HELLO) + encode(m.Ack(1)) + encode(long)) == [HELLO]
    assert decoder.feed(b"") == [m.Ack(1)]
    with pytest.raises(CodecError, match="a frame of 210 bytes; at most 100 are allowed"):
        decoder.feed(b"")
    decoder.frame_max, decoder.singly = FRAME_MAX, False
    assert decoder.feed(encode(m.Ack(2))) == [long, m.Ack(2)]


TOO_LONG = m.Notification("tom", 1, {"x": 1}, bytes(m.PUBLICATION_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "message",
    [
        m.Publish(1, {"x": "é" * (m.PUBLICATION_BYTES_MAX // 2 + 1)}),
        TOO_LONG,
        m.Deliver(1, TOO_LONG),
        m.Uncertain(TOO_LONG, 1),
        m.Update(errands=(m.Reply("porto", "anna", 1, True, (m.Kept(TOO_LONG, 0),)),)),
        m.Tunnel("porto", "faro", "anna#1", m.Deliver(1, TOO_LONG)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_too_long_a_publication_is_found_wherever_it_is(message):
    with pytest.raises(CodecError, match="a publication has at most 4194304 bytes"):
        codec.decode(codec.encode(message)[4:])


def test_the_largest_publication_passes_and_one_byte_more_does_not():
    """Or a broker would take what it could not pass on."""
    most = m.Publish(1, {"text": "x"}, bytes(m.PUBLICATION_BYTES_MAX - 1))
    assert decode(body(most)) == most
    with pytest.raises(CodecError, match="a publication has at most 4194304 bytes"):
        decode(body(m.Publish(1, {"text": "xy"}, most.payload)))
    with pytest.raises(CodecError, match="a publication has at most 4194304 bytes"):
        decode(body(m.Notification("tom", 1, {"text": "xy"}, most.payload)))


BAD_FRAMES = {
    "garbage": b"\0\0\0\1\xc1",
    "too long": b"\xff" * 4,
    "refused": encode(m.Ack(-1)),
    "a second Hello": encode(HELLO),
}


@pytest.mark.parametrize("bad", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_messages_before_a_bad_frame_arrive(bad):
    """They were properly sent: without the Ack, notifications would be delivered twice."""
    decoder = FrameDecoder()
    assert decoder.feed(encode(HELLO) + encode(m.Ack(7)) + bad + encode(m.Ack(8))) == [
        HELLO,
        m.Ack(7),
    ]
    for more in (b"", b"", encode(m.Ack(9))):
        with pytest.raises(CodecError):
            decoder.feed(more)


@pytest.mark.parametrize(
    "message",
    [
        m.Ack(2**64),
        m.Publish(1, {"x": 10**400}),
        m.Publish(1, {"x": "\ud800"}),
        m.Publish(1, {"x": object()}),
        m.Publish(1, {b"x": {1: object()}}),
        m.Gap(1, "\udfff"),
    ],
)
def test_what_cannot_be_encoded_is_one_kind_of_error(message):
    with pytest.raises(CodecError, match=f"^{type(message).__name__} cannot be encoded: "):
        encode(message)


# Hello


def test_the_first_message_is_hello():
    with pytest.raises(CodecError, match=r"^Ack before Hello$"):
        FrameDecoder().feed(encode(m.Ack(1)))


def test_hello_comes_once():
    decoder = FrameDecoder()
    decoder.feed(encode(HELLO))
    with pytest.raises(CodecError, match=r"^a second Hello$"):
        decoder.feed(encode(HELLO))


def test_another_version_is_told_what_to_do():
    with pytest.raises(CodecError) as caught:
        FrameDecoder().feed(encode(m.Hello(2, "porto")))
    assert str(caught.value) == (
        "porto speaks version 2 of the protocol, this is version 1: run the same release on both sides"
    )


def test_a_later_hello_may_have_more_fields_and_is_still_understood_as_another_version():
    longer = pack([0, 99, "porto", ["compression"]])
    with pytest.raises(CodecError, match="version 99"):
        FrameDecoder().feed(len(longer).to_bytes(4, "big") + longer)


# Limits


def like(pattern):
    return [4, "x", pattern, False]


def subscribe(*conjunctions):
    return [12, [list(conjunctions)]]


LONG = "n" * (NAME_MAX + 1)
BIG = 2**63


def on_wire(message, /, **fields):
    """A message as an array, with these fields, which may be wrong, in place of what it has."""
    array = unpack(body(message))
    for name, value in fields.items():
        array[1 + message.__struct_fields__.index(name)] = value
    return array


def carried(errand, /, **fields):
    """The same for an errand, in an update."""
    return pack([30, [], [], [], [], [on_wire(errand, **fields)]])


def request(**fields):
    return carried(m.Request("porto", "anna", 2, 0, ()), **fields)


def reply(**fields):
    return carried(m.Reply("porto", "anna", 2, found=True), **fields)


def fetch(**fields):
    return carried(m.Fetch("porto", "anna", 2, 0, ()), **fields)


def tunnel(**fields):
    return pack(on_wire(m.Tunnel("porto", "faro", "anna#2", None), **fields))


# For a message with one subscription.
BAD_TERMS = (
    *([[1, []]], [[-1, []]], [[0, [-1]]], [[0, [None, BIG]]], [[0, [None, None, ""]]]),
    *([[0, [None, None, "n" * (ps.NAME_MAX + 1)]]], [[0, []]] * (m.FILTERS_MAX + 1)),
)


def many_kept(size):
    """A reply of so many bytes, of the smallest notifications that there are."""
    return reply(kept=[[[1, "t", 1, {}], 0]] * (size // 8))


BAD = {
    # not a message
    "nothing": b"",
    "not an array": pack({"a": 1}),
    "nil": pack(None),
    "an empty array": pack([]),
    "a text for a tag": pack(["Ack", 1]),
    "an unknown tag": pack([99, 1]),
    "a negative tag": pack([-1, 1]),
    "more behind the message": body(m.Ack(1)) + b"\x00",
    "a byte that msgpack never uses": b"\xc1",
    "an extension": b"\xd4\x05\x00",
    # fields
    "a missing field": pack([17]),
    "a text for a number": pack([17, "4"]),
    "a truth for a number": pack([17, True]),
    "a fraction for a number": pack([17, 4.5]),
    "a number for a truth": pack([11, 1]),
    "bytes for a text": pack([0, 1, b"porto"]),
    "a text for bytes": pack([16, 1, {}, "payload"]),
    "nil for a name": pack([10, None, 1, 0]),
    "an array for a map": pack([16, 1, []]),
    "a text that is not UTF-8": b"\x93\x00\x01\xa2\xff\xfe",
    "half a surrogate pair": b"\x93\x00\x01\xa3\xed\xa0\x80",
    # names
    "an empty name in Hello": pack([0, 1, ""]),
    "a long name in Hello": pack([0, 1, LONG]),
    "an empty client": pack([10, "", 1, 0]),
    "a long client": pack([10, LONG, 1, 0]),
    "an empty publisher": pack([1, "", 1, {}]),
    "an empty previous broker": pack([10, "anna", 1, 0, [], [], [["", 1]]]),
    "a long client in an entry": pack([30, [[[[[]]], LONG]]]),
    "a long reason": pack([22, 1, "r" * (codec.REASON_MAX + 1)]),
    "an empty name in Login": pack([7, "", "sesame"]),
    "a long name in Login": pack([7, LONG, "sesame"]),
    "a long password": pack([7, "anna", "p" * (codec.PASSWORD_MAX + 1)]),
    "a short challenge": pack([8, b"c" * 31]),
    "a long challenge": pack([8, b"c" * 33]),
    "a short proof": pack([9, b"p" * 31]),
    "a text as a proof": pack([9, "p" * 32]),
    # numbers
    "a negative number": pack([17, -1]),
    "a number of 64 bits": pack([17, BIG]),
    "a negative epoch": pack([10, "anna", -1, 0]),
    "a negative delivery": pack([10, "anna", 1, -1]),
    "an epoch of 64 bits": pack([10, "anna", BIG, 0]),
    "a previous epoch of 64 bits": pack([10, "anna", 1, 0, [], [], [["porto", BIG]]]),
    "a negative publication": pack([16, -1, {}]),
    "a negative gap": pack([22, -1, ""]),
    "a negative welcome": pack([20, 1, -1]),
    "a welcome to a negative epoch": pack([20, -1, 1]),
    "a negative delivery to a client": pack([21, -1, NOTE_ON_WIRE]),
    "a bad notification in a delivery": pack([21, 1, [1, "ticker", -1, {}]]),
    # attributes
    "NaN": pack([16, 1, {"x": nan}]),
    "infinity": pack([16, 1, {"x": inf}]),
    "minus infinity in a notification": pack([1, "ticker", 1, {"x": -inf}]),
    "an attribute of 64 bits": pack([16, 1, {"x": BIG}]),
    "nil as a value": pack([16, 1, {"x": None}]),
    "a list as a value": pack([16, 1, {"x": [1]}]),
    "a map as a value": pack([16, 1, {"x": {}}]),
    "bytes as a value": pack([16, 1, {"x": b"1"}]),
    "an attribute without a name": pack([16, 1, {"": 1}]),
    "a long attribute's name": pack([16, 1, {"n" * (ps.NAME_MAX + 1): 1}]),
    "a number as a name": pack([16, 1, {1: 1}]),
    "too many attributes": pack([16, 1, {f"x{i}": i for i in range(m.ATTRIBUTES_MAX + 1)}]),
    # counts
    "too many subscriptions": pack([10, "anna", 1, 0, [[[[]]]] * (m.FILTERS_MAX + 1)]),
    "too many advertisements": pack([10, "anna", 1, 0, [], [[[[]]]] * (m.FILTERS_MAX + 1)]),
    "too many previous": pack([10, "a", 1, 0, [], [], [["b", 1]] * (m.PREVIOUS_MAX + 1)]),
    "a previous attachment of three": pack([10, "a", 1, 0, [], [], [["b", 1, 1]]]),
    "an array longer than the frame": b"\x95\x0a\xa1a\x01\x00\xdd\xff\xff\xff\xff",
    "a map longer than the frame": b"\x93\x10\x01\xdf\xff\xff\xff\xff",
    # filters
    "an unknown predicate": pack(subscribe([[9, "x"]])),
    "an unknown kind": pack(subscribe([[1, "x", "colour", ["red"]]])),
    "an empty list": pack(subscribe([[1, "x", "number", []]])),
    "values out of order": pack(subscribe([[1, "x", "number", [2, 1]]])),
    "a value twice": pack(subscribe([[1, "x", "number", [1, 1]]])),
    "1.0, which is written 1": pack(subscribe([[1, "x", "number", [1.0]]])),
    "values of two kinds": pack(subscribe([[1, "x", "number", [1, "a"]]])),
    "values of another kind": pack(subscribe([[1, "x", "text", [1]]])),
    "NaN in a filter": pack(subscribe([[1, "x", "number", [nan]]])),
    "infinity as a bound": pack(subscribe([[3, "x", "number", inf]])),
    "a value of 64 bits": pack(subscribe([[1, "x", "number", [BIG]]])),
    "too many values": pack(subscribe([[1, "x", "number", list(range(ps.VALUES_MAX + 1))]])),
    "a long text": pack(subscribe([[1, "x", "text", ["t" * (ps.TEXT_MAX + 1)]]])),
    "<> true, which is written = false": pack(subscribe([[2, "x", "truth", [True]]])),
    "a range without bounds": pack(subscribe([[3, "x", "number"]])),
    "a range from above to below": pack(subscribe([[3, "x", "number", 2, 1]])),
    "a range of truths": pack(subscribe([[3, "x", "truth", False, True]])),
    "a range from a text to a number": pack(subscribe([[3, "x", "number", "a", 1]])),
    "an open end that is not there": pack(subscribe([[3, "x", "number", 1, None, False, True]])),
    "a pattern that is not canonical": pack(subscribe([like("%_")])),
    "a pattern that ends in an escape": pack(subscribe([like("a%\\")])),
    "a pattern that needs no escape": pack(subscribe([like("\\a%")])),
    "a pattern without wildcards": pack(subscribe([like("a")])),
    "a long pattern": pack(subscribe([like("t" * (ps.PATTERN_MAX + 1) + "%")])),
    "a place beyond the pole": pack(subscribe([[7, 91.0, 0.0, 1.0]])),
    "a circle of NaN metres": pack(subscribe([[7, 0.0, 0.0, nan]])),
    "a circle larger than the earth": pack(subscribe([[7, 0.0, 0.0, 1e9]])),
    "a predicate without a name": pack(subscribe([[5, ""]])),
    "a contradiction": pack(subscribe([[5, "x"], [6, "x"]])),
    "predicates out of order": pack(subscribe([[5, "y"], [5, "x"]])),
    "a predicate that another one implies": pack(subscribe([[3, "x", "number", 1], [5, "x"]])),
    "conjunctions out of order": pack(subscribe([[5, "y"]], [[5, "x"]])),
    "a conjunction that another one covers": pack(subscribe([], [[5, "x"]])),
    "a conjunction twice": pack(subscribe([[5, "x"]], [[5, "x"]])),
    "too many predicates": pack(subscribe([[5, f"x{i:03}"] for i in range(TERMS_MAX + 1)])),
    "too many conjunctions": pack(
        subscribe(*[[[5, f"x{i:03}"]] for i in range(CONJUNCTIONS_MAX + 1)])
    ),
    **{
        f"predicates out of order in {kind.__name__}": pack([tag, [[[[5, "y"], [5, "x"]]]]])
        for tag, kind in ((13, m.Unsubscribe), (14, m.Advertise), (15, m.Unadvertise))
    },
    "a bad subscription in Attach": pack([10, "a", 1, 0, [[[]], [[[[5, "y"], [5, "x"]]]]]]),
    "a bad advertisement in Attach": pack([10, "a", 1, 0, [], [[[[[5, "y"], [5, "x"]]]]]]),
    "an entry of no conjunction": pack([30, [[[[]], ""]]]),
    "an entry of two conjunctions": pack([30, [[[[[[5, "x"]], [[5, "y"]]]], ""]]]),
    "an entry not in normal form": pack([30, [], [], [[[[[[5, "y"], [5, "x"]]]], ""]]]),
    **{
        f"an entry with {what} ahead": pack([30, [], [[[ON_WIRE], "", ahead]]])
        for what, ahead in {
            "no conjunction": [[[]]],
            "two conjunctions": [[[[[5, "x"]], [[5, "y"]]]]],
            "something": [[[[5, "y"], [5, "x"]]]],
            "a filter that is none": [[[[[5, "y"], [5, "x"]]]]],
            "the same": [[ON_WIRE]],
            "the same twice": [[[[]]], [[[]]]],
            "too much": [[[[[5, f"x{i}"]]]] for i in range(m.AHEAD_MAX + 1)],
        }.items()
    },
    "an advertisement that becomes wider": pack([30, [[[ON_WIRE], "", [[[[]]]]]]]),
    "an advertisement that became wider": pack([30, [], [], [], [[[ON_WIRE], "", [[[[]]]]]]]),
    # between brokers
    "an announcement of a broker without a name": pack([31, ["porto", ""]]),
    "an announcement of a long name": pack([31, [LONG]]),
    "an announcement of a number": pack([31, [7]]),
    "an announcement of too many": pack([31, ["b"] * (m.ANNOUNCE_MAX + 1)]),
    "an announcement of a text": pack([31, "porto"]),
    "too many errands": pack([30, [], [], [], [], [[40, "b", "a", 1, 0, []]] * (m.UPDATE_MAX + 1)]),
    "an errand that is none": pack([30, [], [], [], [], [[17, 1]]]),
    "an errand that is an update": pack([30, [], [], [], [], [[30]]]),
    "a request alone": pack([40, "porto", "anna", 2, 0, []]),
    "a reply alone": pack([41, "porto", "anna", 2, False]),
    "a request without a broker": request(broker=""),
    "a request from a long broker": request(broker=LONG),
    "a request without a client": request(client=""),
    "a request for a long client": request(client=LONG),
    "a request of a negative epoch": request(epoch=-1),
    "a request of an epoch of 64 bits": request(epoch=BIG),
    "a request behind a negative delivery": request(delivered=-1),
    "a request to a broker without a name": request(previous=[["", 1]]),
    "a request to a long broker": request(previous=[["porto", 2], [LONG, 1]]),
    "a request to a negative epoch": request(previous=[["porto", -1]]),
    "a request to too many": request(previous=[["b", 1]] * (m.PREVIOUS_MAX + 1)),
    "a negative digest": request(digest=-1),
    "a digest of 64 bits": request(digest=BIG),
    "a reply without a broker": reply(broker=""),
    "a reply to a long broker": reply(broker=LONG),
    "a reply without a client": reply(client=""),
    "a reply for a long client": reply(client=LONG),
    "a reply of a negative epoch": reply(epoch=-1),
    "a reply of an epoch of 64 bits": reply(epoch=BIG),
    "a number for whether it was found": reply(found=1),
    "a bad notification in a reply": reply(kept=[[NOTE_ON_WIRE, 1], [[1, "t", -1, {}], 1]]),
    "NaN in a reply": reply(kept=[[[1, "t", 1, {"x": nan}], 1]]),
    "a notification that is none in a reply": reply(kept=[[[17, 1], 1]]),
    "a negative age": reply(kept=[[NOTE_ON_WIRE, -1]]),
    "an age of 64 bits": reply(kept=[[NOTE_ON_WIRE, BIG]]),
    "a negative loss": reply(lost=-1),
    "a loss of 64 bits": reply(lost=BIG),
    "a long reason in a reply": reply(why="r" * (codec.REASON_MAX + 1)),
    "a negative publication in a reply": reply(published=-1),
    "a mark of nobody": reply(marks={"": 1}),
    "a mark of a long name": reply(marks={LONG: 1}),
    "a negative mark": reply(marks={"ticker": -1}),
    "a mark of 64 bits": reply(marks={"ticker": BIG}),
    "too many marks": reply(marks={f"t{i}": 1 for i in range(m.REPLY_MARKS_MAX + 1)}),
    "a bad subscription in a reply": reply(subscriptions=[[[[[5, "y"], [5, "x"]]]]]),
    "too many subscriptions in a reply": reply(subscriptions=[[[[]]]] * (m.FILTERS_MAX + 1)),
    "a reply of a session of a negative epoch": reply(old_epoch=-1),
    **{
        f"a fetch with {name} {value!r:.10}": fetch(**{name: value})
        for name, values in {
            "broker": ["", LONG],
            "client": ["", LONG],
            **dict.fromkeys(("epoch", "delivered", "digest", "since"), (-1, BIG)),
            "subscriptions": [[[[[[5, "y"], [5, "x"]]]]], [[[[]]]] * (m.FILTERS_MAX + 1)],
        }.items()
        for value in values
    },
    **{
        f"a search with {name} {value!r:.10}": carried(
            m.Searched("porto", "anna", 2), **{name: value}
        )
        for name, value in {"broker": "", "client": LONG, "epoch": -1}.items()
    },
    **{
        f"a tunnel with {name} {value!r:.10}": tunnel(**{name: value})
        for name in ("broker", "visited", "link")
        for value in ("", LONG)
    },
    "a tunnel for a long reason": tunnel(reason="r" * (codec.REASON_MAX + 1)),
    "a tunnel of a bad message": tunnel(message=[17, -1]),
    "a tunnel of a notification": tunnel(message=NOTE_ON_WIRE),
    "a tunnel of a tunnel": tunnel(message=[32, "porto", "faro", "l", None]),
    "a tunnel of a bad profile": tunnel(message=[10, "a", 1, 0, [[[]], [[[[5, "y"], [5, "x"]]]]]]),
    **{
        f"an ask with {name} {value!r:.10}": carried(
            m.Ask("porto", "anna", 2, (), 0), **{name: value}
        )
        for name, values in {
            **dict.fromkeys(("broker", "client"), ("", LONG)),
            **dict.fromkeys(("epoch", "digest"), (-1, BIG)),
            "previous": ([["", 1]], [["b", -1]], [["b", 1]] * (m.PREVIOUS_MAX + 1)),
        }.items()
        for value in values
    },
    **{
        f"a profile with {name} {value!r:.10}": carried(
            m.Profile("porto", "anna", 2, True, (X,)), **{name: value}
        )
        for name, values in {
            **dict.fromkeys(("broker", "client"), ("", LONG)),
            "epoch": (-1, BIG),
            "subscriptions": ([[[[[5, "y"], [5, "x"]]]]], [[[[]]]] * (m.FILTERS_MAX + 1)),
            "advertisements": ([[[[[5, "y"], [5, "x"]]]]], [[[[]]]] * (m.FILTERS_MAX + 1)),
            "terms": BAD_TERMS,
            "watched": ([0], [-1]),
        }.items()
        for value in values
    },
    **{
        f"an attach that watches {value!r:.10}": pack(
            on_wire(m.Attach("anna", 1, 0, (), (X,)), watched=value)
        )
        for value in ([1], [-1], [True], ["0"], [0] * (m.FILTERS_MAX + 1))
    },
    "interest in no filter in normal form": pack([25, [[[[5, "y"], [5, "x"]]]], True]),
    "interest that may be": pack([25, [ON_WIRE], None]),
    **{
        f"an attach with terms {value!r:.30}": pack(
            on_wire(m.Attach("anna", 1, 0, (X,)), terms=value)
        )
        for value in BAD_TERMS
    },
    **{
        f"a subscription with terms {value!r:.30}": pack([12, [ON_WIRE], value])
        for value in ([-1], [BIG], [None, -1], [None, None, ""], [None, None, "n" * 129], [1.5])
    },
    "more deliveries than there can be": pack(
        on_wire(m.Attach("anna", 1, 0), delivered=codec.DELIVERED_MAX + 1)
    ),
    "an attach with a negative digest": pack(on_wire(m.Attach("anna", 1, 0), digest=-1)),
    "an attach with a negative window": pack(on_wire(m.Attach("anna", 1, 0), window=-1)),
    "a resend of a negative epoch": pack([24, -1]),
    "a long home": pack(on_wire(m.Attach("anna", 1, 0), home=LONG)),
    # depth
    "arrays without end": b"\x91" * 100_000,
    "maps without end": b"\x81" * 100_000,
    "depth in a filter": b"\x92\x0c" + b"\x91" * 100_000,
    "depth in a field of a later version": b"\x93\x11\x01" + b"\x91" * 100_000,
    "depth of maps in a field of a later version": b"\x93\x11\x01" + b"\x81\xa1x" * 100_000,
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_input_is_a_codec_error(bad):
    with pytest.raises(CodecError):
        decode(bad)


@pytest.mark.parametrize(
    "good",
    [
        [0, 1, "n" * NAME_MAX],
        [17, NUMBER_MAX],
        [17, 0],
        [22, 1, "r" * codec.REASON_MAX],
        [7, "anna", "p" * codec.PASSWORD_MAX],
        [16, 1, {"n" * ps.NAME_MAX: ps.INT_MIN, "x": ps.INT_MAX}],
        [16, 1, {f"x{i}": i for i in range(m.ATTRIBUTES_MAX)}],
        [10, "a", 1, 0, [[[[]]]] * m.FILTERS_MAX, [], [["b", 1]] * m.PREVIOUS_MAX],
        [31, ["n" * NAME_MAX] * m.ANNOUNCE_MAX],
        [30, [], [[[ON_WIRE], "", [[[[[5, f"x{i}"]]]] for i in range(m.AHEAD_MAX)]]]],
        unpack(request(epoch=NUMBER_MAX, previous=[["b", 1]] * m.PREVIOUS_MAX)),
        unpack(reply(lost=codec.LOST_MAX, marks={f"t{i}": 1 for i in range(m.REPLY_MARKS_MAX)})),
        unpack(reply(why="r" * codec.REASON_MAX, subscriptions=[[[[]]]] * m.FILTERS_MAX)),
        subscribe([[1, "x", "number", list(range(ps.VALUES_MAX))]]),
        subscribe([[1, "x", "text", ["t" * ps.TEXT_MAX]]]),
        subscribe([[5, f"x{i:03}"] for i in range(TERMS_MAX)]),
        subscribe(*[[[5, f"x{i:03}"]] for i in range(CONJUNCTIONS_MAX)]),
    ],
    ids=lambda array: repr(array)[:30],
)
def test_what_just_keeps_the_limits_is_a_message(good):
    assert unpack(body(decode(pack(good))))[: len(good)] == good


@every_type
def test_no_message_is_cut_short_without_notice(kind):
    for whole in [pack(array) for message, array in LAYOUT if type(message) is kind]:
        for end in range(len(whole)):
            with pytest.raises(CodecError):
                decode(whole[:end])


# Noise


def outcome(data):
    """The message, or None for a CodecError; any other exception is a failure."""
    try:
        message = decode(data)
    except CodecError:
        return None
    assert decode(body(message)) == message
    return message


@given(st.binary(max_size=60))
@settings(max_examples=200)
def test_random_bytes_give_a_message_or_a_codec_error(data):
    message = outcome(data)
    assert message is None or type(message) in MESSAGES


@given(st.binary(max_size=60))
def test_random_bytes_in_a_stream_give_messages_or_a_codec_error(data):
    """What came before bad bytes is not lost; nothing else than a CodecError comes of them."""
    decoder = FrameDecoder()
    assert decoder.feed(encode(HELLO) + data)[0] == HELLO
    with suppress(CodecError):
        assert decoder.feed(b"") == []


def mutated(random, data):
    data = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        match random.randrange(4):
            case 0:
                data[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del data[at : at + random.randint(1, 4)]
            case 2:
                data[at:at] = random.randbytes(random.randint(1, 4))
            case 3:
                start = random.randrange(len(data) + 1)
                data[at:at] = data[start : start + random.randint(1, 20)]
    return bytes(data)


ODD = (
    *(None, True, False, 0, -1, 1, 1.5, nan, inf, -inf, 2**63, 2**64 - 1, -(2**63), 1e308),
    *("", "x", "%", "\\", "text", "number", "truth", b"", b"x", [], [[]], [[[]]], {}, {"x": 1}),
    *({1: 2}, ["x", "number", [1]], [1, "x", "number", [1]], [7, 0.0, 0.0, 1.0]),
)


def distorted(random, value):
    """The same, but with something odd in one place, or without it."""
    if random.random() < 0.15 or not isinstance(value, list | dict) or not value:
        return random.choice(ODD)
    if isinstance(value, dict):
        key = random.choice(list(value))
        return {**value, key: distorted(random, value[key])}
    at = random.randrange(len(value))
    match random.randrange(8):
        case 0:
            return value[:at] + value[at + 1 :]
        case 1:
            return [*value[:at], value[at], *value[at:]]
        case 2:
            return [*value[:at], random.choice(ODD), *value[at:]]
        case 3:
            return value[::-1]
        case _:
            return [*value[:at], distorted(random, value[at]), *value[at + 1 :]]


CORPUS = [
    *(message for message, _ in LAYOUT),
    *(m.Subscribe(Filter.parse(text)) for text in (
        "a in (1, 2, 3) and b not in ('x', 'y') and c between 1 and 2.5",
        "a like 'b_%c' and not a prefix 'bc' or exists d and e is null",
        "near(41.1, -8.6, 2000) and lat > 41 and not near(41, -8, 10) and t = true",
    )),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_mutated_frames_give_a_message_or_a_codec_error(seed):
    random = Random(seed)
    bodies = [body(message) for message in CORPUS]
    found = [outcome(mutated(random, random.choice(bodies))) for _ in range(2_000)]
    assert any(found), "mutations should leave some frames intact"
    assert None in found


@pytest.mark.parametrize("seed", range(4))
def test_distorted_messages_give_a_message_or_a_codec_error(seed):
    """Valid MessagePack of the wrong shape gets further into the checks than noise does."""
    random = Random(seed)
    arrays = [unpack(body(message)) for message in CORPUS]
    found = []
    for _ in range(2_000):
        array = random.choice(arrays)
        for _ in range(random.randint(1, 2)):
            array = distorted(random, array)
        found.append(outcome(pack(array)))
    assert any(found), "distortion should leave some messages intact"
    assert None in found


# Time: how long one frame may keep a broker busy


def seconds(data):
    start = process_time()
    with suppress(CodecError):
        decode(data)
    return process_time() - start


def array_head(length):
    return b"\xdd" + struct.pack(">I", length)


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * FRAME_MAX,
        b"\x93\x11\x01" + b"\x91" * (FRAME_MAX - 3),
        b"\x93\x11\x01" + array_head(FRAME_MAX - 8) + b"\x01" * (FRAME_MAX - 8),
        pack([16, 1, {f"{i:07}": i for i in range(600_000)}]),
        pack([10, "a", 1, 0, [[[[]]]] * 1_000]),
        many_kept(FRAME_MAX - 100),
        pack([31, ["b"] * 8_000_000]),
        request(previous=[["b", 1]] * 2_000_000),
        reply(marks={f"{i:06}": 1 for i in range(900_000)}),
    ],
    ids=[
        *("depth", "depth behind", "many behind", "many attributes", "a large profile"),
        *("many kept", "many brokers", "many attachments", "many marks"),
    ],
)
def test_a_large_frame_is_decoded_or_refused_in_no_time(data):
    assert seconds(data) < 2


def hostile_patterns(count):
    """Each is compared with each, and almost to its end at every place."""
    patterns = ["%" + "a" * 1000 + "b" * (count - i) + "%" for i in range(count)]
    return pack(subscribe([like(pattern) for pattern in patterns]))


def test_hostile_patterns_are_decoded_or_refused_in_no_time():
    assert seconds(hostile_patterns(6)) < 0.2


def test_hostile_lists_are_decoded_or_refused_in_no_time():
    lists = [[[2, "x", "number", list(range(j, j + 250))]] for j in range(6)]
    assert seconds(pack(subscribe(*sorted(lists, key=repr)))) < 0.2


@pytest.mark.parametrize("twin", [1.0, True])
def test_a_filter_that_equals_one_that_is_known_is_checked_all_the_same(twin):
    """1, 1.0 and true are equal, and only one of them is a whole number in normal form."""
    good = body(m.Subscribe(Filter.parse("x = 1")))
    assert decode(good) == decode(good)
    bad = unpack(good)
    assert bad[1] == [[[[1, "x", "number", [1]]]]]
    bad[1][0][0][0][3] = [twin]
    with pytest.raises(CodecError):
        decode(pack(bad))


def test_a_filter_is_checked_again_when_it_is_not_known_any_more(monkeypatch):
    """And a bad one is never known."""
    bad = unpack(body(m.Subscribe(Filter.parse("x = 1 or x = 2"))))
    bad[1][0].append(bad[1][0][0])
    for _ in range(3):
        with pytest.raises(CodecError, match="normal form"):
            decode(pack(bad))
    good = body(m.Subscribe(Filter.parse("x = 1")))
    decode(good)
    monkeypatch.setattr(codec.filters, "checked", [].index)  # which finds nothing
    decode(good)
    codec._known.cache_clear()
    with pytest.raises(ValueError, match="not in list"):
        decode(good)
