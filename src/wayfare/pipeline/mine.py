"""Handover logs to models of movement: where clients go next.

    log -> handovers -> visits -> (without bounces) -> moves -> counts -> Movement
           run, client, time_ns, from, to
                        ... broker, arrived
                                                       ... previous, broker, to
                                                                previous, broker, to, train, test

Spark counts; what was counted is small, and judged by the very code that brokers predict with. Where
a client has not `arrived` but was seen first, its journey begins: that visit ends no move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import NumericType, StringType
from pyspark.sql.window import WindowSpec

from wayfare.core.prediction import EVERYBODY, JOURNEY_NS, START, Movement
from wayfare.errors import PipelineError
from wayfare.pipeline import events
from wayfare.pipeline.batches import Batches
from wayfare.pipeline.judging import (
    Counted,
    Move,
    Online,
    Predictions,
    Sets,
    anyone,
    judge,
    learn,
    play,
)
from wayfare.pipeline.spark import explained

COLUMNS = {"client": "client", "time": "time", "from": "from", "to": "to"}
TRAINING = 0.7  # share of the time; what comes then is predicted
HANDOVERS = "run string, client string, time_ns long, from string, to string"
COUNTS = "client string, previous string, broker string, to string, train long, test long"
CONTEXT = ("client", "previous", "broker", "to")

Transform = Callable[[DataFrame], DataFrame]


# What is given, and what comes out


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to mine a log."""

    coverage: float = 0.95  # of the moves from each broker, by its set of next ones
    order: int = 2
    dwell_ns: int = 0  # a visit between two of the same broker that is shorter is a bounce
    journey_ns: int = JOURNEY_NS
    per_client: bool = False
    online: bool = False  # also play the log to brokers that learn by themselves

    def __post_init__(self) -> None:
        if not 0 < self.coverage <= 1:
            raise PipelineError(f"coverage is {self.coverage:g}: give a share up to 1, like 0.95")
        if self.order not in (1, 2):
            raise PipelineError(f"order is {self.order}: give 1, or 2 for the previous broker, too")
        if self.dwell_ns < 0 or self.journey_ns < 0:
            raise PipelineError("dwell and journey are times: give seconds, 0 or more")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a log says, and how well it foretells itself."""

    handovers: int
    clients: int
    brokers: int
    moves: int
    bounces: int | None  # moves that the dwell filter takes away; None: it is off
    split_ns: int  # moves before this time are learnt from, in the evaluation
    predictions: list[Predictions]
    sets: list[Sets]
    online: list[Online] = []


# Reading


def read(spark: SparkSession, path: str | Path, columns: Mapping[str, str] = {}) -> DataFrame:
    """A handover log, or the attachments of an event log: run, client, time_ns, from, to."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise PipelineError(
            f"there is no column {' or '.join(unknown)} to name: name {', '.join(COLUMNS)}"
        )
    text = str(path)
    if text.endswith((".jsonl", ".json", ".jsonl.gz")):
        return attachments(events.read(spark, text))
    with explained(f"{text} cannot be read as a handover log"):
        if text.endswith((".csv", ".csv.gz", ".csv.zst")):
            frame = spark.read.option("header", "true").option("mode", "FAILFAST").csv(text)
        else:
            frame = spark.read.parquet(text)
        if not columns and "kind" in frame.columns and "time_ns" in frame.columns:
            return attachments(events.complete(frame, text))
        return handovers(frame, columns, text)


def attachments(log: DataFrame) -> DataFrame:
    """Of an event log, batch or stream: where clients came, and not from where."""
    return log.where("kind = 'attached'").select(
        "run",
        "client",
        "time_ns",
        F.lit(None).cast("string").alias("from"),
        F.col("broker").alias("to"),
    )


def handovers(frame: DataFrame, columns: Mapping[str, str], path: str) -> DataFrame:
    """Columns by the names that they have there; `from` may be missing."""
    names = COLUMNS | dict(columns)
    missing = [
        f"{name}={names[name]}" if name in columns else name
        for name in COLUMNS
        if names[name] not in frame.columns and (name != "from" or name in columns)
    ]
    if missing:
        raise PipelineError(
            f"{path} has no column {' and no '.join(missing)} (it has"
            f" {', '.join(frame.columns) or 'none'}): say which is which with --columns"
            " client=NAME,time=NAME,from=NAME,to=NAME"
        )
    there = names["from"] in frame.columns
    return frame.select(
        F.lit("").alias("run"),
        F.col(names["client"]).cast("string").alias("client"),
        _nanoseconds(frame, names["time"]).alias("time_ns"),
        (F.col(names["from"]) if there else F.lit(None)).cast("string").alias("from"),
        F.col(names["to"]).cast("string").alias("to"),
    )


