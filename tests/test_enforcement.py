"""Accounts that change while clients are attached or away, and quotas: on real sockets."""

import asyncio
import json
import logging
import time
from contextlib import asynccontextmanager, suppress

import pytest

import wayfare
from live import HERE, until
from wayfare.core import groups
from wayfare.errors import Refused
from wayfare.net import accounts as accounts_file
from wayfare.net import enforcement
from wayfare.net.accounts import Accounts
from wayfare.net.audit import Audit
from wayfare.net.broker import BrokerHost
from wayfare.net.limits import NetLimits
from wayfare.net.status import status_of
from wayfare.net.store import Store


@pytest.fixture(autouse=True)
def quick(monkeypatch, caplog):
    monkeypatch.setattr(enforcement, "FILES_S", 0.05)
    caplog.set_level(logging.WARNING, "wayfare")


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 60))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "accounts.toml"
    accounts_file.add(path, "anna", "open", {"clients": ["anna-*"]})
    accounts_file.add(path, "tom", "sesame")
    return path


@asynccontextmanager
async def live(broker):
    await broker.start(HERE)
    try:
        yield broker
    finally:
        await broker.stop()


def broker_of(file, **options):
    audit = Audit("porto", "broker", file.with_name("audit.jsonl"))
    return BrokerHost("porto", {}, accounts=Accounts(file), audit=audit, **options)


def audited(file, event):
    lines = file.with_name("audit.jsonl").read_text("utf-8").splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == event]


class Joined:
    """A client that may publish anything; awaited or entered, as `wayfare.connect` is."""

    def __init__(self, broker, name="anna", password="open", **options):
        url = str(broker.address)
        self.opening = wayfare.connect(url, client_id=name, password=password, **options)

    def __await__(self):
        return self.open().__await__()

    async def open(self):
        self.client = await self.opening
        await self.client.advertise("true")
        return self.client

    async def __aenter__(self):
        return await self.open()

    async def __aexit__(self, *_):
        await self.client.close()


connect = Joined


def change(file, old, new):
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


async def refusal_of(client):
    """Why the broker closed the connection of a client for good."""
    async with asyncio.timeout(40):
        while True:
            try:
                await client.publish({"x": 1})
                await client.flush()
            except Refused as refused:
                return str(refused)
            await asyncio.sleep(0.02)


def test_the_clients_of_a_removed_account_are_disconnected_and_others_stay(file):
    async def test():
        async with live(broker_of(file)) as broker, connect(broker, "tom", "sesame") as tom:
            anna = await connect(broker)
            accounts_file.remove(file, "anna")
            assert "the account anna was removed" in await refusal_of(anna)
            await tom.publish({"x": 1})
            await tom.flush()
            (change,) = audited(file, "account_changed")
            assert (change["account"], change["change"]) == ("anna", "removed")

    run(test())


def test_a_client_whose_name_becomes_that_of_another_account_is_not_told_which(file, caplog):
    async def test():
        async with live(broker_of(file)) as broker:
            anna = await connect(broker, "anna-1", account="anna")
            accounts_file.add(file, "project-condor", "secret", {"clients": ["anna-1*"]})
            change(file, '["anna-*"]', '["anna-2*"]')
            why = await refusal_of(anna)
            assert "may not attach as" in why and "condor" not in why and "anna-1*" not in why
            assert "project-condor" in caplog.text

    run(test())


def test_a_client_stays_while_its_password_is_rotated_and_leaves_when_that_is_over(file):
    async def test():
        async with live(broker_of(file)) as broker:
            anna = await connect(broker)
            accounts_file.rotate(file, "anna", "new")
            await until(lambda: audited(file, "account_changed"))
            async with connect(broker, "anna-2", "new", account="anna") as other:
                await anna.publish({"x": 1})
                await anna.flush()
                accounts_file.finish_rotation(file, "anna")
                assert "cannot log in" in await refusal_of(anna)
                assert broker.ended["client", "refused", "account"] == 1
                await until(lambda: audited(file, "refused"))
                assert audited(file, "refused")[0]["why"] == "account"
                await other.publish({"x": 1})
                await other.flush()

    run(test())


