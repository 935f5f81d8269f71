"""Failed logins are counted by account and by address; correct ones never."""

import asyncio

import pytest

from wayfare.net import login_limits
from wayfare.net.login_limits import LoginLimits

HERE, THERE = "192.0.2.7", "198.51.100.9"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def fail(limits, count, account="anna", address=HERE):
    """Try this often; how many were looked at."""
    looked = 0
    for _ in range(count):
        if not limits.wait_s(account, address):
            limits.settle(account, address, good=False)
            looked += 1
    return looked


def test_an_address_may_fail_a_few_times_a_minute_whatever_the_account(clock):
    limits = LoginLimits(10, 100, clock)
    assert sum(fail(limits, 1, f"account{i}") for i in range(50)) == 10
    assert limits.wait_s("anna", HERE) == pytest.approx(6)
    assert limits.wait_s("anna", THERE) == 0
    clock.now += 6
    assert fail(limits, 5) == 1
    clock.now += 3600
    assert fail(limits, 50) == 10
    assert limits.results["failed"] == 21


def test_an_account_may_fail_more_often_from_many_addresses(clock):
    limits = LoginLimits(10, 100, clock)
    assert sum(fail(limits, 1, "anna", f"10.0.0.{i}") for i in range(200)) == 100
    assert limits.wait_s("anna", "10.0.1.1") > 0
    assert limits.wait_s("tom", "10.0.1.1") == 0


def test_an_account_is_not_locked_out_where_it_has_logged_in_before(clock):
    """Others can use up what an account or an address may fail, but not both for the same pair."""
    limits = LoginLimits(10, 100, clock)
    limits.settle("anna", HERE, good=True)
    for i in range(200):
        fail(limits, 1, "anna", f"10.0.0.{i}")
    assert fail(limits, 50, "tom", HERE) == 10
    assert limits.wait_s("anna", HERE) == 0
    assert limits.wait_s("anna", THERE) > 0
    assert fail(limits, 50, "anna", HERE) == 10
    assert limits.wait_s("anna", HERE) > 0


def test_addresses_of_one_ipv6_network_count_together(clock):
    limits = LoginLimits(10, 100, clock)
    assert sum(fail(limits, 1, "anna", f"2001:db8::{i}") for i in range(1, 50)) == 10


def test_what_is_remembered_has_a_limit(clock, monkeypatch):
    monkeypatch.setattr(login_limits, "BUCKETS_MAX", 10)
    monkeypatch.setattr(login_limits, "KNOWN_MAX", 10)
    limits = LoginLimits(10, 100, clock)
    for i in range(100):
        limits.settle(f"account{i}", f"10.0.0.{i}", good=False)
        limits.settle(f"account{i}", f"10.0.0.{i}", good=True)
    assert len(limits._buckets) == len(limits._known) == 10


def attempts(limits, goods):
    """Logins at once: which were checked, and how many at a time at the most."""
    now = most = 0

    async def one(good):
        nonlocal now, most
        async with limits.attempt("anna", HERE) as attempt:
            if attempt.wait_s:
                return "throttled"
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            attempt.good = good
            return "ok" if good else "failed"

    async def all_of_them():
        return await asyncio.gather(*(one(good) for good in goods))

    return asyncio.run(all_of_them()), most


def test_guesses_at_the_same_time_do_not_slip_past_the_limit(clock):
    got, most = attempts(LoginLimits(3, 100, clock), 50 * [False])
    assert got == 3 * ["failed"] + 47 * ["throttled"]
    assert most == 3


def test_correct_logins_at_the_same_time_wait_for_each_other_and_are_not_refused(clock):
    limits = LoginLimits(3, 100, clock)
    got, most = attempts(limits, 60 * [True])
    assert got == 60 * ["ok"]
    assert most == 3
    assert limits.results == {"ok": 60, "failed": 0, "throttled": 0}


def test_a_login_that_was_never_checked_gives_its_place_back(clock):
    limits = LoginLimits(1, 100, clock)
    got, _ = attempts(limits, [None, None, True])
    assert got[-1] == "ok"
    assert limits.results == {"ok": 1, "failed": 0, "throttled": 0}
