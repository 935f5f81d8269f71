"""The agent of a machine that moves: which proxy it finds, and who does what it says."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from test_live_cli import wayfare
from test_service_live import Nodes, run
from test_service_trouble import until
from test_service_wires import nobody_answers
from wayfare.errors import CannotConnect, UsageError
from wayfare.net.emulator import Emulator
from wayfare.service import agent, connect
from wayfare.service.agent import Agent, Choice, Member, Registration, Word, order
from wayfare.service.experiment import proxy
from wayfare.service.proxy_addresses import where
from wayfare.service.proxy_server import Server


@asynccontextmanager
async def watching(one: Agent) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run())
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
                one = Agent(lambda: [lost, slow], str(tmp_path / "agent"), tell=told.append)
                async with watching(one):
                    await until(lambda: told, 8)
        assert told == [{"proxy": slow, "clients": []}]
        await server.stop()

    run(story())


def test_proxies_that_are_not_announced_any_more_are_forgotten(tmp_path: Path) -> None:
    choice, numbers = Choice(), itertools.count(1)

    async def story() -> None:
        one = Agent(
            lambda: [f"127.0.0.{next(numbers)}:9"], str(tmp_path / "agent"), choice, probe_s=0.01
        )
        async with watching(one):
            await until(lambda: next(numbers) > 100, 10)
            assert len(choice._rows) < 10
            assert len(one._probes) < 10

    run(story())


# ---- orders ----------------------------------------------------------------------------


class Writer:
    """A client that is told things."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def write(self, line: bytes) -> None:
        self.told.append(line)


def test_a_client_that_cannot_move_is_told_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "AGAIN_S", 0.05)

    async def story() -> None:
        writer = Writer()
        member = Member("ann", writer)  # type: ignore[arg-type]
        member.tell(move_out=True)
        for _ in range(10):
            assert member.hear(Word(number=1, done=False))
        assert not member.hear(Word(number=0, done=True))  # that was about something else
        await until(lambda: len(writer.told) > 1, 5)
        await asyncio.sleep(0.1)
        assert writer.told == 2 * [b'{"move_out":true,"number":1}\n']
        assert member.hear(Word(number=1, done=True)) and member.done

    run(story())


class Walker:
    """A client whose moves take as long as they are let."""

    name = "ann"

    def __init__(self, state: str = "attached", place: str = "") -> None:
        self.state, self.place = state, place
        self.done: list[str] = []
        self.may_move = asyncio.Event()

    async def move_in(self, proxy: str = "") -> None:
        self.state, self.place = "moving-in", proxy
        self.done.append(f"in at {proxy}")
        await self.may_move.wait()
        self.state = "attached"

    async def move_out(self) -> None:
        self.done.append("out")
        if self.state != "attached":
            raise UsageError(f"only a client that is attached can move out: it is {self.state}")
        await self.may_move.wait()
        self.state = "away"


@asynccontextmanager
async def heeding(control: str, client: Walker, at: str) -> AsyncIterator[Agent]:
    """An agent that is at this proxy, and a client that does what it says."""
    one = Agent(list, control, probe_s=60)
    for _ in range(2):
        one._choice.heard(at, True)
    one._choice.now = at
    async with watching(one):
        await until(lambda: Path(control).exists())
        registration = Registration(control, client.name)
        assert await registration.first() == at
        heeds = asyncio.create_task(registration.heed(client))
        await until(lambda: all(member.done for member in one._clients.values()))
        yield one
        heeds.cancel()
        await asyncio.wait([heeds])


@pytest.mark.parametrize("system", ["mqtt"])
def test_a_client_on_its_way_to_a_proxy_out_of_reach_hears_that_another_one_is_meant(
    overlay_of: Nodes, system: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "AGAIN_S", 0.1)
    control = str(tmp_path / "agent")
    one = Agent(list, control, probe_s=60)

    def send_to(proxy: str) -> None:
        one._choice.heard(proxy, True)
        one._choice.heard(proxy, True)
        one._choice.now = proxy
        one._order_all()

    async def story() -> None:
        a, _, c = overlay_of(system).addresses
        async with proxy(a) as first, proxy(c) as third, watching(one):
            send_to(first)
            await until(lambda: Path(control).exists())
            with nobody_answers() as lost:
                async with connect(f"ann{word}", agent=control, patience=2) as ann:
                    await ann.subscribe(f"{word}/#")
                    send_to(lost)
                    await until(lambda: ann.place == lost)
                    assert await order(control, "out") == ""
                    assert ann.state == "away"
                    one._out = False
                    send_to(lost)
                    await until(lambda: ann.state == "moving-in")
                    send_to(third)
                    await until(lambda: ann.place == third, 1)
                    await until(lambda: ann.state == "attached")

    run(story())


def test_who_is_sent_out_while_it_moves_in_goes_out_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "AGAIN_S", 0.05)
    control = str(tmp_path / "agent")

    async def story() -> None:
        ann = Walker()
        async with heeding(control, ann, "127.0.0.1:9"):
            ann.state = "moving-in"
            out = asyncio.create_task(order(control, "out"))
            await until(lambda: ann.done.count("out") > 1, 5)
            assert not out.done()
            ann.may_move.set()
            ann.state = "attached"  # a move in goes on by itself
            assert await out == ""
            assert ann.state == "away"

    run(story())


def test_who_has_not_moved_is_named_to_whom_gave_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "ORDER_S", 0.3)
    control = str(tmp_path / "agent")

    async def story() -> None:
        ann = Walker()
        async with heeding(control, ann, "127.0.0.1:9") as one:
            command = "service", "move", "out", "--control", control
            code, out, err = await asyncio.to_thread(wayfare, *command)
            assert (code, out) == (1, "")
            assert err == (
                "wayfare: not moved within 0.3 s: ann (it does not say that it has moved)\n"
            )
            ann.may_move.set()
            await until(lambda: ann.state == "away", 5)
            one._choice.now = ""
            command = "service", "move", "in", "--control", control
            said = "wayfare: no proxy is in reach: clients are moved when one is\n"
            assert await asyncio.to_thread(wayfare, *command) == (1, "", said)

    run(story())


# ---- who may be what -------------------------------------------------------------------


def test_nobody_follows_the_agent_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write to /tmp could be there first."""
    control = str(tmp_path / "agent")

    async def story() -> None:
        async with watching(Agent(list, control)):
            await until(lambda: Path(control).exists())
            if os.getuid() == 0:
                os.chown(control, 4711, -1)
            else:
                monkeypatch.setattr(os, "getuid", lambda: 4711)
            with pytest.raises(CannotConnect, match="of another user"):
                await Registration(control, "ann").first()
            with pytest.raises(CannotConnect, match="of another user"):
                await order(control, "out")

    run(story())


@pytest.mark.parametrize("place", ["0.0.0.0:7000", "[::]:7000", "10.0.0.1:7000", "host:7000"])
def test_no_agent_listens_where_others_could_move_its_clients(place: str) -> None:
    with pytest.raises(UsageError, match="could move the clients of this machine"):
        Agent(list, place)


def test_a_client_too_many_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "CLIENTS_MAX", 1)
    control = str(tmp_path / "agent")

    async def story() -> None:
        async with heeding(control, Walker(), "127.0.0.1:9"), asyncio.timeout(5):
            with pytest.raises(CannotConnect, match="refuses: it moves 1 clients already"):
                await Registration(control, "bob").first()

    run(story())
