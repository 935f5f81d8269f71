"""How long can one frame hold the event loop: a search for the worst filters.

A broker with two neighbours gets one frame after the other, as its host would feed them: decoded
filter by filter, stepped, and ticked until nothing is left to do. What is measured is the longest
stretch that nothing else could have run in, in CPU time. A frame may hold the loop for 50 ms, and for
50 ms more with every 100 KiB of it.

For every message that carries filters, or meets many, the search begins with the attacks that are known, and
changes the worst ones again and again: another kind of predicate, longer texts, fewer values, more
filters, another order. Every frame is one that a peer could send.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from wayfare.core import messages as m
from wayfare.core.broker import Broker
from wayfare.core.codec import _known, decoding, encode
from wayfare.core.effects import Event, LinkDown, LinkUp, Received, Tick
from wayfare.core.filters import EVERYTHING, Filter
from wayfare.core.groups import GROUPS_MAX, Done, Leave, encoded, group_id
from wayfare.core.patterns import literals
from wayfare.core.predicates import Like
from wayfare.core.profiles import digest
from wayfare.core.reduction import STRATEGIES
from wayfare.core.reserved import GROUP, INBOX, REPLY_TO
from wayfare.core.sessions import wanted_of
from wayfare.core.templates import Template
from wayfare.core.virtual import check_length, template_of
from wayfare.errors import CodecError, FilterError, ProtocolError, UsageError
from wayfare.net.collector import Collector

HELD_MS = 50.0  # that a frame may hold the loop
HELD_BYTES = 100 * 1024  # ... and again for every so many bytes of it
NEIGHBOURS = (m.BrokerId("north"), m.BrokerId("south"))
CLIENT, OTHER = m.LinkId("mallory#1"), m.LinkId("alice#1")
FILTERS = 2_000  # of one attack, at most
QUICK_FILTERS = 500  # likewise, for a first look
PIECES_MAX = 20  # of one pattern
VALUES = 10_000  # current values that are kept
HELD_COUNT = 9_000  # publications that are held back during a move
HELD_TEXTS = 120  # ... or that many, with long texts
KEPT_TEXTS = 40  # long texts that are kept for a client that is away
TERMS = (m.Terms(last=100), m.Terms(last=HELD_COUNT - 1), m.Terms(key="z", younger_ns=10**18))
SESSIONS, SESSION_FILTERS = 50, 2_000  # of clients that all want one publication
# That a frame may take, and an attachment before the next frame on its link; what is left is like what was before.
PATIENCE_MS, ATTACH_PATIENCE_MS = 5_000.0, 60_000.0
LINK_DOWN, LINK_UP = b"down", b"up"  # in place of a frame
SLICE_S = 0.005  # as a connection decodes
SPAN_NS = 1_000_000


class Rig:
    """A broker, and how long each of its frames held the loop."""

    def __init__(self, routing: str) -> None:
        self.broker = Broker(m.BrokerId("porto"), NEIGHBOURS, routing)
        self.routing = routing
        self.now = 0
        self.size, self.held_ms, self.total_ms = 1, 0.0, 0.0
        for name in NEIGHBOURS:
            self._step(LinkUp(m.LinkId(name)))
            self._step(Received(m.LinkId(name), m.Announce((name,))))
        if not STRATEGIES[routing].floods:
            ads = (
                m.Entry(EVERYTHING, m.ClientId("all" if STRATEGIES[routing].per_client else "")),
            )
            for name in NEIGHBOURS:
                self._step(Received(m.LinkId(name), m.Update(ads)))
        self.held_ms = 0.0

    def play(self, frames: list[tuple[m.LinkId, bytes]]) -> float:
        """Feed these frames. Returns how much of what it may the worst of them held the loop."""
        _known.cache_clear()
        template_of.cache_clear()
        collector = Collector()
        collector.install()  # as the process of a broker does
        try:
            return max([0.0, *(self._share(link, frame) for link, frame in frames)])
        finally:
            collector.remove()

    def _share(self, link: m.LinkId, frame: bytes) -> float:
        """Feed a frame, and tick until nothing is left to do."""
        self._finish_attaching(link)
        self.size, before = len(frame), self.held_ms
        self.held_ms, end = 0.0, self.total_ms + PATIENCE_MS
        try:
            self._step(self._event(link, frame))
            while self._has_work() and self.total_ms < end:
                self._step(Tick())
        except CodecError:
            pass  # finding that out has been measured, too
        held, self.held_ms = self.held_ms, max(before, self.held_ms)
        return held / allowed_ms(self.size)

    def _finish_attaching(self, link: m.LinkId) -> None:
        """What comes on a link would wait behind an attachment there, and would not be measured."""
        end = self.total_ms + ATTACH_PATIENCE_MS
        while link in self.broker.intakes.taking and self._has_work() and self.total_ms < end:
            self._step(Tick())

    def _has_work(self) -> bool:
        due = self.broker.next_deadline()
        return due is not None and due <= self.now

    def _event(self, link: m.LinkId, frame: bytes) -> Event:
        if frame == LINK_DOWN:
            return LinkDown(link)
        return LinkUp(link) if frame == LINK_UP else Received(link, self._decode(frame))

    def _decode(self, frame: bytes) -> m.AnyMessage:
        running = decoding(frame[4:])
        try:
            while True:
                self._measure(lambda: _run(running))
        except StopIteration as done:
            message: m.AnyMessage = done.value
            return message

    def _step(self, event: Event) -> None:
        self.now += SPAN_NS
        self._measure(lambda: self.broker.step(event, self.now))

    def _measure(self, work: Callable[[], object]) -> None:
        start = time.process_time()
        try:
            work()
        finally:
            spent = (time.process_time() - start) * 1e3
            self.held_ms = max(self.held_ms, spent)
            self.total_ms += spent


def _run(running: Any) -> None:
    end = time.monotonic() + SLICE_S
    while time.monotonic() < end:
        next(running)


def allowed_ms(size: int) -> float:
    return HELD_MS * max(1.0, size / HELD_BYTES)


# Attacks: genes, from which filters are drawn


class Gene(NamedTuple):
    """How the filters of an attack are made."""

    kinds: tuple[str, ...]  # of the predicates of one conjunction
    quantity: int  # of filters
    length: int  # of texts and patterns
    values: int  # of lists
    alternatives: int  # conjunctions
    letters: str  # of texts: few make them alike
    shared: str  # in front of every text
    seed: int


class Draw:
    """What the predicates of a gene are drawn from."""

    def __init__(self, gene: Gene) -> None:
        self.gene = gene
        self.random = Random(gene.seed)

    def number(self) -> str:
        return str(self.random.randint(0, 10**6))

    def text(self) -> str:
        gene = self.gene
        return gene.shared + "".join(self.random.choices(gene.letters, k=gene.length))

    def quoted(self) -> str:
        return f"'{self.text()}'"

    def numbers(self) -> str:
        return "(" + ", ".join(self.number() for _ in range(self.gene.values)) + ")"

    def texts(self) -> str:
        return "(" + ", ".join(self.quoted() for _ in range(self.gene.values)) + ")"

    def pattern(self) -> str:
        most = max(3, min(PIECES_MAX, self.gene.values))
        pieces = [self.text() for _ in range(self.random.randint(1, most))]
        return "'%" + self.random.choice(["%", "_", "_%"]).join(pieces) + "%'"

    def range(self) -> str:
        low = self.random.uniform(-1e6, 1e6)
        width = self.random.choice([1e-3, 1, 1e3, 1e6]) * self.random.random()
        return f"{low} and {low + width}"

    def sign(self) -> str:
        return self.random.choice(["<", "<=", ">", ">="])

    def circle(self) -> str:
        lat, lon = self.random.uniform(-89, 89), self.random.uniform(-179, 179)
        return f"near({lat:.4f}, {lon:.4f}, {self.random.choice([10, 10**4, 10**6])})"


PREDICATES: dict[str, Callable[[Draw, str], str]] = {
    "equal": lambda draw, name: f"{name} = {draw.number()}",
    "equal text": lambda draw, name: f"{name} = {draw.quoted()}",
    "in": lambda draw, name: f"{name} in {draw.numbers()}",
    "in texts": lambda draw, name: f"{name} in {draw.texts()}",
    "not equal": lambda draw, name: f"{name} <> {draw.number()}",
    "not in": lambda draw, name: f"{name} not in {draw.numbers()}",
    "not in texts": lambda draw, name: f"{name} not in {draw.texts()}",
    "range": lambda draw, name: f"{name} between {draw.range()}",
    "half range": lambda draw, name: f"{name} {draw.sign()} {draw.number()}",
    "text range": lambda draw, name: f"{name} {draw.sign()} {draw.quoted()}",
    "prefix": lambda draw, name: f"{name} prefix {draw.quoted()}",
    "suffix": lambda draw, name: f"{name} suffix {draw.quoted()}",
    "contains": lambda draw, name: f"{name} contains {draw.quoted()}",
    "like": lambda draw, name: f"{name} like {draw.pattern()}",
    "not like": lambda draw, name: f"not {name} like {draw.pattern()}",
    "not contains": lambda draw, name: f"not {name} contains {draw.quoted()}",
    "exists": lambda _, name: f"exists {name}",
    "null": lambda _, name: f"{name} is null",
    "near": lambda draw, _: draw.circle(),
    "not near": lambda draw, _: f"not {draw.circle()}",
}
NAMES = ("x", "x", "x", "y", "z")
LETTERS = ("ab", "a", "abcdefgh", "abcdefghijklmnopqrstuvwxyz0123456789")


def filters(gene: Gene) -> list[Filter]:
    """The filters of an attack: as many as there may be in one frame."""
    draw = Draw(gene)
    found: dict[Filter, None] = {}
    for i in range(gene.quantity):
        names = (NAMES * 60)[: len(gene.kinds)] if gene.seed % 2 else [f"x{i}" for i in range(99)]
        parts = [
            " and ".join(
                PREDICATES[kind](draw, name) for kind, name in zip(gene.kinds, names, strict=False)
            )
            for _ in range(gene.alternatives)
        ]
        try:
            found[Filter.parse(" or ".join(parts))] = None
        except FilterError:
            if i > 20 and not found:
                break
    return list(found)


def _known_attacks() -> Iterator[Gene]:
    for kind in PREDICATES:
        yield Gene((kind,), FILTERS, 6, 2, 1, LETTERS[2], "", 1)
    yield Gene(("contains",), FILTERS, 6, 2, 1, LETTERS[2], "abc", 1)
    yield Gene(("like",), 60, 300, 2, 1, LETTERS[1], "", 1)
    yield Gene(("not like", "like"), 200, 60, 2, 1, LETTERS[0], "", 1)
    for length, pieces in ((90, 1), (30, 3), (8, PIECES_MAX)):  # with `every_sequence`
        yield Gene(("like",), FILTERS, length, pieces, 1, LETTERS[0], "", 1)
    yield Gene(("like",) * 40, 100, 4, 2, 1, LETTERS[2], "", 1)
    yield Gene(("not equal",) * 60, 60, 4, 2, 1, LETTERS[2], "", 2)
    yield Gene(("in texts",), 40, 12, 200, 1, LETTERS[3], "", 1)
    yield Gene(("not in",), 60, 12, 200, 1, LETTERS[3], "", 1)
    yield Gene(("half range", "range"), 400, 6, 2, 8, LETTERS[2], "", 1)
    yield Gene(("equal", "range", "contains"), 1_500, 6, 2, 1, LETTERS[2], "", 2)


def _changed(gene: Gene, random: Random) -> Gene:
    field = random.choice(Gene._fields)
    kinds = list(gene.kinds)
    if field == "kinds":
        change = random.random()
        if change < 0.4 and len(kinds) < 60:
            kinds.insert(random.randrange(len(kinds) + 1), random.choice(list(PREDICATES)))
        elif change < 0.5 and len(kinds) < 60:
            kinds *= 2
        elif change < 0.7 and len(kinds) > 1:
            kinds.pop(random.randrange(len(kinds)))
        else:
            kinds[random.randrange(len(kinds))] = random.choice(list(PREDICATES))
    numbers = {
        "quantity": (1, FILTERS),
        "length": (1, 400),
        "values": (1, 250),
        "alternatives": (1, 32),
    }
    value: Any = tuple(kinds)
    if field in numbers:
        low, high = numbers[field]
        value = max(low, min(high, int(getattr(gene, field) * random.choice([0.3, 0.7, 1.5, 4]))))
    elif field == "letters":
        value = random.choice(LETTERS)
    elif field == "shared":
        value = random.choice(["", "abc", "a" * 20])
    elif field == "seed":
        value = random.randrange(10**6)
    return gene._replace(**{field: value})


# Messages: what is done with the filters


Frames = list[tuple[m.LinkId, bytes]]


def _framed(link: m.LinkId, *messages: m.AnyMessage) -> Frames:
    frames: Frames = []
    for message in messages:
        with suppress(CodecError):  # nobody can send it
            frames.append((link, encode(message)))
    return frames


def _attach(subs: list[Filter], ads: list[Filter], name: str = "mallory") -> m.Attach:
    return m.Attach(m.ClientId(name), 1, 0, tuple(subs), tuple(ads))


def _attached(given: list[Filter], _: str = "") -> Frames:
    return _framed(CLIENT, _attach(given, []))


def _advertised(given: list[Filter], _: str = "") -> Frames:
    return _framed(CLIENT, _attach([], given))


def _watching(given: list[Filter], _: str = "") -> Frames:
    everything = tuple(range(len(given)))
    watching = m.Attach(m.ClientId("mallory"), 1, 0, (), tuple(given), watched=everything)
    return [*_framed(CLIENT, watching), *_framed(OTHER, _attach(given, [], "alice"))]


def _left(given: list[Filter], _: str) -> Frames:
    return [*_attached(given), *_framed(CLIENT, m.Detach(leave=True))]


def _uncovered(given: list[Filter], _: str) -> Frames:
    """Something that covers all of them goes."""
    return [
        *_framed(OTHER, _attach([EVERYTHING], [], "alice")),
        *_attached(given),
        *_framed(OTHER, m.Unsubscribe(EVERYTHING), m.Subscribe(EVERYTHING)),
    ]


def _subscribed(given: list[Filter], _: str = "") -> Frames:
    """One by one, onto many; and back."""
    few = given[:40]
    return [
        *_framed(CLIENT, _attach(given[40:], [])),
        *_framed(CLIENT, *map(m.Subscribe, few), *map(m.Unsubscribe, few)),
    ]


def _offered(given: list[Filter], _: str = "") -> Frames:
    few = given[:40]
    return [
        *_framed(CLIENT, _attach([], given[40:])),
        *_framed(CLIENT, *map(m.Advertise, few), *map(m.Unadvertise, few)),
    ]


def _entries(given: list[Filter], routing: str) -> list[m.Entry]:
    client = m.ClientId("far" if STRATEGIES[routing].per_client else "")
    return list(dict.fromkeys(m.Entry(part, client) for one in given for part in one.parts()))


def _updated(given: list[Filter], routing: str) -> Frames:
    """A neighbour's updates, as many as it takes, after which all of it goes."""
    if STRATEGIES[routing].floods:
        return []
    entries = _entries(given, routing)[:1_000]
    pieces = [tuple(entries[i : i + m.UPDATE_MAX]) for i in range(0, len(entries), m.UPDATE_MAX)]
    north = m.LinkId(NEIGHBOURS[0])
    return [
        *_framed(north, *(m.Update(add_subs=one) for one in pieces)),
        *_framed(north, *(m.Update(remove_subs=one) for one in pieces)),
    ]


