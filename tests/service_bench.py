"""A world for the core of the mobility service: everything happens in a random order that FIFO allows.

There is no time but what tests let pass. The system below is a tree of access points that either
floods publications or propagates subscriptions, one message on one link at a time.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from wayfare.service import effects as e
from wayfare.service import messages as m
from wayfare.service.library import Library
from wayfare.service.proxy import Proxy
from wayfare.service.system import Id, Publication, Traits

MS = 1_000_000


class Plain:
    """Topics of words with dots; a subscription is a topic, or `*` and anything: all of `news`."""

    traits = Traits()

    def topic(self, *words: str) -> str:
        return ".".join(words)

    def subscription(self, topic: str) -> str:
        return topic


def matches(subscription: str, publication: Publication) -> bool:
    if subscription.startswith("*"):
        return publication.topic == "news"
    return publication.topic == subscription


class World:
    """Access points 0, 1, ... in a tree, a proxy at each, and clients."""

    def __init__(self, seed: int, parents: list[int], propagates: bool) -> None:
        self.random = Random(seed)
        self.now = 0
        self.propagates = propagates
        self.neighbours: list[list[int]] = [[] for _ in parents]
        for node, parent in enumerate(parents):
            if node:
                self.neighbours[node].append(parent)
                self.neighbours[parent].append(node)
        self.tables: list[dict[Any, dict[str, None]]] = [{} for _ in parents]
        self.queues: dict[Any, deque[tuple[Any, ...]]] = {}
        self.language = Plain()
        self.proxies = {
            f"proxy{node}": Proxy(f"proxy{node}", f"node{node}", self.language)
            for node in range(len(parents))
        }
        self.libraries: dict[str, Library] = {}
        self.delivered: dict[str, list[Publication | e.Gap]] = {}
        self.told: dict[str, list[e.Effect]] = {}
        self.down: set[str] = set()  # proxies that do not answer
        self.deaf: set[str] = set()  # ... whose connections live
        self.numbers: dict[str, int] = {}

    # ---- actions -----------------------------------------------------------------------

    def join(self, client: str, **options: Any) -> Library:
        library = self.libraries[client] = Library(client, "key", self.language, **options)
        self.delivered[client], self.told[client] = [], []
        return library

    def do(self, client: str, effects: list[e.Effect]) -> None:
        self._perform(client, effects)

    def publish(self, node: int, sender: str = "pub", topic: str = "news") -> Publication:
        self.numbers[sender] = self.numbers.get(sender, 0) + 1
        publication = Publication(topic, id=Id(sender, self.numbers[sender]))
        self._put(("pub", sender), node, "publish", None, publication)
        return publication

    def run(self, steps: int | None = None) -> None:
        """So many steps, or until nothing is left to do without time."""
        while steps is None or steps > 0:
            ready = [key for key, queue in self.queues.items() if queue]
            if not ready:
                return
            key = self.random.choice(sorted(ready, key=repr))
            self._take(key, *self.queues[key].popleft())
            if steps is not None:
                steps -= 1

    def wait(self, ms: int) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now + ms * MS
        while True:
            self.run()
            owners: dict[str, Any] = {**self.proxies, **self.libraries}
            due = {
                name: one.next_deadline() for name, one in owners.items() if name not in self.down
            }
            times = [time for time in due.values() if time is not None and time <= end]
            if not times:
                self.now = end
                return
            self.now = max(self.now, min(times))
            for name in [
                name for name, time in due.items() if time is not None and time <= self.now
            ]:
                self._perform(name, owners[name].step(e.Tick(), self.now))

    def cut_off(self, client: str) -> None:
        """What it says or is told does not arrive any more, until it moves in elsewhere."""
        library = self.libraries[client]
        library._open, library._renew_at = False, None
        self._close(client, client)

    def break_access(self, owner: str, client: str) -> None:
        """The connection to the access point breaks; what was under way is gone."""
        self._close(owner, client)
        for key in (("access", owner, client), ("ask", owner, client)):
            self.queues.pop(key, None)
        self._step(owner, e.AccessGone(client, "it broke"))

    def break_connection(self, client: str) -> None:
        """... and so the one to its proxy."""
        proxy = self.libraries[client].proxy
        for key in (("peer", client, proxy), ("peer", proxy, client)):
            self.queues.pop(key, None)
        self._step(client, e.PeerGone(proxy, "it broke"))
        self._step(proxy, e.PeerGone(client, "it broke"))

    def _close(self, owner: str, client: str) -> None:
        for table in self.tables:
            table.pop(("access", owner, client), None)
        for node in range(len(self.tables)):
            self._propagate(node)

    # ---- hosts -------------------------------------------------------------------------

    def _put(self, key: Any, *action: Any) -> None:
        self.queues.setdefault(key, deque()).append(action)

    def _perform(self, owner: str, effects: list[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.Send(peer, message):
                    target = peer.removeprefix("from ")
                    self._put(("peer", owner, target), "message", owner, target, message)
                case e.Open(client, access, _):
                    self._put(("ask", owner, client), int(access[4:]), "open", owner, client)
                case e.Shut(client):
                    self._put(("ask", owner, client), None, "shut", owner, client)
                case e.Subscribe(client, texts):
                    self._put(("ask", owner, client), None, "subscribe", owner, client, texts)
                case e.Unsubscribe(client, texts):
                    self._put(("ask", owner, client), None, "unsubscribe", owner, client, texts)
                case e.Publish(client, publication):
                    self._put(("ask", owner, client), None, "publish", owner, client, publication)
                case e.Deliver(publication):
                    self.delivered[owner].append(publication)
                case e.Gap():
                    self.delivered[owner].append(effect)
                case e.Moved() | e.Failed() | e.Ended():
                    self.told[owner].append(effect)

    def _step(self, owner: str, event: e.Event) -> None:
        if owner not in self.down:
            one: Any = self.proxies.get(owner) or self.libraries[owner]
            self._perform(owner, one.step(event, self.now))

    def _take(self, key: Any, *action: Any) -> None:
        kind = key[0]
        if kind == "peer":
            _, sender, target, message = action
            if target in self.deaf:
                pass
            elif target in self.down:
                self._step(sender, e.PeerGone(target, "nobody listens"))
            else:
                assert m.decode(m.encode(message)) == message
                self._step(target, e.Received(sender, message))
        elif kind == "ask":
            self._ask(key, *action)
        elif kind == "pub":
            node, _, _, publication = action
            self._route(node, None, publication)
        elif kind == "link":
            source, node, what, content = action
            if what == "publish":
                self._route(node, source, content)
            else:
                self.tables[node]["link", source] = content
                self._propagate(node, except_for=source)
        elif kind == "access":
            owner, client, publication = action
            self._step(owner, e.Arrived(client, publication))

    def _ask(
        self, key: Any, node: int | None, what: str, owner: str, client: str, *rest: Any
    ) -> None:
        access = ("access", owner, client)
        where = next((n for n, table in enumerate(self.tables) if access in table), None)
        if what == "open":
            assert node is not None
            self.tables[node][access] = {}
            self._step(owner, e.Opened(client))
        elif where is None:
            pass
        elif what == "shut":
            del self.tables[where][access]
            self._propagate(where)
        elif what == "subscribe":
            self.tables[where][access].update(dict.fromkeys(rest[0]))
            self._propagate(where)
            self._step(owner, e.Subscribed(client, rest[0]))
        elif what == "unsubscribe":
            for text in rest[0]:
                self.tables[where][access].pop(text, None)
            self._propagate(where)
        elif what == "publish":
            self._route(where, None, rest[0])
            self._step(owner, e.Published(client, rest[0]))

    def _route(self, node: int, source: int | None, publication: Publication) -> None:
        for place, texts in list(self.tables[node].items()):
            if place[0] == "access" and any(matches(text, publication) for text in texts):
                self._put(place, place[1], place[2], publication)
        for other in self.neighbours[node]:
            known = self.tables[node].get(("link", other), {})
            wanted = not self.propagates or any(matches(text, publication) for text in known)
            if other != source and wanted:
                self._put(("link", node, other), node, other, "publish", publication)

    def _propagate(self, node: int, except_for: int | None = None) -> None:
        if not self.propagates:
            return
        for other in self.neighbours[node]:
            if other != except_for:
                texts = {
                    text: None
                    for place, table in self.tables[node].items()
                    if place != ("link", other)
                    for text in table
                }
                self._put(("link", node, other), node, other, "subscriptions", texts)


def here(seed: int = 1, **options: Any) -> tuple[World, Library]:
    """Ann at proxy0 of a line of three."""
    world = World(seed, [0, 0, 1], propagates=True)
    ann = world.join("ann", **options)
    world.do("ann", ann.subscribe("*1", False, 0))
    world.do("ann", ann.move_in("proxy0", 0))
    world.wait(10)
    return world, ann


def away_from_proxy0(**options: Any) -> tuple[World, Library]:
    """Ann has moved out of proxy0, which has kept one publication."""
    world, ann = here(**options)
    world.do("ann", ann.move_out(world.now))
    world.wait(10)
    world.publish(2)
    world.wait(10)
    return world, ann


def is_downloading(library: Library) -> bool:
    return library.arrival is not None and library.arrival.step == "downloading"