def _nanoseconds(frame: DataFrame, name: str) -> Column:
    """Numbers are seconds; texts are that, too, or dates with a time."""
    kind, column = frame.schema[name].dataType, F.col(name)
    seconds = (column.try_cast("decimal(38, 9)") * 1_000_000_000).cast("long")
    if isinstance(kind, NumericType):
        return seconds
    moment = F.unix_micros(column.try_cast("timestamp")) * 1000
    return F.coalesce(seconds, moment) if isinstance(kind, StringType) else moment


# Transforms


def visits(log: DataFrame) -> DataFrame:
    """Who was where from when on; where a log says from where, and it is elsewhere, there first."""
    before = F.lag("to").over(_way("to"))
    jumped = F.col("from").isNotNull() & ~F.col("from").eqNullSafe(before)
    came = before.isNotNull() | F.col("from").isNotNull()
    here = F.struct(F.col("to").alias("broker"), came.alias("arrived"))
    there = F.struct(F.col("from").alias("broker"), F.lit(False).alias("arrived"))
    return (
        log.withColumn("visit", F.when(jumped, F.array(there, here)).otherwise(F.array(here)))
        .select("run", "client", "time_ns", F.explode("visit").alias("visit"))
        .select("run", "client", "time_ns", "visit.broker", "visit.arrived")
        .transform(_without_repetitions)
    )


def _way(*then: str) -> WindowSpec:
    return Window.partitionBy("run", "client").orderBy("time_ns", *then)


def _before(column: str, visits: int = 1) -> Column:
    # Who appears somewhere does so at the time when it goes on from there.
    return F.lag(column, visits).over(_way("arrived", "broker"))


def _after(column: str) -> Column:
    return F.lead(column).over(_way("arrived", "broker"))


def _without_repetitions(visits: DataFrame) -> DataFrame:
    again = _before("broker").eqNullSafe(F.col("broker")) & F.col("arrived")
    return visits.withColumn("again", again).where("not again").drop("again")


def without_bounces(dwell_ns: int) -> Transform:
    """Who goes from a to b and back to a within this time has stayed at a."""

    def transform(visits: DataFrame) -> DataFrame:
        back = F.col("arrived") & _after("arrived") & (_after("broker") == _before("broker"))
        soon = _after("time_ns") - F.col("time_ns") < dwell_ns
        marked = visits.withColumn("bounce", F.coalesce(back & soon, F.lit(False)))
        return marked.where("not bounce").drop("bounce").transform(_without_repetitions)

    return transform


def moves(journey_ns: int = JOURNEY_NS) -> Transform:
    """From one visit to the next, with the one before: START, if a journey began in between."""

    def transform(visits: DataFrame) -> DataFrame:
        stayed_ns = F.col("time_ns") - _before("time_ns")
        goes_on = _before("arrived") & (stayed_ns <= journey_ns)
        known = F.when(goes_on, _before("broker", 2))
        marked = visits.select(
            "run",
            "client",
            "time_ns",
            F.coalesce(known, F.lit(START)).alias("previous"),
            _before("broker").alias("broker"),
            F.col("broker").alias("to"),
            "arrived",
        )
        return marked.where("arrived").drop("arrived")

    return transform


def counts(split_ns: int | None = None, per_client: bool = False) -> Transform:
    """Moves of each kind, before the split and from then on; without one, all are before."""

    def transform(moves: DataFrame) -> DataFrame:
        who = moves if per_client else moves.withColumn("client", F.lit(EVERYBODY))
        early = F.lit(True) if split_ns is None else F.col("time_ns") < split_ns
        return who.groupBy(*CONTEXT).agg(
            F.count_if(early).alias("train"), F.count_if(~early).alias("test")
        )

    return transform


# The job


def mine(log: DataFrame, plan: Plan, name: str = "the log") -> tuple[Movement, Report]:
    """A model of all moves of a log, and how one of its beginning foretells the rest."""
    with explained(f"mining {name}"):
        known = facts(log, name)
        split_ns = known.first_ns + int(TRAINING * (known.last_ns - known.first_ns))
        seen = log.transform(visits)
        tested = {"all": _collect(seen, plan, split_ns)}
        if plan.dwell_ns:
            calm = seen.transform(without_bounces(plan.dwell_ns))
            tested["no bounces"] = _collect(calm, plan, split_ns)
        online = _online(seen, plan, split_ns, tested["all"]) if plan.online else []
    total = {what: sum(one.train + one.test for one in rows) for what, rows in tested.items()}
    if not total["all"]:
        raise PipelineError(
            f"{name} has no move: every client in it is at one broker only; give a longer log"
        )
    learnt = [*tested.values()][-1]
    model = learn(learnt, plan.order, plan.journey_ns, lambda one: one.train + one.test)
    predictions, sets = judge(tested, plan.order, plan.journey_ns, plan.per_client, plan.coverage)
    report = Report(
        handovers=known.handovers,
        clients=known.clients,
        brokers=len({broker for one in tested["all"] for broker in (one.broker, one.to)}),
        moves=total["all"],
        bounces=total["all"] - total["no bounces"] if plan.dwell_ns else None,
        split_ns=split_ns,
        predictions=predictions,
        sets=sets,
        online=online,
    )
    return model, report


