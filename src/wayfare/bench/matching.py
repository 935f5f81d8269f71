"""How fast is matching: the index against a loop over all filters, on four workloads.

    zipf    20 attributes of Zipf popularity, 1 to 5 predicates a filter, about 0.1 % of them match
    topic   one equality on `topic`
    range   one or two two-sided ranges
    full    texts (prefix, suffix, contains, like) and places (near) beside equality and ranges

Times are CPU time. Both sides see the same filters and notifications in the same run, and
their answers are compared.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from wayfare.bench.timing import cpu_us
from wayfare.core import predicates as ps
from wayfare.core.filters import Filter
from wayfare.core.matching import FilterIndex
from wayfare.core.predicates import Predicate, Value

FILTERS = (1_000, 10_000, 100_000)
WORKLOADS = ("zipf", "topic", "range", "full")
NAIVE_FILTERS_MAX = 10_000
NOTIFICATIONS = 1_000
REMOVED = 1_000
ROUNDS = 5  # the best one counts
PASSES_US = 20_000  # that one round takes at least

Notification = dict[str, Value]
Drawn = tuple[Filter, ...]


def run(
    filters: Iterable[int] = FILTERS,
    workloads: Iterable[str] = WORKLOADS,
    seed: int = 1,
    quick: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield one measurement for each workload and number of filters."""
    for workload in workloads:
        draw_filter, draw_notification = WORKLOAD[workload]
        for count in filters:
            random = Random(f"{seed} {workload} {count}")
            wanted = [Filter.of([draw_filter(random, count)]) for _ in range(count)]
            published = [draw_notification(random, count) for _ in range(NOTIFICATIONS)]
            yield {
                "workload": workload,
                "filters": count,
                **_measured(wanted, published[: 50 if quick else None], 2 if quick else ROUNDS),
            }


