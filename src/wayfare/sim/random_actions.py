"""What clients of random runs do beside subscribing and publishing: wills, current values, requests, queue groups.

All kinds of random runs (`fuzz`, `walks`) draw these here; each says what is published and wanted in its world. Their
judges are `wills`, `current`, `asking` and `sharing`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from random import Random

from wayfare.core.filters import Filter
from wayfare.core.membership import Membership, Work
from wayfare.core.messages import Notification, Retain, Will
from wayfare.core.predicates import Value
from wayfare.core.reserved import mentions
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS
from wayfare.sim.world import World

Draw = Callable[[Random], dict[str, Value]]  # the attributes of a publication
TRIES = 20  # until a request is drawn that the client has advertised


def draw_will(random: Random, attributes: dict[str, Value]) -> Will:
    """A will that says this; some are retained."""
    delay_ns = random.choice([0, 5, 60, 1000, 60_000]) * MS_NS
    names = tuple(one for one in ("topic",) if one in attributes)
    retain = Retain(names) if names and random.random() < 0.3 else None
    return Will(attributes, b"", delay_ns, retain)


class RandomRetention:
    """Which publications are retained, by few keys; now and then one clears its key."""

    def __init__(self, random: Random, share: float, names: Sequence[str]) -> None:
        """`share` of those that have one of these attributes, which are the keys."""
        self.random, self.share, self.names = random, share, names

    def draw(self, attributes: dict[str, Value]) -> tuple[list[str], bool]:
        """The key (empty: this is not retained), and whether it is cleared."""
        random = self.random
        names = [one for one in self.names if one in attributes]
        if not names or random.random() >= self.share:
            return [], False
        return random.choice([names[:1], names[:1], names]), random.random() < 0.1


class RandomRequests:
    """Some clients send requests, and others reply: at once or later, several times or not at all."""

    def __init__(
        self,
        world: World,
        random: Random,
        clients: Sequence[str],
        movers: Container[str],
        draw: Draw,
        offer: Callable[[ClientHost], None] = lambda _: None,
    ) -> None:
        """`offer` lets a client advertise before it sends a request, if it has to."""
        self.world, self.random, self.clients, self.movers = world, random, clients, movers
        self.draw, self.offer = draw, offer

    def plan(self, until_ns: int) -> None:
        self.world.responder = self._respond
        for _ in range(self.random.choice([3, 10, 30])):
            self.world.agenda.at(self.random.randrange(until_ns), self._ask)

    def _ask(self, _: None) -> None:
        random = self.random
        if not self.clients:
            return
        client = self.world.clients[random.choice(self.clients)]
        self.offer(client)
        some = [self.draw(random) for _ in range(TRIES)]
        offered = [one for one in client.core.advertisements if not mentions(one)]
        known = [one for one in some if any(filter.matches(one) for filter in offered)]
        if known:
            timeout_ns = random.choice([20, 100, 1000, 60_000]) * MS_NS
            client.request(known[0], timeout_ns=timeout_ns, many=random.random() < 0.5)
            if random.random() < 0.3 and client.name in self.movers:
                client.attach(random.choice(list(self.world.brokers)))  # the reply has to follow

    def _respond(self, client: ClientHost, request: Notification) -> None:
        random = self.random
        if client.name not in self.clients:
            return
        for _ in range(random.choice([0, 1, 1, 1, 3])):
            later = self.world.now + random.choice([0, 5, 50, 500]) * MS_NS
            self.world.agenda.at(later, self._reply, (client.name, request))

    def _reply(self, given: tuple[str, Notification]) -> None:
        name, request = given
        self.world.client(name).reply(request, {"from": name})


class RandomGroups:
    """Queue groups, whose members come, move, vanish and leave, and work for a while."""

    def __init__(
        self,
        world: World,
        seed: int,
        clients: Sequence[str],
        draw: Draw,
        wanted: Callable[[Random], Filter],
    ) -> None:
        """`clients` may be members; `wanted` draws what a group wants."""
        self.world, self.clients, self.draw, self.wanted = world, clients, draw, wanted
        # Of their own, so that the rest is as without them.
        self.random = Random(f"groups {seed}")
        self.readers = Random(f"readers {seed}")
        self.crowds = Random(f"congested groups {seed}")
        self.congested = False
        self.until_ns = 0
        self.away_ns = 0  # the longest that a member may be silent; 0: there are no groups
        self.busy: set[str] = set()  # members whose applications will ask for the next one

    def are_drawn(self, share: float, *, congested: bool) -> bool:
        """Whether this run has any: this share of the runs has, and more of those with bursts."""
        drawn = self.random.random() < share and not congested
        return drawn or (congested and self.crowds.random() < 0.4)

    def plan(self, until_ns: int, *, congested: bool = False, suspended: bool = False) -> None:
        random, world = self.random, self.world
        self.congested = congested
        world.worker = self._work
        groups = [(f"g{number}", self.wanted(random)) for number in range(random.randint(1, 3))]
        slow_ns = (len(world.brokers) * 60 + 500) * MS_NS  # longer than any answer takes
        self.away_ns = 2 * random.choice([slow_ns, 4 * slow_ns, 60_000 * MS_NS])
        if suspended:  # else members say thousands of times that they are there
            self.away_ns = 2 * 60_000 * MS_NS
        if self.readers.random() < 0.6:
            world.reader = self._read_late
        for _ in range(random.choice([2, 4, 10])):
            at_ns = random.randrange(max(1, until_ns // 2))
            world.agenda.at(at_ns, self._join, random.choice(groups))
        for _ in range(random.choice([0, 2, 5])):
            world.agenda.at(random.randrange(until_ns), self._quit)
        for _ in range(self.crowds.choice([1, 3, 5]) if congested else 0):
            at_ns = self.crowds.randrange(until_ns)
            world.agenda.at(at_ns, self._burst_of_work, self.crowds.choice(groups))

    def wait_for_others(self) -> None:
        """Until what silent members had is done by others."""
        for _ in range(3 if self.away_ns else 0):
            self.world.run_until(self.world.now + 2 * self.away_ns)
            self.world.settle()

    def end(self) -> None:
        """All members leave."""
        for client in self.world.clients.values():
            for one, _ in client.memberships.values():
                client.quit(one)
        self.world.settle()

    def _latest(self, name: str) -> ClientHost:
        """The process that has this name now."""
        return self.world.clients[name]

    def _join(self, group: tuple[str, Filter]) -> None:
        random = self.random
        client = self._latest(random.choice(self.clients))
        slow_ns = None
        if self.congested and self.crowds.random() < 0.2:
            slow_ns = self.crowds.choice([0, 1_000]) * MS_NS
        prefetch = random.choice([1, 4, 16])
        client.join(*group, prefetch=prefetch, away_ns=self.away_ns, slow_ns=slow_ns)

    def _quit(self, _: None) -> None:
        client = self._latest(self.random.choice(self.clients))
        members = [one for one, _ in client.memberships.values() if not one.left]
        if members:
            client.quit(self.random.choice(members))

    def _read_late(self, client: ClientHost, member: Membership) -> None:
        """The application asks for what is assigned to it later, when it may be away, or have been given up."""
        world, readers = self.world, self.readers
        if member.address not in self.busy:
            self.busy.add(member.address)
            for_ns = readers.choice([0, 0, 10 * MS_NS, 300 * MS_NS, 2 * self.away_ns])
            world.agenda.at(world.now + for_ns, self._take, (client, member))
            if readers.random() < 0.2:  # and its client vanishes until others have the work
                client.disconnect()
                world.agenda.at(world.now + 3 * self.away_ns, self._come_back, client)

    def _come_back(self, client: ClientHost) -> None:
        if client.connection is None and not client.left and not client.replaced:
            client.attach()

    def _take(self, given: tuple[ClientHost, Membership]) -> None:
        client, member = given
        self.busy.remove(member.address)
        if not client.replaced and client.take(member) and member.held:
            self._read_late(client, member)

    def _work(self, client: ClientHost, member: Membership, work: Work) -> None:
        for_ns = self.random.choice([0, 0, 10, 300, 5_000]) * MS_NS
        self.world.agenda.at(self.world.now + for_ns, self._be_done, (client, member, work))

    def _be_done(self, given: tuple[ClientHost, Membership, Work]) -> None:
        client, member, work = given
        client.done(member, work.number)

    def _burst_of_work(self, group: tuple[str, Filter]) -> None:
        """A publisher publishes much at once that a queue group wants."""
        random, (_, wanted) = self.crowds, group
        client = self._latest(random.choice(self.clients))
        if wanted not in client.core.advertisements:
            client.advertise(wanted)
        for attributes in [self.draw(random) for _ in range(random.choice([30, 100]))]:
            if wanted.matches(attributes):
                client.publish(attributes)
