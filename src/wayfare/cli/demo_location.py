"""`wayfare demo location`: a car drives along five brokers, and what was said of each street is there when it comes.

The city speaks of every street, whether anybody is there or not. The car has one subscription, `location in
myloc`. Brokers listen ahead in the street where it may come to next. At the end everything is counted: what was said
of a street since somebody listened there, until the car went on, has to come once, the past first, in order.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

from wayfare.core.messages import BrokerId
from wayfare.core.places import of_edges
from wayfare.core.predicates import Value
from wayfare.core.virtual import Ahead
from wayfare.net.addresses import Address
from wayfare.net.broker import BrokerHost
from wayfare.net.client import Client, connect
from wayfare.net.subscription import Notification, Subscription

STREETS = ("alameda", "baixa", "chiado", "docas", "estrela")  # each the range of a broker, in a row
FILTER = "service = 'parking' and location in myloc"
HERE, AHEAD, ELSEWHERE = 3, 3, 2  # notices at each stop: of this street, the next, and any other
ON_THE_WAY = 2  # ... and of the next one, while the car is between two
PATIENCE_S = 10.0  # for what does not come
SECONDS = 6.0


class Stop:
    """The car in one street: what was said of it, and what came."""

    def __init__(self, street: str) -> None:
        self.street = street
        self.said: list[int] = []  # that the car has to get
        self.got: list[Notification] = []  # while it was here

    def numbers(self, *, past: bool) -> list[Any]:
        return [one["number"] for one in self.got if one.past == past]

    def facts(self) -> dict[str, Any]:
        return {
            "street": self.street,
            "said": self.said,
            "past": self.numbers(past=True),
            "live": self.numbers(past=False),
        }


class Drive:
    """The brokers, the city and the car."""

    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        self.stops = {street: Stop(street) for street in STREETS}
        self.at = self.stops[STREETS[0]]  # where the car is
        self.published = 0
        self._pause_s = seconds / len(STREETS) / (HERE + AHEAD + ELSEWHERE + ON_THE_WAY)
        self._tell, self._began = tell, time.monotonic()
        self._brokers: dict[str, BrokerHost] = {}
        self._city: Client
        self._car: Client

    async def play(self) -> None:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            for street, following in pairwise((*STREETS, "")):
                if street != STREETS[0]:
                    await self._arrive(street)
                await self._stay(street, following)
                if following:
                    await self._leave(street, following)

    async def _start(self, stack: AsyncExitStack) -> None:
        places = of_edges(pairwise(STREETS))
        before = ""
        for street in STREETS:
            near = {before: self._brokers[before].address} if before else {}
            after = STREETS[len(self._brokers) + 1 : len(self._brokers) + 2]
            broker = self._brokers[street] = BrokerHost(
                street,
                {**near, **dict.fromkeys(after)},
                ahead=Ahead(places, places.next_brokers),
            )
            await broker.start(Address("127.0.0.1", 0))
            stack.push_async_callback(broker.stop)
            before = street
        known = {name: broker.address for name, broker in self._brokers.items()}
        for broker in self._brokers.values():
            broker.peers.meet(known)
        self._city = await self._client(stack, "city")
        await self._city.advertise("service = 'parking'")
        self._car = await self._client(stack, "car")
        self._car.location = STREETS[0]
        parking = await self._car.subscribe(FILTER)
        reading = asyncio.create_task(self._read(parking))
        stack.callback(reading.cancel)
        self._say(f"five brokers in a row; the car is in {STREETS[0]}, and wants")
        self._say(f"  {FILTER}")

    async def _client(self, stack: AsyncExitStack, name: str) -> Client:
        address = str(self._brokers[STREETS[0]].address)
        return await stack.enter_async_context(connect(address, client_id=name))

    async def _read(self, parking: Subscription) -> None:
        async for notice in parking:
            self.at.got.append(notice)

    # The story

    async def _arrive(self, street: str) -> None:
        stop = self.stops[street]
        self._car.location = street
        self.at = stop
        came_at = time.monotonic()
        await self._car.move(str(self._brokers[street].address))
        await self._until(lambda: len(stop.got) >= len(stop.said))
        took_ms = 1000 * (time.monotonic() - came_at)
        past = len(stop.numbers(past=True))
        self._say(f"the car comes to {street}: {past} notices of the past within {took_ms:.0f} ms")

    async def _stay(self, street: str, following: str) -> None:
        if following:
            await self._until(lambda: self._listens(following))
        others = [one for one in STREETS if one not in (street, following)]
        for number in range(ELSEWHERE):
            await self._publish(others[number % len(others)], wanted=False)
        if following:
            for _ in range(AHEAD):
                await self._publish(following)
            self._say(f"  the city says {AHEAD} things of {following}, where the car is not yet")
        for _ in range(HERE):
            await self._publish(street)
        stop = self.stops[street]
        await self._until(lambda: len(stop.got) >= len(stop.said))
        self._say(f"  ... and {HERE} things of {street}: {len(stop.numbers(past=False))} came live")

    async def _leave(self, street: str, following: str) -> None:
        await self._car.detach()
        for _ in range(ON_THE_WAY):
            await self._publish(following)
        self._say(f"  on the way, the city says {ON_THE_WAY} more things of {following}")

    async def _publish(self, street: str, *, wanted: bool = True) -> None:
        self.published += 1
        if wanted:
            self.stops[street].said.append(self.published)
        notice: dict[str, Value] = {"service": "parking", "location": street}
        notice["number"] = self.published
        await self._city.publish(notice, confirm=True)
        await asyncio.sleep(self._pause_s)

    def _listens(self, street: str) -> bool:
        """Whether what the city says of this street finds its way there."""
        tables = self._brokers[STREETS[0]].core.routing.in_subs[BrokerId(STREETS[1])]
        notice = {"service": "parking", "location": street}
        return any(entry.filter.matches(notice) for entry in tables)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for it, but not for ever: the figures will tell."""
        end = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < end:
            await asyncio.sleep(0.002)

    def _say(self, words: str) -> None:
        self._tell(f"{time.monotonic() - self._began:5.1f} s  {words}")

    def figures(self) -> dict[str, int]:
        stops = self.stops.values()
        got = [one["number"] for stop in stops for one in stop.got]
        said = {number for stop in stops for number in stop.said}
        return {
            "published": self.published,
            "wanted": len(said),
            "past": sum(len(stop.numbers(past=True)) for stop in stops),
            "live": sum(len(stop.numbers(past=False)) for stop in stops),
            "lost": len(said - {*got}),
            "twice": len(got) - len({*got}),
            "elsewhere": sum(one["location"] != stop.street for stop in stops for one in stop.got),
            "out_of_order": sum(
                [one["number"] for one in stop.got] != sorted(one["number"] for one in stop.got)
                for stop in stops
            ),
        }


WRONG = ("lost", "twice", "elsewhere", "out_of_order")


def run(seconds: float, *, as_json: bool) -> int:
    drive = Drive(seconds, (lambda _: None) if as_json else _print)
    asyncio.run(drive.play())
    figures = drive.figures()
    if as_json:
        stops = [stop.facts() for stop in drive.stops.values()]
        print(json.dumps({"stops": stops, "figures": figures}))
    else:
        print()
        for name, count in figures.items():
            print(f"{name.replace('_', ' '):<14}{count:>6}")
    return 1 if any(figures[name] for name in WRONG) else 0


def _print(words: str) -> None:
    print(words, flush=True)