def test_a_previous_password_expires_by_itself(file):
    async def test():
        async with live(broker_of(file)) as broker:
            anna = await connect(broker)
            accounts_file.rotate(file, "anna", "new", 1.5)
            assert "cannot log in" in await refusal_of(anna)
            assert not Accounts(file).verify("anna", "open")
            assert Accounts(file).verify("anna", "new")

    run(test())


def test_rules_that_shrink_are_in_force_for_who_is_attached(file):
    async def test():
        async with live(broker_of(file)) as broker:
            anna = await connect(broker)
            await anna.subscribe("x > 0")
            await anna.subscribe("service = 'parking'")
            await anna.flush()
            change(file, '["anna"]\n', '["anna"]\nsubscribe = ["service = \'parking\'"]\n')
            assert "may not subscribe to x > 0: its account allows" in await refusal_of(anna)
            (session,) = broker.core.border.of("anna")
            assert [str(one) for one in session.subscriptions] == ["service = 'parking'"]

    run(test())


def test_rules_that_allow_what_a_client_has_disturb_it_not_and_hold_for_what_it_asks_next(file):
    async def test():
        async with live(broker_of(file)) as broker:
            anna = await connect(broker)
            got = await anna.subscribe("x > 0")
            change(file, '["anna"]\n', '["anna"]\nsubscribe = ["x > 0"]\npublish = ["x > 0"]\n')
            await until(lambda: broker.core.grants)
            await anna.publish({"x": 1})
            assert (await got.get(5))["x"] == 1
            await anna.publish({"y": 1})
            assert "may not publish a notification with y" in await refusal_of(anna)

    run(test())


def test_what_waits_for_a_client_that_is_away_is_withdrawn(file):
    async def test():
        async with live(broker_of(file)) as broker, connect(broker, "tom", "sesame") as tom:
            anna = await connect(broker)
            await anna.subscribe("x > 0")
            await anna.flush()
            await anna.detach()
            await until(lambda: broker.core.border.of("anna")[0].link is None)
            await tom.publish({"x": 1, "secret": True})
            await tom.flush()
            (session,) = broker.core.border.of("anna")
            assert len(session.backlog) == 1
            change(file, '["anna"]\n', '["anna"]\nsubscribe = []\n')
            await until(lambda: not session.subscriptions)
            assert not session.backlog

    run(test())


KIB = 1024
GONE = wayfare.Will({"state": "gone"})


async def detach(client):
    with suppress(Refused):
        await client.detach()


@pytest.mark.parametrize("rule", ["publish = ['x > 0']", "deny_publish = ['state is not null']"])
def test_a_will_that_rules_forbid_later_is_not_published(file, rule):
    async def test():
        async with live(broker_of(file)) as broker, connect(broker, "tom", "sesame") as tom:
            got = await tom.subscribe("state is not null")
            anna = await connect(broker, will=GONE)
            other = await connect(broker, "anna-2", account="anna", will=wayfare.Will({"x": 1}))
            change(file, '["anna"]\n', f'["anna"]\n{rule}\n')
            assert "may not publish a notification with state" in await refusal_of(anna)
            await detach(anna)
            await other.publish({"x": 1})  # its will is allowed
            await other.detach()
            await until(lambda: broker.wills == 1)
            with pytest.raises(TimeoutError):
                await got.get(0.2)

    run(test())


def test_the_will_of_a_client_that_is_away_is_dropped_with_the_permission_to_publish_it(file):
    async def test():
        async with live(broker_of(file)) as broker:
            anna = await connect(broker, will=wayfare.Will({"state": "gone"}, delay=60))
            await anna.detach()
            (session,) = broker.core.border.of("anna")
            await until(lambda: session.link is None)
            change(file, '["anna"]\n', '["anna"]\nadvertise = ["x > 0", "true"]\npublish = []\n')
            await until(lambda: session.will is None)
            assert session.advertisements

    run(test())


