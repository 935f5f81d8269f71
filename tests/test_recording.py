"""The event log of live clients: the schema of simulations, and the oracle reads it."""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import suppress

import pyarrow.parquet as pq
import pytest

import wayfare
from live import tree
from test_client_api import LINE, live, numbers
from wayfare.core.filters import Filter
from wayfare.errors import CannotConnect, UsageError
from wayfare.eventlog import IS_EVENT, Event
from wayfare.net import telling
from wayfare.net.recording import CLOCK_NS
from wayfare.sim.oracle import check_deliveries
from wayfare.sim.reach import Reach

REACH = Reach(tree_ns=20_000_000, client_ns=20_000_000)
PAUSE_S = 0.2  # longer than anything takes to settle, by REACH


async def drive(net, events):
    """Anna and tom, who both move, and a goodbye. What anna got."""
    async with (
        wayfare.connect(net.url("porto"), client_id="anna", events=events("anna")) as anna,
        wayfare.connect(net.url("faro"), client_id="tom", events=events("tom")) as tom,
    ):
        await tom.advertise("x > 0")
        async with anna.subscribe("x > 0") as all:
            got = []
            for x in range(1, 11):
                await tom.publish({"x": x})
                if x == 3:
                    await anna.move(net.url("lisbon"))
                if x == 6:
                    await tom.move(net.url("porto"))
                if x == 8:
                    await anna.detach()
                    await anna.attach()
            got += await numbers(all, 10)
            await asyncio.sleep(4 * PAUSE_S)  # the oracle requires only what had time to arrive
        await tom.unadvertise("x > 0")
    return got


@live
async def test_the_oracle_reads_a_live_log():
    rows = []
    async with tree(*LINE) as net:
        assert await drive(net, lambda _: rows.append) == [*range(1, 11)]
    times = [one.time_ns for one in rows]
    assert times == sorted(times)
    assert abs(times[-1] - time.time_ns()) < 60 * 10**9
    verdict = check_deliveries(rows, REACH)
    assert (verdict.violations, verdict.published, verdict.delivered) == ((), 10, 10)
    assert verdict.required == 10
    # And it would notice: one delivery less, one more, two exchanged.
    delivered = [one for one in rows if one.kind == "delivered"]
    less = [one for one in rows if one is not delivered[4]]
    more = [*rows, delivered[4]]
    swapped = [
        delivered[5] if one is delivered[4] else delivered[4] if one is delivered[5] else one
        for one in rows
    ]
    for wrong, rule in ((less, "complete"), (more, "once"), (swapped, "fifo")):
        assert rule in {one.rule for one in check_deliveries(wrong, REACH).violations}


@live
async def test_what_was_published_since_a_confirmation_is_required_by_the_oracle():
    """Live logs did not record when a confirmation was requested, so the oracle required nothing."""
    rows = []
    async with tree(*LINE) as net:
        await drive(net, lambda _: rows.append)
    (confirmed,) = [one for one in rows if one.kind == "confirmed"]
    (subscribed,) = [one for one in rows if one.kind == "subscribed"]
    assert subscribed.time_ns <= confirmed.since_ns <= confirmed.time_ns
    wrong = [one for one in rows if one.kind != "delivered"]
    verdict = check_deliveries(wrong, REACH)
    assert (verdict.required, verdict.delivered) == (10, 0)
    assert {one.rule for one in verdict.violations} == {"complete"}


@live
async def test_every_kind_has_its_row():
    rows = []
    async with tree(*LINE) as net:
        await drive(net, lambda _: rows.append)
        of_anna = [one for one in rows if one.client == "anna"]
        assert [(one.kind, one.broker) for one in of_anna if one.kind != "delivered"] == [
            ("attached", "porto"),
            ("subscribed", None),
            ("confirmed", None),
            ("detached", "porto"),
            ("attached", "lisbon"),
            ("detached", "lisbon"),
            ("attached", "lisbon"),
            ("unsubscribed", None),
            ("left", "lisbon"),
            ("detached", "lisbon"),
        ]
        epochs = [one.epoch for one in of_anna if one.kind == "attached"]
        assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]
        assert [one.delivery for one in of_anna if one.kind == "delivered"] == [*range(1, 11)]
        assert [one.kind for one in rows if one.client == "tom" and one.filter] == [
            "advertised",
            "unadvertised",
        ]
        async with wayfare.connect(net.url("porto"), client_id="bert", events=rows.append) as bert:
            here = await bert.subscribe("y > 0", local=True, last=3)
            await bert.move(net.url("faro"))
            assert [one async for one in here] == []
        said = [(one.kind, one.reason) for one in rows if one.client == "bert" and one.filter]
        assert said == [
            ("subscribed", "last 3, local"),
            ("confirmed", None),
            ("unsubscribed", "stayed behind"),
        ]
        after = len(rows)
        await bert.close()
        await here.close()
        assert len(rows) == after


