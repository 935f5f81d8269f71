"""What benchmarks measure with."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from time import process_time

from wayfare.errors import UsageError


def cpu_us(work: Callable[[], object]) -> float:
    """CPU microseconds of this process, without garbage collection."""
    gc.collect()
    gc.disable()
    start = process_time()
    work()
    spent = process_time() - start
    gc.enable()
    return spent * 1e6


def family_cpu_s() -> float:
    """CPU seconds of this process and of all below it, those that have ended included."""
    below: dict[int, list[tuple[int, int]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended in the meantime
            continue
        below.setdefault(int(fields[1]), []).append(
            (int(stat.parent.name), sum(map(int, fields[11:15])))
        )
    if not below:
        raise UsageError("CPU time of other processes is read from /proc, which is not there")
    ticks, todo = 0, [os.getpid()]
    while todo:
        for process, spent in below.get(todo.pop(), []):
            ticks += spent
            todo.append(process)
    return ticks / os.sysconf("SC_CLK_TCK") + process_time()
