"""A stream of Spark and its broker in processes of their own, killed: every row is written once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import wayfare.sync
from test_kill import SCRIPT, free_ports

JOB = Path(__file__).with_name("spark_process.py")
WAIT_S = 240.0  # Spark starts in seconds, but not on a busy machine


class Run:
    """A broker that writes down what it keeps, and a stream that reads from it."""

    def __init__(self, folder):
        self.folder = folder
        [self.port] = free_ports(1)
        self.address = f"wayfare://127.0.0.1:{self.port}"
        self.running = {}

    def start_broker(self):
        command = [sys.executable, SCRIPT, "a", str(self.port), self.folder / "broker", "disk"]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert broker.stdout.readline() == b"ready\n"
        self.running["broker"] = broker

    def start_spark(self, mark=""):
        command = [sys.executable, JOB, self.address, self.folder, mark]
        self.running["spark"] = subprocess.Popen(command, start_new_session=True)

    def kill(self, name):
        """With all its children."""
        process = self.running.pop(name)
        if name == "spark":
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def wait_for(self, what):
        end = time.monotonic() + WAIT_S
        while not what():
            assert self.running["spark"].poll() is None, "Spark has ended"
            assert time.monotonic() < end, "it does not happen"
            time.sleep(0.1)

    def wait_for_file(self, name):
        self.wait_for((self.folder / name).exists)

    def rows(self):
        """What batches have written that came to an end: the sink's own log says which."""
        files = set()
        for log in (self.folder / "rows/_spark_metadata").glob("[0-9]*"):
            files.update(json.loads(line)["path"] for line in log.read_text().splitlines()[1:])
        return [row for file in sorted(files) for row in pq.read_table(file[7:]).to_pylist()]


def publish(tom, first, last):
    for x in range(first, last + 1):
        tom.publish({"x": x})
    tom.flush()


@pytest.mark.timeout(900)
def test_killed_in_the_middle_of_a_batch_it_writes_every_row_once(tmp_path):
    run = Run(tmp_path)
    run.start_broker()
    try:
        with wayfare.sync.connect(run.address, client_id="tom", timeout=60) as tom:
            tom.advertise("x > 0")
            run.start_spark(mark="90")
            run.wait_for_file("started")
            publish(tom, 1, 60)
            run.wait_for(lambda: len(run.rows()) == 60)
            publish(tom, 61, 100)
            run.wait_for_file("reached")
            run.kill("spark")
            assert len(run.rows()) < 90
            publish(tom, 101, 120)
            run.kill("broker")
            run.start_broker()
            (tmp_path / "started").unlink()
            run.start_spark()
            run.wait_for(lambda: len(run.rows()) >= 120)
            run.kill("broker")
            run.start_broker()
            publish(tom, 121, 200)
            run.wait_for(lambda: len(run.rows()) >= 200)
        (tmp_path / "stop").touch()
        assert run.running["spark"].wait(WAIT_S) == 0
        rows = sorted(run.rows(), key=lambda row: row["delivery"])
        assert [row["x"] for row in rows] == list(range(1, 201))
        assert [row["delivery"] for row in rows] == list(range(1, 201))
        assert {(row["publisher"], row["broker"]) for row in rows} == {("tom", "a")}
    finally:
        for name in list(run.running):
            run.kill(name)
