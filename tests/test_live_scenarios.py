"""The scenarios of the simulator, on sockets: one text, two hosts, the same deliveries.

What clients do is done by live clients, through a proxy each, which breaks their connections as the
story wants it; links between brokers and messages between replicators go through proxies, too, with
the latency of the simulator.
"""

import asyncio
import math
from itertools import pairwise

import msgspec
import pytest

import wayfare
from live import until
from proxy import Proxy
from test_client_api import live
from wayfare.core.filters import Filter
from wayfare.core.history import Limits
from wayfare.core.messages import Terms
from wayfare.core.virtual import Ahead
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.store import Store
from wayfare.sim import scenario
from wayfare.sim.links import LinkSpec
from wayfare.sim.world import CLIENT_LINK

HERE = Address("127.0.0.1", 0)
WAIT_MAX_S = 0.5  # a longer wait is one until nothing happens any more
DOWN_MAX_S = 0.5

NOT_LIVE = {
    "away-too-long": "takes a week",
    "backlog-age": "takes twelve seconds, and the clock of a live broker cannot be turned",
    "delivered-in-vain": "on loopback, a broker notices at once that a connection broke",
    "burst": "tells who waits for whom, to the millisecond; test_bursts.py has live readers that are slow",
    "burst-where-it-is": "tells who waits for whom, to the millisecond; test_bursts.py has live readers that are slow",
    "changing-need": "the live stage declares nothing; test_peers.py has a live client whose values change",
    "clock-behind": "takes two hours; test_clocks.py has a live client whose clock is behind",
    "expired": "takes eleven seconds; test_expiring.py has live publications that expire",
    "expired-while-its-publisher-moves": "takes five seconds; test_expiring.py has live publications that expire",
    "expired-and-kept": "takes five seconds; test_expiring.py has live publications that expire",
    "failed-over-for-long": "takes a minute; test_wills.py restarts a live broker",
    "failover": "takes a minute; test_failover.py kills a live broker",
    "last-will": "takes half a minute; test_wills.py has live clients that vanish",
    "late": "takes a minute; test_late.py kills a live broker",
    "late-after-two-failovers": "takes more than a minute; test_late.py kills a live broker",
    "first-link": "the live stage starts all brokers at once; test_first_publication.py starts one late",
    "forgotten-store": "tells what is lost while tables are repaired, to the millisecond",
    "lossy-link": "TCP hides what is lost below it",
    "lost-goodbye": "takes a week",
    "member-fails-over": "takes two minutes, and the live stage has no queue groups",
    "moving-without-support": "tells what is lost and doubled without support, to the millisecond",
    "past-of-others": "live brokers of the stage remember nothing; test_past.py fetches a live past",
    "past-value-replaced": "live brokers of the stage remember nothing; test_past.py fetches a live past",
    "remembered-for-an-arrival": "live brokers of the stage remember nothing; test_location_live.py fetches a live past",
    "since-it-followed": "live brokers of the stage remember nothing; test_location_live.py fetches a live past",
    "since-it-followed-and-forgotten": "live brokers of the stage remember nothing; test_location_live.py fetches a live past",
    "queue-group": "takes ten seconds; test_groups_live.py has live members that read late and vanish",
    "queue-group-lost-job": "the live stage has no queue groups; tells to the millisecond who is told what",
    "nothing-lost-by-leaving": "a live client that has left is another object, which has to follow again",
    "old-broker-down": "tells which of two answers comes first, to the millisecond",
    "publisher-of-a-forgotten-store": "the live stage loses no stores; test_rollback.py has live brokers that do",
    "repeated-after-a-week": "takes a week",
    "session-expires": "takes two minutes; test_expiry.py has a live session that expires",
    "slow-broker": "a live broker cannot be slowed down",
    "suspended": "brokers of one process cannot be stopped alone; test_stalled.py stops processes",
    "suspended-after-goodbye": "takes twelve seconds; test_stalled.py stops processes",
    "unanswered-recall": "takes two seconds in which nothing happens, and the stage waits only for what does",
}


