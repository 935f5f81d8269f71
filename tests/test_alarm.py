"""The timer of a host."""

import asyncio
from collections.abc import Callable, Coroutine

from wayfare.net.alarm import Alarm

MS = 1_000_000
LONG = 3_600_000 * MS


def rings(story: Callable[[Alarm], Coroutine[None, None, None]], again: int = 0) -> int:
    """How often an alarm goes off in this story; `again`: so often its host sets it anew."""
    times = 0

    async def play() -> None:
        def wake() -> None:
            nonlocal times
            times += 1
            if times <= again:
                alarm.set(1, 0)

        alarm = Alarm(wake)
        await asyncio.wait_for(story(alarm), 10)
        alarm.clear()

    asyncio.run(play())
    return times


def test_it_goes_off_once_at_the_earliest_deadline():
    async def story(alarm: Alarm) -> None:
        alarm.set(LONG, 0)
        alarm.set(20 * MS, 0)
        alarm.set(None, 0)
        alarm.set(2 * MS, 0)
        alarm.set(4 * MS, 0)  # it is set to something earlier
        await asyncio.sleep(0.05)

    assert rings(story) == 1


def test_what_is_over_wakes_at_once():
    async def story(alarm: Alarm) -> None:
        alarm.set(5, LONG)
        await asyncio.sleep(0.01)

    assert rings(story) == 1


def test_a_host_may_set_it_again_when_it_goes_off():
    async def story(alarm: Alarm) -> None:
        alarm.set(1, 0)
        await asyncio.sleep(0.05)

    assert rings(story, again=2) == 3


def test_cleared_it_is_silent_until_it_is_set_again():
    async def story(alarm: Alarm) -> None:
        alarm.set(MS, 0)
        alarm.clear()
        await asyncio.sleep(0.01)
        alarm.set(2 * MS, 0)
        await asyncio.sleep(0.02)

    assert rings(story) == 1
