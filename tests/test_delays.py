"""When a notification was published, and how long it took."""

from datetime import UTC, datetime, timedelta

import pytest

import wayfare
import wayfare.sync
from live import tree
from test_client_api import LINE, live
from test_client_store import crash
from wayfare.core import messages as m
from wayfare.net.subscription import Notification
from wayfare.testing import Tree


def one(published_ns, received_ns=0):
    out = Notification(m.Notification("tom", 1, {"x": 1}, b"", published_ns))
    out.received_ns = received_ns
    return out


@pytest.mark.parametrize(
    ("published_ns", "received_ns", "delay"),
    [
        (0, 0, None),  # a publisher of an earlier release
        (0, 5_000_000_000, None),
        (5_000_000_000, 0, None),  # clocks that are not known to agree
        (5_000_000_000, 5_250_000_000, 0.25),
        (5_000_000_000, 4_900_000_000, 0.0),  # a clock that is ahead
    ],
)
def test_a_delay_needs_both_times(published_ns, received_ns, delay):
    assert one(published_ns, received_ns).delay == delay


def test_the_time_of_publication_is_aware():
    assert one(0).published_at is None
    at = datetime(2026, 9, 21, 12, 0, 0, 123456, tzinfo=UTC)
    ns = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000
    assert one(ns + 999).published_at == at


@live
async def test_subscribers_learn_when_it_was_published_and_how_long_it_took():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), clock_error=0) as anna,
        wayfare.connect(net.url("porto")) as bert,
        wayfare.connect(net.url("faro")) as tom,
        anna.subscribe("x > 0") as near,
        bert.subscribe("x > 0") as far,
    ):
        await tom.advertise("x > 0")
        before = datetime.now(UTC)
        await tom.publish({"x": 1})
        found, other = await near.get(5), await far.get(5)
        after = datetime.now(UTC)
        assert before - timedelta(milliseconds=1) <= found.published_at <= after
        assert 0 <= found.delay <= (after - before).total_seconds() + 0.001
        assert other.published_at == found.published_at
        assert other.delay is None


@live
async def test_the_time_is_that_of_publication_also_if_another_process_sends_it(tmp_path):
    file = tmp_path / "tom.db"
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto")) as anna,
        anna.subscribe("x > 0") as all,
    ):
        tom = await wayfare.connect(net.url("faro"), client_id="tom", store=file)
        await tom.advertise("x > 0")
        await tom.detach()
        await tom.publish({"x": 1})
        crash(tom)
        before = datetime.now(UTC)
        async with wayfare.connect(net.url("faro"), client_id="tom", store=file):
            assert (await all.get(5)).published_at < before


def test_the_synchronous_twin_knows_it_too():
    with Tree("porto") as net, wayfare.sync.connect(net["porto"], clock_error=0) as anna:
        anna.advertise("x > 0")
        with anna.subscribe("x > 0") as all:
            anna.publish({"x": 1})
            found = all.get(5)
        assert found.published_at is not None
        assert found.delay >= 0