@pytest.mark.parametrize("away", [False, True])
def test_the_wills_of_a_removed_account_are_dropped(file, away):
    async def test():
        async with live(broker_of(file)) as broker, connect(broker, "tom", "sesame") as tom:
            got = await tom.subscribe("state is not null")
            will = wayfare.Will({"state": "gone"}, delay=1.5 if away else 0)
            anna = await connect(broker, will=will)
            (session,) = broker.core.border.of("anna")
            if away:
                await anna.detach()
                await until(lambda: session.link is None)
            accounts_file.remove(file, "anna")
            await until(lambda: audited(file, "account_changed"))
            with pytest.raises(TimeoutError):
                await got.get(2)
            assert broker.wills == 0 and session.will is None
            assert broker.core.border.of("anna")  # until `limits.away`

    run(test())


def test_a_file_that_is_wrong_changes_nothing(file, caplog):
    async def test():
        async with live(broker_of(file)) as broker, connect(broker) as anna:
            file.write_text("nonsense", "utf-8")
            await until(lambda: "goes on with the accounts that it has" in caplog.text)
            await anna.publish({"x": 1})
            await anna.flush()

    run(test())


def test_sessions_on_disk_are_held_to_rules_that_changed_meanwhile(file, tmp_path):
    async def test():
        def broker():
            return broker_of(file, store=Store(tmp_path / "store", "os", "porto"))

        async with live(broker()) as first:
            anna = await connect(first)
            await anna.subscribe("x > 0")
            await anna.flush()
        change(file, '["anna"]\n', '["anna"]\nsubscribe = ["x > 5"]\n')
        for _ in range(2):  # and what was withdrawn is on disk
            async with live(broker()) as again:
                await until(lambda: not again.core.border.of("anna")[0].subscriptions)

    run(test())


# Quotas


def test_an_account_has_as_many_clients_as_its_quota_says(file):
    change(file, '["anna"]\n', '["anna"]\nconnections = 2\nsessions = 3\n')

    async def test():
        async with live(broker_of(file)) as broker:
            clients = [await connect(broker, f"anna-{i}", account="anna") for i in range(2)]
            with pytest.raises(wayfare.errors.CannotConnect, match="has 2 attached clients"):
                await connect(broker, "anna-2", account="anna", timeout=10)
            # A connection that broke unnoticed does not keep its own client out.
            async with connect(broker, "anna-1", account="anna") as again:
                await again.publish({"x": 1})
                await again.flush()
            for client in clients[:1]:
                await client.close()
            async with connect(broker, "anna-2", account="anna"):
                pass

    run(test())


def test_publications_beyond_the_rate_wait_and_none_is_lost(file):
    change(file, '["tom"]\n', '["tom"]\npublications_per_second = 200\n')

    async def test():
        async with (
            live(broker_of(file)) as broker,
            connect(broker) as anna,
            connect(broker, "tom", "sesame") as tom,
        ):
            got = await anna.subscribe("x >= 0")
            await anna.flush()
            began = time.monotonic()
            for x in range(500):
                await tom.publish({"x": x})
            assert [(await got.get(10))["x"] for _ in range(500)] == [*range(500)]
            await tom.publish({"x": 500})
            assert (await got.get(10))["x"] == 500
            assert time.monotonic() - began > 1.0  # 200 at once, 300 at 200 a second

    run(test())


def test_bytes_beyond_the_rate_wait_and_none_is_lost(file):
    change(file, '["tom"]\n', '["tom"]\nbytes_per_second = "100kB"\n')

    async def test():
        async with (
            live(broker_of(file)) as broker,
            connect(broker) as anna,
            connect(broker, "tom", "sesame") as tom,
        ):
            got = await anna.subscribe("x >= 0")
            await anna.flush()
            began = time.monotonic()
            for x in range(50):
                await tom.publish({"x": x}, payload=bytes(5_000))
            assert [(await got.get(10))["x"] for _ in range(50)] == [*range(50)]
            await tom.publish({"x": 50})
            assert (await got.get(10))["x"] == 50
            assert time.monotonic() - began > 1.0  # 100 kB at once, 150 kB at 100 kB a second

    run(test())


