"""Trees are trees, and what is none is told so."""

from random import Random

import pytest

from wayfare.errors import UsageError
from wayfare.sim import World, topology


def names_of(edges):
    return list(dict.fromkeys(end for edge in edges for end in edge)) or ["b0"]


def is_tree(size, edges):
    """By union-find: no edge joins what is joined already, and in the end all is one."""
    root = {topology.name(i): topology.name(i) for i in range(size)}

    def find(one):
        while root[one] != one:
            one = root[one]
        return one

    for a, b in edges:
        if find(a) == find(b):
            return False
        root[find(a)] = find(b)
    return len({find(one) for one in root}) == 1


@pytest.mark.parametrize("size", range(1, 101))
def test_random_trees_are_trees(size):
    for seed in range(5):
        edges = topology.random_tree(Random(seed), size)
        assert len(edges) == size - 1
        assert is_tree(size, edges)
        assert topology.check_tree(names_of(edges), edges) is None


def test_random_trees_are_deep_and_bushy():
    depths = set()
    for seed in range(60):
        edges = topology.random_tree(Random(seed), 30)
        depth = {"b0": 0}
        for parent, child in edges:
            depth[child] = depth[parent] + 1
        depths.add(max(depth.values()))
    assert min(depths) <= 8
    assert max(depths) == 29


def test_the_same_seed_gives_the_same_tree():
    assert topology.random_tree(Random(5), 40) == topology.random_tree(Random(5), 40)


def test_a_line():
    assert topology.line(1) == []
    assert topology.line(4) == [("b0", "b1"), ("b1", "b2"), ("b2", "b3")]
    assert topology.leaves(topology.line(4)) == ["b0", "b3"]


def test_a_star():
    assert topology.star(1) == []
    assert topology.star(4) == [("b0", "b1"), ("b0", "b2"), ("b0", "b3")]
    assert topology.leaves(topology.star(4)) == ["b1", "b2", "b3"]


def test_a_balanced_tree():
    edges = topology.balanced(height=4, degree=4)
    assert is_tree(85, edges)
    assert len(topology.leaves(edges)) == 64
    assert topology.leaves(edges) == [topology.name(i) for i in range(21, 85)]
    assert topology.balanced(height=1, degree=4) == []
    assert topology.balanced(height=2, degree=3) == topology.star(4)


def test_neighbours_come_in_the_order_of_the_edges():
    near = topology.neighbours([("b", "a"), ("c", "b"), ("b", "d")])
    assert near == {"b": ["a", "c", "d"], "a": ["b"], "c": ["b"], "d": ["b"]}


@pytest.mark.parametrize(
    ("brokers", "edges", "wrong"),
    [
        (["a"], [], None),
        (["a", "b"], [("a", "b")], None),
        (["a", "b"], [], "a tree of 2 brokers has 1 links, not 0"),
        (["a", "b"], [("a", "b"), ("b", "a")], "a tree of 2 brokers has 1 links, not 2"),
        (["a"], [("a", "a")], "a tree of 1 brokers has 0 links, not 1"),
        (
            ["a", "b", "c", "d"],
            [("a", "b"), ("b", "c"), ("c", "a")],
            "d is not connected to a",
        ),
        (["a", "b", "c"], [("a", "b"), ("b", "a")], "c is not connected to a"),
        (["a", "b", "c"], [("a", "b"), ("c", "c")], "c is not connected to a"),
    ],
)
def test_what_is_wrong_with_a_tree(brokers, edges, wrong):
    assert topology.check_tree(brokers, edges) == wrong


@pytest.mark.parametrize(
    "edges",
    [
        [("a", "a")],
        [("a", "b"), ("b", "a")],
        [("a", "b"), ("b", "c"), ("c", "a")],
        [("a", "b"), ("c", "d")],
    ],
)
def test_a_world_refuses_what_is_no_tree(edges):
    with pytest.raises(UsageError, match=r"a tree of|is not connected"):
        World().add_brokers(edges)