class LiveStage:
    """Carries out the statements of a scenario on loopback."""

    def __init__(self, folder):
        self.folder = folder
        self.options = {"routing": "covering", "relocation": "handoff", "limits": Limits()}
        self.link_spec, self.client_spec = LinkSpec(), CLIENT_LINK
        self.brokers, self.roads = {}, {}  # roads: proxies, by (a, b) and by client
        self.post_roads = {}  # proxies in front of each broker, for the replicators of the others
        self.cuts = set()  # pairs of brokers whose link is cut
        self.coming = []  # the statements behind the one that is carried out
        self.neighbours, self.stores, self.left = {}, set(), []
        self.clients, self.at, self.held = {}, {}, {}
        self.earlier = []  # clients in whose place there is another process
        self.events, self.subscriptions, self.offers, self.tasks = [], {}, {}, []
        self.answers = []  # to requests: who was answered, and what

    async def play(self, story):
        try:
            statements = [statement for _, statement in story.statements]
            for place, statement in enumerate(statements):
                self.coming = statements[place + 1 :]
                word, _, rest = statement.partition(" ")
                await getattr(self, f"do_{word}")(rest.strip())
            await self.quiet()
        finally:
            await self.close()

    async def close(self):
        await asyncio.gather(*self.tasks)
        for client in [*self.clients.values(), *self.earlier]:
            await client.close(timeout=0.1)
        for road in [*self.roads.values(), *self.post_roads.values(), *self.left]:
            await road.stop()
        for broker in self.brokers.values():
            await broker.stop()

    async def quiet(self):
        """Until nothing is under way, and nothing has happened for a while."""
        await asyncio.gather(*self.tasks)
        before, still = None, 0
        async with asyncio.timeout(20):
            while still < 4:
                now = self.state()
                still = still + 1 if now == before and not self.is_under_way() else 0
                before = now
                await asyncio.sleep(0.03)

    def state(self):
        clients = [
            (one._core.delivered, len(one._core.outbox), one.broker)
            for one in self.clients.values()
        ]
        sent = [one._sent for host in self.brokers.values() for one in host.links.values()]
        posts = [(host.peers.sent, host.peers.heard) for host in self.brokers.values()]
        return sent, posts, clients, len(self.events)

    def is_under_way(self):
        """Whether something arrives without further statements: nothing crosses a cut link."""
        brokers = self.brokers
        return any(
            link._sent != brokers[there].links[here].taken
            for here, host in brokers.items()
            for there, link in host.links.items()
            if frozenset((here, there)) not in self.cuts
        ) or any(
            session.wait is not None or session.backlog.sent < session.backlog.last
            for host in brokers.values()
            for session in host.core.border.all()
            if session.link is not None
        )

    # Before the brokers are there

    async def do_routing(self, rest):
        self.options["routing"] = rest

    async def do_relocation(self, rest):
        self.options["relocation"] = rest

    async def do_link(self, rest):
        self.link_spec = scenario._link_spec(rest)

    async def do_client_link(self, rest):
        self.client_spec = scenario._link_spec(rest)

    async def do_backlog(self, rest):
        what, value = rest.split()
        field, read = scenario.LIMITS[what]
        limits = msgspec.structs.replace(self.options["limits"], **{field: read(value)})
        self.options["limits"] = limits

    async def do_places(self, rest):
        places = scenario.read_places(rest)
        self.options["ahead"] = Ahead(places, places.next_brokers)

    async def do_brokers(self, rest):
        chains = [[name.strip() for name in branch.split(" - ")] for branch in rest.split(",")]
        names = list(dict.fromkeys(name for chain in chains for name in chain))
        self.neighbours = {name: {} for name in names}
        for chain in chains:
            for a, b in pairwise(chain):
                self.neighbours[a][b] = self.neighbours[b][a] = None
        for name in names:  # who comes later calls who is there
            for other in self.neighbours[name]:
                if other in self.brokers:
                    road = await self.road(self.brokers[other].address, self.link_spec)
                    self.roads[other, name] = self.roads[name, other] = road
                    self.neighbours[name][other] = road.address
            await self.start(name, HERE)
        others = len(names) - 1
        await until(
            lambda: all(len(one.core.paths._hops) == others for one in self.brokers.values())
        )

    async def start(self, name, at):
        store = Store(self.folder / name, "os", name) if name in self.stores else None
        host = BrokerHost(name, self.neighbours[name], store=store, **self.options)
        self.brokers[name] = host
        await host.start(at)
        if name not in self.post_roads:
            self.post_roads[name] = await self.road(host.address, self.link_spec)
        addresses = {name: road.address for name, road in self.post_roads.items()}
        for one in self.brokers.values():
            one.peers.meet(addresses)

    async def road(self, target, spec):
        road = Proxy(target)
        road.delay_s = spec.latency_ns / 1e9
        road.bytes_per_s = spec.bandwidth_bps and spec.bandwidth_bps / 8
        await road.start()
        return road

    # What clients do

    async def do_attach(self, rest):
        name, *broker = rest.split()
        broker = broker[0] if broker else self.at[name]
        if name in self.roads:
            self.left.append(self.roads[name])
            self.roads[name].swallow()  # the broker where it was is not told
        self.at[name] = broker
        road = self.roads[name] = await self.road(self.brokers[broker].address, self.client_spec)
        if name in self.clients:
            client = self.clients[name]
            client.addresses = []  # the roads so far are no longer there for it
            if self.is_welcomed(name):
                await client.move(road.url)
            else:
                await self.attach_in_vain(name, road)
            return
        options = {"client_id": name, "events": self.events.append}
        client = self.clients[name] = await wayfare.connect(road.url, **options)
        for kind, filter in self.held.setdefault(name, []):  # who left begins anew, with all that
            await getattr(self, f"take_{kind}")(client, filter)

    def stay_ns(self, name):
        """How long a client that attaches stays: without limit unless it only waits and disconnects."""
        match self.coming[:2]:
            case [wait, disconnect] if disconnect == f"disconnect {name}":
                word, _, time = wait.partition(" ")
                return scenario._time_ns(time) if word == "wait" else 0
        return math.inf

    def is_welcomed(self, name):
        return self.stay_ns(name) >= 2 * self.client_spec.latency_ns

    async def attach_in_vain(self, name, road):
        """The connection breaks before the Welcome, or before the broker receives the Attach."""
        client, border = self.clients[name], self.brokers[self.at[name]].core.border
        before, is_received = client._core.epoch, self.stay_ns(name) >= self.client_spec.latency_ns
        if is_received:
            road.greetings_to_lose = 1
        else:
            road.swallow("up")
        self.tasks.append(asyncio.create_task(client.move(road.url)))
        await until(lambda: client._core.epoch > before)
        if is_received:
            await until(lambda: border.of(name)[-1:] and border.of(name)[-1].epoch > before)

    async def do_begin(self, rest):
        """Another process of that name, while this one is still there."""
        name, _ = rest.split()
        self.earlier.append(self.clients.pop(name))
        self.left.append(self.roads.pop(name))
        self.held[name] = []
        await self.do_attach(rest)

    async def do_detach(self, rest):
        await self.clients[rest].detach()

    async def do_leave(self, rest):
        await self.clients.pop(rest).close()

    async def do_disconnect(self, rest):
        road = self.roads[rest]
        road._server.close()
        road.cut()
        await until(lambda: self.clients[rest].broker == "")

    async def take_subscribe(self, client, text):
        self.subscriptions[client.name, Filter.parse(text)] = await client.subscribe(text, queue=10)

    async def take_advertise(self, client, text):
        await client.advertise(text)

    async def do_subscribe(self, rest):
        name, text = rest.split(maxsplit=1)
        await self.take_subscribe(self.clients[name], text)
        self.held[name].append(("subscribe", text))

    async def do_unsubscribe(self, rest):
        name, text = rest.split(maxsplit=1)
        filter = Filter.parse(text)
        await self.subscriptions[name, filter].close()
        self.held[name] = [
            one
            for one in self.held[name]
            if one[0] != "subscribe" or Filter.parse(one[1]) != filter
        ]

    async def do_advertise(self, rest):
        name, text = rest.split(maxsplit=1)
        await self.take_advertise(self.clients[name], text)
        self.held[name].append(("advertise", text))

    async def do_unadvertise(self, rest):
        name, text = rest.split(maxsplit=1)
        await self.clients[name].unadvertise(text)
        self.held[name].remove(("advertise", text))

    async def do_follow(self, rest):
        rest, _, kept = rest.partition(" keep ")
        name, text = rest.split(maxsplit=1)
        terms = scenario.read_terms(kept) if kept else Terms()
        younger = None if terms.younger_ns is None else terms.younger_ns / 1e9
        nullify = terms.nullify
        self.subscriptions[name, text] = await self.clients[name].subscribe(
            text,
            last=terms.last,
            younger=younger,
            key=terms.key,
            nullify=nullify and nullify.when,
            same=nullify.same if nullify else (),
        )

    async def do_unfollow(self, rest):
        await self.subscriptions.pop(tuple(rest.split(maxsplit=1))).close()

    async def do_be(self, rest):
        name, what = rest.split(maxsplit=1)
        if what.startswith("at "):
            self.clients[name].location = what[3:]
        else:
            self.clients[name].state.update(scenario.read_attributes(what))

    async def do_confirm(self, rest):
        """A subscription of a live client was confirmed when it was made."""

    async def do_watch(self, rest):
        name, text = rest.split(maxsplit=1)
        self.offers[name, text] = await self.clients[name].offer(text)

    async def do_unwatch(self, rest):
        name, text = rest.split(maxsplit=1)
        await self.offers.pop((name, text)).close()

    async def do_publish(self, rest):
        one = scenario.read_publication(rest)
        if one.clear:
            await self.clients[one.client].clear(one.attributes, retain=one.retain)
        else:
            await self.clients[one.client].publish(one.attributes, retain=one.retain)

    async def do_request(self, rest):
        name, attributes, timeout_ns = scenario.read_request(rest)

        async def ask():
            try:
                reply = await self.clients[name].request(attributes, timeout=timeout_ns / 1e9)
            except wayfare.NoReply:
                self.answers.append((name, None))
            else:
                self.answers.append((name, reply.attributes))

        self.tasks.append(asyncio.create_task(ask()))

    async def do_reply(self, rest):
        name, attributes = rest.split(maxsplit=1)
        (subscription,) = [one for (who, _), one in self.subscriptions.items() if who == name]
        request = await subscription.get(10)
        await request.reply(scenario.read_attributes(attributes))

    # What happens to the network

    async def do_cut(self, rest):
        ends = scenario._ends(rest)
        self.cuts.add(frozenset(ends))
        self.roads[ends].swallow()

    async def do_heal(self, rest):
        ends = scenario._ends(rest)
        self.cuts.discard(frozenset(ends))
        self.roads[ends].heal()

    async def do_crash(self, rest):
        """The broker stops, and starts again where it was, with what it had kept."""
        name, time = rest.split()
        at = self.brokers[name].address
        await self.brokers[name].stop()
        self.tasks.append(
            asyncio.create_task(
                self.start_later(name, at, min(scenario._time_ns(time) / 1e9, DOWN_MAX_S))
            )
        )

    async def start_later(self, name, at, seconds):
        await asyncio.sleep(seconds)
        await self.start(name, at)
        here = [one for one, broker in self.at.items() if broker == name]
        await until(lambda: all(self.clients[one].broker for one in here))

    # Time

    async def do_wait(self, rest):
        seconds = scenario._time_ns(rest) / 1e9
        if seconds <= WAIT_MAX_S:
            await asyncio.sleep(seconds)
        else:
            await self.quiet()

    async def do_settle(self, rest):
        await self.quiet()

    async def do_note(self, rest):
        pass

    async def do_trace(self, rest):
        pass

    async def do_show(self, rest):
        pass


