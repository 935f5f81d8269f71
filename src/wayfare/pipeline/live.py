"""The live study: real systems on this machine, one after the other, and clients that move on them.

It leaves what `sweep` leaves, and what is there is not run again: OUT/runs and OUT/events. Spark is not
needed to run it, and would be in its way.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from wayfare.eventlog import ParquetWriter
from wayfare.pipeline import report, results, study, sweep
from wayfare.service.experiment import Outcome, Plan, roam
from wayfare.service.overlays import missing, overlay
from wayfare.studies import service_live
from wayfare.studies.study import Study

PAYLOAD = 64  # bytes, as in the simulation
AT_ONCE = 16  # clients that move on one system at the same time
# How a client is supported; `basic` and `ping` as in the paper.
PLANS: dict[str, dict[str, Any]] = {
    "none": {"service": False},
    "basic": {"sync": "none", "duplicates": True, "standby": False},
    "ping": {"sync": "ping", "duplicates": True, "standby": False},
    "ids": {},
    "own": {"own": True},
}
SCHEMES = {"redis": "redis+envelope"}  # whose publications carry ids


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    system: str
    support: str
    network: str
    s: int
    p: float
    away_s: float
    seed: int = 0

    @property
    def run_name(self) -> str:
        text = msgspec.json.encode(self, order="sorted")
        return f"{service_live.KIND}-{hashlib.sha256(text).hexdigest()[:12]}"

    def plan(self) -> Plan:
        return Plan(
            link="" if self.network == "lan" else self.network,
            subscriptions=self.s,
            overlap=self.system in service_live.ONCE,
            rate=self.p,
            before_s=2.0,
            away_s=self.away_s,
            payload=PAYLOAD,
            after_s=2.0,
            seed=self.seed,
            **PLANS[self.support],
        )


def split(systems: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those that are installed, and a sentence for each of the others."""
    sentences = [sentence for one in systems if (sentence := missing(one)) is not None]
    return [one for one in systems if missing(one) is None], sentences


def run(
    chosen: Study,
    out: Path,
    about: results.About,
    progress: Callable[[int, int], object] = lambda _done, _of: None,
) -> list[str]:
    """All its runs that are not there yet; the runs that failed."""
    study.claim(out, about)
    points = {
        one.name: [(x, msgspec.convert(each.given, Point)) for x, each in of_one]
        for one, of_one in zip(chosen.experiments, chosen.points(about.quick).values(), strict=True)
    }
    results.write_table(
        out / "points.parquet",
        results.POINTS,
        [
            {
                "experiment": one.name,
                "varied": one.varied,
                "x": json.dumps(x),
                "series": point.support,
                "seed": point.seed,
                "run": point.run_name,
            }
            for one in chosen.experiments
            for x, point in points[one.name]
        ],
    )
    wanted = {point.run_name: point for of_one in points.values() for _, point in of_one}
    sweep.make(out)
    done = sweep.finished(out)
    todo = [point for name, point in wanted.items() if name not in done]
    return asyncio.run(_run(todo, out, len(wanted), progress))


async def _run(
    todo: list[Point], out: Path, of: int, progress: Callable[[int, int], object]
) -> list[str]:
    failed: list[str] = []
    left = len(todo)
    progress(of - left, of)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(point: Point, addresses: Sequence[str]) -> None:
        nonlocal left
        async with limit:
            if await _run_one(point, addresses, out) is not None:
                failed.append(point.run_name)
        left -= 1
        progress(of - left, of)

    for system in dict.fromkeys(point.system for point in todo):
        mine = [point for point in todo if point.system == system]
        with tempfile.TemporaryDirectory(prefix="wayfare-") as folder:
            async with overlay(system, Path(folder)) as nodes:
                scheme = SCHEMES.get(system, system)
                addresses = [
                    address.replace(f"{system}://", f"{scheme}://", 1)
                    for address in nodes.addresses
                ]
                await asyncio.gather(*(one(point, addresses) for point in mine))
    return failed


async def _run_one(point: Point, addresses: Sequence[str], out: Path) -> str | None:
    """With its files; a failure is a row with its error, too."""
    name, figures, error = point.run_name, None, None
    try:
        outcome = await roam(addresses, point.plan())
    except Exception as failure:  # whatever it is, it must not end the others
        error = f"{type(failure).__name__}: {failure}"
    else:
        figures = msgspec.json.encode(_figures(outcome)).decode()
        folder = out / "events" / f"run={name}"
        folder.mkdir(exist_ok=True)
        with ParquetWriter(folder / "events.parquet", run=name) as log:
            log.write(sorted(outcome.events, key=lambda event: event.time_ns))
    row = {
        "run": name,
        "kind": service_live.KIND,
        "parameters": msgspec.json.encode(point).decode(),
        "command": f"wayfare study service --live --systems {point.system}",
        "cpu_s": 0.0,  # of many runs at once, and of servers: nobody knows
        "figures": figures,
        "error": error,
    }
    sweep.write_row(out / "runs" / f"{name}.parquet", row)
    return error


def _figures(outcome: Outcome) -> dict[str, float | None]:
    """As those of the simulation are called."""

    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(1000 * seconds, 3)

    return {
        "published": outcome.published,
        "delivered": outcome.delivered,
        "lost": outcome.lost,
        "duplicates": outcome.duplicates,
        "order_violations": outcome.disordered,
        "gaps": outcome.gaps,
        "missed": outcome.missed,
        "lost_out": outcome.lost_out,
        "lost_away": outcome.lost_away,
        "lost_in": outcome.lost_in,
        "duplicates_in": outcome.duplicates_in,
        "move_out_ms": ms(outcome.moving_out_s),
        "move_in_ms": ms(outcome.moving_in_s),
        "first_ms": ms(outcome.reattached_s),
        "delay_ms": ms(outcome.delay_s),
        "floor_ms": ms(outcome.floor_s),
    }


def tell(
    spark: SparkSession,
    chosen: Study,
    out: Path,
    about: results.About,
    failed: list[str],
    progress: Callable[[str], object] = lambda _doing: None,
) -> study.Outcome:
    """Analyse, check, and write the report."""
    runs = results.read_runs(out)
    study.analyse_events(spark, out, progress)
    progress("checking")
    checks = study.check(chosen, out)
    progress("drawing")
    written = [str(path) for path in report.write(out, chosen)]
    errors = [f"{runs[one]['command']}: {runs[one]['error']}" for one in failed]
    return study.Outcome(chosen.name, about.quick, len(runs), errors, checks, written)
