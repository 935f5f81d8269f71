"""One function for each kind of act in a plan. Each leaves things as they were, but for what it destroyed."""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from chaos import journal
from chaos.network import Network, Process, StartFailed
from chaos.plan import Act
from proxy import GREETING_S, Proxy

UNUSABLE = 2  # the exit code of a broker that cannot use its store
FULL = 1  # ... and of one that cannot write to it any more
AT_A_DOOR = ("move", "unseen", "overtake")  # acts of a client at a broker
MARK = ".db-mark"  # the file that says how far a store was
FAILS_S = 30.0  # that a broker which cannot write may take to end
UNSEEN_S = 3.0  # that it may take until all greetings are lost
DEAF_S = 0.3  # that a client may try at a broker that does not hear it


async def play(network: Network, act: Act) -> None:
    """Acts that hit the same thing wait for each other."""
    target = act.target.partition("@")[0] if act.kind in AT_A_DOOR else act.target
    async with network.busy[target]:
        try:
            await ACTS[act.kind](network, act)
        except StartFailed as error:
            network.surprises.append(str(error))


# Movements


async def move(network: Network, act: Act) -> None:
    client = act.target.partition("@")[0]
    network.clients[client].tell({"do": "move", "address": network.roads[act.target].url})


async def leave(network: Network, act: Act) -> None:
    network.clients[act.target].tell({"do": "leave", "for_s": act.for_s})
    await asyncio.sleep(act.for_s)


# Connections


async def reset(network: Network, act: Act) -> None:
    network.roads[act.target].cut()


async def half_open(network: Network, act: Act) -> None:
    network.roads[act.target].half_open(act.detail)


async def half_close(network: Network, act: Act) -> None:
    network.roads[act.target].half_close(act.detail)


async def black_hole(network: Network, act: Act) -> None:
    road = network.roads[act.target]
    road.swallow(*(("up", "down") if act.detail == "both" else (act.detail,)))
    await asyncio.sleep(act.for_s)
    calm(road)


async def slow(network: Network, act: Act) -> None:
    road = network.roads[act.target]
    road.delay_s = float(act.detail)
    await asyncio.sleep(act.for_s)
    calm(road)


async def thin(network: Network, act: Act) -> None:
    road = network.roads[act.target]
    road.bytes_per_s = float(act.detail)
    await asyncio.sleep(act.for_s)
    calm(road)


async def unseen(network: Network, act: Act) -> None:
    """The client attaches, and its connection breaks before it is greeted: once, or several times in a row."""
    client = act.target.partition("@")[0]
    doors = {name: road for name, road in network.roads.items() if name.startswith(f"{client}@")}
    road = doors.pop(act.target)
    for other in doors.values():
        other.refuses = True
    road.greetings_to_lose = int(act.detail.partition(" ")[0])
    network.clients[client].tell({"do": "move", "address": road.url})
    with suppress(TimeoutError):
        async with asyncio.timeout(UNSEEN_S):
            while road.greetings_to_lose:
                await asyncio.sleep(0.01)
    await asyncio.sleep(2 * GREETING_S)
    road.greetings_to_lose = 0
    for other in doors.values():
        other.refuses = False


async def overtake(network: Network, act: Act) -> None:
    """The client's later requests are answered first.

    It attaches unseen where nothing gets out, then where it was before, which never hears of it, and then
    elsewhere.
    """
    client, _, here = act.target.partition("@")
    there = act.detail.split()[1]
    before = _broker_of(network, client) or there
    links = [road for name, road in network.roads.items() if here in name.split("-")]
    for link in links:
        link.swallow()
    await unseen(network, act)
    door = network.roads[f"{client}@{before}"]
    door.swallow("up")
    network.clients[client].tell({"do": "move", "address": door.url})
    await asyncio.sleep(DEAF_S)
    door.cut()
    calm(door)
    there_url = network.roads[f"{client}@{there}"].url
    network.clients[client].tell({"do": "move", "address": there_url})
    await asyncio.sleep(act.for_s)
    for link in links:
        calm(link)


def _broker_of(network: Network, client: str) -> str:
    """Where the client was attached last."""
    lines = journal.read(network.journal(client))
    return next((line["broker"] for line in reversed(lines) if line["did"] == "attached"), "")


def calm(road: Proxy) -> None:
    road.heal()
    road.delay_s, road.bytes_per_s = 0.0, None


# Brokers


async def kill(network: Network, act: Act) -> None:
    broker = network.brokers[act.target]
    await broker.kill()
    await asyncio.sleep(act.for_s)
    await broker.start()


async def restart(network: Network, act: Act) -> None:
    broker = network.brokers[act.target]
    if (code := await broker.terminate()) != 0:
        network.surprises.append(f"{act.target} was asked to stop, and its exit code was {code}")
    await broker.start()


