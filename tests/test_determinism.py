"""Same seed, same trace and same event log, byte for byte, whatever the hash seed.

This file is also the program that the tests run in other processes: it writes everything that
happens in many runs, every message with its content, to its output.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wayfare.core.codec import encode
from wayfare.eventlog import writer
from wayfare.sim import scenario
from wayfare.sim.fuzz import Fuzz, Job
from wayfare.sim.trace import Trace
from wayfare.sim.walks import Walks

ROUTINGS = ("flooding", "simple", "identity", "covering", "merging")
HASH_SEEDS = ("0", "4294967295")
FUZZ_SEEDS = (0, 1, 2, 3, 5)  # 4 is a burst among 68 brokers: a hundred times as long as the others
WALK_SEEDS = (7, 10, 18)  # some of those in which clients are handed over between brokers
WALK_RELOCATIONS = ("handoff", "junction", "prefetching", "proxy")


def digest(*parts):
    found = hashlib.sha256()
    for part in parts:
        found.update(part if type(part) is bytes else str(part).encode())
        found.update(b"\0")
    return found.hexdigest()


def log_bytes(world):
    """The event log of a world, as JSON lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        with writer(path, run="run") as log:
            log.write(world.events)
        return path.read_bytes()


def fuzz_run(seed, routing, faults):
    return run_of(Fuzz(Job(seed, routing, faults=faults)))


def run_of(one):
    """A random run, as digests of all frames in order, the trace, the log and the verdict."""
    trace = Trace(one.world, clients=True)
    frames = hashlib.sha256()
    one.world.watchers.append(lambda *sent: frames.update(f"{sent[:2]}".encode() + encode(sent[2])))
    one.world.log_messages()
    verdict = one.run()
    log = log_bytes(one.world)
    return digest(frames.hexdigest(), "\n".join(trace.lines), log, verdict), log


def scenario_run(name, seed):
    outcome = scenario.play(scenario.shipped()[name], seed)
    return digest("\n".join(outcome.lines), log_bytes(outcome.world), outcome.verdict)


def report():
    """One line for each run: what it was, and its digest."""
    for routing in ROUTINGS:
        for faults in (False, True):
            for seed in FUZZ_SEEDS:
                found, log = fuzz_run(seed, routing, faults)
                yield f"fuzz {routing} {faults} {seed} {len(log)} {found}"
        for seed in WALK_SEEDS:
            found, log = run_of(Walks(seed, routing, faults=True))
            yield f"walk {routing} True {seed} {len(log)} {found}"
    for relocation in WALK_RELOCATIONS:
        for learns in (False, True):
            for seed in WALK_SEEDS:
                one = Walks(seed, "covering", relocation, faults=True, learns=learns)
                found, log = run_of(one)
                yield f"walk {relocation} {learns} {seed} {len(log)} {found}"
    for name in scenario.shipped():
        for seed in (0, 1):
            yield f"scenario {name} {seed} {scenario_run(name, seed)}"


def lines_under(hash_seed):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PYTHONHASHSEED"] = hash_seed
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, check=True, text=True
    )
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
def test_every_hash_seed_gives_the_same_runs():
    with ThreadPoolExecutor() as processes:
        first, other = processes.map(lines_under, HASH_SEEDS)
    runs = len(ROUTINGS) * (2 * len(FUZZ_SEEDS) + len(WALK_SEEDS))
    runs += 2 * len(WALK_RELOCATIONS) * len(WALK_SEEDS) + 2 * len(scenario.shipped())
    assert len(first) == runs
    assert sum(int(line.split()[4]) for line in first if line.startswith("fuzz")) > 1_000_000
    assert other == first


def test_the_same_process_gives_the_same_runs_again():
    """No run leaves anything behind for the next one: counters, caches, random numbers."""
    for faults in (False, True):
        once = [fuzz_run(3, routing, faults) for routing in ROUTINGS]
        again = [fuzz_run(3, routing, faults) for routing in reversed(ROUTINGS)]
        assert again == once[::-1]


def test_the_log_is_the_same_whether_or_not_somebody_watches():
    job = Job(3, "covering", faults=True)
    watched, plain = Fuzz(job), Fuzz(job)
    Trace(watched.world, clients=True)
    watched.world.log_messages()
    watched.run()
    plain.run()
    assert [one for one in watched.world.events if one.kind != "sent"] == plain.world.events


@pytest.mark.parametrize("faults", [False, True])
def test_different_seeds_differ(faults):
    runs = {fuzz_run(seed, "covering", faults)[0] for seed in FUZZ_SEEDS}
    assert len(runs) == len(FUZZ_SEEDS)


def test_different_seeds_of_one_scenario_differ_where_there_is_chance():
    assert scenario_run("lossy-link", 0) != scenario_run("lossy-link", 1)
    assert scenario_run("crash", 0) == scenario_run("crash", 1)


if __name__ == "__main__":
    for line in report():
        print(line)