def _measured(wanted: list[Filter], published: list[Notification], rounds: int) -> dict[str, Any]:
    index: FilterIndex[int] = FilterIndex()
    insert_us = cpu_us(lambda: _insert(index, wanted)) / len(wanted)
    answers = [sorted(index.match(each)) for each in published]
    # Some passes in one go: a collector that has just walked all filters leaves the caches cold.
    once_us = cpu_us(lambda: [index.match(each) for each in published])
    passes = 1 + int(PASSES_US / once_us)
    match_us = min(
        cpu_us(lambda: [index.match(each) for _ in range(passes) for each in published])
        for _ in range(rounds)
    ) / (passes * len(published))
    naive_us = None
    if len(wanted) <= NAIVE_FILTERS_MAX:
        naive_us = _naive_us(wanted, published, answers, rounds)
    removed = range(0, len(wanted), max(1, len(wanted) // REMOVED))
    remove_us = cpu_us(lambda: _remove(index, removed)) / len(removed)
    gone = set(removed)
    for each, before in zip(published[:50], answers, strict=False):
        assert sorted(index.match(each)) == [key for key in before if key not in gone]
    return {
        "us_per_notification": round(match_us, 2),
        "naive_us": None if naive_us is None else round(naive_us, 1),
        "speedup": None if naive_us is None else round(naive_us / match_us, 1),
        "insert_us": round(insert_us, 2),
        "remove_us": round(remove_us, 2),
        "bytes_per_filter": _bytes(wanted) // len(wanted),
        "matched": round(sum(map(len, answers)) / len(answers), 2),
    }


def _insert(index: FilterIndex[int], wanted: list[Filter]) -> None:
    for key, each in enumerate(wanted):
        index.add(key, each)


def _remove(index: FilterIndex[int], keys: Iterable[int]) -> None:
    for key in keys:
        index.remove(key)


def _naive_us(
    wanted: list[Filter], published: list[Notification], answers: list[list[int]], rounds: int
) -> float:
    tests = [(test, key) for key, each in enumerate(wanted) for test in each._tests]
    sample = published[: max(20, 400_000 // len(wanted))]

    def loop() -> None:
        for each, expected in zip(sample, answers, strict=False):
            found = [key for test, key in tests if test(each)]
            assert found == expected, "the index and the loop disagree"

    return min(cpu_us(loop) for _ in range(rounds)) / len(sample)


def _bytes(wanted: list[Filter]) -> int:
    """What the index takes beside the filters themselves."""
    keys = list(range(len(wanted)))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    index: FilterIndex[int] = FilterIndex()
    for key, each in zip(keys, wanted, strict=True):
        index.add(key, each)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


# Workloads: how to draw a filter's predicates and a notification, given how many filters there are.

ATTRIBUTES = [f"a{i}" for i in range(20)]
POPULARITY = [1 / (i + 1) for i in range(20)]
TEXT_VALUES = 400
SPREAD = 10_000.0


def _some_attributes(random: Random, count: int) -> list[str]:
    chosen: dict[str, None] = {}
    while len(chosen) < count:
        chosen[random.choices(ATTRIBUTES, POPULARITY)[0]] = None
    return list(chosen)


def _is_text(name: str) -> bool:
    return int(name[1:]) % 2 == 0


def _zipf_predicate(random: Random, name: str) -> Predicate | None:
    if _is_text(name):
        values = [f"v{random.randrange(TEXT_VALUES)}" for _ in range(random.choice((1, 1, 1, 3)))]
        return ps.one_of(name, values)
    low = random.uniform(0, SPREAD)
    if random.random() < 0.1:
        return ps.between(name, SPREAD - low / 10, low_open=True)
    return ps.between(name, low, low + SPREAD * 10 ** random.uniform(-4, -1.5))


def _zipf_filter(random: Random, count: int) -> list[Predicate]:  # noqa: ARG001
    names = _some_attributes(random, random.randint(1, 5))
    return [p for name in names if (p := _zipf_predicate(random, name)) is not None]


def _zipf_notification(random: Random, count: int) -> Notification:  # noqa: ARG001
    return {
        name: f"v{random.randrange(TEXT_VALUES)}" if _is_text(name) else random.uniform(0, SPREAD)
        for name in _some_attributes(random, 10)
    }


def _topic_filter(random: Random, count: int) -> list[Predicate]:
    return [ps.one_of("topic", [f"p{random.randrange(count)}"])]


def _topic_notification(random: Random, count: int) -> Notification:
    return {"topic": f"p{random.randrange(count)}", "at": random.random(), "size": 100}


def _range_filter(random: Random, count: int) -> list[Predicate]:  # noqa: ARG001
    out: list[Predicate] = []
    for name in random.sample(("x", "y", "z"), random.choice((1, 2, 2))):
        low = random.uniform(0, SPREAD)
        p = ps.between(name, low, low + SPREAD * 10 ** random.uniform(-4, -1))
        assert p is not None
        out.append(p)
    return out


def _range_notification(random: Random, count: int) -> Notification:  # noqa: ARG001
    return {name: random.uniform(0, SPREAD) for name in ("x", "y", "z")}


WORDS = [a + b + c for a in ("ka", "lo", "mi", "ru", "te") for b in "aeiou" for c in "lmnrst"]


def _title(random: Random) -> str:
    return " ".join(random.choices(WORDS, k=4))


def _full_predicate(random: Random, name: str) -> Predicate | None:
    if name == "place":
        return ps.near(random.uniform(47, 55), random.uniform(6, 15), 10 ** random.uniform(2, 4.5))
    if name == "kind":
        return ps.one_of("kind", [f"k{random.randrange(100)}"])
    if name == "price":
        low = random.uniform(0, SPREAD)
        return ps.between("price", low, low + random.uniform(1, SPREAD / 20))
    if name == "road":
        return ps.prefix("road", f"{random.choice('AB')}{random.randrange(1, 100)}")
    if name == "file":
        return ps.suffix("file", f"{random.randrange(1000)}.{random.choice(('txt', 'png'))}")
    if name == "title":
        return ps.contains("title", " ".join(random.choices(WORDS, k=random.choice((1, 2)))))
    first, second = random.sample(WORDS, 2)
    return ps.like("note", f"%{first}%{second}_%")


FULL = ("place", "kind", "price", "road", "file", "title", "note")


def _full_filter(random: Random, count: int) -> list[Predicate]:  # noqa: ARG001
    names = random.sample(FULL, random.randint(1, 3))
    return [p for name in names if (p := _full_predicate(random, name)) is not None]


def _full_notification(random: Random, count: int) -> Notification:  # noqa: ARG001
    return {
        "lat": random.uniform(47, 55),
        "lon": random.uniform(6, 15),
        "kind": f"k{random.randrange(100)}",
        "price": random.uniform(0, SPREAD),
        "road": f"{random.choice('AB')}{random.randrange(1000)}",
        "file": f"image{random.randrange(10_000)}.{random.choice(('txt', 'png'))}",
        "title": _title(random),
        "note": _title(random),
    }


WORKLOAD: dict[
    str, tuple[Callable[[Random, int], list[Predicate]], Callable[[Random, int], Notification]]
] = {
    "zipf": (_zipf_filter, _zipf_notification),
    "topic": (_topic_filter, _topic_notification),
    "range": (_range_filter, _range_notification),
    "full": (_full_filter, _full_notification),
}
