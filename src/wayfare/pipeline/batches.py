"""What a job over a stream knows from batch to batch, as tables in a folder.

    FOLDER/checkpoint           Spark's own: which batch is next, and what is in it
    FOLDER/batches/7/NAME       what was known when batch 7 was done

A batch that is repeated, because its process was killed, finds what the batch before has left, and
writes the same again: everything counts once. The last two batches are kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from wayfare.errors import PipelineError

Tables = Mapping[str, DataFrame]


class Batches:
    def __init__(self, folder: str | Path, schemas: Mapping[str, str | StructType]) -> None:
        self._folder, self._schemas = Path(folder), schemas

    def writer(self, stream: DataFrame) -> DataStreamWriter:
        """Of a stream, with its checkpoint here."""
        return stream.writeStream.option("checkpointLocation", str(self._folder / "checkpoint"))

    def before(self, spark: SparkSession, number: int) -> Tables:
        """What is known when this batch begins."""
        if number == 0:
            return {name: spark.createDataFrame([], one) for name, one in self._schemas.items()}
        return self._read(spark, number - 1)

    def write(self, number: int, tables: Tables) -> None:
        """What is known when it is done: all of it, or nothing."""
        part = self._path(f"{number}.part")
        for name, frame in tables.items():
            frame.write.mode("overwrite").parquet(str(part / name))
        shutil.rmtree(self._path(number), ignore_errors=True)
        part.rename(self._path(number))
        for old in self._done():
            if old < number - 1:
                shutil.rmtree(self._path(old))

    def latest(self, spark: SparkSession) -> Tables:
        done = self._done()
        if not done:
            raise PipelineError(f"there is nothing of a stream at {self._folder} yet")
        return self._read(spark, max(done))

    def _done(self) -> list[int]:
        found = self._path("").glob("*")
        return [int(one.name) for one in found if one.name.isdecimal()]

    def _read(self, spark: SparkSession, number: int) -> Tables:
        path = self._path(number)
        if not path.is_dir():
            raise PipelineError(
                f"what was known after batch {number} is not at {path}: the checkpoint beside it goes"
                " on from there; begin in another folder"
            )
        return {
            name: spark.read.schema(schema).parquet(str(path / name))
            for name, schema in self._schemas.items()
        }

    def _path(self, name: str | int) -> Path:
        return self._folder / "batches" / str(name)
