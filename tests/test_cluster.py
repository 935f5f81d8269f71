"""The pipeline on a real standalone cluster: a master and two workers, in processes of their own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from wayfare.core.history import Limits
from wayfare.testing import Tree

HOME = Path(pyspark.__file__).parent

JOB = """
import sys
from pathlib import Path

import pyarrow as pa

from wayfare.pipeline import analyse, events, report, spark, sweep
from wayfare.studies.points import Point

quickly = {"spark_executor_extraJavaOptions": "-XX:TieredStopAtLevel=1", **spark.TINY}
session = spark.start(sys.argv[1], spark_executor_memory="512m", spark_cores_max="2", **quickly)
out = Path(sys.argv[2])


def where(batches):
    import wayfare

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"file": [wayfare.__file__], "python": [sys.executable]})


for row in session.range(4, numPartitions=4).mapInArrow(where, "file string, python string").collect():
    print("worker", row.file, row.python)
small = {"height": 2, "degree": 2, "movers": 2, "moves": 2, "publishers": 1, "dwell_ns": 10**8}
points = [Point("roaming", small | {"seed": seed}) for seed in range(6)]
print("failed", sweep.run_points(session, points, out))
print("runs", len(sweep.finished(out)))
with analyse.analyse(events.read(session, out / "events")) as analysis:
    analyse.write(analysis, out / "found")
    print("lost", [row.lost for row in analysis.tables["runs"].collect()])
print("written", [path.name for path in report.write(out / "found")])

broker = sys.argv[3]


def past(schema, **options):
    given = session.read.format("wayfare").options(broker=broker, **options)
    return sorted(tuple(row) for row in given.schema(schema).load().collect())


numbers = session.range(40, numPartitions=4).selectExpr("id as x")
numbers.write.format("wayfare").options(broker=broker, advertise="exists x").mode("append").save()
print("published", past("x long", filter="x > 36"), len(past("x long", filter="exists x")))
stream = session.readStream.format("wayfare").schema("x long")
(
    stream.options(broker=broker, client_id="cluster", filter="x > 9", since=600, maxRows=20)
    .load()
    .selectExpr("2 * x as y")
    .writeStream.format("wayfare")
    .options(broker=broker, advertise="exists y", client_id="doubles")
    .option("checkpointLocation", str(out / "checkpoint"))
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
print("doubled", past("y long", filter="exists y") == [(2 * x,) for x in range(10, 40)])
session.stop()
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    (tmp_path / "conf").mkdir()
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    }
    deploy = "org.apache.spark.deploy"
    worker = ["--cores", "1", "--memory", "600m"]
    commands = [
        [
            f"{deploy}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        ],
        *(
            [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", *worker, url]
            for _ in range(2)
        ),
    ]
    log = (tmp_path / "cluster.log").open("wb")
    processes = [
        subprocess.Popen(
            [str(HOME / "bin/spark-class"), *command], env=environment, stdout=log, stderr=log
        )
        for command in commands
    ]
    log.close()
    try:
        until = time.monotonic() + 90
        while (tmp_path / "cluster.log").read_text().count(
            "Successfully registered with master"
        ) < 2:
            assert time.monotonic() < until, (tmp_path / "cluster.log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_pipeline_runs_on_a_cluster_that_gets_the_package_from_us(
    master: str, tmp_path: Path
) -> None:
    """Workers sit in folders of their own, and take Wayfare from what was shipped.

    There is a broker as well: tasks on workers publish, and what was published is read, as a batch, and as a
    stream whose tasks publish more.
    """
    with Tree("a", limits=Limits(past_count=1000)) as tree:
        done = subprocess.run(
            [sys.executable, "-c", JOB, master, str(tmp_path / "out"), tree["a"]],
            capture_output=True,
            text=True,
            timeout=400,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    shipped = [line.split() for line in lines if line.startswith("worker")]
    assert len(shipped) == 4
    assert all("wayfare.zip" in file and python == sys.executable for _, file, python in shipped)
    assert lines[4:] == [
        "failed []",
        "runs 6",
        "lost [0, 0, 0, 0, 0, 0]",
        "written ['report.html', 'report.md']",
        "published [(37,), (38,), (39,)] 40",
        "doubled True",
    ]
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_submit_has_the_say_about_the_master(tmp_path: Path) -> None:
    """And a job that it starts does what the command does."""
    (tmp_path / "job.py").write_text(
        "from wayfare.pipeline.spark import start\n"
        "session = start(spark_ui_enabled='false')\n"
        "print(session.sparkContext.master, session.range(5).count())\n"
    )
    done = subprocess.run(
        [
            str(HOME / "bin/spark-submit"),
            "--master",
            "local[1]",
            "--driver-java-options",
            "-XX:TieredStopAtLevel=1",
            str(tmp_path / "job.py"),
        ],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "local[1] 5\n"