def _met(given: list[Filter], routing: str) -> Frames:
    """Advertisements of a neighbour meet subscriptions: one that overlaps all, and many that may."""
    if STRATEGIES[routing].floods:
        return []
    north = m.LinkId(NEIGHBOURS[0])
    (everything,) = _entries([EVERYTHING], routing)
    everything = m.Entry(EVERYTHING, m.ClientId("all" if everything.client else ""))
    ads = tuple(_entries(given[:200], routing)[: m.UPDATE_MAX])
    return [
        *_framed(north, m.Update(remove_ads=(everything,))),
        *_attached(given),
        *_framed(north, m.Update(add_ads=ads), m.Update(remove_ads=ads)),
        *_framed(north, m.Update(add_ads=(everything,)), m.Update(remove_ads=(everything,))),
    ]


def _own_texts(given: list[Filter]) -> Iterator[str]:
    """Texts of what the filters look for, of which most match none."""
    predicates = [p for one in given for conjunction in one.conjunctions for p in conjunction]
    found = [part for p in predicates if type(p) is Like for part in literals(p.pattern)]
    if found:
        words = "".join(found)[:20_000]
        yield from (words, words[::-1], "".join(sorted(words)))
        yield "".join(Random(1).choices(words, k=100_000))


@cache
def every_sequence(length: int) -> str:
    """The shortest text that contains every sequence of so many letters a and b: each window is new."""
    states = 1 << length
    seen, state, letters = bytearray(states), 0, ["a"] * length
    seen[0] = 1
    for _ in range(states - 1):
        state = (state << 1 | 1) & (states - 1)
        if seen[state]:
            state ^= 1
        seen[state] = 1
        letters.append("ab"[state & 1])
    return "".join(letters)


