"""docs/examples/roaming.py, as docs/service.md shows it."""

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wayfare.service.adapters import adapter
from wayfare.service.experiment import proxy
from wayfare.service.overlays import Overlay
from wayfare.service.system import Id, Publication

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLE = DOCS / "examples" / "roaming.py"


def test_the_page_shows_the_example() -> None:
    lines = EXAMPLE.read_text("utf-8").splitlines()
    shown = "\n".join(f"    {line}" if line else "" for line in lines)
    assert shown in (DOCS / "service.md").read_text("utf-8")


@pytest.mark.parametrize("system", ["mqtt"])
def test_the_example_misses_nothing(system: str, overlay_of: Callable[[str], Overlay]) -> None:
    numbers = asyncio.run(run_example(overlay_of(system).addresses))
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] == 1, "what was published when it was here comes, too: it had not asked"


async def run_example(addresses: list[str]) -> list[int]:
    """What the example printed of publications 1, 2, ..., fifty a second while it moves."""
    a, b, c = addresses

    async def ignored(publication: Publication) -> None:
        pass

    async with asyncio.timeout(60), proxy(a) as home, proxy(c) as office:
        publisher = await adapter(b).open(b, "meter", ignored, print)
        example = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLE), home, office, stdout=asyncio.subprocess.PIPE
        )
        assert example.stdout is not None
        numbers: list[int] = []
        try:
            assert await example.stdout.readline() == b"here\n"
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
