"""Trees of brokers, as lists of edges."""

from __future__ import annotations

from random import Random

Edges = list[tuple[str, str]]


def name(number: int) -> str:
    """b0, b1, b2 ..."""
    return f"b{number}"


def line(size: int) -> Edges:
    return [(name(i), name(i + 1)) for i in range(size - 1)]


def star(size: int) -> Edges:
    return [(name(0), name(i)) for i in range(1, size)]


def balanced(height: int, degree: int) -> Edges:
    """A tree of so many levels; (4, 4) has 85 brokers, of which the last 64 are leaves."""
    total = sum(degree**level for level in range(height))
    return [(name((i - 1) // degree), name(i)) for i in range(1, total)]


def above(leaves: list[str], degree: int) -> Edges:
    """A tree over these leaves, each level as full as can be; its root is named first."""
    levels: list[Edges] = []
    below, count = leaves, 0
    while len(below) > 1 or not levels:
        groups = [below[i : i + degree] for i in range(0, len(below), degree)]
        names = [f"n{count + i}" for i in range(len(groups))]
        levels.append(
            [(one, other) for one, group in zip(names, groups, strict=True) for other in group]
        )
        below, count = names, count + len(names)
    return [edge for level in reversed(levels) for edge in level]


def random_tree(random: Random, size: int) -> Edges:
    """Any tree: sometimes deep, sometimes bushy."""
    reach = random.choice([1, 3, size])
    return [(name(max(0, i - random.randint(1, min(i, reach)))), name(i)) for i in range(1, size)]


def leaves(edges: Edges) -> list[str]:
    degree: dict[str, int] = {}
    for edge in edges:
        for end in edge:
            degree[end] = degree.get(end, 0) + 1
    return [broker for broker in degree if degree[broker] == 1]


def neighbours(edges: Edges) -> dict[str, list[str]]:
    """Every broker's neighbours, in the order of the edges."""
    out: dict[str, list[str]] = {}
    for a, b in edges:
        out.setdefault(a, []).append(b)
        out.setdefault(b, []).append(a)
    return out


def paths(edges: Edges, root: str) -> dict[str, list[str]]:
    """The brokers from the root to each broker, both included."""
    near = neighbours(edges)
    out = {root: [root]}
    todo = [root]
    while todo:
        here = todo.pop()
        for other in near.get(here, []):
            if other not in out:
                out[other] = [*out[here], other]
                todo.append(other)
    return out


def path(edges: Edges, a: str, b: str) -> Edges:
    """The edges between two brokers of a tree whose edges lead away from the root."""
    parents = {child: parent for parent, child in edges}

    def way_up(broker: str) -> Edges:
        out = []
        while broker in parents:
            out.append((parents[broker], broker))
            broker = parents[broker]
        return out

    ups, downs = way_up(a), way_up(b)
    return [one for one in ups if one not in downs] + [one for one in downs if one not in ups]


def check_tree(brokers: list[str], edges: Edges) -> str | None:
    """What is wrong with it, if these edges do not make one tree of these brokers."""
    if len(edges) != len(brokers) - 1:
        return f"a tree of {len(brokers)} brokers has {len(brokers) - 1} links, not {len(edges)}"
    near = neighbours(edges)
    seen, todo = {brokers[0]}, [brokers[0]]
    while todo:
        for other in near.get(todo.pop(), []):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    cut_off = [broker for broker in brokers if broker not in seen]
    return f"{cut_off[0]} is not connected to {brokers[0]}" if cut_off else None
