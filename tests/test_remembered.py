"""The judge of the past: it requires what brokers remember, and sees what is missing."""

import pytest

from wayfare.core.past_requests import PastRequests
from wayfare.sim.fuzz import Fuzz, Job

JOB = Job(900089, mobile="both")  # all brokers remember everything, and nothing goes wrong


def played():
    fuzz = Fuzz(JOB)
    verdict = fuzz.run()
    return fuzz, [one.rule for one in verdict.violations]


def test_runs_ask_for_the_past_and_get_it():
    fuzz, rules = played()
    assert fuzz.remembers_all
    assert fuzz.required_past > 0
    assert rules == []


@pytest.mark.parametrize(
    ("broken", "does"),
    [
        ("_pass_on", lambda *_: (0, True)),  # only its own broker replies
        ("_take", lambda *_: None),  # what is found is forgotten
    ],
)
def test_what_does_not_come_is_seen(broken, does, monkeypatch):
    monkeypatch.setattr(PastRequests, broken, does)
    assert "past" in played()[1]
