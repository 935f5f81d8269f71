"""A stream of Spark in a process of its own, to be killed: see test_source_kill.py.

spark_process.py ADDRESS FOLDER MARK     reads what matches x > 0 into FOLDER/rows, until FOLDER/stop is
                                         there; in the batch with the x that MARK says, it makes
                                         FOLDER/reached and waits, to be killed
"""

import sys
import time
from pathlib import Path

from wayfare.pipeline.spark import TINY, start


def main(address, folder, mark):
    spark = start("local[2]", spark_sql_streaming_pollingDelay="50", **TINY)
    schema = "x long, publisher string, number long, broker string, delivery long"
    stream = (
        spark.readStream.format("wayfare")
        .schema(schema)
        .options(broker=address, client_id="spark", filter="x > 0", maxRows=40)
        .load()
    )
    stop = Path(folder, "stop")

    def slowly(batches):
        for batch in batches:
            if mark and int(mark) in batch.column("x").to_pylist():
                Path(folder, "reached").touch()
                time.sleep(600)
            yield batch

    query = (
        stream.mapInArrow(slowly, schema)
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    while not query.status["message"].startswith("Waiting for data"):
        time.sleep(0.1)
    Path(folder, "started").touch()
    while query.isActive and not stop.exists():
        time.sleep(0.1)
    if query.exception() is not None:
        print(query.exception(), flush=True)
        sys.exit(1)
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
