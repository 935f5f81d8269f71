"""What it takes to find few notifications of an archive of many.

The filter wants one in 12,500, by a text, by which archives are sorted, and by two values in any order. It is
asked as it is; without push-down to Parquet, so that every row is read; and without columns, so that
every notification is decoded and matched in Python, as it is done for many filters at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from wayfare.core.filters import Filter

WANTED = Filter.parse("service = 'parking' and free > 95 and road = 'A7'")
SIZES = (100_000, 1_000_000, 5_000_000)
TIMES = 3
PUSH_DOWN = "spark.sql.parquet.filterPushdown"


def run(seed: int, quick: bool, sizes: tuple[int, ...] = SIZES) -> Iterator[dict[str, Any]]:
    from wayfare.pipeline import archive, columns, measuring
    from wayfare.pipeline.spark import start

    spark = start()
    times = 1 if quick else TIMES
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="wayfare-history-") as path:
            began = perf_counter()
            archive.add(spark, path, measuring.notifications(spark, size, seed))
            added = perf_counter() - began
            kept = archive.read(spark, path)
            found = columns.matching(kept, WANTED)
            pushed = measuring.taken(found, times)
            spark.conf.set(PUSH_DOWN, "false")
            whole = measuring.taken(found, times)
            spark.conf.unset(PUSH_DOWN)
            again = columns.match_many(kept.frame, {"wanted": WANTED})
            python = measuring.taken(again, times)
            assert pushed.found == whole.found == python.found, "three ways, one answer"
            yield {
                "notifications": size,
                "found": pushed.found,
                "archive_mb": round(_bytes(path) / 1e6, 1),
                "add_s": round(added, 1),
                "pushed_ms": round(pushed.ms),
                "pushed_rows": pushed.read,
                "unpushed_ms": round(whole.ms),
                "unpushed_rows": whole.read,
                "python_ms": round(python.ms),
            }


def _bytes(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).rglob("*.parquet"))
