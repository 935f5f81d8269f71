"""The garbage collector in the process of a broker.

A full collection looks at every object that refers to others: with many sessions and filters it takes a second, and it
comes while frames are handled, because these make objects. What has survived one collection mostly stays. So it is
frozen: later collections look at what is new since, and take milliseconds. What is frozen is freed as ever when nothing
refers to it any more, unless it is part of a cycle, which a closed connection leaves behind. Those are found when
everything is looked at again, now and then.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

OLDEST = 2  # the last generation of the collector
FREEZES_MAX = 200  # then everything is looked at once more: by then this took longer than that will


class Collector:
    """Of this process, from `install` until `remove`."""

    def __init__(self) -> None:
        self.freezes = 0

    def install(self) -> None:
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._on_collection)

    def remove(self) -> None:
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase != "stop" or info["generation"] != OLDEST:
            return
        self.freezes += 1
        if self.freezes % FREEZES_MAX:
            gc.freeze()
        else:
            gc.unfreeze()  # the next collection looks at everything, and freezes what survives
