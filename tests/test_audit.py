"""The audit log: a stable schema, no secrets, and a flood that does not fill the disk."""

import asyncio
import json
from pathlib import Path

import pytest

import wayfare
from live import HERE
from test_security import file
from wayfare.errors import Refused, UsageError
from wayfare.net import audit
from wayfare.net.accounts import Accounts
from wayfare.net.audit import DISTINCT_MAX, INTERVAL_S, Audit
from wayfare.net.broker import BrokerHost

__all__ = ["file"]  # a fixture
DOCS = Path(__file__).resolve().parent.parent / "docs"


class Clock:
    def __init__(self) -> None:
        self.now = 1_763_412_901.123

    def __call__(self) -> float:
        return self.now


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_line_has_the_common_fields_and_those_of_its_event(tmp_path):
    log = Audit("lisbon", "broker", tmp_path / "audit", Clock())
    log.record("login_failed", account="car-17", address="192.0.2.7", reason="a\nb", client="")
    log.close()
    (line,) = lines(tmp_path / "audit")
    assert [*line] == [*audit.COMMON, "account", "address", "reason"]
    assert line["time"] == "2025-11-17T20:55:01.123Z"
    assert line["reason"] == "a?b"
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o600


def test_an_event_or_field_that_is_not_in_the_schema_is_a_mistake_of_ours(tmp_path):
    log = Audit("lisbon", "broker")
    with pytest.raises(KeyError):
        log.record("loged_in")
    with pytest.raises(AssertionError):
        log.record("login_ok", password="x")


def test_every_field_of_every_event_is_described():
    used = {field for kind in audit.EVENTS.values() for field in kind.fields}
    assert used <= set(audit.FIELDS)
    assert set(audit.FIELDS) - used == {"count", "since", "others"}
    assert not {*audit.FIELDS} & {*audit.COMMON}


def test_the_page_describes_the_schema(rewrite):
    page = DOCS / "audit.md"
    text = page.read_text("utf-8")
    above, heading, _ = text.partition("| field | meaning |\n")
    if rewrite:
        page.write_text(above + audit.reference(), "utf-8")
    else:
        assert heading
        assert text == above + audit.reference(), "pytest --rewrite tests/test_audit.py"


def test_the_examples_of_the_page_are_of_the_schema():
    text = (DOCS / "audit.md").read_text("utf-8")
    examples = [json.loads(line) for line in text.splitlines() if line.startswith("    {")]
    assert examples
    for one in examples:
        allowed = {*audit.COMMON, *audit.EVENTS[one["event"]].fields, "count", "since", "others"}
        assert one["schema"] == audit.SCHEMA
        assert set(one) <= allowed


def test_repetitions_are_counted_instead_of_written(tmp_path):
    async def test():
        clock = Clock()
        log = Audit("lisbon", "broker", tmp_path / "audit", clock)
        for number in range(1_000):
            log.record("login_failed", account="car-17", reason=f"guess {number}")
        assert len(lines(tmp_path / "audit")) == 1
        clock.now += INTERVAL_S
        log.record("login_failed", account="car-17", reason="again")
        first, counted, again = lines(tmp_path / "audit")
        assert counted["count"] == 999
        assert counted["since"] == first["time"]
        assert "count" not in again
        log.close()

    asyncio.run(test())


def test_a_flood_of_different_peers_shares_one_line(tmp_path):
    async def test():
        log = Audit("lisbon", "broker", tmp_path / "audit", Clock())
        for number in range(10_000):
            log.record("refused", address=f"10.0.{number // 256}.{number % 256}", why="late")
        log.record("login_ok", account="car-17")
        log.close()
        *written, ok, others = lines(tmp_path / "audit")
        assert len(written) == DISTINCT_MAX
        assert ok["event"] == "login_ok"
        assert others["others"] is True
        assert others["count"] == 10_000 - DISTINCT_MAX

    asyncio.run(test())


def test_what_was_counted_is_written_when_the_interval_ends(tmp_path, monkeypatch):
    async def test():
        monkeypatch.setattr(audit, "INTERVAL_S", 0.05)
        log = Audit("lisbon", "broker", tmp_path / "audit")
        log.record("login_ok", account="car-17")
        log.record("login_ok", account="car-17")
        async with asyncio.timeout(5):
            while len(lines(tmp_path / "audit")) < 2:
                await asyncio.sleep(0.01)
        assert lines(tmp_path / "audit")[1]["count"] == 1
        log.close()

    asyncio.run(test())


def test_what_an_operator_does_is_never_aggregated(tmp_path):
    log = Audit("lisbon", "broker", tmp_path / "audit", Clock())
    log.record("kicked", client="car-17")
    log.record("kicked", client="car-17")
    log.close()
    assert len(lines(tmp_path / "audit")) == 2


def test_reopening_goes_on_in_a_new_file(tmp_path):
    log = Audit("lisbon", "broker", tmp_path / "audit")
    log.record("started", what="a")
    (tmp_path / "audit").rename(tmp_path / "audit.1")
    log.reopen()
    log.record("stopped")
    log.close()
    assert [one["event"] for one in lines(tmp_path / "audit.1")] == ["started"]
    assert [one["event"] for one in lines(tmp_path / "audit")] == ["stopped"]


def test_a_file_that_cannot_be_written_is_refused_at_the_start_and_survived_later(tmp_path):
    with pytest.raises(UsageError, match="cannot write the audit log"):
        Audit("lisbon", "broker", tmp_path / "nowhere" / "audit")
    log = Audit("lisbon", "broker", "/dev/full")
    log.record("stopped")
    assert (log.written, log.failed) == (0, 1)
    log.close()


def test_a_broker_records_logins_refusals_and_denials(file, tmp_path):
    async def test():
        log = Audit("porto", "broker", tmp_path / "audit")
        broker = BrokerHost("porto", {}, accounts=Accounts(file), audit=log)
        url = str(await broker.start(HERE))
        try:
            with pytest.raises(Refused):
                await wayfare.connect(url, client_id="anna", password="wrong")
            with pytest.raises(Refused):
                await wayfare.connect(url, client_id="tom", password="open")
            with pytest.raises(Refused):
                await wayfare.connect(url, client_id="anna", account="car-17", password="sesame")
            async with wayfare.connect(url, client_id="car-17", password="sesame") as car:
                with pytest.raises(Refused):
                    await car.subscribe("price > 0")
            broker.reload()
        finally:
            await broker.stop()
        assert log.failed == 0

    asyncio.run(test())
    got = lines(tmp_path / "audit")
    shown = [{key: one[key] for key in one if key not in ("schema", "time", "node")} for one in got]
    here = {"role": "broker", "address": "127.0.0.1"}
    failed, ok = {"event": "login_failed", **here}, {"event": "login_ok", **here}
    assert shown[0]["event"] == "started"
    assert shown[1] == {**failed, "account": "anna", "client": "anna", "reason": "wrong password"}
    assert shown[2] == {**failed, "account": "tom", "client": "tom", "reason": "no such account"}
    assert shown[3] == {**ok, "account": "car-17", "client": "anna"}
    assert (shown[4]["event"], shown[4]["why"]) == ("refused", "login")
    assert shown[5] == {**ok, "account": "car-17", "client": "car-17"}
    assert (shown[6]["event"], shown[6]["action"]) == ("denied", "subscribe")
    assert [one["event"] for one in shown[7:]] == ["reloaded", "stopped"]
    assert not any(word in str(got) for word in ("sesame", "wrong'", "argon2"))