def test_an_account_has_as_many_sessions_as_its_quota_says(file):
    change(file, '["anna"]\n', '["anna"]\nsessions = 2\n')

    async def test():
        async with live(broker_of(file)) as broker:
            for i in range(2):
                client = await connect(broker, f"anna-{i}", account="anna")
                await client.detach()
            with pytest.raises(wayfare.errors.CannotConnect, match="has 2 sessions, and no more"):
                await connect(broker, "anna-2", account="anna", timeout=5)
            async with connect(broker, "anna-0", account="anna"):  # it has a session already
                pass  # and closing ends it
            async with connect(broker, "anna-2", account="anna"):
                pass

    run(test())


def test_sessions_on_disk_count_after_a_restart(file, tmp_path):
    change(file, '["anna"]\n', '["anna"]\nsessions = 1\n')

    async def test():
        def broker():
            return broker_of(file, store=Store(tmp_path / "store", "os", "porto"))

        async with live(broker()) as first:
            client = await connect(first, "anna-0", account="anna")
            await client.detach()
        async with live(broker()) as again:
            with pytest.raises(wayfare.errors.CannotConnect, match="has 1 sessions, and no more"):
                await connect(again, "anna-1", account="anna", timeout=5)

    run(test())


def test_a_client_without_a_quota_has_no_meter(file):
    async def test():
        async with live(broker_of(file)) as broker, connect(broker):
            assert [one.meter for one in broker.connections.values()] == [None]
            change(file, '["anna"]\n', '["anna"]\nbytes_per_second = "1MB"\n')
            await until(lambda: all(one.meter for one in broker.connections.values()))

    run(test())


def test_defaults_of_quotas_are_limits_of_the_broker(file):
    async def test():
        limits = NetLimits(account_subscription_cost=10)
        async with live(broker_of(file, net_limits=limits)) as broker:
            anna = await connect(broker)
            await anna.subscribe("name like '%a%'")
            await anna.flush()
            with pytest.raises(wayfare.Refused, match=r"has used 8 of 10 \(subscription_cost\)"):
                await anna.subscribe("name like '%b%'")

    run(test())


@pytest.mark.parametrize(
    ("text", "options"),
    [("name like '%b%'", {"group": "g"}), ("name like '%b%' and place in myloc", {})],
    ids=["group", "follows"],
)
def test_groups_and_filters_that_follow_are_refused_beyond_the_quota(file, text, options):
    change(file, '["anna"]\n', '["anna"]\nsubscription_cost = 10\n')

    async def test():
        async with live(broker_of(file)) as broker:
            anna = await connect(broker)
            await anna.subscribe("name like '%a%'")
            await anna.flush()
            with pytest.raises(wayfare.Refused, match=r"would cost 1[67], and .* used 8 of 10"):
                await anna.subscribe(text, **options)

    run(test())


def test_requests_and_members_of_groups_cost_nothing_beside_their_filters(file):
    change(file, '["anna"]\n', '["anna"]\nsubscription_cost = 4\n')

    async def test():
        async with (
            live(broker_of(file)) as broker,
            connect(broker, "tom", "sesame") as tom,
            connect(broker) as anna,
        ):
            jobs = await anna.subscribe("x > 0 and y > 0", group="g")
            pending = asyncio.ensure_future(tom.request({"x": 1, "y": 1}, timeout=10))
            await (await jobs.get(10)).reply({"y": 1})
            assert (await pending)["y"] == 1
            asked = await tom.subscribe("z > 0")
            pending = asyncio.ensure_future(anna.request({"z": 1}, timeout=10))
            await (await asked.get(10)).reply({"y": 2})
            assert (await pending)["y"] == 2
            assert broker.core.costs.spent("anna") == 4

    run(test())


