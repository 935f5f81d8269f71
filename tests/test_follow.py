"""`wayfare analyse --follow` and `mine --follow`: clients that tell what happens, and jobs that hear it."""

import json
import os
import signal
import threading
import time

import pytest

import wayfare.sync
from wayfare.cli import follow, main
from wayfare.core.filters import Filter
from wayfare.core.prediction import decode
from wayfare.testing import Tree

X = Filter.parse("x > 0")


def wait(what):
    end = time.monotonic() + 100
    while not what():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


def until_ctrl_c(words, work):
    """What a command returns to which Ctrl-C is pressed when a thread has done this work."""
    wrong, running = [], threading.Event()
    running.set()

    def do():
        try:
            work()
        except BaseException as error:
            wrong.append(error)
        if running.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=do, daemon=True)
    try:
        thread.start()
        code = main(words)
    except KeyboardInterrupt:  # it was not ready for that: not the whole test run has to end
        code = None
    finally:
        running.clear()
    thread.join(120)
    assert wrong == []
    return code


def drive(tree, seen):
    """When somebody listens, anna subscribes and moves, and tom publishes: until all of it is seen."""
    wait(lambda: list(tree._hosts["a"].core.border.all()))
    with (
        wayfare.sync.connect(tree["a"], client_id="anna", events=tree["a"]) as anna,
        wayfare.sync.connect(tree["b"], client_id="tom", events=tree["b"]) as tom,
    ):
        tom.advertise(X)
        with anna.subscribe(X) as all:
            for x in range(1, 7):
                tom.publish({"x": x})
                assert all.get(10)["x"] == x
                anna.move(tree["ab"[x % 2]])
    wait(seen)


@pytest.mark.usefixtures("spark")
def test_what_clients_tell_is_analysed_until_ctrl_c(monkeypatch, capsys):
    told = []
    monkeypatch.setattr(follow, "_print_json", told.append)

    def seen():
        return told and (told[-1][0]["delivered"], told[-1][0]["attachments"]) == (6, 8)

    with Tree("a-b") as tree:
        words = ["analyse", "--follow", tree["a"], "--every", "0", "--json"]
        assert until_ctrl_c(words, lambda: drive(tree, seen)) == 0
        assert list(tree._hosts["a"].core.border.all()) == [], "it has left for good"
    (row,) = told[-1]
    counts = ("run", "published", "expected", "lost", "awaited", "duplicates", "order_violations")
    assert [row[name] for name in counts] == ["live", 6, 6, 0, 0, 0, 0]
    assert 0 < row["delay_p50_ms"] <= row["delay_max_ms"] < 10_000
    err = capsys.readouterr().err
    assert err.endswith(f"wayfare: following {tree['a']}, until Ctrl-C\n"), err


@pytest.mark.usefixtures("spark")
def test_a_model_grows_with_what_clients_tell_and_goes_on_later(tmp_path, capsys):
    model, kept = tmp_path / "model.json", tmp_path / "kept"

    def moves():
        return sum(one.count for one in decode(model.read_bytes()).moves) if model.exists() else 0

    with Tree("a-b") as tree:
        words = ["mine", "--follow", tree["a"], "--every", "0", "--keep", str(kept)]
        command = [*words, "--out", str(model), "--json"]
        assert until_ctrl_c(command, lambda: drive(tree, lambda: moves() == 6)) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
            "moves": 6,
            "brokers": 2,
            "set_size": 1.0,
        }
        # The broker keeps what comes meanwhile.
        with wayfare.sync.connect(tree["a"], client_id="ben", events=tree["a"]) as ben:
            ben.move(tree["b"])
        command = [*words, "--out", str(model)]
        assert until_ctrl_c(command, lambda: wait(lambda: moves() == 7)) == 0
    assert capsys.readouterr().out.splitlines()[-2].split() == ["7", "2", "1.0"]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("analyse", "name event logs, or a broker with --follow, and not both"),
        ("analyse log.jsonl --follow 127.0.0.1:1", "and not both"),
        ("analyse --follow 127.0.0.1:1 --out tables", "--follow writes no tables"),
        ("analyse --follow 127.0.0.1:1 --timeout 0.5", "following 127.0.0.1:1: "),
        ("analyse --follow http://b", "'http://b' is no address"),
        ("mine", "name a log, or a broker with --follow, and not both"),
        ("mine --follow 127.0.0.1:1 --dwell 5", "--follow goes without --dwell"),
        ("mine --follow 127.0.0.1:1 --keep /dev/null", "--keep /dev/null: Not a directory"),
    ],
)
def test_what_cannot_be_followed_is_one_sentence(words, complaint, capsys):
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1, err
