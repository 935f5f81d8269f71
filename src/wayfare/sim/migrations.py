"""Random runs of the mobility service, on any acyclic overlay, and what clients have to get.

Clients go from access point to access point, in order or cut off, stay for long or move on before they
have arrived, and some of them publish wherever they are. Systems broadcast or propagate, links are of any kind, and with faults, proxies end and begin
again, or cannot be reached for a while. The judge knows what was published when, and where who was:

    complete   with ping nothing is lost: with ids however the client moves, as in the paper if it moves out;
               with faults, or if a ping takes longer than its patience, a gap says that something may be
    once       with ids nothing comes twice
    fifo       with ids every sender's in order, if that stays where it is: two access points may
               give what one client published at both of them in any order
    away       without support, what is published while the client is away does not come
    arrives    at the end every client is attached, and only its proxy knows it
"""

from __future__ import annotations

from random import Random
from typing import Any

from wayfare.channel import PROFILES
from wayfare.service import effects as e
from wayfare.service.library import Library
from wayfare.service.pinging import UNANSWERED
from wayfare.service.system import Id, Publication
from wayfare.sim import topology
from wayfare.sim.hosting import Ground, LibraryHost, ProxyHost, beside
from wayfare.sim.links import MS_NS, SECOND_NS, Agenda
from wayfare.sim.service import terms_of
from wayfare.sim.systems import Access, Line, Nature, Point, Radio, Wire, overlay
from wayfare.sim.verdict import Verdict, Violation

TOPICS = ("news", "sport")
SUPPORT = ("ids", "ids", "ids", "ping", "none")
UNDER_WAY_NS = 2 * SECOND_NS  # longer than any path between access points
LONG_NS = 600 * SECOND_NS  # in which whoever moves in has arrived
PUBLICATIONS = (20, 60, 150)
Key = tuple[str, int]