def test_an_account_leaves_room_for_the_queue_groups_of_others(file, monkeypatch, caplog):
    monkeypatch.setattr(groups, "GROUPS_MAX", 4)

    async def test():
        async with (
            live(broker_of(file)) as broker,
            connect(broker) as anna,
            connect(broker, "tom", "sesame") as tom,
        ):
            for name in "abc":
                await anna.subscribe("x > 0", group=name)
            assert "the account anna has begun 2 of the queue groups that porto" in caplog.text
            await tom.subscribe("x > 0", group="d")
            begun = broker.core.groups.groups.values()
            assert [(one.name, one.owner) for one in begun] == [
                ("a", "anna"),
                ("b", "anna"),
                ("d", "tom"),
            ]

    run(test())


# Memory


def test_an_account_loses_at_the_limit_in_its_table_also_if_that_changes(file):
    async def test():
        async with live(broker_of(file)) as broker, connect(broker, "tom", "sesame") as tom:
            anna = await connect(broker)
            await anna.subscribe("x > 0")
            await anna.flush()
            await anna.detach()
            (session,) = broker.core.border.of("anna")
            await until(lambda: session.link is None)
            for x in range(1, 101):
                await tom.publish({"x": x}, payload=bytes(2_000))
            await tom.flush()
            assert len(session.backlog) == 100
            change(file, '["anna"]\n', '["anna"]\nmemory = "100KiB"\n')
            await tom.publish({"x": 101})
            await until(lambda: 0 < len(session.backlog) < 50)
            assert broker.core.border.memory.noted("anna") <= 100 * 1024
            (shown,) = status_of(broker).account_memory
            assert (shown.account, shown.limit) == ("anna", 100 * 1024)

    run(test())


@pytest.mark.parametrize(
    ("of_all", "own", "stored", "why"),
    [
        (100 * KIB, None, True, "account_disk"),
        (0, "100KiB", True, "account_disk"),
        (100 * KIB, "none", True, ""),
        (0, "100KiB", False, ""),
    ],
    ids=["limits.account_disk", "its own", "its own is none", "no store"],
)
def test_an_account_loses_at_its_limit_of_the_disk(file, tmp_path, of_all, own, stored, why):
    if own is not None:
        change(file, '["anna"]\n', f'["anna"]\ndisk = "{own}"\n')
    options = {
        "net_limits": NetLimits(account_disk_bytes=of_all),
        "store": Store(tmp_path / "store", "os", "porto") if stored else None,
    }

    async def test():
        async with (
            live(broker_of(file, **options)) as broker,
            connect(broker, "tom", "sesame") as tom,
        ):
            anna = await connect(broker)
            await anna.subscribe("x > 0")
            await anna.flush()
            await anna.detach()
            (session,) = broker.core.border.of("anna")
            await until(lambda: session.link is None)
            for x in range(1, 101):
                await tom.publish({"x": x}, payload=bytes(2_000))
                await tom.flush()
            assert session.backlog.why == why
            assert (0 < len(session.backlog) < 50) == bool(why)
            assert not why or broker.core.border.memory.noted("anna") <= 100 * KIB

    run(test())


def test_an_account_whose_filters_exceed_its_memory_may_not_add_more_and_others_may(file):
    change(file, '["anna"]\n', '["anna"]\nmemory = "60KiB"\n')

    async def test():
        async with live(broker_of(file)) as broker:
            anna = await connect(broker, confirm=0)
            for x in range(40):
                await anna.subscribe(f"x = {x}")
            await until(lambda: broker.memory.is_full_for("anna"))
            with pytest.raises(
                wayfare.errors.CannotConnect, match="account anna has no memory left"
            ):
                await connect(broker, "anna-2", account="anna", timeout=2)
            exceeded, shed = [], broker.memory._shed
            broker.memory._shed = lambda one: (exceeded.append(one), shed(one))
            async with connect(broker, "tom", "sesame") as tom:
                news = await tom.subscribe("x = 1")
                for _ in range(20):  # turns of the loop
                    await tom.publish({"x": 1})
                    assert (await news.get(5))["x"] == 1
            assert len(exceeded) < 5  # what could be shed is not looked for in every turn
            change(file, 'memory = "60KiB"', 'memory = "1MiB"')
            await until(lambda: not broker.memory.is_full_for("anna"))
            async with connect(broker, "anna-2", account="anna") as other:
                await other.subscribe("y = 1")

    run(test())
