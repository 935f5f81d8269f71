"""docs/examples/roaming.py, as docs/service.md shows it."""

import asyncio
import re
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from wayfare.service.adapters import adapter
from wayfare.service.experiment import proxy
from wayfare.service.overlays import Overlay
from wayfare.service.proxy_server import Server
from wayfare.service.system import Id, Publication

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLE = DOCS / "examples" / "roaming.py"


def test_the_page_shows_the_example() -> None:
    lines = EXAMPLE.read_text("utf-8").splitlines()
    assert sum(line.strip() != "" for line in lines) == 12  # a dozen, it says
    shown = "\n".join(f"    {line}" if line else "" for line in lines)
    assert shown in (DOCS / "service.md").read_text("utf-8")


@pytest.mark.parametrize("system", ["mqtt"])
def test_the_example_misses_nothing(system: str, overlay_of: Callable[[str], Overlay]) -> None:
    numbers = asyncio.run(run_example(overlay_of(system).addresses))
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] == 1, "what was published when it was here comes, too: it had not asked"


def subscribed(server: Server) -> list[str]:
    """What the proxy has subscribed to for ann."""
    ann = server.proxy.clients.get("ann")
    return [*ann.subscriptions] if ann is not None and ann.access == "ready" else []


async def run_example(addresses: list[str]) -> list[int]:
    """What the example printed of publications 1, 2, ..., fifty a second while it moves."""
    a, b, c = addresses

    async def ignored(publication: Publication) -> None:
        pass

    at_home = Server(a)
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        stack.push_async_callback(at_home.stop)
        home = await at_home.start()
        office = await stack.enter_async_context(proxy(c))
        publisher = await adapter(b).open(b, "meter", ignored, print)
        example = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLE), home, office, stdout=asyncio.subprocess.PIPE
        )
        assert example.stdout is not None
        numbers: list[int] = []
        try:
            while "parking/#" not in subscribed(at_home):
                await asyncio.sleep(0.01)
            publishing = asyncio.create_task(publish(publisher.publish))
            while len(numbers) < 150:
                line = (await example.stdout.readline()).decode()
                found = re.search(r"payload=b'(\d+)'", line)
                assert found, line
                numbers.append(int(found[1]))
            publishing.cancel()
            await asyncio.wait([publishing])
        finally:
            example.kill()
            await example.communicate()
            await publisher.close()
    return numbers


async def publish(send: Callable[[Publication], object]) -> None:
    for number in range(1, 10_000):
        one = Publication("parking/garage7", b"%d" % number, id=Id("meter", number))
        await send(one)  # type: ignore[misc]
        await asyncio.sleep(0.02)
