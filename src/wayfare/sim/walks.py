"""Random runs of clients that follow their location, and what they have to get.

A client walks over a random map, from location to location and from broker to broker, mostly by the
movement graph, sometimes to anywhere. Publishers say something of a location now and then. `stays` judges
what they got there; when everybody has left, nothing may be left of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from random import Random

import msgspec

from wayfare.core.border import OVERTAKEN
from wayfare.core.broker import ALL_RELOCATIONS
from wayfare.core.changes import Changes
from wayfare.core.client import ACK_DELAY_NS
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.home import Home
from wayfare.core.messages import Area, BrokerId, Nullify, State, Terms
from wayfare.core.places import EVERYWHERE, Place, Places
from wayfare.core.predicates import Value
from wayfare.core.relocation import EXCEED, Naive
from wayfare.core.replicator import NO_STREAM, NOT_ANSWERED
from wayfare.core.virtual import Ahead, Learning
from wayfare.eventlog import Event
from wayfare.sim import topology
from wayfare.sim.faults import Faults, Stall
from wayfare.sim.histories import Span, histories
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.movement import Plan, Stay, failed_attempts, play
from wayfare.sim.oracle import check_deliveries
from wayfare.sim.ownership import Watch
from wayfare.sim.quiet import check_quiet, ghosts
from wayfare.sim.reach import reach
from wayfare.sim.stays import Areas, Judge
from wayfare.sim.verdict import Verdict, Violation
from wayfare.sim.world import World

TEMPLATES = (
    "location in myloc",
    "location in myloc and level >= my.need",
    "location in myloc and topic = 'parking'",
    "location in myloc and topic = 'fuel' or topic = 'flood' and location in myloc",
    "near(myloc, 1500)",
)
ORDINARY = ("topic = 'fuel' and level > 6", "level = 3", "topic = 'parking'")
STEPS = 20  # of one walker
TOPICS = ("parking", "fuel", "flood")
# Of clients that declare how their state changes.
CONTEXT = (
    "level >= my.need",
    "level = my.need",
    "topic = my.topic and level < my.need",
    "location in myloc and topic = my.topic",
)


FEW_UNITS = (1, 20, 100, 500)


def in_slices(limits: Limits, seed: int) -> Limits:
    """What one event may do: now and then so little that most is put off, or not done."""
    random = Random(f"slices {seed}")  # of its own, so that the rest is as without it
    if random.random() >= 0.2:
        return limits
    return msgspec.structs.replace(limits, slice_units=random.choice(FEW_UNITS), long_text=1)


class Walks:
    """One random run in the making."""

    def __init__(
        self,
        seed: int,
        routing: str = "covering",
        relocation: str = "handoff",
        *,
        faults: bool = False,
        learns: bool = False,
    ) -> None:
        self.seed, self.learns = seed, learns
        self.random = random = Random(f"walks {seed}")
        self.faults = faults
        self.tiny = Random(f"tiny {seed}")  # of its own, so that the rest is as without it
        self.small = self.tiny.random() < 0.25  # limits, so that something is lost
        self.flow = Random(f"bursts {seed}")  # likewise
        self.congested = self.flow.random() < 0.1  # now and then: bursts, and walkers do not read
        names = topology.random_tree(random, random.choice([1, 2, 3, random.randint(4, 14)]))
        self.brokers = sorted({end for edge in names for end in edge}) or ["b0"]
        self.places = self._map()
        self.until_ns = random.choice([2, 10, 30]) * SECOND_NS
        self.world = World(
            seed,
            routing,
            limits=self._limits(),
            relocation=relocation,
            ahead=self._ahead(relocation),
            direct_link=LinkSpec(
                latency_ns=random.choice([1, 10, 60]) * MS_NS,
                jitter_ns=random.choice([0, 0, 40]) * MS_NS,
                loss=random.choice([0.0, 0.1, 0.5]) if faults else 0.0,
            ),
        )
        self.plan = Plan()
        self.world.forecast = self.plan.forecast(self.world)
        self.world.add_brokers(names)
        self._shape_links()
        self.world.measure_links()
        self.areas: dict[str, Areas] = {}
        self.required: Counter[str] = Counter()  # how many deliveries, by the judge's rule
        self.confirms = Random(f"confirms {seed}")  # of its own, so that the rest is as without it
        self.lifetimes = Random(f"lifetimes {seed}")  # likewise
        self.perishing = self.lifetimes.random() < 0.2  # some publications expire
        self.declares = Random(f"declares {seed}")  # likewise
        self.declared = self._changes()
        self.relevance = Random(f"relevance {seed}")  # likewise
        self.relevant = self.relevance.random() < 0.3  # some notices are of use somewhere only
        self.publishers = [self._publisher(i) for i in range(random.randint(1, 3))]
        self.walkers = [self._walker(i) for i in range(random.randint(1, 4))]
        for _ in range(random.choice([20, 60, 120])):
            self.world.agenda.at(random.randrange(self.until_ns), self._publish, None)
        if faults:
            edges, clients = self.world.edges, [one.name for one in self.walkers]
            plan = Faults.random(random, self.brokers, edges, clients, self.until_ns)
            self.world.plan(plan)
            self.world.plan(self._stalls(Random(f"stalls {seed}")))
        # Of their own, so that the rest is as without them.
        self.watch = Watch(self.world, Random(f"watch {seed}"))
        self.attempts = Random(f"attempts {seed}")
        for i in range(self.confirms.choice([0, 1, 3])):
            self.world.agenda.at(self.confirms.randrange(self.until_ns), self._begin_to_publish, i)
        if self.attempts.random() < 0.5:
            for _ in range(self.attempts.choice([1, 4])):
                at_ns = self.attempts.randrange(self.until_ns)
                self.world.agenda.at(at_ns, self._attempt_in_vain)
        self.follows = Random(f"follows {seed}")  # likewise
        self._plan(self.follows, [2, 6, 20], self._follow_something_else)
        self.subscribes = Random(f"subscribes {seed}")  # likewise
        self._plan(self.subscribes, [2, 6, 20], self._subscribe_to_something_else)
        self._plan_on_arrival(self.subscribes, self._subscribe_to_something_else)
        self.replays = Random(f"replays {seed}")  # likewise
        self.nullifies = Random(f"nullifies {seed}")  # likewise
        self._plan(self.replays, [2, 6, 20], self._limit_replay)
        self.speaks = Random(f"speaks {seed}")  # likewise
        self._plan(self.speaks, [5, 20, 60], self._speak)
        self.relocates = Random(f"relocates {seed}")  # likewise
        self._plan(self.relocates, [1, 4, 10], self._move_a_publisher)
        if self.declared:
            for _ in range(self.declares.choice([10, 40, 120])):
                at_ns = self.declares.randrange(self.until_ns)
                self.world.agenda.at(at_ns, self._change_a_value)
        self.lives = Random(f"lives {seed}")  # likewise
        self._plan(self.lives, [1, 4, 10], self._end_a_life)
        for _ in range(self.flow.choice([1, 3, 5]) if self.congested else 0):
            self.world.agenda.at(self.flow.randrange(self.until_ns), self._burst)
            self.world.agenda.at(self.flow.randrange(self.until_ns), self._stop_reading)
        self.visits = Random(f"visits {seed}")  # likewise
        if self.visits.random() < 0.3:
            for _ in range(self.visits.choice([4, 10])):
                self.world.agenda.at(self.visits.randrange(self.until_ns), self._visit, None)

    # Making it up

    def _map(self) -> Places:
        random = self.random
        names = [
            (f"{broker}.{i}", broker)
            for broker in self.brokers
            for i in range(random.choice([1, 1, 2, 3]))
        ]
        near: dict[str, set[str]] = {name: set() for name, _ in names}
        for at, (name, _) in enumerate(names):  # connected, and some more
            for other in [names[random.randrange(at)][0]] if at else []:
                near[name].add(other)
                near[other].add(name)
        for _ in range(random.randint(0, len(names))):
            a, b = random.choice(names)[0], random.choice(names)[0]
            if a != b:
                near[a].add(b)
        return Places(
            {
                name: Place(
                    tuple(sorted(near[name])),
                    broker,
                    (random.uniform(0, 0.05), random.uniform(0, 0.05)),
                )
                for name, broker in names
            }
        )

    def _limits(self) -> Limits:
        random = self.random
        limits = Limits(
            answer_ns=3600 * SECOND_NS if not self.faults else random.choice([1, 3600]) * SECOND_NS,
            lease_ns=random.choice([1, 10, 60]) * SECOND_NS,
            buffer_count=random.choice([3, 1_000]),
            buffer_age_ns=random.choice([1, 3600]) * SECOND_NS,
            window=random.choice([2, 16, 256]),
        )
        if self.small:
            limits = msgspec.structs.replace(limits, backlog_count=self.tiny.randint(1, 5))
        if self.congested:
            count, window = self.flow.choice([1, 4, 10]), self.flow.choice([16, 64])
            limits = msgspec.structs.replace(limits, backlog_count=count, window=window)
        remembers = Random(
            f"remembers {self.seed}"
        )  # of its own, so that the rest is as without it
        limits = msgspec.structs.replace(limits, past_count=remembers.choice([0, 5, 1_000, 1_000]))
        return in_slices(limits, self.seed)

    def _ahead(self, relocation: str) -> Ahead:
        random, everybody = self.random, [BrokerId(one) for one in self.brokers]
        chosen = {
            one: random.sample(everybody, random.randint(0, len(everybody))) for one in everybody
        }
        nlb = random.choice(
            [
                self.places.next_brokers,
                self.places.next_brokers,
                lambda _broker: (),
                lambda _broker: everybody,
                chosen.__getitem__,
            ]
        )
        if relocation == Home.name:
            nlb = lambda _broker: ()  # noqa: E731
        steps = random.choice([0, EVERYWHERE, None, None])
        dwell_ns = random.choice([20, 200, 2000]) * MS_NS
        hop_ns = random.choice([5, 20]) * MS_NS
        if self.learns and relocation != Home.name:
            coverage = Random(f"learns {self.seed}").choice([0.5, 0.9, 0.99])
            return Ahead(self.places, nlb, steps, learning=Learning(coverage))
        return Ahead(self.places, nlb, steps, dwell_ns, hop_ns)

    def _shape_links(self) -> None:
        for a, b in self.world.edges:
            spec = LinkSpec(latency_ns=self.random.randint(1, 30) * MS_NS)
            for pipe in self.world.link(a, b):
                pipe.shape(spec)

    def _publisher(self, i: int) -> ClientHost:
        client = self.world.add_client(f"p{i}", self.random.choice(self.brokers))
        self.plan.add(client.name, client.home, [Stay(client.home, 0)])
        client.advertise("exists location")
        return client

    def _walker(self, i: int) -> ClientHost:
        random, name = self.random, f"w{i}"
        self.areas[name] = self._areas()
        at = random.choice(list(self.places.places))
        walker = self.world.add_client(
            name, self.places.places[at].broker or "", attach=False, changes=self.declared
        )
        values: dict[str, Value] = {"need": random.randint(0, 9)}
        if self.declared:
            values["topic"] = self.declares.choice(TOPICS)
        walker.be(self._state(name, at, values))
        for text in random.sample(TEMPLATES, random.choice([1, 1, 2])):
            walker.follow(text)
        if self.declared:
            walker.follow(self.declares.choice(CONTEXT))
        if random.random() < 0.4:
            walker.subscribe(random.choice(ORDINARY))
            if self.confirms.random() < 0.5:
                walker.confirm()
        walker.attach()
        self._walk(walker, at)
        return walker

    def _changes(self) -> Changes:
        """How values change, in a third of the runs."""
        if self.declares.random() < 0.66:
            return {}
        return {"need": self.declares.choice([0.5, 1, 3]), "topic": TOPICS}

    def _areas(self) -> Areas:
        random, names = self.random, list(self.places.places)
        if random.random() < 0.6:
            return {}
        return {
            name: tuple(dict.fromkeys([name, *random.sample(names, min(2, len(names)))]))
            for name in names
        }

    def _state(self, client: str, location: str, values: dict[str, Value]) -> State:
        place = self.places.places[location]
        return State(location, place.position, values, dict(self.areas[client]))

    def _walk(self, walker: ClientHost, at: str) -> None:
        """Where it goes when; with its location known before it attaches, or a while after."""
        random, world = self.random, self.world
        now = 0
        stays = [Stay(walker.home, now)]
        self.plan.add(walker.name, walker.home, stays)
        dwell = random.choice([20, 200, 2000]) * MS_NS
        values: dict[str, Value] = dict(walker.core.following.state.values)
        for _ in range(STEPS):
            now += random.randint(dwell // 10, 2 * dwell)
            if now > self.until_ns:
                break
            steps = self.places.places[at].next
            there = random.choice(steps) if steps and random.random() < 0.9 else at
            if random.random() < 0.1:
                there = random.choice(list(self.places.places))
            if random.random() < 0.1:
                values = {"need": random.randint(0, 9)}
            state = self._state(walker.name, there, values)
            broker = self.places.places[there].broker
            if broker == self.places.places[at].broker:
                world.agenda.at(now, self._be, (walker.name, state))
            else:
                away = random.choice([0, 50, 1500]) * MS_NS
                world.agenda.at(now, self._go, walker)
                late = random.choice([0, 0, 30]) * MS_NS
                if not late:
                    world.agenda.at(now + away, self._be, (walker.name, state))
                world.agenda.at(now + away, self._come, (walker.name, broker))
                now += away
                stays.append(Stay(broker or "", now))
                if late:
                    world.agenda.at(now + late, self._be, (walker.name, state))
                    now += late
            at = there

    def _change_a_value(self, _: None) -> None:
        """A value of a walker changes as it is declared, or for once otherwise."""
        random = self.declares
        walker = self._latest(random.choice(self.walkers))
        state = walker.core.following.state
        values = dict(state.values)
        if random.random() < 0.3:
            at = TOPICS.index(str(values["topic"])) + random.choice([-1, 1])
            values["topic"] = TOPICS[min(max(at, 0), len(TOPICS) - 1)]
        elif random.random() < 0.9:
            step = self.declared["need"]
            assert isinstance(step, int | float)
            values["need"] = float(values["need"]) + random.choice([-step, step])
        else:
            values["need"] = random.randint(0, 9)
        walker.be(msgspec.structs.replace(state, values=values))

    def _latest(self, walker: ClientHost) -> ClientHost:
        """The process that has the walker's name now."""
        return self.world.clients[walker.name]

    def _be(self, given: tuple[str, State]) -> None:
        name, state = given
        walker = self.world.clients[name]
        if self.declared:  # its values change at times of their own
            state = msgspec.structs.replace(state, values=walker.core.following.state.values)
        walker.be(state)

    def _come(self, given: tuple[str, str]) -> None:
        name, broker = given
        self.world.clients[name].attach(broker)

    def _go(self, walker: ClientHost) -> None:
        walker = self._latest(walker)
        if self.random.random() < 0.5:
            walker.detach()
        else:
            walker.disconnect(late=self.random.random() < 0.5)

    def _publish(self, _: None) -> None:
        attributes = self._notice(self.random)
        publisher = self.random.choice(self.publishers)
        publisher.publish(attributes, expires_ns=self._lifetime_ns(), area=self._area(attributes))

    def _lifetime_ns(self) -> int:
        """For how long a publication is of use; 0: for ever."""
        if not self.perishing or self.lifetimes.random() < 0.5:
            return 0
        return self.lifetimes.choice([1, 30, 300, 5_000]) * MS_NS

    def _visit(self, _: object) -> None:
        """A walker goes to any other broker without changing its location, of which something is said meanwhile.

        Its last broker has that, and nobody else: it has to be asked, perhaps again.
        """
        random = self.visits
        walker = self._latest(random.choice(self.walkers))
        if random.random() < 0.5:
            walker.detach()
        else:
            walker.disconnect(late=random.random() < 0.5)
        for _ in range(random.choice([1, 1, 3, 20])):
            notice = self._notice(random)
            notice["location"] = walker.core.following.state.location
            random.choice(self.publishers).publish(notice, expires_ns=self._lifetime_ns())
        at_ns, there = (
            self.world.now + random.choice([50, 500, 1500]) * MS_NS,
            random.choice(self.brokers),
        )
        self.world.agenda.at(at_ns, self._come, (walker.name, there))
        if (
            random.random() < 0.3
        ):  # the connection breaks before the answer is there, or shortly after
            at_ns += random.choice([3, 10, 100]) * MS_NS
            self.world.agenda.at(at_ns, self._go_silently, walker)
            self.world.agenda.at(
                at_ns + random.choice([1, 50]) * MS_NS, self._come, (walker.name, there)
            )

    def _go_silently(self, walker: ClientHost) -> None:
        self._latest(walker).disconnect()

    def _burst(self, _: None) -> None:
        """A publisher says much at once, of where a walker is."""
        random = self.flow
        walker, publisher = (
            self._latest(random.choice(self.walkers)),
            random.choice(self.publishers),
        )
        for notice in [self._notice(random) for _ in range(random.choice([10, 30, 100]))]:
            notice["location"] = walker.core.following.state.location
            publisher.publish(notice)

    def _stop_reading(self, _: None) -> None:
        """An application does not read for a while, mostly not longer than publishers wait for it."""
        for_ns = self.flow.choice([100, 300, 300, 1_000, 1_000, 3_000, 30_000]) * MS_NS
        self._latest(self.flow.choice(self.walkers)).stop_reading(for_ns)

    def _begin_to_publish(self, i: int) -> None:
        """A publisher comes, and publishes before anybody has heard of its advertisement."""
        random = self.confirms
        client = self.world.add_client(f"q{i}", random.choice(self.brokers))
        client.advertise("exists location")
        for _ in range(random.choice([1, 3])):
            notice = self._notice(random)
            client.publish(notice, area=self._area(notice))
        if random.random() < 0.3 and not self.faults:  # a goodbye may be lost
            client.detach(leave=True)

    def _notice(self, random: Random) -> dict[str, Value]:
        name = random.choice(list(self.places.places))
        attributes: dict[str, Value] = {
            "location": name,
            "topic": random.choice(TOPICS),
            "level": random.randint(0, 9),
        }
        position = self.places.places[name].position
        if position is not None and random.random() < 0.5:
            attributes["lat"], attributes["lon"] = position
        return attributes

    def _area(self, notice: dict[str, Value]) -> Area | None:
        """Where a notice is of use: mostly about where it speaks of. None: everywhere."""
        random = self.relevance
        if not self.relevant or random.random() < 0.4:
            return None
        names, there = list(self.places.places), str(notice["location"])
        around = there if there and random.random() < 0.7 else random.choice(names)
        if random.random() < 0.6:
            others = random.sample(names, k=min(random.choice([0, 1, 3]), len(names)))
            return Area(tuple(dict.fromkeys([around, *others])))
        position = self.places.places[around].position
        assert position is not None
        return Area((), (*position, random.choice([0.0, 800.0, 3_000.0])))

    def _stalls(self, random: Random) -> Faults:
        """Now and then one broker is stopped for a while."""
        if random.random() < 0.7:
            return Faults()
        at_ns, for_ns = random.randrange(self.until_ns), random.choice([1, 10]) * 100 * MS_NS
        return Faults(stalls=(Stall(random.choice(self.brokers), at_ns, for_ns),))

    def _attempt_in_vain(self, _: None) -> None:
        """A walker attaches several times before any broker has greeted it, and then where it is."""
        random = self.attempts
        walker = self._latest(random.choice(self.walkers))
        here = self.places.places[walker.core.following.state.location].broker or ""
        others = random.sample(self.brokers, k=min(2, len(self.brokers)))
        stays = failed_attempts(random, [here, *others], self.world.now)
        play(self.world, walker.name, [*stays[:-1], Stay(here, stays[-1].from_ns)])

    def _plan(self, random: Random, how_often: list[int], act: Callable[[None], None]) -> None:
        """In half of the runs, do this at random times, as often as one of the numbers says."""
        if random.random() < 0.5:
            for _ in range(random.choice(how_often)):
                self.world.agenda.at(random.randrange(self.until_ns), act)

    def _follow_something_else(self, _: None) -> None:
        """A walker follows one more, perhaps again, or one less, perhaps the last one."""
        random = self.follows
        walker = self._latest(random.choice(self.walkers))
        followed = list(walker.core.following.counts)
        if followed and random.random() < 0.5:
            walker.unfollow(random.choice(followed))
        else:
            walker.follow(random.choice(TEMPLATES))

    def _plan_on_arrival(self, random: Random, act: Callable[[None], None]) -> None:
        """In a third of the runs, do this while somebody's session may still be on its way."""
        if random.random() < 0.66:
            return

        def on_event(event: Event) -> None:
            if event.kind == "attached" and random.random() < 0.3:
                later = self.world.now + random.choice([0, 5, 50, 500]) * MS_NS
                if later < self.until_ns:
                    self.world.agenda.at(later, act)

        self.world.listeners.append(on_event)

    def _subscribe_to_something_else(self, _: None) -> None:
        """A walker makes an ordinary subscription, perhaps again, or withdraws one."""
        random = self.subscribes
        walker = self._latest(random.choice(self.walkers))
        held = list(walker.core.subscriptions)
        if held and random.random() < 0.5:
            walker.unsubscribe(random.choice(held))
        else:
            walker.subscribe(random.choice(ORDINARY))

    def _nullifying_terms(self) -> dict[str, object]:
        """Keys of several attributes, and notices that nullify others."""
        same = self.nullifies.choice([(), ("topic",), ("topic", "location")])
        nullify = Nullify(Filter.parse(f"topic = '{self.nullifies.choice(TOPICS)}'"), same)
        return {
            "key": self.nullifies.choice([None, ("topic", "location")]),
            "nullify": self.nullifies.choice([None, nullify, nullify]),
        }

    def _limit_replay(self, _: None) -> None:
        """A walker follows, or subscribes to, something and wants only some of what it missed; or all again."""
        random = self.replays
        walker = self._latest(random.choice(self.walkers))
        last, younger = random.choice([None, 0, 1, 3]), random.choice([None, 0, 50, 500])
        key = random.choice([None, None, "topic", "location"])
        terms = Terms(last, None if younger is None else younger * MS_NS, key)
        if self.nullifies.random() < 0.25:
            terms = msgspec.structs.replace(terms, **self._nullifying_terms())
        wanted = None if terms == Terms() else terms
        if random.random() < 0.7:
            followed = [str(one) for one in walker.core.following.counts]
            walker.follow(random.choice(followed or TEMPLATES), wanted)
        else:
            walker.subscribe(random.choice(ORDINARY), wanted)

    def _speak(self, _: None) -> None:
        """A walker publishes something, mostly of where it is; it has advertised that now, or long ago."""
        random = self.speaks
        walker = self._latest(random.choice(self.walkers))
        if not walker.core.advertisements:
            walker.advertise("exists location")
        notice = self._notice(random)
        if random.random() < 0.7:
            notice["location"] = walker.core.following.state.location
        walker.publish(notice, area=self._area(notice))

    def _move_a_publisher(self, _: None) -> None:
        """A publisher goes to another broker, or comes back to its own."""
        random = self.relocates
        publisher = random.choice(self.publishers)
        if random.random() < 0.5:
            publisher.detach()
            later = self.world.now + random.choice([0, 50, 1500]) * MS_NS
            self.world.agenda.at(later, self._come, (publisher.name, random.choice(self.brokers)))
        else:
            publisher.attach(random.choice(self.brokers))

    def _end_a_life(self, _: None) -> None:
        """A walker leaves and returns, or another process begins under its name."""
        random = self.lives
        walker = self._latest(random.choice(self.walkers))
        here = self.places.places[walker.core.following.state.location].broker or ""
        if random.random() < 0.5:
            self._begin_anew(walker, here)
        elif not walker.core.anew:  # else its name is still that of the earlier process
            walker.detach(leave=True)
            later = self.world.now + random.choice([0, 5, 100, 2000]) * MS_NS
            if random.random() < 0.7 and later < self.until_ns:  # else when it next goes anywhere
                self.world.agenda.at(later, self._return, (walker.name, here))

    def _return(self, given: tuple[str, str]) -> None:
        if self.world.clients[given[0]].connection is None:
            self._come(given)

    def _begin_anew(self, walker: ClientHost, here: str) -> None:
        """It asks again for some of what the process before followed, and subscribed to."""
        random, state = self.lives, walker.core.following.state
        follows, filters = list(walker.core.following.counts), list(walker.core.subscriptions)
        old = self.world.begin_anew(walker.name, here)
        if random.random() < 0.4 or old.core.anew:  # nobody could tell that it is not the latest
            old.disconnect(late=random.random() < 0.5)
        elif random.random() < 0.5:  # it goes on, as if it were alone
            later = self.world.now + random.choice([5, 60, 1000]) * MS_NS
            self.world.agenda.at(later, self._move_on, old)
        new = self._latest(old)
        new.be(state)
        for template in follows:
            if random.random() < 0.8:
                new.follow(str(template))
        for filter in filters:
            if random.random() < 0.8:
                new.subscribe(filter)

    def _move_on(self, old: ClientHost) -> None:
        if not old.core.anew:
            old.attach(self.lives.choice(self.brokers))

    # Running

    def run(self) -> Verdict:
        world = self.world
        world.run_until(self.until_ns + 3 * SECOND_NS)
        for walker in map(self._latest, self.walkers):
            if walker.connection is None:
                walker.attach()
        world.settle()
        judge = Judge(world, self.places, self.areas)
        # Of losses of both kinds together, the oracle of one cannot say how many there may be.
        told = self.areas if self.small or self.congested else ()
        verdict = check_deliveries(judge.ordinary, reach(world), told, judge.followed)
        ordinary = [one for one in verdict.violations if one.rule not in self._unsupported()]
        if self._unsupported():
            ordinary += disorder_in_place(judge.ordinary, reach(world).client_ns)
        found = [*ordinary, *judge.violations(), *check_quiet(world)]
        found += [*ghosts(world), *self.watch.found, *self._unexpected_losses()]
        self.required = judge.required
        return msgspec.structs.replace(
            verdict,
            violations=tuple(found),
            delivered=sum(event.kind == "delivered" for event in world.events),
            required=verdict.required + judge.required.total(),
        )

    def _slow_readers(self) -> dict[str, int]:
        """Walkers that got something too late for their publishers to wait, and since when."""
        published = {
            (one.client, one.number): one.time_ns
            for one in self.world.events
            if one.kind == "published"
        }
        since: dict[str, int] = {}
        for event in self.world.events:
            if event.kind == "delivered":
                late = event.time_ns - published[event.publisher, event.number or 0]
                if late >= self.world.limits.slow_publishers_ns:
                    since.setdefault(event.client or "", event.time_ns)
        return since

    def _unsupported(self) -> tuple[str, ...]:
        """The promises of ordinary subscriptions that this relocation does not make to those that move.

        They get everything in order while they and the publisher stay where they are.
        """
        without = issubclass(ALL_RELOCATIONS[self.world.relocation], Naive)
        return ("complete", "once", "gap", "fifo") if without else ()

    def _unexpected_losses(self) -> Iterator[Violation]:
        """Where nothing goes wrong, nobody is told of a loss.

        But junction, which does not know what to look for, takes fright when a client is in a hurry; home cannot slow
        publishers that are elsewhere; and without support, its last broker has ended its session, and may wait for one of a publisher in vain.
        """
        if self.faults or self.world.relocation == "junction" or self._unsupported():
            return
        if self.congested and self.world.relocation == Home.name:
            return
        known, within = histories(self.world.events), reach(self.world)
        slow = self._slow_readers()
        # When the window is full, what was kept, with a gap before each, waits for acknowledgements.
        limits = self.world.limits
        windows = -(-2 * limits.backlog_count // limits.window)
        handing_ns = windows * (2 * within.client_ns + ACK_DELAY_NS)
        exceeding = set[str]()  # clients that had to exceed another process after their Welcome
        for event in self.world.events:
            if event.client and event.reason == EXCEED.format(event.client):
                exceeding.add(event.client)
            if event.kind != "lost":
                continue
            history = known[event.client or ""]
            *_, before, _ = [Span(0), *(s for s in history.attached if s.start <= event.time_ns)]
            # Of an attachment in vain, the client does not know whether a broker has heard: there was no time for a
            # Welcome. So the next broker cannot know what it lacks.
            in_vain = before.end - before.start < 2 * within.client_ns
            overflow = (event.reason or "").startswith("backlog_")
            # Who is here and reads loses nothing, whatever the limits are.
            spec = self.world.direct_link
            whole_ns = 2 * (within.client_ns + within.tree_ns + spec.latency_ns + spec.jitter_ns)
            # What was lost while it was away may be in the answer of its last broker, which may wait for one itself.
            while_away = event.time_ns <= history.settled(event.time_ns, whole_ns) + handing_ns
            overflow &= while_away or slow.get(event.client or "", inf) <= event.time_ns
            # What its broker followed for the former number is over, with what it kept meanwhile.
            again = event.client in exceeding and event.reason == NO_STREAM
            # A client that goes on before what was kept for it has come may be told of a loss that is none.
            # What a broker could not report, because the client had gone on, is reported when it comes back there.
            *earlier, here = [one for one in history.attached if one.start <= event.time_ns]
            recent = earlier[-3:] + [one for one in earlier if one.broker == here.broker][-1:]
            hurries = event.reason in (NO_STREAM, NOT_ANSWERED) and any(
                span.end - span.start < whole_ns for span in recent
            )
            # What a process published last may be on its way when the next one publishes, at another broker.
            anew = event.reason == OVERTAKEN and any(
                replaced <= event.time_ns for one in known.values() for replaced in one.replaced
            )
            if not (in_vain or overflow or again or hurries or anew):
                yield Violation("gap", f"{event.client} was told of a loss: {event.reason}")


def disorder_in_place(events: list[Event], client_ns: int) -> Iterator[Violation]:
    """What a client that stays at a broker got out of order from a publisher that stays at one, too.

    What was published just before a connection broke may go out again with the next one, and overtake the rest.
    """
    known = histories(events)

    def attachment(name: str, since: int, until: int) -> Span | None:
        return next((s for s in known[name].attached if s.start <= since and until <= s.end), None)

    last: dict[tuple[str, str, Span, Span], int] = {}
    for event in events:
        if event.kind != "delivered" or event.reason is not None:
            continue
        assert event.client and event.publisher and event.number
        publisher = known.get(event.publisher)
        source = publisher and publisher.published.get(event.number)
        if not source:
            continue  # the oracle says that nobody has published it
        there = attachment(event.publisher, source.time_ns, source.time_ns + 2 * client_ns)
        here = attachment(event.client, event.time_ns, event.time_ns)
        if there is None or here is None:
            continue
        key = event.client, event.publisher, here, there
        if event.number < last.get(key, 0):
            what = f"{event.client} got {event.publisher} {event.number} after {last[key]}"
            yield Violation("fifo", f"{what}, and neither had moved")
        last[key] = max(event.number, last.get(key, 0))
