"""What benchmarks measure with."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import NamedTuple

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


class _Process(NamedTuple):
    parent: int
    own: int  # ticks of CPU time
    children: int  # ... of those that it has waited for


_seen: dict[int, _Process] = {}  # at the last look
_missed = 0  # ticks of processes that have ended, and nobody has waited for


def family_cpu_s() -> float:
    """CPU seconds of this process and of all below it, those that have ended included.

    A parent that ignores its children, like that of Spark's workers in Python, does not have their time when
    they have ended. It is what it was at the last look.
    """
    global _seen, _missed
    now = _family()
    ended: dict[int, int] = {}
    for process, last in _seen.items():
        if process not in now:
            heir = last.parent
            while heir in _seen and heir not in now:
                heir = _seen[heir].parent
            ended[heir] = ended.get(heir, 0) + last.own + last.children
    for heir, ticks in ended.items():
        if heir in now and heir in _seen:
            ticks -= now[heir].children - _seen[heir].children
        _missed += max(0, ticks)
    _seen = now
    ticks = _missed + sum(one.own + one.children for one in now.values())
    return ticks / os.sysconf("SC_CLK_TCK") + process_time()


def _family() -> dict[int, _Process]:
    """The processes below this one."""
    found: dict[int, _Process] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended in the meantime
            continue
        own, children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        found[int(stat.parent.name)] = _Process(int(fields[1]), own, children)
    if not found:
        raise UsageError("CPU time of other processes is read from /proc, which is not there")
    below: dict[int, _Process] = {}
    todo = [os.getpid()]
    while todo:
        parent = todo.pop()
        for process, one in found.items():
            if one.parent == parent:
                below[process] = one
                todo.append(process)
    return below
