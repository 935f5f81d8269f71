"""How fast is covering: the tables of a covering router, by index and by scan.

The filters are as those of a city's services: a few that are wide, many that are narrow. A table
keeps the filters that no other one covers: for each new filter, ask who covers it, and if
nobody does, remove those that it covers. Times are CPU time; both sides see the same filters in
the same run and must end with the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from wayfare.bench.timing import cpu_us
from wayfare.core import predicates as ps
from wayfare.core.covering import CoverIndex
from wayfare.core.filters import Filter
from wayfare.core.predicates import Predicate

FILTERS = (1_000, 10_000, 100_000)
SCAN_FILTERS_MAX = 10_000
QUESTIONS = 300


def run(
    filters: Iterable[int] = FILTERS, seed: int = 1, quick: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield one measurement for each number of filters."""
    for count in filters:
        random = Random(f"{seed} covering {count}")
        drawn = list(dict.fromkeys(_filter(random, count) for _ in range(count)))
        questions = [_filter(random, count) for _ in range(50 if quick else QUESTIONS)]
        yield {"filters": count, **_measured(drawn, questions)}


def _measured(drawn: list[Filter], questions: list[Filter]) -> dict[str, Any]:
    for each in (*drawn, *questions):
        each.covers(each)  # what a filter keeps of itself is made once, for both sides
    table = CoverIndex()
    insert_us = cpu_us(lambda: _insert_by_index(table, drawn)) / len(drawn)
    scan_us = None
    if len(drawn) <= SCAN_FILTERS_MAX:
        scanned: dict[Filter, None] = {}
        scan_us = cpu_us(lambda: _insert_by_scan(scanned, drawn)) / len(drawn)
        assert len(table) == len(scanned), "the index and the scan disagree"
        assert all(each in table for each in scanned), "the index and the scan disagree"
        _check(table, list(scanned), questions)
    everything = CoverIndex()
    for each in drawn:
        everything.add(each)
    coverers_us = cpu_us(lambda: [everything.coverers(each) for each in questions])
    covered_us = cpu_us(lambda: [everything.covered(each) for each in questions])
    return {
        "kept": len(table),
        "insert_us": round(insert_us, 1),
        "scan_us": None if scan_us is None else round(scan_us, 1),
        "speedup": None if scan_us is None else round(scan_us / insert_us, 1),
        "coverers_us": round(coverers_us / len(questions), 1),
        "covered_us": round(covered_us / len(questions), 1),
    }


def _insert_by_index(table: CoverIndex, drawn: list[Filter]) -> None:
    for each in drawn:
        if not table.coverers(each):
            for narrow in table.covered(each):
                table.remove(narrow)
            table.add(each)


def _insert_by_scan(table: dict[Filter, None], drawn: list[Filter]) -> None:
    for each in drawn:
        if not any(wide.covers(each) for wide in table):
            for narrow in [member for member in table if each.covers(member)]:
                del table[narrow]
            table[each] = None


def _check(table: CoverIndex, members: list[Filter], questions: list[Filter]) -> None:
    for each in questions[:50]:
        assert table.coverers(each) == [member for member in members if member.covers(each)]
        assert table.covered(each) == [member for member in members if each.covers(member)]


def _filter(random: Random, count: int) -> Filter:
    """A service, and mostly where or for how much: the narrower, the more of them."""
    wide = random.random() < 0.02
    given: list[Predicate | None] = [
        ps.one_of("service", [f"s{random.randrange(max(10, count // 50))}"])
    ]
    if not wide or random.random() < 0.5:
        low = random.randrange(1000)
        given.append(ps.between("price", low, low + random.randrange(1, 400 if wide else 60)))
    if not wide and random.random() < 0.7:
        given.append(ps.one_of("street", random.sample(STREETS, random.randint(1, 3))))
    if random.random() < 0.2:
        given.append(ps.prefix("road", random.choice("AB") + str(random.randrange(1, 40))))
    return Filter.of([[p for p in given if p is not None]])


STREETS = [f"street {i}" for i in range(200)]
