import asyncio
import sys

from wayfare.service import connect


async def main(home: str, office: str) -> None:
    async with connect("ann", proxy=home) as ann:
        await ann.subscribe("parking/#")
        await ann.move_out()  # the proxy at home stands in for ann ...
        await asyncio.sleep(2)  # ... while she is on the road
        await ann.move_in(office)  # another proxy, beside another broker
        async for message in ann:
            print(message, flush=True)


asyncio.run(main(*sys.argv[1:]))
