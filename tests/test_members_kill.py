"""Members of queue groups, and brokers of responders, in processes of their own that are killed or stopped.

anna -- b0 -- b1 -- b2 -- bert      boss publishes at b1
"""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import wayfare
from live import until
from test_bursts import chain

SCRIPT = Path(__file__).with_name("member_process.py")
JOBS = "n > 0"
AWAY_S, PREFETCH = 2.0, 4
pytestmark = pytest.mark.slow


@asynccontextmanager
async def member(url, name, folder):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SCRIPT),
        *(url, name, str(AWAY_S), str(PREFETCH), str(folder / name)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def journal(folder, name, what):
    """Jobs and their redeliveries."""
    file = folder / name
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(int(number), int(again)) for word, number, again in lines if word == what]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_what_a_killed_member_was_not_done_with_is_redelivered(tmp_path, how):
    """Each job is acknowledged once; what somebody else may have had says so."""

    async def play():
        async with (
            chain(tmp_path, 3) as net,
            member(net.url(0), "anna", tmp_path) as anna,
            member(net.url(2), "bert", tmp_path) as bert,
            wayfare.connect(net.url(1), client_id="boss", timeout=60) as boss,
        ):
            await boss.advertise(JOBS)
            for number in range(1, 201):
                await boss.publish({"n": number})
            await until(lambda: len(journal(tmp_path, "anna", "acked")) >= 20)
            anna.send_signal(how)
            if how == signal.SIGKILL:
                await anna.wait()
            else:
                os.waitid(os.P_PID, anna.pid, os.WSTOPPED | os.WNOWAIT)
            before = {number for number, _ in journal(tmp_path, "anna", "taken")}

            def acked():
                return {n for name in ("anna", "bert") for n, _ in journal(tmp_path, name, "acked")}

            await until(lambda: acked() == set(range(1, 201)), 30)
            if how == signal.SIGSTOP:  # it goes on, and finishes what it had in hand
                anna.send_signal(signal.SIGCONT)
                await boss.publish({"n": 201})
                await until(lambda: 201 in acked())
            assert bert.returncode is None
        return before

    before = asyncio.run(play())
    anna, bert = (journal(tmp_path, name, "taken") for name in ("anna", "bert"))
    twice = {number for number, _ in anna} & {number for number, _ in bert}
    again = {number for number, times in bert if times}
    assert twice <= again, "redeliveries are counted"
    assert 0 < len(again) <= PREFETCH, "what was assigned to anna, and not acknowledged"
    assert not {number for number, _ in anna} & again - before, "she took nothing that was void"
    for taken in (anna, bert):
        assert len({number for number, _ in taken}) == len(taken)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_request_whose_responders_broker_fails_has_its_own_reply_or_an_error(tmp_path, how):
    async def play():
        async with (
            chain(tmp_path, 3) as net,
            wayfare.connect(net.url(2), client_id="bert", timeout=60) as bert,
            wayfare.connect(net.url(0), client_id="anna", timeout=60) as anna,
        ):
            await anna.advertise("ask > 0")
            questions = await bert.subscribe("ask > 0")

            async def serve():
                async for one in questions:
                    await one.reply({"answer": one["ask"]})

            async def ask(number):
                try:
                    return (await anna.request({"ask": number}, timeout=3))["answer"]
                except (wayfare.NoReply, wayfare.NoResponders) as error:
                    return error

            serving = asyncio.create_task(serve())
            assert await ask(1) == 1
            troubled = asyncio.create_task(net.disturb(how, 2))
            asked, outcomes = [], []
            while not troubled.done():
                asked.append(len(asked) + 2)
                outcomes.append(asyncio.create_task(ask(asked[-1])))
                await asyncio.sleep(0.02)
            await troubled
            outcomes = await asyncio.gather(*outcomes)
            while (last := await ask(1000)) != 1000:  # it comes back
                assert isinstance(last, wayfare.NoReply | wayfare.NoResponders)
            serving.cancel()
        return list(zip(asked, outcomes, strict=True))

    outcomes = asyncio.run(play())
    assert outcomes
    wrong = [(n, one) for n, one in outcomes if not isinstance(one, Exception) and one != n]
    assert wrong == []
    for _, one in outcomes:
        if isinstance(one, Exception):
            assert str(one), "it says what happened"
