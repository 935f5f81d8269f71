"""The garbage collector of a broker: what has survived is not looked at again, and no garbage stays for ever."""

import gc
import time
import weakref

import pytest

from wayfare.net import collector
from wayfare.net.collector import Collector


@pytest.fixture
def installed():
    one = Collector()
    one.install()
    yield one
    one.remove()


class Node:
    def __init__(self) -> None:
        self.me = self


def test_what_survived_a_collection_costs_the_next_ones_nothing(installed):
    def longest_ms(many):
        times = []
        for _ in range(5):
            before = time.process_time()
            gc.collect()
            times.append((time.process_time() - before) * 1e3)
        return min(times), many

    few, _ = longest_ms([])
    many, kept = longest_ms([[number] for number in range(300_000)])
    assert gc.get_freeze_count() > 300_000 and len(kept) == 300_000
    assert many < few + 5


def test_a_cycle_that_was_frozen_is_found_in_the_end(installed, monkeypatch):
    node = Node()
    gone = weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    assert gone() is not None
    monkeypatch.setattr(collector, "FREEZES_MAX", installed.freezes + 1)
    gc.collect()
    assert installed.freezes % collector.FREEZES_MAX == 0 and gone() is not None
    gc.collect()
    assert gone() is None


def test_a_cycle_that_is_not_frozen_is_found_at_once(installed):
    node = Node()
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None


def test_without_it_all_is_as_before():
    one = Collector()
    one.install()
    one.remove()
    assert gc.get_freeze_count() == 0 and one._on_collection not in gc.callbacks