def by_publisher(deliveries):
    """What each client got, of each publisher, in order."""
    out = {}
    for client, publisher, attributes in deliveries:
        out.setdefault((client, publisher), []).append(attributes)
    return out


def delivered(events):
    return by_publisher(
        (one.client, one.publisher, without_addresses(one.attributes))
        for one in events
        if one.kind == "delivered" and "$inbox" not in one.attributes
    )


def without_addresses(attributes):
    """Addresses of requesters are random; replies are compared as answers."""
    return {name: value for name, value in attributes.items() if not name.startswith("$")}


def answers(world):
    return [
        (name, one.reply and one.reply.attributes)
        for name, client in world.clients.items()
        for _, one in client.answers
    ]


def of_the_past(events):
    return [(one.client, one.attributes) for one in events if one.reason == "past"]


def lost(events):
    out = {}
    for one in events:
        if one.kind == "lost":
            out.setdefault(one.client, []).append(one.count)
    return out


def interest(events):
    return [(one.client, one.kind, one.filter) for one in events if one.kind in INTEREST]


INTEREST = ("wanted", "unwanted")
STORIES = scenario.shipped()


@pytest.mark.parametrize("name", [name for name in STORIES if name not in NOT_LIVE])
def test_it_is_the_same_story_live(name, tmp_path):
    story = STORIES[name]
    world = scenario.play(story).world
    simulated = world.events
    stage = LiveStage(tmp_path)
    stage.stores = {text.split()[1] for _, text in story.statements if text.startswith("crash ")}

    @live
    async def tell():
        await stage.play(story)

    tell()
    assert delivered(stage.events) == delivered(simulated)
    assert of_the_past(stage.events) == of_the_past(simulated)
    assert lost(stage.events) == lost(simulated)
    assert interest(stage.events) == interest(simulated)
    assert stage.answers == answers(world)


def test_every_statement_is_played_or_its_story_is_not():
    for name, story in STORIES.items():
        words = {text.split()[0] for _, text in story.statements}
        missing = [word for word in words if not hasattr(LiveStage, f"do_{word}")]
        assert not missing or name in NOT_LIVE, (name, missing)
    assert not NOT_LIVE.keys() - STORIES.keys()