def _published(given: list[Filter], _: str) -> Frames:
    """Publications with texts like those of the filters, short and long."""
    frames = _attached(given)
    own = list(_own_texts(given))
    for text in ("a" * 50, "ab" * 500, "abcdefgh" * 1_000, "a" * 20_000, *own):
        attributes: dict[str, Any] = dict.fromkeys(("x", "y", "z", "x0", "x1", "x2"), text)
        frames += _framed(CLIENT, m.Publish(len(frames), attributes))
    for text in (own[-1], every_sequence(17)) if own else ():
        for name in ("x", "x0"):  # a frame of no other bytes
            frames += _framed(CLIENT, m.Publish(len(frames), {name: text}))
    numbers: dict[str, Any] = dict.fromkeys(("x", "y", "z", "x0", "x1", "lat", "lon"), 5.5)
    return [*frames, *_framed(CLIENT, m.Publish(len(frames), numbers))]


def _moved(given: list[Filter], _: str = "") -> Frames:
    """A client comes by digest from a neighbour, which has its profile; then it goes on."""
    client, north = m.ClientId("mallory"), m.LinkId(NEIGHBOURS[0])
    by_digest = m.Attach(client, 2, 0, previous=((NEIGHBOURS[0], 1),), welcomed=True, digest=7)
    profile = m.Profile(m.BrokerId("porto"), client, 2, True, tuple(given))
    request = m.Request(NEIGHBOURS[0], client, 3, 0, ((m.BrokerId("porto"), 2),))
    return [
        *_framed(CLIENT, by_digest),
        *_framed(north, m.Update(errands=(profile,))),
        *_framed(north, m.Update(errands=(request,))),
    ]


