"""Virtual clients, as values: whom they listen for, to what, and what that means.

`Ahead` is what a broker knows of its clients' ways; `Virtual` one virtual client; `Listened` what one of its
subscriptions means at this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache

import msgspec

from wayfare.core import changes
from wayfare.core import messages as m
from wayfare.core.buffers import Id
from wayfare.core.filters import Filter
from wayfare.core.history import Backlog
from wayfare.core.history import Kept as Put
from wayfare.core.learning import COVERAGE, Learner, Mined
from wayfare.core.memory import SESSION_BYTES, Memory
from wayfare.core.messages import FOLLOWED_CHARACTERS_MAX, BrokerId, ClientId, LinkId, State, Terms
from wayfare.core.pace import Pace
from wayfare.core.places import Places
from wayfare.core.prediction import START, Movement
from wayfare.core.searches import Search
from wayfare.core.sessions import Episode, Wanted
from wayfare.core.templates import Around, Mine, Template, parse
from wayfare.errors import FilterError, ProtocolError

CHAIN_MAX = 8  # hops that can have different filters; beyond, the last one holds ...
HOPS_MAX = 32  # ... and is wide enough for so many
PLACES_MAX = 256  # places, times subscriptions of a client, of which each is kept by itself
KNOWN = 4_096  # texts of filters that are not parsed again

Chains = tuple[tuple[Filter, ...], ...]
UNMEASURED = Pace()


class Learning(msgspec.Struct, frozen=True):
    """How brokers foresee where a client goes, by who it is and where it came from."""

    coverage: float = COVERAGE  # share of the arrivals that are to be expected
    movement: Movement | None = None  # a mined model to begin with; None: with `nlb`
    learns: bool = True  # False: only what was mined counts


class Ahead(msgspec.Struct, frozen=True):
    """What a broker knows of where its clients go, and how far it listens ahead."""

    places: Places = Places()
    nlb: Callable[[BrokerId], Sequence[BrokerId]] = lambda _broker: ()
    steps: int | None = 0  # q at every broker beyond the border; None: it grows by hop, as below
    dwell_ns: int | None = (
        None  # that a client stays at a location, and keeps a value; None: it is measured
    )
    hop_ns: int | None = (
        None  # that a subscription takes from broker to broker; None: it is measured
    )
    learning: Learning | None = None  # None: the next brokers are those of `nlb`

    @property
    def measures_hops(self) -> bool:
        """Whether it matters how long messages between brokers take."""
        return self.steps is None and self.hop_ns is None

    def learner(self, broker: BrokerId) -> Learner | Mined | None:
        """What this broker knows at first; None: its next brokers are the same for all clients."""
        if self.learning is None:
            return None
        coverage, movement = self.learning.coverage, self.learning.movement
        if movement is not None and not self.learning.learns:
            return Mined(movement, broker, movement.least_share(coverage))
        learner = Learner(coverage)
        if movement is None:
            learner.begin_near(self.nlb(broker))
        else:
            learner.begin(movement, broker, movement.least_share(coverage))
        return learner

    def listens(self, broker: BrokerId) -> bool:
        """Whether other brokers may be asked to listen ahead for the clients of this one."""
        return self.learning is not None or bool(self.nlb(broker))

    def steps_at(self, hops: int, pace: Pace = UNMEASURED) -> int:
        """q: how far a client may go while it is heard of so many hops away, and answered from there."""
        return self._steps(hops, pace.dwell_ns, pace)

    def changes_at(self, hops: int, pace: Pace = UNMEASURED) -> int:
        """The same for a value of its state: how often it may change meanwhile."""
        return self._steps(hops, pace.kept_ns, pace)

    def _steps(self, hops: int, measured_ns: int, pace: Pace) -> int:
        if self.steps is not None:
            return self.steps
        dwell_ns = measured_ns if self.dwell_ns is None else self.dwell_ns
        hop_ns = pace.hop_ns if self.hop_ns is None else self.hop_ns
        return -(-2 * hops * hop_ns // dwell_ns)

    def exact(self, template: Template, state: State) -> Filter:
        """What a subscription means where its client is."""
        if state.position is not None:
            around: Around | None = Around(*state.position)
        else:
            around = self.places.around((state.location,))
        return template.resolve(Mine(area_of(state), around, state.values))

    def ranged(self, template: Template, state: State, broker: BrokerId) -> Filter:
        """What it means to whoever may come into the range of this broker."""
        locations = self.places.locations(broker)
        around = self.places.around(locations)
        return union(template.widened(Mine(spread(locations, state.areas), around, state.values)))

    def placed(
        self, template: Template, terms: Terms | None, state: State, broker: BrokerId, most: int
    ) -> tuple[Filter, ...]:
        """What it means at each place of this range, if terms say how much to keep of each; else nothing.

        Nor if that were more than so many, or too long: then they count for all places together.
        """
        if terms is None or (terms.last is None and terms.key is None and terms.nullify is None):
            return ()
        locations = self.places.locations(broker)
        if not template.names_places or not 1 < len(locations) <= most:
            return ()
        areas = [spread((one,), state.areas) for one in locations]
        characters = sum(len(template.text) + template.located * sum(map(len, a)) for a in areas)
        if characters > FOLLOWED_CHARACTERS_MAX:
            return ()
        found = dict.fromkeys(template.resolve(Mine(one, None, state.values)) for one in areas)
        return tuple(one for one in found if one.conjunctions)

    def chains(self, template: Template, state: State, pace: Pace = UNMEASURED) -> Chains:
        """What brokers further away are told: what it will mean soon, for each part of the filter."""
        moves = bool(state.location) and bool(self.steps_at(HOPS_MAX, pace))
        names = template.names & state.changes.keys() & state.values.keys()
        if not moves and not (names and self.changes_at(HOPS_MAX, pace)):
            return ()
        levels = [self._soon(state, names, hops, pace) for hops in (*range(1, CHAIN_MAX), HOPS_MAX)]
        chains = []
        for part in template.parts:
            filters = [filter for level in levels for filter in part.widened(level)]
            while len(filters) > 1 and filters[-1] == filters[-2]:
                filters.pop()
            if filters:
                chains.append(tuple(filters))
        return tuple(chains)

    def _soon(self, state: State, names: Set[str], hops: int, pace: Pace) -> Mine:
        """Where a client may be, and what these values of it may be, when so many hops away have heard of it."""
        reached: tuple[str, ...] = ()
        if state.location:
            reached = self.places.reach(state.location, self.steps_at(hops, pace))
        around = self.places.around(reached, state.position)
        steps = self.changes_at(hops, pace)
        possible = {
            name: changes.reach(change, state.values[name], steps)
            for name, change in state.changes.items()
            if name in names
        }
        several = {name: one for name, one in possible.items() if one != (state.values[name],)}
        return Mine(spread(reached, state.areas), around, state.values, several)


class Listened(msgspec.Struct, frozen=True):
    """What a virtual client listens to for one of its subscriptions."""

    ranged: Filter  # for whoever is in the range of this broker: it is kept
    terms: Terms | None
    since: Id  # what came before is not its
    exact: Filter | None  # for where its client is: it is delivered; None: somewhere else
    chains: Chains = ()  # what brokers further away are told of it
    placed: tuple[Filter, ...] = ()  # of these, each by itself is kept; nothing: all of `ranged`


class Virtual:
    """A virtual client: it listens for its client, which is here, was here, or may come."""

    __slots__ = (
        "account",
        "asked",
        "attached",
        "backlog",
        "came",
        "client",
        "episode",
        "epoch",
        "follows",
        "held",
        "link",
        "listened",
        "located",
        "meant",
        "noted",
        "others",
        "overflowed",
        "past",
        "recalling",
        "renew_at",
        "search",
        "state",
        "stream",
        "thin_at",
        "thinning",
        "told",
        "told_max",
        "until",
        "valued",
        "version",
    )

    def __init__(self, client: ClientId, memory: Memory | None = None) -> None:
        self.account, self.noted = "", 0  # see memory.Consumer
        self.client = client
        self.epoch = 0  # of the attachment that it is for
        self.version = 0  # of what the client follows, and is like
        self.link: LinkId | None = None  # None: its client is not here
        self.attached = 0  # since when it is, or was
        # If its client is or was here: from which broker it came, and when.
        self.located = 0  # since when it is, or was, at its location
        self.valued = 0  # since when it has, or had, the values that are declared to change
        self.came = START, 0
        # The brokers that listen ahead for it, if that is learnt: by what they were told, or told us.
        self.others: tuple[BrokerId, ...] = ()
        self.state = m.NOWHERE
        self.follows: dict[Template, Terms | None] = {}
        self.listened: dict[Template, Listened] = {}
        # For which state, and whether for a client that is here, `listened` was worked out.
        self.meant: tuple[State, bool] | None = None
        self.backlog = Backlog(0, memory, self)
        self.stream = 0  # the epoch in which the numbers of the backlog began
        # How many, or how many bytes, it may keep for a client that is away before terms are applied again.
        self.thin_at = (0, 0)
        self.past: set[int] = set()  # which numbers are of the past
        self.told: set[Id] = set()  # what of the buffers its client has got, or will get
        self.told_max = 0  # ids; beyond it, some of them may not be in the buffers any more
        self.until: int | None = None  # when its lease ends; None: its client is here, or was last
        self.renew_at = 0  # when to tell the others again
        self.recalling: int | None = None  # until when it waits for what was kept elsewhere
        self.search: Search | None = None  # what it waits for, while it does
        self.asked = 0  # in which epoch it asked for that
        self.held: list[Put] = []  # what came meanwhile
        self.overflowed = 0  # how many in front of that were too many, and are lost
        # What it kept for its client, and no backlog has, while terms are applied to that; None: it is not so.
        self.thinning: list[Put] | None = None
        self.episode: Episode | None = None  # publishers may be slowed for it

    def wanted(self) -> Wanted:
        """What its client wants where it is, and of what it missed."""
        listened = self.listened.values()
        return {one.exact: one.terms for one in listened if one.exact is not None}

    def spares(self, publisher: ClientId) -> bool:
        return False

    def measure(self) -> int:
        self.backlog.count()
        searched = 0 if self.search is None else self.search.measure()
        return SESSION_BYTES + self.backlog.kept_bytes() + searched


@lru_cache(KNOWN)
def template_of(text: str) -> Template:
    """What a client follows; ProtocolError unless it mentions `myloc` or `my.<name>`."""
    try:
        template = parse(text)
    except FilterError as error:
        raise ProtocolError(f"it follows what is no filter: {error}") from None
    if not isinstance(template, Template):
        raise ProtocolError(f"it follows {text!r:.200}, which mentions neither myloc nor my.<name>")
    return template


def parsed(follows: m.Follows) -> dict[Template, Terms | None]:
    return {template_of(text): terms for text, terms in follows}


def check_length(follows: Iterable[Template], state: State) -> None:
    """FilterError if resolving all of them at once would take too long."""
    area = sum(map(len, area_of(state)))
    listed = {name: changes.characters(one) for name, one in state.changes.items()}
    characters = sum(
        len(one.text) + area * one.located + sum(listed.get(name, 0) for name in one.mentions)
        for one in follows
    )
    if characters > FOLLOWED_CHARACTERS_MAX:
        raise FilterError(
            f"the filters that the client follows have {characters} characters, with the locations that"
            " `myloc` stands for and the values that `my.<name>` changes to, and at most"
            f" {FOLLOWED_CHARACTERS_MAX} are allowed: follow fewer or shorter filters, let its location"
            " stand for fewer, or declare fewer values"
        )


def area_of(state: State) -> tuple[str, ...]:
    """What `myloc` stands for."""
    return spread((state.location,), state.areas) if state.location else ()


def spread(locations: Iterable[str], areas: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What `myloc` stands for at any of these locations."""
    return tuple(dict.fromkeys(one for here in locations for one in areas.get(here, (here,))))


def union(filters: Iterable[Filter]) -> Filter:
    return Filter.of(one for filter in filters for one in filter.conjunctions)