def _online(seen: DataFrame, plan: Plan, split_ns: int, counted: list[Counted]) -> list[Online]:
    """How brokers do that learn by themselves: all the time, since the split, and on with a mined model."""
    columns = ("time_ns", "client", "previous", "broker", "to")
    ordered = seen.transform(moves(plan.journey_ns)).orderBy("time_ns", "run", "client")
    table = ordered.select(*columns).toArrow()

    def played(since_ns: int) -> Iterator[Move]:
        for batch in table.to_batches():
            rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
            yield from (row for row in rows if row[0] >= since_ns)

    known = counted if plan.per_client else [anyone(one) for one in counted]
    mined = learn(known, plan.order, plan.journey_ns, lambda one: one.train)
    begun: tuple[tuple[str, int, Movement | None], ...] = (
        ("the log", 0, None),
        ("nothing", split_ns, None),
        ("the model", split_ns, mined),
    )
    return [
        play(
            played(since_ns),
            split_ns,
            plan.coverage,
            begun_with,
            plan.order,
            plan.per_client,
            model,
        )
        for begun_with, since_ns, model in begun
    ]


def facts(log: DataFrame, name: str) -> Row:
    """How many handovers and clients it has, and from when to when; PipelineError if it has none."""
    bad = F.col("client").isNull() | F.col("time_ns").isNull() | F.col("to").isNull()
    (found,) = log.agg(
        F.count("*").alias("handovers"),
        F.count_if(bad).alias("bad"),
        F.count_distinct("run", "client").alias("clients"),
        F.min("time_ns").alias("first_ns"),
        F.max("time_ns").alias("last_ns"),
    ).collect()
    if not found.handovers:
        raise PipelineError(f"{name} is empty: it has no handover (in an event log: no attachment)")
    if found.bad:
        raise PipelineError(
            f"{name} has {found.bad} rows of {found.handovers} without a client, a broker, or a time"
            " that can be read: times are seconds or dates like 2008-05-17 10:00:44; repair them, or"
            " name other --columns"
        )
    return found


def _collect(seen: DataFrame, plan: Plan, split_ns: int) -> list[Counted]:
    counted = seen.transform(moves(plan.journey_ns)).transform(counts(split_ns, plan.per_client))
    return _rows(counted)


def _rows(counted: DataFrame) -> list[Counted]:
    columns = counted.select(*CONTEXT, "train", "test").toArrow().to_pydict()
    return [Counted(*row) for row in zip(*columns.values(), strict=True)]


# As a stream


def mine_stream(
    log: DataFrame,
    folder: str | Path,
    order: int = 2,
    journey_ns: int = JOURNEY_NS,
    tell: Callable[[Movement], object] | None = None,
) -> DataStreamWriter:
    """Count the moves of a stream of events in a folder, each once; `tell` hears the model so far.

    Rows of a client come in the order of their times. Between batches, only what was counted and the
    last two visits of each client are kept.
    """
    batches = _batches(folder)

    def take(batch: DataFrame, number: int) -> None:
        known, came = batches.before(batch.sparkSession, number), attachments(batch)
        if came.isEmpty():
            batches.write(number, known)
            return
        seen = known["visits"].unionByName(came).transform(visits).persist()
        new = seen.transform(moves(journey_ns)).exceptAll(
            known["visits"].transform(visits).transform(moves(journey_ns))
        )
        counted = known["counts"].unionByName(new.transform(counts())).groupBy(*CONTEXT)
        sums = [F.sum(name).alias(name) for name in ("train", "test")]
        batches.write(
            number,
            {"counts": counted.agg(*sums).coalesce(1), "visits": seen.transform(last_visits)},
        )
        seen.unpersist()
        if tell is not None:
            tell(streamed(batch.sparkSession, folder, order, journey_ns))

    return batches.writer(log).foreachBatch(take)


def _batches(folder: str | Path) -> Batches:
    return Batches(folder, {"counts": COUNTS, "visits": HANDOVERS})


def last_visits(visits: DataFrame) -> DataFrame:
    """The last two of each client, as handovers: as much as the next move has to know."""
    latest = Window.partitionBy("run", "client").orderBy(
        F.desc("time_ns"), F.desc("arrived"), F.desc("broker")
    )
    numbered = visits.withColumn("place", F.row_number().over(latest)).where("place <= 2")
    return numbered.select(
        "run",
        "client",
        "time_ns",
        F.lit(None).cast("string").alias("from"),
        F.col("broker").alias("to"),
    )


def streamed(
    spark: SparkSession, folder: str | Path, order: int = 2, journey_ns: int = JOURNEY_NS
) -> Movement:
    """The model of all that a stream has counted so far."""
    with explained(f"{folder} cannot be read as counts of moves"):
        rows = _rows(_batches(folder).latest(spark)["counts"])
    return learn(rows, order, journey_ns, lambda one: one.train)
