"""The core of the mobility service: proxies and libraries in random orders of events."""

from random import Random

import pytest

from service_bench import World
from wayfare.service import effects as e
from wayfare.service.messages import NO_SYNC, PING, Terms

PAPER = Terms(sync=NO_SYNC, standby=False, copies=True)


def test_a_client_that_moves_gets_everything_once() -> None:
    world = World(0, [0, 0, 1], propagates=True)
    ann = world.join("ann")
    world.do("ann", ann.subscribe("*1", False, 0))
    world.do("ann", ann.move_in("proxy0", 0))
    world.run()
    published = [world.publish(2) for _ in range(3)]
    world.run()
    world.do("ann", ann.move_out(0))
    world.run()
    assert world.told["ann"] == [e.Moved(True), e.Moved(False)]
    published += [world.publish(2) for _ in range(3)]
    world.run()
    world.do("ann", ann.move_in("proxy1", 0))
    published += [world.publish(2) for _ in range(3)]
    world.run()
    assert world.delivered["ann"] == published
    assert not world.proxies["proxy0"].clients
    assert list(world.proxies["proxy1"].clients) == ["ann"]


@pytest.mark.parametrize("propagates", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_with_ping_and_ids_nothing_is_lost_or_comes_twice(seed: int, propagates: bool) -> None:
    world, published = walk(seed, propagates, Terms(), PING)
    assert world.delivered["ann"] == published
    holders = [name for name, proxy in world.proxies.items() if proxy.clients]
    assert holders == [world.libraries["ann"].proxy]


def walk(seed: int, propagates: bool, terms: Terms, sync: object) -> tuple[World, list[object]]:
    """One client that moves at random, now and then without moving out; all that was published."""
    random = Random(seed)
    parents = [0, *(random.randrange(node) for node in range(1, random.randint(2, 5)))]
    world = World(seed, parents, propagates)
    ann = world.join("ann", terms=terms, sync=sync)
    for number in range(random.randint(1, 3)):
        world.do("ann", ann.subscribe(f"*{number}", False, 0))
    world.do("ann", ann.move_in("proxy0", 0))
    world.run()
    published: list[object] = []
    home = random.randrange(len(parents))
    for _ in range(random.randint(3, 12)):
        for _ in range(random.randint(0, 3)):
            published.append(world.publish(home))
            world.run(random.randint(0, 10))
        if ann.state == "attached" and random.random() < 0.3:
            world.do("ann", ann.move_out(world.now))
        elif ann.state != "moving-out" and random.random() < 0.4:
            world.do("ann", ann.move_in(f"proxy{random.randrange(len(parents))}", world.now))
        world.run(random.randint(0, 40))
        if random.random() < 0.2:
            world.wait(random.randint(1, 5000))
    world.wait(1000)
    if ann.state == "away":
        world.do("ann", ann.move_in("proxy0", world.now))
    world.wait(2000)
    return world, published