async def stop(network: Network, act: Act) -> None:
    await _suspend(network.brokers[act.target], act.for_s)


async def full_disk(network: Network, act: Act) -> None:
    """Its files may not grow any more: it fails, and is started again when there is room.

    Where it writes over what is in its files they need not grow: after a while nothing can be written.
    """
    broker = network.brokers[act.target]
    hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)[1]
    largest = max((one.stat().st_size for one in _files(network, act.target)), default=0)
    code = None
    for limit, seconds in ((largest, act.for_s), (0, FAILS_S)):
        if code is None:
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, hard))
            code = await broker.ended(seconds)
    if code != FULL:
        network.surprises.append(f"{act.target} had a full disk, and its exit code was {code}")
    await broker.kill()
    await broker.start()


# What is destroyed


async def delete(network: Network, act: Act) -> None:
    """The store is gone."""
    await network.brokers[act.target].kill()
    shutil.rmtree(network.store(act.target))
    await network.brokers[act.target].start()


async def put_back(network: Network, act: Act) -> None:
    """An older copy of the store is put back: with the present mark, with the old one, or with none."""
    broker, store = network.brokers[act.target], network.store(act.target)
    copy = store.with_suffix(".copy")
    shutil.rmtree(copy, ignore_errors=True)
    await broker.kill()
    copy.mkdir()
    for one in _files(network, act.target):
        shutil.copy2(one, copy)
    await broker.start()
    await asyncio.sleep(act.for_s)
    await broker.kill()
    marks = {one for one in (*copy.iterdir(), *_files(network, act.target)) if one.suffix == MARK}
    for one in _files(network, act.target):
        if one not in marks or act.detail != "present mark":
            one.unlink()
    for one in copy.iterdir():
        if one not in marks or act.detail == "old mark":
            shutil.copy2(one, store)
    await _start_somehow(network, act.target)


async def cut_wal(network: Network, act: Act) -> None:
    """The end of the write-ahead log is missing."""
    await network.brokers[act.target].kill()
    if (wal := _wal(network, act.target)) is not None:
        with wal.open("rb+") as file:
            file.truncate(int(wal.stat().st_size * float(act.detail)))
    await _start_somehow(network, act.target)


async def flip_wal(network: Network, act: Act) -> None:
    """One bit of the write-ahead log is wrong."""
    await network.brokers[act.target].kill()
    if (wal := _wal(network, act.target)) is not None:
        content = bytearray(wal.read_bytes())
        if content:
            content[int(len(content) * float(act.detail))] ^= 1
        wal.write_bytes(content)
    await _start_somehow(network, act.target)


async def _start_somehow(network: Network, name: str) -> None:
    """A broker may refuse a damaged store and say so; then it starts without."""
    try:
        await network.brokers[name].start()
    except StartFailed as error:
        if error.code != UNUSABLE:
            raise
        shutil.rmtree(network.store(name))
        await network.brokers[name].start()


def _files(network: Network, name: str) -> list[Path]:
    return sorted(one for one in network.store(name).iterdir() if one.is_file())


def _wal(network: Network, name: str) -> Path | None:
    path = network.store(name) / "broker.db-wal"
    return path if path.exists() else None


# Clients


async def kill_client(network: Network, act: Act) -> None:
    client = network.clients[act.target]
    await client.kill()
    await asyncio.sleep(act.for_s)
    await client.start()
    client.tell({"do": "pace", "every_s": network.every_s})


async def stop_client(network: Network, act: Act) -> None:
    await _suspend(network.clients[act.target], act.for_s)


async def dawdle(network: Network, act: Act) -> None:
    network.clients[act.target].tell({"do": "dawdle", "for_s": act.for_s})
    await asyncio.sleep(act.for_s)


async def _suspend(process: Process, seconds: float) -> None:
    process.signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    process.signal(signal.SIGCONT)


ACTS: dict[str, Callable[[Network, Act], Awaitable[None]]] = {
    "move": move,
    "leave": leave,
    "reset": reset,
    "half-open": half_open,
    "half-close": half_close,
    "black-hole": black_hole,
    "slow": slow,
    "thin": thin,
    "unseen": unseen,
    "overtake": overtake,
    "kill": kill,
    "restart": restart,
    "stop": stop,
    "full-disk": full_disk,
    "forget": kill,
    "long-stop": stop,
    "long-kill": kill,
    "long-black-hole": black_hole,
    "delete": delete,
    "put-back": put_back,
    "cut-wal": cut_wal,
    "flip-wal": flip_wal,
    "kill-client": kill_client,
    "stop-client": stop_client,
    "dawdle": dawdle,
}
