"""A client in a process of its own, to be killed: see test_client_store.py.

client_process.py sub ADDRESS STORE FILE     appends what it gets to the file, a number a line
client_process.py pub ADDRESS STORE FILE     publishes 1, 2, ... and appends what it has published
"""

import asyncio
import sys
from pathlib import Path

import wayfare


async def subscribe(client, file):
    async with client.subscribe("x > 0") as all:
        print("ready", flush=True)
        async for one in all:
            write(file, one["x"])


async def publish(client, file):
    await client.advertise("x > 0")
    print("ready", flush=True)
    x = len(file.read_text().split()) if file.exists() else 0
    while True:
        x += 1
        await client.publish({"x": x})
        write(file, x)
        await asyncio.sleep(0.002)


def write(file, x):
    with file.open("a") as out:
        out.write(f"{x}\n")


async def main(what, address, store, file):
    name = Path(store).stem
    async with wayfare.connect(address.split(","), client_id=name, store=store) as client:
        await {"sub": subscribe, "pub": publish}[what](client, Path(file))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
