"""The data source `wayfare`: the live network, and archives, as frames of Spark.

    spark.read.format("wayfare").option("broker", "wayfare://127.0.0.1:7410").load()
    spark.readStream.format("wayfare").option("broker", ...).option("client_id", "spark").load()
    frame.write.format("wayfare").option("broker", ...).option("advertise", "x > 0").mode("append").save()
    frame.writeStream.format("wayfare") ...

`wayfare.pipeline.spark.start` registers it; sessions of your own do `source.register(spark)`.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from wayfare.errors import PipelineError
from wayfare.pipeline.archived import ArchiveReader
from wayfare.pipeline.batch import PastReader
from wayfare.pipeline.rows import BASE, check_schema
from wayfare.pipeline.settings import settings
from wayfare.pipeline.sink import BatchWriter, StreamWriter
from wayfare.pipeline.stream import StreamReader

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class Wayfare(DataSource):
    @classmethod
    def name(cls) -> str:
        return "wayfare"

    def schema(self) -> StructType:
        return BASE

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        given = settings(self.options)
        return PastReader(given, schema) if given.path is None else ArchiveReader(given, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        check_schema(schema)
        given = settings(self.options)
        if given.path is not None:
            raise PipelineError("an archive is no stream: read it by spark.read, or name a broker")
        if not given.client_id:
            raise PipelineError(
                "a stream needs the option client_id: its broker keeps what it has not committed, under"
                " that name"
            )
        return StreamReader(given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise PipelineError("what was published cannot be taken back: write with mode append")
        return BatchWriter(settings(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        if overwrite:
            raise PipelineError("what was published cannot be taken back: use output mode append")
        return StreamWriter(settings(self.options), schema)


def register(spark: SparkSession) -> None:
    """Make `format("wayfare")` known to a session."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(Wayfare)