@live
async def test_a_loss_has_its_row():
    rows = []
    async with tree(*LINE) as net:
        async with wayfare.connect(net.url("porto"), client_id="anna", events=rows.append) as anna:
            await anna.subscribe("x > 0")
            await net.restart("porto")
            async with asyncio.timeout(5):
                while not any(one.kind == "lost" for one in rows):
                    await asyncio.sleep(0.01)
        (lost,) = [one for one in rows if one.kind == "lost"]
        assert lost.client == "anna" and lost.count == 0 and lost.reason


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_log_in_files(suffix, tmp_path):
    @live
    async def write():
        async with tree(*LINE) as net:
            await drive(net, lambda name: tmp_path / f"{name}{suffix}")

    write()
    rows = []
    for file in sorted(tmp_path.iterdir()):
        if suffix == ".jsonl":
            rows += [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        else:
            rows += pq.read_table(file).to_pylist()
    assert {row["run"] for row in rows} == {"anna", "tom"}
    events = [as_event(row) for row in sorted(rows, key=lambda row: row["time_ns"])]
    verdict = check_deliveries(events, REACH)
    assert (verdict.violations, verdict.required, verdict.delivered) == ((), 10, 10)


def as_event(row):
    fields = {name: value for name, value in row.items() if name != "run" and value is not None}
    if "filter" in fields:
        fields["filter"] = Filter.parse(fields["filter"])
    if "attributes" in fields:
        fields["attributes"] = json.loads(fields["attributes"])
    return Event(**fields)


@live
async def test_a_wrong_name_and_a_wrong_function(caplog):
    async with tree(*LINE) as net:
        with pytest.raises(UsageError, match=r"ends in \.parquet or \.jsonl"):
            await wayfare.connect(net.url("porto"), events="log.txt")

        def wrong(event):
            raise ZeroDivisionError

        async with wayfare.connect(net.url("porto"), client_id="anna", events=wrong) as anna:
            await anna.advertise("x > 0")
            await anna.publish({"x": 1}, confirm=True)
        assert "the event log of anna failed" in caplog.text


# ---- as notifications ------------------------------------------------------------------------


@live
async def test_whoever_subscribes_to_events_learns_what_happens():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("lisbon")) as watcher,
        watcher.subscribe(IS_EVENT) as told,
    ):
        await drive(net, lambda _: net.url("faro"))
        rows = []
        with suppress(TimeoutError):
            while True:
                rows.append(await told.get(1))
    events = [as_event(dict(one)) for one in rows]
    verdict = check_deliveries(sorted(events, key=lambda one: one.time_ns), REACH)
    assert (verdict.violations, verdict.published, verdict.delivered) == ((), 10, 10)
    assert {(one["run"], one.publisher) for one in rows} == {
        ("anna", "anna.log"),
        ("tom", "tom.log"),
    }
    ends = [one.kind for one in events if one.client == "anna"]
    assert (ends[0], ends[-2:]) == ("attached", ["left", "detached"])


@live
async def test_events_of_events_are_not_told():
    async with tree(*LINE) as net:
        where = net.url("porto")
        async with (
            wayfare.connect(where, client_id="anna", events=where) as anna,
            anna.subscribe("true") as all,
        ):
            while (await all.get(5))["kind"] != "confirmed":
                pass
            with pytest.raises(TimeoutError):
                await all.get(PAUSE_S)


@live
async def test_what_cannot_be_told_costs_the_client_nothing(caplog, monkeypatch):
    monkeypatch.setattr(telling, "WAITING_MAX", 3)
    async with tree(*LINE) as net:
        caplog.set_level("WARNING", "wayfare.client")
        with pytest.raises(CannotConnect):
            await wayfare.connect(net.url("porto"), events="wayfare://127.0.0.1:1", timeout=0.5)
        async with wayfare.connect(
            net.url("porto"), client_id="anna", events=net.url("faro")
        ) as anna:
            await anna.advertise("x > 0")
            for x in range(10):  # nobody else has a turn meanwhile
                await anna.publish({"x": x + 1})
            assert "too many events of anna wait: some are left out" in caplog.text
            await asyncio.sleep(PAUSE_S)  # these are told
            await anna.publish({"x": 11, "y": "é" * 900_000}, confirm=True)  # too large as an event
            await asyncio.sleep(PAUSE_S)
            assert "not told any more" not in caplog.text
            # Another client of that name: the log is refused, and anna is not.
            async with wayfare.connect(net.url("faro"), client_id="anna.log"):
                await anna.publish({"x": 11}, confirm=True)
                await asyncio.sleep(PAUSE_S)
            assert "the events of anna are not told any more: " in caplog.text
            await anna.publish({"x": 12}, confirm=True)


def test_clocks_of_processes_can_be_compared():
    code = "from wayfare.net.recording import CLOCK_NS; print(CLOCK_NS)"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert abs(int(there.stdout) - CLOCK_NS) < 1_000_000_000


def test_who_wants_no_log_does_not_load_what_writes_it():
    code = "import sys, wayfare; print('pyarrow' in sys.modules)"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert there.stdout.strip() == b"False"
