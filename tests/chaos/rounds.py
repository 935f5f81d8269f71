"""Plays a plan on a network of its own, waits until everything has arrived, and has it judged.

start -> warm up: every subscriber has something of every publisher -> the plan, with its faults
      -> everything is well again: wait until all subscribers have caught up -> judge
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from chaos import faults, journal
from chaos.faults import calm
from chaos.judge import Counts, Published, Verdict, judge
from chaos.network import Network
from chaos.plan import Act, Plan, draw

WARM_UP_S = 90.0
CATCH_UP_S = 120.0  # no fault is left: whoever has not caught up by then never will
TIDY_S = 30.0
EVERY_S = 0.1  # between two batches of a publisher
SHOWN_MAX = 20  # violations in a report


class Outcome(NamedTuple):
    plan: Plan
    directory: Path
    verdict: Verdict
    played: dict[str, int]  # acts, by kind
    confirmed: int
    trouble: tuple[str, ...]  # what went wrong beside deliveries
    seconds: float

    @property
    def is_good(self) -> bool:
        return not (self.verdict.violations or self.trouble)

    def facts(self) -> dict[str, object]:
        return {
            "seed": self.plan.seed,
            "profile": self.plan.profile,
            "good": self.is_good,
            "seconds": round(self.seconds, 1),
            "confirmed": self.confirmed,
            **self.verdict.counts._asdict(),
            "acts": self.played,
            "trouble": list(self.trouble),
            "violations": [one.text for one in self.verdict.violations[:SHOWN_MAX]],
            "directory": str(self.directory),
        }

    def text(self) -> str:
        """What went wrong, and how to play the same plan again."""
        found = [*self.trouble, *(one.text for one in self.verdict.violations)]
        more = [f"... and {len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else []
        lines = [*found[:SHOWN_MAX], *more, str(self.verdict.counts)]
        lines.append(f"logs and journals are in {self.directory}")
        plan = self.plan
        if plan == draw(plan.seed, plan.profile, plan.seconds):
            options = f"--profile {plan.profile} --seed {plan.seed} --round {plan.seconds:g}"
            lines.append(f"play this plan again: cd tests && python -m chaos {options}")
        return "\n".join(lines)


async def play(plan: Plan, directory: Path) -> Outcome:
    """One round. Its directory keeps the plan, the logs and the journals."""
    began = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ValueError(f"{directory} has the journals of another round: name another directory")
    (directory / "plan.txt").write_text(plan.text() + "\n")
    async with Network(plan, directory) as network:
        ledger = Ledger(network)
        trouble = await Round(network, ledger).play()
    ledger.read()
    return Outcome(
        plan,
        directory,
        ledger.verdict(),
        dict(sorted(Counter(one.kind for one in plan.acts).items())),
        sum(len(one.confirmed) for one in ledger.published().values()),
        (*trouble, *network.surprises, *ledger.bad()),
        time.monotonic() - began,
    )


class Ledger:
    """All journals, as far as they were read."""

    def __init__(self, network: Network) -> None:
        self._plan = network.plan
        self._readers = {
            one.name: journal.Reader(network.journal(one.name)) for one in self._plan.clients
        }
        self._lines: dict[str, list[dict[str, object]]] = {name: [] for name in self._readers}
        self._first: dict[str, int] = {}
        self.publishers = [one.name for one in self._plan.clients if one.publishes]
        self.wanted = {
            one.name: [name for name in self.publishers if _wants(one.wants, name)]
            for one in self._plan.clients
            if one.wants
        }
        self._got: dict[tuple[str, str], int] = {}  # subscriber, publisher: the highest

    def read(self) -> None:
        for name, reader in self._readers.items():
            for line in reader.news():
                self._lines[name].append(line)
                if line["did"] == "got":
                    key = name, line["from"]
                    self._got[key] = max(line["i"], self._got.get(key, 0))

    def begin(self) -> None:
        """Subscriptions are in effect for whatever is published from now on."""
        self._first = {name: one.tried + 1 for name, one in self.published().items()}

    def published(self) -> dict[str, Published]:
        return {
            name: journal.published(self._lines[name], self._first.get(name, 1))
            for name in self.publishers
        }

    def last_confirmed(self) -> dict[str, int]:
        return {name: max(one.confirmed, default=0) for name, one in self.published().items()}

    def all_confirmed(self) -> bool:
        return all(one.tried == max(one.confirmed, default=0) for one in self.published().values())

    def behind(self, last: dict[str, int]) -> list[str]:
        """Which subscribers have not got this far."""
        return [
            f"{name} has {self._got.get((name, publisher), 0)} of {publisher}, not {last[publisher]}"
            for name, publishers in self.wanted.items()
            for publisher in publishers
            if self._got.get((name, publisher), 0) < last[publisher]
        ]

    def verdict(self) -> Verdict:
        streams = {name: journal.stream(self._lines[name]) for name in self.wanted}
        return judge(self.published(), streams, self.wanted, may_lose=self._plan.may_lose)

    def bad(self) -> list[str]:
        return [
            f"{name}: {line['why']}"
            for name, lines in self._lines.items()
            for line in lines
            if line["did"] == "bad"
        ]


def _wants(filter: str, publisher: str) -> bool:
    return filter == "i > 0" or f"'{publisher}'" in filter


class Round:
    """One plan, from warming up to the end."""

    def __init__(self, network: Network, ledger: Ledger) -> None:
        self._network, self._ledger = network, ledger
        self._trouble: list[str] = []

    async def play(self) -> list[str]:
        network, ledger = self._network, self._ledger
        network.pace(EVERY_S)
        await self._until("warm up", WARM_UP_S, self._is_warm)
        ledger.begin()
        if not self._trouble:
            await self._play_all(network.plan.acts)
            await self._catch_up()
        return self._trouble

    async def _play_all(self, acts: tuple[Act, ...]) -> None:
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for act in acts:
                await asyncio.sleep(began + act.at_s - asyncio.get_running_loop().time())
                if self._network.surprises:
                    return
                group.create_task(faults.play(self._network, act))

    async def _catch_up(self) -> None:
        network, ledger = self._network, self._ledger
        for road in network.roads.values():
            calm(road)
        # Sessions and subscriptions are where they belong when something newer has come through.
        ledger.read()
        published = {name: one.tried + 1 for name, one in ledger.published().items()}
        await self._until("catch up", CATCH_UP_S, lambda: self._caught_up(published))
        network.pace(None)
        await self._until("confirm everything", CATCH_UP_S, self._is_confirmed)
        last = ledger.last_confirmed()
        await self._until("get the last ones", CATCH_UP_S, lambda: self._caught_up(last))
        await asyncio.sleep(1.0)  # for duplicates
        if not network.plan.may_lose:
            await self._until("tidy up", TIDY_S, self._is_tidy)

    async def _until(
        self, what: str, seconds: float, complaints: Callable[[], Awaitable[list[str]]]
    ) -> None:
        end = time.monotonic() + seconds
        while found := await complaints():
            if time.monotonic() > end:
                self._trouble += [f"could not {what} within {seconds:g} s: {one}" for one in found]
                return
            if self._network.surprises:
                return
            await asyncio.sleep(0.2)

    async def _is_warm(self) -> list[str]:
        self._ledger.read()
        return self._ledger.behind(dict.fromkeys(self._ledger.publishers, 1))

    async def _caught_up(self, last: dict[str, int]) -> list[str]:
        self._ledger.read()
        return self._ledger.behind(last)

    async def _is_confirmed(self) -> list[str]:
        self._ledger.read()
        return [] if self._ledger.all_confirmed() else ["publications are not confirmed"]

    async def _is_tidy(self) -> list[str]:
        """Every client has one session, where it is attached."""
        found = Counter[str]()
        for name in self._network.brokers:
            found.update((await self._network.status(name))["sessions"])
        clients = len(self._network.clients)
        if found["attached"] == found.total() == clients:
            return []
        return [f"{clients} clients have these sessions: {dict(found)}"]


def as_json(outcome: Outcome) -> str:
    return json.dumps(outcome.facts())


def total(outcomes: list[Outcome]) -> Counts:
    out = Counts()
    for one in outcomes:
        out = out.plus(one.verdict.counts)
    return out
