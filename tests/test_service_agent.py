"""The agent of a machine that moves: which proxy it finds, and who does what it says."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from test_service_live import run
from test_service_trouble import until
from test_service_wires import nobody_answers
from wayfare.net.emulator import Emulator
from wayfare.service.agent import Agent, Choice
from wayfare.service.proxy_addresses import where
from wayfare.service.proxy_server import Server


@asynccontextmanager
async def watching(agent: Agent) -> AsyncIterator[None]:
    task = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_an_agent_finds_a_proxy_by_a_slow_link_and_waits_for_no_other(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    async def story() -> None:
        server = Server("nats://127.0.0.1:9")
        with nobody_answers() as lost:
            async with Emulator("gprs", where(await server.start())) as link:
                slow = f"127.0.0.1:{link.port}"
                agent = Agent(lambda: [lost, slow], str(tmp_path / "agent"), tell=told.append)
                async with watching(agent):
                    await until(lambda: told, 8)
        assert told == [{"proxy": slow, "clients": []}]
        await server.stop()

    run(story())


def test_proxies_that_are_not_announced_any_more_are_forgotten(tmp_path: Path) -> None:
    choice, numbers = Choice(), itertools.count(1)

    async def story() -> None:
        agent = Agent(
            lambda: [f"127.0.0.{next(numbers)}:9"], str(tmp_path / "agent"), choice, probe_s=0.01
        )
        async with watching(agent):
            await until(lambda: next(numbers) > 100, 10)
            assert len(choice._rows) < 10
            assert len(agent._probes) < 10

    run(story())
