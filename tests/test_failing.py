"""What a failed test may do to the others: nothing."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TESTS = """
import gc
import socket

def test_that_fails():
    left = [socket.socket(), socket.socket()]
    left.append(left)  # only the garbage collector finds it
    assert False

def test_that_is_innocent():
    gc.collect()
"""


def test_what_a_failed_test_leaves_open_fails_no_other_one(tmp_path):
    (tmp_path / "test_two.py").write_text(TESTS)
    options = ["-n", "0", "-p", "conftest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    config = str(HERE.parent / "pyproject.toml")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", config, str(tmp_path)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in run.stdout, run.stdout
