"""Virtual clients, as values: whom they listen for, to what, and what that means.

`Ahead` is what a broker knows of its clients' ways; `Virtual` one virtual client; `Listened` what one of its
subscriptions means at this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from wayfare.core import messages as m
from wayfare.core.buffers import Id
from wayfare.core.filters import Filter
from wayfare.core.history import Backlog
from wayfare.core.history import Kept as Put
from wayfare.core.memory import SESSION_BYTES, Memory
from wayfare.core.messages import FOLLOWED_CHARACTERS_MAX, BrokerId, ClientId, LinkId, State, Terms
from wayfare.core.places import Places
from wayfare.core.templates import Around, Mine, Template, parse
from wayfare.errors import FilterError, ProtocolError

CHAIN_MAX = 8  # hops that can have different filters; beyond, the last one holds
KNOWN = 4_096  # texts of filters that are not parsed again

Chains = tuple[tuple[Filter, ...], ...]


class Ahead(msgspec.Struct, frozen=True):
    """What a broker knows of where its clients go, and how far it listens ahead."""

    places: Places = Places()
    nlb: Callable[[BrokerId], Sequence[BrokerId]] = lambda _broker: ()
    steps: int | None = 0  # q at every broker beyond the border; None: it grows by hop, as below
    dwell_ns: int = 60 * 10**9  # that a client stays at a location
    hop_ns: int = 20 * 10**6  # that a subscription takes from broker to broker

    def steps_at(self, hops: int) -> int:
        """q: how far a client may go while it is heard of so many hops away, and answered from there."""
        if self.steps is not None:
            return self.steps
        return -(-2 * hops * self.hop_ns // self.dwell_ns)

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

    def chains(self, template: Template, state: State) -> Chains:
        """What brokers further away are told: what it will mean soon, for each part of the filter."""
        if not state.location or not self.steps_at(CHAIN_MAX):
            return ()
        levels: list[Mine] = []
        for hops in range(1, CHAIN_MAX + 1):
            reached = self.places.reach(state.location, self.steps_at(hops))
            around = self.places.around(reached, state.position)
            levels.append(Mine(spread(reached, state.areas), around, state.values))
        chains = []
        for part in template.parts:
            filters = [filter for level in levels for filter in part.widened(level)]
            while len(filters) > 1 and filters[-1] == filters[-2]:
                filters.pop()
            if filters:
                chains.append(tuple(filters))
        return tuple(chains)


class Listened(msgspec.Struct, frozen=True):
    """What a virtual client listens to for one of its subscriptions."""

    ranged: Filter  # for whoever is in the range of this broker: it is kept
    terms: Terms | None
    since: Id  # what came before is not its
    exact: Filter | None  # for where its client is: it is delivered; None: somewhere else
    chains: Chains = ()  # what brokers further away are told of it


class Virtual:
    """A virtual client: it listens for its client, which is here, was here, or may come."""

    __slots__ = (
        "account",
        "attached",
        "backlog",
        "client",
        "epoch",
        "follows",
        "held",
        "link",
        "listened",
        "meant",
        "noted",
        "past",
        "recalling",
        "renew_at",
        "state",
        "stream",
        "told",
        "until",
        "version",
    )

    def __init__(self, client: ClientId, memory: Memory | None = None) -> None:
        self.account, self.noted = "", 0  # see memory.Consumer
        self.client = client
        self.epoch = 0  # of the attachment that it is for
        self.version = 0  # of what the client follows, and is like
        self.link: LinkId | None = None  # None: its client is not here
        self.attached = 0  # since when it is, or was
        self.state = m.NOWHERE
        self.follows: dict[Template, Terms | None] = {}
        self.listened: dict[Template, Listened] = {}
        # For which state, and whether for a client that is here, `listened` was worked out.
        self.meant: tuple[State, bool] | None = None
        self.backlog = Backlog(0, memory, self)
        self.stream = 0  # the epoch in which the numbers of the backlog began
        self.past: set[int] = set()  # which numbers are of the past
        self.told: set[Id] = set()  # what of the buffers its client has got, or will get
        self.until: int | None = None  # when its lease ends; None: its client is here, or was last
        self.renew_at = 0  # when to tell the others again
        self.recalling: int | None = None  # until when it waits for what was kept elsewhere
        self.held: list[Put] = []  # what came meanwhile

    def measure(self) -> int:
        self.backlog.count()
        return SESSION_BYTES + self.backlog.kept_bytes()


@lru_cache(KNOWN)
def template_of(text: str) -> Template:
    """What a client follows; ProtocolError unless it mentions `myloc`."""
    try:
        template = parse(text)
    except FilterError as error:
        raise ProtocolError(f"it follows what is no filter: {error}") from None
    if not isinstance(template, Template) or not template.follows_location:
        raise ProtocolError(f"it follows {text!r:.200}, which does not mention myloc")
    return template


def parsed(follows: m.Follows) -> dict[Template, Terms | None]:
    return {template_of(text): terms for text, terms in follows}


def check_length(follows: Iterable[Template], state: State) -> None:
    """FilterError if resolving all of them at once would take too long."""
    area = sum(map(len, area_of(state)))
    characters = sum(len(one.text) + area * one.located for one in follows)
    if characters > FOLLOWED_CHARACTERS_MAX:
        raise FilterError(
            f"the filters that the client follows have {characters} characters, with the locations that"
            f" `myloc` stands for, and at most {FOLLOWED_CHARACTERS_MAX} are allowed: follow fewer or"
            " shorter filters, or let its location stand for fewer"
        )


def area_of(state: State) -> tuple[str, ...]:
    """What `myloc` stands for."""
    return spread((state.location,), state.areas) if state.location else ()


def spread(locations: Iterable[str], areas: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What `myloc` stands for at any of these locations."""
    return tuple(dict.fromkeys(one for here in locations for one in areas.get(here, (here,))))


def union(filters: Iterable[Filter]) -> Filter:
    return Filter.of(one for filter in filters for one in filter.conjunctions)
