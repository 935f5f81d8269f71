"""Where every broker of the tree is, as it is announced, and errands that go there."""

from collections import deque
from random import Random

import pytest

from wayfare.core.messages import ANNOUNCE_MAX, Announce, Reply, Request
from wayfare.core.paths import Paths
from wayfare.sim import topology


def paths(*neighbours):
    return Paths("lisbon", neighbours)


def request(number=1):
    return Request("lisbon", "anna", number, 0, ())


def test_a_new_link_learns_of_this_broker():
    assert paths("faro").known_beyond("faro") == [Announce(("lisbon",))]


def test_a_new_link_learns_of_everybody_in_other_directions():
    here = paths("faro", "porto")
    here.learn("faro", ["faro", "lagos"])
    here.learn("porto", ["porto"])
    assert here.known_beyond("porto") == [Announce(("lisbon", "faro", "lagos"))]
    assert here.known_beyond("faro") == [Announce(("lisbon", "porto"))]


def test_what_is_new_goes_on_to_the_others_and_not_back():
    here = paths("faro", "porto", "evora")
    told = Announce(("faro", "lagos"))
    assert here.learn("faro", ["faro", "lagos"]) == [("porto", told), ("evora", told)]


def test_what_is_known_does_not_go_on():
    here = paths("faro", "porto")
    here.learn("faro", ["faro"])
    assert here.learn("faro", ["faro"]) == []
    assert here.learn("faro", ["faro", "lagos"]) == [("porto", Announce(("lagos",)))]


def test_a_broker_that_is_in_another_direction_now_is_told_anew():
    here = paths("faro", "porto", "evora")
    here.learn("faro", ["beja"])
    told = Announce(("beja",))
    assert here.learn("evora", ["beja"]) == [("faro", told), ("porto", told)]
    assert here.send_to("beja", request())
    assert here.take_mail() == {"evora": [request()]}


def test_nobody_tells_a_broker_where_it_is_itself():
    here = paths("faro", "porto")
    assert here.learn("faro", ["lisbon"]) == []
    assert not here.send_to("lisbon", request())


@pytest.mark.parametrize("more", [0, 1])
def test_many_brokers_are_announced_in_several_messages(more):
    names = tuple(f"b{number}" for number in range(ANNOUNCE_MAX + more))
    here = paths("faro", "porto")
    told = [one for _, one in here.learn("faro", names)]
    assert [len(one.brokers) for one in told] == [ANNOUNCE_MAX, *[more] * more]
    assert sum((one.brokers for one in told), ()) == names
    assert [len(one.brokers) for one in here.known_beyond("porto")] == [ANNOUNCE_MAX, 1 + more]


# Errands


def test_errands_wait_by_neighbour_in_the_order_in_which_they_were_sent():
    here = paths("faro", "porto")
    here.learn("faro", ["faro", "lagos"])
    here.learn("porto", ["porto"])
    reply = Reply("porto", "bert", 3, found=False)
    assert here.send_to("lagos", request(1))
    assert here.send(reply)
    assert here.send_to("faro", request(2))
    assert here.take_mail() == {"faro": [request(1), request(2)], "porto": [reply]}


def test_errands_are_taken_once():
    here = paths("faro")
    here.learn("faro", ["faro"])
    here.send_to("faro", request())
    mail = here.take_mail()
    assert here.take_mail() == {}
    assert mail == {"faro": [request()]}


def test_nobody_sends_to_a_broker_that_has_not_been_announced():
    here = paths("faro")
    assert not here.send_to("faro", request())
    assert not here.send(Reply("lagos", "anna", 2, found=False))
    assert here.take_mail() == {}


# The whole tree


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_tree_and_the_order_everybody_knows_the_way_to_everybody(seed):
    random = Random(seed)
    edges = topology.random_tree(random, random.randint(2, 20))
    near = topology.neighbours(edges)
    brokers = {name: Paths(name, near[name]) for name in near}
    wires = {(a, b): deque() for a in near for b in near[a]}
    ups, messages = list(wires), 0
    while ups or any(wires.values()):
        if ups and random.random() < 0.3:
            a, b = ups.pop(random.randrange(len(ups)))
            wires[a, b].extend(brokers[a].known_beyond(b))
            continue
        busy = [ends for ends in wires if wires[ends]]
        if busy:
            a, b = random.choice(busy)
            for other, one in brokers[b].learn(a, wires[a, b].popleft().brokers):
                wires[b, other].append(one)
            messages += 1
    for name, here in brokers.items():
        for target in brokers.keys() - {name}:
            at, hops = name, 0
            while at != target:
                assert brokers[at].send_to(target, request())
                ((at, _),) = brokers[at].take_mail().items()
                hops += 1
            assert hops < len(brokers)
        assert here.take_mail() == {}
    assert messages <= len(wires) * len(brokers)