class Migrant:
    """One client, and what it got."""

    def __init__(self, run: Migrations, name: str) -> None:
        random = run.random
        self.run, self.name = run, name
        self.support = random.choice(SUPPORT)
        self.topics = random.sample(TOPICS, random.randint(1, 2))
        self.texts = tuple(
            f"{topic}#{i}" for topic in self.topics for i in range(random.choice([1, 3, 10]))
        )
        self.line = run.random_line()
        self.got: list[Key] = []
        self.gaps = 0
        self.away: list[tuple[int, int]] = []  # from when to when it was nowhere
        self.gone_ns = 0
        self.is_cut = False  # ever
        self.is_unheard = False  # a ping was not answered in time, ever
        self.steps = random.randint(1, 6)
        self.access: Access | None = None
        self.host: LibraryHost | None = None
        if self.support != "none":
            library = Library(name, "key", run.ground.words, *terms_of(self.support))
            self.host = LibraryHost(run.ground, library, self.line, self._told)
            for text in self.texts:
                self.host.perform(library.subscribe(text, False, 0))
        self.come(None)

    # Moving

    def come(self, _: None) -> None:
        run = self.run
        point = run.random.choice(run.names)
        if self.gone_ns:
            self.away.append((self.gone_ns, run.agenda.now))
        if self.host is not None:
            self.host.appear(beside(point))
        else:
            self.access = Access(self, self.name, run.ground.points[point], self.line)
            self.access.open()

    def begin(self) -> None:
        """From now on, it moves."""
        self.run.later(6 * SECOND_NS, self.go)

    def go(self, _: None) -> None:
        """Leave for a while, if it can and wants to."""
        run, random = self.run, self.run.random
        if not self.steps:
            return
        self.steps -= 1
        if self.host is None:
            self._leave()
            return
        state = self.host.core.state
        if state == "attached" and (self.support == "ping" or random.random() < 0.5):
            self.host.perform(self.host.core.move_out(run.agenda.now))
            if self.support != "ping" and random.random() < 0.2:
                run.later(SECOND_NS, self._cut)
        elif self.support == "ping":
            run.later(6 * SECOND_NS, self.go)
        elif state in ("attached", "moving-in"):
            self._cut(None)
        else:
            run.later(6 * SECOND_NS, self.go)

    def _leave(self) -> None:
        if self.access is None:
            self.run.later(6 * SECOND_NS, self.go)
            return
        (self.access.close if self.run.random.random() < 0.5 else self.access.cut)()
        self.access = None
        self._went()

    def _cut(self, _: None) -> None:
        assert self.host is not None
        state = self.host.core.state
        if state != "away":
            self.is_cut = True
            self.host.cut(noticed=state == "moving-out" or self.run.random.random() < 0.5)
            self._went()

    def _went(self) -> None:
        run = self.run
        self.gone_ns = run.agenda.now
        run.later(run.random.choice([SECOND_NS // 2, 15 * SECOND_NS]), self.come)
        run.later(40 * SECOND_NS, self.go)

    def insist(self) -> bool:
        """At the end: is it where it wants to be, and all it published out? If it is nowhere, it comes."""
        if self.host is None:
            return True
        if self.host.core.state == "away":
            self.come(None)
        core = self.host.core
        alone = self.run.holders(self.name) == [core.proxy]
        return core.state == "attached" and alone and not core.unsent

    def publish(self, publication: Publication) -> None:
        assert self.host is not None
        self.host.perform(self.host.core.publish(publication, self.run.agenda.now))

    # What it is told

    def _told(self, effect: e.Effect) -> None:
        match effect:
            case e.Deliver(publication):
                self._got(publication)
            case e.Gap(_, reason):
                self.gaps += 1
                self.is_unheard = self.is_unheard or UNANSWERED in reason
            case e.Moved(attached=False):
                self._went()
            case e.Failed():
                self.run.later(2 * SECOND_NS, self._try_again)
            case _:
                pass

    def _try_again(self, _: None) -> None:
        assert self.host is not None
        if self.host.core.state == "away":
            self.come(None)
        elif self.steps:
            self.run.later(6 * SECOND_NS, self.go)

    def _got(self, publication: Publication) -> None:
        assert publication.id is not None
        self.got.append((publication.id.sender, publication.id.number))

    def opened(self, access: Access) -> None:
        access.subscribe(self.texts)

    def subscribed(self, access: Access, texts: tuple[str, ...]) -> None:
        pass

    def published(self, access: Access, publication: Publication) -> None:
        pass

    def arrived(self, access: Access, publication: Publication) -> None:
        self._got(publication)


class Migrations:
    """One random run."""

    def __init__(self, seed: int, routing: str = "simple", *, faults: bool = False) -> None:
        self.random = random = Random(f"migrations {seed}")
        self.agenda = Agenda()
        self.faults = faults
        self.stalls = Random(f"stalls {seed}")  # of its own, so that the rest is as without it
        nature = Nature(
            propagates=routing != "flooding",
            one_time=random.random() < 0.5,
            subscribe_ns=random.choice([0, 1, 30]) * MS_NS,
            compare_ns=random.choice([0, MS_NS]),
            subscription_bytes=random.choice([50, 200]),
            publication_bytes=random.choice([50, 500]),
            reply_bytes=40,
        )
        edges = topology.random_tree(random, random.choice([1, 2, 3, random.randint(4, 8)]))
        self.names = sorted({end for edge in edges for end in edge}) or ["b0"]
        points = overlay(self.agenda, nature, self.names, edges, 0)
        for point in points.values():
            for other in point.near:
                other.near[point] = point.near[other] = random.choice([1, 5, 50]) * MS_NS
        self.ground = Ground(self.agenda, nature, points)
        for name in self.names:
            wire = Wire(self.agenda, random.choice([1, 20]) * MS_NS)
            ProxyHost(self.ground, beside(name), name, wire)
        self.clients = {f"c{i}": Migrant(self, f"c{i}") for i in range(random.randint(1, 3))}
        self.senders = {f"s{i}": random.choice(self.names) for i in range(random.randint(1, 3))}
        self.mobile = [
            name
            for name, one in self.clients.items()
            if one.support != "none" and random.random() < 0.3
        ]
        self.published: dict[Key, tuple[int, str]] = {}  # when, and on which topic

    @property
    def brokers(self) -> dict[str, Point]:
        return self.ground.points

    @property
    def world(self) -> Migrations:
        return self

    def messages(self) -> int:
        return self.ground.messages + sum(
            one.control + one.publications for one in self.ground.points.values()
        )

    def random_line(self) -> Line:
        if self.random.random() < 0.4:
            return Wire(self.agenda, self.random.choice([1, 100]) * MS_NS)
        profile = PROFILES[self.random.choice(["lan", "gprs", "lossy", "wifi"])]
        return Radio(self.agenda, profile, self.random)

    def later(self, most_ns: int, then: Any) -> None:
        self.agenda.at(self.agenda.now + self.random.randrange(most_ns), then)

    def run(self) -> Verdict:
        agenda, random = self.agenda, self.random
        self._wait_for_all()
        count, until_ns = random.choice(PUBLICATIONS), random.choice([10, 60]) * SECOND_NS
        senders = [*self.senders, *self.mobile]
        numbers = dict.fromkeys(senders, 0)
        for time in sorted(random.randrange(until_ns) for _ in range(count)):
            sender = random.choice(senders)
            numbers[sender] += 1
            id = Id(sender, numbers[sender])
            one = Publication(random.choice(TOPICS), bytes(random.choice([10, 300])), id=id)
            agenda.at(agenda.now + time, self._publish, one)
        for client in self.clients.values():
            client.begin()
        if self.faults:
            for _ in range(random.randint(1, 3)):
                self.later(until_ns, self._break)
            if self.stalls.random() < 0.5:
                at_ns = agenda.now + self.stalls.randrange(until_ns)
                agenda.at(at_ns, self._stall)
        agenda.run_until(agenda.now + until_ns)
        for client in self.clients.values():
            client.steps = 0
        agenda.run_until(agenda.now + 60 * SECOND_NS)  # whoever is out comes back
        self._wait_for_all()
        agenda.run_until(agenda.now + 60 * SECOND_NS)
        return self._judge()

    def holders(self, client: str) -> list[str]:
        """Proxies that know it."""
        return [name for name, one in self.ground.proxies.items() if client in one.core.clients]

    def _wait_for_all(self) -> None:
        end = self.agenda.now + LONG_NS
        while self.agenda.now < end:
            self.agenda.run_until(self.agenda.now + SECOND_NS)
            waited_for = [client for client in self.clients.values() if not client.insist()]
            if not waited_for and all(point.is_idle for point in self.ground.points.values()):
                break
        self.agenda.run_until(self.agenda.now + 5 * SECOND_NS)  # what is by radio, too

    def _publish(self, publication: Publication) -> None:
        assert publication.id is not None
        key = (publication.id.sender, publication.id.number)
        self.published[key] = (self.agenda.now, publication.topic)
        sender = publication.id.sender
        if sender in self.mobile:
            self.clients[sender].publish(publication)
        else:
            self.ground.points[self.senders[sender]].publish((None, publication))

    # Faults

    def _break(self, _: None) -> None:
        random = self.random
        proxy = self.ground.proxies[beside(random.choice(self.names))]
        if proxy.is_down:
            return
        if random.random() < 0.5:
            proxy.stop()
            self.later(20 * SECOND_NS, self._restart(proxy))
        else:
            others = [*self.clients, *self.ground.proxies]
            proxy.unheard = set(random.sample(others, random.randint(1, len(others))))
            self.later(20 * SECOND_NS, lambda _: proxy.unheard.clear())

    def _stall(self, _: None) -> None:
        proxy = self.ground.proxies[beside(self.stalls.choice(self.names))]
        proxy.stall(self.stalls.choice([1, 10, 200]) * SECOND_NS // 10)

    def _restart(self, proxy: ProxyHost) -> Any:
        return lambda _: proxy.start()

    # Judging

    def _judge(self) -> Verdict:
        violations: list[Violation] = []
        required = 0
        for client in self.clients.values():
            wanted = {key for key, (_, topic) in self.published.items() if topic in client.topics}
            found = [
                Violation(rule, f"{client.name} ({client.support}): {what}")
                for rule, what in self._faults_of(client, wanted)
            ]
            violations += found
            required += len(wanted) if client.support != "none" else 0
        delivered = sum(len(client.got) for client in self.clients.values())
        lost = sum(client.gaps for client in self.clients.values())
        return Verdict(tuple(violations), len(self.published), delivered, required, lost)

    def _faults_of(self, client: Migrant, wanted: set[Key]) -> list[tuple[str, str]]:
        out: list[tuple[str, str]] = []
        lost = sorted(wanted - set(client.got))
        promised = client.support == "ids" or (client.support == "ping" and not client.is_cut)
        if promised and client.gaps and not (self.faults or client.is_unheard):
            out.append(("complete", "was told of a gap, and there is no reason for one"))
        if promised and lost and not client.gaps:
            out.append(("complete", f"did not get {len(lost)} of {len(wanted)}: {lost[:5]}"))
        if strange := sorted(set(client.got) - wanted):
            out.append(("complete", f"got {strange[:5]}, which it does not want"))
        if client.support == "ids":
            if len(client.got) != len(set(client.got)):
                twice = sorted({one for one in client.got if client.got.count(one) > 1})
                out.append(("once", f"got {twice[:5]} more than once"))
            for sender in self.senders:
                numbers = [number for name, number in client.got if name == sender]
                if numbers != sorted(numbers):
                    out.append(("fifo", f"got {sender}'s as {numbers}"))
        if client.support == "none":
            out += self._came_while_away(client)
        elif client.host is not None:
            state, proxy = client.host.core.state, client.host.core.proxy
            holders = self.holders(client.name)
            if state != "attached" or holders != [proxy]:
                out.append(("arrives", f"is {state} at {proxy}; {holders} know it"))
        return out

    def _came_while_away(self, client: Migrant) -> list[tuple[str, str]]:
        nowhere = [
            key
            for key, (time, _) in self.published.items()
            if key[0] in self.senders  # others may keep it until they are attached
            and any(since <= time < until - UNDER_WAY_NS for since, until in client.away)
        ]
        came = sorted(set(nowhere) & set(client.got))
        return [("away", f"got {came[:5]}, published while it was away")] if came else []
