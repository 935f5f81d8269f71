"""How fast the simulator is, beside the loop that no simulator of this kind can beat.

The network of the publisher mobility paper: 85 brokers, publishers with one publication each, 500
subscribers to one of them each.

    sim     nobody moves, 50 publishers publish all the time: what a notification takes
    city    250 publishers drive for ten minutes, as in `wayfare sim city`: what a move takes, too

The bare loop pops an event from a heap and pushes the next one, as many on the heap as the
simulation has; it is what remains of a simulator when nothing is simulated. It runs in turns with
the simulation, so that both see the same machine.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random
from statistics import median
from time import process_time
from typing import Any

from wayfare.sim import topology
from wayfare.sim.city import City
from wayfare.sim.experiment import Parameters
from wayfare.sim.links import MS_NS
from wayfare.sim.world import World

ROUNDS = 5
BARE_EVENTS = 200_000
ALGORITHMS = ("standard", "handoff")  # of the city: a flood for every move, and hardly anything


def network(
    seed: int, routing: str = "covering", publishers: int = 50, subscribers: int = 500
) -> World:
    """The paper's city, settled, with nobody publishing yet."""
    random = Random(seed)
    world = World(seed, routing)
    edges = topology.balanced(height=4, degree=4)
    world.add_brokers(edges)
    borders = topology.leaves(edges)
    for i in range(publishers):
        world.add_client(f"p{i}", random.choice(borders)).advertise(f"topic = 't{i}'")
    for i in range(subscribers):
        topic = random.randrange(publishers)
        world.add_client(f"s{i}", random.choice(borders)).subscribe(f"topic = 't{topic}'")
    world.settle()
    return world


def publish_for(world: World, publishers: int, seconds: int, per_second: int) -> None:
    """Every publisher publishes so often, each at its own phase, drawn at random."""
    every = 1000 * MS_NS // per_second
    start, end = world.now, world.now + seconds * 1000 * MS_NS

    def publish(i: int) -> None:
        world.clients[f"p{i}"].publish({"topic": f"t{i}", "value": 1})
        if world.now + every < end:
            world.agenda.at(world.now + every, publish, i)

    for i in range(publishers):
        world.agenda.at(start + world.random.randrange(every), publish, i)
    world.run_until(end)


def bare_loop(events: int, on_heap: int) -> float:
    """CPU seconds of a heap loop with nothing to do."""
    random = Random(0)
    counter = count()

    def nothing(argument: Any) -> None:
        pass

    heap: list[tuple[int, int, Callable[[Any], None], Any]] = [
        (random.randrange(10 * MS_NS), next(counter), nothing, None) for _ in range(on_heap)
    ]
    heapify(heap)
    started = process_time()
    for _ in range(events):
        now, _, action, argument = heappop(heap)
        action(argument)
        heappush(heap, (now + 10 * MS_NS, next(counter), action, argument))
    return process_time() - started


def run(seed: int = 1, quick: bool = False, routing: str = "covering") -> Iterator[dict[str, Any]]:
    yield publishing(seed, quick, routing)
    for algorithm in ALGORITHMS:
        yield driving(seed, quick, routing, algorithm)


def publishing(seed: int, quick: bool, routing: str) -> dict[str, Any]:
    publishers, subscribers = 50, 500
    seconds = 2 if quick else 10
    world = network(seed, routing, publishers, subscribers)
    simulated, bare, delivered = [], [], 0
    gc.collect()
    gc.freeze()  # what is built is not what is measured
    for _ in range(2 if quick else ROUNDS):
        world.events.clear()  # or every round would ask the system for more memory
        for client in world.clients.values():
            client.received.clear()
        before, started = world.messages(), process_time()
        publish_for(world, publishers, seconds, per_second=5)
        spent = process_time() - started
        simulated.append((world.messages() - before) / spent)
        delivered += sum(event.kind == "delivered" for event in world.events)
        on_heap = max(100, len(world.agenda))
        bare.append(BARE_EVENTS / bare_loop(BARE_EVENTS, on_heap))
    gc.unfreeze()
    return {
        "bench": "sim",
        "routing": routing,
        "brokers": len(world.brokers),
        "publishers": publishers,
        "subscribers": subscribers,
        "delivered": delivered,
        "messages_per_cpu_second": round(median(simulated)),
        "bare_loop_per_cpu_second": round(median(bare)),
        "share_of_bare_loop": round(median(s / b for s, b in zip(simulated, bare, strict=True)), 3),
        "on_heap": on_heap,
    }


def driving(seed: int, quick: bool, routing: str, algorithm: str) -> dict[str, Any]:
    """A whole city: building it and its warm-up are part of what is measured."""
    publishers, subscribers, minutes = (20, 60, 0.5) if quick else (250, 500, 10.0)
    parameters = Parameters(
        algorithm=algorithm,
        routing=routing,
        seed=seed,
        publishers=publishers,
        subscribers=subscribers,
        minutes=minutes,
    )
    gc.collect()
    started = process_time()
    city = City(parameters)
    on_heap = max(100, len(city.world.agenda))
    building = process_time() - started
    before = bare_loop(BARE_EVENTS, on_heap)
    started = process_time()
    figures = city.run()
    spent = building + process_time() - started
    bare = 2 * BARE_EVENTS / (before + bare_loop(BARE_EVENTS, on_heap))
    messages = city.world.messages()
    return {
        "bench": "city",
        "algorithm": algorithm,
        "routing": routing,
        "publishers": publishers,
        "subscribers": subscribers,
        "speed_kmh": parameters.speed_kmh,
        "minutes": minutes,
        "moves": figures.moves,
        "messages": messages,
        "lost": figures.lost,
        "cpu_seconds": round(spent, 2),
        "messages_per_cpu_second": round(messages / spent),
        "bare_loop_per_cpu_second": round(bare),
        "share_of_bare_loop": round(messages / spent / bare, 3),
        "on_heap": on_heap,
    }
