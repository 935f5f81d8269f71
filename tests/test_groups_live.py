"""Queue groups on sockets."""

import asyncio
import logging

import pytest

import wayfare
import wayfare.sync
from live import tree, until
from test_client_api import live
from wayfare.core import groups
from wayfare.core.filters import Filter
from wayfare.core.history import SECOND_NS, Limits
from wayfare.errors import UsageError
from wayfare.testing import Tree

LINE = ("porto-lisbon", "faro-lisbon")
JOBS = "kind = 'job'"


def job(number):
    return {"kind": "job", "n": number}


def members(net):
    """How many the group has."""
    groups = [one.core.groups.groups for one in net.brokers.values()]
    return sum(len(one.members) for some in groups for one in some.values())


@live
async def test_each_notification_goes_to_one_member_also_if_members_move():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("faro"), client_id="boss") as boss,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("lisbon"), client_id="bert") as bert,
    ):
        await boss.advertise(JOBS)
        got = {"anna": [], "bert": []}

        async def work(client, name):
            async for n in client.subscribe(JOBS, group="workers", prefetch=4):
                got[name].append(n["n"])
                assert n.redelivered == 0

        working = [asyncio.create_task(work(anna, "anna")), asyncio.create_task(work(bert, "bert"))]
        await until(lambda: members(net) == 2)
        for number in range(100):
            await boss.publish(job(number))
            if number == 30:
                await anna.move(net.url("faro"))
            elif number == 60:
                await bert.move(net.url("porto"))
        await until(lambda: sum(map(len, got.values())) >= 100)
        assert sorted([*got["anna"], *got["bert"]]) == list(range(100))
        assert min(map(len, got.values())) > 20, "both had work"
        for one in working:
            one.cancel()


@live
async def test_what_a_member_is_not_done_with_goes_to_another_one():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("faro"), client_id="boss") as boss,
        wayfare.connect(net.url("lisbon"), client_id="bert") as bert,
    ):
        await boss.advertise(JOBS)
        anna = await wayfare.connect(net.url("porto"), client_id="anna")
        hers = await anna.subscribe(JOBS, group="workers", ack=True, away=1)
        for number in range(3):
            await boss.publish(job(number))
        first = await hers.get(10)
        await first.ack()
        await hers.get(10)  # and is not done with it
        his = await bert.subscribe(JOBS, group="workers", ack=True, away=1)
        # A group whose member vanishes without a word.
        anna._conversation.wire.abort("vanishes")
        anna._conversation.detach()
        again = [await his.get(20) for _ in range(2)]
        assert [(one["n"], one.redelivered) for one in again] == [(1, 1), (2, 1)]
        for one in again:
            await one.ack()
        # It does not get what others have had: neither while it is away, nor when it comes back.
        with pytest.raises(TimeoutError):
            await hers.get(0.1)
        await anna.attach()
        await until(lambda: members(net) == 2)
        await boss.publish(job(3))
        await boss.publish(job(4))
        late = [await one.get(20) for one in (hers, his)]
        assert {(one["n"], one.redelivered) for one in late} == {(3, 0), (4, 0)}
        await anna.close()


@live
async def test_what_was_put_back_is_not_for_a_member_that_was_given_up():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("faro"), client_id="boss") as boss,
        wayfare.connect(net.url("lisbon"), client_id="bert") as bert,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
    ):
        await boss.advertise(JOBS)
        hers = await anna.subscribe(JOBS, group="workers", ack=True, away=1)
        await boss.publish(job(1))
        first = await hers.get(10)
        await first.nack()
        first = await hers.get(10)
        assert (first["n"], first.redelivered) == (1, 1)
        await anna.detach()
        his = await bert.subscribe(JOBS, group="workers", ack=True, away=1)
        assert (await his.get(20))["n"] == 1
        await first.nack()
        with pytest.raises(TimeoutError):
            await hers.get(0.1)


