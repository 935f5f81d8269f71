"""What benchmarks measure with."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time


def cpu_us(work: Callable[[], object]) -> float:
    """CPU microseconds of this process, without garbage collection."""
    gc.collect()
    gc.disable()
    start = process_time()
    work()
    spent = process_time() - start
    gc.enable()
    return spent * 1e6
