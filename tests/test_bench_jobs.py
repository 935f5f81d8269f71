"""What the jobs on Spark take is measured, each at its sizes."""

import subprocess
import sys

import pytest

from wayfare.bench import jobs
from wayfare.bench.timing import family_cpu_s
from wayfare.cli.bench import draw


@pytest.mark.usefixtures("spark")
def test_every_job_is_measured(monkeypatch):
    sizes = (3, 2_000, 50, 200)
    monkeypatch.setattr(jobs, "BATCHES", 1)
    monkeypatch.setattr(
        jobs, "WORK", {one: (5 * n,) for one, n in zip(jobs.WORK, sizes, strict=True)}
    )
    rows = list(jobs.run(seed=1, quick=True))
    found = [(row["job"], row["size"]) for row in rows]
    job, rows_of_the_logs = found.pop(1)
    assert job == "analyse" and rows_of_the_logs > 3
    assert found == [
        ("sweep", 3),
        ("report", 3),
        ("mine", 2_000),
        ("publish", 50),
        ("past", 50),
        ("stream", 50),
        ("follow", 200),
    ]
    assert min(row["cpu_s"] for row in rows) > 0
    assert max(map(len, draw(rows, 80).splitlines())) <= 80


def test_growth_is_what_a_job_takes_over_what_it_took_before(monkeypatch):
    def measure(_session, _seed, size):
        yield jobs.Taken("walk", size, "steps", size / 10)

    monkeypatch.setattr(jobs.spark, "start", lambda **_: None)
    monkeypatch.setattr(jobs, "WORK", {measure: (10, 20, 80)})
    assert [(row["size"], row["growth"]) for row in jobs.run(seed=1, quick=False)] == [
        (10, None),
        (20, 2.0),
        (80, 4.0),
    ]


CHILD = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
PARENT = f"""
import signal, subprocess, sys
if sys.argv[1] == "ignores":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {CHILD + "print(flush=True); input()"!r}],
                         stdin=subprocess.PIPE)
input()
child.communicate(b"end")
print(flush=True)
input()
"""


@pytest.mark.parametrize("how", ["ignores", "waits"])
def test_cpu_time_of_what_has_ended_is_not_forgotten_nor_counted_twice(how):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        before = family_cpu_s()
        parent.stdout.readline()  # the child has worked
        during = family_cpu_s()
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        parent.stdout.readline()  # and ended
        after = family_cpu_s()
        parent.communicate(b"\n")
    assert during - before > 0.28
    assert -0.02 <= after - during < 0.25
    assert family_cpu_s() >= after
