"""A seed gives the plan of a round: brokers, clients, movements and faults, each with its time.

The plan is the same in every run; when real processes do something is not. A profile says what may happen:

    keep        faults that destroy nothing: no gap is allowed, whatever happens
    destroy     also stores that are put back, damaged or deleted, and brokers without a store that are
                killed: something may be lost, and a gap stands at the place of whatever is
    impatient   `answer` is shorter than some faults: likewise
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

DURABILITY = ("disk", "os", "memory")
BROKERS = ("ash", "beech", "cedar", "durmast", "elm", "fir")
SETTLE_S = 2.0  # nothing happens in the first seconds


class Broker(NamedTuple):
    name: str
    durability: str
    parent: str  # which it calls; "": it is the root


class Client(NamedTuple):
    name: str
    publishes: bool = False
    wants: str = ""  # a filter
    store: bool = False
    home: str = ""  # the only broker that it goes to; "": it roams


class Act(NamedTuple):
    """Something happens: a movement or a fault."""

    at_s: float
    kind: str
    target: str  # a broker, a client, `child-parent` for a link, or `client@broker` for a door
    for_s: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        lasts = f" for {self.for_s:.1f} s" if self.for_s else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.at_s:7.2f} s  {self.kind} {self.target}{detail}{lasts}"


class Kind(NamedTuple):
    """A kind of fault: what it hits, how long it lasts, and what it may be like."""

    weight: float
    at: str  # road (link or door), link, door, broker, durable, memory, client, stored
    for_s: tuple[float, float] = (0.0, 0.0)
    details: tuple[str, ...] = ("",)
    may_lose: bool = False


BLACK_HOLES = ("up", "down", "both")
KINDS = {
    # Connections, between brokers and of clients
    "reset": Kind(3, "road"),
    "half-open": Kind(2, "road", details=("caller", "called")),
    "half-close": Kind(1, "road", details=("up", "down")),
    "black-hole": Kind(3, "road", (0.2, 6.0), BLACK_HOLES),
    "slow": Kind(2, "road", (0.5, 6.0), ("0.01", "0.1", "0.3")),  # seconds for each chunk
    "thin": Kind(2, "road", (0.5, 6.0), ("5000", "100000")),  # bytes a second
    "unseen": Kind(3, "door", details=("1", "2", "3")),  # attachments whose greeting is lost
    "overtake": Kind(4, "door", (1.0, 3.0), ("1", "2", "3")),  # likewise, and its requests are late
    # Brokers
    "kill": Kind(3, "durable", (0.0, 3.0)),
    "stop": Kind(3, "broker", (0.2, 5.0)),
    "restart": Kind(1, "durable"),
    "full-disk": Kind(1, "durable", (2.0, 2.0)),
    # Clients
    "kill-client": Kind(2, "stored", (0.0, 2.0)),
    "stop-client": Kind(1, "client", (0.2, 5.0)),
    "dawdle": Kind(1, "client", (0.5, 4.0)),
}
DESTROYING = {
    "forget": Kind(2, "memory", (0.0, 2.0), may_lose=True),
    "delete": Kind(1, "durable", may_lose=True),
    "put-back": Kind(
        3, "durable", (0.5, 4.0), ("present mark", "old mark", "no mark"), may_lose=True
    ),
    "cut-wal": Kind(2, "durable", details=("0.3", "0.6", "0.9", "0.99"), may_lose=True),
    "flip-wal": Kind(2, "durable", details=("0.1", "0.5", "0.9", "0.99"), may_lose=True),
}
LONG_S = (4.0, 8.0)
LATE = {
    "long-stop": Kind(3, "broker", LONG_S, may_lose=True),
    "long-kill": Kind(1, "durable", LONG_S, may_lose=True),
    "long-black-hole": Kind(2, "link", LONG_S, BLACK_HOLES, may_lose=True),
}


class Profile(NamedTuple):
    name: str
    answer_s: float
    kinds: dict[str, Kind]
    every_s: float = 0.5  # between two faults
    moves_s: float = 0.6  # between two movements


PROFILES = {
    one.name: one
    for one in (
        # Nothing is to be excused by a time-out: this is longer than any round.
        Profile("keep", 3600.0, KINDS),
        # Requests are lost with the memory of a broker: their clients wait for this long.
        Profile("destroy", 20.0, KINDS | DESTROYING),
        Profile("impatient", 3.0, KINDS | LATE),
    )
}


class Plan(NamedTuple):
    seed: int
    profile: str
    seconds: float
    answer_s: float
    brokers: tuple[Broker, ...]
    clients: tuple[Client, ...]
    acts: tuple[Act, ...]

    @property
    def may_lose(self) -> bool:
        """Whether a fault of this plan explains a gap."""
        kinds = PROFILES[self.profile].kinds
        return any(one.kind in kinds and kinds[one.kind].may_lose for one in self.acts)

    def text(self) -> str:
        tree = ", ".join(
            f"{one.name} ({one.durability})" + (f" -> {one.parent}" if one.parent else "")
            for one in self.brokers
        )
        head = f"seed {self.seed}, profile {self.profile}, {self.seconds:g} s: {tree}"
        return "\n".join([head, *map(str, self.acts)])


def draw(seed: int, profile: str, seconds: float) -> Plan:
    """The plan of a round."""
    given, chance = PROFILES[profile], Random(f"{profile} {seed}")
    brokers = _tree(chance)
    clients = _clients()
    acts = [*_movements(chance, given, brokers, clients, seconds)]
    acts += _faults(chance, given, brokers, clients, seconds)
    acts.sort()
    return Plan(seed, profile, seconds, given.answer_s, brokers, clients, tuple(acts))


def _tree(chance: Random) -> tuple[Broker, ...]:
    """Each but the first calls one that stands before it. There is a durable one, and one that is not."""
    names = BROKERS[: chance.randint(4, 6)]
    modes = [*DURABILITY, *(chance.choice(DURABILITY) for _ in names[3:])]
    chance.shuffle(modes)
    return tuple(
        Broker(name, mode, chance.choice(names[:place]) if place else "")
        for place, (name, mode) in enumerate(zip(names, modes, strict=True))
    )


def _clients() -> tuple[Client, ...]:
    """All of them roam."""
    return (
        Client("tom", publishes=True, store=True),
        Client("uma", publishes=True),
        Client("vera", publishes=True, wants="i > 0"),
        Client("anna", wants="i > 0", store=True),
        Client("bert", wants="i > 0"),
        Client("carla", wants="source = 'tom'", store=True),
        Client("dora", wants="source in ('uma', 'vera')"),
    )


def _times(chance: Random, every_s: float, seconds: float) -> list[float]:
    out, at = [], SETTLE_S
    while (at := at + chance.expovariate(1 / every_s)) < seconds:
        out.append(round(at, 3))
    return out


def _movements(
    chance: Random,
    profile: Profile,
    brokers: tuple[Broker, ...],
    clients: tuple[Client, ...],
    seconds: float,
) -> list[Act]:
    out = []
    for at in _times(chance, profile.moves_s, seconds):
        client = chance.choice(clients).name
        if chance.random() < 0.2:
            out.append(Act(at, "leave", client, round(chance.uniform(0, 2), 2)))
        else:
            out.append(Act(at, "move", f"{client}@{chance.choice(brokers).name}"))
    return out


def _faults(
    chance: Random,
    profile: Profile,
    brokers: tuple[Broker, ...],
    clients: tuple[Client, ...],
    seconds: float,
) -> list[Act]:
    targets = _targets(brokers, clients)
    kinds = {name: kind for name, kind in profile.kinds.items() if targets[kind.at]}
    weights = [kind.weight for kind in kinds.values()]
    out = []
    for at in _times(chance, profile.every_s, seconds):
        (name,) = chance.choices([*kinds], weights)
        kind = kinds[name]
        target, detail = chance.choice(targets[kind.at]), chance.choice(kind.details)
        if name == "overtake":  # where it goes from there
            others = [one.name for one in brokers if not target.endswith(f"@{one.name}")]
            detail = f"{detail} {chance.choice(others)}"
        out.append(Act(at, name, target, round(chance.uniform(*kind.for_s), 2), detail))
    return out


def _targets(brokers: tuple[Broker, ...], clients: tuple[Client, ...]) -> dict[str, list[str]]:
    links = [f"{one.name}-{one.parent}" for one in brokers if one.parent]
    doors = [f"{client.name}@{one.name}" for client in clients for one in brokers]
    return {
        "road": [*(links * (len(doors) // len(links))), *doors],  # links as often as doors
        "link": links,
        "door": doors,
        "broker": [one.name for one in brokers],
        "durable": [one.name for one in brokers if one.durability != "memory"],
        "memory": [one.name for one in brokers if one.durability == "memory"],
        "client": [one.name for one in clients],
        "stored": [one.name for one in clients if one.store],
    }
