"""When clients are where: scripts and random walks, as data.

A movement is a list of stays; between two of them the client is away. A world plays any number
of them (`play`).
"""

from __future__ import annotations

from random import Random

import msgspec

from wayfare.core.messages import BrokerId, ClientId
from wayfare.core.publishers import Forecast
from wayfare.errors import UsageError
from wayfare.sim.world import World


class Stay(msgspec.Struct, frozen=True):
    """A client attaches at a broker and goes again; `silent`, without saying so.

    What it has sent before it goes silently is lost, or, if `late`, still arrives.
    """

    broker: str
    from_ns: int
    until_ns: int | None = None  # None: it stays
    silent: bool = False
    late: bool = False

    def __post_init__(self) -> None:
        if self.until_ns is not None and self.until_ns < self.from_ns:
            raise UsageError(
                f"a stay from {self.from_ns} until {self.until_ns} cannot be, because it would end"
                " before it begins: give an until_ns that is not below from_ns"
            )


class Plan:
    """Where clients are going to be when, as a network could know it that learnt their ways."""

    def __init__(self) -> None:
        self.stays: dict[str, list[Stay]] = {}
        self.homes: dict[str, str] = {}  # where each client came first

    def add(self, client: str, home: str, stays: list[Stay]) -> None:
        self.homes[client] = home
        self.stays[client] = stays

    def forecast(self, world: World) -> Forecast:
        """What the plan says at any time; what a client does beside it, nobody foresees."""
        return Forecast(
            lambda client, broker: self.next_broker(client, broker, world.now), self.proxies
        )

    def next_broker(self, client: ClientId, broker: BrokerId, now: int) -> BrokerId | None:
        """Where the client is by now, if its broker notices late that it went, or else goes next."""
        stays = self.stays.get(client, [])
        gone = [one for one in stays if one.from_ns <= now][-1:]
        ahead = [one for one in stays if one.from_ns > now]
        elsewhere = (one.broker for one in [*gone, *ahead] if one.broker != broker)
        return next((BrokerId(one) for one in elsewhere), None)

    def proxies(self, home: BrokerId) -> list[BrokerId]:
        """Wherever those come that came here first."""
        ours = [name for name, first in self.homes.items() if first == home]
        return sorted({BrokerId(one.broker) for name in ours for one in self.stays[name]})


def random_walk(
    random: Random,
    places: list[str],
    until_ns: int,
    dwell_ns: tuple[int, int],
    away_ns: tuple[int, int],
    silent: float = 0.5,
    late: float = 0.0,
) -> list[Stay]:
    """Stays at places drawn at random, for times drawn from these ranges; the last one lasts."""
    stays = []
    now = 0
    while now < until_ns:
        end = now + random.randint(*dwell_ns)
        stay = Stay(
            random.choice(places), now, end, random.random() < silent, random.random() < late
        )
        stays.append(stay)
        now = end + random.randint(*away_ns)
    return [*stays, Stay(random.choice(places), max(now, until_ns))]


def failed_attempts(random: Random, places: list[str], start_ns: int) -> list[Stay]:
    """Attachments in a row whose connections break before the greeting; the last stay lasts.

    Most of them reach their broker, which opens a session and sends requests; of the others, no broker
    hears anything. The pauses are shorter than the answer to a request takes, or longer.
    """
    stays = []
    now = start_ns
    for _ in range(random.randint(2, 8)):
        until = now + random.choice([0, 0, 1_000_000])
        heard = random.random() < 0.7
        stays.append(Stay(random.choice(places), now, until, silent=True, late=heard))
        now = until + random.choice([1, 5, 30, 200]) * 1_000_000
    return [*stays, Stay(random.choice(places), now)]


def play(world: World, client: str, stays: list[Stay]) -> None:
    """Put a client's movement on the agenda."""
    world.client(client)  # complains now, and not in the middle of the run
    for stay in stays:
        world.broker(stay.broker)

    def arrive(stay: Stay) -> None:
        world.client(client).attach(stay.broker)

    def go(stay: Stay) -> None:
        host = world.client(client)
        if stay.silent:
            host.disconnect(late=stay.late)
        else:
            host.detach(moves=host.core.will is not None and stay is not stays[-1])

    for stay in stays:
        world.agenda.at(stay.from_ns, arrive, stay)
        if stay.until_ns is not None:
            world.agenda.at(stay.until_ns, go, stay)
