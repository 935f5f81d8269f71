"""A part of a handover log to be played again: where some clients went, and what was learnt before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from wayfare.errors import PipelineError
from wayfare.pipeline import mine
from wayfare.pipeline.spark import explained
from wayfare.sim.ways import File, Way

CLIENTS = 100
PLAYED_NS = 7_500 * 10**9  # two hours, and a warm-up


def write(spark: SparkSession, log: str, columns: Mapping[str, str], out: Path) -> Path:
    """OUT/ways.json of a log; what is there already stays."""
    path = out / "ways.json"
    if path.exists():
        return path
    file = part(mine.read(spark, log, columns), log)
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(file))
    except OSError as error:
        raise PipelineError(f"{path} cannot be written: {error.strerror}") from None
    return path


def part(log: DataFrame, name: str = "the log") -> File:
    """What is learnt from the first 70 % of the time; and the first clients of what comes then."""
    with explained(f"reading {name}"):
        facts = mine.facts(log, name)
        split_ns = facts.first_ns + int(mine.TRAINING * (facts.last_ns - facts.first_ns))
        moves = log.transform(mine.visits).transform(mine.moves()).persist()
        try:
            learnt = (
                moves.where(F.col("time_ns") < split_ns)
                .groupBy("broker", "to")
                .count()
                .orderBy("broker", "to")
                .collect()
            )
            then = moves.where(F.col("time_ns").between(split_ns, split_ns + PLAYED_NS))
            clients = then.select("client").distinct().orderBy("client").limit(CLIENTS)
            played = (
                then.join(F.broadcast(clients), "client").orderBy("client", "time_ns").collect()
            )
        finally:
            moves.unpersist()
    if not learnt or not played:
        raise PipelineError(
            f"{name} has no moves to learn from in the first {mine.TRAINING:.0%} of its time, or none to"
            " play then: give a longer log"
        )
    ways: dict[str, Way] = {}
    for row in played:
        way = ways.setdefault(row.client, [(0, row.broker)])
        at = row.time_ns - split_ns
        if at > way[-1][0] and row.to != way[-1][1]:
            way.append((at, row.to))
    return File([(row.broker, row.to, row["count"]) for row in learnt], ways)