def test_who_begins_one_group_too_many_is_told_and_joins_when_there_is_room(monkeypatch, caplog):
    monkeypatch.setattr(groups, "GROUPS_MAX", 1)
    brokers = ("porto", "lisbon", "faro")
    names = [f"workers {number}" for number in range(99)]
    wanted = Filter.parse(JOBS)
    first, second = [
        one for one in names if groups.coordinator(groups.group_id(one, wanted), brokers) == "faro"
    ][:2]

    async def test():
        async with (
            tree(*LINE, limits=Limits(group_ns=SECOND_NS)) as net,
            wayfare.connect(net.url("faro"), client_id="boss") as boss,
            wayfare.connect(net.url("porto"), client_id="anna") as anna,
        ):
            await boss.advertise(JOBS)
            hers = await anna.subscribe(JOBS, group=first)
            other = anna.subscribe(JOBS, group=second, away=1)
            caplog.set_level(logging.WARNING, "wayfare")
            await other  # what it is told is in the log
            assert f"the queue group {second}" in caplog.text
            assert (
                "faro coordinates 1 queue groups, and has no room: close the members" in caplog.text
            )
            assert "It takes effect when there is room" in caplog.text
            with pytest.raises(wayfare.NotConfirmed, match="faro coordinates 1 queue groups"):
                await other.ready(10)
            await hers.unsubscribe()
            there = net.brokers["faro"].core.groups.groups
            await until(lambda: [one.name for one in there.values()] == [second])
            await until(lambda: other._member.machine.joined)
            await boss.publish(job(1))
            assert (await other.get(10))["n"] == 1

    asyncio.run(asyncio.wait_for(test(), 60))


@live
async def test_a_member_that_closes_gives_back_at_once():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("faro"), client_id="boss") as boss,
        wayfare.connect(net.url("lisbon"), client_id="bert") as bert,
    ):
        await boss.advertise(JOBS)
        anna = await wayfare.connect(net.url("porto"), client_id="anna")
        hers = await anna.subscribe(JOBS, group="workers", away=600)
        for number in range(5):
            await boss.publish(job(number))
        assert (await hers.get(10))["n"] == 0
        assert (await hers.get(10))["n"] == 1  # so 0 is done
        his = await bert.subscribe(JOBS, group="workers", away=600)
        await anna.close()  # 1 is in hand, and done
        again = [await his.get(20) for _ in range(3)]
        assert [(one["n"], one.redelivered) for one in again] == [(2, 1), (3, 1), (4, 1)]
        # The same for a subscription that is closed.
        await his.close()
        await until(lambda: not bert._core.subscriptions and not bert._core.advertisements)


@live
async def test_members_answer_requests_in_turn():
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("faro"), client_id="boss") as boss,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("lisbon"), client_id="bert") as bert,
    ):
        await boss.advertise(JOBS)
        some = [await one.subscribe(JOBS, group="workers") for one in (anna, bert)]

        async def serve(subscription):
            async for n in subscription:
                await n.reply({"n": n["n"]})

        serving = [asyncio.create_task(serve(one)) for one in some]
        replies = [await boss.request(job(number), timeout=20) for number in range(4)]
        assert [one["n"] for one in replies] == [0, 1, 2, 3]
        assert {one.publisher for one in replies} == {"anna", "bert"}
        for one in serving:
            one.cancel()


@live
async def test_options_of_groups_are_checked():
    async with tree("porto-lisbon") as net, wayfare.connect(net.url("porto")) as anna:
        for wrong in (
            {"group": ""},
            {"group": "x", "prefetch": 0},
            {"group": "x", "away": 0.01},
            {"group": "x", "last": 2},
            {"group": "x", "retained": True},
            {"group": "x", "slow_publishers": -1},
        ):
            with pytest.raises(UsageError):
                anna.subscribe(JOBS, **wrong)
        with pytest.raises(UsageError, match="follows one client, so no group can share it"):
            anna.subscribe("kind = 'job' and place in myloc", group="x")


@live
async def test_a_member_says_for_how_long_publishers_may_be_slowed():
    async with (
        tree("porto-lisbon") as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
    ):
        await anna.subscribe(JOBS, group="workers", slow_publishers=2.5)
        groups = [one.core.groups.groups for one in net.brokers.values()]
        (group,) = [one for some in groups for one in some.values()]
        (member,) = group.members.values()
        assert (member.slow_ns, member.client) == (2_500_000_000, "anna")


def test_without_asyncio():
    with (
        Tree(*LINE) as net,
        wayfare.sync.connect(net["porto"]) as anna,
        wayfare.sync.connect(net["faro"]) as boss,
        anna.subscribe(JOBS, group="workers") as jobs,
    ):
        boss.advertise(JOBS)
        boss.publish(job(1))
        assert jobs.get(20)["n"] == 1
