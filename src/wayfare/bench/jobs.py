"""What the jobs of the pipeline take at three sizes: CPU seconds of all processes, Java's and the broker's too.

    sweep, analyse, report     so many simulations, their logs, and the report of these
    mine                       made-up handovers, of clients that mostly go on around a ring
    publish, past, stream      notifications through the data source, and a live broker
    follow                     a log as a stream, in `BATCHES` batches

Each job runs once before, at its smallest size, because Java takes longest for what it does first. There is no
yardstick beside them: `growth` is what a job took over what it took at the size before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from wayfare.bench import analyse as made_up
from wayfare.bench import processes
from wayfare.bench.sweep import SMALL
from wayfare.bench.timing import family_cpu_s
from wayfare.core.history import Limits
from wayfare.pipeline import analyse, events, mine, report, running, spark, sweep
from wayfare.studies.points import Point

BATCHES = 2
BROKERS, STEPS, EVERY_S = 64, 1000, 60  # of the ring; of a client, and seconds between them


class Taken(NamedTuple):
    job: str
    size: int
    of: str
    cpu_s: float


def run(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    session = spark.start(**analyse.SETTINGS)
    before: dict[str, float] = {}
    for measure, sizes in WORK.items():
        if not quick:
            list(measure(session, seed, sizes[0]))
        for size in [sizes[0] // 5] if quick else sizes:
            for one in measure(session, seed, size):
                grown = round(one.cpu_s / before[one.job], 2) if one.job in before else None
                before[one.job] = one.cpu_s
                yield one._asdict() | {"cpu_s": round(one.cpu_s, 2), "growth": grown}


def _cpu_s(work: Callable[[], object], clock: Callable[[], float] = family_cpu_s) -> float:
    begin = clock()
    work()
    return clock() - begin


def _study(session: SparkSession, seed: int, size: int) -> Iterator[Taken]:
    points = [Point("roaming", SMALL | {"seed": seed + i}) for i in range(size)]
    with _folder() as name:
        out = Path(name)
        taken = _cpu_s(lambda: sweep.run_points(session, points, out))
        yield Taken("sweep", size, "points", taken)
        log = events.read(session, out / "events")
        yield Taken("analyse", log.count(), "rows", _cpu_s(lambda: _analyse(log, out / "found")))
        taken = _cpu_s(lambda: report.write(out / "found"), process_time)  # it is all in here
        yield Taken("report", size, "runs", taken)


def _analyse(log: DataFrame, out: Path) -> None:
    with analyse.analyse(log) as analysis:
        analyse.write(analysis, out)


def _mine(session: SparkSession, seed: int, size: int) -> Iterator[Taken]:
    step = f"if(pmod(xxhash64(id, {seed}), 10) = 0, 2, 1) * (id % {STEPS})"
    log = session.range(size).selectExpr(
        "'' run",
        f"concat('c', id div {STEPS}) client",
        f"id % {STEPS} * {EVERY_S} * 1000000000 time_ns",
        "string(null) from",
        f"concat('b', pmod(id div {STEPS} + {step}, {BROKERS})) to",
    )
    with _folder() as name:
        log.write.parquet(f"{name}/log")
        kept = session.read.parquet(f"{name}/log")
        yield Taken("mine", size, "handovers", _cpu_s(lambda: mine.mine(kept, mine.Plan())))


def _source(session: SparkSession, _seed: int, size: int) -> Iterator[Taken]:
    rows = session.range(size).selectExpr("id as x", "'parking' as service", "id % 100 as free")
    limits = Limits(past_count=size, backlog_count=size, backlog_bytes=2**30, past_bytes=2**30)
    with processes.brokers(limits=limits) as running, _folder() as folder:
        at = {"broker": running["lisbon"].url, "timeout": "60"}
        source = session.read.format("wayfare").options(**at)
        sink = rows.write.format("wayfare").options(**at, advertise="exists x").mode("append")
        yield Taken("publish", size, "notifications", _cpu_s(sink.save))
        found: list[int] = []
        taken = _cpu_s(lambda: found.append(source.load().count()))
        assert found == [size], "it has lost some"
        yield Taken("past", size, "notifications", taken)
        stream = session.readStream.format("wayfare").options(**at, client_id="bench", since="600")
        job = stream.load().writeStream.format("noop").option("checkpointLocation", folder)
        yield Taken("stream", size, "notifications", _cpu_s(lambda: _all_of(job)))


def _follow(session: SparkSession, seed: int, size: int) -> Iterator[Taken]:
    with _folder() as name:
        log = made_up.synthetic(session, size, seed)
        log.repartitionByRange(BATCHES, "time_ns").write.parquet(f"{name}/log")
        files = session.readStream.schema(events.EVENTS).option("maxFilesPerTrigger", 1)
        job = running.analyse_stream(files.parquet(f"{name}/log"), f"{name}/out")
        yield Taken("follow", size, "deliveries", _cpu_s(lambda: _all_of(job)))


def _all_of(job: DataStreamWriter) -> None:
    query = job.start()
    query.processAllAvailable()
    family_cpu_s()  # what its processes took, as long as they are there
    query.stop()


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="wayfare-jobs-")


WORK: dict[Callable[[SparkSession, int, int], Iterator[Taken]], tuple[int, ...]] = {
    _study: (25, 100, 400),
    _mine: (30_000, 300_000, 3_000_000),
    _source: (1_000, 5_000, 25_000),
    _follow: (1_000, 10_000, 100_000),
}
