"""What came from a system is given on in order, and together where that takes its time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from wayfare.service.inbox import AHEAD_MAX, Inbox


class Disk:
    """Each write takes its time, whatever is in it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begun: list[int] = []
        self.done: list[int] = []
        self.writes = 0
        self._writing: asyncio.Future[None] | None = None

    async def keep(self, item: int) -> None:
        self.begun.append(item)
        if self._writing is None:
            loop = asyncio.get_running_loop()
            self._writing = loop.create_future()
            loop.call_later(self.seconds, self._written)
        await asyncio.shield(self._writing)
        self.done.append(item)

    def _written(self) -> None:
        assert self._writing is not None
        self._writing.set_result(None)
        self._writing = None
        self.writes += 1


def run(story: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(20):
            await story
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())


async def end_of(inbox: Inbox[int]) -> None:
    inbox.finish()
    await asyncio.wait([inbox._task])


def test_what_a_disk_has_to_keep_is_given_on_together_and_in_order() -> None:
    async def story() -> None:
        disk, failures = Disk(0.01), list[str]()
        inbox = Inbox(disk.keep, failed=failures.append)
        items = list(range(2 * AHEAD_MAX + 1))
        for item in items:
            inbox.put(item)
        await end_of(inbox)
        assert disk.begun == disk.done == items
        assert disk.writes == 3  # one, and twice as many as are allowed
        assert not failures

    run(story())


def test_where_nothing_waits_each_is_done_before_the_next() -> None:
    async def story() -> None:
        said: list[str] = []

        async def handle(item: int) -> None:
            said.append(f"begin {item}")
            await asyncio.sleep(0)
            said.append(f"end {item}")

        inbox = Inbox(handle, failed=said.append)
        inbox.put(1)
        inbox.put(2)
        await end_of(inbox)
        assert said == ["begin 1", "end 1", "begin 2", "end 2"]

    run(story())


@pytest.mark.parametrize("bad", [0, 5])
def test_one_that_cannot_be_given_on_ends_it_once(
    bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        disk, failures = Disk(0.01), list[str]()

        async def handle(item: int) -> None:
            if item == bad:
                raise ValueError("no")
            await disk.keep(item)

        inbox = Inbox(handle, failed=failures.append)
        for item in range(10):
            inbox.put(item)
        await end_of(inbox)
        assert failures == ["it could not be given on: ValueError('no')"]
        assert disk.done == list(range(bad))[:1]
        await asyncio.sleep(0.02)

    run(story())


def test_who_stops_waits_for_nothing() -> None:
    async def story() -> None:
        disk, failures = Disk(0.01), list[str]()
        inbox = Inbox(disk.keep, failed=failures.append)
        for item in range(10):
            inbox.put(item)
        await asyncio.sleep(0.015)
        inbox.stop()
        await asyncio.wait([inbox._task])
        assert disk.begun == list(range(10))
        assert disk.done == [0]
        assert not failures
        await asyncio.sleep(0.02)

    run(story())
