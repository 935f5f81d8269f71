"""Chaos: the judge is not fooled, a plan is a function of its seed, and a short round is good."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.faults import ACTS
from chaos.journal import Journal, published, read, stream
from chaos.judge import Began, Gap, Got, Published, judge
from chaos.plan import PROFILES, Act, Broker, Client, Plan, draw
from chaos.rounds import play

TESTS = Path(__file__).parent

# ---- the judge -----------------------------------------------------------------------------


def verdict(entries, confirmed=(1, 2, 3, 4, 5), *, may_lose=True, **publishers):
    """Of one subscriber, anna. Numbers are publications of tom; others are pairs of a name and a number."""
    entries = [Got("tom", one) if isinstance(one, int) else one for one in entries]
    of = {"tom": Published(max(confirmed, default=0), confirmed)} | publishers
    return judge(of, {"anna": entries}, {"anna": [*of]}, may_lose=may_lose)


def kinds(*args, **kwargs):
    return [one.kind for one in verdict(*args, **kwargs).violations]


def test_everything_once_and_in_order_is_good():
    out = verdict([1, 2, 3, 4, 5], may_lose=False)
    assert (out.violations, out.counts.delivered) == ((), 5)


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([1, 2, 4, 5], ["unreported"]),
        ([2, 3, 4, 5], ["unreported"]),
        ([1, 2, 3], ["unreported", "unreported"]),
        ([], ["unreported"] * 5),
        ([1, 2, 2, 3, 4, 5], ["duplicates"]),
        ([1, 3, 2, 4, 5], ["reordered"]),
        ([1, 2, 3, 4, 5, 6], ["unknown"]),
        ([1, 2, 3, 4, 5, Got("eve", 1)], ["unknown"]),
    ],
)
def test_what_is_wrong_is_found(entries, found):
    assert kinds(entries) == found
    assert kinds(entries, may_lose=False) == found


def test_a_gap_stands_at_the_place_of_what_is_missing():
    assert kinds([1, 2, Gap(0), 5]) == []
    assert kinds([Gap(0), 3, 4, 5]) == []
    assert kinds([1, 2, 3, Gap(2)]) == []


@pytest.mark.parametrize(
    "entries", [[Gap(0), 1, 2, 5], [1, Gap(0), 2, 5], [1, 2, 5, Gap(0)], [1, 2, 5, Gap(2)]]
)
def test_a_gap_at_another_place_reports_nothing(entries):
    out = verdict(entries)
    assert [one.kind for one in out.violations] == ["unreported"] * 2
    assert (out.counts.reported, out.counts.needless) == (0, 1)


def test_a_gap_with_a_count_stands_for_no_more_than_that():
    out = verdict([1, Gap(2), 5])
    assert (out.counts.reported, out.counts.unreported) == (2, 1)
    assert kinds([1, Gap(3), 5]) == kinds([1, Gap(1), Gap(2), 5]) == []


def test_a_gap_with_a_count_goes_to_the_publisher_whose_place_ends_first():
    uma = Published(3, (1, 2, 3))
    rest = [Got("uma", 3), Gap(1), 3, 4, 5]
    assert kinds([Got("uma", 1), 1, Gap(1), *rest], uma=uma) == []
    assert kinds([Got("uma", 1), 1, 3, Gap(1), *rest[:2], 4, 5], uma=uma) == ["unreported"]


def test_a_gap_where_nothing_could_be_lost_is_wrong_even_if_something_is():
    assert kinds([1, 2, Gap(0), 5], may_lose=False) == ["unexplained"]
    assert kinds([1, 2, Gap(0), 3, 4, 5], may_lose=False) == ["unexplained"]


def test_a_needless_gap_is_counted():
    out = verdict([1, 2, Gap(0), 3, 4, 5])
    assert (out.violations, out.counts.needless, out.counts.gaps) == ((), 1, 1)


def test_what_was_published_before_the_subscription_was_in_effect_may_be_missing():
    tom = Published(5, (1, 2, 3, 4, 5), first=3)
    assert kinds([3, 4, 5], tom=tom) == kinds([2, 3, 4, 5], tom=tom) == []
    assert kinds([2, 4, 5], tom=tom) == ["unreported"]


def test_what_was_not_confirmed_may_be_missing_or_not():
    tom = Published(5, (1, 3, 5))
    assert kinds([1, 3, 5], tom=tom) == kinds([1, 2, 3, 4, 5], tom=tom) == []
    assert kinds([1, 3, 2, 5], tom=tom) == ["reordered"]


def test_what_was_in_hand_may_come_again_after_a_kill():
    out = verdict([1, 2, 3, Began(), 3, 4, 5], may_lose=False)
    assert (out.violations, out.counts.again) == ((), 1)
    assert kinds([1, 2, 3, Began(), 2, 3, 4, 5]) == []
    assert kinds([1, 2, 3, Began(), 1, 2, 3, 4, 5]) == ["duplicates"]
    assert kinds([1, 2, 3, Began(), 3, 3, 4, 5]) == ["duplicates"]
    assert kinds([1, 2, 3, Began(), 4, 3, 5]) == ["duplicates"]
    assert kinds([1, 2, 3, Began(), 4, 5]) == []


# ---- journals ------------------------------------------------------------------------------


def test_a_journal_says_what_the_application_was_told(tmp_path):
    out = Journal(tmp_path / "anna.jsonl")
    out.write("began")
    out.write("got", **{"from": "tom"}, i=1)
    out.write("lost", count=0, why="nobody knows")
    with (tmp_path / "anna.jsonl").open("a") as file:
        file.write('{"did": "go')  # it was killed
    assert stream(read(tmp_path / "anna.jsonl")) == [Began(), Got("tom", 1), Gap(0, "nobody knows")]


def test_a_confirmation_is_for_all_that_was_put_before_but_not_for_what_was_tried():
    lines = [
        {"did": did, "i": index}
        for did, index in [
            ("tried", 1), ("put", 1),
            ("tried", 2),  # and killed
            ("tried", 3), ("put", 3), ("confirmed", 3),
            ("tried", 4), ("put", 4),
        ]
    ]  # fmt: skip
    assert published(lines, first=2) == Published(4, (1, 3), 2)


# ---- plans ---------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_a_plan_is_a_function_of_its_seed(profile):
    assert draw(7, profile, 30) == draw(7, profile, 30)
    assert draw(7, profile, 30) != draw(8, profile, 30)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_long_plan_has_every_kind_of_fault(profile):
    plans = [draw(seed, profile, 200) for seed in range(3)]
    assert {act.kind for one in plans for act in one.acts} == {
        *PROFILES[profile].kinds,
        "move",
        "leave",
    }
    assert PROFILES[profile].kinds.keys() <= ACTS.keys()


def test_only_faults_that_destroy_something_explain_a_gap():
    assert not draw(1, "keep", 200).may_lose
    assert draw(1, "destroy", 200).may_lose


# ---- rounds --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_round_is_good(tmp_path):
    outcome = good(draw(1, "keep", 10), tmp_path)
    assert outcome.verdict.counts.delivered > outcome.confirmed > 100


@pytest.mark.slow
def test_a_session_is_found_although_its_requests_were_overtaken(tmp_path):
    """Of two requests that a later one overtook, the second found nothing: the session was lost."""
    brokers = (
        Broker("lagos", "disk", ""),
        Broker("beja", "os", "lagos"),
        Broker("faro", "os", "lagos"),
    )
    clients = Client("tom", publishes=True, home="lagos"), Client("anna", wants="i > 0")
    acts = (
        Act(0.5, "move", "anna@lagos"),
        Act(1.5, "move", "anna@beja"),
        Act(2.5, "move", "anna@lagos"),
        Act(4.0, "overtake", "anna@faro", 2.0, "2 beja"),
    )
    good(Plan(0, "keep", 6.0, 3600.0, brokers, clients, acts), tmp_path)


@pytest.mark.slow
def test_what_is_lost_with_a_store_is_reported_at_its_place(tmp_path):
    """An old copy was put back, or the log was damaged, and nobody was told what was missing."""
    brokers = Broker("lagos", "disk", ""), Broker("beja", "os", "lagos")
    clients = (
        Client("tom", publishes=True, home="lagos"),
        Client("anna", wants="i > 0", home="beja"),
        Client("bert", wants="i > 0", home="lagos", store=True),
    )
    acts = (
        Act(0.5, "leave", "bert", 6.0),
        Act(0.6, "put-back", "lagos", 2.0, "present mark"),
        Act(8.0, "leave", "anna", 3.0),
        Act(9.0, "cut-wal", "beja", 0.0, "0.5"),
    )
    outcome = good(Plan(0, "destroy", 12.0, 20.0, brokers, clients, acts), tmp_path)
    assert outcome.verdict.counts.reported > 0


def good(plan, directory):
    outcome = asyncio.run(play(plan, directory))
    assert outcome.is_good, f"{outcome.text()}\n{plan.text()}"
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["Ctrl-C", "kill -9"]
)
def test_no_process_is_left_behind(tmp_path, how, code):
    program = [sys.executable, "-m", "chaos", "--profile", "keep", "--seed", "1", "--out", tmp_path]
    command = ["env", "--default-signal=INT", *program]  # background jobs of a shell ignore it
    journals = tmp_path / "keep-1"
    with subprocess.Popen(command, cwd=TESTS, stderr=subprocess.PIPE, text=True) as one:
        _until((journals / "anna.jsonl").exists)
        assert _running(journals)
        one.send_signal(how)
        assert one.wait(60) == code
    _until(lambda: not _running(journals))


def _until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def _running(directory):
    """Command lines of processes that mention this directory."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = one.read_bytes()
        except OSError:
            continue
        if str(directory).encode() in line and int(one.parent.name) != os.getpid():
            found.append(line)
    return found
