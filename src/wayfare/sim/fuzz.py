"""Random runs: any tree, any clients, anything they may do, at any time; the oracle judges.

A run follows from its seed and the routing strategy, so a failure is a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from random import Random

import msgspec

from wayfare.core.border import OVERTAKEN
from wayfare.core.broker import ALL_RELOCATIONS, MEMORY, PUBLISHER_RELOCATIONS
from wayfare.core.effects import EXPIRED, Exceeded
from wayfare.core.filters import Filter
from wayfare.core.handoff import NO_ANSWER
from wayfare.core.history import FORGOTTEN_PAST, Limits
from wayfare.core.home import Home
from wayfare.core.messages import (
    PROFILE_CHARACTERS_MAX,
    SLOWS,
    Area,
    State,
    Terms,
)
from wayfare.core.predicates import Value
from wayfare.core.relocation import NO_SESSION, OUT_OF_STEP, ROUTES_LOST, Naive
from wayfare.core.reserved import mentions
from wayfare.sim import topology
from wayfare.sim.expiry import unexpired
from wayfare.sim.failover import Waits
from wayfare.sim.faults import Crash, Cut, Faults, Late, Rollback, Stall
from wayfare.sim.hosts import ClientHost
from wayfare.sim.links import MS_NS, SECOND_NS, LinkSpec
from wayfare.sim.migrations import Migrations
from wayfare.sim.movement import Plan, Stay, failed_attempts, play, random_walk
from wayfare.sim.oracle import check
from wayfare.sim.ownership import Watch
from wayfare.sim.quiet import check_outlived
from wayfare.sim.random_actions import (
    RandomGroups,
    RandomRequests,
    RandomRetention,
    draw_will,
)
from wayfare.sim.reach import reach
from wayfare.sim.remembered import Asked, check_remembered
from wayfare.sim.sharing import unexpected_losses
from wayfare.sim.verdict import Verdict, Violation
from wayfare.sim.walks import Walks, in_slices
from wayfare.sim.wills import evicted_at
from wayfare.sim.world import CLIENT_LINK, World

TOPICS = ("gas", "oil", "wind")
NAMES = ("a", "ab", "abc", "b", "ba")
SLOW_CLIENT_LINK = LinkSpec(latency_ns=30 * MS_NS, jitter_ns=50 * MS_NS)
EVERYTHING = 100_000  # notifications: more than any run has
SITES = {"here": (0.0, 0.0), "there": (0.0, 0.01), "far": (0.1, 0.0)}  # and where on earth
HIGHEST = 12  # numbers are drawn from 0 to this
# Of brokers that are suspended for twice as long: longer than all hand-offs of a client in a row.
SUSPENDED_ANSWER_NS = 1_000_000 * MS_NS
NEVER = PROFILE_CHARACTERS_MAX + 1  # are filters so long that a digest is sent


class Job(msgspec.Struct, frozen=True):
    """Which random run."""

    seed: int
    routing: str = "covering"
    relocation: str = "handoff"
    faults: bool = False
    mobile: str = "subscribers"  # both: those that move publish, too; see walks.py, migrations.py
    rollbacks: bool = False  # brokers go back to an old copy of their store

    def command(self) -> str:
        """What runs it."""
        mobile = "" if self.mobile == "subscribers" else f" --mobile {self.mobile}"
        faults = " --faults" if self.faults else ""
        faults += " --rollbacks" if self.rollbacks else ""
        return (
            f"wayfare sim fuzz --seeds 1 --first-seed {self.seed} --routing {self.routing}"
            f" --relocation {self.relocation}{mobile}{faults}"
        )


MOBILE = ("subscribers", "both", "walkers", "learners", "service")
ROLLED_BACK = ("subscribers", "both")  # where brokers may get an old copy of their store


class Run(msgspec.Struct, frozen=True):
    """A random run and what came of it."""

    job: Job
    brokers: int
    clients: int
    messages: int
    verdict: Verdict


def random_predicate(random: Random) -> str:
    n, m = sorted((random.randint(0, HIGHEST), random.randint(0, HIGHEST)))
    return random.choice(
        [
            f"topic = '{random.choice(TOPICS)}'",
            f"topic in ('{random.choice(TOPICS)}', '{random.choice(TOPICS)}')",
            f"topic <> '{random.choice(TOPICS)}'",
            f"price > {n}",
            f"price <= {m}",
            f"price between {n} and {m}",
            f"price = {n}",
            f"name prefix '{random.choice(NAMES)}'",
            f"name like '%{random.choice(NAMES)}_'",
            "exists name",
            "name is null",
            f"near({random.randint(-2, 2)}, {random.randint(-2, 2)}, {random.choice([50, 200])}000)",
        ]
    )


def random_filter(random: Random) -> Filter:
    """Few words, so that filters often equal, cover, overlap and merge."""

    def conjunction() -> str:
        return " and ".join(random_predicate(random) for _ in range(random.choice([1, 1, 2, 3])))

    return Filter.parse(" or ".join(conjunction() for _ in range(random.choice([1, 1, 1, 2]))))


def random_attributes(random: Random) -> dict[str, Value]:
    attributes: dict[str, Value] = {}
    if random.random() < 0.9:
        attributes["topic"] = random.choice(TOPICS)
    if random.random() < 0.9:
        attributes["price"] = random.randint(0, HIGHEST) + random.choice([0, 0, 0.5])
    if random.random() < 0.5:
        attributes["name"] = random.choice(NAMES)
    if random.random() < 0.3:
        attributes["lat"], attributes["lon"] = random.uniform(-2, 2), random.uniform(-2, 2)
    return attributes


def random_terms(random: Random) -> Terms | None:
    """Mostly none."""
    if random.random() < 0.85:
        return None
    return Terms(
        last=random.choice([None, random.randint(0, 3)]),
        younger_ns=random.choice([None, random.randint(0, 500) * MS_NS]),
        key=random.choice([None, "topic", "name"]),
        local=random.random() < 0.3,
    )


class Fuzz:
    """One random run in the making."""

    def __init__(self, job: Job) -> None:
        # The same run under every strategy: what clients do follows from the seed alone.
        self.random = random = Random(job.seed)
        self.past = Random(-1 - job.seed)  # of its own, so that the rest is as without it
        self.remembering = self.past.random() < 0.2
        self.pasts = Random(f"pasts {job.seed}")  # likewise
        # Mostly all brokers remember equally little. Else some remember nothing, or everything; or all remember everything.
        self.remembers = self.pasts.choice(["little", "various", "all", "all"])
        self.asked: list[Asked] = []
        self.required_past = 0  # publications of the past that had to come
        self.lives = Random(f"lives {job.seed}")  # likewise
        self.interest = Random(f"interest {job.seed}")  # likewise
        self.attempts = Random(f"attempts {job.seed}")  # likewise
        self.losses = Random(f"losses {job.seed}")  # likewise
        self.confirms = Random(f"confirms {job.seed}")  # likewise
        self.expiry = Random(f"expiry {job.seed}")  # likewise
        # After an expiry, home reports the loss before the subscriptions are in effect again.
        self.expiring = self.expiry.random() < 0.25 and job.relocation != Home.name
        self.crowded = self.expiring and self.expiry.random() < 0.4
        self.wills = Random(f"wills {job.seed}")  # likewise
        values = Random(f"values {job.seed}")  # likewise
        share = values.choice([0.0, 0.2, 0.6])
        self.retention = RandomRetention(values, share, ("topic", "name"))
        self.clocks = Random(f"clocks {job.seed}")
        self.lifetimes = Random(f"lifetimes {job.seed}")  # likewise
        self.perishing = self.lifetimes.random() < 0.3  # some publications expire
        self.relevance = Random(f"relevance {job.seed}")  # likewise
        self.relevant = self.relevance.random() < 0.2  # some publications are of use somewhere only
        self.flow = Random(f"flow {job.seed}")  # likewise
        # Now and then: bursts, and readers that do not read.
        self.congested = self.flow.random() < 0.3
        self.watching = self.interest.random() < 0.5
        self.pressure = Random(f"memory {job.seed}")  # likewise
        self.short = self.pressure.random() < 0.25  # of memory, now and then
        self.with_faults = job.faults
        self.rolled_back = job.rollbacks
        # Now and then all brokers are suspended together, and nothing else goes wrong: no time-out of
        # any of them is then a reason to lose anything.
        self.stalls = Random(f"stalls {job.seed}")  # likewise
        self.suspended = job.faults and self.stalls.random() < 0.2
        # Or a broker is down for long, its clients fail over, and nothing else goes wrong.
        self.failovers = Random(f"failovers {job.seed}")  # likewise
        self.lateness = Random(f"lateness {job.seed}")  # likewise
        self.failing = (
            job.faults and self.failovers.random() < 0.3 and not (self.suspended or self.expiring)
        )
        self.world = World(
            job.seed,
            job.routing,
            limits=msgspec.structs.replace(
                in_slices(self._limits_of_backlogs(), job.seed),
                past_count=self._past_count(),
                recall_ns=self._recall_ns(job),
                sessions=self.expiry.choice([1, 2, 4]) if self.crowded else Limits().sessions,
            ),
            relocation=job.relocation,
            digest_from=random.choice([0, 20, NEVER, NEVER]),
            client_link=random.choice([CLIENT_LINK, CLIENT_LINK, SLOW_CLIENT_LINK]),
        )
        size = random.choice([1, 2, 3, random.randint(4, 12), random.randint(4, 30)])
        if random.random() < 0.03:
            size = random.randint(31, 100)
        self.watch = Watch(self.world, Random(f"watch {job.seed}"))
        self.plan = Plan()
        self.world.forecast = self.plan.forecast(self.world)
        edges = topology.random_tree(random, size)
        self.late_brokers = Random(f"late brokers {job.seed}")  # likewise
        hop_ns = size * 60 * MS_NS
        late = self._late(edges, hop_ns)
        self.is_late = bool(late)
        self.world.add_brokers(edges, own=self._own_limits(edges), late=late)
        self._shape_links()
        self.until_ns = random.choice([hop_ns, 3 * hop_ns, 10 * hop_ns, 300_000 * MS_NS])
        self.brokers = brokers = list(self.world.brokers)
        self.waits = Waits(self.world, 4 * hop_ns + 1000 * MS_NS)
        most = 70 if random.random() < 0.05 else 10
        self.clients = [
            self.world.add_client(
                f"c{i}",
                random.choice(brokers),
                attach=False,
                expires_ns=self._expires_ns(),
                failover_ns=self.failovers.choice([0, 500, 2000]) * MS_NS,
                late=self.lateness.random() < 0.5,
            )
            for i in range(random.randint(2, most))
        ]
        self.movers = {one.name for one in self.clients if random.random() < 0.6}
        self._make_wills(job)
        if self.relevant:
            self._place_clients()
        publishers = self.clients
        if job.mobile == "subscribers":  # who moves only subscribes, who stays may do everything
            publishers = [one for one in publishers if one.name not in self.movers]
        self.publishers = publishers[:20]
        for client in self.clients:
            stays = self._stays(client)
            self.plan.add(client.name, stays[0].broker, stays)
            play(self.world, client.name, stays)
            if job.mobile == "both" and client in self.publishers:
                self._publish_on_arrival(client, stays)
        if self.lives.random() < 0.3:
            for _ in range(self.lives.choice([1, 3])):
                self.world.agenda.at(self.lives.randrange(self.until_ns), self._begin_anew)
        if self.short:
            for _ in range(self.pressure.choice([1, 3, 10])):
                self.world.agenda.at(self.pressure.randrange(self.until_ns), self._run_short)
        names = [one.name for one in self.publishers]
        requests = Random(f"requests {job.seed}")  # likewise
        if requests.random() < 0.3:
            movers = self.movers
            RandomRequests(self.world, requests, names, movers, random_attributes).plan(
                self.until_ns
            )
        if self.congested:
            for _ in range(self.flow.choice([1, 3, 5])):
                self.world.agenda.at(self.flow.randrange(self.until_ns), self._burst)
                self.world.agenda.at(self.flow.randrange(self.until_ns), self._stop_reading)
        self.groups = RandomGroups(self.world, job.seed, names, random_attributes, random_filter)
        shares = self.groups.are_drawn(0.25, congested=self.congested)
        # Where nobody advertises, a broker does not know whether it knows all others, and a second coordinator may begin.
        shares &= not (self.is_late and job.routing == "flooding")
        if shares and self.publishers:
            self.groups.plan(self.until_ns, congested=self.congested, suspended=self.suspended)
        if job.faults:
            names = [client.name for client in self.clients]
            edges = self.world.edges
            faults = Faults.random(random, brokers, edges, names, self.until_ns)
            self.world.plan(self._failing() if self.failing else self._with_stalls(faults, brokers))
        if job.rollbacks:
            self._plan_rollbacks(Random(f"rollbacks {job.seed}"))
        if self.attempts.random() < 0.5:
            for _ in range(self.attempts.choice([1, 4, 10])):
                self._attempt_in_vain()

    def _late(self, edges: Sequence[tuple[str, str]], hop_ns: int) -> dict[str, Late]:
        """Now and then some brokers start late, and their links begin even later.

        Not where a store is rolled back or lost: what a broker takes before its first link and then forgets, nobody knows of.
        """
        random = self.late_brokers
        names = list(dict.fromkeys(end for edge in edges for end in edge))
        excused = self.rolled_back or self.suspended or self.failing
        if random.random() < 0.7 or excused or not names:
            return {}
        return {
            name: Late(
                random.choice([0, 5 * MS_NS, hop_ns // 2, 3 * hop_ns]),
                random.choice([0, 5 * MS_NS, 100 * MS_NS, 2 * hop_ns]),
            )
            for name in random.sample(names, k=random.randint(1, min(len(names), 5)))
        }

    def _past_count(self) -> int:
        little = self.past.choice([5, 50]) if self.remembering else 0
        return EVERYTHING if little and self.remembers == "all" else little

    def _recall_ns(self, job: Job) -> int:
        """How long sessions wait for the past; where nothing goes wrong, all replies come."""
        usual = Limits().recall_ns
        if not self.remembering or self.remembers == "little":
            return usual
        return self.pasts.choice([usual, 300 * MS_NS]) if job.faults else 3600 * 1000 * MS_NS

    def _own_limits(self, edges: Sequence[tuple[str, str]]) -> dict[str, Limits]:
        """How much each broker remembers."""
        if not self.remembering or self.remembers != "various":
            return {}
        limits, counts = self.world.limits, [0, 5, 50, EVERYTHING]
        return {
            name: msgspec.structs.replace(limits, past_count=self.pasts.choice(counts))
            for name in dict.fromkeys(end for edge in edges for end in edge)
        }

    def _plan_rollbacks(self, random: Random) -> None:
        """The stores of one or two brokers go back to a copy; that of a third one may be lost."""
        rollbacks = []
        for broker in random.sample(self.brokers, k=min(random.randint(1, 2), len(self.brokers))):
            copied, at_ns = sorted(random.randrange(self.until_ns) for _ in range(2))
            rollbacks.append(Rollback(broker, copied, at_ns, random.choice([10, 1000]) * MS_NS))
        if self.losses.random() < 0.25:
            at_ns = self.losses.randrange(self.until_ns)
            rollbacks.append(Rollback(self.losses.choice(self.brokers), None, at_ns, 10 * MS_NS))
        self.world.plan(Faults(rollbacks=tuple(rollbacks)))

    def _attempt_in_vain(self) -> None:
        """A client attaches several times before any broker has greeted it, perhaps behind cut links."""
        random = self.attempts
        client, start = random.choice(self.clients), random.randrange(self.until_ns)
        places = [client.home]
        if client.name in self.movers:
            places = random.sample(self.brokers, k=min(3, len(self.brokers)))
        play(self.world, client.name, failed_attempts(random, places, start))
        near = [edge for edge in self.world.edges if not {*edge}.isdisjoint(places)]
        # So that later requests overtake earlier ones.
        if self.with_faults and near and not (self.suspended or self.failing):
            cuts = [
                Cut(*edge, start, random.choice([20, 100, 500]) * MS_NS)
                for edge in random.sample(near, k=min(len(near), random.randint(0, 3)))
            ]
            self.world.plan(Faults(cuts=tuple(cuts)))

    def _failing(self) -> Faults:
        """A broker is down for long, and its clients go elsewhere."""
        random = self.failovers
        broker, at_ns = random.choice(self.brokers), random.randrange(self.until_ns)
        crash = Crash(broker, at_ns, random.choice([1, 5, 30]) * 1000 * MS_NS)
        later = random.choice([0, 100, 700]) * MS_NS
        self.world.agenda.at(at_ns + later, self._fail_over, crash)
        return Faults(crashes=(crash,))

    def _fail_over(self, crash: Crash) -> None:
        others = [one for one in self.brokers if one != crash.broker]
        for client in map(self._latest, self.clients):
            waits = client.home == crash.broker and client.connection is None and not client.left
            if waits and client.name in self.movers and others:
                client.attach(self.failovers.choice(others))

    def _with_stalls(self, faults: Faults, brokers: list[str]) -> Faults:
        random, at_ns = self.stalls, self.stalls.randrange(self.until_ns)
        if self.suspended:
            return Faults(
                stalls=tuple(Stall(one, at_ns, 2 * SUSPENDED_ANSWER_NS) for one in brokers)
            )
        if random.random() < 0.7:
            return faults
        stall = Stall(random.choice(brokers), at_ns, random.choice([1, 10]) * 100 * MS_NS)
        return msgspec.structs.replace(faults, stalls=(stall,))

    def _limits(self) -> Limits:
        random = self.random
        answer_ns = 3600 * 1000 * MS_NS  # nobody waits in vain, unless something is broken
        if self.with_faults:
            answer_ns = random.choice([300 * MS_NS, answer_ns])
        if self.failing:
            answer_ns = 3600 * 1000 * MS_NS
        if self.suspended:
            answer_ns = SUSPENDED_ANSWER_NS
        if random.random() < 0.2:
            window, count = random.choice([16, 64, 256]), random.randint(1, 5)
            return Limits(backlog_count=count, window=window, answer_ns=answer_ns)
        return Limits(answer_ns=answer_ns)

    def _expires_ns(self) -> int:
        """How long a client may be away: shorter or longer than it mostly is; or as brokers allow."""
        if not self.expiring:
            return 0
        return self.expiry.choice([0, 5, 60, 500, 5_000, 60_000]) * MS_NS

    def _limits_of_backlogs(self) -> Limits:
        limits = self._limits()
        if not self.congested or self.flow.random() < 0.3:
            return limits
        count, window = self.flow.choice([1, 4, 10]), self.flow.choice([64, 256])
        return msgspec.structs.replace(limits, backlog_count=count, window=window)

    def _shape_links(self) -> None:
        for a, b in self.world.edges:
            spec = LinkSpec(
                latency_ns=self.random.randint(1, 30) * MS_NS,
                jitter_ns=self.random.choice([0, 0, 10 * MS_NS]),
                bandwidth_bps=self.random.choice([None, None, 1_000_000]),
            )
            for pipe in self.world.link(a, b):
                pipe.shape(spec)

    def _stays(self, client: ClientHost) -> list[Stay]:
        """Where a client is when: at any broker, or where it always was; for long, or in a hurry."""
        random = self.random
        long = random.choice([5 * MS_NS, 60 * MS_NS, 1000 * MS_NS, self.until_ns // 3 + 2])
        places = [client.home]
        if client.name in self.movers:
            places = random.choice(
                [self.brokers, random.sample(self.brokers, k=min(2, len(self.brokers)))]
            )
        elif random.random() < 0.5:
            return [Stay(client.home, 0)]
        else:
            long = self.until_ns // 3 + 2
        away = random.choice([0, long // 2, 60_000 * MS_NS if long > 1000 * MS_NS else long])
        end = min(self.until_ns, random.choice([5, 20]) * long)
        return random_walk(random, places, end, (max(1, long // 10), long), (0, away), late=0.4)

    def _publish_on_arrival(self, client: ClientHost, stays: list[Stay]) -> None:
        """That is when a publisher that moves may lose something."""
        random = self.random
        for stay in random.sample(stays, k=min(len(stays), random.choice([0, 3, 10]))):
            after = random.choice([0, 5, 50, 500]) * MS_NS
            self.world.agenda.at(stay.from_ns + after, self._offer, client)

    def run(self) -> Verdict:
        random, agenda = self.random, self.world.agenda
        for time in [random.randrange(self.until_ns) for _ in range(random.choice([20, 60, 150]))]:
            agenda.at(time, self._act)
        self.world.run_until(self.until_ns)
        if self.crowded:
            self._make_room()
        self._attach_all()
        if self.short:  # who published more than there was room for was told to attach again
            self._attach_all()
        if self.asked and (self.with_faults or self.rolled_back):  # a reply may have been lost
            self.world.run_until(self.world.now + self.world.limits.recall_ns)
            self.world.settle()
        self.groups.wait_for_others()
        if any(event.kind == "left" for event in self.world.events):
            # A goodbye may have been lost; then the session ends when it has been away for too long.
            self.world.run_until(self.world.now + 2 * self.world.limits.away_ns)
            if self.groups.away_ns:  # members may just have been asked whether they are there
                self.world.settle()
        for client in self.world.clients.values():
            if client.connection is None and not client.left:
                self.world.broken.append(f"{client.name} could not stay attached")
        verdict = check(self.world)
        self.groups.end()
        self.world.outlive()
        more = [
            *self.watch.found,
            *(self.waits.found if self.failing else ()),
            *self._unexpected_losses(),
            *unexpected_losses(self.world),
            *self._missing_past(),
            *check_outlived(self.world),
        ]
        return msgspec.structs.replace(verdict, violations=(*verdict.violations, *more))

    def _missing_past(self) -> list[Violation]:
        """What did not come of the past, although all brokers remember it, and nothing went wrong."""
        if not self.remembers_all or self.with_faults or self.rolled_back:
            return []
        if issubclass(ALL_RELOCATIONS[self.world.relocation], Naive) or self.expiring:
            return []
        self.required_past, missing = check_remembered(
            self.world.events, self.asked, reach(self.world)
        )
        return missing

    @property
    def remembers_all(self) -> bool:
        """Whether all brokers remember everything."""
        return self.remembering and self.remembers == "all"

    def _make_room(self) -> None:
        """Everybody can be attached in the end, wherever that is."""
        for host in self.world.brokers.values():
            limits = host.core.border.limits
            host.core.border.limits = msgspec.structs.replace(limits, sessions=Limits().sessions)

    def _attach_all(self) -> None:
        for client in self.world.clients.values():
            if client.connection is None and not client.left:
                client.attach()
        self.world.settle()

    def _unexpected_losses(self) -> Iterator[Violation]:
        """Where nothing goes wrong, only a limit of the backlog may lose anything.

        But junction, which does not know what to look for, takes fright when a client is in a hurry.
        """
        if self.world.relocation == "junction":
            return
        small = self.world.limits.backlog_count < Limits().backlog_count
        early, overtaking = list(unexpired(self.world)), evicted_at(self.world)
        # When a session was evicted that waited, its client gets later what older ones had, with a gap.
        evicted = {one.client for _, one in self.world.ended if one.why != EXPIRED}
        slow = self._slow_readers() if small else {}
        ended: dict[str | None, int] = {}  # when a session of a client first ended by itself
        for time_ns, one in self.world.ended:
            ended.setdefault(one.client, time_ns)
        begun = False  # a client has begun anew
        doubtful = set[str | None]()  # clients that lost an unknown number, for membership only
        for event in self.world.events:
            begun |= event.kind == "replaced"
            overflow = (event.reason or "").startswith("backlog_")
            # Who lost an unknown number before, whatever the reason, may miss something between what it recalls.
            unsure = event.client in doubtful
            if event.kind == "lost" and not event.count:
                doubtful.add(event.client)
            if event.kind == "lost" and small and overflow:
                since = slow.get(event.client or "", inf)
                # What would have come late to a slow reader may have expired: then nobody sees that it is slow.
                if since > event.time_ns and not self.perishing:
                    what = f"{event.client}, which reads, was told of a loss: {event.reason}"
                    yield Violation("gap", what)
                continue
            forgotten = not self.remembers_all or self.short or self.with_faults or unsure
            expected = self.remembering and forgotten and event.reason == FORGOTTEN_PAST
            expected |= self.short and event.reason == MEMORY
            expected |= event.reason == NO_SESSION and event not in early
            unsettled = ended.get(event.client, inf) <= event.time_ns
            expected |= unsettled and event.reason == ROUTES_LOST
            # A client that begins anew may publish before it knows which number it has to exceed.
            expected |= begun and event.reason == OVERTAKEN
            expected |= event.reason == OVERTAKEN and event.time_ns >= overtaking
            expected |= event.reason == NO_ANSWER and (event.client or "") in evicted
            # Nobody can reach a broker before its first link.
            expected |= self.is_late and event.reason in (NO_ANSWER, OVERTAKEN)
            # A broker that was to advertise for a client knows nothing of what that got.
            expected |= (
                event.reason == OUT_OF_STEP and self.world.relocation in PUBLISHER_RELOCATIONS
            )
            excused = (self.with_faults and not self.suspended) or self.rolled_back
            if event.kind == "lost" and not (expected or excused):
                yield Violation("gap", f"{event.client} was told of a loss: {event.reason}")

    def _slow_readers(self) -> dict[str, int]:
        """Clients whose backlog may overflow, and since when: they were away, or did not read for so long."""
        published = {
            (one.client, one.number): one.time_ns
            for one in self.world.events
            if one.kind == "published"
        }
        since: dict[str, int] = {}
        bounds: dict[str, int] = {}
        for event in self.world.events:
            client, now = event.client or "", event.time_ns
            bound = bounds.setdefault(client, self.world.limits.slow_publishers_ns)
            if event.kind == "subscribed" and SLOWS in (event.reason or ""):
                seconds = (event.reason or "").partition(SLOWS)[2].removesuffix(" s")
                bounds[client] = min(bound, int(float(seconds) * SECOND_NS))
                if not bounds[client]:  # nobody is slowed for it, so the first may be lost already
                    since.setdefault(client, now)
            late = now - published.get((event.publisher, event.number), now)
            if event.kind == "detached" or (event.kind == "delivered" and late >= bound):
                since.setdefault(client, now)
        return since

    def _burst(self, _: None) -> None:
        """A publisher publishes much at once."""
        client = self._latest(self.flow.choice(self.publishers or self.clients))
        offered, much = list(client.core.advertisements), self.flow.choice([10, 30, 60])
        for attributes in [random_attributes(self.flow) for _ in range(much)]:
            if any(filter.matches(attributes) for filter in offered):
                client.publish(attributes)

    def _stop_reading(self, _: None) -> None:
        """An application does not read for a while, mostly not longer than publishers wait for it."""
        for_ns = self.flow.choice([100, 1_000, 3_000, 30_000]) * MS_NS
        self._latest(self.flow.choice(self.clients)).stop_reading(for_ns)

    def _make_wills(self, job: Job) -> None:
        """Now and then some clients have one; those that only subscribe have none."""
        random = self.wills
        if random.random() < 0.7 or job.relocation in PUBLISHER_RELOCATIONS:
            return
        for client in self.clients:
            attributes = random_attributes(random)
            may = job.mobile == "both" or client.name not in self.movers
            if may and attributes and random.random() < 0.6:
                client.make_will(draw_will(random, attributes))

    def _run_short(self, _: None) -> None:
        """A broker has too little memory: its largest clients lose."""
        host = self.world.broker(self.pressure.choice(self.brokers))
        share = self.pressure.choice([0.1, 0.5, 1.0])
        self.world.sheds = True
        host.receive(Exceeded(MEMORY, int(host.core.memory_bytes() * share)))

    def _act(self, _: None) -> None:
        """One client does something that it may do."""
        random = self.random
        client = self._latest(random.choice(self.clients))
        subscriptions = client.core.subscriptions
        draw = random.random()
        if draw < 0.12 or not subscriptions:
            since_ns = self._since_ns()
            wanted, terms = random_filter(random), self._paced(random_terms(random))
            client.subscribe(wanted, terms, since_ns)
            if since_ns:
                self.asked.append(Asked(client.name, self.world.now, wanted, since_ns))
            if self.confirms.random() < (0.9 if self.rolled_back else 0.5):
                client.confirm()
        elif draw < 0.20:
            mine = [one for one in subscriptions if not mentions(one)]
            if mine:
                client.unsubscribe(random.choice(mine))
        elif draw < 0.21 and client.connection is not None:
            # If no broker has heard of a later process, the name is still that of the earlier one.
            if not client.core.anew:
                client.detach(leave=True)
        elif self.publishers:
            self._offer(random.choice(self.publishers))

    def _paced(self, terms: Terms | None) -> Terms | None:
        """Now and then the publishers may be slowed for a shorter time, or not at all."""
        if not self.congested or self.flow.random() < 0.8:
            return terms
        slow_ns = self.flow.choice([0, 1_000]) * MS_NS
        return msgspec.structs.replace(terms or Terms(), slow_ns=slow_ns)

    def _latest(self, client: ClientHost) -> ClientHost:
        """The process that has the client's name now."""
        return self.world.clients[client.name]

    def _begin_anew(self, _: None) -> None:
        """A client's process is killed, or not, and another one begins under its name."""
        random = self.lives
        client = random.choice(self.clients)
        mobile = client.name in self.movers
        there = random.choice(self.brokers) if mobile else client.home
        old = self.world.begin_anew(client.name, there, self._clock(self._latest(client)))
        if random.random() < 0.4 or old.core.anew:  # nobody could tell that it is not the latest
            old.disconnect(late=random.random() < 0.5)
        elif random.random() < 0.5:  # it goes on, as if it were alone
            later = self.world.now + random.choice([5, 60, 1000]) * MS_NS
            self.world.agenda.at(later, self._move_on, old)

    def _clock(self, client: ClientHost) -> int | None:
        """What the clock says where the next process of a client begins: it may be behind.

        Not if some brokers may not have heard of the process before it, or that it came back after it had left:
        they could not tell which is the later.
        """
        if not client.core.welcomed or (client.process and not self._is_known(client)):
            return None
        reached = client.core.epoch
        drawn = self.clocks.randint(1, reached + 1)
        clock = self.clocks.choice([None, reached + 1, reached, drawn])
        return clock if len(self._began(client)) == 1 else None

    def _is_known(self, client: ClientHost) -> bool:
        """Whether all brokers have heard that this process has begun, and none is about to get an old store."""
        if self.world.restoring:
            return False
        began = self._began(client)
        return len(began) == 1 and began != {0}

    def _began(self, client: ClientHost) -> set[int]:
        """The epochs at which the client last began anew, as far as brokers have heard; 0: never."""
        tombstones = [
            host.core.border.tombstones.get(client.core.name)
            for host in self.world.brokers.values()
        ]
        return {0 if one is None else one.began for one in tombstones}

    def _move_on(self, old: ClientHost) -> None:
        if old.core.anew:
            return
        old.attach(self.lives.choice(self.brokers))

    def _since_ns(self) -> int:
        if not self.remembering or self.past.random() < 0.5:
            return 0
        return self.past.randint(1, self.until_ns)

    def _offer(self, client: ClientHost) -> None:
        """A publisher advertises, withdraws or publishes."""
        random, client = self.random, self._latest(client)
        advertisements = client.core.advertisements
        draw = random.random()
        if draw < 0.12 or not advertisements:
            offered = client.advertise(random_filter(random))
            self._watch(client)
            self._publish_at_once(client, offered)
        elif draw < 0.18:
            mine = [one for one in advertisements if not mentions(one)]
            if mine:
                client.unadvertise(random.choice(mine))
        else:
            for attributes in [random_attributes(random) for _ in range(random.choice([1, 1, 3]))]:
                if any(filter.matches(attributes) for filter in advertisements):
                    self._publish(client, attributes)

    def _publish(self, client: ClientHost, attributes: dict[str, Value]) -> None:
        """Some publications are retained, expire, or are of use in an area only."""
        key, clear = self.retention.draw(attributes)
        lifetime_ns, area = self._lifetime_ns(), self._area()
        client.publish(attributes, retain=key, clear=clear, expires_ns=lifetime_ns, area=area)

    def _place_clients(self) -> None:
        """Some clients say where they are, and go somewhere else now and then."""
        random = self.relevance
        for client in self.clients:
            if random.random() < 0.7:
                client.be(self._somewhere())
        for _ in range(random.choice([2, 10, 40])):
            self.world.agenda.at(random.randrange(self.until_ns), self._be_elsewhere)

    def _be_elsewhere(self, _: None) -> None:
        self._latest(self.relevance.choice(self.clients)).be(self._somewhere())

    def _somewhere(self) -> State:
        """A location, its position, both or neither."""
        random = self.relevance
        name = random.choice(list(SITES))
        known, placed = random.random() < 0.8, random.random() < 0.6
        return State(name if known else "", SITES[name] if placed else None)

    def _area(self) -> Area | None:
        """Where a publication is of use; None: everywhere."""
        random = self.relevance
        if not self.relevant or random.random() < 0.4:
            return None
        names = random.sample(list(SITES), k=random.choice([1, 1, 2]))
        if random.random() < 0.6:
            return Area(tuple(names))
        return Area((), (*SITES[names[0]], random.choice([0.0, 1_500.0, 15_000.0])))

    def _lifetime_ns(self) -> int:
        """For how long a publication is of use; 0: for ever."""
        if not self.perishing or self.lifetimes.random() < 0.5:
            return 0
        return self.lifetimes.choice([1, 30, 300, 5_000]) * MS_NS

    def _publish_at_once(self, client: ClientHost, offered: Filter) -> None:
        """Nobody has heard of the advertisement yet, and everybody gets what it offers."""
        random = self.confirms
        if random.random() < 0.5:
            return
        some = [random_attributes(random) for _ in range(20)]
        for attributes in [one for one in some if offered.matches(one)][: random.choice([1, 3])]:
            self._publish(client, attributes)

    def _watch(self, client: ClientHost) -> None:
        """A publisher wants to know whether anybody is interested, or does not any more."""
        random, watched = self.interest, client.core.watched
        if not self.watching:
            return
        if watched and random.random() < 0.2:
            client.unwatch(random.choice(list(watched)))
        elif random.random() < 0.8:
            client.watch(random.choice(list(client.core.advertisements)))


def fuzz(job: Job) -> Run:
    """Play a random run."""
    one: Fuzz | Walks | Migrations
    if job.mobile in ("walkers", "learners"):
        learns = job.mobile == "learners"
        one = Walks(job.seed, job.routing, job.relocation, faults=job.faults, learns=learns)
    elif job.mobile == "service":
        one = Migrations(job.seed, job.routing, faults=job.faults)
    else:
        one = Fuzz(job)
    try:
        verdict = one.run()
    except Exception as error:  # a failure is a seed, whatever failed
        crash = Violation("crash", f"{type(error).__name__}: {error}")
        verdict = Verdict((crash,), 0, 0, 0, 0)
    world = one.world
    return Run(job, len(world.brokers), len(world.clients), world.messages(), verdict)
