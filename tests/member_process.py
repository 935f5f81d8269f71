"""A member of a queue group in a process of its own, to be killed: see test_members_kill.py.

member_process.py ADDRESS NAME AWAY PREFETCH FILE     appends `taken` or `acked`, the job and its redeliveries to the file
"""

import asyncio
import sys
from pathlib import Path

import wayfare


async def main(address, name, away, prefetch, file):
    journal, options = Path(file), {"away": float(away), "prefetch": int(prefetch)}
    async with wayfare.connect(address, client_id=name) as client:
        jobs = await client.subscribe("n > 0", group="team", ack=True, **options)
        print("ready", flush=True)
        async for one in jobs:
            write(journal, "taken", one)
            await asyncio.sleep(0.01)  # the work
            await one.ack()
            write(journal, "acked", one)


def write(journal, what, one):
    with journal.open("a") as out:
        out.write(f"{what} {one['n']} {one.redelivered}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