def _handed_over(given: list[Filter], _: str = "") -> Frames:
    """A client publishes much and is to get much before its old broker has replied; then that does."""
    texts = ["ab" * 16] * HELD_COUNT
    return [*_attached(given), *_came([*given, EVERYTHING], texts)]


def _handed_over_again(given: list[Filter], _: str = "") -> Frames:
    """As `_handed_over`, where half of what the client is to get came to its old broker, too."""
    return _came([*given, EVERYTHING], ["ab" * 16] * HELD_COUNT, repeated=HELD_COUNT // 2)


def _handed_over_texts(given: list[Filter], _: str = "") -> Frames:
    own = [*_own_texts(given), every_sequence(17)]
    texts = [f"{number:03}{own[number % len(own)]}" for number in range(HELD_TEXTS)]
    return [*_attached(given), *_came([], texts)]


def _came(given: list[Filter], texts: list[str], repeated: int = 0) -> Frames:
    """A client with these subscriptions comes, and these texts are published by it, and for it; then its old broker replies."""
    client, north = m.ClientId("alice"), m.LinkId(NEIGHBOURS[0])
    link, epoch = m.LinkId(f"alice#{len(given)}"), 10 + len(given)
    attach = m.Attach(client, epoch, 0, tuple(given), previous=((NEIGHBOURS[0], epoch - 1),))
    frames = _framed(link, attach)
    kept: list[m.Kept] = []
    for number, text in enumerate(texts, 1):
        attributes: dict[str, Any] = {"x": text, "x0": text}
        frames += _framed(link, m.Publish(number, attributes))
        if given:
            kept.append(m.Kept(m.Notification(m.ClientId("far"), number, attributes), 1))
            later = m.Notification(m.ClientId("far"), number + len(texts), attributes)
            frames += _framed(north, later)
    reply = m.Reply(m.BrokerId("porto"), client, epoch, True, tuple(kept), old_epoch=epoch - 1)
    marks = {m.ClientId("far"): len(texts) + repeated}
    return [
        *frames,
        *_framed(north, m.Update(errands=(replace(reply, more=True),))),
        *_framed(north, m.Update(errands=(replace(reply, kept=(), marks=marks),))),
    ]


def _wanted_by_many(given: list[Filter], _: str = "") -> Frames:
    """One publication that all subscriptions of many clients match: as many as one frame brings, for each."""
    frames: Frames = []
    for number in range(SESSIONS):
        wanted = [Filter.parse(f"y > {number * SESSION_FILTERS + i}") for i in range(len(given))]
        attach = m.Attach(m.ClientId(f"client-{number}"), 1, 0, tuple(wanted))
        frames += _framed(m.LinkId(f"client-{number}#1"), attach)
    frames += _framed(CLIENT, _attach([], []))
    return [*frames, *_framed(CLIENT, m.Publish(1, {"y": 10**6}))]


def _templates(given: list[Filter], state: m.State) -> m.Follows:
    """The same filters wherever the client is: as many as it may follow."""
    found: dict[Template, None] = {}
    for one in given[: 2 * m.FOLLOWS_MAX]:
        with suppress(FilterError, ProtocolError):
            template = template_of(f"place in myloc and ({one})")
            check_length([*found, template], state)
            found[template] = None
    return tuple((one.text, None) for one in found)[: m.FOLLOWS_MAX]


def _states(places: int) -> list[m.State]:
    """Two locations that stand for many others each, and one that stands for itself."""
    areas = {name: tuple(f"{name}-{i}" for i in range(places)) for name in ("here", "there")}
    return [m.State(name, (5.0, 5.0), {"x": 5}, areas) for name in ("here", "there", "elsewhere")]


def _following(given: list[Filter], _: str = "") -> Frames:
    """A client follows many filters, where its location stands for many; then it goes elsewhere."""
    here, there, elsewhere = _states(100)
    attach = m.Attach(
        m.ClientId("mallory"), 1, 0, followed=m.Followed(_templates(given, here), here)
    )
    return _framed(CLIENT, attach, there, elsewhere, here)


def _followed(given: list[Filter], _: str = "") -> Frames:
    """One by one, onto many; and back."""
    here = _states(8)[0]
    templates = _templates(given, here)
    follows, few = templates[20:], [text for text, _ in templates[:20]]
    followed = m.Followed(follows, here) if follows else None
    return [
        *_framed(CLIENT, m.Attach(m.ClientId("mallory"), 1, 0, followed=followed)),
        *_framed(CLIENT, *map(m.Follow, few), *map(m.Unfollow, few)),
    ]


def _kept(texts: Iterable[str] = ("abcdefgh" * 4,)) -> Frames:
    """As many current values as a broker keeps, which a neighbour tells."""
    frames, some = Frames(), list(texts)
    for start in range(0, VALUES, m.VALUES_MAX):
        values = []
        for number in range(start + 1, start + m.VALUES_MAX + 1):
            text = f"{some[number % len(some)]} {number}"
            attributes: dict[str, Any] = dict.fromkeys(("x", "x0", "place"), text)
            attributes |= {"y": number, "x1": number, "lat": 5.5, "lon": number / 100, "z": True}
            one = m.Notification(m.ClientId("far"), number, attributes)
            values.append(m.Retained(one, m.Retain(("y",)), number))
        frames += _framed(m.LinkId(NEIGHBOURS[0]), m.Values(tuple(values)))
    return frames


def _asked_at_attach(given: list[Filter], _: str = "") -> Frames:
    """Many subscriptions ask for current values at once."""
    asks = tuple((place, place + 1) for place in range(len(given)))
    attach = m.Attach(m.ClientId("mallory"), 1, 0, tuple(given), window=VALUES, asks=asks)
    return [*_kept(), *_framed(CLIENT, attach)]


def _asked(given: list[Filter], _: str = "") -> Frames:
    """One by one, of values with longer texts, too; the last one matches all of them."""
    asks = [m.Subscribe(one, ask=ask + 1) for ask, one in enumerate([*given[:20], EVERYTHING])]
    return [*_kept(["ab" * 500]), *_framed(CLIENT, _attach([], []), *asks)]


def _told(given: list[Filter], _: str = "") -> Frames:
    """Subscriptions ask before a neighbour has told its values; then these are told."""
    asks = tuple((place, place + 1) for place in range(len(given)))
    attach = m.Attach(m.ClientId("mallory"), 1, 0, tuple(given), window=VALUES, asks=asks)
    return [(m.LinkId(NEIGHBOURS[0]), LINK_UP), *_framed(CLIENT, attach), *_kept()]


def _told_texts(given: list[Filter], _: str = "") -> Frames:
    """As `_told`, where the values have long texts."""
    north = m.LinkId(NEIGHBOURS[0])
    frames = [(north, LINK_UP), *_told(given)[1:2]]
    for number, text in enumerate((*_own_texts(given), every_sequence(17)), 1):
        one = m.Notification(m.ClientId("far"), number, {"x": text, "x0": text[::-1], "y": number})
        frames += _framed(north, m.Values((m.Retained(one, m.Retain(("y",)), number),)))
    return frames


def _retained(given: list[Filter], _: str = "") -> Frames:
    """Publications that are retained; most replace a value."""
    frames = [*_attached(given), *_kept()]
    for number, text in enumerate(("a" * 50, "abcdefgh" * 1_000, *_own_texts(given)), 1):
        attributes: dict[str, Any] = {"x": text, "x0": text, "y": number}
        frames += _framed(CLIENT, m.Publish(number, attributes, retain=m.Retain(("y",))))
    return frames


def _convened(name: str, filter: Filter, member: str) -> Frames:
    enlist = m.Enlist(name, filter, member, 1, 1, 10**9)
    convene = m.Convene(m.BrokerId("porto"), enlist)
    return _framed(m.LinkId(NEIGHBOURS[0]), m.Update(errands=(convene,)))


def _grouped(given: list[Filter], _: str = "") -> Frames:
    """Each filter is that of a queue group; publications go to all of them that they match."""
    frames: Frames = []
    for number, one in enumerate(given[:GROUPS_MAX]):
        frames += _convened(f"{number}" * 50, one, f"member-{number}")
    return [*frames, *_work(given)]


def _joined(given: list[Filter], _: str = "") -> Frames:
    """One queue group of many members, which get something, are done with it, and leave."""
    filter, frames = (given or [EVERYTHING])[0], Frames()
    for number in range(len(given)):
        frames += _convened("workers", filter, f"member-{number}")
    frames += _work(given)
    address: dict[str, Any] = {GROUP: group_id("workers", filter)}
    for number in range(1, 40):
        done = Done(f"member-{number}", number + 1, (number,), number + 1)
        for said in (done, Leave(f"member-{number}")):
            one = m.Notification(m.ClientId("members"), len(frames), address, encoded(said))
            frames += _framed(m.LinkId(NEIGHBOURS[0]), one)
    return frames


def _work(given: list[Filter]) -> Frames:
    frames = _framed(CLIENT, _attach([], []))
    for number, text in enumerate(("a" * 50, "abcdefgh" * 1_000, *_own_texts(given)), 1):
        attributes: dict[str, Any] = dict.fromkeys(("x", "y", "z", "x0", "x1"), text)
        frames += _framed(CLIENT, m.Publish(2 * number, attributes))
        attributes = dict.fromkeys(("x", "y", "z", "x0", "x1", "lat", "lon"), 5.5)
        frames += _framed(CLIENT, m.Publish(2 * number + 1, attributes))
    return frames


def _willed(given: list[Filter], _: str = "") -> Frames:
    """A client has a last will, as long as it may be, and its connection breaks."""
    frames = _attached(given)
    texts = ["abcdefgh" * 8_000, *(text[:64_000] for text in _own_texts(given))]
    for number, text in enumerate(texts):
        name = m.ClientId(f"alice{number}")
        for attribute in ("x", "x0"):
            will = m.Will({attribute: text})
            link = m.LinkId(f"{name}#{attribute}")
            attach = m.Attach(name, 1 + (attribute == "x0"), 0, will=will)
            frames += [*_framed(link, attach), (link, LINK_DOWN)]
    return frames


def _requested(given: list[Filter], _: str = "") -> Frames:
    """Requests, to nobody or somebody; and replies, of which nobody waits for any."""
    frames = _attached(given)
    texts = ("a" * 50, "abcdefgh" * 1_000, *_own_texts(given))
    for number, text in enumerate(texts, 1):
        asked: dict[str, Any] = {"x": text, "x0": text, REPLY_TO: "mallory"}
        frames += _framed(CLIENT, m.Publish(2 * number, asked))
        reply: dict[str, Any] = {INBOX: text[:1_000], "x": text}
        frames += _framed(CLIENT, m.Publish(2 * number + 1, reply))
    return frames


def _returning(client: m.Attach, again: m.Attach, kept: Iterable[dict[str, Any]]) -> Frames:
    """A client is away while these are published for it, and comes back."""
    first, second = m.LinkId(f"{client.client}#1"), m.LinkId(f"{client.client}#2")
    north = m.LinkId(NEIGHBOURS[0])
    back = replace(again, epoch=2, welcomed=True, previous=((m.BrokerId("porto"), 1),))
    some = [m.Notification(m.ClientId("far"), n, one) for n, one in enumerate(kept, 1)]
    return [
        *_framed(first, client),
        (first, LINK_DOWN),
        *_framed(north, *some),
        *_framed(second, back),
    ]


def _kept_texts() -> Iterator[dict[str, Any]]:
    """Long texts, in a place, of few letters."""
    random = Random(3)
    for _ in range(KEPT_TEXTS):
        text = "".join(random.choices("ab", k=60_000))
        yield {"x": text, "x0": text, "place": "here-1"}


def _back(given: list[Filter], _: str = "", *, texts: bool = False, moves: bool = False) -> Frames:
    """A client with terms for each subscription comes back, or attaches elsewhere."""
    wanted = (*given, EVERYTHING)
    terms = tuple((place, TERMS[place % len(TERMS)]) for place in range(len(wanted)))
    attach = m.Attach(m.ClientId("alice"), 1, 0, wanted, terms=terms)
    kept = _kept_texts() if texts else ({"x": 10**6, "x0": "abcdefgh", "y": 10**6, "z": n}
                                        for n in range(HELD_COUNT))  # fmt: skip
    frames = _returning(attach, attach, kept)
    if not moves:
        return frames
    request = m.Request(
        NEIGHBOURS[0],
        attach.client,
        3,
        0,
        ((m.BrokerId("porto"), 1),),
        digest(wanted_of(wanted, terms)),
    )
    return [*frames[:-1], *_framed(m.LinkId(NEIGHBOURS[0]), m.Update(errands=(request,)))]


def _back_with_texts(given: list[Filter], routing: str = "") -> Frames:
    return _back(given[:1_000], routing, texts=True)


def _moved_on(given: list[Filter], routing: str = "") -> Frames:
    return _back(given, routing, moves=True)


def _follower_back(given: list[Filter], _: str = "", *, terms: bool = True) -> Frames:
    """A client that follows filters with terms comes back, and goes elsewhere; texts were kept for it."""
    here, there, _elsewhere = _states(8)
    found: dict[Template, None] = {}
    for one in given[: m.FOLLOWS_MAX]:
        with suppress(FilterError, ProtocolError):
            template = template_of(f"place in myloc or ({one})")
            check_length([*found, template], here)
            found[template] = None
    follows = tuple((one.text, m.Terms(last=5_000) if terms else None) for one in found)
    followed = m.Followed(follows, here)
    attach = m.Attach(m.ClientId("alice"), 1, 0, followed=followed)
    frames = _returning(attach, attach, _kept_texts())
    return [*frames, *_framed(m.LinkId("alice#2"), there, here)]


def _follower_back_without_terms(given: list[Filter], routing: str = "") -> Frames:
    return _follower_back(given, routing, terms=False)


MESSAGES: dict[str, Callable[[list[Filter], str], Frames]] = {
    "attach": _attached,
    "advertise at attach": _advertised,
    "watch": _watching,
    "leave": _left,
    "uncover": _uncovered,
    "subscribe": _subscribed,
    "advertise": _offered,
    "update": _updated,
    "meet": _met,
    "publish": _published,
    "wanted by many": _wanted_by_many,
    "move": _moved,
    "hand over": _handed_over,
    "hand over again": _handed_over_again,
    "hand over texts": _handed_over_texts,
    "come back": _back,
    "come back to texts": _back_with_texts,
    "move on": _moved_on,
    "follow at attach": _following,
    "follower comes back": _follower_back,
    "follower comes back without terms": _follower_back_without_terms,
    "follow": _followed,
    "ask at attach": _asked_at_attach,
    "ask": _asked,
    "tell": _told,
    "tell texts": _told_texts,
    "retain": _retained,
    "group": _grouped,
    "join": _joined,
    "will": _willed,
    "request": _requested,
}


# The search


class Attack(NamedTuple):
    """A gene that was tried."""

    worst: float  # part of what the frame may hold the loop
    gene: Gene
    held_ms: float
    size: int
    total_ms: float


def attempt(what: str, routing: str, gene: Gene, most: int = FILTERS) -> Attack:
    """Try an attack on a new broker. What was not the frame's fault is not there the second time."""
    gene = gene._replace(quantity=min(gene.quantity, most))
    frames = MESSAGES[what](filters(gene), routing)
    worst: Attack | None = None
    for _ in range(2):
        rig = Rig(routing)
        one = Attack(rig.play(frames), gene, rig.held_ms, _longest(frames), rig.total_ms)
        if worst is None or one.worst < worst.worst:
            worst = one
        if worst.worst < 0.5:
            break
    assert worst is not None
    return worst


def _longest(frames: Frames) -> int:
    return max((len(frame) for _, frame in frames), default=0)


def search(
    what: str, routing: str, random: Random, seconds: float, most: int = FILTERS
) -> tuple[Attack, int]:
    """The worst attack by one message that was found in that time, and how many were tried."""
    end = time.process_time() + seconds
    known = list(_known_attacks())
    random.shuffle(known)
    tried: list[Attack] = []
    count = 0
    while time.process_time() < end or not tried:
        gene = known.pop() if known and count % 3 < 2 else None
        if gene is None:
            gene = _changed(
                random.choice(tried or [attempt(what, routing, known.pop(), most)]).gene, random
            )
        tried.append(attempt(what, routing, gene, most))
        tried = sorted(tried, key=lambda one: -one.worst)[:8]
        count += 1
    return tried[0], count


def run(
    seed: int = 1,
    quick: bool = False,
    message: str | None = None,
    routing: str | None = None,
    seconds: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the worst attack for each message and routing strategy, or for those that are given."""
    messages = _chosen("message", message, MESSAGES)
    strategies = _chosen("routing", routing or ("covering" if quick else None), STRATEGIES)
    each_s = seconds or (0.5 if quick else 20.0)
    most = QUICK_FILTERS if quick else FILTERS
    for what in messages:
        for strategy in strategies:
            yield _worst(what, strategy, Random(f"{seed} {what} {strategy}"), each_s, most)


def _chosen(option: str, given: str | None, known: Iterable[str]) -> list[str]:
    names = list(known)
    if given is not None and given not in names:
        raise UsageError(f"--{option} is one of: {', '.join(names)}")
    return names if given is None else [given]


def _worst(what: str, routing: str, random: Random, seconds: float, most: int) -> dict[str, Any]:
    worst, count = search(what, routing, random, seconds, most)
    gene = worst.gene
    return {
        "message": what,
        "routing": routing,
        "tried": count,
        "held_ms": round(worst.held_ms, 1),
        "share": round(worst.worst, 2),
        "total_ms": round(worst.total_ms, 1),
        "bytes": worst.size,
        "filters": gene.quantity,
        "worst": f"{len(gene.kinds)} predicates: {', '.join(dict.fromkeys(gene.kinds))}",
    }
