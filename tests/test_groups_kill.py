"""Queue groups whose coordinator, or the broker of a member, is killed or stopped.

Each notification reaches one member, or its loss is reported.

anna -- b0 -- b1 -- b2 -- b3      boss publishes at b2; b1 or b3 coordinates
                    |
                   bert
"""

import asyncio
import itertools
from collections import Counter
from contextlib import suppress

import pytest

import wayfare
from live import until
from test_bursts import chain
from wayfare.core.filters import Filter
from wayfare.core.groups import coordinator, group_id

JOBS = "n > 0"
BROKERS = ("b0", "b1", "b2", "b3")
pytestmark = pytest.mark.slow


def coordinated_by(broker):
    """The name of a group that this broker coordinates."""
    filter = Filter.parse(JOBS)
    names = (f"workers{number}" for number in itertools.count())
    return next(one for one in names if coordinator(group_id(one, filter), BROKERS) == broker)


class Worker:
    """A member: what it got, and the losses that were reported to it."""

    def __init__(self, url, name):
        self.got, self.told = [], []
        self.client = wayfare.connect(
            url, client_id=name, on_lost=lambda *it: self.told.append(it), timeout=60
        )

    async def work(self, subscription):
        with suppress(wayfare.Closed):
            async for n in subscription:
                self.got.append(n["n"])
                assert n.redelivered == 0


@pytest.mark.timeout(60)
def test_each_notification_reaches_one_member_although_members_move_between_processes(tmp_path):
    async def play():
        async with chain(tmp_path, 4) as net:
            members = anna, bert = Worker(net.url(0), "anna"), Worker(net.url(2), "bert")
            async with (
                anna.client,
                bert.client,
                wayfare.connect(net.url(2), client_id="boss", timeout=60) as boss,
            ):
                await boss.advertise(JOBS)
                working = [
                    asyncio.create_task(
                        one.work(await one.client.subscribe(JOBS, group="team", away=30))
                    )
                    for one in members
                ]

                async def publish():
                    for number in range(1, 1001):
                        await boss.publish({"n": number})

                publishing = asyncio.create_task(publish())
                for at in (1, 3, 0, 2) * 3:
                    await asyncio.gather(
                        anna.client.move(net.url(at)), bert.client.move(net.url(3 - at))
                    )
                await publishing
                await until(lambda: {*anna.got, *bert.got} == {*range(1, 1001)}, 30)
                for one in working:
                    one.cancel()
        assert len(anna.got) + len(bert.got) == 1000, "each once"
        assert anna.got and bert.got, "they share"
        assert anna.told == bert.told == []

    asyncio.run(play())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("how", "durability"),
    [("kill", "os"), ("kill", "memory"), ("stop", "memory")],
    ids=["kill", "kill without a store", "stop"],
)
@pytest.mark.parametrize(
    ("at", "coordinating"), [(1, 1), (3, 3), (0, 3)], ids=["between", "leaf", "member's"]
)
def test_each_notification_reaches_one_member_or_is_reported(
    tmp_path, at, coordinating, how, durability
):
    group, forgetful = coordinated_by(f"b{coordinating}"), (how, durability) == ("kill", "memory")
    published = itertools.count(1)

    async def trouble(net):
        for _ in range(2):
            await asyncio.sleep(0.5)
            await net.disturb(how, at)

    async def play():
        async with chain(tmp_path, 4, durability) as net:
            members = anna, bert = Worker(net.url(0), "anna"), Worker(net.url(2), "bert")

            def got():
                return [*anna.got, *bert.got]

            async with (
                anna.client,
                bert.client,
                wayfare.connect(net.url(2), client_id="boss", timeout=60) as boss,
            ):
                await boss.advertise(JOBS)
                working = [
                    asyncio.create_task(one.work(await one.client.subscribe(JOBS, group=group)))
                    for one in members
                ]
                troubled = asyncio.create_task(trouble(net))
                while not troubled.done():
                    await boss.publish({"n": next(published)})
                    await asyncio.sleep(0.001)
                await troubled
                while True:  # until the group is in effect again: the last one reaches a member
                    await boss.publish({"n": (number := next(published))})
                    with suppress(TimeoutError):
                        await until(lambda: number in got(), 1)
                        break
                after = [next(published) for _ in range(100)]
                for number in after:
                    await boss.publish({"n": number})
                expected = (
                    {*after} if forgetful and at == coordinating else {*range(1, after[-1] + 1)}
                )
                await until(lambda: expected <= {*got()})
                for one in working:
                    one.cancel()
        assert [n for n, times in Counter(got()).items() if times > 1] == []
        for one in members:
            assert {count for count, _ in one.told} == ({0} if forgetful else set())

    asyncio.run(play())
